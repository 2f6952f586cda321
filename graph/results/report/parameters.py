"""What the parameters do: each one's effect, and the best time measured for each pair of values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tunesmith.graph.journal.log import RunLog
from tunesmith.graph.journal.measurements import observation, seconds_of, weighted_geomean
from tunesmith.graph.results.report.axis import Axis, axis_of, rounded
from tunesmith.graph.results.summary import Summary
from tunesmith.kernels.outcome import Evaluation
from tunesmith.kernels.search.observation import Observation
from tunesmith.kernels.space.space import Space
from tunesmith.kernels.spec.parameter import Config, Parameter, Scalar, assignments

if TYPE_CHECKING:
    from tunesmith.kernels.search.surrogate.effects import Effects

MOST_DOTS = 200
"""Measured configurations that are drawn for a parameter, the fastest first."""
MOST_MAPS = 3
MOST_CELLS = 400
"""Of a map; a pair with more is left out."""
BELIEVED = 0.5
"""Share of the variance that the model must foretell for its shares to be shown without a warning."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a parameter. at: percent from the left; expected: height of the model's expectation, in percent from
    the top, None where the value is never feasible; chosen: the general configuration has it."""

    text: str
    at: float
    expected: float | None
    expected_us: float | None
    chosen: bool


@dataclass(frozen=True, slots=True)
class ParameterEffect:
    """dots: measured configurations as (x, y, text), in percent."""

    name: str
    doc: str
    share: float
    values: tuple[Value, ...]
    dots: tuple[tuple[float, float, str], ...]
    seconds: Axis


@dataclass(frozen=True, slots=True)
class Cell:
    """The least time measured with a pair of values. level: from 0, the fastest of the map, to 1, the slowest; kind:
    "measured", "unmeasured" or "infeasible"; chosen: the general configuration is here."""

    kind: str
    us: float | None
    level: float
    count: int
    chosen: bool


@dataclass(frozen=True, slots=True)
class PairMap:
    """Rows are values of `first`, columns those of `second`."""

    first: str
    second: str
    share: float
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TemplateEffects:
    """Of one template. unsaid: why there are no effects, empty where there are; weak: the model foretells little."""

    template: str
    explained: float
    weak: bool
    points: int
    parameters: tuple[ParameterEffect, ...]
    maps: tuple[PairMap, ...]
    unsaid: str = ""


def template_effects(log: RunLog, summary: Summary, template_id: str, space: Space) -> TemplateEffects | None:
    """What the parameters of a template do to the time of all tuned workloads together."""
    # Imported here: the model needs SciPy, which takes half a second, and not every report has something to tell.
    from tunesmith.kernels.search.surrogate.effects import effects

    started, before = log.started, log.baseline_seconds
    if started is None or not before:
        return None
    names = [row.workload for row in summary.tuned] or list(before)
    if not set(names) <= set(before):
        return None
    weights = {workload.name: workload.weight for workload in started.task.workloads}
    found = [entry.event.evaluation for entry in log.evaluations_of(template_id)]
    results: dict[int, Observation] = {}
    times: list[tuple[Config, float]] = []
    for evaluation in found:
        point = space.index(evaluation.config)
        if point is None or not (evaluation.failure or set(names) <= set(seconds_of(evaluation))):
            continue
        results[point] = observation(evaluation, names, before, weights)
        if evaluation.failure is None:
            times.append((evaluation.config, _seconds(evaluation, names, weights)))
    name = log.template(template_id).name
    analysis = effects(space, results)
    if analysis is None:
        why = f"{len(times)} configurations were measured on all tuned workloads, too few or too alike to tell effects"
        return TemplateEffects(name, 0.0, False, len(times), (), (), why)
    general = summary.general
    chosen = general.config if general is not None and general.template == template_id else {}
    level = weighted_geomean({workload: before[workload] for workload in names}, weights)
    return TemplateEffects(
        template=name,
        explained=analysis.explained,
        weak=analysis.explained < BELIEVED,
        points=analysis.points,
        parameters=_parameters(space, analysis, times, chosen, level),
        maps=_maps(space, analysis, times, chosen),
    )


def _seconds(evaluation: Evaluation, names: Sequence[str], weights: Mapping[str, float]) -> float:
    seconds = seconds_of(evaluation)
    return weighted_geomean({name: seconds[name] for name in names}, weights)


def _parameters(
    space: Space, analysis: Effects, times: Sequence[tuple[Config, float]], chosen: Config, level: float
) -> tuple[ParameterEffect, ...]:
    drawn = sorted(times, key=lambda one: one[1])[:MOST_DOTS]
    foretold = [one * level for effect in analysis.parameters for one in effect.expected if one is not None]
    axis = axis_of("us", [seconds * 1e6 for seconds in [*(one for _, one in drawn), *foretold]], log=True)

    def height(seconds: float) -> float:
        return round(100 - axis.place(seconds * 1e6), 2)

    found = []
    for effect in analysis.parameters:
        parameter = space.parameters[space.domain.column[effect.parameter]]
        places = {value: 100 * (place + 0.5) / len(parameter.values) for place, value in enumerate(parameter.values)}
        values = tuple(
            Value(
                text=str(value),
                at=round(places[value], 2),
                expected=None if expected is None else height(expected * level),
                expected_us=None if expected is None else expected * level * 1e6,
                chosen=chosen.get(effect.parameter) == value,
            )
            for value, expected in zip(parameter.values, effect.expected, strict=True)
        )
        dots = tuple(
            (
                round(places[config[effect.parameter]], 2),
                height(seconds),
                f"{rounded(seconds * 1e6)} us: {assignments(config)}",
            )
            for config, seconds in drawn
        )
        found.append(ParameterEffect(effect.parameter, parameter.doc, effect.share, values, dots, axis))
    return tuple(found)


def _maps(
    space: Space, analysis: Effects, times: Sequence[tuple[Config, float]], chosen: Config
) -> tuple[PairMap, ...]:
    found = []
    for pair in analysis.pairs:
        first, second = (space.parameters[space.domain.column[name]] for name in (pair.first, pair.second))
        if len(first.values) * len(second.values) > MOST_CELLS:
            continue
        if len(second.values) > len(first.values):
            # The longer one downwards: a page is higher than it is wide.
            first, second = second, first
        found.append(_map(space, first, second, pair.share, times, chosen))
    return tuple(found[:MOST_MAPS])


def _map(
    space: Space,
    first: Parameter,
    second: Parameter,
    share: float,
    times: Sequence[tuple[Config, float]],
    chosen: Config,
) -> PairMap:
    columns = [space.domain.column[one.name] for one in (first, second)]
    possible = {(first.values[a], second.values[b]) for a, b in np.unique(space.codes[:, columns], axis=0).tolist()}
    known: dict[tuple[Scalar, Scalar], list[float]] = {}
    for config, seconds in times:
        known.setdefault((config[first.name], config[second.name]), []).append(seconds)
    least = {pair: min(seconds) for pair, seconds in known.items()}
    low, high = min(least.values()), max(least.values())
    here = (chosen.get(first.name), chosen.get(second.name))

    def cell(pair: tuple[Scalar, Scalar]) -> Cell:
        seconds = least.get(pair)
        if seconds is None:
            return Cell("unmeasured" if pair in possible else "infeasible", None, 0.0, 0, False)
        level = math.log(seconds / low) / math.log(high / low) if high > low else 0.0
        return Cell("measured", seconds * 1e6, round(level, 3), len(known[pair]), pair == here)

    rows = tuple((str(one), tuple(cell((one, other)) for other in second.values)) for one in first.values)
    return PairMap(first.name, second.name, share, rows, tuple(map(str, second.values)))
