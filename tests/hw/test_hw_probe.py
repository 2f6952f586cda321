"""Finding devices, and what NVML tells of a GPU: this machine as it is, and machines that only stand-ins can show."""

import dataclasses
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hw_fakes import MIG_UUID, UUIDS, FakeDriver, FakeGpu, FakeNvml, FakeResult

import tunesmith.hw
from tunesmith.hw.drivers.nvml import uuid_at, with_prefix
from tunesmith.hw.errors import NoDevice, Unavailable
from tunesmith.hw.probe import Inventory, probe, probe_cuda, probe_opencl, query_gpu_health
from tunesmith.hw.targets import PRODUCTS
from tunesmith.hw.telemetry import NoTelemetry, NvmlTelemetry, Telemetry, decode_throttle_reasons, open_telemetry

PCI = ("0000:3B:00.0", "0000:5E:00.0", "0000:86:00.0")
LONG_PCI = tuple("0000" + pci for pci in PCI)


def machine(count=1, visible=None, mig=None, **overrides):
    """NVML with `count` GPUs, and CUDA which sees those at the indices `visible`, in that order."""
    gpus = [FakeGpu(f"GPU-{UUIDS[n]}", LONG_PCI[n], mig=mig, name=f"NVIDIA H20{n}") for n in range(count)]
    shown = range(count) if visible is None else visible
    return FakeDriver([(UUIDS[n], PCI[n], overrides) for n in shown]), FakeNvml(gpus)


def see(driver, nvml, **environ):
    inventory = probe_cuda(driver_module=driver, nvml_module=nvml, environ=environ)
    assert getattr(nvml, "started", 0) == 0, "the session with NVML must be ended"
    assert json.loads(json.dumps(inventory.to_json()))["notes"] == list(inventory.notes)
    assert all(note.endswith(".") for note in inventory.notes)
    return inventory


def test_this_machine_raises_nothing_and_every_note_is_a_sentence():
    inventory = probe()
    json.dumps(inventory.to_json())
    assert all(note[0].isupper() and note.rstrip().endswith(".") for note in inventory.notes)
    if not inventory.of("cuda"):
        assert any("driver" in note or "cuda-bindings" in note for note in inventory.notes)
    for cpu in (device for device in inventory.of("opencl") if device.limits.kind == "cpu"):
        assert cpu.limits.max_threads_per_block >= 1 and cpu.limits.registers_per_sm is None
        assert cpu.limits.shared_per_block is not None and cpu.limits.shared_per_block > 0


def test_a_cuda_device_in_full():
    device = see(*machine()).device("cuda")
    assert (device.uuid, device.driver, device.cuda_version) == (f"GPU-{UUIDS[0]}", "580.95.05", "13.0")
    assert (device.compute_mode, device.mig) == ("default", False)
    table = PRODUCTS["h200"]
    differing = {key for key, value in asdict(device.limits).items() if getattr(table, key) != value}
    assert differing == {"source", "clock_hz", "memory_clock_hz", "memory_bandwidth"}
    assert device.limits.memory_bandwidth == pytest.approx(4.814e12, rel=1e-3)
    # An integrated GPU of an unknown capability.
    limits = see(*machine(1, INTEGRATED=1, COMPUTE_CAPABILITY_MAJOR=13)).devices[0].limits
    assert limits.memory_bandwidth is None and limits.arch == "sm_130" and "assumed" in limits.source
    inventory = see(*machine(3, visible=[2, 0]), CUDA_VISIBLE_DEVICES="2,0")
    assert [device.uuid for device in inventory.devices] == [f"GPU-{UUIDS[2]}", f"GPU-{UUIDS[0]}"]
    assert any("hides NVIDIA H201" in note and UUIDS[1] in note for note in inventory.notes)
    assert any("2 CUDA devices are visible" in note for note in inventory.notes)


def test_gpus_that_cuda_does_not_see_and_slices():
    driver, nvml = machine(1)
    driver.init_result = FakeResult.CUDA_ERROR_NO_DEVICE
    hidden = "CUDA_VISIBLE_DEVICES='' hides NVIDIA H200 (GPU-0000"
    for environ, said in (({"CUDA_VISIBLE_DEVICES": ""}, hidden), ({}, "NVML sees NVIDIA H200")):
        inventory = see(driver, nvml, **environ)
        assert inventory.devices == () and any(said in note for note in inventory.notes)
    driver = FakeDriver([(MIG_UUID, PCI[0], {"MULTIPROCESSOR_COUNT": 16})])
    nvml = FakeNvml([FakeGpu(f"GPU-{UUIDS[0]}", LONG_PCI[0], mig=True)])
    inventory = see(driver, nvml)
    device = inventory.devices[0]
    assert (device.uuid, device.mig, device.limits.sm_count) == (f"MIG-{MIG_UUID}", True, 16)
    assert device.limits.memory_bandwidth is None
    assert any("MIG slice" in note for note in inventory.notes)


