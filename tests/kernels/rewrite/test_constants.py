"""The pass that makes parameters of the constants that fix a kernel's tile."""

from math import prod

import numpy as np
import pytest
from rewrite_cases import H200, LINE, kernel, opencl_kernel, require_equal, require_refused, rewritten, template_of

from tunesmith.kernels.build.source import specialise
from tunesmith.kernels.rewrite.template import starts
from tunesmith.kernels.space import feasible
from tunesmith.kernels.spec.expression import parse
from tunesmith.kernels.spec.task import Task, geometry
from tunesmith.kernels.spec.template import Config, LaunchGeometry, Template

PLANE = {"x": ("in", "float32", "n * n"), "y": ("out", "float32", "n * n")}
SERIES = {"x": ("in", "float32", "n"), "y": ("out", "float32", "n")}
SQUARE = LaunchGeometry(grid=("ceil_div(n, 16)", "ceil_div(n, 16)"), block=("16", "16"))
TRANSPOSE = """__shared__ float tile[TILE][TILE + 1];
    const int tx = threadIdx.x, ty = threadIdx.y, bx = blockIdx.x * TILE, by = blockIdx.y * TILE;
    if (bx + tx < n && by + ty < n) tile[ty][tx] = x[(by + ty) * n + bx + tx];
    __syncthreads();
    if (by + tx < n && bx + ty < n) y[(bx + ty) * n + by + tx] = tile[tx][ty];"""
STENCIL = """__shared__ float s[BLOCK + 2 * RADIUS];
    const int t = threadIdx.x, i = blockIdx.x * BLOCK + t;
    s[t + RADIUS] = i < n ? x[i] : 0;
    if (t < RADIUS) {
        s[t] = i >= RADIUS && i - RADIUS < n ? x[i - RADIUS] : 0;
        s[t + RADIUS + BLOCK] = i + BLOCK < n ? x[i + BLOCK] : 0;
    }
    __syncthreads();
    float sum = 0;
    for (int k = -RADIUS; k <= RADIUS; ++k) sum += s[t + RADIUS + k];
    if (i < n) y[i] = sum;"""


def values_of(task: Task) -> dict[str, set[object]]:
    """The values of the parameters that constants of the source have become, by the name of a constant."""
    template = rewritten(task).template
    parameters = template.parameters if template is not None else ()
    return {one.name.removeprefix("TUNED_"): set(one.values) for one in parameters if one.name.startswith("TUNED_")}


def threads_and_bytes(template: Template, config: Config, task: Task) -> tuple[int, int]:
    """The threads of a block, and the static shared memory that the template says for a configuration."""
    whole = template.default_config | config
    where = geometry(template, whole, task.workloads[0])
    return prod(where.block), parse(template.static_shared_bytes).integer(whole)


@pytest.mark.parametrize(
    "definition",
    ["#define TILE 16", "#define TILE (16U)", "constexpr int TILE = 16;", "enum { OTHER = 3, TILE = 16 };"],
)
def test_tile_block_and_grid_change_together(definition: str) -> None:
    task = kernel(TRANSPOSE, PLANE, SQUARE, definition)
    assert values_of(task) == {"TILE": {8, 16, 32}}
    template = template_of(task)
    where = geometry(template, template.default_config | {"TUNED_TILE": 32}, task.workloads[0])
    assert (where.grid, where.block) == ((32, 32, 1), (32, 32, 1))


@pytest.mark.slow
def test_every_tile_and_block_gives_the_same() -> None:
    task = kernel(TRANSPOSE, PLANE, SQUARE, "#define TILE 16")
    require_equal(task, [{"TUNED_TILE": 8}, {"TUNED_TILE": 32, "LOADS": 1}], 45)
    task = kernel(STENCIL, SERIES, LINE, "#define BLOCK 64\n#define RADIUS 4")
    require_equal(task, [{"TUNED_BLOCK": 32}, {"TUNED_BLOCK": 256}], 300)


