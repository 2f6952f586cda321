"""The full verdict on one candidate: accepted, partial, or rejected for one of
`tunesmith.kernels.check.compare.REASONS`.

Contents and the reference's results for them are made ahead of the launches by processes that use no device, so that
none is held for a slow reference. The processes that launch use the device at the same time. A candidate for each
combination of types, its marked twin and the task's baseline are compiled ahead of the steps that need them. Owns the
order of the steps, their deadlines and retries, the progress of a verdict (`Findings`), and the sentences that say how
a task can rule out made-up values with which its kernel is never called.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import random
import secrets
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

from tunesmith.actors.process import Isolated, pack, preload
from tunesmith.actors.workers import CompileWorker, Deadlines, DeviceWorker
from tunesmith.hw.device_lock import DeviceLock
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.backends import Edge
from tunesmith.kernels.build.artifact import Artifact, Candidate, TypesKey, types_key, undeclared_state
from tunesmith.kernels.build.machine_code import MarkedArtifact
from tunesmith.kernels.build.source import CodeKey, code_key, literal, specialise
from tunesmith.kernels.check.compare import REASONS
from tunesmith.kernels.check.coverage import Coverage, Unexecuted, launch_marked
from tunesmith.kernels.check.far import FarStep, far_steps, launch_far
from tunesmith.kernels.check.plan import UNINFORMATIVE, Step, plan, reaching_steps, small_workload
from tunesmith.kernels.check.sanitizer import Sanitized, Suspect, sanitize
from tunesmith.kernels.check.scalars import UnusableScalar, unusable_scalars
from tunesmith.kernels.check.verify import (
    Passed,
    Skipped,
    SkipReason,
    Standard,
    excluded,
    launch_at_edges,
    measure_baseline,
    time_baseline,
    unlaunchable,
    verify,
    wrong_when_delayed,
)
from tunesmith.kernels.launch.contents import Contents
from tunesmith.kernels.launch.reference import load_reference, prepare_contents
from tunesmith.kernels.measure.bench import skips_right_results
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
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.task import Task, TaskError, Workload
from tunesmith.kernels.spec.template import Config, Template

# The steps, spread over processes

MAX_NAMED_VALUES = 4
"""Values that a sentence names."""
BLAMED = {"reference": "the reference fails", "plain kernel": "the plain kernel fails"}
"""The cause, by the reason for which steps are left out."""
EDGES: tuple[Edge, ...] = ("end", "start", "read-only")
"""Where kernels reach beyond an array, the likelier first, and where they write to inputs and then restore them."""
EDGE_WEIGHTS = (3, 3, 2)
"""How often each occurs on workloads that were made up."""
DELAYED_STEPS = 16
"""The first ones on made-up sizes, in which warps are delayed as on the task's own workloads."""
TRIAL_KINDS = ("large", "negative", "outliers")
"""Contents on which a plain kernel that is not written for a scalar's value is likely to fail."""
MAX_PROCESSES, CORES_PER_PROCESS, HOSTS_PER_PROCESS = 4, 2, 2
"""Processes that use a GPU, the cores for each (NumPy and the driver have threads of their own), and the processes that
prepare steps for each, which waits for them where references are slow."""
PAIRS_SECONDS = 2.0
"""For pairs of launches on right and on poisoned outputs, at most; mostly four pairs decide."""
MAX_LAUNCHES = 20
"""Launches in one step, which share its deadline."""
MAX_SETS = 8
"""Device memory of a step, with its sets and expected results, as a multiple of its workload's bytes."""
BuiltKernels = tuple[Candidate, Candidate, Coverage | str]
"""The candidate, the baseline, and the count of the candidate's parts that run, or a clause on why nothing counts."""
MAX_PREPARED_STEPS = 8
"""Steps that each process prepares before one of them is used: their files take disk space."""
MAX_HOST_BYTES, MAX_HOST_FLOPS = 16 << 20, 1e8
"""Bytes that a launch moves, and operations, beyond which a GPU computes the reference faster than the host."""
READY_SECONDS = 0.2
END_SECONDS = 1.0
"""How long a step under way may go on once preparing has ended: a process that is killed imports the reference anew."""


def for_left_out(
    steps: Mapping[str, Step], found: Sequence[Passed | Skipped], unusable: Sequence[UnusableScalar]
) -> list[str]:
    """A sentence for each scalar and size with values that only steps have which were left out. steps: by name;
    unusable: made-up values of scalars that were left out before any step."""
    passed = set[tuple[str, float]]()
    blamed = defaultdict[tuple[str, str], set[tuple[str, float]]](set)
    for name, _, value in unusable:
        if value is not None:
            blamed["reference", name].add((name, value))
    for one in found:
        if one.step in steps:
            scalars, sizes = _made_up(steps[one.step])
            if isinstance(one, Passed):
                passed.update(scalars, sizes)
            elif one.reason in BLAMED:
                # A size is to blame only where no scalar was changed, and the contents say something.
                for pair in scalars or (sizes if not steps[one.step].contents.kinds & UNINFORMATIVE else ()):
                    blamed[one.reason, pair[0]].add(pair)
    sentences, all_sizes = [], {name for step in steps.values() for name in step.workload.sizes}
    for (reason, name), pairs in blamed.items():
        if values := [f"{value:g}" for _, value in sorted(pairs - passed)]:
            more = f" and {len(values) - MAX_NAMED_VALUES} more" if len(values) > MAX_NAMED_VALUES else ""
            where = f"where {name} is {', '.join(values[:MAX_NAMED_VALUES])}{more}, which was left out"
            sentences.append(f"{BLAMED[reason]} {where}: {_remedy(name, name not in all_sizes)}")
    return sentences


