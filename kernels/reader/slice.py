"""The part of a source that a kernel uses, as a source of its own.

Owns which declarations and macros that is: all that the kernel names, and what these name in turn, across the file and
the headers of its author, in the order in which a compiler meets them. The rest of the file plays no part.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any

from tunesmith.kernels.build.guard import HEADER_FOLDERS, HEADERS
from tunesmith.kernels.reader.parse import (
    BUILTINS,
    FUNCTIONS,
    MAX_SECONDS,
    UNKNOWN_NAMES,
    Entry,
    SourceError,
    Unit,
    Unknown,
    built_in,
    closed,
    doubt,
    kind,
    library,
    shortened,
    walk,
    within,
)

_WORD = re.compile(r"[A-Za-z_]\w*")
_STD = re.compile(r"(?<![\w:])(?:::)?std::(?=\w)")
_RENAMED = {"Sum": "cuda::std::plus<>", "Max": "cuda::maximum<>", "Min": "cuda::minimum<>"}
"""Operators of CUB that CCCL 3 has elsewhere."""
_DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(?:if|elif|ifdef|ifndef)\b(.*)$", re.MULTILINE)
_PLAIN = {"cuda_runtime.h", "device_launch_parameters.h", "vector_types.h", "vector_functions.h"}
"""Headers whose declarations are there without them."""
_PRINT = re.compile(r'\bprintf\s*\((?:[^;"]|"(?:\\.|[^"\\])*")*\)\s*;')
_NAMESPACES = frozenset({"cub", "cuda", "nvcuda", "cooperative_groups"})
"""Declarations of accepted headers that are not built in."""
_HERE = "stub"
"""The section of the builtins that no header of CUDA's has, so that it goes into the source."""


@dataclass(frozen=True, slots=True)
class Slice:
    """text: the source; unknown: undeclared names in it; types: the names in it of the types that the
    task chooses; doubts: lines that clang does not understand, with its reasons; undefined: names of variables and
    functions of the device that it declares only."""

    text: str
    unknown: tuple[Unknown, ...]
    types: tuple[str, ...]
    doubts: tuple[str, ...] = ()
    undefined: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Declared:
    """A declaration at the level of files and namespaces, as a part of its file."""

    file: str
    start: int
    end: int
    cursor: Any
    scope: tuple[str, ...]


