"""Interrupted anywhere, a run goes on to the same end: nothing lost, nothing measured twice, no budget exceeded; and a
run that is given more goes on where it ended. The device is simulated, so that a run can be ended after every entry of
its journal. With a model no call is paid twice."""

import fcntl
import json
import os
import shutil
import sqlite3
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from journal_rows import Killed, end_after, rows
from model_runs import SOURCE, ModelPool, branch, go_on, keys, plan, template
from model_runs import run as model_run
from simulated_pool import SCALE_ADD, SimulatedPool, tuned

from tunesmith.graph import resume
from tunesmith.graph.journal.events import Event, RunStarted
from tunesmith.graph.journal.log import Journal, JournalError
from tunesmith.graph.models.calls import ModelCall
from tunesmith.graph.progress import Progress
from tunesmith.graph.results.report import render_markdown
from tunesmith.graph.run import changed_files
from tunesmith.graph.settings import new_run_dir
from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.outcome import Evaluation, WrongResult
from tunesmith.kernels.rewrite.template import with_rules
from tunesmith.kernels.spec.task import TaskError
from tunesmith.kernels.spec.taskfile import load_task, read_task
from tunesmith.kernels.spec.template import config_key

pytestmark = pytest.mark.usefixtures("simulation")
run = partial(tuned, evaluations=8)


def interrupted(folder: Path, monkeypatch: pytest.MonkeyPatch, count: int, **settings: Any) -> None:
    """A run that ended after `count` entries of its journal."""
    with monkeypatch.context() as patch:
        end_after(patch, count)
        with pytest.raises(Killed):
            run(folder, **settings)


def asked(folder: Path) -> list[Any]:
    return [(event.data["template"], event.data["config"]) for event in rows(folder, "asked")]


def test_a_run_keeps_its_budget_and_measures_nothing_twice(tmp_path: Path, simulation: list[Any]) -> None:
    result = run(tmp_path / "run", evaluations=8, rounds=2)
    assert result.valid and result.summary["evaluations"] == 8
    assert len(simulation) == 8 and len({config_key(config) for config in simulation}) == 8
    assert [event.stage for event in rows(tmp_path / "run", "searched")] == ["round-1", "round-2"]
    with pytest.raises(TunesmithError, match="holds a run already"):
        run(tmp_path / "run")
    # Every ask is in the journal before its result.
    seen: set[int] = set()
    for event in rows(tmp_path / "run"):
        if event.kind == "asked":
            seen.add(event.data["number"])
        elif event.kind == "evaluation":
            assert event.data["number"] in seen


