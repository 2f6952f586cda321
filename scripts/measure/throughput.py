"""Measures how many configurations a second are compiled, checked and timed, and the pool's cost and robustness.

    python scripts/measure/throughput.py --out OUT [--gpus N] [--killers]

Without a part, it measures the 216 points of `SMALL` on silu_and_mul 512x11008: on a cold cache, on a warm one, and a
longer stretch of the whole space. Parts: --gpus N, the longer stretch on 1, 2, 4 ... N GPUs; --killers, 500 points of
which 5 % are planted killers against the same without. On a machine without a GPU an OpenCL CPU and smaller numbers are
used, but for --killers, which are written in CUDA.
"""

from __future__ import annotations

import itertools
import os
import statistics
import sys
import tempfile
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tunesmith.actors.pool import Pool, WorkerSet
from tunesmith.actors.ray_cluster import cluster, total
from tunesmith.actors.workers import Deadlines
from tunesmith.cli.measure.runner import Record, execute, parser_of
from tunesmith.graph.journal.events import Evaluated
from tunesmith.graph.journal.log import Journal
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.probe import DeviceInfo, probe
from tunesmith.kernels.build.artifact import ArtifactCache, EvaluationRequest
from tunesmith.kernels.outcome import Evaluation, Measured, describe
from tunesmith.kernels.space import feasible
from tunesmith.kernels.spec.task import Task
from tunesmith.kernels.spec.taskfile import load_task
from tunesmith.kernels.spec.template import Config, Parameter, Template

SMALL: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    # 3 * 4 * 2 * 3 * 3 = 216 points: without WALK the two caps are the same.
    "cuda": {
        "BLOCK_X": (128, 256, 512),
        "BLOCK_Y": (1,),
        "VEC": (1, 2, 4, 8),
        "UNROLL": (1, 2),
        "GRID_CAP": (528, 2112),
        "FAST_EXP": (0,),
    },
    "opencl": {"GROUP_X": (8, 16, 32), "GROUP_Y": (1,), "VEC": (8, 16), "ITEMS": (1, 2), "SIDE_BY_SIDE": (0,)},
}
"""The values that are left of these parameters."""
KILLER = "KILLER"
"""The parameter of planted faults: a key of `KILLERS`, or 0 for none."""
KILLERS: Mapping[int, tuple[str, tuple[str, ...]]] = {
    1: ("illegal address", ("launch_failed",)),
    2: ("endless loop", ("timed_out",)),
    3: ("trap, as by an assert", ("launch_failed",)),
    4: ("too much shared memory", ("rejected",)),
    5: ("oversize allocation", ("launch_failed", "compile_failed")),
}
"""The faults by the value of `KILLER`, with the kinds of outcome that report each."""
_KILLER_GLOBAL = "\n#if KILLER == 5\n__device__ char huge[1ull << 38];\n#endif\n"
_KILLER_BODY = """
#if KILLER == 1
    *(volatile int*)8 = 1;
#elif KILLER == 2
    for (long long start = clock64(); clock64() - start >= 0;) { }
#elif KILLER == 3
    __trap();
#elif KILLER == 5
    if (d < 0) huge[n] = 1;
#endif
"""


def drawn(task: Task, template: Template, limits: DeviceLimits, count: int, seed: int) -> list[Config]:
    """At most `count` feasible configurations, all different."""
    space = feasible(template, task.workloads, limits)
    order = np.random.default_rng(seed).permutation(len(space))[:count]
    return [space.config(int(point)) for point in order]


def small(template: Template) -> Template:
    """`template` with the values of `SMALL`."""
    parameters = [
        p.model_copy(update={"values": SMALL[template.backend].get(p.name, p.values), "default": None})
        for p in template.parameters
    ]
    return template.model_copy(update={"parameters": tuple(parameters)})


def with_killers(template: Template) -> Template:
    """`template`, a CUDA one, with the parameter `KILLER`, by which its kernel ends its process."""
    # The global stands after the headers and types, before the kernel.
    before, kernel = template.source.split('extern "C"', 1)
    start = kernel.index("{", kernel.index("silu_and_mul(")) + 1
    source = f'{before}{_KILLER_GLOBAL}extern "C"{kernel[:start]}{_KILLER_BODY}{kernel[start:]}'
    launch = template.launch.model_copy(update={"shared_bytes": f"300000 if {KILLER} == 4 else 0"})
    parameters = (*template.parameters, Parameter(name=KILLER, values=(0, *KILLERS)))
    changes = {"source": source, "parameters": parameters, "device_globals": ("huge",), "launch": launch}
    return template.model_copy(update=changes)


