"""Facts of kernels: what is read and written and where, how work is shared, and what is judged odd."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rewrite_cases import LIBRARY_NAMES, OWN, RAW_NAMES, TURNS, plain_task

from tunesmith.kernels.reader.draft import draft
from tunesmith.kernels.reader.parse import SourceError
from tunesmith.kernels.reader.syntax import Symbol, Syntax
from tunesmith.kernels.rewrite.facts import Facts
from tunesmith.kernels.rewrite.forms import Form
from tunesmith.kernels.rewrite.sharing import Axis, Work, sharing
from tunesmith.kernels.rewrite.template import _read

COORDINATE = "const int i = blockIdx.x * blockDim.x + threadIdx.x;"


def facts(code: str, language: str = "cuda") -> Facts:
    return Facts(Syntax(code, language, None))


def body(text: str, more: str = "") -> Facts:
    return facts(f"{more}\n__global__ void k(const float* x, float* p, int n) {{ {text} }}")


def indices(found: Facts) -> set[str]:
    """The distinct indices of accesses, in C."""
    accesses = found.accesses
    names = {atom: one.symbol.name for atom, one in found.atoms.items() if one.symbol.name}
    return {one.index.written(lambda atom: names.get(atom, atom), "long") or "" for one in accesses}


def role(found: Facts, root: Symbol) -> str:
    """What the kernel does with an array: never written, only written, or both."""
    if root in found.escaping and not root.type.const:
        return "unknown"
    read, written = (any(getattr(one, what) for one in found.of(root)) for what in ("read", "written"))
    return "inout" if read and written else "out" if written else "in"


@pytest.mark.parametrize("name", [*OWN, *RAW_NAMES, *LIBRARY_NAMES])
def test_roles_are_those_that_a_person_gave(name: str) -> None:
    task = plain_task(name)
    found, _ = _read(task, "cuda")
    assert not found.oddities
    roles = {one.name: role(found, one) for one in found.arrays}
    assert roles == {one.name: one.role for one in task.arguments if one.role != "scalar"}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("p[threadIdx.x] = 1;", "out"),
        ("*p = 1;", "out"),
        ("p[0] += 1;", "inout"),
        ("p[0]++;", "inout"),
        ("atomicAdd(&p[0], 1.0f);", "inout"),
        ("atomicAdd(p + 1, 1.0f);", "inout"),
        ("float* q = p + 4; q[1] = 2;", "out"),
        ("float* q = &p[4]; float v = q[1];", "in"),
        ("auto q = &p[1]; *q = 2;", "out"),
        ("float v = __ldg(p + 1);", "in"),
        ("{ float* q = p; q[1] = 2; } { const float* q = p + 1; float v = q[0]; }", "inout"),
        ("use(p);", "unknown"),
        ("float4 v = *(float4*)p;", "unknown"),
        ("p = p + 1;", "unknown"),
        ("float* q; q = p; q[1] = 2;", "unknown"),
        ("float* q = n ? p : p + 1; *q = 2;", "unknown"),
        ("float* q(p); q[1] = 2;", "out"),
        ("volatile float* q = p; q[1] = 2;", "unknown"),
        ("float& q = p[1]; q = 2;", "unknown"),
        ("set(p[1], 2);", "unknown"),
        ("float v = look(p[1], 2);", "in"),
    ],
)
def test_role_of_a_pointer(text: str, wanted: str) -> None:
    functions = "__device__ void set(float& at, int v) { at = v; } "
    functions += "__device__ float look(const float& at, int) { return at; }"
    found = body(text, functions)
    assert role(found, found.arrays[1]) == wanted


@pytest.mark.parametrize(
    ("text", "index"),
    [
        (f"{COORDINATE} p[i] = 1;", "(long)@x"),
        (
            "int t = threadIdx.x, b = blockDim.x * blockIdx.x, col = b + t; float* q = p + n; q[col * n] = 1;",
            "(long)@x * n + (long)n",
        ),
        ("const int N = n * 4; const int r = blockIdx.x; p[(long long)r * N + 3] = 1;", "3 + (long)4 * blockIdx.x * n"),
        (
            "\n#define AT(r, c) ((r) * n + (c))\np[AT(blockIdx.y, threadIdx.x)] = 1;",
            "(long)blockIdx.y * n + (long)threadIdx.x",
        ),
        ("int i = 0; i += 2; p[i] = 1; p[i] = 2;", ""),
        ("unsigned char t = threadIdx.x; p[t] = 1;", "(long)t"),
        ("enum { SIDE = 1 << 4 }; __shared__ float t[SIDE][SIDE]; t[1][n] = 1;", "16 + (long)n"),
    ],
)
def test_an_index_is_a_form_whatever_its_author_called_it(text: str, index: str) -> None:
    found = body(text)
    assert {one for one in indices(found) if "?" not in one} == ({index} if index else set())
    assert index or len({one.index for one in found.accesses}) == len(found.accesses)


def test_opencl_gives_the_same_facts() -> None:
    code = """__kernel void k(__global const float* x, __global float* p, int n, __local float* t) {
        int i = get_global_id(0), l = get_local_id(0);
        t[l] = x[i];
        barrier(CLK_LOCAL_MEM_FENCE);
        if (i + 1 < n) p[get_group_id(0) * get_local_size(0) + get_local_id(0)] = t[l];
    }"""
    found = facts(code, "opencl")
    assert indices(found) == {"(long)@x", "(long)threadIdx.x"}
    assert found.barriers and [one.name for one in found.shared] == ["t"]
    assert [role(found, one) for one in found.arrays[:2]] == ["in", "out"]
    found = body("const int i = threadIdx.x; *(p + n * i) = x[i]; float z[4]; *z = 1;")
    assert {one.name for one in found.changed} == {"z"}


GUARDED = Work("cells", (Axis("x", Form.atom("n#49"), guarded=True),))
BARE, ROWS = Work("cells", (Axis("x"),)), Work("rows")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{COORDINATE} if (i < n) p[i] = 1;", GUARDED),
        ("int i = threadIdx.x + blockDim.x * blockIdx.x; if (n <= i) return; p[i] = 1;", GUARDED),
        ("int t = threadIdx.x; int col = blockIdx.x * blockDim.x + t; if (col < n) p[col] = 1;", GUARDED),
        ("int b = blockIdx.x * blockDim.x; int col = b + threadIdx.x; if (col < n) p[col] = 1;", GUARDED),
        (f"{COORDINATE} p[i] = 1;", BARE),
        (f"{COORDINATE} if (i < n) p[i] = 1; p[0] = 2;", BARE),
        (f"{TURNS} p[i] = 1;", ROWS),
        ("const int t = threadIdx.x, s = blockDim.x; for (int i = t; i < n; i += s) p[i] = 1;", ROWS),
        (f"__shared__ float s[8]; {TURNS} p[i] = s[threadIdx.x / 32];", Work("rows", most=256)),
    ],
)
def test_how_work_is_shared(text: str, expected: object) -> None:
    assert sharing(body(text)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "int i = blockIdx.x * 256 + threadIdx.x; if (i < n) p[i] = 1;",
        f"__shared__ float s[256]; s[threadIdx.x] = 1; {TURNS} p[i] = s[0];",
        f"int w = threadIdx.x / 32; p[w] = 1; {TURNS} p[i] = 1;",
        f"{TURNS} {{ __syncthreads(); p[i] = 1; }}",
        f"extern __shared__ float s[]; {TURNS} p[i] = s[threadIdx.x / 32];",
        "if (threadIdx.x < 7) p[threadIdx.x] = 1;",
        "p[0] = blockDim.x;",
        "int i = mine(); if (i < n) p[i] = 1;",
        f"{COORDINATE} if (i < n) p[i] = threadIdx.x;",
        "#define ME threadIdx.x\nconst int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) p[i] = ME;",
    ],
)
def test_what_may_depend_on_the_block_stays(text: str) -> None:
    more = "__device__ int mine() { return blockIdx.x * blockDim.x + threadIdx.x; }"
    assert sharing(body(text, more)).kind == "fixed"


@given(st.text(alphabet="__global__ void k(float* p){}[];<>=+*if for return 0123\n#define", max_size=200))
def test_any_text_is_read_or_refused_with_a_sentence(code: str) -> None:
    try:
        found = facts(code)
        sharing(found)
        assert isinstance(found.oddities, dict)
        draft(code, None, "the source")
    except SourceError as error:
        assert str(error).startswith("the source")


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("for (int k = 0; k < n; ++k) p[k] = 1;", ["counting"]),
        ("int k; for (k = 0; n > k; k += 1) p[k] = 1;", ["counting"]),
        (
            "const int s = gridDim.x * blockDim.x, i = blockDim.x * blockIdx.x + threadIdx.x; "
            "for (int k = i; k < n; k = k + s) p[k] = 1;",
            ["grid"],
        ),
        ("#define EACH(v, m) for (int v = threadIdx.x; v < m; v += blockDim.x)\nEACH(k, n) p[k] = 1;", ["block"]),
        ("for (int k = 0; k < n; k += 2) p[k] = 1;", ["other"]),
        ("int k; for (k = 0; k < n; ++k) p[k] = 1; p[k] = 2;", []),
        ("int k = 0; while (k < n) p[k++] = 1;", []),
    ],
)
def test_loops_are_known_by_what_they_count(text: str, kinds: list[str]) -> None:
    assert [one.kind for one in body(f"\n{text}").loops] == kinds


MORE = """#define EIGHT (1 << 3)
    __device__ int count; __constant__ float table[64];
    __device__ int halve(int a) { a /= 2; return a; }
    __device__ void bump() { ++count; }
