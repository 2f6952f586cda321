"""How many elements of an array a kernel touches, read from the indices it uses.

Owns upper bounds of index expressions as polynomials of the kernel's integer parameters. What it cannot bound is None:
it never guesses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tunesmith.kernels.rewrite.source import Kernel, bare, operator, text
from tunesmith.kernels.rewrite.threads import global_coordinate, loop_of

if TYPE_CHECKING:
    from tree_sitter import Node

Polynomial = dict[tuple[str, ...], int]
"""Coefficients by the sorted names that are multiplied; the empty tuple is the constant."""


def add(left: Polynomial, right: Polynomial) -> Polynomial:
    found = dict(left)
    for names, factor in right.items():
        found[names] = found.get(names, 0) + factor
    return {names: factor for names, factor in found.items() if factor}


def multiply(left: Polynomial, right: Polynomial) -> Polynomial:
    found: Polynomial = {}
    for names, factor in left.items():
        for others, another in right.items():
            found = add(found, {tuple(sorted((*names, *others))): factor * another})
    return found


def extents(kernel: Kernel, coordinates: Mapping[str, str], blocks: Mapping[str, str]) -> dict[str, Polynomial]:
    """Elements of each pointer parameter, by name; parameters without a bound are left out.

    coordinates: by axis, the bound of global coordinates; blocks: by axis, the number of blocks. Both are names of
    integer parameters or sizes.
    """
    found: dict[str, Polynomial] = {}
    unknown = set(kernel.escaping)
    for access in kernel.accesses:
        most: Polynomial | None = {}
        for part in access.path:
            value = _most(kernel, part, coordinates, blocks, 0)
            most = None if value is None or most is None else add(most, value)
        if most is None:
            unknown.add(access.root)
            continue
        count, before = add(most, {(): 1}), found.get(access.root)
        if before is None or _covers(count, before):
            found[access.root] = count
        elif not _covers(before, count):
            unknown.add(access.root)
    return {name: count for name, count in found.items() if name not in unknown}


def _covers(large: Polynomial, small: Polynomial) -> bool:
    difference = add(large, {names: -factor for names, factor in small.items()})
    return all(factor >= 0 for factor in difference.values())


def _most(
    kernel: Kernel, node: Node, coordinates: Mapping[str, str], blocks: Mapping[str, str], depth: int
) -> Polynomial | None:
    """The largest value of an index expression whose parts are not negative."""
    one = bare(node)
    if one is None or depth > 16:
        return None
    below: Polynomial = {(): -1}
    if axis := global_coordinate(kernel, one):
        return add({(coordinates[axis],): 1}, below) if coordinates.get(axis) else None
    name = kernel.builtin(one)
    if name:
        axis = name[-1]
        return add({(blocks[axis],): 1}, below) if name.startswith("blockIdx.") and blocks.get(axis) else None
    if one.type == "number_literal":
        digits = text(one).rstrip("uUlL")
        return {(): int(digits)} if digits.isdigit() and int(digits) else {} if digits == "0" else None
    if one.type == "binary_expression":
        left, right = one.child_by_field_name("left"), one.child_by_field_name("right")
        if left is None or right is None or operator(one) not in "+*":
            return None
        a = _most(kernel, left, coordinates, blocks, depth + 1)
        b = _most(kernel, right, coordinates, blocks, depth + 1)
        if a is None or b is None:
            return None
        return add(a, b) if operator(one) == "+" else multiply(a, b)
    if one.type != "identifier":
        return None
    known = next((parameter for parameter in kernel.parameters if parameter.name == text(one)), None)
    changed = [inner for inner in kernel.changed_names if text(inner) == text(one)]
    if known is not None:
        return {(known.name,): 1} if not known.pointer and not changed else None
    declared = [inner for inner in kernel.declared_names if text(inner) == text(one)]
    if not declared:
        return None
    bounds = [_declared(kernel, inner, coordinates, blocks, depth) for inner in declared]
    # One name may be declared in several loops: the bound must be the same in all.
    return bounds[0] if all(bound == bounds[0] for bound in bounds) else None


def _declared(
    kernel: Kernel, name: Node, coordinates: Mapping[str, str], blocks: Mapping[str, str], depth: int
) -> Polynomial | None:
    above = name.parent
    declaration = None if above is None else above.parent
    if above is None or declaration is None or above.type != "init_declarator":
        return None
    value, loop = above.child_by_field_name("value"), declaration.parent
    if loop is not None and loop.type == "for_statement":
        found = loop_of(loop)
        condition = None if found is None else loop.child_by_field_name("condition")
        bound = None if condition is None else condition.child_by_field_name("right")
        within = None if bound is None else _most(kernel, bound, coordinates, blocks, depth + 1)
        inside = None if within is None else add(within, {(): -1})
        counted = [one for one in kernel.changed_names if text(one) == text(name)]
        body = loop.child_by_field_name("body")
        if body is None or any(body.start_byte <= one.start_byte < body.end_byte for one in counted):
            return None
        return inside
    if value is None or any(text(one) == text(name) for one in kernel.changed_names):
        return None
    return _most(kernel, value, coordinates, blocks, depth + 1)
