"""`tunesmith export`: a run's winners in another program's form."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tunesmith.graph.results.exports import export_run


def export(
    run_dir: Annotated[Path, typer.Argument(help="The folder of a run that has ended.")],
    form: Annotated[
        str,
        typer.Option(
            "--as", help="torch, cupy, header, hf-kernels, triton-cache, or t4 (all results, for other tuners)."
        ),
    ],
    kernel: Annotated[
        str, typer.Option(help="triton-cache: the kernel with @triton.autotune, as FILE.py:NAME.", metavar="FILE:NAME")
    ] = "",
    out: Annotated[Path | None, typer.Option(help="A new folder (default: RUN_DIR/exports/FORM).")] = None,
) -> None:
    """Export the results of a run as a package for other programs."""
    folder = export_run(run_dir, form, out, kernel)
    typer.echo(f"{folder}")
    for path in sorted(one for one in folder.rglob("*") if one.is_file()):
        typer.echo(f"  {path.relative_to(folder)}")
