"""Reads a cubin (an ELF file): which variables of it live in global memory and so outlast a launch.

Layouts are those of the System V ABI's ELF-64 (Elf64_Ehdr, Elf64_Shdr, Elf64_Sym). NVIDIA's compilers put variables
into sections by where they live: `.nv.global` and `.nv.global.init` are device memory that kernels can write,
`.nv.constant3` holds `__constant__` variables, which they cannot, `.nv.shared.*` dies with its block.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from dataclasses import dataclass

GLOBAL_SECTIONS = (".nv.global", ".nv.global.init")
HEAP = frozenset({"malloc", "free"})
"""Device functions whose memory outlasts a launch; the linker leaves them as undefined symbols."""
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMBOL_TABLE = 2
_SECTION_SYMBOL = 3
_PTX_NAME = re.compile(r"[A-Za-z_$%][A-Za-z0-9_$]*")
_DECLARED = re.compile(r"\.global\b[^;={}]*?([A-Za-z_$%][A-Za-z0-9_$]*)\s*(?=[\[=;])")
"""A variable in global memory; a pattern has a `<` behind its name."""
_SPECIAL_REGISTER = re.compile(
    r"%(?:globaltimer(?:_lo|_hi)?|clock(?:_hi|64)?|gridid|n?smid|n?warpid|pm\d+(?:_64)?|envreg\d+|current_graph_exec)\b"
)


class CubinError(ValueError):
    """The bytes are no little-endian 64-bit ELF file."""


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    kind: int
    offset: int
    size: int
    link: int


def global_variables(code: bytes) -> tuple[str, ...]:
    """Names of the variables of a cubin that kernels can write and find again in a later launch, sorted.

    A table declared `__device__ const`, a `static constexpr` array with addresses and the text of a printf are among
    them: the file does not tell them from variables, and a cast makes them such. Raises `CubinError`.
    """
    try:
        sections = _sections(code)
        found = {name for name, section, _ in _symbols(code, sections) if section in GLOBAL_SECTIONS}
        found |= {name for name, section, _ in _symbols(code, sections) if section == "" and name in HEAP}
    except (struct.error, IndexError, ValueError) as error:
        raise CubinError(f"this is no cubin that can be read: {error}") from error
    # A section with bytes and no names would be a way to hide a variable.
    if not found and any(section.name in GLOBAL_SECTIONS and section.size for section in sections):
        found.add("(unnamed)")
    return tuple(sorted(found))


def _sections(code: bytes) -> list[_Section]:
    (magic, _, _, _, _, _, table, _, _, _, _, size, count, names_at) = _HEADER.unpack_from(code)
    if magic[:6] != b"\x7fELF\x02\x01":
        raise ValueError("the ELF header is missing")
    raw = [_SECTION.unpack_from(code, table + index * size) for index in range(count)]
    names = raw[names_at][4]
    return [
        _Section(_text(code, names + name), kind, offset, length, link)
        for name, kind, _, _, offset, length, link, _, _, _ in raw
    ]


def _symbols(code: bytes, sections: list[_Section]) -> list[tuple[str, str, int]]:
    """Name, section ("" if undefined or special) and bytes of each symbol that is not a section's own."""
    found = []
    for table in sections:
        if table.kind != _SYMBOL_TABLE:
            continue
        names = sections[table.link].offset
        for at in range(table.offset, table.offset + table.size, _SYMBOL.size):
            name, info, _, index, _, size = _SYMBOL.unpack_from(code, at)
            if info & 0xF != _SECTION_SYMBOL:
                section = sections[index].name if 0 < index < len(sections) else ""
                found.append((_text(code, names + name), section, size))
    return found


def _text(code: bytes, at: int) -> str:
    return code[at : code.index(b"\0", at)].decode(errors="replace")


def used_variables(variables: tuple[str, ...], ptx: str) -> tuple[str, ...]:
    """Those of `variables` that the code uses. `ptx`: the assembly the cubin was made from.

    The compiler keeps constants that it has folded into the code. Such a name stands once in the assembly, where it is
    declared; one that does not stand there at all was renamed, and counts as used. So does one whose declaration is not
    found: PTX can declare a row of names by a pattern (PTX ISA, "Parameterized Variable Names").
    """
    counts = Counter(_PTX_NAME.findall(ptx))
    declared = set(_DECLARED.findall(ptx))
    return tuple(name for name in variables if counts[name] != 1 or name not in declared)


def special_registers(ptx: str) -> tuple[str, ...]:
    """The registers that `ptx` reads by which a kernel can tell one launch from another: clocks, timers, numbers of
    grids and multiprocessors (PTX ISA, "Special Registers")."""
    return tuple(sorted(set(_SPECIAL_REGISTER.findall(ptx))))
