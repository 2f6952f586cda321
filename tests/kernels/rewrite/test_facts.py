"""Facts of kernels: what is read and written and where, how work is shared, and what is judged odd."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rewrite_cases import TURNS

from tunesmith.kernels.reader.draft import draft
from tunesmith.kernels.reader.parse import SourceError
from tunesmith.kernels.reader.syntax import Symbol, Syntax
from tunesmith.kernels.rewrite.facts import Facts
from tunesmith.kernels.rewrite.sharing import sharing

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


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("atomicAdd(p + 1, 1.0f);", "inout"),
        ("float* q = &p[4]; float v = q[1];", "in"),
        ("float v = __ldg(p + 1);", "in"),
        ("{ float* q = p; q[1] = 2; } { const float* q = p + 1; float v = q[0]; }", "inout"),
        ("float* q = n ? p : p + 1; *q = 2;", "unknown"),
        ("float* q(p); q[1] = 2;", "out"),
        ("volatile float* q = p; q[1] = 2;", "unknown"),
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
        ("const int N = n * 4; const int r = blockIdx.x; p[(long long)r * N + 3] = 1;", "3 + (long)4 * blockIdx.x * n"),
        ("int i = 0; i += 2; p[i] = 1; p[i] = 2;", ""),
        ("unsigned char t = threadIdx.x; p[t] = 1;", "(long)t"),
        ("enum { SIDE = 1 << 4 }; __shared__ float t[SIDE][SIDE]; t[1][n] = 1;", "16 + (long)n"),
    ],
)
def test_an_index_is_a_form_whatever_its_author_called_it(text: str, index: str) -> None:
    found = body(text)
    assert {one for one in indices(found) if "?" not in one} == ({index} if index else set())
    assert index or len({one.index for one in found.accesses}) == len(found.accesses)


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


MORE = """#define EIGHT (1 << 3)
    __device__ int count; __constant__ float table[64];
    __device__ int halve(int a) { a /= 2; return a; }
    __device__ void bump() { ++count; }
"""


@pytest.mark.parametrize(
    ("text", "guarded"),
    [
        (f"{COORDINATE} int k = 3; k = k * 2; if (i >= n) return; p[i] = k;", True),
        ("const int i = 1 + (blockIdx.x * blockDim.x + threadIdx.x); if (i >= n - 1) return; p[i] = x[i];", True),
        (f"{COORDINATE} const int m = 2 * n; if (i < m && x[i] > 0) p[i] = x[i];", True),
        (f"{COORDINATE} if (i < EIGHT) p[i] = x[i];", True),
        (f"{COORDINATE} const int k = halve(i); if (i < n) p[k] = x[i];", True),
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


def test_only_what_the_kernel_reaches_is_judged() -> None:
    """What it reaches is left alone by rules, with the reason: see the tests of templates."""
    more = """__shared__ float buf[64];
    __global__ void other(float* p) { asm volatile(""); buf[0] = tex2D<float>(0, 1, 2); }
    """
    code = f"{more}__global__ void k(float* p) {{ /* asm tex2D */ BODY }}"
    for text, kinds in (("p[0] = 1;", []), ("p[0] = buf[0];", ["shared memory"])):
        assert list(Facts(Syntax(code.replace("BODY", text), "cuda", "k")).oddities) == kinds
