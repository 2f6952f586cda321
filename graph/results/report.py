"""The report of a run: one HTML file that needs nothing beside it, and a Markdown text for a pull request.

Owns how results are shown; the results are the summary's and the log's. `Chart` and `Bars` are data in percent of
their axes, which a macro each (charts.j2) draws: as wide as the page, with text of normal size on a phone and on
paper, without scripts.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Any, Literal

from jinja2 import Environment, PackageLoader, StrictUndefined

from tunesmith.graph.journal.events import Evaluated, RunStarted
from tunesmith.graph.journal.log import (
    RunLog,
    objective,
    observation,
    round_of,
    seconds_of,
    stage_of,
    trial_stage,
    weighted_geomean,
)
from tunesmith.graph.journal.records import Figures, WorkloadRow
from tunesmith.graph.journal.store import Entry
from tunesmith.graph.results.best import source_name
from tunesmith.graph.results.summary import Summary, unsteady
from tunesmith.graph.settings import Settings
from tunesmith.graph.setup import limits_of
from tunesmith.kernels.build.source import readable, specialise
from tunesmith.kernels.outcome import Evaluation, Measured, describe
from tunesmith.kernels.space import Space, rules
from tunesmith.kernels.spec.template import assignments, described

MAX_BEST_ROWS = 10
"""Rows in the table of the search's best configurations."""
MAX_MARKS = 300
"""Marks in all charts of the search together, so that the page stays small; new bests and failures are kept first."""
MAX_DOTS_PER_CHART = 60
"""Measured configurations in the chart of a parameter, evenly spread from the fastest to the slowest."""
MIN_EFFECT_SHARE = 0.01
"""Share of the variance below which a parameter's effect is not drawn."""
MIN_EXPLAINED_SHARE = 0.5
"""Share of the variance that the model must explain for its shares to be shown without a warning."""
AXIS_MARGIN = 0.04
"""Room beside the outermost values, as a share of the axis."""
MAX_WHISKER_FACTOR = 3.0
"""Factor beyond the outermost speed-ups at which the axis ends and intervals are cut off."""

Mark = tuple[int, float | None, str, str]
"""A configuration of the search: its number from 1, seconds (None where it failed), kind and text."""


