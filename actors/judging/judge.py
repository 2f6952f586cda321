"""Judges one candidate: accepted, or rejected for one of `tunesmith.kernels.check.check.REASONS`.

Compiling and running happen in processes of their own with deadlines, so that a compiler that never ends, a kernel that
spins and one that takes its process with it are verdicts as well. The reference, which is the task's own code, runs in
calls of its own, whose time and faults are not the candidate's. The device is held from here, from the first launch to
the end of compute-sanitizer: processes that are replaced meanwhile do not let go of it.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from tunesmith.actors.process.isolated import Isolated, preload
from tunesmith.actors.process.workers import CompileWorker
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.exclusive import DeviceLock
from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.backends import DeviceError, NotMarked, OutOfDeviceMemory, Side
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.blocks import MarkedArtifact
from tunesmith.kernels.build.candidate import Candidate, TypesKey, types_key, undeclared_state
from tunesmith.kernels.build.specialise import specialise
from tunesmith.kernels.check.coverage import Coverage, Unexecuted, launch_marked
from tunesmith.kernels.check.edges import Edges, edges_of, launch_at_edges
from tunesmith.kernels.check.plan import Step, plan
from tunesmith.kernels.check.sanitize import Sanitized, Suspect, sanitize
from tunesmith.kernels.check.verify import (
    Passed,
    Skipped,
    excluded,
    measure_baseline,
    prepare_step,
    verify,
)
from tunesmith.kernels.launch.workload_data import WorkloadData
from tunesmith.kernels.measure.bench import Bench, WorkloadComparison
from tunesmith.kernels.measure.modes import Modes
from tunesmith.kernels.measure.timing import Precision
from tunesmith.kernels.outcome import (
    CompileFailed,
    Crashed,
    Implausible,
    LaunchFailed,
    Measured,
    Outcome,
    Rejected,
    TimedOut,
    WrongResult,
    describe,
)
from tunesmith.kernels.spec.parameter import Config
from tunesmith.kernels.spec.task import Task, Workload
from tunesmith.kernels.spec.template import Template

PREPARE_SECONDS = 60.0
"""For the buffers and the reference results of one workload, unless the user says otherwise."""
CALIBRATE_SECONDS = 60.0
"""For the device's roofs."""
QUICK = Precision(target=0.02, max_samples=20, budget_seconds=0.1)

SIDES: tuple[Side, ...] = ("end", "start")
"""Where kernels reach beyond an array, the likelier first."""
OUT_OF_MEMORY = "catastrophic error: out of memory"
"""What NVRTC says when it notices its memory bound itself."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """reason: empty when accepted, else a key of `REASONS`. steps: what was passed and skipped; notes: what was not
    looked at, and why; unexecuted: parts of the kernel that ran in none of the steps; artifacts: content hashes of the
    machine code of candidate and baseline; seconds: what checking took, compiling included and compute-sanitizer left
    out."""

    verdict: Literal["accepted", "rejected"]
    reason: str = ""
    detail: str = ""
    steps: tuple[Passed | Skipped, ...] = ()
    notes: tuple[str, ...] = ()
    unexecuted: tuple[Unexecuted, ...] = ()
    artifacts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def accepted(self) -> bool:
        return self.verdict == "accepted"

    def to_json(self) -> dict[str, Any]:
        """JSON types only."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds: to compile one source; to run one step once its data is there; to make that data, which is mostly the
    reference's time."""

    compile: float = 60.0
    run: float = 20.0
    prepare: float = PREPARE_SECONDS


