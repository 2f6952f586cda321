"""A run with a model, ended after every single entry of its journal: no call is paid twice, no measurement is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from model_runs import LIBRARY, RAW, ModelPool, entries, go_on, keys, run, simulation
from scripted_models import SOURCE, branch, explain, plan, template

from tunesmith.graph.journal.store import Journal
from tunesmith.graph.models.calls import ModelCall, ModelFailed, Waiting

__all__ = ["simulation"]
pytestmark = pytest.mark.usefixtures("simulation")


class Killed(BaseException):
    """The end of the process, for tests: nothing may catch it."""


def end_after(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    append, written = Journal.append, [0]

    def append_and_end(self: Journal, *arguments: Any) -> int:
        sequence = append(self, *arguments)
        written[0] += 1
        if written[0] == count:
            raise Killed
        return sequence

    monkeypatch.setattr(Journal, "append", append_and_end)


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
    return explain(f"Round {number} went well.")


def asked(folder: Path) -> list[Any]:
    return [(event.data["template"], event.data["config"]) for event in entries(folder, "asked")]


@pytest.mark.parametrize("ahead", [pytest.param(1, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.timeout(600)
def test_ended_after_any_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: int) -> None:
    check_ends(tmp_path, monkeypatch, ahead, range(1, 1000, ahead))


def test_ended_after_some_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_ends(tmp_path, monkeypatch, 3, range(2, 1000, 7))


def check_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: int, counts: range) -> None:
    monkeypatch.setattr(ModelPool, "target_in_flight", ahead)
    settings: dict[str, Any] = {"rounds": 2, "evaluations": 14}
    whole, models = run(tmp_path / "whole", script, **settings)
    assert models is not None
    paid, total = models.paid, len(entries(tmp_path / "whole"))
    assert len(paid) == len(set(paid)) == 8 and total > 40
    kinds = {event.kind for event in entries(tmp_path / "whole")}
    assert {"plan", "writing", "template", "seeds", "refused_seeds", "templates", "explanation"} <= kinds
    for count in counts:
        if count >= total:
            break
        folder = tmp_path / f"ended-{count}"
        with monkeypatch.context() as patch:
            end_after(patch, count)
            with pytest.raises(Killed):
                run(folder, script, **settings)
        before = entries(folder)
        result, models = go_on(folder, script)
        after = entries(folder)
        assert [event.data for event in after[: len(before)]] == [event.data for event in before]
        assert sorted(models.paid) == sorted(set(models.paid)), f"paid twice, ended after entry {count}"
        assert len(keys(folder)) == len(set(keys(folder))) == 14, f"ended after entry {count}"
        for kind in ("run", "baseline", "plan", "searched", "templates", "explanation", "writing"):
            stages = [event.stage for event in after if event.kind == kind]
            assert len(stages) == len(set(stages)), f"{kind} twice, ended after entry {count}"
        ids = [json.dumps(event.data["template"]) for event in after if event.kind == "template"]
        assert len(ids) == len(set(ids))
        assert result.valid and result.summary["ended_by"] == whole.summary["ended_by"]
        if ahead == 1:
            assert models.paid == paid, "the resumed run asks what the uninterrupted one asks"
            assert asked(folder) == asked(tmp_path / "whole")
            assert result.summary["general"] == whole.summary["general"]


@pytest.mark.parametrize("at", range(1, 9))
def test_ended_while_the_model_is_asked(tmp_path: Path, at: int) -> None:
    """The process ends inside the at-th question, before anything of its answer is known."""
    count = [0]

    def dying(call: ModelCall) -> Any:
        count[0] += 1
        if count[0] == at:
            raise Killed
        return script(call)

    with pytest.raises(Killed):
        run(tmp_path / "run", dying, rounds=2, evaluations=14)
    result, models = go_on(tmp_path / "run", script)
    assert len(models.paid) == len(set(models.paid)) == 8 and result.valid
    assert len(keys(tmp_path / "run")) == len(set(keys(tmp_path / "run"))) == 14


def test_a_run_that_waits_for_answers_goes_on_when_they_are_there(tmp_path: Path) -> None:
    """As a model behind files does it: every turn of questions ends the process."""
    from scripted_models import Scripted

    from tunesmith.graph import resume, tune
    from tunesmith.graph.models.calls import Reply

    class Later(Scripted):
        """Answers what stands in the ledger; writes everything else down and waits."""

        def ask_all(self, calls: Any) -> list[Reply | ModelFailed]:
            known = {entry["custom_id"] for entry in self._entries()}
            if fresh := [call for call in calls if call.custom_id not in known]:
                for call in fresh:
                    self.pending.append(call)
                raise Waiting("answers are awaited")
            return super().ask_all(calls)

    ledger = tmp_path / "ledger"
    folder, turns = tmp_path / "run", 0
    while True:
        models = Later(script, ledger)
        models.pending = []  # type: ignore[attr-defined]
        try:
            if turns == 0:
                result = tune(
                    RAW, run_dir=folder, models=models, backend="opencl", strategy="random", evaluations=14, rounds=2
                )
            else:
                result = resume(folder, models=models)
            break
        except Waiting:
            turns += 1
            assert turns < 20
            with ledger.open("a") as file:
                for call in models.pending:  # type: ignore[attr-defined]
                    entry = {"custom_id": call.custom_id, "digest": call.digest, "answer": script(call)}
                    file.write(json.dumps(entry) + "\n")
    # plan, both templates, a repair, explanation; plan, template, explanation.
    assert turns == 7 and result.valid
    assert len(models.paid) == len(set(models.paid)) == 8
    assert len(keys(folder)) == len(set(keys(folder))) == 14


def test_the_same_journal_gives_the_same_prompts(tmp_path: Path) -> None:
    first, second = [], []
    for folder, seen in ((tmp_path / "a", first), (tmp_path / "b", second)):

        def noting(call: ModelCall, seen: list[ModelCall] = seen) -> Any:
            seen.append(call)
            return script(call)

        run(folder, noting, rounds=2, evaluations=14)
    assert [(call.custom_id, call.digest) for call in first] == [(call.custom_id, call.digest) for call in second]


def test_a_library_run_with_rules_is_not_changed_by_a_model_that_fails(tmp_path: Path) -> None:
    def failing(call: ModelCall) -> Any:
        return ModelFailed("unreachable", "no connection")

    ruled, _ = run(tmp_path / "rules", None, task=LIBRARY, rounds=1)
    failed, _ = run(tmp_path / "failed", failing, task=LIBRARY, rounds=1)
    assert [config for _, config in asked(tmp_path / "rules")] == [config for _, config in asked(tmp_path / "failed")]
    assert ruled.summary["general"] == failed.summary["general"]
