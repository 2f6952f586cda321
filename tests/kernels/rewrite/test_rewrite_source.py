"""What is read from CUDA sources: what rules need of them."""

from __future__ import annotations


import pytest
from hypothesis import given
from hypothesis import strategies as st
from rewrite_cases import LIBRARY_NAMES, OWN, RAW_NAMES, TURNS, plain_task

from tunesmith.kernels.rewrite.source import Source, SourceError
from tunesmith.kernels.rewrite.threads import Axis, Cells, Fixed, Rows, sharing

COORDINATE = "const int i = blockIdx.x * blockDim.x + threadIdx.x;"
GUARDED = Cells((Axis("x", "n", guarded=True),))


@pytest.mark.parametrize("name", [*OWN, *RAW_NAMES, *LIBRARY_NAMES])
def test_roles_are_those_that_a_person_gave(name: str) -> None:
    task = plain_task(name)
    kernel = Source(task.sources("cuda").baseline.template.source).kernel(name, "here")
    assert kernel.oddities == () and kernel.extern_c
    roles = {one.name: kernel.role(one.name) for one in kernel.parameters if one.pointer}
    assert roles == {one.name: one.role for one in task.arguments if one.role != "scalar"}


@pytest.mark.parametrize(
    ("body", "role"),
    [
        ("p[threadIdx.x] = 1;", "out"),
        ("*p = 1;", "out"),
        ("p[0] += 1;", "inout"),
        ("p[0]++;", "inout"),
        ("atomicAdd(&p[0], 1.0f);", "inout"),
        ("atomicAdd(p + 1, 1.0f);", "inout"),
        ("float* q = p + 4; q[1] = 2;", "out"),
        ("float* q = &p[4]; float x = q[1];", "in"),
        ("float x = __ldg(p + 1);", "in"),
        ("use(p);", "unknown"),
        ("float4 x = *(float4*)p;", "unknown"),
        ("p = p + 1;", "unknown"),
        ("float& q = p[1]; q = 2;", "unknown"),
        ("auto q = &p[1]; *q = 2;", "unknown"),
        ("float* q(p); q[1] = 2;", "unknown"),
        ("{ float* q = p; q[1] = 2; } { const float* q = p + 1; float x = q[0]; }", "unknown"),
        ("set(p[1], 2);", "unknown"),
        ("float x = look(p[1], 2);", "in"),
    ],
)
def test_role_of_a_pointer(body: str, role: str) -> None:
    functions = "__device__ void set(float& at, int v) { at = v; } "
    functions += "__device__ float look(const float& at, int) { return at; }"
    assert Source(f"{functions} __global__ void k(float* p) {{ {body} }}").kernel(None, "here").role("p") == role


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (f"{COORDINATE} if (i < n) p[i] = 1;", GUARDED),
        ("int i = threadIdx.x + blockDim.x * blockIdx.x; if (n <= i) return; p[i] = 1;", GUARDED),
        (f"{COORDINATE} p[i] = 1;", Cells((Axis("x", ""),))),
        (f"{COORDINATE} if (i < n) p[i] = 1; p[0] = 2;", Cells((Axis("x", ""),))),
        (f"{TURNS} p[i] = 1;", Rows()),
        (f"__shared__ float s[8]; {TURNS} p[i] = s[threadIdx.x / 32];", Rows(256)),
    ],
)
def test_how_work_is_shared(body: str, expected: object) -> None:
    assert sharing(Source(f"__global__ void k(float* p, int n) {{ {body} }}").kernel(None, "here")) == expected


@pytest.mark.parametrize(
    "body",
    [
        "int i = blockIdx.x * 256 + threadIdx.x; if (i < n) p[i] = 1;",
        f"__shared__ float s[256]; s[threadIdx.x] = 1; {TURNS} p[i] = s[0];",
        f"int w = threadIdx.x / 32; p[w] = 1; {TURNS} p[i] = 1;",
        f"{TURNS} {{ __syncthreads(); p[i] = 1; }}",
        f"extern __shared__ float s[]; {TURNS} p[i] = s[threadIdx.x / 32];",
        "if (threadIdx.x < 7) p[threadIdx.x] = 1;",
        "p[0] = blockDim.x;",
    ],
)
def test_what_may_depend_on_the_block_stays(body: str) -> None:
    assert isinstance(sharing(Source(f"__global__ void k(float* p, int n) {{ {body} }}").kernel(None, "here")), Fixed)


@given(st.text(alphabet="__global__ void k(float* p){}[];<>=+*if for return 0123\n#define", max_size=200))
def test_any_text_is_read_or_refused_with_a_sentence(code: str) -> None:
    try:
        kernel = Source(code).kernel(None, "here")
    except SourceError as error:
        assert str(error).startswith("here: ")
    else:
        sharing(kernel)
        assert isinstance(kernel.oddities, tuple)


@pytest.mark.parametrize(
    ("body", "guarded"),
    [
        (f"{COORDINATE} int k = 3; k = k * 2; if (i >= n) return; y[i] = k;", True),
        (f"{COORDINATE} if (i < n) {{ y[i] = x[i]; }} return;", True),
        (f"{COORDINATE} if (i + 1 < n) y[i] = x[i + 1];", True),
        ("const int i = 1 + (blockIdx.x * blockDim.x + threadIdx.x); if (i >= n - 1) return; y[i] = x[i];", True),
        (f"{COORDINATE} const int m = 2 * n; if (i < m && x[i] > 0) y[i] = x[i];", True),
        (f"{COORDINATE} if (i < EIGHT) y[i] = x[i];", True),
        (f"{COORDINATE} const int k = half(i); if (i < n) y[k] = x[i];", True),
        ("if (blockIdx.x * blockDim.x + threadIdx.x < n) y[blockIdx.x * blockDim.x + threadIdx.x] = 1;", True),
        (f"{COORDINATE} if (x[i] > 0 && i < n) y[i] = x[i];", False),
        (f"{COORDINATE} y[i] = x[i]; if (i >= n) return;", False),
        (f"{COORDINATE} if (n < 3) goto work; if (i >= n) return; work: y[i] = x[i];", False),
        (f"{COORDINATE} int m = n; m -= i; if (i < m) y[i] = 1;", False),
        (f"{COORDINATE} if (i < x[0]) y[i] = 1;", False),
        (f"{COORDINATE} const int m = i + n; if (i < m) y[i] = 1;", False),
        (f"{COORDINATE} bump(); if (i < n) y[i] = 1;", False),
        (f"{COORDINATE} float t = table[i]; if (i < n) y[i] = t;", False),
        (f"{COORDINATE} float t[2]; t[0] = 1; if (i < n) y[i] = t[0];", True),
    ],
)
def test_a_guard_holds_where_nothing_happens_beyond_its_bound(body: str, guarded: bool) -> None:
    more = """#define EIGHT (1 << 3)
    __device__ int count; __constant__ float table[64];
    __device__ int half(int a) { a /= 2; return a; }
    __device__ void bump() { ++count; }
    """
    work = sharing(Source(f"{more}__global__ void k(const float* x, float* y, int n) {{ {body} }}").kernels[0])
    assert isinstance(work, Cells) and [axis.guarded for axis in work.axes] == [guarded]


def test_an_index_behind_a_pointer_is_not_changed() -> None:
    body = "const int i = threadIdx.x; *(y + n * i) = x[i]; float z[4]; *z = 1;"
    kernel = Source(f"__global__ void k(const float* x, float* y, int n) {{ {body} }}").kernels[0]
    assert kernel.changed == {"z"}
