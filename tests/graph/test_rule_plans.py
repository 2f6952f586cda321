"""Rounds that rules plan: the workloads and their order, how the budget is spent, rules that are withdrawn; and on the
tree of templates and rewrites, where every call is for code, and its kinds take turns."""

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
from model_runs import RAW, SOURCE, ModelPool, branch, code, plan, plans_of, rewrite, run, template
from simulated_pool import SCALE_ADD, SimulatedPool, add_templates, add_workload, changed

from tunesmith.graph import resume
from tunesmith.graph.journal.events import BranchAbandoned, Evaluated, Noted, TemplateAdded
from tunesmith.graph.journal.log import Journal, Node, RunLog, Tree
from tunesmith.graph.models.calls import ModelCall, ModelFailed, Waiting
from tunesmith.graph.roles.planner import branch_problems, options_of
from tunesmith.graph.roles.templater import RewriteAnswer
from tunesmith.graph.roles.tuner import ask_order, max_evaluations
from tunesmith.graph.run import RunResult
from tunesmith.graph.state import Branch
from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.outcome import Evaluation, Measured, WrongResult
from tunesmith.kernels.rewrite import template as rewriting
from tunesmith.kernels.rewrite.edits import insert
from tunesmith.kernels.rewrite.passes.launch import BLOCK_SIZE
from tunesmith.kernels.rewrite.passes.record import Change, Pass, Subject, require
from tunesmith.kernels.spec.taskfile import load_task
from tunesmith.kernels.spec.template import Parameter, Template, config_key

pytestmark = pytest.mark.usefixtures("simulation")
REFUSED = "elements are read one by one: no reason"
VECTORS_REFUSED = Pass("vectors", lambda _: require(False, REFUSED), lambda *_: Change(), languages=("opencl",))
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


