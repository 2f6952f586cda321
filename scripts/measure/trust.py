"""Measures on a GPU whether verdicts and numbers hold. One call, no cluster: python3 scripts/measure/trust.py --out DIR

Parts (choose with --parts): `same` compares kernels with themselves, `planted` with a kernel that moves 2 % more bytes,
`agreement` compares times with Nsight Compute's and triton's do_bench, `exported` times what best/ gives to the user
against the time that was reported, `fixtures` judges all candidates of tests/candidates, and `tunings` (not by default)
re-measures the winners of two tunings against each other.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import functools
import itertools
import json
import os
import pickle
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# Found without an installation, also by the processes that are started from here.
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "candidates")]
os.environ["PYTHONPATH"] = os.pathsep.join([*sys.path[:2], os.environ.get("PYTHONPATH", "")])

from tunesmith import __version__  # noqa: E402
from tunesmith.hw.errors import TunesmithError  # noqa: E402
from tunesmith.hw.limits import DeviceLimits  # noqa: E402
from tunesmith.hw.probe import Device, probe  # noqa: E402
from tunesmith.kernels.backends import Launch, open_compiler, open_device  # noqa: E402
from tunesmith.kernels.build.artifact import Artifact  # noqa: E402
from tunesmith.kernels.build.candidate import Candidate, types_key  # noqa: E402
from tunesmith.kernels.build.specialise import specialise  # noqa: E402
from tunesmith.kernels.check.trial import Checked, bind, load_again, prepare  # noqa: E402
from tunesmith.kernels.launch.workload_data import WorkloadData  # noqa: E402
from tunesmith.kernels.measure.bench import COMPARISON_SAMPLE_FACTOR, Bench  # noqa: E402
from tunesmith.kernels.measure.timing import Comparison, Precision, compare, interleaved  # noqa: E402
from tunesmith.kernels.outcome import Measured, describe  # noqa: E402
from tunesmith.kernels.spec.files.taskfile import library_tasks, load_task  # noqa: E402
from tunesmith.kernels.spec.parameter import Config  # noqa: E402
from tunesmith.kernels.spec.task import Task, Workload  # noqa: E402
from tunesmith.kernels.spec.template import Template  # noqa: E402

PARTS = ("same", "planted", "agreement", "exported", "fixtures")
SAME = (
    ("silu_and_mul", "64x8192"),
    ("merge_attn_states", "512x64x128"),
    ("fused_add_rmsnorm", "2048x8192"),
    ("silu_and_mul", "4096x11008"),
)
"""Two kernels of 2 to 20 us and two longer ones, on an H200."""
EXPORTED = (
    ("merge_attn_states", "512x32x256"),
    ("fused_add_rmsnorm", "128x4096"),
    ("silu_and_mul", "16x4096"),
)
"""Short kernels, whose time changes most with the compiler's options and the layout; one of them works in place."""
EXPORT_ALLOWED = 0.01
"""How far an export's time may be from the reported one."""
SMALLEST = 2
"""The shapes of each library task that Nsight Compute times beside the long ones: those that move the fewest bytes."""
LONG_KERNELS = (
    ("silu_and_mul", "4096x11008"),
    ("silu_and_mul", "4096x14336"),
    ("fused_add_rmsnorm", "2048x8192"),
    ("fused_add_rmsnorm", "8192x8192"),
    ("merge_attn_states", "8192x32x128"),
    ("softmax", "8192x2048"),
    ("gemm", "1024x1024x1024"),
)


def agreement_workloads(which: str) -> tuple[tuple[str, str], ...]:
    """Task and workload. which: "short" for the smallest of each task of the library that CUDA can run, tasks that work
    in place first, "long" for the long ones, "all" for both."""
    if which == "long":
        return LONG_KERNELS
    tasks = []
    for name in library_tasks():
        task = load_task(name)
        if "cuda" in task.backends:
            tasks.append(task)
    tasks.sort(key=lambda task: all(argument.role != "inout" for argument in task.arguments))
    short = [
        (task.name, workload.name)
        for task in tasks
        for workload in sorted(task.workloads_for("gpu", held_out=False), key=task.bytes_of)[:SMALLEST]
    ]
    return tuple(dict.fromkeys(short if which == "short" else [*short, *LONG_KERNELS]))


