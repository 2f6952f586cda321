"""Loops in which the threads of a block take turns on a row: neighbours together, a row that is read again kept, teams.

A turn takes one element; here it takes a vector of neighbours, as one access of up to 16 bytes. What several loops read
stays in registers: each thread keeps its first vectors, and every loop goes over these, unrolled, then over the other
vectors, then over what fills no vector, as the loop did before. Where the threads of a block never meet, nothing but
the launch ties them to one row: a block may have several, where rows are short, or a row several blocks, where there
are few.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tunesmith.kernels.rewrite.facts import AXES, ENDS, Access, Loop
from tunesmith.kernels.rewrite.forms import ONE, Form
from tunesmith.kernels.rewrite.passes.record import (
    Change,
    Edit,
    Pass,
    Plan,
    Refused,
    Span,
    Subject,
    replace,
    span,
    wrap,
)
from tunesmith.kernels.rewrite.passes.vectors import assignment, value_of
from tunesmith.kernels.rewrite.rounds import Carried
from tunesmith.kernels.rewrite.sharing import Rows, reads_thread
from tunesmith.kernels.rewrite.syntax import Node, Symbol
from tunesmith.kernels.spec.template import Constraint, Parameter

_KEPT = 64
"""Most elements that a thread keeps."""


@dataclass(slots=True)
class _Array:
    """What a loop does at its own place of an array, in every round for certain. rest: how far its element 0 is from
    the begin of the array."""

    root: Symbol
    rest: Form
    accesses: list[Access]

    @property
    def read(self) -> bool:
        return any(one.read for one in self.accesses)

    @property
    def written(self) -> bool:
        return any(one.written for one in self.accesses)


@dataclass(slots=True)
class _Row:
    """A loop over a row. arrays: which may go in vectors, by array."""

    loop: Loop
    arrays: dict[Symbol, _Array] = field(default_factory=dict)

    def touches(self, access: Access) -> bool:
        return self.loop.body.holds(access.node)


@dataclass(frozen=True, slots=True)
class _Rows:
    """groups: of loops with one bound; kept: the array that is kept, and the loops that use it; vectors: whether
    neighbours may go together."""

    groups: list[list[_Row]]
    kept: tuple[Symbol, list[_Row]] | None
    vectors: bool


def _rows(subject: Subject) -> _Rows | Refused:
    facts = subject.facts
    turns = [one for one in facts.loops if one.kind == "block" and one.node.parent is facts.body]
    rows = [_Row(one) for one in turns if _goes_on(subject, one)]
    if not rows:
        return Refused("no loop of the kernel is one in which the threads of a block take turns on a row")
    groups: dict[Form, list[_Row]] = {}
    for row in rows:
        groups.setdefault(row.loop.bound, []).append(row)
    plain = Plan(subject)
    usable = [group for bound, group in groups.items() if plain.written(bound, group[0].loop.node) is not None]
    for group in usable:
        for row in group:
            for root in facts.arrays:
                if (array := _array(subject, row.loop, root, group[0].loop.node)) is not None:
                    row.arrays[root] = array
    kept = _read_again(subject, [row for group in usable for row in group])
    why = _shared_out(subject, rows)
    if why and kept is None:
        return Refused(f"rows are read one by one: {why}")
    vectors = not why and any(row.arrays for group in usable for row in group)
    if not vectors and kept is None:
        return Refused("rows are read one by one: no loop reads or writes an array at its own place for certain")
    return _Rows(usable, kept, vectors)


def _goes_on(subject: Subject, loop: Loop) -> bool:
    """Whether the body of a loop only goes on to the next round, and does not depend on the thread."""
    facts, body = subject.facts, loop.body
    if loop.node.fixed or body.fixed or loop.variable in facts.changed_in(body) or reads_thread(facts, body):
        return False
    ends = [one for one in body.walk() if one.what in ENDS and one.what != "continue"]
    own = [one for one in ends if one.what in ("return", "goto") or not _in_inner(one, loop.node)]
    meets = any(one in facts.barriers or (one.what == "call" and one.op.startswith("__shfl")) for one in body.walk())
    return not own and not meets


def _in_inner(node: Node, loop: Node) -> bool:
    """Whether `break` or `continue` is that of a loop inside `loop`."""
    for above, _ in node.above():
        if above is loop:
            return False
        if above.what in ("for", "while", "do", "switch", "for each"):
            return True
    return False


def _array(subject: Subject, loop: Loop, root: Symbol, first: Node) -> _Array | None:
    facts = subject.facts
    own = [one for one in facts.of(root) if loop.body.holds(one.node)]
    if not own or root in facts.escaping or not subject.dtype(root) or len({one.index for one in own}) != 1:
        return None
    index = own[0].index
    if any(one.atomic or one.node.what != "index" or one.node.fixed for one in own) or index.times(loop.atom) != ONE:
        return None
    decisive = [one for one in own if one.written] or own
    if not any(not any(facts.conditions(one.node, loop.node)) for one in decisive):
        return None
    rest = index.without(loop.atom)
    known = Plan(subject).written(rest, first) is not None
    return _Array(root, rest, own) if known else None


def _shared_out(subject: Subject, rows: list[_Row]) -> str:
    """Why which thread has which element must stay, as a clause; empty where it need not."""
    facts = subject.facts
    for row in rows:
        if why := Carried(facts, row.loop.node, facts.body).why:
            return why
        known = {*facts.arrays, *facts.declared_in(row.loop.body)}
        for access in facts.inside(row.loop.body):
            if access.written and access.root not in known:
                return f"a loop writes {access.root.name}, which is no parameter of the kernel"
    for root in facts.arrays:
        own = facts.of(root)
        written = [one for one in own if one.written and any(row.touches(one) for row in rows)]
        if not written or all(one.atomic for one in own):
            continue
        having = [row for row in rows if any(row.touches(one) for one in own)]
        everywhere = all(any(row.touches(one) for row in rows) for one in own)
        places = {(row.arrays[root].rest, row.loop.bound) for row in having if root in row.arrays}
        alone = all(root in row.arrays for row in having) and len(places) <= 1
        if (len(having) > 1 or not everywhere) and not (alone and everywhere):
            return f"{root.name} is written in a loop, and used elsewhere by threads that may be others"
    return ""


def _read_again(subject: Subject, rows: list[_Row]) -> tuple[Symbol, list[_Row]] | None:
    """The array that most loops use at the same place, and these loops: what is never written, or what each thread
    alone reads and writes."""
    best: tuple[Symbol, list[_Row]] | None = None
    for root in subject.facts.arrays:
        own, places = subject.facts.of(root), dict[tuple[Form, Form], list[_Row]]()
        for row in rows:
            if root in row.arrays:
                places.setdefault((row.arrays[root].rest, row.loop.bound), []).append(row)
        for found in places.values():
            if len(found) < 2 or not any(row.arrays[root].read for row in found[1:]):
                continue
            alone = len(places) == 1 and all(any(row.touches(one) for row in found) for one in own)
            if any(one.written for one in own) and not alone:
                continue
            if best is None or len(found) > len(best[1]):
                best = root, found
    return best


def _change(subject: Subject, found: _Rows, plan: Plan) -> Change:
    kept = found.kept
    wide, keep = subject.name("ROW_VEC"), subject.name("KEEP")
    count = wide if found.vectors else "1"
    on = " || ".join([f"{wide} > 1"] * found.vectors + [f"{keep} > 0"] * (kept is not None))
    edits, sizes = list[Edit](), set[str]()
    for number, group in enumerate(found.groups):
        concerned = [one for one in group if found.vectors or (kept is not None and one in kept[1])]
        units = f"{subject.name('units')}_{number}"
        for at, row in enumerate(concerned):
            lines = [f"\n#if {on}"]
            if at == 0:
                lines += _begin(subject, plan, concerned, units, count)
            if kept is not None and row is kept[1][0]:
                size = f"{subject.name('kept')}[{keep} > 0 ? {keep} : 1]"
                lines.append(f"tunesmith::Elements<{kept[0].element}, {count}> {size};")
            edits.append(_rewritten(subject, plan, row, found, lines, units, count))
            sizes |= {subject.dtype(root) for root in row.arrays}
    parameters, constraints = list[Parameter](), list[Constraint]()
    if found.vectors:
        doc = "neighbouring elements of a row that a thread reads and writes together"
        parameters.append(Parameter(name=wide, values=(1, 2, 4, 8, 16), doc=doc))
        because = "No access has more than 16 bytes."
        constraints += [
            Constraint(expression=f"{wide} == 1 or {wide} * sizeof({one}) <= 16", because=because)
            for one in sorted(sizes)
        ]
    if kept is not None:
        doc = f"turns on a row whose elements of {kept[0].name} a thread keeps in registers; 0: none"
        parameters.append(Parameter(name=keep, values=(0, 1, 2, 4, 8, 16), doc=doc))
        if found.vectors:
            because = "A thread has no registers for more elements."
            constraints.append(Constraint(expression=f"{keep} * {wide} <= {_KEPT}", because=because))
    off = " and ".join([f"{wide} == 1"] * found.vectors + [f"{keep} == 0"] * (kept is not None))
    return Change(
        parameters=tuple(parameters), edits=tuple(edits), kit=("rows",), constraints=tuple(constraints), off=off
    )


def _begin(subject: Subject, plan: Plan, rows: list[_Row], units: str, count: str) -> list[str]:
    """How many whole vectors the loops have: none where an array begins at another address."""
    place, kind = rows[0].loop.node, rows[0].loop.variable.written
    pointers = [
        f"{root.name} + {plan.written(array.rest, place)}" for row in rows for root, array in row.arrays.items()
    ]
    aligned = f"tunesmith::aligned<{count}>({', '.join(dict.fromkeys(pointers))})"
    return [f"const {kind} {units} = {aligned} ? ({plan.written(rows[0].loop.bound, place)}) / {count} : 0;"]


def _rewritten(subject: Subject, plan: Plan, row: _Row, found: _Rows, lines: list[str], units: str, count: str) -> Edit:
    """A loop as its body, for one element, and the walk over the row."""
    loop, kept = row.loop, found.kept
    kind, body = loop.variable.written, subject.name("element_body")
    holds = kept is not None and row in kept[1]
    swaps, arrays = list[Edit](), list[str]()
    for root, array in row.arrays.items():
        local = subject.name(f"{root.name}_here")
        for access in array.accesses:
            node = assignment(access)
            if plan.hint(root, stored=True) != "0" and node is not None:
                swaps.append(Edit(node.start, node.end, (f"{local} = ", value_of(subject, node))))
            else:
                swaps.append(replace(access.node, local))
        mine = holds and kept is not None and kept[0] is root
        which = 0 if not mine or kept is None else 1 if kept[1][0] is row else 2
        flags = f"{str(array.read).lower()}, {str(array.written).lower()}, {which}"
        hints = f"{plan.hint(root)}, {plan.hint(root, stored=True)}"
        pointer = f"const_cast<{root.element}*>({root.name}) + {plan.written(array.rest, loop.node)}"
        held = subject.name("kept") if mine else "nullptr"
        arrays.append(f"tunesmith::Along<{root.element}, {count}, {flags}, {hints}>{{{pointer}, {held}}}")
    goes_on = [one for one in loop.body.walk() if one.what == "continue" and not _in_inner(one, loop.node)]
    swaps += [replace(one, "return") for one in goes_on]
    taken = "".join(f", auto& {subject.name(f'{root.name}_here')}" for root in row.arrays)
    first, step = plan.builtins.get("turn", "threadIdx.x"), plan.builtins.get("turns", plan.builtin("blockDim.x"))
    keep = subject.name("KEEP") if holds else "0"
    bound = plan.written(loop.bound, loop.node)
    walked = f"tunesmith::row<{count}, {keep}>(({kind})({first}), ({kind})({step}), {units}, ({kind})({bound}), {body}"
    lines += ["{", f"const auto {body} = [&](const {kind} {loop.variable.name}{taken}) {{ "]
    after = "\n".join(["; };", ", ".join([walked, *arrays]) + ");", "}", "#else", ""])
    ends = "\n#endif\n" if loop.body.what == "block" else ";\n#endif\n"
    return replace(loop.node, "\n".join(lines), span(loop.body, *swaps), after, span(loop.node), ends)


ROW_LOOPS = Pass("row_loops", _rows, _change, after=("block_size", "row_teams", "cache_hints"))


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
            # An SM holds 32 blocks (CUDA C++ Programming Guide, "Compute Capabilities"): smaller ones leave it half
            # empty.
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
