"""What neighbouring threads of a stencil read alike is read once for the block, with the margin around it.

A block stages the part of the array that it needs in shared memory, each element with one access to global memory. An
access outside of the coordinates that the guard lets through goes to the array as before: what lies there is not known
to exist until the kernel itself reads it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunesmith.kernels.rewrite.passes.hints import load
from tunesmith.kernels.rewrite.passes.own_bins import own_bins
from tunesmith.kernels.rewrite.passes.rule import Applied, Edit, Skipped, Subject, rule
from tunesmith.kernels.rewrite.passes.vectors import certain, vectors
from tunesmith.kernels.rewrite.source import Access, Kernel, bare, operator, text
from tunesmith.kernels.rewrite.threads import Cells, coordinates, global_coordinate
from tunesmith.kernels.spec.dtypes import C_TYPES, DTYPES
from tunesmith.kernels.spec.template import Constraint, Parameter

if TYPE_CHECKING:
    from tree_sitter import Node

REACH = 16
"""Elements from its own that a thread may read at most."""


@dataclass(frozen=True, slots=True)
class _Place:
    """An access at the thread's coordinates plus `x` and `y`. names: of the coordinates, that along x first."""

    access: Access
    names: tuple[str, ...]
    x: int
    y: int


@rule
def halo(given: Subject) -> Applied | Skipped:
    """Whether a block stages what its threads read around their own elements; False is as it was."""
    kernel = given.kernel
    if not isinstance(given.work, Cells) or len(given.work.axes) > 2 or given.work.axes[0].name != "x":
        return Skipped("nothing is staged with a margin: threads do not have one or two coordinates")
    bounds = {axis.name: axis.bound for axis in given.work.axes if axis.bound and not axis.strided}
    if len(bounds) != len(given.work.axes) or given.launch.shared_bytes != "0" or isinstance(own_bins(given), Applied):
        return Skipped("nothing is staged with a margin: there is no guard for each coordinate")
    if any(node.type == "launch_bounds" for node in kernel.function.children) or "#" in kernel.plain:
        return Skipped("nothing is staged with a margin: the kernel has launch bounds, or lines for the preprocessor")
    chosen, pitch = _chosen(given, bounds)
    if not chosen:
        return Skipped("nothing is staged with a margin: no array is read at fixed distances from a thread's own place")
    root = chosen[0].access.root
    c_type = next(one.c_type for one in kernel.parameters if one.name == root)
    axes = sorted(bounds)
    low = {axis: min(getattr(one, axis) for one in chosen) for axis in "xy"}
    wide = {axis: max(getattr(one, axis) for one in chosen) - low[axis] for axis in "xy"}
    name, at_, staged = given.name("HALO"), given.name("HALO_AT"), given.name("staged")
    use = {one: given.name(one) for one in ("pitch", "spot", "from_x", "from_y", "to_x", "to_y")}
    inside = {axis: f"(unsigned int)({use[f'to_{axis}']}) < (unsigned int)({bounds[axis]})" for axis in axes}
    index = f"({use['to_y']}) * ({pitch}) + {use['to_x']}" if "y" in axes else use["to_x"]
    rows = f"(int)blockDim.y + {wide['y']}" if "y" in axes else "1"
    opening = f"""{{
#if {name}
extern __shared__ {c_type} {staged}[];
const int {use["pitch"]} = (int)blockDim.x + {wide["x"]};
const int {use["from_x"]} = (int)(blockIdx.x * blockDim.x) + {low["x"]};
const int {use["from_y"]} = {f"(int)(blockIdx.y * blockDim.y) + {low['y']}" if "y" in axes else "0"};
for (int {use["spot"]} = threadIdx.y * blockDim.x + threadIdx.x; {use["spot"]} < {use["pitch"]} * ({rows}); \
{use["spot"]} += blockDim.x * blockDim.y) {{
const int {use["to_x"]} = {use["from_x"]} + {use["spot"]} % {use["pitch"]};
const int {use["to_y"]} = {use["from_y"]} + {use["spot"]} / {use["pitch"]};
if ({" && ".join(inside.values())}) {staged}[{use["spot"]}] = {load(given, root, f"{root} + {index}")};
}}
__syncthreads();
#endif
"""
    tests = [f"(unsigned int)(({axis}) + (d{axis})) < (unsigned int)({bounds[axis]})" for axis in axes]
    place = f"((y) + (dy) - {use['from_y']}) * {use['pitch']} + ((x) + (dx) - {use['from_x']})"
    header = f"""#if {name}
#define {at_}(x, y, dx, dy, ...) ({" && ".join(tests)} ? {staged}[{place}] : (__VA_ARGS__))
#else
#define {at_}(x, y, dx, dy, ...) (__VA_ARGS__)
#endif"""
    edits = [
        Edit(kernel.body.start_byte, kernel.body.start_byte, opening),
        Edit(kernel.body.end_byte, kernel.body.end_byte, "\n}", closes=True),
    ]
    for one in chosen:
        across, down = one.names[0], one.names[1] if len(one.names) > 1 else "0"
        begin = f"{at_}((int)({across}), (int)({down}), {one.x}, {one.y}, "
        edits.append(Edit(one.access.node.start_byte, one.access.node.start_byte, begin))
        edits.append(Edit(one.access.node.end_byte, one.access.node.end_byte, ")", closes=True))
    several = len(axes) > 1
    first = given.name("BLOCK_X" if several else "BLOCK")
    block = {
        axis: f"({given.name(f'BLOCK_{axis.upper()}') if several else first} if {first} > 0 else ({given.block(axis)}))"
        for axis in axes
    }
    area = " * ".join(f"({block[axis]} + {wide[axis]})" for axis in axes)
    others = ["ITEMS_X", "ITEMS_Y"] if several else ["ITEMS"]
    if isinstance(vectors(given), Applied):
        others.append("VEC")
    because = "What is staged is for one element of each thread."
    constraints = tuple(
        Constraint(expression=f"not {name} or {given.name(other)} == 1", because=because) for other in others
    )
    parameter = Parameter(name=name, values=(False, True), doc=f"whether a block stages what it reads of {root}")
    size = f"sizeof({C_TYPES.get(c_type, c_type)})"
    return Applied((parameter,), tuple(edits), header, constraints, shared=f"({area} * {size} if {name} else 0)")


