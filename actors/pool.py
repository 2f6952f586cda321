"""The pool: feeds compile workers and lanes without barriers, with deadlines, and replaces what dies.

An evaluation's life: `submit` splits it into one compilation for each combination of types; what the cache on disk does
not hold, compile workers make; when all is there it waits for a lane, is checked and timed on its workloads in one
visit, and comes out of `collect` as an `Evaluation`. Workers have their next call before they have ended the one at
hand, so that they never wait for this process. Whatever goes wrong on the way becomes the outcome of that evaluation
and of no other: a worker that dies or overruns its deadline is replaced, and its other calls are made again.

The cache is this process's: artifacts pass through here, nodes come and go, and a second run finds all in one place.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray

from tunesmith.actors.job import ATTEMPTS, Compilation, Job, Request, sources_of
from tunesmith.actors.metrics import Metrics
from tunesmith.actors.pace import Pace
from tunesmith.actors.process import LOST, Call, Deadlines, WorkerProcess, cause_of, node_died, result_of
from tunesmith.actors.roster import MAX_IDLE_DEATHS, PoolError, Roster
from tunesmith.actors.solo import Solo
from tunesmith.actors.workers import Busy, CompileWorker, Lane
from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.artifact_cache import ArtifactCache, cache_key
from tunesmith.kernels.backends import Artifact
from tunesmith.kernels.bench import Duel
from tunesmith.kernels.outcome import (
    CompileFailed,
    Crashed,
    Evaluation,
    Failure,
    LaunchFailed,
    Measured,
    Outcome,
    Rejected,
    TimedOut,
)
from tunesmith.kernels.task import Task
from tunesmith.kernels.timing import Precision

__all__ = ["Deadlines", "LaneStatus", "Pool", "PoolError", "Request"]

GIVE_UP = 1.25
"""How many times the fastest's time a clear loser takes: it is not sampled to the full precision."""
QUEUED = 2
"""Calls a worker may have: the one at hand and the next."""


@dataclass(frozen=True, slots=True)
class LaneStatus:
    """state: starting, idle, busy, waiting (for others that use the device) or lent (to other tunings); served: visits
    so far; busy_seconds: time at work so far."""

    name: str
    state: str
    served: int
    busy_seconds: float


