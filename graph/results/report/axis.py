"""Axes of the report's charts: where a value stands, in percent of the axis, and which ticks it has."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

MARGIN = 0.04
"""Room beside the outermost values, as a share of the axis."""


@dataclass(frozen=True, slots=True)
class Tick:
    """at: percent of the axis from its beginning."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis from `low` to `high`, logarithmic or linear. label: what it shows, with the unit."""

    label: str
    low: float
    high: float
    log: bool = False

    def place(self, value: float) -> float:
        """Percent of the axis from its beginning; values beyond an end are put at it."""
        share = (self._scaled(value) - self._scaled(self.low)) / (self._scaled(self.high) - self._scaled(self.low))
        return round(100 * min(1.0, max(0.0, share)), 2)

    @property
    def ticks(self) -> list[Tick]:
        """Round values, about four to six of them."""
        values = self._log_ticks() if self.log else []
        if len(values) < 3:
            values = self._linear_ticks()
        return [Tick(self.place(value), rounded(value)) for value in values]

    def _scaled(self, value: float) -> float:
        return math.log(value) if self.log else value

    def _log_ticks(self) -> list[float]:
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for steps in ((1, 2, 5), (1, 3), (1,)):
            found = [step * 10.0**decade for decade in decades for step in steps]
            found = [value for value in found if self.low <= value <= self.high]
            if len(found) <= 7:
                return found
        return found[:: math.ceil(len(found) / 6)]

    def _linear_ticks(self) -> list[float]:
        rough = (self.high - self.low) / 5
        decade = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * decade for factor in (1, 2, 5, 10) if factor * decade >= rough)
        first = math.ceil(self.low / step - 1e-9)
        return [number * step for number in range(first, math.floor(self.high / step + 1e-9) + 1)]


def axis_of(label: str, values: Iterable[float], *, log: bool = False) -> Axis:
    """An axis that has room for all of `values`, of which there is at least one; for `log` all are positive."""
    found = list(values)
    low, high = min(found), max(found)
    if log:
        room = max(math.log(high / low) * MARGIN, 0.02)
        return Axis(label, low * math.exp(-room), high * math.exp(room), log=True)
    room = (high - low) * MARGIN or abs(high) * MARGIN or 1.0
    return Axis(label, low - room, high + room)


def rounded(value: float, digits: int = 3) -> str:
    """A number for people: so many significant digits, and all those before the point below ten million."""
    if value == 0:
        return "0"
    behind = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{min(behind, 9)}f}" if 1e-4 <= abs(value) < 1e7 else f"{value:.2g}"
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text
