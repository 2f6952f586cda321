"""Neighbouring elements are read and written together, as one access of up to 16 bytes.

A thread that computes one element from its global coordinate computes several neighbours instead. What does not fill a
vector, at the end or where an array begins at another address, goes element by element.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tunesmith.kernels.rewrite.passes.hints import load, store
from tunesmith.kernels.rewrite.passes.rule import Applied, Edit, Skipped, Subject, rule
from tunesmith.kernels.rewrite.source import Access, Kernel, bare, text, walk
from tunesmith.kernels.rewrite.threads import Cells, coordinates, global_coordinate, keeps_below
from tunesmith.kernels.spec.dtypes import C_TYPES, DTYPES
from tunesmith.kernels.spec.template import Constraint, Parameter

if TYPE_CHECKING:
    from tree_sitter import Node

_UNCERTAIN = frozenset(
    {
        "for_statement",
        "while_statement",
        "do_statement",
        "switch_statement",
        "conditional_expression",
        "lambda_expression",
    }
)


@rule
def vectors(given: Subject) -> Applied | Skipped:
    """How many neighbouring elements a thread reads and writes together; 1 is as it was."""
    kernel = given.kernel
    if not isinstance(given.work, Cells) or len(given.work.axes) != 1 or given.work.axes[0].name != "x":
        return Skipped("elements are read one by one: threads do not have one coordinate")
    axis = given.work.axes[0]
    if axis.strided or not axis.bound:
        return Skipped("elements are read one by one: there is no guard for the coordinate of a thread")
    if "#" in kernel.plain:
        return Skipped("elements are read one by one: the kernel has lines for the preprocessor")
    if changed := sorted({one.name for one in kernel.parameters} & kernel.changed):
        return Skipped(f"elements are read one by one: the kernel changes its parameter {changed[0]}")
    names = coordinates(kernel, "x")
    arrays = {
        one.name: found
        for one in kernel.parameters
        if one.pointer and C_TYPES.get(one.c_type, one.c_type) in {*DTYPES, *given.types}
        if one.name not in kernel.escaping and (found := _neighbours(kernel, one.name, names, axis.bound))
    }
    if not arrays:
        return Skipped(
            "elements are read one by one: no array is read or written at the coordinate of a thread for certain"
        )
    name, record = given.name("VEC"), given.name("Elements")
    first, item, whole, of = (given.name(one) for one in ("first", "item", "whole", "elements_of"))
    coordinate = next(text(one) for one in walk(kernel.body) if global_coordinate(kernel, one) == "x")
    if any(name in coordinate for name in kernel.aliases):
        coordinate = "blockIdx.x * blockDim.x + threadIdx.x"
    types = {one.name: one.c_type for one in kernel.parameters}
    loaded = [one for one in arrays if any(access.read for access in arrays[one])]
    writes = [one for one in arrays if any(access.written for access in arrays[one])]
    whole_body = _body(kernel, arrays, f"({first} + {item})", f"{of}_", item)
    single_body = _body(kernel, {}, f"({first} + {item})", "", item)
    aligned = " | ".join(f"(unsigned long long){one} % sizeof({record}<{types[one]}>)" for one in arrays)
    lines = [
        f"\n#if {name} > 1",
        "{",
        f"const auto {first} = ({coordinate}) * {name};",
        f"const bool {whole} = {first} + {name} <= ({axis.bound}) && ({aligned}) == 0;",
        f"if ({whole}) {{",
        *(f"{record}<{types[one]}> {of}_{one};" for one in arrays),
        *(
            f"{of}_{one} = {load(given, one, f'reinterpret_cast<const {record}<{types[one]}>*>({one} + {first})')};"
            for one in loaded
        ),
        f"const auto {given.name('compute')} = [&](const unsigned int {item}) {whole_body};",
        "#pragma unroll",
        f"for (unsigned int {item} = 0; {item} < {name}; ++{item}) {given.name('compute')}({item});",
        *(
            f"{store(given, one, f'reinterpret_cast<{record}<{types[one]}>*>({one} + {first})', f'{of}_{one}')};"
            for one in writes
        ),
        "} else {",
        f"const auto {given.name('compute')} = [&](const unsigned int {item}) {single_body};",
        f"for (unsigned int {item} = 0; {item} < {name}; ++{item}) {given.name('compute')}({item});",
        "}",
        "}",
        "#else",
        "",
    ]
    # Inside the braces of the kernel, around everything that other rules make of its body.
    edits = (
        Edit(kernel.body.start_byte, kernel.body.start_byte, "{" + "\n".join(lines)),
        Edit(kernel.body.end_byte, kernel.body.end_byte, "\n#endif\n}", closes=True),
    )
    header = (
        f"#if {name} > 1\ntemplate <class V> struct alignas({name} * sizeof(V)) {record} {{ V at[{name}]; }};\n#endif"
    )
    sizes = sorted({C_TYPES.get(types[one], types[one]) for one in arrays})
    constraints = [
        Constraint(
            expression=f"{name} == 1 or {name} * sizeof({one}) <= 16", because="No access has more than 16 bytes."
        )
        for one in sizes
    ]
    items = given.name("ITEMS")
    constraints.append(
        Constraint(expression=f"{name} == 1 or {items} == 1", because="A thread has one vector of neighbours.")
    )
    doc = "neighbouring elements that a thread reads and writes together"
    parameter = Parameter(name=name, values=(1, 2, 4, 8, 16), doc=doc)
    return Applied((parameter,), edits, header, tuple(constraints), scale=(("x", name),))


def _neighbours(kernel: Kernel, root: str, names: set[str], bound: str) -> list[Access]:
    """The accesses to an array, where all are at the coordinate and the decisive ones happen for certain; else none."""
    own = [one for one in kernel.accesses if one.root == root]
    at_coordinate = all(len(one.path) == 1 and _is_coordinate(kernel, one.path[0], names) for one in own)
    if not own or not at_coordinate or any(one.atomic or one.node.type != "subscript_expression" for one in own):
        return []
    written = [one for one in own if one.written]
    if not any(certain(kernel, one.node, {"x": bound}) for one in (written or own)):
        return []
    return own


def _is_coordinate(kernel: Kernel, node: Node, names: set[str]) -> bool:
    inner = bare(node)
    return inner is not None and (text(inner) in names or global_coordinate(kernel, inner) == "x")


def certain(kernel: Kernel, node: Node, bounds: Mapping[str, str], least: int = 0) -> bool:
    """Whether an access happens for all coordinates below `bounds`, by axis, and not below `least`: it stands under a
    guard that asks for these and nothing else, and no other return comes before it."""
    if any(one.type == "goto_statement" for one in walk(kernel.body)):
        return False
    above: Node | None = node.parent
    guards: list[Node] = []
    while above is not None and above != kernel.body:
        if above.type in _UNCERTAIN or (above.type == "binary_expression" and re.search(r"&&|\|\|", text(above))):
            return False
        if above.type == "if_statement":
            guards.append(above)
        above = above.parent
    for one in walk(kernel.body):
        if one.type == "return_statement" and one.start_byte < node.start_byte:
            inner = one.parent
            if inner is not None and inner.type == "compound_statement":
                inner = inner.parent
            guards.append(one if inner is None else inner)
    return len(guards) == 1 and guards[0].parent == kernel.body and keeps_below(kernel, guards[0], bounds, least)


def _body(kernel: Kernel, arrays: dict[str, list[Access]], coordinate: str, local: str, item: str) -> str:
    """The kernel's body for one element: the coordinate is `coordinate`, arrays are their elements in registers."""
    code, start = (kernel.body.text or b""), kernel.body.start_byte
    changes = [(one.node, f"{local}{root}.at[{item}]") for root, found in arrays.items() for one in found]
    inside = [(node.start_byte, node.end_byte) for node, _ in changes]
    for node in walk(kernel.body):
        within = any(a <= node.start_byte and node.end_byte <= b for a, b in inside)
        if not within and global_coordinate(kernel, node) == "x":
            changes.append((node, coordinate))
    for node, new in sorted(changes, key=lambda one: -one[0].start_byte):
        code = code[: node.start_byte - start] + new.encode() + code[node.end_byte - start :]
    return code.decode()
