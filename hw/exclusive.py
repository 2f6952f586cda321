"""One process at a time on a device: a lock that processes of any origin on this machine share.

Ray keeps the tunings of one cluster apart; this keeps apart those of different clusters (two users, two terminals),
so that nobody times a kernel while another kernel runs. The lock goes with its process, however that ends.
"""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def exclusive(device: str) -> Iterator[None]:
    """Holds the device named by its UUID; waits while another process holds it."""
    name = re.sub(r"[^A-Za-z0-9-]+", "-", device)
    path = Path(tempfile.gettempdir(), f"tunesmith-{name}.lock")
    # The processes that share a device may belong to different users. Reading is enough to lock, and all may read.
    descriptor = os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
