"""The resources that a compiled kernel takes of a device, read from its machine code, without a GPU.

Sources: NVIDIA's cubins say it in the section ``.nv.info`` as attributes (numbered as `cuobjdump -elf` of the CUDA
Toolkit names them) and in the size of ``.nv.shared.<kernel>``; AMD's assembly in its metadata ("Code Object V4/V5
Metadata" in LLVM's "User Guide for AMDGPU Backend").
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from tunesmith.kernels.build.machine_code import read_elf
from tunesmith.kernels.outcome import Resources

_FRAME_SIZE, _MIN_STACK_SIZE, _REGCOUNT = 0x11, 0x12, 0x2F
_SIZED = 4
"""The format of an attribute whose value has a length; the others hold two bytes."""
_RESERVED_SECTION, _RESERVED_BYTES = ".nv.shared.reserved.0", 1024
"""Where a cubin has this section, the driver's own shared memory counts as its kernels'; `DeviceLimits` has it too."""
_STATED = re.compile(r"^    (?:- )?(\.\w+):\s+(\d+)$", re.MULTILINE)
"""A number of a kernel's metadata; the metadata of its arguments is indented further."""
BYTES_OF_REGISTER = 4


def nvidia_resources(cubin: bytes, entry: str) -> Resources:
    """Of the kernel `entry`: registers of a thread, static shared memory of a block, and the stack of a thread with the
    functions it calls. What Triton's kernels hold in their own frame counts as spilled, as Triton counts it: they
    declare no arrays (a sine of a large number has one of 28 bytes). Raises `ValueError`, also for another's name."""
    sections, symbols = read_elf(cubin)
    found: dict[int, int] = {}
    for section in sections:
        if section.name == ".nv.info":
            for attribute, value in _attributes(cubin[section.start : section.start + section.size]):
                if len(value) == 8:
                    symbol, number = struct.unpack("<II", value)
                    if symbol < len(symbols) and symbols[symbol].name == entry:
                        found[attribute] = number
    if _REGCOUNT not in found:
        raise ValueError(f"the cubin says nothing of a kernel {entry}")
    sizes = {section.name: section.size for section in sections}
    reserved = _RESERVED_BYTES if _RESERVED_SECTION in sizes else 0
    return Resources(
        registers=found[_REGCOUNT],
        shared=max(0, sizes.get(f".nv.shared.{entry}", 0) - reserved),
        local=found.get(_MIN_STACK_SIZE, 0),
        spills=found.get(_FRAME_SIZE, 0),
    )


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Number and value of each attribute; those without a length have two bytes."""
    at = 0
    while at + 4 <= len(data):
        form, number, size = struct.unpack_from("<BBH", data, at)
        length = size if form == _SIZED else 0
        yield number, data[at + 4 : at + 4 + length]
        at += 4 + length


def amd_resources(assembly: str) -> Resources:
    """Of the kernel of an assembly text: vector registers of a lane, with the accumulation registers that share their
    file, LDS of a work-group that its code declares, and scratch memory of a lane; each store of a spilled register
    counts 4 bytes. Raises `ValueError` for a text without metadata of a kernel."""
    stated = dict(_STATED.findall(assembly.partition("amdhsa.kernels:")[2]))
    if ".vgpr_count" not in stated:
        raise ValueError("the assembly says nothing of a kernel")
    return Resources(
        registers=int(stated[".vgpr_count"]),
        shared=int(stated[".group_segment_fixed_size"]),
        local=int(stated[".private_segment_fixed_size"]),
        spills=int(stated[".vgpr_spill_count"]) * BYTES_OF_REGISTER,
    )
