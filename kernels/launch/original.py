"""The original kernel as a task's reference: what the baseline gives for the same inputs.

Owns compiling and launching it for that. Agreement with it is agreement with the original, and no proof of anything.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np

from tunesmith.kernels.backends import Device, Launch, open_compiler
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.specialise import specialise
from tunesmith.kernels.outcome import describe
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.geometry import geometry
from tunesmith.kernels.spec.task import Task, TaskError, Workload

_LOADED: weakref.WeakKeyDictionary[Device, dict[str, Any]] = weakref.WeakKeyDictionary()
"""The loaded originals of each device, by the digest of their source."""


def original_results(
    device: Device, task: Task, workload: Workload, inputs: Mapping[str, Any], scalars: Mapping[str, float]
) -> dict[str, Any]:
    """What the baseline writes for `inputs` (arrays of float64 by name, on the host or the device), by output, in
    float64 and in shape. scalars: with other values than the task's. Raises `TaskError` where it does not compile,
    `DeviceError` where it cannot be launched."""
    template = task.sources(device.backend).baseline.template
    kernel = _kernel(device, task, workload)
    held, arguments = {}, []
    for argument in task.arguments:
        kind = DTYPES[task.dtype_of(argument, workload)]
        if argument.role == "scalar":
            value = scalars.get(argument.name, task.scalar_of(argument, workload))
            arguments.append(kind.scalar(value))
            continue
        shape = task.shape_of(argument, workload)
        buffer = device.allocate(math.prod(shape) * kind.size)
        given = np.zeros(shape) if argument.role == "out" else inputs[argument.name]
        on_host = given.get() if hasattr(given, "get") else np.asarray(given)
        device.write(buffer, np.ascontiguousarray(kind.from_float(on_host)).reshape(-1).view(np.uint8))
        held[argument.name] = buffer
        arguments.append(buffer)
    device.launch(Launch(kernel, geometry(template, {}, workload), tuple(arguments)))
    device.synchronize()
    found = {}
    for argument in task.outputs:
        dtype = task.dtype_of(argument, workload)
        raw = device.array(held[argument.name], dtype)
        found[argument.name] = DTYPES[dtype].to_float64(device.xp, raw).reshape(task.shape_of(argument, workload))
    return found


def _kernel(device: Device, task: Task, workload: Workload) -> Any:
    source = specialise(task.sources(device.backend).baseline.template, {}, workload.types)
    loaded = _LOADED.setdefault(device, {})
    if source.digest not in loaded:
        made = open_compiler(device.limits, device.index).compile(source)
        if not isinstance(made, Artifact):
            raise TaskError(f"Task {task.name}: its original, which is the reference, gives this: {describe(made)}")
        loaded[source.digest] = device.load(made)
    return loaded[source.digest]
