"""The small, safe language of constraints, shapes and launch geometry: `VEC * BLOCK <= d`, `ceil_div(n, ROWS)`.

Owns parsing, name checking and evaluation. The grammar is Python's expression grammar cut down to arithmetic,
comparison, boolean logic, conditionals, membership and a fixed set of functions; nothing else can be reached, so
text from a model or a stranger's file is safe to evaluate. An expression evaluates on scalars or, with the same
meaning, on NumPy arrays (one element per candidate point).
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from tunesmith.hw.errors import TunesmithError

MAX_LENGTH = 2000
MAX_EXPONENT = 64
MAX_INTEGER = 1 << 62

SIZEOF = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "int64": 8, "uint64": 8, "int32": 4, "uint32": 4, "int16": 2, "uint16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
"""Bytes of one element of each data type Tunesmith knows."""

Value = Any
"""A bool, int, float, str, or an array of them."""


class ExpressionError(TunesmithError):
    """The text is not an expression of the language, or has no value for these names."""


def _located(text: str, column: int, what: str) -> ExpressionError:
    return ExpressionError(f"In the expression `{text}`, column {column + 1}: {what}")


def _is_array(*values: Value) -> bool:
    return any(isinstance(value, np.ndarray) for value in values)


def _sizeof(name: Value) -> Value:
    if isinstance(name, np.ndarray):
        return np.array([_sizeof(item) for item in name.tolist()])
    if name not in SIZEOF:
        raise ValueError(f"sizeof() takes a data type, one of {', '.join(SIZEOF)}, not {name!r}")
    return SIZEOF[name]


def _ceil_div(a: Value, b: Value) -> Value:
    return -(-a // b)


def _round_up(a: Value, b: Value) -> Value:
    return _ceil_div(a, b) * b


def _is_pow2(a: Value) -> Value:
    if _is_array(a):
        return (a > 0) & ((a & (a - 1)) == 0)
    return a > 0 and a & (a - 1) == 0


def _fold(scalar: Callable[..., Value], vector: Callable[..., Value]) -> Callable[..., Value]:
    def apply(*values: Value) -> Value:
        if not _is_array(*values):
            return scalar(*values)
        result = values[0]
        for value in values[1:]:
            result = vector(result, value)
        return result

    return apply


def _rounded(scalar: Callable[[float], int], vector: Callable[..., Value]) -> Callable[[Value], Value]:
    def apply(value: Value) -> Value:
        return vector(value).astype(np.int64) if _is_array(value) else scalar(value)

    return apply


FUNCTIONS: Mapping[str, tuple[Callable[..., Value], int, int]] = {
    "min": (_fold(min, np.minimum), 2, 16),
    "max": (_fold(max, np.maximum), 2, 16),
    "abs": (abs, 1, 1),
    "ceil": (_rounded(math.ceil, np.ceil), 1, 1),
    "floor": (_rounded(math.floor, np.floor), 1, 1),
    "ceil_div": (_ceil_div, 2, 2),
    "round_up": (_round_up, 2, 2),
    "log2": (lambda a: np.log2(a) if _is_array(a) else math.log2(a), 1, 1),
    "is_pow2": (_is_pow2, 1, 1),
    "sizeof": (_sizeof, 1, 1),
}
"""Function name -> (implementation, fewest arguments, most arguments)."""


def _power(a: Value, b: Value) -> Value:
    if np.any(np.abs(b) > MAX_EXPONENT):
        raise ValueError(f"an exponent is at most {MAX_EXPONENT}")
    return a**b


_BINARY: Mapping[type[ast.operator], Callable[[Value, Value], Value]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
    ast.Pow: _power,
    ast.BitAnd: lambda a, b: a & b,
}
_COMPARE: Mapping[type[ast.cmpop], Callable[[Value, Value], Value]] = {
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
}


def _member(item: Value, options: tuple[Value, ...]) -> Value:
    if not _is_array(item, *options):
        return item in options
    return np.logical_or.reduce([np.asarray(item == option) for option in options])


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression. `names` are the free names it needs; `evaluate` gives them values."""

    text: str
    names: frozenset[str]
    _tree: ast.expr = field(repr=False, compare=False)

    def evaluate(self, values: Mapping[str, Value]) -> Value:
        """The value for `values`; arrays broadcast. Raises `ExpressionError` naming the column."""
        with np.errstate(all="ignore"):
            return self._value(self._tree, values)

    def integer(self, values: Mapping[str, Value]) -> int:
        """The value as an int; raises `ExpressionError` when it is not a whole number."""
        value = self.evaluate(values)
        if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
            raise ExpressionError(f"The expression `{self.text}` must give a whole number, but gives {value!r}.")
        return int(value)

    def require(self, known: frozenset[str] | set[str], where: str) -> None:
        """Raises `ExpressionError` when a name outside `known` is used; `where` says which key of which file."""
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Name) and node.id in self.names and node.id not in known:
                raise ExpressionError(
                    f"{where}: in the expression `{self.text}`, column {node.col_offset + 1}: "
                    f"the name '{node.id}' is not defined; known names are {', '.join(sorted(known)) or 'none'}."
                )

    def _value(self, node: ast.expr, values: Mapping[str, Value]) -> Value:
        try:
            value = self._apply(node, values)
        except (ZeroDivisionError, ValueError, TypeError, OverflowError) as error:
            raise _located(self.text, node.col_offset, f"{error}.") from error
        if isinstance(value, int) and abs(value) > MAX_INTEGER:
            raise _located(self.text, node.col_offset, f"the value exceeds {MAX_INTEGER}.")
        return value

    def _apply(self, node: ast.expr, values: Mapping[str, Value]) -> Value:
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                if node.id not in values:
                    known = ", ".join(sorted(values)) or "none"
                    raise _located(self.text, node.col_offset,
                                   f"the name '{node.id}' is not defined; known names are {known}.")
                return values[node.id]
            case ast.BinOp():
                left, right = self._value(node.left, values), self._value(node.right, values)
                if isinstance(left, str) or isinstance(right, str):
                    raise TypeError("text takes part in comparisons only")
                return _BINARY[type(node.op)](left, right)
            case ast.UnaryOp():
                operand = self._value(node.operand, values)
                if isinstance(node.op, ast.USub):
                    return -operand
                return np.logical_not(operand) if _is_array(operand) else not operand
            case ast.BoolOp():
                return self._boolean(node, values)
            case ast.Compare():
                return self._comparison(node, values)
            case ast.IfExp():
                test = self._value(node.test, values)
                if _is_array(test):
                    return np.where(test, self._value(node.body, values), self._value(node.orelse, values))
                return self._value(node.body if test else node.orelse, values)
            case ast.Call(func=ast.Name(id=name)):
                return FUNCTIONS[name][0](*(self._value(argument, values) for argument in node.args))
            case ast.Tuple() | ast.List():
                return tuple(self._value(item, values) for item in node.elts)
        raise AssertionError(f"unchecked node {node!r}")

    def _boolean(self, node: ast.BoolOp, values: Mapping[str, Value]) -> Value:
        conjunction = isinstance(node.op, ast.And)
        result: Value = conjunction
        for item in node.values:
            value = self._value(item, values)
            if _is_array(result, value):
                result = np.logical_and(result, value) if conjunction else np.logical_or(result, value)
            else:
                result = bool(value)
                if result != conjunction:
                    return result
        return result

    def _comparison(self, node: ast.Compare, values: Mapping[str, Value]) -> Value:
        left = self._value(node.left, values)
        result: Value = True
        for operator, right_node in zip(node.ops, node.comparators, strict=True):
            right = self._value(right_node, values)
            if isinstance(operator, ast.In | ast.NotIn):
                held = _member(left, right if isinstance(right, tuple) else (right,))
                if isinstance(operator, ast.NotIn):
                    held = np.logical_not(held) if _is_array(held) else not held
            else:
                held = _COMPARE[type(operator)](left, right)
            result = np.logical_and(result, held) if _is_array(result, held) else bool(result and held)
            left = right
        return result


