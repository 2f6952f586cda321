"""A bench: one device, one task, and every candidate that is put on it to be checked and timed, alone (`visit`) or
beside the baseline and opponents (`compare`).

Restore, launch once, check, run the sequence that will be timed once and check again; after timing, exchange the inputs
of a set, run the timed sequence on it once more, and check that too.

Energy is measured by launches repeated for a window. The counter of an NVIDIA GPU, which is of the whole board, moves
every 20 to 100 ms and takes milliseconds to read. A thread reads it as often as it can while launches follow each
other; a window begins and ends where it moved. When exactly between two readings remains unknown: `Energy.error`.
"""

from __future__ import annotations

import contextlib
import math
import re
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.roofline import Roofline
from tunesmith.hw.telemetry import Telemetry, harmful, open_telemetry
from tunesmith.kernels.backends import BoundLaunch, Device, DeviceError, OutOfDeviceMemory, open_device
from tunesmith.kernels.build.artifact import Artifact, Candidate
from tunesmith.kernels.build.source import code_key
from tunesmith.kernels.check.compare import measure_set, warm_up
from tunesmith.kernels.launch.buffers import WorkloadData
from tunesmith.kernels.measure.opponents import Encounter, Prepared, Rival, forget_compiled, prepare_opponent
from tunesmith.kernels.measure.roofs import measure_roofline
from tunesmith.kernels.measure.timing import (
    Comparison,
    Estimate,
    Precision,
    Rotation,
    Samples,
    compare,
    interleaved,
    much_shorter,
    sample_until,
    window_for,
)
from tunesmith.kernels.outcome import Energy, Implausible, LaunchFailed, Measured, Outcome, WrongResult, describe
from tunesmith.kernels.spec.task import Opponent, Task, Workload

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
SAMPLE_LENGTH_TOLERANCE = (0.7, 2.0)
"""A sample's duration over the duration that was asked for: the sequence of one outside is captured anew."""


@dataclass(frozen=True, slots=True)
class WorkloadComparison:
    """Candidates against the baseline on one workload, interleaved: a `Comparison` for each, or why not.

    energies: of a launch of the baseline, then of each candidate, None where it failed; empty where not asked for.
    codes: `Artifact.code_digest` of the baseline, then of each candidate, empty where it did not compile; compiler: its
    name and version. The pool fills both in.
    """

    workload: str
    results: tuple[Comparison | Outcome, ...]
    codes: tuple[str, ...] = ()
    compiler: str = ""
    opponents: tuple[Encounter, ...] = ()
    energies: tuple[Energy | None, ...] = ()


@dataclass(frozen=True, slots=True)
class ComparisonRequest:
    """Kernels to time beside each other. candidates: compiled, or why not; budget_seconds: for each; floor: seconds
    below which a candidate is `Implausible`; energy_seconds: how long launches of each are repeated for their energy, 0
    for not at all."""

    baseline: Candidate
    candidates: Sequence[Candidate | Outcome]
    workload: str
    rounds: int
    budget_seconds: float
    floor: float = 0.0
    energy_seconds: float = 0.0
    opponents: Sequence[Rival] = ()

    def without_times(self, why: Outcome) -> WorkloadComparison:
        """The answer where nothing could be timed."""
        results = tuple(why if isinstance(one, Candidate) else one for one in self.candidates)
        return WorkloadComparison(self.workload, results)


@dataclass(slots=True)
class Checked:
    """A checked candidate, ready to be timed. errors: the largest deviation per output, as a share of the tolerance."""

    data: WorkloadData
    artifact: Artifact
    rotation: Rotation
    launches: Sequence[BoundLaunch]
    errors: dict[str, float]

    def load(self) -> Rotation:
        """A sampler of the same launches, on the sets where they lie now, with the code loaded anew where that is
        cheap."""
        device = self.data.device
        kernel = device.load(self.artifact) if device.loads_quickly else self.launches[0].kernel
        self.launches = [
            replace(launch, kernel=kernel, arguments=self.data.arguments(index))
            for index, launch in enumerate(self.launches)
        ]
        self.rotation = self.rotation.again(self.launches)
        return self.rotation


