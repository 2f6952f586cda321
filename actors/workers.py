"""The two kinds of worker process, as plain classes.

A `CompileWorker` turns source into machine code and needs no device. A `Lane` runs kernels on one device. Both answer
with values; an exception means a user's mistake or our own bug.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from tunesmith.actors.process import pack, unpack
from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.probe import GpuHealth, query_gpu_health
from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.backends import NotMarked, open_compiler
from tunesmith.kernels.build.artifact import Artifact, Candidate
from tunesmith.kernels.build.machine_code import MarkedArtifact, Profile
from tunesmith.kernels.build.source import Specialised
from tunesmith.kernels.check import compare as fused_check
from tunesmith.kernels.measure.bench import Bench, WorkloadComparison
from tunesmith.kernels.measure.opponents import Rival
from tunesmith.kernels.measure.roofs import compile_health, compile_probes, self_test
from tunesmith.kernels.outcome import CompileFailed, LaunchFailed, Rejected
from tunesmith.kernels.spec.task import Task
from tunesmith.kernels.spec.template import BACKENDS, BackendName

MEMORY_BYTES = 8 << 30
"""Address space a compiler may take beyond what the process had before its first compilation."""
KEPT_BYTES = 256 << 20
"""Free memory at the heap's end that a compile worker keeps for the next compilation."""
LARGEST_ON_HEAP = 32 << 20
"""Bytes of the largest allocation that is taken from the heap; glibc accepts no more."""
NICENESS = 10
"""Of compilers beside a GPU, in the operating system's terms: 0 is usual, 19 the last to get a core."""
COMPILER_PACKAGES = tuple(
    f"nvidia-cuda-{part}{major}" for part in ("nvrtc", "runtime", "cccl", "crt", "nvcc") for major in ("", "-cu12")
)
"""Those whose exact version decides what NVRTC makes of a source: the compiler, and the headers of `HEADER_PACKAGES`
(before CUDA 13 those of crt came with nvcc)."""


@dataclass(frozen=True, slots=True)
class CompilerReady:
    """What a compile worker says when it is ready. version: decides, with a source, what it makes; health: the kernel
    that tells whether a device computes, None where it cannot be compiled."""

    version: str
    health: Artifact | None


@dataclass(frozen=True, slots=True)
class LaneReady:
    """What a lane says when it is ready: the device's UUID and name, the machine, and what is wrong with the device, as
    a clause (empty for nothing), or worth a note."""

    uuid: str
    name: str
    machine: str
    fault: str = ""
    note: str = ""


def limit_memory(more_bytes: int) -> None:
    """Bounds this process to `more_bytes` of address space beyond what it has; beyond that allocations fail, and a
    compiler ends its process, which is an outcome like any other."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    wanted = pages * resource.getpagesize() + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most))


def keep_memory() -> bool:
    """Lets this process keep what it frees; false where the C library has no `mallopt`, and nothing changes.

    A compiler allocates some 10 MB, frees them and ends. glibc hands them back each time, and the next compilation
    meets every page anew: 1,600 page faults, about a tenth of the CPU time that NVRTC takes for a small kernel.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # Numbers of <malloc.h>: M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD.
    return all([mallopt(-1, KEPT_BYTES), mallopt(-2, 16 << 20), mallopt(-3, LARGEST_ON_HEAP)])


class CompileWorker:
    """Compiles for one kind of device. `index` only matters to OpenCL, whose drivers compile for their own devices."""

    def __init__(self, limits: DeviceLimits, index: int) -> None:
        self._limits = limits
        keep_memory()
        if limits.kind == "gpu":
            # There are as many compilers as cores. The one process that drives a GPU must not wait for a core while
            # they all work: it would start kernels late, which looks as if those were slow.
            os.nice(NICENESS)
        self._compiler = open_compiler(limits, index)
        limit_memory(MEMORY_BYTES)

    def compile(self, source: Specialised) -> Artifact | CompileFailed | Rejected:
        return self._compiler.compile(source)

    def mark(self, source: Specialised) -> MarkedArtifact | CompileFailed | NotMarked:
        return self._compiler.mark(source)

    def profile(self, source: Specialised) -> Profile:
        """The static instruction counts of a source, where the compiler tells; else empty."""
        count = getattr(self._compiler, "profile", None)
        found: Profile = Profile() if count is None else count(source)
        return found

    def probes(self) -> dict[str, Artifact]:
        """The calibration kernels."""
        backend: BackendName = self._limits.backend
        return compile_probes(self._compiler, backend)

    def start(self) -> CompilerReady:
        """The first compilation is the slow one, and is made here."""
        backend: BackendName = self._limits.backend
        version = self._compiler.version
        if BACKENDS[backend].makes_cubins:
            version = ", ".join([version, *_versions(COMPILER_PACKAGES)])
        return CompilerReady(version, compile_health(self._compiler, backend))


class Lane:
    """One device and the bench on it, in a process that may die of what it runs; `actors.lane.lane_host` sees to
    that. A pinned process sees its GPU as device 0, whatever its number on the node."""

    def __init__(self, task: Task, limits: DeviceLimits, index: int, seed: int) -> None:
        self._pinned = BACKENDS[limits.backend].pinned_by_ray
        self._bench = Bench(task, limits, 0 if self._pinned else index, seed=seed)

    def uuid(self) -> str:
        return self._bench.device.uuid

    def open(self, health: Artifact | None, checks: Mapping[str, Artifact]) -> LaneReady:
        """Says what device this is and whether it is well. checks: what another process on such a device has compiled
        of the check."""
        fused_check.COMPILED.update(checks)
        device = self._bench.device
        driver = query_gpu_health(device.uuid) if self._pinned else GpuHealth()
        wrong = driver.fault
        if not wrong and health is not None:
            wrong = self_test(device, health)
        return LaneReady(device.uuid, device.name, socket.gethostname(), wrong, driver.note)

    def checks(self) -> dict[str, Artifact]:
        """What this process has compiled of the check."""
        return dict(fused_check.COMPILED)

    def prepare(self, workloads: Sequence[str]) -> None:
        """Makes buffers and reference results."""
        self._bench.prepare(workloads)
        # What is loaded by now stays: going through it again and again in search of garbage takes a millisecond a time.
        gc.collect()
        gc.freeze()

    def release(self) -> None:
        self._bench.release()

    def visit(self, data: bytes) -> tuple[bytes, bool]:
        """The outcomes of a visit by workload, arguments and result packed, and whether one of them cost the device."""
        candidate, workloads, precision = unpack(data)
        outcomes = self._bench.visit(candidate, workloads, precision)
        return pack(outcomes), any(isinstance(one, LaunchFailed) and one.sticky for one in outcomes.values())

    def compare(
        self,
        baseline: Candidate,
        candidates: Sequence[Candidate],
        workload: str,
        rounds: int,
        budget_seconds: float,
        floor: float = 0.0,
        energy_seconds: float = 0.0,
        opponents: Sequence[Rival] = (),
    ) -> WorkloadComparison:
        return self._bench.compare(
            baseline,
            candidates,
            workload,
            rounds=rounds,
            budget_seconds=budget_seconds,
            floor=floor,
            energy_seconds=energy_seconds,
            opponents=opponents,
        )

    def calibrate(self, probes: dict[str, Artifact]) -> Roofline:
        return self._bench.calibrate(probes)


def _versions(packages: Sequence[str]) -> list[str]:
    found = []
    for package in packages:
        try:
            found.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
    return found
