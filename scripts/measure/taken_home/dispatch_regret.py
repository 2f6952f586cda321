"""What a run's dispatch rule costs on shapes that neither its tuning nor the fitting of the rule saw.

    python scripts/measure/taken_home/dispatch_regret.py RUN FILE [SHAPES [SEED]]

Draws SHAPES (30) shapes of the task's ranges anew, measures the run's kernels and the baseline on each as the final
comparison does, and writes to FILE, as JSON, what each way to choose a kernel would have taken there. The run's journal
stays as it is.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

from tunesmith.actors.pool.pool import Request
from tunesmith.graph.context import Context
from tunesmith.graph.dispatch.findings import beats, dispatching
from tunesmith.graph.dispatch.measuring import can_launch, kernels_of
from tunesmith.graph.dispatch.shapes import draw_shapes
from tunesmith.graph.journal.events import ShapeCompared
from tunesmith.graph.roles.baseline import baseline_request
from tunesmith.graph.run import OpenRun, opened, pools, resumed
from tunesmith.kernels.measure.timing import Comparison
from tunesmith.kernels.outcome import describe
from tunesmith.kernels.spec.parameter import assignments
from tunesmith.kernels.spec.task import Workload

BASELINE = -1
ROUNDS, SECONDS = 20, 0.1
"""Most rounds, and seconds of sampling for each kernel on each shape."""
NOISE = 0.02
"""How much slower than the baseline a choice may be measured before it is counted, whatever its interval says."""
SEED = 29_000_003


def main() -> int:
    run, file = Path(sys.argv[1]), Path(sys.argv[2])
    shapes, seed = [*map(int, sys.argv[3:5]), *(30, 1)[len(sys.argv[3:5]) :]]
    # In a copy, so that a run that somebody else reads is neither locked nor changed.
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / run.name
        copytree(run, copy)
        with resumed(copy) as here, opened(here) as context:
            found = measure(here, context, shapes, seed)
    file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


def measure(run: OpenRun, context: Context, shapes: int, seed: int) -> dict[str, Any]:
    verdict = context.log.verdict()
    found = None if verdict is None else dispatching(context, verdict)
    if verdict is None or found is None:
        raise SystemExit(f"{run.folder} has no kernel to dispatch to.")
    kernels = kernels_of(verdict)
    drawn = unseen(run, context, shapes, seed)
    wider = run.task.model_copy(update={"workloads": (*run.task.workloads, *drawn)})
    general = 0 if verdict.general is not None else BASELINE
    table = general if beats(verdict) else BASELINE
    rows = []
    with pools(wider, run.device, run.settings, []) as make_pool:
        measuring = replace(context, task=wider, make_pool=make_pool, models=None)
        try:
            for shape in drawn:
                usable = [
                    at
                    for at, one in enumerate(kernels)
                    if can_launch(context, context.template(one.template), shape, one)
                ]
                requests = [
                    Request(at + 1, context.template(kernels[at].template), kernels[at].config, (shape.name,))
                    for at in usable
                ]
                compared = measuring.pool.compare(
                    baseline_request(measuring, [shape]),
                    requests,
                    shape.name,
                    seed=run.settings.seed + SEED,
                    rounds=ROUNDS,
                    budget_seconds=SECONDS,
                )
                measured = dict(zip(usable, compared.results, strict=True))
                rows.append(
                    {
                        "shape": shape.sizes,
                        "types": shape.types,
                        "ratios": {
                            str(at): [one.ratio, one.low, one.high]
                            for at, one in measured.items()
                            if isinstance(one, Comparison)
                        },
                        "baseline_us": next(
                            (one.baseline.median * 1e6 for one in measured.values() if isinstance(one, Comparison)),
                            None,
                        ),
                        "failed": {
                            str(at): describe(one) for at, one in measured.items() if not isinstance(one, Comparison)
                        },
                        "choices": {
                            "rule": found.rule.kernel(shape),
                            "general": general,
                            "table": table,
                            "baseline": BASELINE,
                        },
                    }
                )
        finally:
            measuring.close()
    return {
        "kernels": [f"{one.template}: {assignments(one.config)}" for one in kernels],
        "rule": list(found.lines),
        "fitted": found.fitted,
        "policies": policies(rows),
        "shapes": rows,
    }


def unseen(run: OpenRun, context: Context, count: int, seed: int) -> tuple[Workload, ...]:
    """Drawn anew; none of the task's own shapes, and none that the run has measured."""
    known = {_key(event.workload) for event in context.log.events(ShapeCompared)}
    baseline = context.sources.baseline.template
    drawn = draw_shapes(
        run.task,
        run.device.limits.kind,
        count + len(known),
        seed=run.settings.seed + SEED + seed,
        fits=lambda shape: can_launch(context, baseline, shape),
    )
    return tuple(one for one in drawn if _key(one) not in known)[:count]


def _key(workload: Workload) -> tuple[tuple[str, Any], ...]:
    return (*sorted(workload.sizes.items()), *sorted(workload.types.items()))


def policies(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What each way to choose costs over all shapes on which something was measured. regret: time over that of the
    fastest kernel there, the baseline included, less 1; slower: shapes on which the choice is shown to be slower than
    the baseline (by the 99 % interval); clearly_slower: those of them by more than `NOISE`. A kernel that was not
    measured on a shape, as it cannot be launched or failed there, gives way to the baseline, as in what is exported.
    """
    rows = [row for row in rows if row["ratios"]]
    if not rows:
        return []
    found = []
    for name in [*rows[0]["choices"], "oracle"]:
        regrets, slower, clearly, speed = [], 0, 0, []
        for row in rows:
            ratios = {int(at): ratio for at, ratio in row["ratios"].items()} | {BASELINE: [1.0, 1.0, 1.0]}
            best = min(ratios, key=lambda at: ratios[at][0])
            chosen = best if name == "oracle" else row["choices"][name]
            ratio, low, _ = ratios.get(chosen, ratios[BASELINE])
            regrets.append((ratio / ratios[best][0] - 1, row["shape"]))
            speed.append(1 / ratio)
            slower += low > 1
            clearly += low > 1 and ratio > 1 + NOISE
        worst = max(regrets, key=lambda one: one[0])
        found.append(
            {
                "policy": name,
                "shapes": len(rows),
                "median_regret": round(statistics.median(regret for regret, _ in regrets), 5),
                "worst_regret": round(worst[0], 5),
                "worst_shape": worst[1],
                "speedup": round(statistics.geometric_mean(speed), 4),
                "slower": slower,
                "clearly_slower": clearly,
            }
        )
    return found


if __name__ == "__main__":
    sys.exit(main())
