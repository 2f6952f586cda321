"""The speed-up on each shape as a bar with its interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tunesmith.graph.journal.records import Figures
from tunesmith.graph.results.report.axis import Axis, axis_of
from tunesmith.graph.results.summary import Summary

CUT = 3.0
"""How many times the outermost speed-ups the axis reaches: the interval of a disturbed measurement may span orders of
magnitude, and its whisker then ends with the axis."""


Kind = Literal["general", "best", "opponent"]


@dataclass(frozen=True, slots=True)
class Bar:
    """A configuration, or an opponent, on a workload. name: of the opponent with its label, else what the configuration
    is there; at, low, high: of the speed-up and of its interval's ends, in percent of the axis."""

    workload: str
    held_out: bool
    kind: Kind
    name: str
    figures: Figures
    at: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class SpeedUps:
    """one: where a speed-up of 1 stands, in percent of the axis."""

    axis: Axis
    one: float
    bars: tuple[Bar, ...]


def speed_ups(summary: Summary) -> SpeedUps | None:
    """The general configuration on every workload, the best one where it is another, and the opponents that were
    timed; None without any."""
    found: list[tuple[str, bool, Kind, str, Figures]] = []
    for held_out, rows in ((False, summary.tuned), (True, summary.held_out)):
        for row in rows:
            if row.general is not None:
                found.append((row.workload, held_out, "general", "general", row.general))
            if row.best is not None and (row.general is None or (row.regret or 0.0) > 0):
                found.append((row.workload, held_out, "best", "best here", row.best))
            for one in row.opponents:
                if one.over_baseline is not None:
                    found.append((row.workload, held_out, "opponent", f"{one.name} ({one.label})", one.over_baseline))
    if not found:
        return None
    ratios = [1.0, *(1 / one.ratio for *_, one in found)]
    least, most = min(ratios) / CUT, max(ratios) * CUT
    ends = [1 / end for *_, one in found for end in (one.low, one.high)]
    axis = axis_of("times as fast as the baseline", [*ratios, *(min(most, max(least, end)) for end in ends)], log=True)
    bars = tuple(
        Bar(workload, held_out, kind, name, one, *(axis.place(1 / end) for end in (one.ratio, one.high, one.low)))
        for workload, held_out, kind, name, one in found
    )
    return SpeedUps(axis, axis.place(1.0), bars)
