"""What the rules make of plain kernels: a short search of each one's template on a GPU, without cluster and verdict.

    python scripts/measure/rules.py --out FILE --tasks FOLDER/a,FOLDER/b [--seconds 12] [--without]

For each task: the starts of its template (or of its own, where it has one), random points, then single changes of the
best, until `--seconds` are over; then the winner beside the plain kernel, interleaved, on the first and the last tuned
workload, and with `--without` the winner with one parameter after the other at its default. Several GPUs: a call each,
with CUDA_VISIBLE_DEVICES. A faulting kernel ends the process; called again, it goes on behind that task.
"""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np

from tunesmith.cli.measure.runner import Record, execute, parser_of
from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.probe import probe
from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.backends import Compiler, open_compiler
from tunesmith.kernels.build.artifact import Artifact, Candidate
from tunesmith.kernels.build.source import Specialised, code_key, specialise
from tunesmith.kernels.measure.bench import Bench, ComparisonRequest
from tunesmith.kernels.measure.roofs import compile_probes
from tunesmith.kernels.measure.timing import Comparison, Precision
from tunesmith.kernels.outcome import Measured
from tunesmith.kernels.rewrite.template import rewrite, starts
from tunesmith.kernels.space import feasible
from tunesmith.kernels.spec.task import Task
from tunesmith.kernels.spec.taskfile import load_task
from tunesmith.kernels.spec.template import Config, Template, config_key

PRECISION = Precision(target=0.02, budget_seconds=0.05)
SPEEDUPS = {"gain": "ratio", "low": "high", "high": "low"}
"""The speed-up and its interval, by what of a `Comparison` tells each."""
BATCH = 16
"""Points that are compiled at once, and measured one after the other."""
_compiler: Compiler


def _open(limits: DeviceLimits) -> None:
    global _compiler
    _compiler = open_compiler(limits)


def _compile(source: Specialised) -> Any:
    return _compiler.compile(source)


class Search:
    """The search of one task's template; `best` is the fastest configuration, `times` its seconds by workload."""

    def __init__(self, task: Task, template: Template, bench: Bench, pool: ProcessPoolExecutor) -> None:
        self.task, self.template, self.bench, self.pool = task, template, bench, pool
        tuned = [workload for workload in task.workloads if not workload.held_out]
        self.workloads = [tuned[0]] if len(tuned) == 1 else [tuned[0], tuned[-1]]
        self.names = [workload.name for workload in self.workloads]
        self.seen: dict[str, float] = {}
        self.failed: dict[str, str] = {}
        self.best: Config | None = None

    def candidates(self, template: Template, configs: list[Config]) -> list[Candidate | str]:
        keys = list(dict.fromkeys(code_key(self.task, template, workload) for workload in self.workloads))
        futures = [
            [self.pool.submit(_compile, specialise(template, config, dict(key))) for key in keys] for config in configs
        ]
        made = [dict(zip(keys, (future.result() for future in row), strict=True)) for row in futures]
        return [
            Candidate(template, config, found)
            if all(isinstance(one, Artifact) for one in found.values())
            else str(next(one for one in found.values() if not isinstance(one, Artifact)))
            for config, found in zip(configs, made, strict=True)
        ]

    def new(self, configs: list[Config]) -> list[Config]:
        """The configurations that were not measured yet."""
        return [one for one in configs if config_key(one) not in {**self.seen, **self.failed}]

    def measure(self, configs: list[Config], until: float) -> None:
        """Measures new configurations in order, and notes the best by the product of its times."""
        fresh = self.new(configs)
        for config, candidate in zip(fresh, self.candidates(self.template, fresh), strict=True):
            if time.monotonic() > until and self.best is not None:
                return
            if isinstance(candidate, str):
                self.failed[config_key(config)] = candidate
                continue
            found = self.bench.visit(candidate, self.names, PRECISION)
            times = [one.seconds for one in found.values() if isinstance(one, Measured)]
            if len(times) < len(self.names):
                self.failed[config_key(config)] = str(list(found.values())[-1])[:300]
                continue
            value = sum(math.log(one) for one in times)
            if self.best is None or value < self.seen[config_key(self.best)]:
                self.best = config
            self.seen[config_key(config)] = value

    def batches(self, first: list[Config], limits: DeviceLimits, rng: np.random.Generator) -> Iterator[list[Config]]:
        """The starts, 48 random points, then single changes of the best until none is new."""
        space = feasible(self.template, self.workloads, limits)
        drawn = [space.config(point) for point in space.sample(rng, 48)]
        order = [*first, *drawn]
        yield from (order[at : at + BATCH] for at in range(0, len(order), BATCH))
        while self.best is not None and (point := space.index(self.best)) is not None:
            if not (fresh := self.new([space.config(one) for one in space.neighbours(point)])):
                return
            yield [fresh[at] for at in rng.permutation(len(fresh))[:BATCH]]


