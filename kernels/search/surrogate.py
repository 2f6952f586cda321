"""Model-based search: a Gaussian process over the feasible points says which one is most worth measuring.

Owns the strategy: first points, when the model is fitted anew, candidates, what is asked. The scheme is Bayesian
optimisation on the logarithm of the objective with expected improvement (Jones et al., 1998), over listed feasible
points instead of a box. The model is in `_gaussian`, the acquisition in `_acquisition`. Failures are information: a
second process (`_risk`) gives the chance of success, by which the expectation is multiplied, and of the candidates
only those count whose chance is above a limit drawn anew for each ask (Hellsten et al., "BaCO: a fast and portable
Bayesian compiler optimization framework", 2023), so that the search returns to where all fails as seldom as it should.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from tunesmith.kernels.search._acquisition import foremost, log_expected_improvement
from tunesmith.kernels.search._base import Observation, Strategy
from tunesmith.kernels.search._gaussian import Floats, Hyperparameters, Kernel, Posterior, one_thread
from tunesmith.kernels.search._levels import Levels
from tunesmith.kernels.search._risk import FailureModel
from tunesmith.kernels.search._trend import Trend
from tunesmith.kernels.search.prior import Prior
from tunesmith.kernels.space.space import Space
from tunesmith.kernels.spec.parameter import Config


class SurrogateSearch(Strategy):
    """Bayesian optimisation with an ANOVA Gaussian process; constants were chosen by cross-validation over tables."""

    name: ClassVar[str] = "surrogate"

    LED: ClassVar[int] = 4
    FIRST: ClassVar[int] = 8
    """Points before the model says anything, spread over the space (the best ones of a prior among them)."""
    SPREAD: ClassVar[int] = 64
    """Random points of which the one farthest from all asked is taken, for the first points."""
    CANDIDATES: ClassVar[int] = 4500
    """Random feasible points the model looks at, besides the neighbours of the best known."""
    ELITE: ClassVar[int] = 12
    """Best known points whose neighbours are candidates."""
    NEAR: ClassVar[int] = 64
    """Neighbours taken of one point."""
    REFIT: ClassVar[float] = 0.1
    """Growth of what is known after which the hyperparameters are fitted anew."""
    MOST: ClassVar[int] = 320
    """Points that the model keeps: beyond, the best ones, the latest ones and the latest failures."""
    FITTED: ClassVar[int] = 160
    """Points that the hyperparameters are fitted to."""
    ITERATIONS: ClassVar[int] = 20
    LIMIT: ClassVar[float] = 0.25
    """Largest limit on the chance of success: a point that has this chance is never held back."""
    LEADS: ClassVar[int] = 24
    """Results after which own evidence leads, and a prior is followed only now and then."""
    AGAIN: ClassVar[int] = 4
    """Models of which one follows a prior, after that."""
    BELIEVED: ClassVar[int] = 200
    """Best points of a prior that are always candidates."""
    GREEDY: ClassVar[range] = range(50, 100)
    """Numbers of results at which one ask in `EVERY` goes to the point that is expected to be best, however little is
    left to learn there: where the model is wrong and sure of it, expected improvement leads elsewhere."""
    EVERY: ClassVar[int] = 4

    def __init__(
        self,
        space: Space,
        *,
        seed: int,
        budget: int | None = None,
        workers: int = 1,
        seeds: Sequence[Config] = (),
        prior: Prior | None = None,
    ) -> None:
        super().__init__(space, seed=seed, budget=budget, workers=workers, seeds=seeds, prior=prior)
        self._kernel = Kernel(space.domain)
        self._chosen: Hyperparameters = self._kernel.prior()
        self._model: Posterior | None = None
        self._points: list[int] = []
        self._place: dict[int, int] = {}
        self._candidates: list[int] = []
        self._slot: dict[int, int] = {}
        self._gone: list[int] = []
        self._near: dict[int, list[int]] = {}
        # With many in flight, more than FIRST points are asked before so many are told: begin with fewer results.
        self._next_fit = max(5, self.FIRST - (workers - 1) // 2)
        self._levels = Levels(space)
        self._bad: dict[int, None] = {}
        self._risk: FailureModel | None = None
        self._risky: Hyperparameters | None = None
        self._source = None if self.belief is None else Trend(space, self.belief)
        self._trend: Trend | None = None
        self._models = 0
        self._other = self._chosen

    def _note_asked(self, point: int) -> None:
        if self._model is not None and point not in self._place:
            with one_thread():
                self._add(point)

    def _note_told(self, point: int, observation: Observation) -> None:
        if observation.value is None:
            self._bad[point] = None
        else:
            self._bad.pop(point, None)
        with one_thread():
            self._levels.note(point, observation)
            if self._source is not None:
                self._source.note(point, observation)
            self._update(point)
            if self._bad and self._risk is None and self._model is not None:
                self._risk = self._failure_model()

    def _update(self, point: int) -> None:
        if len(self.known) >= self._next_fit and len(self._levels) >= 4:
            self._next_fit = len(self.known) + max(3, round(len(self.known) * self.REFIT))
            self._rebuild()
        elif self._model is not None:
            if self.known[point].dropped:
                self._levels.impute(self._kernel, self._chosen, self._trend, self.MOST, [point])
            if point not in self._place:
                self._add(point)
            if self.best is not None and self.best[0] == point:
                self._extend(self._around([point]))

    def _propose(self, rng: np.random.Generator) -> int | None:
        with one_thread():
            return self._spread(rng) if self._model is None else self._improve(self._model, rng)

    def _improve(self, model: Posterior, rng: np.random.Generator) -> int | None:
        weights, best = self._target(model)
        limit = self.LIMIT * float(rng.random())
        greedy = len(self.known) in self.GREEDY and len(self.asked) % self.EVERY == 0
        mean, deviation = self._expected(model, weights, None)
        scores = best - mean if greedy else log_expected_improvement(best, mean, deviation)
        scores[self._gone] = -np.inf
        first = foremost(scores, limit, lambda places: self._success([self._candidates[place] for place in places]))
        if first is None:
            found = self._fresh(rng)
            return found[0] if found else None
        chosen, score = self._candidates[first.place], first.score
        # In a space too large to look at every point, climb from the best candidate to better neighbours of it.
        if not self._complete and not greedy:
            others = [point for point in self._around([chosen]) if point not in self._slot]
            if others:
                beside = log_expected_improvement(best, *self._expected(model, weights, others))
                beside = np.where(beside > score, beside, -np.inf)
                better = foremost(beside, limit, lambda places: self._success([others[place] for place in places]))
                if better is not None and better.likely and better.score > score:
                    chosen = others[better.place]
        return chosen

    def _method(self) -> str:
        source = f", led by {self.prior.name} as far as that proves right" if self.prior and self.belief else ""
        return (
            f"surrogate: a Gaussian process on the logarithm of the objective, fitted to what is known, picks the "
            f"point with the largest expected improvement after {self.FIRST} points spread over the space{source}"
        )

    @property
    def _complete(self) -> bool:
        return len(self.space) <= self.CANDIDATES

    def _spread(self, rng: np.random.Generator) -> int | None:
        """A point far from all asked ones; where most points fail, one that is likelier than others not to."""
        fresh = self._fresh(rng, self.SPREAD)
        if not fresh or not self.asked:
            return fresh[0] if fresh else None
        codes = self.space.codes_of(fresh)
        if len(self.known) >= self.FIRST and self._bad and len(self._bad) < len(self.known):
            known = list(self.known)
            labels = np.array([float(point in self._bad) for point in known])
            model = FailureModel(self._kernel, self.space.codes_of(known), labels, self._risky)
            likely = np.argsort(-model.success(labels, codes), kind="stable")[: max(1, len(fresh) // 4)]
            fresh, codes = [fresh[place] for place in likely], codes[likely]
        tables = self._kernel.tables(self._chosen)
        near = self._kernel.between(tables, self.space.codes_of(list(self.asked)), codes)
        return fresh[int(np.argmin(near.max(axis=0)))]

    def _rebuild(self) -> None:
        """Fits the hyperparameters, and sets up the posterior with new candidates."""
        rng = self._rng()
        if self._source is not None:
            self._follow(self._source)
        self._levels.impute(self._kernel, self._chosen, self._trend, self.MOST)
        ranked, latest = self._levels.ranked(), self._levels.latest()
        chosen = list(dict.fromkeys(ranked[: self.FITTED // 2] + latest))[: self.FITTED]
        codes = self.space.codes_of(chosen)
        values, noise = self._levels.standardised(chosen)
        if self._trend is not None:
            self._trend.fit(self._kernel, self._chosen, codes, values, noise, chosen, self._levels)
            values, noise = self._trend.remove(values, noise, chosen, self._levels)
        self._chosen = self._kernel.fit(codes, values, noise, self._chosen, self.ITERATIONS)
        failed = list(self._bad)[::-1]
        keep = ranked[: self.MOST // 2] + list(self.pending) + failed[: self.MOST // 5] + latest + failed
        self._points = list(dict.fromkeys(keep))[: self.MOST]
        self._place = {point: place for place, point in enumerate(self._points)}
        if self._complete:
            pool = list(range(len(self.space)))
        else:
            pool = self.space.sample(rng, self.CANDIDATES) + self._around(ranked[: self.ELITE])
            if self.belief is not None:
                pool += self.belief.best(self.BELIEVED)
        taken = self.asked.keys() | self.known.keys()
        self._candidates = [point for point in dict.fromkeys(pool) if point not in taken]
        self._slot = {point: place for place, point in enumerate(self._candidates)}
        self._gone = []
        _, noise = self._standardised(self._points)
        self._model = Posterior(
            self._kernel, self._chosen, self.space.codes_of(self._points), noise, self.space.codes_of(self._candidates)
        )
        self._risk = self._failure_model() if self._bad else None

    def _follow(self, source: Trend) -> None:
        """Decides whether the next model follows the source: always at first, then now and then, so that one that
        misleads costs little. Either kind of model has hyperparameters of its own."""
        self._models += 1
        follow = len(self.known) < self.LEADS or self._models % self.AGAIN == 0
        if follow != (self._trend is not None):
            self._chosen, self._other = self._other, self._chosen
        self._trend = source if follow else None

    def _failure_model(self) -> FailureModel:
        assert self._model is not None
        model = self._model
        risk = FailureModel(self._kernel, model.codes, self._labels(), self._risky)
        self._risky = risk.chosen
        return risk

    def _labels(self) -> Floats:
        """1 for the model's points that failed, 0 for those that did not, NaN for those in flight."""
        return np.array([float(point in self._bad) if point in self.known else np.nan for point in self._points])

    def _add(self, point: int) -> None:
        assert self._model is not None
        self._place[point] = len(self._points)
        self._points.append(point)
        if point in self._slot:
            self._gone.append(self._slot[point])
        for model in (self._model, self._risk):
            if model is not None:
                model.add(self.space.codes_of([point]))

    def _extend(self, points: Sequence[int]) -> None:
        assert self._model is not None
        fresh = [point for point in points if point not in self._slot]
        if fresh:
            self._slot.update((point, len(self._candidates) + place) for place, point in enumerate(fresh))
            self._candidates.extend(fresh)
            self._model.extend(self.space.codes_of(fresh))

    def _around(self, points: Sequence[int]) -> list[int]:
        """Points not taken that differ from one of `points` in one parameter, at most `NEAR` or so for each."""
        found: dict[int, None] = {}
        for point in points:
            found.update(dict.fromkeys(self._beside(point)))
        return [point for point in found if not self.taken(point)]

    def _beside(self, point: int) -> list[int]:
        """What `_around` takes of one point, kept: the best points are looked around again and again."""
        if point not in self._near:
            near = self.space.neighbours(point, adjacent=False)
            if len(near) > self.NEAR:
                # Parameters with very many values: the next values, and a fixed random choice among the far ones.
                picked = np.random.default_rng([self.seed & ((1 << 64) - 1), point]).permutation(len(near))
                near = self.space.neighbours(point) + [near[place] for place in picked[: self.NEAR]]
            self._near[point] = near
        return self._near[point]

    def _target(self, model: Posterior) -> tuple[Floats, float]:
        """The posterior's weights, and the best complete value, standardised, or a better one that is believed to be on
        its way: what is asked next should improve on that."""
        least = self._levels.least() if self.best is None else math.log(self.best[1])
        best = self._levels.standard(least)
        weights = model.weights(self._standardised(self._points)[0])
        if self.pending:
            mean, _ = self._expected(model, weights, list(self.pending))
            best = min(best, float(mean.min()))
        return weights, best

    def _standardised(self, points: Sequence[int]) -> tuple[Floats, Floats]:
        """What the model explains at `points`, NaN where nothing is known, and the variances of that."""
        values, noise = self._levels.standardised(points)
        return (values, noise) if self._trend is None else self._trend.remove(values, noise, points, self._levels)

    def _expected(self, model: Posterior, weights: Floats, points: Sequence[int] | None) -> tuple[Floats, Floats]:
        """Mean and deviation of the standardised logarithms at the candidates, or at `points`."""
        mean, deviation = model.expect(weights, None if points is None else self.space.codes_of(points))
        if self._trend is None:
            return mean, deviation
        return self._trend.restore(mean, deviation, self._candidates if points is None else points, self._levels)

    def _success(self, points: Sequence[int]) -> Floats:
        """The chance of success, at most 1, of `points`."""
        success = np.ones(len(points))
        if self._risk is not None:
            success = self._risk.success(self._labels(), self.space.codes_of(points))
        return success if self._source is None else success * self._source.success(points)
