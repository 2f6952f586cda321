"""OpenCL C through pyopencl: compile to a program binary, load, launch, time by profiling events.

Also makes the embedded CPU OpenCL (PoCL) usable on processors newer than it. The PoCL wheel is built on LLVM 14 (2022).
On a processor it does not know, LLVM answers "generic" for the processor's name, which its own clang then refuses
(`unknown target CPU 'generic'`, PoCL issue 1049), so that nothing compiles; or, for AMD's later ones (Zen 4), "znver3",
which lacks their AVX-512, so that kernels with wide vectors abort. The name lies in the device's structure as C text;
`name_processor` replaces it by a name that LLVM 14 knows and whose instruction set this machine has. Delete that part
when a newer PoCL wheel exists.

There was no cleaner way on 2026-11-22: none of PoCL's own environment variables names the processor; 3.0 is the newest
wheel; Debian's PoCL 3.1 is built on LLVM 14 as well; and of Intel's runtime, which a package ships too
(intel-opencl-rt 2026.2, 783 MB installed), the driver's file names a library at a place that does not exist. So it is
here, done only where it is needed and safe, and `TUNESMITH_POCL_PROCESSOR=as-is` switches it off.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tunesmith.hw.drivers.nvml import uuid_at
from tunesmith.hw.drivers.opencl import pci_address, read_devices
from tunesmith.hw.errors import TunesmithError, Unavailable, how_to_install
from tunesmith.hw.limits import DeviceLimits
from tunesmith.kernels.backends import (
    BEYOND_EDGE,
    LEFT_BEHIND,
    MAX_LOG,
    BoundLaunch,
    Device,
    DeviceError,
    Edge,
    HostCall,
    OutOfDeviceMemory,
)
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.guard import ASM_WORDS, CLOCK_WORDS, OUTPUT_WORDS, refuse
from tunesmith.kernels.build.machine_code import MarkedArtifact
from tunesmith.kernels.build.source import Specialised, silent_compiler
from tunesmith.kernels.outcome import CompileFailed, Rejected, Resources
from tunesmith.kernels.spec.dtypes import DTYPES

SWITCH = "TUNESMITH_POCL_PROCESSOR"
_STRUCTURE_BYTES = 2048
_MISTAKEN = ("generic", "znver3")
"""Names that LLVM 14 gives to processors it does not know."""
# PoCL picks its built-in functions by the instruction sets the machine has, so the processor named must have the widest
# vectors of them: AVX-512 built-ins compiled for a processor without AVX-512 abort in LLVM.
_PROCESSORS = (
    (
        b"skylake-avx512",
        {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx2", "fma", "bmi2", "adx", "movbe"},
    ),
    (b"haswell", {"avx2", "fma", "bmi1", "bmi2", "movbe"}),
    (b"nehalem", {"sse4_1", "sse4_2", "popcnt"}),
)
MAX_POLLUTED_BYTES = 256 << 10
"""Of local memory, of which PoCL has a mebibyte: four groups that fill so much take 0.2 ms on two cores."""
_POLLUTE = """
__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void pollute(uint4 pattern, uint count, volatile __local uint4* all) {
    volatile uint4 mine[64];
    for (uint i = get_local_id(0); i < count; i += 64) all[i] = pattern;
    for (uint i = 0; i < 64; ++i) mine[i] = pattern;
    // What outlasts a barrier is kept for each work-item, on CPUs too.
    barrier(CLK_LOCAL_MEM_FENCE);
    if (mine[get_local_id(0)].x != pattern.x) all[0] = pattern;
}
"""


def name_processor(device: Any) -> bool:
    """Gives a PoCL CPU `device` (pyopencl) a processor name its compiler knows; True where that was needed. Raises
    `TunesmithError`.

    Memory is looked at through /proc/self/mem, where an address that is not mapped is an error and not a crash; the
    name is written only where the allocation that holds the other has room for it.
    """
    if os.environ.get(SWITCH) == "as-is":
        return False
    given = device.version.rsplit("-", 1)[-1]
    if "pocl" not in device.platform.version.lower() or given not in _MISTAKEN:
        return False
    name = _processor_name()
    if given != "generic" and name != _PROCESSORS[0][0]:
        # The name may be right; AVX-512 is certainly missing.
        return False
    wrong = given.encode() + b"\0"
    replaced = False
    usable = ctypes.CDLL(None).malloc_usable_size
    usable.restype = ctypes.c_size_t
    with Path("/proc/self/mem").open("rb", buffering=0) as memory:
        structure = os.pread(memory.fileno(), _STRUCTURE_BYTES, device.int_ptr)
        for (address,) in struct.iter_unpack("=Q", structure[: len(structure) // 8 * 8]):
            try:
                text = os.pread(memory.fileno(), len(wrong), address)
            except (OSError, OverflowError):
                continue
            if text == wrong and len(name) < usable(ctypes.c_void_p(address)):
                ctypes.memmove(address, name + b"\0", len(name) + 1)
                replaced = True
    return replaced


def _processor_name() -> bytes:
    flags: set[str] = set()
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("flags"):
            flags = set(line.split(":", 1)[1].split())
            break
    for name, needed in _PROCESSORS:
        if flags >= needed:
            return name
    raise TunesmithError(
        "The embedded OpenCL (PoCL) does not know this processor and cannot compile for it: install "
        "an OpenCL driver for it, or use a machine with a GPU."
    )


_ERROR_LINE = re.compile(r"^.*error:.*$", re.MULTILINE)
NO_ASSEMBLY = tuple(f"-D{word}=tunesmith_accepts_no_assembly" for word in sorted(ASM_WORDS))
"""`guard` refuses these words in a source; as macros they fail as well where tokens are pasted to make one."""
NOT_PASTED = "".join(f"#define {word} tunesmith_accepts_no_such_name\n" for word in sorted(OUTPUT_WORDS | CLOCK_WORDS))
NOT_PASTED += "#line 1\n"
"""The same for printing and clocks, ahead of the source: as options they would change PoCL's own headers."""
NO_SECTIONS = tuple(f"-D{word}=tunesmith_ordinary_name" for word in ("section", "__section__"))
"""OpenCL C 1.2 has no variables that outlast a launch, but a compiler may know the attribute that puts a constant into
memory that can be written. Whatever else has such a name only gets another one."""


