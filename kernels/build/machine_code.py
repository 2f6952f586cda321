"""Facts of a kernel from its PTX and cubin: instructions, basic blocks, and state that outlasts a launch.

Owns reading the texts and files of CUDA's compilers, without a CUDA toolkit. Uses: a static picture for prompts
(counts of instructions by kind and by source line), marks by which a check sees which blocks ran, the variables in
global memory by which one launch could tell another something, and copies that outlast a block.

PTX is the text that the compiler's front end hands to ptxas, which still unrolls, vectorises little and removes much;
counts say how wide memory accesses are and what the kernel consists of, not how often an instruction runs. Names are as
in the PTX ISA (NVIDIA, "Parallel Thread Execution ISA", sections 9.7.1 to 9.7.13; `.file` and `.loc` in 11.5).
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import PurePosixPath
from typing import TypeVar

from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.outcome import Rejected

_INSTRUCTION = re.compile(
    r"(?:^|[{;])[ \t]*(?:@!?%\w+[ \t]+)?([a-z][a-z0-9]*(?:[.:]+[A-Za-z0-9_]+)*)[ \t]+[^\n;]*(?=;)", re.MULTILINE
)
_TYPE = re.compile(r"^[bsuf](?:f)?(8|16|32|64|128)(x2)?$|^(bf16)(x2)?$")
_SORTS = {
    "bar barrier": "bar",
    "membar fence": "fence",
    "bra": "branch",
    "mma wmma ldmatrix wgmma": "tensor core",
    "fma": "fma, {kind}",
    "add sub mul mad neg abs min max mul24 mad24": "arithmetic, {kind}",
    "ex2 lg2 sin cos tanh rcp rsqrt sqrt div": "special function or division, {kind}",
    "and or xor not shl shr shf lop3 prmt bfe bfi popc clz": "bits and shifts",
    "setp set selp slct": "compare or select",
    **{name: name for name in ("shfl", "vote", "match", "redux", "call", "cvt")},
}
_SORT_OF = {name: sort for names, sort in _SORTS.items() for name in names.split()}
_SPACES = ("global", "shared", "local", "const")
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"((?:[^"\\]|\\.)*)"', re.MULTILINE)
_LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)\s+\d+(?:[^\n]*?\binlined_at\s+(\d+)\s+(\d+)\s+\d+)?[^\n]*")
_LABEL = re.compile(r"\s*([A-Za-z_$%][\w$]*)\s*:(?!:)")
_BRANCH = re.compile(r"\bbra(?:\.uni)?\s+([A-Za-z_$%][\w$]*)\s*;")
Node = TypeVar("Node")
ASSUMED_TRIP_COUNT = 10
"""Iterations of a loop where lines are ranked: the real number is not known here."""
MAX_HOT_LINES = 4


@dataclass(frozen=True, slots=True)
class Profile:
    """sorts: number of instructions of each sort, the most frequent first; lines: the source lines that most
    instructions come from, in falling order, each with their number and the depth of their innermost loop."""

    sorts: dict[str, int] = field(default_factory=dict)
    lines: tuple[tuple[int, int, int], ...] = ()


def files_named(ptx: str, name: str) -> set[int]:
    """The numbers under which `.loc` speaks of the file `name`, as `#line` gives it."""
    return {int(number) for number, path in _FILE.findall(ptx) if PurePosixPath(path).name == name}


def source_line(loc: str, files: set[int]) -> int:
    """The line of one of `files` that a `.loc` names or at which the named code was inlined; 0 where neither is."""
    found = _LOC.match(loc)
    if found is None:
        return 0
    own, line, outer, at = (int(part or 0) for part in found.groups())
    return line if own in files else at if outer in files else 0


def hot_lines(ptx: str, file: str) -> tuple[tuple[int, int, int], ...]:
    """The `lines` of a `Profile`: of the source `file` those with the most instructions, each counted
    `ASSUMED_TRIP_COUNT` times for every loop around it. ptx: with `.loc`, as `--generate-line-info` makes it; a loop is
    what a branch back spans."""
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
    by_line: dict[int, list[int]] = {}
    for at, depth in zip(found, depths, strict=True):
        by_line.setdefault(at, []).append(depth)
    ranked = sorted(filter(None, by_line), key=lambda at: -sum(ASSUMED_TRIP_COUNT**depth for depth in by_line[at]))
    return tuple((at, len(by_line[at]), max(by_line[at])) for at in ranked[:MAX_HOT_LINES])


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
    if name == "cp":
        return "cp.async" if "async" in parts else None
    sort = _SORT_OF.get(name)
    return None if sort is None else sort.format(kind=_kind(parts[-1]))


def _bytes(parts: list[str]) -> int:
    vector = next((int(part[1:]) for part in parts if re.fullmatch(r"v[248]", part)), 1)
    for part in reversed(parts):
        if (match := _TYPE.match(part)) is not None:
            bits = int(match.group(1) or 16)
            return vector * bits // 8 * (2 if match.group(2) or match.group(4) else 1)
    return vector


def _kind(last: str) -> str:
    if last.startswith(("f16", "bf16")):
        return "16-bit float"
    return {"f32": "float", "f64": "double"}.get(last, "integer")


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
_BODY = re.compile(r"\.(?:entry|func)\b\s*(?:\([^)]*\)\s*)?([A-Za-z_$%][\w$]*)?")
_WORD = re.compile(r"[A-Za-z_$%][\w$]*")
_TABLE = re.compile(r"\.(?:global|const)\b[^;={}]*?([A-Za-z_$%][\w$]*)\s*(?:\[\d*\]\s*)*=\s*([^;]*);")
_LEAVES = re.compile(r"(?P<guard>@!?%?[\w$]+\s+)?(?P<word>bra|brx|ret|exit|trap)\b")


FIRST_WITH_SLEEP = 70
"""The first architecture that has `nanosleep`."""
# The predicates differ between warps only, and nothing branches: threads that were together stay so.
_SLEEP = """{{ .reg .pred tunesmith_p; .reg .u32 tunesmith_r, tunesmith_s;
{drawn}mul.lo.u32 tunesmith_r, tunesmith_r, 0x9E3779B1;
setp.lt.u32 tunesmith_p, tunesmith_r, {bound};
shr.u32 tunesmith_r, tunesmith_r, {shift};
@tunesmith_p nanosleep.u32 tunesmith_r; }}
"""
_SLEEP_OF_WARP = _SLEEP.format(drawn="mov.u32 tunesmith_r, %clock;\n", bound=1 << 24, shift=8)
"""One time in 256, for up to 65 us."""
_SLEEP_OF_BLOCK = _SLEEP.format(
    drawn="""mov.u32 tunesmith_r, %gridid;
