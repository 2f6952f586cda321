"""Tiles of results that share their operands, as the results of a matrix product do.

Where each result sums over products of elements that depend on its row with elements that depend on its column, a block
reads both for its whole tile, some steps at a time, and a thread keeps several results in registers, so that an operand
that was read serves many (V. Volkov and J. Demmel, "Benchmarking GPUs to Tune Dense Linear Algebra", SC 2008); sums are
taken in the order that they had. A plain sum of products of 16-bit floats in float can go to tensor cores, which have
an order of their own (PTX ISA, mma.sync), one of 8-bit numbers to `__dp4a`.

Row and column are coordinates of their own, or digits of the one number of a thread; all other coordinates are those of
a block.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tunesmith.kernels.reader.syntax import NOTHING, Node, Symbol
from tunesmith.kernels.rewrite.edits import Span, replace, span
from tunesmith.kernels.rewrite.facts import ENDS, Condition, Loop, Part
from tunesmith.kernels.rewrite.forms import ONE, ZERO, Form
from tunesmith.kernels.rewrite.passes.record import ALONE, NO_GUARD, Change, Pass, Refused, Subject, require
from tunesmith.kernels.rewrite.sharing import behind
from tunesmith.kernels.spec.template import LaunchGeometry

_X, _Y, _MINUS = Form.atom("x"), Form.atom("y"), Form.number(-1)

_WIDENS = re.compile(r"__half2float|__bfloat162float|operator float")
_FUSED = re.compile(r"(?:__)?fmaf?(?:_rn)?")
_UNITS = {"float16": 16, "bfloat16": 16, "int8": 4, "uint8": 4}
"""Steps of a sum that one instruction takes, by the type of both factors."""
_NUMBER = frozenset({"@x"})


@dataclass(frozen=True, slots=True)
class _Grid:
    """How threads have rows and columns, "y" and "x" in forms. wide: what divides a thread's number into them, where
    they are digits of it; over: what divides it further; limits: forms that are not negative where there is a result,
    and do not grow with its coordinates; exact: the axes that tiles must divide, as the kernel knows no limit along
    them. In forms "threads.x" is the threads along x that the task says."""

    subject: Subject
    wide: Form | None = None
    over: Form | None = None
    limits: tuple[Form, ...] = ()
    exact: tuple[str, ...] = ()

    def placed(self, form: Form) -> Form:
        """A form with rows and columns; "@x" is then the part of the number that a block has in common."""
        if self.wide is None:
            return form.replaced("@x", _X).replaced("@y", _Y)
        made = form.replaced("@x", _X + _Y * self.wide + (Form.atom("@x") if self.over is not None else ZERO))
        for atom in form.atoms - {"@x"}:
            part = self.subject.facts.part(Form.atom(atom), _NUMBER)
            if part is not None and part in (Part("@x", ONE, self.wide), Part("@x", self.wide, self.over)):
                made = made.replaced(atom, _X if part.low == ONE else _Y)
        return made

    def of_block(self, form: Form) -> bool:
        """Whether a value that was placed is the same for a whole tile."""
        facts, over = self.subject.facts, self.over
        own = [atom for atom in form.atoms - {"@x", "@z"} if facts.reach(Form.atom(atom)) > 1]
        parts = [facts.part(Form.atom(atom), _NUMBER) for atom in own]
        return all(one is not None and over is not None and one.low.over(over) is not None for one in parts)

    def limit(self, condition: Condition) -> Form | None:
        """The limit of rows, columns or blocks that a condition sets, if it sets one."""
        least = None if condition.least is None else self.placed(condition.least)
        if least is None or not self.of_block(least.without("x", "y")):
            return None
        falls = {_MINUS, ZERO, -(self.wide or ONE)}
        return least if {least.times("x"), least.times("y")} <= falls else None

    def in_sizes(self, form: Form | None) -> str | None:
        """A form as the task says it; None where the task does not know it."""
        sizes, atoms = {parameter: size for size, parameter in self.subject.sizes.items()}, self.subject.facts.atoms

        def text(atom: str) -> str | None:
            symbol = atoms[atom].symbol
            return None if symbol.pointer else sizes.get(symbol.name)

        return None if form is None else form.written(text)


def _grid(subject: Subject) -> _Grid:
    facts, axes, why = subject.facts, subject.axes, subject.unmovable or subject.bounded
    require(not why, why)
    require(not any(one.strided for one in subject.work.axes), "threads step through the grid")
    grid = _Grid(subject)
    if axes == ["x"] and not any(one.op.endswith((".y", ".z")) for one in facts.builtins()):
        atoms = {atom for one in facts.accesses for atom in one.index.atoms}
        parts = {part for atom in atoms if (part := facts.part(Form.atom(atom), _NUMBER)) is not None}
        wide = {one.high for one in parts if one.low == ONE and one.high is not None}
        wide = wide or {one.low for one in parts} - {ONE}
        over = {one.high for one in parts if one.low in wide}
        if len(wide) == len(over) == 1:
            grid = _Grid(subject, wide.pop(), over.pop())
    require(grid.wide is not None or axes[:2] == ["x", "y"], "threads do not have two coordinates")
    conditions = [facts.conditions(effect)[0] for effect in facts.effects]
    found = [{least for one in those if (least := grid.limit(one)) is not None} for those in conditions]
    limits, exact = sorted(set.intersection(*found), key=repr) if found else [], list[str]()
    for axis in axes:
        form = grid.placed(Form.atom(f"@{axis}"))
        if not any(form.atoms <= one.atoms for one in limits):
            if subject.in_kernel(subject.threads(axis)) is not None:
                limits.append(Form.atom(f"threads.{axis}") - ONE - form)
            elif grid.wide is None and axis != "z":
                exact.append(axis)
            else:
                raise Refused("there is no guard for each coordinate")
    if grid.wide is not None:
        limits += [grid.wide - ONE - _X, *([] if grid.over is None else [grid.over - ONE - _Y * grid.wide])]
        known = None not in (grid.in_sizes(grid.wide), grid.in_sizes(grid.over or ONE))
        require(known, "the task does not say how many columns there are")
    return _Grid(subject, grid.wide, grid.over, tuple(limits), tuple(exact))


@dataclass(frozen=True, slots=True)
class _Element:
    """An element of an array in the loop: an operand, which depends on a row or on a column, its axis, or a sum. A
    variable has no nodes."""

    root: Symbol
    index: Form = ZERO
    nodes: list[Node] = field(default_factory=list)
    axis: str = ""


@dataclass(frozen=True, slots=True)
class _Sum:
    """before, after: the statements around the loop; needed: those declarations that its rounds want; unit: the steps
    that one instruction can take, 1 where it must be the loop's own body."""

    grid: _Grid
    before: list[Node]
    loop: Loop
    after: list[Node]
    needed: list[Node]
    results: list[_Element]
    operands: list[_Element]
    unit: int


