"""Several threads for a sum down a column: they take turns on its rows, and put their parts together at the end.

Where threads lie along the columns of a matrix and each goes down one, as in a product with its transpose, reads of
neighbours are joined, but there are no more threads than columns. Here a block has 32 columns and several lanes for
each, one warp a lane; their parts meet in shared memory (CUDA C++ Best Practices Guide, "Shared Memory").
"""

from __future__ import annotations

from tunesmith.kernels.reader.syntax import Node, Symbol
from tunesmith.kernels.rewrite.edits import replace, span, wrap
from tunesmith.kernels.rewrite.facts import ENDS, Loop
from tunesmith.kernels.rewrite.forms import ONE
from tunesmith.kernels.rewrite.passes.record import ALONE, Change, Pass, Refused, Subject, require, required
from tunesmith.kernels.rewrite.rounds import Carried
from tunesmith.kernels.rewrite.sharing import WARP, behind
from tunesmith.kernels.spec.template import LaunchGeometry

_Column = tuple[list[Node], Loop, dict[Symbol, str], list[Node]]
"""Declarations ahead of the loop, the loop, how two parts `a` and `b` of a sum become one, in C, statements behind."""


def _column(subject: Subject) -> _Column:
    facts = subject.facts
    free = subject.axes == ["x"] and subject.bounds and not (subject.unmovable or subject.bounded or facts.escaping)
    require(free, "threads do not have one coordinate behind a guard, and a launch that may change")
    bound = subject.bounds["x"]
    inside = behind(facts, facts.body.kids, lambda test: facts.upper(test, "x") == bound)
    at = next((number for number, one in enumerate(inside) if one.what == "for"), len(inside))
    loop = facts.loop(inside[at]) if at < len(inside) else None
    if loop is None or loop.kind != "counting" or loop.fixed:
        raise Refused("there is no loop behind the guard that counts one by one")
    before, after, body = inside[:at], inside[at + 1 :], loop.body
    # Statements that both parts of the work have.
    twice = all(one.what == "declaration" and not facts.acts(one) and not any(facts.changes(one)) for one in before)
    twice = twice and not any(one.written for each in before for one in facts.inside(each))
    require(twice and len(subject.returns) < 2, "there is more than declarations ahead of the loop")
    reads = facts.inside(body)
    apart = [one for one in reads if one.index.times(loop.atom).terms and one.index.times(loop.atom) not in (ONE, -ONE)]
    require(any(one.index.times("@x") == ONE for one in apart), "the loop reads no neighbours along the threads")
    acts = facts.acts(body) or any(one.what in ENDS for one in body.walk())
    writes = any(one.written and one.root not in facts.declared_in(body) for one in reads)
    require(not acts and not writes, "the loop does more than to add up what it reads")
    sums = Carried(facts, loop.node, facts.body).sums()
    made = {symbol for one in before for symbol in facts.declared_in(one)}
    if isinstance(sums, str) or not sums or not sums.keys() <= made:
        raise Refused("the loop has no sums whose order is free")
    return before, loop, sums, after


def _share(subject: Subject, found: _Column) -> Change:
    before, loop, sums, after = found
    name, at, lane = (subject.name(one) for one in ("COLUMN_LANES", "column_at", "column_lane"))
    bound = required(subject.written(subject.bounds["x"]), "the guard's bound is not known ahead of it")
    first, last = "threadIdx.x", "threadIdx.y"
    moved = tuple(replace(node, at) for axis in subject.work.axes for node in axis.nodes)
    begin = [part for one in before for part in (span(one, *moved), "\n")]
    step = replace(loop.node.kids[2], f"{loop.variable.name} += {name}")
    turns = span(loop.node, *moved, wrap(loop.first_node, "((", f") + {last})"), step)
    parts, each, zeros, keep, meet, back = "", "", "", "", "", ""
    for one, how in sums.items():
        part, shared = subject.name(f"part_{one.name}"), subject.name(f"parts_{one.name}")
        other = f"{shared}[{lane}][{first}]"
        parts += f"{one.written} {part} = 0;\n__shared__ {one.written} {shared}[{name}][{WARP}];\n"
        zeros += f"if ({last} > 0) {one.name} = 0;\n" if how == "a + b" else ""
        keep += f"{part} = {one.name};\n"
        meet += f"{shared}[{last}][{first}] = {part};\n"
        each += f"{{ const auto a = {part}, b = {other}; {part} = {how}; }}\n"
        back += f"{one.name} = {part};\n"
    meet += f"__syncthreads();\nfor (int {lane} = 1; {lane} < {name}; ++{lane}) {{\n{each}}}\n"
    column = f"const {subject.index_type} {at} = blockIdx.x * {WARP} + {first};\n"
    text = [f"{column}{parts}if ({at} < {bound}) {{\n", *begin, zeros, turns, f";\n{keep}}}\n{meet}"]
    text += [f"if ({at} < {bound} && {last} == 0) {{\n", *begin, back]
    text += [part for one in after for part in (span(one, *moved), ";\n")]
    count = f"ceil_div({subject.threads('x')}, {WARP})"
    launch = LaunchGeometry(grid=(count, subject.grid("y"), subject.grid("z")), block=(f"{WARP}", name, "1"))
    made = Change()
    made.alternative(subject, name, (*text, "}\n"), launch)
    made.parameter(
        name, (0, 2, 4, 8, 16, 32), "lanes, each of its own warp, that share the loop down a column; 0: none"
    )
    made.static_shared = f"{name} * {WARP} * {sum(one.type.size for one in sums)}"
    return made


_OTHERS = ("block_size", "work_per_thread", "launch_bounds", "vectors", "row_lanes", "walk", "own_bins")


COLUMN_LANES = Pass(
    "column_lanes",
    _column,
    _share,
    why="lanes do not share a column: ",
    excludes=dict.fromkeys(_OTHERS, ALONE),
    after=("cache_hints",),
)
