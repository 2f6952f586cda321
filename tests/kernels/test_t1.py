"""Tuning problems in the format T1 as tasks: their parts, and problems that are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tunesmith.kernels.spec.t1 import read_t1
from tunesmith.kernels.spec.task import Task, TaskError, geometry
from tunesmith.kernels.spec.taskfile import read_task

SUM = """\
__kernel void add(__global float *c, __global const float *a, __global const float *b, int n)
{
    const int first = (get_group_id(0) * block_size_x + get_local_id(0)) * work;
    for (int i = first; i < first + work && i < n; i++) c[i] = a[i] + b[i];
}
"""
REFERENCE = "def add(a, b, n):\n    return {'c': a + b}\n"


def problem(**kernel: Any) -> dict[str, Any]:
    vector = {"Type": "float", "MemoryType": "Vector", "Size": "ProblemSize[0]"}
    return {
        "ConfigurationSpace": {
            "TuningParameters": [
                {"Name": "block_size_x", "Type": "int", "Values": "[16, 32, 64]", "Default": 32},
                {"Name": "work", "Type": "int", "Values": "list(range(1, 5))", "Default": 1},
            ],
            "Conditions": [{"Expression": "block_size_x * work <= 128", "Parameters": ["block_size_x", "work"]}],
        },
        "KernelSpecification": {
            "Language": "OpenCL",
            "KernelName": "add",
            "KernelFile": "add.cl",
            "GlobalSize": {"X": "1"},
            "LocalSize": {"X": "block_size_x"},
            "GridDivX": ["block_size_x", "work"],
            "ProblemSize": [10_000],
            "Arguments": [
                {"Name": "c", **vector, "AccessType": "WriteOnly", "FillType": "Constant", "FillValue": 0.0},
                {"Name": "a", **vector, "AccessType": "ReadOnly", "FillType": "Random", "FillValue": 1.0},
                {"Name": "b", **vector, "AccessType": "ReadOnly", "FillType": "Random", "FillValue": 1.0},
                {"Name": "n", "Type": "int32", "MemoryType": "Scalar", "FillValue": 10_000},
            ],
            **kernel,
        },
    }


@pytest.fixture
def t1(tmp_path: Path) -> Path:
    (tmp_path / "add.cl").write_text(SUM)
    (tmp_path / "reference.py").write_text(REFERENCE)
    path = tmp_path / "add.json"
    path.write_text(json.dumps(problem()))
    return path


def task_of(t1: Path, folder: Path) -> Task:
    folder.mkdir()
    for name, text in read_t1(t1, f"{t1.parent / 'reference.py'}:add")[1].items():
        (folder / name).write_text(text)
    return read_task(folder / "task.toml")


def test_files_may_begin_with_a_byte_order_mark(t1: Path, tmp_path: Path) -> None:
    plain = task_of(t1, tmp_path / "plain")
    for file in (t1, t1.parent / "add.cl", t1.parent / "reference.py"):
        file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert task_of(t1, tmp_path / "marked") == plain


def test_a_problem_becomes_a_task(t1: Path, tmp_path: Path) -> None:
    task = task_of(t1, tmp_path / "task")
    (template,), baseline = task.sources("opencl").templates, task.sources("opencl").baseline.template
    (workload,) = task.workloads
    assert workload.sizes == {"size_x": 10_000} and task.bytes_of(workload) == 3 * 40_000
    assert [parameter.values for parameter in template.parameters] == [(16, 32, 64), (1, 2, 3, 4)]
    assert template.default_config == {"block_size_x": 32, "work": 1} and template.source == SUM
    assert geometry(template, {"block_size_x": 16, "work": 3}, workload).grid == (209, 1, 1)
    assert geometry(baseline, {}, workload).grid == (313, 1, 1) and "#define block_size_x 32" in baseline.source
    assert [argument.role for argument in task.arguments] == ["out", "in", "in", "scalar"]


def test_without_a_reference_one_is_to_be_filled_in(t1: Path, tmp_path: Path) -> None:
    _, files = read_t1(t1)
    assert "def add(a, b, n):" in files["reference.py"]
    (tmp_path / "draft").mkdir()
    for name, text in files.items():
        (tmp_path / "draft" / name).write_text(text)
    with pytest.raises(TaskError, match="is still to be filled in: the right results"):
        read_task(tmp_path / "draft" / "task.toml")


def test_kernel_tuner_accepts_the_problem(t1: Path) -> None:
    pytest.importorskip("kernel_tuner", reason="Kernel Tuner is not installed (pip install kernel-tuner)")
    from kernel_tuner.file_utils import get_input_file

    assert get_input_file(t1)["KernelSpecification"]["KernelName"] == "add"


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        ({"Language": "Vulkan"}, "key Language: Vulkan is not known"),
        ({"KernelFile": "none.cl"}, r"key KernelFile: .*none\.cl cannot be read"),
        ({"SharedMemory": 64}, "dynamic shared memory has no expression in T1"),
        ({"Arguments": []}, "no argument has the AccessType"),
        ({"ProblemSize": None}, "is not a tuning problem in the format T1"),
    ],
)
def test_what_cannot_be_taken_is_told_in_a_sentence(t1: Path, kernel: dict[str, Any], message: str) -> None:
    t1.write_text(json.dumps(problem(**kernel)))
    with pytest.raises(TaskError, match=message):
        read_t1(t1)


def test_values_that_are_programs_are_not_run(t1: Path) -> None:
    data = problem()
    data["ConfigurationSpace"]["TuningParameters"][0]["Values"] = "__import__('os').getcwd()"
    t1.write_text(json.dumps(data))
    with pytest.raises(TaskError, match="are neither a list nor a range; write them out"):
        read_t1(t1)
