"""Indices of 64 bits become indices of 32 where every array is short enough.

A GPU multiplies and adds 64-bit integers in several instructions of 32 bits and keeps them in two registers (CUDA C++
Programming Guide, "Arithmetic Instructions"). Sums, differences and products modulo 2 to the 32 are exact in their last
32 bits, so an index made of nothing else is right where the array has fewer elements than that: the constraint says so
of every workload. A number that is compared keeps its type, so it must fit by itself: a builtin or a coordinate does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from tunesmith.kernels.rewrite.passes.rule import Applied, Edit, Skipped, Subject, rule
from tunesmith.kernels.rewrite.source import BUILTINS, Kernel, bare, index_of, operator, text, walk
from tunesmith.kernels.rewrite.threads import block_stride, global_coordinate
from tunesmith.kernels.spec.dtypes import C_TYPES
from tunesmith.kernels.spec.template import Constraint, Parameter

if TYPE_CHECKING:
    from tree_sitter import Node

MAX_ARRAY_LENGTH = (1 << 31) - 1
"""Elements that an `int` can count."""
MAX_COORDINATE = MAX_ARRAY_LENGTH - (1 << 20)
"""Threads along an axis: below what an `int` holds by more than blocks and items of any size round up."""
_WIDE = frozenset({"int64", "uint64"})
_NARROW = frozenset({"int8", "uint8", "int16", "uint16", "int32", "uint32"})
_RING = frozenset({"+", "-", "*"})
_OTHER = frozenset({"/", "%", ">>", "&"})
_COMPARED = frozenset({"<", ">", "<=", ">=", "==", "!="})


@dataclass(slots=True)
class _Index:
    """An expression that counts elements. names: wide variables in it; casts: types of wide casts in it."""

    names: set[str] = field(default_factory=set)
    casts: list[Node] = field(default_factory=list)


@dataclass(slots=True)
class _Variable:
    """A variable of 64 bits that is made once. signed: its type; fits: its value is one of 32 bits by itself; axis: of
    the coordinate that it is, or empty; compared: where it is compared."""

    declaration: Node
    value: Node
    made_of: _Index
    signed: bool
    fits: bool
    axis: str = ""
    compared: list[Node] = field(default_factory=list)


@rule
def narrow_indices(given: Subject) -> Applied | Skipped:
    """The bits of indices; 64 leaves them as they are. For sums and products that begin at a pointer parameter."""
    variables, casts = _found(given.kernel)
    if not variables and not casts:
        return Skipped("indices stay: none has 64 bits and is a sum or product of numbers of 32 bits alone")
    arrays = [one.name for one in given.kernel.parameters if one.pointer]
    if not all(given.lengths.get(one) for one in arrays):
        return Skipped("indices stay: the task does not say how long every array is")
    bits = given.name("INDEX_BITS")
    macros, compared = _macros(given), f"#define {given.name('COMPARED')}(...)"
    signs = any(one.signed and one.compared for one in variables.values())
    lines = [f"#if {bits} == 32", *(f"#define {macro} unsigned int" for macro in macros.values())]
    lines += [f"{compared} ((int)(__VA_ARGS__))"] * signs
    lines += ["#else", *(f"#define {macro} {wide}" for wide, macro in macros.items())]
    lines += [f"{compared} (__VA_ARGS__)"] * signs + ["#endif"]
    because = "An index of 32 bits does not reach further."
    constraints = [
        Constraint(expression=f"{bits} == 64 or ({length}) <= {MAX_ARRAY_LENGTH}", because=because)
        for length in dict.fromkeys(given.lengths[one] for one in arrays)
    ]
    for axis in sorted({one.axis for one in variables.values() if one.axis}):
        threads = f"({given.grid(axis)}) * ({given.block(axis)})"
        because = "A coordinate of 32 bits does not reach further."
        constraints.append(Constraint(expression=f"{bits} == 64 or {threads} <= {MAX_COORDINATE}", because=because))
    doc = "bits of the numbers that indices are computed with; 64: as in the source"
    parameter = Parameter(name=bits, values=(64, 32), doc=doc)
    return Applied((parameter,), tuple(_edits(given)), "\n".join(lines), tuple(constraints))


def narrowed(given: Subject, start: int, end: int) -> str:
    """The source's text between two bytes, for another rewrite, with the types that indices may have."""
    code = given.kernel.code[start:end]
    if isinstance(narrow_indices(given), Applied):
        for edit in sorted(_edits(given), key=lambda one: (-one.start, one.closes)):
            if start <= edit.start and edit.end <= end:
                code = code[: edit.start - start] + edit.text.encode() + code[edit.end - start :]
    return code.decode()


