"""A bench: one device, one task, and every candidate that is put on it to be checked and timed.

Owns the measurement of a candidate on a workload (`visit`), the comparison of candidates with the baseline and with
opponents (`compare`), times with a warm cache and from call to call (`modes`), and the reference kernel that is timed
now and then to tell a device that slowed down from slow kernels.
"""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

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
    MIN_SAMPLES,
    Comparison,
    Estimate,
    Precision,
    Samples,
    compare,
    estimate,
    interleaved,
    sample_until,
)
from tunesmith.kernels.outcome import Energy, Implausible, LaunchFailed, Measured, Outcome, describe
from tunesmith.kernels.spec.task import FunctionOpponent, Task, Workload

T = TypeVar("T")
DRIFT_INTERVAL = 16
"""Measurements between two timings of the reference."""
DRIFT_SAMPLES = 5


class DriftMonitor:
    """The reference of one process. `ratio` is its latest time over its first; None before it was timed again."""

    def __init__(self, every: int = DRIFT_INTERVAL) -> None:
        self._every, self._since = every, 0
        self._reference: tuple[str, Callable[[], float], float] | None = None
        """Its workload, its sampler and the median of its first samples."""
        self.ratio: float | None = None

    def keep(self, workload: str, sampler: Callable[[], float], first: Estimate) -> None:
        """Makes `sampler` the reference if there is none; `workload` names the buffers it runs on."""
        if self._reference is None:
            self._reference, self._since = (workload, sampler, first.median), 0

    def forget(self, workload: str) -> None:
        """The buffers of `workload` are gone, and with them a reference that runs on them and its ratio."""
        if self._reference is not None and self._reference[0] == workload:
            self._reference, self.ratio = None, None

    def tick(self) -> float | None:
        """To be called before each measurement: times the reference when it is due, and gives `ratio`."""
        self._since += 1
        if self._reference is not None and self._since > self._every:
            self._since = 0
            _, sampler, first = self._reference
            self.ratio = estimate([sampler() for _ in range(DRIFT_SAMPLES)]).median / first
        return self.ratio


WARM_LAUNCHES = 16
"""Launches of a sample with a warm cache."""
CALLS_PER_SAMPLE = 64
MODES_PRECISION = Precision(target=0.01, min_samples=MIN_SAMPLES, max_samples=50, budget_seconds=0.3)


@dataclass(frozen=True, slots=True)
class Modes:
    """Seconds a launch. warm: the same buffers again and again, as far as they fit in the last cache; call_to_call:
    calls from the host one after the other on all sets in turn, launch overhead included, by the host's clock."""

    warm: Estimate
    call_to_call: Estimate


def measure_modes(device: Device, checked: Checked, data: WorkloadData) -> Modes:
    """Both modes of a checked candidate. In-place kernels work on their own output. Raises `DeviceError`."""
    data.restore()
    sequence = device.sequence([checked.launches[0]] * WARM_LAUNCHES)
    device.times([sequence])
    warm = sample_until(
        lambda count: [one / WARM_LAUNCHES for one in device.times([sequence] * count)], MODES_PRECISION
    )
    data.restore()

    def calls(_: int = 1) -> list[float]:
        device.synchronize()
        started = time.perf_counter()
        for number in range(CALLS_PER_SAMPLE):
            device.launch(checked.launches[number % len(checked.launches)])
        device.synchronize()
        return [(time.perf_counter() - started) / CALLS_PER_SAMPLE]

    calls()
    return Modes(warm, sample_until(calls, MODES_PRECISION))


MEMORY_SHARE = 0.7
"""Share of the free device memory that workloads may take."""
COMPARISON_TARGET = 0.005
"""Half-width of a comparison's interval at which it ends, as a share of the ratio."""
FLOOR_MARGIN = {"gpu": 0.9, "cpu": 0.5}
"""Share of the roofline floor below which a time is implausible. A kernel that mostly reads beats the bandwidth of
copies, which roofs are measured by; on a CPU other programs share the memory while roofs are measured."""
ASKS_TO_KEEP = re.compile(r"\bevict_last\b|access_property")
"""How a CUDA source asks the last cache to keep lines for longer than others: in PTX, or in CUDA's own functions."""
MAX_THROTTLED_REPEATS = 2
"""Repetitions of a measurement under throttling, after which it is kept and marked."""
COMPARISON_SAMPLE_FACTOR = 13
"""Duration of a comparison's samples over a search's: about 2 ms with CUDA."""


