"""`tunesmith tune` and `tunesmith resume`: run with a live view, print the result, turn endings into exit codes.

Packages that take a second to import are imported after the command line was checked."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunesmith.cli.app import (
    EXIT_INTERRUPTED,
    EXIT_NOTHING,
    EXIT_UNEXAMINED,
    EXIT_UNMEASURED,
    EXIT_WAITING,
    Json,
    SettingsFile,
    TaskArgument,
    echo,
)
from tunesmith.cli.options import given, with_settings
from tunesmith.graph.settings import as_path, new_run_dir, read_settings
from tunesmith.hw.errors import TunesmithError

if TYPE_CHECKING:
    from tunesmith.graph.run import RunResult


@with_settings()
def tune(
    task: TaskArgument,
    run_dir: Annotated[
        str | None, typer.Option(help="A new folder for the run (default: runs/NAME-NNN).", show_default=False)
    ] = None,
    settings: SettingsFile = None,
    as_json: Json = False,
    **options: object,
) -> None:
    """Tune a task on the device, and report the result."""
    # Options on the command line override the file.
    chosen = (read_settings(settings) if settings is not None else {}) | given(options)
    folder = as_path(run_dir, "--run-dir") if run_dir is not None else new_run_dir(task, Path("runs"))

    def work(**terminal: Any) -> RunResult:
        from tunesmith.graph.run import tune

        return tune(task, run_dir=folder, **terminal, **chosen)

    drive(folder, work, as_json)


def resume(
    run_dir: Annotated[Path, typer.Argument(help="The folder of a run.")],
    more: Annotated[
        int | None, typer.Option(min=1, help="Measure this many more configurations, even if the run has finished.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Spread them over this many rounds (default: the rounds left, or one).")
    ] = None,
    time_limit: Annotated[
        str | None, typer.Option(metavar="DURATION", help="End after about this much more time, such as 10m.")
    ] = None,
    dispatch_shapes: Annotated[int | None, typer.Option(min=1, help="As for tune.")] = None,
    as_recorded: Annotated[
        bool,
        typer.Option("--as-recorded", help="Go on with the task as it was, although its files have changed since."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Continue a run; nothing that was measured is lost or measured again."""

    def work(**terminal: Any) -> RunResult:
        from tunesmith.graph.run import resume

        asked: dict[str, Any] = {"rounds": rounds, "time_limit": time_limit, "dispatch_shapes": dispatch_shapes}
        return resume(run_dir, more=more or 0, as_recorded=as_recorded, **asked, **terminal)

    drive(run_dir, work, as_json)


def drive(folder: Path, work: Callable[..., RunResult], as_json: bool) -> None:
    """Calls `work` with a `listener` and an `ask`, for the plan's approval, on this terminal."""
    try:
        # Standard output is for the result alone, whatever other packages print.
        with redirect_stdout(sys.stderr):
            from tunesmith.cli.live import ask_on, view

            with view() as listener:
                asks = sys.stdin.isatty() and sys.stderr.isatty()
                result = work(listener=listener, ask=ask_on(listener) if asks else None)
    except TunesmithError as error:
        from tunesmith.graph.models.calls import Waiting

        if not isinstance(error, Waiting):
            raise
        echo(f"tunesmith: {error}", err=True)
        if (folder / "summary.json").is_file():
            echo(f"Results until then: `tunesmith report {shlex.quote(str(folder))}`", err=True)
        if as_json:
            from tunesmith.cli.tables import print_json

            print_json({"waiting": str(error), "run_dir": str(folder)})
        raise typer.Exit(EXIT_WAITING) from error
    except KeyboardInterrupt:
        if not (folder / "journal.sqlite").exists():
            raise
        where = shlex.quote(str(folder))
        echo(f"\nInterrupted; nothing measured is lost. Go on with: `tunesmith resume {where}`", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    from tunesmith.cli.tables import print_json, print_summary

    if as_json:
        print_json(result.summary.to_json() | {"run_dir": str(result.folder)})
    else:
        print_summary(result.summary, result.folder)
    if not result.valid:
        if result.summary.unexamined:
            raise typer.Exit(EXIT_UNEXAMINED)
        raise typer.Exit(EXIT_NOTHING if result.summary.evaluations else EXIT_UNMEASURED)
