"""Kernels that look as if a rewrite fitted, and do not: what is left of their spaces computes what they did."""

import pytest
from rewrite_cases import LINE, ROWS, TURNS, kernel, opencl_kernel, require_equal, require_refused, template_of

from tunesmith.kernels.spec.task import geometry
from tunesmith.kernels.spec.template import Config, LaunchGeometry

ONE = LaunchGeometry(grid=("1",), block=("64",))
XY = {"x": ("in", "float32", "3 * n"), "y": ("inout", "float32", "3 * n")}
BOTH = {"x": ("inout", "float32", "3 * n"), "y": ("inout", "float32", "3 * n")}
AT = "const int i = blockIdx.x * blockDim.x + threadIdx.x;"
STEPS = "for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)"
FROM, TO = "x[blockIdx.x * n + i]", "y[blockIdx.x * n + i]"
TOGETHER = """for (int o = 16; o > 0; o /= 2) s += __shfl_xor_sync(0xffffffffu, s, o);
    __shared__ float part[32]; if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = s;
    __syncthreads(); s = 0; for (int w = 0; w < blockDim.x / 32; ++w) s += part[w];"""
Arrays = dict[str, tuple[str, str, str]]


def require_left(
    body: str, config: Config, why: str, arrays: Arrays = XY, launch: LaunchGeometry = LINE, more: str = ""
) -> None:
    """A rewrite is refused for a reason that says `why`, and what is left of `config` computes what the kernel does."""
    task = kernel(body, arrays, launch, more)
    known = template_of(task).default_config
    require_equal(task, [{name: value for name, value in config.items() if name in known}], n=70)
    require_refused(task, set(), why)


@pytest.mark.parametrize(
    "body",
    [
        f"{AT} if (i < n - 1 && x[i] > 0) y[i] = x[i + 1] - x[i];",
        f"{AT} if (i >= n || x[i] <= 0) return; y[i] = 2 * x[i];",
        f"{AT} if (i < n) if (x[i] > 0) y[i] = x[i];",
        f"{AT} if (i >= n) return; if (x[i] <= 0) goto end; y[i] = x[i]; end: ;",
        f"{AT} if (i > 0 && i < n - 1) y[i] = x[i - 1] - 2 * x[i] + x[i + 1];",
    ],
)
def test_a_guard_that_asks_for_more_does_not_fill_vectors(body: str) -> None:
    task = kernel(body, XY, LINE)
    template = template_of(task)
    # What is read to decide may go in vectors.
    assert "elements_of_y" not in template.source
    inside = "x[i - 1]" in body
    assert not inside or "WALK" in template.default_config
    require_equal(task, [{"WALK": 4}] if inside else [{"VEC": 4}] if "VEC" in template.default_config else [{}], n=70)


@pytest.mark.parametrize(
    "body",
    [
        f"if (blockIdx.y) x += 2, y += 2; {AT} if (i < n - 2) y[i] = 2 * x[i];",
        f"{AT} if (i >= n) return; if (n > 3) n /= 2; y[i] = x[n] + n;",
        f"int& m = n; m /= 2; {AT} if (i < n) y[i] = x[i] + n;",
        f"int* m = &n; *m -= 3; {AT} if (i < n) y[i] = x[i] + n;",
        f"halve<int>(n); {AT} if (i < n) y[i] = x[i] + n;",
    ],
)
def test_a_changed_parameter_keeps_a_thread_to_one_element(body: str) -> None:
    launch = LaunchGeometry(grid=("ceil_div(n, 64)", "2"), block=("64",))
    more = "template <class V> __device__ void halve(V& v) { v /= 2; }"
    require_left(body, {"ITEMS": 2}, "changes its parameter", BOTH, launch, more)


SQUARES: Arrays = {one: ("in", "float32", "n * n") for one in ("x", "z")} | {"y": ("inout", "float32", "n * n")}
CELL = "const int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;"
PRODUCT = "for (int k = 0; k < n; ++k) s += x[r * n + k] * z[k * n + c];"


@pytest.mark.parametrize(
    ("body", "configs"),
    [
        # Blocks of another size are another number of blocks, also where a thread keeps its one element.
        (f"if (r < n && c < n) {{ float s = 0; {PRODUCT} y[r * n + c] = s; n = 3; }}", [{"BLOCK_X": 8}]),
        (f"if (r < n && c < n) {{ float b = y[r * n + c]++, s = b; {PRODUCT} y[r * n + c] = s + b; }}", [{}]),
    ],
)
def test_a_product_with_effects_is_computed_once(body: str, configs: list[Config]) -> None:
    launch = LaunchGeometry(grid=("ceil_div(n, 16)", "ceil_div(n, 8)"), block=("16", "8"))
    task = kernel(f"{CELL} {body}", SQUARES, launch)
    assert "OUTPUT_TILE" not in template_of(task).default_config
    require_equal(task, configs, n=37)


