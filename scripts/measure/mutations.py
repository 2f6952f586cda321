"""Edits of a kernel's source, each of which probably makes it wrong, from the tokens that clang reads.

Nothing is known of types: many edits do not compile, and some change nothing.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import clang.cindex as clang

from tunesmith.kernels.spec.template import BackendName

SWAPS = {
    "guard": {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="},
    "sign": {"+": "-", "-": "+", "*": "/", "/": "*", "+=": "-=", "-=": "+=", "*=": "/=", "/=": "*="},
    "mask": {"&&": "||", "||": "&&", "&": "|", "|": "&", "^": "|", "<<": ">>", ">>": "<<", "%": "/"},
}
_MIN_MAX = re.compile(r"((?:\w*_)?f?)(min|max)(f?(?:_\w+)?\d*)")
_NUMBER = re.compile(r"(0[xX][0-9a-fA-F]+|\d+)([uUlL]*)")
_BARRIER = re.compile(r"barrier|sync|fence|wait", re.IGNORECASE)
_HALF = {
    "cuda": "{to} = __half2float(__float2half_rn({to} + ({x})));",
    "opencl": "{{ {to} += {x}; ushort half_; vstore_half_rte({to}, 0, (__private half*)&half_); "
    "{to} = vload_half(0, (__private half*)&half_); }}",
}
NEAR = 80
"""Tokens before and behind a name among which another is looked for to take its place."""


class Token(NamedTuple):
    """kind: clang's; start, end: its characters in the source."""

    text: str
    kind: str
    start: int
    end: int


class Edit(NamedTuple):
    """The text that takes the place of the characters from start to end."""

    operator: str
    start: int
    end: int
    text: str


def parts_of(source: str) -> Iterator[list[Token]]:
    """The tokens of a source in ASCII, then those of each macro of more than one token; of other directives none."""
    file = "source.cpp"
    tree = clang.Index.create().parse(file, ["-nostdinc"], [(file, source)])
    lines, end = [list[Token]()], 0
    for token in tree.get_tokens(extent=tree.cursor.extent):
        at, kind = token.extent.start.offset, token.kind.name
        if re.search(r"(?<!\\)\n", source[end:at]):
            lines.append([])
        end = token.extent.end.offset
        if kind != "COMMENT":
            lines[-1].append(Token(token.spelling, kind, at, end))
    yield [token for line in lines if line and line[0].text != "#" for token in line]
    for line in lines:
        if [token.text for token in line[:2]] == ["#", "define"]:
            called = len(line) > 3 and line[3].text == "(" and line[3].start == line[2].end
            body = line[[token.text for token in line].index(")") + 1 :] if called else line[3:]
            if len(body) > 1:
                yield body


