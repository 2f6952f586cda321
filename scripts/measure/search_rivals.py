"""Our search beside published ones on recorded tables: best found after so many evaluations, the same seeds for all.

    python scripts/measure/search_rivals.py --tables DIR --seconds 480 --processes 16 --out rivals.json

Every `*.json.gz` of the folders is replayed (`--only` picks some by name), and with `--slices N` also N tables made
from each: without the points that have the optimum's value of one parameter, which moves the optimum elsewhere. A
strategy chooses among the table's configurations one at a time; a run ends when it has found the optimum. The runs are
done in the order of the seeds and end with the time that was given: a seed counts for a strategy if all its tables were
complete by then. `surrogate+MEAN_SHARE=0` is a strategy with a constant of its class changed.

Printed are the mean log ratios of best found to optimum in per cent, over the tables and seeds that a strategy and the
first one both have, in brackets those of the first one; and what leave-one-kernel-out chooses: for each kernel the
strategy that is best on the tables of all others, judged on its own.

All models see the logarithm of the time; the rivals' see a failure as the slowest time so far, and their first eight
points are random. Rivals are imported when they are used; one that is not installed is reported as such. They run as
follows.

- `optuna-gp`: the process of Optuna's GPSampler (its kernel, priors and fit) with its log expected improvement at all
  configurations of the table, since the sampler itself knows no list of feasible points.
- `optuna-tpe`: Optuna's TPESampler; what it suggests is replaced by the nearest configuration of the table that is new.
- `botorch`: BoTorch's SingleTaskGP and log expected improvement with their defaults, at all configurations.
- `botorch-anova`: the same with the kernel and the priors of `surrogate`, so that only the fit is different.
- `smac`: the random forest of SMAC's HyperparameterOptimizationFacade, expected improvement at all configurations, and
  one point in five at random as that facade has it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tunesmith.kernels.search import STRATEGIES, Observation, Strategy, make_strategy
from tunesmith.kernels.search.cachefile import Table, read_cache
from tunesmith.kernels.search.simulate import ReplayedTable, Run, TableResult
from tunesmith.kernels.search.surrogate.acquisition import log_expected_improvement
from tunesmith.kernels.search.surrogate.gaussian import INTERACTION, LENGTH, NOISE, SCALE, features
from tunesmith.kernels.search.surrogate.search import SurrogateSearch
from tunesmith.kernels.space.space import Space

Floats = NDArray[np.float64]


class Rival(Strategy):
    """Asks eight random points, then what `_scores` ranks first of the points of a listed space that are new."""

    FIRST: ClassVar[int] = 8

    def __init__(self, space: Space, *, seed: int, budget: int) -> None:
        super().__init__(space, seed=seed, budget=budget)
        self._rows = scaled(space)

    def _propose(self, rng: np.random.Generator) -> int | None:
        if len(self.known) < self.FIRST or self.best is None:
            return self._fresh(rng)[0]
        known = list(self.known)
        slowest = max(seen.value for seen in self.known.values() if seen.value is not None)
        logs = np.log([self.known[point].value or slowest for point in known])
        values = (logs - logs.mean()) / (logs.std() + 1e-9)
        scores = self._scores(known, values, rng)
        scores[known] = -np.inf
        return int(np.argmax(scores))

    def _scores(self, known: Sequence[int], values: Floats, rng: np.random.Generator) -> Floats:
        """How much every point of the space is worth asking, given the standardised `values` of the `known` ones."""
        raise NotImplementedError

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
            columns.append(
                (space.domain.rank(position) if parameter.ordered else np.arange(count))[codes] / (count - 1)
            )
    return np.stack(columns, axis=1)


class OptunaGp(Rival):
    name = "optuna-gp"
    _last: Any = None

    def _scores(self, known: Sequence[int], values: Floats, rng: np.random.Generator) -> Floats:
        import torch
        from optuna._gp import acqf, gp, prior

        # Optuna maximises.
        self._last = gp.fit_kernel_params(
            X=self._rows[known],
            Y=-values,
            is_categorical=np.zeros(self._rows.shape[1], dtype=bool),
            log_prior=prior.default_log_prior,
            minimum_noise=prior.DEFAULT_MINIMUM_NOISE_VAR,
            deterministic_objective=False,
            gpr_cache=self._last,
        )
        with torch.no_grad():
            mean, variance = self._last.posterior(torch.from_numpy(self._rows))
            scores = acqf.logei(mean=mean, var=variance + 1e-12, f0=float((-values).max()))
        return np.array(scores.numpy())


class OptunaTpe(Strategy):
    name = "optuna-tpe"

    def __init__(self, space: Space, *, seed: int, budget: int) -> None:
        import optuna

        super().__init__(space, seed=seed, budget=budget)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._optuna, self._codes = optuna, space.codes
        self._study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
        self._ranges = {
            parameter.name: optuna.distributions.IntDistribution(0, len(parameter.values) - 1)
            if parameter.ordered
            else optuna.distributions.CategoricalDistribution(tuple(range(len(parameter.values))))
            for parameter in space.parameters
        }

    def _propose(self, rng: np.random.Generator) -> int | None:
        trial = self._study.ask(self._ranges)
        self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        wanted = np.array([trial.params[parameter.name] for parameter in self.space.parameters])
        apart = np.abs(self._codes.astype(np.int64) - wanted)
        # The fewest parameters that differ, then the fewest steps.
        distance = (apart > 0).sum(axis=1) + 1e-3 * apart.sum(axis=1)
        distance[list(self.known)] = np.inf
        return int(np.argmin(distance))

    def _note_told(self, point: int, observation: Observation) -> None:
        slowest = max((seen.value for seen in self.known.values() if seen.value is not None), default=1.0)
        params = {
            parameter.name: int(code) for parameter, code in zip(self.space.parameters, self._codes[point], strict=True)
        }
        self._study.add_trial(
            self._optuna.trial.create_trial(
                params=params, distributions=self._ranges, value=math.log(observation.value or slowest)
            )
        )

    def _method(self) -> str:
        return self.name


class Botorch(Rival):
    name = "botorch"

    def _kernel(self) -> Any:
        """The covariance, None for BoTorch's default."""
        return None

    def _likelihood(self) -> Any:
        return None

    def _scores(self, known: Sequence[int], values: Floats, rng: np.random.Generator) -> Floats:
        import torch
        from botorch.acquisition import LogExpectedImprovement
        from botorch.fit import fit_gpytorch_mll
        from botorch.models import SingleTaskGP
        from gpytorch.mlls import ExactMarginalLogLikelihood

        rows, told = torch.from_numpy(self._rows[known]), torch.from_numpy(-values[:, None])
        model = SingleTaskGP(
            rows, told, covar_module=self._kernel(), likelihood=self._likelihood(), outcome_transform=None
        )
        likelihood = ExactMarginalLogLikelihood(model.likelihood, model)
        fit_gpytorch_mll(likelihood, optimizer_kwargs={"options": {"maxiter": 50}})
        improvement = LogExpectedImprovement(model, best_f=told.max())
        with torch.no_grad():
            return np.array(improvement(torch.from_numpy(self._rows)[:, None, :]).numpy())