def _macros(given: Subject) -> dict[str, str]:
    """The macro that stands for a type of the source, by the type."""
    variables, casts = _found(given.kernel)
    kinds = dict.fromkeys(text(one) for one in [*(_type(one.declaration) for one in variables.values()), *casts])
    return {kind: given.name(f"INDEX_TYPE_{number}") for number, kind in enumerate(kinds)}


def _edits(given: Subject) -> list[Edit]:
    variables, casts = _found(given.kernel)
    macros = _macros(given)
    nodes = {_type(one.declaration) for one in variables.values()} | set(casts)
    edits = [Edit(one.start_byte, one.end_byte, macros[text(one)]) for one in nodes]
    for variable in variables.values():
        for one in variable.compared if variable.signed else ():
            edits.append(Edit(one.start_byte, one.start_byte, f"{given.name('COMPARED')}("))
            edits.append(Edit(one.end_byte, one.end_byte, ")", closes=True))
    return sorted(edits, key=lambda one: one.start)


@lru_cache(maxsize=8)
def _found(kernel: Kernel) -> tuple[dict[str, _Variable], list[Node]]:
    """The variables that may be narrow, by name, and the types of the casts that may."""
    variables = _candidates(kernel)
    while True:
        roots = [(node, made) for node in _roots(kernel) if (made := _index(kernel, node, variables)) is not None]
        # The body of such a loop may be written a second time by another rewrite, where its casts stay wide: what is
        # under them has to be right by itself.
        good = [
            (node, made)
            for node, made in roots
            if not made.casts or not _in_turns(kernel, node) or all(variables[name].fits for name in made.names)
        ]
        inside = [node for node, _ in good] + [one.value for one in variables.values()]
        bad = {
            name
            for name, one in variables.items()
            if _index(kernel, one.value, variables) is None or not _used_well(kernel, name, one, inside)
        }
        # A declaration has one type for all of its names.
        bad |= {name for name, one in variables.items() if any(other not in variables for other in _names(one))}
        if not bad:
            casts = [cast for _, made in good for cast in made.casts]
            return variables, casts + [cast for one in variables.values() for cast in one.made_of.casts]
        variables = {name: one for name, one in variables.items() if name not in bad}


def _candidates(kernel: Kernel) -> dict[str, _Variable]:
    found = dict[str, _Variable]()
    declared = [text(one) for one in kernel.declared_names]
    for node in walk(kernel.body):
        if node.type != "declaration" or node.parent is None or node.parent.type == "for_statement":
            continue
        kind = C_TYPES.get(" ".join(text(_type(node)).split()), "")
        if kind not in _WIDE or re.search(r"\b(?:static|extern|volatile|__shared__)\b", text(node)):
            continue
        for one in node.children_by_field_name("declarator"):
            name, value = one.child_by_field_name("declarator"), one.child_by_field_name("value")
            if one.type != "init_declarator" or name is None or name.type != "identifier" or value is None:
                continue
            if declared.count(text(name)) != 1 or text(name) in kernel.changed:
                continue
            inner = bare(value)
            axis = global_coordinate(kernel, inner) if inner is not None else ""
            fits = bool(axis) or bool(kernel.builtin(value))
            found[text(name)] = _Variable(node, value, _Index(), kind == "int64", fits, axis)
    for variable in found.values():
        made = _index(kernel, variable.value, found)
        variable.made_of = made or variable.made_of
    return found


def _type(declaration: Node) -> Node:
    kind = declaration.child_by_field_name("type")
    return declaration if kind is None else kind


def _names(variable: _Variable) -> list[str]:
    found = []
    for one in variable.declaration.children_by_field_name("declarator"):
        name = one.child_by_field_name("declarator") or one
        found.append(text(name))
    return found


