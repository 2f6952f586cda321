"""How many blocks of a kernel one SM can hold at once, and which resource stops the next one.

Owns the arithmetic, once, over numpy arrays, so that pruning a million configurations and explaining a
single one agree. It does not know devices (`limits`) nor what makes a kernel fast: occupancy is a
feasibility test (zero means that it cannot be launched), and only a hint about speed.

The rule is the one of NVIDIA's occupancy calculator (``cuda_occupancy.h`` in the CUDA Toolkit; the CUDA
C++ Programming Guide, "Multiprocessor Level", describes the same resources):

* threads: a block takes ``ceil(threads / 32)`` warps, and the SM has ``max_warps_per_sm`` of them.
* registers: a warp takes ``registers * 32`` rounded up to the allocation unit (256), all from one of the
  SM's sub-partitions (4), each of which owns an equal share of the register file. So the SM holds
  ``floor(registers_per_sm / 4 / per_warp) * 4`` warps. The launch check against ``registers_per_block``
  counts the block's warps rounded up to a multiple of the sub-partitions: 80 registers and 800 threads
  (25 warps, counted as 28) do not launch, although 25 warps need only 64,000 of 65,536 registers.
* shared memory: a block takes what it asks for plus the driver's reserve (1 KiB from capability 8.0 on),
  rounded up to the allocation unit (128 bytes from 8.0 on).

Compared with ``cuOccupancyMaxActiveBlocksPerMultiprocessor`` on an H200 and with the calculator on every
capability of the table, the numbers are equal.

Not modelled: named barriers (a kernel which uses several per block may hold fewer blocks from 9.0 on),
clusters, and a carve-out that the caller sets below the maximum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tunesmith.hw.limits import DeviceLimits

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
Counts = NDArray[np.int64]

#: Stands for "this resource stops nothing"; more than any SM could hold.
_UNBOUNDED: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Occupancy:
    """What one SM holds of one kernel configuration.

    `blocks_per_sm` is 0 where the configuration cannot be launched at all. On a device which states no
    limit per SM (an OpenCL CPU) it is 1 for whatever fits in a block, `limiter` is None, and
    `active_warps` and `fraction` are None.
    """

    blocks_per_sm: int
    active_warps: int | None
    #: Active warps over the warps the SM could hold, 0 to 1.
    fraction: float | None
    #: The resource with the smallest bound; of equal ones the first in the order of `Limiter`.
    limiter: Limiter | None
    #: Blocks that each resource would allow on its own; None where it stops nothing. The ``..._per_...``
    #: ones are launch checks: 0 where the check fails, None where it passes.
    bounds: tuple[tuple[Limiter, int | None], ...]

    def bound(self, resource: Limiter) -> int | None:
        """Blocks that `resource` alone would allow, or None where it stops nothing."""
        return dict(self.bounds)[resource]

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary of JSON types."""
        return {
            "blocks_per_sm": self.blocks_per_sm,
            "active_warps": self.active_warps,
            "fraction": self.fraction,
            "limiter": self.limiter,
            "bounds": dict(self.bounds),
        }


def blocks_per_sm(limits: DeviceLimits, threads: ArrayLike, registers: ArrayLike, shared: ArrayLike) -> Counts:
    """Blocks that one SM holds, for arrays of configurations (int64, the broadcast shape).

    `threads` per block (at least 1), `registers` per thread (0 where not known yet), `shared` bytes per
    block, static plus dynamic. 0 means that the configuration cannot be launched. Raises ValueError for a
    thread count below 1 or a negative number.
    """
    return _smallest(limits, _bounds(limits, threads, registers, shared))


