"""Opponents: functions of libraries, timed on a workload's buffers beside baseline and candidates."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiling import compiled_candidate

from tunesmith.hw.probe import probe_cuda
from tunesmith.kernels.backends import BoundLaunch, HostCall, open_compiler, open_device
from tunesmith.kernels.backends.opencl import OpenclDevice
from tunesmith.kernels.build.source import Specialised
from tunesmith.kernels.launch.buffers import WorkloadData
from tunesmith.kernels.measure.bench import Bench, ComparisonRequest, WorkloadComparison
from tunesmith.kernels.measure.opponents import KernelRival, Prepared, prepare_opponent
from tunesmith.kernels.measure.timing import Comparison
from tunesmith.kernels.outcome import CompileFailed
from tunesmith.kernels.spec.task import BackendSources, Baseline, Geometry, Task
from tunesmith.kernels.spec.taskfile import read_task
from tunesmith.kernels.spec.template import LaunchGeometry, Template

SCALE_ADD = Path(__file__).resolve().parents[1] / "data" / "scale_add"
FUNCTIONS = """
import importlib

import numpy as np

def right(x, y, a, n):
    assert x.dtype == np.float32 and x.shape == (n,)
    # torch.compile looks a function's module up by its name.
    assert importlib.import_module(right.__module__).right is right
    return np.float32(a) * x + y

def as_dict(**given):
    return {"out": np.float32(given["a"]) * given["x"] + given["y"]}

def wrong(x, y, a, n):
    return x

def short(x, y, a, n):
    return x[1:]

def raises(x, y, a, n):
    raise RuntimeError("no")

def written(x, y, a, n, out):
    np.add(np.float32(a) * x, y, out=out)

def unwritten(x, y, a, n, out):
    pass
"""
IN_PLACE = """
import numpy as np

def in_place(x, y, a, n):
    y += np.float32(a) * x
"""


def task(folder: Path, *functions: str, framework: str = "numpy") -> Task:
    shutil.copytree(SCALE_ADD, folder / "task")
    path = folder / "task" / "task.toml"
    (folder / "task" / "others.py").write_text(FUNCTIONS)
    keys = 'name = "{0}"\nlabel = "eager"\ncall = "others.py:{0}"\nframework = "{1}"\n'
    return append(path, "".join("\n[[opponents]]\n" + keys.format(one, framework) for one in functions))


def append(task_file: Path, text: str) -> Task:
    with task_file.open("a") as file:
        file.write(text)
    return read_task(task_file)


def compared(task: Task, device: Any, **options: Any) -> WorkloadComparison:
    """The baseline with itself, and with the task's opponents."""
    baseline = compiled_candidate(task, device)
    options = {"rounds": 9, "budget_seconds": 0.2, "opponents": task.opponents, **options}
    request = ComparisonRequest(baseline, [baseline], task.workloads[0].name, **options)
    return Bench(task, device.limits, device.index).compare(request)


