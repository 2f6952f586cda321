"""Loops in which the threads of a block take turns on a row: neighbours together, and a row that is read again kept.

A turn takes one element; here it takes a vector of neighbours, as one access of up to 16 bytes. What several loops read
stays in registers: each thread reads its first vectors ahead of the first loop, and every loop goes over these,
unrolled, then over the other vectors, then over what fills no vector, as the loop did before. What a loop reads that
nobody writes is asked for as early as its place is known, so that it is on its way while the kernel waits for the rest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tunesmith.kernels.rewrite.carried import order_matters
from tunesmith.kernels.rewrite.passes.ahead import Place, earliest, waits
from tunesmith.kernels.rewrite.passes.hints import load, store
from tunesmith.kernels.rewrite.passes.indices import narrowed
from tunesmith.kernels.rewrite.passes.output_tiles import names_in
from tunesmith.kernels.rewrite.passes.rule import Applied, Edit, Skipped, Subject, rule
from tunesmith.kernels.rewrite.passes.teams import first_of, in_team, step_of
from tunesmith.kernels.rewrite.source import Access, Kernel, bare, text, walk
from tunesmith.kernels.rewrite.threads import Rows, block_stride, loop_of
from tunesmith.kernels.spec.dtypes import C_TYPES, DTYPES
from tunesmith.kernels.spec.template import Constraint, Parameter

if TYPE_CHECKING:
    from tree_sitter import Node

_UNCERTAIN = frozenset(
    {
        "if_statement",
        "for_statement",
        "while_statement",
        "do_statement",
        "switch_statement",
        "conditional_expression",
        "lambda_expression",
    }
)
"""What may leave out what stands in it."""
_ENDS = frozenset({"break_statement", "return_statement", "goto_statement"})
_WORDS = frozenset(
    {
        "threadIdx",
        "blockIdx",
        "blockDim",
        "gridDim",
        "x",
        "y",
        "z",
        "int",
        "size_t",
        "long",
        "unsigned",
        "int64_t",
        "uint32_t",
        "int32_t",
        "const",
        "char",
        "short",
    }
)
_KEPT = 64
"""Most elements that a thread keeps."""


@dataclass(slots=True)
class _Array:
    """What a loop does at one place of an array: read it, or write it, in every round for certain."""

    root: str
    place: tuple[str, ...]
    accesses: list[Access]
    read: bool
    written: bool


@dataclass(slots=True)
class _Loop:
    """node: `for (TYPE NAME = FIRST; NAME < BOUND; NAME += STEP) body`, in which the threads of a block take turns.
    arrays: which may go in vectors, by name; early: where arrays that may be read ahead of the loop are held."""

    node: Node
    body: Node
    c_type: str
    name: str
    first: Node
    bound: str
    step: str
    arrays: dict[str, _Array] = field(default_factory=dict)
    early: dict[str, str] = field(default_factory=dict)


@rule
def row_loops(given: Subject) -> Applied | Skipped:
    """How many neighbours a turn takes (1: as the kernel came), and how many turns of data read again are kept."""
    kernel = given.kernel
    loops = [one for node in walk(kernel.body) if (one := _loop(kernel, node)) is not None]
    if not loops:
        return Skipped("no loop of the kernel is one in which the threads of a block take turns on a row")
    if "#" in kernel.plain:
        return Skipped("rows are read one by one: the kernel has lines for the preprocessor")
    groups: dict[str, list[_Loop]] = {}
    for loop in loops:
        groups.setdefault(loop.bound, []).append(loop)
    usable = [group for bound, group in groups.items() if _known(kernel, (bound,), group[0], group[0])]
    for group in usable:
        for loop in group:
            loop.arrays = _arrays(given, loop, group[0])
    kept = _read_again(kernel, usable)
    if (why := _shared_out(kernel, loops)) and kept is None:
        return Skipped(f"rows are read one by one: {why}")
    vectors = not why and any(loop.arrays for group in usable for loop in group)
    if not vectors and kept is None:
        return Skipped("rows are read one by one: no loop reads or writes an array at its own place for certain")
    return _apply(given, usable, kept, vectors)


def _apply(given: Subject, groups: list[list[_Loop]], kept: tuple[str, list[_Loop]] | None, vectors: bool) -> Applied:
    wide, keep, record = given.name("ROW_VEC"), given.name("KEEP"), given.name("RowElements")
    ahead = given.name("AHEAD")
    edits, sizes = list[Edit](), set[str]()
    types = {one.name: one.c_type for one in given.kernel.parameters}
    places = {number: _early(given, group, kept, number) for number, group in enumerate(groups)} if vectors else {}
    early = any(one is not None for one in places.values())
    wide_ = wide if vectors else "1"
    switches = [f"{wide} > 1"] * vectors + [f"{keep} > 0"] * (kept is not None) + [f"{ahead} > 0"] * early
    only = " || ".join(switches)
    for number, group in enumerate(groups):
        concerned = [one for one in group if vectors or (kept is not None and one in kept[1])]
        place = places.get(number)
        for at, loop in enumerate(concerned):
            units = f"{given.name('units')}_{number}"
            lines = [f"\n#if {only}"]
            if at == 0:
                count = _count(given, concerned, units, wide_, record)
                if place is None:
                    lines += [f"{loop.c_type} {units} = 0;", "{", *count, "}"]
                else:
                    lines += [f"#if {ahead} == 0", f"{loop.c_type} {units} = 0;", "{", *count, "}", "#endif"]
                    code = _read_early(given, concerned, place, units, count, record, wide_)
                    edits.append(Edit(place.at, place.at, in_team(given, code)))
            lines += _rewritten(
                given, loop, kept, units, wide_, keep, record, first=kept is not None and loop == kept[1][0]
            )
            code = in_team(given, "\n".join([*lines, "#endif\n"]))
            edits.append(Edit(loop.node.start_byte, loop.node.start_byte, code))
            rest = given.name(f"REST_{number}")
            edits.append(Edit(loop.first.end_byte, loop.first.end_byte, f" {rest}"))
            sizes |= {C_TYPES.get(types[root], types[root]) for root in loop.arrays}
    header = [f"#if {only}", f"template <class V> struct alignas({wide_} * sizeof(V)) {record} {{ V at[{wide_}]; }};"]
    header += [
        f"#define {given.name(f'REST_{number}')} + {given.name('units')}_{number} * {wide_}"
        for number in range(len(groups))
    ]
    header += ["#else", *(f"#define {given.name(f'REST_{number}')}" for number in range(len(groups))), "#endif"]
    parameters, constraints = list[Parameter](), list[Constraint]()
    if vectors:
        doc = "neighbouring elements of a row that a thread reads and writes together"
        parameters.append(Parameter(name=wide, values=(1, 2, 4, 8, 16), doc=doc))
        constraints += [
            Constraint(
                expression=f"{wide} == 1 or {wide} * sizeof({one}) <= 16", because="No access has more than 16 bytes."
            )
            for one in sorted(sizes)
        ]
    if early:
        doc = "turns on a row whose elements a thread asks for ahead of what comes before the row; 0: none"
        parameters.append(Parameter(name=ahead, values=(0, 1, 2), doc=doc))
        because = "A thread has no registers for more elements."
        constraints.append(Constraint(expression=f"{ahead} * {wide} <= {_KEPT}", because=because))
    if kept is not None and any(one.early for one in kept[1]):
        because = "What a thread keeps is gone over first, and what was asked for early with it."
        constraints.append(Constraint(expression=f"{ahead} <= {keep}", because=because))
    if kept is not None:
        doc = f"turns on a row whose elements of {kept[0]} a thread keeps in registers; 0: none"
        parameters.append(Parameter(name=keep, values=(0, 1, 2, 4, 8, 16), doc=doc))
        if vectors:
            because = "A thread has no registers for more elements."
            constraints.append(Constraint(expression=f"{keep} * {wide} <= {_KEPT}", because=because))
    return Applied(tuple(parameters), tuple(edits), "\n".join(header), tuple(constraints))


def _count(given: Subject, loops: list[_Loop], units: str, wide: str, record: str) -> list[str]:
    """How many whole vectors the loops have: none where an array begins at another address."""
    whole, types = given.name("whole"), {one.name: one.c_type for one in given.kernel.parameters}
    places = " ".join(
        f"{{ const {one.c_type} {one.name} = 0; {whole} |= {terms}; }}"
        for one in loops
        if (
            terms := " | ".join(
                f"(unsigned long long)&{text(array.accesses[0].node)} % sizeof({record}<{types[root]}>)"
                for root, array in one.arrays.items()
            )
        )
    )
    return [
        f"unsigned long long {whole} = 0;",
        f"#if {wide} > 1",
        places,
        "#endif",
        f"if ({whole} == 0) {units} = ({loops[0].bound}) / {wide};",
    ]


def _early(given: Subject, group: list[_Loop], kept: tuple[str, list[_Loop]] | None, number: int) -> Place | None:
    """Where what the loops read and nobody writes can be read ahead of them, which is noted in the loops; None where
    that is nothing, or where it is no earlier."""
    kernel = given.kernel
    written = {one.root for one in kernel.accesses if one.written}
    parts = [text(one.first) for one in group] + [one.step for one in group] + [group[0].bound]
    parts += [text(array.accesses[0].node) for one in group for array in one.arrays.values()]
    paths = [text(part) for one in group for array in one.arrays.values() for part in array.accesses[0].path]
    words = set(re.findall(r"[A-Za-z_]\w*", " ".join([*parts, *paths]))) - {one.name for one in group}
    place = earliest(kernel, group[0].node, words)
    for at, loop in enumerate(group):
        if not waits(kernel, place, loop.node):
            continue
        for root, array in loop.arrays.items():
            held = kept is not None and loop in kept[1] and root == kept[0]
            if array.read and root not in written and not held:
                loop.early[root] = f"{given.name('ahead')}_{number}_{at}_{root}"
    return place if any(one.early for one in group) else None


def _read_early(
    given: Subject, loops: list[_Loop], place: Place, units: str, count: list[str], record: str, wide: str
) -> str:
    """The lines that read the first turns of the loops ahead of them."""
    at, unit, ahead = given.name("at"), given.name("unit"), given.name("AHEAD")
    types = {one.name: one.c_type for one in given.kernel.parameters}
    lines = [f"\n#if {ahead} > 0"]
    lines += [f"{record}<{types[root]}> {held}[{ahead}];" for one in loops for root, held in one.early.items()]
    lines += [f"{loops[0].c_type} {units} = 0;", "{"]
    lines += [f"{narrowed(given, *one[:2])}{narrowed(given, *one[2:])};" for one in place.declarations]
    lines += count
    for loop in loops:
        if loop.early:
            lines.append(_unrolled(given, loop, ahead, units))
            lines += [
                _loaded(given, loop, loop.arrays[root], unit, wide, record, f"{held}[{at}]")
                for root, held in loop.early.items()
            ]
            lines.append("} }")
    return "\n".join([*lines, "}", "#endif\n"])


def _unrolled(given: Subject, loop: _Loop, turns: str, units: str) -> str:
    """The beginning of an unrolled loop over the first turns of a thread; it ends with two braces."""
    at, unit = given.name("at"), given.name("unit")
    return (
        f"#pragma unroll\nfor (int {at} = 0; {at} < {turns}; ++{at}) {{ "
        f"const {_begin(given, loop)} + {at} * ({_step(given, loop)}); if ({unit} < {units}) {{"
    )


def _begin(given: Subject, loop: _Loop) -> str:
    return f"{loop.c_type} {given.name('unit')} = {first_of(given, text(loop.first))}"


def _step(given: Subject, loop: _Loop) -> str:
    return step_of(given, given.name("BLOCK_DIM_X") if isinstance(given.work, Rows) else loop.step)


def _rewritten(
    given: Subject,
    loop: _Loop,
    kept: tuple[str, list[_Loop]] | None,
    units: str,
    wide: str,
    keep: str,
    record: str,
    *,
    first: bool,
) -> list[str]:
    """The loop over vectors that were kept or read early, and the loop over the others."""
    at, unit, local, ahead = (given.name(one) for one in ("at", "unit", "elements_of", "AHEAD"))
    root = kept[0] if kept is not None and loop in kept[1] else ""
    step, begin = _step(given, loop), _begin(given, loop)
    types = {one.name: one.c_type for one in given.kernel.parameters}
    lines = []
    if root:
        holds = f"{given.name('kept')}_{root}"
        counted = _unrolled(given, loop, keep, units)
        lines.append(f"#if {keep} > 0")
        if first:
            lines.append(f"{record}<{types[root]}> {holds}[{keep}];")
            if loop.arrays[root].read:
                lines.append(
                    f"{counted} {_loaded(given, loop, loop.arrays[root], unit, wide, record, f'{holds}[{at}]')} }} }}"
                )
        turn = _turn(given, loop, unit, wide, record, local, {root: f"{holds}[{at}]"}, early=True)
        lines += [f"{counted} {turn} }} }}", "#endif"]
        begin += f" + {keep} * ({step})"
    elif loop.early:
        held = {one: f"{name}[{at}]" for one, name in loop.early.items()}
        turn = _turn(given, loop, unit, wide, record, local, held)
        lines += [f"#if {ahead} > 0", f"{_unrolled(given, loop, ahead, units)} {turn} }} }}", "#endif"]
        begin += f" + {ahead} * ({step})"
    unroll = given.name("UNROLL")
    lines += [f"#if defined({unroll}) && {unroll} > 0", f"#pragma unroll {unroll}", "#endif"]
    lines.append(
        f"for ({begin}; {unit} < {units}; {unit} += {step}) {{ {_turn(given, loop, unit, wide, record, local, {})} }}"
    )
    return lines


def _loaded(given: Subject, loop: _Loop, array: _Array, unit: str, wide: str, record: str, target: str) -> str:
    c_type = next(one.c_type for one in given.kernel.parameters if one.name == array.root)
    pointer = f"reinterpret_cast<const {record}<{c_type}>*>(&{text(array.accesses[0].node)})"
    return f"{{ const {loop.c_type} {loop.name} = {unit} * {wide}; {target} = {load(given, array.root, pointer)}; }}"


def _turn(
    given: Subject,
    loop: _Loop,
    unit: str,
    wide: str,
    record: str,
    local: str,
    kept: dict[str, str],
    *,
    early: bool = False,
) -> str:
    """One turn: the reads, the body for each element, the writes. early: some may have been read before."""
    item, at, ahead = given.name("item"), given.name("at"), given.name("AHEAD")
    types = {one.name: one.c_type for one in given.kernel.parameters}
    before, after, places = list[str](), list[str](), dict[str, str]()
    for root, array in loop.arrays.items():
        places[root] = kept.get(root, f"{local}_{root}")
        if root not in kept:
            before.append(f"{record}<{types[root]}> {places[root]};")
            if early and root in loop.early:
                held = f"{places[root]} = {loop.early[root]}[{at}]"
                before.append(f"\n#if {ahead} > 0\nif ({at} < {ahead}) {held}; else\n#endif\n")
            if array.read:
                before.append(_loaded(given, loop, array, unit, wide, record, places[root]))
        if array.written:
            pointer = f"reinterpret_cast<{record}<{types[root]}>*>(&{text(array.accesses[0].node)})"
            written = store(given, root, pointer, places[root])
            after.append(f"{{ const {loop.c_type} {loop.name} = {unit} * {wide}; {written}; }}")
    changed = [
        (one.node, f"{places[root]}.at[{item}]") for root, array in loop.arrays.items() for one in array.accesses
    ]
    body = (
        f"\n#pragma unroll\nfor (int {item} = 0; {item} < {wide}; ++{item}) "
        f"{{ const {loop.c_type} {loop.name} = {unit} * {wide} + {item}; {_with(loop.body, changed)} }}\n"
    )
    return " ".join([*before, body, *after])


def _with(body: Node, changed: list[tuple[Node, str]]) -> str:
    """The body's text with nodes replaced."""
    code, start = (body.text or b""), body.start_byte
    for node, new in sorted(changed, key=lambda one: -one[0].start_byte):
        code = code[: node.start_byte - start] + new.encode() + code[node.end_byte - start :]
    return code.decode()


