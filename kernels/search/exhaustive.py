"""Exhaustive search: every feasible point once, in the order of the space.

For small spaces and for recording tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from tunesmith.kernels.search._base import Strategy
from tunesmith.kernels.search.prior import Prior
from tunesmith.kernels.space.space import Space
from tunesmith.kernels.spec.parameter import Config


class ExhaustiveSearch(Strategy):
    """Asks all points, seeds first."""

    name: ClassVar[str] = "exhaustive"

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
        self._cursor = 0

    def _propose(self, rng: np.random.Generator) -> int | None:
        size = len(self.space)
        while self._cursor < size and self.taken(self._cursor):
            self._cursor += 1
        return self._cursor if self._cursor < size else None

    def _method(self) -> str:
        return f"exhaustive: all {len(self.space)} feasible points, in order"
