"""A source as clang reads it: its tree, its kernels, and its undeclared names.

Owns the call of libclang. A file is read whole, with its host code: headers that are not found are empty, and names
that they would have declared get a declaration that fits anything, so that the rest of the tree is complete; `unknown`
lists them. The values of a kernel's template are bound as a compiler binds them, by naming the instance.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

import clang.cindex as clang

from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.build.guard import HEADERS, STANDARD
from tunesmith.kernels.build.source import silent_compiler
from tunesmith.kernels.spec.dtypes import C_TYPES

BUILTINS = {"cuda": Path(__file__).with_name("builtins.cuh"), "opencl": Path(__file__).with_name("builtins.cl")}
_CUDA = "-x cuda --cuda-device-only -nocudainc -nocudalib --cuda-gpu-arch=sm_90 -std=c++17 -nostdinc -nostdinc++"
_OPENCL = "-x cl -cl-std=CL1.2 -target spir64 -cl-no-stdinc -Xclang -fdeclare-opencl-builtins"
_OPTIONS = {"cuda": _CUDA.split(), "opencl": _OPENCL.split()}
_QUIET = ["-w", "-Wno-register", "-ferror-limit=0", "-Wno-unknown-cuda-version"]
_OPTIONS_OF_TREE = 0x1 | 0x200  # with macros; behind a header that is not found the source is read on
_OPTION_OF_HEADER = 0x10  # for a precompiled one
_EMPTY = "/empty"
"""A folder that exists in memory alone, for headers that are not found."""
_NOT_OWN = (_EMPTY, *map(str, BUILTINS.values()))
UNKNOWN_NAMES = f"{_EMPTY}/unknown.cuh"
"""The declarations that fit any use of names that nothing declares."""
MAX_ROUNDS, MAX_SECONDS = 24, 15.0
"""How often a file is parsed until each name in it is declared, and a processor's time for all of it, and again for a
slice: usual is 0.1 s each."""
MAX_FREE_TYPES = 4
"""Types of a template that nothing binds, of which each is tried as a float and as an integer."""
MAX_ABOVE = 6
"""Folders above that of the file in which, and in whose `include` folders, headers are looked for."""
MAX_FILES = 100_000
"""Of a project, in which headers are looked for by name."""
MAX_LENGTH = 1 << 20
"""Bytes of a file, at most."""
_UNKNOWN = re.compile(
    r"(?:use of undeclared identifier|unknown type name|no template named|no type named|no member named|implicit "
    r"declaration of function|use of undeclared label) '(?:\w+::)*(\w+)'(?: in (namespace )?'([^']+)')?"
)
_CONDITION = re.compile(r"(?:#if(?:def)?)?\s*(?:defined)?[\s(]*([A-Za-z_]\w*)[\s)]*(?:==\s*(\w+)\s*)?(?:/[/*].*)?")
"""A condition that one macro satisfies, and the value with which it does."""
_DECLARED = (
    r"^[ \t]*(?:#[ \t]*define[ \t]+{name}\b|using\s+{name}\s*=)|(?:\btypedef\b[^;{{}}]*|\}})\s*\b{name}\s*;|"
    r"^\w[^\n;={{}}#]*\b{name}\s*\([^;{{}}]*\)\s*\{{|\bconstant\b[^;={{}}]*\b{name}\b[^;=(]*=|"
    r"\benum\b[^;{{}}]*\{{[^;{{}}]*\b{name}\b"
)
"""The declaration of a name as a macro, a type, a function, a constant or an enumerator."""
_OF_COMPILER = r"\w+|experimental/\w+|(?:c?std|sys/)\w+\.h|cuda\w*\.h"
"""Headers of C++, of the system and of CUDA."""
KNOWN = HEADERS | STANDARD.keys()
"""Headers that need not be found."""
MAX_LISTED = 12
"""Names in a sentence."""
_RAW_STRING = re.compile(r'R"(\w*)\((.*?)\)\1"', re.DOTALL)
_KERNEL = re.compile(r"\b(?:__)?kernel\s+(?:__attribute__|void)\b")
_NO_CLASS = re.compile(r"type '(?:float|int)' is not a (?:function|structure)|subscripted value is not an array")
"""A type of the template is a class of the host's choice."""
FUNCTIONS = frozenset({"FUNCTION_DECL", "FUNCTION_TEMPLATE"})
_CLOSING = {"(": ")", "[": "]", "{": "}", "<": ">"}
_WHOLE = {"8": "char", "16": "short", "32": "int", "64": "long"}
"""Types of OpenCL C by their bits."""


class SourceError(TunesmithError):
    """A source cannot be read as a kernel to tune. incomplete: a file that includes it may declare more."""

    def __init__(self, message: str, *, incomplete: bool = False) -> None:
        super().__init__(message)
        self.incomplete = incomplete


@dataclass(frozen=True, slots=True)
class Unknown:
    """An undeclared name, its place, and what it stands for, as far as its use tells."""

    name: str
    file: str
    line: int
    offset: int
    what: Literal["value", "type", "function"]


@dataclass(frozen=True, slots=True)
class Entry:
    """The kernel. declared: its definition, a template or not; function: with all template parameters bound; values,
    types: the template's parameters with the text that each is bound to, types None where the task chooses; others:
    further values with which the source launches it; launched: by parameter the texts with which it does, that which is
    bound first; untold: the types among them that no launch has; guessed: values of which the source says nothing, of
    macros too; alike: lines of further kernels of the name."""

    name: str
    declared: Any
    function: Any
    values: Mapping[str, str] = field(default_factory=dict)
    types: Mapping[str, str | None] = field(default_factory=dict)
    others: tuple[str, ...] = ()
    launched: Mapping[str, Sequence[str]] = field(default_factory=dict)
    untold: tuple[str, ...] = ()
    guessed: Mapping[str, str] = field(default_factory=dict)
    alike: tuple[str, ...] = ()

    @property
    def particular(self) -> dict[str, str]:
        """The template's parameters that the task does not choose, with what each is bound to: values, and types that
        are no data type."""
        of_launch = ((name, texts[0]) for name, texts in self.launched.items())
        return {name: text for name, text in of_launch if name in self.values or text not in C_TYPES}


