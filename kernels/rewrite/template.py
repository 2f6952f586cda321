"""A template from a plain kernel: the contributions of the rules, put together.

Owns the list of the rules. A task without templates gets one here (`with_rules`); a task that has some, or whose kernel
is left alone, stays as it is, with the reasons. `starts` are the configurations where a search of such a template
begins: the combinations of rewrites that suit what limits the kernel.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Literal

from tunesmith.kernels.reader.parse import SourceError
from tunesmith.kernels.reader.syntax import Syntax, prelude
from tunesmith.kernels.rewrite.canonical import canonical
from tunesmith.kernels.rewrite.composition import NAME, Rewritten, compose
from tunesmith.kernels.rewrite.facts import AXES, Facts
from tunesmith.kernels.rewrite.passes import (
    columns,
    compiler,
    constants,
    lanes,
    launch,
    own_bins,
    permutations,
    products,
    rows,
    runs,
    shuffles,
    teams,
    vectors,
    walk,
)
from tunesmith.kernels.rewrite.passes.record import Pass, Subject
from tunesmith.kernels.rewrite.sharing import fixed, sharing
from tunesmith.kernels.rewrite.untiled import untiled
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.task import Task
from tunesmith.kernels.spec.template import BACKENDS, BackendName, Config, LaunchGeometry, Template, config_key

__all__ = ["NAME", "Rewritten", "left_alone", "missing_rule", "rewrite", "starts", "with_rules"]
_PREFIX = "TUNED_"


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


RULES: tuple[Pass, ...] = (
    launch.BLOCK_SIZE,
    own_bins.OWN_BINS,
    own_bins.COPIES,
    walk.WALK,
    vectors.VECTORS,
    permutations.PERMUTED_TILES,
    products.OUTPUT_TILES,
    columns.COLUMN_LANES,
    constants.CONSTANTS,
    launch.WORK_PER_THREAD,
    launch.MORE_BLOCKS,
    shuffles.SHUFFLES,
    teams.ROW_TEAMS,
    lanes.ROW_LANES,
    rows.ROW_LOOPS,
    runs.RUNS,
    vectors.CACHE_HINTS,
    compiler.NARROW_INDICES,
    launch.LAUNCH_BOUNDS,
    compiler.UNROLLING,
    compiler.FAST_MATH,
)
"""In the order in which a template lists their parameters; of changes at one place the first is the outermost."""


_TILING = {products.OUTPUT_TILES.name, lanes.ROW_LANES.name, columns.COLUMN_LANES.name}
"""The rules that share a sum among threads in their own way, for which tiles of the author's give way."""

_COMPILER = {"launch_bounds", "constants", "unrolling", "fast_math"}
_KEEPING = {"early return": {*_COMPILER, "narrow_indices", "cache_hints"}, "assembly": _COMPILER}
"""What threads do stays as it is by these rules: by what of a kernel forbids the others."""


def rewrite(task: Task, backend: BackendName = "cuda", only: Collection[str] | None = None) -> Rewritten:
    """The template that the rules (all, or only the named ones) make of the baseline of `task`."""
    plain = task.sources(backend).baseline.template
    if BACKENDS[backend].python:
        return Rewritten(None, ("rules rewrite kernels in CUDA and OpenCL C, not in Python",))
    try:
        facts, spread = _read(task, plain)
    except SourceError as error:
        return Rewritten(None, (str(error).rstrip("."),))
    odd = facts.oddities
    if odd.keys() - _KEEPING.keys():
        return Rewritten(None, tuple(odd.values()))
    if plain.parameters:
        return Rewritten(None, ("the baseline has parameters of its own",))
    subject = _subject(task, backend, facts, spread)
    withdrawn = [one.name for one in RULES if only is not None and one.name not in only]
    without = {name: f"the rule {name} was withdrawn" for name in withdrawn}
    without |= {one.name: why for kind, why in odd.items() for one in RULES if one.name not in _KEEPING[kind]}
    if backend == "cuda" and not odd and (found := untiled(subject)) is not None:
        plainer = plain.model_copy(update={"source": found[0], "launch": found[1], "static_shared_bytes": "0"})
        made = compose(plainer, _subject(task, backend, *_read(task, plainer)), RULES, without)
        if made.rules.keys() & _TILING:
            return made
    return compose(plain, subject, RULES, without)


