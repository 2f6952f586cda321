"""Rounds that rules plan: the workloads and their order, how the budget is spent, and rules that are withdrawn."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from journal_rows import events, rows
from model_runs import RAW, ModelPool, plans_of, run
from simulated_pool import SCALE_ADD, SimulatedPool, add_templates, add_workload, changed

from tunesmith.graph import resume
from tunesmith.graph.journal.events import Evaluated, Noted, TemplateAdded
from tunesmith.graph.journal.log import RunLog
from tunesmith.graph.journal.store import Journal
from tunesmith.graph.models.calls import Waiting
from tunesmith.graph.roles.tuner import ask_order, max_evaluations
from tunesmith.graph.run import RunResult
from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.outcome import Evaluation, WrongResult
from tunesmith.kernels.rewrite import template
from tunesmith.kernels.rewrite.edits import insert
from tunesmith.kernels.rewrite.passes.launch import BLOCK_SIZE
from tunesmith.kernels.rewrite.passes.record import Change, Pass, Plan, Refused, Subject
from tunesmith.kernels.spec.template import Parameter, config_key

pytestmark = pytest.mark.usefixtures("simulation")
REFUSED = Refused("elements are read one by one: no reason")
VECTORS_REFUSED = Pass("vectors", lambda _: REFUSED, lambda *_: Change(), languages=("opencl",))
EVERYTHING = ("16384", "5000", "777")
WRONG = WrongResult("mismatch", "out", "it is wrong on fresh contents")


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """scale_add, with one tuned workload."""
    return Path(shutil.copytree(SCALE_ADD.parent, tmp_path / "task"))


@pytest.fixture
def wide(task: Path) -> Path:
    """scale_add with three tuned workloads."""
    add_workload(task)
    return task


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


def tuned(task: Path, folder: Path, **settings: Any) -> RunResult:
    return run(folder, None, task=str(task), seed=1, **settings)[0]


def slower(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """Evaluations of a template's configurations are what `change` makes of them."""
    whole = ModelPool._evaluate

    def evaluate(self: ModelPool, request: Any) -> Evaluation:
        found = whole(self, request)
        return change(request.template.name, found) if request.config else found

    monkeypatch.setattr(ModelPool, "_evaluate", evaluate)


def test_after_each_workload_had_a_round_all_are_searched_again(wide: Path, folder: Path) -> None:
    tuned(wide, folder, evaluations=14, rounds=3)
    # A run that goes on takes up where the turns were.
    resume(folder, more=10, rounds=3)
    plans = plans_of(folder)
    assert [plan.scope for plan in plans] == ["general", "workload", "workload", "workload", "general", "workload"]
    assert plans[0].workloads == plans[4].workloads == EVERYTHING
    assert sorted(plan.workloads[0] for plan in plans[1:4]) == sorted(EVERYTHING)
    evaluated = rows(folder, "evaluation")
    before = [row.data["evaluation"] | row.data for row in evaluated if row.stage not in ("round-5", "round-6")]
    what = [(row.data["key"], tuple(row.data["evaluation"]["outcomes"])) for row in evaluated]
    assert len(set(what)) == len(what) > 20, "nothing is measured twice on the same workloads"

    def best(workload: str) -> str:
        times = {
            one["key"]: one["outcomes"][workload]["seconds"]
            for one in before
            if workload in one["outcomes"] and one["outcomes"][workload]["kind"] == "measured"
        }
        return min(times, key=lambda key: times[key])

    assert set(map(config_key, plans[4].branches[0].seeds)) == {best(name) for name in EVERYTHING}


