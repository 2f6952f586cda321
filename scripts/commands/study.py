"""The commands that study kernels, models and searches, beside those that tune: each a thin layer over its module."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from tunesmith.cli.app import Backend, Json, SettingsFile, Target, TaskArgument, app, given


@app.command(short_help="Compare rewriting, templates, and templates with search.")
def ablate(
    context: typer.Context,
    task: TaskArgument,
    arms: Annotated[str, typer.Option(help="Some of rewrite, template, template+search.")] = (
        "rewrite,template,template+search"
    ),
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each arm, each with a seed of its own.")] = 3,
    evaluations: Annotated[int, typer.Option(help="Configurations or kernels that each run may measure.")] = 100,
    calls: Annotated[Optional[int], typer.Option(min=1, help="Model calls that each run may make.")] = None,  # noqa: UP045
    rounds: Annotated[int, typer.Option(help="Rounds of template+search.")] = 2,
    model: Annotated[str, typer.Option(help="As for tune; below batch:DIR each run has its folder.")] = "none",
    base_url: Annotated[Optional[str], typer.Option(help="As for tune.")] = None,  # noqa: UP045
    backend: Backend = "auto",
    seed: Annotated[int, typer.Option(help="Of the first repeat; the next ones count up.")] = 0,
    out: Annotated[Path, typer.Option(help="Where to keep the runs; the same folder goes on with them.")] = Path(
        "runs/ablation"
    ),
    settings: SettingsFile = None,
    json: Json = False,
) -> None:
    """Compare direct rewriting, templates and templates with search on a task, with equal budgets."""
    from tunesmith.cli.commands.ablate import run_ablate

    options: dict[str, object] = {
        "evaluations": evaluations,
        "rounds": rounds,
        "model": model,
        "base_url": base_url,
        "backend": backend,
        "seed": seed,
    }
    run_ablate(task, arms, repeats, calls, out, given(context, options), settings, as_json=json)


@app.command(short_help="Say whether a kernel is right, and if not why.")
def check(
    task: TaskArgument,
    source: Annotated[
        Path, typer.Option(exists=True, dir_okay=False, help="The candidate's source; of several, the template's last.")
    ],
    template: Annotated[Optional[Path], typer.Option(help="Its template; left out, the baseline's launch.")] = None,  # noqa: UP045
    config: Annotated[Optional[str], typer.Option(help="Parameters as JSON; left out, the defaults.")] = None,  # noqa: UP045
    backend: Backend = "auto",
    compile_deadline: Annotated[float, typer.Option(min=0.1, help="Seconds to compile the source.")] = 60.0,
    run_deadline: Annotated[float, typer.Option(min=0.1, help="Seconds to run one step of the check.")] = 20.0,
    json: Json = False,
) -> None:
    """Say whether a candidate is right, and if not why: exit code 0 accepted, 1 rejected."""
    from tunesmith.actors.judging.judge import Limits
    from tunesmith.cli.commands.check import run_check

    limits = Limits(compile_deadline, run_deadline)
    raise typer.Exit(run_check(task, source, template, config, backend, limits, as_json=json))


@app.command(short_help="Time one configuration against the baseline.")
def bench(
    task: TaskArgument,
    config: Annotated[str, typer.Option(help="Parameters as JSON; left out, the defaults.")] = "{}",
    vs: Annotated[str, typer.Option(help="'baseline', or a source with the baseline's launch.")] = "baseline",
    template: Annotated[Optional[Path], typer.Option(help="A template TOML; left out, the task's first.")] = None,  # noqa: UP045
    workload: Annotated[Optional[str], typer.Option(help="One workload; left out, all tuned ones.")] = None,  # noqa: UP045
    backend: Backend = "auto",
    seed: Annotated[int, typer.Option(help="Decides the contents of all buffers and the order of launches.")] = 0,
    json: Json = False,
) -> None:
    """Time one configuration against the baseline, interleaved, with intervals."""
    from tunesmith.cli.commands.bench import run_bench

    raise typer.Exit(run_bench(task, config, vs, template, workload, backend, seed, as_json=json))


@app.command(short_help="Print what a model would be asked; asks nobody.")
def prompts(
    task: TaskArgument,
    role: Annotated[str, typer.Option(help="plan, template or all.")] = "all",
    target: Target = None,
    backend: Backend = "auto",
) -> None:
    """Print what a model would be asked in the first round; asks nobody and needs no device."""
    from tunesmith.cli.commands.prompts import show_prompts

    show_prompts(task, role, target, backend)


@app.command(short_help="Replay a search on recorded tables.")
def simulate(
    tables: Annotated[list[Path], typer.Argument(help="Kernel Tuner cache files, plain or .gz, also ones cut short.")],
    strategy: Annotated[str, typer.Option(help="A strategy's name; see docs/search.md.")] = "default",
    budgets: Annotated[str, typer.Option(help="Numbers of evaluations to report at.")] = "25,50,100,200,400",
    seeds: Annotated[int, typer.Option(help="Runs of each table.")] = 25,
    workers: Annotated[int, typer.Option(help="Evaluations in flight.")] = 1,
    prior: Annotated[Optional[Path], typer.Option(help="A table of another device or task to learn from.")] = None,  # noqa: UP045
    json: Json = False,
) -> None:
    """Replay a search on recorded tables: how near the optimum it comes, how fast."""
    from tunesmith.cli.commands.search import run_simulate

    run_simulate(tables, strategy, budgets, seeds, workers, prior, as_json=json)


@app.command(short_help="Measure a whole space, in Kernel Tuner's format.")
def exhaust(
    task: TaskArgument,
    out: Annotated[Path, typer.Option(help="The table to write; compressed when it ends in .gz.")],
    backend: Backend = "auto",
    workload: Annotated[Optional[str], typer.Option(help="Which workload; the first tuned one if left out.")] = None,  # noqa: UP045
    fix: Annotated[Optional[list[str]], typer.Option(help="NAME=VALUE: keep a parameter at one value.")] = None,  # noqa: UP045
    seed: Annotated[int, typer.Option(help="Decides the order of points and the contents of buffers.")] = 0,
) -> None:
    """Measure a whole space on the device, as a table in Kernel Tuner's format."""
    from tunesmith.cli.commands.search import run_exhaust

    raise typer.Exit(run_exhaust(task, out, backend, workload, fix or [], seed))