def _loop(kernel: Kernel, node: Node) -> _Loop | None:
    """A loop in which the threads of a block take turns, and whose body only goes on to the next round."""
    if node.type != "for_statement" or block_stride(kernel, node) is None or node.parent != kernel.body:
        return None
    loop, body, start = loop_of(node), node.child_by_field_name("body"), node.child_by_field_name("initializer")
    if loop is None or body is None or start is None:
        return None
    kind = start.child_by_field_name("type")
    inside = {one.type for one in walk(body)}
    changed = any(
        text(one) == loop[0] and body.start_byte <= one.start_byte < body.end_byte for one in kernel.changed_names
    )
    meets = re.search(r"\b(?:__sync|__shfl|__ballot|__any|__all|__match|threadIdx)", text(body))
    own = {text(one) for one in walk(body) if one.type == "identifier"} & _of_one_thread(kernel)
    if kind is None or changed or _ENDS & inside or meets or own or "preproc" in " ".join(inside):
        return None
    return _Loop(node, body, text(kind), loop[0], loop[1], loop[2], text(loop[3]))


def _of_one_thread(kernel: Kernel) -> set[str]:
    """Variables computed from a thread's number, apart from loop variables."""
    found = {name for name, value in kernel.aliases.items() if value.startswith("threadIdx")}
    for node in walk(kernel.body):
        if node.type == "init_declarator" and (above := node.parent) is not None:
            name, value = node.child_by_field_name("declarator"), node.child_by_field_name("value")
            in_loop = above.parent is not None and above.parent.type == "for_statement"
            if name is None or value is None or in_loop:
                continue
            words = {text(one) for one in walk(value) if one.type == "identifier"}
            if words & {"threadIdx", *found}:
                found |= {text(one) for one in walk(name) if one.type == "identifier"}
    return found


