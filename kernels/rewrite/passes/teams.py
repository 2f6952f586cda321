"""Rows that threads only go over, without a word to one another: several in a block, or one over several blocks.

A block for each row has few threads with work where rows are short, and too few blocks where there are few rows. Where
the threads of a block never meet, nothing but the launch ties them to one row.
"""

from __future__ import annotations

from tunesmith.kernels.rewrite.edits import insert, replace, wrap
from tunesmith.kernels.rewrite.facts import Loop
from tunesmith.kernels.rewrite.forms import ONE
from tunesmith.kernels.rewrite.passes.record import BOTH, Change, Pass, Subject, require

_Teams = tuple[list[Loop], str, str]
"""The loops in which a block takes turns, the axis of the grid along which rows may share a block, or nothing, and why
one block has the whole of a row, as a clause, or nothing."""


def _teams(subject: Subject) -> _Teams:
    facts = subject.facts
    require(subject.work.kind == "rows", f": {subject.work.why or 'its threads do not take turns on one'}")
    where = next((f", line {facts.syntax.line(one)}" for one in facts.barriers), "")
    require(not facts.together, f": its threads work together{where}")
    for one in facts.builtins():
        place = f"line {facts.syntax.line(one)} has {facts.text(one)}"
        on_grid = one.op.startswith(("gridDim", "gridSize", "@"))
        require(not on_grid, f": {place}, which depends on the grid")
    loops = [one for one in facts.loops if one.kind == "block"]
    functions = [one for one, _ in facts.loops_of_functions if one.kind == "block"]
    nodes = {axis: [one for one in facts.builtins() if one.op == f"blockIdx.{axis}"] for axis in "xyz"}
    axis = next((one for one in "zyx" if nodes[one] or subject.grid(one) != "1"), "")
    if not axis or any(one.fixed for one in nodes[axis]):
        axis = ""
    alone = "a loop of a function shares the row" if functions else _one_place(subject, loops)
    if nodes["z"] or subject.grid("z") != "1":
        alone = "its grid has three dimensions"
    require(axis or not alone, f", and the row one block: {alone}")
    return loops, axis, alone


def _one_place(subject: Subject, loops: list[Loop]) -> str:
    """Why the loops cannot be shared by blocks, as a clause; empty where each round stands by itself."""
    facts, written = subject.facts, list[str]()
    for loop in loops:
        line = f"line {facts.syntax.line(loop.node)}"
        if loop.node.parent is not facts.body or loop.fixed:
            return f"the loop of {line} is inside another statement, or a macro's"
        for one in facts.changed_in(loop.body) - facts.declared_in(loop.body):
            if not facts.counts_anew(one):
                written.append(f"the loop of {line} changes {one.name}, which lives longer than a round")
    for root in [*facts.arrays, *sorted(facts.escaping, key=lambda one: one.place)]:
        own = facts.of(root)
        if not facts.is_written(root):
            continue
        homes = {next((at for at, loop in enumerate(loops) if loop.body.holds(one.node)), -1) for one in own}
        if root in facts.escaping or len(homes) != 1 or (homes == {-1} and any(one.read for one in own)):
            written.append(f"{root.name} is written, and used at several places")
        elif homes != {-1} and any(one.read for one in own) and not all(one.atomic for one in own):
            atom = loops[min(homes)].atom
            if len({one.index for one in own}) != 1 or own[0].index.times(atom) != ONE:
                written.append(f"rounds write elements of {root.name} that others read")
    return next(iter(written), "")


def _change(subject: Subject, found: _Teams) -> Change:
    (loops, axis, alone), made, first = found, Change(), subject.factors[:1]
    rows, blocks = subject.name("TEAM_ROWS"), subject.name("TEAM_BLOCKS")
    own = f"{first[0]} > 0" if first else "True"
    if axis:
        row, at = subject.name("TEAM_ROW"), f"blockIdx.{axis}"
        index, line = subject.builtin(at), subject.builtin("threadIdx.y")
        count = subject.grid(axis)
        known = subject.in_kernel(count)
        made.parameter(rows, (1, 2, 4, 8, 16, 32), "rows of a block")
        made.header.append(f"#define {row} ({index} * {rows} + ({rows} > 1 ? {line} : 0))")
        made.edits += [replace(one, row) for one in subject.facts.builtins() if one.op == at]
        if known is not None:
            made.edits.append(insert(subject.facts.body.start + 1, f" if ({rows} > 1 && {row} >= {known}) return;"))
        else:
            made.constraints[f"({count}) % {rows} == 0"] = "The kernel does not know how many rows there are."
        made.threads, made.writes[at] = (rows,), row
        made.grid[axis], made.block["y"] = f"ceil_div({count}, {rows})", rows
        if subject.facts.launch_bounds:
            made.constraints[f"{rows} == 1 or {own}"] = "The kernel keeps its own launch bounds with its own block."
        if first and not subject.by_warps:
            # An SM holds 32 blocks (CUDA C++ Programming Guide, "Compute Capabilities"), so small ones leave some idle.
            made.extends[first[0]] = (8, 16)
            enough = f"{first[0]} == 0 or {first[0]} >= 32 or {first[0]} * {rows} >= 64"
            made.constraints[enough] = "Rows that have less than a warp share a block of two warps or more."
    if not alone:
        turn, turns = subject.builtin("threadIdx.x"), subject.builtin("blockDim.x")
        made.parameter(blocks, (1, 2, 4, 8, 16, 32), "blocks that share a row")
        few = " * ".join(f"({subject.grid(one)})" for one in "xyz") + " <= 256"
        made.constraints[f"{blocks} <= 8 or {few}"] = "More rows have blocks enough."
        names = subject.name("TEAM_FIRST"), subject.name("TEAM_STEP")
        part = f"({blocks} > 1 ? {subject.builtin('blockIdx.z')} : 0) * {turns}"
        made.header.append(f"#define {names[0]}(...) ((__VA_ARGS__) + {part})")
        made.header.append(f"#define {names[1]}(...) ((__VA_ARGS__) * {blocks})")
        for loop in loops:
            made.edits.append(wrap(loop.first_node, f"{names[0]}(", ")"))
            made.edits.append(replace(loop.node.kids[2], f"{loop.variable.name} += {names[1]}({turns})"))
        made.grid["z"] = blocks
        made.writes |= {"turn": f"{names[0]}({turn})", "turns": f"{turns} * {blocks}"}
    return made


ROW_TEAMS = Pass(
    "row_teams", _teams, _change, why="a block has one row", after=("block_size", "row_lanes"), languages=BOTH
)
