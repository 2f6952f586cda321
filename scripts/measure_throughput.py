"""Measures how many configurations a second are compiled, checked and timed, and what the pool costs and survives.

    python scripts/measure_throughput.py --out DIR [--gpus N] [--kernel-tuner] [--killers] [--anatomy]

Without a part, it measures the 216 points of `scripts/planted.py` on silu_and_mul 512x11008: on a cold cache, again on
a warm one, and a longer stretch of the whole space. Parts: --gpus N, the same on 1, 2, 4 ... N GPUs; --killers, 500
points of which 5 % are planted killers against the same without; --kernel-tuner, that tool on the same 216 points, in
this run; --anatomy, what a visit to the device is made of. Every part writes DIR/throughput-PART.json. On a machine
without a GPU an OpenCL CPU and smaller numbers are used.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import os
import pstats
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tunesmith.actors.cluster import cluster
from tunesmith.actors.pool import Deadlines, Pool, Request
from tunesmith.cli.planted import KILLER, KILLERS, drawn, is_right, planted, small, with_killers
from tunesmith.graph.context import evaluation_to_json
from tunesmith.graph.journal import Journal
from tunesmith.graph.summary import _versions
from tunesmith.hw.probe import Device, probe
from tunesmith.kernels.artifact_cache import ArtifactCache
from tunesmith.kernels.backends import Artifact, open_compiler
from tunesmith.kernels.bench import Bench, Candidate
from tunesmith.kernels.candidate import types_key
from tunesmith.kernels.outcome import Evaluation, Measured, describe
from tunesmith.kernels.parameter import Config, config_key
from tunesmith.kernels.specialise import specialise
from tunesmith.kernels.task import Task
from tunesmith.kernels.taskfile import load_task
from tunesmith.kernels.template import Template
from tunesmith.kernels.timing import Precision

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
    """Many evaluations in one go. Seconds and shares of what the workers did between the first and the last."""

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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--kernel-tuner", action="store_true")
    parser.add_argument("--killers", action="store_true")
    parser.add_argument("--anatomy", action="store_true")
    parser.add_argument("--compilers", type=int, default=0, help="compile processes; one a core if left out")
    parser.add_argument("--long", type=int, default=0, help="points of the longer stretch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only-kernel-tuner", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    place = find_place(options.long, options.seed)
    if options.only_kernel_tuner:
        print(json.dumps(kernel_tuner(place)))
        return 0
    parts: dict[str, Any] = {}
    if options.gpus:
        parts["gpus"] = measure_gpus(place, options.gpus, options.compilers)
    if options.killers:
        parts["killers"] = measure_killers(place, options.compilers)
    if options.anatomy:
        parts["anatomy"] = anatomy(place)
    if not parts or options.kernel_tuner:
        parts["single"] = measure_single(place, options.compilers)
        if options.kernel_tuner:
            parts["single"]["kernel_tuner"] = rival(options.out)
            rate = parts["single"]["kernel_tuner"].get("rate")
            parts["single"]["ratio"] = round(parts["single"]["cold"]["rate"] / rate, 1) if rate else None
    for name, found in parts.items():
        record = {
            "command": "python " + shlex.join(sys.argv), "commit": os.environ.get("COMMIT", "unknown"),
            "device": place.device.to_json(), "cores": os.cpu_count(), "versions": _versions(), name: found,
        }  # fmt: skip
        (options.out / f"throughput-{name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        print(json.dumps({name: found}, indent=1))
    return 0


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
    for worker in pool.roster.workers:
        pool.roster.started(worker)
    for worker in pool.roster.workers:
        pool.roster.make_ready(worker)
    return round(time.monotonic() - started, 3)


def stretch(
    pool: Pool, place: Place, template: Template, configs: Sequence[Config]
) -> tuple[Stretch, list[Evaluation]]:
    """All of `configs`, each journalled when it ends, as a run does."""
    roster, found = pool.roster, dict[int, Evaluation]()
    before = (sum(w.busy_seconds for w in roster.lanes), sum(w.busy_seconds for w in roster.compilers))
    waiting = iter(enumerate(configs))
    with tempfile.TemporaryDirectory() as folder, Journal(Path(folder), create=True) as journal:
        started = time.monotonic()
        while len(found) < len(configs):
            while pool.in_flight < pool.ahead and (one := next(waiting, None)) is not None:
                pool.submit(Request(one[0], template, one[1], (place.workload,)))
            for request, evaluation in pool.collect():
                journal.append("evaluation", evaluation_to_json(evaluation))
                found[request.number] = evaluation
        seconds = time.monotonic() - started
    lanes, compilers = len(roster.lanes), len(roster.compilers)
    lane_busy = (sum(w.busy_seconds for w in roster.lanes) - before[0]) / seconds / lanes
    compiler_busy = (sum(w.busy_seconds for w in roster.compilers) - before[1]) / seconds / compilers
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
    ), evaluations


def measure_single(place: Place, compilers: int) -> dict[str, Any]:
    """One lane: cold, warm (in new processes), and a long stretch of the whole space on a cold cache."""
    result: dict[str, Any] = {}
    template = small(place.template)
    configs = place.configs(template, 10_000)
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        with cluster():
            result["ray_seconds"] = round(time.monotonic() - began, 3)
            with make_pool(place, ArtifactCache(Path(folder)), 1, compilers) as pool:
                result["workers_seconds"] = ready(pool)
                found, _ = stretch(pool, place, template, configs)
                whole = time.monotonic() - began
                result["cold"] = asdict(found) | {"rate_with_start": round(len(configs) / whole, 1)}
                _progress("cold", found)
            again = time.monotonic()
            with make_pool(place, ArtifactCache(Path(folder)), 1, compilers) as pool:
                ready(pool)
                found, _ = stretch(pool, place, template, configs)
                whole = time.monotonic() - again
                result["warm"] = asdict(found) | {"rate_with_workers_start": round(len(configs) / whole, 1)}
                _progress("warm", found)
                long = place.configs(place.template, place.long)
                found, _ = stretch(pool, place, place.template, long)
                result["long"] = asdict(found)
                _progress("long", found)
    return result


def measure_gpus(place: Place, most: int, compilers: int) -> dict[str, Any]:
    """The long stretch on 1, 2, 4 ... lanes, on a cold cache and on a warm one, where compiling does not count."""
    counts = sorted({*(2**power for power in range(8) if 2**power < most), most})
    result: dict[str, Any] = {"roofs": [], "steps": []}
    configs = place.configs(place.template, place.long)
    with cluster() as offer:
        result["gpus_in_cluster"] = offer.gpus
        for lanes in counts:
            with (
                tempfile.TemporaryDirectory() as folder,
                make_pool(place, ArtifactCache(Path(folder)), lanes, compilers) as pool,
            ):
                seconds = ready(pool)
                step: dict[str, Any] = {"lanes": lanes, "workers_seconds": seconds}
                for name in ("cold", "warm"):
                    found, _ = stretch(pool, place, place.template, configs)
                    step[name] = asdict(found)
                    _progress(f"{lanes} {name}", found)
                if lanes == counts[-1]:
                    step["roofs"] = asdict(pool.calibrate())
                    step["names"] = [lane.name for lane in pool.roster.lanes]
                first = result["steps"][0] if result["steps"] else step
                for name in ("cold", "warm"):
                    step[name]["of_linear"] = round(step[name]["rate"] / first[name]["rate"] / lanes, 3)
                compile_ms = step["cold"]["compile_ms"]
                step["compilers_limit"] = round(1e3 * step["cold"]["compilers"] / compile_ms, 1) if compile_ms else None
                result["steps"].append(step)
    return result


def measure_killers(place: Place, compilers: int) -> dict[str, Any]:
    """Points with planted killers against the same points without, each in a fresh pool on a cold cache."""
    template, backend = with_killers(place.template), place.device.backend
    plain = place.configs(place.template, place.killers)
    deadlines = Deadlines(visit=4.0)
    runs: dict[str, tuple[Stretch, list[Evaluation], float]] = {}
    points = {
        "without": [{**config, KILLER: 0} for config in plain],
        "with": planted(plain, backend, 0.05, place.seed),
    }
    with cluster():
        for name, configs in points.items():
            with tempfile.TemporaryDirectory() as folder:
                began = time.monotonic()
                with make_pool(place, ArtifactCache(Path(folder)), 1, compilers, deadlines=deadlines) as pool:
                    ready(pool)
                    found, evaluations = stretch(pool, place, template, configs)
                runs[name] = (found, evaluations, time.monotonic() - began)
                _progress(name, found)
    wrong, kinds = [], Counter[str]()
    for config, evaluation in zip(points["with"], runs["with"][1], strict=True):
        outcome = evaluation.outcomes[place.workload]
        kind = int(config[KILLER])
        kinds[f"{KILLERS[backend][kind].what if kind else 'healthy'}: {outcome.kind}"] += 1
        if not is_right(config, outcome, backend):
            wrong.append({"config": config, "outcome": describe(outcome)})
    endless = sum(KILLERS[backend][int(c[KILLER])].what == "endless loop" for c in points["with"] if c[KILLER])
    waited = endless * deadlines.visit
    times = {name: _times(evaluations, place.workload) for name, (_, evaluations, _) in runs.items()}
    common = [key for key in times["with"] if key in times["without"]]
    best = {name: min(common, key=lambda key: found[key]) for name, found in times.items()}
    return {
        "points": len(plain),
        "killers": sum(bool(config[KILLER]) for config in points["with"]),
        "outcomes": dict(kinds),
        "wrongly_typed": wrong,
        "same_best": best["with"] == best["without"],
        # Two configurations can be equally fast: then this is near 1 though they differ.
        "best_over_best": round(times["without"][best["with"]] / times["without"][best["without"]], 4),
        "deadline_seconds": deadlines.visit,
        "endless": endless,
        "ratio_of_search": round((runs["with"][0].seconds - waited) / runs["without"][0].seconds, 3),
        "ratio_with_start": round((runs["with"][2] - waited) / runs["without"][2], 3),
        "runs": {name: asdict(found) | {"with_start": round(whole, 3)} for name, (found, _, whole) in runs.items()},
    }


def _times(evaluations: Sequence[Evaluation], workload: str) -> dict[str, float]:
    return {
        config_key(one.config): outcome.seconds
        for one in evaluations
        if isinstance(outcome := one.outcomes[workload], Measured)
    }


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
        rows.append({"where": where, "calls": calls / len(candidates), "own_ms": 1e3 * own / len(candidates),
                     "total_ms": 1e3 * total / len(candidates)})  # fmt: skip
    rows.sort(key=lambda row: -row["total_ms"])
    return {
        "prepare_seconds": prepare_seconds,
        "visit_ms": 1e3 * statistics.median(seconds),
        "samples": statistics.mean(samples) if samples else 0,
        "profile": [{k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()} for row in rows[:70]],
    }


def rival(out: Path) -> dict[str, Any]:
    """Kernel Tuner in a process of its own, so that neither disturbs the other."""
    command = [sys.executable, __file__, "--only-kernel-tuner", "--out", str(out)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    except subprocess.TimeoutExpired:
        return {"error": "Kernel Tuner did not end within 150 s"}
    try:
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, json.JSONDecodeError):
        return {"error": (done.stderr or done.stdout)[-2000:]}
    return found


def kernel_tuner(place: Place) -> dict[str, Any]:
    """Brute force of the same points: CuPy backend, its usual seven runs, without a check of results."""
    try:
        import kernel_tuner
        import numpy as np
    except ImportError as error:
        return {"error": f"Kernel Tuner is not installed here ({error}); it was not measured."}
    if place.device.backend != "cuda":
        return {"error": "Kernel Tuner's CuPy backend needs a CUDA device; it was not measured."}
    from cuda.pathfinder import find_nvidia_header_directory

    template, workload = small(place.template), place.task.workload(place.workload)
    n, d = workload.sizes["n"], workload.sizes["d"]
    rng = np.random.default_rng(0)
    arguments = [
        rng.standard_normal((n, 2 * d)).astype(np.float16),
        np.zeros((n, d), np.float16),
        np.int32(n),
        np.int32(d),
    ]
    source = specialise(template.model_copy(update={"parameters": ()}), {}, workload.types).source

    def grid(config: dict[str, int]) -> int:
        tiles = -(-d // (config["BLOCK_X"] * config["VEC"] * config["UNROLL"])) * -(-n // config["BLOCK_Y"])
        return min(tiles, config["GRID_CAP"] or tiles)

    started = time.monotonic()
    results, _ = kernel_tuner.tune_kernel(
        template.entry, source, grid, arguments, {p.name: list(p.values) for p in template.parameters}, lang="cupy",
        block_size_names=["BLOCK_X", "BLOCK_Y"], grid_div_x=[], strategy="brute_force", quiet=True,
        compiler_options=["-std=c++17", f"-I{find_nvidia_header_directory('cudart')}"],
    )  # fmt: skip
    seconds = time.monotonic() - started
    times = [one["time"] for one in results if isinstance(one["time"], float)]
    return {
        "version": kernel_tuner.__version__ if hasattr(kernel_tuner, "__version__") else "unknown",
        "points": len(results),
        "measured": len(times),
        "seconds": round(seconds, 3),
        "rate": round(len(results) / seconds, 2),
        "best_us": round(1e3 * min(times), 3) if times else None,
    }


def _progress(name: str, found: Stretch) -> None:
    rates = f"{found.points} points in {found.seconds:.2f} s, {found.rate:.1f}/s"
    busy = f"lanes busy {found.lane_busy:.0%}, compilers {found.compiler_busy:.0%}"
    print(f"{name}: {rates}, {busy}, failures {found.failures or 'none'}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
