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
from typing import Any, Literal

from jinja2 import Environment, PackageLoader, StrictUndefined

from tunesmith.graph.journal.events import Evaluated
from tunesmith.graph.journal.log import (
    RunLog,
    objective,
    observation,
    round_of,
    stage_of,
    trial_stage,
    weighted_geomean,
)
from tunesmith.graph.journal.records import Figures, WorkloadRow
from tunesmith.graph.results.best import source_name
from tunesmith.graph.results.summary import Summary, unsteady
from tunesmith.graph.settings import Settings
from tunesmith.graph.setup import limits_of
from tunesmith.kernels.build.source import readable, specialise
from tunesmith.kernels.outcome import Evaluation, Measured, describe
from tunesmith.kernels.space import Space, rules
from tunesmith.kernels.spec.template import Template, assignments, described

MAX_BEST_ROWS = 10  # in the table of the search's best configurations
MAX_MARKS = 300  # in all charts of the search together, besides new bests, so that the page stays small
MAX_DOTS_PER_CHART = 60  # in the chart of a parameter, evenly spread from the fastest to the slowest
MIN_EFFECT_SHARE = 0.01  # of the variance, below which a parameter's effect is not drawn
MIN_EXPLAINED_SHARE = 0.5  # of the variance, below which the model's shares are shown with a warning
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


