"""Whether the files of a run's task are still those that it was begun with.

A run keeps its task whole in the journal, and goes on with that. A user who edits a source and resumes means the new
one, and gets a sentence.
"""

from __future__ import annotations

from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.limits import Backend
from tunesmith.kernels.rewrite.template import with_rules
from tunesmith.kernels.spec.files.taskfile import find_task, read_task
from tunesmith.kernels.spec.task import Task


def changed_files(begun: Task, name: str, backend: Backend) -> str:
    """What of the task `name` differs from what a run was `begun` with, as a clause; empty for nothing, and where its
    files are gone."""
    path = find_task(name)
    if path is None:
        return ""
    try:
        present = read_task(path)
    except TunesmithError as error:
        return str(error).rstrip(".")
    old = begun.model_dump(mode="json")
    # Where a run works by rules, its task also has what the rules made.
    if all(one.model_dump(mode="json") != old for one in (present, with_rules(present, backend)[0])):
        new = present.model_dump(mode="json")
        keys = ", ".join(key for key in new if new[key] != old.get(key))
        return f"{path}: {keys or 'a template'}"
    return ""