def _within(loop: _Loop, access: Access) -> bool:
    return loop.body.start_byte <= access.node.start_byte < loop.body.end_byte


def _arrays(given: Subject, loop: _Loop, first: _Loop) -> dict[str, _Array]:
    """The arrays that the loop reads or writes at its own place alone, and for certain."""
    kernel, found = given.kernel, dict[str, _Array]()
    for parameter in kernel.parameters:
        root = parameter.name
        own = [one for one in kernel.accesses if one.root == root and _within(loop, one)]
        if not own or root in kernel.escaping:
            continue
        if C_TYPES.get(parameter.c_type, parameter.c_type) not in {*DTYPES, *given.types}:
            continue
        places = {_place(one, loop) for one in own}
        if len(places) != 1 or any(one.atomic or one.node.type != "subscript_expression" for one in own):
            continue
        if not _neighbours(own[0], loop) or not _certain([one for one in own if one.written] or own, loop):
            continue
        (place,) = places
        if not _known(kernel, tuple(map(text, own[0].path)), loop, first, text(own[0].node)):
            continue
        found[root] = _Array(root, place, own, any(one.read for one in own), any(one.written for one in own))
    return found


def _neighbours(access: Access, loop: _Loop) -> bool:
    """Whether the loop's variable is added to the index once, and nothing multiplies it."""
    terms = [term for part in access.path for term in _terms(part)]
    mine = [term for term in terms if re.search(rf"\b{loop.name}\b", text(term))]
    return len(mine) == 1 and text(mine[0]) == loop.name


