"""`tune` and `resume`: run the graph with a live view, print the result, turn endings into exit codes."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import typer

from tunesmith.actors.judging.reference import ReferenceCheck
from tunesmith.cli.app import EXIT_DONE, EXIT_INTERRUPTED, EXIT_NOTHING, EXIT_UNEXAMINED, EXIT_WAITING
from tunesmith.cli.crash import InternalError, interrupted
from tunesmith.cli.view.ask import ask_on
from tunesmith.cli.view.live import view
from tunesmith.cli.view.tables import print_summary
from tunesmith.graph.models import Waiting
from tunesmith.graph.progress import Listener
from tunesmith.graph.roles.planning.approval import Ask
from tunesmith.graph.run import RunResult, resume, tune
from tunesmith.graph.settings import SettingsError, new_run_dir, parse_duration
from tunesmith.hw.errors import TunesmithError


def drive_tune(
    task: str, reference: ReferenceCheck, run_dir: str | None, settings: dict[str, Any], *, as_json: bool
) -> int:
    """Runs `tunesmith tune`; returns the exit code."""
    if run_dir == "":
        raise SettingsError("--run-dir: the name is empty; name a folder, or leave the option out.")
    folder = Path(run_dir) if run_dir is not None else new_run_dir(task, Path("runs"))
    return _drive(
        folder,
        lambda listener, ask: tune(task, run_dir=folder, listener=listener, ask=ask, examined=reference, **settings),
        as_json,
    )


def drive_resume(
    run_dir: Path,
    more: int,
    rounds: int | None,
    time_limit: str | None,
    dispatch_shapes: int | None,
    *,
    as_recorded: bool,
    as_json: bool,
) -> int:
    """Runs `tunesmith resume`; returns the exit code."""
    try:
        seconds = None if time_limit is None else parse_duration(time_limit)
    except ValueError as error:
        raise SettingsError(f"--time-limit: {error}.") from error

    def work(listener: Listener, ask: Ask | None) -> RunResult:
        return resume(
            run_dir,
            more=more,
            rounds=rounds,
            time_limit=seconds,
            dispatch_shapes=dispatch_shapes,
            as_recorded=as_recorded,
            listener=listener,
            ask=ask,
        )

    return _drive(run_dir, work, as_json)


def _waiting(waiting: Waiting, folder: Path, *, as_json: bool) -> int:
    typer.echo(f"tunesmith: {waiting}", err=True)
    if as_json:
        json.dump({"waiting": str(waiting), "run_dir": str(folder)}, sys.stdout, indent=2)
        sys.stdout.write("\n")
    return EXIT_WAITING


def _drive(folder: Path, work: Callable[[Listener, Ask | None], RunResult], as_json: bool) -> int:
    try:
        # Standard output is for the result alone, whatever the packages below have to say.
        with redirect_stdout(sys.stderr), view() as listener:
            result = work(listener, ask_on(listener) if sys.stdin.isatty() and sys.stderr.isatty() else None)
    except TunesmithError as error:
        if not isinstance(error, Waiting):
            raise
        return _waiting(error, folder, as_json=as_json)
    except BrokenPipeError:
        raise
    except Exception as error:  # the last line of defence: a log in the run's folder, and one sentence
        if interrupted(error):
            raise KeyboardInterrupt from error
        raise InternalError(folder) from error
    except KeyboardInterrupt:
        if (folder / "journal.sqlite").exists():
            where = shlex.quote(str(folder))
            typer.echo(f"\nInterrupted; nothing measured is lost. Go on with: tunesmith resume {where}", err=True)
        return EXIT_INTERRUPTED
    if as_json:
        json.dump(result.summary.to_json() | {"run_dir": str(result.folder)}, sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        print_summary(result.summary, result.folder)
    if not result.valid and result.summary.unexamined:
        return EXIT_UNEXAMINED
    return EXIT_DONE if result.valid else EXIT_NOTHING
