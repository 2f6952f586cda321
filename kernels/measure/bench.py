"""Does the device still run as fast as before? One kernel, re-timed now and then, tells.

The first candidate a process measures is kept as the reference. Its time now over its time then is written beside
later measurements, so that a device that slowed down half-way is seen and not taken for slow kernels.

Times that are not the kernel's with a cold cache, measured apart so that they are never taken for it.
A bench: one device, one task, and every candidate that is put on it to be checked and timed.
"""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.roofline import Roofline
from tunesmith.hw.telemetry import Telemetry, harmful, open_telemetry
from tunesmith.kernels.backends import Device, DeviceError, OutOfDeviceMemory, open_device
from tunesmith.kernels.build.artifact import Artifact, Candidate
from tunesmith.kernels.check.compare import warm_up
from tunesmith.kernels.check.trial import Checked, load_again, prepare, recheck
from tunesmith.kernels.launch.buffers import WorkloadData
from tunesmith.kernels.launch.rotation import Rotation
from tunesmith.kernels.measure.energy import BATCH_SECONDS, measure_energy
from tunesmith.kernels.measure.opponents import Encounter, KernelRival, Ready, Rival, forget_compiled, prepare_opponent
from tunesmith.kernels.measure.roofs import measure_roofline
from tunesmith.kernels.measure.timing import (
    FEWEST_SAMPLES,
    Comparison,
    Estimate,
    Precision,
    Samples,
    compare,
    estimate,
    interleaved,
    sample_until,
)
from tunesmith.kernels.outcome import Energy, Implausible, LaunchFailed, Measured, Outcome, WrongResult, describe
from tunesmith.kernels.spec.task import Task, Workload
from tunesmith.kernels.spec.template import BACKENDS

EVERY = 16
"""Measurements between two timings of the reference."""
SAMPLES = 5


class DriftMonitor:
    """The reference of one process. `ratio` is its latest time over its first; None before it was timed again."""

    def __init__(self, every: int = EVERY) -> None:
        self._every, self._since = every, 0
        self._sampler: Callable[[], float] | None = None
        self._first: Estimate | None = None
        self.workload = ""
        self.ratio: float | None = None

    def keep(self, workload: str, sampler: Callable[[], float], first: Estimate) -> None:
        """Makes `sampler` the reference if there is none; `workload` names the buffers it runs on."""
        if self._sampler is None:
            self.workload, self._sampler, self._first, self._since = workload, sampler, first, 0

    def forget(self, workload: str) -> None:
        """The buffers of `workload` are gone, and with them a reference that runs on them and its ratio."""
        if workload == self.workload:
            self._sampler, self._first, self.workload, self.ratio = None, None, "", None

    def tick(self) -> float | None:
        """To be called before each measurement: times the reference when it is due, and gives `ratio`."""
        self._since += 1
        if self._sampler is not None and self._first is not None and self._since > self._every:
            self._since = 0
            self.ratio = estimate([self._sampler() for _ in range(SAMPLES)]).median / self._first.median
        return self.ratio


WARM_LAUNCHES = 16
CALLS = 64
PRECISION = Precision(target=0.01, min_samples=FEWEST_SAMPLES, max_samples=50, budget_seconds=0.3)


@dataclass(frozen=True, slots=True)
class Modes:
    """Seconds a launch. warm: the same buffers again and again, as far as they fit in the last cache; call_to_call:
    calls from the host one after the other on all sets in turn, launch overhead included, by the host's clock."""

    warm: Estimate
    call_to_call: Estimate


def measure_modes(device: Device, checked: Checked, data: WorkloadData) -> Modes:
    """Both modes of a checked candidate. In-place kernels work on what they wrote before. Raises `DeviceError`."""
    data.restore()
    sequence = device.sequence([checked.launches[0]] * WARM_LAUNCHES)
    sequence.seconds()
    warm = sample_until(lambda count: [one / WARM_LAUNCHES for one in device.times([sequence] * count)], PRECISION)
    data.restore()

    def calls(_: int = 1) -> list[float]:
        device.synchronize()
        started = time.perf_counter()
        for number in range(CALLS):
            device.launch(checked.launches[number % len(checked.launches)])
        device.synchronize()
        return [(time.perf_counter() - started) / CALLS]

    calls()
    return Modes(warm, sample_until(calls, PRECISION))


