"""Results that share their operands are computed together: a tile of them by a block, several by each thread.

Where each result sums over products of what depends on its row with what depends on its column, as in a matrix product,
a block reads both for its whole tile into shared memory, some steps at a time, and a thread keeps several results in
registers, so that an operand that was read serves many (V. Volkov and J. Demmel, "Benchmarking GPUs to Tune Dense
Linear Algebra", SC 2008). Sums are taken in the order that they had.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunesmith.kernels.rewrite.passes.halo import halo
from tunesmith.kernels.rewrite.passes.hints import load
from tunesmith.kernels.rewrite.passes.rule import Applied, Edit, Skipped, Subject, rule
from tunesmith.kernels.rewrite.passes.tiles import bounds_of
from tunesmith.kernels.rewrite.source import Access, Kernel, bare, operator, text, walk
from tunesmith.kernels.rewrite.threads import Cells, coordinates, loop_of
from tunesmith.kernels.spec.dtypes import C_TYPES, DTYPES
from tunesmith.kernels.spec.template import Constraint, LaunchGeometry, Parameter

if TYPE_CHECKING:
    from tree_sitter import Node

PAD = 4
"""Elements between the rows of a tile in shared memory: they begin at a vector still, and in other banks."""
_ENDS = frozenset({"break_statement", "continue_statement", "return_statement", "goto_statement"})
_WORDS = frozenset({"blockIdx", "x", "y", "z", "int", "size_t", "long", "unsigned", "float", "double"})


@dataclass(frozen=True, slots=True)
class _Sum:
    """before: declarations ahead of the loop; loop: over `name` from `first` to `bound`; sums: what it adds up, with
    its type; after: statements behind it; operands: the reads that depend on an axis, by its name."""

    before: list[Node]
    loop: Node
    name: str
    c_type: str
    first: str
    bound: str
    sums: dict[str, str]
    after: list[Node]
    operands: dict[str, list[Access]]


@rule
def output_tiles(given: Subject) -> Applied | Skipped:
    """The side of a tile of results that a block computes together; 0 is as it was."""
    kernel = given.kernel
    if not isinstance(given.work, Cells) or [axis.name for axis in given.work.axes] != ["x", "y"]:
        return Skipped("results do not share their operands: threads do not have two coordinates")
    bounds = bounds_of(kernel)
    if set(bounds) != {"x", "y"}:
        return Skipped("results do not share their operands: there is no guard for each coordinate")
    if any(node.type == "launch_bounds" for node in kernel.function.children) or "#" in kernel.plain:
        return Skipped("results stay apart: the kernel has launch bounds, or lines for the preprocessor, of its own")
    found = _sum(given)
    if isinstance(found, str):
        return Skipped(f"results do not share their operands: {found}")
    names = {one: given.name(f"OUTPUT_{one}") for one in ("TILE", "DEPTH", "ROWS", "COLUMNS")}
    tile, depth, rows, columns = names.values()
    across = _fast_axis(kernel)
    code = _code(given, found, bounds, across, names)
    edits = (
        Edit(kernel.body.start_byte, kernel.body.start_byte, code),
        Edit(kernel.body.end_byte, kernel.body.end_byte, "\n#endif\n}", closes=True),
    )
    total = {axis: f"({given.grid(axis)}) * ({given.block(axis)})" for axis in "xy"}
    threads = f"({tile} // {rows}) * ({tile} // {columns})"
    launch = LaunchGeometry(
        grid=(*(f"ceil_div({total[axis]}, max({tile}, 1))" for axis in "xy"), given.grid("z")),
        block=(threads, "1", "1"),
    )
    alone = [("BLOCK_X", "== 0"), ("ITEMS_X", "== 1"), ("ITEMS_Y", "== 1"), ("MIN_BLOCKS", "== 0")]
    because = "A tile of results has a launch of its own."
    constraints = [
        Constraint(expression=f"{tile} == 0 or {given.name(one)} {is_}", because=because) for one, is_ in alone
    ]
    constraints += [
        Constraint(
            expression=f"{tile} > 0 or ({depth} == 8 and {rows} == 1 and {columns} == 1)",
            because="Without a tile its measures mean nothing.",
        ),
        Constraint(
            expression=f"{tile} == 0 or 32 <= {threads} <= 1024", because="A block has from 32 to 1024 threads."
        ),
    ]
    if isinstance(halo(given), Applied):
        constraints.append(Constraint(expression=f"{tile} == 0 or not {given.name('HALO')}", because=because))
    types = {one.name: one.c_type for one in kernel.parameters}
    sizes = " + ".join(
        f"sizeof({C_TYPES.get(types[one[0].root], types[one[0].root])})" for one in found.operands.values()
    )
    parameters = (
        Parameter(name=tile, values=(0, 32, 64, 128), doc="side of a tile of results of a block; 0: none"),
        Parameter(name=depth, values=(8, 16, 32), doc="steps of the sum that are in shared memory at a time"),
        Parameter(name=rows, values=(1, 2, 4, 8), doc="rows of the tile that a thread computes"),
        Parameter(name=columns, values=(1, 2, 4, 8), doc="columns of the tile that a thread computes"),
    )
    shared = f"(({tile} + {PAD}) * {depth} * ({sizes}) + 16 if {tile} > 0 else 0)"
    return Applied(parameters, edits, "", tuple(constraints), static_shared=shared, instead=(tile, launch))


def _code(given: Subject, found: _Sum, bounds: dict[str, str], across: str, names: dict[str, str]) -> str:
    """The kernel's body with tiles, up to the `#else` ahead of the original."""
    kernel, (tile, depth, rows, columns) = given.kernel, names.values()
    down = "y" if across == "x" else "x"
    counts = {down: rows, across: columns}
    use = {one: given.name(one) for one in ("step", "at", "part", "row", "column", "results", "mine", "start", "turn")}
    item = {down: use["row"], across: use["column"]}
    types = {one.name: one.c_type for one in kernel.parameters}
    kinds = declared_types(kernel)
    cross = f"({tile} / {columns})"

    def coordinate(axis: str, inside: str) -> str:
        return " ".join(
            f"const {kinds[name]} {name} = {use['start']}_{axis} + {inside};"
            for name in sorted(coordinates(kernel, axis))
        )

    both = " ".join(
        coordinate(axis, f"{use['mine']}_{axis} * {counts[axis]} + {item[axis]}") for axis in (down, across)
    )
    guard = " && ".join(f"{sorted(coordinates(kernel, axis))[0]} < ({bounds[axis]})" for axis in "xy")
    each = (
        f"#pragma unroll\nfor (int {use['row']} = 0; {use['row']} < {rows}; ++{use['row']})\n"
        f"#pragma unroll\nfor (int {use['column']} = 0; {use['column']} < {columns}; ++{use['column']})"
    )
    before = " ".join(text(one) for one in found.before)
    place = f"[{use['row']}][{use['column']}]"
    lines = [f"{{\n#if {tile} > 0", "{"]
    for axis, (first, *_) in found.operands.items():
        lines.append(f"alignas(16) __shared__ {types[first.root]} {use['part']}_{axis}[{depth}][{tile} + {PAD}];")
    lines += [f"const unsigned int {use['start']}_{axis} = blockIdx.{axis} * {tile};" for axis in "xy"]
    lines += [
        f"const unsigned int {use['mine']}_{across} = threadIdx.x % {cross}, "
        f"{use['mine']}_{down} = threadIdx.x / {cross};"
    ]
    lines += [f"{kind} {use['results']}_{name}[{rows}][{columns}];" for name, kind in found.sums.items()]
    keep = " ".join(f"{use['results']}_{name}{place} = {name};" for name in found.sums)
    lines.append(f"{each} {{ {both} if ({guard}) {{ {before} {keep} }} }}")
    steps = f"{found.c_type} {use['step']} = {found.first}; {use['step']} < {found.bound}; {use['step']} += {depth}"
    lines.append(f"for ({steps}) {{")
    threads = f"({tile} / {rows} * {cross})"
    for axis, (first, *_) in found.operands.items():
        fast_steps = is_term(first, {found.name})
        inner, outer = (depth, tile) if fast_steps else (tile, depth)
        along = f"{use['at']} {'/' if fast_steps else '%'} {inner}"
        step = f"{use['at']} {'%' if fast_steps else '/'} {inner}"
        pointer = " + ".join([first.root, *(f"({text(part)})" for part in first.path)])
        name = sorted(coordinates(kernel, axis))[0]
        lines += [
            "#pragma unroll 4",
            f"for (unsigned int {use['at']} = threadIdx.x; {use['at']} < {inner} * {outer}; "
            f"{use['at']} += {threads}) {{",
            f"{coordinate(axis, along)} const {found.c_type} {found.name} = {use['step']} + {step};",
            f"if ({name} < ({bounds[axis]}) && {found.name} < {found.bound}) "
            f"{use['part']}_{axis}[{step}][{along}] = {load(given, first.root, pointer)};",
            "}",
        ]
    lines.append("__syncthreads();")
    turn = [f"const auto {use['turn']} = [&](const int {use['at']}) {{"]
    for axis, (first, *_) in found.operands.items():
        turn += [
            f"{types[first.root]} {use['part']}_of_{axis}[{counts[axis]}];",
            f"#pragma unroll\nfor (int {item[axis]} = 0; {item[axis]} < {counts[axis]}; ++{item[axis]}) "
            f"{use['part']}_of_{axis}[{item[axis]}] = "
            f"{use['part']}_{axis}[{use['at']}][{use['mine']}_{axis} * {counts[axis]} + {item[axis]}];",
        ]
    changed = [
        (one.node, f"{use['part']}_of_{axis}[{item[axis]}]") for axis, those in found.operands.items() for one in those
    ]
    inside = found.loop.child_by_field_name("body")
    assert inside is not None
    body, start = (inside.text or b""), inside.start_byte
    for node, new in sorted(changed, key=lambda one: -one[0].start_byte):
        body = body[: node.start_byte - start] + new.encode() + body[node.end_byte - start :]
    named = " ".join(f"{kind}& {name} = {use['results']}_{name}{place};" for name, kind in found.sums.items())
    turn += [
        f"{each} {{ {both} {named} const {found.c_type} {found.name} = {use['step']} + {use['at']};",
        f"{body.decode()} }}",
        "};",
    ]
    lines += turn
    lines += [
        f"if ({found.bound} - {use['step']} >= {depth}) {{",
        f"#pragma unroll\nfor (int {use['at']} = 0; {use['at']} < {depth}; ++{use['at']}) {use['turn']}({use['at']});",
        f"}} else for (int {use['at']} = 0; {use['at']} < {found.bound} - {use['step']}; ++{use['at']}) "
        f"{use['turn']}({use['at']});",
        "__syncthreads();",
        "}",
    ]
    given_back = " ".join(f"{name} = {use['results']}_{name}{place};" for name in found.sums)
    after = " ".join(text(one) for one in found.after)
    lines.append(f"{each} {{ {both} if ({guard}) {{ {before} {given_back} {after} }} }}")
    return "\n".join([*lines, "}", "#else", ""])