_NEARER = {True: ("output_tiles", "work_per_thread"), False: ("vectors", "row_lanes", "row_teams", "work_per_thread")}
"""The rules that bring a kernel nearer to its floor, by whether arithmetic bounds it, the largest gains first."""


def missing_rule(task: Task, backend: BackendName, *, computes: bool) -> str:
    """Why the rule that could bring the kernel nearest to its floor does not apply, as a clause; empty where they all
    apply. computes: whether arithmetic bounds the kernel; else memory does."""
    refused = rewrite(task, backend).refused
    return next((refused[name] for name in _NEARER[computes] if name in refused), "")


def left_alone(files: Mapping[str, str], entry: str) -> tuple[str, ...]:
    """Why the rules leave the baseline of a draft as it is, a clause each; what only its task's types explain does not
    count. files: the draft's, by name."""
    found = [(backend, files.get(f"baseline{one.suffix}")) for backend, one in BACKENDS.items() if not one.python]
    try:
        facts = [Facts(Syntax(code, backend, entry)) for backend, code in found if code]
    except SourceError as error:
        return (str(error).rstrip("."),)
    return tuple(why for one in facts for kind, why in one.oddities.items() if kind not in ("syntax", *_KEEPING))


def _read(task: Task, plain: Template) -> tuple[Facts, LaunchGeometry]:
    """A plain kernel in its canonical spelling, in the first of its types, and its launch. Raises `SourceError`."""
    names = {dtype: one.c_names[plain.backend] for dtype, one in DTYPES.items() if plain.backend in one.c_names}
    types = {name: "float32" if "float32" in those else those[0] for name, those in task.types.items()}
    where, known = f"The baseline of {task.name}", prelude(types, names)
    read = partial(Syntax, language=plain.backend, entry=task.entry, where=where, prelude=known)
    values = [int(one.value) if one.value and one.value.isdigit() else None for one in task.arguments]
    return canonical(read, plain.source, plain.launch, values)


def _subject(task: Task, backend: BackendName, facts: Facts, spread: LaunchGeometry) -> Subject:
    """The subject of all passes; the work is fixed where the kernel's code does not explain its launch."""
    plain = task.sources(backend).baseline.template
    used = set(re.findall(r"[A-Za-z_]\w*", plain.source)) | set(task.size_names) | set(task.types) | set(DTYPES)

    def name(wanted: str) -> str:
        return wanted if wanted not in used else f"{_PREFIX}{wanted}"

    lengths, sizes, work = dict[str, str](), dict[str, str](), sharing(facts)
    if len(task.arguments) == len(facts.parameters):
        for argument, parameter in zip(task.arguments, facts.parameters, strict=True):
            if argument.role == "scalar" and argument.value in task.size_names and parameter not in facts.changed:
                sizes[argument.value] = parameter.name
            lengths[parameter.name] = " * ".join(one if one.isalnum() else f"({one})" for one in argument.shape)
    made = Subject(facts, spread, work, name, task, backend, lengths, sizes)
    if work.kind == "rows" and (made.extent("y"), made.extent("z")) != ("1", "1"):
        work = fixed("its code uses threadIdx.x alone, and its blocks have more than one dimension")
    if facts.syntax.lowering.ranks and any(one != "1" for one in (*spread.grid[1:], *spread.block[1:])):
        work = fixed("it asks groups for the rank of a thread, in a launch of more than one dimension")
    unused = [axis for axis in AXES if axis not in made.axes and made.extent(axis) != "1"]
    if work.kind == "cells" and unused:
        work = fixed(f"its blocks have several threads along {unused[0]}, which the code does not use")
    return replace(made, work=work)


