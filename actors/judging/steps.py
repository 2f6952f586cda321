"""What runs in a process that uses the device: the data of one step at a time, and what is done on it.

What to write into a task so that checks make up nothing that its kernel is never called with.
The steps of the full verdict on one candidate, spread over processes that use the device at the same time.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path

from tunesmith.actors.judging.preparation import Preparation, require_prepared
from tunesmith.actors.process import Isolated
from tunesmith.hw.device_lock import DeviceLock
from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.backends import DeviceError, OutOfDeviceMemory, Side
from tunesmith.kernels.build.artifact import Artifact, Candidate, TypesKey, types_key
from tunesmith.kernels.check.coverage import Coverage, launch_marked
from tunesmith.kernels.check.plan import Step
from tunesmith.kernels.check.verify import (
    Edges,
    Passed,
    PlainResult,
    Skipped,
    edges_of,
    excluded,
    launch_at_edges,
    measure_baseline,
    prepare_step,
    surplus_of_blocks,
    verify,
)
from tunesmith.kernels.launch.buffers import WorkloadData
from tunesmith.kernels.launch.contents import Contents
from tunesmith.kernels.launch.reference import Prepared
from tunesmith.kernels.measure.bench import Bench, Modes, WorkloadComparison
from tunesmith.kernels.measure.opponents import Rival
from tunesmith.kernels.measure.timing import Precision
from tunesmith.kernels.outcome import Crashed, LaunchFailed, Outcome, TimedOut, WrongResult, describe
from tunesmith.kernels.spec.task import Task, TaskError, Workload


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


MOST_NAMED = 4
"""Values that a sentence names."""
BLAMED = {"reference": "the reference fails", "plain kernel": "the plain kernel fails"}
"""By the reason for which steps are left out: what is at fault."""
Value = tuple[str, float]


def for_left_out(steps: Mapping[str, Step], found: Sequence[Passed | Skipped]) -> tuple[str, ...]:
    """A sentence for each scalar and size with values that only steps have which were left out. steps: by name."""
    passed = {
        value
        for one in found
        if isinstance(one, Passed) and one.step in steps
        for values in _made_up(steps[one.step])
        for value in values
    }
    blamed: dict[tuple[str, str], dict[float, None]] = {}
    for one in found:
        if isinstance(one, Skipped) and one.reason in BLAMED and one.step in steps:
            # A size is to blame only where no scalar was changed.
            scalars, sizes = _made_up(steps[one.step])
            for name, value in scalars or sizes:
                if (name, value) not in passed:
                    blamed.setdefault((one.reason, name), {})[value] = None
    named = {name for step in steps.values() for name, _ in step.contents.scalars}
    return tuple(
        f"{BLAMED[reason]} where {name} is {_listed(sorted(its))}, which was left out: {_remedy(name, name in named)}"
        for (reason, name), its in blamed.items()
    )


def for_unusable(scalars: Sequence[tuple[str, int, float]]) -> tuple[str, ...]:
    """A sentence for each scalar with made-up values that were left out before any step (name, level and value)."""
    values: dict[str, list[float]] = {}
    for name, _, value in scalars:
        values.setdefault(name, []).append(value)
    return tuple(
        f"{BLAMED['reference']} where {name} is {_listed(sorted(its))}, which was left out: {_remedy(name, True)}"
        for name, its in values.items()
    )


def for_rejection(step: Step) -> str:
    """What to write where no caller has what a step made up that rejects the kernel; empty where it made up nothing."""
    scalars, sizes = _made_up(step)
    named = " or ".join(f"{name} = {value:g}" for name, value in [*scalars, *sizes])
    remedies = [_remedy(name, True) for name, _ in scalars] + [_remedy(name, False) for name, _ in sizes]
    return f"the plain kernel is right there, but if no caller has {named}: {', or '.join(remedies)}" if named else ""


def _made_up(step: Step) -> tuple[Sequence[Value], Sequence[Value]]:
    """The scalars, and the sizes, that Tunesmith chose for a step."""
    return step.contents.scalars, list(step.workload.sizes.items()) if step.derived else []


def _remedy(name: str, is_scalar: bool) -> str:
    return f"list the `values` of {name} in the task" if is_scalar else f"give the range of {name} in `requires`"


def _listed(values: Sequence[float]) -> str:
    more = f" and {len(values) - MOST_NAMED} more" if len(values) > MOST_NAMED else ""
    return ", ".join(f"{value:g}" for value in values[:MOST_NAMED]) + more


SIDES: tuple[Side, ...] = ("end", "start")
"""Where kernels reach beyond an array, the likelier first."""
MOST_PROCESSES = 4
CORES_EACH = 2
"""Of the machine, for each process: NumPy and the driver have threads of their own."""
PREPARE_SECONDS = 60.0
"""For the buffers and the reference results of one workload, unless the user says otherwise."""
LEAST_STEP_SECONDS, STEP_SHARE = 2.0, 0.1
"""Least time of the reference, or of the plain kernel, on a made-up workload, and that as a share of the budget."""
LAUNCHES = 20
"""A step has up to so many launches, each of which may take so much the less."""
SETS = 8
"""Times a workload's bytes that a step takes of the device's memory at most, with its sets and expected results."""


def process_count(limits: DeviceLimits) -> int:
    """How many processes go through steps at once: one on a CPU, whose cores run the kernels too."""
    if limits.kind == "cpu":
        return 1
    return max(1, min(MOST_PROCESSES, len(os.sched_getaffinity(0)) // CORES_EACH))


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds: to compile one source; to run one step once its data is there; to make that data, which is mostly the
    reference's time. check: for all steps on workloads that were made up; by the kind of device if left out."""

    compile: float = 60.0
    run: float = 20.0
    prepare: float = PREPARE_SECONDS
    check: float | None = None

    def made_up_step(self, budget: Budget) -> float:
        """For the reference, or the plain kernel, on one workload that was made up."""
        return min(self.run, max(LEAST_STEP_SECONDS, STEP_SHARE * budget.seconds))


