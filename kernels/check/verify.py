"""One step of the full verdict on a candidate: launches on drawn contents, repeated, on changed inputs, beside the
baseline, and with arrays at the edge of memory, where an access beyond an array faults.

Steps are planned by `tunesmith.kernels.check.plan`; each runs on one device, under a deadline that the caller keeps.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from tunesmith.hw.limits import DeviceLimits
from tunesmith.kernels.backends import BoundLaunch, Device, DeviceError, Edge, OutOfDeviceMemory
from tunesmith.kernels.build.artifact import Candidate
from tunesmith.kernels.build.source import code_key
from tunesmith.kernels.check.compare import (
    MAX_PLAIN_ERROR,
    Deviation,
    check_surroundings,
    differ,
    largest_error,
    measure_set,
)
from tunesmith.kernels.check.coverage import bind_marked
from tunesmith.kernels.check.plan import Step
from tunesmith.kernels.launch.buffers import WorkloadData
from tunesmith.kernels.launch.contents import COMPARABLE, EQUAL, HEAVY
from tunesmith.kernels.launch.reference import Prepared
from tunesmith.kernels.outcome import Rejected, WrongResult
from tunesmith.kernels.space import compiler_rejection, rules
from tunesmith.kernels.spec.expression import ExpressionError
from tunesmith.kernels.spec.task import Task, TaskError, Workload, geometry
from tunesmith.kernels.spec.template import BACKENDS, Config, Template

SETS = (2, 5)
"""Smallest and largest number of sets of buffers; the number is drawn for each step."""
ALIGNMENT, PAGE = 16, 4096
"""Bytes; arrays start at any multiple of the former that the device allows, or all of them with a page."""
PAGE_SHARE, CROSSING_SHARE = 1 / 8, 1 / 8
"""Share of the steps in which arrays start with a page, and in which one lies across a multiple of 4 GiB."""
REPEATS = 3
"""Launches on the same contents that are compared bit by bit."""
MANY_REPEATS = 24
"""The same, and in each step, for a kernel of which racecheck does not understand how its threads wait."""
DELAYED_LAUNCHES = 3
"""Launches of a marked twin, whose warps and blocks sleep, that are compared in a step."""
ACCURACY_FACTOR = 2.0
"""How many times the baseline's error a candidate's may be."""
HEAVY_FACTOR, HEAVY_LEAST = 8.0, 4.0
"""The same for the largest error on contents of which a few elements have it (`HEAVY`), and how many tolerances it may
be in any case, times the root of how much longer sizes are: where few terms make a sum, a tree of additions rounds
hardly, and one term after the other often."""
LONG_FACTOR = 16.0
"""The same on sizes beyond the task's own, as far as they are longer: sums on tensor cores, which cut bits off, lose in
proportion to their length, and sums of FMAs to its root, by twice which any kernel may err more there."""
ACCURACY_FREE = 0.25
"""Root mean square error, as a share of the tolerance, below which no comparison with the baseline is made."""
ACCURACY_ELEMENTS = 4096
"""Elements of an output below which the root mean square says little, as it comes of a few roundings."""
Measured = WrongResult | dict[str, Deviation]
Standard = tuple[Mapping[str, Deviation], ...]
"""The baseline's deviations per output, for each variant of the contents: a sum exact in one may round in another."""


@dataclass(frozen=True, slots=True)
class Passed:
    """A step that went well. accuracy, baseline: deviations per output of the candidate and of the baseline;
    deterministic: repeated launches agree in every bit; derived: on a workload that was made up."""

    step: str
    accuracy: dict[str, Deviation]
    baseline: dict[str, Deviation]
    deterministic: bool
    derived: bool = False

    @property
    def own(self) -> bool:
        """Whether it was a workload of the task's with the task's own contents, for which its tolerance is meant."""
        return self.step.endswith(", task") and not self.derived


SkipReason = Literal["template", "plain kernel", "reference", "memory", "time"]
"""The reason why a step was left out: the template excludes it; the plain kernel is not right there, or too slow; the
reference fails, or meets an arithmetic error of its own; the device has too little memory; no time was left."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A step that says nothing about the candidate, and why. sticky: the process can no longer use the device."""

    step: str
    why: str
    sticky: bool = False
    reason: SkipReason = "plain kernel"


