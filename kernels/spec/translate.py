"""Expressions in Python and in C: launch geometry and dispatch for programs that run without Tunesmith.

Owns `folded`, which writes known names as numbers and drops the parts that they decide, and the text in C (C99 and C++
alike): over sizes of the type `long long`, with calls of the functions of `C_FUNCTIONS`.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import reduce
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
"""The helper functions of an expression's C text, beside <math.h>; `@` stands for the prefix of all names."""

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
_FORMS = {
    "min": "({0} < {1} ? {0} : {1})",
    "max": "({0} > {1} ? {0} : {1})",
    "abs": "({0} < 0 ? -{0} : {0})",
    "ceil": "((long long)ceil({0}))",
    "floor": "((long long)floor({0}))",
    "log2": "log2((double){0})",
}
"""Functions that C writes otherwise than as a call of `C_FUNCTIONS`."""


def folded(text: str, values: Mapping[str, Any]) -> str:
    """`text` with `values` for names, and the value of each part that they decide. Once types are folded in, it is
    Python; the runtime of exports has the functions that it calls. Raises `ExpressionError` where a part without other
    names has no value."""
    return ast.unparse(_Folder(values).visit(ast.parse(parse(text).text, mode="eval").body))


def to_c(text: str, prefix: str) -> str:
    """`text` as C, whose functions' names begin with `prefix`. Raises `TunesmithError` where C has no such thing."""
    try:
        return _c(ast.parse(text, mode="eval").body, prefix)[0]
    except ValueError as error:
        raise TunesmithError(f"The expression `{text}` cannot be written in C: {error}") from error


class _Folder(ast.NodeTransformer):
    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def visit(self, node: ast.AST) -> Any:
        if not isinstance(node, ast.expr) or isinstance(node, ast.Tuple | ast.List):
            return super().visit(node)
        if not parse(text := ast.unparse(node)).names <= self._values.keys():
            return super().visit(node)
        return ast.parse(repr(parse(text).evaluate(self._values)), mode="eval").body

    def visit_Call(self, node: ast.Call) -> ast.expr:
        return ast.Call(node.func, [self.visit(one) for one in node.args], [])

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        test = self.visit(node.test)
        if isinstance(test, ast.Constant):
            chosen: ast.expr = self.visit(node.body if test.value else node.orelse)
            return chosen
        return ast.IfExp(test, self.visit(node.body), self.visit(node.orelse))

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        """Parts whose value is known are left out; a part that decides the whole is the result."""
        conjunction, left = isinstance(node.op, ast.And), list[ast.expr]()
        for part in map(self.visit, node.values):
            if not isinstance(part, ast.Constant):
                left.append(part)
            elif bool(part.value) != conjunction:
                return ast.Constant(not conjunction)
        if len(left) > 1:
            return ast.BoolOp(node.op, left)
        return left[0] if left else ast.Constant(conjunction)


def _c(node: ast.expr, prefix: str) -> tuple[str, bool]:
    """An expression in C, and whether it is a float. Raises `ValueError` for an operation that C has not."""

    def written(*nodes: ast.expr) -> tuple[list[str], bool]:
        parts = [_c(one, prefix) for one in nodes]
        return [text for text, _ in parts], any(real for _, real in parts)

    match node:
        case ast.Constant(value=bool() as flag):
            return str(int(flag)), False
        case ast.Constant(value=int() as number):
            return f"{number}LL", False
        case ast.Constant(value=float() as number):
            return repr(number), True
        case ast.Name():
            return node.id, False
        case ast.UnaryOp():
            [text], real = written(node.operand)
            return (f"(-{text})", real) if isinstance(node.op, ast.USub) else (f"(!{text})", False)
        case ast.BinOp():
            (left, right), real = written(node.left, node.right)
            if isinstance(node.op, ast.Div):
                return f"((double){left} / (double){right})", True
            if type(node.op) in _SYMBOLS:
                return f"({left} {_SYMBOLS[type(node.op)]} {right})", real
            if not real:
                return f"{prefix}{_CALLED[type(node.op)]}({left}, {right})", False
            raise ValueError(f"`{ast.unparse(node)}` is of numbers that are not whole.")
        case ast.BoolOp():
            texts, _ = written(*node.values)
            return f"({(' && ' if isinstance(node.op, ast.And) else ' || ').join(texts)})", False
        case ast.Compare():
            compared, left = [], _c(node.left, prefix)[0]
            for operator, right_node in zip(node.ops, node.comparators, strict=True):
                if isinstance(operator, ast.In | ast.NotIn) and isinstance(right_node, ast.Tuple | ast.List):
                    held = " || ".join(f"{left} == {item}" for item in written(*right_node.elts)[0]) or "0"
                    compared.append(f"{'' if isinstance(operator, ast.In) else '!'}({held})")
                else:
                    right = _c(right_node, prefix)[0]
                    compared.append(f"{left} {_SYMBOLS[type(operator)]} {right}")
                    left = right
            return f"({' && '.join(compared)})", False
        case ast.IfExp():
            [test], _ = written(node.test)
            (yes, no), real = written(node.body, node.orelse)
            return f"({test} ? {yes} : {no})", real
        case ast.Call(func=ast.Name(id=name)):
            texts, real = written(*node.args)
            if name in ("min", "max"):
                return reduce(_FORMS[name].format, texts), real
            if name in _FORMS:
                return _FORMS[name].format(*texts), name == "log2" or (name == "abs" and real)
            if real:
                raise ValueError(f"{name}() is of numbers that are not whole.")
            return f"{prefix}{name}({', '.join(texts)})", False
    raise ValueError(f"`{ast.unparse(node)}` has no value there.")
