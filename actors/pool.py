"""The pool: what roles ask for evaluations, roofs, comparisons and verdicts; it owns the worker processes.

Evaluations run many at a time, through a queue of compilations and one of visits. Workers have their next call before
they have ended the one at hand, so that they never wait for this process. A failure becomes the outcome of that
evaluation and of no other: a worker that dies or overruns its deadline is replaced, and its other calls are made again.
Measuring roofs, comparing finalists with the baseline and full verdicts have the pool for themselves: one call at a
time on an idle worker, whose death or overrun comes back as an outcome.

Workers are Ray actors that compile, or that keep a device's place while processes that may die use it. Artifacts pass
through this process, because the cache on disk is its own: nodes come and go, and a second run finds all in one place.
(Ray would keep results this small here anyway, with their owner.)
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import statistics
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import ray
from ray import exceptions as ray_errors
from ray.util.metrics import Counter, Gauge
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tunesmith.actors.judging.judge import CandidateVerdict, JudgeOptions, Question, judge, require_prepared
from tunesmith.actors.process import Isolated, pack, preload, unpack
from tunesmith.actors.ray_cluster import cpu_share, total
from tunesmith.actors.workers import CompileWorker, Deadlines, DeviceWorker, LaneReady
from tunesmith.hw.device_lock import REPORT_AFTER_SECONDS, REPORT_EVERY_SECONDS, DeviceLock, Holder, this_process
from tunesmith.hw.errors import OutOfTime, TunesmithError
from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.build.artifact import Artifact, ArtifactCache, Candidate, EvaluationRequest, cache_key
from tunesmith.kernels.build.source import CodeKey, Specialised, code_key, specialise
from tunesmith.kernels.measure.bench import ComparisonRequest, WorkloadComparison
from tunesmith.kernels.measure.opponents import Encounter, Rival
from tunesmith.kernels.measure.timing import Precision
from tunesmith.kernels.outcome import (
    CompileFailed,
    Crashed,
    Evaluation,
    Failure,
    LaunchFailed,
    Measured,
    Outcome,
    Resources,
    TimedOut,
    describe,
)
from tunesmith.kernels.spec.task import AnyOpponent, KernelOpponent, Task
from tunesmith.kernels.spec.template import BACKENDS

# The workers

GONE = (ray_errors.NodeDiedError, ray_errors.ObjectLostError)
LOST = (*GONE, ray_errors.RayActorError, ray_errors.WorkerCrashedError, ray_errors.OutOfMemoryError)
"""Ray's errors for a call that ends without a result: its node or its result is gone (`GONE`), or its process."""
MAX_STARTUP_DEATHS = 3
MAX_FAILED_HEALTH_CHECKS = 3
NO_DEVICE_SECONDS = 60.0
"""Timeout for a cluster without any GPU."""
ANSWER_SECONDS = 1.0
"""Timeout for a lane to say who holds its device."""
NAMESPACE = "tunesmith"
"""Ray's namespace for the names of lanes, by which tunings that wait for a GPU see each other."""
DEVICE_BUSY, PROCESS_GONE = "device busy", "process gone"
"""Why nothing was run in a visit: another process uses the device, or an earlier call ended the lane's."""
GATE = "device"
"""The job of a call that waits for the device, and must return before the call behind it begins."""


class Lane:
    """A device's place, and the process that uses the device. holder: the process that the device's lock names to
    others that wait for it. index: the device's; a lane's process sees its GPU as device 0, whatever its number on the
    node."""

    def __init__(self, task: Task, limits: DeviceLimits, index: int, holder: Holder | None = None) -> None:
        self._task, self._limits, self._holder = task, limits, holder
        self._index = 0 if BACKENDS[limits.backend].pinned_by_ray else index
        preload(limits.backend)
        self._process: Isolated | None = None
        self._lock: DeviceLock | None = None
        self._waiting = False
        self._checks: dict[str, Artifact] = {}
        """The check's kernels, which only the first process compiles."""

    def start(
        self, health: Artifact | None, workloads: Sequence[str], seed: int, seconds: float
    ) -> LaneReady | Crashed | TimedOut:
        """Has a new process that is ready, with the buffers of `workloads` drawn from `seed`. The one before ends.

        seconds: for the buffers. The device is held meanwhile: contents are made there, and the reference, which is
        known to return by now, computes there.
        """
        self.end()
        process = Isolated("run", DeviceWorker, self._task, self._limits, self._index, seed)
        with contextlib.ExitStack() as at_failure:
            at_failure.callback(process.end)
            if self._lock is None:
                uuid: str | Crashed | TimedOut = process.call("uuid", None)
                if not isinstance(uuid, str):
                    return uuid
                self._lock = DeviceLock(uuid, self._holder)
            self.acquire()
            with self._lock:
                ready: LaneReady | Crashed | TimedOut = process.call("open", None, health, self._checks)
                if not isinstance(ready, LaneReady) or ready.fault:
                    return ready
                failed: Crashed | TimedOut | None = process.call("prepare", seconds, workloads)
            if isinstance(failed, TimedOut):
                # No kernel has run yet: only the user's code can take so long.
                require_prepared(self._task, ", ".join(workloads), failed)
            if failed is not None:
                return failed
            if not self._checks and isinstance(checks := process.call("checks", None), dict):
                self._checks = checks
            at_failure.pop_all()
            self._process = process
            return ready

    def acquire(self) -> None:
        """Waits until no other process uses the device, and keeps it for the next call, of whose deadline waiting is
        not a part."""
        if self._lock is not None:
            self._waiting = True
            try:
                self._lock.acquire()
            finally:
                self._waiting = False

    def waiting_for(self) -> str:
        """The holder of the device, as a clause, while `acquire` waits for it in another thread; else empty."""
        return self._lock.waiting_for() if self._waiting and self._lock is not None else ""

    def run(self, method: str, argument: Any, seconds: float | None = None) -> Any:
        """A method of the `DeviceWorker`, `Crashed` or `TimedOut`, on the device that `acquire` keeps until its end."""
        assert self._process is not None and self._lock is not None, "the pool makes a lane ready before it calls it"
        with self._lock:
            return self._process.call(method, seconds, argument)

    def visit_packed(self, data: bytes, seconds: float) -> bytes:
        """The outcomes by workload; how the visit ended its process; or `PROCESS_GONE`, or, where `acquire` did not
        come before, `DEVICE_BUSY`. Arguments and result are packed. seconds: deadline of the visit."""
        if self._process is None or self._lock is None:
            return pack(PROCESS_GONE)
        if not self._lock.try_acquire():
            return pack(DEVICE_BUSY)
        answer: tuple[bytes, bool] | Crashed | TimedOut = self.run("visit_packed", data, seconds)
        if isinstance(answer, Crashed | TimedOut):
            self._process = None
            return pack(answer)
        outcomes, context_lost = answer
        if context_lost:
            self.end()
        return outcomes

    def examine(
        self, questions: Sequence[Question], roofline: Roofline, deadlines: Deadlines, brief: bool, seconds: float
    ) -> list[CandidateVerdict] | Crashed:
        """The full verdict on each question, or a `brief` one, all within `seconds`. Both compile and run in processes
        of their own. The device is let go of while all of them wait for the reference."""
        assert self._process is not None and self._lock is not None, "the pool makes a lane ready before it calls it"
        with self._lock:
            # The judge's buffers for the task's own workloads need the memory of the lane's.
            if not brief and isinstance(released := self._process.call("release", None), Crashed):
                return released
            each = seconds / len(questions)
            options = JudgeOptions(deadlines=deadlines, roofline=roofline, lock=self._lock, brief=brief, seconds=each)
            return judge(self._task, self._limits, self._index, questions, options)

    def end(self) -> None:
        """Ends the process. It goes with this one anyway, however that ends."""
        if self._process is not None:
            self._process.end()
            self._process = None


