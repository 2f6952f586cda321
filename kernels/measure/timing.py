"""Statistics of repeated timings, the number of samples that is enough, and the launches of a sample: which buffers
each works on, and which of them can be checked afterwards.

The statistics are pure: they are given functions that take a sample and never touch a device. Times are seconds.

A sample goes over all sets of buffers in turn, so that each launch finds its data gone from the last cache. The first
and the last launch of a sequence pay for its start and end, so a sample is long against both: short kernels go round
the sets many times.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunesmith.kernels.backends import BoundLaunch, Device, HostCall

FASTER, AGREEING = 0.8, 0.9
"""A ratio of two times below which the first is much shorter, and of a pair, below which the pair speaks for that."""
SPEAKS, SPEAKS_NOT = math.log(0.85 / 0.45), math.log(0.15 / 0.55)
"""Evidence of a pair, as logarithms of likelihood ratios: at least 85 of 100 pairs agree that the first is shorter, or,
as times vary by chance alone, at most 45."""
PROVEN, REFUTED = math.log(1e5), math.log(0.02)
"""Evidence that ends the pairs: about the logarithms of the errors that are accepted either way."""
Samples = NDArray[np.float64] | Sequence[Sequence[float]]
"""Seconds, of the shape (blocks, rounds)."""

CONFIDENCE_Z = 1.959963984540054
"""Normal quantile of a two-sided 95 % interval."""
MIN_SAMPLES = 6
"""Below, the extremes of the samples do not bound the median with 95 %: 1 - 2 * 0.5**6 is 96.9 %."""
BLOCK_ROUNDS = 3
"""Rounds of a block of a comparison, for each of which everything is loaded anew."""
MIN_BLOCKS = 10
"""Blocks before a comparison may end by its target."""
MAX_ROUNDS_FACTOR = 4
"""Rounds that a comparison may take to reach its target, over the usual number."""


@dataclass(frozen=True, slots=True)
class Precision:
    """When to stop sampling: the half-width of the median's 95 % interval is at most `target` of the median, or
    `max_samples` or `budget_seconds` (wall clock) are spent; never before `min_samples`. Sampling also ends after
    `min_samples` when the interval's lower end exceeds `give_up_above` (a clear loser needs no precise time).
    floor: the seconds that the device's measured roofs allow at least; 0 where they are not known. energy_seconds: how
    long launches are repeated after that for their energy; 0 for not at all.
    """

    target: float = 0.01
    min_samples: int = MIN_SAMPLES
    max_samples: int = 100
    budget_seconds: float = 0.25
    give_up_above: float = math.inf
    floor: float = 0.0
    energy_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median with its interval over `samples` samples: 95 %, or, of fewer than six, the level of their extremes
    (Conover, section 3.2), 1 - 2 * 0.5**n. dropped: sampling ended because it was a clear loser."""

    median: float
    low: float
    high: float
    samples: int
    dropped: bool = False

    @property
    def half_width(self) -> float:
        """Half the interval as a share of the median."""
        return (self.high - self.low) / 2 / self.median if self.median > 0 else math.inf


def estimate(samples: Sequence[float]) -> Estimate:
    """Median and its distribution-free 95 % interval: the order statistics at ranks n/2 -+ 0.98 sqrt(n) (normal
    approximation to the binomial; Conover, Practical Nonparametric Statistics, section 3.2)."""
    ordered = sorted(samples)
    count = len(ordered)
    spread = CONFIDENCE_Z * math.sqrt(count) / 2
    low = max(0, math.floor(count / 2 - spread))
    high = min(count - 1, math.ceil(count / 2 + spread) - 1)
    # NumPy's median takes thirty times as long for so few numbers, after each of which this is called.
    median = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    return Estimate(float(median), float(ordered[low]), float(ordered[max(high, low)]), count)


def sample_until(
    sample: Callable[[int], Sequence[float]],
    precision: Precision,
    clock: Callable[[], float] = time.perf_counter,
    *,
    expected: float = math.inf,
) -> Estimate:
    """Takes samples until `precision` is met. `sample` takes as many as it is told. expected: the seconds that one
    takes, where they are known; the samples that are taken in any case are then taken together, if they fit the budget.
    """
    started = clock()
    together = expected * precision.min_samples <= precision.budget_seconds
    samples = list(sample(precision.min_samples if together else 1))
    while True:
        if len(samples) < precision.min_samples:
            # Even the first samples must not overrun a budget by more than they must.
            if clock() - started > 4 * precision.budget_seconds and len(samples) >= 3:
                return estimate(samples)
            samples += sample(1)
            continue
        current = estimate(samples)
        if current.half_width > precision.target and current.low > precision.give_up_above:
            return replace(current, dropped=True)
        if (
            current.half_width <= precision.target
            or len(samples) >= precision.max_samples
            or clock() - started > precision.budget_seconds
        ):
            return current
        samples += sample(1)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Time of a candidate over time of a baseline, with its 99 % interval; it is faster only where `high` < 1.0."""

    ratio: float
    low: float
    high: float
    candidate: Estimate
    baseline: Estimate

    @property
    def half_width(self) -> float:
        """Half the ratio's interval as a share of the ratio."""
        return (self.high - self.low) / 2 / self.ratio if self.ratio > 0 else math.inf

    @property
    def verdict(self) -> str:
        return "faster" if self.high < 1.0 else "slower" if self.low > 1.0 else "no difference shown"