@dataclass(frozen=True, slots=True)
class ChartAxis:
    """An axis from `low` to `high`, logarithmic or linear, or the values `names` side by side."""

    label: str
    low: float
    high: float
    log: bool = False
    names: tuple[str, ...] = ()

    def place(self, value: float) -> float:
        """Percent of the axis from its beginning; values beyond an end are put at it."""
        scaled = math.log if self.log else float
        share = (scaled(value) - scaled(self.low)) / (scaled(self.high) - scaled(self.low))
        return round(100 * min(1.0, max(0.0, share)), 2)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Places in percent and labels: the names, or four to seven round values."""
        if self.names:
            step = -(-len(self.names) // 10)
            return [(self.place(at), name) for at, name in enumerate(self.names) if at % step == 0]
        values = self._log_ticks() if self.log else []
        if len(values) < 3:
            rough = (self.high - self.low) / 5
            decade = 10.0 ** math.floor(math.log10(rough))
            step_size = next(factor * decade for factor in (1, 2, 5, 10) if factor * decade >= rough)
            first, last = math.ceil(self.low / step_size - 1e-9), math.floor(self.high / step_size + 1e-9)
            values = [number * step_size for number in range(first, last + 1)]
        return [(self.place(value), rounded(value)) for value in values]

    def _log_ticks(self) -> list[float]:
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for steps in ((1, 2, 5), (1, 3), (1,)):
            found = [step * 10.0**decade for decade in decades for step in steps]
            found = [value for value in found if self.low <= value <= self.high]
            if len(found) <= 7:
                return found
        return found[:: math.ceil(len(found) / 6)]


def axis_of(label: str, values: Iterable[float], *, log: bool = False) -> ChartAxis:
    """An axis with room for all of `values`, of which there is at least one; for `log` all are positive."""
    found = list(values)
    low, high = min(found), max(found)
    if log:
        room = max(math.log(high / low) * AXIS_MARGIN, 0.02)
        return ChartAxis(label, low * math.exp(-room), high * math.exp(room), log=True)
    room = (high - low) * AXIS_MARGIN or abs(high) * AXIS_MARGIN or 1.0
    return ChartAxis(label, low - room, high + room)


def rounded(value: float, digits: int = 3) -> str:
    """A number for people: so many significant digits, and all those before the point below ten million."""
    if value == 0:
        return "0"
    behind = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{min(behind, 9)}f}" if 1e-4 <= abs(value) < 1e7 else f"{value:.2g}"
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


@dataclass(slots=True)
class Chart:
    """A chart, filled by `mark` and `line` with values of its axes. legend: kinds (CSS classes) and their meaning;
    labels: texts at a height on the right edge."""

    title: str
    across: ChartAxis
    up: ChartAxis
    caption: str = ""
    height: int = 230
    marks: list[tuple[float, float, str, str]] = field(default_factory=list)
    lines: list[tuple[str, list[tuple[float, float]]]] = field(default_factory=list)
    labels: list[tuple[float, str]] = field(default_factory=list)
    legend: dict[str, str] = field(default_factory=dict)

    def _at(self, x: float, y: float) -> tuple[float, float]:
        return self.across.place(x), round(100 - self.up.place(y), 2)

    def mark(self, x: float, y: float, kind: str, text: str) -> None:
        self.marks.append((*self._at(x, y), kind, text))

    def line(self, kind: str, corners: Iterable[tuple[float, float]]) -> None:
        self.lines.append((kind, [self._at(x, y) for x, y in corners]))


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar from `start` to `end`, in percent of the axis. name: of the workload; kind: a CSS class; word: its value;
    verdict: the word's colour; whisker: the ends of its interval; note: a text behind the value."""

    name: str
    tag: str
    kind: str
    start: float
    end: float
    word: str
    verdict: str = ""
    whisker: tuple[float, float] | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars over one axis. line: where the value to compare with stands, in percent; unit: of the axis's numbers."""

    axis: ChartAxis
    line: float
    unit: str
    bars: tuple[Bar, ...]


def render_report(log: RunLog, summary: Summary) -> str:
    """The report as HTML, from a run's log and summary."""
    spaces = _spaces(log, summary)
    template = _environment(html=True).get_template("report.html.j2")
    return template.render(
        summary=summary,
        badge=badge(summary),
        warnings=warnings(summary),
        caveats=caveats(summary),
        stability=stability(log),
        speedups=speedup_bars(summary),
        searches=search_charts(log, summary),
        limits=limit_bars(log, summary),
        # Of the winner's template only: it stands first.
        effects=effect_charts(log, summary, *next(iter(spaces.items()))) if spaces else None,
        spaces=[(log.template(name).name, len(one), one.cartesian) for name, one in spaces.items()],
        rounds=rounds(log, summary),
        notes=_examination_notes(summary),
        best=_best(log),
        source=_winning_source(log, summary),
    )


def render_markdown(summary: Summary) -> str:
    """The report as Markdown (GitHub's), short enough for a pull request."""
    template = _environment(html=False).get_template("report.md.j2")
    return template.render(summary=summary, warnings=warnings(summary), caveats=caveats(summary))


@cache
def _environment(*, html: bool) -> Environment:
    environment = Environment(
        loader=PackageLoader("tunesmith.graph.results", "report_templates"),
        autoescape=html,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Callable[..., Any]] = {
        "us": lambda seconds: rounded(seconds * 1e6, digits=4),
        "percent": _percent,
        "speedup": _speedup,
        "verdict": _verdict,
        "rounded": rounded,
        "assignments": assignments,
        "configuration": lambda config, template: described(template, config),
        "chosen": _changed_settings,
        "date": lambda seconds: datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "dollars": lambda cost: "unknown cost" if cost is None else f"${cost:.4f}",
        "cell": lambda text: str(text).replace("|", "\\|").replace("\n", " "),
        "contents": lambda body: re.findall(r'<h2 id="([^"]*)">', body),
    }
    environment.filters.update(filters)
    return environment


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %"


def _speedup(ratio: float) -> str:
    return f"{1 / ratio:.2f}x"


