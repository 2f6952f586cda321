"""What the driver knows of a GPU's health: errors of its memory that were found and could not be mended.

The driver keeps no list of past Xid events that could be read afterwards; those that end a context are seen as the
failures of calls. NVML's functions: "ECC" and "Row remapper" in the NVML API reference.
"""

from __future__ import annotations

from typing import Any

from tunesmith.hw import nvml as nvml_access
from tunesmith.hw.nvml import NvmlUnavailable


def memory_trouble(uuid: str, *, nvml_module: Any = None) -> str:
    """What NVML holds against the memory of the GPU `uuid`, as a clause; empty when that is nothing, or unknown."""
    nvml = nvml_access.load() if nvml_module is None else nvml_module
    if isinstance(nvml, NvmlUnavailable) or nvml_access.start(nvml) is not None:
        return ""
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        kinds = (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
        uncorrected = _known(nvml, nvml.nvmlDeviceGetTotalEccErrors, handle, *kinds)
        rows = _known(nvml, nvml.nvmlDeviceGetRemappedRows, handle)
    except nvml.NVMLError as error:
        return f"NVML cannot read it ({error})"
    finally:
        nvml.nvmlShutdown()
    if uncorrected:
        return f"it has {uncorrected} uncorrected memory errors since the driver was loaded"
    if rows and rows[3]:
        return "it has memory rows that could not be remapped"
    return ""


def _known(nvml: Any, query: Any, *arguments: Any) -> Any:
    """The answer, or None where this GPU does not offer the query."""
    try:
        return query(*arguments)
    except nvml.NVMLError as error:
        if nvml_access.is_absent(nvml, error):
            return None
        raise