Limit = Literal["memory", "compute", "latency", "unknown"]
_REUSE: tuple[dict[str, tuple[int, ...]], ...] = (
    {"PERMUTE": (32,)},
    {
        "OUTPUT_STEPS": (16, 4),
        "OUTPUT_TILE": (128,),
        "OUTPUT_DEPTH": (32,),
        "OUTPUT_ROWS": (8,),
        "OUTPUT_COLUMNS": (8,),
    },
    {"OUTPUT_STEPS": (16, 4), "OUTPUT_TILE": (64,), "OUTPUT_DEPTH": (32,), "OUTPUT_ROWS": (4,), "OUTPUT_COLUMNS": (4,)},
    {"OUTPUT_TILE": (64,), "OUTPUT_DEPTH": (16,), "OUTPUT_ROWS": (4,), "OUTPUT_COLUMNS": (4,)},
    {"OUTPUT_TILE": (64,), "OUTPUT_DEPTH": (16,), "OUTPUT_ROWS": (8,), "OUTPUT_COLUMNS": (4,), "LOADS": (1,)},
    {"OUTPUT_TILE": (128,), "OUTPUT_DEPTH": (16,), "OUTPUT_ROWS": (8,), "OUTPUT_COLUMNS": (8,)},
    {"MORE_BLOCKS": (32, 8, 2)},
    {"MORE_BLOCKS_Y": (32, 8), "MORE_BLOCKS_X": (4, 1)},
    {"MORE_BLOCKS_X": (32, 8)},
    {"LANES": (32,)},
    {"LANES": (32, 8), "TEAM_BLOCKS": (32, 8), "BLOCK": (256,), "INDEX_BITS": (32,)},
    {"LANES": (8,), "BLOCK": (256,), "LOADS": (1,)},
    {"RUN": (32, 16, 8)},
    {"RUN": (16,), "MIN_BLOCKS": (4, 2), "LOADS": (1,)},
    {"COLUMN_LANES": (32,)},
    {"COLUMN_LANES": (8,), "UNROLL": (4,)},
    {"OWN_BINS": (1,), "ITEMS": (32, 8), "BLOCK": (256,)},
    {"OWN_BINS": (1,), "COPIES": (32, 8), "VEC": (4, 2), "ITEMS": (4,), "BLOCK": (1024,)},
    {"COPIES": (32, 16, 8), "ROW_VEC": (16, 8, 4, 2), "LOADS": (2,)},
    {"WALK": (8, 4, 2), "INDEX_BITS": (32,)},
)
"""Each element is needed by several threads: it is read once for all of them."""
_STREAMS: tuple[dict[str, tuple[int, ...]], ...] = (
    {"VEC": (16, 8, 4, 2), "STORES": (1,)},
    {"VEC": (4, 2), "LOADS": (2,), "STORES": (1,)},
    {"TEAM_ROWS": (4,), "BLOCK": (16,), "ROW_VEC": (8, 4, 2)},
    {"TEAM_ROWS": (4,), "BLOCK": (16,), "ROW_VEC": (8, 4, 2), "FAST_MATH": (1,), "INDEX_BITS": (32,)},
    {"TEAM_ROWS": (8,), "BLOCK": (8,), "ROW_VEC": (8, 4, 2), "UNROLL": (1,), "INDEX_BITS": (32,)},
    {"TEAM_ROWS": (4,), "BLOCK": (32,), "ROW_VEC": (8, 4, 2), "UNROLL": (1,), "INDEX_BITS": (32,)},
    {"SHUFFLES": (1,), "ROW_VEC": (8, 4, 2), "KEEP": (4,)},
    {"SHUFFLES": (1,), "ROW_VEC": (8, 4, 2), "KEEP": (1,)},
    {"ROW_VEC": (8, 4, 2), "BLOCK": (256,), "KEEP": (2,), "LOADS": (2,), "STORES": (1,)},
    {"ROW_VEC": (8, 4, 2), "BLOCK": (128,), "TEAM_BLOCKS": (4,), "STORES": (1,)},
    {"ITEMS": (4, 2), "LOADS": (1,)},
    {"ITEMS_Y": (4, 2), "LOADS": (1,)},
    {"ITEMS_Y": (4, 2), "BLOCKED_Y": (1,)},
)
"""Each element is needed once: it comes in wide accesses and displaces no data that is needed again. Short rows have a
quarter or half of a warp each, in blocks of two warps or more."""
_ALU: tuple[dict[str, tuple[int, ...]], ...] = ({"FAST_MATH": (1,)}, {"UNROLL": (4,)})
_CONSTANTS: tuple[dict[str, tuple[int, ...]], ...] = (
    {"SPECIALISED": (1,)},
    {"SPECIALISED": (1,), "BLOCK": (256,), "BLOCK_X": (32,), "BLOCK_Y": (8,), "FAST_MATH": (1,), "INDEX_BITS": (32,)},
)


def starts(template: Template, limit: Limit, fits: Callable[[Config], bool]) -> tuple[Config, ...]:
    """Configurations to try first, the most promising first; none for a template that no rule made. limit: what bounds
    the kernel. fits: whether a configuration is feasible."""
    if template.name != NAME:
        return ()
    order = (*_REUSE, *_CONSTANTS, *(_ALU + _STREAMS if limit == "compute" else _STREAMS + _ALU))
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
