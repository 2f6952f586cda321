"""An object in a process of its own, without Ray.

A call may have a deadline. A call that overruns it, or whose process dies, comes back as a value; the next call starts
a new process. A user's mistake that the process finds is raised here, and so is a bug.

Processes are forked by multiprocessing's fork server, which has imported the modules of `preload`. Measured with PoCL's
modules on two busy cores: 0.8 s to the first child, 8 to 13 ms and 2.9 MB to each further one; a new interpreter takes
1.1 s and 31 MB each time. Forking is safe there: the server never touches a device, and its only other threads belong
to NumPy's OpenBLAS, which stops them before a fork and starts them when they are needed.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.outcome import Crashed, TimedOut
from tunesmith.kernels.spec.template import BACKENDS, BackendName

START_SECONDS = 120.0
"""Time limit for starting a process and making the object in it."""
MAX_START_ATTEMPTS = 5
START_PAUSE_SECONDS = 0.05
"""Pause before the second attempt, in which the death of a fork server is noticed; it doubles with each attempt."""
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
FAULT_SIGNALS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)

_FORK_SERVER = multiprocessing.get_context("forkserver")
# NumPy imports numpy.random only on use, which takes 12 ms in each child that draws contents.
_PRELOADED = ["numpy.random", "tunesmith.actors.workers"]
_FORK_SERVER.set_forkserver_preload(_PRELOADED)
_STARTING = threading.Lock()


def preload(backend: BackendName) -> None:
    """Has the fork server of this process import the modules of workers for `backend`, as far as installed, before its
    first fork. Without effect once it runs; children import missing modules by themselves."""
    _FORK_SERVER.set_forkserver_preload([*_PRELOADED, *BACKENDS[backend].packages])


class Isolated(contextlib.AbstractContextManager["Isolated"]):
    """The object `make(*arguments)`; everything that crosses must be picklable. phase: "compile" or "run".

    The process ends with the process that started it, however that ends, and so do the processes that it starts, such
    as a compiler's assembler. Use as a context manager; it ends the process.
    """

    def __init__(self, phase: str, make: Callable[..., Any], *arguments: Any) -> None:
        self._phase, self._make, self._arguments = phase, make, arguments
        self._process: Any = None
        self._pipe: Connection | None = None
        self._killed = False
        self.starts = 0
        """Processes started for the object so far: it is made anew in each."""

    def __exit__(self, *_: object) -> None:
        self.end()

    def call(self, method: str, seconds: float | None, *arguments: Any) -> Any:
        """The result of a method of the object, `TimedOut` or `Crashed`. seconds: None for as long as it takes."""
        if self._killed:
            self.end()
        starting = self._pipe is None
        pipe = self._pipe or self._start()
        try:
            # Before a call is sent: a pipe that nobody reads takes some of a large argument, and then waits.
            if starting and (late := self._answer(pipe, "start", START_SECONDS)) is not None:
                return late
            pipe.send((method, arguments))
            return self._answer(pipe, self._phase, seconds)
        except (EOFError, ConnectionError):
            return Crashed(self._phase, self._death())

    def kill(self) -> None:
        """Kills the process, if there is one. The answer that another thread waits for is `Crashed`; a later call
        starts a new process."""
        if (process := self._process) is not None:
            self._killed = True
            with contextlib.suppress(ProcessLookupError):  # before the process leads its group
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()

    def end(self) -> None:
        """Kills the process, if there is one."""
        if self._pipe is not None:
            self.kill()
            self._process.join()
            self._pipe.close()
            self._process = self._pipe = None
        self._killed = False

    def _start(self) -> Connection:
        self.starts += 1
        for attempt in range(MAX_START_ATTEMPTS):
            pipe, theirs = _FORK_SERVER.Pipe()
            process: Any = _FORK_SERVER.Process(target=_serve, args=(theirs,), daemon=True)
            try:
                with theirs, _STARTING, _without_main():
                    process.start()
                break
            except (EOFError, ConnectionError):
                # The server is being ended, as by a system that is short of memory. Once its death is noticed, there is
                # a new one.
                if attempt == MAX_START_ATTEMPTS - 1:
                    raise
                time.sleep(START_PAUSE_SECONDS * 2**attempt)
        self._pipe, self._process = pipe, process
        with contextlib.suppress(ConnectionError):
            pipe.send((self._make, self._arguments))
        return pipe

    def _answer(self, pipe: Connection, phase: str, seconds: float | None) -> Any:
        """The next answer of the process, or `TimedOut`. An error of the process is raised here; where it is a bug of
        ours, as a `RuntimeError` with its traceback there."""
        if not pipe.poll(seconds):
            self.end()
            assert seconds is not None
            return TimedOut(phase, seconds)
        failed, result = pipe.recv()
        if failed and phase == "start":
            self.end()
        if failed:
            raise result
        return result

    def _death(self) -> str:
        self._process.join(5.0)
        code = self._process.exitcode
        self.end()
        if code is not None and code < 0:
            return f"the process ended by signal {-code} ({signal.Signals(-code).name})"
        return f"the process ended with code {code}"


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """While a process is started: multiprocessing would have it import this process's main module again, which is the
    command line, or in a Ray worker Ray's."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _serve(pipe: Connection) -> None:
    os.setpgid(0, 0)
    # Ctrl-C reaches all processes of a terminal; it is the parent that ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (*ENDING_SIGNALS, *FAULT_SIGNALS):
        # Handlers, a library's too, are inherited from the fork server; an ignored ending, as by nohup, stays ignored.
        if number in FAULT_SIGNALS or callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    # Standard output is for results; the output of a reference goes to standard error, for its author.
    sys.stdout.flush()
    os.dup2(2, 1)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Its output is seen although this process may be killed.
        sys.stdout.reconfigure(line_buffering=True)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        make, arguments = pipe.recv()
        failed, made = _attempt(make, *arguments)
        pipe.send((failed, made if failed else None))
        while not failed:
            method, given = pipe.recv()
            pipe.send(_attempt(getattr(made, method), *given))
    except (EOFError, ConnectionError):
        # The parent has ended, and the thread may not be told before this process is gone.
        _end_group()


def _end_with_parent() -> None:
    """Also in the middle of a kernel that never ends: drivers let other threads run while they wait."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    multiprocessing.connection.wait([parent.sentinel])
    _end_group()


def _end_group() -> None:
    """Ends this process and all that it started."""
    os.killpg(0, signal.SIGKILL)


def _attempt(work: Callable[..., Any], *arguments: Any) -> tuple[bool, Any]:
    """Whether `work` failed, and the error or the result."""
    try:
        return False, work(*arguments)
    except TunesmithError as error:
        return True, error
    except MemoryError:
        # A process that needs too much memory ends, as the system would end it.
        raise
    except Exception:  # noqa: BLE001 - a bug is raised where it is seen, not taken for a kernel's doing
        return True, RuntimeError(traceback.format_exc())


def pack(*values: Any) -> bytes:
    return pickle.dumps(values, protocol=pickle.HIGHEST_PROTOCOL)


def unpack(data: bytes) -> tuple[Any, ...]:
    """The values packed by a process of this cluster, which Ray has authenticated."""
    values: tuple[Any, ...] = pickle.loads(data)
    return values
