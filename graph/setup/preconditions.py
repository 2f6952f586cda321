"""What must hold before a run begins: a mistake in the task then starts nothing and leaves no folder."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tunesmith.graph.settings import Settings, SettingsError
from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.probe import Device, Inventory
from tunesmith.hw.targets import resolve_target
from tunesmith.hw.telemetry import NoTelemetry, open_telemetry
from tunesmith.kernels.space.feasible import device_names, feasible, require_points
from tunesmith.kernels.spec.task import Task, TaskError
from tunesmith.kernels.spec.template import Template


def limits_of(device: Device, settings: Settings) -> tuple[DeviceLimits, ...]:
    """Those of the device, then those of a target the winner must fit as well."""
    return (device.limits,) + ((resolve_target(settings.target),) if settings.target else ())


def require_energy(device: Device, settings: Settings) -> None:
    """Raises `SettingsError` where the objective needs an energy that the device does not tell."""
    if settings.objective == "time":
        return
    remedy = "choose an NVIDIA GPU from Volta on, or --objective time"
    if device.backend != "cuda":
        why = f"{device.name} is an OpenCL device, and only NVIDIA's CUDA devices have an energy counter here"
    elif device.mig:
        why = f"{device.name} is a slice of a GPU, whose energy counter is that of the whole GPU"
    else:
        with open_telemetry(device.uuid) as telemetry:
            if telemetry.joules() is not None:
                return
            if isinstance(telemetry, NoTelemetry):
                # The GPUs of a cluster need not be in this machine; their lanes tell.
                if "RAY_ADDRESS" in os.environ:
                    return
                why = telemetry.reason.rstrip(".")
            else:
                why = f"{device.name} has no energy counter that this user may read"
    raise SettingsError(f"--objective {settings.objective}: {why}; {remedy}.")


def require_lanes(device: Device, settings: Settings, inventory: Inventory) -> None:
    """Raises `SettingsError` for more lanes than there are devices of the model. A cluster may still grow."""
    if settings.lanes is None or "RAY_ADDRESS" in os.environ:
        return
    alike = [one for one in inventory.of(device.backend) if one.name == device.name]
    most = len(alike) if device.backend == "cuda" else 1
    if settings.lanes > most:
        what = "an OpenCL device has one lane" if device.backend != "cuda" else f"{most} x {device.name} is here"
        raise SettingsError(f"--lanes: {settings.lanes} is more than there can be, as {what}; leave it out.")


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