mov.u32 tunesmith_s, %ctaid.y;
mad.lo.u32 tunesmith_r, tunesmith_r, 0x85EBCA6B, tunesmith_s;
mov.u32 tunesmith_s, %ctaid.z;
mad.lo.u32 tunesmith_r, tunesmith_r, 0xC2B2AE35, tunesmith_s;
mov.u32 tunesmith_s, %ctaid.x;
mad.lo.u32 tunesmith_r, tunesmith_r, 0x27D4EB2F, tunesmith_s;
""",
    bound=1 << 29,
    shift=11,
)
"""All warps of one block of the grid in 8, for up to 262 us, others of them in each launch."""


@dataclass(frozen=True, slots=True)
class MarkedArtifact:
    """Machine code whose basic blocks leave marks. blocks: of each the lines of the source that its instructions come
    from, sorted, or where they are known no better, the line in front of it."""

    artifact: Artifact
    blocks: tuple[tuple[int, ...], ...]


def mark_blocks(ptx: str, file: str, entry: str) -> tuple[str, tuple[tuple[int, ...], ...]]:
    """`ptx` in which the first instruction of each basic block that `entry` can reach is preceded by a store of 1 into
    its word of `MARKS`, and the lines of these blocks in the order of their words. Warps sleep at some of the
    marks, and some blocks of the grid before they begin, so that a launch has another order than the usual one.

    file: the name of the source, as `#line` gives it; lines of other files count where they were inlined into it.
    entry: the kernel's name; other kernels, and functions that only these call, leave no marks. Raises `ValueError` for
    other text than PTX.
    """
    text = _COMMENT.sub("", ptx)
    files, bodies = files_named(text, file), list(_bodies(text))
    reached = _reached(text, bodies, entry)
    found, made, position = list[set[int]](), list[str](), 0
    target = re.search(r"^\s*\.target\s+sm_(\d+)", text, re.MULTILINE)
    sleeps = target is not None and int(target[1]) >= FIRST_WITH_SLEEP
    for function, start, end in bodies:
        body, first = text[start:end], _SLEEP_OF_BLOCK if function == entry else _SLEEP_OF_WARP
        sleep = (first, _SLEEP_OF_WARP) if sleeps else ("", "")
        made += [text[position:start], *(_marked(body, files, found, sleep) if function in reached else [body])]
        position = end
    if not found:
        raise ValueError("the PTX has no function with a body")
    whole = "".join([*made, text[position:]])
    head = re.search(r"^\s*\.address_size\s+64[^\n]*\n", whole, re.MULTILINE)
    if head is None:
        raise ValueError("the PTX does not say `.address_size 64`")
    declared = f".visible .global .align 4 .u32 {MARKS}[{len(found)}];\n"
    return whole[: head.end()] + declared + whole[head.end() :], tuple(tuple(sorted(lines)) for lines in found)


def _reached(text: str, bodies: Sequence[tuple[str, int, int]], entry: str) -> set[str]:
    """The functions that `entry` names in its body, or in the initial value of a variable that it names there, as calls
    through pointers need, and the functions that these name in turn."""
    outside = text
    for _, start, end in reversed(bodies):
        outside = outside[:start] + outside[end:]
    named = {table: set(_WORD.findall(value)) for table, value in _TABLE.findall(outside)}
    named |= {function: set(_WORD.findall(text[start:end])) for function, start, end in bodies}
    return _closure(lambda name: named.get(name, ()), [entry])


def _closure(following: Callable[[Node], Iterable[Node]], starts: Iterable[Node]) -> set[Node]:
    """All that can be reached from `starts`, these included."""
    found, waiting = set[Node](), list(starts)
    while waiting:
        if (node := waiting.pop()) not in found:
            found.add(node)
            waiting += following(node)
    return found


def _bodies(text: str) -> Iterator[tuple[str, int, int]]:
    """Each function's name, and where its body begins, behind its brace, and ends, in front of the other."""
    position = 0
    while (brace := text.find("{", position)) >= 0:
        end = _closing(text, brace)
        # What stands in front of the brace, from the last statement or body on.
        before = text[max(position, text.rfind(";", position, brace) + 1) : brace]
        if (named := _BODY.search(before)) is not None:
            yield named[1] or "", brace + 1, end
        position = end + 1