def _check(candidate: Candidate, data: WorkloadData, sample_seconds: float) -> Checked | Outcome:
    """Loads and checks `candidate`: one launch alone, on a set that the candidate decides and not what ran before, then
    launches of the kind that will be timed, in samples of about `sample_seconds`."""
    device = data.device
    window_of = partial(window_for, sets=data.sets, sample_seconds=sample_seconds, rounds=device.has_graph_overhead)
    artifact = candidate.artifacts[code_key(data.task, candidate.template, data.workload)]
    alone = zlib.crc32(artifact.digest.encode()) % data.sets
    try:
        launches = data.bind(candidate, anew=True)
        if not isinstance(launches, list):
            return launches
        data.restore()
        seconds = device.once(launches[alone])
        if isinstance(first := measure_set(data, alone), WrongResult):
            return first
        # Nothing else has run. Stray writes show in red zones, and farther off in `tunesmith.kernels.check.verify`.
        data.restore_set(alone, data.held(alone))
        rotation = Rotation(device, launches, window_of(seconds), alone)
        last = rotation.run_first()
        # A sample says more exactly than a lone launch how many launches make one of the wanted length.
        window = window_of(rotation.lasted / rotation.window)
        shortest, longest = SAMPLE_LENGTH_TOLERANCE
        if window != rotation.window and not shortest <= rotation.lasted / sample_seconds <= longest:
            rotation = Rotation(device, launches, window, alone)
            data.restore()
            last = rotation.run_first()
        # Launches that are timed are launches that were checked: the last of the first sample must be right too.
        if isinstance(again := measure_set(data, last), WrongResult):
            return again
    except DeviceError as error:
        return LaunchFailed(str(error), sticky=error.sticky)
    errors = {name: max(one.largest, again[name].largest) for name, one in first.items()}
    return Checked(data, artifact, rotation, launches, errors)


def _recheck(checked: Checked) -> WrongResult | None:
    """After timing: do the timed launches still do the work? One set gets other inputs, while it keeps the outputs of
    an earlier launch, and the sequence that was timed last runs again. A kernel that skips its work when it finds an
    output, or repeats one, is wrong here. Raises `DeviceError`."""
    data, index = checked.data, checked.rotation.last_set
    if not data.exchange_inputs(index):
        return None
    checked.rotation.run_again()
    if not isinstance(found := measure_set(data, index), WrongResult):
        return None
    if found.reason not in ("mismatch", "unwritten"):
        return found
    return replace(found, reason="stale_output", detail=f"timed again after the inputs had changed, {found.detail}")


