"""The raw kernels of tests/raw: they load, their references are right, their sources compile, and have no template."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiling import bytes_of_arrays, reference_of

from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.backends import open_compiler
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.source import specialise
from tunesmith.kernels.space import compiler_rejection
from tunesmith.kernels.spec.task import Task, geometry
from tunesmith.kernels.spec.taskfile import load_task

RAW = Path(__file__).resolve().parent.parent / "raw"
NAMES = (
    *("causal_conv1d", "cumsum", "dequant_int4", "embedding_bag", "gemv", "histogram"),
    *("int8_quant", "layernorm", "rope", "stencil3x3", "topk_softmax", "transpose"),
)


def raw(name: str) -> Task:
    return load_task(str(RAW / name))


def reference(name: str) -> Any:
    return reference_of(raw(name))


def test_these_are_all() -> None:
    assert tuple(sorted(path.parent.name for path in RAW.glob("*/task.toml"))) == NAMES


@pytest.mark.parametrize("name", NAMES)
class TestDescription:
    def test_it_has_a_plain_baseline_and_no_template(self, name: str) -> None:
        sources = raw(name).sources("cuda")
        assert sources.baseline.label == "plain" and sources.templates == ()

    def test_bytes_count_every_array_once_for_each_direction(self, name: str) -> None:
        task = raw(name)
        for workload in task.workloads:
            assert task.bytes_of(workload) == bytes_of_arrays(task, workload)

    def test_its_shapes_are_of_a_gpu(self, name: str) -> None:
        task = raw(name)
        tuned, held_out = (task.workloads_for("gpu", held_out=flag) for flag in (False, True))
        assert 3 <= len(tuned) <= 4 and len(held_out) >= 3
        seconds = [task.bytes_of(workload) / 4e12 for workload in tuned]
        assert min(seconds) < 1e-6 and 5e-6 < max(seconds) < 5e-4

    def test_it_compiles_for_every_choice_of_types(self, name: str) -> None:
        task, limits = raw(name), resolve_target("sm_90")
        pytest.importorskip("cuda.bindings")
        compiler = open_compiler(limits, 0)
        template = task.sources("cuda").baseline.template
        for types in {tuple(workload.types.items()): workload.types for workload in task.workloads}.values():
            source = specialise(template, {}, types)
            artifact = compiler.compile(source)
            assert isinstance(artifact, Artifact), artifact
            assert artifact.resources.spills == 0 and artifact.globals == ()
            for workload in task.workloads:
                assert compiler_rejection(limits, geometry(template, {}, workload), artifact.resources) is None


class TestReferences:
    """Against the definition, written out element by element."""

    rng = np.random.default_rng(3)

    def test_rope(self) -> None:
        n, h, half = 3, 2, 5
        x, angle = self.rng.standard_normal((n, h, 2 * half)), self.rng.standard_normal((n, half))
        out = reference("rope")(x=x, cosines=np.cos(angle), sines=np.sin(angle), n=n, h=h, half=half)["out"]
        # A rotation of the plane is a product of complex numbers, and keeps lengths.
        turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angle)[:, None, :]
        assert np.allclose(out[..., :half], turned.real) and np.allclose(out[..., half:], turned.imag)
        assert np.allclose((out**2).sum(), (x**2).sum())

    def test_layernorm(self) -> None:
        n, d = 4, 33
        x, weight, bias = self.rng.standard_normal((n, d)), self.rng.standard_normal(d), self.rng.standard_normal(d)
        out = reference("layernorm")(x=x, weight=weight, bias=bias, eps=1e-5, n=n, d=d)["out"]
        for row, found in zip(x, out, strict=True):
            mean = sum(row) / d
            variance = sum((value - mean) ** 2 for value in row) / d
            assert found == pytest.approx((row - mean) / math.sqrt(variance + 1e-5) * weight + bias)

    def test_int8_quant(self) -> None:
        x = np.array([[1.0, -2.0, 0.5, 0.0], [0.0, 0.0, 0.0, 0.0], [-127.0, 1.5, 2.5, 127.0]])
        results = reference("int8_quant")(x=x, n=3, d=4)
        assert results["scales"].tolist() == [2.0 / 127, 1e-10 / 127, 1.0]
        # 63.5 and 31.75 of the first row; ties go to the even neighbour.
        assert results["q"].tolist() == [[64, -127, 32, 0], [0, 0, 0, 0], [-127, 2, 2, 127]]

    def test_topk_softmax(self) -> None:
        n, e, k = 5, 9, 3
        logits = self.rng.integers(0, 4, (n, e)).astype(float)  # many are equal
        results = reference("topk_softmax")(logits=logits, n=n, e=e, k=k)
        for i in range(n):
            order = sorted(range(e), key=lambda j: (-logits[i, j], j))[:k]
            assert results["experts"][i].tolist() == order
            total = sum(math.exp(value) for value in logits[i])
            assert results["weights"][i].tolist() == pytest.approx([math.exp(logits[i, j]) / total for j in order])

    def test_stencil3x3(self) -> None:
        n, h, w = 2, 4, 5
        image, weights = self.rng.standard_normal((n, h, w)), self.rng.standard_normal(9)
        out = reference("stencil3x3")(image=image, filter=weights, n=n, h=h, w=w)["out"]
        padded = np.pad(image, ((0, 0), (1, 1), (1, 1)))
        for z, y, x in np.ndindex(n, h, w):
            total = sum(padded[z, y + at // 3, x + at % 3] * weights[at] for at in range(9))
            assert out[z, y, x] == pytest.approx(total)

    def test_histogram(self) -> None:
        data, counts = self.rng.integers(0, 256, 1000).astype(float), self.rng.integers(0, 9, 256).astype(float)
        found = reference("histogram")(data=data, counts=counts, n=1000)["counts"]
        assert [int(one) for one in found] == [int(counts[v]) + data.tolist().count(v) for v in range(256)]

    def test_causal_conv1d(self) -> None:
        b, t, c = 2, 6, 3
        x, weights, bias = self.rng.standard_normal((b, t, c)), self.rng.standard_normal((c, 4)), np.arange(c) * 1.0
        out = reference("causal_conv1d")(x=x, filter=weights, bias=bias, b=b, t=t, c=c)["out"]
        for i, j, k in np.ndindex(b, t, c):
            steps = [(j - 3 + at, weights[k, at]) for at in range(4) if j - 3 + at >= 0]
            assert out[i, j, k] == pytest.approx(bias[k] + sum(weight * x[i, step, k] for step, weight in steps))

    def test_dequant_int4(self) -> None:
        packed = self.rng.integers(0, 256, (2, 70)).astype(float)
        scales = np.array([[0.5, 2.0], [1.0, 4.0]])
        out = reference("dequant_int4")(packed=packed, scales=scales, n=2, m=70)["out"]
        assert out.shape == (2, 140)
        for row, col in np.ndindex(2, 140):
            byte = int(packed[row, col // 2])
            assert out[row, col] == ((byte >> 4 if col % 2 else byte & 15) - 8) * scales[row, col // 128]

    def test_gemv(self) -> None:
        matrix, x = np.array([[1.0, 2.0, 3.0], [0.0, -1.0, 4.0]]), np.array([1.0, 10.0, 100.0])
        assert reference("gemv")(matrix=matrix, x=x, n=2, k=3)["out"].tolist() == [321.0, 390.0]

    def test_embedding_bag(self) -> None:
        table, rows = self.rng.standard_normal((4096, 5)), self.rng.integers(0, 4096, (7, 3))
        rows[2] = 9  # one row three times
        out = reference("embedding_bag")(table=table, rows=rows.astype(float), n=7, k=3, d=5)["out"]
        for bag in range(7):
            assert out[bag].tolist() == pytest.approx([sum(table[row, col] for row in rows[bag]) for col in range(5)])

    def test_transpose(self) -> None:
        out = reference("transpose")(x=np.arange(6.0).reshape(2, 3), n=2, d=3)["out"]
        assert out.tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]

    def test_cumsum(self) -> None:
        out = reference("cumsum")(x=np.array([[1.0, 2.0, -4.0], [0.5, 0.0, 0.5]]), n=2, d=3)["out"]
        assert out.tolist() == [[1.0, 3.0, -1.0], [0.5, 0.5, 1.0]]
