"""The reference of a command's task: its examination is the first thing that `tune`, `check` and `bench` begin.

Owns that nothing else is waited for where it fails: not what is imported meanwhile, and not what was started.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from tunesmith.actors.judging.reference import ReferenceCheck
from tunesmith.kernels.spec.files.taskfile import load_task

KINDS = {"gpu", "cpu"}


class _Unfit(BaseException):
    """Raised in the middle of whatever the main thread does, and so nothing that others should catch."""


@contextmanager
def examined(task_name: str, *, seed: int, deadline: float, begin: bool = True) -> Iterator[ReferenceCheck]:
    """The task's reference, under examination on those of its workloads that are meant for every kind of device; which
    device there is takes a while to find out. Where it fails, the block is left at once. begin: left out, nothing is
    examined yet. Raises `TunesmithError`."""
    task = load_task(task_name)
    before = None
    failed = _nothing
    if threading.current_thread() is threading.main_thread():
        before = signal.signal(signal.SIGUSR1, _leave)
        failed = _interrupt
    reference = ReferenceCheck(task, seed=seed, deadline=deadline, directly=True, failed=failed)
    try:
        if begin:
            reference.examine([one for one in task.workloads if set(one.devices) >= KINDS])
        yield reference
    except BaseException:  # what ends the block may be the signal that the reference is unfit, or follow from it
        if reference.error is not None:
            raise reference.error from None
        raise
    finally:
        if before is not None:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        reference.end()
        if before is not None:
            signal.signal(signal.SIGUSR1, before)


def _nothing() -> None:
    pass


def _interrupt() -> None:
    # A signal, as it ends also what waits for something.
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)


def _leave(number: int, frame: FrameType | None) -> None:
    raise _Unfit
