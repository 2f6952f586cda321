"""Tunes every task of the library, or tasks in other folders, and writes all figures as JSON.

    python scripts/measure/library.py --out DIR [--evaluations N] [--tasks a,FOLDER/b] [--time-limit 100s]
    python scripts/measure/library.py --table FILE...       # the table for docs/results of files written before

Several GPUs share the tasks: one call with CUDA_VISIBLE_DEVICES, --tasks and --out of its own for each.
In the table an opponent has its time and, behind it, how many times faster the general configuration is, with the 99 %
interval; general and best configuration have the same over the plain kernel.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tunesmith.cli.measure.runner import Record, execute, parser_of
from tunesmith.graph import tune
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.probe import probe
from tunesmith.kernels.spec.taskfile import library_tasks

LABELS = ("vendor library", "production", "eager", "compiled")
SETTINGS = ("backend", "evaluations", "rounds", "seed", "opponents", "time_limit")
HEADINGS = ("task", "workload", "floor", "plain", *LABELS, "general", "best")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--table", nargs="+", metavar="FILE", help="print the table of these files, and end")
    parser.add_argument("--evaluations", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tasks", default=",".join(library_tasks()))
    parser.add_argument("--time-limit", help="for each task, as of `tunesmith tune` (default: none)")
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--opponents", choices=("usual", "all", "none"), default="all")
    options = parser.parse_args(arguments)
    if options.table:
        files = [json.loads(Path(name).read_text(encoding="utf-8")) for name in options.table]
        runs: dict[str, Any] = {task: run for file in files for task, run in file["runs"].items()}
        sys.stdout.write(markdown(dict(sorted(runs.items()))))
        return 0
    record = Record(options, probe().device(options.backend))
    runs, failed = dict[str, Any](), dict[str, str]()
    for task in options.tasks.split(","):
        name = Path(task).name
        started = time.monotonic()
        try:
            result = tune(
                task,
                run_dir=Path("/tmp") / f"measure-{name}-{os.getpid()}",
                listener=lambda progress: print(progress, flush=True) if progress.message else None,
                **{setting: getattr(options, setting) for setting in SETTINGS},
            )
        except TunesmithError as error:
            # The other tasks are still measured.
            failed[name] = str(error)
            print(f"{name}: {error}", flush=True)
        else:
            wall = round(time.monotonic() - started, 1)
            runs[name] = result.summary.to_json() | {"wall_seconds": wall, "valid": result.valid}
            print(f"{name}: {result.summary.sentence} {wall} s\n{markdown({name: runs[name]})}", flush=True)
        record.write(runs=runs, failed=failed)
    return 1 if failed else 0


def markdown(runs: Mapping[str, Any]) -> str:
    """The table, in microseconds, and below it why opponents were not timed."""
    lines = [f"| {' | '.join(HEADINGS)} |", f"|{'---|' * len(HEADINGS)}"]
    reasons: dict[str, list[str]] = {}
    for task, run in runs.items():
        for row in (*run["tuned"], *run["held_out"]):
            name = row["workload"] + (" (held out)" if row in run["held_out"] else "")
            by_label: dict[str, list[Any]] = {label: [] for label in LABELS}
            for one in row.get("opponents", ()):
                if one["seconds"] is not None and one["label"] in by_label:
                    by_label[one["label"]].append(one)
                if one["why"]:
                    why = f"{task}, {one['name']} ({one['label']}): {one['why']}"
                    reasons.setdefault(why, []).append(row["workload"])
            opponents = map(_cell, by_label.values())
            floor, plain = _us(row["floor_seconds"]), _us(row["baseline_seconds"])
            cells = (task, name, floor, plain, *opponents, _timed(row.get("general")), _timed(row.get("best")))
            lines.append(f"| {' | '.join(cells)} |")
    notes = [f"- Not timed: {why} (on {', '.join(where)})" for why, where in reasons.items()]
    return "\n".join([*lines, *(["", *notes] if notes else [])]) + "\n"


def _cell(opponents: Sequence[Mapping[str, Any]]) -> str:
    """The times of the opponents of a label; their names where there are several."""
    if len(opponents) == 1:
        return _timed(opponents[0])
    return "; ".join(f"{one['name']} {_timed(one)}" for one in opponents) or "-"


def _timed(one: Mapping[str, Any] | None) -> str:
    """A time, and the speed-up that its ratio means."""
    if one is None or one["ratio"] is None:
        return "-" if one is None else _us(one["seconds"])
    return f"{_us(one['seconds'])} ({1 / one['ratio']:.2f}x, {1 / one['high']:.2f} - {1 / one['low']:.2f})"


def _us(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1e6:.0f}" if seconds >= 1e-4 else f"{seconds * 1e6:.2f}"


if __name__ == "__main__":
    execute(main)
