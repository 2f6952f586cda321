"""A worker process as the pool sees it: an actor that may die, be ended, and be started again.

Owns the deadlines, the bookkeeping of one call under way, and what Ray says when a call ends without a result. Which
call comes next is the pool's business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayTaskError

from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.bench import TypesKey


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds allowed: to compile one source; to check and time one workload; to make all workloads' buffers and
    reference results; to start a worker process or get hold of the device (others may be using both)."""

    compile: float = 60.0
    visit: float = 20.0
    prepare: float = 600.0
    start: float = 3600.0


@dataclass(slots=True)
class WorkerProcess:
    """An actor that can be replaced: `make` starts one for a seed.

    It has at most one call under way, behind `reference`, which belongs to `job` (whatever the pool wants to remember)
    and must return before `deadline` (monotonic seconds). ready: it has answered once; deaths: how often in a row it
    ended without having done anything.
    """

    make: Callable[[int], Any]
    seed: int
    actor: Any = None
    reference: Any = None
    gate: Any = None
    """A call that must return before the one behind `reference` begins; until then its deadline does not run."""
    seconds: float = 0.0
    started: float = 0.0
    deadline: float = 0.0
    job: Any = None
    key: TypesKey = ()
    ready: bool = False
    deaths: int = 0

    def renew(self, seed: int | None = None) -> None:
        """Ends the process, if any, and starts another, with buffers drawn from `seed`."""
        if self.actor is not None:
            ray.kill(self.actor)
        self.seed = self.seed if seed is None else seed
        self.actor, self.reference, self.gate, self.job, self.ready = self.make(self.seed), None, None, None, False


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
