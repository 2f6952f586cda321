"""A worker process as the pool sees it: an actor that may die, be ended, and be started again.

Owns the deadlines, the calls under way, and what Ray says when a call ends without a result. Which call comes next is
the pool's business.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import ObjectLostError, RayActorError, RayTaskError

from tunesmith.hw.errors import TunesmithError

LOST = (RayActorError, ObjectLostError)
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
class WorkerProcess:
    """An actor that can be replaced: `make` starts one for a seed.

    It works on its `calls` in their order; the first must return before `deadline` (monotonic seconds). ready: it has
    answered once; deaths: how often in a row it ended without having done anything; busy_seconds: time with a call
    under way once it was ready, of all its processes.
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
    resting: bool = False
    """It has left its place in the cluster to others, and is given no work."""
    deaths: int = 0
    busy_seconds: float = 0.0
    served: int = 0
    version: str = ""

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
        if self.resting:
            return "lent"
        if not self.ready:
            return "starting"
        if not self.calls:
            return "idle"
        return "waiting" if self.calls[0].gate is not None else "busy"

    def pass_gate(self) -> None:
        """The first call begins: from now on its deadline runs. If the process died instead, the call tells."""
        self.calls[0].gate = None
        self._head_begins()

    def end_call(self) -> tuple[Call, float]:
        """Takes the first call off, and tells how long it took; the next one's time begins."""
        call, now = self.calls.popleft(), time.monotonic()
        seconds = now - self.started
        if self.ready:
            self.busy_seconds += seconds
        if self.calls:
            self._head_begins()
        return call, seconds

    def renew(self, seed: int | None = None) -> list[Call]:
        """Ends the process, if any, and starts another, with buffers drawn from `seed`. Gives the calls it had."""
        self.end()
        lost = list(self.calls)
        self.calls.clear()
        self.seed, self.ready = self.seed if seed is None else seed, False
        self.actor = self.make(self.seed)
        return lost

    def restart(self, seed: int | None = None) -> list[Call]:
        """It is to make itself ready again, in the same actor, for contents of `seed`. Gives the calls it had."""
        if self.actor is None:
            return self.renew(seed)
        lost = list(self.calls)
        self.calls.clear()
        self.seed, self.ready = self.seed if seed is None else seed, False
        return lost

    def end(self) -> None:
        """Ends the process, if any."""
        if self.actor is not None:
            ray.kill(self.actor)
            self.actor = None

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


def cause_of(error: Exception) -> str:
    """What Ray knows of a death, in a line."""
    text = str(error)
    if "Worker exit type: SYSTEM_ERROR" in text:
        # What follows in Ray's text guesses at causes; it does not know the signal.
        return "the worker process ended without a word, as after an invalid access or when the system kills it"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:300]


def node_died(error: Exception) -> bool:
    """Whether a call was lost with its whole node, which no source and no kernel is to blame for."""
    text = str(error)
    return isinstance(error, ObjectLostError) or "its node has died" in text or "node was terminated" in text
