"""The small, safe language of constraints, shapes and launch geometry: `VEC * BLOCK <= d`, `ceil_div(n, ROWS)`.

Owns parsing and the meaning on scalars. On NumPy arrays, by which `tunesmith.kernels.space` lists millions of points,
an expression means the same or is an error: arrays in arithmetic hold whole numbers, both sides of a condition have a
value, and no divisor is zero. Results beyond 62 bits are refused on both: Python's integers have no bound, and NumPy's
wrap around.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence, Set
from functools import lru_cache, partial, reduce
from typing import Any

import numpy as np

from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.spec.dtypes import DTYPES

MAX_EXPONENT = 64
MAX_INTEGER = 1 << 62
MAX_LENGTH = 8000
MAX_DEPTH = 100
"""Nested operations, so that neither reading nor evaluating exhausts Python's stack."""

Value = Any
"""A bool, int, float, str, or an array of them."""
Operation = Callable[..., Value]
_OF_NUMPY = (np.ndarray, np.generic)


class ExpressionError(TunesmithError):
    """The text is not an expression of the language, or has no value for these names."""


def _is_array(*values: Value) -> bool:
    return any(isinstance(value, np.ndarray) for value in values)


def _is_text(value: Value) -> bool:
    """Whether `value` is text, or an array of texts."""
    return isinstance(value, str) or (isinstance(value, np.ndarray) and value.dtype.kind == "U")


def _number(value: Value) -> Value:
    """`value` for arithmetic: flags in arrays become 0 and 1, as they are in scalars. Raises `TypeError` for text, and
    for arrays of floats, which would turn what else they meet into floats."""
    if isinstance(value, int | float):
        return value
    if _is_text(value):
        raise TypeError("text takes part in comparisons only")
    if _is_array(value) and value.dtype.kind not in "bi":
        raise TypeError("arrays in arithmetic hold whole numbers")
    return value.astype(np.int64) if _is_array(value) else value


def _exact(operate: Operation) -> Operation:
    """`operate`, which raises where arrays of int64 wrap around: its result in float64 tells."""

    def exact(a: Value, b: Value) -> Value:
        result = operate(a, b)
        if isinstance(result, np.ndarray) and result.dtype.kind == "i":
            bound = operate(np.asarray(a, np.float64), np.asarray(b, np.float64))
            if np.any(np.abs(bound) > 1.01 * MAX_INTEGER) or np.any(np.abs(result) > MAX_INTEGER):
                raise OverflowError(f"the value exceeds {MAX_INTEGER}")
        return result

    return exact


def _power(a: Value, b: Value) -> Value:
    if _is_array(a, b):
        raise TypeError("arrays have no powers")
    if abs(b) > MAX_EXPONENT:
        raise ValueError(f"an exponent is at most {MAX_EXPONENT}")
    if a == 0 and b < 0:
        raise ZeroDivisionError("0 has no negative power")
    if a < 0 and b != math.floor(b):
        raise ValueError("a negative number has no power that is not whole")
    return a**b


def _not(value: Value) -> Value:
    return np.logical_not(value) if _is_array(value) else not value


def _contains(value: Value, *options: Value) -> Value:
    if not _is_array(value, *options):
        return value in options
    return reduce(np.logical_or, (np.asarray(value == option) for option in options), np.asarray(False))


def _of_values(function: Operation) -> Operation:
    return lambda values, *operands: function(*[operand(values) for operand in operands])


def _of_numbers(function: Operation) -> Operation:
    return lambda values, *operands: function(*[_number(operand(values)) for operand in operands])


def _boolean(conjunction: bool, values: Mapping[str, Value], *operands: Operation) -> Value:
    result: Value = conjunction
    for operand in operands:
        value = operand(values)
        if _is_array(result, value):
            result = (np.logical_and if conjunction else np.logical_or)(result, value)
        elif bool(value) != conjunction:
            return not conjunction
    return result


def _conditional(values: Mapping[str, Value], test: Operation, body: Operation, orelse: Operation) -> Value:
    if not _is_array(chosen := test(values)):
        return body(values) if chosen else orelse(values)
    left, right = body(values), orelse(values)
    if _is_text(left) != _is_text(right):
        raise TypeError("an array holds either numbers or text")
    return np.where(chosen, left, right)


