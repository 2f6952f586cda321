"""Tables for people: a run's summary, devices, tasks, spaces."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from tunesmith.graph.dispatch import Dispatching
from tunesmith.graph.journal.records import ExaminationRow, FailureExample, ModelsUsage, WorkloadRow
from tunesmith.graph.results.summary import Summary
from tunesmith.kernels.spec.template import described

CUT = "\N{HORIZONTAL ELLIPSIS}"
LEGEND = (
    "general: one configuration for all shapes. best: the fastest that was found for the shape. floor: the shortest "
    "time that the measured bandwidth, or arithmetic, allows; of floor: how much of it the general one reaches. "
    "regret: what the general one costs beside the best, which best/ has only for tuned shapes where it saves at "
    "least 1 % and the two 99 % intervals do not overlap."
)
"""What the columns of a summary's tables mean."""
VERDICTS = {"faster": "[green]faster[/]", "slower": "[red]slower[/]", "no difference shown": "unclear"}
"""Of a speed-up and its interval: in a word, which does not depend on colours."""


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
    """Whether the terminal is wide enough for the table without cutting a word of it."""
    drawn = "".join(segment.text for segment in out.render(table, out.options))
    own = sum(_plain(cell).count(CUT) for column in table.columns for cell in column.cells)
    return drawn.count(CUT) == own and all(cell_len(line) <= out.width for line in drawn.splitlines())


def print_table(out: Console, table: Table) -> None:
    """The table; where the terminal is too narrow for it, a paragraph for each row: a name or number that is cut says
    nothing."""
    if isinstance(table.title, str):
        # Names of tasks and devices stand in it, which are no markup.
        table.title = Text(table.title)
    if fits(out, table):
        out.print(table)
        return
    if table.title:
        out.print(table.title)
    headings = [str(column.header) for column in table.columns]
    for row in zip(*(column.cells for column in table.columns), strict=True):
        first, *others = map(_plain, row)
        out.print(f"{headings[0]} {first}", markup=False, style="bold")
        told = [f"{heading}: {cell}" for heading, cell in zip(headings[1:], others, strict=True) if cell]
        out.print("\n".join(_filled(told, out.width)), markup=False, soft_wrap=True)


def _filled(parts: Sequence[str], width: int) -> list[str]:
    """Lines of `width` columns for the parts of a paragraph: a part that fits on a line is not broken."""
    lines = [""]
    for part in parts:
        if lines[-1] and len(lines[-1]) + len(part) + 4 > width:
            lines.append("")
        lines[-1] += f"; {part}" if lines[-1] else part
    wrapper = textwrap.TextWrapper(width, "  ", "    ", break_long_words=False, break_on_hyphens=False)
    return [line for one in lines for line in wrapper.wrap(one)]


def _plain(cell: Any) -> str:
    return Text.from_markup(cell).plain if isinstance(cell, str) else str(cell)


def print_summary(summary: Summary, folder: Path) -> None:
    """What a run found: the sentence, a row for each workload, where everything is."""
    out = console()
    sentence = f"\n{summary.task} on {summary.device.name} ({summary.device.backend}): {summary.sentence}"
    out.print(sentence, markup=False, soft_wrap=not out.is_terminal)
    shown = False
    for title, rows in (("Tuned workloads", summary.tuned), ("Held-out workloads", summary.held_out)):
        if rows:
            print_table(out, _workloads(title, summary.baseline_label, rows))
            shown = True
    if any(row.opponents for row in (*summary.tuned, *summary.held_out)):
        print_table(out, _opponents((*summary.tuned, *summary.held_out)))
    if summary.front:
        print_table(out, _front(summary))
    if shown:
        out.print(LEGEND, markup=False, style="dim", width=min(100, out.width))
    if summary.general is not None:
        config = described(summary.general.template, summary.general.config)
        out.print(f"General configuration: {config}", markup=False, soft_wrap=not out.is_terminal)
    if summary.dispatching is not None and summary.dispatching.tested:
        print_table(out, _policies(summary.dispatching))
        found = summary.dispatching
        rule, exported = ("\n    ".join(lines) for lines in (found.lost or found.lines, found.lines))
        out.print(f"Dispatch rule, fitted to {found.fitted} shapes:\n    {rule}", markup=False)
        if found.lost:
            said = "It lost to general on the unseen shapes and is not exported; exported is:"
            out.print(f"{said}\n    {exported}", markup=False)
        for item in summary.dispatching.excluded:
            where = "is not right on all shapes" if item.workload == "all" else f"fails on {item.workload}"
            text = f"Not in the rule: {described(item.template, item.config)}, which {where}: {item.why}"
            out.print(text, markup=False, soft_wrap=not out.is_terminal)
    for item in summary.disqualified:
        config = described(item.template, item.config)
        out.print(f"Disqualified: {config} on {item.workload}: {item.why}", markup=False, soft_wrap=not out.is_terminal)
    for one in summary.examined:
        if one.checks:
            out.print(_checks(one), markup=False, soft_wrap=not out.is_terminal)
        if one.verdict == "not examined":
            why = one.detail.rstrip(".")
            out.print(
                f"Not examined: {described(one.template, one.config)}: {why}.",
                markup=False,
                soft_wrap=not out.is_terminal,
            )
        for lines in one.unexecuted if one.unreached else ():
            out.print(
                f"Ran in no check: {described(one.template, one.config)}, {lines}",
                markup=False,
                soft_wrap=not out.is_terminal,
            )
    for note in summary.notes:
        out.print(f"Note: {note}", markup=False, soft_wrap=not out.is_terminal)
    failures = ", ".join(f"{kind} {count}" for kind, count in summary.failures.items()) or "none"
    for example in _one_of_each_kind(summary.failure_examples):
        config = described(example.template, example.config)
        out.print(
            f"Failed, {example.kind}, such as {config}: {example.what}", markup=False, soft_wrap=not out.is_terminal
        )
    checking = sum(one.seconds for one in summary.examined)
    took = f"{summary.seconds:.0f} s" + (f", {checking:.0f} s of them to check the winners" if checking >= 1 else "")
    out.print(
        f"{summary.evaluations} of {summary.settings['evaluations']} evaluations in {took} (failures: {failures}); "
        f"{summary.ending}",
        markup=False,
        soft_wrap=not out.is_terminal,
    )
    if summary.models:
        out.print(_models(summary.models), markup=False, soft_wrap=not out.is_terminal)
    if summary.general is not None or summary.dispatch:
        out.print(f"Code:   {folder / 'best'}", markup=False, soft_wrap=True)
    report = folder / "report.html"
    gone = "" if report.is_file() else f" is gone; `tunesmith resume {folder}` writes it anew."
    out.print(f"Report: {report}{gone}", markup=False, soft_wrap=True)


