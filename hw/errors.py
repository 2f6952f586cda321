"""The root of every mistake a user can make, mistakes about devices, and the end of the time for a run.

A message is one full sentence: what is wrong, where, and how to fix it. Failures of a measurement, and missing drivers,
are values (frozen dataclasses with a reason), never exceptions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


class TunesmithError(Exception):
    """A mistake the user can fix; the message is one sentence which says how."""


def named_path(what: str, text: str) -> Path:
    """The path that a user wrote, with `~` as the home folder also where no shell saw it. what: the option or variable.
    Raises `TunesmithError`."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise TunesmithError(f"{what}: the home at the start of {text} is not there; write the folder out.") from error


@contextmanager
def refusals(what: str, remedy: str) -> Iterator[None]:
    """Turns an error of the file system into a `TunesmithError`: what is not possible, why, and the remedy."""
    try:
        yield
    except OSError as error:
        raise TunesmithError(f"{what} ({error.strerror}); {remedy}.") from error


def how_to_install(extra: str) -> str:
    """A clause: how an optional part of this package is installed, from an index and in a clone."""
    return f"install the extra {extra}: `pip install 'tunesmith[{extra}]'`, in a clone `pip install -e '.[{extra}]'`"


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A driver or its package cannot be used; `reason` is a full sentence. no_device: the driver works, but shows no
    device."""

    reason: str
    no_device: bool = False


class NoDevice(TunesmithError):
    """A device was asked for that this process cannot see."""


class OutOfTime(TunesmithError):
    """The time limit was reached while nothing could be measured; the message names the cause of the wait."""
