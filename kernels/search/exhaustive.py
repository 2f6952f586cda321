"""Exhaustive search: every feasible point once, in the order of the space.

For small spaces and for recording tables. Needs a listed space: a lazy one has no order to walk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from tunesmith.kernels.search._base import Strategy
from tunesmith.kernels.search.observation import SearchError
from tunesmith.kernels.search.prior import Prior
from tunesmith.kernels.space.space import SearchSpace
from tunesmith.kernels.spec.parameter import Config


class ExhaustiveSearch(Strategy):
    """Asks all points of a listed space, seeds first."""

    name: ClassVar[str] = "exhaustive"

    def __init__(
        self,
        space: SearchSpace,
        *,
        seed: int,
        budget: int | None = None,
        workers: int = 1,
        seeds: Sequence[Config] = (),
        prior: Prior | None = None,
    ) -> None:
        if not space.listed:
            raise SearchError(
                f"The space of {space.cartesian} points is too large to list, so that it cannot be searched "
                "exhaustively; restrict its parameters or choose another strategy."
            )
        super().__init__(space, seed=seed, budget=budget, workers=workers, seeds=seeds, prior=prior)
        self._cursor = 0

    def _propose(self, rng: np.random.Generator) -> int | None:
        size = self.space.size or 0
        while self._cursor < size and self.taken(self._cursor):
            self._cursor += 1
        return self._cursor if self._cursor < size else None

    def _method(self) -> str:
        return f"exhaustive: all {self.space.size} feasible points, in order"
