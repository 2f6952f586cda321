"""The small, safe language of constraints, shapes and launch geometry: `VEC * BLOCK <= d`, `ceil_div(n, ROWS)`.

Owns parsing, the meaning on scalars, and the same meaning on NumPy arrays of whole numbers, floats or text, by which
`tunesmith.kernels.space` lists millions of points; where arrays cannot have it, evaluating them is an error. Python's
integers have no bound and NumPy's wrap around: results beyond 62 bits are refused on both.
"""

from __future__ import annotations

import ast
import difflib
import io
import math
import re
import tokenize
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from typing import Any

import numpy as np

from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.spec.dtypes import DTYPES

MAX_EXPONENT = 64
MAX_INTEGER = 1 << 62

Value = Any
"""A bool, int, float, str, or an array of them."""


def is_array(*values: Value) -> bool:
    """Whether one of `values` is an array."""
    return any(isinstance(value, np.ndarray) for value in values)


def _sizeof(name: Value) -> Value:
    if is_array(name):
        raise TypeError("sizeof() takes one data type")
    if name not in DTYPES:
        raise ValueError(f"sizeof() takes a data type, one of {', '.join(DTYPES)}, not {name!r}")
    return DTYPES[name].size


def is_text(value: Value) -> bool:
    """Whether `value` is text, or an array of texts."""
    return isinstance(value, str) or (isinstance(value, np.ndarray) and value.dtype.kind == "U")


def as_number(value: Value) -> Value:
    """`value` for arithmetic: flags in arrays become 0 and 1, as they are in scalars."""
    return value.astype(np.int64) if isinstance(value, np.ndarray) and value.dtype == np.bool_ else value


def _is_whole(value: Value) -> bool:
    return np.asarray(value).dtype.kind in "biu"


def require_one_type(*values: Value) -> None:
    """Raises `TypeError` where an array of `values` would convert some of them to another type."""
    kinds = {"i" if _is_whole(value) else np.asarray(value).dtype.kind for value in values}
    if len(kinds) > 1:
        raise TypeError("an array holds values of one type")


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
        return reduce(vector, values)

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


MAX_LENGTH = 8000
MAX_DEPTH = 100
"""Nested operations, so that neither checking nor evaluating exhausts Python's stack."""


class ExpressionError(TunesmithError):
    """The text is not an expression of the language, or has no value for these names."""