class WorkerActor:
    """A worker `make(*arguments)` in a process of the cluster, for `ray.remote`. Its calls wait there, so that one
    begins within microseconds of the end of another.

    It is made by the first call: an actor that has answered `node_id` has its place in the cluster, and a mistake that
    is found while the worker is made is raised by that call as it is.

    Ray takes a few tenths of a millisecond between two calls of an actor, to send a result and to unpack the arguments
    of the next. Here it does both beside the call under way: calls arrive in an event loop, and one thread works on
    them in the order in which they were made, except that a call whose arguments Ray has to fetch first (beyond 100 kB)
    may be overtaken: a compilation, to which that is the same, or a visit, which then finds the device busy or its
    process lost, and is made again.
    """

    def __init__(self, make: Callable[..., Any], *arguments: Any) -> None:
        self._make, self._worker, self._thread = partial(make, *arguments), None, ThreadPoolExecutor(1)

    def node_id(self) -> str:
        return ray.get_runtime_context().get_node_id()

    async def waiting_for(self) -> str:
        """Of a lane: who holds its device, as a clause, where a call waits for it; else empty. Answered beside that
        call."""
        return "" if self._worker is None else self._worker.waiting_for()

    async def call(self, method: str, *arguments: Any) -> Any:
        """The result of a method of the worker."""
        return await asyncio.wrap_future(self._thread.submit(self._call, method, *arguments))

    def _call(self, method: str, *arguments: Any) -> Any:
        self._worker = self._worker or self._make()
        return getattr(self._worker, method)(*arguments)


@dataclass(frozen=True, slots=True)
class ActorCall:
    """A call under way, behind `reference`; it may take `seconds` from when those before it have ended. job: the pool's
    note on the call; `GATE` for waiting for the device, None for making a process ready."""

    reference: Any
    seconds: float
    job: Any


@dataclass(slots=True)
class ActorHandle:
    """An actor that can be replaced: `make` starts one.

    It works on its `calls` in their order, on the first since `started` (monotonic seconds). phase: of its calls, in
    the terms of outcomes; ready: the actor has said that it is; startup_deaths: how often in a row it ended
    without having done anything; failed_checks: how often in a row the device was not well; busy_seconds: time with a
    call under way once it was ready, of all the actors it has been; _placed: the node's id, behind a reference that is
    ready once the actor has a place in the cluster.
    """

    phase: Literal["compile", "run"]
    make: Callable[[], Any]
    name: str
    deadlines: Deadlines
    seed: int = 0
    actor: Any = None
    calls: deque[ActorCall] = field(default_factory=deque)
    started: float = 0.0
    ready: bool = False
    startup_deaths: int = 0
    failed_checks: int = 0
    busy_seconds: float = 0.0
    version: str = ""
    _placed: Any = None

    @property
    def state(self) -> str:
        """One of starting, idle, waiting (for the device) and busy."""
        if not self.ready:
            return "starting"
        if not self.calls:
            return "idle"
        return "waiting" if self.calls[0].job is GATE else "busy"

    @property
    def node(self) -> str | None:
        """The id of the node it runs on; None while it waits for a place in the cluster."""
        try:
            return None if self._placed is None else str(ray.get(self._placed, timeout=0))
        except (ray_errors.GetTimeoutError, *LOST):
            return None

    def begin(self, job: Any, seconds: float, method: str, *arguments: Any) -> None:
        """Makes a call, behind those under way."""
        self.calls.append(ActorCall(self.actor.call.remote(method, *arguments), seconds, job))
        if len(self.calls) == 1:
            self.started = time.monotonic()

    def end_call(self) -> tuple[ActorCall, float]:
        """Takes the first call off; gives it and the seconds it took. The next one's time begins."""
        begun, self.started = self.started, time.monotonic()
        if self.state == "busy":
            self.busy_seconds += self.started - begun
        return self.calls.popleft(), self.started - begun

    def limit_first(self, seconds: float) -> None:
        """The call at hand may take no longer than `seconds`."""
        self.calls[0] = replace(self.calls[0], seconds=min(seconds, self.calls[0].seconds))

    def replace_actor(self) -> list[ActorCall]:
        """Ends the actor, if any, and starts another. Gives the calls it had."""
        self.end()
        self.actor = self.make()
        self._placed = self.actor.node_id.remote()
        return self.reset_in_place()

    def reset_in_place(self, seed: int | None = None) -> list[ActorCall]:
        """The same actor has to make itself ready again, for contents of `seed`. Gives the calls it had."""
        lost = list(self.calls)
        self.calls.clear()
        self.seed, self.ready = self.seed if seed is None else seed, False
        return lost

    def end(self) -> None:
        """Ends the actor, if any."""
        if self.actor is not None:
            ray.kill(self.actor)
            self.actor = self._placed = None

    def crash(self, error: Exception) -> Crashed:
        """The outcome of a call that ended with an error of `LOST`."""
        # Ray does not know the signal.
        why = "the worker process ended without a result, as after an invalid access or when the system kills it"
        if isinstance(error, ray_errors.OutOfMemoryError):
            why = "Ray ended the worker process because its node ran out of memory"
        elif isinstance(error, GONE):
            why = "its node left the cluster"
        return Crashed(self.phase, why)

    @property
    def deadline(self) -> float:
        """When the first call must have returned, in monotonic seconds."""
        first, grace = self.calls[0], self.deadlines.grace if self.phase == "run" else 0.0
        waiting = self.deadlines.start if first.job is GATE or not self.ready else 0.0
        return self.started + first.seconds + grace + waiting


