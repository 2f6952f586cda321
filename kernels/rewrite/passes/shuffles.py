"""A tree of additions or maxima in shared memory becomes exchanges between the lanes of a warp.

The tree halves the active threads step by step, with a barrier after each: eight barriers for 256 threads. Here each
warp combines its 32 values in registers, one value for each warp goes through shared memory, and three barriers are
left (M. Harris, "Optimizing Parallel Reduction in CUDA", and the CUDA C++ Programming Guide, "Warp Shuffle Functions").

A tree is recognised by what it does, however its steps are spelled (loops, functions, unrolled, with any strides): its
integer arithmetic is run, one statement after the other for all threads of a block, and an element of the array is the
set of the threads whose values it combines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tunesmith.kernels.reader.run import Pointer, Run, Stopped
from tunesmith.kernels.reader.syntax import LOOPS, Kind, Node, Symbol
from tunesmith.kernels.rewrite.edits import Edit, Span
from tunesmith.kernels.rewrite.facts import Facts
from tunesmith.kernels.rewrite.forms import ZERO, Form
from tunesmith.kernels.rewrite.passes.record import Change, Pass, Refused, Subject, require, required
from tunesmith.kernels.rewrite.rounds import key
from tunesmith.kernels.rewrite.sharing import reads_thread

_EXTREMES = frozenset({"max", "min", "fmax", "fmin", "fmaxf", "fminf", "__hmax", "__hmin"})
_REPEATABLE = frozenset({"&", "|", *_EXTREMES})
"""Combinations in which a value may occur twice."""
_STEPS = {"block", "declaration", "variable", "if", "for", "while", "call", "assign", "count", "nothing"}
_PARTS = _STEPS | {"literal", "builtin", "name", "cast", "unary", "binary", "index", "deref", "address", "choice"}
"""Statements of a combination, and their parts."""


class _Lockstep(Run):
    """A block of `threads` threads along x, each of which has its own value in its element of `array`. elements: by
    place and thread, whether the element has the thread's value in it; how: two values a and b become one, in C, empty
    before the first; meetings: how many barriers all have passed. A value of elements is an array, a row of booleans
    for each thread. All methods raise `Refused` or `Stopped` for anything else than a combination."""

    def __init__(self, facts: Facts, array: Symbol, threads: int) -> None:
        lowering = facts.syntax.lowering
        super().__init__(lowering, lowering.symbol(facts.syntax.cursor), {}, (1,), (threads,))
        self.facts, self.array, self.element = facts, array, array.type.element or array.type
        self.elements = np.eye(threads, dtype=bool)
        self.how, self.meetings = "", 0
        self._tests = set[Node]()

    def statement(self, node: Node) -> None:
        """As of `Run`."""
        if node in self.facts.barriers and self.may.any():
            require(self.may.all() or "warp" in node.op)
            self.meetings += bool(self.may.all())
            return
        require(node.what in _STEPS and (node.what != "call" or self.facts.function(node) is not None))
        if node.what in ("for", "while"):
            self._tests.add(node.kids[0 if node.what == "while" else 1])
        super().statement(node)

    def truth(self, node: Node) -> tuple[Any, Any]:
        """As of `Run`: known for each thread, and for a loop the same for all."""
        found = super().truth(node)
        true, maybe = (np.broadcast_to(one, self.count)[self.may] for one in found)
        require(np.array_equal(true, maybe) and (node not in self._tests or true.all() or not true.any()))
        return found

    def access(self, pointer: Pointer, kind_: Kind, **how: Any) -> Any:
        """As of `Run`: of one element of the array, all of which are known."""
        offset, value, size = pointer.targets.get(self.array), how.get("value"), self.element.size
        require(offset is not None and len(pointer.targets) == 1 and kind_.size == size and offset.known)
        bytes_ = np.broadcast_to(0 if offset is None else offset.low, self.count)[self.may]
        places = bytes_ // size
        require(((bytes_ % size == 0) & (places >= 0) & (places < self.count)).all())
        if how.get("writes"):
            require(isinstance(value, np.ndarray) and len(np.unique(places)) == len(places))
            self.elements[places] = value[self.may] if isinstance(value, np.ndarray) else False
        found = np.zeros_like(self.elements)
        found[self.may] = self.elements[places]
        return found

    def operated(self, op: str, a: Any, b: Any, type_: Kind) -> Any:
        """As of `Run`; or two elements combined."""
        if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
            require(not isinstance(a, np.ndarray) and not isinstance(b, np.ndarray))
            return super().operated(op, a, b, type_)
        require(op in ("+", "*", "&", "|", "^") or op in _EXTREMES)
        how = f"{op}(a, b)" if op.lstrip("_").isalpha() else f"a {op} b"
        require(how == (self.how or how) and (op in _REPEATABLE or not (a & b)[self.may].any()))
        self.how = how
        return self._convert(a | b, type_)

    def _plain(self, node: Node, wanted: Kind | None = None) -> Any:
        require(node.what in _PARTS and (node.what != "builtin" or node.op.startswith(("threadIdx", "blockDim"))))
        if node.what != "choice":
            return super()._plain(node, wanted)
        (test, *sides), larger = node.kids, ">" in node.kids[0].op
        compared, chosen = [key(one) for one in test.kids], [key(one) for one in sides]
        require(test.op in ("<", ">", "<=", ">=") and chosen in (compared, compared[::-1]))
        one, other = map(self.value, sides)
        return self.operated("max" if (chosen == compared) == larger else "min", one, other, node.type)

    def _known(self, node: Node, given: Sequence[Node]) -> Any:
        require(node.op in _EXTREMES and len(given) == 2)
        one, other = map(self.value, given)
        return self.operated(node.op, one, other, node.type)

    def _convert(self, value: Any, into: Kind) -> Any:
        if not isinstance(value, np.ndarray):
            return super()._convert(value, into)
        # Whole numbers may be wider meanwhile.
        same = into.size == self.element.size or (into.what == "number" and into.size > self.element.size)
        require(into.what == self.element.what and into.least <= self.element.least and same)
        return value

    def _set(self, place: Any, value: Any, fresh: bool = False) -> None:
        before = self.env.get(place)
        if isinstance(value, np.ndarray) and isinstance(before, np.ndarray):
            value = np.where(self.may[:, None], value, before)
        super()._set(place, value, fresh or isinstance(value, np.ndarray))

    def _global(self, symbol: Symbol, node: Node) -> Any:
        made = symbol.declared if self.facts.is_once(symbol) else None
        found = super()._global(symbol, node) if made is None else self.value(made.kids[-1])
        # An element may have been another one when it was read.
        require(not isinstance(found, np.ndarray))
        return found


_Tree = tuple[list[Node], Symbol, str]
"""Neighbouring statements of a block, the array in shared memory whose first element has all values in the end, and how
two values a and b become one, in C."""


def _in_tree(node: Node, tree: _Tree) -> bool:
    return any(one.holds(node) for one in tree[0])


def _trees(subject: Subject) -> list[_Tree]:
    facts, threads = subject.facts, subject.extent("x")
    require(facts.shared and facts.barriers, "there is no tree of additions or maxima in shared memory")
    require(subject.work.why, "trees in shared memory stay: the size of a block is free")
    whole = threads.isdigit() and 32 <= int(threads) <= 1024 and int(threads) & (int(threads) - 1) == 0
    if not whole or (subject.extent("y"), subject.extent("z")) != ("1", "1"):
        why = f"the block of {' x '.join(subject.launch.block)} threads is not a power of two from 32 to 1024 along x"
        raise Refused(f"trees in shared memory stay: {why}")
    found = list[_Tree]()
    for array in facts.shared:
        element = array.type.element
        if array.type.what == "array" and element is not None and element.what in ("number", "float"):
            for block in facts.body.walk():
                if block.what == "block" and not any(_in_tree(block, one) for one in found):
                    found += _in_block(subject, block, array, int(threads))
    for _, array, _ in found:
        _require_first(subject, array, found)
    return required(found, "no statements combine the values that a block's threads have in shared memory in its first")


def _in_block(subject: Subject, block: Node, array: Symbol, threads: int) -> list[_Tree]:
    """The longest trees of neighbouring statements."""
    found, begin, kids = list[_Tree](), 0, block.kids
    while begin < len(kids):
        first, tree = kids[begin], None
        if first.what in ("for", "while", "if", "call", "block", "assign", "declaration") and not first.fixed:
            steps = _Lockstep(subject.facts, array, threads)
            for end in range(begin, len(kids)):
                try:
                    steps.statement(kids[end])
                except (Stopped, Refused):
                    break
                whole = steps.elements[0].all()
                if whole and steps.meetings and _is_left(subject, kids[begin : end + 1]):
                    tree = kids[begin : end + 1], array, steps.how
        found += [tree] if tree is not None else []
        begin += 1 if tree is None else len(tree[0])
    return found


def _is_left(subject: Subject, statements: list[Node]) -> bool:
    """Whether nothing behind the statements uses a variable that they declare or change."""
    facts = subject.facts
    made = {one for each in statements for one in (*facts.declared_in(each), *facts.changed_in(each))}
    made = {one for one in made if not one.shared and not facts.counts_anew(one)}
    later = (one for one in facts.body.walk() if one.what == "name" and one.start >= statements[-1].end)
    return not any(one.symbol in made for one in later) and not statements[-1].fixed


def _require_first(subject: Subject, array: Symbol, trees: list[_Tree]) -> None:
    """Raises `Refused` for a use of the array that needs more than its first element."""
    facts, thread = subject.facts, Form.atom("threadIdx.x")
    own = [one for one in facts.of(array) if not any(_in_tree(one.node, tree) for tree in trees)]
    mine = [statements for statements, of, _ in trees if of is array]
    again = len(mine) > 1 or mine[0][0].inside(LOOPS)
    for name in facts.uses(array):
        if any(_in_tree(name, tree) for tree in trees):
            continue
        access = next((one for one in own if one.node.holds(name)), None)
        line = f"line {facts.syntax.line(name)} has `{facts.text(name.statement)[:60]}`"
        stays = f"the tree in {array.name} stays: {line}, which"
        before = not again and name.start < mine[0][0].start
        plain = access is not None and not access.atomic and not (access.read and access.written and not before)
        places = ([thread] if before or (access is not None and access.written) else []) + (
            [ZERO] if access is not None and not access.written else []
        )
        if access is None or not plain or access.index not in places:
            raise Refused(f"{stays} needs more than its first element")
        tests = facts.conditions(access.node)[0] if access.written and again else []
        alike = not any(reads_thread(facts, one.node) for one in tests)
        require(alike, f"{stays} keeps what some threads have from before")


def _exchanged(subject: Subject, trees: list[_Tree]) -> Change:
    name, made = subject.name("SHUFFLES"), Change(kit=("shuffles",))
    for statements, array, how in trees:
        start, end = statements[0].start, subject.facts.syntax.end(statements[-1])
        join = f"[]({array.element} a, {array.element} b) {{ return {how}; }}"
        call = f"tunesmith::combine<{subject.extent('x')}>({array.name}, {join});"
        made.edits.append(Edit(start, end, (f"\n#if {name}\n{call}\n#else\n", Span(start, end), "\n#endif\n")))
    made.parameter(name, (False, True), "whether warps combine values by shuffles")
    return made


SHUFFLES = Pass("shuffles", _trees, _exchanged)
