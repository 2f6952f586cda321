"""The steps of the full verdict on one candidate, spread over processes that use the device at the same time.

Owns the process of a step (`Examiner`), its deadlines and retries, the results of steps, and the sentences that say how
a task can rule out made-up values with which its kernel is never called.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from tunesmith.actors.judging.preparation import Preparation, require_prepared
from tunesmith.actors.process import Isolated
from tunesmith.hw.device_lock import DeviceLock
from tunesmith.hw.limits import DeviceLimits
from tunesmith.kernels.backends import DeviceError, OutOfDeviceMemory, Side
from tunesmith.kernels.build.artifact import Candidate, TypesKey, types_key
from tunesmith.kernels.check.coverage import Coverage, launch_marked
from tunesmith.kernels.check.plan import Step
from tunesmith.kernels.check.verify import (
    Edges,
    Passed,
    Skipped,
    Standard,
    edges_of,
    excluded,
    launch_at_edges,
    measure_baseline,
    prepare_step,
    surplus_of_blocks,
    time_baseline,
    verify,
)
from tunesmith.kernels.launch.buffers import WorkloadData
from tunesmith.kernels.launch.contents import Contents
from tunesmith.kernels.launch.reference import unpacked
from tunesmith.kernels.measure.bench import Bench
from tunesmith.kernels.outcome import Crashed, LaunchFailed, Outcome, TimedOut, WrongResult, describe
from tunesmith.kernels.spec.task import Task, TaskError, Workload

T = TypeVar("T")


class Examiner(Bench):
    """A bench that goes through steps, in a process of its own. `index` counts this machine's devices of the
    backend."""

    def __init__(self, task: Task, limits: DeviceLimits, index: int, seed: int) -> None:
        super().__init__(task, limits, index, seed=seed)
        self._step: tuple[Step, WorkloadData] | None = None
        """The step at hand, and its data."""
        self._plain: Standard | None = None
        """The baseline's result in it."""
        self._path: Path | None = None
        self._twins: dict[str, tuple[object, object]] = {}
        """Marked kernels that are loaded, and their marks."""
        self._loaded: dict[str, object] = {}
        """Kernels that are loaded, by the digest of their machine code: a verdict launches two in hundreds of steps."""

    def uuid(self) -> str:
        """The device's UUID, by which it is locked."""
        return self.device.uuid

    def prepare(self, workloads: Sequence[str]) -> None:
        """The buffers of workloads for `visit`, `compare` and `modes`."""
        self._step = self._plain = None
        super().prepare(workloads)

    def prepare_step(self, step: Step, path: Path | None = None) -> Skipped | None:
        """The data for `verify`. path: a file with prepared contents; without it they are made here."""
        self._step, self._plain, self._path = None, None, path
        prepared = unpacked(path.read_bytes()) if path is not None else None
        data = prepare_step(self.device, self.task, step, max_bytes=self.room, prepared=prepared)
        if isinstance(data, Skipped):
            return data
        self._step = step, data
        return None

    def verify(self, candidate: Candidate, baseline: Candidate, step: Step) -> Passed | Skipped | Outcome:
        def check(data: WorkloadData) -> Passed | Skipped | Outcome:
            if not {*candidate.digests, *baseline.digests} >= set(self._loaded):
                self._loaded.clear()
            return verify(self.device, candidate, baseline, step, data, self._loaded, self._plain)

        return self._with_data(step, check)

    def time_baseline(self, baseline: Candidate, step: Step) -> float | LaunchFailed | Skipped:
        """See `tunesmith.kernels.check.verify.time_baseline`."""
        return self._with_data(step, lambda data: time_baseline(self.device, baseline, step, data, self._loaded))

    def try_baseline(self, baseline: Candidate, step: Step) -> Skipped | LaunchFailed | None:
        """Why the step is left out, or None where the baseline is right there."""

        def measure(data: WorkloadData) -> Skipped | None:
            result = measure_baseline(self.device, baseline, step, data, self._loaded)
            if isinstance(result, Skipped):
                return result
            self._plain = result
            return None

        return self._with_data(step, measure)

    def try_edges(self, candidate: Candidate, step: Step, edges: Edges) -> bool | LaunchFailed | Skipped:
        """See `launch_at_edges`."""

        def launch(data: WorkloadData) -> bool | Skipped:
            try:
                return launch_at_edges(self.device, candidate, data, edges, self._loaded)
            except OutOfDeviceMemory as error:
                return Skipped(step.name, str(error))

        return self._with_data(step, launch)

    def surplus(self, baseline: Candidate, step: Step) -> float | LaunchFailed | Skipped:
        """See `surplus_of_blocks`."""
        return self._with_data(step, lambda data: surplus_of_blocks(self.device, baseline, data, self._loaded))

    def cover(self, twin: Candidate, step: Step) -> frozenset[int] | LaunchFailed | Skipped:
        """See `launch_marked`."""
        if not set(twin.digests) >= set(self._twins):
            self._twins.clear()
        return self._with_data(step, lambda data: launch_marked(self.device, twin, data, self._twins))

    def _with_data(self, step: Step, work: Callable[[WorkloadData], T]) -> T | LaunchFailed | Skipped:
        """`work` on the data of `step`."""
        if self._step is None or self._step[0] != step:
            # Another process has prepared it, which was killed from outside.
            skipped = self.prepare_step(step, self._path)
            if skipped is not None:
                return skipped
        assert self._step is not None
        try:
            return work(self._step[1])
        except DeviceError as error:
            return LaunchFailed(str(error), sticky=error.sticky)