def test_lookalikes_that_are_what_they_look_like() -> None:
    source = """__kernel void k(__global const float* x, __global float* y, int n) {
        const int i = get_global_id(0); for (int k = 0; k < 2; ++k) { if (i >= n) return; y[i] = x[i]; } }"""
    launch = LaunchGeometry(grid=("ceil_div(n, 256)",), block=("256",))
    task = opencl_kernel(source, XY, launch)
    template = template_of(task)
    assert "ITEMS" not in template.default_config
    for block in (64, 512):
        where = geometry(template, {**template.default_config, "BLOCK": block}, task.workloads[0])
        assert where.grid[0] * where.block[0] >= 1000 and where.block[0] == block
    loop = "for (int j = 0; j < n; ++j) { float v = x[i * n + j]; s += v; { float s = v; s += 1; } }"
    arrays: Arrays = {"x": ("in", "float32", "n * n"), "y": ("inout", "float32", "n")}
    body = f"{AT} if (i < n) {{ float s = 0; {loop} y[i] = s; }}"
    task = kernel(body, arrays, LINE)
    require_equal(task, [{"LANES": 4}] if "LANES" in template_of(task).default_config else [{}], n=70)


@pytest.mark.parametrize(
    ("body", "more", "why"),
    [
        ("buf[i % 64] = x[i]; y[i] = buf[i % 64];", "__shared__ float buf[64];", "declared outside of it"),
        (
            "atomicAdd(&total, 1); float s = 0; for (int j = 0; j < n; ++j) s += x[j]; y[i] = s;",
            "__device__ int total;",
            "changes total, which all blocks have",
        ),
    ],
)
def test_what_is_declared_outside_of_the_kernel_is_seen(body: str, more: str, why: str) -> None:
    require_refused(kernel(f"{AT} if (i < n) {{ {body} }}", XY, LINE, more), {"LANES"}, why)


@pytest.mark.parametrize(
    ("body", "of"),
    [
        (f"float v[4]; int k = 0; {TURNS} v[k++] = {FROM}; k = 0; {TURNS} {TO} = v[k++] + 1;", "v"),
        (f"int count = 0; {TURNS} {{ ++count; {TO} = {FROM} * count; }}", "count"),
        (f"float m = 0; {TURNS} {{ m = fmaxf(m, {FROM}); {TO} = m; }}", "m"),
        (f"float w = 1; {TURNS} {{ float* p = &w; *p += 1; {TO} = {FROM} * w; }}", "w"),
        (f"float4 a = make_float4(0, 0, 0, 0); {TURNS} {{ {TO} = a.x; a.x = {FROM}; }}", "a"),
        (f"int c = 0; {TURNS} {TO} = {FROM} * next(c);", "c"),
        (f"int c = 0; auto f = [&] {{ return ++c; }}; {TURNS} {TO} = {FROM} * f();", "f"),
        (f"Counter c; {TURNS} {TO} = {FROM} * c.next();", "c"),
        (f"float s = 0; {TURNS} s = s * 0.5f + {FROM}; {TOGETHER} {TURNS} {TO} = s;", "s"),
        (f"float s = 0; int c = 0; {TURNS} {{ s += {FROM} * c; c++; }} {TOGETHER} {TURNS} {TO} = s;", "c"),
        (f"float s = 0; {TURNS} s += {FROM}; if (threadIdx.x == 0) y[blockIdx.x] = s;", "s"),
    ],
)
def test_what_a_thread_carries_along_a_row_keeps_its_rounds(body: str, of: str) -> None:
    more = """struct Counter { int k = 0; __device__ int next() { return ++k; } };
        __device__ int next(int& c) { return ++c; }"""
    task = kernel(body, XY, ROWS, more)
    require_refused(task, {"BLOCK", "ROW_VEC", "TEAM_BLOCKS"}, f" {of}")
    require_equal(task, [{}], n=70)


@pytest.mark.parametrize(
    "body",
    [
        f"int count = 0; {STEPS} {{ y[i] = x[i] + count; ++count; }}",
        f"float s = 0; {STEPS} s += x[i]; y[threadIdx.x] = s;",
        f"{TURNS} y[i + 1] = x[i]; atomicAdd(&y[0], 1.0f);",
        "rows(x, y, n);",
    ],
)
def test_what_a_thread_carries_through_a_grid_or_a_function_keeps_its_rounds(body: str) -> None:
    more = f"__device__ void rows(const float* x, float* y, int n) {{ float l = 0; {TURNS} {{ y[i] = l; l = x[i]; }} }}"
    require_left(body, {"BLOCK": 128}, "the size of a block stays", XY, ONE, more)


