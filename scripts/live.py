"""The progress of a run on standard error, as a live line or as plain lines, and the approval of plans."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Column, Table
from rich.text import Text

from tunesmith.cli.tables import Output
from tunesmith.graph.models.calls import Waiting
from tunesmith.graph.progress import Listener, Progress
from tunesmith.graph.roles.approval import Ask
from tunesmith.graph.state import Plan
from tunesmith.hw.errors import TunesmithError

PLAIN_SECONDS = 5.0
"""Time between plain progress lines, so that logs stay short."""


@contextmanager
def view() -> Iterator[Listener]:
    """A listener that shows progress on standard error, a terminal or a log."""
    console = Output(stderr=True, highlight=False)
    if console.is_terminal:
        with _Live(console) as live:
            yield live
    else:
        yield _plain(console)


def _plain(console: Console) -> Listener:
    last, shown = 0.0, ""

    def show(progress: Progress) -> None:
        nonlocal last, shown
        text = progress.message or f"{progress.done}/{progress.budget} evaluations  {progress.account}"
        if not progress.message:
            if time.monotonic() - last < PLAIN_SECONDS and progress.done != progress.budget:
                return
            last = time.monotonic()
        # The last result and the end of the search have the same line.
        if text != shown:
            console.print(f"{progress.phase:>8}  {text}", markup=False, soft_wrap=True)
        shown = text

    return show


class _Live(Bar):
    def __init__(self, console: Console) -> None:
        super().__init__(
            SpinnerColumn(),
            TextColumn("{task.fields[phase]:>8}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[count]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[account]}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
            console=console,
            transient=True,
            expand=True,
        )
        self.line = self.add_task("", total=None, phase="start", count="", account="")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leaves the terminal to others until the block ends."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    def __call__(self, progress: Progress) -> None:
        if progress.message:
            # Wrapped at words, beside the phase.
            line = Table.grid(Column(min_width=8, justify="right", no_wrap=True), Column(), padding=(0, 2, 0, 0))
            line.add_row(Text(progress.phase), Text(progress.message))
            self.console.print(line)
        self.update(self.line, phase=progress.phase)
        if progress.budget:
            # Never complete: rich stops the clock and the spinner of a finished task.
            done = min(progress.done, progress.budget) - 0.001
            count = f"{progress.done}/{progress.budget}"
            self.update(self.line, completed=done, total=progress.budget, count=count, account=progress.account)


def ask_on(listener: Listener) -> Ask:
    """An `Ask` on the terminal where `listener` shows progress, which pauses meanwhile."""

    def ask(plan: Plan, file: Path, read: Callable[[], Plan]) -> Plan:
        with getattr(listener, "paused", nullcontext)():
            click.echo(file.read_text(encoding="utf-8"), err=True)
            while True:
                answer = click.prompt("Carry it out? [y]es, [e]dit, [q]uit", default="y", err=True).strip().lower()[:1]
                if answer == "q":
                    raise Waiting(f"Stopped before round {plan.round}; go on with `tunesmith resume {file.parent}`.")
                if answer == "e":
                    click.edit(filename=str(file))
                elif answer == "y":
                    try:
                        return read()
                    except TunesmithError as error:
                        click.echo(f"{error}", err=True)

    return ask
