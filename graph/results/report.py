"""The report of a run: one HTML file that needs nothing beside it, and a Markdown text for a pull request.

Owns how results are shown; the results are the summary's and the log's. `Chart` is data in percent of its axes, which
a macro (charts.j2) draws: as wide as the page, with text of normal size on a phone and on paper, without scripts.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from tunesmith.graph.journal.events import Evaluated, Figures, TemplatesChosen, WorkloadRow
from tunesmith.graph.journal.log import RunLog, objective, read_tree, stage_of
from tunesmith.graph.results.best import source_name
from tunesmith.graph.results.summary import Summary
from tunesmith.kernels.build.source import specialise
from tunesmith.kernels.outcome import Evaluation, Measured, describe
from tunesmith.kernels.spec.template import described

MAX_MARKS = 300  # in all charts of the search together, besides new bests, so that the page stays small
MAX_DOTS_PER_CHART = 60  # in the chart of a parameter, evenly spread from the fastest to the slowest
AXIS_MARGIN = 0.04  # room beside the outermost values, as a share of the axis
MAX_WHISKER_FACTOR = 3.0  # beyond the outermost speed-ups, at which the axis ends and intervals are cut off


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
        """Places in percent and labels: the names, or three to seven round values."""
        if self.names:
            return [(self.place(at), self.names[at]) for at in range(0, len(self.names), -(-len(self.names) // 10))]
        values: list[float] = []
        if self.log:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            values = [step * 10.0**decade for decade in decades for step in (1, 2, 5)]
            values = [value for value in values if self.low <= value <= self.high]
        if len(values) < 3:
            decade = 10.0 ** math.floor(math.log10(rough := (self.high - self.low) / 5))
            step = next(factor * decade for factor in (1, 2, 5, 10) if factor * decade >= rough)
            first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
            values = [number * step for number in range(first, last + 1)]
        return [(self.place(value), rounded(value)) for value in values[:: math.ceil(len(values) / 7)]]


def log_axis(label: str, values: Iterable[float]) -> ChartAxis:
    """A logarithmic axis with room for all of `values`, which are positive, and of which there is at least one."""
    found = list(values)
    low, high = min(found), max(found)
    room = max(math.log(high / low) * AXIS_MARGIN, 0.02)
    return ChartAxis(label, low * math.exp(-room), high * math.exp(room), log=True)


def rounded(value: float, digits: int = 3) -> str:
    """A number for people: so many significant digits, and all those before the point below ten million."""
    if value == 0:
        return "0"
    behind = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{min(behind, 9)}f}" if 1e-4 <= abs(value) < 1e7 else f"{value:.2g}"
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


@dataclass(slots=True)
class Chart:
    """A chart, filled by `mark` and `line` with values of its axes. legend: kinds (CSS classes) and their meaning."""

    title: str
    across: ChartAxis
    up: ChartAxis
    caption: str = ""
    height: int = 230
    marks: list[tuple[float, float, str, str]] = field(default_factory=list)
    lines: list[tuple[str, list[tuple[float, float]]]] = field(default_factory=list)
    legend: dict[str, str] = field(default_factory=dict)

    def _at(self, x: float, y: float) -> tuple[float, float]:
        return self.across.place(x), round(100 - self.up.place(y), 2)

    def mark(self, x: float, y: float, kind: str, text: str) -> None:
        self.marks.append((*self._at(x, y), kind, text))

    def line(self, kind: str, corners: Iterable[tuple[float, float]]) -> None:
        self.lines.append((kind, [self._at(x, y) for x, y in corners]))


def render_report(log: RunLog, summary: Summary) -> str:
    """The report as HTML, from a run's log and summary."""
    found = {
        "warnings": warnings(summary),
        "caveats": caveats(summary),
        "stability": stability(log),
        "speedups": speedup_bars(summary),
        "searches": search_charts(log, summary),
        "effects": effect_charts(log, summary),
        "rounds": rounds(log),
        "source": source(log, summary),
    }
    return _environment(html=True).get_template("report.html.j2").render(summary=summary, **found)


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
        "percent": lambda share: f"{share * 100:.1f} %",
        "speedup": lambda ratio: f"{1 / ratio:.2f}x",
        "verdict": lambda figures: figures.verdict if figures.verdict in ("faster", "slower") else "unclear",
        "rounded": rounded,
        "configuration": lambda config, template: described(template, config),
        "date": lambda seconds: datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "dollars": lambda cost: "unknown cost" if cost is None else f"${cost:.4f}",
        "cell": lambda text: str(text).replace("|", "\\|").replace("\n", " "),
        "contents": lambda body: re.findall(r'<h2 id="([^"]*)">', body),
    }
    environment.filters.update(filters)
    return environment


