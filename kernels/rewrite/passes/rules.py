"""The rewrites: each looks at a kernel, and either contributes edits and parameters or says why it does not apply.

Owns the list, and the rules of the launch and the compiler; rules that change what a kernel does with its data have
modules of their own. Putting contributions together is for `template`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from tunesmith.kernels.rewrite.passes.halo import halo
from tunesmith.kernels.rewrite.passes.hints import cache_hints
from tunesmith.kernels.rewrite.passes.indices import narrow_indices
from tunesmith.kernels.rewrite.passes.lanes import row_lanes
from tunesmith.kernels.rewrite.passes.output_tiles import output_tiles
from tunesmith.kernels.rewrite.passes.own_bins import own_bins
from tunesmith.kernels.rewrite.passes.row_loops import row_loops
from tunesmith.kernels.rewrite.passes.rule import AXES, Applied, Edit, Rule, Skipped, Subject, rule
from tunesmith.kernels.rewrite.passes.shuffles import shuffles
from tunesmith.kernels.rewrite.passes.teams import row_teams
from tunesmith.kernels.rewrite.passes.tiles import transposed_tiles
from tunesmith.kernels.rewrite.passes.vectors import vectors
from tunesmith.kernels.rewrite.source import Kernel, bare, operator, text, walk
from tunesmith.kernels.rewrite.threads import MAX_BLOCK_THREADS, Cells, Fixed, Rows, sharing
from tunesmith.kernels.spec.template import BackendName, Constraint, LaunchGeometry, Parameter

if TYPE_CHECKING:
    from tree_sitter import Node

_SLOW_MATH = re.compile(r"\b(?:exp2?|log(?:2|10)?|pow|sin|cos|tanh?|r?sqrt|erf)f?\s*\(|/")


def subject(
    kernel: Kernel,
    launch: LaunchGeometry,
    name: Callable[[str], str],
    backend: BackendName = "cuda",
    types: frozenset[str] = frozenset(),
    lengths: Mapping[str, str] = MappingProxyType({}),
    same_sizes: frozenset[str] = frozenset(),
    only: Collection[str] | None = None,
) -> Subject:
    """What the rules look at; a launch that the kernel's code does not explain makes its work `Fixed`."""
    work = sharing(kernel)
    one = Subject(kernel, launch, work, name)
    if isinstance(work, Rows) and (one.block("y"), one.block("z")) != ("1", "1"):
        work = Fixed("its code uses threadIdx.x alone, and its blocks have more than one dimension")
    if isinstance(work, Cells):
        used = {axis.name for axis in work.axes}
        for axis in AXES:
            if axis not in used and one.block(axis) != "1":
                work = Fixed(f"its blocks have several threads along {axis}, which the code does not use")
    return Subject(kernel, launch, work, name, backend, types, lengths, same_sizes, only)


