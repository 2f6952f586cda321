"""`tunesmith tasks`: the library."""

from __future__ import annotations

from typing import Any

from tunesmith.cli.app import Json
from tunesmith.cli.tables import print_json, print_rows
from tunesmith.kernels.spec.taskfile import library_tasks, read_task


def tasks(as_json: Json = False) -> None:
    """List the tasks that ship with Tunesmith."""
    rows: list[dict[str, Any]] = []
    for name, path in library_tasks().items():
        task = read_task(path)
        tuned, held_out = ([one.name for one in task.workloads if one.held_out == out] for out in (False, True))
        backends = list(task.backends)
        rows.append(
            {"name": name, "summary": task.summary, "backends": backends, "workloads": tuned, "held_out": held_out}
        )
    if as_json:
        print_json(rows)
        return
    print_rows(
        ("task", "computes", "backends", "workloads", "held out"),
        (
            (
                row["name"],
                row["summary"],
                ", ".join(row["backends"]),
                str(len(row["workloads"])),
                str(len(row["held_out"])),
            )
            for row in rows
        ),
        left=3,
        prose=("computes",),
    )
