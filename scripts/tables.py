"""Tables for people, which are never cut, and a run's summary as text."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tunesmith.kernels.spec.template import described

if TYPE_CHECKING:
    from tunesmith.graph.journal.events import ExaminationRow, Figures, ModelsUsage
    from tunesmith.graph.results.summary import Summary

LEGEND = (
    "general: one configuration for all shapes. best: the fastest configuration for the shape; best/ has it for a "
    "tuned shape where general is not faster than the baseline, or where it saves at least 1 % and its 99 % interval "
    "lies apart from general's. of floor: 100 % is the shortest time that the measured bandwidth, or arithmetic, "
    "allows. regret: the extra time of general over best."
)
"""The meaning of the columns of a summary's tables."""
STYLES = {"faster": "green", "slower": "red"}


class Output(Console):
    """A console whose reader may go away: a reader of results (`tunesmith tasks | head`) ends the command, a reader of
    progress (`tunesmith tune TASK 2>&1 | head`) ends only the display."""

    def on_broken_pipe(self) -> None:
        if not self.stderr:
            raise BrokenPipeError
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def console() -> Console:
    """Standard output; wide enough for tables where it is not a terminal."""
    out = Output(highlight=False)
    return out if out.is_terminal else Output(highlight=False, width=160)


def say(text: str) -> None:
    """Prints text, on a terminal wrapped between words."""
    out = console()
    out.print(Text(text), soft_wrap=not out.is_terminal)


def print_json(data: Any) -> None:
    """Prints a command's result for programs."""
    json.dump(data, sys.stdout, indent=2)
    sys.stdout.write("\n")


def print_rows(
    headings: Sequence[str], rows: Iterable[Sequence[str]], title: str = "", *, left: int = 1, prose: Sequence[str] = ()
) -> None:
    """Prints a table, if it has rows; on a terminal that is too narrow a paragraph for each row, as names and numbers
    must not be cut. The first `left` columns and the columns `prose`, which may be wrapped, have text; all others have
    numbers."""
    out, found = console(), list(rows)
    if not found:
        return
    # Names of tasks and devices must not be read as markup.
    heading = Text(title) if title else None
    table = Table(title=heading, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for at, name in enumerate(headings):
        text, wrapped = at < left or name in prose or name in ("verdict", "on the front"), name in prose
        least = 24 if wrapped else max(len(cell) for cell in (name, *(row[at] for row in found)))
        justify: Literal["left", "right"] = "left" if text else "right"
        table.add_column(name, justify=justify, no_wrap=not wrapped, overflow="fold", min_width=least)
    for row in found:
        table.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in row))
    for padding in (1, 0):
        table.padding = (0, padding)
        if out.measure(table, options=out.options.update(max_width=sys.maxsize)).minimum <= out.width:
            out.print(table)
            return
    if heading is not None:
        out.print(heading)
    wrapper = textwrap.TextWrapper(out.width, "  ", "    ", break_long_words=False, break_on_hyphens=False)
    for first, *others in found:
        out.print(f"{headings[0]} {first}", markup=False, style="bold")
        cells = (f"{name}: {cell}" for name, cell in zip(headings[1:], others, strict=True) if cell)
        out.print(wrapper.fill("; ".join(cells)), markup=False, soft_wrap=True)


def print_summary(summary: Summary, folder: Path) -> None:
    """Prints a run's sentence, a row for each workload, and the places of its files."""
    out = console()
    say(f"\n{summary.task} on {summary.device.name} ({summary.device.backend}): {summary.sentence}")
    _print_tables(summary)
    if summary.rows:
        out.print(LEGEND, markup=False, style="dim", width=min(100, out.width))
    if summary.general is not None:
        say(f"General configuration: {described(summary.general.template, summary.general.config)}")
    _print_dispatching(summary)
    excluded = defaultdict[tuple[str, str], list[str]](list)
    for item in summary.disqualified:
        excluded[item.workload, item.why].append(described(item.template, item.config))
    for (where, why), (first, *others) in excluded.items():
        say(f"Disqualified: {first}{f' and {len(others)} more' if others else ''} on {where}: {why}")
    for row in summary.examined:
        kernel = described(row.template, row.config)
        if row.checks:
            say(_checks(row))
        if row.verdict == "not examined":
            say(f"Not examined: {kernel}: {row.detail.rstrip('.')}.")
        for lines in row.unexecuted if row.unreached else ():
            say(f"Ran in no check: {kernel}, {lines}")
    for note in summary.notes:
        say(f"Note: {note}")
    # One example of each kind of failure; the others are in the report.
    for example in list({item.kind: item for item in reversed(summary.failure_examples)}.values())[::-1]:
        say(f"Failed, {example.kind}, such as {described(example.template, example.config)}: {example.what}")
    checking = sum(row.seconds for row in summary.examined)
    took = f"{summary.seconds:.0f} s" + (f", {checking:.0f} s of them to check the winners" if checking >= 1 else "")
    budget = summary.settings["evaluations"]
    beyond = max(0, summary.evaluations - budget)
    replaced = f" and {beyond} in place of rejected winners" if beyond else ""
    say(
        f"{summary.evaluations - beyond} of {budget} evaluations{replaced} in {took} "
        f"(failures: {_counts(summary.failures) or 'none'}); {summary.ending}"
    )
    if summary.models:
        say(_models(summary.models))
    if summary.general is not None or summary.dispatch:
        typer.echo(f"Code:   {folder / 'best'}")
    report = folder / "report.html"
    gone = "" if report.is_file() else f" is gone; `tunesmith resume {folder}` writes it anew."
    typer.echo(f"Report: {report}{gone}")


