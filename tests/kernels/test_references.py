"""Functions as people have them: references, which may be PyTorch's or the original kernel itself, and opponents, which
are timed on a workload's buffers beside baseline and candidates."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiling import compiled_candidate, write_task

from tunesmith.actors.judging import judge
from tunesmith.actors.judging.task_check import examine_reference
from tunesmith.hw.probe import probe_cuda
from tunesmith.kernels.backends import BoundLaunch, open_compiler, open_device
from tunesmith.kernels.backends.opencl import OpenclDevice
from tunesmith.kernels.build.artifact import Candidate
from tunesmith.kernels.build.source import Specialised
from tunesmith.kernels.check.compare import measure_set
from tunesmith.kernels.check.plan import Step, plan
from tunesmith.kernels.check.verify import Passed, Skipped, measure_baseline, prepare_step, verify
from tunesmith.kernels.launch.buffers import ROUNDING_FACTOR, WorkloadData
from tunesmith.kernels.launch.contents import Contents
from tunesmith.kernels.launch.reference import reference_results, runnable_reference
from tunesmith.kernels.measure.bench import Bench, ComparisonRequest, WorkloadComparison
from tunesmith.kernels.measure.opponents import Prepared, prepare_opponent
from tunesmith.kernels.measure.timing import Comparison
from tunesmith.kernels.outcome import CompileFailed
from tunesmith.kernels.spec.task import ORIGINAL_IS_REFERENCE, BackendSources, Baseline, Geometry, Task
from tunesmith.kernels.spec.taskfile import read_task
from tunesmith.kernels.spec.template import LaunchGeometry, Template

SCALE_ADD = Path(__file__).resolve().parents[1] / "data" / "scale_add"
OWN = 'reference = "reference.py:scale_add"'


def scale_add(folder: Path, reference: str, keys: str = OWN) -> Task:
    """The test task with another reference."""
    shutil.copytree(SCALE_ADD, folder / "task")
    path = folder / "task" / "task.toml"
    path.write_text(path.read_text().replace(OWN, keys))
    (folder / "task" / "reference.py").write_text(reference)
    return read_task(path)


class TestTorch:
    @pytest.mark.parametrize("returned", ['{"out": torch.add(a * x, y)}', "a * x + y", "(a * x + y,)"])
    def test_it_computes_in_float64_on_the_host(self, tmp_path: Path, returned: str) -> None:
        torch = pytest.importorskip("torch")
        text = (
            "import torch\n\ndef scale_add(x, y, a, n):\n"
            f"    assert x.dtype == torch.float64 and x.device.type == 'cpu'\n    return {returned}\n"
        )
        task = scale_add(tmp_path, text, f'{OWN}\nframework = "torch"')
        x, y = np.arange(16384.0), np.ones(16384)
        results = reference_results(task, task.workloads[0], {"x": x, "y": y})
        assert isinstance(results["out"], np.ndarray) and np.array_equal(results["out"], 2 * x + y)
        examine_reference(task, task.workloads[0], 0, twice=True)
        assert torch.get_default_dtype() == torch.float32
        # The file that a run leaves takes NumPy's arrays.
        namespace: dict[str, Any] = {}
        exec(runnable_reference(task), namespace)
        assert namespace["scale_add"](x=np.ones(2), y=np.ones(2), a=3.0, n=2)["out"].tolist() == [4.0, 4.0]


def test_references_say_how_well_results_are_determined_or_are_the_original(tmp_path: Path, opened: Any) -> None:
    """Of 2 * x + y, however close the two are to each other: what a fused multiply-add differs in depends on them."""
    task = scale_add(tmp_path, (SCALE_ADD / "reference.py").read_text())
    data = WorkloadData(opened, task, task.workloads[0], seed=3, max_bytes=1 << 24)
    [x, y] = [opened.array(data.view(place, 0), "float32").astype(np.float64) for place in data.places[:2]]
    found = data.slack(0, lenient=True)["out"] / (ROUNDING_FACTOR * (2.0**-23 * (abs(2 * x) + abs(y))))
    # An input changes by up to 1.5 units, and is rounded to float32 like the sum, by up to half of one each.
    assert np.mean(found < 0.05) < 1e-3 and found.max() <= 2.5
    # A reference may insist on float64.
    text = (SCALE_ADD / "reference.py").read_text().replace("return", "assert x.dtype == float\n    return")
    strict = scale_add(tmp_path / "strict", text)
    assert (
        WorkloadData(opened, strict, strict.workloads[0], seed=3, max_bytes=1 << 24).slack(0, lenient=True)["out"].any()
    )
    # The place of the largest of a row is determined, also where several are.
    task = read_task(SCALE_ADD.parents[1] / "candidates" / "tasks" / "row_argmax" / "task.toml")
    data = WorkloadData(opened, task, task.workloads[0], seed=3, max_bytes=1 << 24, contents=Contents("ties", 3))
    assert not data.slack(0, lenient=True)["place"].any()
    body = "return dict.fromkeys(('x', 'y', 'out'), np.ones(given['n']))"
    task = scale_add(tmp_path / "written", f"import numpy as np\n\ndef scale_add(**given):\n    {body}\n")
    arguments = tuple(one.model_copy(update={"role": "out"}) if one.role == "in" else one for one in task.arguments)
    task = task.model_copy(update={"arguments": arguments})
    for seed in range(4):
        assert len(WorkloadData(opened, task, task.workloads[0], seed=seed, max_bytes=1 << 24).variants) == 2
    task = scale_add(tmp_path / "original", "", 'reference = "baseline"')
    data = WorkloadData(opened, task, task.workloads[1], seed=3, max_bytes=1 << 24)
    [x, y] = [opened.array(data.view(place, 0), "float32") for place in data.places[:2]]
    assert np.array_equal(data.expected_of(0)["out"], (np.float32(2) * x + y).astype(np.float64))
    assert task.original_is_reference and task.caveats == (ORIGINAL_IS_REFERENCE,)
    assert "does not prove" in ORIGINAL_IS_REFERENCE
    with pytest.raises(SystemExit, match="nothing on the host to compare with"):
        exec(runnable_reference(task) + "\nbaseline(x=1)\n", {})


@pytest.mark.usefixtures("without_sanitizer")
@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_the_original_as_the_reference(tmp_path: Path, device: Any, here: Any, monkeypatch: Any, every: int) -> None:
    def some(*given: Any, **named: Any) -> list[Step]:
        """In the fast suite every eighth of the hundreds of made-up steps: of each kind of contents some."""
        return [one for at, one in enumerate(plan(*given, **named)) if not one.derived or at % every == 0]

    monkeypatch.setattr(judge, "plan", some)
    scale_add(tmp_path, "", 'reference = "baseline"')
    done = here("check", tmp_path / "task", "--source", tmp_path / "task" / "baseline.cl", "--backend", "opencl")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("accepted: ") and ORIGINAL_IS_REFERENCE in done.stdout


ROW_SUM = """
#define ELEMENT(at) x[get_global_id(0) * (size_t)n + (at)]
__kernel void run(__global const float* x, __global float* out, int n) {
    float sum = 0.0f;
    LOOP
    out[get_global_id(0)] = sum;
}
"""
LOOPS = {
    "forwards": "for (int i = 0; i < n; ++i) sum += ELEMENT(i);",
    "backwards": "for (int i = n - 1; i >= 0; --i) sum += ELEMENT(i);",
    "without the last": "for (int i = 0; i + 1 < n; ++i) sum += ELEMENT(i);",
}


def changed(task: Task, device: Any, source: str) -> Candidate:
    """The baseline with another source."""
    template = task.sources("opencl").baseline.template
    return compiled_candidate(task, device, template.model_copy(update={"source": source}))


def test_a_sum_in_another_order_agrees_with_the_original(tmp_path: Path, device: Any, opened: Any) -> None:
    """With the kernel that adds forwards as the reference; a sum that leaves something out does not agree."""
    arguments = 'x in float32 rows n | kind = "normal", scale = 1.0; out out float32 rows; n scalar int32 n'
    source, launch = ROW_SUM.replace("LOOP", LOOPS["forwards"]), 'grid = ["rows"], block = [1]'
    task = write_task(tmp_path, arguments, "rows = 64, n = 4096", source=source, reference="", launch=launch)
    data = WorkloadData(opened, task, task.workloads[0], seed=1, max_bytes=1 << 28)
    for loop, agrees in (("backwards", True), ("without the last", False)):
        launches = data.bind(changed(task, device, ROW_SUM.replace("LOOP", LOOPS[loop])))
        assert isinstance(launches, list), launches
        opened.launch(launches[0])
        opened.synchronize()
        found = measure_set(data, 0)
        assert isinstance(found, dict) if agrees else found.reason == "mismatch", found


QUANTISED = """
__kernel void run(__global const float* x, __global char* out, float factor, int n) {
    for (int i = get_global_id(0); i < n; i += get_global_size(0)) out[i] = STORED;
}
"""


def test_a_result_that_its_type_cannot_hold_is_not_asked_for(tmp_path: Path, device: Any, opened: Any) -> None:
    """One kernel wraps around, another stores the nearest: both are right where the result fits."""
    task = write_task(
        tmp_path,
        'x in float32 n | kind = "uniform", scale = 1.0; out out int8 n; factor scalar float32 100; n scalar int32 n',
        "n = 500",
        source=QUANTISED.replace("STORED", "(char)(int)rint(x[i] * factor)"),
        reference="return {'out': inputs['x'] * inputs['factor']}",
        launch='grid = ["4"], block = [16]',
        tables="[tolerance]\nint8 = { rtol = 0, atol = 0.51 }",
    )
    baseline = compiled_candidate(task, device)
    nearest = changed(task, device, QUANTISED.replace("STORED", "convert_char_sat_rte(x[i] * factor)"))
    for factor, judged in ((100.0, True), (127.0, True), (100000.0, False)):
        step = Step(task.workloads[0], Contents("task", 0, scalars=(("factor", factor),)), derived=True)
        data = prepare_step(opened, task, step, max_bytes=1 << 24)
        assert isinstance(data, WorkloadData)
        plain = measure_baseline(baseline, step, data)
        found = plain if isinstance(plain, Skipped) else verify(nearest, plain, step, data)
        assert isinstance(found, Passed if judged else Skipped), found
        assert judged or "which int8 cannot hold" in found.why


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
    options = {"rounds": 9, "budget_seconds": 0.2, "opponents": [(one, None) for one in task.opponents], **options}
    request = ComparisonRequest(baseline, [baseline], task.workloads[0].name, **options)
    return Bench(task, device.limits, device.index).compare(request)


def test_they_are_timed_where_their_framework_is(tmp_path: Path, device: Any, monkeypatch: Any) -> None:
    times = OpenclDevice.times

    def steady(device: OpenclDevice, sequences: Sequence[Any]) -> list[float]:
        # Everything runs, but by a pretended clock, on which a function takes twice as long as a kernel.
        # The longer a launch takes, the fewer are a sample.
        times(device, sequences)
        return [len(one) * (2e-3 if callable(one[0]) else 1e-3) for one in sequences]

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
    [one] = compared(task(tmp_path / "cupy", "right", framework="cupy"), device).opponents
    assert one.why == "functions of cupy do not run on this device; functions of numpy, torch do"


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
    rivals: list[Any] = [(kernels[0], CompileFailed("error: no", "error: no"))]
    rivals += [(one, compiled_candidate(made, device, one.template)) for one in kernels]
    found = compared(made, device, opponents=rivals, energy_seconds=0.1)
    assert len(found.results) == 1 and isinstance(found.results[0], Comparison) and len(found.energies) == 2
    none, right, wrong = found.opponents
    assert "error: no" in none.why and none.comparison is None
    assert right.why == "" and right.comparison is not None and len(right.against) == 1
    assert right.label == "production" and right.against[0] is not None
    assert "out[" in wrong.why and wrong.comparison is None


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
