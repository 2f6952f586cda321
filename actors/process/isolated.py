"""An object in a process of its own, without Ray.

A call may have a deadline. A call that overruns it, or whose process dies, comes back as a value; the next call starts
a new process. A mistake of the user's that is found there is raised here, and so is a bug.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from tunesmith.actors.process.fork_server import ForkServer
from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.outcome import Crashed, TimedOut

START_SECONDS = 120.0
"""For starting a process and making the object in it."""
BACKSTOP_SECONDS = 3600
"""After which a process without a server ends by itself, should its parent have been killed while a kernel ran for
ever."""


class Isolated:
    """The object `make(*arguments)`; everything that crosses must be picklable. phase: "compile" or "run"; server: what
    makes the process, a new interpreter if left out.

    Use as a context manager; it ends the process.
    """

    def __init__(self, phase: str, make: Callable[..., Any], *arguments: Any, server: ForkServer | None = None) -> None:
        self._phase, self._make, self._arguments, self._server = phase, make, arguments, server
        self._process: Any = None
        self._pipe: Connection | None = None
        self._made = False

    def __enter__(self) -> Isolated:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def call(self, method: str, seconds: float | None, *arguments: Any) -> Any:
        """The result of a method of the object, `TimedOut` or `Crashed`. seconds: None for as long as it takes."""
        self.begin(method, *arguments)
        return self.answer(seconds)

    def begin(self, method: str, *arguments: Any) -> None:
        """Begins a call, whose result `answer` gives."""
        if self._pipe is None:
            self._start()
        assert self._pipe is not None
        # A process that has ended is noticed, with how it ended, by `answer`.
        with contextlib.suppress(ConnectionError):
            self._pipe.send((method, arguments))

    def wait(self, seconds: float) -> bool:
        """Whether the call that was begun ends within `seconds`."""
        assert self._pipe is not None, "no call was begun"
        return self._pipe.poll(seconds)

    def answer(self, seconds: float | None) -> Any:
        """What `call` gives, of the call that was begun."""
        assert self._pipe is not None, "no call was begun"
        try:
            if not self._made:
                if not self._pipe.poll(START_SECONDS):
                    self.end()
                    return TimedOut("start", START_SECONDS)
                failed, result = self._pipe.recv()
                if failed:
                    self.end()
                    raise result
                self._made = True
            if not self._pipe.poll(seconds):
                self.end()
                assert seconds is not None
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
        self._made = False

    def _start(self) -> None:
        if self._server is not None:
            self._pipe, self._process = self._server.start(_serve, self._make, self._arguments)
            return
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve_alone, args=(theirs, self._make, self._arguments), daemon=True)
        self._process.start()
        theirs.close()

    def _death(self) -> str:
        self._process.join(5.0)
        code = self._process.exitcode
        self.end()
        if code is not None and code < 0:
            return f"the process ended by signal {-code} ({signal.Signals(-code).name})"
        return f"the process ended with code {code}"


class BrokenProcess(RuntimeError):
    """An error of ours in another process; the text is its traceback there."""


def _serve_alone(pipe: Connection, make: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    # Without a handler of Python's the alarm ends the process also while it waits in a driver.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(BACKSTOP_SECONDS)
    _serve(pipe, make, arguments)


def _serve(pipe: Connection, make: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    failed, made = _attempt(make, *arguments)
    pipe.send((failed, made if failed else None))
    while not failed:
        try:
            method, given = pipe.recv()
        except EOFError:
            os._exit(0)
        pipe.send(_attempt(getattr(made, method), *given))


def _attempt(work: Callable[..., Any], *arguments: Any) -> tuple[bool, Any]:
    """Whether it failed, and the error or the result."""
    try:
        return False, work(*arguments)
    except TunesmithError as error:
        return True, error
    except MemoryError:
        # Whoever needs too much memory ends, as the system would end it.
        raise
    except Exception:  # noqa: BLE001 - a bug is raised where it is seen, not taken for a kernel's doing
        return True, BrokenProcess(traceback.format_exc())
