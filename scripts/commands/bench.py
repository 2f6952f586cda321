"""`tunesmith bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Optional

import typer

from tunesmith.cli.app import Backend, Json, ReferenceDeadline, TaskArgument


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
    opponents: Annotated[
        Literal["usual", "all", "none"],
        typer.Option(help="Which of the task's opponents to time: usual (not those on request), all, none."),
    ] = "usual",
    seed: Annotated[int, typer.Option(help="Seed of the buffers' contents and of the order of launches.")] = 0,
    reference_deadline: ReferenceDeadline = 60.0,
    json: Json = False,
) -> None:
    """Time one configuration against the baseline, interleaved, with intervals."""
    from tunesmith.cli.actions.examined import examined

    with examined(task, seed=seed, deadline=reference_deadline) as reference:
        from tunesmith.cli.actions.bench import run_bench

        raise typer.Exit(run_bench(reference, config, vs, template, workload, backend, seed, opponents, as_json=json))
