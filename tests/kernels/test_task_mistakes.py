"""What people write in a first task: accepted where it is clear, else one sentence that says how to fix it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.backends import open_compiler
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.source import specialise
from tunesmith.kernels.launch.contents import Contents, draw
from tunesmith.kernels.launch.reference import reference_results
from tunesmith.kernels.rewrite.signature import require_signature
from tunesmith.kernels.spec.task import Fill, Task
from tunesmith.kernels.spec.taskfile import library_tasks, load_task, read_task

TASK = """
name = "scale"
entry = "scale"
reference = "reference.py:scale"
bytes = "8 * m * n"
arguments = [
    { name = "x", role = "in", dtype = "float32", shape = ["m", "n"] },
    { name = "y", role = "out", dtype = "float32", shape = ["m", "n"] },
    { name = "a", role = "scalar", dtype = "float32", value = "0.1" },
    { name = "m", role = "scalar", dtype = "int32", value = "m" },
    { name = "n", role = "scalar", dtype = "int32", value = "n" },
]

[backends.cuda]
baseline = { source_file = "kernel.cu", launch = { grid = ["m"], block = [64] } }

[[workloads]]
sizes = { m = 6, n = 100 }
"""
BACKENDS, TOLERANCE = "[backends.cuda]", "[tolerance]\n{} = {{ rtol = 1e-3, atol = 0 }}\n"
KERNEL = """extern "C" __global__ void scale(const float* x, float* y, float a, int m, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = a * x[blockIdx.x * n + i];
}
"""
REFERENCE = "def scale(x, a, m, n):\n    return {'y': a * x}\n"


def write(folder: Path, task: str = TASK, kernel: str = KERNEL, reference: str = REFERENCE) -> Path:
    for name, text in (("task.toml", task), ("kernel.cu", kernel), ("reference.py", reference)):
        (folder / name).write_text(text)
    return folder / "task.toml"


def changed(folder: Path, old: str, new: str) -> Task:
    assert old in TASK
    return read_task(write(folder, TASK.replace(old, new, 1)))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('shape = ["m", "n"] },\n    { name = "y"', 'shape = ["m", 100] },\n    { name = "y"'),
        ('value = "0.1"', "value = 0.1"),
        ('grid = ["m"]', 'grid = "m"'),
        ("block = [64]", "block = 64"),
    ],
)
def test_bare_numbers_and_a_single_expression_mean_what_they_say(folder: Path, old: str, new: str) -> None:
    assert changed(folder, old, new).workloads == changed(folder, "", "").workloads


def test_a_type_that_a_workload_leaves_out_is_the_first_of_its_list(folder: Path) -> None:
    text = TASK.replace('name = "x", role = "in", dtype = "float32"', 'name = "x", role = "in", dtype = "T"')
    text = text.replace('name = "y", role = "out", dtype = "float32"', 'name = "y", role = "out", dtype = "U"')
    types = '[types]\nT = ["float16", "float32"]\nU = ["float32", "float64"]\n\n[backends.cuda]'
    further = '\n[[workloads]]\nsizes = { m = 6, n = 100 }\ntypes = { U = "float64" }\n'
    first, second = read_task(write(folder, text.replace("[backends.cuda]", types) + further)).workloads
    assert first.types == {"T": "float16", "U": "float32"}
    assert second.types == {"T": "float16", "U": "float64"} and second.name == "6x100-float64"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ('bytes = "8 * m * n"', 'bytes = "8 * m * n"\nrequires = ["n < m"]', "`requires` (n < m) does not "),
        ('bytes = "8 * m * n"', 'bytes = "8 * m * n"\nrequires = ["k < m"]', "key requires[1]: In the"),
        ('dtype = "float32", value', 'dtype = "fp32", value', "did you mean 'float32'?"),
        ('name = "a"', 'name = "in"', "reserved word of Python"),
        (BACKENDS, f"{TOLERANCE.format('float16')}{BACKENDS}", "no output has the type"),
        (BACKENDS, f"{TOLERANCE.format('x')}{BACKENDS}", "the dtype 'x' is not known"),
        ('grid = ["m"]', "grid = []", "key backends.cuda.baseline.launch.grid"),
        ('value = "0.1"', "value = true", "key arguments[a].value: give text"),
        ('shape = ["m", "n"] },', 'shape = ["m", "n"], fill = { low = 5 } },', "key arguments[x].fill: give `low` and"),
        ('shape = ["m", "n"] },', 'shape = ["m", "n"], fill = { low = 5, high = 1 } },', "lies above"),
    ],
)
def test_a_mistake_is_named_in_the_words_of_the_file(folder: Path, old: str, new: str, wanted: str) -> None:
    with pytest.raises(TunesmithError) as caught:
        changed(folder, old, new)
    assert wanted in str(caught.value) and "template" not in str(caught.value)


@pytest.mark.parametrize(
    ("reference", "wanted"),
    [
        ("def scale(x, a, m, n)\n    return 1\n", "it is not valid Python (line 1 of its file)"),
        ("def other(x):\n    return {}\n", "there is no function 'scale' in its file; it has other"),
        (
            "def scale(x, a, m):\n    return {}\n",
            "got an unexpected keyword argument 'n'; it is given every array that is read and",
        ),
        ("def scale(x, a, m, n, eps):\n    return {}\n", "scale: missing a required argument: 'eps'; it is given"),
    ],
)
def test_the_reference_is_read_with_the_task(folder: Path, reference: str, wanted: str) -> None:
    with pytest.raises(TunesmithError, match="key reference") as caught:
        read_task(write(folder, reference=reference))
    assert wanted in str(caught.value)


@pytest.mark.parametrize(
    "reference", ["def scale(**given):\n    return {}\n", "scale = lambda **given: {}\n", "from numpy import *\n"]
)
def test_other_ways_to_have_a_reference_are_left_to_its_call(folder: Path, reference: str) -> None:
    assert read_task(write(folder, reference=reference)).reference == reference


def test_the_reference_gets_scalars_as_the_kernel_does(folder: Path) -> None:
    task = read_task(write(folder))
    x = np.ones((6, 100))
    [y] = reference_results(task, task.workloads[0], {"x": x}).values()
    assert y[0, 0] == float(np.float32(0.1)) != 0.1


def test_an_output_has_a_tolerance_of_its_own(folder: Path) -> None:
    task = changed(folder, "[backends.cuda]", "[tolerance]\ny = { rtol = 0.25, atol = 0 }\n[backends.cuda]")
    assert task.tolerance_of("float32", "y").rtol == 0.25 and task.tolerance_of("float32", "other").rtol == 1e-5


def test_a_range_of_whole_numbers_has_both_ends() -> None:
    fill = Fill.model_validate({"low": 0, "high": 15})
    drawn = draw(Contents(seed=1), fill, (4000,), "int32", np.random.default_rng(1))
    assert set(drawn.tolist()) == set(range(16))
    assert fill.described == "uniform, 0 to 15"
    assert Fill.model_validate({"low": 0, "high": 123456789}).described == "uniform, 0 to 123456789"
    assert Fill.model_validate_json(fill.model_dump_json()) == fill


@pytest.mark.parametrize("name", ["__half", "half", "__nv_bfloat16", "__nv_fp8_e4m3"])
def test_a_literal_type_gets_its_header(folder: Path, name: str) -> None:
    pytest.importorskip("cuda.bindings")
    kernel = KERNEL.replace("const float* x", f"const {name}* x").replace("a * x[", "a * (float)x[")
    task = read_task(write(folder, kernel=kernel))
    source = specialise(task.sources("cuda").baseline.template, {}, {})
    assert isinstance(open_compiler(resolve_target("sm_90"), 0).compile(source), Artifact)


class TestSignature:
    @pytest.mark.parametrize("name", sorted(library_tasks()))
    def test_that_of_every_library_kernel_is_its_task(self, name: str) -> None:
        task = load_task(name)
        for sources in task.backends.values():
            assert require_signature(task, sources.baseline.template, "here") == ""

    @pytest.mark.parametrize(
        ("old", "new", "wanted"),
        [
            (", int n)", ")", "has 4 parameters (x, y, a, m), but the task has 5 arguments (x, y, a, m, n)"),
            ("float* y", "const float* y", "but the parameter is const"),
            ("float* y", "float y", "the task says an array, but the parameter is no pointer"),
            ("const float* x", "const float** x", "the parameter is a pointer to pointers: join the arrays into one"),
            ("int n", "const int& n", "the parameter is a reference: declare it by value, as `int n`"),
            (", int n)", ", int n = 3, int k = 4)", "has 6 parameters (x, y, a, m, n, k), but the task has 5"),
            ("float a", "double a", "the task says float32, the source `double`, which is float64"),
            ("void scale", "void other", "there is no kernel 'scale', which `entry` names; the source has other"),
        ],
    )
    def test_what_differs_is_named(self, folder: Path, old: str, new: str, wanted: str) -> None:
        task = read_task(write(folder, kernel=KERNEL.replace(old, new)))
        with pytest.raises(TunesmithError) as caught:
            require_signature(task, task.sources("cuda").baseline.template, "here")
        assert wanted in str(caught.value)

    def test_rows_of_a_fixed_length_are_an_array(self, folder: Path) -> None:
        kernel = KERNEL.replace("const float* x", "const float (*x)[100]").replace("x[blockIdx.x * n + i]", "x[0][i]")
        task = read_task(write(folder, kernel=kernel))
        assert require_signature(task, task.sources("cuda").baseline.template, "here") == ""

    def test_a_parameter_that_is_not_understood_is_said(self, folder: Path) -> None:
        task = read_task(write(folder, kernel=KERNEL.replace("int n)", "int n, ...)")))
        why = require_signature(task, task.sources("cuda").baseline.template, "here")
        assert why == "the signature was not compared, as it has `...`"

    def test_what_a_macro_makes_is_not_compared(self, folder: Path) -> None:
        task = read_task(write(folder, kernel="#define K void scale()\nMAKE(scale)\n"))
        assert "a macro makes the kernel" in require_signature(task, task.sources("cuda").baseline.template, "here")
