"""CUDA kernels of the library, run on the CPU: they compute what the references say, whatever vectors divide."""

import functools
import itertools
import math
from typing import Any

import numpy as np
import pytest
from compiling import named_rows
from emulation import TENSOR_CORES, contents, run_kernels
from rewrite_cases import H200, RAW, template_of

from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.build.source import kit
from tunesmith.kernels.launch.reference import reference_results
from tunesmith.kernels.space import feasible
from tunesmith.kernels.spec.task import Task, Tolerance, Workload, geometry
from tunesmith.kernels.spec.taskfile import load_task, read_task
from tunesmith.kernels.spec.template import Config, Template

RUN = {"CACHE": (0, 1), "FAST_EXP": (0,), "SPLIT": (1,), "STAGES": (2,), "REDUCE": (0,), "THREADS": (128,)}
"""Of some parameters the values that are run: others are assembly, less exact, or large blocks."""
POINTS = 4
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

RAW_SIZES: dict[str, tuple[Config, ...]] = {
    "attn_decode": named_rows("b h m s e", (2, 2, 3, 45, 40), (1, 1, 1, 1, 1)),
    "conv3x3": named_rows("n c o h w", (2, 3, 4, 9, 13), (1, 1, 1, 1, 1)),
    "linear_scan": named_rows("n t", (2, 1337), (3, 5)),
    "grouped_gemm": named_rows("g n k m", (3, 50, 20, 33), (9, 5, 33, 16)),
    "layernorm_backward": named_rows("n d", (5, 333), (267, 8)),
    "cross_entropy": named_rows("n v", (3, 333), (2, 8)),
    "csr_spmv": named_rows("n m nnz", (37, 41, 333), (64, 8, 9)),
    "nbody": named_rows("n", (101,), (8,)),
}


def require_right(
    task: Task, template: Template, configs: list[Config], workload: Workload, stand_ins: dict[str, str] | None = None
) -> None:
    arrays = contents(task, workload, seed=3)
    read = {one.name: arrays[one.name].astype(np.float64) for one in task.arguments if one.role in ("in", "inout")}
    expected = reference_results(task, workload, read)
    results = run_kernels([(template, config) for config in configs], task, workload, arrays, stand_ins)
    for found, output in itertools.product(results, task.outputs):
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
        require_right(task, opponent.template, [{}], workload)


@functools.cache
def small_points(name: str) -> list[Config]:
    """Points of a template with at most 128 threads in a block, each with as many new values as there are."""
    task = load_task(name)
    template, workload = task.sources("cuda").templates[-1], workload_of(task, SIZES[name][0])
    space = feasible(template, [workload], resolve_target("sm_90"))
    drawn = [space.config(point) for point in space.sample(np.random.default_rng(1), 3000)]
    drawn = [one for one in drawn if all(one.get(key, values[0]) in values for key, values in RUN.items())]
    small = [one for one in drawn if math.prod(geometry(template, one, workload).block) <= 128]
    found = list[Config]()
    while len(found) < POINTS:
        seen = {pair for one in found for pair in one.items()}
        found.append(max(small, key=lambda one: len(one.items() - seen)))
    return found


def workload_of(task: Task, sizes: Config) -> Workload:
    return Workload(name="small", sizes=sizes, types={"T": "float32", **({"Q": "int8"} if "Q" in task.types else {})})


@pytest.mark.parametrize(
    ("name", "at"),
    [pytest.param(name, at, marks=pytest.mark.slow if at else ()) for name in SIZES for at in range(POINTS)],
)
def test_a_template_computes_what_the_reference_does(name: str, at: int) -> None:
    task, config = load_task(name), small_points(name)[at]
    template = task.sources("cuda").templates[-1]
    for sizes in SIZES[name]:
        workload = workload_of(task, sizes)
        assert feasible(template, [workload], resolve_target("sm_90")).reject(config) is None
        require_right(task, template, [config], workload)


@pytest.mark.parametrize("at", [pytest.param(one, marks=pytest.mark.slow if one else ()) for one in range(POINTS)])
def test_products_of_warps_are_those_of_the_reference(at: int) -> None:
    """In half precision, with what PTX says of a product in place of the instruction."""
    task, config = load_task("skinny_gemm"), small_points("skinny_gemm")[at]
    template = task.sources("cuda").templates[-1]
    stand_ins = {kit()["kit/copies.cuh"]: "", kit()["kit/fragments.cuh"]: TENSOR_CORES}
    for sizes in SIZES["skinny_gemm"]:
        workload = Workload(name="small", sizes=sizes, types={"T": "float16"})
        require_right(task, template, [config], workload, stand_ins)


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
        require_right(task, template, [config], workload)