class Examiner:
    """What runs in the process that uses the device. `index` counts this machine's devices of the backend."""

    def __init__(self, task: Task, limits: DeviceLimits, index: int, seed: int) -> None:
        self._bench = Bench(task, limits, index, seed=seed)
        self._data: tuple[Step, WorkloadData] | None = None
        """What was prepared for the step at hand."""
        self._twins: dict[str, tuple[object, object]] = {}
        """Marked kernels that are loaded, and their marks."""
        self._loaded: dict[str, object] = {}
        """Kernels that are loaded, by the digest of their machine code: a verdict launches two in hundreds of steps."""

    def uuid(self) -> str:
        """The device's, by which it is locked."""
        return self._bench.device.uuid

    def prepare(self, workload: str) -> None:
        """The buffers of a workload for `visit`, `compare` and `modes`."""
        self._data = None
        self._bench.prepare([workload])

    def prepare_step(self, step: Step) -> Skipped | None:
        """The data for `verify`."""
        self._data = None
        made = prepare_step(self._bench.device, self._bench.task, step, max_bytes=self._bench.room)
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
        return verify(self._bench.device, candidate, baseline, step, data, self._loaded)

    def try_baseline(self, baseline: Candidate, step: Step) -> Skipped | None:
        """Runs the baseline alone: None where nothing is wrong with it."""
        data = self._prepared(step)
        if isinstance(data, Skipped):
            return data
        found = measure_baseline(self._bench.device, baseline, step, data)
        return found if isinstance(found, Skipped) else None

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
            skipped = self.prepare_step(step)
            if skipped is not None:
                return skipped
        assert self._data is not None
        return self._data[1]

    def visit(self, candidate: Candidate, workload: str, precision: Precision) -> Outcome:
        return self._bench.visit(candidate, [workload], precision)[workload]

    def compare(
        self, baseline: Candidate, candidate: Candidate, workload: str, rounds: int, seconds: float, floor: float
    ) -> WorkloadComparison:
        return self._bench.compare(baseline, [candidate], workload, rounds=rounds, budget_seconds=seconds, floor=floor)

    def modes(self, candidate: Candidate, workload: str) -> Modes | Outcome:
        return self._bench.modes(candidate, workload)

    def calibrate(self, probes: dict[str, Artifact]) -> Roofline:
        return self._bench.calibrate(probes)


def prepared(task: Task, what: str, found: object) -> None:
    """Raises `TunesmithError` where preparing `what` overran its deadline or ended its process: no kernel ran, only
    the user's reference."""
    match found:
        case TimedOut():
            raise TunesmithError(
                f"Task {task.name}: preparing the data of {what} took longer than {found.limit:g} s; most likely the "
                f"reference {task.reference_name} does not end: make it faster, or the workload smaller."
            )
        case Crashed():
            raise TunesmithError(
                f"Task {task.name}: {found.detail} while it prepared the data of {what}; most likely the reference "
                f"{task.reference_name} ends it: fix the reference."
            )


def lock_of(examiner: Isolated) -> DeviceLock:
    """The lock of an examiner's device. Raises `TunesmithError` where the device cannot be opened."""
    uuid = examiner.call("uuid", PREPARE_SECONDS)
    if not isinstance(uuid, str):
        raise TunesmithError(f"The device cannot be used: {describe(uuid)}.")
    return DeviceLock(uuid)


def reason_of(outcome: Outcome) -> str:
    """The key of `REASONS` for an outcome that is not a measurement."""
    match outcome:
        case Rejected():
            return (
                outcome.reason
                if outcome.reason in ("source_too_large", "forbidden_source", "device_state")
                else "infeasible"
            )
        case CompileFailed():
            # A compiler that meets its memory bound may die of it, or notice and stop: the same end of the same source.
            return "compile_crashed" if OUT_OF_MEMORY in outcome.first_error else "compile_failed"
        case LaunchFailed():
            return "launch_failed"
        case WrongResult():
            return outcome.reason
        case Implausible():
            return "implausible"
        case TimedOut():
            return "compile_timeout" if outcome.phase == "compile" else "timed_out"
        case Crashed():
            return "compile_crashed" if outcome.phase == "compile" else "crashed"
        case Measured():
            raise ValueError("a measurement is no rejection")


