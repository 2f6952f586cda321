"""Each block adds to bins of its own in shared memory, and to the bins of all blocks once at the end.

Where threads add to a few places of an array by atomic operations, as in a histogram, all of them meet at the same
addresses. In shared memory the threads of one block meet alone (J. Gomez-Luna et al., "An optimized approach to
histogram computation on GPU", Machine Vision and Applications 24, 2013). There, too, lanes wait for each other at one
address, and at different ones in one bank: with a copy of each bin for each of several lanes, side by side, they have
addresses and banks of their own.
"""

from __future__ import annotations

from tunesmith.kernels.reader.syntax import LEFT, LOOPS, Symbol
from tunesmith.kernels.rewrite.edits import insert, replace, span, switched, wrap
from tunesmith.kernels.rewrite.facts import Access, Facts
from tunesmith.kernels.rewrite.passes.record import Change, Layer, Pass, Refused, Subject

_TYPES = {"cuda": ("int32", "uint32", "float32", "uint64"), "opencl": ("int32", "uint32")}
MAX_BINS = 8192
"""Bins that a block may have of its own: it has 48 KB of shared memory without asking."""


def _bins(subject: Subject) -> list[Symbol] | Refused:
    facts, without = subject.facts, "blocks have no bins of their own"
    opencl = subject.backend == "opencl"
    if facts.shared:
        return Refused(f"{without}: it has {facts.shared[0].name}, which a block shares, already")
    if opencl and any(one.inside(LEFT) or one.fixed for one in subject.returns):
        return Refused(f"{without}: the kernel returns from inside a loop or a macro")
    found, why = list[Symbol](), "there is no array that threads do nothing to but add"
    for root in facts.arrays:
        own, count = facts.of(root), subject.lengths.get(root.name, "")
        if not own or root in facts.escaping or root in facts.moved or not _is_added_to(facts, root, opencl):
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
    return found or Refused(f"{without}: {why}")


def _is_added_to(facts: Facts, root: Symbol, by_name: bool) -> bool:
    """Whether all that is done to an array are additions whose results nobody uses. by_name: by its own name."""
    return all(one.adds for one in facts.of(root)) and (not by_name or _by_name(facts, root))


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
        own, count, length = subject.name(f"own_{root.name}"), subject.in_kernel(subject.lengths[root.name]), ""
        fixed = subject.lengths[root.name].isdigit()
        memory = ("__shared__" if fixed else "extern __shared__") if cuda else "__local"
        length = str(count) if fixed else ""
        each = f"for (unsigned int {at} = {thread}; {at} < {count}; {at} += {threads})"
        zero = each.replace(f"{count};", f"{count} * {copies};")
        begins.append(f"{memory} {root.element} {own}[{length}][{copies}];")
        begins.append(f"{zero} {own}[{at} / {copies}][{at} % {copies}] = 0;")
        kind, place = f"{'' if cuda else '__local '}{root.element}", f"{at}_copy"
        shadow = f"* const {root.name} = {own}[0]" if copies == "1" else f"(* const {root.name})[{copies}] = {own}"
        uses.append(f"{kind} {shadow};")
        add = "atomicAdd" if cuda else "atomic_add"
        ends += [f"{each} {{", f"{root.element} {at}_sum = 0;"]
        ends.append(f"for (unsigned int {place} = {at}; {place} < {at} + {copies}; ++{place})")
        ends.append(f"{at}_sum += {own}[{at}][{place} % {copies}];")
        ends += [f"if ({at}_sum != 0) {add}(&{root.name}[{at}], {at}_sum);", "}"]
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
        _copied(subject, made, found, name)
        made.constraints[f"{name} or {copies} == 1"] = "There are no bins to copy."
    made.static_shared, made.shared = " + ".join(bytes_[True][1:]), " + ".join(bytes_[False][1:])
    # The more elements a block has, the less its own bins cost.
    made.extends[subject.name("ITEMS")] = (16, 32)
    return made


def _copied(subject: Subject, made: Change, bins: list[Symbol], on: str) -> None:
    """A parameter of how many copies each bin has where `on` holds, and of each addition the lane's own."""
    copies, mine = subject.name("COPIES"), subject.name("COPY_OF")
    adds = [one for root in bins for one in subject.facts.of(root) if one.adds]
    made.parameter(copies, (1, 2, 4, 8, 16, 32), "copies of each bin of a block, which its lanes take turns on")
    made.edits += [wrap(one.node.kids[1], f"{mine}(", ")") for one in adds]
    copy = f"(*(__VA_ARGS__) + {subject.thread[0]} % {copies})", "(__VA_ARGS__)"
    made.header.append(switched(on, {f"{mine}(...)": copy}))


def _shared_bins(subject: Subject) -> list[Symbol] | Refused:
    """The arrays in shared memory to which loops add, and that are cleared and read element by element besides."""
    facts, found = subject.facts, list[Symbol]()
    for root in facts.shared:
        kind, own = root.type, facts.of(root)
        of_numbers = kind.what == "array" and kind.element is not None and kind.element.what in ("number", "float")
        known = root.declared is not None and not root.declared.fixed and kind.size > 0 and root not in facts.escaping
        if of_numbers and known and _by_name(facts, root) and all(x.adds or _copyable(x) for x in own):
            found += [root] if any(one.node.inside(LOOPS) for one in own if one.adds) else []
    return found or Refused("bins stay alone: no loop adds to an array in shared memory that is a histogram's")


def _copyable(access: Access) -> bool:
    """Whether it reads an element, or clears it."""
    plain = access.node.what == "index" and not access.node.fixed
    return plain and (access.clears or not access.written)


def _copies(subject: Subject, found: list[Symbol]) -> Change:
    made, copies, facts = Change(kit=("copies",)), subject.name("COPIES"), subject.facts
    side, total, clear = (subject.name(one) for one in ("BESIDE", "ALL_COPIES", "CLEAR_COPIES"))
    on = f"{copies} > 1"
    _copied(subject, made, found, on)
    for root in found:
        assert root.declared is not None, "what is found is declared"
        made.edits.append(insert(root.declared.end, f" {side}"))
        for one in facts.of(root):
            if one.clears and one.node.parent is not None:
                made.edits.append(replace(one.node.parent, f"{clear}(", span(one.node), ")"))
            elif not one.atomic:
                made.edits.append(wrap(one.node, f"{total}(", ")"))
    macros = {side: (f"[{copies}]", ""), f"{total}(...)": ("tunesmith::total(__VA_ARGS__)", "(__VA_ARGS__)")}
    macros[f"{clear}(...)"] = "tunesmith::clear(__VA_ARGS__)", "__VA_ARGS__ = 0"
    made.header.append(switched(on, macros))
    made.static_shared = f"({copies} - 1) * {sum(one.type.size for one in found)}"
    return made


OWN_BINS = Pass("own_bins", _bins, _own_bins, after=("block_size",), languages=("cuda", "opencl"))
COPIES = Pass("copies", _shared_bins, _copies, after=("block_size",))
