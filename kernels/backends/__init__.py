"""Backends: how source becomes machine code and runs. `open_compiler` and `open_device` choose by name.

A new backend is a compiler and a device class that pass the contract test, and a branch here.
"""

from __future__ import annotations

from tunesmith.hw.limits import DeviceLimits
from tunesmith.kernels.backends.base import (
    BoundLaunch,
    Compiler,
    Device,
    DeviceError,
    HostCall,
    NotMarked,
    OutOfDeviceMemory,
    Side,
)

__all__ = [
    "BoundLaunch",
    "Compiler",
    "Device",
    "DeviceError",
    "HostCall",
    "NotMarked",
    "OutOfDeviceMemory",
    "Side",
    "open_compiler",
    "open_device",
]


def open_compiler(limits: DeviceLimits, index: int = 0) -> Compiler:
    """The compiler for a device; `index` is only used by OpenCL, whose drivers compile for their own devices."""
    if limits.backend == "cuda":
        from tunesmith.kernels.backends.nvrtc import NvrtcCompiler

        return NvrtcCompiler(limits.arch)
    from tunesmith.kernels.backends.opencl import OpenclCompiler

    return OpenclCompiler(index)


def open_device(limits: DeviceLimits, index: int = 0) -> Device:
    """Takes the device for this process."""
    if limits.backend == "cuda":
        from tunesmith.kernels.backends.cuda import CudaDevice

        return CudaDevice(limits, index)
    from tunesmith.kernels.backends.opencl import OpenclDevice

    return OpenclDevice(limits, index)
