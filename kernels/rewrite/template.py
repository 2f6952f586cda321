"""A template from a plain kernel: what the rules contribute, put together.

Owns names, the order of edits, and the launch. A task without templates gets one here (`with_rules`); a task that has
some, or whose kernel is left alone, stays as it is, with the reasons. `starts` are the configurations where a search of
such a template begins: the combinations of rewrites that suit what limits the kernel.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Literal

from tunesmith.kernels.rewrite import opencl
from tunesmith.kernels.rewrite.facts import Facts
from tunesmith.kernels.rewrite.passes.rule import Applied, Edit, Skipped
from tunesmith.kernels.rewrite.passes.rules import OPENCL_RULES, RULES, subject
from tunesmith.kernels.rewrite.source import COMMENTS, Source, SourceError
from tunesmith.kernels.rewrite.syntax import Syntax, prelude
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.task import Task
from tunesmith.kernels.spec.template import BackendName, Config, Constraint, LaunchGeometry, Template, config_key

NAME = "by-rules"
DESCRIPTION = "Made of the baseline by rules; with every parameter at its default it is the baseline."
NO_GUARD = "The kernel has no guard against more threads than it came with."
"""Why a configuration fits only some shapes."""
_PREFIX = "TUNED_"


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What the rules made of a kernel. template: None where the kernel is left alone; skipped: why rules do not apply,
    a sentence each, or why none does; rules: the names of the rules that apply, in their order."""

    template: Template | None
    skipped: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()


def with_rules(task: Task, backend: BackendName) -> tuple[Task, tuple[str, ...]]:
    """`task` with a template made of its baseline where it has none for `backend`, and why rules did not apply."""
    sources = task.sources(backend) if backend in list(task.backends) else None
    if sources is None or sources.templates:
        return task, ()
    found = rewrite(task, backend)
    if found.template is None:
        return task, found.skipped
    extended = sources.model_copy(update={"templates": (found.template,)})
    return task.model_copy(update={"backends": {**task.backends, backend: extended}}), found.skipped


def rewrite(task: Task, backend: BackendName = "cuda", only: Collection[str] | None = None) -> Rewritten:
    """The template that the rules (all, or only the named ones) make of the baseline of `task`."""
    plain = task.sources(backend).baseline.template
    edited, parsed, rules = plain.source, plain.source, RULES
    if backend == "opencl":
        (edited, parsed), rules = opencl.editable(plain.source), OPENCL_RULES
    try:
        kernel = Source(parsed).kernel(task.entry, f"The baseline of {task.name}", "the task's `entry`")
    except SourceError as error:
        return Rewritten(None, (str(error).rstrip("."),))
    if backend == "opencl" and (why := opencl.oddity(COMMENTS.sub(" ", plain.source), kernel.reached(edited))):
        return Rewritten(None, (why,))
    if kernel.oddities:
        return Rewritten(None, tuple(one.why for one in kernel.oddities))
    if plain.parameters:
        return Rewritten(None, ("the baseline has parameters of its own",))
    used = set(re.findall(r"[A-Za-z_]\w*", plain.source)) | set(task.size_names) | set(task.types) | set(DTYPES)

    def name(wanted: str) -> str:
        return wanted if wanted not in used else f"{_PREFIX}{wanted}"

    lengths, same = dict[str, str](), set[str]()
    if len(task.arguments) == len(kernel.parameters):
        for argument, parameter in zip(task.arguments, kernel.parameters, strict=True):
            if argument.role == "scalar" and argument.value == parameter.name in task.size_names:
                same.add(parameter.name)
            lengths[parameter.name] = " * ".join(one if one.isalnum() else f"({one})" for one in argument.shape)
    given = subject(kernel, plain.launch, name, backend, frozenset(task.types), lengths, frozenset(same), only)
    applied, skipped, names = list[Applied](), list[str](), list[str]()
    for rule in rules:
        match rule(given):
            case Applied() as one:
                applied.append(one)
                names.append(rule.__name__)
            case Skipped(why):
                skipped.append(why)
    if not applied:
        return Rewritten(None, tuple(skipped))
    launch, constraints = _launch(plain.launch, applied)
    headers = [one.header for one in applied if one.header]
    only = [f"{NO_GUARD[:-1]}: its configurations fit only shapes whose threads they divide."] if constraints else []
    if backend == "opencl":
        headers.insert(0, opencl.HEADER)
    template = Template(
        name=NAME,
        backend=plain.backend,
        source="\n".join([*headers, _edited(edited.encode(), [edit for one in applied for edit in one.edits])]),
        entry=task.entry,
        parameters=tuple(parameter for one in applied for parameter in one.parameters),
        constraints=(*(found for one in applied for found in one.constraints), *constraints),
        launch=launch,
        static_shared_bytes=" + ".join(
            [plain.static_shared_bytes, *(one.static_shared for one in applied if one.static_shared)]
        ),
        max_registers=plain.max_registers,
        fast_math=next((one.fast_math for one in applied if one.fast_math), plain.fast_math),
        device_globals=plain.device_globals,
        description=" ".join([DESCRIPTION, *only, *(f"Not applied: {why}." for why in skipped)]),
    )
    return Rewritten(template, tuple(skipped), tuple(names))