def _verdict(figures: Figures) -> str:
    return figures.verdict if figures.verdict in ("faster", "slower") else "unclear"


def badge(summary: Summary) -> tuple[Literal["good", "fair", "poor"], str]:
    """The verdict's colour, and the same in words."""
    better = {"time": "faster", "energy": "less energy", "edp": "less energy times time"}[summary.objective]
    general = [row.general for row in (*summary.tuned, *summary.held_out) if row.general is not None]
    slower = any(one.verdict == "slower" for one in general) and summary.objective == "time"
    gains = sum(row.general is not None and row.general.gains(summary.objective) for row in summary.tuned)
    if summary.general is None and not summary.dispatch:
        return "poor", "no result"
    if not gains and not summary.dispatch:
        return ("poor", "slower: keep the baseline") if slower else ("fair", "no gain shown: keep the baseline")
    if gains < len(summary.tuned) or slower:
        return "fair", f"{better} on some shapes only"
    if any(one.verdict != "accepted" for one in summary.examined):
        return "fair", f"{better}, but not every winner passed its examination"
    return "good", better


def warnings(summary: Summary) -> list[str]:
    """What happened in this run that weakens its result, the gravest first; empty where nothing did."""
    shaky = unsteady(summary)
    rows = (*summary.tuned, *summary.held_out)
    slower = [row.workload for row in rows if row.general is not None and row.general.verdict == "slower"]
    found = list(shaky)
    if slower:
        found.append(f"The general configuration is slower than the baseline on {', '.join(slower)}.")
    wrong = [one for one in summary.examined if one.verdict != "accepted"]
    found += [f"A winner was {one.verdict} when it was examined: {one.detail.rstrip('.')}." for one in wrong]
    if summary.disqualified:
        found.append(
            f"{len(summary.disqualified)} finalist(s) of the search failed in the final comparison or examination."
        )
    if not summary.ended_by:
        found.append("The run has not ended: these are its results until then.")
    return found + [note for note in summary.notes if note not in shaky]


def caveats(summary: Summary) -> list[str]:
    """What holds for every result of this kind."""
    driver = f", driver {summary.device.driver}" if summary.device.driver else ""
    found = [
        "Times are of one launch with cold caches. In a program whose data are still in the cache, and whose launches "
        "follow each other closely, others may win.",
        f"The baseline is labelled '{summary.baseline_label}': a speed-up says how much faster than that kernel.",
        f"The result belongs to {summary.device.name}{driver}: on another device, tune again.",
    ]
    by_reason = dict[str, list[str]]()
    for step in dict.fromkeys(step for one in summary.examined for step in one.skipped):
        # Hundreds of made-up steps share a reason but for the numbers in it.
        by_reason.setdefault(re.sub(r"[0-9][0-9.e+-]*|nan|inf", "#", step.partition(": ")[2]), []).append(step)
    for steps in by_reason.values():
        more = f" ({len(steps) - 1} more like it)" if len(steps) > 1 else ""
        found.append(f"The winners' examination left out: {steps[0].rstrip('.')}{more}.")
    return found


def stability(log: RunLog) -> str:
    """Throttling and drift while the search measured, as a clause; empty where nothing is known of either."""
    measured = [one for found in log.evaluations() for one in found.outcomes.values() if isinstance(one, Measured)]
    throttled = Counter(reason for one in measured for reason in one.throttled)
    found = [f"{count} measurements throttled ({why})" for why, count in throttled.items()]
    drifts = [abs(one.drift - 1.0) for one in measured if one.drift is not None]
    if drifts:
        found.append(f"the reference kernel's time differed from its first by at most {_percent(max(drifts))}")
    return "; ".join(found)


def used_kernel(summary: Summary, row: WorkloadRow) -> Literal["general", "best", "baseline"]:
    """The kernel that best/ uses for the shape of a workload: "best" is one of its own."""
    own = next((one for one in summary.dispatch if one.workload == row.workload), None)
    if own is None:
        return "general" if row.general is not None and row.general.gains(summary.objective) else "baseline"
    general = summary.general
    return "general" if general and (own.template, own.config) == (general.template, general.config) else "best"