def _print_tables(summary: Summary) -> None:
    """The workloads, the opponents, and time and energy of the finalists. `LEGEND` explains the columns."""
    for title, rows in (("Tuned workloads", summary.tuned), ("Held-out workloads", summary.held_out)):
        headings = ("workload", "baseline", "general", "speed-up", "99 %", "verdict", "best", "of floor", "regret")
        cells = []
        for row in rows:
            times = us(row.baseline_seconds), *_figures(row.general), us(row.best.seconds if row.best else None)
            cells.append((row.workload, *times, percent(row.share_of_floor), percent(row.regret)))
        print_rows(headings, cells, f"{title}: microseconds per launch, baseline: {summary.baseline_label}")
    met = [
        (row.workload, one.name, one.label, us(one.seconds), *speedup(one.ratio, one.low, one.high), one.remark)
        for row in summary.rows
        for one in row.opponents
    ]
    title = "Opponents: microseconds per call, and how much faster the general configuration is"
    names = ("workload", "opponent", "label", "time", "speed-up", "99 %", "remark")
    print_rows(names, met, title, left=3, prose=("remark",))
    energies = []
    for point in summary.front:
        kernel, best = described(point.template, point.config), "yes" if point.best else "no"
        energies.append((kernel, f"{point.ratio:.3f}", f"{point.energy_ratio:.3f}", best))
    title = "Time and energy over the baseline's, over all tuned workloads"
    print_rows(("finalist", "time", "energy", "on the front"), energies, title, prose=("finalist",))


def _print_dispatching(summary: Summary) -> None:
    """Prints the dispatch rule, and the costs of it and of other choices on shapes that tuning and fitting left out."""
    found = summary.dispatching
    if found is None or not found.tested:
        return
    policies = (
        (one.policy, percent(one.median_regret), percent(one.worst_regret), f"{1 / one.ratio:.2f}x", str(one.slower))
        for one in found.policies
    )
    headings = ("kernel by", "median regret", "worst regret", "speed-up", "shapes slower than baseline")
    print_rows(headings, policies, f"Dispatch on {found.tested} test shapes")
    rule, exported = ("\n    ".join(lines) for lines in (found.lost or found.lines, found.lines))
    say(f"Dispatch rule, fitted to {found.fitted} shapes:\n    {rule}")
    if found.lost:
        say(f"It lost to the general configuration on the test shapes. The exported rule is:\n    {exported}")
    for item in found.excluded:
        where = "is not right on all shapes" if item.workload == "all" else f"fails on {item.workload}"
        say(f"Not in the rule: {described(item.template, item.config)}, which {where}: {item.why}")


def _checks(row: ExaminationRow) -> str:
    """The numbers of passed and skipped steps in the full verdict on a kernel."""
    late = sum("--check-time" in step for step in row.skipped)
    untimely = f", {late} for lack of time (--check-time, --time-limit)" if late else ""
    skipped = f", {len(row.skipped)} skipped{untimely} (the report says why)" if row.skipped else ""
    partial = f"; right in part only, as {row.detail}" if row.verdict == "partial" else ""
    return f"Checks of {described(row.template, row.config)}: {row.checks} passed{skipped}{partial}"


def _figures(figures: Figures | None) -> tuple[str, ...]:
    """Time, speed-up with its interval, and verdict, whose words do not depend on colours."""
    if figures is None:
        return ("-",) * 4
    return us(figures.seconds), *speedup(figures.ratio, figures.low, figures.high), short(figures.verdict)


def short(verdict: str) -> str:
    """The verdict in a word."""
    return "unclear" if verdict == "no difference shown" else verdict


def speedup(ratio: float | None, low: float | None, high: float | None) -> tuple[str, str]:
    """The speed-up over another kernel, and its interval, of the ratio of times and its interval."""
    return (f"{1 / ratio:.2f}x", f"{1 / high:.2f}-{1 / low:.2f}") if ratio and low and high else ("-", "-")


def _models(models: ModelsUsage) -> str:
    """Calls, tokens and cost of the models, in one line; the report has them by role."""
    paid = "cost unknown" if models.cost is None else f"${models.cost:.4f}"
    # A replay repeats the account of the recorded run.
    paid = "no cost, as they are replayed" if models.transport == "replay" else paid
    failures = f"; no usable answer: {_counts(models.failures)}" if models.failures else ""
    return (
        f"Models ({models.transport}, {models.where}): {models.calls} calls, "
        f"{models.prompt_tokens + models.completion_tokens} tokens, {paid}{failures}"
    )


def _counts(found: dict[str, int]) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in found.items())


def us(seconds: float | None) -> str:
    """Microseconds, or a dash."""
    return "-" if seconds is None else f"{seconds * 1e6:.2f}"


def percent(share: float | None) -> str:
    """A share in per cent, or a dash."""
    return "-" if share is None else f"{share * 100:.1f} %"
