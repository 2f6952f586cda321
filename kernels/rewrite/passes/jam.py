"""Several elements of a thread in step: loops that are the same for all of them run once.

A thread that computes elements one after the other goes through its loops anew for each. Where a loop does not ask for
the element, its body can compute all elements before the next round, so that what is the same for them is read once and
their loads wait for memory together ("unroll and jam", D. Callahan, J. Cocke and K. Kennedy, "Estimating Interlock and
Improving Balance for Pipelined Architectures", 1988).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass

from tunesmith.kernels.reader.syntax import LEFT, Node, Symbol
from tunesmith.kernels.rewrite.edits import Span, replace, span
from tunesmith.kernels.rewrite.facts import Facts, Loop
from tunesmith.kernels.rewrite.passes.record import Change, Layer, Pass, Refused, Subject

_WHY = "the elements of a thread are computed one after the other"
_APART = "Elements in step are as many apart as there are threads."
_AUTO = re.compile(r"(?:const\s+)?auto\b")
_SIMPLE = frozenset({"declaration", "assign", "count", "nothing", "if", "return", "continue", "break"})


@dataclass(frozen=True, slots=True)
class _Steps:
    """Statements that each element carries out by itself."""

    nodes: list[Node]


@dataclass(frozen=True, slots=True)
class _Once:
    """A statement that is the same for all elements. parts: of the body of a loop, where that is not, or of what some
    elements carry out: guard is their condition."""

    node: Node
    parts: list[_Once | _Steps] | None = None
    guard: Node | None = None


class _Split:
    """How the statements for an element, of the kernel or of a loop that steps by the grid's size, go by elements.
    places: where the source computes an element's coordinate; own: the variables that differ between elements; ends:
    the statements that end an element."""

    def __init__(self, facts: Facts, places: Iterable[Node], loop: Loop | None) -> None:
        body = facts.body if loop is None else loop.body
        self.facts, self.places, self.loop = facts, list(places), loop
        self.own = set[Symbol]() if loop is None else {loop.variable}
        self.ends = [
            one
            for one in body.walk()
            if one.what == ("return" if loop is None else "continue")
            and (loop is None or not one.inside(LEFT, loop.node))
        ]
        self.loops, self.parts = 0, list[_Once | _Steps]()
        before = -1
        while before < len(self.own):
            before, self.loops = len(self.own), 0
            self._follow()
            self.parts = self._split(body.kids if body.what == "block" else [body])
            # A statement that each element carries out would change what is the same for all of them several times.
            for steps in self.steps(self.parts):
                self.own |= {one for node in steps.nodes for one in facts.changed_in(node)}

    def steps(self, parts: list[_Once | _Steps]) -> list[_Steps]:
        inner = (self.steps(one.parts or []) if isinstance(one, _Once) else [one] for one in parts)
        return [one for those in inner for one in those]

    def _follow(self) -> None:
        """Adds the variables whose value, or the round in which they get it, depends on the element."""
        before = -1
        while before < len(self.own):
            before = len(self.own)
            for node in self.facts.body.walk():
                if node.what == "variable" and self.differs(node):
                    self.own.add(node.symbol)
            for symbol, places in self.facts.changed.items():
                # Within a condition, a variable that is declared there is the same wherever it is.
                around = (up for one in places for up, _ in one.above())
                made = symbol.declared
                tests = [test for up in around if made is None or not up.holds(made) for test in _tests(up)]
                if any(map(self.differs, [*places, *tests])):
                    self.own.add(symbol)

    def differs(self, node: Node) -> bool:
        """Whether a part of the kernel depends on the element."""
        held = any(node.holds(one) or one.holds(node) for one in self.places)
        return held or bool((self.facts.names_in(node) | self.facts.declared_in(node)) & self.own)

    def _split(self, nodes: list[Node]) -> list[_Once | _Steps]:
        found, waiting = list[_Once | _Steps](), list[Node]()
        for node in nodes:
            once = self._once(node)
            if once is None:
                waiting.append(node)
                continue
            found += [_Steps(waiting)] if waiting else []
            found.append(once)
            waiting = []
        return found + ([_Steps(waiting)] if waiting else [])

    def _once(self, node: Node) -> _Once | None:
        if not self.differs(node):
            return _Once(node) if node.what in _SIMPLE and not self._touches(node) else None
        if node.what == "if" and len(node.kids) == 2 and not any(map(node.holds, self.ends)):
            body, loops = node.kids[1], self.loops
            parts = self._split(body.kids if body.what == "block" else [body])
            return _Once(node, parts, node.kids[0]) if self.loops > loops else None
        if node.what != "for" or node.fixed or any(map(self.differs, node.kids[:3])):
            return None
        leaves = [one for one in node.kids[3].walk() if one.what in ("break", "continue")]
        if any(not one.inside(LEFT, node) and not self._for_all(one, node) for one in leaves):
            return None
        self.loops += 1
        body = node.kids[3]
        return _Once(node, self._split(body.kids if body.what == "block" else [body]))

    def _touches(self, node: Node) -> bool:
        return any(one.written for one in self.facts.inside(node)) or self.facts.acts(node)

    def _for_all(self, leaf: Node, loop: Node) -> bool:
        """Whether all elements leave a round, or none."""
        around = itertools.takewhile(lambda up: up is not loop, (up for up, _ in leaf.above()))
        return not any(up.what == "if" and (self.differs(up) or self._touches(up)) for up in around)


def _tests(node: Node) -> list[Node]:
    """The conditions of a statement."""
    return node.kids[:3] if node.what == "for" else node.kids[:1] if node.what in ("if", "while", "choice") else []


def _find(subject: Subject) -> _Split | Refused:
    facts, axes = subject.facts, subject.work.axes
    strided = [one for one in facts.loops if one.kind == "grid" and one.axis == "x" and one.node.parent is facts.body]
    alone = len(strided) == 1 and [one.name for one in axes] == ["x"] and not strided[0].fixed
    if "x" not in subject.axes or (any(one.strided for one in axes) and not alone):
        return Refused(f"{_WHY}: {subject.unmovable or 'threads do not step through one loop by the size of the grid'}")
    loop = strided[0] if axes[0].strided else None
    returns = loop is not None and any(map(loop.node.holds, subject.returns))
    if subject.unmovable or returns or facts.jumps or facts.together:
        return Refused(f"{_WHY}: {subject.unmovable or 'threads work together, or end inside a loop'}")
    if any(one.what in ("lambda", "asm", "switch") for one in facts.body.walk()):
        return Refused(f"{_WHY}: the kernel has a lambda, assembly or a switch")
    split = _Split(facts, next(one.nodes for one in axes if one.name == "x"), loop)
    inside = (one.node.walk() for one in split.parts if isinstance(one, _Once) and one.parts is not None)
    if not any(one.what in ("index", "deref") for nodes in inside for one in nodes):
        return Refused(f"{_WHY}: no loop that reads memory is the same for neighbours along x")
    for root in facts.arrays:
        own = facts.of(root)
        if any(one.written for one in own) and any(one.read and not split.differs(one.node) for one in own):
            return Refused(f"{_WHY}: {root.name} is written, and read alike by all elements")
    for one in split.own:
        if one.type.what == "array" or one.type.reference or one.shared or one.static or one.volatile:
            return Refused(f"{_WHY}: {one.name} is more than a value")
    kept = _kept(split)
    for one in kept:
        made = one.declared.parent if one.declared is not None else None
        if made is None or made.what != "declaration" or made.fixed or _AUTO.match(facts.text(made)):
            return Refused(f"{_WHY}: {one.name} has no type of its own")
        if any("=" not in facts.text(each) for each in made.kids if each.kids):
            return Refused(f"{_WHY}: {one.name} is declared in a way that is not followed")
    if any(use.fixed for one in kept for use in facts.uses(one)):
        return Refused(f"{_WHY}: a macro names a variable of an element")
    return split


def _kept(split: _Split) -> set[Symbol]:
    """The variables that an element has beyond the steps that declare them, and those declared with them."""
    facts, found = split.facts, set[Symbol]()
    for steps in split.steps(split.parts):
        for made in (one for one in steps.nodes if one.what == "declaration"):
            symbols = [one.symbol for one in made.kids]
            uses = (use for symbol in symbols for use in facts.uses(symbol))
            if any(not any(node.holds(use) for node in steps.nodes) for use in uses):
                found |= set(symbols)
    return found


@dataclass(frozen=True, slots=True)
class _Text:
    """The code for several elements. name: the parameter; number: the variable with an element's number; here: what
    says in C which element that is; kept: see `_kept`."""

    split: _Split
    name: str
    number: str
    here: str
    kept: set[Symbol]

    def written(self, parts: list[_Once | _Steps], on: str) -> list[str | Span]:
        """The statements, for the elements that are `on`."""
        found = list[str | Span]()
        for one in parts:
            if isinstance(one, _Steps):
                found += self._steps(one, on)
            elif one.parts is None:
                found += [span(one.node), ";\n"]
            elif one.guard is not None:
                inner = f"{on}_{one.node.start}"
                does = f"{inner}[{self.number}] = {on}[{self.number}] && [&]() -> bool "
                found += [f"{{\nbool {inner}[{self.name}];\n{self.each('true', does)}return ", self._own(one.guard)]
                found += [";\n}();\n", *self.written(one.parts, inner), "}\n"]
            else:
                found += [Span(one.node.start, one.node.kids[3].start), "{\n", *self.written(one.parts, on), "}\n"]
        return found

    def each(self, on: str, does: str) -> str:
        turns = f"for (int {self.number} = 0; {self.number} < {self.name}; ++{self.number})"
        return f"#pragma unroll\n{turns}\nif ({on}) {does}{{\n{self.here}\n"

    def _steps(self, steps: _Steps, on: str) -> list[str | Span]:
        made = [one.symbol for node in steps.nodes if node.what == "declaration" for one in node.kids]
        found: list[str | Span] = [f"{_value(one)} {one.name}[{self.name}];\n" for one in made if one in self.kept]
        ends, at = any(node.holds(one) for node in steps.nodes for one in self.split.ends), f"{on}[{self.number}]"
        found.append(self.each(at, f"{at} = [&]() -> bool " if ends else ""))
        for node in steps.nodes:
            if node.what == "declaration" and any(one.symbol in self.kept for one in node.kids):
                for one in (one for one in node.kids if one.kids):
                    found += [f"{one.symbol.name}[{self.number}] = ", self._own(one.kids[-1]), ";\n"]
            else:
                found += [self._own(node), ";\n"]
        return [*found, "return true;\n}();\n" if ends else "}\n"]

    def _own(self, node: Node) -> Span:
        """A part of the source for one element."""
        uses = [use for one in self.kept for use in self.split.facts.uses(one, node)]
        ends = [replace(one, "return false") for one in self.split.ends if node.holds(one)]
        return span(node, *(replace(use, f"{use.symbol.name}[{self.number}]") for use in uses), *ends)


def _change(subject: Subject, split: _Split) -> Change:
    name, index, loop = subject.name("JAM"), subject.index_type, split.loop
    number, on, at, first = (subject.name(one) for one in ("jam", "jam_on", "jam_at", "jam_first"))
    shares = [change.share["x"] for change in subject.changes.values() if change.share.get("x", "1") != "1"]
    threads = [subject.builtin("gridDim.x"), subject.builtin("blockDim.x")]
    made, opens = Change(), f"\n#if {name} > 1\n"
    made.parameter(name, (1, 2, 4, 8), "elements of a thread that go through the kernel's loops together")
    text: list[str | Span]
    if loop is None:
        here = f"const {index} {at} = {first} + {number} * ({' * '.join([*threads, *shares])});"
        begin = f"const {index} {first} = {subject.at('x')};\n#if {name} == 1\nconst {index} {at} = {first};\n#endif"
        made.layers.append(Layer(f"{name} > 1", begin, "", "x", at))
        made.share["x"] = name
        opens += f"bool {on}[{name}];\n#pragma unroll\nfor (bool& one : {on}) one = true;\n"
        text = _Text(split, name, number, here, _kept(split)).written(split.parts, on)
        made.within = (opens, *text, "#else\n", subject.inside, "\n#endif\n")
        return made
    kind, (_, test, *_), variable = loop.variable.written, loop.node.kids, loop.variable.name
    here = f"const {kind} {variable} = {first} + {number} * ({' * '.join(threads)});"
    writer = _Text(split, name, number, here, _kept(split))
    bound = span(test, *(replace(use, first) for use in subject.facts.uses(loop.variable, test)))
    head: list[str | Span] = [f"{opens}for ({kind} {first} = ", span(loop.first_node), "; ", bound]
    head += [f"; {first} += {name} * ({' * '.join(threads)})) {{\nbool {on}[{name}];\n"]
    head += [f"{writer.each('true', '')}{on}[{number}] = ", span(test), ";\n}\n"]
    text = [*head, *writer.written(split.parts, on), "}\n#else\n", span(loop.node), "\n#endif\n"]
    made.edits.append(replace(loop.node, *text))
    return made


def _value(symbol: Symbol) -> str:
    """The type of a variable that gets its value later."""
    kind = symbol.written.strip()
    return kind.removesuffix("const").strip() if symbol.type.what == "pointer" else kind.replace("const", "").strip()


JAM = Pass(
    "jam",
    _find,
    _change,
    excludes=dict.fromkeys(("vectors", "walk", "row_lanes", "row_loops"), _APART),
    after=("block_size", "work_per_thread", "row_lanes", "vectors", "walk", "cache_hints"),
)
