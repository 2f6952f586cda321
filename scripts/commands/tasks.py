"""`tunesmith tasks`: the library."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Column, Table

from tunesmith.cli.app import Json
from tunesmith.cli.view.tables import console, print_json, print_table
from tunesmith.kernels.spec.taskfile import library_tasks, read_task


def tasks(as_json: Json = False) -> None:
    """List the tasks that ship with Tunesmith."""
    loaded = {name: read_task(path) for name, path in library_tasks().items()}
    if as_json:
        print_json(
            [
                {
                    "name": name,
                    "summary": task.summary,
                    "backends": list(task.backends),
                    "workloads": [w.name for w in task.workloads if not w.held_out],
                    "held_out": [w.name for w in task.workloads if w.held_out],
                }
                for name, task in loaded.items()
            ]
        )
        return
    summary = Column("computes", min_width=40)
    table = Table("task", summary, "backends", "workloads", "held out")
    for name, task in loaded.items():
        held_out = sum(workload.held_out for workload in task.workloads)
        table.add_row(
            name, escape(task.summary), ", ".join(task.backends), str(len(task.workloads) - held_out), str(held_out)
        )
    print_table(console(), table)