@rule
def block_size(given: Subject) -> Applied | Skipped:
    """The threads of a block, where the code does the same with another number of them; 0 is the task's own number."""
    axes: tuple[str, ...]
    exact: tuple[str, ...]
    match given.work:
        case Fixed(why):
            return Skipped(f"the size of a block stays: {why}")
        case Rows(most):
            fewer = (8, 16) if _part_of_a_warp(given) else ()
            values = [0, *(value for value in (*fewer, 32, 64, 128, 256, 512, 1024) if value <= most)]
            axes, sizes, exact = ("x",), {"x": values}, ()
        case Cells(found):
            axes = tuple(axis.name for axis in found)
            several = {"x": [8, 16, 32, 64, 128], "y": [1, 2, 4, 8, 16], "z": [1, 2, 4]}
            sizes = several if len(axes) > 1 else {axes[0]: [64, 128, 256, 512, 1024]}
            sizes[axes[0]] = [0, *sizes[axes[0]]]
            exact = tuple(axis.name for axis in found if not axis.guarded and not axis.strided)
    names = {axis: given.name("BLOCK" if len(axes) == 1 else f"BLOCK_{axis.upper()}") for axis in axes}
    first = names[axes[0]]
    parameters = [
        Parameter(
            name=names[axis],
            values=tuple(sizes[axis]),
            doc=f"threads of a block along {axis}"
            + ("; 0: as many as the kernel came with" if axis == axes[0] else ""),
        )
        for axis in axes
    ]
    header, edits = [], []
    for axis in axes:
        macro = given.name(f"BLOCK_DIM_{axis.upper()}")
        header += [f"#if {first} > 0", f"#define {macro} (({given.index_type})({names[axis]}))", "#else"]
        header += [f"#define {macro} blockDim.{axis}", "#endif"]
        edits += [Edit(one.start_byte, one.end_byte, macro) for one in _builtins(given.kernel, f"blockDim.{axis}")]
    # Where the kernel keeps its block, the other extents mean nothing: they have one value then.
    constraints = [
        Constraint(
            expression=f"{first} > 0 or {names[axis]} == {sizes[axis][0]}",
            because="The kernel's own block has its own extents.",
        )
        for axis in axes[1:]
    ]
    if isinstance(given.work, Rows) and 8 in sizes["x"]:
        # An SM holds 32 blocks (CUDA C++ Programming Guide, "Compute Capabilities"): smaller ones leave it half empty.
        enough = f"{first} == 0 or {first} >= 32 or {first} * {given.name('TEAM_ROWS')} >= 64"
        because = "Rows that have less than a warp share a block of two warps or more."
        constraints.append(Constraint(expression=enough, because=because))
    block = tuple((axis, f"({names[axis]} if {first} > 0 else ({given.block(axis)}))") for axis in axes)
    # Blocks of another size need another number of them, also where a thread keeps its one element.
    scale = tuple((axis, "1") for axis in axes) if isinstance(given.work, Cells) else ()
    return Applied(
        tuple(parameters), tuple(edits), "\n".join(header), tuple(constraints), block, scale=scale, exact=exact
    )


def _part_of_a_warp(given: Subject) -> bool:
    """Whether a row may have fewer threads than a warp: several rows fill the block, and none asks for its lane."""
    teams = row_teams(given)
    several = isinstance(teams, Applied) and any(one.name == given.name("TEAM_ROWS") for one in teams.parameters)
    return several and re.search(r"[%/]\s*(?:32|warpSize)\b|&\s*31\b|>>\s*5\b", given.kernel.plain) is None


