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

Sources of AMD's GPUs, for which only Triton's kernels are compiled: "AMD GPU specifications" in the ROCm documentation
(compute units, wavefront, LDS, register file, memory, L2 of all chiplets together); LLVM's ``AMDGPUBaseInfo.cpp`` for
what the compiler counts with (waves and registers of a SIMD, their granules, threads of a work-group); HIP's runtime
for the grid. Triton compiles RDNA kernels for a pair of compute units (WGP mode), which is then the multiprocessor.
No bound of work-groups on one is given: LLVM's 16 (32) barriers bind only beyond the bound of waves.

Multiprocessors and L2 size of products are as the CUDA driver reports them. Memory is the nominal capacity; the
driver reports somewhat less, as it keeps a part for itself. ``None`` marks a number that is not established.

A user's TOML file::

    base = "sm_90"          # required: a capability or a product
    name = "half an H200"   # any field of `tunesmith.hw.limits.DeviceLimits` may follow, in bytes, Hz and bytes/s
    sm_count = 66
    shared_per_sm = 233_472
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import tomllib
from pathlib import Path
from typing import Final

from tunesmith.hw.errors import TunesmithError, named_path
from tunesmith.hw.limits import DeviceLimits, with_values

KIB: Final = 1024
MIB: Final = 1024**2
GIB: Final = 1024**3

# The same for every capability from 7.0 to 12.1, by both sources above.
WARP_SIZE: Final = 32
REGISTERS: Final = 65536
# The occupancy header tests against 256, but the instruction set has 255 (the guide's number) plus RZ,
# so no compiler ever reports 256.
MAX_REGISTERS_PER_THREAD: Final = 255
REGISTER_ALLOCATION_UNIT: Final = 256
SM_SUB_PARTITIONS: Final = 4


def shared_allocation_unit(major: int) -> int:
    """Bytes in which shared memory is allocated; source: ``cuda_occupancy.h``."""
    return 256 if major < 8 else 128


def arch_name(capability: str) -> str:
    """``9.0`` becomes ``sm_90``, the compiler's name."""
    return "sm_" + capability.replace(".", "")


def _capability(capability: str, blocks: int, warps: int, shared_kib: int, guide: str = "13") -> DeviceLimits:
    """Limits by the release `guide`. blocks, warps: of an SM; shared_kib: its shared memory."""
    major = int(capability.split(".")[0])
    reserved_kib = int(major >= 8)
    return DeviceLimits(
        name=f"compute capability {capability}",
        backend="cuda",
        kind="gpu",
        arch=arch_name(capability),
        max_threads_per_block=1024,
        max_block_dims=(1024, 1024, 64),
        max_grid_dims=(2**31 - 1, 65535, 65535),
        warp_size=WARP_SIZE,
        max_threads_per_sm=warps * WARP_SIZE,
        max_warps_per_sm=warps,
        max_blocks_per_sm=blocks,
        registers_per_sm=REGISTERS,
        registers_per_block=REGISTERS,
        max_registers_per_thread=MAX_REGISTERS_PER_THREAD,
        register_allocation_unit=REGISTER_ALLOCATION_UNIT,
        warp_allocation_granularity=SM_SUB_PARTITIONS,
        shared_per_sm=shared_kib * KIB,
        shared_per_block=48 * KIB,
        shared_per_block_optin=(shared_kib - reserved_kib) * KIB,
        shared_reserved_per_block=reserved_kib * KIB,
        shared_allocation_unit=shared_allocation_unit(major),
        source=f"table: CUDA C++ Programming Guide {guide}, Technical Specifications per Compute Capability",
    )


CAPABILITIES: Final[dict[str, DeviceLimits]] = {
    "7.0": _capability("7.0", 32, 64, 96, "12"),
    "7.2": _capability("7.2", 32, 64, 96, "12"),
    "7.5": _capability("7.5", 16, 32, 64),
    "8.0": _capability("8.0", 32, 64, 164),
    "8.6": _capability("8.6", 16, 48, 100),
    "8.7": _capability("8.7", 16, 48, 164),
    "8.9": _capability("8.9", 24, 48, 100),
    "9.0": _capability("9.0", 32, 64, 228),
    "10.0": _capability("10.0", 32, 64, 228),
    "10.3": _capability("10.3", 32, 64, 228),
    "11.0": _capability("11.0", 24, 48, 228),
    "12.0": _capability("12.0", 24, 48, 100),
    "12.1": _capability("12.1", 24, 48, 100),
}
"""Limits by compute capability; fields of a product stay None."""


