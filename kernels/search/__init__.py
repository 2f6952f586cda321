"""The contract of a search, and its strategies by name: ask for a point, tell its result, in any order.

Owns `Strategy`, `Observation` (the result of a point), `Prior` (results of an earlier run, another device or another
task), the strategies without a model, the registry, and the choice of a strategy for a space. The strategy with a model
is `tunesmith.kernels.search.bayesian`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.search.tables import read_results
from tunesmith.kernels.space import Space
from tunesmith.kernels.spec.template import Config


@dataclass(frozen=True, slots=True)
class Observation:
    """The result of one point.

    value: the objective, to be minimised, positive and finite; None when the point failed. interval: its 95 %
    confidence interval in the same unit. failure: the kind of failure ("compile_failed", ...), None when measured.
    dropped: the measurement was stopped early as a clear loser, so that `value` is a lower bound only (the upper end of
    an interval still holds).
    """

    value: float | None
    interval: tuple[float, float] | None = None
    failure: str | None = None
    dropped: bool = False

    def __post_init__(self) -> None:
        if (self.value is None) == (self.failure is None):
            raise TunesmithError("An observation has either a value or a kind of failure; give exactly one of them.")
        if self.value is not None and not (math.isfinite(self.value) and self.value > 0):
            raise TunesmithError(f"The objective must be positive and finite, not {self.value!r}; or tell a failure.")


class Prior:
    """Configurations with their results. Only the order of the values counts, so that their unit does not matter."""

    def __init__(self, results: Iterable[tuple[Config, Observation]], name: str = "earlier results") -> None:
        """Raises `TunesmithError` when none of `results` was measured."""
        self.name = name
        self.results = tuple((dict(config), seen) for config, seen in results)
        if all(seen.value is None for _, seen in self.results):
            raise TunesmithError(f"Nothing can be learned from {name}: it contains no configuration that was measured.")

    @classmethod
    def from_table(cls, path: Path) -> Prior:
        """The prior of a Kernel Tuner cache file, or of results in the format T4. Raises `TunesmithError`."""
        results, name = read_results(path)
        return cls([(one.config, Observation(one.time, failure=one.failure)) for one in results], name)

    def best(self, space: Space, count: int) -> list[int]:
        """Up to `count` points of `space` that were measured, best first.

        Parameters that `space` does not have are left out, the best result of what then is one point counts; a result
        without a value for one of the parameters of `space` says nothing about a point of it.
        """
        names = space.domain.names
        values: dict[int, float] = {}
        for config, seen in self.results:
            if seen.value is not None and all(name in config for name in names):
                point = space.index({name: config[name] for name in names})
                if point is not None:
                    values[point] = min(values.get(point, math.inf), seen.value)
        return sorted(values, key=values.__getitem__)[:count]


class Strategy(ABC):
    """Chooses points of `space` one at a time; deterministic under `seed` for the same sequence of asks and tells.

    budget: how many points the caller means to measure in all (None: unknown), workers: how many at a time; both are
    for planning and not enforced. seeds: configurations to ask first, without the infeasible ones. prior: results of an
    earlier run or of another device; strategies that learn ask its best points first, after the seeds. A strategy never
    asks an infeasible point, nor a point that was asked or told before, and never waits for a particular result.
    """

    name: ClassVar[str]
    PRIOR_SEEDS: ClassVar[int] = 0
    """How many of a prior's best points are asked first, after the seeds."""

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
        if workers < 1 or (budget is not None and budget < 1):
            raise TunesmithError(f"A search needs at least 1 worker and a budget of at least 1: {workers}, {budget}.")
        self.space, self.seed, self.budget, self.workers = space, seed, budget, workers
        self.asked: dict[int, None] = {}
        self.pending: set[int] = set()
        self.known: dict[int, Observation] = {}
        self.best: tuple[int, float] | None = None
        """The point with the smallest complete value so far, and that value."""
        self.because = ""
        """Why this strategy was picked, when it was picked for the user."""
        self._tells = 0
        self._dry = False
        self._queue = deque(point for point in map(space.index, seeds) if point is not None)
        self.prior = prior
        if prior is not None and self.PRIOR_SEEDS:
            self._queue.extend(prior.best(space, self.PRIOR_SEEDS))

    @abstractmethod
    def _propose(self, rng: np.random.Generator) -> int | None:
        """A point that is not `taken`, or None when there is none to ask now. Changes no state but caches."""

    def _note_asked(self, point: int) -> None:  # noqa: B027 (a hook: most strategies have nothing to note)
        """`point` is now in flight."""

    def _note_told(self, point: int, observation: Observation) -> None:  # noqa: B027
        """`observation` has been recorded for `point`."""

    @abstractmethod
    def _method(self) -> str:
        """A description of the strategy, as a clause that starts with its name."""

    def describe(self) -> str:
        """One sentence for the user: the strategy, the reason for it, and its method."""
        return f"{self.because}; {self._method()}." if self.because else f"{self._method()}."

    def ask(self) -> Config | None:
        """The next configuration; None when there is nothing to ask now or ever (see `exhausted`)."""
        while self._queue and self.taken(self._queue[0]):
            self._queue.popleft()
        point = self._queue[0] if self._queue else self._propose(self._rng())
        if point is None:
            self._dry = not self.pending
            return None
        if self.taken(point):
            raise AssertionError(f"{self.name} proposed point {point} twice")
        self._ask_noted(point)
        return self.space.config(point)

    def tell(self, config: Config, observation: Observation) -> None:
        """Records a result. It may be of a point never asked (an earlier run, the baseline) or a second measurement
        of the same point, which replaces the first. Raises `TunesmithError` for a configuration outside the space."""
        point = self.space.index(config)
        if point is None:
            reason = self.space.reject(config)
            why = reason.detail if reason is not None else "it has no such point."
            raise TunesmithError(f"The result of {config} does not belong to this space: {why}")
        self._tells += 1
        self._dry = False
        self.pending.discard(point)
        self.known[point] = observation
        value = None if observation.dropped else observation.value
        if value is not None and (self.best is None or value < self.best[1]):
            self.best = point, value
        elif self.best is not None and self.best[0] == point:
            # The value it was the best by has been replaced.
            complete = [(one.value, other) for other, one in self.known.items() if one.value and not one.dropped]
            least = min(complete, default=None)
            self.best = None if least is None else (least[1], least[0])
        self._note_told(point, observation)

    @property
    def exhausted(self) -> bool:
        """True when no ask will ever give a point again, whatever is still told."""
        if len(self.space) <= len(self.known.keys() | self.asked.keys()):
            return True
        return self._dry and not self.pending

    def taken(self, point: int) -> bool:
        """Whether `point` was asked or told before."""
        return point in self.asked or point in self.known

    def assume_asked(self, config: Config) -> None:
        """Notes an ask of an earlier session without computing it again. Raises `TunesmithError` outside the space."""
        point = self.space.index(config)
        if point is None:
            raise TunesmithError(f"The configuration {config} was asked in another space; start a new search.")
        self._ask_noted(point)

    def random_state(self) -> dict[str, int]:
        """The source of the next ask's random numbers: the seed, and the numbers of asks and tells so far."""
        return {"seed": self.seed, "asks": len(self.asked), "tells": self._tells}

    def _rng(self) -> np.random.Generator:
        return np.random.default_rng([self.seed & ((1 << 64) - 1), len(self.asked), self._tells])

    def _ask_noted(self, point: int) -> None:
        self.asked[point] = None
        if point not in self.known:
            self.pending.add(point)
        self._note_asked(point)

    def _fresh(self, rng: np.random.Generator, count: int = 1) -> list[int]:
        """Up to `count` random points that are not taken."""
        size, used = len(self.space), list(self.known.keys() | self.asked.keys())
        if (len(used) + count) * 4 > size:
            left = np.ones(size, dtype=np.bool_)
            left[used] = False
            free = np.flatnonzero(left)
            return [int(point) for point in rng.permutation(free)[:count]]
        found: dict[int, None] = {}
        for _ in range(20):
            for point in self.space.sample(rng, 2 * count):
                if not self.taken(point):
                    found[point] = None
            if len(found) >= count:
                break
        return list(found)[:count]


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