@rule
def work_per_thread(given: Subject) -> Applied | Skipped:
    """Several elements for a thread; 1 is as it was. They are a whole block apart, so that neighbouring threads stay
    neighbours (cyclic), or neighbours themselves, so that shared data stays in the thread (blocked).

    A kernel that steps through its data by the size of the grid gets a smaller grid. Any other gets a loop around its
    body, in which each block does the work of several, one after another.
    """
    if not isinstance(given.work, Cells):
        why = given.work.why if isinstance(given.work, Fixed) else "a block already takes turns on its row"
        return Skipped(f"threads keep their work: {why}")
    kernel, parameters, edits, scale = given.kernel, list[Parameter](), list[Edit](), list[tuple[str, str]]()
    changed = sorted({one.name for one in kernel.parameters} & kernel.changed)
    if changed and not all(axis.strided for axis in given.work.axes):
        return Skipped(f"threads keep their work: the kernel changes its parameter {changed[0]}")
    opening, closing, header, constraints = "", "", list[str](), list[Constraint]()
    several = len(given.work.axes) > 1
    for axis in given.work.axes:
        name = given.name(f"ITEMS_{axis.name.upper()}" if several else "ITEMS")
        values: tuple[int, ...] = (1, 2, 4, 8, 16) if axis.strided else (1, 2, 4, 8) if not several else (1, 2, 4)
        if isinstance(own_bins(given), Applied):
            # The more elements a block has, the less its own bins cost.
            values = (1, 2, 4, 8, 16, 32)
        doc = f"elements that a thread computes along {axis.name}"
        parameters.append(Parameter(name=name, values=values, doc=doc, launch_only=axis.strided))
        scale.append((axis.name, name))
        if axis.strided:
            continue
        item = given.name(f"item_{axis.name}")
        opening += f"\n#pragma unroll\nfor (unsigned int {item} = 0; {item} < {name}; ++{item})"
        ending = f"_{axis.name.upper()}"
        together = given.name("BLOCKED" + ending * several)
        block, thread = given.name(f"ITEM_BLOCK{ending}"), given.name(f"ITEM_THREAD{ending}")
        header += [f"#if {together}", f"#define {block} (blockIdx.{axis.name} * {name})"]
        header += [f"#define {thread} (threadIdx.{axis.name} * {name} + {item})", "#else"]
        header += [f"#define {block} (blockIdx.{axis.name} * {name} + {item})"]
        header += [f"#define {thread} threadIdx.{axis.name}", "#endif"]
        # Threads are told apart by their coordinates alone: its parts say which element is whose.
        edits += [Edit(one.start_byte, one.end_byte, block) for one in _builtins(kernel, f"blockIdx.{axis.name}")]
        edits += [Edit(one.start_byte, one.end_byte, thread) for one in _builtins(kernel, f"threadIdx.{axis.name}")]
        doc = f"whether the elements of a thread along {axis.name} are neighbours; else they are a block apart"
        parameters.append(Parameter(name=together, values=(False, True), doc=doc))
        because = "A thread with one element has no neighbours of its own."
        constraints.append(Constraint(expression=f"not {together} or {name} > 1", because=because))
    returns = [node for node in walk(kernel.body) if node.type == "return_statement"]
    if opening and (not returns or given.backend == "opencl"):
        if any(_inside_another_loop(node) for node in returns):
            return Skipped("threads keep their work: the kernel returns from inside a loop")
        # The loop around the body: what ends a thread ends its element alone.
        edits += [Edit(node.start_byte, node.end_byte, "continue;") for node in returns]
        edits.append(Edit(kernel.body.start_byte, kernel.body.start_byte, f"{{{opening}\n"))
        edits.append(Edit(kernel.body.end_byte, kernel.body.end_byte, "\n}", closes=True))
    elif opening:
        body = given.name("body")
        captured = ", ".join(given.name(f"item_{axis.name}") for axis in given.work.axes if not axis.strided)
        signature = ", ".join(f"const unsigned int {one}" for one in captured.split(", "))
        # A function of its own, so that a return ends one element and not all of them.
        edits.append(Edit(kernel.body.start_byte, kernel.body.start_byte, f"{{\nconst auto {body} = [&]({signature}) "))
        closing = f";{opening} {body}({captured});\n}}"
        edits.append(Edit(kernel.body.end_byte, kernel.body.end_byte, closing, closes=True))
    exact = tuple(axis.name for axis in given.work.axes if not axis.guarded and not axis.strided)
    return Applied(
        tuple(parameters),
        tuple(edits),
        "\n".join(header),
        tuple(constraints),
        scale=tuple(scale),
        exact=exact,
    )


def _inside_another_loop(node: Node) -> bool:
    """Whether `continue` would mean a loop of the kernel's own."""
    above = node.parent
    while above is not None and above.type not in ("for_statement", "while_statement", "do_statement"):
        above = above.parent
    return above is not None


@rule
def launch_bounds(given: Subject) -> Applied | Skipped:
    """What the compiler is told of a block's size, and how many blocks shall fit on a multiprocessor; 0 leaves that to
    the compiler."""
    declared = [node for node in given.kernel.function.children if node.type == "launch_bounds"]
    original = text(declared[0]) if declared else ""
    minimum = given.name("MIN_BLOCKS")
    threads, otherwise, constraints = "", "", list[Constraint]()
    size = block_size(given)
    if isinstance(size, Skipped):
        if not all(extent.isdigit() for extent in given.launch.block):
            return Skipped("launch bounds stay: the size of a block depends on the workload")
        threads = str(math.prod(int(extent) for extent in given.launch.block))
    else:
        names = [parameter.name for parameter in size.parameters]
        threads, otherwise = " * ".join(names), names[0]
        teams = row_teams(given)
        if isinstance(teams, Applied):
            threads = " * ".join([threads, *(extent for _, extent in teams.block)])
        constraints.append(
            Constraint(
                expression=f"{otherwise} > 0 or {minimum} == 0",
                because="The kernel keeps its own launch bounds with its own block.",
            )
        )
    constraints.append(
        Constraint(expression=f"{threads} * {minimum} <= 2048", because="No multiprocessor holds more threads.")
    )
    macro = given.name("LAUNCH_BOUNDS")
    header = [f"#if {minimum} > 0", f"#define {macro} __launch_bounds__({threads}, {minimum})"]
    if otherwise:
        header += [f"#elif {otherwise} > 0", f"#define {macro} __launch_bounds__({threads})"]
    header += ["#else", f"#define {macro} {original}", "#endif"]
    if declared:
        edit = Edit(declared[0].start_byte, declared[0].end_byte, macro)
    else:
        start = given.kernel.declarator.start_byte
        edit = Edit(start, start, f"{macro} ")
    parameter = Parameter(name=minimum, values=(0, 1, 2, 4, 8), doc="blocks that shall fit on a multiprocessor at once")
    return Applied((parameter,), (edit,), "\n".join(header), tuple(constraints))


