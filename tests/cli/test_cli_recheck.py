"""`tunesmith recheck` on PoCL: a stored choice is timed again beside the next best; and what counts as moved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from scale_task import write
from typer.testing import CliRunner

from tunesmith.cli.commands.recheck import moved
from tunesmith.cli.main import app
from tunesmith.graph.journal.events import Compared, RunStarted, TemplateAdded, VerdictReached
from tunesmith.graph.journal.records import Dispatched, Figures, FinalistResult, Origin, Verdict, Winner
from tunesmith.graph.journal.store import Journal
from tunesmith.graph.settings import make_settings
from tunesmith.hw.probe import probe
from tunesmith.kernels.measure.timing import Comparison, compare
from tunesmith.kernels.outcome import CompileFailed
from tunesmith.kernels.spec.taskfile import load_task


def seen(ratio: float) -> Comparison:
    return compare([[ratio * 1e-6 * (1 + 0.001 * block)] * 3 for block in range(5)], [[1e-6] * 3] * 5)


def test_what_moved_is_told_by_intervals() -> None:
    own = ("own", seen(0.8))
    assert not moved([own, ("other", seen(0.8)), ("slow", seen(0.9))])["moved"]
    assert moved([own, ("other", seen(0.7)), ("best", seen(0.6))])["moved"] == "faster now: best"
    assert "baseline is faster" in moved([("own", seen(1.2))])["moved"]
    assert "no longer" in moved([("own", seen(1.0))])["moved"]
    failed = moved([("own", CompileFailed("no such feature", "")), ("other", seen(0.7))])
    assert failed["now"] is None and "no such feature" in failed["moved"]


def test_a_stored_choice_is_timed_again(tmp_path: Path, ray_cluster: Any) -> None:
    (tmp_path / "task").mkdir()
    write(tmp_path / "task")
    task, device = load_task(str(tmp_path / "task")), probe().device("opencl")
    template, [workload] = task.sources("opencl").templates[0], task.workloads_for(device.limits.kind, held_out=False)
    configs = [{"GROUP": 64, "ITEMS": 4}, {"GROUP": 16, "ITEMS": 1}, {"GROUP": 64, "ITEMS": 1}]
    winners = [Winner(template=template.id, config=config) for config in configs]
    run, ratios = tmp_path / "run", (0.5, 0.9, 0.6)
    with Journal(run, create=True) as journal:
        origin = Origin(command="tunesmith tune", host="a test", python="3.11")
        journal.append(RunStarted(settings=make_settings(task=task.name), task=task, device=device, origin=origin))
        journal.append(TemplateAdded(template=template))
        entries = [
            FinalistResult(**one.model_dump(), comparison=seen(ratio))
            for one, ratio in zip(winners, ratios, strict=True)
        ]
        about = {"workload": workload.name, "sizes": workload.sizes, "types": workload.types}
        best = Dispatched(**about, **winners[0].model_dump(), **Figures.of(seen(0.5)).model_dump())
        journal.append(Compared(workload=workload.name, entries=tuple(entries)))
        journal.append(VerdictReached(verdict=Verdict(dispatch=(best,), sentence="Faster.")))
    done = CliRunner().invoke(app, ["recheck", str(run), "--json"])
    found = json.loads(done.stdout)
    [row] = found["workloads"]
    assert row["configuration"] == "GROUP=64, ITEMS=4" and row["then"] == pytest.approx(0.5, rel=0.01)
    assert row["low"] <= row["now"] <= row["high"]
    assert found["now_on"] == found["tuned_on"] and done.exit_code == bool(row["moved"])
