"""Measures on a GPU what leaves Tunesmith: the PyTorch operators, the dispatch rules, and the energy of configurations.

    python scripts/measure/exports.py --out DIR [--parts tune,export,dispatch,energy] [--run TASK=FOLDER ...]

tune: tunes the kernels side by side, shortly, with further shapes for a dispatch rule; folders of `--run` are taken
instead. export: the operators of the production kernels under opcheck, torch.compile and in a captured graph, what they
say of wrong arguments, and their time from call to call beside PyTorch's own expression and hand-written launches of
the same machine code. dispatch: what the rule costs on shapes that neither tuning nor fitting saw. energy: the fastest
and the thriftiest configuration of one kernel on one shape.

DIR/exports.json is written after each step. What fails leaves its error there, and the others go on.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from tunesmith.hw.probe import probe

PARTS = ("tune", "export", "dispatch", "energy")
PRODUCTION = ("silu_and_mul", "fused_add_rmsnorm", "merge_attn_states")
PACKAGES = ("torch", "triton", "cupy-cuda13x", "cupy-cuda12x", "cuda-bindings", "nvidia-cuda-nvrtc", "ray", "numpy")
HERE = Path(__file__).resolve().parent / "taken_home"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    record = _about(options)
    parts: dict[str, Callable[[], Any]] = {
        "tune": lambda: _tune(options),
        "export": lambda: _export(options),
        "dispatch": lambda: _dispatch(options),
        "energy": lambda: _energy(options),
    }
    failed = 0
    for part in options.parts:
        started = time.monotonic()
        try:
            found = parts[part]()
        except Exception as error:  # noqa: BLE001 - the other parts go on
            found = {"error": f"{type(error).__name__}: {error}"}
        record["parts"][part] = {"rows": found, "seconds": round(time.monotonic() - started, 1)}
        failed += bool(errors_in(found))
        (options.out / "exports.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        print(f"{part}: {record['parts'][part]['seconds']} s", *errors_in(found), sep="\n  ", flush=True)
    return 1 if failed else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--parts", default=",".join(PARTS), help="some of tune, export, dispatch, energy")
    parser.add_argument("--run", action="append", default=[], metavar="TASK=FOLDER", help="a finished run of a task")
    parser.add_argument("--tasks", default=",".join((*PRODUCTION, "softmax")), help="what is tuned and dispatched")
    parser.add_argument("--backend", default="cuda", choices=("cuda", "opencl"))
    parser.add_argument("--evaluations", type=int, default=30)
    parser.add_argument("--time-limit", type=float, default=600.0, help="seconds of each tuning")
    parser.add_argument("--finalists", type=int, default=3)
    parser.add_argument("--dispatch-shapes", type=int, default=16, help="drawn by the tuning; half of them are fitted")
    parser.add_argument("--shapes", type=int, default=30, help="unseen shapes of each task")
    parser.add_argument("--energy-task", default="fused_add_rmsnorm")
    parser.add_argument("--energy-window", type=float, default=0.25)
    parser.add_argument("--no-own-tests", action="store_true", help="leave out the exports' own tests")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=420.0, help="seconds for each step's processes")
    parser.add_argument("--commit", default=os.environ.get("COMMIT", "unknown"))
    options = parser.parse_args(arguments)
    options.parts = options.parts.split(",")
    if unknown := sorted(set(options.parts) - set(PARTS)):
        parser.error(f"--parts: there is no {unknown[0]}; choose some of {', '.join(PARTS)}")
    options.out = options.out.absolute()
    options.tasks = options.tasks.split(",")
    options.runs = {task: options.out / "runs" / task for task in options.tasks}
    options.runs |= {task: Path(folder).absolute() for task, _, folder in (one.partition("=") for one in options.run)}
    return options


def _about(options: argparse.Namespace) -> dict[str, Any]:
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    found = probe().of(options.backend)
    return {
        "command": "python " + shlex.join(sys.argv),
        "commit": options.commit,
        "device": found[0].name if found else None,
        "driver": found[0].driver if found else None,
        "python": sys.version.split()[0],
        "versions": versions,
        "begun": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "parts": {},
    }


def errors_in(found: Any) -> list[str]:
    """The errors in the rows of a part, however deep."""
    if isinstance(found, dict):
        # An energy's relative error is a number of that name.
        error = found.get("error")
        mine = [error] if isinstance(error, str) and error else []
        return mine + [one for value in found.values() for one in errors_in(value)]
    if isinstance(found, list):
        return [one for value in found for one in errors_in(value)]
    return []


def _tune(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All tasks at once: while one has the device, the references of the others run on the processor."""
    given = {one.partition("=")[0] for one in options.run}
    commands = {
        task: [
            *(sys.executable, "-m", "tunesmith.cli.main", "tune", task, "--backend", options.backend),
            *("--evaluations", str(options.evaluations), "--rounds", "1", "--finalists", str(options.finalists)),
            *("--dispatch-shapes", str(options.dispatch_shapes), "--seed", str(options.seed)),
            *("--run-dir", str(folder), "--workers", "4", "--json", "--time-limit", str(options.time_limit)),
        ]
        for task, folder in options.runs.items()
        if task not in given
    }
    rows = []
    for task, ended in run_all(commands, options.limit).items():
        row: dict[str, Any] = {"task": task, "seconds": ended["seconds"], "run": str(options.runs[task])}
        if ended["error"]:
            rows.append(row | {"error": ended["error"]})
            continue
        told = json.loads(ended["output"])
        rows.append(row | {key: told[key] for key in ("sentence", "evaluations", "ratio")})
    return rows


