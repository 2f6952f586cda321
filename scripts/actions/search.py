"""`simulate` and `exhaust`: judging search strategies on tables, and recording tables."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.table import Table

from tunesmith.cli.app import EXIT_DONE, EXIT_INTERRUPTED
from tunesmith.cli.view.live import view
from tunesmith.cli.view.tables import console, print_table
from tunesmith.graph.settings import SettingsError
from tunesmith.kernels.search.simulate import simulate
from tunesmith.kernels.spec.parameter import Scalar


def run_simulate(
    tables: Sequence[Path],
    strategy: str,
    budgets: str,
    seeds: int,
    workers: int,
    prior: Path | None = None,
    *,
    as_json: bool,
) -> None:
    """Runs `tunesmith simulate`."""
    try:
        wanted = tuple(int(part) for part in budgets.split(","))
    except ValueError as error:
        raise SettingsError(f"--budgets: '{budgets}' is not a list of whole numbers; write it as 25,50,100.") from error
    report = simulate(tables, strategy, wanted, seeds, workers, prior)
    if as_json:
        json.dump(report.to_json(), sys.stdout, indent=2)
        sys.stdout.write("\n")
        return
    table = Table("table", "optimum, ms", *(f"@{budget}" for budget in report.budgets), "ms an ask")
    for result in report.tables:
        cells = []
        for budget in report.budgets:
            median, low, high = result.quantiles(budget)
            cells.append(f"{median:.3f} ({low:.3f} - {high:.3f})")
        table.add_row(result.name, f"{result.optimum:.5g}", *cells, f"{result.milliseconds_per_ask:.2f}")
    table.add_row("geometric mean", "", *(f"{report.geomean(budget):.4f}" for budget in report.budgets), "")
    out = console()
    print_table(out, table)
    out.print(
        f"Best found over optimum: median (10th to 90th percentile) of {seeds} seeds, strategy {strategy}, "
        f"{workers} in flight{'' if prior is None else f', led by {prior.name}'}.",
        markup=False,
        soft_wrap=True,
    )


def run_exhaust(
    task: str, out: Path, backend: str, workload: str | None, fix: Sequence[str], seed: int, *, force: bool
) -> int:
    """Runs `tunesmith exhaust`; returns the exit code."""
    from tunesmith.graph.study.exhaust import exhaust

    fixed = dict(_assignment(text) for text in fix)
    try:
        with view() as listener:
            done = exhaust(
                task, out, backend=backend, workload=workload, fixed=fixed, seed=seed, force=force, listener=listener
            )
    except KeyboardInterrupt:
        typer.echo("\nInterrupted; nothing measured is lost. Give the same command again to go on.", err=True)
        return EXIT_INTERRUPTED
    typer.echo(f"{done.path}: {done.points} configurations, {done.failed} of them failed.")
    return EXIT_DONE


def _assignment(text: str) -> tuple[str, Scalar]:
    name, found, value = text.partition("=")
    if not found:
        raise SettingsError(f"--fix: {text!r} assigns nothing; write it as NAME=VALUE.")
    try:
        parsed = json.loads(value)
    except json.JSONDecodeError:
        parsed = value
    if not isinstance(parsed, bool | int | float | str):
        raise SettingsError(f"--fix: {value} is not a number, a flag or a text.")
    return name, parsed
