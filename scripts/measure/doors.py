"""Measures what the rules gain over plain kernels: a draft of each, its template by rules, a search, and a comparison.

    python scripts/measure/doors.py --out FILE [--only a,b] [--evaluations 40] [--seconds 10] [--backend cuda|opencl]
    python scripts/measure/doors.py --write TASKS.json            # drafts and templates, where the parser is; no device
    python scripts/measure/doors.py --read TASKS.json --out FILE  # the rest, without the parser

The kernels are the sixteen plain ones of tests/kernels/rewrite, at sizes of tens of megabytes, and the plain baselines
of three production kernels, whose template by rules is also compared with the one of the library. FILE is written after
each kernel; a second call measures what is not there yet, unless `--again` is given. What goes wrong with one kernel is
its row, and the next goes on.

Neither Ray nor LangGraph is needed: compilers and the device have processes of their own here. The original kernel is
the reference, every configuration is checked against it before it is timed, the finalists also on an odd size.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal

ROOT = Path(__file__).resolve().parents[2]
# Found without an installation, also by the processes that are started from here.
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "kernels" / "rewrite")]
os.environ["PYTHONPATH"] = os.pathsep.join([*sys.path[:2], os.environ.get("PYTHONPATH", "")])

from tunesmith.actors.judging.builder import compile_all  # noqa: E402
from tunesmith.actors.judging.examiner import Examiner  # noqa: E402
from tunesmith.actors.judging.judge import lock_of, reason_of  # noqa: E402
from tunesmith.actors.judging.preparation import require_prepared  # noqa: E402
from tunesmith.actors.process.isolated import Isolated, preload  # noqa: E402
from tunesmith.actors.process.workers import CompileWorker  # noqa: E402
from tunesmith.hw.errors import TunesmithError  # noqa: E402
from tunesmith.hw.probe import Device, probe  # noqa: E402
from tunesmith.kernels.build.candidate import Candidate  # noqa: E402
from tunesmith.kernels.measure.bench import WorkloadComparison  # noqa: E402
from tunesmith.kernels.measure.timing import Comparison, Precision  # noqa: E402
from tunesmith.kernels.outcome import Measured, Outcome, WrongResult, describe  # noqa: E402
from tunesmith.kernels.rewrite.starts import starts  # noqa: E402
from tunesmith.kernels.search import make_strategy  # noqa: E402
from tunesmith.kernels.search.observation import Observation  # noqa: E402
from tunesmith.kernels.space.feasible import feasible, require_points  # noqa: E402
from tunesmith.kernels.spec.parameter import Config  # noqa: E402
from tunesmith.kernels.spec.task import BackendSources, Fill, Task, Workload  # noqa: E402
from tunesmith.kernels.spec.template import BackendName, Template  # noqa: E402

DeviceKind = Literal["gpu", "cpu"]
M = 1 << 20
LINE = ({"n": 8 * M}, {"n": 3 * M}, {"n": 100_003})
ROWS = ({"n": 4096, "rows": 4096}, {"n": 1024, "rows": 8192}, {"n": 1003, "rows": 33})
SIZES: dict[str, tuple[dict[str, int], ...]] = {
    **dict.fromkeys(("gelu", "add_relu", "stencil1d", "gather", "scatter", "histogram"), LINE),
    **dict.fromkeys(("row_sum", "softmax", "layernorm", "scale_rows"), ROWS),
    "transpose": ({"rows": 4096, "cols": 4096}, {"rows": 2048, "cols": 6144}, {"rows": 333, "cols": 517}),
    "stencil2d": ({"h": 4096, "w": 4096}, {"h": 2048, "w": 6144}, {"h": 333, "w": 517}),
    "matvec": ({"m": 8192, "n": 4096}, {"m": 16384, "n": 1024}, {"m": 333, "n": 517}),
    "dequantise": ({"n": 32 * M, "group": 128}, {"n": 8 * M, "group": 32}, {"n": 100_003, "group": 7}),
    "depthwise": ({"c": 1024, "n": 16384}, {"c": 4096, "n": 1024}, {"c": 33, "n": 517}),
    "matmul": ({"M": 1024, "N": 1024, "K": 1024}, {"M": 2048, "N": 1024, "K": 512}, {"M": 133, "N": 217, "K": 95}),
}
"""Two tuned sizes of tens of megabytes, and one that nothing divides, on which the finalists are checked."""
SMALL = {"n": 16384, "rows": 64, "cols": 300, "h": 128, "w": 300, "m": 500, "c": 20, "M": 96, "N": 80, "K": 64}
"""With `--small`: the largest of each size, to try the script."""
CONTENTS = {
    "gather": {"index": Fill(kind="uniform", mean=50_000, scale=49_999)},
    "scatter": {"index": Fill(kind="uniform", mean=50_000, scale=49_999)},
    "histogram": {"data": Fill(kind="uniform", mean=49, scale=49)},
}
"""What arrays of indices hold: places that exist at every size."""
PRODUCTION = ("silu_and_mul", "fused_add_rmsnorm", "merge_attn_states")
SEARCH = Precision(target=0.02, max_samples=20, budget_seconds=0.05)
DEADLINE = 30.0
ROUNDS, COMPARE_SECONDS = 12, 0.25
FINALISTS = 2


@dataclass(frozen=True)
class Finalist:
    """A configuration, compiled, and its time over the baseline's in the search."""

    candidate: Candidate
    value: float


