"""The rule for options that name a file or folder to write: nothing is overwritten in silence.

A command writes a new or an empty file, or replaces its own former output, known by its first bytes; any other file
only with --force. A folder must be new or empty. In the folder of a run, only that run writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tunesmith.hw.errors import TunesmithError


def require_writable_file(file: Path, option: str, *, begins: bytes, force: bool = False) -> None:
    """Raises `TunesmithError` where `file`, the value of `option`, must not be written. begins: the first bytes of what
    the command writes; empty where it replaces nothing of its own. force: other files may be replaced."""
    with _outside_of_runs(file, option):
        # Anything but a regular file, such as /dev/stdout or a pipe, has no contents to lose.
        if force or not file.is_file() or not file.stat().st_size:
            return
        with file.open("rb") as there:
            ours = bool(begins) and there.read(len(begins)) == begins
    if not ours:
        what = ", and this command did not write it" if begins else ""
        raise TunesmithError(f"{option}: {file} exists{what}; name another file, or replace it with --force.")


def require_new_folder(folder: Path, option: str) -> None:
    """Raises `TunesmithError` unless `folder`, the value of `option`, is missing or empty, and not inside a run's."""
    with _outside_of_runs(folder, option):
        taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    if taken:
        what = "is not empty" if folder.is_dir() else "is a file"
        raise TunesmithError(f"{option}: {folder} {what}; name a new or an empty folder.")


@contextmanager
def _outside_of_runs(path: Path, option: str) -> Iterator[None]:
    """Looks at a path that is not in the folder of a run; also an error of the file system is a `TunesmithError`."""
    try:
        if run := next((one for one in path.resolve().parents if (one / "journal.sqlite").is_file()), None):
            where = f"would lie in {run}, the folder of a run, where only that run writes"
            raise TunesmithError(f"{option}: {path} {where}; choose another place.")
        yield
    except OSError as error:
        raise TunesmithError(f"{option}: {path} cannot be written ({error.strerror}); choose another place.") from error
