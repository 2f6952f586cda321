"""The model of a search: a Gaussian process over the values of tuning parameters, its targets, a second process for
which points fail, and expected improvement.

Owns the model only: which points are measured, and when the model is fitted, is `tunesmith.kernels.search.bayesian`.

The kernel is a product over the parameters of (1 + a k) / (1 + a), with k a squared exponential on the parameter's
own features: the ANOVA kernel (Durrande et al., "ANOVA kernels and RKHS of zero mean functions", 2013; compare
Duvenaud et al., "Additive Gaussian processes", 2011). A small `a` makes a parameter act on its own, added to the
rest, which takes few points to learn; a large one lets it interact. Since a parameter has few values, each factor is a
small table, and the kernel between two points is a product of table entries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag, cho_solve, cholesky, solve_triangular
from scipy.linalg.blas import dtrsm
from scipy.linalg.lapack import dpotrf, dpotri, dpotrs
from scipy.optimize import minimize
from scipy.special import erfcx, log_ndtr, ndtr
from threadpoolctl import ThreadpoolController

from tunesmith.kernels.search import Observation
from tunesmith.kernels.space import Codes, Domain, Space

Floats = NDArray[np.float64]

LENGTH = (math.log(0.7), 1.0)
"""Mean and deviation of the logarithm of a length scale, before seeing data; the features run from 0 to 1."""
INTERACTION = (0.0, 1.0)
NOISE = (math.log(1e-3), 1.5)
SCALE = (0.0, 1.0)
JITTER = 1e-8
_CACHED = 1 << 15
"""Elements of the kernel between two lists of points that are computed together."""
_controller = cache(ThreadpoolController)


def single_threaded() -> AbstractContextManager[object]:
    """Linear algebra on one thread while it is entered.

    The matrices are small: more threads made an ask five times slower on a busy machine, where compile workers want
    the cores, and let the last digits depend on their number.
    """
    limit: AbstractContextManager[object] = _controller().limit(limits=1, user_api="blas")
    return limit


def features(domain: Domain) -> list[tuple[int, Floats]]:
    """For each parameter with a choice its column and a row of features for each value, shape (values, features).

    A number is placed by its rank, the spacing its author chose; where the values are not all powers of two, how often
    two divides a value is a second feature (alignment, vector width, warps). Anything else is one of its kind.
    """
    found = []
    for column, parameter in enumerate(domain.parameters):
        count = len(parameter.values)
        if count == 1:
            continue
        if not parameter.ordered:
            found.append((column, np.eye(count) / math.sqrt(2.0) if count > 2 else np.arange(2.0)[:, None]))
            continue
        parts = [domain.rank(column) / (count - 1)]
        if count > 4 and all(isinstance(value, int) for value in parameter.values):
            values = [int(value) for value in parameter.values]
            twos = np.array([max(0, (value & -value).bit_length() - 1) for value in values], dtype=np.float64)
            powers = all(value > 0 and value & (value - 1) == 0 for value in values)
            if not powers and np.ptp(twos) > 0:
                parts.append((twos - twos.min()) / np.ptp(twos))
        found.append((column, np.stack(parts, axis=1)))
    return found


class CovarianceKernel:
    """The kernel over the parameters of one domain. Without parameters that vary it is constant.

    Its hyperparameters are one vector of logarithms: a length for each feature, an interaction `a` for each parameter,
    the variance, the noise's variance. prior: their most probable values before seeing data; failure_start: where the
    fit of which points fail begins, smooth and nearly free of noise.
    """

    def __init__(self, domain: Domain) -> None:
        self._recent: tuple[Floats, list[Floats]] | None = None
        described = features(domain)
        self.columns = [column for column, _ in described]
        # Squared differences of every pair of values, shape (values, values, features).
        self._apart = [np.square(table[:, None, :] - table[None, :, :]) for _, table in described]
        self._edges = np.cumsum([0, *(table.shape[1] for _, table in described)])
        lengths, groups = int(self._edges[-1]), len(described)
        self.prior, self._deviations = (
            np.r_[np.full(lengths, LENGTH[at]), np.full(groups, INTERACTION[at]), SCALE[at], NOISE[at]] for at in (0, 1)
        )
        self.failure_start = np.r_[np.full(lengths, math.log(0.4)), np.full(groups, 1.0), 0.0, math.log(0.01)]

    def tables(self, theta: Floats) -> list[Floats]:
        """The factor of each parameter for every pair of its values; not to be written to."""
        if self._recent is None or self._recent[0] is not theta:
            result = []
            for group, apart in enumerate(self._apart):
                lengths = theta[self._edges[group] : self._edges[group + 1]]
                weight = math.exp(theta[self._edges[-1] + group])
                result.append((1.0 + weight * np.exp(-0.5 * (apart @ np.exp(-2.0 * lengths)))) / (1.0 + weight))
            self._recent = theta, result
        return self._recent[1]

    def between(self, tables: Sequence[Floats], first: Codes, second: Codes) -> Floats:
        """The correlation of each of `first` with each of `second`, shape (len(first), len(second))."""
        result = np.ones((len(first), len(second)))
        factors = []
        for column, table in zip(self.columns, tables, strict=True):
            used, rows = table, np.asarray(first[:, column], dtype=np.intp)
            if len(table) > len(first):
                used, rows = table[rows], np.arange(len(first))
            factors.append((used.take(second[:, column], axis=1), rows))
        # A few rows at a time, so that the factors stay in the processor's cache.
        step = max(1, _CACHED // max(1, len(second)))
        for start in range(0, len(first), step):
            part = result[start : start + step]
            for factor, rows in factors:
                part *= factor[rows[start : start + step]]
        return result

    def fit(self, codes: Codes, values: Floats, noise: Floats, start: Floats, iterations: int) -> Floats:
        """The most probable hyperparameters given standardised `values` at `codes`, from `start` by L-BFGS.

        noise: variance known of each value, in units of `values`, added to the noise that is fitted.
        """
        count, groups, total = len(values), len(self.columns), int(self._edges[-1])
        # The matrices are symmetric: of each pair of points, and of each point with itself, one entry is computed.
        rows, others = np.tril_indices(count)
        below, twice = rows + count * others, np.where(rows == others, 1.0, 2.0)
        pairs, blocks, entries = [], [], 0
        for column, table in zip(self.columns, self._apart, strict=True):
            # Only the values that occur: a parameter may have thousands.
            used, places = np.unique(codes[:, column], return_inverse=True)
            blocks.append(table[np.ix_(used, used)].reshape(len(used) ** 2, -1))
            pairs.append((slice(entries, entries + len(used) ** 2), places[rows] * len(used) + places[others]))
            entries += len(used) ** 2
        # The tables of all parameters one after the other, shape (entries, features of all): exponentials of one array.
        apart = block_diag(*blocks) if groups else np.empty((0, 0))
        group_of = np.repeat(np.arange(groups), np.array([len(block) for block in blocks], dtype=np.intp))
        diagonal = np.arange(count) * (count + 1)

        def loss(theta: Floats) -> tuple[float, Floats]:
            scale, fitted = math.exp(theta[-2]), math.exp(theta[-1])
            covariance, taken = np.full(len(rows), scale), np.empty(len(rows))
            acts, inverse = np.exp(theta[total:-2]), np.exp(-2.0 * theta[:total])
            weight = acts[group_of]
            weighted = weight * np.exp(-0.5 * (apart @ inverse))
            factors = (1.0 + weighted) / (1.0 + weight)
            for own, places in pairs:
                # "clip": the places are right, and unchecked they are looked up twice as fast.
                covariance *= np.take(factors[own], places, out=taken, mode="clip")
            matrix = np.zeros(count * count)
            matrix[below] = covariance
            matrix[diagonal] += fitted + noise + JITTER
            # LAPACK itself, in place: it stores columns first, and reads and writes the lower triangle only.
            lower, failed = dpotrf(matrix.reshape(count, count).T, lower=1, clean=0, overwrite_a=1)
            if failed:
                return 1e10, np.zeros_like(theta)
            solved = dpotrs(lower, values, lower=1)[0]
            deviation = (theta - self.prior) / self._deviations
            value = 0.5 * float(values @ solved + deviation @ deviation) + float(np.log(lower.diagonal()).sum())
            inverted = dpotri(lower, lower=1, overwrite_c=1)[0].T.ravel()
            pull = (solved[rows] * solved[others] - inverted[below]) * covariance * twice
            slope = deviation / self._deviations
            whole = float(pull.sum())
            # All pairs with the same two values share a derivative: sum the pull by table entry first.
            summed = weighted / (1.0 + weighted)
            for own, places in pairs:
                summed[own] *= np.bincount(places, weights=pull, minlength=own.stop - own.start)
            slope[:total] -= 0.5 * (summed @ apart) * inverse
            own_pull = np.bincount(group_of, weights=summed, minlength=groups)
            slope[total:-2] -= 0.5 * (own_pull - whole * acts / (1.0 + acts))
            slope[-2] -= 0.5 * whole
            slope[-1] -= 0.5 * float(solved @ solved - inverted[diagonal].sum()) * fitted
            return value, slope

        bounds = [(-4.0, 4.0)] * total + [(-6.0, 6.0)] * groups + [(-3.0, 5.0), (-14.0, 0.0)]
        found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": iterations})
        return np.asarray(found.x)


class Posterior:
    """The posterior at candidate points, kept up to date as points are added one at a time.

    A point may be added before its value is known (it is in flight) or without one ever (it failed): it then lowers
    the uncertainty around it and leaves the expectation alone, which is what believing the model's own prediction
    there does (the "kriging believer" of Ginsbourger et al., 2010). Adding a point to n others costs O(n candidates).
    """

    def __init__(self, kernel: CovarianceKernel, theta: Floats, codes: Codes, noise: Floats, candidates: Codes) -> None:
        self.kernel, self._tables = kernel, kernel.tables(theta)
        self._scale, self._noise = math.exp(theta[-2]), math.exp(theta[-1])
        self.codes = codes
        covariance = self._covariance(codes, codes)
        covariance[np.diag_indices(len(codes))] += self._noise + noise + JITTER
        self._lower = cholesky(covariance, lower=True, check_finite=False)
        self.candidates = candidates
        # With room for more points than are added until the next fit.
        self._buffer = np.empty((16 + len(codes) * 5 // 4, len(candidates)))
        self._buffer[: len(codes)] = self._whitened(candidates)
        self._explained = np.square(self._rows).sum(axis=0)

    @property
    def _rows(self) -> Floats:
        return self._buffer[: len(self.codes)]

    def _covariance(self, first: Codes, second: Codes) -> Floats:
        covariance = self.kernel.between(self._tables, first, second)
        covariance *= self._scale
        return covariance

    def _whitened(self, candidates: Codes) -> Floats:
        rows = self._covariance(self.codes, candidates)
        if not rows.size:
            return rows
        # Transposed, the rows are the columns that BLAS wants, in place: `solve_triangular` would copy them twice.
        return np.asarray(dtrsm(1.0, self._lower, rows.T, side=1, lower=1, trans_a=1, overwrite_b=1)).T

    def add(self, code: Codes) -> None:
        """Adds one point, shape (1, parameters)."""
        count = len(self.codes)
        column = solve_triangular(self._lower, self._covariance(self.codes, code)[:, 0], lower=True, check_finite=False)
        pivot = math.sqrt(max(self._scale + self._noise + JITTER - float(column @ column), JITTER))
        grown = np.zeros((count + 1, count + 1))
        grown[:count, :count] = self._lower
        grown[count, :count] = column
        grown[count, count] = pivot
        row = (self._covariance(code, self.candidates)[0] - column @ self._rows) / pivot
        if count == len(self._buffer):
            self._buffer = np.concatenate([self._buffer, np.empty((16 + count // 4, len(self.candidates)))])
        self._buffer[count] = row
        self._lower, self.codes = grown, np.concatenate([self.codes, code])
        self._explained += row * row

    def extend(self, candidates: Codes) -> None:
        """Adds candidates."""
        fresh = self._whitened(candidates)
        self._buffer = np.concatenate([self._rows, fresh], axis=1)
        self._explained = np.concatenate([self._explained, np.square(fresh).sum(axis=0)])
        self.candidates = np.concatenate([self.candidates, candidates])

    def weights(self, values: Floats) -> Floats:
        """Weights for `expect`, from standardised `values`, one a point in the order added, NaN where there is none."""
        unknown = np.flatnonzero(~np.isfinite(values))
        filled = values.copy()
        filled[unknown] = 0.0
        weights = np.asarray(solve_triangular(self._lower, filled, lower=True, check_finite=False))
        if not len(unknown):
            return weights
        # Values at the unknown points that leave them without a say: a projection off their columns.
        columns = solve_triangular(self._lower, np.eye(len(values))[:, unknown], lower=True, check_finite=False)
        factor = cholesky(columns.T @ columns, lower=True, check_finite=False)
        return np.asarray(weights - columns @ cho_solve((factor, True), columns.T @ weights, check_finite=False))

    def expect(self, weights: Floats, others: Codes | None = None) -> tuple[Floats, Floats]:
        """Mean and standard deviation at the candidates, or at `others`."""
        if others is None:
            mean, explained = weights @ self._rows, self._explained
        else:
            rows = self._whitened(others)
            mean, explained = weights @ rows, np.square(rows).sum(axis=0)
        return mean, np.sqrt(np.maximum(self._scale - explained, 1e-10))

    def mean(self, weights: Floats, others: Codes) -> Floats:
        """The mean alone at `others`: without a deviation they need not be whitened."""
        solved = solve_triangular(self._lower, weights, lower=True, trans=1, check_finite=False)
        return np.asarray(solved @ self._covariance(self.codes, others))


MIN_SUCCESS = 1e-3
"""Chance of success that is always left to a point."""
_LABEL_DEVIATION = 0.5
"""Deviation of a label, before seeing data."""
_STEP_DEVIATION = 0.15
"""Deviation of the step from success to failure, which is at a label of one half: one of 0.2 is a success with 98 %."""
_FIT_ITERATIONS = 10
_FIT_POINTS = 100


def failure_model(kernel: CovarianceKernel, codes: Codes, labels: Floats, start: Floats) -> tuple[Posterior, Floats]:
    """The posterior of failures, and its hyperparameters. codes: the points, shape (points, parameters), with their
    labels: 1 (failed), 0 (did not) or NaN (not known yet); start: hyperparameters to begin from."""
    known = np.flatnonzero(np.isfinite(labels))
    # As many of both kinds as there are, up to half each.
    failed, fine = known[labels[known] > 0.5], known[labels[known] <= 0.5]
    few = np.concatenate([failed[: max(_FIT_POINTS // 2, _FIT_POINTS - len(fine))], fine])[:_FIT_POINTS]
    theta = kernel.fit(codes[few], labels[few] / _LABEL_DEVIATION, np.zeros(len(few)), start, _FIT_ITERATIONS)
    return Posterior(kernel, theta, codes, np.zeros(len(codes)), codes[:0]), theta


def chance_of_success(failures: Posterior, labels: Floats, others: Codes) -> Floats:
    """At most 1, at `others`. failures, labels: as of `failure_model`, with the labels in the order added."""
    mean = failures.mean(failures.weights(labels / _LABEL_DEVIATION), others)
    return np.asarray(np.clip(ndtr((0.5 - _LABEL_DEVIATION * mean) / _STEP_DEVIATION), MIN_SUCCESS, 1.0))


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
        """Takes in `seen`; a failure takes out an earlier value."""
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

    def impute(self, kernel: CovarianceKernel, theta: Floats, most: int, points: Sequence[int] | None = None) -> None:
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
        model = Posterior(kernel, theta, codes(complete), noise, codes(wanted))
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


_TAIL = -30.0
"""Deviations below which the expansion of Mills' ratio is exact to the last digits, and the ratio itself is not."""
_FIRST_BATCH = 64
"""Candidates whose chance of success is asked for first; it is seldom asked for more."""