@dataclass(slots=True)
class Budget:
    """Seconds that steps on made-up workloads may take. reserve: what is kept of them for later steps; slow: made-up
    workloads on which the reference or the plain kernel took too long, and how that shows."""

    seconds: float
    reserve: float = 0.0
    ends: float = field(init=False)
    slow: list[tuple[Workload, str]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.ends = time.monotonic() + self.seconds

    @property
    def is_spent(self) -> bool:
        return time.monotonic() > self.ends - self.reserve

    def extend(self, seconds: float) -> None:
        """Other things took that long: waiting for the device, or the task's own workloads."""
        with self._lock:
            self.ends += seconds


@dataclass(frozen=True, slots=True)
class Asked:
    """What steps are about. coverage: counts the parts of the candidate that run, None where that cannot be told."""

    candidate: Candidate
    baseline: Candidate
    coverage: Coverage | None


@dataclass(slots=True)
class Findings:
    """What steps found so far, by their place in the plan. unseen: what was not looked for, and why; first_wrong: the
    first step that rejects the candidate; covered: whether parts that ran are still counted; surplus: blocks of the
    baseline's launches over those that it needs, the least of the task's own workloads so far."""

    budget: Budget
    steps: Sequence[Step] = ()
    found: dict[int, Passed | Skipped | Outcome] = field(default_factory=dict)
    unseen: dict[str, None] = field(default_factory=dict)
    first_wrong: int | None = None
    covered: bool = True
    surplus: float = math.inf
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, place: int, found: Passed | Skipped | Outcome) -> None:
        """What the step at `place` found."""
        with self.lock:
            self.found[place] = found
            if not isinstance(found, Passed | Skipped):
                self.first_wrong = place if self.first_wrong is None else min(place, self.first_wrong)

    def note_slow(self, step: Step, why: str) -> None:
        with self.lock:
            self.budget.slow.append((step.workload, why))

    def left_out(self, step: Step) -> Skipped | None:
        """Why a made-up workload is left out for its time: the budget is spent, or one that is no larger in any size
        took too long."""
        if not step.derived:
            return None
        if self.budget.is_spent:
            why = f"no time was left of {self.budget.seconds:g} s for made-up sizes (--check-time)"
            return Skipped(step.name, why, reason="time")
        mine = step.workload
        for known, why in list(self.budget.slow):
            if known.types == mine.types and all(size <= mine.sizes[name] for name, size in known.sizes.items()):
                return Skipped(step.name, f"it is at least as large as {known.name}, where {why}", reason="time")
        return None

    def wanted(self, place: int) -> bool:
        """Whether the step at `place` could still change the verdict."""
        return self.first_wrong is None or place < self.first_wrong

    def passed(self) -> list[Passed | Skipped]:
        """The steps that come before the first that rejects the candidate."""
        inside = sorted(place for place in self.found if self.wanted(place))
        return [one for place in inside if isinstance(one := self.found[place], Passed | Skipped)]

    def remedy(self) -> str:
        """What to write into the task where what was made up for the rejecting step is never met."""
        return "" if self.first_wrong is None else for_rejection(self.steps[self.first_wrong])

    def wrong(self) -> Outcome | None:
        """What rejects the candidate."""
        found = None if self.first_wrong is None else self.found[self.first_wrong]
        return None if isinstance(found, Passed | Skipped) else found