@dataclass
class Part:
    """A part of a source. numbers: names of the kernel's arguments that are whole numbers."""

    tokens: Sequence[Token]
    source: str
    numbers: Sequence[str]
    backend: BackendName

    def __post_init__(self) -> None:
        self.partner, self.in_brackets = dict[int, int](), set[int]()
        waiting = list[int]()
        for at, token in enumerate(self.tokens):
            if waiting and self.tokens[waiting[-1]].text != "{":
                self.in_brackets.add(at)
            if token.text in ("(", "[", "{"):
                waiting.append(at)
            elif token.text in (")", "]", "}") and waiting:
                self.partner[at] = waiting.pop()
                self.partner[self.partner[at]] = at
        self.variables = {at for at in range(len(self.tokens)) if self._is_variable(at)}

    def edits(self, rng: random.Random) -> Iterator[Edit]:
        for at, token in enumerate(self.tokens):
            yield from self._of_token(at, token, rng)
            if token.text in ("[", "(") and self.partner.get(at, at) > at + 1:
                yield from self._of_bracket(at, self.partner[at])
            before = self._text(at - 1)
            begins = before in (";", "{", "}", "else", "") or self._is_header(self.partner.get(at - 1, at))
            if begins and at not in self.in_brackets:
                yield from self._of_statement(at)

    def _text(self, at: int) -> str:
        return self.tokens[at].text if 0 <= at < len(self.tokens) else ""

    def _kind(self, at: int) -> str:
        return self.tokens[at].kind if 0 <= at < len(self.tokens) else ""

    def _written(self, start: int, end: int) -> str:
        """The text from one token to another, which is left out."""
        return self.source[self.tokens[start].start : self.tokens[end - 1].end] if end > start else ""

    def _placed(self, operator: str, text: str, start: int, end: int | None = None) -> Edit:
        """`text` in the place of the tokens from `start` to `end`, which is left out, or of one."""
        return Edit(operator, self.tokens[start].start, self.tokens[start if end is None else end - 1].end, text)

    def _before(self, operator: str, at: int, *texts: str) -> Iterator[Edit]:
        place = self.tokens[at - 1].end
        yield from (Edit(operator, place, place, text) for text in texts)

    def _is_header(self, at: int) -> bool:
        return self._text(at) == "(" and self._text(at - 1) in ("for", "if", "while")

    def _is_value(self, at: int) -> bool:
        """Whether a value ends with this token."""
        return self._kind(at) in ("IDENTIFIER", "LITERAL") or self._text(at) in (")", "]")

    def _is_variable(self, at: int) -> bool:
        """Whether the token is the name of a variable that is not declared here."""
        named = self._kind(at) == "IDENTIFIER" and "IDENTIFIER" not in (self._kind(at - 1), self._kind(at + 1))
        declared = self._kind(at - 1) == "KEYWORD" and self._text(at - 1) not in ("return", "else")
        elsewhere = self._text(at - 1) in (".", "::") or self._text(at + 1) in ("(", "::")
        return named and not declared and not elsewhere

    def _of_token(self, at: int, token: Token, rng: random.Random) -> Iterator[Edit]:
        for operator, swaps in SWAPS.items():
            if token.text in swaps and self._is_value(at - 1):
                yield self._placed(operator, swaps[token.text], at)
        if (number := _NUMBER.fullmatch(token.text)) is not None:
            value, is_mask = int(number[1], 0), number[1][:2] in ("0x", "0X")
            for new in (value + 1, value >> 1 if is_mask else value - 1):
                if new >= 0:
                    yield self._placed("mask" if is_mask else "constant", f"{new}{number[2]}", at)
        elif token.kind == "LITERAL" and token.text[0] in ".0123456789":
            yield self._placed("constant", f"({token.text} + 1.0f)", at)
        if (named := _MIN_MAX.fullmatch(token.text)) is not None:
            yield self._placed("min_max", named[1] + ("min" if named[2] == "max" else "max") + named[3], at)
        if at not in self.variables:
            return
        if token.text in self.numbers and "*" in (self._text(at - 1), self._text(at + 1)):
            yield from (self._placed("stride", other, at) for other in self.numbers if other != token.text)
        first, times, second, plus, third = (self._text(at + step) for step in range(5))
        if (times, plus) == ("*", "+") and {at + 2, at + 4} <= self.variables:
            yield self._placed("stride", f"{third} * {second} + {first}", at, at + 5)
        near = {self._text(one) for one in range(max(0, at - NEAR), at + NEAR) if one in self.variables} - {token.text}
        if others := sorted(one for one in near if one.isupper() == token.text.isupper()):
            yield self._placed("operand", rng.choice(others), at)

    def _of_bracket(self, at: int, end: int) -> Iterator[Edit]:
        before = self._text(at - 1)
        if self._text(at) == "[":
            first = at - 1
            while self._text(first) == "]":
                first = self.partner[first] - 1
            if first in self.variables and self._text(first - 1) not in (">", ","):
                yield from self._before("index", end, " + 1", " - 1")
        elif before in ("if", "while"):
            leaves = self._text(end + 1) in ("return", "continue", "break")
            yield self._placed("guard", "0" if leaves else "1", at + 1, end)
            if any(self._text(one) in SWAPS["guard"] for one in range(at, end)):
                yield from self._before("bound", end, " + 1", " - 1")
        elif before == "for":
            yield from self._of_loop(at, end)
        elif self._is_access(at):
            comma = next((one for one in self._outside(at + 1, end) if self._text(one) == ","), end)
            yield from self._before("index", comma, " + 1", " - 1")

    def _is_access(self, at: int) -> bool:
        """Whether the brackets are those of a call of a function that loads or stores."""
        if self._text(at - 1) == ">":
            at = max((one for one in range(max(0, at - 8), at) if self._text(one) == "<"), default=at)
        named = re.search(r"load|store", self._text(at - 1), re.IGNORECASE) is not None
        return named and (self._kind(at - 2) == "PUNCTUATION" or self._text(at - 2) == "return")

    def _of_loop(self, at: int, end: int) -> Iterator[Edit]:
        places = [one for one in self._outside(at + 1, end) if self._text(one) == ";"]
        if len(places) != 2:
            return
        condition, step = places
        if condition > at + 1:
            yield from self._before("loop", condition, " + 1")
        if step > condition + 1:
            yield from self._before("bound", step, " + 1", " - 1")
        if end > step + 1:
            counted = re.fullmatch(r"\+\+(\w+)", text := self._written(step + 1, end))
            yield self._placed("loop", f"{counted[1]} += 2" if counted else f"{text} + 1", step + 1, end)
        yield self._placed("bound", ";", at - 1, self._end_of(end + 1) + 1)

    def _of_statement(self, at: int) -> Iterator[Edit]:
        end = self._end_of(at)
        starts = self._kind(at) == "IDENTIFIER" or self._text(at) in ("*", "++")
        if not starts or self._text(end) != ";" or self._kind(at + 1) in ("IDENTIFIER", "KEYWORD"):
            return
        is_barrier = _BARRIER.search(self._written(at, end).partition("(")[0]) is not None
        yield self._placed("barrier" if is_barrier else "statement", ";", at, end + 1)
        added = next((one for one in self._outside(at, end) if self._text(one) == "+="), None)
        if added is not None:
            half = _HALF[self.backend].format(to=self._written(at, added), x=self._written(added + 1, end))
            yield self._placed("half", half, at, end + 1)

    def _outside(self, at: int, end: int) -> Iterator[int]:
        """The tokens that stand in no further brackets."""
        while at < end:
            yield at
            at = self.partner.get(at, at) + 1 if self._text(at) in ("(", "[", "{") else at + 1

    def _end_of(self, at: int) -> int:
        """The last token of the statement that begins here."""
        while self._text(at) in ("for", "if", "while"):
            at = self.partner.get(at + 1, at + 1) + 1
        if self._text(at) == "{":
            return self.partner.get(at, at)
        found = (one for one in self._outside(at, len(self.tokens)) if self._text(one) in (";", "}"))
        return next(found, len(self.tokens) - 1)


def edits(source: str, numbers: Sequence[str], backend: BackendName, rng: random.Random) -> list[Edit]:
    """All edits that are made, in the order of the source. numbers: as of `Part`."""
    return [edit for tokens in parts_of(source) for edit in Part(tokens, source, numbers, backend).edits(rng)]
