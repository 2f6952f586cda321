"""What a verdict compiles: a candidate for each combination of types, its marked twin, and the task's baseline.

Owns the compile process of a judgement and the thread that waits for it: questions are compiled in their order, ahead
of the steps that need them.

Judges one candidate: accepted, or rejected for one of `tunesmith.kernels.check.compare.REASONS`.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from tunesmith.actors.judging.preparation import ContentsHost, Preparation, require_prepared
from tunesmith.actors.judging.steps import (
    PREPARE_SECONDS,
    SETS,
    Asked,
    Budget,
    Examiner,
    Findings,
    HeldDevice,
    Limits,
    StepRunner,
    for_left_out,
    for_unusable,
    process_count,
    run_steps,
)
from tunesmith.actors.process import Isolated, preload
from tunesmith.actors.workers import CompileWorker
from tunesmith.hw.device_lock import DeviceLock
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.backends import NotMarked
from tunesmith.kernels.build.artifact import Artifact, Candidate, TypesKey, types_key, undeclared_state
from tunesmith.kernels.build.machine_code import MarkedArtifact
from tunesmith.kernels.build.source import literal, specialise
from tunesmith.kernels.check.coverage import Coverage, Unexecuted
from tunesmith.kernels.check.plan import Step, plan, reaching_steps, small_workload
from tunesmith.kernels.check.sanitizer import Sanitized, Suspect, sanitize
from tunesmith.kernels.check.verify import Passed, Skipped
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
from tunesmith.kernels.spec.task import Task, Workload
from tunesmith.kernels.spec.template import BACKENDS, Config, Template

PROBE_SECONDS = 60.0
"""To compile what measures the device's roofs."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Built:
    """What steps launch. workloads: of all steps; coverage: counts the parts of the candidate that run, or says why
    that cannot be told."""

    candidate: Candidate
    baseline: Candidate
    coverage: Coverage | str
    workloads: tuple[Workload, ...]


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


class Builder:
    """One compile process and its queue. seconds: to compile one source. Use as a context manager; at its end nothing
    is compiled any more."""

    def __init__(self, task: Task, limits: DeviceLimits, index: int, seconds: float) -> None:
        self._task, self._limits, self._seconds = task, limits, seconds
        self._compiler = Isolated("compile", CompileWorker, limits, index)
        self._queue = ThreadPoolExecutor(1, "builder")
        self._last: Future[Any] | None = None
        self._baseline: dict[TypesKey, Artifact] = {}
        self._marked_baseline: dict[TypesKey, MarkedArtifact] = {}

    def __enter__(self) -> Builder:
        return self

    def __exit__(self, *_: object) -> None:
        if self._last is not None and not self._last.done():
            self._compiler.kill()
        self._queue.shutdown(cancel_futures=True)
        self._compiler.end()

    def build(self, template: Template, config: Config, workloads: Sequence[Workload]) -> Future[Built | Outcome]:
        """What steps on `workloads` need, or the candidate's first failure. The future raises `TunesmithError` where
        the baseline cannot be compiled."""
        return self.after(lambda: self._build(template, config, workloads))

    def probes(self) -> dict[str, Artifact] | None:
        """What measures the device's roofs; None where it cannot be compiled."""
        found = self.after(lambda: self._compiler.call("probes", PROBE_SECONDS)).result()
        return found if isinstance(found, dict) else None

    def after(self, work: Callable[[], T]) -> Future[T]:
        """Does `work` once everything that was asked for before is compiled."""
        made = self._queue.submit(work)
        self._last = made
        return made

    def _build(self, template: Template, config: Config, workloads: Sequence[Workload]) -> Built | Outcome:
        candidate = compile_all(self._compiler, template, config, workloads, self._seconds)
        if not isinstance(candidate, Candidate):
            return candidate
        baseline = self._compiled_baseline(workloads)
        coverage = self._coverage(candidate, workloads)
        if isinstance(coverage, Coverage):
            plain = self._coverage(baseline, workloads, self._marked_baseline)
            coverage.plain = plain if isinstance(plain, Coverage) else None
        return Built(candidate, baseline, coverage, tuple(workloads))

    def _compiled_baseline(self, workloads: Sequence[Workload]) -> Candidate:
        """The baseline, each combination of types compiled once."""
        plain = self._task.sources(self._limits.backend).baseline.template
        missing = [workload for workload in workloads if types_key(workload) not in self._baseline]
        made = compile_all(self._compiler, plain, {}, missing, self._seconds)
        if not isinstance(made, Candidate):
            raise TunesmithError(f"The baseline of {self._task.name} cannot be compiled: {describe(made)}.")
        self._baseline |= made.artifacts
        wanted = {types_key(workload) for workload in workloads}
        return Candidate(plain, {}, {key: one for key, one in self._baseline.items() if key in wanted})

    def _coverage(
        self, candidate: Candidate, workloads: Sequence[Workload], known: dict[TypesKey, MarkedArtifact] | None = None
    ) -> Coverage | str:
        """The candidate's marked twin, or why there is none. known: twins that were compiled before, to which new ones
        are added."""
        marked = {} if known is None else known
        for workload in workloads:
            key = types_key(workload)
            if key in marked:
                continue
            source = specialise(candidate.template, candidate.config, workload.types)
            made = self._compiler.call("mark", self._seconds, source)
            if not isinstance(made, MarkedArtifact):
                why = made.why if isinstance(made, NotMarked) else describe(made)
                return f"whether every part of the kernel ran was not looked at: {why}"
            marked[key] = made
        return Coverage(candidate, {key: marked[key] for key in map(types_key, workloads)})


