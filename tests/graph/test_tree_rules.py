"""Rules that plan on the tree of templates and rewrites: every call is for code, and goes where calls brought most."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from model_runs import RAW, entries, run, simulation
from scripted_models import SOURCE, template

from tunesmith.graph.journal.events import Planned, TemplateAdded
from tunesmith.graph.journal.store import Journal
from tunesmith.graph.journal.tree import Attempt, Node, Tree
from tunesmith.graph.models.calls import Call
from tunesmith.graph.prompts.answers import RewriteAnswer
from tunesmith.graph.roles.planning.planner import branch_problems
from tunesmith.graph.roles.planning.tree_rules import Yield, yields
from tunesmith.graph.state import Branch, Plan
from tunesmith.kernels.outcome import Evaluation
from tunesmith.kernels.spec.files.taskfile import load_task
from tunesmith.kernels.spec.template import Template

__all__ = ["simulation"]
KERNEL = SOURCE.replace("GROUP", "16").replace("ITEMS", "1").replace("UNROLL", "0")


def rewrite(mark: str) -> dict[str, Any]:
    return {
        "name": "whole",
        "description": "Sixteen elements a work-item.",
        "source": f"// {mark}\n{KERNEL}",
        "grid": ["ceil_div(n, 16)"],
        "block": ["16"],
        "shared_bytes": "0",
        "static_shared_bytes": "0",
    }


def script(call: Call) -> Any:
    if call.schema is RewriteAnswer:
        return rewrite(f"LIKE 16 16 1 {call.custom_id}")
    return template(source=f"// {call.custom_id}\n{SOURCE}")


def plans_of(folder: Path) -> list[Plan]:
    with Journal(folder, create=False) as journal:
        return [entry.event.plan for entry in journal.entries(Planned)]


def test_every_call_is_for_code_and_each_kind_is_tried(tmp_path: Path, simulation: list[Any]) -> None:
    result, models = run(tmp_path / "run", script, rounds=3, evaluations=30, planner="rules")
    assert result.valid and models is not None
    assert all(".template." in name for name in models.paid), "none is for a plan or an explanation"
    first, second, third = plans_of(tmp_path / "run")
    assert [(one.kind, one.parent) for one in first.branches] == [("template", "baseline"), ("rewrite", "baseline")]
    with Journal(tmp_path / "run", create=False) as journal:
        added = [entry.event for entry in journal.entries(TemplateAdded)]
    whole = next(event for event in added if event.made_by == "rewrite")
    assert not whole.template.has_choices
    # The best template is searched further without a call; the rewrite that came near it gets parameters.
    assert second.branches[0].kind == "search" and second.branches[0].seeds
    later = [one for plan in (second, third) for one in plan.branches]
    assert sum(one.kind == "expose" and one.parent == whole.id for one in later) == 1
    prompts = [call.messages[-1].content for turn in models.turns for call in turn]
    assert any("turn the numbers it has chosen" in prompt for prompt in prompts)
    assert any("Least time seen with each value" in prompt for prompt in prompts)


def test_a_rewrite_costs_one_evaluation_and_is_not_searched(tmp_path: Path, simulation: list[Any]) -> None:
    def only_rewrites(call: Call) -> Any:
        return script(call) if call.schema is RewriteAnswer else template(source="// DOES_NOT_COMPILE\n" + SOURCE)

    result, _ = run(tmp_path / "run", only_rewrites, rounds=1, planner="rules", repairs=0)
    assert result.summary["evaluations"] == 2, "the template that failed, and the rewrite"
    assert result.valid and result.summary["general"]["config"] == {}
    (given_up,) = entries(tmp_path / "run", "given_up")
    assert given_up.data["made_by"] == "template"


def test_no_more_is_asked_than_the_cap_on_calls_allows(tmp_path: Path, simulation: list[Any]) -> None:
    # The scripted model keeps no account, so the cap stands in the plan alone.
    run(tmp_path / "run", script, rounds=1, planner="rules", max_calls=1)
    (plan,) = plans_of(tmp_path / "run")
    assert [one.kind for one in plan.branches] == ["template"]


def node(name: str, made_by: Any, round_: int, best: float, answers: int = 1, parent: str = "baseline") -> Node:
    known = load_task(str(Path(RAW).parent.parent / "scale_add" / "task.toml")).sources("opencl").templates[0]
    made: Template = known.model_copy(update={"name": name})
    ranked = ((best, Evaluation(made.id, made.default_config, {})),)
    return Node(made, parent, ("a move",), round_, ranked=ranked, made_by=made_by, answers=answers)


def test_a_kernel_counts_against_the_best_of_earlier_rounds() -> None:
    nodes = (
        node("a", "template", 1, 0.5, answers=2),
        node("b", "rewrite", 1, 0.25),
        node("c", "rewrite", 2, 0.125),
        node("d", "expose", 2, 0.3),
        node("given", "template", 1, 0.01, parent="library"),
    )
    found = yields(Tree(nodes[:4], (Attempt(2, "baseline", ("x",), "why", "extend", answers=3),)))
    assert found["template"] == Yield(2, pytest.approx(0.6931, abs=1e-3))
    assert found["rewrite"] == Yield(2, pytest.approx(3 * 0.6931, abs=1e-3))
    assert found["expose"] == Yield(1, 0.0) and found["extend"] == Yield(3, 0.0)
    assert yields(Tree((nodes[4],))) == {}, "what the task brings cost no call"


def test_kinds_that_do_not_fit_their_parent_are_named() -> None:
    searched = node("a", "template", 1, 0.5)
    bare = node("b", "rewrite", 1, 0.5)
    bare = replace(bare, template=bare.template.model_copy(update={"parameters": (), "constraints": ()}))
    tree = Tree((searched, bare))
    wrong = [
        Branch(parent="baseline", kind="search"),
        Branch(parent=searched.id, kind="expose"),
        Branch(parent=bare.id, kind="extend"),
        Branch(parent=bare.id, kind="rewrite"),
        Branch(parent=searched.id, kind="search", moves=("x",)),
    ]
    problems = branch_problems(wrong, tree)
    expected = [
        "no parameters",
        "has parameters already",
        "expose its constants",
        "Moves are missing",
        "changes nothing",
    ]
    assert len(problems) == len(expected)
    assert all(part in problem for part, problem in zip(expected, problems, strict=True))
    right = [Branch(parent=bare.id, kind="expose"), Branch(parent=searched.id, kind="extend")]
    assert branch_problems(right, tree) == []
