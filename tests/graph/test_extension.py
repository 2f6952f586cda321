"""A run that is given more: it goes on where it ended, and loses that wish in no way that a process may end."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from journal_rows import Killed, end_after, rows
from simulated_pool import SimulatedPool, simulate_device
from test_graph_resume import TASK, interrupted, run, simulation

from tunesmith.graph import resume, tune
from tunesmith.graph.journal.store import Journal
from tunesmith.graph.settings import SettingsError, new_run_dir

__all__ = ["simulation"]


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory, device: Any) -> Path:
    """A run that ended after four evaluations, in one round."""
    with pytest.MonkeyPatch.context() as patch:
        simulate_device(patch)
        return run(tmp_path_factory.mktemp("once") / "run", evaluations=4, rounds=1).folder


@pytest.fixture
def ended(once: Path, tmp_path: Path) -> Path:
    return shutil.copytree(once, tmp_path / "run")


def keys(folder: Path) -> list[str]:
    return [event.data["key"] for event in rows(folder, "evaluation")]


def test_an_ended_run_measures_more(ended: Path) -> None:
    before, first = keys(ended), resume(ended).summary
    summary = resume(ended, more=4).summary
    assert keys(ended)[:4] == before and len(set(keys(ended))) == len(keys(ended)) == 8
    assert summary.evaluations == summary.settings["evaluations"] == 8 and summary.ended_by == "rounds"
    # Against other noise and contents: as good as before, within what comparisons tell.
    assert first.ratio is not None and summary.ratio is not None and summary.ratio <= 1.05 * first.ratio
    assert len(rows(ended, "verdict")) == 2
    again = resume(ended, more=2, rounds=2).summary
    assert again.evaluations == 10 and [plan["round"] for plan in again["plans"]] == [1, 2, 3, 4]


def test_an_interrupted_run_may_be_given_more_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    interrupted(folder, monkeypatch, 9, evaluations=5, rounds=2)
    result = resume(folder, more=3)
    assert len(set(keys(folder))) == len(keys(folder)) == 8
    assert [plan["round"] for plan in result.summary["plans"]] == [1, 2]


@pytest.mark.parametrize("count", range(1, 14))
def test_ended_after_any_entry_the_extension_goes_on_to_its_end(
    ended: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    with monkeypatch.context() as patch:
        end_after(patch, count)
        with suppress(Killed):
            resume(ended, more=3)
        result = resume(ended)
    assert len(set(keys(ended))) == len(keys(ended)) == 7, f"ended after entry {count}"
    assert len(rows(ended, "extended")) == 1
    assert [event.stage for event in rows(ended, "searched")] == ["round-1", "round-2"]
    assert result.valid


def test_a_run_that_ended_by_time_gets_more_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    spent = [0.0]
    monkeypatch.setattr(Journal, "seconds_spent", lambda self: spent[0])
    original = SimulatedPool.submit

    def submit(self: Any, request: Any) -> None:
        spent[0] += 10.0
        original(self, request)

    monkeypatch.setattr(SimulatedPool, "submit", submit)
    ended = run(folder, evaluations=8, rounds=3, time_limit=35.0)
    assert ended.summary["ended_by"] == "time" and len(keys(folder)) < 8
    with pytest.raises(SettingsError, match=r"time limit of 35 s is spent; say with --time-limit"):
        resume(folder, more=4)
    assert len(rows(folder, "extended")) == 0
    result = resume(folder, time_limit=1000.0)
    assert len(keys(folder)) == 8
    assert result.summary["settings"]["time_limit"] > 1000.0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"rounds": 1}, r"measured all that it may; say with --more"),
        ({"dispatch_shapes": 4, "rounds": 1}, r"has measured all that it may"),
        ({"more": -1}, r"--more: give a number of at least 0, not -1\."),
        ({"more": "ten"}, r"--more: give a whole number, not 'ten'\."),
        ({"time_limit": "10q"}, r"--time-limit: '10q' is not a duration"),
        ({"dispatch_shapes": -1}, r"--dispatch-shapes: give a number of at least 0"),
        ({"more": 10_000_000}, r"--evaluations: give a number of at most 1e.07"),
        ({"more": 1, "rounds": 1000}, r"--rounds: give a number of at most 1000, not 1001"),
    ],
)
def test_nonsense_is_refused_and_changes_nothing(ended: Path, options: dict[str, Any], sentence: str) -> None:
    count = len(rows(ended))
    with pytest.raises(SettingsError, match=sentence):
        resume(ended, **options)
    assert len(rows(ended)) == count


def test_edited_files_are_told_before_a_run_goes_on_without_them(tmp_path: Path) -> None:
    task = shutil.copytree(Path(TASK).parent, tmp_path / "task")
    folder = tmp_path / "run"
    tune(task, run_dir=folder, backend="opencl", strategy="random", evaluations=2, rounds=1)
    resume(folder)
    (task / "template.cl").write_text((task / "template.cl").read_text() + "// edited\n")
    with pytest.raises(SettingsError, match=r"task\.toml: backends\): go on .* --as-recorded, or start a new run"):
        resume(folder, more=1)
    assert resume(folder, more=1, as_recorded=True).summary.evaluations == 3
    shutil.rmtree(task)
    assert resume(folder, more=1).summary.evaluations == 4


def test_a_runs_folder_is_named_after_its_task(tmp_path: Path) -> None:
    task = shutil.copytree(Path(TASK).parent, tmp_path / "some folder")
    for given in (task, task / "task.toml"):
        assert new_run_dir(str(given), tmp_path) == tmp_path / "scale_add-001"
    assert new_run_dir("gemm", tmp_path) == tmp_path / "gemm-001"
    (task / "task.toml").write_text("name = [")
    assert new_run_dir(str(task / "task.toml"), tmp_path) == tmp_path / "some-folder-001"