def _sum(subject: Subject) -> _Sum:
    """The loop whose results can be computed together."""
    facts, grid = subject.facts, _grid(subject)
    limits = (*grid.limits, _X, _Y)
    inside = behind(facts, facts.body.kids, lambda test: test.least is not None and grid.placed(test.least) in limits)
    at = [number for number, one in enumerate(inside) if one.what == "for"]
    require(len(at) == 1, "there is not one loop behind the guard")
    loop, before = facts.loop(inside[at[0]]), inside[: at[0]]
    if loop is None or loop.kind != "counting" or loop.node.fixed:
        raise Refused("the loop does not count one by one")
    require(max(map(facts.reach, (loop.first, loop.bound))) == 0, "the loop's length is not given by parameters")
    require(not any(one.what in ENDS for one in loop.body.walk()), "the loop may end early")
    require(not facts.acts(loop.body), "the loop does more than to read and to add")
    own = _sums(grid, loop)
    operands = _operands(grid, loop, [node for one in own for node in one.nodes])
    for one in before:
        touched = facts.inside(one)
        pairs = [(access, each) for access in touched for each in own if access.root is each.root]
        begins = one.what == "assign" and any(
            access.node is one.kids[0] and grid.placed(access.index) == each.index for access, each in pairs
        )
        changes = any(facts.changes(one)) or any(access.written for access in touched)
        plain = begins or (one.what == "declaration" and not pairs and not changes)
        require(plain and not facts.acts(one), "there is more than declarations ahead of the loop")
    replaced = [node for those in (*operands, *own) for node in those.nodes]
    changed, inner, results = facts.changed_in(loop.body), facts.declared_in(loop.body), list(own)
    needed = set[Symbol]()
    for name in loop.body.walk():
        symbol = name.symbol if name.what == "name" and not any(one.holds(name) for one in replaced) else NOTHING
        known = symbol is NOTHING or symbol.what == "function" or symbol in inner or symbol is loop.variable
        if known or any(symbol is one.root for one in results):
            continue
        made = next((one for one in before if symbol in facts.declared_in(one)), None)
        if symbol in changed and made is not None:
            if symbol.type.what in ("number", "float") and symbol.declared is not None and symbol.declared.kids:
                results.append(_Element(symbol))
                continue
        elif facts.is_known(symbol, None):
            continue
        elif made is not None and facts.is_once(symbol) and not facts.inside(made):
            needed.add(symbol)
            continue
        raise Refused(f"the loop uses {symbol.name}, which is not a sum of its own")
    require(results and loop.variable not in changed, "the loop adds nothing up")
    declared = list[Node]()
    for one in reversed(before):
        if facts.declared_in(one) & needed:
            needed |= facts.names_in(one)
            declared.insert(0, one)
    require(not needed & changed, "the loop uses what depends on its sum")
    unit = _unit(subject, loop, operands, results)
    return _Sum(grid, before, loop, inside[at[0] + 1 :], declared, results, operands, unit)


