"""Rules that plan on the tree of templates and rewrites: every call is for code, and goes where calls brought most."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from model_runs import RAW, code, entries, plans_of, run, simulation
from scripted_models import SOURCE, template

from tunesmith.graph.journal.events import TemplateAdded
from tunesmith.graph.journal.log import FailedBranch, Node, Tree
from tunesmith.graph.journal.store import Journal
from tunesmith.graph.models.calls import ModelCall
from tunesmith.graph.prompts.answers import RewriteAnswer
from tunesmith.graph.roles.planner import branch_problems, branch_rewards, ranked_options
from tunesmith.graph.state import Branch
from tunesmith.kernels.outcome import Evaluation, Measured
from tunesmith.kernels.spec.taskfile import load_task
from tunesmith.kernels.spec.template import Parameter, Template

__all__ = ["simulation"]


def test_every_call_is_for_code_and_each_kind_is_tried(tmp_path: Path, simulation: list[Any]) -> None:
    result, models = run(tmp_path / "run", code, rounds=3, evaluations=30, planner="rules")
    assert result.valid and models is not None
    assert all(".template." in name for name in models.paid), "none is for a plan or an explanation"
    first, second, third = plans_of(tmp_path / "run")
    assert [(one.kind, one.parent) for one in first.branches] == [("template", "baseline"), ("rewrite", "baseline")]
    with Journal(tmp_path / "run", create=False) as journal:
        added = [entry.event for entry in journal.entries(TemplateAdded)]
    whole = next(event for event in added if event.made_by == "rewrite")
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


def test_a_rewrite_costs_one_evaluation_and_is_not_searched(tmp_path: Path, simulation: list[Any]) -> None:
    def only_rewrites(call: ModelCall) -> Any:
        return code(call) if call.schema is RewriteAnswer else template(source="// DOES_NOT_COMPILE\n" + SOURCE)

    result, _ = run(tmp_path / "run", only_rewrites, rounds=1, planner="rules", repairs=0)
    assert result.summary["evaluations"] == 2, "the template that failed, and the rewrite"
    assert result.valid and result.summary["general"]["config"] == {}
    (given_up,) = entries(tmp_path / "run", "given_up")
    assert given_up.data["made_by"] == "template"


def test_no_more_is_asked_than_the_cap_on_calls_allows(tmp_path: Path, simulation: list[Any]) -> None:
    # The scripted model keeps no account, so the cap stands in the plan alone.
    run(tmp_path / "run", code, rounds=1, planner="rules", max_calls=1)
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
    first = FailedBranch(1, "baseline", ("x",), "why", "template", answers=1)
    one = Tree(nodes[:2], (first,))
    two = Tree(nodes[:4], (first, FailedBranch(2, "baseline", ("x",), "why", "extend", answers=3)))
    found = branch_rewards([one, two])
    assert found["rewrite"] == (1, pytest.approx(0.6931, abs=1e-3))
    assert found["expose"] == (1, 0.0) and found["extend"] == (3, 0.0)
    assert "template" not in found, "the first round's gains are over the task's own kernel"
    assert branch_rewards([Tree((nodes[4],)), Tree((nodes[4],))]) == {}, "what the task brings cost no call"


def test_a_call_is_worth_what_its_own_round_found() -> None:
    """Not what a later search of its kernel finds, and nothing where the kernel turned out to be no good."""
    a, b = node("a", "template", 1, 0.8), node("b", "rewrite", 2, 0.7)
    searched_later = node("a", "template", 1, 0.6)
    assert branch_rewards([Tree((a,)), Tree((a, b)), Tree((searched_later, b))])["rewrite"][1] == pytest.approx(
        0.1335, abs=1e-3
    )
    vetoed = replace(b, vetoed="writes where it should not")
    assert branch_rewards([Tree((a,)), Tree((a, b)), Tree((a, vetoed))])["rewrite"] == (1, 0.0)
    wrong = replace(b, ranked=())
    assert branch_rewards([Tree((a,)), Tree((a, b)), Tree((a, wrong))])["rewrite"] == (1, 0.0)
    unanswered = FailedBranch(2, "baseline", ("x",), "no answer", "extend", answers=0)
    assert branch_rewards([Tree((a,)), Tree((a,), (unanswered,))])["extend"][0] == 0


def bare(known: Node) -> Node:
    return replace(known, template=known.template.model_copy(update={"parameters": (), "constraints": ()}))


def test_what_brought_most_is_asked_for_again() -> None:
    """Also where the first round brought far more than any later one can."""
    earlier = (
        node("first", "template", 1, 0.2),
        node("other", "rewrite", 1, 0.3),
        node("opened", "expose", 2, 0.18, parent="other"),
        node("wider", "extend", 2, 0.19, parent="first"),
        node("anew", "template", 3, 0.185),
        bare(node("whole", "rewrite", 3, 0.178)),
    )
    tree = Tree(earlier)
    ranked = ranked_options(tree, branch_rewards([Tree(earlier[:2]), Tree(earlier[:4]), tree]))
    assert [one.kind for one in ranked] == ["expose", "extend", "rewrite", "template"]
    assert [one.parent for one in ranked[:2]] == [earlier[5].id, earlier[2].id]
    assert ranked[3].moves != ranked_options(Tree(()), {})[0].moves, "another organisation than the first"


def searched(sizes: dict[str, tuple[Any, ...]], best: dict[str, Any], *others: tuple[float, dict[str, Any]]) -> Node:
    known = node("a", "template", 1, 0.5)
    parameters = tuple(Parameter(name=name, values=values) for name, values in sizes.items())
    made = known.template.model_copy(update={"parameters": parameters, "constraints": ()})
    ranked = [(0.5, best), *others]
    return replace(known, template=made, ranked=tuple((at, Evaluation(made.id, one, {})) for at, one in ranked))


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
    found = replace(known, ranked=tuple((float(at), one) for at, one in ranked)).faster_by_workload
    assert found == {"s": (pytest.approx(0.8), {"ROWS": 4})}, "a percent is not worth a line"


def test_kinds_that_do_not_fit_their_parent_are_named() -> None:
    tuned = node("a", "template", 1, 0.5)
    whole = bare(node("b", "rewrite", 1, 0.5))
    tree = Tree((tuned, whole))
    wrong = [
        Branch(parent="baseline", kind="search"),
        Branch(parent=tuned.id, kind="expose"),
        Branch(parent=whole.id, kind="extend"),
        Branch(parent=whole.id, kind="rewrite"),
        Branch(parent=tuned.id, kind="search", moves=("x",)),
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
    right = [Branch(parent=whole.id, kind="expose"), Branch(parent=tuned.id, kind="extend")]
    assert branch_problems(right, tree) == []
