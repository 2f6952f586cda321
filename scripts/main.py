"""The command line: a thin layer over the Python API. Each command's body is in its own module.

Exit codes: 0 done, 1 rejected (`check`, `bench`), 2 the user's mistake (one sentence on standard error), 3 nothing
valid found, 4 waiting for somebody (standard error says for what; the run can be resumed), 130 interrupted by Ctrl-C,
SIGTERM or SIGHUP (the run can be resumed).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Annotated, Optional

import typer

from tunesmith import __version__
from tunesmith.cli.app import (
    EXIT_DONE,
    EXIT_INTERRUPTED,
    EXIT_MISTAKE,
    EXIT_WAITING,
    Backend,
    Json,
    SettingsFile,
    Target,
    TaskArgument,
    app,
    given,
)
from tunesmith.hw.errors import TunesmithError


def _version(value: bool) -> None:
    if value:
        typer.echo(f"tunesmith {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command(short_help="List the devices that can be tuned on.")
def devices(json: Json = False) -> None:
    """List the devices that can be tuned on, and what is missing for others."""
    from tunesmith.cli.commands.show import show_devices

    show_devices(as_json=json)


@app.command()
def tasks(json: Json = False) -> None:
    """List the tasks that ship with Tunesmith."""
    from tunesmith.cli.commands.show import show_tasks

    show_tasks(as_json=json)


@app.command()
def graph(
    settings: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="A TOML file of settings, whose roles are drawn too.", exists=True, dir_okay=False),
    ] = None,
) -> None:
    """Print the state machine as a mermaid drawing."""
    from tunesmith.graph.build import draw
    from tunesmith.graph.settings import make_settings, read_settings

    typer.echo(draw(None if settings is None else make_settings(task="any", **read_settings(settings)).roles))


@app.command(short_help="Show a task's parameters, and how many points are feasible.")
def space(
    task: TaskArgument,
    workload: Annotated[Optional[str], typer.Option(help="One workload; left out, all tuned ones at once.")] = None,  # noqa: UP045
    target: Target = None,
    backend: Backend = "auto",
    json: Json = False,
) -> None:
    """Show a task's parameters, how many configurations are feasible, and how many are rejected for which reason."""
    from tunesmith.cli.commands.show import show_space

    show_space(task, workload, target, backend, as_json=json)