class WorkerSet:
    """The lanes and compile workers of one pool, for one task on one kind of device.

    limits, index: the device (index matters to OpenCL only); lanes, compilers: numbers of workers; seed: of the data in
    all buffers; workloads: prepared by lanes at their start; say: called with a sentence for the user; seconds_left:
    until waiting for a device ends the run; lane_class, compile_class: the classes that the actors make.
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
        deadlines: Deadlines | None = None,
        say: Callable[[str], None] = lambda _: None,
        seconds_left: Callable[[], float] = lambda: math.inf,
        lane_class: type = Lane,
        compile_class: type = CompileWorker,
    ) -> None:
        self.task, self.limits, self.seed, self.say = task, limits, seed, say
        self.deadlines = deadlines or Deadlines()
        self._index, self._workloads, self._seconds_left = index, tuple(workloads), seconds_left
        self._lane_class, self._compile_class, self._holder = lane_class, compile_class, this_process()
        self._gpu = BACKENDS[limits.backend].pinned_by_ray
        handle = partial(ActorHandle, deadlines=self.deadlines)
        self.lanes = [handle("run", self._make_lane, f"Lane {at}", seed=seed) for at in range(lanes)]
        self.compilers = [handle("compile", self._make_compiler, f"Compile worker {at}") for at in range(compilers)]
        self._compiler_ready: tuple[str, Artifact | None] | None = None
        """The answer of the first compile worker that was ready, whose health kernel lanes need to start."""
        self._noted: set[str] = set()
        self._started = self._device_seen = self._next_report = 0.0

    def start(self) -> None:
        """Starts all actors. Lanes first: a compile worker may be on any node, and must not take the last core of one
        that has a GPU."""
        # On a CPU compiling and timing take turns, so compile workers take no core besides the lane's.
        share = cpu_share(len(self.lanes), len(self.compilers), gpu=self._gpu)
        compile_cpus, lane_cpus = (0, 1) if self.limits.kind == "cpu" else (share, share)
        self._compile_actor: Any = ray.remote(num_cpus=compile_cpus, scheduling_strategy="SPREAD")(WorkerActor)
        options: dict[str, Any] = {"num_cpus": lane_cpus, "num_gpus": 1 if self._gpu else 0}
        if not self._gpu:
            # An OpenCL device's number is this machine's.
            here = ray.get_runtime_context().get_node_id()
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(here, soft=True)
        self._lane_actor: Any = ray.remote(**options)(WorkerActor)
        # Arguments that every worker needs are stored once in the cluster, not sent with each.
        self._shared_task = ray.put(self.task)
        for worker in (*self.lanes, *self.compilers):
            worker.replace_actor()
        self._started = self._device_seen = time.monotonic()
        self._next_report = self._started + REPORT_AFTER_SECONDS
        for worker in self.compilers:
            self.request_ready(worker)

    def end(self) -> None:
        """Ends all actors."""
        for worker in (*self.compilers, *self.lanes):
            worker.end()

    def others_ready(self, worker: ActorHandle) -> bool:
        return any(
            one.ready for one in (*self.compilers, *self.lanes) if one is not worker and one.phase == worker.phase
        )

    def request_ready(self, worker: ActorHandle) -> None:
        """Has `worker` make itself ready, unless it is or is at it. Lanes begin once a compile worker is ready."""
        if worker.ready or worker.calls:
            return
        if worker.phase == "compile":
            worker.begin(None, 0.0, "start")
        elif self._compiler_ready is not None:
            # Lanes with other contents are for comparisons, which prepare their few workloads themselves.
            workloads = self._workloads if worker.seed == self.seed else ()
            seconds = self.deadlines.prepare * (1 + len(workloads))
            worker.begin(None, seconds, "start", self._compiler_ready[1], workloads, worker.seed, seconds)

    def on_started(self, worker: ActorHandle, answer: Any) -> None:
        """`worker` has answered whether it is ready. Raises `TunesmithError` where no other can work."""
        match answer:
            case (str(version), _):
                worker.version, worker.ready = version, True
                self._compiler_ready = self._compiler_ready or answer
            case LaneReady():
                worker.name = f"{answer.name} ({answer.uuid}) on {answer.machine}"
                if self._gpu and answer.name != self.limits.name:
                    article = "an" if answer.name[:1] in "AEIN" else "a"
                    self.exclude(worker, f"it is {article} {answer.name}, and this run tunes for {self.limits.name}")
                elif answer.fault:
                    worker.failed_checks += 1
                    if worker.failed_checks >= MAX_FAILED_HEALTH_CHECKS:
                        self.exclude(worker, f"it failed {worker.failed_checks} health checks: {answer.fault}")
                    else:
                        worker.replace_actor()
                else:
                    if answer.note and worker.name not in self._noted:
                        self._noted.add(worker.name)
                        self.say(f"{worker.name} is used, but {answer.note}.")
                    worker.failed_checks, worker.ready = 0, True
            case _:
                cause = f"; most likely the reference function {self.task.reference_name} ends it"
                self.on_startup_death(worker, answer, "while preparing the data", cause)

    def on_mistake(self, worker: ActorHandle, error: TunesmithError) -> None:
        """Starting `worker` has failed with a user's mistake, which is raised again where no other can do its work."""
        if worker.phase == "run" or len(self.compilers) == 1:
            raise error
        # A node may lack a compiler that others have.
        self.exclude(worker, str(error).rstrip("."))

    def exclude(self, worker: ActorHandle, why: str) -> None:
        """Takes a worker out. Raises `TunesmithError` when it was the last."""
        worker.end()
        worker.calls.clear()
        group = self.lanes if worker.phase == "run" else self.compilers
        group.remove(worker)
        sentence = f"{worker.name} is excluded: {why}."
        if not group:
            raise TunesmithError(f"{sentence} No other is left.")
        self.say(sentence)

    def on_startup_death(
        self, worker: ActorHandle, outcome: Crashed | TimedOut, when: str = "before doing any work", cause: str = ""
    ) -> None:
        """A worker's process ended before any candidate ran. Raises `TunesmithError` when that goes on and no other can
        work. cause: a clause for that."""
        worker.startup_deaths += 1
        if worker.startup_deaths < MAX_STARTUP_DEATHS:
            return
        why = f"its process ended {worker.startup_deaths} times {when}: {describe(outcome).rstrip('.')}"
        if not self.others_ready(worker):
            raise TunesmithError(f"{worker.name} cannot be used: {why}{cause}.")
        self.exclude(worker, why)

    def report_waiting(self, needed: Sequence[ActorHandle]) -> None:
        """Says, now and then, why none of the `needed` lanes works: others hold the GPUs of the cluster, or another
        process uses the device. Raises `OutOfTime` where no time is left to wait, and `TunesmithError` where the
        cluster has had no GPU for a while."""
        now = time.monotonic()
        if not self._gpu or any(lane.ready for lane in self.lanes) or total("GPU") >= 1:
            self._device_seen = now
        elif now - self._device_seen > NO_DEVICE_SECONDS:
            raise TunesmithError(
                "The Ray cluster has no GPU any more: bring the node back and continue with `tunesmith resume`."
            )
        if now < self._next_report or any(lane.state in ("busy", "idle") for lane in needed):
            return
        waiting = [lane for lane in needed if lane.calls and now - lane.started > REPORT_AFTER_SECONDS]
        clause = ""
        if self._gpu and all(lane.node is None for lane in self.lanes):
            clause = self._why_no_gpu()
        elif (placed := next((lane for lane in waiting if lane.node is not None), None)) is None:
            return
        else:
            with contextlib.suppress(ray_errors.GetTimeoutError, *LOST):
                said = ray.get(placed.actor.waiting_for.remote(), timeout=ANSWER_SECONDS)
                clause = said and f"{placed.name} is {said}"
        # The next report comes not later than at the end of the time that is left.
        left = self._seconds_left()
        self._next_report = now + max(0.0, min(REPORT_EVERY_SECONDS, left))
        if clause and left <= 0:
            raise OutOfTime(
                f"The time limit is reached. {clause}; what was measured is kept: once it is free, go on with "
                "`tunesmith resume` and a new --time-limit."
            )
        if clause:
            self.say(f"{clause}.")

    def _why_no_gpu(self) -> str:
        """A clause on who has the GPUs; empty where workers may just be slow to start."""
        gpus = total("GPU")
        named = [one["name"].rpartition(" [")[0] for one in ray.util.list_named_actors(all_namespaces=True)]
        others = sorted({name for name in named if name.startswith("pid ")} - {str(self._holder)})
        if gpus < 1 or not (others or time.monotonic() - self._started > REPORT_EVERY_SECONDS):
            return ""
        held = f"tunings on this cluster: {'; '.join(others)}" if others else "by other Ray jobs, or not freed yet"
        return f"Waiting for a GPU: all {gpus:g} of the Ray cluster are in use ({held})"

    def _make_lane(self) -> Any:
        actor = self._lane_actor
        if self._gpu:
            actor = actor.options(name=f"{self._holder} [{uuid.uuid4().hex}]", namespace=NAMESPACE)
        return actor.remote(self._lane_class, self._shared_task, self.limits, self._index, self._holder)

    def _make_compiler(self) -> Any:
        return self._compile_actor.remote(self._compile_class, self.limits, self._index)


