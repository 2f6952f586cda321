"""A tree of additions or maxima in shared memory becomes exchanges between the lanes of a warp.

The tree halves the active threads step by step, with a barrier after each: eight barriers for 256 threads. Here each
warp combines its 32 values in registers, one value for each warp goes through shared memory, and three barriers are
left (M. Harris, "Optimizing Parallel Reduction in CUDA", and the CUDA C++ Programming Guide, "Warp Shuffle Functions").
"""

from __future__ import annotations

from dataclasses import dataclass

from tunesmith.kernels.reader.syntax import LOOPS, Node, Symbol
from tunesmith.kernels.rewrite.forms import ZERO, Form
from tunesmith.kernels.rewrite.lockstep import Lockstep, UnknownStep
from tunesmith.kernels.rewrite.passes.record import Change, Edit, Pass, Plan, Refused, Span, Subject
from tunesmith.kernels.rewrite.sharing import Fixed, reads_thread
from tunesmith.kernels.spec.template import Parameter


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
            steps = Lockstep(subject.facts, array, threads)
            for end in range(begin, len(kids)):
                try:
                    steps.run(kids[end])
                except UnknownStep:
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
    again = len(mine) > 1 or any(above.what in LOOPS for above, _ in mine[0].statements[0].above())
    for name in facts.body.walk():
        if name.what != "name" or name.symbol is not array or any(tree.holds(name) for tree in trees):
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
    name, edits = subject.name("SHUFFLES"), list[Edit]()
    for tree in trees:
        start, last = tree.statements[0].start, tree.statements[-1]
        code = subject.facts.syntax.code
        end = last.end if code[last.end - 1 : last.end] in (b"}", b";") else code.index(b";", last.end) + 1
        element = tree.array.element
        join = f"[]({element} a, {element} b) {{ return {tree.how}; }}"
        call = f"tunesmith::combine<{subject.block('x')}>({tree.array.name}, {join});"
        edits.append(Edit(start, end, (f"\n#if {name}\n{call}\n#else\n", Span(start, end), "\n#endif\n")))
    parameter = Parameter(name=name, values=(False, True), doc="whether warps combine values by shuffles")
    return Change(parameters=(parameter,), edits=tuple(edits), kit=("shuffles",))


SHUFFLES = Pass("shuffles", _trees, _exchanged)
