"""`tunesmith simulate`: search strategies on recorded tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tunesmith.cli.app import Json, echo
from tunesmith.cli.view.tables import print_json, print_rows
from tunesmith.graph.settings import SettingsError
from tunesmith.kernels.search import simulate as replay


def simulate(
    tables: Annotated[
        list[Path], typer.Argument(help="Kernel Tuner cache files, plain or .gz, including files that are cut short.")
    ],
    strategy: Annotated[str, typer.Option(help="The search strategy; see docs/strategies.md.")] = "default",
    budgets: Annotated[str, typer.Option(help="Numbers of evaluations to report at.")] = "25,50,100,200,400",
    seeds: Annotated[int, typer.Option(help="Number of searches on each table.")] = 25,
    workers: Annotated[int, typer.Option(help="Number of evaluations in flight.")] = 1,
    prior: Annotated[
        Path | None, typer.Option(help="A table of another device or task, whose best points are tried first.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Replay a search on recorded tables: how near the optimum it comes, and how fast."""
    try:
        wanted = tuple(int(part) for part in budgets.split(","))
    except ValueError as error:
        raise SettingsError(f"--budgets: '{budgets}' is not a list of whole numbers; write it as 25,50,100.") from error
    report = replay.simulate(tables, strategy, wanted, seeds, workers, prior)
    if as_json:
        print_json(report.to_json())
        return
    rows = []
    for result in report.tables:
        quantiles = (result.quantiles(budget) for budget in report.budgets)
        cells = (f"{median:.3f} ({low:.3f} - {high:.3f})" for median, low, high in quantiles)
        rows.append((result.name, f"{result.optimum:.5g}", *cells, f"{result.milliseconds_per_ask:.2f}"))
    rows.append(("geometric mean", "", *(f"{report.geomean(budget):.4f}" for budget in report.budgets), ""))
    print_rows(("table", "optimum, ms", *(f"@{budget}" for budget in report.budgets), "ms an ask"), rows)
    led = "" if prior is None else f", led by {prior.name}"
    echo(
        f"Best found over optimum: median (10th to 90th percentile) of {seeds} seeds, strategy {strategy}, "
        f"{workers} in flight{led}."
    )
