"""The scheduler: the queues of an evaluation between `submit` and its end.

Owns the queues of compilations and of visits, their dispatch to workers, the retry of lost calls, and how many
evaluations should be in flight. Workers have their next call before they have ended the one at hand, so that they never
wait for this process. A failure becomes the outcome of that evaluation and of no other: a worker that dies or overruns
its deadline is replaced, and its other calls are made again.

Artifacts pass through this process, because the cache on disk is its own: nodes come and go, and a second run finds all
in one place. (Ray would keep results this small here anyway, with their owner.)
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import ray
from ray.exceptions import NodeDiedError, ObjectLostError

from tunesmith.actors.lane import DEVICE_BUSY, PROCESS_GONE
from tunesmith.actors.pool.workers import GATE, LOST, ActorCall, ActorHandle, WorkerSet, describe_loss, result_of
from tunesmith.actors.process import pack, unpack
from tunesmith.hw.device_lock import REPORT_AFTER_SECONDS
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.build.artifact import (
    Artifact,
    ArtifactCache,
    Candidate,
    EvaluationRequest,
    TypesKey,
    cache_key,
    types_key,
)
from tunesmith.kernels.build.source import Specialised, specialise
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
    Resources,
    TimedOut,
)

MAX_WORKER_LOSSES = 2
"""Worker losses after which an evaluation itself is blamed. The cause of a loss is not known: a kernel that wrote out
of bounds, or a system that was short of memory."""
EARLY_STOP_RATIO = 1.25
"""Time over the fastest's from which on a candidate is not sampled to the full precision."""
CALLS_PER_WORKER = 2
"""The call at hand and the next."""
SPARE_COMPILATIONS = 0.25
"""Further compilations, as a share of the workers, for the time that this process is busy."""
NEWEST_WEIGHT = 0.1
"""Weight of the newest duration in the running averages."""

Compiled = Artifact | CompileFailed | Rejected | Crashed | TimedOut


@dataclass(slots=True)
class Job:
    """A request under way. artifacts: of its `sources`, by their digests; compile_only: it ends with its `candidate`,
    and is not visited. losses: processes it has lost; alone: it was in a process that was lost, and is next run with
    nothing queued beside it, as the result of a call can be lost with a process that the call behind it ended; gated:
    it must wait for its turn on the device."""

    request: EvaluationRequest
    sources: dict[TypesKey, Specialised]
    compile_only: bool
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    compile_seconds: float = 0.0
    cached: bool = True
    failure: Failure | None = None
    losses: int = 0
    alone: bool = False
    gated: bool = False

    @property
    def candidate(self) -> Candidate:
        artifacts = {key: self.artifacts[source.digest] for key, source in self.sources.items()}
        return Candidate(self.request.template, self.request.config, artifacts)

    def evaluation(self, outcomes: dict[str, Outcome], lane_seconds: float) -> Evaluation:
        artifact = next(iter(self.artifacts.values()), None)
        return Evaluation(
            template=self.request.template.id,
            config=self.request.config,
            outcomes=outcomes,
            resources=artifact.resources if artifact else Resources(),
            artifact=artifact.digest if artifact else "",
            compile_seconds=round(self.compile_seconds, 6),
            lane_seconds=round(lane_seconds, 6),
            cached=self.cached,
        )


@dataclass(slots=True)
class Compilation:
    """A source, and the jobs that wait for its code, the first of which pays for it. end: no compiler survives it, and
    it is not compiled again, for whatever job: each time would take as long. losses, alone: as for a job."""

    source: Specialised
    jobs: list[Job] = field(default_factory=list)
    end: Crashed | TimedOut | None = None
    losses: int = 0
    alone: bool = False


