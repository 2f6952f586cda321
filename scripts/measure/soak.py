"""A long run of the pool on a pretended device, with faults of every kind: does memory stay flat, is anything lost?

    python scripts/measure/soak.py --out FILE [--evaluations 20000] [--seed 0]

Processes, Ray, journal and deadlines are the real ones; only compiling and measuring are made up, so that twenty
thousand evaluations take minutes. What becomes of a point is written in its number, and compared with what came out;
besides, workers are killed at random from outside, which nothing may be lost by.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shlex
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from tunesmith.actors.cluster.cluster import cluster
from tunesmith.actors.pool.pool import Deadlines, Pool, Request
from tunesmith.actors.process.packed import pack, unpack
from tunesmith.actors.process.workers import CompilerReady, LaneReady
from tunesmith.graph.journal.events import Evaluated
from tunesmith.graph.journal.store import Journal
from tunesmith.graph.results.summary import _versions
from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.outcome import CompileFailed, LaunchFailed, Measured, Resources
from tunesmith.kernels.spec.files.taskfile import load_task
from tunesmith.kernels.spec.parameter import Config, Parameter
from tunesmith.kernels.spec.template import Template

WORKLOAD = "512x11008"
COLUMNS = 100
EVERY = 1000
"""Points between two of a kind of fault."""
FAULTS = {1: "launch_failed", 202: "crashed", 403: "timed_out", 604: "compile_failed", 805: "crashed"}
"""Remainder of a point's number by `EVERY`, and what must come out: the device is lost, the lane dies each time, it
hangs, the compiler refuses, the compile worker dies each time."""
VISIT_SECONDS = 2.0
HANG_SECONDS = 0.2
"""From which on a pretended visit, of no time at all, hangs."""
KILL_EVERY = 400
"""Evaluations between two killings from outside."""


WORKERS = ("ray::LaneActor", "ray::CompileActor")
"""How the titles of worker processes begin."""


class PretendedCompiler:
    def __init__(self, limits: Any, index: int) -> None:
        self._arch, self._code = limits.arch, os.urandom(10_000)

    def start(self) -> CompilerReady:
        return CompilerReady("pretence 1", None)

    def compile(self, source: Any) -> Artifact | CompileFailed:
        values = dict(line.split()[1:3] for line in source.source.splitlines() if line.startswith("#define "))
        fault = (int(values["ROW"]) * COLUMNS + int(values["COLUMN"])) % EVERY
        if fault == 604:
            return CompileFailed("error: pretended", "a log " * 100)
        if fault == 805:
            os.kill(os.getpid(), signal.SIGKILL)
        return Artifact("cuda", self._arch, source.entry, self._code, source.digest, Resources(20, 0, 0, 0))


class PretendedLane:
    def __init__(self, task: Any, limits: Any, index: int, seed: int, holder: Any) -> None:
        self._name = limits.name

    def start(self, health: Any, workloads: Any, seed: int, seconds: float) -> LaneReady:
        return LaneReady(f"GPU-{os.environ.get('CUDA_VISIBLE_DEVICES')}", self._name, platform.node())

    def acquire(self) -> None:
        pass

    def visit_packed(self, data: bytes, seconds: float) -> bytes:
        return pack(self.visit(*unpack(data)))

    def visit(self, candidate: Any, workloads: Any, precision: Any) -> dict[str, Any]:
        fault = point_of(candidate.config) % EVERY
        if fault == 1:
            return {workloads[0]: LaunchFailed("an illegal memory access was encountered", sticky=True)}
        if fault == 202:
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == 403:
            time.sleep(600)
        return {name: Measured(1e-5, 0.99e-5, 1.01e-5, 7, 6, {"out": 0.5}) for name in workloads}


def point_of(config: Config) -> int:
    return int(config["ROW"]) * COLUMNS + int(config["COLUMN"])


def memory_of(pid: int) -> int:
    """Resident bytes; 0 for a process that is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def family(pid: int) -> dict[int, str]:
    """Processes started by `pid`, directly or not, with their titles."""
    parents, titles = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[:2]
                if state != "Z":
                    parents[int(entry.name)] = int(parent)
                    titles[int(entry.name)] = (entry / "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
            except OSError:
                continue
    found, fresh = set[int](), {pid}
    while fresh:
        fresh = {child for child, parent in parents.items() if parent in fresh} - found
        found |= fresh
    return {one: titles[one] for one in found}


def hanging(pool: Pool) -> bool:
    """Whether a lane hangs, as planted. Who loses its process twice is held to end it itself, and a hang lasts long
    enough to be met by two killings from outside."""
    now = time.monotonic()
    return any(lane.calls and lane.ready and now - lane.started > HANG_SECONDS for lane in pool.workers.lanes)


def workers() -> list[int]:
    return [pid for pid, title in family(os.getpid()).items() if title.startswith(WORKERS)]


def soak(evaluations: int, seed: int) -> dict[str, Any]:
    """Runs it; gives what was seen. `passed` says whether it was as it should be."""
    task, limits = load_task("silu_and_mul"), resolve_target("h200")
    rows = -(-evaluations // COLUMNS)
    given = task.sources("cuda").templates[0].model_dump()
    template = Template.model_validate(
        # What the source did not name would not be compiled for each of its values.
        given
        | {"source": given["source"] + "\nconstexpr int POINT[] = {ROW, COLUMN};\n"}
        | {
            "parameters": [
                Parameter(name="ROW", values=tuple(range(rows))).model_dump(),
                Parameter(name="COLUMN", values=tuple(range(COLUMNS))).model_dump(),
            ],
            "constraints": [],
            "launch": {"grid": ["n"], "block": ["32"]},
        }
    )
    chance, kills = random.Random(seed), 0
    samples: list[tuple[int, int, int, int]] = []
    ended, wrong, twice = Counter[str](), list[dict[str, Any]](), 0
    seen, done = bytearray(evaluations), 0
    with tempfile.TemporaryDirectory() as folder, Journal(Path(folder), create=True) as journal, cluster(gpus=2):
        before = {pid for pid, title in family(os.getpid()).items() if title.startswith(WORKERS)}
        pool = Pool(
            task,
            limits,
            lanes=2,
            compilers=2,
            seed=seed,
            workloads=[WORKLOAD],
            deadlines=Deadlines(compile=30.0, visit=VISIT_SECONDS, start=120.0, grace=0.0),
            lane_class=PretendedLane,
            compile_class=PretendedCompiler,
        )
        started, waiting = time.monotonic(), iter(range(evaluations))
        with pool:
            while done < evaluations:
                while pool.in_flight < pool.target_in_flight and (number := next(waiting, None)) is not None:
                    config: Config = {"ROW": number // COLUMNS, "COLUMN": number % COLUMNS}
                    pool.submit(Request(number, template, config, (WORKLOAD,)))
                for request, evaluation in pool.collect():
                    journal.append(Evaluated(number=request.number, evaluation=evaluation))
                    twice += seen[request.number]
                    seen[request.number] = 1
                    done += 1
                    kind = evaluation.outcomes[WORKLOAD].kind
                    ended[kind] += 1
                    if kind != FAULTS.get(request.number % EVERY, "measured"):
                        wrong.append({"number": request.number, "outcome": str(evaluation.outcomes[WORKLOAD])[:200]})
                    if done % (evaluations // 40 or 1) == 0:
                        sizes = [memory_of(pid) for pid in workers()]
                        descriptors = len(list(Path("/proc/self/fd").iterdir()))
                        samples.append((done, memory_of(os.getpid()), max(sizes, default=0), descriptors))
                if kills < done // KILL_EVERY and not hanging(pool) and (alive := workers()):
                    os.kill(chance.choice(alive), signal.SIGKILL)
                    kills += 1
        seconds = time.monotonic() - started
        kept = journal.count(Evaluated)
        deadline = time.monotonic() + 20
        while (left := set(workers()) - before) and time.monotonic() < deadline:
            time.sleep(0.2)
    growth = slope([(at, driver) for at, driver, _, _ in samples])
    worker_growth = slope([(at, worker) for at, _, worker, _ in samples])
    descriptors_growth = samples[-1][3] - samples[len(samples) // 2][3]
    found = {
        "evaluations": evaluations,
        "seconds": round(seconds, 1),
        "rate": round(evaluations / seconds, 1),
        "outcomes": dict(ended),
        "killed_from_outside": kills,
        "not_as_planted": wrong[:50],
        "lost": evaluations - sum(seen),
        "twice": twice,
        "in_journal": kept,
        "in_flight_at_end": pool.in_flight,
        "workers_left": len(left),
        "driver_mib": [round(samples[0][1] / 2**20, 1), round(samples[-1][1] / 2**20, 1)],
        "driver_kib_per_1000": round(growth / 1024 * 1000, 1),
        "largest_worker_mib": round(max(worker for _, _, worker, _ in samples) / 2**20, 1),
        "worker_kib_per_1000": round(worker_growth / 1024 * 1000, 1),
        "descriptors_second_half": descriptors_growth,
        "samples": samples,
    }
    found["passed"] = (
        not wrong and not found["lost"] and not twice and kept == evaluations and not left and pool.in_flight == 0
    )
    return found


def slope(points: list[tuple[int, int]]) -> float:
    """Bytes an evaluation over the second half, by least squares: by then caches are filled."""
    half = points[len(points) // 2 :]
    if len(half) < 3:
        return 0.0
    x, y = np.array(half, float).T
    return float(np.polyfit(x, y, 1)[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--evaluations", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    found = soak(options.evaluations, options.seed)
    record = {
        "command": "python " + shlex.join(sys.argv),
        "commit": os.environ.get("COMMIT", "unknown"),
        "machine": f"{os.cpu_count()} cores, Linux, no GPU",
        "python": platform.python_version(),
        "versions": _versions(),
        **found,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({key: value for key, value in found.items() if key != "samples"}, indent=1))
    return 0 if found["passed"] else 1


if __name__ == "__main__":
    # Workers get the classes above by their module's name, which is not that of a script.
    from tunesmith.cli.measure import soak as module

    sys.exit(module.main())
