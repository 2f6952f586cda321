"""What neighbouring threads read alike is read once for the block: the surroundings of a stencil, a sliding window.

A block stages a box of the array in shared memory, row by row, as far as the array has it: elements that the kernel
reads are there, whatever its guards are. A place in the box is the thread's own, a distance, and the rounds of loops.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from tunesmith.kernels.rewrite.facts import AXES, Access
from tunesmith.kernels.rewrite.forms import ONE, ZERO, Form
from tunesmith.kernels.rewrite.passes.record import Change, Edit, Pass, Plan, Refused, Subject, insert, span
from tunesmith.kernels.rewrite.sharing import Rows
from tunesmith.kernels.rewrite.syntax import Symbol
from tunesmith.kernels.spec.template import Parameter

REACH = 32
"""Elements of a row, or rows, that a box may have beyond those of its threads."""
_UNKNOWN = 9
"""Rounds of a loop whose length is known only when the kernel runs, for a guess at what staging saves."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an access is in a box. column, row: distances; rounds: for both, what loops add, in C, at least 0; spans:
    the largest such number, None where it is not known."""

    access: Access
    column: int
    row: int
    rounds: tuple[str, str]
    spans: tuple[int | None, int | None]


@dataclass(frozen=True, slots=True)
class Box:
    """axis: of the threads that are neighbours in a row; down: of those in different rows, or empty; apart: elements
    between rows; base: the element of a block's first thread without distances."""

    root: Symbol
    axis: str
    down: str
    apart: Form
    base: Form
    places: tuple[Place, ...]

    def reach(self, which: int) -> tuple[int, int | None]:
        """The least distance of elements from their thread, and how far the largest is from it; along rows: 0."""
        at = [one.row if which else one.column for one in self.places]
        spans = [one.spans[which] for one in self.places]
        wide = [one + more - min(at) for one, more in zip(at, spans, strict=True) if more is not None]
        return min(at), None if None in spans else max(wide)

    @property
    def gain(self) -> int:
        """How many of a thread's reads are of what others of its row read, too; 0 for a box that is too large."""
        (_, wide), (_, high) = self.reach(0), self.reach(1)
        if max(high or 0, wide or 0) > REACH:
            return 0
        distances = {(one.column, one.row, one.spans) for one in self.places}
        reads = sum(math.prod(_UNKNOWN if one is None else one + 1 for one in spans) for *_, spans in distances)
        return reads - (1 if self.down else _UNKNOWN if high is None else high + 1)


def _box(subject: Subject) -> Box | Refused:
    facts, why = subject.facts, "no array is read at several places around that of a thread by the threads of a block"
    if isinstance(subject.work, Rows) or not all(subject.block(axis).isdigit() for axis in AXES):
        return Refused(
            "nothing is staged with a margin: blocks take turns on rows, or their size depends on the workload"
        )
    found = list[Box]()
    for root in facts.arrays:
        if facts.is_written(root) or root in facts.escaping or not subject.dtype(root):
            continue
        boxes = [one for one in _boxes(subject, root) if one.gain > 0]
        if boxes and subject.in_kernel(subject.lengths.get(root.name, "")) is None:
            why = f"the kernel does not know how long {root.name} is"
        else:
            found += boxes
    return max(found, key=lambda one: one.gain, default=None) or Refused(f"nothing is staged with a margin: {why}")


def _boxes(subject: Subject, root: Symbol) -> Iterator[Box]:
    """The boxes that hold accesses of an array whose places differ by known distances."""
    facts, plan = subject.facts, Plan(subject)
    own = [(one, one.index) for one in facts.of(root) if not one.node.fixed]
    for axis in AXES:
        first = Form.atom(f"blockIdx.{axis}") * Form.atom(f"blockDim.{axis}")
        own = [(one, form.replaced(f"@{axis}", first + Form.atom(f"threadIdx.{axis}"))) for one, form in own]
    for axis in AXES:
        mine = [(one, form) for one, form in own if form.times(f"threadIdx.{axis}") == ONE]
        for down in ("", *(other for other in AXES if other != axis)):
            pitches = {form.times(f"threadIdx.{down}") for _, form in mine} if down else _pitches(subject, mine)
            for apart in sorted(pitches, key=repr):
                groups: dict[Form, list[Place]] = {}
                for access, form in mine:
                    rest = form - Form.atom(f"threadIdx.{axis}")
                    rest -= Form.atom(f"threadIdx.{down}") * apart if down else ZERO
                    found = place_of(subject, access, rest, apart)
                    if found is not None and plan.written(found[1], None) and facts.reach(found[1] + apart) < 2:
                        groups.setdefault(found[1], []).append(found[0])
                if plan.written(apart, None) and (apart.terms or not down):
                    yield from (Box(root, axis, down, apart, base, tuple(those)) for base, those in groups.items())


def _pitches(subject: Subject, own: list[tuple[Access, Form]]) -> set[Form]:
    """What may lie between rows of a grid with one dimension: what rounds of loops, or accesses, differ by."""
    found = {form.times(one.atom) for one in subject.facts.loops for _, form in own}
    found |= {Form(((atoms, 1),)) for _, form in own for atoms, _ in (form - own[0][1]).terms}
    return {one for one in found if len(one.terms) == 1 and one not in (ONE, -ONE)} | {ZERO}


