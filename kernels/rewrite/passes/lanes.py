"""The loops of a thread over its row become loops of several lanes, which read neighbours and then combine their sums.

Where one thread goes over a whole row, as in a plain product of a matrix and a vector, the threads of a warp read from
as many rows at a time. Here lanes of one warp share a row: they take turns on each loop, and combine what it sums up,
or its largest or smallest, by shuffles, so that all of them have the result (CUDA C++ Programming Guide, "Warp Shuffle
Functions"). What is written outside the loops is written by the first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunesmith.kernels.rewrite.passes.halo import halo
from tunesmith.kernels.rewrite.passes.hints import marked_loads
from tunesmith.kernels.rewrite.passes.output_tiles import declared_types, guarded, is_term, names_in
from tunesmith.kernels.rewrite.passes.own_bins import own_bins
from tunesmith.kernels.rewrite.passes.rule import Applied, Edit, Skipped, Subject, rule
from tunesmith.kernels.rewrite.passes.vectors import vectors
from tunesmith.kernels.rewrite.source import Access, Kernel, bare, operator, text, walk
from tunesmith.kernels.rewrite.threads import Cells, global_coordinate, loop_of
from tunesmith.kernels.spec.template import Constraint, LaunchGeometry, Parameter

if TYPE_CHECKING:
    from tree_sitter import Node

_FUNCTIONS = ("fmaxf", "fminf", "fmax", "fmin", "max", "min")
_TYPES = ("float", "double", "int", "unsigned", "unsigned int", "long long")
_ENDS = frozenset({"break_statement", "return_statement", "goto_statement", "continue_statement"})


@dataclass(frozen=True, slots=True)
class _Loop:
    """A loop that lanes can share. sums: how two values of a variable are combined, by its name: "+" or a function."""

    node: Node
    first: Node
    update: Node
    name: str
    place: tuple[str, str]
    sums: dict[str, str]


@rule
def row_lanes(given: Subject) -> Applied | Skipped:
    """How many lanes of a warp share the loops of a thread; 0 is as it was."""
    kernel = given.kernel
    if not isinstance(given.work, Cells) or [axis.name for axis in given.work.axes] != ["x"]:
        return Skipped("lanes do not share a row: threads do not have one coordinate")
    (axis,) = given.work.axes
    if not axis.bound or axis.strided or "#" in kernel.plain:
        return Skipped("lanes do not share a row: there is no guard for the coordinate of a thread")
    found = _loops(kernel)
    if isinstance(found, str):
        return Skipped(f"lanes do not share a row: {found}")
    loops, alone = found
    name, lane, mask = (given.name(one) for one in ("LANES", "lane", "mask"))
    types, body = declared_types(kernel), kernel.body
    inserts: list[tuple[int, int, str]] = []
    for loop in loops:
        inserts.append((loop.first.start_byte, loop.first.end_byte, f"({text(loop.first)}) + {lane}"))
        inserts.append((loop.update.start_byte, loop.update.end_byte, f"{loop.name} += {name}"))
        begin = "".join(f"if ({lane} > 0) {one} = 0; " for one, how in loop.sums.items() if how == "+")
        inserts.append((loop.node.start_byte, loop.node.start_byte, begin))
        inserts.append((loop.node.end_byte, loop.node.end_byte, _combined(given, loop, types, name, mask)))
    inserts += [(one.start_byte, one.start_byte, f"if ({lane} == 0) ") for one in alone]
    for access in marked_loads(given):
        inserts.append((access.node.start_byte, access.node.start_byte, f"{given.name('LOAD')}(&"))
        inserts.append((access.node.end_byte, access.node.end_byte, ")"))
    for node in walk(body):
        if global_coordinate(kernel, node) == "x":
            inserts.append((node.start_byte, node.end_byte, f"(({text(node)}) / {name})"))
    code, start = (body.text or b""), body.start_byte
    for begin_, end, new in sorted(inserts, key=lambda one: (-one[0], one[1])):
        code = code[: begin_ - start] + new.encode() + code[end - start :]
    lines = [
        f"{{\n#if {name} > 0",
        "{",
        f"const int {lane} = threadIdx.x % {name};",
        f"const unsigned int {mask} = (0xffffffffu >> (32 - {name})) << (threadIdx.x % 32 / {name} * {name});",
        code.decode(),
        "}",
        "#else",
        "",
    ]
    edits = (
        Edit(body.start_byte, body.start_byte, "\n".join(lines)),
        Edit(body.end_byte, body.end_byte, "\n#endif\n}", closes=True),
    )
    block = f"({given.name('BLOCK')} if {given.name('BLOCK')} > 0 else ({given.block('x')}))"
    total = f"({given.grid('x')}) * ({given.block('x')})"
    launch = LaunchGeometry(
        grid=(f"ceil_div({total} * max({name}, 1), {block})", given.grid("y"), given.grid("z")),
        block=(block, "1", "1"),
    )
    because = "Lanes that share a row share one row."
    constraints = [
        Constraint(expression=f"{name} == 0 or {given.name('ITEMS')} == 1", because=because),
        Constraint(
            expression=f"{name} == 0 or {block} % {name} == 0", because="A row has all of its lanes in one block."
        ),
    ]
    if isinstance(own_bins(given), Applied):
        constraints.append(Constraint(expression=f"{name} == 0 or not {given.name('OWN_BINS')}", because=because))
    if isinstance(halo(given), Applied):
        constraints.append(Constraint(expression=f"{name} == 0 or not {given.name('HALO')}", because=because))
    if isinstance(vectors(given), Applied):
        constraints.append(Constraint(expression=f"{name} == 0 or {given.name('VEC')} == 1", because=because))
    parameter = Parameter(name=name, values=(0, 2, 4, 8, 16, 32), doc="lanes that share the loops of a row; 0: none")
    return Applied((parameter,), edits, "", tuple(constraints), instead=(name, launch))


def _combined(given: Subject, loop: _Loop, types: dict[str, str], name: str, mask: str) -> str:
    by = given.name("distance")
    lines = []
    for one, how in loop.sums.items():
        other = f"__shfl_xor_sync({mask}, {one}, {by})"
        step = f"{one} += {other}" if how == "+" else f"{one} = {how}({one}, {other})"
        lines.append(f"\n#pragma unroll\nfor (int {by} = {name} / 2; {by} > 0; {by} >>= 1) {step};\n")
    return "".join(lines)


def _loops(kernel: Kernel) -> tuple[list[_Loop], list[Node]] | str:
    """The loops behind the guard, and the statements that only the first lane carries out; or why lanes cannot share
    them, as a clause."""
    statements = guarded(kernel)
    if sum(one.type == "return_statement" for one in walk(kernel.body)) > 1 or kernel.escaping:
        return "it returns early, or gives its arrays to functions"
    if outer := kernel.changed - {one.name for one in kernel.parameters} - {text(one) for one in kernel.declared_names}:
        return f"it changes {min(outer)}, which all blocks have"
    loops: list[_Loop] = []
    alone: list[Node] = []
    types = declared_types(kernel)
    for one in statements:
        inside = [access for access in kernel.accesses if one.start_byte <= access.node.start_byte < one.end_byte]
        changed = {text(name) for name in kernel.changed_names if one.start_byte <= name.start_byte < one.end_byte}
        if one.type == "for_statement":
            loop = _loop(kernel, one, inside, types)
            if isinstance(loop, str):
                return loop
            loops.append(loop)
        elif any(access.written for access in inside):
            if changed or any(node.type in ("for_statement", "while_statement", "declaration") for node in walk(one)):
                return "what is written outside of its loops is written in a way that other lanes need"
            alone.append(one)
        elif any(node.type in ("for_statement", "while_statement", "do_statement") for node in walk(one)):
            return "its loops do not stand by themselves"
    if len({loop.place for loop in loops if loop.node in _writing(kernel, loops)}) > 1:
        return "its loops write different parts of a row"
    for root in sorted({one.root for one in kernel.accesses if one.written}):
        own = [one for one in kernel.accesses if one.root == root]
        homes = [_home(one, loops) for one in own]
        if all(home is None for home in homes):
            place = next((node for node in alone if _holds(node, own[0])), None)
            if place is None or not all(_holds(place, access) for access in own):
                return f"{root} is written outside of the loops, and read elsewhere"
        elif any(home is None for home in homes) or len({_key(one) for one in own}) != 1:
            return f"{root} is written, and used at other places"
        elif not all(is_term(one, {home.name}) for one, home in zip(own, homes, strict=True) if home is not None):
            return f"{root} is written at places that are no neighbours"
    reads = [(one, home) for one in kernel.accesses if one.read and (home := _home(one, loops)) is not None]
    if not any(is_term(one, {home.name}) for one, home in reads):
        return "there is no loop that reads neighbours"
    return loops, alone


def _writing(kernel: Kernel, loops: list[_Loop]) -> list[Node]:
    homes = (
        _home(one, loops)
        for one in kernel.accesses
        if one.written or any(other.written and other.root == one.root for other in kernel.accesses)
    )
    return [home.node for home in homes if home is not None]


def _key(access: Access) -> tuple[str, ...]:
    return tuple(sorted(re.sub(r"\s+", "", text(part)) for part in access.path))


def _holds(node: Node, access: Access) -> bool:
    return node.start_byte <= access.node.start_byte < node.end_byte


def _home(access: Access, loops: list[_Loop]) -> _Loop | None:
    return next((one for one in loops if _holds(one.node, access)), None)


def _loop(kernel: Kernel, node: Node, inside: list[Access], types: dict[str, str]) -> _Loop | str:
    """The loop as lanes can share it, or why they cannot."""
    read, body, update = loop_of(node), node.child_by_field_name("body"), node.child_by_field_name("update")
    if read is None or body is None or update is None or update.type != "update_expression":
        return "a loop does not count one by one"
    name, first, bound, _ = read
    if _ENDS & {one.type for one in walk(body)}:
        return "a loop may end early"
    if any(one.atomic for one in inside):
        return "a loop has atomic operations"
    own = kernel.own(body)
    sums: dict[str, str] = {}
    places = [one for one in kernel.changed_names if body.start_byte <= one.start_byte < body.end_byte]
    for place in places:
        if text(place) in own:
            continue
        how, value = _how(place)
        if not how or types.get(text(place)) not in _TYPES or sums.get(text(place), how) != how or value is None:
            return f"a loop changes {text(place)} in a way that depends on the order of its rounds"
        sums[text(place)] = how
    if names_in(bound) & (set(sums) | own) or names_in(text(first)) & (set(sums) | own) or name in sums:
        return "a loop changes its own length"
    allowed = {(one.start_byte, one.end_byte) for one in places}
    for one in walk(body):
        if one.type == "identifier" and text(one) in sums and (one.start_byte, one.end_byte) not in allowed:
            above = one.parent
            # The variable itself in `s = fmaxf(s, e)`.
            if above is None or above.type != "argument_list" or not _own_argument(one, text(one)):
                return f"a loop uses {text(one)} before it is complete"
    targets = [
        bare(one.child_by_field_name("left") or one.child_by_field_name("argument"))
        for one in walk(body)
        if one.type in ("assignment_expression", "update_expression")
    ]
    known = {(one.node.start_byte, one.node.end_byte) for one in inside}
    for target in targets:
        if target is not None and target.type != "identifier" and (target.start_byte, target.end_byte) not in known:
            return "a loop writes an array of its own"
    return _Loop(node, first, update, name, (re.sub(r"\s+", "", text(first)), bound), sums)


def _how(place: Node) -> tuple[str, Node | None]:
    """How an assignment combines the old value and another: "+" or a function, and the other value."""
    above = place.parent
    while above is not None and above.type == "parenthesized_expression":
        above = above.parent
    if above is None or above.type != "assignment_expression":
        return "", None
    value = bare(above.child_by_field_name("right"))
    if value is None:
        return "", None
    if operator(above) in ("+=", "-="):
        return "+", value
    if operator(above) == "=" and value.type == "call_expression":
        called, arguments = value.child_by_field_name("function"), value.child_by_field_name("arguments")
        if called is not None and arguments is not None and text(called) in _FUNCTIONS:
            given = arguments.named_children
            if len(given) == 2 and sum(text(one) == text(place) for one in given) == 1:
                return text(called), value
    return "", None


def _own_argument(node: Node, name: str) -> bool:
    """Whether it is the old value in `name = f(name, e)`."""
    arguments = node.parent
    call = None if arguments is None else arguments.parent
    assignment = None if call is None else call.parent
    if assignment is None or assignment.type != "assignment_expression":
        return False
    left = assignment.child_by_field_name("left")
    return left is not None and text(left) == name and _how(left)[0] != ""
