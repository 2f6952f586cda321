"""The loops of one thread become loops of several lanes, which touch neighbours and then combine their sums.

Where one thread goes over a row, as in a plain product of a matrix and a vector, the threads of a warp touch as many
rows at a time. Here lanes of one warp do the work of one thread: all carry out what it does, but take turns on loops
whose rounds are independent, and combine what these sum up, or their largest or smallest, by shuffles, so that all of
them have the result (CUDA C++ Programming Guide, "Warp Shuffle Functions"). What is written outside of these loops is
written by the first lane; where one lane may need what another wrote, they wait for each other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from tunesmith.kernels.reader.syntax import LAMBDA, LOOPS, Node, Symbol
from tunesmith.kernels.rewrite.edits import Edit, Span, switched, wrap
from tunesmith.kernels.rewrite.facts import ENDS, Access, Facts, Loop
from tunesmith.kernels.rewrite.forms import ONE, ZERO, Form
from tunesmith.kernels.rewrite.passes.record import Change, Layer, Pass, Subject, require
from tunesmith.kernels.rewrite.rounds import Carried
from tunesmith.kernels.spec.task import geometry
from tunesmith.kernels.spec.template import LaunchGeometry

_MANY = 1 << 18
"""Threads that a large device runs at the same time."""
_COMMUTING = frozenset(f"atomic{one}" for one in ("Add", "Sub", "Max", "Min", "And", "Or", "Xor"))


@dataclass(frozen=True, slots=True)
class _Lanes:
    """sums: by loop that lanes share, how two values `a` and `b` of a variable are combined, in C; alone: the
    statements that only the first lane carries out; meets: the loops and statements around which lanes wait for each
    other; numbers: where the source asks for the number of a thread, or how many there are, and lanes are one."""

    sums: dict[Loop, dict[Symbol, str]]
    numbers: list[Node]
    alone: list[Node] = field(default_factory=list)
    meets: set[Node] = field(default_factory=set)


def _lanes(subject: Subject) -> _Lanes:
    facts, numbers = subject.facts, _numbers(subject)
    sums, why = _shared(subject)
    require(sums, why or "there is no loop that reads neighbours")
    found = _Lanes(sums, numbers)
    _find_alone(facts, facts.body, found)
    _find_meetings(facts, found)
    return found


def _numbers(subject: Subject) -> list[Node]:
    """Where the kernel asks for the number of a thread that is not its coordinate, or how many there are."""
    facts, work = subject.facts, subject.work
    require(not work.why, work.why)
    found = [one for one in facts.builtins() if work.kind == "rows" and one.op in ("threadIdx.x", "blockDim.x")]
    steps = [one.node.kids[2] for one in facts.loops if one.kind == "grid"]
    numbers = [*found, *(one.kids[-1] for one in steps)]
    places = [*numbers, *(node for axis in work.axes for node in axis.nodes)]
    outer = " and ".join(one.name for one in facts.changed if one.what == "global")
    why = {
        "its threads work together": facts.together,
        "threads do not have one coordinate": len(work.axes) > 1 or any(one.name != "x" for one in work.axes),
        "there is no guard for the coordinate of a thread": any(x.bound is None and not x.strided for x in work.axes),
        "it gives its arrays to functions": facts.escaping,
        f"it changes {outer}, which all blocks have": outer,
        "it calls a function that may do more than compute": facts.unfollowed,
        "it asks for the number of a thread in its warp": work.kind == "rows" and subject.by_warps,
        "a loop over the grid does not step by `+=`": any(one.op != "+=" for one in steps),
        "a macro or a lambda computes its coordinates": any(x.fixed or x.inside(LAMBDA) for x in places),
    }
    for clause, holds in why.items():
        require(not holds, clause)
    return numbers


def _shared(subject: Subject) -> tuple[dict[Loop, dict[Symbol, str]], str]:
    """The loops that lanes share, none of them inside another: of loops in one another the innermost that touches
    neighbours, or anything where there are few threads, else the outermost; none where no loop does, and why not, as a
    clause."""
    facts, good, why = subject.facts, dict[Loop, dict[Symbol, str]](), ""
    for node in facts.body.walk():
        if node.what == "for" and not node.inside(LAMBDA):
            loop = facts.loop(node)
            sums = "a loop does not count one by one" if loop is None else _sums(facts, loop)
            if loop is None or isinstance(sums, str):
                why = why if loop is None or loop.kind != "counting" else str(sums)
            elif (count := (loop.bound - loop.first).constant) is None or count >= 8:
                # Of fewer rounds most lanes would have none.
                good[loop] = sums
    outer = [one for one in facts.accesses if one.root in facts.arrays]
    touched = {loop: [one.index for one in outer if loop.body.holds(one.node)] for loop in good}
    near = [loop for loop, those in touched.items() if any(one.times(loop.atom) == ONE for one in those)]
    if not near and _leaves_idle(subject):
        near = [loop for loop, those in touched.items() if any(loop.atom in facts.asked(one) for one in those)]
    found = list[Loop]()
    for loop in [*reversed(near), *good]:
        if not any(loop.node.holds(other.node) or other.node.holds(loop.node) for other in found):
            found.append(loop)
    return {one: good[one] for one in found} if near else {}, why


def _leaves_idle(subject: Subject) -> bool:
    """Whether a workload has too few threads for a device, so that lanes are worth more than accesses of neighbours."""
    plain, tuned = subject.task.sources(subject.backend).baseline.template, subject.task.workloads
    launches = [geometry(plain, {}, one) for one in tuned if not one.held_out]
    return any(prod(one.grid) * prod(one.block) < _MANY for one in launches)


def _sums(facts: Facts, loop: Loop) -> dict[Symbol, str] | str:
    """How the parts that lanes have of a loop's sums are combined, or why lanes cannot share it, as a clause."""
    node, body, inside = loop.node, loop.body, facts.inside(loop.body)
    if loop.kind != "counting" or loop.fixed or node.kids[1].op == "!=" or loop.variable.type.size < 4:
        return "a loop does not count one by one"
    if any(one.what in ENDS - {"continue"} for one in body.walk()):
        return "a loop may end early"
    sums = Carried(facts, node, facts.body).sums()
    if isinstance(sums, str):
        return sums
    for root in dict.fromkeys(one.root for one in inside if one.written):
        own = [one for one in facts.inside(node) if one.root is root]
        index, changing = own[0].index, facts.declared_in(node) | facts.changed_in(node)
        if root not in facts.arrays and root not in facts.declared_in(body):
            return "a loop writes an array of its own"
        apart = index.times(loop.atom).constant and _is_free(facts, index.without(loop.atom), changing)
        same = len({one.index for one in own}) == 1
        if root in facts.arrays and not (apart and same) and not _is_added_to(own):
            return f"{root.name} is written by a loop, and used at other places by its other rounds"
    return sums


