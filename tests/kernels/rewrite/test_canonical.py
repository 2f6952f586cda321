"""Spellings of coordinates, loops and sums, as authors write them: which rewrites they get, and what these compute."""

from pathlib import Path
from typing import Any

import pytest
from rewrite_cases import (
    LINE,
    kernel,
    opencl_kernel,
    require_equal,
    require_refused,
    rewritten,
    same,
    task_of,
    template_of,
)

from tunesmith.kernels.rewrite.composition import NO_GUARD
from tunesmith.kernels.rewrite.template import _read
from tunesmith.kernels.spec.task import Task
from tunesmith.kernels.spec.template import Config, LaunchGeometry


def text_of(name: str) -> str:
    """What stands in front of kernels here."""
    return (Path(__file__).with_name("canonical") / f"{name}.cuh").read_text()


XY = {"x": ("in", "float32", "n"), "y": ("inout", "float32", "n")}
PLANE = {"a": ("in", "float32", "n * n"), "x": ("in", "float32", "n"), "y": ("inout", "float32", "n")}
THREE_ROWS = {"x": ("in", "float32", "3 * n"), "y": ("inout", "float32", "3 * n")}
FEW, ONE = (LaunchGeometry(grid=(blocks,), block=("64",)) for blocks in "31")
GUARDED = "if (i < n) y[i] = 2 * x[i] + y[i];"
MACROS = text_of("macros")
SPELT = same(
    (LINE, XY, 203),
    [{"VEC": 4}, {"ITEMS": 4, "BLOCK": 128}, {"BLOCK": 256}],
    "(blockIdx.x + blockIdx.y * gridDim.x) * blockDim.x + threadIdx.x",
    "((blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x + threadIdx.y",
    "THREADS * blockIdx.x + TID",
    "blockIdx.x << SHIFT | threadIdx.x",
    at=f"int i = BODY; {GUARDED}",
    more=MACROS,
)
"""One coordinate, in any spelling."""
FUNCTIONS = text_of("functions")
CALLED = same(
    (LINE, XY, 203),
    [{"VEC": 4}, {"ITEMS": 4, "BLOCK": 128}],
    "twice<float, 2>(x, y, n, 1);",
    "const int all = n; twice<float, 3>(x, y, all, 0.5f);",
    "of_type(y, x, n);",
    "{ } of_type<float>(y, x, n);",
    more=FUNCTIONS,
)
"""A function that a kernel ends with, in its place."""
NOT_CALLED = (
    *("swapped(y, x, n);", "narrow(x, y, n);", "of_type(y, x, n); y[0] = 1;", "int i = 0; of_type(y, x, n);"),
    *("by_reference(x, y, n);", "local(x, y);", "if (n > 3) of_type(y, x, n);"),
)
"""Where names or types would mean something else, or more follows."""


