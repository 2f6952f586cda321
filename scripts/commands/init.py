"""`tunesmith init`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer


def init(
    source: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A CUDA source, or a T1 file (.json).")],
    entry: Annotated[
        Optional[str],  # noqa: UP045 - typer reads the annotation at run time
        typer.Option(help="The kernel's name, where the source has several."),
    ] = None,
    reference: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="FILE.py:FUNCTION", help="What the kernel of a T1 file computes, on flat arrays."),
    ] = None,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="A new or empty folder for the task (default: the kernel's name).", show_default=False),
    ] = None,
    include: Annotated[
        Optional[list[Path]],  # noqa: UP045
        typer.Option(
            "-I", "--include", file_okay=False, exists=True, help="A folder of headers of yours; may be repeated."
        ),
    ] = None,
    define: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("-D", "--define", metavar="NAME[=VALUE]", help="A macro of your build; repeatable."),
    ] = None,
) -> None:
    """Draft a task from a CUDA source or a T1 file: what it says is written down, what it does not say is marked."""
    from tunesmith.cli.actions.init import run_init

    run_init(source, entry, reference, out, include or (), define or ())
