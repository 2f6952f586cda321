"""The limits of devices that need not be here: by compute capability, by product, by a user's file.

Owns the tables, and how a user's text finds a row in them; `tunesmith.hw.probe` lists the devices of this machine.

Sources of the table of compute capabilities, by column:

* Blocks, warps, registers and shared memory: "Technical Specifications per Compute Capability" in the CUDA C++
  Programming Guide. Its release 12 has 7.0 and 7.2, which release 13 no longer lists; release 13 (where the tables are
  called "Device and Streaming Multiprocessor Information" and "Memory Information per Compute Capability") has 7.5 to
  12.x, and gives 12.0 and 12.1 one common column.
* Allocation units and the number of SM sub-partitions: the tables inside the CUDA Toolkit's occupancy header,
  ``cuda_occupancy.h`` (release 13). Its per-capability block limits agree with the guide's.
* Reserved shared memory: the guide says 1 KiB for each block from capability 8.0 on, which is also why the opt-in limit
  is the SM's shared memory less 1 KiB there.

The numbers of products are those the CUDA driver reports (multiprocessors, L2 size, maximum SM clock, memory clock, bus
width), except where a row's note says otherwise. Bandwidth is twice the memory clock times the bus width, which is why
it can differ by a few percent from the rounded figure on a data sheet. Memory is the nominal capacity; the driver
reports somewhat less, as it keeps a part for itself. ``None`` marks a number that is not established.

A user's TOML file::

    base = "sm_90"          # required: what the file starts from (a capability or a product)
    name = "half an H200"   # any field of DeviceLimits may follow, in bytes, Hz and bytes/s
    sm_count = 66
    shared_per_sm = 233_472

Every other key must be a field of `tunesmith.hw.limits.DeviceLimits`; an unknown one is an error.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tunesmith.hw.errors import TunesmithError, UnknownTarget, named_path
from tunesmith.hw.limits import DeviceLimits, check_field

KIB: Final = 1024

GUIDE_12: Final = "table: CUDA C++ Programming Guide 12, Technical Specifications per Compute Capability"
GUIDE_13: Final = "table: CUDA C++ Programming Guide 13, Technical Specifications per Compute Capability"

# The same for every capability from 7.0 to 12.1, by both sources above.
WARP_SIZE: Final = 32
MAX_THREADS_PER_BLOCK: Final = 1024
MAX_BLOCK_DIMS: Final = (1024, 1024, 64)
MAX_GRID_DIMS: Final = (2**31 - 1, 65535, 65535)
REGISTERS_PER_SM: Final = 65536
REGISTERS_PER_BLOCK: Final = 65536
# The occupancy header tests against 256, but the instruction set has 255 (the guide's number) plus RZ,
# so no compiler ever reports 256.
MAX_REGISTERS_PER_THREAD: Final = 255
REGISTER_ALLOCATION_UNIT: Final = 256
SM_SUB_PARTITIONS: Final = 4
STATIC_SHARED_PER_BLOCK: Final = 48 * KIB


@dataclass(frozen=True, slots=True)
class _CapabilityLimits:
    """Limits that vary between capabilities. Shared memory in KiB, its allocation unit in bytes."""

    blocks: int
    warps: int
    shared_kib: int
    reserved_kib: int
    shared_unit: int
    source: str


_TABLE: Final[dict[str, _CapabilityLimits]] = {
    "7.0": _CapabilityLimits(32, 64, 96, 0, 256, GUIDE_12),
    "7.2": _CapabilityLimits(32, 64, 96, 0, 256, GUIDE_12),
    "7.5": _CapabilityLimits(16, 32, 64, 0, 256, GUIDE_13),
    "8.0": _CapabilityLimits(32, 64, 164, 1, 128, GUIDE_13),
    "8.6": _CapabilityLimits(16, 48, 100, 1, 128, GUIDE_13),
    "8.7": _CapabilityLimits(16, 48, 164, 1, 128, GUIDE_13),
    "8.9": _CapabilityLimits(24, 48, 100, 1, 128, GUIDE_13),
    "9.0": _CapabilityLimits(32, 64, 228, 1, 128, GUIDE_13),
    "10.0": _CapabilityLimits(32, 64, 228, 1, 128, GUIDE_13),
    "10.3": _CapabilityLimits(32, 64, 228, 1, 128, GUIDE_13),
    "11.0": _CapabilityLimits(24, 48, 228, 1, 128, GUIDE_13),
    "12.0": _CapabilityLimits(24, 48, 100, 1, 128, GUIDE_13),
    "12.1": _CapabilityLimits(24, 48, 100, 1, 128, GUIDE_13 + " (column 12.x)"),
}

CAPABILITIES: Final = tuple(_TABLE)


def shared_allocation_unit(major: int) -> int:
    """Bytes in which shared memory is allocated; source: ``cuda_occupancy.h``."""
    return 256 if major < 8 else 128


def arch_name(capability: str) -> str:
    """``9.0`` becomes ``sm_90``, the compiler's name."""
    return "sm_" + capability.replace(".", "")


