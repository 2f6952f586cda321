"""Counts the instructions of PTX by what they do and by the line they come from: a static picture of a kernel that
needs no CUDA toolkit.

PTX is what the compiler's front end hands to ptxas, which still unrolls, vectorises little and removes much; the counts
say how wide memory accesses are and what the kernel is made of, not how often an instruction runs. Names are those of
the PTX ISA (NVIDIA, "Parallel Thread Execution ISA", sections 9.7.1 to 9.7.13; `.file` and `.loc` in section 11.5).
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import PurePosixPath

_INSTRUCTION = re.compile(
    r"(?:^|[{;])[ \t]*(?:@!?%\w+[ \t]+)?([a-z][a-z0-9]*(?:[.:]+[A-Za-z0-9_]+)*)[ \t]+[^\n;]*(?=;)", re.MULTILINE
)
_TYPE = re.compile(r"^[bsuf](?:f)?(8|16|32|64|128)(x2)?$|^(bf16)(x2)?$")
_SPECIAL_UNIT = frozenset({"ex2", "lg2", "sin", "cos", "tanh", "rcp", "rsqrt", "sqrt", "div"})
_ARITHMETIC = frozenset({"add", "sub", "mul", "mad", "fma", "neg", "abs", "min", "max", "mul24", "mad24"})
_LOGIC = frozenset({"and", "or", "xor", "not", "shl", "shr", "shf", "lop3", "prmt", "bfe", "bfi", "popc", "clz"})
_SPACES = ("global", "shared", "local", "const")
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"((?:[^"\\]|\\.)*)"', re.MULTILINE)
_LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)\s+\d+(?:[^\n]*?\binlined_at\s+(\d+)\s+(\d+)\s+\d+)?[^\n]*")
_LABEL = re.compile(r"\s*([A-Za-z_$%][\w$]*)\s*:(?!:)")
_BRANCH = re.compile(r"\bbra(?:\.uni)?\s+([A-Za-z_$%][\w$]*)\s*;")
TURNS = 10
"""Times that a loop is reckoned to run where lines are ranked: how often it does run nobody knows here."""


@dataclass(frozen=True, slots=True)
class HotLine:
    """A line of the source. instructions: how many of the PTX come from it, before ptxas; depth: of the innermost loop
    they are in."""

    line: int
    instructions: int
    depth: int


@dataclass(frozen=True, slots=True)
class Profile:
    """sorts: number of instructions of each sort, the most frequent first; lines: those that most instructions come
    from, the first the most."""

    sorts: dict[str, int] = field(default_factory=dict)
    lines: tuple[HotLine, ...] = ()


def files_named(ptx: str, name: str) -> set[int]:
    """The numbers under which `.loc` speaks of the file `name`, as `#line` gives it."""
    return {int(number) for number, path in _FILE.findall(ptx) if PurePosixPath(path).name == name}


def source_line(loc: str, files: set[int]) -> int:
    """The line of one of `files` that a `.loc` names, or that what it names was inlined at; 0 where neither is."""
    found = _LOC.match(loc)
    if found is None:
        return 0
    own, line, outer, at = (int(part or 0) for part in found.groups())
    return line if own in files else at if outer in files else 0


def hot_lines(ptx: str, file: str, most: int = 4) -> tuple[HotLine, ...]:
    """The lines of the source `file` with the most instructions, one in a loop counted `TURNS` times for each loop
    around it. ptx: with `.loc`, as `--generate-line-info` makes it; a loop is what a branch back spans."""
    files, line = files_named(ptx, file), 0
    found: list[int] = []
    labels: dict[str, int] = {}
    loops: dict[str, tuple[int, int]] = {}
    for text in ptx.splitlines():
        if (label := _LABEL.match(text)) is not None:
            labels[label.group(1)] = len(found)
        elif text.lstrip().startswith(".loc"):
            line = source_line(text.strip(), files) or line
        elif _INSTRUCTION.search(text) is not None:
            found.append(line)
            back = _BRANCH.search(text)
            if back is not None and back.group(1) in labels:
                loops[back.group(1)] = (labels[back.group(1)], len(found))
    depths = [0] * len(found)
    for first, end in loops.values():
        for at in range(first, end):
            depths[at] += 1
    counts, deepest, weights = Counter[int](), dict[int, int](), Counter[int]()
    for at, depth in zip(found, depths, strict=True):
        counts[at] += 1
        deepest[at] = max(depth, deepest.get(at, 0))
        weights[at] += TURNS**depth
    weights.pop(0, None)
    return tuple(HotLine(at, counts[at], deepest[at]) for at, _ in weights.most_common(most))


def instruction_mix(ptx: str) -> dict[str, int]:
    """Number of instructions of each sort in the whole text, the most frequent first. Accesses to memory carry their
    width, as in "ld.global 16 B"; loads of parameters and declarations are left out."""
    counts = Counter(sort for match in _INSTRUCTION.finditer(ptx) if (sort := _sort(match.group(1))) is not None)
    return dict(counts.most_common())


def _sort(opcode: str) -> str | None:
    parts = [part for part in re.split(r"[.:]+", opcode) if part]
    name = parts[0]
    if name in ("ld", "ldu", "st", "atom", "red"):
        space = next((part for part in parts if part in _SPACES), None)
        if space is None:
            return None if "param" in parts else f"{name} generic {_bytes(parts)} B"
        return f"{'ld' if name == 'ldu' else name}.{space} {_bytes(parts)} B"
    if name == "cp" and "async" in parts:
        return "cp.async"
    if name in ("bar", "barrier", "shfl", "vote", "match", "redux", "membar", "fence", "bra", "call", "cvt"):
        return {"barrier": "bar", "membar": "fence", "bra": "branch"}.get(name, name)
    if name in ("mma", "wmma", "ldmatrix", "wgmma"):
        return "tensor core"
    kind = _kind(parts)
    if name in _SPECIAL_UNIT:
        return f"special function or division, {kind}"
    if name in _ARITHMETIC:
        return f"fma, {kind}" if name == "fma" else f"arithmetic, {kind}"
    if name in _LOGIC:
        return "bits and shifts"
    if name in ("setp", "set", "selp", "slct"):
        return "compare or select"
    return None


def _bytes(parts: list[str]) -> int:
    vector = next((int(part[1:]) for part in parts if re.fullmatch(r"v[248]", part)), 1)
    for part in reversed(parts):
        if (match := _TYPE.match(part)) is not None:
            bits = int(match.group(1) or 16)
            return vector * bits // 8 * (2 if match.group(2) or match.group(4) else 1)
    return vector


def _kind(parts: list[str]) -> str:
    last = parts[-1]
    if last.startswith(("f16", "bf16")):
        return "16-bit float"
    if last in ("f32", "f64"):
        return "float" if last == "f32" else "double"
    return "integer"
