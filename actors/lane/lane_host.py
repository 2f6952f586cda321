"""A lane that survives what it runs: a Ray actor that holds the device's place, and a process that may die.

The actor never touches the device. What runs kernels is a child of a fork server, which is killed at its deadline or
when its context is lost, and replaced within a second. Where memory allows, spare processes with all buffers ready
stand by after the first loss, the more the more were lost, and take its place in milliseconds. They are only made while
nothing is measured, for making a context disturbs what runs beside it (on an H200 23 % of medians were more than 1 %
off, instead of 5 %), while one that stands by does not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tunesmith.actors.process.fork_server import ForkServer
from tunesmith.actors.process.isolated import Isolated
from tunesmith.actors.process.packed import pack
from tunesmith.actors.process.workers import Lane, LaneReady
from tunesmith.hw.exclusive import DeviceLock
from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.measure.bench import Duel
from tunesmith.kernels.outcome import Crashed, TimedOut
from tunesmith.kernels.spec.parameter import Config
from tunesmith.kernels.spec.task import Task
from tunesmith.kernels.spec.template import Template

if TYPE_CHECKING:
    from tunesmith.actors.judging.judge import Verdict

FIRST_SPARES = 2
MOST_SPARES = 7
CONTEXT_BYTES = 600 << 20
"""Device memory of a process besides its buffers, on an H200."""
SPARE_MEMORY = 0.1
"""Share of the device's memory that all spares may take."""
LONG_VISIT = 10.0
"""A visit that takes so many times the longest yet, and `LONG_SECONDS`, is expected to cost its process."""
LONG_SECONDS = 0.05
IMPORTS = {
    "cuda": ("tunesmith.actors.process.workers", "cupy", "cuda.bindings.driver", "cuda.bindings.nvrtc", "pynvml"),
    "opencl": ("tunesmith.actors.process.workers", "pyopencl"),
}


@dataclass(frozen=True, slots=True)
class Busy:
    """Another process uses the device: nothing was run, or what was run is to be run again."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The visit ended its process; why, or None where an earlier call did, and nothing was run."""

    outcome: Crashed | TimedOut | None


@dataclass(slots=True)
class _Spare:
    """A process that stands by. answer: what it said when it was ready, None while it was not asked."""

    process: Isolated
    answer: Any = None


