"""The facts in prompts: task, device, workloads, and kernels with their occupancy, instructions and counters.

`examine` collects instruction counts and hardware counters of a kernel once and journals them; everything else reads
the journal, so that a prompt made twice from one journal is the same text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from typing import Any

from tunesmith.actors.process import Isolated
from tunesmith.actors.workers import CompileWorker, Deadlines
from tunesmith.graph.context import Context
from tunesmith.graph.journal.events import EarlierResults, EvidenceKept
from tunesmith.graph.journal.log import Node, Tree
from tunesmith.graph.state import Bottleneck
from tunesmith.hw.device_lock import DeviceLock
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.limits import occupancy
from tunesmith.kernels.build.artifact import Artifact, Candidate
from tunesmith.kernels.build.machine_code import Profile
from tunesmith.kernels.build.source import code_key, specialise
from tunesmith.kernels.check.sanitizer import count_events
from tunesmith.kernels.outcome import Resources
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.task import Argument, Task, Workload, geometry
from tunesmith.kernels.spec.template import BACKENDS, BackendName, Config, Template, assignments, config_key

MAX_LINE = 60
"""Characters of a source line that a prompt quotes."""
EXTREMES = 5
"""Configurations of a template that are shown, from each end."""
MAX_SOURCE = 40_000
"""Characters of one source in a prompt; more is cut, and said to be."""


def examine(context: Context, which: str, template: Template, config: Config, workload: Workload, stage: str) -> None:
    """Journals a kernel's instruction counts and hardware counters. which: "baseline" or a template's id."""
    if context.log.evidence(which, config) is not None:
        return
    limits, index = context.device.limits, context.device.index
    if not BACKENDS[limits.backend].nvidia_tools:
        return
    key = code_key(context.task, template, workload)
    source = specialise(template, config, dict(key))
    profile = artifact = None
    counters: dict[str, float] | str = "its machine code could not be looked at here"
    try:
        with Isolated("compile", CompileWorker, limits, index) as compiler:
            profile = compiler.call("profile", Deadlines().compile, source)
            artifact = compiler.call("compile", Deadlines().compile, source)
    except TunesmithError as error:
        # The compiler may be on other nodes of a cluster only; a run goes on without evidence.
        counters = str(error).rstrip(".")
    if isinstance(artifact, Artifact):
        candidate = Candidate(template, config, {key: artifact})
        # A launch under the tool must not disturb another measurement.
        uuid = context.device.uuid
        with nullcontext() if uuid is None else DeviceLock(uuid):
            counters = count_events(candidate, context.task, index, workload, context.settings.seed)
    known = profile if isinstance(profile, Profile) else Profile()
    event = EvidenceKept(
        which=which,
        config=config_key(config),
        workload=workload.name,
        resources=artifact.resources if isinstance(artifact, Artifact) else None,
        instructions=known.sorts,
        hot_lines=hot_lines(template.source, known),
        counters={} if isinstance(counters, str) else counters,
        note=counters if isinstance(counters, str) else "",
    )
    context.journal.append(event, stage)


def hot_lines(source: str, profile: Profile) -> tuple[str, ...]:
    """The lines of `source` with the most instructions, a clause each."""
    lines, clauses = source.splitlines(), []
    for line, instructions, depth in profile.lines:
        if line <= len(lines) and (text := " ".join(lines[line - 1].split())):
            where = " in a loop" if depth == 1 else f" in {depth} loops" if depth else ""
            clauses.append(f"{line}: {instructions}{where}: {text[:MAX_LINE]}")
    return tuple(clauses)


def resource_lines(
    context: Context, template: Template, config: Config, resources: Resources | None, workloads: Sequence[Workload]
) -> list[str]:
    """A kernel's registers and memory in a line, then a line for each workload with its launch and its occupancy."""
    lines, limits = ["registers and spills: not known for this device"], context.device.limits
    used = resources or Resources()
    if used.registers is not None:
        lines = [
            f"{used.registers} registers a thread, {used.spills or 0} bytes spilled, {used.local or 0} "
            f"bytes local memory a thread, {used.shared or 0} bytes static shared memory a block"
        ]
    for workload in workloads:
        shape = geometry(template, config, workload)
        line = f"on {workload.name}: grid {shape.grid}, block {shape.block}"
        line += f", {shape.shared_bytes} bytes dynamic shared memory" if shape.shared_bytes else ""
        if used.registers is not None:
            shared = (used.shared or 0) + shape.shared_bytes
            held = occupancy(limits, threads=math.prod(shape.block), registers=used.registers, shared=shared)
            each = held.blocks_per_sm
            if held.fraction is not None:
                line += f"; occupancy {held.fraction:.0%} ({each} blocks an SM, limited by {held.limiter})"
                waves = math.prod(shape.grid) / (limits.sm_count * each) if limits.sm_count and each else None
                line += "" if waves is None else f", {waves:.2f} waves"
        lines.append(line)
    return lines


