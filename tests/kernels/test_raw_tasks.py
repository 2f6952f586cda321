"""The raw kernels of tests/raw: they load, their references are right, their sources compile, and have no template."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiling import bytes_of_arrays

from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.backends import open_compiler
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.source import specialise
from tunesmith.kernels.space import compiler_rejection
from tunesmith.kernels.spec.task import Task, geometry
from tunesmith.kernels.spec.taskfile import load_task

RAW = Path(__file__).resolve().parent.parent / "raw"
NAMES = sorted(path.parent.name for path in RAW.glob("*/task.toml"))


def raw(name: str) -> Task:
    return load_task(str(RAW / name))


def test_these_are_all() -> None:
    assert sorted(CASES) == NAMES


@pytest.mark.parametrize("name", NAMES)
class TestDescription:
    def test_it_has_a_plain_baseline_and_no_template(self, name: str) -> None:
        sources = raw(name).sources("cuda")
        assert sources.baseline.label == "plain" and sources.templates == ()

    def test_bytes_count_every_array_once_for_each_direction(self, name: str) -> None:
        task = raw(name)
        for workload in task.workloads:
            assert task.bytes_of(workload) == bytes_of_arrays(task, workload)

    def test_it_compiles_for_every_choice_of_types(self, name: str) -> None:
        task, limits = raw(name), resolve_target("sm_90")
        pytest.importorskip("cuda.bindings")
        compiler, template = open_compiler(limits, 0), task.sources("cuda").baseline.template
        for types in {tuple(workload.types.items()): workload.types for workload in task.workloads}.values():
            artifact = compiler.compile(specialise(template, {}, types))
            assert isinstance(artifact, Artifact), artifact
            assert artifact.resources.spills == 0 and artifact.globals == ()
            for workload in task.workloads:
                assert compiler_rejection(limits, geometry(template, {}, workload), artifact.resources) is None


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


@pytest.mark.parametrize("name", NAMES)
def test_a_reference_computes_what_its_name_says(name: str) -> None:
    (given, expected), task = CASES[name], raw(name)
    namespace: dict[str, Any] = {}
    exec(task.reference, namespace)
    arrays = {key: np.array(value, float) if np.ndim(value) else value for key, value in given.items()}
    found = namespace[task.reference_name](**arrays)
    assert found.keys() == expected.keys()
    assert all(np.allclose(found[key], value, rtol=1e-9, atol=0) for key, value in expected.items()), found