MAX_NAMED_VALUES = 4
"""Values that a sentence names."""
BLAMED = {"reference": "the reference fails", "plain kernel": "the plain kernel fails"}
"""The cause, by the reason for which steps are left out."""


def for_left_out(
    steps: Mapping[str, Step], found: Sequence[Passed | Skipped], unusable: Sequence[tuple[str, int, float]]
) -> list[str]:
    """A sentence for each scalar and size with values that only steps have which were left out. steps: by name;
    unusable: made-up values of scalars that were left out before any step (name, level and value)."""
    passed = set[tuple[str, float]]()
    blamed: dict[tuple[str, str], set[float]] = {}
    for name, _, value in unusable:
        blamed.setdefault(("reference", name), set()).add(value)
    for one in found:
        if isinstance(one, Passed) and one.step in steps:
            passed |= {value for values in _made_up(steps[one.step]) for value in values}
    for one in found:
        if isinstance(one, Skipped) and one.reason in BLAMED and one.step in steps:
            # A size is to blame only where no scalar was changed.
            scalars, sizes = _made_up(steps[one.step])
            for name, value in {*(scalars or sizes)} - passed:
                blamed.setdefault((one.reason, name), set()).add(value)
    scalars_named = {name for name, _, _ in unusable} | {name for one in steps.values() for name, _ in _made_up(one)[0]}
    sentences = []
    for (reason, name), values in blamed.items():
        listed = ", ".join(f"{value:g}" for value in sorted(values)[:MAX_NAMED_VALUES])
        more = f" and {len(values) - MAX_NAMED_VALUES} more" if len(values) > MAX_NAMED_VALUES else ""
        remedy = _remedy(name, name in scalars_named)
        sentences.append(f"{BLAMED[reason]} where {name} is {listed}{more}, which was left out: {remedy}")
    return sentences


def for_rejection(step: Step) -> str:
    """A remedy for the case that no caller has the made-up values of the step that rejects the kernel; empty where it
    has none."""
    scalars, sizes = _made_up(step)
    named = " or ".join(f"{name} = {value:g}" for name, value in [*scalars, *sizes])
    remedies = [_remedy(name, True) for name, _ in scalars] + [_remedy(name, False) for name, _ in sizes]
    return f"the plain kernel is right there, but if no caller has {named}: {', or '.join(remedies)}" if named else ""


def _made_up(step: Step) -> tuple[Sequence[tuple[str, float]], Sequence[tuple[str, float]]]:
    """The scalars, and the sizes, that Tunesmith chose for a step: names and values."""
    return step.contents.scalars, list(step.workload.sizes.items()) if step.derived else []


def _remedy(name: str, is_scalar: bool) -> str:
    return f"list the `values` of {name} in the task" if is_scalar else f"give the range of {name} in `requires`"


SIDES: tuple[Side, ...] = ("end", "start")
"""Where kernels reach beyond an array, the likelier first."""
MAX_PROCESSES = 4
CORES_PER_PROCESS = 2
"""NumPy and the driver have threads of their own."""
PREPARE_SECONDS = 60.0
"""Deadline for the buffers and the reference results of one workload, unless the user says otherwise."""
MIN_STEP_SECONDS, STEP_SHARE = 2.0, 0.1
"""Deadline of the reference, or of the plain kernel, on a made-up workload: at least so many seconds, or this share of
the budget."""
MAX_LAUNCHES = 20
"""Launches in one step, which share its deadline."""
MAX_SETS = 8
"""Device memory of a step, with its sets and expected results, as a multiple of its workload's bytes."""


