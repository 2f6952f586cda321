"""The CUDA driver's list of the devices that this process can use, with their limits.

No context is created, so listing devices costs no GPU memory. It does not know devices hidden from this process: NVML
sees them (`nvml`), and `probe` compares the two.
"""

from __future__ import annotations

import uuid as uuids
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tunesmith.hw import targets
from tunesmith.hw.drivers import Report, load_module
from tunesmith.hw.drivers.nvml import NO_DRIVER, parse_pci
from tunesmith.hw.errors import Unavailable
from tunesmith.hw.limits import DeviceLimits

NO_GPU: Final = Unavailable("The CUDA driver works but sees no device.", no_device=True)


@dataclass(frozen=True, slots=True)
class CudaGpu:
    """One device as this process sees it. `uuid` lacks a prefix: a MIG slice has its own."""

    index: int
    uuid: str
    pci: tuple[int, int, int] | None
    limits: DeviceLimits


class DriverCallFailed(Exception):
    """A driver call returned an error code; `name` is CUDA's name of it. Never leaves this module."""

    def __init__(self, call: str, name: str) -> None:
        super().__init__(f"{call} returned {name}")
        self.name = name


def load() -> Any | Unavailable:
    """Import ``cuda.bindings.driver``."""
    return load_module("cuda.bindings.driver", "cuda-bindings", "CUDA cannot be used", "cuda13")


def read_gpus(driver: Any) -> Report[CudaGpu] | Unavailable:
    """List the devices, or say why that cannot be done. version: the newest of CUDA that the driver supports, such as
    ``13.0``."""
    try:
        _call(driver.cuInit, 0)
    except DriverCallFailed as error:
        return _explain(error.name)
    except (RuntimeError, OSError):
        # The bindings load libcuda at the first call and raise where it is missing.
        return Unavailable(NO_DRIVER)
    try:
        version = int(_call(driver.cuDriverGetVersion))
        count = int(_call(driver.cuDeviceGetCount))
    except DriverCallFailed as error:
        return _explain(error.name)
    gpus: list[CudaGpu] = []
    notes: list[str] = []
    for index in range(count):
        try:
            gpus.append(_read_gpu(driver, index))
        except DriverCallFailed as error:
            notes.append(f"CUDA device {index} cannot be read ({error}): check it with nvidia-smi.")
    if not count:
        return NO_GPU
    return Report(tuple(gpus), tuple(notes), f"{version // 1000}.{version % 1000 // 10}")


def read_uuid(driver: Any, index: int) -> str:
    """The UUID of device `index`, without a prefix."""
    # Bindings of CUDA 12 have both; only _v2 gives a MIG slice its own UUID. In CUDA 13 it took the name.
    get_uuid = getattr(driver, "cuDeviceGetUuid_v2", driver.cuDeviceGetUuid)
    return str(uuids.UUID(bytes=bytes(_call(get_uuid, _call(driver.cuDeviceGet, index)).bytes)[:16]))


def _explain(name: str) -> Unavailable:
    if name == "CUDA_ERROR_NO_DEVICE":
        return NO_GPU
    if name == "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH":
        return Unavailable(
            "The NVIDIA driver's kernel module and library have different versions: restart the machine "
            "after a driver update."
        )
    if name == "CUDA_ERROR_STUB_LIBRARY":
        return Unavailable(
            "The CUDA toolkit's stub of libcuda was loaded instead of the driver's: take its folder "
            "('stubs') out of LD_LIBRARY_PATH."
        )
    return Unavailable(f"The CUDA driver does not start ({name}): check it with nvidia-smi.")


def _call(function: Any, *arguments: Any) -> Any:
    code, *values = function(*arguments)
    name = getattr(code, "name", str(code))
    if name != "CUDA_SUCCESS":
        raise DriverCallFailed(getattr(function, "__name__", "a CUDA driver call"), name)
    return values[0] if values else None


def _read_gpu(driver: Any, index: int) -> CudaGpu:
    device = _call(driver.cuDeviceGet, index)

    def attribute(name: str) -> int:
        key = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(_call(driver.cuDeviceGetAttribute, key, device))

    name = _c_text(_call(driver.cuDeviceGetName, 256, device))
    pci = parse_pci(_c_text(_call(driver.cuDeviceGetPCIBusId, 32, device)))
    memory = int(_call(driver.cuDeviceTotalMem, device))
    return CudaGpu(index, read_uuid(driver, index), pci, _limits(attribute, name, memory))


def _limits(attribute: Callable[[str], int], name: str, memory_bytes: int) -> DeviceLimits:
    major, minor = attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")
    capability = f"{major}.{minor}"
    warp_size, threads_per_sm = attribute("WARP_SIZE"), attribute("MAX_THREADS_PER_MULTIPROCESSOR")
    memory_clock_hz = attribute("MEMORY_CLOCK_RATE") * 1e3
    # Of a double-data-rate memory: "Theoretical Bandwidth Calculation" in the CUDA C++ Best Practices Guide. Integrated
    # GPUs state a clock, a data rate, or nothing here, so no bandwidth follows from it.
    bandwidth = None if attribute("INTEGRATED") else 2.0 * memory_clock_hz * attribute("GLOBAL_MEMORY_BUS_WIDTH") / 8.0
    units = "cuda_occupancy.h" if capability in targets.CAPABILITIES else "assumed as for 7.0 to 12.1"
    return DeviceLimits(
        name=name,
        backend="cuda",
        kind="gpu",
        arch=targets.arch_name(capability),
        max_threads_per_block=attribute("MAX_THREADS_PER_BLOCK"),
        max_block_dims=(attribute("MAX_BLOCK_DIM_X"), attribute("MAX_BLOCK_DIM_Y"), attribute("MAX_BLOCK_DIM_Z")),
        max_grid_dims=(attribute("MAX_GRID_DIM_X"), attribute("MAX_GRID_DIM_Y"), attribute("MAX_GRID_DIM_Z")),
        warp_size=warp_size,
        max_threads_per_sm=threads_per_sm,
        max_warps_per_sm=threads_per_sm // warp_size,
        max_blocks_per_sm=attribute("MAX_BLOCKS_PER_MULTIPROCESSOR"),
        registers_per_sm=attribute("MAX_REGISTERS_PER_MULTIPROCESSOR"),
        registers_per_block=attribute("MAX_REGISTERS_PER_BLOCK"),
        # The driver does not report the four allocation rules below.
        max_registers_per_thread=targets.MAX_REGISTERS_PER_THREAD,
        register_allocation_unit=targets.REGISTER_ALLOCATION_UNIT,
        warp_allocation_granularity=targets.SM_SUB_PARTITIONS,
        shared_allocation_unit=targets.shared_allocation_unit(major),
        shared_per_sm=attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        shared_per_block=attribute("MAX_SHARED_MEMORY_PER_BLOCK"),
        shared_per_block_optin=attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        shared_reserved_per_block=attribute("RESERVED_SHARED_MEMORY_PER_BLOCK"),
        sm_count=attribute("MULTIPROCESSOR_COUNT"),
        l2_bytes=attribute("L2_CACHE_SIZE") or None,
        memory_bytes=memory_bytes,
        memory_bandwidth=bandwidth or None,
        clock_hz=attribute("CLOCK_RATE") * 1e3 or None,
        memory_clock_hz=memory_clock_hz or None,
        source=f"driver; allocation units: {units}",
    )


def _c_text(raw: bytes | str) -> str:
    text = raw.decode(errors="replace") if isinstance(raw, bytes) else raw
    return text.split("\0", 1)[0]
