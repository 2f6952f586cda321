"""Stand-ins for ``pynvml`` and ``cuda.bindings.driver``, holding just the calls that this room makes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

UUIDS = tuple(f"{n}{n}{n}{n}{n}{n}{n}{n}-0000-1111-2222-333333333333" for n in range(10))
MIG_UUID = "abcdefab-0000-1111-2222-333333333333"

#: What the CUDA driver answers for an H200, without the prefix CU_DEVICE_ATTRIBUTE_.
H200_ATTRIBUTES = {
    **{"COMPUTE_CAPABILITY_MAJOR": 9, "COMPUTE_CAPABILITY_MINOR": 0, "INTEGRATED": 0, "MULTIPROCESSOR_COUNT": 132},
    **{"CLOCK_RATE": 1_980_000, "MEMORY_CLOCK_RATE": 3_201_000, "GLOBAL_MEMORY_BUS_WIDTH": 6016},
    **{"MAX_THREADS_PER_BLOCK": 1024, "MAX_BLOCK_DIM_X": 1024, "MAX_BLOCK_DIM_Y": 1024, "MAX_BLOCK_DIM_Z": 64},
    **{"MAX_GRID_DIM_X": 2**31 - 1, "MAX_GRID_DIM_Y": 65535, "MAX_GRID_DIM_Z": 65535, "WARP_SIZE": 32},
    **{"MAX_BLOCKS_PER_MULTIPROCESSOR": 32, "MAX_THREADS_PER_MULTIPROCESSOR": 2048, "L2_CACHE_SIZE": 60 * 2**20},
    **dict.fromkeys(("MAX_REGISTERS_PER_MULTIPROCESSOR", "MAX_REGISTERS_PER_BLOCK"), 65536),
    **{"MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 228 * 1024, "MAX_SHARED_MEMORY_PER_BLOCK": 48 * 1024},
    **{"MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 227 * 1024, "RESERVED_SHARED_MEMORY_PER_BLOCK": 1024},
}


class FakeResult(IntEnum):
    """The result codes that the tests need, with CUDA's values."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_STUB_LIBRARY = 34
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_DEVICE = 101
    CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803
    CUDA_ERROR_UNKNOWN = 999


OK = FakeResult.CUDA_SUCCESS


class _Attributes:
    """Any attribute's enum member is its own name."""

    def __getattr__(self, name: str) -> str:
        return name


@dataclass
class FakeDriver:
    """Each device is ``(uuid, PCI bus id, overrides of H200_ATTRIBUTES)``."""

    devices: list[tuple[str, str, dict[str, int]]] = field(default_factory=list)
    init_result: FakeResult = FakeResult.CUDA_SUCCESS
    init_error: Exception | None = None
    broken: frozenset[int] = frozenset()
    CUdevice_attribute: Any = field(default_factory=_Attributes)

    def cuInit(self, flags: int) -> tuple[FakeResult]:
        if self.init_error is not None:
            raise self.init_error
        return (self.init_result,)

    def cuDeviceGet(self, index: int) -> tuple[FakeResult, int]:
        return (FakeResult.CUDA_ERROR_INVALID_DEVICE, 0) if index in self.broken else (OK, index)


#: Calls of the driver that succeed, and what they give.
DRIVER_CALLS: dict[str, Callable[..., Any]] = {
    "cuDriverGetVersion": lambda driver: 13000,
    "cuDeviceGetCount": lambda driver: len(driver.devices),
    "cuDeviceGetName": lambda driver, length, device: b"NVIDIA H200".ljust(length, b"\0"),
    "cuDeviceGetPCIBusId": lambda driver, length, at: driver.devices[at][1].encode().ljust(length, b"\0"),
    "cuDeviceGetUuid": lambda driver, at: SimpleNamespace(bytes=bytes.fromhex(driver.devices[at][0].replace("-", ""))),
    "cuDeviceTotalMem": lambda driver, device: 140 * 2**30,
    "cuDeviceGetAttribute": lambda driver, key, at: (H200_ATTRIBUTES | driver.devices[at][2])[key[20:]],
}
for _name, _give in DRIVER_CALLS.items():
    setattr(FakeDriver, _name, lambda self, *given, give=_give: (OK, give(self, *given)))


class FakeNvmlError(Exception):
    """Like pynvml.NVMLError: the code is in `value`."""

    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