def _product(capability: str, name: str, sm_count: int, l2_bytes: int | None, memory_gib: int) -> DeviceLimits:
    base = CAPABILITIES[capability]
    return dataclasses.replace(
        base,
        name=name,
        sm_count=sm_count,
        l2_bytes=l2_bytes,
        memory_bytes=memory_gib * GIB,
        source=f"{base.source}; product {name}",
    )


PRODUCTS: Final[dict[str, DeviceLimits]] = {
    "v100": _product("7.0", "Tesla V100-SXM2", 80, 6 * MIB, 32),
    "t4": _product("7.5", "Tesla T4", 40, 4 * MIB, 16),
    "a100": _product("8.0", "NVIDIA A100-SXM4-80GB", 108, 40 * MIB, 80),
    "a100-40gb": _product("8.0", "NVIDIA A100-SXM4-40GB", 108, 40 * MIB, 40),
    "a10": _product("8.6", "NVIDIA A10", 72, 6 * MIB, 24),
    "a40": _product("8.6", "NVIDIA A40", 84, 6 * MIB, 48),
    "rtx3090": _product("8.6", "NVIDIA GeForce RTX 3090", 82, 6 * MIB, 24),
    "l4": _product("8.9", "NVIDIA L4", 58, 48 * MIB, 24),
    "l40s": _product("8.9", "NVIDIA L40S", 142, 96 * MIB, 48),
    "rtx4090": _product("8.9", "NVIDIA GeForce RTX 4090", 128, 72 * MIB, 24),
    "h100": _product("9.0", "NVIDIA H100 80GB HBM3", 132, 50 * MIB, 80),
    "h100-pcie": _product("9.0", "NVIDIA H100 PCIe", 114, 50 * MIB, 80),
    "h200": _product("9.0", "NVIDIA H200", 132, 60 * MIB, 140),
    "b200": _product("10.0", "NVIDIA B200", 148, 132_644_864, 180),
    "b300": _product("10.3", "NVIDIA B300", 148, None, 270),
    "thor": _product("11.0", "NVIDIA Thor", 20, 32 * MIB, 128),
    "rtx5090": _product("12.0", "NVIDIA GeForce RTX 5090", 170, 96 * MIB, 32),
    "gb10": _product("12.1", "NVIDIA GB10", 48, 24 * MIB, 128),
}
"""By the name on the command line."""


def _amd(
    arch: str, generation: str, wave: int, waves: int, registers: int, unit: int, most: int, lds: int
) -> DeviceLimits:
    """wave: threads; waves, registers: of a SIMD, registers as a lane of it counts them; unit: that they are handed out
    in; most: of a thread; lds: KiB of the SIMDs that a work-group runs on, of which there are four."""
    return DeviceLimits(
        name=f"{arch} ({generation})",
        backend="triton",
        kind="gpu",
        arch=arch,
        max_threads_per_block=1024,
        max_block_dims=(1024, 1024, 1024),
        max_grid_dims=(2**31 - 1, 65535, 65535),
        warp_size=wave,
        max_threads_per_sm=4 * waves * wave,
        max_warps_per_sm=4 * waves,
        registers_per_sm=4 * registers * wave,
        registers_per_block=4 * registers * wave,
        max_registers_per_thread=most,
        register_allocation_unit=unit * wave,
        warp_allocation_granularity=4,
        shared_per_sm=lds * KIB,
        shared_per_block=64 * KIB,
        shared_per_block_optin=64 * KIB,
        shared_allocation_unit=512,
        source="table: AMD GPU specifications (ROCm documentation), and LLVM's AMDGPUBaseInfo.cpp",
    )


