"""Each block adds to bins of its own in shared memory, and to the bins of all blocks once at the end.

Where threads add to a few places of an array by atomic operations, as in a histogram, all of them meet at the same
addresses. In shared memory the threads of one block meet alone (J. Gomez-Luna et al., "An optimized approach to
histogram computation on GPU", Machine Vision and Applications 24, 2013). There, too, lanes wait for each other at one
address, and at others in its bank: with copies of each bin, side by side, neighbouring lanes have banks of their own.
"""

from __future__ import annotations

from tunesmith.kernels.reader.syntax import LEFT, LOOPS, Symbol
from tunesmith.kernels.rewrite.edits import insert, replace, span, switched, wrap
from tunesmith.kernels.rewrite.facts import Facts
from tunesmith.kernels.rewrite.passes.record import BOTH, Change, Layer, Pass, Refused, Subject, require, required

_TYPES = {"cuda": ("int32", "uint32", "float32", "uint64"), "opencl": ("int32", "uint32")}
_COPIES, _DOC = (1, 2, 4, 8, 16, 32), "copies of each bin of a block, on which its lanes take turns"
MAX_BINS = 8192
"""Bins that a block may have of its own: it has 48 KB of shared memory without asking."""


def _bins(subject: Subject) -> list[Symbol]:
    facts, opencl = subject.facts, subject.backend == "opencl"
    if facts.shared:
        raise Refused(f"it has {facts.shared[0].name}, which a block shares, already")
    inside = opencl and any(one.inside(LEFT) or one.fixed for one in subject.returns)
    require(not inside, "the kernel returns from inside a loop or a macro")
    found, why = list[Symbol](), "there is no array that threads do nothing to but add"
    for root in facts.arrays:
        own, count = facts.of(root), subject.lengths.get(root.name, "")
        if not own or root in facts.escaping or not all(one.adds for one in own):
            continue
        if opencl and not _by_name(facts, root):
            continue
        line = f"line {facts.syntax.line(own[0].node)} adds to {root.name}"
        if subject.dtype(root) not in _TYPES[subject.backend]:
            why = f"{line}, which has another type than {', '.join(_TYPES[subject.backend])}"
        elif subject.in_kernel(count) is None:
            why = f"{line}, and the kernel does not know how long that is"
        elif count.isdigit() and int(count) > MAX_BINS:
            why = f"{line}, which has more than {MAX_BINS} elements"
        elif not count.isdigit() and (opencl or found):
            why = f"{line}, whose length is known only when the kernel runs"
        else:
            found.append(root)
    return required(found, why)


def _by_name(facts: Facts, root: Symbol) -> bool:
    """Whether all that is done to an array is done by its own name, and in its own type."""
    own = [one.node for one in facts.of(root)]
    same = not any(one.what == "cast" and one.type.what == "pointer" for node in own for one in node.walk())
    return same and all(any(node.holds(name) for node in own) for name in facts.uses(root))