# The pool

MAX_WORKER_LOSSES = 2
"""Worker losses after which an evaluation is blamed: a single one may also be due to a system short of memory."""
EARLY_STOP_RATIO = 1.25
"""Time over the fastest's from which on a candidate is not sampled to the full precision."""
CALLS_PER_WORKER = 2
"""The call at hand and the next."""
SPARE_COMPILATIONS = 0.25
"""Further compilations, as a share of the workers, for the time that this process is busy."""
NEWEST_WEIGHT = 0.1
"""Weight of the newest duration in the running averages."""
USUAL_COMPILE_RATIO, MIN_COMPILE_SECONDS = 10.0, 6.0
"""A compilation may take so many times as long as usual, and at least so many seconds: compilers take minutes over what
spills registers by the thousand, and a search would wait for them at its end."""
MAX_EXAMINATION_SECONDS = 1800.0
"""Deadline of one verdict, which has deadlines of its own inside."""
FUNCTION_SECONDS = 120.0
"""Time added for an opponent that is a function: its framework is imported, and may compile it."""
ROOF_WARN_DEVIATION = 0.01
"""Deviation of a lane's roofs from the other lanes' that is reported."""
ROOF_EXCLUDE_DEVIATION = 0.05
"""Deviation for which the lane is excluded."""
METRICS: dict[str, tuple[type[Counter] | type[Gauge], str]] = {
    "evaluations": (Counter, "Configurations evaluated."),
    "failures": (Counter, "Configurations that failed, by kind."),
    "lanes_busy": (Gauge, "Lanes at work."),
    "compilers_busy": (Gauge, "Compile processes at work."),
    "compile_queue": (Gauge, "Compilations that wait for a process."),
    "in_flight": (Gauge, "Evaluations under way."),
}
"""The metrics of a tuning for Prometheus and Grafana, as Ray exports them."""


