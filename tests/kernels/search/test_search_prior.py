"""Transfer: the best points of an earlier result are asked first, whatever their unit."""

import numpy as np
import pytest

from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.search import Observation, Prior, make_strategy
from tunesmith.kernels.space import Space
from tunesmith.kernels.spec.template import Config, Parameter

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
