"""The buffers of one workload on one device: inputs, poisoned outputs, red zones, expected results.

Owns layout and contents. Each *set* is a complete copy of the kernel's arrays; there are enough sets that, launching
over them in turn, each finds its data gone from the last cache. All sets lie in one allocation beside a pristine copy
of it, so that one copy restores inputs, poison and red zones of all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunesmith.kernels.backends import Device, OutOfDeviceMemory
from tunesmith.kernels.task import Argument, Fill, Task, TaskError, Workload

ALIGNMENT = 512
"""Bytes; every array starts at a multiple. Enough for the widest vector access and OpenCL sub-buffers."""
RED_ZONE = 2048
"""Bytes before and after each array that no kernel may write."""
RED_ZONE_BYTE = 0xA5
POISON_BYTE = 0xFF
"""Fills outputs before a launch: a NaN in every float type, -1 in every integer."""
MAX_SETS = 512
RANDOM_BLOCK = (1 << 24) - 3
"""Elements drawn at random; larger arrays repeat them. Odd, so that rows of usual widths differ."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an array lies inside a set: data at [offset, offset + nbytes), then padding up to its red zone."""

    argument: Argument
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    padded: int


def storage_dtype(dtype: str) -> np.dtype[Any]:
    """NumPy's type for a data type; bfloat16 is that of ml_dtypes."""
    if dtype == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(dtype)


