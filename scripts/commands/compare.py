"""`tunesmith compare`: runs of one task beside each other, as a table, Markdown or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tunesmith.cli.app import Json, echo
from tunesmith.cli.tables import print_json, print_rows, short, speedup, us
from tunesmith.graph.study.compare import compare_runs

NOT_PAIRED = (
    "Each speed-up is over the run's own baseline, with its 99 % interval. Times of different runs were not taken in "
    "turn: to say which of two kernels is faster, compare them in one run."
)


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN...", help="The folders of finished runs of one task.")],
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, as for a pull request.")] = False,
    as_json: Json = False,
) -> None:
    """Compare runs of one task: their results on each shape, and their differences."""
    found = compare_runs(runs)
    if as_json:
        print_json(found)
        return
    names = [f"run {number}" for number in range(1, len(runs) + 1)]
    shapes = [[_workload(shape), *map(_result, shape["results"])] for shape in found["shapes"]]
    facts = [[name, *(text or "unknown" for text in texts)] for name, texts in found["differences"].items()]
    tables = [("Microseconds per launch, and speed-up over the run's own baseline", "workload", shapes)]
    tables += [("Differences", "", facts)] if facts else []
    if markdown:
        typer.echo(f"## {found['task']}: {len(runs)} runs\n")
    for name, run, sentence in zip(names, found["runs"], found["sentences"], strict=True):
        echo(f"- **{name}**, `{run}`: {sentence}" if markdown else f"{name}: {run}: {sentence}")
    for title, first, rows in tables:
        if markdown:
            lines = [_line([first, *names]), "|" + "---|" * (1 + len(names)), *map(_line, rows)]
            typer.echo("\n".join(["", f"### {title}", "", *lines]))
        else:
            print_rows([first, *names], rows, title, left=1 + len(names), prose=names)
    echo(f"\n{NOT_PAIRED}" if markdown else NOT_PAIRED)


def _line(row: Sequence[str]) -> str:
    cells = (cell.replace("|", "\\|").replace("\n", " ") for cell in row)
    return f"| {' | '.join(cells)} |"


def _workload(shape: dict[str, Any]) -> str:
    held_out = [one for one in shape["held_out"] if one is not None]
    where = "held out" if all(held_out) else "held out in some"
    return f"{shape['workload']} ({where})" if any(held_out) else str(shape["workload"])


def _result(one: dict[str, Any] | None) -> str:
    if one is None or one["general"] is None:
        return "not measured" if one is None else "no general configuration"
    general = one["general"]
    times, interval = speedup(general["ratio"], general["low"], general["high"])
    return f"{us(general['seconds'])} us, {times} ({interval}), {short(general['verdict'])}"