class Bench:
    """Holds a device for one task. `seed` decides the contents of all buffers."""

    def __init__(self, task: Task, limits: DeviceLimits, index: int = 0, *, seed: int = 0) -> None:
        self.task, self.limits, self.seed = task, limits, seed
        self.device: Device = open_device(limits, index)
        self._telemetry = open_telemetry(self.device.uuid)
        self.room = int(self.device.free_bytes() * MEMORY_SHARE)
        """Bytes of device memory that workloads may take together."""
        self._workloads: dict[str, WorkloadData] = {}
        self._lines_kept = False
        """Whether a candidate has asked the last cache to keep lines, and nothing has ended that since."""

    def visit(
        self, candidate: Candidate, workloads: Sequence[str], precision: Precision | Mapping[str, Precision]
    ) -> dict[str, Outcome]:
        """Checks and times `candidate` on each workload, to one precision or one for each, up to the first failure."""
        outcomes: dict[str, Outcome] = {}
        for name in workloads:
            wanted = precision if isinstance(precision, Precision) else precision[name]
            try:
                outcomes[name] = self._one(candidate, self.task.workload(name), wanted)
            except DeviceError as error:
                outcomes[name] = LaunchFailed(str(error), sticky=error.sticky)
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
        self._workloads.clear()
        self.device.trim()

    def compare(self, request: ComparisonRequest) -> WorkloadComparison:
        """Re-checks all, then times baseline and candidates in random order, round by round, and checks them again. An
        opponent that cannot be timed says why and changes nothing else."""
        try:
            found = self._compared(request, self._data(self.task.workload(request.workload)))
        except DeviceError as error:
            found = LaunchFailed(str(error), sticky=error.sticky)
        if isinstance(found, WorkloadComparison):
            return found
        return request.without_times(found)

    def _compared(self, request: ComparisonRequest, data: WorkloadData) -> WorkloadComparison | Outcome:
        """`compare`, or why the baseline cannot be timed. Raises `DeviceError`."""
        forget_compiled()
        seconds = self.device.sample_seconds * (COMPARISON_SAMPLE_FACTOR if self.device.has_graph_overhead else 1)
        # By position: the baseline, the candidates, then the opponents, kernels first.
        own = (request.baseline, *request.candidates)
        rivals = sorted(request.opponents, key=lambda one: one[1] is None)
        kernels: dict[int, Checked] = {}
        functions: dict[int, Prepared] = {}
        failed: dict[int, Outcome] = {}
        unfit: dict[int, str] = {}
        for at, kernel in enumerate((*own, *(kernel for _, kernel in rivals))):
            made = _check(kernel, data, seconds) if isinstance(kernel, Candidate) else kernel
            match made or prepare_opponent(rivals[at - len(own)][0], data, seconds):
                case Checked() as checked:
                    kernels[at] = checked
                case Prepared() as prepared:
                    functions[at] = prepared
                case str(why):
                    unfit[at] = why
                case outcome:
                    failed[at] = outcome
            if 0 in failed:
                return failed[0]
        timed = self._interleave({**kernels, **functions}, data, request)
        # Nobody asks for the energy of opponents.
        energies = {
            at: self._energy(kernels[at].rotation, request.energy_seconds) for at in range(len(own)) if at in kernels
        }
        failed |= {at: wrong for at, one in kernels.items() if (wrong := _recheck(one)) is not None}
        if 0 in failed:
            return failed[0]

        def result(at: int) -> Comparison | Outcome:
            if at in failed:
                return failed[at]
            comparison = compare(timed[at], timed[0])
            return self._implausible(comparison.candidate, request.floor, data) or comparison

        def encounter(at: int, rival: Opponent) -> Encounter:
            if why := describe(failed[at]) if at in failed else unfit.get(at):
                return Encounter(rival.name, rival.label, why=why)
            against = (compare(timed[other], timed[at]) if other in timed else None for other in range(1, len(own)))
            met = Encounter(rival.name, rival.label, compare(timed[at], timed[0]), tuple(against))
            one = functions.get(at)
            return met if one is None else replace(met, first_seconds=one.first_seconds, choice=one.choice)

        return WorkloadComparison(
            request.workload,
            tuple(result(at) for at in range(1, len(own))),
            opponents=tuple(encounter(at, rival) for at, (rival, _) in enumerate(rivals, len(own))),
            energies=tuple(energies.get(at) for at in range(len(own))) if request.energy_seconds else (),
        )

    def _interleave(
        self, timed: Mapping[int, Checked | Prepared], data: WorkloadData, request: ComparisonRequest
    ) -> dict[int, Samples]:
        """Samples of kernels and functions, by position."""
        positions = sorted(timed)
        layouts = np.random.default_rng([self.seed, *data.workload.name.encode()])

        def lay_out() -> None:
            # Where code is loaded anew, as where restoring all sets takes no longer than a sample.
            if self.device.loads_quickly:
                data.rearrange(layouts)

        data.restore()
        samples = interleaved(
            [timed[at].load for at in positions],
            rounds=request.rounds,
            seed=self.seed,
            budget_seconds=request.budget_seconds * len(positions),
            target=COMPARISON_TARGET,
            before_block=lay_out,
        )
        return dict(zip(positions, samples, strict=True))

    def calibrate(self, probes: dict[str, Artifact]) -> Roofline:
        """The measured roofs of the device; `probes` are the kernels of `kernels.measure.calibrate`, compiled."""
        return measure_roofline(self.device, probes)

    def _one(self, candidate: Candidate, workload: Workload, precision: Precision) -> Outcome:
        """`visit` on one workload. Raises `DeviceError`."""
        data = self._data(workload)
        asks_to_keep = ASKS_TO_KEEP.search(candidate.template.source) is not None
        others_kept, self._lines_kept = self._lines_kept, self._lines_kept or asks_to_keep
        checked = _check(candidate, data, self.device.sample_seconds)
        if not isinstance(checked, Checked):
            return checked
        # Not before every measurement: after some resets each launch of the process takes 0.2 to 0.35 us longer on an
        # H200 (docs/trust.md, "Two speeds").
        if others_kept:
            self.device.reset_cache()
            self._lines_kept = asks_to_keep
        # Under throttling it is timed again, and marked when that lasts.
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
        energy = self._energy(rotation, precision.energy_seconds)
        if (wrong := _recheck(checked)) is not None:
            return wrong
        return self._implausible(estimate, precision.floor, data) or Measured(
            seconds=estimate.median,
            low=estimate.low,
            high=estimate.high,
            samples=estimate.samples,
            launches=rotation.window,
            errors=checked.errors,
            throttled=tuple(sorted(throttled)),
            dropped=estimate.dropped,
            sampling_seconds=round(spent, 6),
            telemetry=after.figures() if isinstance(after, Telemetry) else {},
            energy=energy,
        )

    def _energy(self, rotation: Rotation, seconds: float) -> Energy | None:
        """The energy of a launch over a window of `seconds`; None for 0, and where the device does not tell."""
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
                del self._workloads[next(iter(self._workloads))]
        self._workloads[workload.name] = data
        return data


