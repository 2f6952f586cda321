"""The steps of the full verdict on one candidate, spread over processes that use the device at the same time.

A step is mostly work of the processor: contents are drawn, the reference computes, results are compared. Nothing is
timed in a step, so that on a GPU several processes go through them side by side. The first step in the plan's order
that finds something decides, however many processes there are.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace

from tunesmith.actors.process.isolated import Isolated
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.limits import DeviceLimits
from tunesmith.kernels.backends import Side
from tunesmith.kernels.build.candidate import Candidate, types_key
from tunesmith.kernels.check.coverage import Coverage
from tunesmith.kernels.check.edges import Edges, edges_of
from tunesmith.kernels.check.plan import Step
from tunesmith.kernels.check.verify import Passed, Skipped, excluded
from tunesmith.kernels.outcome import Crashed, LaunchFailed, Outcome, TimedOut, WrongResult, describe
from tunesmith.kernels.spec.contents import Contents
from tunesmith.kernels.spec.task import Task

SIDES: tuple[Side, ...] = ("end", "start")
"""Where kernels reach beyond an array, the likelier first."""
MOST_PROCESSES = 4
CORES_EACH = 2
"""Of the machine, for each process: NumPy and the driver have threads of their own."""
PREPARE_SECONDS = 60.0
"""For the buffers and the reference results of one workload, unless the user says otherwise."""
SETS = 8
"""Times a workload's bytes that a step takes of the device's memory at most, with its sets and expected results."""


def process_count(limits: DeviceLimits) -> int:
    """How many processes go through steps at once: one on a CPU, whose cores run the kernels too."""
    if limits.kind == "cpu":
        return 1
    return max(1, min(MOST_PROCESSES, len(os.sched_getaffinity(0)) // CORES_EACH))


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


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds: to compile one source; to run one step once its data is there; to make that data, which is mostly the
    reference's time."""

    compile: float = 60.0
    run: float = 20.0
    prepare: float = PREPARE_SECONDS


@dataclass(frozen=True, slots=True)
class Asked:
    """What steps are about. coverage: counts the parts of the candidate that run, None where that cannot be told."""

    candidate: Candidate
    baseline: Candidate
    coverage: Coverage | None


@dataclass(slots=True)
class Findings:
    """What steps found so far, by their place in the plan. unseen: what was not looked for, and why; first_wrong: the
    first step that rejects the candidate; covered: whether parts that ran are still counted."""

    found: dict[int, Passed | Skipped | Outcome] = field(default_factory=dict)
    unseen: dict[str, None] = field(default_factory=dict)
    first_wrong: int | None = None
    covered: bool = True
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, place: int, found: Passed | Skipped | Outcome) -> None:
        """What the step at `place` found."""
        with self.lock:
            self.found[place] = found
            if not isinstance(found, Passed | Skipped):
                self.first_wrong = place if self.first_wrong is None else min(place, self.first_wrong)

    def wanted(self, place: int) -> bool:
        """Whether the step at `place` could still change the verdict."""
        return self.first_wrong is None or place < self.first_wrong

    def passed(self) -> list[Passed | Skipped]:
        """The steps that come before the first that rejects the candidate."""
        inside = sorted(place for place in self.found if self.wanted(place))
        return [one for place in inside if isinstance(one := self.found[place], Passed | Skipped)]

    def wrong(self) -> Outcome | None:
        """What rejects the candidate."""
        found = None if self.first_wrong is None else self.found[self.first_wrong]
        return None if isinstance(found, Passed | Skipped) else found