def _closing(text: str, brace: int) -> int:
    depth = 0
    for match in re.compile(r'"(?:[^"\\]|\\.)*"|[{}]').finditer(text, brace):
        depth += {"{": 1, "}": -1}.get(match.group(), 0)
        if depth == 0:
            return match.start()
    raise ValueError("a brace is not closed")


def _tokens(body: str) -> Iterator[re.Match[str]]:
    position = 0
    while position < len(body):
        token = _TOKEN.match(body, position)
        if token is None:
            raise ValueError(f"not a statement: {body[position : position + 40].strip()!r}")
        position = token.end()
        yield token


def _marked(body: str, files: set[int], blocks: list[set[int]], sleep: tuple[str, str]) -> Iterator[str]:
    """The pieces of `body` with marks; adds its blocks to `blocks`. files: the numbers of the source in `.loc`. sleep:
    instructions beside the first mark, if no jump can lead back to it, and beside others."""
    sleeping, later = sleep
    line, begins, reachable, placed = 0, True, True, True
    for token in _tokens(body):
        kind, text = token.lastgroup, token.group()
        if kind == "loc":
            line, placed = source_line(text, files) or line, False
        elif kind == "label":
            if not body[token.end() :].lstrip().startswith((".branchtargets", ".calltargets", ".callprototype")):
                begins = reachable = True
                sleeping = later
        elif kind == "statement" and not text.startswith("."):
            if begins and reachable:
                yield f"st.global.u32 [{MARKS}+{4 * len(blocks)}], 1;\n{sleeping}"
                sleeping = later
                blocks.append({line} - {0})
                begins = False
            elif reachable and not placed:
                blocks[-1].update({line} - {0})
            placed = True
            if leaves := _LEAVES.match(text):
                # Behind what always leaves, only a label can be reached.
                begins, reachable = True, leaves["guard"] is not None
        yield text


_STORE = re.compile(r"\bcp\.(?:reduce\.)?async\.bulk\.\S*global\.shared")
_COMMIT, _WAIT = "cp.async.bulk.commit_group", "cp.async.bulk.wait_group"


