"""What runs in a process that uses the device: the data of one step at a time, and what is done on it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.backends import DeviceError, OutOfDeviceMemory
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.candidate import Candidate
from tunesmith.kernels.check.coverage import launch_marked
from tunesmith.kernels.check.edges import Edges, launch_at_edges
from tunesmith.kernels.check.idle_blocks import surplus_of_blocks
from tunesmith.kernels.check.plan import Step
from tunesmith.kernels.check.verify import Passed, PlainResult, Skipped, measure_baseline, prepare_step, verify
from tunesmith.kernels.launch.prepared import Prepared
from tunesmith.kernels.launch.workload_data import WorkloadData
from tunesmith.kernels.measure.bench import Bench, WorkloadComparison
from tunesmith.kernels.measure.modes import Modes
from tunesmith.kernels.measure.opponents import Rival
from tunesmith.kernels.measure.timing import Precision
from tunesmith.kernels.outcome import LaunchFailed, Outcome
from tunesmith.kernels.spec.task import Task


class Examiner:
    """`index` counts this machine's devices of the backend."""

    def __init__(self, task: Task, limits: DeviceLimits, index: int, seed: int) -> None:
        self._bench = Bench(task, limits, index, seed=seed)
        self._data: tuple[Step, WorkloadData] | None = None
        """What was prepared for the step at hand."""
        self._plain: PlainResult | None = None
        """The baseline's result in it."""
        self._path: Path | None = None
        self._twins: dict[str, tuple[object, object]] = {}
        """Marked kernels that are loaded, and their marks."""
        self._loaded: dict[str, object] = {}
        """Kernels that are loaded, by the digest of their machine code: a verdict launches two in hundreds of steps."""

    def uuid(self) -> str:
        """The device's, by which it is locked."""
        return self._bench.device.uuid

    def prepare(self, workload: str) -> None:
        """The buffers of a workload for `visit`, `compare` and `modes`."""
        self._data = self._plain = None
        self._bench.prepare([workload])

    def prepare_step(self, step: Step, path: Path | None = None) -> Skipped | None:
        """The data for `verify`. path: a file with contents that were prepared; without it they are made here."""
        self._data, self._plain, self._path = None, None, path
        prepared = Prepared.from_bytes(path.read_bytes()) if path is not None else None
        made = prepare_step(self._bench.device, self._bench.task, step, max_bytes=self._bench.room, prepared=prepared)
        if isinstance(made, Skipped):
            return made
        self._data = step, made
        return None

    def verify(self, candidate: Candidate, baseline: Candidate, step: Step) -> Passed | Skipped | Outcome:
        data = self._prepared(step)
        if isinstance(data, Skipped):
            return data
        if not {*candidate.digests, *baseline.digests} >= set(self._loaded):
            self._loaded.clear()
        return verify(self._bench.device, candidate, baseline, step, data, self._loaded, self._plain)

    def try_baseline(self, baseline: Candidate, step: Step) -> Skipped | float:
        """Runs the baseline alone: the seconds of a launch where nothing is wrong with it."""
        data = self._prepared(step)
        if isinstance(data, Skipped):
            return data
        found = measure_baseline(self._bench.device, baseline, step, data, self._loaded)
        if isinstance(found, Skipped):
            return found
        self._plain = found
        return found.seconds

    def try_edges(self, candidate: Candidate, step: Step, edges: Edges) -> bool | LaunchFailed | Skipped:
        """See `launch_at_edges`."""
        data = self._prepared(step)
        if isinstance(data, Skipped):
            return data
        try:
            return launch_at_edges(self._bench.device, candidate, data, edges, self._loaded)
        except OutOfDeviceMemory as error:
            return Skipped(step.name, str(error))
        except DeviceError as error:
            return LaunchFailed(str(error), sticky=error.sticky)

    def surplus(self, baseline: Candidate, step: Step) -> float | LaunchFailed | Skipped:
        """See `surplus_of_blocks`."""
        data = self._prepared(step)
        if isinstance(data, Skipped):
            return data
        try:
            return surplus_of_blocks(self._bench.device, baseline, data, self._loaded)
        except DeviceError as error:
            return LaunchFailed(str(error), sticky=error.sticky)

    def cover(self, twin: Candidate, step: Step) -> frozenset[int] | LaunchFailed | Skipped:
        """See `launch_marked`."""
        data = self._prepared(step)
        if isinstance(data, Skipped):
            return data
        if not set(twin.digests) >= set(self._twins):
            self._twins.clear()
        try:
            return launch_marked(self._bench.device, twin, data, self._twins)
        except DeviceError as error:
            return LaunchFailed(str(error), sticky=error.sticky)

    def _prepared(self, step: Step) -> WorkloadData | Skipped:
        if self._data is None or self._data[0] != step:
            # Another process has prepared it, which was killed from outside.
            skipped = self.prepare_step(step, self._path)
            if skipped is not None:
                return skipped
        assert self._data is not None
        return self._data[1]

    def visit(self, candidate: Candidate, workload: str, precision: Precision) -> Outcome:
        return self._bench.visit(candidate, [workload], precision)[workload]

    def compare(
        self,
        baseline: Candidate,
        candidate: Candidate,
        workload: str,
        rounds: int,
        seconds: float,
        floor: float,
        opponents: Sequence[Rival] = (),
    ) -> WorkloadComparison:
        return self._bench.compare(
            baseline, [candidate], workload, rounds=rounds, budget_seconds=seconds, floor=floor, opponents=opponents
        )

    def modes(self, candidate: Candidate, workload: str) -> Modes | Outcome:
        return self._bench.modes(candidate, workload)

    def calibrate(self, probes: dict[str, Artifact]) -> Roofline:
        return self._bench.calibrate(probes)
