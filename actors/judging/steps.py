"""The steps of the full verdict on one candidate: their contents, and their launches, spread over processes.

Contents and the reference's results for them are made ahead of the launches by processes that use no device, so that
none is held for a slow reference; later verdicts find them in a cache. The processes that launch use the device at the
same time. Owns the progress of a verdict (`Findings`): its budget, the results of its steps and what is left out for
its time; deadlines and retries; and the sentences that say how a task can rule out made-up values with which its kernel
is never called.
"""

from __future__ import annotations

import math
import os
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tunesmith.actors.process import Isolated
from tunesmith.actors.workers import Deadlines
from tunesmith.hw.device_lock import DeviceLock
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.limits import DeviceLimits
from tunesmith.kernels.build.artifact import ArtifactCache, Candidate, TypesKey, open_cache, types_key
from tunesmith.kernels.build.source import code_key
from tunesmith.kernels.check.coverage import Coverage
from tunesmith.kernels.check.plan import UNINFORMATIVE, Step, made_up_scalars
from tunesmith.kernels.check.verify import Edge, Passed, Skipped, excluded
from tunesmith.kernels.launch.contents import Contents
from tunesmith.kernels.launch.reference import Prepared, key_of, load_reference, packed, prepare_contents
from tunesmith.kernels.outcome import Crashed, LaunchFailed, Outcome, TimedOut, WrongResult, describe
from tunesmith.kernels.spec.task import Task, TaskError, Workload

MAX_NAMED_VALUES = 4
"""Values that a sentence names."""
BLAMED = {"reference": "the reference fails", "plain kernel": "the plain kernel fails"}
"""The cause, by the reason for which steps are left out."""
EDGES: tuple[Edge, ...] = ("end", "start", "read-only")
"""Where kernels reach beyond an array, the likelier first, and where they write to inputs and then restore them."""
EDGE_WEIGHTS = (3, 3, 2)
"""How often each occurs on workloads that were made up."""
TRIAL_KINDS = ("large", "negative", "outliers")
"""Contents on which a plain kernel that is not written for a scalar's value is likely to fail."""
MAX_PROCESSES = 4
CORES_PER_PROCESS = 2
"""NumPy and the driver have threads of their own."""
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
MAX_HOST_BYTES = 16 << 20
"""Bytes that a launch moves beyond which a GPU computes the reference faster than the host."""
READY_SECONDS = 0.2
END_SECONDS = 1.0
"""How long a step under way may go on once preparing has ended: a process that is killed imports the reference anew."""
MAX_CACHED_BYTES_PER_SECOND = 5e6
"""Prepared contents are kept on disk where preparing them was slower than this: others are soon made again."""


def for_left_out(
    steps: Mapping[str, Step], found: Sequence[Passed | Skipped], unusable: Sequence[tuple[str, int, float]]
) -> list[str]:
    """A sentence for each scalar and size with values that only steps have which were left out. steps: by name;
    unusable: made-up values of scalars that were left out before any step (name, level and value)."""
    passed = set[tuple[str, float]]()
    blamed = defaultdict[tuple[str, str], set[tuple[str, float]]](set)
    for name, _, value in unusable:
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


def for_rejection(step: Step) -> str:
    """A remedy for the case that no caller has the made-up values of the step that rejects the kernel; empty where it
    has none."""
    scalars, sizes = _made_up(step)
    named = " or ".join(f"{name} = {value:g}" for name, value in [*scalars, *sizes])
    remedies = [_remedy(", ".join(dict(made_up)), made_up is scalars) for made_up in (scalars, sizes) if made_up]
    return f"the plain kernel is right there, but if no caller has {named}: {' or '.join(remedies)}" if named else ""


def _made_up(step: Step) -> tuple[Sequence[tuple[str, float]], Sequence[tuple[str, float]]]:
    """The scalars, and the sizes, that Tunesmith chose for a step: names and values."""
    return step.contents.scalars, list(step.workload.sizes.items()) if step.derived else []


def _remedy(names: str, is_scalar: bool) -> str:
    return f"list the `values` of {names} in the task" if is_scalar else f"give the range of {names} in `requires`"