def _shown(text: str) -> str:
    """`text` for a message: characters that terminals cannot print are escaped."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def _position(text: str, line: int, column: int) -> str:
    return f"line {line}, column {column + 1}" if "\n" in text else f"column {column + 1}"


def _at(text: str, node: ast.AST) -> str:
    """Where `node` stands in `text`. The parser counts bytes of UTF-8, a reader characters."""
    line, offset = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
    before = text.split("\n")[line - 1].encode()[:offset]
    return _position(text, line, len(before.decode(errors="replace")))


def _located(text: str, where: str, what: str) -> ExpressionError:
    return ExpressionError(f"In the expression `{_shown(text)}`, {where}: {what.rstrip('.')}.")


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
        value = self.number(values)
        if isinstance(value, bool) or value != math.floor(value) or abs(value) > MAX_INTEGER:
            raise ExpressionError(f"The expression `{self.text}` must give a whole number, but gives {value!r}.")
        return int(value)

    def number(self, values: Mapping[str, Value]) -> bool | int | float:
        """The value as a finite number; raises `ExpressionError` when it is text or not finite."""
        value = self.evaluate(values)
        if isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
            return value
        raise ExpressionError(f"The expression `{_shown(self.text)}` must give a number, but gives {value!r}.")

    def require(self, known: frozenset[str] | set[str], where: str) -> None:
        """Raises `ExpressionError` when a name outside `known` is used; `where` says which key of which file."""
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Name) and node.id in self.names and node.id not in known:
                near = difflib.get_close_matches(node.id, [*known, "True", "False"], 1)
                hint = (
                    f"did you mean '{near[0]}'?" if near else f"known names are {', '.join(sorted(known)) or 'none'}."
                )
                raise ExpressionError(
                    f"{where}: in the expression `{_shown(self.text)}`, {_at(self.text, node)}: "
                    f"the name '{node.id}' is not defined; {hint}"
                )

    def _value(self, node: ast.expr, values: Mapping[str, Value]) -> Value:
        try:
            value = self._apply(node, values)
        except (ZeroDivisionError, ValueError, TypeError, OverflowError) as error:
            raise _located(self.text, _at(self.text, node), str(error)) from error
        if isinstance(value, int) and abs(value) > MAX_INTEGER:
            raise _located(self.text, _at(self.text, node), f"the value exceeds {MAX_INTEGER}")
        return value

    def _apply(self, node: ast.expr, values: Mapping[str, Value]) -> Value:
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                if node.id not in values:
                    known = ", ".join(sorted(values)) or "none"
                    raise _located(
                        self.text, _at(self.text, node), f"the name '{node.id}' is not defined; known names are {known}"
                    )
                return values[node.id]
            case ast.BinOp():
                left, right = self._operand(node.left, values), self._operand(node.right, values)
                return BINARY[type(node.op)](left, right)
            case ast.UnaryOp():
                if isinstance(node.op, ast.USub):
                    return -self._operand(node.operand, values)
                operand = self._value(node.operand, values)
                return np.logical_not(operand) if is_array(operand) else not operand
            case ast.BoolOp():
                return self._boolean(node, values)
            case ast.Compare():
                return self._comparison(node, values)
            case ast.IfExp():
                test = self._value(node.test, values)
                if is_array(test):
                    body, orelse = self._value(node.body, values), self._value(node.orelse, values)
                    require_one_type(body, orelse)
                    return np.where(test, body, orelse)
                return self._value(node.body if test else node.orelse, values)
            case ast.Call(func=ast.Name(id=name)):
                evaluate = self._value if name == "sizeof" else self._operand
                return FUNCTIONS[name][0](*(evaluate(argument, values) for argument in node.args))
            case ast.Tuple() | ast.List():
                return tuple(self._value(item, values) for item in node.elts)
        raise AssertionError(f"unchecked node {node!r}")

    def _operand(self, node: ast.expr, values: Mapping[str, Value]) -> Value:
        value = self._value(node, values)
        if is_text(value):
            raise TypeError("text takes part in comparisons only")
        return as_number(value)

    def _boolean(self, node: ast.BoolOp, values: Mapping[str, Value]) -> Value:
        conjunction = isinstance(node.op, ast.And)
        result: Value = conjunction
        for item in node.values:
            value = self._value(item, values)
            if is_array(result, value):
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
                held: Value
                if not is_array(left, *right):
                    held = left in right
                else:
                    held = reduce(np.logical_or, (np.asarray(left == option) for option in right), np.asarray(False))
                if isinstance(operator, ast.NotIn):
                    held = np.logical_not(held) if is_array(held) else not held
            else:
                held = COMPARE[type(operator)](left, right)
            result = np.logical_and(result, held) if is_array(result, held) else bool(result and held)
            if result is False:
                return result
            left = right
        return result


_HAS = "numbers, text, names, + - * / // % ** &, comparisons, `in`, and/or/not, a if c else b and " + ", ".join(
    FUNCTIONS
)


def _check(node: ast.AST, text: str, names: set[str], depth: int = 0) -> None:
    if depth > MAX_DEPTH:
        raise _located(text, _at(text, node), f"more than {MAX_DEPTH} operations are nested in one another")
    match node:
        case ast.Constant(value=bool() | int() | float() | str()):
            return
        case ast.Name():
            names.add(node.id)
            return
        case ast.BinOp() if type(node.op) in BINARY:
            pass
        case ast.UnaryOp(op=ast.USub() | ast.Not()):
            pass
        case ast.BoolOp() | ast.IfExp():
            pass
        case ast.Compare() if all(type(op) in COMPARE or isinstance(op, ast.In | ast.NotIn) for op in node.ops):
            _check(node.left, text, names, depth + 1)
            for operator, right in zip(node.ops, node.comparators, strict=True):
                if not isinstance(operator, ast.In | ast.NotIn):
                    _check(right, text, names, depth + 1)
                    continue
                # Lists stand nowhere else: nothing can be built from them, least of all something huge.
                if not isinstance(right, ast.Tuple | ast.List):
                    raise _located(text, _at(text, right), "`in` is followed by a list, such as (1, 2)")
                if right is not node.comparators[-1]:
                    # Python would compare the list itself with what follows.
                    raise _located(
                        text, _at(text, right), "nothing is compared with a list but what is before it; use `and`"
                    )
                for item in right.elts:
                    _check(item, text, names, depth + 1)
            return
        case ast.Call(func=ast.Name(id=name)) if name in FUNCTIONS:
            _, fewest, most = FUNCTIONS[name]
            if node.keywords or any(isinstance(arg, ast.Starred) for arg in node.args):
                raise _located(text, _at(text, node), f"{name}() takes plain arguments only, no names or stars")
            if not fewest <= len(node.args) <= most:
                counts = str(fewest) if fewest == most else f"{fewest} to {most}"
                raise _located(text, _at(text, node), f"{name}() takes {counts} argument(s), not {len(node.args)}")
            for argument in node.args:
                _check(argument, text, names, depth + 1)
            return
        case ast.Call(func=ast.Name(id=name)):
            raise _located(text, _at(text, node), f"there is no function '{name}'; they are {', '.join(FUNCTIONS)}")
        case _:
            segment = ast.get_source_segment(text, node) or ""
            shown = f"`{segment}`" if 0 < len(segment) <= 40 else f"this {type(node).__name__}"
            raise _located(text, _at(text, node), f"{shown} is not part of the expression language; it has {_HAS}")
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            _check(child, text, names, depth + 1)


@lru_cache(maxsize=4096)
def parse(text: str) -> Expression:
    """Parses `text`; raises `ExpressionError` that points at the column (and the line, where there are several)."""
    stripped = text.strip().replace("\r\n", "\n").replace("\r", "\n")
    if len(stripped) > MAX_LENGTH:
        raise ExpressionError(f"An expression is at most {MAX_LENGTH} characters long; this one has {len(stripped)}.")
    if not stripped:
        raise _located("", "column 1", "it is empty")
    try:
        tree = ast.parse(stripped, mode="eval").body
        tokens = tokenize.generate_tokens(io.StringIO(stripped).readline) if "#" in stripped else ()
        comment = next((token.start for token in tokens if token.type == tokenize.COMMENT), None)
    except (SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError) as error:
        line, column = getattr(error, "lineno", None) or 1, (getattr(error, "offset", None) or 1) - 1
        reason = getattr(error, "msg", None) or str(error)
        if re.search(r"&&|\|\||!(?!=)|(?<![=!<>])=(?!=)", stripped):
            reason += "; write `==` to compare, and `and`, `or`, `not`"
        raise _located(stripped, _position(stripped, line, column), reason) from error
    if comment is not None:  # it would swallow what is put behind the expression
        raise _located(stripped, _position(stripped, *comment), "a comment cannot stand in an expression")
    names: set[str] = set()
    _check(tree, stripped, names)
    return Expression(stripped, frozenset(names), tree)
