"""The pool: feeds compile workers and lanes without barriers, with deadlines, and replaces what dies.

An evaluation's life: `submit` splits it into one compilation for each combination of types; compile workers return
artifacts; when all are there it waits for a lane, is checked and timed on its workloads in one visit, and comes out of
`collect` as an `Evaluation`. Whatever goes wrong on the way becomes the outcome of that evaluation and of no other: a
worker that dies or overruns its deadline is killed and a new one takes its place.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from ray.exceptions import RayActorError

from tunesmith.actors.judge import Verdict
from tunesmith.actors.process import Deadlines, WorkerProcess, cause_of, result_of
from tunesmith.actors.workers import CompileWorker, Lane
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.backends import Artifact
from tunesmith.kernels.bench import Candidate, Duel, TypesKey, types_key
from tunesmith.kernels.outcome import (
    CompileFailed,
    Crashed,
    Evaluation,
    Failure,
    LaunchFailed,
    Measured,
    Outcome,
    Rejected,
    Resources,
    TimedOut,
)
from tunesmith.kernels.parameter import Config
from tunesmith.kernels.specialise import Specialised, specialise
from tunesmith.kernels.task import Task
from tunesmith.kernels.template import Template
from tunesmith.kernels.timing import Precision

EXAMINATION_SECONDS = 1800.0
"""For one examination, which has deadlines of its own inside."""
GIVE_UP = 1.25
"""How many times the fastest's time a clear loser takes: it is not sampled to the full precision."""


@dataclass(frozen=True, slots=True)
class Request:
    """An evaluation to be made: `number` is the caller's, for telling results apart."""

    number: int
    template: Template
    config: Config
    workloads: tuple[str, ...]


class PoolError(TunesmithError):
    """The pool can no longer work: workers die without doing anything."""


@dataclass(slots=True)
class _Job:
    request: Request
    sources: dict[TypesKey, Specialised]
    artifacts: dict[TypesKey, Artifact] = field(default_factory=dict)
    compile_seconds: float = 0.0
    failed: bool = False

    @property
    def candidate(self) -> Candidate:
        return Candidate(self.request.template, self.request.config, dict(self.artifacts))


