"""The reference, called before anything is measured: in a process of its own, with a deadline, without the device.

It is the user's code. Here it may sleep for ever, print, or take its process with it, and is named for it; no kernel is
blamed, and no other tuning on the machine waits for it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from tunesmith.actors.process.isolated import Isolated
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.limits import DeviceLimits
from tunesmith.kernels.check.reference import examine_reference
from tunesmith.kernels.launch.workload_data import where_of
from tunesmith.kernels.outcome import Crashed, TimedOut
from tunesmith.kernels.spec.task import Task, TaskError, Workload

DEADLINE = 60.0
"""Seconds of one workload, unless the user says otherwise."""
LARGEST_BYTES = 16 << 20
"""Workloads that move more than this are left to the device, on which their results are computed faster."""


class _Host:
    def __init__(self, task: Task, seed: int) -> None:
        self._task, self._seed = task, seed

    def examine(self, workload: str, twice: bool) -> None:
        examine_reference(self._task, self._task.workload(workload), self._seed, twice=twice)


class ReferenceCheck:
    """The examination of a task's reference on `workloads`, begun when it is made; `result` waits for its end.

    Its deadlines run from when its process is ready, whatever this process does meanwhile.
    """

    def __init__(self, task: Task, workloads: Sequence[Workload], *, seed: int, deadline: float = DEADLINE) -> None:
        self._task, self._deadline = task, deadline
        # Nothing of the user's runs on the host where the original kernel is the reference.
        ordered = [] if task.original_is_reference else sorted(workloads, key=task.bytes_of)
        self._workloads = [w for at, w in enumerate(ordered) if at == 0 or task.bytes_of(w) <= LARGEST_BYTES]
        self._process = Isolated("run", _Host, task, seed)
        self._error: Exception | None = None
        if self._workloads:
            self._process.begin("examine", self._workloads[0].name, True)
        self._waiting = threading.Thread(target=self._wait, daemon=True)
        self._waiting.start()

    @property
    def done(self) -> bool:
        """Whether `result` would return, or raise, at once."""
        return not self._waiting.is_alive()

    def result(self) -> None:
        """Returns when the reference was found fit. Raises `TaskError`, which names it."""
        self._waiting.join()
        self._process.end()
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """Ends the examination, whatever it would find; after `result` nothing is left to end."""
        if not self.done:
            self._process.kill()
            self._waiting.join()
        self._process.end()

    def _wait(self) -> None:
        try:
            for number, workload in enumerate(self._workloads):
                if number:
                    self._process.begin("examine", workload.name, False)
                self._judge(workload, self._process.answer(self._deadline))
        except (TunesmithError, RuntimeError) as error:
            # A mistake of the user's, or of ours in that process: raised where the result is asked for.
            self._error = error

    def _judge(self, workload: Workload, answer: object) -> None:
        where = where_of(self._task, workload)
        match answer:
            case TimedOut():
                raise TaskError(
                    f"{where} has not returned for {answer.limit:g} s: fix it, make the workload smaller, or give it "
                    "more time with --reference-deadline."
                )
            case Crashed():
                raise TaskError(f"{where} ends the process that calls it ({answer.detail}): fix it.")


def begin_check(task: Task, limits: DeviceLimits, *, seed: int, deadline: float = DEADLINE) -> ReferenceCheck:
    """The examination of a task's reference on the workloads that are meant for a device."""
    both = (*task.workloads_for(limits.kind, held_out=False), *task.workloads_for(limits.kind, held_out=True))
    return ReferenceCheck(task, both, seed=seed, deadline=deadline)
