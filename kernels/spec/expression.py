"""The small, safe language of constraints, shapes and launch geometry: `VEC * BLOCK <= d`, `ceil_div(n, ROWS)`.

Owns parsing and the meaning on scalars. On NumPy arrays, by which `tunesmith.kernels.space` lists millions of points,
an expression means the same or is an error: arrays in arithmetic hold whole numbers, both sides of a condition have a
value, and no divisor is zero. Results beyond 62 bits are refused on both: Python's integers have no bound, and NumPy's
wrap around.
"""

from __future__ import annotations

import ast
import difflib
import io
import math
import operator
import re
import tokenize
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial, reduce
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
    """`value` for arithmetic: flags in arrays become 0 and 1, as they are in scalars. Raises `TypeError` for text, and
    for arrays of floats, which would turn what else they meet into floats."""
    if is_text(value):
        raise TypeError("text takes part in comparisons only")
    if is_array(value) and value.dtype.kind not in "bi":
        raise TypeError("arrays in arithmetic hold whole numbers")
    return value.astype(np.int64) if is_array(value) else value


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
    return value.astype(np.float64) if is_array(value) else float(value)


def _multiply(a: Value, b: Value) -> Value:
    return _checked(a * b, lambda: _float(a) * _float(b))


def _divided(divide: Callable[[Value, Value], Value], a: Value, b: Value) -> Value:
    if is_array(a, b) and not np.all(b):
        raise ZeroDivisionError("division by zero")
    return divide(a, b)


def _ceil_div(a: Value, b: Value) -> Value:
    return -_divided(operator.floordiv, -a, b)


def _log2(a: Value) -> Value:
    if is_array(a):
        raise TypeError("log2() takes one number")
    if a <= 0:
        raise ValueError("log2() takes a positive number")
    return math.log2(a)


def _is_pow2(a: Value) -> Value:
    return (a > 0) & ((a & (a - 1)) == 0) if is_array(a) else a > 0 and a & (a - 1) == 0


def _fold(scalar: Callable[..., Value], vector: Callable[..., Value]) -> Callable[..., Value]:
    return lambda *values: reduce(vector, values) if is_array(*values) else scalar(*values)


def _rounded(scalar: Callable[[float], int]) -> Callable[[Value], Value]:
    # Arrays in arithmetic are whole.
    return lambda value: value if is_array(value) else scalar(value)


FUNCTIONS: Mapping[str, tuple[Callable[..., Value], int, int]] = {
    "min": (_fold(min, np.minimum), 2, 16),
    "max": (_fold(max, np.maximum), 2, 16),
    "abs": (abs, 1, 1),
    "ceil": (_rounded(math.ceil), 1, 1),
    "floor": (_rounded(math.floor), 1, 1),
    "ceil_div": (_ceil_div, 2, 2),
    "round_up": (lambda a, b: _multiply(_ceil_div(a, b), b), 2, 2),
    "log2": (_log2, 1, 1),
    "is_pow2": (_is_pow2, 1, 1),
    "sizeof": (_sizeof, 1, 1),
}
"""Function name -> (implementation, fewest arguments, most arguments)."""


def _power(a: Value, b: Value) -> Value:
    if is_array(a, b):
        raise TypeError("arrays have no powers")
    if abs(b) > MAX_EXPONENT:
        raise ValueError(f"an exponent is at most {MAX_EXPONENT}")
    if a == 0 and b < 0:
        raise ZeroDivisionError("0 has no negative power")
    if a < 0 and b != math.floor(b):
        raise ValueError("a negative number has no power that is not whole")
    return a**b


BINARY: Mapping[type[ast.operator], Callable[[Value, Value], Value]] = {
    ast.Add: lambda a, b: _checked(a + b, lambda: _float(a) + _float(b)),
    ast.Sub: lambda a, b: _checked(a - b, lambda: _float(a) - _float(b)),
    ast.Mult: _multiply,
    ast.Div: partial(_divided, operator.truediv),
    ast.FloorDiv: partial(_divided, operator.floordiv),
    ast.Mod: partial(_divided, operator.mod),
    ast.Pow: _power,
    ast.BitAnd: operator.and_,
}
COMPARE: Mapping[type[ast.cmpop], Callable[[Value, Value], Value]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
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
                    if is_text(body) != is_text(orelse):
                        raise TypeError("an array holds either numbers or text")
                    return np.where(test, body, orelse)
                return self._value(node.body if test else node.orelse, values)
            case ast.Call(func=ast.Name(id=name)):
                evaluate = self._value if name == "sizeof" else self._operand
                return FUNCTIONS[name][0](*(evaluate(argument, values) for argument in node.args))
            case ast.Tuple() | ast.List():
                return tuple(self._value(item, values) for item in node.elts)
        raise AssertionError(f"unchecked node {node!r}")

    def _operand(self, node: ast.expr, values: Mapping[str, Value]) -> Value:
        return as_number(self._value(node, values))

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
        for symbol, right_node in zip(node.ops, node.comparators, strict=True):
            right = self._value(right_node, values)
            if isinstance(symbol, ast.In | ast.NotIn):
                held: Value
                if not is_array(left, *right):
                    held = left in right
                else:
                    held = reduce(np.logical_or, (np.asarray(left == option) for option in right), np.asarray(False))
                if isinstance(symbol, ast.NotIn):
                    held = np.logical_not(held) if is_array(held) else not held
            else:
                held = COMPARE[type(symbol)](left, right)
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
            for symbol, right in zip(node.ops, node.comparators, strict=True):
                if not isinstance(symbol, ast.In | ast.NotIn):
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