@dataclass(slots=True)
class Job:
    """A request under way. artifacts: of its `sources`, by their digests; compile_only: it ends with its `candidate`,
    and is not visited. gated: it must wait for its turn on the device."""

    request: EvaluationRequest
    sources: dict[CodeKey, Specialised]
    compile_only: bool
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    compile_seconds: float = 0.0
    cached: bool = True
    failure: Failure | None = None
    gated: bool = False

    @property
    def candidate(self) -> Candidate:
        artifacts = {key: self.artifacts[source.digest] for key, source in self.sources.items()}
        return Candidate(self.request.template, self.request.config, artifacts)


Key = tuple[str, str] | str
"""A configuration that is visited, or the digest of a source that is compiled."""


def _key(work: Job | Specialised) -> Key:
    return work.request.key if isinstance(work, Job) else work.digest


class Pool:
    """Evaluations, roofs, comparisons and verdicts by `workers`, for one task on one kind of device.

    cache: of artifacts on disk, None for none; shared: the cluster was there before, and has metrics; in_flight: number
    of evaluations under way; max_in_flight: the number that keeps all workers busy, however long calls take; roofline:
    the device's measured roofs, below which times are refused. Use as a context manager; it starts and ends the
    processes.
    """

    def __init__(
        self,
        workers: WorkerSet,
        precision: Precision | None = None,
        cache: ArtifactCache | None = None,
        *,
        shared: bool = False,
    ) -> None:
        self.workers, self.task, self.precision, self._cache = workers, workers.task, precision or Precision(), cache
        kinds = METRICS if shared else {}
        self._metrics: dict[str, Any] = {
            name: kind(f"tunesmith_{name}", text, ("task", "kind") if name == "failures" else ("task",))
            for name, (kind, text) in kinds.items()
        }
        self._exclusive = workers.limits.kind == "cpu"
        """Compiling and timing share the processor, so they take turns."""
        self._lanes, compilers = len(workers.lanes), len(workers.compilers)
        spare = math.ceil(SPARE_COMPILATIONS * compilers)
        self.max_in_flight = compilers + (self._lanes if self._exclusive else CALLS_PER_WORKER * self._lanes + spare)
        self._averages: dict[str, float] = {}
        self._compilations: dict[str, list[Job]] = {}
        """Jobs whose source waits or is compiled, by its digest; the first one pays for it."""
        self._compile_queue: deque[Specialised] = deque()
        self._visit_queue: deque[Job] = deque()
        self._losses: dict[Key, int] = {}
        """Work that was in a process that was lost, and how many it may be to blame for. It is next run with nothing
        queued beside it, as the result of a call can be lost with a process that the call behind it ended."""
        self._done: list[tuple[EvaluationRequest, Evaluation]] = []
        self.in_flight = 0
        self.roofline = Roofline()
        self._floors: dict[tuple[Roofline, str], float] = {}
        self._fastest: dict[str, float] = {}
        self._quarantine: dict[Key, Failure] = {}
        """Failures that ended a lane or a compiler: the work is answered from here and never run again, as each time
        would take as long."""

    def __enter__(self) -> Pool:
        self.workers.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.workers.end()

    @property
    def lanes(self) -> tuple[str, ...]:
        """The state of each lane: starting, idle, busy, or waiting (for another process that uses the device)."""
        return tuple(lane.state for lane in self.workers.lanes)

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
        return target + sum(len(jobs) - 1 for jobs in self._compilations.values())

    def submit(self, request: EvaluationRequest, *, compile_only: bool = False) -> Job:
        """Begins an evaluation, which `collect` gives when it has ended. compile_only: see `Job`."""
        workloads = map(self.task.workload, request.workloads)
        keys = dict.fromkeys(code_key(self.task, request.template, workload) for workload in workloads)
        sources = {key: specialise(request.template, request.config, dict(key)) for key in keys}
        job = Job(request, sources, compile_only)
        self.in_flight += 1
        if not compile_only and (known := self._quarantine.get(request.key)) is not None:
            self._fail(job, known)
            return job
        for digest, source in {source.digest: source for source in sources.values()}.items():
            if (end := self._quarantine.get(digest)) is not None:
                self._fail(job, end)
                continue
            if digest not in self._compilations:
                self._compile_queue.append(source)
            self._compilations.setdefault(digest, []).append(job)
        return job

    def collect(self, timeout: float = 1.0) -> list[tuple[EvaluationRequest, Evaluation]]:
        """Evaluations that have ended, in the order they ended; waits up to `timeout` seconds for the first."""
        until, waits = time.monotonic() + timeout, True
        while waits:
            self._dispatch(self.workers.lanes)
            if not self._done and self.in_flight:
                self.advance(*self.workers.lanes, until=until)
            waits = not self._done and self.in_flight > 0 and time.monotonic() < until
        ended, self._done = self._done, []
        if self._metrics:
            self._report([evaluation for _, evaluation in ended])
        return ended

    def _report(self, ended: Sequence[Evaluation]) -> None:
        """Counts the evaluations that `ended`, and sets the gauges."""
        tags, workers, metrics = {"task": self.task.name}, self.workers, self._metrics
        for failure in (evaluation.failure for evaluation in ended):
            metrics["evaluations"].inc(1, tags)
            if failure is not None:
                metrics["failures"].inc(1, tags | {"kind": failure.kind})
        metrics["lanes_busy"].set(sum(one.state == "busy" for one in workers.lanes), tags)
        metrics["compilers_busy"].set(sum(one.state == "busy" for one in workers.compilers), tags)
        metrics["compile_queue"].set(len(self._compile_queue), tags)
        metrics["in_flight"].set(self.in_flight, tags)

    def evaluate(self, requests: Iterable[EvaluationRequest]) -> Iterator[tuple[EvaluationRequest, Evaluation]]:
        """Evaluations of `requests`, as they end; for when there is nothing else in flight."""
        for request in requests:
            while self.in_flight >= self.target_in_flight:
                yield from self.collect()
            self.submit(request)
        while self.in_flight or self._done:
            yield from self.collect()

    def compile(self, *requests: EvaluationRequest) -> list[Candidate | Failure]:
        """The kernels of `requests`, each for all of its workloads' types, or why not. Nothing else may be in
        flight."""
        jobs = [self.submit(request, compile_only=True) for request in requests]
        while self.in_flight:
            self._dispatch([])
            self.advance(*self.workers.lanes)
        return [job.failure or job.candidate for job in jobs]

    def ready_worker(self, group: list[ActorHandle], seed: int | None = None) -> ActorHandle:
        """The first of the lanes or compile workers, once it is ready; where it is excluded meanwhile, the next. seed:
        of the contents that a lane has, where it matters. Raises `TunesmithError` when none is left."""
        while True:
            worker = group[0]
            if seed is not None and worker.seed != seed:
                worker.reset_in_place(seed)
            if worker.ready:
                return worker
            # Lanes need the answer of a compile worker to start.
            for one in (worker, *self.workers.compilers):
                self.workers.request_ready(one)
            self.advance(worker)

    def floor(self, workload: str) -> float:
        """The least seconds that the roofs allow on a workload; 0 while they are not known."""
        key = self.roofline, workload
        if key not in self._floors:
            work = self.task.work_of(self.task.workload(workload))
            self._floors[key] = self.roofline.floor_seconds(*work) or 0.0
        return self._floors[key]

    def calibrate(self) -> Roofline:
        """The measured roofs of the first lane's device; no roofs when the device cannot run the probes.

        Where there are several lanes, all are measured. Lanes that differ from the largest group that agrees by more
        than `ROOF_WARN_DEVIATION` are reported, by more than `ROOF_EXCLUDE_DEVIATION` excluded. Of groups that are
        equally large the fastest stays, as nothing makes a GPU faster than it is, and a throttled one is slow."""
        self.roofline = Roofline()
        workers = self.workers
        probes = self._call(self.ready_worker(workers.compilers), "probes", workers.deadlines.roofs)
        if not isinstance(probes, dict):
            return self.roofline
        self.ready_worker(workers.lanes)
        # Lanes that wait for a place in the cluster are not waited for.
        ready = [lane for lane in workers.lanes if lane.ready]
        answers = [(lane, self._call(lane, "run", workers.deadlines.roofs, "calibrate", probes)) for lane in ready]
        measured = [(lane, roofs) for lane, roofs in answers if isinstance(roofs, Roofline)]
        if not measured:
            return self.roofline
        standard, standard_roofs = measured[typical([roofs for _, roofs in measured])]
        for lane, roofs in measured:
            off = deviation(roofs, standard_roofs)
            if off > ROOF_EXCLUDE_DEVIATION:
                workers.exclude(lane, f"its speed differs by {off:.1%} from that of {standard.name}")
            elif off > ROOF_WARN_DEVIATION:
                beside = f"differs by {off:.1%} in speed from {standard.name}"
                workers.say(f"{lane.name} {beside}; finalists are compared on one device.")
        self.roofline = next(roofs for lane, roofs in measured if lane in workers.lanes)
        return self.roofline

    def compare(
        self,
        baseline: EvaluationRequest,
        candidates: Sequence[EvaluationRequest],
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
        base, *compiled = self.compile(baseline, *candidates)
        if not isinstance(base, Candidate):
            return WorkloadComparison(workload, tuple(base for _ in candidates))
        deadlines, lanes, rivals = self.workers.deadlines, self.workers.lanes, list[Rival]()
        for one in opponents:
            made: Candidate | Failure | None = None
            if isinstance(one, KernelOpponent) and not one.configs:
                [made] = self.compile(EvaluationRequest(0, one.template, {}, (workload,)))
            rivals.append((one, made))

        def run(request: ComparisonRequest) -> WorkloadComparison:
            # A process that was replaced has to make its buffers again; that is not the kernels' time.
            lane = self.ready_worker(lanes, seed)
            self._call(lane, "run", 2 * deadlines.prepare, "prepare", [workload])
            beside = request.opponents
            deadline = (deadlines.run + budget_seconds) * (1 + len(request.candidates) + len(beside))
            deadline += FUNCTION_SECONDS * sum(kernel is None for _, kernel in beside)
            answer = self._call(self.ready_worker(lanes, seed), "run", deadline, "compare", request)
            return answer if isinstance(answer, WorkloadComparison) else request.without_times(answer)

        floor, energy_seconds = self.floor(workload), self.precision.energy_seconds
        request = ComparisonRequest(base, compiled, workload, rounds, budget_seconds, floor, energy_seconds, rivals)
        answer = run(request)
        if _ended_process(answer):
            answer = _one_by_one(run, request, answer)
        kernels = [one if isinstance(one, Candidate) else None for one in (base, *compiled)]
        shape = self.task.workload(workload)
        codes = (one and one.artifacts[code_key(self.task, one.template, shape)].code_digest for one in kernels)
        return replace(
            answer,
            codes=tuple(code or "" for code in codes),
            compiler=self.ready_worker(self.workers.compilers).version,
            # Where nobody asked for energies, or all failed, there are none at all.
            energies=answer.energies if any(answer.energies) else (),
        )

    def examine(
        self, questions: Sequence[Question], *, seconds: float = math.inf, brief: bool = False
    ) -> list[CandidateVerdict] | Failure:
        """The full verdict, or a `brief` one, on each template at its configuration, or the first of them within
        `seconds`, on the device of the first lane. A failure is one of the examination, not of a candidate, such as
        that the first verdict took longer. Nothing else may be in flight."""
        deadline = min(seconds, MAX_EXAMINATION_SECONDS * len(questions))
        arguments = (list(questions), self.roofline, self.workers.deadlines, brief, deadline)
        lane = self.ready_worker(self.workers.lanes)
        verdicts: list[CandidateVerdict] | Failure = self._call(lane, "examine", deadline, *arguments)
        return verdicts

    def _call(self, worker: ActorHandle, method: str, seconds: float, *arguments: Any) -> Any:
        """The result of one call on a worker that is ready; a death or an overrun comes back as an outcome, and the
        process is started anew. Waiting for the device is not part of its `seconds`."""
        answer = Future[Any]()
        if worker.phase == "run":
            worker.begin(GATE, 0.0, "acquire")
        worker.begin(answer, seconds, method, *arguments)
        while not answer.done():
            self.advance(worker)
        if worker.ready and _ended_process(answer.result()):
            worker.reset_in_place()
        return answer.result()

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
            (compilers, self.workers.lanes, self._compile_queue, self._start_compile),
            (lanes, compilers, self._visit_queue, self._start_visit),
        ]
        for group, others, queue, start in sides:
            if self._exclusive and any(other.calls for other in others):
                continue
            for depth in range(1 if self._exclusive else CALLS_PER_WORKER):
                for worker in group:
                    jobs = [call.job for call in worker.calls]
                    # A call that must be alone shares its worker with no other.
                    both = (queue[0], *jobs) if queue and jobs else ()
                    alone = any(isinstance(job, Job | Specialised) and _key(job) in self._losses for job in both)
                    if queue and len(jobs) == depth and not alone:
                        start(worker)

    def _start_compile(self, worker: ActorHandle) -> None:
        """Gives `worker` the next compilation whose result is not known."""
        # The source is not to blame for a worker that does not start.
        while worker.ready and self._compile_queue:
            source = self._compile_queue.popleft()
            key, jobs = cache_key(source, self.workers.limits.arch, worker.version), self._compilations[source.digest]
            if all(job.failure is not None for job in jobs):
                del self._compilations[source.digest]
            elif self._cache is not None and (found := self._cache.get(key)) is not None:
                self._on_compiled(source, found, 0.0)
            else:
                jobs[0].cached = False
                worker.begin(source, self._compile_seconds, "compile_packed", pack(source))
                return

    @property
    def _compile_seconds(self) -> float:
        usual = USUAL_COMPILE_RATIO * self._averages.get("compile", math.inf)
        return min(max(MIN_COMPILE_SECONDS, usual), self.workers.deadlines.compile)

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
        seconds = self.workers.deadlines.run * len(names)
        lane.begin(job, seconds, "visit_packed", packed, seconds)

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
            result = ray.get(call.reference)
        except LOST as error:
            if job is GATE:
                return  # the call behind it tells
            # The evaluation is not to blame for a lost node, nor for a result that was lost after it was there.
            alive = [None, *(one["NodeID"] for one in ray.nodes() if one["Alive"])]  # type: ignore[no-untyped-call]
            blameless = worker.node not in alive or isinstance(error, GONE)
            outcome = worker.crash(error)
            self._retry_all(worker.replace_actor())
            self._on_lost(worker, call, outcome, seconds, blameless=blameless)
            return
        except ray_errors.RayTaskError as error:
            # A user's mistake is raised as it was there.
            if not isinstance(error.cause, TunesmithError):
                raise
            if job is not None:
                raise error.cause from None
            self.workers.on_mistake(worker, error.cause)
            return
        if job is None:
            self.workers.on_started(worker, result)
        elif isinstance(job, Future):
            job.set_result(result)
        elif job is not GATE:
            (result,) = unpack(result)
            worker.startup_deaths = 0
            if isinstance(job, Job):
                self._on_visited(worker, call, result, seconds)
                return
            if self._cache is not None and isinstance(result, Artifact | CompileFailed):
                before = self._cache.failure
                self._cache.put(cache_key(job, self.workers.limits.arch, worker.version), result)
                if self._cache.failure != before:
                    self.workers.say(self._cache.failure)
            self._on_compiled(job, result, seconds)

    def _on_compiled(self, source: Specialised, result: Artifact | Failure, seconds: float) -> None:
        jobs = self._compilations.pop(source.digest)
        self._losses.pop(source.digest, None)
        jobs[0].compile_seconds += seconds
        for number, job in enumerate(jobs):
            self._note("compile", 0.0 if number else seconds)
            if not isinstance(result, Artifact):
                self._fail(job, result)
                continue
            job.artifacts[source.digest] = result
            if job.failure is None and {one.digest for one in job.sources.values()} == set(job.artifacts):
                if job.compile_only:
                    self.in_flight -= 1
                else:
                    self._visit_queue.append(job)
        for worker in self.workers.compilers:
            if worker.calls and isinstance(worker.calls[0].job, Specialised):
                worker.limit_first(self._compile_seconds)

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
            worker.calls[0] = replace(worker.calls[0], seconds=worker.calls[0].seconds + worker.deadlines.start)
            return
        patience = 0.0 if worker.ready else worker.deadlines.start
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
        key = _key(work)
        self._losses[key] = self._losses.get(key, 0) + (not blameless)
        if isinstance(outcome, Crashed) and self._losses[key] < MAX_WORKER_LOSSES:
            self._retry_all([call])
            return
        self._quarantine[key] = outcome
        if isinstance(work, Job):
            self._fail(work, outcome, seconds)
        else:
            self._on_compiled(work, outcome, 0.0)

    def _retry_all(self, calls: list[ActorCall]) -> None:
        """Makes calls again, before all that wait: a lost one that may not be to blame, and calls behind a lost one,
        which did nothing wrong."""
        for work in (call.job for call in reversed(calls)):
            if isinstance(work, Job | Specialised):
                queue: deque[Any] = self._visit_queue if isinstance(work, Job) else self._compile_queue
                queue.appendleft(work)
                self._losses.setdefault(_key(work), 0)

    def _fail(self, job: Job, outcome: Failure, lane_seconds: float = 0.0) -> None:
        if job.failure is None:
            job.failure = outcome
            self._deliver(job, {job.request.workloads[0]: outcome}, lane_seconds)

    def _deliver(self, job: Job, outcomes: dict[str, Outcome], lane_seconds: float) -> None:
        self.in_flight -= 1
        self._losses.pop(job.request.key, None)
        for name, outcome in outcomes.items():
            if isinstance(outcome, Measured):
                self._fastest[name] = min(outcome.seconds, self._fastest.get(name, outcome.seconds))
        if job.compile_only:
            return
        artifact = next(iter(job.artifacts.values()), None)
        evaluation = Evaluation(
            template=job.request.template.id,
            config=job.request.config,
            outcomes=outcomes,
            resources=artifact.resources if artifact else Resources(),
            artifact=artifact.digest if artifact else "",
            compile_seconds=round(job.compile_seconds, 6),
            lane_seconds=round(lane_seconds, 6),
            cached=job.cached,
        )
        self._done.append((job.request, evaluation))

    def _note(self, what: Literal["compile", "visit"], seconds: float) -> None:
        """A compilation or a visit took `seconds`."""
        before = self._averages.get(what, seconds)
        self._averages[what] = (1 - NEWEST_WEIGHT) * before + NEWEST_WEIGHT * seconds


