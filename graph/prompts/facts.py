"""The facts in prompts: task, device, workloads, and kernels with their occupancy, instructions and counters.

`examine` collects instruction counts and hardware counters of a kernel once and journals them; everything else reads
the journal, so that a prompt made twice from one journal is the same text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from tunesmith.actors.process import Isolated
from tunesmith.actors.workers import CompileWorker
from tunesmith.graph.context import Context
from tunesmith.graph.journal.events import EvidenceKept
from tunesmith.graph.journal.log import Node, Tree
from tunesmith.hw.device_lock import DeviceLock
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.occupancy import occupancy
from tunesmith.kernels.build.artifact import Artifact, Candidate, types_key
from tunesmith.kernels.build.machine_code import Profile
from tunesmith.kernels.build.source import specialise
from tunesmith.kernels.check.sanitizer import Counters, count_events
from tunesmith.kernels.outcome import Resources
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.task import Argument, Geometry, Task, Workload, geometry
from tunesmith.kernels.spec.template import BACKENDS, BackendName, Config, Template, assignments, config_key

COMPILE_SECONDS = 60.0
"""Deadline of one compilation."""
MAX_LINE = 60
"""Characters of a source line that a prompt quotes."""
EXTREMES = 5
"""Configurations of a template that are shown, from each end."""
MAX_SOURCE = 40_000
"""Characters of one source in a prompt; more is cut, and said to be."""


def examine(context: Context, which: str, template: Template, config: Config, workload: Workload, stage: str) -> None:
    """Journals instruction counts and hardware counters of a kernel on one workload, as far as the device has them.
    which: "baseline" or a template's id."""
    if context.log.evidence(which, config) is not None:
        return
    limits, index = context.device.limits, context.device.index
    if not BACKENDS[limits.backend].nvidia_tools:
        return
    source = specialise(template, config, workload.types)
    profile: Any = Profile()
    artifact: Any = None
    counters = Counters(note="its machine code could not be looked at here")
    try:
        with Isolated("compile", CompileWorker, limits, index) as compiler:
            profile = compiler.call("profile", COMPILE_SECONDS, source)
            artifact = compiler.call("compile", COMPILE_SECONDS, source)
    except TunesmithError as error:
        # The compiler may be on other nodes of a cluster only; a run goes on without evidence.
        counters = Counters(note=str(error).rstrip("."))
    if isinstance(artifact, Artifact):
        candidate = Candidate(template, config, {types_key(workload): artifact})
        # A launch under the tool must not disturb another measurement.
        uuid = context.device.uuid
        with nullcontext() if uuid is None else DeviceLock(uuid):
            counters = count_events(candidate, context.task, limits, index, workload, context.settings.seed)
    event = EvidenceKept(
        which=which,
        config=config_key(config),
        workload=workload.name,
        resources=artifact.resources if isinstance(artifact, Artifact) else None,
        instructions=profile.sorts if isinstance(profile, Profile) else {},
        hot_lines=hot_lines(template.source, profile) if isinstance(profile, Profile) else (),
        counters=counters.values,
        note=counters.note,
    )
    context.journal.append(event, stage)


def hot_lines(source: str, profile: Profile) -> tuple[str, ...]:
    """The lines of `source` with the most instructions, a clause each."""
    lines, clauses = source.splitlines(), []
    for hot in profile.lines:
        if hot.line <= len(lines) and (text := " ".join(lines[hot.line - 1].split())):
            where = " in a loop" if hot.depth == 1 else f" in {hot.depth} loops" if hot.depth else ""
            clauses.append(f"{hot.line}: {hot.instructions}{where}: {text[:MAX_LINE]}")
    return tuple(clauses)


