"""`tunesmith compare`: runs of one task beside each other, as a table, Markdown or JSON."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from tunesmith.cli.app import Json, echo
from tunesmith.cli.view.tables import print_json, print_rows
from tunesmith.graph.study.compare import ComparedShape, RunComparison, RunOnShape, compare_runs

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
    for name, run, sentence in zip(_names(found), found.runs, found.sentences, strict=True):
        echo(f"{name}: {run}: {sentence}")
    for title, (headings, *rows) in _tables(found):
        print_rows(headings, rows, title, left=len(headings), prose=headings[1:])
    echo(NOT_PAIRED)


def _markdown(found: RunComparison) -> str:
    lines = [f"## {found.task}: {len(found.runs)} runs", ""]
    lines += [
        f"- **{name}**, `{run}`: {sentence}"
        for name, run, sentence in zip(_names(found), found.runs, found.sentences, strict=True)
    ]
    for title, rows in _tables(found):
        lines += ["", f"### {title}", "", _line(rows[0]), "|" + "---|" * len(rows[0]), *map(_line, rows[1:])]
    return "\n".join([*lines, "", NOT_PAIRED, ""])


def _line(row: Sequence[str]) -> str:
    cells = (cell.replace("|", "\\|").replace("\n", " ") for cell in row)
    return f"| {' | '.join(cells)} |"


def _names(found: RunComparison) -> list[str]:
    """Short names for the headings of tables, since paths are long."""
    return [f"run {number}" for number in range(1, len(found.runs) + 1)]


def _tables(found: RunComparison) -> list[tuple[str, list[list[str]]]]:
    """Titles and rows, of which the first has the headings."""
    names = _names(found)
    shapes = [["workload", *names]]
    shapes += [[_workload(shape), *map(_result, shape.results)] for shape in found.shapes]
    tables = [("Microseconds per launch, and speed-up over the run's own baseline", shapes)]
    if found.differences:
        told = [[what, *(text or "not said" for text in texts)] for what, texts in found.differences.items()]
        tables.append(("What differs", [["", *names], *told]))
    return tables


def _workload(shape: ComparedShape) -> str:
    held_out = [one for one in shape.held_out if one is not None]
    if not any(held_out):
        return shape.workload
    return f"{shape.workload} ({'held out' if all(held_out) else 'held out in some'})"


def _result(one: RunOnShape | None) -> str:
    if one is None:
        return "not measured"
    general = one.general
    if general is None:
        return "no general configuration"
    ratio, low, high = 1 / general.ratio, 1 / general.high, 1 / general.low
    return f"{general.seconds * 1e6:.2f} us, {ratio:.2f}x ({low:.2f} to {high:.2f}), {general.verdict}"