def planted(configs: Sequence[Config], share: float, seed: int) -> list[Config]:
    """`configs` with KILLER at 0, but for `share` of them, at random places, which have its values in turn."""
    count = max(len(KILLERS), round(share * len(configs)))
    places = np.random.default_rng(seed).permutation(len(configs))[:count]
    killers = dict(zip(map(int, places), itertools.cycle(KILLERS), strict=False))
    return [{**config, KILLER: killers.get(number, 0)} for number, config in enumerate(configs)]


def task_for(device: DeviceInfo) -> Task:
    """The task, with one workload."""
    task = load_task("silu_and_mul")
    name = next(one.name for one in task.workloads if device.limits.kind in one.devices)
    workload = task.workload("512x11008" if device.backend == "cuda" else name)
    return task.model_copy(update={"workloads": (workload,)})


@contextmanager
def ready_pool(
    task: Task, device: DeviceInfo, options: Namespace, lanes: int, folder: str | None = None, **more: Any
) -> Iterator[tuple[Pool, float]]:
    """A pool with its cache in `folder`, or with a cold one, and the seconds until all its workers were ready."""
    gpu = device.backend == "cuda"
    workers = WorkerSet(
        task,
        device.limits,
        device.index,
        lanes=lanes if gpu else 1,
        compilers=(options.compilers or max(1, (os.cpu_count() or 1) - 1 - lanes)) if gpu else 1,
        seed=options.seed,
        workloads=[one.name for one in task.workloads],
        say=lambda sentence: print(sentence, file=sys.stderr, flush=True),
        **more,
    )
    with tempfile.TemporaryDirectory() as cold, Pool(workers, cache=ArtifactCache(Path(folder or cold))) as pool:
        started = time.monotonic()
        for worker in (*pool.workers.compilers, *pool.workers.lanes):
            pool.ready_worker([worker])
        yield pool, round(time.monotonic() - started, 3)


def stretch(
    name: str, pool: Pool, template: Template, configs: Sequence[Config]
) -> tuple[dict[str, Any], list[Evaluation]]:
    """All of `configs`, each journalled when it ends, as a run does: the figures, printed under `name`, and the
    evaluations. Seconds and shares are of the workers' time between the first and the last."""
    kinds, found = {"lanes": pool.workers.lanes, "compilers": pool.workers.compilers}, dict[int, Evaluation]()
    before = {kind: sum(worker.busy_seconds for worker in workers) for kind, workers in kinds.items()}
    names = tuple(one.name for one in pool.task.workloads)
    requests = [EvaluationRequest(at, template, one, names) for at, one in enumerate(configs)]
    with tempfile.TemporaryDirectory() as folder, Journal(Path(folder), create=True) as journal:
        started = time.monotonic()
        for request, evaluation in pool.evaluate(requests):
            journal.append(Evaluated(number=request.number, evaluation=evaluation))
            found[request.number] = evaluation
        seconds = time.monotonic() - started
    busy = {
        kind: (sum(worker.busy_seconds for worker in workers) - before[kind]) / seconds / len(workers)
        for kind, workers in kinds.items()
    }
    evaluations = [found[number] for number in range(len(configs))]
    measured = [one for evaluation in evaluations for one in evaluation.outcomes.values() if isinstance(one, Measured)]
    compiled = [one.compile_seconds for one in evaluations if not one.cached]
    figures = {
        "points": len(configs),
        "seconds": round(seconds, 4),
        "rate": round(len(configs) / seconds, 1),
        **{kind: len(workers) for kind, workers in kinds.items()},
        **{f"{kind}_busy": round(share, 3) for kind, share in busy.items()},
        "measured": len(measured),
        "failures": dict(Counter(one.failure.kind for one in evaluations if one.failure is not None)),
        "compile_ms": round(1e3 * statistics.median(compiled), 2) if compiled else 0.0,
        "visit_ms": round(1e3 * statistics.median(one.lane_seconds for one in evaluations), 3),
    }
    print(f"{name}: {len(configs)} points, {figures['rate']} a second", file=sys.stderr, flush=True)
    return figures, evaluations