class LaneHost:
    """A lane's place. Its arguments are those of `Lane`."""

    def __init__(self, task: Task, limits: DeviceLimits, index: int, seed: int) -> None:
        self._task, self._limits, self._index, self._seed = task, limits, index, seed
        self._server = ForkServer(IMPORTS[limits.backend])
        self._lane: Isolated | None = None
        self._spares: list[_Spare] = []
        self._room = 0
        """How many spares there may be."""
        self._wanted = 0
        """How many there are to be when they are made."""
        self._lock: DeviceLock | None = None
        self._health: Artifact | None = None
        self._checks: dict[str, Artifact] = {}
        """The check's kernels, which only the first process compiles."""
        self._workloads: tuple[str, ...] = ()
        self._longest = math.inf

    def start(self, health: Artifact | None, workloads: Sequence[str], seed: int) -> LaneReady | Crashed | TimedOut:
        """Has a process that is ready, with the buffers of `workloads` drawn from `seed`: a new one, or one that stood
        by. What there was ends."""
        if seed != self._seed:
            self._end_spares()
        self._health, self._workloads, self._seed = health, tuple(workloads), seed
        if self._lane is not None:
            self._lane.end()
            self._lane = None
        if self._lock is not None:
            self._lock.acquire()
        try:
            if not self._spares:
                self._make()
            return self._promote()
        finally:
            self._unlock()

    def prepare(self, workloads: Sequence[str]) -> Crashed | None:
        failed: Crashed | None = self._here().call("prepare", None, workloads)
        return failed

    def acquire(self) -> None:
        """Waits until no other process uses the device, and keeps it for the next call.

        A call of its own, because waiting for others is not part of the next call's deadline.
        """
        if self._lock is not None:
            self._lock.acquire()

    def visit_packed(self, data: bytes, seconds: float) -> bytes:
        """The outcomes by workload, or `Lost`, or `Busy`, at once, when another process uses the device and `acquire`
        did not come before; arguments and result are packed. seconds: how long it may take."""
        if self._lane is None or self._lock is None:
            return pack(Lost(None))
        if not self._lock.try_acquire():
            return pack(Busy())
        try:
            return self._visit(self._lane, data, seconds)
        finally:
            self._unlock()

    def duel(self, *arguments: Any) -> Duel | Crashed:
        """`Lane.duel`."""
        try:
            found: Duel | Crashed = self._here().call("duel", None, *arguments)
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
        self, jobs: Sequence[tuple[Template, Config, str | None]], seed: int, roofline: Roofline
    ) -> list[Verdict] | Crashed:
        """The full verdict on each template at a configuration, for one workload or for all. Both compile and run in
        processes of their own."""
        # Imported here: a judge starts a compile worker of its own.
        from tunesmith.actors.judging.judge import judge

        # Their buffers need the room that those of this lane take.
        self._end_spares()
        released = self._here().call("release", None)
        if isinstance(released, Crashed):
            return released
        index = 0 if self._limits.backend == "cuda" else self._index
        return judge(self._task, self._limits, index, jobs, seed=seed, roofline=roofline)

    def end(self) -> None:
        """Ends all processes. They go with this one anyway, however it ends."""
        self._end_spares()
        if self._lane is not None:
            self._lane.end()
            self._lane = None
        self._server.end()

    def _here(self) -> Isolated:
        assert self._lane is not None, "the pool makes a lane ready before it calls it"
        return self._lane

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _visit(self, lane: Isolated, data: bytes, seconds: float) -> bytes:
        started = time.monotonic()
        lane.begin("visit", data)
        dies = not lane.wait(min(seconds, max(LONG_SECONDS, LONG_VISIT * self._longest))) and not self._spares
        if dies:
            # Nothing is measured any more. A driver takes a few tenths of a second to say that a kernel faulted.
            self._make()
        answer = lane.answer(max(0.0, started + seconds - time.monotonic()))
        if isinstance(answer, Crashed | TimedOut):
            self._lane = None
            return pack(Lost(TimedOut("run", seconds) if isinstance(answer, TimedOut) else answer))
        packed, context_lost = answer
        if context_lost:
            lane.end()
            self._lane = None
        else:
            took = time.monotonic() - started
            self._longest = took if math.isinf(self._longest) else max(took, self._longest)
            if dies:
                # It was merely slow, and others were made beside it; they must not go on beside the next.
                self._end_spares()
                packed = pack(Busy())
        told: bytes = packed
        return told

    def _make(self) -> None:
        """Begins a process and the spares that are wanted, side by side."""
        for _ in range(1 + self._wanted):
            process = Isolated("run", Lane, self._task, self._limits, self._index, self._seed, server=self._server)
            if self._lock is None:
                # The first waits for its turn before it makes buffers; which device it is, it has to say first.
                uuid = process.call("uuid", None)
                if isinstance(uuid, str):
                    self._lock = DeviceLock(uuid)
                    self._lock.acquire()
            process.begin("start", self._health, self._workloads, self._checks)
            self._spares.append(_Spare(process))
        self._wanted = min(self._room, 2 * self._wanted + 1)

    def _promote(self) -> LaneReady | Crashed | TimedOut:
        """Makes a spare that is well the lane, once all are ready; what it said, or what one that is not well said."""
        try:
            for spare in self._spares:
                if spare.answer is None:
                    spare.answer = spare.process.answer(None)
                else:
                    # That the device was well is said again: something has happened since.
                    spare.answer = spare.process.call("look", None, self._health)
        except Exception:
            self._end_spares()
            raise
        well = [spare for spare in self._spares if isinstance(spare.answer, LaneReady) and not spare.answer.trouble]
        chosen = well[0] if well else self._spares[0]
        for spare in self._spares:
            if spare not in well:
                spare.process.end()
        self._spares = well[1:]
        answer: LaneReady | Crashed | TimedOut = chosen.answer
        if well:
            self._lane = chosen.process
            self._lock = self._lock or DeviceLock(chosen.answer.uuid)
            if not self._checks:
                checks = self._lane.call("checks", None)
                self._checks = checks if isinstance(checks, dict) else {}
            self._room = self._spares_that_fit(chosen.answer)
            self._wanted = min(self._room, max(FIRST_SPARES, self._wanted))
        return answer

    def _spares_that_fit(self, ready: LaneReady) -> int:
        """How many leave the memory to what is measured. Beside a processor's own kernels nothing stands by."""
        if self._limits.kind != "gpu":
            return 0
        room = SPARE_MEMORY * (self._limits.memory_bytes or 0)
        return min(MOST_SPARES, int(room / (CONTEXT_BYTES + ready.held_bytes)))

    def _end_spares(self) -> None:
        for spare in self._spares:
            spare.process.end()
        self._spares.clear()
