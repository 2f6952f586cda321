"""`tunesmith init`: a draft of a task, written into a folder of its own."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

import typer

from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.rewrite.draft import draft
from tunesmith.kernels.spec.candidate_file import read_source


def run_init(source: Path, entry: str | None, out: Path | None) -> None:
    """Writes the draft and says what is left to do. Raises `TunesmithError`; nothing is overwritten."""
    made = draft(read_source(source, "SOURCE"), entry, str(source))
    folder = Path(made.name) if out is None else out
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise TunesmithError(f"--out: {folder} is there already; name a new or an empty folder.")
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in made.files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise TunesmithError(f"--out: {folder} cannot be written: {error.strerror}.") from error
    typer.echo(f"{folder}: a draft of the task {made.name}, with {made.left} line(s) to fill in:")
    for name, text in made.files.items():
        for number, line in enumerate(text.splitlines(), 1):
            if name != "baseline.cu" and " # FILL: " in line:
                typer.echo(f"  {folder / name}, line {number}: {line.split(' # FILL: ')[1]}")
    for note in made.notes:
        typer.echo(note)
    typer.echo(f"Then: tunesmith tune {quote(str(folder))}")
