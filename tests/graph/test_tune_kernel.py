"""A kernel tuned from Python, without a file: the cell of the docs, the task that examples give, and mistakes, each of
which is a `TunesmithError` of one sentence and leaves nothing behind."""

import ast
import json
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tunesmith import tune_kernel
from tunesmith.graph import resume, tune
from tunesmith.graph.journal.events import Figures, Verdict, Winner, WorkloadRow
from tunesmith.graph.results.best import export_best
from tunesmith.graph.results.exports import export_run
from tunesmith.graph.results.runtime import Kernels
from tunesmith.graph.tune_kernel import TunedKernel, _by_name, _several, _text
from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.reader.examples import read_signature, task_from
from tunesmith.kernels.rewrite.template import with_rules

PAGE = Path(__file__).resolve().parents[2] / "docs" / "bring-your-kernel.md"
SOFTMAX = """__global__ void softmax(const float* x, float* y, int n) {
    __shared__ float part[32];
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = x[blockIdx.x * n + i] + part[0];
}"""
SAXPY = """__global__ void saxpy(float a, const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += a * x[i];
}"""
ODD = SAXPY.replace("i < n", "i * i < n")
TRANSPOSE = """__kernel void turn(__global const float* in, __global float* out, int rows, int cols) {
    int c = get_global_id(0), r = get_global_id(1);
    if (c < cols && r < rows) out[c * rows + r] = in[r * cols + c];
}"""
NOTHING = ("", "baseline", "numpy")


