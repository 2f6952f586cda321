"""`tunesmith exhaust`: a whole space on the device, as a table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tunesmith.cli.app import EXIT_INTERRUPTED, Backend, Force, TaskArgument
from tunesmith.cli.live import view
from tunesmith.graph.study import exhaust as study
from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.spec.template import Scalar


def exhaust(
    task: TaskArgument,
    out: Annotated[Path, typer.Option(help="The table to write; compressed when it ends in .gz.")],
    backend: Backend = "auto",
    workload: Annotated[
        str | None, typer.Option(help="The workload to measure (default: the first tuned one).")
    ] = None,
    fix: Annotated[
        list[str] | None, typer.Option(help="Keep a parameter at one value, as NAME=VALUE; may be repeated.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the order of points and of the buffers' contents.")] = 0,
    force: Force = False,
) -> None:
    """Measure a whole space on the device, as a table in Kernel Tuner's format."""
    fixed = dict(_assignment(text) for text in fix or [])
    try:
        with view() as listener:
            path, points, failed = study.exhaust(
                task, out, backend=backend, workload=workload, fixed=fixed, seed=seed, force=force, listener=listener
            )
    except KeyboardInterrupt:
        typer.echo("\nInterrupted; nothing measured is lost. Give the same command again to go on.", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    typer.echo(f"{path}: {points} configurations, {failed} of them failed.")


def _assignment(text: str) -> tuple[str, Scalar]:
    name, found, value = text.partition("=")
    if not found:
        raise TunesmithError(f"--fix: {text!r} assigns nothing; write it as NAME=VALUE.")
    try:
        parsed = json.loads(value)
    except json.JSONDecodeError:
        parsed = value
    if not isinstance(parsed, bool | int | float | str):
        raise TunesmithError(f"--fix: {value} is not a number, a flag or a text.")
    return name, parsed