NO_ACCESS = 0
"""PROT_NONE of <sys/mman.h>, which Python's mmap does not name."""


def open_device(index: int) -> Any:
    """The pyopencl device at `index`, counted over all platforms in the order `tunesmith devices` lists them."""
    # Programs are cached by us; pyopencl's own cache would hide compile times and failures.
    os.environ.setdefault("PYOPENCL_NO_CACHE", "1")
    try:
        import pyopencl
    except ImportError as error:
        raise TunesmithError(
            f"OpenCL is not available here: the package pyopencl is missing; {how_to_install('opencl')}."
        ) from error
    listed = read_devices(pyopencl)
    if isinstance(listed, Unavailable):
        raise TunesmithError(listed.reason)
    if not 0 <= index < len(listed.devices):
        there = len(listed.devices)
        raise TunesmithError(f"There is no OpenCL device {index}; there are {there}: see `tunesmith devices`.")
    # Listing leaves out devices that are neither CPU nor GPU, and platforms that fail: numbers in the driver differ.
    place = listed.devices[index]
    device = pyopencl.get_platforms()[place.platform_index].get_devices()[place.device_index]
    name_processor(device)
    return device


def device_uuid(cl: Any, device: Any) -> str:
    """The name of a device for all processes of the machine, by which they lock it: the UUID that CUDA has for it, or a
    name.

    Not its place among all devices, which depends on what drivers a process finds. A machine has one CPU.
    """
    name = str(device.name).strip()
    if device.type & cl.device_type.CPU:
        return f"opencl-{name}"
    pci = pci_address(cl, device)
    if pci is None:
        return f"opencl-{name}-{device.platform.get_devices().index(device)}"
    return uuid_at(pci) or f"opencl-{name}-{pci[0]:04x}:{pci[1]:02x}:{pci[2]:02x}"