class Scheduler:
    """Evaluations in flight, on `workers`. done: ended, but not collected yet; in_flight: number of those under way;
    max_in_flight: the number that keeps all workers busy, however long calls take; roofline: the device's measured
    roofs, below which times are refused."""

    def __init__(self, workers: WorkerSet, precision: Precision, cache: ArtifactCache | None) -> None:
        self.workers, self.task, self.precision = workers, workers.task, precision
        limits, self._deadlines = workers.limits, workers.deadlines
        self._exclusive = limits.kind == "cpu"
        """Compiling and timing share the processor, so they take turns."""
        self._lanes, compilers = len(workers.lanes), len(workers.compilers)
        spare = math.ceil(SPARE_COMPILATIONS * compilers)
        self.max_in_flight = compilers + (self._lanes if self._exclusive else CALLS_PER_WORKER * self._lanes + spare)
        self._averages: dict[str, float] = {}
        self._cache, self._arch = cache, limits.arch
        self._compilations: dict[str, Compilation] = {}
        """Compilations that wait or run, and sources that no compiler survives, by the sources' digests."""
        self.compile_queue: deque[Compilation] = deque()
        self._visit_queue: deque[Job] = deque()
        self.done: deque[tuple[EvaluationRequest, Evaluation]] = deque()
        self.in_flight = 0
        self.roofline = Roofline()
        self._floors: dict[tuple[Roofline, str], float] = {}
        self._fastest: dict[str, float] = {}
        self._quarantine: dict[tuple[str, str], Failure] = {}
        """Configurations that ended a lane: they are answered from here and never run again."""

    @property
    def target_in_flight(self) -> int:
        """How many evaluations should be in flight now: so many that no lane waits, and no more, as a search learns
        nothing from evaluations under way. Requests that share a pending compilation do not count.

        By Little's law (Little, Operations Research 9, 1961) lanes that take an evaluation every t seconds from
        compilations of c seconds need c / t of them being compiled, besides those at the lanes themselves."""
        target, compilation, visit = self.max_in_flight, self._averages.get("compile"), self._averages.get("visit")
        if not self._exclusive and compilation is not None and visit:
            compiling = math.ceil((1 + SPARE_COMPILATIONS) * compilation * self._lanes / visit)
            target = min(target, CALLS_PER_WORKER * self._lanes + 1 + compiling)
        return target + sum(len(one.jobs) - 1 for one in self._compilations.values() if one.jobs)

    def submit(self, request: EvaluationRequest) -> None:
        """Begins an evaluation, which is in `done` when it has ended."""
        self._begin(request, self._quarantine.get(request.key))

    def compile(self, *requests: EvaluationRequest) -> list[Candidate | Failure]:
        """The kernels of `requests`, each for all of its workloads' types, or why not. Nothing else may be in
        flight."""
        jobs = [self._begin(request, compile_only=True) for request in requests]
        while self.in_flight:
            self._dispatch([])
            self.advance(*self.workers.lanes)
        return [job.failure or job.candidate for job in jobs]

    def step(self, until: float) -> None:
        """Gives workers their next calls, and waits for a call to end, until a monotonic time at most."""
        self._dispatch(self.workers.lanes)
        if not self.done and self.in_flight:
            self.advance(*self.workers.lanes, until=until)

    def make_ready(self, worker: ActorHandle) -> None:
        """Waits until `worker` is ready, or excluded. Raises `PoolError` when it was the last of its kind."""
        group = self.workers.group_of(worker)
        while worker in group and not worker.ready:
            # Lanes need the answer of a compile worker to start.
            for one in (worker, *self.workers.compilers):
                self.workers.request_ready(one)
            self.advance(worker)

    def ready_worker(self, group: list[ActorHandle], seed: int | None = None) -> ActorHandle:
        """The first of the lanes or compile workers, ready; where it is excluded meanwhile, the next. seed: of the
        contents that a lane has, where it matters. Raises `PoolError` when none is left."""
        while True:
            worker = group[0]
            if seed is not None and worker.seed != seed:
                worker.reset_in_place(seed)
            self.make_ready(worker)
            if worker in group:
                return worker

    def floor(self, workload: str) -> float:
        """The least seconds that the roofs allow on a workload; 0 while they are not known."""
        key = self.roofline, workload
        if key not in self._floors:
            task, sized = self.task, self.task.workload(workload)
            floor = self.roofline.floor_seconds(task.bytes_of(sized), task.flops_of(sized), task.arithmetic)
            self._floors[key] = floor or 0.0
        return self._floors[key]

    def _begin(self, request: EvaluationRequest, known: Failure | None = None, *, compile_only: bool = False) -> Job:
        """A job for `request`, which ends at once with a failure that is `known`."""
        sources: dict[TypesKey, Specialised] = {}
        for workload in map(self.task.workload, request.workloads):
            if (key := types_key(workload)) not in sources:
                sources[key] = specialise(request.template, request.config, workload.types)
        job = Job(request, sources, compile_only)
        self.in_flight += 1
        if known is not None:
            self._fail(job, known)
            return job
        for digest, source in {source.digest: source for source in sources.values()}.items():
            compilation = self._compilations.setdefault(digest, Compilation(source))
            if compilation.end is not None:
                self._fail(job, compilation.end)
                continue
            if not compilation.jobs:
                self.compile_queue.append(compilation)
            compilation.jobs.append(job)
        return job

    def advance(self, *needed: ActorHandle, until: float = math.inf) -> None:
        """Waits for a call of the workers `needed`, or of a compile worker, to end, until a monotonic time at most,
        handles all that have ended or are overdue, and reports why lanes take long to be ready."""
        until = min(until, time.monotonic() + REPORT_AFTER_SECONDS)
        workers = [*self.workers.compilers, *needed]
        if waited := {worker.calls[0].reference: worker for worker in workers if worker.calls}:
            references = list(waited)
            finished, _ = ray.wait(references, num_returns=len(references), timeout=0)
            if not finished:
                pause = min(until, *(worker.deadline for worker in waited.values())) - time.monotonic()
                finished, _ = ray.wait(references, timeout=max(0.0, pause))
            now = time.monotonic()
            for reference, worker in waited.items():
                # Handling another may have replaced this one.
                if worker.calls and worker.calls[0].reference is reference:
                    if reference in finished:
                        self._finish(worker)
                    elif now > worker.deadline:
                        self._on_overdue(worker)
        self.workers.report_waiting([worker for worker in needed if worker.phase == "run"] or self.workers.lanes)

    def _dispatch(self, lanes: Sequence[ActorHandle]) -> None:
        """Gives `lanes` and compile workers their next calls."""
        compilers = self.workers.compilers
        for worker in (*compilers, *lanes):
            self.workers.request_ready(worker)
        sides: list[tuple[Any, ...]] = [
            (compilers, self.workers.lanes, self.compile_queue, self._start_compile),
            (lanes, compilers, self._visit_queue, self._start_visit),
        ]
        for group, others, queue, start in sides:
            if self._exclusive and any(other.calls for other in others):
                continue
            for depth in range(1 if self._exclusive else CALLS_PER_WORKER):
                for worker in group:
                    if queue and _has_room(worker, depth, queue[0].alone):
                        start(worker)

    def _start_compile(self, worker: ActorHandle) -> None:
        """Gives `worker` the next compilation whose result is not known."""
        # The source is not to blame for a worker that does not start.
        while worker.ready and self.compile_queue:
            compilation = self.compile_queue.popleft()
            key = cache_key(compilation.source, self._arch, worker.version)
            if all(job.failure is not None for job in compilation.jobs):
                del self._compilations[compilation.source.digest]
            elif self._cache is not None and (found := self._cache.get(key)) is not None:
                self._on_compiled(compilation, found, 0.0)
            else:
                compilation.jobs[0].cached = False
                worker.begin(compilation, self._deadlines.compile, "compile_packed", pack(compilation.source))
                return

    def _start_visit(self, lane: ActorHandle) -> None:
        if lane.seed != self.workers.seed:
            lane.reset_in_place(self.workers.seed)
        if not lane.ready:
            return
        job = self._visit_queue.popleft()
        names = job.request.workloads
        if job.gated:
            lane.begin(GATE, 0.0, "acquire")
        packed = pack(job.candidate, names, {name: self._precision_of(name) for name in names})
        seconds = self._deadlines.visit * len(names)
        lane.begin(job, seconds, "visit_packed", packed, seconds, grace=self._deadlines.grace)

    def _precision_of(self, workload: str) -> Precision:
        """The usual precision, with the floor. Clear losers to the fastest on this workload are dropped, unless energy
        counts, of which a slower kernel may take less."""
        best = None if self.precision.energy_seconds else self._fastest.get(workload)
        above = self.precision.give_up_above if best is None else best * EARLY_STOP_RATIO
        return replace(self.precision, give_up_above=above, floor=self.floor(workload))

    def _finish(self, worker: ActorHandle) -> None:
        """The first call of `worker` has ended."""
        call, seconds = worker.end_call()
        job = call.job
        try:
            result = result_of(call.reference)
        except LOST as error:
            if job is GATE:
                return  # the call behind it tells
            # The evaluation is not to blame for a lost node, nor for a result that was lost after it was there.
            blameless = worker.node_is_gone or isinstance(error, ObjectLostError | NodeDiedError)
            outcome = Crashed(worker.phase, describe_loss(error))
            self._retry_all(worker.replace_actor())
            self._on_lost(worker, call, outcome, seconds, blameless=blameless)
            return
        except TunesmithError as error:
            if job is not None:
                raise
            self.workers.on_mistake(worker, error)
            return
        if job is None:
            self.workers.on_started(worker, result)
        elif isinstance(job, Future):
            job.set_result(result)
        elif job is not GATE:
            (result,) = unpack(result)
            worker.startup_deaths, worker.served = 0, worker.served + 1
            if isinstance(job, Job):
                self._on_visited(worker, call, result, seconds)
                return
            if self._cache is not None and isinstance(result, Artifact | CompileFailed):
                before = self._cache.failure
                self._cache.put(cache_key(job.source, self._arch, worker.version), result)
                if self._cache.failure != before:
                    self.workers.say(self._cache.failure)
            self._on_compiled(job, result, seconds)

    def _on_compiled(self, compilation: Compilation, result: Compiled, seconds: float) -> None:
        del self._compilations[compilation.source.digest]
        compilation.jobs[0].compile_seconds += seconds
        for number, job in enumerate(compilation.jobs):
            self._note("compile", 0.0 if number else seconds)
            if not isinstance(result, Artifact):
                self._fail(job, result)
                continue
            job.artifacts[compilation.source.digest] = result
            if job.failure is None and {source.digest for source in job.sources.values()} == set(job.artifacts):
                if job.compile_only:
                    self.in_flight -= 1
                else:
                    self._visit_queue.append(job)

    def _on_visited(self, lane: ActorHandle, call: ActorCall, result: Any, seconds: float) -> None:
        """result: see `Lane.visit_packed`."""
        job: Job = call.job
        if result == DEVICE_BUSY:
            # Another process uses the device: this visit waits for its turn, and its deadline with it.
            job.gated = True
            self._visit_queue.appendleft(job)
        elif result == PROCESS_GONE:
            self._retry_all([call, *lane.reset_in_place()])
        elif isinstance(result, Crashed | TimedOut):
            self._retry_all(lane.reset_in_place())
            self._on_lost(lane, call, result, seconds, blameless=False)
        else:
            sticky = [one for one in result.values() if isinstance(one, LaunchFailed) and one.sticky]
            if sticky:
                self._retry_all(lane.reset_in_place())
                self._quarantine[job.request.key] = sticky[0]
            else:
                self._note("visit", seconds)
            self._deliver(job, result, seconds)

    def _on_overdue(self, worker: ActorHandle) -> None:
        if not worker.ready and self.in_flight and self.workers.others_ready(worker):
            # It waits for a place in the cluster that others use; the ready workers do the work.
            worker.deadline += worker.patience
            return
        patience = 0.0 if worker.ready else worker.patience
        call, seconds = worker.end_call()
        if call.job is GATE:
            call, seconds = worker.end_call()
        self._retry_all(worker.replace_actor())
        self._on_lost(worker, call, TimedOut(worker.phase, call.seconds + patience), seconds, blameless=False)

    def _on_lost(
        self, worker: ActorHandle, call: ActorCall, outcome: Crashed | TimedOut, seconds: float, *, blameless: bool
    ) -> None:
        """Makes a call whose process is gone again, or blames it."""
        work = call.job
        if work is None:
            self.workers.on_startup_death(worker, outcome)
            return
        worker.startup_deaths = 0
        if isinstance(work, Future):
            work.set_result(outcome)
            return
        work.losses += not blameless
        if isinstance(outcome, Crashed) and work.losses < MAX_WORKER_LOSSES:
            self._retry_all([call])
            return
        if isinstance(work, Job):
            self._quarantine[work.request.key] = outcome
            self._fail(work, outcome, seconds)
        else:
            self._on_compiled(work, outcome, 0.0)
            self._compilations[work.source.digest] = Compilation(work.source, end=outcome)

    def _retry_all(self, calls: list[ActorCall]) -> None:
        """Makes calls again, before all that wait: a lost one that may not be to blame, and calls behind a lost one,
        which did nothing wrong."""
        for work in (call.job for call in reversed(calls)):
            if isinstance(work, Job):
                self._visit_queue.appendleft(work)
            elif isinstance(work, Compilation):
                self.compile_queue.appendleft(work)
            else:
                continue
            work.alone = True

    def _fail(self, job: Job, outcome: Failure, lane_seconds: float = 0.0) -> None:
        if job.failure is None:
            job.failure = outcome
            self._deliver(job, {job.request.workloads[0]: outcome}, lane_seconds)

    def _deliver(self, job: Job, outcomes: dict[str, Outcome], lane_seconds: float) -> None:
        self.in_flight -= 1
        for name, outcome in outcomes.items():
            if isinstance(outcome, Measured):
                self._fastest[name] = min(outcome.seconds, self._fastest.get(name, outcome.seconds))
        if not job.compile_only:
            self.done.append((job.request, job.evaluation(outcomes, lane_seconds)))

    def _note(self, what: Literal["compile", "visit"], seconds: float) -> None:
        """A compilation or a visit took `seconds`."""
        before = self._averages.get(what, seconds)
        self._averages[what] = (1 - NEWEST_WEIGHT) * before + NEWEST_WEIGHT * seconds


def _has_room(worker: ActorHandle, depth: int, alone: bool) -> bool:
    """Whether a worker that has `depth` calls may get another; alone: the call must not share its worker."""
    if len(worker.calls) != depth:
        return False
    works = [call.job for call in worker.calls if isinstance(call.job, Job | Compilation)]
    return depth == 0 or not (alone or any(work.alone for work in works))
