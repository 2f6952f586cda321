"""What must hold before a run begins: a mistake in the task then starts nothing and leaves no folder."""

from __future__ import annotations

from collections.abc import Sequence

from tunesmith.graph.settings import Settings
from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.probe import Device
from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.space.feasible import device_names, feasible, require_points
from tunesmith.kernels.spec.task import Task, TaskError
from tunesmith.kernels.spec.template import Template


def limits_of(device: Device, settings: Settings) -> tuple[DeviceLimits, ...]:
    """Those of the device, then those of a target the winner must fit as well."""
    return (device.limits,) + ((resolve_target(settings.target),) if settings.target else ())


def require_work(task: Task, templates: Sequence[Template], limits: Sequence[DeviceLimits]) -> None:
    """Raises `TaskError` without a workload to tune on, `EmptySpace` for a template without a feasible point: before
    anything is started for it."""
    kind = limits[0].kind
    tuned = task.workloads_for(kind, held_out=False)
    if not tuned:
        raise TaskError(
            f"The task {task.name} has no workload to tune on a {kind}: add one whose `devices` lists '{kind}'."
        )
    usable = [template for template in templates if all(template.runs_on(device_names(one)) for one in limits)]
    for template in usable or templates:
        for one in limits:
            require_points(feasible(template, tuned, one), template)
