"""What the model is told of each measured point: its logarithm, and how uncertain that is.

Owns the translation of observations: intervals become noise; a point that was dropped early is known from below only
(it is censored), and counts with what the model expects of it given that; slow points are not held to be exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import log_ndtr  # type: ignore[import-untyped,unused-ignore]

from tunesmith.kernels.search.observation import Observation
from tunesmith.kernels.search.surrogate.gaussian import Floats, Hyperparameters, Kernel, Posterior
from tunesmith.kernels.space.space import Space

SLOW_NOISE = 0.15
"""Uncertainty allowed to slow points, per standard deviation above the median: accuracy is wanted near the best."""
_INTERVAL = 2 * 1.96
"""Width of a 95 % interval in standard deviations."""


class Targets:
    """Logarithms of the values of measured points, and their variances, in the order told."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._known: dict[int, tuple[float, float]] = {}
        self._dropped: dict[int, tuple[float, float]] = {}
        """Logarithms of the least and the greatest value that a dropped point may have."""
        self._moments: tuple[float, float, float] | None = None

    def __len__(self) -> int:
        return len(self._known)

    def note(self, point: int, seen: Observation) -> None:
        """Takes in `seen`; a failure takes out what was known before."""
        self._moments = None
        self._dropped.pop(point, None)
        if seen.value is None:
            self._known.pop(point, None)
            return
        level, variance = math.log(seen.value), 0.0
        if seen.interval is not None:
            low, high = seen.interval
            variance = ((high - low) / (_INTERVAL * seen.value)) ** 2
        if seen.dropped:
            # The interval's upper end still holds; without an interval there is none.
            highest = math.inf if seen.interval is None else math.log(max(seen.interval[1], seen.value))
            self._dropped[point] = level, highest
        self._known[point] = level, variance

    def impute(self, kernel: Kernel, chosen: Hyperparameters, most: int, points: Sequence[int] | None = None) -> None:
        """Gives dropped points (all, or `points`) the mean and the variance that the model has for them above their
        bounds, from at most `most` of the complete points, the best and the latest. Without any it changes nothing."""
        wanted = list(self._dropped if points is None else points)
        ranked = [point for point in self.ranked() if point not in self._dropped]
        latest = [point for point in self.latest() if point not in self._dropped]
        complete = list(dict.fromkeys(ranked[: most // 2] + latest))[:most]
        if not wanted or len(complete) < 3:
            return
        values, noise = self.standardised(complete)
        codes = self._space.codes_of
        model = Posterior(kernel, chosen, codes(complete), noise, codes(wanted))
        mean, deviation = model.expect(model.weights(values))
        centre, unit, _ = self.moments()
        bounds = np.array([self._dropped[point] for point in wanted])
        level, variance = truncated(bounds[:, 0], centre + unit * mean, unit * deviation)
        level = np.minimum(level, bounds[:, 1])
        self._known.update(zip(wanted, zip(level.tolist(), variance.tolist(), strict=True), strict=True))
        self._moments = None

    def ranked(self) -> list[int]:
        """The points, smallest value first."""
        return [point for _, point in sorted((level, point) for point, (level, _) in self._known.items())]

    def latest(self) -> list[int]:
        """The points, last told first."""
        return list(self._known)[::-1]

    def least(self) -> float:
        """The smallest logarithm."""
        return min(level for level, _ in self._known.values())

    def moments(self) -> tuple[float, float, float]:
        """Mean and standard deviation of the logarithms, and their standardised median."""
        if self._moments is None:
            logs = np.array([level for level, _ in self._known.values()])
            mean, deviation = float(logs.mean()), float(logs.std()) + 1e-9
            self._moments = mean, deviation, (float(np.median(logs)) - mean) / deviation
        return self._moments

    def standard(self, level: float) -> float:
        """A logarithm in standard deviations from the mean."""
        mean, deviation, _ = self.moments()
        return (level - mean) / deviation

    def standardised(self, points: Sequence[int]) -> tuple[Floats, Floats]:
        """The standardised logarithms at `points`, NaN where there is none, and their variances in those units."""
        mean, deviation, middle = self.moments()
        known = [self._known.get(point, (math.nan, 0.0)) for point in points]
        levels, variances = np.array(known).reshape(-1, 2).T
        values = (levels - mean) / deviation
        slow = np.nan_to_num(np.maximum(0.0, values - middle))
        return values, np.square(SLOW_NOISE * slow) + variances / deviation**2


def truncated(bound: Floats, mean: Floats, deviation: Floats) -> tuple[Floats, Floats]:
    """Mean and variance of a normal value that is known to be at least `bound` (Tobin, 1958)."""
    start = (bound - mean) / deviation
    hazard = np.exp(-0.5 * start * start - 0.5 * math.log(2.0 * math.pi) - log_ndtr(-start))
    # Far above the mean the two differ by rounding only; the value is then at the bound.
    variance = np.square(deviation) * np.clip(1.0 + start * hazard - hazard * hazard, 0.0, 1.0)
    return np.maximum(mean + deviation * hazard, bound), variance