def render_report(log: RunLog, summary: Summary) -> str:
    """The report as HTML, from a run's log and summary."""
    report = Report(log, summary)
    found = {
        "badge": badge(summary),
        "warnings": warnings(summary),
        "caveats": caveats(summary),
        "stability": stability(log),
        "speedups": speedup_bars(summary),
        "searches": report.search_charts(),
        "effects": report.effect_charts(),
        "spaces": [(one.name, len(space), space.cartesian) for one, space in report.spaces],
        "rounds": report.rounds(),
        "best": report.best(),
        "source": report.source(),
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


def _changed_settings(settings: dict[str, Any]) -> list[tuple[str, Any]]:
    """The settings that are not the defaults, by name; the task stands above."""
    usual = Settings(task=settings["task"]).model_dump(mode="json")
    return [(name, value) for name, value in settings.items() if value != usual.get(name)]


def badge(summary: Summary) -> tuple[Literal["good", "fair", "poor"], str]:
    """The verdict's colour, and the same in words."""
    better = {"time": "faster", "energy": "less energy", "edp": "less energy times time"}[summary.objective]
    slower = summary.objective == "time" and bool(_slower(summary))
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


def _slower(summary: Summary) -> list[str]:
    return [row.workload for row in summary.rows if row.general and row.general.verdict == "slower"]


def warnings(summary: Summary) -> list[str]:
    """What happened in this run that weakens its result, the gravest first; empty where nothing did."""
    found = [*(shaky := unsteady(summary))]
    if slower := _slower(summary):
        found.append(f"The general configuration is slower than the baseline on {', '.join(slower)}.")
    for one in summary.examined:
        if one.verdict != "accepted":
            found.append(f"A winner was {one.verdict} when it was examined: {one.detail.rstrip('.')}.")
    if count := len(summary.disqualified):
        found.append(f"{count} finalist(s) of the search failed in the final comparison or examination.")
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
            yield "opponent", f"{one.name} ({one.label})", one.over_baseline


def speedup_bars(summary: Summary) -> tuple[ChartAxis, list[dict[str, Any]]] | None:
    """An axis, and the bars over it: the general configuration on every workload, the best one where it is another,
    and the opponents that were timed; None without any. idle: best/ does not use the kernel for that shape."""
    found = [(row, *kernel) for row in summary.rows for kernel in _kernels(row)]
    if not found:
        return None
    speedups = [1.0, *(1 / figures.ratio for *_, figures in found)]
    least, most = min(speedups) / MAX_WHISKER_FACTOR, max(speedups) * MAX_WHISKER_FACTOR
    ends = [min(most, max(least, 1 / end)) for *_, figures in found for end in (figures.low, figures.high)]
    axis = axis_of("times as fast as the baseline", [*speedups, *ends], log=True)
    special, dispatched = ({one.workload for one in rows} for rows in (summary.special, summary.dispatch))
    bars = []
    for row, kind, name, figures in found:
        start, end = sorted((axis.place(1.0), axis.place(1 / figures.ratio)))
        is_used = row.workload in dispatched or (row.general is not None and row.general.gains(summary.objective))
        used = "best" if row.workload in special else "general" if is_used else "baseline"
        bars.append(
            {
                "workload": f"{row.workload} (held out)" if row in summary.held_out else row.workload,
                "name": name,
                "kind": kind,
                "figures": figures,
                "bar": (start, end),
                "whisker": (axis.place(1 / figures.high), axis.place(1 / figures.low)),
                "idle": kind not in ("opponent", used),
            }
        )
    return axis, bars


class Report:
    """Charts and tables of a run. spaces: the templates that were evaluated, the winner's first, with their feasible
    spaces on all tuned workloads."""

    def __init__(self, log: RunLog, summary: Summary) -> None:
        assert log.started is not None, "a run with a summary was begun"
        self.log, self.summary, started = log, summary, log.started
        self._weights = {workload.name: workload.weight for workload in started.task.workloads}
        self._tuned = tuple(row.workload for row in summary.tuned) or tuple(log.baseline_seconds or {})
        workloads = started.task.workloads_for(started.device.limits.kind, held_out=False)
        limits = limits_of(started.device, started.settings)
        winner = summary.general.template if summary.general is not None else ""
        self.spaces: list[tuple[Template, Space]] = []
        for name in sorted((row.id for row in summary.templates if row.evaluations), key=lambda name: name != winner):
            template = log.template(name)
            conditions = [rule for device in limits for rule in rules(template, workloads, device)]
            self.spaces.append((template, Space.build(template.parameters, conditions)))

    def _us(self, evaluation: Evaluation, workloads: Sequence[str]) -> float | None:
        """The geometric mean of an evaluation's times; None where it failed, or a workload has no time."""
        return objective(evaluation, workloads, dict.fromkeys(workloads, 1e-6), self._weights) if workloads else None

    def search_charts(self) -> list[Chart]:
        """A chart for what all tuned workloads take together, and one for each workload that was searched by itself."""
        alone = dict.fromkeys(plan.workloads for plan in self.log.plans if len(plan.workloads) == 1)
        goals = list(dict.fromkeys([self._tuned, *alone]))
        charts = (self._search_chart(goal, MAX_MARKS // len(goals)) for goal in goals)
        return [chart for chart in charts if chart is not None]

    def _search_chart(self, goal: Sequence[str], most: int) -> Chart | None:
        """Every configuration that has a time for `goal`, or failed in a search for it, in the order they ended, but at
        most so many besides new bests; None for fewer than two times."""
        marks: list[tuple[int, float | None, str, str]] = []
        corners: list[tuple[float, float]] = []
        for number, entry in enumerate(self.log.entries(Evaluated), 1):
            evaluation = entry.event.evaluation
            about = f"number {number}: {described(evaluation.template, evaluation.config)}"
            if (failure := evaluation.failure) is not None:
                plan = self.log.plan(stage_of(round_of(entry.stage)))
                if plan is not None and set(goal) <= set(plan.workloads):
                    marks.append((number, None, "failed", f"{about}. {failure.kind}: {describe(failure)}"[:400]))
            elif (us := self._us(evaluation, goal)) is not None:
                outcomes = [evaluation.outcomes[name] for name in goal]
                kind = "dropped" if any(isinstance(one, Measured) and one.dropped for one in outcomes) else "measured"
                if kind == "measured" and (not corners or us < corners[-1][1]):
                    kind = "newbest"
                    corners += [*((number, height) for _, height in corners[-1:]), (number, us)]
                marks.append((number, us, kind, f"{about}. {rounded(us)} us"))
        known = [us for _, us, *_ in marks if us is not None]
        if len(known) < 2:
            return None
        final = self._final_times(goal)
        last, up = marks[-1][0], axis_of("us per launch", [*known, *final.values()], log=True)
        title = "All tuned workloads: geometric mean of their times" if len(goal) > 1 else f"On {goal[0]}"
        chart = Chart(title, axis_of("configurations measured", [0, last]), up)
        for name, level in final.items():
            chart.line(f"level {name}", [(chart.across.low, level), (chart.across.high, level)])
        chart.line("sofar", [*corners, *((last, height) for _, height in corners[-1:])])
        for at, (number, value, kind, text) in enumerate(marks):
            if kind == "newbest" or at % math.ceil(len(marks) / most) == 0:
                chart.mark(number, up.high if value is None else value, kind, text)
        for height, name in sorted((100 - up.place(level), name) for name, level in final.items()):
            # Below the label above it, so that neither covers the other.
            lowest = max(height, chart.labels[-1][0] + 9.0) if chart.labels else height
            chart.labels.append((round(lowest, 2), f"{name} {rounded(final[name], 4)}"))
        counts = Counter(kind for _, _, kind, _ in marks)
        chart.legend = {"measured": "measured", "newbest": "new best"}
        for kind, text in (("dropped", "dropped early as a clear loser"), ("failed", "failed (at the top edge)")):
            if counts[kind]:
                chart.legend[kind] = f"{text}: {counts[kind]}"
        if final:
            chart.caption = "Dashed: the final comparison, which measures again, in turn with the baseline, and counts."
        if self.summary.objective != "time":
            chart.caption += " The run searched for less energy; these are times."
        if len(chart.marks) < len(marks):
            chart.caption += f" {len(marks) - len(chart.marks)} of the marks are not drawn."
        return chart

    def _final_times(self, goal: Sequence[str]) -> dict[str, float]:
        """The baseline's, the general configuration's and the best ones' mean time in the final comparison, in us; the
        best ones' only where they are other kernels."""
        rows = [row for row in self.summary.tuned if row.workload in goal]
        kernels = [{kind: figures for kind, _, figures in _kernels(row)} for row in rows]
        seconds = {
            "baseline": [row.baseline_seconds for row in rows],
            "general": [found["general"].seconds if "general" in found else None for found in kernels],
            "best": [found["best"].seconds if "best" in found else None for found in kernels],
        }
        return {
            kind: 1e6 * weighted_geomean(dict(zip(goal, known, strict=True)), self._weights)
            for kind, values in seconds.items()
            if len(known := [one for one in values if one is not None]) == len(goal)
        }

    def effect_charts(self) -> tuple[str, str, list[Chart]] | None:
        """Of the template that stands first: its name, how much the model explains, and a chart for each parameter with
        an effect on the time of all tuned workloads together; None where too little was measured, or all is alike."""
        # Imported here: the model needs SciPy, which takes half a second.
        from tunesmith.kernels.search.effects import effects

        before = self.log.baseline_seconds or {}
        level = self._us(self.log.baseline, self._tuned) if self.log.baseline is not None else None
        if level is None or not self.spaces:
            return None
        (template, space), general = self.spaces[0], self.summary.general
        results, times = {}, []
        for entry in self.log.evaluations_of(template.id):
            evaluation = entry.event.evaluation
            if (point := space.index(evaluation.config)) is not None:
                results[point] = observation(evaluation, self._tuned, before, self._weights)
                if (us := self._us(evaluation, self._tuned)) is not None:
                    times.append((us, evaluation.config))
        found = effects(space, results)
        if found is None:
            return None
        chosen = general.config if general is not None and general.template == template.id else {}
        drawn = sorted(times, key=lambda one: one[0])[:: -(-len(times) // MAX_DOTS_PER_CHART)]
        expected = [one * level for effect in found.parameters for one in effect.expected if one is not None]
        up = axis_of("us per launch", [*(us for us, _ in drawn), *expected], log=True)
        charts = []
        for effect in (one for one in found.parameters if one.share >= MIN_EFFECT_SHARE):
            parameter = space.parameters[space.domain.column[effect.parameter]]
            place = {value: at for at, value in enumerate(parameter.values)}
            across = ChartAxis(effect.parameter, -0.5, len(place) - 0.5, names=tuple(map(str, parameter.values)))
            title = f"{effect.parameter}: {effect.share * 100:.0f} % of the differences"
            chart = Chart(title, across, up, parameter.doc, height=150)
            for us, config in drawn:
                chart.mark(place[config[effect.parameter]], us, "measured", f"{rounded(us)} us")
            means = [(at, mean * level) for at, mean in enumerate(effect.expected) if mean is not None]
            chart.line("sofar", means)
            for at, mean in means:
                if chosen.get(effect.parameter) == parameter.values[at]:
                    chart.mark(at, mean, "general", f"{parameter.values[at]}: {rounded(mean)} us expected")
            charts.append(chart)
        said = f"{max(0.0, found.explained) * 100:.0f} % of the variance of {found.points} configurations"
        weak = ", which is little: take the shares as a hint" if found.explained < MIN_EXPLAINED_SHARE else ""
        return template.name, f"a model of these parameters explains {said}{weak}", charts

    def rounds(self) -> list[dict[str, Any]]:
        """What each round planned, and the least time (geometric mean of the plan's workloads) before and after it."""
        log, found = self.log, []
        seen = [] if log.baseline is None else [log.baseline]
        for plan in log.plans:
            stage = stage_of(plan.round)
            own, verdict = [*log.evaluations(trial_stage(stage)), *log.evaluations(stage)], log.verdict(stage)
            before, after = (
                min((us for one in evaluations if (us := self._us(one, plan.workloads)) is not None), default=None)
                for evaluations in (seen, [*seen, *own])
            )
            seen += own
            found.append(
                {
                    "plan": plan,
                    "templates": [log.template(one).name for one in log.chosen_templates(stage) or []],
                    "evaluations": len(own),
                    "before": before,
                    "after": after,
                    "ratio": None if verdict is None else verdict.ratio,
                    "explanation": log.explanations().get(plan.round, ()),
                }
            )
        return found

    def best(self) -> list[dict[str, Any]]:
        """The best configurations of the search, the best first, as it saw them on all tuned workloads."""
        baseline = self.log.baseline_quantities or {}
        ranked: list[dict[str, Any]] = [
            {"value": value, "us": self._us(one, [*baseline]), "evaluation": one}
            for one in self.log.evaluations()
            if (value := objective(one, baseline, baseline, self._weights, self.log.objective)) is not None
        ]
        return sorted(ranked, key=lambda row: row["value"])[:MAX_BEST_ROWS]

    def source(self) -> dict[str, Any] | None:
        """The general configuration's source for the types of the first tuned workload, and its file in best/."""
        general, tuned = self.summary.general, self.summary.tuned
        if general is None or not tuned:
            return None
        template, types = self.log.template(general.template), tuned[0].types
        macros, code = readable(specialise(template, general.config, types).source)
        return {"types": types, "macros": macros, "code": code, "file": f"best/general/{source_name(template, types)}"}