def _is_added_to(accesses: list[Access]) -> bool:
    """Whether the accesses are atomic operations that do not ask for the order."""
    ordered = any(not one.node.alone for one in accesses) or len({one.by for one in accesses}) > 1
    return not ordered and accesses[0].by in _COMMUTING


def _is_free(facts: Facts, value: Form, variables: set[Symbol]) -> bool:
    """Whether it is known what a value depends on, and these are none of the variables."""
    asked = facts.asked(value) & facts.atoms.keys()
    return not any(name[0] == "?" or facts.atoms[name].symbol in variables for name in asked)


def _find_alone(facts: Facts, node: Node, found: _Lanes) -> None:
    """Finds what the first lane writes for all."""
    written = [one.node for one in facts.inside(node) if one.written and one.root in facts.arrays]
    if not written or any(one.node is node for one in found.sums):
        return
    apart = LOOPS | ENDS | {"declaration", "lambda"}
    if not node.fixed and facts.changed_in(node) <= set(facts.arrays) and not any(x.what in apart for x in node.walk()):
        found.alone.append(node)
        return
    inside = all(any(part.holds(one) for part in node.parts) for one in written)
    require(inside, f"`{facts.text(node)[:60]}` writes in a way that other lanes need")
    for part in node.parts:
        _find_alone(facts, part, found)


def _find_meetings(facts: Facts, found: _Lanes) -> None:
    """Finds where a lane may need what another wrote."""
    unknown = {*facts.arrays, *facts.declared_in(facts.body)} - {one.variable for one in facts.loops}
    for root in facts.arrays:
        own = facts.of(root)
        if not any(one.written for one in own):
            continue
        loops = [next((loop for loop in found.sums if loop.body.holds(one.node)), None) for one in own]
        alone = [next((node for node in found.alone if node.holds(one.node)), None) for one in own]
        for one in (one for one, *places in zip(own, loops, alone, strict=True) if places == [None, None]):
            # Elsewhere another thread may write the element meanwhile, and not all lanes read the same.
            own_element = facts.reach(one.index) > 1 and _is_free(facts, one.index, unknown)
            require(own_element, f"{root.name} is written, and read where other threads may write it")
        if None not in alone or _is_added_to(own) or _by_one_lane(own, loops):
            continue
        places = [node if loop is None else loop.node for loop, node in zip(loops, alone, strict=True)]
        found.meets.update(at for one, at in zip(own, places, strict=True) if one.written and at is not None)


