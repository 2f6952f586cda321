"""What a kernel takes: its parameters, their roles and shapes, its sizes and its launch, found by running it.

Owns the choice of sizes to run with and what is concluded from the runs. An array is `out` where each element of its shape
is written for certain on all sets of sizes, and read by nobody before; a shape holds where no index leaves it on any set.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from tunesmith.kernels.reader.launch import HostLaunch, launches
from tunesmith.kernels.reader.parse import Entry, Unit, kind, walk
from tunesmith.kernels.reader.run import Array, Run
from tunesmith.kernels.reader.shapes import fit, values
from tunesmith.kernels.reader.tree import Kind, kind_of
from tunesmith.kernels.spec.dtypes import C_TYPES, DTYPES
from tunesmith.kernels.spec.expression import ExpressionError, parse

_PRIMES, _SMALL, _TINY = (7, 11, 13, 17, 19, 23, 29, 31), (2, 3, 5, 7), (5, 11, 19, 29)
SETS = 3
"""Sets of sizes that a kernel is run with; then each size is made `LARGE` once, as it may be divided."""
LARGE = 521
MAX_THREADS = 1 << 16
BLOCKS: dict[int, tuple[tuple[int, ...], ...]] = {
    0: ((1,),),
    1: ((256,), (128,), (64,), (32,), (512,), (1024,)),
    2: ((32, 8), (16, 16), (8, 8), (32, 32), (32, 4), (32, 16)),
    3: ((32, 4, 2), (8, 8, 8), (8, 8, 4), (4, 4, 4)),
}
"""Blocks to try where the source does not say one, by the number of axes, the usual one first."""
TRIED_BLOCKS = {1: (40, 160), 2: (12,), 3: (8,)}
"""Blocks along each axis of a grid that is not known, by the number of axes."""
MAX_CHEAP = 400
"""Steps of a kernel that is run on a larger grid as well."""
Role = Literal["in", "out", "inout"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the kernel. dtype: of the task, empty where there is none; local: memory of a work-group, which
    OpenCL passes as an argument; default: the text of its default value; cursor: clang's."""

    name: str
    kind: Kind
    dtype: str
    default: str
    cursor: Any

    @property
    def pointer(self) -> bool:
        return self.kind.what in ("pointer", "array")

    @property
    def local(self) -> bool:
        return self.pointer and self.kind.element is not None and self.kind.element.spelling.startswith("__local")

    @property
    def whole(self) -> bool:
        """Whether it is a whole number that may count something."""
        return self.kind.what == "number" and self.kind.size >= 4 and self.kind.spelling.count("enum") == 0


@dataclass(slots=True)
class Facts:
    """parameters: of the kernel; sizes: names; grid, block: expressions, where they are known; questions: by "launch",
    or the name of a parameter, what is not known of it; shapes, roles: by array; requires: what must hold of sizes;
    shared: bytes of dynamic shared memory; static: bytes that the source declares; local: by local parameter elements;
    guessed: whether the source has no launch."""

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
    guessed: bool = False
    unset: list[str] = field(default_factory=list)

    def ask(self, what: str, question: str) -> None:
        self.questions.setdefault(what, []).append(question)


def parameters_of(unit: Unit, entry: Entry) -> list[Parameter]:
    found = []
    generic = [one for one in entry.declared.get_children() if kind(one) == "PARM_DECL"]
    open_types = {name for name, bound in entry.types.items() if bound is None}
    for one, written in zip(entry.function.get_arguments(), generic, strict=True):
        made = kind_of(one.type)
        element = made.element if made.what in ("pointer", "array") and made.element is not None else made
        spelled = re.sub(r"\b(?:const|volatile|__\w+(?<!__half)(?<!16)(?<!m3)(?<!m2)|struct)\b\s*", "", element.spelling).strip()
        dtype = C_TYPES.get(spelled, "")
        if dtype in ("float16", "bfloat16") and made.what not in ("pointer", "array"):
            dtype = C_TYPES.get(spelled, "")
        named = re.sub(r"\b(?:const|volatile|__restrict__|__restrict)\b|[*&]", "", written.type.spelling).strip()
        if named in open_types:
            dtype = named
        text = unit.written(written)
        found.append(Parameter(one.spelling, made, dtype, text.partition("=")[2].strip(), one))
    return found