def warnings(summary: Summary) -> list[str]:
    """The notes on this run, those on winners that were not accepted first; empty without any."""
    bad = [one for one in summary.examined if one.verdict != "accepted"]
    said = [f"A winner was {one.verdict} when it was examined: {one.detail.rstrip('.')}." for one in bad]
    return [*said, *summary.notes]


def caveats(summary: Summary) -> list[str]:
    """The limits of every result of this kind, and the gaps in the examination of its winners."""
    driver = f", driver {summary.device.driver}" if summary.device.driver else ""
    # Hundreds of steps have the same reason with other numbers: one stands for all.
    steps = {
        re.sub(r"[0-9][0-9.e+-]*|nan|inf", "#", step.partition(": ")[2]): step.rstrip(".")
        for one in summary.examined
        for step in one.skipped
    }
    return [
        "Times are of one launch with cold caches. In a program whose data are still in the cache, and whose launches "
        "follow each other closely, others may win.",
        f"The result belongs to {summary.device.name}{driver}: on another device, tune again.",
        *(f"The winners' examination left out, among others: {step}." for step in steps.values()),
    ]


def stability(log: RunLog) -> str:
    """Throttling while the search measured, as a clause; empty where there was none."""
    measured = [one for found in log.evaluations() for one in found.outcomes.values() if isinstance(one, Measured)]
    throttled = Counter(reason for one in measured for reason in one.throttled)
    return "; ".join(f"{count} measurements throttled ({why})" for why, count in throttled.items())


def _kernels(row: WorkloadRow) -> Iterator[tuple[str, str, Figures]]:
    """Kind, name and figures of the kernels that were compared with the baseline on a workload."""
    if row.general is not None:
        yield "general", "general", row.general
    if row.best is not None and (row.general is None or (row.regret or 0.0) > 0):
        yield "best", "best for this shape", row.best
    for one in row.opponents:
        if one.over_baseline is not None:
            about = f"{one.label}; {one.remark}" if one.remark else one.label
            yield "opponent", f"{one.name} ({about})", one.over_baseline


def speedup_bars(summary: Summary) -> tuple[ChartAxis, list[dict[str, Any]]] | None:
    """An axis, and the bars over it: the general configuration on every workload, the best one where it is another,
    and the opponents that were timed; None without any. idle: best/ does not use the kernel for that shape."""
    found = [(row, *kernel) for row in summary.rows for kernel in _kernels(row)]
    if not found:
        return None
    speedups = [1.0, *(1 / figures.ratio for *_, figures in found)]
    least, most = min(speedups) / MAX_WHISKER_FACTOR, max(speedups) * MAX_WHISKER_FACTOR
    ends = [min(most, max(least, 1 / end)) for *_, figures in found for end in (figures.low, figures.high)]
    axis = log_axis("times as fast as the baseline", [*speedups, *ends])
    special, dispatched = ({one.workload for one in rows} for rows in (summary.special, summary.dispatch))
    bars = []
    for row, kind, name, figures in found:
        start, end = sorted((axis.place(1.0), axis.place(1 / figures.ratio)))
        is_used = row.workload in dispatched or (row.general is not None and row.general.gains(summary.objective))
        used = "best" if row.workload in special else "general" if is_used else "baseline"
        workload = f"{row.workload} (held out)" if row in summary.held_out else row.workload
        about = {"workload": workload, "name": name, "kind": kind, "figures": figures}
        whisker = (axis.place(1 / figures.high), axis.place(1 / figures.low))
        bars.append({**about, "bar": (start, end), "whisker": whisker, "idle": kind not in ("opponent", used)})
    return axis, bars


def _us(log: RunLog, evaluation: Evaluation, workloads: Sequence[str]) -> float | None:
    """The geometric mean of an evaluation's times; None where it failed, or a workload has no time."""
    return objective(evaluation, workloads, dict.fromkeys(workloads, 1e-6), log.started.task.weights)


def _tuned(log: RunLog, summary: Summary) -> tuple[str, ...]:
    return tuple(row.workload for row in summary.tuned) or tuple(log.baseline_seconds or {})