_GFX942: Final = _amd("gfx942", "CDNA 3", wave=64, waves=8, registers=512, unit=8, most=512, lds=64)
AMD: Final[dict[str, DeviceLimits]] = {
    "gfx942": _GFX942,
    "gfx1100": _amd("gfx1100", "RDNA 3", wave=32, waves=16, registers=1536, unit=24, most=256, lds=128),
    "mi300x": dataclasses.replace(
        _GFX942, name="AMD Instinct MI300X", sm_count=304, l2_bytes=32 * MIB, memory_bytes=192 * GIB
    ),
}
"""Architectures and products by the name on the command line."""

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
_VENDOR_WORDS: Final = re.compile(r"nvidia|geforce|tesla|amd|instinct|[\s_-]")


def resolve_target(text: str) -> DeviceLimits:
    """Return the limits that `text` names: ``sm_90``, ``9.0``, ``sm_90a``, ``h200``, ``gfx942``, or ``some/gpu.toml``.

    Case, spaces, hyphens and the words NVIDIA, GeForce, Tesla, AMD and Instinct do not matter in a product's name.
    Raises TunesmithError, listing near matches, or naming the mistake in the file.
    """
    wanted = text.strip()
    if wanted.lower().endswith(".toml") or "/" in wanted or "\\" in wanted:
        return _from_file(named_path("--target", wanted))
    found = _from_table(wanted)
    if found is None:
        raise TunesmithError(_unknown(wanted))
    return found


def _from_table(text: str) -> DeviceLimits | None:
    match = _ARCH.fullmatch(text)
    if match is None:
        # The name that the driver prints is as good as ours: both find the row.
        named = PRODUCTS | AMD
        rows = {_squeeze(limits.name): limits for limits in named.values()}
        rows |= {_squeeze(key): limits for key, limits in named.items()}
        return rows.get(_squeeze(text))
    limits, suffix = CAPABILITIES.get(f"{match['major']}.{match['minor']}"), match["suffix"].lower()
    if limits is None or int(match["major"]) < _FIRST_MAJOR_WITH_SUFFIX[suffix]:
        return None
    return dataclasses.replace(limits, arch=limits.arch + suffix)


def _squeeze(text: str) -> str:
    return _VENDOR_WORDS.sub("", text.lower())


def _unknown(text: str) -> str:
    architectures = [arch_name(capability) for capability in CAPABILITIES]
    if _ARCH.fullmatch(text):
        return f"No target is called '{text}': the architectures known are {', '.join(architectures)}."
    if _OTHERS.match(text):
        return (
            f"No target is called '{text}': targets are NVIDIA GPUs, such as h200, and for kernels in Triton "
            f"{', '.join(AMD)}; any other device of another vendor is tuned on where it is, through OpenCL."
        )
    known = [*architectures, *PRODUCTS, *AMD]
    near = difflib.get_close_matches(text.lower(), known, n=4, cutoff=0.5)
    if near and any(letter.isalnum() for letter in text):
        return f"No target is called '{text}': did you mean {' or '.join(near)}?"
    return f"No target is called '{text}': name one of {', '.join(known)}, or the path of a TOML file."


def _from_file(path: Path) -> DeviceLimits:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise TunesmithError(
            f"The target file {path} cannot be read ({error.strerror}): give the path of a TOML file, "
            "or a name such as sm_90 or h200."
        ) from error
    except UnicodeDecodeError as error:
        raise TunesmithError(f"The target file {path} is not UTF-8 text: save it as UTF-8.") from error
    except tomllib.TOMLDecodeError as error:
        raise TunesmithError(f"The target file {path} is not valid TOML ({error}): fix that line.") from error
    base = data.pop("base", None)
    if not isinstance(base, str):
        raise TunesmithError(
            f"The target file {path} lacks the key 'base': begin with a line such as base = \"sm_90\"."
        )
    limits = _from_table(base.strip())
    if limits is None:
        raise TunesmithError(f"The target file {path} has base = '{base}', which is unknown: {_unknown(base)}")
    return with_values(limits, {"source": f"file {path}, over {limits.source}"} | data, f"The target file {path}")