def limits_of(capability: str) -> DeviceLimits:
    """Return the limits of a capability such as ``9.0``; product-specific fields stay ``None``.

    Raises KeyError for a capability outside `CAPABILITIES`; `resolve_target` is what turns a user's text into one.
    """
    row = _TABLE[capability]
    arch = arch_name(capability)
    return DeviceLimits(
        name=f"compute capability {capability}",
        backend="cuda",
        kind="gpu",
        arch=arch,
        max_threads_per_block=MAX_THREADS_PER_BLOCK,
        max_block_dims=MAX_BLOCK_DIMS,
        max_grid_dims=MAX_GRID_DIMS,
        warp_size=WARP_SIZE,
        max_threads_per_sm=row.warps * WARP_SIZE,
        max_warps_per_sm=row.warps,
        max_blocks_per_sm=row.blocks,
        registers_per_sm=REGISTERS_PER_SM,
        registers_per_block=REGISTERS_PER_BLOCK,
        max_registers_per_thread=MAX_REGISTERS_PER_THREAD,
        register_allocation_unit=REGISTER_ALLOCATION_UNIT,
        warp_allocation_granularity=SM_SUB_PARTITIONS,
        shared_per_sm=row.shared_kib * KIB,
        shared_per_block=STATIC_SHARED_PER_BLOCK,
        shared_per_block_optin=(row.shared_kib - row.reserved_kib) * KIB,
        shared_reserved_per_block=row.reserved_kib * KIB,
        shared_allocation_unit=row.shared_unit,
        source=row.source,
    )


GIB: Final = 1024**3
MIB: Final = 1024**2
_BOARD: Final = "SM clock varies by board"
_SHARED: Final = "shares its memory with the CPU"
_DATA_SHEET: Final = "bandwidth from the data sheet, memory clock not established"
_DATA_SHEET_ALONE: Final = f"{_DATA_SHEET}; L2 and clocks not established"
_DATA_RATE: Final = f"bandwidth from the data sheet, as the driver states a data rate for the memory clock; {_SHARED}"


@dataclass(frozen=True, slots=True)
class _Product:
    """One row. `bus_bits` wide memory at `memory_mhz`, two transfers a clock; or a stated bandwidth."""

    name: str
    capability: str
    sm_count: int
    l2_bytes: int | None
    memory_gib: int
    clock_mhz: int | None
    memory_mhz: int | None
    bus_bits: int | None
    bandwidth: float | None = None
    note: str = ""


