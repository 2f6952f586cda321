"""A row that several loops of a block read is kept in registers: memory is asked once instead of twice or more.

Each thread reads its first elements of the row ahead of the first of those loops. Every loop then goes over these,
unrolled, so that they can be registers, and over the rest of the row as before, in the same order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunesmith.kernels.rewrite.passes.rule import Applied, Edit, Skipped, Subject
from tunesmith.kernels.rewrite.source import Access, Kernel, text, walk
from tunesmith.kernels.rewrite.threads import block_stride, loop_of
from tunesmith.kernels.spec.parameter import Parameter

if TYPE_CHECKING:
    from tree_sitter import Node


_UNCERTAIN = frozenset(
    {"if_statement", "for_statement", "while_statement", "do_statement", "switch_statement", "conditional_expression",
     "lambda_expression"}
)  # fmt: skip
"""What may leave out what stands in it."""
_WORDS = frozenset({"threadIdx", "blockIdx", "blockDim", "gridDim", "x", "y", "z", "int", "size_t", "long", "unsigned"})


@dataclass(frozen=True, slots=True)
class _Loop:
    """node: `for (TYPE NAME = FIRST; NAME < BOUND; NAME += STEP) body`, in which the threads of a block take turns."""

    node: Node
    body: Node
    c_type: str
    name: str
    first: Node
    bound: str
    step: str


def kept_rows(given: Subject) -> Applied | Skipped:
    """How many elements of a row each thread keeps; 0 is as it was."""
    kernel = given.kernel
    loops = [one for node in walk(kernel.body) if (one := _loop(kernel, node)) is not None]
    chosen = _read_again(kernel, loops)
    if chosen is None:
        return Skipped("no row is read by several loops of a block from an array that is never written")
    root, places = chosen
    parameter = next(one for one in kernel.parameters if one.name == root)
    name, kept, at = given.name("KEEP"), given.name(f"kept_{root}"), given.name("at")
    edits = list[Edit]()
    for number, (loop, accesses) in enumerate(places):
        at_place = f"const {loop.c_type} {loop.name} = ({text(loop.first)}) + {at} * ({loop.step})"
        counted = f"#pragma unroll\nfor (int {at} = 0; {at} < {name}; ++{at})"
        head = f"{counted} {{ {at_place}; if ({loop.name} < {loop.bound}) "
        new = f"\n#if {name} > 0\n"
        if number == 0:
            new += f"{parameter.c_type} {kept}[{name}];\n{head}{kept}[{at}] = {text(accesses[0].node)}; }}\n"
        new += f"{head}{_with(loop.body, accesses, f'{kept}[{at}]')} }}\n#endif\n"
        edits.append(Edit(loop.node.start_byte, loop.node.start_byte, new))
        rest = f" + {name} * ({loop.step})"
        edits.append(Edit(loop.first.end_byte, loop.first.end_byte, rest))
    doc = f"elements of {root} that a thread keeps in registers; 0: none"
    return Applied((Parameter(name=name, values=(0, 2, 4, 8, 16), doc=doc),), tuple(edits))


def _loop(kernel: Kernel, node: Node) -> _Loop | None:
    """A loop in which the threads of a block take turns, and whose body only goes on to the next round."""
    if node.type != "for_statement" or block_stride(kernel, node) is None or node.parent != kernel.body:
        return None
    loop, body, start = loop_of(node), node.child_by_field_name("body"), node.child_by_field_name("initializer")
    if loop is None or body is None or start is None:
        return None
    kind = start.child_by_field_name("type")
    inside = [one.type for one in walk(body)]
    changed = any(
        text(one) == loop[0] and body.start_byte <= one.start_byte < body.end_byte for one in kernel.changed_names
    )
    ends = {"break_statement", "return_statement", "goto_statement", "preproc_if", "preproc_ifdef"} & set(inside)
    if kind is None or changed or ends or "preproc" in " ".join(inside) or kernel.builtin(loop[1]) != "threadIdx.x":
        return None
    return _Loop(node, body, text(kind), loop[0], loop[1], loop[2], text(loop[3]))


def _read_again(kernel: Kernel, loops: list[_Loop]) -> tuple[str, list[tuple[_Loop, list[Access]]]] | None:
    """The array that most loops read at the same place, and these loops with their reads of it."""
    best: tuple[str, list[tuple[_Loop, list[Access]]]] | None = None
    for root in [one.name for one in kernel.parameters if one.pointer]:
        own = [one for one in kernel.accesses if one.root == root]
        if root in kernel.escaping or any(one.written for one in own):
            continue
        by_place: dict[tuple[str, ...], list[tuple[_Loop, list[Access]]]] = {}
        for loop in loops:
            inside = [one for one in own if loop.body.start_byte <= one.node.start_byte < loop.body.end_byte]
            for place in dict.fromkeys(_place(one, loop) for one in inside):
                same = [one for one in inside if _place(one, loop) == place]
                # Read for certain in every round, so that reading it ahead reads nothing that the kernel would not.
                if _certain(same, loop) and _known_before(
                    kernel, (*place, *map(text, (one.node for one in same))), loop, loops[0]
                ):
                    by_place.setdefault((*place, loop.bound), []).append((loop, same))
        for found in by_place.values():
            if len(found) > 1 and (best is None or len(found) > len(best[1])):
                best = root, found
    return best


def _place(access: Access, loop: _Loop) -> tuple[str, ...]:
    """The index of an access, with the loop's variable by the same name in all loops."""
    parts = (re.sub(rf"\b{loop.name}\b", "@", re.sub(r"\s+", "", text(part))) for part in access.path)
    return tuple(sorted(parts))


def _certain(accesses: list[Access], loop: _Loop) -> bool:
    for one in accesses:
        above: Node | None = one.node.parent
        while above is not None and above != loop.node:
            either = above.type == "binary_expression" and re.search(r"&&|\|\|", text(above))
            if above.type in _UNCERTAIN or either:
                break
            above = above.parent
        else:
            return True
    return False


def _known_before(kernel: Kernel, place: tuple[str, ...], loop: _Loop, first: _Loop) -> bool:
    """Whether all that a place names is a builtin, a parameter, or a variable that was made before the first loop and
    is never changed."""
    names = {name for part in (*place, loop.bound) for name in re.findall(r"[A-Za-z_]\w*", part)}
    changed = {text(one) for one in kernel.changed_names}
    declared = {text(one): one for one in kernel.declared_names}
    parameters = {one.name for one in kernel.parameters}
    for name in names - _WORDS:
        if name == loop.name:
            continue
        if name in changed:
            return False
        if name in declared:
            if declared[name].start_byte >= first.node.start_byte:
                return False
        elif name not in parameters:
            return False
    return True


def _with(body: Node, accesses: list[Access], kept: str) -> str:
    """The body's text with the accesses replaced."""
    code, start = (body.text or b""), body.start_byte
    for one in sorted(accesses, key=lambda one: -one.node.start_byte):
        code = code[: one.node.start_byte - start] + kept.encode() + code[one.node.end_byte - start :]
    return code.decode()
