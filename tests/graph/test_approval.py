"""Plans that wait for a person: as a file and on a terminal, edited, refused, killed and resumed."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from journal_rows import Killed, rows
from model_runs import LIBRARY, branch, go_on, keys, plan, run, template

from tunesmith.cli.live import ask_on
from tunesmith.graph import resume, tune
from tunesmith.graph.journal.events import Event
from tunesmith.graph.journal.log import Journal
from tunesmith.graph.models.calls import ModelCall, Waiting
from tunesmith.graph.progress import silent
from tunesmith.hw.errors import TunesmithError

pytestmark = pytest.mark.usefixtures("simulation")


def script(call: ModelCall) -> Any:
    if call.role == "template":
        return template(name=call.name, source=f"// {call.messages[1].content.count('greedy')}\n{template()['source']}")
    return {"plan": plan(branch(moves=["modest"]))}[call.role]


def edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def waiting(tmp_path: Path, script: Any = script, **settings: Any) -> Path:
    """The folder of a run that waits for the approval of its first plan."""
    with pytest.raises(Waiting, match=r"waits for approval in .*plan-1.json: edit it or leave it as it is"):
        run(tmp_path / "run", script, **{"rounds": 1, "approve": "plans"} | settings)
    return tmp_path / "run"


def test_without_a_terminal_every_plan_waits_in_a_file(tmp_path: Path) -> None:
    folder = waiting(tmp_path, rounds=2)
    assert rows(folder, "asked") == [] and json.loads((folder / "plan-1.json").read_text())["round"] == 1
    with pytest.raises(Waiting, match=r"plan-2\.json"):
        go_on(folder, script)
    assert len(rows(folder, "searched")) == 1
    result, models = go_on(folder, script)
    assert result.valid and result.summary["evaluations"] == 12 and len(models.paid) == len(set(models.paid)) == 4
    assert len(rows(folder, "approved")) == 2


def test_an_edited_plan_is_what_is_carried_out(tmp_path: Path) -> None:
    folder = waiting(tmp_path)
    branches = [{"parent": "baseline", "kind": "template", "moves": ["greedy"], "seeds": []}]
    words = {"bottleneck": "compute", "analysis": "A person knows better."}
    edit(folder / "plan-1.json", evaluations=4, branches=branches, **words)
    result, models = go_on(folder, script)
    assert result.valid and result.summary["evaluations"] == 4 and result.summary["templates"][0]["moves"] == ["greedy"]
    (call,) = models.asked("template")
    assert "greedy" in call.messages[1].content and "modest" not in call.messages[1].content
    assert (result.summary["plans"][0]["bottleneck"], result.summary["plans"][0]["analysis"]) == tuple(words.values())


WRONG_PLANS: list[tuple[dict[str, Any], str]] = [
    ({"workloads": ["nowhere"]}, "workloads: there is no nowhere; tuned are 16384"),
    ({"workloads": []}, "workloads: name at least one of 16384"),
    ({"evaluations": 9999}, "evaluations: give 1 to 12, the rest of the budget"),
    ({"round": 7}, "round is 7, but the run is in round 1"),
    ({"branches": [{"parent": "ghost", "kind": "search"}]}, "There is no template 'ghost'"),
    ({"branches": [{"parent": "baseline", "kind": "template", "moves": ["x"]}]}, "only a search needs no model"),
    ({"branches": []}, "key branches: "),
    ({"bottleneck": "gremlins"}, "key bottleneck: choose 'memory'"),
    ({"workload": ["16384"]}, "unknown key 'workload'; did you mean 'workloads'?"),
]


def test_a_plan_that_makes_no_sense_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    folder = waiting(tmp_path, None, task=LIBRARY)
    file = folder / "plan-1.json"
    kept = file.read_text()
    texts = [(json.dumps(json.loads(kept) | changes), sentence) for changes, sentence in WRONG_PLANS]
    for text, sentence in [*texts, ("{", "is not valid JSON")]:
        file.write_text(text)
        with pytest.raises(TunesmithError) as refused:
            resume(folder)
        assert sentence in str(refused.value) and str(file) in str(refused.value) and "\n" not in str(refused.value)
    file.unlink()
    with pytest.raises(TunesmithError, match="cannot be read"):
        resume(folder)
    file.write_text(kept)
    # Two searches of one template try the seeds of both.
    (planned,) = json.loads(kept)["branches"]
    seeds = [{"GROUP": group, "ITEMS": 4, "UNROLL": 1} for group in (64, 4, 16)]
    branches = [planned | {"seeds": seeds[:2]}, planned | {"parent": "runs", "seeds": seeds[1:]}]
    edit(file, evaluations=3, branches=branches)
    assert resume(folder).summary["evaluations"] == 3
    assert [event.data["config"] for event in rows(folder, "asked")] == seeds


@pytest.mark.parametrize("kind", ["plan", "awaiting", "approved"])
def test_killed_around_the_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    append_all = Journal.append_all

    def dying(self: Journal, events: Sequence[tuple[Event, str]]) -> int:
        sequence = append_all(self, events)
        if kind in [event.kind for event, _ in events]:
            raise Killed
        return sequence

    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append_all", dying)
        with pytest.raises(Killed if kind != "approved" else Waiting):
            run(folder, script, rounds=1, approve="plans")
        if kind == "approved":
            with pytest.raises(Killed):
                go_on(folder, script)
    if kind == "plan":
        # Killed before anybody could know of the file, the run stops once more; afterwards it does not.
        with pytest.raises(Waiting):
            go_on(folder, script)
    assert rows(folder, "asked") == []
    result, models = go_on(folder, script)
    assert result.valid and len(models.paid) == len(set(models.paid)) == 2
    assert len(rows(folder, "approved")) == 1 and len(keys(folder)) == len(set(keys(folder))) == 12


def test_a_terminal_may_quit_or_edit_until_there_is_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, values, shown = ["q", "what?", "e", "y", "e", "y"], [{"evaluations": 0}, {"evaluations": 2}], list[str]()
    monkeypatch.setattr(click, "prompt", lambda *_, **__: answers.pop(0))
    monkeypatch.setattr(click, "echo", lambda text, **_: shown.append(text))
    monkeypatch.setattr(click, "edit", lambda filename: edit(Path(filename), **values.pop(0)))
    folder, settings = tmp_path / "run", {"backend": "opencl", "evaluations": 6, "rounds": 1, "approve": "plans"}
    with pytest.raises(Waiting, match="Stopped before round 1; go on with `tunesmith resume"):
        tune(LIBRARY, run_dir=folder, ask=ask_on(silent), **settings)
    shown.clear()
    assert resume(folder, ask=ask_on(silent)).summary["evaluations"] == 2 and answers == []
    assert json.loads(shown[0])["round"] == 1 and len(shown) == 2 and "evaluations: give 1 to 6" in shown[1]
