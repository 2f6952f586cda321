"""Points with planted killers against the same points without: what is typed how, what it costs, and what is found."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tunesmith.actors.cluster.cluster import cluster
from tunesmith.actors.pool.pool import Deadlines, Pool, Request
from tunesmith.cli.measure.pool.planted import KILLER, KILLERS, is_right, planted, with_killers
from tunesmith.cli.measure.pool.pool_runs import Place, Stretch, make_pool, progress, ready, stretch
from tunesmith.kernels.build.artifact_cache import ArtifactCache
from tunesmith.kernels.measure.timing import Comparison
from tunesmith.kernels.outcome import Evaluation, Measured, describe
from tunesmith.kernels.spec.parameter import config_key
from tunesmith.kernels.spec.template import Template

HUNG_SECONDS = 1.0
"""What a hung kernel may cost beyond its deadline."""
FINALISTS = 5
ROUNDS = 30
SECONDS = 1.0
"""For a finalist in the comparison."""


def measure_killers(place: Place, compilers: int) -> dict[str, Any]:
    """Points with planted killers against the same points without, each in a fresh pool on a cold cache; then the
    fastest of both against each other, as a tuning does in its end."""
    template, backend = with_killers(place.template), place.device.backend
    plain = place.configs(place.template, place.killers)
    deadlines = Deadlines(visit=4.0)
    runs: dict[str, tuple[Stretch, list[Evaluation], float]] = {}
    points = {
        "without": [{**config, KILLER: 0} for config in plain],
        "with": planted(plain, backend, 0.05, place.seed),
    }
    with cluster():
        for name, configs in points.items():
            with tempfile.TemporaryDirectory() as folder:
                began = time.monotonic()
                with make_pool(place, ArtifactCache(Path(folder)), 1, compilers, deadlines=deadlines) as pool:
                    ready(pool)
                    found, evaluations = stretch(pool, place, template, configs)
                runs[name] = (found, evaluations, time.monotonic() - began)
                progress(name, found)
        with make_pool(place, None, 1, compilers) as pool:
            ready(pool)
            final = compare_best(pool, place, template, {name: found for name, (_, found, _) in runs.items()})
    wrong, kinds = [], Counter[str]()
    for config, evaluation in zip(points["with"], runs["with"][1], strict=True):
        outcome = evaluation.outcomes[place.workload]
        kind = int(config[KILLER])
        kinds[f"{KILLERS[backend][kind].what if kind else 'healthy'}: {outcome.kind}"] += 1
        if not is_right(config, outcome, backend):
            wrong.append({"config": config, "outcome": describe(outcome)})
    endless = sum(KILLERS[backend][int(c[KILLER])].what == "endless loop" for c in points["with"] if c[KILLER])
    waited = endless * deadlines.visit
    return {
        "points": len(plain),
        "killers": sum(bool(config[KILLER]) for config in points["with"]),
        "outcomes": dict(kinds),
        "wrongly_typed": wrong,
        **final,
        "deadline_seconds": deadlines.visit,
        "endless": endless,
        # (time with killers - deadlines of the endless ones) / time without; and with the second that a hung kernel may
        # cost beyond its deadline.
        "ratio_of_search": round((runs["with"][0].seconds - waited) / runs["without"][0].seconds, 3),
        "ratio_with_seconds": round(
            (runs["with"][0].seconds - waited - endless * HUNG_SECONDS) / runs["without"][0].seconds, 3
        ),
        "ratio_with_start": round((runs["with"][2] - waited) / runs["without"][2], 3),
        "runs": {name: asdict(found) | {"with_start": round(whole, 3)} for name, (found, _, whole) in runs.items()},
    }


def compare_best(
    pool: Pool, place: Place, template: Template, runs: Mapping[str, Sequence[Evaluation]]
) -> dict[str, Any]:
    """The winner of each run: the fastest of its `FINALISTS` when those of both runs are measured against each other.
    A killer in the place of a run's best is no loss of the pool's, so only points that are healthy in both count."""
    times = {name: _times(found, place.workload) for name, found in runs.items()}
    healthy = set.intersection(*(set(found) for found in times.values()))
    finalists = {name: sorted(healthy, key=lambda key: found[key])[:FINALISTS] for name, found in times.items()}
    keys = list(dict.fromkeys(key for found in finalists.values() for key in found))
    configs = {config_key(one.config): one.config for found in runs.values() for one in found}
    requests = [Request(number, template, configs[key], (place.workload,)) for number, key in enumerate(keys)]
    compared = pool.compare(
        requests[0], requests, place.workload, seed=place.seed + 1, rounds=ROUNDS, budget_seconds=SECONDS
    )
    seconds = {
        key: one.candidate.median
        for key, one in zip(keys, compared.results, strict=True)
        if isinstance(one, Comparison)
    }
    winners = {
        name: min((key for key in found if key in seconds), key=lambda key: seconds[key])
        for name, found in finalists.items()
    }
    return {
        "same_best": winners["with"] == winners["without"],
        "best_over_best": round(seconds[winners["with"]] / seconds[winners["without"]], 4),
        "best": {name: configs[key] for name, key in winners.items()},
        "finalists": {
            name: [round(1e6 * seconds[key], 3) for key in found if key in seconds] for name, found in finalists.items()
        },
    }


def _times(evaluations: Sequence[Evaluation], workload: str) -> dict[str, float]:
    return {
        config_key(one.config): outcome.seconds
        for one in evaluations
        if isinstance(outcome := one.outcomes[workload], Measured)
    }