MEMORY_SHARE = 0.7
"""Share of the free device memory that workloads may take."""
TARGET = 0.005
"""Half-width of a comparison's interval at which it ends, as a share of the ratio."""
FLOOR_MARGIN = {"gpu": 0.9, "cpu": 0.5}
"""Share of a floor that a time may fall to: a kernel that mostly reads is faster than the copies that roofs are from. A
processor's memory is shared with other programs, and what they took while roofs were measured makes floors too high.
"""
ASKS_TO_KEEP = re.compile(r"\bevict_last\b|access_property")
"""How a CUDA source asks the last cache to keep lines for longer than others: in PTX, or in CUDA's own functions."""
REPEATS = 2
"""How often a measurement under throttling is repeated before it is kept and marked."""
COMPARISON_SAMPLE_FACTOR = 13
"""How many times longer the samples of a comparison are than those of a search: about 2 ms with CUDA."""


@dataclass(frozen=True, slots=True)
class WorkloadComparison:
    """Candidates against the baseline on one workload, interleaved: a `Comparison` for each, or why not.

    opponents: how those that were asked for did. energies: of a launch of the baseline, then of each candidate; None
    for one that failed, and no entry at all where nobody asked.
    codes: the digest of the machine code (`Artifact.code_digest`) of the baseline, then of each candidate, empty for
    one that did not compile; compiler: what it came from, with its version. Both are empty where nobody filled them in.
    """

    workload: str
    results: tuple[Comparison | Outcome, ...]
    codes: tuple[str, ...] = ()
    compiler: str = ""
    opponents: tuple[Encounter, ...] = ()
    energies: tuple[Energy | None, ...] = ()


@dataclass(frozen=True, slots=True)
class ComparisonRequest:
    """Kernels to time beside each other. budget_seconds: for each; floor: seconds that the device's roofs allow at
    least, below which a candidate is `Implausible`; energy_seconds: how long launches of each are then repeated for
    their energy, 0 for not at all."""

    baseline: Candidate
    candidates: Sequence[Candidate]
    workload: str
    rounds: int
    budget_seconds: float
    floor: float = 0.0
    energy_seconds: float = 0.0
    opponents: Sequence[Rival] = ()


def _encounter(name: str, label: str, samples: Samples, timed: Mapping[int, Samples], candidates: int) -> Encounter:
    """What the samples of an opponent say of it, of the baseline (0 of `timed`) and of the candidates (1 and on)."""
    against = tuple(compare(timed[at], samples) if at in timed else None for at in range(1, candidates + 1))
    return Encounter(name, label, compare(samples, timed[0]), against)


