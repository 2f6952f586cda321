"""Opponents in runs, on a simulated device: when they are timed, and the table of what was found."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
from journal_rows import rows
from simulated_pool import SCALE_ADD, SimulatedPool, tuned

from tunesmith.cli.measure import library
from tunesmith.kernels.measure.bench import WorkloadComparison
from tunesmith.kernels.measure.opponents import Encounter
from tunesmith.kernels.measure.timing import compare
from tunesmith.kernels.spec.task import FunctionOpponent, KernelOpponent, Task
from tunesmith.kernels.spec.taskfile import load_task

pytestmark = pytest.mark.usefixtures("simulation")
run = partial(tuned, evaluations=20, rounds=2, strategy="default")


CHOICE = {"BLOCK": 64, "num_warps": 4}


class OpponentPool(SimulatedPool):
    asked: ClassVar[list[tuple[str, ...]]] = []

    def compare(
        self, baseline: Any, candidates: Sequence[Any], workload: str, *, opponents: Any = (), **more: Any
    ) -> WorkloadComparison:
        found = super().compare(baseline, candidates, workload, **more)
        self.asked.append(tuple(one.name for one in opponents))
        base, mine = [[20e-6]] * 5, [[10e-6]] * 5
        against = tuple(compare(base, mine) for _ in candidates)
        met = [Encounter(one.name, one.label, compare(mine, base), against, "", 9.5, CHOICE) for one in opponents]
        return replace(found, opponents=tuple(met))


POOL = OpponentPool


@pytest.fixture
def task() -> Task:
    OpponentPool.asked.clear()
    made = {"source": "def f(): pass", "function": "f", "framework": "numpy"}
    others = (
        FunctionOpponent(name="near", label="eager", **made),
        FunctionOpponent(name="far", label="compiled", on_request=True, **made),
    )
    return load_task(SCALE_ADD).model_copy(update={"opponents": others})


@pytest.mark.parametrize(("which", "names"), [("usual", ("near",)), ("all", ("near", "far")), ("none", ())])
def test_only_the_last_test_times_them(task: Task, tmp_path: Path, which: str, names: tuple[str, ...]) -> None:
    summary = run(tmp_path / "run", task, opponents=which).summary
    stages = [row.stage for row in rows(tmp_path / "run", "comparison")]
    timed = [asked for asked, stage in zip(OpponentPool.asked, stages, strict=True) if stage == "round-2"]
    earlier = [asked for asked, stage in zip(OpponentPool.asked, stages, strict=True) if stage == "round-1"]
    assert timed and set(timed) == {names} and set(earlier) <= {()}
    for row in (*summary.tuned, *summary.held_out):
        assert tuple(one.name for one in row.opponents) == names
        assert {one.remark for one in row.opponents} <= {"chose BLOCK=64, num_warps=4 in 9.5 s"}
    said = "far (compiled; chose BLOCK=64" in (tmp_path / "run" / "report.html").read_text()
    assert said == ("far" in names)


def test_where_only_the_verdict_ends_the_run_they_are_timed_after_it(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def done(context: Any, number: int, verdict: Any) -> str:
        return "floor" if verdict is not None else ""

    monkeypatch.setattr("tunesmith.graph.roles.tester._done", done)
    summary = run(tmp_path / "run", task).summary
    half = len(OpponentPool.asked) // 2
    assert set(OpponentPool.asked[:half]) == {()} and set(OpponentPool.asked[half:]) == {("near",)}
    assert all([one.name for one in row.opponents] == ["near"] for row in summary.tuned)


def test_the_table_has_labels_with_intervals(task: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = json.loads(json.dumps(run(tmp_path / "run", task, opponents="all").summary.to_json()))
    summary["tuned"][0]["opponents"][1] |= {"seconds": None, "ratio": None, "why": "it raises ModuleNotFoundError: no"}
    files = []
    for name in ("scale_add", "another"):
        files.append(str(tmp_path / f"{name}.json"))
        Path(files[-1]).write_text(json.dumps({"runs": {name: summary}}))
    assert library.main(["--table", *files]) == 0
    lines = capsys.readouterr().out.splitlines()
    headings = ["floor", "plain", "vendor library", *library.LABELS[1:], "general", "best |"]
    assert lines[0].split(" | ")[2:] == headings
    row = next(line for line in lines if line.startswith("| another |")).strip("| ").split(" | ")
    assert row[3:8] == ["20.00", "-", "-", "10.00 (0.50x, 0.50 - 0.50)", "-"]
    assert row[8].endswith(")") and "x, " in row[9]
    assert "- Not timed: another, far (compiled): it raises ModuleNotFoundError: no" in lines[-2]


def test_the_list_among_which_triton_chooses_is_measured_first(task: Task, tmp_path: Path) -> None:
    sources = task.sources("opencl")
    template = sources.templates[0]
    listed = [
        {**template.default_config, one.name: value} for one in template.parameters for value in (one.values[-1],)
    ]
    opponent = KernelOpponent(name="list", label="production", template=template, configs=tuple(listed))
    beside = sources.model_copy(update={"opponents": (opponent,)})
    of = task.model_copy(update={"backends": {"opencl": beside}, "opponents": ()})
    run(tmp_path / "run", of, rounds=1)
    asked = [row.data["config"] for row in rows(tmp_path / "run", "asked")]
    wanted = [one for one in (template.default_config, *listed) if one in asked]
    assert len(wanted) > 1 and asked[: len(wanted)] == list(map(dict, wanted))