@dataclass(frozen=True, slots=True)
class WorkloadComparison:
    """Candidates against the baseline on one workload, interleaved: a `Comparison` for each, or why not.

    opponents: the results of the opponents. energies: of a launch of the baseline, then of each candidate; None for a
    candidate that failed; empty where energy was not asked for.
    codes: the digest of the machine code (`Artifact.code_digest`) of the baseline, then of each candidate, empty for a
    candidate that did not compile; compiler: its name and version. Both are empty until the pool fills them in.
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


class Bench:
    """Holds a device for one task. `seed` decides the contents of all buffers."""

    def __init__(self, task: Task, limits: DeviceLimits, index: int = 0, *, seed: int = 0) -> None:
        self.task, self.limits, self.seed = task, limits, seed
        self.device: Device = open_device(limits, index)
        self._telemetry = open_telemetry(self.device.uuid)
        self.room = int(self.device.free_bytes() * MEMORY_SHARE)
        """Bytes of device memory that workloads may take together."""
        self._workloads: dict[str, WorkloadData] = {}
        self._drift = DriftMonitor()
        self._lines_kept = False
        """Whether a candidate has asked the last cache to keep lines, and nothing has ended that since."""

    def visit(
        self, candidate: Candidate, workloads: Sequence[str], precision: Precision | Mapping[str, Precision]
    ) -> dict[str, Outcome]:
        """Checks and times `candidate` on each workload, to the precision of all or of each by name; after the first
        failure the rest is not tried."""
        outcomes: dict[str, Outcome] = {}
        for name in workloads:
            wanted = precision if isinstance(precision, Precision) else precision[name]
            outcomes[name] = _outcome(partial(self._one, candidate, self.task.workload(name), wanted))
            if not isinstance(outcomes[name], Measured):
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
        found = _outcome(lambda: self._compared(request, self._data(self.task.workload(request.workload))))
        if isinstance(found, WorkloadComparison):
            return found
        return WorkloadComparison(request.workload, tuple(found for _ in request.candidates))

    def _compared(self, request: ComparisonRequest, data: WorkloadData) -> WorkloadComparison | Outcome:
        """`compare`, or why the baseline cannot be timed. Raises `DeviceError`."""
        forget_compiled()
        seconds = COMPARISON_SAMPLE_FACTOR * self.device.sample_seconds if self.device.has_graph_overhead else None
        # By position: the baseline, the candidates, then the opponents, kernels first.
        rivals = sorted(request.opponents, key=lambda one: not isinstance(one, KernelRival))
        opponents = [rival.made if isinstance(rival, KernelRival) else rival for rival in rivals]
        running: dict[int, Checked | Ready] = {}
        failed: dict[int, Outcome] = {}
        refused: dict[int, str] = {}
        for at, made in enumerate((request.baseline, *request.candidates, *opponents)):
            match prepare(self.device, made, data, seconds) if isinstance(made, Candidate) else made:
                case Checked() as checked:
                    running[at] = checked
                case FunctionOpponent() as function:
                    if isinstance(ready := prepare_opponent(self.device, function, data, seconds), str):
                        refused[at] = ready
                    else:
                        running[at] = ready
                case outcome:
                    failed[at] = outcome
            if 0 in failed:
                return failed[0]
        timed = self._interleave(running, data, request.rounds, request.budget_seconds * len(running))
        kernels = {at: one for at, one in running.items() if isinstance(one, Checked)}
        positions = range(1, 1 + len(request.candidates))
        # Nobody asks for the energy of opponents.
        energies = {
            at: self._energy(kernels[at].rotation, request.energy_seconds) for at in (0, *positions) if at in kernels
        }
        failed |= {at: wrong for at, one in kernels.items() if (wrong := recheck(one, data)) is not None}
        if 0 in failed:
            return failed[0]

        def result(at: int) -> Comparison | Outcome:
            if at in failed:
                return failed[at]
            comparison = compare(timed[at], timed[0])
            return self._implausible(comparison.candidate, request.floor, data) or comparison

        def encounter(at: int, rival: Rival) -> Encounter:
            if at in failed or at in refused:
                return Encounter(rival.name, rival.label, why=refused.get(at) or describe(failed[at]))
            against = tuple(compare(timed[other], timed[at]) if other in timed else None for other in positions)
            return Encounter(rival.name, rival.label, compare(timed[at], timed[0]), against)

        return WorkloadComparison(
            request.workload,
            tuple(result(at) for at in positions),
            opponents=tuple(encounter(at, rival) for at, rival in enumerate(rivals, 1 + len(request.candidates))),
            energies=tuple(energies.get(at) for at in (0, *positions)) if request.energy_seconds else (),
        )

    def _interleave(
        self, running: dict[int, Checked | Ready], data: WorkloadData, rounds: int, budget_seconds: float
    ) -> dict[int, Samples]:
        """Samples of all `running`, by position; a candidate is replaced by its launches as they were loaded last.
        Raises `DeviceError`."""

        def load(at: int) -> Rotation:
            one = running[at]
            if isinstance(one, Ready):
                return one.load()
            running[at] = again = load_again(self.device, one, data)
            return again.rotation

        layouts = np.random.default_rng([self.seed, *data.workload.name.encode()])

        def lay_out() -> None:
            # Where code is loaded anew, as where restoring all sets takes no longer than a sample.
            if self.device.loads_quickly:
                data.rearrange(layouts)

        # A reference that is timed now and then works on the places that the arrays had when it was made.
        self._drift.forget(data.workload.name)
        data.restore()
        samples = interleaved(
            [partial(load, at) for at in running],
            rounds=rounds,
            seed=self.seed,
            budget_seconds=budget_seconds,
            target=COMPARISON_TARGET,
            before_block=lay_out,
        )
        return dict(zip(running, samples, strict=True))

    def modes(self, candidate: Candidate, workload: str) -> Modes | Outcome:
        """Warm-cache and call-to-call times of a candidate, beside which `compare` gives the cold ones."""

        def measure() -> Modes | Outcome:
            data = self._data(self.task.workload(workload))
            checked = prepare(self.device, candidate, data)
            return measure_modes(self.device, checked, data) if isinstance(checked, Checked) else checked

        return _outcome(measure)

    def calibrate(self, probes: dict[str, Artifact]) -> Roofline:
        """The measured roofs of the device; `probes` are the kernels of `kernels.measure.calibrate`, compiled."""
        return measure_roofline(self.device, probes)

    def _one(self, candidate: Candidate, workload: Workload, precision: Precision) -> Outcome:
        """`visit` on one workload. Raises `DeviceError`."""
        data = self._data(workload)
        asks_to_keep = ASKS_TO_KEEP.search(candidate.template.source) is not None
        others_kept, self._lines_kept = self._lines_kept, self._lines_kept or asks_to_keep
        checked = prepare(self.device, candidate, data)
        if not isinstance(checked, Checked):
            return checked
        drift = self._drift.tick()
        # Not before every measurement: after some resets each launch of the process takes 0.2 to 0.35 us longer on an
        # H200 (docs/trust.md, "Two speeds").
        if others_kept:
            self.device.reset_cache()
            self._lines_kept = asks_to_keep
        measured = self._sample(checked, precision, drift)
        measured = replace(measured, energy=self._energy(checked.rotation, precision.energy_seconds))
        if (wrong := recheck(checked, data)) is not None:
            return wrong
        estimate = Estimate(measured.seconds, measured.low, measured.high, measured.samples)
        if (implausible := self._implausible(estimate, precision.floor, data)) is not None:
            return implausible
        self._drift.keep(workload.name, checked.rotation, estimate)
        return measured

    def _sample(self, checked: Checked, precision: Precision, drift: float | None) -> Measured:
        """Times a checked candidate; under throttling again, and marked when that lasts."""
        spent, rotation = 0.0, checked.rotation
        for attempt in range(MAX_THROTTLED_REPEATS + 1):
            before = self._telemetry.sample()
            started = time.perf_counter()
            estimate = sample_until(rotation.take, precision, expected=rotation.lasted)
            spent += time.perf_counter() - started
            after = self._telemetry.sample()
            throttled = {reason for one in (before, after) for reason in harmful(one)}
            if not throttled or attempt == MAX_THROTTLED_REPEATS:
                break
        return Measured(
            seconds=estimate.median,
            low=estimate.low,
            high=estimate.high,
            samples=estimate.samples,
            launches=rotation.window,
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
        """The error of being faster than the memory: the interval lies below the floor, less a margin and the share of
        all sets that the last cache may still hold when their turn comes again."""
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
        data = self._workloads.pop(workload.name, None)
        while data is None:
            left = self.room - sum(held.nbytes for held in self._workloads.values())
            try:
                data = WorkloadData(self.device, self.task, workload, seed=self.seed, max_bytes=left)
            except OutOfDeviceMemory:
                if not self._workloads:
                    raise
                oldest = next(iter(self._workloads))
                self._drift.forget(oldest)
                del self._workloads[oldest]
        self._workloads[workload.name] = data
        return data


def _outcome(measure: Callable[[], T]) -> T | LaunchFailed:
    try:
        return measure()
    except DeviceError as error:
        return LaunchFailed(str(error), sticky=error.sticky)