def _export(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Checks side by side; times one after another, on a device that nobody else uses."""
    tasks = [task for task in PRODUCTION if task in options.runs]
    files = {task: options.out / f"export-{task}.json" for task in tasks}
    worker = [sys.executable, str(HERE / "export_calls.py")]
    more = ["--no-own-test"] if options.no_own_tests else []
    checks = run_all({t: [*worker, "checks", str(options.runs[t]), str(files[t]), *more] for t in tasks}, options.limit)
    rows = []
    for task in tasks:
        (times,) = run_all(
            {task: [*worker, "calls", str(options.runs[task]), str(files[task])]}, options.limit
        ).values()
        rows.append({"task": task, **_read(files[task]), **_failures(checks=checks[task], calls=times)})
    return rows


def _dispatch(options: argparse.Namespace) -> list[dict[str, Any]]:
    files = {task: options.out / f"dispatch-{task}.json" for task in options.runs}
    worker = [sys.executable, str(HERE / "dispatch_regret.py")]
    ended = run_all(
        {
            task: [*worker, str(folder), str(files[task]), str(options.shapes), str(options.seed + 1)]
            for task, folder in options.runs.items()
        },
        options.limit,
    )
    return [{"task": task, **_read(files[task]), **_failures(worker=ended[task])} for task in options.runs]


def _energy(options: argparse.Namespace) -> dict[str, Any]:
    file = options.out / "energy.json"
    command = [sys.executable, str(HERE / "thrift.py"), options.energy_task, str(file), str(options.out / "energy")]
    command += [str(options.evaluations), str(options.energy_window), options.backend]
    (ended,) = run_all({"energy": command}, options.limit).values()
    return {"task": options.energy_task, **_read(file), **_failures(worker=ended)}


def _read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return found


def _failures(**ended: dict[str, Any]) -> dict[str, str]:
    found = "; ".join(f"{step}: {one['error']}" for step, one in ended.items() if one["error"])
    return {"error": found} if found else {}


def run_all(commands: dict[str, list[str]], limit: float) -> dict[str, dict[str, Any]]:
    """Runs commands side by side: their standard output, seconds, and the end of what they said where they failed."""
    started = time.monotonic()
    running = {
        name: subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for name, command in commands.items()
    }
    ended = {}
    for name, process in running.items():
        error = ""
        try:
            output, said = process.communicate(timeout=max(1.0, limit - (time.monotonic() - started)))
            if process.returncode != 0:
                error = f"exit code {process.returncode}: {(said or output)[-1500:].strip()}"
        except subprocess.TimeoutExpired:
            process.terminate()
            output, said = process.communicate()
            error = f"ended after {limit:.0f} s: {(said or output)[-500:].strip()}"
        ended[name] = {"output": output, "seconds": round(time.monotonic() - started, 1), "error": error}
    return ended


if __name__ == "__main__":
    sys.exit(main())
