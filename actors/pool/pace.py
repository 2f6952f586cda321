"""How many evaluations should be under way: enough that no lane waits, and no more.

A search learns nothing from what is under way, so every evaluation too many is asked with less knowledge than it could
have been. By Little's law (Little, Operations Research 9, 1961) lanes that take an evaluation every t seconds from
compilations of c seconds need c / t of them being compiled, besides those at the lanes themselves.
"""

from __future__ import annotations

import math

AT_A_LANE = 2
"""The evaluation at hand and the next."""
SPARE = 0.25
"""Compilations beyond those at hand, as a share of the workers: what comes next while this process is busy."""
WEIGHT = 0.1
"""Of the newest duration in the running averages."""


class Pace:
    """For `lanes` lanes and `compilers` compile workers. exclusive: both take turns on one processor."""

    def __init__(self, lanes: int, compilers: int, *, exclusive: bool) -> None:
        self._lanes, self._compilers, self._exclusive = lanes, compilers, exclusive
        self._compile: float | None = None
        self._visit: float | None = None

    @property
    def most(self) -> int:
        """What keeps everything busy, however long things take."""
        if self._exclusive:
            return self._lanes + self._compilers
        return AT_A_LANE * self._lanes + self._compilers + math.ceil(SPARE * self._compilers)

    @property
    def ahead(self) -> int:
        """What keeps the lanes busy, as far as durations are known; `most` until then."""
        if self._exclusive or self._compile is None or not self._visit:
            return self.most
        compiling = math.ceil((1 + SPARE) * self._compile * self._lanes / self._visit)
        return min(self.most, AT_A_LANE * self._lanes + 1 + compiling)

    def compiled(self, seconds: float) -> None:
        self._compile = seconds if self._compile is None else (1 - WEIGHT) * self._compile + WEIGHT * seconds

    def visited(self, seconds: float) -> None:
        self._visit = seconds if self._visit is None else (1 - WEIGHT) * self._visit + WEIGHT * seconds
