"""The expression language: its meaning on scalars and on arrays, and the texts that it refuses."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import expressions

from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.expression import MAX_DEPTH, MAX_INTEGER, ExpressionError, parse

NAMES = ("A", "B", "C")
FUNCTIONS: Mapping[str, Any] = {
    "min": min,
    "max": max,
    "abs": abs,
    "ceil": math.ceil,
    "floor": math.floor,
    "ceil_div": lambda a, b: -(-a // b),
    "round_up": lambda a, b: -(-a // b) * b,
    "is_pow2": lambda a: a > 0 and a & (a - 1) == 0,
    "sizeof": lambda name: DTYPES[name].size,
}

LEAVES = ["0", "1", "2", "7", "32", "1000", "0.5", "2.0", "1.25", "True", "False", *NAMES, *NAMES, *NAMES]
SHAPES = [
    *(f"({{0}} ** {exponent})" for exponent in ("0", "2", "3", "-1", "0.5")),
    *("(T == 'float16')", "(T in ('float32', {0}))", "({0} if T == 'float16' else {1})", "sizeof(T)"),
]
"""Besides those of any expression."""


points = st.fixed_dictionaries(
    {name: st.integers(-3, 1025) for name in NAMES} | {"T": st.sampled_from(["float16", "float32"])}
)


@settings(max_examples=300)
@given(expressions(LEAVES, *SHAPES), points)
def test_it_means_what_python_means(text: str, point: dict[str, Any]) -> None:
    try:
        wanted = eval(text, {"__builtins__": {}, **FUNCTIONS}, dict(point))
    except (ArithmeticError, ValueError, TypeError):
        with pytest.raises(ExpressionError, match="column"):
            parse(text).evaluate(point)
        return
    try:
        ours = parse(text).evaluate(point)
    except ExpressionError as error:
        # Only what Python would allow to grow or to leave the numbers is refused.
        assert re.search("exceeds|no power", str(error))
        return
    if isinstance(ours, bool):
        # and/or give a truth value here, where Python gives an operand.
        assert ours == bool(wanted)
    else:
        np.testing.assert_allclose(ours, wanted, rtol=1e-12)


def test_wrapped_integers_are_an_error_in_arrays_as_in_scalars() -> None:
    big = np.array([3, 1 << 40])
    for text in ("n * n", "n * 8388608", "n + 4611686018427387904", "-n - 4611686018427387904"):
        with pytest.raises(ExpressionError, match="exceeds"):
            parse(text).evaluate({"n": 1 << 40})
        with pytest.raises(ExpressionError, match="exceeds"):
            parse(text).evaluate({"n": big})
    assert parse("n * 4194304").evaluate({"n": np.array([1 << 40])}).tolist() == [MAX_INTEGER]


HOSTILE = [
    ("a.__class__", "column 1: `a.__class__` is not part"),
    ("1 + (lambda: 1)", "column 6: `lambda: 1` is not part"),
    ("__import__('os').system('true')", "column 1: "),
    ("a[0]", "column 1: `a[0]` is not part"),
    ("a or None", "column 6: `None` is not part"),
    ("min(*a, 1)", "column 5: `*a` is not part"),
    ("a = 1", "column "),
    ("(1,) * 1000000000", "column 1: "),
    ("1 in n", "column 6: `in` is followed by a list"),
    ("1 # and so on", "column 3: the character '#' has no place"),
    ("max(a)", "column 1: max(): missing a required argument"),
    ("abs(a=1)", "column 1: `abs(a=1)` is not part"),
    ("", "column 1: it is empty"),
    ("(a\n + b.c)", "column 6: `b.c` is not part"),
    ("a + é\0", "column 5: the character '\\xe9' has no place"),
    ("a" + " + a" * (MAX_DEPTH + 2), "are nested in one another"),
    ("(" * 2000 + "1" + ")" * 2000, "column "),
    ("1" * 4999, "column "),
]


@pytest.mark.parametrize(("text", "wanted"), HOSTILE, ids=[ascii(text)[:24] for text, _ in HOSTILE])
def test_hostile_text_is_refused_at_a_column(text: str, wanted: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(text)
    message = str(caught.value)
    assert message.startswith("In the expression `") and wanted in message
    assert message.endswith(".") and not message.endswith("..")
    assert message.encode(), "the message can be printed"


def test_ten_megabytes_are_refused_and_an_unknown_name_is_told_in_full() -> None:
    with pytest.raises(ExpressionError, match=r"^An expression is at most 8000 characters long; this one has \d+\.$"):
        parse("1+" * 5_000_000)
    with pytest.raises(ExpressionError) as caught:
        parse("VEC * dd <= 4").require({"VEC", "d"})
    said = "In the expression `VEC * dd <= 4`, column 7: the name 'dd' is not defined; did you mean 'd'?"
    assert str(caught.value) == said


EVALUATION = [
    ("9 ** 9 ** 9", "column 1: an exponent is at most 64."),
    ("a + 1 // (a - 4)", "column 5: integer division or modulo by zero."),
    ("a + zero % 0", "column 5: the name 'zero' is not defined; known names are T, a."),
    ("T + 1", "column 1: text takes part in comparisons only."),
    ("sizeof(a)", f"column 1: sizeof() takes a data type, one of {', '.join(DTYPES)}, not 4."),
    ("(0 - a) ** 0.5", "column 1: a negative number has no power that is not whole."),
    ("0 ** -1", "column 1: 0 has no negative power."),
    ("ceil(1e999)", "column 1: cannot convert float infinity to integer."),
]


@pytest.mark.parametrize(("text", "wanted"), EVALUATION, ids=[text for text, _ in EVALUATION])
def test_what_has_no_value(text: str, wanted: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(text).evaluate({"a": 4, "T": "float32"})
    assert str(caught.value) == f"In the expression `{text.strip()}`, {wanted}"


@pytest.mark.parametrize("text", ["1e999", "1e999 - 1e999", "1e300", "2.5", "n > 3", "'four'"])
def test_a_whole_number_is_asked_for(text: str) -> None:
    with pytest.raises(ExpressionError, match=r"must give a (whole )?number, but gives"):
        parse(text).integer({"n": 4})


def test_conditions_take_one_side_only() -> None:
    assert parse("n // d if d else 0").evaluate({"n": 4, "d": 0}) == 0
    assert parse("d == 0 or n % d == 0").evaluate({"n": 4, "d": 0}) is True
    assert parse("d and n // d > 1").evaluate({"n": 4, "d": 0}) is False
    assert parse("1 < a in (2, 3)").evaluate({"a": 3}) is True
    assert parse("log2(n)").integer({"n": 1024}) == 10
