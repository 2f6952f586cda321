"""One launch on arrays of more than 2^31 or 2^32 elements or 4 GiB, where an index or an offset of 32 bits overflows.

No reference computes that much within a verdict. The contents repeat along one size instead, so that a kernel that
treats everything along it alike repeats the results that the reference has for the first period. Where the plain kernel
does not, as in a scan or a stencil, or overflows itself, nothing is learnt of the candidate.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import operator
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.limits import DeviceLimits
from tunesmith.kernels.backends import BoundLaunch, DeviceError, OutOfDeviceMemory
from tunesmith.kernels.build.artifact import Candidate
from tunesmith.kernels.build.source import code_key
from tunesmith.kernels.check.compare import CHUNK, Deviation, deviation
from tunesmith.kernels.check.plan import Shapes, Step, allows, array_bytes, resized
from tunesmith.kernels.check.verify import Passed, Skipped, allowed_errors, growth, infeasible_on, time_baseline
from tunesmith.kernels.launch.buffers import Slot, WorkloadData, loaded_kernel
from tunesmith.kernels.launch.contents import Contents
from tunesmith.kernels.launch.reference import passed_scalars
from tunesmith.kernels.outcome import LaunchFailed, Outcome, WrongResult, describe, versus
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.expression import parse
from tunesmith.kernels.spec.task import ORDERED, Argument, Task, Workload

ELEMENTS, BYTES = 2**31, 2**32
MARGIN = 1.03
"""Largest length of the array that a step is made for, as a multiple of these."""
REPEATS = range(64, (1 << 13) + 1)
"""Of the period: fewer leave too much to the reference, and of shorter periods a launch takes longer than its work."""
MAX_FLOPS, MAX_SECONDS, TIMED = 1e12, 3.0, 5
"""Of a launch; the seconds are the plain kernel's for a period, by the least of so many times, times the periods."""
MAX_STEPS, DRAWS, CHOICES = 2, 16, 4
"""Steps, sets of sizes drawn for each, and fitting sets of which the longest is taken."""
BITS = (14, 24)
"""Of the size of a period that is repeated: longer ones are for arrays of one size."""
FREE_SHARE = 0.75
"""Of the free memory, which others may need, too."""
SEED = 15_485_863


@dataclass(frozen=True, slots=True)
class FarStep:
    """period: the step whose contents and results repeat; workload: the same with `repeats` times one of its sizes."""

    period: Step
    workload: Workload
    repeats: int


def far_steps(task: Task, limits: DeviceLimits, seed: int) -> list[FarStep]:
    """Steps in which the arrays that can be so long are, with arrays of at most half of the device's memory."""
    own, rng, made = task.workloads_for(limits.kind), np.random.default_rng([seed, SEED]), list[FarStep]()
    reached, most = set[str](), (limits.memory_bytes or 0) / 2
    if limits.kind != "gpu" or not own or most < BYTES:
        return []
    shapes, plain = Shapes(task, limits, min(own, key=task.bytes_of), seed), task.sources(limits.backend).baseline
    for argument in task.arrays:
        names = dict.fromkeys(name for text in argument.shape for name in parse(text).names if name in shapes.extents)
        every = itertools.product(BITS, names, range(DRAWS))
        drawn = (_drawn(shapes, argument, name, most, rng, bits) for bits, name, _ in every)
        fitting = (one for one in drawn if one and not infeasible_on(plain.template, {}, one.workload, limits))
        if argument.name in reached or len(made) == MAX_STEPS:
            continue
        some = [(math.prod(task.shape_of(argument, one.workload)), one) for one in itertools.islice(fitting, CHOICES)]
        if some:
            found = max(some, key=operator.itemgetter(0))[1]
            made.append(found)
            reached |= {one.name for one in task.arrays if _is_far(task, one, found.workload)}
    return made


def _is_far(task: Task, argument: Argument, workload: Workload) -> bool:
    count, size = math.prod(task.shape_of(argument, workload)), DTYPES[task.dtype_of(argument, workload)].size
    return count > ELEMENTS or count * size > BYTES


