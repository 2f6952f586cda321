"""A Ray actor as the pool sees it: one that may die, be ended, and be replaced.

Owns the deadlines, the calls under way, and what Ray reports when a call ends without a result. Which call comes next
is the pool's business.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import (
    GetTimeoutError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayTaskError,
    WorkerCrashedError,
)

from tunesmith.hw.errors import TunesmithError

LOST = (RayActorError, WorkerCrashedError, NodeDiedError, OutOfMemoryError, ObjectLostError)
"""What Ray raises when a call ends without a result: its process, its node or its result is gone."""


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds allowed: to compile one source; to check and time one workload; to make all workloads' buffers and
    reference results; to start a worker process or get hold of the device (others may be using both). grace: what a
    lane that keeps its own deadline may take beyond it, until it is itself taken to hang."""

    compile: float = 60.0
    visit: float = 20.0
    prepare: float = 600.0
    start: float = 3600.0
    grace: float = 5.0


@dataclass(slots=True)
class Call:
    """A call under way, behind `reference`; it may take `seconds` and `grace` from when those before it have ended.

    job: whatever the pool wants to remember; None for calls that make a process ready. gate: a call that must return
    before this one begins; until then its seconds do not run.
    """

    reference: Any
    seconds: float
    job: Any = None
    gate: Any = None
    grace: float = 0.0


@dataclass(slots=True)
class ActorHandle:
    """An actor that can be replaced: `make` starts one for a seed.

    It works on its `calls` in their order; the first must return before `deadline` (monotonic seconds). ready: it has
    said that it is; startup_deaths: how often in a row it ended without having done anything; busy_seconds: time with a
    call under way once it was ready, of all the actors it has been.
    """

    make: Callable[[int], Any]
    seed: int
    name: str = ""
    patience: float = 0.0
    """Seconds that a process may take to start, or a gate to open, before a call's own seconds run."""
    actor: Any = None
    calls: deque[Call] = field(default_factory=deque)
    started: float = 0.0
    deadline: float = 0.0
    ready: bool = False
    startup_deaths: int = 0
    busy_seconds: float = 0.0
    served: int = 0
    version: str = ""
    _placed: Any = None
    """The node's id, behind a reference that is ready once the actor has a place in the cluster."""

    def begin(self, call: Call) -> None:
        """Adds a call behind those under way."""
        self.calls.append(call)
        if len(self.calls) == 1:
            self._head_begins()

    @property
    def waited(self) -> Any:
        """What to wait for next: the gate or the result of the first call."""
        return self.calls[0].gate or self.calls[0].reference

    @property
    def busy_until_now(self) -> float:
        """`busy_seconds` with the call under way."""
        under_way = bool(self.calls) and self.ready and self.calls[0].gate is None
        return self.busy_seconds + (time.monotonic() - self.started if under_way else 0.0)

    @property
    def state(self) -> str:
        """What it does, in a word."""
        if not self.ready:
            return "starting"
        if not self.calls:
            return "idle"
        return "waiting" if self.calls[0].gate is not None else "busy"

    @property
    def node(self) -> str | None:
        """The id of the node it runs on; None while it waits for a place in the cluster."""
        if self._placed is None:
            return None
        try:
            node: str = ray.get(self._placed, timeout=0)
        except (GetTimeoutError, *LOST):
            return None
        return node

    @property
    def node_is_gone(self) -> bool:
        """Whether the node it ran on has left the cluster."""
        node = self.node
        alive = {one["NodeID"] for one in ray.nodes() if one["Alive"]}  # type: ignore[no-untyped-call]
        return node is not None and node not in alive

    def pass_gate(self) -> None:
        """The first call begins: from now on its deadline runs. If the process died instead, the call tells."""
        self.calls[0].gate = None
        self._head_begins()

    def end_call(self) -> tuple[Call, float]:
        """Takes the first call off; gives it and the seconds it took. The next one's time begins."""
        call, now = self.calls.popleft(), time.monotonic()
        seconds = now - self.started
        if self.ready:
            self.busy_seconds += seconds
        if self.calls:
            self._head_begins()
        return call, seconds

    def replace_actor(self, seed: int | None = None) -> list[Call]:
        """Ends the actor, if any, and starts another, with buffers drawn from `seed`. Gives the calls it had."""
        self.end()
        lost = self._reset(seed)
        self.actor = self.make(self.seed)
        self._placed = self.actor.node_id.remote()
        return lost

    def reset_in_place(self, seed: int | None = None) -> list[Call]:
        """The same actor has to make itself ready again, for contents of `seed`. Gives the calls it had."""
        return self.replace_actor(seed) if self.actor is None else self._reset(seed)

    def end(self) -> None:
        """Ends the actor, if any."""
        if self.actor is not None:
            ray.kill(self.actor)
            self.actor = self._placed = None

    def _reset(self, seed: int | None) -> list[Call]:
        lost = list(self.calls)
        self.calls.clear()
        self.seed, self.ready = self.seed if seed is None else seed, False
        return lost

    def _head_begins(self) -> None:
        head = self.calls[0]
        self.started = time.monotonic()
        patience = self.patience if head.gate is not None or not self.ready else 0.0
        self.deadline = self.started + head.seconds + head.grace + patience


def result_of(reference: Any, timeout: float | None = None) -> Any:
    """The result behind `reference`. A mistake of the user's that a worker found is raised as it was there."""
    try:
        return ray.get(reference, timeout=timeout)
    except RayTaskError as error:
        if isinstance(error.cause, TunesmithError):
            raise error.cause from None
        raise


def describe_loss(error: Exception) -> str:
    """What a loss of `LOST` was, in a clause for the user."""
    match error:
        case OutOfMemoryError():
            return "Ray ended the worker process because its node ran out of memory"
        case NodeDiedError():
            return "its node left the cluster"
        case ObjectLostError():
            return "its result was lost with the node that held it"
    # Which signal it was, Ray does not know.
    return "the worker process ended without a result, as after an invalid access or when the system kills it"