def _sum(given: Subject) -> _Sum | str:
    """The loop whose results can be computed together, or why there is none, as a clause."""
    kernel = given.kernel
    statements = guarded(kernel)
    loops = [one for one in statements if one.type == "for_statement"]
    if len(loops) != 1:
        return "there is not one loop behind the guard"
    (loop,) = loops
    read, body, start = loop_of(loop), loop.child_by_field_name("body"), loop.child_by_field_name("initializer")
    update = loop.child_by_field_name("update")
    if read is None or body is None or start is None or update is None or update.type != "update_expression":
        return "the loop does not count one by one"
    name, first, bound, _ = read
    kind = start.child_by_field_name("type")
    scalars = set(kernel.constants)
    if moved := sorted({one.name for one in kernel.parameters} & kernel.changed):
        return f"the kernel changes its parameter {moved[0]}"
    if kind is None or not names_in(bound) <= scalars or not names_in(text(first)) <= scalars:
        return "the loop's length is not given by parameters"
    inside = list(walk(body))
    if _ENDS & {one.type for one in inside} or any(one.type.startswith("preproc") for one in inside):
        return "the loop may end early"
    operands = _operands(given, loop, name, scalars)
    if operands is None:
        return "what the loop reads does not depend on the row or on the column alone"
    at = statements.index(loop)
    before = [one for one in statements[:at] if one.type != "comment"]
    if any(one.type != "declaration" or _has_effects(kernel, one) for one in before):
        return "there is more than declarations ahead of the loop"
    replaced = [(one.node.start_byte, one.node.end_byte) for those in operands.values() for one in those]
    outside = {
        text(one)
        for one in inside
        if one.type == "identifier"
        and not any(a <= one.start_byte and one.end_byte <= b for a, b in replaced)
        and not (one.parent is not None and one.parent.type == "call_expression")
    }
    own = kernel.own(body)
    known = own | scalars | {name} | coordinates(kernel, "x") | coordinates(kernel, "y")
    changed = {text(one) for one in kernel.changed_names if body.start_byte <= one.start_byte < body.end_byte}
    sums = dict[str, str]()
    for one in sorted(outside - known):
        c_type = _scalar_before(before, one)
        if not c_type or one not in changed:
            return f"the loop uses {one}, which is no sum of its own"
        sums[one] = c_type
    if not sums or name in changed:
        return "the loop adds nothing up"
    return _Sum(before, loop, name, text(kind), text(first), bound, sums, statements[at + 1 :], operands)