def place_of(subject: Subject, access: Access, rest: Form, apart: Form) -> tuple[Place, Form] | None:
    """Where an access is in a box, and what is left of its index beside distances."""
    facts, plan, rounds = subject.facts, Plan(subject), ["0", "0"]
    lengths = list[tuple[int, int | None]]()
    for loop in (one for one in facts.loops if one.atom in rest.atoms):
        by, rest = rest.times(loop.atom), rest.without(loop.atom)
        first, last = plan.written(loop.first, loop.node), plan.written(loop.bound - ONE, loop.node)
        uniform = facts.reach(loop.first + loop.bound) == 0 and loop.kind == "counting" and loop.body.holds(access.node)
        if by not in (ONE, -ONE, apart, -apart) or not uniform or first is None or last is None:
            return None
        which, name = int(by not in (ONE, -ONE)), loop.variable.name
        rounds[which] += f" + ({name} - ({first}))" if by in (ONE, apart) else f" + (({last}) - {name})"
        rest += by * (loop.first if by in (ONE, apart) else loop.bound - ONE)
        lengths.append((which, (loop.bound - loop.first - ONE).constant))
    known = [
        None if (which, None) in lengths else sum(one or 0 for at, one in lengths if at == which) for which in (0, 1)
    ]
    row = 0
    if apart.constant:
        row = round(dict(rest.terms).get((), 0) / apart.constant)
    elif apart.terms:
        row = int(dict(rest.terms).get(apart.terms[0][0], 0) / apart.terms[0][1])
    rest -= apart * Form.number(row)
    column = dict(rest.terms).get((), 0)
    return Place(access, column, row, (rounds[0], rounds[1]), (known[0], known[1])), rest - Form.number(column)


def _halo(subject: Subject, box: Box, plan: Plan) -> Change:
    name, at, staged = subject.name("HALO"), subject.name("HALO_AT"), subject.name("staged")
    (left, wide), (top, high) = box.reach(0), box.reach(1)
    own = {axis: subject.block(axis) for axis in AXES}
    if plan.threads:
        names = dict(zip(subject.axes, plan.threads, strict=False))
        own |= {axis: f"({plan.threads[0]} > 0 ? {one} : {own[axis]})" for axis, one in names.items()}
    unknown, more = None in (wide, high), [name if one is None else str(one) for one in (wide, high)]
    pitch, rows = f"({own[box.axis]} + {more[0]})", f"({own.get(box.down, '1')} + {more[1]})"
    length, kind = subject.in_kernel(subject.lengths[box.root.name]), box.root.element
    here, count = plan.thread
    begin, apart = plan.written(box.base + Form.number(left) + box.apart * Form.number(top)), plan.written(box.apart)
    box_of = f"{subject.wide}, {staged}, {pitch}, {rows}, {box.root.name}, {length}"
    meet = "__syncthreads()" if subject.backend == "cuda" else "barrier(CLK_LOCAL_MEM_FENCE)"
    opens = f"""
#if {name}
{"__shared__" if subject.backend == "cuda" else "__local"} {kind} {staged}[{pitch} * {rows}];
TUNESMITH_STAGE({box_of}, {begin}, {apart}, {here}, {count});
{meet};
#endif
"""
    edits = [insert(subject.facts.body.start + 1, opens)]
    for one in box.places:
        column = f"(int){subject.builtin(f'threadIdx.{box.axis}')} + {one.column - left} + {one.rounds[0]}"
        row = f"{one.row - top} + {one.rounds[1]}"
        row += f" + (int){subject.builtin(f'threadIdx.{box.down}')}" if box.down else ""
        node = one.access.node
        edits.append(Edit(node.start, node.end, (f"{at}({column}, {row}, ", span(node), ")")))
    place = f"{staged}[(row) * {pitch} + (column)]"
    kept = f"((column) < {pitch} && (row) < {rows} ? {place} : (__VA_ARGS__))" if unknown else place
    macro = f"#define {at}(column, row, ...)"
    header = f"#if {name}\n{macro} {kept}\n#else\n{macro} (__VA_ARGS__)\n#endif"
    area = f"({plan.block(box.axis)} + {more[0]}) * ({plan.block(box.down) if box.down else '1'} + {more[1]})"
    doc = f"whether a block stages what it reads of {box.root.name}"
    if unknown:
        doc = f"elements of {box.root.name} beyond its own that a block stages along each axis; 0: nothing is staged"
    return Change(
        parameters=(Parameter(name=name, values=(0, 4, 8, 16, 32) if unknown else (False, True), doc=doc),),
        edits=tuple(edits),
        header=header,
        kit=("stage",),
        static_shared=f"({area} * sizeof({subject.dtype(box.root)}) if {name} else 0)",
    )


_ALONE = "What is staged is for one element of each thread."
HALO = Pass(
    "halo",
    _box,
    _halo,
    excludes={"work_per_thread": _ALONE, "vectors": _ALONE, "row_lanes": _ALONE, "output_tiles": _ALONE},
    after=("block_size",),
    languages=("cuda", "opencl"),
)
