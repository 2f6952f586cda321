"""What the fastest and the thriftiest configuration of a kernel cost each other, in time and in energy.

    python scripts/measure/taken_home/thrift.py TASK FILE FOLDER [EVALUATIONS [WINDOW [BACKEND]]]

Tunes the task's largest tuned workload alone twice in FOLDER, once by time and once by energy, compares the two winners
with the baseline once more with a window of a second, and writes FILE as JSON.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tunesmith.actors.pool.pool import Request
from tunesmith.graph import tune
from tunesmith.graph.journal.log import RunLog
from tunesmith.graph.journal.records import FrontPoint, Winner
from tunesmith.graph.journal.store import Journal
from tunesmith.graph.roles.baseline import baseline_request
from tunesmith.graph.run import RunResult, opened, resumed
from tunesmith.hw.probe import probe
from tunesmith.kernels.measure.timing import Comparison
from tunesmith.kernels.outcome import Energy, Measured, Outcome, describe
from tunesmith.kernels.spec.files.taskfile import load_task
from tunesmith.kernels.spec.parameter import assignments
from tunesmith.kernels.spec.task import Task, Workload

LAST_WINDOW = 1.0
ROUNDS, SECONDS = 40, 0.5


def main() -> int:
    name, file, folder = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    evaluations, window, backend = (*sys.argv[4:7], *("30", "0.25", "cuda")[len(sys.argv[4:7]) :])
    found = measure(load_task(name), folder, int(evaluations), float(window), backend)
    file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


def measure(task: Task, folder: Path, evaluations: int, window: float, backend: str) -> dict[str, Any]:
    devices = probe().of("cuda" if backend == "cuda" else "opencl")
    if not devices:
        raise SystemExit(f"There is no {backend} device.")
    alone = only_largest(task, devices[0].limits.kind)
    shared: dict[str, Any] = {"backend": backend, "evaluations": evaluations, "rounds": 1, "finalists": 3}
    by_energy = _tuned(alone, folder / "energy", objective="energy", energy_window=window, **shared)
    by_time = _tuned(alone, folder / "time", **shared)
    winners = {"fastest": by_time.summary.general, "thriftiest": by_energy.summary.general}
    chosen = {label: one for label, one in winners.items() if one is not None}
    return {
        "workload": alone.workloads[0].name,
        "front": [front_row(point) for point in by_energy.summary.front],
        "searched": searched(by_energy.folder),
        "sentence": by_energy.summary.sentence,
        **_last_comparison(by_energy.folder, chosen),
    }


def only_largest(task: Task, kind: str) -> Task:
    """The task with its largest tuned workload alone."""
    largest = max(task.workloads_for("cpu" if kind == "cpu" else "gpu", held_out=False), key=task.bytes_of)
    return task.model_copy(update={"workloads": (largest,)})


def _tuned(task: Task, folder: Path, **settings: Any) -> RunResult:
    shutil.rmtree(folder, ignore_errors=True)
    return tune(task, run_dir=folder, wisdom=False, **settings)


def front_row(point: FrontPoint) -> dict[str, Any]:
    return {
        "config": assignments(point.config),
        "time": round(point.ratio, 4),
        "energy": round(point.energy_ratio, 4),
        "of_the_front": point.best,
    }


def searched(folder: Path) -> list[dict[str, Any]]:
    """Time and energy of every configuration that the search measured, with the clock in its window."""
    rows = []
    with Journal(folder, create=False, reading=True) as journal:
        for one in RunLog(journal).evaluations():
            for outcome in one.outcomes.values():
                if isinstance(outcome, Measured) and outcome.energy is not None:
                    row = {"config": assignments(one.config), "us": outcome.seconds * 1e6}
                    rows.append(row | energy_row(outcome.energy))
    return rows


def energy_row(energy: Energy) -> dict[str, Any]:
    return {
        "mj": energy.joules * 1e3,
        "window_s": round(energy.seconds, 4),
        "launches": energy.launches,
        "error": round(energy.error, 4),
        "sm_mhz": None if energy.sm_clock_hz is None else energy.sm_clock_hz / 1e6,
    }


def _last_comparison(folder: Path, winners: dict[str, Winner]) -> dict[str, Any]:
    with resumed(folder) as run:
        longer = run.settings.model_copy(update={"energy_window": LAST_WINDOW})
        wide = type(run)(run.folder, run.journal, run.task, run.device, longer)
        with opened(wide) as context:
            (workload,) = context.tuned
            requests = [
                Request(at, context.template(one.template), one.config, (workload.name,))
                for at, one in enumerate(winners.values(), 1)
            ]
            found = context.pool.compare(
                baseline_request(context, [workload]),
                requests,
                workload.name,
                seed=run.settings.seed + 1,
                rounds=ROUNDS,
                budget_seconds=SECONDS,
            )
            return compared(workload, list(winners), list(winners.values()), found.results, found.energies)


def compared(
    workload: Workload,
    labels: Sequence[str],
    winners: Sequence[Winner],
    results: Sequence[Comparison | Outcome],
    energies: Sequence[Energy | None],
) -> dict[str, Any]:
    """Rows of the last comparison: the baseline's, then each winner's with time and energy over the baseline's."""
    base = energies[0] if energies else None
    rows: list[dict[str, Any]] = []
    for at, (label, winner, result) in enumerate(zip(labels, winners, results, strict=True), 1):
        row: dict[str, Any] = {"which": label, "config": assignments(winner.config)}
        energy = energies[at] if at < len(energies) else None
        if not isinstance(result, Comparison):
            rows.append(row | {"error": describe(result)})
            continue
        row |= {"us": result.ratio * result.baseline.median * 1e6, "time": [result.ratio, result.low, result.high]}
        if energy is not None and base is not None:
            row |= {"energy": energy.joules / base.joules, "watts": energy.joules / (row["us"] * 1e-6)}
            row |= energy_row(energy)
        if not rows:
            first = {"which": "baseline", "us": result.baseline.median * 1e6}
            rows.append(first | (energy_row(base) if base is not None else {}))
        rows.append(row)
    return {"compared_on": workload.name, "compared": rows}


if __name__ == "__main__":
    sys.exit(main())