def test_they_are_timed_beside_the_kernels(tmp_path: Path, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    times = OpenclDevice.times

    def steady(device: OpenclDevice, sequences: Sequence[Any]) -> list[float]:
        # Everything runs, but by a pretended clock, on which a function takes twice as long as a kernel.
        # The longer a launch takes, the fewer are a sample.
        times(device, sequences)
        return [len(one) * (2e-3 if isinstance(one[0], HostCall) else 1e-3) for one in sequences]

    monkeypatch.setattr(OpenclDevice, "times", steady)
    made = task(tmp_path, "right", "as_dict", "wrong", "short", "raises", "written", "unwritten")
    right, as_dict, wrong, short, raises, written, unwritten = compared(made, device).opponents
    for one in (right, as_dict, written):
        assert one.why == "" and one.comparison is not None and one.against[0] is not None
        # The kernel is the baseline: its time over the opponent's is one over the opponent's over the baseline's.
        assert one.comparison.ratio == pytest.approx(2) and one.against[0].ratio == pytest.approx(0.5)
    assert "it computes something else: out[" in wrong.why and wrong.comparison is None
    assert short.why == "its out has 16383 elements, not 16384"
    assert raises.why == "it raises RuntimeError: no"
    # The outputs are poisoned before the call that is looked at.
    assert "it computes something else: out[0]" in unwritten.why


def test_one_that_works_in_place_is_judged_after_one_call(tmp_path: Path, device: Any) -> None:
    made = task(tmp_path, "in_place")
    arguments = [
        one.model_copy(update={"role": "inout"}) if one.name == "y" else one
        for one in made.arguments
        if one.name != "out"
    ]
    made = made.model_copy(
        update={
            "arguments": tuple(arguments),
            "reference": "def scale_add(x, y, a, n):\n    return {'y': a * x + y}\n",
            "opponents": tuple(one.model_copy(update={"source": IN_PLACE}) for one in made.opponents),
        }
    )
    bench = Bench(made, device.limits, device.index)
    data = WorkloadData(bench.device, made, made.workloads[0], seed=0, max_bytes=1 << 28)
    found = prepare_opponent(made.opponents[0], data, bench.device.sample_seconds)
    assert isinstance(found, Prepared), found


def test_kernels_are_checked_and_timed_as_candidates(tmp_path: Path, device: Any) -> None:
    task(tmp_path)
    folder = tmp_path / "task"
    plain = (folder / "baseline.cl").read_text()
    for name, text in (("right", plain), ("wrong", plain.replace("a * x[i]", "x[i]"))):
        assert name == "right" or text != plain
        (folder / f"{name}.cl").write_text(text)
        made = append(
            folder / "task.toml",
            f'\n[[backends.opencl.opponents]]\nname = "{name}"\nlabel = "production"\nfast_math = "True"\n'
            f'source_file = "{name}.cl"\nlaunch = {{ grid = ["ceil_div(n, 64)"], block = [64] }}\n',
        )
    kernels = made.sources("opencl").opponents
    assert [one.template.fast_math for one in kernels] == ["True", "True"]
    rivals = [KernelRival("none", "production", CompileFailed("error: no", "error: no"))]
    rivals += [KernelRival(one.name, one.label, compiled_candidate(made, device, one.template)) for one in kernels]
    found = compared(made, device, opponents=rivals, energy_seconds=0.1)
    assert len(found.results) == 1 and isinstance(found.results[0], Comparison)
    assert len(found.energies) == 2
    none, right, wrong = found.opponents
    assert "error: no" in none.why and none.comparison is None
    assert right.why == "" and right.comparison is not None and len(right.against) == 1
    assert right.label == "production" and right.against[0] is not None
    assert "out[" in wrong.why and wrong.comparison is None


def test_a_framework_of_another_device_is_named(tmp_path: Path, device: Any) -> None:
    [one] = compared(task(tmp_path, "right", framework="cupy"), device).opponents
    assert one.why == "functions of cupy do not run on this device; functions of numpy, torch do"


def task_on_gpu(tmp_path: Path, framework: str) -> Task:
    """A plain CUDA kernel, and a function of the framework as its opponent."""
    made = task(tmp_path, "right", framework=framework)
    text = FUNCTIONS.replace("np.float32(a)", "a").replace("assert x.dtype == np.float32 and x.shape == (n,)", "")
    opponents = tuple(one.model_copy(update={"source": text}) for one in made.opponents)
    source = (
        'extern "C" __global__ void scale_add(const float* x, const float* y, float* out, float a, int n) {\n'
        "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n    if (i < n) out[i] = a * x[i] + y[i];\n}\n"
    )
    launch = LaunchGeometry(grid=("ceil_div(n, 256)",), block=("256",))
    template = Template(name="baseline", backend="cuda", source=source, entry=made.entry, launch=launch)
    sources = BackendSources(baseline=Baseline(template=template))
    return made.model_copy(update={"opponents": opponents, "backends": {"cuda": sources}})


@pytest.mark.gpu
@pytest.mark.parametrize("framework", ["cupy", "torch"])
def test_on_a_gpu_they_are_captured_as_graphs(tmp_path: Path, framework: str) -> None:
    """And launches take no longer after them, as they do in a process once several streams had work at a time."""
    gpu = probe_cuda().devices[0]
    pytest.importorskip(framework)
    device = open_device(gpu.limits, gpu.index)
    source = Specialised("cuda", "nothing", 'extern "C" __global__ void nothing() {}')
    nothing = BoundLaunch(device.load(open_compiler(gpu.limits).compile(source)), Geometry((1, 1, 1), (32, 1, 1)), ())
    sequence = device.sequence([nothing] * 1000)
    device.times([sequence])
    before = np.median(device.times([sequence] * 9))
    [one] = compared(task_on_gpu(tmp_path, framework), gpu, budget_seconds=0.5).opponents
    assert one.why == "" and one.comparison is not None
    # A call without its overhead on the host: far from the tens of microseconds of eager launches.
    assert one.comparison.ratio < 20 and np.isfinite(one.comparison.ratio)
    assert np.median(device.times([sequence] * 9)) == pytest.approx(before, rel=0.1)