class Pool:
    """Lanes and compile workers for one task on one kind of device.

    limits, index: the device (index matters to OpenCL only); lanes, compilers: how many of each; seed: contents of all
    buffers; workloads: what lanes prepare at their start; cache: where artifacts are kept, None for nowhere; say: told,
    in a sentence, what a user should know of the workers; shared: other tunings use the same cluster. Use as a context
    manager; it ends its processes.
    """

    MAX_IDLE_DEATHS = MAX_IDLE_DEATHS

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
        lane_class: type = Lane,
        compile_class: type = CompileWorker,
    ) -> None:
        self.task, self.limits, self.cache = task, limits, cache
        self.precision = precision or Precision()
        self.deadlines = deadlines or Deadlines()
        self._exclusive = limits.kind == "cpu"
        """Compiling and timing share the processor, so they take turns."""
        self.roster = Roster(
            task, limits, index, lanes=lanes, compilers=compilers, seed=seed, workloads=workloads,
            deadlines=self.deadlines, say=say, shared=shared, lane_class=lane_class, compile_class=compile_class,
        )  # fmt: skip
        self._seed = seed
        self._pace = Pace(lanes, compilers, exclusive=self._exclusive)
        self._to_compile: deque[Compilation] = deque()
        self._to_visit: deque[Job] = deque()
        self._done: deque[tuple[Request, Evaluation]] = deque()
        self.in_flight = 0
        self.roofline = Roofline()
        """The device's measured roofs, once they are known: what is timed below them is refused."""
        self._fastest: dict[str, float] = {}
        self._metrics = Metrics(task.name) if shared else None
        self._quarantine: dict[tuple[str, str], Failure] = {}
        """Configurations that ended a lane: they are answered from here and never run again."""

    def __enter__(self) -> Pool:
        self.roster.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.roster.end()

    @property
    def ahead(self) -> int:
        """How many evaluations should be in flight now: so many that no lane waits, and no more, as a search learns
        nothing from what is under way."""
        return self._pace.ahead

    @property
    def most_ahead(self) -> int:
        """The most that `ahead` ever is."""
        return self._pace.most

    @property
    def lanes(self) -> tuple[LaneStatus, ...]:
        """What each lane does."""
        return tuple(LaneStatus(lane.name, lane.state, lane.served, lane.busy_until_now) for lane in self.roster.lanes)

    def submit(self, request: Request) -> None:
        job = Job(request, sources_of(request, [self.task.workload(name) for name in request.workloads]))
        self.in_flight += 1
        if (known := self._quarantine.get(request.key)) is not None:
            self._fail(job, known)
            return
        self._to_compile.extend(Compilation(job, key) for key in job.sources)

    def collect(self, timeout: float = 1.0) -> list[tuple[Request, Evaluation]]:
        """Evaluations that have ended, in the order they ended; waits up to `timeout` seconds for the first."""
        waited_until = time.monotonic() + timeout
        while True:
            self._dispatch()
            busy = [worker for worker in self.roster.workers if worker.calls]
            if self._done or not self.in_flight:
                break
            if not busy:
                # All lanes are with other tunings.
                time.sleep(min(0.1, max(0.0, waited_until - time.monotonic())))
                if time.monotonic() >= waited_until:
                    break
                continue
            self._advance(busy, waited_until)
            self.roster.require_device()
            if time.monotonic() >= waited_until and not self._done:
                break
        if self._metrics is not None:
            self._metrics.tell(self.roster.lanes, self.roster.compilers, len(self._to_compile), self.in_flight)
        results = list(self._done)
        self._done.clear()
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
        not agree with the others are reported, or left out."""
        self.roofline = Solo(self.roster, self.task, self.cache, self._floor).calibrate()
        return self.roofline

    def duel(
        self,
        baseline: Request,
        candidates: Sequence[Request],
        workload: str,
        *,
        seed: int,
        rounds: int,
        budget_seconds: float,
    ) -> Duel:
        """Baseline and candidates interleaved on `workload`, on fresh contents in a process that did not search.

        Duels of the same `seed` share a process, on one device. Nothing else may be in flight.
        """
        solo = Solo(self.roster, self.task, self.cache, self._floor)
        return solo.duel(baseline, candidates, workload, seed=seed, rounds=rounds, budget_seconds=budget_seconds)

    def _advance(self, busy: list[WorkerProcess], waited_until: float) -> None:
        """Waits for something to happen, and deals with all that has."""
        waited = {worker.waited: worker for worker in busy}
        references = list(waited)
        finished, _ = ray.wait(references, num_returns=len(references), timeout=0)
        if not finished:
            pause = min(min(worker.deadline for worker in busy), waited_until) - time.monotonic()
            finished, _ = ray.wait(references, timeout=max(0.0, pause))
        for reference in finished:
            worker = waited[reference]
            if worker.calls and reference is worker.waited:
                if worker.calls[0].gate is not None:
                    worker.pass_gate()
                else:
                    self._finish(worker)
        now = time.monotonic()
        for worker in busy:
            if worker.calls and now > worker.deadline and worker.waited not in finished:
                self._overdue(worker)

    def _dispatch(self) -> None:
        roster = self.roster
        roster.take_turns()
        for worker in roster.workers:
            if not worker.ready and worker.actor is not None:
                roster.started(worker)
        if not (self._exclusive and any(lane.calls for lane in roster.lanes)):
            for depth in range(1 if self._exclusive else QUEUED):
                for worker in roster.compilers:
                    if self._to_compile and _has_room(worker, depth, self._to_compile[0].alone):
                        self._start_compile(worker)
        if not (self._exclusive and any(worker.calls for worker in roster.compilers)):
            for depth in range(1 if self._exclusive else QUEUED):
                for lane in roster.lanes:
                    if self._to_visit and not lane.resting and _has_room(lane, depth, self._to_visit[0].alone):
                        self._start_visit(lane)

    def _start_compile(self, worker: WorkerProcess) -> None:
        # A worker that is not ready says so first: what stops it from starting is no fault of the source.
        if not worker.ready:
            return
        while self._to_compile:
            compilation = self._to_compile.popleft()
            job = compilation.job
            if job.failed:
                continue
            key = self._cache_key(compilation, worker)
            if key is not None and self.cache is not None and (found := self.cache.get(key)) is not None:
                self._pace.compiled(0.0)
                self._compiled(compilation, found)
                continue
            job.cached = False
            reference = worker.actor.compile.remote(compilation.source)
            worker.begin(Call(reference, self.deadlines.compile, compilation))
            return

    def _cache_key(self, compilation: Compilation, worker: WorkerProcess) -> str | None:
        if self.cache is None:
            return None
        return cache_key(compilation.source, self.limits.arch, worker.version)

    def _start_visit(self, lane: WorkerProcess) -> None:
        if lane.seed != self._seed:
            self.roster.renew(lane, self._seed)
        if not lane.ready:
            return
        job = self._to_visit.popleft()
        names = job.request.workloads
        gate = lane.actor.acquire.remote() if job.gated else None
        reference = lane.actor.visit.remote(job.candidate, names, {name: self._precision_of(name) for name in names})
        lane.begin(Call(reference, self.deadlines.visit * len(names), job, gate))

    def _precision_of(self, workload: str) -> Precision:
        """The usual precision; clear losers to the fastest on this workload are dropped; nothing beats the floor."""
        best = self._fastest.get(workload)
        above = self.precision.give_up_above if best is None else best * GIVE_UP
        return replace(self.precision, give_up_above=above, floor=self._floor(workload))

    def _floor(self, workload: str) -> float:
        task, one = self.task, self.task.workload(workload)
        return self.roofline.floor_seconds(task.bytes_of(one), task.flops_of(one), task.arithmetic) or 0.0

    def _finish(self, worker: WorkerProcess) -> None:
        call, seconds = worker.end_call()
        try:
            result = result_of(call.reference)
        except LOST as error:
            phase = "run" if worker in self.roster.lanes else "compile"
            self._lost(worker, call, Crashed(phase, cause_of(error)), seconds, blameless=node_died(error))
            return
        if call.job is None:
            self.roster.welcome(worker, result)
            return
        worker.deaths, worker.served = 0, worker.served + 1
        if isinstance(call.job, Job):
            self._visited(worker, call.job, result, seconds)
        else:
            self._pace.compiled(seconds)
            call.job.job.compile_seconds += seconds
            self._keep(call.job, worker, result)
            self._compiled(call.job, result)

    def _keep(self, compilation: Compilation, worker: WorkerProcess, result: Any) -> None:
        key = self._cache_key(compilation, worker)
        if key is not None and self.cache is not None and isinstance(result, Artifact | CompileFailed):
            before = self.cache.trouble
            self.cache.put(key, result)
            if self.cache.trouble != before:
                self.roster.say(self.cache.trouble)

    def _compiled(self, compilation: Compilation, result: Artifact | CompileFailed | Rejected) -> None:
        job = compilation.job
        if not isinstance(result, Artifact):
            self._fail(job, result)
            return
        job.artifacts[compilation.key] = result
        if job.compiled and not job.failed:
            self._to_visit.append(job)

    def _visited(self, lane: WorkerProcess, job: Job, result: dict[str, Outcome] | Busy, seconds: float) -> None:
        if isinstance(result, Busy):
            # Others use the device: this visit waits for its turn, and its deadline with it.
            job.gated = True
            self._to_visit.appendleft(job)
            return
        if any(isinstance(outcome, LaunchFailed) and outcome.sticky for outcome in result.values()):
            self._replace(lane)
            self._quarantine[job.request.key] = next(o for o in result.values() if isinstance(o, LaunchFailed))
        else:
            self._pace.visited(seconds)
        self._deliver(job, result, seconds)

    def _overdue(self, worker: WorkerProcess) -> None:
        limit = round(worker.deadline - worker.started, 3)
        if not worker.ready and self.roster.others_ready(worker):
            # It waits for its place in the cluster, as others use that; those that have theirs do the work.
            worker.deadline += worker.patience
            return
        call, seconds = worker.end_call()
        phase = "run" if worker in self.roster.lanes else "compile"
        self._lost(worker, call, TimedOut(phase, limit), seconds, blameless=False)

    def _lost(
        self, worker: WorkerProcess, call: Call, outcome: Crashed | TimedOut, seconds: float, *, blameless: bool
    ) -> None:
        """The process is gone. The calls behind the first did nothing wrong, and are made again."""
        self._replace(worker)
        if call.job is None:
            self.roster.died_idle(worker, outcome)
            return
        worker.deaths = 0
        call.job.losses += not blameless
        if isinstance(outcome, Crashed) and call.job.losses < ATTEMPTS:
            self._again(call)
            return
        job = call.job if isinstance(call.job, Job) else call.job.job
        self._quarantine[job.request.key] = outcome
        self._fail(job, outcome, seconds if worker in self.roster.lanes else 0.0)

    def _replace(self, worker: WorkerProcess) -> None:
        for call in reversed(self.roster.renew(worker)):
            if call.job is not None:
                self._again(call)

    def _again(self, call: Call) -> None:
        call.job.alone = True
        if isinstance(call.job, Job):
            self._to_visit.appendleft(call.job)
        else:
            self._to_compile.appendleft(call.job)

    def _fail(self, job: Job, outcome: Failure, lane_seconds: float = 0.0) -> None:
        if job.failed:
            return
        job.failed = True
        self._deliver(job, {job.request.workloads[0]: outcome}, lane_seconds)

    def _deliver(self, job: Job, outcomes: dict[str, Outcome], lane_seconds: float) -> None:
        self.in_flight -= 1
        for name, outcome in outcomes.items():
            if isinstance(outcome, Measured):
                self._fastest[name] = min(outcome.seconds, self._fastest.get(name, outcome.seconds))
        evaluation = job.evaluation(outcomes, lane_seconds)
        if self._metrics is not None:
            self._metrics.ended(evaluation.failure.kind if evaluation.failure else None)
        self._done.append((job.request, evaluation))


def _has_room(worker: WorkerProcess, depth: int, alone: bool) -> bool:
    """Whether a worker that has `depth` calls may get another; one that must run alone shares its worker with none."""
    if len(worker.calls) != depth:
        return False
    return depth == 0 or not (alone or any(call.job is not None and call.job.alone for call in worker.calls))
