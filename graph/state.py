"""The state of the graph: small values only; all that is large or must never be lost is in the journal."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from pydantic import BaseModel, ConfigDict

Done = Literal["", "evaluations", "time", "rounds", "floor", "nothing valid", "exhausted"]


class Plan(BaseModel):
    """What a round is to do. bottleneck: what holds the best known kernel back; moves: what is to be changed, in
    words; workloads: what to tune on; evaluations: this round's share; seeds: configurations to try first."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    round: int
    bottleneck: Literal["memory", "compute", "latency", "unknown"]
    scope: Literal["general", "workload"]
    template: str
    workloads: tuple[str, ...]
    evaluations: int
    moves: tuple[str, ...] = ()
    expected: str = ""
    seeds: tuple[dict[str, bool | int | float | str], ...] = ()


class State(TypedDict):
    """round counts from 1; plan is a `Plan` as JSON; template is a template's id; verdict is the last test's summary;
    done says what ended the loop, empty while it goes on."""

    round: NotRequired[int]
    plan: NotRequired[dict[str, Any]]
    template: NotRequired[str]
    verdict: NotRequired[dict[str, Any]]
    done: NotRequired[Done]
