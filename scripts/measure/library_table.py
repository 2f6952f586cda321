"""The table of the library's tasks for docs/results, made of the files that library.py wrote.

    python scripts/measure/library_table.py FILE...

One line for each workload. An opponent has its time and, behind it, how many times faster the general configuration is,
with the 99 % interval; general and best configuration have the same over the plain kernel.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tunesmith.hw.errors import TunesmithError

LABELS = ("vendor library", "production", "eager", "compiled")
HEADINGS = ("task", "workload", "floor", "plain", *LABELS, "general", "best")


def merged(records: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """The runs of several files by task; raises `TunesmithError` for a task that two of them have, and for none."""
    runs: dict[str, Any] = {}
    for name, record in records:
        for task, run in record["runs"].items():
            if task in runs:
                raise TunesmithError(f"{name}: another file has the task {task} too; leave one of them out.")
            runs[task] = run
    if not runs:
        raise TunesmithError("There is no task in these files: give files that library.py wrote.")
    return dict(sorted(runs.items()))


def markdown(runs: Mapping[str, Any]) -> str:
    """The table, in microseconds, and below it why opponents were not timed."""
    lines = [f"| {' | '.join(HEADINGS)} |", f"|{'---|' * len(HEADINGS)}"]
    reasons: dict[str, list[str]] = {}
    for task, run in runs.items():
        for held_out, row in [(False, row) for row in run["tuned"]] + [(True, row) for row in run["held_out"]]:
            lines.append(f"| {' | '.join(_cells(task, row, held_out))} |")
            for one in row.get("opponents", ()):
                if one["why"]:
                    reasons.setdefault(f"{task}, {one['name']} ({one['label']}): {one['why']}", []).append(
                        row["workload"]
                    )
    notes = [f"- Not timed: {why} (on {', '.join(where)})" for why, where in reasons.items()]
    return "\n".join([*lines, *(["", *notes] if notes else [])]) + "\n"


def _cells(task: str, row: Mapping[str, Any], held_out: bool) -> list[str]:
    opponents = row.get("opponents", ())
    return [
        task,
        row["workload"] + (" (held out)" if held_out else ""),
        _us(row["floor_seconds"]),
        _us(row["baseline_seconds"]),
        *(_of_label(opponents, label) for label in LABELS),
        *(_timed(row.get(which)) for which in ("general", "best")),
    ]


def _of_label(opponents: Sequence[Mapping[str, Any]], label: str) -> str:
    """The opponents of a label that were timed; their names where there are several."""
    found = [one for one in opponents if one["label"] == label and one["seconds"] is not None]
    several = len(found) > 1
    return "; ".join(f"{one['name'] + ' ' if several else ''}{_timed(one)}" for one in found) or "-"


def _timed(one: Mapping[str, Any] | None) -> str:
    """A time with what its ratio says: the time of one kernel over another's, turned into how many times faster."""
    if one is None:
        return "-"
    if one["ratio"] is None:
        return _us(one["seconds"])
    return f"{_us(one['seconds'])} ({1 / one['ratio']:.2f}x, {1 / one['high']:.2f} - {1 / one['low']:.2f})"


def _us(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1e6:.0f}" if seconds >= 1e-4 else f"{seconds * 1e6:.2f}"


def main(files: Sequence[str]) -> int:
    try:
        records = [(name, json.loads(Path(name).read_text(encoding="utf-8"))) for name in files]
        sys.stdout.write(markdown(merged(records)))
    except TunesmithError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