def kind(cursor: Any) -> str:
    name: str = cursor.kind.name
    return name


def walk(cursor: Any) -> Iterator[Any]:
    """The cursor and all below it, in the order of the source."""
    waiting = [cursor]
    while waiting:
        cursor = waiting.pop()
        yield cursor
        waiting += reversed(list(cursor.get_children()))


@lru_cache(maxsize=1)
def library() -> Any:
    """libclang, with the functions that its Python package leaves out."""
    found: Any = clang.conf.lib
    for name, argument, result in (
        ("clang_getCursorBinaryOperatorKind", clang.Cursor, ctypes.c_int),
        ("clang_getCursorUnaryOperatorKind", clang.Cursor, ctypes.c_int),
        ("clang_Cursor_Evaluate", clang.Cursor, ctypes.c_void_p),
        ("clang_EvalResult_getKind", ctypes.c_void_p, ctypes.c_int),
        ("clang_EvalResult_getAsLongLong", ctypes.c_void_p, ctypes.c_longlong),
        ("clang_EvalResult_getAsDouble", ctypes.c_void_p, ctypes.c_double),
        ("clang_EvalResult_dispose", ctypes.c_void_p, None),
    ):
        getattr(found, name).argtypes, getattr(found, name).restype = [argument], result
    return found


def constant(cursor: Any) -> int | float | None:
    """The value of a constant expression, where clang knows it."""
    result = library().clang_Cursor_Evaluate(cursor)
    if not result:
        return None
    values = {1: library().clang_EvalResult_getAsLongLong, 2: library().clang_EvalResult_getAsDouble}
    value: int | float | None = values.get(library().clang_EvalResult_getKind(result), lambda _: None)(result)
    library().clang_EvalResult_dispose(result)
    return value


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """The built-in declarations of a language. header: precompiled, which is read in an eighth of the time, in memory
    that goes with the process; macros: by name."""

    header: str
    macros: Mapping[str, Any]


@lru_cache
def built_in(language: str) -> BuiltIn:
    """The declarations ahead of every source. Raises `SourceError` where there is no room for the header."""
    options, how = [*_OPTIONS[language], *_QUIET], _OPTIONS_OF_TREE | _OPTION_OF_HEADER
    with tempfile.TemporaryDirectory(prefix="tunesmith-builtins-") as folder:
        header = Path(folder, "builtins.pch")
        try:
            tree = clang.Index.create().parse(str(BUILTINS[language]), options, [], how)
            tree.save(str(header))
        except (clang.TranslationUnitLoadError, clang.TranslationUnitSaveError) as error:
            raise SourceError(f"libclang cannot write {header} ({error}): give TMPDIR a folder with room.") from error
        kept = Path(f"/proc/self/fd/{os.memfd_create('builtins.pch')}")
        kept.write_bytes(header.read_bytes())
    macros = (one for one in tree.cursor.get_children() if kind(one) == "MACRO_DEFINITION")
    return BuiltIn(str(kept), {one.spelling: one for one in macros})


@lru_cache(maxsize=1)
def _inside(folder: Path) -> tuple[str, ...]:
    """The files of a project; none where there are too many, as in a home folder that is one."""
    found = [*itertools.islice(folder.rglob("*.*"), MAX_FILES)]
    return tuple(one.as_posix() for one in found if one.is_file()) if len(found) < MAX_FILES else ()


