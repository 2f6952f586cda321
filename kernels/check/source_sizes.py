"""The numbers that a source names: where a kernel decides by a size or a scalar, it names one.

Macros of constants are expanded in tree-sitter's syntax tree, in each branch of a conditional directive. A preprocessor
(pcpp) would keep one branch, and a few lines of macros that double their text would exhaust its memory.
"""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import tree_sitter_cuda
from tree_sitter import Language, Node, Parser

from tunesmith.kernels.build.guard import without_comments

_PARSER = Parser(Language(tree_sitter_cuda.language()))
_DIRECTIVE = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_EXPRESSION_DIRECTIVE = re.compile(
    r"^[ \t]*#[ \t]*(?:define[ \t]+([\w$]+)(\([^)\n]*\))?|(?:el)?if\b)(.*)$", re.MULTILINE
)
_FLOAT = re.compile(r"([=<>]\s*)?(-?(?<![\w.])(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][-+]?\d+)?)")
"""A comparison or an assignment, where there is one, and the float literal behind it, each as a group."""
MAX_INTEGER = 1 << 64
"""Larger values are not sizes."""
MAX_MACRO_VALUES = 4
"""Values kept of a macro that is defined several times, or of an expression of such macros."""
MAX_MACRO_DEPTH = 50
"""Macros that expand to each other."""
MAX_STEPS = 4
"""Operators with constants that are inverted."""
MAX_BESIDE = 16
"""Constants of one expression that are kept until it is known whether the expression is compared."""
COMPARISONS = frozenset(("<", ">", "<=", ">=", "==", "!="))
OPERATORS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.floordiv,
    "%": operator.mod,
    "<<": operator.lshift,
    ">>": operator.rshift,
}


class _Operand(NamedTuple):
    """constants: its values, one of which it has, if it is a constant. beside: otherwise, constants in its expression.
    steps: how it is computed from another operand, operators and constants, the last step first."""

    constants: tuple[int, ...] = ()
    beside: tuple[int, ...] = ()
    steps: tuple[tuple[str, tuple[int, ...]], ...] = ()


def source_integers(source: str) -> tuple[int, ...]:
    """The integers from 2 on that `source` names, each once: first operands of comparisons, remainders and cases. A
    constant expression counts as its value, and a comparison of an expression of one operand and constants as the
    values of that operand at which its result changes."""
    text = without_comments(source)
    trees = [_parsed(_DIRECTIVE.sub("", text))]
    macros: dict[str, list[Node]] = {}
    for name, parameters, expression in _EXPRESSION_DIRECTIVE.findall(text):
        trees.append(_parsed(f"value = {expression}\n;"))
        if name and not parameters:
            macros.setdefault(name, []).append(trees[-1])
    reader = _Reader(macros)
    for tree in trees:
        reader.operands(tree)
    named = sorted((one for one in reader.named if one[0] >= 2), key=lambda one: not one[1])
    return tuple(dict.fromkeys(value for value, _ in named))


def source_floats(source: str) -> tuple[float, ...]:
    """The floats but 0 and 1 that `source` writes, each once: first those behind a comparison or an assignment."""
    found = _FLOAT.findall(without_comments(source))
    named = dict.fromkeys(float(number) for compared, number in sorted(found, key=lambda one: not one[0]))
    return tuple(number for number in named if number not in (0, 1) and math.isfinite(number))


def _parsed(text: str) -> Node:
    return _PARSER.parse(text.encode("utf-8", "replace")).root_node