SEED = 7_000_003
"""Of the contents of a verdict, to which a run adds its own seed: what `tune` prepared need not be made for `check`."""
CALIBRATE_SECONDS = 60.0
"""For the device's roofs."""
SURPLUS = 2.0
"""Blocks of a baseline's launch over those that it needs, from where on that is said."""
REACHING = 8
"""Steps between two looks at what has not run yet."""
CHECK_SECONDS = {"gpu": 20.0, "cpu": 60.0}
"""For the steps on workloads that were made up, by the kind of device, unless the user says otherwise."""
REACHING_SHARE = 0.25
"""Share of that time that is kept for entering blocks which the other steps do not enter."""
MOST_EXCLUDED = 0.5
"""Share of the made-up workloads that a template may exclude for a verdict to be one on all sizes."""
TRIED_EXCLUDED = 32
"""Steps that a template excludes in which the plain kernel is tried, where it excludes most."""
QUICK = Precision(target=0.02, max_samples=20, budget_seconds=0.1)

OUT_OF_MEMORY = "catastrophic error: out of memory"
"""What NVRTC says when it notices its memory bound itself."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """partial: nothing was found wrong, but the template excludes most workloads on which that was to be seen. reason:
    empty unless rejected, else a key of `REASONS`. steps: what was passed and skipped; notes: what was not looked at,
    and why; baseline_note: a sentence where the baseline is launched with blocks that it does not need; unexecuted:
    parts of the kernel that ran in none of the steps; artifacts: content hashes of the machine code of candidate and
    baseline; seconds: what checking took, compiling included and compute-sanitizer left out."""

    verdict: Literal["accepted", "partial", "rejected"]
    reason: str = ""
    detail: str = ""
    steps: tuple[Passed | Skipped, ...] = ()
    notes: tuple[str, ...] = ()
    baseline_note: str = ""
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
    waited = deadlines or Limits()
    with contextlib.ExitStack() as stack:
        examiners = [
            stack.enter_context(Isolated("run", Examiner, task, limits, index, seed)) for _ in range(max(1, count))
        ]
        held = HeldDevice(lock or lock_of(examiners[0]), listener)
        device = stack.enter_context(contextlib.closing(held))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tunesmith-")))
        hosts = [stack.enter_context(Isolated("run", ContentsHost, task)) for _ in examiners]
        builder = stack.enter_context(Builder(task, limits, index, waited.compile))
        runners = [StepRunner(task, limits, waited, one, device, listener) for one in examiners]
        for_all = any(only is None for _, _, only in questions)
        unusable = _unusable_scalars(task, limits, seed, hosts[0], waited.prepare) if for_all else []
        bench = _Bench(
            task, limits, seed, waited, builder, runners, hosts, folder, device, unusable, roofline, listener
        )
        asked = [
            (only, steps, builder.build(template, config, [step.workload for step in steps]))
            for template, config, only in questions
            for steps in [bench.steps(template, config, only, largest_bytes)]
        ]

        for only, steps, future in asked:
            started = time.monotonic()
            verdict, suspect = bench.judge(future, steps, only)
            judged.append((replace(verdict, seconds=round(time.monotonic() - started, 1)), suspect))
        # What the tool runs needs the memory that the examiners' buffers take.
        for examiner in examiners:
            examiner.end()
        suspects = [suspect for _, suspect in judged if suspect is not None]
        if suspects and BACKENDS[limits.backend].nvidia_tools:
            device.take()
            listener("compute-sanitizer")
        clean = iter(sanitize(suspects, task, limits, index, seed))
        return [verdict if suspect is None else _sanitized(verdict, next(clean)) for verdict, suspect in judged]


def _speaks_of(template: Template, config: Config) -> str:
    """What of a candidate names sizes: its source, with its parameters as macros, and how it is launched."""
    launch, whole = template.launch, {name: value for name, value in config.items() if isinstance(value, int)}
    macros = [f"#define {name} {literal(value)}" for name, value in whole.items()]
    compared = [f"x == {name};" for name in whole]
    return "\n".join([*macros, template.source, *compared, *(f"{one};" for one in (*launch.grid, *launch.block))])


def _unusable_scalars(
    task: Task, limits: DeviceLimits, seed: int, host: Isolated, seconds: float
) -> list[tuple[str, int, float]]:
    """See `ContentsHost.unusable_scalars`; none where the reference is the original kernel, or too slow to tell."""
    own = [workload for workload in task.workloads if limits.kind in workload.devices]
    if task.original_is_reference or not own:
        return []
    found = host.call("unusable_scalars", seconds, small_workload(task, own), seed)
    return found if isinstance(found, list) else []


def _account(made_up: Sequence[Step], found: Sequence[Passed | Skipped], seconds: float) -> tuple[str, ...]:
    """A sentence on what there was no time for; none where there was enough. Steps that were left out for other
    reasons do not count."""
    skipped = {one.step: one.reason for one in found if isinstance(one, Skipped)}
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


def _of_surplus(surplus: float) -> str:
    return (
        f"The baseline is launched with {surplus:.0f} times the blocks that it needs (its results are right without "
        "the others), so speed-ups over it are too high: correct `grid` in its launch."
    )


def _sanitized(verdict: Verdict, found: Sanitized) -> Verdict:
    notes = (*([found.note] if found.note else []), *verdict.notes)
    if found.found:
        return replace(verdict, verdict="rejected", reason="sanitizer", detail=found.found, notes=notes)
    return replace(verdict, notes=notes)


@dataclass(slots=True)
class _Bench:
    """The processes of a judgement, and what is known of task and device. unusable: see
    `ContentsHost.unusable_scalars`."""

    task: Task
    limits: DeviceLimits
    seed: int
    deadlines: Limits
    builder: Builder
    runners: Sequence[StepRunner]
    hosts: Sequence[Isolated]
    folder: Path
    device: HeldDevice
    unusable: Sequence[tuple[str, int, float]]
    roofline: Roofline | None
    listener: Callable[[str], None]

    def steps(self, template: Template, config: Config, only: str | None, largest_bytes: float) -> list[Step]:
        """The steps of a question, of which there is at least one."""
        source = _speaks_of(template, config)
        unusable = {(name, level) for name, level, _ in self.unusable}
        found = plan(self.task, self.limits, self.seed, largest_bytes, only, source, unusable)
        if not found:
            raise TunesmithError(
                f"The task {self.task.name} has no workload for a {self.limits.kind}: add one whose `devices` lists it."
            )
        return found

    def judge(
        self, building: Future[Built | Outcome], steps: Sequence[Step], only: str | None
    ) -> tuple[Verdict, Suspect | None]:
        """The verdict but for the sanitizer's, and what that is to look at where nothing was found so far."""
        task, listener, first = self.task, self.listener, self.runners[0]
        self.device.leave()
        listener("compiling")
        built = building.result()
        if not isinstance(built, Built):
            return rejected(built), None
        coverage = built.coverage if isinstance(built.coverage, Coverage) else None
        asked = Asked(built.candidate, built.baseline, coverage)
        # What all processes hold at once leaves half of the device's memory to others.
        several = len(self.runners) > 1
        room = (self.limits.memory_bytes or 0) / (2 * SETS * len(self.runners)) if several else math.inf
        budget = Budget(self.deadlines.check or CHECK_SECONDS[self.limits.kind])
        budget.reserve = REACHING_SHARE * budget.seconds if coverage is not None else 0.0
        findings = self._run(asked, steps, room, budget)
        passed, unseen, wrong, covered = findings.passed(), findings.unseen, findings.wrong(), findings.covered
        budget.reserve = 0.0
        surplus = findings.surplus
        if coverage is not None and wrong is None and covered and (unreached := coverage.unreached()):
            # Other sizes enter what neither the task's nor the usual ones do.
            like = task.workload(only) if only is not None else steps[-1].workload
            further = reaching_steps(task, self.limits, like, unreached, self.seed, tried=only is None)
            while wrong is None and covered and further and coverage.unreached() and not budget.is_spent:
                findings = self._run(asked, further[:REACHING], room, budget)
                further = further[REACHING:]
                passed, wrong, covered = passed + findings.passed(), findings.wrong(), findings.covered
                unseen |= findings.unseen
        late = {one.step for one in passed if isinstance(one, Skipped) and one.reason == "time"}
        again = [step for step in steps if step.name in late]
        if wrong is None and again and not budget.is_spent:
            # What was kept for further sizes is left.
            findings = self._run(replace(asked, coverage=coverage if covered else None), again, room, budget)
            passed = [one for one in passed if one.step not in late] + findings.passed()
            wrong, unseen, covered = findings.wrong(), unseen | findings.unseen, covered and findings.covered
        if wrong is not None:
            verdict = rejected(wrong, passed)
            remedy = findings.remedy()
            return replace(verdict, detail=f"{verdict.detail}; {remedy}") if remedy else verdict, None
        untold = [built.coverage] if isinstance(built.coverage, str) else []
        notes: tuple[str, ...] = (*self.task.caveats, *untold, *unseen)
        timed = min((step.workload for step in steps if not step.derived), key=task.bytes_of)
        self.device.take()
        listener(f"preparing {timed.name}")
        require_prepared(task, timed.name, first.examiner.call("prepare", self.deadlines.prepare, timed.name))
        floor = self._roofs().floor_seconds(task.bytes_of(timed), task.flops_of(timed), task.arithmetic) or 0.0
        listener(f"checking timed launches on {timed.name}")
        precision = replace(QUICK, floor=floor)
        measured = first.examiner.call("visit", self.deadlines.run, built.candidate, timed.name, precision)
        if not isinstance(measured, Measured):
            first.renew(measured)
            return rejected(measured, passed), None
        steady = all(step.deterministic for step in passed if isinstance(step, Passed))
        if not steady:
            notes += ("repeated launches differ in some bits, within the tolerance",)
        artifacts = {"candidate": built.candidate.digests, "baseline": built.baseline.digests}
        unexecuted = coverage.unexecuted() if coverage is not None and covered else ()
        made_up = {step.name: step for step in steps if step.derived}
        notes += _account(list(made_up.values()), passed, budget.seconds)
        notes += for_unusable(self.unusable) if only is None else ()
        notes += for_left_out({step.name: step for step in steps}, passed)
        excluding, of = self._excluded(asked, made_up, passed, budget), len(made_up)
        kind: Literal["accepted", "partial"] = "partial" if excluding > MOST_EXCLUDED * of else "accepted"
        detail = f"the template excludes {excluding} of {of} steps on made-up sizes" if kind == "partial" else ""
        about = _of_surplus(surplus) if SURPLUS <= surplus < math.inf else ""
        verdict = Verdict(kind, "", detail, tuple(passed), notes, about, unexecuted, artifacts)
        return verdict, (built.candidate, built.workloads)

    def _excluded(
        self, asked: Asked, made_up: Mapping[str, Step], found: Sequence[Passed | Skipped], budget: Budget
    ) -> int:
        """How many of the `made_up` steps the template excludes; where these are most, without those in which the plain
        kernel is not right either, which some of them tell."""
        names = {one.step for one in found if isinstance(one, Skipped) and one.reason == "template"}
        out = [step for name, step in made_up.items() if name in names]
        unfit = tried = 0
        if len(out) > MOST_EXCLUDED * len(made_up):
            for step in out[:: max(1, len(out) // TRIED_EXCLUDED)]:
                if budget.is_spent:
                    break
                fits = self.runners[0].plain_fits(asked.baseline, step, Findings(budget))
                unfit, tried = unfit + (not fits), tried + 1
            unfit = len(out) * unfit // max(1, tried)
        return len(out) - unfit

    def _run(self, asked: Asked, steps: Sequence[Step], room: float, budget: Budget) -> Findings:
        """`run_steps` with contents that are prepared beside it."""
        seconds = (self.deadlines.prepare, self.deadlines.made_up_step(budget))

        def prepare(chosen: Mapping[int, Step], findings: Findings) -> Preparation:
            return Preparation(self.task, self.limits, chosen, self.hosts, findings, self.folder, seconds)

        return run_steps(self.runners, asked, steps, room, budget, prepare)

    def _roofs(self) -> Roofline:
        """The device's roofs; none where the probes do not run on it."""
        if self.roofline is None:
            probes = self.builder.probes()
            roofs = self.runners[0].examiner.call("calibrate", CALIBRATE_SECONDS, probes) if probes else None
            self.roofline = roofs if isinstance(roofs, Roofline) else Roofline()
        return self.roofline


__all__ = [
    "Builder",
    "Built",
    "Limits",
    "Question",
    "Verdict",
    "compile_all",
    "judge",
    "lock_of",
    "reason_of",
    "rejected",
]
