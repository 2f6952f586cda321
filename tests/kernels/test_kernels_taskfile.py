"""Reading tasks, also tuning problems in the format T1: what a good one becomes, and one sentence with file, key and
remedy for every mistake. The language of their expressions: its meaning on scalars and on arrays, and the texts that it
refuses."""

import json
import math
import pickle
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiling import edit
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import expressions

from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.source import specialise
from tunesmith.kernels.launch.contents import draw
from tunesmith.kernels.launch.reference import expected_results, reference_results
from tunesmith.kernels.reader.signature import require_signature
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.expression import MAX_DEPTH, MAX_INTEGER, ExpressionError, parse
from tunesmith.kernels.spec.foreign import read_t1
from tunesmith.kernels.spec.task import Fill, Task, TaskError, geometry
from tunesmith.kernels.spec.taskfile import library_tasks, load_task, parse_config, read_task
from tunesmith.kernels.spec.template import config_key

SCALE = Path(__file__).with_name("sources") / "scale"
"""The task of which mistakes are made here."""
KERNEL = (SCALE / "kernel.cu").read_text()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(SCALE, tmp_path, dirs_exist_ok=True)


def complaint(path: Path) -> str:
    with pytest.raises(TunesmithError) as caught:
        read_task(path)
    message = str(caught.value)
    assert message.endswith((".", "?")) and not message.endswith(".."), message
    assert "\n" not in message and len(message) < 700, message
    assert "pydantic" not in message and "Traceback" not in message
    return message


def test_a_task_in_full(folder: Path) -> None:
    task = read_task(folder / "task.toml")
    tuned, held_out = task.workloads
    assert (tuned.name, tuned.types, tuned.held_out) == ("1024", {"T": "float32"}, False)
    assert (held_out.name, held_out.types, held_out.held_out) == ("1000-float16", {"T": "float16"}, True)
    assert task.workloads_for("gpu", held_out=False) == (tuned,)
    assert task.workloads_for("cpu", held_out=True) == (held_out,)
    assert (task.bytes_of(tuned), task.bytes_of(held_out), task.flops_of(held_out)) == (8192, 4000, 1000)
    x, _, a, n = task.arguments
    assert (task.dtype_of(x, held_out), task.shape_of(x, held_out)) == ("float16", (1000,))
    assert (task.scalar_of(a, tuned), task.scalar_of(n, tuned)) == (0.5, 1024)
    assert [argument.name for argument in task.outputs] == ["y"]
    assert task.tolerance_of("float16").rtol == 1e-3 and task.tolerance_of("float32").rtol == 1e-5
    assert task.tolerance_of("int32").atol == 0
    [template] = task.sources("cuda").templates
    assert (template.name, template.entry, template.backend) == ("template", "scale", "cuda")
    assert template.default_config == {"BLOCK": 64, "VEC": 2}
    assert template.launch.block == ("BLOCK",) and template.constraints[0].expression == "BLOCK * VEC <= 256"
    assert template.source == KERNEL and task.sources("cuda").baseline.label == "plain"
    assert task.reference == (SCALE / "reference.py").read_text()
    again = Task.model_validate(json.loads(json.dumps(task.model_dump(mode="json"))))
    assert again == task and math.isinf(again.arguments[0].fill.special[0].value) and load_task(str(folder)) == task
    assert read_task(folder / "task.toml").nan == "propagates"
    edit(folder, "task.toml", "bytes = ", 'nan = "any"\nbytes = ')
    edit(folder, "task.toml", "[tolerance]", "[tolerance]\ny = { rtol = 0.25, atol = 0 }")
    task = read_task(folder / "task.toml")
    assert task.nan == "any"
    assert task.tolerance_of("float32", "y").rtol == 0.25 and task.tolerance_of("float32", "other").rtol == 1e-5


OPPONENT, FILE = 'name = "one"\nlabel = "eager"\n', 'source_file = "kernel.cu"\n'
FILL = "fill = { special = [{ value = inf, fraction = 0.1 }] }"
X = f"""arguments = [
    {{ name = "x", role = "in", dtype = "T", shape = ["n"], {FILL} }},"""
