"""Judges the candidates of tests/candidates and counts the wrong ones accepted and the right ones rejected.

    python scripts/measure/verdicts.py --out FILE [--backend opencl|cuda] [--set edited|index|all] [--only TEXT]
        [--part K/N]

FILE is written after each candidate, and a second call goes on where the first stopped: what has a verdict keeps it,
unless `--again` is given and it is of another commit than this one. Each candidate is judged as
`tunesmith check` judges it, but on workloads of at most 64 MB. What a candidate prints must not reach this process's
standard output: it counts as accepted wrongly where something did, whatever the verdict.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# Found without an installation, also by the processes that are started from here.
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "candidates")]
os.environ["PYTHONPATH"] = os.pathsep.join([*sys.path[:2], os.environ.get("PYTHONPATH", "")])

from tunesmith.actors.judging.judge import Limits, Verdict  # noqa: E402
from tunesmith.hw.probe import Device, probe  # noqa: E402
from tunesmith.kernels.backends import open_compiler  # noqa: E402


def without_output(work: Callable[[], Verdict | Exception]) -> tuple[Verdict | Exception, str]:
    """The result of `work`, and what reached this process's standard output meanwhile, also from its children."""
    sys.stdout.flush()
    kept = os.dup(1)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 1)
        try:
            result = work()
        finally:
            os.dup2(kept, 1)
            os.close(kept)
        file.seek(0)
        return result, file.read(2000).decode(errors="replace")


def judged(fixture: Any, device: Device, deadlines: Limits, commit: str) -> dict[str, Any]:
    """One candidate's line."""
    judging = import_module("judging")

    def work() -> Verdict | Exception:
        try:
            found: Verdict = judging.verdict_of(fixture, device.limits, device.index, deadlines)
            return found
        except Exception as error:  # noqa: BLE001 - one candidate must not end the count of all
            return error

    started = time.monotonic()
    verdict, printed = without_output(work)
    line: dict[str, Any] = {
        "candidate": fixture.file,
        "task": fixture.task,
        "class": fixture.kind,
        "wrong": bool(fixture.reasons),
        "commit": commit,
        "seconds": round(time.monotonic() - started, 2),
        "printed": printed[:200],
    }
    if isinstance(verdict, Exception):
        return {**line, "verdict": "error", "reason": "", "detail": f"{type(verdict).__name__}: {verdict}"[:400]}
    checks = [step for step in verdict.steps if hasattr(step, "accuracy")]
    return {
        **line,
        "verdict": verdict.verdict,
        "reason": verdict.reason,
        "detail": verdict.detail[:400],
        "checks": len(checks),
        "as_expected": fixture.agrees(verdict) and not printed,
    }


def summary(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """The counts, in all and by class."""
    wrong = [line for line in lines if line["wrong"]]
    right = [line for line in lines if not line["wrong"]]
    accepted = [line for line in wrong if line["verdict"] == "accepted" or line["printed"]]
    classes = sorted({line["class"] for line in wrong})
    judged_only = [line for line in lines if line["verdict"] == "accepted"]
    return {
        "wrong": len(wrong),
        "wrong_accepted": len(accepted),
        "right": len(right),
        "right_rejected": sum(line["verdict"] != "accepted" for line in right),
        "errors": sum(line["verdict"] == "error" for line in lines),
        "wrong_accepted_by_class": {
            kind or "index": f"{sum(line['class'] == kind for line in accepted)} of "
            f"{sum(line['class'] == kind for line in wrong)}"
            for kind in classes
        },
        "median_seconds": round(statistics.median([line["seconds"] for line in lines]), 1) if lines else None,
        "median_seconds_right": round(statistics.median([line["seconds"] for line in right]), 1) if right else None,
        "median_seconds_accepted": round(statistics.median([line["seconds"] for line in judged_only]), 1)
        if judged_only
        else None,
    }


def main() -> None:
    """Judges, and writes the file."""
    judging = import_module("judging")

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--backend", choices=("opencl", "cuda"), default="opencl")
    parser.add_argument("--set", choices=("edited", "index", "all"), default="edited")
    parser.add_argument("--only", default="", help="candidates whose name has this text in it")
    parser.add_argument("--seconds", type=float, default=20.0, help="deadline of a step")
    parser.add_argument(
        "--again", action="store_true", help="judge those again that are in the file from another commit"
    )
    parser.add_argument(
        "--part", default="1/1", help="every Nth candidate from the Kth on, to spread them over processes"
    )
    parser.add_argument("--merge", type=Path, nargs="*", default=(), help="files of other parts to take lines from")
    parser.add_argument("--commit", default=os.environ.get("COMMIT", "unknown"), help="what is measured")
    options = parser.parse_args()
    device, commit = probe().device(options.backend), options.commit
    found = judging.edited() if options.set != "index" else []
    found += judging.fixtures() if options.set != "edited" else []
    chosen = [one for one in found if one.backend == options.backend and options.only in one.file]
    # Those that must be accepted first: they go through all checks, and tell most where there is no time for all.
    chosen.sort(key=lambda one: bool(one.reasons))
    first, _, parts = options.part.partition("/")
    chosen = chosen[int(first) - 1 :: int(parts)]
    origin = {
        "command": "python " + shlex.join(sys.argv),
        "device": device.limits.name,
        "compiler": open_compiler(device.limits, device.index).version,
    }
    lines: dict[str, dict[str, Any]] = {}
    if options.out.exists():
        lines = {line["candidate"]: line for line in json.loads(options.out.read_text("utf-8"))["candidates"]}
    for other in options.merge:
        lines |= {line["candidate"]: line for line in json.loads(other.read_text("utf-8"))["candidates"]}
    for number, fixture in enumerate(chosen, 1):
        if fixture.file in lines and (not options.again or lines[fixture.file].get("commit") == commit):
            continue
        line = judged(fixture, device, Limits(compile=60.0, run=options.seconds), commit)
        lines[fixture.file] = line
        mark = "" if line.get("as_expected") else "   <-- not as expected"
        print(
            f"{number}/{len(chosen)} {fixture.file}: {line['verdict']} {line['reason']} {line['seconds']} s{mark}",
            file=sys.stderr,
            flush=True,
        )
        every = [lines[name] for name in sorted(lines)]
        content = {**origin, "summary": summary(every), "candidates": every}
        part = options.out.with_suffix(".part")
        part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        part.replace(options.out)
    print(json.dumps(summary(list(lines.values())), indent=1))


if __name__ == "__main__":
    main()
