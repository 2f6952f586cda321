"""The contract that every strategy of the registry keeps; transfer: the best points of an earlier result are asked
first, whatever their unit. The model-based search: the model's algebra, what failures and noise do, and how it finds a
way out; and what the model is told: the acquisition's tails, intervals as noise, and dropped points as bounds from
below."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.search import STRATEGIES, Observation, Prior, Strategy, make_strategy
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
from tunesmith.kernels.space import Domain, Space, SpaceRule
from tunesmith.kernels.spec.expression import parse
from tunesmith.kernels.spec.template import Config, Parameter, config_key

PARAMETERS = [
    Parameter(name="BLOCK", values=(32, 64, 96, 128, 192, 256)),
    Parameter(name="TILE", values=(1, 2, 4, 8)),
    Parameter(name="MODE", values=("row", "column", "both")),
    Parameter(name="STAGED", values=(True, False)),
    Parameter(name="FIXED", values=(7,)),
]
RULES = [SpaceRule(parse(text)) for text in ("BLOCK * TILE <= 768", "TILE < 8 or STAGED")]


def listed_space() -> Space:
    return Space.build(PARAMETERS, RULES)


def observe(config: Config) -> Observation:
    """A fixed result for each configuration: some fail, one is dropped early, the rest have an interval."""
    block, tile = int(config["BLOCK"]), int(config["TILE"])
    if block == 256 and config["MODE"] == "both":
        return Observation(None, failure="launch_failed")
    value = 1.0 + abs(block - 128) / 64 + abs(tile - 4) / 3 + (0.5 if config["MODE"] == "row" else 0.2)
    value += 0.3 if config["STAGED"] else 0.0
    return Observation(value, (value * 0.99, value * 1.02), dropped=value > 4.0)


Events = list[tuple[Config, Observation | None]]


def drive(strategy: Strategy, count: int, flight: list[Config], order: np.random.Generator, workers: int) -> Events:
    """Asks `count` points, `workers` in flight, telling results in the random order of `order`."""
    events: Events = []
    for _ in range(count):
        if len(flight) >= workers:
            config = flight.pop(int(order.integers(len(flight))))
            strategy.tell(config, observe(config))
            events.append((config, observe(config)))
        asked = strategy.ask()
        if asked is None:
            break
        flight.append(asked)
        events.append((asked, None))
    return events


@pytest.mark.parametrize("name", list(STRATEGIES))
class TestContract:
    def test_asks_feasible_points_once_until_all_are_asked(self, name: str) -> None:
        space = listed_space()
        strategy = make_strategy(name, space, seed=1, budget=40)
        seen: set[str] = set()
        flight: list[Config] = []
        for _ in range(10 * len(space)):
            config = strategy.ask()
            if config is None:
                if strategy.exhausted:
                    break
                for waiting in flight:
                    strategy.tell(waiting, observe(waiting))
                flight = []
                continue
            assert space.reject(config) is None and config_key(config) not in seen
            seen.add(config_key(config))
            flight.append(config)
            if len(flight) == 3:
                strategy.tell(flight[1], observe(flight.pop(1)))
        assert strategy.exhausted and len(seen) == len(space) and strategy.ask() is None

    @pytest.mark.parametrize("workers", [5, pytest.param(1, marks=pytest.mark.slow)])
    def test_is_deterministic_under_a_seed(self, name: str, workers: int) -> None:
        runs = [
            drive(make_strategy(name, listed_space(), seed=seed), 45, [], np.random.default_rng(3), workers)
            for seed in (4, 4, 5)
        ]
        assert runs[0] == runs[1]
        assert name == "exhaustive" or runs[0] != runs[2]

    @pytest.mark.parametrize(("cut", "led"), [(4, False), (25, False), (17, True)])
    def test_goes_on_exactly_where_it_was(self, name: str, cut: int, led: bool) -> None:
        space = listed_space()
        known = [(space.config(point), observe(space.config(point))) for point in range(0, len(space), 3)]
        given = {"seed": 2, "budget": 60, "workers": 4, "prior": Prior(known) if led else None}
        first = make_strategy(name, space, **given)
        flight: list[Config] = []
        events = drive(first, cut, flight, np.random.default_rng(8), 4)
        resumed = make_strategy(name, listed_space(), **given)
        for config, observation in events:
            # As in a journal: it was asked, or told.
            if observation is None:
                resumed.assume_asked(config)
            else:
                resumed.tell(config, observation)
        assert resumed.random_state() == first.random_state()
        assert resumed.pending == {space.index(config) for config in flight}
        rest = drive(first, 20, list(flight), np.random.default_rng(9), 4)
        assert drive(resumed, 20, list(flight), np.random.default_rng(9), 4) == rest

    def test_waits_for_nothing_survives_failures_and_ends_small_spaces(self, name: str) -> None:
        strategy = make_strategy(name, listed_space(), seed=0, workers=16)
        asked = [strategy.ask() for _ in range(16)]
        assert all(config is not None for config in asked)
        # The first one is never told; the rest come back last first.
        for config in asked[:0:-1]:
            strategy.tell(config, observe(config))
            assert strategy.ask() is not None
        strategy = make_strategy(name, listed_space(), seed=0)
        for _ in range(30):
            config = strategy.ask()
            strategy.tell(config, Observation(None, failure="compile_failed"))
        assert strategy.best is None
        said = make_strategy(name, listed_space(), seed=0, budget=20).describe()
        assert said.startswith(name) and said.endswith(".") and "\n" not in said
        empty = make_strategy(name, Space.build(PARAMETERS, [*RULES, SpaceRule(parse("BLOCK > 999"))]), seed=0)
        assert empty.ask() is None and empty.exhausted
        single = make_strategy(name, Space.build(PARAMETERS[4:], []), seed=0)
        assert single.ask() == {"FIXED": 7} and single.ask() is None and single.exhausted

    def test_asks_seeds_first_but_infeasible_ones(self, name: str) -> None:
        space = listed_space()
        good: Config = {"BLOCK": 64, "TILE": 2, "MODE": "row", "STAGED": True, "FIXED": 7}
        bad = {**good, "BLOCK": 256, "TILE": 8}
        strategy = make_strategy(name, space, seed=0, seeds=[bad, good, good])
        assert strategy.ask() == good and strategy.ask() not in (None, good)
        assert getattr(space.reject(bad), "rule", "") == "BLOCK * TILE <= 768"

    def test_takes_results_it_never_asked_for_and_corrections(self, name: str) -> None:
        space = listed_space()
        strategy = make_strategy(name, space, seed=0)
        point = space.config(space.sample(np.random.default_rng(0), 1)[0])
        strategy.tell(point, Observation(3.0))
        strategy.tell(point, Observation(2.0))
        assert strategy.best is not None and strategy.best[1] == 2.0
        for _ in range(30):
            config = strategy.ask()
            assert config is not None and config != point
            strategy.tell(config, observe(config))
        strategy.tell(point, Observation(9.0))
        assert strategy.best is not None and strategy.best[1] < 9.0
        with pytest.raises(TunesmithError, match="does not belong"):
            strategy.tell({**point, "TILE": 3}, Observation(1.0))

    @pytest.mark.parametrize(
        "again", [Observation(None, failure="wrong_result"), Observation(1.0, dropped=True), Observation(7.0)]
    )
    def test_the_best_is_none_that_was_replaced(self, name: str, again: Observation) -> None:
        space = listed_space()
        strategy = make_strategy(name, space, seed=0)
        first, second = (space.config(point) for point in (0, 1))
        strategy.tell(first, Observation(1.0))
        strategy.tell(second, Observation(2.0))
        strategy.tell(first, again)
        assert strategy.best == (1, 2.0)
        strategy.tell(second, Observation(None, failure="wrong_result"))
        assert strategy.best == (None if again.value is None or again.dropped else (0, again.value))
        assert strategy.ask() is not None


def test_the_default_says_what_it_picked_and_mistakes_are_told() -> None:
    space = listed_space()
    small = make_strategy("default", space, seed=0, budget=len(space))
    assert small.name == "exhaustive" and f"covers all {len(space)}" in small.describe()
    assert make_strategy("default", space, seed=0, budget=20).name == "surrogate"
    assert make_strategy("default", space, seed=0, budget=20, workers=1000).name == "local"
    space = listed_space()
    with pytest.raises(TunesmithError, match="no search strategy 'psychic'; choose one of random"):
        make_strategy("psychic", space, seed=0)
    with pytest.raises(TunesmithError, match="at least 1 worker"):
        make_strategy("random", space, seed=0, workers=0)
    for wrong in ((None, None), (1.0, "failed"), (float("nan"), None), (0.0, None)):
        with pytest.raises(TunesmithError):
            Observation(wrong[0], failure=wrong[1])
    with pytest.raises(TunesmithError, match="asked in another space"):
        make_strategy("random", space, seed=0).assume_asked({"BLOCK": 1})


CUBE = Space.build(
    [Parameter(name=name, values=tuple(range(size))) for name, size in (("A", 12), ("B", 12), ("C", 8))], []
)


def rugged(config: Config, shift: int = 0) -> float:
    """A made-up kernel, rugged by a tenth; `shift` moves its optimum: another device."""
    a, b, c = (int(config[name]) for name in "ABC")
    rough = ((a * 7 + b * 5 + c * 3) % 11) / 110
    return 1.0 + (a - 8 + shift) ** 2 / 12 + abs(b - 3) / 4 + (0.8 if c % 2 else 0.0) + abs(a - b - 5) / 10 + rough


@pytest.mark.parametrize("name", ["surrogate", "local"])
def test_the_best_points_of_the_source_are_asked_after_the_seeds_whatever_their_unit(name: str) -> None:
    ranked = sorted(range(len(CUBE)), key=lambda point: rugged(CUBE.config(point), 1))
    seed = CUBE.config(ranked[-1])
    shuffled = [CUBE.config(int(point)) for point in np.random.default_rng(0).permutation(len(CUBE))]
    for scale in (1.0, 1024.0):
        source = Prior((config, Observation(scale * rugged(config, 1))) for config in shuffled)
        strategy = make_strategy(name, CUBE, seed=3, seeds=[seed], prior=source)
        asked = [strategy.ask() for _ in range(1 + strategy.PRIOR_SEEDS)]
        assert strategy.PRIOR_SEEDS == 4 and asked == [seed, *(CUBE.config(point) for point in ranked[:4])]
        assert strategy.ask() not in asked


def test_parameters_of_the_source_alone_are_left_out_and_missing_ones_say_nothing() -> None:
    # D is the source's own, and A has a value that the space does not have.
    results = [
        ({"A": a, "B": b, "C": 0, "D": d}, Observation(1.0 + abs(a - 12) + abs(b - 3) / 4 + d))
        for a in range(13)
        for b in range(12)
        for d in (1, 0)
    ]
    best = Prior(results).best(CUBE, 2)
    assert CUBE.config(best[0]) == {"A": 11, "B": 3, "C": 0} and len(best) == 2
    without_c = Prior([({"A": 1, "B": 1}, Observation(1.0))])
    assert without_c.best(CUBE, 4) == []
    assert make_strategy("surrogate", CUBE, seed=0, prior=without_c).ask() is not None
    failed = CUBE.config(5), Observation(None, failure="launch_failed")
    assert Prior([failed, (CUBE.config(9), Observation(3.0))]).best(CUBE, 4) == [9]
    with pytest.raises(TunesmithError, match="Nothing can be learned from the old run"):
        Prior([failed], "the old run")


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


SPACE = square()


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
