"""How far a search believes a prior: a line through what the source says, with the slope that own results allow.

Owns the regression. The model then explains what is left, with a deviation that is larger where the source itself is
not sure (it did not measure the point). The slope starts at 1 (the same kernel on a similar device)
with a deviation, and is estimated anew with the hyperparameters, so that a source that misleads is soon ignored: its
slope goes to 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy.linalg import cho_solve, cholesky  # type: ignore[import-untyped,unused-ignore]

from tunesmith.kernels.search._base import Observation
from tunesmith.kernels.search._belief import Belief
from tunesmith.kernels.search._gaussian import JITTER, Floats, Hyperparameters, Kernel
from tunesmith.kernels.space.domain import Codes
from tunesmith.kernels.space.space import Space

if TYPE_CHECKING:
    from tunesmith.kernels.search._levels import Levels

SLOPE = (1.0, 0.5)
"""Mean and deviation of the slope before own results."""
LEVEL = (0.0, 1.0)
"""The same of the intercept, in standard deviations of the own results."""
FAILED = (9.0, 1.0)
"""Pseudo-counts: of points that failed in the source, how many fail here, and how many do not."""


class Trend:
    """A line through a belief, logarithm against logarithm, and how often the source's failures are failures here."""

    def __init__(self, space: Space, belief: Belief) -> None:
        self._space, self._belief = space, belief
        self._expected: dict[int, tuple[float, float]] = {}
        self._fails: dict[int, bool] = {}
        self._outcomes: dict[int, bool] = {}
        """Of the points told that failed in the source: whether they failed here."""
        self.slope, self._offset = 0.0, 0.0
        self.fitted = False
        """Whether there is a line yet."""

    def note(self, point: int, seen: Observation) -> None:
        """Compares a result with the source's."""
        if self._failed([point])[0]:
            self._outcomes[point] = seen.value is None

    def fit(
        self,
        kernel: Kernel,
        chosen: Hyperparameters,
        codes: Codes,
        values: Floats,
        noise: Floats,
        points: Sequence[int],
        levels: Levels,
    ) -> None:
        """Estimates the line by generalised least squares, the rest being a process with `chosen` hyperparameters."""
        mean, unit, _ = levels.moments()
        expected, _ = self._expect(points)
        centre = float(expected.mean())
        design = np.stack([np.ones(len(points)), (expected - centre) / unit], axis=1)
        covariance = math.exp(chosen.scale) * kernel.between(kernel.tables(chosen), codes, codes)
        covariance[np.diag_indices(len(points))] += math.exp(chosen.noise) + noise + JITTER
        solved = cho_solve((cholesky(covariance, lower=True, check_finite=False), True), design, check_finite=False)
        start, precision = np.array([LEVEL[0], SLOPE[0]]), np.diag([LEVEL[1] ** -2.0, SLOPE[1] ** -2.0])
        level, slope = np.linalg.solve(design.T @ solved + precision, solved.T @ values + precision @ start)
        # A source that is wrong in sign has nothing to say.
        self.slope = max(0.0, float(slope))
        self._offset = mean + unit * float(level) - self.slope * centre
        self.fitted = True

    def remove(self, values: Floats, variances: Floats, points: Sequence[int], levels: Levels) -> tuple[Floats, Floats]:
        """What the model is to explain of standardised `values`, and their variances."""
        line, width = self._line(points, levels)
        return (values - line) / width, variances / width**2

    def restore(self, mean: Floats, deviation: Floats, points: Sequence[int], levels: Levels) -> tuple[Floats, Floats]:
        """What the model says of `points`, with the line: the inverse of `remove`."""
        line, width = self._line(points, levels)
        return line + width * mean, width * deviation

    def _line(self, points: Sequence[int], levels: Levels) -> tuple[Floats, Floats]:
        """The line at `points`, and the deviation of what is left there, in standard deviations of the own results."""
        mean, unit, _ = levels.moments()
        expected, unsure = self._expect(points)
        return (self._offset + self.slope * expected - mean) / unit, np.hypot(1.0, self.slope * unsure / unit)

    def success(self, points: Sequence[int]) -> Floats:
        """The chance of success at `points` as far as the source's failures tell."""
        fails = FAILED[0] + sum(self._outcomes.values())
        chance = 1.0 - fails / (sum(FAILED) + len(self._outcomes))
        return np.where(self._failed(points), chance, 1.0)

    def _expect(self, points: Sequence[int]) -> tuple[Floats, Floats]:
        fresh = [point for point in dict.fromkeys(points) if point not in self._expected]
        if fresh:
            level, deviation = self._belief.expect(self._space.codes_of(fresh))
            self._expected.update(zip(fresh, zip(level.tolist(), deviation.tolist(), strict=True), strict=True))
        found = np.array([self._expected[point] for point in points]).reshape(-1, 2)
        return found[:, 0], found[:, 1]

    def _failed(self, points: Sequence[int]) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        fresh = [point for point in dict.fromkeys(points) if point not in self._fails]
        if fresh:
            self._fails.update(zip(fresh, self._belief.failed(self._space.codes_of(fresh)).tolist(), strict=True))
        return np.array([self._fails[point] for point in points], dtype=np.bool_)
