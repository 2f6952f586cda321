"""The last line of defence: an exception that nobody expected becomes one sentence and a file with the details.

Owns that sentence and that file. Mistakes of the user's are `TunesmithError`s with sentences of their own.
"""

from __future__ import annotations

import errno
import platform
import sys
import tempfile
import traceback
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from tunesmith import __version__

EXIT_BUG = 70
"""EX_SOFTWARE of sysexits.h."""

_REFUSED = (errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.EPERM, errno.EROFS)


class InternalError(Exception):
    """Carries the folder of the run in which its cause was raised."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        self.folder = folder


def unusable(error: BaseException) -> str:
    """A sentence on a file or folder of the user's that the system refuses, as for a name that is too long; empty for
    any other error."""
    if not isinstance(error, OSError) or error.errno not in _REFUSED or error.filename is None:
        return ""
    return f"{error.filename!s:.200} cannot be used: {error.strerror}; name another."


def interrupted(error: BaseException) -> bool:
    """Whether an exception is what became of a Ctrl-C, as where it hits the import of an extension module."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, KeyboardInterrupt):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def describe_bug(error: BaseException, arguments: Sequence[str], *, debug: bool) -> str:
    """One sentence about an unexpected exception, which is written to a file; with `debug` the traceback is printed."""
    folder: Path | None = None
    if isinstance(error, InternalError):
        folder, error = error.folder, error.__cause__ or error
    details = "".join(traceback.format_exception(error))
    if debug:
        sys.stderr.write(details)
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    # An error of another process has that process's traceback as its text, whose last line says what it was.
    what = lines[-1].strip() if lines else "no message"
    name = type(error).__name__
    summary = what if what.startswith(("Traceback", name)) or len(lines) > 1 else f"{name}: {what}"
    where = _write(folder, details, arguments)
    place = f"Details are in {where}; please report it with that file." if where else "--debug shows the details."
    return f"This is a bug in Tunesmith: {summary[:300].rstrip('.')}. {place}"


def _write(folder: Path | None, details: str, arguments: Sequence[str]) -> Path | None:
    """The file with the details; None where none can be written."""
    head = (
        f"Tunesmith {__version__}, Python {platform.python_version()} on {platform.platform()}, "
        f"{datetime.now().astimezone().isoformat(timespec='seconds')}\ncommand: {' '.join(arguments)}\n\n"
    )
    try:
        if folder is not None and folder.is_dir():
            path = folder / "crash.log"
        else:
            with tempfile.NamedTemporaryFile(prefix="tunesmith-crash-", suffix=".log", delete=False) as file:
                path = Path(file.name)
        with path.open("a", encoding="utf-8") as log:
            log.write(head + details + "\n")
    except OSError:
        return None
    return path
