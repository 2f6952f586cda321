"""The contents of steps and the reference's results for them, made ahead of the steps by processes that use no device.

Owns the processes that call the reference in a verdict, the files by which they hand over its results, and the cache of
these for later verdicts: preparing runs beside the launches, and no device is held for a slow reference.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING

from tunesmith.actors.process import Isolated
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.limits import DeviceLimits
from tunesmith.kernels.build.artifact import ArtifactCache, open_cache
from tunesmith.kernels.check.plan import Step, made_up_scalars
from tunesmith.kernels.check.verify import Skipped
from tunesmith.kernels.launch.contents import Contents
from tunesmith.kernels.launch.reference import Prepared, key_of, load_reference, packed, prepare_contents
from tunesmith.kernels.outcome import Crashed, TimedOut, describe
from tunesmith.kernels.spec.task import Task, TaskError, Workload

if TYPE_CHECKING:
    from tunesmith.actors.judging.steps import Findings

MAX_PREPARED_STEPS = 8
"""Steps that each process prepares before one of them is used: their files take disk space."""
MAX_HOST_BYTES = 16 << 20
"""Bytes that a launch moves beyond which a GPU computes the reference faster than the host."""
READY_SECONDS = 0.2
END_SECONDS = 1.0
"""How long a step under way may go on once preparing has ended: a process that is killed imports the reference anew."""
MAX_CACHED_BYTES_PER_SECOND = 5e6
"""Prepared contents are kept on disk where preparing them was slower than this: others are soon made again."""


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
        for name, level, value in made_up_scalars(self._task, workload):
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


class Preparation:
    """Prepares `steps`, by their places in a plan, in this order, with a thread for each of `hosts`. seconds: to
    prepare a step on the task's own workloads, and one on a workload that was made up. Use as a context manager."""

    def __init__(
        self,
        task: Task,
        limits: DeviceLimits,
        steps: Mapping[int, Step],
        hosts: Sequence[Isolated],
        findings: Findings,
        folder: Path,
        seconds: tuple[float, float],
    ) -> None:
        self._task, self._findings, self._folder, self._seconds = task, findings, folder, seconds
        self._hosts, self._idle = hosts, list(hosts)
        self._room, self._stop = threading.Semaphore(MAX_PREPARED_STEPS * len(hosts)), threading.Event()
        self._threads = ThreadPoolExecutor(len(hosts), "preparation")
        self._made = {
            place: self._threads.submit(self._prepare, step, self._path(place))
            for place, step in steps.items()
            if not task.original_is_reference
            and (limits.kind == "cpu" or step.derived or task.bytes_of(step.workload) <= MAX_HOST_BYTES)
        }

    def __enter__(self) -> Preparation:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()
        self._threads.shutdown()

    def cancel(self) -> None:
        """Ends the preparing; no step that is not prepared yet will be."""
        self._stop.set()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._room.release(len(self._hosts))
        wait([made for made in self._made.values() if made.running()], END_SECONDS)
        for late in set(self._hosts) - set(self._idle):
            late.kill()

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
    """Raises `TunesmithError` where preparing the data of the step or workload `name` overran its deadline or ended its
    process: no kernel ran, only the user's reference."""
    match answer:
        case TimedOut():
            raise TunesmithError(
                f"Task {task.name}: preparing the data of {name} took longer than {answer.limit:g} s; most likely the "
                f"reference {task.reference_name} does not end: make it faster, or the workload smaller."
            )
        case Crashed():
            raise TunesmithError(
                f"Task {task.name}: {answer.detail} while it prepared the data of {name}; most likely the reference "
                f"{task.reference_name} ends it: fix the reference."
            )
