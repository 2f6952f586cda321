"""The report of a run: one HTML file that needs nothing beside it, and a Markdown text for a pull request.

Owns how results are shown; what they are is the summary's and the log's. Each module here makes the data of one kind of
picture, in percent of its axes, and the templates draw it as SVG: a chart then is as wide as the page, with text of
normal size on a phone and on paper, says what is pointed at by itself (`<title>`), and needs no script. Plotting
libraries draw at one size (Matplotlib), or bring scripts that exceed the whole page (Plotly, Vega).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from tunesmith.graph.journal.log import RunLog
from tunesmith.graph.journal.measurements import objective
from tunesmith.graph.results.report.axis import rounded
from tunesmith.graph.results.report.caveats import standing, warnings
from tunesmith.graph.results.report.clocks import clocks
from tunesmith.graph.results.report.convergence import search_charts
from tunesmith.graph.results.report.front import front_chart
from tunesmith.graph.results.report.parameters import template_effects
from tunesmith.graph.results.report.roofs import roof_picture
from tunesmith.graph.results.report.rounds import rounds
from tunesmith.graph.results.report.spaces import space_account, template_spaces
from tunesmith.graph.results.report.speedups import speed_ups
from tunesmith.graph.results.summary import Summary
from tunesmith.graph.settings import Settings
from tunesmith.kernels.build.specialise import specialise
from tunesmith.kernels.spec.parameter import assignments, described

MAX_BEST = 10
"""Configurations in the table of the search's best."""


def render_report(log: RunLog, summary: Summary) -> str:
    """The report as HTML, from a run's log and what it found."""
    spaces = template_spaces(log, summary)
    first = [] if summary.general is None else [summary.general.template]
    order = [one for one in dict.fromkeys([*first, *spaces]) if one in spaces]
    effects = [template_effects(log, summary, one, spaces[one]) for one in order]
    return (
        _environment(html=True)
        .get_template("report.html.j2")
        .render(
            summary=summary,
            warnings=warnings(summary),
            caveats=standing(summary),
            charts=search_charts(log, summary),
            effects=[one for one in effects if one is not None],
            picture=roof_picture(log, summary),
            front=front_chart(log, summary),
            spaces=[space_account(log.template(one), spaces[one]) for one in order],
            rounds=rounds(log, summary),
            clocks=clocks(log),
            speedups=speed_ups(summary),
            notes=_examination_notes(summary),
            best=_best(log),
            source=_winning_source(log, summary),
        )
    )


def render_markdown(summary: Summary) -> str:
    """The report as Markdown (GitHub's), short enough for a pull request."""
    return (
        _environment(html=False)
        .get_template("report.md.j2")
        .render(summary=summary, warnings=warnings(summary), caveats=standing(summary))
    )


@cache
def _environment(*, html: bool) -> Environment:
    environment = Environment(
        loader=PackageLoader("tunesmith.graph.results.report"),
        autoescape=html,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Callable[..., Any]] = {
        "us": lambda seconds: rounded(seconds * 1e6, digits=4),
        "percent": lambda share: f"{share * 100:.1f} %",
        "speedup": lambda ratio: f"{1 / ratio:.2f}x",
        "rounded": rounded,
        "assignments": assignments,
        "configuration": lambda config, template: described(template, config),
        "chosen": _chosen,
        "date": lambda seconds: datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "dollars": lambda cost: "unknown cost" if cost is None else f"${cost:.4f}",
        "cell": lambda text: str(text).replace("|", "\\|").replace("\n", " "),
        "verdict_class": lambda verdict: {"faster": "faster", "slower": "slower"}.get(verdict, "undecided"),
    }
    environment.filters.update(filters)
    return environment


def _chosen(settings: dict[str, Any]) -> list[tuple[str, Any]]:
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
    """The best configurations of the search, the fastest first, as it saw them on all tuned workloads: time over
    baseline, and what the compiler says of them."""
    started, baseline = log.started, log.baseline_quantities or {}
    if started is None:
        return []
    weights = {workload.name: workload.weight for workload in started.task.workloads}
    ranked: list[dict[str, Any]] = [
        {"ratio": value, "config": one.config, "template": one.template, "resources": one.resources}
        for one in log.evaluations()
        if (value := objective(one, baseline, baseline, weights, log.objective)) is not None
    ]
    return sorted(ranked, key=lambda row: row["ratio"])[:MAX_BEST]


def _winning_source(log: RunLog, summary: Summary) -> dict[str, Any] | None:
    """The general configuration's source as it was compiled, for the types of the first tuned workload."""
    if summary.general is None or not summary.tuned:
        return None
    row = summary.tuned[0]
    made = specialise(log.template(summary.general.template), summary.general.config, row.types)
    return {"types": row.types, "source": made.source, "config": summary.general.config}
