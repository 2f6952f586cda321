"""Model-based search: a Gaussian process over the feasible points says which one is most worth measuring.

Owns the strategy: first points, when the model is fitted anew, candidates, acquisition. The model is in
`tunesmith.kernels.search._gaussian`. The scheme is Bayesian optimisation on the logarithm of the objective with
expected improvement (Jones et al., 1998), over listed feasible points instead of a box. Failures are information: a
second process, fitted to what failed and what did not, gives the chance by which the expectation is multiplied.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr  # type: ignore[import-untyped,unused-ignore]

from tunesmith.kernels.parameter import Config
from tunesmith.kernels.search._base import Observation, Strategy
from tunesmith.kernels.search._gaussian import Floats, Hyperparameters, Kernel, Posterior, one_thread
from tunesmith.kernels.space import SearchSpace

_INTERVAL = 2 * 1.96
"""Width of a 95 % interval in standard deviations."""


class SurrogateSearch(Strategy):
    """Bayesian optimisation with an ANOVA Gaussian process; constants were chosen by cross-validation over tables."""

    name: ClassVar[str] = "surrogate"

    FIRST: ClassVar[int] = 8
    """Points before the model says anything, spread over the space."""
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
    """Points that the model keeps: beyond, the best ones and the latest ones."""
    FITTED: ClassVar[int] = 160
    """Points that the hyperparameters are fitted to."""
    ITERATIONS: ClassVar[int] = 20
    LENIENCE: ClassVar[float] = 0.15
    """Uncertainty allowed to slow points, per standard deviation above the median: accuracy is wanted near the best."""
    CHANCE: ClassVar[float] = 0.01
    """Chance of success that is always left to a point."""

    def __init__(
        self,
        space: SearchSpace,
        *,
        seed: int,
        budget: int | None = None,
        workers: int = 1,
        seeds: Sequence[Config] = (),
    ) -> None:
        super().__init__(space, seed=seed, budget=budget, workers=workers, seeds=seeds)
        self._kernel = Kernel(space.domain)
        self._chosen: Hyperparameters = self._kernel.prior()
        self._model: Posterior | None = None
        self._points: list[int] = []
        self._place: dict[int, int] = {}
        self._candidates: list[int] = []
        self._slot: dict[int, int] = {}
        self._gone: list[int] = []
        # With many in flight, more than FIRST points are asked before so many are told: begin with fewer results.
        self._next_fit = max(5, self.FIRST - (workers - 1) // 2)
        self._bad: dict[int, None] = {}
        self._risk: Posterior | None = None

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
            self._update(point)
            if self._bad and self._risk is None and self._model is not None:
                self._risk = self._failure_model()

    def _update(self, point: int) -> None:
        measured = sum(seen.value is not None for seen in self.known.values())
        if len(self.known) >= self._next_fit and measured >= 4:
            self._next_fit = len(self.known) + max(3, round(len(self.known) * self.REFIT))
            self._rebuild()
        elif self._model is not None:
            if point not in self._place:
                self._add(point)
            if self.best is not None and self.best[0] == point:
                self._extend(self._around([point]))

    def _propose(self, rng: np.random.Generator) -> int | None:
        with one_thread():
            return self._spread(rng) if self._model is None else self._improve(self._model, rng)

    def _improve(self, model: Posterior, rng: np.random.Generator) -> int | None:
        weights, best = self._target()
        scores = self._scores(model, weights, best, None)
        scores[self._gone] = -1.0
        top = int(np.argmax(scores)) if len(scores) else -1
        if top < 0 or scores[top] < 0.0:
            found = self._fresh(rng)
            return found[0] if found else None
        # In a space too large to look at every point, climb from the best candidate to better neighbours of it.
        chosen, score = self._candidates[top], float(scores[top])
        if not self._complete:
            others = [point for point in self._around([chosen]) if point not in self._slot]
            if others:
                beside = self._scores(model, weights, best, others)
                if float(beside.max()) > score:
                    chosen = others[int(np.argmax(beside))]
        return chosen

    def _method(self) -> str:
        return (
            f"surrogate: a Gaussian process on the logarithm of the objective, fitted to what is known, picks the "
            f"point with the largest expected improvement after {self.FIRST} points spread over the space"
        )

    @property
    def _complete(self) -> bool:
        size = self.space.size
        return self.space.listed and size is not None and size <= self.CANDIDATES

    def _spread(self, rng: np.random.Generator) -> int | None:
        fresh = self._fresh(rng, self.SPREAD)
        if not fresh or not self.asked:
            return fresh[0] if fresh else None
        tables = self._kernel.tables(self._chosen)
        near = self._kernel.between(tables, self.space.codes_of(list(self.asked)), self.space.codes_of(fresh))
        return fresh[int(np.argmin(near.max(axis=0)))]

    def _rebuild(self) -> None:
        """Fits the hyperparameters, and sets up the posterior with new candidates."""
        rng = self._rng()
        measured = [(seen.value, point) for point, seen in self.known.items() if seen.value is not None]
        ranked = [point for _, point in sorted(measured)]
        latest = [point for _, point in measured[::-1]]
        chosen = list(dict.fromkeys(ranked[: self.FITTED // 2] + latest))[: self.FITTED]
        values, noise = self._standardised(chosen)
        self._chosen = self._kernel.fit(self.space.codes_of(chosen), values, noise, self._chosen, self.ITERATIONS)
        keep = list(dict.fromkeys(ranked[: self.MOST // 2] + list(self.pending) + latest + list(self._bad)))
        keep = keep[: self.MOST]
        self._points = keep
        self._place = {point: place for place, point in enumerate(keep)}
        if self._complete:
            pool = list(range(self.space.size or 0))
        else:
            pool = self.space.sample(rng, self.CANDIDATES) + self._around(ranked[: self.ELITE])
        self._candidates = [point for point in dict.fromkeys(pool) if not self.taken(point)]
        self._slot = {point: place for place, point in enumerate(self._candidates)}
        self._gone = []
        _, noise = self._standardised(keep)
        self._model = Posterior(
            self._kernel, self._chosen, self.space.codes_of(keep), noise, self.space.codes_of(self._candidates)
        )
        self._risk = self._failure_model() if self._bad else None

    def _failure_model(self) -> Posterior:
        """The posterior of failing (1) or not (0) at the model's points; its kernel is fixed, failures being few."""
        assert self._model is not None
        codes = self._model.codes
        return Posterior(self._kernel, self._kernel.failures(), codes, np.zeros(len(codes)), self._model.candidates)

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
            for model in (self._model, self._risk):
                if model is not None:
                    model.extend(self.space.codes_of(fresh))

    def _around(self, points: Sequence[int]) -> list[int]:
        """Points not taken that differ from one of `points` in one parameter, at most `NEAR` or so for each."""
        found: dict[int, None] = {}
        for point in points:
            near = self.space.neighbours(point, adjacent=False)
            if len(near) > self.NEAR:
                # Parameters with very many values: the next values, and a fixed random choice among the far ones.
                picked = np.random.default_rng([self.seed & ((1 << 64) - 1), point]).permutation(len(near))
                near = self.space.neighbours(point) + [near[place] for place in picked[: self.NEAR]]
            found.update(dict.fromkeys(near))
        return [point for point in found if not self.taken(point)]

    def _moments(self) -> tuple[float, float, float]:
        """Mean and standard deviation of the logarithms, and their standardised median."""
        logs = [math.log(seen.value) for seen in self.known.values() if seen.value is not None]
        mean, deviation = float(np.mean(logs)), float(np.std(logs)) + 1e-9
        return mean, deviation, (float(np.median(logs)) - mean) / deviation

    def _standardised(self, points: Sequence[int]) -> tuple[Floats, Floats]:
        """The logarithms of the values at `points`, NaN where there is none, and the variance their intervals give."""
        mean, deviation, middle = self._moments()
        values = np.full(len(points), np.nan)
        noise = np.zeros(len(points))
        for place, point in enumerate(points):
            seen = self.known.get(point)
            if seen is None or seen.value is None:
                continue
            values[place] = (math.log(seen.value) - mean) / deviation
            noise[place] = (self.LENIENCE * max(0.0, values[place] - middle)) ** 2
            if seen.interval is not None:
                low, high = seen.interval
                noise[place] += (abs(high - low) / (_INTERVAL * seen.value * deviation)) ** 2
        return values, noise

    def _target(self) -> tuple[Floats, float]:
        assert self._model is not None
        values, _ = self._standardised(self._points)
        mean, deviation, _ = self._moments()
        best = (math.log(self.best[1]) - mean) / deviation if self.best is not None else float(np.nanmin(values))
        return self._model.weights(values), best

    def _scores(
        self, model: Posterior, weights: Floats, best: float, points: Sequence[int] | None
    ) -> NDArray[np.float64]:
        codes = None if points is None else self.space.codes_of(points)
        mean, deviation = model.expect(weights, codes)
        gain = (best - mean) / deviation
        score = deviation * (gain * ndtr(gain) + np.exp(-0.5 * gain * gain) / math.sqrt(2.0 * math.pi))
        if self._risk is not None:
            failed = [float(point in self._bad) if point in self.known else np.nan for point in self._points]
            chance, _ = self._risk.expect(self._risk.weights(np.array(failed)), codes)
            score = score * np.clip(1.0 - chance, self.CHANCE, 1.0) ** 2
        return np.asarray(np.maximum(score, 0.0))