class _Reached:
    """The parts of a source that a kernel uses: declarations, macros, and sections of the builtins."""

    def __init__(self, unit: Unit, entry: Entry) -> None:
        self.unit, self.entry = unit, entry
        self.kept: dict[tuple[str, int], _Declared] = {}
        self.macros: dict[str, list[Any]] = {}
        self.sections: set[str] = set()
        self.prints = False
        self.undefined: dict[str, None] = {}
        self.builtin: dict[str, str] = {}
        self._places: dict[str, list[_Declared]] = {}
        self._named: dict[str, list[_Declared]] = {}
        for cursor in unit.declarations():
            file = cursor.extent.start.file.name
            one = _Declared(file, cursor.extent.start.offset, cursor.extent.end.offset, cursor, unit.scope(cursor))
            self._places.setdefault(file, []).append(one)
            if kind(cursor) in FUNCTIONS:
                self._named.setdefault(cursor.get_usr(), []).append(one)
        for of_file in self._places.values():
            of_file.sort(key=lambda one: (one.start, -one.end))
        self._seen: set[int] = set()
        self._special: list[Any] = []
        self._deadline = time.process_time() + MAX_SECONDS
        self.add(entry.declared)
        bound = {*entry.values, *entry.types, *(one.spelling for one in entry.function.get_arguments())}
        head = set(_WORD.findall(unit.written(entry.declared).partition("{")[0])) - bound
        for cursor in unit.declarations():
            # Attributes name constants that are in no tree.
            if kind(cursor) == "VAR_DECL" and cursor.spelling in head:
                self.add(cursor)
        self._follow(entry.function)
        while ready := [one for one in self._special if self._is_needed(one)]:
            self._special = [one for one in self._special if one not in ready]
            for one in ready:
                self.add(one)
        self._add_macros()

    def add(self, cursor: Any) -> None:
        """Keeps what declares `cursor`, and what that uses."""
        if cursor is None or cursor.location.file is None or kind(cursor) == "NAMESPACE":
            return
        if not self.unit.own(cursor):
            if cursor.location.file.name != UNKNOWN_NAMES:
                self._builtin(cursor)
            return
        found = self._at(cursor.location.file.name, cursor.location.offset)
        if found is not None and (found.file, found.start) not in self.kept:
            self.kept[found.file, found.start] = found
            for inner in self._places[found.file]:
                if found.start <= inner.start and inner.end <= found.end:
                    self._follow(inner.cursor)
            for other in self._named.get(found.cursor.get_usr(), ()):
                self.add(other.cursor)
            if kind(found.cursor) == "FUNCTION_TEMPLATE" or kind(found.cursor) == "CLASS_TEMPLATE":
                self._specialised(found.cursor)
            self.add(library().clang_getSpecializedCursorTemplate(found.cursor))
        if kind(cursor) in FUNCTIONS and found is not None and cursor != found.cursor:
            # The instance of a template names more than the template itself.
            self._follow(cursor)

    def _specialised(self, template: Any) -> None:
        for one in self.unit.declarations():
            general = library().clang_getSpecializedCursorTemplate(one)
            if general is not None and general.canonical == template.canonical:
                self._special.append(one)

    def _is_needed(self, specialisation: Any) -> bool:
        """Whether all types of the author that a specialisation is for are used."""
        named = [one.referenced for one in specialisation.get_children() if kind(one) == "TYPE_REF"]
        own = [one.location for one in named if self.unit.own(one) and not kind(one).startswith("TEMPLATE_")]
        return all(self.keeps(one.file.name, one.offset) for one in own)

    def _at(self, file: str, offset: int) -> _Declared | None:
        of_file = self._places.get(file, [])
        at = bisect_right(of_file, offset, key=attrgetter("start"))
        around = [one for one in of_file[max(0, at - 8) : at] if one.start <= offset < one.end]
        return max(around, key=lambda one: one.end - one.start, default=None)

    def _follow(self, cursor: Any) -> None:
        if cursor.hash in self._seen:
            return
        self._seen.add(cursor.hash)
        if time.process_time() > self._deadline:
            why = f"what the kernel uses takes more than {MAX_SECONDS:.0f} s to follow"
            raise SourceError(f"{self.unit.where}: {why}: move the kernel and its functions into a file of their own.")
        for one in walk(cursor):
            for overload in _overloads(one):
                # An operator in a template may belong to any class, and a call with an undeclared name may be another;
                # the instance tells.
                unknown = any(within(overload, one.file, one.offset) for one in self.unit.unknown.values())
                if self.unit.own(overload) and not unknown and not one.spelling.startswith("operator"):
                    self.add(overload)
            target = one.referenced
            self.prints |= one.spelling == "printf"
            if target is not None and target != one:
                self.unit.notes(one, target)
                self.add(target)
                definition = target.get_definition()
                if definition is not None and definition != target:
                    self.add(definition)
                made = definition or library().clang_getSpecializedCursorTemplate(target) or _table(target)
                if not made and self.unit.own(target):
                    of_device = {"CUDADEVICE_ATTR", "CUDACONSTANT_ATTR"} & {*map(kind, target.get_children())}
                    self.undefined |= {target.spelling: None} if of_device else {}

    def _builtin(self, cursor: Any) -> None:
        section, name = self._section(cursor.location.line), cursor.spelling
        if section == _HERE and kind(cursor) == "TYPEDEF_DECL":
            self.builtin[name] = f"typedef {cursor.underlying_typedef_type.spelling} {name};"
        elif section == _HERE and kind(cursor) == "MACRO_DEFINITION":
            self.builtin[name] = f"#undef {name}\n{self._builtins[cursor.location.line - 1]}"
        elif section:
            self.sections.add(section)

    @cached_property
    def _builtins(self) -> list[str]:
        """The lines of the declarations that are built in."""
        return BUILTINS[self.unit.language].read_text(encoding="utf-8").splitlines()

    @cached_property
    def _headers(self) -> list[tuple[int, str]]:
        return [(at, line[4:-1]) for at, line in enumerate(self._builtins, 1) if re.fullmatch(r"// <[^<>]+>", line)]

    @cached_property
    def aliases(self) -> dict[str, str]:
        """By names that namespace std has from outside of it, of which clang keeps no trace: the headers."""
        named = ((at, re.findall(r"using ::(\w+);", one)) for at, one in enumerate(self._builtins, 1))
        return {name: self._section(at) for at, names in named for name in names}

    def _section(self, line: int) -> str:
        """The header that declares what stands in this line of the builtins."""
        at = bisect_right(self._headers, (line, "~"))
        return self._headers[at - 1][1] if at and self.unit.language == "cuda" else ""

    def _add_macros(self) -> None:
        """The macros in all that is kept, and the declarations that their expansions need are in the tree already."""
        macros = built_in(self.unit.language).macros
        defined = {name: [one] for name, one in macros.items() if one.location.file is not None}
        used: list[str] = []
        for one in self.unit.top:
            if kind(one) == "MACRO_DEFINITION":
                defined.setdefault(one.spelling, []).append(one)
            elif (
                kind(one) == "MACRO_INSTANTIATION"
                and self.unit.own(one)
                and self.keeps(one.location.file.name, one.location.offset)
            ):
                # With macros in its arguments, which do not have cursors of their own.
                used += [one.spelling, *_WORD.findall(self.unit.written(one))]
        for kept in self.kept.values():
            for directive in _DIRECTIVE.findall(self.text(kept)):
                used += _WORD.findall(directive)
        for bound in (*self.entry.values.values(), *(one or "" for one in self.entry.types.values())):
            used += _WORD.findall(bound)
        texts = [self.text(kept) for kept in self.kept.values()]
        while used or (used := self._pasted(texts, defined)):
            name = used.pop()
            if name in self.unit.defines and name not in self.builtin:
                self.builtin[name] = f"#define {name} {self.unit.defines[name]}".rstrip()
                used += _WORD.findall(self.unit.defines[name])
            if name in self.macros or name in self.unit.defines or name not in defined:
                continue
            own = [one for one in defined[name] if self.unit.own(one)]
            self.macros[name] = own
            for text in map(self.unit.written, own):
                texts.append(text)
                used += _WORD.findall(text)
                for pasted in re.findall(r"(\w+)\s*##", text):
                    used += [other for other in defined if other.startswith(pasted)]
            if not own:
                self._builtin(defined[name][-1])

    def _pasted(self, texts: list[str], defined: Mapping[str, Any]) -> list[str]:
        """Macros that are not there yet, whose names `##` may put together of two words in all that is kept."""
        ends = {end for text in texts for end in re.findall(r"##\s*(\w+)", text)}
        words = {word for text in texts for word in re.findall(r"\w+", text)} if ends else set()
        new = [name for name in defined if name not in self.macros and name not in self.unit.defines]
        splits = ((name, name[:at], name[at:]) for name in new for at in range(1, len(name)))
        return [name for name, begin, end in splits if begin in words and end in ends]

    def keeps(self, file: str, offset: int) -> bool:
        """Whether a place is in a kept part."""
        at = self._at(file, offset)
        return at is not None and (at.file, at.start) in self.kept

    def text(self, one: _Declared) -> str:
        return _balanced(self.unit.text(one.file)[one.start : one.end].decode(errors="replace"))


