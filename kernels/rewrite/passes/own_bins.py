"""Each block adds to bins of its own in shared memory, and to the bins of all blocks once at the end.

Where threads add to a few places of an array by atomic operations, as in a histogram, all of them meet at the same
addresses. In shared memory the threads of one block meet alone (J. Gomez-Luna et al., "An optimized approach to
histogram computation on GPU", Machine Vision and Applications 24, 2013).
"""

from __future__ import annotations

import re

from tunesmith.kernels.rewrite.passes.rule import Applied, Edit, Skipped, Subject, rule
from tunesmith.kernels.rewrite.source import Access, Kernel, text
from tunesmith.kernels.rewrite.threads import Cells
from tunesmith.kernels.spec.template import Parameter

_TYPES = {"int": 4, "unsigned": 4, "unsigned int": 4, "float": 4, "unsigned long long": 8}
MAX_BINS = 8192
"""Bins that a block may have of its own: it has 48 KB of shared memory without asking."""


@rule
def own_bins(given: Subject) -> Applied | Skipped:
    """Whether each block has bins of its own; False is as it was."""
    kernel = given.kernel
    if not isinstance(given.work, Cells) or [axis.name for axis in given.work.axes] != ["x"]:
        return Skipped("blocks have no bins of their own: threads do not have one coordinate")
    if given.work.axes[0].strided or given.launch.shared_bytes != "0":
        return Skipped("blocks have no bins of their own: the kernel steps by its grid, or has shared memory")
    found = [one for one in kernel.parameters if one.pointer and _only_added_to(kernel, one.name)]
    if len(found) != 1 or found[0].c_type not in _TYPES:
        return Skipped("blocks have no bins of their own: there is not one array that threads do nothing to but add")
    bins = found[0]
    count = given.lengths.get(bins.name, "")
    words = set(re.findall(r"[A-Za-z_]\w*", count))
    long = count.isdigit() and int(count) > MAX_BINS
    if not count or not words <= kernel.constants or long or re.search(r"//|\*\*", count):
        return Skipped(f"blocks have no bins of their own: {bins.name} is long, or the kernel does not know how long")
    name, own, at = given.name("OWN_BINS"), given.name("own"), given.name("bin")
    each = f"for (unsigned int {at} = threadIdx.x; {at} < ({count}); {at} += blockDim.x)"
    opening = f"""{{
#if {name}
extern __shared__ {bins.c_type} {own}[];
{each} {own}[{at}] = 0;
__syncthreads();
{{
{bins.c_type}* const {bins.name} = {own};
#endif
"""
    closing = f"""
#if {name}
}}
__syncthreads();
{each} if ({own}[{at}] != 0) atomicAdd({bins.name} + {at}, {own}[{at}]);
#endif
}}"""
    edits = (
        Edit(kernel.body.start_byte, kernel.body.start_byte, opening),
        Edit(kernel.body.end_byte, kernel.body.end_byte, closing, closes=True),
    )
    parameter = Parameter(name=name, values=(False, True), doc=f"whether blocks add to {bins.name} of their own first")
    return Applied((parameter,), edits, shared=f"(({count}) * {_TYPES[bins.c_type]} if {name} else 0)")


def _only_added_to(kernel: Kernel, root: str) -> bool:
    """Whether the kernel does nothing with an array but add to it, without reading the value that was there."""
    own = [one for one in kernel.accesses if one.root == root]
    return bool(own) and root not in kernel.escaping and all(_added(one) for one in own)


def _added(access: Access) -> bool:
    call = access.node
    while call.type != "call_expression" and call.parent is not None and call.parent.type != "expression_statement":
        call = call.parent
    function = call.child_by_field_name("function")
    alone = call.parent is not None and call.parent.type == "expression_statement"
    return access.atomic and alone and function is not None and text(function) == "atomicAdd"
