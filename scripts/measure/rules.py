"""What the rules make of plain kernels: a short search of each one's template on a GPU, without cluster and verdict.

    python scripts/measure/rules.py --out FILE --tasks FOLDER/a,FOLDER/b [--seconds 12] [--without]

For each task: the starts of its template (or of its own, where it has one), then the strategy `local`, until
`--seconds` are over; then the winner beside the plain kernel, interleaved, on the first and the last tuned workload,
and with `--without` the winner with one parameter after the other at its default. Several GPUs: a call each, with
CUDA_VISIBLE_DEVICES. A faulting kernel ends the process; called again, it goes on behind that task.
"""

from __future__ import annotations

import math
import queue
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

from tunesmith.actors.judging.judge import compile_all
from tunesmith.actors.process import Isolated
from tunesmith.actors.workers import CompileWorker, Deadlines
from tunesmith.cli.measure.runner import Record, execute, parser_of
from tunesmith.hw.probe import probe
from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.backends import open_compiler
from tunesmith.kernels.build.artifact import Candidate
from tunesmith.kernels.measure.bench import Bench, ComparisonRequest
from tunesmith.kernels.measure.roofs import compile_probes
from tunesmith.kernels.measure.timing import Comparison, Precision
from tunesmith.kernels.outcome import Measured, Outcome, describe
from tunesmith.kernels.rewrite.template import rewrite, starts
from tunesmith.kernels.search import Observation, Strategy, make_strategy
from tunesmith.kernels.space import feasible
from tunesmith.kernels.spec.task import Task, Workload
from tunesmith.kernels.spec.taskfile import load_task
from tunesmith.kernels.spec.template import Config, Template

PRECISION = Precision(target=0.02, budget_seconds=0.05)
SPEEDUPS = {"gain": "ratio", "low": "high", "high": "low"}
"""The speed-up and its interval, by what of a `Comparison` tells each."""
BATCH = 16
"""Points that are compiled at once, and measured one after the other."""


def compiled(
    idle: queue.Queue[Isolated],
    task: Task,
    workloads: Sequence[Workload],
    template: Template,
    configs: Sequence[Config],
) -> list[Candidate | Outcome]:
    """A template at each of `configs`, or why not, by as many compilers at a time as are `idle`."""

    def one(config: Config) -> Candidate | Outcome:
        compiler = idle.get()
        try:
            return compile_all([compiler], task, template, config, workloads, Deadlines().compile)
        finally:
            idle.put(compiler)

    with ThreadPoolExecutor(idle.qsize()) as threads:
        return list(threads.map(one, configs))


def search(
    strategy: Strategy,
    compile_configs: Callable[[list[Config]], list[Candidate | Outcome]],
    bench: Bench,
    names: Sequence[str],
    until: float,
) -> list[str]:
    """Measures the configurations that `strategy` asks for, by the geometric mean of their times on the workloads
    `names`, and gives the failures."""
    failures = list[str]()
    while configs := [config for config in (strategy.ask() for _ in range(BATCH)) if config is not None]:
        for config, kernel in zip(configs, compile_configs(configs), strict=True):
            if time.monotonic() > until and strategy.best is not None:
                return failures
            found = list(bench.visit(kernel, names, PRECISION).values() if isinstance(kernel, Candidate) else [kernel])
            times = [one.seconds for one in found if isinstance(one, Measured)]
            right = len(times) == len(names)
            failures += [] if right else [describe(found[-1])[:300]]
            mean = math.prod(times) ** (1 / len(names))
            strategy.tell(config, Observation(mean) if right else Observation(None, failure=found[-1].kind))
    return failures


def measured(task: Task, bench: Bench, idle: queue.Queue[Isolated], roofs: Roofline, options: Namespace) -> Any:
    """The row of a task: its gain, the winner, and the gain without each of the winner's parameters."""
    made, own, begun = rewrite(task, "cuda"), task.sources("cuda").templates, time.monotonic()
    template = own[0] if own else made.template
    if template is None:
        return {"error": "; ".join(made.skipped)}
    tuned = [workload for workload in task.workloads if not workload.held_out]
    workloads = list({one.name: one for one in (tuned[0], tuned[-1])}.values())
    names = [workload.name for workload in workloads]
    bench.prepare(names)
    compile_configs = partial(compiled, idle, task, workloads)
    [plain] = compile_configs(task.sources("cuda").baseline.template, [{}])
    if not isinstance(plain, Candidate):
        return {"error": f"the plain kernel cannot be compiled: {describe(plain)[:300]}"}
    moved, flops, dtype = task.work_of(tuned[-1])
    limit: Any = roofs.bound(moved, flops, dtype or "float32")
    space = feasible(template, workloads, bench.limits)
    first = starts(template, limit, lambda config: space.index(config) is not None)
    strategy = make_strategy("local", space, seed=0, seeds=[template.default_config, *first])
    failures = search(strategy, partial(compile_configs, template), bench, names, begun + options.seconds)
    if strategy.best is None:
        return {"error": "no point was right", "failures": failures[:3]}
    default, best = template.default_config, space.config(strategy.best[0])
    others = [{**best, name: value} for name, value in default.items() if value != best[name] and options.without]
    compared = [best, *(one for one in others if space.index(one) is not None)]
    candidates: list[Any] = compile_configs(template, compared)
    rows = [bench.compare(ComparisonRequest(plain, candidates, name, 24, 1.0)).results for name in names]
    gains = [[one.ratio if isinstance(one, Comparison) else math.nan for one in row] for row in rows]
    means = [math.prod(row[at] for row in gains) ** (-1 / len(gains)) for at in range(len(compared))]
    times = {}
    for workload, row in zip(workloads, rows, strict=True):
        if isinstance(it := row[0], Comparison):
            floor = roofs.floor_seconds(*task.work_of(workload)) or 0.0
            speedups = {name: round(1 / getattr(it, of), 4) for name, of in SPEEDUPS.items()}
            taken = {"us": it.candidate.median, "plain_us": it.baseline.median, "floor_us": floor}
            times[workload.name] = speedups | {name: round(one * 1e6, 3) for name, one in taken.items()}
    alone = {}
    for config, gain in zip(compared[1:], means[1:], strict=True):
        alone[next(f"{name}={value}" for name, value in config.items() if value != best[name])] = round(gain, 3)
    counts = {"evaluated": len(strategy.known) - len(failures), "failed": len(failures)}
    ended = {"failures": sorted(set(failures))[:3], "seconds": round(time.monotonic() - begun, 1)}
    found = {"gain": round(means[0], 3), "config": best, **counts, **ended}
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
    idle, roofs = queue.Queue[Isolated](), None
    with ExitStack() as stack:
        for _ in range(options.compilers):
            idle.put(stack.enter_context(Isolated("compile", CompileWorker, device.limits, device.index)))
        for name in options.tasks.split(","):
            if name in rows:
                continue
            rows[name] = {"task": name, "error": "the process ended in it"}
            record.write(kernels=list(rows.values()))
            task = load_task(name)
            bench = Bench(task, device.limits, device.index)
            roofs = roofs or bench.calibrate(compile_probes(open_compiler(device.limits), "cuda"))
            row = measured(task, bench, idle, roofs, options)
            bench.release()
            rows[name] = {"task": name, **row}
            record.write(kernels=list(rows.values()))
            print(*(row.get(key) for key in ("gain", "error", "config", "times", "without")), name, flush=True)
    return 0


if __name__ == "__main__":
    execute(main)
