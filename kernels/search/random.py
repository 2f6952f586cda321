"""Random search: every feasible point equally likely, none twice.

The yardstick for the others, and the right choice when results carry no information about their neighbours.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from tunesmith.kernels.search._base import Strategy


class RandomSearch(Strategy):
    """Asks feasible points in a random order."""

    name: ClassVar[str] = "random"

    def _propose(self, rng: np.random.Generator) -> int | None:
        found = self._fresh(rng)
        return found[0] if found else None

    def _method(self) -> str:
        return "random: feasible points in random order, each at most once; learns nothing from the results"