@app.command()
def tune(
    context: typer.Context,
    task: TaskArgument,
    backend: Backend = "auto",
    target: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="A further device that the winner must fit: by name, architecture or TOML file."),
    ] = None,
    evaluations: Annotated[int, typer.Option(help="Configurations to measure.")] = 100,
    time_limit: Annotated[Optional[str], typer.Option(help="Such as 90s, 10m, 1h30m; no limit if left out.")] = None,  # noqa: UP045
    rounds: Annotated[int, typer.Option(help="Turns of plan, template, tune, test.")] = 2,
    strategy: Annotated[str, typer.Option(help="How to search; see docs/search.md.")] = "default",
    prior: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="A run's folder or a table whose results lead the search."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides the search's choices and the contents of all buffers.")] = 0,
    run_dir: Annotated[Optional[Path], typer.Option(help="Where to keep the run; runs/TASK-NNN if left out.")] = None,  # noqa: UP045
    workers: Annotated[Optional[int], typer.Option(help="Compile processes; one a core if left out.")] = None,  # noqa: UP045
    target_device: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="The model to tune on (part of its name), where a cluster has several."),
    ] = None,
    lanes: Annotated[Optional[int], typer.Option(help="GPUs to use; all of one model if left out.")] = None,  # noqa: UP045
    model: Annotated[
        str, typer.Option(help="A model's name, batch:DIR, replay:DIR, or none; see docs/models.md.")
    ] = "none",
    base_url: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(envvar="OPENAI_BASE_URL", help="Of an OpenAI-compatible server; OpenAI's if left out."),
    ] = None,
    key_env: Annotated[str, typer.Option(help="The environment variable that holds the key.")] = "OPENAI_API_KEY",
    model_for: Annotated[Optional[list[str]], typer.Option(help="ROLE=NAME: another model for a role.")] = None,  # noqa: UP045
    model_method: Annotated[str, typer.Option(help="json_schema, function_calling, json_mode, or auto.")] = "auto",
    model_option: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(help="FIELD=JSON for the request, such as temperature=0.2."),
    ] = None,
    model_timeout: Annotated[float, typer.Option(help="Seconds for one answer.")] = 300.0,
    model_retries: Annotated[int, typer.Option(help="Retries of a call that failed for now.")] = 4,
    model_concurrency: Annotated[int, typer.Option(help="Calls at once.")] = 4,
    requests_per_minute: Annotated[Optional[float], typer.Option(help="Most calls in a minute.")] = None,  # noqa: UP045
    answer_tokens: Annotated[int, typer.Option(help="Tokens of one answer, thoughts included.")] = 16_384,
    max_calls: Annotated[Optional[int], typer.Option(help="Cap on all calls of the run.")] = None,  # noqa: UP045
    max_tokens: Annotated[Optional[int], typer.Option(help="Cap on all tokens of the run.")] = None,  # noqa: UP045
    max_cost: Annotated[Optional[float], typer.Option(help="Cap on the cost of the run, in US dollars.")] = None,  # noqa: UP045
    prices: Annotated[Optional[str], typer.Option(help="A TOML file of prices.")] = None,  # noqa: UP045
    batch_model: Annotated[str, typer.Option(help="The model's name in the requests of batch:DIR.")] = "model",
    replay_exact: Annotated[
        bool, typer.Option("--replay-exact", help="Replay only answers to the same prompts.")
    ] = False,
    branches: Annotated[int, typer.Option(help="Templates of a round that a model may have tuned side by side.")] = 2,
    repairs: Annotated[int, typer.Option(help="How often a template that does not work goes back to the model.")] = 3,
    explain: Annotated[bool, typer.Option(help="Let the model sum up each round for the next plan.")] = True,
    approve: Annotated[str, typer.Option(help="'plans' stops before each plan is carried out.")] = "none",
    settings: SettingsFile = None,
    json: Json = False,
) -> None:
    """Tune a task on the device, and report what was found."""
    from tunesmith.cli.commands.run import drive_tune
    from tunesmith.cli.view.model_options import parse_options, parse_roles

    options: dict[str, object] = {
        "backend": backend,
        "target": target,
        "evaluations": evaluations,
        "rounds": rounds,
        "strategy": strategy,
        "prior": prior,
        "seed": seed,
        "workers": workers,
        "target_device": target_device,
        "lanes": lanes,
        "model": model,
        "base_url": base_url,
        "key_env": key_env,
        "model_for": parse_roles(model_for or []),
        "model_method": model_method,
        "model_option": parse_options(model_option or []),
        "model_timeout": model_timeout,
        "model_retries": model_retries,
        "model_concurrency": model_concurrency,
        "requests_per_minute": requests_per_minute,
        "answer_tokens": answer_tokens,
        "max_calls": max_calls,
        "max_tokens": max_tokens,
        "max_cost": max_cost,
        "prices": prices,
        "batch_model": batch_model,
        "replay_exact": replay_exact,
        "branches": branches,
        "repairs": repairs,
        "explain": explain,
        "approve": approve,
        "time_limit": time_limit,
    }
    raise typer.Exit(drive_tune(task, run_dir, given(context, options), settings, as_json=json))


@app.command(short_help="Go on with a run, or let it measure more.")
def resume(
    run_dir: Annotated[Path, typer.Argument(help="The folder of a run.")],
    more: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, help="Measure so many more configurations, also if the run had ended."),
    ] = None,
    rounds: Annotated[Optional[int], typer.Option(min=1, help="In so many more rounds.")] = None,  # noqa: UP045
    time_limit: Annotated[Optional[str], typer.Option(help="Take at most so much longer, as 10m.")] = None,  # noqa: UP045
    json: Json = False,
) -> None:
    """Go on with a run; nothing measured is lost or measured again."""
    from tunesmith.cli.commands.run import drive_resume

    raise typer.Exit(drive_resume(run_dir, more or 0, rounds, time_limit, as_json=json))


@app.command(short_help="Print what a run found.")
def report(
    run_dir: Annotated[Path, typer.Argument(help="The folder of a run.")],
    csv: Annotated[Optional[Path], typer.Option(help="Write every measurement there, as CSV.")] = None,  # noqa: UP045
    json: Json = False,
) -> None:
    """Print what a run found, and say where its HTML report is."""
    from tunesmith.cli.commands.show import show_report, write_measurements

    if csv is not None:
        write_measurements(run_dir, csv)
    else:
        show_report(run_dir, as_json=json)


# It adds its commands, which stand behind these in the help.
from tunesmith.cli.commands import study  # noqa: E402, F401


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _end_as_from_the_keyboard() -> None:
    """A job's end (SIGTERM: Slurm, Kubernetes, `timeout`) and a lost terminal (SIGHUP) are interruptions like Ctrl-C:
    workers end, and the way to resume is told. What was ignored before (`nohup`) stays so."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _interrupt)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line; never returns."""
    _end_as_from_the_keyboard()
    try:
        app(args=list(arguments) if arguments is not None else None, standalone_mode=True)
    except TunesmithError as error:
        from tunesmith.graph.models.calls import Waiting

        typer.echo(f"tunesmith: {error}", err=True)
        sys.exit(EXIT_WAITING if isinstance(error, Waiting) else EXIT_MISTAKE)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output went away (`tunesmith tasks | head`); that is no failure of ours.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_DONE)


if __name__ == "__main__":
    main()
