"""How a round is shared among templates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tunesmith.graph.roles.tuner import ask_order, max_evaluations


def play(values: list[float], total: int) -> list[int]:
    """Evaluations each template gets, when the k-th is as good as values[k] from its first evaluation on."""
    asked = [0] * len(values)
    for _ in range(total):
        best = [value if count else None for value, count in zip(values, asked, strict=True)]
        asked[ask_order(asked, best, total)[0]] += 1
    return asked


@pytest.mark.parametrize(
    ("values", "total", "wanted"),
    [
        ([1.0], 17, [17]),
        ([1.0, 2.0], 40, [30, 10]),
        ([2.0, 1.0], 40, [10, 30]),
        ([4.0, 3.0, 2.0, 1.0], 48, [4, 4, 12, 28]),
    ],
)
def test_half_are_out_after_each_part(values: list[float], total: int, wanted: list[int]) -> None:
    assert play(values, total) == wanted and max_evaluations(len(values), total) == max(wanted)


def test_a_template_that_becomes_better_is_in_again() -> None:
    assert ask_order([10, 10], [1.0, 2.0], 40)[0] == 0
    assert ask_order([15, 10], [1.0, 0.9], 40)[0] == 1


def test_a_template_without_a_result_stands_behind_one_with() -> None:
    assert ask_order([10, 10], [None, 2.0], 40)[0] == 1
    assert ask_order([0, 0, 0], [None, None, None], 30)[0] == 0


@given(some.lists(some.floats(0.01, 100), min_size=1, max_size=8), some.integers(1, 300))
def test_all_is_spent_each_has_a_turn_and_none_more_than_the_maximum(values: list[float], total: int) -> None:
    asked = play(values, total)
    assert sum(asked) == total
    assert max(asked) <= max_evaluations(len(values), total) + len(values)
    if total >= 4 * len(values) ** 2:
        assert min(asked) > 0