OTHERS = (
    # Another number is no coordinate.
    f"int i = blockIdx.x * 32 + threadIdx.x; {GUARDED}",
    f"int i = blockIdx.x * 64 + threadIdx.x * 2; {GUARDED}",
    # What follows needs where the loop ended; a round that goes on early; a name that a macro puts together.
    "int i = INDEX; while (i < n) { y[i] = x[i]; i += blockDim.x * gridDim.x; } if (i == n) y[0] = 3;",
    "int i = INDEX; while (i < n) { y[i] = x[i]; if (i > n) continue; i += blockDim.x * gridDim.x; }",
    "int i = INDEX; while (i < n) { y[i] = x[i]; i += 1; i += blockDim.x * gridDim.x; }",
    "for (int k = 0; k < 2; ++k) { NAMED(my); for (; my_at < n; my_at += blockDim.x * gridDim.x) y[my_at] = k; }",
    "int i = INDEX; if (i == 1) y[1] = 9; for (; i < n; i += blockDim.x * gridDim.x) y[i] = x[i];",
    "int i = INDEX, t = 0; if (i == 0) t = 1; for (; i < n; i += blockDim.x * gridDim.x) y[i] = x[i] + t;",
    "int i = INDEX; if (i == 0) return; for (; i < n; i += blockDim.x * gridDim.x) y[i] = x[i];",
    # Rounds that a thread may leave before its last one.
    "KERNEL_LOOP(i, n) { y[i] = x[i]; if (n > 0) return; }",
    "KERNEL_LOOP(i, n) { y[i] = x[i]; if (x[i] > 1) break; }",
    "for (int i = TID; i < n; i += blockDim.x) { y[i] = x[i]; if (n > 0) return; }",
    # Rounds that need what a thread has by its number.
    "int t = TID; t *= 2; KERNEL_LOOP(i, n) { y[i] = x[i] + t; }",
    "int t = 0; if (TID > 3) t = 1; KERNEL_LOOP(i, n) { y[i] = x[i] + t; }",
    "int t; t = TID; for (int i = TID; i < n; i += blockDim.x) { y[i] = x[i] + t; }",
)
LOOPS = [
    *same((FEW, XY, 203), [{"BLOCK": 128}], "KERNEL_LOOP(e, (n < 4 ? 4 : n)) y[e] = x[e];", more=MACROS),
    *same(
        (FEW, XY, 203),
        [{"ITEMS": 2, "BLOCK": 128}],
        "int start = INDEX, stride = gridDim.x * blockDim.x; if (start == 0) y[n - 1] = 7;"
        "for (int i = start; i < n - 1; i += stride) y[i] = x[i];"
        "for (int i = start; i < n - 1; i += stride) y[i] += 1;",
        more=MACROS,
    ),
    *same(
        (FEW, XY, 203),
        [{"ROW_VEC": 4, "BLOCK": 128}],
        "KERNEL_LOOP(i, n) { y[i] = 2 * x[i] + y[i]; }",
        "int i = INDEX; while (i < n) { y[i] = x[i] - y[i]; i += blockDim.x * gridDim.x; }",
        "const int step = gridDim.x * 64; unsigned int i = INDEX; for (; i < n; i = step + i) y[i] = x[i] + 1;",
        "int c = TID; while (c < n) { y[c] += blockIdx.x == 0 ? x[c] : 0; c += 64; }",
        more=MACROS,
    ),
    *same((LINE, XY, 203), [{"VEC": 4, "BLOCK": 128}], "int i = INDEX; LIMIT(i, n, (void)0) y[i] = x[i];", more=MACROS),
]
"""Loops of the grid, and macros."""
DECLARED = same(
    (LINE, XY, 203),
    [{"VEC": 4}, {"ITEMS": 4, "BLOCK": 128}],
    "int i; float a, b; i = INDEX; if (i < n) { a = x[i]; b = a; b += 2; y[i] = a * b; }",
    "int i, k = 5, i_here = 1; const float* p; i = INDEX; p = x + i; if (i < n) y[i] = *p + k * i_here;",
    "int i = INDEX; float* q; q = y; if (i < n) q[i] = x[i];",
    "int i = INDEX; if (i < n) { if (x[i] > 1) y[i] = 2; else if (x[i] < -1) { y[i] = x[i] + 1; } else y[i] = 0.5; }",
    "int i = INDEX, s; if (i % 3) s = i / 2; else s = 5; if (i < n) y[i] = x[i] * s;",
    "float v = 0; int i = INDEX; if (i < n) v = 2 * x[i]; __syncthreads(); if (i < n) y[i] = v;",
    more=MACROS,
)
DECLARED += same(
    (FEW, XY, 203),
    [{"ROW_VEC": 4, "BLOCK": 128}],
    "float v, sum; int k = -1; KERNEL_LOOP(i, n) { sum = 0; for (int r = 0; r < 3; ++r) { k = (i + r) % n; v = x[k];"
    "sum += v; } y[i] = sum; }",
    more=MACROS,
)
DECLARED += same(
    (LaunchGeometry(grid=("ceil_div(n, 64)", "3"), block=("64",)), THREE_ROWS, 203),
    [{"VEC": 4}, {"ITEMS": 4, "BLOCK": 128}],
    "x += blockIdx.y * n; y = blockIdx.y * n + y; n = n - 2; int i = INDEX; if (i < n) y[i] = 2 * x[i] + n;",
    more=MACROS,
)
"""Variables that are declared ahead of their first value, parameters that are moved, a barrier that nobody needs."""
DECLARED += same(
    (LaunchGeometry(grid=("ceil_div(3 * n, 64)",), block=("64",)), THREE_ROWS, 203),
    [{"VEC": 4}, {"ITEMS": 4, "BLOCK": 128}],
    "int i = INDEX, row = i / n; if (row >= 3) return; y[i] = x[row * n + i % n] + row;",
    more=MACROS,
)
GATHERED: Any = {"x": ("in", "float32", "5 * n"), "w": ("in", "int32", "7"), "y": ("out", "float32", "7 * n")}
GATHERS = [
    case
    for n in (203, 204)
    for case in same(
        (LaunchGeometry(grid=("ceil_div(7 * n, 64)",), block=("64",)), GATHERED, n),
        [{"VEC": 4}, {"VEC": 2, "ITEMS": 4, "LOADS": 2}],
        "int i = INDEX; if (i < 7 * n) y[i] = x[min(max(w[i / n], 0), 4) * n + i % n];",
        "int i = INDEX; if (i < 7 * n) { const int s = max(w[i / n], 0) % 5; y[i] = x[s * n + i % n] + s; }",
        more=MACROS,
    )
]
GATHERS += [
    case
    for n in (203, 204)
    for case in same(
        (FEW, GATHERED, n),
        [{"ROW_VEC": 4}, {"ROW_VEC": 2, "LOADS": 2}],
        "KERNEL_LOOP(i, 7 * n) { int r = i / n, c = i % n, s = w[r]; s = s < 0 ? 0 : s % 5; y[i] = x[s * n + c]; }",
        "KERNEL_LOOP(i, 7 * n) { int r = i / n, c = i % n; const int s = max(w[r], 0) % 5; y[i] = x[s * n + c]; }",
        more=MACROS,
    )
]
"""Rows whose number is read from an array."""
GRID = LaunchGeometry(grid=("2", "1"), block=("32", "2"))
PLANES = "for (int r = blockIdx.y * blockDim.y + threadIdx.y; r < 3; r += blockDim.y * gridDim.y)"
COLUMNS = "for (int c = INDEX; c < n; c += gridDim.x * blockDim.x)"
DECLARED += same(
    (GRID, THREE_ROWS, 203),
    [{"ROW_VEC": 4, "BLOCK_X": 64}, {"ROW_VEC": 2, "ITEMS_Y": 2}],
    f"{PLANES} {{ {COLUMNS} {{ y[r * n + c] = 2 * x[r * n + c]; }} }}",
    f"{PLANES} {{ if (r != 1) {{ {COLUMNS} y[r * n + c] += x[r * n + c]; }} }}",
    more=MACROS,
)
DECLARED += same(
    (LaunchGeometry(grid=("3",), block=("64",)), THREE_ROWS, 203),
    [{"ROW_VEC": 4, "BLOCK": 128}],
    "int r = blockIdx.x; if (r != 1) { for (int c = TID; c < n; c += blockDim.x) y[r * n + c] += x[r * n + c]; }",
    more=MACROS,
)
THREE, UNSIGNED = LaunchGeometry(grid=("3",), block=("64",)), "unsigned row = blockIdx.x * n, end = row + n;"
OF_ROWS: Any = {"x": ("in", "float32", "3 * n"), "w": ("in", "int32", "3"), "y": ("inout", "float32", "3 * n")}
BY_ROWS = [
    case
    for warps in ("(blockDim.x >> 5)", "(blockDim.x + 31) / 32", "blockDim.x / 32.f")
    for case in same(
        (THREE, OF_ROWS, 203),
        [{"BLOCK": 128}, {"ROW_VEC": 4, "KEEP": 2}, {"UNROLL": 4}, {"UNROLL": 8, "BLOCK": 32, "ROW_VEC": 2}],
        # All threads of a block return, or none.
        f"""const int kind = w[blockIdx.x]; if (kind % 3 == 0) return; {UNSIGNED} float s = 0;
        const unsigned at = row + threadIdx.x; __shared__ float all;
        for (unsigned i = at; i < end; i += blockDim.x) s += x[i];
        s = of_block(s); if (threadIdx.x == 0) all = s; __syncthreads();
        for (unsigned i = at; i < end; i += blockDim.x) {{ s = x[i] - all / n; y[i] = s * kind; }}""",
        more=text_of("rows").replace("WARPS", warps),
    )
]
BY_ROWS += same(
    (THREE, OF_ROWS, 203),
    [{}, {"UNROLL": 4}, {"UNROLL": 8}],
    # The last block begins behind the end of its row.
    """unsigned row = blockIdx.x * n, most = n + n / 2, end = row + n < most ? row + n : most;
    for (unsigned i = row + threadIdx.x; i < end; i += blockDim.x) y[i] = 2 * x[i];""",
    """const size_t row = (size_t)blockIdx.x * n; const unsigned long long end = row + n;
    for (auto i = row + threadIdx.x; i < end; i += blockDim.x) y[i] = 2 * x[i];""",
)
BY_ROWS += same(
    (THREE, OF_ROWS, 203),
    [{"UNROLL": 4}, {"UNROLL": 8}],
    # Rounds that go on at once, by numbers that may wrap around, and rounds that may end their loop.
    f"{UNSIGNED} for (size_t i = row + threadIdx.x % 7; i < end; i += 7) if (threadIdx.x < 7) y[i] += x[i];",
    f"{UNSIGNED} if (!threadIdx.x) {{ for (unsigned i = row; end > i; i += 3) {{ if (x[i] > 2) break; y[i] = 3; }} }}",
    f"{UNSIGNED} if (!threadIdx.x) {{ for (unsigned i = row; i < end; i += 2) {{ y[i] = i; i += x[i] > 2; }} }}",
    "for (unsigned i = 6 + threadIdx.x % 2; threadIdx.x < 2 && i < 9; i += 2) y[i] = 7;",
)
"""Loops of a block over a row of its own, from where it begins."""
SQUARE = LaunchGeometry(grid=("ceil_div(n, 32)", "ceil_div(n, 8)"), block=("32", "8"))
PRODUCT = same(
    (SQUARE, {name: PLANE["a"] for name in "ax"} | {"y": ("inout", "float32", "n * n")}, 75),
    [{"OUTPUT_TILE": 64, "OUTPUT_DEPTH": 16, "OUTPUT_ROWS": 4, "OUTPUT_COLUMNS": 4}, {"BLOCK_X": 16, "BLOCK_Y": 4}],
    """int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y; if (i < n && j < n) {
    y[i * n + j] *= 0.5f; for (int k = 0; k < n; ++k) y[i * n + j] += a[i * n + k] * x[k * n + j]; }""",
    """int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y; if (i < n && j < n) {
    const float *p = a + i * n, *q = x + j; float sum = y[i * n + j];
    for (int k = 0; k < n; ++k) { q += n; sum += *p * q[-n]; ++p; } y[i * n + j] = sum; }""",
)
HELPERS = text_of("helpers")
PRODUCT += same(
    (SQUARE, {name: PLANE["a"] for name in "ax"} | {"y": ("out", "float32", "n * n")}, 75),
    [{"OUTPUT_TILE": 64, "OUTPUT_DEPTH": 16, "OUTPUT_ROWS": 4, "OUTPUT_COLUMNS": 4}],
    """int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y; if (i < n && j < n) { float sum = 0;
    for (int k = 0; k < n; ++k) sum += loaded(a + at(i, k, n)) * of(x, at(k, j, n)); y[at(i, j, n)] = sum; }""",
    more=HELPERS,
)
PRODUCT += same((LINE, XY, 192), [{}], "y[INDEX] = x[(n + halved(threadIdx.x - 9)) % n];", more=HELPERS + MACROS)
OPENCL: Any = [
    (opencl_kernel(code.replace("COORDINATE", coordinate), XY, LINE), [{"VEC": 4}, {"ITEMS": 4, "BLOCK": 128}], 1000)
    for code in [
        """#define LIMIT(i, n) if (i >= n) { return; }
        __kernel void k(__global const float* x, __global float* y, int n) {
            const int i = COORDINATE; LIMIT(i, n) y[i] = 0; for (int k = 0; k < 5; ++k) y[i] += x[i] * k; }"""
    ]
    for coordinate in (
        "get_global_id(0) + get_global_id(1) * get_global_size(0)",
        "get_group_id(0) * 64 + get_local_id(0)",
        "mad24((int)get_group_id(0), (int)get_local_size(0), (int)get_local_id(0))",
    )
]
ITEMS: list[Config] = [{}, {"BLOCK": 128}, {"ITEMS": 4}]
ANOTHER = """
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void other(__global float* x, __local float* part) {
    part[get_local_id(0)] = x[get_global_id(0) % get_global_size(0)]; barrier(CLK_LOCAL_MEM_FENCE); }
"""
DEMANDING = "__attribute__((reqd_work_group_size(64, 1, 1), vec_type_hint(int)))"
OPENCL_HEAD = "__kernel void k(__global const float* x, __global float* y, int n)"
OPENCL += [
    (opencl_kernel(f"{ANOTHER}{DEMANDING} {OPENCL_HEAD} {{ {body} }}", XY, LINE), configs, 3331)
    for body, configs in (
        # Of two types `min` is ambiguous; without the cast the difference is no negative number.
        ("size_t i = min(get_global_id(0), (size_t)n - 1); y[i] = x[i] + 1;", ITEMS[:2]),
        ("int i = get_global_id(0); if (i < n) y[i] = (int)get_global_id(0) - n / 2 < 0 ? 1 : 2;", ITEMS),
        ("size_t i = get_global_id(0); if (i < n) y[i] = sizeof(get_global_id(0)) + x[i];", ITEMS[:2]),
        ("int i = get_global_id(0); if (i >= n) return; if (i % 3) { return; } y[i] = x[i];", ITEMS),
        ("int i = get_global_id(0); /* barrier(0) of __local */ if (i < n) *(y + i) = 2 * x[i];", ITEMS),
        ("int i = get_global_id(0); if (i < n) y[i] = 2 * x[i] + y[i] + x[n - 1 - i];", [*ITEMS, {"VEC": 4}]),
        (
            "x += 0 * n; int i; i = get_global_id(0); if (i < n) { if (x[i] > 0) y[i] = x[i]; else y[i] = 0; }",
            [*ITEMS, {"VEC": 4}],
        ),
    )
]


