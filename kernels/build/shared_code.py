"""Which values of a parameter a source cannot tell apart, so that one compilation serves them all.

Some parameters decide the launch and little else: a cap on the grid that the source only compares with 0, or one that
it does not name. Configurations that differ in nothing but such values have the same machine code. What is not plainly
so counts as different: a compilation too many costs some milliseconds, one too few would measure the wrong code.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from functools import lru_cache

from tunesmith.kernels.build.tokens import TOKEN, splice

Comparison = tuple[str, int]
"""An operator and the integer that a parameter is compared with."""

_COMPARE: Mapping[str, Callable[[int, int], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
_BEFORE = frozenset({"(", "&&", "||", "?", ":", "=", ",", "{", ";", "return", "#if", "#elif"})
"""What a comparison may follow: nothing here binds more tightly than a comparison does."""
_AFTER = frozenset({")", "&&", "||", "?", ":", ";", ",", "}"})
_PUNCTUATION = re.compile(r"&&|\|\||[<>=!]=|<<|>>|%:|\n[ \t\f\v]*#|\n|[^\s]")
_LARGEST = 1 << 31


@lru_cache(maxsize=256)
def uses(source: str) -> Mapping[str, frozenset[Comparison] | None] | None:
    """For each name in `source` the comparisons it occurs in, where each occurrence is one whole comparison with an
    integer; None for a name that is used in any other way. None instead of a mapping where nothing can be said: where
    headers are included, which may use any name, and where macros quote or paste what they are given."""
    tokens = _tokens(splice(source))
    if tokens is None:
        return None
    found: dict[str, set[Comparison] | None] = {}
    calls: list[str] = []
    macros = _macros(tokens)
    directive, before = "", ""
    for at, text in enumerate(tokens):
        if text == "(":
            calls.append(before)
        elif text == ")" and calls:
            calls.pop()
        elif text == "\n" or text[0] == "#":
            directive = text if text[0] == "#" else ""
        if text != "\n":
            # A macro's arguments may begin on the next line.
            before = text
        if not (text[0].isalpha() or text[0] in "_$"):
            continue
        one = None if macros & set(calls) else _comparison(tokens, at, directive)
        so_far = found.setdefault(text, set())
        if one is None or so_far is None:
            found[text] = None
        else:
            so_far.add(one)
    return {name: None if compared is None else frozenset(compared) for name, compared in found.items()}


def stand_in(value: bool | int | float | str, compared: frozenset[Comparison] | None) -> str | None:
    """A text that is equal for values that a source cannot tell apart when it only makes these comparisons (see `uses`;
    none at all for a name that it does not have); None where the value itself matters."""
    if compared is None:
        return None
    if not compared:
        return "unused"
    if not isinstance(value, int) or not -_LARGEST < value < _LARGEST:
        return None
    return " ".join(f"{sign}{number}:{_COMPARE[sign](int(value), number):d}" for sign, number in sorted(compared))


def _tokens(spliced: str) -> list[str] | None:
    """Names, numbers and punctuation, with literals as one token, line ends, and `#if` for the start of a directive;
    None where a header is included or a macro quotes or pastes."""
    found: list[str] = []
    for token in TOKEN.finditer("\n" + spliced + "\n"):
        kind, text = token.lastgroup, token.group()
        if kind == "stray":
            return None
        if kind in ("line", "block"):
            continue
        for part in _PUNCTUATION.findall(text) if kind == "other" else [text]:
            if found and found[-1] == "#" and part != "\n":
                if part in ("include", "import", "include_next", "embed"):
                    return None
                found[-1] = f"#{part}"
            elif part in ("#", "%:"):
                # Not where a directive begins: it quotes or pastes.
                return None
            else:
                found += ["\n", "#"] if part.endswith("#") else [part]
    return found


def _macros(tokens: list[str]) -> frozenset[str]:
    """Every macro that the source defines: one that takes arguments may put anything beside them."""
    return frozenset(tokens[at + 1] for at, text in enumerate(tokens[:-1]) if text == "#define")


def _comparison(tokens: list[str], at: int, directive: str) -> Comparison | None:
    """The comparison that the name at `at` begins, if it is one from end to end."""
    after = [text for text in tokens[at + 1 : at + 12] if directive or text != "\n"]
    if len(after) < 3 or after[0] not in _COMPARE or not re.fullmatch(r"0|[1-9][0-9]{0,8}", after[1]):
        return None
    back = at - 1
    while not directive and tokens[back] == "\n":
        back -= 1
    before = tokens[back]
    # `f<1, NAME > 0, 2>` is an argument list that ends at `NAME >`.
    if before not in _BEFORE or (before == "," and after[0] in (">", ">=")):
        return None
    ends = after[2] in _AFTER or (directive in ("#if", "#elif") and after[2] == "\n")
    return (after[0], int(after[1])) if ends else None
