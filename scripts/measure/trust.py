"""Measures on a GPU whether verdicts and times hold, in one process without a cluster.

    python scripts/measure/trust.py --out FOLDER [--parts same,planted,agreement] [--kernels short|all]

Parts: `same` compares kernels with themselves, `planted` with a kernel that moves 2 % more bytes, and `agreement`
compares our times with those of a plain captured graph and of Nsight Compute.
"""

from __future__ import annotations

import csv
import itertools
import json
import os
import pickle
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from tunesmith.cli.measure.runner import Record, execute, parser_of
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.probe import DeviceInfo, probe
from tunesmith.kernels.backends import open_compiler, open_device
from tunesmith.kernels.build.artifact import Artifact, Candidate, types_key
from tunesmith.kernels.build.source import specialise
from tunesmith.kernels.check.trial import bind
from tunesmith.kernels.launch.buffers import WorkloadData
from tunesmith.kernels.measure.bench import Bench, ComparisonRequest
from tunesmith.kernels.measure.timing import Comparison, Precision
from tunesmith.kernels.outcome import Measured, describe
from tunesmith.kernels.spec.task import Task, Workload
from tunesmith.kernels.spec.taskfile import library_tasks, load_task
from tunesmith.kernels.spec.template import Template

SHORT = (("silu_and_mul", "64x8192"), ("merge_attn_states", "512x64x128"))
SAME = (*SHORT, ("fused_add_rmsnorm", "2048x8192"), ("silu_and_mul", "4096x11008"))
"""Two kernels of 2 to 20 us and two longer ones, on an H200."""
PLANTED = Workload(name="32768x2048", sizes={"n": 32768, "d": 2048}, types={"T": "float16"})
"""Of silu_and_mul: about 100 us on an H200, in so many blocks that 2 % more of them are 2 % more time."""
ROUNDS, SECONDS = 40, 0.5
NCU_LAUNCHES = 9
"""Launches of a kernel that count, after a launch on each set of buffers, so that data are gone from the cache."""
COUNTS, GRAPH = "launches.json", "graph.json"
GRAPH_SECONDS, GRAPH_REPEATS = 0.01, 9
"""How long a plain captured graph takes, about, and how often it is replayed."""
METRIC = "gpu__time_duration.sum"
PLACES = ("/usr/local/cuda/bin", "/opt/nvidia/nsight-compute")
FINE = Precision(target=0.002, max_samples=200, budget_seconds=1.0)


def compiled(compiler: Any, task: Task, template: Template, workload: str) -> Candidate:
    """The default configuration for the types of one workload."""
    types, config = task.workload(workload).types, template.default_config
    artifact = compiler.compile(specialise(template, config, types))
    if not isinstance(artifact, Artifact):
        raise TunesmithError(f"{task.name} {template.name} does not compile: {artifact}.")
    return Candidate(template, config, {types_key(task.workload(workload)): artifact})


def compare_often(
    bench: Bench, candidate: Candidate, baseline: Candidate, workload: str, count: int, first_seed: int
) -> dict[str, Any]:
    """`count` comparisons, each with its own order of launches: what they found in all."""
    found = list[Comparison]()
    for number in range(count):
        bench.seed = first_seed + number
        (result,) = bench.compare(ComparisonRequest(baseline, [candidate], workload, ROUNDS, SECONDS)).results
        if not isinstance(result, Comparison):
            raise TunesmithError(f"{workload} was not compared: {result}.")
        found.append(result)
    widths = sorted(one.half_width for one in found)
    return {
        "workload": workload,
        "seconds": statistics.median(one.baseline.median for one in found),
        "comparisons": count,
        "called_different": sum(one.verdict != "no difference shown" for one in found),
        "called_slower": sum(one.verdict == "slower" for one in found),
        "half_width_median": statistics.median(widths),
        "half_width_p95": widths[int(0.95 * len(widths))],
        "ratios": [one.ratio for one in found],
    }