def test_templates_by_rules_begin_where_rules_promise_most_and_refusals_show(folder: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("simulated_pool.seconds", lambda config, workload: 1e-5 if config else 2e-5)
    run(folder, None, evaluations=6, rounds=1)
    ((branch,),) = [plan.branches for plan in plans_of(folder)]
    assert branch.parent.startswith("by-rules") and branch.seeds, branch
    asked = [config_key(row.data["config"]) for row in rows(folder, "asked")]
    assert asked[: len(branch.seeds)] == list(map(config_key, branch.seeds))
    # The winner is far from its floor.
    monkeypatch.setattr(SimulatedPool, "calibrate", lambda self: Roofline(((1 << 20, 1e15),), {}, 1e-7))
    monkeypatch.setattr(rewriting, "RULES", (BLOCK_SIZE, VECTORS_REFUSED))
    result, _ = run(folder.with_name("far"), None, task=RAW, evaluations=6, rounds=1)
    assert plans_of(folder.with_name("far"))[0].bottleneck == "unknown", "the task says nothing of its arithmetic"
    [note] = [one for one in result.summary.notes if "times its floor" in one]
    assert "times its floor by memory traffic (" in note
    assert note.endswith("A rule that could bring it nearer does not apply: elements are read one by one: no reason.")


@pytest.mark.parametrize("better", ["runs", "other"])
def test_a_workload_is_searched_in_its_best_template(wide: Path, folder: Path, monkeypatch: Any, better: str) -> None:
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


def test_all_templates_are_searched_and_wrong_ones_leave_budget(task: Path, folder: Path, monkeypatch: Any) -> None:
    add_templates(task, "second")
    result = tuned(task, folder, evaluations=200, rounds=4)
    assert [one.branches[0].parent.split("-")[0] for one in plans_of(folder)][:2] == ["runs", "second"]
    assert result.summary.ended_by == "exhausted" and result.summary.evaluations == 2 * 28

    def change(name: str, found: Evaluation) -> Evaluation:
        return replace(found, outcomes={next(iter(found.outcomes)): WRONG}) if name == "runs" else found

    slower(monkeypatch, change)
    result = tuned(task, folder.with_name("wrong"), evaluations=20, rounds=2)
    assert result.valid and result.summary.evaluations == 20


def test_a_search_of_one_workload_exhausts_nothing(wide: Path, folder: Path) -> None:
    """What was measured on one workload alone can never be the general configuration."""
    assert tuned(wide, folder, evaluations=90, rounds=9).summary.ended_by in ("exhausted", "rounds")
    found = [one.evaluation for one in events(folder, Evaluated)]
    for name in EVERYTHING:
        measured = {str(one.config) for one in found if name in one.outcomes}
        assert len(measured) >= 21, "all that compiles, on every workload"


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

    def broken(subject: Subject, _: bool) -> Change:
        edit = insert(subject.facts.body.end - 1, f"// {mark}\n")
        return Change(parameters=(Parameter(name=name.upper(), values=(0, 1), doc=name),), edits=(edit,))

    return Pass(name, lambda subject: True, broken, languages=("opencl",))


DOES_NOT_COMPILE, IS_WRONG = planted("unreadable", "DOES_NOT_COMPILE"), planted("wrong", "WRONG")


def test_rules_that_break_a_kernel_are_withdrawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("simulated_pool.seconds", lambda config, workload: 1e-5 if config else 2e-5)
    for rules, withdrawn, left in (
        ((DOES_NOT_COMPILE, *rewriting.RULES), ["unreadable"], {"BLOCK", "VEC", "ITEMS", "BLOCKED"}),
        ((BLOCK_SIZE, IS_WRONG, DOES_NOT_COMPILE), ["unreadable", "wrong"], {"BLOCK"}),
        ((IS_WRONG,), ["wrong"], set()),
    ):
        folder = tmp_path / f"{len(rules)}-rules"
        with monkeypatch.context() as patch:
            patch.setattr(rewriting, "RULES", rules)
            result, _ = run(folder, None, task=RAW, evaluations=8, rounds=1)
        [searched] = [one.template for one in events(folder, TemplateAdded)]
        notes = " ".join(one.sentence for one in events(folder, Noted, "round-1"))
        assert {one.name for one in searched.parameters} == left
        assert all(f"The rule {name} is withdrawn" in notes for name in withdrawn)
        assert result.summary.general is not None and result.summary.general.template == searched.id


def play(values: list[float], total: int) -> list[int]:
    """Evaluations each template gets, when the k-th is as good as values[k] from its first evaluation on."""
    asked = [0] * len(values)
    for _ in range(total):
        best = [value if count else None for value, count in zip(values, asked, strict=True)]
        asked[ask_order(asked, best, total)[0]] += 1
    return asked


def test_half_are_out_after_each_part_and_who_becomes_better_is_in_again() -> None:
    for values, total, wanted in (
        ([1.0], 17, [17]),
        ([1.0, 2.0], 40, [30, 10]),
        ([2.0, 1.0], 40, [10, 30]),
        ([4.0, 3.0, 2.0, 1.0], 48, [4, 4, 12, 28]),
    ):
        assert play(values, total) == wanted and max_evaluations(len(values), total) == max(wanted)
    assert ask_order([10, 10], [1.0, 2.0], 40)[0] == 0 and ask_order([15, 10], [1.0, 0.9], 40)[0] == 1
    assert ask_order([10, 10], [None, 2.0], 40)[0] == 1, "who has no result stands behind who has one"
    assert ask_order([0, 0, 0], [None, None, None], 30)[0] == 0


@given(some.lists(some.floats(0.01, 100), min_size=1, max_size=8), some.integers(1, 300))
def test_all_is_spent_each_has_a_turn_and_none_more_than_the_maximum(values: list[float], total: int) -> None:
    asked = play(values, total)
    assert sum(asked) == total and max(asked) <= max_evaluations(len(values), total) + len(values)
    if total >= 4 * len(values) ** 2:
        assert min(asked) > 0


def test_every_call_is_for_code_and_each_kind_is_tried(tmp_path: Path) -> None:
    def near(call: ModelCall) -> Any:
        """Whole kernels come near to the best of the template."""
        return rewrite(f"LIKE 16 16 0 {call.custom_id}") if call.schema is RewriteAnswer else code(call)

    result, models = run(tmp_path / "run", near, rounds=3, evaluations=30, planner="rules", least_gain=0.0)
    assert result.valid and models is not None
    assert all(".template." in name for name in models.paid), "none is for a plan"
    first, second, third = plans_of(tmp_path / "run")
    assert [(one.kind, one.parent) for one in first.branches] == [("rewrite", "baseline"), ("template", "baseline")]
    whole = next(event for event in events(tmp_path / "run", TemplateAdded) if event.made_by == "rewrite")
    assert not whole.template.has_choices
    # The best template is searched further without a call; the rewrite that came near it gets parameters.
    assert second.branches[0].kind == "search"
    later = [one for plan in (second, third) for one in plan.branches]
    assert sum(one.kind == "expose" and one.parent == whole.id for one in later) == 1
    asked = [call.messages for turn in models.turns for call in turn]
    exposing = next(one for one in asked if "turn the numbers it has chosen" in one[1].content)
    # What the run found of its own template takes the place of an example from the library.
    assert "An example: the template of another kernel" not in exposing[0].content
    assert "Another template of this run" in exposing[1].content and '"parameters": [' in exposing[1].content
    assert "Least time seen with each value" in exposing[1].content
    of_kernels = [one[1].content for one in asked if one[1].content.endswith("Write the kernel.\n")]
    later = [text for text in of_kernels if "## The parent: " in text]
    assert later and all("and with these values:" in text and '"values": [' not in text for text in later)
    assert "round 1, rewrite: Sixteen elements a work-item.: " in later[0]


def test_rules_stop_rewriting_where_it_gains_little_and_end_after_a_search_of_the_constants(tmp_path: Path) -> None:
    about: dict[str, Any] = {"rounds": 6, "branches": 1, "evaluations": 40, "least_gain": 0.9}
    result, _ = run(tmp_path / "run", code, planner="rules", **about)
    written = [[one.kind for one in plan.branches if one.written] for plan in plans_of(tmp_path / "run")]
    assert written == [["rewrite"], ["rewrite"], ["expose"]] and result.summary.ended_by == "little gain"


def test_no_more_is_asked_than_the_cap_on_calls_allows_and_an_arm_plans_its_own_kinds(tmp_path: Path) -> None:
    # The scripted model keeps no account, so the cap stands in the plan alone.
    run(tmp_path / "run", code, rounds=1, planner="rules", max_calls=1)
    (plan,) = plans_of(tmp_path / "run")
    assert [one.kind for one in plan.branches] == ["template"]
    run(tmp_path / "arm", code, rounds=2, evaluations=20, planner="rules", arm="template+search")
    kinds = {one.kind for each in plans_of(tmp_path / "arm") for one in each.branches}
    assert kinds == {"template", "extend", "search"}


def test_rules_search_a_template_where_a_rewrite_is_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ModelPool._evaluate

    def evaluate(self: ModelPool, request: Any) -> Evaluation:
        factor = 1.3 if request.config else 1.0
        return changed(whole(self, request), lambda _, one: replace(one, seconds=one.seconds * factor))

    def script(call: ModelCall) -> Any:
        if call.role == "template":
            return rewrite("LIKE 16 16 1") if call.schema is RewriteAnswer else template()
        if call.stage == "round-1" and call.role == "plan":
            return plan(branch(kind="template"), branch(kind="rewrite"))
        return ModelFailed("capped", "the cap is reached")

    monkeypatch.setattr(ModelPool, "_evaluate", evaluate)
    result, _ = run(tmp_path / "run", script, rounds=5, evaluations=60)
    searched = [one for later in plans_of(tmp_path / "run")[1:] for one in later.branches]
    assert searched and all("whole-" not in one.parent for one in searched)
    assert result.summary.evaluations == 29, "the template's 28 points, and the rewrite"


def test_what_a_last_check_found_wrong_is_built_on_by_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ModelPool.compare

    def compare(self: ModelPool, baseline: Any, candidates: Any, workload: str, **more: Any) -> Any:
        found = whole(self, baseline, candidates, workload, **more)
        results = (
            WRONG if not one.template.parameters and one.template.name == "whole" else result
            for one, result in zip(candidates, found.results, strict=True)
        )
        return replace(found, results=tuple(results))

    monkeypatch.setattr(ModelPool, "compare", compare)
    result, models = run(tmp_path / "run", code, rounds=3, evaluations=24, planner="rules")
    later = [one for later in plans_of(tmp_path / "run")[1:] for one in later.branches]
    assert result.valid and later and all("whole-" not in one.parent for one in later)
    history = [call.messages[1].content for call in models.asked() if call.stage != "round-1"]
    assert any("round 1, rewrite: Sixteen elements a work-item.: wrong in the last check" in one for one in history)


def test_code_is_asked_for_where_only_the_plan_failed_and_repaired_where_it_can_be_tried(tmp_path: Path) -> None:
    """Of a task that brings no template: rules alone would have nothing to plan."""

    def unplanned(call: ModelCall) -> Any:
        if call.role == "plan":
            return ModelFailed("unstructured", "no plan")
        return rewrite("LIKE 16 4 0") if call.schema is RewriteAnswer else template()

    def script(call: ModelCall) -> Any:
        if call.role == "plan":
            return plan(branch(moves=["a"]), branch(moves=["b"]))
        return template(source=f"// DOES_NOT_COMPILE\n{SOURCE}") if call.name.startswith("template-2") else template()

    assert run(tmp_path / "unplanned", unplanned, rounds=1, evaluations=9)[0].valid
    _, models = run(tmp_path / "run", script, rounds=1, evaluations=2)
    assert [call.name for call in models.asked()] == ["plan", "template-1", "template-2"]


def test_an_answer_that_the_run_has_already_is_a_call_without_gain(tmp_path: Path) -> None:
    def script(call: ModelCall) -> Any:
        return rewrite("LIKE 16 16 0") if call.schema is RewriteAnswer else template()

    run(tmp_path / "run", script, rounds=4, evaluations=40, planner="rules")
    assert [event.made_by for event in events(tmp_path / "run", TemplateAdded)] == ["rewrite", "template"]
    exposed = [one for later in plans_of(tmp_path / "run") for one in later.branches if one.kind == "expose"]
    assert len({one.parent for one in exposed}) == len(exposed), "the same question is not asked twice"


def node(name: str, made_by: Any, round_: int, best: float, parent: str = "baseline") -> Node:
    """Of a kernel as a whole, which has no parameters, where a rewrite made it."""
    known = load_task(str(Path(RAW).parent.parent / "scale_add" / "task.toml")).sources("opencl").templates[0]
    without: dict[str, Any] = {"parameters": (), "constraints": ()} if made_by == "rewrite" else {}
    made: Template = known.model_copy(update={"name": name, **without})
    ranked = ((best, Evaluation(made.id, made.default_config, {})),)
    about: dict[str, Any] = {"parent": parent, "moves": ("a move",), "made_by": made_by, "answers": 1}
    return Node(template=made, round=round_, ranked=ranked, **about)


def failure(parent: str, kind: Any, answers: int) -> BranchAbandoned:
    about: dict[str, Any] = {"parent": parent, "moves": ("x",), "problem": "why"}
    return BranchAbandoned(round=2, branch=0, made_by=kind, answers=answers, **about)


def test_what_is_known_of_a_tree_and_the_kinds_that_it_allows() -> None:
    first = node("first", "template", 1, 0.2)
    whole = node("whole", "rewrite", 1, 0.21)
    assert [one.kind for one in options_of(Tree(()), narrow=True)] == ["template", "rewrite"]
    kinds = ["expose", "extend", "rewrite", "template"]
    assert [one.kind for one in options_of(Tree((first, whole)), narrow=False)][:2] == ["rewrite", "expose"]
    found = options_of(Tree((first, whole)), narrow=True)
    assert [one.kind for one in found] == kinds and [one.parent for one in found[:2]] == [whole.id, first.id]
    assert found[3].moves != options_of(Tree(()), narrow=True)[0].moves, "another organisation than the first"
    failed = failure(whole.id, "expose", 2)
    wider = node("wider", "extend", 2, 0.19, parent=first.id)
    later = options_of(Tree((first, whole, wider), (failed,)), narrow=True)
    assert [one.kind for one in later] == ["extend", "rewrite", "template"], "the kernel is not exposed again"
    assert later[0].parent == wider.id
    # Kinds that do not fit their parent are named.
    tuned = node("a", "template", 1, 0.5)
    whole = node("b", "rewrite", 1, 0.5)
    tree = Tree((tuned, whole))
    wrong = {
        "no parameters": Branch(parent="baseline", kind="search"),
        "has parameters already": Branch(parent=tuned.id, kind="expose"),
        "expose its constants": Branch(parent=whole.id, kind="extend"),
        "Moves are missing": Branch(parent=whole.id, kind="rewrite"),
        "changes nothing": Branch(parent=tuned.id, kind="search", moves=("x",)),
    }
    problems = branch_problems([*wrong.values()], tree)
    assert all(part in problem for part, problem in zip(wrong, problems, strict=True))
    right = [Branch(parent=whole.id, kind="expose"), Branch(parent=tuned.id, kind="extend")]
    assert branch_problems(right, tree) == []
    # An edge is where a further size could exist.
    values: dict[str, Any] = {"ROWS": (1, 2, 4), "WIDTH": (2, 4, 8), "THREADS": (64, 128, 256), "CACHE": (0, 1, 2)}
    values |= {"FLAG": (0, 1), "NAME": ("a", "b", "c")}
    low = searched(values, {"ROWS": 1, "WIDTH": 2, "THREADS": 64, "CACHE": 0, "FLAG": 0, "NAME": "a"})
    high = searched(values, {"ROWS": 4, "WIDTH": 4, "THREADS": 256, "CACHE": 2, "FLAG": 1, "NAME": "c"})
    assert low.at_edge == {"WIDTH": 2, "THREADS": 64} and high.at_edge == {"ROWS": 4, "THREADS": 256}

    def timed(small: float, large: float, rows: int) -> Evaluation:
        outcomes = {name: Measured(one, one, one, 3, 1) for name, one in (("s", small), ("l", large))}
        return Evaluation("t", {"ROWS": rows}, outcomes)

    ranked = enumerate((timed(1.0, 4.0, 1), timed(0.9, 5.0, 2), timed(0.8, 6.0, 4), timed(1.2, 3.96, 8)), 1)
    found = tuned.model_copy(update={"ranked": tuple((float(at), one) for at, one in ranked)}).faster_by_workload
    assert found == {"s": (pytest.approx(0.8), {"ROWS": 4})}, "a percent is not worth a line"


def searched(sizes: dict[str, Any], best: dict[str, Any]) -> Node:
    known = node("a", "template", 1, 0.5)
    parameters = tuple(Parameter(name=name, values=values) for name, values in sizes.items())
    made = known.template.model_copy(update={"parameters": parameters, "constraints": ()})
    return known.model_copy(update={"template": made, "ranked": ((0.5, Evaluation(made.id, best, {})),)})
