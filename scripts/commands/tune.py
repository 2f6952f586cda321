"""`tunesmith tune`: its options are the settings of a run."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from tunesmith.cli.app import Json, SettingsFile, TaskArgument
from tunesmith.cli.options import given, with_settings


@with_settings()
def tune(
    task: TaskArgument,
    run_dir: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="A new folder for the run (default: runs/NAME-NNN).", show_default=False),
    ] = None,
    settings: SettingsFile = None,
    json: Json = False,
    **options: object,
) -> None:
    """Tune a task on the device, and report what was found."""
    from tunesmith.cli.actions.examined import examined
    from tunesmith.graph.settings import make_settings, read_settings

    # What stands on the command line goes before the file.
    chosen = (read_settings(settings) if settings is not None else {}) | given(options)
    made = make_settings(task=task, **chosen)
    with examined(task, seed=made.seed, deadline=made.reference_deadline) as reference:
        from tunesmith.cli.actions.run import drive_tune

        raise typer.Exit(drive_tune(task, reference, run_dir, chosen, as_json=json))
