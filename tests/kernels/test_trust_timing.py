"""Comparisons: equal kernels are not called different, a slower one is found, and precision ends the sampling."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from tunesmith.hw.telemetry import NoTelemetry, Telemetry, harmful
from tunesmith.kernels.measure import timing as measuring
from tunesmith.kernels.measure.timing import Precision, compare, interleaved, sample_until


def noisy(rng: np.random.Generator, noise: float, drift: list[float], seconds: float = 1.0) -> Callable[[], float]:
    """A kernel with jitter, rare outliers, and a drift shared with others."""

    def sample() -> float:
        drift[0] += rng.normal(0, noise * 0.2)
        outlier = abs(rng.normal(0, 10 * noise)) if rng.random() < 0.03 else 0.0
        return float(seconds * (1 + rng.normal(0, noise) + drift[0] + outlier))

    return sample


def kernel(
    rng: np.random.Generator, noise: float, drift: list[float], seconds: float = 1.0, placement: float = 0.0
) -> Callable[[], Callable[[], float]]:
    """Loads a `noisy` kernel; each time it comes to lie elsewhere and is faster or slower for it by `placement`."""
    return lambda: noisy(rng, noise, drift, seconds * (1 + rng.normal(0, placement)))


@pytest.mark.parametrize(
    ("noise", "placement", "slower", "comparisons", "least", "most"),
    [
        # One in a hundred equal ones is meant to be called different, 1.5 where sampling stops by the width.
        (0.002, 0.0, 1.0, 200, 0.0, 0.03),
        (0.01, 0.003, 1.0, 200, 0.0, 0.03),
        (0.005, 0.0, 1.02, 50, 0.95, 1.0),
    ],
)
def test_equal_kernels_are_rarely_called_different_and_two_per_cent_are_found(
    noise: float, placement: float, slower: float, comparisons: int, least: float, most: float
) -> None:
    rng, verdicts = np.random.default_rng(1), list[str]()
    for seed in range(comparisons):
        drift = [0.0]
        pair = [kernel(rng, noise, drift, seconds, placement) for seconds in (1.0, slower)]
        samples = interleaved(pair, rounds=40, seed=seed, budget_seconds=1e9, target=0.005)
        verdicts.append(compare(samples[1], samples[0]).verdict)
    different = verdicts.count("slower") + (verdicts.count("faster") if slower == 1 else 0)
    assert least <= different / comparisons <= most


def test_a_comparison_ends_at_its_target_and_goes_on_for_it() -> None:
    rng = np.random.default_rng(3)
    quiet = interleaved([kernel(rng, 1e-4, [0.0])] * 2, rounds=40, seed=0, budget_seconds=1e9, target=0.005)
    loud = interleaved([kernel(rng, 0.2, [0.0])] * 2, rounds=40, seed=0, budget_seconds=1e9, target=0.005)
    plain = interleaved([kernel(rng, 0.2, [0.0])] * 2, rounds=40, seed=0, budget_seconds=1e9)
    assert quiet[0].shape == (measuring.MIN_BLOCKS, measuring.BLOCK_ROUNDS)
    assert len(loud[0]) == math.ceil(40 * measuring.MAX_ROUNDS_FACTOR / measuring.BLOCK_ROUNDS)
    assert len(plain[0]) == math.ceil(40 / measuring.BLOCK_ROUNDS)


def test_a_comparison_ends_with_its_budget_after_three_blocks() -> None:
    ticks = itertools.count()
    rng = np.random.default_rng(5)
    samples = interleaved(
        [kernel(rng, 0.1, [0.0])] * 2, rounds=400, seed=0, budget_seconds=5.0, clock=lambda: next(ticks) * 10.0
    )
    assert len(samples[0]) == 3
    wide, narrow = compare(samples[1], samples[0]), compare(samples[1][:, :1], samples[1][:, :1])
    assert wide.half_width > 0.02 and narrow.half_width == 0.0


def test_every_block_loads_each_kernel_once_and_orders_vary() -> None:
    loads, order = list[int](), list[int]()

    def load(number: int) -> Callable[[], float]:
        loads.append(number)
        return lambda: order.append(number) or 1.0

    samples = interleaved([partial(load, at) for at in range(3)], rounds=30, seed=0, budget_seconds=1e9)
    assert [sorted(loads[at : at + 3]) for at in range(0, len(loads), 3)] == [[0, 1, 2]] * len(samples[0])
    assert len({tuple(order[at : at + 3]) for at in range(0, len(order), 3)}) == 6


def test_a_clear_loser_is_dropped_and_says_so() -> None:
    sample = noisy(np.random.default_rng(4), 0.01, [0.0])
    precision = Precision(target=1e-5, min_samples=7, budget_seconds=1e9)
    lost, close = (
        sample_until(lambda count: [sample() for _ in range(count)], replace(precision, give_up_above=above))
        for above in (0.5, 1.5)
    )
    assert lost.dropped and lost.samples == precision.min_samples
    assert not close.dropped and close.samples == precision.max_samples


@pytest.mark.parametrize(
    "expected, budget, first", [(0.01, 1.0, 6), (0.2, 1.0, 1), (math.inf, 1.0, 1), (0.01, math.inf, 6)]
)
def test_samples_that_are_taken_in_any_case_are_taken_together(expected: float, budget: float, first: int) -> None:
    counts: list[int] = []

    def sample(count: int) -> list[float]:
        counts.append(count)
        return [float(1 + at % 2) for at in range(sum(counts) - count, sum(counts))]

    precision = Precision(min_samples=6, max_samples=9, budget_seconds=budget)
    found = sample_until(sample, precision, lambda: 0.0, expected=expected)
    assert counts[0] == first and set(counts[1:]) == {1} and sum(counts) == found.samples == 9


def test_settings_are_no_throttling() -> None:
    reasons = ("applications_clocks_setting", "hw_thermal_slowdown")
    sample = Telemetry(1.5e9, None, 300.0, None, 60.0, reasons)
    assert harmful(sample) == ("hw_thermal_slowdown",)
    assert sample.figures() == {"sm_clock_hz": 1.5e9, "power_w": 300.0, "temperature_c": 60.0}
    assert harmful(NoTelemetry("none here")) == ()


@pytest.mark.parametrize(
    ("ratio", "noise", "trials", "found"),
    [(1.0, 0.05, 300, 0.0), (1.0, 0.5, 300, 0.0), (0.85, 0.01, 30, 0.0), (0.3, 0.3, 100, 0.95), (0.7, 0.05, 100, 0.95)],
)
def test_a_kernel_is_much_shorter_only_where_nearly_all_pairs_say_so(
    ratio: float, noise: float, trials: int, found: float
) -> None:
    """noise: standard deviation of a time's logarithm."""
    rng, pairs = np.random.default_rng(2), 0

    def pair() -> tuple[float, float]:
        nonlocal pairs
        pairs += 1
        first, second = np.exp(noise * rng.standard_normal(2))
        return float(ratio * first), float(second)

    answers = [measuring.much_shorter(pair, math.inf) for _ in range(trials)]
    assert sum(one is not None for one in answers) >= found * trials
    assert found or answers.count(None) == trials
    if ratio == 1:
        assert pairs < 15 * trials
    assert measuring.much_shorter(lambda: (0.1, 1.0), 0.0) is None, "no time"