@pytest.mark.parametrize(
    "body",
    [
        # A softmax of one pass, in both ways to write it.
        f"""float m = -1e30f, s = 0; {TURNS} {{ float v = {FROM}, t = fmaxf(m, v), c = expf(m - t);
            s = s * c + expf(v - t); m = t; }} s *= expf(m - 2); {TOGETHER} {TURNS} {TO} = expf({FROM} - 2) / s;""",
        f"""float m = -1e30f, s = 0; {TURNS} {{ float v = {FROM}; if (v > m) {{ s *= expf(m - v); m = v; }}
            s += expf(v - m); }} s *= expf(m - 2); {TOGETHER} {TURNS} {TO} = expf({FROM} - 2) / s;""",
        # A variable that each round makes anew, a sum in a structure, a fused product, and where the largest was.
        f"float v, s = 0; {TURNS} {{ v = {FROM}; s += v * v; }} {TOGETHER} {TURNS} {{ v = {FROM}; {TO} = v / s; }}",
        f"""float4 a = make_float4(0, 0, 0, 0); float q = 0;
            {TURNS} {{ a.x += {FROM}; a.y -= 1; q = fmaf({FROM}, 2, q); }}
            float s = a.x + a.y + q; {TOGETHER} {TURNS} {TO} = {FROM} * s;""",
        f"""float s = -1e30f; int at = 0; {TURNS} if ({FROM} > s) {{ s = {FROM}; at = i; }} s += 0 * at;
            for (int o = 16; o > 0; o /= 2) s = fmaxf(s, __shfl_xor_sync(0xffffffffu, s, o));
            __shared__ float part[32]; if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = s; __syncthreads();
            for (int w = 0; w < blockDim.x / 32; ++w) s = fmaxf(s, part[w]); {TURNS} {TO} = {FROM} - s;""",
        f"float s = 0; {TURNS} s += {FROM}; atomicAdd(&y[blockIdx.x], s);",
        f"""float s = 0; const int lane = threadIdx.x % 32; {TURNS} s += {FROM};
            for (int o = 16; o > 0; o /= 2) s += __shfl_xor_sync(0xffffffffu, s, o); float v = 2 * s;
            if (lane == 0) atomicAdd(&y[blockIdx.x], v);""",
    ],
)
def test_reductions_do_not_ask_who_has_which_part(body: str) -> None:
    require_equal(kernel(body, XY, ROWS), [{"BLOCK": 128, "ROW_VEC": 2}], n=70)


@pytest.mark.parametrize(
    "body",
    [
        f"int m = n; {{0}} {TO} = 2 * {FROM}; shrink(m); {{0}} {TO} = {FROM} + 1;",
        f"__shared__ int m; if (threadIdx.x == 0) m = n / 2; __syncthreads(); {{0}} {TO} = 2 * {FROM}; "
        f"__syncthreads(); if (threadIdx.x == 0) m = n; __syncthreads(); {{0}} {TO} += {FROM};",
    ],
)
def test_a_bound_that_changes_is_none_of_a_row(body: str) -> None:
    body = body.replace("{0}", TURNS.replace("< n", "< m"))
    more = "__device__ void shrink(int& v) { v /= 2; }"
    task = kernel(body, XY, ROWS, more)
    require_refused(task, {"ROW_VEC", "KEEP"}, "rows are read one by one")
    require_equal(task, [{}], n=70)


def test_a_bound_in_memory_that_the_kernel_writes_is_none_of_a_row() -> None:
    turns = TURNS.replace("< n", "< m[blockIdx.x]")
    body = f"""{turns} {TO} = 2 * {FROM}; __syncthreads(); if (threadIdx.x == 0) m[blockIdx.x] /= 2; __syncthreads();
        {turns} {TO} = {FROM} + 1;"""
    for written in (True, False):
        arrays: Arrays = {**XY, "m": ("inout" if written else "in", "int32", "3")}
        text = body if written else body.replace("m[blockIdx.x] /= 2", "")
        found = "ROW_VEC" in template_of(kernel(text, arrays, ROWS)).default_config
        assert found is not written
    arrays = {"x": ("in", "float32", "5 * n"), "y": ("inout", "float32", "5 * n"), "m": ("inout", "int32", "3")}
    require_left(body, {"ROW_VEC": 2, "KEEP": 2}, "rows are read one by one", arrays, ROWS)


@pytest.mark.parametrize(
    "body",
    [
        "float a = x[i]; auto p = &x[i]; *p = 3 * a; y[i] = x[i];",
        "float a = x[i]; { float* y = x + i; y[0] = a * 3; } y[i] = x[i];",
        "float s = x[i]; { int i = n; s += x[i]; y[i] = 2; } y[i] = s;",
        "auto at = [&](int i) { return x[i]; }; y[i] = at(i) + at(n - 1 - i);",
        "volatile float* p = x; p[i] = y[i]; y[i] = p[i] + x[i];",
    ],
)
def test_an_element_by_another_name_is_not_held_in_a_register(body: str) -> None:
    task = kernel(f"{AT} if (i < n) {{ {body} }}", BOTH, LINE)
    known = template_of(task).default_config
    configs: list[Config] = [{name: value} for name, value in (("VEC", 4), ("LOADS", 2)) if name in known]
    require_equal(task, [{"ITEMS": 2}, *configs], n=70)
