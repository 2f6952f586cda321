"""Permutations of dimensions: elements that are read along one and written along another go through shared memory.

The kernel takes an element's number apart by divisions and remainders: it is a number in a mixed radix, with a digit
for each dimension. Where neighbours in memory differ in one digit for a load and in another for the store, a block
takes a tile over these two digits with all others fixed. Its threads read neighbours along the first, and write
neighbours along the second (the algorithm "Tiled" of A. Hynninen and D. Lyakh, "cuTT: A High-Performance Tensor
Transpose Library for CUDA Compatible GPUs", 2017). The kernel's body stays, with other loads and indices. Digits next
to each other that all accesses count through together are one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from tunesmith.kernels.reader.syntax import Node
from tunesmith.kernels.rewrite.edits import Edit, Span, replace, span
from tunesmith.kernels.rewrite.facts import AXES, Access, Loop
from tunesmith.kernels.rewrite.forms import ONE, ZERO, Form
from tunesmith.kernels.rewrite.passes.record import ALONE, BOTH, Change, Pass, Refused, Subject, require
from tunesmith.kernels.spec.template import LaunchGeometry

MAX_TILES = (1 << 31) - 1
"""Each has an element at least."""
ROWS = (8, 4, 16)
"""Of threads of a block; each goes over several rows of a tile."""
FEW = 8
"""Fewer values of a digit leave neighbours near each other."""


@dataclass(frozen=True, slots=True)
class Coordinate:
    """A number that tells elements apart. name: in C; atom: in forms; nodes: where the source computes it; bound: how
    many values it has, or None where as many as the launch gives it, which is `extent` in the task's sizes; loop: the
    loop over the grid whose variable it is."""

    name: str
    atom: str
    axis: str
    nodes: tuple[Node, ...]
    bound: Form | None
    extent: str
    loop: Loop | None


@dataclass(frozen=True, slots=True)
class Digit:
    """`coordinate / low % radix`; radix: None for the last one, which has as many values as are left. name: in forms
    and in C."""

    name: str
    coordinate: Coordinate
    low: Form
    radix: Form | None


class Radix:
    """The digits of the coordinates, by the divisions in `forms`: the lowest of each coordinate first."""

    def __init__(self, subject: Subject, coordinates: list[Coordinate], forms: Iterable[Form]) -> None:
        self._facts, self._atoms = subject.facts, frozenset(one.atom for one in coordinates)
        self.digits: list[Digit] = []
        atoms = [Form.atom(atom) for form in forms for atom in form.atoms]
        parts = [part for one in atoms if (part := subject.facts.part(one, self._atoms)) is not None]
        for one in coordinates:
            borders = {low for part in parts if part.number == one.atom for low in (part.low, part.high)}
            lows = {ONE, *(low for low in borders if low not in (None, one.bound))}
            chain = sorted(lows, key=lambda low: (len(low.terms[0][0]), low.terms[0][1]))
            for low, above in zip(chain, [*chain[1:], one.bound], strict=True):
                name = subject.name(f"digit_{len(self.digits)}")
                self.digits.append(Digit(name, one, low, None if above is None else above.over(low)))

    def of(self, form: Form) -> Form | None:
        """A form over digits; None where it also depends on other values that differ between threads."""
        for atom in form.atoms:
            part = self._facts.part(Form.atom(atom), self._atoms)
            if part is None:
                if self._facts.reach(Form.atom(atom)) > 0:
                    return None
                continue
            mine = [one for one in self.digits if one.coordinate.atom == part.number]
            borders = [*(one.low for one in mine), mine[0].coordinate.bound]
            if part.low not in borders or part.high not in (*borders, None):
                return None
            last = len(mine) if part.high is None else borders.index(part.high)
            value = ZERO
            for one in mine[borders.index(part.low) : last]:
                factor = one.low.over(part.low)
                assert factor is not None, "each digit begins at a multiple of those below"
                value += factor * Form.atom(one.name)
            form = form.replaced(atom, value)
        return form

    def join(self, forms: Mapping[Access, Form], needed: Iterable[Access]) -> dict[Access, Form]:
        """Makes one digit of neighbouring ones that all of the needed accesses count through together. Returns the
        forms that can be said with the digits that are left."""
        left = dict(forms)
        for at in reversed(range(len(self.digits) - 1)):
            one, above = self.digits[at : at + 2]
            radix = one.radix
            if one.coordinate is not above.coordinate or radix is None:
                continue
            along = {key for key, form in left.items() if form.times(above.name) == form.times(one.name) * radix}
            if along.issuperset(needed):
                both = None if above.radix is None else radix * above.radix
                self.digits[at : at + 2] = [Digit(one.name, one.coordinate, one.low, both)]
                left = {key: form.without(above.name) for key, form in left.items() if key in along}
        return left

    def fastest(self, form: Form) -> Digit | None:
        """The digit along which neighbours are neighbours in memory; None where not exactly one is."""
        found = [one for one in self.digits if form.times(one.name) == ONE]
        return found[0] if len(found) == 1 else None


@dataclass(frozen=True, slots=True)
class _Permutation:
    """loads: the loads that go through a tile; forms: the indices that are known by digits; along, across: the digits
    along which the loads read and the stores write neighbours."""

    coordinates: list[Coordinate]
    digits: list[Digit]
    loads: list[Access]
    stores: list[Access]
    forms: dict[Access, Form]
    along: Digit
    across: Digit


def _coordinates(subject: Subject) -> list[Coordinate]:
    """The numbers that tell elements apart: thread and block numbers along each axis, or the variable of a loop over
    the grid."""
    facts, work, found, known = subject.facts, subject.work, list[Coordinate](), list[Node]()

    def add(axis: str, atom: str, nodes: tuple[Node, ...], bound: Form | None, extent: str, loop: Loop | None) -> None:
        found.append(Coordinate(subject.name(f"number_{axis}"), atom, axis, nodes, bound, extent, loop))

    loops = [one for one in facts.loops if one.kind == "grid"]
    require(work.kind == "cells" and (loops or not subject.unmovable), subject.unmovable)
    for loop in loops:
        alone = len(loops) == len(work.axes) == 1 and loop.node.parent is facts.body and not subject.returns
        alone = alone and facts.reach(loop.bound) == 0 and not facts.changed.keys() & set(facts.parameters)
        alone = alone and all(loop.node.holds(one) for one in facts.effects)
        require(alone, "it does more than one loop over the grid")
        add(loop.axis, loop.atom, (), loop.bound, subject.threads(loop.axis), loop)
        known += [*loop.node.kids[:3], *work.axes[0].nodes]
    for axis in work.axes if not loops else ():
        require(not axis.guarded or axis.bound is not None, f"its guards along {axis.name} differ")
        add(axis.name, f"@{axis.name}", axis.nodes, axis.bound, subject.threads(axis.name), None)
    for name in AXES:
        if name not in subject.axes and subject.grid(name) != "1":
            nodes = tuple(one for one in facts.body.walk() if one.what == "builtin" and one.op == f"blockIdx.{name}")
            add(name, f"blockIdx.{name}", nodes, None, subject.grid(name), None)
    known += [node for one in found for node in one.nodes]
    others = [one for one in facts.builtins() if not any(node.holds(one) for node in known)]
    if others or any(node.fixed for one in found for node in one.nodes):
        said = facts.text(others[0]) if others else "a macro for the number of a block"
        raise Refused(f"it uses {said}")
    return found


def _permutation(subject: Subject) -> _Permutation:
    facts = subject.facts
    require(not subject.bounded, subject.bounded)
    coordinates = _coordinates(subject)
    touched = [one for one in facts.accesses if one.root in facts.arrays]
    stores = [one for one in touched if one.written]
    loads = [one for one in touched if _once_read(subject, one) and _certain(subject, one, coordinates)]
    radix = Radix(subject, coordinates, (one.index for one in (*loads, *stores)))
    if any(one.radix is None and one.coordinate is above.coordinate for one, above in pairwise(radix.digits)):
        raise Refused("the digits of an element's number overlap")
    known = {one: form for one in touched if (form := radix.of(one.index)) is not None}
    apart = stores and all(one in known and not _several(radix, known[one]) for one in stores)
    require(apart, "it does not write each element in a place of its own digits")
    fastest = {one: radix.fastest(form) for one, form in known.items()}
    across, *others = {fastest[one] for one in stores}
    turned = {one: fastest[one] for one in loads if one in known and across and known[one].times(across.name) != ZERO}
    along, *more = set(turned.values()) - {None, across} or {None}
    if across is None or along is None or others or more:
        raise Refused("the elements that it reads as neighbours it also writes as neighbours")
    loads = [one for one, digit in turned.items() if digit is along]
    forms = radix.join(known, [*loads, *stores])
    both = [one for name in (along.name, across.name) for one in radix.digits if one.name == name]
    few = [one.radix.constant for one in both if one.radix is not None and (one.radix.constant or FEW) < FEW]
    if few:
        raise Refused(f"one of its dimensions has {few[0]} elements")
    return _Permutation(coordinates, radix.digits, loads, stores, forms, *both)


def _several(radix: Radix, form: Form) -> bool:
    """Whether elements that differ in a digit may have the same place. The last digit may have one value alone."""
    factors = [form.times(one.name) for one in radix.digits if one.radix is not None or form.times(one.name) != ZERO]
    return ZERO in factors or len(set(factors)) < len(factors)


def _once_read(subject: Subject, access: Access) -> bool:
    facts, root = subject.facts, access.root
    alone = access.read and not access.written and not facts.is_written(root) and root not in facts.escaping
    return alone and not access.node.fixed and bool(subject.dtype(root)) and facts.is_known(root, None)


def _certain(subject: Subject, access: Access, coordinates: list[Coordinate]) -> bool:
    """Whether every element comes to the load."""
    loops = [one.loop.node.kids[1] for one in coordinates if one.loop]
    if not loops:
        bounds = {one.axis: one.bound for one in coordinates if one.bound is not None}
        return subject.facts.certain(access.node, bounds)
    found, doubtful = subject.facts.conditions(access.node)
    return not doubtful and all(one.node in loops for one in found)


def _by_digits(subject: Subject, found: _Permutation, form: Form) -> str | None:
    """A form over digits, in C; None where something in it is not known at the beginning of the kernel's body."""
    return subject.written(form, None, {one.name: one.name for one in found.digits})