MISTAKES = [
    # file, old, new, part of the sentence
    ("task.toml", 'name = "scale"', 'name = "scale', "task.toml is not valid TOML: "),
    ("task.toml", 'shape = ["n"] },', 'shape = ["rows"] },', "argument y, key shape: In the expression `rows`,"),
    ("template.toml", 'block = ["BLOCK"]', 'block = ["BLOCK_X"]', "key launch.block, x: In the expression `BLOCK_X`"),
    ("template.toml", "[launch]", 'max_registers = "n"\n[launch]', "key max_registers: In the expression `n`, column"),
    ("task.toml", "n = 1024", "n = 10.5", "key workloads[10.5].sizes.n: give a whole number, not 10.5"),
    ("task.toml", 'shape = ["n"] },', 'shape = ["n - 1024"] },', "workload 1024: the argument y has the shape (0,);"),
    ("task.toml", 'shape = ["n"] },', 'shape = ["n / 3"] },', "workload 1024, argument y: The expression `n / 3`"),
    ("task.toml", 'types = { T = "float16" }', 'types = { T = "bfloat16" }', "workload 1000-bfloat16: the dtype"),
    ("task.toml", 'T = ["float32", "float16"]', "T = []", "types.T lists no dtype"),
    ("task.toml", "[types]\n", "[types]\nfloat32 = ['float32']\n", "float32 is also a dtype or a size"),
    ("task.toml", '"reference.py:scale"', '"reference.py"', "key reference: give the function as 'FILE.py:FUNCTION',"),
    ("task.toml", '"template.toml"', '"templates.toml"', "key backends.cuda.templates: "),
    ("template.toml", 'source_file = "kernel.cu"', "", "key source_file: it is missing; name the file of the"),
    ("template.toml", 'source_file = "kernel.cu"', 'source = "a\\u0000b"', "the source holds a NUL character"),
    ("template.toml", 'u"', 'u"\nbackend = "opencl"', "it is for 'opencl', but the"),
    ("template.toml", 'u"', "u\"\nname = 'a\"b'", "key name: use 1 to 80 characters,"),
    ("task.toml", '{ name = "a", role', '{ name = "x", role', "the argument x is listed twice"),
    ("template.toml", 'name = "VEC"', 'name = "BLOCK"', "the parameter BLOCK is listed twice"),
    ("template.toml", "values = [1, 2]", 'values = [2, "a\\nb"]', "does not fit on one line"),
    ("template.toml", 'block = ["BLOCK"]', 'blocks = ["BLOCK"]', "key launch: unknown key 'blocks'; did you mean"),
    ("task.toml", "sizes = { n = 1024 }", "sizes = { n = 1024 }\nheld_out = true", "every workload is held out;"),
    ("task.toml", ', value = "0.5"', "", "key arguments[a]: the scalar a needs `value`"),
    ("task.toml", 't", dtype = "T", shape = ["n"]', 't", dtype = "T"', "key arguments[y]: the array y needs"),
    ("task.toml", 'role = "out"', 'role = "in"', "no argument has the role out or inout, so there is nothing to"),
    ("task.toml", 'bytes = "2 * n * sizeof(T)"', 'bytes = "n - 1024"', "bytes must be positive"),
    ("task.toml", 'dtype = "int32", value = "n"', 'dtype = "int32", value = "n / 3"', "int32 holds whole numbers"),
    ("task.toml", "sizes = { n = 1000 }", "sizes = { m = 1000 }", "it has the sizes m, but the first workload has n;"),
    ("task.toml", "[backends.cuda]", "[backends.metal]", "key backends.metal: choose 'cuda', 'triton' or 'opencl'"),
    ("task.toml", "baseline = {", "base = {", "key backends.cuda: unknown key 'base'; did you mean 'baseline'?"),
    ("task.toml", '"ceil_div(n, 256)"', '"n / 256"', "on the workload 1000-float16; it must be a whole number"),
    ("task.toml", "rtol = 1e-3", "rtol = 1.0", "key tolerance.float16: it accepts a result of zeros"),
    ("task.toml", 'name = "x", role', 'name = "lambda", role', "argument lambda: 'lambda' is a reserved word of"),
    ("template.toml", 'name = "VEC", values', 'name = "for", values', "parameter for: 'for' is a reserved word"),
    ("task.toml", '["template.toml"]', '"template.toml"', "key backends.cuda.templates: give a list, not"),
    ("task.toml", 'flops = "n"', 'flops = "n"\nrequires = ["n < 10"]', "`requires` (n < 10) does not hold"),
    ("task.toml", "[tolerance]", "[tolerance]\nfloat64 = { rtol = 1e-3, atol = 0 }", "no output has the type"),
    ("task.toml", '["ceil_div(n, 256)"]', "[]", "key backends.cuda.baseline.launch.grid: list at least 1, not []."),
    ("task.toml", FILL, "fill = { low = 5 }", "key arguments[x].fill: give `low` and `high`"),
    ("task.toml", FILL, "fill = { low = 5, high = 1 }", "lies above"),
    ("task.toml", FILL, 'fill = { low = 0, high = "m - 1" }', "argument x, key fill: In the expression `m - 1`, col"),
    ("task.toml", FILL, 'fill = { low = "n", high = "n - 1" }', "the low end `n` lies above `n - 1`: correct one of"),
    ("task.toml", FILL, 'fill = { kind = "permutation", low = 1 }', "the kind permutation has no further key."),
    ("task.toml", FILL, 'fill = "offsets"', 'has no further key but `high`, its last, such as high = "nnz".'),
    ("task.toml", FILL, 'fill = "permutation"', "argument x: the fill `permutation` is of whole numbers: use int32"),
    ("task.toml", "sizes = { n = 1000 }", "sizes = { n = 0 }", "other scalars have a `value` in `arguments`"),
    ("task.toml", "[types]", f"[[opponents]]\n{OPPONENT}[types]", "key opponents[one].call: give the function as"),
    ("task.toml", "[[wor", f"[[backends.cuda.opponents]]\n{OPPONENT}{FILE}[[wor", "opponents[one].launch: it is miss"),
    ("task.toml", "bytes = ", 'framework = "jax"\nbytes = ', "key framework: choose 'numpy' or 'torch'"),
    ("task.toml", '"reference.py:scale"', '"baseline"\nframework = "torch"', "key framework: the original kernel is"),
    ("task.toml", "bytes = ", 'nan = "some"\nbytes = ', "key nan: choose 'propagates' or 'any', not 'some'"),
    ("task.toml", X, 'nan = "any"\n' + X.replace("inf", "nan"), "key nan: with 'any' a NaN in the fill of x leaves"),
    ("reference.py", "n):", "n)", "key reference: it is not valid Python (line 1 of its file)"),
    ("reference.py", "def scale", "def other", "key reference: there is no function 'scale' in its file; it has other"),
]


