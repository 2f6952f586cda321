"""The full verdict on one candidate: accepted, partial, or rejected for one of
`tunesmith.kernels.check.compare.REASONS`.

Owns the compile process of a judgement, in which a candidate for each combination of types, its marked twin and the
task's baseline are compiled ahead of the steps that need them, and the order of the steps.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from tunesmith.actors.judging.steps import (
    MAX_SETS,
    BuiltKernels,
    ContentsHost,
    Findings,
    HeldDevice,
    Preparation,
    StepRunner,
    for_left_out,
    for_rejection,
    process_count,
    require_prepared,
    run_steps,
)
from tunesmith.actors.process import Isolated, preload
from tunesmith.actors.workers import CompileWorker, Deadlines, DeviceWorker
from tunesmith.hw.device_lock import DeviceLock
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.build.artifact import Artifact, Candidate, types_key, undeclared_state
from tunesmith.kernels.build.machine_code import MarkedArtifact
from tunesmith.kernels.build.source import CodeKey, code_key, literal, specialise
from tunesmith.kernels.check.compare import REASONS
from tunesmith.kernels.check.coverage import Coverage, Unexecuted
from tunesmith.kernels.check.far import FarStep, far_steps
from tunesmith.kernels.check.plan import Step, plan, reaching_steps, small_workload
from tunesmith.kernels.check.sanitizer import Sanitized, Suspect, sanitize
from tunesmith.kernels.check.verify import Passed, Skipped, unlaunchable
from tunesmith.kernels.measure.timing import Precision
from tunesmith.kernels.outcome import (
    CompileFailed,
    Crashed,
    LaunchFailed,
    Measured,
    Outcome,
    Rejected,
    TimedOut,
    WrongResult,
    describe,
)
from tunesmith.kernels.spec.task import Task, Workload
from tunesmith.kernels.spec.template import BACKENDS, Config, Template

REACHING_BATCH = 8
"""Steps that enter further blocks between two looks at the blocks that have not run yet."""
CHECK_SECONDS = {"gpu": 20.0, "cpu": 60.0}
"""Time for the steps on made-up workloads, by the kind of device, unless the user says otherwise."""
REACHING_SHARE = 0.25
"""Share of that time that is kept for entering blocks which the other steps do not enter."""
MAX_EXCLUDED_SHARE = 0.5
"""Share of the made-up workloads that a template may exclude for its verdict to hold for all sizes."""
MAX_EXCLUDED_TRIALS = 32
"""Excluded steps in which the plain kernel is tried, where a template excludes most."""
QUICK = Precision(target=0.02, max_samples=20, budget_seconds=0.1)
MAX_CLASSES = 64
"""Combinations of types and classes of arguments, each machine code of its own, that a verdict compiles beside
those of the task's workloads. A Triton kernel whose sizes are constants has one for each size."""
MAX_COMPILERS = 16
"""Processes that compile a candidate's classes of sizes."""
OUT_OF_MEMORY = "catastrophic error: out of memory"
"""NVRTC's message when it notices its memory bound itself."""

Question = tuple[Template, Config, str | None]
"""A template at a configuration, for one workload or, with None, for all."""


@dataclass(frozen=True, slots=True)
class JudgeOptions:
    """seed: of all that is drawn; largest_bytes: of a workload that a step may have; roofline: the device's roofs, for
    the timed launch, measured by the judgement if left out; lock: the device's, where the caller has one, which is
    released at the end; listener: called with the step at hand; processes: that go through steps at once."""

    seed: int = field(default_factory=lambda: secrets.randbits(32))
    deadlines: Deadlines = field(default_factory=Deadlines)
    largest_bytes: float = math.inf
    roofline: Roofline | None = None
    lock: DeviceLock | None = None
    listener: Callable[[str], None] = lambda _: None
    processes: int | None = None


