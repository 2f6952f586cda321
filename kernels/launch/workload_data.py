"""The buffers of one workload on one device: inputs, poisoned outputs, red zones, expected results.

Owns layout and contents. Each *set* is a complete copy of the kernel's arrays; there are enough sets that, launching
over them in turn, each finds its data gone from the last cache. The contents come in two variants, which sets hold
alternately, so that a launch meets other contents and other addresses than the one before; an image of each variant is
kept, from which inputs, poison and red zones are restored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunesmith.kernels.backends import Device, OutOfDeviceMemory
from tunesmith.kernels.spec.contents import KINDS, Contents
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.task import Argument, Fill, Task, TaskError, Workload

ALIGNMENT = 512
"""Bytes; every array starts at a multiple. Enough for the widest vector access and OpenCL sub-buffers."""
RED_ZONE = 2048
"""Bytes before and after each array that no kernel may write."""
RED_ZONE_BYTE = 0xA5
MAX_SETS = 512
VARIANTS = 2
RANDOM_BLOCK = (1 << 22) - 3
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


@dataclass(frozen=True, slots=True)
class Variant:
    """One drawing of the contents. image: all bytes of a set before a launch, on the device; expected: flat float64
    arrays by output name."""

    image: Any
    expected: dict[str, Any]


def draw(fill: Fill, count: int, dtype: str, rng: np.random.Generator) -> NDArray[Any]:
    """At most `count` elements as `fill` says, in the storage type; see `Fill`. Fewer are meant to be repeated."""
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
    return DTYPES[dtype].from_float(values)


def expected_results(xp: Any, task: Task, workload: Workload, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What the reference gives for `inputs` (float64 arrays by name), as flat float64 arrays of `xp` by output name.

    The reference is written for NumPy; given arrays of a GPU it runs there, as NumPy's functions hand over to the
    array they are called on (NEP 13 and NEP 18). Where it does something that cannot be handed over, it runs on the
    host. Magnitudes that the storage type cannot hold become what a kernel's stores make of them
    (`DataType.limited`). Raises `TaskError` when the reference raises or returns something else than the declared
    outputs.
    """
    where = f"Task {task.name}, workload {workload.name}: the reference {task.reference_name}"
    scalars = {a.name: task.scalar_of(a, workload) for a in task.arguments if a.role == "scalar"}
    results: Any = None
    if xp is not np:
        try:
            results = _call_reference(task, {**inputs, **scalars})
        except Exception:  # noqa: BLE001 - whatever stops it on the device, the host has the last word
            results = None
        if not isinstance(results, dict) or not all(isinstance(value, xp.ndarray) for value in results.values()):
            results = None
    if results is None:
        on_host = {name: array if xp is np else array.get() for name, array in inputs.items()}
        try:
            results = _call_reference(task, {**on_host, **scalars})
        except Exception as error:
            raise TaskError(
                f"{where} raises {type(error).__name__}: {error}; mend it or its argument names."
            ) from error
    names = {argument.name for argument in task.outputs}
    if not isinstance(results, dict) or set(results) != names:
        given = ", ".join(map(str, results)) if isinstance(results, dict) else type(results).__name__
        raise TaskError(f"{where} must return a dict with {', '.join(sorted(names))}; it returns {given}.")
    expected = {}
    for argument in task.outputs:
        shape = task.shape_of(argument, workload)
        try:
            result = xp.asarray(results[argument.name], dtype=xp.float64)
        except (ValueError, TypeError) as error:
            raise TaskError(f"{where} returns {argument.name}, which is no array of numbers: {error}.") from error
        if result.shape != shape:
            raise TaskError(f"{where} returns {argument.name} with the shape {result.shape}, not {shape}.")
        dtype = task.dtype_of(argument, workload)
        result = DTYPES[dtype].limited(xp, result, task.tolerance_of(dtype).rtol)
        expected[argument.name] = result.reshape(-1)
    return expected


def _call_reference(task: Task, values: Mapping[str, Any]) -> Any:
    namespace: dict[str, Any] = {"__name__": f"reference of {task.name}"}
    exec(compile(task.reference, f"<reference of {task.name}>", "exec"), namespace)
    if task.reference_name not in namespace:
        raise NameError(f"there is no function {task.reference_name} in it")
    with np.errstate(all="ignore"):
        return namespace[task.reference_name](**values)