def _chosen(given: Subject, bounds: dict[str, str]) -> tuple[list[_Place], str]:
    """The accesses of the array that is read at the most distances, and the size that its rows are apart."""
    kernel, best, best_pitch = given.kernel, list[_Place](), ""
    for parameter in kernel.parameters:
        root = parameter.name
        own = [one for one in kernel.accesses if one.root == root]
        if not own or root in kernel.escaping or any(one.written for one in own):
            continue
        if C_TYPES.get(parameter.c_type, parameter.c_type) not in {*DTYPES, *given.types}:
            continue
        places = [_place(kernel, one, bounds) for one in own]
        found = [one for one in places if one is not None]
        pitches = {pitch for _, pitch in found}
        distances = {(place.x, place.y) for place, _ in found}
        if len(found) != len(own) or len(pitches) != 1 or len(distances) < 2:
            continue
        # Every element below the bounds exists: its own thread reads it, or that of a later one, or the task says so.
        (pitch,) = pitches
        exists = any(
            place.x == place.y == 0 and certain(kernel, place.access.node, bounds, REACH) for place, _ in found
        )
        factors = sorted(re.split(r"\s*\*\s*", given.lengths.get(root, "")))
        if not exists and factors != sorted(bounds.values()):
            continue
        if len(distances) > len({(one.x, one.y) for one in best}):
            best, best_pitch = [place for place, _ in found], pitch
    return best, best_pitch


def _place(kernel: Kernel, access: Access, bounds: dict[str, str]) -> tuple[_Place, str] | None:
    """Where an access is by the thread's coordinates, and the size that multiplies the one along y."""
    if access.node.type != "subscript_expression" or len(access.path) != 1 or access.node.parent is None:
        return None
    index = _linear(kernel, access.path[0], 0)
    if index is None:
        return None
    names = {axis: coordinates(kernel, axis) for axis in bounds}
    x = y = 0
    across, down, pitch = "", "", ""
    distance_y: dict[str, int] = {}
    for words, factor in index.items():
        if not words:
            x = factor
        elif len(words) == 1 and words[0] in names["x"] and factor == 1 and not across:
            across = words[0]
        elif len(words) == 1 and words[0] in kernel.constants and "y" in bounds:
            distance_y[words[0]] = factor
        elif len(words) == 2 and "y" in bounds and factor == 1 and not down:
            mine = [word for word in words if word in names["y"]]
            other = [word for word in words if word in kernel.constants]
            if len(mine) != 1 or len(other) != 1:
                return None
            down, pitch = mine[0], other[0]
        else:
            return None
    if not across or bool(down) != ("y" in bounds) or not set(distance_y) <= {pitch}:
        return None
    y = distance_y.get(pitch, 0)
    if max(abs(x), abs(y)) > REACH:
        return None
    return _Place(access, (across, down) if down else (across,), x, y), pitch


Polynomial = dict[tuple[str, ...], int]
"""Coefficients by the sorted names that are multiplied; the empty tuple is the constant."""


def _add(left: Polynomial, right: Polynomial) -> Polynomial:
    found = dict(left)
    for names, factor in right.items():
        found[names] = found.get(names, 0) + factor
    return {names: factor for names, factor in found.items() if factor}


def _multiply(left: Polynomial, right: Polynomial) -> Polynomial:
    found: Polynomial = {}
    for names, factor in left.items():
        for others, another in right.items():
            found = _add(found, {tuple(sorted((*names, *others))): factor * another})
    return found


def _linear(kernel: Kernel, node: Node, depth: int) -> Polynomial | None:
    """An index as a polynomial of the names in it."""
    one = bare(node)
    if one is None or depth > 12 or global_coordinate(kernel, one):
        return None
    if one.type == "number_literal":
        digits = text(one).rstrip("uUlL")
        return ({(): int(digits)} if int(digits) else {}) if digits.isdigit() else None
    if one.type == "identifier":
        return {(text(one),): 1}
    if one.type != "binary_expression" or operator(one) not in "+-*":
        return None
    left, right = one.child_by_field_name("left"), one.child_by_field_name("right")
    if left is None or right is None:
        return None
    a, b = _linear(kernel, left, depth + 1), _linear(kernel, right, depth + 1)
    if a is None or b is None:
        return None
    if operator(one) == "*":
        return _multiply(a, b)
    return _add(a, b if operator(one) == "+" else {words: -factor for words, factor in b.items()})
