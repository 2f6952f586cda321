"""One process at a time on a device: a lock that processes of any origin on this machine share.

Ray keeps the tunings of one cluster apart; this keeps apart those of different clusters (two users, two terminals),
so that no kernel is timed while another runs. The lock goes with its process, however that ends. The file says who
holds it, for those that wait.

There are two files: who wants the device waits for the second while it holds the first. So a process that lets go of
the device and wants it again at once comes after one that waited, and several tunings take turns.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shlex
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

REPORT_AFTER_SECONDS = 5.0
"""How long a process waits for a device before it says so."""
REPORT_EVERY_SECONDS = 30.0
LONGEST_COMMAND = 100
"""Characters of a command line that are shown."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds devices, as it is shown to those that wait: its id, machine and command line."""

    pid: int
    host: str
    command: str

    def __str__(self) -> str:
        where = "" if self.host == socket.gethostname() else f" on {self.host}"
        return f"pid {self.pid}{where}, {self.command}"


def this_process() -> Holder:
    """The process this is called in."""
    command = shlex.join([Path(sys.argv[0]).name or "python", *sys.argv[1:]])
    if len(command) > LONGEST_COMMAND:
        command = command[:LONGEST_COMMAND] + "..."
    return Holder(os.getpid(), socket.gethostname(), command)


class DeviceLock:
    """The lock of the device with this UUID. Not reentrant. holder: who is named to others; this process if left
    out."""

    def __init__(self, uuid: str, holder: Holder | None = None) -> None:
        name = re.sub(r"[^A-Za-z0-9-]+", "-", uuid)
        self._path = Path(tempfile.gettempdir(), f"tunesmith-{name}.lock")
        self._turnstile = self._path.with_suffix(".queue")
        self._holder = holder or this_process()
        self._descriptor: int | None = None

    def acquire(self, report: Callable[[str], None] | None = None) -> None:
        """Waits while another process holds the device, then holds it; does nothing when it is held already.

        report: called, in this thread, with a clause that says who holds the device, after `REPORT_AFTER_SECONDS` and
        then every `REPORT_EVERY_SECONDS`.
        """
        if report is None:
            self._take(fcntl.LOCK_EX)
            return
        if self.try_acquire():
            return
        failure: list[OSError] = []

        def take() -> None:
            try:
                self._take(fcntl.LOCK_EX)
            except OSError as error:
                failure.append(error)

        waiting = threading.Thread(target=take, daemon=True)
        waiting.start()
        waiting.join(REPORT_AFTER_SECONDS)
        while waiting.is_alive():
            report(self.waiting_for())
            waiting.join(REPORT_EVERY_SECONDS)
        if failure:
            raise failure[0]

    def try_acquire(self) -> bool:
        """Holds the device if no other process holds it or waits for it; False, at once, if one does."""
        try:
            self._take(fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        """Lets go; does nothing when the device is not held."""
        if self._descriptor is not None:
            # The next to hold it may be unable to write to this user's file; it must not be taken for this process.
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None

    def waiting_for(self) -> str:
        """Who holds the device and for how long, as a clause for the user: "waiting for the device: pid 28171,
        tunesmith tune gemm, for 40 s"."""
        try:
            said = json.loads(self._path.read_text(encoding="utf-8"))
            seconds = max(0.0, time.time() - float(said.pop("since")))
            holder = Holder(int(said["pid"]), str(said["host"]), str(said["command"])[: LONGEST_COMMAND + 3])
            known = holder.host != socket.gethostname() or Path(f"/proc/{holder.pid}").exists()
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            known = False
        if not known:
            # Taken this moment, or by a user who may not write to the file, which names one that was killed.
            return "waiting for the device: another process holds it"
        return f"waiting for the device: {holder}, for {seconds:.0f} s"

    def __enter__(self) -> DeviceLock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _take(self, how: int) -> None:
        if self._descriptor is not None:
            return
        turn = lock_file(self._turnstile, how)
        try:
            descriptor = lock_file(self._path, how)
        finally:
            os.close(turn)
        _sign(descriptor, self._holder)
        self._descriptor = descriptor


def _sign(descriptor: int, holder: Holder) -> None:
    text = json.dumps(asdict(holder) | {"since": time.time()}).encode()
    # What is written is for people to read: a file of another user's, or a full disk, does not keep from measuring.
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text, 0)


def lock_file(path: Path, how: int) -> int:
    """The descriptor of `path`, locked until it is closed. how: `fcntl.LOCK_EX`, alone or with `LOCK_NB`. Raises
    `BlockingIOError` when that would have to wait and must not."""
    # The processes that share a device, or a folder, may belong to different users. Reading is enough to lock, and all
    # may read; but a file of another user's in a sticky folder may not be opened with O_CREAT (fs.protected_regular).
    try:
        descriptor = os.open(path, os.O_RDWR)
    except PermissionError:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, how)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