def log_expected_improvement(best: float, mean: Floats, deviation: Floats) -> Floats:
    """The logarithm of how far a normal value falls below `best` on average (Jones et al., 1998).

    The logarithm keeps ranking points where the expectation itself is 0 in floating point (Ament et al., "Unexpected
    improvements to expected improvement", 2023): without it, all points that are known to be slow would be equal.
    """
    gain = (best - mean) / deviation
    density = -0.5 * gain * gain - 0.5 * math.log(2.0 * math.pi)
    near = np.maximum(gain, -1.0)
    head = np.log(near * ndtr(near) + np.exp(-0.5 * near * near) / math.sqrt(2.0 * math.pi))
    far = np.minimum(gain, -1.0)
    mills = -far * math.sqrt(0.5 * math.pi) * erfcx(-far / math.sqrt(2.0))
    tail = np.where(far > _TAIL, np.log1p(-np.minimum(mills, 1.0 - 1e-12)), -2.0 * np.log(-far))
    return np.asarray(np.log(deviation) + np.where(gain > -1.0, head, density + tail))


def best_candidate(
    scores: Floats, limit: float, chance: Callable[[list[int]], Floats]
) -> tuple[int, float, bool] | None:
    """The place of the candidate with the largest sum of `scores` (logarithms of expected improvements, -inf for
    candidates that do not count) and of the logarithm of its chance of success, the first one of equals; that sum; and
    whether its chance is at least `limit`. Candidates of which it is come before all others, whatever is expected of
    them. None where no candidate counts.

    chance: the chances of success, at most 1, of the candidates at the given places. Since they are at most 1, it is
    asked from the largest score down, and no further than where those left could not win with a chance of 1.
    """
    left = np.flatnonzero(scores > -np.inf)
    best: tuple[bool, float, int] | None = None
    many = _FIRST_BATCH
    while len(left):
        many = min(many, len(left))
        left = left[np.argpartition(-scores[left], many - 1)]
        few, left, many = left[:many], left[many:], 8 * many
        chances = chance(few.tolist())
        totals = scores[few] + np.log(chances)
        likely = chances >= limit
        top = np.lexsort((few, -totals, ~likely))[0]
        found = bool(likely[top]), float(totals[top]), -int(few[top])
        best = found if best is None else max(best, found)
        if best[0] and (not len(left) or best[1] > scores[left].max()):
            break
    return None if best is None else (-best[2], best[1], best[0])