@pytest.mark.parametrize(
    ("file", "old", "new", "wanted"), MISTAKES, ids=[f"{m[2][:30]}-{i}" for i, m in enumerate(MISTAKES)]
)
def test_one_sentence_for_a_mistake(folder: Path, file: str, old: str, new: str, wanted: str) -> None:
    edit(folder, file, old, new)
    message = complaint(folder / "task.toml")
    assert wanted in message, message
    assert file in message or "task.toml" in message, message


def test_a_byte_order_mark_is_no_part_of_a_file_and_numbers_may_be_bare(folder: Path) -> None:
    plain = read_task(folder / "task.toml")
    for file in folder.iterdir():
        file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert read_task(folder / "task.toml") == plain
    plain, grid = read_task(folder / "task.toml"), '["ceil_div(n, 256)"]'
    for old, new in (('value = "0.5"', "value = 0.5"), (grid, grid[1:-1]), ("[256]", '["256"]')):
        edit(folder, "task.toml", old, new)
        assert read_task(folder / "task.toml") == plain


def test_where_tasks_are_looked_for(tmp_path: Path, folder: Path, monkeypatch: Any) -> None:
    with pytest.raises(TaskError, match=r"^There is no task 'gem': did you mean gemm\?$"):
        load_task("gem")
    for text in (str(tmp_path.parent), "x" * 5000):
        with pytest.raises(TaskError, match=r"^There is no task '.*': give the path"):
            load_task(text)
    shutil.copytree(folder, folder / "gemm")
    (folder / "rope").mkdir()
    (folder / "softmax").write_bytes(b"a program of that name")
    monkeypatch.chdir(folder)
    (folder / "luma").mkdir()
    (folder / "luma" / "task.toml").touch()
    with pytest.raises(TaskError, match=r"^There is no task 'lumma': did you mean luma\?$"):
        load_task("lumma")
    assert [load_task(name).name for name in ("gemm", "rope", "softmax")] == ["scale", "rope", "softmax"]


