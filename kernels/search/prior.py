"""Results from elsewhere that a search may begin with: of an earlier run, another device or another task.

Owns `Prior`: the results, and which points of a space they say are best.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from tunesmith.kernels.search.cachefile import read_cache
from tunesmith.kernels.search.observation import Observation, SearchError
from tunesmith.kernels.search.t4 import is_t4, read_t4
from tunesmith.kernels.space.domain import Domain
from tunesmith.kernels.space.space import Space
from tunesmith.kernels.spec.parameter import Config


class Prior:
    """Configurations with their results. Only the order of the values counts, so that their unit does not matter."""

    def __init__(self, results: Iterable[tuple[Config, Observation]], name: str = "earlier results") -> None:
        """Raises `SearchError` when none of `results` was measured."""
        self.name = name
        self.results = tuple((dict(config), seen) for config, seen in results)
        if all(seen.value is None for _, seen in self.results):
            raise SearchError(f"Nothing can be learned from {name}: it contains no configuration that was measured.")

    @classmethod
    def from_table(cls, path: Path) -> Prior:
        """The prior of a Kernel Tuner cache file, or of results in the format T4. Raises `CacheFileError` when it
        cannot be read."""
        if is_t4(path):
            results = [(one.config, Observation(one.time, failure=one.failure)) for one in read_t4(path)]
            return cls(results, path.stem)
        table = read_cache(path)
        domain = Domain(table.parameters)
        seen = (
            Observation(None if failure is not None else float(time), failure=failure)
            for time, failure in zip(table.times, table.failures, strict=True)
        )
        return cls(((domain.config(row), one) for row, one in zip(table.codes, seen, strict=True)), table.name)

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