def _own_bins(subject: Subject, found: list[Symbol]) -> Change:
    name, at, cuda, made = subject.name("OWN_BINS"), subject.name("bin"), subject.backend == "cuda", Change()
    thread, threads = subject.thread
    meet = "__syncthreads();" if cuda else "barrier(CLK_LOCAL_MEM_FENCE);"
    copies = subject.name("COPIES") if all(_by_name(subject.facts, one) for one in found) else "1"
    begins, uses, ends, bytes_ = list[str](), list[str](), list[str](), {True: ["0"], False: ["0"]}
    for root in found:
        own, count = subject.name(f"own_{root.name}"), subject.in_kernel(subject.lengths[root.name])
        fixed = subject.lengths[root.name].isdigit()
        memory, length = ("__shared__", count) if fixed else ("extern __shared__", "")
        memory = memory if cuda else "__local"
        each = f"for (unsigned int {at} = {thread}; {at} < {count}; {at} += {threads})"
        zero = each.replace(f"{count};", f"{count} * {copies};")
        begins.append(f"{memory} {root.element} {own}[{length}][{copies}];")
        begins.append(f"{zero} {own}[{at} / {copies}][{at} % {copies}] = 0;")
        kind, place = f"{'' if cuda else '__local '}{root.element}", f"{at}_copy"
        shadow = f"* const {root.name} = {own}[0]" if copies == "1" else f"(* const {root.name})[{copies}] = {own}"
        uses.append(f"{kind} {shadow};")
        add = "atomicAdd" if cuda else "atomic_add"
        # Lanes begin with copies in different banks.
        turns = f"for (unsigned int {place} = {at}; {place} < {at} + {copies}; ++{place})"
        ends += [f"{each} {{\n{root.element} {at}_sum = 0;\n{turns} {at}_sum += {own}[{at}][{place} % {copies}];"]
        ends += [f"if ({at}_sum != 0) {add}(&{root.name}[{at}], {at}_sum);\n}}"]
        size = f"({subject.lengths[root.name]}) * sizeof({subject.dtype(root)})"
        bytes_[fixed].append(f"({size} * {copies} if {name} else 0)")
    once = "" if cuda or not subject.returns else f"for (int {at}_once = 0; {at}_once < 1; ++{at}_once) "
    opens = "\n".join([f"#if {name}", *begins, meet, "{", *uses, "#endif", f"{once}{{"])
    closes = "\n".join(["}", f"#if {name}", "}", meet, *ends, "#endif"])
    made.layers.append(Layer(name, opens, closes, loops=True))
    made.parameter(
        name, (False, True), f"whether blocks add to {', '.join(one.name for one in found)} of their own first"
    )
    if copies != "1":
        mine, adds = subject.name("COPY_OF"), [one for root in found for one in subject.facts.of(root)]
        made.edits += [wrap(one.node.kids[1], f"{mine}(", ")") for one in adds]
        made.header.append(switched(name, {f"{mine}(...)": (_copy(subject, "__VA_ARGS__"), "(__VA_ARGS__)")}))
        made.parameter(copies, _COPIES, _DOC)
        made.constraints[f"{name} or {copies} == 1"] = "There are no bins to copy."
    made.static_shared, made.shared = " + ".join(bytes_[True][1:]), " + ".join(bytes_[False][1:])
    # The more elements a block has, the less its own bins cost.
    made.extends[subject.name("ITEMS")] = (16, 32)
    return made


def _copy(subject: Subject, bin_: str) -> str:
    """The address of a lane's copy of a bin, by that of all its copies, in C."""
    return f"(*({bin_}) + {subject.thread[0]} % {subject.name('COPIES')})"


def _shared_bins(subject: Subject) -> list[Symbol]:
    """The arrays in shared memory to which loops add, and whose elements are cleared and read besides."""
    facts, found = subject.facts, list[Symbol]()
    for root in facts.shared:
        kind, own, plain = root.type, facts.of(root), root.declared is not None and not root.declared.fixed
        plain = plain and kind.size > 0 and kind.element is not None and kind.element.what in ("number", "float")
        others = [one for one in own if not one.adds]
        known = all(x.node.what == "index" and not x.node.fixed and (x.clears or not x.written) for x in others)
        if plain and known and root not in facts.escaping and _by_name(facts, root):
            found += [root] if any(one.adds and one.node.inside(LOOPS) for one in own) else []
    return required(found, "bins stay alone: no loop adds to an array in shared memory that is a histogram's")


def _copies(subject: Subject, found: list[Symbol]) -> Change:
    made, copies = Change(kit=("copies",)), subject.name("COPIES")
    made.edits += [insert(root.declared.end, f"[{copies}]") for root in found if root.declared is not None]
    for one in (one for root in found for one in subject.facts.of(root)):
        if one.adds:
            made.edits.append(wrap(one.node.kids[1], *_copy(subject, "\n").split("\n")))
        elif one.assignment is not None:
            made.edits.append(replace(one.assignment, "tunesmith::clear(", span(one.node), ")"))
        else:
            made.edits.append(wrap(one.node, "tunesmith::total(", ")"))
    made.parameter(copies, _COPIES, _DOC)
    made.static_shared = f"({copies} - 1) * {sum(one.type.size for one in found)}"
    return made


OWN_BINS = Pass(
    "own_bins", _bins, _own_bins, why="blocks have no bins of their own: ", after=("block_size",), languages=BOTH
)
COPIES = Pass("copies", _shared_bins, _copies, after=("block_size",))
