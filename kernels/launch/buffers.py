"""The buffers of one workload on one device: inputs, poisoned outputs, red zones, expected results.

Owns layout and contents. Each *set* is a complete copy of the kernel's arrays; there are enough sets that, launching
over them in turn, each finds its data gone from the last cache. The contents come in two variants, which sets hold
alternately, so that a launch meets other contents and other addresses than the one before; an image of each variant is
kept, from which inputs, poison and red zones are restored. Where arrays lie and what bytes surround them is drawn
anew for each object, so that a kernel cannot know by its addresses that it is being checked.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunesmith.kernels.backends import BoundLaunch, Device, DeviceError, OutOfDeviceMemory, kept
from tunesmith.kernels.build.artifact import Candidate, undeclared_state
from tunesmith.kernels.build.source import code_key
from tunesmith.kernels.launch.contents import DEFINED, Contents, draw_variants
from tunesmith.kernels.launch.reference import (
    VARIANTS,
    Prepared,
    as_expected,
    expected_results,
    on_host,
    original_results,
    passed_scalars,
    values_of,
)
from tunesmith.kernels.outcome import Rejected
from tunesmith.kernels.space import compiler_rejection
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.task import Argument, Geometry, Task, TaskError, Workload, geometry

ALIGNMENT = 512
"""Bytes; unless the caller says otherwise, every array starts at a multiple, as where a program allocates it."""
RED_ZONE = 2048
"""Bytes before and after each array, at least, that no kernel may write."""
MAX_GAP_BYTES = 4096
"""Bytes that may be added before an array."""
MAX_SETS = 512
MAX_COLD_MULTIPLE = 8
"""Bytes of all sets, in multiples of the bytes that cold caches need, where launches touch a part of their arrays."""
FLOAT32_ROUNDING = 2.0**-23
"""Share by which an input is changed, to see how well the result is determined."""
ROUNDING_ATTEMPTS = 6
"""Repetitions of it, as changes can cancel: of sums of many products one in twelve changes by less than a tenth of what
is usual, in all attempts one in four million."""
MAX_DRAWN_CHANGES = 1_000_003
"""Changes that are drawn for an array, which repeats them: a prime, so that no two rows hold the same changes."""
ROUNDING_FACTOR = 16.0
"""Accepted error of a result, in multiples of what such changes make: reordered sums, exponentials of large numbers."""
TRUNCATED_TERMS = 32.0
"""Terms for which a sum of products of 8 or 16 bits may lose one such change more: tensor cores cut off the bits that
an FMA rounds, always towards zero, so that the loss grows with the length."""
SUM_ORDER_FACTOR = 8.0
"""The same where the original kernel is the reference, of the root mean square over an output."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Where an array lies inside a set: data at [offset, offset + nbytes), surrounded by red zones."""

    argument: Argument
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    @property
    def bytes(self) -> slice:
        return slice(self.offset, self.offset + self.nbytes)


@dataclass(frozen=True, slots=True)
class Variant:
    """One drawing of the contents. image: all bytes of a set before a launch, on the device; expected: flat float64
    arrays by output name; memo: values computed from these, by its kind and the output."""

    image: Any
    expected: dict[str, Any]
    memo: dict[tuple[str, str], Any] = field(default_factory=dict)


