"""The state of the graph: small values only; all that is large or must never be lost is in the journal."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from pydantic import BaseModel, ConfigDict

# LangGraph's Studio has pydantic make a schema of the state, which takes no other TypedDict before Python 3.12.
from typing_extensions import TypedDict

from tunesmith.kernels.spec.parameter import Config

Done = Literal["", "evaluations", "time", "rounds", "floor", "nothing valid", "exhausted", "no template", "no model"]
Bottleneck = Literal["memory", "compute", "latency", "unknown"]
BASELINE = "baseline"
"""The parent of a template that is made from the task's own source."""


class Branch(BaseModel):
    """One template of a round. parent: the id of the template it starts from, or "baseline"; moves: what to change in
    it, in words; none: the parent itself is tuned further. seeds: configurations of the parent to try first."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    parent: str
    moves: tuple[str, ...] = ()
    seeds: tuple[Config, ...] = ()


class Plan(BaseModel):
    """What a round is to do. bottleneck: what holds the best known kernel back; moves: what is to be changed, in
    words; workloads: what to tune on; evaluations: this round's share; seeds: configurations to try first.

    template: by name, one that the task brings; branches: the round's templates where a model planned it, several of
    which are tuned side by side; then `template` is empty.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    round: int
    bottleneck: Bottleneck
    scope: Literal["general", "workload"]
    template: str
    workloads: tuple[str, ...]
    evaluations: int
    moves: tuple[str, ...] = ()
    expected: str = ""
    seeds: tuple[Config, ...] = ()
    branches: tuple[Branch, ...] = ()
    analysis: str = ""


class State(TypedDict):
    """round counts from 1; plan is a `Plan` as JSON; templates are the ids of the round's templates; verdict is the
    last test's summary; done says what ended the loop, empty while it goes on. goto: the role that works next, where a
    role wants another one than the graph has next; objections: what it has to say to that role."""

    round: NotRequired[int]
    plan: NotRequired[dict[str, Any]]
    templates: NotRequired[list[str]]
    verdict: NotRequired[dict[str, Any]]
    done: NotRequired[Done]
    goto: NotRequired[str]
    objections: NotRequired[list[str]]
