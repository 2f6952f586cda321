"""CUDA kernels of the library, run on the CPU: they compute what the references say, whatever vectors divide."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from compiling import named_rows
from emulation import TENSOR_CORES, contents, run_kernel

from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.build.source import kit
from tunesmith.kernels.launch.reference import reference_results
from tunesmith.kernels.space import feasible
from tunesmith.kernels.spec.task import Task, Tolerance, Workload
from tunesmith.kernels.spec.taskfile import load_task
from tunesmith.kernels.spec.template import Config, Template

# Of each parameter that decides a path of its own, every value. Loads that skip L1 are assembly, so CACHE is never 2.
SMALL_BLOCKS: dict[str, tuple[Config, ...]] = {
    "layernorm": named_rows(
        "BLOCK_X BLOCK_Y VEC ITEMS HOLD_FLOAT ONE_PASS WEIGHT_EARLY GRID_CAP CACHE",
        (32, 2, 4, 1, 0, 0, 0, 0, 0),
        (32, 2, 8, 8, 1, 1, 1, 528, 1),
        (64, 1, 4, 1, 0, 1, 0, 528, 0),
        (64, 2, 8, 2, 1, 0, 1, 0, 1),
    ),
    "merge_attn_states": named_rows(
        "LANES ROWS VEC UNROLL LOADS_FIRST TOKENS_FIRST WALK CACHE",
        (4, 16, 1, 1, 0, 0, 0, 0),
        (8, 8, 8, 2, 1, 1, 1, 1),
        (16, 4, 4, 4, 0, 0, 1, 0),
        GRID_CAP=528,
        FAST_EXP=0,
    ),
    "rope": named_rows(
        "LANES ROWS VEC HEADS LOADS_FIRST WALK CACHE",
        (4, 16, 1, 1, 0, 0, 0),
        (4, 16, 4, 4, 1, 0, 1),
        (8, 8, 2, 8, 0, 1, 1),
        (16, 4, 8, 2, 1, 1, 0),
        GRID_CAP=528,
    ),
    "softmax": named_rows(
        "BLOCK_X BLOCK_Y VEC ITEMS HOLD_EXP ONLINE GRID_CAP",
        (32, 2, 4, 1, 0, 0, 528),
        (64, 2, 8, 2, 1, 1, 528),
        (128, 1, 4, 4, 0, 1, 0),
        CACHE=0,
        FAST_EXP=0,
    ),
    "gemv_int4": named_rows(
        "LANES SETS SET WIDTH PARTS CACHE", (8, 8, 4, 4, 1, 0), (32, 2, 2, 16, 2, 1), (128, 1, 1, 8, 4, 0)
    ),
    "quantize_per_token": named_rows(
        "BLOCK_X BLOCK_Y VEC ITEMS GRID_CAP CACHE", (32, 2, 4, 1, 264, 0), (64, 2, 8, 2, 528, 1), (128, 1, 16, 4, 0, 0)
    ),
    "silu_and_mul": named_rows(
        "BLOCK_X BLOCK_Y VEC UNROLL WALK CACHE",
        (32, 2, 4, 2, 1, 0),
        (64, 1, 8, 1, 0, 1),
        (32, 4, 1, 4, 0, 0),
        GRID_CAP=528,
        FAST_EXP=0,
    ),
    # In float32, which takes the ordinary units.
    "skinny_gemm": named_rows("BM VEC ACROSS SLICES", (16, 4, 2, 1), (32, 8, 1, 4), (64, 4, 1, 2), SPLIT=1, STAGES=2),
    "stencil3x3": named_rows(
        "BLOCK_X BLOCK_Y VEC ROWS SHUFFLE AHEAD CACHE",
        (32, 2, 1, 1, 1, 1, 0),
        (64, 1, 4, 4, 1, 0, 1),
        (32, 4, 8, 2, 0, 1, 0),
        (32, 2, 2, 8, 0, 0, 1),
    ),
    "topk_softmax": named_rows(
        "LANES ROWS VEC ITEMS FAST_EXP CACHE", (1, 64, 4, 4, 0, 0), (4, 16, 2, 2, 1, 1), (32, 4, 4, 1, 0, 0), REDUCE=0
    ),
    "transpose": named_rows(
        "TILE_N TILE_D READ WRITE PAD DOWN_FIRST CACHE",
        (32, 64, 1, 2, 1, 0, 0),
        (64, 32, 4, 8, 2, 1, 1),
        (32, 32, 8, 4, 4, 0, 0),
        THREADS=128,
    ),
}
SIZES: dict[str, tuple[Config, ...]] = {
    # Held whole, longer than what is held, between vectors, shorter than one; 1061 rows are walked over.
    "layernorm": named_rows("n d", (3, 512), (2, 1208), (3, 333), (1061, 8), (1, 1)),
    # Vectors, between them, shorter than one, longer than the threads of a row have at once.
    "merge_attn_states": named_rows("n h d", (3, 5, 128), (7, 3, 129), (2, 2, 333), (1, 1, 1)),
    "rope": named_rows("n h k pairs", (3, 5, 2, 64), (5, 3, 1, 37), (1, 1, 1, 1)),
    # Pieces that a row has once or often, between pieces, a row alone.
    "gemv_int4": named_rows("n m", (5, 512), (3, 333), (9, 72), (1, 1)),
    "quantize_per_token": named_rows("n d", (3, 512), (2, 2064), (3, 333), (1061, 16), (1, 1)),
    # The last has more rows than a side of the grid has blocks.
    "silu_and_mul": named_rows("n d", (3, 512), (5, 333), (1, 1), (65537, 2)),
    "skinny_gemm": named_rows("m n k", (5, 136, 72), (37, 41, 29), (70, 9, 40), (1, 1, 1)),
    "stencil3x3": named_rows("n h w", (2, 9, 136), (1, 20, 33), (1, 1, 8), (1, 1, 1)),
    # Held whole, longer than what is held, more choices than lanes, between vectors.
    "topk_softmax": named_rows("n e k", (3, 16, 6), (70, 128, 8), (2, 161, 40), (1, 1, 1)),
    "transpose": named_rows("n d", (40, 72), (37, 41), (1, 9), (64, 1)),
    # Also between vectors with few elements for each thread, and with more.
    "softmax": named_rows("n d", (3, 2056), (2, 333), (3, 127), (1061, 7), (1, 1)),
}


def require_right(
    task: Task, template: Template, config: Config, workload: Workload, stand_ins: Mapping[str, str] | None = None
) -> None:
    arrays = contents(task, workload, seed=3)
    read = {one.name: arrays[one.name].astype(np.float64) for one in task.arguments if one.role in ("in", "inout")}
    expected = reference_results(task, workload, read)
    found = run_kernel(template, config, task, workload, arrays, stand_ins)
    for output in task.outputs:
        values, dtype = expected[output.name], task.dtype_of(output, workload)
        allowed = task.tolerance_of(dtype) if dtype != "float32" else Tolerance(rtol=1e-5, atol=1e-5)
        near = np.allclose(found[output.name], values, rtol=allowed.rtol, atol=allowed.atol)
        assert near, (workload.sizes, output.name)


@pytest.mark.parametrize("name", ["silu_and_mul", "fused_add_rmsnorm", "merge_attn_states"])
def test_an_opponent_computes_what_the_reference_does(name: str) -> None:
    """With vectors, between them, and longer than a block."""
    task = load_task(name)
    [opponent] = task.sources("cuda").opponents
    more = {"h": 3} if name == "merge_attn_states" else {}
    for n, d in ((3, 512), (2, 333), (1, 1)):
        workload = Workload(name="small", sizes={"n": n, **more, "d": d}, types={"T": "float32"})
        require_right(task, opponent.template, {}, workload)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        pytest.param(name, config, id=f"{name}-{at}", marks=[] if at == 1 else pytest.mark.slow)
        for name, configs in SMALL_BLOCKS.items()
        for at, config in enumerate(configs)
    ],
)
def test_a_template_computes_what_the_reference_does(name: str, config: Config) -> None:
    task = load_task(name)
    template = task.sources("cuda").templates[-1]
    for sizes in SIZES[name]:
        types = {"T": "float32", **({"Q": "int8"} if "Q" in task.types else {})}
        workload = Workload(name="small", sizes=sizes, types=types)
        assert feasible(template, [workload], resolve_target("sm_90")).reject(config) is None
        require_right(task, template, config, workload)


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(config, id=str(at), marks=pytest.mark.slow if at else ())
        for at, config in enumerate(SMALL_BLOCKS["skinny_gemm"])
    ],
)
def test_products_of_warps_are_those_of_the_reference(config: Config) -> None:
    """In half precision, with what PTX says of a product in place of the instruction."""
    task = load_task("skinny_gemm")
    template = task.sources("cuda").templates[-1]
    stand_ins = {kit()["kit/copies.cuh"]: "", kit()["kit/fragments.cuh"]: TENSOR_CORES}
    for sizes in SIZES["skinny_gemm"]:
        workload = Workload(name="small", sizes=sizes, types={"T": "float16"})
        require_right(task, template, config, workload, stand_ins)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("tensor_cores", {"BM": 16, "WM": 16}),
        ("tensor_cores", {"BN": 128, "SLICES": 2}),
        ("warpgroups", {}),
        ("warpgroups", {"BM": 64, "BN": 64, "DOWN": 1}),
    ],
)
def test_gemm_of_float32_takes_the_ordinary_units(name: str, more: Config) -> None:
    task = load_task("gemm")
    [template] = [one for one in task.sources("cuda").templates if one.name == name]
    config = {**template.default_config, **more}
    for sizes in ({"m": 37, "n": 41, "k": 29}, {"m": 70, "n": 200, "k": 24}, {"m": 1, "n": 1, "k": 1}):
        workload = Workload(name="small", sizes=sizes, types={"T": "float32"})
        assert feasible(template, [workload], resolve_target("sm_90")).reject(config) is None
        require_right(task, template, config, workload)
