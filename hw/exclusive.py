"""One process at a time on a device: a lock that processes of any origin on this machine share.

Ray keeps the tunings of one cluster apart; this keeps apart those of different clusters (two users, two terminals),
so that no kernel is timed while another runs. The lock goes with its process, however that ends. The file says who
holds it, for those that wait.

There are two files: who wants the device waits for the second while it holds the first. So a process that lets go of
the device and wants it again at once comes after one that waited, and several tunings take turns.

They lie where all processes of the machine find them, whatever folder each has for temporary files.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shlex
import socket
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import asdict, dataclass
from pathlib import Path

from tunesmith.hw.errors import TunesmithError

REPORT_AFTER_SECONDS = 5.0
"""How long a process waits for a device before it says so."""
REPORT_EVERY_SECONDS = 30.0
LONGEST_COMMAND = 100
"""Characters of a command line that are shown."""
FOLDER_VARIABLE = "TUNESMITH_LOCK_DIR"
"""Of the environment: the folder of the locks, for machines on which no usual one is shared by all."""
SHARED_FOLDERS = (Path("/run/lock"), Path("/tmp"))
"""The first is not a job's own where the second is, as under Slurm's job_container/tmpfs; some systems have it for root
alone."""
OPEN_TO_ALL = stat.S_ISVTX | stat.S_IWOTH
"""Anyone may make a file there, and only its owner may remove it."""


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


def lock_folder() -> Path:
    """Where the locks of this machine's devices lie. What others can use decides, not what this user can, so that all
    users choose the same folder."""
    if named := os.environ.get(FOLDER_VARIABLE):
        if not os.path.isdir(named):
            raise TunesmithError(
                f"{FOLDER_VARIABLE} names {named}, which is not a folder: make it, writable for all users."
            )
        return Path(named)
    for folder in SHARED_FOLDERS:
        # The second is false where the folder is mounted to be read only.
        if folder.is_dir() and (folder.stat().st_mode & OPEN_TO_ALL) == OPEN_TO_ALL and os.access(folder, os.W_OK):
            return folder
    return Path(tempfile.gettempdir())


class DeviceLock:
    """The lock of the device with this UUID. Not reentrant. holder: who is named to others; this process if left
    out."""

    def __init__(self, uuid: str, holder: Holder | None = None) -> None:
        name = re.sub(r"[^A-Za-z0-9-]+", "-", uuid)
        self._path = lock_folder() / f"tunesmith-{name}.lock"
        self._turnstile = self._path.with_suffix(".queue")
        self._holder = holder or this_process()
        self._descriptor: int | None = None

    def acquire(self, report: Callable[[str], None] | None = None) -> None:
        """Waits while another process holds the device, then holds it; does nothing when it is held already.

        report: called, in this thread, with a clause that says who holds the device, after `REPORT_AFTER_SECONDS` and
        then every `REPORT_EVERY_SECONDS`.
        """
        if report is not None and not self.try_acquire():
            self._descriptor = self._awaited(report)
        elif self._descriptor is None:
            self._descriptor = self._taken(fcntl.LOCK_EX)

    def try_acquire(self) -> bool:
        """Holds the device if no other process holds it or waits for it; False, at once, if one does."""
        if self._descriptor is None:
            try:
                self._descriptor = self._taken(fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    def release(self) -> None:
        """Lets go; does nothing when the device is not held."""
        if self._descriptor is not None:
            _let_go(self._descriptor)
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

    def _awaited(self, report: Callable[[str], None]) -> int:
        """As `_taken`, with reports. A thread waits, which nothing interrupts: what it gets after this was left by an
        exception is let go of."""
        future: Future[int] = Future()

        def take() -> None:
            try:
                descriptor = self._taken(fcntl.LOCK_EX)
            except OSError as error:
                if future.set_running_or_notify_cancel():
                    future.set_exception(error)
                return
            if future.set_running_or_notify_cancel():
                future.set_result(descriptor)
            else:
                _let_go(descriptor)

        threading.Thread(target=take, daemon=True).start()
        pause = REPORT_AFTER_SECONDS
        try:
            while not wait([future], pause).done:
                report(self.waiting_for())
                pause = REPORT_EVERY_SECONDS
            return future.result()
        except BaseException:
            if not future.cancel() and future.exception() is None:
                _let_go(future.result())
            raise

    def _taken(self, how: int) -> int:
        """The descriptor by which this process holds the device."""
        turn = lock_file(self._turnstile, how)
        try:
            descriptor = lock_file(self._path, how)
        finally:
            os.close(turn)
        _sign(descriptor, self._holder)
        return descriptor


def _sign(descriptor: int, holder: Holder) -> None:
    text = json.dumps(asdict(holder) | {"since": time.time()}).encode()
    # What is written is for people to read: a file of another user's, or a full disk, does not keep from measuring.
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text, 0)


def _let_go(descriptor: int) -> None:
    # The next to hold it may be unable to write to this user's file; it must not be taken for this process.
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
    os.close(descriptor)


def lock_file(path: Path, how: int) -> int:
    """The descriptor of `path`, locked until it is closed. how: `fcntl.LOCK_EX`, alone or with `LOCK_NB`. Raises
    `BlockingIOError` when that would have to wait and must not."""
    descriptor = _opened(path)
    try:
        fcntl.flock(descriptor, how)
    except BaseException:  # also Ctrl-C while it waits
        os.close(descriptor)
        raise
    return descriptor


def _opened(path: Path) -> int:
    """A descriptor of `path`, which is made where it is missing."""
    # The processes that share a device may belong to different users: all may write. But a file of another user's in a
    # sticky folder may not be opened with O_CREAT (fs.protected_regular), and one that was made elsewhere may only be
    # readable, which is enough to lock it. Whose a link is that lies there is not known: it is not followed.
    while True:
        try:
            return os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        except PermissionError:
            return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            _make(path)


def _make(path: Path) -> None:
    """Makes an empty file that all may read and write, from its first moment on, unless there is one."""
    descriptor, made = tempfile.mkstemp(prefix=path.name, dir=path.parent)
    try:
        os.fchmod(descriptor, 0o666)
        try:
            os.link(made, path)
        except FileExistsError:
            pass
        except OSError:
            # A file system without links.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666))
    finally:
        os.close(descriptor)
        os.unlink(made)
