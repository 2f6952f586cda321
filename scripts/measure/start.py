"""How long a tuning takes to its first measurement, and which processes spend the time.

    PYTHONPATH=. python scripts/measure/start.py silu_and_mul --repeats 10

Each repeat is a `tunesmith tune` in a process of its own, ended when its journal has the baseline's times. CPU seconds
are those of all its processes, Ray's too; on a machine that others use they say more than the clock does. Packages must
be compiled to bytecode before (PYTHONDONTWRITEBYTECODE unset), as they are where they were installed.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

LOOK_SECONDS = 0.02
SET_CHILD_SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of <sys/prctl.h>: what a run leaves behind becomes this process's child, and is seen."""
TICKS = os.sysconf("SC_CLK_TCK")


def processes() -> dict[int, tuple[int, float, str]]:
    """Parent, CPU seconds and a name of each process of the machine, by its id."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            head, _, rest = (entry / "stat").read_text().rpartition(")")
            command = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        fields = rest.split()
        name = next((Path(part.decode(errors="replace")).name for part in command[1:] if part.endswith(b".py")), "")
        if b"forkserver" in b" ".join(command):
            name = "fork server and its children"
        own = head.partition("(")[2]
        found[int(entry.name)] = int(fields[1]), (int(fields[11]) + int(fields[12])) / TICKS, name or own
    return found


def below(top: int, known: dict[int, tuple[int, float, str]]) -> set[int]:
    """`top` and the processes that it started, directly or not."""
    inside = {top}
    while more := {pid for pid, (parent, _, _) in known.items() if parent in inside} - inside:
        inside |= more
    return inside


def measured(journal: Path) -> bool:
    """Whether the journal has the baseline's times."""
    if not journal.exists():
        return False
    connection = sqlite3.connect(f"file:{journal}?mode=ro", uri=True, timeout=5)
    try:
        return bool(connection.execute("SELECT COUNT(*) FROM events WHERE kind = 'baseline'").fetchone()[0])
    except sqlite3.OperationalError:  # the table is not there yet
        return False
    finally:
        connection.close()


def start(task: str, folder: Path) -> dict[str, Any]:
    """One start: wall seconds to the first measurement, CPU seconds until then by process, the machine's load."""
    earlier = below(os.getpid(), processes())
    load, begun = os.getloadavg()[0], time.monotonic()
    command = [sys.executable, "-m", "tunesmith.cli.main", "tune", task, "--run-dir", str(folder), "--rounds", "1"]
    # A group of its own: the run is interrupted as from a terminal.
    run = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    spent: dict[int, tuple[float, str]] = {}
    while not measured(folder / "journal.sqlite"):
        if run.poll() is not None:
            raise SystemExit(run.stderr.read() if run.stderr else "the run ended")
        known = processes()
        spent |= {pid: known[pid][1:] for pid in below(os.getpid(), known) - earlier}
        time.sleep(LOOK_SECONDS)
    seconds = time.monotonic() - begun
    os.killpg(run.pid, signal.SIGINT)
    run.communicate()
    by_name: defaultdict[str, float] = defaultdict(float)
    for cpu, name in spent.values():
        by_name[name] += cpu
    return {
        "wall_seconds": round(seconds, 2),
        "cpu_seconds": round(sum(by_name.values()), 2),
        "load_before": round(load, 1),
        "by_process": {name: round(cpu, 2) for name, cpu in sorted(by_name.items(), key=lambda item: -item[1])},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Times a tuning's start, to its first measurement.")
    parser.add_argument("task")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.repeats):
            runs.append(start(arguments.task, Path(folder, str(number))))
            print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
    medians = {key: statistics.median(run[key] for run in runs) for key in ("wall_seconds", "cpu_seconds")}
    print(json.dumps({"median": medians, "runs": runs}, indent=2))


if __name__ == "__main__":
    main()