REFERENCES = [
    ("return {'y': x[:5]}", r"returns y with the shape \(5,\), not \(1024,\)"),
    ("return {'y': [[1.0], [1.0, 2.0]]}", "returns y, which is not an array of numbers"),
    # Running the file does not make the function.
    ("return x\ndel scale", "there is no function scale in it"),
]


@pytest.mark.parametrize(("body", "wanted"), REFERENCES, ids=[body for body, _ in REFERENCES])
def test_a_reference_that_does_not_do_its_work(folder: Path, body: str, wanted: str) -> None:
    (folder / "reference.py").write_text(f"def scale(x, a, n):\n    {body}\n")
    task = read_task(folder / "task.toml")
    with pytest.raises(TaskError, match=wanted):
        expected_results(np, task, task.workload("1024"), {"x": np.zeros(1024)})


def test_ids_follow_meaning(folder: Path) -> None:
    [template] = read_task(folder / "task.toml").sources("cuda").templates
    assert template.model_copy(update={"description": "another"}).id == template.id
    assert template.model_copy(update={"source": KERNEL + " "}).id != template.id
    assert re.fullmatch(r"template-[0-9a-f]{10}", template.id)
    again = pickle.loads(pickle.dumps(template))
    assert again == template and again.id == template.id and hash(again) == hash(template)
    assert "id" not in template.model_dump()
    assert config_key({"A": 1, "B": "x"}) == config_key({"B": "x", "A": 1}) != config_key({"A": "1", "B": "x"})
    [template] = read_task(folder / "task.toml").sources("cuda").templates
    for text in ('{"VEC": 1}', '{"VEC": 1.0}'):
        assert repr(parse_config(text, template)) == "{'BLOCK': 64, 'VEC': 1}"
    for text, why in (
        ('{"VEC": [4]}', r"VEC is one of 1, .*, not \[4\]"),
        ('{"VECS": 4}', "no parameter VECS; .* BLOCK, VEC"),
    ):
        with pytest.raises(TunesmithError, match=why):
            parse_config(text, template)


def test_other_references_are_left_to_their_call_and_what_is_no_text_is_refused(folder: Path) -> None:
    edit(folder, "task.toml", '"0.5"', '"0.1"')
    task = read_task(folder / "task.toml")
    [y] = reference_results(task, task.workloads[0], {"x": np.ones(1024)}).values()
    assert y[0] == float(np.float32(0.1)) != 0.1
    for text in ("def scale(x):\n    return {}\n", "scale = lambda **given: {}\n", "from numpy import *\n"):
        (folder / "reference.py").write_text(text)
        assert read_task(folder / "task.toml").reference == text
    (folder / "kernel.cu").write_text(KERNEL + "//" + "x" * (1 << 20))
    assert "the source is larger than 1048576 bytes" in complaint(folder / "task.toml")
    (folder / "kernel.cu").write_bytes(b"\xff\xfe\x00")
    assert "kernel.cu is not UTF-8 text: save it as UTF-8." in complaint(folder / "task.toml")
    (folder / "task.toml").write_bytes(b"\xff\xfe\x00")
    assert "task.toml is not UTF-8 text: save it as UTF-8." in complaint(folder / "task.toml")


