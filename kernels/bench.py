"""A bench: one device, one task, and every candidate that is put on it to be checked and timed.

Owns a visit's order: restore, launch once, check, run the timed sequence once and check again, only then time. It runs
in the process that holds the device (a lane); deadlines and replacement are the pool's business.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tunesmith.hw.exclusive import exclusive
from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.roofline import Roofline
from tunesmith.hw.telemetry import Telemetry, open_telemetry
from tunesmith.kernels.backends import Artifact, Device, DeviceError, Launch, OutOfDeviceMemory, TimedSequence, open_device
from tunesmith.kernels.calibrate import measure_roofline
from tunesmith.kernels.check import check_set
from tunesmith.kernels.feasible import compiler_rejection
from tunesmith.kernels.outcome import LaunchFailed, Measured, Outcome, WrongResult
from tunesmith.kernels.parameter import Config
from tunesmith.kernels.specialise import geometry
from tunesmith.kernels.task import Task, Workload
from tunesmith.kernels.template import Template
from tunesmith.kernels.timing import Comparison, Precision, compare, interleaved, sample_until
from tunesmith.kernels.workload_data import WorkloadData

TypesKey = tuple[tuple[str, str], ...]
MEMORY_SHARE = 0.7
"""Share of the free device memory that workloads may take."""
SAMPLE_SECONDS = {"gpu": 2e-3, "cpu": 2e-2}
"""How long one timed sample should last: long against the clock's resolution and the start of a sequence."""


def types_key(workload: Workload) -> TypesKey:
    """What of a workload decides the machine code."""
    return tuple(sorted(workload.types.items()))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A configuration of a template, compiled: an artifact for each combination of types it is to run with."""

    template: Template
    config: Config
    artifacts: Mapping[TypesKey, Artifact] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Duel:
    """Candidates against the baseline on one workload, interleaved: a `Comparison` for each, or why not."""

    workload: str
    results: tuple[Comparison | Outcome, ...]


class Rotation:
    """A sampler: each call times the next `window` launches, over all sets in turn, and gives seconds per launch.

    Every set is used once before any is used again, so its data has left the last cache by then.
    """

    def __init__(self, device: Device, launches: Sequence[Launch], window: int) -> None:
        self._device, self._launches, self.window = device, launches, window
        self._segments: list[TimedSequence | None] = [None] * (len(launches) // window)
        self._next = 0

    def run_first(self) -> None:
        """Runs the first sample's launches once, untimed."""
        self._segment(0, warm=False).seconds()

    def __call__(self) -> float:
        position = self._next
        self._next = (position + 1) % len(self._segments)
        return self._segment(position, warm=True).seconds() / self.window

    def _segment(self, position: int, *, warm: bool) -> TimedSequence:
        segment = self._segments[position]
        if segment is None:
            start = position * self.window
            segment = self._segments[position] = self._device.sequence(self._launches[start : start + self.window])
            if warm:
                # The first run of a sequence brings it to the device; its time is not the kernel's.
                segment.seconds()
        return segment


@dataclass(frozen=True, slots=True)
class Checked:
    """A candidate that passed the check, ready to be timed, with its largest deviation per output."""

    rotation: Rotation
    errors: dict[str, float]


