"""How several tunings share the GPUs of one cluster: each gets as many as any other, and with too few they take turns.

A lane claims its GPU from Ray as a whole, so that nothing else runs beside a measurement. So the first tuning would
keep all GPUs to its end. Tunings tell a small actor how many they could use; it says how many each may hold, and who
holds more gives lanes back between two evaluations.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

import ray

from tunesmith.actors.cluster.handle import LOST

NAME, NAMESPACE = "tunesmith-shares", "tunesmith"
ASK_SECONDS = 1.0
FORGET_SECONDS = 15.0
"""After which a tuning that says nothing is taken to have ended."""
TURN_SECONDS = 60.0
"""How long the odd GPU, or the only one, stays with one tuning."""


class Shares:
    """Who wants how many of `total` GPUs. `clock` counts seconds."""

    def __init__(self, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._total, self._clock = total, clock
        self._wanted: dict[str, tuple[int, float]] = {}

    def ask(self, tuning: str, wanted: int, total: int) -> int:
        """How many GPUs `tuning` may hold now, of `total` in the cluster; it could use `wanted`. 0 ends its claim when
        it wants none."""
        now, self._total = self._clock(), total
        self._wanted = {name: (many, at) for name, (many, at) in self._wanted.items() if now - at < FORGET_SECONDS}
        if not wanted:
            self._wanted.pop(tuning, None)
            return 0
        self._wanted[tuning] = (wanted, now)
        return fair({name: many for name, (many, _) in self._wanted.items()}, total, int(now // TURN_SECONDS))[tuning]


def fair(wanted: dict[str, int], total: int, turn: int) -> dict[str, int]:
    """As equal as it goes: GPUs are dealt one by one in turns to those that want more; who is dealt first changes with
    `turn`."""
    names = list(wanted)
    first = turn % len(names) if names else 0
    dealt, left = dict.fromkeys(names, 0), total
    while left > 0 and any(dealt[name] < wanted[name] for name in names):
        for name in names[first:] + names[:first]:
            if left > 0 and dealt[name] < wanted[name]:
                dealt[name], left = dealt[name] + 1, left - 1
    return dealt


class Share:
    """One tuning's part. `allowed` is what it may hold, as of the last answer; it never waits for one."""

    def __init__(self, wanted: int) -> None:
        self.allowed = wanted
        self._wanted, self._name = wanted, uuid.uuid4().hex
        self._actor: Any = None
        self._answer: Any = None
        self._asked = 0.0

    def renew(self) -> None:
        """Takes the answer that came, and asks again when it is time."""
        if self._answer is not None:
            ready, _ = ray.wait([self._answer], timeout=0)
            if not ready:
                return
            try:
                self.allowed = ray.get(self._answer)
            except LOST:
                # It went with the tuning that had started it; the next one to ask starts another.
                self._actor = None
            self._answer = None
        now = time.monotonic()
        if now - self._asked < ASK_SECONDS:
            return
        self._asked = now
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        total = int(resources.get("GPU", 0))
        if self._actor is None:
            made: Any = ray.remote(num_cpus=0)(Shares)
            self._actor = made.options(name=NAME, namespace=NAMESPACE, get_if_exists=True).remote(total)
        self._answer = self._actor.ask.remote(self._name, self._wanted, total)

    def end(self) -> None:
        """Leaves the GPUs to the others, at once."""
        if self._actor is not None:
            self._actor.ask.remote(self._name, 0, 0)
