"""The feasible space: its points, the reasons against others, and neighbours."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tunesmith.kernels import space as listing
from tunesmith.kernels.outcome import Rejected
from tunesmith.kernels.space import Domain, Space, SpaceError, SpaceRule
from tunesmith.kernels.spec.expression import parse
from tunesmith.kernels.spec.template import Config, Parameter

TEXTS = (
    "A * B <= limit",
    "A + B + C <= 9",
    "C % A == 0 or B > 2",
    "A >= 2",
    "D != 'wide' or B <= 2",
    "not E or A < 4",
    "B in (1, 4) or E",
    "A * B * C < 3 * limit",
    "limit > 3",
    "max(A, C) <= B + 2",
)
VALUES = {"A": (1, 2, 4, 8), "B": (4, 1, 2), "C": (1, 2, 3), "D": ("wide", "narrow"), "E": (True, False)}


def parameters(names: str = "ABCDE") -> list[Parameter]:
    return [Parameter(name=name, values=VALUES[name]) for name in names]


def rules(*texts: str, limit: int = 8) -> list[SpaceRule]:
    return [SpaceRule(parse(text), {"limit": limit}) for text in texts]


def product(listed: list[Parameter]) -> list[Config]:
    names = [parameter.name for parameter in listed]
    return [dict(zip(names, v, strict=True)) for v in itertools.product(*(p.values for p in listed))]


@settings(max_examples=60)
@given(st.lists(st.sampled_from(TEXTS), unique=True, max_size=5), st.integers(1, 12), st.sampled_from([1 << 18, 4]))
def test_listed_points_are_the_filtered_product(texts: list[str], limit: int, chunk: int) -> None:
    listed, conditions = parameters(), rules(*texts, limit=limit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listing, "_CHUNK", chunk)
        space = Space.build(listed, conditions)
    wanted = [point for point in product(listed) if all(rule.holds(point) for rule in conditions)]
    assert [space.config(i) for i in range(len(space))] == wanted
    assert all(space.index(point) == i for i, point in enumerate(wanted))
    refused = [reason for point in product(listed) if (reason := space.reject(point)) is not None]
    counts = Counter(reason.rule for reason in refused)
    assert dict(counts) == {label: count for label, count in space.rejected.items() if count}
    assert sum(space.rejected.values()) + len(space) == space.cartesian


def test_reasons_name_the_rule_and_the_numbers() -> None:
    rule = SpaceRule(parse("A * B <= limit"), {"limit": 8}, because="the tile must fit.")
    space = Space.build(parameters(), [rule])
    point: Config = {"A": 8, "B": 2, "C": 1, "D": "wide", "E": True}
    assert space.reject(point) == Rejected(
        "constraint", "A * B <= limit", "`A * B <= limit` does not hold for A=8, B=2, limit=8 (the tile must fit)."
    )
    assert space.reject({**point, "B": 1}) is None
    for wrong, kind in (({**point, "A": 3}, "unknown_value"), ({**point, "Q": 3}, "unknown_parameter")):
        reason = space.reject(wrong)
        assert reason is not None and reason.reason == kind and space.index(wrong) is None
    reason = space.reject({"A": 1})
    assert reason is not None and reason.reason == "unknown_parameter"
    # A flag is not a number, but text formats lose the difference between 1 and 1.0.
    assert space.index({**point, "E": 1}) is None
    assert space.index({**point, "B": 1.0}) == space.index({**point, "B": 1})


def test_neighbours_know_the_order_of_numbers() -> None:
    listed = [Parameter(name="A", values=(8, 1, 4, 2)), Parameter(name="D", values=("x", "y", "z"))]
    space = Space.build(listed, rules("A != 4"))
    here = space.index({"A": 2, "D": "x"})
    near = [tuple(space.config(point).values()) for point in space.neighbours(here)]
    assert sorted(map(str, near)) == sorted(map(str, [(1, "x"), (8, "x"), (2, "y"), (2, "z")]))
    assert space.config(space.neighbours(space.index({"A": 8, "D": "x"}))[0]) == {"A": 2, "D": "x"}


MIXED = (
    Parameter(name="A", values=(1, 2, 3, 8, 0, -4)),
    Parameter(name="B", values=(False, True)),
    Parameter(name="C", values=("x", "y")),
    Parameter(name="D", values=(0.5, 2, 4)),
    Parameter(name="E", values=(1, "z", 2)),
    Parameter(name="F", values=(0.25, 1.5, -2.0)),
)
OPERATORS = ("+", "-", "*", "/", "//", "%", "&", "**", "<", "<=", "==", "!=", "and", "or")
SHAPES = (
    *(f"({{0}} {operator} {{1}})" for operator in OPERATORS),
    *(f"{function}({{0}}, {{1}})" for function in ("min", "max", "ceil_div", "round_up")),
    *(f"{function}({{0}})" for function in ("abs", "ceil", "floor", "is_pow2", "log2")),
    *("({0} if {1} else {2})", "({0} in ({1}, {2}))", "({0} <= {1} < {2})", "(not {0})", "(-{0})"),
)
CONDITIONS = st.recursive(
    st.sampled_from([*"ABDABCDEF", "n", "0", "1", "2", "3", "0.5", "'x'", "True", "2 ** 61"]),
    lambda inner: st.builds(str.format, st.sampled_from(SHAPES), inner, inner, inner),
    max_leaves=6,
)


@settings(max_examples=400)
@given(CONDITIONS)
@example("(A // 0) < 2")
@example("(D & 2) == 2")
@example("D * 2 ** 61 > 0")
@example("(A + 2 ** 61) ** A > 0")
@example("min(A, 0.5) & 1 == 1")
@example("(A if B else 0.5) & 1 == 1")
def test_any_condition_means_on_arrays_what_it_means_on_a_point(text: str) -> None:
    """Also where parameters have values of several types, and where there is no value."""
    rule = SpaceRule(parse(text), {"n": 7})
    asked = [parameter for parameter in MIXED if parameter.name in rule.names]
    points = product(asked)
    domain = Domain(asked)
    codes = np.array([domain.encode(point) for point in points], dtype=np.uint16)
    values = {name: domain.values[column][codes[:, column]] for name, column in domain.column.items()}
    flags = rule.flags(values, len(points)).tolist()
    assert not [point for flag, point in zip(flags, points, strict=True) if flag != rule.holds(point)]


def test_mistakes_are_told() -> None:
    with pytest.raises(SpaceError, match="reads Q, which is not a parameter"):
        Space.build(parameters(), rules("Q > 1"))
    with pytest.raises(SpaceError, match="declared twice"):
        Space.build([*parameters("A"), *parameters("A")], [])


def wide(values: int, names: Iterable[str]) -> list[Parameter]:
    return [Parameter(name=name, values=tuple(range(1, values + 1))) for name in names]


@pytest.mark.parametrize("bound", ["MAX_POINTS", "MAX_PARTIAL"])
def test_a_space_too_large_to_list_is_refused_with_a_sentence(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, bound, 1000)
    with pytest.raises(SpaceError, match="exclude too few early on: restrict the parameters' values"):
        Space.build(wide(20, "ABCDEFGH"), rules("A * B <= 40", "C + D < 20", "E <= F"))
    with pytest.raises(SpaceError, match="restrict their values"):
        Space.build(wide(200, [f"P{i}" for i in range(12)]), [])


def test_a_large_product_of_few_points_is_listed() -> None:
    listed = wide(250, [f"P{i}" for i in range(7)])
    space = Space.build(listed, rules(*(f"P{i} == P{i + 1}" for i in range(6))))
    assert len(space) == 250 and space.cartesian > 1 << 55
    assert [space.index(space.config(i)) for i in range(250)] == list(range(250))
    assert space.index({f"P{i}": 1 + (i == 3) for i in range(7)}) is None


def test_a_million_points_out_of_a_hundred_million_take_seconds() -> None:
    listed = [Parameter(name=n, values=tuple(1 << i for i in range(10))) for n in ("BX", "BY")]
    listed += wide(10, "TUVW") + [Parameter(name="X", values=(1, 2, 4, 8)), *wide(25, "Y")]
    started = time.process_time()
    texts = ("BX * BY <= 1024", "BX * BY >= 32", "T * U * V <= 80", "V % X == 0", "W * Y <= 40")
    space = Space.build(listed, rules(*texts))
    assert time.process_time() - started < 5
    assert space.cartesian == 10**8 and 10**6 < len(space) < 5 * 10**6
    assert sum(space.rejected.values()) + len(space) == 10**8


def test_points_of_a_table_are_a_space() -> None:
    listed = parameters("AB")
    space = Space.from_codes(listed, np.array([[1, 1], [0, 2]]), "The table")
    assert [space.config(i) for i in range(2)] == [{"A": 1, "B": 2}, {"A": 2, "B": 1}]
    assert space.reject({"A": 8, "B": 2}).rule == "The table" and space.reject({"A": 1, "B": 2}) is None
    assert space.rejected == {"The table": 10}
