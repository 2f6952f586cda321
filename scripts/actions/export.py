"""`export`: a run's winners in another program's form."""

from __future__ import annotations

from pathlib import Path

import typer

from tunesmith.graph.results.exports.writing import export_run


def run_export(run_dir: Path, form: str, out: Path | None) -> None:
    """Writes the export and prints where it is, and which files it has."""
    folder = export_run(run_dir, form, out)
    typer.echo(f"{folder}")
    for path in sorted(one for one in folder.rglob("*") if one.is_file()):
        typer.echo(f"  {path.relative_to(folder)}")
