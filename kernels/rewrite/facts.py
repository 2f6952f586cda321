"""Facts of a kernel: what its values are, what it does with memory and under which conditions, its loops, its oddities.

Read once; passes ask here and never look at text. A variable that is assigned once is what it was assigned, so that an
index is a form over the numbers of threads and blocks, the variables of loops, and sizes, whatever its author called
them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from tunesmith.kernels.reader.parse import constant
from tunesmith.kernels.reader.syntax import LAMBDA, LEFT, LOOPS, NOTHING, READING, Node, Symbol, Syntax
from tunesmith.kernels.rewrite.forms import ONE, ZERO, Form

AXES = "xyz"
_ADDING = frozenset({"atomicAdd", "atomic_add", "atomic_inc", "atom_add", "atom_inc"})
_SWAPPING = frozenset({"swap", "exchange"})
_BARRIERS = re.compile(r"__syncthreads\w*|__syncwarp|__barrier_sync\w*|(?:work_group_)?barrier|sync|arrive_and_wait")
_WARP_WIDE = re.compile(r"__(?:shfl|ballot|any|all|match|reduce|activemask)\w*|sub_group_\w+|shfl\w*|ballot")
_TEXTURES = re.compile(r"(?:tex|surf)[123]D\w*|(?:read|write)_image\w+")
_MANY = re.compile(r"(?:async_)?work_group_(?!barrier)\w+|wait_group_events|get_(?:work_dim|\w+_linear_id)")
_WORK_ITEMS = re.compile(r"get_\w+_(?:id|size)")
_ATTRIBUTES = re.compile(rb"__(?:cluster_dims|block_size|maxnreg)__\s*\((?:[^()]|\([^()]*\))*\)")
DEMANDED = re.compile(rb"reqd_work_group_size\s*\((?:[^()]|\([^()]*\))*\)")
"""The attribute that demands a size of work-groups."""
_PRODUCT = re.compile(r"(?:__)?u?mul24|mad24")
_CHANGING = re.compile(r"operator(?:[-+*/%&|^]|<<|>>)?=|operator(?:\+\+|--)")
ENDS = frozenset({"return", "break", "continue", "goto"})
_REACHES = {"threadIdx": 2, "blockIdx": 1, "blockDim": 0, "gridDim": 0}
_TURNED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}


@dataclass(frozen=True, slots=True)
class Access:
    """One place where the kernel touches an array. node: the whole `p[i]`, `*p` or the call; root: the array; index:
    which element; by: the function that touches it, empty for none."""

    node: Node
    root: Symbol
    index: Form
    read: bool
    written: bool
    by: str = ""

    @property
    def atomic(self) -> bool:
        return self.by.startswith("atom")

    @property
    def adds(self) -> bool:
        """Whether it is an atomic addition whose result nobody uses."""
        return self.by in _ADDING and self.node.alone and not self.node.fixed

    @property
    def assignment(self) -> Node | None:
        """The statement that gives the element a value and does nothing else; None where it is another."""
        up = self.node.parent
        given = up is not None and up.what == "assign" and up.op == "=" and up.kids[0] is self.node
        return up if given and up is not None and up.statement is up and not up.fixed else None

    @property
    def clears(self) -> bool:
        """Whether it is a statement that makes the element zero."""
        return self.assignment is not None and self.assignment.kids[1].value == 0


@dataclass(frozen=True, slots=True)
class Condition:
    """Something that holds at a place. least: a form that is not negative, where it is a comparison of numbers; node:
    the test; loop: it is the condition of a loop."""

    node: Node
    least: Form | None
    loop: bool = False


@dataclass(frozen=True, slots=True)
class Loop:
    """`for (int v = first; v < bound; v += step)`, also of a variable declared before that nothing else uses. kind: the
    threads of a block, or of the grid, take turns; or each thread counts on its own. axis: of the grid's threads."""

    node: Node
    variable: Symbol
    first: Form
    bound: Form
    step: Form
    kind: Literal["counting", "block", "grid", "other"]
    axis: str = ""

    @property
    def body(self) -> Node:
        return self.node.kids[3]

    @property
    def fixed(self) -> bool:
        """Whether a macro wrote a part of its head."""
        return self.node.fixed or self.first_node.fixed or self.node.kids[2].fixed

    @property
    def first_node(self) -> Node:
        start = self.node.kids[0]
        return (start if start.what == "assign" else start.kids[0]).kids[-1]

    @property
    def atom(self) -> str:
        return atom_of(self.variable, self.node)


@dataclass(frozen=True, slots=True)
class Atom:
    """An atom of forms. reach: how far its value is the same: 0 for all threads, 1 for a block, 2 for none
    but the thread itself; symbol: the variable; op, parts: the operation and its operands; memory:
    it was read from an array."""

    reach: int
    symbol: Symbol = NOTHING
    op: str = ""
    parts: tuple[Form, ...] = ()
    memory: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """`number % high / low` of a number; high: None where nothing is taken off."""

    number: str
    low: Form
    high: Form | None


def _listed(part: Node) -> Node:
    """The whole of `a, b` for a part of it."""
    while part.parent is not None and (part.parent.what, part.parent.op) == ("binary", ","):
        part = part.parent
    return part