class HeldDevice:
    """The device's lock, held while any thread uses the device."""

    def __init__(self, lock: DeviceLock, listener: Callable[[str], None]) -> None:
        self._lock, self._listener = lock, listener
        self._users = set[int]()
        self._state = threading.Lock()

    def take(self) -> float:
        """Waits until no other process uses the device, and says so when that lasts; returns the seconds that it
        waited."""
        with self._state:
            begun = time.monotonic()
            self._users.add(threading.get_ident())
            self._lock.acquire(self._listener)
            return time.monotonic() - begun

    def leave(self) -> None:
        """This thread waits for something else, or has ended; while all do, others may have the device."""
        with self._state:
            self._users.discard(threading.get_ident())
            if not self._users:
                self._lock.release()

    def close(self) -> None:
        self._lock.release()


@dataclass(slots=True)
class StepRunner:
    """One process that goes through steps. device: held while steps run."""

    task: Task
    limits: DeviceLimits
    deadlines: Limits
    examiner: Isolated
    device: HeldDevice
    listener: Callable[[str], None]
    warm_start: dict[TypesKey, int] = field(default_factory=dict)
    """The start of the process that has been through a step, by the step's types: the first step of each type compiles
    and loads code that later ones find."""
    baseline_ends: bool = False
    """The baseline is known to end on a workload of the task's."""

    def excluded(self, asked: Asked, step: Step) -> Skipped | Outcome | None:
        """See `tunesmith.kernels.check.verify.excluded`."""
        return excluded(asked.candidate, asked.baseline, step, self.limits)

    def run(self, asked: Asked, step: Step, place: int, findings: Findings, source: Preparation) -> None:
        """One step, and what it finds."""
        if (left_out := findings.left_out(step)) is not None:
            findings.note(place, left_out)
            return
        if not source.is_ready(place):
            self.listener(f"the reference computes {step.name}")
            self.device.leave()
        path = source.get(place)
        if isinstance(path, Skipped):
            findings.note(place, path)
            return
        findings.budget.extend(self.device.take())
        found = self._step(asked.candidate, asked.baseline, step, path, findings)
        if isinstance(found, Passed):
            if step.own and findings.surplus > 1:
                surplus = self.examiner.call("surplus", self.deadlines.run, asked.baseline, step)
                self.renew(surplus)
                findings.surplus = min(findings.surplus, surplus if isinstance(surplus, float) else 1.0)
            for edges in self._edges(step, place):
                beyond = self._at_edges(asked.candidate, asked.baseline, step, path, edges)
                if isinstance(beyond, str):
                    findings.unseen.setdefault(beyond)
                elif beyond is not None:
                    found = beyond
                    break
        self.renew(found)
        if isinstance(found, Passed) and asked.coverage is not None:
            self._cover(asked.coverage, step, findings)
        findings.note(place, found)

    def renew(self, found: object) -> None:
        """Ends the process whose device cannot be used any more, so that the next call starts another."""
        if (isinstance(found, LaunchFailed) and found.sticky) or (isinstance(found, Skipped) and found.sticky):
            self.examiner.end()

    def _cover(self, coverage: Coverage, step: Step, findings: Findings) -> None:
        """Counts what a launch on this step's data adds; where one fails, nothing is known any more."""
        key = types_key(step.workload)
        for one in (coverage, coverage.plain):
            if one is None or not findings.covered or not one.wanted(key):
                continue
            found = self.examiner.call("cover", self.deadlines.run, one.twin, step)
            self.renew(found)
            if isinstance(found, frozenset):
                with findings.lock:
                    one.add(key, found)
            elif not isinstance(found, Skipped):
                findings.covered = False
                why = f"whether every part of the kernel ran was not looked at: on {step.name}, {describe(found)}"
                findings.unseen.setdefault(why)

    def _step(
        self, candidate: Candidate, baseline: Candidate, step: Step, path: Path | None, findings: Findings
    ) -> Passed | Skipped | Outcome:
        if (skipped := self.try_plain(baseline, step, path, findings)) is not None:
            return skipped
        found: Passed | Skipped | Outcome = self.examiner.call("verify", self.deadlines.run, candidate, baseline, step)
        self.renew(found)
        return found

    def try_plain(self, baseline: Candidate, step: Step, path: Path | None, findings: Findings) -> Skipped | None:
        """Prepares `step` and launches the baseline in it: why the step is left out, or None."""
        types = types_key(step.workload)
        short = step.derived and self.warm_start.get(types) == self.examiner.starts
        seconds = self.deadlines.made_up_step(findings.budget) if short else self.deadlines.run
        if (skipped := self._prepare(step, path, seconds if short else self.deadlines.prepare)) is not None:
            return skipped
        self.listener(f"checking {step.name}")
        plain: Skipped | float | Crashed | TimedOut = self.examiner.call("try_baseline", seconds, baseline, step)
        self.renew(plain)
        if isinstance(plain, Crashed | TimedOut):
            self._require_baseline(baseline, step, plain)
            if isinstance(plain, TimedOut) and step.derived:
                findings.note_slow(step, f"the plain kernel takes longer than {plain.limit:g} s")
            return Skipped(step.name, f"the plain kernel fails there: {describe(plain)}")
        if isinstance(plain, Skipped):
            return plain
        self.warm_start[types] = self.examiner.starts
        if short and plain > seconds / LAUNCHES:
            findings.note_slow(step, f"one launch of the plain kernel takes {plain:.2g} s")
            return Skipped(step.name, f"one launch of the plain kernel takes {plain:.2g} s there", reason="time")
        return None

    def plain_fits(self, baseline: Candidate, step: Step, findings: Findings) -> bool:
        """Whether nothing is known against the baseline in a made-up step, on which it must also keep to its arrays."""
        self.device.take()
        if (found := self.try_plain(baseline, step, None, findings)) is not None:
            return found.reason != "plain kernel"
        arrays = [argument.name for argument in self.task.arguments if argument.role != "scalar"]
        return not self._fails_at(baseline, step, None, edges_of(arrays, SIDES[0]))

    def _prepare(self, step: Step, path: Path | None, seconds: float) -> Skipped | None:
        """Has the data of `step` lie in the process."""
        self.listener(f"preparing {step.name}")
        answer: Skipped | TimedOut | Crashed | None = self.examiner.call("prepare_step", seconds, step, path)
        if isinstance(answer, TimedOut | Crashed):
            if step.own:
                require_prepared(self.task, step.name, answer)
            return Skipped(step.name, f"its data could not be made: {describe(answer)}", reason="reference")
        return answer

    def _require_baseline(self, baseline: Candidate, step: Step, found: object) -> None:
        """Raises `TaskError` where the baseline, which failed on `step`, fails on the task's smallest workload too:
        hundreds of further steps would each wait for it."""
        if not step.own:
            if self.baseline_ends:
                return
            own = self.task.workloads_for(self.limits.kind, held_out=False)
            step = Step(min(own, key=self.task.bytes_of, default=step.workload), Contents(seed=step.contents.seed))
            self._prepare(step, None, self.deadlines.prepare)
            found = self.examiner.call("try_baseline", self.deadlines.run, baseline, step)
            self.renew(found)
        if isinstance(found, Crashed | TimedOut):
            raise TaskError(
                f"The {self.limits.backend} baseline of {self.task.name} fails on the workload {step.workload.name}: "
                f"{describe(found).rstrip('.')}. Fix its source or its launch, or give it more time with "
                "--run-deadline."
            )
        self.baseline_ends = True

    def _edges(self, step: Step, number: int) -> list[Edges]:
        """Which arrays lie at the edge of memory in further launches of a step. On the task's own workloads all do, on
        either side, and inputs that cannot be written, by which a kernel is found that uses them as scratch and puts
        back what was there; on derived ones, of which there are hundreds, one of these."""
        arrays = [argument.name for argument in self.task.arguments if argument.role != "scalar"]
        inputs = [argument.name for argument in self.task.arguments if argument.role == "in"]
        both = [edges_of(arrays, side) for side in SIDES]
        if step.derived or step.contents.kind != "task":
            return [both[number % len(both)]]
        return both + ([edges_of(inputs, writable=False)] if inputs else [])

    def _at_edges(
        self, candidate: Candidate, baseline: Candidate, step: Step, path: Path | None, edges: Edges
    ) -> Outcome | str | None:
        """Wrong where `candidate`, and not the baseline, fails with arrays at these edges. Otherwise None, or why
        nothing is known."""
        self.listener(f"checking what lies beyond arrays on {step.name}")
        found = self.examiner.call("try_edges", self.deadlines.run, candidate, step, edges)
        if found is True:
            return None
        if found is False:
            return (
                "accesses outside of arrays that change nothing, and inputs that are written for a moment, were not "
                "looked for: this device has no memory whose pages can be protected"
            )
        if isinstance(found, Skipped):
            return f"accesses outside of arrays were not looked for on {found.step}: {found.why}"
        self.renew(found)
        if not isinstance(found, Crashed | LaunchFailed):
            failed: Outcome = found
            return failed
        if self._fails_at(baseline, step, path, edges):
            return f"accesses outside of arrays were not looked for on {step.name}: the baseline makes some"
        where = f"on {step.name}: a launch fails when"
        if not edges.writable:
            written = self._culprit(candidate, step, path, edges)
            detail = f"{where} arrays declared `in` cannot be written: {describe(found)}"
            return WrongResult("input_modified", written, detail)
        name = self._culprit(candidate, step, path, edges)
        side = "ends" if edges.side == "end" else "begins"
        return WrongResult("out_of_bounds_access", name, f"{where} memory {side} where {name} does: {describe(found)}")

    def _culprit(self, candidate: Candidate, step: Step, path: Path | None, edges: Edges) -> str:
        """The first array that makes `candidate` fail when it alone lies there; all where none does alone."""
        for argument in self.task.arguments:
            if argument.name in edges.arrays and self._fails_at(
                candidate, step, path, replace(edges, arrays=frozenset({argument.name}))
            ):
                return argument.name
        return ", ".join(sorted(edges.arrays))

    def _fails_at(self, candidate: Candidate, step: Step, path: Path | None, edges: Edges) -> bool:
        self._prepare(step, path, self.deadlines.prepare)
        found = self.examiner.call("try_edges", self.deadlines.run, candidate, step, edges)
        self.renew(found)
        return not isinstance(found, bool | Skipped)


