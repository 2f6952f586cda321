"""Expressions in Python and in C: launch geometry and dispatch for programs that run without Tunesmith.

Owns `folded`, which writes known names as numbers and drops what they decide, and the text in C (C99 and C++ alike):
over sizes of the type `long long`, with calls of the functions of `C_FUNCTIONS`.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.spec.expression import parse

C_FUNCTIONS = """\
/* Whole division as in Python: rounded down. */
static inline long long @floor_div(long long a, long long b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }
static inline long long @modulo(long long a, long long b) { return a - @floor_div(a, b) * b; }
static inline long long @ceil_div(long long a, long long b) { return -@floor_div(-a, b); }
static inline long long @round_up(long long a, long long b) { return @ceil_div(a, b) * b; }
static inline int @is_pow2(long long a) { return a > 0 && (a & (a - 1)) == 0; }
static inline long long @power(long long a, long long b) { long long r = 1; while (b-- > 0) r *= a; return r; }
"""
"""What the C text of an expression calls, beside <math.h>; `@` stands for the prefix of all names."""

_SYMBOLS = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.BitAnd: "&",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
_CALLED = {ast.FloorDiv: "floor_div", ast.Mod: "modulo", ast.Pow: "power"}


class TranslationError(TunesmithError):
    """An expression has no text in the other language."""


def folded(text: str, values: Mapping[str, Any]) -> str:
    """`text` with `values` for names; what they decide is written as its value. Once types are folded in, the result is
    Python; the runtime of exports has the functions that it calls.

    Its value is that of `text`, whatever the other names are. Raises `ExpressionError` where a part
    without other names has no value.
    """
    return ast.unparse(_fold(ast.parse(parse(text).text, mode="eval").body, values))


def to_c(text: str, prefix: str) -> str:
    """`text` as C, whose functions' names begin with `prefix`. Raises `TranslationError` where C has no such thing."""
    try:
        return _C(prefix).write(ast.parse(text, mode="eval").body)[0]
    except TranslationError as error:
        raise TranslationError(f"The expression `{text}` cannot be written in C: {error}") from error


def _fold(node: ast.expr, values: Mapping[str, Any]) -> ast.expr:
    names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)} - {
        one.func.id for one in ast.walk(node) if isinstance(one, ast.Call) and isinstance(one.func, ast.Name)
    }
    if names <= values.keys():
        return node if isinstance(node, ast.Tuple | ast.List) else _constant(node, values)
    match node:
        case ast.BinOp():
            return ast.BinOp(_fold(node.left, values), node.op, _fold(node.right, values))
        case ast.UnaryOp():
            return ast.UnaryOp(node.op, _fold(node.operand, values))
        case ast.Compare():
            return ast.Compare(
                _fold(node.left, values), node.ops, [_fold_item(one, values) for one in node.comparators]
            )
        case ast.BoolOp():
            return _boolean(node, values)
        case ast.IfExp():
            test = _fold(node.test, values)
            if isinstance(test, ast.Constant):
                return _fold(node.body if test.value else node.orelse, values)
            return ast.IfExp(test, _fold(node.body, values), _fold(node.orelse, values))
        case ast.Call():
            return ast.Call(node.func, [_fold(one, values) for one in node.args], [])
    return node


def _fold_item(node: ast.expr, values: Mapping[str, Any]) -> ast.expr:
    if isinstance(node, ast.Tuple | ast.List):
        return ast.Tuple([_fold(one, values) for one in node.elts], ast.Load())
    return _fold(node, values)


def _constant(node: ast.expr, values: Mapping[str, Any]) -> ast.expr:
    value = parse(ast.unparse(node)).evaluate(values)
    return ast.parse(repr(value), mode="eval").body


def _boolean(node: ast.BoolOp, values: Mapping[str, Any]) -> ast.expr:
    """The parts that names decide are left out; one that decides the whole is the whole."""
    conjunction, left = isinstance(node.op, ast.And), []
    for part in (_fold(one, values) for one in node.values):
        if not isinstance(part, ast.Constant):
            left.append(part)
        elif bool(part.value) != conjunction:
            return ast.Constant(not conjunction)
    if not left:
        return ast.Constant(conjunction)
    return left[0] if len(left) == 1 else ast.BoolOp(node.op, left)


class _C:
    """Writes an expression; each text comes with whether it is a float."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def write(self, node: ast.expr) -> tuple[str, bool]:
        match node:
            case ast.Constant(value=bool() as flag):
                return str(int(flag)), False
            case ast.Constant(value=int() as number):
                return f"{number}LL", False
            case ast.Constant(value=float() as number):
                return repr(number), True
            case ast.Name():
                return node.id, False
            case ast.UnaryOp(op=ast.USub()):
                text, real = self.write(node.operand)
                return f"(-{text})", real
            case ast.UnaryOp():
                return f"(!{self.write(node.operand)[0]})", False
            case ast.BinOp():
                return self._binary(node)
            case ast.BoolOp():
                joined = " && " if isinstance(node.op, ast.And) else " || "
                return f"({joined.join(self.write(one)[0] for one in node.values)})", False
            case ast.Compare():
                return self._compare(node), False
            case ast.IfExp():
                test, yes, no = (self.write(one) for one in (node.test, node.body, node.orelse))
                return f"({test[0]} ? {yes[0]} : {no[0]})", yes[1] or no[1]
            case ast.Call(func=ast.Name(id=name)):
                return self._call(name, [self.write(one) for one in node.args])
        raise TranslationError(f"`{ast.unparse(node)}` has no value there.")

    def _binary(self, node: ast.BinOp) -> tuple[str, bool]:
        (left, left_real), (right, right_real) = self.write(node.left), self.write(node.right)
        real = left_real or right_real
        if isinstance(node.op, ast.Div):
            return f"((double){left} / (double){right})", True
        if type(node.op) in _CALLED:
            if real:
                raise TranslationError(f"`{ast.unparse(node)}` is of numbers that are not whole.")
            return f"{self._prefix}{_CALLED[type(node.op)]}({left}, {right})", False
        return f"({left} {_SYMBOLS[type(node.op)]} {right})", real

    def _compare(self, node: ast.Compare) -> str:
        parts, left = [], self.write(node.left)[0]
        for operator, right in zip(node.ops, node.comparators, strict=True):
            if isinstance(operator, ast.In | ast.NotIn):
                items = right.elts if isinstance(right, ast.Tuple | ast.List) else []
                held = " || ".join(f"{left} == {self.write(item)[0]}" for item in items) or "0"
                parts.append(f"({held})" if isinstance(operator, ast.In) else f"!({held})")
            else:
                text = self.write(right)[0]
                parts.append(f"{left} {_SYMBOLS[type(operator)]} {text}")
                left = text
        return f"({' && '.join(parts)})"

    def _call(self, name: str, arguments: list[tuple[str, bool]]) -> tuple[str, bool]:
        texts, real = [text for text, _ in arguments], any(real for _, real in arguments)
        if name in ("min", "max"):
            result, sign = texts[0], "<" if name == "min" else ">"
            for text in texts[1:]:
                result = f"({result} {sign} {text} ? {result} : {text})"
            return result, real
        if name == "abs":
            return f"({texts[0]} < 0 ? -{texts[0]} : {texts[0]})", real
        if name in ("ceil", "floor"):
            return f"((long long){name}({texts[0]}))", False
        if name == "log2":
            return f"log2((double){texts[0]})", True
        if real:
            raise TranslationError(f"{name}() is of numbers that are not whole.")
        return f"{self._prefix}{name}({', '.join(texts)})", False
