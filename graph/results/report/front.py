"""Time against energy: all configurations of the search, and the finalists as the final comparison found them."""

from __future__ import annotations

from dataclasses import dataclass

from tunesmith.graph.journal.log import RunLog
from tunesmith.graph.journal.measurements import objective, quantities_of
from tunesmith.graph.journal.records import FrontPoint
from tunesmith.graph.results.report.axis import Axis, axis_of
from tunesmith.graph.results.summary import Summary
from tunesmith.kernels.spec.parameter import described

MOST_DOTS = 1000


@dataclass(frozen=True, slots=True)
class Finalist:
    """At (x, y) percent from the upper left. chosen: it is the general configuration."""

    point: FrontPoint
    chosen: bool
    x: float
    y: float
    text: str


@dataclass(frozen=True, slots=True)
class FrontChart:
    """baseline: where the baseline is; searched: what the search measured, (x, y, text); line: corners of the front."""

    across: Axis
    up: Axis
    baseline: tuple[float, float]
    searched: tuple[tuple[float, float, str], ...]
    finalists: tuple[Finalist, ...]
    line: tuple[tuple[float, float], ...]


def front_chart(log: RunLog, summary: Summary) -> FrontChart | None:
    """None where energy was not measured."""
    started, baseline = log.started, log.baseline
    if started is None or baseline is None or not summary.front:
        return None
    weights = {workload.name: workload.weight for workload in started.task.workloads}
    times, energies = quantities_of(baseline, "time"), quantities_of(baseline, "energy")
    seen = []
    for one in log.evaluations():
        time = objective(one, times, times, weights)
        energy = objective(one, energies, energies, weights, "energy") if energies else None
        if time is not None and energy is not None:
            seen.append((time, energy, described(one.template, one.config)))
    seen = seen[:: -(-len(seen) // MOST_DOTS)] if seen else seen
    both = [*((time, energy) for time, energy, _ in seen), *((one.ratio, one.energy_ratio) for one in summary.front)]
    across = axis_of("time over the baseline's", [1.0, *(time for time, _ in both)], log=True)
    up = axis_of("energy over the baseline's", [1.0, *(energy for _, energy in both)], log=True)

    def at(time: float, energy: float) -> tuple[float, float]:
        return across.place(time), round(100 - up.place(energy), 2)

    general = summary.general
    finalists = tuple(
        Finalist(
            one,
            general is not None and (one.template, one.config) == (general.template, general.config),
            *at(one.ratio, one.energy_ratio),
            f"{described(one.template, one.config)}: {one.ratio:.3f} of the time, {one.energy_ratio:.3f} of the energy",
        )
        for one in summary.front
    )
    return FrontChart(
        across=across,
        up=up,
        baseline=at(1.0, 1.0),
        searched=tuple((*at(time, energy), f"{text}: as the search saw it") for time, energy, text in seen),
        finalists=finalists,
        line=tuple((one.x, one.y) for one in finalists if one.point.best),
    )