class BotorchAnova(Botorch):
    name = "botorch-anova"

    def __init__(self, space: Space, *, seed: int, budget: int) -> None:
        super().__init__(space, seed=seed, budget=budget)
        described = features(space.domain)
        self._rows = np.concatenate([table[space.codes[:, column]] for column, table in described], axis=1)
        self._widths = [table.shape[1] for _, table in described]

    def _kernel(self) -> Any:
        return _anova_kernel()(self._widths)

    def _likelihood(self) -> Any:
        from gpytorch.constraints import GreaterThan
        from gpytorch.likelihoods import GaussianLikelihood
        from gpytorch.priors import LogNormalPrior

        return GaussianLikelihood(
            noise_prior=LogNormalPrior(*NOISE), noise_constraint=GreaterThan(1e-6, initial_value=math.exp(NOISE[0]))
        )


@cache
def _anova_kernel() -> Any:
    import torch
    from gpytorch.constraints import Positive
    from gpytorch.kernels import Kernel
    from gpytorch.priors import LogNormalPrior

    class Anova(Kernel):  # type: ignore[misc,unused-ignore]
        """A product over the parameters of (1 + a k) / (1 + a), k a squared exponential, times a scale."""

        def __init__(self, widths: Sequence[int]) -> None:
            super().__init__()
            self.widths = list(widths)
            for name, count, (mean, deviation) in (
                ("lengths", sum(widths), LENGTH),
                ("interactions", len(widths), INTERACTION),
                ("scale", 1, SCALE),
            ):
                self.register_parameter(f"raw_{name}", torch.nn.Parameter(torch.full((count,), 0.0)))
                self.register_constraint(f"raw_{name}", Positive(transform=torch.exp, inv_transform=torch.log))
                self.initialize(**{f"raw_{name}": torch.full((count,), mean)})
                self.register_prior(
                    f"{name}_prior",
                    LogNormalPrior(mean, deviation),
                    lambda module, name=name: getattr(module, f"raw_{name}").exp(),
                )

        def forward(self, x1: Any, x2: Any, diag: bool = False, **options: Any) -> Any:
            if diag:
                return self.raw_scale.exp().expand(x1.shape[:-1])
            lengths, weights = self.raw_lengths.exp(), self.raw_interactions.exp()
            ones, twos = (x1 / lengths).split(self.widths, -1), (x2 / lengths).split(self.widths, -1)
            result = self.raw_scale.exp()
            for one, two, weight in zip(ones, twos, weights, strict=True):
                apart = (one.unsqueeze(-2) - two.unsqueeze(-3)).square().sum(-1)
                result = result * (1.0 + weight * torch.exp(-0.5 * apart)) / (1.0 + weight)
            return result

    return Anova


