"""Elements of arrays that lie side by side for neighbouring coordinates, so that they can move as one access.

The coordinate is that of a thread, or its place in a loop. The next one has the next elements: one, or a record of two
or four, everywhere or within rows whose length then has to be a multiple of a vector's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from tunesmith.kernels.reader.syntax import Node, Symbol
from tunesmith.kernels.rewrite.facts import Access, Facts, Part
from tunesmith.kernels.rewrite.forms import ONE, Form
from tunesmith.kernels.rewrite.passes.record import Subject

_RECORDS = (1, 2, 4)
"""Elements of a coordinate that may be side by side: a power of two, as the elements of a vector are."""


@dataclass(frozen=True, slots=True)
class Place:
    """A record of an array that the kernel touches at each coordinate for certain. name: of the array, and of a number
    where it has several; index: its first element; record: its elements; rest: of the index, what is the same for all
    coordinates; multiples: have to be multiples of a vector's coordinates, so that a vector's records are neighbours;
    apart: as well, and not zero, so that no two records are one."""

    root: Symbol
    name: str
    index: Form
    record: int
    accesses: list[Access]
    rest: Form
    multiples: tuple[Form, ...] = ()
    apart: tuple[Form, ...] = ()

    @property
    def read(self) -> bool:
        return any(one.read for one in self.accesses)

    @property
    def written(self) -> bool:
        return any(one.written for one in self.accesses)

    def elements(self, count: str) -> str:
        """How many elements `count` records have, in C."""
        return count if self.record == 1 else f"{count} * {self.record}"

    def number(self, access: Access) -> int:
        """The number of an access's element in its record."""
        return (access.index - self.index).constant or 0

    def even(self, subject: Subject, count: str, ahead: Node | None = None) -> list[str]:
        """The conditions, in C, under which vectors of `count` records are aligned neighbours."""
        cuda = subject.backend == "cuda"
        count = self.elements(count)
        begin = f"{self.root.name} + {subject.written(self.rest, ahead)}"
        found = [f"tunesmith::aligned<{count}>({begin})" if cuda else f"TUNESMITH_ALIGNED({count}, {begin})"]
        found += [f"({subject.written(one, ahead)}) % ({count}) == 0" for one in (*self.multiples, *self.apart)]
        return found + [f"({subject.written(one, ahead)}) != 0" for one in self.apart]


def places(
    subject: Subject, own: list[Access], atom: str, is_certain: Callable[[Node], bool], ahead: Node | None = None
) -> list[Place]:
    """The places of the array of which all of `own` are accesses. atom: the coordinate; ahead: the statement ahead of
    which all but the coordinate is known (None: the beginning of the kernel's body)."""
    facts, groups = subject.facts, dict[tuple[Form, int], list[Access]]()
    root = own[0].root
    if root in facts.escaping or not subject.dtype(root) or any(one.atomic for one in own):
        return []
    side: dict[tuple[Form, int], tuple[Form, tuple[Form, ...]]] = {}
    for one in own:
        if one.node.what == "index" and not one.node.fixed and (found := _side_by_side(facts, one.index, atom)):
            record, rest, multiples = found
            shift = Form.number(dict(one.index.terms).get((), 0) % record)
            groups.setdefault((one.index - shift, record), []).append(one)
            side.setdefault((one.index - shift, record), (rest - shift, multiples))
    made, is_written = list[Place](), any(one.written for one in own)
    for (index, record), mine in groups.items():
        decisive = [one for one in mine if one.written] or mine
        rest, multiples = side[index, record]
        certain = {(one.index - index).constant for one in decisive if is_certain(one.node)}
        given = {atom: "0"}
        known = all(subject.written(one, ahead, given) is not None for one in (index, *multiples))
        if not known or len(certain) < record or (multiples and subject.backend != "cuda"):
            continue
        name = root.name if not made else f"{root.name}_{len(made)}"
        place = Place(root, name, index, record, mine, rest, multiples)
        distance = index - made[0].index if made else ONE
        # A vector that begins elsewhere by a fixed number of elements would not be aligned.
        if not made or is_written or distance.constant is None:
            made.append(place)
    if not is_written or not made:
        return made
    # An element in a register must be all that the thread touches, and records that are written be others.
    apart = tuple(two.index - one.index for one, two in pairwise(made))
    if sum(len(one.accesses) for one in made) < len(own) or (apart and (len(made) > 2 or any(one.read for one in own))):
        return []
    if any(subject.written(one, ahead) is None for one in apart):
        return []
    first, *others = made
    return [first, *(Place(x.root, x.name, x.index, x.record, x.accesses, x.rest, x.multiples, apart) for x in others)]


def _part(facts: Facts, of: str, atom: str) -> Part | None:
    """The part of a coordinate that an atom is, or that alone determines it, as a row does a number read for it."""
    found = facts.part(Form.atom(of), frozenset({atom}))
    if found is not None or of not in facts.atoms:
        return found
    inside = [one for form in facts.atoms[of].parts for one in form.atoms if atom in facts.asked(Form.atom(one))]
    parts = {_part(facts, one, atom) for one in inside}
    whole = parts.pop() if len(parts) == 1 else None
    return whole if whole is not None and whole.low != ONE else None


def _side_by_side(facts: Facts, index: Form, atom: str) -> tuple[int, Form, tuple[Form, ...]] | None:
    """The elements of a record, what of the index is the same for all coordinates, and what has to be a multiple of a
    vector's coordinates; None where neighbouring coordinates have no neighbouring records."""
    asking = [one for one in index.atoms if atom in facts.asked(Form.atom(one))]
    factor = index.times(atom).constant
    if asking == [atom]:
        return (factor, index.without(atom), ()) if factor in _RECORDS else None
    parts = {one: _part(facts, one, atom) for one in asking}
    found = {one: part for one, part in parts.items() if part is not None}
    inner = [one for one, part in found.items() if part.low == ONE]
    if len(found) < len(parts) or len(inner) != 1 or index.times(inner[0]) != ONE:
        return None
    factors = {one: index.times(one) for one in asking if one != inner[0]}
    if any(one in factor.atoms for factor in factors.values() for one in asking):
        return None
    borders = [part.low for one, part in found.items() if one != inner[0]]
    high = found[inner[0]].high
    multiples = dict.fromkeys([*borders, *factors.values(), *([] if high is None else [high])])
    if any((one.constant or 0) % 2 for one in multiples):
        return None
    return 1, index.without(*asking), tuple(multiples)