BINARY: Mapping[type[ast.operator], Operation] = {
    ast.Add: _exact(operator.add),
    ast.Sub: _exact(operator.sub),
    ast.Mult: _exact(operator.mul),
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
    ast.BitAnd: operator.and_,
}
COMPARE: Mapping[type[ast.cmpop], Operation] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


def _sizeof(value: Value) -> Value:
    if value not in DTYPES:
        raise ValueError(f"sizeof() takes a data type, one of {', '.join(DTYPES)}, not {value!r}")
    return DTYPES[value].size


FUNCTIONS: Mapping[str, Operation] = {
    "min": lambda a, b, *more: reduce(np.minimum, (a, b, *more)) if _is_array(a, b, *more) else min(a, b, *more),
    "max": lambda a, b, *more: reduce(np.maximum, (a, b, *more)) if _is_array(a, b, *more) else max(a, b, *more),
    "abs": abs,
    # Arrays in arithmetic are whole.
    "ceil": lambda a: a if _is_array(a) else math.ceil(a),
    "floor": lambda a: a if _is_array(a) else math.floor(a),
    "ceil_div": lambda a, b: -(-a // b),
    "round_up": lambda a, b: BINARY[ast.Mult](-(-a // b), b),
    # A `TypeError` of an array, as is `sizeof`.
    "log2": lambda value: math.log2(value),
    "is_pow2": lambda a: (a > 0) & ((a & (a - 1)) == 0) if _is_array(a) else a > 0 and a & (a - 1) == 0,
    "sizeof": _sizeof,
}
_LANGUAGE = "numbers, text, names, + - * / // % ** &, comparisons, `in`, and/or/not, a if c else b and functions"


def _error(text: str, column: int, message: str) -> ExpressionError:
    stop = "" if message.endswith((".", "?")) else "."
    return ExpressionError(f"In the expression `{text}`, column {column + 1}: {message}{stop}")


class Expression:
    """A parsed expression. `names` are the free names it needs; `evaluate` gives them values. tree: of `text`, of whose
    nodes it makes the functions that evaluate them; raises `ExpressionError` for a node outside of the language."""

    def __init__(self, text: str, tree: ast.expr) -> None:
        self.text = text
        self._columns = dict[str, int]()  # where each free name stands first
        self._value = self._read(tree)
        self.names = frozenset(self._columns)

    def evaluate(self, values: Mapping[str, Value]) -> Value:
        """The value for `values`; arrays broadcast. Raises `ExpressionError` naming the column."""
        # A verdict evaluates Python's numbers hundreds of thousands of times, which have no use for NumPy's state.
        if not any(isinstance(values.get(name), _OF_NUMPY) for name in self.names):
            return self._value(values)
        with np.errstate(divide="raise", invalid="raise", over="ignore"):
            return self._value(values)

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
        raise ExpressionError(f"The expression `{self.text}` must give a number, but gives {value!r}.")

    def require(self, known: Set[str]) -> None:
        """Raises `ExpressionError` when a name outside `known` is used."""
        for name, column in self._columns.items():
            if name not in known:
                near = difflib.get_close_matches(name, [*known, "True", "False"], 1)
                names = ", ".join(sorted(known)) or "none"
                hint = f"did you mean '{near[0]}'?" if near else f"known names are {names}"
                raise _error(self.text, column, f"the name '{name}' is not defined; {hint}")

    def _read(self, node: ast.expr, depth: int = 0) -> Operation:
        if depth > MAX_DEPTH:
            raise self._error(node, f"more than {MAX_DEPTH} operations are nested in one another")
        operate, operands = self._operation(node)
        parts = [self._read(operand, depth + 1) for operand in operands]

        def evaluate(values: Mapping[str, Value]) -> Value:
            try:
                value = operate(values, *parts)
            except (ArithmeticError, ValueError, TypeError) as error:
                raise self._error(node, str(error)) from error
            if isinstance(value, int) and abs(value) > MAX_INTEGER:
                raise self._error(node, f"the value exceeds {MAX_INTEGER}")
            return value

        return evaluate

    def _operation(self, node: ast.expr) -> tuple[Operation, Sequence[ast.expr]]:
        """A function from the values of names to the node's value, made of the functions that evaluate its operands."""
        match node:
            case ast.Constant(value=bool() | int() | float() | str() as constant):
                return lambda values: constant, ()
            case ast.Name(id=name):
                self._columns.setdefault(name, node.col_offset)
                return partial(self._look_up, node), ()
            case ast.BinOp(op=symbol) if type(symbol) in BINARY:
                return _of_numbers(BINARY[type(symbol)]), (node.left, node.right)
            case ast.UnaryOp(op=ast.USub()):
                return _of_numbers(operator.neg), (node.operand,)
            case ast.UnaryOp(op=ast.Not()):
                return _of_values(_not), (node.operand,)
            case ast.BoolOp():
                return partial(_boolean, isinstance(node.op, ast.And)), node.values
            case ast.IfExp():
                return _conditional, (node.test, node.body, node.orelse)
            case ast.Compare(ops=[ast.In() | ast.NotIn() as symbol], comparators=[options]):
                # Lists stand nowhere else: nothing can be built from them, least of all something huge.
                if not isinstance(options, ast.Tuple | ast.List):
                    raise self._error(options, "`in` is followed by a list, such as (1, 2)")
                within = _contains if isinstance(symbol, ast.In) else lambda *operands: _not(_contains(*operands))
                return _of_values(within), (node.left, *options.elts)
            case ast.Compare(ops=[symbol], comparators=[right]) if type(symbol) in COMPARE:
                return _of_values(COMPARE[type(symbol)]), (node.left, right)
            case ast.Compare(ops=[_, _, *_]):
                operands = zip([node.left, *node.comparators], node.ops, node.comparators, strict=False)
                pairs = [ast.Compare(left, [symbol], [right]) for left, symbol, right in operands]
                return partial(_boolean, True), [ast.copy_location(pair, node) for pair in pairs]
            case ast.Call(func=ast.Name(id=name), keywords=[]):
                if name not in FUNCTIONS:
                    raise self._error(node, f"there is no function '{name}'; they are {', '.join(FUNCTIONS)}")
                try:
                    inspect.signature(FUNCTIONS[name]).bind(*node.args)
                except TypeError as error:
                    raise self._error(node, f"{name}(): {error}") from error
                return (_of_values if name == "sizeof" else _of_numbers)(FUNCTIONS[name]), node.args
        segment = ast.get_source_segment(self.text, node) or ""
        shown = f"`{segment}`" if 0 < len(segment) <= 40 else f"this {type(node).__name__}"
        raise self._error(node, f"{shown} is not part of the expression language; it has {_LANGUAGE}")

    def _look_up(self, node: ast.Name, values: Mapping[str, Value]) -> Value:
        if node.id not in values:
            known = ", ".join(sorted(values)) or "none"
            raise self._error(node, f"the name '{node.id}' is not defined; known names are {known}")
        return values[node.id]

    def _error(self, node: ast.expr, message: str) -> ExpressionError:
        return _error(self.text, node.col_offset, message)


@lru_cache(maxsize=4096)
def parse(text: str) -> Expression:
    """Parses `text`, on one line or on several; raises `ExpressionError` that points at the column."""
    stripped = re.sub(r"\s*[\r\n]\s*", " ", text.strip())
    if len(stripped) > MAX_LENGTH:
        raise ExpressionError(f"An expression is at most {MAX_LENGTH} characters long; this one has {len(stripped)}.")
    # Characters beyond ASCII would shift columns, and a comment would swallow text that is put behind the expression.
    if odd := re.search(r"[^\t -~]|#", stripped):
        raise _error(ascii(stripped)[1:-1], odd.start(), f"the character {odd[0]!a} has no place in an expression")
    if not stripped:
        raise _error("", 0, "it is empty")
    try:
        tree = ast.parse(stripped, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = getattr(error, "msg", None) or str(error)
        if re.search(r"&&|\|\||!(?!=)|(?<![=!<>])=(?!=)", stripped):
            reason += "; write `==` to compare, and `and`, `or`, `not`"
        raise _error(stripped, (getattr(error, "offset", None) or 1) - 1, reason) from error
    return Expression(stripped, tree)


def conjuncts(text: str) -> list[str]:
    """The parts of a condition that must all hold."""
    tree = ast.parse(text, mode="eval").body
    parts = tree.values if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And) else [tree]
    return [ast.unparse(part) for part in parts]
