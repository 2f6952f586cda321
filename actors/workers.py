"""The two kinds of worker process, as plain classes; the pool wraps them for Ray.

A `CompileWorker` turns source into machine code and needs no device. A `Lane` holds one device, and is the only thing
that ever runs kernels on it. Both answer with values; an exception means a user's mistake or our own bug.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.backends import Artifact, open_compiler
from tunesmith.kernels.bench import Bench, Candidate, Duel
from tunesmith.kernels.calibrate import compile_probes
from tunesmith.kernels.outcome import CompileFailed, Outcome
from tunesmith.kernels.specialise import Specialised
from tunesmith.kernels.task import Task
from tunesmith.kernels.template import BackendName
from tunesmith.kernels.timing import Precision


class CompileWorker:
    """Compiles for one kind of device. `index` only matters to OpenCL, whose drivers compile for their own devices."""

    def __init__(self, limits: DeviceLimits, index: int) -> None:
        self._limits = limits
        self._compiler = open_compiler(limits, index)

    def compile(self, source: Specialised) -> Artifact | CompileFailed:
        return self._compiler.compile(source)

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

    def identity(self) -> tuple[str, int]:
        """The device's UUID and this process's id."""
        return self._bench.device.uuid, os.getpid()

    def prepare(self, workloads: Sequence[str]) -> None:
        self._bench.prepare(workloads)

    def visit(self, candidate: Candidate, workloads: Sequence[str], precision: Precision) -> dict[str, Outcome]:
        return self._bench.visit(candidate, workloads, precision)

    def duel(
        self, baseline: Candidate, candidates: Sequence[Candidate], workload: str, rounds: int, budget_seconds: float
    ) -> Duel:
        return self._bench.duel(baseline, candidates, workload, rounds=rounds, budget_seconds=budget_seconds)

    def calibrate(self, probes: dict[str, Artifact]) -> Roofline:
        return self._bench.calibrate(probes)