def corpus() -> Iterator[tuple[str, Task]]:
    """The plain kernels, drafted, with sizes in the place of the draft's questions."""
    from plain_kernels import KERNELS, drafted  # type: ignore[import-not-found]

    for name in KERNELS:
        with tempfile.TemporaryDirectory() as folder:
            task, _ = drafted(name, Path(folder))
        fills = CONTENTS.get(name, {})
        arguments = [
            one.model_copy(update={"fill": fills[one.name]}) if one.name in fills else one for one in task.arguments
        ]
        workloads = [
            Workload(
                name=" ".join(f"{key}={value}" for key, value in sizes.items()), sizes=sizes, types={}, held_out=at == 2
            )
            for at, sizes in enumerate(SIZES[name])
        ]
        changes: dict[str, object] = {"arguments": tuple(arguments), "workloads": tuple(workloads), "reference": ""}
        changes |= {"reference_name": "baseline", "tolerance": {}}
        yield name, task.model_copy(update=changes)


def production(backend: BackendName, kind: DeviceKind) -> Iterator[tuple[str, Task]]:
    """The library's, with three tuned workloads and one that is held out, without their templates."""
    from tunesmith.kernels.spec.files.taskfile import load_task

    for name in PRODUCTION:
        task = load_task(name)
        tuned = sorted(task.workloads_for(kind, held_out=False), key=task.bytes_of)
        chosen = [tuned[0], tuned[len(tuned) // 2], tuned[-1]]
        odd = min(task.workloads_for(kind, held_out=True), key=task.bytes_of)
        sources = task.backends[backend]
        bare: dict[BackendName, BackendSources] = {
            **task.backends,
            backend: sources.model_copy(update={"templates": ()}),
        }
        yield name, task.model_copy(update={"workloads": (*chosen, odd), "backends": bare})


def with_templates(tasks: Iterator[tuple[str, Task]], backend: BackendName) -> dict[str, dict[str, Any]]:
    """Each task with its template by rules, and why rules did not apply, as JSON."""
    from tunesmith.kernels.rewrite.template import with_rules

    found = {}
    for name, task in tasks:
        ready, why = with_rules(task, backend)
        found[name] = {"task": ready.model_dump(mode="json"), "not_applied": list(why)}
    return found


class Shop:
    """Compilers that several kernels use one after another."""

    def __init__(self, device: Device, count: int, stack: ExitStack) -> None:
        self._idle: SimpleQueue[Isolated] = SimpleQueue()
        for _ in range(count):
            self._idle.put(stack.enter_context(Isolated("compile", CompileWorker, device.limits, device.index)))
        self._threads = stack.enter_context(ThreadPoolExecutor(count))
        self.count = count

    def compile(self, template: Template, config: Config, workloads: Sequence[Workload]) -> Future[Candidate | Outcome]:
        def work() -> Candidate | Outcome:
            compiler = self._idle.get()
            try:
                return compile_all(compiler, template, config, workloads, DEADLINE)
            finally:
                self._idle.put(compiler)

        return self._threads.submit(work)


class Measuring:
    """One task on the device: its baseline, searches of templates, and comparisons."""

    def __init__(self, task: Task, device: Device, shop: Shop, examiner: Isolated, seconds: float) -> None:
        self.task, self.device, self.shop, self.examiner = task, device, shop, examiner
        kind = device.limits.kind
        self.tuned = [one for one in task.workloads if not one.held_out and kind in one.devices]
        self.odd = [one for one in task.workloads if one.held_out and kind in one.devices]
        self.started, self.span = time.monotonic(), seconds
        self.failures: Counter[str] = Counter()
        self.wrong: list[dict[str, Any]] = []
        for workload in task.workloads:
            require_prepared(task, workload.name, examiner.call("prepare", 60.0, workload.name))
        made = shop.compile(task.sources(device.backend).baseline.template, {}, task.workloads).result()
        if not isinstance(made, Candidate):
            raise TunesmithError(f"The baseline does not compile: {describe(made)}.")
        self.baseline = made
        self.seconds = {one.name: self._time(made, one).seconds for one in self.tuned}

    def _time(self, candidate: Candidate, workload: Workload) -> Measured:
        outcome = self.examiner.call("visit", DEADLINE, candidate, workload.name, SEARCH)
        if not isinstance(outcome, Measured):
            raise TunesmithError(f"The baseline is not right on {workload.name}: {describe(outcome)}.")
        return outcome

    def search(self, template: Template, evaluations: int, until: float) -> tuple[list[Finalist], int, int]:
        """The best configurations, the best first, how many were tried, and the points of the space."""
        space = feasible(template, self.task.workloads, self.device.limits)
        require_points(space, template)
        first = starts(template, self._limit(), lambda config: space.reject(config) is None)
        seeds = [template.default_config, *first]
        strategy = make_strategy("default", space, seed=0, budget=evaluations, workers=self.shop.count, seeds=seeds)
        found, asked = list[Finalist](), 0
        waiting: dict[Future[Candidate | Outcome], Config] = {}
        while True:
            while len(waiting) < 2 * self.shop.count and asked < evaluations and time.monotonic() < until:
                config = strategy.ask()
                if config is None:
                    break
                asked += 1
                waiting[self.shop.compile(template, config, self.task.workloads)] = config
            if not waiting:
                return sorted(found, key=lambda one: one.value), asked, len(space)
            done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for one in done:
                config, made = waiting.pop(one), one.result()
                outcome = self._visited(made) if isinstance(made, Candidate) else made
                if isinstance(made, Candidate) and isinstance(outcome, float):
                    found.append(Finalist(made, outcome))
                    strategy.tell(config, Observation(outcome))
                else:
                    self._failed(outcome, config)
                    strategy.tell(config, Observation(None, failure="failed"))

    def until(self, share: float) -> float:
        """When a search ends that may take `share` of the time, with what was before it; it has half of that anyway."""
        return max(time.monotonic() + share / 2 * self.span, self.started + share * self.span)

    def _limit(self) -> Any:
        work = [(self.task.flops_of(one), self.task.bytes_of(one)) for one in self.tuned]
        return "compute" if all(flops and flops > 40 * size for flops, size in work) else "memory"

    def _visited(self, candidate: Candidate) -> float | Outcome:
        logarithms = list[float]()
        for workload in self.tuned:
            outcome = self.examiner.call("visit", DEADLINE, candidate, workload.name, SEARCH)
            if not isinstance(outcome, Measured):
                return outcome  # type: ignore[no-any-return]
            logarithms.append(math.log(outcome.seconds / self.seconds[workload.name]))
        return math.exp(sum(logarithms) / len(logarithms))

    def _failed(self, outcome: Any, config: Config, where: str = "") -> None:
        self.failures[reason_of(outcome)] += 1
        if getattr(outcome, "sticky", False):
            # The process can no longer use the device; the next call starts another.
            self.examiner.end()
        if isinstance(outcome, WrongResult):
            self.wrong.append({"config": config, "workload": where, "detail": describe(outcome)[:300]})

    def right(self, candidate: Candidate) -> bool:
        """Whether it is right on the sizes that nothing divides."""
        for workload in self.odd:
            outcome = self.examiner.call("visit", DEADLINE, candidate, workload.name, SEARCH)
            if not isinstance(outcome, Measured):
                self._failed(outcome, candidate.config, workload.name)
                return False
        return True

    def compare(self, candidate: Candidate, opponent: Candidate) -> list[dict[str, Any]]:
        """How many times faster `candidate` is than `opponent`, by workload."""
        rows = []
        for workload in self.tuned:
            compared = self.examiner.call(
                "compare", DEADLINE, opponent, candidate, workload.name, ROUNDS, COMPARE_SECONDS, 0.0
            )
            result = compared.results[0] if isinstance(compared, WorkloadComparison) else compared
            row: dict[str, Any] = {"workload": workload.name}
            if isinstance(result, Comparison):
                row |= {"speedup": 1 / result.ratio, "low": 1 / result.high, "high": 1 / result.low}
                row |= {"verdict": result.verdict, "microseconds": result.candidate.median * 1e6}
                row["opponent_microseconds"] = result.baseline.median * 1e6
            else:
                self._failed(result, candidate.config, workload.name)
                row["failure"] = {"reason": reason_of(result), "detail": describe(result)[:300]}
            rows.append(row)
        return rows


def general(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The geometric means over the workloads, and what they show together."""
    if any("failure" in row for row in rows):
        return {"verdict": "failed"}
    means = {key: math.exp(sum(math.log(row[key]) for row in rows) / len(rows)) for key in ("speedup", "low", "high")}
    verdict = "faster" if means["low"] > 1 else "slower" if means["high"] < 1 else "no difference shown"
    return {**means, "verdict": verdict}


def measured(name: str, given: dict[str, Any], device: Device, shop: Shop, options: Any) -> dict[str, Any]:
    """The row of one kernel."""
    started, row = time.monotonic(), {"kernel": name, "not_applied": given["not_applied"]}
    task = Task.model_validate(given["task"])
    if options.small:
        task = smaller(task)
    sources = task.sources(device.backend)
    if not sources.templates:
        return {**row, "error": {"type": "NoTemplate", "detail": "; ".join(given["not_applied"])}}
    (template,) = sources.templates
    row["rewrites"] = [one.name for one in template.parameters]
    library = [one for one in library_templates(name, device.backend) if one.runs_on(capability(device))]
    with Isolated("run", Examiner, task, device.limits, device.index, 0) as examiner, lock_of(examiner):
        one = Measuring(task, device, shop, examiner, options.seconds * (2 if library else 1))
        best, asked, points = one.search(template, options.evaluations, one.until(0.4 if library else 0.75))
        row |= {"points": points, "evaluations": asked}
        finalists = [made for made in best[:FINALISTS] if one.right(made.candidate)]
        if not finalists:
            raise TunesmithError("No configuration is right on all sizes.")
        compared = [(one.compare(made.candidate, one.baseline), made) for made in finalists]
        chosen = max(compared, key=lambda both: general(both[0]).get("speedup", 0.0))
        row |= {"general": general(chosen[0]), "workloads": chosen[0], "config": chosen[1].candidate.config}
        if library:
            rivals, tried, _ = one.search(library[0], options.evaluations, one.until(0.75))
            beside = one.compare(chosen[1].candidate, rivals[0].candidate)
            row["library"] = {
                "evaluations": tried,
                "config": rivals[0].candidate.config,
                "general": general(beside),
                "workloads": beside,
            }
    row |= {"failures": dict(one.failures), "wrong": one.wrong, "seconds": round(time.monotonic() - started, 1)}
    return row


def library_templates(name: str, backend: BackendName) -> tuple[Template, ...]:
    from tunesmith.kernels.spec.files.taskfile import load_task

    return load_task(name).sources(backend).templates if name in PRODUCTION else ()


def capability(device: Device) -> dict[str, int]:
    """What templates ask of the device."""
    found = device.limits.arch.removeprefix("sm_").rstrip("a") if device.backend == "cuda" else "0"
    return {"compute_capability": int(found) if found.isdigit() else 0}


def smaller(task: Task) -> Task:
    """The task at sizes for a try."""
    workloads = []
    for at, one in enumerate(task.workloads):
        sizes = {key: min(value, SMALL.get(key, value)) for key, value in one.sizes.items()}
        workloads.append(one.model_copy(update={"sizes": sizes, "name": f"{one.name} small {at}"}))
    return task.model_copy(update={"workloads": tuple(workloads)})


def error_row(name: str, error: Exception) -> dict[str, Any]:
    return {"kernel": name, "error": {"type": type(error).__name__, "detail": str(error)[-600:]}}


def told(row: dict[str, Any]) -> str:
    """A row for people."""
    if "error" in row:
        return f"{row['kernel']}: {row['error']['type']}: {row['error']['detail'][:300]}"
    shown = [f"{row['kernel']}:", row["general"]["verdict"]]
    if "speedup" in row["general"]:
        shown.append("{speedup:.2f}x ({low:.2f} - {high:.2f})".format(**row["general"]))
    if "library" in row and "speedup" in row["library"]["general"]:
        shown.append("of the library's: {speedup:.3f} ({low:.3f} - {high:.3f})".format(**row["library"]["general"]))
    shown.append(f"{row['evaluations']} of {row['points']} points, failures {row['failures'] or 'none'}")
    changed = {key: value for key, value in row["config"].items() if value not in (0, 1, False)}
    return " ".join([*shown, f"{row['seconds']} s", str(changed)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="", help="kernels, with commas between")
    parser.add_argument("--evaluations", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=10.0, help="for one kernel, about")
    parser.add_argument("--backend", choices=("cuda", "opencl"), default="cuda")
    parser.add_argument("--compilers", type=int, default=max(1, min(10, (os.cpu_count() or 2) - 2)))
    parser.add_argument("--write", type=Path, help="write the tasks with their templates here, and end")
    parser.add_argument("--read", type=Path, help="tasks that were written with --write")
    parser.add_argument("--small", action="store_true", help="small sizes, to try this program")
    parser.add_argument("--again", action="store_true", help="measure what is in FILE already, too")
    parser.add_argument("--commit", default=os.environ.get("COMMIT", "unknown"), help="what is measured")
    options = parser.parse_args()
    kind: DeviceKind = "gpu" if options.backend == "cuda" else "cpu"
    if options.read is not None:
        tasks = json.loads(options.read.read_text("utf-8"))
    else:
        tasks = {} if options.backend == "opencl" else with_templates(corpus(), "cuda")
        tasks |= with_templates(production(options.backend, kind), options.backend)
    if options.write is not None:
        options.write.write_text(json.dumps(tasks) + "\n", encoding="utf-8")
        return 0
    if options.out is None:
        parser.error("--out is needed")
    chosen = [name for name in tasks if not options.only or name in options.only.split(",")]
    device = probe().device(options.backend)
    preload(device.backend)
    rows: dict[str, dict[str, Any]] = {}
    if options.out.exists() and not options.again:
        rows = {row["kernel"]: row for row in json.loads(options.out.read_text("utf-8"))["kernels"]}
    origin = {"command": "python " + shlex.join(sys.argv), "commit": options.commit, "device": device.name}
    with ExitStack() as stack:
        shop = Shop(device, options.compilers, stack)
        for name in chosen:
            if "general" in rows.get(name, {}):
                continue
            try:
                rows[name] = measured(name, tasks[name], device, shop, options)
            except Exception as error:  # noqa: BLE001 - what goes wrong with one kernel is its row
                rows[name] = error_row(name, error)
            print(told(rows[name]), flush=True)
            found = sorted(row["general"]["speedup"] for row in rows.values() if "speedup" in row.get("general", {}))
            median = found[len(found) // 2] if found else None
            content = {**origin, "median_speedup": median, "kernels": list(rows.values())}
            part = options.out.with_suffix(".part")
            part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
            part.replace(options.out)
    print(f"median speed-up of {len(found)}: {median}" if chosen and rows else "nothing to measure", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
