"""Tables for people: a run's summary, devices, tasks, spaces."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

WIDE = 100
"""Columns of a terminal that take the whole table."""


def console() -> Console:
    """Standard output; wide enough for tables where it is not a terminal."""
    out = Console(highlight=False)
    return out if out.is_terminal else Console(highlight=False, width=160)


def print_summary(summary: Mapping[str, Any], folder: Path) -> None:
    """What a run found: the sentence, a row for each workload, where everything is."""
    out = console()
    device = summary["device"]
    out.print(f"\n{summary['task']} on {device['name']} ({device['backend']}): {summary['sentence']}", markup=False)
    for title, key in (("Tuned workloads", "tuned"), ("Held-out workloads", "held_out")):
        if summary[key]:
            out.print(_workloads(title, summary, summary[key], out.width))
    if summary["general"] is not None:
        config = ", ".join(f"{name}={value}" for name, value in summary["general"]["config"].items())
        out.print(f"General configuration: {config}", markup=False, soft_wrap=True)
    for item in summary["disqualified"]:
        out.print(f"Out: {item['config']} on {item['workload']}: {item['why']}", markup=False, soft_wrap=True)
    for note in summary.get("notes", ()):
        out.print(f"Note: {note}", markup=False, soft_wrap=True)
    failures = ", ".join(f"{kind} {count}" for kind, count in summary["failures"].items()) or "none"
    out.print(f"{summary['evaluations']} evaluations in {summary['seconds']:.0f} s (failures: {failures}); ended by: "
              f"{summary['ended_by'] or 'interruption'}", markup=False, soft_wrap=True)  # fmt: skip
    if summary.get("models"):
        out.print(_models(summary["models"]), markup=False, soft_wrap=True)
    if summary["general"] is not None or summary["dispatch"]:
        out.print(f"Code:   {folder / 'best'}", markup=False, soft_wrap=True)
    out.print(f"Report: {folder / 'report.html'}", markup=False, soft_wrap=True)


def _workloads(title: str, summary: Mapping[str, Any], rows: list[Mapping[str, Any]], width: int) -> Table:
    """Microseconds for each workload. Where the terminal is narrow, shares and regret are left to the report: a number
    that is cut says nothing."""
    label = f"{title}: microseconds per launch, baseline: {summary['baseline_label']}"
    table = Table(title=label, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("workload", no_wrap=True)
    headings = ["baseline", "general", "speed-up", "99 %", "best here", "floor"]
    wide = width >= WIDE
    for heading in headings + (["of floor", "regret"] if wide else []):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        general, best = row["general"], row["best"]
        cells = [
            row["workload"],
            _us(row["baseline_seconds"]),
            _us(general["seconds"]) if general else "-",
            f"{1 / general['ratio']:.2f}x" if general else "-",
            f"{1 / general['high']:.2f}-{1 / general['low']:.2f}" if general else "-",
            _us(best["seconds"]) if best else "-",
            _us(row["floor_seconds"]),
        ]
        table.add_row(*cells, *([_percent(row["share_of_floor"]), _percent(row["regret"])] if wide else []))
    return table


def _models(models: Mapping[str, Any]) -> str:
    """What the models cost, in one line."""

    def cost(value: float | None) -> str:
        return "cost unknown" if value is None else f"${value:.4f}"

    tokens = models["prompt_tokens"] + models["completion_tokens"]
    roles = "; ".join(f"{row['role']} {row['model']} {row['calls']}, {cost(row['cost'])}" for row in models["rows"])
    failures = ", ".join(f"{kind} {count}" for kind, count in models["failures"].items())
    return (
        f"Models ({models['transport']}, {models['where']}): {models['calls']} calls, {tokens} tokens, "
        f"{cost(models['cost'])}{f' ({roles})' if roles else ''}{f'; no usable answer: {failures}' if failures else ''}"
    )


def _us(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e6:.2f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.1f} %"
