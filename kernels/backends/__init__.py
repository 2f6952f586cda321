"""Backends: how source becomes machine code and runs. `open_compiler` and `open_device` choose by a device's limits.

A backend has two halves: a `Compiler`, which needs no device, and a `Device`, which holds one.

A compile worker asks the `Compiler` for an `Artifact`, which travels as bytes to a lane, whose `Device` loads it; the
loaded kernel is bound to buffers as `BoundLaunch`es, which run singly (to check) or as a sequence that is timed.
Kernels, buffers and sequences are handles of the device's own: `Any` here. Every implementation must pass
tests/kernels/backends/contract.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.limits import DeviceLimits
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.machine_code import MarkedArtifact
from tunesmith.kernels.build.source import Specialised
from tunesmith.kernels.outcome import CompileFailed, Rejected
from tunesmith.kernels.spec.task import Geometry
from tunesmith.kernels.spec.template import BACKENDS

MAX_LOG = 20_000
"""Characters of a compiler's log that are kept."""
MAX_KEPT = 256
"""Kernels that a process keeps loaded on a device, at most."""
Loaded = TypeVar("Loaded")
Edge = Literal["end", "start", "read-only"]
"""Where an array lies: memory ends or begins where it does, or ends there and cannot be written."""
BEYOND_EDGE = 64 << 20
"""Bytes of addresses beyond either edge that hold nothing, and take no memory: kernels miss by whole rows and tiles."""

_WORDS = [0x10001 * (high << 8 | np.random.default_rng().integers(0xF1, 0xFE)) for high in (0x7F, 0xFF, 0x7B, 0xFB)]
LEFT_BEHIND = itertools.cycle([np.roll(np.array(_WORDS, np.uint32), turn) for turn in range(len(_WORDS))])
"""The pattern that `Device.pollute` writes, 16 bytes again and again, the next time turned by a word: NaN and large
numbers of both signs as floats of 16, 32 or 64 bits, large numbers as integers. Drawn for each process."""


class Compiler(Protocol):
    """Source to machine code. Runs in a worker process; needs no device for CUDA."""

    version: str
    """The compiler and its version, part of the key of any cache of artifacts."""

    def compile(self, source: Specialised) -> Artifact | CompileFailed | Rejected:
        """`Rejected` is for sources that `tunesmith.kernels.build.guard` keeps from the compiler."""

    def mark(self, source: Specialised) -> MarkedArtifact | CompileFailed | str:
        """A source that `compile` takes, to machine code that tells which of its blocks ran; or why that cannot be
        told, as a clause."""


class CompilerUnavailable(TunesmithError):
    """The packages that a compiler needs are not installed, or cannot compile for the device."""


class DeviceError(Exception):
    """The device or driver refused an operation. `sticky`: the process can no longer use the device."""

    def __init__(self, message: str, *, sticky: bool = False) -> None:
        super().__init__(message)
        self.sticky = sticky


class OutOfDeviceMemory(DeviceError):
    """An allocation did not fit; nothing is lost."""


@dataclass(frozen=True, slots=True)
class BoundLaunch:
    """A kernel with its geometry and arguments: buffers for arrays, NumPy scalars for scalars."""

    kernel: Any
    geometry: Geometry
    arguments: tuple[Any, ...]


HostCall = Callable[[], object]
"""Work that a function of the host gives the device, in place of a launch, such as a library's. With CUDA the function
only enqueues on the device's stream, so that its work can be captured; with OpenCL it does the work."""


