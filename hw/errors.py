"""The root of every mistake a user can make, those that concern devices, and the end of the time for a run.

A message is one full sentence: what is wrong, where, and how to fix it. Failures of a measurement are
not here: those are values (frozen dataclasses with a reason), never exceptions.
"""

from __future__ import annotations

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


class UnknownTarget(TunesmithError):
    """A target was named that is neither a compute capability, nor a known product, nor a valid file."""


class OutOfTime(TunesmithError):
    """The time limit was reached while nothing could be measured; the message says what was waited for."""


class NoDevice(TunesmithError):
    """A device was asked for that this process cannot see."""
