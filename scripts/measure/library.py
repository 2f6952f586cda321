"""Measures the library, or the tasks in other folders: runs the tests that need a GPU, tunes every task, and writes all
figures as JSON, with the seconds of each phase.

    python scripts/measure/library.py --out DIR [--evaluations N] [--tasks a,b] [--time-limit 100s] [--no-tests]
    python scripts/measure/library.py --out DIR --tasks FOLDER/a,FOLDER/b --evaluations 60 --rounds 1 --no-tests

Figures in the documentation come from files this script wrote (docs/results/). Several GPUs share the tasks: one call
with CUDA_VISIBLE_DEVICES, --tasks and --out of its own for each, and library_table.py makes one table of all files.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from tunesmith.graph import tune
from tunesmith.graph.progress import Listener, Progress
from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.spec.files.taskfile import library_tasks


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--evaluations", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tasks", default=",".join(library_tasks()))
    parser.add_argument("--time-limit", help="for each task, as of `tunesmith tune` (default: none)")
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--stop-after", type=float, default=math.inf, help="seconds after which no task is begun")
    parser.add_argument("--opponents", choices=("usual", "all", "none"), default="all")
    parser.add_argument("--commit", default=os.environ.get("COMMIT", "unknown"))
    parser.add_argument("--no-tests", action="store_true")
    parser.add_argument("--concurrent", action="store_true", help="two tunings at once, against the same alone")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    tests = None if options.no_tests else _run_tests()
    runs: dict[str, Any] = {}
    failed: dict[str, str] = {}
    record: dict[str, Any] = {"command": "python " + shlex.join(sys.argv), "commit": options.commit, "tests": tests}
    record |= {"runs": runs, "failed": failed}
    begun = time.monotonic()
    for task in options.tasks.split(","):
        name = Path(task).name
        if time.monotonic() - begun > options.stop_after:
            failed[name] = "not begun"
            continue
        started, phases = time.monotonic(), defaultdict[str, float](float)
        try:
            result = tune(
                task,
                backend=options.backend,
                evaluations=options.evaluations,
                rounds=options.rounds,
                seed=options.seed,
                opponents=options.opponents,
                time_limit=options.time_limit,
                run_dir=Path("/tmp") / f"measure-{name}-{os.getpid()}",
                listener=_listener(name, phases),
            )
        except TunesmithError as error:
            # The other tasks are worth having.
            failed[name] = str(error)
            print(f"{name}: {error}", flush=True)
            _write(options.out, record)
            continue
        wall = round(time.monotonic() - started, 1)
        spent = {phase: round(seconds, 1) for phase, seconds in phases.items()}
        runs[name] = result.summary.to_json() | {"wall_seconds": wall, "phases": spent, "valid": result.valid}
        _table(runs[name])
        _write(options.out, record)
    if options.concurrent:
        record["concurrent"] = _concurrent(list(runs)[:2], runs)
        _write(options.out, record)
    return 1 if failed or (tests is not None and tests["exit_code"] != 0) else 0


def _write(out: Path, record: dict[str, Any]) -> None:
    (out / "library.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _concurrent(names: list[str], alone: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Tunes two tasks at once on the one GPU, each with a cluster of its own; the baseline's time on each workload over
    its time when the task was tuned alone. Far from 1 would mean that they disturbed each other's measurements."""
    command = [sys.executable, "-m", "tunesmith.cli.main", "tune", "--backend", "cuda", "--json", "--rounds", "1"]
    folders = {name: Path("/tmp") / f"concurrent-{name}-{os.getpid()}" for name in names}
    processes = {
        name: subprocess.Popen(
            [*command, "--evaluations", "40", "--run-dir", str(folder), name],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        for name, folder in folders.items()
    }
    ratios = {}
    for name, process in processes.items():
        output, _ = process.communicate()
        solo = {row["workload"]: row["baseline_seconds"] for row in alone[name]["tuned"]}
        rows = json.loads(output)["tuned"]
        found = {row["workload"]: row["baseline_seconds"] / solo[row["workload"]] for row in rows}
        ratios[name] = found
        print(f"concurrent {name}:", {key: round(value, 3) for key, value in found.items()}, flush=True)
    return ratios


def _run_tests() -> dict[str, object]:
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", str(root / "tests")]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, cwd=root)
    print(done.stdout[-3000:], flush=True)
    last = done.stdout.strip().splitlines()[-1]
    return {"command": shlex.join(command), "exit_code": done.returncode, "last_line": last}


def _listener(name: str, phases: dict[str, float]) -> Listener:
    """Prints what is being done, and adds the seconds between two calls to the phase of the former."""
    last: list[tuple[str, float]] = [("start", time.monotonic())]

    def listen(progress: Progress) -> None:
        (phase, since), now = last[0], time.monotonic()
        phases[phase] += now - since
        examining = progress.phase == "test" and progress.message.startswith("examining")
        last[0] = ("examine" if examining else progress.phase, now)
        if progress.message and progress.phase in ("plan", "tune"):
            print(f"{name}: {progress.message}", flush=True)

    return listen


def _table(summary: dict[str, Any]) -> None:
    failures = summary["failures"] or "none"
    print(
        f"{summary['task']}: {summary['sentence']} {summary['evaluations']} evaluations, failures: {failures}, "
        f"{summary['wall_seconds']} s"
    )
    for kind in ("tuned", "held_out"):
        for row in summary[kind]:
            general, best = row["general"] or {}, row["best"] or {}
            figures = (row["floor_seconds"], row["baseline_seconds"], general.get("seconds"), best.get("seconds"))
            texts = [f"{value * 1e6:9.2f}" if value else "        -" for value in figures]
            labelled = zip(("floor", "baseline", "general", "best"), texts, strict=True)
            print(f"  {kind:8} {row['workload']:24}", *(f"{label} {text}" for label, text in labelled))
            for one in row["opponents"]:
                told = f"{one['seconds'] * 1e6:9.2f}" if one["seconds"] else one["why"]
                print(f"           {one['name']} ({one['label']}): {told}")
    for item in summary["disqualified"]:
        print("  out:", item["workload"], item["why"], item["config"])
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
