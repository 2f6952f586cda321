"""The Ray actors of a pool, and a lane: it keeps a device's place while processes that may die use the device.

Owns the device's lock and the restart of the lane's process. Which call comes next is the pool's business.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import ray

from tunesmith.actors.process import Isolated, pack, preload
from tunesmith.actors.workers import DeviceWorker, LaneReady
from tunesmith.hw.device_lock import DeviceLock, Holder
from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.outcome import Crashed, TimedOut
from tunesmith.kernels.spec.task import Task, TaskError
from tunesmith.kernels.spec.template import BACKENDS

if TYPE_CHECKING:
    from tunesmith.actors.judging.judge import CandidateVerdict, Limits, Question


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


DEVICE_BUSY, PROCESS_GONE = "device busy", "process gone"
"""Why nothing was run in a visit: another process uses the device, or an earlier call ended the lane's."""


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
                failed: Crashed | TimedOut | None = process.call("prepare", seconds, tuple(workloads))
            if isinstance(failed, TimedOut):
                # No kernel has run yet: only the user's code can take so long.
                raise TaskError(
                    f"Task {self._task.name}: preparing its data took longer than {failed.limit:g} s; most likely the "
                    f"reference {self._task.reference_name} is too slow on a large workload: make it faster, the "
                    "workload smaller, or give it more time with --reference-deadline."
                )
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
        answer = self.run("visit_packed", data, seconds)
        if isinstance(answer, Crashed | TimedOut):
            self._process = None
            return pack(answer)
        outcomes: bytes
        outcomes, context_lost = answer
        if context_lost:
            self.end()
        return outcomes

    def examine(
        self, questions: Sequence[Question], seed: int, roofline: Roofline, deadlines: Limits
    ) -> list[CandidateVerdict] | Crashed:
        """The full verdict on each question. Both compile and run in processes of their own. The device is let go of
        while all of them wait for the reference."""
        # Imported here: a judge starts a compile worker of its own.
        from tunesmith.actors.judging.judge import JudgeOptions, judge

        assert self._process is not None and self._lock is not None, "the pool makes a lane ready before it calls it"
        with self._lock:
            # The judge's buffers need the memory of the lane's.
            if isinstance(released := self._process.call("release", None), Crashed):
                return released
            options = JudgeOptions(seed, deadlines, roofline=roofline, lock=self._lock)
            return judge(self._task, self._limits, self._index, questions, options)

    def end(self) -> None:
        """Ends the process. It goes with this one anyway, however that ends."""
        if self._process is not None:
            self._process.end()
            self._process = None
