"""What the compiler is told: how far to unroll, that arrays do not overlap, how exact arithmetic is, bits of indices.

A GPU multiplies and adds 64-bit integers in several instructions of 32 bits and keeps them in two registers (CUDA C++
Programming Guide, "Arithmetic Instructions"). Sums, differences and products modulo 2 to the 32 are exact in their last
32 bits, so an index made of nothing else is right where the array has fewer elements than that: the constraint says so
of every workload. A number that is compared keeps its type, so it must fit by itself: a builtin or a coordinate does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tunesmith.kernels.reader.syntax import Node, Symbol
from tunesmith.kernels.rewrite.facts import Facts
from tunesmith.kernels.rewrite.forms import Form
from tunesmith.kernels.rewrite.passes.record import Change, Edit, Pass, Plan, Refused, Subject, insert, wrap
from tunesmith.kernels.spec.template import Constraint, Parameter

_SLOW = re.compile(r"(?:__)?(?:exp2?|exp10|log(?:2|10)?|pow|sin|cos|tan|tanh|r?sqrt|erf|sincos|rcp)f?")
MAX_ARRAY_LENGTH = (1 << 31) - 1
"""Elements that an `int` can count."""
MAX_COORDINATE = MAX_ARRAY_LENGTH - (1 << 20)
"""Threads along an axis: below what an `int` holds by more than blocks and items of any size round up."""
_WIDE_WORDS = re.compile(rb"(?:\b(?:unsigned|signed)\s+)?\blong(?:\s+long)?(?:\s+int)?\b|\b\w+\b")
_COMPARED = frozenset({"<", ">", "<=", ">=", "==", "!="})


def _loops(subject: Subject) -> list[Node] | Refused:
    facts, found = subject.facts, list[Node]()
    for node in facts.syntax.everything():
        if node.what != "for" or node.fixed or node.parent is None or node.parent.what != "block":
            continue
        test, update = node.kids[1], node.kids[2]
        long = test.what != "binary" or facts.form(test.kids[1]).constant is None
        counts = update.what == "count" or (update.what == "assign" and update.op == "+=")
        before = facts.syntax.code[: node.start].rstrip().rsplit(b"\n", 1)[-1].lstrip()
        if long and counts and test.what == "binary" and not before.startswith(b"#"):
            found.append(node)
    return found or Refused("there is no loop to unroll whose length the compiler does not know")


def _unroll(subject: Subject, loops: list[Node], plan: Plan) -> Change:
    name = subject.name("UNROLL")
    pragma = f"\n#if {name} > 0\n#pragma unroll {name}\n#endif\n"
    doc = "how far loops are unrolled; 0: as the compiler likes"
    parameter = Parameter(name=name, values=(0, 1, 2, 4, 8), doc=doc)
    header = f"#if {name} > 0\n#define TUNESMITH_UNROLL {name}\n#endif"
    return Change(parameters=(parameter,), edits=tuple(insert(one.start, pragma) for one in loops), header=header)


def _slow(subject: Subject) -> bool | Refused:
    for one in subject.facts.syntax.everything():
        if one.what == "call" and _SLOW.fullmatch(one.op):
            return True
        if one.what in ("binary", "assign") and one.op in ("/", "/=") and one.kids[0].type.what != "number":
            return True
    return Refused("no function, and no division of floats, has a faster, less exact form")


def _fast_math(subject: Subject, _: bool, plan: Plan) -> Change:
    """The check decides whether results are exact enough."""
    name = subject.name("FAST_MATH")
    return Change(
        parameters=(Parameter(name=name, values=(False, True), doc="whether to compile with fast math"),),
        fast_math=name,
    )


@dataclass(slots=True)
class _Variable:
    """A variable of 64 bits that has one value. fits: the value is one of 32 bits by itself; axis: of the coordinate
    that it is, or empty; compared: where it is compared."""

    node: Node
    fits: bool
    axis: str
    compared: list[Node] = field(default_factory=list)


class _Search:
    """Indices of 64 bits that are sums, differences and products of numbers of 32 bits alone. variables, casts: what
    may have 32 bits."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.variables = {
            node.symbol: _Variable(node, form in builtins or bool(axis), axis)
            for node in facts.body.walk()
            if node.what == "variable" and node.symbol is not None and not node.fixed and _is_wide(node)
            if facts.is_once(node.symbol) and node.parent is not None and node.parent.what == "declaration"
            if node.parent.parent is None or node.parent.parent.what != "for"
            for form in [facts.form(node.kids[-1])]
            for axis in [next((one for one in "xyz" if form == Form.atom(f"@{one}")), "")]
            for builtins in [[Form.atom(f"{word}.{one}") for word in ("threadIdx", "blockIdx") for one in "xyz"]]
        }
        self.roots = self._roots()
        self.casts = list[Node]()
        self.narrow()

    def _roots(self) -> list[Node]:
        """The whole indices of pointer parameters, and the offsets added to one to make a pointer. From the beginning
        of an array no index is negative; from a pointer that has moved an index may be."""
        own, found = set(self.facts.arrays) - set(self.facts.changed), list[Node]()
        for node in self.facts.body.walk():
            if node.what == "index" and node.kids[0].what == "name" and node.kids[0].symbol in own:
                found.append(node.kids[1])
            elif node.what == "variable" and node.type.what == "pointer" and node.kids:
                value = node.kids[-1]
                if value.what == "binary" and value.op == "+":
                    left, right = value.kids
                    found += [right] if left.what == "name" and left.symbol in own else []
                    found += [left] if right.what == "name" and right.symbol in own else []
        return found

    def index(self, node: Node) -> tuple[set[Symbol], list[Node]] | None:
        """The wide variables and casts in an expression that is right modulo 2 to the 32 with all of it in 32 bits."""
        if node.fixed:
            return None
        if node.what == "literal":
            return (
                (set(), []) if isinstance(node.value, int) and 0 <= node.value < 10**9 and not _is_wide(node) else None
            )
        if node.what == "builtin":
            return set(), []
        if node.what == "name" and node.symbol is not None:
            if node.symbol in self.variables:
                return {node.symbol}, []
            return (set(), []) if node.type.what == "number" and node.type.size <= 4 else None
        if node.what == "cast" and node.kids and node.type.what == "number" and node.type.size >= 4:
            made = self.index(node.kids[-1])
            return None if made is None else (made[0], [*made[1], *([node] if _is_wide(node) else [])])
        if node.what != "binary" or len(node.kids) != 2:
            return None
        left, right = self.index(node.kids[0]), self.index(node.kids[1])
        if left is None or right is None:
            return None
        if node.op in ("+", "-", "*"):
            return left[0] | right[0], [*left[1], *right[1]]
        # Of these the last bits do not tell the result: nothing in them may change.
        closed = not (left[0] or right[0] or left[1] or right[1])
        return (set(), []) if node.op in ("/", "%", ">>", "&") and closed else None

    def narrow(self) -> None:
        while True:
            good = [(node, one) for node in self.roots if (one := self.index(node)) is not None]
            inside = [node for node, _ in good] + [one.node for one in self.variables.values()]
            bad = {
                symbol
                for symbol, one in self.variables.items()
                if self.index(one.node.kids[-1]) is None or not self._used_well(symbol, one, inside)
            }
            # A declaration has one type for all of its names.
            for symbol, variable in self.variables.items():
                others = variable.node.parent.kids if variable.node.parent is not None else []
                bad |= {symbol} if any(other.symbol not in self.variables for other in others) else set()
            if not bad:
                values = [self.index(one.node.kids[-1]) for one in self.variables.values()]
                casts = [cast for one in [*(made for _, made in good), *values] if one is not None for cast in one[1]]
                self.casts = list(dict.fromkeys(casts))
                return
            self.variables = {symbol: one for symbol, one in self.variables.items() if symbol not in bad}

    def _used_well(self, symbol: Symbol, variable: _Variable, inside: list[Node]) -> bool:
        """Whether every use is in an index, in a variable that is in one, or in a comparison that it is right in."""
        variable.compared = []
        for node in self.facts.body.walk():
            if node.what != "name" or node.symbol is not symbol or any(one.holds(node) for one in inside):
                continue
            above = node.parent
            compared = above is not None and above.what == "binary" and above.op in _COMPARED and not node.fixed
            if not compared or not variable.fits:
                return False
            variable.compared.append(node)
        return True