def _value(subject: Subject, found: _Permutation, one: Coordinate) -> str | None:
    """A coordinate by its digits, in C."""
    terms = (digit.low * Form.atom(digit.name) for digit in found.digits if digit.coordinate is one)
    return _by_digits(subject, found, sum(terms, ZERO))


def _count(subject: Subject, one: Coordinate) -> str | None:
    """How many values a coordinate has, in C."""
    count = subject.in_kernel(one.extent) if one.bound is None else subject.written(one.bound)
    return None if count is None else f"({count})"


def _extent(subject: Subject, one: Digit) -> str | None:
    """How many values a digit has, in C."""
    if one.radix is not None:
        return subject.written(one.radix)
    count, low = _count(subject, one.coordinate), subject.written(one.low)
    return None if count is None else f"({count} + {low} - 1) / ({low})"


def _tile(subject: Subject, found: _Permutation, load: Access) -> str:
    """The element of a tile that takes the place of a load; loads of one element have one tile."""
    places = [(one.root, found.forms[one]) for one in found.loads]
    element = "".join(f"[{one.name} - first_{one.name}]" for one in (found.across, found.along))
    return f"{subject.name('tile')}_{places.index((load.root, found.forms[load]))}{element}"


def _opens(subject: Subject, found: _Permutation, side: str, rows: str) -> str:
    """The code ahead of the kernel's body, which is then inside the loop over a tile."""
    number, left, both = subject.name("tile_number"), subject.name("tiles_left"), (found.along, found.across)
    loads, lines, taken, counts = {_tile(subject, found, one): one for one in found.loads}, [], list[str](), list[str]()
    for element, load in loads.items():
        lines.append(f"TUNESMITH_TILE({load.root.element}, {element.split('[')[0]}, {side});")
    for one in found.digits:
        extent = f"extent_{one.name}"
        lines.append(f"const {subject.wide} {extent} = {_extent(subject, one)};")
        tiled, whole = (
            (f"first_{one.name} = {side} * ", f"({extent} + {side} - 1) / {side}"),
            (f"{one.name} = ", extent),
        )
        begin, count = tiled if one in both else whole
        counts.append(f"(unsigned int)({count})")
        taken.append(f"const {subject.wide} {begin}({left} % {counts[-1]}); {left} /= {counts[-1]};")
    lines += [f"TUNESMITH_EACH_TILE({number}, {' * '.join(counts)}) {{ unsigned int {left} = {number};", *taken]
    values = [f"const {subject.wide} {one.name} = {_value(subject, found, one)};" for one in found.coordinates]
    inside = [f"{one.name} < extent_{one.name}" for one in both]
    inside += [f"{one.name} < {_count(subject, one)}" for one in found.coordinates]
    for inner, outer in (both, both[::-1]):
        lines += [f"TUNESMITH_OVER_TILE({side}, {rows}, {inner.name}, {outer.name}) {{", *values]
        lines.append(f"if ({' && '.join(inside)}) {{")
        for element, load in loads.items() if inner is found.along else ():
            value = f"{load.root.name}[{_by_digits(subject, found, found.forms[load])}]"
            hinted = f"tunesmith::load<{subject.hint(load.root)}>(&{value})" if subject.backend == "cuda" else value
            lines.append(f"{element} = {hinted};")
        lines += ["} }", "TUNESMITH_MEET;"] if inner is found.along else []
    return "\n".join(lines)


