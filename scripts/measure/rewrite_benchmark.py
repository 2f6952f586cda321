"""Measures the gain of the rewriting rules over plain kernels: a draft of each, its template by rules, and a tuning.

    python scripts/measure/rewrite_benchmark.py --out OUT [--only a,b] [--evaluations 60] [--time-limit 20s]
        [--backend cuda|opencl]

The kernels are the plain ones of tests/kernels/rewrite (CUDA only), at sizes of tens of megabytes, and the plain
baselines of three production kernels, which are also tuned with the template of the library, by as many evaluations.
OUT is written after each kernel; a second call measures the missing ones. A kernel that cannot be tuned has the reason
in its row, and the next goes on. The original kernel is the reference of a plain kernel; one size of each divides by
nothing and is held out.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tunesmith.cli.measure.runner import Record, execute, module_of_tests, parser_of
from tunesmith.graph import tune
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.probe import probe
from tunesmith.kernels.rewrite.template import rewrite
from tunesmith.kernels.spec.task import Fill, Task, Workload
from tunesmith.kernels.spec.taskfile import load_task
from tunesmith.kernels.spec.template import BackendName

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
"""Two tuned sizes of tens of megabytes, and a held-out size that nothing divides."""
CONTENTS = {
    "gather": {"index": Fill(kind="uniform", mean=50_000, scale=49_999)},
    "scatter": {"index": Fill(kind="uniform", mean=50_000, scale=49_999)},
    "histogram": {"data": Fill(kind="uniform", mean=49, scale=49)},
}
"""Contents of arrays of indices: places that exist at every size."""
PRODUCTION = ("silu_and_mul", "fused_add_rmsnorm", "merge_attn_states")


def plain_kernels() -> Iterator[Task]:
    """The plain kernels, drafted, with sizes in the place of the draft's questions."""
    corpus = module_of_tests("kernels/rewrite", "plain_kernels")
    for name in corpus.KERNELS:
        task, _ = corpus.drafted(name)
        fills = CONTENTS.get(name, {})
        changes: dict[str, object] = {
            "name": name,
            "arguments": tuple(
                argument.model_copy(update={"fill": fills.get(argument.name, argument.fill)})
                for argument in task.arguments
            ),
            "workloads": tuple(
                Workload(name="x".join(map(str, sizes.values())), sizes=sizes, types={}, held_out=at == 2)
                for at, sizes in enumerate(SIZES[name])
            ),
            "reference": "",
            "reference_name": "baseline",
            "tolerance": {},
        }
        yield task.model_copy(update=changes)


def production(backend: BackendName, kind: str) -> Iterator[Task]:
    """The library's kernels with three tuned workloads and one held-out workload."""
    for name in PRODUCTION:
        task = load_task(name)
        of_kind = [one for one in task.workloads if kind in one.devices]
        tuned = sorted((one for one in of_kind if not one.held_out), key=task.bytes_of)
        odd = min((one for one in of_kind if one.held_out), key=task.bytes_of)
        chosen = dict.fromkeys((tuned[0].name, tuned[len(tuned) // 2].name, tuned[-1].name, odd.name))
        yield task.model_copy(update={"workloads": tuple(task.workload(one) for one in chosen)})


def tuned(task: Task, options: Any) -> dict[str, Any]:
    """Speed-ups of the general configuration over the plain kernel, by workload, with 99 % intervals."""
    summary = tune(
        task,
        backend=options.backend,
        evaluations=options.evaluations,
        rounds=1,
        time_limit=options.time_limit,
        opponents="none",
        run_dir=Path(tempfile.mkdtemp(prefix=f"tunesmith-{task.name}-")) / "run",
    ).summary
    return {
        "sentence": summary.sentence,
        "general": summary["general"],
        "evaluations": summary.evaluations,
        "failures": summary.failures,
        "speedup": 1 / summary.ratio if summary.ratio else None,
        "workloads": [
            {"workload": row.workload, "held_out": row in summary.held_out, "plain_seconds": row.baseline_seconds}
            | row.general.to_json()
            for row in summary.rows
            if row.general is not None
        ],
    }


def measured(task: Task, options: Any) -> dict[str, Any]:
    """The row of one kernel."""
    started, row = time.monotonic(), dict[str, Any](kernel=task.name)
    sources = task.sources(options.backend)
    without_templates = {**task.backends, options.backend: sources.model_copy(update={"templates": ()})}
    plain = task.model_copy(update={"backends": without_templates})
    try:
        rules = rewrite(plain, options.backend)
        row |= {"not_applied": list(rules.skipped)}
        if rules.template is None:
            raise TunesmithError(f"No rule applies: {'; '.join(rules.skipped)}.")
        row |= {"rewrites": [parameter.name for parameter in rules.template.parameters], **tuned(plain, options)}
        if sources.templates:
            row["library"] = tuned(task, options)
    except TunesmithError as error:
        # The other kernels are still measured.
        row["error"] = str(error)
    return row | {"seconds": round(time.monotonic() - started, 1)}


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--only", default="", help="kernels, with commas between")
    parser.add_argument("--evaluations", type=int, default=60)
    parser.add_argument("--time-limit", help="for each tuning, as of `tunesmith tune` (default: none)")
    parser.add_argument("--backend", choices=("cuda", "opencl"), default="cuda")
    options = parser.parse_args()
    device = probe().device(options.backend)
    record = Record(options, device)
    rows = record.former("kernels", "kernel")
    tasks = [*(plain_kernels() if options.backend == "cuda" else ()), *production(options.backend, device.limits.kind)]
    for task in tasks:
        if (options.only and task.name not in options.only.split(",")) or "speedup" in rows.get(task.name, {}):
            continue
        row = rows[task.name] = measured(task, options)
        found = [one["speedup"] for one in rows.values() if one.get("speedup")]
        record.write(median_speedup=statistics.median(found) if found else None, kernels=list(rows.values()))
        beside = f"; with the library's template: {row['library']['sentence']}" if "library" in row else ""
        print(f"{task.name}: {row.get('error') or row['sentence']}{beside} {row['seconds']} s", flush=True)
    return 0


if __name__ == "__main__":
    execute(main)