def read_facts(unit: Unit, entry: Entry) -> Facts:
    """What is known of a kernel, and what is not."""
    facts = Facts(parameters_of(unit, entry))
    whole = [one.name for one in facts.parameters if one.whole]
    found = launches(unit, entry) if unit.language == "cuda" else []
    known = [one for one in found if None not in one.grid and None not in one.block]
    host = known[0] if known else None
    search = _Search(entry, facts, whole)
    if host is None or not search.of_host(host):
        host = None
        search.guess(unit, found)
    elif len({(one.grid, one.block) for one in found}) > 1:
        facts.ask("launch", "which launch you mean: the source has " + " and ".join(f"<<<{one.written}>>>" for one in found))
    search.conclude()
    if host is not None and host.shared is not None and host.shared != "0":
        facts.shared = host.shared
    return facts


class _Search:
    """Runs a kernel and fills in `facts`."""

    def __init__(self, entry: Entry, facts: Facts, whole: list[str]) -> None:
        self.entry, self.facts, self.whole = entry, facts, whole
        self.extra: list[str] = []
        self.sets = self._sets(1)
        self.used: list[dict[str, int]] = []

    def _sets(self, unit: int, primes: tuple[int, ...] = ()) -> list[dict[str, int]]:
        """Values of the sizes, different ones for each, in changing order: primes, or multiples of `unit`."""
        names, primes = [*self.whole, *self.extra], primes or (_PRIMES if unit == 1 else _SMALL)
        return [
            {name: primes[(3 * at + 5 * turn) % len(primes)] * unit for at, name in enumerate(names)} for turn in range(SETS)
        ]

    # The launch.

    def of_host(self, host: HostLaunch) -> bool:
        """Takes the launch that the source has, where it can be run."""
        self.extra = [one for one in host.sizes if one not in self.whole]
        self.sets = self._sets(1)
        self.facts.grid = tuple(one or "1" for one in host.grid)
        self.facts.block = tuple(one or "1" for one in host.block)
        try:
            return all(1 <= np.prod([values(one, self.sets[:1])[0] for one in self.facts.block]) <= 1024 for _ in (0,))
        except ExpressionError:
            return False

    def guess(self, unit: Unit, found: Sequence[HostLaunch]) -> None:
        """A launch that covers what the guards of the kernel admit."""
        self.extra = []
        self.sets = self._sets(1, _TINY)
        blocks = [one.block for one in found if None not in one.block]
        fixed = _declared_block(unit, self.entry)
        threads, grid_axes = self._axes()
        tried = BLOCKS[len(threads)]
        if fixed:
            tried = (fixed,)
        elif blocks and len(set(blocks)) == 1 and all(one is not None and one.isdigit() for one in blocks[0]):
            tried, threads = (tuple(int(one or 1) for one in blocks[0]),), ["x", "y", "z"][: len(blocks[0])]
        best: tuple[tuple[int, ...], list[Run], list[int]] | None = None
        for block in tried:
            full = [1, 1, 1]
            if block == fixed or (blocks and block == tried[0] and len(tried) == 1 and not fixed):
                full[: len(block)] = block
            else:
                for axis, extent in zip(threads, block, strict=False):
                    full["xyz".index(axis)] = extent
            for tried_blocks in TRIED_BLOCKS[max(1, len(grid_axes))]:
                grid = [tried_blocks if axis in grid_axes else 1 for axis in "xyz"]
                runs = [Run(self.entry.function, one, grid, full) for one in self.sets]
                bounded = all(self._active(runs[0], "xyz".index(one), 1)[0] < tried_blocks for one in grid_axes)
                if bounded or runs[0].steps > MAX_CHEAP:
                    break
            best = best or (tuple(full), runs, grid)
            if self._suits(runs):
                best = (tuple(full), runs, grid)
                break
        assert best is not None
        self._cover(best[0], best[1], best[2], grid_axes)
        self.facts.guessed = True
        why = "the source has no launch" if not found else "its launch in the source cannot be said in sizes, <<<" + found[0].written + ">>>"
        self.facts.ask("launch", f"the launch: {why}")

    def _axes(self) -> tuple[list[str], list[str]]:
        """The axes of threads and of blocks that the kernel asks for."""
        threads, blocks = set[str](), set[str]()
        run = Run(self.entry.function, self.sets[0], (2, 2, 2), (4, 2, 2))
        for used, name in run.used:
            (threads if used == "thread" else blocks).add(name)
        return sorted(threads), sorted(blocks)

    @staticmethod
    def _suits(runs: Sequence[Run]) -> bool:
        """Whether shared memory holds what the block puts there, and no two threads write the same element."""
        for run in runs:
            if run.stopped:
                return False
            for name, array in run.arrays.items():
                if array.collides:
                    return False
                node = run.shared.get(name.removeprefix("shared ")) if name.startswith("shared ") else None
                if node is not None and node.kind.size and array.reach * array.element > node.kind.size:
                    return False
                if node is not None and node.kind.size and len(run.block) and run.block[1] > 1 and node.kind.element is not None and node.kind.element.what == "array":
                    rows = node.kind.size // max(node.kind.element.size, 1)
                    if array.reach * array.element <= node.kind.size - node.kind.element.size and rows > 1:
                        return False
        return True

    def _cover(self, block: tuple[int, ...], runs: Sequence[Run], grid: Sequence[int], axes: Sequence[str]) -> None:
        """A grid that covers the threads that touch anything."""
        extents = ["1", "1", "1"]
        for axis in axes:
            at = "xyz".index(axis)
            found = [self._active(run, at, block[at]) for run in runs]
            extents[at] = self._extent([one[0] for one in found], [one[1] for one in found], grid[at], block[at], axis, axes)
        self.facts.grid, self.facts.block = _trimmed(extents), _trimmed([str(one) for one in block])
        self.sets = self._sets(1)

    @staticmethod
    def _active(run: Run, at: int, block: int) -> tuple[int, int]:
        """The number of blocks, and of threads in all of them, along an axis, that write any array; in a loop over the
        grid, those that touch the array that fewest touch."""
        found, least = [], ("grid", "xyz"[at]) in run.used
        arrays = [one for name, one in run.arrays.items() if not name.startswith("shared ") and one.threads is not None]
        for array in arrays if least else [one for one in arrays if one.written] or arrays:
            if array.threads.any():
                of_blocks = np.broadcast_to(run.in_grid[at], run.count)[array.threads]
                of_threads = np.broadcast_to(run.in_grid[at] * block + run.thread[at], run.count)[array.threads]
                found.append((int(of_blocks.max()) + 1, int(of_threads.max()) + 1))
        return (min if least else max)(found, default=(1, 1), key=lambda one: one[1])

    def _extent(self, blocks: list[int], threads: list[int], tried: int, block: int, axis: str, axes: Sequence[str]) -> str:
        if all(one < tried for one in blocks):
            dims = fit(threads, self.sets) if block > 1 else None
            if dims is not None and not all(one.isdigit() for one in dims):
                whole = fit(blocks, self.sets) if not all(one == blocks[0] for one in blocks) else None
                if whole is not None and len(product(whole)) < len(product(dims)):
                    return product(whole)
                return f"ceil_div({product(dims)}, {block})"
            dims = fit(blocks, self.sets)
            if dims is not None:
                return product(dims)
        used = {one.spelling for one in walk(self.entry.function) if kind(one) == "DECL_REF_EXPR"}
        unused = [one for one in self.whole if one not in used]
        if len(unused) == 1 and axis == axes[-1]:
            return unused[0]
        name = "rows" if len(axes) == 1 else f"blocks_{axis}"
        while name in {one.name for one in self.facts.parameters}:
            name += "_"
        self.extra.append(name)
        return name

    # Shapes and roles.

    def launch(self, one: Mapping[str, int], arguments: Mapping[str, int]) -> Run | None:
        try:
            grid = [values(text, [one])[0] for text in self.facts.grid]
            block = [values(text, [one])[0] for text in self.facts.block]
        except ExpressionError:
            return None
        count = int(np.prod(grid)) * int(np.prod(block))
        if not 0 < count <= MAX_THREADS:
            return None
        return Run(self.entry.function, arguments, grid, block)

    def conclude(self) -> None:
        """Fills in sizes, shapes and roles."""
        self._name_axes()
        first = self._shaped(self.sets, large=True) or self._shaped(self._sets(1, (3, 5, 7, 4)))
        self.sets = self.used or self.sets
        if first is None or any(first[1][one] is None for one in first[1]):
            unit = self._unit()
            aligned = self._shaped(self._sets(unit))
            if aligned is not None and sum(one is None for one in aligned[1].values()) < (99 if first is None else sum(one is None for one in first[1].values())):
                first, self.sets = aligned, self._sets(unit)
                self._require(unit, aligned[1])
        runs, shapes = first if first is not None else ([], {})
        known = [one for one in shapes.values() if one is not None]
        needed = {name for dims in known for one in dims for name in parse(one).names}
        for text in (*self.facts.grid, *self.facts.block):
            needed |= parse(text).names
        steering = set[str]().union(*(run.steering for run in runs)) if runs else set(self.whole)
        self.facts.sizes = [one for one in (*self.whole, *self.extra) if one in needed or one in steering]
        again = runs if set(self.whole) <= set(self.facts.sizes) else self._again()
        for one in self.facts.parameters:
            if one.pointer and not one.local:
                self._array(one, runs, shapes.get(one.name), again)
        self._memory(runs, again or runs)

    def _name_axes(self) -> None:
        """Blocks that nothing bounds are counted by a parameter, where only then indices do not leave an array."""
        for name in list(self.extra) if self.facts.guessed else ():
            found = self._shaped(self.sets)
            before, best = (self.facts.grid, self.extra, self.sets), (self._open(found), "")
            if not best[0]:
                return
            for other in self.whole:
                self.facts.grid = tuple(other if one == name else one for one in before[0])
                self.extra = [one for one in before[1] if one != name]
                self.sets = self._sets(1)
                left = self._open(self._shaped(self.sets))
                if left < best[0]:
                    best = left, other
            self.facts.grid, self.extra, self.sets = before
            if best[1]:
                self.facts.grid = tuple(best[1] if one == name else one for one in before[0])
                self.extra = [one for one in before[1] if one != name]
                self.sets = self._sets(1)

    @staticmethod
    def _open(found: tuple[list[Run], dict[str, tuple[str, ...] | None]] | None) -> int:
        """How much is not explained: arrays without a shape, and outputs of which elements are left out."""
        if found is None:
            return 99
        last = found[0][-1].arrays
        return sum(dims is None for dims in found[1].values()) + sum(
            last[name].written and not last[name].covered(last[name].reach) for name in found[1] if name in last
        )

    def _again(self) -> list[Run]:
        """Runs in which scalars that are no sizes are not known."""
        found = []
        for one in self.sets:
            run = self.launch(one, {name: value for name, value in one.items() if name in self.facts.sizes})
            if run is not None:
                found.append(run)
        return found

    def _unit(self) -> int:
        extents = [int(one) for one in self.facts.block if one.isdigit()]
        return max([16, *(one for one in extents if one <= 32)]) if len(extents) > 1 else max(extents or [32])

    def _shaped(self, sets: list[dict[str, int]], large: bool = False) -> tuple[list[Run], dict[str, tuple[str, ...] | None]] | None:
        """Runs, and the shape of each array that they reach."""
        runs, used = list[Run](), list[dict[str, int]]()
        large = [{**sets[0], name: LARGE} for name in sets[0]] if large else []
        for one in (*sets, *large):
            run = self.launch(one, one)
            if run is not None and not run.stopped:
                runs.append(run)
                used.append(one)
        if len(runs) < 2:
            return None
        self.used = used
        shapes: dict[str, tuple[str, ...] | None] = {}
        for name in runs[0].arrays:
            reach = [run.arrays[name].reach if name in run.arrays else 0 for run in runs]
            of_all = [run.arrays[name] for run in runs if name in run.arrays]
            if any(one.open or one.lost for one in of_all) or not any(reach):
                shapes[name] = None
                continue
            strides = frozenset[frozenset[str]]().union(*(one.strides for one in of_all))
            shapes[name] = fit(reach, used, strides) if all(reach) else None
        return runs, shapes

    def _require(self, unit: int, shapes: Mapping[str, tuple[str, ...] | None]) -> None:
        """Sizes that must be a multiple of `unit`, as the kernel leaves its arrays where they are not."""
        for size in [*self.whole, *self.extra]:
            one = {**self._sets(unit)[0]}
            if size not in one:
                continue
            one[size] += 3
            run = self.launch(one, one)
            for name, dims in shapes.items():
                if run is None or (dims and name in run.arrays and run.arrays[name].reach > int(np.prod([values(dim, [one])[0] for dim in dims]))):
                    self.facts.requires.append(f"{size} % {unit} == 0")
                    break

    def _array(self, one: Parameter, runs: Sequence[Run], shape: tuple[str, ...] | None, again: Sequence[Run]) -> None:
        facts, name = self.facts, one.name
        arrays = [run.arrays[name] for run in again] or [run.arrays[name] for run in runs]
        lost = next((at.lost for at in arrays if at.lost), "")
        stopped = not arrays or any(run.stopped for run in again)
        facts.roles[name] = self._role(one, arrays, shape, stopped)
        if lost and not one.kind.const:
            facts.ask(name, f"the role of {name} (in, out or inout), which {lost} may use")
        elif stopped:
            facts.ask(name, f"the role of {name} (in, out or inout), as the kernel is too long to be followed")
        if shape is not None:
            facts.shapes[name] = shape
            if any(at.negative for at in arrays):
                facts.ask(name, f"the shape of {name}, of which indices below 0 are used on some sizes")
            elif any(at.open for at in arrays):
                facts.ask(name, f"the shape of {name}, whose indices depend on scalars that are no sizes")
        else:
            why = "whose indices are data" if any(at.open for at in arrays) else "an expression for each dimension"
            facts.ask(name, f"the shape of {name}, {why}")

    def _role(self, one: Parameter, arrays: Sequence[Array], shape: tuple[str, ...] | None, stopped: bool) -> Role:
        if one.kind.const or not (any(at.written for at in arrays) or any(at.lost for at in arrays) or stopped):
            return "in"
        if stopped or shape is None or any(at.lost or at.early or at.open for at in arrays):
            return "inout"
        counts = [int(np.prod([values(dim, [sizes])[0] for dim in shape])) for sizes in self.sets]
        whole = len(arrays) == len(counts) and all(at.covered(count) for at, count in zip(arrays, counts, strict=True))
        return "out" if whole else "inout"

    def _memory(self, runs: Sequence[Run], again: Sequence[Run]) -> None:
        facts, total = self.facts, list[str]()
        open_types = {name for name, bound in self.entry.types.items() if bound is None}
        generic = {one.location.offset: one.type.spelling for one in walk(self.entry.declared) if kind(one) == "VAR_DECL"}
        for key_, node in again[-1].shared.items() if again else ():
            made = [run.arrays.get(f"shared {key_}") for run in runs]
            if node.kind.size:
                written = generic.get(node.cursor.location.offset, "")
                element = next((name for name in open_types if re.match(rf"{name}\b", written)), None)
                total.append(f"{node.kind.size // 4} * sizeof({element})" if element else str(node.kind.size))
                continue
            reach = [one.reach * one.element if one is not None else 0 for one in made]
            sets = self.sets[: len(reach)]
            dims = fit(reach, sets) if reach and all(reach) and len(sets) > 1 else None
            if dims is not None and not any(one is None or one.open for one in made):
                facts.shared = product(dims)
            facts.ask("launch", "shared_bytes, the bytes of dynamic shared memory")
        for one in facts.parameters:
            if one.local:
                reach = [run.arrays[one.name].reach for run in runs]
                fixed = reach and all(at == reach[0] for at in reach) and reach[0] and not runs[0].arrays[one.name].open
                facts.local[one.name] = str(reach[0]) if fixed else ""
        constants = [one for one in total if one.isdigit()]
        summed = [str(sum(map(int, constants)))] if constants else []
        facts.static = " + ".join([*summed, *(one for one in total if not one.isdigit())]) or "0"


