"""OpenCL, on whatever CPU driver is here (PoCL)."""

import json
import mmap
import signal
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from contract import SOURCES, CompilerContract, DeviceContract, compiled

from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.backends import BoundLaunch, Compiler, Device, DeviceError, open_compiler, open_device
from tunesmith.kernels.backends.opencl import SWITCH, device_uuid, name_processor, pages_of
from tunesmith.kernels.spec.task import Geometry
from tunesmith.kernels.spec.template import BackendName


@pytest.fixture(scope="module")
def backend() -> BackendName:
    return "opencl"


@pytest.fixture(scope="module")
def compiler(device: Any) -> Compiler:
    return open_compiler(device.limits, device.index)


class TestOpenclCompiler(CompilerContract):
    pass


class TestOpenclDevice(DeviceContract):
    def test_arguments_are_counted(self, compiler: Compiler, opened: Device) -> None:
        kernel = opened.load(compiled(compiler, "opencl", SOURCES["opencl"]["add"], "add"))
        buffer = opened.allocate(512)
        for arguments in ((buffer,), (buffer, np.int32(1), np.float32(1), np.int32(1))):
            with pytest.raises(DeviceError, match=f"the kernel takes 3 arguments, not {len(arguments)}"):
                opened.launch(BoundLaunch(kernel, Geometry((1, 1, 1), (1, 1, 1)), arguments))
        with pytest.raises(DeviceError):
            opened.launch(BoundLaunch(kernel, Geometry((1, 1, 1), (1, 1, 1)), (buffer, np.float64(1), np.float32(1))))
        # Rather than that the kernels are left out.
        launch = BoundLaunch(kernel, Geometry((1, 1, 1), (1, 1, 1)), (buffer, np.int32(1), np.float32(1)))
        with pytest.raises(AssertionError, match="by the host's clock"):
            opened.times([[launch, lambda: None]])
        assert len(opened.times([[launch, launch], [lambda: None] * 2])) == 2


FAKE_CL = SimpleNamespace(Error=RuntimeError, device_type=SimpleNamespace(CPU=2, GPU=4))
"""The part of pyopencl that tells devices apart."""


def fake_devices(*addresses: tuple[int, int] | None, cpu: bool = False) -> list[Any]:
    """Devices of one platform, GPUs with these PCI buses and slots, where their driver tells."""
    devices: list[Any] = [SimpleNamespace(name=" a device ", type=2 if cpu else 4) for _ in addresses]
    for device, address in zip(devices, addresses, strict=True):
        device.platform = SimpleNamespace(get_devices=lambda: devices)
        if address is not None:
            device.pci_bus_id_nv, device.pci_slot_id_nv = address
    return devices


def test_a_gpu_has_the_uuid_of_cuda_and_others_a_name(monkeypatch: Any, device: Any, opened: Device) -> None:
    """So that it has one lock."""
    known = {(0, 0x3B, 0): "GPU-1", (0, 0x3B, 5): "GPU-2"}
    monkeypatch.setattr("tunesmith.kernels.backends.opencl.uuid_at", known.get)
    found = [device_uuid(FAKE_CL, one) for one in fake_devices((0x3B, 0), (0x3B, 5 << 3), (0x5E, 0))]
    assert found == ["GPU-1", "GPU-2", "opencl-a device-0000:5e:00"]
    assert [device_uuid(FAKE_CL, one) for one in fake_devices(None, None)] == ["opencl-a device-0", "opencl-a device-1"]
    assert [device_uuid(FAKE_CL, one) for one in fake_devices(None, cpu=True)] == ["opencl-a device"]
    if device.limits.kind == "cpu":
        assert opened.uuid == f"opencl-{device.name}"
    for index in (-1, 99):
        with pytest.raises(TunesmithError, match=f"There is no OpenCL device {index}; there (are|is) "):
            open_device(device.limits, index)
    monkeypatch.setenv(SWITCH, "as-is")
    assert not name_processor(SimpleNamespace())


# Memory that ends where an array does: what reaches beyond it faults, and nothing else is different.
TOUCHED = [  # edge, offset, whether it is written, whether it faults
    ("end", 256, False, True),
    # As whole rows and tiles are missed by.
    ("end", 1 << 20, False, True),
    ("start", -1, False, True),
    ("read-only", 0, True, True),
    ("read-only", 255, False, False),
    ("end", 255, True, False),
]
SCRIPT = """
import ctypes, json, os, sys
import numpy as np
from tunesmith.kernels.backends.opencl import pages_of
ends = []
for edge, offset, written, _ in json.loads(sys.argv[1]):
    inside = pages_of(np.arange(256, dtype=np.uint8), edge, 128)
    child = os.fork()
    if child == 0:
        place = inside.ctypes.data + offset
        ctypes.memset(place, 1, 1) if written else ctypes.string_at(place, 1)
        os._exit(0)
    ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(json.dumps(ends))
"""
"""Each place is touched by a child of one process, which took its time to import."""


@pytest.mark.parametrize("edge", ["start", "end"])
@pytest.mark.parametrize("size", [1, 128, 200, 4096, 5000])
def test_a_copy_lies_at_the_edge_of_its_pages(edge: Any, size: int) -> None:
    data = np.random.default_rng(size).integers(256, size=size, dtype=np.uint8)
    inside = pages_of(data, edge, 128)
    assert np.array_equal(inside, data) and inside.ctypes.data % 128 == 0
    if edge == "start":
        assert inside.ctypes.data % mmap.PAGESIZE == 0
    else:
        assert -(inside.ctypes.data + size) % mmap.PAGESIZE < 128
    inside[:] = 7


def test_what_lies_beyond_cannot_be_touched() -> None:
    told = subprocess.run([sys.executable, "-c", SCRIPT, json.dumps(TOUCHED)], check=True, capture_output=True)
    for touched, ended in zip(TOUCHED, json.loads(told.stdout), strict=True):
        assert ended == (-signal.SIGSEGV if touched[-1] else 0), touched
