"""Where a kernel may read what one of its loops needs, long before that loop.

A load that stands behind a value another load gives waits for that one first: two trips to memory, one after the other.
What is never written may be read at any time, so only the names in its index, and an end of the thread that may come
before it, decide how early that can be.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunesmith.kernels.rewrite.source import Kernel, text, walk

if TYPE_CHECKING:
    from tree_sitter import Node

_PLAIN = frozenset(
    {
        "identifier",
        "number_literal",
        "binary_expression",
        "parenthesized_expression",
        "unary_expression",
        "conditional_expression",
        "cast_expression",
        "type_descriptor",
        "primitive_type",
        "sized_type_specifier",
        "type_identifier",
        "type_qualifier",
        "abstract_pointer_declarator",
        "field_expression",
        "field_identifier",
    }
)
"""What an expression may be made of that gives the same wherever it stands: no call, no memory, no change."""
_ENDS = re.compile(r"\b(?:return|goto|__trap|__nanosleep|assert|exit)\b")
_WAITS = re.compile(r"\b(?:__sync|__shfl|__ballot|__any|__all|__match|__barrier|for|while|do)")


@dataclass(frozen=True, slots=True)
class Place:
    """at: the byte of the source behind which code may be put; declarations: statements that it needs and that come
    later, each as the first and last byte of its type and of its declarator; first: the number of the statement in the
    kernel's body that follows."""

    at: int
    declarations: tuple[tuple[int, int, int, int], ...]
    first: int


def earliest(kernel: Kernel, loop: Node, words: set[str]) -> Place:
    """The earliest place in the kernel's body, ahead of the statement `loop` of it, at which every name of `words` can
    be had with the value that it has at the loop. None of them may ever be changed."""
    statements = kernel.body.named_children
    before = [one for one in statements if one.end_byte <= loop.start_byte]
    first = 1 + max((at for at, one in enumerate(before) if _ENDS.search(text(one))), default=-1)
    copied: set[tuple[int, int, int, int]] = set()
    waiting, seen = sorted(words), set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        homes = [at for at, one in enumerate(before) if _declares(kernel, one, name)]
        if not homes:
            # A parameter, a builtin, or what stands outside the kernel.
            continue
        found = _copy(kernel, before[homes[-1]], name) if len(homes) == 1 else None
        if found is None:
            first = max(first, homes[-1] + 1)
        else:
            declarator, place = found
            copied.add(place)
            waiting += [text(one) for one in walk(declarator) if one.type == "identifier" and text(one) != name]
    at = before[first - 1].end_byte if first else kernel.body.start_byte + 1
    return Place(at, tuple(sorted((one for one in copied if one[0] >= at), key=lambda one: one[2])), first)


def waits(kernel: Kernel, place: Place, loop: Node) -> bool:
    """Whether a thread has to wait between the place and the loop: for memory, for others, or for another loop."""
    for one in kernel.body.named_children[place.first :]:
        if one.start_byte >= loop.start_byte:
            break
        touched = any(one.start_byte <= access.node.start_byte < one.end_byte for access in kernel.accesses)
        if touched or _WAITS.search(text(one)):
            return True
    return False


def _declares(kernel: Kernel, statement: Node, name: str) -> bool:
    return any(
        text(one) == name and statement.start_byte <= one.start_byte < statement.end_byte
        for one in kernel.declared_names
    )


def _copy(kernel: Kernel, statement: Node, name: str) -> tuple[Node, tuple[int, int, int, int]] | None:
    """The declarator of `name` and the bytes of a declaration of it alone, where that gives the same at any place; else
    None."""
    if statement.type != "declaration" or sum(text(one) == name for one in kernel.declared_names) != 1:
        return None
    declarators = statement.children_by_field_name("declarator")
    head = (kernel.code[statement.start_byte : declarators[0].start_byte]).decode()
    if re.search(r"\b(?:static|extern|volatile|__shared__)\b", head):
        return None
    for one in declarators:
        target, value = one.child_by_field_name("declarator"), one.child_by_field_name("value")
        if one.type != "init_declarator" or target is None or value is None or _named(target) != name:
            continue
        used = {text(inner) for inner in walk(value) if inner.type == "identifier"}
        if any(inner.is_named and inner.type not in _PLAIN for inner in walk(value)):
            return None
        if used & kernel.changed:
            return None
        return one, (statement.start_byte, declarators[0].start_byte, one.start_byte, one.end_byte)
    return None


def _named(target: Node) -> str:
    """The name that a declarator gives, of a value or of a pointer; empty for another, as an array."""
    while target.type == "pointer_declarator" and (inner := target.child_by_field_name("declarator")) is not None:
        target = inner
    return text(target) if target.type == "identifier" else ""