def for_rejection(task: Task, step: Step) -> str:
    """The remedy where no caller has the made-up values of the step that rejects a kernel; empty without any."""
    scalars, sizes = _made_up(step)
    named = [f"{name} = {value:g}" for name, value in [*scalars, *sizes]]
    remedies = [_remedy(", ".join(dict(made_up)), made_up is scalars) for made_up in (scalars, sizes) if made_up]
    drawn = [one for one in task.inputs if step.contents.kind_of(one.name) != "task"]
    floats = [one for one in drawn if one.fill.high is None and DTYPES[task.dtype_of(one, step.workload)].is_float]
    if floats:
        named.append(f"such contents of {', '.join(one.name for one in floats)}")
        remedies.append("write both ends of their `fill` as expressions")
    said = f"the plain kernel is right there, but if no caller has {' or '.join(named)}: {' or '.join(remedies)}"
    return said if named else ""


def _made_up(step: Step) -> tuple[Sequence[tuple[str, float]], Sequence[tuple[str, float]]]:
    """The scalars, and the sizes, that Tunesmith chose for a step: names and values."""
    return step.contents.scalars, list(step.workload.sizes.items()) if step.derived else []


def _remedy(names: str, is_scalar: bool) -> str:
    return f"list the `values` of {names} in the task" if is_scalar else f"give the range of {names} in `requires`"