class OpenclCompiler:
    """Builds for one device; the result is the driver's program binary."""

    options = ("-cl-std=CL1.2", *NO_ASSEMBLY, *NO_SECTIONS)

    def __init__(self, device_index: int = 0) -> None:
        import pyopencl

        self._cl = pyopencl
        self._device = open_device(device_index)
        self._context = pyopencl.Context([self._device])
        self.arch = str(self._device.version)
        # The device's name, too: a CPU's program binary is made for the instruction sets of one processor.
        self.version = f"{self._device.platform.version}, driver {self._device.driver_version}, {self._device.name}"

    def compile(self, source: Specialised) -> Artifact | CompileFailed | Rejected:
        """OpenCL C 1.2 has no variables that outlast a launch: its compiler refuses them."""
        if (refused := refuse(source)) is not None:
            return refused
        options = [*self.options, *(["-cl-fast-relaxed-math"] if source.fast_math else [])]
        program = self._cl.Program(self._context, NOT_PASTED + source.source)
        try:
            with silent_compiler():
                program.build(options=options, cache_dir=False)
            binary = program.get_info(self._cl.program_info.BINARIES)[0]
            kernel = self._cl.Kernel(program, source.entry)
            info = self._cl.kernel_work_group_info
            shared = int(kernel.get_work_group_info(info.LOCAL_MEM_SIZE, self._device))
            local = int(kernel.get_work_group_info(info.PRIVATE_MEM_SIZE, self._device))
        except self._cl.Error as error:
            text = str(error)
            if "INVALID_KERNEL_NAME" in text:
                missing = f"the source defines no kernel `__kernel void {source.entry}(...)`"
                return CompileFailed(missing, text[:MAX_LOG])
            match = _ERROR_LINE.search(text)
            return CompileFailed((match.group(0).strip() if match else text.strip())[:500], text[:MAX_LOG])
        # On CPUs private memory is the work-items' stack of a whole group, not a register spill.
        is_gpu = bool(self._device.type & self._cl.device_type.GPU)
        resources = Resources(shared=shared, local=local if is_gpu else None)
        return Artifact("opencl", self.arch, source.entry, binary, source.digest, resources)

    def mark(self, source: Specialised) -> MarkedArtifact | CompileFailed | str:
        """OpenCL C 1.2 has no variable that a kernel's functions could all reach and that outlasts a launch."""
        return "an OpenCL kernel cannot record which of its parts ran"


