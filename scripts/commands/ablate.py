"""`tunesmith ablate`: runs the arms and prints their comparison."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tunesmith.cli.app import Json, SettingsFile, TaskArgument, echo
from tunesmith.cli.live import view
from tunesmith.cli.options import given, with_settings
from tunesmith.cli.tables import print_rows
from tunesmith.graph.settings import read_settings
from tunesmith.graph.study import ablation as study
from tunesmith.graph.study.ablation import ArmResult, Difference, Repeat


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
    arms: Annotated[str, typer.Option(help="Some of rewrite, template, template+search, tree; or ARM-without-kit.")] = (
        "rewrite,template,template+search,tree"
    ),
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each arm, each with a seed of its own.")] = 3,
    calls: Annotated[
        int | None, typer.Option(min=1, help="Number of model calls that each run may make (default: no limit).")
    ] = None,
    out: Annotated[
        Path, typer.Option(help="The folder of the runs; given again, the comparison continues there.")
    ] = Path("runs/ablation"),
    settings: SettingsFile = None,
    as_json: Json = False,
    **options: object,
) -> None:
    """Compare rewriting, templates, templates with search, and all of them in one tree, with equal budgets."""
    chosen = (read_settings(settings) if settings is not None else {}) | given(options)
    names = [arm.strip() for arm in arms.split(",") if arm.strip()]
    with redirect_stdout(sys.stderr), view() as listener:
        found = study.ablate(task, folder=out, arms=names, repeats=repeats, calls=calls, listener=listener, **chosen)
    record = {
        "task": task,
        "arms": [asdict(arm) for arm in found[0]],
        "differences": [asdict(one) for one in found[1]],
        "settings": {**chosen, "calls": calls, "repeats": repeats},
        "interval": f"Student's t, {study.CONFIDENCE:.0%}, of the logarithms of the speed-ups",
    }
    text = json.dumps(record, indent=2, default=str) + "\n"
    (out / "ablation-result.json").write_text(text, encoding="utf-8")
    if as_json:
        sys.stdout.write(text)
    else:
        print_ablation(task, *found)
        echo(f"Runs and ablation-result.json: {out}")


def _tokens(repeat: Repeat) -> str:
    """Prompt and completion tokens, in thousands."""
    counts = (repeat.prompt_tokens, repeat.completion_tokens)
    return "/".join(f"{one / 1000:.0f}k" for one in counts if one is not None) or "-"


def print_ablation(task: str, arms: Sequence[ArmResult], differences: Sequence[Difference]) -> None:
    """A row for each arm, then the differences."""
    print_rows(
        ("arm", "mean", "95 %", "spread", "by shape", "each", "evaluations", "calls", "tokens"),
        (
            (
                arm.arm,
                f"{arm.mean:.2f}x",
                "-" if arm.low is None else f"{arm.low:.2f}-{arm.high:.2f}",
                "-" if arm.spread is None else f"x{arm.spread:.2f}",
                f"{arm.by_shape:.2f}x",
                " ".join(f"{repeat.speedup:.2f}{'' if repeat.valid else '*'}" for repeat in arm.repeats),
                " ".join(str(repeat.evaluations) for repeat in arm.repeats),
                " ".join("-" if repeat.calls is None else str(repeat.calls) for repeat in arm.repeats),
                " ".join(map(_tokens, arm.repeats)),
            )
            for arm in arms
        ),
        f"{task}: speed-up over the baseline, geometric mean over repeats, 95 % t interval of the mean logarithm",
        prose=("each",),
    )
    if any(not repeat.valid for arm in arms for repeat in arm.repeats):
        echo("* no valid configuration: counted as 1.00x, as the baseline stays in use.")
    for one in differences:
        interval = "" if one.low is None else f", 95 % {one.low:.2f} to {one.high:.2f}"
        where = "With the best for each shape, " if one.by_shape else ""
        echo(f"{where}{one.better} is {one.ratio:.2f}x as fast as {one.than}{interval}.")
