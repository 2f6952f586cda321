"""Measures how many configurations a second are compiled, checked and timed, and what the pool costs and survives.

    python scripts/measure/throughput.py --out DIR [--gpus N] [--kernel-tuner] [--killers]

Without a part, it measures the 216 points of scripts/measure/pool/planted.py on silu_and_mul 512x11008: on a cold
cache, on a warm one, and a longer stretch of the whole space. Parts: --gpus N, the same on 1, 2, 4 ... N GPUs;
--killers, 500 points of which 5 % are planted killers against the same without; --kernel-tuner, that tool on the same
216 points, in this run. Every part writes DIR/throughput-PART.json. On a machine without a GPU an OpenCL CPU and
smaller numbers are used.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tunesmith.actors.cluster.cluster import cluster
from tunesmith.cli.measure.pool.killers import measure_killers
from tunesmith.cli.measure.pool.planted import small
from tunesmith.cli.measure.pool.pool_runs import Place, find_place, make_pool, progress, ready, stretch
from tunesmith.cli.measure.pool.rival import rival
from tunesmith.graph.results.summary import _versions
from tunesmith.kernels.build.artifact_cache import ArtifactCache


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--kernel-tuner", action="store_true")
    parser.add_argument("--killers", action="store_true")
    parser.add_argument("--compilers", type=int, default=0, help="compile processes; one a core if left out")
    parser.add_argument("--long", type=int, default=0, help="points of the longer stretch")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    place = find_place(options.long, options.seed)
    parts: dict[str, Any] = {}
    if options.gpus:
        parts["gpus"] = measure_gpus(place, options.gpus, options.compilers)
    if options.killers:
        parts["killers"] = measure_killers(place, options.compilers)
    if not parts or options.kernel_tuner:
        parts["single"] = measure_single(place, options.compilers)
        if options.kernel_tuner:
            parts["single"]["kernel_tuner"] = rival(options.seed)
            rate = parts["single"]["kernel_tuner"].get("rate")
            parts["single"]["ratio"] = round(parts["single"]["cold"]["rate"] / rate, 1) if rate else None
    for name, found in parts.items():
        record = {
            "command": "python " + shlex.join(sys.argv),
            "commit": os.environ.get("COMMIT", "unknown"),
            "device": place.device.to_json(),
            "cores": os.cpu_count(),
            "versions": _versions(),
            name: found,
        }
        (options.out / f"throughput-{name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        print(json.dumps({name: found}, indent=1))
    return 0


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
                progress("cold", found)
            again = time.monotonic()
            with make_pool(place, ArtifactCache(Path(folder)), 1, compilers) as pool:
                ready(pool)
                found, _ = stretch(pool, place, template, configs)
                whole = time.monotonic() - again
                result["warm"] = asdict(found) | {"rate_with_workers_start": round(len(configs) / whole, 1)}
                progress("warm", found)
                long = place.configs(place.template, place.long)
                found, _ = stretch(pool, place, place.template, long)
                result["long"] = asdict(found)
                progress("long", found)
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
                    progress(f"{lanes} {name}", found)
                if lanes == counts[-1]:
                    step["roofs"] = asdict(pool.calibrate())
                    step["names"] = [lane.name for lane in pool.workers.lanes]
                first = result["steps"][0] if result["steps"] else step
                for name in ("cold", "warm"):
                    step[name]["of_linear"] = round(step[name]["rate"] / first[name]["rate"] / lanes, 3)
                # What they would compile if they never waited, at the pace they had beside so many others.
                busy = step["cold"]["compiler_busy"]
                step["compilers_limit"] = round(step["cold"]["rate"] / busy, 1) if busy else None
                result["steps"].append(step)
    return result


if __name__ == "__main__":
    sys.exit(main())