def _checks(one: ExaminationRow) -> str:
    """How much of the full verdict a kernel went through."""
    late = sum("--check-time" in step for step in one.skipped)
    untimely = f", {late} for lack of time (--check-time)" if late else ""
    skipped = f", {len(one.skipped)} skipped{untimely} (the report says why)" if one.skipped else ""
    partial = f"; right in part only, as {one.detail}" if one.verdict == "partial" else ""
    return f"Checks of {described(one.template, one.config)}: {one.checks} passed{skipped}{partial}"


def _one_of_each_kind(examples: Sequence[FailureExample]) -> list[FailureExample]:
    """The first example of each kind of failure; the others are in the report."""
    return list({item.kind: item for item in reversed(examples)}.values())[::-1]


def _workloads(title: str, baseline: str, rows: Sequence[WorkloadRow]) -> Table:
    """Microseconds for each workload. The columns are those of `LEGEND`."""
    label = Text(f"{title}: microseconds per launch, baseline: {baseline}")
    table = Table(title=label, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("workload", no_wrap=True)
    for heading in ("baseline", "general", "speed-up", "99 %", "verdict", "best", "floor", "of floor", "regret"):
        table.add_column(heading, justify="left" if heading == "verdict" else "right", no_wrap=True)
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
    label = "Time and energy over the baseline's, over all tuned workloads"
    table = Table(title=label, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("finalist")
    for heading in ("time", "energy"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("on the front", no_wrap=True)
    for one in summary.front:
        numbers = (f"{one.ratio:.3f}", f"{one.energy_ratio:.3f}")
        table.add_row(escape(described(one.template, one.config)), *numbers, "yes" if one.best else "no")
    return table


def _policies(found: Dispatching) -> Table:
    """What each way to choose a kernel costs on shapes that neither tuning nor fitting saw."""
    label = f"Dispatch on {found.tested} unseen shapes"
    table = Table(title=label, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("kernel by", no_wrap=True)
    for heading in ("median regret", "worst regret", "speed-up", "shapes slower than baseline"):
        table.add_column(heading, justify="right")
    for one in found.policies:
        regrets = (f"{one.median_regret:.1%}", f"{one.worst_regret:.1%}")
        table.add_row(one.policy, *regrets, f"{1 / one.ratio:.2f}x", str(one.slower))
    return table


def _opponents(rows: Sequence[WorkloadRow]) -> Table:
    """What would have been called instead: its time, and the speed of the general configuration over its."""
    title = "Opponents: microseconds per call, and how much faster the general configuration is"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for heading in ("workload", "opponent", "label"):
        table.add_column(heading, no_wrap=True)
    for heading in ("time", "speed-up", "99 %"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("not timed, as")
    for row in rows:
        for one in row.opponents:
            ratio, low, high = one.ratio, one.low, one.high
            table.add_row(
                escape(row.workload),
                escape(one.name),
                one.label,
                _us(one.seconds),
                f"{1 / ratio:.2f}x" if ratio else "-",
                f"{1 / high:.2f}-{1 / low:.2f}" if low and high else "-",
                escape(one.why),
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
