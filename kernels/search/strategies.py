"""The search strategies without a model (exhaustive, local, random), and the choice of a strategy for a space.

The strategy with a model is `tunesmith.kernels.search.bayesian`, which needs SciPy.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from tunesmith.kernels.search import Strategy, make_strategy
from tunesmith.kernels.space import Space


class ExhaustiveSearch(Strategy):
    """Asks all points, seeds first."""

    name: ClassVar[str] = "exhaustive"

    _cursor = 0

    def _propose(self, rng: np.random.Generator) -> int | None:
        size = len(self.space)
        while self._cursor < size and self.taken(self._cursor):
            self._cursor += 1
        return self._cursor if self._cursor < size else None

    def _method(self) -> str:
        return f"exhaustive: all {len(self.space)} feasible points, in order"


class LocalSearch(Strategy):
    """Asks an unknown neighbour of the best measured point that has one, now and then a random point instead."""

    name: ClassVar[str] = "local"

    PRIOR_SEEDS: ClassVar[int] = 4
    FIRST: ClassVar[int] = 8
    """Random points to start with."""
    RESTART: ClassVar[float] = 0.1
    """Share of random points later on."""
    ELITE: ClassVar[int] = 20
    """Best points whose neighbours are looked at before a random point is taken after all."""

    def _propose(self, rng: np.random.Generator) -> int | None:
        measured = [(seen.value, point) for point, seen in self.known.items() if seen.value is not None]
        if len(self.asked) >= self.FIRST and rng.random() >= self.RESTART:
            for _, point in sorted(measured)[: self.ELITE]:
                # A step in a numeric parameter first; only then the far values and the other kinds.
                for adjacent in (True, False):
                    around = [near for near in self.space.neighbours(point, adjacent=adjacent) if not self.taken(near)]
                    if around:
                        return int(around[int(rng.integers(len(around)))])
        return next(iter(self._fresh(rng)), None)

    def _method(self) -> str:
        return (
            "local: neighbours of the best points measured so far, nearest first, "
            f"with {self.RESTART:.0%} random points"
        )


MODEL_WORKERS = 256
"""Points in flight beyond which a model's next point depends on guesses more than on results."""


def choose(size: int, budget: int | None, workers: int) -> tuple[str, str]:
    """The name of the strategy for a space of `size` points, and the reason as half a sentence."""
    if budget is not None and size <= budget:
        return ExhaustiveSearch.name, f"the budget of {budget} covers all {size} feasible points"
    if workers > MODEL_WORKERS:
        return LocalSearch.name, f"{workers} points in flight outrun a model"
    if budget is None:
        return "surrogate", f"there are {size} feasible points and no budget was given"
    return "surrogate", f"a budget of {budget} for {size} feasible points has to go where a model expects the most"


def default_search(space: Space, **arguments: Any) -> Strategy:
    """The strategy that `choose` names for this space, with `arguments` as for any strategy."""
    name, why = choose(len(space), arguments.get("budget"), arguments.get("workers", 1))
    strategy = make_strategy(name, space, **arguments)
    strategy.because = f"default picked {name}, since {why}"
    return strategy


class RandomSearch(Strategy):
    """Asks feasible points in a random order."""

    name: ClassVar[str] = "random"

    def _propose(self, rng: np.random.Generator) -> int | None:
        return next(iter(self._fresh(rng)), None)

    def _method(self) -> str:
        return "random: feasible points in random order, each at most once; learns nothing from the results"
