"""The devices here by the drivers CUDA, NVML and OpenCL, each in the terms of its API turned into ours.

A driver is loaded only inside the functions that ask it; a missing one is a value with a sentence, not an error. These
functions take the driver's Python module as an argument, so that tests can hand in another.
"""

from __future__ import annotations

import importlib
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

from tunesmith.hw.errors import Unavailable, how_to_install
from tunesmith.hw.limits import Backend, DeviceLimits

D = TypeVar("D")


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One device that this process can use.

    `index` is the backend's own numbering as this process sees it: for CUDA after CUDA_VISIBLE_DEVICES,
    for OpenCL over all platforms. `uuid` is what CUDA_VISIBLE_DEVICES and `open_telemetry` take.
    """

    backend: Backend
    index: int
    name: str
    limits: DeviceLimits
    uuid: str | None = None
    #: The driver's own version; for CUDA NVML's, such as ``580.95.05``.
    driver: str | None = None
    #: The newest CUDA version that the driver supports; None for OpenCL.
    cuda_version: str | None = None
    #: ``default``, ``exclusive_process`` or ``prohibited``; None where not known.
    compute_mode: str | None = None
    mig: bool = False
    #: The OpenCL platform's name and, as pyopencl counts them, the platform and the device in it.
    platform: str | None = None
    platform_index: int | None = None
    device_index: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary of JSON types."""
        return asdict(self)


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
        return Unavailable(f"The package {package} is not installed, so {consequence}: {how_to_install(extra)}.")