class WorkloadData:
    """Everything a launch on `workload` needs, on `device`, drawn from `seed` as `kind` says.

    sets: how many sets of buffers there are, as many as cold caches need or `max_sets`; set_bytes: bytes of one.
    `max_bytes` bounds the device memory taken. Raises `TaskError` for a reference that fails, `OutOfDeviceMemory` when
    not even one set fits.
    """

    def __init__(
        self,
        device: Device,
        task: Task,
        workload: Workload,
        *,
        seed: int,
        max_bytes: int,
        contents: Contents | None = None,
        max_sets: int = MAX_SETS,
    ) -> None:
        self.device, self.task, self.workload = device, task, workload
        self.contents = contents or Contents(seed=seed)
        self.places, self.set_bytes = self._layout()
        results = 8 * sum(math.prod(place.shape) for place in self.places if place.argument.role != "in")
        # A second variant where there is room for it; the first needs an image, a set, and the results.
        count = VARIANTS if 4 * self.set_bytes + 2 * results <= max_bytes else 1
        room = max_bytes - count * (self.set_bytes + results)
        if room < self.set_bytes:
            needed, allowed = (2 * self.set_bytes + results) / 2**30, max_bytes / 2**30
            raise OutOfDeviceMemory(
                f"the workload {workload.name} needs {needed:.1f} GiB of device memory; {allowed:.1f} GiB may be used"
            )
        self.variants = tuple(self._draw(variant) for variant in range(count))
        # One more than cold caches need: in-place kernels are checked on a set that a sample goes over only once.
        wanted = 1 + max(2, math.ceil(device.cold_bytes / self.set_bytes))
        self.sets = max(1, min(wanted, max_sets, room // self.set_bytes))
        self._arena = device.allocate(self.sets * self.set_bytes)
        self._held = [0] * self.sets
        self._scalars = {
            argument.name: DTYPES[task.dtype_of(argument, workload)].scalar(task.scalar_of(argument, workload))
            for argument in task.arguments
            if argument.role == "scalar"
        }
        self.nbytes = (self.sets + count) * self.set_bytes + count * results
        self._arguments: dict[int, tuple[Any, ...]] = {}
        self._expected_buffers: dict[tuple[int, str], Any] = {}
        self.restore()

    def _layout(self) -> tuple[tuple[Place, ...], int]:
        places, cursor = [], 0
        for argument in self.task.arguments:
            if argument.role == "scalar":
                continue
            dtype = self.task.dtype_of(argument, self.workload)
            shape = self.task.shape_of(argument, self.workload)
            nbytes = math.prod(shape) * DTYPES[dtype].size
            padded = -(-nbytes // ALIGNMENT) * ALIGNMENT
            places.append(Place(argument, dtype, shape, cursor + RED_ZONE, nbytes, padded))
            cursor += padded + 2 * RED_ZONE
        return tuple(places), cursor

    def _draw(self, variant: int) -> Variant:
        inputs = self._draw_inputs(variant)
        image = self.device.allocate(self.set_bytes)
        self.device.write(image, self._image(inputs))
        converted = {
            place.argument.name: DTYPES[place.dtype]
            .to_float64(self.device.xp, inputs[place.argument.name])
            .reshape(place.shape)
            for place in self.places
            if place.argument.role != "out"
        }
        return Variant(image, expected_results(self.device.xp, self.task, self.workload, converted))

    def _draw_inputs(self, variant: int) -> dict[str, Any]:
        """Flat arrays of the type `DataType.array`, on the device."""
        xp = self.device.xp
        # Names differ in their letters, so that workloads of one seed do not share contents.
        kind = KINDS.index(self.contents.kind)
        rng = np.random.default_rng([self.contents.seed, kind, variant, *self.workload.name.encode()])
        inputs = {}
        for place in self.places:
            if place.argument.role == "out":
                continue
            count = math.prod(place.shape)
            fill = self.contents.fill(place.argument.fill, place.dtype, variant)
            block = draw(fill, count, place.dtype, rng)
            raw = xp.asarray(block.view(DTYPES[place.dtype].array))
            inputs[place.argument.name] = raw if block.size == count else xp.resize(raw, count)
        return inputs

    def _image(self, inputs: Mapping[str, Any]) -> Any:
        image = self.device.xp.full(self.set_bytes, RED_ZONE_BYTE, np.uint8)
        for place in self.places:
            values = inputs.get(place.argument.name)
            target = slice(place.offset, place.offset + place.nbytes)
            if values is not None:
                image[target] = values.view(np.uint8)
                continue
            poison = DTYPES[place.dtype].poison
            for phase, byte in enumerate(poison):
                image[place.offset + phase : place.offset + place.nbytes : len(poison)] = byte
        return image

    @property
    def expected(self) -> dict[str, Any]:
        """The results that belong to set 0."""
        return self.expected_of(0)

    def expected_of(self, index: int) -> dict[str, Any]:
        """The results, as flat float64 arrays by output name, that belong to what set `index` holds."""
        return self.variants[self._held[index]].expected

    def held(self, index: int) -> int:
        """The variant that set `index` holds."""
        return self._held[index]

    def restore(self) -> None:
        """Makes every set as before any launch: inputs, poisoned outputs, red zones; set i holds variant i mod 2."""
        for index in range(min(self.sets, len(self.variants))):
            self.restore_set(index, index)
        done = len(self.variants)
        while done < self.sets:
            # What is done already is copied behind itself, so that many small sets take few copies.
            more = min(done, self.sets - done)
            source = self.device.view(self._arena, 0, more * self.set_bytes)
            self.device.copy(self.device.view(self._arena, done * self.set_bytes, more * self.set_bytes), source)
            done += more
        self._held = [index % len(self.variants) for index in range(self.sets)]

    def restore_set(self, index: int, variant: int) -> None:
        """Makes set `index` as before any launch, holding `variant`."""
        self.device.copy(self._set(index), self.variants[variant].image)
        self._held[index] = variant

    def exchange_inputs(self, index: int) -> bool:
        """Gives set `index` the inputs of the other variant and leaves its outputs as they are, from whatever launch.

        True when there is another variant with other results to expect.
        """
        other = (self._held[index] + 1) % len(self.variants)
        image = self.variants[other].image
        for place in self.places:
            if place.argument.role != "out":
                self.device.copy(self.view(place, index), self.device.view(image, place.offset, place.nbytes))
        self._held[index] = other
        return len(self.variants) > 1 and self.contents.kind != "zeros"

    def arguments(self, index: int) -> tuple[Any, ...]:
        """The kernel's arguments, in order, on set `index`."""
        if index not in self._arguments:
            views = {place.argument.name: self.view(place, index) for place in self.places}
            self._arguments[index] = tuple(
                self._scalars[a.name] if a.role == "scalar" else views[a.name] for a in self.task.arguments
            )
        return self._arguments[index]

    def view(self, place: Place, index: int) -> Any:
        return self.device.view(self._arena, index * self.set_bytes + place.offset, place.nbytes)

    def set_array(self, index: int, *, pristine: bool = False) -> Any:
        """All bytes of set `index` as a flat uint8 array; `pristine`: as they were before any launch on them."""
        return self.device.array(self.set_buffer(index, pristine=pristine), "uint8")

    def set_buffer(self, index: int, *, pristine: bool = False) -> Any:
        """As `set_array`, as a buffer."""
        return self.variants[self._held[index]].image if pristine else self._set(index)

    def expected_buffer(self, index: int, name: str) -> Any:
        """The float64 results that belong to what set `index` holds, where a kernel can read them."""
        results = self.expected_of(index)[name]
        if self.device.xp is not np:
            return results
        key = (self._held[index], name)
        if key not in self._expected_buffers:
            buffer = self.device.allocate(results.nbytes)
            self.device.write(buffer, np.ascontiguousarray(results).view(np.uint8))
            self._expected_buffers[key] = buffer
        return self._expected_buffers[key]

    def _set(self, index: int) -> Any:
        return self.device.view(self._arena, index * self.set_bytes, self.set_bytes)