def test_answers_that_nvml_refuses_and_one_broken_device_do_not_hide_the_others():
    driver, nvml = machine(2)
    nvml.gpus[0].failing |= {"compute_mode": 4, "mig": nvml.NVML_ERROR_NO_PERMISSION}
    inventory = see(driver, nvml)
    assert (inventory.devices[0].compute_mode, inventory.devices[0].mig) == (None, False)
    assert any("does not tell whether MIG is enabled" in note for note in inventory.notes)
    driver.broken = frozenset({0})
    nvml.gpus[0].failing["handle"] = nvml.NVML_ERROR_GPU_IS_LOST
    inventory = see(driver, nvml)
    assert [device.index for device in inventory.devices] == [1]
    assert sum("cannot" in note for note in inventory.notes) == 2


DRIVER = {
    FakeResult.CUDA_ERROR_STUB_LIBRARY: "stub",
    FakeResult.CUDA_ERROR_SYSTEM_DRIVER_MISMATCH: "restart",
    FakeResult.CUDA_ERROR_UNKNOWN: "CUDA_ERROR_UNKNOWN",
}
NVML = {12: "No NVIDIA driver", 9: "modprobe", 18: "restart", 999: "999"}


@pytest.mark.parametrize(("result", "said"), DRIVER.items())
def test_a_driver_that_does_not_start(result, said):
    driver, nvml = machine()
    driver.init_result = result
    assert said in see(driver, nvml).notes[0]


@pytest.mark.parametrize(("code", "said"), NVML.items())
def test_nvml_that_does_not_start_leaves_cuda_usable(code, said):
    driver, nvml = machine()
    nvml.init_error = code
    inventory = see(driver, nvml)
    assert len(inventory.devices) == 1 and inventory.devices[0].driver is None
    assert any(said in note for note in inventory.notes)
    # Nor is libcuda there.
    driver.init_error, nvml.init_error = RuntimeError("Failed to dlopen libcuda.so.1"), 12
    assert see(driver, nvml).notes == ("No NVIDIA driver was found: install it, or start the container with its GPUs.",)


def test_packages_that_are_not_installed(monkeypatch):
    for name in ("cuda.bindings.driver", "pynvml", "pyopencl"):
        monkeypatch.setitem(sys.modules, name, None)
    inventory = probe(environ={})
    assert inventory.devices == () and ["cuda13" in inventory.notes[0], "cuda13" in inventory.notes[1]] == [True, True]
    assert "tunesmith[opencl]" in inventory.notes[2]
    with pytest.raises(NoDevice, match=r"no cuda device 0 here; this process sees no device at all\. Why\."):
        Inventory((), ("Why.",)).device("cuda")


class FakeClError(Exception):
    """pyopencl's root of errors."""


def fake_opencl(*devices, platform_error=None, device_error=None):
    def get_devices():
        if device_error:
            raise FakeClError(device_error)
        return devices

    def get_platforms():
        if platform_error:
            raise FakeClError(platform_error)
        return [SimpleNamespace(name="Some platform", get_devices=get_devices)]

    kinds = SimpleNamespace(CPU=2, GPU=4)
    return SimpleNamespace(Error=FakeClError, device_type=kinds, get_platforms=get_platforms)


def fake_cl_device(kind, **more):
    values = {"type": kind, "name": " A device ", "version": "OpenCL 3.0", "driver_version": "1", "extensions": ""}
    values |= {"max_work_group_size": 256, "max_work_item_sizes": [256, 256], "local_mem_size": 65536}
    values |= {"max_compute_units": 8, "global_mem_cache_size": 0, "global_mem_size": 2**30}
    return SimpleNamespace(**values | {"max_clock_frequency": 1500} | more)


def test_opencl_devices_and_platforms_without_any():
    amd = fake_cl_device(4, extensions="cl_amd_device_attribute_query", wavefront_width_amd=64)
    inventory = probe_opencl(opencl_module=fake_opencl(fake_cl_device(8), fake_cl_device(2), amd))
    cpu, gpu = inventory.devices
    assert (cpu.index, cpu.platform_index, cpu.device_index) == (0, 0, 1)
    assert (cpu.limits.kind, gpu.limits.kind, gpu.limits.warp_size) == ("cpu", "gpu", 64)
    assert gpu.limits.max_block_dims == (256, 256, 1) and (gpu.limits.l2_bytes, gpu.limits.clock_hz) == (None, 1.5e9)
    assert "neither a CPU nor a GPU" in inventory.notes[0]
    none = {"platform_error": "PLATFORM_NOT_FOUND_KHR"}, {"device_error": "DEVICE_NOT_FOUND"}, {}
    for errors, said in zip(
        none, ("tunesmith[opencl]", "lists no device", "Some platform lists no device."), strict=True
    ):
        found = probe_opencl(opencl_module=fake_opencl(**errors))
        assert found.devices == () and said in found.notes[0]