def test_a_range_of_whole_numbers_has_both_ends() -> None:
    fill = Fill.model_validate({"low": 0, "high": 15})
    assert set(draw("task", fill, (4000,), "int32", np.random.default_rng(1)).tolist()) == set(range(16))
    assert fill.described == "uniform, 0 to 15"
    assert Fill.model_validate({"low": 0, "high": 123456789}).described == "uniform, 0 to 123456789"


@pytest.mark.parametrize("name", ["__half", "half", "__nv_bfloat16", "__nv_fp8_e4m3"])
def test_a_literal_type_gets_its_header(folder: Path, nvrtc: Any, name: str) -> None:
    edit(folder, "kernel.cu", "const T* x", f"const {name}* x")
    template = read_task(folder / "task.toml").sources("cuda").baseline.template
    assert isinstance(nvrtc.compile(specialise(template, {}, {"T": "float32"})), Artifact)


class TestSignature:
    def required(self, folder: Path, old: str, new: str) -> str:
        edit(folder, "kernel.cu", old, new)
        task = read_task(folder / "task.toml")
        return require_signature(task, task.sources("cuda").baseline.template, "here")

    @pytest.mark.parametrize("name", sorted(library_tasks()))
    def test_that_of_every_library_kernel_is_its_task_which_survives_the_journal(self, name: str) -> None:
        task = load_task(name)
        assert Task.model_validate(json.loads(json.dumps(task.model_dump(mode="json")))) == task
        for sources in task.backends.values():
            assert require_signature(task, sources.baseline.template, "here") == ""

    @pytest.mark.parametrize(
        ("old", "new", "wanted"),
        [
            (", int n)", ")", "has 3 parameters (x, y, a), but the task has 4 arguments (x, y, a, n)"),
            ("T* y", "const T* y", "but the parameter is const"),
            ("T* y", "T y", "the task says an array, but the parameter is no pointer"),
            ("const T* x", "const T** x", "the parameter is a pointer to pointers: join the arrays into one"),
            ("int n", "const int& n", "the parameter is a reference: declare it by value, as `int n`"),
            (", int n)", ", int n = 3, int k = 4)", "has 5 parameters (x, y, a, n, k), but the task has 4"),
            ("float a", "double a", "the task says float32, the source `double`, which is float64"),
            ("void scale", "void other", "there is no kernel 'scale', which `entry` names; the source has other"),
        ],
    )
    def test_what_differs_is_named(self, folder: Path, old: str, new: str, wanted: str) -> None:
        with pytest.raises(TunesmithError) as caught:
            self.required(folder, old, new)
        assert wanted in str(caught.value)

    def test_what_cannot_be_compared_is_said(self, folder: Path) -> None:
        whole = "#define K void scale()\nMAKE(scale)\n"
        for old, new, wanted in (
            ("const T* x", "const T (*x)[100]", ""),
            ("int n)", "int n, ...)", "the signature was not compared, as it has `...`"),
            (
                KERNEL.replace("const T* x", "const T (*x)[100]").replace("int n)", "int n, ...)"),
                whole,
                "a macro makes",
            ),
        ):
            assert wanted in (said := self.required(folder, old, new)) and bool(said) == bool(wanted)


T1 = Path(__file__).resolve().parents[1] / "data" / "t1"


@pytest.fixture
def t1(tmp_path: Path) -> Path:
    """A tuning problem beside its kernel and a reference."""
    shutil.copytree(T1, tmp_path, dirs_exist_ok=True)
    return tmp_path / "add.json"


def task_of(t1: Path, folder: Path) -> Task:
    folder.mkdir()
    for name, text in read_t1(t1, f"{t1.parent / 'reference.py'}:add")[1].items():
        (folder / name).write_text(text)
    return read_task(folder / "task.toml")