def test_the_same_seed_asks_the_same_and_another_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every strategy the contract of searches holds it."""
    monkeypatch.setattr(SimulatedPool, "target_in_flight", 3)
    first, second = (run(tmp_path / name, strategy="default", seed=3, rounds=2) for name in "ab")
    assert asked(tmp_path / "a") == asked(tmp_path / "b")
    assert first.summary["general"] == second.summary["general"]
    run(tmp_path / "c", strategy="default", seed=4, rounds=1)
    assert asked(tmp_path / "c") != asked(tmp_path / "a")


@pytest.mark.parametrize("strategy", ["default", "surrogate"])
def test_resumed_with_more_gpus_the_search_asks_the_same(tmp_path: Path, monkeypatch: Any, strategy: str) -> None:
    """The pool may have more in flight then, and does not here, so that results come as they did."""
    settings: dict[str, Any] = {"evaluations": 16, "rounds": 1, "strategy": strategy}
    run(tmp_path / "whole", **settings)
    interrupted(tmp_path / "run", monkeypatch, 12, **settings)
    assert 0 < len(asked(tmp_path / "run")) < 16
    monkeypatch.setattr(SimulatedPool, "max_in_flight", 400)
    resume(tmp_path / "run")
    assert asked(tmp_path / "run") == asked(tmp_path / "whole")
    for name in ("whole", "run"):
        (searched,) = rows(tmp_path / name, "searched")
        assert "in flight" not in searched.data["strategy"]


def test_ended_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, simulation: list[Any]) -> None:
    folder, sessions, result = tmp_path / "run", 1, None
    interrupted(folder, monkeypatch, 2, evaluations=6, rounds=2)
    while result is None and sessions < 60:
        sessions += 1
        with monkeypatch.context() as patch, suppress(Killed):
            end_after(patch, 2)
            result = resume(folder)
    assert sessions > 5 and result is not None
    assert len(keys(folder)) == len(set(keys(folder))) == 6
    assert result.valid


def test_a_small_space_ends_and_is_shown_again_without_work(tmp_path: Path, simulation: Any, monkeypatch: Any) -> None:
    shown: list[Progress] = []
    first = run(tmp_path / "run", evaluations=500, rounds=2, listener=shown.append)
    assert first.summary["evaluations"] == len(simulation) == 28 and first.summary["ended_by"] == "exhausted"
    # What failed has no time.
    assert first.summary["failures"] == {"compile_failed": 7} and first.summary["general"]["config"]["GROUP"] != 1
    assert [one.budget for one in shown if one.phase == "tune"][-1] == 28
    events = len(rows(tmp_path / "run"))
    monkeypatch.setattr("tunesmith.actors.pool.Pool", None)
    shown.clear()
    again = resume(tmp_path / "run", listener=shown.append)
    assert len(simulation) == 28 and len(rows(tmp_path / "run")) == events
    assert again.summary.model_copy(update={"seconds": first.summary.seconds}) == first.summary
    assert "had ended" in shown[0].message


def test_an_interrupted_run_may_move_and_get_more(tmp_path: Path, monkeypatch: Any, simulation: list[Any]) -> None:
    interrupted(tmp_path / "before", monkeypatch, 9, evaluations=5, rounds=2)
    shutil.move(tmp_path / "before", tmp_path / "after")
    monkeypatch.chdir(tmp_path / "after")
    result = resume(".", more=3)
    assert len(set(keys(result.folder))) == len(keys(result.folder)) == result.summary["evaluations"] == 8
    assert len(simulation) == len({config_key(config) for config in simulation}) == 8
    assert [plan["round"] for plan in result.summary["plans"]] == [1, 2]


def test_the_time_limit_ends_the_run_and_earlier_sessions_count(tmp_path: Path, monkeypatch: Any) -> None:
    result = run(tmp_path / "short", time_limit=1e-9, rounds=5)
    assert result.summary["ended_by"] == "time" and "no configuration was measured" in result.summary["sentence"]
    assert "ended by the time limit" in render_markdown(result.summary)
    assert result.summary["evaluations"] == 0 and not result.valid
    interrupted(tmp_path / "run", monkeypatch, 14, evaluations=20, rounds=1, time_limit=100.0)
    spent = Journal.seconds_spent
    monkeypatch.setattr(Journal, "seconds_spent", lambda self: spent(self) + 100.0)
    before = len(rows(tmp_path / "run", "asked"))
    result = resume(tmp_path / "run")
    assert len(rows(tmp_path / "run", "asked")) == before, "nothing new is asked when the time is spent"
    assert result.summary["evaluations"] == before


def test_two_processes_cannot_work_on_one_run_and_a_task_without_a_file_has_not_changed(tmp_path: Path) -> None:
    """Though there is a library task of its name."""
    run(tmp_path / "run", task=load_task(SCALE_ADD).model_copy(update={"name": "softmax"}))
    other = os.open(tmp_path / "run", os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    try:
        with pytest.raises(JournalError, match="Another process is at work"):
            resume(tmp_path / "run")
    finally:
        os.close(other)
    assert resume(tmp_path / "run").valid


def test_a_run_on_another_device_is_not_resumed_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        append = Journal.append

        def elsewhere(self: Journal, event: Event, stage: str = "") -> int:
            if isinstance(event, RunStarted):
                event = event.model_copy(update={"device": replace(event.device, name="Difference Engine")})
            return append(self, event, stage)

        patch.setattr(Journal, "append", elsewhere)
        run(tmp_path / "run")
    with pytest.raises(JournalError, match="measured on Difference Engine"):
        resume(tmp_path / "run")


@pytest.mark.parametrize("error", [TaskError, TunesmithError])
def test_a_run_that_measured_nothing_makes_room(tmp_path: Path, monkeypatch: Any, error: type[Exception]) -> None:
    """As after a mistake in the task, or in its plain kernel: the corrected task is tuned in the same folder."""

    def evaluate(self: SimulatedPool, one: Any) -> Evaluation:
        if error is TaskError:
            raise TaskError("A mistake.")
        return Evaluation(one.template.id, one.config, {"16384": WrongResult("mismatch", "out", "it is wrong")})

    # As after a kill at the very beginning.
    Journal(tmp_path / "run", create=True).close()
    with monkeypatch.context() as patch:
        patch.setattr(SimulatedPool, "_evaluate", evaluate)
        with pytest.raises(error):
            run(tmp_path / "run", seed=1)
    assert run(tmp_path / "run", seed=2).valid
    assert [event.data["settings"]["seed"] for event in rows(tmp_path / "run", "run")] == [2]


def test_the_file_of_another_program_stays(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE diary (day TEXT)")
    before = path.read_bytes()
    for begin in (run, resume):
        with pytest.raises(JournalError, match="not a journal of Tunesmith: it has a table diary"):
            begin(tmp_path)
    assert path.read_bytes()[100:] == before[100:]
    (tmp_path / "gemm-001").mkdir()
    assert new_run_dir("gemm", tmp_path) == tmp_path / "gemm-002"
    for given in ("a/some folder", "a/some folder/task.toml"):
        assert new_run_dir(given, tmp_path) == tmp_path / "some-folder-001"


@pytest.mark.parametrize("count", range(1, 14))
def test_ended_after_any_entry_the_extension_goes_on_to_its_end(ended: Path, monkeypatch: Any, count: int) -> None:
    with monkeypatch.context() as patch:
        end_after(patch, count)
        with suppress(Killed):
            resume(ended, more=3)
        result = resume(ended)
    assert len(set(keys(ended))) == len(keys(ended)) == 6, f"ended after entry {count}"
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
    with pytest.raises(TunesmithError, match=r"time limit of 35 s is spent; say with --time-limit"):
        resume(folder, more=4)
    assert len(rows(folder, "extended")) == 0
    result = resume(folder, time_limit=1000.0)
    assert len(keys(folder)) == 8
    assert result.summary["settings"]["time_limit"] > 1000.0


def test_an_ended_run_measures_more_unless_it_is_nonsense(ended: Path) -> None:
    count = len(rows(ended))
    for options, sentence in (
        ({"rounds": 1}, r"measured all that it may; say with --more"),
        ({"dispatch_shapes": 4, "rounds": 1}, r"has measured all that it may"),
        ({"more": -1}, r"--evaluations: give a number of at least 1, not -1\."),
        ({"time_limit": "10q"}, r"--time-limit: '10q' is not a duration"),
        ({"dispatch_shapes": -1}, r"--dispatch-shapes: give a number of at least 0"),
        ({"more": 10_000_000}, r"--evaluations: give a number of at most 1e.07"),
        ({"more": 1, "rounds": 1000}, r"--rounds: give a number of at most 1000, not 1001"),
    ):
        with pytest.raises(TunesmithError, match=sentence):
            resume(ended, **options)
        assert len(rows(ended)) == count
    before, first = keys(ended), resume(ended).summary
    summary = resume(ended, more=4).summary
    assert keys(ended)[:3] == before and len(set(keys(ended))) == len(keys(ended)) == 7
    assert summary.evaluations == summary.settings["evaluations"] == 7 and summary.ended_by == "rounds"
    # Against other noise and contents: as good as before, within what comparisons tell.
    assert first.ratio is not None and summary.ratio is not None and summary.ratio <= 1.05 * first.ratio
    assert len(rows(ended, "verdict")) == 2
    again = resume(ended, more=2, rounds=2).summary
    assert again.evaluations == 9 and [plan["round"] for plan in again["plans"]] == [1, 2, 3, 4]


def test_edited_files_are_told_before_a_run_goes_on_without_them(tmp_path: Path) -> None:
    task = shutil.copytree(SCALE_ADD.parent, tmp_path / "task")
    folder = tmp_path / "run"
    tuned(folder, task, evaluations=2, rounds=1)
    resume(folder)
    (task / "template.cl").write_text((task / "template.cl").read_text() + "// edited\n")
    with pytest.raises(TunesmithError, match=r"task\.toml: backends\): go on .* --as-recorded, or start a new run"):
        resume(folder, more=1)
    assert resume(folder, more=1, as_recorded=True).summary.evaluations == 3
    shutil.rmtree(task)
    assert resume(folder, more=1).summary.evaluations == 4
    # A template by rules is no change of the task.
    ruled = shutil.copytree(SCALE_ADD.parents[1], tmp_path / "data") / "raw_scale_add" / "task.toml"
    begun, _ = with_rules(read_task(ruled), "opencl")
    assert changed_files(begun, str(ruled), "opencl") == ""
    ruled.write_text(ruled.read_text().replace('flops = "2 * n"', 'flops = "3 * n"'))
    assert changed_files(begun, str(ruled), "opencl") == f"{ruled}: flops"


def script(call: ModelCall) -> Any:
    """Two branches a round; of the first round's templates one needs a repair; the second round changes one further."""
    number = call.stage.split("-")[1]
    if call.role == "plan":
        if number == "1":
            return plan(branch(moves=["one"]), branch(moves=["two"]))
        known = [line for line in call.messages[1].content.splitlines() if line.startswith("### ")]
        best = known[0].removeprefix("### ").strip()
        return plan(branch(parent=best, moves=["further"]), branch(parent=best, moves=[]))
    if call.role == "template":
        wrong = number == "1" and call.name == "template-2"
        seeds = [
            [{"name": "GROUP", "value": 4}, {"name": "ITEMS", "value": 64}, {"name": "UNROLL", "value": 0}],
            [{"name": "GROUP", "value": 5}],
        ]
        mark = "// WRONG\n" if wrong else ""
        return template(source=f"{mark}// {number} {call.name[:10]}\n{SOURCE}", seeds=seeds)
    raise AssertionError(call.role)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("ahead", "counts"),
    [
        (3, range(2, 1000, 11)),
        (1, range(8, 1000, 17)),  # one of these is between two comparisons
        pytest.param(1, range(1, 1000), marks=pytest.mark.slow),
        pytest.param(3, range(1, 1000, 3), marks=pytest.mark.slow),
    ],
)
def test_ended_anywhere_no_call_is_paid_twice(tmp_path: Path, monkeypatch: Any, ahead: int, counts: range) -> None:
    monkeypatch.setattr(ModelPool, "target_in_flight", ahead)
    settings: dict[str, Any] = {"rounds": 2, "evaluations": 14, "dispatch_shapes": 2}
    whole, models = model_run(tmp_path / "whole", script, **settings)
    paid, total = models.paid, len(rows(tmp_path / "whole"))
    assert len(paid) == len(set(paid)) == 6 and total > 40
    kinds = {event.kind for event in rows(tmp_path / "whole")}
    assert {"plan", "writing", "template", "seeds", "refused_seeds", "templates", "shape"} <= kinds
    for count in counts:
        if count >= total:
            break
        folder = tmp_path / f"ended-{count}"
        with monkeypatch.context() as patch:
            end_after(patch, count)
            with pytest.raises(Killed):
                model_run(folder, script, **settings)
        before = rows(folder)
        result, models = go_on(folder, script)
        after = rows(folder)
        assert [event.data for event in after[: len(before)]] == [event.data for event in before], "nothing is lost"
        assert len(keys(folder)) == len(set(keys(folder))) == 14, f"ended after entry {count}"
        once = ("run", "baseline", "plan", "searched", "templates", "writing")
        made: list[Any] = [(event.kind, event.stage) for event in after if event.kind in once]
        made += [(event.stage, str(event.data["workload"])) for event in after if event.kind in ("comparison", "shape")]
        made += [json.dumps(event.data["template"]) for event in after if event.kind == "template"]
        assert len(made) == len(set(made)), f"something was made twice, ended after entry {count}"
        assert result.valid and result.summary["ended_by"] == whole.summary["ended_by"]
        if ahead == 1:  # one evaluation at a time, the run asks exactly what the uninterrupted one asked
            assert asked(folder) == asked(whole.folder) and result.summary["general"] == whole.summary["general"]
            assert models.paid == paid
        assert sorted(models.paid) == sorted(set(models.paid)), f"paid twice, ended after entry {count}"
