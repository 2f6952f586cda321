"""`tunesmith check` without a candidate: is the task right, as far as can be seen without a device?"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tunesmith.actors.judging.reference import ReferenceCheck
from tunesmith.actors.judging.unseen import examine_task
from tunesmith.cli.app import echo
from tunesmith.graph.setup.device_choice import choose_device
from tunesmith.graph.setup.preconditions import require_work
from tunesmith.hw.errors import NoDevice, TunesmithError
from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.probe import probe
from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.space.feasible import default_refused, device_names
from tunesmith.kernels.spec.parameter import described
from tunesmith.kernels.spec.task import Task


def limits_for(task: Task, target: str | None, backend: str) -> tuple[DeviceLimits, int]:
    """The limits that --target names, or those of the device that is here, and its index. Raises `TunesmithError`."""
    if target is not None:
        limits = resolve_target(target)
        if backend not in ("auto", limits.backend):
            raise TunesmithError(f"--backend {backend}: the target {target} is for {limits.backend}; leave one out.")
        return limits, 0
    try:
        device = choose_device(task, backend, probe())
    except NoDevice as error:
        if "cuda" not in task.backends:
            raise
        without = str(error).rstrip(".")
        raise NoDevice(f"{without}; or name one that is not here with --target, such as h200.") from error
    return device.limits, device.index


def require_right(task: Task, limits: DeviceLimits, index: int) -> None:
    """What other commands look at before they show anything; what could not be looked at goes to standard error."""
    _, unseen = examine_task(task, limits, index)
    for clause in unseen:
        echo(f"Note: {clause}.", err=True)


def check_task(
    reference: ReferenceCheck,
    target: str | None,
    backend: str,
    template: Path | None,
    config: str | None,
    *,
    as_json: bool,
) -> None:
    """Prints what was found right; a mistake is raised."""
    if template is not None or config is not None:
        option = "--template" if template is not None else "--config"
        raise TunesmithError(f"{option}: it goes with a candidate; name its source with --source, or leave it out.")
    task = reference.task
    limits, index = limits_for(task, target, backend)
    seen, unseen = examine_task(task, limits, index, reference=reference)
    templates = task.sources(limits.backend).templates
    require_work(task, templates, [limits])
    tuned = task.workloads_for(limits.kind, held_out=False)
    unseen += [
        f"template {one.name}: its default, {described(one.name, one.default_config)}, is not feasible: "
        + why.rstrip(".")
        for one in templates
        if one.runs_on(device_names(limits)) and (why := default_refused(one, tuned, limits))
    ]
    seen += [
        f"template {one.name}: configurations of it are feasible"
        for one in templates
        if one.runs_on(device_names(limits))
    ]
    if as_json:
        json.dump({"task": task.name, "target": limits.name, "right": seen, "not_seen": unseen}, sys.stdout, indent=2)
        sys.stdout.write("\n")
        return
    for clause in seen:
        echo(f"  {clause}")
    for clause in unseen:
        echo(f"  Note: {clause}.")
    echo(f"The task {task.name} is right as far as can be seen without a device, for {limits.name}.")