def occupancy(limits: DeviceLimits, *, threads: int, registers: int, shared: int) -> Occupancy:
    """Explain one configuration; the arguments are those of `blocks_per_sm`."""
    bounds = _bounds(limits, threads, registers, shared)
    blocks = int(_smallest(limits, bounds))
    as_ints = {resource: int(bound) for resource, bound in bounds.items()}
    tightest = min(as_ints, key=lambda resource: as_ints[resource])
    limiter = None if as_ints[tightest] == _UNBOUNDED else tightest
    warp_size, max_warps = limits.warp_size, _max_warps(limits)
    active_warps = None if warp_size is None else blocks * -(-threads // warp_size)
    return Occupancy(
        blocks_per_sm=blocks,
        active_warps=active_warps,
        fraction=None if active_warps is None or max_warps is None else active_warps / max_warps,
        limiter=limiter,
        bounds=tuple((name, None if n == _UNBOUNDED else n) for name, n in as_ints.items()),
    )


def _smallest(limits: DeviceLimits, bounds: dict[Limiter, Counts]) -> Counts:
    blocks = np.asarray(np.minimum.reduce(list(bounds.values())), dtype=np.int64)
    # Nothing per SM is known: a block which may be launched is one block, and no more can be claimed.
    return np.asarray(np.where(blocks == _UNBOUNDED, 1, blocks), dtype=np.int64)


def _bounds(limits: DeviceLimits, threads: ArrayLike, registers: ArrayLike, shared: ArrayLike) -> dict[Limiter, Counts]:
    t, r, s = np.broadcast_arrays(
        np.asarray(threads, dtype=np.int64),
        np.asarray(registers, dtype=np.int64),
        np.asarray(shared, dtype=np.int64),
    )
    if t.size and (t.min() < 1 or r.min() < 0 or s.min() < 0):
        raise ValueError("threads must be at least 1, registers and shared at least 0")
    free = np.full(t.shape, _UNBOUNDED, dtype=np.int64)
    warps = _ceil_div(t, limits.warp_size or 1)

    def launch_check(fits: NDArray[np.bool_]) -> Counts:
        return np.asarray(np.where(fits, _UNBOUNDED, 0), dtype=np.int64)

    threads_fit = launch_check(t <= limits.max_threads_per_block)
    max_registers = limits.max_registers_per_thread
    registers_fit = free if max_registers is None else launch_check(r <= max_registers)
    block_registers_fit, by_registers = _register_bounds(limits, warps, r, free)
    block_shared_fits, by_shared = _shared_bounds(limits, s, free)
    max_warps = _max_warps(limits)
    by_blocks = limits.max_blocks_per_sm
    return {
        "threads_per_block": threads_fit,
        "registers_per_thread": registers_fit,
        "registers_per_block": block_registers_fit,
        "shared_per_block": block_shared_fits,
        "threads": free if max_warps is None else max_warps // warps,
        "registers": by_registers,
        "shared": by_shared,
        "blocks": free if by_blocks is None else np.full(t.shape, by_blocks, dtype=np.int64),
    }


def _register_bounds(limits: DeviceLimits, warps: Counts, registers: Counts, free: Counts) -> tuple[Counts, Counts]:
    """The launch check of a block's registers, and how many blocks the register file holds."""
    warp_size, partitions = limits.warp_size, limits.warp_allocation_granularity
    if warp_size is None or partitions is None:
        return free, free
    per_warp = _round_up(registers * warp_size, limits.register_allocation_unit or 1)
    block_fits, by_registers = free, free
    if limits.registers_per_block is not None:
        counted = per_warp * _round_up(warps, partitions)
        block_fits = np.where(counted <= limits.registers_per_block, _UNBOUNDED, 0).astype(np.int64)
    if limits.registers_per_sm is not None:
        resident_warps = limits.registers_per_sm // partitions // np.maximum(per_warp, 1) * partitions
        by_registers = np.where(per_warp > 0, resident_warps // warps, _UNBOUNDED).astype(np.int64)
    return block_fits, by_registers


def _shared_bounds(limits: DeviceLimits, shared: Counts, free: Counts) -> tuple[Counts, Counts]:
    """The launch check of a block's shared memory, and how many blocks the SM's shared memory holds."""
    reserved = limits.shared_reserved_per_block or 0
    taken = _round_up(shared + reserved, limits.shared_allocation_unit or 1)
    block_fits, by_shared = free, free
    most = limits.shared_per_block_optin or limits.shared_per_block
    if most is not None:
        block_fits = np.where(taken <= most + reserved, _UNBOUNDED, 0).astype(np.int64)
    if limits.shared_per_sm is not None:
        held = limits.shared_per_sm // np.maximum(taken, 1)
        by_shared = np.where(taken > 0, held, _UNBOUNDED).astype(np.int64)
    return block_fits, by_shared


def _max_warps(limits: DeviceLimits) -> int | None:
    """Warps an SM holds. Threads and warps state the same limit; a file may override either one."""
    stated = limits.max_warps_per_sm
    if limits.max_threads_per_sm is None or limits.warp_size is None:
        return stated
    by_threads = limits.max_threads_per_sm // limits.warp_size
    return by_threads if stated is None else min(stated, by_threads)


def _ceil_div(numerator: Counts, divisor: int) -> Counts:
    return -(-numerator // divisor)


def _round_up(number: Counts, unit: int) -> Counts:
    return _ceil_div(number, unit) * unit
