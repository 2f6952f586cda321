"""One candidate on the buffers of one workload: loaded, checked, and its launches ready to be timed.

Owns the order of a trial: restore, launch once, check, run the sequence that will be timed once and check again; and
after timing, exchange the inputs of a set, run the timed sequence on it once more, and check that too.
"""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tunesmith.kernels.backends import Device, DeviceError, Launch, TimedSequence
from tunesmith.kernels.candidate import Candidate, types_key, undeclared_state
from tunesmith.kernels.check import Deviation, measure_set
from tunesmith.kernels.feasible import compiler_rejection
from tunesmith.kernels.outcome import LaunchFailed, Outcome, WrongResult
from tunesmith.kernels.specialise import geometry
from tunesmith.kernels.workload_data import WorkloadData

SAMPLE_SECONDS = {"gpu": 2e-3, "cpu": 2e-2}
"""How long one timed sample should last: long against the clock's resolution and the start of a sequence."""


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

    def run_again(self) -> None:
        """Runs the launches of the sample that was timed last once more, untimed."""
        self._segment(self._last, warm=False).seconds()

    @property
    def last_set(self) -> int:
        """The set on which the sample that was timed last ended."""
        return (self._last + 1) * self.window - 1

    @property
    def _last(self) -> int:
        return (self._next - 1) % len(self._segments)

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
    """A candidate that passed the check, ready to be timed, with its deviations per output."""

    rotation: Rotation
    launches: Sequence[Launch]
    deviations: dict[str, Deviation]

    @property
    def errors(self) -> dict[str, float]:
        """The largest deviation per output, as a share of its tolerance."""
        return {name: one.largest for name, one in self.deviations.items()}


def bind(device: Device, candidate: Candidate, data: WorkloadData) -> list[Launch] | Outcome:
    """The launches of `candidate` on each set of `data`, or why it cannot be launched. Raises `DeviceError`."""
    workload = data.workload
    artifact = candidate.artifacts[types_key(workload)]
    shape = geometry(candidate.template, candidate.config, workload)
    if (rejected := undeclared_state(candidate.template, artifact)) is not None:
        return rejected
    if (rejected := compiler_rejection(device.limits, shape, artifact.resources)) is not None:
        return rejected
    kernel = device.load(artifact)
    return [Launch(kernel, shape, data.arguments(index)) for index in range(data.sets)]


def prepare(device: Device, candidate: Candidate, data: WorkloadData) -> Checked | Outcome:
    """Loads and checks `candidate`: one launch alone, then launches of the kind that will be timed.

    Which set the lone launch takes, and so its contents and addresses, differs from candidate to candidate, and
    depends on nothing but the candidate, so that a verdict does not depend on what ran before.
    """
    alone = zlib.crc32(candidate.artifacts[types_key(data.workload)].digest.encode()) % data.sets
    try:
        launches = bind(device, candidate, data)
        if not isinstance(launches, list):
            return launches
        data.restore()
        device.launch(launches[alone])
        device.synchronize()
        first = measure_set(data, alone)
        if isinstance(first, WrongResult):
            return first
        # The first launch pays for just-in-time work of the driver; the second tells how many fit a sample.
        started = time.perf_counter()
        device.launch(launches[alone])
        device.synchronize()
        seconds = time.perf_counter() - started
        window = math.ceil(SAMPLE_SECONDS[device.limits.kind] / seconds)
        rotation = Rotation(device, launches, min(max(1, window), data.sets))
        # Launches that are timed are launches that were checked: the last of the first sample must be right too.
        data.restore()
        rotation.run_first()
        again = measure_set(data, rotation.window - 1)
        if isinstance(again, WrongResult):
            return again
    except DeviceError as error:
        return LaunchFailed(str(error), sticky=error.sticky)
    worst = {
        name: Deviation(max(one.largest, again[name].largest), max(one.rms, again[name].rms))
        for name, one in first.items()
    }
    return Checked(rotation, launches, worst)


def recheck(checked: Checked, data: WorkloadData) -> WrongResult | None:
    """After timing: do the timed launches still do the work? Raises `DeviceError`.

    One set gets other inputs, while its outputs are those of an earlier launch, and the sequence that was timed last
    runs again. A kernel that skips its work when it finds an output, or repeats one, is wrong here.
    """
    index = checked.rotation.last_set
    if not data.exchange_inputs(index):
        return None
    checked.rotation.run_again()
    found = measure_set(data, index)
    if isinstance(found, WrongResult):
        if found.reason not in ("mismatch", "unwritten"):
            return found
        return replace(found, reason="stale_output", detail=f"timed again after the inputs had changed, {found.detail}")
    return None