def _check(node: ast.AST, text: str, names: set[str]) -> None:
    column = getattr(node, "col_offset", 0)
    match node:
        case ast.Constant(value=bool() | int() | float() | str()):
            return
        case ast.Name():
            names.add(node.id)
            return
        case ast.BinOp() if type(node.op) in _BINARY:
            pass
        case ast.UnaryOp(op=ast.USub() | ast.Not()):
            pass
        case ast.BoolOp() | ast.IfExp() | ast.Tuple() | ast.List():
            pass
        case ast.Compare() if all(type(op) in _COMPARE or isinstance(op, ast.In | ast.NotIn) for op in node.ops):
            pass
        case ast.Call(func=ast.Name(id=name), keywords=[]) if name in FUNCTIONS:
            _, fewest, most = FUNCTIONS[name]
            if not fewest <= len(node.args) <= most or any(isinstance(arg, ast.Starred) for arg in node.args):
                counts = str(fewest) if fewest == most else f"{fewest} to {most}"
                raise _located(text, column, f"{name}() takes {counts} argument(s), not {len(node.args)}.")
            for argument in node.args:
                _check(argument, text, names)
            return
        case ast.Call(func=ast.Name(id=name)):
            raise _located(text, column, f"there is no function '{name}'; the functions are {', '.join(FUNCTIONS)}.")
        case _:
            raise _located(text, column, f"{type(node).__name__} is not part of the expression language; it has "
                           "numbers, text, names, + - * / // % ** &, comparisons, `in`, and/or/not, a if c else b "
                           f"and {', '.join(FUNCTIONS)}.")
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            _check(child, text, names)


@lru_cache(maxsize=4096)
def parse(text: str) -> Expression:
    """Parses `text`; raises `ExpressionError` that points at the column."""
    stripped = text.strip()
    if len(stripped) > MAX_LENGTH:
        raise ExpressionError(f"An expression is at most {MAX_LENGTH} characters long; this one has {len(stripped)}.")
    try:
        tree = ast.parse(stripped, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        column = (getattr(error, "offset", None) or 1) - 1
        reason = getattr(error, "msg", None) or str(error)
        raise _located(stripped, column, f"{reason}.") from error
    names: set[str] = set()
    try:
        _check(tree, stripped, names)
    except RecursionError as error:
        raise ExpressionError(f"The expression `{stripped[:60]}...` is nested too deeply.") from error
    return Expression(stripped, frozenset(names), tree)
