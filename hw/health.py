"""What the driver knows of a GPU's health: errors of its memory that were found and could not be corrected.

The driver keeps no list of past Xid events that could be read afterwards; those that end a context are seen as the
failures of calls. NVML's functions: "ECC" and "Row remapper" in the NVML API reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tunesmith.hw.drivers import nvml as nvml_access
from tunesmith.hw.drivers.nvml import NvmlUnavailable


@dataclass(frozen=True, slots=True)
class GpuHealth:
    """Clauses about a GPU, empty where there is nothing to say. fault: why it should not be used; note: it may be used,
    with this."""

    fault: str = ""
    note: str = ""


def query_gpu_health(uuid: str, *, nvml_module: Any = None) -> GpuHealth:
    """What NVML knows of the health of the GPU `uuid`; of the GPU around it for a
    slice (``MIG-...``); nothing where NVML is missing or does not know it."""
    nvml = nvml_access.load() if nvml_module is None else nvml_module
    if isinstance(nvml, NvmlUnavailable) or nvml_access.start(nvml) is not None:
        return GpuHealth()
    try:
        handle = nvml_access.physical_gpu(nvml, uuid)
        kinds = (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
        uncorrected = _known(nvml, nvml.nvmlDeviceGetTotalEccErrors, handle, *kinds)
        rows = _known(nvml, nvml.nvmlDeviceGetRemappedRows, handle)
    except nvml.NVMLError as error:
        lost = getattr(error, "value", None) == nvml.NVML_ERROR_GPU_IS_LOST
        return GpuHealth(fault=f"NVML no longer reaches it ({error})" if lost else "")
    finally:
        nvml.nvmlShutdown()
    # Corrected row by row, uncorrected row by row, whether a remapping waits for a reset, whether one failed.
    if rows and rows[3]:
        return GpuHealth(fault="it has memory rows that could not be remapped")
    if uncorrected:
        return GpuHealth(note=f"it has {uncorrected} uncorrected memory errors since the driver was loaded")
    return GpuHealth()


def _known(nvml: Any, query: Any, *arguments: Any) -> Any:
    """The answer, or None where this GPU does not offer the query."""
    try:
        return query(*arguments)
    except nvml.NVMLError as error:
        if nvml_access.is_absent(nvml, error):
            return None
        raise