PLANTED = Workload(name="32768x2048", sizes={"n": 32768, "d": 2048}, types={"T": "float16"})
"""Of silu_and_mul: about 100 us on an H200, in so many blocks that 2 % more of them are 2 % more time."""
ROUNDS, SECONDS = 40, 0.5
SHORT_SECONDS = 20e-6
NCU_LAUNCHES = 9
"""Launches of a kernel that count, after one on each set of buffers, so that they find their data gone from the cache.
"""
COUNTS = "launches.json"
NOTHING = "nothing"
"""The name of a kernel that does nothing, and of its row."""
GRAPH_SECONDS, GRAPH_REPEATS = 0.01, 9
"""How long a plain captured graph takes, about, and how often it is replayed."""
PLACES = ("/usr/local/cuda/bin", "/opt/nvidia/nsight-compute")
FINE = Precision(target=0.002, max_samples=200, budget_seconds=1.0)


def compiled(compiler: Any, task: Task, template: Template, config: Config, workload: str) -> Candidate:
    """One configuration for the types of one workload."""
    types = task.workload(workload).types
    artifact = compiler.compile(specialise(template, config, types))
    if not isinstance(artifact, Artifact):
        raise SystemExit(f"{task.name} {template.name}: {artifact}")
    return Candidate(template, config, {types_key(task.workload(workload)): artifact})


def template_of(task: Task, which: str) -> Template:
    sources = task.sources("cuda")
    return sources.baseline.template if which == "baseline" else sources.templates[0]


def compare_often(
    bench: Bench, candidate: Candidate, baseline: Candidate, workload: str, count: int, first_seed: int
) -> Iterator[Comparison]:
    """`count` comparisons, each with its own order of launches."""
    for number in range(count):
        bench.seed = first_seed + number
        (result,) = bench.compare(baseline, [candidate], workload, rounds=ROUNDS, budget_seconds=SECONDS).results
        if not isinstance(result, Comparison):
            raise SystemExit(f"{workload}: {result}")
        yield result