@pytest.mark.parametrize("name", RAW_SIZES)
def test_a_raw_kernel_and_what_the_rules_make_of_it_compute_what_the_reference_does(name: str) -> None:
    task = read_task(RAW / name / "task.toml")
    template = template_of(task)
    for sizes in RAW_SIZES[name]:
        workload = Workload(name="small", sizes=sizes, types=dict.fromkeys(task.types, "float32"))
        require_right(task, task.sources("cuda").baseline.template, [{}], workload)
        space = feasible(template, [workload], H200)
        points = [space.config(point) for point in space.sample(np.random.default_rng(1), 3)]
        require_right(task, template, points, workload)


BYTES = np.array([[0x88] * 64 + [0x19]])
COUNTS = np.zeros(256)
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "rope": ({"x": [[[3, 4]]], "cosines": [[0]], "sines": [[1]], "n": 1, "h": 1, "half": 1}, {"out": [[[-4, 3]]]}),
    "layernorm": ({"x": [[1, 3]], "weight": [2, 4], "bias": [0.5, 0], "eps": 0, "n": 1, "d": 2}, {"out": [[-1.5, 4]]}),
    "int8_quant": (
        # 63.5 and 31.75 of the first row; ties go to the even neighbour.
        {"x": [[1, -2, 0.5, 0], [0, 0, 0, 0], [-127, 1.5, 2.5, 127]], "n": 3, "d": 4},
        {"q": [[64, -127, 32, 0], [0, 0, 0, 0], [-127, 2, 2, 127]], "scales": [2 / 127, 1e-10 / 127, 1]},
    ),
    "topk_softmax": (
        {"logits": [[0, math.log(2.0), math.log(2.0)]], "n": 1, "e": 3, "k": 2},
        {"experts": [[1, 2]], "weights": [[0.4, 0.4]]},
    ),
    "stencil3x3": (
        {"image": [[[1, 2], [3, 4]]], "filter": np.arange(9.0), "n": 1, "h": 2, "w": 2},
        {"out": [[[67, 57], [37, 27]]]},
    ),
    "histogram": (
        {"data": [1, 255, 1], "counts": COUNTS + 3, "n": 3},
        {"counts": COUNTS + 3 + 2 * (np.arange(256) == 1) + (np.arange(256) == 255)},
    ),
    "causal_conv1d": (
        {"x": [[[2], [3]]], "filter": [[1, 10, 100, 1000]], "bias": [5], "b": 1, "t": 2, "c": 1},
        {"out": [[[2005], [3205]]]},
    ),
    "dequant_int4": ({"packed": BYTES, "scales": [[0.5, 4]], "n": 1, "m": 65}, {"out": [[0] * 128 + [4, -28]]}),
    "gemv": ({"matrix": [[1, 2, 3], [0, -1, 4]], "x": [1, 10, 100], "n": 2, "k": 3}, {"out": [321, 390]}),
    "embedding_bag": (
        {"table": [[1, 2], [10, 20], [100, 200]], "rows": [[0, 2], [1, 1]], "n": 2, "k": 2, "d": 2},
        {"out": [[101, 202], [20, 40]]},
    ),
    "transpose": ({"x": np.arange(6.0).reshape(2, 3), "n": 2, "d": 3}, {"out": [[0, 3], [1, 4], [2, 5]]}),
    "cumsum": ({"x": [[1, 2, -4], [0.5, 0, 0.5]], "n": 2, "d": 3}, {"out": [[1, 3, -1], [0.5, 0.5, 1]]}),
}
"""By hand, of raw kernels that are not run beside their references: arguments, and what the name promises of them."""


def test_every_raw_task_is_run_or_has_a_case() -> None:
    assert RAW_SIZES.keys() | CASES.keys() == {path.parent.name for path in RAW.glob("*/task.toml")}


@pytest.mark.parametrize("name", CASES)
def test_a_raw_reference_computes_what_its_name_says(name: str) -> None:
    (given, expected), task = CASES[name], read_task(RAW / name / "task.toml")
    namespace: dict[str, Any] = {}
    exec(task.reference, namespace)
    arrays = {key: np.array(value, float) if np.ndim(value) else value for key, value in given.items()}
    found = namespace[task.reference_name](**arrays)
    assert found.keys() == expected.keys()
    assert all(np.allclose(found[key], value, rtol=1e-9, atol=0) for key, value in expected.items()), found