@pytest.mark.parametrize(
    ("task", "configs", "n"), [*SPELT, *CALLED, *LOOPS, *DECLARED, *GATHERS, *BY_ROWS, *PRODUCT, *OPENCL]
)
def test_spellings_get_the_rewrites_of_what_they_say(task: Task, configs: list[Config], n: int) -> None:
    require_equal(task, configs, n)


@pytest.mark.parametrize(
    ("body", "launch"),
    [
        # Rounds that have the same elements, and threads that have no turn though there is one for them.
        (f"{PLANES} {{ {COLUMNS} y[c] += x[r * n + c]; }}", GRID),
        ("if (TID > 3) return; for (int c = TID; c < n; c += blockDim.x) y[c] = x[c];", ONE),
        ("if (TID % 3) { for (int c = TID; c < n; c += blockDim.x) y[c] = x[c]; }", ONE),
        ("for (int r = TID; r < 5; ++r) { for (int c = TID; c < n; c += blockDim.x) y[r * n + c] = x[c]; }", ONE),
    ],
)
def test_a_row_that_not_all_threads_share_goes_element_by_element(body: str, launch: LaunchGeometry) -> None:
    require_refused(kernel(body, THREE_ROWS, launch, MACROS), {"ROW_VEC"})


@pytest.mark.parametrize(
    ("body", "name", "offered"),
    [
        ("if (i < n) { for (int k = 0, e = i; k < n; k++, e += 2) y[i] += x[e % n]; }", "UNROLL", True),
        ("if (i < n) { for (int k = n - 1; k >= 0; --k) y[i] += x[k]; }", "UNROLL", True),
        ("if (i < n) { for (int k = 7; k >= 0; --k) y[i] += x[k]; }", "UNROLL", False),
        ("long long m = i; if (i < n) y[n - 1 - m] = x[int64(m)];", "INDEX_BITS", True),
    ],
)
def test_loops_and_casts_of_any_spelling(body: str, name: str, offered: bool) -> None:
    task = kernel(f"int i = INDEX; {body}", XY, LINE, f"{MACROS}\ntypedef long long int64;")
    assert (name in template_of(task).default_config) is offered
    require_equal(task, [{name: 4 if name == "UNROLL" else 32}] if offered else [{}])


