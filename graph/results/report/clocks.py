"""Clocks, power and temperature while configurations were measured, as far as the device reports them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tunesmith.graph.journal.log import RunLog
from tunesmith.graph.results.report.axis import Axis, axis_of, rounded
from tunesmith.kernels.outcome import Measured

MOST_POINTS = 400
CHARTS = (
    ("sm_clock_hz", "clock of the multiprocessors, MHz", 1e-6),
    ("memory_clock_hz", "clock of the memory, MHz", 1e-6),
    ("temperature_c", "temperature, degrees Celsius", 1.0),
    ("power_w", "power, W", 1.0),
)
"""Fields of telemetry, what they are called, and the factor to that unit."""


@dataclass(frozen=True, slots=True)
class ClockChart:
    """points: (x, y, text), in percent."""

    label: str
    numbers: Axis
    values: Axis
    low: float
    high: float
    points: tuple[tuple[float, float, str], ...]


@dataclass(frozen=True, slots=True)
class Clocks:
    """throttled: how many measurements were throttled, by the device's reason; drift: the largest deviation of the
    reference kernel, re-timed now and then, from its first time, as a share; None where it was not re-timed."""

    charts: tuple[ClockChart, ...]
    throttled: dict[str, int]
    drift: float | None


def clocks(log: RunLog) -> Clocks:
    """Of all measurements of the run's searches."""
    samples: dict[str, list[tuple[int, float]]] = {field: [] for field, _, _ in CHARTS}
    throttled: Counter[str] = Counter()
    drifts = []
    for number, evaluation in enumerate(log.evaluations(), 1):
        measured = [one for one in evaluation.outcomes.values() if isinstance(one, Measured)]
        for one in measured:
            throttled.update(one.throttled)
            if one.drift is not None:
                drifts.append(abs(one.drift - 1.0))
        for field, _, scale in CHARTS:
            found = [one.telemetry[field] * scale for one in measured if field in one.telemetry]
            if found:
                samples[field].append((number, found[-1]))
    charts = []
    for field, label, _ in CHARTS:
        points = samples[field]
        if not points:
            continue
        shown = points[:: -(-len(points) // MOST_POINTS)]
        numbers = axis_of("configurations measured", [0, points[-1][0]])
        levels = [value for _, value in points]
        values = axis_of(label, levels)
        charts.append(
            ClockChart(
                label,
                numbers,
                values,
                min(levels),
                max(levels),
                tuple(
                    (numbers.place(number), round(100 - values.place(value), 2), f"number {number}: {rounded(value)}")
                    for number, value in shown
                ),
            )
        )
    return Clocks(tuple(charts), dict(throttled), max(drifts, default=None))