def task_facts(context: Context) -> dict[str, Any]:
    """The task as its author described it."""
    task, backend = context.task, context.device.limits.backend
    c_names = {name: [f"{dtype} ({DTYPES[dtype].c_names[backend]})" for dtype in of] for name, of in task.types.items()}
    return {
        **{name: getattr(task, name) for name in ("name", "summary", "bytes", "flops")},
        "signature": signature(task, backend),
        "arguments": [_argument(argument) for argument in task.arguments],
        "types": c_names,
        "tolerances": _tolerances(task),
        "reference": cut(task.reference) if task.reference else "(the original kernel)",
        "sizes": sorted(task.size_names),
    }


def signature(task: Task, backend: BackendName) -> str:
    """The kernel's signature, as the harness launches it."""
    traits, arguments = BACKENDS[backend], []
    if traits.python:
        return f"def {task.entry}({', '.join(argument.name for argument in task.arguments)})"
    for argument in task.arguments:
        c_type = argument.dtype if argument.dtype in task.types else DTYPES[argument.dtype].c_names[backend]
        if argument.role != "scalar":
            c_type = f"{traits.pointer_prefix}{'const ' if argument.role == 'in' else ''}{c_type}*"
        arguments.append(f"{c_type} {argument.name}")
    return f"{traits.kernel_prefix} {task.entry}({', '.join(arguments)})"


def _argument(argument: Argument) -> dict[str, Any]:
    shape, fill = "[" + ", ".join(argument.shape) + "]", argument.fill
    special = ", ".join(f"{each.value:g} in {each.fraction:.1%}" for each in fill.special)
    holds: object = f"{fill.described}; {special}" if special else fill.described
    if argument.role == "scalar":
        shape, holds = "", argument.value
    elif argument.role == "out":
        holds = "not defined"
    return {"name": argument.name, "role": argument.role, "dtype": argument.dtype, "shape": shape, "holds": holds}


def _tolerances(task: Task) -> list[str]:
    tolerances = []
    for argument in task.outputs:
        for dtype in task.types.get(argument.dtype, (argument.dtype,)):
            tolerance = task.tolerance_of(dtype, argument.name)
            key = f"{argument.name} ({dtype})" if argument.name in task.tolerance else dtype
            tolerances.append(f"{key}: rtol {tolerance.rtol:g}, atol {tolerance.atol:g}")
    return list(dict.fromkeys(tolerances))


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
    copies = [f"{rate / 1e9:.0f} GB/s moving {size / 2**20:.0f} MiB" for size, rate in roofs.bandwidth] if roofs else []
    peaks = [f"{dtype} {rate / 1e12:.1f} Tflop/s" for dtype, rate in dict(roofs.peak_flops).items()] if roofs else []
    return {
        "name": context.device.name,
        "backend": limits.backend,
        "arch": limits.arch if BACKENDS[limits.backend].makes_cubins else "",
        "findings": {
            "limits": [f"{name}: {value}" for name, value in bounds.items() if value is not None],
            "measured copy bandwidth": copies or ["not measured"],
            "measured arithmetic peaks": peaks,
        },
    }


def workload_facts(context: Context, tree: Tree) -> list[dict[str, Any]]:
    """The tuned workloads with floor, baseline and best known time, in seconds. worth: how many times as fast over all
    workloads a kernel is that reaches the floor on this one."""
    baseline, roofs = context.log.baseline_seconds or {}, context.log.roofline
    rows, weights = [], sum(workload.weight for workload in context.tuned)
    for workload in context.tuned:
        floor = roofs.floor_seconds(*context.task.work_of(workload)) if roofs is not None else None
        known = [(s, node.id) for node in tree.usable if (s := node.best_seconds.get(workload.name)) is not None]
        seconds, template = min(known, default=(None, None))
        row: dict[str, Any] = {name: getattr(workload, name) for name in ("name", "types", "weight")}
        row["sizes"] = [f"{name}={size}" for name, size in workload.sizes.items()]
        row |= {"floor": floor, "baseline": baseline.get(workload.name), "best": seconds, "template": template}
        row["share"], taken = floor / seconds if floor and seconds else None, seconds or row["baseline"]
        row["worth"] = max(1.0, taken / floor) ** (workload.weight / weights) if floor and taken else None
        rows.append(row)
    return rows