class Bench:
    """Holds a device for one task. `seed` decides the contents of all buffers."""

    def __init__(self, task: Task, limits: DeviceLimits, index: int = 0, *, seed: int = 0) -> None:
        self.task, self.limits, self.seed = task, limits, seed
        self.device: Device = open_device(limits, index)
        self._telemetry = open_telemetry(self.device.uuid if limits.backend == "cuda" else None)
        self._room = int(self.device.free_bytes() * MEMORY_SHARE)
        self._workloads: dict[str, WorkloadData] = {}

    def visit(self, candidate: Candidate, workloads: Sequence[str], precision: Precision) -> dict[str, Outcome]:
        """Checks and times `candidate` on each workload; after the first failure the rest is not tried."""
        outcomes: dict[str, Outcome] = {}
        for name in workloads:
            outcome = self._one(candidate, self.task.workload(name), precision)
            outcomes[name] = outcome
            if not isinstance(outcome, Measured):
                break
        return outcomes

    def prepare(self, workloads: Sequence[str]) -> None:
        """Makes the buffers of `workloads` ahead of visits, so that visits have short deadlines."""
        for name in workloads:
            with contextlib.suppress(OutOfDeviceMemory):  # the visit that needs it reports it as its outcome
                self._data(self.task.workload(name))

    def duel(
        self, baseline: Candidate, candidates: Sequence[Candidate], workload: str, *, rounds: int, budget_seconds: float
    ) -> Duel:
        """Re-checks all, then times baseline and candidates in random order, round by round."""
        with exclusive(self.device.uuid):
            try:
                data = self._data(self.task.workload(workload))
            except OutOfDeviceMemory as error:
                return Duel(workload, tuple(LaunchFailed(str(error)) for _ in candidates))
            entrants = [self._prepare(one, data) for one in (baseline, *candidates)]
            first = entrants[0]
            if not isinstance(first, Checked):
                return Duel(workload, tuple(first for _ in candidates))
            running = [one.rotation for one in entrants if isinstance(one, Checked)]
            data.restore()
            try:
                samples = interleaved(running, rounds=rounds, seed=self.seed, budget_seconds=budget_seconds * len(running))
            except DeviceError as error:
                return Duel(workload, tuple(LaunchFailed(str(error), sticky=error.sticky) for _ in candidates))
        timed = iter(samples[1:])
        return Duel(
            workload,
            tuple(
                compare(next(timed), samples[0], seed=self.seed) if isinstance(one, Checked) else one
                for one in entrants[1:]
            ),
        )

    def calibrate(self, probes: dict[str, Artifact]) -> Roofline:
        """The measured roofs of the device; `probes` are the kernels of `tunesmith.kernels.calibrate`, compiled."""
        with exclusive(self.device.uuid):
            return measure_roofline(self.device, probes)

    def _one(self, candidate: Candidate, workload: Workload, precision: Precision) -> Outcome:
        with exclusive(self.device.uuid):
            try:
                data = self._data(workload)
            except OutOfDeviceMemory as error:
                return LaunchFailed(str(error))
            checked = self._prepare(candidate, data)
            if not isinstance(checked, Checked):
                return checked
            try:
                before = self._telemetry.sample()
                estimate = sample_until(checked.rotation, precision)
                after = self._telemetry.sample()
            except DeviceError as error:
                return LaunchFailed(str(error), sticky=error.sticky)
        throttled = {
            reason for sample in (before, after) if isinstance(sample, Telemetry) for reason in sample.throttle_reasons or ()
        }
        return Measured(
            seconds=estimate.median,
            low=estimate.low,
            high=estimate.high,
            samples=estimate.samples,
            launches=checked.rotation.window,
            errors=checked.errors,
            throttled=tuple(sorted(throttled)),
        )

    def _prepare(self, candidate: Candidate, data: WorkloadData) -> Checked | Outcome:
        """Loads and checks `candidate`: one launch alone, then launches of the kind that will be timed."""
        device, workload = self.device, data.workload
        artifact = candidate.artifacts[types_key(workload)]
        shape = geometry(candidate.template, candidate.config, workload)
        if (rejected := compiler_rejection(self.limits, shape, artifact.resources)) is not None:
            return rejected
        try:
            kernel = device.load(artifact)
            launches = [Launch(kernel, shape, data.arguments(index)) for index in range(data.sets)]
            data.restore()
            device.launch(launches[0])
            device.synchronize()
            errors = check_set(data, 0)
            if isinstance(errors, WrongResult):
                return errors
            # The first launch pays for just-in-time work of the driver; the second tells how many fit a sample.
            started = time.perf_counter()
            device.launch(launches[0])
            device.synchronize()
            seconds = time.perf_counter() - started
            window = math.ceil(SAMPLE_SECONDS[self.limits.kind] / seconds)
            rotation = Rotation(device, launches, min(max(1, window), data.sets))
            # Launches that are timed are launches that were checked: the last of the first sample must be right too.
            data.restore()
            rotation.run_first()
            again = check_set(data, rotation.window - 1)
            if isinstance(again, WrongResult):
                return again
        except DeviceError as error:
            return LaunchFailed(str(error), sticky=error.sticky)
        return Checked(rotation, {name: max(value, again[name]) for name, value in errors.items()})

    def _data(self, workload: Workload) -> WorkloadData:
        """The workload's buffers; older workloads make room when memory is short."""
        if workload.name in self._workloads:
            self._workloads[workload.name] = self._workloads.pop(workload.name)
            return self._workloads[workload.name]
        while True:
            taken = sum(data.nbytes for data in self._workloads.values())
            try:
                data = WorkloadData(self.device, self.task, workload, seed=self.seed, max_bytes=self._room - taken)
            except OutOfDeviceMemory:
                if not self._workloads:
                    raise
                del self._workloads[next(iter(self._workloads))]
                continue
            self._workloads[workload.name] = data
            return data


def weighted_geomean(ratios: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """The weighted geometric mean of `ratios` by name: the objective of a general configuration."""
    total = sum(weights[name] for name in ratios)
    return math.exp(sum(weights[name] * math.log(ratio) for name, ratio in ratios.items()) / total)
