"""Replays tables of measurements: what a strategy would have found, after how many points and how much time.

Owns the replay and its statistics. Reading tables is in `tunesmith.kernels.search.tables`, the strategies in
`tunesmith.kernels.search`. A point costs the table's own compile and benchmark time; with several workers, results
come back in the order in which they would have been ready.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunesmith.kernels.search import Observation, Prior, SearchError, Strategy, make_strategy
from tunesmith.kernels.search.tables import Table, read_cache
from tunesmith.kernels.space import Space


@dataclass(frozen=True, slots=True)
class Run:
    """One search on one table. best[i]: best found over the optimum after i + 1 results, inf before the first
    success. clock[i]: simulated seconds when result i came back. own_seconds: time spent in the strategy itself."""

    best: NDArray[np.float64]
    clock: NDArray[np.float64]
    asks: int
    own_seconds: float

    def after(self, budget: int) -> float:
        """Best found over the optimum after `budget` results (or all, when the space is smaller)."""
        return float(self.best[min(budget, len(self.best)) - 1])


@dataclass(frozen=True, slots=True)
class TableResult:
    """All runs of one table; `optimum` in milliseconds."""

    name: str
    optimum: float
    runs: tuple[Run, ...]

    def quantiles(self, budget: int) -> tuple[float, float, float]:
        """Median, 10th and 90th percentile over the seeds of best found over the optimum."""
        found = np.array([run.after(budget) for run in self.runs])
        low, median, high = (float(np.quantile(found, share, method="nearest")) for share in (0.1, 0.5, 0.9))
        return median, low, high

    def mean_log_ratio(self, budget: int) -> float:
        """Mean over the seeds of the logarithm of best found over the optimum."""
        return float(np.mean([math.log(run.after(budget)) for run in self.runs]))

    @property
    def milliseconds_per_ask(self) -> float:
        """The strategy's own time per asked point, asks and tells together."""
        return 1e3 * sum(run.own_seconds for run in self.runs) / max(1, sum(run.asks for run in self.runs))


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """What `simulate` found."""

    strategy: str
    budgets: tuple[int, ...]
    workers: int
    tables: tuple[TableResult, ...]

    def geomean(self, budget: int) -> float:
        """The geometric mean over the tables of the median after `budget` results."""
        return float(np.exp(np.mean([math.log(table.quantiles(budget)[0]) for table in self.tables])))

    def mean_log_ratio(self, budget: int) -> float:
        """The mean over the tables of their mean log ratios: finer than medians where a table has few good values."""
        return float(np.mean([table.mean_log_ratio(budget) for table in self.tables]))

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values; a median is null where half of the runs had no success yet, a mean log ratio where
        one had none."""

        def row(table: TableResult, budget: int) -> dict[str, Any]:
            figures = (*table.quantiles(budget), table.mean_log_ratio(budget))
            names = ("median", "p10", "p90", "mean_log_ratio")
            return {"budget": budget, **dict(zip(names, map(_finite, figures), strict=True))}

        return {
            "tables": [
                {
                    "name": table.name,
                    "optimum": table.optimum,
                    "results": [row(table, budget) for budget in self.budgets],
                    "strategy_ms_per_ask": round(table.milliseconds_per_ask, 4),
                }
                for table in self.tables
            ],
            "geomean": {str(budget): _finite(self.geomean(budget)) for budget in self.budgets},
            "mean_log_ratio": {str(budget): _finite(self.mean_log_ratio(budget)) for budget in self.budgets},
        }


def simulate(
    tables: Sequence[Path],
    strategy: str = "default",
    budgets: Sequence[int] = (25, 50, 100, 200, 400),
    seeds: int = 25,
    workers: int = 1,
    prior: Path | None = None,
) -> SimulationReport:
    """Runs `strategy` on each table with seeds 0 to `seeds` - 1 and `workers` points in flight.

    prior: a table, of another device say, whose results the search may use. Failed points count. Raises `SearchError`
    for a nonsensical request and `CacheFileError` for an unreadable table.
    """
    if not tables or not budgets or min(budgets) < 1 or seeds < 1 or workers < 1:
        raise SearchError("A simulation needs at least one table, one seed and one worker, and budgets of at least 1.")
    results = []
    source = None if prior is None else Prior.from_table(prior)
    for path in tables:
        table = ReplayedTable(read_cache(path))

        def start(seed: int, space: Space = table.space) -> Strategy:
            return make_strategy(strategy, space, seed=seed, budget=max(budgets), workers=workers, prior=source)

        runs = tuple(table.run(start, seed, max(budgets), workers) for seed in range(seeds))
        results.append(TableResult(table.name, table.optimum, runs))
    return SimulationReport(strategy, tuple(sorted(set(budgets))), workers, tuple(results))


class ReplayedTable:
    """A table as a device: the result and the cost of each point of its space."""

    def __init__(self, table: Table) -> None:
        self.space: Space = table.space()
        self.name, self.optimum = table.name, table.optimum
        place = {tuple(row): position for position, row in enumerate(table.codes.tolist())}
        order = [place[tuple(row)] for row in self.space.codes.tolist()]
        self.times = table.times[order]
        self.failures = [table.failures[position] for position in order]
        self.seconds = table.costs[order] * 1e-3

    def run(
        self, start: Callable[[int], Strategy], seed: int, budget: int, workers: int = 1, *, to_optimum: bool = False
    ) -> Run:
        """The search that `start` makes from `seed`, until `budget` results, with `workers` points in flight.

        to_optimum: end as soon as the optimum is found, after which no further result can change `Run.after`.
        """
        started = time.perf_counter()
        strategy = start(seed)
        own = time.perf_counter() - started
        flight: list[tuple[float, int, int]] = []
        now, asks, best = 0.0, 0, math.inf
        found: list[float] = []
        clock: list[float] = []
        while len(found) < budget and not (to_optimum and best <= 1.0):
            while len(flight) < workers and asks < budget:
                started = time.perf_counter()
                config = strategy.ask()
                own += time.perf_counter() - started
                if config is None:
                    break
                point = self.space.index(config)
                if point is None:
                    raise AssertionError(f"{strategy.name} asked an infeasible point: {config}")
                heapq.heappush(flight, (now + float(self.seconds[point]), asks, point))
                asks += 1
            if not flight:
                break
            now, _, point = heapq.heappop(flight)
            failure = self.failures[point]
            value = None if failure is not None else float(self.times[point])
            if value is not None:
                best = min(best, value / self.optimum)
            found.append(best)
            clock.append(now)
            started = time.perf_counter()
            strategy.tell(self.space.config(point), Observation(value, failure=failure))
            own += time.perf_counter() - started
        return Run(np.array(found), np.array(clock), asks, own)


def _finite(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None
