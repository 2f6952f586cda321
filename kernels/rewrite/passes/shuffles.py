"""A tree of additions or maxima in shared memory becomes exchanges between the lanes of a warp.

The tree halves the active threads step by step, with a barrier after each: eight barriers for 256 threads. Here each
warp combines its 32 values in registers, one value for each warp goes through shared memory, and three barriers are
left (M. Harris, "Optimizing Parallel Reduction in CUDA", and the CUDA C++ Programming Guide, "Warp Shuffle Functions").
"""

from __future__ import annotations

from dataclasses import dataclass

from tunesmith.kernels.rewrite.facts import Access
from tunesmith.kernels.rewrite.forms import ONE, ZERO, Form
from tunesmith.kernels.rewrite.passes.record import Change, Edit, Pass, Plan, Refused, Subject, span
from tunesmith.kernels.rewrite.rounds import key
from tunesmith.kernels.rewrite.sharing import Fixed
from tunesmith.kernels.rewrite.syntax import Node, Symbol
from tunesmith.kernels.spec.template import Parameter

_FUNCTIONS = ("fmaxf", "fminf", "max", "min", "fmax", "fmin")
_THREAD = Form.atom("threadIdx.x")


@dataclass(frozen=True, slots=True)
class _Tree:
    """node: the loop; array: in shared memory; first: the threads of its first step, None for half of the block; how: two
    values a and b become one, in C."""

    node: Node
    array: Symbol
    first: int | None
    how: str


def _trees(subject: Subject) -> list[_Tree] | Refused:
    trees = [tree for node in subject.facts.body.walk() if (tree := _tree(subject, node)) is not None]
    if not trees:
        return Refused("there is no tree of additions or maxima in shared memory")
    if not isinstance(subject.work, Fixed):
        return Refused("trees in shared memory stay: the size of a block is free")
    threads = subject.block("x")
    whole = threads.isdigit() and 32 <= int(threads) <= 1024 and int(threads) & (int(threads) - 1) == 0
    if not whole or (subject.block("y"), subject.block("z")) != ("1", "1"):
        why = "the block is not a power of two from 32 to 1024 in one dimension"
        return Refused(f"trees in shared memory stay: {why}")
    for tree in trees:
        name = tree.array.name
        if tree.first is not None and tree.first * 2 != int(threads):
            return Refused(f"the tree in {name} stays: it begins at {tree.first}, and blocks have {threads} threads")
        if not _only_first_is_used(subject, tree.array, trees):
            return Refused(f"the tree in {name} stays: more than its first element is used")
    return trees


def _tree(subject: Subject, node: Node) -> _Tree | None:
    facts = subject.facts
    if node.what != "for" or node.fixed or node.kids[0].what != "declaration" or len(node.kids[0].kids) != 1:
        return None
    start, test, update, body = node.kids[0].kids[0], node.kids[1], node.kids[2], node.kids[3]
    if start.symbol is None or not start.kids or update.what != "assign" or body.what != "block" or len(body.kids) != 2:
        return None
    halves = facts.form(update.kids[1]).constant == {">>=": 1, "/=": 2}.get(update.op)
    branch, barrier = body.kids
    inside = facts.inside(node)
    if not halves or barrier not in facts.barriers or branch.what != "if" or len(branch.kids) != 2 or len(inside) < 2:
        return None
    step = Form.atom(f"{start.symbol.name}#{start.symbol.place}")
    runs, below = facts.conditions(branch, node.parent)[0], facts.conditions(inside[0].node, body)[0]
    if [one.least for one in runs] != [step - ONE] or [one.least for one in below] != [step - _THREAD - ONE]:
        return None
    first = _first(subject, start.kids[-1])
    change = branch.kids[1].kids[0] if branch.kids[1].what == "block" and len(branch.kids[1].kids) == 1 else branch.kids[1]
    array, how = inside[0].root, _combined(facts.inside(node), change, step)
    if first == 0 or not how or not array.shared or array.type.what != "array" or test.fixed:
        return None
    return _Tree(node, array, first, how)


def _first(subject: Subject, node: Node) -> int | None:
    """The number with which a loop begins; None for half of the block's threads, 0 for anything else."""
    form = subject.facts.form(node)
    if form.constant is not None:
        return form.constant
    if node.what == "binary" and subject.facts.form(node.kids[0]) == Form.atom("blockDim.x"):
        by = subject.facts.form(node.kids[1]).constant
        if (node.op, by) in (("/", 2), (">>", 1)):
            return None
    return 0


def _combined(accesses: list[Access], change: Node, step: Form) -> str:
    """How `change` puts the element of a thread and the one `step` behind together; empty where it does something else."""
    mine = [one for one in accesses if one.index == _THREAD]
    other = [one for one in accesses if one.index == _THREAD + step and not one.written]
    if change.what != "assign" or len(other) != 1 or not mine or {one.root for one in accesses} != {other[0].root}:
        return ""
    target, value, its = change.kids[0], change.kids[1], other[0].node
    if target is not mine[0].node or len(mine) + 1 != len(accesses):
        return ""
    if change.op == "+=" and value is its:
        return "a + b"
    given = value.kids if value.what == "binary" else value.kids[1:]
    if change.op != "=" or len(given) != 2 or {key(one) for one in given} != {key(target), key(its)}:
        return ""
    if value.what == "binary" and value.op == "+":
        return "a + b"
    return f"{value.op}(a, b)" if value.what == "call" and value.op in _FUNCTIONS else ""


def _only_first_is_used(subject: Subject, array: Symbol, trees: list[_Tree]) -> bool:
    """Whether, outside the trees, each thread only writes its own element and all read nothing but the first."""
    own = [one for one in subject.facts.of(array) if not any(tree.node.holds(one.node) for tree in trees)]
    return array not in subject.facts.escaping and all(
        (one.written and not one.read and one.index == _THREAD) or (one.read and not one.written and one.index == ZERO)
        for one in own
    )


def _exchanged(subject: Subject, trees: list[_Tree], plan: Plan) -> Change:
    name = subject.name("SHUFFLES")
    edits = [
        Edit(
            tree.node.start,
            tree.node.end,
            (
                f"\n#if {name}\ntunesmith::combine<{subject.block('x')}>({tree.array.name}, "
                f"[](auto a, auto b) {{ return {tree.how}; }});\n#else\n",
                span(tree.node),
                "\n#endif\n",
            ),
        )
        for tree in trees
    ]
    parameter = Parameter(name=name, values=(False, True), doc="whether warps combine values by shuffles")
    return Change(parameters=(parameter,), edits=tuple(edits), kit=("shuffles",))


SHUFFLES = Pass("shuffles", _trees, _exchanged)