def _sums(grid: _Grid, loop: Loop) -> list[_Element]:
    """The elements of arrays to which the loop adds, each array's only one."""
    facts, found = grid.subject.facts, list[_Element]()
    inside = facts.inside(loop.body)
    for root in dict.fromkeys(one.root for one in inside if one.written and one.root in facts.arrays):
        those = [one for one in inside if one.root is root]
        index = grid.placed(those[0].index)
        same = all(grid.placed(one.index) == index and not one.atomic and not one.node.fixed for one in those)
        always = not any(facts.conditions(one.node, loop.node)[0] for one in those)
        if same and always and loop.atom not in index.atoms and root not in facts.escaping:
            found.append(_Element(root, index, [one.node for one in those]))
    return found


def _operands(grid: _Grid, loop: Loop, own: list[Node]) -> list[_Element]:
    """The loop's reads, by array and element."""
    subject, found = grid.subject, dict[tuple[Symbol, Form], _Element]()
    facts, other = subject.facts, "does not depend on the row or on the column alone"
    for one in facts.inside(loop.body):
        if one.node in own:
            continue
        shown, index = facts.text(one.node), grid.placed(one.index)
        if one.root not in facts.arrays or facts.is_written(one.root) or not subject.dtype(one.root) or one.node.fixed:
            raise Refused(f"its operand `{shown}` {other}")
        always = not any(facts.conditions(one.node, loop.node))
        require(always, f"the loop does not read `{shown}` in every round")
        axes = [axis for axis in "xy" if axis in index.atoms]
        rest, inner = index.without("x", "y", loop.atom), index.times(loop.atom).without("x", "y")
        given = dict.fromkeys(("x", "y", "@x", "@z", loop.atom), "k")
        alone = len(axes) < 2 and grid.of_block(rest) and grid.of_block(inner)
        require(alone and subject.written(index, None, given) is not None, f"its operand `{shown}` {other}")
        element = _Element(one.root, index, axis=axes[0] if axes else "y")
        found.setdefault((one.root, index), element).nodes.append(one.node)
    shared = {axis for axis in "xy" for one in found.values() if {axis, loop.atom} <= one.index.atoms}
    require(not facts.escaping & facts.names_in(loop.body) and shared == {"x", "y"}, f"an operand {other}")
    return sorted(found.values(), key=lambda one: one.axis, reverse=True)