def pages_of(data: NDArray[np.uint8], edge: Edge, alignment: int) -> NDArray[np.uint8]:
    """A copy of `data` in pages of its own among `BEYOND_EDGE` bytes that cannot be touched: at their start, or as near
    to their end as `alignment` allows. A NaN of every float type fills the rest."""
    size = -(-data.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    # Only pages that are touched take memory.
    whole = np.frombuffer(mmap.mmap(-1, size + 2 * BEYOND_EDGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    before, pages, behind = np.split(whole, [BEYOND_EDGE, BEYOND_EDGE + size])
    _protect(before, NO_ACCESS)
    _protect(behind, NO_ACCESS)
    pages[:] = 0xFF
    start = 0 if edge == "start" else (size - data.nbytes) // alignment * alignment
    inside = pages[start : start + data.nbytes]
    inside[:] = data
    if edge == "read-only":
        _protect(pages, mmap.PROT_READ)
    return inside


def _protect(pages: NDArray[np.uint8], access: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(pages.ctypes.data), ctypes.c_size_t(pages.nbytes), access) != 0:
        raise DeviceError(f"memory cannot be protected: {os.strerror(ctypes.get_errno())}")


class OpenclDevice(Device):
    backend: ClassVar[str] = "opencl"
    has_graph_overhead = False
    loads_quickly = False

    def __init__(self, limits: DeviceLimits, index: int = 0) -> None:
        import pyopencl

        self._cl = pyopencl
        self.xp: Any = np
        self.limits, self.index = limits, index
        self._device = open_device(index)
        self.uuid = device_uuid(pyopencl, self._device)
        self.name = limits.name
        self._context = pyopencl.Context([self._device])
        self.queue = pyopencl.CommandQueue(self._context, properties=pyopencl.command_queue_properties.PROFILING_ENABLE)
        # OpenCL 1.2, section 5.2.1: sub-buffers start at multiples of CL_DEVICE_MEM_BASE_ADDR_ALIGN, which is in bits.
        self.base_alignment = max(16, int(self._device.mem_base_addr_align) // 8)
        self.cold_bytes = int(self._device.global_mem_cache_size) * 2
        self.sample_seconds = 2e-3 if limits.kind == "gpu" else 2e-2
        self._pollute: Any = None

    @contextmanager
    def guarded(self) -> Iterator[None]:
        try:
            yield
        except self._cl.MemoryError as error:
            raise OutOfDeviceMemory(str(error)) from error
        except self._cl.Error as error:
            raise DeviceError(str(error)) from error

    def allocate(self, nbytes: int) -> Any:
        most = self._device.max_mem_alloc_size
        if nbytes > most:
            raise OutOfDeviceMemory(f"a buffer of {nbytes} bytes was asked for; the device allows {most}")
        flags, pages = self._cl.mem_flags.READ_WRITE, None
        if self.limits.kind == "cpu":  # a driver's own memory begins a little behind a page
            pages = np.empty(nbytes + mmap.PAGESIZE, np.uint8)
            pages = pages[-pages.ctypes.data % mmap.PAGESIZE :][:nbytes]
            flags |= self._cl.mem_flags.USE_HOST_PTR
        with self.guarded():
            return self._cl.Buffer(self._context, flags, nbytes, hostbuf=pages)

    def write(self, buffer: Any, data: NDArray[np.uint8], offset: int = 0) -> None:
        with self.guarded():
            self._cl.enqueue_copy(self.queue, buffer, data, dst_offset=offset, is_blocking=True)

    def read(self, buffer: Any) -> NDArray[np.uint8]:
        host = np.empty(buffer.size, np.uint8)
        with self.guarded():
            self._cl.enqueue_copy(self.queue, host, buffer, is_blocking=True)
        return host

    def copy(self, target: Any, source: Any) -> None:
        with self.guarded():
            self._cl.enqueue_copy(self.queue, target, source, byte_count=source.size).wait()

    def view(self, buffer: Any, offset: int, nbytes: int) -> Any:
        with self.guarded():
            return buffer.get_sub_region(offset, nbytes)

    def copy_at_edge(self, buffer: Any, edge: Edge) -> Any:
        """On CPUs a kernel works in this process's memory, whose pages can be protected."""
        if self.limits.kind != "cpu":
            return None
        pages, flags = pages_of(self.read(buffer), edge, self.base_alignment), self._cl.mem_flags
        with self.guarded():
            # It keeps the pages for as long as it is used itself.
            return self._cl.Buffer(self._context, flags.READ_WRITE | flags.USE_HOST_PTR, hostbuf=pages)

    def array(self, buffer: Any, dtype: str) -> NDArray[Any]:
        return self.read(buffer).view(DTYPES[dtype].array)

    def load(self, artifact: Artifact) -> Any:
        with self.guarded():
            program = self._cl.Program(self._context, [self._device], [artifact.code]).build()
            return self._cl.Kernel(program, artifact.entry)

    def enqueue(self, launch: BoundLaunch) -> Any:
        kernel, geometry = launch.kernel, launch.geometry
        given = len(launch.arguments) + bool(geometry.shared_bytes)
        if given != kernel.num_args:
            raise DeviceError(f"the kernel takes {kernel.num_args} arguments, not {given}")
        for position, argument in enumerate(launch.arguments):
            kernel.set_arg(position, argument)
        if geometry.shared_bytes:
            kernel.set_arg(len(launch.arguments), self._cl.LocalMemory(geometry.shared_bytes))
        if 0 in geometry.grid or 0 in geometry.block:
            raise DeviceError(f"a launch of nothing: grid {geometry.grid}, block {geometry.block}")
        total = tuple(grid * block for grid, block in zip(geometry.grid, geometry.block, strict=True))
        return self._cl.enqueue_nd_range_kernel(self.queue, kernel, total, geometry.block)

    def launch(self, launch: BoundLaunch) -> None:
        with self.guarded():
            self.enqueue(launch)

    def pollute(self) -> None:
        count, groups = min(MAX_POLLUTED_BYTES, int(self._device.local_mem_size)) // 16, 2 * (self.limits.sm_count or 1)
        with self.guarded():
            if self._pollute is None:
                self._pollute = self._cl.Program(self._context, _POLLUTE).build(cache_dir=False).pollute
            self._pollute(
                self.queue, (64 * groups,), (64,), next(LEFT_BEHIND), np.uint32(count), self._cl.LocalMemory(16 * count)
            )

    def once(self, launch: BoundLaunch | HostCall) -> float:
        return self._run([launch])

    def _run(self, launches: Sequence[BoundLaunch | HostCall]) -> float:
        """Runs launches to their end and returns their seconds: of kernels, which are in an in-order queue, the sum of
        their own, from profiling events; of calls, which do their work on the host, by its clock."""
        calls = [launch for launch in launches if not isinstance(launch, BoundLaunch)]
        assert len(calls) in (0, len(launches)), "calls are timed by the host's clock, and kernels by the device's"
        with self.guarded():
            events = [self.enqueue(launch) for launch in launches if isinstance(launch, BoundLaunch)]
            self.queue.finish()
            begun = time.perf_counter()
            for call in calls:
                call()
            called = time.perf_counter() - begun if calls else 0.0
            return called + sum(float(event.profile.end - event.profile.start) for event in events) * 1e-9

    def synchronize(self) -> None:
        with self.guarded():
            self.queue.finish()

    def sequence(self, launches: Sequence[BoundLaunch | HostCall]) -> Sequence[BoundLaunch | HostCall]:
        return tuple(launches)

    def times(self, sequences: Sequence[Sequence[BoundLaunch | HostCall]]) -> list[float]:
        return [self._run(sequence) for sequence in sequences]

    def free_bytes(self) -> int:
        return int(self._device.global_mem_size) // 4