def test_what_depends_on_a_tile_follows_it() -> None:
    task = kernel(TRANSPOSE, PLANE, SQUARE, "#define TILE 16")
    template = template_of(task)
    sizes = {value: threads_and_bytes(template, {"TUNED_TILE": value}, task) for value in (8, 16, 32)}
    assert {value: threads for value, (threads, _) in sizes.items()} == {8: 64, 16: 256, 32: 1024}
    assert np.diff([found for _, found in sizes.values()]).tolist() == [4 * (16 * 17 - 8 * 9), 4 * (32 * 33 - 16 * 17)]
    config = template.default_config | {"TUNED_TILE": 8, "MIN_BLOCKS": 8}
    assert "TUNED_TILE * TUNED_TILE, MIN_BLOCKS" in specialise(template, config, {}).source
    space = feasible(template, task.workloads, H200)
    assert space.reject(config) is None and space.reject(config | {"TUNED_TILE": 32, "MIN_BLOCKS": 4}) is not None
    task = kernel(TRANSPOSE, PLANE, SQUARE, "#define HALF 8\n#define TILE (2 * HALF)")
    assert values_of(task) == {"HALF": {4, 8, 16}}
    taps = STENCIL.replace("-RADIUS; k <= RADIUS", "0; k < TAPS").replace("+ k]", "+ k - 4]")
    more = "#define BLOCK 64\n#define RADIUS 4\n#define TAPS (2 * RADIUS + 1)"
    assert values_of(kernel(taps, SERIES, LINE, more)) == {"BLOCK": {32, 64, 128, 256}}
    body = """__shared__ float s[TILE]; const int t = threadIdx.x;
        s[t] = x[blockIdx.x * TILE + t];
        __syncthreads();
        y[blockIdx.x * TILE + t] = s[t ^ 1];"""
    launch = LaunchGeometry(grid=("n // 64",), block=("64",))
    task = kernel(body, SERIES, launch, "#define TILE 64")
    workload = task.workloads[0].model_copy(update={"sizes": {"n": 192}})
    task = task.model_copy(update={"requires": ("n % 64 == 0",), "workloads": (workload,)})
    template = template_of(task)
    assert values_of(task)["TILE"] >= {32, 64, 128}
    space = feasible(template, task.workloads, H200)
    assert space.reject(template.default_config | {"TUNED_TILE": 32}) is None
    assert space.reject(template.default_config | {"TUNED_TILE": 128}) is not None


def test_constants_with_another_meaning_stay() -> None:
    literal = TRANSPOSE.replace("blockIdx.y * TILE", "blockIdx.y * 16")
    require_refused(kernel(literal, PLANE, SQUARE, "#define TILE 16"), {"TUNED_TILE"}, "TILE stay")
    task = kernel(STENCIL, SERIES, LINE, "#define BLOCK 64\n#define RADIUS 4")
    assert values_of(task) == {"BLOCK": {32, 64, 128, 256}}
    body = """__shared__ float s[BLOCK]; const int t = threadIdx.x;
        float most = 0;
        for (int i = blockIdx.x * BLOCK + t; i < n; i += gridDim.x * BLOCK) most = fmaxf(most, x[i]);
        s[t] = most;
        for (int o = BLOCK / 2; o > 0; o /= 2) { __syncthreads(); if (t < o) s[t] = fmaxf(s[t], s[t + o]); }
        if (t == 0) y[blockIdx.x] = s[0];"""
    arrays = {"x": ("in", "float32", "n"), "y": ("out", "float32", "8")}
    task = kernel(body, arrays, LaunchGeometry(grid=("8",), block=("64",)), "#define BLOCK 64")
    require_refused(task, {"TUNED_BLOCK"}, "BLOCK stay")


def test_equal_constants_of_a_square_tile_are_one_parameter() -> None:
    body = TRANSPOSE.replace("tile[TILE][TILE + 1]", "tile[ROWS][COLUMNS]")
    body = body.replace("blockIdx.x * TILE", "blockIdx.x * COLUMNS").replace("blockIdx.y * TILE", "blockIdx.y * ROWS")
    task = kernel(body, PLANE, SQUARE, "constexpr int ROWS = 16, COLUMNS = 16;")
    assert values_of(task) == {"ROWS": {8, 16, 32}}
    template = template_of(kernel(TRANSPOSE, PLANE, SQUARE, "#define TILE 16"))
    assert {config["TUNED_TILE"] for config in starts(template, "unknown", lambda _: True)[:2]} == {8, 32}


def test_groups_of_opencl_give_the_same_on_a_device() -> None:
    source = """#define GROUP 64
    __kernel void k(__global const float* x, __global float* y, int n) {
        __local float s[GROUP];
        const int t = get_local_id(0), i = get_group_id(0) * GROUP + t;
        if (i < n) s[t] = x[i];
        barrier(CLK_LOCAL_MEM_FENCE);
        if (i < n) y[i] = s[(t ^ 1) + i - t < n ? t ^ 1 : t];
    }"""
    require_equal(opencl_kernel(source, SERIES, LINE), [{"TUNED_GROUP": group} for group in (32, 128, 256)], n=1000)
