"""The interface of a kernel: its parameters, their roles and shapes, its sizes and launch, found by running it.

Owns the choice of sizes to run with and what is concluded from the runs. An array is `out` where each element of its
shape is written for certain on all sets of sizes, and read by nobody before; a shape holds where no index leaves it on
any set.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tunesmith.kernels.reader.launch import HostLaunch, launches, trimmed
from tunesmith.kernels.reader.parse import Entry, Unit, kind, split, uncommented, walk
from tunesmith.kernels.reader.run import FEW_TURNS, MAX_TURNS, Array, Run
from tunesmith.kernels.reader.shapes import fit, values
from tunesmith.kernels.reader.syntax import Kind, Lowering, kind_of
from tunesmith.kernels.spec.dtypes import C_TYPES, DTYPES
from tunesmith.kernels.spec.expression import ExpressionError, parse

_PRIMES = (7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43)
_TINY = (5, 11, 19, 29, 3, 13, 17, 23, 9, 15, 27)
_SMALL, _LEAST = (2, 3, 5, 7, 4, 6, 8, 9, 10, 11, 12), (3, 5, 7, 4, 6, 8, 9, 10, 11, 12, 13)
_MANY = (67, 71, 73)
"""Values of sizes, the smallest first; and of constant grids, which are more than any."""
SETS = 3
"""Sets of sizes that a kernel is run with; then each size is made `LARGE` once, as it may be divided."""
LARGE = 520
MAX_THREADS = 1 << 17
BUDGET = 600_000_000
"""Work of the runs that look for a launch, and again of the runs after it, as `Run.work` counts it."""
BLOCKS: dict[int, tuple[tuple[int, ...], ...]] = {
    0: ((1,),),
    1: ((256,), (128,), (64,), (32,), (512,), (1024,)),
    2: ((32, 8), (16, 16), (8, 8), (32, 32), (32, 4), (32, 16)),
    3: ((32, 4, 2), (8, 8, 8), (8, 8, 4), (4, 4, 4)),
}
"""Blocks to try where the source does not say one, by the number of axes, the usual one first."""
TRIED_BLOCKS = {1: (40, 160), 2: (8,), 3: (6,)}
"""Blocks along each axis of a grid that is not known, by the number of axes."""
MAX_CHEAP = 400
"""Steps of a kernel that is run on a larger grid as well."""
MAX_DIM3 = 3
"""Names and brackets around the extents of a block."""
MANY_BLOCKS = 32
"""A constant extent of a grid, above which fewer blocks are run."""
MAX_READ = 10_000
"""Files of a project in which a launch is looked for."""
_SOURCES = (".cu", ".cuh", ".cpp", ".cc", ".cxx", ".c", ".h", ".hh", ".hpp", ".inl", ".inc")
NO_RUNS = 99
"""Arrays without a shape, more than any, where no runs came to their end."""
Role = Literal["in", "out", "inout"]
Shapes = dict[str, tuple[str, ...] | None]
Sets = list[dict[str, int]]
Found = tuple[list[Run], Shapes]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the kernel. dtype: of the task, empty where there is none; default: the text of its default value;
    cursor: clang's; lanes: numbers in what a pointer points to, which are several of a vector or a structure."""

    name: str
    kind: Kind
    dtype: str
    default: str
    cursor: Any
    lanes: int = 1

    @property
    def pointer(self) -> bool:
        return self.kind.what in ("pointer", "array")

    @property
    def local(self) -> bool:
        """Whether it is memory of a work-group, which OpenCL passes as an argument."""
        return self.pointer and self.kind.element is not None and "__local" in self.kind.element.spelling

    @property
    def whole(self) -> bool:
        """Whether it is a whole number that may count something."""
        return self.kind.what == "number" and self.kind.size >= 4


@dataclass(slots=True)
class Facts:
    """parameters: of the kernel; sizes: names; grid, block: expressions; shapes, roles: by array; questions: by
    "launch", or the name of a parameter, what is not known of it; requires: what must hold of sizes; shared: bytes of
    dynamic shared memory; static: bytes that the source declares; local: by local parameter its elements where they are
    constant, or nothing where the launch gives its bytes; unknown: what of the launch is not even guessed; types: of
    the task, with the data types that the source launches it with; values: of scalars that follow from sizes, or that
    are never read."""

    parameters: list[Parameter]
    sizes: list[str] = field(default_factory=list)
    grid: tuple[str, ...] = ("1",)
    block: tuple[str, ...] = ("1",)
    shapes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    roles: dict[str, Role] = field(default_factory=dict)
    questions: dict[str, list[str]] = field(default_factory=dict)
    requires: list[str] = field(default_factory=list)
    shared: str = "0"
    static: str = "0"
    local: dict[str, str] = field(default_factory=dict)
    unknown: str = ""
    types: dict[str, tuple[str, ...]] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)

    def ask(self, what: str, question: str) -> None:
        self.questions.setdefault(what, []).append(question)

    def extents(self, array: Parameter) -> tuple[str, ...]:
        """The shape that the sizes behind a pointer say, as they stand for an accessor; empty where there are none."""
        names = {one.name for one in self.parameters if one.whole}
        found = [name for at in range(1, 10) if (name := f"{array.name}_size{at}") in names]
        first = f"{array.name}_size0"
        return (first if first in names else "1", *found) if array.pointer and found else ()


_QUALIFIER = re.compile(
    r"\b(?:const|volatile|restrict|struct|__restrict(?:__)?|__global|__local|__constant|__private)\b|[*&]"
)