def _is_wide(node: Node) -> bool:
    return node.type.what == "number" and node.type.size == 8


def _wide_type(facts: Facts, node: Node) -> tuple[int, int] | None:
    """Where a declaration or a cast says its type of 64 bits."""
    start = node.start if node.what == "cast" or node.parent is None else node.parent.start
    stop = node.kids[-1].start if node.what == "cast" else node.symbol.place if node.symbol is not None else start
    for word in _WIDE_WORDS.finditer(facts.syntax.code, start, stop):
        if word[0] not in (b"const", b"constexpr"):
            return word.start(), word.end()
    return None


def _wide_indices(subject: Subject) -> _Search | Refused:
    found = _Search(subject.facts)
    if not found.variables and not found.casts:
        return Refused("indices stay: none has 64 bits and is a sum or product of numbers of 32 bits alone")
    if not all(subject.lengths.get(one.name) for one in subject.facts.arrays):
        return Refused("indices stay: the task does not say how long every array is")
    return found


def _narrow(subject: Subject, found: _Search, plan: Plan) -> Change:
    facts, bits, compared = subject.facts, subject.name("INDEX_BITS"), subject.name("COMPARED")
    places = [_wide_type(facts, one) for one in [*(one.node for one in found.variables.values()), *found.casts]]
    spans = sorted({one for one in places if one is not None})
    kinds = {place: facts.syntax.code[place[0] : place[1]].decode() for place in spans}
    macros = {kind: subject.name(f"INDEX_TYPE_{at}") for at, kind in enumerate(dict.fromkeys(kinds.values()))}
    edits = [Edit(*place, (macros[kind],)) for place, kind in kinds.items()]
    signed = [one for one in found.variables.values() if one.node.type.least < 0]
    edits += [wrap(node, f"{compared}(", ")") for one in signed for node in one.compared]
    lines = [f"#if {bits} == 32", *(f"#define {macro} unsigned int" for macro in macros.values())]
    lines += [f"#define {compared}(...) ((int)(__VA_ARGS__))", "#else"]
    lines += [f"#define {macro} {kind}" for kind, macro in macros.items()]
    lines += [f"#define {compared}(...) (__VA_ARGS__)", "#endif"]
    because = "An index of 32 bits does not reach further."
    limits = dict.fromkeys(f"({subject.lengths[one.name]}) <= {MAX_ARRAY_LENGTH}" for one in facts.arrays)
    for axis in sorted({one.axis for one in found.variables.values() if one.axis}):
        limits[f"{subject.threads(axis)} <= {MAX_COORDINATE}"] = None
    doc = "bits of the numbers that indices are computed with; 64: as in the source"
    return Change(
        parameters=(Parameter(name=bits, values=(64, 32), doc=doc),),
        edits=tuple(edits),
        header="\n".join(lines),
        constraints=tuple(Constraint(expression=f"{bits} == 64 or {one}", because=because) for one in limits),
    )


UNROLLING = Pass("unrolling", _loops, _unroll, languages=("cuda", "opencl"))
FAST_MATH = Pass("fast_math", _slow, _fast_math, languages=("cuda", "opencl"))
NARROW_INDICES = Pass("narrow_indices", _wide_indices, _narrow)
