"""The frame of the command line: the application, exit codes, and the options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

EXIT_DONE, EXIT_MISTAKE, EXIT_NOTHING, EXIT_WAITING, EXIT_INTERRUPTED = 0, 2, 3, 4, 130

app = typer.Typer(
    name="tunesmith",
    help="Tunes GPU kernels: parameters exposed by a template, searched under the device's limits, checked and timed.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Json = Annotated[
    bool, typer.Option("--json", help="Print JSON on standard output; everything else goes to standard error.")
]
TaskArgument = Annotated[
    str, typer.Argument(help="A library task's name (see `tunesmith tasks`) or the path of a task.toml.")
]
Target = Annotated[
    Optional[str],  # noqa: UP045 - typer reads the annotation at run time
    typer.Option(help="Instead of the device here, one by name (h200), architecture (sm_90) or TOML file."),
]
Backend = Annotated[str, typer.Option(help="auto, cuda or opencl.")]
SettingsFile = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(help="A TOML file of settings; options given here override it.", exists=True, dir_okay=False),
]


def given(context: typer.Context, options: dict[str, object]) -> dict[str, object]:
    """Those of `options` that somebody gave, on the command line or in the environment; the value of all others is
    that of a file, or the default."""
    return {
        name: value
        for name, value in options.items()
        if (source := context.get_parameter_source(name)) is not None and source.name in ("COMMANDLINE", "ENVIRONMENT")
    }