def run_facts(context: Context, tree: Tree, bounds: Collection[Bottleneck] = ()) -> dict[str, Any]:
    """The facts that a plan and a template begin from: task, device, workloads, baseline, and the evidence of earlier
    runs on kernels under `bounds` (none: those of the baseline on the tuned workloads)."""
    seconds, earlier = context.log.baseline_seconds or {}, context.log.last(EarlierResults) or EarlierResults()
    bounds = bounds or {context.bottleneck(context.task.workload(name), taken) for name, taken in seconds.items()}
    plain, measured = context.sources.baseline, context.log.baseline
    baseline = kernel_facts(context, "baseline", plain.template, {}, measured.resources if measured else None)
    return {
        "task": task_facts(context),
        "device": device_facts(context),
        "workloads": workload_facts(context, tree),
        "held_out": [workload.name for workload in context.held_out],
        # A plain kernel is short enough to see where its work is.
        "baseline": baseline | {"hot_lines": (), "label": plain.label},
        "evidence": [line for bound, lines in earlier.evidence.items() if bound in bounds for line in lines],
    }


def node_facts(context: Context, node: Node, *, source: bool, machine: bool = True) -> dict[str, Any]:
    """A template of the tree. source: also its source and resources; machine: also its machine code and launch."""
    names, best, ranked = context.tuned_names, node.best_config or {}, node.ranked
    # The next best and the worst, with their values in the order of the best one's names.
    shown = ranked[1:] if len(ranked) <= 2 * EXTREMES else (*ranked[1:EXTREMES], *ranked[-EXTREMES:])
    facts = {
        **{name: getattr(node, name) for name in ("id", "parent", "moves", "made_by", "vetoed")},
        "measured": len(node.found) + len(node.rejected),
        "speedup": 1 / node.best if node.best else None,
        "best_config": assignments(best),
        "seconds": [f"{name}: {seconds * 1e6:.2f}" for name, seconds in node.best_seconds.items() if name in names],
        "failures": [(kind, count, example[:400]) for kind, count, example in node.failures],
        "findings": {
            "The next and the worst, as multiples of its time, with values in the same order": [
                f"{value / (node.best or 1.0):.2f}: {' '.join(map(str, each.config.values()))}".strip()
                for value, each in shown
            ],
            "Alone on one workload another is faster, as a share of its time there": [
                f"{name} {share:.2f} with {assignments({key: v for key, v in config.items() if v != best[key]})}"
                for name, (share, config) in node.faster_by_workload.items()
                if name in names
            ],
            "The best sits at the edge of": [f"{name} = {value}" for name, value in node.at_edge.items()],
            "Slower than the task's own kernel on": context.log.slower_than_baseline(node.id),
        },
        "effects": [
            f"{name}{' (no difference)' if name in node.without_effect else ''}: "
            + ", ".join(f"{value} {ratio:.2f}" for value, ratio in seen.items())
            for name, seen in node.effects
        ],
        "description": node.template.description.strip(),
    }
    if source:
        config = node.best_config or node.template.default_config
        facts |= kernel_facts(context, node.id, node.template, config, ranked[0][1].resources if ranked else None)
    return facts if machine else facts | {"instructions": (), "hot_lines": (), "counters": (), "note": ""}


def kernel_facts(
    context: Context, which: str, template: Template, config: Config, resources: Resources | None
) -> dict[str, Any]:
    """Source, choices, and the evidence on the machine code at one configuration."""
    nothing = EvidenceKept(which=which, config="", workload="", resources=None, instructions={}, counters={}, note="")
    evidence = context.log.evidence(which, config) or nothing
    ordered = sorted(context.tuned, key=context.task.bytes_of)
    extremes = ordered if len(ordered) < 2 else [ordered[0], ordered[-1]]
    return {
        **{name: getattr(evidence, name) for name in ("hot_lines", "workload", "note")},
        "instructions": [f"{name}: {count}" for name, count in evidence.instructions.items()][:8],
        "counters": [f"{name}: {value:g}" for name, value in evidence.counters.items()],
        "source": cut(template.source),
        "choices": choices(template),
        "launch": json.dumps(_launch(template)),
        "values": [f"{p.name} = {config[p.name]}{'  // ' if p.doc else ''}{p.doc}" for p in template.parameters],
        "resources": resource_lines(context, template, config, resources or evidence.resources, extremes),
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