class Unit:
    """A source with its headers. where: its file; language: "cuda" or "opencl"; folders: of headers; defines: macros.
    proposed: macros, and ahead: files of the project, that the source alone does not ask for; top: the cursors."""

    def __init__(
        self,
        code: str,
        where: Path,
        language: str,
        folders: Sequence[Path] = (),
        defines: Mapping[str, str] | None = None,
    ) -> None:
        if len(code) > MAX_LENGTH:
            raise SourceError(f"{where}: the source is longer than {MAX_LENGTH} characters; take less along.")
        self.code, self.where, self.language = code, str(where), language
        self.folders, self.defines, self.bound = [*folders], dict[str, str](), dict[str, str]()
        for name, value in (defines or {}).items():
            # The name of a template's parameter binds it; as a macro it would hide the parameter.
            generic = re.search(rf"template\s*<[^;{{}}()]*\b{name}\s*[,>=][^;{{}}]*\b__global__\b", code)
            (self.defines if generic is None else self.bound)[name] = value
        self.proposed, self.ahead = dict[str, str](), list[Path]()
        self.missing: dict[str, None] = {}
        self.unknown: dict[tuple[str, int], Unknown] = {}
        self.tree: Any = None
        self._stubs: dict[str, str] = {}
        self._suffix, self._texts, self._taken = "", dict[str, bytes](), 0.0
        self.parse()

    def rewritten(self, code: str) -> Unit:
        """Another text in the place of the source."""
        made = Unit("", Path(self.where), self.language, self.folders, self.defines)
        made.code, made.bound, made.proposed, made.ahead = code, self.bound, self.proposed, self.ahead
        made.parse()
        return made

    def adopts(self, unknown: Sequence[Unknown], guesses: bool) -> bool:
        """Reads the source again with what is likely meant by undeclared names: as another file of an OpenCL project
        declares them, which has no headers, or as macros of the build. guesses: whether also of those that the source
        and its headers do not mention."""
        ahead = [one for one in self._declaring(unknown) if one not in self.ahead]
        # Of names behind a type that is not known some are declared by it.
        settled = all(one.what != "type" for one in unknown)
        likely = dict[str, str]()
        for one in unknown:
            declared = f"(?m){_DECLARED.format(name=one.name)}"
            macros = [given for text in self.texts if (given := satisfied(conditions(text, declared)))]
            untried = [given for given in macros if given.keys() - self.proposed]
            likely |= (untried or macros)[0] if macros else _likely(one, self.code, settled) if guesses else {}
        more = {} if ahead else {name: text for name, text in likely.items() if name not in self.proposed}
        if found := bool(ahead or more):
            self.ahead, self.proposed = [*ahead, *self.ahead], self.proposed | more
            self.defines, self.unknown, self._stubs = more | self.defines, {}, {}
            self.parse()
        return found

    def _declaring(self, unknown: Sequence[Unknown]) -> list[Path]:
        """The files without kernels of an OpenCL project that alone declare some names."""
        patterns = [re.compile(_DECLARED.format(name=one), re.MULTILINE) for one in sorted({at.name for at in unknown})]
        wanted = [one for one in patterns if self.language == "opencl" and not one.search(self.code)]
        sources = [Path(one) for one in self.files if wanted and one.endswith((".cl", ".h", ".clh", ".opencl"))]
        texts = {
            one: text for one in sources if not _KERNEL.search(text := self.text(str(one)).decode(errors="replace"))
        }
        found = list[Path]()
        for one in wanted:
            declaring = [file for file, text in texts.items() if one.search(text)]
            found += declaring if len(declaring) == 1 and declaring[0] not in found else []
        return found

    def parse(self, suffix: str = "") -> None:
        """Parses again, with `suffix` behind the source, until nothing is missing."""
        self._suffix, self.tree, stubs = suffix, None, self._stubs
        for _ in range(MAX_ROUNDS):
            if (tree := self._parsed()) is None:
                self._stubs = stubs
                break
            self.tree, stubs = tree, {**self._stubs}
            self.diagnostics = [one for one in tree.diagnostics if one.severity >= 3]
            if not self._declared(self.diagnostics):
                break
        self.top = list(self.tree.cursor.get_children())
        macros = {one.spelling for one in self.top if kind(one) == "MACRO_DEFINITION"}
        self.defined = macros | built_in(self.language).macros.keys()
        self._named = dict[tuple[str, str, int], list[tuple[str, ...]]]()
        self._constants = dict[str, list[tuple[int, str]]]()

    def _parsed(self) -> Any | None:
        """The tree; None where libclang crashes on what stands for undeclared names, and could read it without."""
        given = [f"-D{name}={value}" for name, value in self.defines.items() if self.language == "opencl"]
        places = [f"-I{folder}" for folder in self.folders] + [f"-I{_EMPTY}", f"-I{_EMPTY}/a/b/c/d"]
        head = ["-include-pch", built_in(self.language).header]
        files = [(self.where, self.code + "\n" + self._suffix)]
        files += [(f"{_EMPTY}/a/b/c/d/{name}", "") for name in self.missing]
        files += [(str(one), self.text(str(one)).decode()) for one in self.ahead if one.suffix == ".opencl"]
        more = [part for one in self.ahead for part in ("-include", str(one))]
        if self.language == "cuda":
            # Behind the builtins, whose own names a macro of the author's must not replace.
            macros = [f"#define {name} {value}\n" for name, value in self.defines.items()]
            files.append((UNKNOWN_NAMES, "".join([*self._stubs.values(), *macros])))
            more = ["-include", UNKNOWN_NAMES]
        arguments = [*_OPTIONS[self.language], *_QUIET, *head, *more, *given, *places]
        begun = time.process_time()
        try:
            with silent_compiler():
                index = clang.Index.create(excludeDecls=True)
                tree = index.parse(self.where, arguments, files, _OPTIONS_OF_TREE)
        except clang.TranslationUnitLoadError as error:
            if self.tree is not None:
                return None
            raise SourceError(f"{self.where}: libclang cannot read the source ({error}).") from error
        self._taken += time.process_time() - begun
        if self._taken > MAX_SECONDS:
            why = f"libclang needs more than {MAX_SECONDS:.0f} s for its templates"
            raise SourceError(f"{self.where}: {why}: move the kernel and its functions into a file of their own.")
        return tree

    def _declared(self, diagnostics: Sequence[Any]) -> bool:
        """Whether something that was missing has been declared."""
        before = len(self.missing) + len(self._stubs) + len(self.folders)
        settled = not any("file not found" in one.spelling for one in diagnostics)
        for one in diagnostics:
            file = "" if one.location.file is None else one.location.file.name
            if (header := re.match(r"'(.+)' file not found", one.spelling)) is not None:
                if not any((folder / header[1]).is_file() for folder in self.folders):
                    self.folders += (found_in := self._folder_above(header[1]))
                    self.missing |= {} if found_in else {header[1]: None}
            elif (found := _UNKNOWN.match(one.spelling)) is not None and file and settled:
                scope, at = found[3] or "", one.location.offset
                member = scope and not found[2]
                if member and {scope, f"::{scope}"} & self._stubs.keys():
                    continue  # its class is unknown
                if not file.startswith(_NOT_OWN) and at < len(self.text(file)):
                    after = self.text(file)[at + len(found[1]) :]
                    declares = re.match(rb"\s+(?:\*\s*)?(?:const\s+|restrict\s+)?[A-Za-z_]\w*\s*[=;,)\[]", after)
                    of_type = "unknown type name" in one.spelling or (declares is not None and b"*" not in declares[0])
                    what: Any = "function" if after.lstrip().startswith(b"(") else "type" if of_type else "value"
                    self.unknown.setdefault((file, at), Unknown(found[1], file, one.location.line, at, what))
                if not member:
                    self._stubs.setdefault(f"{scope}::{found[1]}", self._stub(file, at, found[1], scope))
        return len(self.missing) + len(self._stubs) + len(self.folders) > before

    def notes(self, use: Any, target: Any) -> None:
        """Notes a use of a name whose declaration is only here because another use of it is undeclared."""
        place, file = use.location, target.location.file
        is_unknown = file is not None and file.name == UNKNOWN_NAMES and kind(target) != "NAMESPACE"
        of_author = re.fullmatch(r"(?!tunesmith_|operator\b)\w+", target.spelling)
        if is_unknown and of_author and place.file is not None and self.own(use):
            what: Any = "type" if kind(use) == "TYPE_REF" else "function" if kind(use) == "CALL_EXPR" else "value"
            found = Unknown(target.spelling, place.file.name, place.line, place.offset, what)
            self.unknown.setdefault((found.file, found.offset), found)

    @cached_property
    def _above(self) -> list[Path]:
        """The folders above the source, up to that of the project."""
        where = Path(self.where).resolve()
        above = list(where.parents[: 1 + MAX_ABOVE]) if where.is_file() else []
        return above[: next((at for at, one in enumerate(above, 1) if (one / ".git").exists()), len(above))]

    @property
    def files(self) -> tuple[str, ...]:
        """The files of the project, where its folder is known."""
        return _inside(self._above[-1]) if self._above and (self._above[-1] / ".git").exists() else ()

    def _folder_above(self, header: str) -> list[Path]:
        """The folder that has a header of this name: the nearest above, or the project's that is nearest alone."""
        around = (place for one in self._above for place in (one, one / "include", one / "includes"))
        if near := [one for one in around if (one / header).is_file()]:
            return near[:1]
        found = [Path(one.removesuffix(f"/{header}")) for one in self.files if one.endswith(f"/{header}")]
        nearest = max(map(self.shared, found), default=(0, 0))
        found = [one for one in found if self.shared(one) == nearest]
        return found if len(found) == 1 else []

    def shared(self, place: Path) -> tuple[int, int]:
        """How many folders a file or a folder of the project shares with the source, and how many names of folders, as
        of `src/cuda` and `include/cuda`."""
        named = {*Path(self.where).resolve().parent.parts} & {*place.parts}
        return len({*self._above} & {place, *place.parents}), len(named)

    def _stub(self, file: str, at: int, name: str, within: str) -> str:
        """A declaration of `name` that fits its use in `file` at the byte `at`."""
        after = self.text(file)[at:].decode(errors="replace")
        after = re.sub(rf"^(?:\w+\s*::\s*)*?{name}\b", "", after, count=1)
        both = "TUNESMITH_BOTH"
        if re.match(r"\s*::", after):
            made = f"namespace {name} {{}}"
        elif re.match(r"\s*<[^<;]*>\s*(?:\(|<<<)|\s*\(|\s*<<<", after):
            made = f"template <class... A> {both} tunesmith_any {name}(A&&...);"
        elif re.match(r"\s*<[^;]*>", after):
            made = f"template <class...> struct {name} : tunesmith_any {{}};"
        elif re.match(r"\s*(?:const\b)?\s*[*&]*\s*(?:const|__restrict__|__restrict)?\s*\w", after):
            made = f"struct {name} : tunesmith_any {{ using tunesmith_any::tunesmith_any; }};"
        else:
            made = f"extern {both} tunesmith_any {name};"
        return self.scoped(made, [one for one in within.split("::") if one]) + "\n"

    def text(self, file: str) -> bytes:
        """A file's bytes, as clang counts them."""
        if file == self.where:
            return (self.code + "\n" + self._suffix).encode()
        if file not in self._texts:
            data = b"" if file.startswith(_NOT_OWN) else Path(file).read_bytes()
            self._texts[file] = unquoted(data.decode(errors="replace")).encode() if file.endswith(".opencl") else data
        return self._texts[file]

    @property
    def absent(self) -> list[str]:
        """The author's headers that were not found."""
        return [one for one in self.missing if one not in KNOWN and not re.fullmatch(_OF_COMPILER, one)]

    @property
    def remedy(self) -> str:
        """A clause on what declares the names that nothing declares."""
        headers = f"name with -I the folders of headers that were not found ({shortened(self.absent)}), or"
        return f"{headers if self.absent else 'declare them in it, or give'} macros with -D"

    @property
    def texts(self) -> list[str]:
        """The source, what is read ahead of it, and the headers of its author."""
        headers = {one.include.name for one in self.tree.get_includes() if not one.include.name.startswith(_NOT_OWN)}
        return [
            self.code,
            *(self.text(one).decode(errors="replace") for one in sorted(headers | {*map(str, self.ahead)})),
        ]

    def own(self, cursor: Any) -> bool:
        """Whether a cursor stands in the source or in a header of its author."""
        return cursor.location.file is not None and not cursor.location.file.name.startswith(_NOT_OWN)

    def macros(self, what: str) -> list[Any]:
        """The definitions or uses of macros in the source and in its author's headers."""
        return [one for one in self.top if kind(one) == what and self.own(one)]

    def declarations(self, scope: Any | None = None) -> Iterator[Any]:
        """The author's declarations at the level of files and namespaces."""
        for one in scope.get_children() if scope else self.top:
            # Names that a macro puts together stand in no file.
            if not self.own(one) or one.extent.start.file is None or kind(one).startswith(("MACRO", "INCLUSION")):
                continue
            outer = kind(one) == "UNEXPOSED_DECL" and self.written(one).startswith("extern")
            if outer or kind(one) in ("NAMESPACE", "LINKAGE_SPEC"):
                yield from self.declarations(one)
            else:
                yield one

    def kernels(self) -> list[Any]:
        """The definitions of all kernels, in the order of the source."""
        defined = (one for one in self.declarations() if kind(one) in FUNCTIONS and body(one) is not None)
        return [one for one in defined if self._is_kernel(one) and _is_whole(one)]

    def _is_kernel(self, function: Any) -> bool:
        if self.language == "cuda":
            return any(kind(one) == "CUDAGLOBAL_ATTR" for one in function.get_children())
        head = itertools.takewhile(lambda token: token.spelling != function.spelling, function.get_tokens())
        return any(token.spelling in ("__kernel", "kernel") for token in head)

    def entry(self, wanted: str | None, option: str = "--entry") -> Entry:
        """The kernel that `wanted` names, as `k` or as `k<256, float>`, or the only one. Raises `SourceError`."""
        found = self.kernels()
        names = list(dict.fromkeys(one.spelling for one in found))
        name, _, bound = (wanted or "").partition("<")
        name, _, at = name.strip().split("::")[-1].partition(":")
        hidden = conditions(self.code, rf"\b{name or 0}\s*\([^;{{}}]*\)\s*\{{") if name not in names else []
        macros = satisfied(hidden)
        if macros.keys() - self.defines.keys():
            self.defines = macros | self.defines
            self.parse()
            return self.entry(wanted, option)
        marks = "`__global__ void NAME(...)`" if self.language == "cuda" else "`__kernel void NAME(...)`"
        places = {self.code[: one.start()].count("\n") + 1 for one in re.finditer(rf"\b{name or 0}\s*\(", self.code)}
        here = [one for one in self.diagnostics if str(one.location.file) == self.where]
        # A mistake in its head hides a kernel that has no other name here.
        marked = re.search(r"\b(?:__global__|__kernel|kernel)\b", self.code) if not names and not name else None
        faults = [one for one in here if marked or (name not in names and one.location.line in places)]
        why = ""
        if hidden and not macros:
            left_out = f"the preprocessor leaves {name} out at `{'` and `'.join(hidden)}`"
            why = f"{left_out}: set its macros for that, with -D or in it"
        elif self.language == "opencl" and (
            head := re.search(r"\btemplate\s*<[^<>]*>(?=\s*(?:__)?kernel\b)", self.code)
        ):
            why = f"`{head[0]}` is C++, not OpenCL C: write the kernel out for one type"
        elif faults:
            why = self.refusal(faults[0], name)
        elif not names and re.search(rf"\b{name or 0}\s*\([^;{{}}]*\)\s*;", self.code):
            why = f"{name} is declared here without its body: name the file that has it"
        elif not names:
            why = f"there is no kernel, a function {marks} with its body; if a macro makes it, write that out"
        elif not name and len(names) > 1:
            why = f"there are {len(names)} kernels: choose one of {', '.join(names)} with {option}"
        elif name and name not in names:
            why = f"there is no kernel '{name}'; choose {option} from {', '.join(names)}"
        if why:
            raise SourceError(f"{self.where}: {why}.")
        name = name or names[0]
        chosen = [one for one in found if one.spelling == name]
        if any(kind(one) == "FUNCTION_TEMPLATE" for one in chosen):
            # Of a template and its specialisations, the values choose.
            chosen = [one for one in chosen if library().clang_getSpecializedCursorTemplate(one) is None]
        chosen = [one for one in chosen if str(one.location.line) == at] or chosen
        alike = tuple(str(one.location.line) for one in chosen[1:])
        if kind(chosen[0]) != "FUNCTION_TEMPLATE":
            return Entry(name, chosen[0], chosen[0], alike=alike)
        given = [one.strip() for one in split(bound.strip().removesuffix(">"))] if bound else []
        return replace(self._bound(chosen[0], given), alike=alike)

    def refusal(self, fault: Any, kernel: str = "") -> str:
        """A clause on an error of clang's. Macros are its remedy where its line has a word that may be one."""
        at = fault.location
        line = self.text(at.file.name).decode(errors="replace").split("\n")[at.line - 1]
        remedy = "give the macros that your build gives with -D, or " if re.search(r"\b[A-Z][A-Z\d_]+\b", line) else ""
        head = f"line {at.line}, with {kernel}, is" if kernel else f"line {at.line} of {Path(at.file.name).name} is"
        made = any(one.spelling.startswith("in instantiation of ") for one in fault.children)
        end = "say what its template is over, as --entry 'NAME<...>'" if made else "correct it"
        return f"{head} not understood ({fault.spelling}): {remedy}{end}"

    def _bound(self, template: Any, given: list[str]) -> Entry:
        instances = self._launched(template)
        parameters = [one for one in template.get_children() if kind(one).startswith("TEMPLATE_")]
        values, types, order, guessed = self._values(template, parameters, given, instances[0] if instances else [])
        names = [one.spelling for one in parameters]
        free = [name for at, name in enumerate(names) if name in types and not types[name] and order[at] == "float"]
        # A type of indices is an integer, also in functions that the kernel calls; the fewest that will do.
        tried, others_faults = list[tuple[int, list[str], list[str]]](), len(self.diagnostics)
        for whole in sorted(itertools.product((False, True), repeat=min(len(free), MAX_FREE_TYPES)), key=sum):
            integers = {*itertools.compress(free, whole)}
            texts = ["int" if name in integers else text for name, text in zip(names, order, strict=True)]
            faults = self._faults(template, texts)
            tried.append((len(faults) + max(0, len(self.diagnostics) - others_faults), texts, faults))
            if not tried[-1][0]:
                break
        _, texts, faults = min(tried, key=lambda one: one[0])
        if texts != tried[-1][1]:
            self._faults(template, texts)
        if not any(map(_NO_CLASS.search, faults)) and (made := self._instance(template)) is not None:
            declared = next(one for one in self.kernels() if one.location == made.location)
            named = dict(zip(names, texts, strict=True))
            types |= {name: "int" for name in free if named[name] == "int"}
            told = dict(zip(names, instances[0], strict=False)) if instances else {}
            untold = tuple(one for one, bound in types.items() if bound is None and told.get(one) != named[one])
            columns = zip(names, itertools.zip_longest(texts, *instances, fillvalue=""), strict=False)
            found = Entry(template.spelling, declared, made, values, types, (), dict(columns), untold, guessed)
            asked = found.particular
            kept = [[text for name, text in zip(names, one, strict=False) if name in asked] for one in instances]
            others = dict.fromkeys(", ".join(one) for one in kept[1:] if one != kept[0]) if not given else ()
            return replace(found, others=tuple(others))
        own = [one for one in faults if "tunesmith_" not in one and not one.startswith(f"{template.spelling}<")]
        unbound = f"say what it is over, as --entry '{template.spelling}<...>'"
        why = f": {next((one for one in faults if _NO_CLASS.search(one)), (own or [unbound])[-1])}"
        of_class = re.findall(r"no member named '(\w+)' in '(?!tunesmith_any)", "\n".join(faults))
        inside = [one for one in self.unknown.values() if within(template, one.file, one.offset)]
        if missing := [one for one in inside if one.name not in of_class]:
            place = template.extent.start.offset
            if self.adopts(missing, guesses=False):
                return self._bound(next(one for one in self.kernels() if one.extent.start.offset == place), given)
            used = shortened([*dict.fromkeys(one.name for one in missing)])
            why = f", as it uses undeclared names: {used}; {self.remedy}"
        if guessed:
            why += f", and nothing says the value of {', '.join(guessed)}: give it with -D NAME=VALUE"
        instance = f"{'::'.join([*filter(None, self.scope(template)), template.spelling])}<{', '.join(texts)}>"
        where = f"{self.where}, line {template.location.line}"
        raise SourceError(f"{where}: {instance} cannot be made{why}.", incomplete=True)

    def _values(
        self, template: Any, parameters: Sequence[Any], given: Sequence[str], launched: Sequence[str]
    ) -> tuple[dict[str, str], dict[str, str | None], list[str], dict[str, str]]:
        """The values and types of a template's parameters, all of them in order, and of which values nothing is known:
        as given, else as the source launches it, else the default; a float where nothing binds a type."""
        values, types, order, guessed = dict[str, str](), dict[str, str | None](), list[str](), list[str]()
        classes = {one.spelling for one in self.declarations() if kind(one) in ("STRUCT_DECL", "CLASS_DECL")}
        for at, one in enumerate(parameters):
            name, written = one.spelling, self.written(one)
            if "..." in written or kind(one) == "TEMPLATE_TEMPLATE_PARAMETER":
                why = f"over any number of parameters, or over templates ({written}): write out the ones that you use"
                raise SourceError(f"{self.where}: {template.spelling} is a template {why}.")
            chosen = given[at] if at < len(given) else self.bound.get(name)
            found = launched[at] if at < len(launched) else ""
            if kind(one) == "TEMPLATE_TYPE_PARAMETER":
                # A class of the author chooses among functions and is not a data type.
                found = "" if f"::{found}" in self._stubs and found not in C_TYPES else found
                types[name] = chosen or (found if found.split("::")[-1] in classes else None)
                order.append(chosen or found or ("int" if re.search("(?i)index|idx|offset", name) else "float"))
                continue
            values[name] = chosen or found or written.partition("=")[2].strip()
            if not values[name]:
                guessed.append(name)
                values[name] = typical(name, one.type.get_canonical().kind.name)
            if not chosen and re.fullmatch(r"-?\d+", values[name]) and one.type.get_canonical().kind.name == "ENUM":
                values[name] = f"({one.type.spelling}){values[name]}"
            order.append(values[name])
        return values, types, order, {name: values[name] for name in guessed}

    def _faults(self, template: Any, arguments: Sequence[str]) -> list[str]:
        """Parses again, with the instance of a template named behind the source: what clang has against it."""
        instance = f"{template.spelling}<{', '.join(arguments)}>"
        self.parse(self.scoped(f"auto tunesmith_entry = &{instance};", self.scope(template)))
        if any("<overloaded function type>" in one.spelling for one in self.diagnostics):
            # Of several templates of the name the type tells which.
            given = ", ".join(self.written(one) for one in template.get_children() if kind(one).startswith("TEMPLATE_"))
            pointer = f"template <{given}> using tunesmith_type = {template.type.spelling.replace('(', '(*)(', 1)};"
            named = f"{pointer} tunesmith_type<{', '.join(arguments)}> tunesmith_entry = &{instance};"
            self.parse(self.scoped(named, self.scope(template)))
        faults = [one.spelling for one in self.faults(lambda file, at: within(template, file, at))]
        return faults or ([] if self._instance(template) is not None else [instance])

    def faults(self, keeps: Callable[[str, int], bool]) -> Iterator[Any]:
        """Clang's errors at places that `keeps` names, but for those of instantiations that only other places need."""
        last, length = None, len(self.code.encode())
        for one in self.diagnostics:
            if one.location.file is None or not keeps(one.location.file.name, one.location.offset):
                continue
            # Clang says once for all faults of an instance where it is made, the outermost place last.
            made = [note.location for note in one.children if note.spelling.startswith("in instantiation of ")]
            last = made[-1] if made else last
            behind = last is not None and (last.file.name, last.offset > length) == (self.where, True)
            if last is None or behind or keeps(last.file.name, last.offset):
                yield one

    def _instance(self, template: Any) -> Any | None:
        """The instance that `tunesmith_entry`, behind the source, names; None where it could not be made."""
        for cursor in self.declarations():
            for one in walk(cursor) if cursor.spelling == "tunesmith_entry" else ():
                made = one.referenced if kind(one) == "DECL_REF_EXPR" else None
                if made is not None and made.spelling == template.spelling and body(made) is not None:
                    return made
        return None

    def _launched(self, template: Any) -> list[list[str]]:
        """The template arguments with which the source names the kernel, literal ones first."""
        found = dict[tuple[str, ...], None]()
        parameters = (one for one in template.get_children() if kind(one).startswith("TEMPLATE_"))
        flags = {at for at, one in enumerate(parameters) if one.type.get_canonical().kind.name == "BOOL"}
        for cursor in walk(self.tree.cursor):
            if kind(cursor) == "DECL_REF_EXPR" and cursor.spelling == template.spelling:
                made = cursor.referenced
                if made is not None and kind(made) == "FUNCTION_DECL" and made.location == template.location:
                    texts = []
                    for at in range(max(0, made.get_num_template_arguments())):
                        what = made.get_template_argument_kind(at).name
                        value = str(made.get_template_argument_value(at)) if what == "INTEGRAL" else ""
                        # The one bit of `true` is its sign.
                        value = {"-1": "true", "0": "false"}.get(value, value) if at in flags else value
                        type_ = made.get_template_argument_type(at).spelling.replace("(anonymous namespace)::", "")
                        texts.append(type_ if what == "TYPE" else value)
                    found[tuple(texts)] = None
        # Host code that needs headers that are not here has no complete tree.
        found = found or dict.fromkeys(self._instances(template.spelling, r"(?!\s*\()"))
        explicit = re.compile(rf"^\s*template\s+(?!<)[^;{{}}()<>]*\b{template.spelling}\s*<([^;{{}}()]*)>\s*\(", re.M)
        found = found or dict.fromkeys(tuple(split(one[1])) for one in explicit.finditer(self.code))
        return [list(one) for one in sorted(found, key=lambda one: one.count(""))]

    def _instances(self, name: str, behind: str = "", depth: int = 0) -> list[tuple[str, ...]]:
        """The template arguments behind a name in the text, empty where their values are not known. behind: what
        follows them."""
        key = name, behind, depth
        if key not in self._named:
            pattern = rf"\b{name}\s*<((?:[^;<>(){{}}]|<[^;<>(){{}}]*>)*)>{behind}"
            uses = re.finditer(pattern, self.code) if depth < MAX_ABOVE else ()
            self._named[key] = list(
                dict.fromkeys(
                    tuple(self._constant(text, one.start()) or given.get(text, "") for text in split(one[1]))
                    for one in uses
                    for given in self._around(one.start(), depth)
                )
            )
        return self._named[key]

    def _around(self, at: int, depth: int) -> list[dict[str, str]]:
        """The values of the parameters of the template around a place, for each instance of its function."""
        for head, function in re.findall(r"\btemplate\s*<([^{};()]*)>[^;{}()<>]*?\b(\w+)\s*\(", self.code[:at])[-1:]:
            names = [(one.partition("=")[0].split() or [""])[-1] for one in split(head)]
            instances = self._instances(function, "", depth + 1)
            return [dict(zip(names, one, strict=False)) for one in instances] or [{}]
        return [{}]

    def _constant(self, text: str, at: int) -> str:
        """A number or a macro as it is, the value of a constant before a place, or else after it; empty for others."""
        if re.fullmatch(r"-?\d+|true|false", text) or text in self.defined:
            return text
        if text not in self._constants:
            given = rf"\bconst(?:expr)?\b[^;{{}}()]*?\b{re.escape(text)}\s*=\s*(\d+|true|false)\s*[,;]"
            self._constants[text] = [(one.end(), one[1]) for one in re.finditer(given, self.code)]
        every = self._constants[text]
        above = [value for end, value in every if end <= at]
        return (above or [value for _, value in every] or [""])[-1]

    def value_of(self, text: str, at: int) -> str:
        """The value of a template argument at a place of the source, empty where it is not known."""
        around = (one.get(text, "") for one in self._around(at, 0))
        return self._constant(text, at) or next(filter(None, around), "")

    @staticmethod
    def scope(cursor: Any) -> tuple[str, ...]:
        """The namespaces around a declaration, an empty name for those without one."""
        found, above = list[str](), cursor.lexical_parent
        while above is not None and kind(above) != "TRANSLATION_UNIT":
            if kind(above) == "NAMESPACE":
                found.insert(0, above.spelling if "(anonymous" not in above.spelling else "")
            above = above.lexical_parent
        return tuple(found)

    @staticmethod
    def scoped(text: str, names: Sequence[str]) -> str:
        for name in reversed(names):
            text = f"namespace {name} {{\n{text}\n}}" if name else f"namespace {{\n{text}\n}}"
        return text

    def written(self, cursor: Any) -> str:
        """The text of a cursor."""
        file = cursor.extent.start.file
        data = b"" if file is None else self.text(file.name)
        return data[cursor.extent.start.offset : cursor.extent.end.offset].decode(errors="replace")