class _Reader:
    """Folds the expressions of syntax trees. macros: the trees of each macro's definitions. named: the integers found
    so far, and whether something is compared with each."""

    def __init__(self, macros: Mapping[str, Sequence[Node]]) -> None:
        self.named: list[tuple[int, bool]] = []
        self._macros, self._values, self._depth = macros, dict[str, tuple[int, ...]](), 0

    def operands(self, tree: Node) -> Mapping[int, _Operand]:
        """The operand of each expression in `tree`, by its node's identifier. No recursion: sources nest deeply."""
        pending, nodes, operands = [tree], list[Node](), dict[int, _Operand]()
        while pending:
            nodes.append(pending.pop())
            pending.extend(nodes[-1].children)
        for node in reversed(nodes):  # children first, from left to right
            operands[node.id] = self._operand(node, [operands[child.id] for child in node.children])
        return operands

    def _operand(self, node: Node, children: Sequence[_Operand]) -> _Operand:
        parts = node.children
        match node.type:
            case "number_literal":
                return _Operand(_literal(_text(node)))
            case "identifier" | "type_identifier":
                return _Operand(self._macro(_text(node)))
            case "parenthesized_expression" if len(parts) == 3:
                return children[1]
            case "type_descriptor" if len(parts) == 1:
                return children[0]
            case "cast_expression" if len(parts) == 4 and not children[1].constants:
                return children[3]
            case "cast_expression" if len(parts) == 4 and parts[3].type == "unary_expression":
                # `(CAP) - 1`, where CAP is a macro and no type.
                return self._joined("+", children[1], children[3])
            case "unary_expression" | "pointer_expression" if len(parts) == 2:
                values, beside, _ = children[1]
                match parts[0].type:
                    case "+":
                        return children[1]
                    case "-":
                        return _Operand(tuple(-value for value in values), beside)
                return _Operand((), values + beside)
            case "binary_expression" if len(parts) == 3 and parts[1].type in {*OPERATORS, *COMPARISONS, "&"}:
                return self._joined(parts[1].type, children[0], children[2])
        # Anything else ends an expression. Template arguments, and code that does not parse, may hold comparisons.
        compared = node.type == "case_statement" or any(child.type in COMPARISONS for child in parts)
        for child, operand in zip(parts, children, strict=True):
            self._name(operand, compared and not child.type.endswith("statement"))
        return _Operand()

    def _name(self, operand: _Operand, compared: bool) -> None:
        self.named += [(value, compared) for value in operand.constants + operand.beside]

    def _macro(self, name: str) -> tuple[int, ...]:
        """The values of a macro that is a constant; each macro is computed once."""
        if name not in self._values and name in self._macros and self._depth < MAX_MACRO_DEPTH:
            self._values[name] = ()  # while it is computed: a macro is not expanded in its own body
            self._depth += 1
            values: list[int] = []
            for tree in self._macros[name]:
                statement = tree.children[0] if len(tree.children) == 1 and not tree.has_error else None
                if statement is not None and len(statement.children) == 2:
                    body = statement.children[0].child_by_field_name("right")
                    values += self.operands(tree)[body.id].constants if body is not None else ()
            self._depth -= 1
            self._values[name] = tuple(dict.fromkeys(values))[:MAX_MACRO_VALUES]
        return self._values.get(name, ())

    def _joined(self, sign: str, left: _Operand, right: _Operand) -> _Operand:
        if sign in COMPARISONS:
            changes = (*_changes(left, right.constants), *_changes(right, left.constants))
            self.named += [(value, True) for value in changes]
            self._name(left, True)
            self._name(right, True)
            return _Operand()
        if left.constants and right.constants:
            computed = [_computed(sign, *pair) for pair in itertools.product(left.constants, right.constants)]
            return _Operand(tuple(dict.fromkeys(one for one in computed if one is not None))[:MAX_MACRO_VALUES])
        if sign == "%":
            self._name(right, True)
            return _Operand(beside=left.constants + left.beside)
        beside = left.constants + left.beside + right.constants + right.beside
        self._name(_Operand(beside[MAX_BESIDE:]), False)
        steps: tuple[tuple[str, tuple[int, ...]], ...] = ()
        if right.constants:
            steps = ((sign, right.constants), *left.steps)
        elif left.constants and sign in ("+", "*"):
            steps = ((sign, left.constants), *right.steps)
        return _Operand((), beside[:MAX_BESIDE], steps if len(steps) <= MAX_STEPS else ())


def _text(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "replace")


def _literal(text: str) -> tuple[int, ...]:
    """The value of an integer literal; of another number, or of one too long to be a size, none."""
    digits = text.replace("'", "").rstrip("uUlLzZ")
    try:
        value = int(re.sub("^0(?=[0-9])", "0o", digits), 0)
    except ValueError:  # Python also reads no decimal number of thousands of digits
        return ()
    return (value,) if value < MAX_INTEGER else ()


def _computed(sign: str, left: int, right: int) -> int | None:
    """The value of an operator on constants, if it may lead to a size."""
    if sign not in OPERATORS or (sign in ("/", "%", "<<", ">>") and min(left, right) < 0):
        return None
    if (sign in ("/", "%") and right == 0) or (sign in ("<<", ">>") and right >= 64):
        return None
    value = OPERATORS[sign](left, right)
    return value if abs(value) < MAX_INTEGER else None


def _changes(operand: _Operand, constants: Sequence[int]) -> Iterator[int]:
    """The first and the last value of the operand at the start of `operand.steps` that leads to one of `constants`."""
    for constants_of_steps in itertools.islice(itertools.product(*(one for _, one in operand.steps)), MAX_MACRO_VALUES):
        for constant in constants if operand.steps else ():
            values: tuple[int, ...] = (constant, constant)
            for (sign, _), other in zip(operand.steps, constants_of_steps, strict=True):
                values = _undone(sign, other, *values) if values else ()
            yield from dict.fromkeys(values)


def _undone(sign: str, constant: int, first: int, last: int) -> tuple[int, ...]:
    """The first and the last operand for which `sign` with `constant` gives `first` to `last`; empty if not known."""
    scale = constant
    if sign in ("<<", ">>"):
        scale = 1 << constant if 0 <= constant < 64 else 0
    match sign:
        case "+":
            return first - constant, last - constant
        case "-":
            return first + constant, last + constant
        case "*" | "<<" if scale > 0:
            return first // scale, last // scale
        case "/" | ">>" if scale > 0:
            return first * scale, last * scale + scale - 1
    return ()