@pytest.mark.parametrize(("value", "free"), [("64", True), ("32", False), ("n", False)])
def test_an_argument_that_says_the_size_of_a_block(value: str, free: bool) -> None:
    code = 'extern "C" __global__ void k(const float* x, float* y, int n, int size)'
    code += " { int i = blockIdx.x * size + threadIdx.x; if (i < n) y[i] = 2 * x[i]; }"
    task = task_of("k", code, XY, LINE, {"n": "int32", "size": "int32"})
    *others, size = task.arguments
    task = task.model_copy(update={"arguments": (*others, size.model_copy(update={"value": value}))})
    assert ("VEC" in template_of(task).default_config) is free
    if free:
        require_equal(task, [{"VEC": 4}, {"BLOCK": 128}])


@pytest.mark.parametrize(
    "body",
    [
        # What a round before has left, or what follows the loop needs.
        "for (int i = 0; i < n; ++i) { if (x[i] > 2) t = i; y[i] = t; }",
        "for (int i = 0; i < n; ++i) { y[i] = t; t = i; }",
        "for (int i = 0; i < n; ++i) { t = t * 3 + i; y[i] = t; }",
        "for (int i = 0; i < n; ++i) { t = i; y[i] = 2 * t; } y[0] = t;",
        # A value that not all come by, or that another name changes.
        "for (int i = 0; i < n; ++i) switch (i % 3) { case 0: ; t = i; case 1: y[i] = t; }",
        "for (int i = 0; i < n; ++i) { if (x[i] > 2) goto on; t = i; on: y[i] = t; }",
        "auto last = [&]() { return t; }; for (int i = 0; i < n; ++i) { y[i] = last(); t = i; }",
    ],
)
def test_a_variable_that_keeps_a_value_stays_where_it_is(body: str) -> None:
    task = kernel(f"if (INDEX == 0) {{ int t = 7; {body} }}", XY, ONE, MACROS)
    assert "int t = 7" in (source := template_of(task).source) and "t_here" not in source
    require_equal(task, [{}])


