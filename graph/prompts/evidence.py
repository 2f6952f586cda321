"""What a model may know of a kernel beside its times: occupancy, static instruction counts, hardware counters.

Each is found out once and journalled, so that a prompt made twice from one journal is the same text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from tunesmith.actors.process.isolated import Isolated
from tunesmith.actors.process.workers import CompileWorker
from tunesmith.graph.context import Context
from tunesmith.graph.journal.events import EvidenceKept
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.exclusive import DeviceLock
from tunesmith.hw.occupancy import occupancy
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.candidate import Candidate, types_key
from tunesmith.kernels.build.ptx import Profile
from tunesmith.kernels.build.specialise import specialise
from tunesmith.kernels.measure.counters import Counters, count_events
from tunesmith.kernels.outcome import Resources
from tunesmith.kernels.spec.geometry import Geometry, geometry
from tunesmith.kernels.spec.parameter import Config, config_key
from tunesmith.kernels.spec.task import Workload
from tunesmith.kernels.spec.template import Template

SECONDS = 60.0
LINE = 60
"""Characters of a line that a prompt quotes."""


def examine(context: Context, which: str, template: Template, config: Config, workload: Workload, stage: str) -> None:
    """Journals instruction counts and hardware counters of a kernel on one workload, as far as they can be had.

    `which` names the kernel: "baseline" or a template's id.
    """
    if context.log.evidence(which, config) is not None:
        return
    limits, index = context.device.limits, context.device.index
    if limits.backend != "cuda":
        return
    source = specialise(template, config, workload.types)
    profile: Any = Profile()
    artifact: Any = None
    counters = Counters(note="its machine code could not be looked at here")
    try:
        with Isolated("compile", CompileWorker, limits, index) as compiler:
            profile = compiler.call("profile", SECONDS, source)
            artifact = compiler.call("compile", SECONDS, source)
    except TunesmithError as error:
        # The compiler may be on other nodes of a cluster only. Evidence is good to have, and no reason to end a run.
        counters = Counters(note=str(error).rstrip("."))
    if isinstance(artifact, Artifact):
        candidate = Candidate(template, config, {types_key(workload): artifact})
        with _alone(context):
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
    """The lines of `source` that most instructions come from, a clause each."""
    lines, found = source.splitlines(), []
    for one in profile.lines:
        if one.line <= len(lines) and (text := " ".join(lines[one.line - 1].split())):
            where = " in a loop" if one.depth == 1 else f" in {one.depth} loops" if one.depth else ""
            found.append(f"{one.line}: {one.instructions}{where}: {text[:LINE]}")
    return tuple(found)


def _alone(context: Context) -> AbstractContextManager[object]:
    """The device to ourselves, as for a lane: a launch under the tool must not disturb another measurement."""
    uuid = context.device.uuid
    return nullcontext() if uuid is None else DeviceLock(uuid)


def resource_lines(
    context: Context, template: Template, config: Config, resources: Resources | None, workloads: Sequence[Workload]
) -> list[str]:
    """What the compiler says of a kernel in one line, then for each workload its launch and its occupancy in one."""
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
        held = _occupancy(context, shape, resources)
        lines.append(f"on {workload.name}: grid {shape.grid}, block {shape.block}{dynamic}{held}")
    return lines


def _occupancy(context: Context, shape: Geometry, resources: Resources | None) -> str:
    """As the end of a sentence; empty where it is not known."""
    if resources is None or resources.registers is None:
        return ""
    threads, blocks = math.prod(shape.block), math.prod(shape.grid)
    shared = (resources.shared or 0) + shape.shared_bytes
    held = occupancy(context.device.limits, threads=threads, registers=resources.registers, shared=shared)
    if held.fraction is None:
        return ""
    sms = context.device.limits.sm_count
    waves = f", {blocks / (sms * held.blocks_per_sm):.2f} waves" if sms and held.blocks_per_sm else ""
    return f"; occupancy {held.fraction:.0%} ({held.blocks_per_sm} blocks an SM, limited by {held.limiter}){waves}"