def zeros(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


def task(source: str, *examples: dict[str, Any], **more: Any) -> Any:
    return task_from(read_signature(source, None), source, NOTHING, examples, **more)  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_cell_of_the_docs_tunes_a_kernel(device: Any, ray_cluster: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    [cell] = re.findall(r"```python\n# A notebook cell\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert sum(bool(line.strip()) for line in cell.splitlines()) <= 12
    namespace: dict[str, Any] = {}
    exec(cell, namespace)
    tuned, x = namespace["tuned"], namespace["x"]
    assert tuned.result.valid and len(tuned.rows) == 2
    assert all(row.seconds > 0 and list(row.opponents) == ["NumPy (eager)"] for row in tuned.rows)
    assert np.allclose(tuned(x), namespace["reference"](x), rtol=1e-4, atol=1e-4)
    shown = repr(tuned)
    assert "the kernel as it came" in shown and "NumPy (eager)" in shown
    # Another shape, that nobody tuned.
    assert np.allclose(tuned(x[:77]), namespace["reference"](x[:77]), rtol=1e-4, atol=1e-4)
    with pytest.raises(TunesmithError, match="n is 9, but by the shapes of the arrays it is 10"):
        tuned(x[:10], n=9)


def test_the_cell_for_a_gpu_and_what_torch_compiled_are_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    (cell,) = re.findall(r"```python\n# A notebook cell on an NVIDIA GPU\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert sum(map(bool, map(str.strip, cell.splitlines()))) <= 12
    values = {ast.unparse(one.targets[0]): one.value for one in ast.parse(cell).body if isinstance(one, ast.Assign)}
    signature = read_signature(ast.literal_eval(values["source"]), None)
    assert signature.backend == "cuda" and (signature.read, signature.written) == (["x", "gate"], ["y"])
    assert ast.unparse(values["tuned"]).startswith("tunesmith.tune_kernel(source, gated, inputs, opponents=beside")
    signature = read_signature("__global__ void k(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x]; }", None)

    def plain(x: Any) -> Any:
        return 2 * x

    def compiled(x: Any) -> Any:
        raise AssertionError(x)

    compiled._torchdynamo_orig_callable = plain  # type: ignore[attr-defined]
    torch = SimpleNamespace(compile=lambda function: lambda x: -function(x))
    monkeypatch.setitem(sys.modules, "torch", torch)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "tunesmith", None)  # type: ignore[arg-type]
    for function, result in ((plain, 6), (compiled, -6)):
        namespace: dict[str, Any] = {}
        exec(_text(signature, function, "numpy"), namespace)
        assert namespace["reference"](x=3) == {"y": result}


class TestExamples:
    def test_sizes_are_those_that_the_indices_name(self) -> None:
        made = task(SOFTMAX, {"x": zeros(4, 64), "y": zeros(4, 64)}, {"x": zeros(3, 8), "y": zeros(3, 8)})
        assert [one.shape for one in made.arguments] == [("rows", "n"), ("rows", "n"), ()]
        assert [one.sizes for one in made.workloads] == [{"n": 64, "rows": 4}, {"n": 8, "rows": 3}]
        assert made.backends["cuda"].baseline.template.launch.grid == ("rows",)
        assert 'extern "C" __global__' in made.backends["cuda"].baseline.template.source
        # A number of elements is a product of dimensions.
        made = task(SAXPY, {"x": zeros(6, 7), "y": zeros(6, 7), "a": 2.0})
        assert [one.value for one in made.arguments] == ["2.0", None, None, "x_0 * x_1"]
        assert made.arguments[1].shape == ("x_0", "x_1") and made.workloads[0].sizes == {"x_0": 6, "x_1": 7}
        assert made.backends["cuda"].baseline.template.launch.grid == ("ceil_div((x_0 * x_1), 256)",)
        x = np.linspace(2, 4, 64, dtype=np.float32).reshape(8, 8)
        first, second, *_ = task(TRANSPOSE, {"in": x, "out": x}).arguments
        assert (first.shape, second.shape) == (("rows", "cols"), ("cols", "rows"))
        assert (first.fill.kind, first.fill.mean, first.fill.scale) == ("uniform", 3, 1)
        assert read_signature(SAXPY.replace("y[i] +=", "y[0] ="), None).written == ["y"]

    def test_inputs_by_position_and_by_name(self) -> None:
        signature, x = read_signature(SAXPY, None), zeros(4)
        assert [len(one) for one in _several(signature, [x, x])] == [2]
        assert _several(signature, [(x, x), (x, x)]) == [(x, x), (x, x)]
        assert list(_by_name(signature, (x, x), {"a": 1.0})) == ["a", "x", "y"]
        assert list(_by_name(signature, (2.0, x, x, 4), {})) == ["a", "x", "y", "n"]
        with pytest.raises(TunesmithError, match="an example has 3 values"):
            _by_name(signature, (x, x, x), {})
        # A kernel that reads one array: each is an example.
        assert len(_several(read_signature(SOFTMAX, None), [x, x])) == 2
        values = {"x": zeros(4), "y": zeros(4), "a": 1.0, "n": 4}
        for source, example, wanted in (
            (SAXPY.replace("y[i] += a", "use(y)"), {}, "undeclared names: use"),
            (SAXPY.replace("y[i] += a * x[i]", "if (n < 0) y[i] = a"), {}, "no run of the kernel touched"),
            (ODD, values, "give the launch, such as grid="),
        ):
            with pytest.raises(TunesmithError, match=wanted):
                task(source, example)


UNGUARDED = """__kernel void twice(__global const float* x, __global float* y) {
    int i = get_global_id(0);
    y[i] = 2.0f * x[i] + 1.0f;
}"""


@pytest.fixture(scope="module")
def tuned(device: Any, tmp_path_factory: pytest.TempPathFactory) -> TunedKernel:
    folder, signature = tmp_path_factory.mktemp("run"), read_signature(UNGUARDED, None)
    example = {"x": zeros(65536), "y": zeros(65536)}
    made = task_from(signature, UNGUARDED, NOTHING, [example], grid=["x_0 // 16"], block=[16])
    made, _ = with_rules(made, "opencl")
    [template], [workload] = made.sources("opencl").templates, made.workloads
    context: Any = SimpleNamespace(task=made, device=device, tuned=made.workloads, held_out=())
    context.template, context.sources = lambda _: template, made.sources("opencl")
    context.log = SimpleNamespace(events=lambda *_: (), examinations=dict, evaluations_of=lambda *_: ())
    context.settings = SimpleNamespace(allow_unexamined=False, allow_unexecuted=False)
    general = Winner(template=template.id, config=template.default_config | {"BLOCK": 512})
    figures = Figures(seconds=1e-6, ratio=0.5, low=0.4, high=0.6, verdict="faster")
    row = WorkloadRow(workload=workload.name, sizes=workload.sizes, types={}, floor_seconds=None, baseline_seconds=2e-6)
    verdict = Verdict(general=general, tuned=(row.model_copy(update={"general": figures}),), sentence="Faster.")
    export_best(context, folder / "best", verdict)
    # The rule is fitted from a run's comparisons, of which there are none here.
    about = json.loads((folder / "best" / "dispatch.json").read_text())
    (folder / "best" / "dispatch.json").write_text(json.dumps(about | {"rule": {"folder": "general"}}))
    failed = SimpleNamespace(name="bad", label="eager", seconds=None, why="wrong result in y")
    rows = [SimpleNamespace(general=None, best=None, baseline_seconds=None, opponents=(failed,))] * 2
    summary = SimpleNamespace(device=device, sentence="Faster.", tuned=rows)
    return TunedKernel(SimpleNamespace(summary=summary, folder=folder), made, signature)  # type: ignore[arg-type]


class TestCalls:
    """Of a kernel without a guard, whose template admits only sizes that its blocks divide."""

    @pytest.mark.parametrize(("elements", "folder"), [(65536, "general"), (1024, "general"), (4112, "baseline")])
    def test_a_shape_has_the_kernel_that_can_be_launched(self, tuned: TunedKernel, elements: int, folder: str) -> None:
        x = np.arange(elements, dtype=np.float32)
        for found in (tuned(x), tuned(x=np.repeat(x, 2)[::2])):
            assert np.array_equal(found, 2 * x + 1) and type(found) is np.ndarray
        # Of 4112 elements a launch by blocks of 512 would cover 4608.
        assert Kernels(tuned.result.folder / "best").choose((), (elements,)).folder == folder

    def test_arrays_that_do_not_fit_are_refused(self, tuned: TunedKernel, tmp_path: Path) -> None:
        for x, words in (
            (zeros(8), "twice: no kernel can be launched for x_0 = 8."),
            (zeros(16, 16), "twice: x has 1 dimension (x_0), not 2."),
            (np.zeros(16), "twice: x must be of the type float32, not float64."),
        ):
            with pytest.raises(TunesmithError) as caught:
                tuned(x)
            assert str(caught.value) == words
        assert str(tuned) == "Faster.\nbad (eager) was not timed: wrong result in y"
        result: Any = SimpleNamespace(summary=tuned.result.summary, folder=tmp_path)
        with pytest.raises(TunesmithError, match=r"has no kernel to call: Faster\.$"):
            TunedKernel(result, tuned.task, tuned._signature)(zeros(1024))

    def test_outputs_are_of_the_arrays_framework(self, tuned: TunedKernel, monkeypatch: pytest.MonkeyPatch) -> None:
        class Array(np.ndarray[Any, Any]):
            """An array of CuPy, as far as it matters here."""

        Array.__module__ = "cupy"
        monkeypatch.setattr(Array, "get", lambda self: np.asarray(self), raising=False)
        cupy = SimpleNamespace(asarray=lambda array: array.view(Array))
        monkeypatch.setitem(sys.modules, "cupy", cupy)  # type: ignore[arg-type]
        x = zeros(1024).view(Array)
        assert isinstance(tuned(x), Array) and isinstance(tuned(x=x), Array)


TWICE = """__kernel void twice(__global const float* x, __global float* y, int n) {
    int i = get_global_id(0);
    if (i < n) y[i] = 2.0f * x[i];
}"""
SCALED = """__kernel void saxpy(__global const float* x, __global float* y, float a, int n) {
    int i = get_global_id(0);
    if (i < n) y[i] = a * x[i];
}"""
X = np.ones(64, np.float32)


def broken(x: Any) -> Any:
    raise KeyError("inside")


def holds_a_lock() -> Callable[[Any], Any]:
    lock = threading.Lock()
    return lambda x: 2 * x if lock else x


def given(source: Any = TWICE, reference: Any = lambda x: 2 * x, inputs: Any = (X,), **more: Any) -> Any:
    return lambda: tune_kernel(source, reference, inputs, **more)


def tuning(task: Any = "silu_and_mul", **settings: Any) -> Any:
    return lambda: tune(task, **settings)


def resumed(run: Any = "empty", **more: Any) -> Any:
    return lambda: resume(run, **more)


def exported(run: Any = "empty", form: Any = "t4", *out: Any) -> Any:
    return lambda: export_run(run, form, *out)


MISTAKES: list[tuple[Callable[[], Any], str]] = [
    (given(inputs=[[1.0, 2.0]]), "inputs: x is 1.0; give an array"),
    (given(inputs=[]), "inputs: give a list of at least one example of the kernel's inputs, not []"),
    (given(inputs="x"), "give each example as an array"),
    (given(inputs=[{1: X}]), "inputs: twice reads no 1; it reads x, n"),
    (given(inputs=[{"x": X, "n": "many"}]), "inputs: n is 'many'; give a number"),
    (given(inputs=[{"x": X, "n": -3}]), "n is -3; give a whole number of at least 1"),
    (given(inputs=[X.astype(np.float64)]), "x is an array of float64, but the kernel takes float32"),
    (given(inputs=[X, X.reshape(8, 8)]), "x has 1 dimensions in one example and other numbers in others"),
    (given(SCALED, lambda x: x, [X]), "the scalar a has no value"),
    (given(reference=3), "reference: give a function"),
    (given(reference="base"), 'reference: give a function of the arrays that the kernel reads, or "baseline"'),
    (given(inputs=[{"x": np.zeros((2, 0), np.float32)}]), "inputs: x is array([], shape=(2, 0), dtype=float32); give"),
    (given(reference=lambda x, q: x), "reference: called with x it raises TypeError: <lambda>() missing 1"),
    (given(reference=lambda x, n: x), "'n'; the examples have no n: give them as a dict, by name."),
    (given(reference=lambda x: None), "reference: its y is None; return an array"),
    (given(reference=lambda x: (x, x)), "reference: it gives 2 results, but twice writes y"),
    (given(reference=lambda x: {"z": x}), "reference: it gives z, but twice writes y"),
    (given(reference=holds_a_lock()), "reference: the function cannot be sent to another process"),
    (given(source=Path("kernel.cl")), "source: give the kernel's text"),
    (given(entry="thrice"), "there is no kernel 'thrice'; choose entry from twice"),
    (given(grid=4), "grid: give a list such as"),
    (given(grid=["q"]), "grid: q is not a size of the kernel; its sizes are n"),
    (given(tolerance=1e-3), "tolerance: give pairs of rtol and atol"),
    (given(tolerance={"y": (-1, 0)}), "tolerance: rtol: give a number of at least 0, not -1"),
    (given(tolerance={"z": (1e-3, 0)}), "tolerance: the dtype 'z' is not known"),
    (given(fills={"z": "sorted"}), "fills: give a dict by names of x"),
    (given(fills={"x": "offsets"}), "fills: fill: a fill of the kind offsets has no further key but `high`"),
    (given(fills={"x": {"low": 0, "high": "m"}}), "argument x, key fill: In the expression `m`, column 1"),
    (given(opponents=[broken]), "opponents: give a dict of functions by their names"),
    (given(opponents={"": broken}), "opponents: name: give a text of at least 1 characters"),
    (given(task="twice"), "task: the kernel and the examples are the task here"),
    (tuning(evals=3), "--evals: there is no such option; did you mean --evaluations?"),
    (tuning(zzz=3), "--zzz: there is no such option; `tunesmith tune --help` lists them."),
    (tuning(objective="edp", dispatch_shapes=4), "--dispatch-shapes: a dispatch rule chooses by time"),
    (tuning(None), "There is no task 'None'"),
    (tuning(models="gpt"), "models: give language models of your own, not 'gpt'"),
    (tuning(run_dir=""), "--run-dir: the name is empty"),
    (tuning(run_dir="a\0b"), "--run-dir: 'a\\x00b' cannot be used"),
    (tuning(run_dir="a" * 300), "File name too long"),
    (resumed(None), "run_dir: give the path of a folder, not None"),
    (resumed(), "empty is not the folder of a run"),
    (exported(None), "run: give the path of a folder, not None"),
    (exported(form=None), "--as: there is no form 'None'"),
    (exported("empty", "t4", "file"), "--out: file is a file; name a new or an empty folder"),
    (exported("empty", "t4", 3), "--out: give the path of a folder, not 3"),
]


@pytest.mark.parametrize(("call", "wanted"), MISTAKES, ids=[wanted for _, wanted in MISTAKES])
def test_a_mistake_is_told_in_a_sentence(call: Any, wanted: str, device: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(TunesmithError) as caught:
        call()
    assert wanted in str(caught.value) and "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["empty", "file"]
    assert (tmp_path / "file").read_text() == "mine"
