"""`tunesmith ablate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from tunesmith.cli.app import Json, SettingsFile, TaskArgument
from tunesmith.cli.options import given, with_settings


@with_settings(
    "evaluations",
    "rounds",
    "model",
    "base_url",
    "backend",
    "seed",
    "planner",
    evaluations="Number of configurations or kernels that each run may measure.",
    rounds="Rounds of template+search, and of tree where a model plans.",
    model="The language model, as for tune; with batch:DIR each run has a folder of its own in DIR.",
    seed="Seed of the first repeat; the next ones count up from it.",
)
def ablate(
    task: TaskArgument,
    arms: Annotated[str, typer.Option(help="What to compare: some of rewrite, template, template+search, tree.")] = (
        "rewrite,template,template+search,tree"
    ),
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each arm, each with a seed of its own.")] = 3,
    calls: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, help="Number of model calls that each run may make (default: no limit)."),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="The folder of the runs; given again, the comparison continues there.")
    ] = Path("runs/ablation"),
    settings: SettingsFile = None,
    json: Json = False,
    **options: object,
) -> None:
    """Compare rewriting, templates, templates with search, and all of them in one tree, with equal budgets."""
    from tunesmith.cli.actions.ablate import run_ablate

    run_ablate(task, arms, repeats, calls, out, given(options), settings, as_json=json)