def infeasible_on(template: Template, config: Config, workload: Workload, limits: DeviceLimits) -> Rejected | None:
    """The first rule that `config` breaks on `workload`, or None."""
    try:
        shape = geometry(template, config, workload)
        if min(*shape.grid, *shape.block) < 1:
            detail = f"the launch of {workload.name} is empty: its grid is {shape.grid}, its block {shape.block}"
            return Rejected("infeasible", "launch", detail)
        for rule in rules(template, [workload], limits):
            if not rule.holds(config):
                return Rejected("infeasible", rule.label, rule.explain(config))
    except ExpressionError as error:
        return Rejected("infeasible", "expression", str(error))
    return None


def unlaunchable(candidate: Candidate, task: Task, workload: Workload, limits: DeviceLimits) -> Rejected | None:
    """Why `candidate` cannot be launched on `workload`, as far as that shows without the device, or None."""
    broken = infeasible_on(candidate.template, candidate.config, workload, limits)
    if broken is None:
        artifact = candidate.artifacts[code_key(task, candidate.template, workload)]
        shape = geometry(candidate.template, candidate.config, workload)
        broken = compiler_rejection(limits, artifact.as_launched(shape), artifact.resources)
    if broken is None:
        return None
    return replace(broken, detail=f"it cannot be launched on the workload {workload.name}: {broken.detail}")


def excluded(
    task: Task, candidate: Candidate, baseline: Candidate, step: Step, limits: DeviceLimits
) -> Skipped | Rejected | None:
    """Why `candidate` is not run in this step, or None: a derived workload that the baseline or the template is not
    meant for is skipped, one of the task's own that the template excludes is a rejection."""
    # Of Triton each class of sizes is machine code of its own, with needs that no constraint foresees.
    by_code = step.derived and BACKENDS[limits.backend].python
    if step.derived and code_key(task, baseline.template, step.workload) not in baseline.artifacts:
        why = "the plain kernel cannot be compiled for it, or not in time"
        return Skipped(step.name, why, reason="time" if by_code else "plain kernel")
    if step.derived and code_key(task, candidate.template, step.workload) not in candidate.artifacts:
        return Skipped(step.name, "the candidate's machine code for it took too long to compile", reason="time")
    plain, rejection = (
        unlaunchable(one, task, step.workload, limits)
        if by_code
        else infeasible_on(one.template, one.config, step.workload, limits)
        for one in (baseline, candidate)
    )
    if step.derived and plain is not None:
        return Skipped(step.name, f"the plain kernel cannot be launched there: {plain.detail}")
    if rejection is not None and step.derived:
        return Skipped(step.name, f"the template excludes it: {rejection.detail}", reason="template")
    return rejection


def prepare_step(
    device: Device, task: Task, step: Step, *, max_bytes: int, prepared: Prepared | None = None
) -> WorkloadData | Skipped:
    """The buffers of a step and the reference's results for them. prepared: contents that were made before; without
    them the user's code runs here. Raises `TaskError`."""
    try:
        return WorkloadData(
            device,
            task,
            step.workload,
            seed=step.contents.seed,
            max_bytes=max_bytes,
            contents=step.contents,
            max_sets=int(np.random.default_rng().integers(SETS[0], SETS[1] + 1)),
            alignment=PAGE if np.random.default_rng().random() < PAGE_SHARE else ALIGNMENT,
            prepared=prepared,
            crossing=bool(np.random.default_rng().random() < CROSSING_SHARE),
        )
    except OutOfDeviceMemory as error:
        return Skipped(step.name, str(error), reason="memory")
    except TaskError as error:
        if step.own:
            raise
        return Skipped(step.name, str(error), reason="reference")


def verify(candidate: Candidate, plain: Standard, step: Step, data: WorkloadData) -> Passed | WrongResult | Rejected:
    """One step of the full verdict, on what `prepare_step` made. plain: the result of `measure_baseline`. Raises
    `DeviceError`."""
    launches = data.bind(candidate)
    if not isinstance(launches, list):
        return launches
    artifact = candidate.artifacts[code_key(data.task, candidate.template, step.workload)]
    before = data.device.constants(launches[0].kernel, artifact)
    repeats = MANY_REPEATS if artifact.unfollowed else REPEATS
    found = _StepLaunches(launches, data, step, plain, repeats).verdict()
    if data.device.constants(launches[0].kernel, artifact) == before:
        return found
    detail = "it writes to a variable in constant memory, by which one launch could tell the next something"
    return Rejected("device_state", "constant memory", f"on {step.name}: {detail}")


