"""The model-based search: the model's algebra, what failures and noise do, and its own time."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest
from search_cases import PARAMETERS, listed_space, observe

from tunesmith.kernels.domain import Domain
from tunesmith.kernels.expression import parse
from tunesmith.kernels.parameter import Parameter
from tunesmith.kernels.search import Observation, Strategy, make_strategy
from tunesmith.kernels.search._gaussian import Kernel, Posterior, features
from tunesmith.kernels.search.surrogate import SurrogateSearch
from tunesmith.kernels.space import Rule, SearchSpace, Space, build_space


def model(count: int, candidates: int = 12) -> tuple[Space, Kernel, Posterior, np.ndarray]:
    space = listed_space()
    kernel = Kernel(space.domain)
    rng = np.random.default_rng(0)
    values = rng.normal(size=count)
    return space, kernel, Posterior(kernel, kernel.prior(), space.codes[:count], np.zeros(count),
                                    space.codes[-candidates:]), values  # fmt: skip


def test_features_know_order_powers_of_two_and_kinds() -> None:
    described = dict(features(Domain(PARAMETERS)))
    assert described[0].shape == (6, 2) and np.allclose(described[0][:, 0], np.linspace(0, 1, 6))
    assert described[0][0, 1] < described[0][5, 1] and described[0][2, 1] == described[0][0, 1]
    assert described[1].shape == (4, 1) and described[2].shape == (3, 3) and described[3].shape == (2, 1)
    assert 4 not in described


def test_points_added_one_at_a_time_give_the_same_posterior() -> None:
    space, kernel, whole, values = model(30)
    grown = Posterior(kernel, kernel.prior(), space.codes[:10], np.zeros(10), space.codes[-12:-6])
    for place in range(10, 30):
        grown.add(space.codes[place : place + 1])
        if place == 20:
            grown.extend(space.codes[-6:])
    for mine, wanted in zip(grown.expect(grown.weights(values)), whole.expect(whole.weights(values)), strict=True):
        assert np.allclose(mine, wanted, atol=1e-6)


def test_a_point_without_a_value_lowers_the_uncertainty_and_leaves_the_expectation() -> None:
    space, kernel, whole, values = model(30)
    values[20:] = np.nan
    mean, deviation = whole.expect(whole.weights(values))
    first = Posterior(kernel, kernel.prior(), space.codes[:20], np.zeros(20), space.codes[-12:])
    alone, wider = first.expect(first.weights(values[:20]))
    assert np.allclose(mean, alone, atol=1e-6) and np.all(deviation <= wider + 1e-9)
    others = whole.expect(whole.weights(values), space.codes[-12:])
    assert np.allclose(others[0], mean) and np.allclose(others[1], deviation)


def test_fitting_finds_which_parameter_matters() -> None:
    space = listed_space()
    kernel = Kernel(space.domain)
    codes = space.codes[np.random.default_rng(0).permutation(len(space))[:60]]
    values = np.where(codes[:, 1] == 2, -2.0, 0.5) + 0.01 * np.random.default_rng(1).normal(size=60)
    chosen = kernel.fit(codes, (values - values.mean()) / values.std(), np.zeros(60), kernel.prior(), 30)
    assert chosen.lengths[1][0] < min(chosen.lengths[0][0], chosen.lengths[2][0], chosen.lengths[3][0])


def drive(strategy: Strategy, count: int) -> None:
    for _ in range(count):
        config = strategy.ask()
        assert config is not None
        strategy.tell(config, observe(config))


def test_it_finds_the_optimum_of_a_small_space_early() -> None:
    found = []
    for seed in range(5):
        strategy = SurrogateSearch(listed_space(), seed=seed)
        drive(strategy, 30)
        assert strategy.best is not None
        found.append(strategy.best[1])
    assert np.median(found) == pytest.approx(1.2)


def test_failures_are_no_obstacle_to_an_optimum_beside_them() -> None:
    space = Space.build([Parameter(name=name, values=tuple(range(16))) for name in "AB"], [])
    for seed in range(3):
        strategy = SurrogateSearch(space, seed=seed)
        for _ in range(35):
            config = strategy.ask()
            assert config is not None
            if int(config["A"]) > 7:
                strategy.tell(config, Observation(None, failure="launch_failed"))
            else:
                # It gets better towards the edge behind which everything fails.
                strategy.tell(config, Observation(10.0 - int(config["A"]) + 0.1 * int(config["B"])))
        assert strategy.best is not None and strategy.best[1] == pytest.approx(3.0)


def wave(a: int, b: int) -> Observation:
    return Observation(2.0 + ((a * 7 + b * 5) % 11) / 100 + (a - 3) ** 2 / 40 + (b - 9) ** 2 / 40)


def failures(
    name: str, seeds: range, fails: Callable[[int, int], bool], value: Callable[[int, int], Observation]
) -> int:
    space = Space.build([Parameter(name=name, values=tuple(range(16))) for name in "AB"], [])
    failed = 0
    for seed in seeds:
        strategy = make_strategy(name, space, seed=seed)
        for _ in range(50):
            config = strategy.ask()
            assert config is not None
            a, b = int(config["A"]), int(config["B"])
            failed += fails(a, b)
            strategy.tell(config, Observation(None, failure="launch_failed") if fails(a, b) else value(a, b))
    return failed


def test_it_learns_where_configurations_fail() -> None:
    for seeds in (range(3), range(50, 55)):
        model, chance = (failures(name, seeds, lambda a, b: a > 7, wave) for name in ("surrogate", "random"))
        assert model < 0.6 * chance


def test_an_optimum_beside_the_failures_does_not_lead_into_them() -> None:
    # The model expects ever better points behind the edge, where every one fails.
    model, chance = (
        failures(name, range(4), lambda a, b: a > 7, lambda a, b: Observation(10.0 - a + 0.1 * b))
        for name in ("surrogate", "random")
    )
    assert model < 0.6 * chance


def milliseconds_per_ask(space: SearchSpace, count: int) -> float:
    strategy = make_strategy("surrogate", space, seed=0, budget=count)
    rng = np.random.default_rng(0)
    weights = rng.normal(size=len(space.parameters))
    own = 0.0
    for _ in range(count):
        started = time.perf_counter()
        config = strategy.ask()
        own += time.perf_counter() - started
        assert config is not None
        codes = np.array([space.domain.encode(config)], dtype=np.float64)[0]
        value = float(np.exp(np.sin(codes * weights).sum() / 3))
        started = time.perf_counter()
        strategy.tell(config, Observation(value))
        own += time.perf_counter() - started
    return 1e3 * own / count


@pytest.mark.slow
@pytest.mark.parametrize(("size", "limit"), [(20, 5.0), (1000, 50.0)])
def test_its_own_time_stays_small(size: int, limit: float) -> None:
    listed = [Parameter(name=name, values=tuple(range(1, 11))) for name in "ABC"]
    listed += [Parameter(name="D", values=tuple(range(size))), Parameter(name="E", values=(True, False))]
    space = build_space(listed, [Rule.from_expression(parse("A + B > 1 or C > 1"))])
    assert len(space) >= size * 1000
    assert milliseconds_per_ask(space, 100) < limit
