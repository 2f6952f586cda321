"""`tunesmith resume`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from tunesmith.cli.app import Json


def resume(
    run_dir: Annotated[Path, typer.Argument(help="The folder of a run.")],
    more: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, help="Measure this many more configurations, even if the run has finished."),
    ] = None,
    rounds: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, help="Spread them over this many rounds (default: those left, or one)."),
    ] = None,
    time_limit: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="DURATION", help="Let the search take at most this much longer, such as 10m."),
    ] = None,
    dispatch_shapes: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, help="Measure the winners on this many drawn shapes, for a dispatch rule, as tune does."),
    ] = None,
    as_recorded: Annotated[
        bool,
        typer.Option("--as-recorded", help="Go on with the task as it was, although its files have changed since."),
    ] = False,
    json: Json = False,
) -> None:
    """Continue a run; nothing that was measured is lost or measured again."""
    from tunesmith.cli.actions.run import drive_resume

    code = drive_resume(run_dir, more or 0, rounds, time_limit, dispatch_shapes, as_recorded=as_recorded, as_json=json)
    raise typer.Exit(code)
