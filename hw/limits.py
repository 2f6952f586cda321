"""DeviceLimits: the resources of one block and of one multiprocessor of a device.

Particular devices are elsewhere: named products in `targets`, the devices of this machine in `probe`.
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


def _is_triple(value: object) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(map(_is_count, value))


_WANTED: Final[dict[str, tuple[Callable[[object], bool], str]]] = {
    "int": (_is_count, "a positive whole number"),
    "float": (_is_rate, "a positive number"),
    "Triple": (_is_triple, "a list of three positive whole numbers"),
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
