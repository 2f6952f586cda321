"""How many blocks of a kernel one SM can hold at once, and which resource stops the next one.

Owns the arithmetic, once. It does not know devices (`limits`) nor what makes a kernel fast: occupancy is a
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
from typing import Any, Literal

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


@dataclass(frozen=True, slots=True)
class Occupancy:
    """What one SM holds of one kernel configuration.

    `blocks_per_sm` is 0 where the configuration cannot be launched at all. On a device which states no limit per SM (an
    OpenCL CPU) it is 1 for whatever fits in a block, `limiter` is None, and `active_warps` and `fraction` are None.
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


def occupancy(limits: DeviceLimits, *, threads: int, registers: int, shared: int) -> Occupancy:
    """Explain one configuration.

    `threads` per block (at least 1), `registers` per thread (0 where not known yet), `shared` bytes per
    block, static plus dynamic. Raises ValueError for a thread count below 1 or a negative number.
    """
    bounds = _bounds(limits, threads, registers, shared)
    stopping = {resource: bound for resource, bound in bounds.items() if bound is not None}
    limiter = min(stopping, key=lambda resource: stopping[resource], default=None)
    # Nothing per SM is known: a block which may be launched is one block, and no more can be claimed.
    blocks = 1 if limiter is None else stopping[limiter]
    warp_size, max_warps = limits.warp_size, _max_warps(limits)
    active_warps = None if warp_size is None else blocks * -(-threads // warp_size)
    return Occupancy(
        blocks_per_sm=blocks,
        active_warps=active_warps,
        fraction=None if active_warps is None or max_warps is None else active_warps / max_warps,
        limiter=limiter,
        bounds=tuple(bounds.items()),
    )


def _bounds(limits: DeviceLimits, threads: int, registers: int, shared: int) -> dict[Limiter, int | None]:
    if threads < 1 or registers < 0 or shared < 0:
        raise ValueError("threads must be at least 1, registers and shared at least 0")
    warps = -(-threads // (limits.warp_size or 1))
    max_registers, max_warps = limits.max_registers_per_thread, _max_warps(limits)
    block_registers_fit, by_registers = _register_bounds(limits, warps, registers)
    block_shared_fits, by_shared = _shared_bounds(limits, shared)
    return {
        "threads_per_block": _launch_check(threads <= limits.max_threads_per_block),
        "registers_per_thread": _launch_check(max_registers is None or registers <= max_registers),
        "registers_per_block": block_registers_fit,
        "shared_per_block": block_shared_fits,
        "threads": None if max_warps is None else max_warps // warps,
        "registers": by_registers,
        "shared": by_shared,
        "blocks": limits.max_blocks_per_sm,
    }


def _launch_check(fits: bool) -> int | None:
    return None if fits else 0


def _register_bounds(limits: DeviceLimits, warps: int, registers: int) -> tuple[int | None, int | None]:
    """The launch check of a block's registers, and how many blocks the register file holds."""
    warp_size, partitions = limits.warp_size, limits.warp_allocation_granularity
    if warp_size is None or partitions is None:
        return None, None
    per_warp = _round_up(registers * warp_size, limits.register_allocation_unit or 1)
    most = limits.registers_per_block
    block_fits = _launch_check(most is None or per_warp * _round_up(warps, partitions) <= most)
    if limits.registers_per_sm is None or not per_warp:
        return block_fits, None
    resident_warps = limits.registers_per_sm // partitions // per_warp * partitions
    return block_fits, resident_warps // warps


def _shared_bounds(limits: DeviceLimits, shared: int) -> tuple[int | None, int | None]:
    """The launch check of a block's shared memory, and how many blocks the SM's shared memory holds."""
    reserved = limits.shared_reserved_per_block or 0
    taken = _round_up(shared + reserved, limits.shared_allocation_unit or 1)
    most = limits.shared_per_block_optin or limits.shared_per_block
    block_fits = _launch_check(most is None or taken <= most + reserved)
    return block_fits, limits.shared_per_sm // taken if limits.shared_per_sm is not None and taken else None


def _max_warps(limits: DeviceLimits) -> int | None:
    """Warps an SM holds. Threads and warps state the same limit; a file may override either one."""
    stated = limits.max_warps_per_sm
    if limits.max_threads_per_sm is None or limits.warp_size is None:
        return stated
    by_threads = limits.max_threads_per_sm // limits.warp_size
    return by_threads if stated is None else min(stated, by_threads)


def _round_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit
