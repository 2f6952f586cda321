"""Which device a run is on: those there are, and the one that is taken."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

from tunesmith.hw.errors import NoDevice, TunesmithError
from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.probe import Device, Inventory, probe
from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.spec.task import Task


def inventory_for(backend: str) -> Inventory:
    """The devices that a run may be on: those of this machine, or, where RAY_ADDRESS names a cluster, its GPUs and this
    machine's OpenCL devices. Raises `ClusterError` when the cluster cannot be reached."""
    here = probe()
    if "RAY_ADDRESS" not in os.environ or backend == "opencl":
        return here
    from tunesmith.actors.cluster.cluster import cluster
    from tunesmith.actors.cluster.survey import survey

    with cluster():
        found = survey()
    by_backend = {**here.by_backend, "cuda": found.notes}
    return Inventory(found.devices + here.of("opencl"), found.notes + here.notes, by_backend)


def choose_device(task: Task, backend: str, inventory: Inventory, model: str | None = None) -> Device:
    """The first device of `backend`; for "auto" a CUDA GPU, then an OpenCL GPU, then any OpenCL device, as far as the
    task has sources. Among several models the one there is most of, or that whose name has `model` in it. Raises
    `NoDevice` saying what to install, `TaskError` when the task lacks what is asked for."""
    if model is not None:
        named = tuple(device for device in inventory.devices if model.lower() in device.name.lower())
        if not named:
            names = ", ".join(sorted({device.name for device in inventory.devices})) or "none at all"
            raise NoDevice(f"--target-device: no device here is called '{model}'; there are {names}.")
        inventory = Inventory(named, inventory.notes, inventory.by_backend)
    if backend != "auto":
        task.sources(backend)
        found = inventory.of("cuda" if backend == "cuda" else "opencl")
        # Without any, `device` says what is missing.
        return _most_common(found) if found else inventory.device("cuda" if backend == "cuda" else "opencl")
    candidates = [device for device in inventory.devices if device.backend in task.backends]
    if not candidates:
        why = inventory.why_without(task.backends) or "`tunesmith devices` lists those that there are"
        raise NoDevice(
            f"No device here can run the task {task.name}, which has sources for {' and '.join(task.backends)}: {why}."
        )
    cuda = [device for device in candidates if device.backend == "cuda"]
    if cuda:
        return _most_common(cuda)
    return min(candidates, key=lambda d: (d.limits.kind != "gpu", d.index))


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


def _most_common(devices: Sequence[Device]) -> Device:
    """The first device of the model there is most of: a tuning's results belong to one model."""
    if devices[0].backend != "cuda":
        return devices[0]
    counts = Counter(device.name for device in devices)
    return min(devices, key=lambda device: -counts[device.name])
