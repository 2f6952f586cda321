"""Transfer: the best points of an earlier result are asked first, whatever their unit, and nothing else changes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from search_cases import listed_space, observe, resume

from tunesmith.kernels.search import STRATEGIES, Observation, Prior, SearchError, Strategy, make_strategy
from tunesmith.kernels.search.simulate import simulate
from tunesmith.kernels.search.tables import ConfigResult, write_cache
from tunesmith.kernels.space import Space
from tunesmith.kernels.spec.template import Config, Parameter

SIZES = {"A": 12, "B": 12, "C": 8}
SPACE = Space.build([Parameter(name=name, values=tuple(range(size))) for name, size in SIZES.items()], [])


def value(config: Config, shift: int = 0) -> float:
    """A made-up kernel, rugged by a tenth; `shift` moves its optimum: another device."""
    a, b, c = (int(config[name]) for name in "ABC")
    rough = ((a * 7 + b * 5 + c * 3) % 11) / 110
    return 1.0 + (a - 8 + shift) ** 2 / 12 + abs(b - 3) / 4 + (0.8 if c % 2 else 0.0) + abs(a - b - 5) / 10 + rough


def source(scale: float = 1.0, shift: int = 0) -> Prior:
    points = [SPACE.config(int(point)) for point in np.random.default_rng(0).permutation(len(SPACE))]
    return Prior((config, Observation(scale * value(config, shift))) for config in points)


def found(prior: Prior | None, seed: int, count: int) -> float:
    strategy = make_strategy("surrogate", SPACE, seed=seed, budget=count, prior=prior)
    for _ in range(count):
        config = strategy.ask()
        assert config is not None
        strategy.tell(config, Observation(value(config)))
    assert strategy.best is not None
    return math.log(strategy.best[1] / min(value(SPACE.config(point)) for point in range(len(SPACE))))


def test_a_similar_source_helps_at_once() -> None:
    similar = source(scale=40.0, shift=1)
    alone, transferred = (np.mean([found(prior, seed, 14) for seed in range(4)]) for prior in (None, similar))
    assert transferred < 0.5 * alone


@pytest.mark.parametrize("name", ["surrogate", "local"])
def test_the_best_points_of_the_source_are_asked_after_the_seeds_whatever_their_unit(name: str) -> None:
    ranked = sorted(range(len(SPACE)), key=lambda point: value(SPACE.config(point), 1))
    seed = SPACE.config(ranked[-1])
    for scale in (1.0, 1024.0):
        strategy = make_strategy(name, SPACE, seed=3, seeds=[seed], prior=source(scale, 1))
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


def test_failures_of_the_source_are_not_asked_first() -> None:
    first, second = SPACE.config(5), SPACE.config(9)
    prior = Prior([(first, Observation(None, failure="launch_failed")), (second, Observation(3.0))])
    assert prior.best(SPACE, 4) == [9]


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "exhaustive"])
def test_a_search_with_a_prior_resumes_exactly(name: str) -> None:
    full = listed_space()
    prior = Prior((full.config(point), observe(full.config(point))) for point in range(0, len(full), 3))

    def step(strategy: Strategy, count: int) -> list[Config]:
        asked = []
        for _ in range(count):
            config = strategy.ask()
            assert config is not None
            asked.append(config)
            strategy.tell(config, observe(config))
        return asked

    first = make_strategy(name, listed_space(), seed=6, budget=50, workers=3, prior=prior)
    events = [event for config in step(first, 17) for event in ((config, None), (config, observe(config)))]
    second = make_strategy(name, listed_space(), seed=6, budget=50, workers=3, prior=prior)
    resume(second, events)
    assert step(first, 15) == step(second, 15)


def test_a_prior_of_failures_alone_is_refused() -> None:
    with pytest.raises(SearchError, match="Nothing can be learned from the old run"):
        Prior([({"A": 1}, Observation(None, failure="launch_failed"))], "the old run")


def test_simulate_takes_a_table_as_prior(tmp_path: Path) -> None:
    listed = [Parameter(name=name, values=tuple(range(size))) for name, size in SIZES.items()]
    paths = []
    for shift in (0, 1):
        records = [ConfigResult(SPACE.config(point), value(SPACE.config(point), shift)) for point in range(len(SPACE))]
        paths.append(tmp_path / f"device{shift}.json.gz")
        write_cache(paths[-1], listed, records, device=f"GPU {shift}", kernel="k")
    alone, transferred = (
        simulate(paths[:1], "default", (12,), seeds=3, prior=prior)["geomean"]["12"] for prior in (None, paths[1])
    )
    assert transferred < alone
