"""Which buffers a timed launch works on: all sets in turn, so that each launch finds its data gone from the last cache.

Owns the order of launches inside a sample, and which of them can be checked afterwards. The first and the last launch
of a sequence pay for its start and end, so a sample is long against both: short kernels go round the sets many times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tunesmith.kernels.backends import BoundLaunch, Device, HostCall

MAX_EXTRA_LAUNCHES = 2048
"""Launches in a sample beyond one for each set: capturing each takes microseconds of the host."""


def orders(sets: int, window: int, checked: int) -> list[list[int]]:
    """The sets that successive samples of `window` launches go over, each sample a list of set numbers.

    With a window of less than all sets, samples take turns: set after set, each once before any comes again. Otherwise
    every sample is the same: round and round over all sets but `checked`, which comes once, at the end.
    """
    if window < sets:
        return [list(range(at * window, (at + 1) * window)) for at in range(sets // window)]
    others = [index for index in range(sets) if index != checked] or [checked]
    return [[others[at % len(others)] for at in range(window - 1)] + [checked]]


class Rotation:
    """A sampler: each call times the next sample of `window` launches and gives seconds per launch.

    After a sample its last set, `checked` where there is a choice, holds the result of exactly one of the timed
    launches, also of kernels that work in place.
    """

    def __init__(
        self, device: Device, launches: Sequence[BoundLaunch | HostCall], window: int, checked: int = 0
    ) -> None:
        self._device, self._launches, self._wanted = device, launches, (window, checked)
        self._orders = orders(len(launches), window, checked)
        self.window = len(self._orders[0])
        self._sequences: dict[int, Any] = {}
        self._last = 0
        """The number of the sample that was run last."""
        self.lasted = 0.0
        """Seconds that `run_first` took; about as long as a sample."""

    def again(self, launches: Sequence[BoundLaunch | HostCall]) -> Rotation:
        """The same samples of other launches, as many."""
        return Rotation(self._device, launches, *self._wanted)

    def run_first(self) -> int:
        """Runs the first sample's launches, untimed, which brings the code to the device; returns the set to check.

        Samples go on with the next: the data of these launches are in the last cache.
        """
        (self.lasted,), self._last = self._device.times([self._sequence(0)]), 0
        return self.last_set

    def run_again(self) -> None:
        """Runs the launches of the sample that was timed last once more, untimed."""
        self._device.times([self._sequence(self._last)])

    @property
    def last_set(self) -> int:
        """The set on which the sample that was timed last ended."""
        return self._orders[self._last][-1]

    def __call__(self) -> float:
        (seconds,) = self.take(1)
        return seconds

    def take(self, count: int) -> list[float]:
        """The next `count` samples, one right behind the other."""
        if not self.lasted:
            self.run_first()
        positions = [(self._last + step) % len(self._orders) for step in range(1, count + 1)]
        self._last = positions[-1]
        times = self._device.times([self._sequence(position) for position in positions])
        return [seconds / self.window for seconds in times]

    def _sequence(self, position: int) -> Any:
        if position not in self._sequences:
            launches = [self._launches[index] for index in self._orders[position]]
            self._sequences[position] = self._device.sequence(launches)
        return self._sequences[position]


def window_for(seconds: float, sets: int, sample_seconds: float, *, rounds: bool) -> int:
    """Launches of `seconds` in a sample of about `sample_seconds`; at most one for each set unless `rounds`.

    With one or two sets, as where memory is short, going round would launch again and again on the same one: with warm
    caches, and for an in-place kernel on its own results.
    """
    wanted = max(1, math.ceil(sample_seconds / seconds)) if seconds > 0 else sets
    window = min(wanted, sets + MAX_EXTRA_LAUNCHES if rounds and sets > 2 else sets)
    # The next sample begins with the first sets again, on which this one must not have been just before its end.
    begun = (window - 1) % (sets - 1) if window > sets else 0
    return window - begun if begun + 1 < sets // 2 else window
