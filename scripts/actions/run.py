"""`tune` and `resume`: run the graph with a live view, print the result, turn endings into exit codes."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from tunesmith.actors.judging.reference import ReferenceCheck
from tunesmith.cli.app import (
    EXIT_DONE,
    EXIT_INTERRUPTED,
    EXIT_NOTHING,
    EXIT_UNEXAMINED,
    EXIT_UNMEASURED,
    EXIT_WAITING,
    echo,
)
from tunesmith.cli.crash import InternalError, interrupted, unusable
from tunesmith.cli.view.ask import ask_on
from tunesmith.cli.view.live import view
from tunesmith.cli.view.tables import print_summary
from tunesmith.graph.models import Waiting
from tunesmith.graph.progress import Listener
from tunesmith.graph.roles.planning.approval import Ask
from tunesmith.graph.run import RunResult, resume, tune
from tunesmith.graph.settings import as_path, new_run_dir
from tunesmith.hw.errors import TunesmithError


def drive_tune(
    task: str, reference: ReferenceCheck, run_dir: str | None, settings: dict[str, Any], *, as_json: bool
) -> int:
    """Runs `tunesmith tune`; returns the exit code."""
    folder = as_path(run_dir, "--run-dir") if run_dir is not None else new_run_dir(task, Path("runs"))
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

    def work(listener: Listener, ask: Ask | None) -> RunResult:
        return resume(
            run_dir,
            more=more,
            rounds=rounds,
            time_limit=time_limit,
            dispatch_shapes=dispatch_shapes,
            as_recorded=as_recorded,
            listener=listener,
            ask=ask,
        )

    return _drive(run_dir, work, as_json)


def _waiting(waiting: Waiting, folder: Path, *, as_json: bool) -> int:
    echo(f"tunesmith: {waiting}", err=True)
    if (folder / "summary.json").is_file():
        echo(f"What was found by then: `tunesmith report {shlex.quote(str(folder))}`", err=True)
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
        if said := unusable(error):
            raise TunesmithError(said) from error
        raise InternalError(folder) from error
    except KeyboardInterrupt:
        if not (folder / "journal.sqlite").exists():
            raise
        where = shlex.quote(str(folder))
        echo(f"\nInterrupted; nothing measured is lost. Go on with: `tunesmith resume {where}`", err=True)
        return EXIT_INTERRUPTED
    if as_json:
        json.dump(result.summary.to_json() | {"run_dir": str(result.folder)}, sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        print_summary(result.summary, result.folder)
    if result.valid:
        return EXIT_DONE
    if result.summary.unexamined:
        return EXIT_UNEXAMINED
    return EXIT_NOTHING if result.summary.evaluations else EXIT_UNMEASURED
