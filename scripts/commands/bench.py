"""`tunesmith bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

<<<<<<< HEAD
from tunesmith.actors.judging.judge import PREPARE_SECONDS, Examiner, compile_all, lock_of, prepared, reason_of
from tunesmith.actors.judging.reference import DEADLINE as DEADLINE_OF_REFERENCE
from tunesmith.actors.judging.reference import begin_check
from tunesmith.actors.process.isolated import Isolated, preload
from tunesmith.actors.process.workers import CompileWorker
from tunesmith.cli.view.tables import console, print_table
from tunesmith.graph.setup.device_choice import choose_device
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.probe import Device, probe
from tunesmith.hw.roofline import Roofline, Timed
from tunesmith.kernels.build.candidate import Candidate
from tunesmith.kernels.check.verify import infeasible_on
from tunesmith.kernels.measure.bench import Duel
from tunesmith.kernels.measure.modes import Modes
from tunesmith.kernels.measure.timing import Comparison
from tunesmith.kernels.outcome import describe
from tunesmith.kernels.spec.candidate_file import parse_config, template_of
from tunesmith.kernels.spec.task import Task, Workload
from tunesmith.kernels.spec.taskfile import load_task

ROUNDS, SECONDS = 40, 1.0
DEADLINE = 120.0


def run_bench(
    task_name: str,
    config: str,
    vs: str,
    template: Path | None,
    workload: str | None,
    backend: str,
    seed: int,
    *,
    reference_deadline: float = DEADLINE_OF_REFERENCE,
    as_json: bool,
) -> int:
    """Times `config` against the baseline, or another source, on the tuned workloads or one; returns the exit code."""
    task = load_task(task_name)
    device = choose_device(task, backend, probe())
    tuned = task.workloads_for(device.limits.kind, held_out=False)
    chosen = tuned if workload is None else (task.workload(workload),)
    if not chosen:
        kind = device.limits.kind
        raise TunesmithError(f"The task {task.name} has no workload for a {kind}; name one with --workload.")
    begin_check(task, device.limits, seed=seed, deadline=reference_deadline).result()
    found = _measure(task, device, config, vs, template, chosen, seed)
    if as_json:
        json.dump(found, sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        _print(found)
    return 1 if any("failure" in row for row in found["workloads"]) else 0
=======
from tunesmith.cli.app import Backend, Json, TaskArgument


def bench(
    task: TaskArgument,
    config: Annotated[str, typer.Option(help="Parameters as a JSON object ({}: the template's defaults).")] = "{}",
    vs: Annotated[
        str, typer.Option(help="What to compare with: baseline, or a source file that is launched like it.")
    ] = "baseline",
    template: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="A template file (default: the task's first template)."),
    ] = None,
    workload: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="One workload (default: all tuned workloads)."),
    ] = None,
    backend: Backend = "auto",
    seed: Annotated[int, typer.Option(help="Seed of the buffers' contents and of the order of launches.")] = 0,
    json: Json = False,
) -> None:
    """Time one configuration against the baseline, interleaved, with intervals."""
    from tunesmith.cli.actions.bench import run_bench
>>>>>>> main

    raise typer.Exit(run_bench(task, config, vs, template, workload, backend, seed, as_json=json))
