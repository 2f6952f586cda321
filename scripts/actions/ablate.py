"""`ablate`: runs the arms and prints how they compare."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from tunesmith.cli.view.live import view
from tunesmith.cli.view.tables import console, print_table
from tunesmith.graph.settings import read_settings
from tunesmith.graph.study.ablate import Ablation, Repeat, ablate


def run_ablate(
    task: str,
    arms: str,
    repeats: int,
    calls: int | None,
    out: Path,
    options: dict[str, Any],
    file: Path | None,
    *,
    as_json: bool,
) -> None:
    """Runs `tunesmith ablate` and writes OUT/ablation-result.json."""
    settings = (read_settings(file) if file is not None else {}) | options
    names = [arm.strip() for arm in arms.split(",") if arm.strip()]
    with redirect_stdout(sys.stderr), view() as listener:
        found = ablate(task, folder=out, arms=names, repeats=repeats, calls=calls, listener=listener, **settings)
    text = json.dumps(found.to_json(), indent=2, default=str) + "\n"
    (out / "ablation-result.json").write_text(text, encoding="utf-8")
    if as_json:
        sys.stdout.write(text)
    else:
        print_ablation(found, out)


def _tokens(repeat: Repeat) -> str:
    """In and out, in thousands."""
    if repeat.prompt_tokens is None or repeat.completion_tokens is None:
        return "-"
    return f"{repeat.prompt_tokens / 1000:.0f}k/{repeat.completion_tokens / 1000:.0f}k"


def print_ablation(found: Ablation, out: Path) -> None:
    """A row for each arm, then the differences."""
    to = console()
    title = (
        f"{found.task}: speed-up over the baseline, geometric mean over repeats, 95 % t interval of the mean logarithm"
    )
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("arm", "valid", "mean", "95 %", "spread", "by shape", "each", "evaluations", "calls", "tokens"):
        table.add_column(heading, no_wrap=heading != "each", justify="left" if heading in ("arm", "each") else "right")
    for arm in found.arms:
        interval = "-" if arm.low is None else f"{arm.low:.2f}-{arm.high:.2f}"
        each = " ".join(f"{repeat.speedup:.2f}" + ("" if repeat.valid else "*") for repeat in arm.repeats)
        calls = [repeat.calls for repeat in arm.repeats]
        table.add_row(
            arm.arm,
            f"{arm.valid} of {len(arm.repeats)}",
            f"{arm.mean:.2f}x",
            interval,
            "-" if arm.spread is None else f"x{arm.spread:.2f}",
            f"{arm.by_shape:.2f}x",
            each,
            " ".join(str(repeat.evaluations) for repeat in arm.repeats),
            " ".join("-" if count is None else str(count) for count in calls),
            " ".join(map(_tokens, arm.repeats)),
        )
    print_table(to, table)
    if any(not repeat.valid for arm in found.arms for repeat in arm.repeats):
        to.print("* nothing valid came out: counted as 1.00x, as the baseline stays in use.", markup=False)
    for one in found.differences:
        shown = "" if one.low is None else f", 95 % {one.low:.2f} to {one.high:.2f}"
        where = "With the best for each shape, " if one.by_shape else ""
        to.print(f"{where}{one.better} is {one.ratio:.2f}x as fast as {one.than}{shown}.", markup=False)
    to.print(f"Runs and ablation-result.json: {out}", markup=False, soft_wrap=True)
