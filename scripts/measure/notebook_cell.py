"""Runs the notebook cell of docs/bring-your-kernel.md that is meant for an NVIDIA GPU, and writes what it found.

    python scripts/measure/notebook_cell.py --out FILE

The cell is the page's own text, run as a notebook runs it: a CUDA source, a function of PyTorch and two examples become
a tuned kernel, timed beside the function as it is and beside torch.compile's, on the same data with cold caches. FILE
has the cell, the table, and what went wrong. Needs a GPU, PyTorch, and what torch.compile needs (Triton and a compiler
for C).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
import time
import traceback
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[2] / "docs" / "bring-your-kernel.md"
CELL = re.compile(r"```python\n# A notebook cell on an NVIDIA GPU\n(.*?)```", re.DOTALL)
MOST_LINES = 12
PACKAGES = ("torch", "triton", "cupy-cuda13x", "cupy-cuda12x", "cuda-bindings", "nvidia-cuda-nvrtc", "ray", "numpy")


def cell_of(page: Path = PAGE) -> str:
    """The cell's text. Raises `ValueError` where the page has none, or one of more lines than are promised."""
    found = CELL.findall(page.read_text(encoding="utf-8"))
    if len(found) != 1:
        raise ValueError(f"{page}: one cell for an NVIDIA GPU was expected, there are {len(found)}.")
    lines = sum(bool(line.strip()) for line in found[0].splitlines())
    if lines > MOST_LINES:
        raise ValueError(f"{page}: the cell has {lines} lines, more than {MOST_LINES}.")
    return str(found[0])


def run_cell(cell: str) -> dict[str, Any]:
    """What the cell found, or how it failed. Its names are those of the main program, as in a notebook."""
    # Functions of the cell travel to other processes by value, which their module must allow.
    namespace: dict[str, Any] = {"__name__": "__main__"}
    started = time.monotonic()
    try:
        exec(compile(cell, "<notebook cell>", "exec"), namespace)
        found = table(namespace["tuned"])
    except Exception as error:  # noqa: BLE001 - whatever the cell raises is what was measured
        found = {"error": {"type": type(error).__name__, "detail": traceback.format_exc()[-4000:]}}
    return {**found, "wall_seconds": round(time.monotonic() - started, 1)}


def table(tuned: Any) -> dict[str, Any]:
    """A tuned kernel as a row for each example: seconds, how many times faster than the kernel as it came and than each
    opponent, with the 99 % interval, or why that was not timed."""
    summary, rows = tuned.result.summary, []
    for one in summary.tuned:
        best = one.general or one.best
        row: dict[str, Any] = {"workload": one.workload, "sizes": one.sizes, "baseline_seconds": one.baseline_seconds}
        if best is not None:
            row |= {"seconds": best.seconds, "speedup": 1 / best.ratio, "low": 1 / best.high, "high": 1 / best.low}
        row["opponents"] = [opponent(entry) for entry in one.opponents]
        rows.append(row)
    return {
        "sentence": summary.sentence,
        "valid": tuned.result.valid,
        "device": summary.device.to_json(),
        "rows": rows,
        "source": tuned.source,
    }


def opponent(entry: Any) -> dict[str, Any]:
    """An opponent on one example: its time, and how many times faster the tuned kernel is."""
    found: dict[str, Any] = {"name": entry.name, "label": entry.label, "seconds": entry.seconds}
    if None not in (entry.ratio, entry.low, entry.high):
        found |= {"speedup": 1 / entry.ratio, "low": 1 / entry.high, "high": 1 / entry.low}
    return {**found, "why": entry.why} if entry.why else found


def versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def complete(found: dict[str, Any]) -> bool:
    """Whether every example has its time, beside both opponents."""
    rows = found.get("rows", [])
    timed = all("seconds" in row and all("speedup" in one for one in row["opponents"]) for row in rows)
    return len(rows) == 2 and timed and all(len(row["opponents"]) == 2 for row in rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--commit", default=os.environ.get("COMMIT", "unknown"), help="what is measured")
    options = parser.parse_args(arguments)
    cell = cell_of()
    record: dict[str, Any] = {
        "command": "python " + shlex.join(sys.argv),
        "commit": options.commit,
        "versions": versions(),
        "cell": cell,
    }
    record |= run_cell(cell)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({key: value for key, value in record.items() if key not in ("cell", "source")}, indent=1))
    return 0 if complete(record) else 1


if __name__ == "__main__":
    sys.exit(main())
