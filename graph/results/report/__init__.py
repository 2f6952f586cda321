"""The report of a run as one HTML file that needs nothing beside it.

Owns how results are shown; what they are is the summary's. Figures are drawn as SVG by the template.
"""

from __future__ import annotations

import math
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from tunesmith.graph.context import Context
from tunesmith.graph.journal.measurements import objective
from tunesmith.graph.journal.records import Winner
from tunesmith.graph.results.summary import Summary
from tunesmith.graph.settings import Settings
from tunesmith.kernels.spec.parameter import assignments

WIDTH, HEIGHT = 860, 240
"""Of the search's figure, in SVG units."""
MAX_BEST = 10
"""Configurations in the table of the search's best."""


def render_report(context: Context, summary: Summary) -> str:
    """The report's HTML."""
    environment = Environment(
        loader=PackageLoader("tunesmith.graph.results.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.filters["us"] = lambda seconds: "-" if seconds is None else f"{seconds * 1e6:.2f}"
    environment.filters["percent"] = lambda share: "-" if share is None else f"{share * 100:.1f} %"
    environment.filters["speedup"] = lambda ratio: "-" if ratio is None else f"{1 / ratio:.2f}x"
    environment.filters["assignments"] = assignments
    environment.filters["chosen"] = _chosen
    environment.filters["dollars"] = lambda cost: "unknown cost" if cost is None else f"${cost:.4f}"
    return environment.get_template("report.html.j2").render(
        summary=summary,
        figure=_figure(context) if summary.evaluations else None,
        best=_best(context) if summary.evaluations else [],
        source=_source(context, summary.general),
    )


def _chosen(settings: dict[str, Any]) -> list[tuple[str, Any]]:
    """The settings that are not the defaults, by name; the task stands above."""
    usual = Settings(task=settings["task"]).model_dump(mode="json")
    return [(name, value) for name, value in settings.items() if value != usual.get(name)]


def _figure(context: Context) -> dict[str, Any] | None:
    """Points and best-so-far of the general search, as coordinates (log scale upwards: slower)."""
    baseline, names = context.log.baseline_seconds or {}, [workload.name for workload in context.tuned]
    series = [
        (index, value)
        for index, evaluation in enumerate(context.log.evaluations(), 1)
        if (value := objective(evaluation, names, baseline, context.weights)) is not None
    ]
    if len(series) < 2:
        return None
    low, high = min(value for _, value in series), max(max(value for _, value in series), 1.0)
    span = math.log(high / low) or 1.0
    last = max(index for index, _ in series)

    def place(index: int, value: float) -> tuple[float, float]:
        return 50 + (WIDTH - 70) * index / last, 15 + (HEIGHT - 45) * math.log(high / value) / span

    best = math.inf
    steps: list[tuple[float, float]] = []
    for index, value in series:
        if value < best:
            if steps:
                steps.append(place(index, best))
            best = value
            steps.append(place(index, best))
    steps.append(place(last, best))
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "points": [place(index, value) for index, value in series],
        "best": " ".join(f"{x:.1f},{y:.1f}" for x, y in steps),
        "baseline": place(1, 1.0)[1],
        "low": low,
        "high": high,
        "last": last,
        "top": place(1, high)[1],
        "bottom": place(1, low)[1],
    }


def _best(context: Context) -> list[dict[str, Any]]:
    """The best configurations of the search, the fastest first, as it saw them on all tuned workloads: time over
    baseline, and what the compiler says of them."""
    baseline, names = context.log.baseline_seconds or {}, [workload.name for workload in context.tuned]
    ranked: list[dict[str, Any]] = [
        {"ratio": value, "config": one.config, "template": one.template, "resources": one.resources}
        for one in context.log.evaluations()
        if (value := objective(one, names, baseline, context.weights)) is not None
    ]
    return sorted(ranked, key=lambda row: row["ratio"])[:MAX_BEST]


def _source(context: Context, general: Winner | None) -> str:
    return context.template(general.template).source if general is not None else ""
