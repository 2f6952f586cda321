"""The end of a run: its summary as JSON, the report as HTML, and the winners as files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from tunesmith import __version__
from tunesmith.graph.context import Context
from tunesmith.graph.journal.measurements import evaluations, failure_examples, failures_by_kind
from tunesmith.graph.journal.tree import Node, read_tree
from tunesmith.graph.models.opening import models_summary
from tunesmith.graph.results.export import export_best
from tunesmith.graph.results.report import render_report
from tunesmith.graph.roles.planning.planner import no_template
from tunesmith.graph.roles.testing.examination import account

WIDE = 1.5
"""An interval's high over its low, from where on it says little: a comparison aims at 1.01."""
PACKAGES = (
    "ray",
    "langgraph",
    "langchain-openai",
    "numpy",
    "cupy-cuda13x",
    "cupy-cuda12x",
    "cuda-bindings",
    "nvidia-cuda-nvrtc",
    "pyopencl",
)


def summarise(context: Context, done: str) -> dict[str, Any]:
    """Everything a reader of results needs, from the journal."""
    journal = context.journal
    verdict = journal.last("verdict")
    found = evaluations(context)
    searches = [{"stage": event.stage} | event.data for event in journal.events("searched")]
    empty: dict[str, Any] = {"general": None, "ratio": None, "sentence": "no valid configuration was found."}
    if done == "no template":
        empty["sentence"] = no_template(context)
    empty |= {"tuned": [], "held_out": [], "disqualified": [], "dispatch": []}
    return {
        "task": context.task.name,
        "summary": context.task.summary,
        "device": context.device.to_json(),
        "baseline_label": context.sources.baseline.label,
        "settings": context.settings.model_dump(mode="json"),
        "ended_by": done,
        "seconds": round(journal.seconds_spent(), 3),
        "evaluations": len(found),
        "from_cache": sum(evaluation.cached for evaluation in found),
        "failures": failures_by_kind(found),
        "failure_examples": failure_examples(found),
        "searches": searches,
        "plans": [event.data for event in journal.events("plan")],
        "examined": account(context, verdict.data) if verdict else [],
        "models": models_summary(context.settings, journal),
        "templates": [_told(node) for node in read_tree(context).nodes if node.round],
        "explanations": [event.data | {"stage": event.stage} for event in journal.events("explanation")],
        "notes": [event.data["sentence"] for event in journal.events("note")]
        + (unsteady(verdict.data) if verdict else []),
        "roofline": context.roofline().to_json(),
        "versions": _versions(),
        **(verdict.data if verdict else empty),
    }


def unsteady(verdict: Mapping[str, Any]) -> list[str]:
    """What a reader should not take at face value: intervals too wide to say much, and times below the floor. (Where
    they are far below it, the roof has been left out, and there is no share.)"""
    rows = [row for row in (*verdict["tuned"], *verdict["held_out"]) if row["general"] is not None]
    wide = [row["workload"] for row in rows if row["general"]["high"] > WIDE * row["general"]["low"]]
    below = [row["workload"] for row in rows if (row["share_of_floor"] or 0.0) > 1]
    notes = []
    if wide:
        notes.append(
            f"The interval of the speed-up is wide on {', '.join(wide)}: something else used the device while it was "
            "measured. Run it again on an idle one."
        )
    if below:
        notes.append(
            f"Times are below the floor on {', '.join(below)}: the floor is what a copy of as many bytes takes, and a "
            "kernel that mostly reads can be up to 10 % faster."
        )
    return notes


def _told(node: Node) -> dict[str, Any]:
    """A template of the tree, in short. ratio: the least time over baseline that the search saw."""
    return {
        "id": node.id,
        "parent": node.parent,
        "moves": list(node.moves),
        "round": node.round,
        "evaluations": len(node.found),
        "ratio": node.best,
        "struck": node.struck,
    }


def write_results(context: Context, folder: Path, summary: dict[str, Any]) -> None:
    """Writes summary.json, best/ and report.html into the run's folder."""
    export_best(context, folder / "best", summary)
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    (folder / "report.html").write_text(render_report(context, summary), encoding="utf-8")


def _versions() -> dict[str, str]:
    found = {"tunesmith": __version__}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
