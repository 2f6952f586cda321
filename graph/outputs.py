"""The rule for every option that names a file or a folder to write: nothing is overwritten in silence.

A command writes a new file, an empty one, or its own former output, which is recognised by its first bytes; any
other only with --force. A folder must be new or empty. What lies in the folder of a run belongs to that run.
"""

from __future__ import annotations

from pathlib import Path

from tunesmith.hw.errors import TunesmithError


class OutputError(TunesmithError):
    """A file or folder that was named for output must not, or cannot, be written."""


def require_writable_file(file: Path, option: str, *, begins: bytes, force: bool = False) -> None:
    """Raises `OutputError` where `file`, the value of `option`, must not be written. begins: the first bytes of what
    the command writes; empty where it replaces nothing of its own. force: other files may be replaced."""
    try:
        _require_outside_of_runs(file, option)
        # What is not a regular file, such as /dev/stdout or a pipe, holds nothing that could be lost.
        if force or not file.is_file() or not file.stat().st_size:
            return
        with file.open("rb") as there:
            ours = bool(begins) and there.read(len(begins)) == begins
    except OSError as error:
        raise _unwritable(file, option, error) from error
    if not ours:
        what = ", and this command did not write it" if begins else ""
        raise OutputError(f"{option}: {file} exists{what}; name another file, or replace it with --force.")


def require_new_folder(folder: Path, option: str) -> None:
    """Raises `OutputError` unless `folder`, the value of `option`, is missing or empty, and not inside a run's."""
    try:
        _require_outside_of_runs(folder, option)
        taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    except OSError as error:
        raise _unwritable(folder, option, error) from error
    if taken:
        what = "is not empty" if folder.is_dir() else "is a file"
        raise OutputError(f"{option}: {folder} {what}; name a new or an empty folder.")


def _require_outside_of_runs(path: Path, option: str) -> None:
    for parent in path.resolve().parents:
        if (parent / "journal.sqlite").is_file():
            raise OutputError(
                f"{option}: {path} would lie in {parent}, the folder of a run, where only that run writes; choose "
                "another place."
            )


def _unwritable(path: Path, option: str, error: OSError) -> OutputError:
    return OutputError(f"{option}: {path} cannot be written ({error.strerror}); choose another place.")
