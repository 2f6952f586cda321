"""`tunesmith ablate`, `exhaust` and `simulate`: runs about runs and searches."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tunesmith.cli.app import EXIT_INTERRUPTED, Backend, Force, Json, SettingsFile, TaskArgument, echo
from tunesmith.cli.live import view
from tunesmith.cli.options import given, with_settings
from tunesmith.cli.tables import print_json, print_rows
from tunesmith.graph.settings import read_settings
from tunesmith.graph.study import ablation as study
from tunesmith.graph.study.ablation import ArmResult, Difference, Repeat
from tunesmith.graph.study.exhaust import exhaust as measure_space
from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.search import simulate as replay
from tunesmith.kernels.spec.template import Scalar


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
    tasks: Annotated[list[str], typer.Argument(metavar="TASK", help="Folders, task.toml files or library tasks.")],
    arms: Annotated[str, typer.Option(help="Some of rewrite, template, template+search, tree; or ARM-without-kit.")] = (
        "rewrite,template,template+search,tree"
    ),
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each arm, each with a seed of its own.")] = 3,
    calls: Annotated[
        int | None, typer.Option(min=1, help="Number of model calls that each run may make (default: no limit).")
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            help="The folder of the runs, with several tasks one for each; given again, the comparison goes on there."
        ),
    ] = Path("runs/ablation"),
    settings: SettingsFile = None,
    as_json: Json = False,
    **options: object,
) -> None:
    """Compare rewriting, templates, templates with search, and all of them in one tree, with equal budgets."""
    chosen = (read_settings(settings) if settings is not None else {}) | given(options)
    names = [arm.strip() for arm in arms.split(",") if arm.strip()]
    with redirect_stdout(sys.stderr), view() as listener:
        found = study.ablate(tasks, folder=out, arms=names, repeats=repeats, calls=calls, listener=listener, **chosen)
    over = study.over_tasks([arms for arms, _ in found.values()]) if len(found) > 1 else []
    record = {
        "tasks": {
            task: {"arms": [asdict(arm) for arm in arms], "differences": [asdict(one) for one in differences]}
            for task, (arms, differences) in found.items()
        },
        "over_tasks": [asdict(one) for one in over],
        "settings": {**chosen, "calls": calls, "repeats": repeats},
        "interval": f"Student's t, {study.CONFIDENCE:.0%}, of the logarithms of the speed-ups",
    }
    text = json.dumps(record, indent=2, default=str) + "\n"
    (out / "ablation-result.json").write_text(text, encoding="utf-8")
    if as_json:
        sys.stdout.write(text)
        return
    for task, result in found.items():
        print_ablation(task, *result)
    for one in over:
        print_difference(one, f"Over {len(found)} tasks, ")
    echo(f"Runs and ablation-result.json: {out}")


def _tokens(repeat: Repeat) -> str:
    """Prompt and completion tokens, in thousands."""
    counts = (repeat.prompt_tokens, repeat.completion_tokens)
    return "/".join(f"{one / 1000:.0f}k" for one in counts if one is not None) or "-"


def print_ablation(task: str, arms: Sequence[ArmResult], differences: Sequence[Difference]) -> None:
    """A row for each arm, then the differences."""
    headings, rows = ("arm", "mean", "95 %", "spread", "by shape", "each", "evaluations", "calls", "tokens"), []
    for arm in arms:
        interval = "-" if arm.low is None else f"{arm.low:.2f}-{arm.high:.2f}"
        spread = "-" if arm.spread is None else f"x{arm.spread:.2f}"
        each = " ".join(f"{one.speedup:.2f}{'' if one.valid else '*'}" for one in arm.repeats)
        evaluations = " ".join(str(one.evaluations) for one in arm.repeats)
        calls = " ".join("-" if one.calls is None else str(one.calls) for one in arm.repeats)
        by_repeat = each, evaluations, calls, " ".join(map(_tokens, arm.repeats))
        rows.append((arm.arm, f"{arm.mean:.2f}x", interval, spread, f"{arm.by_shape:.2f}x", *by_repeat))
    title = "speed-up over the baseline, geometric mean over repeats, 95 % t interval of the mean logarithm"
    print_rows(headings, rows, f"{task}: {title}", prose=("each",))
    if any(not repeat.valid for arm in arms for repeat in arm.repeats):
        echo("* no valid configuration: counted as 1.00x, as the baseline stays in use.")
    for one in differences:
        print_difference(one)


def print_difference(one: Difference, over: str = "") -> None:
    """A sentence."""
    interval = "" if one.low is None else f", 95 % {one.low:.2f} to {one.high:.2f}"
    where = "with the best for each shape, " if one.by_shape else ""
    said = f"{over}{where}{one.better} is {one.ratio:.2f}x as fast as {one.than}{interval}."
    echo(said[0].upper() + said[1:])


def exhaust(
    task: TaskArgument,
    out: Annotated[Path, typer.Option(help="The table to write; compressed when it ends in .gz.")],
    backend: Backend = "auto",
    workload: Annotated[
        str | None, typer.Option(help="The workload to measure (default: the first tuned one).")
    ] = None,
    fix: Annotated[
        list[str] | None, typer.Option(help="Keep a parameter at one value, as NAME=VALUE; may be repeated.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the order of points and of the buffers' contents.")] = 0,
    force: Force = False,
) -> None:
    """Measure a whole space on the device, as a table in Kernel Tuner's format."""
    fixed = dict(_assignment(text) for text in fix or [])
    try:
        with view() as listener:
            path, points, failed = measure_space(
                task, out, backend=backend, workload=workload, fixed=fixed, seed=seed, force=force, listener=listener
            )
    except KeyboardInterrupt:
        typer.echo("\nInterrupted; nothing measured is lost. Give the same command again to go on.", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    typer.echo(f"{path}: {points} configurations, {failed} of them failed.")


def _assignment(text: str) -> tuple[str, Scalar]:
    name, found, value = text.partition("=")
    if not found:
        raise TunesmithError(f"--fix: {text!r} assigns nothing; write it as NAME=VALUE.")
    try:
        parsed = json.loads(value)
    except json.JSONDecodeError:
        parsed = value
    if not isinstance(parsed, bool | int | float | str):
        raise TunesmithError(f"--fix: {value} is not a number, a flag or a text.")
    return name, parsed


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
        cells = (f"{_ratio(one['median'])} ({_ratio(one['p10'])} - {_ratio(one['p90'])})" for one in entry["results"])
        rows.append((entry["name"], f"{entry['optimum']:.5g}", *cells, f"{entry['strategy_ms_per_ask']:.2f}"))
    rows.append(("geometric mean", "", *(_ratio(mean, 4) for mean in report["geomean"].values()), ""))
    print_rows(("table", "optimum, ms", *(f"@{budget}" for budget in report["geomean"]), "ms an ask"), rows)
    searches = f"{seeds} seeds, strategy {strategy}, {workers} in flight{f', led by {prior.name}' if prior else ''}"
    echo(f"Best found over optimum: median (10th to 90th percentile) of {searches}.")


def _ratio(ratio: float | None, digits: int = 3) -> str:
    return "inf" if ratio is None else f"{ratio:.{digits}f}"
