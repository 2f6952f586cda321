"""Rows that threads only go over, without a word to one another: several in a block, or one over several blocks.

A block for each row has few threads with work where rows are short, and too few blocks where there are few rows. Where
the threads of a block never meet, nothing but the launch ties them to one row.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tunesmith.kernels.rewrite.facts import AXES, Loop
from tunesmith.kernels.rewrite.passes.record import Change, Edit, Pass, Plan, Refused, Span, Subject, replace, wrap
from tunesmith.kernels.rewrite.sharing import Rows, reads_thread
from tunesmith.kernels.rewrite.syntax import Node
from tunesmith.kernels.spec.template import Constraint, Parameter


@dataclass(frozen=True, slots=True)
class _Teams:
    """axis: of the rows; rows: where the kernel asks for its row, empty where a block keeps one; loops: that blocks may
    share, empty where they may not."""

    axis: str
    rows: list[Node]
    loops: list[Loop]


def _teams(subject: Subject) -> _Teams | Refused:
    facts = subject.facts
    if not isinstance(subject.work, Rows) or facts.together:
        return Refused("a block has one row: its threads work together, or it has no row")
    uses = {axis: [one for one in facts.builtins() if one.op == f"blockIdx.{axis}"] for axis in AXES}
    if any(one.op.startswith("gridDim") for one in facts.builtins()):
        return Refused("a block has one row: it asks for the size of the grid")
    axis = "y" if uses["y"] else "x"
    count = subject.grid(axis)
    counted = set(re.findall(r"[A-Za-z_]\w*", count)) <= subject.same_sizes and not re.search(r"//|\*\*", count)
    free = counted and not subject.returns and not any(one.fixed for one in uses[axis])
    why = "the grid has a third dimension" if uses["z"] or subject.grid("z") != "1" else ""
    loops = [one for one in facts.loops if one.kind == "block"]
    why = why or _one_place(subject, loops)
    found = _Teams(axis, uses[axis] if free else [], [] if why else loops)
    if found.rows or found.loops:
        return found
    return Refused(f"a block has one row: {why or 'the kernel does not know how many there are'}")


def _one_place(subject: Subject, loops: list[Loop]) -> str:
    """Why the loops cannot be shared by blocks, as a clause; empty where each round stands by itself."""
    facts = subject.facts
    for loop in loops:
        if loop.node.parent is not facts.body or loop.node.fixed or loop.node.kids[2].fixed or loop.first_node.fixed:
            return "its loops are inside others"
        if loop.node.kids[2].what != "assign" or loop.node.kids[2].op != "+=":
            return "a loop does not add to its variable"
        own = facts.declared_in(loop.body)
        for name, _ in facts.changes(loop.body):
            if name.symbol not in own:
                return f"a loop changes {name.op}, which is not its own"
    if facts.escaping:
        return "it gives its arrays to functions"
    for root in sorted({one.root for one in facts.accesses if one.written}, key=lambda one: one.name):
        used = facts.of(root)
        homes = {next((at for at, loop in enumerate(loops) if loop.node.holds(one.node)), -1) for one in used}
        if len(homes) != 1 or (homes == {-1} and any(one.read for one in used)):
            return f"{root.name} is written and used at several places"
    return ""


def _share(subject: Subject, found: _Teams, plan: Plan) -> Change:
    facts, body = subject.facts, subject.facts.body
    parameters, edits, constraints = list[Parameter](), list[Edit](), list[Constraint]()
    header, grid, block, writes = list[str](), dict[str, str](), dict[str, str](), dict[str, str]()
    threads, extends, off = tuple[str, ...](), dict[str, tuple[int, ...]](), list[str]()
    first = plan.threads[0] if plan.threads else ""
    if found.rows:
        name, row, axis = subject.name("TEAM_ROWS"), subject.name("TEAM_ROW"), found.axis
        count = subject.grid(axis)
        parameters.append(Parameter(name=name, values=(1, 2, 4, 8, 16, 32), doc="rows of a block"))
        header += [f"#if {name} > 1", f"#define {row} (blockIdx.{axis} * {name} + threadIdx.y)", "#else"]
        header += [f"#define {row} blockIdx.{axis}", "#endif"]
        edits += [replace(one, row) for one in found.rows]
        inside = Span(body.start + 1, body.end - 1)
        opening = f"\n#if {name} > 1\nif ({row} < ({count}))\n#endif\n{{"
        edits.append(Edit(inside.start, inside.end, (opening, inside, "}\n")))
        grid[axis], block["y"], threads = f"ceil_div({count}, {name})", name, (name,)
        writes[f"blockIdx.{axis}"] = row
        off.append(f"{name} == 1")
        if facts.launch_bounds and first:
            because = "The kernel keeps its own launch bounds with its own block."
            constraints.append(Constraint(expression=f"{name} == 1 or {first} > 0", because=because))
        if first and not _asks_for_lanes(subject):
            # An SM holds 32 blocks (CUDA C++ Programming Guide, "Compute Capabilities"): smaller ones leave it half empty.
            extends[first] = (8, 16)
            because = "Rows that have less than a warp share a block of two warps or more."
            enough = f"{first} == 0 or {first} >= 32 or {first} * {name} >= 64"
            constraints.append(Constraint(expression=enough, because=because))
    if found.loops:
        name, begin = subject.name("TEAM_BLOCKS"), subject.name("TEAM_FIRST")
        width = plan.builtin("blockDim.x")
        parameters.append(Parameter(name=name, values=(1, 2, 4, 8), doc="blocks that share a row"))
        header += [f"#if {name} > 1", f"#define {begin} + blockIdx.z * {width}", "#else", f"#define {begin}", "#endif"]
        for loop in found.loops:
            edits.append(wrap(loop.first_node, "", f" {begin}"))
            edits.append(wrap(loop.node.kids[2].kids[1], "", f" * {name}"))
        grid["z"] = name
        writes |= {"turn": f"threadIdx.x {begin}", "turns": f"{width} * {name}"}
        off.append(f"{name} == 1")
    return Change(
        parameters=tuple(parameters),
        edits=tuple(edits),
        header="\n".join(header),
        constraints=tuple(constraints),
        block=block,
        grid=grid,
        threads=threads,
        extends=extends,
        writes=writes,
        off=" and ".join(off),
    )


def _asks_for_lanes(subject: Subject) -> bool:
    """Whether the kernel computes with the number of a thread in its warp."""
    return any(
        one.what == "binary" and one.op in ("%", "/", "&", ">>") and reads_thread(subject.facts, one.kids[0])
        for one in subject.facts.syntax.everything()
    )


ROW_TEAMS = Pass("row_teams", _teams, _share, after=("block_size",))