class Pool:
    """Lanes and compile workers for one task on one kind of device.

    limits, index: the device (index matters to OpenCL only); lanes, compilers: how many of each; seed: contents of all
    buffers; workloads: what lanes prepare at their start. Use as a context manager; it ends its processes.
    """

    MAX_IDLE_DEATHS = 3

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
    ) -> None:
        self.task, self.limits = task, limits
        self.precision = precision or Precision()
        self.deadlines = deadlines or Deadlines()
        self._index, self._seed, self._prepared = index, seed, tuple(workloads)
        gpu = limits.backend == "cuda"
        self._exclusive = limits.kind == "cpu"
        """Compiling and timing share the processor, so they take turns."""
        lane_class: Any = ray.remote(num_gpus=1 if gpu else 0, num_cpus=0 if gpu else 1, max_restarts=0)(Lane)
        compile_class: Any = ray.remote(num_cpus=0 if self._exclusive else 1, max_restarts=0)(CompileWorker)
        # Arguments that every worker needs are stored once in the cluster, not sent with each.
        shared_task = ray.put(task)
        self._lanes = [
            WorkerProcess(lambda drawn: lane_class.remote(shared_task, limits, index, drawn), seed)
            for _ in range(lanes)
        ]
        self._compilers = [WorkerProcess(lambda _: compile_class.remote(limits, index), seed) for _ in range(compilers)]
        self._to_compile: deque[tuple[_Job, TypesKey]] = deque()
        self._to_visit: deque[_Job] = deque()
        self._done: deque[tuple[Request, Evaluation]] = deque()
        self.in_flight = 0
        self.roofline = Roofline()
        """The device's measured roofs, once they are known: what is timed below them is refused."""
        self._fastest: dict[str, float] = {}

    def __enter__(self) -> Pool:
        for worker in (*self._compilers, *self._lanes):
            worker.renew()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in (*self._compilers, *self._lanes):
            if worker.actor is not None:
                ray.kill(worker.actor)

    @property
    def ahead(self) -> int:
        """How many evaluations should be in flight: enough that no lane waits for a compiler."""
        return 2 * len(self._lanes) + len(self._compilers)

    def submit(self, request: Request) -> None:
        sources: dict[TypesKey, Specialised] = {}
        for name in request.workloads:
            workload = self.task.workload(name)
            sources.setdefault(types_key(workload), specialise(request.template, request.config, workload.types))
        job = _Job(request, sources)
        self.in_flight += 1
        self._to_compile.extend((job, key) for key in sources)

    def collect(self, timeout: float = 1.0) -> list[tuple[Request, Evaluation]]:
        """Evaluations that have ended, in the order they ended; waits up to `timeout` seconds for the first."""
        waited_until = time.monotonic() + timeout
        while True:
            self._dispatch()
            running = [w for w in (*self._compilers, *self._lanes) if w.reference is not None]
            if self._done or not running:
                break
            now = time.monotonic()
            pause = min(min(w.deadline for w in running), waited_until) - now
            waited = [worker.gate or worker.reference for worker in running]
            finished, _ = ray.wait(waited, timeout=max(0.0, pause))
            for worker, reference in zip(running, waited, strict=True):
                if reference in finished:
                    if reference is worker.gate:
                        self._pass_gate(worker)
                    else:
                        self._finish(worker)
                elif time.monotonic() > worker.deadline:
                    self._overdue(worker)
            if time.monotonic() >= waited_until and not self._done:
                break
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
        """The measured roofs of the first lane's device; no roofs when the device cannot run the probes."""
        probes = self._call(self._compilers[0], "probes", self.deadlines.compile)
        if not isinstance(probes, dict):
            return Roofline()
        roofline = self._call(self._lanes[0], "calibrate", self.deadlines.visit * 3, probes)
        self.roofline = roofline if isinstance(roofline, Roofline) else Roofline()
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

        Duels of the same `seed` share a process. Nothing else may be in flight.
        """
        compiled = [self._compile_now(request) for request in (baseline, *candidates)]
        base, ready = compiled[0], [one for one in compiled[1:] if isinstance(one, Candidate)]
        if not isinstance(base, Candidate):
            return Duel(workload, tuple(base for _ in candidates))
        lane = self._lanes[0]
        if lane.seed != seed:
            lane.renew(seed)

        def fight(entrants: list[Candidate]) -> Any:
            # A process that was replaced has to make its buffers again; that is not the kernels' time.
            self._call(lane, "prepare", self.deadlines.prepare, [workload])
            deadline = (self.deadlines.visit + budget_seconds) * (1 + len(entrants))
            floor = self._floor(workload)
            return self._call(lane, "duel", deadline, base, entrants, workload, rounds, budget_seconds, floor)

        answer = fight(ready)
        if len(ready) > 1 and _ended_process(answer):
            # Which of them did it is not known, and must not be held against the others: each fights alone.
            alone = [fight([one]) for one in ready]
            measured = iter([one.results[0] if isinstance(one, Duel) else one for one in alone])
        else:
            measured = iter(answer.results if isinstance(answer, Duel) else [answer] * len(ready))
        return Duel(workload, tuple(next(measured) if isinstance(one, Candidate) else one for one in compiled[1:]))

    def examine(self, jobs: Sequence[tuple[Template, Config, str | None]], *, seed: int) -> list[Verdict] | Failure:
        """The full verdict on each template at a configuration, for one workload or (None) for all, on the device of
        the first lane. A failure is one of the examination, not of a candidate. Nothing else may be in flight."""
        lane = self._lanes[0]
        # A new process: the old one's buffers would leave little room for the examiner's.
        lane.renew(seed)
        deadline = EXAMINATION_SECONDS * len(jobs)
        found: list[Verdict] | Failure = self._call(lane, "examine", deadline, list(jobs), seed, self.roofline)
        return found

    def _compile_now(self, request: Request) -> Candidate | Outcome:
        artifacts = {}
        for name in request.workloads:
            workload = self.task.workload(name)
            if types_key(workload) in artifacts:
                continue
            source = specialise(request.template, request.config, workload.types)
            artifact = self._call(self._compilers[0], "compile", self.deadlines.compile, source)
            if not isinstance(artifact, Artifact):
                failure: Outcome = artifact
                return failure
            artifacts[types_key(workload)] = artifact
        return Candidate(request.template, request.config, artifacts)

    def _call(self, worker: WorkerProcess, method: str, deadline: float, *arguments: Any) -> Any:
        """One call on an idle worker; a death or an overrun comes back as an outcome and renews the worker."""
        phase = "run" if worker in self._lanes else "compile"
        try:
            if not worker.ready:
                first = worker.actor.identity if phase == "run" else worker.actor.version
                result_of(first.remote(), self.deadlines.start)
                worker.ready = True
            if method in ("duel", "calibrate"):
                result_of(worker.actor.acquire.remote(), self.deadlines.start)
            result = result_of(getattr(worker.actor, method).remote(*arguments), deadline)
        except ray.exceptions.GetTimeoutError:
            worker.renew()
            return TimedOut(phase, deadline)
        except RayActorError as error:
            worker.renew()
            return Crashed(phase, cause_of(error))
        if isinstance(result, Duel) and _ended_process(result):
            worker.renew()
        return result

    def _dispatch(self) -> None:
        visiting = any(lane.reference is not None for lane in self._lanes)
        if not (self._exclusive and visiting):
            for worker in self._compilers:
                if worker.reference is None:
                    self._start_compile(worker)
        compiling = any(worker.reference is not None for worker in self._compilers)
        if not (self._exclusive and compiling):
            for lane in self._lanes:
                if lane.reference is None and self._to_visit:
                    if lane.seed != self._seed:
                        lane.renew(self._seed)
                    self._start_visit(lane)

    def _start_compile(self, worker: WorkerProcess) -> None:
        if not worker.ready and self._to_compile:
            # So that what stops a worker from starting is not taken for a fault of the source.
            self._begin(worker, worker.actor.version.remote(), 0.0)
            return
        while self._to_compile:
            job, key = self._to_compile.popleft()
            if job.failed:
                continue
            worker.job, worker.key = job, key
            self._begin(worker, worker.actor.compile.remote(job.sources[key]), self.deadlines.compile)
            return

    def _start_visit(self, lane: WorkerProcess) -> None:
        if not lane.ready:
            lane.job = None
            self._begin(lane, lane.actor.prepare.remote(self._prepared), self.deadlines.prepare)
            return
        job = lane.job = self._to_visit.popleft()
        lane.gate = lane.actor.acquire.remote()
        names = job.request.workloads
        reference = lane.actor.visit.remote(job.candidate, names, {name: self._precision_of(name) for name in names})
        self._begin(lane, reference, self.deadlines.visit * len(job.request.workloads))

    def _precision_of(self, workload: str) -> Precision:
        """The usual precision; clear losers to the fastest on this workload are dropped; nothing beats the floor."""
        best = self._fastest.get(workload)
        above = self.precision.give_up_above if best is None else best * GIVE_UP
        return replace(self.precision, give_up_above=above, floor=self._floor(workload))

    def _floor(self, workload: str) -> float:
        task, one = self.task, self.task.workload(workload)
        return self.roofline.floor_seconds(task.bytes_of(one), task.flops_of(one), task.arithmetic) or 0.0

    def _begin(self, worker: WorkerProcess, reference: Any, seconds: float) -> None:
        worker.reference, worker.seconds, worker.started = reference, seconds, time.monotonic()
        patience = self.deadlines.start if worker.gate is not None or not worker.ready else 0.0
        worker.deadline = worker.started + seconds + patience

    def _pass_gate(self, worker: WorkerProcess) -> None:
        """The device is ours: from now on the deadline runs. If the process died instead, the call tells."""
        worker.gate, worker.started = None, time.monotonic()
        worker.deadline = worker.started + worker.seconds

    def _finish(self, worker: WorkerProcess) -> None:
        job, reference, worker.reference, worker.job = worker.job, worker.reference, None, None
        seconds = time.monotonic() - worker.started
        try:
            result = result_of(reference)
        except RayActorError as error:
            phase = "run" if worker in self._lanes else "compile"
            self._died(worker, job, Crashed(phase, cause_of(error)), seconds)
            return
        worker.ready, worker.deaths = True, 0
        if worker in self._lanes:
            if job is not None:
                self._visited(worker, job, result, seconds)
        elif job is not None:
            job.compile_seconds += seconds
            self._compiled(job, worker.key, result)

    def _compiled(self, job: _Job, key: TypesKey, result: Artifact | CompileFailed | Rejected) -> None:
        if not isinstance(result, Artifact):
            self._fail(job, result)
            return
        job.artifacts[key] = result
        if len(job.artifacts) == len(job.sources) and not job.failed:
            self._to_visit.append(job)

    def _visited(self, lane: WorkerProcess, job: _Job, outcomes: dict[str, Outcome], seconds: float) -> None:
        if any(isinstance(outcome, LaunchFailed) and outcome.sticky for outcome in outcomes.values()):
            lane.renew()
        self._deliver(job, outcomes, seconds)

    def _overdue(self, worker: WorkerProcess) -> None:
        job, seconds = worker.job, time.monotonic() - worker.started
        phase = "run" if worker in self._lanes else "compile"
        self._died(worker, job, TimedOut(phase, round(worker.deadline - worker.started, 3)), seconds)

    def _died(self, worker: WorkerProcess, job: _Job | None, outcome: Failure, seconds: float) -> None:
        worker.deaths = worker.deaths + 1 if job is None else 0
        if worker.deaths >= self.MAX_IDLE_DEATHS:
            raise PoolError(f"A worker process ended {worker.deaths} times before doing any work: {outcome}.")
        worker.renew()
        if job is not None:
            self._fail(job, outcome, seconds if worker in self._lanes else 0.0)

    def _fail(self, job: _Job, outcome: Failure, lane_seconds: float = 0.0) -> None:
        if job.failed:
            return
        job.failed = True
        self._deliver(job, {job.request.workloads[0]: outcome}, lane_seconds)

    def _deliver(self, job: _Job, outcomes: dict[str, Outcome], lane_seconds: float) -> None:
        self.in_flight -= 1
        artifact = next(iter(job.artifacts.values()), None)
        evaluation = Evaluation(
            template=job.request.template.id,
            config=job.request.config,
            outcomes=outcomes,
            resources=artifact.resources if artifact else Resources(),
            artifact=artifact.digest if artifact else "",
            compile_seconds=round(job.compile_seconds, 6),
            lane_seconds=round(lane_seconds, 6),
        )
        for name, outcome in outcomes.items():
            if isinstance(outcome, Measured):
                self._fastest[name] = min(outcome.seconds, self._fastest.get(name, outcome.seconds))
        self._done.append((job.request, evaluation))


def _ended_process(answer: Duel | Outcome) -> bool:
    """Whether the process of a duel died, overran its deadline, or lost its device."""
    if not isinstance(answer, Duel):
        return True
    return any(isinstance(one, LaunchFailed) and one.sticky for one in answer.results)
