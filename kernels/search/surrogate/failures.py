"""Where configurations fail: the chance of success, learned from what failed and what did not.

Owns the classifier. It is a Gaussian process on labels, 1 where a point failed and 0 where it did not (least-squares
classification, Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, section 6.5), with the
hyperparameters fitted: which parameters decide, and how sharply. What is known of no point is taken to work: on the
tables this found as much as a mean at the base rate, with fewer failures where they have a pattern.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr  # type: ignore[import-untyped,unused-ignore]

from tunesmith.kernels.search.surrogate.gaussian import Floats, Hyperparameters, Kernel, Posterior
from tunesmith.kernels.space.domain import Codes

MIN_SUCCESS = 1e-3
"""Chance of success that is always left to a point."""
_LABEL_DEVIATION = 0.5
"""Deviation of a label, before seeing data."""
_STEP_DEVIATION = 0.15
"""Deviation of the step from success to failure, which is at a label of one half: one of 0.2 is a success with 98 %."""
_FIT_ITERATIONS = 10
_FIT_POINTS = 100


class FailureModel:
    """The chance of success of points. A label is 1 (failed), 0 (did not) or NaN (not known yet)."""

    def __init__(self, kernel: Kernel, codes: Codes, labels: Floats, start: Hyperparameters | None) -> None:
        """codes: the points, shape (points, parameters), with their labels; start: hyperparameters to begin from."""
        known = np.flatnonzero(np.isfinite(labels))
        # As many of both kinds as there are, up to half each.
        failed, fine = known[labels[known] > 0.5], known[labels[known] <= 0.5]
        few = np.concatenate([failed[: max(_FIT_POINTS // 2, _FIT_POINTS - len(fine))], fine])[:_FIT_POINTS]
        start = start or kernel.failures()
        self.chosen = kernel.fit(codes[few], labels[few] / _LABEL_DEVIATION, np.zeros(len(few)), start, _FIT_ITERATIONS)
        self._posterior = Posterior(kernel, self.chosen, codes, np.zeros(len(codes)), codes[:0])

    def add(self, code: Codes) -> None:
        """Adds one point, shape (1, parameters)."""
        self._posterior.add(code)

    def success(self, labels: Floats, others: Codes) -> Floats:
        """The chance of success, at most 1, at `others`, given the points' labels in the order added."""
        mean = self._posterior.mean(self._posterior.weights(labels / _LABEL_DEVIATION), others)
        return np.asarray(np.clip(ndtr((0.5 - _LABEL_DEVIATION * mean) / _STEP_DEVIATION), MIN_SUCCESS, 1.0))