def draw(fill: Fill, count: int, dtype: str, rng: np.random.Generator) -> NDArray[Any]:
    """`count` elements as `fill` says, in the storage type; see `Fill`."""
    drawn = min(count, RANDOM_BLOCK)
    match fill.kind:
        case "normal":
            values = fill.mean + fill.scale * rng.standard_normal(drawn, dtype=np.float32)
        case "uniform":
            values = fill.mean + fill.scale * (2 * rng.random(drawn, dtype=np.float32) - 1)
        case "constant":
            values = np.full(drawn, fill.mean, np.float32)
    for special in fill.special:
        values[rng.random(drawn) < special.fraction] = special.value
    target = storage_dtype(dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        stored = (np.rint(values) if target.kind in "iub" else values).astype(target)
    return np.resize(stored, count) if count > drawn else stored


def expected_results(task: Task, workload: Workload, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """What the reference gives for `inputs` (storage type), as float64 arrays by output name.

    Magnitudes the storage type cannot hold become infinities, as they do when a kernel stores them. Raises
    `TaskError` when the reference raises or returns something else than the declared outputs.
    """
    namespace: dict[str, Any] = {"__name__": f"reference of {task.name}"}
    values: dict[str, Any] = {}
    for argument in task.arguments:
        if argument.role == "scalar":
            values[argument.name] = task.scalar_of(argument, workload)
        elif argument.role in ("in", "inout"):
            values[argument.name] = inputs[argument.name].astype(np.float64)
    where = f"Task {task.name}, workload {workload.name}: the reference {task.reference_name}"
    try:
        exec(compile(task.reference, f"<reference of {task.name}>", "exec"), namespace)
        function = namespace[task.reference_name]
        with np.errstate(all="ignore"):
            results = function(**values)
    except Exception as error:  # noqa: BLE001 - the user's own code may raise anything; all of it is their mistake
        raise TaskError(f"{where} raises {type(error).__name__}: {error}; mend it or its argument names.") from error
    names = {argument.name for argument in task.outputs}
    if not isinstance(results, dict) or set(results) != names:
        given = sorted(results) if isinstance(results, dict) else type(results).__name__
        raise TaskError(f"{where} must return a dict with {', '.join(sorted(names))}; it returns {given}.")
    expected = {}
    for argument in task.outputs:
        shape = task.shape_of(argument, workload)
        result = np.asarray(results[argument.name], dtype=np.float64)
        if result.shape != shape:
            raise TaskError(f"{where} returns {argument.name} with the shape {result.shape}, not {shape}.")
        expected[argument.name] = _as_stored(result, task.dtype_of(argument, workload)).reshape(-1)
    return expected


def _as_stored(values: NDArray[np.float64], dtype: str) -> NDArray[np.float64]:
    """Overflow to infinity as in the storage type; everything else keeps its float64 value."""
    target = storage_dtype(dtype)
    if target.kind in "iub" or dtype == "float64":
        return values
    import ml_dtypes

    largest = float(ml_dtypes.finfo(target).max)
    if np.nanmax(np.abs(values), initial=0.0, where=np.isfinite(values)) <= largest:
        return values
    with np.errstate(over="ignore"):
        overflowed = np.isinf(values.astype(np.float32).astype(target))
    return np.where(overflowed, np.copysign(np.inf, values), values)


class WorkloadData:
    """Everything a launch on `workload` needs, on `device`, drawn from `seed`.

    sets: how many sets of buffers there are; set_bytes: bytes of one. `max_bytes` bounds the device memory taken.
    Raises `TaskError` for a reference that fails, `OutOfDeviceMemory` when not even one set fits.
    """

    def __init__(self, device: Device, task: Task, workload: Workload, *, seed: int, max_bytes: int) -> None:
        self.device, self.task, self.workload, self.seed = device, task, workload, seed
        self.places, self.set_bytes = self._layout()
        rng = np.random.default_rng([seed, sum(map(ord, workload.name))])
        inputs = {
            place.argument.name: draw(place.argument.fill, math.prod(place.shape), place.dtype, rng).reshape(place.shape)
            for place in self.places
            if place.argument.role != "out"
        }
        expected = expected_results(task, workload, inputs)
        result_bytes = sum(array.nbytes for array in expected.values())
        room = max_bytes - result_bytes
        if 2 * self.set_bytes > room:
            raise OutOfDeviceMemory(
                f"the workload {workload.name} needs {(2 * self.set_bytes + result_bytes) / 2**30:.1f} GiB of device memory; "
                f"{max_bytes / 2**30:.1f} GiB may be used"
            )
        wanted = max(2, math.ceil(device.cold_bytes / self.set_bytes))
        self.sets = max(1, min(wanted, MAX_SETS, room // (2 * self.set_bytes)))
        self._arena = device.allocate(self.sets * self.set_bytes)
        self._pristine = device.allocate(self.sets * self.set_bytes)
        image = self._image(inputs)
        for index in range(self.sets):
            device.write(self._pristine, image, index * self.set_bytes)
        self.expected = {name: self._on_device(values) for name, values in expected.items()}
        self._scalars = {
            argument.name: storage_dtype(task.dtype_of(argument, workload)).type(task.scalar_of(argument, workload))
            for argument in task.arguments
            if argument.role == "scalar"
        }
        self.nbytes = 2 * self.sets * self.set_bytes + result_bytes
        self.restore()

    def _layout(self) -> tuple[tuple[Place, ...], int]:
        places, cursor = [], 0
        for argument in self.task.arguments:
            if argument.role == "scalar":
                continue
            dtype = self.task.dtype_of(argument, self.workload)
            shape = self.task.shape_of(argument, self.workload)
            nbytes = math.prod(shape) * storage_dtype(dtype).itemsize
            padded = -(-nbytes // ALIGNMENT) * ALIGNMENT
            places.append(Place(argument, dtype, shape, cursor + RED_ZONE, nbytes, padded))
            cursor += padded + 2 * RED_ZONE
        return tuple(places), cursor

    def _image(self, inputs: Mapping[str, NDArray[Any]]) -> NDArray[np.uint8]:
        image = np.full(self.set_bytes, RED_ZONE_BYTE, np.uint8)
        for place in self.places:
            target = image[place.offset : place.offset + place.nbytes]
            values = inputs.get(place.argument.name)
            target[:] = POISON_BYTE if values is None else values.reshape(-1).view(np.uint8)
        return image

    def _on_device(self, values: NDArray[np.float64]) -> Any:
        # Comparisons happen where `Device.array` puts its arrays: on the device for CUDA, on the host for OpenCL.
        return self.device.xp.asarray(values)

    def restore(self) -> None:
        """Makes every set as it was before any launch: inputs, poisoned outputs, red zones."""
        self.device.copy(self._arena, self._pristine)

    def arguments(self, index: int) -> tuple[Any, ...]:
        """The kernel's arguments, in order, on set `index`."""
        views = {place.argument.name: self.view(place, index) for place in self.places}
        return tuple(
            self._scalars[a.name] if a.role == "scalar" else views[a.name] for a in self.task.arguments
        )

    def view(self, place: Place, index: int) -> Any:
        return self.device.view(self._arena, index * self.set_bytes + place.offset, place.nbytes)

    def set_array(self, index: int, *, pristine: bool = False) -> Any:
        """All bytes of set `index` as a flat uint8 array."""
        arena = self._pristine if pristine else self._arena
        return self.device.array(self.device.view(arena, index * self.set_bytes, self.set_bytes), "uint8")