def test_a_problem_becomes_a_task_and_its_reference_is_to_be_filled_in(t1: Path, tmp_path: Path) -> None:
    task = task_of(t1, tmp_path / "task")
    (template,), baseline = task.sources("opencl").templates, task.sources("opencl").baseline.template
    (workload,) = task.workloads
    assert workload.sizes == {"size_x": 10_000} and task.bytes_of(workload) == 3 * 40_000
    assert [parameter.values for parameter in template.parameters] == [(16, 32, 64), (1, 2, 3, 4)]
    assert template.default_config == {"block_size_x": 32, "work": 1} and template.source == (T1 / "add.cl").read_text()
    assert geometry(template, {"block_size_x": 16, "work": 3}, workload).grid == (209, 1, 1)
    assert geometry(baseline, {}, workload).grid == (313, 1, 1) and "#define block_size_x 32" in baseline.source
    assert [argument.role for argument in task.arguments] == ["out", "in", "in", "scalar"]
    _, files = read_t1(t1)
    assert "def add(a, b, n):" in files["reference.py"]
    (tmp_path / "draft").mkdir()
    for name, text in files.items():
        (tmp_path / "draft" / name).write_text(text)
    with pytest.raises(TaskError, match="is still to be filled in: the right results"):
        read_task(tmp_path / "draft" / "task.toml")
    plain = task_of(t1, tmp_path / "plain")
    for file in (t1, t1.parent / "add.cl", t1.parent / "reference.py"):
        file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert task_of(t1, tmp_path / "marked") == plain


def test_what_cannot_be_taken_is_told_in_a_sentence_and_values_that_are_programs_are_not_run(t1: Path) -> None:
    for kernel, message in (
        ({"Language": "Vulkan"}, "key Language: Vulkan is not known"),
        ({"KernelFile": "none.cl"}, r"key KernelFile: .*none\.cl cannot be read"),
        ({"SharedMemory": 64}, "dynamic shared memory has no expression in T1"),
        ({"Arguments": []}, "no argument has the AccessType"),
        ({"ProblemSize": None}, "is not a tuning problem in the format T1"),
        ({}, "are neither a list nor a range; write them out"),
    ):
        data = json.loads((T1 / "add.json").read_text())
        data["KernelSpecification"] |= kernel
        if not kernel:
            data["ConfigurationSpace"]["TuningParameters"][0]["Values"] = "__import__('os').getcwd()"
        t1.write_text(json.dumps(data))
        with pytest.raises(TaskError, match=message):
            read_t1(t1)


