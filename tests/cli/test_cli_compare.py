"""`tunesmith compare` and `recheck`: runs beside each other, and a stored choice beside the next best, timed again."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scale_task import write
from simulated_pool import ended_run
from typer.testing import CliRunner

from tunesmith.cli.commands.recheck import moved
from tunesmith.cli.main import app
from tunesmith.graph.journal.events import Compared, RunStarted, TemplateAdded, VerdictReached
from tunesmith.graph.journal.records import Dispatched, Figures, FinalistResult, Origin, Verdict, Winner
from tunesmith.graph.journal.store import Journal, JournalError
from tunesmith.graph.settings import make_settings
from tunesmith.graph.study import compare
from tunesmith.graph.study.compare import compare_runs
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.probe import probe
from tunesmith.kernels.measure.timing import Comparison
from tunesmith.kernels.measure.timing import compare as timed
from tunesmith.kernels.outcome import CompileFailed
from tunesmith.kernels.spec.taskfile import load_task


@pytest.fixture(scope="module")
def run(device: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return ended_run(tmp_path_factory.mktemp("compared") / "run", seed=7)


def changed(run: Any, folder: Path, **values: Any) -> Path:
    """A copy of a run whose summary says something else."""
    shutil.copytree(run.folder, folder)
    (folder / "summary.json").write_text(json.dumps(run.summary.to_json() | values))
    return folder


@pytest.fixture
def other(run: Any, tmp_path: Path) -> Path:
    """The run as another device would have told it: another seed, nothing right on the held-out shape."""
    device = run.summary["device"] | {"name": "Another CPU", "driver": "9.9"}
    held_out = [row | {"general": None} for row in run.summary["held_out"]]
    settings = run.summary["settings"] | {"seed": 8}
    return changed(run, tmp_path / "other", device=device, held_out=held_out, settings=settings)


def test_shapes_and_differences_stand_beside_each_other(run: Any, other: Path) -> None:
    found = compare_runs([run.folder, other])
    assert [shape["workload"] for shape in found["shapes"]] == ["16384", "5000"]
    assert [shape["held_out"] for shape in found["shapes"]] == [[False, False], [True, True]]
    assert found["shapes"][0]["results"] == [run.summary["tuned"][0]] * 2
    assert found["shapes"][1]["results"][1]["general"] is None
    assert set(found["differences"]) == {"device", "driver", "setting seed"}
    assert found["differences"]["device"] == [run.summary["device"]["name"], "Another CPU"]
    assert found["differences"]["setting seed"] == ["7", "8"]
    assert found["same"]["backend"] == "opencl" and "reference" in found["same"]


def test_a_shape_is_one_whatever_its_name_and_may_be_of_one_run_only(run: Any, tmp_path: Path) -> None:
    rows = [row | {"workload": "large"} for row in run.summary["tuned"]]
    alone = changed(run, tmp_path / "alone", held_out=[], tuned=rows)
    shapes = compare_runs([alone, run.folder])["shapes"]
    assert [shape["workload"] for shape in shapes] == ["large", "5000"]
    assert None not in shapes[0]["results"]
    assert shapes[1]["results"][0] is None and shapes[1]["held_out"] == [None, True]


def test_other_data_types_are_other_shapes(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = compare.begun

    def halves(folder: Path) -> Any:
        entry = read(folder)
        arguments = tuple(one.model_copy(update={"dtype": "float16"}) for one in entry.event.task.arguments)
        task = entry.event.task.model_copy(update={"arguments": arguments, "bytes": "6 * n"})
        halved = replace(entry, event=entry.event.model_copy(update={"task": task}))
        return halved if folder.name == "halves" else entry

    monkeypatch.setattr(compare, "begun", halves)
    found = compare_runs([run.folder, changed(run, tmp_path / "halves")])
    assert {"arguments", "bytes"} <= set(found["differences"]) and "types" in found["same"]
    shapes = {shape["workload"]: shape["results"] for shape in found["shapes"]}
    assert shapes["16384 (n=16384; float32, int32)"][1] is None is shapes["16384 (n=16384; float16)"][0]


def test_all_three_forms_are_printed(run: Any, other: Path, here: Any) -> None:
    table = here("compare", run.folder, other)
    assert table.returncode == 0, table.stderr
    told = ("run 1", "run 2", "5000 (held out)", "Another CPU", "not taken in turn")
    assert all(text in table.stdout for text in told)
    text = here("compare", run.folder, other, "--markdown").stdout
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in rows}) == 1 and "| no general configuration |" in text
    data = json.loads(here("compare", run.folder, other, "--json").stdout)
    assert data["task"] == "scale_add" and data["differences"]["driver"][1] == "9.9"
    assert data["shapes"][1]["results"][1]["general"] is None


def test_what_cannot_be_compared_is_refused(run: Any, tmp_path: Path, here: Any) -> None:
    foreign = changed(run, tmp_path / "foreign", task="softmax")
    with pytest.raises(TunesmithError, match=r"different tasks \(.*run of scale_add, .*foreign of softmax\); name"):
        compare_runs([run.folder, foreign])
    with pytest.raises(TunesmithError, match="named twice"):
        compare_runs([run.folder, run.folder / ".." / "run"])
    with pytest.raises(JournalError, match="is not a run"):
        compare_runs([run.folder, tmp_path])
    one = here("compare", run.folder)
    assert one.returncode == 2 and one.stderr.count("\n") == 1 and "give at least two" in one.stderr


def seen(ratio: float) -> Comparison:
    return timed([[ratio * 1e-6 * (1 + 0.001 * block)] * 3 for block in range(5)], [[1e-6] * 3] * 5)


def test_what_moved_is_told_by_intervals() -> None:
    own = ("own", seen(0.8))
    assert not moved([own, ("other", seen(0.8)), ("slow", seen(0.9))])["moved"]
    assert moved([own, ("other", seen(0.7)), ("best", seen(0.6))])["moved"] == "faster now: best"
    for ratio, said in ((1.2, "baseline is faster"), (1.0, "no longer")):
        assert said in moved([("own", seen(ratio))])["moved"]
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