class Bench:
    """Holds a device for one task. `seed` decides the contents of all buffers."""

    def __init__(self, task: Task, limits: DeviceLimits, index: int = 0, *, seed: int = 0) -> None:
        self.task, self.limits, self.seed = task, limits, seed
        self.device: Device = open_device(limits, index)
        self._telemetry = open_telemetry(self.device.uuid if BACKENDS[limits.backend].nvidia_tools else None)
        self._room = int(self.device.free_bytes() * MEMORY_SHARE)
        self._workloads: dict[str, WorkloadData] = {}
        self._drift = DriftMonitor()
        self._lines_kept = False
        """Whether a candidate has asked the last cache to keep lines, and nothing has ended that since."""

    @property
    def room(self) -> int:
        """Bytes of device memory that workloads may take together."""
        return self._room

    @property
    def held_bytes(self) -> int:
        """Bytes of device memory that the workloads' buffers take."""
        return sum(data.nbytes for data in self._workloads.values())

    def visit(
        self, candidate: Candidate, workloads: Sequence[str], precision: Precision | Mapping[str, Precision]
    ) -> dict[str, Outcome]:
        """Checks and times `candidate` on each workload, to the precision of all or of each by name; after the first
        failure the rest is not tried."""
        outcomes: dict[str, Outcome] = {}
        for name in workloads:
            wanted = precision if isinstance(precision, Precision) else precision[name]
            outcome = self._one(candidate, self.task.workload(name), wanted)
            outcomes[name] = outcome
            if not isinstance(outcome, Measured):
                break
        return outcomes

    def prepare(self, workloads: Sequence[str]) -> None:
        """Makes the buffers of `workloads` ahead of visits, so that visits have short deadlines."""
        for name in workloads:
            with contextlib.suppress(OutOfDeviceMemory):  # the visit that needs it reports it as its outcome
                warm_up(self._data(self.task.workload(name)))

    def release(self) -> None:
        """Gives the memory of all buffers back to the device; they are made again when they are needed."""
        for name in list(self._workloads):
            self._drift.forget(name)
        self._workloads.clear()
        self.device.trim()

    def compare(self, request: ComparisonRequest) -> WorkloadComparison:
        """Re-checks all, then times baseline and candidates in random order, round by round, and checks them again. An
        opponent that cannot be timed says why and changes nothing else."""
        candidates, workload, opponents = request.candidates, request.workload, request.opponents
        try:
            data = self._data(self.task.workload(workload))
        except OutOfDeviceMemory as error:
            return WorkloadComparison(workload, tuple(LaunchFailed(str(error)) for _ in candidates))
        seconds = COMPARISON_SAMPLE_FACTOR * self.device.sample_seconds if self.device.has_graph_overhead else None
        kernels = [one for one in opponents if isinstance(one, KernelRival)]
        named = (request.baseline, *candidates, *(one.made for one in kernels if isinstance(one.made, Candidate)))
        entrants = [prepare(self.device, one, data, seconds) for one in named]
        if not isinstance(entrants[0], Checked):
            return WorkloadComparison(workload, tuple(entrants[0] for _ in candidates))
        running = {at: one for at, one in enumerate(entrants) if isinstance(one, Checked)}

        forget_compiled()
        functions = [
            prepare_opponent(self.device, one, data, seconds) for one in opponents if not isinstance(one, KernelRival)
        ]
        met = [one for one in functions if isinstance(one, Ready)]

        def load(at: int) -> Rotation:
            running[at] = load_again(self.device, named[at], running[at], data)
            return running[at].rotation

        layouts = np.random.default_rng([self.seed, *workload.encode()])

        def lay_out() -> None:
            # Where code is loaded anew, as where restoring all sets takes no longer than a sample.
            if self.device.loads_quickly:
                data.rearrange(layouts)

        # A reference that is timed now and then works on the places that the arrays had when it was made.
        self._drift.forget(workload)

        data.restore()
        try:
            samples = interleaved(
                [*(partial(load, at) for at in running), *(one.load for one in met)],
                rounds=request.rounds,
                seed=self.seed,
                budget_seconds=request.budget_seconds * (len(running) + len(met)),
                target=TARGET,
                before_block=lay_out,
            )
            # Of opponents nobody asks for energy.
            asked = {at: one for at, one in running.items() if at <= len(candidates)}
            energies = {at: self._energy(one.rotation, request.energy_seconds) for at, one in asked.items()}
            wrong = {at: recheck(one, data) for at, one in running.items()}
        except DeviceError as error:
            failure = LaunchFailed(str(error), sticky=error.sticky)
            return WorkloadComparison(workload, tuple(failure for _ in candidates))
        if (broken := wrong[0]) is not None:
            return WorkloadComparison(workload, tuple(broken for _ in candidates))
        timed = dict(zip(running, samples, strict=False))
        beside = iter(samples[len(running) :])
        results = list[Comparison | Outcome]()
        for at, one in enumerate(entrants[1 : 1 + len(candidates)], 1):
            if not isinstance(one, Checked):
                results.append(one)
                continue
            comparison = compare(timed[at], timed[0])
            results.append(wrong[at] or self._implausible(comparison.candidate, request.floor, data) or comparison)
        others = list[Encounter]()
        places = iter(range(1 + len(candidates), len(entrants)))
        for kernel in kernels:
            failed: Outcome | None
            if isinstance(kernel.made, Candidate):
                at = next(places)
                one = entrants[at]
                failed = wrong[at] if isinstance(one, Checked) else one
            else:
                failed = kernel.made
            others.append(
                Encounter(kernel.name, kernel.label, why=describe(failed))
                if failed is not None
                else _encounter(kernel.name, kernel.label, timed[at], timed, len(candidates))
            )
        for rival in functions:
            if isinstance(rival, Ready):
                name, label = rival.opponent.name, rival.opponent.label
                others.append(_encounter(name, label, next(beside), timed, len(candidates)))
            else:
                others.append(rival)
        joules = tuple(energies.get(at) for at in range(1 + len(candidates))) if request.energy_seconds else ()
        return WorkloadComparison(workload, tuple(results), opponents=tuple(others), energies=joules)

    def modes(self, candidate: Candidate, workload: str) -> Modes | Outcome:
        """Warm-cache and call-to-call times of a candidate, beside which `compare` gives the cold ones."""
        try:
            data = self._data(self.task.workload(workload))
            checked = prepare(self.device, candidate, data)
            return measure_modes(self.device, checked, data) if isinstance(checked, Checked) else checked
        except DeviceError as error:
            return LaunchFailed(str(error), sticky=error.sticky)

    def calibrate(self, probes: dict[str, Artifact]) -> Roofline:
        """The measured roofs of the device; `probes` are the kernels of `kernels.measure.calibrate`, compiled."""
        return measure_roofline(self.device, probes)

    def _one(self, candidate: Candidate, workload: Workload, precision: Precision) -> Outcome:
        try:
            data = self._data(workload)
        except OutOfDeviceMemory as error:
            return LaunchFailed(str(error))
        asks_to_keep = ASKS_TO_KEEP.search(candidate.template.source) is not None
        others_kept, self._lines_kept = self._lines_kept, self._lines_kept or asks_to_keep
        checked = prepare(self.device, candidate, data)
        if not isinstance(checked, Checked):
            return checked
        try:
            drift = self._drift.tick()
            # Not before every measurement: after some resets each launch of the process takes 0.2 to 0.35 us longer on
            # an H200 (docs/trust.md, "Two speeds").
            if others_kept:
                self.device.reset_cache()
                self._lines_kept = asks_to_keep
            measured = self._sample(checked, precision, drift)
            measured = replace(measured, energy=self._energy(checked.rotation, precision.energy_seconds))
            wrong = recheck(checked, data)
        except DeviceError as error:
            return LaunchFailed(str(error), sticky=error.sticky)
        if isinstance(wrong, WrongResult):
            return wrong
        estimate = Estimate(measured.seconds, measured.low, measured.high, measured.samples)
        if (implausible := self._implausible(estimate, precision.floor, data)) is not None:
            return implausible
        self._drift.keep(workload.name, checked.rotation, estimate)
        return measured

    def _sample(self, checked: Checked, precision: Precision, drift: float | None) -> Measured:
        """Times a checked candidate; under throttling again, and marked when that lasts."""
        spent = 0.0
        for attempt in range(REPEATS + 1):
            before = self._telemetry.sample()
            started = time.perf_counter()
            rotation = checked.rotation
            estimate = sample_until(rotation.take, precision, expected=rotation.lasted)
            spent += time.perf_counter() - started
            after = self._telemetry.sample()
            throttled = {reason for one in (before, after) for reason in harmful(one)}
            if not throttled or attempt == REPEATS:
                break
        return Measured(
            seconds=estimate.median,
            low=estimate.low,
            high=estimate.high,
            samples=estimate.samples,
            launches=checked.rotation.window,
            errors=checked.errors,
            throttled=tuple(sorted(throttled)),
            dropped=estimate.dropped,
            sampling_seconds=round(spent, 6),
            drift=drift,
            telemetry=after.figures() if isinstance(after, Telemetry) else {},
        )

    def _energy(self, rotation: Rotation, seconds: float) -> Energy | None:
        """The energy of a launch over a window of `seconds`; None for 0, and where the device does not tell. Raises
        `DeviceError`."""
        if not seconds:
            return None
        samples = max(1, math.ceil(BATCH_SECONDS / rotation.lasted)) if rotation.lasted > 0 else 1

        def run() -> int:
            rotation.take(samples)
            return samples * rotation.window

        found = measure_energy(run, self._telemetry.joules, seconds)
        after = self._telemetry.sample()
        clock = after.sm_clock_hz if isinstance(after, Telemetry) else None
        return None if found is None else replace(found, sm_clock_hz=clock)

    def _implausible(self, timed: Estimate, floor: float, data: WorkloadData) -> Implausible | None:
        """The error of being faster than the memory: the interval lies below the floor, less a margin and what part of
        all sets the last cache may still hold when their turn comes again."""
        held = min(1.0, (self.limits.l2_bytes or 0) / (max(1, data.sets - 1) * data.touched_bytes))
        least = floor * (1 - held) * FLOOR_MARGIN[self.limits.kind]
        if timed.high >= least:
            return None
        detail = (
            f"it was timed at {timed.median * 1e6:.3f} us, but moving the task's bytes and doing its arithmetic takes "
            f"this device at least {least * 1e6:.3f} us: either work is left out in a way that the check does not see, "
            "or the task's `bytes` or `flops` are too high"
        )
        return Implausible(timed.median, least, detail)

    def _data(self, workload: Workload) -> WorkloadData:
        """The workload's buffers; older workloads make room when memory is short."""
        if workload.name in self._workloads:
            self._workloads[workload.name] = self._workloads.pop(workload.name)
            return self._workloads[workload.name]
        while True:
            try:
                data = WorkloadData(
                    self.device, self.task, workload, seed=self.seed, max_bytes=self._room - self.held_bytes
                )
            except OutOfDeviceMemory:
                if not self._workloads:
                    raise
                oldest = next(iter(self._workloads))
                self._drift.forget(oldest)
                del self._workloads[oldest]
                continue
            self._workloads[workload.name] = data
            return data
