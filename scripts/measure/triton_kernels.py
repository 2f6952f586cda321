"""Tasks with Triton kernels: a tuning beside `triton.autotune`.

    python scripts/measure/triton_kernels.py --tasks DIR --out OUT [--evaluations 60] [--device I --of N]

DIR has a folder for each task, as `tunesmith init FILE.py:KERNEL` drafts them. Several GPUs share the tasks: one call
with --device, --of and an OUT of its own for each. A call goes on where the file OUT ends, and begins no task once
--seconds are over. The autotuner's first call has an empty cache; its further choices have compiled kernels.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tunesmith.cli.measure.runner import Record, add_shares, execute, parser_of
from tunesmith.graph import tune
from tunesmith.graph.journal.events import Evaluated, Event
from tunesmith.graph.journal.log import Journal, RunLog
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.probe import probe
from tunesmith.kernels.measure.timing import Comparison
from tunesmith.kernels.spec.task import Task
from tunesmith.kernels.spec.taskfile import load_task

SETTINGS: dict[str, Any] = {"backend": "triton", "rounds": 1, "wisdom": False}
CHOICE_SECONDS = 900.0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--tasks", type=Path, required=True, help="the folder of task folders")
    parser.add_argument("--evaluations", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=5, help="choices of the autotuner for each size")
    parser.add_argument("--seconds", type=float, default=math.inf, help="after which no task is begun")
    add_shares(parser)
    parser.add_argument("--choose", action="store_true", help="print the autotuner's choices for --tasks, one task")
    options = parser.parse_args(arguments)
    if options.choose:
        print(json.dumps(choices(load_task(str(options.tasks)), options.repeats)))
        return 0
    os.environ |= {"TUNESMITH_CACHE": "off"} | ({"CUDA_VISIBLE_DEVICES": str(options.device)} if options.of > 1 else {})
    until, found = time.monotonic() + options.seconds, sorted(options.tasks.glob("*/task.toml"))
    record = Record(options, probe().device("triton"))
    rows = record.former("rows", "row")
    for file in found[options.device :: options.of]:
        name, started = file.parent.name, time.monotonic()
        if (name in rows and "failed" not in rows[name]) or started > until:
            continue
        try:
            row = tuned(file.parent, options.evaluations, options.repeats)
        except TunesmithError as error:
            row = {"failed": str(error)}
        rows[name] = {"row": name, "took": round(time.monotonic() - started, 1), **row}
        print(json.dumps(rows[name])[:2000], flush=True)
        record.write(rows=list(rows.values()))
    return 0


def tuned(folder: Path, evaluations: int, repeats: int) -> dict[str, Any]:
    """A tuning with its wall time; on each size the fastest configuration over the baseline and over the autotuner's
    choice, from one comparison; and the autotuner's further choices."""
    task, sizes, choices = load_task(str(folder)), list[dict[str, Any]](), None
    with tempfile.TemporaryDirectory(prefix="tunesmith-measure-") as place:
        run, started = Path(place) / "run", time.monotonic()
        summary = tune(task, run_dir=run, evaluations=evaluations, **SETTINGS).summary.to_json()
        wall = round(time.monotonic() - started, 1)
        with Journal(run, create=False, reading=True) as journal:
            log, entries = RunLog(journal), list(journal.entries(Event))
            compared, examined = log.comparisons("round-1"), log.examinations().values()
    listed = [config for one in task.sources("triton").opponents for config in one.configs]
    since = {one.event.kind: round(one.at - entries[0].at, 1) for one in entries}
    for one in entries:
        if isinstance(one.event, Evaluated) and one.event.evaluation.config in listed:
            since["the author's list"] = round(one.at - entries[0].at, 1)
    for name, event in compared.items():
        timed = [(one.comparison.ratio, at) for at, one in enumerate(event.entries) if one.comparison is not None]
        if not timed:
            continue
        best = event.entries[at := min(timed)[1]]
        row: dict[str, Any] = {"workload": name, "config": best.config, "over_baseline": _figures(best.comparison)}
        for met in event.opponents:
            over = _figures(met.against[at]) if at < len(met.against) else None
            row[met.name] = {"choice": met.choice, "first_seconds": met.first_seconds, "why": met.why}
            row[met.name] |= {"ours_over_it": over, "over_baseline": _figures(met.comparison)}
        sizes.append(row)
    if listed:
        command = [sys.executable, __file__, "--choose", "--tasks", str(folder), "--repeats", str(repeats)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=CHOICE_SECONDS)
        choices = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else done.stderr[-400:]
    kept = {name: summary[name] for name in ("sentence", "ended_by", "evaluations", "notes")}
    shown = {"config", "workload", "verdict", "detail", "notes"}
    kept["examined"] = [one.model_dump(include=shown) for one in examined]
    return {"wall": wall, "seconds_to_the_last": since, "sizes": sizes, "choices": choices, **kept}


def _figures(found: Comparison | None) -> dict[str, float] | None:
    names = ("ratio", "low", "high")
    return {**{one: getattr(found, one) for one in names}, "us": found.candidate.median * 1e6} if found else None


def choices(task: Task, repeats: int) -> list[dict[str, Any]]:
    """The choices of `triton.autotune` on each size, and their seconds; the first one compiles its list."""
    import torch

    from tunesmith.kernels.backends.triton.autotune import Autotuned

    found = list[dict[str, Any]]()
    for workload in task.workloads:
        given: dict[str, Any] = {}
        for one in task.arguments:
            if one.role != "scalar":
                kind = getattr(torch, task.dtype_of(one, workload))
                empty = torch.zeros(task.shape_of(one, workload), device="cuda", dtype=kind)
                given[one.name] = empty.uniform_() if empty.is_floating_point() else empty
            else:
                given[one.name] = task.scalar_of(one, workload)
        for opponent in task.sources("triton").opponents:
            called, row = Autotuned(opponent, workload), dict[str, Any](workload=workload.name, choices=[], seconds=[])
            for _ in range(repeats):
                called.tuner.cache.clear()
                started = time.monotonic()
                called(**given)
                torch.cuda.synchronize()
                row["seconds"].append(round(time.monotonic() - started, 2))
                row["choices"].append(called.choice)
            found.append(row)
    return found


if __name__ == "__main__":
    execute(main)
