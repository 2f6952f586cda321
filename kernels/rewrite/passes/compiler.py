"""Instructions to the compiler: unrolling, arrays that do not overlap, exactness of arithmetic, bits of indices.

A GPU multiplies and adds 64-bit integers in several instructions of 32 bits and keeps them in two registers (CUDA C++
Programming Guide, "Arithmetic Instructions"). Sums, differences and products modulo 2 to the 32 are exact in their last
32 bits, so an index made of nothing else is right where the array has fewer elements than that: the constraint says so
of every workload. A number that is compared keeps its type, so it must fit by itself: a builtin or a coordinate does.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection

from tunesmith.kernels.reader.syntax import NOTHING, Node, Symbol
from tunesmith.kernels.rewrite.edits import Edit, Span, insert, replace, span, switched, wrap
from tunesmith.kernels.rewrite.facts import AXES, Facts, Loop, may_end
from tunesmith.kernels.rewrite.forms import Form
from tunesmith.kernels.rewrite.passes.record import BOTH, Change, Pass, Refused, Subject, require, required

_SLOW = re.compile(r"(?:__)?(?:exp2?|exp10|log(?:2|10)?|pow|sin|cos|tan|tanh|r?sqrt|erf|sincos|rcp)f?")
MAX_ARRAY_LENGTH = (1 << 31) - 1
"""Elements that an `int` can count."""
MAX_COORDINATE = MAX_ARRAY_LENGTH - (1 << 20)
"""Threads along an axis: below what an `int` holds by more than blocks and items of any size round up."""
_WIDE_WORDS = re.compile(rb"(?:\b(?:unsigned|signed)\s+)?\blong(?:\s+long)?(?:\s+int)?\b|\b\w+\b")
_PLAIN = frozenset({"binary", "builtin", "cast", "literal", "name", "unary"})
"""Kinds of nodes of which a number is made that is the same in each round where its variables are."""
_STEPS = {("assign", "+="), ("assign", "-=")}
_COMPARED = frozenset({"<", ">", "<=", ">=", "==", "!="})


def _loops(subject: Subject) -> list[Node]:
    facts, found = subject.facts, list[Node]()
    for node in facts.syntax.everything():
        if node.what != "for" or node.fixed or node.parent is None or node.parent.what != "block":
            continue
        start, test, update, _ = node.kids
        first, *more = [update] if update.op != "," else update.kids
        down = first.op in ("--", "-=")
        # Where a loop counts down its length is where it begins.
        end = (start.kids[0] if start.what == "declaration" else start).kids[-1:] if down else test.kids[1:]
        long = test.what != "binary" or not end or facts.form(end[0]).constant is None
        counts = (one.what == "count" or (one.what, one.op) in _STEPS for one in (first, *more))
        before = facts.syntax.code[: node.start].rstrip().rsplit(b"\n", 1)[-1].lstrip()
        if long and all(counts) and test.what == "binary" and not before.startswith(b"#"):
            found.append(node)
    return required(found, "there is no loop to unroll whose length the compiler does not know")


def _unroll(subject: Subject, loops: list[Node]) -> Change:
    name = subject.name("UNROLL")
    pragma = f"\n#if {name} > 0\n#pragma unroll {name}\n#endif\n"
    made = Change()
    for one in loops:
        loop = subject.facts.loop(one)
        if subject.backend == "cuda" and loop is not None and _may_wrap(subject.facts, loop):
            made.edits.append(_by_turns(loop, name, pragma))
            made.kit = ("turns",)
        else:
            made.edits.append(insert(one.start, pragma))
    made.parameter(name, (0, 1, 2, 4, 8), "how far loops are unrolled; 0: as the compiler likes")
    made.header.append(f"#if {name} > 0\n#define TUNESMITH_UNROLL {name}\n#endif")
    return made


def _may_wrap(facts: Facts, loop: Loop) -> bool:
    """Whether a loop's number has no sign and may wrap around, and each round depends on that number alone, so that
    several may be one after the other without a test between them."""
    test, update = loop.node.kids[1:3]
    parts = [test, update.kids[-1]]
    plain = all(one.what in _PLAIN and not one.fixed for part in parts for one in part.walk())
    wraps = test.op in "<>" and update.op == "+=" and loop.kind != "counting" and loop.variable.type.least == 0
    kept = {loop.variable, *(symbol for part in parts for symbol in facts.names_in(part))}
    alone = not kept & facts.changed_in(loop.body) and not may_end(loop.body, loop.node)
    return plain and wraps and alone and not loop.fixed


def _by_turns(loop: Loop, name: str, pragma: str) -> Edit:
    """A loop as one of the kit, which tests its number once in so many rounds."""
    node, kind = loop.node, loop.variable.type.spelling
    bound = node.kids[1].kids[node.kids[1].op == "<"]
    opens = f"\n#if {name} > 1\ntunesmith::turns(({kind})("
    turn = f", [&]({kind} {loop.variable.name}) {{\n#else{pragma}"
    parts = (span(loop.first_node), "), ", span(bound), ", ", span(node.kids[2].kids[1]), turn)
    head = Span(node.start, loop.body.start)
    return replace(node, opens, *parts, head, "\n#endif\n", span(loop.body), f"\n#if {name} > 1\n; }});\n#endif\n")


def _slow(subject: Subject) -> None:
    for one in subject.facts.syntax.everything():
        if one.what == "call" and _SLOW.fullmatch(one.op):
            return
        if one.what in ("binary", "assign") and one.op in ("/", "/=") and one.kids[0].type.what != "number":
            return
    raise Refused("no function, and no division of floats, has a faster, less exact form")


def _fast_math(subject: Subject, _: None) -> Change:
    """The check decides whether results are exact enough."""
    made = Change(fast_math=subject.name("FAST_MATH"))
    made.parameter(made.fast_math, (False, True), "whether to compile with fast math")
    return made


_Narrow = tuple[dict[Symbol, Node], list[Node], list[Node]]
"""Declarations that may have 32 bits, each of one value, casts that may, and where the variables are compared."""


def _axis(facts: Facts, node: Node) -> str:
    """The axis of the coordinate that a variable is; empty for another."""
    return next((one for one in AXES if facts.form(node.kids[-1]) == Form.atom(f"@{one}")), "")


def _indices(facts: Facts) -> list[Node]:
    """The whole indices of pointer parameters, and the offsets added to one to make a pointer. From the beginning of an
    array no index is negative; from a pointer that has moved an index may be."""
    own, found = set(facts.arrays) - set(facts.changed), list[Node]()
    for node in facts.body.walk():
        parts = node.kids
        if node.what == "variable" and node.type.what == "pointer" and parts and parts[-1].op == "+":
            parts = parts[-1].kids
        elif node.what != "index":
            continue
        pairs = itertools.permutations(parts, 2)
        found += [two for one, two in pairs if one.what == "name" and one.symbol in own and len(parts) == 2]
    return found


def _index(node: Node, variables: Collection[Symbol]) -> list[Node] | None:
    """The names of wide variables and the casts in an expression that is right modulo 2 to the 32 with all of it in 32
    bits; None for another."""
    kids, small = node.kids, isinstance(node.value, int) and 0 <= node.value < 10**9 and not _is_wide(node)
    if node.fixed or (node.what == "literal" and not small):
        return None
    if node.what in ("literal", "builtin"):
        return []
    if node.what == "name" and node.symbol in variables:
        return [node]
    if node.what == "name":
        return [] if node.symbol is not NOTHING and node.type.what == "number" and node.type.size <= 4 else None
    if node.what == "cast" and kids and node.type.what == "number" and node.type.size >= 4:
        inner = _index(kids[-1], variables)
        return inner if inner is None or not _is_wide(node) else [*inner, node]
    parts = [_index(one, variables) for one in kids] if node.what == "binary" else [None]
    if None in parts or node.op not in ("+", "-", "*", "/", "%", ">>", "&"):
        return None
    found = [one for part in parts for one in part or ()]
    # Of these the last bits do not tell the result: nothing in them may change.
    return found if node.op in ("+", "-", "*") or not found else None


def _wide_indices(subject: Subject) -> _Narrow:
    """The search for indices of 64 bits that are sums, differences and products of numbers of 32 bits alone."""
    facts = subject.facts
    variables = {
        node.symbol: node
        for node in facts.body.walk()
        if node.what == "variable" and not node.fixed and _is_wide(node)
        if facts.is_once(node.symbol) and node.parent is not None and node.parent.what == "declaration"
        if node.parent.parent is None or node.parent.parent.what != "for"
    }
    short = [Form.atom(f"{word}.{axis}") for word in ("threadIdx", "blockIdx") for axis in AXES]
    while True:
        good = [node for node in _indices(facts) if _index(node, variables) is not None]
        bad, compared = set[Symbol](), list[Node]()
        for symbol, node in variables.items():
            outside = [x for x in facts.uses(symbol) if not any(y.holds(x) for y in (*good, *variables.values()))]
            fits = bool(_axis(facts, node)) or facts.form(node.kids[-1]) in short
            right = not outside or (fits and all(map(_is_compared, outside)))
            # A declaration has one type for all of its names.
            apart = any(one.symbol not in variables for one in (node.parent.kids if node.parent is not None else ()))
            if _index(node.kids[-1], variables) is None or not right or apart:
                bad.add(symbol)
            elif node.type.least < 0:
                compared += outside
        if not bad:
            break
        variables = {symbol: one for symbol, one in variables.items() if symbol not in bad}
    values = [*good, *(one.kids[-1] for one in variables.values())]
    casts = dict.fromkeys(one for value in values for one in _index(value, variables) or () if one.what == "cast")
    require(variables or casts, "none has 64 bits and is a sum or product of numbers of 32 bits alone")
    known_lengths = all(subject.lengths.get(one.name) for one in facts.arrays)
    require(known_lengths, "the task does not say how long every array is")
    return variables, list(casts), compared


def _is_compared(node: Node) -> bool:
    above = node.parent
    return above is not None and above.what == "binary" and above.op in _COMPARED and not node.fixed


def _is_wide(node: Node) -> bool:
    return node.type.what == "number" and node.type.size == 8


def _wide_type(facts: Facts, node: Node) -> tuple[int, int] | None:
    """Where a declaration or a cast says its type of 64 bits."""
    start = node.start if node.what == "cast" or node.parent is None else node.parent.start
    stop = node.kids[-1].start if node.what == "cast" else node.symbol.place
    for word in _WIDE_WORDS.finditer(facts.syntax.code, start, stop):
        if word[0] not in (b"const", b"constexpr", b"static_cast"):
            return word.start(), word.end()
    return None


def _narrow(subject: Subject, found: _Narrow) -> Change:
    facts, bits, macro_compared = subject.facts, subject.name("INDEX_BITS"), subject.name("COMPARED")
    variables, casts, compared = found
    places = [_wide_type(facts, one) for one in [*variables.values(), *casts]]
    spans = sorted({one for one in places if one is not None})
    kinds = {place: facts.syntax.code[place[0] : place[1]].decode() for place in spans}
    macros = {kind: subject.name(f"INDEX_TYPE_{at}") for at, kind in enumerate(dict.fromkeys(kinds.values()))}
    made = Change(edits=[Edit(*place, (macros[kind],)) for place, kind in kinds.items()])
    made.edits += [wrap(one, f"{macro_compared}(", ")") for one in compared]
    # A word, as a cast may be written like a call.
    lines = {macro: ("unsigned", kind) for kind, macro in macros.items()}
    lines[f"{macro_compared}(...)"] = "((int)(__VA_ARGS__))", "(__VA_ARGS__)"
    made.header.append(switched(f"{bits} == 32", lines))
    made.parameter(bits, (64, 32), "bits of the numbers that indices are computed with; 64: as in the source")
    limits = [f"({subject.lengths[one.name]}) <= {MAX_ARRAY_LENGTH}" for one in facts.arrays]
    for axis in sorted({_axis(facts, one) for one in variables.values()} - {""}):
        limits.append(f"{subject.threads(axis)} <= {MAX_COORDINATE}")
    made.constraints |= dict.fromkeys(
        (f"{bits} == 64 or {one}" for one in limits), "An index of 32 bits does not reach further."
    )
    return made


UNROLLING = Pass("unrolling", _loops, _unroll, languages=BOTH)
FAST_MATH = Pass("fast_math", _slow, _fast_math, languages=BOTH)
NARROW_INDICES = Pass("narrow_indices", _wide_indices, _narrow, why="indices stay: ")