def _kernels(row: WorkloadRow) -> Iterator[tuple[str, str, Figures]]:
    """Kind, name and figures of the kernels that were compared with the baseline on a workload."""
    if row.general is not None:
        yield "general", "general", row.general
    if row.best is not None and (row.general is None or (row.regret or 0.0) > 0):
        yield "best", "best for this shape", row.best
    for one in row.opponents:
        if one.over_baseline is not None:
            yield "opponent", f"{one.name} ({one.label})", one.over_baseline


def _named(summary: Summary, row: WorkloadRow) -> str:
    return f"{row.workload} (held out)" if row in summary.held_out else row.workload


def speedup_bars(summary: Summary) -> Bars | None:
    """The general configuration on every workload, the best one where it is another, and the opponents that were
    timed; None without any. What best/ does not use for that shape says so."""
    found = [(row, *one) for row in (*summary.tuned, *summary.held_out) for one in _kernels(row)]
    if not found:
        return None
    ratios = [1.0, *(1 / one.ratio for *_, one in found)]
    least, most = min(ratios) / MAX_WHISKER_FACTOR, max(ratios) * MAX_WHISKER_FACTOR
    ends = [min(most, max(least, 1 / end)) for *_, one in found for end in (one.low, one.high)]
    axis = axis_of("times as fast as the baseline", [*ratios, *ends], log=True)
    line = axis.place(1.0)
    bars = []
    for row, kind, name, one in found:
        used, note = used_kernel(summary, row), ""
        if kind == "best" and used != "best":
            note = "not exported"
        elif kind == "general" and used != "general":
            note = "baseline used here" if used == "baseline" else "own kernel used here"
        start, end = sorted((line, axis.place(1 / one.ratio)))
        whisker = (axis.place(1 / one.high), axis.place(1 / one.low))
        word, shown = f"{_speedup(one.ratio)} {_verdict(one)}", f"{kind} idle" if note else kind
        said = f"({_speedup(one.high)} to {_speedup(one.low)}){', ' * bool(note)}{note}"
        bars.append(Bar(_named(summary, row), name, shown, start, end, word, _verdict(one), whisker, said))
    return Bars(axis, line, "x", tuple(bars))


def limit_bars(log: RunLog, summary: Summary) -> Bars | None:
    """The share of the measured roofs that the general configuration reaches on each workload; None without a roof."""
    rows = [row for row in (*summary.tuned, *summary.held_out) if row.share_of_floor and row.general is not None]
    if log.started is None or not rows:
        return None
    task, bars = log.started.task, []
    axis = ChartAxis("", 0.0, max(1.0, *(row.share_of_floor or 0.0 for row in rows)) * 100 * (1 + AXIS_MARGIN))
    for row in rows:
        share, seconds = row.share_of_floor or 0.0, row.general.seconds if row.general else math.inf
        rate = task.bytes_of(task.workload(row.workload)) / seconds / 1e9
        note = f"{rounded(seconds * 1e6, 4)} us of at least {rounded(share * seconds * 1e6, 4)}"
        note += f", {rounded(rate)} GB/s" if rate else ""
        bars.append(Bar(_named(summary, row), "", "general", 0.0, axis.place(100 * share), _percent(share), note=note))
    return Bars(axis, axis.place(100.0), " %", tuple(bars))


def _times(row: WorkloadRow) -> dict[str, float]:
    """Seconds of a launch in the final comparison on a workload, by kernel."""
    found = {} if row.baseline_seconds is None else {"baseline": row.baseline_seconds}
    return found | {kind: one.seconds for kind, _, one in _kernels(row) if kind != "opponent"}


