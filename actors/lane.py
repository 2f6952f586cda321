"""The Ray actors: what runs in a worker process of the cluster, for `ray.remote`.

Their constructors only keep what they are given, so that an actor that has answered `node_id` has its place in the
cluster, and a mistake that is found while the worker is made is raised by `start` as what it is. Arguments and results
of the calls that there are hundreds of a second of are packed (`actors.process.packed`).

A lane that survives what it runs: it holds the device's place, and a process that may die uses the device.
What runs in a Ray worker: the actors, and a lane that survives what it runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray

from tunesmith.actors.process import Isolated, pack, preload, unpack
from tunesmith.actors.workers import Lane, LaneReady
from tunesmith.hw.device_lock import DeviceLock, Holder
from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.measure.bench import WorkloadComparison
from tunesmith.kernels.outcome import Crashed, TimedOut
from tunesmith.kernels.spec.task import Task, TaskError
from tunesmith.kernels.spec.template import BACKENDS, Config, Template

if TYPE_CHECKING:
    from tunesmith.actors.judging.judge import Limits, Verdict


class CompileActor:
    """A `CompileWorker`, or what stands in for one: `make(*arguments)`."""

    def __init__(self, make: Callable[..., Any], *arguments: Any) -> None:
        self._make, self._arguments = make, arguments
        self._worker: Any = None

    def node_id(self) -> str:
        return ray.get_runtime_context().get_node_id()

    def start(self) -> Any:
        self._worker = self._worker or self._make(*self._arguments)
        return self._worker.start()

    def compile(self, source: Any) -> Any:
        return self._worker.compile(source)

    def compile_packed(self, data: bytes) -> bytes:
        return pack(self._worker.compile(*unpack(data)))

    def probes(self) -> Any:
        return self._worker.probes()


class LaneActor:
    """A `LaneHost`, or what stands in for one: `make(*arguments)`.

    Its calls wait in its own process, so that one begins within microseconds of the end of the one before. Ray takes a
    few tenths of a millisecond between two calls of an actor, to send a result and to unpack the arguments of the next.
    Here it does both beside the call under way: calls arrive in an event loop, and one thread works on them in the
    order in which they came. That is the order in which they were made, except that a call whose arguments Ray has to
    fetch first (beyond 100 kB) may be overtaken: a visit, which then finds the device busy or its process lost, and is
    made again.
    """

    def __init__(self, make: Callable[..., Any], *arguments: Any) -> None:
        self._make, self._arguments = make, arguments
        self._host: Any = None
        self._thread = ThreadPoolExecutor(1)

    async def node_id(self) -> str:
        return ray.get_runtime_context().get_node_id()

    async def waiting_for(self) -> str:
        """Who holds the device, as a clause, where a call waits for it; else empty. Answered beside that call."""
        ask = getattr(self._host, "waiting_for", None)
        return "" if ask is None else ask()

    async def start(self, *arguments: Any) -> Any:
        return await self._in_turn("start", *arguments)

    async def acquire(self) -> None:
        await self._in_turn("acquire")

    async def prepare(self, workloads: Any) -> Any:
        return await self._in_turn("prepare", workloads)

    async def visit_packed(self, data: bytes, seconds: float) -> bytes:
        packed: bytes = await self._in_turn("visit_packed", data, seconds)
        return packed

    async def compare(self, *arguments: Any) -> Any:
        return await self._in_turn("compare", *arguments)

    async def calibrate(self, probes: Any) -> Any:
        return await self._in_turn("calibrate", probes)

    async def examine(self, *arguments: Any) -> Any:
        return await self._in_turn("examine", *arguments)

    async def _in_turn(self, method: str, *arguments: Any) -> Any:
        return await asyncio.wrap_future(self._thread.submit(self._call, method, arguments))

    def _call(self, method: str, arguments: tuple[Any, ...]) -> Any:
        if self._host is None:
            self._host = self._make(*self._arguments)
        return getattr(self._host, method)(*arguments)


@dataclass(frozen=True, slots=True)
class Busy:
    """Another process uses the device: nothing was run."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The visit ended its process; why, or None where an earlier call did, and nothing was run."""

    outcome: Crashed | TimedOut | None