def shortened(texts: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(texts) - MAX_LISTED} more" if len(texts) > MAX_LISTED else ""
    return ", ".join(texts[:MAX_LISTED]) + more


def doubt(fault: Any) -> str:
    """A line that clang does not understand, and why."""
    return f"line {fault.location.line} of {Path(fault.location.file.name).name} ({fault.spelling})"


def conditions(code: str, declared: str) -> list[str]:
    """The conditions of the preprocessor that leave a declaration, a regular expression, out."""
    found, around = re.search(declared, code), list[str]()
    above = code[: found.end()] if found is not None else ""
    for word, rest in re.findall(r"(?m)^[ \t]*#[ \t]*(if\w*|el\w*|endif)\b[ \t]*(.*)", above):
        if not word.startswith("if"):
            before = around.pop() if around else ""
            word, rest = (word, f"of {before}") if word == "else" else (word, rest)
            word, rest = ("ifdef", before[8:]) if rest.startswith("of #ifndef ") else (word, rest)
        if word != "endif":
            around.append(f"#{word} {rest}".strip())
    defined = {*re.findall(r"#[ \t]*define[ \t]+(\w+)", code)}
    return [one for one in around if bool(defined & {*re.findall(r"\w+", one)}) == one.startswith("#else")]


def satisfied(hidden: Sequence[str]) -> dict[str, str]:
    """The macros of a build that satisfy conditions, of alternatives the first, of which none negates one; compilers
    have `__NAMES__`."""
    first = [one.partition("||")[0] for one in hidden]
    parts = [part for one in first for part in re.split(r"&&\s*!\s*defined[\s(]*\w+[\s)]*|&&", one)]
    found = [one for part in parts if (one := _CONDITION.fullmatch(part.strip())) is not None]
    return {one[1]: one[2] or "1" for one in found if not re.fullmatch("__\\w+__", one[1])}


