"""`tunesmith space`."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from tunesmith.cli.app import Backend, Json, Target, TaskArgument


def space(
    task: TaskArgument,
    workload: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="The space of one workload (default: what all tuned workloads allow)."),
    ] = None,
    target: Target = None,
    backend: Backend = "auto",
    json: Json = False,
) -> None:
    """Show a task's parameters, how many configurations are feasible, and how many are rejected for which reason."""
    from tunesmith.cli.actions.show import show_space

    show_space(task, workload, target, backend, as_json=json)
