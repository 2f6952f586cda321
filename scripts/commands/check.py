"""`tunesmith check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

<<<<<<< HEAD
from tunesmith.actors.judging.judge import Limits, Verdict, judge, rejected
from tunesmith.actors.judging.reference import begin_check
from tunesmith.graph.setup.device_choice import choose_device
from tunesmith.hw.probe import Device, probe
from tunesmith.kernels.build.guard import refuse_text
from tunesmith.kernels.check.check import REASONS
from tunesmith.kernels.check.verify import Passed
from tunesmith.kernels.spec.candidate_file import parse_config, read_source, template_of
from tunesmith.kernels.spec.task import Task
from tunesmith.kernels.spec.taskfile import load_task
from tunesmith.kernels.spec.template import MAX_SOURCE_BYTES

EXIT_ACCEPTED, EXIT_REJECTED = 0, 1
=======
from tunesmith.cli.app import Backend, Json, TaskArgument
>>>>>>> main


def check(
    task: TaskArgument,
    source: Annotated[
        Path,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="The candidate's source file. If the template joins several, the last one.",
        ),
    ],
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
    run_deadline: Annotated[float, typer.Option(min=0.1, help="Seconds to run one step of the check.")] = 20.0,
    json: Json = False,
) -> None:
    """Say whether a candidate is right, and if not why: exit code 0 accepted, 1 rejected."""
    from tunesmith.actors.judging.judge import Limits
    from tunesmith.cli.actions.check import run_check

<<<<<<< HEAD

def _judged(
    task: Task, device: Device, source: Path, template: Path | None, config: str | None, limits: Limits
) -> Verdict:
    # Before it becomes a template, as a source no template may hold is a rejection and no mistake of the user's.
    refused = refuse_text(read_source(source), device.limits.backend)
    if refused is not None:
        return rejected(refused)
    made = template_of(task, device.backend, source, template)
    begin_check(task, device.limits, seed=0, deadline=limits.prepare).result()
    listener = _progress if sys.stderr.isatty() else _silent
    question = (made, parse_config(config, made), None)
    return judge(task, device.limits, device.index, [question], deadlines=limits, listener=listener)[0]


def _progress(text: str) -> None:
    typer.echo(f"  {text}", err=True)


def _silent(text: str) -> None:
    pass


def _print(verdict: Verdict) -> None:
    if verdict.accepted:
        checks = [step for step in verdict.steps if isinstance(step, Passed)]
        worst = max((one.largest for step in checks for one in step.accuracy.values()), default=0.0)
        typer.echo(f"accepted: {len(checks)} checks passed, largest error {worst:.2f} of the tolerance")
    else:
        typer.echo(f"rejected: {verdict.reason} ({REASONS[verdict.reason]})")
        typer.echo(f"  {verdict.detail}")
    for step in verdict.steps:
        if not isinstance(step, Passed):
            typer.echo(f"  skipped {step.step}: {step.why}")
    for note in verdict.notes:
        typer.echo(f"  {note}")
=======
    limits = Limits(compile_deadline, run_deadline)
    raise typer.Exit(run_check(task, source, template, config, backend, limits, as_json=json))
>>>>>>> main