def _roots(kernel: Kernel) -> list[Node]:
    """The whole indices of pointer parameters, and the offsets added to one to make a pointer. From the beginning of an
    array no index is negative; from a pointer that has moved an index may be."""
    pointers = {one.name for one in kernel.parameters if one.pointer and one.name not in kernel.changed}
    found: list[Node] = []
    for node in walk(kernel.body):
        if node.type == "subscript_expression":
            base, index = node.child_by_field_name("argument"), index_of(node)
            if base is not None and text(base) in pointers and index is not None:
                found.append(index)
        elif node.type == "init_declarator":
            target, value = node.child_by_field_name("declarator"), node.child_by_field_name("value")
            if target is None or value is None or target.type != "pointer_declarator":
                continue
            left, right = value.child_by_field_name("left"), value.child_by_field_name("right")
            if value.type == "binary_expression" and operator(value) == "+" and left is not None and right is not None:
                found += [right] if text(left) in pointers else [left] if text(right) in pointers else []
    return found


def _index(kernel: Kernel, node: Node, variables: dict[str, _Variable]) -> _Index | None:
    """What an expression is made of, where it is right modulo 2 to the 32 with all of it in 32 bits; else None."""
    if node.type == "parenthesized_expression" and len(node.named_children) == 1:
        return _index(kernel, node.named_children[0], variables)
    if node.type == "number_literal":
        return _Index() if re.fullmatch(r"\d{1,9}[uU]?", text(node)) else None
    if node.type == "field_expression":
        argument = node.child_by_field_name("argument")
        return _Index() if argument is not None and text(argument) in BUILTINS else None
    if node.type == "identifier":
        if text(node) in variables:
            return _Index({text(node)})
        return _Index() if _is_narrow(kernel, text(node)) else None
    if node.type == "cast_expression":
        kind, value = node.child_by_field_name("type"), node.child_by_field_name("value")
        named = "" if kind is None else C_TYPES.get(" ".join(text(kind).split()), "")
        made = None if value is None else _index(kernel, value, variables)
        if made is None or kind is None or named not in _WIDE | {"int32", "uint32"}:
            return None
        return _Index(made.names, [*made.casts, kind]) if named in _WIDE else made
    left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
    if node.type != "binary_expression" or left is None or right is None:
        return None
    a, b = _index(kernel, left, variables), _index(kernel, right, variables)
    if a is None or b is None:
        return None
    if operator(node) in _RING:
        return _Index(a.names | b.names, [*a.casts, *b.casts])
    # Of these the last bits do not tell the result: nothing in them may change.
    closed = not (a.names or b.names or a.casts or b.casts)
    return _Index() if operator(node) in _OTHER and closed else None


def _is_narrow(kernel: Kernel, name: str) -> bool:
    """Whether every variable and parameter of the name is a whole number of 32 bits or fewer."""
    kinds = [one.c_type for one in kernel.parameters if one.name == name and not one.pointer]
    for declared in kernel.declared_names:
        if text(declared) == name:
            above = declared.parent
            while above is not None and above.type == "init_declarator":
                above = above.parent
            if above is None or above.type != "declaration":
                return False
            kinds.append(" ".join(text(_type(above)).split()))
    return bool(kinds) and all(C_TYPES.get(one, "") in _NARROW for one in kinds)


def _used_well(kernel: Kernel, name: str, variable: _Variable, inside: list[Node]) -> bool:
    """Whether every use is in an index, in a variable that is in one, or in a comparison that it is right in."""
    spans = [(one.start_byte, one.end_byte) for one in inside]
    variable.compared = []
    for node in walk(kernel.body):
        if node.type != "identifier" or text(node) != name or node.parent is None:
            continue
        above = node.parent
        if above.type == "init_declarator" and above.child_by_field_name("declarator") == node:
            continue
        if any(start <= node.start_byte and node.end_byte <= end for start, end in spans):
            continue
        compared = above.type == "binary_expression" and operator(above) in _COMPARED
        if not compared or not variable.fits or _in_turns(kernel, node):
            return False
        variable.compared.append(node)
    return True


def _in_turns(kernel: Kernel, node: Node) -> bool:
    """Whether it is in a loop in which the threads of a block take turns."""
    above = node.parent
    while above is not None:
        if above.type == "for_statement" and block_stride(kernel, above) is not None:
            return True
        above = above.parent
    return False