def bare(spelling: str) -> str:
    """A type without its qualifiers."""
    return _QUALIFIER.sub("", spelling).strip()


def parameters_of(unit: Unit, entry: Entry) -> list[Parameter]:
    found = []
    generic = [one for one in entry.declared.get_children() if kind(one) == "PARM_DECL"]
    for one, written in zip(entry.function.get_arguments(), generic, strict=True):
        made, type_ = kind_of(one.type), one.type.get_canonical()
        dtype, lanes = task_type(type_), 1
        if made.what in ("pointer", "array"):
            inner = type_.get_pointee() if made.what == "pointer" else type_.element_type
            dtype, lanes = _elements(cast_to(entry.function, one) if inner.kind.name == "VOID" else inner)
        named = bare(written.type.spelling)
        if named in entry.types and entry.types[named] is None:
            dtype, lanes = named, 1
        default = unit.written(written).partition("=")[2].strip()
        found.append(Parameter(one.spelling, made, dtype, default, one, lanes))
    return found


def task_type(type_: Any) -> str:
    """The data type of a number, of an enumeration too; empty for others."""
    type_ = type_.get_canonical()
    if type_.kind.name == "ENUM":
        type_ = type_.get_declaration().enum_type
    return C_TYPES.get(bare(type_.spelling), "")