def resource_lines(
    context: Context, template: Template, config: Config, resources: Resources | None, workloads: Sequence[Workload]
) -> list[str]:
    """A kernel's registers and memory in a line, then a line for each workload with its launch and its occupancy."""
    if resources is None or resources.registers is None:
        lines = ["registers and spills: not known for this device"]
    else:
        lines = [
            f"{resources.registers} registers a thread, {resources.spills or 0} bytes spilled, {resources.local or 0} "
            f"bytes local memory a thread, {resources.shared or 0} bytes static shared memory a block"
        ]
    for workload in workloads:
        shape = geometry(template, config, workload)
        dynamic = f", {shape.shared_bytes} bytes dynamic shared memory" if shape.shared_bytes else ""
        occupied = _occupancy(context, shape, resources)
        lines.append(f"on {workload.name}: grid {shape.grid}, block {shape.block}{dynamic}{occupied}")
    return lines


def _occupancy(context: Context, shape: Geometry, resources: Resources | None) -> str:
    """As the end of a sentence; empty where it is not known."""
    if resources is None or resources.registers is None:
        return ""
    threads, blocks = math.prod(shape.block), math.prod(shape.grid)
    shared = (resources.shared or 0) + shape.shared_bytes
    result = occupancy(context.device.limits, threads=threads, registers=resources.registers, shared=shared)
    if result.fraction is None:
        return ""
    sms = context.device.limits.sm_count
    waves = f", {blocks / (sms * result.blocks_per_sm):.2f} waves" if sms and result.blocks_per_sm else ""
    return (
        f"; occupancy {result.fraction:.0%} ({result.blocks_per_sm} blocks an SM, limited by {result.limiter}){waves}"
    )


def task_facts(context: Context) -> dict[str, Any]:
    """The task as its author described it."""
    task, backend = context.task, context.device.limits.backend
    return {
        "name": task.name,
        "summary": task.summary,
        "entry": task.entry,
        "signature": signature(task, backend),
        "arguments": [_argument(task, argument) for argument in task.arguments],
        "types": {
            name: [f"{dtype} ({DTYPES[dtype].c_name(backend)})" for dtype in options]
            for name, options in task.types.items()
        },
        "tolerances": _tolerances(task),
        "bytes": task.bytes,
        "flops": task.flops,
        "reference": cut(task.reference) if task.reference else "(the original kernel)",
        "sizes": sorted(task.size_names),
    }


def signature(task: Task, backend: BackendName) -> str:
    """The kernel's signature, as the harness launches it."""
    traits, arguments = BACKENDS[backend], []
    for argument in task.arguments:
        c_type = argument.dtype if argument.dtype in task.types else DTYPES[argument.dtype].c_name(backend)
        if argument.role != "scalar":
            c_type = f"{traits.pointer_prefix}{'const ' if argument.role == 'in' else ''}{c_type}*"
        arguments.append(f"{c_type} {argument.name}")
    return f"{traits.kernel_prefix} {task.entry}({', '.join(arguments)})"


def _argument(task: Task, argument: Argument) -> dict[str, Any]:
    if argument.role == "scalar":
        return {"name": argument.name, "role": "scalar", "dtype": argument.dtype, "shape": "", "holds": argument.value}
    fill, holds = argument.fill, "not defined"
    if argument.role != "out":
        special = ", ".join(f"{each.value:g} in {each.fraction:.1%}" for each in fill.special)
        holds = f"{fill.described}; {special}" if special else fill.described
    shape = "[" + ", ".join(argument.shape) + "]"
    return {"name": argument.name, "role": argument.role, "dtype": argument.dtype, "shape": shape, "holds": holds}


def _tolerances(task: Task) -> dict[str, str]:
    tolerances = {}
    for argument in task.outputs:
        for dtype in task.types.get(argument.dtype, (argument.dtype,)):
            tolerance = task.tolerance_of(dtype, argument.name)
            key = f"{argument.name} ({dtype})" if argument.name in task.tolerance else dtype
            tolerances[key] = f"rtol {tolerance.rtol:g}, atol {tolerance.atol:g}"
    return tolerances