_PRODUCTS: Final[dict[str, _Product]] = {
    "v100": _Product("Tesla V100-SXM2", "7.0", 80, 6 * MIB, 32, 1530, 877, 4096),
    "t4": _Product("Tesla T4", "7.5", 40, 4 * MIB, 16, 1590, 5001, 256),
    "a100": _Product("NVIDIA A100-SXM4-80GB", "8.0", 108, 40 * MIB, 80, 1410, 1593, 5120),
    "a100-40gb": _Product("NVIDIA A100-SXM4-40GB", "8.0", 108, 40 * MIB, 40, 1410, 1215, 5120),
    "a10": _Product("NVIDIA A10", "8.6", 72, 6 * MIB, 24, 1695, 6251, 384),
    "a40": _Product("NVIDIA A40", "8.6", 84, 6 * MIB, 48, 1740, 7251, 384),
    "rtx3090": _Product("NVIDIA GeForce RTX 3090", "8.6", 82, 6 * MIB, 24, 1695, 9751, 384, None, _BOARD),
    "l4": _Product("NVIDIA L4", "8.9", 58, 48 * MIB, 24, 2040, 6251, 192),
    "l40s": _Product("NVIDIA L40S", "8.9", 142, 96 * MIB, 48, 2520, 9001, 384),
    "rtx4090": _Product("NVIDIA GeForce RTX 4090", "8.9", 128, 72 * MIB, 24, 2520, 10501, 384, None, _BOARD),
    "h100": _Product("NVIDIA H100 80GB HBM3", "9.0", 132, 50 * MIB, 80, 1980, 2619, 5120),
    "h100-pcie": _Product("NVIDIA H100 PCIe", "9.0", 114, 50 * MIB, 80, 1755, 1593, 5120),
    "h200": _Product("NVIDIA H200", "9.0", 132, 60 * MIB, 140, 1980, 3201, 6016),
    "b200": _Product("NVIDIA B200", "10.0", 148, 132_644_864, 180, 1965, None, None, 8.0e12, _DATA_SHEET),
    "b300": _Product("NVIDIA B300", "10.3", 148, None, 270, None, None, None, 8.0e12, _DATA_SHEET_ALONE),
    "thor": _Product("NVIDIA Thor", "11.0", 20, 32 * MIB, 128, None, 4266, 256, None, _SHARED),
    "rtx5090": _Product("NVIDIA GeForce RTX 5090", "12.0", 170, 96 * MIB, 32, 2407, 14001, 512),
    "gb10": _Product("NVIDIA GB10", "12.1", 48, 24 * MIB, 128, 2418, None, None, 273e9, _DATA_RATE),
}

PRODUCT_NAMES: Final = tuple(_PRODUCTS)


def theoretical_bandwidth(memory_clock_hz: float, bus_width_bits: int) -> float:
    """Bytes/s that a double-data-rate memory can move: 2 x clock x width / 8.

    Source: "Theoretical Bandwidth Calculation" in the CUDA C++ Best Practices Guide.
    """
    return 2.0 * memory_clock_hz * bus_width_bits / 8.0


def product_limits(key: str) -> DeviceLimits:
    """Return the limits of a product by its key in `PRODUCT_NAMES`, such as ``h200``.

    Raises KeyError for another key.
    """
    row = _PRODUCTS[key]
    memory_clock = None if row.memory_mhz is None else row.memory_mhz * 1e6
    bandwidth = row.bandwidth
    if bandwidth is None and memory_clock is not None and row.bus_bits is not None:
        bandwidth = theoretical_bandwidth(memory_clock, row.bus_bits)
    base = limits_of(row.capability)
    product_source = f"product {key}" + (f" ({row.note})" if row.note else "")
    return dataclasses.replace(
        base,
        name=row.name,
        sm_count=row.sm_count,
        l2_bytes=row.l2_bytes,
        memory_bytes=row.memory_gib * GIB,
        memory_bandwidth=bandwidth,
        clock_hz=None if row.clock_mhz is None else row.clock_mhz * 1e6,
        memory_clock_hz=memory_clock,
        source=f"{base.source}; {product_source}",
    )


_ARCH: Final = re.compile(r"(?:sm_?)?(?P<major>\d{1,2})\.?(?P<minor>\d)(?P<suffix>[af]?)", re.IGNORECASE)
#: Feature suffixes of the compiler: ``a`` exists from 9.0 on, ``f`` from 10.0 on (nvcc, "GPU Feature List").
_FIRST_MAJOR_WITH_SUFFIX: Final = {"": 0, "a": 9, "f": 10}
_OTHERS: Final = re.compile(
    r"amd|ati\b|radeon|instinct|rx[\s_-]?\d|mi[\s_-]?\d{2,3}|gfx\d|rdna|cdna|navi|vega|"
    r"intel|arc\b|iris|xe\b|pvc|gaudi|apple|m[1-9]\b|adreno|mali|tpu",
    re.IGNORECASE,
)
"""How the names of other vendors' devices begin."""
# These only repeat the vendor, so that the name a driver prints is understood as well.
_VENDOR_WORDS: Final = re.compile(r"nvidia|geforce|tesla|[\s_-]")