def _table(variable: Any) -> bool:
    """Whether it is constant memory of a known size."""
    return "CUDACONSTANT_ATTR" in map(kind, variable.get_children()) and variable.type.get_size() > 0


def _overloads(cursor: Any) -> Iterator[Any]:
    """The declarations that a name in a template, or in a `using`, stands for."""
    for one in (cursor, *(cursor.get_children() if kind(cursor) == "USING_DECLARATION" else ())):
        if kind(one) == "OVERLOADED_DECL_REF":
            for at in range(library().clang_getNumOverloadedDecls(one)):
                yield library().clang_getOverloadedDecl(one, at)


def _balanced(text: str) -> str:
    """A declaration without the ends of conditions that begin before it, and what they leave out."""
    kept, depth, left_out = list[str](), 0, False
    for line in text.splitlines():
        word = re.match(r"[ \t]*#[ \t]*(if|el|endif)", line)
        if word is not None and not depth and word[1] != "if":
            left_out = word[1] == "el"
            continue
        if not left_out:
            kept.append(line)
        depth += {"if": 1, "endif": -1}.get(word[1], 0) if word is not None else 0
    return "\n".join([*kept, *["#endif"] * depth])


def sliced(unit: Unit, entry: Entry) -> Slice:
    """The source of a kernel alone. In CUDA the kernel is `extern "C"` and no template any more."""
    reached = _Reached(unit, entry)
    place = _order(unit)
    kernel = reached._at(entry.declared.location.file.name, entry.declared.location.offset)
    assert kernel is not None
    pieces: list[tuple[tuple[int, ...], str]] = []
    other = " ".join(reached.text(one) for one in reached.kept.values() if one is not kernel)
    types = {name: _free(name, other) for name, bound in entry.types.items() if bound is None}
    ends: dict[str, int] = {}
    for one in sorted(reached.kept.values(), key=lambda one: (one.file, one.start, -one.end)):
        if one is kernel or (one.start < ends.get(one.file, 0) and one.end <= ends[one.file]):
            continue
        ends[one.file] = one.end
        if kind(one.cursor) in FUNCTIONS and _general(one.cursor) == _general(entry.declared):
            continue
        pieces.append((place(one.file, one.start), unit.scoped(_declaration(reached, one), one.scope)))
    for definitions in reached.macros.values():
        for at, macro in enumerate(definitions):
            again = f"#undef {macro.spelling}\n" if at else ""
            where = place(macro.location.file.name, macro.location.offset)
            pieces.append((where, f"{again}#define {unit.written(macro)}"))
    pieces += [(place(file, start), text) for file, start, text in _usings(reached)]
    pieces.append((place(kernel.file, kernel.start), _kernel(reached, kernel, types)))
    body = "\n\n".join(text for _, text in sorted(pieces, key=lambda one: one[0]))
    body = re.sub(r"(?m)^(#define [^\n]*)\n\n(?=#define )", r"\1\n", body)
    # What the preprocessor leaves out prints nothing.
    body = body if reached.prints else _PRINT.sub(";", body)
    unknown = [one for one in unit.unknown.values() if reached.keeps(one.file, one.offset)]
    doubts = [doubt(one) for one in unit.faults(reached.keeps)]
    in_std = set(re.findall(r"\bstd::(\w+)", body)) if unit.language == "cuda" else set()
    headers = sorted(reached.sections | {header for name, header in reached.aliases.items() if name in in_std})
    if unknown and unit.language == "cuda":
        accepted = [one for one in unit.missing if one in HEADERS - _PLAIN or one.startswith(HEADER_FOLDERS)]
        headers += [one for one in accepted if one not in headers]
        unknown = [one for one in unknown if not accepted or one.name not in _NAMESPACES]
    head = [*(f"#include <{one}>" for one in headers), *reached.builtin.values()]
    if unit.language == "opencl" and re.search(r"\bhalf\d*\b", body):
        head.insert(0, "#pragma OPENCL EXTENSION cl_khr_fp16 : enable")
    if unit.language == "cuda":
        # A namespace of the author's may be called cuda.
        named = any("cuda" in one.scope for one in reached.kept.values())
        body = _STD.sub("::cuda::std::" if named else "cuda::std::", body)
        for old, new in _RENAMED.items():
            body = re.sub(rf"\bcub::{old}\b", new, body)
        # GCC's spelling, which nvcc knows and NVRTC does not.
        body = re.sub(r"\b__(asm|volatile)__\b", r"\1", body)
        # A word of C++ 14, and what only compilers for other processors mind.
        body = re.sub(r"\bregister\s+(?=\w)|(?m:^[ \t]*#[ \t]*pragma[ \t]+(?:acc|omp)\b.*$)", "", body)
    text = "\n".join([*head, *([""] if head else []), body, ""])
    return Slice(text, tuple(unknown), tuple(types.values()), tuple(doubts), tuple(reached.undefined))


