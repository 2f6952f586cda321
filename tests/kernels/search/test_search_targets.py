"""What the model is told: the acquisition's tails, intervals as noise, and dropped points as bounds from below."""

import math

import numpy as np
import pytest

from tunesmith.kernels.search import Observation
from tunesmith.kernels.search.model import CovarianceKernel, Targets, log_expected_improvement, truncated
from tunesmith.kernels.space import Space
from tunesmith.kernels.spec.template import Config, Parameter

SPACE = Space.build([Parameter(name=name, values=tuple(range(16))) for name in "AB"], [])


def value(config: Config) -> float:
    return math.exp((int(config["A"]) - 4) ** 2 / 60 + abs(int(config["B"]) - 11) / 8)


@pytest.mark.parametrize("gain", [3.0, 0.5, -0.99, -1.01, -4.0])
def test_expected_improvement_is_the_integral(gain: float) -> None:
    # Imported here: it takes half a second, in each process that collects tests.
    from scipy.integrate import quad
    from scipy.stats import norm

    best, deviation = 0.7, 0.3
    mean = best - gain * deviation
    wanted = quad(lambda y: (best - y) * norm.pdf(y, mean, deviation), mean - 12 * deviation, best)[0]
    got = log_expected_improvement(best, np.array([mean]), np.array([deviation]))[0]
    assert got == pytest.approx(math.log(wanted), rel=1e-6)


def test_expected_improvement_keeps_its_order_far_out() -> None:
    scores = log_expected_improvement(-1.0, np.linspace(0.0, 500.0, 4000), np.ones(4000))
    assert np.all(np.isfinite(scores)) and np.all(np.diff(scores) < 0.0)


@pytest.mark.parametrize("bound", [-3.0, 0.0, 1.0, 4.0])
def test_a_bounded_value_has_the_moments_of_the_truncated_normal(bound: float) -> None:
    from scipy.stats import truncnorm

    mean, deviation = 0.5, 0.8
    wanted = truncnorm((bound - mean) / deviation, np.inf, mean, deviation)
    got = truncated(np.array([bound]), np.array([mean]), np.array([deviation]))
    assert got[0][0] == pytest.approx(wanted.mean(), rel=1e-6) and got[1][0] == pytest.approx(wanted.var(), rel=1e-4)
    far = truncated(np.array([900.0]), np.array([mean]), np.array([deviation]))
    assert far[0][0] == pytest.approx(900.0, rel=1e-3) and 0.0 <= far[1][0] < 1e-3


def impute(interval: tuple[float, float] | None) -> tuple[np.ndarray, np.ndarray]:
    """The targets of points dropped at a bound of 1.5, and their true logarithms; all others are complete."""
    points = [int(point) for point in np.random.default_rng(0).permutation(len(SPACE))[:90]]
    targets, dropped = Targets(SPACE), []
    for place, point in enumerate(points):
        true = value(SPACE.config(point))
        if true > 2.5 and place % 2:
            targets.note(point, Observation(1.5, interval, dropped=True))
            dropped.append(point)
        else:
            targets.note(point, Observation(true))
    kernel = CovarianceKernel(SPACE.domain)
    targets.impute(kernel, kernel.prior, 320)
    centre, unit, _ = targets.moments()
    got, noise = targets.standardised(dropped)
    assert np.all(noise >= 0.0) and len(dropped) > 10
    return centre + unit * got, np.log([value(SPACE.config(point)) for point in dropped])


def test_a_dropped_point_counts_above_its_bound_within_its_interval() -> None:
    got, true = impute(None)
    assert np.all(got >= math.log(1.5)) and np.abs(got - true).mean() < 0.3 * np.abs(math.log(1.5) - true).mean()
    assert abs((got - true).mean()) < 0.1
    got, _ = impute((1.4, 1.6))
    assert np.all(got >= math.log(1.5)) and np.all(got <= math.log(1.6) + 1e-12)
    # A failure takes back a value, and a value a drop.
    targets = Targets(SPACE)
    targets.note(3, Observation(2.0, dropped=True))
    targets.note(3, Observation(4.0))
    assert targets.ranked() == [3] and targets.moments()[0] == pytest.approx(math.log(4.0))
    targets.note(3, Observation(None, failure="launch_failed"))
    assert len(targets) == 0