def test_the_opencl_device_at_an_index_is_the_one_that_was_listed(monkeypatch):
    from tunesmith.kernels.backends.opencl import TunesmithError, open_device

    accelerator, cpu = fake_cl_device(8), fake_cl_device(2, name="The CPU", platform=SimpleNamespace(name="p"))
    monkeypatch.setitem(sys.modules, "pyopencl", fake_opencl(accelerator, cpu))
    monkeypatch.setattr("tunesmith.kernels.backends.opencl.name_processor", lambda device: None)
    assert open_device(0) is cpu, "the accelerator before it is left out of the list"
    with pytest.raises(TunesmithError, match="no OpenCL device 1; there are 1"):
        open_device(1)


def test_pocl_gets_a_cache_where_the_home_cannot_be_written(tmp_path: Path) -> None:
    """As in many containers. PoCL would then list no device, and not say why."""
    if not [device for device in probe_opencl().devices if "Portable" in (device.platform or "")]:
        pytest.skip("PoCL is not here")
    listing = "import os; from tunesmith.hw.probe import probe; print(len(probe().of('opencl')), os.environ.get({!r}))"
    program = [sys.executable, "-c", listing.format("POCL_CACHE_DIR")]
    environment = {
        name: value for name, value in os.environ.items() if name not in ("XDG_CACHE_HOME", "POCL_CACHE_DIR")
    }
    environment |= {"HOME": "/proc/sys", "TMPDIR": str(tmp_path)}
    done = subprocess.run(program, capture_output=True, text=True, timeout=90, env=environment)
    assert done.stdout.split() == ["1", str(tmp_path / f"tunesmith-pocl-{os.getuid()}")], done.stderr