def process_count(limits: DeviceLimits) -> int:
    """How many processes go through steps at once: one on a CPU, whose cores run the kernels too."""
    if limits.kind == "cpu":
        return 1
    return max(1, min(MAX_PROCESSES, len(os.sched_getaffinity(0)) // CORES_PER_PROCESS))


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
        try:
            self._cache: ArtifactCache | None = open_cache()
        except TunesmithError:  # which the command that began this has reported
            self._cache = None
        # The time of a reference does not include its imports.
        load_reference(task)

    def unusable_scalars(self, workload: Workload, seed: int) -> list[tuple[str, int, float]]:
        """The made-up values of scalars with which the reference fails or meets an arithmetic error on the task's own
        contents: name, level and value."""
        found = []
        for name, level, value in made_up_scalars(self._task, workload, seed):
            contents = Contents(seed=seed, scalars=((name, value),))
            if isinstance(self._make(workload, contents, made_up=True), str):
                found.append((name, level, value))
        return found

    def prepare(self, step: Step, path: Path) -> Skipped | None:
        """Writes the prepared contents of `step` to `path`, or says why the step is left out. Raises `TaskError` where
        contents that the task itself declares cannot be prepared."""
        key = key_of(self._task, step.workload, step.contents, made_up=not step.own)
        data = None if self._cache is None else self._cache.read(key)
        if data is None:
            begun = time.monotonic()
            made = self._make(step.workload, step.contents, made_up=not step.own)
            if isinstance(made, str):
                return Skipped(step.name, made, reason="reference")
            data = packed(made)
            if self._cache is not None and len(data) < MAX_CACHED_BYTES_PER_SECOND * (time.monotonic() - begun):
                self._cache.write(key, data)
        path.write_bytes(data)
        return None

    def _make(self, workload: Workload, contents: Contents, *, made_up: bool) -> Prepared | str:
        try:
            return prepare_contents(self._task, workload, contents, made_up=made_up)
        except TaskError as error:
            if not made_up:
                raise
            return str(error)


class Preparation(AbstractContextManager["Preparation"]):
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
            and (limits.kind == "cpu" or step.derived or task.bytes_of(step.workload) <= MAX_HOST_BYTES)
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

    def claim(self, place: int) -> None:
        """Leaves a step that no host has begun to a GPU, so that it does not wait where the hosts are behind."""
        if self._on_device and (made := self._made.get(place)) is not None and made.cancel():
            del self._made[place]

    def is_ready(self, place: int) -> bool:
        """Whether `get` returns at once, or nearly so."""
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
        return self._folder / f"{place}.npz"

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
            if isinstance(answer, TimedOut) and step.derived:
                self._findings.slow.append((step.workload, f"the reference takes longer than {answer.limit:g} s"))
            return Skipped(step.name, f"the reference fails there: {describe(answer)}", reason="reference")
        return answer if isinstance(answer, Skipped) else path


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
    the step at hand."""

    task: Task
    limits: DeviceLimits
    deadlines: Deadlines
    examiner: Isolated
    device: HeldDevice
    listener: Callable[[str], None]
    path: Path | None = None
    warm_start: dict[TypesKey, int] = field(default_factory=dict)
    """The start of the process that has been through a step, by the step's types."""
    baseline_ends: bool = False
    """The baseline is known to end on a workload of the task's."""

    def run(self, step: Step, place: int, findings: Findings, source: Preparation) -> Passed | Skipped | Outcome:
        """The result of one step."""
        if (left_out := findings.left_out(step)) is not None:
            return left_out
        source.claim(place)
        if not source.is_ready(place):
            self.listener(f"the reference computes {step.name}")
            self.device.leave()
        prepared = source.get(place)
        if isinstance(prepared, Skipped):
            return prepared
        self.path = prepared
        findings.extend(self.device.take())
        if (skipped := self.try_plain(step, findings)) is not None:
            return skipped
        result: Passed | Skipped | Outcome = self.call("verify", *findings.kernels[:2], step)
        if isinstance(result, WrongResult) and (unfit := self._unfit_scalars(step, findings)) is not None:
            return unfit
        if not isinstance(result, Passed):
            return result
        if step.own:
            skips: Skipped | Outcome | None = self.call("skips_right_results", findings.kernels[0], step, PAIRS_SECONDS)
            if isinstance(skips, WrongResult):
                return replace(skips, detail=f"on {step.name}: {skips.detail}")
            if not isinstance(skips, Skipped | None):
                return skips
        edges = [edge for edge in EDGES if self._arrays(edge)]
        # All edges on the task's own workloads; a drawn one on derived workloads, as there are hundreds.
        if not step.own:
            edges = random.Random(f"{step.contents.seed} {place}").choices(edges, EDGE_WEIGHTS[: len(edges)])
        for edge in edges:
            beyond = self._at_edges(*findings.kernels[:2], step, edge)
            if isinstance(beyond, str):
                findings.unchecked.setdefault(beyond)
            elif beyond is not None:
                return beyond
        self._cover(step, findings)
        return result

    def call(self, method: str, *arguments: Any, seconds: float | None = None) -> Any:
        """A call of the examiner, whose process ends where its device cannot be used any more. seconds: the deadline of
        a step if left out."""
        result = self.examiner.call(method, self.deadlines.run if seconds is None else seconds, *arguments)
        if isinstance(result, LaunchFailed | Skipped) and result.sticky:
            self.examiner.end()
        return result

    def try_plain(self, step: Step, findings: Findings) -> Skipped | None:
        """Prepares `step` and launches the baseline in it: why the step is left out, or None."""
        (_, baseline, _), short = findings.kernels, math.inf
        if step.derived and not self.is_cold(step):
            short = self.deadlines.made_up_step(findings.seconds)
        # With prepared contents none of the user's code runs.
        making = self.deadlines.prepare if self.path is not None else min(short, self.deadlines.prepare)
        if (skipped := self._prepare(step, making)) is not None:
            return skipped
        self.listener(f"checking {step.name}")
        plain: Any = 0.0
        if short < math.inf:
            plain = self.call("time_baseline", baseline, step, seconds=short)
            if isinstance(plain, float) and plain > short / MAX_LAUNCHES:
                why = f"one launch of the plain kernel takes {plain:.2g} s"
                findings.slow.append((step.workload, why))
                return Skipped(step.name, f"{why} there", reason="time")
        if isinstance(plain, float):
            plain = self.call("try_baseline", baseline, step)
        if plain is None:
            self.warm_start[types_key(step.workload)] = self.examiner.starts
        if isinstance(plain, Skipped | None):
            return plain
        if isinstance(plain, TimedOut) and step.derived:
            findings.slow.append((step.workload, f"the plain kernel takes longer than {plain.limit:g} s"))
        self._require_baseline(baseline, step, plain)
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
            self.path = None
            self._prepare(step, self.deadlines.prepare)
            failure = self.call("try_baseline", baseline, step)
        if isinstance(failure, Crashed | TimedOut):
            raise TaskError(
                f"The {self.limits.backend} baseline of {self.task.name} fails on the workload {step.workload.name}: "
                f"{describe(failure).rstrip('.')}. Fix its source or its launch, or give it more time with "
                "--run-deadline."
            )
        self.baseline_ends = True

    def _cover(self, step: Step, findings: Findings) -> None:
        """Counts the parts that run in a launch on this step's data; where one fails, nothing is known any more."""
        candidate, _, coverage = findings.kernels
        key = code_key(self.task, candidate.template, step.workload)
        for one in (coverage, coverage.plain) if isinstance(coverage, Coverage) else ():
            if one is None or not findings.counting or not one.wanted(key):
                continue
            result = self.call("cover", one.twin, step)
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
        result: bool | Skipped | Outcome = self.call("try_edges", candidate, step, arrays, edge)
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
        return not isinstance(self.call("try_edges", candidate, step, arrays, edge), bool | Skipped)


def run_steps(
    runners: Sequence[StepRunner],
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