def compare(candidate: Samples, baseline: Samples) -> Comparison:
    """The ratio of two kernels from samples of the shape (blocks, rounds), of which the same block and round of both
    were taken close in time.

    In each block both were loaded anew, since where code and launches come to lie changes a kernel's speed for as long
    as they lie there (Curtsinger & Berger, "Stabilizer", ASPLOS 2013). So a block counts once, with the median of the
    logarithms of its rounds' ratios, in which drifts cancel, and the interval is Student's over blocks. With so few
    blocks a percentile bootstrap of 95 % holds 91 % (simulated, ten normal blocks), and Student's 95 % where sampling
    stops by the width holds 94 %. A tuning makes dozens of comparisons, hence 99 %.
    """
    blocks = np.median(np.log(np.asarray(candidate) / np.asarray(baseline)), axis=1)
    middle = float(np.mean(blocks))
    error = float(np.std(blocks, ddof=1)) / math.sqrt(len(blocks))
    half = _student(len(blocks) - 1) * error
    return Comparison(
        math.exp(middle),
        math.exp(middle - half),
        math.exp(middle + half),
        estimate(np.ravel(candidate).tolist()),
        estimate(np.ravel(baseline).tolist()),
    )


@functools.cache
def _student(freedom: int) -> float:
    """The quantile of Student's t for a two-sided 99 % interval."""
    # What scipy.stats calls for it; importing that takes a second, in every process that compares.
    from scipy.special import stdtrit  # type: ignore[import-untyped,unused-ignore]

    return float(stdtrit(freedom, 0.995))


def much_shorter(
    pair: Callable[[], tuple[float, float]], budget_seconds: float, clock: Callable[[], float] = time.perf_counter
) -> float | None:
    """The median ratio of pairs of times, the first to the second, where it is below `FASTER` and nearly all pairs
    agree; else None, mostly after four pairs. A sequential sign test (Wald, "Sequential Tests of Statistical
    Hypotheses", 1945): it stays undecided, and None, where the budget ends it."""
    ratios, evidence, started = list[float](), 0.0, clock()
    while REFUTED < evidence < PROVEN and clock() - started < budget_seconds:
        first, second = pair()
        ratios.append(first / second)
        evidence += SPEAKS if ratios[-1] < AGREEING else SPEAKS_NOT
    middle = float(np.median(ratios)) if ratios else 1.0
    return middle if evidence >= PROVEN and middle < FASTER else None


def interleaved(
    makers: Sequence[Callable[[], Callable[[], float]]],
    *,
    rounds: int,
    seed: int,
    budget_seconds: float,
    target: float = 0.0,
    clock: Callable[[], float] = time.perf_counter,
    before_block: Callable[[], None] = lambda: None,
) -> list[NDArray[np.float64]]:
    """Samples of several kernels, taken in turn: for each an array of the shape (blocks, `BLOCK_ROUNDS`).

    A block begins with `before_block`, has each kernel loaded by its maker, in random order, and then rounds of one
    sample of each, again in random order. At least 3 blocks are taken, then as many as make `rounds`, or the budget
    allows.

    With a `target` it ends, from `MIN_BLOCKS` on, once each ratio to the first kernel is known to a half-width of
    `target`, and goes on to `MAX_ROUNDS_FACTOR` times `rounds` until it is. The width says nothing of which is faster,
    so that stopping by it favours neither.
    """
    rng, started = np.random.default_rng(seed), clock()
    samples: list[list[list[float]]] = [[] for _ in makers]
    most = max(3, math.ceil(rounds * (MAX_ROUNDS_FACTOR if target else 1) / BLOCK_ROUNDS))
    for done in range(most):
        if done >= 3 and clock() - started > budget_seconds:
            break
        if target and done >= MIN_BLOCKS and all(compare(one, samples[0]).half_width <= target for one in samples[1:]):
            break
        before_block()
        loaded = {position: makers[position]() for position in rng.permutation(len(makers))}
        for block in samples:
            block.append([])
        for _ in range(BLOCK_ROUNDS):
            for position in rng.permutation(len(makers)):
                samples[position][-1].append(loaded[position]())
    return [np.asarray(one) for one in samples]


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
