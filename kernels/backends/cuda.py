"""CUDA devices through CuPy: load a cubin, launch it, time sequences of launches as replayed graphs.

Compiling is `tunesmith.kernels.backends.nvrtc`.
"""

from __future__ import annotations

import statistics
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, ClassVar

import numpy as np
from cuda.bindings import driver as bindings
from numpy.typing import NDArray

from tunesmith.hw.drivers.cuda import read_uuid
from tunesmith.hw.drivers.nvml import with_prefix
from tunesmith.hw.limits import DeviceLimits
from tunesmith.kernels.backends import (
    BEYOND_EDGE,
    LEFT_BEHIND,
    BoundLaunch,
    Device,
    DeviceError,
    Edge,
    HostCall,
    OutOfDeviceMemory,
)
from tunesmith.kernels.backends.nvrtc import assemble
from tunesmith.kernels.build.artifact import Artifact, CompiledCall
from tunesmith.kernels.build.machine_code import MARKS, constant_variables
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.task import Geometry

# Errors after which the context is lost and every later call fails (CUDA driver and runtime API, "sticky" errors):
# illegal address, launch timeout, hardware stack error, illegal instruction, misaligned address, invalid address
# space, invalid program counter, launch failure, device assert.
STICKY = frozenset({700, 702, 710, 714, 715, 716, 717, 718, 719})
OUT_OF_MEMORY = 2
BOUNDARY = 1 << 32
"""Multiples of it are addresses at which arithmetic of 32 bits goes wrong."""
LEAD_SECONDS = 50e-6
"""How long the device is kept busy ahead of a timed sequence: longer than the host takes to hand over the sequence."""
EMPTY_LAUNCHES = (8, 24)
EMPTY_ROUNDS = 40
"""Sequences of kernels that do nothing, and how often they run, to learn what a sequence takes besides its kernels."""
POLLUTING_BLOCK = (1024, 1, 1)
_OWN = b"""
.version 5.0
.target sm_50
.address_size 64
.visible .entry spin(.param .u64 nanoseconds)
{
    .reg .u64 %begin, %now, %limit;
    .reg .pred %waiting;
    ld.param.u64 %limit, [nanoseconds];
    mov.u64 %begin, %globaltimer;
AGAIN:
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %begin;
    setp.lt.u64 %waiting, %now, %limit;
    @%waiting bra AGAIN;
    ret;
}
.extern .shared .align 16 .b8 all[];
.visible .entry pollute(.param .u32 bytes, .param .u64 first, .param .u64 second)
{
    .local .align 16 .b8 mine[512];
    .reg .u32 %at, %end, %step;
    .reg .u64 %own, %last, %low, %high;
    .reg .pred %more;
    ld.param.u64 %low, [first];
    ld.param.u64 %high, [second];
    mov.u64 %own, mine;
    cvta.local.u64 %own, %own;
    add.u64 %last, %own, 512;
LOCAL:
    st.volatile.v2.u64 [%own], {%low, %high};
    add.u64 %own, %own, 16;
    setp.lt.u64 %more, %own, %last;
    @%more bra LOCAL;
    mov.u32 %at, all;
    ld.param.u32 %end, [bytes];
    add.u32 %end, %end, %at;
    mov.u32 %step, %tid.x;
    mad.lo.u32 %at, %step, 16, %at;
    mov.u32 %step, %ntid.x;
    shl.b32 %step, %step, 4;
SHARED:
    setp.ge.u32 %more, %at, %end;
    @%more ret;
    st.volatile.shared.v2.u64 [%at], {%low, %high};
    add.u32 %at, %at, %step;
    bra SHARED;
}
\0"""
"""`spin` waits on the device and leaves its caches as they are; `pollute` fills memory of its threads and blocks. The
driver itself compiles them, so that a process needs no compiler for them, where the driver is able to."""
_SCALARS: dict[str, Any] = {"fp32": np.float32, "u1": np.int32, "i32": np.int32, "i64": np.int64, "u64": np.uint64}
"""Numbers as Triton's kernels take them."""
MAX_STATIC_SHARED = 48 << 10
"""Bytes that a block may use without asking for more (CUDA C++ Programming Guide, "Shared Memory")."""
NO_JIT = frozenset({218, 221, 222, 223})
"""The driver cannot compile PTX (CUDA driver API): invalid or too new for it, no compiler found, or switched off."""


def _require_room(buffer: Any, offset: int, nbytes: int) -> None:
    if not 0 <= offset <= offset + nbytes <= buffer.nbytes:
        raise DeviceError(f"bytes {offset} to {offset + nbytes} do not lie in a buffer of {buffer.nbytes}")


