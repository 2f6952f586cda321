"""What statements do to an array in shared memory, for all threads of a block at once: whose values an element has.

Runs integer arithmetic as it is written, one statement after the other for all threads. Elements are sets of the
threads whose values they put together, however the steps are spelled: loops, functions, unrolled, with any strides.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tunesmith.kernels.reader.syntax import Kind, Node, Symbol
from tunesmith.kernels.rewrite.facts import Facts
from tunesmith.kernels.rewrite.rounds import key

_MOST_ROUNDS = 64
_EXTREMES = frozenset({"max", "min", "fmax", "fmin", "fmaxf", "fminf", "__hmax", "__hmin"})
_REPEATABLE = frozenset({"&", "|", *_EXTREMES})
"""Combinations in which a value may occur twice."""
_WHOLE: Mapping[str, Callable[[int, int], int]] = {
    **{"+": operator.add, "-": operator.sub, "*": operator.mul, "<<": operator.lshift, ">>": operator.rshift},
    **{"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge, "==": operator.eq, "!=": operator.ne},
    **{"&": operator.and_, "|": operator.or_, "^": operator.xor, "/": operator.floordiv, "%": operator.mod},
    **{"&&": lambda a, b: int(bool(a and b)), "||": lambda a, b: int(bool(a or b))},
}


class UnknownStep(Exception):
    """A statement that is no step of a combination."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """The threads whose values are put together, as bits."""

    bits: int


@dataclass(frozen=True, slots=True)
class _Pointer:
    at: int


_Value = int | _Parts | _Pointer


class Lockstep:
    """A block of `threads` threads along x, each of which has its own value in its element of `array`. elements: by
    their place, what they hold now; how: two values a and b become one, in C, empty before the first; meetings: how
    many barriers all have passed."""

    def __init__(self, facts: Facts, array: Symbol, threads: int) -> None:
        self.facts, self.array, self.threads = facts, array, threads
        self.elements = {thread: _Parts(1 << thread) for thread in range(threads)}
        self.how, self.meetings = "", 0
        self._variables: dict[Symbol, dict[int, _Value]] = {}
        self._everyone = list(range(threads))
        self._within: list[Node] = []

    @property
    def is_whole(self) -> bool:
        """Whether the first element puts the values of all threads together."""
        return self.elements.get(0) == _Parts((1 << self.threads) - 1)

    def run(self, node: Node, active: list[int] | None = None) -> None:
        """Runs a statement. Raises `UnknownStep` for one that does anything else."""
        threads = self._everyone if active is None else active
        if node.what == "block":
            for one in node.kids:
                self.run(one, threads)
        elif node in self.facts.barriers:
            if len(threads) < self.threads and "warp" not in node.op:
                raise UnknownStep
            self.meetings += len(threads) == self.threads
        elif node.what == "declaration":
            for one in node.kids:
                if one.symbol is None or one.symbol.shared or not one.kids:
                    raise UnknownStep
                self._variables[one.symbol] = {
                    thread: self._fitted(self._value(one.kids[-1], thread), one.type) for thread in threads
                }
        elif node.what == "if":
            chosen = {thread for thread in threads if self._number(node.kids[0], thread)}
            for part, mine in zip(node.kids[1:], (True, False), strict=False):
                self.run(part, [one for one in threads if (one in chosen) == mine])
        elif node.what in ("for", "while"):
            self._loop(node, threads)
        elif node.what == "call" and (inside := self.facts.function(node)) is not None and node.symbol is not None:
            if len(node.symbol.arguments) != len(node.kids) - 1 or inside in self._within:
                raise UnknownStep
            for symbol, given in zip(node.symbol.arguments, node.kids[1:], strict=True):
                self._variables[symbol] = {thread: self._value(given, thread) for thread in threads}
            self._within.append(inside)
            self.run(inside, threads)
            self._within.pop()
        elif node.what in ("assign", "count"):
            self._assign(node, threads)
        elif node.what != "nothing":
            raise UnknownStep

    def _loop(self, node: Node, threads: list[int]) -> None:
        start, test, update = node.kids[:3] if node.what == "for" else (None, node.kids[0], None)
        if start is not None:
            self.run(start, threads)
        for _ in range(_MOST_ROUNDS):
            goes_on = {bool(self._number(test, thread)) for thread in threads}
            if goes_on != {True}:
                if len(goes_on) > 1:
                    raise UnknownStep
                return
            self.run(node.kids[-1], threads)
            if update is not None:
                self.run(update, threads)
        raise UnknownStep

    def _assign(self, node: Node, threads: list[int]) -> None:
        """Reads for all threads, then writes for all."""
        target, found = node.kids[0], dict[int, _Value]()
        for thread in threads:
            value: _Value = self._value(node.kids[1], thread) if node.what == "assign" else 1
            if node.op != "=":
                op = node.op[0] if node.what == "count" else node.op[:-1]
                value = self._together(op, self._value(target, thread), value)
            found[thread] = self._fitted(value, target.type)
        symbol = target.symbol
        if target.what == "name" and symbol is not None and symbol.what == "variable" and not symbol.shared:
            self._variables.setdefault(symbol, {}).update(found)
            return
        places = {thread: self._value(Node("address", 0, 0, target.type, [target]), thread) for thread in threads}
        if any(not isinstance(one, _Parts) for one in found.values()) or len(set(places.values())) < len(places):
            raise UnknownStep
        self.elements |= {
            place.at: value
            for thread, place in places.items()
            if isinstance(place, _Pointer)
            for value in [found[thread]]
            if isinstance(value, _Parts)
        }

    def _number(self, node: Node, thread: int) -> int:
        found = self._value(node, thread)
        if not isinstance(found, int):
            raise UnknownStep
        return found

    def _value(self, node: Node, thread: int) -> _Value:
        if isinstance(node.value, int):
            return node.value
        kids, symbol = node.kids, node.symbol
        if node.what == "builtin":
            known = {"threadIdx.x": thread, "blockDim.x": self.threads, "threadIdx.y": 0, "threadIdx.z": 0}
            known |= {"blockDim.y": 1, "blockDim.z": 1}
            if node.op in known:
                return known[node.op]
        elif node.what == "name" and symbol is not None:
            if symbol is self.array:
                return _Pointer(0)
            if thread in self._variables.get(symbol, {}):
                return self._variables[symbol][thread]
            if self.facts.is_once(symbol) and symbol.declared is not None and symbol.type.what == "number":
                return self._value(symbol.declared.kids[-1], thread)
        elif node.what == "cast" and kids:
            return self._fitted(self._value(kids[-1], thread), node.type)
        elif node.what == "unary" and node.op in "!-":
            number = self._number(kids[0], thread)
            return self._fitted(-number, node.type) if node.op == "-" else int(not number)
        elif node.what == "binary":
            if node.op in ("&&", "||") and bool(self._number(kids[0], thread)) == (node.op == "||"):
                return int(node.op == "||")
            both = self._value(kids[0], thread), self._value(kids[1], thread)
            unsigned = any(one.type.least >= 0 and one.type.what == "number" for one in kids)
            if node.op[0] in "<>=!" and unsigned and any(isinstance(one, int) and one < 0 for one in both):
                raise UnknownStep  # a negative number becomes a large one
            return self._fitted(self._together(node.op, *both), node.type)
        elif node.what in ("index", "deref"):
            place = self._value(Node("address", 0, 0, node.type, [node]), thread)
            if isinstance(place, _Pointer) and place.at in self.elements:
                return self.elements[place.at]
        elif node.what == "address" and kids[0].what in ("index", "deref"):
            whole = [self._value(one, thread) for one in kids[0].kids]
            return self._together("+", whole[0], whole[1]) if len(whole) == 2 else whole[0]
        elif node.what == "call" and node.op in _EXTREMES and len(kids) == 3:
            return self._together(node.op, self._value(kids[1], thread), self._value(kids[2], thread))
        elif node.what == "choice" and kids[0].what == "binary" and kids[0].op in ("<", ">", "<=", ">="):
            left, right = (key(one) for one in kids[0].kids)
            larger = (key(kids[1]), key(kids[2])) == ((left, right) if ">" in kids[0].op else (right, left))
            if {key(kids[1]), key(kids[2])} == {left, right}:
                chosen = "max" if larger else "min"
                return self._together(chosen, self._value(kids[1], thread), self._value(kids[2], thread))
        raise UnknownStep

    def _fitted(self, value: _Value, type_: Kind) -> _Value:
        """A value in a variable of a type: whole numbers wrap, and elements keep theirs."""
        if isinstance(value, int) and type_.what == "number" and type_.size:
            bits = 8 * type_.size
            value %= 1 << bits
            return value - (1 << bits) if type_.least < 0 and value >> (bits - 1) else value
        element = self.array.type.element
        same = element is not None and (type_.what, type_.size) == (element.what, element.size)
        if isinstance(value, _Pointer) or (isinstance(value, _Parts) and same):
            return value
        raise UnknownStep

    def _together(self, op: str, left: _Value, right: _Value) -> _Value:
        if isinstance(left, int) and isinstance(right, int):
            odd = (op in "/%" and (left < 0 or right <= 0)) or (op in ("<<", ">>") and not 0 <= right < 32)
            if op not in _WHOLE or odd:
                raise UnknownStep
            return int(_WHOLE[op](left, right))
        if op == "+" and isinstance(left, _Pointer) and isinstance(right, int):
            return _Pointer(left.at + right)
        if not isinstance(left, _Parts) or not isinstance(right, _Parts):
            raise UnknownStep
        how = f"{op}(a, b)" if op.lstrip("_").isalpha() else f"a {op} b"
        known = op in ("+", "*", "&", "|", "^") or op in _EXTREMES
        if not known or how != (self.how or how) or (left.bits & right.bits and op not in _REPEATABLE):
            raise UnknownStep
        self.how = how
        return _Parts(left.bits | right.bits)
