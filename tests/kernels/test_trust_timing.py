"""Comparisons: equal kernels are not called different, a slower one is found, and precision ends the sampling."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tunesmith.hw.telemetry import NoTelemetry, Telemetry, harmful
from tunesmith.kernels.drift import DriftMonitor
from tunesmith.kernels.timing import LONGEST, Precision, compare, estimate, interleaved, sample_until


def noisy(rng: np.random.Generator, noise: float, drift: list[float], seconds: float = 1.0) -> Callable[[], float]:
    """A kernel with jitter, rare outliers, and a drift shared with others."""

    def sample() -> float:
        drift[0] += rng.normal(0, noise * 0.2)
        outlier = abs(rng.normal(0, 10 * noise)) if rng.random() < 0.03 else 0.0
        return float(seconds * (1 + rng.normal(0, noise) + drift[0] + outlier))

    return sample


@pytest.mark.parametrize("noise", [0.002, 0.01])
def test_equal_kernels_are_rarely_called_different(noise: float) -> None:
    rng = np.random.default_rng(1)
    different = 0
    for seed in range(150):
        drift = [0.0]
        pair = [noisy(rng, noise, drift), noisy(rng, noise, drift)]
        samples = interleaved(pair, rounds=40, seed=seed, budget_seconds=1e9, target=0.005)
        different += compare(samples[1], samples[0], seed=seed).verdict != "no difference shown"
    assert different <= 0.05 * 150


def test_two_per_cent_are_found() -> None:
    rng = np.random.default_rng(2)
    found = 0
    for seed in range(50):
        drift = [0.0]
        pair = [noisy(rng, 0.005, drift), noisy(rng, 0.005, drift, 1.02)]
        samples = interleaved(pair, rounds=40, seed=seed, budget_seconds=1e9, target=0.005)
        found += compare(samples[1], samples[0], seed=seed).verdict == "slower"
    assert found >= 0.95 * 50


def test_a_comparison_ends_at_its_target_and_goes_on_for_it() -> None:
    rng = np.random.default_rng(3)
    quiet = interleaved([noisy(rng, 1e-4, [0.0])] * 2, rounds=40, seed=0, budget_seconds=1e9, target=0.005)
    loud = interleaved([noisy(rng, 0.05, [0.0])] * 2, rounds=40, seed=0, budget_seconds=1e9, target=0.005)
    plain = interleaved([noisy(rng, 0.05, [0.0])] * 2, rounds=40, seed=0, budget_seconds=1e9)
    assert len(quiet[0]) == 20 and len(loud[0]) == 40 * LONGEST and len(plain[0]) == 40


def test_a_clear_loser_is_dropped_and_says_so() -> None:
    rng = np.random.default_rng(4)
    precision = Precision(target=1e-5, min_samples=7, budget_seconds=1e9, give_up_above=0.5)
    lost = sample_until(noisy(rng, 0.01, [0.0]), precision)
    assert lost.dropped and lost.samples == precision.min_samples
    close = sample_until(noisy(rng, 0.01, [0.0]), Precision(target=1e-5, budget_seconds=1e9, give_up_above=1.5))
    assert not close.dropped and close.samples == precision.max_samples


def test_drift_is_the_reference_now_over_the_reference_then() -> None:
    now = [1.0]
    monitor = DriftMonitor(every=2)
    assert monitor.tick() is None
    monitor.keep("w", lambda: now[0], estimate([1.0] * 5))
    monitor.keep("other", lambda: 99.0, estimate([1.0] * 5))
    now[0] = 1.1
    assert [monitor.tick() for _ in range(3)] == [None, None, pytest.approx(1.1)]
    monitor.forget("w")
    assert monitor.tick() == pytest.approx(1.1)


def test_settings_are_no_throttling() -> None:
    reasons = ("applications_clocks_setting", "hw_thermal_slowdown")
    sample = Telemetry(1.5e9, None, 300.0, None, 60.0, reasons)
    assert harmful(sample) == ("hw_thermal_slowdown",)
    assert sample.figures() == {"sm_clock_hz": 1.5e9, "power_w": 300.0, "temperature_c": 60.0}
    assert harmful(NoTelemetry("none here")) == ()