def _likely(one: Unknown, code: str, settled: bool) -> dict[str, str]:
    """A macro of the build that may declare an undeclared name of a source."""
    if one.what == "type":
        whole = re.fullmatch("(u?)int(8|16|32|64)_t", one.name)
        lanes = re.search(r"(?<=[A-Za-z_])(2|4|8|16)$", one.name)
        plain = "int" if re.search("(?i)int|index|idx", one.name) else "float"
        variables = "|".join(re.findall(rf"\b{one.name}\s+(?:__restrict__\s+)?(\w+)\s*[,;=)]", code)) or "(?!)"
        if not lanes and re.search(rf"\b(?:{variables})\s*(?:\.|->)", code):
            return {}
        indexed = re.search(rf"\b(?:{variables})\s*\[", code) and not re.search(rf"\b{one.name}\s*\*", code)
        named = whole[1] + _WHOLE[whole[2]] if whole else plain + (lanes[1] if lanes else "")
        return {one.name: named + ("*" if indexed else "")}
    # Clang takes a template that it does not know for a value that is less than another.
    generic = re.search(rf"(?m)^[\w ]*\b{one.name}\s*<[^;{{}}()]*>\s*\w+\s*[,;]", code)
    guessed = one.what == "value" and (settled or one.name.isupper()) and not generic
    return {one.name: typical(one.name)} if guessed else {}


