"""Model-based search: a Gaussian process over the feasible points says which one is most worth measuring.

Owns the strategy: first points, fits of the model, candidates, and the choice among them. The scheme is Bayesian
optimisation on the logarithm of the objective with expected improvement (Jones et al., 1998), over listed feasible
points instead of a box; the model is `tunesmith.kernels.search.model`. Failures are information: a second process gives
the chance of success, by which the expectation is multiplied, and of the candidates only those count whose chance is
above a limit drawn anew for each ask (Hellsten et al., "BaCO: a fast and portable Bayesian compiler optimization
framework", 2023), so that the search returns to where all fails as seldom as it should.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from tunesmith.kernels.search import Observation, Strategy
from tunesmith.kernels.search.model import (
    CovarianceKernel,
    Floats,
    Posterior,
    Targets,
    best_candidate,
    chance_of_success,
    failure_model,
    log_expected_improvement,
    single_threaded,
)
from tunesmith.kernels.space import Space


class SurrogateSearch(Strategy):
    """Bayesian optimisation with an ANOVA Gaussian process; constants were chosen by cross-validation over tables."""

    name: ClassVar[str] = "surrogate"

    PRIOR_SEEDS: ClassVar[int] = 4
    INITIAL_POINTS: ClassVar[int] = 8
    """Points before the model says anything, spread over the space (the best ones of a prior among them)."""
    INITIAL_CANDIDATES: ClassVar[int] = 64
    """Random points of which the one farthest from all asked is taken, for the first points."""
    CANDIDATES: ClassVar[int] = 4500
    """Random feasible points the model looks at, besides the neighbours of the best known."""
    ELITE: ClassVar[int] = 12
    """Best known points whose neighbours are candidates."""
    MAX_NEIGHBOURS: ClassVar[int] = 64
    """Neighbours taken of one point."""
    REFIT_GROWTH: ClassVar[float] = 0.1
    """Growth of the number of results after which the hyperparameters are fitted anew."""
    MODEL_POINTS: ClassVar[int] = 320
    """Points that the model keeps: beyond, the best ones, the latest ones and the latest failures."""
    FIT_POINTS: ClassVar[int] = 160
    """Points that the hyperparameters are fitted to."""
    FIT_ITERATIONS: ClassVar[int] = 20
    MAX_SUCCESS_LIMIT: ClassVar[float] = 0.25
    """Largest limit on the chance of success: a point that has this chance is never held back."""
    MEAN_SHARE: ClassVar[float] = 1.0
    MEAN_EXPONENT: ClassVar[float] = 3.0
    """The chance that an ask goes to the best expected value, whatever the model's certainty: `MEAN_SHARE` times the
    share of the results since the last improvement, to the power of `MEAN_EXPONENT`."""

    def __init__(self, space: Space, *, workers: int = 1, **arguments: Any) -> None:
        super().__init__(space, workers=workers, **arguments)
        self._kernel = CovarianceKernel(space.domain)
        self._theta = self._kernel.prior
        self._model: Posterior | None = None
        self._points: list[int] = []
        self._place: dict[int, int] = {}
        self._candidates: list[int] = []
        self._slot: dict[int, int] = {}
        self._taken_slots: list[int] = []
        self._near: dict[int, list[int]] = {}
        # With many in flight, more than INITIAL_POINTS are asked before as many results are known: begin with fewer.
        self._next_fit = max(5, self.INITIAL_POINTS - (workers - 1) // 2)
        self._targets = Targets(space)
        self._failed: dict[int, None] = {}
        self._failure_model: Posterior | None = None
        self._failure_theta = self._kernel.failure_start
        self._improved_at = 0
        """Number of results known when the best one came."""

    def _note_asked(self, point: int) -> None:
        if self._model is not None and point not in self._place:
            with single_threaded():
                self._add(point)

    def _note_told(self, point: int, observation: Observation) -> None:
        if observation.value is None:
            self._failed[point] = None
        else:
            self._failed.pop(point, None)
        if self.best is not None and self.best[0] == point:
            self._improved_at = len(self.known)
        with single_threaded():
            self._targets.note(point, observation)
            if len(self.known) >= self._next_fit and len(self._targets) >= 4:
                self._next_fit = len(self.known) + max(3, round(len(self.known) * self.REFIT_GROWTH))
                self._rebuild()
            elif self._model is not None:
                if observation.dropped:
                    self._targets.impute(self._kernel, self._theta, self.MODEL_POINTS, [point])
                if point not in self._place:
                    self._add(point)
                if self.best is not None and self.best[0] == point:
                    self._extend(self._around([point]))
            if self._failed and self._failure_model is None and self._model is not None:
                self._failure_model = self._fit_failure_model()

    def _propose(self, rng: np.random.Generator) -> int | None:
        with single_threaded():
            return self._spread(rng) if self._model is None else self._improve(self._model, rng)

    def _improve(self, model: Posterior, rng: np.random.Generator) -> int | None:
        weights, best = self._target(model)
        limit = self.MAX_SUCCESS_LIMIT * float(rng.random())
        mean, deviation = model.expect(weights)
        by_mean = rng.random() < self._mean_chance
        scores = best - mean if by_mean else log_expected_improvement(best, mean, deviation)
        scores[self._taken_slots] = -np.inf
        first = best_candidate(scores, limit, lambda at: self._success([self._candidates[place] for place in at]))
        if first is None:
            return next(iter(self._fresh(rng)), None)
        chosen, score = self._candidates[first[0]], first[1]
        # In a space too large to look at every point, climb from the best candidate to better neighbours of it.
        if not self._complete and not by_mean:
            others = [point for point in self._around([chosen]) if point not in self._slot]
            if others:
                beside = log_expected_improvement(best, *model.expect(weights, self.space.codes_of(others)))
                beside = np.where(beside > score, beside, -np.inf)
                better = best_candidate(beside, limit, lambda at: self._success([others[place] for place in at]))
                if better is not None and better[2] and better[1] > score:
                    chosen = others[better[0]]
        return chosen

    def _method(self) -> str:
        source = f", the best of {self.prior.name} among them" if self.prior else ""
        return (
            f"surrogate: after {self.INITIAL_POINTS} points spread over the space{source}, a Gaussian process on the "
            "logarithm of the objective, fitted to all results, picks the point with the largest expected improvement"
        )

    @property
    def _mean_chance(self) -> float:
        """The chance that an ask ignores the model's deviations.

        Late in a search the model is sure of itself where it is wrong: its errors are several times its deviations, and
        an optimum that it has missed stands far nearer to the front in the order of expected values than in that of
        expected improvements. The longer nothing has improved, the likelier that is.
        """
        stagnation = (len(self.known) - self._improved_at) / max(1, len(self.known))
        return float(self.MEAN_SHARE * stagnation**self.MEAN_EXPONENT)

    @property
    def _complete(self) -> bool:
        return len(self.space) <= self.CANDIDATES

    def _spread(self, rng: np.random.Generator) -> int | None:
        """A point far from all asked ones; where most points fail, a point with a larger chance of success."""
        fresh = self._fresh(rng, self.INITIAL_CANDIDATES)
        if not fresh or not self.asked:
            return fresh[0] if fresh else None
        codes = self.space.codes_of(fresh)
        if len(self.known) >= self.INITIAL_POINTS and self._failed and len(self._failed) < len(self.known):
            known = list(self.known)
            labels = np.array([float(point in self._failed) for point in known])
            model, _ = failure_model(self._kernel, self.space.codes_of(known), labels, self._failure_theta)
            likely = np.argsort(-chance_of_success(model, labels, codes), kind="stable")[: max(1, len(fresh) // 4)]
            fresh, codes = [fresh[place] for place in likely], codes[likely]
        tables = self._kernel.tables(self._theta)
        near = self._kernel.between(tables, self.space.codes_of(list(self.asked)), codes)
        return fresh[int(np.argmin(near.max(axis=0)))]

    def _rebuild(self) -> None:
        """Fits the hyperparameters, and sets up the posterior with new candidates."""
        rng = self._rng()
        self._targets.impute(self._kernel, self._theta, self.MODEL_POINTS)
        ranked, latest = self._targets.ranked(), self._targets.latest()
        chosen = list(dict.fromkeys(ranked[: self.FIT_POINTS // 2] + latest))[: self.FIT_POINTS]
        codes = self.space.codes_of(chosen)
        values, noise = self._targets.standardised(chosen)
        self._theta = self._kernel.fit(codes, values, noise, self._theta, self.FIT_ITERATIONS)
        failed = list(self._failed)[::-1]
        keep = (
            ranked[: self.MODEL_POINTS // 2] + list(self.pending) + failed[: self.MODEL_POINTS // 5] + latest + failed
        )
        self._points = list(dict.fromkeys(keep))[: self.MODEL_POINTS]
        self._place = {point: place for place, point in enumerate(self._points)}
        if self._complete:
            pool = list(range(len(self.space)))
        else:
            pool = self.space.sample(rng, self.CANDIDATES) + self._around(ranked[: self.ELITE])
        taken = self.asked.keys() | self.known.keys()
        self._candidates = [point for point in dict.fromkeys(pool) if point not in taken]
        self._slot = {point: place for place, point in enumerate(self._candidates)}
        self._taken_slots = []
        _, noise = self._targets.standardised(self._points)
        self._model = Posterior(
            self._kernel, self._theta, self.space.codes_of(self._points), noise, self.space.codes_of(self._candidates)
        )
        self._failure_model = self._fit_failure_model() if self._failed else None

    def _fit_failure_model(self) -> Posterior:
        assert self._model is not None
        start, codes = self._failure_theta, self._model.codes
        failures, self._failure_theta = failure_model(self._kernel, codes, self._labels(), start)
        return failures

    def _labels(self) -> Floats:
        """For each of the model's points 1 if it failed, 0 if it did not, NaN if it is in flight."""
        return np.array([float(point in self._failed) if point in self.known else np.nan for point in self._points])

    def _add(self, point: int) -> None:
        assert self._model is not None
        self._place[point] = len(self._points)
        self._points.append(point)
        if point in self._slot:
            self._taken_slots.append(self._slot[point])
        self._model.add(self.space.codes_of([point]))
        if self._failure_model is not None:
            self._failure_model.add(self.space.codes_of([point]))

    def _extend(self, points: Sequence[int]) -> None:
        assert self._model is not None
        fresh = [point for point in points if point not in self._slot]
        if fresh:
            self._slot.update((point, len(self._candidates) + place) for place, point in enumerate(fresh))
            self._candidates.extend(fresh)
            self._model.extend(self.space.codes_of(fresh))

    def _around(self, points: Sequence[int]) -> list[int]:
        """Points not taken that differ from one of `points` in one parameter, about `MAX_NEIGHBOURS` each at most."""
        for point in points:
            # Kept, as the best points are looked around again and again.
            if point not in self._near:
                near = self.space.neighbours(point, adjacent=False)
                if len(near) > self.MAX_NEIGHBOURS:
                    # Parameters with very many values: the next values, and a fixed random choice among the far ones.
                    picked = np.random.default_rng([self.seed & ((1 << 64) - 1), point]).permutation(len(near))
                    near = self.space.neighbours(point) + [near[place] for place in picked[: self.MAX_NEIGHBOURS]]
                self._near[point] = near
        around = dict.fromkeys(near for point in points for near in self._near[point])
        return [point for point in around if not self.taken(point)]

    def _target(self, model: Posterior) -> tuple[Floats, float]:
        """The posterior's weights, and the value, standardised, that the next point should improve on: the best
        complete value, or a better value that is expected of a point in flight."""
        least = self._targets.least() if self.best is None else math.log(self.best[1])
        best = self._targets.standard(least)
        weights = model.weights(self._targets.standardised(self._points)[0])
        if self.pending:
            mean, _ = model.expect(weights, self.space.codes_of(list(self.pending)))
            best = min(best, float(mean.min()))
        return weights, best

    def _success(self, points: Sequence[int]) -> Floats:
        """The chance of success, at most 1, of `points`."""
        if self._failure_model is None:
            return np.ones(len(points))
        return chance_of_success(self._failure_model, self._labels(), self.space.codes_of(points))
