"""The two kinds of worker process, as plain classes.

A `CompileWorker` turns source into machine code and needs no device. A `DeviceWorker` runs kernels on one device. Both
answer with values; an exception means a user's mistake or our own bug.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TypeVar

from tunesmith.actors.process import pack, unpack
from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.probe import query_gpu_health
from tunesmith.kernels.backends import DeviceError, open_compiler
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.machine_code import Profile
from tunesmith.kernels.build.source import Specialised
from tunesmith.kernels.check import compare as fused_check
from tunesmith.kernels.check.plan import Step
from tunesmith.kernels.check.verify import Skipped, prepare_step
from tunesmith.kernels.launch.buffers import WorkloadData
from tunesmith.kernels.measure.bench import Bench
from tunesmith.kernels.measure.roofs import compile_health, compile_probes, self_test
from tunesmith.kernels.outcome import LaunchFailed
from tunesmith.kernels.spec.task import Task
from tunesmith.kernels.spec.template import BACKENDS

T = TypeVar("T")
MIN_STEP_SECONDS, STEP_SHARE = 2.0, 0.1
"""Shortest deadline of the reference, or of the plain kernel, on a made-up workload, and its share of the budget."""
MAX_COMPILER_BYTES = 8 << 30
"""Limit of the address space that a compiler may take beyond that of its process before the first compilation."""
MAX_HEAP_ALLOCATION_BYTES = 32 << 20
"""Allocations up to this size are taken from the heap; glibc accepts no higher limit."""
NICENESS = 10
"""Scheduling priority of compilers beside a GPU, in the operating system's terms: 0 is usual, 19 the lowest."""
COMPILER_PACKAGES = tuple(
    f"nvidia-cuda-{part}{major}" for part in ("nvrtc", "runtime", "cccl", "crt", "nvcc") for major in ("", "-cu12")
)
"""Packages whose exact version decides the machine code that NVRTC gives for a source: the compiler, and the headers of
`HEADER_PACKAGES` (before CUDA 13 the headers of crt came with nvcc)."""


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds: to compile one source; to check and time one workload, or to run one step of a verdict, once its data is
    there; to make that data, which is mostly the reference's time. check: for all steps of a verdict on workloads that
    were made up; by the kind of device if left out. roofs: to compile the kernels that measure a device's roofs, and to
    measure them. start: to start an actor or get hold of the device (others may be using both), before a call's own
    seconds run; grace: added for a lane, which keeps its own deadlines, before it is itself taken to hang."""

    compile: float = 60.0
    run: float = 20.0
    prepare: float = 60.0
    check: float | None = None
    roofs: float = 60.0
    start: float = 3600.0
    grace: float = 5.0

    def made_up_step(self, budget: float) -> float:
        """For the reference, or the plain kernel, on one workload that was made up. budget: of all such."""
        return min(self.run, max(MIN_STEP_SECONDS, STEP_SHARE * budget))


@dataclass(frozen=True, slots=True)
class LaneReady:
    """The answer of a lane that is ready: the device's UUID and name, the machine, and clauses, empty for nothing, with
    a fault for which the device cannot be used, and with a note on it."""

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
    return all([mallopt(-1, 256 << 20), mallopt(-2, 16 << 20), mallopt(-3, MAX_HEAP_ALLOCATION_BYTES)])


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
        self.compile, self.mark = self._compiler.compile, self._compiler.mark
        # The static instruction counts of a source, where the compiler tells.
        self.profile: Callable[[Specialised], Profile] = getattr(self._compiler, "profile", lambda _: Profile())
        limit_memory(MAX_COMPILER_BYTES)

    def compile_packed(self, data: bytes) -> bytes:
        """`compile`, with argument and result packed."""
        return pack(self.compile(*unpack(data)))

    def probes(self) -> dict[str, Artifact]:
        """The calibration kernels."""
        return compile_probes(self._compiler, BACKENDS[self._limits.backend].harness)

    def start(self) -> tuple[str, Artifact | None]:
        """The compiler's version, which decides, with a source, the machine code; and the kernel that tests whether a
        device computes, None where it cannot be compiled. The first compilation is the slow one, and is made here."""
        getattr(self._compiler, "warm_up", lambda: None)()
        version = self._compiler.version
        if BACKENDS[self._limits.backend].makes_cubins:
            for package in COMPILER_PACKAGES:
                with contextlib.suppress(metadata.PackageNotFoundError):
                    version += f", {package} {metadata.version(package)}"
        return version, compile_health(self._compiler, BACKENDS[self._limits.backend].harness)


class DeviceWorker(Bench):
    """The bench on one device, which also goes through the steps of verdicts, in a process that may die of the kernels
    it runs; lanes and `actors.judging` handle that. index: counts this machine's devices of the backend."""

    def __init__(self, task: Task, limits: DeviceLimits, index: int, seed: int) -> None:
        super().__init__(task, limits, index, seed=seed)
        self._step: tuple[Step, WorkloadData] | None = None
        """The step at hand, and its data."""
        self._path: Path | None = None

    def uuid(self) -> str:
        """The device's UUID, by which it is locked."""
        return self.device.uuid

    def open(self, health: Artifact | None, checks: Mapping[str, Artifact]) -> LaneReady:
        """Says what device this is and whether it is well. checks: the check's kernels, as another process on such a
        device has compiled them."""
        fused_check.COMPILED.update(checks)
        fault, note = query_gpu_health(self.device.uuid) if BACKENDS[self.limits.backend].nvidia_tools else ("", "")
        if not fault and health is not None:
            fault = self_test(self.device, health)
        return LaneReady(self.device.uuid, self.device.name, socket.gethostname(), fault, note)

    def checks(self) -> dict[str, Artifact]:
        """The check's kernels that this process has compiled."""
        return dict(fused_check.COMPILED)

    def prepare(self, workloads: Sequence[str]) -> None:
        """Makes buffers and reference results, for all but steps."""
        self._step = None
        super().prepare(workloads)
        # Objects loaded by now stay: searching them for garbage again and again takes a millisecond each time.
        gc.collect()
        gc.freeze()

    def visit_packed(self, data: bytes) -> tuple[bytes, bool]:
        """The outcomes of a visit by workload, arguments and result packed, and whether one of them cost the device."""
        outcomes = self.visit(*unpack(data))
        return pack(outcomes), any(isinstance(one, LaunchFailed) and one.sticky for one in outcomes.values())

    def prepare_step(self, step: Step, path: Path | None = None) -> Skipped | None:
        """The data for `on_step`. path: a file with prepared contents; without it they are made here."""
        self._step, self._path = None, path
        (prepared,) = unpack(path.read_bytes()) if path is not None else (None,)
        data = prepare_step(self.device, self.task, step, max_bytes=self.room, prepared=prepared)
        if isinstance(data, Skipped):
            return data
        self._step = step, data
        return None

    def on_step(self, step: Step, work: Callable[[WorkloadData], T]) -> T | LaunchFailed | Skipped:
        """The result of `work`, a function of `tunesmith.kernels.check` with all arguments but the last, the data of
        `step`."""
        if self._step is None or self._step[0] != step:
            # Another process has prepared it, which was killed from outside.
            skipped = self.prepare_step(step, self._path)
            if skipped is not None:
                return skipped
        assert self._step is not None
        try:
            return work(self._step[1])
        except DeviceError as error:
            return LaunchFailed(str(error), sticky=error.sticky)