def same(compiler: Any, device: DeviceInfo, count: int) -> dict[str, Any]:
    """A kernel against itself: how often is it called different, and how wide are the intervals?"""
    rows = list[dict[str, Any]]()
    for name, workload in SAME:
        task = load_task(name)
        candidate = compiled(compiler, task, task.sources("cuda").templates[0], workload)
        bench = Bench(task, device.limits, device.index)
        found = compare_often(bench, candidate, candidate, workload, count // len(SAME), 1000 * len(rows))
        rows.append({"task": name, "half_width_allowed": 0.02 if (name, workload) in SHORT else 0.005, **found})
        _show("same (at most 5 % may be called different)", rows[-1])
    return {"rows": rows}


def planted(compiler: Any, device: DeviceInfo, count: int) -> dict[str, Any]:
    """A kernel that does every fiftieth row twice, long after the first time, against the one that does not."""
    task = load_task("silu_and_mul")
    task = task.model_copy(update={"workloads": (*task.workloads, PLANTED)})
    plain = task.sources("cuda").baseline.template
    source = plain.source.replace("const long long row = blockIdx.x;", "const long long row = blockIdx.x % n;")
    if source == plain.source:
        raise TunesmithError("The baseline of silu_and_mul has changed: adapt `planted` in scripts/measure/trust.py.")
    usual = Template.model_validate({**plain.model_dump(), "source": source})
    slower = usual.model_copy(update={"launch": usual.launch.model_copy(update={"grid": ("n + n // 50",)})})
    bench = Bench(task, device.limits, device.index)
    first, second = (compiled(compiler, task, one, PLANTED.name) for one in (usual, slower))
    found = compare_often(bench, second, first, PLANTED.name, count, 50_000)
    _show("planted (wanted: 95 % called slower)", found)
    return found


def _show(part: str, row: dict[str, Any]) -> None:
    shown = {
        key: value if isinstance(value, str) else float(f"{value:.4g}") for key, value in row.items() if key != "ratios"
    }
    print(f"{part}:", shown, flush=True)


def agreement(compiler: Any, device: DeviceInfo, out: Path, which: str) -> dict[str, Any]:
    """Our cold time, of many samples and of a search's few, for the same machine code beside that of a plain captured
    graph and of Nsight Compute, on the two smallest shapes of each task of the library, or the largest too."""
    jobs, rows = [], list[dict[str, Any]]()
    tasks = [task for task in map(load_task, library_tasks()) if "cuda" in task.backends]
    for task in tasks:
        shapes = sorted(task.workloads_for("gpu", held_out=False), key=task.bytes_of)
        bench, sources = Bench(task, device.limits, device.index), task.sources("cuda")
        kernels = {"baseline": sources.baseline.template, "template": sources.templates[0]}
        for shape in shapes[:2] + (shapes[2:][-1:] if which == "all" else []):
            for kernel, template in kernels.items():
                candidate = compiled(compiler, task, template, shape.name)
                fine, usual = (bench.visit(candidate, [shape.name], one)[shape.name] for one in (FINE, Precision()))
                if not isinstance(fine, Measured):
                    print(f"agreement: {task.name} {shape.name} {kernel} is left out: {describe(fine)}", flush=True)
                    continue
                made = {"task": task.name, "workload": shape.name, "kernel": kernel, "seconds": fine.seconds}
                rows.append(made | {"search_seconds": getattr(usual, "seconds", None)})
                jobs.append((candidate, task, shape.name))
    path = out / "agreement.pickle"
    path.write_bytes(pickle.dumps((device.limits, device.index, jobs)))
    # In a process of its own, as a program that measures itself would be.
    graph = subprocess.run([sys.executable, __file__, "--child", "graph", str(path)], timeout=180, check=False)
    plain = json.loads((out / GRAPH).read_text(encoding="utf-8")) if graph.returncode == 0 else None
    for name, times in (("graph", plain), ("ncu", _ncu(path, jobs, out))):
        for row, theirs in zip(rows, times or [None] * len(rows), strict=True):
            row[f"{name}_seconds"] = theirs
            row[f"over_{name}"] = row["seconds"] / theirs - 1 if row["seconds"] and theirs else None
    for row in rows:
        shown = {key: f"{1e6 * row[key]:.2f}" for key in row if key.endswith("seconds") and row[key] is not None}
        over = {key: f"{row[key]:+.2%}" for key in row if key.startswith("over_") and row[key] is not None}
        print(f"agreement: {row['task']} {row['workload']} {row['kernel']}, microseconds {shown} {over}", flush=True)
    return {"rows": rows}


def _ncu(path: Path, jobs: Sequence[Any], out: Path) -> list[float] | None:
    """Median gpu__time_duration of each job's launches, in seconds, with the caches as launches on other buffers left
    them, which is our own protocol."""
    tool = shutil.which("ncu") or shutil.which("ncu", path=os.pathsep.join(PLACES))
    if tool is None:
        print("agreement: ncu is not installed", flush=True)
        return None
    names = "|".join(sorted({candidate.template.entry for candidate, _, _ in jobs}))
    command = [tool, "--clock-control", "none", "--cache-control", "none", "--metrics", METRIC]
    command += ["--csv", "--print-units", "base", "-k", f"regex:^({names})$"]
    command += [sys.executable, __file__, "--child", "ncu", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    (out / "ncu.csv").write_text(done.stdout + done.stderr, encoding="utf-8")
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    rows = [row for row in csv.DictReader(lines) if row.get("Metric Name") == METRIC]
    values = [float(row["Metric Value"].replace(",", "")) * 1e-9 for row in rows]
    counts = path.with_name(COUNTS)
    ends = list(itertools.accumulate(json.loads(counts.read_text(encoding="utf-8")) if counts.is_file() else []))
    if len(ends) != len(jobs) or len(values) != ends[-1]:
        print(
            f"agreement: ncu gave {len(values)} times for {len(ends)} of {len(jobs)} kernels: see ncu.csv", flush=True
        )
        return None
    return [statistics.median(values[end - NCU_LAUNCHES : end]) for end in ends]


def ncu_child(path: Path) -> None:
    """Under ncu: launches each job's kernel on fresh sets in turn, and writes down how often."""
    limits, index, jobs = pickle.loads(path.read_bytes())
    counts = []
    for candidate, task, workload in jobs:
        device, launches = _bound(limits, index, candidate, task, workload)
        counts.append(len(launches) + NCU_LAUNCHES)
        for number in range(counts[-1]):
            device.launch(launches[number % len(launches)])
            device.synchronize()
    path.with_name(COUNTS).write_text(json.dumps(counts), encoding="utf-8")


def graph_child(path: Path) -> None:
    """Writes what a launch takes in a captured graph that goes round the sets, between two events: medians, in seconds.
    Nothing of our own timing takes part in it."""
    cupy = import_module("cupy")
    limits, index, jobs = pickle.loads(path.read_bytes())
    # The stream on which arrays are filled as well: on several, launches come to take longer.
    opened: Any = open_device(limits, index)
    stream, times = opened.stream, []

    def replays(launch: Callable[[Any], None], launches: Sequence[Any], rounds: int, repeats: int) -> list[float]:
        stream.begin_capture()
        for one in [*launches] * rounds:
            launch(one)
        graph = stream.end_capture()
        begin, end, taken = cupy.cuda.Event(), cupy.cuda.Event(), []
        for _ in range(repeats + 1):
            begin.record(stream)
            graph.launch(stream)
            end.record(stream)
            end.synchronize()
            taken.append(cupy.cuda.get_elapsed_time(begin, end) * 1e-3)
        return taken[1:]

    for candidate, task, workload in jobs:
        device, launches = _bound(limits, index, candidate, task, workload)
        (once,) = replays(device.launch, launches, 1, 1)
        rounds = max(1, round(GRAPH_SECONDS / once))
        whole = statistics.median(replays(device.launch, launches, rounds, GRAPH_REPEATS))
        times.append(whole / (rounds * len(launches)))
    path.with_name(GRAPH).write_text(json.dumps(times), encoding="utf-8")


def _bound(limits: DeviceLimits, index: int, candidate: Candidate, task: Task, workload: str) -> tuple[Any, list[Any]]:
    """A device and launches of the candidate on all sets, restored."""
    device = open_device(limits, index)
    data = WorkloadData(device, task, task.workload(workload), seed=0, max_bytes=int(device.free_bytes() * 0.7))
    launches = bind(device, candidate, data)
    if not isinstance(launches, list):
        raise TunesmithError(f"{task.name} {workload} cannot be launched: {launches}.")
    data.restore()
    device.synchronize()
    return device, launches


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--parts", default="same,planted,agreement", help="which parts, with commas between")
    parser.add_argument("--same", type=int, default=200, help="comparisons of kernels with themselves")
    parser.add_argument("--planted", type=int, default=100, help="comparisons with the slower kernel")
    parser.add_argument("--kernels", choices=("short", "all"), default="all", help="for `agreement`")
    parser.add_argument("--child", nargs=2, metavar=("TOOL", "JOBS"), help="what ncu and the plain graph run")
    options = parser.parse_args()
    if options.child is not None:
        {"ncu": ncu_child, "graph": graph_child}[options.child[0]](Path(options.child[1]))
        return 0
    device = probe().device("cuda")
    compiler, record = open_compiler(device.limits, device.index), Record(options, device)
    record.write(compiler=compiler.version)
    work: dict[str, Callable[[], dict[str, Any]]] = {
        "same": lambda: same(compiler, device, options.same),
        "planted": lambda: planted(compiler, device, options.planted),
        "agreement": lambda: agreement(compiler, device, record.path.parent, options.kernels),
    }
    for part in options.parts.split(","):
        started = time.perf_counter()
        found = work[part]()
        record.write(**{part: found | {"part_seconds": round(time.perf_counter() - started, 1)}})
    return 0


if __name__ == "__main__":
    execute(main)