def grid_size(axis: str) -> Form:
    """The threads of a grid along an axis."""
    return Form.atom(f"gridDim.{axis}") * Form.atom(f"blockDim.{axis}")


def name_of(symbol: Symbol) -> str:
    """A variable's atom."""
    return f"{symbol.name}#{symbol.place}"


def atom_of(variable: Symbol, loop: Node) -> str:
    """The variable of a loop, which is another in each loop."""
    return name_of(variable) if loop.kids[0].what != "assign" else f"{name_of(variable)}@{loop.start}"


class Facts:
    """The facts of one kernel."""

    def __init__(self, syntax: Syntax) -> None:
        self.syntax, self.body, self.text = syntax, syntax.body, syntax.text
        self.parameters = syntax.parameters
        self.arrays = [one for one in self.parameters if one.pointer]
        self.atoms = {f"{word}.{axis}": Atom(reach) for word, reach in _REACHES.items() for axis in AXES}
        self.atoms |= {f"@{axis}": Atom(2) for axis in AXES}
        self.atoms |= {name_of(one): Atom(0, one) for one in self.parameters}
        self._forms: dict[Node, Form] = {}
        self._functions = {one.start: one for one in syntax.functions}

    # What changes.

    def roots(self, node: Node) -> Iterator[Node]:
        """The variables of which an expression is a part; an element behind a pointer is not a variable."""
        if node.what == "name":
            yield node
        elif node.what in ("member", "cast"):
            yield from self.roots(node.kids[0]) if node.kids else ()
        elif node.what in ("index", "deref"):
            if node.kids[0].type.what == "array":
                yield from self.roots(node.kids[0])
        else:
            for one in node.kids:
                yield from self.roots(one)

    def changes(self, within: Node) -> Iterator[tuple[Node, Node]]:
        """The names of the variables that `within` changes, or gives away so that they may change, each with the
        assignment, the call or the like that does it. What pointers point to is for `accesses`."""
        for node in within.walk():
            first = node.what in ("assign", "count", "address") or (node.what == "variable" and node.type.reference)
            if node.what == "construct":
                first = any(_CHANGING.fullmatch(one.symbol.name) for one in node.kids)
            targets = self._given_away(node) if node.what == "call" else node.kids if node.what == "asm" else []
            for target in node.kids[:1] if first else targets:
                yield from ((one, node) for one in self.roots(target) if one.symbol is not NOTHING)

    def _given_away(self, call: Node) -> list[Node]:
        """The arguments of a call that it may change."""
        given, taken = call.kids[1:], call.symbol.references
        if call.op in _SWAPPING:
            taken = frozenset({0, 1})
        found = [one for at, one in enumerate(given) if at in taken]
        if _CHANGING.fullmatch(call.op):
            found += given[:1]
        if call.op == "operator()" and call.kids[0].what == "name" and given:
            # A lambda or a function object, which comes as the first argument.
            made = given[0].symbol.declared
            function = next((one for one in made.walk() if one.what == "lambda"), None) if made is not None else None
            # A lambda may only change variables of its own.
            found += given[:1] if function is None or self.changed_in(function) - self.declared_in(function) else []
            found += [one for at, one in enumerate(given[1:]) if at in taken]
        elif call.kids[0].what == "member" and call.kids[0].kids:
            found.append(call.kids[0].kids[0])
        return found

    @cached_property
    def changed(self) -> dict[Symbol, list[Node]]:
        """The variables that the kernel's body changes, each with the places."""
        found: dict[Symbol, list[Node]] = {}
        for name, by in self.changes(self.body):
            found.setdefault(name.symbol, []).append(by)
        return found

    def changed_in(self, within: Node) -> set[Symbol]:
        return {name.symbol for name, _ in self.changes(within)}

    def declared_in(self, within: Node) -> set[Symbol]:
        return {one.symbol for one in within.walk() if one.what in ("variable", "parameter")}

    def names_in(self, within: Node) -> set[Symbol]:
        return {one.symbol for one in within.walk() if one.what == "name"} - {NOTHING}

    def uses(self, symbol: Symbol, within: Node | None = None) -> list[Node]:
        """The names in a part of the kernel's body, or in all of it, that mean `symbol`."""
        return [one for one in (within or self.body).walk() if one.what == "name" and one.symbol is symbol]

    def sources(self, node: Node) -> list[Node]:
        """A part of the kernel, and the values of the variables in it that have only one, and of those in these."""
        found = [node]
        for part in found:
            made = (one.declared for one in self.names_in(part) if self.is_once(one))
            found += [one.kids[-1] for one in made if one is not None and one.kids[-1] not in found]
        return found

    # Values.

    def form(self, node: Node) -> Form:
        """The form of an expression of whole numbers."""
        if node not in self._forms:
            self._forms[node] = self._undivided(self._form(node).joined())
        return self._forms[node]

    def _undivided(self, form: Form) -> Form:
        """The form with `a` for `a / b * b + a % b`, times anything."""
        for atom in form.atoms:
            found = self.atoms.get(atom)
            if found is None or found.op != "%":
                continue
            whole, by = found.parts
            rest = form.times(atom)
            quotient = (rest * by * self._operation("/", whole, by)).terms
            have = dict(form.terms)
            if quotient and all(have.get(atoms) == factor for atoms, factor in quotient):
                return self._undivided(form - Form(quotient) - rest * Form.atom(atom) + rest * whole)
        return form

    def _form(self, node: Node) -> Form:
        what = node.what
        if node.value is not None and isinstance(node.value, int):
            return Form.number(node.value)
        if what == "builtin":
            return grid_size(node.op[-1]) if node.op.startswith("gridSize") else Form.atom(node.op)
        if what == "name":
            return self._value(node, node.symbol)
        if what == "binary" and len(node.kids) == 2 and node.type.what != "pointer":
            left, right = self.form(node.kids[0]), self.form(node.kids[1])
            if node.op in ("+", "-", "*"):
                return left + right if node.op == "+" else left - right if node.op == "-" else left * right
            if node.op == "<<" and (by := right.constant) is not None and 0 <= by < 31:
                return left * Form.number(1 << by)
            return self._operation(node.op, left, right)
        if what == "unary" and node.op in "+-":
            return self.form(node.kids[0]) if node.op == "+" else -self.form(node.kids[0])
        whole = what == "cast" and node.kids and node.type.what == node.kids[-1].type.what == "number"
        if whole and node.type.size >= 4:
            return self.form(node.kids[-1])
        if what == "choice":
            return self._operation("?", *map(self.form, node.kids))
        if what in ("index", "deref") and (found := self.place_of(node)) is not None:
            root, index = found
            if root.what == "parameter" and root.type.const and not root.volatile:
                return self._operation("[]", index, symbol=root)
        if what == "call" and node.symbol is not NOTHING and node.symbol.definition is None:
            given = node.kids[1:]
            if _PRODUCT.fullmatch(node.op):
                return sum(map(self.form, given[2:]), self.form(given[0]) * self.form(given[1]))
            if given and all(one.type.what in ("number", "float") for one in given) and not node.symbol.references:
                return self._operation(node.op, *map(self.form, given))
        return self._once(node)

    def _operation(self, op: str, *parts: Form, symbol: Symbol = NOTHING) -> Form:
        inner = self.atoms.get(next(iter(parts[0].atoms))) if op == "/" and len(parts[0].atoms) == 1 else None
        if inner is not None and inner.op == "/" and parts[0] == Form.atom(next(iter(parts[0].atoms))):
            # (a / b) / c is a / (b * c).
            return self._operation("/", inner.parts[0], inner.parts[1] * parts[1])
        name = f"({op} {'' if symbol is NOTHING else name_of(symbol)} {', '.join(repr(one.terms) for one in parts)})"
        memory = op == "[]" or any(self.atoms[one].memory for part in parts for one in part.atoms)
        reach = 2 if op == "[]" else max((self.reach(one) for one in parts), default=0)
        return self._known(name, Atom(reach, symbol, op, parts, memory))

    def quotient(self, whole: Form, by: Form) -> Form:
        """The form of a division of whole numbers."""
        return self._operation("/", whole, by)

    def _known(self, name: str, atom: Atom) -> Form:
        self.atoms.setdefault(name, atom)
        return Form.atom(name)

    def _once(self, node: Node) -> Form:
        """A value that nothing else is known to be."""
        return self._known(f"?{node.start}:{node.end}", Atom(2))

    def _value(self, node: Node, symbol: Symbol) -> Form:
        if symbol in self.parameters and symbol not in self.changed:
            return Form.atom(name_of(symbol))
        if symbol.written.startswith("const ") and isinstance(number := constant(node.cursor), int):
            return Form.number(number)
        if symbol.what != "variable":
            return self._once(node)
        if self.is_once(symbol, node) and symbol.declared is not None:
            if symbol.type.what == "number" and symbol.type.size >= 4:
                value = self.form(symbol.declared.kids[-1])
                # What is read for a thread's coordinate is known by its place; for a block, by its name.
                named = not any(one[0] == "@" or self._steps_by_grid(one) for one in self.asked(value))
                if not any(one.startswith("?") or (named and self.atoms[one].memory) for one in value.atoms):
                    return value
            if symbol not in self.changed:
                return self._known(name_of(symbol), Atom(2, symbol))
        loop = next((one for one in self.homes.get(symbol, []) if one.holds(node)), None)
        return self._once(node) if loop is None else self._known(atom_of(symbol, loop), Atom(2, symbol))

    def _steps_by_grid(self, atom: str) -> bool:
        loops = [] if atom not in self.atoms else map(self.loop, self.homes.get(self.atoms[atom].symbol, []))
        return any(one is not None and one.kind == "grid" for one in loops)

    def is_once(self, symbol: Symbol, place: Node | None = None) -> bool:
        """Whether a variable of the kernel has one value, from its declaration on, or as far as `place` names it."""
        made, changes = symbol.declared, self.changed.get(symbol, [])
        if made is None or not made.kids or symbol.shared or symbol.static or symbol.volatile or made.type.reference:
            return False
        if place is None or self.jumps or not changes:
            return symbol.what == "variable" and not changes
        # Of a loop that makes the variable itself, each round begins anew; a lambda may run later than it stands.
        loops = [above for above, _ in place.above() if above.what in LOOPS | {"lambda"} and not above.holds(made)]
        before = any(one.start < place.end or any(loop.holds(one) for loop in loops) for one in changes)
        return symbol.what == "variable" and not before and all(one.what != "lambda" for one in loops)

    @cached_property
    def jumps(self) -> bool:
        """Whether the body has a `goto`, so that the order of its statements is not that of its text."""
        return any(one.what == "goto" for one in self.body.walk())

    def is_known(self, symbol: Symbol, place: Node | None) -> bool:
        """Whether a name means the variable, with its only value, or its value in a round of a loop, ahead of the
        statement `place`; None: at the beginning of the kernel's body."""
        inside = [one.symbol for one in self.body.walk() if one.what in ("variable", "parameter")]
        if sum(one is not None and one.name == symbol.name for one in [*self.parameters, *inside]) != 1:
            return False
        if symbol in self.parameters:
            return symbol not in self.changed
        made = symbol.declared
        if place is not None and any(one.kids[3].holds(place) for one in self.homes.get(symbol, [])):
            return not self.counts_anew(symbol)
        if place is None or made is None or not self.is_once(symbol) or made.end > place.start or made.parent is None:
            return False
        block = made.parent.parent
        return made.parent.what == "declaration" and any(above is block for above, _ in place.above())

    @cached_property
    def homes(self) -> dict[Symbol, list[Node]]:
        """The loops that alone change their variable, by the variable, which nothing uses between them."""
        found: dict[Symbol, list[Node]] = {}
        for symbol, places in self.changed.items():
            parts = list(map(_listed, places))
            heads = [one.parent for one in parts if one.parent is not None and one.parent.what == "for"]
            if len(heads) < len(places) or any(
                one not in loop.kids[:3:2] for one, loop in zip(parts, heads, strict=True)
            ):
                continue
            homes = list(dict.fromkeys(heads))
            if len(places) == 1 and parts[0] is homes[0].kids[2]:
                found[symbol] = homes
                continue
            uses = self.uses(symbol)
            begins = all(one.kids[0] in places and one.kids[2] in places for one in homes)
            inside = all(sum(loop.holds(use) for loop in homes) == 1 for use in uses)
            if begins and inside and symbol.type.what == "number" and not symbol.shared and not symbol.static:
                found[symbol] = homes
        return found

    def counts_anew(self, symbol: Symbol) -> bool:
        """Whether a variable only counts in loops that each begin with a value of their own."""
        loops = self.homes.get(symbol, [])
        return bool(loops) and all(one.kids[0].what == "assign" for one in loops)

    def reach(self, form: Form) -> int:
        """How far a value is the same: 0 for all threads, 1 for the threads of a block, 2 for the thread alone."""
        return max((self.atoms[one].reach if one in self.atoms else 2 for one in form.atoms), default=0)

    def inner(self, form: Form) -> Iterator[Form]:
        """The form, and the operands of its operations."""
        yield form
        for atom in form.atoms & self.atoms.keys():
            for part in self.atoms[atom].parts:
                yield from self.inner(part)

    def asked(self, form: Form) -> set[str]:
        """The atoms of a form, also inside of operations."""
        return {atom for one in self.inner(form) for atom in one.atoms}

    def part(self, form: Form, numbers: frozenset[str]) -> Part | None:
        """The part of one of some numbers, which are atoms, that a form is; None where it is another value."""
        for atom in form.atoms:
            alone, divided = form == Form.atom(atom), self._divided(atom)
            if alone and atom in numbers:
                return Part(atom, ONE, None)
            inner = None if divided is None else self.part(divided[1], numbers)
            if divided is None or inner is None:
                continue
            divides, whole, by = divided
            remainder = form == whole - by * Form.atom(atom) if divides else alone
            border = inner.low * by
            if not (remainder or alone):
                continue
            if inner.high is not None and inner.high.over(border) is None:
                # A remainder by more than there is left.
                return inner if remainder and border.over(inner.high) is not None else None
            return replace(inner, high=border) if remainder else replace(inner, low=border)
        return None

    def _divided(self, atom: str) -> tuple[bool, Form, Form] | None:
        """Whether an operation is a division, else a remainder; of which form, and by which."""
        found = self.atoms.get(atom)
        if found is None or found.op not in ("/", "%", ">>", "&"):
            return None
        (whole, by), number = found.parts, found.parts[1].constant
        if found.op == ">>":
            by = Form.number(1 << number) if number is not None and 0 <= number < 31 else ZERO
        elif found.op == "&":
            by = Form.number(number + 1) if number is not None and number & (number + 1) == 0 else ZERO
        positive = len(by.terms) == 1 and by.terms[0][1] > 0
        return (found.op in ("/", ">>"), whole, by) if positive and self.reach(by) == 0 else None

    # Memory.

    def place_of(self, node: Node) -> tuple[Symbol, Form] | None:
        """The array and the element that `p[i]` or `*p` is."""
        if node.what == "deref":
            return self.pointer(node.kids[0])
        if node.what == "index" and len(node.kids) == 2:
            base = self.pointer(node.kids[0])
            inner = node.type
            count = 1
            while inner.what == "array" and inner.element is not None and inner.element.size:
                count, inner = count * (inner.size // inner.element.size), inner.element
            if base is not None:
                return base[0], self._undivided(base[1] + self.form(node.kids[1]) * Form.number(count))
        return None

    def pointer(self, node: Node) -> tuple[Symbol, Form] | None:
        """The array into which an expression points, and how many elements behind its begin; None where that is not
        known."""
        if node.what == "name":
            symbol = node.symbol
            if symbol.volatile:
                return None
            if symbol.type.what == "array" or (symbol in self.arrays and symbol not in self.changed):
                return symbol, ZERO
            if symbol.type.what == "pointer" and self.is_once(symbol) and symbol.declared is not None:
                return self.pointer(symbol.declared.kids[-1])
        elif node.what == "binary" and node.op in ("+", "-"):
            left, right = node.kids
            if (found := self.pointer(left)) is not None and right.type.what == "number":
                by = self.form(right)
                return found[0], found[1] + (by if node.op == "+" else -by)
            if node.op == "+" and left.type.what == "number" and (found := self.pointer(right)) is not None:
                return found[0], found[1] + self.form(left)
        elif node.what == "address" and node.kids[0].what in ("index", "deref"):
            return self.place_of(node.kids[0])
        elif node.what in ("index", "deref") and node.type.what == "array":
            return self.place_of(node)
        elif node.what == "cast" and node.type.what == "pointer" and node.kids:
            inner = node.kids[-1]
            same = _bare(node.type.spelling) == _bare(inner.type.spelling)
            return self.pointer(inner) if same else None
        return None

    @cached_property
    def accesses(self) -> tuple[Access, ...]:
        """Where the body touches an array whose place is known: of the kernel's parameters, of a block, or its own."""
        return self._scan[0]

    @cached_property
    def escaping(self) -> set[Symbol]:
        """The arrays with which the body does more than to read or write elements."""
        return self._scan[1]

    @cached_property
    def _scan(self) -> tuple[tuple[Access, ...], set[Symbol]]:
        accesses, escaping = list[Access](), set[Symbol]()
        for node in self.body.walk():
            symbol = node.symbol
            if node.what != "name" or not symbol.pointer:
                continue
            found = self.pointer(node)
            used = found is not None and self._used(node, *found)
            if isinstance(used, Access):
                accesses.append(used)
            elif not used:
                escaping.update([found[0]] if found is not None else self._behind(symbol, frozenset()))
        return tuple(accesses), escaping

    def _behind(self, symbol: Symbol, seen: frozenset[Symbol]) -> Iterator[Symbol]:
        """The arrays into which a pointer that is not followed may point."""
        if symbol in self.arrays or symbol.type.what == "array":
            yield symbol
        elif symbol not in seen:
            values = [one.kids[1] for one in self.changed.get(symbol, []) if one.what == "assign"]
            values += [] if symbol.declared is None else symbol.declared.kids
            for one in values:
                for name in one.walk():
                    if name.what == "name" and name.symbol.pointer:
                        yield from self._behind(name.symbol, seen | {symbol})

    def _used(self, node: Node, root: Symbol, index: Form) -> Access | bool:
        """The access through the pointer `node`; else whether all that comes of it is another pointer."""
        at = node
        for above, part in node.above():
            found = self.pointer(above)
            if above.what in ("index", "deref") and part is above.kids[0] and above.type.what != "array":
                place = self.place_of(above)
                return self._touched(above, root, index if place is None else place[1])
            if above.what == "call":
                index = (self.pointer(at) or (root, index))[1]
                atomic = above.op.startswith(("atomic", "atom_")) and above.kids[1:2] == [part]
                return (above.op in READING or atomic) and Access(above, root, index, True, atomic, above.op)
            if above.what == "variable":
                followed = above.symbol.type.what == "pointer" and self.is_once(above.symbol)
                return followed and self.pointer(above.kids[-1]) is not None
            if found is None or found[0] is not root:
                # A number, elements of another type, or a comparison.
                return False
            at, index = above, found[1]
        return False

    def _touched(self, node: Node, root: Symbol, index: Form) -> Access | bool:
        """The access to an element, or a part of it; False where it gets another name or may change elsewhere."""
        at = node
        for above, part in node.above():
            if above.what == "member":
                at = above
                continue
            if above.what == "assign" and part is above.kids[0]:
                return Access(node, root, index, above.op != "=", True)
            if above.what == "count":
                return Access(node, root, index, True, True)
            if above.what == "address" and (part is node or (above.parent or above).what == "call"):
                return self._used(above, root, index)
            given_away = above.what == "call" and any(one is at for one in self._given_away(above))
            if given_away or above.what == "address" or (above.what == "variable" and above.type.reference):
                return False
            break
        return Access(node, root, index, True, False)

    def of(self, root: Symbol) -> list[Access]:
        return [one for one in self.accesses if one.root is root]

    def inside(self, node: Node) -> list[Access]:
        return [one for one in self.accesses if node.holds(one.node)]

    def is_written(self, root: Symbol) -> bool:
        """Whether the kernel writes, or may write, an array."""
        if root.type.const and root in self.arrays:
            return False
        return root in self.escaping or any(one.written for one in self.of(root))

    # Conditions.

    def conditions(self, node: Node, within: Node | None = None) -> tuple[list[Condition], bool]:
        """The conditions that hold wherever the kernel, or a part of it, reaches `node`, and whether it may not come
        there for another reason that this does not say, as a return inside a loop before it."""
        found: list[Condition] = []
        doubtful = False
        for above, part in node.above():
            kids = above.kids
            if above is within:
                return found, doubtful
            if above.what in ("if", "choice") and part is not kids[0]:
                found += self._parts(kids[0], part is kids[1])
            elif above.what == "binary" and above.op in ("&&", "||") and part is kids[1]:
                found += self._parts(kids[0], above.op == "&&")
            elif above.what in ("for", "while") and part is kids[-1]:
                found += [
                    Condition(one.node, one.least, loop=True)
                    for one in self._parts(kids[-2 if above.what == "while" else 1], True)
                ]
            elif above.what in ("switch", "lambda", "do", "for each"):
                doubtful = True
            elif above.what in ("block", "label"):
                for one in kids[: next(at for at, kid in enumerate(kids) if kid is part)]:
                    ends = one.what == "if" and len(one.kids) == 2 and _always_ends(one.kids[1])
                    if ends:
                        found += self._parts(one.kids[0], False)
                    rest = one.kids[1].kids[:-1] if ends and one.kids[1].what == "block" else [] if ends else [one]
                    doubtful = doubtful or any(may_end(inner, above) for inner in rest)
        return found, doubtful or self.jumps

    def _parts(self, test: Node, holds: bool) -> list[Condition]:
        if test.what == "unary" and test.op == "!":
            return self._parts(test.kids[0], not holds)
        if test.what == "binary" and test.op == ("&&" if holds else "||"):
            return [*self._parts(test.kids[0], holds), *self._parts(test.kids[1], holds)]
        if test.what == "binary" and test.op in ("<", ">", "<=", ">=", "==", "!="):
            left, right = test.kids
            if left.type.what == right.type.what == "number":
                a, b = self.form(left), self.form(right)
                op = test.op if holds else {"<": ">=", ">": "<=", "<=": ">", ">=": "<", "==": "!=", "!=": "=="}[test.op]
                if op in ("<", "<="):
                    return [Condition(test, b - a - (ONE if op == "<" else ZERO))]
                if op in (">", ">="):
                    return [Condition(test, a - b - (ONE if op == ">" else ZERO))]
                if op == "==":
                    return [Condition(test, a - b), Condition(test, b - a)]
                if (a - b).constant is None and (a - b) in (a, -b):
                    # `x != 0` of a number that is not negative.
                    return [Condition(test, a - b - ONE)] if (a - b).terms[0][1] > 0 else [Condition(test, b - a - ONE)]
        return [Condition(test, None)]

    def upper(self, condition: Condition, axis: str) -> Form | None:
        """B of a condition that says "@axis < B" with a B that is the same for all threads; else None."""
        coordinate, least = Form.atom(f"@{axis}"), condition.least or ZERO
        for atom in least.atoms:
            made = self.atoms.get(atom)
            whole, by = made.parts if made is not None and made.op == "/" else (Form.atom(atom), ONE)
            rest = least.without(atom) + ONE
            # A whole quotient is below B where the number is below B times the divisor.
            if whole == coordinate and least.times(atom) == -ONE and self.reach(rest) == self.reach(by) == 0:
                return rest * by
        return None

    def certain(self, node: Node, bounds: dict[str, Form]) -> bool:
        """Whether the kernel comes to `node` at all coordinates below `bounds`, by axis."""

        def admits(condition: Condition, axis: str, bound: Form) -> bool:
            above = None if condition.least is None else (condition.least - Form.atom(f"@{axis}")).constant
            return self.upper(condition, axis) == bound or (above is not None and above >= 0)

        found, doubtful = self.conditions(node)
        tests = [any(admits(one, *both) for both in bounds.items()) and not one.loop for one in found]
        return all(tests) and not doubtful

    @cached_property
    def effects(self) -> list[Node]:
        """Where the kernel touches memory that other threads have too, or does something that is not followed."""
        outer = [
            one.node for one in self.accesses if one.root in self.arrays or one.root.shared or one.root.what == "global"
        ]
        return [*outer, *self.unfollowed]

    @cached_property
    def unfollowed(self) -> list[Node]:
        """Where the kernel does something else than to compute and to touch elements."""
        return [one for one in self.body.walk() if self._acts(one)]

    def acts(self, node: Node) -> bool:
        """Whether a part of the kernel does such a thing."""
        return any(node.holds(one) for one in self.unfollowed)

    def _acts(self, node: Node, within: frozenset[int] = frozenset()) -> bool:
        """Whether a node by itself does such a thing. within: the functions that the kernel has called to come here."""
        if node.what in ("goto", "asm"):
            return True
        if node.what == "name" and not within and node.symbol in self.escaping:
            return node.symbol.what in ("parameter", "global") or node.symbol.shared
        if node.what in ("index", "deref") and within:
            named = [one.symbol for one in node.kids[0].walk() if one.symbol.pointer]
            return any(one.type.what == "pointer" or one.what == "global" or one.shared for one in named)
        if node.what in ("assign", "count"):
            return any(one.symbol.what == "global" for one in self.roots(node.kids[0]))
        if node.what != "call":
            return False
        inside = self.function(node)
        if inside is None:
            pointers = any(one.type.what == "pointer" for one in node.kids[1:])
            return pointers and node.op not in READING and not node.op.startswith("atomic")
        more = within | {inside.start}
        return inside.start not in within and any(self._acts(one, more) for one in inside.walk())

    def function(self, call: Node) -> Node | None:
        """The body of a function of the source."""
        if call.symbol.definition is None:
            return None
        return self._functions.get(call.symbol.definition.extent.start.offset - self.syntax._shift)

    def alike(self, node: Node, seen: frozenset[Symbol] = frozenset()) -> bool:
        """Whether an expression is the same for all threads of a block, for certain. seen: variables that are, if it
        is."""
        for part in (one for source in self.sources(node) for one in source.walk()):
            if part.what in ("assign", "asm", "call", "count", "lambda"):
                return False
            if part.what == "builtin" and not part.op.startswith(("blockIdx.", "blockDim.", "gridDim.")):
                return False
            symbol = part.symbol if part.what == "name" else NOTHING
            fixed = symbol.what == "global" and symbol.type.what == "number" and "const" in symbol.written.split()
            varies = part.value is None and symbol.what in ("variable", "parameter", "global") and not fixed
            if varies and symbol not in seen and not self._same(symbol, seen):
                return False
            if part.what in ("index", "deref"):
                root, _ = self.place_of(part) or (NOTHING, ZERO)
                if root not in self.arrays or not root.type.const or root.volatile:
                    return False
        return True

    def _same(self, symbol: Symbol, seen: frozenset[Symbol]) -> bool:
        """Whether a variable has one value for all threads of a block, who make all changes of it alike."""
        changes, more = self.changed.get(symbol, []), seen | {symbol}
        if not changes:
            return symbol in self.parameters or self.is_once(symbol)
        plain = symbol.type.what == "number" and not (symbol.shared or symbol.static or symbol.volatile)
        made = None if symbol.declared is None else symbol.declared.kids[-1:]
        begins = symbol in self.parameters or (made is not None and all(self.alike(one, more) for one in made))
        return plain and begins and not self.jumps and all(self._changes_alike(one, symbol, more) for one in changes)

    def _changes_alike(self, by: Node, symbol: Symbol, seen: frozenset[Symbol]) -> bool:
        """Whether all threads of a block, or none, give a variable a value, and the same."""
        above = [(one, part) for one, part in by.above() if self.body.holds(one)]
        tests = [one.kids[0] for one, part in above if one.what == "if" and part is not one.kids[0]]
        once = by.what == "assign" and {one.what for one, _ in above} <= {"block", "if"} and _is(by.kids[0], symbol)
        return once and all(self.alike(one, seen) for one in (by.kids[1], *tests))

    def _waits(self, node: Node, within: frozenset[int] = frozenset()) -> bool:
        """Whether a node is a barrier, or calls a function that has one."""
        inside = self.function(node) if node.what == "call" else None
        if inside is None or inside.start in within:
            return node in self.barriers
        return any(self._waits(one, within | {inside.start}) for one in inside.walk())

    # Loops.

    @cached_property
    def loops(self) -> list[Loop]:
        """The loops that count by a step, of the body."""
        return [loop for node in self.body.walk() if (loop := self.loop(node)) is not None]

    @cached_property
    def loops_of_functions(self) -> list[tuple[Loop, Node]]:
        """The same of the functions that the kernel calls, each with the function's body."""
        found = [(self.loop(node), one) for one in self.syntax.functions for node in one.walk()]
        return [(loop, one) for loop, one in found if loop is not None]

    def loop(self, node: Node) -> Loop | None:
        if node.what != "for":
            return None
        (start, test, update), variable = node.kids[:3], NOTHING
        if start.what == "declaration" and len(start.kids) == 1:
            start = start.kids[0]
            variable = start.symbol
        elif start.what == "assign" and start.op == "=" and node in self.homes.get(start.kids[0].symbol, []):
            variable = start.kids[0].symbol
        if variable is NOTHING or not start.kids or start.type.what != "number" or test.what != "binary":
            return None
        (left, right), sign = test.kids, test.op
        if _is(right, variable):
            left, right, sign = right, left, _TURNED.get(sign, sign)
        counts = update.what in ("count", "assign") and update.op in ("++", "+=", "=") and _is(update.kids[0], variable)
        if not counts or not _is(left, variable) or sign not in ("<", "<=", "!="):
            return None
        step = ONE if update.op == "++" else self.form(update.kids[1])
        step -= Form.atom(atom_of(variable, node)) if update.op == "=" else ZERO
        first, bound = self.form(start.kids[-1]), self.form(right) + (ONE if sign == "<=" else ZERO)
        kind: Literal["counting", "block", "grid", "other"] = "counting" if step == ONE else "other"
        axis = ""
        if sign != "!=" and step == Form.atom("blockDim.x") and first == Form.atom("threadIdx.x"):
            kind, axis = "block", "x"
        for one in AXES:
            if step == grid_size(one) and first == Form.atom(f"@{one}"):
                kind, axis = "grid", one
        return Loop(node, variable, first, bound, step, kind, axis)

    # Threads that work together, and oddities.

    @cached_property
    def barriers(self) -> list[Node]:
        return [one for one in self.syntax.everything() if one.what == "call" and _BARRIERS.fullmatch(one.op)]

    @cached_property
    def warp_wide(self) -> list[Node]:
        """Where threads of a warp exchange values."""
        return [one for one in self.syntax.everything() if one.what == "call" and _WARP_WIDE.fullmatch(one.op)]

    @cached_property
    def shared(self) -> list[Symbol]:
        """The variables in the memory of a block that the kernel uses, and its parameters there."""
        found = dict.fromkeys(one.symbol for one in self.syntax.everything() if one.symbol.shared)
        local = [one for one in self.parameters if re.search(r"\b(?:__)?local\b", one.written)]
        return [*local, *found]

    @property
    def together(self) -> bool:
        return bool(self.barriers or self.warp_wide or self.shared)

    def builtins(self) -> Iterator[Node]:
        return (one for one in self.syntax.everything() if one.what == "builtin")

    @cached_property
    def launch_bounds(self) -> re.Match[str] | None:
        """Where the kernel says its launch bounds."""
        head = self.syntax.code[self.syntax.start : self.body.start].decode(errors="replace")
        return re.search(r"__launch_bounds__\s*\((?:[^()]|\([^()]*\))*\)", head)

    @cached_property
    def oddities(self) -> dict[str, str]:
        """Why the kernel is left as it is, a clause for its author by kind; empty for code that passes may change."""
        found = dict[str, str]()

        def odd(kind: str, node: Node, why: str) -> None:
            found.setdefault(kind, f"line {self.syntax.line(node)}: {why}")

        for one in self.syntax.everything():
            if one.what == "asm":
                odd("assembly", one, "it has inline assembly")
            elif one.what == "call" and _TEXTURES.fullmatch(one.op):
                odd("texture", one, f"it calls {one.op}, which the rules do not know")
            elif one.what == "call" and _MANY.fullmatch(one.op):
                odd("work group", one, f"it calls {one.op}, which the rules do not know")
            elif one.what == "call" and self.syntax.language == "opencl" and _WORK_ITEMS.fullmatch(one.op):
                odd("axis", one, f"it gives {one.op} an axis that is not a number")
            elif one.what in ("variable", "call") and "cooperative_groups" in one.type.spelling:
                if not re.search(r"thread_block\b|grid_group", one.type.spelling) or one.op == "tiled_partition":
                    odd("cooperative groups", one, "it uses cooperative groups other than the block and the grid")
            elif one.what == "call" and one.op == "sync":
                if "grid_group" in self.text(one) + one.kids[-1].type.spelling:
                    odd("cooperative groups", one, "all blocks wait for each other")
            elif one.what == "name" and one.symbol.shared and one.symbol.what == "global":
                odd("shared memory", one, f"its shared memory `{one.symbol.name}` is declared outside of it")
        for line, message in self.syntax.problems:
            found.setdefault("syntax", f"line {line}: clang does not understand the kernel ({message})")
        if re.search(rb"^[ \t]*#[ \t]*(?:el)?if[^\n]*_IS_", self.syntax.plain, re.MULTILINE):
            odd("preprocessor", self.body, "the preprocessor chooses its code by type")
        if self.syntax.launches:
            odd("dynamic parallelism", self.body, "it launches kernels")
        waiting = [one for one in self.body.walk() if self._waits(one)]
        for leaves in (one for one in self.body.walk() if one.what == "return"):
            rounds = [one for one, _ in leaves.above() if one.what in LOOPS]
            tests = [one.kids[0] for one, part in leaves.above() if one.what == "if" and part is not one.kids[0]]
            others = {one.what for one, _ in leaves.above() if self.body.holds(one)} - {"block", "if"}
            if not others and tests and all(map(self.alike, tests)):
                continue
            for one in waiting:
                if one.start > leaves.start or one.inside(LAMBDA) or any(loop.holds(one) for loop in rounds):
                    odd("early return", one, "threads may return while others wait at a barrier")
        attribute = self.ahead(_ATTRIBUTES)
        if attribute is not None:
            found["attribute"] = f"it has {attribute[0].decode(errors='replace')}, which the rules do not know"
        return found

    def ahead(self, pattern: re.Pattern[bytes]) -> re.Match[bytes] | None:
        """Where the kernel's declaration, ahead of its body, has what the pattern says."""
        stop = self.syntax.body.start
        return pattern.search(self.syntax.code, max(self.syntax.code.rfind(one, 0, stop) for one in (b"}", b";")), stop)


def _bare(spelling: str) -> str:
    return re.sub(r"\b(?:const|volatile|__restrict|restrict|__private)\b|\s", "", spelling).replace("[]", "*")


def _is(node: Node, symbol: Symbol) -> bool:
    return node.what == "name" and node.symbol is symbol


def _always_ends(node: Node) -> bool:
    last = node.kids[-1] if node.what == "block" and node.kids else node
    return last.what in ENDS


def may_end(node: Node, within: Node) -> bool:
    """Whether a statement may end the thread, or the round of the loop around `within`, from inside itself."""
    ends = [(one, LAMBDA if one.what in ("return", "goto") else LEFT) for one in node.walk() if one.what in ENDS]
    return any(not one.inside(of, node.parent) for one, of in ends)
