"""A sum over tiles in shared memory, as the plain sum that it is: rules then choose tiles of their own.

Textbooks stage the operands of a matrix product so: the threads of a block load an element of each tile, wait, add up
the products of the tiles' elements, wait, and go on to the next tiles. An element of a tile is known by where it was
loaded from, so that a read of it becomes a read of the array; the loops over tiles and within a tile become one; what
guards only the loads becomes the loop's bound, and the guard of the result stands ahead of the loop.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tunesmith.kernels.reader.syntax import NOTHING, READING, Node, Symbol
from tunesmith.kernels.rewrite.edits import Edit, Span, rendered, replace, span
from tunesmith.kernels.rewrite.facts import AXES, Access, Condition, Part, atom_of, name_of
from tunesmith.kernels.rewrite.forms import ONE, ZERO, Form
from tunesmith.kernels.rewrite.passes.record import Refused, Subject, require, required
from tunesmith.kernels.rewrite.sharing import bare
from tunesmith.kernels.spec.template import LaunchGeometry

_NUMBER = frozenset({"threadIdx.x"})
_AXES = tuple(f"threadIdx.{axis}" for axis in AXES)


@dataclass(frozen=True, slots=True)
class _Tile:
    """An array in shared memory. strides: of its element in the numbers of the thread that loads it, by their names,
    the largest first; value: the loaded expression; under: the conditions without which zero stands there."""

    strides: Mapping[str, int]
    value: Node
    under: list[Condition]


@dataclass(frozen=True, slots=True)
class _Rounds:
    """A loop over tiles. first, step: of its variables, by their atoms; length: the last value of one of them less the
    first, in steps of `by`."""

    first: Mapping[str, Form]
    step: Mapping[str, Form]
    length: Form
    by: Form


def untiled(subject: Subject) -> tuple[str, LaunchGeometry] | None:
    """The source with a plain sum, and its launch; None for a kernel that is not one over tiles."""
    try:
        return _Untiled(subject).plain()
    except Refused:
        return None


class _Untiled:
    """The search for such a sum, which raises `Refused` for another kernel."""

    def __init__(self, subject: Subject) -> None:
        self.subject, self.facts = subject, subject.facts
        facts, block = self.facts, subject.launch.block
        require(facts.shared and facts.barriers and not facts.warp_wide and not facts.jumps)
        require(all(one.isdigit() for one in block))
        self.block = dict(zip(AXES, [*map(int, block), 1, 1], strict=False))
        self.width, self.swapped = self._width(), False
        self.rows = self.width < self.block["x"]
        extents = (self.width, max(self.block["y"], self.block["x"] // self.width), self.block["z"])
        self.extents = dict(zip(_AXES, extents, strict=True))
        loops = [one for one in map(bare, facts.body.kids) if one.what == "for" and one.holds(facts.barriers[0])]
        require(loops and not loops[0].fixed and loops[0].kids[3].what == "block")
        self.loop = loops[0]
        loading, adding = self._parts(self.loop.kids[3].kids)
        while len(adding) == 1 and adding[0].what == "if" and len(adding[0].kids) == 2:
            within = adding[0].kids[1]
            adding = within.kids if within.what == "block" else [within]
        require(len(adding) == 1)
        self.inner = inner = required(facts.loop(bare(adding[0])))
        self.depth, self.rounds, test = Form.number(inner.bound.constant or 0), self._rounds(), inner.node.kids[1]
        require(self.depth != ZERO and inner.kind == "counting" and inner.first == ZERO and not inner.fixed)
        require(test.op == "<" and test.kids[0].symbol is inner.variable)
        self.tiles = {one: self._tile(one, loading) for one in facts.shared}
        changed = {symbol for part in loading for symbol in facts.changed_in(part)}
        require(changed <= facts.declared_in(self.loop) | self.tiles.keys())
        of_arrays = [one for one in facts.accesses if one.root in facts.arrays]
        self.others = [one for one in of_arrays if not any(part.holds(one.node) for part in loading)]
        require(not any(one.written and self.loop.holds(one.node) for one in self.others))
        results = [self._plain(one.index) for one in self.others if one.written]
        across = {self._block_of(form, thread) for form in results for thread in _AXES[:2]}
        self.swapped = across == {("threadIdx.x", "y"), ("threadIdx.y", "x")}

    def plain(self) -> tuple[str, LaunchGeometry]:
        """The source with the plain sum in it, and its launch."""
        facts, code = self.facts, self.facts.syntax.code
        reads = [one for one in facts.inside(self.inner.body) if one.root in self.tiles]
        require({one.root for one in reads} == self.tiles.keys() and not any(one.written for one in reads))
        self._require_own_names(reads)
        ends, limits, swaps = self._guards(), dict[Form, set[Node]](), list[Edit]()
        require(all(self._follows(one, ends) for one in facts.conditions(self.inner.node, self.loop.kids[3])[0]))
        for one in reads:
            tile = self.tiles[one.root]
            at = self._place(tile, one)
            for condition in tile.under:
                least = self._moved(required(condition.least), at)
                if self.inner.atom in least.atoms:
                    require(least.times(self.inner.atom) == -ONE)
                    limits.setdefault(least.without(self.inner.atom) + ONE, set()).add(one.node)
                else:
                    require(least in ends)
            swaps.append(replace(one.node, *self._loaded(tile, at, one)))
        require(all(self._adds_nothing(self.inner.body, zeros) for zeros in limits.values()))
        guard, node = " && ".join(f"({self._written(one)}) >= 0" for one in ends), self.inner.node
        swaps.append(replace(node.kids[1].kids[1], self._bound(list(limits))))
        inside = Span(node.start, facts.syntax.end(node), tuple(swaps))
        edits = [replace(self.loop, f"if (!({guard})) return;\n" if guard else "", inside)]
        for array in self.tiles:
            made = required(required(array.declared).parent)
            require(made.what == "declaration" and {each.symbol for each in made.kids} <= self.tiles.keys())
            edits += [] if self.loop.holds(made) else [Edit(made.start, facts.syntax.end(made), ())]
        edits += [replace(one.node, self._element(one, self._joined(self._plain(one.index)))) for one in self.others]
        # All elements are counted from the begin of their array now.
        pointers = [one for one in facts.body.kids if one.what == "declaration" and all(map(self._points, one.kids))]
        edits += [Edit(one.start, facts.syntax.end(one), ()) for one in pointers]
        for test in [one.kids[0] for one in facts.body.kids if one.what == "if" and len(one.kids) == 2]:
            parts = facts.conditions(test.parent.kids[1], facts.body)[0] if test.parent is not None else []
            edits += [replace(test, "true")] if all(self._follows(one, ends) for one in parts) else []
        edits += self._renamed()
        grid, block = [*self.subject.launch.grid, "1", "1"][:3], tuple(map(str, self.extents.values()))
        grid = [grid[1], grid[0], grid[2]] if self.swapped else grid
        launch = self.subject.launch.model_copy(update={"grid": tuple(grid), "block": block})
        return rendered(code, Span(0, len(code)), list(dict.fromkeys(edits))), launch

    def _follows(self, condition: Condition, ends: list[Form]) -> bool:
        return condition.least is not None and self._joined(self._plain(condition.least)) in ends

    # The numbers of threads and blocks.

    def _width(self) -> int:
        """The threads along x, where a block of one axis takes their number apart as that of a row and a column."""
        facts = self.facts
        forms = [Form.atom(atom) for one in facts.accesses if one.root.shared for atom in one.index.atoms]
        parts = [part for form in forms if (part := facts.part(form, _NUMBER)) is not None]
        highs = {(part.low if part.high is None else part.high).constant for part in parts} - {1}
        width, threads = next(iter(highs), None) or self.block["x"], self.block["x"]
        require(len(highs) < 2 and threads % width == 0 and (width == threads or self.block["y"] == 1))
        return width

    def _renamed(self) -> list[Edit]:
        """Edits for the numbers that are left in the source, in the new launch."""
        found, turned = list[Edit](), {"x": "y", "y": "x"}
        for one in self.facts.builtins():
            require(one.op.startswith(("threadIdx", "blockIdx")) or not (self.swapped or self.rows))
            if self.rows and one.op == "threadIdx.x":
                found.append(replace(one, f"(threadIdx.y * {self.width} + threadIdx.x)"))
            elif self.swapped and one.op in ("blockIdx.x", "blockIdx.y"):
                found.append(replace(one, f"blockIdx.{turned[one.op[-1]]}"))
        return found

    def _parts(self, statements: list[Node]) -> tuple[list[Node], list[Node]]:
        """The statements of a round before and after its barrier; another barrier lies between two rounds."""
        waits = [at for at, one in enumerate(statements) if one in self.facts.barriers]
        require(len(waits) == len(self.facts.barriers) == 2)
        first, second = waits
        require(first == 0 or second == len(statements) - 1)
        middle, last = (second, len(statements)) if first == 0 else (first, second)
        return statements[:middle], statements[middle + 1 : last]

    # What the tiles hold.

    def _tile(self, array: Symbol, loading: list[Node]) -> _Tile:
        facts, accesses = self.facts, self.facts.of(array)
        writes = [one for one in accesses if one.written]
        require(array.type.what == "array" and array.type.size and array not in facts.escaping)
        require(writes and all(one.assignment is not None for one in writes))
        require(all(any(part.holds(one.node) for part in loading) for one in writes))
        indices = {self._plain(one.index) for one in writes}
        require(len(indices) == 1)
        strides = dict[str, int]()
        for atoms, factor in sorted(indices.pop().terms, key=lambda term: -term[1]):
            require(len(atoms) == 1 and atoms[0] in self.extents and factor > 0)
            strides[atoms[0]] = factor
        spans = [(stride, stride * self.extents[axis]) for axis, stride in strides.items()]
        # Each thread has an element of its own.
        require(all(low >= high for (low, _), (_, high) in itertools.pairwise(spans)) and spans[-1][0] == 1)
        require({axis for axis, extent in self.extents.items() if extent > 1} == strides.keys())
        values = [value for one in writes if one.assignment for value in _choices(one.assignment.kids[1])]
        loaded = [one for one in values if not _is_zero(one)]
        require(len(loaded) == 1 and not loaded[0].fixed)
        under, doubtful = facts.conditions(loaded[0], self.loop.kids[3])
        require(not doubtful and len(values) == (2 if under else 1))
        branches = [next((pair for pair in one.above() if pair[0].what in ("if", "choice")), None) for one in values]
        require(len({pair and pair[0] for pair in branches}) == 1 and len(set(branches)) == len(values))
        return _Tile(strides, loaded[0], under)

    def _place(self, tile: _Tile, read: Access) -> dict[str, Form]:
        """The numbers of the thread that loaded an element, by their names: the digits of its index."""
        found = dict.fromkeys(tile.strides, ZERO)
        for atoms, factor in self._plain(read.index).terms:
            axis, stride = next((pair for pair in tile.strides.items() if factor % pair[1] == 0), ("", 1))
            found[axis] += Form.of({atoms: factor // stride})
        for axis, form in found.items():
            last = {**self.extents, self.inner.atom: self.depth.constant}.get(next(iter(form.atoms), ""), 1)
            require(len(form.terms) < 2 and (not form.terms or form.terms[0][1] == 1) and len(form.atoms) < 2)
            require((last or 0) <= self.extents[axis])
        return found

    def _loaded(self, tile: _Tile, at: Mapping[str, Form], read: Access) -> tuple[str | Span, ...]:
        """The loaded expression in the place of a read of a tile."""
        facts, value, kind = self.facts, tile.value, read.root.type
        while kind.element is not None:
            kind = kind.element
        inside = facts.inside(value)
        within = {node for one in inside for node in one.node.walk()}
        for node in value.walk():
            plain = node.what not in ("builtin", "assign", "count") and not node.fixed
            outer = node.symbol is NOTHING or node.symbol.what == "function" or node.symbol in facts.parameters
            require(node in within or (plain and outer))
        require(inside and all(one.root in facts.arrays and not facts.is_written(one.root) for one in inside))
        swaps = [replace(one.node, self._element(one, self._moved(one.index, at))) for one in inside]
        same = value.type.spelling.removeprefix("const ") == kind.spelling
        return ("(", span(value, *swaps), ")") if same else (f"(({kind.spelling})(", span(value, *swaps), "))")

    # Values at a place of their own.

    def _plain(self, form: Form) -> Form:
        """A form with the numbers of threads and blocks instead of coordinates."""
        for axis, thread in zip(AXES, _AXES, strict=True):
            extent = Form.number(self.block[axis])
            form = form.replaced(f"@{axis}", Form.atom(f"blockIdx.{axis}") * extent + Form.atom(thread))
            form = form.replaced(f"blockDim.{axis}", extent)
        for atom in form.atoms if self.rows else ():
            part = self.facts.part(Form.atom(atom), _NUMBER)
            if part == Part("threadIdx.x", ONE, Form.number(self.width)):
                form = form.replaced(atom, Form.atom("$x"))
            elif part == Part("threadIdx.x", Form.number(self.width), None):
                form = form.replaced(atom, Form.atom("$y"))
        if self.rows:
            form = form.replaced("threadIdx.x", Form.atom("$y") * Form.number(self.width) + Form.atom("$x"))
            form = form.replaced("$x", Form.atom("threadIdx.x")).replaced("$y", Form.atom("threadIdx.y"))
        form = self._unified(form)
        own = {*self.extents, self.inner.atom, *self.rounds.first}
        require(all(self.facts.reach(Form.atom(one)) < 2 or one in own for one in form.atoms))
        return form

    def _unified(self, form: Form) -> Form:
        """A form in which sizes that the task requires to be equal have one name."""
        atoms = {one.name: name_of(one) for one in self.facts.parameters}
        known = {size: atoms[name] for size, name in self.subject.sizes.items()}
        pairs = [re.fullmatch(r"(\w+) == (\w+)", text) for text in self.subject.task.requires]
        names = [pair.groups() for pair in pairs if pair and known.keys() >= {*pair.groups()}]
        same = {known[one]: Form.atom(known[other]) for one, other in names}
        for atom in form.atoms:
            made = self.facts.atoms.get(atom)
            if atom in same:
                form = form.replaced(atom, same[atom])
            elif made is not None and made.op == "/":
                form = form.replaced(atom, self.facts.quotient(*map(self._unified, made.parts)))
        return form

    def _points(self, variable: Node) -> bool:
        """Whether a variable is nothing but a place in an array of the kernel's."""
        found = self.facts.pointer(variable.kids[-1]) if variable.kids and self.facts.is_once(variable.symbol) else None
        return variable.type.what == "pointer" and found is not None and found[0] in self.facts.arrays

    def _block_of(self, form: Form, thread: str) -> tuple[str, str]:
        """The axis along which the number of a block goes on with that of a thread."""
        wanted = form.times(thread) * Form.number(self.extents[thread])
        return thread, next((axis for axis in AXES if form.times(f"blockIdx.{axis}") == wanted), thread[-1])

    def _moved(self, form: Form, at: Mapping[str, Form]) -> Form:
        """A form of the thread that loads an element, for the one that reads it, in the only loop that is left."""
        form = self._plain(form)
        for axis in at:
            form = form.replaced(axis, Form.atom(f"${axis}"))
        for axis, value in at.items():
            form = form.replaced(f"${axis}", value)
        per_round = ZERO
        for atom, step in self.rounds.step.items():
            require(self.rounds.first.keys().isdisjoint(form.times(atom).atoms))
            per_round += form.times(atom) * step
        require(per_round == form.times(self.inner.atom) * self.depth)
        for atom, first in self.rounds.first.items():
            form = form.replaced(atom, self._plain(first))
        return self._joined(form)

    def _joined(self, form: Form) -> Form:
        """A form of numbers of threads and blocks with coordinates."""
        if self.swapped:
            form = form.replaced("blockIdx.x", Form.atom("$")).replaced("blockIdx.y", Form.atom("blockIdx.x"))
            form = form.replaced("$", Form.atom("blockIdx.y"))
        for axis, thread in zip(AXES, _AXES, strict=True):
            block, extent = f"blockIdx.{axis}", Form.number(self.extents[thread])
            rest = form.times(thread)
            if form.times(block) == rest * extent:
                form = form.without(thread, block) + rest * Form.atom(f"@{axis}")
        return form

    def _written(self, form: Form) -> str:
        return required(self.subject.written(form, None, {self.inner.atom: self.inner.variable.name}))

    def _element(self, access: Access, form: Form) -> str:
        """An element of an array in C."""
        require((access.node.what in ("index", "deref") or access.by in READING) and not access.node.fixed)
        return f"{access.root.name}[{self._written(form)}]"

    # The loops and the guards.

    def _rounds(self) -> _Rounds:
        facts, (start, test, update, _) = self.facts, self.loop.kids
        begins = start.kids if start.what == "declaration" else [start]
        values = {one.symbol if one.what == "variable" else one.kids[0].symbol: one.kids[-1:] for one in begins}
        require(all(values.values()) and all(one.what in ("variable", "assign") for one in begins))
        first = {atom_of(one, self.loop): facts.form(value[0]) for one, value in values.items()}
        step = dict[str, Form]()
        for one in _listed(update):
            require(one.what in ("count", "assign") and one.op in ("++", "+=") and one.kids[0].what == "name")
            step[atom_of(one.kids[0].symbol, self.loop)] = ONE if one.op == "++" else facts.form(one.kids[1])
        require(first.keys() == step.keys() and test.what == "binary" and test.op in ("<", "<="))
        known = all(facts.reach(one) < 2 for one in (*step.values(), *first.values()))
        tested = atom_of(test.kids[0].symbol, self.loop)
        require(tested in first and known)
        last = facts.form(test.kids[1]) + (ONE if test.op == "<=" else ZERO)
        length = self._unified(last - first[tested])
        require(facts.reach(length) == 0)
        return _Rounds(first, step, length, step[tested])

    def _bound(self, limits: list[Form]) -> str:
        """The end of the plain loop: as many elements as the tiles have, or fewer where a guard says so."""
        length, depth, one = self.rounds.length, self.depth.constant or 1, self.depth
        texts = [self._written(limit) for limit in limits]
        if self.rounds.by == one:
            whole, all_ = limits and length in limits, f"({self._written(length)} + {depth - 1}) / {depth} * {depth}"
        else:
            require(self.rounds.by == ONE)
            covers = [self.facts.quotient(limit + one - ONE, one) for limit in limits]
            covers += [self.facts.quotient(limit - ONE, one) + ONE for limit in limits]
            whole, all_ = length in covers, f"({self._written(length)}) * {depth}"
        first, *more = texts if whole else [*texts, all_]
        for text in more:
            first = f"min((long long)({first}), (long long)({text}))"
        return first

    def _adds_nothing(self, node: Node, zeros: set[Node]) -> bool:
        """Whether a statement leaves a sum as it was, or an expression is zero, where some reads of tiles are zero."""
        kids = [one for one in node.kids if one.what != "nothing"]
        if node in zeros or node.value == 0 or node.what == "declaration":
            return True
        if node.what == "block" or (node.what == "assign" and node.op in ("+=", "-=")):
            return all(self._adds_nothing(one, zeros) for one in kids[node.what == "assign" :])
        if node.what == "assign" and kids[1].what == "call" and "fma" in kids[1].op and len(kids[1].kids) == 4:
            _, *factors, term = kids[1].kids
            same = term.what == "name" and term.symbol is kids[0].symbol
            return same and any(self._adds_nothing(one, zeros) for one in factors)
        if node.what == "name":
            made = node.symbol.declared if self.facts.is_once(node.symbol) else None
            return made is not None and self.inner.body.holds(made) and self._adds_nothing(made.kids[-1], zeros)
        if node.what == "binary" and node.op in "*/+-":
            found = [self._adds_nothing(one, zeros) for one in kids]
            return any(found) if node.op == "*" else found[0] if node.op == "/" else all(found)
        return node.what == "cast" and self._adds_nothing(kids[-1], zeros)

    def _guards(self) -> list[Form]:
        """The conditions that hold wherever the kernel has an effect after the loop."""
        facts, found = self.facts, list[list[Form]]()
        for node in facts.effects:
            if self.loop.holds(node):
                continue
            require(node.start > self.loop.end)
            conditions, doubtful = facts.conditions(node)
            require(not doubtful)
            found.append([self._joined(self._plain(one.least)) for one in conditions if one.least is not None])
        require(found and not facts.acts(self.loop))
        return [one for one in dict.fromkeys(found[0]) if all(one in those for those in found)]

    def _require_own_names(self, reads: list[Access]) -> None:
        """The loop within a tile has no use for what it shares with the loop over tiles, but for the tiles."""
        within = {node for one in reads for node in one.node.walk()}
        own = self.facts.declared_in(self.loop) - self.facts.declared_in(self.inner.node)
        hidden = {*own, self.inner.variable, *(one.symbol for one in _names(self.loop.kids[0]))}
        require(not any(one.symbol in hidden for one in _names(self.inner.body) if one not in within))
        before = {one.name for one in self.facts.declared_in(self.facts.body) - self.facts.declared_in(self.loop)}
        names = {one.name for one in self.facts.declared_in(self.inner.node)}
        require(
            names.isdisjoint({one.name for one in self.facts.parameters}) and self.inner.variable.name not in before
        )


def _names(node: Node) -> Iterator[Node]:
    return (one for one in node.walk() if one.what in ("name", "variable"))


def _listed(node: Node) -> list[Node]:
    """The parts of `a, b`."""
    return [one for part in node.kids for one in _listed(part)] if (node.what, node.op) == ("binary", ",") else [node]


def _choices(value: Node) -> list[Node]:
    """The values of which an expression is one."""
    while value.what == "cast" and value.kids and value.kids[-1].what in ("cast", "choice"):
        value = value.kids[-1]
    return value.kids[1:] if value.what == "choice" else [value]


def _is_zero(node: Node) -> bool:
    while node.what in ("cast", "construct", "call") and node.kids:
        _, *given = node.kids if node.what == "call" else [node, *node.kids]
        if len(given) != 1:
            return False
        node = given[0]
    return node.value == 0