def measure_baseline(baseline: Candidate, step: Step, data: WorkloadData) -> Standard | Skipped:
    """The baseline's own deviations, where it is right or only inexact. Raises `TaskError`."""
    sticky = False
    try:
        outside = infeasible_on(baseline.template, baseline.config, step.workload, data.device.limits)
        if outside is None and not step.own and (beyond := data.beyond_type()):
            return Skipped(step.name, beyond, reason="reference")
        found = _deviations(baseline, step, data) if outside is None else outside.detail
        if not isinstance(found, str):
            return found
    except DeviceError as error:
        found, sticky = str(error), error.sticky
    if step.own:
        fault = "ends the device's context" if sticky else "is not right"
        raise TaskError(f"Task {data.task.name}: its baseline {fault} on {step.name}: {found}.")
    return Skipped(step.name, f"the plain kernel is not right there: {found}", sticky)


def _deviations(baseline: Candidate, step: Step, data: WorkloadData) -> Standard | str:
    """The baseline's deviations on each variant of the contents, or why it is not right. Raises `DeviceError`."""
    launches = data.bind(baseline)
    if not isinstance(launches, list):
        return str(launches)
    allowed = {
        one.argument.name: largest_error(data.task, one.dtype) if step.own else MAX_PLAIN_ERROR for one in data.outputs
    }
    standard = []
    if step.derived:
        data.restore()
    for variant in range(len(data.variants)):
        _launch(data, launches[0], 0, variant)
        if step.derived and (wrong := check_surroundings(data, {0})) is not None:
            return wrong.detail
        found = measure_set(data, 0, allowed, lenient=_lenient(data.task, step))
        if isinstance(found, WrongResult):
            return found.detail
        if not all(one.largest < math.inf for one in found.values()):
            return "an infinite error"
        standard.append(found)
    return tuple(standard)


def _lenient(task: Task, step: Step) -> bool:
    """Whether nobody chose a tolerance for the contents of a step."""
    return not step.own or not task.tolerance


def wrong_when_delayed(twin: Candidate, plain: Standard, step: Step, data: WorkloadData) -> WrongResult | None:
    """The first wrong result of a marked twin, some of whose warps and blocks sleep. plain: the result of
    `measure_baseline`. Raises `DeviceError`."""
    launch, _ = bind_marked(twin, data)
    allowed = allowed_errors(data.task, step, plain, growth(data.task, step.workload))
    for number in range(DELAYED_LAUNCHES):
        # What an earlier launch left in a variable shows where it belongs to other contents.
        variant = number % len(data.variants)
        _launch(data, launch, 0, variant)
        found = measure_set(data, 0, allowed[variant], lenient=_lenient(data.task, step))
        if isinstance(found, WrongResult):
            return found
    return None


def time_baseline(baseline: Candidate, step: Step, data: WorkloadData) -> float:
    """Seconds of a launch, whose result nobody looks at; 0 where there is none. Raises `DeviceError`."""
    if infeasible_on(baseline.template, baseline.config, step.workload, data.device.limits) is not None:
        return 0.0
    launches = data.bind(baseline)
    if not isinstance(launches, list):
        return 0.0
    data.restore_set(0, 0)
    begun = time.monotonic()
    _launch(data, launches[0])
    return time.monotonic() - begun


def _launch(data: WorkloadData, launch: BoundLaunch, index: int = 0, variant: int | None = None) -> None:
    """One launch to its end, on set `index` as before any launch where a `variant` is given. Shared and thread-local
    memory hold what no kernel computes."""
    if variant is not None:
        data.restore_set(index, variant)
    data.device.pollute()
    data.device.launch(launch)
    data.device.synchronize()


