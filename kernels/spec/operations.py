"""What the operators and functions of expressions compute, on scalars and, with the same meaning, on NumPy arrays.

Python's integers have no bound and NumPy's wrap around: whatever may leave 62 bits is refused on both.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import numpy as np

from tunesmith.kernels.spec.dtypes import DTYPES

MAX_EXPONENT = 64
MAX_INTEGER = 1 << 62

Value = Any
"""A bool, int, float, str, or an array of them."""


def is_array(*values: Value) -> bool:
    """Whether one of `values` is an array."""
    return any(isinstance(value, np.ndarray) for value in values)


def _sizeof(name: Value) -> Value:
    if isinstance(name, np.ndarray):
        return np.array([_sizeof(item) for item in name.tolist()])
    if name not in DTYPES:
        raise ValueError(f"sizeof() takes a data type, one of {', '.join(DTYPES)}, not {name!r}")
    return DTYPES[name].size


def is_text(value: Value) -> bool:
    """Whether `value` is text, or an array that holds some."""
    if isinstance(value, np.ndarray):
        return value.dtype.kind == "U" or (value.dtype == object and any(isinstance(item, str) for item in value.flat))
    return isinstance(value, str)


def as_number(value: Value) -> Value:
    """`value` for arithmetic: flags in arrays become 0 and 1, as they are in scalars."""
    return value.astype(np.int64) if isinstance(value, np.ndarray) and value.dtype == np.bool_ else value


def _is_whole(value: Value) -> bool:
    return np.asarray(value).dtype.kind in "biu"


def require_one_type(*values: Value) -> None:
    """Raises `TypeError` where an array of `values` would hold floats for what are whole numbers in scalars."""
    if any(map(_is_whole, values)) and any(np.asarray(value).dtype.kind == "f" for value in values):
        raise TypeError("an array holds either whole numbers or floats")


def _checked(result: Value, bound: Callable[[], Value]) -> Value:
    """`result`, an array of int64 that may have wrapped around; `bound` is the same in float64."""
    if (
        isinstance(result, np.ndarray)
        and result.dtype.kind == "i"
        and (np.any(np.abs(bound()) > 1.01 * MAX_INTEGER) or np.any(np.abs(result) > MAX_INTEGER))
    ):
        raise OverflowError(f"the value exceeds {MAX_INTEGER}")
    return result


def _float(value: Value) -> Value:
    return value.astype(np.float64) if isinstance(value, np.ndarray) else float(value)


def _multiply(a: Value, b: Value) -> Value:
    return _checked(a * b, lambda: _float(a) * _float(b))


def _ceil_div(a: Value, b: Value) -> Value:
    return -(-a // b)


def _round_up(a: Value, b: Value) -> Value:
    return _multiply(_ceil_div(a, b), b)


def _log2(a: Value) -> Value:
    if np.any(a <= 0):
        raise ValueError("log2() takes a positive number")
    return np.log2(a) if is_array(a) else math.log2(a)


def _is_pow2(a: Value) -> Value:
    if is_array(a):
        return (a > 0) & ((a & (a - 1)) == 0)
    return a > 0 and a & (a - 1) == 0


def _fold(scalar: Callable[..., Value], vector: Callable[..., Value]) -> Callable[..., Value]:
    def apply(*values: Value) -> Value:
        if not is_array(*values):
            return scalar(*values)
        require_one_type(*values)
        result = values[0]
        for value in values[1:]:
            result = vector(result, value)
        return result

    return apply


def _rounded(scalar: Callable[[float], int], vector: Callable[..., Value]) -> Callable[[Value], Value]:
    def apply(value: Value) -> Value:
        if not is_array(value):
            return scalar(value)
        rounded = vector(value)
        if not np.all(np.abs(rounded) <= MAX_INTEGER):
            raise OverflowError(f"the value exceeds {MAX_INTEGER}")
        return rounded.astype(np.int64)

    return apply


FUNCTIONS: Mapping[str, tuple[Callable[..., Value], int, int]] = {
    "min": (_fold(min, np.minimum), 2, 16),
    "max": (_fold(max, np.maximum), 2, 16),
    "abs": (abs, 1, 1),
    "ceil": (_rounded(math.ceil, np.ceil), 1, 1),
    "floor": (_rounded(math.floor, np.floor), 1, 1),
    "ceil_div": (_ceil_div, 2, 2),
    "round_up": (_round_up, 2, 2),
    "log2": (_log2, 1, 1),
    "is_pow2": (_is_pow2, 1, 1),
    "sizeof": (_sizeof, 1, 1),
}
"""Function name -> (implementation, fewest arguments, most arguments)."""


def _power(a: Value, b: Value) -> Value:
    if np.any(np.abs(b) > MAX_EXPONENT):
        raise ValueError(f"an exponent is at most {MAX_EXPONENT}")
    negative = np.less(b, 0)
    if np.any(np.equal(a, 0) & negative):
        raise ZeroDivisionError("0 has no negative power")
    if np.any(np.less(a, 0) & (np.floor(b) != b)):
        raise ValueError("a negative number has no power that is not whole")
    if not is_array(a, b):
        return a**b
    if np.any(negative):
        if _is_whole(a) and not np.all(negative):
            raise TypeError("an array holds either whole numbers or floats")
        return _float(a) ** b
    return _checked(a**b, lambda: _float(a) ** b)


BINARY: Mapping[type[ast.operator], Callable[[Value, Value], Value]] = {
    ast.Add: lambda a, b: _checked(a + b, lambda: _float(a) + _float(b)),
    ast.Sub: lambda a, b: _checked(a - b, lambda: _float(a) - _float(b)),
    ast.Mult: _multiply,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
    ast.Pow: _power,
    ast.BitAnd: lambda a, b: a & b,
}
COMPARE: Mapping[type[ast.cmpop], Callable[[Value, Value], Value]] = {
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
}


def member(item: Value, options: tuple[Value, ...]) -> Value:
    """`item in options`."""
    if not is_array(item, *options):
        return item in options
    return reduce(np.logical_or, [np.asarray(item == option) for option in options], np.zeros((), dtype=np.bool_))