def typical(name: str, type_: str = "INT") -> str:
    """A value for a constant of the build, or for a parameter of a template that nothing binds."""
    if type_ in ("BOOL", "ENUM"):
        return "false" if type_ == "BOOL" else "0"
    of_each = re.search("(?i)per_?(thread|warp|block|group)", name)
    return "256" if not of_each and re.search("(?i)thread|block|group|cta|work_?size", name) else "4"


def unquoted(code: str) -> str:
    """The source in a file that is a C++ string for a host, or has its kernels in such strings alone, in the same
    lines; other files as they are."""
    strings = [(*one.span(), one[2]) for one in _RAW_STRING.finditer(code)]
    bare = re.sub(r"//[^\n]*|/\*.*?\*/", lambda one: " " * len(one[0]), code, flags=re.DOTALL)
    for one in re.finditer(r"\bchar\b[^;{}()#]*=\s*\w+\s*\(", bare):
        # A macro makes a string of its argument.
        end = closed(bare, one.end() - 1)
        strings.append((one.start(), end, code[one.end() : end - 1]))
    source, behind = "", 0
    for begin, end, text in sorted(strings):
        source += "\n" * (code.count("\n", behind, end) - text.count("\n")) + text
        bare, behind = bare[:begin] + " " * (end - begin) + bare[end:], end
    alone = _KERNEL.search(source) and not _KERNEL.search(bare)
    return source if alone or not re.search(r"\w", bare) else code


