"""The scheduler: the queues of an evaluation between `submit` and its end.

Owns the queues of compilations and of visits, their dispatch to workers, the retry of lost calls, and how many
evaluations should be in flight. Workers have their next call before they have ended the one at hand, so that they never
wait for this process. A failure becomes the outcome of that evaluation and of no other: a worker that dies or overruns
its deadline is replaced, and its other calls are made again.

Artifacts pass through this process, because the cache on disk is its own: nodes come and go, and a second run finds all
in one place. (Handing Ray's reference of a compilation on to the lane would not spare the way: Ray keeps results this
small with their owner, which is this process, and a visit would be dispatched before it is known whether the source
compiled.)
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import ray
from ray.exceptions import NodeDiedError, ObjectLostError

from tunesmith.actors.lane import DeviceBusy, WorkerLost
from tunesmith.actors.pool.workers import LOST, ActorCall, ActorHandle, WorkerSet, describe_loss, result_of
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
from tunesmith.kernels.spec.task import Workload

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

USES_DEVICE = ("prepare", "compare", "calibrate", "examine")
"""Calls of a lane that launch kernels, before which it waits for the device."""

Compiled = Artifact | CompileFailed | Rejected


def sources_of(request: EvaluationRequest, workloads: Sequence[Workload]) -> dict[TypesKey, Specialised]:
    """The source for each combination of types that `workloads` have."""
    sources: dict[TypesKey, Specialised] = {}
    for workload in workloads:
        key = types_key(workload)
        if key not in sources:
            sources[key] = specialise(request.template, request.config, workload.types)
    return sources


@dataclass(slots=True)
class Job:
    """A request under way. losses: processes it has lost; alone: it was in a process that was lost, and is next run
    with nothing queued beside it, as the result of a call can be lost with a process that the call behind it ended;
    gated: it must wait for its turn on the device."""

    request: EvaluationRequest
    sources: dict[TypesKey, Specialised]
    artifacts: dict[TypesKey, Artifact] = field(default_factory=dict)
    compile_seconds: float = 0.0
    cached: bool = True
    failed: bool = False
    losses: int = 0
    alone: bool = False
    gated: bool = False

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
    """One source of a job, at a compile worker. compile_key: the digest of the source and the version of the compiler
    that it was last given to."""

    job: Job
    key: TypesKey
    losses: int = 0
    alone: bool = False
    compile_key: tuple[str, str] = ("", "")

    @property
    def source(self) -> Specialised:
        return self.job.sources[self.key]


@dataclass(slots=True)
class Direct:
    """A call for which the pool waits: its result, once it has ended, or how its process was lost."""

    ended: bool = False
    result: Any = None
    alone: bool = False


class InFlightTarget:
    """How many evaluations should be in flight on `lanes` lanes and `compilers` compile workers: enough that no lane
    waits, and no more, as a search learns nothing from evaluations in flight.

    By Little's law (Little, Operations Research 9, 1961) lanes that take an evaluation every t seconds from
    compilations of c seconds need c / t of them being compiled, besides those at the lanes themselves. exclusive: lanes
    and compile workers take turns on one processor.
    """

    def __init__(self, lanes: int, compilers: int, *, exclusive: bool) -> None:
        self._lanes, self._exclusive = lanes, exclusive
        self._averages: dict[str, float] = {}
        spare = math.ceil(SPARE_COMPILATIONS * compilers)
        self.max = lanes + compilers if exclusive else CALLS_PER_WORKER * lanes + compilers + spare
        """The number that keeps all workers busy, however long calls take."""

    @property
    def now(self) -> int:
        """The number that keeps the lanes busy, by the durations so far; `max` while none is known."""
        compilation, visit = self._averages.get("compile"), self._averages.get("visit")
        if self._exclusive or compilation is None or not visit:
            return self.max
        compiling = math.ceil((1 + SPARE_COMPILATIONS) * compilation * self._lanes / visit)
        return min(self.max, CALLS_PER_WORKER * self._lanes + 1 + compiling)

    def note(self, what: Literal["compile", "visit"], seconds: float) -> None:
        """A compilation or a visit took `seconds`."""
        before = self._averages.get(what, seconds)
        self._averages[what] = (1 - NEWEST_WEIGHT) * before + NEWEST_WEIGHT * seconds


class CompileQueue:
    """Compilations for the architecture `arch` that wait for a worker or for the result of another, and the cache on
    disk. seconds: deadline of a compilation; say: called with a sentence when the cache cannot be written."""

    def __init__(self, arch: str, cache: ArtifactCache | None, seconds: float, say: Callable[[str], None]) -> None:
        self._arch, self._cache, self._seconds, self._say = arch, cache, seconds, say
        self.queue: deque[Compilation] = deque()
        """Compilations that wait for a worker."""
        self._waiters: dict[tuple[str, str], list[Compilation]] = {}
        """Compilations that wait for the result of another under way, by its `compile_key`."""
        self._unwritten: dict[str, Artifact | CompileFailed] = {}
        """Results that are not in the cache yet, by their keys there."""
        self._ended: dict[tuple[str, str], Crashed | TimedOut] = {}
        """Outcomes of sources that a compiler did not survive, by their `compile_key`. They are not compiled again, for
        whatever configuration: each time would take as long."""

    @property
    def waiting_for_code(self) -> int:
        """Compilations that wait for the result of another evaluation's."""
        return sum(len(waiters) for waiters in self._waiters.values())

    def dispatch(self, worker: ActorHandle) -> Iterator[tuple[Compilation, Compiled | Crashed | TimedOut]]:
        """Gives `worker` the next compilation, if there is any, and yields those before it whose result is known."""
        while self.queue:
            compilation = self.queue.popleft()
            if compilation.job.failed:
                continue
            compilation.compile_key = compilation.source.digest, worker.version
            if (waiters := self._waiters.get(compilation.compile_key)) is not None:
                waiters.append(compilation)
            elif (found := self._ended.get(compilation.compile_key) or self._known(compilation)) is not None:
                yield compilation, found
            else:
                compilation.job.cached = False
                reference = worker.actor.call.remote("compile_packed", pack(compilation.source))
                worker.begin(ActorCall(reference, self._seconds, compilation))
                self._waiters[compilation.compile_key] = []
                return

    def on_compiled(self, compilation: Compilation, result: Compiled) -> list[Compilation]:
        """Gives the compilations that waited for the same result."""
        if self._cache is not None and isinstance(result, Artifact | CompileFailed):
            self._unwritten[self._key(compilation)] = result
        return self._waiters.pop(compilation.compile_key)

    def on_lost(self, compilation: Compilation, end: Crashed | TimedOut | None = None) -> None:
        """Puts the waiters of a lost compilation first in the queue, whether or not it is made again. end: outcome of
        all with this source, where the source is to blame."""
        if end is not None:
            self._ended[compilation.compile_key] = end
        self.queue.extendleft(reversed(self._waiters.pop(compilation.compile_key)))

    def flush_cache(self) -> None:
        """Writes new results to the cache. It is called when all workers are served: files take longer to write than
        anything else in this process, and compilers often end at the same time."""
        for key, result in self._unwritten.items():
            assert self._cache is not None
            before = self._cache.failure
            self._cache.put(key, result)
            if self._cache.failure != before:
                self._say(self._cache.failure)
        self._unwritten.clear()

    def _known(self, compilation: Compilation) -> Artifact | CompileFailed | None:
        if self._cache is None:
            return None
        key = self._key(compilation)
        return self._unwritten.get(key) or self._cache.get(key)

    def _key(self, compilation: Compilation) -> str:
        return cache_key(compilation.source, self._arch, compilation.compile_key[1])