def test_a_template_by_rules_is_first_tried_where_its_rules_promise_most(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simulated_pool.seconds", lambda config, workload: 1e-5 if config else 2e-5)
    run(folder, None, evaluations=6, rounds=1)
    ((branch,),) = [plan.branches for plan in plans_of(folder)]
    assert branch.parent.startswith("by-rules") and branch.seeds, branch
    asked = [config_key(row.data["config"]) for row in rows(folder, "asked")]
    assert asked[: len(branch.seeds)] == list(map(config_key, branch.seeds))


def test_a_winner_far_from_its_floor_says_which_rule_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulated_pool.seconds", lambda config, workload: 1e-5 if config else 2e-5)
    monkeypatch.setattr(SimulatedPool, "calibrate", lambda self: Roofline(((1 << 20, 1e15),), {}, 1e-7))
    monkeypatch.setattr(template, "RULES", (BLOCK_SIZE, VECTORS_REFUSED))
    result, _ = run(folder, None, task=RAW, evaluations=6, rounds=1)
    [note] = [one for one in result.summary.notes if "times its floor" in one]
    assert note.endswith("A rule that could bring it nearer does not apply: elements are read one by one: no reason.")


@pytest.mark.parametrize("better", ["runs", "other"])
def test_a_workload_is_searched_in_the_template_that_was_best_on_it(
    wide: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, better: str
) -> None:
    add_templates(wide, "other")

    def change(name: str, found: Evaluation) -> Evaluation:
        factor = 1.0 if name == better else 3.0
        return changed(found, lambda _, one: replace(one, seconds=factor * one.seconds))

    slower(monkeypatch, change)
    tuned(wide, folder, evaluations=24, rounds=4)
    parents = [plan.branches[0].parent.split("-")[0] for plan in plans_of(folder)]
    assert parents == ["runs", "other", better, better]


def test_later_rounds_go_by_the_plan_as_a_person_changed_it(wide: Path, folder: Path) -> None:
    with pytest.raises(Waiting):
        tuned(wide, folder, evaluations=16, rounds=4, approve="plans")
    first = folder / "plan-1.json"
    changed_plan = {"workloads": ["777", "16384", "5000", "777"], "scope": "workload"}
    first.write_text(json.dumps(json.loads(first.read_text()) | changed_plan))
    with pytest.raises(Waiting):
        resume(folder)
    file = folder / "plan-2.json"
    planned = json.loads(file.read_text())
    other = next(name for name in EVERYTHING if name not in planned["workloads"])
    # The scope follows from the workloads, whatever the file says.
    file.write_text(json.dumps(planned | {"workloads": [other], "scope": "general"}))
    for _ in range(2):
        with pytest.raises(Waiting):
            resume(folder)
    assert resume(folder).valid
    with Journal(folder, create=False) as journal:
        found = RunLog(journal).plans
    assert [one.scope for one in found] == ["general", "workload", "workload", "workload"]
    assert found[0].workloads == EVERYTHING and found[1].workloads == (other,)
    assert {name for one in found[1:] for name in one.workloads} == set(EVERYTHING)
    assert json.loads((folder / "summary.json").read_text())["plans"][1]["workloads"] == [other]


def test_every_template_is_searched_before_a_run_is_exhausted(task: Path, folder: Path) -> None:
    add_templates(task, "second")
    result = tuned(task, folder, evaluations=200, rounds=4)
    assert [one.branches[0].parent.split("-")[0] for one in plans_of(folder)][:2] == ["runs", "second"]
    assert result.summary.ended_by == "exhausted" and result.summary.evaluations == 2 * 28


def test_a_search_of_one_workload_exhausts_nothing(wide: Path, folder: Path) -> None:
    """What was measured on one workload alone can never be the general configuration."""
    assert tuned(wide, folder, evaluations=90, rounds=9).summary.ended_by in ("exhausted", "rounds")
    found = [one.evaluation for one in events(folder, Evaluated)]
    for name in EVERYTHING:
        measured = {str(one.config) for one in found if name in one.outcomes}
        assert len(measured) >= 21, "all that compiles, on every workload"


def test_a_wrong_template_leaves_budget_to_the_next(task: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_templates(task, "second")

    def change(name: str, found: Evaluation) -> Evaluation:
        outcomes = {next(iter(found.outcomes)): WRONG}
        return replace(found, outcomes=outcomes) if name == "runs" else found

    slower(monkeypatch, change)
    result = tuned(task, folder, evaluations=20, rounds=2)
    assert result.valid and result.summary.evaluations == 20


@pytest.mark.parametrize("second", [False, True])
def test_a_template_without_choices_is_measured(task: Path, folder: Path, second: bool) -> None:
    add_templates(task, *(["second"] if second else []))
    text = (task / "template.toml").read_text()
    text = text.replace("values = [1, 4, 16, 64]", "values = [16]").replace("values = [0, 1]", "values = [0]")
    (task / "template.toml").write_text(re.sub(r"default = \d+, ", "", text))
    result = tuned(task, folder, evaluations=30, rounds=3)
    assert result.valid and result.summary.evaluations == (1 + 28 if second else 1)


def planted(name: str, mark: str) -> Pass:
    """A rule whose code the simulated device takes for wrong, whatever its parameter is."""

    def broken(subject: Subject, _: bool, plan: Plan) -> Change:
        edit = insert(subject.facts.body.end - 1, f"// {mark}\n")
        return Change(parameters=(Parameter(name=name.upper(), values=(0, 1), doc=name),), edits=(edit,))

    return Pass(name, lambda subject: True, broken, languages=("opencl",))


DOES_NOT_COMPILE, IS_WRONG = planted("unreadable", "DOES_NOT_COMPILE"), planted("wrong", "WRONG")


@pytest.mark.parametrize(
    ("rules", "withdrawn", "left"),
    [
        ((DOES_NOT_COMPILE, *template.RULES), ["unreadable"], {"BLOCK", "VEC", "ITEMS", "BLOCKED"}),
        ((BLOCK_SIZE, IS_WRONG, DOES_NOT_COMPILE), ["unreadable", "wrong"], {"BLOCK"}),
        ((IS_WRONG,), ["wrong"], set()),
    ],
)
def test_rules_that_break_a_kernel_are_withdrawn(
    rules: tuple[Pass, ...], withdrawn: list[str], left: set[str], monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setattr(template, "RULES", rules)
    monkeypatch.setattr("simulated_pool.seconds", lambda config, workload: 1e-5 if config else 2e-5)
    result, _ = run(folder, None, task=RAW, evaluations=8, rounds=1)
    [searched] = [one.template for one in events(folder, TemplateAdded)]
    notes = " ".join(one.sentence for one in events(folder, Noted, "round-1"))
    assert {one.name for one in searched.parameters} == left
    for name in withdrawn:
        assert f"The rule {name} is withdrawn" in notes
    assert result.summary.general is not None and result.summary.general.template == searched.id


def play(values: list[float], total: int) -> list[int]:
    """Evaluations each template gets, when the k-th is as good as values[k] from its first evaluation on."""
    asked = [0] * len(values)
    for _ in range(total):
        best = [value if count else None for value, count in zip(values, asked, strict=True)]
        asked[ask_order(asked, best, total)[0]] += 1
    return asked


@pytest.mark.parametrize(
    ("values", "total", "wanted"),
    [
        ([1.0], 17, [17]),
        ([1.0, 2.0], 40, [30, 10]),
        ([2.0, 1.0], 40, [10, 30]),
        ([4.0, 3.0, 2.0, 1.0], 48, [4, 4, 12, 28]),
    ],
)
def test_half_are_out_after_each_part(values: list[float], total: int, wanted: list[int]) -> None:
    assert play(values, total) == wanted and max_evaluations(len(values), total) == max(wanted)


def test_a_template_that_becomes_better_is_in_again() -> None:
    assert ask_order([10, 10], [1.0, 2.0], 40)[0] == 0
    assert ask_order([15, 10], [1.0, 0.9], 40)[0] == 1


def test_a_template_without_a_result_stands_behind_one_with() -> None:
    assert ask_order([10, 10], [None, 2.0], 40)[0] == 1
    assert ask_order([0, 0, 0], [None, None, None], 30)[0] == 0


@given(some.lists(some.floats(0.01, 100), min_size=1, max_size=8), some.integers(1, 300))
def test_all_is_spent_each_has_a_turn_and_none_more_than_the_maximum(values: list[float], total: int) -> None:
    asked = play(values, total)
    assert sum(asked) == total
    assert max(asked) <= max_evaluations(len(values), total) + len(values)
    if total >= 4 * len(values) ** 2:
        assert min(asked) > 0