@rule
def unrolling(given: Subject) -> Applied | Skipped:
    """How far loops are unrolled; 0 leaves that to the compiler."""
    name = given.name("UNROLL")
    edits = []
    for body in (given.kernel.body, *given.kernel.functions):
        for node in walk(body):
            if node.type == "for_statement" and _may_unroll(node):
                pragma = f"\n#if {name} > 0\n#pragma unroll {name}\n#endif\n"
                edits.append(Edit(node.start_byte, node.start_byte, pragma))
    if not edits:
        return Skipped("there is no loop to unroll whose length the compiler does not know")
    parameter = Parameter(name=name, values=(0, 1, 2, 4, 8), doc="how far loops are unrolled; 0: as the compiler likes")
    return Applied((parameter,), tuple(edits))


def _may_unroll(loop: Node) -> bool:
    """Whether it is a counting loop of unknown length, without a pragma of its own."""
    condition, update = loop.child_by_field_name("condition"), loop.child_by_field_name("update")
    if condition is None or update is None or loop.parent is None or loop.parent.type != "compound_statement":
        return False
    right = bare(condition.child_by_field_name("right"))
    if right is None or right.type == "number_literal":
        return False
    counts = update.type == "update_expression" or operator(update) == "+="
    before = loop.prev_named_sibling
    return counts and (before is None or not before.type.startswith("preproc"))


@rule
def restricted_pointers(given: Subject) -> Applied | Skipped:
    """Whether the compiler may assume that arrays do not overlap, which also lets it read through the read-only cache.
    A task's arrays never overlap."""
    name, macro = given.name("RESTRICT"), given.name("RESTRICTED")
    edits = []
    for node, parameter in zip(given.kernel.parameter_nodes, given.kernel.parameters, strict=True):
        declarator = node.child_by_field_name("declarator")
        if parameter.pointer and not parameter.restrict and declarator is not None:
            if declarator.type != "pointer_declarator":
                continue
            inner = declarator.child_by_field_name("declarator")
            if inner is not None and inner.type == "identifier":
                edits.append(Edit(inner.start_byte, inner.start_byte, f"{macro} "))
    if not edits:
        return Skipped("all pointers are __restrict__ already")
    header = f"#if {name}\n#define {macro} __restrict__\n#else\n#define {macro}\n#endif"
    parameter_ = Parameter(name=name, values=(False, True), doc="whether pointers are __restrict__")
    return Applied((parameter_,), tuple(edits), header)


@rule
def fast_math(given: Subject) -> Applied | Skipped:
    """The compiler's faster and less exact functions and division; the check decides whether they are exact enough."""
    if not _SLOW_MATH.search(given.kernel.plain):
        return Skipped("no function or division has a faster, less exact form")
    name = given.name("FAST_MATH")
    return Applied(
        (Parameter(name=name, values=(False, True), doc="whether to compile with fast math"),), fast_math=name
    )


RULES: tuple[Rule, ...] = (
    block_size,
    own_bins,
    halo,
    vectors,
    transposed_tiles,
    output_tiles,
    row_lanes,
    work_per_thread,
    shuffles,
    row_teams,
    row_loops,
    cache_hints,
    narrow_indices,
    launch_bounds,
    unrolling,
    restricted_pointers,
    fast_math,
)
"""In the order in which a template lists their parameters, and in which edits of one place stand."""
OPENCL_RULES: tuple[Rule, ...] = (block_size, work_per_thread, unrolling, fast_math)
"""Those that write nothing but what OpenCL C 1.2 has."""
assert MAX_BLOCK_THREADS == 1024, "the values of block_size end there"


def _builtins(kernel: Kernel, name: str) -> list[Node]:
    """Where the kernel, or a function that it calls, writes the builtin `name`."""
    return [
        node
        for body in (kernel.body, *kernel.functions)
        for node in walk(body)
        if node.type == "field_expression" and text(node) == name
    ]