class _Mapping:
    """Memory of its own for `nbytes` bytes between addresses that nothing else gets (CUDA driver API, "Virtual Memory
    Management"): `size` bytes from `start` on. Ends with its last use. at: a byte of the `nbytes`, which then begin
    `offset` bytes behind `start`, that lies at a multiple of 4 GiB. Raises `DeviceError`, `OutOfDeviceMemory`."""

    def __init__(self, nbytes: int, index: int, at: int | None = None) -> None:
        memory_type, wanted = bindings.CUmemAllocationType, bindings.CUmemAllocationProp()
        wanted.type = memory_type.CU_MEM_ALLOCATION_TYPE_PINNED
        wanted.location.type = bindings.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        wanted.location.id = index
        flag = bindings.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        grain = int(_driven(bindings.cuMemGetAllocationGranularity(wanted, flag)))
        before = -(-(at or 0) // grain) * grain
        self.size, self.offset = before - (-(nbytes - (at or 0)) // grain) * grain, before - (at or 0)
        self._access = bindings.CUmemAccessDesc()
        self._access.location = wanted.location
        memory = _driven(bindings.cuMemCreate(self.size, wanted, 0))
        try:
            room = self.size + 2 * BEYOND_EDGE + (0 if at is None else BOUNDARY)
            reserved = int(_driven(bindings.cuMemAddressReserve(room, 0, 0, 0)))
            self.start = reserved + BEYOND_EDGE
            if at is not None:
                self.start += -(self.start + before) % BOUNDARY
            # Also where one of the next calls fails.
            weakref.finalize(self, _unmap, self.start, self.size, reserved, room)
            _driven(bindings.cuMemMap(self.start, self.size, 0, memory, 0))
        finally:
            # It lasts for as long as it is mapped.
            bindings.cuMemRelease(memory)
        self.allow(writable=True)

    def allow(self, *, writable: bool) -> None:
        """From now on it can be read, or written as well."""
        flags = bindings.CUmemAccess_flags
        self._access.flags = (
            flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE if writable else flags.CU_MEM_ACCESS_FLAGS_PROT_READ
        )
        _driven(bindings.cuMemSetAccess(self.start, self.size, [self._access], 1))


def _unmap(start: int, size: int, reserved: int, room: int) -> None:
    # Their answers do not matter: where a kernel has ended the context, the memory is gone with it. Copies that nobody
    # has waited for may be under way.
    bindings.cuCtxSynchronize()
    bindings.cuMemUnmap(start, size)
    bindings.cuMemAddressFree(reserved, room)


def _driven(answer: Any) -> Any:
    """The result of a call of the driver API: nothing, one value, or several."""
    status, *values = answer
    if status.value == OUT_OF_MEMORY:
        raise OutOfDeviceMemory(status.name)
    if status.value:
        raise DeviceError(status.name, sticky=status.value in STICKY)
    return tuple(values) if len(values) > 1 else values[0] if values else None


class TritonFunction:
    """A kernel of Triton that is launched with a task's arguments as CuPy launches others: with the arguments that its
    compiler kept, and its block, cluster and scratch memory. function: CuPy's, of a cubin."""

    def __init__(self, function: Any, call: CompiledCall) -> None:
        self.ptr, self._function, self._call = function.ptr, function, call
        # A captured graph goes on using the memory with which it was captured.
        self._scratch: list[Any] = []
        if call.shared_bytes > MAX_STATIC_SHARED:
            attribute = bindings.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            _driven(bindings.cuFuncSetAttribute(self.ptr, attribute, call.shared_bytes))

    def __call__(
        self, grid: Sequence[int], block: Sequence[int], arguments: Sequence[Any], *, shared_mem: int = 0, stream: Any
    ) -> None:
        """Enqueues a launch. block and shared_mem are the template's, and the compiler's own go before."""
        import cupy

        call = self._call
        passed = [_passed(arguments[place], kind) for place, kind in call.arguments]
        blocks = int(np.prod(grid)) * call.cluster
        if (needed := blocks * call.scratch_bytes) and (not self._scratch or self._scratch[-1].nbytes < needed):
            self._scratch.append(cupy.empty(needed, cupy.uint8))
        scratch = self._scratch[-1].data.ptr if self._scratch else 0
        passed += [np.uint64(scratch), np.uint64(0)]
        if call.cluster == 1 and not call.cooperative:
            self._function(grid, (call.threads, 1, 1), tuple(passed), shared_mem=call.shared_bytes, stream=stream)
            return
        config = bindings.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid[0] * call.cluster, *grid[1:]
        config.blockDimX, config.blockDimY, config.blockDimZ = call.threads, 1, 1
        config.sharedMemBytes, config.hStream = call.shared_bytes, stream.ptr
        config.attrs = _attributes(call)
        config.numAttrs = len(config.attrs)
        held = [np.array([one]) for one in passed]
        addresses = np.array([one.ctypes.data for one in held], np.uint64)
        _driven(bindings.cuLaunchKernelEx(config, self.ptr, addresses.ctypes.data, 0))


def _passed(value: Any, kind: str) -> Any:
    """An argument as the kernel's parameter holds it: an address, or a number of the type that Triton chose."""
    if kind.startswith("*"):
        return value if isinstance(value, np.uint64) else np.uint64(value.data.ptr)
    return _SCALARS[kind](value)


def _attributes(call: CompiledCall) -> list[Any]:
    found, ids = [], bindings.CUlaunchAttributeID
    if call.cluster > 1:
        attribute = bindings.CUlaunchAttribute()
        attribute.id = ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = call.cluster, 1, 1
        found.append(attribute)
    if call.cooperative:
        attribute = bindings.CUlaunchAttribute()
        attribute.id, attribute.value.cooperative = ids.CU_LAUNCH_ATTRIBUTE_COOPERATIVE, 1
        found.append(attribute)
    return found


def callable_kernel(module: Any, artifact: Artifact) -> Any:
    """The kernel of a loaded module, to be launched as a function of CuPy's."""
    function = module.get_function(artifact.entry)
    return function if artifact.call is None else TritonFunction(function, artifact.call)


@cache
def _stream(index: int) -> Any:
    """The one stream of this process on a GPU. On several, also one after the other, launches come to take longer:
    0.18 us each on an H200 where they do nothing, 0.36 where they read and write (docs/trust.md, "Two speeds")."""
    import cupy

    return cupy.cuda.Stream(non_blocking=True)


class CudaDevice(Device):
    backend: ClassVar[str] = "cuda"
    has_graph_overhead = True
    loads_quickly = True
    sample_seconds = 0.15e-3

    def __init__(self, limits: DeviceLimits, index: int = 0) -> None:
        import cupy
        from cupy_backends.cuda.api import driver, runtime

        self.cupy, self._driver, self._runtime = cupy, driver, runtime
        self.xp = cupy
        self.limits, self.index = limits, index
        with self.guarded():
            cupy.cuda.Device(index).use()
            properties = runtime.getDeviceProperties(index)
            # As NVML writes it, by which telemetry finds the GPU. Not from `properties`, where CuPy cuts it off at its
            # first zero byte.
            self.uuid = with_prefix(read_uuid(bindings, index))
            self.name = properties["name"].decode()
            self.stream = _stream(index)
            # Array operations (copies, comparisons) and launches share one stream, so they are ordered.
            self.stream.use()
        # Slices start anywhere; 16 bytes are the widest load of a thread.
        self.base_alignment = 16
        self.cold_bytes = 3 * (limits.l2_bytes or 64 << 20)
        self._own: Any = None
        self._graph_overhead: float | None = None
        self._events: list[tuple[Any, Any]] = []

    def lead(self) -> None:
        """Keeps the device busy for `LEAD_SECONDS`."""
        self._own_kernel("spin")((1, 1, 1), (1, 1, 1), (np.uint64(LEAD_SECONDS * 1e9),), stream=self.stream)

    def _own_kernel(self, name: str) -> Any:
        if self._own is None:
            module = self.cupy.cuda.function.Module()
            try:
                module.load(_OWN)
            except self._driver.CUDADriverError as error:
                if error.status not in NO_JIT:
                    raise
                code = assemble(_OWN.decode().rstrip("\0"), self.limits.arch)
                if not isinstance(code, bytes):
                    raise DeviceError(f"the kernel that waits cannot be assembled: {code}") from error
                module.load(code)
            self._own = module
        return self._own.get_function(name)

    @property
    def graph_overhead_seconds(self) -> float:
        """Seconds of a timed piece of work that are its own start and end, not its kernels': about 2.4 us on an H200,
        2.3 % of the shortest sample that a search accepts. From two sequences of kernels that do nothing, as the line
        through them at zero kernels."""
        if self._graph_overhead is None:
            with self.guarded():
                nothing = BoundLaunch(self._own_kernel("spin"), Geometry((1, 1, 1), (1, 1, 1)), (np.uint64(0),))
            few, many = EMPTY_LAUNCHES
            graphs = [self.sequence([nothing] * count) for count in EMPTY_LAUNCHES]
            found = []
            for _ in range(EMPTY_ROUNDS):
                short, long = self._timed([partial(graph.launch, self.stream) for graph in graphs])
                found.append(short - few * (long - short) / (many - few))
            # The clock's ticks are a fifth of this time: a median would stay on one of them, a mean does not.
            middle = sorted(found)[EMPTY_ROUNDS // 4 : -EMPTY_ROUNDS // 4]
            self._graph_overhead = max(0.0, statistics.fmean(middle))
        return self._graph_overhead

    def _kernels_share(self, seconds: float) -> float:
        # A sequence that takes no longer than its edges counts half, as a time cannot be zero.
        return max(seconds - self.graph_overhead_seconds, seconds / 2)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Turns CUDA's errors into `DeviceError`."""
        try:
            yield
        except self.cupy.cuda.memory.OutOfMemoryError as error:
            raise OutOfDeviceMemory(str(error)) from error
        except (self._driver.CUDADriverError, self._runtime.CUDARuntimeError) as error:
            if error.status == OUT_OF_MEMORY:
                raise OutOfDeviceMemory(str(error)) from error
            raise DeviceError(str(error), sticky=error.status in STICKY) from error

    def allocate(self, nbytes: int) -> Any:
        with self.guarded():
            return self.cupy.empty(nbytes, self.cupy.uint8)

    def allocate_across(self, nbytes: int, at: int) -> Any:
        mapping = _Mapping(nbytes, self.cupy.cuda.Device().id, at)
        return self._mapped(mapping)[mapping.offset : mapping.offset + nbytes]

    def _mapped(self, mapping: _Mapping) -> Any:
        """All of its memory as an array, which keeps the mapping for as long as it is used itself."""
        owner = self.cupy.cuda.UnownedMemory(mapping.start, mapping.size, mapping)
        return self.cupy.ndarray((mapping.size,), np.uint8, self.cupy.cuda.MemoryPointer(owner, 0))

    def write(self, buffer: Any, data: Any, offset: int = 0) -> None:
        _require_room(buffer, offset, data.nbytes)
        with self.guarded():
            buffer[offset : offset + data.nbytes] = self.cupy.asarray(data)

    def read(self, buffer: Any) -> NDArray[np.uint8]:
        with self.guarded():
            host: NDArray[np.uint8] = buffer.get()
        return host

    def copy(self, target: Any, source: Any) -> None:
        with self.guarded():
            target[: source.nbytes] = source

    def view(self, buffer: Any, offset: int, nbytes: int) -> Any:
        _require_room(buffer, offset, nbytes)
        return buffer[offset : offset + nbytes]

    def copy_at_edge(self, buffer: Any, edge: Edge) -> Any:
        """In memory of the virtual memory API, between reserved addresses behind which there is nothing."""
        mapping = _Mapping(buffer.nbytes, self.cupy.cuda.Device().id)
        whole, spare = self._mapped(mapping), mapping.size - buffer.nbytes
        start = 0 if edge == "start" else spare // self.base_alignment * self.base_alignment
        array = whole[start : start + buffer.nbytes]
        with self.guarded():
            # A NaN of every float type, where alignment leaves something over.
            whole[...] = 0xFF
            array[...] = buffer
            self.stream.synchronize()
        if edge == "read-only":
            mapping.allow(writable=False)
        return array

    def array(self, buffer: Any, dtype: str) -> Any:
        return buffer.view(DTYPES[dtype].array)

    def load(self, artifact: Artifact) -> Any:
        with self.guarded():
            module = self.cupy.cuda.function.Module()
            module.load(artifact.code)
            return callable_kernel(module, artifact)

    def constants(self, kernel: Any, artifact: Artifact) -> bytes:
        found = []
        for name in constant_variables(artifact.code):
            module = _driven(bindings.cuFuncGetModule(kernel.ptr))
            status, start, nbytes = bindings.cuModuleGetGlobal(module, name.encode())
            if not status.value:
                found.append(np.empty(nbytes, np.uint8))
                _driven(bindings.cuMemcpyDtoH(found[-1].ctypes.data, start, nbytes))
        return b"".join(one.tobytes() for one in found)

    def load_marked(self, artifact: Artifact) -> tuple[Any, Any]:
        with self.guarded():
            module = self.cupy.cuda.function.Module()
            module.load(artifact.code)
            start, nbytes = _driven(bindings.cuModuleGetGlobal(module.ptr, MARKS.encode()))
            # The array keeps the module for as long as it is used itself.
            owner = self.cupy.cuda.UnownedMemory(int(start), nbytes, module)
            array = self.cupy.ndarray((nbytes,), np.uint8, self.cupy.cuda.MemoryPointer(owner, 0))
            array[...] = 0
            return callable_kernel(module, artifact), array

    def enqueue(self, launch: BoundLaunch | HostCall) -> None:
        if not isinstance(launch, BoundLaunch):
            launch()
            return
        geometry = launch.geometry
        if 0 in geometry.grid or 0 in geometry.block:
            # CuPy would do nothing, without a word.
            raise DeviceError(f"a launch of nothing: grid {geometry.grid}, block {geometry.block}")
        static = self._driver.funcGetAttribute(self._driver.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, launch.kernel.ptr)
        if geometry.shared_bytes and static + geometry.shared_bytes > (self.limits.shared_per_block or 48 << 10):
            self._driver.funcSetAttribute(
                launch.kernel.ptr, self._driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, geometry.shared_bytes
            )
        launch.kernel(
            geometry.grid, geometry.block, launch.arguments, shared_mem=geometry.shared_bytes, stream=self.stream
        )

    def launch(self, launch: BoundLaunch) -> None:
        with self.guarded():
            self.enqueue(launch)

    def pollute(self) -> None:
        most, pattern = self.limits.shared_per_block_optin or 48 << 10, next(LEFT_BEHIND).view(np.uint64)
        with self.guarded():
            kernel = self._own_kernel("pollute")
            self._driver.funcSetAttribute(
                kernel.ptr, self._driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, most
            )
            grid = (2 * (self.limits.sm_count or 1), 1, 1)
            # With all shared memory only one block fits a multiprocessor: half of its threads' local memory.
            for shared in (0, most):
                given = (np.uint32(shared), *pattern)
                kernel(grid, POLLUTING_BLOCK, given, shared_mem=shared, stream=self.stream)

    def once(self, launch: BoundLaunch | HostCall) -> float:
        (seconds,) = self._timed([lambda: self.enqueue(launch)])
        return self._kernels_share(seconds)

    def times(self, sequences: Sequence[Any]) -> list[float]:
        pieces = [partial(graph.launch, self.stream) for graph in sequences]
        return [self._kernels_share(seconds) for seconds in self._timed(pieces)]

    def _timed(self, pieces: Sequence[Callable[[], None]]) -> list[float]:
        """The seconds of each piece of work, which are handed over together."""
        Event, elapsed = self.cupy.cuda.Event, self.cupy.cuda.get_elapsed_time
        with self.guarded():
            while len(self._events) < len(pieces):
                self._events.append((Event(), Event()))
            # While the device is busy, everything gets in line: no clock runs while the device waits for the host.
            self.lead()
            for piece, (start, end) in zip(pieces, self._events, strict=False):
                start.record(self.stream)
                piece()
                end.record(self.stream)
            self._events[len(pieces) - 1][1].synchronize()
            return [elapsed(start, end) * 1e-3 for start, end in self._events[: len(pieces)]]

    def synchronize(self) -> None:
        with self.guarded():
            self.stream.synchronize()

    @contextmanager
    def foreign_code(self) -> Iterator[None]:
        # On its exit CuPy's `with stream` makes the default stream current, not the stream that `use` had made current.
        self.stream.use()
        try:
            yield
        finally:
            self.stream.use()

    def reset_cache(self) -> None:
        (status,) = bindings.cuCtxResetPersistingL2Cache()
        # Devices before compute capability 8.0 have no persisting lines, and say so.
        if status not in (bindings.CUresult.CUDA_SUCCESS, bindings.CUresult.CUDA_ERROR_NOT_SUPPORTED):
            raise DeviceError(f"cuCtxResetPersistingL2Cache answers with {status.name}")

    def sequence(self, launches: Sequence[BoundLaunch | HostCall]) -> Any:
        """A captured graph: one submission for all launches, so that the gaps between them are the device's own."""
        with self.guarded():
            self.stream.begin_capture()
            try:
                for launch in launches:
                    self.enqueue(launch)
            finally:
                graph = self.stream.end_capture()
            graph.upload(self.stream)
        return graph

    def trim(self) -> None:
        with self.guarded():
            self.cupy.get_default_memory_pool().free_all_blocks()

    def free_bytes(self) -> int:
        with self.guarded():
            free, _total = self._runtime.memGetInfo()
            pooled = self.cupy.get_default_memory_pool().free_bytes()
        return int(free + pooled)