class Smac(Rival):
    name = "smac"

    def __init__(self, space: Space, *, seed: int, budget: int) -> None:
        from ConfigSpace import ConfigurationSpace, UniformFloatHyperparameter
        from smac import HyperparameterOptimizationFacade, Scenario

        super().__init__(space, seed=seed, budget=budget)
        names = [f"x{column:03}" for column in range(self._rows.shape[1])]
        rooms = ConfigurationSpace()
        rooms.add([UniformFloatHyperparameter(name, 0.0, 1.0) for name in names])
        with tempfile.TemporaryDirectory() as folder:
            scenario = Scenario(rooms, deterministic=True, n_trials=budget, seed=seed, output_directory=Path(folder))
            self._forest = HyperparameterOptimizationFacade.get_model(scenario)

    def _scores(self, known: Sequence[int], values: Floats, rng: np.random.Generator) -> Floats:
        if rng.random() < 0.2:
            return rng.random(len(self._rows))
        self._forest.train(self._rows[known], values)
        mean, variance = self._forest.predict(self._rows)
        deviation = np.sqrt(np.maximum(variance[:, 0], 1e-10))
        # Of points that the forest cannot tell apart, any.
        return log_expected_improvement(float(values.min()), mean[:, 0], deviation) + 1e-9 * rng.random(len(mean))


RIVALS: dict[str, Callable[..., Strategy]] = {
    kind.name: kind for kind in (OptunaGp, OptunaTpe, Botorch, BotorchAnova, Smac)
}


SMALLEST_SLICE = 700
"""Points that a slice must have: fewer are soon all measured."""
MOVED = 1.005
"""How much slower than the optimum of the whole table that of a slice must be."""


def make(name: str, space: Space, seed: int, budget: int) -> Strategy:
    """The strategy called `name`: a rival, one of ours, or `surrogate` with constants changed."""
    if name in RIVALS:
        return RIVALS[name](space, seed=seed, budget=budget)
    known, *changes = name.split("+")
    if not changes:
        return make_strategy(known, space, seed=seed, budget=budget)
    constants = {constant: type(getattr(SurrogateSearch, constant))(value) for constant, value in map(_split, changes)}
    changed: type[SurrogateSearch] = type("Changed", (SurrogateSearch,), constants)
    return changed(space, seed=seed, budget=budget)


def _split(change: str) -> tuple[str, float]:
    constant, _, value = change.partition("=")
    return constant, float(value)


