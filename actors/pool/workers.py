"""The workers of a pool: Ray actors that compile, or that keep a device's place while processes that may die use it.

Owns how lanes and compile workers start and are ended, excluded and replaced, the lock of a lane's device, the calls
under way and their deadlines, and how a call can end without a result. Which call comes next is the pool's business.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import ray
from ray import exceptions as ray_errors
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tunesmith.actors.judging.judge import CandidateVerdict, JudgeOptions, Question, judge, require_prepared
from tunesmith.actors.process import Isolated, pack, preload
from tunesmith.actors.ray_cluster import cpu_share, total
from tunesmith.actors.workers import CompileWorker, Deadlines, DeviceWorker, LaneReady
from tunesmith.hw.device_lock import REPORT_AFTER_SECONDS, REPORT_EVERY_SECONDS, DeviceLock, Holder, this_process
from tunesmith.hw.errors import OutOfTime, TunesmithError
from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.outcome import Crashed, TimedOut, describe
from tunesmith.kernels.spec.task import Task
from tunesmith.kernels.spec.template import BACKENDS

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
        """Who holds the device, as a clause, while `acquire` waits for it in another thread; else empty."""
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
        self, questions: Sequence[Question], roofline: Roofline, deadlines: Deadlines
    ) -> list[CandidateVerdict] | Crashed:
        """The full verdict on each question. Both compile and run in processes of their own. The device is let go of
        while all of them wait for the reference."""
        assert self._process is not None and self._lock is not None, "the pool makes a lane ready before it calls it"
        with self._lock:
            # The judge's buffers need the memory of the lane's.
            if isinstance(released := self._process.call("release", None), Crashed):
                return released
            options = JudgeOptions(deadlines=deadlines, roofline=roofline, lock=self._lock)
            return judge(self._task, self._limits, self._index, questions, options)

    def end(self) -> None:
        """Ends the process. It goes with this one anyway, however that ends."""
        if self._process is not None:
            self._process.end()
            self._process = None


class WorkerActor:
    """A worker `make(*arguments)` in a process of the cluster, for `ray.remote`.

    It is made by the first call: an actor that has answered `node_id` has its place in the cluster, and a mistake that
    is found while the worker is made is raised by that call as it is.
    """

    def __init__(self, make: Callable[..., Any], *arguments: Any) -> None:
        self._make, self._worker = partial(make, *arguments), None

    def node_id(self) -> str:
        return ray.get_runtime_context().get_node_id()

    def call(self, method: str, *arguments: Any) -> Any:
        """The result of a method of the worker."""
        self._worker = self._worker or self._make()
        return getattr(self._worker, method)(*arguments)


class LaneActor(WorkerActor):
    """A `Lane`, whose calls wait in its own process, so that one begins within microseconds of the end of another.

    Ray takes a few tenths of a millisecond between two calls of an actor, to send a result and to unpack the arguments
    of the next. Here it does both beside the call under way: calls arrive in an event loop, and one thread works on
    them in the order in which they were made, except that a call whose arguments Ray has to fetch first (beyond 100 kB)
    may be overtaken: a visit, which then finds the device busy or its process lost, and is made again.
    """

    def __init__(self, make: Callable[..., Any], *arguments: Any) -> None:
        super().__init__(make, *arguments)
        self._thread = ThreadPoolExecutor(1)

    async def waiting_for(self) -> str:
        """Who holds the device, as a clause, where a call waits for it; else empty. Answered beside that call."""
        return "" if self._worker is None else self._worker.waiting_for()

    async def call(self, method: str, *arguments: Any) -> Any:
        """The result of a method of the lane."""
        return await asyncio.wrap_future(self._thread.submit(super().call, method, *arguments))


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

    It works on its `calls` in their order; the first must return before `deadline` (monotonic seconds). phase: of its
    calls, in the terms of outcomes; ready: the actor has said that it is; startup_deaths: how often in a row it ended
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
    deadline: float = 0.0
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
            self._begin_first()

    def end_call(self) -> tuple[ActorCall, float]:
        """Takes the first call off; gives it and the seconds it took. The next one's time begins."""
        seconds = time.monotonic() - self.started
        if self.state == "busy":
            self.busy_seconds += seconds
        call = self.calls.popleft()
        if self.calls:
            self._begin_first()
        return call, seconds

    def limit_first(self, seconds: float) -> None:
        """The call at hand may take no longer than `seconds`."""
        first = self.calls[0]
        if seconds < first.seconds:
            self.deadline -= first.seconds - seconds
            self.calls[0] = replace(first, seconds=seconds)

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

    def _begin_first(self) -> None:
        first = self.calls[0]
        self.started = time.monotonic()
        self.deadline = self.started + first.seconds
        if self.phase == "run":
            self.deadline += self.deadlines.grace
        if first.job is GATE or not self.ready:
            self.deadline += self.deadlines.start


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
        takes_turns = self.limits.kind == "cpu"
        share = cpu_share(len(self.lanes), len(self.compilers), gpu=self._gpu)
        compile_cpus, lane_cpus = (0, 1) if takes_turns else (share, share)
        self._compile_actor: Any = ray.remote(num_cpus=compile_cpus, scheduling_strategy="SPREAD")(WorkerActor)
        options: dict[str, Any] = {"num_cpus": lane_cpus, "num_gpus": 1 if self._gpu else 0}
        if not self._gpu:
            # An OpenCL device's number is this machine's.
            here = ray.get_runtime_context().get_node_id()
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(here, soft=True)
        self._lane_actor: Any = ray.remote(**options)(LaneActor)
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