class _StepLaunches:
    """The launches of one step. Their set and their order are drawn."""

    def __init__(
        self, launches: Sequence[BoundLaunch], data: WorkloadData, step: Step, standard: Standard, repeats: int
    ) -> None:
        self._launches, self._data, self._step, self._standard = launches, data, step, standard
        self._repeats = repeats
        self._growth = growth(data.task, step.workload)
        self._rng = np.random.default_rng([data.layout_seed, len(launches)])
        self._allowed = allowed_errors(data.task, step, standard, self._growth)
        self._index = int(self._rng.integers(data.sets))
        self._first: dict[str, Deviation] = {}
        self._deterministic = True

    def verdict(self) -> Passed | WrongResult:
        """Passed, or the first error that a check finds."""
        self._data.restore()
        beside = self._beside = dict(self._standard[self._data.held(self._index)])
        _launch(self._data, self._launches[self._index])
        for name in self._order():
            if isinstance(wrong := CHECKS[name](self), WrongResult):
                return replace(wrong, detail=f"on {self._step.name}: {wrong.detail}")
        return Passed(self._step.name, self._first, beside, self._deterministic, self._step.derived)

    def _order(self) -> list[str]:
        first, later, last = ["result", "surroundings", "accuracy"], ["stale", "other_set"], ["surroundings_at_the_end"]
        self._rng.shuffle(later)
        if not self._step.derived or self._repeats > REPEATS:
            first.append("repeats")
        if self._step.derived and self._rng.random() >= 0.25:
            # There are hundreds of these steps; one in four launches on another set too.
            later.remove("other_set")
        return [name for name in first + later + last if name in CHECKS]

    def result(self) -> Measured:
        """The first launch against the reference, and the other contents of its set."""
        if not isinstance(found := self._measure(self._index), WrongResult):
            self._first = found
        return found

    def surroundings(self) -> WrongResult | None:
        """All that the first launch must leave alone, the other sets among it."""
        return check_surroundings(self._data, {self._index})

    def accuracy(self) -> WrongResult | None:
        """The first launch's error beside the baseline's, on contents where that says something."""
        if not self._step.contents.kinds <= COMPARABLE:
            return None
        elements = {place.argument.name: math.prod(place.shape) for place in self._data.places}
        # On few rows, as made-up sizes may have, one unlucky sum decides the mean.
        free = ACCURACY_FREE * (1 if self._step.own else 2 * self._growth)
        return less_accurate(self._first, self._beside, elements, free)

    def repeats(self) -> WrongResult | None:
        """Further launches on the same contents: the first wrong one, and whether all give the same bits."""
        data, index = self._data, self._index
        bits = data.device.allocate(data.set_bytes)
        data.device.copy(bits, data.set_buffer(index))
        for _ in range(self._repeats - 1):
            self._launch_anew(index)
            if not differ(data.device, data.set_buffer(index), bits, [(0, data.set_bytes)]):
                continue
            self._deterministic = False
            if isinstance(again := self._measure(index), WrongResult):
                return replace(again, reason="nondeterministic", detail=f"another launch was right, but {again.detail}")
        return None

    def stale(self) -> Measured | None:
        """A launch on other inputs, while the outputs, of an earlier launch, are right ones of other inputs."""
        data, index = self._data, self._index
        if not data.exchange_inputs(index):
            return None
        _launch(data, self._launches[index])
        if not isinstance(changed := self._measure(index), WrongResult):
            return None
        # On fresh buffers with the same contents: are these inputs the cause, or the outputs left from before?
        self._launch_anew(index)
        if isinstance(fresh := self._measure(index), WrongResult):
            return fresh
        if changed.reason not in ("mismatch", "unwritten"):
            return changed
        return replace(changed, reason="stale_output", detail=f"after the inputs had changed, {changed.detail}")

    def other_set(self) -> Measured | None:
        """A launch on another set, at other addresses."""
        other = (self._index + 1) % self._data.sets
        if other == self._index:
            return None
        self._launch_anew(other)
        return self._measure(other)

    def surroundings_at_the_end(self) -> WrongResult | None:
        """The memory that no launch may change, after all launches."""
        return check_surroundings(self._data, set(range(self._data.sets)))

    def _launch_anew(self, index: int) -> None:
        _launch(self._data, self._launches[index], index, self._data.held(index))

    def _measure(self, index: int) -> Measured:
        return measure_set(
            self._data, index, self._allowed[self._data.held(index)], lenient=_lenient(self._data.task, self._step)
        )


