"""What each parameter does to the time: a functional analysis of variance of the model of a search.

Owns the decomposition only: it is given a space and observations, and measures nothing. The model is the one that the
strategy `surrogate` searches with, fitted once to all results, whichever strategy asked for them. Its expectation at
the feasible points is averaged over all parameters but one; the share of a parameter is the variance of that average
over the variance of the expectation, Var(E[m | x]) / Var(m) (Hutter, Hoos and Leyton-Brown, "An efficient approach for
assessing hyperparameter importance", ICML 2014, there with a forest). Averages run over *feasible* points, since only
those can be launched; where constraints tie parameters together, shares overlap and need not add up to 1.

Main effects by least squares were tried: a search measures near its best points, and where parameters interact their
shares then are wrong (on a convolution the order of the parameters was lost).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tunesmith.kernels.search.base import Observation
from tunesmith.kernels.search.model import CovarianceKernel, Floats, Posterior, Targets, single_threaded
from tunesmith.kernels.space import Space

MIN_POINTS = 8
"""Results below which nothing is said: as many as a search has before its model says anything."""
MAX_FITTED, MAX_AVERAGED = 320, 20_000
"""Results that the model is fitted to, and feasible points that its expectation is averaged over."""
FIT_ITERATIONS = 60


@dataclass(frozen=True, slots=True)
class Effect:
    """What one parameter does on its own. share: of the variance of the expected logarithm of the objective, from 0 to
    1; expected: for each of the parameter's values, in their order, the objective's geometric mean over the feasible
    points that have it; None for a value that no feasible point has."""

    parameter: str
    share: float
    expected: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Effects:
    """Effects, the largest first. explained: the share of the measured variance that the model predicts for a point
    when fitted to all the others (leave-one-out R squared); below 0 it predicts less than their mean does."""

    parameters: tuple[Effect, ...]
    explained: float
    points: int


def effects(space: Space, results: Mapping[int, Observation], *, seed: int = 0) -> Effects | None:
    """The effects of a space's parameters, from observations by point; None where fewer than `MIN_POINTS` have a
    value, all values are alike, or nothing varies. seed: of the sample of feasible points, where there are many."""
    targets = Targets(space)
    for point, seen in results.items():
        if seen.value is not None:
            targets.note(point, seen)
    kernel = CovarianceKernel(space.domain)
    if len(targets) < MIN_POINTS or not kernel.columns or targets.moments()[1] < 1e-6:
        return None
    with single_threaded():
        targets.impute(kernel, kernel.prior, MAX_FITTED)
        ranked = targets.ranked()
        # The best ones, and of the others as many, evenly spread: a model of the best alone would not see bad values.
        others = ranked[MAX_FITTED // 2 :]
        fitted = ranked[: MAX_FITTED // 2] + others[:: max(1, math.ceil(2 * len(others) / MAX_FITTED))]
        codes = space.codes_of(fitted)
        values, noise = targets.standardised(fitted)
        theta = kernel.fit(codes, values, noise, kernel.prior, FIT_ITERATIONS)
        sample = space.codes_of(space.sample(np.random.default_rng(seed), MAX_AVERAGED))
        model = Posterior(kernel, theta, codes, noise, sample[:0])
        expected = model.mean(model.weights(values), sample)
        covariance = math.exp(theta[-2]) * kernel.between(kernel.tables(theta), codes, codes)
        covariance[np.diag_indices(len(codes))] += math.exp(theta[-1]) + noise
        explained = _left_out(covariance, values)
    centre, unit, _ = targets.moments()
    variance = float(expected.var())
    found = []
    for column in kernel.columns:
        groups, count = sample[:, column], len(space.domain.parameters[column].values)
        sizes = np.bincount(groups, minlength=count)
        sums = np.bincount(groups, weights=expected, minlength=count)
        means = np.divide(sums, sizes, out=np.full(count, math.nan), where=sizes > 0)
        shown = tuple(None if math.isnan(mean) else math.exp(centre + unit * mean) for mean in means.tolist())
        share = min(1.0, float(means[groups].var()) / variance) if variance > 0 else 0.0
        found.append(Effect(space.domain.names[column], share, shown))
    found.sort(key=lambda one: -one.share)
    return Effects(tuple(found), explained, len(fitted))


def _left_out(covariance: Floats, values: Floats) -> float:
    """The leave-one-out R squared of a Gaussian process, in closed form (Rasmussen and Williams, "Gaussian Processes
    for Machine Learning", 2006, section 5.4.2)."""
    inverse = np.linalg.inv(covariance)
    errors = (inverse @ values) / inverse.diagonal()
    spread = float(np.square(values - values.mean()).sum())
    return 1.0 - float(np.square(errors).sum()) / spread if spread > 0 else 0.0


__all__ = ["Effect", "Effects", "effects"]
