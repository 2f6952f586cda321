"""A run with a model, ended after every single entry of its journal: no call is paid twice, no measurement is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from journal_rows import Killed, end_after, rows
from model_runs import ModelPool, go_on, keys, run
from scripted_models import SOURCE, branch, explain, plan, template

from tunesmith.graph.models.calls import ModelCall

pytestmark = pytest.mark.usefixtures("simulation")


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
    return [(event.data["template"], event.data["config"]) for event in rows(folder, "asked")]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("ahead", "counts"),
    [
        (3, range(2, 1000, 11)),
        pytest.param(1, range(1, 1000), marks=pytest.mark.slow),
        pytest.param(3, range(1, 1000, 3), marks=pytest.mark.slow),
    ],
)
def test_ended_after_any_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: int, counts: range) -> None:
    monkeypatch.setattr(ModelPool, "target_in_flight", ahead)
    settings: dict[str, Any] = {"rounds": 2, "evaluations": 14}
    whole, models = run(tmp_path / "whole", script, **settings)
    paid, total = models.paid, len(rows(tmp_path / "whole"))
    assert len(paid) == len(set(paid)) == 8 and total > 40
    kinds = {event.kind for event in rows(tmp_path / "whole")}
    assert {"plan", "writing", "template", "seeds", "refused_seeds", "templates", "explanation"} <= kinds
    for count in counts:
        if count >= total:
            break
        folder = tmp_path / f"ended-{count}"
        with monkeypatch.context() as patch:
            end_after(patch, count)
            with pytest.raises(Killed):
                run(folder, script, **settings)
        before = rows(folder)
        result, models = go_on(folder, script)
        after = rows(folder)
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


@pytest.mark.parametrize("at", (1, 3, 7))
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