def _order(unit: Unit) -> Callable[[str, int], tuple[int, ...]]:
    """Where a place of a file comes in the text that a compiler sees."""
    above: dict[str, tuple[str, int]] = {}
    ahead = [str(one) for one in unit.ahead]
    for one in unit.tree.get_includes():
        if one.source is not None:
            above.setdefault(one.include.name, (one.source.name, one.location.offset))

    def place(file: str, offset: int) -> tuple[int, ...]:
        found, seen = [offset], {file}
        while file != unit.where and file in above and above[file][0] not in seen:
            file, offset = above[file]
            seen.add(file)
            found.insert(0, offset)
        # What is read ahead of the source comes before it, in its order.
        return ahead.index(file) - len(ahead) if file in ahead else 0, *found

    return place


def _free(name: str, elsewhere: str) -> str:
    while re.search(rf"\b{name}\b", elsewhere):
        name += "_"
    return name


def _general(function: Any) -> str:
    """Of a template and its specialisations the same."""
    general = library().clang_getSpecializedCursorTemplate(function)
    usr: str = (function if general is None else general).get_usr()
    return usr


def _declaration(reached: _Reached, one: _Declared) -> str:
    text = reached.text(one)
    data = reached.unit.text(one.file)
    if kind(one.cursor) not in FUNCTIONS or not text.rstrip().endswith("}"):
        # The rest of a declaration of several variables, and its end.
        rest = re.compile(rb"(?:[^;{}]|\{[^{}]*\})*;").match(data, one.end)
        text += rest[0].decode(errors="replace") if rest is not None and not text.rstrip().endswith((";",)) else ""
    if reached.unit.language == "cuda":
        attributes, type_ = {kind(at) for at in one.cursor.get_children()}, one.cursor.type.get_canonical()
        number = type_.kind.name in ("FLOAT", "DOUBLE") and type_.is_const_qualified()
        if kind(one.cursor) in FUNCTIONS and not {"CUDADEVICE_ATTR", "CUDAGLOBAL_ATTR"} & attributes:
            at = _after_template(text)
            text = f"{text[:at]}__device__ {text[at:]}"
        elif kind(one.cursor) == "VAR_DECL" and one.cursor.get_definition() is None and _table(one.cursor):
            text = re.sub(r"\bextern\b\s*", "", text)
        elif kind(one.cursor) == "VAR_DECL" and number and "constexpr" not in text and "__" not in text:
            text = f"constexpr {text}"
    return text


