"""A tree of additions or maxima in shared memory becomes exchanges between the lanes of a warp.

The tree halves the active threads step by step, with a barrier after each: eight barriers for 256 threads. Here each
warp combines its 32 values in registers, one value for each warp goes through shared memory, and three barriers are
left (M. Harris, "Optimizing Parallel Reduction in CUDA", and the CUDA C++ Programming Guide, "Warp Shuffle Functions").

A tree is recognised by what it does, however its steps are spelled (loops, functions, unrolled, with any strides): its
integer arithmetic is run, one statement after the other for all threads of a block, and an element of the array is the
set of the threads whose values it combines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunesmith.kernels.reader.syntax import LOOPS, Kind, Node, Symbol
from tunesmith.kernels.rewrite.edits import Edit, Span
from tunesmith.kernels.rewrite.facts import Facts
from tunesmith.kernels.rewrite.forms import ZERO, Form
from tunesmith.kernels.rewrite.passes.record import Change, Pass, Plan, Refused, Subject
from tunesmith.kernels.rewrite.rounds import key
from tunesmith.kernels.rewrite.sharing import Fixed, reads_thread

_MOST_ROUNDS = 64
_EXTREMES = frozenset({"max", "min", "fmax", "fmin", "fmaxf", "fminf", "__hmax", "__hmin"})
_REPEATABLE = frozenset({"&", "|", *_EXTREMES})
"""Combinations in which a value may occur twice."""
_WHOLE: Mapping[str, np.ufunc] = {
    **{"+": np.add, "-": np.subtract, "*": np.multiply, "<<": np.left_shift, ">>": np.right_shift},
    **{"<": np.less, ">": np.greater, "<=": np.less_equal, ">=": np.greater_equal, "==": np.equal, "!=": np.not_equal},
    **{"&": np.bitwise_and, "|": np.bitwise_or, "^": np.bitwise_xor, "/": np.floor_divide, "%": np.mod},
    **{"&&": np.logical_and, "||": np.logical_or},
}
_Values = NDArray[Any]
"""A number for each active thread (of int64), or an element for each: a row of booleans, by thread."""


class _UnknownStep(Exception):
    """A statement that is no step of a combination."""


def _require(holds: object) -> None:
    if not holds:
        raise _UnknownStep


class _Lockstep:
    """A block of `threads` threads along x, each of which has its own value in its element of `array`. elements: by
    place and thread, whether the element has the thread's value in it; how: two values a and b become one, in C, empty
    before the first; meetings: how many barriers all have passed."""

    def __init__(self, facts: Facts, array: Symbol, threads: int) -> None:
        self.facts, self.array, self.threads = facts, array, threads
        self.elements = np.eye(threads, dtype=bool)
        self.how, self.meetings = "", 0
        self._variables: dict[Symbol, _Values] = {}
        self._having: dict[Symbol, NDArray[np.bool_]] = {}
        self._within: list[Node] = []

    @property
    def is_whole(self) -> bool:
        """Whether the first element combines the values of all threads."""
        return bool(self.elements[0].all())

    def run(self, node: Node, active: NDArray[np.int64] | None = None) -> None:
        """Runs a statement for the active threads, by number. Raises `_UnknownStep` for one that does anything else."""
        threads = np.arange(self.threads) if active is None else active
        if not threads.size:
            return
        if node.what == "block":
            for one in node.kids:
                self.run(one, threads)
        elif node in self.facts.barriers:
            _require(len(threads) == self.threads or "warp" in node.op)
            self.meetings += len(threads) == self.threads
        elif node.what == "declaration":
            for one in node.kids:
                _require(one.what == "variable" and not one.symbol.shared and one.kids)
                self._set(one.symbol, threads, self._fitted(self._value(one.kids[-1], threads), one.type))
        elif node.what == "if":
            chosen = self._number(node.kids[0], threads) != 0
            for part, mine in zip(node.kids[1:], (chosen, ~chosen), strict=False):
                self.run(part, threads[mine])
        elif node.what in ("for", "while"):
            self._loop(node, threads)
        elif node.what == "call" and (inside := self.facts.function(node)) is not None:
            _require(len(node.symbol.arguments) == len(node.kids) - 1 and inside not in self._within)
            for symbol, given in zip(node.symbol.arguments, node.kids[1:], strict=True):
                self._set(symbol, threads, self._value(given, threads))
            self._within.append(inside)
            self.run(inside, threads)
            self._within.pop()
        elif node.what in ("assign", "count"):
            self._assign(node, threads)
        else:
            _require(node.what == "nothing")

    def _loop(self, node: Node, threads: NDArray[np.int64]) -> None:
        start, test, update = node.kids[:3] if node.what == "for" else (None, node.kids[0], None)
        if start is not None:
            self.run(start, threads)
        for _ in range(_MOST_ROUNDS):
            goes_on = self._number(test, threads) != 0
            if not goes_on.all():
                _require(not goes_on.any())
                return
            self.run(node.kids[-1], threads)
            if update is not None:
                self.run(update, threads)
        raise _UnknownStep

    def _set(self, symbol: Symbol, threads: NDArray[np.int64], values: _Values) -> None:
        made = self._variables.get(symbol)
        if made is None or made.shape[1:] != values.shape[1:]:
            made = self._variables[symbol] = np.zeros((self.threads, *values.shape[1:]), values.dtype)
            self._having[symbol] = np.zeros(self.threads, dtype=bool)
        made[threads], self._having[symbol][threads] = values, True

    def _assign(self, node: Node, threads: NDArray[np.int64]) -> None:
        """Reads for all threads, then writes for all."""
        target, symbol = node.kids[0], node.kids[0].symbol
        value = self._value(node.kids[1], threads) if node.what == "assign" else np.ones_like(threads)
        if node.op != "=":
            op = node.op[0] if node.what == "count" else node.op[:-1]
            value = self._together(op, self._value(target, threads), value)
        value = self._fitted(value, target.type)
        if target.what == "name" and symbol.what == "variable" and not symbol.shared:
            self._set(symbol, threads, value)
            return
        places = self._place(target, threads)
        _require(value.ndim == 2 and len(np.unique(places)) == len(places))
        self.elements[places] = value

    def _place(self, node: Node, threads: NDArray[np.int64]) -> NDArray[np.int64]:
        """The element of the array that `p[i]` or `*p` is, for each active thread."""
        _require(node.what in ("index", "deref"))
        found = np.sum([self._number(one, threads) for one in node.kids], axis=0)
        pointers = [one for one in node.kids if one.type.what in ("pointer", "array")]
        _require(len(pointers) == 1 and ((found >= 0) & (found < self.threads)).all())
        return np.asarray(found)

    def _number(self, node: Node, threads: NDArray[np.int64]) -> NDArray[np.int64]:
        found = self._value(node, threads)
        _require(found.ndim == 1)
        return found.astype(np.int64)

    def _value(self, node: Node, threads: NDArray[np.int64]) -> _Values:
        """What an expression is for each active thread; a pointer is the place to which it points."""
        kids, symbol = node.kids, node.symbol
        if isinstance(node.value, int):
            return np.full_like(threads, node.value)
        if node.what == "builtin":
            sizes = {"blockDim.x": self.threads, "blockDim.y": 1, "blockDim.z": 1, "threadIdx.y": 0, "threadIdx.z": 0}
            if node.op in sizes:
                return np.full_like(threads, sizes[node.op])
            _require(node.op == "threadIdx.x")
            return threads
        if node.what == "name":
            if symbol is self.array:
                return np.zeros_like(threads)
            if symbol in self._variables and self._having[symbol][threads].all():
                return self._variables[symbol][threads]
            _require(self.facts.is_once(symbol) and symbol.declared is not None and symbol.type.what == "number")
            assert symbol.declared is not None
            return self._value(symbol.declared.kids[-1], threads)
        if node.what == "cast" and kids:
            return self._fitted(self._value(kids[-1], threads), node.type)
        if node.what == "unary" and node.op in "!-":
            number = self._number(kids[0], threads)
            return self._fitted(-number, node.type) if node.op == "-" else (number == 0).astype(np.int64)
        if node.what == "binary":
            both = [self._value(one, threads) for one in kids]
            if node.op[0] in "<>=!" and any(one.type.least >= 0 and one.type.what == "number" for one in kids):
                # A negative number becomes a large one.
                _require(all(one.ndim == 2 or (one >= 0).all() for one in both))
            return self._fitted(self._together(node.op, *both), node.type)
        if node.what in ("index", "deref"):
            return self.elements[self._place(node, threads)]
        if node.what == "address":
            return self._place(kids[0], threads)
        if node.what == "call" and node.op in _EXTREMES and len(kids) == 3:
            return self._together(node.op, *(self._value(one, threads) for one in kids[1:]))
        if node.what == "choice" and kids[0].what == "binary" and kids[0].op in ("<", ">", "<=", ">="):
            sides, chosen = [key(one) for one in kids[0].kids], [key(one) for one in kids[1:]]
            if chosen in (sides, sides[::-1]):
                larger = (chosen == sides) == (">" in kids[0].op)
                return self._together("max" if larger else "min", *(self._value(one, threads) for one in kids[1:]))
        raise _UnknownStep

    def _fitted(self, values: _Values, type_: Kind) -> _Values:
        """Values in a variable of a type: whole numbers wrap, and elements keep theirs."""
        if values.ndim == 1 and type_.what == "number" and type_.size:
            return values.astype(f"{'i' if type_.least < 0 else 'u'}{type_.size}").astype(np.int64)
        element = self.array.type.element
        same = element is not None and (type_.what, type_.size) == (element.what, element.size)
        _require(type_.what in ("pointer", "array") if values.ndim == 1 else same)
        return values

    def _together(self, op: str, left: _Values, right: _Values) -> _Values:
        if left.ndim == right.ndim == 1:
            _require(op in _WHOLE)
            _require(op not in ("/", "%") or ((left >= 0) & (right > 0)).all())
            _require(op not in ("<<", ">>") or ((right >= 0) & (right < 32)).all())
            return np.asarray(_WHOLE[op](left, right)).astype(np.int64)
        _require(left.ndim == right.ndim and (op in ("+", "*", "&", "|", "^") or op in _EXTREMES))
        how = f"{op}(a, b)" if op.lstrip("_").isalpha() else f"a {op} b"
        _require(how == (self.how or how) and (op in _REPEATABLE or not np.logical_and(left, right).any()))
        self.how = how
        return np.logical_or(left, right)


@dataclass(frozen=True, slots=True)
class _Tree:
    """statements: neighbours in a block; array: in shared memory, whose first element has all values in the end; how:
    two values a and b become one, in C."""

    statements: list[Node]
    array: Symbol
    how: str

    def holds(self, node: Node) -> bool:
        return any(one.holds(node) for one in self.statements)


def _trees(subject: Subject) -> list[_Tree] | Refused:
    facts, threads = subject.facts, subject.block("x")
    if not facts.shared or not facts.barriers:
        return Refused("there is no tree of additions or maxima in shared memory")
    if not isinstance(subject.work, Fixed):
        return Refused("trees in shared memory stay: the size of a block is free")
    whole = threads.isdigit() and 32 <= int(threads) <= 1024 and int(threads) & (int(threads) - 1) == 0
    if not whole or (subject.block("y"), subject.block("z")) != ("1", "1"):
        why = f"the block of {' x '.join(subject.launch.block)} threads is not a power of two from 32 to 1024 along x"
        return Refused(f"trees in shared memory stay: {why}")
    found = list[_Tree]()
    for array in facts.shared:
        element = array.type.element
        if array.type.what == "array" and element is not None and element.what in ("number", "float"):
            for block in facts.body.walk():
                if block.what == "block" and not any(one.holds(block) for one in found):
                    found += _in_block(subject, block, array, int(threads))
    for tree in found:
        if why := _used(subject, tree.array, found):
            return Refused(f"the tree in {tree.array.name} stays: {why}")
    return found or Refused(
        "no statements combine the values that a block's threads have in shared memory in its first"
    )


def _in_block(subject: Subject, block: Node, array: Symbol, threads: int) -> list[_Tree]:
    """The longest trees of neighbouring statements."""
    found, begin, kids = list[_Tree](), 0, block.kids
    while begin < len(kids):
        first, tree = kids[begin], None
        if first.what in ("for", "while", "if", "call", "block", "assign", "declaration") and not first.fixed:
            steps = _Lockstep(subject.facts, array, threads)
            for end in range(begin, len(kids)):
                try:
                    steps.run(kids[end])
                except _UnknownStep:
                    break
                if steps.is_whole and steps.meetings and _is_left(subject, kids[begin : end + 1]):
                    tree = _Tree(kids[begin : end + 1], array, steps.how)
        found += [tree] if tree is not None else []
        begin += 1 if tree is None else len(tree.statements)
    return found


def _is_left(subject: Subject, statements: list[Node]) -> bool:
    """Whether nothing behind the statements uses a variable that they declare or change."""
    facts = subject.facts
    made = {one for each in statements for one in (*facts.declared_in(each), *facts.changed_in(each))}
    made = {one for one in made if not one.shared and not facts.counts_anew(one)}
    later = (one for one in facts.body.walk() if one.what == "name" and one.start >= statements[-1].end)
    return not any(one.symbol in made for one in later) and not statements[-1].fixed


def _used(subject: Subject, array: Symbol, trees: list[_Tree]) -> str:
    """What else the kernel does with the array that needs more than its first element, as a clause; else empty."""
    facts, thread = subject.facts, Form.atom("threadIdx.x")
    own = [one for one in facts.of(array) if not any(tree.holds(one.node) for tree in trees)]
    mine = [tree for tree in trees if tree.array is array]
    again = len(mine) > 1 or mine[0].statements[0].inside(LOOPS)
    for name in facts.uses(array):
        if any(tree.holds(name) for tree in trees):
            continue
        access = next((one for one in own if one.node.holds(name)), None)
        line = f"line {facts.syntax.line(name)} has `{facts.text(name.statement)[:60]}`"
        before = not again and name.start < mine[0].statements[0].start
        plain = access is not None and not access.atomic and not (access.read and access.written and not before)
        places = ([thread] if before or (access is not None and access.written) else []) + (
            [ZERO] if access is not None and not access.written else []
        )
        if access is None or not plain or access.index not in places:
            return f"{line}, which needs more than its first element"
        tests = facts.conditions(access.node)[0] if access.written and again else []
        if any(reads_thread(facts, one.node) for one in tests):
            return f"{line}, which keeps what some threads have from before"
    return ""


def _exchanged(subject: Subject, trees: list[_Tree], plan: Plan) -> Change:
    name, made = subject.name("SHUFFLES"), Change(kit=("shuffles",))
    for tree in trees:
        start, last = tree.statements[0].start, tree.statements[-1]
        code = subject.facts.syntax.code
        end = last.end if code[last.end - 1 : last.end] in (b"}", b";") else code.index(b";", last.end) + 1
        element = tree.array.element
        join = f"[]({element} a, {element} b) {{ return {tree.how}; }}"
        call = f"tunesmith::combine<{subject.block('x')}>({tree.array.name}, {join});"
        made.edits.append(Edit(start, end, (f"\n#if {name}\n{call}\n#else\n", Span(start, end), "\n#endif\n")))
    made.parameter(name, (False, True), "whether warps combine values by shuffles")
    return made


SHUFFLES = Pass("shuffles", _trees, _exchanged)
