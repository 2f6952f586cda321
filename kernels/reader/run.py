"""Runs the index arithmetic of a kernel, for all threads of a small launch at once.

Owns what each statement does to variables and to arrays. The contents of arrays are unknown; where a branch depends on
them, both sides are run, and what is assigned on one side only has bounds instead of a value. What is not understood is
noted with the arrays that it could touch, never passed over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from tunesmith.kernels.reader.parse import kind, library
from tunesmith.kernels.reader.spans import (
    ANY,
    NOWHERE,
    Span,
    absent,
    arithmetic,
    choose,
    compare,
    everywhere,
    fitted,
    flag,
    hull,
    number,
    of_kind,
)
from tunesmith.kernels.reader.syntax import (
    LONG,
    LOOPS,
    NOTHING,
    READING,
    Kind,
    Lowering,
    Node,
    Symbol,
    bytes_of,
    step_of,
)

MAX_WORK = 130_000_000
"""Expressions and statements of a run, each times the threads and what it costs without any."""
STEP_COST = 2000
MAX_TURNS = 600
FEW_TURNS = 2
"""Turns of a loop, after which its variables may have any value: at most, and where the kernel is too long for that."""
MAX_ELEMENTS = 1 << 22
MAX_DEPTH = 24
_VOID = Kind("void", 0, "void")
_COMPARISONS = ("<", ">", "<=", ">=", "==", "!=")
_NOTHING = ("sync", "barrier", "fence", "printf", "pipeline_commit", "pipeline_wait", "prefetch", "nanosleep", "assume")


class Stopped(Exception):
    """The run is longer than it may be."""


@dataclass(slots=True)
class Array:
    """The accesses of a run to an array. element: bytes of one; lanes: elements of a vector, or structure, that it is
    made of; reach: elements from its begin, as far as they are known, in whole vectors; open: whether an index is not
    known; negative: whether one may be; read, written: at all; early: read before it was written for certain; collides:
    whether two threads may write an element; assigned: by element, whether one did; lost: why the run lost track."""

    element: int
    lanes: int = 1
    reach: int = 0
    open: bool = False
    negative: bool = False
    read: bool = False
    written: bool = False
    early: bool = False
    lost: str = ""
    assigned: Any = field(default_factory=lambda: np.zeros(0, bool))
    strides: set[frozenset[str]] = field(default_factory=set)
    threads: Any = False
    collides: bool = False

    def covered(self, count: int) -> bool:
        """Whether each of `count` elements was written for certain."""
        return len(self.assigned) >= count and bool(self.assigned[:count].all())


Stored = tuple[Array, int, Any]
"""A store of each thread: the array, how many elements, and the first of them, negative where the thread has none."""


@dataclass(slots=True)
class Pointer:
    """Where a pointer may point to: by array, or variable, the distance from its begin in bytes."""

    targets: dict[Any, Span]


@dataclass(slots=True)
class Frame:
    """A function or a loop that statements may leave. left_by: their kind; sure, may: the threads that left it;
    snapshots: of variables, for threads that may have."""

    left_by: str
    sure: Any
    may: Any
    snapshots: list[tuple[Any, dict[Any, Any]]] = field(default_factory=list)


class Run:
    """One launch. arguments: values of the kernel's scalars by name, others are unknown; grid, block: by axis; cells:
    by array the bytes of an element and `Array.lanes`, where the parameter's type does not say them."""

    def __init__(
        self,
        lowering: Lowering,
        kernel: Symbol,
        arguments: Mapping[str, int],
        grid: Sequence[int],
        block: Sequence[int],
        limit: int = MAX_WORK,
        cells: Mapping[str, tuple[int, int]] = MappingProxyType({}),
        turns: int = MAX_TURNS,
    ) -> None:
        self.lowering, self.limit, self.turns = lowering, min(limit, MAX_WORK), turns
        self.grid, self.block = [*grid, 1, 1][:3], [*block, 1, 1][:3]
        count = int(np.prod(self.grid)) * int(np.prod(self.block))
        at, place = np.arange(count, dtype=np.int64), []
        for extent in (*self.block, *self.grid):
            place.append(at % extent if extent > 1 else 0)
            at = at // extent
        self.thread, self.in_grid = place[:3], place[3:]
        self.count, self.steps, self.depth = count, 0, 0
        self.sure = self.may = np.ones(count, bool)
        self.env: dict[Any, Any] = {}
        self.alias: dict[Symbol | None, Any] = {}
        self.contents: dict[Symbol, Span] = {}
        self.arrays: dict[str, Array] = {}
        self.shared: dict[Symbol, Array] = {}
        self.local: dict[str, Array] = {}
        self.frames: list[Frame] = []
        self.stored, self.last = dict[int, Stored](), list[Stored]()
        self.used: set[tuple[str, str]] = set()
        self.steering: set[str] = set()
        self.rows, self.divisors = set[frozenset[str]](), dict[str, int]()
        self.stopped = False
        for one in kernel.arguments:
            if one.pointer:
                local = one.type.element is not None and "__local" in one.type.element.spelling
                arrays = self.local if local else self.arrays
                arrays[one.name] = Array(*cells.get(one.name, (step_of(one.type), 1)))
                self.env[one,] = Pointer({one.name: number(0)})
            else:
                given = arguments.get(one.name)
                self.env[one,] = self._unknown(one.type) if given is None else number(given, one.name)

    def follow(self, statements: Node) -> None:
        """Runs the kernel's body."""
        try:
            self._framed("return", lambda: self.statement(_with_sides(statements)))
        except Stopped:
            self.stopped = True

    @property
    def work(self) -> int:
        return self.steps * (self.count + STEP_COST)

    def call(
        self, parameters: Sequence[Symbol], statements: Node, given: Sequence[Node], result: Kind, this: Any = None
    ) -> Any:
        """The value of a call of a function with a body."""
        if self.depth >= MAX_DEPTH:
            raise Stopped
        pairs = list(zip(parameters, given, strict=False))
        passed = [self.place(at) if one.type.reference else self.value(at) for one, at in pairs]
        for (one, _), value in zip(pairs, passed, strict=True):
            if one.type.reference:
                self.alias[one] = value
            else:
                self.alias.pop(one, None)
                self._set((one,), fitted(value, one.type) if isinstance(value, Span) else value, True)
        before, self.depth = self.env.pop(("result",), None), self.depth + 1
        outer = self.alias.get(None)
        if this is not None:
            self.alias[None] = this
        self._framed("return", lambda: self.statement(statements))
        self.depth -= 1
        self.alias[None] = outer
        found = self.env.pop(("result",), None)
        if before is not None:
            self.env["result",] = before
        return self._unknown(result) if found is None else found

    def _framed(self, left_by: str, action: Callable[[], None]) -> None:
        """Runs an action that statements of a kind leave, and brings the threads that left back behind it."""
        sure, may = self.sure, self.may
        self.frames.append(Frame(left_by, np.zeros(self.count, bool), np.zeros(self.count, bool)))
        action()
        frame = self.frames.pop()
        for mask, env in frame.snapshots:
            self._join(mask, env)
        outer_sure = np.zeros(self.count, bool)
        outer_may = np.zeros(self.count, bool)
        for other in self.frames:
            outer_sure, outer_may = outer_sure | other.sure, outer_may | other.may
        self.sure, self.may = sure & ~outer_may, may & ~outer_sure

    def _join(self, mask: Any, env: Mapping[Any, Any]) -> None:
        """Variables may also have the values of `env` for the threads of the mask."""
        for name, value in env.items():
            now = self.env.get(name)
            if now is not value and now is not None:
                self.env[name] = _merged(mask, now, value)

    # Statements.

    def statement(self, node: Node) -> None:
        if not self.may.any():
            return
        self._step()
        _STATEMENTS.get(node.what, Run.value)(self, node)

    def _jump(self, node: Node) -> None:
        self._lose(node, "inline assembly" if node.what == "asm" else "a jump")

    def _step(self) -> None:
        self.steps += 1
        if self.work > self.limit:
            raise Stopped

    def _leave(self, node: Node) -> None:
        if node.kids:
            self._set(("result",), self.value(node.kids[0]))
        frame = next((one for one in reversed(self.frames) if one.left_by == node.what), None)
        if frame is None:
            return
        unsure = self.may & ~self.sure
        if unsure.any():
            frame.snapshots.append((unsure, dict(self.env)))
        frame.sure, frame.may = frame.sure | self.sure, frame.may | self.may
        self.sure = self.may = np.zeros(self.count, bool)

    def _declare(self, node: Node) -> None:
        symbol, type_ = node.symbol, node.type
        if symbol.shared:
            self.shared.setdefault(symbol, Array(step_of(type_)))
            self.contents.setdefault(symbol, Span(np.inf, -np.inf))
            return
        if type_.reference and node.kids:
            self.alias[symbol] = self.place(node.kids[0])
            return
        self.alias.pop(symbol, None)
        if type_.what == "array":
            given = [self.value(one) for one in _leaves(node.kids[0])] if node.kids else []
            self.contents[symbol] = Span(0.0, 0.0) if given else Span(np.inf, -np.inf)
            for value in given:
                self._keep(symbol, value if isinstance(value, Span) else ANY)
            return
        value = self.value(node.kids[0], type_) if node.kids else None
        if value is None:
            value = number(0) if type_.what in ("number", "float") else {}
        self._set((symbol,), fitted(value, type_) if isinstance(value, Span) else value, True)

    def _if(self, node: Node) -> None:
        kids = node.kids
        while len(kids) > 2 and kids[0].what in ("variable", "declaration"):
            self.statement(kids[0])
            kids = kids[1:]
        then, other = kids[1], kids[2] if len(kids) > 2 else None
        outer, self.stored = self.stored, {}
        self.branch(self.truth(kids[0]), lambda: self.statement(then), lambda: self.statement(other) if other else None)
        for array, width, places in self._stores(node):
            array.assigned[np.add.outer(np.arange(width), places[self.sure & (places >= 0)])] = True
        self.stored = outer | self.stored

    def _stores(self, node: Node) -> list[Stored]:
        """What a statement stores for certain, also where it depends on data which of its sides does."""
        if node.what == "if":
            then, other = (self._stores(one) for one in node.kids[-2:])
            pairs = [(one, two) for one in then for two in other if one[0] is two[0] and one[1] == two[1]]
            return [(*one[:2], np.where(one[2] == two[2], one[2], -1)) for one, two in pairs]
        if node.what == "block":
            return [found for one in node.kids for found in self._stores(one)]
        return [self.stored[id(node)]] if id(node) in self.stored else []

    def branch(self, test: tuple[Any, Any], then: Callable[[], Any], other: Callable[[], Any]) -> tuple[Any, Any]:
        """Runs both sides of a branch, each for the threads that may take it."""
        true, maybe = (np.broadcast_to(one, self.count) for one in test)
        sure, may = self.sure, self.may
        unsure = (maybe & ~true & may).any()
        before = dict(self.env) if unsure else None
        self.sure, self.may = sure & true, may & maybe
        first = then() if self.may.any() else None
        after, at = self.env, (self.sure, self.may)
        if before is not None:
            # Threads that take the first side for certain keep what it did.
            self.env = before
        self.sure, self.may = sure & ~maybe, may & ~true
        second = other() if self.may.any() else None
        if before is not None:
            reached = np.broadcast_to(at[1], self.count)
            stayed = np.broadcast_to(self.may, self.count)
            for name in after.keys() | self.env.keys():
                one, two = after.get(name), self.env.get(name)
                if one is two:
                    continue
                if one is None or two is None:
                    self.env[name] = one if two is None else two
                else:
                    both = reached & stayed
                    self.env[name] = _merged(both, _chosen(reached, one, two), two)
        self.sure, self.may = self.sure | at[0], self.may | at[1]
        if before is not None:
            # A thread that may have taken either side is behind both for certain, if neither leaves.
            gone = np.zeros(self.count, bool)
            for frame in self.frames:
                gone = gone | frame.may
            self.sure = self.sure | (sure & self.may & ~gone)
        return first, second

    def _loop(self, node: Node) -> None:
        test, step, inside = None, None, node.kids[-1]
        if node.what == "for":
            start, test, step, inside = node.kids
            self.statement(start)
        elif node.what == "while":
            test = node.kids[0]
        else:
            inside, test = node.kids
        if test is not None and test.what == "nothing":
            test = None
        self._framed("break", lambda: self._turns(node, test, step, inside))

    def _turns(self, node: Node, test: Node | None, step: Node | None, inside: Node) -> None:
        left: list[tuple[Any, dict[Any, Any]]] = []
        turns, widened = 0, False
        while self.may.any():
            true = maybe = np.ones(self.count, bool)
            if test is not None and (node.what != "do" or turns):
                true, maybe = (np.broadcast_to(one, self.count) for one in self.truth(test))
            if (unsure := maybe & ~true & self.may).any():
                left.append((unsure, dict(self.env)))
            self.sure, self.may = self.sure & true, self.may & maybe
            if not self.may.any() or widened:
                break
            turns += 1
            if turns > self.turns or not (true & self.may).any():
                self._widen(node)
                if test is not None:
                    self.truth(test)
                widened = True
            self._framed("continue", lambda: self.statement(inside))
            if step is not None and step.what != "nothing" and self.may.any():
                self.value(step)
        for mask, env in left:
            self._join(mask, env)

    def _widen(self, node: Node) -> None:
        """Variables that a loop assigns to may have any value."""
        assigned, used = {*_assigned(node)}, {one.symbol for one in node.walk() if one.what == "name"}
        for one in (self.alias.get(at, self.env.get((at,))) for at in used):
            # Through a pointer or a reference another variable may change.
            assigned |= {at[0] for at in (one.targets if isinstance(one, Pointer) else [one]) if isinstance(at, tuple)}
        for name in list(self.env):
            if name[0] in assigned:
                value = self.env[name]
                if isinstance(value, Span):
                    self.env[name] = choose(self.may, ANY, value)
                elif isinstance(value, Pointer):
                    self.env[name] = Pointer({root: ANY for root in value.targets})

    def _switch(self, node: Node) -> None:
        value, inside = self.number(node.kids[0]), node.kids[-1]
        sure, may = self.sure, self.may
        labels: list[tuple[Node, list[Node | None]]] = []
        for one in inside.kids:
            names: list[Node | None] = []
            while one.what in ("case", "default"):
                names.append(one.kids[0] if one.what == "case" else None)
                one = one.kids[-1]
            labels.append((one, names))
        cases = [compare("==", value, self.number(name)) for _, names in labels for name in names if name is not None]
        none_may = none_sure = np.ones(self.count, bool)
        for true, maybe in cases:
            none_sure, none_may = none_sure & ~maybe, none_may & ~true

        def run() -> None:
            self.sure = self.may = np.zeros(self.count, bool)
            frame = self.frames[-1]
            for one, names in labels:
                for name in names:
                    at = (none_sure, none_may) if name is None else compare("==", value, self.number(name))
                    self.sure = self.sure | (sure & at[0])
                    self.may = self.may | (may & at[1] & ~frame.sure)
                self.statement(one)

        before = dict(self.env)
        self._framed("break", run)
        if (unsure := none_may & ~none_sure & may).any():
            self._join(unsure, before)

    # Expressions.

    def number(self, node: Node) -> Span:
        """The value of an expression that is a number."""
        found = self.value(node)
        return found if isinstance(found, Span) else ANY

    def value(self, node: Node, wanted: Kind | None = None) -> Any:
        """A `Span`, a `Pointer`, the members of a structure or a lambda. wanted: the type of a list without one."""
        self._step()
        into = node.converted
        if into is None:
            return self._plain(node, wanted)
        self._step()
        if "array" in (node.type.what, into.what):
            return self._address(node)
        if node.type.what == "record" and node.type.element is not None and into.what != "record":
            return self._read(self.place(node), into)
        return self._convert(self._plain(node), into)

    def _plain(self, node: Node, wanted: Kind | None = None) -> Any:
        """The value ahead of the conversion that nobody wrote."""
        if node.value is not None:
            return number(node.value)
        if node.what == "list":
            return self._list(node, wanted or node.type)
        if node.what in _EXPRESSIONS:
            return _EXPRESSIONS[node.what](self, node)
        if node.kids and node.kids[-1].what == "list":
            return self.value(node.kids[-1], node.type)
        if any(isinstance(self.value(one), Pointer) for one in node.kids):
            self._lose(node, f"`{node.op or node.what}`")
        return self._unknown(node.type)

    def _list(self, node: Node, type_: Kind) -> Any:
        if type_.what == "record":
            names = [one.spelling for one in node.cursor.type.get_canonical().get_fields()] or list("xyzw")
            return {name: self.value(one) for name, one in zip(names, node.kids, strict=False)}
        return self.value(node.kids[0]) if node.kids else number(0)

    def _cast(self, node: Node) -> Any:
        inner = node.kids[0]
        if "array" in (node.type.what, inner.result.what):
            return self._address(inner)
        return self._convert(self.value(inner), node.type)

    def _convert(self, value: Any, into: Kind) -> Any:
        if isinstance(value, Span):
            return fitted(value, into) if into.what in ("number", "float") else self._unknown(into)
        if isinstance(value, Pointer) and into.what in ("number", "float"):
            return Span(0.0, 1.0) if into.size == 1 else self._unknown(into)
        return value

    def _address(self, node: Node) -> Pointer:
        place = self.place(node.kids[0] if node.what == "address" else node)
        if isinstance(place, Pointer):
            return place
        return Pointer({place: number(0)} if place is not None else {})

    def _count(self, node: Node) -> Any:
        inner = node.kids[0]
        before = self.value(inner)
        after = self.operated(node.op[0], before, number(1), inner.type)
        self.store(inner, after)
        # clang has x++ and x-- as 1 and 2, ++x and --x as 3 and 4.
        return after if library().clang_getCursorUnaryOperatorKind(node.cursor) > 2 else before

    def _unary(self, node: Node) -> Any:
        if node.op == "!":
            true, maybe = self.truth(node.kids[0])
            return flag(~np.asarray(maybe), ~np.asarray(true))
        value = self.number(node.kids[0])
        if node.op in ("-", "~"):
            return arithmetic("-", number(0 if node.op == "-" else -1), value, node.type)
        return value

    def operated(self, op: str, a: Any, b: Any, type_: Kind) -> Any:
        """The value of an operation, whose result has a type; a pointer goes on by elements of its own type."""
        if isinstance(a, Pointer):
            distance = arithmetic("*", b if isinstance(b, Span) else ANY, number(step_of(type_)), LONG)
            return Pointer({root: arithmetic(op, at, distance, LONG) for root, at in a.targets.items()})
        known = isinstance(a, Span) and isinstance(b, Span) and op in "*/%+-<<>>&^|minmax"
        if known and op in "/%" and b.names and not a.uniform:
            self.rows.add(b.names)
        if known and op in ("/", ">>") and a.names and b.known and b.bounded and type_.what == "number":
            by = int(np.max(b.low)) if op == "/" else 1 << int(np.clip(np.max(b.low), 0, 30))
            self.divisors |= {name: max(by, self.divisors.get(name, 0)) for name in a.names - b.names}
        return arithmetic(op, a, b, type_) if known else self._unknown(type_)

    def _binary(self, node: Node) -> Any:
        op, (left, right) = node.op, node.kids
        if op == ",":
            self.value(left)
            return self.value(right)
        if op in ("&&", "||", *_COMPARISONS):
            return flag(*self.truth(node))
        a, b = self.value(left), self.value(right)
        if isinstance(a, Pointer) and isinstance(b, Pointer):
            return ANY
        if isinstance(b, Pointer):
            a, b, left = b, a, right
        return self.operated(op, a, b, left.result if isinstance(a, Pointer) else node.type)

    def _assign(self, node: Node) -> Any:
        (target, right), op = node.kids, node.op.removesuffix("=")
        before = self.value(target) if op else None
        value = self.value(right, target.result)
        value = self.operated(op, before, value, target.result) if op else value
        self.last = []
        self.store(target, value)
        self.stored |= {id(node): one for one in self.last}
        return value

    def _choice(self, node: Node) -> Any:
        test, then, other = node.kids
        held = self.truth(test)
        one, two = self.branch(held, lambda: self.value(then), lambda: self.value(other))
        if one is None or two is None:
            return two if one is None else one
        true, maybe = (np.broadcast_to(part, self.count) for part in held)
        return _merged(maybe & ~true, _chosen(true, one, two), one)

    def truth(self, node: Node) -> tuple[Any, Any]:
        """For which threads a condition holds for certain, and for which it may hold."""
        self._step()
        if node.what != "binary" or node.op not in ("&&", "||", *_COMPARISONS):
            value = self.value(node)
            if isinstance(value, Pointer):
                return True, True
            return compare("!=", value, number(0)) if isinstance(value, Span) else (False, True)
        left, right = node.kids
        if node.op in ("&&", "||"):
            true, maybe = (np.broadcast_to(one, self.count) for one in self.truth(left))
            sure, may = self.sure, self.may
            needed = (true, maybe) if node.op == "&&" else (~maybe, ~true)
            self.sure, self.may = sure & needed[0], may & needed[1]
            two = self.truth(right) if self.may.any() else (False, False)
            self.sure, self.may = sure, may
            return (true & two[0], maybe & two[1]) if node.op == "&&" else (true | two[0], maybe | two[1])
        a, b = self.value(left), self.value(right)
        if isinstance(a, Span) and isinstance(b, Span):
            # A parameter that is only compared with data, such as a tag, is not a length.
            measures = node.op not in ("==", "!=") or (a.known and b.known)
            if right.value is None and left.value is None and measures:
                self.steering |= a.names | b.names
            return compare(node.op, a, b)
        if isinstance(a, Pointer) != isinstance(b, Pointer):
            # A pointer and null: arguments are arrays.
            return (node.op == "!=",) * 2
        return False, True

    # Places.

    def place(self, node: Node) -> Any:
        """Where an expression's value lies: a `Pointer`, or the key of a variable or a member of one."""
        found, into = self._place(node), node.converted
        component = node.type.what == "record" and into is not None and into.what != "record"
        return (*found, "*") if component and isinstance(found, tuple) else found

    def _place(self, node: Node) -> Any:
        what, symbol = node.what, node.symbol
        if what == "name":
            if symbol in self.alias:
                return self.alias[symbol]
            if node.type.what == "array" or symbol in self.contents:
                return Pointer({symbol: number(0)})
            if (symbol,) not in self.env:
                self.env[symbol,] = self._global(symbol, node)
            return (symbol,)
        if what == "index":
            base, index = self.value(node.kids[0]), self.value(node.kids[1])
            if isinstance(index, Pointer):
                base, index = index, base
            return self.operated("+", base, index, node.kids[0].result) if isinstance(base, Pointer) else None
        if what == "deref":
            found = self.value(node.kids[0])
            return found if isinstance(found, Pointer) else None
        if what == "member":
            base = self._owner(node)
            if isinstance(base, tuple):
                return (*base, node.op)
            if isinstance(base, Pointer):
                offset = max(node.cursor.referenced.get_field_offsetof() // 8, 0) if symbol is not NOTHING else 0
                variable = _variable(base)
                return (*variable, node.op) if variable else self.operated("+", base, number(offset), _VOID)
            return None
        if what == "this":
            return self.alias.get(None)
        if what == "cast" and node.kids[0].result.what != "void":
            return self.place(node.kids[0])
        if what in ("assign", "count"):
            self._plain(node)
            return self.place(node.kids[0])
        value = self._plain(node)
        name = (f"temporary {self.steps}",)
        self._set(name, value, True)
        return name

    def _owner(self, member: Node) -> Any:
        """Where the object lies whose member is named, which is `this` where none is written."""
        if not member.kids or member.kids[0].what == "this":
            return self.alias.get(None)
        at = member.kids[0]
        found = self.value(at) if at.result.what == "pointer" else self.place(at)
        return None if isinstance(found, dict) else found

    def _global(self, symbol: Symbol, node: Node) -> Any:
        """The value of a variable outside of functions."""
        declared = node.cursor.referenced
        if symbol.what == "function":
            return {}
        if declared is not None and kind(declared) == "VAR_DECL" and declared.type.is_const_qualified():
            made = self.lowering.node(declared)
            if made.kids and made.type.what in ("number", "float"):
                return fitted(self.number(made.kids[0]), made.type)
        return self._unknown(node.type)

    def _load(self, node: Node) -> Any:
        place = self._place(node)
        return place if isinstance(place, Pointer) and node.type.what == "array" else self._read(place, node.type)

    def _read(self, place: Any, type_: Kind) -> Any:
        """The value that lies at a place."""
        if isinstance(place, Pointer):
            return self.access(place, type_, reads=True)
        return self._unknown(type_) if place is None else self._get(place, type_)

    def _builtin(self, node: Node) -> Span:
        """An index of threads or blocks along an axis, or how many there are."""
        what, axis = node.op.split(".") if "." in node.op else ("@", node.op[1:])
        at = "xyz".index(axis)
        block, grid = self.block[at], self.grid[at]
        asked = {"@": ("block", "thread"), "threadIdx": ("thread",), "blockIdx": ("block",), "blockDim": ("size",)}
        self.used |= {(one, axis) for one in asked.get(what, ("grid",))}
        if self.lowering.ranks and self.block[1:] != [1, 1]:
            return of_kind(node.type)
        if what == "@":
            return number(np.asarray(self.in_grid[at]) * block + self.thread[at])
        if what in ("gridDim", "gridSize"):
            return number(grid * (block if what == "gridSize" else 1), f"gridDim.{axis}")
        return number({"threadIdx": self.thread[at], "blockIdx": self.in_grid[at], "blockDim": block}[what])

    def _get(self, place: Any, kind_: Kind) -> Any:
        if place in self.env:
            return self.env[place]
        members = {name[-1]: value for name, value in self.env.items() if name[:-1] == place}
        if kind_.what == "record" and members:
            return members
        return self._unknown(kind_)

    def _set(self, place: Any, value: Any, fresh: bool = False) -> None:
        """Assigns for the threads that may be here; fresh: a new variable, which others do not have."""
        if isinstance(value, dict):
            for name, one in value.items():
                self._set((*place, name), one)
            if not value:
                for name in [one for one in self.env if len(one) > len(place) and one[: len(place)] == place]:
                    del self.env[name]
            self.env[place] = {}
            return
        before = self.env.get(place)
        if place[-1:] == ("*",):
            # Some component of a vector.
            for name in [one for one in self.env if one[: len(place) - 1] == place[:-1] and len(one) >= len(place)]:
                del self.env[name]
            return
        self.env[place] = value if fresh or before is None or self.may.all() else _chosen(self.may, value, before)

    def store(self, node: Node, value: Any) -> None:
        place = self.place(node)
        if isinstance(place, Pointer):
            self.access(place, node.result, writes=True, value=value)
        elif place is not None:
            self._set(place, fitted(value, node.result) if isinstance(value, Span) else value)

    def _keep(self, root: Any, value: Span) -> None:
        whole = everywhere(
            Span(np.broadcast_to(value.low, self.count)[self.may], np.broadcast_to(value.high, self.count)[self.may])
        )
        now = self.contents.get(root, Span(np.inf, -np.inf))
        self.contents[root] = Span(min(now.low, whole.low), max(now.high, whole.high))

    def access(
        self,
        pointer: Pointer,
        kind_: Kind,
        *,
        reads: bool = False,
        writes: bool = False,
        certain: bool = True,
        value: Any = None,
    ) -> Any:
        """Reads or writes the element at a pointer; the value that is read."""
        found: Any = None
        for root, offset in pointer.targets.items():
            if isinstance(root, tuple):
                if writes:
                    self._set(root, value if value is not None else self._unknown(kind_))
                found = self._get(root, kind_)
            elif (array := self.arrays.get(root) or self.local.get(root)) is not None:
                self._touch(array, offset, max(kind_.size, 1), reads, writes, certain)
            else:
                if root in self.shared:
                    self._touch(self.shared[root], offset, max(kind_.size, 1), reads, writes, False)
                if writes:
                    self._keep(root, value if isinstance(value, Span) else of_kind(kind_))
                elif root in self.contents and kind_.what == "number" and self.contents[root].bounded and certain:
                    found = fitted(self.contents[root], kind_)
        return self._unknown(kind_) if found is None or len(pointer.targets) > 1 else found

    def _touch(self, array: Array, offset: Span, size: int, reads: bool, writes: bool, certain: bool) -> None:
        if not self.may.any():
            return
        here = self.may & ~absent(offset)
        if not here.any():
            return
        low, high = (np.broadcast_to(one, self.count)[here] for one in (offset.low, offset.high))
        array.read, array.written = array.read or reads, array.written or writes
        array.strides |= offset.strides
        first, last = float(low.min()), float(high.max()) + size
        if not np.isfinite(last) or not np.isfinite(first) or last > MAX_ELEMENTS * array.element:
            array.open = True
            array.early |= reads
            return
        array.negative |= first < 0
        array.reach = max(array.reach, int(-(-last // (array.element * array.lanes))) * array.lanes)
        array.threads = array.threads | here
        if len(array.assigned) < array.reach:
            array.assigned = np.concatenate([array.assigned, np.zeros(array.reach - len(array.assigned), bool)])
        width = max(1, size // array.element)
        if reads and not array.early:
            places = (low // array.element).astype(np.int64).clip(0)
            inside = offset.known and array.reach > 0
            array.early = not inside or not all(array.assigned[places + at].all() for at in range(width))
        if writes and certain and offset.known:
            places = np.broadcast_to(offset.low, self.count) // array.element
            self.last = [(array, width, np.where(here, places, -1))]
            array.collides |= len(np.unique(places[here])) < int(here.sum())
            exact = places[self.sure & here]
            for at in range(width):
                chosen = exact + at
                array.assigned[chosen[(chosen >= 0) & (chosen < len(array.assigned))]] = True

    def _unknown(self, kind_: Kind) -> Any:
        if kind_.what in ("number", "float"):
            return of_kind(kind_)
        return Pointer({}) if kind_.what in ("pointer", "array") else {}

    def _reached(self, value: Any) -> list[Array]:
        """The kernel's arrays to which a value points."""
        roots, arrays = value.targets if isinstance(value, Pointer) else (), self.arrays | self.local
        return [arrays[root] for root in roots if root in arrays]

    def _lose(self, node: Node, why: str) -> None:
        """Whatever the part of the source does to arrays is not known."""
        line = node.cursor.location.line
        for one in node.walk():
            value = self.env.get((one.symbol,)) if one.what == "name" else None
            for array in self._reached(value):
                array.lost = f"{why} in line {line}"

    # Calls.

    def _call(self, node: Node) -> Any:
        callee, given, symbol = node.kids[0], node.kids[1:], node.symbol
        if symbol is NOTHING:
            return self._strange(node, [self.value(one) for one in given])
        if node.op == "operator()" and given:
            made = self.value(given[0])
            if isinstance(made, Node):
                parameters = [one.symbol for one in made.kids if one.what == "parameter" and one.symbol]
                return self.call(parameters, made.kids[-1], given[1:], node.type)
        if symbol.definition is None:
            return self._known(node, given)
        this = None
        if callee.what == "member":
            this = self._owner(callee)
            this = _variable(this) or this
        elif len(given) > len(symbol.arguments):
            # An operator of a class, whose first operand is the object.
            this, given = self.place(given[0]), given[1:]
        return self.call(symbol.arguments, self.lowering.body(symbol), given, node.type, this)

    def _construct(self, node: Node) -> Any:
        values = [self.value(one) for one in node.kids]
        if node.type.what in ("number", "float") and values:
            return values[0] if isinstance(values[0], Span) else self._unknown(node.type)
        if any(isinstance(one, Pointer) for one in values):
            self._lose(node, f"`{node.cursor.spelling}`")
        return {}

    def _known(self, node: Node, given: Sequence[Node]) -> Any:
        """A call of a function without a body: one of the language, or a stranger."""
        name = node.op
        short = name.removeprefix("native_").removeprefix("half_")
        values = [self.value(one) for one in given]
        numbers = [one if isinstance(one, Span) else ANY for one in values]
        for at in node.symbol.references:
            self.store(given[at], ANY)
        pointers = [one for one in values if isinstance(one, Pointer)]
        if any(part in name for part in _NOTHING) and "memcpy" not in name:
            return self._unknown(node.type)
        if short in ("min", "max", "fmin", "fmax", "fminf", "fmaxf", "umin", "umax") and len(values) == 2:
            return arithmetic("min" if "min" in short else "max", numbers[0], numbers[1], node.type)
        if short == "clamp" and len(values) == 3:
            return arithmetic("min", arithmetic("max", numbers[0], numbers[1], node.type), numbers[2], node.type)
        if short in ("mul24", "__mul24", "__umul24"):
            return arithmetic("*", numbers[0], numbers[1], node.type)
        if short in ("mad24", "mad", "fma") and node.type.what == "number":
            return arithmetic("+", arithmetic("*", numbers[0], numbers[1], node.type), numbers[2], node.type)
        if short in ("abs", "labs", "llabs", "fabs", "fabsf") and numbers[0].known:
            found = np.abs(numbers[0].low)
            return Span(found, found)
        if "shfl" in name or "broadcast" in name:
            return everywhere(numbers[1 if name.endswith("_sync") else 0]) if not pointers else self._unknown(node.type)
        if name.startswith(("make_", "convert_", "as_")) and not pointers:
            if name.startswith("make_"):
                return dict(zip("xyzw", values, strict=False))
            converts = "convert" in name and node.type.what == "number"
            return fitted(numbers[0], node.type) if converts else self._unknown(node.type)
        return self._with_pointers(node, given, values) if pointers else self._unknown(node.type)

    def _with_pointers(self, node: Node, given: Sequence[Node], values: Sequence[Any]) -> Any:
        name, elements = node.op, [one.result.element or _VOID for one in given]
        first = values[0]
        if "atom" in name and isinstance(first, Pointer):
            self.access(first, elements[0], reads=True, writes=True, certain=False)
            if any(isinstance(one, Pointer) for one in values[1:]):
                self._lose(node, f"`{name}`")
            return self._unknown(node.type)
        if name in READING and isinstance(first, Pointer):
            return self.access(first, node.type, reads=True)
        if name.startswith("__st") and isinstance(first, Pointer):
            return self.access(first, elements[0], writes=True, value=values[1])
        if (vector := re.fullmatch(r"v(load|store)(?:a?_half)?(\d*)(?:_rt\w)?", name)) is not None:
            index, pointer = values[-2:]
            wide = bytes_of(elements[-1].size * int(vector[2] or 1))
            if isinstance(pointer, Pointer) and isinstance(index, Span):
                at = self.operated("+", pointer, index, Kind("pointer", 8, "", element=wide))
                self.access(at, wide, reads=vector[1] == "load", writes=vector[1] == "store")
            return self._unknown(node.type)
        return self._strange(node, values)

    def _strange(self, node: Node, values: Sequence[Any]) -> Any:
        """A function whose body is not there may do anything to the arrays that it is given."""
        for one in values:
            for array in self._reached(one):
                array.lost = f"`{node.op}` in line {node.cursor.location.line}"
            for root in one.targets if isinstance(one, Pointer) else ():
                if isinstance(root, tuple):
                    self._set(root, ANY)
                elif root in self.contents:
                    self.contents[root] = ANY
        return self._unknown(node.type)


def _joined(one: Any, other: Any, join: Callable[[Span, Span], Span]) -> Any:
    """Two numbers joined, or the distances of two pointers; of other values the first."""
    if isinstance(one, Span) and isinstance(other, Span):
        return join(one, other)
    if isinstance(one, Pointer) and isinstance(other, Pointer):
        roots = one.targets | other.targets
        return Pointer({at: join(one.targets.get(at, NOWHERE), other.targets.get(at, NOWHERE)) for at in roots})
    return one


def _chosen(mask: Any, one: Any, other: Any) -> Any:
    """`one` for the threads of the mask."""
    return _joined(one, other, lambda a, b: choose(mask, a, b))


def _merged(mask: Any, one: Any, other: Any) -> Any:
    """`one`, and for the threads of the mask `other` as well."""
    return _joined(one, other, lambda a, b: choose(mask, hull(a, b), a) if np.any(mask) else a)


def _assigned(node: Node) -> Iterator[Symbol]:
    """The variables that a part of the source may change, but for those that pointers name."""
    for one in node.walk():
        given = one.kids[:1] if one.what in ("assign", "count", "address") else []
        if one.what in ("call", "construct"):
            known = one.symbol is not NOTHING and not one.op.startswith("operator")
            given = [at for place, at in enumerate(one.kids, -1) if not known or place in (-1, *one.symbol.references)]
        for at in given:
            yield from _variables(at)
        if one.what == "variable":
            yield one.symbol


def _variables(node: Node) -> Iterator[Symbol]:
    """The variables in which the value of an expression may lie: none where a pointer says the place."""
    inside = node.kids[:1] if node.what in ("index", "member", "cast") else node.kids
    if node.what == "name":
        yield node.symbol
    pointed = node.what == "deref" or (node.what != "cast" and any(one.type.what == "pointer" for one in inside))
    for one in () if pointed else inside:
        yield from _variables(one)


def _leaves(node: Node) -> Iterator[Node]:
    if node.what == "list":
        for one in node.kids:
            yield from _leaves(one)
    else:
        yield node


def _variable(pointer: Any) -> Any:
    """The variable that a pointer points to; None for others."""
    roots = list(pointer.targets) if isinstance(pointer, Pointer) else []
    return roots[0] if len(roots) == 1 and isinstance(roots[0], tuple) else None


def _with_sides(body: Node) -> Node:
    """A kernel's body with `if (a) { b; return; } c` as `if (a) { b; } else { c }`, whose sides may store alike."""
    for at, one in enumerate(body.kids):
        if one.what != "if" or len(one.kids) != 2:
            continue
        taken = one.kids[1].kids if one.kids[1].what == "block" else one.kids[1:]
        if taken and taken[-1].what == "return":
            then = replace(one.kids[1], what="block", kids=taken[:-1])
            sides = [one.kids[0], then, _with_sides(replace(body, kids=body.kids[at + 1 :]))]
            return replace(body, kids=[*body.kids[:at], replace(one, kids=sides)])
    return body


_STATEMENTS: dict[str, Callable[[Run, Node], Any]] = {
    **dict.fromkeys(("block", "declaration"), lambda run, node: list(map(run.statement, node.kids))),
    **dict.fromkeys(LOOPS, Run._loop),
    **dict.fromkeys(("return", "break", "continue"), Run._leave),
    **dict.fromkeys(("case", "default", "label"), lambda run, node: run.statement(node.kids[-1])),
    **dict.fromkeys(("goto", "asm", "cxx_try", "for each"), Run._jump),
    **{"variable": Run._declare, "if": Run._if, "switch": Run._switch, "nothing": lambda run, node: None},
}
_EXPRESSIONS: dict[str, Callable[[Run, Node], Any]] = {
    **dict.fromkeys(("name", "member", "index", "deref", "this"), Run._load),
    **{"builtin": Run._builtin, "lambda": lambda run, node: node, "cast": Run._cast, "address": Run._address},
    **{"count": Run._count, "unary": Run._unary, "binary": Run._binary, "assign": Run._assign},
    **{"choice": Run._choice, "call": Run._call, "construct": Run._construct},
}