def typical(all_roofs: Sequence[Roofline]) -> int:
    """The index of the device with which most others agree within `ROOF_EXCLUDE_DEVIATION`, the fastest of several."""

    def rank(roofs: Roofline) -> tuple[int, float]:
        agreeing = sum(deviation(other, roofs) <= ROOF_EXCLUDE_DEVIATION for other in all_roofs)
        return agreeing, statistics.fmean([0.0, *map(math.log, _ratios(roofs, all_roofs[0]))])

    return max(range(len(all_roofs)), key=lambda at: rank(all_roofs[at]))


def deviation(roofs: Roofline, standard: Roofline) -> float:
    """The relative difference of a device's roofs from the standard: the largest over copies at each size and over
    peaks."""
    return max((abs(ratio - 1) for ratio in _ratios(roofs, standard)), default=0.0)


def _ratios(roofs: Roofline, standard: Roofline) -> list[float]:
    """Each roof that both devices have, as a multiple of the other's."""
    bandwidth = dict(standard.bandwidth)
    return [
        *(rate / bandwidth[size] for size, rate in roofs.bandwidth if size in bandwidth),
        *(peak / standard.peak_flops[name] for name, peak in roofs.peak_flops.items() if name in standard.peak_flops),
    ]


def _one_by_one(
    run: Callable[[ComparisonRequest], WorkloadComparison], request: ComparisonRequest, together: WorkloadComparison
) -> WorkloadComparison:
    """The results that can be known where a comparison ended its process, as `together` says, so that nothing is held
    against a finalist or an opponent but its own end. Opponents are not on trial: finalists come first, without any."""
    finalists, rivals = request.candidates, request.opponents
    if rivals:
        together = run(replace(request, opponents=()))
    if _ended_process(together) and len(finalists) > 1:
        # Which of them did it is not known: each is compared alone.
        alone = [run(replace(request, candidates=[one], opponents=())) for one in finalists]
        energies = [one.energies or (None, None) for one in alone]
        baseline = next((joules for joules, _ in energies if joules is not None), None)
        results = tuple(one.results[0] for one in alone)
        together = replace(together, results=results, energies=(baseline, *(joules for _, joules in energies)))
    lives = [not _ended_process(one) for one in together.results]
    # In place of a finalist that ended its process stands that end.
    left: list[Any] = [
        one if lived else end for one, lived, end in zip(finalists, lives, together.results, strict=True)
    ]
    alive, encounters = any(isinstance(one, Candidate) for one in left), list[Encounter]()
    for rival, kernel in rivals:
        # The only opponent, where no finalist ended a process, has ended it.
        known = not alive or (len(rivals) == 1 and all(lives))
        beside = None if known else run(replace(request, candidates=left, opponents=[(rival, kernel)]))
        if beside is not None and [not _ended_process(one) for one in beside.results] == lives:
            encounters += beside.opponents
        else:
            ended = "the process ended, or overran its deadline, while the opponents were timed"
            why = ended if alive else "every finalist ended its process"
            encounters.append(Encounter(rival.name, rival.label, why=why))
    return replace(together, opponents=tuple(encounters))


def _ended_process(answer: object) -> bool:
    """Whether a process died, overran its deadline, or lost its device, in a comparison with any of its results."""
    outcomes = answer.results if isinstance(answer, WorkloadComparison) else (answer,)
    return any(
        (isinstance(one, Crashed | TimedOut) and one.phase != "compile")
        or (isinstance(one, LaunchFailed) and one.sticky)
        for one in outcomes
    )
