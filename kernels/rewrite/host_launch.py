"""The block that host code launches a kernel with, where a source has both.

Owns reading `kernel<<<grid, block>>>` (CUDA C++ Programming Guide, "Execution Configuration"): numbers, constants and
`dim3` of them. What depends on sizes or on the device is for people to say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tunesmith.kernels.spec.expression import ExpressionError, parse

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_DIM3 = re.compile(r"dim3\s*[({](.*)[)}]", re.DOTALL)
MAX_CONSTANT_STEPS = 8
"""How many constants a constant may go through until its number is found."""


@dataclass(frozen=True, slots=True)
class HostBlock:
    """threads: of a block by axis, empty where they are not constant or differ among launches; written: as the source
    has them, each once."""

    threads: tuple[int, ...]
    written: tuple[str, ...]


def block_of_host(code: str, kernel: str) -> HostBlock | None:
    """The block of the launches of `kernel` in `code`; None where there are none."""
    plain = _COMMENT.sub(" ", code)
    written = tuple(dict.fromkeys(_blocks(plain, kernel)))
    if not written:
        return None
    found = {_threads(plain, one, MAX_CONSTANT_STEPS) for one in written}
    return HostBlock(found.pop() if len(found) == 1 else (), written)


def _blocks(code: str, kernel: str) -> Iterator[str]:
    for match in re.finditer(rf"\b{re.escape(kernel)}\s*(?:<[^;{{}}]*?>\s*)?<<<", code):
        arguments = _split(code[match.end() : code.find(">>>", match.end())])
        if len(arguments) > 1:
            yield arguments[1]


def _split(text: str) -> list[str]:
    """At the commas that stand in no parentheses."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "({[") - (letter in ")}]")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [" ".join(part.split()) for part in parts]


def _threads(code: str, written: str, steps: int) -> tuple[int, ...]:
    """The axes of a block; empty where they are not constant."""
    if (axes := _DIM3.fullmatch(written)) is not None:
        found = [_number(code, one, steps) for one in _split(axes.group(1))]
        return tuple(one for one in found if one) if all(found) else ()
    if (number := _number(code, written, steps)) is not None:
        return (number,)
    if re.fullmatch(r"\w+", written) and steps:
        made = {f"dim3({one})" for one in re.findall(rf"\bdim3\b[^;]*?\b{written}\s*[({{]([^;(){{}}]*)[)}}]", code)}
        made |= set(re.findall(rf"\b{written}\s*=\s*(dim3\s*[({{][^;]*[)}}])\s*;", code))
        if len(made) == 1:
            return _threads(code, " ".join(made.pop().split()), steps - 1)
    return ()


def _number(code: str, written: str, steps: int) -> int | None:
    """The value of an expression of numbers and constants."""
    names: dict[str, int] = {}
    for name in set(re.findall(r"[A-Za-z_]\w*", written)):
        texts = set(re.findall(rf"^[ \t]*#[ \t]*define[ \t]+{name}[ \t]+(.+?)[ \t]*$", code, re.MULTILINE))
        texts |= {" ".join(one.split()) for one in re.findall(rf"\b{name}\s*=(?!=)([^;,{{}}]+)[;,]", code)}
        value = _number(code, texts.pop(), steps - 1) if len(texts) == 1 and steps else None
        if value is None:
            return None
        names[name] = value
    try:
        value = parse(written.replace("/", "//")).evaluate(names)
    except ExpressionError:
        return None
    return value if isinstance(value, int) and 0 < value <= 1024 else None


__all__ = ["HostBlock", "block_of_host"]