class Device(Protocol):
    """One device, held by one process. All methods raise `DeviceError`."""

    backend: ClassVar[str]
    limits: DeviceLimits
    index: int
    """Its number among the backend's devices, as `open_device` takes it."""
    uuid: str
    name: str
    """The model of the device that this process holds, as the driver calls it, whatever `limits` are of."""
    xp: Any
    """The array module (numpy or cupy) of what `array` returns."""
    base_alignment: int
    """Bytes at a multiple of which any array of a program starts: `view` takes no others."""
    cold_bytes: int
    """Bytes that must be touched between two uses of a line for it to be gone from the last cache."""
    sample_seconds: float
    """How long a timed sequence should last: long against the clock's resolution and its own start and end."""
    loads_quickly: bool
    """Whether `load` takes milliseconds at most, so that a comparison can afford it many times."""
    has_graph_overhead: bool
    """Whether a sequence takes time to start and to end, besides its kernels."""

    def allocate(self, nbytes: int) -> Any:
        """A buffer of `nbytes` bytes with any contents. Raises `OutOfDeviceMemory`."""

    def allocate_across(self, nbytes: int, at: int) -> Any:
        """As `allocate`, where byte `at` lies at a multiple of 4 GiB; None where addresses cannot be chosen."""
        return None

    def write(self, buffer: Any, data: Any, offset: int = 0) -> None:
        """Copies a flat uint8 array of `xp` or NumPy into the buffer."""

    def read(self, buffer: Any) -> NDArray[np.uint8]:
        """The bytes of a buffer, on the host."""

    def copy(self, target: Any, source: Any) -> None:
        """Copies all bytes of the buffer `source` to the start of `target`, which is at least as large."""

    def view(self, buffer: Any, offset: int, nbytes: int) -> Any:
        """A part of a buffer as a buffer (no copy); `offset` is a multiple of `base_alignment`."""

    def copy_at_edge(self, buffer: Any, edge: Edge) -> Any:
        """A copy of a buffer where memory begins or, as near as the alignment of arrays allows, ends: a launch that
        touches memory beyond, or writes what is read-only, fails or dies. None without such memory."""

    def array(self, buffer: Any, dtype: str) -> Any:
        """The buffer as a flat array of the type `DataType.array`: a CuPy array on the device, or a NumPy copy."""

    def load(self, artifact: Artifact) -> Any:
        """The kernel of an artifact, ready to be launched; it ends with its last use."""

    def constants(self, kernel: Any, artifact: Artifact) -> bytes:
        """The contents of the variables in constant memory that a kernel, loaded from `artifact`, has and that a host
        can find by their names; a kernel that launders their addresses can write them."""
        return b""

    def load_marked(self, artifact: Artifact) -> tuple[Any, Any]:
        """The kernel of a `MarkedArtifact`, and the buffer of its marks, a 32-bit word for each block."""
        raise DeviceError(f"{self.backend} has no marked machine code")

    def launch(self, launch: BoundLaunch) -> None:
        """Starts one launch; it may not have finished, or failed, on return."""

    def once(self, launch: BoundLaunch | HostCall) -> float:
        """Runs one launch to its end and returns about how many seconds it would take in a sequence."""

    def pollute(self) -> None:
        """Starts to leave `LEFT_BEHIND` in the shared (OpenCL: local) and thread-local memory of all multiprocessors:
        what a later kernel reads there without having written it is not zero."""

    def synchronize(self) -> None:
        """Waits for all launches; what failed in one of them is raised here."""

    def foreign_code(self) -> AbstractContextManager[None]:
        """While a reference or an opponent runs: a stream that it makes the current one is taken back. Work on a second
        stream is not ordered with ours, and slows each launch of the process (docs/trust.md, "Two speeds")."""
        return nullcontext()

    def reset_cache(self) -> None:
        """Ends what earlier kernels asked the last cache to keep (CUDA's persisting lines), if it can keep lines."""
        return

    def sequence(self, launches: Sequence[BoundLaunch | HostCall]) -> Any:
        """These launches, made ready to be timed together, again and again."""

    def times(self, sequences: Sequence[Any]) -> list[float]:
        """Runs these sequences one right behind the other and returns the device time that each took, in seconds,
        without the time to start and to end a sequence, as far as that is known."""

    def free_bytes(self) -> int:
        """Bytes that can still be allocated; where the driver does not tell, a safe share of the memory."""

    def trim(self) -> None:
        """Hands memory that is kept for later allocations back to the device, for other processes."""
        return


_KEPT: WeakKeyDictionary[Device, dict[str, Any]] = WeakKeyDictionary()


def kept(device: Device, key: str, load: Callable[[], Loaded]) -> Loaded:
    """What `load` gives, such as a kernel on `device`; the same for the same key, as long as few enough are kept: a
    verdict launches two kernels in hundreds of steps."""
    held = _KEPT.setdefault(device, {})
    if key not in held:
        if len(held) >= MAX_KEPT:
            held.clear()
        held[key] = load()
    found: Loaded = held[key]
    return found


def open_compiler(limits: DeviceLimits, index: int = 0) -> Compiler:
    """The compiler for a device; `index` is only used by OpenCL, whose drivers compile for their own devices."""
    if limits.backend == "cuda":
        from tunesmith.kernels.backends.nvrtc import NvrtcCompiler

        return NvrtcCompiler(limits.arch)
    if limits.backend == "triton":
        from tunesmith.kernels.backends.triton.compiler import TritonCompiler

        return TritonCompiler(limits)
    from tunesmith.kernels.backends.opencl import OpenclCompiler

    return OpenclCompiler(index)


def open_device(limits: DeviceLimits, index: int = 0) -> Device:
    """Takes the device for this process."""
    if BACKENDS[limits.backend].harness == "cuda":
        from tunesmith.kernels.backends.cuda import CudaDevice

        return CudaDevice(limits, index)
    from tunesmith.kernels.backends.opencl import OpenclDevice

    return OpenclDevice(limits, index)