class Scheduler:
    """Evaluations in flight, on `workers`. done: ended, but not collected yet; in_flight: number of those under way;
    roofline: the device's measured roofs, below which times are refused."""

    def __init__(self, workers: WorkerSet, precision: Precision, cache: ArtifactCache | None) -> None:
        self.workers, self.task, self.precision = workers, workers.task, precision
        limits, self._deadlines = workers.limits, workers.deadlines
        self._exclusive = limits.kind == "cpu"
        """Compiling and timing share the processor, so they take turns."""
        self._target = InFlightTarget(len(workers.lanes), len(workers.compilers), exclusive=self._exclusive)
        self.compile_queue = CompileQueue(limits.arch, cache, self._deadlines.compile, workers.say)
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
        nothing from evaluations under way. Requests that share a pending compilation do not count."""
        return self._target.now + self.compile_queue.waiting_for_code

    @property
    def max_in_flight(self) -> int:
        """The upper bound of `target_in_flight` where no two requests share their code."""
        return self._target.max

    def submit(self, request: EvaluationRequest) -> None:
        """Begins an evaluation, which is in `done` when it has ended."""
        job = Job(request, sources_of(request, [self.task.workload(name) for name in request.workloads]))
        self.in_flight += 1
        if (known := self._quarantine.get(request.key)) is not None:
            self._fail(job, known)
        else:
            self.compile_queue.queue.extend(Compilation(job, key) for key in job.sources)

    def step(self, until: float) -> None:
        """Gives workers their next calls, and waits for a call to end, until a monotonic time at most."""
        self._dispatch()
        self.compile_queue.flush_cache()
        if not self.done and self.in_flight:
            self._advance(self.workers.workers, until)
            self.workers.report_waiting(self.workers.lanes)

    def call(self, worker: ActorHandle, method: str, seconds: float, *arguments: Any) -> Any:
        """The result of one call on a worker that is ready; a death or an overrun comes back as an outcome, and the
        actor is replaced. Waiting for the device is not part of its `seconds`."""
        gate = worker.actor.call.remote("acquire") if method in USES_DEVICE else None
        direct = Direct()
        worker.begin(ActorCall(worker.actor.call.remote(method, *arguments), seconds, direct, gate))
        while not direct.ended:
            self._advance_one(worker)
        return direct.result

    def make_ready(self, worker: ActorHandle) -> None:
        """Waits until `worker` is ready, or excluded. Raises `PoolError` when it was the last of its kind."""
        group = self.workers.group_of(worker)
        while worker in group and not worker.ready:
            # Lanes need the answer of a compile worker to start.
            for one in (worker, *self.workers.compilers):
                self.workers.request_ready(one)
            self._advance_one(worker)

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

    def _advance_one(self, worker: ActorHandle) -> None:
        """Waits for a call of `worker` or of a compile worker to end, and reports why that takes long."""
        self._advance([worker, *self.workers.compilers], time.monotonic() + REPORT_AFTER_SECONDS)
        lanes = self.workers.lanes
        self.workers.report_waiting([worker] if worker.phase == "run" else lanes)

    def _advance(self, workers: list[ActorHandle], waited_until: float) -> None:
        """Waits for a call of `workers` to end, and handles all that have ended or are overdue."""
        waited = {worker.waited: worker for worker in workers if worker.calls}
        if not waited:
            return
        references = list(waited)
        finished, _ = ray.wait(references, num_returns=len(references), timeout=0)
        if not finished:
            pause = min(waited_until, *(worker.deadline for worker in waited.values())) - time.monotonic()
            finished, _ = ray.wait(references, timeout=max(0.0, pause))
        for reference in finished:
            worker = waited[reference]
            if worker.calls and reference is worker.waited:
                if worker.calls[0].gate is not None:
                    worker.pass_gate()
                else:
                    self._finish(worker)
        now = time.monotonic()
        for worker in waited.values():
            if worker.calls and now > worker.deadline and worker.waited not in finished:
                self._on_overdue(worker)

    def _dispatch(self) -> None:
        lanes, compilers = self.workers.lanes, self.workers.compilers
        for worker in self.workers.workers:
            self.workers.request_ready(worker)
        sides: list[tuple[Any, ...]] = [
            (compilers, lanes, self.compile_queue.queue, self._start_compile),
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
        # The source is not to blame for a worker that does not start.
        if worker.ready:
            for compilation, found in self.compile_queue.dispatch(worker):
                self._on_compiled(compilation, found, 0.0)

    def _start_visit(self, lane: ActorHandle) -> None:
        if lane.seed != self.workers.seed:
            lane.reset_in_place(self.workers.seed)
        if not lane.ready:
            return
        job = self._visit_queue.popleft()
        names = job.request.workloads
        gate = lane.actor.call.remote("acquire") if job.gated else None
        candidate = Candidate(job.request.template, job.request.config, dict(job.artifacts))
        packed = pack(candidate, names, {name: self._precision_of(name) for name in names})
        seconds = self._deadlines.visit * len(names)
        reference = lane.actor.call.remote("visit_packed", packed, seconds)
        lane.begin(ActorCall(reference, seconds, job, gate, self._deadlines.grace))

    def _precision_of(self, workload: str) -> Precision:
        """The usual precision, with the floor. Clear losers to the fastest on this workload are dropped, unless energy
        counts, of which a slower kernel may take less."""
        best = None if self.precision.energy_seconds else self._fastest.get(workload)
        above = self.precision.give_up_above if best is None else best * EARLY_STOP_RATIO
        return replace(self.precision, give_up_above=above, floor=self.floor(workload))

    def floor(self, workload: str) -> float:
        """The least seconds that the roofs allow on a workload; 0 while they are not known."""
        key = self.roofline, workload
        if key not in self._floors:
            task, sized = self.task, self.task.workload(workload)
            floor = self.roofline.floor_seconds(task.bytes_of(sized), task.flops_of(sized), task.arithmetic)
            self._floors[key] = floor or 0.0
        return self._floors[key]

    def _finish(self, worker: ActorHandle) -> None:
        """The first call of `worker` has ended."""
        call, seconds = worker.end_call()
        job = call.job
        try:
            result = result_of(call.reference)
        except LOST as error:
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
        elif isinstance(job, Direct):
            job.ended, job.result = True, result
        else:
            (result,) = unpack(result)
            worker.startup_deaths, worker.served = 0, worker.served + 1
            if isinstance(job, Job):
                self._on_visited(worker, call, result, seconds)
                return
            job.job.compile_seconds += seconds
            self._on_compiled(job, result, seconds)
            for waiter in self.compile_queue.on_compiled(job, result):
                self._on_compiled(waiter, result, 0.0)

    def _on_compiled(self, compilation: Compilation, result: Compiled | Crashed | TimedOut, seconds: float) -> None:
        self._target.note("compile", seconds)
        job = compilation.job
        if not isinstance(result, Artifact):
            self._fail(job, result)
            return
        job.artifacts[compilation.key] = result
        if len(job.artifacts) == len(job.sources) and not job.failed:
            self._visit_queue.append(job)

    def _on_visited(
        self, lane: ActorHandle, call: ActorCall, result: dict[str, Outcome] | DeviceBusy | WorkerLost, seconds: float
    ) -> None:
        job: Job = call.job
        if isinstance(result, DeviceBusy):
            # Another process uses the device: this visit waits for its turn, and its deadline with it.
            job.gated = True
            self._visit_queue.appendleft(job)
            return
        if isinstance(result, WorkerLost):
            self._retry_all(lane.reset_in_place())
            if result.outcome is None:
                self._retry(call)
            else:
                self._on_lost(lane, call, result.outcome, seconds, blameless=False)
            return
        sticky = [one for one in result.values() if isinstance(one, LaunchFailed) and one.sticky]
        if sticky:
            self._retry_all(lane.reset_in_place())
            self._quarantine[job.request.key] = sticky[0]
        else:
            self._target.note("visit", seconds)
        self._deliver(job, result, seconds)

    def _on_overdue(self, worker: ActorHandle) -> None:
        if not worker.ready and self.in_flight and self.workers.others_ready(worker):
            # It waits for a place in the cluster that others use; the ready workers do the work.
            worker.deadline += worker.patience
            return
        patience = 0.0 if worker.ready else worker.patience
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
        if isinstance(work, Direct):
            work.ended, work.result = True, outcome
            return
        work.losses += not blameless
        again = isinstance(outcome, Crashed) and work.losses < MAX_WORKER_LOSSES
        if isinstance(work, Compilation):
            self.compile_queue.on_lost(work, None if again else outcome)
        if again:
            self._retry(call)
            return
        job = work if isinstance(work, Job) else work.job
        self._quarantine[job.request.key] = outcome
        self._fail(job, outcome, seconds if worker.phase == "run" else 0.0)

    def _retry_all(self, calls: list[ActorCall]) -> None:
        """Makes the calls behind a lost one again, as they did nothing wrong."""
        for call in reversed(calls):
            if call.job is not None:
                if isinstance(call.job, Compilation):
                    self.compile_queue.on_lost(call.job)
                self._retry(call)

    def _retry(self, call: ActorCall) -> None:
        call.job.alone = True
        queue: deque[Any] = self._visit_queue if isinstance(call.job, Job) else self.compile_queue.queue
        queue.appendleft(call.job)

    def _fail(self, job: Job, outcome: Failure, lane_seconds: float = 0.0) -> None:
        if not job.failed:
            job.failed = True
            self._deliver(job, {job.request.workloads[0]: outcome}, lane_seconds)

    def _deliver(self, job: Job, outcomes: dict[str, Outcome], lane_seconds: float) -> None:
        self.in_flight -= 1
        for name, outcome in outcomes.items():
            if isinstance(outcome, Measured):
                self._fastest[name] = min(outcome.seconds, self._fastest.get(name, outcome.seconds))
        self.done.append((job.request, job.evaluation(outcomes, lane_seconds)))


def _has_room(worker: ActorHandle, depth: int, alone: bool) -> bool:
    """Whether a worker that has `depth` calls may get another; alone: the call must not share its worker."""
    if len(worker.calls) != depth:
        return False
    return depth == 0 or not (alone or any(call.job is not None and call.job.alone for call in worker.calls))
