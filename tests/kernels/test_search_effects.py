"""The surrogate's analysis of variance, on functions whose effects are known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tunesmith.kernels.search.base import Observation
from tunesmith.kernels.search.effects import effects
from tunesmith.kernels.space import Space, SpaceRule
from tunesmith.kernels.spec.expression import parse
from tunesmith.kernels.spec.template import Config, Parameter

PARAMETERS = (
    Parameter(name="BLOCK", values=(32, 64, 128, 256)),
    Parameter(name="VEC", values=(1, 2, 4, 8)),
    Parameter(name="UNROLL", values=(1, 2, 4)),
    Parameter(name="FIXED", values=(7,)),
)


def seconds(config: Config) -> float:
    """VEC matters most, BLOCK half as much in the logarithm, UNROLL not at all."""
    return 1e-3 * 2.0 ** (-2 * math.log2(config["VEC"]) + abs(math.log2(config["BLOCK"]) - 6))


def observed(space: Space, count: int) -> dict[int, Observation]:
    points = space.sample(np.random.default_rng(3), count)
    return {point: Observation(seconds(space.config(point))) for point in points}


def test_shares_follow_what_a_parameter_does() -> None:
    space = Space.build(PARAMETERS, [])
    found = effects(space, observed(space, 30))
    assert found is not None and found.points == 30
    assert [one.parameter for one in found.parameters] == ["VEC", "BLOCK", "UNROLL"]
    vec, block, unroll = found.parameters
    # The exact shares of the whole product: variances of 2 log2 VEC and of |log2 BLOCK - 6| over their sum.
    exact = np.var([0, 2, 4, 6]) / (np.var([0, 2, 4, 6]) + np.var([1, 0, 1, 2]))
    assert vec.share == pytest.approx(exact, abs=0.05) and block.share == pytest.approx(1 - exact, abs=0.05)
    assert unroll.share < 0.02
    assert found.explained > 0.9
    # Twice the width takes a quarter of the time.
    assert vec.expected[0] / vec.expected[1] == pytest.approx(4, rel=0.3)
    assert min(range(4), key=lambda place: block.expected[place] or math.inf) == 1


def test_a_value_that_is_never_feasible_has_no_effect() -> None:
    rule = SpaceRule(parse("BLOCK * VEC <= 512"), {}, label="BLOCK * VEC <= 512", because="")
    too_wide = SpaceRule(parse("VEC < 8"), {}, label="VEC < 8", because="")
    space = Space.build(PARAMETERS, [rule, too_wide])
    found = effects(space, observed(space, 20))
    assert found is not None
    assert {one.parameter: one for one in found.parameters}["VEC"].expected[-1] is None


def test_dropped_points_and_failures_do_not_count_as_times() -> None:
    space = Space.build(PARAMETERS, [])
    results = observed(space, 30)
    for point in list(results)[:4]:
        level = results[point].value
        results[point] = Observation(level / 2, (level / 2, level), dropped=True)
    for point in list(results)[4:8]:
        results[point] = Observation(None, failure="compile_failed")
    found = effects(space, results)
    assert found is not None and found.points == 26
    assert found.parameters[0].parameter == "VEC" and found.parameters[0].share > 0.6


def test_too_little_is_said_to_be_nothing() -> None:
    space = Space.build(PARAMETERS, [])
    assert effects(space, observed(space, 7)) is None
    alike = {point: Observation(1e-3) for point in range(20)}
    assert effects(space, alike) is None
    assert effects(Space.build(PARAMETERS[3:], []), {0: Observation(1.0)}) is None
