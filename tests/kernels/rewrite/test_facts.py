"""Facts of kernels: how work is shared, and what is judged odd."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rewrite_cases import TURNS

from tunesmith.kernels.reader.draft import draft
from tunesmith.kernels.reader.parse import SourceError
from tunesmith.kernels.reader.syntax import Syntax
from tunesmith.kernels.rewrite.facts import Facts
from tunesmith.kernels.rewrite.sharing import sharing

COORDINATE = "const int i = blockIdx.x * blockDim.x + threadIdx.x;"


def facts(code: str, language: str = "cuda") -> Facts:
    return Facts(Syntax(code, language, None))


def body(text: str, more: str = "") -> Facts:
    return facts(f"{more}\n__global__ void k(const float* x, float* p, int n) {{ {text} }}")


@pytest.mark.parametrize(
    "text",
    [
        f"int w = threadIdx.x / 32; p[w] = 1; {TURNS} p[i] = 1;",
        f"{TURNS} {{ __syncthreads(); p[i] = 1; }}",
        f"extern __shared__ float s[]; {TURNS} p[i] = s[threadIdx.x / 32];",
        "#define ME threadIdx.x\nconst int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) p[i] = ME;",
    ],
)
def test_what_may_depend_on_the_block_stays(text: str) -> None:
    assert sharing(body(text)).kind == "fixed"


def test_a_constant_reference_is_no_other_name_for_what_is_written() -> None:
    for reference, others in (("const float&", False), ("float&", True)):
        found = body("float v = look(p[1]);", f"__device__ float look({reference} at) {{ return at; }}")
        assert (found.arrays[1] in found.escaping) is others


@given(st.text(alphabet="__global__ void k(float* p){}[];<>=+*if for return 0123\n#define", max_size=200))
def test_any_text_is_read_or_refused_with_a_sentence(code: str) -> None:
    try:
        found = facts(code)
        sharing(found)
        assert isinstance(found.oddities, dict)
        draft(code, None, "the source")
    except SourceError as error:
        assert str(error).startswith("the source")


MORE = """__device__ int count; __constant__ float table[64];
    __device__ int halve(int a) { a /= 2; return a; }
    __device__ void bump() { ++count; }
"""


@pytest.mark.parametrize(
    ("text", "guarded"),
    [
        ("const int i = 1 + (blockIdx.x * blockDim.x + threadIdx.x); if (i >= n - 1) return; p[i] = x[i];", True),
        (f"{COORDINATE} const int m = 2 * n; if (i < m && x[i] > 0) p[i] = x[i];", True),
        (f"{COORDINATE} const int k = halve(i); if (i < n) p[k] = x[i];", True),
        (f"{COORDINATE} float t[2]; t[0] = 1; if (i < n) p[i] = t[0];", True),
        (f"{COORDINATE} if (x[i] > 0 && i < n) p[i] = x[i];", False),
        (f"{COORDINATE} if (n < 3) goto work; if (i >= n) return; work: p[i] = x[i];", False),
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
    meets = "__syncthreads(); if (p[0] > 1) return;"
    again = f"while (p[1] > 1) {{ {meets} }}"
    of_code = {"p[0] = 1;": [], "p[0] = buf[0];": ["shared memory"], meets: [], again: ["early return"]}
    for text, kinds in of_code.items():
        assert list(Facts(Syntax(code.replace("BODY", text), "cuda", "k")).oddities) == kinds