def _unit(subject: Subject, loop: Loop, operands: list[_Element], results: list[_Element]) -> int:
    """The steps that one instruction can take: more than 1 where the loop does nothing but to add a product."""
    types = {subject.dtype(one.root) for one in operands}
    *ahead, last = loop.body.kids if loop.body.what == "block" and loop.body.kids else [loop.body]
    unit = _UNITS.get(next(iter(types)), 1) if len(types) == 1 and len(operands) == 2 and len(results) == 1 else 1
    facts, kind, sums = subject.facts, "float" if unit == 16 else "number", {one.root for one in results}
    elements = {one.root.type.element.spelling.removeprefix("const ") for one in operands if one.root.type.element}
    values = {one.symbol: one.kids[-1] for made in ahead for one in made.kids if one.kids}
    pure = all(one.what == "declaration" for one in ahead)

    def inner(node: Node) -> Node:
        """An expression without conversions that keep its value, and names for it."""
        same = node.type.size == 4 or node.type.spelling.removeprefix("const ") in elements
        if node.type.what != kind or not same:
            return node
        if node.what == "name" and node.symbol in values and facts.is_once(node.symbol):
            return inner(values[node.symbol])
        if node.what == "call" and _WIDENS.fullmatch(node.op):
            given = node.kids[1:] or node.kids[0].kids
            return inner(given[0]) if len(given) == 1 else node
        return inner(node.kids[-1]) if node.what == "cast" and node.kids else node

    def is_sum(node: Node) -> bool:
        named = node.what == "name" and node.symbol in sums
        return named or any(one is node for result in results for one in result.nodes)

    def product(node: Node) -> list[Node]:
        node = inner(node)
        return node.kids if node.what == "binary" and node.op == "*" and node.type.what == kind else []

    if unit == 1 or not pure or last.what != "assign" or not is_sum(last.kids[0]) or last.fixed:
        return 1
    (target, value), factors = last.kids, list[Node]()
    if last.op == "+=":
        factors = product(value)
    elif last.op == "=" and value.what == "call" and _FUSED.fullmatch(value.op) and is_sum(value.kids[-1]):
        factors = value.kids[1:3]
    elif last.op == "=" and value.what == "binary" and value.op == "+" and any(map(is_sum, value.kids)):
        factors = product(value.kids[1 if is_sum(value.kids[0]) else 0])
    plain = all(one.what == kind and one.size == 4 for one in (target.type, *(factor.result for factor in factors)))
    found = [any(inner(one) is node for node in operand.nodes) for one in factors for operand in operands]
    return unit if plain and found in ([True, False, False, True], [False, True, True, False]) else 1