def product(dims: Sequence[str]) -> str:
    return " * ".join(f"({one})" if re.search(r" [-+/] ", one) and len(dims) > 1 else one for one in dims)


def _trimmed(extents: Sequence[str]) -> tuple[str, ...]:
    """Without the axes at the end that have one block or thread."""
    used = max((at for at, one in enumerate(extents, 1) if one != "1"), default=1)
    return tuple(extents[:used])


def _declared_block(unit: Unit, entry: Entry) -> tuple[int, ...]:
    """The block that an attribute of the kernel demands, or the largest that it admits on one axis."""
    head = unit.written(entry.declared).partition("{")[0]
    demanded = re.search(r"reqd_work_group_size\s*\(([^()]*)\)", head) or re.search(r"__launch_bounds__\s*\(\s*(\w+)", head)
    found = []
    for one in demanded[1].split(",") if demanded else ():
        attribute = one.strip()
        if not attribute.isdigit():
            macro = re.search(rf"#[ \t]*define[ \t]+{re.escape(attribute)}[ \t]+(\d+)", unit.code) if attribute else None
            attribute = macro[1] if macro else unit.defines.get(attribute, "")
        if not attribute.isdigit():
            return ()
        found.append(int(attribute))
    return tuple(found)


def scalar_value(default: str) -> str:
    """A number of C as an expression of a task; empty where it is none."""
    plain = {"true": "1", "false": "0"}.get(default, default).replace("'", "")
    if re.fullmatch(r"[-+]?0[xX][0-9a-fA-F]+[uUlL]*|[-+]?\d+[uUlL]*", plain):
        digits = plain.rstrip("uUlL")
        return str(int(digits, 8 if re.fullmatch(r"[-+]?0[0-7]+", digits) else 0))
    if re.fullmatch(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?[fFlL]?", plain):
        return repr(float(plain.rstrip("fFlL")))
    return ""


__all__ = ["DTYPES", "Facts", "Parameter", "read_facts"]
