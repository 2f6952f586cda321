"""A transpose goes through a tile in shared memory, so that reads and writes both follow the rows in memory.

Rows of the tile have one element more than they need, so that a column lies in different banks (CUDA C++ Best Practices
Guide, "Shared Memory in Matrix Transpose").
"""

from __future__ import annotations

import re

from tunesmith.kernels.rewrite.passes.rule import Applied, Edit, Skipped, Subject, rule
from tunesmith.kernels.rewrite.source import Kernel, bare, operator, text, walk
from tunesmith.kernels.rewrite.threads import Cells, coordinates
from tunesmith.kernels.spec.dtypes import C_TYPES, DTYPES
from tunesmith.kernels.spec.template import Constraint, LaunchGeometry, Parameter

ROWS = 8
"""Rows of threads of a block; each goes over several rows of the tile."""


@rule
def transposed_tiles(given: Subject) -> Applied | Skipped:
    """The side of a tile that a block turns in shared memory; 0 is as it was."""
    kernel = given.kernel
    found = _transpose(kernel) if isinstance(given.work, Cells) and len(given.work.axes) == 2 else None
    if found is None or not isinstance(given.work, Cells):
        return Skipped("it is no transpose of two dimensions")
    bounds = {axis.name: bound for axis in given.work.axes if (bound := bounds_of(kernel).get(axis.name, ""))}
    if set(bounds) != {"x", "y"}:
        return Skipped("the transpose stays: there is no guard for each coordinate")
    target, source, wide, high, c_type = found
    dtype = C_TYPES.get(c_type, c_type)
    if dtype not in DTYPES and dtype not in given.types:
        return Skipped(f"the transpose stays: the size of `{c_type}` is not known")
    if any(node.type == "launch_bounds" for node in kernel.function.children):
        return Skipped("the transpose stays: the kernel has launch bounds of its own")
    # in[y * wide + x] goes to out[x * high + y].
    name, tile, row, column, step = (
        given.name(one) for one in ("TILE", "tile", "tile_row", "tile_column", "tile_step")
    )
    x, y = f"({column} + threadIdx.x)", f"({row} + {step})"
    turned_x, turned_y = f"({column} + {step})", f"({row} + threadIdx.x)"
    loop = f"for (unsigned int {step} = threadIdx.y; {step} < {name}; {step} += {ROWS})"
    lines = [
        f"{{\n#if {name} > 0",
        "{",
        f"__shared__ {c_type} {tile}[{name}][{name} + 1];",
        f"const unsigned int {column} = blockIdx.x * {name}, {row} = blockIdx.y * {name};",
        "#pragma unroll",
        f"{loop} if ({x} < ({bounds['x']}) && {y} < ({bounds['y']})) "
        f"{tile}[{step}][threadIdx.x] = {source}[(size_t){y} * ({wide}) + {x}];",
        "__syncthreads();",
        "#pragma unroll",
        f"{loop} if ({turned_x} < ({bounds['x']}) && {turned_y} < ({bounds['y']})) "
        f"{target}[(size_t){turned_x} * ({high}) + {turned_y}] = {tile}[threadIdx.x][{step}];",
        "}",
        "#else",
        "",
    ]
    edits = (
        Edit(kernel.body.start_byte, kernel.body.start_byte, "\n".join(lines)),
        Edit(kernel.body.end_byte, kernel.body.end_byte, "\n#endif\n}", closes=True),
    )
    task_bound = {axis: f"({given.grid(axis)}) * ({given.block(axis)})" for axis in "xy"}
    launch = LaunchGeometry(
        grid=(*(f"ceil_div({task_bound[axis]}, max({name}, 1))" for axis in "xy"), "1"),
        block=(f"{name}", f"{ROWS}", "1"),
    )
    # A tile has its own launch: changes by other rules would mean nothing.
    alone = [("BLOCK_X", "== 0"), ("ITEMS_X", "== 1"), ("ITEMS_Y", "== 1"), ("MIN_BLOCKS", "== 0")]
    constraints = [
        Constraint(expression=f"{name} == 0 or {given.name(one)} {value}", because="A tile has a launch of its own.")
        for one, value in alone
    ]
    shared = f"{name} * ({name} + 1) * sizeof({dtype})"
    parameter = Parameter(name=name, values=(0, 16, 32, 64), doc="side of a tile turned in shared memory; 0: none")
    return Applied((parameter,), edits, "", tuple(constraints), static_shared=shared, instead=(name, launch))


def bounds_of(kernel: Kernel) -> dict[str, str]:
    """By axis, the parameter below which the guard keeps the coordinate."""
    found: dict[str, str] = {}
    guards = [one for one in walk(kernel.body) if one.type == "if_statement"]
    if len(guards) != 1:
        return {}
    condition = re.sub(r"\s+", "", text(guards[0].child_by_field_name("condition") or guards[0])).strip("()")
    returns = "return" in text(guards[0])
    parts = condition.split("||" if returns else "&&")
    for part in parts:
        match = re.fullmatch(r"\(?(\w+)(>=|<)(\w+)\)?", part)
        if match is None or (match[2] == ">=") != returns or match[3] not in kernel.constants:
            return {}
        for axis in "xy":
            if match[1] in coordinates(kernel, axis):
                found[axis] = match[3]
    return found if len(parts) == 2 else {}


def _transpose(kernel: Kernel) -> tuple[str, str, str, str, str] | None:
    """Target, source, the width and height by which they are indexed, and the element type, where all that the kernel
    does is `target[x * high + y] = source[y * wide + x]`."""
    if len(kernel.accesses) != 2 or kernel.escaping:
        return None
    written = [one for one in kernel.accesses if one.written and not one.read]
    read = [one for one in kernel.accesses if one.read and not one.written]
    statements = [one for one in walk(kernel.body) if one.type == "assignment_expression"]
    if len(written) != 1 or len(read) != 1 or len(statements) != 1:
        return None
    right = bare(statements[0].child_by_field_name("right"))
    if right is None or right != read[0].node or operator(statements[0]) != "=":
        return None
    places = []
    for one, (slow, fast) in ((written[0], "xy"), (read[0], "yx")):
        if one.node.type != "subscript_expression" or len(one.path) != 1:
            return None
        match = re.fullmatch(r"(\w+)\*(\w+)\+(\w+)", re.sub(r"\s+|\((?:size_t|longlong|long)\)", "", text(one.path[0])))
        if match is None:
            return None
        slowly, by = match[1], match[2]
        if slowly not in coordinates(kernel, slow):
            slowly, by = by, slowly
        if slowly not in coordinates(kernel, slow) or match[3] not in coordinates(kernel, fast):
            return None
        if by not in kernel.constants:
            return None
        places.append(by)
    types = {one.name: one.c_type for one in kernel.parameters}
    if types[written[0].root] != types[read[0].root]:
        return None
    return written[0].root, read[0].root, places[1], places[0], types[read[0].root]
