"""What threads put together: bins of a block's own, lanes that share a thread's loops, exchanges in place of trees.

Where threads add to a few places of an array by atomic operations, all of them meet at the same addresses; in shared
memory the threads of one block meet alone (J. Gomez-Luna et al., "An optimized approach to histogram computation on
GPU", Machine Vision and Applications 24, 2013). Where one thread goes over a whole row, the threads of a warp read
from as many rows at a time; lanes of one warp that share a row read neighbours, and combine their sums by shuffles. A
tree in shared memory halves the active threads step by step, with a barrier after each: eight for 256 threads, where
exchanges leave three (M. Harris, "Optimizing Parallel Reduction in CUDA"; CUDA C++ Programming Guide, "Warp Shuffle
Functions").
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tunesmith.kernels.rewrite.facts import ENDS, Access, Loop
from tunesmith.kernels.rewrite.forms import ONE, ZERO, Form
from tunesmith.kernels.rewrite.passes.record import Change, Edit, Layer, Pass, Plan, Refused, Subject, span, wrap
from tunesmith.kernels.rewrite.rounds import Carried, key
from tunesmith.kernels.rewrite.sharing import Cells, Fixed, statements
from tunesmith.kernels.rewrite.syntax import LOOPS, Node, Symbol
from tunesmith.kernels.spec.template import Constraint, LaunchGeometry, Parameter

_TYPES = {"int": 4, "unsigned int": 4, "float": 4, "unsigned long long": 8}
MAX_BINS = 8192
"""Bins that a block may have of its own: it has 48 KB of shared memory without asking."""


def _bins(subject: Subject) -> Symbol | Refused:
    facts, without = subject.facts, "blocks have no bins of their own"
    if subject.axes != ["x"]:
        return Refused(f"{without}: threads do not have one coordinate")
    strided = isinstance(subject.work, Cells) and subject.work.axes[0].strided
    if subject.unmovable or strided or subject.launch.shared_bytes != "0":
        return Refused(f"{without}: the kernel steps by its grid, or has shared memory")
    found = [
        root
        for root in facts.arrays
        if (own := facts.of(root)) and root not in facts.escaping
        if all(one.by in ("atomicAdd", "atomic_add") and one.node.statement is one.node for one in own)
    ]
    if len(found) != 1 or found[0].type.element is None or found[0].type.element.spelling not in _TYPES:
        return Refused(f"{without}: there is not one array that threads do nothing to but add")
    count = subject.lengths.get(found[0].name, "")
    known = {one.name for one in facts.parameters if not one.pointer and one not in facts.changed}
    long = count.isdigit() and int(count) > MAX_BINS
    if not count or not set(re.findall(r"[A-Za-z_]\w*", count)) <= known or long or re.search(r"//|\*\*", count):
        return Refused(f"{without}: {found[0].name} is long, or the kernel does not know how long")
    return found[0]


def _own_bins(subject: Subject, bins: Symbol, plan: Plan) -> Change:
    name, own, at = subject.name("OWN_BINS"), subject.name("own"), subject.name("bin")
    count, width = subject.lengths[bins.name], plan.builtin("blockDim.x")
    each = f"for (unsigned int {at} = threadIdx.x; {at} < ({count}); {at} += {width})"
    opens = f"""#if {name}
