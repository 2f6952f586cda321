"""Each block adds to bins of its own in shared memory, and to the bins of all blocks once at the end.

Where threads add to a few places of an array by atomic operations, as in a histogram, all of them meet at the same
addresses. In shared memory the threads of one block meet alone (J. Gomez-Luna et al., "An optimized approach to
histogram computation on GPU", Machine Vision and Applications 24, 2013).
"""

from __future__ import annotations

from tunesmith.kernels.reader.syntax import LEFT, Symbol
from tunesmith.kernels.rewrite.facts import Facts
from tunesmith.kernels.rewrite.passes.record import Change, Layer, Pass, Refused, Subject

_ADDING = frozenset({"atomicAdd", "atomic_add", "atomic_inc", "atom_add", "atom_inc"})
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
    own = facts.of(root)
    if not all(one.by in _ADDING and one.node.alone and not one.node.fixed for one in own):
        return False
    return not by_name or all(any(one.node.holds(name) for one in own) for name in facts.uses(root))


def _own_bins(subject: Subject, found: list[Symbol]) -> Change:
    name, at, cuda = subject.name("OWN_BINS"), subject.name("bin"), subject.backend == "cuda"
    thread, threads = subject.thread
    meet = "__syncthreads();" if cuda else "barrier(CLK_LOCAL_MEM_FENCE);"
    begins, uses, ends, bytes_ = list[str](), list[str](), list[str](), {True: ["0"], False: ["0"]}
    for root in found:
        own, count, length = subject.name(f"own_{root.name}"), subject.in_kernel(subject.lengths[root.name]), ""
        fixed = subject.lengths[root.name].isdigit()
        memory = ("__shared__" if fixed else "extern __shared__") if cuda else "__local"
        length = str(count) if fixed else ""
        each = f"for (unsigned int {at} = {thread}; {at} < {count}; {at} += {threads})"
        begins.append(f"{memory} {root.element} {own}[{length}];\n{each} {own}[{at}] = 0;")
        uses.append(f"{'' if cuda else '__local '}{root.element}* const {root.name} = {own};")
        add = "atomicAdd" if cuda else "atomic_add"
        ends.append(f"{each} if ({own}[{at}] != 0) {add}(&{root.name}[{at}], {own}[{at}]);")
        bytes_[fixed].append(f"(({subject.lengths[root.name]}) * sizeof({subject.dtype(root)}) if {name} else 0)")
    once = "" if cuda or not subject.returns else f"for (int {at}_once = 0; {at}_once < 1; ++{at}_once) "
    opens = "\n".join([f"#if {name}", *begins, meet, "{", *uses, "#endif", f"{once}{{"])
    closes = "\n".join(["}", f"#if {name}", "}", meet, *ends, "#endif"])
    made = Change(layers=[Layer(name, opens, closes, loops=True)])
    made.parameter(
        name, (False, True), f"whether blocks add to {', '.join(one.name for one in found)} of their own first"
    )
    made.static_shared, made.shared = " + ".join(bytes_[True][1:]), " + ".join(bytes_[False][1:])
    # The more elements a block has, the less its own bins cost.
    made.extends[subject.name("ITEMS")] = (16, 32)
    return made


OWN_BINS = Pass("own_bins", _bins, _own_bins, after=("block_size",), languages=("cuda", "opencl"))
