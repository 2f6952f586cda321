"""`tune` and `resume`: run the graph with a live view, print the result, turn endings into exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

import typer

from tunesmith.cli.live import view
from tunesmith.cli.main import EXIT_DONE, EXIT_INTERRUPTED, EXIT_NOTHING, EXIT_WAITING
from tunesmith.cli.tables import print_summary
from tunesmith.graph.context import Listener
from tunesmith.graph.models import Waiting
from tunesmith.graph.run import RunResult, resume, tune
from tunesmith.graph.settings import new_run_dir, parse_duration


def drive_tune(
    task: str, run_dir: Path | None, time_limit: str | None, settings: dict[str, object], *, as_json: bool
) -> int:
    """Runs `tunesmith tune`; returns the exit code."""
    seconds = parse_duration(time_limit) if time_limit is not None else None
    folder = run_dir or new_run_dir(task, Path("runs"))
    return _drive(
        folder, lambda listener: tune(task, run_dir=folder, listener=listener, time_limit=seconds, **settings), as_json
    )


def drive_resume(run_dir: Path, *, as_json: bool) -> int:
    """Runs `tunesmith resume`; returns the exit code."""
    return _drive(run_dir, lambda listener: resume(run_dir, listener=listener), as_json)


def _drive(folder: Path, work: Callable[[Listener], RunResult], as_json: bool) -> int:
    try:
        # Standard output is for the result alone, whatever the packages below have to say.
        with redirect_stdout(sys.stderr), view() as listener:
            result = work(listener)
    except KeyboardInterrupt:
        if (folder / "journal.sqlite").exists():
            typer.echo(f"\nInterrupted; nothing measured is lost. Go on with: tunesmith resume {folder}", err=True)
        return EXIT_INTERRUPTED
    except Waiting as waiting:
        typer.echo(f"tunesmith: {waiting}", err=True)
        if as_json:
            json.dump({"waiting": str(waiting), "run_dir": str(folder)}, sys.stdout, indent=2)
            sys.stdout.write("\n")
        return EXIT_WAITING
    if as_json:
        json.dump(result.summary | {"run_dir": str(result.folder)}, sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        print_summary(result.summary, result.folder)
    return EXIT_DONE if result.valid else EXIT_NOTHING