def _has_effects(kernel: Kernel, node: Node) -> bool:
    """Whether it makes a difference how often the statement is carried out."""
    written = (one.node.start_byte for one in kernel.accesses if one.written)
    given = any(one.type == "identifier" and kernel.escapes(text(one)) for one in walk(node))
    return given or any(kernel.changes(node)) or any(node.start_byte <= at < node.end_byte for at in written)


def guarded(kernel: Kernel) -> list[Node]:
    """The statements behind the guard, and the declarations ahead of it that are not coordinates."""
    made = coordinates(kernel, "x") | coordinates(kernel, "y")
    found: list[Node] = []
    for one in kernel.body.named_children:
        if one.type == "comment":
            continue
        if one.type == "declaration":
            names = {text(name) for name in kernel.declared_names if one.start_byte <= name.start_byte < one.end_byte}
            if not names <= made:
                found.append(one)
        elif one.type == "if_statement" and "return" not in text(one):
            then = one.child_by_field_name("consequence")
            if then is not None:
                found += then.named_children if then.type == "compound_statement" else [then]
        elif one.type != "if_statement":
            found.append(one)
    return [one for one in found if one.type != "comment"]


def _operands(given: Subject, loop: Node, name: str, scalars: set[str]) -> dict[str, list[Access]] | None:
    """What the loop reads, by the axis that it depends on beside the loop's variable."""
    kernel, found = given.kernel, dict[str, list[Access]]()
    types = {one.name: one.c_type for one in kernel.parameters}
    for one in kernel.accesses:
        if not loop.start_byte <= one.node.start_byte < loop.end_byte:
            continue
        own = [other for other in kernel.accesses if other.root == one.root]
        if one.root in kernel.escaping or any(other.written for other in own):
            return None
        if C_TYPES.get(types[one.root], types[one.root]) not in {*DTYPES, *given.types}:
            return None
        used = {word for part in one.path for word in names_in(text(part))} - _WORDS
        axes = [axis for axis in "xy" if used & coordinates(kernel, axis)]
        if len(axes) != 1 or name not in used or not used <= scalars | {name} | coordinates(kernel, axes[0]):
            return None
        found.setdefault(axes[0], []).append(one)
    same = all(len({(one.root, _place(one)) for one in those}) == 1 for those in found.values())
    return found if same and set(found) == {"x", "y"} else None


