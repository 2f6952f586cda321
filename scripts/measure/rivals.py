"""Our search beside published ones on recorded tables: best found after so many evaluations, the same seeds for all.

    python scripts/measure/rivals.py --out OUT --tables FOLDER [--tables FOLDER] [--only a,b] [--seeds 100:125]

Every `*.json.gz` of the folders is replayed. A strategy chooses among the table's configurations one at a time, and a
run ends when it has found the optimum. The record is written after each seed, with the mean log ratios of best found to
optimum in per cent over the seeds so far, by table.

The rival is `optuna-gp`: the process of Optuna's GPSampler (its kernel, priors and fit) with its log expected
improvement at all configurations of the table, since the sampler itself knows no list of feasible points. It needs
PyTorch; where it is not installed, the record says so. All models see the logarithm of the time, and a failure as the
slowest time so far.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunesmith.cli.measure.runner import Record, execute, parser_of
from tunesmith.kernels.search import STRATEGIES, Strategy, make_strategy
from tunesmith.kernels.search.simulate import ReplayedTable, Run
from tunesmith.kernels.search.tables import read_cache
from tunesmith.kernels.space import Space

Floats = NDArray[np.float64]
FIRST = 8
"""Random points before the Gaussian process is asked."""


class OptunaGp(Strategy):
    name = "optuna-gp"

    def __init__(self, space: Space, *, seed: int, budget: int) -> None:
        super().__init__(space, seed=seed, budget=budget)
        self._rows, self._model = scaled(space), None

    def _propose(self, rng: np.random.Generator) -> int | None:
        import torch
        from optuna._gp import acqf, gp, prior

        if len(self.known) < FIRST or self.best is None:
            return self._fresh(rng)[0]
        known = list(self.known)
        slowest = max(seen.value for seen in self.known.values() if seen.value is not None)
        logs = np.log([self.known[point].value or slowest for point in known])
        # Optuna maximises.
        values = -(logs - logs.mean()) / (logs.std() + 1e-9)
        model: Any = gp.fit_kernel_params(
            X=self._rows[known],
            Y=values,
            is_categorical=np.zeros(self._rows.shape[1], dtype=bool),
            log_prior=prior.default_log_prior,
            minimum_noise=prior.DEFAULT_MINIMUM_NOISE_VAR,
            deterministic_objective=False,
            gpr_cache=self._model,
        )
        self._model = model
        with torch.no_grad():
            mean, variance = model.posterior(torch.from_numpy(self._rows))
            scores = np.array(acqf.logei(mean=mean, var=variance + 1e-12, f0=float(values.max())).numpy())
        scores[known] = -np.inf
        return int(np.argmax(scores))

    def _method(self) -> str:
        return self.name


def scaled(space: Space) -> Floats:
    """The points of `space` in the unit cube: ranks of numbers, one column for each value of anything else."""
    columns: list[Floats] = []
    for position, parameter in enumerate(space.parameters):
        codes, count = space.codes[:, position], len(parameter.values)
        if count > 2 and not parameter.ordered:
            columns.extend((codes == value).astype(np.float64) for value in range(count))
        elif count > 1:
            ranks = space.domain.rank(position) if parameter.ordered else np.arange(count)
            columns.append(ranks[codes] / (count - 1))
    return np.stack(columns, axis=1)


@cache
def _table(path: Path) -> ReplayedTable:
    return ReplayedTable(read_cache(path))


def one_run(name: str, path: Path, seed: int, budget: int) -> Run | str:
    """One search; a text where it cannot run."""

    def start(seed: int) -> Strategy:
        make = OptunaGp if name == OptunaGp.name else partial(make_strategy, name)
        return make(_table(path).space, seed=seed, budget=budget)

    try:
        return _table(path).run(start, seed, budget, to_optimum=True)
    except Exception as error:  # noqa: BLE001 (another library's code: its mistake is a result)
        return repr(error)[:300]


def row_of(name: str, runs: dict[str, list[Run]], budgets: Sequence[int]) -> dict[str, Any]:
    """Of a strategy's runs by table: mean log ratios by budget and table, in per cent, and milliseconds an ask."""
    row: dict[str, Any] = {"strategy": name}
    for budget in budgets:
        # Inf where nothing was found yet: such a mean says so.
        row[str(budget)] = {
            table: 100 * float(np.mean([math.log(run.after(budget)) for run in some])) for table, some in runs.items()
        }
    whole = [run for some in runs.values() for run in some]
    return row | {"ms_per_ask": round(1e3 * sum(run.own_seconds for run in whole) / sum(run.asks for run in whole), 2)}


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--tables", type=Path, action="append", required=True, help="a folder of *.json.gz; repeatable")
    parser.add_argument("--only", default="", help="names of tables, separated by commas; all by default")
    parser.add_argument("--strategies", default="default,optuna-gp,random")
    parser.add_argument("--budgets", default="50,100,200")
    parser.add_argument("--seeds", default="100:125", help="from:to, to excluded")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    names, wanted = given.strategies.split(","), set(filter(None, given.only.split(",")))
    for name in names:
        if name not in (*STRATEGIES, OptunaGp.name):
            parser.error(f"--strategies: {name} is not one of {', '.join([*STRATEGIES, OptunaGp.name])}")
    record, first_to_last = Record(given), given.seeds.split(":")
    found = {path.name.partition(".")[0]: path for one in given.tables for path in sorted(one.glob("*.json.gz"))}
    tables = {name: path for name, path in found.items() if not wanted or name in wanted}
    budgets = sorted(int(part) for part in given.budgets.split(","))
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = "1"
    runs: dict[str, dict[str, list[Run]]] = {name: {table: [] for table in tables} for name in names}
    errors: dict[str, str] = {}
    with ProcessPoolExecutor(given.processes, mp_context=get_context("spawn")) as pool:
        for seed in range(*map(int, first_to_last)):
            tasks = [(name, table) for table in tables for name in names if name not in errors]
            futures = [pool.submit(one_run, name, tables[table], seed, budgets[-1]) for name, table in tasks]
            for (name, table), future in zip(tasks, futures, strict=True):
                done = future.result()
                if isinstance(done, str):
                    errors[name] = done
                else:
                    runs[name][table].append(done)
            rows = [row_of(name, some, budgets) for name, some in runs.items() if name not in errors]
            record.write(seeds=f"{first_to_last[0]}:{seed + 1}", errors=errors, rows=rows)
    for row in rows:
        cells = [f"@{budget} {np.mean(list(row[str(budget)].values())):6.2f} %" for budget in budgets]
        print(f"{row['strategy']:12} {'  '.join(cells)}  {row['ms_per_ask']} ms an ask")
    print(f"{len(tables)} tables, seeds {given.seeds}", *(f"; {name}: {text}" for name, text in errors.items()))
    return 0


if __name__ == "__main__":
    execute(main)
