"""One process at a time on a device: a lock that processes of any origin on this machine share.

Ray keeps the tunings of one cluster apart; this keeps tunings of different clusters apart (two users, two terminals),
so that no kernel is timed while another runs. The lock ends with its process, however that ends. The file names its
holder. Waiting processes ask for it a hundred times a second, in no order; as a tuning releases a device after each
visit, they get it within seconds.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from io import FileIO
from pathlib import Path

from tunesmith.hw.errors import TunesmithError

REPORT_AFTER_SECONDS = 5.0
"""How long a process waits for a device before it says so."""
REPORT_EVERY_SECONDS = 30.0
POLL_SECONDS = 0.01
MAX_COMMAND_LENGTH = 100
"""Characters of a command line that are shown."""
FOLDER_VARIABLE = "TUNESMITH_LOCK_DIR"
"""Environment variable with the folder of the locks, for machines on which no usual one is shared by all."""
SHARED_FOLDERS = (Path("/run/lock"), Path("/tmp"))
"""Under Slurm's job_container/tmpfs only the second is a job's own; on some systems only root may write the first."""
OPEN_TO_ALL = stat.S_ISVTX | stat.S_IWOTH
"""Anyone may make a file there, and only its owner may remove it."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds devices, as it is shown to waiting processes: its id, machine and command line."""

    pid: int
    host: str
    command: str

    def __str__(self) -> str:
        where = "" if self.host == socket.gethostname() else f" on {self.host}"
        return f"pid {self.pid}{where}, {self.command}"


def this_process() -> Holder:
    """The process this is called in."""
    command = shlex.join([Path(sys.argv[0]).name or "python", *sys.argv[1:]])
    if len(command) > MAX_COMMAND_LENGTH:
        command = command[:MAX_COMMAND_LENGTH] + "..."
    return Holder(os.getpid(), socket.gethostname(), command)


def lock_folder() -> Path:
    """The folder of this machine's device locks, made where it is missing. The permissions for others decide, not this
    user's, so that all users choose the same one. Raises `TunesmithError` where it cannot be used."""
    if (named := os.environ.get(FOLDER_VARIABLE)) and not os.path.isdir(named):
        raise TunesmithError(f"{FOLDER_VARIABLE} names {named}, which is not a folder: make it, for all to write.")
    # W_OK is false where the folder is mounted to be read only.
    shared = (one for one in SHARED_FOLDERS if one.is_dir() and one.stat().st_mode & OPEN_TO_ALL == OPEN_TO_ALL)
    usable = (one for one in shared if os.access(one, os.W_OK))
    # A folder of our own, as in a sticky one Linux refuses to open a file that another user made.
    folder = Path(named or next(usable, tempfile.gettempdir())) / "tunesmith-locks"
    with suppress(FileExistsError):
        folder.mkdir()
        folder.chmod(0o777)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise TunesmithError(f"The folder of device locks {folder} is not writable: let its owner chmod it to 777.")
    return folder


class DeviceLock:
    """The lock of the device with this UUID. Not reentrant. holder: named to others; this process if left out."""

    def __init__(self, uuid: str, holder: Holder | None = None) -> None:
        self._path = lock_folder() / f"{re.sub(r'[^A-Za-z0-9-]+', '-', uuid)}.lock"
        self._note = asdict(holder or this_process())
        # Open for as long as the lock is used: a lane takes it for each visit, of some 5 ms, and the package filelock,
        # which opens the file each time, took 0.5 to 0.8 ms for it on a machine with an H200.
        self._file = self._open()
        self._held = False

    def acquire(self, report: Callable[[str], None] | None = None) -> None:
        """Waits while another process holds the device, then holds it; does nothing when it is held already.

        report: called with a clause that says who holds the device, after `REPORT_AFTER_SECONDS` and then every
        `REPORT_EVERY_SECONDS`.
        """
        pause = REPORT_AFTER_SECONDS
        while not self._take(pause):
            if report is not None:
                report(self.waiting_for())
            pause = REPORT_EVERY_SECONDS

    def try_acquire(self) -> bool:
        """Holds the device if no other process does; False, at once, if one does."""
        return self._take(0)

    def release(self) -> None:
        """Lets go; does nothing when the device is not held."""
        if self._held:
            self._held = False
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def waiting_for(self) -> str:
        """Who holds the device and for how long, as a clause for the user: "waiting for the device: pid 28171,
        tunesmith tune gemm, has held it for 40 s"."""
        try:
            said = json.loads(self._path.read_text(encoding="utf-8"))
            seconds = max(0.0, time.time() - said.pop("since"))
            holder = Holder(**said)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return "waiting for the device: another process holds it"
        return f"waiting for the device: {holder}, has held it for {seconds:.0f} s"

    def __enter__(self) -> DeviceLock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _open(self) -> FileIO:
        file = FileIO(self._path, "r+", opener=lambda path, flags: os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW))
        with suppress(PermissionError):
            os.fchmod(file.fileno(), 0o666)  # other users' processes lock it, too; its owner has said so
        return file

    def _take(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not self._try():
            if time.monotonic() >= until:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def _try(self) -> bool:
        if self._held:
            return True
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if os.fstat(self._file.fileno()).st_nlink == 0:
            # Someone has removed the file, as programs do that clean /tmp: others lock a new one.
            self._file.close()
            self._file = self._open()
            return self._try()
        self._held = True
        text = json.dumps(self._note | {"since": int(time.time())}).encode()
        # For people to read: a full disk does not keep from measuring.
        with suppress(OSError):
            os.pwrite(self._file.fileno(), text, 0)
            self._file.truncate(len(text))  # to 0 at first would make ext4 write the file to the disk: 3 ms
        return True