@dataclass
class FakeGpu:
    """A physical GPU as NVML sees it. `failing` maps a call's name to the error code it gives."""

    uuid: str
    pci: str
    mig: bool | None = None
    name: str = "NVIDIA H200"
    failing: dict[str, int] = field(default_factory=dict)


@dataclass
class FakeNvml:
    """The calls of pynvml which this room makes; a handle is the FakeGpu itself."""

    gpus: list[FakeGpu] = field(default_factory=list)
    init_error: int | None = None
    throttle_bits: int = 0
    #: Of its memory: errors, and rows as NVML gives them.
    uncorrected: int = 0
    rows: tuple[int, ...] = (0, 0, 0, 0)
    started: int = 0
    calls: list[str] = field(default_factory=list)

    NVMLError = FakeNvmlError
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_NO_PERMISSION = 4
    NVML_ERROR_NOT_FOUND = 6
    NVML_ERROR_DRIVER_NOT_LOADED = 9
    NVML_ERROR_LIBRARY_NOT_FOUND = 12
    NVML_ERROR_FUNCTION_NOT_FOUND = 13
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_TEMPERATURE_GPU = 0
    NVML_DEVICE_MIG_ENABLE = 1
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_COMPUTEMODE_DEFAULT = 0
    NVML_COMPUTEMODE_PROHIBITED = 2
    NVML_COMPUTEMODE_EXCLUSIVE_PROCESS = 3

    def _answer(self, call: str, gpu: FakeGpu, value: Any) -> Any:
        self.calls.append(call)
        if call in gpu.failing:
            raise FakeNvmlError(gpu.failing[call])
        return value

    def nvmlInit(self) -> None:
        if self.init_error is not None:
            raise FakeNvmlError(self.init_error)
        self.started += 1

    def nvmlShutdown(self) -> None:
        self.started -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.95.05"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        return self._answer("handle", self.gpus[index], self.gpus[index])

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGpu:
        for gpu in self.gpus:
            if uuid == gpu.uuid or (uuid == f"MIG-{MIG_UUID}" and gpu.mig is not False):
                return gpu
        raise FakeNvmlError(self.NVML_ERROR_NOT_FOUND)

    def nvmlDeviceGetMigMode(self, gpu: FakeGpu) -> list[int]:
        self._answer("mig", gpu, None)
        if gpu.mig is None:
            raise FakeNvmlError(self.NVML_ERROR_NOT_SUPPORTED)
        return [int(gpu.mig), int(gpu.mig)]


#: Calls about one GPU: the name in `failing`, and the answer.
CALLS: dict[str, tuple[str, Callable[..., Any]]] = {
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": ("parent", lambda nvml, gpu: gpu),
    "nvmlDeviceGetUUID": ("uuid", lambda nvml, gpu: gpu.uuid),
    "nvmlDeviceGetName": ("name", lambda nvml, gpu: gpu.name),
    "nvmlDeviceGetPciInfo": ("pci", lambda nvml, gpu: SimpleNamespace(busId=gpu.pci)),
    "nvmlDeviceGetClockInfo": ("clock", lambda nvml, gpu, which: 1980 if which == nvml.NVML_CLOCK_SM else 3201),
    "nvmlDeviceGetCurrentClocksThrottleReasons": ("throttle", lambda nvml, gpu: nvml.throttle_bits),
    "nvmlDeviceGetComputeMode": ("compute_mode", lambda nvml, gpu: 0),
    "nvmlDeviceGetPowerUsage": ("power", lambda nvml, gpu: 350_500),
    "nvmlDeviceGetTotalEnergyConsumption": ("energy", lambda nvml, gpu: 12_345),
    "nvmlDeviceGetTemperature": ("temperature", lambda nvml, gpu, sensor: 41),
    "nvmlDeviceGetTotalEccErrors": ("ecc", lambda nvml, gpu, kind, counter: nvml.uncorrected if kind == 1 else 0),
    "nvmlDeviceGetRemappedRows": ("rows", lambda nvml, gpu: nvml.rows),
}
for _name, (_label, _answer) in CALLS.items():
    setattr(
        FakeNvml,
        _name,
        lambda self, gpu, *more, label=_label, answer=_answer: self._answer(label, gpu, answer(self, gpu, *more)),
    )