@dataclass(frozen=True, slots=True)
class CandidateVerdict:
    """partial: no fault was found, but the template excludes most workloads that could show one. reason: empty unless
    rejected, else a key of `REASONS`. notes: clauses on checks that were not made, and why; unexecuted: parts of the
    kernel that ran in none of the steps; artifacts: content hashes of the machine code of candidate and baseline;
    seconds: time of the checks, compiling included and sanitizers left out; seed: of all that was drawn."""

    verdict: Literal["accepted", "partial", "rejected"]
    reason: str = ""
    detail: str = ""
    steps: tuple[Passed | Skipped, ...] = ()
    notes: tuple[str, ...] = ()
    unexecuted: tuple[Unexecuted, ...] = ()
    artifacts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    seconds: float = 0.0
    seed: int = 0

    @property
    def accepted(self) -> bool:
        return self.verdict == "accepted"


def lock_of(examiner: Isolated) -> DeviceLock:
    """The lock of an examiner's device. Raises `TunesmithError` where the device cannot be opened."""
    uuid = examiner.call("uuid", Deadlines().prepare)
    if not isinstance(uuid, str):
        raise TunesmithError(f"The device cannot be used: {describe(uuid)}.")
    return DeviceLock(uuid)


def reason_of(outcome: Outcome) -> str:
    """The key of `REASONS` for an outcome that is not a measurement."""
    match outcome:
        case Rejected():
            return outcome.reason if outcome.reason in REASONS else "infeasible"
        case WrongResult():
            return outcome.reason
        case CompileFailed():
            # A compiler that meets its memory bound may die of it, or notice and stop: the same end of the same source.
            return "compile_crashed" if OUT_OF_MEMORY in outcome.first_error else "compile_failed"
        case TimedOut(phase="compile"):
            return "compile_timeout"
        case Crashed(phase="compile"):
            return "compile_crashed"
    return outcome.kind


def rejected(outcome: Outcome, steps: Sequence[Passed | Skipped] = ()) -> CandidateVerdict:
    return CandidateVerdict("rejected", reason_of(outcome), describe(outcome), tuple(steps))


def _rejected_at(outcome: Outcome, step: Step, passed: Sequence[Passed | Skipped]) -> CandidateVerdict:
    """The rejection in a step, with the remedy for the case that no caller has its made-up values."""
    verdict, remedy = rejected(outcome, passed), for_rejection(step)
    return replace(verdict, detail=f"{verdict.detail}; {remedy}") if remedy else verdict


def _dealt(
    compilers: Sequence[Isolated], method: str, seconds: float, template: Template, config: Config, keys: list[CodeKey]
) -> Iterator[tuple[CodeKey, Any]]:
    """The answers of compilers to the sources for `keys`, in their order, dealt out in turn: a list that comes again
    with another method finds each source where it was, and what its process has kept of it."""
    threads = [ThreadPoolExecutor(1, "compiler") for _ in compilers]
    sources = [specialise(template, config, dict(key)) for key in keys]
    hands = list(zip(itertools.cycle(zip(threads, compilers, strict=True)), sources, strict=False))
    answers = [thread.submit(compiler.call, method, seconds, source) for (thread, compiler), source in hands]
    try:
        yield from ((key, answer.result()) for key, answer in zip(keys, answers, strict=True))
    finally:
        for thread in threads:
            thread.shutdown(cancel_futures=True)


def compile_all(
    compilers: Sequence[Isolated],
    task: Task,
    template: Template,
    config: Config,
    workloads: Sequence[Workload],
    seconds: float,
    known: dict[CodeKey, Artifact] | None = None,
    limits: DeviceLimits | None = None,
) -> Candidate | Outcome:
    """`template` at `config` for everything of `workloads` that decides the code, or the first failure. known: compiled
    before, to which new artifacts are added. limits: of a device, on which a launch may fail on one of `workloads`, as
    far as that shows without it."""
    artifacts = {} if known is None else known
    keys = dict.fromkeys(code_key(task, template, workload) for workload in workloads)
    new = [key for key in keys if key not in artifacts]
    for key, artifact in _dealt(compilers, "compile", seconds, template, config, new):
        wrong: Outcome | None = undeclared_state(template, artifact) if isinstance(artifact, Artifact) else artifact
        if wrong is not None:
            return wrong
        artifacts[key] = artifact
    made = Candidate(template, config, {key: artifacts[key] for key in keys})
    refusals = (unlaunchable(made, task, one, limits) for one in workloads) if limits is not None else ()
    return next(filter(None, refusals), made)