def _terms(node: Node) -> list[Node]:
    """What an index adds up."""
    one = bare(node) or node
    operator = one.child_by_field_name("operator")
    left, right = one.child_by_field_name("left"), one.child_by_field_name("right")
    if one.type == "binary_expression" and operator is not None and text(operator) == "+" and left and right:
        return [*_terms(left), *_terms(right)]
    return [one]


def _shared_out(kernel: Kernel, loops: list[_Loop]) -> str:
    """Why which thread has which element must stay, as a clause; empty where it need not."""
    for loop in loops:
        if why := order_matters(kernel, loop.node, kernel.body):
            return why
    pointers = {one.name for one in kernel.parameters if one.pointer}
    inside = [one for loop in loops for one in kernel.accesses if _within(loop, one)]
    nodes = {(one.node.start_byte, one.node.end_byte) for one in inside}
    for loop in loops:
        for node in walk(loop.body):
            if node.type in ("assignment_expression", "update_expression"):
                target = bare(node.child_by_field_name("left") or node.child_by_field_name("argument"))
                if target is None or target.type == "identifier" or target.type == "field_expression":
                    continue
                if (target.start_byte, target.end_byte) not in nodes:
                    return "a loop writes an array that is no parameter of the kernel"
    for root in sorted(pointers & {one.root for one in inside if one.written}):
        own = [one for one in kernel.accesses if one.root == root]
        if any(one.atomic for one in own) and all(one.atomic for one in own):
            continue
        having = [loop for loop in loops if any(_within(loop, one) for one in own)]
        in_vectors = [root in loop.arrays for loop in having]
        same = len({(loop.arrays[root].place, loop.bound) for loop in having if root in loop.arrays}) <= 1
        everywhere = all(any(_within(loop, one) for loop in loops) for one in own)
        several = len(having) > 1 or not everywhere
        if several and not (all(in_vectors) and same and everywhere):
            return f"{root} is written in a loop, and used elsewhere by threads that may be others"
    return ""


