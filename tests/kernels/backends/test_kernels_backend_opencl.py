"""OpenCL, on whatever CPU driver is here (PoCL)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from contract import SOURCES, CompilerContract, DeviceContract, compiled

from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.backends import Compiler, Device, DeviceError, Launch, open_compiler, open_device
from tunesmith.kernels.backends.opencl import OpenclUnavailable
from tunesmith.kernels.backends.pocl import SWITCH, name_processor
from tunesmith.kernels.spec.geometry import Geometry
from tunesmith.kernels.spec.template import BackendName


@pytest.fixture(scope="module")
def backend() -> BackendName:
    return "opencl"


@pytest.fixture(scope="module")
def compiler(device: Any) -> Compiler:
    return open_compiler(device.limits, device.index)


@pytest.fixture(scope="module")
def opened(device: Any) -> Device:
    return open_device(device.limits, device.index)


class TestOpenclCompiler(CompilerContract):
    pass


class TestOpenclDevice(DeviceContract):
    def test_arguments_are_counted(self, compiler: Compiler, opened: Device) -> None:
        kernel = opened.load(compiled(compiler, "opencl", SOURCES["opencl"]["add"], "add"))
        buffer = opened.allocate(512)
        for arguments in ((buffer,), (buffer, np.int32(1), np.float32(1), np.int32(1))):
            with pytest.raises(DeviceError, match=f"the kernel takes 3 arguments, not {len(arguments)}"):
                opened.launch(Launch(kernel, Geometry((1, 1, 1), (1, 1, 1)), arguments))
        with pytest.raises(DeviceError):
            opened.launch(Launch(kernel, Geometry((1, 1, 1), (1, 1, 1)), (buffer, np.float64(1), np.float32(1))))


def test_a_device_that_is_not_there(device: Any) -> None:
    for index in (-1, 99):
        with pytest.raises(OpenclUnavailable, match=f"There is no OpenCL device {index}; there (are|is) "):
            open_device(device.limits, index)


def test_the_name_of_the_processor_can_be_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Named:
        version = "OpenCL 3.0 pthread-generic"

        @property
        def platform(self) -> object:
            raise AssertionError("it was looked at")

    device: Any = Named()
    monkeypatch.setenv(SWITCH, "as-is")
    assert not name_processor(device)
    monkeypatch.setenv(SWITCH, "haswell")
    with pytest.raises(TunesmithError, match=rf"^{SWITCH}=haswell: choose as-is"):
        name_processor(device)
