"""Measures on a GPU how often verdicts on times are wrong, in one process without a cluster.

    python scripts/measure/trust.py --out FOLDER [--parts same,planted]

`same` compares kernels with themselves, `planted` with a kernel that moves 2 % more bytes.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from tunesmith.cli.measure.runner import Record, execute, parser_of
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.probe import DeviceInfo, probe
from tunesmith.kernels.backends import open_compiler
from tunesmith.kernels.build.artifact import Artifact, Candidate
from tunesmith.kernels.build.source import code_key, specialise
from tunesmith.kernels.measure.bench import Bench, ComparisonRequest
from tunesmith.kernels.measure.timing import Comparison
from tunesmith.kernels.spec.task import Task, Workload
from tunesmith.kernels.spec.taskfile import load_task
from tunesmith.kernels.spec.template import Template

SHORT = (("silu_and_mul", "64x8192"), ("merge_attn_states", "512x64x128"))
SAME = (*SHORT, ("fused_add_rmsnorm", "2048x8192"), ("silu_and_mul", "4096x11008"))
"""Two kernels of 2 to 20 us and two longer ones, on an H200."""
PLANTED = Workload(name="32768x2048", sizes={"n": 32768, "d": 2048}, types={"T": "float16"})
"""A workload of silu_and_mul: about 100 us on an H200, in so many blocks that 2 % more of them are 2 % more time."""
ROUNDS, SECONDS = 40, 0.5


def compiled(compiler: Any, task: Task, template: Template, workload: str) -> Candidate:
    """The default configuration for the types of one workload."""
    key, config = code_key(task, template, task.workload(workload)), template.default_config
    artifact = compiler.compile(specialise(template, config, dict(key)))
    if not isinstance(artifact, Artifact):
        raise TunesmithError(f"{task.name} {template.name} does not compile: {artifact}.")
    return Candidate(template, config, {key: artifact})


def compare_often(
    bench: Bench, candidate: Candidate, baseline: Candidate, workload: str, count: int, first_seed: int
) -> dict[str, Any]:
    """`count` comparisons, each with its own order of launches, and their summary."""
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
    """A kernel that does every fiftieth row twice, long after the first time, against the plain kernel."""
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
    print(f"{part}:", {key: value for key, value in row.items() if key != "ratios"}, flush=True)


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--parts", default="same,planted", help="which parts, with commas between")
    parser.add_argument("--same", type=int, default=200, help="comparisons of kernels with themselves")
    parser.add_argument("--planted", type=int, default=100, help="comparisons with the slower kernel")
    options = parser.parse_args()
    device = probe().device("cuda")
    compiler, record = open_compiler(device.limits, device.index), Record(options, device)
    record.write(compiler=compiler.version)
    parts = {"same": (same, options.same), "planted": (planted, options.planted)}
    for part in options.parts.split(","):
        started = time.perf_counter()
        measure, count = parts[part]
        found = measure(compiler, device, count)
        record.write(**{part: found | {"part_seconds": round(time.perf_counter() - started, 1)}})
    return 0


if __name__ == "__main__":
    execute(main)