@pytest.mark.parametrize(
    "body",
    [
        "__shared__ float own[64]; own[threadIdx.x] = x[i % n]; __syncthreads(); if (i < n) y[i] = own[5];",
        "if (i < n) y[i] = x[i]; __syncthreads(); if (i < n - 1) y[i] += y[i ^ 1];",
        "if (i == 0) count = 3; __syncthreads(); if (i < n) y[i] = count;",
        "if (i < n) use(y + i); __syncthreads(); if (i < n) y[i] = 2;",
    ],
)
def test_a_barrier_between_threads_that_share_something_stays(body: str) -> None:
    more = f"{MACROS}\n__device__ int count; __device__ void use(float* all) {{ all[0] = 1; }}"
    assert "__syncthreads()" in template_of(kernel(f"int i = INDEX; {body}", XY, ONE, more)).source


BLOCKS = LaunchGeometry(grid=("3",), block=("16", "4"))
OF_THREAD = "int t = threadIdx.y * WIDTH + threadIdx.x, step = WIDTH * blockDim.y;"
IN_TURNS = "for (int i = t; i < n; i += step) y[blockIdx.x * n + i] = 2 * x[i];"
WIDER: Any = {"x": XY["x"], "y": ("inout", "float32", "3 * n")}


@pytest.mark.parametrize("width", ["blockDim.x", "16"])
def test_a_block_whose_threads_are_only_counted_has_one_axis(width: str) -> None:
    task = kernel(OF_THREAD.replace("WIDTH", width) + IN_TURNS, WIDER, BLOCKS)
    require_equal(task, [{"BLOCK": 128}, {"TEAM_ROWS": 2, "TEAM_BLOCKS": 2}, {"ROW_VEC": 2}])
    for more in (
        "if (threadIdx.y == 3) y[0] = 1;",
        "y[blockDim.x] = 1;",
        "int u = threadIdx.x * blockDim.y; y[u] = 1;",
    ):
        body = OF_THREAD.replace("WIDTH", "blockDim.x") + IN_TURNS + more
        assert "BLOCK" not in template_of(kernel(body, WIDER, BLOCKS)).default_config


