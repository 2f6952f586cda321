"""The contract that every strategy of the registry keeps; and transfer: the best points of an earlier result are asked
first, whatever their unit."""

import numpy as np
import pytest
from search_cases import PARAMETERS, RULES, listed_space, observe

from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.search import STRATEGIES, Observation, Prior, Strategy, make_strategy
from tunesmith.kernels.space import Space, SpaceRule
from tunesmith.kernels.spec.expression import parse
from tunesmith.kernels.spec.template import Config, Parameter, config_key

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


LISTED = [Parameter(name=name, values=tuple(range(size))) for name, size in (("A", 12), ("B", 12), ("C", 8))]
SPACE = Space.build(LISTED, [])


def value(config: Config, shift: int = 0) -> float:
    """A made-up kernel, rugged by a tenth; `shift` moves its optimum: another device."""
    a, b, c = (int(config[name]) for name in "ABC")
    rough = ((a * 7 + b * 5 + c * 3) % 11) / 110
    return 1.0 + (a - 8 + shift) ** 2 / 12 + abs(b - 3) / 4 + (0.8 if c % 2 else 0.0) + abs(a - b - 5) / 10 + rough


@pytest.mark.parametrize("name", ["surrogate", "local"])
def test_the_best_points_of_the_source_are_asked_after_the_seeds_whatever_their_unit(name: str) -> None:
    ranked = sorted(range(len(SPACE)), key=lambda point: value(SPACE.config(point), 1))
    seed = SPACE.config(ranked[-1])
    shuffled = [SPACE.config(int(point)) for point in np.random.default_rng(0).permutation(len(SPACE))]
    for scale in (1.0, 1024.0):
        source = Prior((config, Observation(scale * value(config, 1))) for config in shuffled)
        strategy = make_strategy(name, SPACE, seed=3, seeds=[seed], prior=source)
        asked = [strategy.ask() for _ in range(1 + strategy.PRIOR_SEEDS)]
        assert strategy.PRIOR_SEEDS == 4 and asked == [seed, *(SPACE.config(point) for point in ranked[:4])]
        assert strategy.ask() not in asked


def test_parameters_of_the_source_alone_are_left_out_and_missing_ones_say_nothing() -> None:
    # D is the source's own, and A has a value that the space does not have.
    results = [
        ({"A": a, "B": b, "C": 0, "D": d}, Observation(1.0 + abs(a - 12) + abs(b - 3) / 4 + d))
        for a in range(13)
        for b in range(12)
        for d in (1, 0)
    ]
    best = Prior(results).best(SPACE, 2)
    assert SPACE.config(best[0]) == {"A": 11, "B": 3, "C": 0} and len(best) == 2
    without_c = Prior([({"A": 1, "B": 1}, Observation(1.0))])
    assert without_c.best(SPACE, 4) == []
    assert make_strategy("surrogate", SPACE, seed=0, prior=without_c).ask() is not None
    failed = SPACE.config(5), Observation(None, failure="launch_failed")
    assert Prior([failed, (SPACE.config(9), Observation(3.0))]).best(SPACE, 4) == [9]
    with pytest.raises(TunesmithError, match="Nothing can be learned from the old run"):
        Prior([failed], "the old run")