@dataclass(slots=True)
class StepRunner:
    """One process that goes through steps. take: has the device held, and returns at once where it is."""

    task: Task
    limits: DeviceLimits
    deadlines: Limits
    examiner: Isolated
    take: Callable[[], None]
    listener: Callable[[str], None]
    baseline_ends: bool = False
    """The baseline is known to end on a workload of the task's."""

    def run(self, asked: Asked, step: Step, place: int, findings: Findings) -> None:
        """One step, and what it finds."""
        found = self._step(asked.candidate, asked.baseline, step)
        if isinstance(found, Passed):
            for edges in self._edges(step, place):
                beyond = self._at_edges(asked.candidate, asked.baseline, step, edges)
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
        if not findings.covered or not coverage.wanted(key):
            return
        found = self.examiner.call("cover", self.deadlines.run, coverage.twin, step)
        self.renew(found)
        if isinstance(found, frozenset):
            with findings.lock:
                coverage.add(key, found)
        elif not isinstance(found, Skipped):
            findings.covered = False
            why = f"whether every part of the kernel ran was not looked at: on {step.name}, {describe(found)}"
            findings.unseen.setdefault(why)

    def _step(self, candidate: Candidate, baseline: Candidate, step: Step) -> Passed | Skipped | Outcome:
        if (reason := excluded(candidate, step, self.limits)) is not None:
            return reason
        # Contents and expected results are made there, too.
        self.take()
        self.listener(f"preparing {step.name}")
        skipped = self.examiner.call("prepare_step", self.deadlines.prepare, step)
        prepared(self.task, step.name, skipped)
        if isinstance(skipped, Skipped):
            return skipped
        self.listener(f"checking {step.name}")
        found: Passed | Skipped | Outcome = self.examiner.call("verify", self.deadlines.run, candidate, baseline, step)
        self.renew(found)
        if isinstance(found, Crashed | TimedOut):
            # Nobody promised that the baseline bears a size, or contents, that were made up here.
            alone = self.examiner.call("try_baseline", self.deadlines.run, baseline, step)
            self.renew(alone)
            if isinstance(alone, Crashed | TimedOut):
                self._require_baseline(baseline, step, alone)
                return Skipped(step.name, f"the baseline fails there: {describe(alone)}")
            if step.derived and isinstance(alone, Skipped):
                return alone
        return found

    def _require_baseline(self, baseline: Candidate, step: Step, found: Crashed | TimedOut) -> None:
        """Raises `TunesmithError` where the baseline, which failed on `step`, fails on the task's smallest workload
        too: hundreds of further steps would each wait for it."""
        if not step.own:
            if self.baseline_ends:
                return
            own = self.task.workloads_for(self.limits.kind, held_out=False)
            step = Step(min(own, key=self.task.bytes_of, default=step.workload), Contents(seed=step.contents.seed))
            prepared(self.task, step.name, self.examiner.call("prepare_step", self.deadlines.prepare, step))
            found = self.examiner.call("try_baseline", self.deadlines.run, baseline, step)
            self.renew(found)
        if isinstance(found, Crashed | TimedOut):
            raise TunesmithError(
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
        self.renew(found)
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
        self.renew(found)
        return not isinstance(found, bool | Skipped)


def run_steps(runners: Sequence[StepRunner], asked: Asked, steps: Sequence[Step], most_bytes: float) -> Findings:
    """Goes through `steps`, the first ones first, until one rejects the candidate. Steps on workloads of more than
    `most_bytes` are the first runner's alone. Raises what a runner raises."""
    findings, first = Findings(), runners[0]
    light = [place for place, step in enumerate(steps) if first.task.bytes_of(step.workload) <= most_bytes]
    heavy = sorted(set(range(len(steps))).difference(light))
    waiting, lock, stop = iter(light), threading.Lock(), threading.Event()

    def go_on(runner: StepRunner) -> None:
        while not stop.is_set():
            with lock:
                place = next(waiting, None)
            if place is None or not findings.wanted(place):
                return
            try:
                runner.run(asked, steps[place], place, findings)
            except BaseException:  # it is raised again; meanwhile the others must not begin anything
                stop.set()
                raise

    if len(runners) == 1:
        go_on(first)
    else:
        with ThreadPoolExecutor(len(runners)) as threads:
            running = [threads.submit(go_on, runner) for runner in runners]
            try:
                for one in wait(running, return_when=FIRST_EXCEPTION).done:
                    one.result()
            except BaseException:  # also Ctrl-C: the threads wait for processes, which would be waited for first
                stop.set()
                for runner in runners:
                    runner.examiner.kill()
                raise
    for place in heavy:
        if findings.wanted(place):
            first.run(asked, steps[place], place, findings)
    return findings


__all__ = ["Asked", "Findings", "Limits", "StepRunner", "prepared", "process_count", "run_steps"]