def test_an_element_whose_number_a_loop_declares_stays_in_memory() -> None:
    body = "if (j < n) { for (int i = 0; i < n; i++) { const int e = i * n + j; y[e] = x[i]; y[e] += 2; } }"
    task = kernel("int j = INDEX; " + body, {"x": XY["x"], "y": ("inout", "float32", "n * n")}, LINE, MACROS)
    assert "y_kept" not in template_of(task).source
    require_equal(task, [{"ITEMS": 2}], n=75)


@pytest.mark.parametrize(
    "body",
    [
        "for (int k = 0; k < 5; ++k) { y[i] += *p; if (*p > 0) ++p; }",
        "for (int k = 0; k < 5; ++k) { y[i] += *p; if (*p > 0) continue; ++p; }",
        "for (int k = 0; k < 5; ++k) { y[i] += *p; ++p; } y[i] += *p;",
        "for (int k = 0; k < 5; ++k) { y[i] += *p; ++p; p += 2; }",
        "for (int k = 0; k < 5; ++k) { y[i] += *p; p += k; }",
        "for (int k = 0; k < 5; ++k) { { int k = 3; y[i] += *p + k; } ++p; }",
        "for (int k = 0; k < 5; ++k) { y[i] += *p; ++p; if (*p > 0) ++k; }",
        "for (int k = 0; k < 10; k += 2) { y[i] += *p; ++p; }",
        "for (int r = 0; r < 2; ++r) for (int k = 0; k < 5; ++k) { y[i] += *p; ++p; }",
    ],
)
def test_a_pointer_that_advances_otherwise_is_left(body: str) -> None:
    task = kernel(f"int i = INDEX; const float* p = x + i % 5; if (i < n) {{ {body} }}", XY, LINE, MACROS)
    assert "(p + (" not in template_of(task).source
    require_equal(task, [{}, {"BLOCK": 128}])


