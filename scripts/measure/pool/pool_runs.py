"""What measurements of the pool have in common: where they are made, a pool there, and one stretch of evaluations."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunesmith.actors.pool.pool import Pool, Request
from tunesmith.cli.measure.pool.planted import drawn
from tunesmith.graph.journal.events import Evaluated
from tunesmith.graph.journal.store import Journal
from tunesmith.hw.probe import Device, probe
from tunesmith.kernels.build.artifact_cache import ArtifactCache
from tunesmith.kernels.outcome import Evaluation, Measured
from tunesmith.kernels.spec.files.taskfile import load_task
from tunesmith.kernels.spec.parameter import Config
from tunesmith.kernels.spec.task import Task
from tunesmith.kernels.spec.template import Template

BUSY = 0.85
"""Share from which on something is what everything waits for."""


@dataclass(frozen=True)
class Place:
    """Where it is measured, and on what."""

    task: Task
    device: Device
    workload: str
    long: int
    killers: int
    seed: int

    @property
    def template(self) -> Template:
        return self.task.sources(self.device.backend).templates[0]

    def configs(self, template: Template, count: int) -> list[Config]:
        return drawn(template, self.task.workload(self.workload), self.device.limits, count, self.seed)


@dataclass
class Stretch:
    """Many evaluations in one go. Seconds and shares of what the workers did between the first and the last.
    cores_busy, cores_stolen: shares of the machine's processor time, the latter taken by others on a virtual machine's
    host; None where the system does not tell."""

    points: int
    seconds: float
    rate: float
    lanes: int
    compilers: int
    lane_busy: float
    compiler_busy: float
    bound: str
    cached: int
    measured: int
    failures: dict[str, int]
    compile_ms: float
    visit_ms: float
    samples: float
    cores_busy: float | None = None
    cores_stolen: float | None = None


def find_place(long: int, seed: int) -> Place:
    task, devices = load_task("silu_and_mul"), probe().devices
    device = min(devices, key=lambda one: (one.backend != "cuda", one.limits.kind != "gpu"))
    if device.backend == "cuda":
        return Place(task, device, "512x11008", long or 1500, 500, seed)
    workload = next(one.name for one in task.workloads if device.limits.kind in one.devices)
    return Place(task, device, workload, long or 24, 24, seed)


def make_pool(place: Place, cache: ArtifactCache | None, lanes: int, compilers: int, **more: Any) -> Pool:
    gpu = place.device.backend == "cuda"
    return Pool(
        place.task,
        place.device.limits,
        place.device.index,
        lanes=lanes if gpu else 1,
        compilers=(compilers or max(1, (os.cpu_count() or 1) - 1 - lanes)) if gpu else 1,
        seed=place.seed,
        workloads=[place.workload],
        cache=cache,
        say=lambda sentence: print(sentence, file=sys.stderr, flush=True),
        **more,
    )


def ready(pool: Pool) -> float:
    """Seconds until all workers of `pool` are ready."""
    started = time.monotonic()
    for worker in pool.workers.workers:
        pool.workers.request_ready(worker)
    for worker in pool.workers.workers:
        pool.workers.make_ready(worker)
    return round(time.monotonic() - started, 3)


def _processor_times() -> tuple[float, float, float] | None:
    """Ticks of all cores since the machine started, as Linux counts them: busy, stolen, all."""
    try:
        line = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0]
    except OSError:
        return None
    # cpu user nice system idle iowait irq softirq steal ...: what guests take is part of user and nice.
    user, nice, system, idle, iowait, irq, softirq, steal = (float(ticks) for ticks in line.split()[1:9])
    busy = user + nice + system + irq + softirq
    return busy, steal, busy + steal + idle + iowait


def _shares(
    before: tuple[float, float, float] | None, after: tuple[float, float, float] | None
) -> tuple[float | None, float | None]:
    if before is None or after is None or after[2] <= before[2]:
        return None, None
    whole = after[2] - before[2]
    return round((after[0] - before[0]) / whole, 3), round((after[1] - before[1]) / whole, 3)


def stretch(
    pool: Pool, place: Place, template: Template, configs: Sequence[Config]
) -> tuple[Stretch, list[Evaluation]]:
    """All of `configs`, each journalled when it ends, as a run does."""
    workers, found = pool.workers, dict[int, Evaluation]()
    before = (sum(w.busy_seconds for w in workers.lanes), sum(w.busy_seconds for w in workers.compilers))
    waiting = iter(enumerate(configs))
    with tempfile.TemporaryDirectory() as folder, Journal(Path(folder), create=True) as journal:
        started, cores = time.monotonic(), _processor_times()
        while len(found) < len(configs):
            while pool.in_flight < pool.target_in_flight and (one := next(waiting, None)) is not None:
                pool.submit(Request(one[0], template, one[1], (place.workload,)))
            for request, evaluation in pool.collect():
                journal.append(Evaluated(number=request.number, evaluation=evaluation))
                found[request.number] = evaluation
        seconds = time.monotonic() - started
        cores_busy, cores_stolen = _shares(cores, _processor_times())
    lanes, compilers = len(workers.lanes), len(workers.compilers)
    lane_busy = (sum(w.busy_seconds for w in workers.lanes) - before[0]) / seconds / lanes
    compiler_busy = (sum(w.busy_seconds for w in workers.compilers) - before[1]) / seconds / compilers
    evaluations = [found[number] for number in range(len(configs))]
    measured = [one for evaluation in evaluations for one in evaluation.outcomes.values() if isinstance(one, Measured)]
    failures = Counter(evaluation.failure.kind for evaluation in evaluations if evaluation.failure is not None)
    bound = "lanes" if lane_busy >= BUSY else "compilers" if compiler_busy >= BUSY else "neither"
    compiled = [one.compile_seconds for one in evaluations if not one.cached]
    return Stretch(
        points=len(configs),
        seconds=round(seconds, 4),
        rate=round(len(configs) / seconds, 1),
        lanes=lanes,
        compilers=compilers,
        lane_busy=round(lane_busy, 3),
        compiler_busy=round(compiler_busy, 3),
        bound=bound,
        cached=sum(one.cached for one in evaluations),
        measured=len(measured),
        failures=dict(failures),
        compile_ms=round(1e3 * statistics.median(compiled), 2) if compiled else 0.0,
        visit_ms=round(1e3 * statistics.median(one.lane_seconds for one in evaluations), 3),
        samples=statistics.mean(one.samples for one in measured) if measured else 0.0,
        cores_busy=cores_busy,
        cores_stolen=cores_stolen,
    ), evaluations


def progress(name: str, found: Stretch) -> None:
    rates = f"{found.points} points in {found.seconds:.2f} s, {found.rate:.1f}/s"
    busy = f"lanes busy {found.lane_busy:.0%}, compilers {found.compiler_busy:.0%}"
    if found.cores_busy is not None:
        busy += f", cores {found.cores_busy:.0%} (stolen {found.cores_stolen:.0%})"
    print(f"{name}: {rates}, {busy}, failures {found.failures or 'none'}", file=sys.stderr, flush=True)
