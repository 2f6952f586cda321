"""Tables for people, which no terminal cuts, and a run's summary as text."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from tunesmith.cli.app import echo
from tunesmith.kernels.spec.template import described

if TYPE_CHECKING:
    from tunesmith.graph.dispatch import Dispatching
    from tunesmith.graph.journal.records import ExaminationRow, ModelsUsage, WorkloadRow
    from tunesmith.graph.results.summary import Summary

CUT = "\N{HORIZONTAL ELLIPSIS}"
LEGEND = (
    "general: one configuration for all shapes. best: the fastest that was found for the shape. floor: the shortest "
    "time that the measured bandwidth, or arithmetic, allows; of floor: how much of it the general one reaches. "
    "regret: what the general one costs beside the best, which best/ has only for tuned shapes where it saves at "
    "least 1 % and the two 99 % intervals do not overlap."
)
"""The meaning of the columns of a summary's tables."""
VERDICTS = {"faster": "[green]faster[/]", "slower": "[red]slower[/]", "no difference shown": "unclear"}
"""The words for a speed-up and its interval, which do not depend on colours."""


class _Output(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console() -> Console:
    """Standard output; wide enough for tables where it is not a terminal."""
    out = _Output(highlight=False)
    return out if out.is_terminal else _Output(highlight=False, width=160)


def print_json(data: Any) -> None:
    """Prints a command's result for programs."""
    json.dump(data, sys.stdout, indent=2)
    sys.stdout.write("\n")


def fits(out: Console, table: Table) -> bool:
    """Whether the terminal is wide enough for the table without cutting a word."""
    drawn = "".join(segment.text for segment in out.render(table, out.options))
    own = sum(_plain(cell).count(CUT) for column in table.columns for cell in column.cells)
    return drawn.count(CUT) == own and all(cell_len(line) <= out.width for line in drawn.splitlines())


def print_table(out: Console, table: Table) -> None:
    """The table; where the terminal is too narrow for it, a paragraph for each row: a name or number that is cut says
    nothing."""
    if isinstance(table.title, str):
        # It may hold names of tasks and devices, which must not be read as markup.
        table.title = Text(table.title)
    if fits(out, table):
        out.print(table)
        return
    if table.title:
        out.print(table.title)
    headings = [str(column.header) for column in table.columns]
    wrapper = textwrap.TextWrapper(out.width, "  ", "    ", break_long_words=False, break_on_hyphens=False)
    for row in zip(*(column.cells for column in table.columns), strict=True):
        first, *others = map(_plain, row)
        out.print(f"{headings[0]} {first}", markup=False, style="bold")
        lines = [""]
        for heading, cell in zip(headings[1:], others, strict=True):
            part = f"{heading}: {cell}"
            if cell and lines[-1] and len(lines[-1]) + len(part) + 4 > out.width:
                lines.append(part)
            elif cell:
                lines[-1] += f"; {part}" if lines[-1] else part
        out.print("\n".join(map(wrapper.fill, lines)), markup=False, soft_wrap=True)


def _plain(cell: Any) -> str:
    return Text.from_markup(cell).plain if isinstance(cell, str) else str(cell)


def print_summary(summary: Summary, folder: Path) -> None:
    """Prints a run's sentence, a row for each workload, and where its files are."""
    out = console()
    echo(f"\n{summary.task} on {summary.device.name} ({summary.device.backend}): {summary.sentence}")
    tables = [
        _workloads(title, summary.baseline_label, rows)
        for title, rows in (("Tuned workloads", summary.tuned), ("Held-out workloads", summary.held_out))
        if rows
    ]
    for table in tables:
        print_table(out, table)
    if any(row.opponents for row in (*summary.tuned, *summary.held_out)):
        print_table(out, _opponents((*summary.tuned, *summary.held_out)))
    if summary.front:
        print_table(out, _front(summary))
    if tables:
        out.print(LEGEND, markup=False, style="dim", width=min(100, out.width))
    if summary.general is not None:
        echo(f"General configuration: {described(summary.general.template, summary.general.config)}")
    if summary.dispatching is not None and summary.dispatching.tested:
        _print_dispatching(out, summary.dispatching)
    for item in summary.disqualified:
        echo(f"Disqualified: {described(item.template, item.config)} on {item.workload}: {item.why}")
    for row in summary.examined:
        kernel = described(row.template, row.config)
        if row.checks:
            echo(_checks(row))
        if row.verdict == "not examined":
            echo(f"Not examined: {kernel}: {row.detail.rstrip('.')}.")
        for lines in row.unexecuted if row.unreached else ():
            echo(f"Ran in no check: {kernel}, {lines}")
    for note in summary.notes:
        echo(f"Note: {note}")
    # One example of each kind of failure; the others are in the report.
    for example in list({item.kind: item for item in reversed(summary.failure_examples)}.values())[::-1]:
        echo(f"Failed, {example.kind}, such as {described(example.template, example.config)}: {example.what}")
    failures = ", ".join(f"{kind} {count}" for kind, count in summary.failures.items()) or "none"
    checking = sum(row.seconds for row in summary.examined)
    took = f"{summary.seconds:.0f} s" + (f", {checking:.0f} s of them to check the winners" if checking >= 1 else "")
    echo(
        f"{summary.evaluations} of {summary.settings['evaluations']} evaluations in {took} (failures: {failures}); "
        f"{summary.ending}"
    )
    if summary.models:
        echo(_models(summary.models))
    if summary.general is not None or summary.dispatch:
        typer.echo(f"Code:   {folder / 'best'}")
    report = folder / "report.html"
    gone = "" if report.is_file() else f" is gone; `tunesmith resume {folder}` writes it anew."
    typer.echo(f"Report: {report}{gone}")


def _print_dispatching(out: Console, dispatching: Dispatching) -> None:
    """Prints what each way to choose a kernel costs on shapes that neither tuning nor fitting saw, and the rule."""
    table = _table(
        f"Dispatch on {dispatching.tested} unseen shapes",
        left=("kernel by",),
        right=("median regret", "worst regret", "speed-up", "shapes slower than baseline"),
    )
    for policy in dispatching.policies:
        regrets = (f"{policy.median_regret:.1%}", f"{policy.worst_regret:.1%}")
        table.add_row(policy.policy, *regrets, _speedup(policy.ratio), str(policy.slower))
    print_table(out, table)
    rule, exported = ("\n    ".join(lines) for lines in (dispatching.lost or dispatching.lines, dispatching.lines))
    echo(f"Dispatch rule, fitted to {dispatching.fitted} shapes:\n    {rule}")
    if dispatching.lost:
        echo(f"It lost to general on the unseen shapes and is not exported; exported is:\n    {exported}")
    for item in dispatching.excluded:
        where = "is not right on all shapes" if item.workload == "all" else f"fails on {item.workload}"
        echo(f"Not in the rule: {described(item.template, item.config)}, which {where}: {item.why}")


def _table(title: str | Text, left: Sequence[str], right: Sequence[str]) -> Table:
    """A table whose columns are the headings `left`, as text, then `right`, as numbers."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for heading in left:
        table.add_column(heading, no_wrap=heading != "finalist")
    for heading in right:
        table.add_column(heading, justify="left" if heading in ("verdict", "on the front") else "right", no_wrap=True)
    return table


def _checks(row: ExaminationRow) -> str:
    """How much of the full verdict a kernel went through."""
    late = sum("--check-time" in step for step in row.skipped)
    untimely = f", {late} for lack of time (--check-time)" if late else ""
    skipped = f", {len(row.skipped)} skipped{untimely} (the report says why)" if row.skipped else ""
    partial = f"; right in part only, as {row.detail}" if row.verdict == "partial" else ""
    return f"Checks of {described(row.template, row.config)}: {row.checks} passed{skipped}{partial}"


def _workloads(title: str, baseline: str, rows: Sequence[WorkloadRow]) -> Table:
    """Microseconds for each workload. `LEGEND` explains the columns."""
    table = _table(
        Text(f"{title}: microseconds per launch, baseline: {baseline}"),
        left=("workload",),
        right=("baseline", "general", "speed-up", "99 %", "verdict", "best", "floor", "of floor", "regret"),
    )
    for row in rows:
        general, best = row.general, row.best
        table.add_row(
            escape(row.workload),
            _us(row.baseline_seconds),
            _us(general.seconds) if general else "-",
            _speedup(general.ratio) if general else "-",
            f"{_speedup(general.high)[:-1]}-{_speedup(general.low)[:-1]}" if general else "-",
            VERDICTS[general.verdict] if general else "-",
            _us(best.seconds) if best else "-",
            _us(row.floor_seconds),
            _percent(row.share_of_floor),
            _percent(row.regret),
        )
    return table


def _front(summary: Summary) -> Table:
    """Time and energy of the finalists for all workloads, the fastest first."""
    title = "Time and energy over the baseline's, over all tuned workloads"
    table = _table(title, left=("finalist",), right=("time", "energy", "on the front"))
    for row in summary.front:
        numbers = (f"{row.ratio:.3f}", f"{row.energy_ratio:.3f}")
        table.add_row(escape(described(row.template, row.config)), *numbers, "yes" if row.best else "no")
    return table


def _opponents(rows: Sequence[WorkloadRow]) -> Table:
    """The other functions that a user could call: their times, and the general configuration's speed over theirs."""
    title = "Opponents: microseconds per call, and how much faster the general configuration is"
    table = _table(title, left=("workload", "opponent", "label"), right=("time", "speed-up", "99 %"))
    table.add_column("not timed, as")
    for row in rows:
        for opponent in row.opponents:
            low, high = opponent.low, opponent.high
            table.add_row(
                escape(row.workload),
                escape(opponent.name),
                opponent.label,
                _us(opponent.seconds),
                _speedup(opponent.ratio) if opponent.ratio else "-",
                f"{1 / high:.2f}-{1 / low:.2f}" if low and high else "-",
                escape(opponent.why),
            )
    return table


def _speedup(ratio: float) -> str:
    """A time over the baseline's, as how many times faster that is."""
    return f"{1 / ratio:.2f}x" if ratio > 0 else "-x"


def _models(models: ModelsUsage) -> str:
    """What the models cost, in one line."""

    def cost(value: float | None) -> str:
        return "cost unknown" if value is None else f"${value:.4f}"

    tokens = models.prompt_tokens + models.completion_tokens
    # The account of a replay is that of the run it repeats.
    replayed = models.transport == "replay"
    costs = ["" if replayed else f", {cost(row.cost)}" for row in models.rows]
    roles = "; ".join(f"{row.role} {row.model} {row.calls}{of}" for row, of in zip(models.rows, costs, strict=True))
    paid = "no cost, as they are replayed" if replayed else cost(models.cost)
    failures = ", ".join(f"{kind} {count}" for kind, count in models.failures.items())
    return (
        f"Models ({models.transport}, {models.where}): {models.calls} calls, {tokens} tokens, "
        f"{paid}{f' ({roles})' if roles else ''}{f'; no usable answer: {failures}' if failures else ''}"
    )


def _us(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e6:.2f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.1f} %"