def same(compiler: Any, device: Device, count: int) -> dict[str, Any]:
    """A kernel against itself: how often is it called different, and how wide are the intervals?"""
    rows: list[dict[str, Any]] = []
    for name, workload in SAME:
        task = load_task(name)
        template = template_of(task, "template")
        candidate = compiled(compiler, task, template, template.default_config, workload)
        bench = Bench(task, device.limits, device.index)
        found = list(compare_often(bench, candidate, candidate, workload, count // len(SAME), 1000 * len(rows)))
        seconds = statistics.median(one.baseline.median for one in found)
        widths = sorted(one.half_width for one in found)
        rows.append(
            {
                "task": name,
                "workload": workload,
                "seconds": seconds,
                "comparisons": len(found),
                "called_different": sum(one.verdict != "no difference shown" for one in found),
                "half_width_median": statistics.median(widths),
                "half_width_p95": widths[int(0.95 * len(widths))],
                "half_width_allowed": 0.02 if seconds < SHORT_SECONDS else 0.005,
                "rounds": statistics.median(one.baseline.samples for one in found),
                "ratios": [one.ratio for one in found],
            }
        )
        row = rows[-1]
        print(
            f"same     {name:18} {workload:22} {seconds * 1e6:8.2f} us  different {row['called_different']:3}/"
            f"{len(found)}  half-width {row['half_width_median']:.3%} (95th percentile {row['half_width_p95']:.3%}, "
            f"allowed {row['half_width_allowed']:.1%})",
            flush=True,
        )
    different, total = sum(row["called_different"] for row in rows), sum(row["comparisons"] for row in rows)
    print(f"same     in all {different}/{total} called different (allowed 5 %)", flush=True)
    return {"rows": rows, "called_different": different, "comparisons": total}


def planted(compiler: Any, device: Device, count: int) -> dict[str, Any]:
    """A kernel that does every fiftieth row twice, long after the first time, against the one that does not."""
    task = load_task("silu_and_mul")
    task = task.model_copy(update={"workloads": (*task.workloads, PLANTED)})
    plain = template_of(task, "baseline")
    source = plain.source.replace("const long long row = blockIdx.x;", "const long long row = blockIdx.x % n;")
    if source == plain.source:
        raise SystemExit("the baseline of silu_and_mul has changed: adapt `planted`")
    usual = Template.model_validate({**plain.model_dump(), "source": source})
    slower = usual.model_copy(update={"launch": usual.launch.model_copy(update={"grid": ("n + n // 50",)})})
    bench = Bench(task, device.limits, device.index)
    pair = [compiled(compiler, task, one, {}, PLANTED.name) for one in (usual, slower)]
    found = list(compare_often(bench, pair[1], pair[0], PLANTED.name, count, 50_000))
    slow = sum(one.verdict == "slower" for one in found)
    seconds = statistics.median(one.baseline.median for one in found)
    ratio = statistics.median(one.ratio for one in found)
    print(
        f"planted  {PLANTED.name:22} {seconds * 1e6:8.2f} us  ratio {ratio:.4f}  found slower {slow}/{count} "
        "(wanted 95 %)",
        flush=True,
    )
    return {
        "seconds": seconds,
        "ratio": ratio,
        "found_slower": slow,
        "comparisons": count,
        "ratios": [one.ratio for one in found],
    }


def agreement(compiler: Any, device: Device, out: Path, which: str) -> dict[str, Any]:
    """Our cold time, of many samples and of a search's few, for the same machine code beside that of a plain captured
    graph, Nsight Compute's and triton's do_bench. The last row is of a kernel that does nothing."""
    jobs = []
    rows: list[dict[str, Any]] = []
    for name, workload in agreement_workloads(which):
        task = load_task(name)
        bench = Bench(task, device.limits, device.index)
        for kernel in ("baseline", "template"):
            template = template_of(task, kernel)
            candidate = compiled(compiler, task, template, template.default_config, workload)
            outcome = bench.visit(candidate, [workload], FINE)[workload]
            usual = bench.visit(candidate, [workload], Precision())[workload]
            if not isinstance(outcome, Measured):
                print(f"agree    {name} {workload} {kernel} is left out: {describe(outcome)}", flush=True)
                continue
            rows.append(
                {
                    "task": name,
                    "workload": workload,
                    "kernel": kernel,
                    "seconds": getattr(outcome, "seconds", None),
                    "search_seconds": getattr(usual, "seconds", None),
                    "outcome": str(outcome),
                }
            )
            jobs.append((candidate, task, workload))
    path = out / "agreement.pickle"
    path.write_bytes(pickle.dumps((device.limits, device.index, jobs)))
    rows.append({"task": "", "workload": "", "kernel": NOTHING, "seconds": None, "search_seconds": None})
    unknown: list[float | None] = [None] * len(rows)
    others: dict[str, list[float] | None] = {}
    tools: dict[str, Callable[[], list[float] | None]] = {
        "graph": lambda: _child("--graph-child", path),
        "ncu": lambda: _ncu(path, jobs, out, "none"),
        "ncu_flushed": lambda: _ncu(path, jobs, out, "all"),
        "do_bench": lambda: _triton(path),
    }
    for name, tool in tools.items():
        started = time.perf_counter()
        others[name] = tool()
        print(f"agree    {name}: {time.perf_counter() - started:.1f} s for {len(jobs)} kernels", flush=True)
        so_far = {"rows": rows, "others": others}
        (out / "agreement-times.json").write_text(json.dumps(so_far), encoding="utf-8")
    for at, row in enumerate(rows):
        ours = row["seconds"]
        for name, times in others.items():
            row[f"{name}_seconds"] = theirs = (times or unknown)[at]
            row[f"over_{name}"] = ours / theirs - 1 if ours and theirs else None
        known = [ours, row["search_seconds"], *(row[f"{name}_seconds"] for name in others)]
        shown = [f"{value * 1e6:8.2f}" if value else "       -" for value in known]
        ratios = [row[f"over_{name}"] for name in others]
        parts = [f"{value:+7.2%}" if value is not None else "      -" for value in ratios]
        what = f"{row['task']:18} {row['workload']:22} {row['kernel']:9}"
        print(
            f"agree    {what} ours {shown[0]}  in a search {shown[1]}  graph {shown[2]}  ncu {shown[3]}  "
            f"ncu flushed {shown[4]}  do_bench {shown[5]} us   {' '.join(parts)}",
            flush=True,
        )
    return {"rows": rows}


def _ncu(path: Path, jobs: Sequence[tuple[Candidate, Task, str]], out: Path, caches: str) -> list[float] | None:
    """Median gpu__time_duration of each job's launches, in seconds. caches: "none" leaves them as launches on other
    buffers left them, which is our own protocol; "all" has ncu flush them before each launch, the code's as well."""
    tool = shutil.which("ncu") or shutil.which("ncu", path=os.pathsep.join(PLACES))
    if tool is None:
        print("agree    ncu is not installed", flush=True)
        return None
    names = "|".join(sorted({NOTHING, *(candidate.template.entry for candidate, _, _ in jobs)}))
    command = [tool, "--clock-control", "none", "--cache-control", caches, "--metrics", "gpu__time_duration.sum"]
    command += ["--csv", "--print-units", "base", "-k", f"regex:^({names})$"]
    command += [sys.executable, __file__, "--child", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    (out / f"ncu-{caches}.csv").write_text(done.stdout + done.stderr, encoding="utf-8")
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    values = [
        float(row["Metric Value"].replace(",", "")) * 1e-9
        for row in csv.DictReader(lines)
        if row.get("Metric Name") == "gpu__time_duration.sum"
    ]
    counts = path.with_name(COUNTS)
    ends = list(itertools.accumulate(json.loads(counts.read_text(encoding="utf-8")) if counts.is_file() else []))
    if len(ends) != len(jobs) + 1 or len(values) != ends[-1]:
        print(f"agree    ncu gave {len(values)} times for {len(ends)} of {len(jobs)} kernels: see its csv", flush=True)
        return None
    return [statistics.median(values[end - NCU_LAUNCHES : end]) for end in ends]


def exported(compiler: Any, device: Device, out: Path) -> dict[str, Any]:
    """What best/ gives to the user: loaded by its own launcher, does it take the time that our comparison reported, and
    the time of the machine code that was compared, in turn with it on the same buffers?"""
    rows = []
    for name, workload in EXPORTED:
        task = load_task(name)
        bench = Bench(task, device.limits, device.index)
        template = template_of(task, "template")
        baseline = compiled(compiler, task, template_of(task, "baseline"), {}, workload)
        candidate = compiled(compiler, task, template, template.default_config, workload)
        (result,) = bench.compare(baseline, [candidate], workload, rounds=ROUNDS, budget_seconds=SECONDS).results
        if not isinstance(result, Comparison):
            raise SystemExit(f"{name} {workload}: {result}")
        bench.release()
        folder = out / f"exported-{name}-{workload}"
        again = _export(task, device, candidate, result, workload, compiler.version, folder)
        ours, theirs, ratio = _time_export(bench, candidate, task, workload, folder / "best" / "general")
        reported = result.baseline.median * result.ratio
        off = (theirs / reported - 1, ratio.ratio - 1)
        row = {
            "task": name,
            "workload": workload,
            "note": again["note"],
            "reported_seconds": reported,
            "loaded_by_us_seconds": ours,
            "exported_seconds": theirs,
            "over_reported": off[0],
            "over_ours": off[1],
            "over_ours_interval": [ratio.low - 1, ratio.high - 1],
            "right": max(map(abs, off)) <= EXPORT_ALLOWED,
        }
        rows.append(row)
        print(
            f"exported {name:18} {workload:22} reported {reported * 1e6:8.2f}  exported {theirs * 1e6:8.2f} us  "
            f"over the reported {theirs / reported - 1:+.2%}  over ours in turn {ratio.ratio - 1:+.2%} "
            f"(allowed {EXPORT_ALLOWED:.0%})",
            flush=True,
        )
    return {"rows": rows, "right": all(row["right"] for row in rows)}


def _export(
    task: Task, device: Device, candidate: Candidate, result: Comparison, workload: str, version: str, folder: Path
) -> dict[str, Any]:
    """Writes best/ as a run would that ended with this comparison; gives what launch.json says of the machine code."""
    from tunesmith.graph.context import Context
    from tunesmith.graph.journal.events import Compared, TemplateAdded
    from tunesmith.graph.journal.records import FinalistResult, Verdict, Winner
    from tunesmith.graph.journal.store import Journal
    from tunesmith.graph.results.export import export_best
    from tunesmith.graph.settings import make_settings

    def no_pool() -> Any:
        raise SystemExit("an export asked for a device")

    template, config = candidate.template, candidate.config
    (artifact,) = candidate.artifacts.values()
    task = task.model_copy(update={"workloads": (task.workload(workload),)})
    entry = FinalistResult(template=template.id, config=config, comparison=result, code=artifact.code_digest)
    with Journal(folder, create=True) as journal:
        journal.append(TemplateAdded(template=template))
        journal.append(Compared(workload=workload, entries=(entry,), compiler=version), "round-1")
        context = Context(task, device, (device.limits,), make_settings(task=task.name), journal, no_pool)
        export_best(context, folder / "best", Verdict(general=Winner(template=template.id, config=config), sentence=""))
    about = json.loads((folder / "best" / "general" / "launch.json").read_text(encoding="utf-8"))
    found: dict[str, Any] = about["sources"][0]["machine_code"]
    return found


def _time_export(
    bench: Bench, candidate: Candidate, task: Task, workload: str, folder: Path
) -> tuple[float, float, Comparison]:
    """Seconds of the machine code as our device loads it and as the export's launcher does, in turn; their ratio."""
    device: Any = bench.device
    data = WorkloadData(device, task, task.workload(workload), seed=0, max_bytes=bench.room)
    checked = prepare(device, candidate, data, COMPARISON_SAMPLE_FACTOR * device.sample_seconds)
    if not isinstance(checked, Checked):
        raise SystemExit(f"{task.name} {workload}: {checked}")
    spec = spec_from_file_location("exported_launch", folder / "launch.py")
    if spec is None or spec.loader is None:
        raise SystemExit(f"{folder / 'launch.py'} cannot be imported")
    launcher = module_from_spec(spec)
    spec.loader.exec_module(launcher)
    about = json.loads((folder / "launch.json").read_text(encoding="utf-8"))

    def ours() -> Callable[[], float]:
        return load_again(device, candidate, checked, data).rotation

    def theirs() -> Callable[[], float]:
        kernel = launcher.load(about["sources"][0], about["entry"])
        return checked.rotation.again([replace(launch, kernel=kernel) for launch in checked.launches])

    first, second = interleaved([ours, theirs], rounds=ROUNDS, seed=1, budget_seconds=4 * SECONDS)
    ratio = compare(second, first)
    return ratio.baseline.median, ratio.candidate.median, ratio


def _triton(path: Path) -> list[float] | None:
    if find_spec("torch") is None or find_spec("triton") is None:
        print("agree    triton is not installed", flush=True)
        return None
    return _child("--triton-child", path)


def _child(option: str, path: Path) -> list[float] | None:
    """The times that a process of this script prints, in seconds."""
    command = [sys.executable, __file__, option, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    if done.returncode != 0:
        print(f"agree    {option} failed: {done.stderr[-500:]}", flush=True)
        return None
    times: list[float] = json.loads(done.stdout.splitlines()[-1])
    return times


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
    counts.append(NCU_LAUNCHES)
    empty = _empty_kernel()
    for _ in range(counts[-1]):
        empty((1,), (32,), ())
        device.synchronize()
    path.with_name(COUNTS).write_text(json.dumps(counts), encoding="utf-8")


def _empty_kernel() -> Any:
    return import_module("cupy").RawKernel(f'extern "C" __global__ void {NOTHING}() {{}}', NOTHING)


def graph_child(path: Path) -> None:
    """Prints what a launch takes in a captured graph that goes round the sets, between two events: medians, in seconds.
    Nothing of our own timing takes part in it."""
    cupy = import_module("cupy")
    limits, index, jobs = pickle.loads(path.read_bytes())
    # The stream on which arrays are filled as well: on several, launches come to take longer.
    opened: Any = open_device(limits, index)
    stream, times = opened.stream, []

    def replays(launch: Callable[[int], None], sets: int, rounds: int, repeats: int) -> list[float]:
        stream.begin_capture()
        for number in range(rounds * sets):
            launch(number % sets)
        graph = stream.end_capture()
        begin, end, taken = cupy.cuda.Event(), cupy.cuda.Event(), []
        for _ in range(repeats + 1):
            begin.record(stream)
            graph.launch(stream)
            end.record(stream)
            end.synchronize()
            taken.append(cupy.cuda.get_elapsed_time(begin, end) * 1e-3)
        return taken[1:]

    def per_launch(launch: Callable[[int], None], sets: int) -> float:
        (once,) = replays(launch, sets, 1, 1)
        rounds = max(1, round(GRAPH_SECONDS / once))
        return statistics.median(replays(launch, sets, rounds, GRAPH_REPEATS)) / (rounds * sets)

    for candidate, task, workload in jobs:
        device, launches = _bound(limits, index, candidate, task, workload)
        times.append(per_launch(functools.partial(_launch_one, device, launches), len(launches)))
    empty = _empty_kernel()
    times.append(per_launch(lambda _: empty((1,), (32,), ()), 1))
    print(json.dumps(times))


def _launch_one(device: Any, launches: Sequence[Launch], number: int) -> None:
    device.launch(launches[number])


def triton_child(path: Path) -> None:
    """Prints the medians of triton's do_bench, in seconds."""
    cupy, torch = import_module("cupy"), import_module("torch")
    do_bench, empty = import_module("triton.testing").do_bench, _empty_kernel()
    limits, index, jobs = pickle.loads(path.read_bytes())
    times = []
    for candidate, task, workload in jobs:
        device, launches = _bound(limits, index, candidate, task, workload)
        device.stream = cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)
        run = functools.partial(device.launch, launches[0])
        times.append(do_bench(run, warmup=50, rep=200, return_mode="median") * 1e-3)
    times.append(do_bench(lambda: empty((1,), (32,), ()), warmup=50, rep=200, return_mode="median") * 1e-3)
    print(json.dumps(times))


def _bound(
    limits: DeviceLimits, index: int, candidate: Candidate, task: Task, workload: str
) -> tuple[Any, list[Launch]]:
    """A device and launches of the candidate on all sets, restored."""
    device = open_device(limits, index)
    room = int(device.free_bytes() * 0.7)
    data = WorkloadData(device, task, task.workload(workload), seed=0, max_bytes=room)
    launches = bind(device, candidate, data)
    if not isinstance(launches, list):
        raise SystemExit(f"{task.name} {workload}: {launches}")
    data.restore()
    device.synchronize()
    return device, launches


def fixtures(device: Device, workers: int) -> dict[str, Any]:
    """Every CUDA candidate of tests/candidates: is the verdict the right one?"""
    judging = import_module("judging")
    from tunesmith.actors.judging.judge import Limits

    chosen = [one for one in judging.fixtures() if one.backend == "cuda"]
    deadlines = Limits(compile=20.0, run=30.0)

    def one(fixture: Any) -> dict[str, Any]:
        started = time.perf_counter()
        verdict = judging.verdict_of(fixture, device.limits, device.index, deadlines)
        return {
            "file": fixture.file,
            "expected": fixture.expected,
            "verdict": verdict.verdict,
            "reason": verdict.reason,
            "detail": verdict.detail,
            "notes": list(verdict.notes),
            "right": fixture.agrees(verdict),
            "seconds": round(time.perf_counter() - started, 2),
        }

    with ThreadPoolExecutor(workers) as threads:
        rows = list(threads.map(one, chosen))
    for row in rows:
        if not row["right"]:
            print(
                f"fixtures WRONG {row['file']}: expected {row['expected']}, got {row['reason'] or row['verdict']}: "
                f"{row['detail'][:200]}",
                flush=True,
            )
    right = sum(row["right"] for row in rows)
    sanitized = sum(
        row["verdict"] == "accepted" and not any("sanitizer" in note for note in row["notes"]) for row in rows
    )
    print(
        f"fixtures {right}/{len(rows)} verdicts are right; compute-sanitizer passed {sanitized} of "
        f"{sum(row['verdict'] == 'accepted' for row in rows)} accepted candidates",
        flush=True,
    )
    return {"rows": rows, "right": right, "count": len(rows)}


def tunings(compiler: Any, device: Device, out: Path, task_name: str, evaluations: int) -> dict[str, Any]:
    """Two tunings with different seeds; their winners re-measured against each other."""
    task = load_task(task_name)
    winners = []
    for seed in (1, 2):
        folder = out / f"tuning-{seed}"
        command = [
            sys.executable,
            "-m",
            "tunesmith.cli.main",
            "tune",
            task_name,
            "--evaluations",
            str(evaluations),
            "--rounds",
            "1",
            "--seed",
            str(seed),
            "--run-dir",
            str(folder),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
        if done.returncode != 0:
            print(f"tunings  the tuning with seed {seed} failed: {done.stderr[-300:]}", flush=True)
            return {"error": done.stderr[-2000:]}
        general = json.loads((folder / "summary.json").read_text(encoding="utf-8"))["general"]
        winners.append(general["config"])
    rows: list[dict[str, Any]] = []
    bench = Bench(task, device.limits, device.index)
    for workload in task.workloads_for("gpu", held_out=False):
        template = template_of(task, "template")
        pair = [compiled(compiler, task, template, config, workload.name) for config in winners]
        (result,) = compare_often(bench, pair[1], pair[0], workload.name, 1, 90_000)
        rows.append({"workload": workload.name, "ratio": result.ratio, "low": result.low, "high": result.high})
    mean = statistics.geometric_mean(row["ratio"] for row in rows)
    print(
        f"tunings  {task_name}: the second winner takes {mean:.4f} of the first's time (allowed 0.99 to 1.01)",
        flush=True,
    )
    return {"task": task_name, "evaluations": evaluations, "winners": winners, "rows": rows, "ratio": mean}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "trust")), help="where results go")
    parser.add_argument("--parts", default=",".join(PARTS), help="which parts, with commas between")
    parser.add_argument(
        "--commit", default=os.environ.get("COMMIT", ""), help="what is measured, kept with the results"
    )
    parser.add_argument("--same", type=int, default=200, help="comparisons of kernels with themselves")
    parser.add_argument("--planted", type=int, default=100, help="comparisons with the slower kernel")
    parser.add_argument("--kernels", choices=("all", "short", "long"), default="all", help="for `agreement`")
    parser.add_argument("--workers", type=int, default=8, help="candidates judged at a time")
    parser.add_argument("--task", default="silu_and_mul", help="for `tunings`")
    parser.add_argument("--evaluations", type=int, default=60, help="for `tunings`")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--graph-child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--triton-child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child is not None:
        ncu_child(options.child)
        return 0
    if options.graph_child is not None:
        graph_child(options.graph_child)
        return 0
    if options.triton_child is not None:
        triton_child(options.triton_child)
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    device = probe().device("cuda")
    compiler = open_compiler(device.limits, device.index)
    results: dict[str, Any] = {
        "command": sys.argv,
        "commit": options.commit,
        "device": device.to_json(),
        "versions": _versions(compiler),
    }
    work: dict[str, Callable[[], dict[str, Any]]] = {
        "same": lambda: same(compiler, device, options.same),
        "planted": lambda: planted(compiler, device, options.planted),
        "agreement": lambda: agreement(compiler, device, options.out, options.kernels),
        "exported": lambda: exported(compiler, device, options.out),
        "fixtures": lambda: fixtures(device, options.workers),
        "tunings": lambda: tunings(compiler, device, options.out, options.task, options.evaluations),
    }
    for part in options.parts.split(","):
        started = time.perf_counter()
        results[part] = work[part]()
        results[part]["part_seconds"] = round(time.perf_counter() - started, 1)
        print(f"         ({part}: {results[part]['part_seconds']} s)", flush=True)
        # After every part, so that what was measured is kept whatever ends the next one.
        (options.out / "trust.json").write_text(json.dumps(results, indent=1, default=str), encoding="utf-8")
    return 0


def _versions(compiler: Any) -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {"tunesmith": __version__, "python": sys.version.split()[0], "compiler": compiler.version}
    for package in ("numpy", "cupy-cuda13x", "cuda-bindings", "triton", "torch"):
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TunesmithError as error:
        sys.exit(f"measure_trust: {error}")
