"""What a visit to the device is made of: its profile, function by function."""

from __future__ import annotations

import cProfile
import gc
import pstats
import statistics
import time
from pathlib import Path
from typing import Any

from tunesmith.cli.measure.pool.planted import small
from tunesmith.cli.measure.pool.pool_runs import Place
from tunesmith.kernels.backends import open_compiler
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.candidate import Candidate, types_key
from tunesmith.kernels.build.specialise import specialise
from tunesmith.kernels.measure.bench import Bench
from tunesmith.kernels.measure.timing import Precision
from tunesmith.kernels.outcome import Measured


def anatomy(place: Place) -> dict[str, Any]:
    """What a visit is made of: the profile of a bench in this process, which nothing else asks anything."""
    workload, template = place.task.workload(place.workload), small(place.template)
    compiler = open_compiler(place.device.limits, place.device.index)
    candidates = []
    for config in place.configs(template, 40):
        made = compiler.compile(specialise(template, config, workload.types))
        if isinstance(made, Artifact):
            candidates.append(Candidate(template, config, {types_key(workload): made}))
    bench = Bench(place.task, place.device.limits, place.device.index, seed=place.seed)
    started = time.perf_counter()
    bench.prepare([place.workload])
    prepare_seconds = time.perf_counter() - started
    # As a lane does.
    gc.collect()
    gc.freeze()
    profile, seconds, samples = cProfile.Profile(), [], []
    for number, candidate in enumerate(candidates):
        started = time.perf_counter()
        outcome = bench.visit(candidate, [place.workload], Precision())[place.workload]
        if number >= 5:
            seconds.append(time.perf_counter() - started)
        if isinstance(outcome, Measured):
            samples.append(outcome.samples)
    profile.enable()
    for candidate in candidates:
        bench.visit(candidate, [place.workload], Precision())
    profile.disable()
    stats: Any = pstats.Stats(profile)
    rows = []
    for (file, line, name), (_, calls, own, total, _) in stats.stats.items():
        where = f"{Path(file).name}:{line} {name}" if line else name
        rows.append(
            {
                "where": where,
                "calls": calls / len(candidates),
                "own_ms": 1e3 * own / len(candidates),
                "total_ms": 1e3 * total / len(candidates),
            }
        )
    rows.sort(key=lambda row: -row["total_ms"])
    return {
        "prepare_seconds": prepare_seconds,
        "visit_ms": 1e3 * statistics.median(seconds),
        "samples": statistics.mean(samples) if samples else 0,
        "profile": [{k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()} for row in rows[:70]],
    }