extern __shared__ {bins.element} {own}[];
{each} {own}[{at}] = 0;
__syncthreads();
{{
{bins.element}* const {bins.name} = {own};
#endif"""
    closes = f"""#if {name}
}}
__syncthreads();
{each} if ({own}[{at}] != 0) atomicAdd({bins.name} + {at}, {own}[{at}]);
#endif"""
    assert bins.type.element is not None
    parameter = Parameter(name=name, values=(False, True), doc=f"whether blocks add to {bins.name} of their own first")
    return Change(
        parameters=(parameter,),
        layers=(Layer(name, opens, closes, loops=True),),
        shared=f"(({count}) * {_TYPES[bins.type.element.spelling]} if {name} else 0)",
        # The more elements a block has, the less its own bins cost.
        extends={subject.name("ITEMS"): (16, 32)},
    )


OWN_BINS = Pass("own_bins", _bins, _own_bins, after=("block_size",))


_WHY = "lanes do not share a row"


@dataclass(frozen=True, slots=True)
class _Shared:
    """A loop that lanes can share. sums: how two values of a variable are combined: "+" or a function."""

    loop: Loop
    sums: dict[Symbol, str]


@dataclass(frozen=True, slots=True)
class _Lanes:
    """alone: the statements that only the first lane carries out."""

    loops: list[_Shared]
    alone: list[Node]


def _lanes(subject: Subject) -> _Lanes | Refused:
    facts = subject.facts
    if subject.axes != ["x"] or subject.unmovable:
        return Refused(f"{_WHY}: threads do not have one coordinate")
    if not subject.bounds:
        return Refused(f"{_WHY}: there is no guard for the coordinate of a thread")
    if len(subject.returns) > 1 or facts.escaping:
        return Refused(f"{_WHY}: it returns early, or gives its arrays to functions")
    if outer := sorted(one.name for one in facts.changed if one.what == "global"):
        return Refused(f"{_WHY}: it changes {outer[0]}, which all blocks have")
    found = _Lanes([], [])
    for one in statements(facts, subject.bounds):
        inside = facts.inside(one)
        if one.what == "for":
            made = _shared(subject, one)
            if isinstance(made, str):
                return Refused(f"{_WHY}: {made}")
            found.loops.append(made)
        elif any(access.written and access.root in facts.arrays for access in inside):
            if facts.changed_in(one) - set(facts.arrays) or any(x.what in LOOPS | {"declaration"} for x in one.walk()):
                return Refused(f"{_WHY}: `{facts.text(one)[:60]}` writes in a way that other lanes need")
            found.alone.append(one)
        elif any(inner.what in LOOPS for inner in one.walk()):
            return Refused(f"{_WHY}: its loops do not stand by themselves")
    why = _apart(subject, found)
    return Refused(f"{_WHY}: {why}") if why else found


def _apart(subject: Subject, found: _Lanes) -> str:
    """Why lanes would need what others write, as a clause; empty where they do not."""
    facts = subject.facts

    def home(access: Access) -> _Shared | None:
        return next((one for one in found.loops if one.loop.node.holds(access.node)), None)

    written = {one.root for one in facts.accesses if one.written and one.root in facts.arrays}
    writing = [one for access in facts.accesses if access.root in written and (one := home(access)) is not None]
    if len({(one.loop.first, one.loop.bound) for one in writing}) > 1:
        return "its loops write different parts of a row"
    for root in sorted(written, key=lambda one: one.name):
        own = facts.of(root)
        homes = [home(one) for one in own]
        if all(one is None for one in homes):
            place = next((one for one in found.alone if one.holds(own[0].node)), None)
            if place is None or not all(place.holds(one.node) for one in own):
                return f"{root.name} is written outside of the loops, and read at other places"
            continue
        places = {
            one.index.replaced(there.loop.atom, Form.atom("k")) for one, there in zip(own, homes, strict=True) if there
        }
        if None in homes or len(places) != 1:
            return f"{root.name} is written, and used at other places"
        if any(one.index.times(there.loop.atom) != ONE for one, there in zip(own, homes, strict=True) if there):
            return f"{root.name} is written at places that are no neighbours"
    reads = [(one, there) for one in facts.accesses if one.read and (there := home(one)) is not None]
    near = any(one.index.times(there.loop.atom) == ONE for one, there in reads if one.root in facts.arrays)
    return "" if near else "there is no loop that reads neighbours"


def _shared(subject: Subject, node: Node) -> _Shared | str:
    """The loop as lanes can share it, or why they cannot."""
    facts, loop = subject.facts, subject.facts.loop(node)
    if loop is None or loop.kind != "counting" or node.fixed or node.kids[2].fixed or loop.first_node.fixed:
        return "a loop does not count one by one"
    body, inside = loop.body, facts.inside(loop.body)
    if any(one.what in ENDS - {"continue"} for one in body.walk()):
        return "a loop may end early"
    if any(one.atomic for one in inside):
        return "a loop has atomic operations"
    carried = Carried(facts, node, facts.body)
    sums = dict[Symbol, str]()
    for symbol in carried.states:
        how, kind = carried.combined(symbol), symbol.type
        if not how or kind.what not in ("number", "float") or kind.size not in (4, 8) or symbol.type.reference:
            return f"a loop changes {symbol.name} in a way that depends on the order of its rounds"
        sums[symbol] = how
    if facts.names_in(node.kids[1]) & (set(sums) | facts.declared_in(body)) or loop.variable in facts.changed_in(body):
        return "a loop changes its own length"
    for one in body.walk():
        if one.what == "name" and one.symbol in sums and not carried.fits(one):
            return f"a loop uses {one.op} before it is complete"
    own = facts.declared_in(body)
    if any(one.written and one.root not in facts.arrays and one.root not in own for one in inside):
        return "a loop writes an array of its own"
    return _Shared(loop, sums)


def _share(subject: Subject, found: _Lanes, plan: Plan) -> Change:
    name, lane, mask, at = (subject.name(one) for one in ("LANES", "lane", "mask", "row_at"))
    edits = list[Edit]()
    macros = {one: subject.name(f"LANE_{one}") for one in ("FIRST", "NEXT", "BEGIN", "JOIN", "ALONE")}
    for one in found.loops:
        loop, node = one.loop, one.loop.node
        edits.append(wrap(loop.first_node, "((", f") {macros['FIRST']})"))
        edits.append(wrap(node.kids[2], f"{macros['NEXT']}({loop.variable.name}, ", ")"))
        begin = "".join(f"{macros['BEGIN']}({symbol.name}) " for symbol, how in one.sums.items() if how == "+")
        ends = [
            f" {macros['JOIN']}({symbol.name}, {'a + b' if how == '+' else f'{how}(a, b)'})"
            for symbol, how in one.sums.items()
        ]
        last = node.end if loop.body.what == "block" else subject.facts.syntax.code.index(b";", node.end) + 1
        edits.append(Edit(node.start, last, ("{ ", begin, span(node), *(";" * (last > node.end)), *ends, " }")))
    edits += [wrap(one, f"{macros['ALONE']} ", "") for one in found.alone]
    join = "[](auto a, auto b) { return __VA_ARGS__; }"
    header = f"""#if {name} > 0
#define {macros["FIRST"]} + {lane}
#define {macros["NEXT"]}(variable, ...) variable += {name}
#define {macros["BEGIN"]}(sum) if ({lane} > 0) sum = 0;
#define {macros["JOIN"]}(sum, ...) sum = tunesmith::joined<{name}>({mask}, sum, {join});
#define {macros["ALONE"]} if ({lane} == 0)
#else
#define {macros["FIRST"]}
#define {macros["NEXT"]}(variable, ...) __VA_ARGS__
#define {macros["BEGIN"]}(sum)
#define {macros["JOIN"]}(sum, ...)
#define {macros["ALONE"]}
#endif"""
    opens = f"""const {subject.index_type} {at} = {plan.at["x"]} / ({name} > 0 ? {name} : 1);
#if {name} > 0
const int {lane} = threadIdx.x % {name};
const unsigned int {mask} = (0xffffffffu >> (32 - {name})) << (threadIdx.x % 32 / {name} * {name});
#endif"""
    block = plan.block("x")
    launch = LaunchGeometry(
        grid=(f"ceil_div({subject.threads('x')} * max({name}, 1), {block})", subject.grid("y"), subject.grid("z")),
        block=(block, "1", "1"),
    )
    because = "A row has all of its lanes in one block."
    return Change(
        parameters=(
            Parameter(name=name, values=(0, 2, 4, 8, 16, 32), doc="lanes that share the loops of a row; 0: none"),
        ),
        edits=tuple(edits),
        layers=(Layer(f"{name} > 0", opens, "", "x", at),),
        header=header,
        kit=("lanes",),
        constraints=(Constraint(expression=f"{name} == 0 or {block} % {name} == 0", because=because),),
        instead=(name, launch),
    )


ROW_LANES = Pass(
    "row_lanes",
    _lanes,
    _share,
    excludes=dict.fromkeys(("work_per_thread", "own_bins", "vectors"), "Lanes that share a row share one row."),
    after=("block_size", "work_per_thread", "cache_hints"),
)


_FUNCTIONS = ("fmaxf", "fminf", "max", "min", "fmax", "fmin")
_THREAD = Form.atom("threadIdx.x")


@dataclass(frozen=True, slots=True)
class _Tree:
    """node: the loop; array: in shared memory; first: the threads of its first step, None for half of the block; how:
    two values a and b become one, in C."""

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
    change = (
        branch.kids[1].kids[0] if branch.kids[1].what == "block" and len(branch.kids[1].kids) == 1 else branch.kids[1]
    )
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
    """How `change` puts the element of a thread and the one `step` behind together; empty where it does something
    else."""
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
