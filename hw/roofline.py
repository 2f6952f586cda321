"""The roofline of a device, from measurements: the shortest time that it allows a workload.

Owns the arithmetic over measured roofs; `kernels.measure` measures them. Source of the model: Williams, Waterman,
Patterson, "Roofline: An Insightful Visual Performance Model for Multicore Architectures", CACM 52(4), 2009.

Bytes are counted as read plus written, each element once per direction however often the kernel touches it: a copy of N
bytes moves 2N. No kernel with a cold cache is faster than its floor. A kernel that was timed well below a floor proves
the roof under it wrong, and `without_beaten` leaves that roof out: no bottleneck is named by it, and no share of it is
given.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

Bound = Literal["memory", "compute", "unknown"]
MAX_ROOFLINE_SHARE = 1.1
"""Ratio of a floor to a measured time above which the roof is rejected: kernels that mostly read are up to 10 % faster
than the copies that give the bandwidth."""


Work = tuple[float, float, str]
"""Bytes moved, operations, and the data type of these; empty where another unit than the measured one may do them."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """Measured roofs of one device.

    `bandwidth` holds ``(bytes moved, bytes/s)`` points of a copy, in any order on entry, sorted by bytes
    afterwards; `peak_flops` maps a data type's name to flop/s and may be empty; `launch_seconds` is what an empty
    kernel takes, back to back, or None. It is shown beside floors and raises none. Raises ValueError where a
    number is not positive and finite, or a size occurs twice.
    """

    bandwidth: tuple[tuple[int, float], ...] = ()
    peak_flops: Mapping[str, float] = field(default_factory=dict)
    launch_seconds: float | None = None

    def __post_init__(self) -> None:
        points = tuple(sorted((int(size), float(rate)) for size, rate in self.bandwidth))
        numbers = [number for point in points for number in point] + list(self.peak_flops.values())
        if not all(math.isfinite(number) and number > 0 for number in numbers):
            raise ValueError("a roof needs positive, finite numbers")
        if len({size for size, _ in points}) < len(points):
            raise ValueError("a roof needs one bandwidth for each size")
        object.__setattr__(self, "bandwidth", points)
        object.__setattr__(self, "peak_flops", dict(self.peak_flops))

    def __hash__(self) -> int:
        # The generated hash would fail on the dictionary.
        return hash((self.bandwidth, tuple(sorted(self.peak_flops.items()))))

    @property
    def peak_bandwidth(self) -> float | None:
        """The best bandwidth measured at any size, in bytes/s; None where nothing was measured."""
        return max((rate for _, rate in self.bandwidth), default=None)

    def memory_seconds(self, moved_bytes: float) -> float | None:
        """Seconds the memory needs to move `moved_bytes` at the best bandwidth; None where none was measured.

        A small copy's own bandwidth includes its launch and ramp-up, which do not limit the memory, and a
        kernel that mostly reads can beat a copy of the same size; so the peak is what bounds from below.
        """
        rate = self.peak_bandwidth
        return None if rate is None else moved_bytes / rate

    def compute_seconds(self, flops: float, dtype: str) -> float | None:
        """Seconds the arithmetic needs at the peak of `dtype`; None where that peak is not known."""
        peak = self.peak_flops.get(dtype)
        return None if peak is None else flops / peak

    def floor_seconds(self, moved_bytes: float, flops: float = 0.0, dtype: str = "") -> float | None:
        """The shortest time physically possible: the larger of the memory's and the arithmetic's.

        A roof that was not measured cannot raise the floor; with neither, None.
        """
        roofs = (self.memory_seconds(moved_bytes), self.compute_seconds(flops, dtype))
        return max((seconds for seconds in roofs if seconds is not None), default=None)

    def bound(self, moved_bytes: float, flops: float, dtype: str) -> Bound:
        """Which roof the workload is under; ``unknown`` unless both were measured.

        One exception: with no arithmetic at all only the memory can be the roof.
        """
        memory, compute = self.memory_seconds(moved_bytes), self.compute_seconds(flops, dtype)
        if memory is not None and flops == 0 and moved_bytes > 0:
            return "memory"
        if memory is None or compute is None:
            return "unknown"
        return "memory" if memory >= compute else "compute"

    def without_beaten(self, timed: Mapping[str, tuple[float, Work]]) -> tuple[Roofline, tuple[str, ...]]:
        """The roofs that nothing `timed` beats by more than `MAX_ROOFLINE_SHARE`; a sentence for each beaten one.
        timed: seconds and work of launches, by which kernel on which workload it is, in words."""
        launches = {what: one for what, one in timed.items() if one[0] > 0}
        reasons = []
        memory = _fastest(
            {what: (self.memory_seconds(work[0]) or 0) / taken for what, (taken, work) in launches.items()}
        )
        if memory is not None:
            seconds, (moved, _, _) = launches[memory]
            reasons.append(
                f"The measured copy bandwidth, {(self.peak_bandwidth or 0.0) / 1e9:.3g} GB/s, is not used: "
                f"{memory} moves its bytes at {moved / seconds / 1e9:.3g} GB/s. Either caches "
                "held part of the data, or something else used the memory while the copy was measured, or the task's "
                "`bytes` are too high."
            )
        peaks = dict(self.peak_flops)
        for dtype, peak in self.peak_flops.items():
            own = {what: one for what, one in launches.items() if one[1][2] == dtype}
            busy = _fastest({what: work[1] / peak / taken for what, (taken, work) in own.items()})
            if busy is not None:
                seconds, (_, flops, _) = own[busy]
                del peaks[dtype]
                reasons.append(
                    f"The measured {dtype} peak, {peak / 1e9:.3g} GFLOP/s, is not used: {busy} does "
                    f"{flops / seconds / 1e9:.3g} GFLOP/s. Either something else used the processors while "
                    "the peak was measured, or the task's `flops` are too high."
                )
        bandwidth = () if memory is not None else self.bandwidth
        return replace(self, bandwidth=bandwidth, peak_flops=peaks), tuple(reasons)


def _fastest(shares: Mapping[str, float]) -> str | None:
    """The launch that beats its roof by the largest factor; None where no launch does. shares: for each the least
    seconds that its roof allows, over its seconds."""
    beaten = [what for what, share in shares.items() if share > MAX_ROOFLINE_SHARE]
    return max(beaten, key=shares.__getitem__, default=None)