def facts_of(task: Task, backend: BackendName) -> Facts:
    """Facts of the baseline of `task`, in the first of its types. Raises `SourceError`."""
    names = {dtype: one.c_names[backend] for dtype, one in DTYPES.items() if backend in one.c_names}
    types = {name: "float32" if "float32" in those else those[0] for name, those in task.types.items()}
    source = task.sources(backend).baseline.template.source
    return Facts(Syntax(source, backend, task.entry, f"The baseline of {task.name}", prelude(types, names)))


def _launch(plain: LaunchGeometry, applied: list[Applied]) -> tuple[LaunchGeometry, list[Constraint]]:
    """The launch, and the conditions under which it computes what the plain one does."""
    blocks = dict(pair for one in applied for pair in one.block)
    grids = dict(pair for one in applied for pair in one.grid)
    scales: dict[str, str] = {}
    for axis, share in (pair for one in applied for pair in one.scale):
        scales[axis] = f"{scales[axis]} * {share}" if scales.get(axis, "1") != "1" else share
    exact = {axis for one in applied for axis in one.exact}
    # Only where threads have global coordinates does the grid depend on the block.
    flat = set(scales)
    grid, block, constraints = list[str](), list[str](), list[Constraint]()
    for position, axis in enumerate("xyz"):
        old_grid = plain.grid[position] if position < len(plain.grid) else "1"
        old_block = plain.block[position] if position < len(plain.block) else "1"
        new_block = blocks.get(axis, old_block)
        block.append(new_block)
        if axis not in flat:
            grid.append(grids.get(axis, old_grid))
            continue
        total, share = f"({old_grid}) * ({old_block})", f"({new_block}) * {scales[axis]}"
        grid.append(f"ceil_div({total}, {share})")
        if axis in exact:
            constraints.append(Constraint(expression=f"({total}) % ({share}) == 0", because=NO_GUARD))
    for name, launch in (one.instead for one in applied if one.instead is not None):
        grid = [f"({launch.grid[at]}) if {name} > 0 else ({old})" for at, old in enumerate(grid)]
        block = [f"({launch.block[at]}) if {name} > 0 else ({old})" for at, old in enumerate(block)]
    shared = " + ".join([plain.shared_bytes, *(one.shared for one in applied if one.shared)])
    return LaunchGeometry(grid=tuple(grid), block=tuple(block), shared_bytes=shared), constraints


def _edited(code: bytes, edits: list[Edit]) -> str:
    """The source with all edits made; those at one place in their order, but what closes ends the innermost first."""
    parts, at = list[bytes](), 0
    order = {id(edit): position for position, edit in enumerate(edits)}

    def place(edit: Edit) -> tuple[int, int, bool, int]:
        position = order[id(edit)]
        return edit.start, edit.end, not edit.closes, -position if edit.closes else position

    for edit in sorted(edits, key=place):
        assert edit.start >= at, "edits do not overlap"
        parts += [code[at : edit.start], edit.text.encode()]
        at = edit.end
    return b"".join([*parts, code[at:]]).decode()