def device_facts(context: Context) -> dict[str, Any]:
    """Limits and measured roofs."""
    limits, roofs = context.device.limits, context.log.roofline
    bounds = {
        "SMs" if limits.kind == "gpu" else "compute units": limits.sm_count,
        "threads a block at most": limits.max_threads_per_block,
        "threads an SM": limits.max_threads_per_sm,
        "blocks an SM": limits.max_blocks_per_sm,
        "registers an SM": limits.registers_per_sm,
        "registers a thread at most": limits.max_registers_per_thread,
        "shared memory a block at most (dynamic), bytes": limits.shared_per_block_optin,
        "shared memory an SM, bytes": limits.shared_per_sm,
        "L2 cache, bytes": limits.l2_bytes,
    }
    return {
        "name": context.device.name,
        "backend": limits.backend,
        "kind": limits.kind,
        "arch": limits.arch if BACKENDS[limits.backend].makes_cubins else "",
        "limits": {name: value for name, value in bounds.items() if value is not None},
        "bandwidth": [(size, rate) for size, rate in roofs.bandwidth] if roofs else None,
        "peaks": dict(roofs.peak_flops) if roofs else None,
    }


def workload_facts(context: Context, tree: Tree) -> list[dict[str, Any]]:
    """The tuned workloads with floor, baseline and best known time, in seconds."""
    baseline = context.log.baseline_seconds or {}
    rows = []
    for workload in context.tuned:
        floor = known_floor(context, workload)
        known = [(s, node.id) for node in tree.usable if (s := node.best_seconds.get(workload.name)) is not None]
        seconds, template = min(known, default=(None, None))
        rows.append(
            {
                "name": workload.name,
                "sizes": workload.sizes,
                "types": workload.types,
                "weight": workload.weight,
                "floor": floor,
                "baseline": baseline.get(workload.name),
                "best": seconds,
                "template": template,
                "share": floor / seconds if floor and seconds else None,
            }
        )
    return rows


def known_floor(context: Context, workload: Workload) -> float | None:
    """The floor in seconds from the journal's roofs; None where they are not known."""
    roofs, task = context.log.roofline, context.task
    if roofs is None:
        return None
    return roofs.floor_seconds(task.bytes_of(workload), task.flops_of(workload), task.arithmetic)


def baseline_facts(context: Context) -> dict[str, Any]:
    """The task's own kernel."""
    template = context.sources.baseline.template
    baseline = context.log.baseline
    resources = baseline.resources if baseline is not None else None
    facts = kernel_facts(context, "baseline", template, {}, resources)
    # A plain kernel is short enough to see where its work is.
    return facts | {"hot_lines": (), "label": context.sources.baseline.label}


def node_facts(context: Context, node: Node, *, source: bool, machine: bool = True) -> dict[str, Any]:
    """A template of the tree, in short or with its source and its resources at the best configuration. machine: also
    the facts about its machine code and a launch."""
    short = {
        "id": node.id,
        "parent": node.parent,
        "moves": node.moves,
        "round": node.round,
        "measured": len(node.found) + len(node.rejected),
        "speedup": 1 / node.best if node.best else None,
        "best_config": assignments(node.best_config or {}),
        "by_workload": _by_workload(context, node),
        "seconds": {name: seconds for name, seconds in node.best_seconds.items() if name in _names(context)},
        "failures": [(kind, count, example[:400]) for kind, count, example in node.failures],
        "made_by": node.made_by,
        "shared": [f"{name} = {value} in {n} of {of}" for name, (value, n, of) in node.shared.items()],
        "ranked": _ranked(node),
        "effects": [
            f"{name}{' (no difference)' if name in node.without_effect else ''}: "
            + ", ".join(f"{value} {ratio:.2f}" for value, ratio in seen.items())
            for name, seen in node.effects
        ],
        "at_edge": [f"{name} = {value}" for name, value in node.at_edge.items()],
        "slower_on": context.log.slower_than_baseline(node.id),
        "vetoed": node.vetoed,
        "description": node.template.description.strip(),
    }
    if not source:
        return short
    config = node.best_config or node.template.default_config
    facts = kernel_facts(context, node.id, node.template, config, node.best_resources)
    return short | facts | ({} if machine else {"instructions": {}, "hot_lines": (), "counters": {}, "note": ""})


