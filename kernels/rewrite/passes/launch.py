"""The launch: threads of a block, elements of a thread, and how many blocks shall fit on a multiprocessor."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tunesmith.kernels.rewrite.edits import Edit, insert, replace, switched
from tunesmith.kernels.rewrite.facts import AXES, ENDS, Facts, Loop
from tunesmith.kernels.rewrite.forms import Form
from tunesmith.kernels.rewrite.passes.record import BOTH, Change, Layer, Pass, Subject, require, required
from tunesmith.kernels.rewrite.rounds import Carried
from tunesmith.kernels.rewrite.sharing import meanings

_CELLS = {"x": (8, 16, 32, 64, 128), "y": (1, 2, 4, 8, 16), "z": (1, 2, 4)}


def _sizes(subject: Subject) -> Mapping[str, tuple[int, ...]]:
    """The sizes that a block may have, by axis, where the code does the same with another number of threads."""
    require(not subject.work.why, subject.work.why)
    axes = subject.axes
    if not axes:
        return {"x": tuple(value for value in (32, 64, 128, 256, 512, 1024) if value <= subject.work.most)}
    return {axis: _CELLS[axis] for axis in axes} if len(axes) > 1 else {axes[0]: (64, 128, 256, 512, 1024)}


def _block_size(subject: Subject, sizes: Mapping[str, tuple[int, ...]]) -> Change:
    names = {axis: subject.name("BLOCK" if len(sizes) == 1 else f"BLOCK_{axis.upper()}") for axis in sizes}
    main, made = next(iter(names)), Change(threads=tuple(names.values()))
    first = names[main]
    for axis, values in sizes.items():
        kept = "; 0: as many as the kernel came with" if axis == main else f", where {first} is not 0"
        made.parameter(names[axis], (0, *values) if axis == main else values, f"threads of a block along {axis}{kept}")
        macro, width = subject.name(f"BLOCK_DIM_{axis.upper()}"), subject.builtin(f"blockDim.{axis}")
        number = "unsigned int" if subject.backend == "cuda" else "size_t"
        made.header.append(switched(f"{first} > 0", {macro: (f"(({number})({names[axis]}))", width)}))
        found = [one for one in subject.facts.builtins() if one.op == f"blockDim.{axis}" and not one.fixed]
        made.edits += [replace(one, macro) for one in found]
        made.writes[f"blockDim.{axis}"] = macro
        made.block[axis] = f"({names[axis]} if {first} > 0 else ({subject.extent(axis)}))"
        if axis != main:
            # Where the kernel keeps its block, the other extents mean nothing: they have one value then.
            because = "The kernel's own block has its own extents."
            made.constraints[f"{first} > 0 or {names[axis]} == {values[0]}"] = because
        if subject.work.kind == "cells":
            # Blocks of another size need another number of them, also where a thread keeps its one element.
            made.share[axis] = "1"
    return made


def _movable(subject: Subject) -> None:
    strided = subject.axes and all(axis.strided for axis in subject.work.axes)
    require(strided or not subject.unmovable, subject.unmovable)


def _work_per_thread(subject: Subject, _: None) -> Change:
    """Several elements for a thread: a whole block apart, so that neighbouring threads stay neighbours (cyclic), or
    neighbours themselves, so that shared data stays in the thread (blocked). A kernel that steps through its data by
    the size of the grid gets a smaller grid."""
    made, several = Change(), len(subject.work.axes) > 1
    for axis in subject.work.axes:
        end = f"_{axis.name.upper()}" if several else ""
        name, together = subject.name(f"ITEMS{end}"), subject.name(f"BLOCKED{end}")
        values = (1, 2, 4, 8, 16) if axis.strided else (1, 2, 4) if several else (1, 2, 4, 8)
        doc = f"elements that a thread computes along {axis.name}"
        made.parameter(name, values, doc, launch_only=axis.strided)
        made.share[axis.name] = name
        if axis.strided:
            continue
        doc = f"whether the elements of a thread along {axis.name} are neighbours; else they are a block apart"
        made.parameter(together, (False, True), doc)
        made.constraints[f"not {together} or {name} > 1"] = "A thread with one element has no neighbours of its own."
        item, at, index = (subject.name(f"{one}_{axis.name}") for one in ("item", "at", "block"))
        block, width, thread = (subject.builtin(f"{one}.{axis.name}") for one in ("blockIdx", "blockDim", "threadIdx"))
        opens = f"""for ({subject.index_type} {item} = 0; {item} < {name}; ++{item}) {{
const {subject.index_type} {index} = {block};
const {subject.index_type} {at} = {together} ? ({index} * {width} + {thread}) * {name} + {item}
    : ({index} * {name} + {item}) * {width} + {thread};"""
        made.layers.append(Layer(f"{name} > 1", opens, "}", axis.name, at, loops=True))
    made.off = " and ".join(f"{name} == 1" for name in made.share.values())
    return made


def _turns(subject: Subject) -> list[str]:
    """The axes along which blocks do nothing but take turns in a loop whose rounds stand by themselves."""
    facts, found = subject.facts, list[str]()
    for axis in (one for one in AXES if one not in subject.axes and subject.work.kind != "rows" and not facts.together):
        block, grid = f"blockIdx.{axis}", Form.atom(f"gridDim.{axis}")
        turns = [
            one for one in facts.loops if one.first.times(block).terms and one.step == one.first.times(block) * grid
        ]
        if len(turns) != 1 or turns[0].fixed:
            continue
        node, heads = turns[0].node, (turns[0].node.kids[0], turns[0].node.kids[2])
        uses = [one for one in facts.builtins() if one.op in (block, f"gridDim.{axis}")]
        begins = all(any(part.holds(one) for part in heads) for use in uses for one in meanings(facts, use))
        ends = any(one.what in ENDS - {"continue"} for one in turns[0].body.walk())
        inside = all(turns[0].body.holds(one) for one in facts.effects)
        if begins and inside and not ends and not Carried(facts, node, facts.body).states and _apart(facts, turns[0]):
            found.append(axis)
    return required(found, "they do not only take turns in a loop")


def _apart(facts: Facts, loop: Loop) -> bool:
    """Whether all that rounds of a loop write is added up by atomic operations, or is each round's own and not read."""
    for root in (one for one in {*facts.arrays, *facts.escaping} if facts.is_written(one)):
        own = facts.of(root)
        if root in facts.escaping:
            return False
        stride = own[0].index.times(loop.atom).constant
        for one in own if not all(one.adds for one in own) else ():
            off, others = (one.index - own[0].index).constant, one.index.without(loop.atom)
            if one.read or not stride or off is None or not 0 <= off < abs(stride) or facts.reach(others):
                return False
    return True


def _more_blocks(subject: Subject, axes: list[str]) -> Change:
    """A larger grid, of whose blocks each takes fewer turns: that of the source may leave most of a device idle."""
    made = Change()
    for axis in axes:
        name = subject.name("MORE_BLOCKS" if len(axes) == 1 else f"MORE_BLOCKS_{axis.upper()}")
        doc = f"times as many blocks along {axis} as the kernel came with"
        made.parameter(name, (1, 2, 4, 8, 16, 32, 64, 128), doc, launch_only=True)
        made.grid[axis] = f"({subject.grid(axis)}) * {name}"
    return made


def _threads(subject: Subject) -> int:
    """The threads of a block as it came; 0 where they depend on the workload."""
    known = all(extent.isdigit() for extent in subject.launch.block)
    return math.prod(map(int, subject.launch.block)) if known else 0


def _launch_bounds(subject: Subject, threads: int) -> Change:
    """Launch bounds: the block's size, and how many blocks shall fit on a multiprocessor."""
    minimum, macro, declared = subject.name("MIN_BLOCKS"), subject.name("LAUNCH_BOUNDS"), subject.facts.launch_bounds
    require(threads or subject.factors, "launch bounds stay: the size of a block depends on the workload")
    made, first = Change(), subject.factors[0] if subject.factors else ""
    size = " * ".join(subject.factors) or str(threads)
    if first:
        made.constraints[f"{first} > 0 or {minimum} == 0"] = (
            "The kernel keeps its own launch bounds with its own block."
        )
    made.constraints[f"{size} * {minimum} <= max_threads_per_sm"] = "No multiprocessor holds more threads."
    others = " || ".join(f"{one.instead[0]} > 0" for one in subject.changes.values() if one.instead is not None)
    made.header = [f"#if {others}", f"#define {macro}"] if others else []
    made.header += [f"#{'el' if others else ''}if {minimum} > 0"]
    made.header += [f"#define {macro} __launch_bounds__({size}, {minimum})"]
    made.header += [f"#elif {first} > 0", f"#define {macro} __launch_bounds__({size})"] if first else []
    made.header += ["#else", f"#define {macro} {declared[0] if declared else ''}", "#endif"]
    start = subject.facts.syntax.start
    if declared:
        made.edits.append(Edit(start + declared.start(), start + declared.end(), (macro,)))
    else:
        made.edits.append(insert(subject.facts.syntax.name_at, f"{macro} "))
    doc = "blocks that shall fit on a multiprocessor at once; 0: as the compiler likes"
    made.parameter(minimum, (0, 1, 2, 4, 8), doc)
    return made


BLOCK_SIZE = Pass("block_size", _sizes, _block_size, why="the size of a block stays: ", languages=BOTH)
WORK_PER_THREAD = Pass(
    "work_per_thread",
    _movable,
    _work_per_thread,
    why="threads keep their work: ",
    after=("block_size", "own_bins"),
    languages=BOTH,
)
MORE_BLOCKS = Pass("more_blocks", _turns, _more_blocks, why="blocks stay as many: ")
_BEFORE = ("block_size", "row_teams", "permuted_tiles", "output_tiles", "column_lanes")
LAUNCH_BOUNDS = Pass("launch_bounds", _threads, _launch_bounds, after=_BEFORE)
