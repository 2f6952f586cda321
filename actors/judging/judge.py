"""Judges one candidate: accepted, or rejected for one of `tunesmith.kernels.check.check.REASONS`.

Compiling and running happen in processes of their own with deadlines, so that a compiler that never ends, a kernel that
spins and one that takes its process with it are verdicts as well. The reference, which is the task's own code, runs in
calls of its own, whose time and faults are not the candidate's. The device is held from here, from the first launch to
the end of compute-sanitizer: processes that are replaced meanwhile do not let go of it.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from tunesmith.actors.judging.examiner import Examiner
from tunesmith.actors.judging.steps import (
    PREPARE_SECONDS,
    SETS,
    Asked,
    Limits,
    StepRunner,
    prepared,
    process_count,
    run_steps,
)
from tunesmith.actors.process.isolated import Isolated, preload
from tunesmith.actors.process.workers import CompileWorker
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.exclusive import DeviceLock
from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.backends import NotMarked
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.blocks import MarkedArtifact
from tunesmith.kernels.build.candidate import Candidate, TypesKey, types_key, undeclared_state
from tunesmith.kernels.build.specialise import specialise
from tunesmith.kernels.check.coverage import Coverage, Unexecuted
from tunesmith.kernels.check.plan import Step, plan
from tunesmith.kernels.check.sanitize import Sanitized, Suspect, sanitize
from tunesmith.kernels.check.verify import (
    Passed,
    Skipped,
)
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

CALIBRATE_SECONDS = 60.0
"""For the device's roofs."""
QUICK = Precision(target=0.02, max_samples=20, budget_seconds=0.1)

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
    processes: int | None = None,
) -> list[Verdict]:
    """The full verdict on each template at its configuration, on workloads of up to `largest_bytes`.

    roofline: the device's roofs, which a launch is timed against; measured here if left out. lock: the device's, where
    the caller has one; it is released at the end. Raises `TunesmithError` where task or baseline are at fault.
    """
    preload(limits.backend)
    judged: list[tuple[Verdict, Suspect | None]] = []
    count = process_count(limits) if processes is None else processes
    with (
        Isolated("compile", CompileWorker, limits, index) as compiler,
        contextlib.ExitStack() as stack,
    ):
        examiners = [
            stack.enter_context(Isolated("run", Examiner, task, limits, index, seed)) for _ in range(max(1, count))
        ]
        device = stack.enter_context(contextlib.closing(_Device(lock or lock_of(examiners[0]), listener)))
        waited = deadlines or Limits()
        runners = [StepRunner(task, limits, waited, one, device.take, listener) for one in examiners]
        bench = _Bench(task, limits, seed, waited, compiler, runners, device, roofline, listener)
        for template, config, only in questions:
            started = time.monotonic()
            steps = plan(task, limits, seed, largest_bytes, only, _speaks_of(template, config))
            verdict, suspect = bench.judge(template, config, steps)
            judged.append((replace(verdict, seconds=round(time.monotonic() - started, 1)), suspect))
        # What the tool runs needs the memory that the examiners' buffers take.
        for examiner in examiners:
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
        self._taking = threading.Lock()

    def take(self) -> None:
        """Waits until no other process uses the device; says so when that lasts. For any thread."""
        with self._taking:
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
    """The processes of a judgement, and what is known of the device."""

    task: Task
    limits: DeviceLimits
    seed: int
    deadlines: Limits
    compiler: Isolated
    runners: Sequence[StepRunner]
    device: _Device
    roofline: Roofline | None
    listener: Callable[[str], None]

    def judge(self, template: Template, config: Config, steps: Sequence[Step]) -> tuple[Verdict, Suspect | None]:
        """The verdict but for the sanitizer's, and what that is to look at where nothing was found so far."""
        task, listener, first = self.task, self.listener, self.runners[0]
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
        coverage = self._marked(candidate, workloads)
        asked = Asked(candidate, baseline, coverage if isinstance(coverage, Coverage) else None)
        # What all processes hold at once leaves half of the device's memory to others.
        several = len(self.runners) > 1
        room = (self.limits.memory_bytes or 0) / (2 * SETS * len(self.runners)) if several else math.inf
        findings = run_steps(self.runners, asked, steps, room)
        passed = findings.passed()
        if (wrong := findings.wrong()) is not None:
            return rejected(wrong, passed), None
        unseen = [coverage] if isinstance(coverage, str) else []
        notes: tuple[str, ...] = (*self.task.caveats, *unseen, *findings.unseen)
        timed = min((step.workload for step in steps if not step.derived), key=task.bytes_of)
        listener(f"preparing {timed.name}")
        prepared(task, timed.name, first.examiner.call("prepare", self.deadlines.prepare, timed.name))
        self.device.take()
        floor = self._roofs().floor_seconds(task.bytes_of(timed), task.flops_of(timed), task.arithmetic) or 0.0
        listener(f"checking timed launches on {timed.name}")
        measured = first.examiner.call("visit", self.deadlines.run, candidate, timed.name, replace(QUICK, floor=floor))
        if not isinstance(measured, Measured):
            first.renew(measured)
            return rejected(measured, passed), None
        steady = all(step.deterministic for step in passed if isinstance(step, Passed))
        if not steady:
            notes += ("repeated launches differ in some bits, within the tolerance",)
        artifacts = {"candidate": candidate.digests, "baseline": baseline.digests}
        unexecuted = coverage.unexecuted() if isinstance(coverage, Coverage) and findings.covered else ()
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

    def _roofs(self) -> Roofline:
        """The device's roofs; none where the probes do not run on it."""
        if self.roofline is None:
            probes = self.compiler.call("probes", PREPARE_SECONDS)
            roofs = (
                self.runners[0].examiner.call("calibrate", CALIBRATE_SECONDS, probes)
                if isinstance(probes, dict)
                else None
            )
            self.roofline = roofs if isinstance(roofs, Roofline) else Roofline()
        return self.roofline


__all__ = ["Limits", "Question", "Verdict", "compile_all", "judge", "lock_of", "reason_of", "rejected"]