def _tiles(subject: Subject, found: _Sum) -> Change:
    facts, loop, index, grid = subject.facts, found.loop, subject.index_type, found.grid
    words = ("OUTPUT_TILE", "OUTPUT_DEPTH", "OUTPUT_ROWS", "OUTPUT_COLUMNS", "OUTPUT_STEPS", "row", "column", "step")
    tile, depth, rows, columns, unit, i, j, k = map(subject.name, words)
    own, begin, left, part_of, along, at_step = map(subject.name, ("own", "begin", "left", "part", "along", "at_step"))
    here = {axis: subject.name(f"{axis}_here") for axis in "xy"}
    totals = {axis: subject.in_kernel(subject.threads(axis)) for axis in subject.axes}
    given = {**here, "@z": "blockIdx.z", loop.atom: k}
    given |= {f"threads.{axis}": f"({total})" for axis, total in totals.items()}
    if grid.over is not None:
        given["@x"] = f"((long long)blockIdx.z * ({subject.written(grid.over)}))"

    def guard(but: str = "") -> str | None:
        """The test for a result, or for what depends on one coordinate, `but` the other."""
        found = [subject.written(one.replaced(but, ZERO), None, given) for one in grid.limits]
        tests = [f"(long long)({one}) >= 0" for one in dict.fromkeys(found)]
        return None if None in found else " && ".join(tests) or "true"

    first, bound = subject.written(loop.first), subject.written(loop.bound)
    tests = {one: guard(one) for one in ("", "x", "y")}
    require(None not in (first, bound, *tests.values()), "its bounds are not known ahead of the guard")
    stored = [grid.placed(one.index) for one in facts.accesses if one.written]
    across = "y" if any(one.times("y") == ONE for one in stored) else "x"
    numbers = {axis: subject.written(grid.placed(Form.atom(f"@{axis}")), None, given) for axis in subject.axes}
    moved = tuple(
        replace(node, f"(({index})({numbers[axis.name]}))") for axis in subject.work.axes for node in axis.nodes
    )
    coordinates = " ".join(
        f"const {index} {here[axis]} = blockIdx.{axis} * {tile} + {own}.{method};"
        for axis, method in zip((across, "y" if across == "x" else "x"), (f"column({j})", f"row({i})"), strict=True)
    )
    size, steps = f"{rows}, {columns}", unit if found.unit > 1 else "1"
    each = f"tunesmith::each<{size}>([&](const int {i}, const int {j}) {{ {coordinates}"
    pack = {1: "1", 4: unit, 16: f"({unit} == 16 ? 2 : 1)"}[found.unit]
    tiles = {at: f"{part_of}_{at}" for at in range(len(found.operands))}
    parts: list[str | Span] = [f"const tunesmith::Own<{steps}, {tile}, {size}> {own};\n"]
    staged, put, taken = "", "", ""
    for at, one in enumerate(found.operands):
        axis, element = one.axis, one.root.element
        near = 2 if one.index.times(loop.atom) == ONE else 1 if one.index.times(axis) == ONE else 0
        method, count = ("columns", columns) if axis == across else ("rows", rows)
        sides, stage = f"{element}, {tile}, {depth}, {pack}", f"stage_{tiles[at]}"
        how = f"({tile} / {rows}) * ({tile} / {columns}), {near}, {subject.hint(one.root)}, {sides}"
        parts.append(f"__shared__ tunesmith::Part<{sides}> {tiles[at]};\ntunesmith::Stage<{how}> {stage};\n")
        placed = f"const {index} {here[axis]} = blockIdx.{axis} * {tile} + {along};"
        staged += (
            f"{stage}.fetch({begin}, {left}, [&](const int {along}, const long long {k}) -> const {element}* {{\n"
            f"{placed} return &{one.root.name}[{subject.written(one.index, None, given)}]; }}, "
            f"[&](const int {along}) {{ {placed} return {tests['y' if axis == 'x' else 'x']}; }});\n"
        )
        put += f"{stage}.put({tiles[at]}); "
        taken += f"{element} of_{tiles[at]}[{count}]; {own}.{method}(of_{tiles[at]}, {tiles[at]}, {at_step});\n"
    results = {one.root: subject.name(f"all_{one.root.name}") for one in found.results}
    keep, back = "", ""
    for one in found.results:
        kind, element, kept = one.root.written, one.root.name, f"{results[one.root]}[{i}][{j}]"
        if one.nodes:
            kind, element = one.root.element, f"{element}[{subject.written(one.index, None, given)}]"
        parts.append(f"{kind} {results[one.root]}[{rows}][{columns}];\n")
        keep, back = f"{keep} {kept} = {element};", f"{back} {element} = {kept};"
    before = [part for one in found.before for part in (span(one, *moved), ";\n")]
    parts += [f"{each} if ({tests['']}) {{\n", *before, f"{keep} }} }});\n"]
    parts.append(
        f"tunesmith::multiply<{steps}, {depth}>({first}, {bound}, "
        f"[&](const long long {begin}, const long long {left}) {{\n{staged}}}, [&] {{ {put}}}, "
        f"[&](const int {at_step}, const long long {k}) {{\n"
    )
    if found.unit > 1:
        both = ", ".join(tiles[at] for at in sorted(tiles, key=lambda at: found.operands[at].axis == across))
        parts.append(
            f"#if {unit} > 1\ntunesmith::dot({own}, {results[found.results[0].root]}, {both}, {at_step});\n#else\n"
        )
    swaps = [
        replace(node, f"of_{tiles[at]}[{j if one.axis == across else i}]")
        for at, one in enumerate(found.operands)
        for node in one.nodes
    ]
    swaps += [replace(node, f"{results[one.root]}[{i}][{j}]") for one in found.results for node in one.nodes]
    parts += [
        f"{taken}{each}\n",
        *(part for one in found.needed for part in (span(one, *moved), ";\n")),
        f"{{ const {loop.variable.written.removeprefix('const ')} {loop.variable.name} = {k};\n",
        *(f"auto& {one.root.name} = {results[one.root]}[{i}][{j}]; " for one in found.results if not one.nodes),
        span(loop.body, *swaps, *moved),
        "; } });\n",
        "#endif\n" if found.unit > 1 else "",
        "});\n",
    ]
    again = [part for one in found.before if one.what == "declaration" for part in (span(one, *moved), "\n")]
    after = [part for one in found.after for part in (span(one, *moved), ";\n")]
    parts += [f"{each} if ({tests['']}) {{\n", *again, back, "\n", *after, "} });\n"]
    return _launch(subject, found, parts, (tile, depth, rows, columns, unit))


