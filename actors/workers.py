"""The two kinds of worker process, as plain classes; the pool wraps them for Ray.

A `CompileWorker` turns source into machine code and needs no device. A `Lane` holds one device, and is the only thing
that ever runs kernels on it. Both answer with values; an exception means a user's mistake or our own bug.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping, Sequence
from pathlib import Path

from tunesmith.hw.exclusive import DeviceLock
from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.backends import Artifact, open_compiler
from tunesmith.kernels.bench import Bench, Candidate, Duel
from tunesmith.kernels.calibrate import compile_probes
from tunesmith.kernels.outcome import CompileFailed, Outcome, Rejected
from tunesmith.kernels.specialise import Specialised
from tunesmith.kernels.task import Task
from tunesmith.kernels.template import BackendName
from tunesmith.kernels.timing import Precision

MEMORY_BYTES = 8 << 30
"""Address space a compiler may take beyond what the process had before its first compilation."""


def limit_memory(more_bytes: int) -> None:
    """Bounds this process to `more_bytes` of address space beyond what it has; beyond that allocations fail, and a
    compiler ends its process, which is an outcome like any other."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    wanted = pages * resource.getpagesize() + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most))


class CompileWorker:
    """Compiles for one kind of device. `index` only matters to OpenCL, whose drivers compile for their own devices."""

    def __init__(self, limits: DeviceLimits, index: int) -> None:
        self._limits = limits
        self._compiler = open_compiler(limits, index)
        limit_memory(MEMORY_BYTES)

    def compile(self, source: Specialised) -> Artifact | CompileFailed | Rejected:
        return self._compiler.compile(source)

    def instructions(self, source: Specialised) -> dict[str, int]:
        """The static instruction counts of a source, where the compiler tells; else empty."""
        count = getattr(self._compiler, "instructions", None)
        found: dict[str, int] = count(source) if count is not None else {}
        return found

    def probes(self) -> dict[str, Artifact]:
        """The calibration kernels."""
        backend: BackendName = self._limits.backend
        return compile_probes(self._compiler, backend)

    def version(self) -> str:
        return self._compiler.version


class Lane:
    """One device and the bench on it. A pinned process sees its GPU as device 0, whatever its number on the node."""

    def __init__(self, task: Task, limits: DeviceLimits, index: int, seed: int) -> None:
        pinned = limits.backend == "cuda"
        self._bench = Bench(task, limits, 0 if pinned else index, seed=seed)
        self._lock = DeviceLock(self._bench.device.uuid)

    def identity(self) -> tuple[str, int]:
        """The device's UUID and this process's id."""
        return self._bench.device.uuid, os.getpid()

    def prepare(self, workloads: Sequence[str]) -> None:
        self._bench.prepare(workloads)

    def acquire(self) -> None:
        """Waits until no other process uses the device, and keeps it for the next call.

        A call of its own, because waiting for others is not part of the next call's deadline.
        """
        self._lock.acquire()

    def visit(
        self, candidate: Candidate, workloads: Sequence[str], precision: Precision | Mapping[str, Precision]
    ) -> dict[str, Outcome]:
        try:
            return self._bench.visit(candidate, workloads, precision)
        finally:
            self._lock.release()

    def duel(
        self,
        baseline: Candidate,
        candidates: Sequence[Candidate],
        workload: str,
        rounds: int,
        budget_seconds: float,
        floor: float = 0.0,
    ) -> Duel:
        bench = self._bench
        try:
            return bench.duel(baseline, candidates, workload, rounds=rounds, budget_seconds=budget_seconds, floor=floor)
        finally:
            self._lock.release()

    def calibrate(self, probes: dict[str, Artifact]) -> Roofline:
        try:
            return self._bench.calibrate(probes)
        finally:
            self._lock.release()