def measured(
    task: Task, bench: Bench, pool: ProcessPoolExecutor, roofs: Roofline, seconds: float, without: bool
) -> dict[str, Any]:
    """The row of a task: its gain, the winner, and the gain without each of the winner's parameters."""
    made, own = rewrite(task, "cuda"), task.sources("cuda").templates
    template = own[0] if own else made.template
    if template is None:
        return {"error": "; ".join(made.skipped)}
    search = Search(task, template, bench, pool)
    bench.prepare(search.names)
    plain_template = task.sources("cuda").baseline.template
    [plain] = search.candidates(plain_template, [plain_template.default_config])
    if isinstance(plain, str):
        return {"error": f"the plain kernel does not compile: {plain[:300]}"}
    begun = time.monotonic()
    last = search.workloads[-1]
    limit: Any = roofs.bound(task.bytes_of(last), task.flops_of(last), task.arithmetic or "float32")
    space = feasible(template, search.workloads, bench.limits)
    first = list(starts(template, limit, lambda config: space.index(config) is not None))
    for configs in search.batches([template.default_config, *first], bench.limits, np.random.default_rng(0)):
        search.measure(configs, begun + seconds)
        if time.monotonic() > begun + seconds:
            break
    if search.best is None:
        return {"error": "no point was right", "failures": list(search.failed.values())[:3]}
    compared = [search.best]
    default = template.default_config
    changed = [name for name, value in search.best.items() if value != default[name]]
    if without:
        compared += [one for name in changed if space.index(one := {**search.best, name: default[name]}) is not None]
    candidates: list[Any] = search.candidates(template, compared)
    rows = [bench.compare(ComparisonRequest(plain, candidates, name, 24, 1.0)).results for name in search.names]
    gains = [[one.ratio if isinstance(one, Comparison) else math.nan for one in row] for row in rows]
    means = [math.exp(-sum(math.log(row[at]) for row in gains) / len(gains)) for at in range(len(compared))]
    times = {}
    for workload, row in zip(search.workloads, rows, strict=True):
        if isinstance(best := row[0], Comparison):
            floor = roofs.floor_seconds(*task.work_of(workload)) or 0.0
            speedups = {name: round(1 / getattr(best, of), 4) for name, of in SPEEDUPS.items()}
            taken = {"us": best.candidate.median, "plain_us": best.baseline.median, "floor_us": floor}
            times[workload.name] = speedups | {name: round(one * 1e6, 3) for name, one in taken.items()}
    alone = {}
    for config, gain in zip(compared[1:], means[1:], strict=True):
        changes = (f"{name}={value}" for name, value in config.items() if value != search.best[name])
        alone[next(changes)] = round(gain, 3)
    counts = {"evaluated": len(search.seen), "failed": len(search.failed)}
    ended = {"failures": sorted(set(search.failed.values()))[:3], "seconds": round(time.monotonic() - begun, 1)}
    found = {"gain": round(means[0], 3), "config": search.best, **counts, **ended}
    return {**found, "times": times, "without": alone, "refused": dict(made.refused)}


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--tasks", required=True, help="folders or names of tasks, with commas between")
    parser.add_argument("--seconds", type=float, default=12, help="of a search")
    parser.add_argument("--without", action="store_true", help="also the winner without each of its changes")
    parser.add_argument("--compilers", type=int, default=12, help="processes that compile")
    options = parser.parse_args()
    device = probe().device("cuda")
    record = Record(options, device)
    rows: dict[str, Mapping[str, Any]] = {**record.former("kernels", "task")}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.compilers, context, initializer=_open, initargs=(device.limits,)) as pool:
        roofs: Roofline | None = None
        for name in options.tasks.split(","):
            if name in rows:
                continue
            rows[name] = {"task": name, "error": "the process ended in it"}
            record.write(kernels=list(rows.values()))
            task = load_task(name)
            bench = Bench(task, device.limits, device.index)
            roofs = roofs or bench.calibrate(compile_probes(open_compiler(device.limits), "cuda"))
            row = measured(task, bench, pool, roofs, options.seconds, options.without)
            bench.release()
            rows[name] = {"task": name, **row}
            record.write(kernels=list(rows.values()))
            print(*(row.get(key) for key in ("gain", "error", "config", "times", "without")), name, flush=True)
    return 0


if __name__ == "__main__":
    execute(main)