def closed(text: str, at: int) -> int:
    """The place behind the bracket that closes the one at `at`."""
    opening, closing = text[at], _CLOSING[text[at]]
    depths = itertools.accumulate((one == opening) - (one == closing) for one in text[at:])
    return at + next((end for end, depth in enumerate(depths, 1) if not depth), len(text) - at)


def uncommented(code: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", " ", code, flags=re.DOTALL)


def _is_whole(function: Any) -> bool:
    """Whether a function has the parameters that it is declared with, and not those of a macro that is not there."""
    taken = sum(kind(one) == "PARM_DECL" for one in function.get_children())
    return kind(function) != "FUNCTION_DECL" or taken == len([*function.get_arguments()])


def within(cursor: Any, file: str, offset: int) -> bool:
    first, last = cursor.extent.start, cursor.extent.end
    return bool(first.file.name == file and first.offset <= offset < last.offset)


def body(function: Any) -> Any | None:
    """The statements of a function; None for a declaration."""
    return next((one for one in function.get_children() if kind(one) == "COMPOUND_STMT"), None)


def split(text: str, opening: str = "({[<", closing: str = ")}]>") -> list[str]:
    """At the commas that stand in no parentheses."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in opening) - (letter in closing)
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [" ".join(part.split()) for part in parts]
