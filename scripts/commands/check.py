"""`tunesmith check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from tunesmith.cli.app import Backend, Json, ReferenceDeadline, Target, TaskArgument


def check(
    task: TaskArgument,
    source: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            exists=True,
            dir_okay=False,
            help="The candidate's source file. If the template joins several, the last one. Without it the task itself "
            "is checked, as far as that can be seen without a device.",
        ),
    ] = None,
    target: Target = None,
    template: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="The candidate's template file (default: launched as the baseline)."),
    ] = None,
    config: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Parameters as a JSON object (default: the template's defaults)."),
    ] = None,
    backend: Backend = "auto",
    compile_deadline: Annotated[float, typer.Option(min=0.1, help="Seconds to compile the source.")] = 60.0,
    reference_deadline: ReferenceDeadline = 60.0,
    run_deadline: Annotated[float, typer.Option(min=0.1, help="Seconds to run one step of the check.")] = 20.0,
    check_time: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(
            min=0.1, help="Seconds for the steps on sizes that Tunesmith makes up (default: 20 on a GPU, 60 on a CPU)."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Say whether a candidate is right, and if not why: exit code 0 accepted, 1 rejected. Without --source: whether the
    task is right, as far as that can be seen without a device."""
    from tunesmith.cli.actions.examined import examined
    from tunesmith.hw.errors import TunesmithError

    if source is None:
        # Without a candidate the reference is called on a small shape, which depends on the device.
        with examined(task, seed=0, deadline=reference_deadline, begin=False) as reference:
            from tunesmith.cli.actions.task_check import check_task

            check_task(reference, target, backend, template, config, as_json=json)
        return
    if target is not None:
        raise TunesmithError(
            "--target: a candidate is checked by running it on a device that is here; leave out --target, or leave out "
            "--source to check the task itself without a device."
        )
    with examined(task, seed=0, deadline=reference_deadline) as reference:
        from tunesmith.actors.judging.judge import Limits
        from tunesmith.cli.actions.check import run_check

        limits = Limits(compile_deadline, run_deadline, reference_deadline, check_time)
        raise typer.Exit(run_check(reference, source, template, config, backend, limits, as_json=json))
