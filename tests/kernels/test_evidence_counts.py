"""PTX: instruction counts, bulk copies that a block may end before, what hides from racecheck; ncu's counters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tunesmith.kernels.build.artifact import Artifact, Candidate
from tunesmith.kernels.build.guard import HEADERS
from tunesmith.kernels.build.machine_code import Profile, outlasting_store
from tunesmith.kernels.build.source import Specialised, specialise
from tunesmith.kernels.check.sanitizer import count_events, parse_counters
from tunesmith.kernels.outcome import Rejected
from tunesmith.kernels.spec.taskfile import load_task

SORTS = """
extern "C" __global__ void k(const uint4* x, float2* y, unsigned* count) {
    __shared__ float tile[32];
    uint4 one = x[threadIdx.x];
    tile[threadIdx.x] = __expf(one.x);
    __syncthreads();
    if (one.y) atomicAdd(count, __shfl_xor_sync(~0u, one.z, 16));
    y[threadIdx.x] = make_float2(fmaf(tile[31 - threadIdx.x], 2.0f, one.w), one.x);
}
"""


def test_instructions_are_counted_by_what_they_do(nvrtc: Any) -> None:
    once = {"ld.global 16 B", "st.shared 4 B", "ld.shared 4 B", "st.global 8 B", "atom.global 4 B", "bar", "shfl"}
    once |= {"branch", "fma, float", "special function or division, float", "compare or select"}
    found = nvrtc.profile(Specialised("cuda", "k", SORTS)).sorts
    assert {name for name, count in found.items() if count == 1} >= once and found["cvt"] > 1


def test_a_compiler_s_own_ptx_shows_the_width_of_accesses(nvrtc: Any) -> None:
    task = load_task("silu_and_mul")
    (template,) = task.sources("cuda").templates
    for vec, width in ((2, 4), (4, 8), (8, 16)):
        config = template.default_config | {"VEC": vec}
        mix = nvrtc.profile(specialise(template, config, task.workloads[0].types)).sorts
        assert mix[f"ld.global {width} B"] == 2 and mix[f"st.global {width} B"] == 1
        assert mix["cvt"] >= 2 * vec  # in the assembly of a header
    assert nvrtc.profile(Specialised("cuda", "k", "no C++")) == Profile()


LOOPS = """
extern "C" __global__ void k(const float* x, float* y, int n) {
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += 32) {
        for (int j = 0; j < i; ++j)
            sum += sinf(x[i]) / x[j];
        sum += x[i];
    }
    y[threadIdx.x] = sum;
}
"""


def test_lines_are_ranked_by_their_instructions_and_the_loops_around_them(nvrtc: Any) -> None:
    from tunesmith.graph.prompts.facts import hot_lines

    profile = nvrtc.profile(Specialised("cuda", "k", f'#line 1 "loops"\n{LOOPS}'))
    first = profile.lines[0]
    assert first.line == 6 and first.depth == 2 and first.instructions > 10
    assert [one.depth for one in profile.lines if one.line == 7] == [1]
    assert all(one.depth == 0 for one in profile.lines if one.line == 9)
    assert hot_lines(LOOPS, profile)[0] == f"6: {first.instructions} in 2 loops: sum += sinf(x[i]) / x[j];"


CSV = """==PROF== Connected to process 77 (/usr/bin/python3.11)
==PROF== Profiling "rope" - 0: 0%....50%....100% - 3 passes
==PROF== Disconnected from process 77
"ID","Kernel Name","dram__bytes_read.sum","dram__throughput.avg.pct_of_peak_sustained_elapsed","lts__t_sector_hit_rate.pct"
"","","byte","%","%"
"0","rope","33,554,432","87.25","n/a"
"""  # noqa: E501


def events_of_rope() -> Any:
    task = load_task(str(Path(__file__).resolve().parent.parent / "raw" / "rope"))
    candidate = Candidate(task.sources("cuda").baseline.template, {}, {})
    return count_events(candidate, task, 0, task.workloads[0], 0)


def test_a_tool_that_works_gives_counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line is what ncu takes; a stand-in answers with a table."""
    with monkeypatch.context() as absent:
        absent.setattr("shutil.which", lambda *_, **__: None)
        assert "not installed" in events_of_rope()
    denied = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission"
    assert "no counters: ==ERROR== ERR_NVGPUCTRPERM" in parse_counters(denied)
    assert "knows none of them" in parse_counters('"ID","a"\n"",""\n"0","1"')
    tool = tmp_path / "ncu"
    tool.write_text(f"#!/bin/sh\necho \"$@\" > {tmp_path}/arguments\ncat <<'END'\n{CSV}END\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert events_of_rope() == {"bytes read from DRAM": 33554432.0, "DRAM throughput, % of peak": 87.25}
    given = (tmp_path / "arguments").read_text()
    assert "--csv --page raw" in given and "--clock-control none" in given and "--kernel-name rope" in given
    assert "-m tunesmith.kernels.check.sanitizer" in given


@pytest.mark.slow
def test_every_header_that_a_source_may_include_compiles(nvrtc: Any) -> None:
    includes = "".join(f"#include <{name}>\n" for name in sorted(HEADERS))
    source = Specialised("cuda", "k", f'{includes}extern "C" __global__ void k() {{}}')
    assert isinstance(nvrtc.compile(source), Artifact)


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
