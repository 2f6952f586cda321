"""Loops in which the threads of a block, of a part of it, or of the grid take turns on a row: neighbours together, and
a row that is read again kept.

A turn takes one element; here it takes a vector of neighbours, as one access of up to 16 bytes. What several loops read
stays in registers: each thread keeps its first vectors, and every loop goes over these, unrolled, then over the other
vectors, then over what fills no vector, as the loop did before.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from tunesmith.kernels.reader.syntax import LEFT, LOOPS, Node, Symbol
from tunesmith.kernels.rewrite.edits import Edit, replace, span
from tunesmith.kernels.rewrite.facts import AXES, ENDS, Access, Facts, Loop
from tunesmith.kernels.rewrite.forms import ONE, ZERO, Form
from tunesmith.kernels.rewrite.passes.places import Place, places
from tunesmith.kernels.rewrite.passes.record import Change, Pass, Subject, require
from tunesmith.kernels.rewrite.passes.vectors import WIDEST, moved
from tunesmith.kernels.rewrite.rounds import Carried
from tunesmith.kernels.rewrite.sharing import meanings

_KEPT = 64
"""Most elements that a thread keeps."""


_Placed = dict[Loop, dict[Symbol, list[Place]]]
"""By loop over a row, the arrays that may go in vectors, each with its places."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """groups: of loops with one bound; placed: by loop; kept: the array that is kept; keeping: the loops that use it,
    none where no array is; vectors: whether neighbours may go together."""

    groups: list[list[Loop]]
    placed: _Placed
    kept: Symbol | None
    keeping: list[Loop]
    vectors: bool


def _rows(subject: Subject) -> _Rows:
    facts, why = subject.facts, "in which threads, of a block or of the grid, take turns on a row"
    rows, usable, blocks = _Placed(), list[list[Loop]](), dict[Node | None, list[Loop]]()
    for loop in facts.loops:
        if (loop.axis == "x" or lanes(subject, loop)) and _goes_on(subject, loop) and _meet(subject, loop):
            blocks.setdefault(loop.node.parent, []).append(loop)
    for turns in (those for block, those in blocks.items() if block is not None and block.what == "block"):
        why = "that reads or writes an array at its own place for certain"
        rows, usable = (rows, usable) if rows else _placed(subject, turns)
    require(rows, f"the kernel has no loop {why}")
    kept, keeping = _read_again(subject, rows)
    why = _shared_out(subject, rows) or _again(facts, rows)
    require(not why or keeping, why)
    return _Rows(usable, rows, kept, keeping, not why)


def _placed(subject: Subject, turns: list[Loop]) -> tuple[_Placed, list[list[Loop]]]:
    """Of loops that follow each other those with arrays that may go in vectors, and these loops by their bounds."""
    facts, rows, groups = subject.facts, _Placed(), dict[Form, list[Loop]]()
    for loop in turns:
        groups.setdefault(loop.bound, []).append(loop)
    usable = [group for bound, group in groups.items() if subject.written(bound, group[0].node) is not None]
    for loop, first in [(loop, group[0]) for group in usable for loop in group]:
        inside = facts.inside(loop.body)
        for own in ([one for one in inside if one.root is root] for root in facts.arrays):
            if own and (found := places(subject, own, loop.atom, partial(_always, facts, loop), first.node)):
                rows.setdefault(loop, {})[own[0].root] = found
    return rows, [those for group in usable if (those := [one for one in group if one in rows])]


def _meet(subject: Subject, loop: Loop) -> bool:
    """Whether all threads that take turns in a loop come to it together, as often, or have no turn there."""
    facts, count = subject.facts, lanes(subject, loop)
    around = _around(facts, loop)
    tests, doubtful = facts.conditions(loop.node)
    has_turn = loop.bound - loop.first - ONE
    parts = [one.node for one in tests if not one.loop and one.least != has_turn]
    parts += [part for one in around for part in one.node.kids[:3]]
    names = {name for part in parts for name in facts.names_in(part)}
    alone = not doubtful and sum(up.what in LOOPS for up, _ in loop.node.above()) == len(around)
    asks = any(_asks_for_thread(facts, one, loop, count) for one in parts)
    return alone and not asks and not any(_varies(facts, one, loop, count) for one in names)


def _around(facts: Facts, loop: Loop) -> list[Loop]:
    return [one for one in facts.loops if one.body.holds(loop.node)]


def _again(facts: Facts, rows: _Placed) -> str:
    """Why threads may meet the same element in other rounds of a loop around those over rows, as a clause. How many
    vectors a row has, and so which thread has which element, depends on where the row begins."""
    for loop, outer in [(one, outer) for one in rows for outer in _around(facts, one)]:
        for one in facts.inside(loop.body):
            if one.written and one.root in facts.arrays and not one.atomic:
                places = [place for place in rows[loop].get(one.root, []) if one in place.accesses]
                row = loop.bound * Form.number(places[0].record if places else 1)
                apart = places[0].rest.times(outer.atom) if places else ZERO
                # Threads of another axis have other rounds at the same time: rows that were not apart would race.
                if not places or not (apart.terms if outer.kind == "grid" else apart.over(row)):
                    return f"other rounds of a loop may have the same elements of {one.root.name}"
    return ""


def _goes_on(subject: Subject, loop: Loop) -> bool:
    """Whether the body of a loop only goes on to the next round, and does not depend on the thread."""
    facts, body = subject.facts, loop.body
    if loop.node.fixed or body.fixed or loop.variable in facts.changed_in(body):
        return False
    outer, count = facts.names_in(body) - facts.declared_in(body) - {loop.variable}, lanes(subject, loop)
    asks = any(_asks_for_thread(facts, one, loop, count) for one in (loop.node.kids[1], body))
    if asks or any(_varies(facts, one, loop, count) for one in outer):
        return False
    ends = [one for one in body.walk() if one.what in ENDS and one.what != "continue"]
    own = [one for one in ends if one.what in ("return", "goto") or not one.inside(LEFT, loop.node)]
    meets = any(one in facts.barriers or (one.what == "call" and one.op.startswith("__shfl")) for one in body.walk())
    return not own and not meets


def lanes(subject: Subject, loop: Loop) -> int:
    """How many neighbouring threads along x, a number of the source, take turns on a row; 0 where they do not."""
    count, facts = loop.step.constant or 0, subject.facts
    part = facts.part(loop.first, frozenset({"threadIdx.x"})) if loop.kind == "other" and count > 1 else None
    if part is None or part.low != ONE or loop.node.kids[1].op == "!=":
        return 0
    all_of_them = part.high is None and subject.extent("x").strip() == str(count)
    return count if all_of_them or part.high == Form.number(count) else 0


def _asks_for_thread(facts: Facts, node: Node, loop: Loop, count: int) -> bool:
    """Whether a part of the kernel depends on which of the threads that take turns carries it out, but for the loop's
    variable and what they put together. count: these threads, where not all along x."""
    asked = ("threadIdx.x", "blockIdx.x", "@x") if loop.kind == "grid" else ("threadIdx.x", "@x")
    for part in facts.sources(node):
        for one in (one for one in part.walk() if one.what == "builtin" and one.op.startswith(asked)):
            around = [one, *(up for up, _ in one.above() if part.holds(up))]
            found = (facts.part(facts.form(up), frozenset({one.op})) for up in around if up.what == "binary" and count)
            if not any(each is not None and each.low.over(Form.number(count)) is not None for each in found):
                return True
    return False


def _varies(facts: Facts, symbol: Symbol, loop: Loop, count: int) -> bool:
    """Whether a variable depends on which thread takes a turn. A value that a group combines is the same for all of
    it."""
    if symbol not in facts.changed or facts.counts_anew(symbol) or (facts.together and symbol.type.what != "number"):
        return False
    parts = [*facts.changed[symbol], *filter(None, [symbol.declared])]
    tests = [up.kids[0] for part in parts for up, down in part.above() if up.what == "if" and down is not up.kids[0]]
    return any(_asks_for_thread(facts, one, loop, count) for one in (*parts, *tests))


def _turns(loop: Loop) -> tuple[object, ...]:
    """The part of a loop that says which thread has which element."""
    return loop.bound, loop.kind, loop.first, loop.step


def _always(facts: Facts, loop: Loop, node: Node) -> bool:
    return not any(facts.conditions(node, loop.node))


def _touching(rows: Iterable[Loop], accesses: list[Access]) -> list[Loop]:
    """The loops whose bodies have some of the accesses."""
    return [loop for loop in rows if any(loop.body.holds(one.node) for one in accesses)]


def _shared_out(subject: Subject, rows: _Placed) -> str:
    """Why which thread has which element must stay, as a clause; empty where it need not."""
    facts = subject.facts
    blocks = any(subject.grid(axis) != "1" for axis in AXES)
    for loop in rows:
        carried = Carried(facts, loop.node, facts.body)
        if carried.why:
            return carried.why
        stored = [one for one in facts.accesses if one.written and not one.atomic and one.root in facts.arrays]
        if loop.kind == "grid" and blocks and carried.states and any(not loop.node.holds(one.node) for one in stored):
            return f"each block has a part of {next(iter(carried.states)).name} and stores what comes of it"
        known = {*facts.arrays, *facts.declared_in(loop.body)}
        for access in facts.inside(loop.body):
            if access.written and access.root not in known and not _adds_up(facts, loop, access.root):
                return f"a loop writes {access.root.name}, which is not a parameter of the kernel"
    for root in facts.arrays:
        own = facts.of(root)
        having = _touching(rows, own)
        if not _touching(rows, [one for one in own if one.written]) or all(one.atomic for one in own):
            continue
        everywhere = all(_touching(rows, [one]) for one in own)
        at = {(one.rest, one.record, *_turns(loop)) for loop in having for one in rows[loop].get(root, [])}
        alone = all(root in rows[loop] for loop in having) and len(at) <= 1
        if not everywhere or (len(having) > 1 and not alone):
            return f"{root.name} is written in a loop, and used elsewhere by threads that may be others"
    return ""


def _adds_up(facts: Facts, loop: Loop, root: Symbol) -> bool:
    """Whether a loop does nothing to an array in shared memory but add; and where blocks share the loop, each block
    only adds what it has there to what all have."""
    own = [one for one in facts.of(root) if loop.kind == "grid" or loop.node.holds(one.node)]
    others = [one for one in own if not one.adds]
    alone = root in facts.shared and root not in facts.escaping and not any(loop.node.holds(one.node) for one in others)
    return alone and not any(one.written for one in others if not one.clears) and _given_to_all(facts, root, others)


def _given_to_all(facts: Facts, root: Symbol, others: list[Access]) -> bool:
    """Whether blocks clear elements alike, and do nothing else with any than to add them to a global array, in all
    blocks to the same elements, or not where they are zero."""
    values = [one.node.kids[-1].value for one in facts.of(root) if one.adds]
    grows = all(isinstance(one, int) and one > 0 for one in values)
    reads, adds, tests = [one for one in others if not one.clears], list[Node](), list[Node]()
    for use in (use for one in reads for use in meanings(facts, one.node)):
        up = use.parent or use
        zero = up.op in ("!=", ">")[: 1 + grows] and facts.form(up.kids[1]) == ZERO
        if not zero and (up.what, use) not in (("if", up.kids[0]), ("call", up.kids[-1])):
            return False
        (adds if up.what == "call" else tests).append(use if up.what == "if" else up)
    turns = {one.atom for one in facts.loops if one.kind == "block"}
    found = {one.node: one for one in facts.accesses if one.adds and one.root in facts.arrays}
    places = [(one, found[one].index if one in found else None) for one in adds]
    for place, index in places + [(one.node, one.index) for one in others]:
        conditions, doubtful = facts.conditions(place)
        forms = [x.least for x in conditions if x.node not in tests] + [index]
        atoms = {atom for form in forms for atom in (["?"] if form is None else form.atoms)} - turns
        if doubtful or any(not x.startswith("threadIdx.") and facts.reach(Form.atom(x)) > 0 for x in atoms):
            return False
    branches = [x.kids[1] for test in tests for x in [test.parent] if x and (x.what, len(x.kids)) == ("if", 2)]
    alone = [[x for x in one.walk() if x.what in ("call", "assign", "count")] for one in branches]
    return len(alone) == len(tests) and all(len(those) == 1 and those[0] in adds for those in alone)


def _read_again(subject: Subject, rows: _Placed) -> tuple[Symbol | None, list[Loop]]:
    """The array that most loops use at the same place, and these loops: what is never written, or what each thread
    alone reads and writes."""
    best: tuple[Symbol | None, list[Loop]] = None, []
    for root in subject.facts.arrays:
        own, among = subject.facts.of(root), dict[tuple[object, ...], list[Loop]]()
        for loop, arrays in rows.items():
            if len(arrays.get(root, [])) == 1 and not arrays[root][0].multiples:
                one = arrays[root][0]
                among.setdefault((one.rest, one.record, *_turns(loop)), []).append(loop)
        for found in among.values():
            if len(found) < 2 or not any(rows[loop][root][0].read for loop in found[1:]):
                continue
            alone = len(among) == 1 and all(_touching(found, [one]) for one in own)
            if any(one.written for one in own) and not alone:
                continue
            best = (root, found) if len(found) > len(best[1]) else best
    return best


def _change(subject: Subject, found: _Rows) -> Change:
    kept, keeping = found.kept, found.keeping
    wide, keep = subject.name("ROW_VEC"), subject.name("KEEP")
    count = wide if found.vectors else "1"
    on = " || ".join([f"{wide} > 1"] * found.vectors + [f"{keep} > 0"] * bool(keeping))
    made, sizes = Change(kit=("rows",)), set[str]()
    for number, group in enumerate(found.groups):
        concerned = [one for one in group if found.vectors or one in keeping]
        units = f"{subject.name('units')}_{number}"
        for at, loop in enumerate(concerned):
            lines = [f"\n#if {on}"]
            if at == 0:
                # How many whole vectors the loops have: none where an array begins at another address.
                every = [one for each in concerned for those in found.placed[each].values() for one in those]
                even = " && ".join(dict.fromkeys(test for one in every for test in one.even(subject, count, loop.node)))
                bound = subject.written(loop.bound, loop.node)
                lines.append(f"const {loop.variable.written} {units} = {even} ? ({bound}) / {count} : 0;")
            if kept is not None and loop is keeping[0]:
                size = f"{subject.name('kept')}[{keep} > 0 ? {keep} : 1]"
                lines.append(
                    f"tunesmith::Elements<{kept.element}, {found.placed[loop][kept][0].elements(count)}> {size};"
                )
            made.edits.append(_rewritten(subject, loop, found, lines, units, count))
            for one in (one for those in found.placed[loop].values() for one in those):
                sizes.add(f"{one.elements(wide)} * sizeof({subject.dtype(one.root)})")
    if found.vectors:
        doc = "neighbouring elements of a row that a thread reads and writes together"
        made.parameter(wide, (1, 2, 4, 8, 16), doc)
        made.constraints = {f"{wide} == 1 or {one} <= 16": WIDEST for one in sorted(sizes)}
    if kept is not None:
        doc = f"turns on a row whose elements of {kept.name} a thread keeps in registers; 0: none"
        made.parameter(keep, (0, 1, 2, 4, 8, 16), doc)
        if found.vectors:
            made.constraints[f"{keep} * {wide} <= {_KEPT}"] = "A thread has no registers for more elements."
    made.off = " and ".join(f"{one.name} == {one.values[0]}" for one in made.parameters)
    return made


def _rewritten(subject: Subject, loop: Loop, found: _Rows, lines: list[str], units: str, count: str) -> Edit:
    """A loop as its body, for one element, and the walk over the row."""
    holds, placed_here = loop in found.keeping, found.placed[loop]
    kind, body = loop.variable.written, subject.name("element_body")
    swaps, begins, arrays, taken = list[Edit](), list[str](), list[str](), ""
    for place in (one for those in placed_here.values() for one in those):
        local, element = subject.name(f"{place.name}_here"), place.root.element
        for access in place.accesses:
            swaps.append(moved(subject, access, f"(&{local})[{place.number(access)}]" if place.record > 1 else local))
        mine = holds and place.root is found.kept
        which = 0 if not mine else 1 if loop is found.keeping[0] else 2
        flags = f"{str(place.read).lower()}, {str(place.written).lower()}, {which}"
        hints = f"{subject.hint(place.root)}, {subject.hint(place.root, stored=True)}"
        begin, of = f"const_cast<{element}*>({place.root.name})", f"{element}*"
        if place.multiples:
            index = subject.written(place.index, loop.node, {loop.atom: "i"})
            name = subject.name(f"begin_of_{place.name}")
            begins.append(f"const auto {name} = [&](const {kind} i) {{ return {begin} + {index}; }};")
            begin, of = name, f"decltype({name})"
        else:
            begin = f"{begin} + {subject.written(place.rest, loop.node)}"
        held = subject.name("kept") if mine else "nullptr"
        arrays.append(
            f"tunesmith::Along<{element}, {count}, {place.record}, {flags}, {hints}, {of}>{{{begin}, {held}}}"
        )
        # NVRTC 13.0 takes no lambda whose parameters are `auto` within a kernel.
        taken += f", {element}& {local}"
    goes_on = [one for one in loop.body.walk() if one.what == "continue" and not one.inside(LEFT, loop.node)]
    swaps += [replace(one, "return") for one in goes_on]
    first, step = (
        subject.so_far("writes").get("turn", "threadIdx.x"),
        subject.so_far("writes").get("turns", subject.builtin("blockDim.x")),
    )
    if number := lanes(subject, loop):
        first, step = subject.written(loop.first, loop.node) or "", str(number)
    elif loop.kind == "grid":
        # Lanes have a coordinate of their own, and no loops of rows.
        block, width, thread, grid = map(subject.builtin, ("blockIdx.x", "blockDim.x", "threadIdx.x", "gridDim.x"))
        first, step = f"{block} * {width} + {thread}", f"{grid} * {width}"
    keep = subject.name("KEEP") if holds else "0"
    bound = subject.written(loop.bound, loop.node)
    walked = f"tunesmith::row<{count}, {keep}>(({kind})({first}), ({kind})({step}), {units}, ({kind})({bound}), {body}"
    lines += ["{", *begins, f"const auto {body} = [&](const {kind} {loop.variable.name}{taken}) {{ "]
    after = "\n".join(["; };", ", ".join([walked, *arrays]) + ");", "}", "#else", ""])
    ends = "\n#endif\n" if loop.body.what == "block" else ";\n#endif\n"
    return replace(loop.node, "\n".join(lines), span(loop.body, *swaps), after, span(loop.node), ends)


_AFTER = ("block_size", "row_teams", "cache_hints")
ROW_LOOPS = Pass("row_loops", _rows, _change, why="rows are read one by one: ", after=_AFTER)
