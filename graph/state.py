"""The state of the graph: small values only; all that is large or must never be lost is in the journal."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from pydantic import Field

from tunesmith.kernels.spec.template import Config, Strict

Done = Literal[
    "",
    "evaluations",
    "time",
    "rounds",
    "floor",
    "little gain",
    "nothing valid",
    "exhausted",
    "no template",
    "no model",
    "recording",
]
Bottleneck = Literal["memory", "compute", "latency", "unknown"]
BASELINE = "baseline"
"""The parent of a template that is made from the task's own source."""
BranchKind = Literal["template", "rewrite", "expose", "extend", "search"]
"""The product of a branch: a new template; a kernel without parameters; a template whose parameters are the constants
of a rewrite; a template with more values and parameters of the same code; nothing (the parent is searched further)."""


class Branch(Strict):
    """A template or kernel of a round. parent: a template's id (or its name in the task), or "baseline"; moves: the
    changes, in words; seeds: configurations to try first where the parent is searched further."""

    parent: str
    kind: BranchKind
    moves: tuple[str, ...] = ()
    seeds: tuple[Config, ...] = ()

    @property
    def written(self) -> bool:
        """Whether an author has to write something for it."""
        return self.kind != "search"


class Plan(Strict):
    """The work of a round. bottleneck: of the best known kernel; workloads: to tune on; evaluations: this round's
    share; branches: tuned side by side; expected: the possible gain; analysis: the reasons, in a few sentences."""

    round: int
    bottleneck: Bottleneck
    scope: Literal["general", "workload"]
    workloads: tuple[str, ...]
    evaluations: int
    branches: tuple[Branch, ...] = Field(min_length=1)
    expected: str = ""
    analysis: str = ""


class State(TypedDict):
    """round counts from 1; plan is a `Plan` as JSON; templates are the ids of the round's templates; done: the reason
    for the end of the loop, empty while it goes on. turn: how often the round was sent back for other templates;
    objections: of a role that sends the state back, to the plan or the templates."""

    round: NotRequired[int]
    plan: NotRequired[dict[str, Any]]
    templates: NotRequired[list[str]]
    done: NotRequired[Done]
    turn: NotRequired[int]
    objections: NotRequired[list[str]]
