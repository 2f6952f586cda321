"""What is known of a space from elsewhere: an earlier run or a recorded table, of another device or another task.

Owns `Prior`, the source's results. What they say about the points of a space is in `_belief`; how far a search believes
it is the strategy's business.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tunesmith.kernels.search._base import Observation, SearchError
from tunesmith.kernels.search.cachefile import read_cache
from tunesmith.kernels.space.domain import Domain
from tunesmith.kernels.space.space import Space
from tunesmith.kernels.spec.parameter import Config

if TYPE_CHECKING:
    from tunesmith.kernels.search._belief import Belief


class Prior:
    """Results of a source: configurations with what became of them. Only their order of magnitude to each other counts,
    so that the unit and the level of the source's values do not matter.

    Parameters that the source does not have, or has at values that a space does not know, are no hindrance; what it
    knows of the others is used.
    """

    def __init__(self, results: Iterable[tuple[Config, Observation]], name: str = "earlier results") -> None:
        """results: as told to a search. Raises `SearchError` when none of them was measured."""
        self.name = name
        self.results = tuple((dict(config), seen) for config, seen in results)
        if all(seen.value is None for _, seen in self.results):
            raise SearchError(f"Nothing can be learned from {name}: it holds no configuration that was measured.")

    @classmethod
    def from_table(cls, path: Path) -> Prior:
        """The prior of a Kernel Tuner cache file. Raises `CacheFileError` when it cannot be read."""
        table = read_cache(path)
        domain = Domain(table.parameters)
        seen = (
            Observation(None if failure is not None else float(time), failure=failure)
            for time, failure in zip(table.times, table.failures, strict=True)
        )
        return cls(((domain.config(row), one) for row, one in zip(table.codes, seen, strict=True)), table.name)

    def on(self, space: Space) -> Belief:
        """What these results say about the points of `space`."""
        # Imported here: the model needs SciPy, not every strategy does.
        from tunesmith.kernels.search._belief import Belief

        return Belief(space, self)
