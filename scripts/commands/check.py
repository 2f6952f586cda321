"""`tunesmith check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from tunesmith.cli.app import Backend, Json, ReferenceDeadline, TaskArgument


def check(
    task: TaskArgument,
    source: Annotated[
        Path,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="The candidate's source file. If the template joins several, the last one.",
        ),
    ],
    template: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="The candidate's template file (default: launched as the baseline)."),
    ] = None,
    config: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Parameters as a JSON object (default: the template's defaults)."),
    ] = None,
    backend: Backend = "auto",
    compile_deadline: Annotated[float, typer.Option(min=0.1, help="Seconds to compile the source.")] = 60.0,
    reference_deadline: ReferenceDeadline = 60.0,
    run_deadline: Annotated[float, typer.Option(min=0.1, help="Seconds to run one step of the check.")] = 20.0,
    json: Json = False,
) -> None:
    """Say whether a candidate is right, and if not why: exit code 0 accepted, 1 rejected."""
    from tunesmith.actors.judging.judge import Limits
    from tunesmith.cli.actions.check import run_check

    limits = Limits(compile_deadline, run_deadline, reference_deadline)
    raise typer.Exit(run_check(task, source, template, config, backend, limits, as_json=json))