def outlasting_store(ptx: str, entry: str) -> bool:
    """Whether a block of `entry` may end while a bulk copy out of its shared memory is under way, which then reads what
    another block has there: from the copy a way leads to the end, and none to the wait for a group that was committed
    behind it (PTX ISA, "cp.async.bulk.wait_group").

    Errs towards False: a wait that only some threads reach counts, as the copying threads may reach it; and whoever
    goes back to the start of a loop may not come by this end. Text that cannot be read cannot be marked either, which a
    verdict says.
    """
    if _STORE.search(ptx) is None:
        return False
    text = _COMMENT.sub("", ptx)
    try:
        bodies = list(_bodies(text))
        body_of = {name: text[start:end] for name, start, end in bodies}
        statements, following = _flow(body_of.get(entry, ""))
    except ValueError:
        return False
    for number, one in enumerate(statements):
        # A call does all that its function does.
        called = {name for word in _WORD.findall(one) if word in body_of for name in _reached(text, bodies, word)}
        statements[number] += "".join(body_of.get(name, "") for name in called)
    forward = _without_loops(following).__getitem__
    for number, one in enumerate(statements):
        if _STORE.search(one) is None or _WAIT in one:
            continue
        behind = _closure(forward, [number])
        committed = _closure(forward, [at for at in behind if _COMMIT in statements[at]])
        if len(statements) - 1 in behind and not any(_WAIT in statements[at] for at in committed):
            return True
    return False


def _flow(body: str) -> tuple[list[str], list[list[int]]]:
    """The statements of a function's body, the last one empty for its end, and for each the numbers of the next ones.
    Labels hold inside of the braces around them, as assembly that was inlined twice has its own."""
    statements, places, scopes = list[str](), list[tuple[int, ...]](), [0]
    labels, tables, label = dict[tuple[int, str], int](), dict[str, list[str]](), ""
    for token in _tokens(body):
        text = token.group()
        match token.lastgroup:
            case "brace":
                scopes = [*scopes, token.start()] if text == "{" else scopes[:-1]
            case "label":
                label = text[:-1].strip()
                labels[scopes[-1], label] = len(statements)
            case "statement" if text.startswith(".branchtargets"):
                tables[label] = _WORD.findall(text)
            case "statement" if not text.startswith("."):
                statements.append(text)
                places.append(tuple(scopes))
    following, end = [], len(statements)
    for number, (text, place) in enumerate(zip(statements, places, strict=True)):
        leaves = _LEAVES.match(text)
        words = [name for word in _WORD.findall(text) for name in tables.get(word, [word])] if leaves else []
        found = [next((labels[one, word] for one in reversed(place) if (one, word) in labels), None) for word in words]
        after = [number + 1] if leaves is None or leaves["guard"] else []
        after += [end] if leaves and leaves["word"] in ("ret", "exit") else []
        following.append(after + [at for at in found if at is not None])
    return [*statements, ""], [*following, []]


def _without_loops(following: Sequence[Sequence[int]]) -> list[list[int]]:
    """`following` without the steps that lead back to where a way from the first statement already is."""
    forward, way, on_way, seen = [list[int]() for _ in following], [(0, iter(following[0]))], {0}, {0}
    while way:
        number, left = way[-1]
        if (after := next(left, None)) is None:
            way.pop()
            on_way.discard(number)
        elif after not in on_way:
            forward[number].append(after)
            if after not in seen:
                seen.add(after)
                on_way.add(after)
                way.append((after, iter(following[after])))
    return forward


_UNFOLLOWED = {
    "named barriers": re.compile(r"\bbar(?:rier)?(?:\.cta)?\.(?:sync|arrive)\S*\s+(?!\s|0\s*[,;])"),
    "mbarriers": re.compile(r"\bmbarrier\.\w"),
    "bulk copies": re.compile(r"\bcp\.(?:reduce\.)?async\.bulk\."),
}


def unfollowed(ptx: str) -> tuple[str, ...]:
    """The means by which threads of `ptx` wait for each other that racecheck does not follow, so that it takes accesses
    for races that are none."""
    return tuple(name for name, pattern in _UNFOLLOWED.items() if pattern.search(ptx))


GLOBAL_SECTIONS = (".nv.global", ".nv.global.init")
HEAP = frozenset({"malloc", "free"})
"""Device functions whose memory outlasts a launch; the linker leaves them as undefined symbols."""
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMBOL_TABLE = 2
"""The type of a section that lists symbols."""
_SECTION_SYMBOL = 3
"""The type of a symbol that stands for a section."""
_DECLARED = re.compile(r"\.global\b[^;={}]*?([A-Za-z_$%][A-Za-z0-9_$]*)\s*(?=[\[=;])")
"""A variable in global memory; a pattern has a `<` behind its name."""
_SPECIAL_REGISTER = re.compile(
    r"%(?:globaltimer(?:_lo|_hi)?|clock(?:_hi|64)?|gridid|n?smid|n?warpid|pm\d+(?:_64)?|envreg\d+|current_graph_exec)\b"
)


