"""The metrics of a pool, for Prometheus and Grafana as Ray exports them; see docs/cluster.md.

Numbers are gathered here and handed over every few seconds, so that an evaluation costs an addition.
"""

from __future__ import annotations

import time
from collections import Counter as Counts
from collections.abc import Sequence

from ray.util.metrics import Counter, Gauge

from tunesmith.actors.cluster.actor_handle import ActorHandle

EVERY_SECONDS = 2.0


class Metrics:
    """The metrics of the tuning of `task`: tunesmith_evaluations, tunesmith_failures (by kind), tunesmith_lane_busy and
    tunesmith_compilers_busy (shares of time), tunesmith_compile_queue and tunesmith_in_flight."""

    def __init__(self, task: str) -> None:
        self._evaluations = Counter("tunesmith_evaluations", "Configurations evaluated.", ("task",))
        self._failures = Counter("tunesmith_failures", "Configurations that failed, by kind.", ("task", "kind"))
        self._lane = Gauge("tunesmith_lane_busy", "Share of time a lane was at work.", ("task", "lane"))
        self._compilers = Gauge("tunesmith_compilers_busy", "Share of time compile workers were at work.", ("task",))
        self._queue = Gauge("tunesmith_compile_queue", "Compilations that wait for a worker.", ("task",))
        self._in_flight = Gauge("tunesmith_in_flight", "Evaluations under way.", ("task",))
        self._tags = {"task": task}
        self._ended, self._failed = 0, Counts[str]()
        self._reported = time.monotonic()
        self._busy: dict[int, float] = {}

    def ended(self, failure: str | None) -> None:
        """One evaluation ended, with this kind of failure or none."""
        self._ended += 1
        if failure is not None:
            self._failed[failure] += 1

    def report(
        self, lanes: Sequence[ActorHandle], compilers: Sequence[ActorHandle], queue: int, in_flight: int
    ) -> None:
        """Hands over what has gathered, if it is time."""
        now = time.monotonic()
        passed = now - self._reported
        if passed < EVERY_SECONDS:
            return
        self._reported = now
        if self._ended:
            self._evaluations.inc(self._ended, self._tags)
        for kind, count in self._failed.items():
            self._failures.inc(count, self._tags | {"kind": kind})
        self._ended, self._failed = 0, Counts()
        for lane in lanes:
            self._lane.set(self._share(lane, passed), self._tags | {"lane": lane.name})
        if compilers:
            shares = [self._share(worker, passed) for worker in compilers]
            self._compilers.set(sum(shares) / len(shares), self._tags)
        self._queue.set(queue, self._tags)
        self._in_flight.set(in_flight, self._tags)

    def _share(self, worker: ActorHandle, passed: float) -> float:
        busy = worker.busy_until_now
        before = self._busy.get(id(worker), 0.0)
        self._busy[id(worker)] = busy
        return min(1.0, max(0.0, (busy - before) / passed))
