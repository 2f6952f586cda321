"""Where and how a run was begun: what a reader needs to begin it again."""

from __future__ import annotations

import platform
import shlex
import subprocess
import sys
from pathlib import Path

from tunesmith.graph.journal.records import Origin
from tunesmith.kernels.spec.files.taskfile import LIBRARY, find_task


def origin_of(task: str | None) -> Origin:
    """The origin of a run of `task` that begins now, in this process. task: its name or path; None for one without a
    file."""
    program, *arguments = sys.argv or [""]
    file = None if task is None else find_task(task)
    return Origin(
        command=shlex.join([Path(program).name, *arguments]),
        host=platform.node(),
        python=platform.python_version(),
        commit="" if task is None else _commit(LIBRARY if file is None else file.resolve().parent),
        in_memory=task is None,
    )


def _commit(folder: Path) -> str:
    """The commit of the git repository that has the files of `folder`, with "-dirty" where files differ from it; empty
    where there is no such repository, or no git to ask."""
    # An environment may lie inside the repository of another project, which ignores it.
    if not _git(folder, "ls-files"):
        return ""
    return _git(folder, "describe", "--always", "--dirty", "--abbrev=12", "--match=")


def _git(folder: Path, *arguments: str) -> str:
    try:
        answer = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""
