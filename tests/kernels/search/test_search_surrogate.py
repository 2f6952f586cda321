"""The model-based search: the model's algebra, what failures and noise do, and how it finds a way out; and what the
model is told: the acquisition's tails, intervals as noise, and dropped points as bounds from below."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from search_cases import PARAMETERS, listed_space, observe

from tunesmith.kernels.search import Observation, Strategy, make_strategy
from tunesmith.kernels.search import model as gaussian
from tunesmith.kernels.search.bayesian import SurrogateSearch
from tunesmith.kernels.search.model import (
    CovarianceKernel,
    Posterior,
    Targets,
    best_candidate,
    log_expected_improvement,
    truncated,
)
from tunesmith.kernels.space import Domain, Space
from tunesmith.kernels.spec.template import Config, Parameter


def square(names: str = "AB", size: int = 16) -> Space:
    return Space.build([Parameter(name=name, values=tuple(range(size))) for name in names], [])


def told(strategy: Strategy, count: int, result: Callable[[Config], Observation]) -> list[Observation]:
    """What `count` asks of a search were answered."""
    answers = []
    for _ in range(count):
        config = strategy.ask()
        answers.append(result(config))
        strategy.tell(config, answers[-1])
    return answers


def model(count: int) -> tuple[Space, CovarianceKernel, Posterior, np.ndarray]:
    space = listed_space()
    kernel = CovarianceKernel(space.domain)
    whole = Posterior(kernel, kernel.prior, space.codes[:count], np.zeros(count), space.codes[-12:])
    return space, kernel, whole, np.random.default_rng(0).normal(size=count)


def test_points_added_singly_or_without_values_give_the_posterior() -> None:
    space, kernel, whole, values = model(30)
    grown = Posterior(kernel, kernel.prior, space.codes[:10], np.zeros(10), space.codes[-12:-6])
    for place in range(10, 30):
        grown.add(space.codes[place : place + 1])
        if place == 20:
            grown.extend(space.codes[-6:])
    for mine, wanted in zip(grown.expect(grown.weights(values)), whole.expect(whole.weights(values)), strict=True):
        assert np.allclose(mine, wanted, atol=1e-6)
    space, kernel, whole, values = model(30)
    values[20:] = np.nan
    mean, deviation = whole.expect(whole.weights(values))
    first = Posterior(kernel, kernel.prior, space.codes[:20], np.zeros(20), space.codes[-12:])
    alone, wider = first.expect(first.weights(values[:20]))
    assert np.allclose(mean, alone, atol=1e-6) and np.all(deviation <= wider + 1e-9)
    others = whole.expect(whole.weights(values), space.codes[-12:])
    assert np.allclose(others[0], mean) and np.allclose(others[1], deviation)
    assert np.allclose(whole.mean(whole.weights(values), space.codes[-12:]), mean, atol=1e-9)


def test_fitting_finds_which_parameter_matters() -> None:
    space = listed_space()
    kernel = CovarianceKernel(space.domain)
    codes = space.codes[np.random.default_rng(0).permutation(len(space))[:60]]
    values = np.where(codes[:, 1] == 2, -2.0, 0.5) + 0.01 * np.random.default_rng(1).normal(size=60)
    theta = kernel.fit(codes, (values - values.mean()) / values.std(), np.zeros(60), kernel.prior, 30)
    # The lengths of the features: two of the first parameter, then one, three and one.
    assert theta[2] < min(theta[0], theta[3], theta[6])
    kernel = CovarianceKernel(Domain([Parameter(name="FIXED", values=(7,))]))
    theta = kernel.fit(np.zeros((6, 1), dtype=np.uint16), np.arange(6.0), np.zeros(6), kernel.prior, 10)
    assert theta.shape == (2,) and np.isfinite(theta).all()


@pytest.mark.parametrize("first", [1, 7, 60])
def test_the_kernel_is_a_product_of_table_entries(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Fewer points than values, more points than values, and more pairs than are computed together.
    monkeypatch.setattr(gaussian, "_CACHED", 200)
    space = Space.build([*PARAMETERS, Parameter(name="MANY", values=tuple(range(20)))], [])
    kernel = CovarianceKernel(space.domain)
    rng = np.random.default_rng(0)
    one, two = (space.codes[rng.permutation(len(space))[:count]] for count in (first, 45))
    tables = kernel.tables(kernel.prior)
    wanted = np.ones((first, 45))
    for column, table in zip(kernel.columns, tables, strict=True):
        wanted *= table[one[:, column]][:, two[:, column]]
    assert np.array_equal(kernel.between(tables, one, two), wanted)


def test_the_fit_follows_the_gradient_of_its_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    # Imported here: it takes as long as all of the search, in each process that collects tests.
    from scipy.optimize import approx_fprime

    space = listed_space()
    kernel = CovarianceKernel(space.domain)
    rng = np.random.default_rng(0)
    codes, values, noise = space.codes[rng.permutation(len(space))[:40]], rng.normal(size=40), 0.1 * rng.random(40)

    def minimize(loss: Callable[[Any], tuple[float, Any]], first: Any, **options: Any) -> Any:
        point = first + 0.3 * rng.normal(size=len(first))
        value, slope = loss(point)
        numeric = approx_fprime(point, lambda theta: loss(theta)[0], 1e-6)
        assert np.allclose(slope, numeric, rtol=1e-3, atol=1e-3)
        # The value itself, written out: half the quadratic form, half the log determinant, and the prior.
        matrix = np.exp(point[-2]) * kernel.between(kernel.tables(point), codes, codes)
        matrix += np.diag(np.exp(point[-1]) + noise + gaussian.JITTER)
        prior = np.square((point - kernel.prior) / np.r_[np.ones(len(point) - 1), gaussian.NOISE[1]]).sum()
        assert 2 * value == pytest.approx(
            values @ np.linalg.solve(matrix, values) + np.linalg.slogdet(matrix)[1] + prior
        )
        raise StopIteration

    monkeypatch.setattr(gaussian, "minimize", minimize)
    with pytest.raises(StopIteration):
        kernel.fit(codes, values, noise, kernel.prior, 10)


@given(
    st.lists(
        st.tuples(st.sampled_from([-np.inf, -3.0, -1.0, 0.0, 0.5]), st.sampled_from([1e-3, 0.1, 0.5, 1.0])),
        max_size=300,
    ),
    st.sampled_from([0.0, 0.2, 0.5, 1.0]),
)
def test_the_foremost_is_found_without_asking_for_every_chance(pairs: list[tuple[float, float]], limit: float) -> None:
    scores, chances = np.array(pairs).reshape(-1, 2).T
    found = best_candidate(scores, limit, lambda places: np.asarray(chances[places]))
    totals = scores + np.log(chances)
    ranked = sorted(
        (-(chances[place] >= limit).astype(int), -totals[place], place)
        for place in range(len(pairs))
        if scores[place] > -np.inf
    )
    place = ranked[0][2] if ranked else 0
    assert found == ((place, -ranked[0][1], chances[place] >= limit) if ranked else None)


def test_it_finds_an_optimum_early_also_beside_failures() -> None:
    found = []
    for seed in range(5):
        strategy = SurrogateSearch(listed_space(), seed=seed)
        told(strategy, 30, observe)
        found.append(strategy.best[1])
    assert np.median(found) == pytest.approx(1.2)
    for seed in range(3):
        strategy = SurrogateSearch(square(), seed=seed)
        told(strategy, 35, edge)
        assert strategy.best is not None and strategy.best[1] == pytest.approx(3.0)


def edge(config: Config) -> Observation:
    """Better and better towards an edge behind which everything fails."""
    a, b = int(config["A"]), int(config["B"])
    return Observation(None, failure="launch_failed") if a > 7 else Observation(10.0 - a + 0.1 * b)


def wave(config: Config) -> Observation:
    a, b = int(config["A"]), int(config["B"])
    value = 2.0 + ((a * 7 + b * 5) % 11) / 100 + (a - 3) ** 2 / 40 + (b - 9) ** 2 / 40
    return Observation(None, failure="launch_failed") if a > 7 else Observation(value)


@pytest.mark.parametrize(("result", "seeds"), [(wave, range(3)), (edge, range(3))])
def test_it_learns_where_configurations_fail(result: Callable[[Config], Observation], seeds: range) -> None:
    failed = {
        name: sum(
            one.value is None for seed in seeds for one in told(make_strategy(name, square(), seed=seed), 50, result)
        )
        for name in ("surrogate", "random")
    }
    assert failed["surrogate"] < 0.6 * failed["random"]


class WithoutWayOut(SurrogateSearch):
    MEAN_SHARE = 0.0


def evaluations_until_the_optimum(kind: type[SurrogateSearch], seed: int, most: int) -> int:
    """Points asked until the optimum is found that the model expects to be a little slower than the best it knows."""
    search = kind(square("ABC"), seed=seed)
    for number in range(1, most):
        config = search.ask()
        a, b, c = (int(config[name]) for name in "ABC")
        if (a, b, c) == (6, 10, 7):
            return number
        search.tell(config, Observation(math.exp(0.1 * (abs(a - 5) + abs(b - 11) + abs(c - 7)))))
    return most


@pytest.mark.slow
def test_a_search_whose_model_is_wrong_and_sure_of_it_finds_a_way_out() -> None:
    found, stuck = (
        np.mean([evaluations_until_the_optimum(kind, seed, 200) for seed in (1, 2)])
        for kind in (SurrogateSearch, WithoutWayOut)
    )
    assert found < 0.75 * stuck


SPACE = Space.build([Parameter(name=name, values=tuple(range(16))) for name in "AB"], [])


def value(config: Config) -> float:
    return math.exp((int(config["A"]) - 4) ** 2 / 60 + abs(int(config["B"]) - 11) / 8)


@pytest.mark.parametrize("gain", [3.0, 0.5, -0.99, -1.01, -4.0])
def test_expected_improvement_is_the_integral(gain: float) -> None:
    # Imported here: it takes half a second, in each process that collects tests.
    from scipy.integrate import quad
    from scipy.stats import norm

    best, deviation = 0.7, 0.3
    mean = best - gain * deviation
    wanted = quad(lambda y: (best - y) * norm.pdf(y, mean, deviation), mean - 12 * deviation, best)[0]
    got = log_expected_improvement(best, np.array([mean]), np.array([deviation]))[0]
    assert got == pytest.approx(math.log(wanted), rel=1e-6)


def test_expected_improvement_keeps_its_order_far_out() -> None:
    scores = log_expected_improvement(-1.0, np.linspace(0.0, 500.0, 4000), np.ones(4000))
    assert np.all(np.isfinite(scores)) and np.all(np.diff(scores) < 0.0)


@pytest.mark.parametrize("bound", [-3.0, 0.0, 1.0, 4.0])
def test_a_bounded_value_has_the_moments_of_the_truncated_normal(bound: float) -> None:
    from scipy.stats import truncnorm

    mean, deviation = 0.5, 0.8
    wanted = truncnorm((bound - mean) / deviation, np.inf, mean, deviation)
    got = truncated(np.array([bound]), np.array([mean]), np.array([deviation]))
    assert got[0][0] == pytest.approx(wanted.mean(), rel=1e-6) and got[1][0] == pytest.approx(wanted.var(), rel=1e-4)
    far = truncated(np.array([900.0]), np.array([mean]), np.array([deviation]))
    assert far[0][0] == pytest.approx(900.0, rel=1e-3) and 0.0 <= far[1][0] < 1e-3


def impute(interval: tuple[float, float] | None) -> tuple[np.ndarray, np.ndarray]:
    """The targets of points dropped at a bound of 1.5, and their true logarithms; all others are complete."""
    points = [int(point) for point in np.random.default_rng(0).permutation(len(SPACE))[:90]]
    targets, dropped = Targets(SPACE), []
    for place, point in enumerate(points):
        true = value(SPACE.config(point))
        if true > 2.5 and place % 2:
            targets.note(point, Observation(1.5, interval, dropped=True))
            dropped.append(point)
        else:
            targets.note(point, Observation(true))
    kernel = CovarianceKernel(SPACE.domain)
    targets.impute(kernel, kernel.prior, 320)
    centre, unit, _ = targets.moments()
    got, noise = targets.standardised(dropped)
    assert np.all(noise >= 0.0) and len(dropped) > 10
    return centre + unit * got, np.log([value(SPACE.config(point)) for point in dropped])


def test_a_dropped_point_counts_above_its_bound_within_its_interval() -> None:
    got, true = impute(None)
    assert np.all(got >= math.log(1.5)) and np.abs(got - true).mean() < 0.3 * np.abs(math.log(1.5) - true).mean()
    assert abs((got - true).mean()) < 0.1
    got, _ = impute((1.4, 1.6))
    assert np.all(got >= math.log(1.5)) and np.all(got <= math.log(1.6) + 1e-12)
    # A failure takes back a value, and a value a drop.
    targets = Targets(SPACE)
    targets.note(3, Observation(2.0, dropped=True))
    targets.note(3, Observation(4.0))
    assert targets.ranked() == [3] and targets.moments()[0] == pytest.approx(math.log(4.0))
    targets.note(3, Observation(None, failure="launch_failed"))
    assert len(targets) == 0
