"""How long does it take: statistics of repeated samples, and how many samples are enough.

Pure: it is given functions that take a sample and never touches a device. Times are seconds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

CONFIDENCE_Z = 1.959963984540054
"""Normal quantile of a two-sided 95 % interval."""
WIDENED = 1.15
"""Factor on the bootstrap interval. Simulated with drift, outliers and stopping by width (tests/kernels/
test_trust_timing.py), equal kernels are then called different in 1 to 4 % of comparisons."""
LONGEST = 4
"""How many times the usual number of rounds a comparison may take to reach its target."""


@dataclass(frozen=True, slots=True)
class Precision:
    """When to stop sampling: the half-width of the median's 95 % interval is at most `target` of the median, or
    `max_samples` or `budget_seconds` (wall clock) are spent; never before `min_samples`. Sampling also ends after
    `min_samples` when the interval's lower end exceeds `give_up_above` (a clear loser needs no precise time).
    floor: the seconds that the device's measured roofs allow at least; 0 where they are not known."""

    target: float = 0.01
    min_samples: int = 7
    max_samples: int = 100
    budget_seconds: float = 0.25
    give_up_above: float = math.inf
    floor: float = 0.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median with its 95 % interval over `samples` samples. dropped: sampling ended because it was a clear loser."""

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
    sample: Callable[[], float], precision: Precision, clock: Callable[[], float] = time.perf_counter
) -> Estimate:
    """Takes samples until `precision` is met."""
    started, samples = clock(), []
    while True:
        samples.append(sample())
        if len(samples) < precision.min_samples:
            # Even the first samples must not overrun a budget by more than they must.
            if clock() - started > 4 * precision.budget_seconds and len(samples) >= 3:
                return estimate(samples)
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


@dataclass(frozen=True, slots=True)
class Comparison:
    """Time of a candidate over time of a baseline: ratio of medians with a 95 % bootstrap interval.

    Below 1.0 the candidate is faster; "faster" may be said only when `high` < 1.0.
    """

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


def compare(candidate: Sequence[float], baseline: Sequence[float], *, seed: int, resamples: int = 2000) -> Comparison:
    """Percentile bootstrap of the ratio of medians over paired rounds: round i of both was taken close in time, so
    rounds are resampled together and slow drifts cancel (Efron & Tibshirani, An Introduction to the Bootstrap). The
    interval is `WIDENED`, as medians of few rounds take few values and stopping looks at the width several times.
    """
    pairs = np.column_stack([np.asarray(candidate), np.asarray(baseline)])
    ratios = bootstrap_ratios(pairs, seed=seed, resamples=resamples)
    medians = np.median(pairs, axis=0)
    ratio = medians[0] / medians[1]
    low, high = ratio + WIDENED * (np.quantile(ratios, [0.025, 0.975]) - ratio)
    return Comparison(float(ratio), float(low), float(high), estimate(list(candidate)), estimate(list(baseline)))


def bootstrap_ratios(pairs: NDArray[np.float64], *, seed: int, resamples: int) -> NDArray[np.float64]:
    """Ratios of medians of `resamples` resampled sets of rounds; `pairs` has the shape (rounds, 2)."""
    rng = np.random.default_rng(seed)
    rounds = rng.integers(0, len(pairs), size=(resamples, len(pairs)))
    medians = np.median(pairs[rounds], axis=1)
    ratios: NDArray[np.float64] = medians[:, 0] / medians[:, 1]
    return ratios


def interleaved(
    samplers: Sequence[Callable[[], float]],
    *,
    rounds: int,
    seed: int,
    budget_seconds: float,
    target: float = 0.0,
    clock: Callable[[], float] = time.perf_counter,
) -> list[list[float]]:
    """One sample of each sampler a round, in a fresh random order each round; at least 5 rounds, then until `rounds`
    or the budget are spent. Returns a list of samples for each sampler.

    With a `target` it ends, from half of `rounds` on, once each ratio to the first sampler is known to a half-width of
    `target`, and goes on to `LONGEST` times `rounds` until it is. The width says nothing of which is faster, so that
    stopping by it favours neither.
    """
    rng, started = np.random.default_rng(seed), clock()
    samples: list[list[float]] = [[] for _ in samplers]
    for done in range(rounds * (LONGEST if target else 1)):
        if done >= 5 and clock() - started > budget_seconds:
            break
        if target and done >= max(5, rounds // 2) and done % 5 == 0 and _widest(samples, seed) <= target:
            break
        for position in rng.permutation(len(samplers)):
            samples[position].append(samplers[position]())
    return samples


def _widest(samples: Sequence[Sequence[float]], seed: int) -> float:
    """The largest half-width of the ratios to the first list of samples."""
    return max((compare(one, samples[0], seed=seed, resamples=300).half_width for one in samples[1:]), default=0.0)
