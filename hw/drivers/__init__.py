"""The devices here by the drivers CUDA, NVML and OpenCL, each in the terms of its API turned into ours.

A driver is loaded only inside the functions that ask it; a missing one is a value with a sentence, not an error. These
functions take the driver's Python module as an argument, so that tests can hand in another.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tunesmith.hw.errors import Unavailable

D = TypeVar("D")


@dataclass(frozen=True, slots=True)
class Report(Generic[D]):
    """The devices that a driver lists, sentences about others, and its version, as far as it has one for all."""

    devices: tuple[D, ...]
    notes: tuple[str, ...] = ()
    version: str = ""


def load_module(name: str, package: str, consequence: str, extra: str) -> Any | Unavailable:
    """Imports a driver's module, of the optional dependencies `extra`."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return Unavailable(
            f"The package {package} is not installed, so {consequence}: pip install 'tunesmith[{extra}]'."
        )