def search_charts(log: RunLog, summary: Summary) -> list[Chart]:
    """A chart for what all tuned workloads take together, and one for each workload that was searched by itself."""
    tuned = [row.workload for row in summary.tuned] or list(log.baseline_seconds or {})
    if log.started is None or not tuned:
        return []
    weights = {workload.name: workload.weight for workload in log.started.task.workloads}
    alone = [plan.workloads[0] for plan in log.plans if len(plan.workloads) == 1]
    goals = [tuple(tuned)] + [(name,) for name in dict.fromkeys(alone) if len(tuned) > 1]
    found = [(goal, list(_marks(log, goal, weights))) for goal in goals]
    found = [(goal, marks) for goal, marks in found if sum(seconds is not None for _, seconds, *_ in marks) > 1]
    return [_search_chart(summary, goal, marks, weights, MAX_MARKS // len(found)) for goal, marks in found]


def _search_chart(
    summary: Summary, goal: tuple[str, ...], marks: Sequence[Mark], weights: Mapping[str, float], most: int
) -> Chart:
    known = [seconds for _, seconds, *_ in marks if seconds is not None]
    times = [_times(row) for row in summary.tuned if row.workload in goal]
    final = {
        name: weighted_geomean({goal[at]: one[name] for at, one in enumerate(times)}, weights)
        for name in ("baseline", "general", "best")
        if len(times) == len(goal) and all(name in one for one in times)
    }
    axis = axis_of("us per launch", [seconds * 1e6 for seconds in [*known, *final.values()]], log=True)
    title = "All tuned workloads: geometric mean of their times" if len(goal) > 1 else f"On {goal[0]}"
    chart = Chart(title, axis_of("configurations measured", [0, marks[-1][0]]), axis)
    for name, seconds in final.items():
        chart.line(f"level {name}", [(chart.across.low, seconds * 1e6), (chart.across.high, seconds * 1e6)])
    best, corners = math.inf, []
    for number, value, kind, _ in marks:
        if kind == "newbest" and value is not None:
            corners += [(number, best * 1e6)] if best < math.inf else []
            best = value
            corners.append((number, best * 1e6))
    chart.line("sofar", [*corners, (marks[-1][0], best * 1e6)])
    drawn = _thinned(marks, most)
    for number, value, kind, text in drawn:
        chart.mark(number, axis.high if value is None else value * 1e6, kind, text)
    chart.labels = _apart(
        [(100 - axis.place(seconds * 1e6), f"{name} {rounded(seconds * 1e6, 4)}") for name, seconds in final.items()]
    )
    counts = Counter(kind for _, _, kind, _ in marks)
    chart.legend = {"measured": "measured", "newbest": "new best"}
    for kind, text in (("dropped", "dropped early as a clear loser"), ("failed", "failed (at the top edge)")):
        if counts[kind]:
            chart.legend[kind] = f"{text}: {counts[kind]}"
    if final:
        chart.caption = "Dashed: the final comparison, which measures again, in turn with the baseline, and counts."
    if summary.objective != "time":
        chart.caption += " The run searched for less energy; these are times."
    if len(drawn) < len(marks):
        chart.caption += f" {len(marks) - len(drawn)} of the marks are not drawn."
    return chart


def _marks(log: RunLog, goal: tuple[str, ...], weights: Mapping[str, float]) -> Iterator[Mark]:
    """Every configuration that has a time for `goal`, or failed in a search for it, in the order they ended."""
    best, clock = math.inf, _working_seconds(log)
    for number, entry in enumerate(log.entries(Evaluated), 1):
        evaluation = entry.event.evaluation
        seconds, failure = seconds_of(evaluation), evaluation.failure
        at = f"{clock[entry.sequence]:.0f} s"
        about = f"number {number}, {at}: {described(evaluation.template, evaluation.config)}"
        if failure is not None:
            plan = log.plan(stage_of(round_of(entry.stage)))
            if plan is not None and set(goal) <= set(plan.workloads):
                yield number, None, "failed", f"{about}. {failure.kind}: {describe(failure)}"[:400]
        elif set(goal) <= set(seconds):
            value = weighted_geomean({name: seconds[name] for name in goal}, weights)
            outcomes = [evaluation.outcomes[name] for name in goal]
            dropped = any(isinstance(one, Measured) and one.dropped for one in outcomes)
            kind = "dropped" if dropped else "newbest" if value < best else "measured"
            best = best if dropped else min(best, value)
            yield number, value, kind, f"{about}. {rounded(value * 1e6)} us"


def _working_seconds(log: RunLog) -> dict[int, float]:
    """Seconds since the run began by the evaluations' sequence numbers, without the time between two sessions."""
    spent, found = 0.0, {}
    last: Entry[Any] | None = None
    for entry in [*log.entries(RunStarted), *log.entries(Evaluated)]:
        if last is not None and entry.session == last.session:
            spent += max(0.0, entry.at - last.at)
        found[entry.sequence] = spent
        last = entry
    return found


def _thinned(marks: Sequence[Mark], most: int) -> list[Mark]:
    if len(marks) <= most:
        return list(marks)
    first = [mark for mark in marks if mark[2] == "newbest"]
    first += [mark for mark in marks if mark[2] == "failed"][: most // 2]
    others = [mark for mark in marks if mark[2] not in ("newbest", "failed")]
    step = math.ceil(len(others) / max(1, most - len(first)))
    return sorted([*first, *others[::step]], key=lambda mark: mark[0])


def _apart(labels: list[tuple[float, str]], gap: float = 9.0) -> list[tuple[float, str]]:
    """Labels that do not cover each other: each at least `gap` percent below the one above, the lowest within 100."""
    found: list[tuple[float, str]] = []
    for at, text in sorted(labels):
        found.append((max(at, found[-1][0] + gap) if found else at, text))
    for place, (at, text) in reversed(list(enumerate(found))):
        most = 100.0 if place == len(found) - 1 else found[place + 1][0] - gap
        found[place] = (round(min(at, most), 2), text)
    return found


def effect_charts(log: RunLog, summary: Summary, template_id: str, space: Space) -> tuple[str, str, list[Chart]] | None:
    """The template's name, how much the model explains, and a chart for each parameter with an effect on the time of
    all tuned workloads together; None where too little was measured, or all of it is alike."""
    # Imported here: the model needs SciPy, which takes half a second.
    from tunesmith.kernels.search.effects import effects

    started, before = log.started, log.baseline_seconds
    names = [row.workload for row in summary.tuned] or list(before or {})
    if started is None or not before or not set(names) <= set(before):
        return None
    weights = {workload.name: workload.weight for workload in started.task.workloads}
    results, times = {}, []
    for entry in log.evaluations_of(template_id):
        evaluation = entry.event.evaluation
        point, seconds = space.index(evaluation.config), seconds_of(evaluation)
        if point is None or not (evaluation.failure or set(names) <= set(seconds)):
            continue
        results[point] = observation(evaluation, names, before, weights)
        if evaluation.failure is None:
            times.append((weighted_geomean({name: seconds[name] for name in names}, weights), evaluation.config))
    found = effects(space, results)
    if found is None:
        return None
    chosen = summary.general.config if summary.general and summary.general.template == template_id else {}
    level = weighted_geomean({workload: before[workload] for workload in names}, weights)
    drawn = sorted(times, key=lambda one: one[0])[:: -(-len(times) // MAX_DOTS_PER_CHART)]
    expected = [one * level for effect in found.parameters for one in effect.expected if one is not None]
    up = axis_of("us per launch", [1e6 * one for one in [*(taken for taken, _ in drawn), *expected]], log=True)
    charts = []
    for effect in (one for one in found.parameters if one.share >= MIN_EFFECT_SHARE):
        parameter = space.parameters[space.domain.column[effect.parameter]]
        place = {value: at for at, value in enumerate(parameter.values)}
        across = ChartAxis(effect.parameter, -0.5, len(place) - 0.5, names=tuple(map(str, parameter.values)))
        title = f"{effect.parameter}: {effect.share * 100:.0f} % of the differences"
        chart = Chart(title, across, up, parameter.doc, height=150)
        for taken, config in drawn:
            chart.mark(place[config[effect.parameter]], taken * 1e6, "measured", f"{rounded(taken * 1e6)} us")
        means = [(at, mean * level * 1e6) for at, mean in enumerate(effect.expected) if mean is not None]
        chart.line("sofar", means)
        for at, mean in means:
            if chosen.get(effect.parameter) == parameter.values[at]:
                chart.mark(at, mean, "general", f"{parameter.values[at]}: {rounded(mean)} us expected")
        charts.append(chart)
    said = f"{max(0.0, found.explained) * 100:.0f} % of the variance of {found.points} configurations"
    weak = ", which is little: take the shares as a hint" if found.explained < MIN_EXPLAINED_SHARE else ""
    return log.template(template_id).name, f"a model of these parameters explains {said}{weak}", charts


def rounds(log: RunLog, summary: Summary) -> list[dict[str, Any]]:
    """What each round planned, and the least time (geometric mean of the plan's workloads) before and after it."""
    if log.started is None:
        return []
    weights = {workload.name: workload.weight for workload in log.started.task.workloads}
    seen = [] if log.baseline is None else [log.baseline]
    found = []
    for plan in log.plans:
        stage, verdict = stage_of(plan.round), log.verdict(stage_of(plan.round))
        own = [*log.evaluations(trial_stage(stage)), *log.evaluations(stage)]
        before, seen = _least(seen, plan.workloads, weights), [*seen, *own]
        found.append(
            {
                "plan": plan,
                "what": "all tuned workloads" if plan.scope == "general" else ", ".join(plan.workloads),
                "templates": [log.template(one).name for one in log.chosen_templates(stage) or []],
                "evaluations": len(own),
                "before": before,
                "after": _least(seen, plan.workloads, weights),
                "ratio": None if verdict is None else verdict.ratio,
                "explanation": log.explanations().get(plan.round, ()),
            }
        )
    return found


def _least(found: Iterable[Evaluation], names: Sequence[str], weights: Mapping[str, float]) -> float | None:
    times = (seconds_of(one) for one in found if one.failure is None)
    whole = (weighted_geomean({name: one[name] for name in names}, weights) for one in times if set(names) <= set(one))
    return min(whole, default=None)


def _spaces(log: RunLog, summary: Summary) -> dict[str, Space]:
    """The feasible spaces, on all tuned workloads, of the templates that were evaluated; the winner's first."""
    started = log.started
    if started is None:
        return {}
    workloads = started.task.workloads_for(started.device.limits.kind, held_out=False)
    limits = limits_of(started.device, started.settings)
    evaluated = [row.id for row in summary.templates if row.evaluations]
    winner = summary.general.template if summary.general is not None else ""
    found = {}
    for one in sorted(evaluated, key=lambda name: name != winner):
        template = log.template(one)
        conditions = [rule for device in limits for rule in rules(template, workloads, device)]
        found[one] = Space.build(template.parameters, conditions)
    return found


def _changed_settings(settings: dict[str, Any]) -> list[tuple[str, Any]]:
    """The settings that are not the defaults, by name; the task stands above."""
    usual = Settings(task=settings["task"]).model_dump(mode="json")
    return [(name, value) for name, value in settings.items() if value != usual.get(name)]


def _examination_notes(summary: Summary) -> dict[str, list[str]]:
    """The notes of the examinations, each once, and which winners it was made on."""
    found: dict[str, list[str]] = {}
    for one in summary.examined:
        for note in one.notes:
            found.setdefault(note.rstrip("."), []).append(one.workload or "all shapes")
    return found


def _best(log: RunLog) -> list[dict[str, Any]]:
    """The best configurations of the search, the best first, as it saw them on all tuned workloads."""
    started, baseline = log.started, log.baseline_quantities or {}
    if started is None:
        return []
    weights = {workload.name: workload.weight for workload in started.task.workloads}
    ranked: list[dict[str, Any]] = []
    for one in log.evaluations():
        value = objective(one, baseline, baseline, weights, log.objective)
        if value is not None:
            seconds = {name: taken for name, taken in seconds_of(one).items() if name in baseline}
            ranked.append({"value": value, "seconds": weighted_geomean(seconds, weights), "evaluation": one})
    return sorted(ranked, key=lambda row: row["value"])[:MAX_BEST_ROWS]


def _winning_source(log: RunLog, summary: Summary) -> dict[str, Any] | None:
    """The general configuration's source for the types of the first tuned workload, and its file in best/."""
    if summary.general is None or not summary.tuned:
        return None
    template, types = log.template(summary.general.template), summary.tuned[0].types
    macros, code = readable(specialise(template, summary.general.config, types).source)
    return {"types": types, "macros": macros, "code": code, "file": f"best/general/{source_name(template, types)}"}
