"""The checker itself under test: with one check taken out, a wrong candidate passes that it catches otherwise."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tunesmith.kernels.backends import open_compiler, open_device
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.candidate import Candidate, types_key
from tunesmith.kernels.build.specialise import specialise
from tunesmith.kernels.check import verify as checks
from tunesmith.kernels.check.plan import Step
from tunesmith.kernels.launch import workload_data
from tunesmith.kernels.spec.contents import Contents
from tunesmith.kernels.spec.task import Workload
from tunesmith.kernels.spec.template import Template

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "candidates"))
from judging import edited

FIXTURES = {one.file.removeprefix("edited/"): one for one in edited()}


@pytest.fixture(scope="module")
def verdict(device: Any) -> Callable[[str, Workload, Contents], Any]:
    """One step on a candidate of the OpenCL device at hand."""
    if device.backend != "opencl":
        pytest.skip("these candidates are OpenCL C")
    compiler, opened = open_compiler(device.limits, device.index), open_device(device.limits, device.index)
    made: dict[tuple[str, str], Candidate] = {}

    def compiled(name: str, template: Template, workload: Workload) -> Candidate:
        if (name, workload.types["T"]) not in made:
            artifact = compiler.compile(specialise(template, {}, workload.types))
            assert isinstance(artifact, Artifact), artifact
            made[name, workload.types["T"]] = Candidate(template, {}, {types_key(workload): artifact})
        return made[name, workload.types["T"]]

    def run(name: str, workload: Workload, contents: Contents) -> Any:
        task, template = FIXTURES[name].load()
        baseline = compiled(task.name, task.sources("opencl").baseline.template, workload)
        step = Step(workload, contents, derived=True)
        data = checks.prepare_step(opened, task, step, max_bytes=1 << 28)
        assert isinstance(data, workload_data.WorkloadData), data
        return checks.verify(opened, compiled(name, template, workload), baseline, step, data)

    return run


def of(**sizes: int) -> Workload:
    return Workload(name="made up", sizes=sizes, types={"T": "float16"})


def passed(found: Any) -> bool:
    assert isinstance(found, checks.Passed | checks.WrongResult), found
    return isinstance(found, checks.Passed)


CONTENTS = [
    ("softmax_masked_nan.cl", "masked"),
    ("silu_hides_nan.cl", "nans"),
    ("silu_sorted_rows.cl", "sorted"),
    ("softmax_nan_hidden.cl", "nans"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), CONTENTS)
def test_only_one_kind_of_contents_catches_it(verdict: Any, name: str, kind: Any) -> None:
    workload = of(n=16, d=200)
    for other in ("task", "uniform", "large", "ties", "negative", "tiny"):
        assert passed(verdict(name, workload, Contents(other))), other
    assert not passed(verdict(name, workload, Contents(kind)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["silu_probes_sixteen.cl", "silu_probes_own_elements.cl"])
def test_only_the_launch_on_changed_inputs_catches_it(verdict: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = Contents(change="rows")
    found = verdict(name, of(n=64, d=512), contents)
    assert not passed(found) and found.reason == "stale_output"
    monkeypatch.delitem(checks.CHECKS, "stale")
    assert passed(verdict(name, of(n=64, d=512), contents))


@pytest.mark.slow
def test_only_other_values_of_a_scalar_catch_it(verdict: Any) -> None:
    workload = of(n=8, d=64)
    assert passed(verdict("norm_eps_hard_coded.cl", workload, Contents("tiny")))
    assert not passed(verdict("norm_eps_hard_coded.cl", workload, Contents("tiny", scalars=(("eps", 1e-3),))))


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [{"n": 16, "d": 1024}, {"n": 20, "d": 96}])
def test_only_a_size_of_the_ladder_catches_it(verdict: Any, sizes: dict[str, int]) -> None:
    assert passed(verdict("silu_width_17.cl", of(**sizes), Contents()))
    assert not passed(verdict("silu_width_17.cl", of(n=16, d=17), Contents()))
