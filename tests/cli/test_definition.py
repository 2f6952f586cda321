"""Definitions of FlashInfer-Bench as drafts of tasks."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tunesmith.cli.main import app
from tunesmith.kernels.launch.reference import expected_results
from tunesmith.kernels.spec.foreign import MAX_TUNED, read_definition
from tunesmith.kernels.spec.task import Task, TaskError
from tunesmith.kernels.spec.taskfile import MARK, read_task

VARIABLE = {"type": "var"}
DEFINITION: dict[str, Any] = {
    "name": "scaled-rows.v1",
    "op_type": "other",
    "description": 'Rows times a "scale" of their group.',
    "axes": {"rows": VARIABLE, "ends": VARIABLE, "width": {"type": "const", "value": 64}, "groups": VARIABLE},
    "constraints": ["ends == groups + 1", "rows >= groups", "ends <= rows + width", "ends == starts[-1].item()"],
    "inputs": {
        "x": {"shape": ["rows", "width"], "dtype": "float16"},
        "starts": {"shape": ["ends"], "dtype": "int32"},
        "scale": {"shape": None, "dtype": "float32"},
    },
    "outputs": {"y": {"shape": ["rows", "width"], "dtype": "bfloat16"}},
    "reference": "def run(x, starts, scale):\n    return x * scale + len(starts)",
}


def workload(rows: int, groups: int, scale: float = 0.5) -> dict[str, Any]:
    given = {"x": {"type": "random"}, "starts": {"type": "random"}, "scale": {"type": "scalar", "value": scale}}
    return {"workload": {"uuid": "u", "axes": {"rows": rows, "groups": groups, "ends": groups + 1}, "inputs": given}}


def drafted(folder: Path, workloads: list[dict[str, Any]], **changed: Any) -> tuple[Path, str]:
    """The folder of the task, drafted in a data set, and what was said."""
    for name in ("definitions", "workloads"):
        (folder / name / "other").mkdir(parents=True)
    path = folder / "definitions" / "other" / "scaled.json"
    path.write_text(json.dumps(DEFINITION | changed))
    if workloads:
        lines = "\n".join(map(json.dumps, workloads))
        (folder / "workloads" / "other" / "scaled-rows.v1.jsonl").write_text(lines)
    done = CliRunner().invoke(app, ["init", str(path), "--out", str(folder / "task")])
    assert done.exit_code == 0, done.output
    return folder / "task", done.output


def filled(task: Path) -> Task:
    for name in ("task.toml", "reference.py"):
        text = (task / name).read_text()
        (task / name).write_text("\n".join(line.split(f"  {MARK}")[0] for line in text.splitlines()))
    return read_task(task / "task.toml")


def test_a_definition_and_its_workloads_are_a_task_but_for_its_kernel(tmp_path: Path) -> None:
    shapes = [(rows, groups) for rows in (8, 64, 512, 4096, 0) for groups in (1, 3)]
    folder, said = drafted(tmp_path, [workload(*one) for one in shapes])
    assert "what starts holds" in said and "the launch of the kernel" in said and "value of scale" not in said
    task = filled(folder)
    assert task.name == task.entry == "scaled_rows_v1" and task.requires == (
        "rows >= groups",
        "(groups + 1) <= rows + 64",
    )
    assert "# It also demands: ends == starts[-1].item()" in (folder / "task.toml").read_text()
    assert len(task.workloads) == 8 and sum(not one.held_out for one in task.workloads) == MAX_TUNED
    arguments = {one.name: one for one in task.arguments}
    assert list(arguments) == ["x", "starts", "scale", "y", "rows", "ends", "groups"]
    assert task.shape_of(arguments["starts"], task.workload("64x3")) == (4,)
    assert task.scalar_of(arguments["ends"], task.workload("64x3")) == 4 and arguments["scale"].value == "0.5"
    taken = "const __half* x, const int* starts, float scale, __nv_bfloat16* y, int rows, int ends, int groups"
    assert f"scaled_rows_v1({taken})" in (folder / "baseline.cu").read_text()
    assert "the value of scale" in drafted(tmp_path / "two", [workload(8, 1, 0.5), workload(8, 3, 2.0)])[1]
    assert "the sizes you use" in drafted(tmp_path / "none", [])[1]


def test_the_definition_s_own_reference_is_the_task_s(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    task = filled(drafted(tmp_path, [workload(8, 3)])[0])
    found = expected_results(np, task, task.workloads[0], {"x": np.ones((8, 64)), "starts": np.arange(4.0)})
    assert set(np.asarray(found["y"]).ravel()) == {4.5}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"axes": {"no name": {"type": "var"}}}, "is not a definition of FlashInfer-Bench: key axes"),
        ({"inputs": {"x": {"shape": ["rows"], "dtype": "float4_e2m1"}}}, "the dtype float4_e2m1 is not known here"),
    ],
)
def test_mistakes_in_a_definition_are_one_sentence(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    path = tmp_path / "one.json"
    path.write_text(json.dumps(DEFINITION | changed))
    with pytest.raises(TaskError, match=message):
        read_definition(path)
    path.write_text(json.dumps({"KernelSpecification": {}}))
    assert read_definition(path) is None