def _by_one_lane(accesses: list[Access], loops: list[Loop | None]) -> bool:
    """Whether the same lane has all accesses of an element."""
    places = set[tuple[Form, Form, Form]]()
    for one, loop in zip(accesses, loops, strict=True):
        if loop is None or one.index.times(loop.atom) != ONE:
            return False
        bound, rest = loop.bound, one.index.without(loop.atom)
        # Rounds of the loops around it have other elements, or the same ones of a row that is as long as the loop.
        again = loop.node.inside(LOOPS)
        if again and (loop.first != ZERO or not any(rest.times(atom) * bound == rest for atom in bound.atoms)):
            return False
        places.add((one.index.replaced(loop.atom, Form.atom("k")), loop.first, bound))
    return len(places) == 1


def _share(subject: Subject, found: _Lanes) -> Change:
    name, lane, first, mask, at, once = map(subject.name, ("LANES", "lane", "first_lane", "mask", "row_at", "once"))
    made, code = Change(kit=("lanes",)), subject.facts.syntax.code
    edits = made.edits
    macros = {one: subject.name(f"LANE_{one}") for one in ["FIRST", "NEXT", "BEGIN", "JOIN", "ALONE", "MEET", "NUMBER"]}
    meeting = {one: f"{macros['MEET']} " for one in found.meets}
    for loop, sums in found.sums.items():
        node = loop.node
        edits.append(wrap(loop.first_node, "((", f") {macros['FIRST']})"))
        edits.append(wrap(node.kids[2], f"{macros['NEXT']}({loop.variable.name}, ", ")"))
        begin = "".join(f"{macros['BEGIN']}({symbol.name}) " for symbol, how in sums.items() if how == "a + b")
        ends = [f" {macros['JOIN']}({symbol.name}, {how})" for symbol, how in sums.items()]
        end = subject.facts.syntax.end(node)
        head = code[: node.start].rstrip()
        above = head.rsplit(b"\n", 1)[-1]
        # A pragma belongs to the loop.
        start = len(head) - len(above) if above.lstrip().startswith(b"#pragma") else node.start
        begins = f"{meeting.get(node, '')}{{ {begin}" + "\n" * (start < node.start)
        edits.append(Edit(start, end, (begins, Span(start, node.end), *(";" * (end > node.end)), *ends, " }")))
    edits += [wrap(one, f"{meeting.get(one, '')}{macros['ALONE']} ", "") for one in found.alone]
    edits += [wrap(one, f"{macros['NUMBER']}(", ")") for one in found.numbers]
    joined = f"tunesmith::joined<{name}>({mask}, sum, [](decltype(sum) a, decltype(sum) b) {{ return __VA_ARGS__; }})"
    meet = f"__syncwarp({mask})"
    header = {
        macros["FIRST"]: (f"+ {lane}", ""),
        f"{macros['NEXT']}(variable, ...)": (f"variable += {name}", "__VA_ARGS__"),
        f"{macros['BEGIN']}(sum)": (f"if ({lane} > 0) sum = 0;", ""),
        f"{macros['JOIN']}(sum, ...)": (f"sum = {joined};", ""),
        # An `else` that follows belongs to another `if`.
        macros["ALONE"]: (f"if ({lane} > 0) {{ }} else", ""),
        macros["MEET"]: (f"for (bool {once} = ({meet}, true); {once}; {meet}, {once} = false)", ""),
        f"{macros['NUMBER']}(...)": (f"((__VA_ARGS__) / {name})", "(__VA_ARGS__)"),
    }
    block, cells = subject.block("x"), subject.work.kind == "cells"
    row = f"const {subject.index_type} {at} = {subject.at('x')} / ({name} > 0 ? {name} : 1);\n" if cells else ""
    opens = f"""{row}#if {name} > 0
const int {lane} = threadIdx.x % {name};
const int {first} = (threadIdx.y * blockDim.x + threadIdx.x) % 32 / {name} * {name};
const unsigned int {mask} = (0xffffffffu >> (32 - {name})) << {first};
#endif"""
    launch = LaunchGeometry(
        grid=(f"ceil_div({subject.threads('x')} * max({name}, 1), {block})", subject.grid("y"), subject.grid("z")),
        block=(block, "1", "1"),
    )
    if cells:
        made.instead = name, launch
    else:
        made.writes = {word: f"{macros['NUMBER']}({subject.builtin(word)})" for word in ("threadIdx.x", "blockDim.x")}
    made.layers.append(Layer(f"{name} > 0", opens, "", *(("x", at) if cells else ())))
    made.header.append(switched(f"{name} > 0", header))
    doc = "lanes of a warp that do the work of one thread and share its loops; 0: none"
    made.parameter(name, (0, 2, 4, 8, 16, 32), doc)
    made.constraints[f"{name} == 0 or {block} % {name} == 0"] = "A row has one block."
    return made


ROW_LANES = Pass(
    "row_lanes",
    _lanes,
    _share,
    why="lanes do not share a row: ",
    excludes=dict.fromkeys(("work_per_thread", "own_bins", "vectors", "row_loops"), "Lanes share one row."),
    after=("block_size", "work_per_thread", "cache_hints"),
)