def process_count(limits: DeviceLimits) -> int:
    """How many processes go through steps at once: one on a CPU, whose cores run the kernels too."""
    cores = len(os.sched_getaffinity(0))
    return 1 if limits.kind == "cpu" else max(1, min(MAX_PROCESSES, cores // CORES_PER_PROCESS))


@dataclass(slots=True)
class Findings:
    """The progress of a verdict on `kernels`, for which steps on made-up workloads may take `seconds`.

    reserve: seconds kept for later steps; slow: made-up workloads on which the reference or the plain kernel took too
    long, each with a clause that says so; results: of `steps` so far, by their places; unchecked: clauses on faults
    that were not looked for; first_wrong: the first step that rejects the candidate; counting: parts that ran are still
    counted; begun: the start (monotonic seconds), moved on by the time that does not count.
    """

    kernels: BuiltKernels
    seconds: float
    reserve: float = 0.0
    slow: list[tuple[Workload, str]] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    results: dict[int, Passed | Skipped | Outcome] = field(default_factory=dict)
    unchecked: dict[str, None] = field(default_factory=dict)
    first_wrong: int | None = None
    counting: bool = True
    lock: threading.Lock = field(default_factory=threading.Lock)
    begun: float = field(default_factory=time.monotonic)

    @property
    def is_spent(self) -> bool:
        """Whether no time is left for steps on made-up workloads."""
        return time.monotonic() - self.begun > self.seconds - self.reserve

    def extend(self, seconds: float) -> None:
        """Does not count time spent on waiting for the device, on the task's own workloads, or on first steps, which
        compile the checks."""
        with self.lock:
            self.begun += seconds

    def note(self, place: int, result: Passed | Skipped | Outcome) -> None:
        """The step at `place` has ended."""
        with self.lock:
            self.results[place] = result
            if not isinstance(result, Passed | Skipped):
                self.first_wrong = place if self.first_wrong is None else min(place, self.first_wrong)

    def left_out(self, step: Step) -> Skipped | None:
        """Why a made-up workload is left out for its time: none is left, or a workload of at most its sizes took too
        long."""
        if not step.derived:
            return None
        if self.is_spent:
            why = f"no time was left of {self.seconds:g} s for made-up sizes (--check-time)"
            return Skipped(step.name, why, reason="time")
        mine = step.workload
        for known, why in list(self.slow):
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

    def wrong(self) -> tuple[Outcome, Step] | None:
        """The outcome that rejects the candidate, and its step."""
        if self.first_wrong is None or isinstance(result := self.results[self.first_wrong], Passed | Skipped):
            return None
        return result, self.steps[self.first_wrong]


class ContentsHost:
    """Prepares steps in a process of its own."""

    def __init__(self, task: Task) -> None:
        self._task = task
        # The time of a reference does not include its imports.
        load_reference(task)

    def unusable_scalars(self, workload: Workload, seed: int) -> list[UnusableScalar]:
        return unusable_scalars(self._task, workload, seed)

    def prepare(self, step: Step, path: Path) -> Skipped | None:
        """Writes the prepared contents of `step` to `path`, or says why the step is left out. Raises `TaskError` where
        contents that the task itself declares cannot be prepared."""
        try:
            made = prepare_contents(self._task, step.workload, step.contents, made_up=not step.own)
        except TaskError as error:
            if step.own:
                raise
            made = str(error)
        if isinstance(made, str):
            return Skipped(step.name, made, reason="reference")
        path.write_bytes(pack(made))
        return None


class Preparation(contextlib.AbstractContextManager["Preparation"]):
    """Prepares `steps`, by their places in a plan, in this order, with a thread for each of `hosts`. seconds: to
    prepare a step on the task's own workloads, and one on a workload that was made up. Use as a context manager."""

    def __init__(
        self,
        task: Task,
        limits: DeviceLimits,
        hosts: Sequence[Isolated],
        findings: Findings,
        folder: Path,
        seconds: tuple[float, float],
        steps: Mapping[int, Step],
    ) -> None:
        self._task, self._findings, self._folder, self._seconds = task, findings, folder, seconds
        self._hosts, self._idle, self._on_device = hosts, list(hosts), limits.kind == "gpu"
        self._room, self._stop = threading.Semaphore(MAX_PREPARED_STEPS * len(hosts)), threading.Event()
        self._threads = ThreadPoolExecutor(len(hosts), "preparation")
        self._made = {
            place: self._threads.submit(self._prepare, step, self._path(place))
            for place, step in steps.items()
            if not task.original_is_reference
            and (limits.kind == "cpu" or step.derived or _for_host(task, step.workload))
        }

    def __exit__(self, *_: object) -> None:
        self.cancel()
        self._threads.shutdown()

    def cancel(self) -> None:
        """Ends the preparing; no step that is not prepared yet will be."""
        self._stop.set()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._room.release(len(self._hosts))
        wait([made for made in list(self._made.values()) if made.running()], END_SECONDS)
        for late in set(self._hosts) - set(self._idle):
            late.kill()

    def claim(self, place: int) -> bool:
        """Whether `get` returns at once, or nearly so. A step that no host has begun is left to a GPU, so that it does
        not wait where the hosts are behind."""
        if self._on_device and place in self._made and self._made[place].cancel():
            del self._made[place]
        return place not in self._made or bool(wait([self._made[place]], READY_SECONDS).done)

    def get(self, place: int) -> Path | Skipped | None:
        """The file of prepared contents, why the step is left out, or None where the device is to prepare it. Raises
        `TunesmithError` where the task's own contents cannot be prepared."""
        return self._made[place].result() if place in self._made else None

    def release(self, place: int) -> None:
        """Removes the file of a step that is over."""
        if place in self._made:
            self._path(place).unlink(missing_ok=True)
            self._room.release()

    def _path(self, place: int) -> Path:
        return self._folder / f"{place}.pickle"

    def _prepare(self, step: Step, path: Path) -> Path | Skipped:
        self._room.acquire()
        if self._stop.is_set():
            return Skipped(step.name, "the verdict was ended", reason="time")
        if (left_out := self._findings.left_out(step)) is not None:
            return left_out
        host = self._idle.pop()
        try:
            answer = host.call("prepare", self._seconds[step.derived], step, path)
        finally:
            self._idle.append(host)
        if isinstance(answer, TimedOut | Crashed) and not self._stop.is_set():
            if step.own:
                require_prepared(self._task, step.name, answer)
            if isinstance(answer, Crashed):
                return Skipped(step.name, f"the reference fails there: {describe(answer)}", reason="reference")
            why = f"the reference takes longer than {answer.limit:g} s"
            if step.derived:
                self._findings.slow.append((step.workload, why))
            return Skipped(step.name, f"{why} there", reason="time")
        return answer if isinstance(answer, Skipped) else path


def _for_host(task: Task, workload: Workload) -> bool:
    return task.bytes_of(workload) <= MAX_HOST_BYTES and task.flops_of(workload) <= MAX_HOST_FLOPS


def require_prepared(task: Task, name: str, answer: object) -> None:
    """Raises `TaskError` where preparing the data of the step or workload `name` overran its deadline or ended its
    process: no kernel ran, only the user's reference."""
    match answer:
        case TimedOut():
            raise TaskError(
                f"Task {task.name}: preparing the data of {name} took longer than {answer.limit:g} s; most likely the "
                f"reference {task.reference_name} does not end: make it faster, the workload smaller, or give it more "
                "time with --reference-deadline."
            )
        case Crashed():
            raise TaskError(
                f"Task {task.name}: {answer.detail} while it prepared the data of {name}; most likely the reference "
                f"{task.reference_name} ends it: fix the reference."
            )


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
    """One process that goes through steps. device: held while steps run; path: the file with the prepared contents of
    the step at hand; plain: the baseline's result in it."""

    task: Task
    limits: DeviceLimits
    deadlines: Deadlines
    examiner: Isolated
    device: HeldDevice
    listener: Callable[[str], None]
    path: Path | None = None
    plain: Standard = ()
    warm_start: dict[TypesKey, int] = field(default_factory=dict)
    """The start of the process that has been through a step, by the step's types."""
    baseline_ends: bool = False
    """The baseline is known to end on a workload of the task's."""

    def run(self, step: Step, place: int, findings: Findings, source: Preparation) -> Passed | Skipped | Outcome:
        """The result of one step."""
        if (left_out := findings.left_out(step)) is not None:
            return left_out
        if not source.claim(place):
            self.listener(f"the reference computes {step.name}")
            self.device.leave()
        prepared = source.get(place)
        if isinstance(prepared, Skipped):
            return prepared
        self.path = prepared
        findings.extend(self.device.take())
        if (skipped := self.try_plain(step, findings)) is not None:
            return skipped
        candidate, baseline = (one.for_workload(self.task, step.workload) for one in findings.kernels[:2])
        result: Passed | Skipped | Outcome = self.on_step(step, partial(verify, candidate, self.plain, step))
        if isinstance(result, WrongResult) and (unfit := self._unfit_scalars(step, findings)) is not None:
            return unfit
        if not isinstance(result, Passed):
            return result
        if step.own:
            skips: Skipped | Outcome | None = self.on_step(step, partial(skips_right_results, candidate, PAIRS_SECONDS))
            if isinstance(skips, WrongResult):
                return replace(skips, detail=f"on {step.name}: {skips.detail}")
            if not isinstance(skips, Skipped | None):
                return skips
        edges = [edge for edge in EDGES if self._arrays(edge)]
        # All edges on the task's own workloads; a drawn one on derived workloads, as there are hundreds.
        if not step.own:
            edges = random.Random(f"{step.contents.seed} {place}").choices(edges, EDGE_WEIGHTS[: len(edges)])
        for edge in edges:
            beyond = self._at_edges(candidate, baseline, step, edge)
            if isinstance(beyond, str):
                findings.unchecked.setdefault(beyond)
            elif beyond is not None:
                return beyond
        # Ahead of the launch that counts blocks: that leaves right results of the same contents in variables.
        delayed = self._delayed(step, findings) if step.own or place < DELAYED_STEPS else None
        self._cover(step, findings)
        return delayed or result

    def on_step(self, step: Step, work: Callable[..., Any], seconds: float | None = None) -> Any:
        """See `DeviceWorker.on_step`; the process ends where its device cannot be used any more. seconds: the deadline
        of a step if left out."""
        result = self.examiner.call("on_step", self.deadlines.run if seconds is None else seconds, step, work)
        if isinstance(result, LaunchFailed | Skipped) and result.sticky:
            self.examiner.end()
        return result

    def try_plain(self, step: Step, findings: Findings) -> Skipped | None:
        """Prepares `step` and launches the baseline in it: why the step is left out, or None."""
        baseline, short = findings.kernels[1].for_workload(self.task, step.workload), math.inf
        if step.derived and not self.is_cold(step):
            short = self.deadlines.made_up_step(findings.seconds)
        # With prepared contents none of the user's code runs.
        making = self.deadlines.prepare if self.path is not None else min(short, self.deadlines.prepare)
        if (skipped := self._prepare(step, making)) is not None:
            if skipped.reason == "time" and step.derived:
                findings.slow.append((step.workload, skipped.why))
            return skipped
        self.listener(f"checking {step.name}")
        plain: Any = 0.0
        if short < math.inf:
            plain = self.on_step(step, partial(time_baseline, baseline, step), short)
            if isinstance(plain, float) and plain > short / MAX_LAUNCHES:
                why = f"one launch of the plain kernel takes {plain:.2g} s"
                findings.slow.append((step.workload, why))
                return Skipped(step.name, f"{why} there", reason="time")
        if isinstance(plain, float):
            plain = self.on_step(step, partial(measure_baseline, baseline, step))
        if isinstance(plain, tuple):
            self.plain, self.warm_start[types_key(step.workload)] = plain, self.examiner.starts
            return None
        if isinstance(plain, Skipped):
            return plain
        if isinstance(plain, TimedOut) and step.derived:
            findings.slow.append((step.workload, f"the plain kernel takes longer than {plain.limit:g} s"))
        self._require_baseline(findings.kernels[1], step, plain)
        return Skipped(step.name, f"the plain kernel fails there: {describe(plain)}")

    def is_cold(self, step: Step) -> bool:
        """Whether the process has not been through a step of these types: the first one compiles and loads what later
        ones find, which takes seconds on a machine without caches."""
        return self.warm_start.get(types_key(step.workload)) != self.examiner.starts

    def _unfit_scalars(self, step: Step, findings: Findings) -> Skipped | None:
        """Whether the plain kernel fails with the step's made-up scalars on other contents: it is not written for them
        then, as an attention for a negative scale, and it is chance on which contents which kernel fails."""
        for kind in TRIAL_KINDS if step.contents.scalars else ():
            self.path = None
            trial = replace(step, contents=replace(step.contents, kind=kind, arrays=()))
            if (skipped := self.try_plain(trial, findings)) is not None and skipped.reason == "plain kernel":
                return skipped
        return None

    def plain_fits(self, step: Step, findings: Findings) -> bool:
        """Whether nothing is known against the baseline in a made-up step, on which it must also keep to its arrays."""
        self.device.take()
        self.path = None
        if (skipped := self.try_plain(step, findings)) is not None:
            return skipped.reason != "plain kernel"
        return not self._fails_at(findings.kernels[1], step, self._arrays("end"), "end")

    def _prepare(self, step: Step, seconds: float) -> Skipped | None:
        """Has the data of `step` lie in the process."""
        self.listener(f"preparing {step.name}")
        answer: Skipped | TimedOut | Crashed | None = self.examiner.call("prepare_step", seconds, step, self.path)
        if isinstance(answer, TimedOut | Crashed):
            if step.own:
                require_prepared(self.task, step.name, answer)
            reason: SkipReason = "time" if isinstance(answer, TimedOut) else "reference"
            return Skipped(step.name, f"its data could not be made: {describe(answer)}", reason=reason)
        return answer

    def _require_baseline(self, baseline: Candidate, step: Step, failure: object) -> None:
        """Raises `TaskError` where the baseline, which failed on `step`, fails on the task's smallest workload too:
        hundreds of further steps would each wait for it."""
        if not step.own:
            if self.baseline_ends:
                return
            own = self.task.workloads_for(self.limits.kind, held_out=False)
            step = Step(min(own, key=self.task.bytes_of, default=step.workload), Contents(seed=step.contents.seed))
            self.path = None
            self._prepare(step, self.deadlines.prepare)
            failure = self.on_step(step, partial(measure_baseline, baseline, step))
        if isinstance(failure, Crashed | TimedOut):
            raise TaskError(
                f"The {self.limits.backend} baseline of {self.task.name} fails on the workload {step.workload.name}: "
                f"{describe(failure).rstrip('.')}. Fix its source or its launch, or give it more time with "
                "--run-deadline."
            )
        self.baseline_ends = True

    def _delayed(self, step: Step, findings: Findings) -> WrongResult | None:
        """A rejection where the candidate's results are wrong when some warps are slow, and the baseline's are not."""
        candidate, _, coverage = findings.kernels
        if not isinstance(coverage, Coverage) or coverage.plain is None or not findings.counting:
            return None
        key = code_key(self.task, candidate.template, step.workload)
        if key not in coverage.marked or key not in coverage.plain.marked:
            return None
        found = self.on_step(step, partial(wrong_when_delayed, coverage.twin(key), self.plain, step))
        if isinstance(found, Skipped | None):
            return None
        plain = self.on_step(step, partial(wrong_when_delayed, coverage.plain.twin(key), self.plain, step))
        if isinstance(found, WrongResult) and plain is None:
            detail = f"on {step.name}, with some warps and blocks delayed: {found.detail}"
            return replace(found, reason="nondeterministic", detail=detail)
        why = f"whether results depend on the order of warps was not checked on {step.name}: {describe(found)}"
        findings.unchecked.setdefault(why)
        return None

    def _cover(self, step: Step, findings: Findings) -> None:
        """Counts the parts that run in a launch on this step's data; where one fails, nothing is known any more."""
        candidate, _, coverage = findings.kernels
        key = code_key(self.task, candidate.template, step.workload)
        for one in (coverage, coverage.plain) if isinstance(coverage, Coverage) else ():
            if one is None or not findings.counting or not one.wanted(key):
                continue
            result = self.on_step(step, partial(launch_marked, one.twin(key)))
            if isinstance(result, frozenset):
                with findings.lock:
                    one.add(key, result)
            elif not isinstance(result, Skipped):
                findings.counting = False
                why = f"whether every part of the kernel ran was not checked: on {step.name}, {describe(result)}"
                findings.unchecked.setdefault(why)

    def _arrays(self, edge: Edge) -> list[str]:
        """The arguments that lie at an edge of memory: arrays, or inputs where they cannot be written."""
        roles = ("in",) if edge == "read-only" else ("in", "inout", "out")
        return [argument.name for argument in self.task.arguments if argument.role in roles]

    def _at_edges(self, candidate: Candidate, baseline: Candidate, step: Step, edge: Edge) -> Outcome | str | None:
        """A rejection where the candidate, and not the baseline, fails with arrays at this edge. Otherwise None, or
        why nothing is known."""
        arrays = self._arrays(edge)
        self.listener(f"checking accesses outside of arrays on {step.name}")
        result: bool | Skipped | Outcome = self.on_step(step, partial(launch_at_edges, candidate, arrays, edge))
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
            return result
        if edge == "read-only" and self._fails_at(candidate, step, arrays, "end"):
            # It reaches beyond these arrays, whether they can be written or not.
            edge = "end"
        if self._fails_at(baseline, step, arrays, edge):
            return f"accesses outside of arrays were not looked for on {step.name}: the baseline makes some"
        # The first array that makes the candidate fail when it alone lies there; all where none does alone.
        alone = (name for name in arrays if self._fails_at(candidate, step, [name], edge))
        name, where = next(alone, ", ".join(sorted(arrays))), f"on {step.name}: a launch fails when"
        if edge == "read-only":
            detail = f"{where} arrays declared `in` cannot be written: {describe(result)}"
            return WrongResult("input_modified", name, detail)
        side = "ends" if edge == "end" else "begins"
        return WrongResult("out_of_bounds_access", name, f"{where} memory {side} where {name} does: {describe(result)}")

    def _fails_at(self, candidate: Candidate, step: Step, arrays: Collection[str], edge: Edge) -> bool:
        self._prepare(step, self.deadlines.prepare)
        return not isinstance(self.on_step(step, partial(launch_at_edges, candidate, arrays, edge)), bool | Skipped)


Prepare = Callable[[Mapping[int, Step]], Preparation]


def run_steps(
    runners: Sequence[StepRunner], steps: Sequence[Step], max_bytes: float, findings: Findings, prepare: Prepare
) -> None:
    """Goes through `steps`, which follow those of `findings`, the first ones first, until one rejects the candidate.
    Steps on workloads of more than `max_bytes` are the first runner's alone. prepare: begins to prepare steps by their
    places. Raises the error of a runner."""
    first, start = runners[0], len(findings.steps)
    findings.steps += steps
    for place, step in enumerate(steps, start):
        if (reason := excluded(first.task, *findings.kernels[:2], step, first.limits)) is not None:
            findings.note(place, reason)
    places = [at for at in range(start, len(findings.steps)) if at not in findings.results and findings.wanted(at)]
    light = [at for at in places if first.task.bytes_of(findings.steps[at].workload) <= max_bytes]
    heavy = [at for at in places if at not in light]
    waiting, stop = iter(light), threading.Event()  # each runner takes the next of the one iterator

    def run(runner: StepRunner, place: int) -> None:
        step = findings.steps[place]
        begun, cold = time.monotonic(), runner.is_cold(step)
        try:
            findings.note(place, runner.run(step, place, findings, source))
        finally:
            source.release(place)
        # A first step that fails leaves the process cold: were its time not counted, nothing would bound the verdict's.
        if not step.derived or (cold and not runner.is_cold(step)):
            findings.extend((time.monotonic() - begun) / len(runners))

    def go_through(runner: StepRunner) -> None:
        try:
            for place in waiting:
                if stop.is_set() or not findings.wanted(place):
                    return
                run(runner, place)
        finally:
            runner.device.leave()

    with prepare({at: findings.steps[at] for at in (*light, *heavy)}) as source:
        with ThreadPoolExecutor(len(runners)) as threads:
            running = [threads.submit(go_through, runner) for runner in runners]
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
                run(first, place)
    first.device.leave()


# The verdict

REACHING_BATCH = 8
"""Steps that enter further blocks between two looks at the blocks that have not run yet."""
CHECK_SECONDS = {"gpu": 20.0, "cpu": 60.0}
"""Time for the steps on made-up workloads, by the kind of device, unless the user says otherwise."""
BRIEF_SHARE = 0.1
"""Share of that time that a brief verdict takes."""
CHECK_SHARE = 0.5
"""Share of the caller's seconds that the steps on made-up workloads take, at most."""
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
MAX_GROWTH = 4
"""How many times the task's own largest size a made-up one may be that is a constant of the machine code: blocks of
more elements than registers hold take minutes to compile, and are not launched."""
MAX_COMPILERS = 16
"""Processes that compile a candidate."""
OUT_OF_MEMORY = "catastrophic error: out of memory"
"""NVRTC's message when it notices its memory bound itself."""

Question = tuple[Template, Config, str | None]
"""A template at a configuration, for one workload or, with None, for all."""


@dataclass(frozen=True, slots=True)
class JudgeOptions:
    """seed: of all that is drawn; largest_bytes: of a workload that a step may have; roofline: the device's roofs, for
    the timed launch, measured by the judgement if left out; lock: the device's, where the caller has one, which is
    released at the end; listener: called with the step at hand; processes: that go through steps at once; brief: on
    made-up sizes alone, without arrays beyond 4 GiB and sanitizers, which leaves the rest to a later verdict; seconds:
    the time limit for each question, of which steps on made-up sizes take a share, and sanitizers the remainder."""

    seed: int = field(default_factory=lambda: secrets.randbits(32))
    deadlines: Deadlines = field(default_factory=Deadlines)
    largest_bytes: float = math.inf
    roofline: Roofline | None = None
    lock: DeviceLock | None = None
    listener: Callable[[str], None] = lambda _: None
    processes: int | None = None
    brief: bool = False
    seconds: float = math.inf


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


def rejected(outcome: Outcome, steps: Sequence[Passed | Skipped] = (), remedy: str = "") -> CandidateVerdict:
    detail = f"{describe(outcome)}; {remedy}" if remedy else describe(outcome)
    return CandidateVerdict("rejected", reason_of(outcome), detail, tuple(steps))


def _dealt(
    compilers: Sequence[Isolated], method: str, seconds: float, template: Template, config: Config, keys: list[CodeKey]
) -> Iterator[tuple[CodeKey, Any]]:
    """The answers of compilers to the sources for `keys`, in their order, dealt out in turn: a list that comes again
    with another method finds each source where it was, and what its process has kept of it."""
    threads = [ThreadPoolExecutor(1, "compiler") for _ in compilers]
    sources = [specialise(template, config, dict(key)) for key in keys]
    hands = zip(itertools.cycle(zip(threads, compilers, strict=True)), sources, strict=False)
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
    ignored: tuple[type[Outcome], ...] = (),
) -> Candidate | Outcome:
    """`template` at `config` for everything of `workloads` that decides the code, or the first failure. known: compiled
    before, to which new artifacts are added. limits: of a device, on which a launch may fail on one of `workloads`, as
    far as that shows without it. ignored: failures that only leave code out; then about `seconds` are for all."""
    artifacts = {} if known is None else known
    keys = dict.fromkeys(code_key(task, template, workload) for workload in workloads)
    new, end = [key for key in keys if key not in artifacts], time.monotonic() + seconds
    for key, artifact in _dealt(compilers, "compile", seconds, template, config, new):
        wrong: Outcome | None = undeclared_state(template, artifact) if isinstance(artifact, Artifact) else artifact
        if wrong is None:
            artifacts[key] = artifact
        elif not isinstance(wrong, ignored):
            return wrong
        if ignored and time.monotonic() > end:
            break
    made = Candidate(template, config, {key: artifacts[key] for key in keys if key in artifacts})
    refusals = (unlaunchable(made, task, one, limits) for one in workloads) if limits is not None else ()
    return next(filter(None, refusals), made)


def judge(
    task: Task, limits: DeviceLimits, index: int, questions: Sequence[Question], options: JudgeOptions | None = None
) -> list[CandidateVerdict]:
    """The full verdict on each template at its configuration; only on the first of them where `options.seconds` are not
    enough for more. Raises `TunesmithError` where task or baseline are at fault."""
    verdicts, suspects, options = list[CandidateVerdict](), dict[int, Suspect](), options or JudgeOptions()
    end = time.monotonic() + options.seconds * len(questions)
    with contextlib.ExitStack() as stack:
        judgement = _Judgement(task, limits, index, options, stack)
        for only, steps, building, note in [judgement.plan(*question) for question in questions]:
            started = time.monotonic()
            if verdicts and started + max(one.seconds for one in verdicts) > end:
                break
            verdict, suspect = judgement.judge(building, steps, only)
            if suspect is not None:
                suspects[len(verdicts)] = suspect
            seconds = round(time.monotonic() - started, 1)
            verdicts.append(replace(verdict, notes=(*verdict.notes, *note), seconds=seconds, seed=options.seed))
        for place, answer in zip(suspects, judgement.sanitize(list(suspects.values()), end), strict=True):
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
    """The steps, in their order, without those on made-up sizes that need machine code beyond `MAX_CLASSES`, or for
    constants beyond `MAX_GROWTH`."""
    known = {code_key(task, template, step.workload) for step in steps if not step.derived}
    own = [pair for key in known for pair in _constants(key)]
    largest = {name: max(value for other, value in own if other == name) for name, _ in own}
    most, kept = len(known) + MAX_CLASSES, list[Step]()
    for step in steps:
        key = code_key(task, template, step.workload)
        large = any(value > MAX_GROWTH * largest.get(name, value) for name, value in _constants(key))
        if key in known or (len(known) < most and not large):
            known.add(key)
            kept.append(step)
    return kept


def _constants(key: CodeKey) -> list[tuple[str, int]]:
    return [(name, int(text.partition("=")[2])) for name, text in key if "=" in text]


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
        self, task: Task, limits: DeviceLimits, index: int, options: JudgeOptions, stack: contextlib.ExitStack
    ) -> None:
        self._task, self._limits, self._index, self._options = task, limits, index, options
        self._roofline, deadlines = options.roofline, options.deadlines
        seconds = (deadlines.check or CHECK_SECONDS[limits.kind]) * (BRIEF_SHARE if options.brief else 1)
        self._seconds = min(seconds, CHECK_SHARE * options.seconds)
        preload(limits.backend)
        count = max(1, process_count(limits) if options.processes is None else options.processes)
        enter = stack.enter_context
        examiners = [enter(Isolated("run", DeviceWorker, task, limits, index, options.seed)) for _ in range(count)]
        hosts = count if limits.kind == "cpu" else HOSTS_PER_PROCESS * count
        self._hosts = [enter(Isolated("run", ContentsHost, task)) for _ in range(hosts)]
        lock = options.lock or lock_of(examiners[0])
        stack.callback(lock.release)
        self._folder = Path(enter(tempfile.TemporaryDirectory(prefix="tunesmith-")))
        # Steps wait for the kernels: one for each combination of types, and of Triton for each class of sizes, about
        # twenty in a verdict, at a second each.
        many = min(os.cpu_count() or 1, MAX_COMPILERS)
        self._compilers = [enter(Isolated("compile", CompileWorker, limits, index)) for _ in range(many)]
        self._queue = ThreadPoolExecutor(1, "compiling")
        stack.callback(self._queue.shutdown, cancel_futures=True)
        for compiler in self._compilers:
            stack.callback(compiler.kill)
        self._baseline, self._tried = dict[CodeKey, Artifact](), set[CodeKey]()
        self._marked_baseline: dict[CodeKey, MarkedArtifact] = {}
        device = HeldDevice(lock, options.listener)
        self._runners = [StepRunner(task, limits, deadlines, one, device, options.listener) for one in examiners]
        self._first = self._runners[0]
        self._far = () if options.brief else far_steps(task, limits, options.seed)

    @cached_property
    def _unusable(self) -> list[UnusableScalar]:
        """See `unusable_scalars`. Where the reference is too slow to tell, the steps will."""
        task, limits, options = self._task, self._limits, self._options
        own = task.workloads_for(limits.kind)
        if not own or task.original_is_reference:
            return []
        deadline, small = options.deadlines.prepare, small_workload(task, own)
        found = self._hosts[0].call("unusable_scalars", deadline, small, options.seed)
        return found if isinstance(found, list) else []

    def plan(
        self, template: Template, config: Config, only: str | None
    ) -> tuple[str | None, list[Step], Future[BuiltKernels | Outcome], tuple[str, ...]]:
        """The workload and the steps, at least one, of a question, its kernels, once they are compiled, and a clause on
        steps that were left out, if there are any."""
        options, source = self._options, _source_with_parameters(template, config)
        unusable = {(name, level) for name, level, _ in (self._unusable if only is None else ())}
        steps = plan(self._task, self._limits, options.seed, options.largest_bytes, only, source, unusable)
        if not steps:
            kind = self._limits.kind
            raise TunesmithError(
                f"The task {self._task.name} has no workload for a {kind}: add one whose `devices` lists it."
            )
        kept = of_few_classes(self._task, template, steps)
        left, note = len(steps) - len(kept), "as each of their sizes is machine code of its own"
        own = [step.workload for step in kept if not step.derived]
        made_up = [step.workload for step in kept if step.derived]
        made_up += [far.workload for far in self._far if only is None]
        building = self._queue.submit(self._build, template, config, own, made_up)
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
        findings = Findings(built, self._seconds)
        brief = self._options.brief
        self._go_through([step for step in steps if step.derived] if brief else steps, only, findings)
        passed = findings.passed()
        if (wrong := findings.wrong()) is not None:
            return rejected(wrong[0], passed, for_rejection(self._task, wrong[1])), None
        if brief:
            return CandidateVerdict("accepted", steps=tuple(passed)), None
        own = [step.workload for step in steps if not step.derived]
        timed = self._timed(candidate, min(own, key=lambda one: (one.held_out, self._task.bytes_of(one))))
        if not isinstance(timed, Measured):
            return rejected(timed, passed), None
        for far in self._far if only is None else ():
            result = self._launched_far(candidate, baseline, far)
            if not isinstance(result, Passed | Skipped):
                at = replace(far.period, workload=far.workload)
                return rejected(result, passed, for_rejection(self._task, at)), None
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

    def sanitize(self, suspects: Sequence[Suspect], end: float) -> Sequence[Sanitized]:
        """The sanitizer's answers until `end` (monotonic), once the memory of the examiners' buffers is free."""
        for runner in self._runners:
            runner.examiner.end()
        if suspects:
            self._first.device.take()
            self._options.listener("sanitizer")
        return sanitize(suspects, self._task, self._limits, self._index, end)

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
            for kernel in (candidate, baseline):
                keys = [code_key(self._task, kernel.template, step.workload) for step in further]
                further = [step for step, key in zip(further, keys, strict=True) if key in kernel.artifacts]
            while further and coverage.unreached() and not findings.is_spent:
                self._run(further[:REACHING_BATCH], findings)
                further = further[REACHING_BATCH:] if findings.first_wrong is None and findings.counting else []
        late = {step.step for step in findings.passed() if isinstance(step, Skipped) and step.reason == "time"}
        again = [step for step in steps if step.name in late]
        if findings.first_wrong is None and again and not findings.is_spent:
            findings.results = {at: one for at, one in findings.results.items() if findings.steps[at].name not in late}
            self._run(again, findings)

    def _run(self, steps: Sequence[Step], findings: Findings) -> None:
        """`run_steps` with contents that are prepared beside it."""
        deadlines, count = self._options.deadlines, len(self._runners)
        seconds = (deadlines.prepare, deadlines.made_up_step(findings.seconds))
        # The data of all processes together leaves half of the device's memory to others.
        max_bytes = (self._limits.memory_bytes or 0) / (2 * MAX_SETS * count) if count > 1 else math.inf
        prepare = partial(Preparation, self._task, self._limits, self._hosts, findings, self._folder, seconds)
        run_steps(self._runners, steps, max_bytes, findings, prepare)

    def _build(
        self, template: Template, config: Config, own: Sequence[Workload], made_up: Sequence[Workload]
    ) -> BuiltKernels | Outcome:
        """The kernels of steps on the task's own workloads, and of those on made-up ones for which both compile in
        time; or the candidate's first failure. Raises `TunesmithError` where the plain kernel fails on its own."""
        task, seconds = self._task, self._options.deadlines.compile
        plain, artifacts = task.sources(self._limits.backend).baseline.template, dict[CodeKey, Artifact]()
        compile_plain = partial(compile_all, self._compilers, task, plain, {}, known=self._baseline)
        compile_candidate = partial(compile_all, self._compilers, task, template, config, known=artifacts)
        if not isinstance(baseline := compile_plain(own, seconds), Candidate):
            raise TunesmithError(f"The baseline of {task.name} cannot be compiled: {describe(baseline)}.")
        if not isinstance(candidate := compile_candidate(own, seconds), Candidate):
            return candidate
        # What the task declares and does not use may be more than its kernel was written for. Sizes of a Triton kernel
        # may be constants of its code, which compiles for minutes where they are large.
        made_up, late = sorted(made_up, key=task.bytes_of), (TimedOut, Crashed)
        new = [workload for workload in made_up if code_key(task, plain, workload) not in self._tried]
        compile_plain(new, self._seconds, ignored=(CompileFailed, Rejected, *late))
        self._tried.update(code_key(task, plain, workload) for workload in new)
        meant = [workload for workload in made_up if code_key(task, plain, workload) in self._baseline]
        if not isinstance(failed := compile_candidate(meant, self._seconds, ignored=late), Candidate):
            return failed
        candidate, baseline = replace(candidate, artifacts=artifacts), replace(baseline, artifacts=dict(self._baseline))
        coverage = "" if self._options.brief else self._coverage(candidate, {})
        if isinstance(coverage, Coverage):
            marked = self._coverage(baseline, self._marked_baseline)
            coverage.plain = marked if isinstance(marked, Coverage) else None
        return candidate, baseline, coverage

    def _coverage(self, candidate: Candidate, marked: dict[CodeKey, MarkedArtifact]) -> Coverage | str:
        """The candidate's marked twin, or why there is none. marked: twins that were compiled before, to which new ones
        are added."""
        new, seconds = [key for key in candidate.artifacts if key not in marked], self._options.deadlines.compile
        for key, artifact in _dealt(self._compilers, "mark", seconds, candidate.template, candidate.config, new):
            if not isinstance(artifact, MarkedArtifact):
                why = artifact if isinstance(artifact, str) else describe(artifact)
                return f"whether every part of the kernel ran was not checked: {why}"
            marked[key] = artifact
        return Coverage(candidate, {key: marked[key] for key in candidate.artifacts})

    def _timed(self, candidate: Candidate, workload: Workload) -> Outcome:
        """The candidate timed on a workload, against the device's roofs."""
        task, examiner, deadlines = self._task, self._first.examiner, self._options.deadlines
        listener = self._options.listener
        self._first.device.take()
        listener(f"preparing {workload.name}")
        prepared = examiner.call("prepare", deadlines.prepare, [workload.name])
        require_prepared(task, workload.name, prepared)
        if self._roofline is None:
            # No roofs where the probes do not run on the device.
            probes = self._queue.submit(self._compilers[0].call, "probes", deadlines.roofs).result()
            roofs = examiner.call("calibrate", deadlines.roofs, probes) if isinstance(probes, dict) else None
            self._roofline = roofs if isinstance(roofs, Roofline) else Roofline()
        floor = self._roofline.floor_seconds(*task.work_of(workload)) or 0.0
        listener(f"checking timed launches on {workload.name}")
        answer = examiner.call("visit", deadlines.run, candidate, [workload.name], replace(QUICK, floor=floor))
        outcome: Outcome = answer[workload.name] if isinstance(answer, dict) else answer
        if isinstance(outcome, LaunchFailed) and outcome.sticky:
            examiner.end()
        return outcome

    def _launched_far(self, candidate: Candidate, baseline: Candidate, far: FarStep) -> Passed | Skipped | Outcome:
        """The result of a step on arrays beyond 4 GiB; where the process ends, it may be the plain kernel's fault."""
        first, name = self._first, far.workload.name
        first.device.take()
        self._options.listener(f"checking {name}")
        made = first.examiner.call("prepare_step", self._options.deadlines.prepare, far.period)
        launch = partial(launch_far, candidate, baseline, far)
        result = first.on_step(far.period, launch) if made is None else made
        return Skipped(name, describe(result), reason="time") if isinstance(result, TimedOut | Crashed) else result

    def _excluded(self, made_up: Mapping[str, Step], results: Sequence[Passed | Skipped], findings: Findings) -> int:
        """How many of the `made_up` steps the template excludes; where these are most, without the share in which the
        plain kernel is not right either, by a sample."""
        names = {result.step for result in results if isinstance(result, Skipped) and result.reason == "template"}
        excluded = [step for name, step in made_up.items() if name in names]
        if len(excluded) <= MAX_EXCLUDED_SHARE * len(made_up):
            return len(excluded)
        sample = excluded[:: max(1, len(excluded) // MAX_EXCLUDED_TRIALS)]
        fits = [self._first.plain_fits(step, findings) for step in sample if not findings.is_spent]
        return len(excluded) - len(excluded) * fits.count(False) // max(1, len(fits))