def _launch(subject: Subject, found: _Sum, parts: list[str | Span], names: tuple[str, ...]) -> Change:
    (tile, depth, rows, columns, unit), grid = names, found.grid
    threads, side = f"({tile} // {rows}) * ({tile} // {columns})", f"max({tile}, 1)"
    counts = [subject.threads("x"), subject.threads("y"), subject.threads("z")]
    if grid.wide is not None:
        all_, wide, over = counts[0], grid.in_sizes(grid.wide), grid.in_sizes(grid.over)
        counts = [f"{wide}", f"ceil_div({over or all_}, {wide})", f"ceil_div({all_}, {over})" if over else "1"]
    launch = LaunchGeometry(
        grid=(f"ceil_div({counts[0]}, {side})", f"ceil_div({counts[1]}, {side})", counts[2]), block=(threads, "1", "1")
    )
    exact = {f"({subject.threads(axis)}) % {side} == 0": NO_GUARD for axis in grid.exact}
    alone = f"{depth} == 8 and {rows} == 1 and {columns} == 1"
    kit, pad, least, said = "products", "4", 0, ""
    made = Change()
    made.alternative(subject, tile, parts, launch)
    made.parameter(tile, (0, 32, 64, 128), "side of a tile of results of a block; 0: none")
    made.parameter(depth, (8, 16, 32), "steps of the sum that are in shared memory at a time")
    made.parameter(rows, (1, 2, 4, 8), "rows of the tile that a thread computes")
    made.parameter(columns, (1, 2, 4, 8), "columns of the tile that a thread computes")
    made.constraints[f"{tile} == 0 or 32 <= {threads} <= 1024"] = "A block has from 32 to 1024 threads."
    if found.unit == 4:
        kit, least, said = "packed_products", 61, "4: __dp4a"
    elif found.unit == 16:
        kit, least, said = "fragment_products", 80, "16: tensor cores, which add in an order of their own"
        pad = f"(8 if {unit} == 16 else 4)"
        shape = f"{depth} >= 16 and {rows} >= 2 and {columns} >= 2 and {tile} >= 8 * {rows}"
        made.constraints[f"{unit} == 1 or ({shape})"] = "A warp multiplies fragments of 16 x 16 by 16 x 8."
        made.header.append('#include "kit/fragments.cuh"')
    if least:
        alone = f"{alone} and {unit} == 1"
        made.parameter(unit, (1, found.unit), f"steps of the sum that an instruction takes; {said}")
        made.constraints[f"{unit} == 1 or compute_capability >= {least}"] = "Older devices have no such instruction."
    made.constraints |= exact
    made.constraints[f"{tile} > 0 or ({alone})"] = "Without a tile its measures mean nothing."
    sizes = " + ".join(f"sizeof({subject.dtype(one.root)})" for one in found.operands)
    made.static_shared = f"(({tile} + {pad}) * {depth} * ({sizes}) + 16 if {tile} > 0 else 0)"
    made.kit = kit, "hints"
    return made


OUTPUT_TILES = Pass(
    "output_tiles",
    _sum,
    _tiles,
    why="results do not share their operands: ",
    excludes=dict.fromkeys(("block_size", "work_per_thread", "launch_bounds", "vectors"), ALONE),
    after=("cache_hints",),
)
