"""`tunesmith simulate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from tunesmith.cli.app import Json


def simulate(
    tables: Annotated[
        list[Path], typer.Argument(help="Kernel Tuner cache files, plain or .gz, including files that are cut short.")
    ],
    strategy: Annotated[str, typer.Option(help="The search strategy; see docs/strategies.md.")] = "default",
    budgets: Annotated[str, typer.Option(help="Numbers of evaluations to report at.")] = "25,50,100,200,400",
    seeds: Annotated[int, typer.Option(help="Number of searches on each table.")] = 25,
    workers: Annotated[int, typer.Option(help="Number of evaluations in flight.")] = 1,
    prior: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="A table of another device or task, whose best points are tried first."),
    ] = None,
    json: Json = False,
) -> None:
    """Replay a search on recorded tables: how near the optimum it comes, and how fast."""
    from tunesmith.cli.actions.search import run_simulate

    run_simulate(tables, strategy, budgets, seeds, workers, prior, as_json=json)