_CHECKS = ("result", "surroundings", "accuracy", "repeats", "stale", "other_set", "surroundings_at_the_end")
CHECKS: dict[str, Callable[[_StepLaunches], Measured | None]] = {name: getattr(_StepLaunches, name) for name in _CHECKS}
"""The checks of a step by name; a test has for each a kernel that no other check rejects."""


def growth(task: Task, workload: Workload) -> float:
    """How many times longer than in any workload of the task its longest size is, at least 1. The error of a sum grows
    with its length, up to in proportion (Higham, Accuracy and Stability of Numerical Algorithms, section 4.2), and the
    task's tolerance is meant for its own sizes."""
    longest = {name: max(one.sizes[name] for one in task.workloads) for name in workload.sizes}
    return max([1.0, *(size / longest[name] for name, size in workload.sizes.items())])


def allowed_errors(task: Task, step: Step, standard: Standard, grown: float) -> list[dict[str, float]]:
    """The largest deviation of each output that is accepted, for each variant: the task's tolerance is meant for its
    own workloads; on others, and where the task says none that its baseline keeps to, the baseline's error is the
    measure. grown: see `growth`."""
    heavy = bool(step.contents.kinds & HEAVY)
    factor, least = (HEAVY_FACTOR, HEAVY_LEAST * math.sqrt(grown)) if heavy else (ACCURACY_FACTOR, 1.0)

    def allowed(name: str, error: float) -> float:
        if step.own and error <= 1:
            return 1.0
        in_order = _error_in_order(task, name, step.workload) if step.contents.kinds & EQUAL else 0.0
        return max(least, in_order, min(grown, 2 * math.sqrt(grown)), factor * error, min(grown, LONG_FACTOR * error))

    return [{name: allowed(name, one.largest) for name, one in of_variant.items()} for of_variant in standard]


def _error_in_order(task: Task, output: str, workload: Workload) -> float:
    """The error of a sum of as many equal terms as the longest size, one after the other, in tolerances of `output`:
    each addition may round the same way, by half a unit in the last place (Higham, section 4.2)."""
    argument = next(one for one in task.outputs if one.name == output)
    dtype = task.dtype_of(argument, workload)
    tolerance, unit = task.tolerance_of(dtype, output), 2.0**-53 if dtype == "float64" else 2.0**-24
    return max(workload.sizes.values(), default=1) * unit / tolerance.rtol if tolerance.rtol else 0.0


def less_accurate(
    found: Mapping[str, Deviation],
    standard: Mapping[str, Deviation],
    elements: Mapping[str, int],
    free: float = ACCURACY_FREE,
) -> WrongResult | None:
    """Whether an output, of so many `elements`, is materially less accurate than the baseline's, and than `free`."""
    for name, one in found.items():
        bound = max(free, ACCURACY_FACTOR * standard[name].rms)
        if one.rms > bound and elements[name] >= ACCURACY_ELEMENTS:
            detail = (
                f"the root mean square error of {name} is {one.rms:.3g} of its tolerance, the baseline's "
                f"{standard[name].rms:.3g}; at most {bound:.3g} is accepted"
            )
            return WrongResult("less_accurate", name, detail)
    return None


def launch_at_edges(candidate: Candidate, arrays: Collection[str], edge: Edge, data: WorkloadData) -> bool | Skipped:
    """One launch of `candidate` on set 0 with the arguments `arrays` at the edge of memory, and nothing else that can
    be reached from them; other arrays lie as in every step. False where the device has no such memory. Raises
    `DeviceError` where the launch fails; on a CPU the process dies."""
    launches = data.bind(candidate)
    if not isinstance(launches, list):
        return False
    data.restore_set(0, 0)
    places = [place for place in data.places if place.argument.name in arrays]
    try:
        moved = {place.argument.name: data.device.copy_at_edge(data.view(place, 0), edge) for place in places}
    except OutOfDeviceMemory as error:
        return Skipped(f"{data.workload.name}, {data.contents.name}", str(error))
    if any(copied is None for copied in moved.values()):
        return False
    given = zip(data.task.arguments, launches[0].arguments, strict=True)
    arguments = tuple(moved.get(argument.name, own) for argument, own in given)
    _launch(data, replace(launches[0], arguments=arguments))
    return True
