"""A tree of additions or maxima in shared memory becomes exchanges between the lanes of a warp.

The tree halves the active threads step by step, with a barrier after each: eight barriers for 256 threads. Here each
warp combines its 32 values in registers, one value for each warp goes through shared memory, and three barriers are
left (M. Harris, "Optimizing Parallel Reduction in CUDA", and the CUDA C++ Programming Guide, "Warp Shuffle Functions").
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tunesmith.kernels.rewrite.passes.rule import Applied, Edit, Skipped, Subject, rule
from tunesmith.kernels.rewrite.source import Kernel, text, walk
from tunesmith.kernels.rewrite.threads import Fixed
from tunesmith.kernels.spec.template import Parameter

if TYPE_CHECKING:
    from tree_sitter import Node

_STEP = (
    r"for\((?:int|unsigned|unsignedint)(?P<o>\w+)=(?P<first>blockDim\.x/2|blockDim\.x>>1|\d+);(?P=o)>0;"
    r"(?P=o)(?:>>=1|/=2)\)\{if\((?P<t>[\w.]+)<(?P=o)\)\{?(?P<s>\w+)\[(?P=t)\](?P<how>[^;]*);\}?__syncthreads\(\);\}"
)
_FUNCTIONS = ("fmaxf", "fminf", "max", "min", "fmax", "fmin")


@rule
def shuffles(given: Subject) -> Applied | Skipped:
    """Whether trees in shared memory are combined by warps; False is as it was. For blocks of a power of two threads in
    one dimension, of which the tree leaves its result in element 0."""
    kernel = given.kernel
    trees = [(node, found) for node in walk(kernel.body) if (found := _tree(kernel, node)) is not None]
    if not trees:
        return Skipped("there is no tree of additions or maxima in shared memory")
    if not isinstance(given.work, Fixed):
        return Skipped("trees in shared memory stay: the size of a block is free")
    threads = given.block("x")
    whole = threads.isdigit() and 32 <= int(threads) <= 1024 and int(threads) & (int(threads) - 1) == 0
    if not whole or (given.block("y"), given.block("z")) != ("1", "1"):
        return Skipped("trees in shared memory stay: the block is not a power of two from 32 to 1024 in one dimension")
    name, edits = given.name("SHUFFLES"), list[Edit]()
    value, other, mask = given.name("combined"), given.name("other"), given.name("mask")
    for node, (array, thread, first, combine) in trees:
        c_type = _element(kernel, array)
        if first.isdigit() and int(first) * 2 != int(threads):
            return Skipped(f"the tree in {array} stays: it begins at {first}, and blocks have {threads} threads")
        if c_type is None or not _only_first_is_used(kernel, array, thread, [one for one, _ in trees]):
            return Skipped(f"the tree in {array} stays: more than its first element is used")
        # As many loads as warps, which are a power of two, so that every lane has one and they take turns.
        exchange = f"{{ const {c_type} {other} = __shfl_xor_sync(0xffffffffu, {value}, {mask}); {combine} }}".replace(
            "$a", value
        ).replace("$b", other)
        new = f"""
#if {name}
{{
{c_type} {value} = {array}[{thread}];
#pragma unroll
for (int {mask} = 16; {mask} > 0; {mask} >>= 1) {exchange}
__syncthreads();
if ({thread} % 32 == 0) {array}[{thread} / 32] = {value};
__syncthreads();
{value} = {array}[{thread} % ({threads} / 32)];
#pragma unroll
for (int {mask} = {threads} / 64; {mask} > 0; {mask} >>= 1) {exchange}
__syncthreads();
if ({thread} == 0) {array}[0] = {value};
__syncthreads();
}}
#else
"""
        edits += [
            Edit(node.start_byte, node.start_byte, new),
            Edit(node.end_byte, node.end_byte, "\n#endif\n", closes=True),
        ]
    parameter = Parameter(name=name, values=(False, True), doc="whether warps combine values by shuffles")
    return Applied((parameter,), tuple(edits))


def _tree(kernel: Kernel, node: Node) -> tuple[str, str, str, str] | None:
    """Array, thread's number, first step and how two values $a and $b are combined into $a; None for another node."""
    if node.type != "for_statement":
        return None
    match = re.fullmatch(_STEP, re.sub(r"\s+", "", text(node).replace("unsigned int", "unsigned")))
    if match is None:
        return None
    array, thread, step = match["s"], match["t"], match["o"]
    if thread != "threadIdx.x" and kernel.aliases.get(thread) != "threadIdx.x":
        return None
    mine, its, how = f"{array}[{thread}]", f"{array}[{thread}+{step}]", match["how"]
    if how in (f"+={its}", f"={mine}+{its}", f"={its}+{mine}"):
        return array, thread, match["first"], "$a += $b;"
    for function in _FUNCTIONS:
        if how in (f"={function}({mine},{its})", f"={function}({its},{mine})"):
            return array, thread, match["first"], f"$a = {function}($a, $b);"
    return None


def _element(kernel: Kernel, array: str) -> str | None:
    """The element type of a shared array of one dimension."""
    for node in walk(kernel.body):
        if (
            node.type == "declaration"
            and "__shared__" in text(node)
            and re.search(rf"\b{array}\s*\[[^\]]*\]\s*[;,]", text(node))
        ):
            kind = node.child_by_field_name("type")
            return None if kind is None else text(kind)
    return None


def _only_first_is_used(kernel: Kernel, array: str, thread: str, trees: list[Node]) -> bool:
    """Whether, outside the trees, each thread only writes its own element and all read nothing but the first."""
    for node in walk(kernel.body):
        if (
            node.type != "identifier"
            or text(node) != array
            or any(one.start_byte <= node.start_byte < one.end_byte for one in trees)
        ):
            continue
        above = node.parent
        if above is None or above.type == "array_declarator":
            continue
        place = re.sub(r"\s+", "", text(above))
        outer = above.parent
        written = (
            outer is not None and outer.type == "assignment_expression" and outer.child_by_field_name("left") == above
        )
        if written and place == f"{array}[{thread}]" and outer is not None and " = " in text(outer):
            continue
        if not written and place == f"{array}[0]":
            continue
        return False
    return True
