"""Edits of a source: text in the place of some of its bytes, made by passes that do not know of each other.

Owns the record of an edit, the short ways to make one, and the source with all of them in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tunesmith.kernels.reader.syntax import Node


@dataclass(frozen=True, slots=True)
class Edit:
    """Text in the place of the source's bytes from start to end. Of the parts, a span is that part of the source, with
    the edits of all other passes in it, and with edits of its own."""

    start: int
    end: int
    parts: tuple[str | Span, ...]


@dataclass(frozen=True, slots=True)
class Span:
    start: int
    end: int
    swaps: tuple[Edit, ...] = ()


def span(node: Node, *swaps: Edit) -> Span:
    return Span(node.start, node.end, swaps)


def replace(node: Node, *parts: str | Span) -> Edit:
    return Edit(node.start, node.end, parts)


def wrap(node: Node, before: str, after: str) -> Edit:
    return Edit(node.start, node.end, (before, span(node), after))


def insert(at: int, text: str) -> Edit:
    return Edit(at, at, (text,))


def switched(on: str, macros: Mapping[str, tuple[str, str]]) -> str:
    """Definitions of macros, by name and parameters: the first text where `on` holds for the preprocessor, else the
    second."""
    texts = [[f"#define {macro} {both[at]}".rstrip() for macro, both in macros.items()] for at in (0, 1)]
    return "\n".join([f"#if {on}", *texts[0], "#else", *texts[1], "#endif"])


def rendered(code: bytes, whole: Span, edits: Sequence[Edit]) -> str:
    """A part of the source with the edits in it. Of edits of one place those of the span are the outermost, then the
    others in their order, last what leaves nothing of the source; an edit inside another shows where that one has a
    span."""
    own = [(False, one) for one in whole.swaps] + [(True, one) for one in edits]
    own = [(late, one) for late, one in own if whole.start <= one.start and one.end <= whole.end]
    parts, at = list[bytes](), whole.start
    while own:
        start = min(one.start for _, one in own)
        here = [k for k, (_, one) in enumerate(own) if one.start == start]
        ranges = [k for k in here if own[k][1].end > start]
        points = [k for k in here if own[k][1].end == start]
        first = min(ranges or points, key=lambda k: (-own[k][1].end, own[k][0], own[k][0] and _leaf(own[k][1]), k))
        if ranges and points and points[0] < first:
            first = points[0]
        _late, edit = own.pop(first)
        assert edit.start >= at, "edits do not overlap"
        parts.append(code[at : edit.start])
        at = edit.end
        if edit.end > edit.start:
            inside = [pair for pair in own if edit.start <= pair[1].start and pair[1].end <= edit.end]
            own = [pair for pair in own if pair not in inside]
        else:
            inside = []
        swaps = tuple(one for is_late, one in inside if not is_late)
        others = [one for is_late, one in inside if is_late]
        for part in edit.parts:
            if isinstance(part, str):
                parts.append(part.encode())
            else:
                both = Span(part.start, part.end, (*part.swaps, *swaps))
                parts.append(rendered(code, both, others).encode())
    return b"".join([*parts, code[at : whole.end]]).decode()


def _leaf(edit: Edit) -> bool:
    return all(isinstance(part, str) for part in edit.parts)