class RandomSearch(Strategy):
    """Asks feasible points in a random order."""

    name: ClassVar[str] = "random"

    def _propose(self, rng: np.random.Generator) -> int | None:
        return next(iter(self._fresh(rng)), None)

    def _method(self) -> str:
        return "random: feasible points in random order, each at most once; learns nothing from the results"


MODEL_WORKERS = 256
"""Points in flight beyond which a model's next point depends on guesses more than on results."""


def default_search(space: Space, **arguments: Any) -> Strategy:
    """The strategy that suits the size of the space, the budget and the workers; `arguments` as for any strategy."""
    size, budget, workers = len(space), arguments.get("budget"), arguments.get("workers", 1)
    name = "surrogate"
    if budget is not None and size <= budget:
        name, why = ExhaustiveSearch.name, f"the budget of {budget} covers all {size} feasible points"
    elif workers > MODEL_WORKERS:
        name, why = LocalSearch.name, f"{workers} points in flight outrun a model"
    elif budget is None:
        why = f"there are {size} feasible points and no budget was given"
    else:
        why = f"a budget of {budget} for {size} feasible points has to go where a model expects the most"
    strategy = make_strategy(name, space, **arguments)
    strategy.because = f"default picked {name}, since {why}"
    return strategy


def _surrogate_search(space: Space, **arguments: Any) -> Strategy:
    # SciPy is imported only where this strategy is chosen.
    from tunesmith.kernels.search.bayesian import SurrogateSearch

    return SurrogateSearch(space, **arguments)


STRATEGIES: Mapping[str, Callable[..., Strategy]] = {
    "random": RandomSearch,
    "exhaustive": ExhaustiveSearch,
    "local": LocalSearch,
    "surrogate": _surrogate_search,
    "default": default_search,
}
"""Name -> what makes the strategy on a space, with arguments as for `Strategy`."""


def make_strategy(name: str, space: Space, **arguments: Any) -> Strategy:
    """The strategy called `name` on `space`; `arguments` as for `Strategy` (`seed` is required).

    Raises `TunesmithError` for an unknown name.
    """
    if name not in STRATEGIES:
        raise TunesmithError(f"There is no search strategy '{name}'; choose one of {', '.join(STRATEGIES)}.")
    return STRATEGIES[name](space, **arguments)
