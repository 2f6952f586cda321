"""Local search: the neighbours of the best known points, nearest first.

Cheap at any number of evaluations, where a model has become slow or the space is huge; a greedy walk with restarts
that keeps no state of its own, so that results may come back in any order.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from tunesmith.kernels.search._base import Strategy


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
        found = self._fresh(rng)
        return found[0] if found else None

    def _method(self) -> str:
        return (
            "local: neighbours of the best points measured so far, nearest first, "
            f"with {self.RESTART:.0%} random points"
        )