def run_steps(
    runners: Sequence[StepRunner],
    asked: Asked,
    steps: Sequence[Step],
    most_bytes: float,
    budget: Budget,
    prepare: Callable[[Mapping[int, Step], Findings], Preparation],
) -> Findings:
    """Goes through `steps`, the first ones first, until one rejects the candidate. Steps on workloads of more than
    `most_bytes` are the first runner's alone. prepare: begins to prepare steps by their places. Raises what a runner
    raises."""
    findings, first = Findings(budget, steps), runners[0]
    for place, step in enumerate(steps):
        if (reason := first.excluded(asked, step)) is not None:
            findings.note(place, reason)
    left = [place for place in range(len(steps)) if place not in findings.found and findings.wanted(place)]
    light = [place for place in left if first.task.bytes_of(steps[place].workload) <= most_bytes]
    heavy = sorted(set(left).difference(light))
    waiting, lock, stop = iter(light), threading.Lock(), threading.Event()

    def run(runner: StepRunner, place: int, source: Preparation) -> None:
        begun = time.monotonic()
        try:
            runner.run(asked, steps[place], place, findings, source)
        finally:
            source.release(place)
        if not steps[place].derived:
            budget.extend((time.monotonic() - begun) / len(runners))

    def go_through(runner: StepRunner, source: Preparation) -> None:
        while not stop.is_set():
            with lock:
                place = next(waiting, None)
            if place is None or not findings.wanted(place):
                return
            try:
                run(runner, place, source)
            except BaseException:  # it is raised again; meanwhile the others must not begin anything
                stop.set()
                raise

    def go_on(runner: StepRunner, source: Preparation) -> None:
        try:
            go_through(runner, source)
        finally:
            runner.device.leave()

    with prepare({place: steps[place] for place in [*light, *heavy]}, findings) as source:
        if len(runners) == 1:
            go_on(first, source)
        else:
            with ThreadPoolExecutor(len(runners)) as threads:
                running = [threads.submit(go_on, runner, source) for runner in runners]
                try:
                    for one in wait(running, return_when=FIRST_EXCEPTION).done:
                        one.result()
                except BaseException:  # also Ctrl-C: the threads wait for processes, which would be waited for first
                    stop.set()
                    source.cancel()
                    for runner in runners:
                        runner.examiner.kill()
                    raise
        for place in heavy:
            if findings.wanted(place):
                run(first, place, source)
    first.device.leave()
    return findings


__all__ = [
    "Asked",
    "Budget",
    "Findings",
    "HeldDevice",
    "Limits",
    "StepRunner",
    "for_left_out",
    "for_rejection",
    "for_unusable",
    "process_count",
    "run_steps",
]
