"""A process that has imported what its children need, and makes them by forking.

A new Python process spends a second or more on importing NumPy, CuPy and this package; a fork of one that has done so
takes three milliseconds, and what remains is the device's. Forking is safe here: the server has one thread and never
touches a device.

multiprocessing has a fork server too, but its children import the main module of whoever asks for them, which in a Ray
worker is Ray itself. The children here import nothing more than what they are sent.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

_BEGIN = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); from tunesmith.actors.process.fork_server import serve; "
    "serve(int(sys.argv[1]), sys.argv[3:])"
)
_LONGEST = 64
"""Bytes of a message between server and client."""
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
"""Linux, prctl(2)."""


class ForkServer:
    """A client's end of a server of its own, which has imported `modules` (those of them that there are).

    When this object's process ends, however it ends, so do the server and all its children. Should the server be ended,
    as a system does that is short of memory, its children go too, and the next child has a new server.
    """

    def __init__(self, modules: Sequence[str]) -> None:
        self._modules = tuple(modules)
        self._begin()

    def _begin(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = json.dumps([os.path.abspath(entry) for entry in sys.path])
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BEGIN, str(theirs.fileno()), path, *self._modules], pass_fds=[theirs.fileno()]
        )
        theirs.close()

    def start(self, target: Callable[..., None], *arguments: Any) -> tuple[Connection, Forked]:
        """A child that calls `target(pipe, *arguments)`, and the other end of its pipe; all must be picklable."""
        try:
            pipe, pid = self._fork()
        except ConnectionError:
            self.end()
            self._begin()
            pipe, pid = self._fork()
        # A child that has ended by now is noticed by whoever waits for its answer.
        with contextlib.suppress(ConnectionError):
            pipe.send((target, arguments))
        return pipe, Forked(pid, self)

    def exit_code(self, pid: int) -> int:
        """Waits for the end of a child; negative for a signal."""
        try:
            self._control.send(str(pid).encode())
            return int(self._answer())
        except ConnectionError:
            return -signal.SIGKILL

    def _fork(self) -> tuple[Connection, int]:
        ours, theirs = Pipe()
        try:
            socket.send_fds(self._control, [b"start"], [theirs.fileno()])
        finally:
            theirs.close()
        return ours, int(self._answer())

    def end(self) -> None:
        """Ends the server and its children."""
        self._control.close()
        self._process.wait()

    def _answer(self) -> bytes:
        answer = self._control.recv(_LONGEST)
        if not answer:
            raise ConnectionError("the fork server has ended")
        return answer


class Forked:
    """A child, with what `multiprocessing.Process` offers to end one."""

    def __init__(self, pid: int, server: ForkServer) -> None:
        self.pid, self._server = pid, server
        self.exitcode: int | None = None

    def kill(self) -> None:
        if self.exitcode is None:
            # Gone only where its server is.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def join(self, timeout: float | None = None) -> None:
        """Waits for its end. `timeout` is ignored: this is only asked of a child that is at its end."""
        if self.exitcode is None:
            self.exitcode = self._server.exit_code(self.pid)


def serve(descriptor: int, modules: Sequence[str]) -> None:
    """The server: forks for each message with a descriptor, and waits for the end of a child that is named."""
    # Ctrl-C reaches all processes of a terminal; it is the client that ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _prctl(_PR_SET_NAME, b"tunesmith-fork")
    control = socket.socket(fileno=descriptor)
    for name in modules:
        # The child that needs what is missing says so.
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    # Garbage collection would write to pages that children share.
    gc.collect()
    gc.freeze()
    server = os.getpid()
    while True:
        try:
            message, descriptors, _, _ = socket.recv_fds(control, _LONGEST, 1)
        except ConnectionError:
            os._exit(0)
        if not message:
            os._exit(0)
        if descriptors:
            pid = os.fork()
            if pid == 0:
                control.close()
                _be_child(descriptors[0], server)
            os.close(descriptors[0])
            answer = pid
        else:
            try:
                answer = os.waitstatus_to_exitcode(os.waitpid(int(message), 0)[1])
            except ChildProcessError:
                # Of a server before this one, with which it was killed.
                answer = -signal.SIGKILL
        control.send(str(answer).encode())


def _be_child(descriptor: int, server: int) -> None:
    """Never returns."""
    code = 1
    try:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        _prctl(_PR_SET_NAME, b"tunesmith-work")
        if os.getppid() == server:
            pipe = Connection(descriptor)
            target, arguments = pipe.recv()
            target(pipe, *arguments)
        code = 0
    except BaseException:  # noqa: BLE001 - whatever it is, this copy of the server must not go on as one
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _prctl(option: int, value: Any) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
