"""What happens to evaluations between `submit` and the end: queues, calls to workers, and what becomes of lost calls.

Workers have their next call before they have ended the one at hand, so that they never wait for this process. Whatever
goes wrong becomes the outcome of that evaluation and of no other: a worker that dies or overruns its deadline is
replaced, and its other calls are made again.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace

import ray

from tunesmith.actors.cluster.handle import LOST, Call, Deadlines, WorkerProcess, cause_of, node_died, result_of
from tunesmith.actors.lane.lane_host import Busy, Lost
from tunesmith.actors.pool.compiling import Compiling
from tunesmith.actors.pool.job import ATTEMPTS, Compilation, Job, Request, sources_of
from tunesmith.actors.pool.pace import Pace
from tunesmith.actors.pool.roster import Roster
from tunesmith.actors.process.packed import pack, unpack
from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.artifact_cache import ArtifactCache
from tunesmith.kernels.measure.timing import Precision
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
from tunesmith.kernels.spec.task import Task

GIVE_UP = 1.25
"""How many times the fastest's time a clear loser takes: it is not sampled to the full precision."""
QUEUED = 2
"""Calls a worker may have: the one at hand and the next."""


class Conveyor:
    """Evaluations under way, on the workers of `roster`. done: those that ended and were not taken yet; in_flight: how
    many have not ended; roofline: the device's measured roofs, below which no time is believed."""

    def __init__(
        self,
        task: Task,
        limits: DeviceLimits,
        roster: Roster,
        pace: Pace,
        *,
        seed: int,
        precision: Precision,
        deadlines: Deadlines,
        cache: ArtifactCache | None,
    ) -> None:
        self.task, self.limits, self.roster = task, limits, roster
        self.precision, self.deadlines, self._seed, self._pace = precision, deadlines, seed, pace
        self._exclusive = limits.kind == "cpu"
        """Compiling and timing share the processor, so they take turns."""
        self.compiling = Compiling(limits.arch, cache, deadlines.compile, roster.say)
        self._to_visit: deque[Job] = deque()
        self.done: deque[tuple[Request, Evaluation]] = deque()
        self.in_flight = 0
        self._roofline = Roofline()
        self._floors: dict[str, float] = {}
        self._fastest: dict[str, float] = {}
        self._quarantine: dict[tuple[str, str], Failure] = {}
        """Configurations that ended a lane: they are answered from here and never run again."""

    @property
    def roofline(self) -> Roofline:
        return self._roofline

    @roofline.setter
    def roofline(self, roofline: Roofline) -> None:
        self._roofline, self._floors = roofline, {}

    def submit(self, request: Request) -> None:
        job = Job(request, sources_of(request, [self.task.workload(name) for name in request.workloads]))
        self.in_flight += 1
        if (known := self._quarantine.get(request.key)) is not None:
            self._fail(job, known)
            return
        self.compiling.add(job)

    def step(self, until: float) -> None:
        """Gives workers what there is for them, and waits for something to happen, until a monotonic time at most."""
        self._dispatch()
        self.compiling.keep()
        if self.done or not self.in_flight:
            return
        busy = [worker for worker in self.roster.workers if worker.calls]
        if busy:
            self._advance(busy, until)
        else:
            # All lanes are with other tunings.
            time.sleep(min(0.1, max(0.0, until - time.monotonic())))
        self.roster.require_device()

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
                    if self.compiling and _has_room(worker, depth, self.compiling.next_alone):
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
        for compilation, found in self.compiling.start(worker):
            self._pace.compiled(0.0)
            self._compiled(compilation, found)

    def _start_visit(self, lane: WorkerProcess) -> None:
        if lane.seed != self._seed:
            lane.restart(self._seed)
        if not lane.ready:
            return
        job = self._to_visit.popleft()
        names = job.request.workloads
        gate = lane.actor.acquire.remote() if job.gated else None
        packed = pack(job.candidate, names, {name: self._precision_of(name) for name in names})
        seconds = self.deadlines.visit * len(names)
        reference = lane.actor.visit_packed.remote(packed, seconds)
        lane.begin(Call(reference, seconds, job, gate, self.deadlines.grace))

    def _precision_of(self, workload: str) -> Precision:
        """The usual precision; clear losers to the fastest on this workload are dropped; nothing beats the floor."""
        best = self._fastest.get(workload)
        above = self.precision.give_up_above if best is None else best * GIVE_UP
        return replace(self.precision, give_up_above=above, floor=self.floor(workload))

    def floor(self, workload: str) -> float:
        """The least seconds that the roofs allow on a workload; 0 while they are not known."""
        if workload not in self._floors:
            task, one = self.task, self.task.workload(workload)
            least = self.roofline.floor_seconds(task.bytes_of(one), task.flops_of(one), task.arithmetic)
            self._floors[workload] = least or 0.0
        return self._floors[workload]

    def _finish(self, worker: WorkerProcess) -> None:
        call, seconds = worker.end_call()
        try:
            result = result_of(call.reference)
        except LOST as error:
            phase = "run" if worker in self.roster.lanes else "compile"
            self._replace(worker)
            self._lost(worker, call, Crashed(phase, cause_of(error)), seconds, blameless=node_died(error))
            return
        if call.job is None:
            self.roster.welcome(worker, result)
            return
        (result,) = unpack(result)
        worker.deaths, worker.served = 0, worker.served + 1
        if isinstance(call.job, Job):
            self._visited(worker, call, result, seconds)
        else:
            self._pace.compiled(seconds)
            call.job.job.compile_seconds += seconds
            self._compiled(call.job, result)
            for other in self.compiling.made(call.job, result):
                self._pace.compiled(0.0)
                self._compiled(other, result)

    def _compiled(self, compilation: Compilation, result: Artifact | CompileFailed | Rejected) -> None:
        job = compilation.job
        if not isinstance(result, Artifact):
            self._fail(job, result)
            return
        job.artifacts[compilation.key] = result
        if job.compiled and not job.failed:
            self._to_visit.append(job)

    def _visited(
        self, lane: WorkerProcess, call: Call, result: dict[str, Outcome] | Busy | Lost, seconds: float
    ) -> None:
        job: Job = call.job
        if isinstance(result, Busy):
            # Others use the device: this visit waits for its turn, and its deadline with it.
            job.gated = True
            self._to_visit.appendleft(job)
            return
        if isinstance(result, Lost):
            self._requeue(lane.restart())
            if result.outcome is None:
                self._again(call)
            else:
                self._lost(lane, call, result.outcome, seconds, blameless=False)
            return
        if any(isinstance(outcome, LaunchFailed) and outcome.sticky for outcome in result.values()):
            self._requeue(lane.restart())
            self._quarantine[job.request.key] = next(o for o in result.values() if isinstance(o, LaunchFailed))
        else:
            self._pace.visited(seconds)
        self._deliver(job, result, seconds)

    def _overdue(self, worker: WorkerProcess) -> None:
        if not worker.ready and self.roster.others_ready(worker):
            # It waits for its place in the cluster, as others use that; those that have theirs do the work.
            worker.deadline += worker.patience
            return
        patience = 0.0 if worker.ready else worker.patience
        call, seconds = worker.end_call()
        phase = "run" if worker in self.roster.lanes else "compile"
        self._replace(worker)
        self._lost(worker, call, TimedOut(phase, call.seconds + patience), seconds, blameless=False)

    def _lost(
        self, worker: WorkerProcess, call: Call, outcome: Crashed | TimedOut, seconds: float, *, blameless: bool
    ) -> None:
        """What becomes of a call whose process is gone."""
        if call.job is None:
            self.roster.died_idle(worker, outcome)
            return
        worker.deaths = 0
        if isinstance(call.job, Compilation):
            self.compiling.lost(call.job)
        call.job.losses += not blameless
        if isinstance(outcome, Crashed) and call.job.losses < ATTEMPTS:
            self._again(call)
            return
        job = call.job if isinstance(call.job, Job) else call.job.job
        self._quarantine[job.request.key] = outcome
        self._fail(job, outcome, seconds if worker in self.roster.lanes else 0.0)

    def _replace(self, worker: WorkerProcess) -> None:
        self._requeue(worker.renew())

    def _requeue(self, calls: list[Call]) -> None:
        """Calls behind one that was lost did nothing wrong, and are made again."""
        for call in reversed(calls):
            if call.job is not None:
                if isinstance(call.job, Compilation):
                    self.compiling.lost(call.job)
                self._again(call)

    def _again(self, call: Call) -> None:
        call.job.alone = True
        if isinstance(call.job, Job):
            self._to_visit.appendleft(call.job)
        else:
            self.compiling.again(call.job)

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
        self.done.append((job.request, job.evaluation(outcomes, lane_seconds)))


def _has_room(worker: WorkerProcess, depth: int, alone: bool) -> bool:
    """Whether a worker that has `depth` calls may get another; one that must run alone shares its worker with none."""
    if len(worker.calls) != depth:
        return False
    return depth == 0 or not (alone or any(call.job is not None and call.job.alone for call in worker.calls))
