"""The files that a run leaves in its folder: summary.json, best/, report.html."""

from __future__ import annotations

import json
from pathlib import Path

from tunesmith.graph.context import Context
from tunesmith.graph.results.export import export_best
from tunesmith.graph.results.exports.package import Package
from tunesmith.graph.results.exports.rendering import dispatch_module
from tunesmith.graph.results.report import render_report
from tunesmith.graph.results.summary import Summary


def write_results(context: Context, folder: Path, summary: Summary) -> None:
    """Writes summary.json, best/ and report.html into the run's folder."""
    best = folder / "best"
    export_best(context, best, summary)
    if best.is_dir():
        (best / "dispatch.py").write_text(
            dispatch_module(Package(folder, context.task), runnable=True), encoding="utf-8"
        )
    (folder / "summary.json").write_text(json.dumps(summary.to_json(), indent=2) + "\n", encoding="utf-8")
    (folder / "report.html").write_text(render_report(context.log, summary), encoding="utf-8")