NAMES = ("A", "B", "C")
FUNCTIONS: Mapping[str, Any] = dict(min=min, max=max, abs=abs, ceil=math.ceil, floor=math.floor) | {
    "ceil_div": lambda a, b: -(-a // b),
    "round_up": lambda a, b: -(-a // b) * b,
    "is_pow2": lambda a: a > 0 and a & (a - 1) == 0,
    "sizeof": lambda name: DTYPES[name].size,
}
LEAVES = ["0", "1", "2", "7", "32", "1000", "0.5", "2.0", "1.25", "True", "False", *NAMES, *NAMES, *NAMES]
SHAPES = [
    *(f"({{0}} ** {exponent})" for exponent in ("0", "2", "3", "-1", "0.5")),
    *("(T == 'float16')", "(T in ('float32', {0}))", "({0} if T == 'float16' else {1})", "sizeof(T)"),
]
"""Besides those of any expression."""
points = st.fixed_dictionaries(
    {name: st.integers(-3, 1025) for name in NAMES} | {"T": st.sampled_from(["float16", "float32"])}
)


@settings(max_examples=300)
@given(expressions(LEAVES, *SHAPES), points)
def test_it_means_what_python_means(text: str, point: dict[str, Any]) -> None:
    try:
        wanted = eval(text, {"__builtins__": {}, **FUNCTIONS}, dict(point))
    except (ArithmeticError, ValueError, TypeError):
        with pytest.raises(ExpressionError, match="column"):
            parse(text).evaluate(point)
        return
    try:
        ours = parse(text).evaluate(point)
    except ExpressionError as error:
        # Only what Python would allow to grow or to leave the numbers is refused.
        assert re.search("exceeds|no power", str(error))
        return
    if isinstance(ours, bool):
        # and/or give a truth value here, where Python gives an operand.
        assert ours == bool(wanted)
    else:
        np.testing.assert_allclose(ours, wanted, rtol=1e-12)


HOSTILE = [
    ("a.__class__", "column 1: `a.__class__` is not part"),
    ("1 + (lambda: 1)", "column 6: `lambda: 1` is not part"),
    ("a or None", "column 6: `None` is not part"),
    ("min(*a, 1)", "column 5: `*a` is not part"),
    ("a = 1", "column "),
    ("1 in n", "column 6: `in` is followed by a list"),
    ("1 # and so on", "column 3: the character '#' has no place"),
    ("max(a)", "column 1: max(): missing a required argument"),
    ("abs(a=1)", "column 1: `abs(a=1)` is not part"),
    ("", "column 1: it is empty"),
    ("(a\n + b.c)", "column 6: `b.c` is not part"),
    ("a + é\0", "column 5: the character '\\xe9' has no place"),
    ("a" + " + a" * (MAX_DEPTH + 2), "are nested in one another"),
    ("(" * 2000 + "1" + ")" * 2000, "column "),
    ("1" * 4999, "column "),
]


@pytest.mark.parametrize(("text", "wanted"), HOSTILE, ids=[ascii(text)[:24] for text, _ in HOSTILE])
def test_hostile_text_is_refused_at_a_column(text: str, wanted: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(text)
    message = str(caught.value)
    assert message.startswith("In the expression `") and wanted in message
    assert message.endswith(".") and not message.endswith("..")
    assert message.encode(), "the message can be printed"


def test_ten_megabytes_are_refused_and_an_unknown_name_is_told_in_full() -> None:
    with pytest.raises(ExpressionError, match=r"^An expression is at most 8000 characters long; this one has \d+\.$"):
        parse("1+" * 5_000_000)
    with pytest.raises(ExpressionError) as caught:
        parse("VEC * dd <= 4").require({"VEC", "d"})
    said = "In the expression `VEC * dd <= 4`, column 7: the name 'dd' is not defined; did you mean 'd'?"
    assert str(caught.value) == said
    assert parse("n // d if d else 0").evaluate({"n": 4, "d": 0}) == 0
    assert parse("d == 0 or n % d == 0").evaluate({"n": 4, "d": 0}) is True
    assert parse("d and n // d > 1").evaluate({"n": 4, "d": 0}) is False
    assert parse("1 < a in (2, 3)").evaluate({"a": 3}) is True and parse("log2(n)").integer({"n": 1024}) == 10
    big = np.array([3, 1 << 40])
    for text in ("n * n", "n * 8388608", "n + 4611686018427387904", "-n - 4611686018427387904"):
        with pytest.raises(ExpressionError, match="exceeds"):
            parse(text).evaluate({"n": 1 << 40})
        with pytest.raises(ExpressionError, match="exceeds"):
            parse(text).evaluate({"n": big})
    assert parse("n * 4194304").evaluate({"n": np.array([1 << 40])}).tolist() == [MAX_INTEGER]


EVALUATION = [
    ("9 ** 9 ** 9", "column 1: an exponent is at most 64."),
    ("a + 1 // (a - 4)", "column 5: integer division or modulo by zero."),
    ("a + zero % 0", "column 5: the name 'zero' is not defined; known names are T, a."),
    ("T + 1", "column 1: text takes part in comparisons only."),
    ("sizeof(a)", f"column 1: sizeof() takes a data type, one of {', '.join(DTYPES)}, not 4."),
    ("(0 - a) ** 0.5", "column 1: a negative number has no power that is not whole."),
    ("0 ** -1", "column 1: 0 has no negative power."),
    ("ceil(1e999)", "column 1: cannot convert float infinity to integer."),
]


@pytest.mark.parametrize(("text", "wanted"), EVALUATION, ids=[text for text, _ in EVALUATION])
def test_what_has_no_value(text: str, wanted: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(text).evaluate({"a": 4, "T": "float32"})
    assert str(caught.value) == f"In the expression `{text.strip()}`, {wanted}"


@pytest.mark.parametrize("text", ["1e999", "1e999 - 1e999", "1e300", "2.5", "n > 3", "'four'"])
def test_a_whole_number_is_asked_for(text: str) -> None:
    with pytest.raises(ExpressionError, match=r"must give a (whole )?number, but gives"):
        parse(text).integer({"n": 4})