def measure_single(task: Task, device: DeviceInfo, options: Namespace) -> dict[str, Any]:
    """One lane: cold, warm (in new processes), and a long stretch of the whole space on a cold cache."""
    result: dict[str, Any] = {}
    whole = task.sources(device.backend).templates[0]
    template = small(whole)
    configs = drawn(task, template, device.limits, 10_000, options.seed)
    long = drawn(task, whole, device.limits, options.long, options.seed)
    with tempfile.TemporaryDirectory() as folder, cluster():
        for name in ("cold", "warm"):
            with ready_pool(task, device, options, 1, folder) as (pool, seconds):
                result[name] = stretch(name, pool, template, configs)[0] | {"workers_seconds": seconds}
                if name == "warm":
                    result["long"], _ = stretch("long", pool, whole, long)
    return result


def measure_gpus(task: Task, device: DeviceInfo, options: Namespace) -> dict[str, Any]:
    """The long stretch on 1, 2, 4 ... lanes, on a cold cache and on a warm one, where compiling does not count."""
    steps: list[dict[str, Any]] = []
    template, most = task.sources(device.backend).templates[0], options.gpus
    configs = drawn(task, template, device.limits, options.long, options.seed)
    with cluster():
        for lanes in sorted({*(2**power for power in range(8) if 2**power < most), most}):
            with ready_pool(task, device, options, lanes) as (pool, seconds):
                step: dict[str, Any] = {"lanes": lanes, "workers_seconds": seconds}
                for name in ("cold", "warm"):
                    step[name], _ = stretch(f"{lanes} {name}", pool, template, configs)
                    first = steps[0] if steps else step
                    step[name]["of_linear"] = round(step[name]["rate"] / first[name]["rate"] / lanes, 3)
                steps.append(step)
        return {"gpus_in_cluster": int(total("GPU")), "steps": steps}


def measure_killers(task: Task, device: DeviceInfo, options: Namespace) -> dict[str, Any]:
    """500 points with planted killers against the same without, each in a fresh pool on a cold cache."""
    if device.backend != "cuda":
        raise TunesmithError("--killers: they are written in CUDA; leave it out, or run it on an NVIDIA GPU.")
    healthy, deadlines = task.sources(device.backend).templates[0], Deadlines(run=4.0)
    template, plain = with_killers(healthy), drawn(task, healthy, device.limits, 500, options.seed)
    points = {"without": [{**one, KILLER: 0} for one in plain], "with": planted(plain, 0.05, options.seed)}
    runs: dict[str, tuple[dict[str, Any], list[Evaluation]]] = {}
    with cluster():
        for name, configs in points.items():
            with ready_pool(task, device, options, 1, deadlines=deadlines) as (pool, _):
                runs[name] = stretch(name, pool, template, configs)
    wrong, kinds = [], Counter[str]()
    for config, evaluation in zip(points["with"], runs["with"][1], strict=True):
        (outcome,) = evaluation.outcomes.values()
        what, right = KILLERS.get(int(config[KILLER]), ("healthy", ("measured",)))
        kinds[f"{what}: {outcome.kind}"] += 1
        if outcome.kind not in right:
            wrong.append({"config": config, "outcome": describe(outcome)})
    figures = {name: found for name, (found, _) in runs.items()}
    # An endless loop takes its deadline.
    waited = sum(config[KILLER] == 2 for config in points["with"]) * deadlines.run
    ratio = round((figures["with"]["seconds"] - waited) / figures["without"]["seconds"], 3)
    counts = {"points": len(plain), "killers": sum(bool(config[KILLER]) for config in points["with"])}
    seconds = {"seconds_of_deadlines": waited, "ratio_of_search": ratio}
    return {**counts, "outcomes": dict(kinds), "wrongly_typed": wrong, **seconds, "runs": figures}


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--killers", action="store_true")
    parser.add_argument("--compilers", type=int, default=0, help="compile processes; one a core if left out")
    parser.add_argument("--long", type=int, default=0, help="points of the longer stretch")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    device = min(probe().devices, key=lambda one: (one.backend != "cuda", one.limits.kind != "gpu"))
    options.long = options.long or (1500 if device.backend == "cuda" else 24)
    task, record = task_for(device), Record(options, device)
    if options.gpus:
        record.write(gpus=measure_gpus(task, device, options))
    if options.killers:
        record.write(killers=measure_killers(task, device, options))
    if not (options.gpus or options.killers):
        record.write(single=measure_single(task, device, options))
    print(record.path.read_text(encoding="utf-8"))
    return 0


if __name__ == "__main__":
    execute(main)