def rejected(outcome: Outcome, steps: Sequence[Passed | Skipped] = (), notes: Sequence[str] = ()) -> Verdict:
    return Verdict("rejected", reason_of(outcome), describe(outcome), tuple(steps), tuple(notes))


def compile_all(
    compiler: Isolated, template: Template, config: Config, workloads: Sequence[Workload], seconds: float
) -> Candidate | Outcome:
    """`template` at `config` for every combination of types of `workloads`, or the first failure."""
    artifacts: dict[TypesKey, Artifact] = {}
    for workload in workloads:
        if types_key(workload) in artifacts:
            continue
        made = compiler.call("compile", seconds, specialise(template, config, workload.types))
        if not isinstance(made, Artifact):
            failure: Outcome = made
            return failure
        if (kept := undeclared_state(template, made)) is not None:
            return kept
        artifacts[types_key(workload)] = made
    return Candidate(template, config, artifacts)


Question = tuple[Template, Config, str | None]
"""A template at a configuration, for one workload or, with None, for all."""


def judge(
    task: Task,
    limits: DeviceLimits,
    index: int,
    questions: Sequence[Question],
    *,
    seed: int = 0,
    deadlines: Limits | None = None,
    largest_bytes: float = math.inf,
    roofline: Roofline | None = None,
    lock: DeviceLock | None = None,
    listener: Callable[[str], None] = lambda _: None,
) -> list[Verdict]:
    """The full verdict on each template at its configuration, on workloads of up to `largest_bytes`.

    roofline: the device's roofs, which a launch is timed against; measured here if left out. lock: the device's, where
    the caller has one; it is released at the end. Raises `TunesmithError` where task or baseline are at fault.
    """
    preload(limits.backend)
    judged: list[tuple[Verdict, Suspect | None]] = []
    with (
        Isolated("compile", CompileWorker, limits, index) as compiler,
        Isolated("run", Examiner, task, limits, index, seed) as examiner,
        contextlib.closing(_Device(lock or lock_of(examiner), listener)) as device,
    ):
        bench = _Bench(task, limits, seed, deadlines or Limits(), compiler, examiner, device, roofline, listener)
        for template, config, only in questions:
            started = time.monotonic()
            steps = plan(task, limits, seed, largest_bytes, only, _speaks_of(template, config))
            verdict, suspect = bench.judge(template, config, steps)
            judged.append((replace(verdict, seconds=round(time.monotonic() - started, 1)), suspect))
        # What the tool runs needs the memory that the examiner's buffers take.
        examiner.end()
        suspects = [suspect for _, suspect in judged if suspect is not None]
        if suspects:
            device.take()
            listener("compute-sanitizer")
        clean = iter(sanitize(suspects, task, limits, index, seed))
    return [verdict if suspect is None else _sanitized(verdict, next(clean)) for verdict, suspect in judged]


def _speaks_of(template: Template, config: Config) -> str:
    """What of a candidate names sizes: its source, with its parameters, and how it is launched."""
    launch = template.launch
    parameters = " ".join(f"== {value}" for value in config.values() if isinstance(value, int))
    return "\n".join([template.source, parameters, *map(str, (*launch.grid, *launch.block))])


class _Device:
    """The device's lock, held from the first `take` to the end."""

    def __init__(self, lock: DeviceLock, listener: Callable[[str], None]) -> None:
        self._lock, self._listener = lock, listener

    def take(self) -> None:
        """Waits until no other process uses the device; says so when that lasts."""
        self._lock.acquire(self._listener)

    def close(self) -> None:
        self._lock.release()


def _sanitized(verdict: Verdict, found: Sanitized) -> Verdict:
    notes = (*([found.note] if found.note else []), *verdict.notes)
    if found.found:
        return replace(verdict, verdict="rejected", reason="sanitizer", detail=found.found, notes=notes)
    return replace(verdict, notes=notes)


