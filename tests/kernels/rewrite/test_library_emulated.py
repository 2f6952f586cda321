"""CUDA kernels of the library, run on the CPU: they compute what the references say, whatever vectors divide."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from emulation import TENSOR_CORES, contents, run_kernel

from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.launch.reference import reference_results
from tunesmith.kernels.space import feasible
from tunesmith.kernels.spec.task import Task, Tolerance, Workload
from tunesmith.kernels.spec.taskfile import LIBRARY, load_task
from tunesmith.kernels.spec.template import Config, Template

# Of each parameter that decides a path of its own, every value. Loads that skip L1 are assembly, so CACHE is never 2.
SMALL_BLOCKS: dict[str, tuple[Config, ...]] = {
    "layernorm": tuple(
        {"BLOCK_X": x, "BLOCK_Y": y, "VEC": vec, "ITEMS": items, "HOLD_FLOAT": held, "ONE_PASS": once}
        | {"WEIGHT_EARLY": early, "GRID_CAP": cap, "CACHE": cache}
        for x, y, vec, items, held, once, early, cap, cache in (
            (32, 2, 4, 1, 0, 0, 0, 0, 0),
            (32, 2, 8, 8, 1, 1, 1, 528, 1),
            (64, 1, 4, 1, 0, 1, 0, 528, 0),
            (64, 2, 8, 2, 1, 0, 1, 0, 1),
        )
    ),
    "merge_attn_states": tuple(
        {"LANES": lanes, "ROWS": rows, "VEC": vec, "UNROLL": unroll, "LOADS_FIRST": loads, "TOKENS_FIRST": tokens}
        | {"WALK": walk, "GRID_CAP": 528, "CACHE": cache, "FAST_EXP": 0}
        for lanes, rows, vec, unroll, loads, tokens, walk, cache in (
            (4, 16, 1, 1, 0, 0, 0, 0),
            (8, 8, 8, 2, 1, 1, 1, 1),
            (16, 4, 4, 4, 0, 0, 1, 0),
        )
    ),
    "rope": tuple(
        {"LANES": lanes, "ROWS": rows, "VEC": vec, "HEADS": heads, "LOADS_FIRST": first}
        | {"WALK": walk, "GRID_CAP": 528, "CACHE": cache}
        for lanes, rows, vec, heads, first, walk, cache in (
            (4, 16, 1, 1, 0, 0, 0),
            (4, 16, 4, 4, 1, 0, 1),
            (8, 8, 2, 8, 0, 1, 1),
            (16, 4, 8, 2, 1, 1, 0),
        )
    ),
    "softmax": tuple(
        {"BLOCK_X": x, "BLOCK_Y": y, "VEC": vec, "ITEMS": items, "HOLD_EXP": held, "ONLINE": online}
        | {"GRID_CAP": cap, "CACHE": 0, "FAST_EXP": 0}
        for x, y, vec, items, held, online, cap in (
            (32, 2, 4, 1, 0, 0, 528),
            (64, 2, 8, 2, 1, 1, 528),
            (128, 1, 4, 4, 0, 1, 0),
        )
    ),
}
SMALL_BLOCKS |= {
    "gemv_int4": tuple(
        {"LANES": lanes, "SETS": sets, "SET": rows, "WIDTH": width, "PARTS": parts, "CACHE": cache}
        for lanes, sets, rows, width, parts, cache in ((8, 8, 4, 4, 1, 0), (32, 2, 2, 16, 2, 1), (128, 1, 1, 8, 4, 0))
    ),
    "quantize_per_token": tuple(
        {"BLOCK_X": x, "BLOCK_Y": y, "VEC": vec, "ITEMS": items, "GRID_CAP": cap, "CACHE": cache}
        for x, y, vec, items, cap, cache in ((32, 2, 4, 1, 264, 0), (64, 2, 8, 2, 528, 1), (128, 1, 16, 4, 0, 0))
    ),
    "silu_and_mul": tuple(
        {"BLOCK_X": x, "BLOCK_Y": y, "VEC": vec, "UNROLL": unroll, "WALK": walk, "GRID_CAP": 528}
        | {"CACHE": cache, "FAST_EXP": 0}
        for x, y, vec, unroll, walk, cache in ((32, 2, 4, 2, 1, 0), (64, 1, 8, 1, 0, 1), (32, 4, 1, 4, 0, 0))
    ),
    # In float32, which takes the ordinary units.
    "skinny_gemm": tuple(
        {"BM": rows, "VEC": vec, "ACROSS": across, "SLICES": slices, "SPLIT": 1, "STAGES": 2}
        for rows, vec, across, slices in ((16, 4, 2, 1), (32, 8, 1, 4), (64, 4, 1, 2))
    ),
    "stencil3x3": tuple(
        {"BLOCK_X": x, "BLOCK_Y": y, "VEC": vec, "ROWS": rows, "SHUFFLE": shuffle, "AHEAD": ahead, "CACHE": cache}
        for x, y, vec, rows, shuffle, ahead, cache in (
            (32, 2, 1, 1, 1, 1, 0),
            (64, 1, 4, 4, 1, 0, 1),
            (32, 4, 8, 2, 0, 1, 0),
            (32, 2, 2, 8, 0, 0, 1),
        )
    ),
    "topk_softmax": tuple(
        {"LANES": lanes, "ROWS": rows, "VEC": vec, "ITEMS": items, "REDUCE": 0, "FAST_EXP": fast, "CACHE": cache}
        for lanes, rows, vec, items, fast, cache in (
            (1, 64, 4, 4, 0, 0),
            (4, 16, 2, 2, 1, 1),
            (32, 4, 4, 1, 0, 0),
        )
    ),
    "transpose": tuple(
        {"TILE_N": n, "TILE_D": d, "THREADS": 128, "READ": read, "WRITE": write, "PAD": pad}
        | {"DOWN_FIRST": down, "CACHE": cache}
        for n, d, read, write, pad, down, cache in (
            (32, 64, 1, 2, 1, 0, 0),
            (64, 32, 4, 8, 2, 1, 1),
            (32, 32, 8, 4, 4, 0, 0),
        )
    ),
}
SIZES: dict[str, tuple[dict[str, int], ...]] = {
    # Held whole, longer than what is held, between vectors, shorter than one; 1061 rows are walked over.
    "layernorm": ({"n": 3, "d": 512}, {"n": 2, "d": 1208}, {"n": 3, "d": 333}, {"n": 1061, "d": 8}, {"n": 1, "d": 1}),
    # Vectors, between them, shorter than one, longer than the threads of a row have at once.
    "merge_attn_states": (
        {"n": 3, "h": 5, "d": 128},
        {"n": 7, "h": 3, "d": 129},
        {"n": 2, "h": 2, "d": 333},
        {"n": 1, "h": 1, "d": 1},
    ),
    "rope": (
        {"n": 3, "h": 5, "k": 2, "pairs": 64},
        {"n": 5, "h": 3, "k": 1, "pairs": 37},
        {"n": 1, "h": 1, "k": 1, "pairs": 1},
    ),
    # Pieces that a row has once or often, between pieces, a row alone.
    "gemv_int4": ({"n": 5, "m": 512}, {"n": 3, "m": 333}, {"n": 9, "m": 72}, {"n": 1, "m": 1}),
    "quantize_per_token": (
        {"n": 3, "d": 512},
        {"n": 2, "d": 2064},
        {"n": 3, "d": 333},
        {"n": 1061, "d": 16},
        {"n": 1, "d": 1},
    ),
    # The last has more rows than a side of the grid has blocks.
    "silu_and_mul": ({"n": 3, "d": 512}, {"n": 5, "d": 333}, {"n": 1, "d": 1}, {"n": 65537, "d": 2}),
    "skinny_gemm": (
        {"m": 5, "n": 136, "k": 72},
        {"m": 37, "n": 41, "k": 29},
        {"m": 70, "n": 9, "k": 40},
        {"m": 1, "n": 1, "k": 1},
    ),
    "stencil3x3": (
        {"n": 2, "h": 9, "w": 136},
        {"n": 1, "h": 20, "w": 33},
        {"n": 1, "h": 1, "w": 8},
        {"n": 1, "h": 1, "w": 1},
    ),
    # Held whole, longer than what is held, more choices than lanes, between vectors.
    "topk_softmax": (
        {"n": 3, "e": 16, "k": 6},
        {"n": 70, "e": 128, "k": 8},
        {"n": 2, "e": 161, "k": 40},
        {"n": 1, "e": 1, "k": 1},
    ),
    "transpose": ({"n": 40, "d": 72}, {"n": 37, "d": 41}, {"n": 1, "d": 9}, {"n": 64, "d": 1}),
    # Also between vectors with few elements for each thread, and with more.
    "softmax": ({"n": 3, "d": 2056}, {"n": 2, "d": 333}, {"n": 3, "d": 127}, {"n": 1061, "d": 7}, {"n": 1, "d": 1}),
}


def require_right(
    task: Task,
    template: Template,
    config: Config,
    workload: Workload,
    folder: Path,
    stand_ins: Mapping[str, str] | None = None,
) -> None:
    arrays = contents(task, workload, seed=3)
    read = {one.name: arrays[one.name].astype(np.float64) for one in task.arguments if one.role in ("in", "inout")}
    expected = reference_results(task, workload, read)
    found = run_kernel(template, config, task, workload, arrays, folder, stand_ins)
    for output in task.outputs:
        values, dtype = expected[output.name], task.dtype_of(output, workload)
        allowed = task.tolerance_of(dtype) if dtype != "float32" else Tolerance(rtol=1e-5, atol=1e-5)
        near = np.allclose(found[output.name], values, rtol=allowed.rtol, atol=allowed.atol)
        assert near, (workload.sizes, output.name)


@pytest.mark.parametrize("name", ["silu_and_mul", "fused_add_rmsnorm", "merge_attn_states"])
def test_an_opponent_computes_what_the_reference_does(name: str, tmp_path: Path) -> None:
    """With vectors, between them, and longer than a block."""
    task = load_task(name)
    [opponent] = task.sources("cuda").opponents
    more = {"h": 3} if name == "merge_attn_states" else {}
    for n, d in ((3, 512), (2, 333), (1, 1)):
        workload = Workload(name="small", sizes={"n": n, **more, "d": d}, types={"T": "float32"})
        require_right(task, opponent.template, {}, workload, tmp_path)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        pytest.param(name, config, id=f"{name}-{at}", marks=[] if at == 1 else pytest.mark.slow)
        for name, configs in SMALL_BLOCKS.items()
        for at, config in enumerate(configs)
    ],
)
def test_a_template_computes_what_the_reference_does(name: str, config: Config, tmp_path: Path) -> None:
    task = load_task(name)
    template = task.sources("cuda").templates[-1]
    for sizes in SIZES[name]:
        types = {"T": "float32", **({"Q": "int8"} if "Q" in task.types else {})}
        workload = Workload(name="small", sizes=sizes, types=types)
        assert feasible(template, [workload], resolve_target("sm_90")).reject(config) is None
        require_right(task, template, config, workload, tmp_path)


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(config, id=str(at), marks=pytest.mark.slow if at else ())
        for at, config in enumerate(SMALL_BLOCKS["skinny_gemm"])
    ],
)
def test_products_of_warps_are_those_of_the_reference(config: Config, tmp_path: Path) -> None:
    """In half precision, with what PTX says of a product in place of the instruction."""
    task = load_task("skinny_gemm")
    template = task.sources("cuda").templates[-1]
    assembly = (LIBRARY / "tensor_cores.cuh").read_text(encoding="utf-8").strip()
    for sizes in SIZES["skinny_gemm"]:
        workload = Workload(name="small", sizes=sizes, types={"T": "float16"})
        require_right(task, template, config, workload, tmp_path, {assembly: TENSOR_CORES})


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("tensor_cores", {"BM": 16, "WM": 16}),
        ("tensor_cores", {"BN": 128, "SLICES": 2}),
        ("warpgroups", {}),
        ("warpgroups", {"BM": 64, "BN": 64, "DOWN": 1}),
    ],
)
def test_gemm_of_float32_takes_the_ordinary_units(name: str, more: Config, tmp_path: Path) -> None:
    task = load_task("gemm")
    [template] = [one for one in task.sources("cuda").templates if one.name == name]
    config = {**template.default_config, **more}
    for sizes in ({"m": 37, "n": 41, "k": 29}, {"m": 70, "n": 200, "k": 24}, {"m": 1, "n": 1, "k": 1}):
        workload = Workload(name="small", sizes=sizes, types={"T": "float32"})
        assert feasible(template, [workload], resolve_target("sm_90")).reject(config) is None
        require_right(task, template, config, workload, tmp_path)
