"""The part of a source that runs on the device, as a compiler for the device alone (NVRTC) takes it.

Owns which parts of a file for nvcc are left out or marked, and which of CUDA's headers replace headers of the host.
Only functions and declarations at the level of the file are looked at; members of classes stay. `whole_source` puts
the headers of the author's own build in the place of their includes; CUDA's own stay includes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tunesmith.kernels.build.guard import HEADER_FOLDERS, HEADERS, STANDARD
from tunesmith.kernels.rewrite.source import Source, SourceError, text, walk

if TYPE_CHECKING:
    from tree_sitter import Node


_COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+([A-Za-z_]\w*)(.*)$", re.MULTILINE)
_DIRECTIVE = re.compile(r"^[ \t]*#[^\n]*", re.MULTILINE)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]+)[>"][^\n]*\n?', re.MULTILINE)
_STD = re.compile(r"(?<![\w:])(?:::)?std::(?=\w)")
_MARKS = frozenset({"__global__", "__device__"})
BUILT_IN = frozenset(
    {
        *("builtin_types.h", "cuda_runtime_api.h", "device_functions.h", "host_defines.h", "math_functions.h"),
        *("chrono", "cinttypes", "cstdio", "cstdlib", "ctime", "exception", "fstream", "iomanip", "iostream", "map"),
        *("memory", "random", "set", "sstream", "stdexcept", "string", "thread", "unordered_map", "vector"),
        *("inttypes.h", "stdio.h", "stdlib.h", "string.h", "time.h"),
    }
)
"""Headers of which device code uses nothing, or nothing that is not built into its compiler."""
_ASSERT = re.compile(r"\bassert\s*\(")
_DRIVER = re.compile(r"\bCU(?:DA_VERSION\b|[a-z])")
"""What `cuda.h` declares."""
_NAMES = {
    "cuda/std/cstdint": r"u?int(?:_fast|_least)?(?:8|16|32|64)_t|u?int(?:ptr|max)_t|U?INT(?:8|16|32|64)_(?:MAX|MIN)",
    "cuda/std/cfloat": r"(?:FLT|DBL)_[A-Z_\d]+",
    "cuda/std/climits": r"CHAR_BIT|[SU]?CHAR_(?:MAX|MIN)|U?(?:SHRT|INT|LONG|LLONG)_(?:MAX|MIN)",
    "cuda/std/cstddef": r"offsetof|std::(?:size_t|ptrdiff_t|nullptr_t)",
    "cuda/std/algorithm": r"std::(?:min|max|clamp)",
    "cuda/std/limits": r"std::numeric_limits",
    "cuda/std/type_traits": r"std::(?:is_\w+|enable_if\w*|conditional\w*|remove_\w+|decay\w*|integral_constant)",
    "cuda/std/utility": r"std::(?:swap|move|forward|pair|declval)",
    "cuda/std/cmath": r"std::(?:f?abs|exp2?|log(?:2|10|1p)?|sqrt|pow|(?:tan|sin|cos)h?|erf|floor|ceil|round|fmax|fmin"
    r"|isnan|isinf)",
}
"""By header the names that it declares, which nvcc knows without one."""
_MACROS = {
    "INFINITY": "__builtin_bit_cast(float, 0x7f800000)",
    "HUGE_VALF": "__builtin_bit_cast(float, 0x7f800000)",
    "NAN": "__builtin_bit_cast(float, 0x7fc00000)",
    "M_E": "2.7182818284590452354",
    "M_LOG2E": "1.4426950408889634074",
    "M_LOG10E": "0.43429448190325182765",
    "M_LN2": "0.69314718055994530942",
    "M_LN10": "2.30258509299404568402",
    "M_PI": "3.14159265358979323846",
    "M_PI_2": "1.57079632679489661923",
    "M_PI_4": "0.78539816339744830962",
    "M_1_PI": "0.31830988618379067154",
    "M_2_PI": "0.63661977236758134308",
    "M_2_SQRTPI": "1.12837916709551257390",
    "M_SQRT2": "1.41421356237309504880",
    "M_SQRT1_2": "0.70710678118654752440",
}
_TYPES = {"uchar": "unsigned char", "ushort": "unsigned short", "uint": "unsigned int", "ulong": "unsigned long"}
"""Names of C's headers that CUDA's have not, or only in one that takes seconds to compile."""
_NO_ASSERT = "#undef assert\n#define assert(condition) ((void)0)"


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """text: the code; notes: each difference from the source, in a sentence."""

    text: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Function:
    """A function of the host. whole: with what stands around it, such as `template <...>`; node: it alone."""

    name: str
    whole: Node
    node: Node


def device_code(code: str) -> DeviceCode:
    """`code` without what runs on the host, and with headers that there are for the device."""
    source = Source(code)
    macros: dict[str, str] = {}
    for name, replacement in _DEFINE.findall(re.sub(r"\\[ \t]*\n", " ", _COMMENTS.sub(" ", code))):
        # One that conditions define in several ways may be any of them.
        macros[name] = f"{macros.get(name, '')} {replacement}"
    marks = _MARKS | {name for name in macros if _MARKS & _expanded(macros[name], macros)}
    instances: list[Node] = []
    host, marked = list[_Function](), set[str]()
    for whole, node in _of_file(source.root):
        declarator = next((one for one in walk(node) if one.type == "function_declarator"), None)
        if declarator is None:
            continue
        if node.type == "template_instantiation":
            instances.append(whole)
            continue
        called = declarator.child_by_field_name("declarator")
        name = "" if called is None else text(called).split("<")[0].split("::")[-1].strip()
        body = node.child_by_field_name("body")
        inside = "" if body is None else text(body)
        head = _COMMENTS.sub(" ", text(whole).removesuffix(inside))
        # A function with a kernel in it is one whose end the parser has not found.
        if marks & set(re.findall(r"\w+", head)) or "__global__" in _COMMENTS.sub(" ", inside):
            marked.add(name)
        else:
            host.append(_Function(name, whole, node))
    used = _called(code, [one for one in host if one.name not in marked], macros)
    data = code.encode()
    edits = [(one.start_byte, _line_end(data, one), "") for one in instances]
    for one in host:
        if one.name in used:
            edits.append((one.node.start_byte, one.node.start_byte, "__device__ "))
        else:
            edits.append((one.whole.start_byte, _line_end(data, one.whole), ""))
    for start, end, new in sorted(edits, reverse=True):
        data = data[:start] + new.encode() + data[end:]
    made, replaced = _with_headers(data.decode())
    notes = [
        ("Left out, as it runs on the host: {}.", [one.name for one in host if one.name not in used]),
        ("Marked __device__, as code of the device calls it: {}.", [one.name for one in host if one.name in used]),
        ("Explicit instantiations left out: {}.", [_named(one) for one in instances]),
        ("Headers left out, or replaced by CUDA's own: {}.", replaced),
    ]
    said = [note.format(", ".join(dict.fromkeys(names))) for note, names in notes if names]
    if _NO_ASSERT in made:
        said.append("assert() does nothing in the draft: its texts would be kept on the device between launches.")
    return DeviceCode(made, tuple(said))


def _of_file(scope: Node) -> Iterator[tuple[Node, Node]]:
    """Functions, prototypes and instantiations at the level of the file or of a namespace: with `template <...>` and
    the like before it, and it alone."""
    for child in scope.children:
        node = child
        while node.type in ("template_declaration", "linkage_specification"):
            inner = [one for one in node.named_children if one.type in (*_DECLARING, "declaration_list")]
            if not inner:
                break
            node = inner[0]
        if node.type in ("function_definition", "declaration", "template_instantiation"):
            yield child, node
        elif node.type in ("namespace_definition", "declaration_list") or node.type.startswith("preproc_"):
            yield from _of_file(node)


_DECLARING = ("template_declaration", "linkage_specification", "function_definition", "declaration")


def _line_end(data: bytes, node: Node) -> int:
    """The end of the node, with that of its line where nothing follows."""
    found = re.compile(rb"[ \t]*\r?\n").match(data, node.end_byte)
    return node.end_byte if found is None else found.end()


def _named(instance: Node) -> str:
    return next((text(one) for one in walk(instance) if one.type == "template_function"), text(instance).rstrip(";"))


def _expanded(replacement: str, macros: dict[str, str]) -> set[str]:
    """The words of a replacement and of the macros that it names."""
    found, waiting = set[str](), set(re.findall(r"\w+", replacement))
    while waiting:
        word = waiting.pop()
        found.add(word)
        waiting |= set(re.findall(r"\w+", macros.get(word, ""))) - found
    return found


def _called(code: str, host: Sequence[_Function], macros: dict[str, str]) -> set[str]:
    """The names of those functions of the host that code of the device calls, as it may call a constexpr one."""
    data = bytearray(code.encode())
    for one in host:
        data[one.whole.start_byte : one.whole.end_byte] = b" " * (one.whole.end_byte - one.whole.start_byte)
    device = _DIRECTIVE.sub("", _COMMENTS.sub(" ", data.decode().replace("\\\n", " ")))
    bodies = {one.name: "" for one in host}
    for one in host:
        bodies[one.name] += _COMMENTS.sub(" ", text(one.node).partition("{")[2])
    found = set[str]()
    while True:
        words = _expanded(device, macros)
        reached = device + "".join(replacement for name, replacement in macros.items() if name in words)
        more = {
            name
            for name, body in bodies.items()
            if name not in found
            and "<<<" not in body
            and re.search(rf"\b{re.escape(name)}\s*(?:<[^;<>]*>\s*)?\(", reached)
        }
        if not more:
            return found
        found |= more
        device += "".join(bodies[name] for name in more)


def _with_headers(code: str) -> tuple[str, list[str]]:
    """The code with headers for the device, and the headers that they replace."""
    replaced, wanted = list[str](), list[str]()

    def put(match: re.Match[str]) -> str:
        name = match[1]
        kept = name == "cuda.h" and _DRIVER.search(code)
        if kept or name not in ("cuda.h", *BUILT_IN, *STANDARD):
            return match[0]
        if name in STANDARD and _STD.search(code):
            wanted.append(STANDARD[name])
        replaced.append(name)
        return ""

    made = _INCLUDE.sub(put, code)
    plain = _COMMENTS.sub(" ", made)
    own = {
        name
        for names in re.findall(r"\btypedef\b[^;{}]*?\b(\w+)\s*;|\busing\s+(\w+)\s*=|#[ \t]*define[ \t]+(\w+)", plain)
        for name in names
    }
    for header, pattern in _NAMES.items():
        if set(re.findall(rf"\b(?:{pattern})\b", plain)) - own and f"<{header}>" not in made:
            wanted.append(header)
    used = set(re.findall(r"\w+", plain)) - own
    head = [
        *(f"#include <{header}>" for header in dict.fromkeys(wanted)),
        *(f"#ifndef {name}\n#define {name} {value}\n#endif" for name, value in _MACROS.items() if name in used),
        *(f"typedef {kind} {name};" for name, kind in _TYPES.items() if name in used),
        *([_NO_ASSERT] if _ASSERT.search(plain) and "assert" not in own else []),
    ]
    return "\n".join([*head, _STD.sub("cuda::std::", made)]), replaced


_INCLUDE_headers = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>)[^\n]*$', re.MULTILINE)
_ONCE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once[^\n]*$", re.MULTILINE)
MAX_SOURCE_LENGTH = 1 << 20
"""Characters of a source with all of its headers, at most."""


def whole_source(code: str, where: Path, folders: Sequence[Path] = (), defines: Mapping[str, str] | None = None) -> str:
    """`code` with the headers that are found beside it, beside one another or in `folders`, each where it is first
    included, and with macros ahead of it. Raises `SourceError` where one is not found, or the text becomes too long."""
    seen: set[Path] = set()

    def found(name: str, among: Sequence[Path]) -> Path | None:
        return next((path for folder in among if (path := folder / name).is_file()), None)

    def filled(text: str, file: Path) -> str:
        def put(match: re.Match[str]) -> str:
            name, quoted = match[1] or match[2], match[1] is not None
            path = found(name, (file.parent, *folders) if quoted else folders)
            if path is None:
                known = name in HEADERS or name in STANDARD or name in BUILT_IN or name.startswith(HEADER_FOLDERS)
                if quoted and not known:
                    raise SourceError(f"{file}: its header {name} was not found; name the folder that has it with -I.")
                return match[0]
            path = path.resolve()
            if path in seen:
                return ""
            seen.add(path)
            try:
                inner = path.read_text(encoding="utf-8-sig")
            except OSError as error:
                raise SourceError(f"{file}: its header {path} cannot be read: {error.strerror}.") from error
            except UnicodeDecodeError as error:
                raise SourceError(f"{file}: its header {path} is not UTF-8 text: save it as UTF-8.") from error
            return filled(_ONCE.sub("", inner), path)

        made = _INCLUDE_headers.sub(put, text)
        if len(made) > MAX_SOURCE_LENGTH:
            raise SourceError(
                f"{where}: with its headers the source is longer than {MAX_SOURCE_LENGTH} characters; take less along."
            )
        return made

    lines = [f"#define {name} {value}".rstrip() for name, value in (defines or {}).items()]
    return "\n".join([*lines, filled(code, where)])