def _place(access: Access) -> tuple[str, ...]:
    return tuple(sorted(re.sub(r"\s+", "", text(part)) for part in access.path))


def names_in(code: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", code))


def is_term(access: Access, names: set[str]) -> bool:
    """Whether one of `names` is added to the index as it is: neighbours of it are neighbours in memory."""

    def terms(node: Node) -> list[str]:
        one = bare(node) or node
        left, right = one.child_by_field_name("left"), one.child_by_field_name("right")
        if one.type == "binary_expression" and operator(one) == "+" and left is not None and right is not None:
            return [*terms(left), *terms(right)]
        return [text(one)]

    return any(term in names for part in access.path for term in terms(part))


def _fast_axis(kernel: Kernel) -> str:
    """The axis along which results are neighbours in memory."""
    for one in kernel.accesses:
        if one.written and is_term(one, coordinates(kernel, "y")):
            return "y"
    return "x"


def _scalar_before(before: list[Node], name: str) -> str:
    """The type of a scalar that one of the declarations makes with a value; empty where none does."""
    for one in before:
        kind = one.child_by_field_name("type")
        for declarator in one.children_by_field_name("declarator"):
            made = declarator.child_by_field_name("declarator")
            if declarator.type == "init_declarator" and made is not None and text(made) == name and kind is not None:
                return "" if any(child.type == "type_qualifier" for child in one.children) else text(kind)
    return ""


def declared_types(kernel: Kernel) -> dict[str, str]:
    """The types of the body's variables, by name."""
    found = {}
    for node in walk(kernel.body):
        kind = node.child_by_field_name("type") if node.type == "declaration" else None
        if kind is not None:
            for declarator in node.children_by_field_name("declarator"):
                name = declarator.child_by_field_name("declarator")
                if name is not None and name.type == "identifier":
                    found[text(name)] = text(kind)
    return found
