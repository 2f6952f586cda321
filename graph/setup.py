"""The start of a run: the choice of its device, the conditions that must hold before anything is written, its pools.

Owns no state of a run: a mistake that is found here has started nothing and left no folder.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, cast

from tunesmith.graph.progress import Listener, Progress, silent
from tunesmith.graph.settings import Settings
from tunesmith.hw.errors import NoDevice, TunesmithError
from tunesmith.hw.limits import DeviceLimits, as_triton
from tunesmith.hw.probe import DeviceInfo, Inventory, probe
from tunesmith.hw.targets import resolve_target
from tunesmith.hw.telemetry import NoTelemetry, open_telemetry
from tunesmith.kernels.space import device_names, feasible, require_points
from tunesmith.kernels.spec.task import Task, TaskError
from tunesmith.kernels.spec.template import BACKENDS, BackendName, Template

if TYPE_CHECKING:
    from tunesmith.actors.pool import Pool


def inventory_for(backend: str) -> Inventory:
    """The devices here; with a cluster (RAY_ADDRESS), its GPUs and the OpenCL devices here. Raises `TunesmithError`."""
    here = probe()
    if "RAY_ADDRESS" not in os.environ or (backend in BACKENDS and not BACKENDS[backend].pinned_by_ray):
        return here
    from tunesmith.actors.ray_cluster import cluster, survey

    with cluster():
        found = survey()
    by_backend = {**here.by_backend, "cuda": found.notes}
    return Inventory(found.devices + here.of("opencl"), found.notes + here.notes, by_backend)


def choose_device(task: Task, backend: str, inventory: Inventory, model: str | None = None) -> DeviceInfo:
    """The first device of `backend`; for "auto" a CUDA GPU (for sources in CUDA before those in Triton), then an OpenCL
    GPU, then any OpenCL device, as far as the task has sources. Among several models the most frequent, or the one
    whose name contains `model`. Raises `NoDevice` saying what to install, `TaskError` when the task lacks sources for
    `backend`."""
    if model is not None:
        named = tuple(device for device in inventory.devices if model.lower() in device.name.lower())
        if not named:
            names = ", ".join(sorted({device.name for device in inventory.devices})) or "none at all"
            raise NoDevice(f"--target-device: no device here is called '{model}'; there are {names}.")
        inventory = Inventory(named, inventory.notes, inventory.by_backend)
    if backend != "auto":
        task.sources(backend)
        known = cast(BackendName, backend)
        found = inventory.of(known)
        # Without a device, `device` raises an error that names the missing parts.
        return _most_common(found) if found else inventory.device(known)
    candidates = [device for backend in BACKENDS if backend in task.backends for device in inventory.of(backend)]
    if not candidates:
        why = inventory.why_without(task.backends) or "`tunesmith devices` lists the devices here"
        raise NoDevice(
            f"No device here can run the task {task.name}, which has sources for {' and '.join(task.backends)}: {why}."
        )
    if pinned := [device for device in candidates if BACKENDS[device.backend].pinned_by_ray]:
        return _most_common(pinned)
    return min(candidates, key=lambda device: (device.limits.kind != "gpu", device.index))


def device_for(task: Task, settings: Settings) -> tuple[DeviceInfo, tuple[DeviceLimits, ...]]:
    """The device of a new run, and its limits, then those of a target that the winner must fit as well. Raises
    `TunesmithError` also where the device cannot do what the settings ask for."""
    inventory = inventory_for(settings.backend)
    device = choose_device(task, settings.backend, inventory, settings.target_device)
    limits = limits_of(device, settings)
    require_energy(device, settings)
    _require_lanes(device, settings, inventory)
    return device, limits


def limits_for(task: Task, target: str | None, backend: str) -> tuple[DeviceLimits, int]:
    """The limits that --target names, else of the device here, and its index. Raises `TunesmithError`."""
    if target is not None:
        limits, kernels = resolve_target(target), task.backends.keys() & {"cuda", "triton"}
        if limits.backend == "triton" and "triton" not in kernels:
            raise TunesmithError(
                f"--target {target}: only kernels in Triton are compiled for {limits.name}, and the task {task.name} "
                "has none; name an NVIDIA GPU, such as h200, or leave the target out."
            )
        if limits.backend == "cuda" and (backend == "triton" or kernels == {"triton"}):
            limits = as_triton(limits)
        if backend not in ("auto", limits.backend):
            raise TunesmithError(f"--backend {backend}: the target {target} is for {limits.backend}; leave one out.")
        return limits, 0
    try:
        device = choose_device(task, backend, probe())
    except NoDevice as error:
        if not {"cuda", "triton"} & task.backends.keys():
            raise
        raise NoDevice(f"{str(error).rstrip('.')}; or name another device with --target, such as h200.") from error
    return device.limits, device.index


def _most_common(devices: Sequence[DeviceInfo]) -> DeviceInfo:
    """The first device; of GPUs the first of the most frequent model, as a tuning's results belong to one model."""
    counts = Counter(device.name for device in devices if BACKENDS[device.backend].pinned_by_ray)
    return max(devices, key=lambda device: counts[device.name])