def _drawn(
    shapes: Shapes, argument: Argument, name: str, most: float, rng: np.random.Generator, bits: int
) -> FarStep | None:
    """A step in which the size `name`, of about `bits` bits at most in the period, makes `argument` so long; None where
    the drawn sizes do not allow it."""
    task, types = shapes.task, shapes.types[int(rng.integers(len(shapes.types)))]
    if types not in [one.types for one in shapes.own]:
        return None
    # No period divides 2^32: an index that wraps around would find the same contents again.
    if (sizes := shapes.drawn(rng, types, fixed={name: 3 << int(rng.integers(bits))})) is None:
        return None
    period = resized(shapes.like, sizes, types, "a period")
    # Beyond the offsets of 32 bits, with a sign or without; a count of 31 bits may end before.
    of_bytes = BYTES // DTYPES[task.dtype_of(argument, period)].size
    for goal in (2 * ELEMENTS, ELEMENTS, 15 * ELEMENTS // 16, of_bytes):
        with contextlib.suppress(TunesmithError):  # a size or a scalar that the task cannot have
            repeats = math.ceil(goal * rng.uniform(1, MARGIN) / math.prod(task.shape_of(argument, period)))
            far = resized(period, {**sizes, name: repeats * sizes[name]}, types, "far")
            fits = array_bytes(task, far) <= most and task.flops_of(far) <= MAX_FLOPS and repeats in REPEATS
            if fits and allows(task, far) and _is_far(task, argument, far) and _repeats(task, period, far, repeats):
                passed_scalars(task, far, {})
                return FarStep(Step(period, Contents(seed=shapes.seed), derived=True), far, repeats)
    return None


def _repeats(task: Task, period: Workload, far: Workload, repeats: int) -> bool:
    """Whether each array is that of `period`, as it is or repeated along one axis, as all results are, or none where
    indices choose elements of a repeated array."""
    results, chosen = set[bool](), False
    for argument in task.arrays:
        short, long = task.shape_of(argument, period), task.shape_of(argument, far)
        grown = [after / before for before, after in zip(short, long, strict=True) if after != before]
        if grown not in ([], [repeats]) or (grown and argument.fill.kind in ORDERED):
            return False
        if argument.role != "in":
            results.add(bool(grown))
        chosen = chosen or (not grown and _indices_of(task, argument, period, far) > 0)
    return results == {True} or (results == {False} and chosen)


def _indices_of(task: Task, argument: Argument, period: Workload, far: Workload) -> int:
    """How many numbers an array of indices may hold in `period`, where it may hold more in `far`; 0 where not."""
    may_choose = argument.role == "in" and argument.fill.high is not None and argument.fill.kind not in ORDERED
    if not may_choose or any(DTYPES[dtype].is_float for dtype in task.dtypes_of(argument)):
        return 0
    before, after = (1 + one.mean + one.scale for one in map(argument.fill.at, (period, far)))
    return round(before) if after > before else 0


def launch_far(
    candidate: Candidate, baseline: Candidate, far: FarStep, data: WorkloadData
) -> Passed | Skipped | Outcome:
    """One launch of the baseline and one of the candidate. data: of the period."""
    try:
        return _launched_far(candidate, baseline, far, data)
    finally:
        data.device.trim()


def _launched_far(
    candidate: Candidate, baseline: Candidate, far: FarStep, data: WorkloadData
) -> Passed | Skipped | Outcome:
    task, name, standard = data.task, far.workload.name, dict[str, Deviation]()
    # The least of several, as the first one loads the kernel, and others may use the device.
    plain = min(time_baseline(baseline, far.period, data) for _ in range(TIMED))
    seconds = far.repeats * (plain - min(_time_nothing(data) for _ in range(TIMED)))
    if seconds > MAX_SECONDS:
        return Skipped(name, f"a launch of the plain kernel takes {seconds:.2g} s", reason="time")
    needed = array_bytes(task, far.workload)
    if needed > FREE_SHARE * data.device.free_bytes():
        return Skipped(name, f"its arrays of {needed / 2**30:.0f} GiB leave too little to others", reason="memory")
    try:
        arrays = _Arrays(data, far)
    except OutOfDeviceMemory as error:
        return Skipped(name, str(error), reason="memory")
    for kernel in (baseline, candidate):
        plain = kernel is baseline
        outside = infeasible_on(kernel.template, kernel.config, far.workload, data.device.limits)
        if outside is not None or code_key(task, kernel.template, far.workload) not in kernel.artifacts:
            why = outside.detail if outside is not None else "no machine code was compiled for it"
            return Skipped(name, why, reason="plain kernel" if plain else "template")
        allowed = {} if plain else allowed_errors(task, far.period, (standard,), growth(task, far.period.workload))[0]
        try:
            found = arrays.launch(kernel, allowed)
        except DeviceError as error:
            found = LaunchFailed(f"on {name}: {error}", sticky=error.sticky)
        if isinstance(found, dict):
            beside, standard = standard, found
        elif plain:
            sticky = isinstance(found, LaunchFailed) and found.sticky
            return Skipped(name, f"the plain kernel is not right there: {describe(found)}", sticky)
        else:
            return found
    return Passed(name, standard, beside, deterministic=True, derived=True)


def _time_nothing(data: WorkloadData) -> float:
    """Seconds that a launch takes beside its kernel's."""
    begun = time.monotonic()
    data.device.pollute()
    data.device.synchronize()
    return time.monotonic() - begun


class _Arrays:
    """The arrays of a far step on the device. Raises `OutOfDeviceMemory`."""

    def __init__(self, data: WorkloadData, far: FarStep) -> None:
        self._data, self._far = data, far
        self._buffers = {
            place.argument.name: data.device.allocate(
                math.prod(data.task.shape_of(place.argument, far.workload)) * DTYPES[place.dtype].size
            )
            for place in data.places
        }
        self._values = {**passed_scalars(data.task, far.workload, {}), **self._buffers}
        data.restore_set(0, 0)

    def launch(self, kernel: Candidate, allowed: Mapping[str, float]) -> dict[str, Deviation] | Outcome:
        """The deviations of the outputs after one launch, or the first error. allowed: see `measure_set`. Raises
        `DeviceError`."""
        data, workload = self._data, self._far.workload
        found = loaded_kernel(data.device, data.task, kernel, workload)
        if not isinstance(found, tuple):
            return found
        for place in data.places:
            self._restore(place)
        data.device.pollute()
        data.device.launch(BoundLaunch(*found, tuple(self._values[one.name] for one in data.task.arguments)))
        data.device.synchronize()
        deviations = {}
        for place in data.outputs:
            measured = self._measured(place, allowed.get(place.argument.name, 1.0))
            if isinstance(measured, WrongResult):
                return measured
            deviations[place.argument.name] = measured
        return deviations

    def _restore(self, place: Slot) -> None:
        """Every period of an array holds what the first one holds before a launch, poison in an output."""
        device, buffer = self._data.device, self._buffers[place.argument.name]
        short, whole = device.array(self._data.view(place, 0), place.dtype), device.array(buffer, place.dtype)
        outer, repeats = self._axes(place)
        count = _indices_of(self._data.task, place.argument, self._far.period.workload, self._far.workload)
        if repeats == 1 and count:
            # Each index chooses the same element of any period. Every second one chooses the last period, as only that
            # is certain to lie beyond 32 bits.
            periods = np.random.default_rng(SEED).integers(self._far.repeats, size=short.size)
            periods[::2] = self._far.repeats - 1
            short = short + device.xp.asarray((count * periods).astype(short.dtype))
        whole.reshape(outer, repeats, -1)[...] = short.reshape(outer, 1, -1)
        if device.xp is np:  # where the array is a copy
            device.write(buffer, whole.view(np.uint8))

    def _measured(self, place: Slot, allowed: float) -> WrongResult | Deviation:
        data, name, dtype = self._data, place.argument.name, DTYPES[place.dtype]
        outer, repeats = self._axes(place)
        got = data.device.array(self._buffers[name], place.dtype).reshape(outer, repeats, -1)
        expected, tolerance = data.expected_of(0)[name].reshape(outer, 1, -1), data.task.tolerance_of(place.dtype, name)
        worst, at_once = 0.0, max(1, CHUNK // expected.size)
        for start in range(0, repeats, at_once):
            values = dtype.to_float64(data.device.xp, got[:, start : start + at_once])
            shares = deviation(data.device.xp, values, expected, tolerance, dtype.overflow)
            largest = float(shares.max())
            if not largest <= allowed:
                row, period, column = (int(one) for one in np.unravel_index(int(shares.argmax()), shares.shape))
                at = (row * repeats + start + period) * got.shape[2] + column
                differs = versus(float(values[row, period, column]), float(expected[row, 0, column]))
                return WrongResult(
                    "mismatch", name, f"on {self._far.workload.name}: element {at} of {name} is {differs}"
                )
            worst = max(worst, largest)
        return Deviation(worst, 0.0)

    def _axes(self, place: Slot) -> tuple[int, int]:
        """The elements before the axis along which an array is repeated, and how often it is."""
        long = self._data.task.shape_of(place.argument, self._far.workload)
        axis = next((at for at, pair in enumerate(zip(place.shape, long, strict=True)) if pair[0] != pair[1]), None)
        return (1, 1) if axis is None else (math.prod(long[:axis]), self._far.repeats)
