"""The whole numbers that a source speaks of: where a kernel decides by a size, it names one.

Owns finding them in the text: macros of constants are expanded and constant expressions computed, in conditional parts
as well, as no preprocessor has chosen between them. Which sizes are made of them is `tunesmith.kernels.check.plan`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

_SPLICE = re.compile(r"\\[ \t]*\r?\n")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_TOKEN = re.compile(
    r"(?P<text>\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)+')"
    r"|(?P<number>\.?[0-9](?:[eEpP][+-]|'[0-9A-Fa-f]|[\w.])*)|(?P<name>[A-Za-z_$][\w$]*)"
    r"|(?P<sign><<=|>>=|<<|>>|[<>=!+*/%&|^-]=|->|\+\+|--|&&|\|\||\S)"
)
_DEFINE = re.compile(r"\s*#\s*define\s+([A-Za-z_$][\w$]*)(?:[ \t]+(.*))?$")
_WHOLE = re.compile(r"(?:0[xX](?P<hexadecimal>[0-9a-fA-F]+)|0[bB](?P<binary>[01]+)|(?P<decimal>[0-9]+))[uUlLzZ]*")
MOST_DIGITS = 64
"""Of a literal, in any base."""
LARGEST = 1 << 64
"""Larger values are no sizes."""
MOST_VALUES = 4
"""Of one macro that is defined several times, or of what is made of such macros."""
MOST_STEPS = 4
"""Operators with constants that are undone."""
MOST_BESIDE = 16
"""Constants of one expression of which is kept that a comparison may follow."""
MOST_DEPTH = 50
"""Of parentheses, and of macros made of macros."""
PRECEDENCE = {"*": 5, "/": 5, "%": 5, "+": 4, "-": 4, "<<": 3, ">>": 3} | dict.fromkeys(("<", ">", "<=", ">="), 2)
PRECEDENCE |= dict.fromkeys(("==", "!="), 1) | {"&": 0}
"""Of the operators that are looked through; any other ends an expression."""
COMPARISONS = ("<", ">", "<=", ">=", "==", "!=")

Token = tuple[str, str]
Range = tuple[int, int]


def whole_numbers(source: str) -> tuple[int, ...]:
    """Whole numbers of two and more that `source` speaks of, each once: first those that something is compared with, of
    which a remainder is taken, or that stand in a case. A constant expression counts as its value, and a comparison of
    what was computed from one operand and constants as the values of that operand at which it changes."""
    lines = _COMMENT.sub(" ", _SPLICE.sub("", source)).split("\n")
    bodies: dict[str, list[list[Token]]] = {}
    for line in lines:
        if (defined := _DEFINE.match(line)) is not None:
            bodies.setdefault(defined.group(1), []).append(_tokens(defined.group(2) or ""))
    macros = _Macros(bodies)
    # A directive is an expression of its own; statements go on from line to line.
    directives = [line for line in lines if line.lstrip().startswith("#")]
    statements = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    found: list[tuple[int, bool]] = []
    for text in (statements, *directives):
        _Reader(_tokens(text), macros.values, lambda value, compared: found.append((value, compared))).read()
    ordered = sorted((one for one in found if one[0] >= 2), key=lambda one: not one[1])
    return tuple(dict.fromkeys(value for value, _ in ordered))


def _tokens(text: str) -> list[Token]:
    return [(str(token.lastgroup), token.group()) for token in _TOKEN.finditer(text)]


def _literal(text: str) -> tuple[int, ...]:
    """The value of a whole number, as a constant; of another number, or one too long to be a size, none."""
    match = _WHOLE.fullmatch(text.replace("'", ""))
    if match is None or len(match.group()) > MOST_DIGITS + 2:
        return ()
    if match["hexadecimal"]:
        value = int(match["hexadecimal"], 16)
    elif match["binary"]:
        value = int(match["binary"], 2)
    else:
        digits = match["decimal"]
        octal = len(digits) > 1 and digits.startswith("0") and set(digits) <= set("01234567")
        value = int(digits, 8 if octal else 10)
    return (value,) if value < LARGEST else ()


def _computed(sign: str, left: int, right: int) -> int | None:
    """The value of an operator on constants, where it has one that may lead to a size."""
    if sign in ("/", "%", "<<", ">>") and (left < 0 or right < 0):
        return None
    if (sign in ("/", "%") and right == 0) or (sign in ("<<", ">>") and right >= 64):
        return None
    operators: dict[str, Callable[[int, int], int]] = {
        "+": int.__add__,
        "-": int.__sub__,
        "*": int.__mul__,
        "/": int.__floordiv__,
        "%": int.__mod__,
        "<<": int.__lshift__,
        ">>": int.__rshift__,
    }
    value = operators[sign](left, right) if sign in operators else None
    return value if value is not None and abs(value) < LARGEST else None


def _undone(sign: str, constant: int, values: Range) -> Range | None:
    """The operands from which `sign` and `constant` make one of `values`."""
    first, last = values
    if sign in ("<<", ">>"):
        if not 0 <= constant < 64:
            return None
        sign, constant = "*" if sign == "<<" else "/", 1 << constant
    match sign:
        case "+":
            return first - constant, last - constant
        case "-":
            return first + constant, last + constant
        case "*" if constant > 0:
            return first // constant, last // constant
        case "/" if constant > 0:
            return first * constant, last * constant + constant - 1
    return None


@dataclass(frozen=True, slots=True)
class _Operand:
    """constant: its values, one of which it has, if it is one. beside: constants it is computed with, otherwise. steps:
    how it is computed from another operand, operator and constants, the last step first."""

    constant: tuple[int, ...] = ()
    beside: tuple[int, ...] = ()
    steps: tuple[tuple[str, tuple[int, ...]], ...] = ()


UNKNOWN = _Operand()


@dataclass(slots=True)
class _Macros:
    """The values of macros that are constants, each computed once: a macro made of many others takes no longer."""

    bodies: dict[str, list[list[Token]]]
    known: dict[str, tuple[int, ...]] = field(default_factory=dict)
    depth: int = 0

    def values(self, name: str) -> tuple[int, ...]:
        if name not in self.bodies or self.depth >= MOST_DEPTH:
            return ()
        if name not in self.known:
            self.known[name] = ()  # what it is while it is computed: a macro is not expanded in its own body
            self.depth += 1
            values = [one for body in self.bodies[name] for one in self._value(body)]
            self.depth -= 1
            self.known[name] = tuple(dict.fromkeys(values))[:MOST_VALUES]
        return self.known[name]

    def _value(self, body: Sequence[Token]) -> tuple[int, ...]:
        reader = _Reader(body, self.values, lambda _value, _compared: None)
        operand = reader.expression(0)
        return operand.constant if reader.ended else ()


@dataclass(slots=True)
class _Reader:
    """Reads expressions as far as constants go, and tells `found` of each constant and whether something is compared
    with it. Whatever it does not know ends an expression."""

    tokens: Sequence[Token]
    values: Callable[[str], tuple[int, ...]]
    found: Callable[[int, bool], None]
    at: int = 0
    depth: int = 0

    @property
    def ended(self) -> bool:
        return self.at >= len(self.tokens)

    def read(self) -> None:
        """Goes through all tokens."""
        while not self.ended:
            in_case = self.at > 0 and self.tokens[self.at - 1] == ("name", "case")
            before = self.at
            self._tell(self.expression(0), in_case)
            if self.at == before:
                self.at += 1

    def _tell(self, operand: _Operand, compared: bool) -> None:
        for value in (*operand.constant, *operand.beside):
            self.found(value, compared)

    def _sign(self) -> str:
        kind, text = self.tokens[self.at] if not self.ended else ("", "")
        return text if kind == "sign" else ""

    def expression(self, least: int) -> _Operand:
        """An operand, and the operators of precedence `least` and more that follow it."""
        left = self._operand()
        while (sign := self._sign()) and PRECEDENCE.get(sign, -1) >= least:
            self.at += 1
            left = self._joined(sign, left, self.expression(PRECEDENCE[sign] + 1))
        return left

    def _joined(self, sign: str, left: _Operand, right: _Operand) -> _Operand:
        if sign in COMPARISONS:
            for value in (*_changes(left, right.constant), *_changes(right, left.constant)):
                self.found(value, True)
            self._tell(left, True)
            self._tell(right, True)
            return UNKNOWN
        if left.constant and right.constant:
            made = [_computed(sign, *pair) for pair in itertools.product(left.constant, right.constant)]
            return _Operand(tuple(dict.fromkeys(one for one in made if one is not None))[:MOST_VALUES])
        if sign == "%":
            self._tell(right, True)
            return _Operand(beside=left.constant + left.beside)
        beside = left.constant + left.beside + right.constant + right.beside
        self._tell(_Operand(beside=beside[MOST_BESIDE:]), False)
        beside = beside[:MOST_BESIDE]
        if right.constant:
            return _Operand((), beside, ((sign, right.constant), *left.steps) if len(left.steps) < MOST_STEPS else ())
        if left.constant and sign in ("+", "*"):
            return _Operand((), beside, ((sign, left.constant), *right.steps) if len(right.steps) < MOST_STEPS else ())
        return _Operand((), beside)

    def _operand(self) -> _Operand:
        if self.ended:
            return UNKNOWN
        kind, text = self.tokens[self.at]
        if kind == "sign" and text in ("+", "-", "~", "!", "*", "&"):
            return self._signed(text)
        if kind == "sign" and text != "(":
            return UNKNOWN
        if kind == "sign":
            operand = self._parenthesised()
            # A type in parentheses converts what follows it.
            if not operand.constant and not self.ended and (self.tokens[self.at][0] != "sign" or self._sign() == "("):
                return self._nested(self._operand)
            return operand
        self.at += 1
        if kind == "number":
            return _Operand(_literal(text))
        operand = _Operand(self.values(text) if kind == "name" else ())
        while (sign := self._sign()) in ("(", "[", ".", "->"):
            operand = UNKNOWN
            if sign in ("(", "["):
                self._tell(self._parenthesised(), False)
            else:
                self.at += 2
        return operand

    def _signed(self, sign: str) -> _Operand:
        self.at += 1
        operand = self._nested(self._operand)
        if sign == "+":
            return operand
        if sign == "-":
            return _Operand(tuple(-value for value in operand.constant), operand.beside)
        return _Operand((), operand.constant + operand.beside)

    def _parenthesised(self) -> _Operand:
        """What stands in parentheses or brackets, where that is one expression."""
        self.at += 1
        if self.depth >= MOST_DEPTH:
            return UNKNOWN
        operands = [self._nested(lambda: self.expression(0))]
        while not self.ended and self._sign() not in (")", "]", ";", "{", "}"):
            before = self.at
            operands.append(self._nested(lambda: self.expression(0)))
            if self.at == before:
                self.at += 1
        if self._sign() in (")", "]"):
            self.at += 1
        if len(operands) == 1:
            return operands[0]
        for operand in operands:
            self._tell(operand, False)
        return UNKNOWN

    def _nested(self, read: Callable[[], _Operand]) -> _Operand:
        if self.depth >= MOST_DEPTH:
            return UNKNOWN
        self.depth += 1
        operand = read()
        self.depth -= 1
        return operand


def _changes(operand: _Operand, constants: Sequence[int]) -> Iterator[int]:
    """The values of what `operand` is computed from at which it comes to be one of `constants`, and ceases to."""
    for constants_of_steps in itertools.islice(itertools.product(*(one for _, one in operand.steps)), MOST_VALUES):
        for constant in constants if operand.steps else ():
            values: Range | None = (constant, constant)
            for (sign, _), other in zip(operand.steps, constants_of_steps, strict=True):
                values = _undone(sign, other, values) if values is not None else None
            if values is not None:
                yield from dict.fromkeys(values)


__all__ = ["whole_numbers"]
