"""Values of a kernel's threads: whole numbers where they are known, and bounds where they are not.

Owns the arithmetic of intervals (Moore, 1966), for all threads at once: a value is an array over the threads, or one
number for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tunesmith.kernels.reader.syntax import Kind

Names = frozenset[str]
NONE: Names = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """low, high: bounds, the same object where the value is known. names: the parameters that a value which is the same
    for all threads was computed from; strides: for each product in it, the parameters in the factor that all share."""

    low: Any
    high: Any
    names: Names = NONE
    strides: frozenset[Names] = frozenset()

    @property
    def known(self) -> bool:
        return self.low is self.high

    @property
    def uniform(self) -> bool:
        return np.ndim(self.low) == 0 and np.ndim(self.high) == 0

    @property
    def bounded(self) -> bool:
        return bool(np.all(np.isfinite(self.low)) and np.all(np.isfinite(self.high)))


ANY = Span(-np.inf, np.inf)


def number(value: Any, *names: str) -> Span:
    return Span(value, value, frozenset(names))


def of_kind(kind: Kind) -> Span:
    """All values of a type."""
    if kind.what == "number" and kind.size < 8:
        return Span(float(kind.least), float(kind.largest))
    return Span(0.0, np.inf) if kind.what == "number" and kind.least == 0 else ANY


def fitted(value: Span, kind: Kind) -> Span:
    """`value` after its conversion to a type: whole numbers wrap around."""
    if kind.what != "number":
        return value
    if kind.largest == 1:
        return flag(*compare("!=", value, number(0)))
    if value.known:
        known = value.low
        if type(known) is int and kind.least <= known <= kind.largest:
            return value
        if not np.issubdtype(np.asarray(known).dtype, np.integer):
            if not np.all(np.isfinite(known)):
                return of_kind(kind)
            known = np.trunc(known).astype(np.int64) if np.ndim(known) else int(known)
        if kind.size < 8 and (np.any(known < kind.least) or np.any(known > kind.largest)):
            width = int(kind.largest - kind.least + 1)
            known = (known - int(kind.least)) % width + int(kind.least) if kind.size > 0 else known
        return value if known is value.low else replace(value, low=known, high=known)
    if np.any(value.low < kind.least) or np.any(value.high > kind.largest):
        whole = of_kind(kind)
        outside = (value.low < kind.least) | (value.high > kind.largest)
        return replace(
            value, low=np.where(outside, whole.low, value.low), high=np.where(outside, whole.high, value.high)
        )
    return replace(value, low=np.floor(value.low), high=np.ceil(value.high)) if value.bounded else value


def flag(true: Any, maybe: Any) -> Span:
    """A truth value, by the threads for which it is true for certain, and for which it may be."""
    low, high = np.asarray(true).astype(np.int64), np.asarray(maybe).astype(np.int64)
    return Span(low, low) if np.array_equal(low, high) else Span(low.astype(float), high.astype(float))


def choose(mask: Any, one: Span, other: Span) -> Span:
    """`one` for the threads of the mask, `other` for the rest."""
    if one is other or mask is True:
        return one
    low = np.where(mask, one.low, other.low)
    high = low if one.known and other.known else np.where(mask, one.high, other.high)
    return Span(low, high, NONE, one.strides | other.strides)


NOWHERE = number(-(1 << 62))
"""The distance of memory that a pointer does not point to."""


def absent(value: Span) -> Any:
    """For which threads a pointer does not point to what this is the distance of."""
    return np.less(value.high, -(1 << 61))


def hull(one: Span, other: Span) -> Span:
    """Either of two values, or of two distances where both are there; which one is not known."""
    if one is other or (one.known and other.known and np.all(one.low == other.low)):
        return one
    no_one, no_other = absent(one), absent(other)
    low = np.where(no_one, other.low, np.where(no_other, one.low, np.minimum(one.low, other.low)))
    high = np.where(no_one, other.high, np.where(no_other, one.high, np.maximum(one.high, other.high)))
    return Span(low, high, NONE, one.strides | other.strides)


def everywhere(value: Span) -> Span:
    """The bounds over all threads."""
    return Span(float(np.min(value.low)), float(np.max(value.high)))


def _corners(operate: Callable[[Any, Any], Any], a: Span, b: Span) -> tuple[Any, Any]:
    found = [operate(np.float64(x), np.float64(y)) for x in (a.low, a.high) for y in (b.low, b.high)]
    found = [np.nan_to_num(one, nan=0.0, posinf=np.inf, neginf=-np.inf) for one in found]
    return np.minimum.reduce(np.broadcast_arrays(*found)), np.maximum.reduce(np.broadcast_arrays(*found))


def _divide(a: Any, b: Any) -> Any:
    """Towards zero."""
    b = np.where(np.equal(b, 0), 1, b) if np.any(np.equal(b, 0)) else b
    return (
        np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b)) if np.any(np.less(a, 0)) or np.any(np.less(b, 0)) else a // b
    )


_EXACT: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": _divide,
    "%": lambda a, b: a - _divide(a, b) * b,
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "<<": lambda a, b: a << np.clip(b, 0, 62),
    ">>": lambda a, b: a >> np.clip(b, 0, 63),
    "min": np.minimum,
    "max": np.maximum,
}


def arithmetic(op: str, a: Span, b: Span, kind: Kind) -> Span:
    """The value of an operation whose result has a type, its names and strides."""
    with np.errstate(all="ignore"):
        low, high = _bounds(op, a, b, kind)
    names = a.names | b.names if a.uniform and b.uniform else NONE
    strides = a.strides | b.strides
    if op in ("*", "<<"):
        factor, other = (b, a) if b.uniform else (a, b)
        if factor.uniform and not other.uniform:
            strides = frozenset(
                {one | factor.names for one in other.strides} | ({factor.names} if factor.names else set())
            )
        elif factor.names or other.names:
            # Which of two parameters the other one counts is not known.
            inner = factor.names | other.names
            strides = frozenset({one | inner for one in strides} | {inner})
    return fitted(Span(low, high, names, strides), kind)


def _bounds(op: str, a: Span, b: Span, kind: Kind) -> tuple[Any, Any]:
    if a.known and b.known:
        floats = kind.what == "float" and op == "/"
        x, y = (np.float64(a.low), np.float64(b.low)) if floats else (a.low, b.low)
        whole = all(np.issubdtype(np.asarray(one).dtype, np.integer) or np.asarray(one).dtype == bool for one in (x, y))
        if floats:
            found = x / y
        elif whole or op in "+-*minmax":
            found = _EXACT[op](x, y)
        else:
            return -np.inf, np.inf
        return found, found
    if op in ("+", "min", "max"):
        return _EXACT[op](a.low, b.low), _EXACT[op](a.high, b.high)
    if op == "-":
        return np.subtract(a.low, b.high), np.subtract(a.high, b.low)
    if op == "*":
        return _corners(np.multiply, a, b)
    positive = bool(np.all(np.greater_equal(b.low, 1)))
    if op == "/" and positive:
        low, high = _corners(np.divide, a, b)
        return (low, high) if kind.what == "float" else (np.trunc(low), np.trunc(high))
    if op == "%" and positive:
        most = np.minimum(np.subtract(b.high, 1), np.maximum(np.abs(a.low), np.abs(a.high)))
        return np.where(np.less(a.low, 0), -most, 0), most
    if op == "&":
        bounds = [one.high for one in (a, b) if np.all(np.greater_equal(one.low, 0))]
        if bounds:
            return 0.0, np.minimum.reduce(np.broadcast_arrays(*bounds)) if len(bounds) > 1 else bounds[0]
    if op in (">>", "<<") and b.known and np.all(np.greater_equal(b.low, 0)):
        scale = np.float64(2.0) ** np.float64(b.low)
        if op == "<<":
            return _corners(np.multiply, a, Span(scale, scale))
        return np.floor(a.low / scale), np.floor(a.high / scale)
    if op in ("|", "^") and np.all(np.greater_equal(a.low, 0)) and np.all(np.greater_equal(b.low, 0)):
        return 0.0, np.add(a.high, b.high)
    anything = of_kind(kind)
    return anything.low, anything.high


def compare(op: str, a: Span, b: Span) -> tuple[Any, Any]:
    """For which threads a comparison is true for certain, and for which it may be."""
    if op in ("<", "<="):
        test = np.less if op == "<" else np.less_equal
        return test(a.high, b.low), test(a.low, b.high)
    if op in (">", ">="):
        return compare("<" if op == ">" else "<=", b, a)
    same = np.equal(a.low, b.low) & np.equal(a.low, a.high) & np.equal(b.low, b.high)
    meet = np.less_equal(a.low, b.high) & np.less_equal(b.low, a.high)
    return (same, meet) if op == "==" else (~meet, ~same)
