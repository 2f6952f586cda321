"""`tunesmith export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer


def export(
    run_dir: Annotated[Path, typer.Argument(help="The folder of a run that has ended.")],
    form: Annotated[
        str,
        typer.Option("--as", help="torch, cupy, header, hf-kernels, opencl, or t4 (all results, for other tuners)."),
    ],
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="A new folder (default: RUN_DIR/exports/FORM)."),
    ] = None,
) -> None:
    """Export what a run found as a package for other programs."""
    from tunesmith.cli.actions.export import run_export

    run_export(run_dir, form, out)
