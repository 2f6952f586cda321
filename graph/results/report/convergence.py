"""How the search came to its result: every configuration in the order in which it was measured, and the best so far."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tunesmith.graph.journal.events import Evaluated, RunStarted
from tunesmith.graph.journal.log import RunLog, round_of, stage_of
from tunesmith.graph.journal.measurements import seconds_of, weighted_geomean
from tunesmith.graph.journal.records import WorkloadRow
from tunesmith.graph.journal.store import Entry
from tunesmith.graph.results.report.axis import Axis, axis_of, rounded
from tunesmith.graph.results.summary import Summary
from tunesmith.kernels.outcome import Evaluation, Measured, describe
from tunesmith.kernels.spec.parameter import described

MOST_MARKS = 1500
"""Marks of a chart: the page stays small. New bests and failures come first, then every n-th of the others."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A configuration. number: from 1, in the order in which they ended, as in the table of `report --csv`; at: working
    seconds since the run began; seconds: a launch's, None where it failed; kind: "measured", "dropped" or "failed";
    text: what is said of it when it is pointed at."""

    number: int
    at: float
    seconds: float | None
    kind: str
    text: str
    best: bool


@dataclass(frozen=True, slots=True)
class Level:
    """A time that a kernel was compared at in the end. at: percent of the axis from its top; label_at: the same for its
    label, apart from the others'."""

    name: str
    what: str
    seconds: float
    at: float
    label_at: float


@dataclass(frozen=True, slots=True)
class SearchChart:
    """The chart of one search goal. marks: as drawn, positions in percent: (x by number, x by time, y, mark); steps:
    the best so far as corners (x by number, x by time, y); baseline: y of the baseline as it was timed before the
    search, with its interval (y of the upper end, height); left_out: marks that are not drawn."""

    title: str
    numbers: Axis
    times: Axis
    seconds: Axis
    marks: tuple[tuple[float, float, float, Mark], ...]
    steps: tuple[tuple[float, float, float], ...]
    baseline: tuple[float, float, float] | None
    baseline_seconds: float | None
    levels: tuple[Level, ...]
    failed: int
    dropped: int
    left_out: int


def search_charts(log: RunLog, summary: Summary) -> list[SearchChart]:
    """A chart for what all tuned workloads take together, and one for each workload that was searched by itself."""
    started = log.started
    if started is None:
        return []
    tuned = [row.workload for row in summary.tuned] or list(log.baseline_seconds or {})
    weights = {workload.name: workload.weight for workload in started.task.workloads}
    if not tuned:
        return []
    alone = [plan.workloads[0] for plan in log.plans if len(plan.workloads) == 1]
    goals = [tuple(tuned)] + [(name,) for name in dict.fromkeys(alone) if len(tuned) > 1]
    charts = [_chart(log, summary, goal, weights, whole=goal == tuple(tuned)) for goal in goals]
    return [chart for chart in charts if chart is not None]


def _chart(
    log: RunLog, summary: Summary, goal: tuple[str, ...], weights: Mapping[str, float], *, whole: bool
) -> SearchChart | None:
    marks = list(_marks(log, goal, weights))
    known = [mark.seconds for mark in marks if mark.seconds is not None]
    if len(known) < 2:
        return None
    before = log.baseline
    baseline = None if before is None else _interval(before, goal, weights)
    final = _final(summary, goal, weights)
    shown = [*known, *(seconds for _, _, seconds in final), *(baseline or ())]
    axis = axis_of("microseconds per launch", [seconds * 1e6 for seconds in shown], log=True)
    numbers = axis_of("configurations measured", [0, marks[-1].number])
    times = axis_of("seconds since the run began", [0.0, marks[-1].at])

    def height(seconds: float) -> float:
        return round(100 - axis.place(seconds * 1e6), 2)

    drawn = _thinned(marks)
    steps = []
    best = math.inf
    for mark in marks:
        if mark.seconds is not None and mark.best:
            if best < math.inf:
                steps.append((numbers.place(mark.number), times.place(mark.at), height(best)))
            best = mark.seconds
            steps.append((numbers.place(mark.number), times.place(mark.at), height(best)))
    steps.append((numbers.place(marks[-1].number), times.place(marks[-1].at), height(best)))
    many = len(goal) > 1
    title = "All tuned workloads together: geometric mean of their times" if many else f"On {goal[0]}"
    return SearchChart(
        title=title if many or not whole else f"On {goal[0]}, the one tuned workload",
        numbers=numbers,
        times=times,
        seconds=axis,
        marks=tuple(
            (
                numbers.place(mark.number),
                times.place(mark.at),
                height(mark.seconds) if mark.seconds is not None else 0.0,
                mark,
            )
            for mark in drawn
        ),
        steps=tuple(steps),
        baseline=None
        if baseline is None
        else (height(baseline[1]), height(baseline[2]), round(height(baseline[0]) - height(baseline[2]), 2)),
        baseline_seconds=None if baseline is None else baseline[1],
        levels=_apart([(name, what, seconds, height(seconds)) for name, what, seconds in final]),
        failed=sum(mark.kind == "failed" for mark in marks),
        dropped=sum(mark.kind == "dropped" for mark in marks),
        left_out=len(marks) - len(drawn),
    )