HANDLERS = """
import ctypes, signal
from tunesmith.hw.probe import probe

def natively():
    # glibc's sigaction begins with the handler.
    found = (ctypes.c_void_p * 64)()
    addresses = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        ctypes.CDLL(None).sigaction(int(number), None, found)
        addresses.append(found[0])
    return addresses

signal.signal(signal.SIGTERM, lambda *_: None)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
before = natively()
inventory = probe()
print(len(inventory.of("opencl")), before == natively())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads what glibc keeps")
def test_listing_devices_leaves_signals_to_those_that_had_them() -> None:
    """LLVM inside PoCL would take them, and end the process at the second of two that come at once."""
    done = subprocess.run([sys.executable, "-c", HANDLERS], capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    count, kept = done.stdout.split()
    if count == "0":
        pytest.skip("no OpenCL device")
    assert kept == "True"


def test_no_gpu_library_is_loaded():
    names = sorted(path.stem for path in Path(tunesmith.hw.__path__[0]).glob("[a-z]*.py"))
    assert "probe" in names
    code = (
        "import importlib, sys\n"
        f"for name in {names!r}: importlib.import_module('tunesmith.hw.' + name)\n"
        "heavy = {'pynvml', 'cuda', 'cupy', 'pyopencl', 'ray', 'langgraph'} & set(sys.modules)\n"
        "sys.exit(', '.join(sorted(heavy)) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


GPU = f"GPU-{UUIDS[0]}"


def one_gpu(**failing):
    return FakeNvml([FakeGpu(GPU, "00000000:3B:00.0", failing=failing)])


def test_a_sample_is_in_si_units_and_what_a_gpu_does_not_report_is_asked_once():
    nvml = one_gpu()
    nvml.throttle_bits = 0x1 | 0x4
    with open_telemetry(GPU, nvml_module=nvml) as source:
        full = Telemetry(1.98e9, 3.201e9, 350.5, 12.345, 41.0, ("sw_power_cap",))
        assert source.sample(energy=True) == full and source.sample() == dataclasses.replace(full, energy_j=None)
    assert (nvml.started, nvml.calls.count("energy")) == (0, 1)
    nvml = one_gpu(energy=3, power=4)
    with open_telemetry(GPU, nvml_module=nvml) as source:
        first, second = source.sample(energy=True), source.sample(energy=True)
    assert isinstance(source, NvmlTelemetry) and isinstance(first, Telemetry) and first == second
    assert (first.energy_j, first.power_w, first.sm_clock_hz) == (None, None, 1.98e9)
    assert (nvml.calls.count("energy"), sorted(source.unsupported)) == (1, ["energy_j", "power_w"])
    nvml = one_gpu()
    with open_telemetry(GPU, nvml_module=nvml) as source:
        assert source.joules() == 12.345
        nvml.gpus[0].failing["energy"] = nvml.NVML_ERROR_GPU_IS_LOST
        assert source.joules() is None
    assert (NoTelemetry("none").joules(), "power" in nvml.calls) == (None, False)
    lacking = one_gpu(energy=3)
    with open_telemetry(GPU, nvml_module=lacking) as source:
        assert (source.joules(), source.joules(), lacking.calls.count("energy")) == (None, None, 1)
    assert decode_throttle_reasons(0) == decode_throttle_reasons(1) == ()
    named = "applications_clocks_setting hw_slowdown sync_boost sw_thermal_slowdown hw_thermal_slowdown"
    found = decode_throttle_reasons(0x8 | 0x20 | 0x40 | 0x80 | 0x10 | 0x2)
    assert found == (*named.split(), "hw_power_brake_slowdown")
    assert decode_throttle_reasons(0x600) == ("unknown_0x200", "unknown_0x400")


def test_a_lost_gpu_or_none_is_a_reason_and_not_an_exception():
    nvml = one_gpu()
    with open_telemetry(GPU, nvml_module=nvml) as source:
        nvml.gpus[0].failing["power"] = nvml.NVML_ERROR_GPU_IS_LOST
        lost = source.sample()
    assert isinstance(lost, NoTelemetry) and "no longer reads the GPU" in lost.reason
    assert nvml.started == 0
    with open_telemetry(GPU) as source:
        sample = source.sample()
    assert isinstance(sample, Telemetry) or sample.reason.endswith("."), "on this machine"
    unknown, absent = FakeNvml([FakeGpu("GPU-a", "")]), FakeNvml(init_error=12)
    for nvml, said in ((unknown, "does not find the GPU opencl-x"), (absent, "No NVIDIA driver was found")):
        source = open_telemetry("opencl-x", nvml_module=nvml)
        assert isinstance(source, NoTelemetry) and said in source.reason
        assert source.sample() is source and nvml.started == 0


def test_gpus_and_slices_are_found_by_name_and_address():
    nvml = one_gpu()
    with open_telemetry(f"MIG-{MIG_UUID}", nvml_module=nvml) as source:
        assert isinstance(source.sample(), Telemetry) and "parent" in nvml.calls
    for bare, full in ((MIG_UUID, f"MIG-{MIG_UUID}"), (UUIDS[0], f"GPU-{UUIDS[0]}"), ("unknown", "GPU-unknown")):
        assert with_prefix(bare, nvml_module=nvml) == full
    assert nvml.started == 0
    assert with_prefix(UUIDS[0], nvml_module=Unavailable("not here")) == f"GPU-{UUIDS[0]}"
    nvml = FakeNvml([FakeGpu(f"GPU-{UUIDS[0]}", "00000000:3B:00.0"), FakeGpu(f"GPU-{UUIDS[1]}", "00000001:3B:00.0")])
    assert uuid_at((1, 0x3B, 0), nvml_module=nvml) == f"GPU-{UUIDS[1]}"
    assert uuid_at((0, 0x3B, 1), nvml_module=nvml) is None
    assert uuid_at((0, 0x3B, 0), nvml_module=FakeNvml(init_error=FakeNvml.NVML_ERROR_LIBRARY_NOT_FOUND)) is None
    assert nvml.started == 0


def ask(nvml: Any, uuid: str = GPU) -> tuple[str, str]:
    found = query_gpu_health(uuid, nvml_module=nvml)
    assert getattr(nvml, "started", 0) == 0, "the session with NVML was not ended"
    return found


def test_errors_are_a_note_and_a_lost_gpu_or_rows_without_a_spare_a_fault() -> None:
    unsupported = dict.fromkeys(("ecc", "rows"), FakeNvml.NVML_ERROR_NOT_SUPPORTED)
    note = "it has 3 uncorrected memory errors since the driver was loaded"
    for failing, uncorrected, rows, fault, noted in (
        ({}, 0, (0, 0, 0, 0), "", ""),
        (unsupported, 0, (), "", ""),
        ({}, 3, (0, 0, 0, 0), "", note),
        ({}, 3, (1, 1, 0, 1), "it has memory rows that could not be remapped", None),
    ):
        nvml = one_gpu(**failing)
        nvml.uncorrected, nvml.rows = uncorrected, rows
        found = ask(nvml)
        assert found[0] == fault and noted in (None, found[1])
        # A slice shares the health of its GPU.
        assert ask(nvml, f"MIG-{MIG_UUID}") == found and "parent" in nvml.calls
    assert "no longer reaches it" in ask(one_gpu(ecc=FakeNvml.NVML_ERROR_GPU_IS_LOST))[0]
    assert ask(one_gpu(), "GPU-of-a-slice") == ("", ""), "NVML does not know it"
    for nvml in (Unavailable("none here"), FakeNvml(init_error=9)):
        assert ask(nvml) == ("", "")
