"""`tunesmith compare`: runs of one task beside each other, as a table, Markdown or JSON."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from tunesmith.cli.app import Json, echo
from tunesmith.cli.view.tables import print_json, print_rows
from tunesmith.graph.journal.records import WorkloadRow
from tunesmith.graph.study.compare import ComparedShape, RunComparison, compare_runs

NOT_PAIRED = (
    "Each speed-up is over the run's own baseline, with its 99 % interval. Times of different runs were not taken in "
    "turn: to say which of two kernels is faster, compare them in one run."
)


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN...", help="The folders of finished runs of one task.")],
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, as for a pull request.")] = False,
    as_json: Json = False,
) -> None:
    """Put runs of one task beside each other: what each found on each shape, and in what they differ."""
    found = compare_runs(runs)
    if as_json:
        print_json(found.to_json())
    elif markdown:
        sys.stdout.write(_markdown(found))
    else:
        _print(found)


def _print(found: RunComparison) -> None:
    for number, (run, sentence) in enumerate(zip(found.runs, found.sentences, strict=True), 1):
        echo(f"run {number}: {run}: {sentence}")
    for title, (headings, *rows) in _tables(found):
        print_rows(headings, rows, title, left=len(headings), prose=headings[1:])
    echo(NOT_PAIRED)


def _markdown(found: RunComparison) -> str:
    lines = [f"## {found.task}: {len(found.runs)} runs", ""]
    for number, (run, sentence) in enumerate(zip(found.runs, found.sentences, strict=True), 1):
        lines.append(f"- **run {number}**, `{run}`: {sentence}")
    for title, rows in _tables(found):
        lines += ["", f"### {title}", "", _line(rows[0]), "|" + "---|" * len(rows[0]), *map(_line, rows[1:])]
    return "\n".join([*lines, "", NOT_PAIRED, ""])


def _line(row: Sequence[str]) -> str:
    cells = (cell.replace("|", "\\|").replace("\n", " ") for cell in row)
    return f"| {' | '.join(cells)} |"


def _tables(found: RunComparison) -> list[tuple[str, list[list[str]]]]:
    """Titles and rows, of which the first has the headings: runs by number, since paths are long."""
    names = [f"run {number}" for number in range(1, len(found.runs) + 1)]
    shapes = [[_workload(shape), *map(_result, shape.results)] for shape in found.shapes]
    told = [[what, *(text or "not said" for text in texts)] for what, texts in found.differences.items()]
    tables = [("Microseconds per launch, and speed-up over the run's own baseline", [["workload", *names], *shapes])]
    return tables + ([("What differs", [["", *names], *told])] if told else [])


def _workload(shape: ComparedShape) -> str:
    held_out = [one for one in shape.held_out if one is not None]
    where = "held out" if all(held_out) else "held out in some"
    return f"{shape.workload} ({where})" if any(held_out) else shape.workload


def _result(one: WorkloadRow | None) -> str:
    if one is None or one.general is None:
        return "not measured" if one is None else "no general configuration"
    general = one.general
    ratio, low, high = 1 / general.ratio, 1 / general.high, 1 / general.low
    return f"{general.seconds * 1e6:.2f} us, {ratio:.2f}x ({low:.2f} to {high:.2f}), {general.verdict}"
