"""What a compiled kernel takes of a device, read from its machine code; needs neither a GPU nor a process of its own.

Sources: NVIDIA's cubins say it in the section ``.nv.info`` as attributes (numbered as `cuobjdump -elf` of the CUDA
Toolkit names them) and in the size of ``.nv.shared.<kernel>``; AMD's code objects in a note of metadata ("Code Object
V4/V5 Metadata" in LLVM's "User Guide for AMDGPU Backend"), which is MessagePack (its specification has the formats).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from tunesmith.kernels.build.machine_code import read_elf
from tunesmith.kernels.outcome import Resources

_FRAME_SIZE, _MIN_STACK_SIZE, _REGCOUNT = 0x11, 0x12, 0x2F
_SIZED = 4
"""The format of an attribute whose value has a length; the others hold two bytes."""
_RESERVED_SECTION, _RESERVED_BYTES = ".nv.shared.reserved.0", 1024
"""Where a cubin has this section, the driver's own shared memory counts as its kernels'; `DeviceLimits` has it too."""
_NOTE, _METADATA = 7, 32
"""The type of a section of notes, and of the note with AMD's metadata."""
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


def amd_resources(code: bytes, entry: str) -> Resources:
    """Of the kernel `entry` of a code object (hsaco): vector registers of a lane, with the accumulation registers that
    share their file, LDS of a work-group that its code declares, and scratch memory of a lane; each store of a spilled
    register counts 4 bytes. Raises `ValueError`, also for another's name."""
    kernel = amd_metadata(code, entry)
    return Resources(
        registers=kernel[".vgpr_count"],
        shared=kernel[".group_segment_fixed_size"],
        local=kernel[".private_segment_fixed_size"],
        spills=kernel[".vgpr_spill_count"] * BYTES_OF_REGISTER,
    )


def amd_metadata(code: bytes, entry: str) -> dict[str, Any]:
    """All that a code object says of the kernel `entry`, by LLVM's names: ".agpr_count", ".sgpr_count" and others.
    Raises `ValueError`."""
    for section in read_elf(code)[0]:
        if section.kind == _NOTE:
            for kind, text in _notes(code[section.start : section.start + section.size]):
                kernels = _unpacked(text, 0)[0]["amdhsa.kernels"] if kind == _METADATA else ()
                for kernel in kernels:
                    if kernel[".name"] == entry:
                        return dict(kernel)
    raise ValueError(f"the code object says nothing of a kernel {entry}")


def _notes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and contents of each note; names and contents begin at multiples of four bytes."""
    at = 0
    while at + 12 <= len(data):
        name, size, kind = struct.unpack_from("<III", data, at)
        start = at + 12 + (name + 3) // 4 * 4
        yield kind, data[start : start + size]
        at = start + (size + 3) // 4 * 4


_NUMBERS = dict(zip(range(0xCA, 0xD4), "fdBHIQbhiq", strict=True))
"""By the first byte: how `struct` calls the number behind it."""
_LENGTHS = {0xD9: "B", 0xDA: "H", 0xDB: "I", 0xDC: "H", 0xDD: "I", 0xDE: "H", 0xDF: "I"}
"""By the first byte of a text, an array or a map: its length's number."""


def _unpacked(data: bytes, at: int) -> tuple[Any, int]:
    """The MessagePack value at `at`, and where it ends; metadata has no binary data and no extensions."""
    try:
        first, at = data[at], at + 1
        if first < 0x80 or first >= 0xE0:
            return first - (0x100 if first >= 0xE0 else 0), at
        if first in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[first], at
        if (form := _NUMBERS.get(first) or _LENGTHS.get(first)) is not None:
            [number] = struct.unpack_from(f">{form}", data, at)
            at += struct.calcsize(form)
            if first in _NUMBERS:
                return number, at
        else:
            number = first & (0x1F if 0xA0 <= first < 0xC0 else 0x0F)
    except (IndexError, struct.error) as error:
        raise ValueError(f"the metadata ends early: {error}") from error
    if 0xA0 <= first < 0xC0 or first in (0xD9, 0xDA, 0xDB):
        return data[at : at + number].decode(errors="replace"), at + number
    if not (first < 0xA0 or first >= 0xDC):
        raise ValueError(f"the metadata has a value of the unknown kind {first:#x}")
    is_map = first < 0x90 or first >= 0xDE
    values = []
    for _ in range(number * (2 if is_map else 1)):
        value, at = _unpacked(data, at)
        values.append(value)
    return dict(zip(values[::2], values[1::2], strict=True)) if is_map else values, at
