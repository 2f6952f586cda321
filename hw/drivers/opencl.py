"""OpenCL's list of the devices that this process can use, with their limits, and the folder of PoCL's cache."""

from __future__ import annotations

import os
import signal
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tunesmith.hw.drivers import DeviceInfo, Report, load_module
from tunesmith.hw.errors import Unavailable, how_to_install
from tunesmith.hw.limits import DeviceLimits


def load() -> Any | Unavailable:
    """Import ``pyopencl``, without its cache on disk: it would be made in a home that may not be there to write."""
    os.environ.setdefault("PYOPENCL_NO_CACHE", "1")
    return load_module("pyopencl", "pyopencl", "OpenCL devices are not seen", "opencl")


@contextmanager
def signals_kept() -> Iterator[None]:
    """Restores this process's signal handlers afterwards.

    The LLVM inside PoCL takes SIGINT, SIGTERM and SIGHUP for itself when devices are listed. It hands the first on, but
    a second that comes at once (`timeout` signals a process, and then its group) ends the process without a word.
    """
    try:
        yield
    finally:
        # Python sets handlers in its main thread only.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                handler = signal.getsignal(number)
                if handler is not None:
                    signal.signal(number, handler)


POCL_CACHE = "POCL_CACHE_DIR"
"""Environment variable with the folder of PoCL's compiled code; without write access there PoCL lists no device."""


def keep_pocl_cache() -> None:
    """Gives PoCL, in this process and its children, a folder of this user's among the temporary files, where
    the one in its home, which PoCL would use, cannot be written: as in many containers."""
    if POCL_CACHE in os.environ:
        return
    home = os.environ.get("XDG_CACHE_HOME") or (f"{home}/.cache" if (home := os.environ.get("HOME")) else "")
    if not home or _can_be_made(Path(home, "pocl", "kcache")):
        return
    folder = Path(tempfile.gettempdir(), f"tunesmith-pocl-{os.getuid()}")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        about = folder.lstat()
    except OSError:
        return
    # It holds code that will run: in a folder that others made, it might be theirs.
    if stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & 0o022:
        os.environ[POCL_CACHE] = str(folder)


def _can_be_made(folder: Path) -> bool:
    """Whether a folder can be written, or made where it is not there yet."""
    there = next((one for one in (folder, *folder.parents) if one.exists()), folder)
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


@signals_kept()
def read_devices(cl: Any) -> Report[DeviceInfo] | Unavailable:
    """List the CPUs and GPUs, or say why that cannot be done."""
    keep_pocl_cache()
    try:
        platforms = cl.get_platforms()
    except cl.Error as error:
        # Without a single driver the loader reports PLATFORM_NOT_FOUND_KHR rather than an empty list.
        drivers = f"install the vendor's OpenCL driver or, with PoCL for the CPU, {how_to_install('opencl')}"
        return Unavailable(f"OpenCL finds no platform ({error}): {drivers}.")
    devices: list[DeviceInfo] = []
    notes: list[str] = []
    for platform_index, platform in enumerate(platforms):
        try:
            found = platform.get_devices()
        except cl.Error as error:
            # DEVICE_NOT_FOUND for a driver without its hardware; others are faults of that driver.
            notes.append(f"The OpenCL platform {platform.name} lists no device ({error}).")
            continue
        if not found:
            cache = f": set {POCL_CACHE} to a folder that can be written" if "Portable" in platform.name else ""
            notes.append(f"The OpenCL platform {platform.name} lists no device{cache}.")
        for device_index, device in enumerate(found):
            index = len(devices)
            try:
                limits = _limits(cl, device)
                driver = str(device.driver_version).strip()
            except cl.Error as error:
                notes.append(f"An OpenCL device of {platform.name} cannot be read ({error}).")
                continue
            if limits is None:
                name = str(device.name).strip()
                notes.append(f"The OpenCL device {name} is neither a CPU nor a GPU and is left out.")
                continue
            place: dict[str, Any] = {"platform": platform.name.strip(), "platform_index": platform_index}
            place["device_index"] = device_index
            devices.append(DeviceInfo("opencl", index, limits.name, limits, driver=driver, **place))
    return Report(tuple(devices), tuple(notes))


def _limits(cl: Any, device: Any) -> DeviceLimits | None:
    """The limits, with work-group as block, compute unit as SM, local memory as shared memory.

    OpenCL has no notion of registers, of residency per compute unit, or of a largest grid: None.
    """
    is_gpu = bool(device.type & cl.device_type.GPU)
    if not is_gpu and not device.type & cl.device_type.CPU:
        return None
    sizes = [int(size) for size in device.max_work_item_sizes] + [1, 1, 1]
    local_bytes = int(device.local_mem_size) or None
    return DeviceLimits(
        name=str(device.name).strip(),
        backend="opencl",
        kind="gpu" if is_gpu else "cpu",
        arch=str(device.version).strip(),
        max_threads_per_block=int(device.max_work_group_size),
        max_block_dims=(sizes[0], sizes[1], sizes[2]),
        warp_size=_warp_size(cl, device),
        shared_per_block=local_bytes,
        shared_per_block_optin=local_bytes,
        sm_count=int(device.max_compute_units) or None,
        l2_bytes=int(device.global_mem_cache_size) or None,
        memory_bytes=int(device.global_mem_size),
        clock_hz=int(device.max_clock_frequency) * 1e6 or None,
        source="driver",
    )


def pci_address(cl: Any, device: Any) -> tuple[int, int, int] | None:
    """``domain:bus:device``, where a vendor's extension tells. (pyopencl does not pass cl_khr_device_uuid on.)"""
    try:
        bus, slot = int(device.pci_bus_id_nv), int(device.pci_slot_id_nv)
    except (cl.Error, AttributeError):
        return None
    try:
        domain = int(device.pci_domain_id_nv)
    except (cl.Error, AttributeError):
        domain = 0
    # A slot is a device and, in the last three bits, its function (hwloc and clinfo read it so, too).
    return domain, bus, slot >> 3


def _warp_size(cl: Any, device: Any) -> int | None:
    """Work-items which run in lockstep, where a vendor's extension tells; unknown, no rule about it applies."""
    names = {"cl_nv_device_attribute_query": "warp_size_nv", "cl_amd_device_attribute_query": "wavefront_width_amd"}
    name = next((name for extension, name in names.items() if extension in str(device.extensions)), None)
    try:
        return None if name is None else int(getattr(device, name))
    except cl.Error:
        # The extension is announced, but this query is missing.
        return None
