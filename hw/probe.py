"""The devices that this process can use, in plain sentences why it cannot use others, and the health of a GPU.

Owns the inventory: it combines the lists of CUDA, NVML and OpenCL (the modules of `drivers`), matches their numberings,
and explains the differences. A missing driver, package or GPU is a note, never an exception. It takes no measurements.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tunesmith.hw.drivers import DeviceInfo as DeviceInfo
from tunesmith.hw.drivers import Report, nvml, opencl
from tunesmith.hw.drivers import cuda as cuda_driver
from tunesmith.hw.drivers.cuda import CudaGpu
from tunesmith.hw.drivers.nvml import NvmlGpu
from tunesmith.hw.errors import NoDevice, Unavailable, how_to_install
from tunesmith.hw.limits import Backend, as_triton


@dataclass(frozen=True, slots=True)
class Inventory:
    """The devices, and one sentence for everything that is missing, hidden or unusual. by_backend: which of `notes` are
    about which backend, as far as that is known."""

    devices: tuple[DeviceInfo, ...]
    notes: tuple[str, ...]
    by_backend: Mapping[Backend, tuple[str, ...]] = field(default_factory=dict)

    def of(self, backend: Backend) -> tuple[DeviceInfo, ...]:
        """The devices of one backend, in its own order. Triton's are CUDA's."""
        if backend == "triton":
            return tuple(replace(one, backend=backend, limits=as_triton(one.limits)) for one in self.of("cuda"))
        return tuple(device for device in self.devices if device.backend == backend)

    def why_without(self, backends: Iterable[Backend]) -> str:
        """The first note on each of `backends`, which says what keeps its devices from being seen, as clauses; empty
        where there is none."""
        named = dict.fromkeys("cuda" if backend == "triton" else backend for backend in backends)
        first = [self.by_backend[backend][0].rstrip(".") for backend in named if self.by_backend.get(backend)]
        # Other sentences begin with a name, such as OpenCL.
        return "; ".join(one[0].lower() + one[1:] if one.startswith(("The ", "An ", "No ")) else one for one in first)

    def device(self, backend: Backend, index: int = 0) -> DeviceInfo:
        """The device `index` of `backend`. Raises NoDevice, giving the notes, where there is none."""
        for device in self.of(backend):
            if device.index == index:
                return device
        seen = ", ".join(f"{d.backend} {d.index} ({d.name})" for d in self.devices) or "no device at all"
        raise NoDevice(
            f"There is no {backend} device {index} here; this process sees {seen}. "
            + " ".join(self.notes or ("Choose one of these devices.",))
        )

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary of JSON types."""
        return {"devices": [device.to_json() for device in self.devices], "notes": list(self.notes)}


def probe(*, environ: Mapping[str, str] | None = None) -> Inventory:
    """List the CUDA devices, then the OpenCL devices. Never raises for a missing driver or package. environ: the
    environment; this process's if left out."""
    cuda, opencl_devices = probe_cuda(environ=environ), probe_opencl()
    by_backend = {**cuda.by_backend, **opencl_devices.by_backend}
    return Inventory(cuda.devices + opencl_devices.devices, cuda.notes + opencl_devices.notes, by_backend)


def probe_cuda(
    *, driver_module: Any = None, nvml_module: Any = None, environ: Mapping[str, str] | None = None
) -> Inventory:
    """List the CUDA devices of this process. The modules default to ``cuda.bindings.driver`` and ``pynvml``."""
    visible = (os.environ if environ is None else environ).get("CUDA_VISIBLE_DEVICES")
    driver = cuda_driver.load() if driver_module is None else driver_module
    cuda = driver if isinstance(driver, Unavailable) else cuda_driver.read_gpus(driver)
    management = nvml.load() if nvml_module is None else nvml_module
    physical = management if isinstance(management, Unavailable) else nvml.read_gpus(management)

    if isinstance(cuda, Unavailable):
        notes = _notes_without_cuda(cuda, physical, visible)
        return Inventory((), notes, {"cuda": notes})
    gpus, driver_version = ((), None) if isinstance(physical, Unavailable) else (physical.devices, physical.version)
    pairs = [(gpu, _match(gpu, gpus)) for gpu in cuda.devices]
    devices = tuple(_device(gpu, match, driver_version, cuda.version) for gpu, match in pairs)
    notes = _notes(cuda, physical, pairs, visible)
    return Inventory(devices, notes, {"cuda": notes})


def probe_opencl(*, opencl_module: Any = None) -> Inventory:
    """List the OpenCL devices of this process. An NVIDIA GPU may appear here as well as under CUDA."""
    cl = opencl.load() if opencl_module is None else opencl_module
    report = cl if isinstance(cl, Unavailable) else opencl.read_devices(cl)
    if isinstance(report, Unavailable):
        return Inventory((), (report.reason,), {"opencl": (report.reason,)})
    return Inventory(report.devices, report.notes, {"opencl": report.notes})


