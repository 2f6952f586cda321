"""How a kernel shares its work among threads: which parts of the launch may change, and why not more.

Three kinds are told apart. Cells: each thread computes from its global coordinates alone, so that any launch with as
many threads computes the same. Rows: the threads of a block share loops that step by the block's size, so that the
size of the block is free and the grid is not. Fixed: neither was recognised, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from tunesmith.kernels.reader.syntax import Kind, Node, Symbol
from tunesmith.kernels.rewrite.facts import AXES, ENDS, Condition, Facts, grid_size
from tunesmith.kernels.rewrite.forms import ZERO, Form
from tunesmith.kernels.rewrite.rounds import Carried

WARP = 32
MAX_BLOCK_THREADS = 1024


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of the launch of cells. guarded: more threads than the kernel came with do nothing; else the launch must
    cover exactly the same coordinates. bound: below which coordinates do something, the same everywhere in the kernel,
    where there is one; strided: the threads step through the axis by the size of the whole grid, so that any number of
    them will do. nodes: where the source computes the coordinate."""

    name: str
    bound: Form | None = None
    strided: bool = False
    guarded: bool = False
    nodes: tuple[Node, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Work:
    """How threads share their work. kind: as above; axes: of cells, those with global coordinates, x first; most: of
    rows, threads that a block may have, by the sizes of the arrays in shared memory; why: of fixed work, a sentence
    without its full stop."""

    kind: Literal["cells", "rows", "fixed"]
    axes: tuple[Axis, ...] = ()
    most: int = MAX_BLOCK_THREADS
    why: str = ""


def fixed(why: str) -> Work:
    """Work of which nothing may change."""
    return Work("fixed", why=why)


def sharing(facts: Facts) -> Work:
    """How a kernel shares its work."""
    cells = _cells(facts)
    if not cells.why:
        return cells
    rows = _rows(facts)
    return rows if not rows.why or facts.shared or facts.barriers else cells


def _cells(facts: Facts) -> Work:
    if facts.together:
        return fixed("its threads work together")
    strided = dict[str, Node]()
    for loop in facts.loops:
        if loop.kind == "grid":
            if why := Carried(facts, loop.node, facts.body).why:
                return fixed(why)
            strided[loop.axis] = loop.node
    found: dict[str, list[Node]] = {}
    others = list[Node]()
    for use in facts.builtins():
        inside = facts.body.holds(use)
        coordinates = _coordinates(facts, use, frozenset(), set(strided)) if inside else None
        if coordinates is None:
            others.append(use)
        for one in coordinates or ():
            axis = next(iter(facts.form(one).atoms))[-1]
            found.setdefault(axis, []).append(one)
    for use in others:
        if not use.op.startswith(("blockIdx.", "gridDim.")) or use.op[-1] in found:
            return fixed(f"it uses {facts.text(use)} for more than the global coordinate of a thread")
    if not found:
        return fixed("it has no global coordinate, blockIdx.x * blockDim.x + threadIdx.x")
    axes = []
    for axis, nodes in sorted(found.items()):
        if axis in strided and not all(_only_starts(facts, one) for one in nodes):
            return fixed(f"its coordinate along {axis} does more than begin a loop over the grid")
        bounds = [] if axis in strided else _bounds(facts, axis)
        guarded = axis not in strided and all(bounds)
        common = (one for one in bounds[0] if all(one in those for those in bounds)) if bounds else iter(())
        unique = tuple(sorted(dict.fromkeys(nodes), key=lambda one: one.start))
        axes.append(Axis(axis, next(common, None), axis in strided, guarded, unique))
    return Work("cells", tuple(axes))


def _coordinates(facts: Facts, use: Node, seen: frozenset[Symbol], strided: set[str]) -> list[Node] | None:
    """The expressions that are a global coordinate and contain a use of a builtin, maybe through variables; None where
    it is used for something else."""
    for at in [use, *(above for above, _ in use.above())]:
        form = facts.form(at) if at.type.what == "number" else None
        if form is not None and any(form == Form.atom(f"@{axis}") for axis in AXES):
            return [at]
        if form is not None and any(form == grid_size(axis) for axis in strided):
            return []
        if at.what == "variable":
            if at.symbol in seen or not facts.is_once(at.symbol):
                return None
            found = [_coordinates(facts, one, seen | {at.symbol}, strided) for one in facts.uses(at.symbol)]
            return None if None in found else [one for those in found for one in those or ()]
        if at.what not in ("builtin", "name", "binary", "cast", "unary") and at is not use:
            return None
    return None


def _only_starts(facts: Facts, node: Node) -> bool:
    """Whether a coordinate is nothing but the first value of loops over the grid, and a mark of its first thread."""
    for above, part in node.above():
        if above.what == "variable":
            loop = above.parent.parent if above.parent is not None else None
            if loop is not None and (found := facts.loop(loop)) is not None:
                return found.kind == "grid" and above.parent is loop.kids[0]
            return facts.is_once(above.symbol) and all(_only_starts(facts, one) for one in facts.uses(above.symbol))
        zero = above.op in ("==", "!=") and all(one is part or facts.form(one) == ZERO for one in above.kids)
        if zero or (above.what, above.op) == ("unary", "!"):
            branch = next((one for one, test in above.above() if one.what == "if" and test is one.kids[0]), None)
            if branch is None or any(one.what in ENDS or facts.loop(one) is not None for one in branch.walk()):
                return False
            # But for memory, what follows does not depend on which thread it was for.
            return facts.changed_in(branch) <= facts.declared_in(branch)
        if above.what != "cast":
            return False
    return False


def _bounds(facts: Facts, axis: str) -> list[list[Form]]:
    """The bounds, the same for all threads, below which a coordinate is at each effect of the kernel."""
    conditions = (facts.conditions(node)[0] for node in facts.effects)
    return [[one for part in those if (one := facts.upper(part, axis)) is not None] for those in conditions]


def behind(facts: Facts, among: list[Node], is_guard: Callable[[Condition], bool]) -> list[Node]:
    """The statements that only threads carry out which pass all guards, and those ahead of the guards."""
    found = list[Node]()
    for at, one in enumerate(among):
        if one.what == "if" and len(one.kids) == 2:
            inside = one.kids[1].kids if one.kids[1].what == "block" else [one.kids[1]]
            ends = [inner.what for inner in inside] == ["return"]
            first = (among[at + 1 :] if ends else inside)[:1]
            tests = [test for node in first for test in facts.conditions(node)[0] if one.kids[0].holds(test.node)]
            if tests and all(map(is_guard, tests)):
                found += [] if ends else behind(facts, inside, is_guard)
                continue
        found.append(bare(one))
    return found


def bare(statement: Node) -> Node:
    """A loop without its pragma."""
    loops = statement.what == "unexposed" and statement.kids and statement.kids[-1].what == "for"
    return statement.kids[-1] if loops else statement


def _rows(facts: Facts) -> Work:
    understood, loops, most = set[Node](), 0, MAX_BLOCK_THREADS
    inside = [(loop, facts.body) for loop in facts.loops] + facts.loops_of_functions
    for loop, within in inside:
        if loop.kind != "block":
            continue
        meets = [one for one in facts.barriers if loop.body.holds(one)]
        warps = any(one.what == "call" and one.op.startswith(("__shfl", "__sync")) for one in loop.body.walk())
        if meets or warps:
            return fixed("threads meet inside a loop that steps by the block's size")
        if why := Carried(facts, loop.node, within).why:
            return fixed(why)
        loops += 1
        understood |= {one for part in (loop.node.kids[0], loop.node.kids[2]) for one in part.walk()}
    for one in facts.body.walk():
        # What nothing asks for any more, such as a place in a row whose loop counts from the row's beginning now.
        if one.what == "variable" and one.kids and not facts.uses(one.symbol):
            understood |= set(one.kids[-1].walk())
    for use in facts.builtins():
        if use in understood or use.op.startswith(("blockIdx.", "gridDim.")):
            continue
        asked = [one for one in meanings(facts, use) if one not in understood]
        if use.op not in ("threadIdx.x", "blockDim.x") or not all(
            most := min(most, _generic(facts, one, use.op)) for one in asked
        ):
            return fixed(f"it uses {facts.text(use)} in a way that may depend on the size of a block")
    if not loops:
        return fixed("it has no loop that steps by the size of a block")
    if counted := _by_every_thread(facts):
        return fixed(f"every thread carries out `{counted}`, and how many there are depends on the size of a block")
    return Work("rows", most=most)


def meanings(facts: Facts, node: Node) -> Iterator[Node]:
    """Where the value of an expression is used: itself, or the uses of a variable that is nothing else."""
    at = node
    for above, _ in node.above():
        if above.what == "cast":
            at = above
            continue
        if above.what == "variable" and facts.is_once(above.symbol):
            for one in facts.syntax.everything():
                if one.what == "name" and one.symbol is above.symbol:
                    yield from meanings(facts, one)
            return
        break
    yield at


def _by_every_thread(facts: Facts) -> str:
    """An atomic operation outside of the loops over a row that neither adds up the threads' parts of something nor is
    for some threads alone; empty where there is none."""
    loops = [one.node for one in facts.loops if one.kind == "block"]
    parts = {symbol for loop in loops for symbol in Carried(facts, loop, facts.body).states}
    for node in facts.body.walk():
        if node.what != "call" or not node.op.startswith("atom") or facts.names_in(node) & parts:
            continue
        if any(loop.holds(node) for loop in loops):
            continue
        tests = [above.kids[0] for above, part in node.above() if above.what == "if" and part is not above.kids[0]]
        if not any(reads_thread(facts, one) for one in tests):
            return facts.text(node)
    return ""


def reads_thread(facts: Facts, node: Node) -> bool:
    """Whether an expression depends on the number of the thread, also through variables."""
    used = (one for source in facts.sources(node) for one in source.walk())
    return any(one.what == "builtin" and one.op.startswith(("threadIdx", "@")) for one in used)


def _generic(facts: Facts, use: Node, name: str) -> int:
    """Threads of a block, at most, for which a use of a thread's number, or of the block's size, means the same in
    blocks of any whole warps; 0 for another use."""
    above = use.parent
    if above is None or not above.kids:
        return 0
    if above.what == "unary":
        return MAX_BLOCK_THREADS * (name == "threadIdx.x" and above.op == "!")
    if above.what != "binary" or above.kids[0] is not use:
        return 0
    other = facts.form(above.kids[1]).constant
    if name == "threadIdx.x" and (
        (above.op, other) in (("==", 0), ("%", WARP), ("&", WARP - 1), ("<", WARP))
        or (above.op == "<" and _are_warps(facts, above.kids[1]))
    ):
        return MAX_BLOCK_THREADS
    if name == "blockDim.x" and (above.op, other) == ("+", WARP - 1) and above.parent is not None:
        above = above.parent
    if _by_warps(facts, above):
        return min((_of_warps(facts, one, name) for one in meanings(facts, above)), default=0)
    return 0


def _by_warps(facts: Facts, node: Node) -> bool:
    """Whether an expression is a number divided by that of a warp's threads, of floats, too."""
    by = node.kids[1] if node.what == "binary" and node.op in ("/", ">>") else None
    return by is not None and (node.op, facts.form(by).constant or by.value) in (("/", WARP), (">>", 5))


def _are_warps(facts: Facts, node: Node) -> bool:
    """Whether an expression is the number of a block's warps."""
    threads = Form.atom("blockDim.x")
    while node.what == "cast" or (node.what == "name" and facts.is_once(node.symbol)):
        made = None if node.what == "cast" else node.symbol.declared
        node = (made or node).kids[-1]
    return _by_warps(facts, node) and facts.form(node.kids[0]) in (threads, threads + Form.number(WARP - 1))


def _of_warps(facts: Facts, use: Node, name: str) -> int:
    """Threads of a block, at most, where a warp's number is only an index or compared with 0, or the number of warps
    only a bound; 0 where not."""
    above = use.parent
    if above is None:
        return 0
    if name == "threadIdx.x" and above.what == "index":
        array, depth = above.kids[0], 1
        while array.what == "index":
            array, depth = array.kids[0], depth + 1
        return WARP * _length(facts, array.symbol, above.kids[0].type, depth)
    if name == "threadIdx.x":
        zero = above.what == "binary" and above.op in ("==", "!=") and facts.form(above.kids[1]).constant == 0
        return MAX_BLOCK_THREADS * zero
    return MAX_BLOCK_THREADS * (above.what == "binary" and above.op == "<" and above.kids[1] is use)


def _length(facts: Facts, array: Symbol, type_: Kind, depth: int) -> int:
    """The elements that a dimension of an array in shared memory has, where the source says them as a number; else
    0, as they may depend on the size of a block."""
    written = "" if array.declared is None or not array.shared else facts.text(array.declared)
    extents = re.findall(r"\[\s*(\w+)\s*\]", written)
    if type_.what != "array" or type_.element is None or len(extents) < depth or not extents[depth - 1].isdigit():
        return 0
    return type_.size // max(type_.element.size, 1)