def process_count(limits: DeviceLimits) -> int:
    """How many processes go through steps at once: one on a CPU, whose cores run the kernels too."""
    if limits.kind == "cpu":
        return 1
    return max(1, min(MAX_PROCESSES, len(os.sched_getaffinity(0)) // CORES_PER_PROCESS))


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
        return min(self.run, max(MIN_STEP_SECONDS, STEP_SHARE * budget.seconds))


@dataclass(slots=True)
class Budget:
    """Seconds that steps on made-up workloads may take. reserve: the part kept for later steps; slow: made-up workloads
    on which the reference or the plain kernel took too long, each with a clause that says so."""

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
        """Does not count time spent on waiting for the device, on the task's own workloads, or on first steps, which
        compile the checks."""
        with self._lock:
            self.ends += seconds


@dataclass(frozen=True, slots=True)
class BuiltKernels:
    """The kernels that steps launch. workloads: of all steps; coverage: counts the parts of the candidate that run, or
    is None where `uncounted` says why not."""

    candidate: Candidate
    baseline: Candidate
    coverage: Coverage | None
    uncounted: str
    workloads: tuple[Workload, ...]


@dataclass(slots=True)
class Findings:
    """The results of `steps` so far, by their places. unchecked: clauses on faults that were not looked for; counting:
    parts that ran are still counted; first_wrong: the first step that rejects the candidate; surplus: blocks of the
    baseline's launches over the blocks that it needs, the minimum of the task's own workloads so far."""

    budget: Budget
    steps: list[Step] = field(default_factory=list)
    results: dict[int, Passed | Skipped | Outcome] = field(default_factory=dict)
    unchecked: dict[str, None] = field(default_factory=dict)
    first_wrong: int | None = None
    counting: bool = True
    surplus: float = math.inf
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, place: int, result: Passed | Skipped | Outcome) -> None:
        """The step at `place` has ended."""
        with self.lock:
            self.results[place] = result
            if not isinstance(result, Passed | Skipped):
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
        inside = sorted(place for place in self.results if self.wanted(place))
        return [result for place in inside if isinstance(result := self.results[place], Passed | Skipped)]

    def forget(self, names: Collection[str]) -> None:
        """Removes the results of steps that will be tried again."""
        self.results = {at: result for at, result in self.results.items() if self.steps[at].name not in names}

    def wrong(self) -> tuple[Outcome, Step] | None:
        """The outcome that rejects the candidate, and its step."""
        if self.first_wrong is None or isinstance(result := self.results[self.first_wrong], Passed | Skipped):
            return None
        return result, self.steps[self.first_wrong]


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
    """The start of the process that has been through a step, by the step's types."""
    baseline_ends: bool = False
    """The baseline is known to end on a workload of the task's."""

    def excluded(self, kernels: BuiltKernels, step: Step) -> Skipped | Outcome | None:
        """See `tunesmith.kernels.check.verify.excluded`."""
        return excluded(kernels.candidate, kernels.baseline, step, self.limits)

    def run(self, kernels: BuiltKernels, step: Step, place: int, findings: Findings, source: Preparation) -> None:
        """One step, whose result goes to `findings`."""
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
        result: Passed | Skipped | Outcome = self.try_plain(kernels.baseline, step, path, findings) or self.call(
            "verify", self.deadlines.run, kernels.candidate, kernels.baseline, step
        )
        if isinstance(result, Passed):
            if step.own and findings.surplus > 1:
                surplus = self.call("surplus", self.deadlines.run, kernels.baseline, step)
                findings.surplus = min(findings.surplus, surplus if isinstance(surplus, float) else 1.0)
            for edges in self._edges(step, place):
                beyond = self._at_edges(kernels, step, path, edges)
                if isinstance(beyond, str):
                    findings.unchecked.setdefault(beyond)
                elif beyond is not None:
                    result = beyond
                    break
        if isinstance(result, Passed) and kernels.coverage is not None:
            self._cover(kernels.coverage, step, findings)
        findings.note(place, result)

    def call(self, method: str, seconds: float, *arguments: Any) -> Any:
        """A call of the examiner, whose process ends where its device cannot be used any more."""
        result = self.examiner.call(method, seconds, *arguments)
        if isinstance(result, LaunchFailed | Skipped) and result.sticky:
            self.examiner.end()
        return result

    def _cover(self, coverage: Coverage, step: Step, findings: Findings) -> None:
        """Counts the parts that run in a launch on this step's data; where one fails, nothing is known any more."""
        key = types_key(step.workload)
        for one in (coverage, coverage.plain):
            if one is None or not findings.counting or not one.wanted(key):
                continue
            result = self.call("cover", self.deadlines.run, one.twin, step)
            if isinstance(result, frozenset):
                with findings.lock:
                    one.add(key, result)
            elif not isinstance(result, Skipped):
                findings.counting = False
                why = f"whether every part of the kernel ran was not looked at: on {step.name}, {describe(result)}"
                findings.unchecked.setdefault(why)

    def try_plain(self, baseline: Candidate, step: Step, path: Path | None, findings: Findings) -> Skipped | None:
        """Prepares `step` and launches the baseline in it: why the step is left out, or None."""
        short = self.deadlines.made_up_step(findings.budget) if step.derived and not self.is_cold(step) else math.inf
        # With prepared contents none of the user's code runs.
        making = self.deadlines.prepare if path is not None else min(short, self.deadlines.prepare)
        if (skipped := self._prepare(step, path, making)) is not None:
            return skipped
        self.listener(f"checking {step.name}")
        plain: Any = 0.0
        if short < math.inf:
            plain = self.call("time_baseline", short, baseline, step)
            if isinstance(plain, float) and plain > short / MAX_LAUNCHES:
                why = f"one launch of the plain kernel takes {plain:.2g} s"
                findings.note_slow(step, why)
                return Skipped(step.name, f"{why} there", reason="time")
        if isinstance(plain, float):
            plain = self.call("try_baseline", self.deadlines.run, baseline, step)
        if plain is None:
            self.warm_start[types_key(step.workload)] = self.examiner.starts
        if isinstance(plain, Skipped | None):
            return plain
        if isinstance(plain, TimedOut) and step.derived:
            findings.note_slow(step, f"the plain kernel takes longer than {plain.limit:g} s")
        self._require_baseline(baseline, step, plain)
        return Skipped(step.name, f"the plain kernel fails there: {describe(plain)}")

    def is_cold(self, step: Step) -> bool:
        """Whether the process has not been through a step of these types: the first one compiles and loads what later
        ones find, which takes seconds on a machine without caches."""
        return self.warm_start.get(types_key(step.workload)) != self.examiner.starts

    def plain_fits(self, baseline: Candidate, step: Step, findings: Findings) -> bool:
        """Whether nothing is known against the baseline in a made-up step, on which it must also keep to its arrays."""
        self.device.take()
        if (skipped := self.try_plain(baseline, step, None, findings)) is not None:
            return skipped.reason != "plain kernel"
        return not self._fails_at(baseline, step, None, edges_of(self._arrays, SIDES[0]))

    def _prepare(self, step: Step, path: Path | None, seconds: float) -> Skipped | None:
        """Has the data of `step` lie in the process."""
        self.listener(f"preparing {step.name}")
        answer: Skipped | TimedOut | Crashed | None = self.examiner.call("prepare_step", seconds, step, path)
        if isinstance(answer, TimedOut | Crashed):
            if step.own:
                require_prepared(self.task, step.name, answer)
            return Skipped(step.name, f"its data could not be made: {describe(answer)}", reason="reference")
        return answer

    def _require_baseline(self, baseline: Candidate, step: Step, failure: object) -> None:
        """Raises `TaskError` where the baseline, which failed on `step`, fails on the task's smallest workload too:
        hundreds of further steps would each wait for it."""
        if not step.own:
            if self.baseline_ends:
                return
            own = self.task.workloads_for(self.limits.kind, held_out=False)
            step = Step(min(own, key=self.task.bytes_of, default=step.workload), Contents(seed=step.contents.seed))
            self._prepare(step, None, self.deadlines.prepare)
            failure = self.call("try_baseline", self.deadlines.run, baseline, step)
        if isinstance(failure, Crashed | TimedOut):
            raise TaskError(
                f"The {self.limits.backend} baseline of {self.task.name} fails on the workload {step.workload.name}: "
                f"{describe(failure).rstrip('.')}. Fix its source or its launch, or give it more time with "
                "--run-deadline."
            )
        self.baseline_ends = True

    @property
    def _arrays(self) -> list[str]:
        return [argument.name for argument in self.task.arguments if argument.role != "scalar"]

    def _edges(self, step: Step, number: int) -> list[Edges]:
        """Which arrays lie at the edge of memory in further launches of a step. On the task's own workloads all do, on
        either side, and inputs that cannot be written, by which a kernel is found that uses them as scratch and puts
        back what was there; on derived ones, of which there are hundreds, one of these."""
        inputs = [argument.name for argument in self.task.arguments if argument.role == "in"]
        both = [edges_of(self._arrays, side) for side in SIDES]
        if step.derived or step.contents.kind != "task":
            return [both[number % len(both)]]
        return both + ([edges_of(inputs, writable=False)] if inputs else [])

    def _at_edges(self, kernels: BuiltKernels, step: Step, path: Path | None, edges: Edges) -> Outcome | str | None:
        """A rejection where the candidate, and not the baseline, fails with arrays at these edges. Otherwise None, or
        why nothing is known."""
        self.listener(f"checking accesses outside of arrays on {step.name}")
        result = self.call("try_edges", self.deadlines.run, kernels.candidate, step, edges)
        if result is True:
            return None
        if result is False:
            return (
                "accesses outside of arrays that change nothing, and inputs that are written for a moment, were not "
                "looked for: this device has no memory whose pages can be protected"
            )
        if isinstance(result, Skipped):
            return f"accesses outside of arrays were not looked for on {result.step}: {result.why}"
        if not isinstance(result, Crashed | LaunchFailed):
            failed: Outcome = result
            return failed
        if self._fails_at(kernels.baseline, step, path, edges):
            return f"accesses outside of arrays were not looked for on {step.name}: the baseline makes some"
        name = self._culprit(kernels.candidate, step, path, edges)
        where = f"on {step.name}: a launch fails when"
        if not edges.writable:
            detail = f"{where} arrays declared `in` cannot be written: {describe(result)}"
            return WrongResult("input_modified", name, detail)
        side = "ends" if edges.side == "end" else "begins"
        return WrongResult("out_of_bounds_access", name, f"{where} memory {side} where {name} does: {describe(result)}")

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
        return not isinstance(self.call("try_edges", self.deadlines.run, candidate, step, edges), bool | Skipped)


def run_steps(
    runners: Sequence[StepRunner],
    kernels: BuiltKernels,
    steps: Sequence[Step],
    max_bytes: float,
    findings: Findings,
    prepare: Callable[[Mapping[int, Step]], Preparation],
) -> None:
    """Goes through `steps`, which follow those of `findings`, the first ones first, until one rejects the candidate.
    Steps on workloads of more than `max_bytes` are the first runner's alone. prepare: begins to prepare steps by their
    places. Raises the error of a runner."""
    first, start = runners[0], len(findings.steps)
    findings.steps += steps
    left = dict(enumerate(steps, start))
    for place, step in left.items():
        if (reason := first.excluded(kernels, step)) is not None:
            findings.note(place, reason)
    left = {place: step for place, step in left.items() if place not in findings.results and findings.wanted(place)}
    light = {place: step for place, step in left.items() if first.task.bytes_of(step.workload) <= max_bytes}
    heavy = {place: step for place, step in left.items() if place not in light}
    waiting, lock, stop = iter(light), threading.Lock(), threading.Event()

    def run(runner: StepRunner, place: int, source: Preparation) -> None:
        begun, cold = time.monotonic(), runner.is_cold(left[place])
        try:
            runner.run(kernels, left[place], place, findings, source)
        finally:
            source.release(place)
        # A first step that fails leaves the process cold: were its time not counted, nothing would bound the verdict's.
        if not left[place].derived or (cold and not runner.is_cold(left[place])):
            findings.budget.extend((time.monotonic() - begun) / len(runners))

    def go_through(runner: StepRunner, source: Preparation) -> None:
        try:
            while not stop.is_set():
                with lock:
                    place = next(waiting, None)
                if place is None or not findings.wanted(place):
                    return
                run(runner, place, source)
        except BaseException:  # it is raised again; meanwhile the others must not begin anything
            stop.set()
            raise
        finally:
            runner.device.leave()

    with prepare(light | heavy) as source:
        if len(runners) == 1:
            go_through(first, source)
        else:
            with ThreadPoolExecutor(len(runners)) as threads:
                running = [threads.submit(go_through, runner, source) for runner in runners]
                try:
                    for ended in wait(running, return_when=FIRST_EXCEPTION).done:
                        ended.result()
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
