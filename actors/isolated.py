"""An object in a process of its own, without Ray: for one verdict, starting a cluster would take longer than the work.

Every call has a deadline. A call that overruns it, or whose process dies, comes back as a value; the next call starts a
new process. A mistake of the user's that is found there is raised here.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.outcome import Crashed, TimedOut

START_SECONDS = 120.0
"""For starting a process and making the object in it."""
BACKSTOP_SECONDS = 3600
"""After which a process ends by itself, should its parent have been killed while a kernel ran for ever."""


class Isolated:
    """The object `make(*arguments)`; everything that crosses must be picklable. phase: "compile" or "run".

    Use as a context manager; it ends the process.
    """

    def __init__(self, phase: str, make: Callable[..., Any], *arguments: Any) -> None:
        self._phase, self._make, self._arguments = phase, make, arguments
        self._process: Any = None
        self._pipe: Connection | None = None

    def __enter__(self) -> Isolated:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def call(self, method: str, seconds: float, *arguments: Any) -> Any:
        """The result of a method of the object, `TimedOut` or `Crashed`."""
        try:
            if self._pipe is None:
                pipe = self._start()
                if not pipe.poll(START_SECONDS):
                    self.end()
                    return TimedOut("start", START_SECONDS)
                failed, result = pipe.recv()
                if failed:
                    self.end()
                    raise result
            assert self._pipe is not None
            self._pipe.send((method, arguments))
            if not self._pipe.poll(seconds):
                self.end()
                return TimedOut(self._phase, seconds)
            failed, result = self._pipe.recv()
        except (EOFError, ConnectionError):
            return Crashed(self._phase, self._death())
        if failed:
            raise result
        return result

    def end(self) -> None:
        """Kills the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None

    def _start(self) -> Connection:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._make, self._arguments), daemon=True)
        self._process.start()
        theirs.close()
        return self._pipe

    def _death(self) -> str:
        self._process.join(5.0)
        code = self._process.exitcode
        self.end()
        if code is not None and code < 0:
            return f"the process ended by signal {-code} ({signal.Signals(-code).name})"
        return f"the process ended with code {code}"


def _serve(pipe: Connection, make: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    # Without a handler of Python's the alarm ends the process also while it waits in a driver.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(BACKSTOP_SECONDS)
    try:
        made = make(*arguments)
    except TunesmithError as error:
        pipe.send((True, error))
        return
    pipe.send((False, None))
    while True:
        try:
            method, given = pipe.recv()
        except EOFError:
            os._exit(0)
        try:
            result = getattr(made, method)(*given)
        except TunesmithError as error:
            pipe.send((True, error))
            continue
        pipe.send((False, result))