def _multiple(value: int, step: int) -> int:
    return -(-value // step) * step


def _fill(array: Any, pattern: tuple[int, ...]) -> None:
    """Writes the bytes of `pattern`, in turn, over a flat uint8 array."""
    for phase, byte in enumerate(pattern):
        array[phase :: len(pattern)] = byte


def _nan_bytes(rng: np.random.Generator) -> tuple[int, ...]:
    """Bytes that, in turn, are a NaN of every float type of 16 bits and more, and none that computing gives."""
    return int(rng.integers(0xF1, 0xFE)), int(rng.choice([0x7F, 0xFF]))


class WorkloadData:
    """Everything a launch on `workload` needs, on `device`, drawn from `seed` as `kind` says.

    sets: how many sets of buffers there are, as many as cold caches need or `max_sets`; set_bytes: bytes of one;
    touched_bytes: the least bytes that a launch reads or writes, by the task's account of its traffic.
    alignment: bytes that arrays start at multiples of, or as many as the device needs, where that is more; where they
    lie is drawn from `layout_seed`, anew for each object. prepared: the contents and the expected results, where they
    were made before; else they are made here, and the reference is called. crossing: one of the arrays lies across a
    multiple of 4 GiB, where the device's addresses can be chosen. `max_bytes` bounds the device memory taken.
    Raises `TaskError` for a reference that fails, `OutOfDeviceMemory` when not even one set fits.
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
        alignment: int = ALIGNMENT,
        prepared: Prepared | None = None,
        crossing: bool = False,
    ) -> None:
        self.device, self.task, self.workload = device, task, workload
        self.contents = contents or Contents(seed=seed)
        self._alignment = max(alignment, device.base_alignment)
        # No source can have been written for where its arrays lie.
        self.layout_seed = secrets.randbits(64)
        arranging = np.random.default_rng(self.layout_seed)
        self.places, self.set_bytes = self._arranged(arranging)
        # Around arrays mostly a NaN of 16 bits and more, which shows a kernel that reads beside an array and multiplies
        # by zero; otherwise any byte.
        self._zone = _nan_bytes(arranging) if arranging.random() < 0.75 else (int(arranging.integers(1, 256)),)
        # In outputs a NaN that computing does not give, of fewer than 16 bits that of the data type.
        self._poison = {
            place.dtype: DTYPES[place.dtype].poison if DTYPES[place.dtype].size == 1 else _nan_bytes(arranging)
            for place in self.places
        }
        self._changed = dict(self.contents.scalars)
        results = 8 * sum(math.prod(place.shape) for place in self.outputs)
        # A second variant where there is room for it; the first needs an image, a set, and the results.
        count = VARIANTS if 4 * self.set_bytes + 2 * results <= max_bytes else 1
        room = max_bytes - count * (self.set_bytes + results)
        if room < self.set_bytes:
            needed, allowed = (2 * self.set_bytes + results) / 2**30, max_bytes / 2**30
            raise OutOfDeviceMemory(
                f"the workload {workload.name} needs {needed:.1f} GiB of device memory; {allowed:.1f} GiB may be used"
            )
        xp = device.xp
        if prepared is None:
            self.variants = tuple(
                self._variant(inputs, self._results(values_of(xp, task, workload, inputs)))
                for inputs in draw_variants(xp, task, workload, self.contents, count)
            )
        else:
            self.variants = tuple(
                self._variant(*({name: xp.asarray(array) for name, array in part.items()} for part in parts))
                for parts in prepared[:count]
            )
        # An `inout` array counts twice in the traffic, but takes the cache once.
        twice = sum(place.nbytes for place in self.places if place.argument.role == "inout")
        traffic = task.bytes_of(workload)
        self.touched_bytes = max(1, min(self.set_bytes, round(max(traffic - twice, traffic / 2))))
        # One more than cold caches need: in-place kernels are checked on a set that a sample goes over only once.
        wanted = 1 + max(2, math.ceil(device.cold_bytes / self.touched_bytes))
        roomy = max(3, round(MAX_COLD_MULTIPLE * device.cold_bytes / self.set_bytes))
        self.sets = max(1, min(wanted, max_sets, roomy, room // self.set_bytes))
        self._arena = self._allocated(arranging if crossing else None)
        self._held = [0] * self.sets
        self._scalars = passed_scalars(task, workload, self._changed)
        self.nbytes = (self.sets + count) * self.set_bytes + count * results
        self._arguments: dict[int, tuple[Any, ...]] = {}
        self.restore()

    def _allocated(self, rng: np.random.Generator | None) -> Any:
        """The memory of all sets. rng: draws the element of an array that lies at a multiple of 4 GiB."""
        nbytes = self.sets * self.set_bytes
        if rng is not None and (long := [place for place in self.places if place.nbytes > self._alignment]):
            place = long[rng.integers(len(long))]
            inside = self._alignment * int(rng.integers(1, -(-place.nbytes // self._alignment)))
            at = int(rng.integers(self.sets)) * self.set_bytes + place.offset + inside
            with suppress(DeviceError):  # where no more memory can be mapped, other memory may be left
                if (across := self.device.allocate_across(nbytes, at)) is not None:
                    return across
        return self.device.allocate(nbytes)

    def rearrange(self, rng: np.random.Generator) -> None:
        """Lays the arrays of every set out anew, in another order and with other gaps, and restores all sets.

        Contents stay. Launches that were made before work on other places: ask for `arguments` again.
        """
        places, _ = self._arranged(rng)
        for variant in self.variants:
            before = self.device.array(variant.image, "uint8")
            image = self._between()
            for old, new in zip(self.places, places, strict=True):
                image[new.bytes] = before[old.bytes]
            self.device.write(variant.image, image)
        self.places = places
        self._arguments.clear()
        self.restore()

    def _arranged(self, rng: np.random.Generator) -> tuple[tuple[Slot, ...], int]:
        """The places, in the order of the arguments, and the bytes of a set, which hold whatever is drawn."""
        arrays, step = self.task.arrays, self._alignment
        places: dict[str, Slot] = {}
        cursor = 0
        for position in rng.permutation(len(arrays)):
            argument = arrays[position]
            dtype = self.task.dtype_of(argument, self.workload)
            shape = self.task.shape_of(argument, self.workload)
            nbytes = math.prod(shape) * DTYPES[dtype].size
            gap = step * int(rng.integers(MAX_GAP_BYTES // step + 1))
            offset = _multiple(cursor + RED_ZONE + gap, step)
            places[argument.name] = Slot(argument, dtype, shape, offset, nbytes)
            cursor = offset + nbytes + RED_ZONE
        most = sum(place.nbytes + 2 * RED_ZONE + MAX_GAP_BYTES + step for place in places.values())
        return tuple(places[argument.name] for argument in arrays), _multiple(most, step)

    def _variant(self, inputs: Mapping[str, Any], expected: dict[str, Any]) -> Variant:
        buffer, image = self.device.allocate(self.set_bytes), self._between()
        for place in self.places:
            if place.argument.name in inputs:
                image[place.bytes] = inputs[place.argument.name].view(np.uint8)
            else:
                _fill(image[place.bytes], self._poison[place.dtype])
        self.device.write(buffer, image)
        return Variant(buffer, expected)

    def _results(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The reference's results for float64 arrays, flat, by output."""
        if self.task.original_is_reference:
            results = original_results(self.device, self.task, self.workload, values, self._changed)
            return as_expected(self.device.xp, self.task, self.workload, results)
        with self.device.foreign_code():
            return expected_results(self.device.xp, self.task, self.workload, values, self._changed)

    def _between(self) -> Any:
        """A set that holds everywhere what surrounds arrays."""
        image = self.device.xp.empty(self.set_bytes, np.uint8)
        _fill(image, self._zone)
        return image

    def between(self, places: Sequence[Slot]) -> list[tuple[int, int]]:
        """First byte and end of each range of a set that lies outside of `places`, in the order of their offsets."""
        ordered = sorted(places, key=lambda place: place.offset)
        begins = [0, *(place.offset + place.nbytes for place in ordered)]
        return list(zip(begins, [*(place.offset for place in ordered), self.set_bytes], strict=True))

    @property
    def nan_is_defined(self) -> bool:
        """Whether a NaN of the reference is the result that a kernel must have."""
        return self.contents.kinds <= DEFINED and not self.contents.scalars

    def slack(self, index: int, *, lenient: bool) -> dict[str, Any]:
        """Errors that are accepted beside the tolerance for what set `index` holds, as flat float64 arrays by output
        name. They are multiples of the change of the reference's results when it computes in float32, on inputs each
        of which changes by a rounding of that; in float64 for an input in that.

        lenient: `ROUNDING_FACTOR` times the change of each element, or more for long sums on tensor cores, as where
        large numbers cancel, or exponents are large, no tolerance that was chosen for other contents is fair. Where
        results are compared with the original kernel's, which have roundings of their own, at least `SUM_ORDER_FACTOR`
        times the root mean square over each output, as it is chance which element meets which rounding. Lenient ones
        also have `_underflow`.
        """
        slack = {}
        factor = rounding_factor([one.dtype for one in self.places], self.workload, self.device.limits.kind)
        for place in self.outputs:
            changes = self._changes(index, place.argument.name)
            least = 0.0 if self.task.reference else SUM_ORDER_FACTOR * float(np.sqrt(np.mean(changes * changes)))
            more = factor * changes if lenient else 0.0 * changes
            slack[place.argument.name] = np.maximum(least, more) + (self._underflow(index, place) if lenient else 0.0)
        return slack

    def _underflow(self, index: int, output: Slot) -> float:
        """The error of a kernel that rounds to the output's 16 bits between two operations: a rounded value is off by
        up to half of the least number of the type, and then multiplied, by the largest finite float at most."""
        kind = DTYPES[output.dtype]
        if kind.size != 2 or not kind.is_float:
            return 0.0
        inputs = self._values_of_inputs(index)
        floats = [one.argument.name for one in self.inputs if DTYPES[one.dtype].is_float]
        factors = (np.abs(on_host(inputs[name])) for name in floats)
        largest = max((float(array[np.isfinite(array)].max(initial=0.0)) for array in factors), default=0.0)
        return math.ldexp(kind.finite[0], -kind.fraction_bits - 1) * largest

    def _values_of_inputs(self, index: int) -> dict[str, Any]:
        """The inputs that set `index` holds, in float64 and in shape, by name."""
        views = [(one, self.view(one, index, pristine=True)) for one in self.inputs]
        inputs = {one.argument.name: self.device.array(view, one.dtype) for one, view in views}
        return values_of(self.device.xp, self.task, self.workload, inputs)

    def _changes(self, index: int, output: str) -> Any:
        """The change of a result when each input changes by about a rounding: the largest of `ROUNDING_ATTEMPTS`.
        NumPy computes in float32 on such inputs, which shows the losses between operations, as in the difference of a
        probability near one and one. PyTorch does not mix the types; a reference may also take float64 alone.

        The size of the change differs from input to input: equal sizes would cancel each other exactly where the
        numbers do, in three of eight elements of a sum of two products. For results that are whole numbers, such as
        the place of the largest element, equal inputs change alike: a tie stays one.
        """
        xp, variant = self.device.xp, self.variants[self._held[index]]
        if ("changes", output) not in variant.memo:
            whole = {place.argument.name: not DTYPES[place.dtype].is_float for place in self.outputs}
            values = self._values_of_inputs(index)
            for attempt in range(ROUNDING_ATTEMPTS):
                rng, moved, narrow = np.random.default_rng(attempt), dict(values), dict(values)
                for place in self.inputs:
                    if DTYPES[place.dtype].is_float:
                        value = values[place.argument.name]
                        changed = value * _factors(xp, value, place, rng, ties=whole[output])
                        moved[place.argument.name] = narrow[place.argument.name] = changed
                        if DTYPES[place.dtype].size < 8:
                            narrow[place.argument.name] = changed.astype(np.float32)
                try:
                    results = self._results(moved if self.task.framework == "torch" else narrow)
                except TaskError:
                    results = self._results(moved)
                for name, result in results.items():
                    if whole[name] == whole[output]:
                        with np.errstate(invalid="ignore"):
                            off = np.abs(on_host(result) - on_host(variant.expected[name]))
                        off = np.where(np.isfinite(off), off, 0.0)
                        variant.memo["changes", name] = np.maximum(variant.memo.get(("changes", name), 0.0), off)
        return variant.memo["changes", output]

    def expected_of(self, index: int) -> dict[str, Any]:
        """The results, as flat float64 arrays by output name, that belong to what set `index` holds."""
        return self.variants[self._held[index]].expected

    def beyond_type(self) -> str:
        """Where a result is beyond its output's type: what a kernel stores of one beyond the integers is not defined,
        as wraps and the nearest are both usual, and beside the least numbers of a type its way to an infinity may lead
        over a NaN. Empty where none is."""
        for output in self.task.outputs:
            dtype = DTYPES[self.task.dtype_of(output, self.workload)]
            if dtype.is_float and "lowest" not in self.contents.kinds:
                continue
            least, largest = dtype.span
            for variant in self.variants:
                results = on_host(variant.expected[output.name])
                beyond = (results < least - 0.5) | (results > largest + 0.5) | np.isinf(results)
                if beyond.any():
                    value = float(results[beyond][0])
                    return f"the reference's {output.name} is {value:g} there, which {dtype.name} cannot hold"
        return ""

    def held(self, index: int) -> int:
        """The variant that set `index` holds."""
        return self._held[index]

    def restore(self) -> None:
        """Makes every set as before any launch: inputs, poisoned outputs, red zones; set i holds variant i mod 2."""
        for index in range(min(self.sets, len(self.variants))):
            self.restore_set(index, index)
        done = len(self.variants)
        while done < self.sets:
            # The part that is done is copied behind itself, so that many small sets take few copies.
            more = min(done, self.sets - done)
            source = self.device.view(self._arena, 0, more * self.set_bytes)
            self.device.copy(self.device.view(self._arena, done * self.set_bytes, more * self.set_bytes), source)
            done += more
        self._held = [index % len(self.variants) for index in range(self.sets)]

    def restore_set(self, index: int, variant: int) -> None:
        """Makes set `index` as before any launch, holding `variant`."""
        self.device.copy(self.set_buffer(index), self.variants[variant].image)
        self._held[index] = variant

    def exchange_inputs(self, index: int) -> bool:
        """Gives set `index` the inputs of the other variant and leaves its outputs as they are, from whatever launch.

        True when there is another variant with other results to expect.
        """
        other = (self._held[index] + 1) % len(self.variants)
        image = self.variants[other].image
        for place in self.inputs:
            self.device.copy(self.view(place, index), self.device.view(image, place.offset, place.nbytes))
        self._held[index] = other
        return len(self.variants) > 1 and self.contents.kinds != {"zeros"}

    def arguments(self, index: int) -> tuple[Any, ...]:
        """The kernel's arguments, in order, on set `index`."""
        if index not in self._arguments:
            views = {place.argument.name: self.view(place, index) for place in self.places}
            self._arguments[index] = tuple(
                self._scalars[a.name] if a.role == "scalar" else views[a.name] for a in self.task.arguments
            )
        return self._arguments[index]

    def view(self, place: Slot, index: int, *, pristine: bool = False) -> Any:
        """The array of set `index`; `pristine`: as it was before any launch on it."""
        return self._part(index, place.offset, place.nbytes, pristine)

    def read(self, place: Slot, index: int, elements: slice, *, pristine: bool = False) -> NDArray[np.uint8]:
        """The bytes of `elements` of an array, as of `view`, on the host. They start at a multiple of the alignment."""
        size = DTYPES[place.dtype].size
        begin, end, _ = elements.indices(math.prod(place.shape))
        return self.device.read(self._part(index, place.offset + begin * size, (end - begin) * size, pristine))

    def _part(self, index: int, offset: int, nbytes: int, pristine: bool) -> Any:
        if pristine:
            return self.device.view(self.variants[self._held[index]].image, offset, nbytes)
        return self.device.view(self._arena, index * self.set_bytes + offset, nbytes)

    @property
    def inputs(self) -> list[Slot]:
        """The places of the arrays that a launch reads."""
        return [place for place in self.places if place.argument.role != "out"]

    @property
    def outputs(self) -> list[Slot]:
        """The places of the arrays that a launch writes."""
        return [place for place in self.places if place.argument.role != "in"]

    def set_buffer(self, index: int, *, pristine: bool = False) -> Any:
        """All bytes of set `index`; `pristine`: as they were before any launch on them."""
        return self._part(index, 0, self.set_bytes, pristine)

    def before_and_after(self, index: int) -> tuple[Any, Any]:
        """All bytes of set `index` as they were before any launch on them, and as they are."""
        return self.set_buffer(index, pristine=True), self.set_buffer(index)

    def expected_buffer(self, index: int, name: str) -> Any:
        """The float64 results that belong to what set `index` holds, where a kernel can read them."""
        results = self.expected_of(index)[name]
        if self.device.xp is not np:
            return results
        memo = self.variants[self._held[index]].memo
        if ("buffer", name) not in memo:
            memo["buffer", name] = self.device.allocate(results.nbytes)
            self.device.write(memo["buffer", name], np.ascontiguousarray(results).view(np.uint8))
        return memo["buffer", name]

    def bind(self, candidate: Candidate, *, anew: bool = False) -> list[BoundLaunch] | Rejected:
        """The launches of `candidate` on each set, or why it cannot be launched. anew: its kernel is loaded by itself.
        Raises `DeviceError`."""
        found = loaded_kernel(self.device, self.task, candidate, self.workload, anew=anew)
        if not isinstance(found, tuple):
            return found
        return [BoundLaunch(*found, self.arguments(index)) for index in range(self.sets)]


def _factors(xp: Any, values: Any, place: Slot, rng: np.random.Generator, *, ties: bool) -> Any:
    """Factors that change each of `values` by about a rounding of its type; ties: equal ones alike."""
    if ties:
        # Multiplicative hashing (Knuth, The Art of Computer Programming, volume 3, section 6.4).
        bits = np.asarray(on_host(values), np.float64).view(np.uint64) ^ rng.integers(1 << 63, dtype=np.uint64)
        drawn = (bits * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(11)) * 2.0**-53
    else:
        drawn = rng.random(min(math.prod(place.shape), MAX_DRAWN_CHANGES))
    rounding = 2.0**-52 if DTYPES[place.dtype].size == 8 else FLOAT32_ROUNDING
    changes = np.where(drawn < 0.5, 1, -1) * (0.5 + 2 * drawn % 1) * rounding
    return 1 + xp.resize(xp.asarray(changes), place.shape)


def rounding_factor(dtypes: Collection[str], workload: Workload, kind: str) -> float:
    """How many times the change by a rounding of each input a result may be off. kind: of the device."""
    on_tensor_cores = kind == "gpu" and any(DTYPES[one].is_float and DTYPES[one].size <= 2 for one in dtypes)
    lost = max(workload.sizes.values(), default=1) / TRUNCATED_TERMS if on_tensor_cores else 0.0
    return max(ROUNDING_FACTOR, lost)


def loaded_kernel(
    device: Device, task: Task, candidate: Candidate, workload: Workload, *, anew: bool = False
) -> tuple[object, Geometry] | Rejected:
    """The kernel of `candidate` on `device` and its launch on `workload`, or why it cannot be launched. anew: see
    `bind`. Raises `DeviceError`."""
    artifact = candidate.artifacts[code_key(task, candidate.template, workload)]
    shape = geometry(candidate.template, candidate.config, workload)
    rejected = undeclared_state(candidate.template, artifact)
    rejected = rejected or compiler_rejection(device.limits, artifact.as_launched(shape), artifact.resources)
    if rejected is not None:
        return rejected
    load = partial(device.load, artifact)
    return load() if anew else kept(device, artifact.code_digest, load), shape