def _ranked(node: Node) -> list[str]:
    """The next best and the worst configurations: their times as multiples of the best, and their values in the order
    of the best one's names."""
    ranked, best = node.ranked, node.best or 1.0
    shown = ranked[1:] if len(ranked) <= 2 * EXTREMES else (*ranked[1:EXTREMES], *ranked[-EXTREMES:])
    return [f"{value / best:.2f}: {' '.join(map(str, each.config.values()))}".strip() for value, each in shown]


def _by_workload(context: Context, node: Node) -> list[str]:
    """The tuned workloads on which another configuration is faster than the best of all, and its differences."""
    best = node.best_config or {}
    return [
        f"{name} {share:.2f} with {assignments({key: value for key, value in config.items() if value != best[key]})}"
        for name, (share, config) in node.faster_by_workload.items()
        if name in _names(context)
    ]


def kernel_facts(
    context: Context, which: str, template: Template, config: Config, resources: Resources | None
) -> dict[str, Any]:
    """Source, choices, and the evidence on the machine code at one configuration."""
    nothing = EvidenceKept(which=which, config="", workload="", resources=None, instructions={}, counters={}, note="")
    evidence = context.log.evidence(which, config) or nothing
    ordered = sorted(context.tuned, key=context.task.bytes_of)
    extremes = ordered if len(ordered) < 2 else [ordered[0], ordered[-1]]
    return {
        "source": cut(template.source),
        "choices": choices(template),
        "launch": json.dumps(_launch(template)),
        "values": [f"{p.name} = {config[p.name]}{'  // ' if p.doc else ''}{p.doc}" for p in template.parameters],
        "resources": resource_lines(context, template, config, resources or evidence.resources, extremes),
        "instructions": evidence.instructions,
        "hot_lines": evidence.hot_lines,
        "counters": evidence.counters,
        "counted_on": evidence.workload,
        "note": evidence.note,
    }


def choices(template: Template) -> str:
    """Everything of a template but its source, as JSON in the words of an answer."""
    named = {"name": template.name, "description": " ".join(template.description.split())}
    compiled = {"max_registers": template.max_registers or "0", "fast_math": template.fast_math}
    fields = named | _launch(template) | compiled
    lines = [f" {json.dumps(key)}: {json.dumps(value)}," for key, value in fields.items()]
    constraints = [{"expression": each.expression, "because": each.because} for each in template.constraints]
    parameters = [
        {"name": each.name, "values": list(each.values), "default": each.start, "doc": each.doc}
        for each in template.parameters
    ]
    for key, rows in (("constraints", constraints), ("parameters", parameters)):
        inside = ",\n".join(f"  {json.dumps(row)}" for row in rows)
        lines.append(f' "{key}": [\n{inside}\n ],' if rows else f' "{key}": [],')
    return "\n".join(["{", *lines])[:-1] + "\n}"


def _launch(template: Template) -> dict[str, Any]:
    """A kernel's launch in the words of an answer."""
    return {
        "grid": list(template.launch.grid),
        "block": list(template.launch.block),
        "shared_bytes": template.launch.shared_bytes,
        "static_shared_bytes": template.static_shared_bytes,
    }


def cut(text: str) -> str:
    return text if len(text) <= MAX_SOURCE else text[:MAX_SOURCE] + f"\n(cut: {len(text) - MAX_SOURCE} more characters)"


def _names(context: Context) -> set[str]:
    return {workload.name for workload in context.tuned}
