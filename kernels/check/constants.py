"""The whole numbers that a source speaks of: where a kernel decides by a size, it names one.

Owns finding them in the text, macros included, where no parser of the language looks. Which sizes are made of them is
`tunesmith.kernels.check.plan`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_LITERAL = r"(?<![\w.])(?:0[xX][0-9a-fA-F]+|[0-9]+)[uUlL]*(?![\w.])"
_PRODUCT = re.compile(rf"({_LITERAL})(?:\s*(<<|\*)\s*({_LITERAL}))?")
_COMPARED = re.compile(r"(?:[<>=!]=|(?<![<-])<(?!<)|(?<![>-])>(?!>)|%|\bcase\b)\s*[(\s]*$")
_COMPARES = re.compile(r"^[)\s]*(?:[<>=!]=|<(?!<)|>(?!>))")


def whole_numbers(source: str) -> tuple[int, ...]:
    """Whole numbers of two and more that stand in `source`, each once: first those beside a comparison, a remainder or
    in a case. A shift or product of two literals counts as its value."""
    text = _COMMENT.sub(" ", source)
    found = sorted(_numbers(text), key=lambda one: not one[1])
    return tuple(dict.fromkeys(value for value, _ in found))


def _numbers(text: str) -> Iterator[tuple[int, bool]]:
    """Each number, and whether something is compared with it."""
    for match in _PRODUCT.finditer(text):
        value = _value(match.group(1))
        if match.group(2) == "<<":
            shift = _value(match.group(3))
            value = value << shift if shift < 64 else 0
        elif match.group(2) == "*":
            value *= _value(match.group(3))
        if value >= 2:
            before, behind = text[max(0, match.start() - 12) : match.start()], text[match.end() : match.end() + 12]
            yield value, bool(_COMPARED.search(before) or _COMPARES.match(behind))


def _value(literal: str) -> int:
    digits = literal.rstrip("uUlL")
    if digits.lower().startswith("0x"):
        return int(digits, 16)
    return (
        int(digits, 8) if len(digits) > 1 and digits.startswith("0") and set(digits) <= set("01234567") else int(digits)
    )


__all__ = ["whole_numbers"]