def skips_right_results(candidate: Candidate, seconds: float, data: WorkloadData) -> WrongResult | None:
    """Whether launches on right outputs take less time than launches on poisoned ones, by pairs in about so many
    seconds, each on a set just copied in full. None where there is a single set. Raises `DeviceError`."""
    outputs = [place for place in data.places if place.argument.role == "out"]
    launches = data.bind(candidate)
    if not outputs or data.sets == 1 or not isinstance(launches, list):
        return None
    device, rng = data.device, np.random.default_rng(data.layout_seed)
    data.restore_set(0, 0)
    data.restore_set(1, 0)
    device.once(launches[0])
    for place in outputs:
        device.copy(data.view(place, 1), data.view(place, 0))
    images = (data.set_buffer(1), data.variants[0].image)

    def pair() -> tuple[float, float]:
        times = [0.0, 0.0]
        for which in rng.permutation(2):
            device.copy(data.set_buffer(0), images[which])
            times[which] = device.once(launches[0])
        return times[0], times[1]

    if (ratio := much_shorter(pair, seconds)) is None:
        return None
    detail = f"a launch on right outputs takes {ratio:.2f} times as long as one on poisoned outputs"
    return WrongResult("depends_on_outputs", ", ".join(place.argument.name for place in outputs), detail)


BATCH_SECONDS = 0.02
"""Approximate time of the launches between two readings of the clock."""
PATIENCE_SECONDS = 2.0
"""Timeout beyond the window's length, for a counter that does not move."""
PAUSE_SECONDS = 0.001
"""Between two readings of the counter, so that the thread that launches gets its turn."""


Move = tuple[float, float, float]
"""When the counter moved, the joules that it came to then, and by how many seconds that time may be off."""


def measure_energy(
    run: Callable[[], int],
    read: Callable[[], float | None],
    seconds: float,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> Energy | None:
    """Joules per launch over a window of at least `seconds`; None where the counter cannot be read or does not move.

    run: makes launches one right behind the other, for about `BATCH_SECONDS`, and says how many; read: joules since
    whenever. An exception of `run` ends the measurement.
    """
    moves: list[Move] = []
    over = threading.Event()

    def watch() -> None:
        before, last = clock(), read()
        while last is not None and not over.is_set():
            over.wait(PAUSE_SECONDS)
            joules, now = read(), clock()
            if joules is None:
                return
            if joules != last:
                moves.append(((before + now) / 2, joules, (now - before) / 2))
            before, last = now, joules

    watcher = threading.Thread(target=watch, daemon=True)
    started = clock()
    progress = [(started, 0)]
    watcher.start()
    try:
        while watcher.is_alive():
            launches = progress[-1][1] + run()
            progress.append((clock(), launches))
            # A later move belongs to launches that were not counted yet.
            known = [move for move in list(moves) if move[0] <= progress[-1][0]]
            if len(known) > 1 and known[-1][0] - known[0][0] >= seconds:
                return energy_between(known, progress)
            if progress[-1][0] - started > seconds + PATIENCE_SECONDS:
                break
    finally:
        over.set()
        watcher.join()
    return None


def energy_between(moves: Sequence[Move], progress: Sequence[tuple[float, int]]) -> Energy | None:
    """The energy of a launch from the first of several moves to the last. progress: how many launches had ended when,
    in order; in a batch they end one after another, evenly."""
    (first, before, first_slack), (last, after, last_slack) = moves[0], moves[-1]
    times, counts = [at for at, _ in progress], [count for _, count in progress]
    begun, ended = np.interp([first, last], times, counts)
    launches, lasted = float(ended - begun), last - first
    if launches <= 0 or lasted <= 0:
        return None
    return Energy((after - before) / launches, lasted, math.floor(launches), (first_slack + last_slack) / lasted)