def _swaps(subject: Subject, found: _Permutation) -> Iterator[Edit]:
    """The edits of coordinates, indices and loads in the body."""
    cuda = subject.backend == "cuda"
    for access, form in found.forms.items():
        index = _by_digits(subject, found, form) if subject.facts.is_known(access.root, None) else None
        if access in found.loads:
            yield replace(access.node, _tile(subject, found, access))
        elif index is not None and access.node.what in ("index", "deref") and not access.node.fixed:
            yield replace(access.node, f"{access.root.name}[{index}]")
    for one in found.coordinates:
        for node in one.nodes:
            yield replace(node, "((", *(("decltype(", span(node), ")") if cuda else ("size_t",)), f"){one.name})")
        if one.loop is not None:
            # One round, that of the element.
            loop, name, count = one.loop.node, one.loop.variable.name, _count(subject, one)
            kind = "" if loop.kids[0].what == "assign" else f"{one.loop.variable.written} "
            head = f"for ({kind}{name} = {one.name}; {name} < {count}; {name} = {count}) "
            yield Edit(loop.start, one.loop.body.start, (head,))
    if not cuda:
        yield from (replace(one, "continue") for one in subject.returns)


def _permute(subject: Subject, found: _Permutation) -> Change:
    side, rows = subject.name("PERMUTE"), subject.name("PERMUTE_ROWS")
    length, own = subject.lengths.get(found.stores[0].root.name), [*found.loads, *found.stores]
    known = [length, *(_extent(subject, one) for one in found.digits)]
    known += [text for one in found.coordinates for text in (_value(subject, found, one), _count(subject, one))]
    known += [_by_digits(subject, found, found.forms[one]) if one in found.forms else None for one in own]
    ahead = None not in known and all(subject.facts.is_known(one.root, None) for one in own)
    require(ahead, "its dimensions are not known ahead of its body")
    body = subject.inside
    once = ("[&] {", "}();") if subject.returns and subject.backend == "cuda" else ("", "")
    parts = (
        f"{_opens(subject, found, side, rows)}\n{once[0]}",
        Span(body.start, body.end, tuple(_swaps(subject, found))),
        f"{once[1]}\n}} }}\nTUNESMITH_MEET;\n}}\n",
    )
    launch = LaunchGeometry(grid=(f"ceil_div({length}, max({side} * {side}, 1))", "1", "1"), block=(side, rows, "1"))
    sizes = {_tile(subject, found, one): f"sizeof({subject.dtype(one.root)})" for one in found.loads}
    made = Change(kit=("permuted",))
    made.alternative(subject, side, parts, launch)
    made.parameter(side, (0, 32, 64), "side of a tile of two dimensions in shared memory; 0: none")
    made.parameter(rows, ROWS, "rows of threads that go over a tile")
    made.constraints[f"{side} > 0 or {rows} == {ROWS[0]}"] = "Without a tile it has no rows of threads."
    made.constraints[f"{side} == 0 or {length} <= {MAX_TILES}"] = "Tiles are counted in 31 bits."
    made.static_shared = f"{side} * ({side} + 1) * ({' + '.join(sizes.values())})"
    return made


_OTHERS = "block_size own_bins walk vectors output_tiles row_lanes work_per_thread launch_bounds"
PERMUTED_TILES = Pass(
    "permuted_tiles",
    _permutation,
    _permute,
    why="no permutation goes through tiles: ",
    excludes=dict.fromkeys(_OTHERS.split(), ALONE),
    after=("cache_hints",),
    languages=BOTH,
)
