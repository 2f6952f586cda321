"""Runs `tunesmith ablate` for several kernels on all GPUs of a machine, and makes one table of their results.

    python scripts/measure/ablations.py --out DIR --air DIR [--tasks tests/raw/rope,...] [--calls 6] [--evaluations 150]

Answers come through batch files: AIR/KERNEL/ARM-N/requests.jsonl holds what a run waits for, answers.jsonl beside it
what was answered. The same command goes on when answers are there, until it ends with exit code 0; then
OUT/ablations.json has every kernel's result, and over all kernels the geometric mean of the arms and who is ahead on
how many.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import queue
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path
from statistics import fmean
from typing import Any

WAITING = 4
"""Exit code of a command whose runs wait for answers."""
RAW = Path("tests/raw")
"""Of the checkout it is started in: a folder that every machine has at the same place."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--air", type=Path, required=True)
    parser.add_argument("--tasks", default=",".join(map(str, sorted(one.parent for one in RAW.glob("*/task.toml")))))
    parser.add_argument("--arms", default="rewrite,tree")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--calls", type=int, default=6)
    parser.add_argument("--evaluations", type=int, default=150)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--side-by-side", type=int, default=4, help="kernels at once on a GPU; they take turns on it")
    parser.add_argument("--workers", type=int, default=4, help="compile processes of a run")
    parser.add_argument("--commit", default=os.environ.get("COMMIT", "unknown"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    tasks = options.tasks.split(",")
    codes = _run_all(options, tasks)
    for name, (code, seconds) in codes.items():
        how = "waits for answers" if code == WAITING else "done" if code == 0 else f"failed ({code})"
        print(f"{name}: {how}, {seconds:.0f} s; {options.out / name}.log", flush=True)
    results = {}
    for task in tasks:
        file = options.out / Path(task).name / "ablation-result.json"
        if codes[Path(task).name][0] == 0 and file.is_file():
            results[Path(task).name] = json.loads(file.read_text(encoding="utf-8"))
    record = {"command": "python " + shlex.join(sys.argv), "commit": options.commit, "kernels": results}
    record["over_kernels"] = over_kernels(results)
    (options.out / "ablations.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return max((code for code, _ in codes.values()), default=0)


def over_kernels(results: dict[str, Any]) -> dict[str, Any]:
    """Geometric means over the kernels that have every arm, and for each pair of arms on how many the first is ahead by
    more than a percent, on how many behind: with one configuration for all shapes, and with the best for each."""
    arms = list(dict.fromkeys(arm["arm"] for one in results.values() for arm in one["arms"]))
    whole = {name: one for name, one in results.items() if len(one["arms"]) == len(arms)}
    return {key: _compared(whole, arms, key) for key in ("mean", "by_shape")} if whole else {}


def _compared(whole: dict[str, Any], arms: list[str], key: str) -> dict[str, Any]:
    means = {name: {arm["arm"]: arm[key] for arm in one["arms"]} for name, one in whole.items()}
    found: dict[str, Any] = {arm: math.exp(fmean(math.log(one[arm]) for one in means.values())) for arm in arms}
    for position, arm in enumerate(arms):
        for other in arms[position + 1 :]:
            ratios = {name: one[other] / one[arm] for name, one in means.items()}
            found[f"{other} over {arm}"] = {
                "mean": math.exp(fmean(map(math.log, ratios.values()))),
                "ahead": sum(ratio > 1.01 for ratio in ratios.values()),
                "behind": sum(ratio < 0.99 for ratio in ratios.values()),
                "kernels": ratios,
            }
    return found


def _run_all(options: argparse.Namespace, tasks: list[str]) -> dict[str, tuple[int, float]]:
    """Exit code and seconds of each kernel's command."""
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for task in tasks:
        waiting.put(task)
    codes: dict[str, tuple[int, float]] = {}

    def work(gpu: int) -> None:
        while True:
            try:
                task = waiting.get_nowait()
            except queue.Empty:
                return
            began = time.monotonic()
            code = _run(options, task, gpu)
            codes[Path(task).name] = code, time.monotonic() - began

    workers = [
        threading.Thread(target=work, args=(gpu,)) for _ in range(options.side_by_side) for gpu in range(options.gpus)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return codes


def _run(options: argparse.Namespace, task: str, gpu: int) -> int:
    name = Path(task).name
    settings = options.out / "settings.toml"
    settings.write_text(f"workers = {options.workers}\n", encoding="utf-8")
    command = [sys.executable, "-m", "tunesmith.cli.main", "ablate", task, "--backend", "cuda", "--json"]
    command += ["--arms", options.arms, "--repeats", str(options.repeats), "--calls", str(options.calls)]
    command += ["--evaluations", str(options.evaluations), "--planner", "rules", "--settings", str(settings)]
    command += ["--model", f"batch:{options.air / name}", "--out", str(options.out / name)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": str(gpu)}
    with (options.out / f"{name}.log").open("ab") as log:
        return subprocess.run(command, env=environment, stdout=log, stderr=log, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