def _elements(type_: Any) -> tuple[str, int]:
    """The data type of all numbers in a type, and for how many it has room: a vector of 3 in OpenCL C for 4 (OpenCL C
    1.2, section 6.1.5). Empty where there are several."""
    if type_ is None or (dtype := task_type(type_)):
        return ("" if type_ is None else dtype), 1
    type_ = type_.get_canonical()
    vector = type_.kind.name in ("VECTOR", "EXTVECTOR", "CONSTANTARRAY")
    parts = [type_.element_type] if vector else [one.type for one in type_.get_fields()]
    dtype, *others = {_elements(one)[0] for one in parts} or {""}
    return ("", 1) if others or not dtype else (dtype, type_.get_size() // DTYPES[dtype].size)


def _padded(type_: Any) -> bool:
    """Whether a vector or a structure has room between its numbers, or behind them."""
    type_ = type_.get_canonical()
    if type_.kind.name == "EXTVECTOR":
        return bool(type_.element_count == 3)
    parts = [one.type for one in type_.get_fields()] if type_.kind.name == "RECORD" else []
    return any(map(_padded, parts)) or 0 < sum(one.get_size() for one in parts) < type_.get_size()


def cast_to(function: Any, pointer: Any) -> Any | None:
    """The type of elements to which a kernel casts a pointer to void, a parameter or a member, or a pointer that it
    computes from it; None where there are several, or none but bytes."""
    found, names = dict[str, Any](), [pointer]
    for name in names:
        waiting: list[tuple[Any, Any, Any]] = [(function, None, None)]
        while waiting:
            cursor, into, variable = waiting.pop()
            type_ = cursor.type.get_canonical()
            if type_.kind.name != "POINTER" or kind(cursor) == "CALL_EXPR":
                into = variable = None
            elif kind(cursor) == "VAR_DECL":
                variable = cursor
            elif into is None and type_.get_pointee().kind.name != "VOID":
                written = cursor.type.get_pointee()
                into = type_.get_pointee() if written.kind.name == "INVALID" else written
            used = cursor.referenced if kind(cursor) in ("DECL_REF_EXPR", "MEMBER_REF_EXPR") else None
            if used is not None and (used == name or (kind(used) == "FIELD_DECL" and used.get_usr() == name.get_usr())):
                if into is not None:
                    found[bare(into.get_canonical().spelling)] = into
                names += [variable] if variable is not None and variable not in names else []
            waiting += [(one, into, variable) for one in cursor.get_children()]
    wider = [one for one in found.values() if one.get_size() != 1]
    return wider[0] if len(wider) == 1 else None


def read_facts(unit: Unit, entry: Entry, doubts: Sequence[str] = ()) -> Facts:
    """The known facts of a kernel, and the open questions. doubts: lines of the source that are not understood."""
    found = launches(unit, entry) if unit.language == "cuda" else []
    known = [one for one in found if None not in one.grid and None not in one.block]
    facts = Facts(parameters_of(unit, entry), values=dict(known[0].values) if known else {})
    search = _Search(unit, entry, facts)
    if known and search.take(known[0]):
        if len({(one.grid, one.block) for one in found}) > 1:
            facts.ask("launch", f"which launch you mean: {' and '.join(f'<<<{one.written}>>>' for one in found)}")
    else:
        search.guess(found)
    if entry.others:
        bound = ", ".join(f"{name} = {value}" for name, value in entry.particular.items())
        others = " and ".join(f"<{one}>" for one in entry.others)
        facts.ask("launch", f"whether {bound} is meant: the source launches {others} too")
    if entry.alike:
        others = f"--entry {entry.name}:LINE drafts that of line {' and '.join(entry.alike)}"
        facts.ask("source", f"whether the first {entry.name} is meant: {others}")
    for name, value in (guessed := unit.proposed | {**entry.guessed}).items():
        facts.ask("source", f"whether {name} = {value} in it is meant, of which the source says nothing")
    if guessed:
        facts.ask("source", "whether shapes and roles hold, which follow from that")
    for file in unit.ahead:
        facts.ask("source", f"whether the declarations that {file.name} has of what the source lacks are meant")
    search.conclude()
    given = _put(known[0].shared, search.in_block) if known and known[0].shared else "0"
    if not parse(given).names <= set(facts.sizes):
        facts.ask("launch", f"shared_bytes, which the source computes from {' and '.join(sorted(parse(given).names))}")
    elif given != "0":
        facts.shared = given
    elif search.dynamic:
        facts.ask("launch", "shared_bytes, the bytes of dynamic shared memory")
    for name, text in known[0].sizes.items() if known and not search.guessed else ():
        if re.search("[-+*/%(]", text) and name in facts.sizes:
            facts.ask("launch", f"whether {name} is a size of its own, which the source computes as `{text}`")
    for one in facts.parameters if doubts else ():
        if one.pointer and not one.local:
            facts.ask(one.name, f"the role and the shape of {one.name}, as the reader does not understand {doubts[0]}")
    return facts


class _Search:
    """Runs a kernel and fills in `facts`."""

    def __init__(self, unit: Unit, entry: Entry, facts: Facts) -> None:
        self.unit, self.entry, self.facts = unit, entry, facts
        self.lowering = Lowering(unit)
        self.kernel = self.lowering.symbol(entry.function)
        self.whole = [one.name for one in facts.parameters if one.whole and one.name and one.name not in facts.values]
        typed = [one for one in facts.parameters if one.dtype in DTYPES and not one.local]
        self.cells = {one.name: (DTYPES[one.dtype].size, one.lanes) for one in typed}
        self.extra: list[str] = []
        self.fixed, self.in_block, self.divisors = dict[str, str](), dict[str, str](), dict[str, int]()
        self.left, self.turns = BUDGET, MAX_TURNS
        self.sets = self._sets(_PRIMES)
        self.used: Sets = []
        self.guessed = self.counted = self.doubted = self.dynamic = False
        self.named = {one.spelling for one in walk(entry.function) if kind(one) == "DECL_REF_EXPR"}
        if len(self.whole) > len(_PRIMES):
            # Sizes that have the same values cannot be told apart: those remain that steer the kernel or its indices.
            run = self._run(self.sets[0], (2, 2, 2), (4, 2, 2))
            used = run.steering.union(*(names for one in run.arrays.values() for names in one.strides))
            self.whole = [one for one in self.whole if one in used]

    def _sets(self, primes: tuple[int, ...], unit: int = 1) -> Sets:
        """Values of the sizes, different ones for each, in changing order."""
        names = [*self.whole, *self.extra]
        primes = primes[: 5 if len(names) < 5 else 8 if len(names) < 8 else 11]
        return [
            {name: primes[(3 * at + 2 * turn) % len(primes)] * unit for at, name in enumerate(names)}
            | {name: _MANY[(turn + at) % 3] for at, name in enumerate(self.fixed)}
            for turn in range(SETS)
        ]

    def _run(self, arguments: Mapping[str, int], grid: Sequence[int], block: Sequence[int]) -> Run:
        known = {name: text for name, text in self.facts.values.items() if parse(text).names <= arguments.keys()}
        arguments = {**arguments, **{name: values(text, [arguments])[0] for name, text in known.items()}}
        run = Run(self.lowering, self.kernel, arguments, grid, block, self.left, self.cells, self.turns)
        run.follow(self.lowering.body(self.kernel))
        self.left, self.divisors = self.left - run.work, self.divisors | run.divisors
        return run

    # The launch.

    def take(self, host: HostLaunch) -> bool:
        """Takes the launch that the source has, where it can be run."""
        facts = self.facts
        own = [text for text in host.block if text and not text.startswith("min(")]  # which is of elements
        in_block = [one for one in host.sizes if any(one in parse(text).names for text in own)]
        self.in_block = {one: "256" if len(host.block) == 1 else "16" for one in in_block}
        facts.grid = tuple(_put(one or "1", self.in_block) for one in host.grid)
        facts.block = tuple(_put(one or "1", self.in_block) for one in host.block)
        self.doubted = bool(in_block)
        if in_block:
            facts.ask("launch", f"the block, which the source launches with {' and '.join(in_block)}")
        self.extra = [one for one in host.sizes if one not in (*self.whole, *in_block)]
        many = [(axis, one) for axis, one in zip("xyz", facts.grid, strict=False) if one.isdigit()]
        self.fixed = {f"grid_{axis}": text for axis, text in many if int(text) > MANY_BLOCKS}
        facts.grid = tuple(next((name for name, of in self.fixed.items() if of == one), one) for one in facts.grid)
        self.sets = self._sets(_PRIMES)
        try:
            return 1 <= prod(values(one, self.sets[:1])[0] for one in facts.block) <= 1024
        except ExpressionError:
            return False

    def guess(self, found: Sequence[HostLaunch]) -> None:
        """A launch that covers what the guards of the kernel admit."""
        self.extra, self.fixed, self.guessed = [], {}, True
        self.sets = self._sets(_TINY)
        used = self._run(self.sets[0], (2, 2, 2), (4, 2, 2)).used
        threads, grid_axes = (sorted(axis for what, axis in used if what == of) for of in ("thread", "block"))
        self.sets = self._sets(_SMALL) if len(grid_axes) > 2 else self.sets
        given = [one.block for one in found if all(text and text.isdigit() for text in one.block)]
        fixed = _declared_block(self.unit, self.entry) or tuple(int(one or 1) for one in (given[0] if given else ()))
        where, written, stated = self._written_launch()
        where, written = ("the source", found[0].written) if found else (where, written)
        placed = [dict(zip(threads, one, strict=False)) for one in BLOCKS[len(threads)]]
        usual = [tuple(one.get(axis, 1) for axis in "xyz") for one in placed]
        if not 1 <= prod(fixed) <= 1024:
            fixed = ()
        possible = stated and len(stated) >= len(threads) and 1 <= prod(stated) <= 1024
        blocks = [fixed] if fixed else [*([stated] if possible else []), *usual]
        best: tuple[tuple[int, ...], list[Run], Sequence[int]] | None = None
        several = [self.sets, self._sets(_SMALL, 16)] if len(threads) > 1 else [self.sets]
        for block, sets in itertools.product(blocks, several):
            runs, grid = self._tried(block, grid_axes, sets)
            best = best or (block, runs, grid)
            # Where a guard leaves one block, which elements others have in common does not show.
            longer = self._sets(_TINY, 64)[:1] if len(threads) == 1 and len(blocks) > 1 else []
            if suits := self._suits(runs) and self._suits([self._run(one, grid, block) for one in longer]):
                best, self.sets = (block, runs, grid), sets
                break
        assert best is not None
        self._cover(*best, grid_axes)
        divisors = re.findall(r"ceil_div\([^()]*, (\w+)\)", " ".join(self.facts.grid))
        if (of_block := [one for one in divisors if one in self.whole]) and not suits:
            # Blocks of any other size have elements in common.
            self.whole.remove(of_block[0])
            self.facts.values[of_block[0]] = str(prod(best[0]))
            self.facts.ask(of_block[0], f"whether {of_block[0]} is the number of threads of a block")
            return self.guess(found)
        self.doubted = best[0] in usual and best[0] != stated
        self.facts.ask("launch", f"the launch, as {where} has {f'<<<{written}>>>' if written else 'none'}")

    def _written_launch(self) -> tuple[str, str, tuple[int, ...]]:
        """The first launch in the text of the source, also inside macros, or else of the project's other files, the
        nearest first: its file, its grid and block, empty without a launch, and the block's extents, empty unless they
        are numbers."""
        name, call = rf"\b{self.entry.name}\b", r"\w*[lL]aunchKernel\w*\s*\([^;,]*"
        launch = re.compile(rf"{name}[^;{{}}()]*<<<([^;]*?)>>>|{call}{name}\s*(?:<[^;()]*>)?[\s)]*,([^;]*)")
        others = [Path(one) for one in sorted(self.unit.files) if one.endswith(_SOURCES)]
        others.sort(key=self.unit.shared, reverse=True)
        read = ((one.name, one.read_text("utf-8", errors="replace")) for one in others[:MAX_READ])
        texts = itertools.chain([("the source", self.unit.code)], read)
        for file, text in texts:
            if self.entry.name in text and (one := launch.search(plain := uncommented(text))) is not None:
                parts = split((one[1] or one[2]).replace("\\\n", " "))
                written = ", ".join(parts if one[1] else parts[:2])
                block = _extents(parts[1], plain[: one.start()]) if len(parts) > 1 else []
                return file, written, _numbers([*self.unit.texts, text], block)
        return "the source", "", ()

    def _tried(self, block: tuple[int, ...], axes: Sequence[str], sets: Sets) -> tuple[list[Run], Sequence[int]]:
        grid, runs = [1, 1, 1], list[Run]()
        for tried in TRIED_BLOCKS[max(1, len(axes))]:
            grid = [tried if axis in axes else 1 for axis in "xyz"]
            runs = [self._run(one, grid, block) for one in sets]
            bounded = all(self._active(runs[0], "xyz".index(one), 1)[0] < tried for one in axes)
            if bounded or runs[0].steps > MAX_CHEAP:
                break
        if any(run.stopped for run in runs) and self.turns > FEW_TURNS:
            self.turns, self.left = FEW_TURNS, BUDGET
            return self._tried(block, axes, sets)
        return runs, grid

    @staticmethod
    def _suits(runs: Sequence[Run]) -> bool:
        """Whether shared memory holds what the block puts there, row by row, and no two threads write one element."""
        for run in runs:
            if run.stopped:
                return True
            if any(one.collides for one in run.arrays.values()):
                return False
            for symbol, array in run.shared.items():
                size, row = symbol.type.size, symbol.type.element
                reach, rows = array.reach * array.element, row is not None and row.what == "array" and run.block[1] > 1
                if size and row and reach and (reach > size or (rows and reach <= size - row.size)):
                    return False
        return True

    def _cover(self, block: tuple[int, ...], runs: Sequence[Run], grid: Sequence[int], axes: Sequence[str]) -> None:
        """A grid that covers the threads that write anything."""
        extents, block = ["1", "1", "1"], (*block, 1, 1)[:3]
        for axis in axes:
            at = "xyz".index(axis)
            unbounded = grid[at], grid[at] * block[at]
            found = [unbounded if run.stopped else self._active(run, at, block[at]) for run in runs]
            extents[at] = self._extent(found, grid[at], block[at], axis, axes)
        self.facts.grid, self.facts.block = trimmed(extents), trimmed([str(one) for one in block])
        self.sets = self._sets(_PRIMES)

    @staticmethod
    def _active(run: Run, at: int, block: int) -> tuple[int, int]:
        """The number of blocks, and of threads in all of them, along an axis, that write any array; in a loop over the
        grid, the guards that touch the array that the fewest guards touch."""
        found, least = [], ("grid", "xyz"[at]) in run.used
        arrays = [one for one in run.arrays.values() if np.any(one.threads)]
        for array in arrays if least else [one for one in arrays if one.written] or arrays:
            of_blocks = np.broadcast_to(run.in_grid[at], run.count)[array.threads]
            of_threads = np.broadcast_to(run.in_grid[at] * block + run.thread[at], run.count)[array.threads]
            found.append((int(of_blocks.max()) + 1, int(of_threads.max()) + 1))
        return (min if least else max)(found, default=(1, 1), key=lambda one: one[1])

    def _extent(self, found: list[tuple[int, int]], tried: int, block: int, axis: str, axes: Sequence[str]) -> str:
        blocks, threads = zip(*found, strict=True)
        if all(one < tried for one in blocks):
            dims = fit(threads, self.sets) if block > 1 else None
            whole = None if all(one == blocks[0] for one in blocks) else fit(blocks, self.sets)
            if whole is not None and (dims is None or len(product(whole)) < len(product(dims))):
                return product(whole)
            if dims is not None and not all(one.isdigit() for one in dims):
                return f"ceil_div({product(dims)}, {block})"
            self.facts.unknown = f"the number of blocks along {axis}"
        unused = [one for one in self.whole if one not in self.named]
        if len(unused) == 1 and axis == axes[-1]:
            return unused[0]
        name = "rows" if len(axes) == 1 else f"blocks_{axis}"
        while name in {one.name for one in self.facts.parameters}:
            name += "_"
        self.extra.append(name)
        return name

    # Shapes and roles.

    def _launched(self, sizes: Mapping[str, int], arguments: Mapping[str, int]) -> Run | None:
        try:
            grid, block = ([values(text, [sizes])[0] for text in dims] for dims in (self.facts.grid, self.facts.block))
        except ExpressionError:
            return None
        return self._run(arguments, grid, block) if 0 < prod(grid) * prod(block) <= MAX_THREADS else None

    def conclude(self) -> None:
        """Fills in sizes, shapes and roles."""
        facts, self.left, self.turns = self.facts, BUDGET, MAX_TURNS
        self._name_axes()
        self.left = BUDGET
        first, used = self._shaped(self.sets, large=True), self.used
        if not first[0] or (None in first[1].values() and any(one not in used for one in self.sets)):
            # The grid of a product of sizes has too many threads.
            least = self._shaped(self._sets(_LEAST))
            if _open(least) < _open(first):
                first, used = least, self.used
        self.sets = used or self.sets
        # Arrays of whole vectors or blocks: two sizes that are multiples of 16 make a product that is one of 256.
        extents = [int(one) for one in facts.block if one.isdigit()]
        whole = max([16, *(one for one in extents if one <= 32)]) if len(extents) > 1 else max(extents or [32])
        units = (whole, 16)[: 1 + any(len(parse(one).names) > 1 for one in facts.grid)]
        for unit in units if _open(first) else ():
            aligned, used = self._shaped(self._sets(_SMALL, unit)), self.used
            if _open(aligned) < _open(first):
                first, self.sets = aligned, used
                self._require(unit, *aligned)
            if aligned[0]:
                break
        if not first[0]:
            self.turns, self.left = FEW_TURNS, BUDGET
            first = self._shaped(self._sets(_LEAST))
            self.sets = self.used or self.sets
        runs, shapes = first
        reached = (*shapes.values(), facts.grid, facts.block, facts.values.values())
        needed = {name for dims in reached for one in dims or () for name in parse(one).names}
        steering = set[str]().union(*(run.steering for run in runs)) if runs else set(self.whole)
        steering = steering.union(*map(facts.extents, facts.parameters))
        # An offset is not a size, even if a guard compares with it.
        steering -= {one for one in steering if re.search("(?i)start|begin|offset|first", one)}
        facts.sizes = [one for one in (*self.whole, *self.extra) if one in needed or one in steering]
        facts.requires = [one for one in facts.requires if parse(one).names <= {*facts.sizes}]
        again, self.left = runs, BUDGET
        if not set(self.whole) <= set(facts.sizes):
            # Scalars that are not sizes may have any value.
            launched = [self._launched(one, {name: one[name] for name in facts.sizes}) for one in self.sets]
            again = [one for one in launched if one is not None]
        for one in facts.parameters:
            if one.pointer and not one.local:
                self._array(one, runs, shapes.get(one.name), again)
        self._memory(runs, again)
        self._unfix(again)
        self._require_neighbours()
        self._flatten()
        for at, extent in enumerate(facts.block if self.doubted and self.sets else ()):
            if extent != "1" and all(map(str.isdigit, facts.block)):
                self._ask_of_block(at)
        kernel, read = self.unit.written(self.entry.declared), {*self.named, *facts.sizes}
        for one in facts.parameters:
            if not one.pointer and one.name not in read and len(re.findall(rf"\b{one.name}\b", kernel)) == 1:
                facts.values.setdefault(one.name, scalar_value(one.default) or ("1" if one.whole else "1.0"))

    def _ask_of_block(self, at: int) -> None:
        """Asks about shapes that a block with another extent than was put for the author's would change."""
        facts, block = self.facts, int(self.facts.block[at])
        other = 2 * block if 2 * prod(map(int, facts.block)) <= 1024 else block // 2
        by_block = re.compile(rf"(, |// ){block}\b")
        divided = [one for dims in (facts.grid, *facts.shapes.values()) for one in dims if by_block.search(one)]
        several = sorted(set[str]().union(*(parse(one).names for one in divided)))[:1]
        sizes = {one: self.sets[0].get(one, 4 * block) for one in facts.sizes} | dict.fromkeys(several, 5 * block)
        grid, extents = [*facts.grid, "1", "1"], [*map(int, facts.block)]
        grid[at], extents[at] = by_block.sub(rf"\g<1>{other}", grid[at]), other
        if (usual := self._launched(sizes, sizes)) is None:
            return
        changed = self._run(sizes, [values(one, [sizes])[0] for one in grid], extents)
        for name in facts.shapes if self._suits([changed]) and not (usual.stopped or changed.stopped) else ():
            moved = usual.arrays[name].reach != changed.arrays[name].reach
            if moved and f"the shape of {name}" not in str(facts.questions.get(name)):
                facts.ask(name, f"the shape of {name}, where your launch is another one")

    def _require_neighbours(self) -> None:
        """Requires a size of two where with one the kernel leaves an array in which it stays otherwise."""
        usual = self.sets[0] if self.sets else {}
        for size in self.facts.sizes if self._stays(usual) else ():
            if size in usual and self._stays({**usual, size: 1}) is False:
                self.facts.requires.append(f"{size} >= 2")

    def _stays(self, sizes: Mapping[str, int]) -> bool | None:
        """Whether the kernel stays within its arrays; None where that is not known."""
        self.left = BUDGET // 8
        run = self._launched(sizes, sizes) if sizes else None
        if run is None or run.stopped:
            return None
        with contextlib.suppress(ExpressionError):
            reached = [(run.arrays[name], dims) for name, dims in self.facts.shapes.items() if name in run.arrays]
            ends = [prod(values(one, [sizes])[0] for one in dims) for _, dims in reached]
            inside = (not one.negative and one.reach <= end for (one, _), end in zip(reached, ends, strict=True))
            return None if any(one.open or one.lost for one, _ in reached) else all(inside)
        return None

    def _flatten(self) -> None:
        """Where each thread has an element and nothing bounds them, they are counted instead of blocks."""
        facts, block, blocks = self.facts, self.facts.block[0], self.facts.grid[0]
        flat, own = f"{block} * {blocks}", [one.name for one in facts.parameters]
        counted = blocks not in {"rows", *own} - self.named or len(facts.grid) > 1
        if self.guessed and not counted and any(flat in dims for dims in facts.shapes.values()):
            size = blocks if blocks in own else "elements" if "n" in own else "n"
            facts.grid, facts.requires = (f"{size} // {block}",), [f"{size} % {block} == 0"]
            facts.sizes = [size if one == blocks else one for one in facts.sizes]
            found = re.compile(rf"({re.escape(flat)})|\b{blocks}\b")
            for name, dims in facts.shapes.items():
                texts = (found.sub(lambda one: size if one[1] else f"({size} // {block})", dim) for dim in dims)
                facts.shapes[name] = tuple(_put(text, {}) for text in texts)

    def _shaped(self, sets: Sets, large: bool = False) -> Found:
        """Runs that came to their end, and the shape of each array that they reach; nothing where it is one or none."""
        runs, self.used = list[Run](), []
        grown = (self._grown(name, sets[0]) for name in (sets[0] if large else ()))
        for one in itertools.chain(sets, grown, self._beyond(sets[0])):
            if len(runs) >= len(sets) and self.left < max(2 * runs[-1].work, BUDGET // 2):
                break  # what is left is for the run that verifies, and for others
            run = self._launched(one, one)
            # Where loops are too long for an index that was known, a run tells nothing.
            known = [name for name, at in runs[0].arrays.items() if not at.open] if len(runs) >= len(sets) else []
            if run is not None and not run.stopped and not any(run.arrays[name].open for name in known):
                runs.append(run)
                self.used.append(one)
            elif run is not None and not runs:
                break
        if len(runs) < 2:
            return [], {}
        shapes: Shapes = {}
        for name in runs[0].arrays:
            of_all = [run.arrays[name] for run in runs if name in run.arrays]
            reach = [one.reach for one in of_all]
            if len(of_all) < len(runs) or not all(reach) or any(one.open or one.lost for one in of_all):
                shapes[name] = None
                continue
            strides = frozenset[frozenset[str]]().union(*(one.strides for one in of_all))
            strides = strides or frozenset[frozenset[str]]().union(*(run.rows for run in runs))
            lanes = of_all[0].lanes
            dims = fit([one // lanes for one in reach], self.used, strides)
            if dims and not {name for one in dims for name in parse(one).names} & frozenset[str]().union(*strides):
                dims = (product(dims),)  # nothing tells which of them is a row
            more = () if lanes == 1 else (str(lanes),)
            shapes[name] = dims and (*(() if more and dims == ("1",) else dims), *more)
        self._verify(runs, shapes)
        return runs, shapes

    def _grown(self, name: str, sizes: Mapping[str, int]) -> dict[str, int]:
        """The sizes with one so large that a grid in which it is divided has several blocks."""
        divided = [one for one in self.facts.grid if name in parse(one).names]
        grown = [{**sizes, name: LARGE * by} for by in (1, 4, 16)]
        with contextlib.suppress(ExpressionError):
            return next((one for one in grown if any(values(text, [one])[0] > 1 for text in divided)), grown[0])
        return grown[0]

    def _beyond(self, sizes: Mapping[str, int]) -> Iterator[dict[str, int]]:
        """The sizes with one that is more than the constant that divides it in the kernel."""
        for name, by in self.divisors.items():
            if name in sizes and LARGE < 2 * by <= 2 * MAX_THREADS:
                yield {**sizes, name: 2 * by}

    def _verify(self, runs: Sequence[Run], shapes: Shapes) -> None:
        """Drops shapes that hold on the sets that they were found on alone."""
        unit = int(np.gcd.reduce([value for one in self.used for value in one.values()] or [1]))
        sizes = {name: (5 + at) * unit for at, name in enumerate(self.used[0])} | dict.fromkeys(self.fixed, 61)
        run = self._launched(sizes, sizes)
        for name, dims in shapes.items():
            if dims is not None:
                exact = all(one.arrays[name].reach == _count(dims, at) for one, at in zip(runs, self.used, strict=True))
                reach = run.arrays[name].reach if run is not None and not run.stopped and name in run.arrays else -1
                count = _count(dims, sizes)
                if reach < 0 or reach > count or (exact and reach != count):
                    shapes[name] = None

    def _name_axes(self) -> None:
        """Blocks that nothing bounds are counted by a parameter, where only then indices do not leave an array."""
        for name in list(self.extra) if self.guessed else ():
            before = self.facts.grid, self.extra, self.sets
            best = self._unexplained(), before
            at = self.facts.grid.index(name)
            block = int([*self.facts.block, "1", "1"][at])
            others = [text for one in self.whole for text in (one, f"{one} // {block}")[: 1 + (block > 1)]]
            for other in others if 0 < best[0] < NO_RUNS else ():
                self.facts.grid = tuple(other if one == name else one for one in before[0])
                self.extra = [one for one in before[1] if one != name]
                self.sets = self._sets(_PRIMES) if "/" not in other else self._sets(_SMALL, block)
                found = self._unexplained(), (self.facts.grid, self.extra, self.sets)
                best = min(best, found, key=lambda one: one[0])
            self.counted |= best[1] is not before
            self.facts.grid, self.extra, self.sets = best[1]

    def _unexplained(self) -> int:
        """How many arrays have no shape, or are outputs of which elements are left out."""
        runs, shapes = self._shaped(self.sets)
        last = runs[-1].arrays if runs else {}
        left = (last[name] for name in shapes if name in last)
        return _open((runs, shapes)) + sum(one.written and not one.covered(one.reach) for one in left)

    def _require(self, unit: int, runs: Sequence[Run], shapes: Shapes) -> None:
        """Sizes that must be a multiple of `unit`, as the kernel leaves its arrays, or elements out, elsewhere."""
        last, at = runs[-1], self.used[-1]
        whole = [name for name, dims in shapes.items() if dims and last.arrays[name].covered(_count(dims, at))]
        for size in (*self.whole, *self.extra):
            sizes = {**self._sets(_SMALL, unit)[0]}
            sizes[size] += 3
            run = self._launched(sizes, sizes)
            reached = {} if run is None else run.arrays
            counts = {name: _count(dims, sizes) for name, dims in shapes.items() if dims and name in reached}
            if run is None or any(
                reached[name].reach > count or (name in whole and not reached[name].covered(count))
                for name, count in counts.items()
            ):
                self.facts.requires.append(f"{size} % {unit} == 0")

    def _array(self, one: Parameter, runs: Sequence[Run], shape: tuple[str, ...] | None, again: Sequence[Run]) -> None:
        facts, name = self.facts, one.name
        arrays = [run.arrays[name] for run in (again or runs)]
        lost = next((at.lost for at in arrays if at.lost), "")
        stopped = not arrays or any(run.stopped for run in again)
        facts.roles[name] = self._role(one, arrays, shape, stopped)
        if name not in self.named:
            facts.roles[name], facts.shapes[name] = "in", ("1",) if one.lanes == 1 else ("1", str(one.lanes))
            if any(at.spelling == name for at in walk(self.entry.declared) if kind(at) == "DECL_REF_EXPR"):
                bound = ", ".join(f"{of} = {value}" for of, value in self.entry.values.items())
                facts.ask(
                    name, f"the role and the shape of {name}, which the kernel uses with other values than {bound}"
                )
            return
        if not stopped and not one.kind.const and not any(at.read or at.written or at.lost for at in arrays):
            facts.ask(name, f"the role of {name} (in, out or inout), which no run of the kernel touched")
        why = f"which {lost} may use" if lost else "as the kernel is too long to be followed" if stopped else ""
        if facts.roles[name] != "in" and _padded(one.cursor.type.get_canonical().get_pointee()) and not lost:
            why = "as a store may change what fills up its elements"
        if why and not one.kind.const:
            facts.ask(name, f"the role of {name} (in, out or inout), {why}")
        if shape is not None:
            facts.shapes[name] = shape
            if self.counted:
                facts.ask(name, f"the shape of {name}, where your launch is another one")
        if shape is not None and any(at.negative for at in arrays):
            facts.ask(name, f"the shape of {name}, of which indices below 0 are used on some sizes")
        elif any(at.open for at in arrays):
            of_data = any(run.arrays[name].open for run in runs)
            why = "are data" if of_data else "depend on scalars that are not sizes"
            why = "depend on loops too long to be followed" if self.turns < MAX_TURNS else why
            facts.ask(name, f"the shape of {name}, whose indices {why}")
        elif shape is None:
            facts.ask(name, f"the shape of {name}, an expression for each dimension")

    def _role(self, one: Parameter, arrays: Sequence[Array], shape: tuple[str, ...] | None, stopped: bool) -> Role:
        kept = any(at.read for at in arrays) and not any(at.written or at.lost for at in arrays)
        if one.kind.const or (kept and not stopped):
            return "in"
        if stopped or shape is None or any(at.lost or at.early or at.open for at in arrays):
            return "inout"
        counts = [_count(shape, sizes) for sizes in self.sets]
        whole = len(arrays) == len(counts) and all(at.covered(count) for at, count in zip(arrays, counts, strict=True))
        return "out" if whole else "inout"

    def _memory(self, runs: Sequence[Run], again: Sequence[Run]) -> None:
        """Shared memory, static and dynamic, and local memory that is passed."""
        facts, total, of_types = self.facts, 0, list[str]()
        open_types = [name for name, bound in self.entry.types.items() if bound is None]
        generic = {
            one.location.offset: one.type.spelling for one in walk(self.entry.declared) if kind(one) == "VAR_DECL"
        }
        for symbol in (again or runs)[-1].shared if again or runs else ():
            if not (size := symbol.type.size):
                self._dynamic([run.shared[symbol] for run in runs if symbol in run.shared])
            elif element := next(
                (one for one in open_types if re.match(rf"{one}\b", generic.get(symbol.place, ""))), ""
            ):
                of_types.append(f"{size // 4} * sizeof({element})")
            else:
                total += size
        facts.static = " + ".join([*([str(total)] if total else []), *of_types]) or "0"
        for parameter in facts.parameters:
            if parameter.local:
                made = [run.local[parameter.name] for run in runs]
                reach = {one.reach for one in made if not one.open and not one.lost}
                facts.local[parameter.name] = str(reach.pop()) if len(reach) == 1 else ""
                if not facts.local[parameter.name]:
                    self._dynamic(made)

    def _dynamic(self, made: Sequence[Array]) -> None:
        """Memory whose bytes the launch gives: `made` is what each run did to it."""
        known = len(made) == len(self.sets) and all(one.reach and not one.open for one in made)
        dims = fit([one.reach * one.element for one in made], self.sets) if known else None
        self.facts.shared = self.facts.shared if dims is None else product(dims)
        self.dynamic = True

    def _unfix(self, runs: Sequence[Run]) -> None:
        """Puts the constants of a grid back, and asks where they do not grow with the sizes."""
        facts = self.facts
        used = set[tuple[str, str]]().union(*(run.used for run in runs))
        facts.shapes = {name: tuple(_put(one, self.fixed) for one in dims) for name, dims in facts.shapes.items()}
        facts.grid = tuple(_put(one, self.fixed) for one in facts.grid)
        of_sizes = any(parse(one).names for dims in facts.shapes.values() for one in dims)
        bounded = of_sizes and facts.grid != ("1",) and not any(parse(one).names for one in facts.grid)
        if bounded and not any(what == "grid" for what, _ in used):
            facts.ask("launch", f"the grid, which the source launches as {', '.join(facts.grid)} for any sizes")


def _open(found: Found) -> int:
    return sum(one is None for one in found[1].values()) if found[0] else NO_RUNS


def _count(dims: Sequence[str], sizes: Mapping[str, int]) -> int:
    return prod(values(one, [sizes])[0] for one in dims)


def _put(text: str, values_: Mapping[str, str]) -> str:
    """An expression with values for names."""
    for name, value in values_.items():
        text = re.sub(rf"\b{name}\b", value, text)
    return text if parse(text).names else str(parse(text).integer({}))


def product(dims: Sequence[str]) -> str:
    return " * ".join(f"({one})" if re.search(r" [-+/] ", one) and len(dims) > 1 else one for one in dims)


def _declared_block(unit: Unit, entry: Entry) -> tuple[int, ...]:
    """The block that an attribute of the kernel demands, or the largest that it admits on one axis."""
    head = unit.written(entry.declared).partition("{")[0]
    demanded = re.search(r"reqd_work_group_size\s*\(([^()]*)\)", head) or re.search(
        r"__launch_bounds__\s*\(\s*(\w+)", head
    )
    if demanded is None:
        return ()
    given = [f"#define {name} {text}" for name, text in unit.defines.items()]
    return _numbers([*unit.texts, *given], demanded[1].split(","))


def _extents(block: str, before: str) -> list[str]:
    """The extents of a block that a launch names, as the text before it sets them."""
    parts = [block]
    for _ in range(MAX_DIM3):
        name = re.escape(parts[0])
        set_to = re.findall(rf"\bdim3\b[^;]*?\b{name}\s*(?:=\s*dim3\s*)?[({{]([^;]*?)[)}}]\s*[;,]", before)
        inside = re.fullmatch(r"(?:dim3\s*)?[({](.*)[)}]", parts[0])
        if len(parts) > 1 or not (set_to or inside):
            break
        parts = split(inside[1] if inside else set_to[-1])
    while len(parts) > 1 and parts[-1] == "1":
        parts.pop()
    return parts


def _numbers(texts: Sequence[str], written: Sequence[str]) -> tuple[int, ...]:
    """Numbers, or names of macros and constants for them; empty where one is neither."""
    head, end = r"(?:#[ \t]*define[ \t]+|\bconst(?:expr)?\b[\w \t]*[ \t])", r"(?=[ \t]*\)?[ \t]*(?:[;,\r\n]|/[/*]|\Z))"
    known = dict(re.findall(rf"{head}(\w+)[ \t=]+\(?(\d+){end}", "\n".join(texts)))
    found = [known.get(one.strip(), one.strip()) for one in written]
    return tuple(map(int, found)) if all(map(str.isdigit, found)) else ()


def scalar_value(default: str) -> str:
    """A number of C as an expression of a task; empty where it is none."""
    plain = {"true": "1", "false": "0"}.get(default, default).replace("'", "")
    if re.fullmatch(r"[-+]?0[xX][0-9a-fA-F]+[uUlL]*|[-+]?\d+[uUlL]*", plain):
        digits = plain.rstrip("uUlL")
        return str(int(digits, 8 if re.fullmatch(r"[-+]?0[0-7]+", digits) else 0))
    if re.fullmatch(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?[fFlL]?", plain):
        return repr(float(plain.rstrip("fFlL")))
    return ""