def read_elf(code: bytes) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """The bytes of each section of a little-endian 64-bit ELF file by name, also where they are only reserved, and the
    symbols, each with the section that it lies in, "" where that is undefined or special; without the symbols that
    stand for sections. Raises `ValueError` for other bytes."""
    try:
        header = _HEADER.unpack_from(code)
        table, (size, count, names_at) = header[6], header[11:]
        if header[0][:6] != b"\x7fELF\x02\x01":
            raise ValueError("the ELF header is missing")
        rows = [_SECTION.unpack_from(code, table + index * size) for index in range(count)]
        names = [_text(code, rows[names_at][4] + row[0]) for row in rows]
        sizes, symbols = Counter[str](), []
        for holder, (_, kind, _, _, start, length, link, *_) in zip(names, rows, strict=True):
            sizes[holder] += length
            for at in range(start, start + length, _SYMBOL.size) if kind == _SYMBOL_TABLE else ():
                name, info, _, index, _, _ = _SYMBOL.unpack_from(code, at)
                text = _text(code, rows[link][4] + name)
                if info & 0xF != _SECTION_SYMBOL:
                    symbols.append((text, names[index] if 0 < index < count else ""))
    except (struct.error, IndexError, OverflowError) as error:
        raise ValueError(f"these bytes cannot be read as a cubin: {error}") from error
    return sizes, symbols


def global_variables(code: bytes) -> tuple[str, ...]:
    """Names of the variables of a cubin that kernels can write and find again in a later launch, sorted.

    A table declared `__device__ const`, a `static constexpr` array with addresses and the text of a printf are among
    them: the file does not tell them from variables, and a cast makes them such. Raises `ValueError` as `read_elf`.
    """
    sizes, symbols = read_elf(code)
    found = {name for name, section in symbols if section in GLOBAL_SECTIONS or (not section and name in HEAP)}
    # A section with bytes and no names would be a way to hide a variable.
    if not found and any(sizes.get(section) for section in GLOBAL_SECTIONS):
        found.add("(unnamed)")
    return tuple(sorted(found))


@lru_cache(maxsize=64)
def constant_variables(code: bytes) -> tuple[str, ...]:
    """Names of the variables of a cubin in constant memory. Raises `ValueError` as `read_elf`."""
    return tuple(name for name, section in read_elf(code)[1] if section == ".nv.constant3")


def _text(code: bytes, at: int) -> str:
    return code[at : code.index(b"\0", at)].decode(errors="replace")


COMPILER_TABLES = frozenset(("__cudart_i2opi_d", "__cudart_i2opi_f", "__cudart_sin_cos_coeffs"))
"""Constants of CUDA's own sine and cosine, which its compiler declares as variables."""


def used_variables(variables: tuple[str, ...], ptx: str, source: str) -> tuple[str, ...]:
    """The `variables` that the code uses. `ptx`: the assembly the cubin was made from, of `source`. The compiler's
    tables do not count, unless the source might name them itself, also by pasting tokens.

    The compiler keeps constants that it has folded into the code. Such a name stands once in the assembly, where it is
    declared. A name that is missing there was renamed, and counts as used, and so does a name whose declaration is not
    found: PTX can declare a row of names by a pattern (PTX ISA, "Parameterized Variable Names").
    """
    counts = Counter(_WORD.findall(ptx))
    declared = set(_DECLARED.findall(ptx))
    tables = frozenset() if re.search(r"__cudart|##|%:%:", source) else COMPILER_TABLES
    return tuple(name for name in variables if name not in tables and (counts[name] != 1 or name not in declared))


def refuse_assembly(ptx: str, entry: str) -> Rejected | None:
    """The first rule that a compiled kernel breaks, or None. Printing: what device printf becomes (CUDA C++ Programming
    Guide, "Formatted Output")."""
    if re.search(r"\bcall\b[^;]*\bvprintf\b", ptx) is not None:
        why = "the kernel prints, into the output of whatever program launches it: take the printf out."
        return Rejected("forbidden_source", "output", why)
    if outlasting_store(ptx, entry):
        why = (
            "a block can end while a bulk copy out of its shared memory is under way: let the thread that copies end "
            "with cp.async.bulk.commit_group and cp.async.bulk.wait_group.read 0."
        )
        return Rejected("outlasting_store", "bulk copies", why)
    return None


def special_registers(ptx: str) -> tuple[str, ...]:
    """The registers that `ptx` reads by which a kernel can tell one launch from another: clocks, timers, numbers of
    grids and multiprocessors (PTX ISA, "Special Registers")."""
    return tuple(sorted(set(_SPECIAL_REGISTER.findall(ptx))))