def judge(
    task: Task, limits: DeviceLimits, index: int, questions: Sequence[Question], options: JudgeOptions | None = None
) -> list[CandidateVerdict]:
    """The full verdict on each template at its configuration. Raises `TunesmithError` where task or baseline are at
    fault."""
    verdicts, suspects = list[CandidateVerdict](), dict[int, Suspect]()
    with contextlib.ExitStack() as stack:
        options = options or JudgeOptions()
        judgement = _Judgement(task, limits, index, questions, options, stack)
        for only, steps, building, note in [judgement.plan(*question) for question in questions]:
            started = time.monotonic()
            verdict, suspect = judgement.judge(building, steps, only)
            verdict = replace(verdict, notes=(*verdict.notes, *note))
            if suspect is not None:
                suspects[len(verdicts)] = suspect
            verdicts.append(replace(verdict, seconds=round(time.monotonic() - started, 1), seed=options.seed))
        for place, answer in zip(suspects, judgement.sanitize(list(suspects.values())), strict=True):
            found = verdicts[place]
            if isinstance(answer, WrongResult):
                verdicts[place] = replace(found, verdict="rejected", reason=answer.reason, detail=answer.detail)
            elif answer:
                verdicts[place] = replace(found, notes=(answer, *found.notes))
    return verdicts


def _source_with_parameters(template: Template, config: Config) -> str:
    """The parts of a candidate that name sizes: its source, with its parameters as macros, and its launch."""
    launch, whole = template.launch, {name: value for name, value in config.items() if isinstance(value, int)}
    macros = [f"#define {name} {literal(value)}" for name, value in whole.items()]
    compared = [f"x == {name};" for name in whole]
    return "\n".join([*macros, template.source, *compared, *(f"{text};" for text in (*launch.grid, *launch.block))])


def of_few_classes(task: Task, template: Template, steps: Sequence[Step]) -> list[Step]:
    """The steps, in their order, without those on made-up sizes that need machine code beyond `MAX_CLASSES`."""
    known = {code_key(task, template, step.workload) for step in steps if not step.derived}
    most, kept = len(known) + MAX_CLASSES, list[Step]()
    for step in steps:
        key = code_key(task, template, step.workload)
        if key in known or len(known) < most:
            known.add(key)
            kept.append(step)
    return kept


def _account(made_up: Collection[Step], results: Sequence[Passed | Skipped], seconds: float) -> tuple[str, ...]:
    """A sentence on steps for which no time was left; none where there was enough. Steps that were left out for other
    reasons do not count."""
    skipped = {result.step: result.reason for result in results if isinstance(result, Skipped)}
    wanted = [step for step in made_up if skipped.get(step.name, "time") == "time"]
    done = [step for step in wanted if step.name not in skipped]
    if len(done) == len(wanted):
        return ()
    pairs = {pair for step in wanted for pair in step.pairs}
    covered = {pair for step in done for pair in step.pairs}
    return (
        f"{len(done)} of {len(wanted)} steps on made-up sizes within {seconds:g} s (--check-time), "
        f"{len(covered) / len(pairs):.0%} of all pairs of sizes, types, contents and scalars",
    )