def resolve_target(text: str) -> DeviceLimits:
    """Return the limits that `text` names: ``sm_90``, ``9.0``, ``sm_90a``, ``h200``, or ``path/to/gpu.toml``.

    Case, spaces, hyphens and the words NVIDIA, GeForce and Tesla do not matter in a product's name.
    Raises UnknownTarget, listing near matches, or naming the mistake in the file.
    """
    wanted = text.strip()
    if wanted.lower().endswith(".toml") or "/" in wanted or "\\" in wanted:
        return _from_file(named_path("--target", wanted))
    found = _from_table(wanted)
    if found is None:
        raise UnknownTarget(_unknown(wanted))
    return found


def _from_table(text: str) -> DeviceLimits | None:
    match = _ARCH.fullmatch(text)
    if match is not None:
        capability = f"{match['major']}.{match['minor']}"
        suffix = match["suffix"].lower()
        if capability in CAPABILITIES and int(match["major"]) >= _FIRST_MAJOR_WITH_SUFFIX[suffix]:
            limits = limits_of(capability)
            return dataclasses.replace(limits, arch=limits.arch + suffix) if suffix else limits
        return None
    # The name that the driver prints is as good as ours: both find the row.
    by_squeezed = {_squeeze(product_limits(key).name): key for key in PRODUCT_NAMES}
    by_squeezed |= {_squeeze(key): key for key in PRODUCT_NAMES}
    key = by_squeezed.get(_squeeze(text))
    return None if key is None else product_limits(key)


def _squeeze(text: str) -> str:
    return _VENDOR_WORDS.sub("", text.lower())


def _unknown(text: str) -> str:
    architectures = [arch_name(capability) for capability in CAPABILITIES]
    if _ARCH.fullmatch(text):
        return f"No target is called '{text}': the architectures known are {', '.join(architectures)}."
    if _OTHERS.match(text):
        return (
            f"No target is called '{text}': targets are NVIDIA GPUs alone, such as h200; a device of another vendor is "
            "tuned on where it is, through OpenCL."
        )
    known = [*architectures, *PRODUCT_NAMES]
    near = difflib.get_close_matches(text.lower(), known, n=4, cutoff=0.5)
    if near and any(letter.isalnum() for letter in text):
        return f"No target is called '{text}': did you mean {' or '.join(near)}?"
    return f"No target is called '{text}': name one of {', '.join(known)}, or the path of a TOML file."


def _from_file(path: Path) -> DeviceLimits:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UnknownTarget(
            f"The target file {path} cannot be read ({error.strerror}): give the path of a TOML file, "
            "or a name such as sm_90 or h200."
        ) from error
    except UnicodeDecodeError as error:
        raise UnknownTarget(f"The target file {path} is not UTF-8 text: save it as UTF-8.") from error
    except tomllib.TOMLDecodeError as error:
        raise UnknownTarget(f"The target file {path} is not valid TOML ({error}): fix that line.") from error
    base = data.pop("base", None)
    if not isinstance(base, str):
        raise UnknownTarget(f"The target file {path} lacks the key 'base': begin with a line such as base = \"sm_90\".")
    limits = _from_table(base.strip())
    if limits is None:
        raise UnknownTarget(f"The target file {path} has base = '{base}', which is unknown: {_unknown(base)}")
    data.setdefault("source", f"file {path}, over {limits.source}")
    try:
        where = f"The target file {path}"
        values = {key: check_field(key, value, where=where) for key, value in data.items()}
    except TunesmithError as error:
        raise UnknownTarget(str(error)) from error
    return dataclasses.replace(limits, **values)
