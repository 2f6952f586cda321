"""Judges the candidates of tests/candidates and counts the wrong ones accepted and the right ones rejected.

    python scripts/measure/verdicts.py --out FILE [--backend opencl|cuda] [--set edited|index|all] [--only TEXT]
        [--workers N]

FILE is written after each candidate, and a second call goes on where the first stopped: verdicts are kept, unless
`--again` is given and they are of another commit. Each candidate is judged as `tunesmith check` judges it, but on
workloads of at most 64 MB. A candidate whose output reaches the standard output of the process that judges it counts
as accepted wrongly, whatever the verdict.

Workers judge side by side on one device, each in a process of its own, on one thread: verdicts do not depend on times
that others could spoil, but `seconds` then says little.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Any

from tunesmith.actors.judging.judge import CHECK_SECONDS, process_count
from tunesmith.actors.workers import Deadlines
from tunesmith.cli.measure.runner import Record, execute, module_of_tests, parser_of
from tunesmith.hw.device_lock import FOLDER_VARIABLE
from tunesmith.hw.probe import DeviceInfo, probe
from tunesmith.kernels.backends import open_compiler


@contextmanager
def captured_output(printed: list[str]) -> Iterator[None]:
    """Appends to `printed` the standard output of this process and its children in the block."""
    sys.stdout.flush()
    kept = os.dup(1)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 1)
        try:
            yield
        finally:
            os.dup2(kept, 1)
            os.close(kept)
        file.seek(0)
        printed.append(file.read(200).decode(errors="replace"))


def judged(fixture: Any, device: DeviceInfo, deadlines: Deadlines, commit: str, processes: int) -> dict[str, Any]:
    """One candidate's line."""
    judging = module_of_tests("candidates", "judging")
    line = {"candidate": fixture.file, "task": fixture.task, "class": fixture.kind, "wrong": bool(fixture.reasons)}
    started, printed = time.monotonic(), list[str]()
    with captured_output(printed):
        try:
            verdict = judging.verdict_of(fixture, device.limits, device.index, deadlines, processes=processes)
            checks = [step for step in verdict.steps if hasattr(step, "accuracy")]
            line |= {"verdict": verdict.verdict, "reason": verdict.reason, "detail": verdict.detail[:400]}
            line |= {"notes": verdict.notes, "checks": len(checks), "seed": verdict.seed}
            line |= {"as_expected": fixture.agrees(verdict)}
        except Exception as error:  # noqa: BLE001 - one candidate must not end the count of all
            line |= {"verdict": "error", "reason": "", "detail": f"{type(error).__name__}: {error}"[:400]}
    line |= {"commit": commit, "seconds": round(time.monotonic() - started, 2), "printed": printed[0]}
    return line | {"as_expected": line.get("as_expected", False) and not printed[0]}


def judge_all(
    chosen: Sequence[Any],
    answer: Callable[[Any, DeviceInfo, Deadlines, str, int], dict[str, Any]],
    device: DeviceInfo,
    options: argparse.Namespace,
    rows: str,
    summary: Callable[[list[dict[str, Any]]], dict[str, Any]],
    again: bool = False,
) -> int:
    """Writes the lines that `answer`, as `judged`, gives for candidates without one, each as soon as a worker has it.
    rows, summary: of the record; again: lines of another commit do not count."""
    record = Record(options, device)
    lines, compiler = record.former(rows, "candidate"), open_compiler(device.limits, device.index).version
    old = {name for name, line in lines.items() if again and line.get("commit") != options.commit}
    waiting = [one for one in chosen if one.file not in lines.keys() - old]
    # Workers share the device and slow each other down.
    check = CHECK_SECONDS[device.limits.kind] * options.workers
    deadlines = Deadlines(run=options.seconds * options.workers, check=check)
    processes = max(1, process_count(device.limits) // options.workers)
    # Read by the libraries of the workers when they start.
    os.environ.update(dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"))
    spawn = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory(prefix="verdicts-", ignore_cleanup_errors=True) as folder,
        ProcessPoolExecutor(options.workers, spawn, _begin_worker, (folder,)) as workers,
    ):
        asked = [workers.submit(answer, one, device, deadlines, options.commit, processes) for one in waiting]
        for number, done in enumerate(as_completed(asked), 1):
            line = done.result()
            mark = "" if line.get("as_expected", True) else f"   <-- not as expected {line.get('after', '')}"
            said = f"{line['candidate']}: {line['verdict']} {line['reason']} {line.get('seconds', '')} s{mark}"
            print(f"{number}/{len(waiting)} {said}", file=sys.stderr, flush=True)
            lines[line["candidate"]] = line
            every = [lines[name] for name in sorted(lines)]
            record.write(**{"compiler": compiler, "summary": summary(every), rows: every})
    print(json.dumps(summary(list(lines.values())), indent=1))
    return 0


def _begin_worker(folder: str) -> None:
    """A folder for a worker's temporary files, and for the locks by which processes take turns on a device."""
    tempfile.tempdir = os.environ["TMPDIR"] = os.environ[FOLDER_VARIABLE] = tempfile.mkdtemp(dir=folder)


def summary(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """The counts, in all and by class, and median seconds."""
    right = [line for line in lines if not line["wrong"]]
    wrong, missed = Counter[str](), Counter[str]()
    for line in lines:
        if line["wrong"]:
            wrong[line["class"]] += 1
            missed[line["class"]] += line["verdict"] == "accepted" or bool(line["printed"])
    return {
        "wrong": wrong.total(),
        "wrong_accepted": missed.total(),
        "right": len(right),
        "right_rejected": sum(line["verdict"] != "accepted" for line in right),
        "errors": sum(line["verdict"] == "error" for line in lines),
        "wrong_accepted_by_class": {kind or "index": f"{missed[kind]} of {wrong[kind]}" for kind in sorted(wrong)},
        "median_seconds": _median(lines),
        "median_seconds_right": _median(right),
        "median_seconds_accepted": _median([line for line in lines if line["verdict"] == "accepted"]),
    }


def _median(lines: list[dict[str, Any]]) -> float | None:
    return round(statistics.median(line["seconds"] for line in lines), 1) if lines else None


def parser_of_verdicts(text: str | None) -> argparse.ArgumentParser:
    parser = parser_of(text)
    parser.add_argument("--backend", choices=("opencl", "cuda"), default="opencl")
    parser.add_argument("--only", default="", help="candidates whose name has this text in it")
    parser.add_argument("--seconds", type=float, default=20.0, help="deadline of a step")
    parser.add_argument("--workers", type=int, default=1, help="candidates judged at a time")
    return parser


def main() -> int:
    """Judges, and writes the file."""
    parser = parser_of_verdicts(__doc__)
    parser.add_argument("--set", choices=("edited", "index", "all"), default="edited")
    parser.add_argument("--again", action="store_true", help="judge again what the file has from another commit")
    options = parser.parse_args()
    judging, device = module_of_tests("candidates", "judging"), probe().device(options.backend)
    found = judging.edited() if options.set != "index" else []
    found += judging.fixtures() if options.set != "edited" else []
    chosen = [one for one in found if one.backend == options.backend and options.only in one.file]
    # Right candidates first: they go through all checks, and are most informative where time is short.
    chosen.sort(key=lambda one: bool(one.reasons))
    return judge_all(chosen, judged, device, options, "candidates", summary, options.again)


if __name__ == "__main__":
    execute(main)