def _marks(log: RunLog, goal: tuple[str, ...], weights: Mapping[str, float]) -> Iterator[Mark]:
    best = math.inf
    clock = _working_seconds(log)
    for number, entry in enumerate(log.entries(Evaluated), 1):
        evaluation = entry.event.evaluation
        seconds, failure = seconds_of(evaluation), evaluation.failure
        at = clock[entry.sequence]
        about = f"number {number}, {_clock(at)}: {described(evaluation.template, evaluation.config)}"
        if failure is not None:
            plan = log.plan(stage_of(round_of(entry.stage)))
            if plan is not None and set(goal) <= set(plan.workloads):
                yield Mark(number, at, None, "failed", f"{about}. {failure.kind}: {describe(failure)}"[:400], False)
        elif all(name in seconds for name in goal):
            value = weighted_geomean({name: seconds[name] for name in goal}, weights)
            dropped = any(_was_dropped(evaluation, name) for name in goal)
            said = f"{about}. {rounded(value * 1e6)} us{', dropped early as a clear loser' if dropped else ''}"
            better = value < best and not dropped
            best = value if better else best
            yield Mark(number, at, value, "dropped" if dropped else "measured", said, better)


def _was_dropped(evaluation: Evaluation, workload: str) -> bool:
    outcome = evaluation.outcomes[workload]
    return isinstance(outcome, Measured) and outcome.dropped


def _working_seconds(log: RunLog) -> dict[int, float]:
    """Seconds since the run began by the evaluations' sequence numbers, without the time between two sessions."""
    spent, found = 0.0, {}
    last: Entry[RunStarted] | Entry[Evaluated] | None = None
    starts: list[Entry[RunStarted] | Entry[Evaluated]] = [*log.entries(RunStarted), *log.entries(Evaluated)]
    for entry in starts:
        if last is not None and entry.session == last.session:
            spent += max(0.0, entry.at - last.at)
        found[entry.sequence] = spent
        last = entry
    return found


def _interval(
    evaluation: Evaluation, goal: Sequence[str], weights: Mapping[str, float]
) -> tuple[float, float, float] | None:
    """Low end, median and high end of an evaluation's time; None where a workload of the goal was not measured."""
    outcomes = {name: one for name, one in evaluation.outcomes.items() if isinstance(one, Measured)}
    if not all(name in outcomes for name in goal):
        return None
    ends = [{name: getattr(outcomes[name], end) for name in goal} for end in ("low", "seconds", "high")]
    low, middle, high = (weighted_geomean(end, weights) for end in ends)
    return low, middle, high


def _final(summary: Summary, goal: tuple[str, ...], weights: Mapping[str, float]) -> list[tuple[str, str, float]]:
    """The times of the final comparison, as name, explanation and seconds."""
    rows = [row for row in summary.tuned if row.workload in goal]
    if len(rows) != len(goal):
        return []

    def together(name: str, what: str, times: list[float | None]) -> list[tuple[str, str, float]]:
        known = {row.workload: one for row, one in zip(rows, times, strict=True) if one is not None}
        return [(name, what, weighted_geomean(known, weights))] if len(known) == len(rows) else []

    found = together("baseline", "the baseline", [row.baseline_seconds for row in rows])
    found += together("general", "the general configuration", [_seconds(row, "general") for row in rows])
    if len(goal) == 1 and rows[0].best is not None and (rows[0].regret or 0.0) > 0:
        found += together("best here", "the best configuration for this shape", [rows[0].best.seconds])
    return found


def _seconds(row: WorkloadRow, name: str) -> float | None:
    figures = getattr(row, name)
    return None if figures is None else figures.seconds


def _apart(found: list[tuple[str, str, float, float]], gap: float = 15.0) -> tuple[Level, ...]:
    """Levels whose labels do not cover each other: each at least `gap` percent below the one above."""
    levels: list[Level] = []
    for name, what, seconds, at in sorted(found, key=lambda one: one[3]):
        least = levels[-1].label_at + gap if levels else 0.0
        levels.append(Level(name, what, seconds, at, max(at, least)))
    return tuple(levels)


def _thinned(marks: Sequence[Mark]) -> list[Mark]:
    if len(marks) <= MOST_MARKS:
        return list(marks)
    first = [mark for mark in marks if mark.best or mark.kind == "failed"][:MOST_MARKS]
    others = [mark for mark in marks if not mark.best and mark.kind != "failed"]
    step = math.ceil(len(others) / max(1, MOST_MARKS - len(first)))
    return sorted([*first, *others[::step]], key=lambda mark: mark.number)


def _clock(seconds: float) -> str:
    return f"{int(seconds // 60)} min {int(seconds % 60)} s" if seconds >= 60 else f"{seconds:.0f} s"
