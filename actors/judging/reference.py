"""The reference, called before anything is measured: in a process of its own, with a deadline, without the device.

It is the user's code. Here it may sleep for ever, print, or take its process with it, and is named for it; no kernel is
blamed, and no other tuning on the machine waits for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from tunesmith.actors.process.isolated import Isolated
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.limits import DeviceLimits
from tunesmith.kernels.check.reference import examine_reference
from tunesmith.kernels.launch.reference import where_of
from tunesmith.kernels.outcome import Crashed, TimedOut
from tunesmith.kernels.spec.task import Task, TaskError, Workload

DEADLINE = 60.0
"""Seconds of one workload, unless the user says otherwise."""
LARGEST_BYTES = 16 << 20
"""Workloads that move more than this are left to the device, on which their results are computed faster."""


class _Host:
    def __init__(self, task: Task, seed: int) -> None:
        self._task, self._seed = task, seed

    def examine(self, workload: Workload, twice: bool) -> None:
        examine_reference(self._task, workload, self._seed, twice=twice)


class ReferenceCheck:
    """The examination of a task's reference. It begins with the first workloads that are given to it, and goes on
    whatever this process does meanwhile; `result` waits for its end.

    deadline: seconds for one workload, which run from when its process is ready. directly: as for `Isolated`. failed:
    called, by another thread, once the reference was found unfit, unless `result` is being waited for.
    """

    def __init__(
        self,
        task: Task,
        workloads: Sequence[Workload] = (),
        *,
        seed: int,
        deadline: float = DEADLINE,
        directly: bool = False,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        self.task, self.deadline, self._failed = task, deadline, failed
        self._process = Isolated("run", _Host, task, seed, directly=directly)
        self._given: list[Workload] = []
        self._queue: SimpleQueue[Workload | None] = SimpleQueue()
        self._waiting: threading.Thread | None = None
        self._state = threading.Lock()
        self._awaited = self._ended = False
        self.error: Exception | None = None
        """What was found wrong so far."""
        self.examine(workloads)

    def examine(self, workloads: Sequence[Workload]) -> None:
        """Adds those of `workloads` that it does not have yet."""
        # Nothing of the user's runs on the host where the original kernel is the reference.
        new = [] if self.task.original_is_reference else [one for one in workloads if one not in self._given]
        for workload in sorted(new, key=self.task.bytes_of):
            if self._given and self.task.bytes_of(workload) > LARGEST_BYTES:
                continue
            self._given.append(workload)
            if self._waiting is None:
                # Before there is a thread: a process with two is not forked as it is.
                self._process.begin("examine", workload, True)
                self._waiting = threading.Thread(target=self._wait, args=(workload,), daemon=True)
                self._waiting.start()
            else:
                self._queue.put(workload)

    def result(self) -> None:
        """Returns when the reference was found fit. Raises `TaskError`, which names it."""
        with self._state:
            self._awaited = True
        self._queue.put(None)
        if self._waiting is not None:
            self._waiting.join()
        self._process.end()
        if self.error is not None:
            raise self.error

    def end(self) -> None:
        """Ends the examination, whatever it would find; after `result` nothing is left to end."""
        with self._state:
            self._ended = True
        self._queue.put(None)
        if self._waiting is not None and self._waiting.is_alive():
            self._process.kill()
            self._waiting.join()
        self._process.end()

    def _wait(self, first: Workload) -> None:
        try:
            self._judge(first, self._process.answer(self.deadline))
            while (workload := self._queue.get()) is not None:
                self._process.begin("examine", workload, False)
                self._judge(workload, self._process.answer(self.deadline))
        except (TunesmithError, RuntimeError) as error:
            # A mistake of the user's, or of ours in that process: raised where the result is asked for.
            with self._state:
                if self._ended:
                    return
                self.error = error
                unexpected = not self._awaited
            if unexpected:
                self._failed()

    def _judge(self, workload: Workload, answer: object) -> None:
        where = where_of(self.task, workload)
        match answer:
            case TimedOut():
                raise TaskError(
                    f"{where} has not returned for {answer.limit:g} s: fix it, make the workload smaller, or give it "
                    "more time with --reference-deadline."
                )
            case Crashed():
                raise TaskError(f"{where} ends the process that calls it ({answer.detail}): fix it.")


def meant_for(task: Task, limits: DeviceLimits) -> tuple[Workload, ...]:
    """The workloads for a device, tuned and held-out ones."""
    kind = limits.kind
    return (*task.workloads_for(kind, held_out=False), *task.workloads_for(kind, held_out=True))
