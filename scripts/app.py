"""Exit codes, printed lines, and the arguments and options that mean the same in several commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import echo as echo

EXIT_DONE, EXIT_MISTAKE, EXIT_NOTHING, EXIT_WAITING, EXIT_UNMEASURED, EXIT_INTERRUPTED = 0, 2, 3, 4, 5, 130
EXIT_UNEXAMINED = 6
"""No winner could be examined; best/ holds the plain kernel."""

Json = Annotated[
    bool, typer.Option("--json", help="Print JSON on standard output; everything else goes to standard error.")
]


TaskArgument = Annotated[
    str, typer.Argument(help="A task's folder, a task.toml, or a library task's name (see `tunesmith tasks`).")
]
Target = Annotated[
    str | None, typer.Option(help="A device that is not here: a name (h200), an architecture (sm_90) or a TOML file.")
]
Backend = Annotated[str, typer.Option(help="auto, cuda, triton or opencl.")]
Force = Annotated[bool, typer.Option("--force", help="Replace a file that this command did not write.")]
SettingsFile = Annotated[
    Path | None,
    typer.Option(help="A TOML file of settings; options on the command line override it.", exists=True, dir_okay=False),
]
ReferenceDeadline = Annotated[
    float, typer.Option(min=0.1, help="Seconds that the task's reference may take for one workload.")
]
