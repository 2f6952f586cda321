"""`tunesmith exhaust`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from tunesmith.cli.app import Backend, Force, TaskArgument


def exhaust(
    task: TaskArgument,
    out: Annotated[Path, typer.Option(help="The table to write; compressed when it ends in .gz.")],
    backend: Backend = "auto",
    workload: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="The workload to measure (default: the first tuned one)."),
    ] = None,
    fix: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(help="Keep a parameter at one value, as NAME=VALUE; may be repeated."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the order of points and of the buffers' contents.")] = 0,
    force: Force = False,
) -> None:
    """Measure a whole space on the device, as a table in Kernel Tuner's format."""
    from tunesmith.cli.actions.search import run_exhaust

    raise typer.Exit(run_exhaust(task, out, backend, workload, fix or [], seed, force=force))
