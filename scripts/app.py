"""What several commands share: exit codes, and arguments and options that mean the same everywhere."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from pathlib import Path
from typing import Annotated, Optional

import typer

EXIT_DONE, EXIT_MISTAKE, EXIT_NOTHING, EXIT_WAITING, EXIT_INTERRUPTED = 0, 2, 3, 4, 130


def echo(text: str, *, err: bool = False) -> None:
    """Prints lines of text; a terminal gets them wrapped at words, with what stands between backticks in one piece."""
    if (sys.stderr if err else sys.stdout).isatty():
        width, lines = shutil.get_terminal_size().columns, list[str]()
        for line in text.splitlines():
            kept = re.sub(r"`[^`]*`", lambda code: code.group().replace(" ", "\N{NO-BREAK SPACE}"), line)
            inner = " " * (len(line) - len(line.lstrip()))
            made = textwrap.wrap(kept, width, subsequent_indent=inner, break_long_words=False, break_on_hyphens=False)
            lines += made or [""]
        text = "\n".join(lines).replace("\N{NO-BREAK SPACE}", " ")
    typer.echo(text, err=err)


Json = Annotated[
    bool, typer.Option("--json", help="Print JSON on standard output; everything else goes to standard error.")
]
TaskArgument = Annotated[
    str, typer.Argument(help="A library task's name (see `tunesmith tasks`), a task's folder, or a task.toml.")
]
Target = Annotated[
    Optional[str],  # noqa: UP045 - typer reads the annotation at run time
    typer.Option(help="A device that is not here: a name (h200), an architecture (sm_90) or a TOML file."),
]
Backend = Annotated[str, typer.Option(help="auto, cuda or opencl.")]
SettingsFile = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(help="A TOML file of settings; options on the command line override it.", exists=True, dir_okay=False),
]
ReferenceDeadline = Annotated[
    float, typer.Option(min=0.1, help="Seconds that the task's reference may take for one workload.")
]