@pytest.mark.parametrize(
    ("function", "call"),
    [
        ("__device__ int f(int a) { int n = 3; return a + n; }", "f(i)"),
        ("__device__ int f(int a) { return a * n_of_all; }", "f(i)"),
        ("__device__ int f(int& a) { return a++; }", "f(k)"),
        ("__device__ int f(int a) { return a + a; }", "f(k++)"),
        ("template <class V> __device__ int f(V a) { return (V)a; }", "f(i)"),
    ],
)
def test_a_function_that_does_more_is_called(function: str, call: str) -> None:
    more = f"{MACROS}\n__device__ const int n_of_all = 1;\n{function}"
    body = f"int i = INDEX, k = i; if (i < n) {{ const int n_of_all = 2; y[i] = x[{call} % n] + n_of_all; }}"
    task = kernel(body, XY, LINE, more)
    assert call in template_of(task).source
    require_equal(task, [{"BLOCK": 128}])


@pytest.mark.parametrize("body", OTHERS)
def test_what_says_something_else_stays(body: str) -> None:
    task = kernel(body, XY, LINE if GUARDED in body else ONE if "int i = TID" in body else FEW, MACROS)
    left = {"ITEMS", *(("ROW_VEC", "BLOCK") if "return" in body or "break" in body else ("VEC",))}
    left |= {"ROW_VEC"} if "TID" in body else set()
    assert not left & template_of(task).default_config.keys()
    require_equal(task, [{}])


@pytest.mark.parametrize("body", NOT_CALLED)
def test_a_function_whose_names_mean_something_else_stays(body: str) -> None:
    task = kernel(body, XY, LINE, FUNCTIONS)
    assert "BLOCK" not in template_of(task).default_config
    require_equal(task, [{}])


def test_spellings_of_one_thing_and_what_changes_in_between() -> None:
    body = f"int i = __umul24(blockIdx.x, blockDim.x) + threadIdx.x; {GUARDED}"
    assert {"VEC", "ITEMS", "BLOCK"} <= template_of(kernel(body, XY, LINE)).default_config.keys()
    body = """__shared__ float own[64]; own[threadIdx.x] = x[blockIdx.x * 64 + threadIdx.x]; __syncthreads();
        y[blockIdx.x * 64 + threadIdx.x] = own[63 - threadIdx.x];"""
    assert "BLOCK" not in template_of(kernel(body, XY, LINE)).default_config
    body = """int at = INDEX; if (at >= n) return; const int low = at % 5; at /= 5; const int high = at;
        y[high * 5 + low] = x[high * 5 + low] * 2;"""
    task = kernel(body, XY, LINE, MACROS)
    assert all(one.because != NO_GUARD for one in template_of(task).constraints)
    require_equal(task, [{"ITEMS": 4}, {"BLOCK": 128}])


BESIDE = """__device__ int count; __constant__ float table[64];
    __device__ int halve(int a) { a /= 2; return a; }
    __device__ void bump() { ++count; }
"""


@pytest.mark.parametrize(
    ("body", "guarded"),
    [
        ("const int i = 1 + (INDEX); if (i >= n - 1) return; y[i] = x[i];", True),
        ("int i = INDEX; const int m = 2 * n; if (i < m && x[i] > 0) y[i] = x[i];", True),
        ("int i = INDEX; const int k = halve(i); if (i < n) y[k] = x[i];", True),
        ("int i = INDEX; float t[2]; t[0] = 1; if (i < n) y[i] = t[0];", True),
        ("int i = INDEX; if (x[i] > 0 && i < n) y[i] = x[i];", False),
        ("int i = INDEX; if (n < 3) goto work; if (i >= n) return; work: y[i] = x[i];", False),
        ("int i = INDEX; const int m = i + n; if (i < m) y[i] = 1;", False),
        ("int i = INDEX; bump(); if (i < n) y[i] = 1;", False),
        ("int i = INDEX; float t = table[i]; if (i < n) y[i] = t;", False),
    ],
)
def test_a_guard_holds_where_nothing_happens_beyond_its_bound(body: str, guarded: bool) -> None:
    made = template_of(kernel(body, XY, LINE, f"{MACROS}\n{BESIDE}"))
    assert (NO_GUARD not in {one.because for one in made.constraints}) is guarded