class LaneHost:
    """A lane's place. holder: whom the device's lock names to other processes that wait for the device; the other
    arguments are those of `Lane`."""

    def __init__(self, task: Task, limits: DeviceLimits, index: int, seed: int, holder: Holder | None = None) -> None:
        self._task, self._limits, self._index, self._seed, self._holder = task, limits, index, seed, holder
        preload(limits.backend)
        self._lane: Isolated | None = None
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
        lane = Isolated("run", Lane, self._task, self._limits, self._index, seed)
        try:
            if self._lock is None:
                uuid = lane.call("uuid", None)
                if not isinstance(uuid, str):
                    failure: Crashed | TimedOut = uuid
                    return failure
                self._lock = DeviceLock(uuid, self._holder)
            self.acquire()
            try:
                ready: LaneReady | Crashed | TimedOut = lane.call("open", None, health, self._checks)
                if not isinstance(ready, LaneReady) or ready.fault:
                    return ready
                failed: Crashed | TimedOut | None = lane.call("prepare", seconds, tuple(workloads))
            finally:
                self._unlock()
            if isinstance(failed, TimedOut):
                # No kernel has run yet: what takes time is the user's code.
                raise TaskError(
                    f"Task {self._task.name}: preparing its data took longer than {failed.limit:g} s; most likely the "
                    f"reference {self._task.reference_name} is too slow on a large workload: make it faster, the "
                    "workload smaller, or give it more time with --reference-deadline."
                )
            if failed is not None:
                return failed
            checks = self._checks or lane.call("checks", None)
            self._checks = checks if isinstance(checks, dict) else {}
            self._lane = lane
            return ready
        finally:
            if self._lane is not lane:
                lane.end()

    def prepare(self, workloads: Sequence[str]) -> Crashed | None:
        try:
            failed: Crashed | None = self._here().call("prepare", None, workloads)
            return failed
        finally:
            self._unlock()

    def acquire(self) -> None:
        """Waits until no other process uses the device, and keeps it for the next call.

        A call of its own, because waiting for others is not part of the next call's deadline.
        """
        if self._lock is not None:
            self._waiting = True
            try:
                self._lock.acquire()
            finally:
                self._waiting = False

    def waiting_for(self) -> str:
        """Who holds the device, as a clause, while `acquire` waits for it in another thread; else empty."""
        return self._lock.waiting_for() if self._waiting and self._lock is not None else ""

    def visit_packed(self, data: bytes, seconds: float) -> bytes:
        """The outcomes by workload, or `Lost`, or `Busy`, at once, when another process uses the device and `acquire`
        did not come before; arguments and result are packed. seconds: how long it may take."""
        if self._lane is None or self._lock is None:
            return pack(Lost(None))
        if not self._lock.try_acquire():
            return pack(Busy())
        try:
            answer = self._lane.call("visit", seconds, data)
        finally:
            self._unlock()
        if isinstance(answer, Crashed | TimedOut):
            self._lane = None
            return pack(Lost(answer))
        packed: bytes
        packed, context_lost = answer
        if context_lost:
            self.end()
        return packed

    def compare(self, *arguments: Any) -> WorkloadComparison | Crashed:
        """`Lane.compare`."""
        try:
            found: WorkloadComparison | Crashed = self._here().call("compare", None, *arguments)
            return found
        finally:
            self._unlock()

    def calibrate(self, probes: dict[str, Artifact]) -> Roofline | Crashed:
        try:
            roofs: Roofline | Crashed = self._here().call("calibrate", None, probes)
            return roofs
        finally:
            self._unlock()

    def examine(
        self, jobs: Sequence[tuple[Template, Config, str | None]], seed: int, roofline: Roofline, deadlines: Limits
    ) -> list[Verdict] | Crashed:
        """The full verdict on each template at a configuration, for one workload or for all. Both compile and run in
        processes of their own. The device is let go of while all of them wait for the reference."""
        # Imported here: a judge starts a compile worker of its own.
        from tunesmith.actors.judging.judge import judge

        # Their buffers need the room that those of this lane take.
        released = self._here().call("release", None)
        if isinstance(released, Crashed):
            return released
        index = 0 if BACKENDS[self._limits.backend].pinned_by_ray else self._index
        return judge(
            self._task,
            self._limits,
            index,
            jobs,
            seed=seed,
            deadlines=deadlines,
            roofline=roofline,
            lock=self._lock,
        )

    def end(self) -> None:
        """Ends the process. It goes with this one anyway, however that ends."""
        if self._lane is not None:
            self._lane.end()
            self._lane = None

    def _here(self) -> Isolated:
        assert self._lane is not None, "the pool makes a lane ready before it calls it"
        return self._lane

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()
