"""Which parts of a kernel ran? Finds the basic blocks of PTX, and has each leave a mark when it is entered.

Owns reading PTX as far as control flow goes (NVIDIA, "Parallel Thread Execution ISA": statements, labels, directives in
section 4, `.loc` in section 11.5, control flow instructions in section 9.7.12). PTX is what comes out of the compiler's
optimiser: what it turned from branches into selections is one block here. Assembling the text is
`tunesmith.kernels.backends.cuda_linker`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.ptx import files_named, source_line

MARKS = "tunesmith_executed"
"""The array in global memory with a 32-bit word for each block: 0 until the block is entered."""

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_TOKEN = re.compile(
    r"(?P<space>\s+)"
    r"|(?P<loc>\.loc\b[^\n]*)"
    r"|(?P<brace>[{}])"
    r"|(?P<label>[A-Za-z_$%][\w$]*\s*:(?!:))"
    r'|(?P<statement>(?:"(?:[^"\\]|\\.)*"|[^;"])*;)'
)
_BODY = re.compile(r"\.(?:entry|func)\b")
_NAME = re.compile(r"\.(?:entry|func)\b\s*(?:\([^)]*\)\s*)?([A-Za-z_$%][\w$]*)")
_WORD = re.compile(r"[A-Za-z_$%][\w$]*")
_TABLE = re.compile(r"\.(?:global|const)\b[^;={}]*?([A-Za-z_$%][\w$]*)\s*(?:\[\d*\]\s*)*=\s*([^;]*);")
_GUARDED = re.compile(r"@!?%?[\w$]+\s+")
_ENDS = re.compile(r"(?:bra|brx|ret|exit|trap)\b")


@dataclass(frozen=True, slots=True)
class Block:
    """A run of instructions that is entered at its first alone. function: in which it stands; lines: those of the
    source that its instructions come from, sorted, or where it is known no better, the line in front of it."""

    function: str
    lines: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Marked:
    """PTX whose blocks leave marks. text: to be assembled; blocks: in the order of their words in `MARKS`."""

    text: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class MarkedArtifact:
    """Machine code whose blocks leave marks, and what these blocks are."""

    artifact: Artifact
    blocks: tuple[Block, ...]


class PtxError(ValueError):
    """The text is no PTX that can be read."""


def mark_blocks(ptx: str, file: str, entry: str) -> Marked:
    """`ptx` in which the first instruction of each basic block that `entry` can reach is preceded by a store of 1 into
    its word of `MARKS`.

    file: the name of the source, as `#line` gives it; lines of other files count where they were inlined into it.
    entry: the kernel's name; other kernels, and functions that only these call, leave no marks. Raises `PtxError`.
    """
    text = _COMMENT.sub("", ptx)
    reader = _Reader(files_named(text, file))
    bodies, position = [], 0
    for start, end in _bodies(text):
        header = text[position:start]
        name = _NAME.search(header, max(found.start() for found in _BODY.finditer(header)))
        bodies.append((name.group(1) if name else "", start, end))
        position = end
    reached = _reached(text, bodies, entry)
    made, position = [], 0
    for function, start, end in bodies:
        body = text[start:end]
        made += [text[position:start], *(reader.read(body, function) if function in reached else [body])]
        position = end
    made.append(text[position:])
    blocks = tuple(Block(function, tuple(sorted(lines))) for function, lines in reader.blocks)
    if not blocks:
        raise PtxError("the PTX has no function with a body")
    head = re.search(r"^\s*\.address_size\s+64[^\n]*\n", text, re.MULTILINE)
    if head is None:
        raise PtxError("the PTX does not say `.address_size 64`")
    declared = f".visible .global .align 4 .u32 {MARKS}[{len(blocks)}];\n"
    whole = "".join(made)
    return Marked(whole[: head.end()] + declared + whole[head.end() :], blocks)


def _reached(text: str, bodies: Sequence[tuple[str, int, int]], entry: str) -> set[str]:
    """The functions that `entry` names in its body, or in the initial value of a variable that it names there, as calls
    through pointers need, and those that these name in turn."""
    outside = text
    for _, start, end in reversed(bodies):
        outside = outside[:start] + outside[end:]
    named = {table: set(_WORD.findall(value)) for table, value in _TABLE.findall(outside)}
    named |= {function: set(_WORD.findall(text[start:end])) for function, start, end in bodies}
    waiting, reached = [entry], set[str]()
    while waiting:
        if (name := waiting.pop()) not in reached:
            reached.add(name)
            waiting += named.get(name, ())
    return reached


def _bodies(text: str) -> Iterator[tuple[int, int]]:
    """Where each function's body begins, behind its brace, and ends, in front of the other."""
    position = 0
    while True:
        brace = text.find("{", position)
        if brace < 0:
            return
        end = _closing(text, brace)
        # What stands in front of the brace, from the last statement or body on.
        before = text[max(position, text.rfind(";", position, brace) + 1) : brace]
        if _BODY.search(before):
            yield brace + 1, end
        position = end + 1


def _closing(text: str, brace: int) -> int:
    depth = 0
    for match in re.compile(r'"(?:[^"\\]|\\.)*"|[{}]').finditer(text, brace):
        depth += {"{": 1, "}": -1}.get(match.group(), 0)
        if depth == 0:
            return match.start()
    raise PtxError("a brace is not closed")


class _Reader:
    """Goes through bodies and numbers their blocks. files: the numbers of the source in `.loc`."""

    def __init__(self, files: set[int]) -> None:
        self._files = files
        self.blocks: list[tuple[str, set[int]]] = []

    def read(self, body: str, function: str) -> Iterator[str]:
        """The pieces of `body` with marks among them."""
        position, line = 0, 0
        begins, reachable, placed = True, True, True
        while position < len(body):
            token = _TOKEN.match(body, position)
            if token is None:
                raise PtxError(f"this is no statement: {body[position : position + 40].strip()!r}")
            position, kind, text = token.end(), token.lastgroup, token.group()
            if kind == "loc":
                line, placed = source_line(text, self._files) or line, False
            elif kind == "label":
                if not body[position:].lstrip().startswith((".branchtargets", ".calltargets", ".callprototype")):
                    begins = reachable = True
            elif kind == "statement" and not text.startswith("."):
                if begins and reachable:
                    yield f"st.global.u32 [{MARKS}+{4 * len(self.blocks)}], 1;\n"
                    self.blocks.append((function, {line} - {0}))
                    begins = False
                elif reachable and not placed:
                    self.blocks[-1][1].update({line} - {0})
                placed = True
                guarded = _GUARDED.match(text)
                if _ENDS.match(text, guarded.end() if guarded else 0):
                    # Behind what always leaves, only a label can be reached.
                    begins, reachable = True, guarded is not None
            yield text


__all__ = ["MARKS", "Block", "Marked", "MarkedArtifact", "PtxError", "mark_blocks"]
