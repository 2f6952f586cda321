"""Rules that plan on the tree of templates and rewrites: every call is for code, and its kinds take turns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from journal_rows import events, rows
from model_runs import RAW, ModelPool, code, plans_of, run
from scripted_models import SOURCE, branch, plan, rewrite, template
from simulated_pool import changed

from tunesmith.graph.journal.events import BranchAbandoned, TemplateAdded
from tunesmith.graph.journal.log import Node, Tree
from tunesmith.graph.models.calls import ModelCall, ModelFailed
from tunesmith.graph.prompts.answers import RewriteAnswer
from tunesmith.graph.roles.planner import branch_problems, options_of
from tunesmith.graph.state import Branch
from tunesmith.kernels.outcome import Evaluation, Measured, WrongResult
from tunesmith.kernels.spec.taskfile import load_task
from tunesmith.kernels.spec.template import Parameter, Template

pytestmark = pytest.mark.usefixtures("simulation")
WRONG = WrongResult("mismatch", "out", "it is wrong on fresh contents")


def test_every_call_is_for_code_and_each_kind_is_tried(tmp_path: Path) -> None:
    result, models = run(tmp_path / "run", code, rounds=3, evaluations=30, planner="rules")
    assert result.valid and models is not None
    assert all(".template." in name for name in models.paid), "none is for a plan or an explanation"
    first, second, third = plans_of(tmp_path / "run")
    assert [(one.kind, one.parent) for one in first.branches] == [("template", "baseline"), ("rewrite", "baseline")]
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


def test_a_rewrite_costs_one_evaluation_and_is_not_searched(tmp_path: Path) -> None:
    def only_rewrites(call: ModelCall) -> Any:
        return code(call) if call.schema is RewriteAnswer else template(source="// DOES_NOT_COMPILE\n" + SOURCE)

    result, _ = run(tmp_path / "run", only_rewrites, rounds=1, planner="rules", repairs=0)
    assert result.summary["evaluations"] == 2, "the template that failed, and the rewrite"
    assert result.valid and result.summary["general"]["config"] == {}
    (given_up,) = rows(tmp_path / "run", "given_up")
    assert given_up.data["made_by"] == "template"


def test_no_more_is_asked_than_the_cap_on_calls_allows(tmp_path: Path) -> None:
    # The scripted model keeps no account, so the cap stands in the plan alone.
    run(tmp_path / "run", code, rounds=1, planner="rules", max_calls=1)
    (plan,) = plans_of(tmp_path / "run")
    assert [one.kind for one in plan.branches] == ["template"]


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


def test_code_is_asked_for_where_only_the_plan_failed(tmp_path: Path) -> None:
    """Of a task that brings no template: rules alone would have nothing to plan."""

    def script(call: ModelCall) -> Any:
        if call.role == "plan":
            return ModelFailed("unstructured", "no plan")
        return rewrite("LIKE 16 4 0") if call.schema is RewriteAnswer else template()

    assert run(tmp_path / "run", script, rounds=1, evaluations=9, explain=False)[0].valid


def test_nothing_is_repaired_that_could_not_be_tried(tmp_path: Path) -> None:
    asked: list[str] = []

    def script(call: ModelCall) -> Any:
        asked.append(call.name)
        if call.role == "plan":
            return plan(branch(moves=["a"]), branch(moves=["b"]))
        if call.name.startswith("template-2"):
            return template(source="// DOES_NOT_COMPILE\n" + SOURCE)
        return template()

    run(tmp_path / "run", script, rounds=1, evaluations=2, explain=False)
    assert asked == ["plan", "template-1", "template-2"]


def test_an_answer_that_the_run_has_already_is_a_call_without_gain(tmp_path: Path) -> None:
    def script(call: ModelCall) -> Any:
        return rewrite("LIKE 16 16 0") if call.schema is RewriteAnswer else template()

    run(tmp_path / "run", script, rounds=4, evaluations=40, planner="rules")
    assert [event.made_by for event in events(tmp_path / "run", TemplateAdded)] == ["template", "rewrite"]
    exposed = [one for later in plans_of(tmp_path / "run") for one in later.branches if one.kind == "expose"]
    assert len({one.parent for one in exposed}) == len(exposed), "the same question is not asked twice"


def test_an_arm_plans_its_own_kinds_only(tmp_path: Path) -> None:
    run(tmp_path / "run", code, rounds=2, evaluations=20, planner="rules", arm="template+search")
    kinds = {one.kind for each in plans_of(tmp_path / "run") for one in each.branches}
    assert kinds == {"template", "extend", "search"}


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


def test_the_kinds_that_the_tree_allows_take_turns() -> None:
    first = node("first", "template", 1, 0.2)
    whole = node("whole", "rewrite", 1, 0.21)
    assert [one.kind for one in options_of(Tree(()))] == ["template", "rewrite"]
    kinds = ["expose", "extend", "rewrite", "template"]
    found = options_of(Tree((first, whole)))
    assert [one.kind for one in found] == kinds and [one.parent for one in found[:2]] == [whole.id, first.id]
    assert found[3].moves != options_of(Tree(()))[0].moves, "another organisation than the first"
    failed = failure(whole.id, "expose", 2)
    wider = node("wider", "extend", 2, 0.19, parent=first.id)
    later = options_of(Tree((first, whole, wider), (failed,)))
    assert [one.kind for one in later] == ["rewrite", "template", "extend"], "the kernel is not exposed again"
    assert later[2].parent == wider.id
    assert [one.kind for one in options_of(Tree((first, whole), (failure("baseline", "rewrite", 0),)))] == kinds


def searched(sizes: dict[str, tuple[Any, ...]], best: dict[str, Any], *others: tuple[float, dict[str, Any]]) -> Node:
    known = node("a", "template", 1, 0.5)
    parameters = tuple(Parameter(name=name, values=values) for name, values in sizes.items())
    made = known.template.model_copy(update={"parameters": parameters, "constraints": ()})
    ranked = [(0.5, best), *others]
    values = tuple((at, Evaluation(made.id, one, {})) for at, one in ranked)
    return known.model_copy(update={"template": made, "ranked": values})


def test_an_edge_is_where_a_further_size_could_exist() -> None:
    values: dict[str, tuple[Any, ...]] = {
        "ROWS": (1, 2, 4),
        "WIDTH": (2, 4, 8),
        "THREADS": (64, 128, 256),
        "CACHE": (0, 1, 2),
        "FLAG": (0, 1),
        "NAME": ("a", "b", "c"),
    }
    low = searched(values, {"ROWS": 1, "WIDTH": 2, "THREADS": 64, "CACHE": 0, "FLAG": 0, "NAME": "a"})
    high = searched(values, {"ROWS": 4, "WIDTH": 4, "THREADS": 256, "CACHE": 2, "FLAG": 1, "NAME": "c"})
    assert low.at_edge == {"WIDTH": 2, "THREADS": 64} and high.at_edge == {"ROWS": 4, "THREADS": 256}


def test_what_one_configuration_for_all_workloads_costs_is_known() -> None:
    def timed(small: float, large: float, rows: int) -> Evaluation:
        outcomes = {name: Measured(one, one, one, 3, 1) for name, one in (("s", small), ("l", large))}
        return Evaluation("t", {"ROWS": rows}, outcomes)

    known = node("a", "template", 1, 0.5)
    ranked = tuple(enumerate((timed(1.0, 4.0, 1), timed(0.9, 5.0, 2), timed(0.8, 6.0, 4), timed(1.2, 3.96, 8)), 1))
    values = tuple((float(at), one) for at, one in ranked)
    found = known.model_copy(update={"ranked": values}).faster_by_workload
    assert found == {"s": (pytest.approx(0.8), {"ROWS": 4})}, "a percent is not worth a line"


def test_kinds_that_do_not_fit_their_parent_are_named() -> None:
    tuned = node("a", "template", 1, 0.5)
    whole = node("b", "rewrite", 1, 0.5)
    tree = Tree((tuned, whole))
    wrong = [
        Branch(parent="baseline", kind="search"),
        Branch(parent=tuned.id, kind="expose"),
        Branch(parent=whole.id, kind="extend"),
        Branch(parent=whole.id, kind="rewrite"),
        Branch(parent=tuned.id, kind="search", moves=("x",)),
    ]
    problems = branch_problems(wrong, tree)
    expected = ["no parameters", "has parameters already", "expose its constants"]
    expected += ["Moves are missing", "changes nothing"]
    assert len(problems) == len(expected)
    assert all(part in problem for part, problem in zip(expected, problems, strict=True))
    right = [Branch(parent=whole.id, kind="expose"), Branch(parent=tuned.id, kind="extend")]
    assert branch_problems(right, tree) == []