def _read_again(kernel: Kernel, groups: list[list[_Loop]]) -> tuple[str, list[_Loop]] | None:
    """The array that most loops use at the same place, and these loops: what is never written, or what each thread
    alone reads and writes."""
    best: tuple[str, list[_Loop]] | None = None
    loops = [loop for group in groups for loop in group]
    for root in [one.name for one in kernel.parameters if one.pointer]:
        own = [one for one in kernel.accesses if one.root == root]
        by_place: dict[tuple[str, ...], list[_Loop]] = {}
        for loop in loops:
            if root in loop.arrays:
                by_place.setdefault((*loop.arrays[root].place, loop.bound), []).append(loop)
        for found in by_place.values():
            if len(found) < 2 or not any(one.arrays[root].read for one in found[1:]):
                continue
            if any(one.written for one in own) and (
                len(by_place) > 1 or not all(any(_within(loop, one) for loop in found) for one in own)
            ):
                continue
            if best is None or len(found) > len(best[1]):
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
            # A round that goes on early may not come as far.
            ends = [node for node in walk(loop.body) if node.type == "continue_statement"]
            if not any(node.start_byte < one.node.start_byte for node in ends):
                return True
    return False


def _known(kernel: Kernel, place: tuple[str, ...], loop: _Loop, first: _Loop, element: str = "") -> bool:
    """Whether all that a place names is a builtin, a parameter, or a variable that was made before the first loop and
    is never changed. element: the text of the array's element there; what the place itself reads is never written."""
    names, base = names_in(" ".join((*place, loop.bound))), names_in(element)
    declared = {text(one): one for one in kernel.declared_names}
    repeated = {name for name in declared if sum(text(one) == name for one in kernel.declared_names) > 1}
    parameters = {one.name for one in kernel.parameters}
    if any(kernel.writes(name) for name in names):
        return False
    for name in (names | base) - _WORDS:
        if name == loop.name:
            continue
        if name in kernel.changed or name in repeated or name in declared.keys() & parameters:
            return False
        if name in declared:
            if declared[name].start_byte >= first.node.start_byte:
                return False
        elif name not in parameters:
            return False
    return True