@dataclass(slots=True)
class _Bench:
    """The two processes of a judgement, and what is known of the device."""

    task: Task
    limits: DeviceLimits
    seed: int
    deadlines: Limits
    compiler: Isolated
    examiner: Isolated
    device: _Device
    roofline: Roofline | None
    listener: Callable[[str], None]

    def judge(self, template: Template, config: Config, steps: Sequence[Step]) -> tuple[Verdict, Suspect | None]:
        """The verdict but for the sanitizer's, and what that is to look at where nothing was found so far."""
        task, listener = self.task, self.listener
        if not steps:
            raise TunesmithError(
                f"The task {task.name} has no workload for a {self.limits.kind}: add one whose `devices` lists it."
            )
        workloads = [step.workload for step in steps]
        listener("compiling")
        candidate = compile_all(self.compiler, template, config, workloads, self.deadlines.compile)
        if not isinstance(candidate, Candidate):
            return rejected(candidate), None
        plain = task.sources(self.limits.backend).baseline.template
        baseline = compile_all(self.compiler, plain, {}, workloads, self.deadlines.compile)
        if not isinstance(baseline, Candidate):
            raise TunesmithError(f"The baseline of {task.name} cannot be compiled: {describe(baseline)}.")
        passed: list[Passed | Skipped] = []
        unseen: dict[str, None] = {}
        coverage = self._marked(candidate, workloads)
        if isinstance(coverage, str):
            unseen.setdefault(coverage)
        for number, step in enumerate(steps):
            found = self._step(candidate, baseline, step)
            if isinstance(found, Passed):
                for edges in self._edges(step, number):
                    beyond = self._at_edges(candidate, baseline, step, edges)
                    if isinstance(beyond, str):
                        unseen.setdefault(beyond)
                    elif beyond is not None:
                        found = beyond
                        break
            if not isinstance(found, Passed | Skipped):
                self._renew(found)
                return rejected(found, passed), None
            passed.append(found)
            if isinstance(found, Passed) and isinstance(coverage, Coverage):
                coverage = self._covered(coverage, step)
        notes: tuple[str, ...] = (*self.task.caveats, *unseen)
        timed = min((step.workload for step in steps if not step.derived), key=task.bytes_of)
        listener(f"preparing {timed.name}")
        prepared(task, timed.name, self.examiner.call("prepare", self.deadlines.prepare, timed.name))
        self.device.take()
        floor = self._roofs().floor_seconds(task.bytes_of(timed), task.flops_of(timed), task.arithmetic) or 0.0
        listener(f"checking timed launches on {timed.name}")
        measured = self.examiner.call("visit", self.deadlines.run, candidate, timed.name, replace(QUICK, floor=floor))
        if not isinstance(measured, Measured):
            self._renew(measured)
            return rejected(measured, passed), None
        steady = all(step.deterministic for step in passed if isinstance(step, Passed))
        if not steady:
            notes += ("repeated launches differ in some bits, within the tolerance",)
        artifacts = {"candidate": candidate.digests, "baseline": baseline.digests}
        unexecuted = coverage.unexecuted() if isinstance(coverage, Coverage) else ()
        return Verdict("accepted", "", "", tuple(passed), notes, unexecuted, artifacts), (candidate, workloads)

    def _marked(self, candidate: Candidate, workloads: Sequence[Workload]) -> Coverage | str:
        """The candidate's marked twin, or why there is none."""
        marked: dict[TypesKey, MarkedArtifact] = {}
        for workload in workloads:
            key = types_key(workload)
            if key in marked:
                continue
            source = specialise(candidate.template, candidate.config, workload.types)
            made = self.compiler.call("mark", self.deadlines.compile, source)
            if not isinstance(made, MarkedArtifact):
                why = made.why if isinstance(made, NotMarked) else describe(made)
                return f"whether every part of the kernel ran was not looked at: {why}"
            marked[key] = made
        return Coverage(candidate, marked)

    def _covered(self, coverage: Coverage, step: Step) -> Coverage | str:
        """`coverage` with what a launch on this step's data adds, or why nothing is known any more."""
        key = types_key(step.workload)
        if not coverage.wanted(key):
            return coverage
        found = self.examiner.call("cover", self.deadlines.run, coverage.twin, step)
        self._renew(found)
        if isinstance(found, frozenset):
            coverage.add(key, found)
        elif not isinstance(found, Skipped):
            return f"whether every part of the kernel ran was not looked at: on {step.name}, {describe(found)}"
        return coverage

    def _step(self, candidate: Candidate, baseline: Candidate, step: Step) -> Passed | Skipped | Outcome:
        if (reason := excluded(candidate, step, self.limits)) is not None:
            return reason
        self.listener(f"preparing {step.name}")
        skipped = self.examiner.call("prepare_step", self.deadlines.prepare, step)
        prepared(self.task, step.name, skipped)
        if isinstance(skipped, Skipped):
            return skipped
        self.device.take()
        self.listener(f"checking {step.name}")
        found: Passed | Skipped | Outcome = self.examiner.call("verify", self.deadlines.run, candidate, baseline, step)
        self._renew(found)
        if step.derived and isinstance(found, Crashed | TimedOut):
            # Nobody promised that the baseline bears a size that was made up here.
            alone = self.examiner.call("try_baseline", self.deadlines.run, baseline, step)
            self._renew(alone)
            if isinstance(alone, Crashed | TimedOut):
                return Skipped(step.name, f"the baseline fails there: {describe(alone)}")
            if isinstance(alone, Skipped):
                return alone
        return found

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

    def _at_edges(self, candidate: Candidate, baseline: Candidate, step: Step, edges: Edges) -> Outcome | str | None:
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
        self._renew(found)
        if not isinstance(found, Crashed | LaunchFailed):
            failed: Outcome = found
            return failed
        if self._fails_at(baseline, step, edges):
            return f"accesses outside of arrays were not looked for on {step.name}: the baseline makes some"
        where = f"on {step.name}: a launch fails when"
        if not edges.writable:
            written = self._culprit(candidate, step, edges)
            detail = f"{where} arrays declared `in` cannot be written: {describe(found)}"
            return WrongResult("input_modified", written, detail)
        name = self._culprit(candidate, step, edges)
        side = "ends" if edges.side == "end" else "begins"
        return WrongResult("out_of_bounds_access", name, f"{where} memory {side} where {name} does: {describe(found)}")

    def _culprit(self, candidate: Candidate, step: Step, edges: Edges) -> str:
        """The first array that makes `candidate` fail when it alone lies there; all where none does alone."""
        for argument in self.task.arguments:
            if argument.name in edges.arrays and self._fails_at(
                candidate, step, replace(edges, arrays=frozenset({argument.name}))
            ):
                return argument.name
        return ", ".join(sorted(edges.arrays))

    def _fails_at(self, candidate: Candidate, step: Step, edges: Edges) -> bool:
        prepared(self.task, step.name, self.examiner.call("prepare_step", self.deadlines.prepare, step))
        found = self.examiner.call("try_edges", self.deadlines.run, candidate, step, edges)
        self._renew(found)
        return not isinstance(found, bool | Skipped)

    def _renew(self, found: object) -> None:
        """Ends the process whose device cannot be used any more, so that the next call starts another."""
        if (isinstance(found, LaunchFailed) and found.sticky) or (isinstance(found, Skipped) and found.sticky):
            self.examiner.end()

    def _roofs(self) -> Roofline:
        """The device's roofs; none where the probes do not run on it."""
        if self.roofline is None:
            probes = self.compiler.call("probes", PREPARE_SECONDS)
            roofs = self.examiner.call("calibrate", CALIBRATE_SECONDS, probes) if isinstance(probes, dict) else None
            self.roofline = roofs if isinstance(roofs, Roofline) else Roofline()
        return self.roofline


__all__ = [
    "Examiner",
    "Limits",
    "Question",
    "Verdict",
    "compile_all",
    "judge",
    "lock_of",
    "prepared",
    "reason_of",
    "rejected",
]