class _Judgement:
    """The processes of a judgement, which end with `stack`, and the facts known of task and device."""

    def __init__(
        self,
        task: Task,
        limits: DeviceLimits,
        index: int,
        questions: Sequence[Question],
        options: JudgeOptions,
        stack: contextlib.ExitStack,
    ) -> None:
        self._task, self._limits, self._index, self._options = task, limits, index, options
        self._roofline, deadlines = options.roofline, options.deadlines
        preload(limits.backend)
        count = max(1, process_count(limits) if options.processes is None else options.processes)
        examiners = [Isolated("run", DeviceWorker, task, limits, index, options.seed) for _ in range(count)]
        self._hosts = [Isolated("run", ContentsHost, task) for _ in examiners]
        for process in (*examiners, *self._hosts):
            stack.enter_context(process)
        lock = options.lock or lock_of(examiners[0])
        stack.callback(lock.release)
        self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tunesmith-")))
        # Steps wait for Triton's kernels: one for each class of sizes, about twenty in a verdict, at a second each.
        many = (os.cpu_count() or 1) if BACKENDS[limits.backend].python else 1
        self._compilers = [Isolated("compile", CompileWorker, limits, index) for _ in range(min(many, MAX_COMPILERS))]
        for compiler in self._compilers:
            stack.enter_context(compiler)
        self._queue = ThreadPoolExecutor(1, "compiling")
        stack.callback(self._queue.shutdown, cancel_futures=True)
        for compiler in self._compilers:
            stack.callback(compiler.kill)
        self._baseline: dict[CodeKey, Artifact] = {}
        self._marked_baseline: dict[CodeKey, MarkedArtifact] = {}
        device = HeldDevice(lock, options.listener)
        self._runners = [StepRunner(task, limits, deadlines, one, device, options.listener) for one in examiners]
        self._first = self._runners[0]
        unusable: object = None
        own = [workload for workload in task.workloads if limits.kind in workload.devices]
        if own and not task.original_is_reference and any(only is None for _, _, only in questions):
            small = small_workload(task, own)
            unusable = self._hosts[0].call("unusable_scalars", deadlines.prepare, small, options.seed)
        self._far = far_steps(task, limits, options.seed)
        self._unusable: list[tuple[str, int, float]] = unusable if isinstance(unusable, list) else []
        """See `ContentsHost.unusable_scalars`. Where the reference is too slow to tell, the steps will."""

    def plan(
        self, template: Template, config: Config, only: str | None
    ) -> tuple[str | None, list[Step], Future[BuiltKernels | Outcome], tuple[str, ...]]:
        """The workload and the steps, at least one, of a question, its kernels, once they are compiled, and a clause on
        steps that were left out, if there are any."""
        options, source = self._options, _source_with_parameters(template, config)
        unusable = {(name, level) for name, level, _ in self._unusable}
        steps = plan(self._task, self._limits, options.seed, options.largest_bytes, only, source, unusable)
        if not steps:
            kind = self._limits.kind
            raise TunesmithError(
                f"The task {self._task.name} has no workload for a {kind}: add one whose `devices` lists it."
            )
        kept = of_few_classes(self._task, template, steps)
        left, note = len(steps) - len(kept), f"as each of their sizes is machine code of its own, beyond {MAX_CLASSES}"
        workloads = [step.workload for step in kept] + [far.workload for far in self._far if only is None]
        building = self._queue.submit(self._build, template, config, workloads)
        return only, kept, building, (f"{left} steps on made-up sizes were left out, {note}",) if left else ()

    def judge(
        self, building: Future[BuiltKernels | Outcome], steps: Sequence[Step], only: str | None
    ) -> tuple[CandidateVerdict, Suspect | None]:
        """The verdict but for the sanitizer's, and the candidate for the sanitizer unless it is rejected already."""
        self._first.device.leave()
        self._options.listener("compiling")
        built = building.result()
        if not isinstance(built, tuple):
            return rejected(built), None
        candidate, baseline, coverage = built
        findings = Findings(built, self._options.deadlines.check or CHECK_SECONDS[self._limits.kind])
        self._go_through(steps, only, findings)
        passed = findings.passed()
        if (wrong := findings.wrong()) is not None:
            return _rejected_at(*wrong, passed), None
        own = [step.workload for step in steps if not step.derived]
        timed = self._timed(candidate, min(own, key=lambda one: (one.held_out, self._task.bytes_of(one))))
        if not isinstance(timed, Measured):
            return rejected(timed, passed), None
        for far in self._far if only is None else ():
            result = self._launched_far(candidate, baseline, far)
            if not isinstance(result, Passed | Skipped):
                return _rejected_at(result, replace(far.period, workload=far.workload), passed), None
            passed.append(result)
            if isinstance(result, Skipped):
                findings.unchecked.setdefault(f"arrays beyond 4 GiB were not checked: on {result.step}, {result.why}")
        made_up = {step.name: step for step in steps if step.derived}
        notes = [*self._task.caveats, *([coverage] if isinstance(coverage, str) else []), *findings.unchecked]
        if not all(step.deterministic for step in passed if isinstance(step, Passed)):
            notes.append("repeated launches differ in some bits, within the tolerance")
        notes += _account(made_up.values(), passed, findings.seconds)
        notes += for_left_out({step.name: step for step in steps}, passed, self._unusable if only is None else ())
        excluded = self._excluded(made_up, passed, findings)
        partial = excluded > MAX_EXCLUDED_SHARE * len(made_up)
        verdict = CandidateVerdict(
            "partial" if partial else "accepted",
            detail=f"the template excludes {excluded} of {len(made_up)} steps on made-up sizes" if partial else "",
            steps=tuple(passed),
            notes=tuple(notes),
            unexecuted=() if isinstance(coverage, str) or not findings.counting else coverage.unexecuted(),
            artifacts={"candidate": candidate.digests, "baseline": baseline.digests},
        )
        # Where the plain kernel is not right, it may also access memory that it must not.
        fit = {step.step for step in passed if isinstance(step, Passed)}
        return verdict, (candidate, baseline, [step for step in steps if step.name in fit])

    def sanitize(self, suspects: Sequence[Suspect]) -> Sequence[Sanitized]:
        """The sanitizer's answers, once the memory of the examiners' buffers is free."""
        for runner in self._runners:
            runner.examiner.end()
        if suspects:
            self._first.device.take()
            self._options.listener("sanitizer")
        return sanitize(suspects, self._task, self._limits, self._index)

    def _go_through(self, steps: Sequence[Step], only: str | None, findings: Findings) -> None:
        """The planned steps, then steps on sizes that enter blocks which none of them entered, then those for which no
        time was left before."""
        candidate, baseline, coverage = findings.kernels
        findings.reserve = REACHING_SHARE * findings.seconds if isinstance(coverage, Coverage) else 0.0
        self._run(steps, findings)
        findings.reserve = 0.0
        if isinstance(coverage, Coverage) and findings.first_wrong is None and findings.counting:
            like = self._task.workload(only) if only is not None else steps[-1].workload
            types, seed = coverage.unreached(), self._options.seed
            further = reaching_steps(self._task, self._limits, like, types, seed)
            # A class of sizes that occurs in no planned step is not compiled.
            further = [step for step in further if self._key(candidate, step) in candidate.artifacts]
            further = [step for step in further if self._key(baseline, step) in baseline.artifacts]
            while further and coverage.unreached() and not findings.is_spent:
                self._run(further[:REACHING_BATCH], findings)
                further = further[REACHING_BATCH:] if findings.first_wrong is None and findings.counting else []
        late = {step.step for step in findings.passed() if isinstance(step, Skipped) and step.reason == "time"}
        again = [step for step in steps if step.name in late]
        if findings.first_wrong is None and again and not findings.is_spent:
            findings.results = {at: one for at, one in findings.results.items() if findings.steps[at].name not in late}
            self._run(again, findings)

    def _key(self, kernel: Candidate, step: Step) -> CodeKey:
        return code_key(self._task, kernel.template, step.workload)

    def _run(self, steps: Sequence[Step], findings: Findings) -> None:
        """`run_steps` with contents that are prepared beside it."""
        deadlines, count = self._options.deadlines, len(self._runners)
        seconds = (deadlines.prepare, deadlines.made_up_step(findings.seconds))
        # The data of all processes together leaves half of the device's memory to others.
        max_bytes = (self._limits.memory_bytes or 0) / (2 * MAX_SETS * count) if count > 1 else math.inf
        prepare = partial(Preparation, self._task, self._limits, self._hosts, findings, self._folder, seconds)
        run_steps(self._runners, steps, max_bytes, findings, prepare)

    def _build(self, template: Template, config: Config, workloads: Sequence[Workload]) -> BuiltKernels | Outcome:
        """The kernels of steps on `workloads`, or the candidate's first failure. Raises `TunesmithError` where the
        baseline cannot be compiled."""
        seconds = self._options.deadlines.compile
        plain = self._task.sources(self._limits.backend).baseline.template
        compile_plain = partial(compile_all, self._compilers, self._task, plain, {})
        own, unfit = [workload.types for workload in self._task.workloads], list[Mapping[str, str]]()
        for workload in {types_key(one): one for one in workloads if one.types not in own}.values():
            # What the task declares and does not use may be more than its kernel was written for.
            if not isinstance(compile_plain([workload], seconds, self._baseline), Candidate):
                unfit.append(workload.types)
        workloads = [workload for workload in workloads if workload.types not in unfit]
        candidate = compile_all(self._compilers, self._task, template, config, workloads, seconds)
        if not isinstance(candidate, Candidate):
            return candidate
        baseline = compile_plain(workloads, seconds, self._baseline)
        if not isinstance(baseline, Candidate):
            raise TunesmithError(f"The baseline of {self._task.name} cannot be compiled: {describe(baseline)}.")
        coverage = self._coverage(candidate, workloads, {})
        if isinstance(coverage, Coverage):
            marked = self._coverage(baseline, workloads, self._marked_baseline)
            coverage.plain = marked if isinstance(marked, Coverage) else None
        return candidate, baseline, coverage

    def _coverage(
        self, candidate: Candidate, workloads: Sequence[Workload], marked: dict[CodeKey, MarkedArtifact]
    ) -> Coverage | str:
        """The candidate's marked twin, or why there is none. marked: twins that were compiled before, to which new ones
        are added."""
        keys = dict.fromkeys(code_key(self._task, candidate.template, workload) for workload in workloads)
        new, seconds = [key for key in keys if key not in marked], self._options.deadlines.compile
        for key, artifact in _dealt(self._compilers, "mark", seconds, candidate.template, candidate.config, new):
            if not isinstance(artifact, MarkedArtifact):
                why = artifact if isinstance(artifact, str) else describe(artifact)
                return f"whether every part of the kernel ran was not checked: {why}"
            marked[key] = artifact
        return Coverage(candidate, {key: marked[key] for key in keys})

    def _timed(self, candidate: Candidate, workload: Workload) -> Outcome:
        """The candidate timed on a workload, against the device's roofs."""
        task, first, listener = self._task, self._first, self._options.listener
        first.device.take()
        listener(f"preparing {workload.name}")
        prepared = first.call("prepare", [workload.name], seconds=self._options.deadlines.prepare)
        require_prepared(task, workload.name, prepared)
        if self._roofline is None:
            # No roofs where the probes do not run on the device.
            deadline = self._options.deadlines.roofs
            probes = self._queue.submit(self._compilers[0].call, "probes", deadline).result()
            roofs = first.call("calibrate", probes, seconds=deadline) if isinstance(probes, dict) else None
            self._roofline = roofs if isinstance(roofs, Roofline) else Roofline()
        floor = self._roofline.floor_seconds(*task.work_of(workload)) or 0.0
        listener(f"checking timed launches on {workload.name}")
        answer = first.call("visit", candidate, [workload.name], replace(QUICK, floor=floor))
        outcome: Outcome = answer[workload.name] if isinstance(answer, dict) else answer
        if isinstance(outcome, LaunchFailed) and outcome.sticky:
            first.examiner.end()
        return outcome

    def _launched_far(self, candidate: Candidate, baseline: Candidate, far: FarStep) -> Passed | Skipped | Outcome:
        """The result of a step on arrays beyond 4 GiB; where the process ends, it may be the plain kernel's fault."""
        first, name = self._first, far.workload.name
        first.device.take()
        self._options.listener(f"checking {name}")
        made = first.call("prepare_step", far.period, seconds=self._options.deadlines.prepare)
        result = first.call("launch_far", candidate, baseline, far) if made is None else made
        return Skipped(name, describe(result), reason="time") if isinstance(result, TimedOut | Crashed) else result

    def _excluded(self, made_up: Mapping[str, Step], results: Sequence[Passed | Skipped], findings: Findings) -> int:
        """How many of the `made_up` steps the template excludes; where these are most, without the share in which the
        plain kernel is not right either, by a sample."""
        names = {result.step for result in results if isinstance(result, Skipped) and result.reason == "template"}
        excluded = [step for name, step in made_up.items() if name in names]
        if len(excluded) <= MAX_EXCLUDED_SHARE * len(made_up):
            return len(excluded)
        unfit = tried = 0
        for step in excluded[:: max(1, len(excluded) // MAX_EXCLUDED_TRIALS)]:
            if findings.is_spent:
                break
            unfit += not self._first.plain_fits(step, findings)
            tried += 1
        return len(excluded) - len(excluded) * unfit // max(1, tried)
