"""The contract that every strategy of the registry keeps."""

import numpy as np
import pytest
from search_cases import PARAMETERS, RULES, listed_space, observe

from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.search import STRATEGIES, Observation, Prior, Strategy, make_strategy
from tunesmith.kernels.space import Space, SpaceRule
from tunesmith.kernels.spec.expression import parse
from tunesmith.kernels.spec.template import Config, config_key

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

    def test_asks_seeds_first_and_refuses_infeasible_ones_with_a_reason(self, name: str) -> None:
        space = listed_space()
        good: Config = {"BLOCK": 64, "TILE": 2, "MODE": "row", "STAGED": True, "FIXED": 7}
        bad = {**good, "BLOCK": 256, "TILE": 8}
        strategy = make_strategy(name, space, seed=0, seeds=[bad, good, good])
        assert strategy.ask() == good and strategy.ask() not in (None, good)
        (refused, reason) = strategy.refused_seeds[0]
        assert refused == bad and reason.rule == "BLOCK * TILE <= 768"

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