"""


@pytest.mark.parametrize(
    ("text", "guarded"),
    [
        (f"{COORDINATE} int k = 3; k = k * 2; if (i >= n) return; p[i] = k;", True),
        (f"{COORDINATE} if (i < n) {{ p[i] = x[i]; }} return;", True),
        (f"{COORDINATE} if (i + 1 < n) p[i] = x[i + 1];", True),
        ("const int i = 1 + (blockIdx.x * blockDim.x + threadIdx.x); if (i >= n - 1) return; p[i] = x[i];", True),
        (f"{COORDINATE} const int m = 2 * n; if (i < m && x[i] > 0) p[i] = x[i];", True),
        (f"{COORDINATE} if (i < EIGHT) p[i] = x[i];", True),
        (f"{COORDINATE} const int k = halve(i); if (i < n) p[k] = x[i];", True),
        (f"{COORDINATE} if (!(i >= n)) p[i] = x[i];", True),
        (f"{COORDINATE} if (i >= n || n == 3) {{ int k = n; return; }} p[i] = x[i];", True),
        (f"{COORDINATE} float v = i < n ? x[i] : 0; if (i < n) p[i] = v;", True),
        ("if (blockIdx.x * blockDim.x + threadIdx.x < n) p[blockIdx.x * blockDim.x + threadIdx.x] = 1;", True),
        (f"{COORDINATE} float t[2]; t[0] = 1; if (i < n) p[i] = t[0];", True),
        (f"{COORDINATE} if (x[i] > 0 && i < n) p[i] = x[i];", False),
        (f"{COORDINATE} p[i] = x[i]; if (i >= n) return;", False),
        (f"{COORDINATE} if (n < 3) goto work; if (i >= n) return; work: p[i] = x[i];", False),
        (f"{COORDINATE} int m = n; m -= i; if (i < m) p[i] = 1;", False),
        (f"{COORDINATE} if (i < x[0]) p[i] = 1;", False),
        (f"{COORDINATE} const int m = i + n; if (i < m) p[i] = 1;", False),
        (f"{COORDINATE} bump(); if (i < n) p[i] = 1;", False),
        (f"{COORDINATE} float t = table[i]; if (i < n) p[i] = t;", False),
    ],
)
def test_a_guard_holds_where_nothing_happens_beyond_its_bound(text: str, guarded: bool) -> None:
    work = sharing(body(text, MORE))
    assert work.kind == "cells" and [axis.guarded for axis in work.axes] == [guarded]


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ('asm volatile("mov.u32 %0, 1;" : "=r"(n));', ["assembly"]),
        ("tex2D<float>(0, 1, 2);", ["texture"]),
        ("k<<<1, 2>>>(x, p, n);", ["dynamic parallelism"]),
        ("__syncthreads(); if (n < 0) return; p[0] = 1;", ["early return"]),
        ("buf[n] = 1; p[0] = buf[0];", ["shared memory"]),
        ("auto block = cooperative_groups::this_thread_block(); cooperative_groups::sync(block); p[0] = 1;", []),
        (
            "auto w = cooperative_groups::tiled_partition<32>(cooperative_groups::this_thread_block()); w.sync();",
            ["cooperative groups"],
        ),
        ("/* asm tex2D */ p[0] = 1;", []),
    ],
)
def test_only_what_the_kernel_reaches_is_judged(text: str, kinds: list[str]) -> None:
    more = """#include <cooperative_groups.h>
    __shared__ float buf[64];
    __global__ void other(float* p) { asm volatile(""); buf[0] = tex2D<float>(0, 1, 2); }
    """
    code = f"{more}__global__ void k(const float* x, float* p, int n) {{ {text} }}"
    assert list(Facts(Syntax(code, "cuda", "k")).oddities) == kinds
