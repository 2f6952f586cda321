"""One process at a time on a device: a lock that processes of any origin on this machine share.

Ray keeps the tunings of one cluster apart; this keeps apart those of different clusters (two users, two terminals),
so that nobody times a kernel while another kernel runs. The lock goes with its process, however that ends.

There are two files: who wants the device waits for the second while it holds the first. So a process that lets go of
the device and wants it again at once comes after one that waited, and several tunings take turns.
"""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
from pathlib import Path


class DeviceLock:
    """The lock of the device with this UUID. Not reentrant, and for one thread."""

    def __init__(self, uuid: str) -> None:
        name = re.sub(r"[^A-Za-z0-9-]+", "-", uuid)
        self._path = Path(tempfile.gettempdir(), f"tunesmith-{name}.lock")
        self._turnstile = self._path.with_suffix(".queue")
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Waits while another process holds the device, then holds it; does nothing when it is held already."""
        self._take(fcntl.LOCK_EX)

    def try_acquire(self) -> bool:
        """Holds the device if nobody holds it or waits for it; False, at once, if somebody does."""
        try:
            self._take(fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        """Lets go; does nothing when the device is not held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> DeviceLock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _take(self, how: int) -> None:
        if self._descriptor is not None:
            return
        turn = _locked(self._turnstile, how)
        try:
            self._descriptor = _locked(self._path, how)
        finally:
            os.close(turn)


def _locked(path: Path, how: int) -> int:
    """The descriptor of `path`, locked. Raises `BlockingIOError` when that would have to wait and must not."""
    # The processes that share a device may belong to different users. Reading is enough to lock, and all may read;
    # but a file of another user's in a sticky folder may not be opened with O_CREAT (fs.protected_regular).
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, how)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
