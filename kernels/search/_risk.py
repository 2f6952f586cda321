"""Where configurations fail: the chance of success, learned from what failed and what did not.

Owns the classifier. It is a Gaussian process on labels, 1 where a point failed and 0 where it did not (least-squares
classification, Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, section 6.5), with the
hyperparameters fitted: which parameters decide, and how sharply. The base rate is the mean where nothing is known, and
the chance is the probability that the latent label lies below one half.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr  # type: ignore[import-untyped,unused-ignore]

from tunesmith.kernels.domain import Codes
from tunesmith.kernels.search._gaussian import Floats, Hyperparameters, Kernel, Posterior

LEAST = 1e-3
"""Chance of success that is always left to a point."""
_SHARP = 0.1
"""Deviation of the step between failing and not: a latent label of 0.3 is a success with 98 %."""
_ITERATIONS = 20
_FITTED = 160


class FailureModel:
    """The chance of success at candidates. A label is 1 (failed), 0 (did not) or NaN (not known yet)."""

    def __init__(
        self, kernel: Kernel, codes: Codes, labels: Floats, candidates: Codes, start: Hyperparameters | None
    ) -> None:
        """codes: the points, shape (points, parameters), with their labels; start: hyperparameters to begin from."""
        known = np.flatnonzero(np.isfinite(labels))
        rate = (float(labels[known].sum()) + 0.5) / (len(known) + 2.0)
        self._rate, self._unit = rate, math.sqrt(max(rate * (1.0 - rate), 0.02))
        # As many of both kinds as there are, up to half each.
        failed, fine = known[labels[known] > 0.5], known[labels[known] <= 0.5]
        few = np.concatenate([failed[: max(_FITTED // 2, _FITTED - len(fine))], fine])[:_FITTED]
        fitted = self._standardised(labels[few])
        start = start or kernel.failures()
        self.chosen = kernel.fit(codes[few], fitted, np.zeros(len(few)), start, _ITERATIONS)
        self._posterior = Posterior(kernel, self.chosen, codes, np.zeros(len(codes)), candidates)

    def add(self, code: Codes) -> None:
        """Adds one point, shape (1, parameters)."""
        self._posterior.add(code)

    def extend(self, candidates: Codes) -> None:
        """Adds candidates."""
        self._posterior.extend(candidates)

    def success(self, labels: Floats, others: Codes | None = None) -> Floats:
        """The chance of success at the candidates, or at `others`, given the points' labels in the order added."""
        mean, deviation = self._posterior.expect(self._posterior.weights(self._standardised(labels)), others)
        latent = self._rate + self._unit * mean
        chance = ndtr((0.5 - latent) / np.hypot(self._unit * deviation, _SHARP))
        return np.asarray(np.clip(chance, LEAST, 1.0))

    def _standardised(self, labels: Floats) -> Floats:
        return (labels - self._rate) / self._unit
