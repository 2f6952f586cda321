"""`tunesmith init`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer


def init(
    source: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, help="A CUDA source with one or more kernels.")
    ],
    entry: Annotated[
        Optional[str],  # noqa: UP045 - typer reads the annotation at run time
        typer.Option(help="The kernel's name, where the source has several."),
    ] = None,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="A new or empty folder for the task (default: the kernel's name).", show_default=False),
    ] = None,
) -> None:
    """Draft a task from a CUDA source: what the code says is written down, and what it does not say is marked."""
    from tunesmith.cli.actions.init import run_init

    run_init(source, entry, out)
