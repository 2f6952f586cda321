"""What is seen while a run works: a status line that renews itself on a terminal, plain lines elsewhere.

Everything goes to standard error; standard output is for results.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Column

from tunesmith.graph.progress import Listener, Progress
from tunesmith.hw.roofline import BELIEVED

WITH_BAR = 100
"""Columns of a terminal that has room for a bar."""
PLAIN_SECONDS = 5.0
"""Between plain progress lines, so that logs stay short."""


class _LastingConsole(Console):
    """A reader of progress that goes away (`tunesmith tune TASK 2>&1 | head`) ends the showing, not the run."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


@contextmanager
def view() -> Iterator[Listener]:
    """A listener fit for where standard error goes."""
    console = _LastingConsole(stderr=True, highlight=False)
    if console.is_terminal:
        with _Live(console) as live:
            yield live
    else:
        yield _Plain(console)


def _account(progress: Progress) -> str:
    parts = []
    if progress.best is not None:
        share = ""
        if progress.share_of_floor is not None:
            known = progress.share_of_floor <= BELIEVED
            share = f", {progress.share_of_floor:.0%} of the floor" if known else ", faster than the measured roofs"
        parts.append(f"best {1 / progress.best:.2f}x baseline{share}")
    if progress.failures:
        parts.append("failed: " + ", ".join(f"{kind} {count}" for kind, count in sorted(progress.failures.items())))
    if lanes := _lanes(progress):
        parts.append(lanes)
    return "; ".join(parts)


def _lanes(progress: Progress) -> str:
    """What the lanes do: one where it waits for something, several by a letter each (B busy, i idle, w waiting, s
    starting)."""
    lanes = progress.lanes
    if len(lanes) <= 1:
        return "".join(f"device {lane.state}" for lane in lanes if lane.state not in ("busy", "idle"))
    letters = "".join(lane.state[0].upper() if lane.state == "busy" else lane.state[0] for lane in lanes)
    served = [lane.served for lane in lanes]
    return f"{len(lanes)} lanes [{letters}], {min(served)} to {max(served)} visits each"


class _Plain:
    def __init__(self, console: Console) -> None:
        self._console, self._last, self._ended = console, 0.0, ""

    def __call__(self, progress: Progress) -> None:
        if progress.message:
            self._print(progress, progress.message)
        elif time.monotonic() - self._last >= PLAIN_SECONDS or progress.done == progress.budget:
            self._last = time.monotonic()
            text = f"{progress.done}/{progress.budget} evaluations  {_account(progress)}"
            # The last result and the end of the search both ask for a line; one that says nothing new is left out.
            if text != self._ended:
                self._print(progress, text)
            self._ended = text

    def _print(self, progress: Progress, text: str) -> None:
        self._console.print(f"{progress.phase:>8}  {text}", markup=False, soft_wrap=True)


class _Live:
    def __init__(self, console: Console) -> None:
        self._console = console
        # On a narrow terminal the account gives way, not the numbers before it.
        self._bar = Bar(
            SpinnerColumn(),
            TextColumn("{task.fields[phase]:>8}"),
            *([BarColumn(bar_width=24)] if console.width >= WITH_BAR else []),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[account]}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
            console=console,
            transient=True,
            expand=True,
        )
        self._task = self._bar.add_task("", total=None, phase="start", account="")

    def __enter__(self) -> _Live:
        self._bar.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leaves the terminal to others until the block ends."""
        self._bar.stop()
        try:
            yield
        finally:
            self._bar.start()

    def __call__(self, progress: Progress) -> None:
        if progress.message:
            self._console.print(f"{progress.phase:>8}  {progress.message}", markup=False, soft_wrap=True)
        self._bar.update(self._task, phase=progress.phase)
        if progress.budget:
            self._bar.update(self._task, completed=progress.done, total=progress.budget, account=_account(progress))