def limits_of(device: DeviceInfo, settings: Settings) -> tuple[DeviceLimits, ...]:
    """The limits of the device, then of a target that the winner must fit as well."""
    if not settings.target:
        return (device.limits,)
    other = resolve_target(settings.target)
    if other.backend == "triton":
        raise TunesmithError(
            f"--target {settings.target}: a kernel tuned on {device.name} is not compiled for {other.name}; name an "
            "NVIDIA GPU, such as h200, or leave the target out."
        )
    return (device.limits, as_triton(other) if device.backend == "triton" else other)


def require_energy(device: DeviceInfo, settings: Settings) -> None:
    """Raises `TunesmithError` where the objective needs an energy that the device does not report."""
    if settings.objective == "time":
        return
    if not BACKENDS[device.backend].nvidia_tools:
        why = f"{device.name} is an OpenCL device, and only NVIDIA's CUDA devices have an energy counter here"
    elif device.mig:
        why = f"{device.name} is a slice of a GPU, whose energy counter is that of the whole GPU"
    else:
        with open_telemetry(device.uuid or "") as telemetry:
            absent = telemetry.reason.rstrip(".") if isinstance(telemetry, NoTelemetry) else ""
            # The GPUs of a cluster need not be in this machine; their lanes find out.
            if telemetry.joules() is not None or (absent and "RAY_ADDRESS" in os.environ):
                return
            why = absent or f"{device.name} has no energy counter that this user may read"
    remedy = "choose an NVIDIA GPU from Volta on, or --objective time"
    raise TunesmithError(f"--objective {settings.objective}: {why}; {remedy}.")


def _require_lanes(device: DeviceInfo, settings: Settings, inventory: Inventory) -> None:
    """Raises `TunesmithError` for more lanes than there are devices of the model. A cluster may still grow."""
    if settings.lanes is None or "RAY_ADDRESS" in os.environ:
        return
    most, why = 1, "an OpenCL device has one lane"
    if BACKENDS[device.backend].pinned_by_ray:
        most = sum(one.name == device.name for one in inventory.of(device.backend))
        why = f"{most} x {device.name} is here"
    if settings.lanes > most:
        raise TunesmithError(f"--lanes: {settings.lanes} is more than there can be, as {why}; leave it out.")


def require_work(task: Task, templates: Sequence[Template], limits: Sequence[DeviceLimits]) -> None:
    """Raises `TaskError` without a workload to tune on, `TunesmithError` for a template without a feasible point."""
    kind = limits[0].kind
    if not (tuned := task.workloads_for(kind, held_out=False)):
        fix = f"add one whose `devices` lists '{kind}'"
        raise TaskError(f"The task {task.name} has no workload to tune on a {kind}: {fix}.")
    usable = [template for template in templates if all(template.runs_on(device_names(one)) for one in limits)]
    for template in usable or templates:
        for one in limits:
            require_points(feasible(template, tuned, one), template)


@contextmanager
def pools(
    task: Task,
    device: DeviceInfo,
    settings: Settings,
    workloads: Sequence[str],
    listener: Listener = silent,
    seconds_left: Callable[[], float] = lambda: math.inf,
) -> Iterator[Callable[[], Pool]]:
    """A maker of pools that prepare `workloads`; the first starts the cluster, the block's end ends it."""
    from tunesmith.kernels.build.artifact import open_cache
    from tunesmith.kernels.measure.timing import Precision

    cache = open_cache()
    with ExitStack() as stack:

        def make() -> Pool:
            from tunesmith.actors.pool import Pool, WorkerSet
            from tunesmith.actors.ray_cluster import cluster, total
            from tunesmith.actors.workers import Deadlines

            attached, cpus, gpus = stack.enter_context(cluster()), int(total("CPU")), int(total("GPU"))
            gpu = BACKENDS[device.backend].pinned_by_ray
            # A lane and this process need a core each, or all wait for them.
            spare = cpus - 1 - max(1, gpus) if gpu else cpus
            compilers = settings.workers or max(1, min(spare, settings.evaluations))
            workers = WorkerSet(
                task,
                device.limits,
                device.index,
                # GPUs of other models count, too: a lane knows its GPU only when it has it.
                lanes=min(max(1, gpus), settings.lanes or gpus or 1) if gpu else 1,
                compilers=compilers if BACKENDS[device.backend].makes_cubins else 1,
                seed=settings.seed,
                workloads=workloads,
                deadlines=Deadlines(prepare=settings.reference_deadline, check=settings.check_time),
                say=lambda sentence: listener(Progress("pool", sentence)),
                seconds_left=seconds_left,
            )
            return Pool(workers, Precision(energy_seconds=settings.energy_seconds), cache, shared=attached)

        yield make
