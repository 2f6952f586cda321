"""The pool: what roles ask for evaluations, roofs and comparisons; it owns the worker processes.

An evaluation's life: `submit` splits it into one compilation for each combination of types; what the cache on disk does
not hold, compile workers make; when all is there it waits for a lane, is checked and timed on its workloads in one
visit, and comes out of `collect` as an `Evaluation`. There are no barriers: `actors.pool.scheduler` moves each on
as soon as it can.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tunesmith.actors.cluster.actor_handle import Deadlines
from tunesmith.actors.judging.judge import Limits, Question, Verdict
from tunesmith.actors.lane.lane_host import LaneHost
from tunesmith.actors.pool.exclusive_calls import ExclusiveCalls
from tunesmith.actors.pool.metrics import Metrics
from tunesmith.actors.pool.request import Request
from tunesmith.actors.pool.scheduler import Scheduler
from tunesmith.actors.pool.worker_set import PoolError, WorkerSet
from tunesmith.actors.process.workers import CompileWorker
from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.build.artifact_cache import ArtifactCache
from tunesmith.kernels.measure.bench import WorkloadComparison
from tunesmith.kernels.measure.timing import Precision
from tunesmith.kernels.outcome import Evaluation, Failure
from tunesmith.kernels.spec.task import AnyOpponent, Task

__all__ = ["Deadlines", "LaneStatus", "Pool", "PoolError", "Request"]


@dataclass(frozen=True, slots=True)
class LaneStatus:
    """state: starting, idle, busy, or waiting (for another process that uses the device); served: visits so far;
    busy_seconds: time at work so far."""

    name: str
    state: str
    served: int
    busy_seconds: float


class Pool:
    """Lanes and compile workers for one task on one kind of device.

    limits, index: the device (index matters to OpenCL only); lanes, compilers: how many of each; seed: contents of all
    buffers; workloads: what lanes prepare at their start; cache: where artifacts are kept, None for nowhere; say: gets,
    in a sentence, what a user should know of the workers; shared: the cluster was there before, and has metrics. Use as
    a context manager; it ends its processes.
    """

    def __init__(
        self,
        task: Task,
        limits: DeviceLimits,
        index: int = 0,
        *,
        lanes: int,
        compilers: int,
        seed: int,
        workloads: Sequence[str],
        precision: Precision | None = None,
        deadlines: Deadlines | None = None,
        cache: ArtifactCache | None = None,
        say: Callable[[str], None] = lambda _: None,
        shared: bool = False,
        seconds_left: Callable[[], float] = lambda: math.inf,
        lane_class: type = LaneHost,
        compile_class: type = CompileWorker,
    ) -> None:
        self.task, self.limits, self.cache = task, limits, cache
        deadlines = deadlines or Deadlines()
        self.workers = WorkerSet(
            task,
            limits,
            index,
            lanes=lanes,
            compilers=compilers,
            seed=seed,
            workloads=workloads,
            deadlines=deadlines,
            say=say,
            seconds_left=seconds_left,
            lane_class=lane_class,
            compile_class=compile_class,
        )
        self._scheduler = Scheduler(
            task,
            limits,
            self.workers,
            seed=seed,
            precision=precision or Precision(),
            deadlines=deadlines,
            cache=cache,
        )
        self._metrics = Metrics(task.name) if shared else None

    def __enter__(self) -> Pool:
        self.workers.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._scheduler.compile_queue.flush_cache()
        self.workers.end()

    @property
    def target_in_flight(self) -> int:
        """How many evaluations should be in flight now: so many that no lane waits, and no more, as a search learns
        nothing from what is under way. Those that wait for code that is made for others occupy no compiler."""
        return self._scheduler.target.now + self._scheduler.compile_queue.waiting_for_code

    @property
    def max_in_flight(self) -> int:
        """The most that `target_in_flight` is where no two share their code."""
        return self._scheduler.target.max

    @property
    def lanes(self) -> tuple[LaneStatus, ...]:
        """What each lane does."""
        return tuple(LaneStatus(lane.name, lane.state, lane.served, lane.busy_until_now) for lane in self.workers.lanes)

    @property
    def in_flight(self) -> int:
        """Evaluations that were submitted and have not ended."""
        return self._scheduler.in_flight

    @property
    def roofline(self) -> Roofline:
        """The device's measured roofs, once they are known: what is timed below them is refused."""
        return self._scheduler.roofline

    @roofline.setter
    def roofline(self, roofline: Roofline) -> None:
        self._scheduler.roofline = roofline

    def submit(self, request: Request) -> None:
        """Begins an evaluation, which `collect` gives when it has ended."""
        self._scheduler.submit(request)

    def collect(self, timeout: float = 1.0) -> list[tuple[Request, Evaluation]]:
        """Evaluations that have ended, in the order they ended; waits up to `timeout` seconds for the first."""
        scheduler, until = self._scheduler, time.monotonic() + timeout
        while True:
            scheduler.step(until)
            if scheduler.done or not scheduler.in_flight or time.monotonic() >= until:
                break
        results = list(scheduler.done)
        scheduler.done.clear()
        if self._metrics is not None:
            for _, evaluation in results:
                self._metrics.ended(evaluation.failure.kind if evaluation.failure else None)
            queued = len(scheduler.compile_queue)
            self._metrics.report(self.workers.lanes, self.workers.compilers, queued, self.in_flight)
        return results

    def evaluate(self, requests: Sequence[Request]) -> list[Evaluation]:
        """Evaluations of `requests`, in their order; for when there is nothing else in flight."""
        for request in requests:
            self.submit(request)
        found: dict[int, Evaluation] = {}
        while len(found) < len(requests):
            found |= {request.number: evaluation for request, evaluation in self.collect(5.0)}
        return [found[request.number] for request in requests]

    def calibrate(self) -> Roofline:
        """The measured roofs of the first lane's device; no roofs when the device cannot run the probes. Lanes that do
        not agree with the others are reported, or excluded."""
        self.roofline = self._exclusive_calls().calibrate()
        return self.roofline

    def compare(
        self,
        baseline: Request,
        candidates: Sequence[Request],
        workload: str,
        *,
        seed: int,
        rounds: int,
        budget_seconds: float,
        opponents: Sequence[AnyOpponent] = (),
    ) -> WorkloadComparison:
        """Baseline and candidates interleaved on `workload`, on fresh contents in a process that did not search.

        Comparisons of the same `seed` share a process, on one device. Nothing else may be in flight.
        """
        calls = self._exclusive_calls()
        return calls.compare(
            baseline,
            candidates,
            workload,
            seed=seed,
            rounds=rounds,
            budget_seconds=budget_seconds,
            opponents=opponents,
        )

    def examine(
        self, questions: Sequence[Question], *, seed: int, seconds: float = math.inf, deadlines: Limits | None = None
    ) -> list[Verdict] | Failure:
        """The full verdict on each template at its configuration, on the device of the first lane. deadlines: of what
        a verdict does. A failure is one of the examination, not of a candidate, such as that it took longer than
        `seconds`. Nothing else may be in flight."""
        calls = self._exclusive_calls()
        return calls.examine(questions, seed, self.roofline, seconds, deadlines or Limits())

    def _exclusive_calls(self) -> ExclusiveCalls:
        energy_seconds = self._scheduler.precision.energy_seconds
        return ExclusiveCalls(self.workers, self.task, self.cache, self._scheduler.floor, energy_seconds)