@pytest.mark.parametrize(
    ("body", "config"),
    [
        ("y[j] = 0.0; int i; for (i = 0; i < n; i++) y[j] = y[j] + a[i * n + j]; y[j] /= n;", {"VEC": 4}),
        ("for (int i = 0; i < n; i++) { y[j] += a[i * n + j] * x[i]; }", {"VEC": 4}),
        ("y[j] *= x[0] + 1; for (int i = 0; i < n; i++) y[j] += a[i * n + j];", {"VEC": 4}),
        (
            "y[j] = 1; for (int i = 0; i < n; i++) for (int k = 0; k < 3; ++k) if (x[i] > 0) y[j] -= a[i * n + j];"
            "if (y[j] < 0) y[j] = 0;",
            {"VEC": 2},
        ),
    ],
)
def test_sums_in_memory_are_taken_in_a_register(body: str, config: Config) -> None:
    task = kernel(f"int j = INDEX; if (j < n) {{ {body} }}", PLANE, LINE, MACROS)
    assert "float y_kept" in template_of(task).source
    require_equal(task, [{}, config, {"ITEMS": 2}], n=75)


@pytest.mark.parametrize(
    "body",
    [
        # Another element of the array; an index that changes; an end inside; a loop that may have no round; a lambda.
        "y[j] = 0; for (int i = 1; i < j; i++) y[j] += a[j * n + i] + y[j - 1] * 0;",
        "y[j] = 0; for (int i = 0; i < n; i++) { y[j] += a[j * n + i]; if (x[i] > 9) return; }",
        "for (int i = (int)x[0] + 5; i < n; i++) y[j] += a[j * n + i];",
        "for (int i = 0; i < n; i++) if (x[i] > 0) y[j] += a[j * n + i];",
        "y[j] = 0; auto add = [&](float b) { y[j] += b; }; for (int i = 0; i < n; i++) add(a[j * n + i]);",
        "y[j] = 0; float* to = y + j; for (int i = 0; i < n; i++) { atomicAdd(to, 1.0f); y[j] += 1; }",
    ],
)
def test_what_is_no_sum_of_its_own_stays_in_memory(body: str) -> None:
    task = kernel(f"int j = INDEX; if (j < n) {{ {body} }}", PLANE, LINE, MACROS)
    assert "y_kept" not in template_of(task).source
    require_equal(task, [{}], n=75)


@pytest.mark.parametrize(
    ("body", "more", "why"),
    [
        ("MEET; y[0] = 1;", "#define MEET SYNC\n#define SYNC barrier(CLK_LOCAL_MEM_FENCE)", ""),
        ("y[get_global_id(0)] = f(x);", "float f(__global const float* x) { return get_global_size(0); }", ""),
        ("int blockDim = get_local_size(0); y[get_global_id(0)] = blockDim;", "", ""),
        ("__local float t[64]; t[get_local_id(0)] = 1; barrier(1); y[get_global_id(0)] = t[0];", "", ""),
        ("for (int d = 0; d < 2; ++d) y[get_global_id(0)] += get_global_id(d);", "", "an axis that is not a number"),
        ("y[get_global_id(0)] = get_work_dim();", "", "get_work_dim"),
    ],
)
def test_work_items_that_need_their_group_keep_it(body: str, more: str, why: str) -> None:
    task = opencl_kernel(f"{more}\n{OPENCL_HEAD} {{ {body} }}", XY, LINE)
    require_refused(task, {"BLOCK", "ITEMS"}, why)
    if rewritten(task).template is not None:
        require_equal(task, [{}], n=1024)


def test_a_return_of_a_macro_that_cannot_be_written_out_stays_in_opencl() -> None:
    code = """#define LIMIT(i, of) if (i >= of##_count) { return; }
        __kernel void k(__global const int* x, __global int* y, int n) {
            const int x_count = n, i = get_global_id(0); LIMIT(i, x) atomic_inc(&y[x[i] % 9]); }"""
    found = rewritten(opencl_kernel(code, {"x": ("in", "int32", "n"), "y": ("inout", "int32", "9")}, LINE))
    assert found.template is None or not {"ITEMS", "OWN_BINS"} & found.template.default_config.keys()
    assert sum("a loop or a macro" in one for one in found.skipped) >= 2, found.skipped
    task = kernel(f"int i = INDEX; {GUARDED}", XY, LINE, MACROS)
    assert _read(task, task.sources("cuda").baseline.template)[0].syntax.code.decode().startswith(f"{MACROS}\n")
    assert rewritten(task).template is not None
