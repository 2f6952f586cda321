"""Transfer: what a prior says about a space, and that it helps where it is right and is dropped where it is not."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from search_cases import PARAMETERS, RULES, listed_space, observe

from tunesmith.kernels.search import STRATEGIES, Observation, Prior, SearchError, Strategy, make_strategy
from tunesmith.kernels.search.cachefile import Record, write_cache
from tunesmith.kernels.search.simulate import simulate
from tunesmith.kernels.space.space import Space
from tunesmith.kernels.spec.parameter import Config, Parameter

SIZES = {"A": 12, "B": 12, "C": 8}
SPACE = Space.build([Parameter(name=name, values=tuple(range(size))) for name, size in SIZES.items()], [])


def value(config: Config, shift: int = 0) -> float:
    """A made-up kernel, rugged by a tenth; `shift` moves its optimum: another device."""
    a, b, c = (int(config[name]) for name in "ABC")
    rough = ((a * 7 + b * 5 + c * 3) % 11) / 110
    return 1.0 + (a - 8 + shift) ** 2 / 12 + abs(b - 3) / 4 + (0.8 if c % 2 else 0.0) + abs(a - b - 5) / 10 + rough


def source(scale: float = 1.0, shift: int = 0, wrong: bool = False) -> Prior:
    points = np.random.default_rng(0).permutation(len(SPACE))
    level = [math.log(value(SPACE.config(point), shift)) for point in range(len(SPACE))]
    told = [-one for one in level] if wrong else level
    return Prior((SPACE.config(int(p)), Observation(scale * math.exp(told[p]))) for p in points)


def found(prior: Prior | None, seed: int, count: int, workers: int = 1) -> float:
    strategy = make_strategy("surrogate", SPACE, seed=seed, budget=count, workers=workers, prior=prior)
    for _ in range(count):
        config = strategy.ask()
        assert config is not None
        strategy.tell(config, Observation(value(config)))
    assert strategy.best is not None
    return math.log(strategy.best[1] / min(value(SPACE.config(point)) for point in range(len(SPACE))))


def test_a_similar_source_helps_at_once() -> None:
    similar = source(scale=40.0, shift=1)
    alone, led = (np.mean([found(prior, seed, 14) for seed in range(4)]) for prior in (None, similar))
    assert led < 0.5 * alone


def test_a_source_that_misleads_does_little_harm() -> None:
    wrong = source(wrong=True)
    alone, led = (np.mean([found(prior, seed, 40) for seed in range(4)]) for prior in (None, wrong))
    assert led < alone + 0.02


def test_the_unit_of_the_source_does_not_matter() -> None:
    asked = []
    for scale in (1.0, 1024.0):
        strategy = make_strategy("surrogate", SPACE, seed=3, prior=source(scale=scale))
        asked.append([])
        for _ in range(20):
            config = strategy.ask()
            assert config is not None
            asked[-1].append(config)
            strategy.tell(config, Observation(value(config)))
    assert asked[0] == asked[1]


def test_a_partial_source_is_extended_to_points_it_does_not_hold() -> None:
    points = np.random.default_rng(1).permutation(len(SPACE))[:150]
    partial = Prior((SPACE.config(int(point)), Observation(value(SPACE.config(int(point))))) for point in points)
    belief = partial.on(SPACE)
    others = np.setdiff1d(np.arange(len(SPACE)), points)
    truth = np.log([value(SPACE.config(int(point))) for point in others])
    assert np.corrcoef(belief.expect(SPACE.codes_of(others))[0], truth)[0, 1] > 0.9
    assert np.all(belief.expect(SPACE.codes_of(others))[1] > 0.0)
    assert np.all(belief.expect(SPACE.codes_of(points))[1] == 0.0)
    best = belief.best(3)
    assert best[0] == min(points, key=lambda point: value(SPACE.config(int(point))))


def test_a_source_with_other_parameters_counts_as_far_as_it_goes() -> None:
    # D is the source's own, C is not known to it, and A has a value that the space does not have.
    results = [
        ({"A": a, "B": b, "D": d}, Observation(1.0 + (a - 8) ** 2 / 12 + abs(b - 3) / 4 + d))
        for a in range(13)
        for b in range(12)
        for d in (0, 1)
    ]
    belief = Prior(results).on(SPACE)
    assert belief.shared == ("A", "B") and belief.best(4) == []
    level, _ = belief.expect(
        SPACE.codes_of([SPACE.index({"A": 8, "B": 3, "C": 0}), SPACE.index({"A": 8, "B": 3, "C": 7})])
    )
    assert np.allclose(level, 0.0)
    strategy = make_strategy("surrogate", SPACE, seed=0, prior=Prior(results))
    assert strategy.ask() is not None
    nothing = Prior([({"Z": 1}, Observation(1.0))])
    assert not nothing.on(SPACE).useful
    assert make_strategy("surrogate", SPACE, seed=0, prior=nothing).belief is None


def test_what_failed_in_the_source_is_shunned_until_it_proves_to_work() -> None:
    def fails(config: Config) -> bool:
        return int(config["A"]) >= 6

    results = []
    for point in range(len(SPACE)):
        config = SPACE.config(point)
        results.append(
            (config, Observation(None, failure="launch_failed") if fails(config) else Observation(value(config)))
        )
    asked = {}
    for alike in (True, False):
        strategy = make_strategy("surrogate", SPACE, seed=1, prior=Prior(results))
        asked[alike] = 0
        for _ in range(40):
            config = strategy.ask()
            assert config is not None
            asked[alike] += fails(config)
            bad = alike and fails(config)
            strategy.tell(config, Observation(None, failure="launch_failed") if bad else Observation(value(config)))
    assert asked[True] <= 8 and asked[False] > 2 * asked[True]


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "exhaustive"])
def test_a_search_with_a_prior_resumes_exactly(name: str) -> None:
    space = listed_space()
    full = Space.build(PARAMETERS, RULES)
    prior = Prior((full.config(point), observe(full.config(point))) for point in range(0, len(full), 3))

    def step(strategy: Strategy, count: int) -> list[Config]:
        asked = []
        for _ in range(count):
            config = strategy.ask()
            assert config is not None
            asked.append(config)
            strategy.tell(config, observe(config))
        return asked

    first = make_strategy(name, space, seed=6, budget=50, workers=3, prior=prior)
    step(first, 17)
    second = make_strategy(name, listed_space(), seed=6, budget=50, workers=3, prior=prior)
    second.restore(json.loads(json.dumps(first.state())))
    assert step(first, 15) == step(second, 15)


def test_a_prior_of_failures_alone_is_refused() -> None:
    with pytest.raises(SearchError, match="Nothing can be learned from the old run"):
        Prior([({"A": 1}, Observation(None, failure="launch_failed"))], "the old run")


def test_simulate_takes_a_table_as_prior(tmp_path: Path) -> None:
    listed = [Parameter(name=name, values=tuple(range(size))) for name, size in SIZES.items()]
    paths = []
    for shift in (0, 1):
        records = [Record(SPACE.config(point), value(SPACE.config(point), shift)) for point in range(len(SPACE))]
        paths.append(tmp_path / f"device{shift}.json.gz")
        write_cache(paths[-1], listed, records, device=f"GPU {shift}", kernel="k")
    alone = simulate(paths[:1], "default", (12,), seeds=3)
    led = simulate(paths[:1], "default", (12,), seeds=3, prior=paths[1])
    assert led.geomean(12) < alone.geomean(12)