def _match(gpu: CudaGpu, physical: tuple[NvmlGpu, ...]) -> NvmlGpu | None:
    """The physical GPU behind a CUDA device: by UUID, or by PCI address for a MIG slice (own UUID).

    Never by index: CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER both reorder CUDA's numbering.
    """
    by_uuid = [one for one in physical if one.uuid.removeprefix("GPU-").lower() == gpu.uuid.lower()]
    by_address = [one for one in physical if gpu.pci is not None and one.pci == gpu.pci]
    return next(iter(by_uuid + by_address), None)


def _device(gpu: CudaGpu, match: NvmlGpu | None, driver: str | None, cuda_version: str) -> DeviceInfo:
    limits, mig = gpu.limits, match is not None and match.mig_enabled
    if mig:
        # The attributes describe the whole GPU's memory interface, of which a slice has a part.
        limits = replace(limits, memory_bandwidth=None)
    return DeviceInfo(
        backend="cuda",
        index=gpu.index,
        name=limits.name,
        limits=limits,
        uuid=("MIG-" if mig else "GPU-") + gpu.uuid,
        driver=driver,
        cuda_version=cuda_version,
        compute_mode=None if match is None else match.compute_mode,
        mig=mig,
    )


def _notes_without_cuda(
    cuda: Unavailable, physical: Report[NvmlGpu] | Unavailable, visible: str | None
) -> tuple[str, ...]:
    if isinstance(physical, Unavailable):
        return tuple(dict.fromkeys((cuda.reason, physical.reason)))
    if cuda.no_device and visible is not None and physical.devices:
        return (_hidden(physical.devices, visible), *physical.notes)
    present = ", ".join(f"{gpu.name} ({gpu.uuid})" for gpu in physical.devices) or "no GPU either"
    return (cuda.reason, f"NVML sees {present}.", *physical.notes)


def _notes(
    cuda: Report[CudaGpu],
    physical: Report[NvmlGpu] | Unavailable,
    pairs: list[tuple[CudaGpu, NvmlGpu | None]],
    visible: str | None,
) -> tuple[str, ...]:
    notes = list(cuda.notes)
    if isinstance(physical, Unavailable):
        notes.append(physical.reason)
    else:
        notes.extend(physical.notes)
        used = {match.index for _, match in pairs if match is not None}
        hidden = tuple(gpu for gpu in physical.devices if gpu.index not in used)
        if hidden:
            notes.append(_hidden(hidden, visible))
    for gpu, match in pairs:
        called = f"CUDA device {gpu.index} ({gpu.limits.name})"
        if match is None:
            continue
        if match.mig_enabled:
            notes.append(
                f"{called} is a MIG slice: its SMs and memory are the slice's, its clocks and power are "
                "shared with the other slices, so timings vary with their load."
            )
        if match.mig_unknown is not None:
            notes.append(f"{called} does not tell whether MIG is enabled ({match.mig_unknown}).")
        if match.compute_mode == "prohibited":
            notes.append(f"{called} is in compute mode 'prohibited': allow it with nvidia-smi -c DEFAULT.")
    if len(pairs) > 1:
        names = ", ".join(f"{gpu.index}: {gpu.limits.name}" for gpu, _ in pairs)
        notes.append(f"{len(pairs)} CUDA devices are visible ({names}): each timing uses one of them alone.")
    if importlib.util.find_spec("cupy") is None:
        notes.append(f"The package CuPy is not installed: {how_to_install('cuda13')}.")
    return tuple(notes)


def _hidden(gpus: tuple[NvmlGpu, ...], visible: str | None) -> str:
    names = ", ".join(f"{gpu.name} ({gpu.uuid})" for gpu in gpus)
    if visible is None:
        return f"NVML sees {names}, but CUDA does not: check it with nvidia-smi."
    return f"CUDA_VISIBLE_DEVICES='{visible}' hides {names}: unset it, or add the UUID, to use the hidden GPU."


def query_gpu_health(uuid: str, *, nvml_module: Any = None) -> tuple[str, str]:
    """A fault for which the GPU `uuid`, or the GPU around a slice (``MIG-...``), should not be used, and a note on one
    that may be used: clauses, empty where NVML knows of nothing.

    Errors of its memory that were found and could not be corrected: "ECC" and "Row remapper" in the NVML API reference.
    The driver keeps no list of past Xid events that could be read afterwards; an event that ends a context is seen as
    the failure of a call.
    """
    library = nvml.load() if nvml_module is None else nvml_module
    if isinstance(library, Unavailable) or nvml.start(library) is not None:
        return "", ""
    try:
        handle = nvml.physical_gpu(library, uuid)
        kinds = (library.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, library.NVML_VOLATILE_ECC)
        uncorrected = nvml.if_supported(library, library.nvmlDeviceGetTotalEccErrors, handle, *kinds)
        rows = nvml.if_supported(library, library.nvmlDeviceGetRemappedRows, handle)
    except library.NVMLError as error:
        lost = getattr(error, "value", None) == library.NVML_ERROR_GPU_IS_LOST
        return f"NVML no longer reaches it ({error})" if lost else "", ""
    finally:
        library.nvmlShutdown()
    # Corrected row by row, uncorrected row by row, whether a remapping waits for a reset, whether one failed.
    if rows and rows[3]:
        return "it has memory rows that could not be remapped", ""
    if uncorrected:
        return "", f"it has {uncorrected} uncorrected memory errors since the driver was loaded"
    return "", ""
