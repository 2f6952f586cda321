"""NVML's list of the GPUs of this machine, whether or not this process may use them with CUDA.

It does not combine that list with CUDA's (`probe` does) and takes no measurements (`telemetry` does).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tunesmith.hw.drivers import Report, load_module
from tunesmith.hw.errors import Unavailable

NO_DRIVER = "No NVIDIA driver was found: install it, or start the container with its GPUs."
"""The reason where the libraries libcuda and NVML are missing."""


@dataclass(frozen=True, slots=True)
class NvmlGpu:
    """One physical GPU."""

    index: int
    uuid: str
    name: str
    #: ``domain:bus:device`` as three integers; the one thing a MIG slice shares with its GPU.
    pci: tuple[int, int, int] | None
    mig_enabled: bool
    #: Why the MIG mode is not known, where it is not.
    mig_unknown: str | None
    #: None where the GPU or the permissions do not tell.
    compute_mode: str | None


def load() -> Any | Unavailable:
    """Import ``pynvml``."""
    return load_module("pynvml", "nvidia-ml-py", "GPU clocks, power and throttling are not recorded", "cuda13")


def start(nvml: Any) -> Unavailable | None:
    """Initialise NVML; NVML counts starts, so each success needs one `nvmlShutdown`."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return Unavailable(explain(nvml, error))
    return None


def explain(nvml: Any, error: Exception) -> str:
    """A sentence for an NVML error at start."""
    reasons = {
        nvml.NVML_ERROR_LIBRARY_NOT_FOUND: NO_DRIVER,
        nvml.NVML_ERROR_DRIVER_NOT_LOADED: "The NVIDIA driver is not loaded: load it (modprobe nvidia) or restart the "
        "machine.",
        nvml.NVML_ERROR_NO_PERMISSION: "This user may not talk to the NVIDIA driver: give it access to /dev/nvidia*.",
        nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "The NVIDIA driver and NVML differ in version: restart the machine "
        "after a driver update.",
    }
    return reasons.get(getattr(error, "value", None), f"NVML cannot be used: {error}.")


def read_gpus(nvml: Any) -> Report[NvmlGpu] | Unavailable:
    """List the GPUs in NVML's order (by PCI address), or say why that cannot be done. version: the driver's."""
    failed = start(nvml)
    if failed is not None:
        return failed
    try:
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        gpus: list[NvmlGpu] = []
        notes: list[str] = []
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                gpus.append(_read_gpu(nvml, index))
            except nvml.NVMLError as error:
                # A GPU that fell off the bus must not hide the healthy ones.
                notes.append(f"NVML cannot read GPU {index} ({error}): check it with nvidia-smi.")
        return Report(tuple(gpus), tuple(notes), driver)
    except nvml.NVMLError as error:
        return Unavailable(explain(nvml, error))
    finally:
        nvml.nvmlShutdown()


def is_absent(nvml: Any, error: Exception) -> bool:
    """Whether an error only says that this GPU lacks the query, or that this user may not ask."""
    absent = (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_NO_PERMISSION, nvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    return getattr(error, "value", None) in absent


def physical_gpu(nvml: Any, uuid: str) -> Any:
    """The handle of the GPU with this UUID, or of the GPU around a slice (``MIG-...``), which has no clocks, power or
    error counters of its own. Raises ``NVMLError``."""
    handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    return nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle) if uuid.startswith("MIG-") else handle


def total_energy_joules(nvml: Any, handle: Any) -> float:
    """Joules that a GPU has taken since the driver was loaded, as a whole board. The counter moves every 20 to 100 ms
    and takes milliseconds to read. GPUs have it from Volta on. Raises ``NVMLError``."""
    return float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3


def with_prefix(uuid: str, *, nvml_module: Any = None) -> str:
    """The UUID that CUDA gives, with the prefix by which NVML finds the device: ``GPU-`` or, for a slice, ``MIG-``."""
    whole = f"GPU-{uuid}"
    nvml = load() if nvml_module is None else nvml_module
    if isinstance(nvml, Unavailable) or start(nvml) is not None:
        return whole
    try:
        for name in (whole, f"MIG-{uuid}"):
            try:
                nvml.nvmlDeviceGetHandleByUUID(name)
            except nvml.NVMLError:
                continue
            return name
    finally:
        nvml.nvmlShutdown()
    return whole


def uuid_at(pci: tuple[int, int, int], *, nvml_module: Any = None) -> str | None:
    """The UUID of the GPU at ``domain:bus:device``; None where NVML does not know it."""
    nvml = load() if nvml_module is None else nvml_module
    report = nvml if isinstance(nvml, Unavailable) else read_gpus(nvml)
    gpus = () if isinstance(report, Unavailable) else report.devices
    return next((gpu.uuid for gpu in gpus if gpu.pci == pci), None)


def parse_pci(bus_id: str) -> tuple[int, int, int] | None:
    """``00000000:3B:00.0`` becomes ``(0, 0x3b, 0)``; NVML and CUDA pad the domain differently."""
    parts = bus_id.strip().split(".")[0].split(":")
    try:
        domain, bus, device = (int(part, 16) for part in parts)
    except ValueError:
        return None
    return domain, bus, device


def _read_gpu(nvml: Any, index: int) -> NvmlGpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    mig_enabled, mig_unknown = _read_mig(nvml, handle)
    modes = {
        nvml.NVML_COMPUTEMODE_DEFAULT: "default",
        nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: "exclusive_process",
        nvml.NVML_COMPUTEMODE_PROHIBITED: "prohibited",
    }
    return NvmlGpu(
        index=index,
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        name=_text(nvml.nvmlDeviceGetName(handle)),
        pci=parse_pci(_text(nvml.nvmlDeviceGetPciInfo(handle).busId)),
        mig_enabled=mig_enabled,
        mig_unknown=mig_unknown,
        compute_mode=modes.get(if_supported(nvml, nvml.nvmlDeviceGetComputeMode, handle)),
    )


def _read_mig(nvml: Any, handle: Any) -> tuple[bool, str | None]:
    try:
        current, _pending = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError as error:
        # NOT_SUPPORTED is an answer: this GPU has no MIG. Anything else leaves the mode unknown.
        known = getattr(error, "value", None) == nvml.NVML_ERROR_NOT_SUPPORTED
        return False, None if known else str(error)
    return current == nvml.NVML_DEVICE_MIG_ENABLE, None


def if_supported(nvml: Any, query: Any, *arguments: Any) -> Any:
    """The answer, or None where this GPU does not offer the query or this user may not ask."""
    try:
        return query(*arguments)
    except nvml.NVMLError as error:
        if is_absent(nvml, error):
            return None
        raise


def _text(value: str | bytes) -> str:
    # Older releases of nvidia-ml-py return bytes.
    return value.decode(errors="replace") if isinstance(value, bytes) else value