Limit = Literal["memory", "compute", "latency", "unknown"]
_REUSE: tuple[dict[str, tuple[int, ...]], ...] = (
    {"TILE": (32,)},
    {"OUTPUT_TILE": (64,), "OUTPUT_DEPTH": (16,), "OUTPUT_ROWS": (4,), "OUTPUT_COLUMNS": (4,)},
    {"OUTPUT_TILE": (128,), "OUTPUT_DEPTH": (16,), "OUTPUT_ROWS": (8,), "OUTPUT_COLUMNS": (8,)},
    {"LANES": (32,)},
    {"OWN_BINS": (1,), "ITEMS": (32, 8), "BLOCK": (256,)},
    {"HALO": (1,)},
)
"""Each element is needed by several threads: it is read once for all of them."""
_STREAMS: tuple[dict[str, tuple[int, ...]], ...] = (
    {"VEC": (16, 8, 4, 2), "STORES": (1,)},
    {"VEC": (4, 2), "LOADS": (2,), "STORES": (1,)},
    {"TEAM_ROWS": (4,), "BLOCK": (16,), "ROW_VEC": (8, 4, 2), "AHEAD": (1,)},
    {"AHEAD": (1,), "TEAM_ROWS": (4,), "BLOCK": (16,), "ROW_VEC": (8, 4, 2), "FAST_MATH": (1,), "INDEX_BITS": (32,)},
    {"AHEAD": (2,), "TEAM_ROWS": (8,), "BLOCK": (8,), "ROW_VEC": (8, 4, 2), "UNROLL": (1,), "INDEX_BITS": (32,)},
    {"AHEAD": (1,), "TEAM_ROWS": (4,), "BLOCK": (32,), "ROW_VEC": (8, 4, 2), "UNROLL": (1,), "INDEX_BITS": (32,)},
    {"SHUFFLES": (1,), "ROW_VEC": (8, 4, 2), "KEEP": (4,)},
    {"SHUFFLES": (1,), "ROW_VEC": (8, 4, 2), "KEEP": (1,)},
    {"ROW_VEC": (8, 4, 2), "BLOCK": (256,), "KEEP": (2,), "LOADS": (2,), "STORES": (1,)},
    {"ROW_VEC": (8, 4, 2), "BLOCK": (256,), "KEEP": (2,), "AHEAD": (2,)},
    {"ROW_VEC": (8, 4, 2), "BLOCK": (128,), "TEAM_BLOCKS": (4,), "STORES": (1,)},
    {"ITEMS": (4, 2), "LOADS": (1,)},
    {"ITEMS_Y": (4, 2), "LOADS": (1,)},
    {"ITEMS_Y": (4, 2), "BLOCKED_Y": (1,)},
)
"""Each element is needed once: it comes in wide accesses and displaces no data that is needed again. Short rows have a
quarter or half of a warp each, in blocks of two warps or more, and all that a thread needs is on its way at once."""
_ALU: tuple[dict[str, tuple[int, ...]], ...] = ({"FAST_MATH": (1,), "RESTRICT": (1,)}, {"UNROLL": (4,)})


def starts(template: Template, limit: Limit, fits: Callable[[Config], bool]) -> tuple[Config, ...]:
    """Configurations to try first, the most promising first; none for a template that no rule made. limit: what bounds
    the kernel. fits: whether a configuration is feasible."""
    if template.name != NAME:
        return ()
    order = (*_REUSE, *_ALU, *_STREAMS) if limit == "compute" else (*_REUSE, *_STREAMS, *_ALU)
    found = [config for wanted in order for config in _nearest(template, wanted, fits)]
    return tuple({config_key(config): config for config in found}.values())


def _nearest(
    template: Template, wanted: dict[str, tuple[int, ...]], fits: Callable[[Config], bool]
) -> Iterator[Config]:
    """The default with the first of the values that fit together; a value may be left out, but for that of the main
    parameter, which is named first: nothing where that is missing."""
    default = template.default_config
    known = {name.removeprefix("TUNED_"): name for name in default}
    main = next(iter(wanted))
    if main not in known:
        return
    choices = {
        known[name]: [type(default[known[name]])(value) for value in values]
        + ([default[known[name]]] if name != main else [])
        for name, values in wanted.items()
        if name in known
    }
    for values in itertools.product(*choices.values()):
        config = {**default, **dict(zip(choices, values, strict=True))}
        if fits(config):
            yield config
            return
