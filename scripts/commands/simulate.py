"""`tunesmith simulate`: search strategies on recorded tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tunesmith.cli.app import Json, echo
from tunesmith.cli.tables import print_json, print_rows
from tunesmith.hw.errors import TunesmithError
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
        raise TunesmithError(f"--budgets: '{budgets}' is not a list of whole numbers, such as 25,50,100.") from error
    report = replay.simulate(tables, strategy, wanted, seeds, workers, prior)
    if as_json:
        print_json(report)
        return
    rows = []
    for entry in report["tables"]:
        cells = (f"{_shown(one['median'])} ({_shown(one['p10'])} - {_shown(one['p90'])})" for one in entry["results"])
        rows.append((entry["name"], f"{entry['optimum']:.5g}", *cells, f"{entry['strategy_ms_per_ask']:.2f}"))
    rows.append(("geometric mean", "", *(_shown(mean, 4) for mean in report["geomean"].values()), ""))
    print_rows(("table", "optimum, ms", *(f"@{budget}" for budget in report["geomean"]), "ms an ask"), rows)
    led = "" if prior is None else f", led by {prior.name}"
    echo(
        f"Best found over optimum: median (10th to 90th percentile) of {seeds} seeds, strategy {strategy}, "
        f"{workers} in flight{led}."
    )


def _shown(ratio: float | None, digits: int = 3) -> str:
    return "inf" if ratio is None else f"{ratio:.{digits}f}"
