"""Rows that threads only go over, without a word to one another: several in a block, or one over several blocks.

A block for each row has few threads with work where rows are short, and too few blocks where there are few rows. Where
the threads of a block never meet, nothing but the launch ties them to one row.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tunesmith.kernels.rewrite.passes.rule import Applied, Edit, Skipped, Subject, rule
from tunesmith.kernels.rewrite.source import Kernel, text, walk
from tunesmith.kernels.rewrite.threads import Rows, block_stride, loop_of
from tunesmith.kernels.spec.template import Constraint, Parameter

if TYPE_CHECKING:
    from tree_sitter import Node


@rule
def row_teams(given: Subject) -> Applied | Skipped:
    """Rows of a block, and blocks of a row; 1 of both is as it was."""
    kernel = given.kernel
    if not isinstance(given.work, Rows) or kernel.shared or kernel.barriers or kernel.warp_wide:
        return Skipped("a block has one row: its threads work together, or it has no row")
    loops = [node for node in walk(kernel.body) if node.type == "for_statement" and block_stride(kernel, node)]
    uses = {axis: [one for one in kernel.builtin_uses() if kernel.builtin(one) == f"blockIdx.{axis}"] for axis in "xyz"}
    grids = {axis for axis in "xyz" if uses[axis] or given.grid(axis) != "1"}
    if any("gridDim" in text(node) for node in walk(kernel.body) if node.type == "identifier") or not loops:
        return Skipped("a block has one row: it asks for the size of the grid")
    parameters, edits, constraints = list[Parameter](), list[Edit](), list[Constraint]()
    header, grid, block = list[str](), list[tuple[str, str]](), list[tuple[str, str]]()
    axis = "y" if uses["y"] else "x"
    nodes = _written_out(kernel, f"blockIdx.{axis}")
    count = given.grid(axis)
    counted = set(re.findall(r"[A-Za-z_]\w*", count)) <= given.same_sizes and not re.search(r"//|\*\*", count)
    if counted and nodes and not any(node.type == "return_statement" for node in walk(kernel.body)):
        name, row = given.name("TEAM_ROWS"), given.name("TEAM_ROW")
        parameters.append(Parameter(name=name, values=(1, 2, 4, 8, 16, 32), doc="rows of a block"))
        header += [f"#if {name} > 1", f"#define {row} (blockIdx.{axis} * {name} + threadIdx.y)", "#else"]
        header += [f"#define {row} blockIdx.{axis}", "#endif"]
        edits += [Edit(one.start_byte, one.end_byte, row) for one in nodes]
        opening = f"{{\n#if {name} > 1\nif ({row} < ({count}))\n#endif\n"
        edits.append(Edit(kernel.body.start_byte, kernel.body.start_byte, opening))
        edits.append(Edit(kernel.body.end_byte, kernel.body.end_byte, "\n}", closes=True))
        grid.append((axis, f"ceil_div({count}, {name})"))
        block.append(("y", name))
        if any(node.type == "launch_bounds" for node in kernel.function.children):
            because = "The kernel keeps its own launch bounds with its own block."
            constraints.append(Constraint(expression=f"{name} == 1 or {given.name('BLOCK')} > 0", because=because))
    if "z" not in grids and not (why := _one_place(kernel, loops)):
        name, first = given.name("TEAM_BLOCKS"), given.name("TEAM_FIRST")
        parameters.append(Parameter(name=name, values=(1, 2, 4, 8), doc="blocks that share a row"))
        step = given.name("BLOCK_DIM_X")
        header += [f"#if {name} > 1", f"#define {first} + blockIdx.z * {step}", "#else", f"#define {first}", "#endif"]
        for node in loops:
            read = loop_of(node)
            assert read is not None
            edits.append(Edit(read[1].end_byte, read[1].end_byte, f" {first}"))
            edits.append(Edit(read[3].end_byte, read[3].end_byte, f" * {name}", closes=True))
        grid.append(("z", name))
    elif "z" not in grids and not parameters:
        return Skipped(f"a block has one row: {why}")
    if not parameters:
        return Skipped("a block has one row: the kernel does not know how many there are")
    return Applied(
        tuple(parameters), tuple(edits), "\n".join(header), tuple(constraints), tuple(block), grid=tuple(grid)
    )


def in_team(given: Subject, code: str) -> str:
    """What another rewrite made of the kernel's text, with the row of the team in the place of that of the block."""
    axis = "y" if any(given.kernel.builtin(one) == "blockIdx.y" for one in given.kernel.builtin_uses()) else "x"
    named = _has(given, "TEAM_ROWS")
    return re.sub(rf"\bblockIdx\s*\.\s*{axis}\b", given.name("TEAM_ROW"), code) if named else code


def first_of(given: Subject, first: str) -> str:
    """The first turn of a thread, with the block's part of the row."""
    return f"({first}) {given.name('TEAM_FIRST')}" if _has(given, "TEAM_BLOCKS") else f"({first})"


def step_of(given: Subject, step: str) -> str:
    """How far apart the turns of a thread are."""
    return f"{step} * {given.name('TEAM_BLOCKS')}" if _has(given, "TEAM_BLOCKS") else step


def _has(given: Subject, name: str) -> bool:
    found = row_teams(given)
    return isinstance(found, Applied) and any(one.name == given.name(name) for one in found.parameters)


def _one_place(kernel: Kernel, loops: list[Node]) -> str:
    """Why the loops cannot be shared by blocks, as a clause; empty where each round stands by itself."""
    for loop in loops:
        body = loop.child_by_field_name("body")
        if body is None or loop.parent != kernel.body:
            return "its loops are inside others"
        own = kernel.own(body)
        for one in kernel.changed_names:
            if body.start_byte <= one.start_byte < body.end_byte and text(one) not in own:
                return f"a loop changes {text(one)}, which is not its own"
    if kernel.escaping:
        return "it gives its arrays to functions"
    for root in sorted({one.root for one in kernel.accesses if one.written}):
        used = [one for one in kernel.accesses if one.root == root]
        homes = {
            next((at for at, loop in enumerate(loops) if loop.start_byte <= one.node.start_byte < loop.end_byte), -1)
            for one in used
        }
        if len(homes) != 1 or (homes == {-1} and any(one.read for one in used)):
            return f"{root} is written and used at several places"
    return ""


def _written_out(kernel: Kernel, name: str) -> list[Node]:
    """Where the kernel, or a function that it calls, writes the builtin `name`."""
    return [
        node
        for body in (kernel.body, *kernel.functions)
        for node in walk(body)
        if node.type == "field_expression" and text(node) == name
    ]
