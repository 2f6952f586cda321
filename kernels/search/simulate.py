"""Replays tables of measurements: how good a point a strategy would have found, after how many.

A point costs the table's own compile and benchmark time; with several workers, results come back in the order in which
they would have been ready.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.search import Observation, Prior, make_strategy
from tunesmith.kernels.search.tables import Table, read_cache


def simulate(
    tables: Sequence[Path],
    strategy: str = "default",
    budgets: Sequence[int] = (25, 50, 100, 200, 400),
    seeds: int = 25,
    workers: int = 1,
    prior: Path | None = None,
) -> dict[str, Any]:
    """Runs `strategy` on each table with seeds 0 to `seeds` - 1 and `workers` points in flight. Failed points count.

    prior: a table, of another device say, whose results the search may use. Gives JSON values: for each table its
    optimum in milliseconds, and by budget the median, the 10th and the 90th percentile over the seeds of the best found
    over the optimum, and the mean of its logarithm; over all tables the geometric mean of the medians and the mean of
    the mean logarithms. Null where nothing was found yet. Raises `TunesmithError` for a nonsensical request and
    `TunesmithError` for an unreadable table.
    """
    if not tables or not budgets or min(budgets) < 1 or seeds < 1 or workers < 1:
        raise TunesmithError("A simulation needs a table, a seed and a worker at least, and budgets of at least 1.")
    budgets, source = sorted(set(budgets)), None if prior is None else Prior.from_table(prior)
    entries: list[dict[str, Any]] = []
    figures = np.empty((len(tables), len(budgets), 4))
    for path, rows in zip(tables, figures, strict=True):
        table = read_cache(path)
        runs = [replay(table, strategy, seed, budgets[-1], workers, source) for seed in range(seeds)]
        for budget, row in zip(budgets, rows, strict=True):
            # All results where the space is smaller than the budget.
            found = [best[min(budget, len(best)) - 1] for best, *_ in runs]
            row[:] = *np.quantile(found, (0.5, 0.1, 0.9), method="nearest"), np.mean(np.log(found))
        own = sum(seconds for *_, seconds in runs) / max(1, sum(asks for _, _, asks, _ in runs))
        names = ("median", "p10", "p90", "mean_log_ratio")
        results = [
            {"budget": budget, **dict(zip(names, map(_finite, row.tolist()), strict=True))}
            for budget, row in zip(budgets, rows, strict=True)
        ]
        entry = {"name": table.name, "optimum": table.optimum, "results": results}
        entries.append(entry | {"strategy_ms_per_ask": round(1e3 * own, 4)})
    geomeans, logs = np.exp(np.log(figures[:, :, 0]).mean(axis=0)), figures[:, :, 3].mean(axis=0)
    return {
        "tables": entries,
        "geomean": {str(budget): _finite(float(one)) for budget, one in zip(budgets, geomeans, strict=True)},
        "mean_log_ratio": {str(budget): _finite(float(one)) for budget, one in zip(budgets, logs, strict=True)},
    }


def replay(
    table: Table, name: str, seed: int, budget: int, workers: int = 1, prior: Prior | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64], int, float]:
    """The search of the strategy `name` on `table`, until `budget` results, with `workers` points in flight. Gives for
    each result the best found by then over the optimum, inf before the first success, and the simulated seconds when it
    came back; the number of asks; the seconds spent in the strategy itself."""
    space, optimum = table.space, table.optimum
    started = time.perf_counter()
    strategy = make_strategy(name, space, seed=seed, budget=budget, workers=workers, prior=prior)
    own = time.perf_counter() - started
    flight: list[tuple[float, int, int]] = []
    now, asks, best = 0.0, 0, math.inf
    found: list[float] = []
    clock: list[float] = []
    while len(found) < budget:
        while len(flight) < workers and asks < budget:
            started = time.perf_counter()
            config = strategy.ask()
            own += time.perf_counter() - started
            if config is None:
                break
            point = space.index(config)
            if point is None:
                raise AssertionError(f"{strategy.name} asked an infeasible point: {config}")
            result = table.results[point]
            ready = now + (result.compile_time + result.benchmark_time) * 1e-3
            heapq.heappush(flight, (ready, asks, point))
            asks += 1
        if not flight:
            break
        now, _, point = heapq.heappop(flight)
        result = table.results[point]
        if result.time is not None:
            best = min(best, result.time / optimum)
        found.append(best)
        clock.append(now)
        started = time.perf_counter()
        strategy.tell(result.config, Observation(result.time, failure=result.failure))
        own += time.perf_counter() - started
    return np.array(found), np.array(clock), asks, own


def _finite(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None