def slices(path: Path, count: int) -> list[str]:
    """Up to `count` parameters, evenly among those whose slices are large enough and have a slower optimum."""
    table = read_cache(path)
    found = [
        parameter.name
        for parameter in table.parameters
        if len(part := sliced(table, parameter.name)) >= SMALLEST_SLICE and part.optimum > MOVED * table.optimum
    ]
    return [found[len(found) * place // count] for place in range(count)] if len(found) > count else found


def sliced(table: Table, name: str) -> Table:
    """`table` without the points that have the optimum's value of the parameter `name`."""
    column = [parameter.name for parameter in table.parameters].index(name)
    kept = np.flatnonzero(table.codes[:, column] != table.codes[int(np.nanargmin(table.times)), column])
    return dataclasses.replace(
        table,
        name=f"{table.name}/{name}",
        codes=table.codes[kept],
        times=table.times[kept],
        failures=tuple(table.failures[place] for place in kept),
        compile_times=table.compile_times[kept],
        benchmark_times=table.benchmark_times[kept],
    )


@cache
def _table(path: Path, slice_of: str) -> ReplayedTable:
    table = read_cache(path)
    return ReplayedTable(sliced(table, slice_of) if slice_of else table)


def _begin() -> None:
    """In each process: one thread for PyTorch, and no warnings of the rivals about their data."""
    warnings.simplefilter("ignore")
    try:
        import torch
    except ImportError:
        return
    torch.set_num_threads(1)


def one_run(name: str, source: tuple[Path, str], seed: int, budget: int, until: float) -> Run | str | None:
    """One search, None where it was not complete at `until` (seconds since the epoch), a text where it cannot run."""
    if time.time() > until:
        return None
    table = _table(*source)

    def start(seed: int) -> Strategy:
        strategy = make(name, table.space, seed, budget)
        ask = strategy.ask

        def timed() -> Any:
            if time.time() > until:
                raise TimeoutError
            return ask()

        strategy.ask = timed  # type: ignore[method-assign]
        return strategy

    try:
        return table.run(start, seed, budget, to_optimum=True)
    except TimeoutError:
        return None
    except ImportError as error:
        return f"not installed: {error}"


Sources = dict[str, tuple[Path, str]]
"""The name of a table or slice -> its file, and the parameter by which it was sliced ("" for the whole table)."""


def compare(
    names: Sequence[str], sources: Sources, budgets: Sequence[int], seeds: range, processes: int, until: float
) -> dict[str, Any]:
    """The contents of `--out`: for each strategy and table the figures of the runs that were complete."""
    tasks = [(name, table, seed) for seed in seeds for table in sources for name in names]
    runs: dict[tuple[str, str], dict[int, Run]] = defaultdict(dict)
    errors: dict[str, str] = {}
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_begin) as pool:
        futures = [pool.submit(one_run, name, sources[table], seed, max(budgets), until) for name, table, seed in tasks]
        for (name, table, seed), future in zip(tasks, futures, strict=True):
            try:
                done = future.result()
            except Exception as error:  # noqa: BLE001 (another library's code: its mistake is a result)
                errors[name] = repr(error)[:300]
                continue
            if isinstance(done, str):
                errors[name] = done
            elif done is not None:
                runs[name, table][seed] = done
    strategies: dict[str, Any] = {name: {} for name in names}
    for name in names:
        # Runs that find the optimum early are complete early: a seed of which some are missing would flatter.
        complete = set.intersection(*(set(runs[name, table]) for table in sources))
        for table in sources if complete else ():
            chosen = {seed: run for seed, run in runs[name, table].items() if seed in complete}
            strategies[name][table] = _figures(table, chosen, budgets)
    return {"budgets": list(budgets), "errors": errors, "strategies": strategies}


def _figures(name: str, runs: dict[int, Run], budgets: Sequence[int]) -> dict[str, Any]:
    result = TableResult(name, math.nan, tuple(runs.values()))
    after = {
        str(budget): {
            "median": round(result.quantiles(budget)[0], 5),
            "mean_log_ratio": round(result.mean_log_ratio(budget), 5),
            "log_ratios": {str(seed): round(math.log(run.after(budget)), 5) for seed, run in runs.items()},
        }
        for budget in budgets
    }
    return {"seeds": len(runs), "ms_per_ask": round(result.milliseconds_per_ask, 2), "after": after}


def paired(report: dict[str, Any], name: str, budget: int, kernels: set[str]) -> tuple[Floats, Floats]:
    """Log ratios of the strategy `name` and of the first one, over the runs on `kernels` that both have."""
    first = next(iter(report["strategies"].values()))
    mine, reference = [], []
    for table, figures in report["strategies"][name].items():
        if kernel_of(table) in kernels and table in first:
            other = first[table]["after"][str(budget)]["log_ratios"]
            for seed, ratio in figures["after"][str(budget)]["log_ratios"].items():
                if seed in other:
                    mine.append(ratio)
                    reference.append(other[seed])
    return np.array(mine), np.array(reference)


def kernel_of(table: str) -> str:
    """convolution-a100/read_only -> convolution."""
    return table.partition("/")[0].rpartition("-")[0]


def _print(report: dict[str, Any]) -> None:
    tables = next(iter(report["strategies"].values()))
    kernels = {kernel_of(table) for table in tables}
    for name, figures in report["strategies"].items():
        cells, count = [], 0
        for budget in report["budgets"]:
            mine, reference = paired(report, name, budget, kernels)
            count = len(mine)
            # Inf where nothing was found yet: such a mean says so.
            cells.append(f"@{budget} {100 * mine.mean():.2f} ({100 * reference.mean():.2f})" if count else "-")
        cost = np.mean([one["ms_per_ask"] for one in figures.values()]) if figures else math.nan
        print(f"{name:36} {'  '.join(cells)}  runs {count}  ms an ask {cost:.1f}")
    for name, error in report["errors"].items():
        print(f"{name}: {error}")
    print("leave one kernel out:")
    for kernel in sorted(kernels):
        chosen = min(report["strategies"], key=lambda name: _excess(report, name, kernels - {kernel}))
        print(f"  {kernel:20} {chosen:36} {100 * _excess(report, chosen, {kernel}):+.2f} to the first")


def _excess(report: dict[str, Any], name: str, kernels: set[str]) -> float:
    """Mean difference to the first strategy over the budgets; each kernel counts the same."""
    means = []
    for kernel in kernels:
        for budget in report["budgets"]:
            mine, reference = paired(report, name, budget, {kernel})
            if len(mine):
                means.append(float((mine - reference).mean()))
    return float(np.mean(means)) if means else math.inf


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=Path, action="append", required=True, help="a folder of *.json.gz; repeatable")
    parser.add_argument("--only", default="", help="names of tables, separated by commas; all by default")
    parser.add_argument("--slices", type=int, default=0, help="further tables made from each")
    parser.add_argument(
        "--strategies",
        default="default,optuna-gp,optuna-tpe,botorch,smac,random",
        help="ours first: it is the reference",
    )
    parser.add_argument("--budgets", default="50,100,200")
    parser.add_argument("--seeds", default="100:160", help="from:to, to excluded")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=480.0, help="no run counts that is not complete by then")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    until = time.time() + given.seconds
    names = given.strategies.split(",")
    for name in names:
        if name not in RIVALS and name.partition("+")[0] not in STRATEGIES:
            parser.error(f"--strategies: {name} is none of {', '.join([*STRATEGIES, *RIVALS])}")
    wanted = set(filter(None, given.only.split(",")))
    paths = [path for folder in given.tables for path in sorted(folder.glob("*.json.gz"))]
    sources: Sources = {}
    for path in paths:
        name = path.name.removesuffix(".json.gz")
        if not wanted or name in wanted:
            sources[name] = path, ""
            for parameter in slices(path, given.slices) if given.slices else []:
                sources[f"{name}/{parameter}"] = path, parameter
    first, _, last = given.seeds.partition(":")
    budgets = sorted(int(part) for part in given.budgets.split(","))
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = "1"
    report = compare(names, sources, budgets, range(int(first), int(last)), given.processes, until)
    given.out.write_text(json.dumps(report, indent=1) + "\n")
    _print(report)


if __name__ == "__main__":
    main()
