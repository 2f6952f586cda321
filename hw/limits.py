"""DeviceLimits, the resources of one block and of one multiprocessor of a device, and how many blocks of a kernel a
multiprocessor can hold at once. Occupancy is a feasibility test (zero means that it cannot be launched), and only a
hint about speed.

Particular devices are elsewhere: named products in `targets`, the devices of this machine in `probe`.

The rule of occupancy is the one of NVIDIA's occupancy calculator (``cuda_occupancy.h`` in the CUDA Toolkit; the CUDA
C++ Programming Guide, "Multiprocessor Level", describes the same resources):

* threads: a block takes ``ceil(threads / 32)`` warps, and the SM has ``max_warps_per_sm`` of them.
* registers: a warp takes ``registers * 32`` rounded up to the allocation unit (256), all from one of the
  SM's sub-partitions (4), each of which owns an equal share of the register file. So the SM holds
  ``floor(registers_per_sm / 4 / per_warp) * 4`` warps. The launch check against ``registers_per_block``
  counts the block's warps rounded up to a multiple of the sub-partitions: 80 registers and 800 threads
  (25 warps, counted as 28) do not launch, although 25 warps need only 64,000 of 65,536 registers.
* shared memory: a block takes what it asks for plus the driver's reserve (1 KiB from capability 8.0 on),
  rounded up to the allocation unit (128 bytes from 8.0 on).

AMD's GPUs follow the same rule: read wave for warp, SIMD for sub-partition, LDS for shared memory, and the granule of a
wave's vector registers for the allocation unit; LLVM counts the waves of a SIMD so (``getNumWavesPerEUWithNumVGPRs``).

Compared with ``cuOccupancyMaxActiveBlocksPerMultiprocessor`` on an H200 and with the calculator on every
capability of the table, the numbers are equal; so they are with LLVM's "Occupancy" of kernels for AMD.

Not modelled: named barriers (a kernel which uses several per block may hold fewer blocks from 9.0 on),
clusters, and a carve-out that the caller sets below the maximum.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from tunesmith.hw.errors import TunesmithError

Backend = Literal["cuda", "triton", "opencl"]
Kind = Literal["gpu", "cpu"]
Triple = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """Limits of one device; ``None`` means that the notion does not apply or is not known. No rule about it applies
    then: an OpenCL CPU device has no registers, so nothing is ever rejected for using too many.

    Terms are CUDA's; for OpenCL read work-group for block, work-item for thread, local memory for shared memory,
    compute unit for SM.

    Units: memory in bytes, registers in 32-bit registers, clocks in Hz, bandwidth in bytes/s.
    """

    name: str
    backend: Backend
    kind: Kind
    #: ``sm_90`` for CUDA, ``gfx942`` for AMD's devices; the device version string for OpenCL.
    arch: str
    max_threads_per_block: int
    max_block_dims: Triple
    max_grid_dims: Triple | None = None
    warp_size: int | None = None
    max_threads_per_sm: int | None = None
    max_warps_per_sm: int | None = None
    max_blocks_per_sm: int | None = None
    registers_per_sm: int | None = None
    registers_per_block: int | None = None
    max_registers_per_thread: int | None = None
    #: Registers are handed to a warp in multiples of this many.
    register_allocation_unit: int | None = None
    #: SM sub-partitions. The launch check rounds a block's warps up to a multiple of it, and a warp's
    #: registers come from one sub-partition's share of the register file.
    warp_allocation_granularity: int | None = None
    shared_per_sm: int | None = None
    #: Bytes that a block may use without opting in (48 KiB on every CUDA device since compute capability 2.0).
    shared_per_block: int | None = None
    #: Bytes that a block may use after opting in to more dynamic shared memory; excludes the reserved part.
    shared_per_block_optin: int | None = None
    #: Bytes that the driver takes for itself in each block (1 KiB from compute capability 8.0 on).
    shared_reserved_per_block: int | None = None
    shared_allocation_unit: int | None = None
    sm_count: int | None = None
    l2_bytes: int | None = None
    memory_bytes: int | None = None
    #: Twice the memory clock times the bus width, where the driver tells. A measured roof is in `roofline`.
    memory_bandwidth: float | None = None
    clock_hz: float | None = None
    memory_clock_hz: float | None = None
    #: Where the numbers came from: ``driver``, ``table: ...``, ``file ...``.
    source: str = ""


def as_triton(limits: DeviceLimits) -> DeviceLimits:
    """The same device, for tasks whose sources are Triton's."""
    return dataclasses.replace(limits, backend="triton")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_rate(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


_WANTED: Final[dict[str, tuple[Callable[[object], bool], str]]] = {
    "int": (_is_count, "a positive whole number"),
    "float": (_is_rate, "a positive number"),
    "Triple": (
        lambda value: isinstance(value, list) and len(value) == 3 and all(map(_is_count, value)),
        "a list of three positive whole numbers",
    ),
    "str": (lambda value: isinstance(value, str), "a text"),
    "Backend": (get_args(Backend).__contains__, "'cuda', 'triton' or 'opencl'"),
    "Kind": (get_args(Kind).__contains__, "'gpu' or 'cpu'"),
}
"""By the type of a field: which values of a file it takes, in words, too."""


def with_values(limits: DeviceLimits, values: Mapping[str, Any], where: str) -> DeviceLimits:
    """`limits` with the values of a file, by the names of the fields. `where` names the file in messages. Raises
    TunesmithError."""
    types = {field.name: str(field.type).removesuffix(" | None") for field in dataclasses.fields(limits)}
    for key, value in values.items():
        if key not in types:
            raise TunesmithError(f"{where} has the unknown key '{key}': the keys are {', '.join(types)}.")
        fits, wanted = _WANTED[types[key]]
        if not fits(value):
            raise TunesmithError(f"{where} gives {value!r} for '{key}': write {wanted}.")
    read: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    return dataclasses.replace(limits, **read)


Limiter = Literal[
    "threads_per_block",
    "registers_per_thread",
    "registers_per_block",
    "shared_per_block",
    "threads",
    "registers",
    "shared",
    "blocks",
]


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The share of one SM that a kernel configuration fills.

    `blocks_per_sm` is 0 where the configuration cannot be launched at all. On a device which states no limit per SM (an
    OpenCL CPU) it is 1 for whatever fits in a block, and `limiter` and `fraction` are None.
    """

    blocks_per_sm: int
    #: The resource with the smallest bound; of equal ones the first in the order of `Limiter`.
    limiter: Limiter | None
    #: Active warps over the warps the SM could hold, 0 to 1.
    fraction: float | None


def occupancy(limits: DeviceLimits, *, threads: int, registers: int, shared: int) -> Occupancy:
    """Explain one configuration: `threads` per block, `registers` per thread (0 where not known yet), `shared` bytes
    per block, static plus dynamic."""
    warps, most = -(-threads // (limits.warp_size or 1)), _max_warps(limits)
    bounds = _bounds(limits, threads, warps, registers, shared)
    limiter = min(bounds, key=lambda resource: bounds[resource], default=None)
    # Nothing per SM is known: a block which may be launched is one block, and no more can be claimed.
    blocks = 1 if limiter is None else bounds[limiter]
    return Occupancy(blocks, limiter, None if limits.warp_size is None or most is None else blocks * warps / most)


def _bounds(limits: DeviceLimits, threads: int, warps: int, registers: int, shared: int) -> dict[Limiter, int]:
    """Blocks that each resource would allow on its own, where it stops any: 0 for a failing launch check."""
    partitions, reserved = limits.warp_allocation_granularity or 1, limits.shared_reserved_per_block or 0
    per_warp = _round_up(registers * (limits.warp_size or 1), limits.register_allocation_unit or 1)
    taken = _round_up(shared + reserved, limits.shared_allocation_unit or 1)
    checks: dict[Limiter, bool] = {
        "threads_per_block": threads <= limits.max_threads_per_block,
        "registers_per_thread": registers <= (limits.max_registers_per_thread or math.inf),
        "registers_per_block": per_warp * _round_up(warps, partitions) <= (limits.registers_per_block or math.inf),
        "shared_per_block": taken <= (limits.shared_per_block_optin or limits.shared_per_block or math.inf) + reserved,
    }
    bounds: dict[Limiter, int] = {resource: 0 for resource, fits in checks.items() if not fits}
    if (most := _max_warps(limits)) is not None:
        bounds["threads"] = most // warps
    if limits.registers_per_sm is not None and per_warp:
        bounds["registers"] = limits.registers_per_sm // partitions // per_warp * partitions // warps
    if limits.shared_per_sm is not None and taken:
        bounds["shared"] = limits.shared_per_sm // taken
    if limits.max_blocks_per_sm is not None:
        bounds["blocks"] = limits.max_blocks_per_sm
    return bounds


def _max_warps(limits: DeviceLimits) -> int | None:
    """Warps an SM holds. Threads and warps state the same limit; a file may override either one."""
    stated = limits.max_warps_per_sm
    if limits.max_threads_per_sm is None or limits.warp_size is None:
        return stated
    by_threads = limits.max_threads_per_sm // limits.warp_size
    return by_threads if stated is None else min(stated, by_threads)


def _round_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit
