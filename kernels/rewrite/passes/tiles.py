"""Tiles in shared memory: of a transpose, and of results that share their operands.

What is read along one dimension and written along another goes through a tile, so that reads and writes both follow the
rows in memory (CUDA C++ Best Practices Guide, "Shared Memory in Matrix Transpose"). Where each result sums over
products of what depends on its row with what depends on its column, a block reads both for its whole tile, some steps
at a time, and a thread keeps several results in registers, so that an operand that was read serves many (V. Volkov and
J. Demmel, "Benchmarking GPUs to Tune Dense Linear Algebra", SC 2008); sums are taken in the order that they had.
"""

from __future__ import annotations

from dataclasses import dataclass

from tunesmith.kernels.reader.syntax import Node, Symbol
from tunesmith.kernels.rewrite.edits import Edit, Span, replace, span
from tunesmith.kernels.rewrite.facts import ENDS, Access, Loop
from tunesmith.kernels.rewrite.forms import ONE, Form
from tunesmith.kernels.rewrite.passes.record import Change, Pass, Plan, Refused, Subject
from tunesmith.kernels.rewrite.passes.vectors import assignment, value_of
from tunesmith.kernels.rewrite.sharing import statements
from tunesmith.kernels.spec.template import Constraint, LaunchGeometry, Parameter

ROWS = 8
"""Rows of threads of a block; each goes over several rows of the tile."""
ALONE = "A tile has a launch of its own."


def _untiled(subject: Subject) -> str:
    """Why blocks cannot have tiles of the results, as a clause; empty where they can."""
    if subject.axes != ["x", "y"]:
        return "threads do not have two coordinates"
    if set(subject.bounds) != {"x", "y"}:
        return "there is no guard for each coordinate"
    return subject.unmovable or ("the kernel has launch bounds of its own" if subject.facts.launch_bounds else "")


def _turned(subject: Subject) -> tuple[Access, Access, Node] | Refused:
    """The element that is read, the one that is written, and the assignment that does."""
    facts = subject.facts
    if why := _untiled(subject):
        return Refused(f"it is no transpose: {why}")
    shared = [one for one in facts.accesses if one.root in facts.arrays]
    loads, stores = [one for one in shared if one.read], [one for one in shared if one.written]
    if len(loads) != 1 or len(stores) != 1 or loads[0].root is stores[0].root or facts.escaping or len(shared) != 2:
        return Refused("it is no transpose: it does more than to read one element and to write one")
    load, store, assign = loads[0], stores[0], assignment(stores[0])
    apart = (load.index.times("@x"), store.index.times("@y")) == (ONE, ONE)
    if not apart or "@y" not in load.index.atoms or "@x" not in store.index.atoms or store.index.times("@x") == ONE:
        return Refused("it is no transpose: what it reads and writes is not along x and along y")
    if assign is None or not assign.kids[1].holds(load.node) or load.node.fixed or load.node.what != "index":
        return Refused("it is no transpose: what it writes is not computed from what it reads in one assignment")
    others = [one for one in assign.kids[1].walk() if not load.node.holds(one)]
    known = all(
        one.symbol is None or one.symbol.what == "function" or facts.is_known(one.symbol, None) for one in others
    )
    certain = all(facts.certain(one.node, subject.bounds) for one in (load, store))
    if not known or not certain or any(one.what == "builtin" for one in others):
        return Refused("it is no transpose: what it writes depends on more than what it reads")
    if not subject.dtype(load.root):
        return Refused(f"the transpose stays: the size of `{load.root.element}` is not known")
    return load, store, assign


def _tile(subject: Subject, found: tuple[Access, Access, Node], plan: Plan) -> Change | Refused:
    load, store, assign = found
    name, tile, x, y, value = (subject.name(one) for one in ("TILE", "tile", "tile_x", "tile_y", "element_of_tile"))
    given = {"@x": x, "@y": y}
    places = [plan.written(form, None, given) for form in (load.index, store.index)]
    bounds = [plan.written(subject.bounds[axis]) for axis in "xy"]
    if None in places or None in bounds:
        return Refused("the transpose stays: its indices are not known ahead of its guard")
    source, target = load.root, store.root
    hints = plan.hint(source), plan.hint(target, stored=True)
    before = f"""
#if {name} > 0
__shared__ {source.element} {tile}[{name}][{name} + 1];
tunesmith::transpose<{name}, {ROWS}>({tile}, {bounds[0]}, {bounds[1]},
    [&](long long {x}, long long {y}) {{ return tunesmith::load<{hints[0]}>(&{source.name}[{places[0]}]); }},
    [&](long long {x}, long long {y}, const {source.element}& {value}) {{
        tunesmith::store<{hints[1]}>(&{target.name}[{places[1]}], """
    inner = value_of(subject, assign)
    copied = Span(inner.start, inner.end, (replace(load.node, value),))
    body = Span(subject.facts.body.start + 1, subject.facts.body.end - 1)
    edit = Edit(body.start, body.end, (before, copied, ");\n    });\n#else\n", body, "\n#endif\n"))
    launch = LaunchGeometry(
        grid=(*(f"ceil_div({subject.threads(axis)}, max({name}, 1))" for axis in "xy"), subject.grid("z")),
        block=(name, f"{ROWS}", "1"),
    )
    parameter = Parameter(name=name, values=(0, 16, 32, 64), doc="side of a tile turned in shared memory; 0: none")
    return Change(
        parameters=(parameter,),
        edits=(edit,),
        kit=("transposed", "hints"),
        static_shared=f"{name} * ({name} + 1) * sizeof({subject.dtype(source)})",
        instead=(name, launch),
    )


TRANSPOSED_TILES = Pass(
    "transposed_tiles",
    _turned,
    _tile,
    excludes=dict.fromkeys(("block_size", "work_per_thread", "launch_bounds", "vectors"), ALONE),
    after=("cache_hints",),
)


PAD = 4
"""Elements between the rows of a tile in shared memory."""
_WHY = "results do not share their operands"


@dataclass(frozen=True, slots=True)
class _Sum:
    """before: declarations ahead of the loop; sums: what it adds up; after: statements behind it; operands: the reads
    that depend on an axis, by its name."""

    before: list[Node]
    loop: Loop
    sums: list[Symbol]
    after: list[Node]
    operands: dict[str, list[Access]]


def _sum(subject: Subject) -> _Sum | Refused:
    """The loop whose results can be computed together, or why there is none."""
    facts = subject.facts
    if why := _untiled(subject):
        return Refused(f"{_WHY}: {why}")
    inside = statements(subject.facts, subject.bounds)
    at = [number for number, one in enumerate(inside) if one.what == "for"]
    if len(at) != 1:
        return Refused(f"{_WHY}: there is not one loop behind the guard")
    loop = facts.loop(inside[at[0]])
    if loop is None or loop.kind != "counting" or loop.node.fixed:
        return Refused(f"{_WHY}: the loop does not count one by one")
    if facts.reach(loop.first) > 0 or facts.reach(loop.bound) > 0:
        return Refused(f"{_WHY}: the loop's length is not given by parameters")
    if any(one.what in ENDS for one in loop.body.walk()):
        return Refused(f"{_WHY}: the loop may end early")
    operands = _operands(subject, loop)
    if isinstance(operands, Refused):
        return operands
    before = inside[: at[0]]
    if any(one.what != "declaration" or has_effects(subject, one) for one in before):
        return Refused(f"{_WHY}: there is more than declarations ahead of the loop")
    replaced = [one.node for those in operands.values() for one in those]
    used = [
        one
        for one in loop.body.walk()
        if one.what == "name" and one.symbol is not None and one.symbol.what != "function"
        if not any(node.holds(one) for node in replaced)
    ]
    changed, own, sums = facts.changed_in(loop.body), facts.declared_in(loop.body), list[Symbol]()
    for name in used:
        symbol = name.symbol
        if symbol is None or symbol in own or symbol is loop.variable or symbol in sums:
            continue
        if symbol in changed and any(symbol in facts.declared_in(one) for one in before):
            scalar = symbol.type.what in ("number", "float") and symbol.declared is not None and symbol.declared.kids
            if scalar and symbol is not loop.variable:
                sums.append(symbol)
                continue
        elif facts.is_known(symbol, None) or _is_coordinate(subject, symbol):
            continue
        return Refused(f"{_WHY}: the loop uses {symbol.name}, which is no sum of its own")
    if not sums or loop.variable in changed:
        return Refused(f"{_WHY}: the loop adds nothing up")
    return _Sum(before, loop, sums, inside[at[0] + 1 :], operands)


def _is_coordinate(subject: Subject, symbol: Symbol) -> bool:
    made = symbol.declared
    if made is None or not subject.facts.is_once(symbol):
        return False
    return any(subject.facts.form(made.kids[-1]) == Form.atom(f"@{axis}") for axis in "xy")


def has_effects(subject: Subject, node: Node) -> bool:
    """Whether it makes a difference how often the statement is carried out."""
    written = any(one.written for one in subject.facts.inside(node))
    return written or any(subject.facts.changes(node)) or any(node.holds(one) for one in _acting(subject))


def _acting(subject: Subject) -> list[Node]:
    reads = {one.node for one in subject.facts.accesses if not one.written}
    return [one for one in subject.facts.effects if one not in reads]


def _operands(subject: Subject, loop: Loop) -> dict[str, list[Access]] | Refused:
    """What the loop reads, by the axis that it depends on beside the loop's variable."""
    facts, found = subject.facts, dict[str, list[Access]]()
    other = "does not depend on the row or on the column alone"
    for one in facts.inside(loop.body):
        shown = facts.text(one.node)
        if one.root not in facts.arrays or facts.is_written(one.root) or not subject.dtype(one.root) or one.node.fixed:
            return Refused(f"{_WHY}: what the loop reads as `{shown}` {other}")
        if any(facts.conditions(one.node, loop.node)):
            return Refused(f"{_WHY}: the loop does not read `{shown}` in every round")
        axes = [axis for axis in "xy" if f"@{axis}" in one.index.atoms]
        rest = one.index.without("@x", "@y", loop.atom)
        inner = one.index.times(loop.atom).without("@x", "@y") if axes else Form()
        alone = len(axes) == 1 and loop.atom in one.index.atoms and facts.reach(rest) <= 1 and facts.reach(inner) <= 1
        if not alone or Plan(subject).written(one.index, None, {loop.atom: "k"}) is None:
            return Refused(f"{_WHY}: what the loop reads as `{shown}` {other}")
        found.setdefault(axes[0], []).append(one)
    same = all(len({(one.root, one.index) for one in those}) == 1 for those in found.values())
    if facts.escaping.keys() & facts.names_in(loop.body) or not same or set(found) != {"x", "y"}:
        return Refused(f"{_WHY}: what the loop reads {other}")
    return found


def _tiles(subject: Subject, found: _Sum, plan: Plan) -> Change | Refused:
    facts, loop, index = subject.facts, found.loop, subject.index_type
    tile, depth, rows, columns = (subject.name(f"OUTPUT_{one}") for one in ("TILE", "DEPTH", "ROWS", "COLUMNS"))
    across = "y" if any(one.written and one.index.times("@y") == ONE for one in facts.accesses) else "x"
    down = "y" if across == "x" else "x"
    here = {axis: subject.name(f"{axis}_here") for axis in "xy"}
    i, j, k, place, to, part = (subject.name(one) for one in ("row", "column", "step", "from", "to", "part"))
    bounds = {axis: plan.written(bound) for axis, bound in subject.bounds.items()}
    first, bound = plan.written(loop.first), plan.written(loop.bound)
    if None in bounds.values() or first is None or bound is None:
        return Refused(f"{_WHY}: its bounds are not known ahead of the guard")
    counts, inner = {down: rows, across: columns}, {down: i, across: j}
    moved = tuple(replace(node, here[axis.name]) for axis in subject.work.axes for node in axis.nodes)
    kind = loop.variable.written.removeprefix("const ")

    mine = subject.name("mine")
    coordinates = " ".join(
        f"const {index} {here[axis]} = {place}_{axis} + {mine}_{axis} * {counts[axis]} + {inner[axis]};"
        for axis in "xy"
    )

    guard = " && ".join(f"{here[axis]} < {bounds[axis]}" for axis in "xy")
    results = {symbol: subject.name(f"all_{symbol.name}") for symbol in found.sums}
    each = f"tunesmith::each<{rows}, {columns}>([&](const int {i}, const int {j}) {{ {coordinates}"
    parts: list[str | Span] = [f"\n#if {tile} > 0\n"]
    elements = {axis: found.operands[axis][0].root.element for axis in (down, across)}
    for axis, element in elements.items():
        parts.append(f"__shared__ tunesmith::Part<{element}, {tile}, {depth}> {part}_{axis};\n")
    parts += [f"{symbol.written} {results[symbol]}[{rows}][{columns}];\n" for symbol in found.sums]
    parts.append(f"const {index} {place}_x = blockIdx.x * {tile}, {place}_y = blockIdx.y * {tile};\n")
    cross = f"({tile} / {columns})"
    parts.append(f"const int {mine}_{across} = threadIdx.x % {cross}, {mine}_{down} = threadIdx.x / {cross};\n")
    declared = [one for one in coordinate_declarations(subject) if not any(one is other for other in found.before)]
    before = [part_ for one in [*declared, *found.before] for part_ in (span(one, *moved), "\n")]
    keep = " ".join(f"{results[symbol]}[{i}][{j}] = {symbol.name};" for symbol in found.sums)
    parts += [f"{each} if ({guard}) {{\n", *before, f"{keep} }} }});\n"]
    flags = ", ".join(str(_by_steps(found, axis)).lower() for axis in (down, across))
    parts.append(
        f"tunesmith::multiply<{rows}, {columns}, {flags}>({part}_{down}, {part}_{across}, "
        f"{mine}_{down}, {mine}_{across}, {first}, {bound},\n"
    )
    for axis in (down, across):
        access = found.operands[axis][0]
        written = plan.written(access.index, None, {f"@{axis}": here[axis], loop.atom: k})
        parts.append(
            f"[&](const {index} {i}, const long long {k}, {access.root.element}& {to}) {{ "
            f"const {index} {here[axis]} = {place}_{axis} + {i}; "
            f"if ({here[axis]} < {bounds[axis]}) "
            f"{to} = tunesmith::load<{plan.hint(access.root)}>(&{access.root.name}[{written}]); }},\n"
        )
    swaps = tuple(replace(one.node, f"{part}_of_{axis}") for axis, those in found.operands.items() for one in those)
    taken = ", ".join(f"const {elements[axis]}& {part}_of_{axis}" for axis in (down, across))
    needed = [one for one in declared if facts.declared_in(one) & facts.names_in(loop.body)]
    parts += [
        f"[&](const int {i}, const int {j}, const long long {k}, {taken}) {{ {coordinates}\n",
        *(part_ for one in needed for part_ in (span(one, *moved), "\n")),
        f"{{ const {kind} {loop.variable.name} = {k};\n",
        *(f"auto& {symbol.name} = {results[symbol]}[{i}][{j}]; " for symbol in found.sums),
        span(loop.body, *swaps, *moved),
        "; } });\n",
    ]
    back = " ".join(f"{symbol.name} = {results[symbol]}[{i}][{j}];" for symbol in found.sums)
    after = [part_ for one in found.after for part_ in (span(one, *moved), ";\n")]
    body = Span(facts.body.start + 1, facts.body.end - 1)
    parts += [f"{each} if ({guard}) {{\n", *before, back, "\n", *after, "} });\n#else\n", body, "\n#endif\n"]
    return _launch(subject, found, Edit(body.start, body.end, tuple(parts)), (tile, depth, rows, columns))


def _by_steps(found: _Sum, axis: str) -> bool:
    """Whether neighbouring steps of an operand are neighbours in memory."""
    return found.operands[axis][0].index.times(found.loop.atom) == ONE


def coordinate_declarations(subject: Subject) -> list[Node]:
    """The declarations that compute coordinates."""
    nodes = [node for axis in subject.work.axes for node in axis.nodes]
    own = [above for node in nodes for above, _ in node.above() if above.what == "declaration"]
    return sorted(dict.fromkeys(own), key=lambda one: one.start)


def _launch(subject: Subject, found: _Sum, edit: Edit, names: tuple[str, ...]) -> Change:
    tile, depth, rows, columns = names
    threads = f"({tile} // {rows}) * ({tile} // {columns})"
    launch = LaunchGeometry(
        grid=(*(f"ceil_div({subject.threads(axis)}, max({tile}, 1))" for axis in "xy"), subject.grid("z")),
        block=(threads, "1", "1"),
    )
    constraints = (
        Constraint(
            expression=f"{tile} > 0 or ({depth} == 8 and {rows} == 1 and {columns} == 1)",
            because="Without a tile its measures mean nothing.",
        ),
        Constraint(
            expression=f"{tile} == 0 or 32 <= {threads} <= 1024", because="A block has from 32 to 1024 threads."
        ),
    )
    parameters = (
        Parameter(name=tile, values=(0, 32, 64, 128), doc="side of a tile of results of a block; 0: none"),
        Parameter(name=depth, values=(8, 16, 32), doc="steps of the sum that are in shared memory at a time"),
        Parameter(name=rows, values=(1, 2, 4, 8), doc="rows of the tile that a thread computes"),
        Parameter(name=columns, values=(1, 2, 4, 8), doc="columns of the tile that a thread computes"),
    )
    sizes = " + ".join(f"sizeof({subject.dtype(those[0].root)})" for those in found.operands.values())
    return Change(
        parameters=parameters,
        edits=(edit,),
        kit=("products", "hints"),
        constraints=constraints,
        static_shared=f"(({tile} + {PAD}) * {depth} * ({sizes}) + 16 if {tile} > 0 else 0)",
        instead=(tile, launch),
    )


OUTPUT_TILES = Pass(
    "output_tiles",
    _sum,
    _tiles,
    excludes=dict.fromkeys(("block_size", "work_per_thread", "launch_bounds", "vectors"), ALONE),
    after=("cache_hints",),
)
