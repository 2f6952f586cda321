"""Bulk copies out of shared memory that a block may end before, and what hides from racecheck."""

from __future__ import annotations

from typing import Any

import pytest

from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.machine_code import outlasting_store
from tunesmith.kernels.build.source import Specialised
from tunesmith.kernels.outcome import Rejected

PARTS = r"""
#define ASM(text) asm volatile(text ::: "memory")
__device__ __forceinline__ void copy(float* to, const float* from) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 16;"
                 :: "l"(to), "r"((unsigned)__cvta_generic_to_shared(from)) : "memory");
}
__device__ __forceinline__ void commit() { ASM("cp.async.bulk.commit_group;"); }
__device__ __forceinline__ void wait() { ASM("cp.async.bulk.wait_group.read 0;"); }
__device__ __forceinline__ void wait_but_one() { ASM("cp.async.bulk.wait_group.read 1;"); }
__device__ __noinline__ void finish(float* to) { to[9] = 1; commit(); wait(); }
__device__ __noinline__ void copy_all(float* to, const float* from, int n) {
    for (int i = 0; i < n; ++i) copy(to + 4 * i, from);
    commit();
}
extern "C" __global__ void k(float* out, int n) {
    __shared__ __align__(16) float kept[64];
    kept[threadIdx.x] = n;
    __syncthreads();
    const bool first = threadIdx.x == 0;
    BODY
}
"""


def source(body: str) -> Specialised:
    return Specialised("cuda", "k", PARTS.replace("BODY", body))


@pytest.mark.parametrize(
    ("body", "outlasts"),
    [
        ("if (first) { copy(out, kept); commit(); wait(); }", False),
        ("if (first) { copy(out, kept); commit(); } __syncthreads(); if (threadIdx.x < 1 + n % 2) wait();", False),
        ("if (first) { copy(out, kept); finish(out); }", False),
        ("if (first) { copy_all(out, kept, n); wait(); }", False),
        ("for (int i = 0; i < n; ++i) { wait(); kept[i] = i; copy(out + 4 * i, kept); commit(); } wait();", False),
        ("for (int i = 0;; ++i) { wait(); if (i == n) break; kept[i] = i; copy(out + 4 * i, kept); commit(); }", False),
        ("if (n < 8) { out[1] = 2; return; } copy(out, kept); commit(); wait(); out[0] = n;", False),
        ("out[threadIdx.x] = kept[n];", False),
        # cp.async into shared memory ends with its block.
        (
            'asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" :: '
            '"r"((unsigned)__cvta_generic_to_shared(kept)), "l"(out));',
            False,
        ),
        ("if (first) { copy(out, kept); commit(); }", True),
        ("if (first) copy(out, kept);", True),
        ("if (first) { copy(out, kept); wait(); }", True),
        ("if (first) { commit(); copy(out, kept); wait(); }", True),
        ("if (first) { wait(); copy(out, kept); commit(); }", True),
        ("if (first) copy_all(out, kept, n);", True),
        ("for (int i = 0; i < n; ++i) { wait_but_one(); copy(out + 4 * i, kept); commit(); }", True),
        ("if (n == 7) { copy(out, kept); commit(); return; } copy(out, kept); commit(); wait();", True),
        (
            "switch (n) { case 0: copy(out, kept); commit(); wait(); break; case 1: copy(out + 4, kept); commit(); "
            "break; case 2: out[0] = 1; break; case 3: out[1] = 7; break; case 4: out[2] = 1; break; }",
            True,
        ),
    ],
)
def test_a_block_does_not_end_before_its_copies(nvrtc: Any, body: str, outlasts: bool) -> None:
    made = nvrtc.compile(source(body))
    assert isinstance(made, Rejected if outlasts else Artifact), made
    assert not isinstance(made, Rejected) or made.reason == "outlasting_store"


LOOP = ".visible .entry k(){ BEGIN: cp.async.bulk.wait_group.read 0; @%p1 bra END; bra COPY; END: ret; COPY: "
COPY = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd1, {%r1, %r2}], [%r3];"


@pytest.mark.parametrize(
    ("ptx", "outlasts"),
    [
        (f"{LOOP} {COPY} cp.async.bulk.commit_group; bra BEGIN; }}", False),
        (f"{LOOP} {COPY} cp.async.bulk.commit_group; @%p2 bra BEGIN; ret; }}", True),
        # Labels of inlined assembly, twice the same.
        (
            ".visible .entry k(){ { L: @%p1 bra L; } bra M; "
            f"M: {COPY} {{ L: @%p1 bra L; }} cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; exit; }}",
            False,
        ),
    ],
)
def test_ways_that_compilers_may_lay_out(ptx: str, outlasts: bool) -> None:
    assert outlasting_store(ptx, "k") == outlasts


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("__syncthreads();", ()),
        ('asm volatile("bar.sync 1, 64;"); asm volatile("bar.arrive 2, 64;");', ("named barriers",)),
        ('asm volatile("barrier.cta.sync %0;" :: "r"(n));', ("named barriers",)),
        ("if (first) { copy(out, kept); commit(); wait(); }", ("bulk copies",)),
        (
            'asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"((unsigned)__cvta_generic_to_shared(kept)));',
            ("mbarriers",),
        ),
    ],
)
def test_what_hides_from_racecheck(nvrtc: Any, body: str, expected: tuple[str, ...]) -> None:
    made = nvrtc.compile(source(body))
    assert isinstance(made, Artifact) and made.unfollowed == expected
