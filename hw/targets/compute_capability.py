"""The limits that follow from a GPU's compute capability alone.

Owns the table and nothing else. What differs between products of one capability (how many SMs, how much
memory, which clocks) is in `products`.

Sources, by column of the table:

* Blocks, warps, registers and shared memory: "Technical Specifications per Compute Capability" in the
  CUDA C++ Programming Guide. Its release 12 has 7.0 and 7.2, which release 13 no longer lists; release
  13 (where the tables are called "Device and Streaming Multiprocessor Information" and "Memory
  Information per Compute Capability") has 7.5 to 12.x, and gives 12.0 and 12.1 one common column.
* Allocation units and the number of SM sub-partitions: the tables inside the CUDA Toolkit's occupancy
  header, ``cuda_occupancy.h`` (release 13). Its per-capability block limits agree with the guide's.
* Reserved shared memory: the guide says 1 KiB for each block from capability 8.0 on, which is also why
  the opt-in limit is the SM's shared memory less 1 KiB there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tunesmith.hw.limits import DeviceLimits

KIB: Final = 1024

GUIDE_12: Final = "table: CUDA C++ Programming Guide 12, Technical Specifications per Compute Capability"
GUIDE_13: Final = "table: CUDA C++ Programming Guide 13, Technical Specifications per Compute Capability"

# The same for every capability from 7.0 to 12.1, by both sources above.
WARP_SIZE: Final = 32
MAX_THREADS_PER_BLOCK: Final = 1024
MAX_BLOCK_DIMS: Final = (1024, 1024, 64)
MAX_GRID_DIMS: Final = (2**31 - 1, 65535, 65535)
REGISTERS_PER_SM: Final = 65536
REGISTERS_PER_BLOCK: Final = 65536
# The occupancy header tests against 256, but the instruction set has 255 (the guide's number) plus RZ,
# so no compiler ever reports 256.
MAX_REGISTERS_PER_THREAD: Final = 255
REGISTER_ALLOCATION_UNIT: Final = 256
SM_SUB_PARTITIONS: Final = 4
STATIC_SHARED_PER_BLOCK: Final = 48 * KIB


@dataclass(frozen=True, slots=True)
class _Row:
    """What varies between capabilities. Shared memory in KiB, its allocation unit in bytes."""

    blocks: int
    warps: int
    shared_kib: int
    reserved_kib: int
    shared_unit: int
    source: str


_TABLE: Final[dict[str, _Row]] = {
    "7.0": _Row(32, 64, 96, 0, 256, GUIDE_12),
    "7.2": _Row(32, 64, 96, 0, 256, GUIDE_12),
    "7.5": _Row(16, 32, 64, 0, 256, GUIDE_13),
    "8.0": _Row(32, 64, 164, 1, 128, GUIDE_13),
    "8.6": _Row(16, 48, 100, 1, 128, GUIDE_13),
    "8.7": _Row(16, 48, 164, 1, 128, GUIDE_13),
    "8.9": _Row(24, 48, 100, 1, 128, GUIDE_13),
    "9.0": _Row(32, 64, 228, 1, 128, GUIDE_13),
    "10.0": _Row(32, 64, 228, 1, 128, GUIDE_13),
    "10.3": _Row(32, 64, 228, 1, 128, GUIDE_13),
    "11.0": _Row(24, 48, 228, 1, 128, GUIDE_13),
    "12.0": _Row(24, 48, 100, 1, 128, GUIDE_13),
    "12.1": _Row(24, 48, 100, 1, 128, GUIDE_13 + " (column 12.x)"),
}

CAPABILITIES: Final = tuple(_TABLE)


def shared_allocation_unit(major: int) -> int:
    """Bytes in which shared memory is allocated; source: ``cuda_occupancy.h``."""
    return 256 if major < 8 else 128


def arch_name(capability: str) -> str:
    """``9.0`` becomes ``sm_90``, the compiler's name."""
    return "sm_" + capability.replace(".", "")


def limits_of(capability: str) -> DeviceLimits:
    """Return the limits of a capability such as ``9.0``; product-specific fields stay ``None``.

    Raises KeyError for a capability outside `CAPABILITIES`; `targets.resolve_target` is what turns a
    user's text into one.
    """
    row = _TABLE[capability]
    arch = arch_name(capability)
    return DeviceLimits(
        name=f"compute capability {capability}",
        backend="cuda",
        kind="gpu",
        arch=arch,
        max_threads_per_block=MAX_THREADS_PER_BLOCK,
        max_block_dims=MAX_BLOCK_DIMS,
        max_grid_dims=MAX_GRID_DIMS,
        warp_size=WARP_SIZE,
        max_threads_per_sm=row.warps * WARP_SIZE,
        max_warps_per_sm=row.warps,
        max_blocks_per_sm=row.blocks,
        registers_per_sm=REGISTERS_PER_SM,
        registers_per_block=REGISTERS_PER_BLOCK,
        max_registers_per_thread=MAX_REGISTERS_PER_THREAD,
        register_allocation_unit=REGISTER_ALLOCATION_UNIT,
        warp_allocation_granularity=SM_SUB_PARTITIONS,
        shared_per_sm=row.shared_kib * KIB,
        shared_per_block=STATIC_SHARED_PER_BLOCK,
        shared_per_block_optin=(row.shared_kib - row.reserved_kib) * KIB,
        shared_reserved_per_block=row.reserved_kib * KIB,
        shared_allocation_unit=row.shared_unit,
        source=row.source,
    )
