"""What became of one point of a search. Owns `Observation` and `SearchError`, nothing of the strategies."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tunesmith.hw.errors import TunesmithError


class SearchError(TunesmithError):
    """A search was asked for, or given, something that does not fit it."""


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
            raise SearchError("An observation has either a value or a kind of failure; give exactly one of them.")
        if self.value is not None and not (math.isfinite(self.value) and self.value > 0):
            raise SearchError(f"The objective must be positive and finite, not {self.value!r}; tell a failure instead.")