def search_charts(log: RunLog, summary: Summary) -> list[Chart]:
    """A chart of all tuned workloads together, and one of each workload that was searched by itself."""
    alone = dict.fromkeys(plan.workloads for plan in log.plans if len(plan.workloads) == 1)
    goals = list(dict.fromkeys([_tuned(log, summary), *alone]))
    charts = (_search_chart(log, goal, MAX_MARKS // len(goals)) for goal in goals)
    return [chart for chart in charts if chart is not None]


def _search_chart(log: RunLog, goal: Sequence[str], most: int) -> Chart | None:
    """All times and failures on `goal`, in order, at most `most` beside new bests; None for fewer than two times."""
    marks: list[tuple[int, float | None, str, str]] = []
    corners: list[tuple[float, float]] = []
    for number, entry in enumerate(log.entries(Evaluated), 1):
        evaluation = entry.event.evaluation
        about = f"number {number}: {described(evaluation.template, evaluation.config)}"
        if (failure := evaluation.failure) is not None:
            if evaluation.outcomes.keys() & {*goal}:
                marks.append((number, None, "failed", f"{about}. {failure.kind}: {describe(failure)}"[:400]))
        elif (us := _us(log, evaluation, goal)) is not None:
            kind = "measured"
            if not corners or us < corners[-1][1]:
                kind = "newbest"
                corners += [*((number, height) for _, height in corners[-1:]), (number, us)]
            marks.append((number, us, kind, f"{about}. {rounded(us)} us"))
    known = [us for _, us, *_ in marks if us is not None]
    if len(known) < 2:
        return None
    level = None if log.baseline is None else _us(log, log.baseline, goal)
    last, up = marks[-1][0], log_axis("us per launch", [*known, level or known[0]])
    title = "All tuned workloads: geometric mean of their times" if len(goal) > 1 else f"On {goal[0]}"
    chart = Chart(title, ChartAxis("configurations measured", 0, 1.02 * last), up)
    if level is not None:
        chart.line("level", [(chart.across.low, level), (chart.across.high, level)])
        chart.caption = "Dashed: the baseline."
    chart.line("sofar", [*corners, *((last, height) for _, height in corners[-1:])])
    for at, (number, value, kind, text) in enumerate(marks):
        if kind == "newbest" or at % math.ceil(len(marks) / most) == 0:
            chart.mark(number, up.high if value is None else value, kind, text)
    failed = sum(value is None for _, value, *_ in marks)
    chart.legend = {"measured": "measured", "newbest": "new best", "failed": f"failed (at the top edge): {failed}"}
    if len(chart.marks) < len(marks):
        chart.caption += f" {len(marks) - len(chart.marks)} of the marks are not drawn."
    return chart


def effect_charts(log: RunLog, summary: Summary) -> list[Chart]:
    """A chart for each parameter of the general configuration's template that makes a difference, the largest first."""
    general = summary.general
    tree = read_tree(log, (), _tuned(log, summary), log.started.task.weights)
    node = None if general is None else tree.node(general.template)
    if general is None or node is None or not node.ranked:
        return []
    drawn = node.ranked[:: -(-len(node.ranked) // MAX_DOTS_PER_CHART)]
    what = {"time": "time", "energy": "energy", "edp": "energy times time"}[summary.objective]
    up = log_axis(f"{what} over the baseline's", [value for value, _ in node.ranked])
    charts = []
    for name, least in node.effects:
        (parameter,) = (one for one in node.template.parameters if one.name == name)
        if name in node.without_effect:
            continue
        place: dict[object, int] = {value: at for at, value in enumerate(parameter.values)}
        across = ChartAxis(name, -0.5, len(place) - 0.5, names=tuple(map(str, parameter.values)))
        chart = Chart(f"{name}: up to {max(least.values()):.2f}x the best", across, up, parameter.doc, height=150)
        for value, evaluation in drawn:
            chart.mark(place[evaluation.config[name]], value, "measured", f"{value:.3f}")
        chart.line("sofar", [(place[one], times * node.ranked[0][0]) for one, times in least.items()])
        chosen = general.config[name]
        if chosen in least:
            chart.mark(place[chosen], least[chosen] * node.ranked[0][0], "general", f"{chosen}")
        charts.append(chart)
    return charts


def rounds(log: RunLog) -> list[dict[str, Any]]:
    """Plan and verdict of each round."""
    found = []
    for plan in log.plans:
        stage = stage_of(plan.round)
        verdict, chosen = log.verdict(stage), log.last(TemplatesChosen, stage)
        names = [log.template(one).name for one in (chosen.ids if chosen else ())]
        found.append({"plan": plan, "templates": names, "ratio": None if verdict is None else verdict.ratio})
    return found


def source(log: RunLog, summary: Summary) -> tuple[str, str] | None:
    """The general configuration's source for the types of the first tuned workload, and its file in best/."""
    general, tuned = summary.general, summary.tuned
    if general is None or not tuned:
        return None
    template, types = log.template(general.template), tuned[0].types
    return specialise(template, general.config, types).source, f"best/general/{source_name(template, types)}"