def _after_template(text: str) -> int:
    """Where a declaration begins behind its `template <...>`."""
    at = 0
    while (found := re.compile(r"\s*template\s*<").match(text, at)) is not None:
        at = closed(text, found.end() - 1)
    return at + len(text[at:]) - len(text[at:].lstrip())


def _kernel(reached: _Reached, kernel: _Declared, types: dict[str, str]) -> str:
    text, entry = reached.text(kernel), reached.entry
    if reached.unit.language == "opencl":
        return text
    text = text[_after_template(text) :]
    head, brace, inside = text.partition("{")
    head = re.sub(r"\b(?:static|inline)\b\s*|\bextern\s*\"C\"\s*", "", head)
    head = re.sub(rf"\b({entry.name})\s*<[^()]*>(?=\s*\()", r"\1", head)
    within = re.search(rf"((?:\w+\s*::\s*)+)(?={entry.name}\s*\()", head)
    head = head.replace(within[1], "") if within is not None else head
    apart = "\n" if head.startswith("#") else " "
    text = f'extern "C"{apart}{head}{brace}{inside}'
    if own := next((one.scope for one in reached.kept.values() if "cuda" in one.scope), None):
        # Beside the compiler's namespace of the same name, which the author's headers do not meet.
        text = re.sub(r"(?<![\w:])cuda::(?!std\b)", "::".join([*own[: own.index("cuda") + 1], ""]), text)
    named = [one for one in (*kernel.scope, *re.findall(r"\w+", within[1] if within is not None else "")) if one]
    scopes = ["::".join(named[: at + 1]) for at in range(len(named))]
    before = [f"namespace {one} {{}}\nusing namespace {one};" for one in scopes]
    for parameter in entry.declared.get_children():
        name = parameter.spelling
        if name in entry.values and entry.values[name] != name:
            before.append(f"constexpr {parameter.type.spelling} {name} = {entry.values[name]};")
        elif entry.types.get(name):
            before.append(f"using {name} = {entry.types[name]};")
        elif name in types and types[name] != name:
            text = re.sub(rf"\b{name}\b", types[name], text)
    return "\n".join([*before, text])


def _usings(reached: _Reached) -> Iterator[tuple[str, int, str]]:
    """The `using` directives of namespaces that stay, and declarations of names that stay of other namespaces."""
    unit = reached.unit
    own = {"::".join(one.scope[: at + 1]) for one in reached.kept.values() for at in range(len(one.scope))}
    used = {"cooperative_groups"} if any("cooperative" in one for one in reached.sections) else set()
    used |= {"nvcuda", "nvcuda::wmma"} if "mma.h" in reached.sections else set()
    used |= {one.name for one in unit.unknown.values()} & _NAMESPACES
    for one in unit.declarations():
        text, start, ahead = f"{unit.written(one)};", one.extent.start, ""
        if kind(one) == "USING_DIRECTIVE":
            name = text.split()[-1].strip(":;")
            outer = [*unit.scope(one), name]
            if found := next((full for at in range(len(outer)) if (full := "::".join([*outer[:at], name])) in own), ""):
                ahead = f"namespace {found} {{}}\n"
            elif name not in used:
                continue
        elif kind(one) != "USING_DECLARATION" or not any(
            reached.keeps(at.location.file.name, at.location.offset) for at in _overloads(one) if unit.own(at)
        ):
            continue
        yield start.file.name, start.offset, ahead + unit.scoped(text, unit.scope(one))


def listed(unknown: Sequence[Unknown]) -> str:
    """Undeclared names, each with its first place."""
    first = {one.name: f"{one.name} ({Path(one.file).name}:{one.line})" for one in reversed(unknown)}
    return shortened(list(reversed(first.values())))
