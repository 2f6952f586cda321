"""Does the device still run as fast as before? One kernel, re-timed now and then, tells.

The first candidate a process measures is kept as the reference. Its time now over its time then is written beside
later measurements, so that a device that slowed down half-way is seen and not taken for slow kernels.
"""

from __future__ import annotations

from collections.abc import Callable

from tunesmith.kernels.measure.timing import Estimate, estimate

EVERY = 16
"""Measurements between two timings of the reference."""
SAMPLES = 5


class DriftMonitor:
    """The reference of one process. `ratio` is its latest time over its first; None before it was timed again."""

    def __init__(self, every: int = EVERY) -> None:
        self._every, self._since = every, 0
        self._sampler: Callable[[], float] | None = None
        self._first: Estimate | None = None
        self.workload = ""
        self.ratio: float | None = None

    def keep(self, workload: str, sampler: Callable[[], float], first: Estimate) -> None:
        """Makes `sampler` the reference if there is none; `workload` names the buffers it runs on."""
        if self._sampler is None:
            self.workload, self._sampler, self._first, self._since = workload, sampler, first, 0

    def forget(self, workload: str) -> None:
        """The buffers of `workload` are gone, and with them a reference that runs on them and its ratio."""
        if workload == self.workload:
            self._sampler, self._first, self.workload, self.ratio = None, None, "", None

    def tick(self) -> float | None:
        """To be called before each measurement: times the reference when it is due, and gives `ratio`."""
        self._since += 1
        if self._sampler is not None and self._first is not None and self._since > self._every:
            self._since = 0
            self.ratio = estimate([self._sampler() for _ in range(SAMPLES)]).median / self._first.median
        return self.ratio
