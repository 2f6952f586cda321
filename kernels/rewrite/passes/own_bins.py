"""Each block adds to bins of its own in shared memory, and to the bins of all blocks once at the end.

Where threads add to a few places of an array by atomic operations, as in a histogram, all of them meet at the same
addresses. In shared memory the threads of one block meet alone (J. Gomez-Luna et al., "An optimized approach to
histogram computation on GPU", Machine Vision and Applications 24, 2013).
"""

from __future__ import annotations

import re

from tunesmith.kernels.rewrite.passes.record import Change, Layer, Pass, Plan, Refused, Subject
from tunesmith.kernels.rewrite.sharing import Cells
from tunesmith.kernels.rewrite.syntax import Symbol
from tunesmith.kernels.spec.template import Parameter

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
