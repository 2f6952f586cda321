"""The statements and expressions of a kernel with their places in the source, from clang's tree.

Owns the records that facts are read from. CUDA C++ and OpenCL C give the same ones: indices of threads have CUDA's
names, barriers are barriers. Parentheses and conversions that nobody wrote are left out; names are symbols, by their
declaration.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from tunesmith.kernels.reader.parse import FUNCTIONS, SourceError, Unit, body, constant, kind, library
from tunesmith.kernels.reader.tree import BINARY, UNARY, Kind, kind_of, parts_of_for

__all__ = ["Node", "SourceError", "Symbol", "Syntax"]
_STATEMENTS = {"COMPOUND": "block", "DECL": "declaration", "NULL": "nothing", "INDIRECT_GOTO": "goto"}
_STATEMENTS |= {"CXX_FOR_RANGE": "for each", "MS_ASM": "asm"}
_EXPRESSIONS = {"CONDITIONAL_OPERATOR": "choice", "ARRAY_SUBSCRIPT_EXPR": "index", "MEMBER_REF_EXPR": "member"}
_EXPRESSIONS |= {"DECL_REF_EXPR": "name", "CALL_EXPR": "call", "LAMBDA_EXPR": "lambda", "VAR_DECL": "variable"}
_EXPRESSIONS |= {"PARM_DECL": "parameter", "INIT_LIST_EXPR": "list"}
_ASSIGNING = frozenset(f"operator{one}=" for one in ("", *"+-*/%&|^", "<<", ">>"))
_SKIPPED = ("TYPE_REF", "TEMPLATE_REF", "NAMESPACE_REF", "OVERLOADED_DECL_REF")
BUILTINS = ("threadIdx", "blockIdx", "blockDim", "gridDim")
WORK_ITEM = {"get_local_id": "threadIdx", "get_group_id": "blockIdx", "get_local_size": "blockDim"}
WORK_ITEM |= {"get_num_groups": "gridDim", "get_global_id": "@", "get_global_size": "gridSize"}
_AXES: dict[Any, str] = {0: "x", 1: "y", 2: "z"}
LOOPS = frozenset({"for", "while", "do", "for each"})
STATEMENTS = LOOPS | {"block", "declaration", "if", "switch", "return", "break", "nothing", "continue", "goto", "label"}
_TEXT = re.compile(rb"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"", re.DOTALL)


@dataclass(eq=False, slots=True)
class Symbol:
    """What a name stands for, by its declaration. what: "parameter", "variable" (of the kernel or of a function),
    "global" (for all blocks), "function" or "other"; written: its type as written; shared: in the memory of a block;
    place: of its declaration in the source; references: the numbers of a function's arguments that it may change;
    definition: a function's body, and arguments, where the source has it; declared: the record of a variable's
    declaration."""

    name: str
    what: Literal["parameter", "variable", "global", "function", "other"]
    type: Kind
    written: str
    place: int
    shared: bool = False
    volatile: bool = False
    static: bool = False
    references: frozenset[int] = frozenset()
    arguments: tuple[Symbol, ...] = ()
    definition: Any = field(default=None, repr=False)
    declared: Node | None = field(default=None, repr=False)

    @property
    def element(self) -> str:
        """Of a pointer or an array: the type of an element as written, without qualifiers."""
        inner = re.sub(r"\s*(?:\*[^*]*|\[\w*\])$", "", self.written)
        return re.sub(r"\b(?:const|volatile|__global|__local|__constant|__private)\b\s*", "", inner).strip()

    @property
    def pointer(self) -> bool:
        return self.type.what in ("pointer", "array")


@dataclass(eq=False, slots=True)
class Node:
    """A statement or an expression. what: its kind in one word; start, end: bytes of the source; op: an operator, or
    the name of a member or of what is called; symbol: what a name or a call refers to, or a declaration declares;
    value: of a constant; fixed: a macro wrote it, so that it has no text of its own. A `builtin` is `threadIdx.x` and
    the like, "@x" the number of a thread among all, gridSize their count."""

    what: str
    start: int
    end: int
    type: Kind
    kids: list[Node] = field(default_factory=list, repr=False)
    op: str = ""
    symbol: Symbol | None = None
    value: int | float | None = None
    fixed: bool = False
    parent: Node | None = field(default=None, repr=False)

    def walk(self) -> Iterator[Node]:
        """The node and all below it, in the order of the source."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += reversed(node.kids)

    def above(self) -> Iterator[tuple[Node, Node]]:
        """Each node above with its part that leads here, the nearest first."""
        at = self
        while at.parent is not None:
            yield at.parent, at
            at = at.parent

    def holds(self, node: Node) -> bool:
        return node is self or any(above is self for above, _ in node.above())

    @property
    def statement(self) -> Node:
        """The statement that the node is, or is a part of."""
        at = self
        while at.parent is not None and at.what not in STATEMENTS and at.parent.what not in STATEMENTS:
            at = at.parent
        return at


class Syntax:
    """One kernel of a source. code: the whole source; prelude: declarations ahead of it; language: "cuda" or "opencl";
    entry: the kernel's name. functions: the bodies of the source's functions that it calls, directly or not; ranks:
    whether the number of a thread is asked of its group, which counts it along x alone where a launch has no more.

    Raises `SourceError` for a source without that kernel."""

    def __init__(
        self, code: str, language: str, entry: str | None, where: str = "the source", prelude: str = ""
    ) -> None:
        self.language, self._shift = language, len(prelude.encode())
        self.code = code.encode()
        self.unit = Unit(prelude + code, Path(where), language)
        found = self.unit.entry(entry)
        self.name, self.cursor = found.name, found.function
        self._symbols: dict[tuple[str, int], Symbol] = {}
        self._macros = sorted(
            (one.extent.start.offset, one.extent.end.offset)
            for one in self.unit.tree.cursor.get_children()
            if kind(one) == "MACRO_INSTANTIATION" and str(one.location.file) == self.unit.where
        )
        self._starts = [start for start, _ in self._macros]
        self.start = self.cursor.extent.start.offset - self._shift
        self.name_at = self.cursor.location.offset - self._shift
        self.parameters = [self._symbol(one) for one in self.cursor.get_arguments()]
        self.functions: list[Node] = []
        self.ranks = False
        self.body = self._lowered(body(self.cursor))
        waiting, seen = [self.body], {self.body.start}
        while waiting:
            for node in waiting.pop().walk():
                inside = None if node.symbol is None else node.symbol.definition
                if inside is not None and inside.extent.start.offset - self._shift not in seen:
                    seen.add(inside.extent.start.offset - self._shift)
                    self.functions.append(self._lowered(inside))
                    waiting.append(self.functions[-1])

    def text(self, node: Node) -> str:
        return self.code[node.start : node.end].decode(errors="replace")

    def line(self, node: Node) -> int:
        return self.code.count(b"\n", 0, node.start) + 1

    @cached_property
    def head(self) -> str:
        """The kernel's text ahead of its body."""
        return self.code[self.start : self.body.start].decode(errors="replace")

    @cached_property
    def by_type(self) -> bool:
        """Whether the preprocessor chooses code of the kernel, or of a function that it calls, by a type of the
        task."""
        bodies = (self.body, *self.functions)
        inside = (_TEXT.sub(b"", self.code[one.start : one.end]) for one in bodies)
        return any(re.search(rb"^[ \t]*#[ \t]*(?:el)?if[^\n]*_IS_", one, re.MULTILINE) for one in inside)

    @cached_property
    def launches(self) -> bool:
        """Whether the kernel, or a function that it calls, launches kernels."""
        bodies = (self.body, *self.functions)
        return any(b"<<<" in _TEXT.sub(b"", self.code[one.start : one.end]) for one in bodies)

    @cached_property
    def problems(self) -> list[tuple[int, str]]:
        """What clang does not understand of the kernel and of the functions that it calls, by line."""
        spans = [(one.start, one.end) for one in (self.body, *self.functions)] + [(self.start, self.body.start)]
        found = []
        for one in self.unit.tree.diagnostics:
            here = str(one.location.file) == self.unit.where
            at = one.location.offset - self._shift
            if one.severity >= 3 and here and any(start <= at < end for start, end in spans):
                found.append((self.code.count(b"\n", 0, at) + 1, one.spelling))
        return [] if self.launches else found

    def everything(self) -> Iterator[Node]:
        """All nodes of the kernel's body and of the functions that it reaches."""
        for one in (self.body, *self.functions):
            yield from one.walk()

    def _lowered(self, cursor: Any) -> Node:
        made = self._lower(cursor)
        for node in made.walk():
            for one in node.kids:
                one.parent = node
        for node in made.walk():
            at = bisect.bisect_right(self._starts, node.start + self._shift) - 1
            if at >= 0 and node.end + self._shift <= self._macros[at][1] and node.parent is not None:
                above = node.parent
                node.fixed = above.start >= node.start and above.end + self._shift <= self._macros[at][1]
                node.fixed = node.fixed or node.end + self._shift < self._macros[at][1]
        return made

    def _symbol(self, cursor: Any) -> Symbol:
        cursor = cursor.canonical
        place = cursor.location
        key = (place.file.name if place.file else "", place.offset)
        found = self._symbols.get(key)
        if found is not None:
            return found
        what, type_ = kind(cursor), cursor.type
        attributes = [kind(one) for one in cursor.get_children()] if what == "VAR_DECL" else []
        outside = cursor.semantic_parent is None or kind(cursor.semantic_parent) in ("TRANSLATION_UNIT", "NAMESPACE")
        names: dict[str, Any] = {"PARM_DECL": "parameter", "VAR_DECL": "global" if outside else "variable"}
        made = Symbol(
            cursor.spelling,
            "function" if what in (*FUNCTIONS, "CXX_METHOD", "CONVERSION_FUNCTION") else names.get(what, "other"),
            kind_of(type_),
            type_.spelling,
            place.offset - self._shift,
            "CUDASHARED_ATTR" in attributes or (what == "VAR_DECL" and self._in_local_memory(cursor)),
            "volatile" in type_.spelling,
            what == "VAR_DECL" and cursor.storage_class.name == "STATIC",
        )
        self._symbols[key] = made
        if made.what == "function":
            taken = [one.type for one in cursor.get_arguments()]
            made.references = frozenset(
                at
                for at, one in enumerate(taken)
                if one.kind.name == "LVALUEREFERENCE" and not one.get_pointee().is_const_qualified()
            )
            defined = cursor.get_definition()
            here = defined is not None and str(defined.location.file) == self.unit.where
            made.definition = body(defined) if here else None
            made.arguments = tuple(self._symbol(one) for one in defined.get_arguments()) if here else ()
        return made

    def _in_local_memory(self, cursor: Any) -> bool:
        words = cursor.get_tokens() if self.language == "opencl" else ()
        return any(one.spelling in ("__local", "local") for one in words)

    def _lower(self, cursor: Any) -> Node:
        what = kind(cursor)
        kids = [one for one in cursor.get_children() if kind(one) not in _SKIPPED and not kind(one).endswith("_ATTR")]
        if what in ("PAREN_EXPR", "UNEXPOSED_EXPR") and len(kids) == 1:
            return self._lower(kids[0])
        extent = cursor.extent
        start, end = extent.start.offset - self._shift, extent.end.offset - self._shift
        made = Node(_what(what), start, end, kind_of(cursor.type))
        if what in ("BINARY_OPERATOR", "COMPOUND_ASSIGNMENT_OPERATOR"):
            made.op = BINARY.get(library().clang_getCursorBinaryOperatorKind(cursor), "?")
            assigns = made.op.endswith("=") and made.op not in ("==", "!=", "<=", ">=")
            made.what = "assign" if assigns else "binary"
        elif what == "UNARY_OPERATOR":
            made.op = UNARY.get(library().clang_getCursorUnaryOperatorKind(cursor), "?").strip("x")
            made.what = {"++": "count", "--": "count", "&": "address", "*": "deref"}.get(made.op, "unary")
        elif what.endswith("_LITERAL") or what in ("CXX_UNARY_EXPR", "CXX_BOOL_LITERAL_EXPR"):
            made.what, made.value = "literal", constant(cursor) if what != "STRING_LITERAL" else None
            return made
        elif what == "CALL_EXPR":
            return self._call(cursor, made, kids)
        elif what in ("DECL_REF_EXPR", "MEMBER_REF_EXPR"):
            made.op, target = cursor.spelling, cursor.referenced
            if target is not None and kind(target) == "ENUM_CONSTANT_DECL":
                made.what, made.value = "literal", target.enum_value
                return made
            if what == "DECL_REF_EXPR" and len(kids) == 1:
                # The parameter of a template, in an instance.
                return self._lower(kids[0])
            if target is not None:
                made.symbol = self._symbol(target)
            if what == "DECL_REF_EXPR" and made.op == "warpSize":
                made.what, made.value = "literal", 32
        elif what in ("VAR_DECL", "PARM_DECL"):
            made.symbol = self._symbol(cursor)
            made.symbol.declared = made
            if what == "PARM_DECL":
                return made
            lists = ("INIT_LIST_EXPR", "STRING_LITERAL")
            kids = [one for one in kids[-1:] if made.type.what != "array" or kind(one) in lists]
        elif what == "FOR_STMT":
            nothing = Node("nothing", start, start, made.type)
            made.kids = [nothing if one is None else self._lower(one) for one in parts_of_for(cursor, kids)]
            return made
        made.kids = [self._lower(one) for one in kids]
        inner = made.kids[0] if made.kids else None
        if what == "MEMBER_REF_EXPR" and inner is not None and inner.what == "name" and inner.op in BUILTINS:
            return Node("builtin", start, end, made.type, op=f"{inner.op}.{made.op}")
        return made

    def _call(self, cursor: Any, made: Node, kids: list[Any]) -> Node:
        """A call: what is called, then the arguments."""
        given, target = list(cursor.get_arguments()), cursor.referenced
        if (target is not None and kind(target) == "CONSTRUCTOR") or (target is None and not cursor.spelling):
            if len(kids) == 1:
                return self._lower(kids[0])
            made.what, made.kids = ("construct", [self._lower(one) for one in kids])
            return made
        made.op = cursor.spelling or "operator"
        if target is not None:
            made.symbol = self._symbol(target)
        if made.op in _ASSIGNING and len(given) == 2:
            made.what, made.op, made.symbol = "assign", made.op.removeprefix("operator"), None
            made.kids = [self._lower(one) for one in given]
            return made
        places = {(one.extent.start.offset, one.extent.end.offset) for one in given}
        called = [one for one in kids if (one.extent.start.offset, one.extent.end.offset) not in places]
        name = WORK_ITEM.get(made.op, "") if self.language == "opencl" and len(given) == 1 else ""
        if name and (axis := _AXES.get(constant(given[0]))):
            made.what, made.op = "builtin", f"@{axis}" if name == "@" else f"{name}.{axis}"
            return made
        callee = self._lower(called[0]) if called else Node("other", made.start, made.start, made.type)
        made.kids = [callee, *(self._lower(one) for one in given)]
        owner = callee.kids[0].type.spelling if callee.what == "member" and callee.kids else ""
        if made.op == "thread_rank" and "tile" not in owner and re.search(r"grid_group|thread_block", owner):
            made.what, made.op, made.kids = "builtin", "@x" if "grid_group" in owner else "threadIdx.x", []
            self.ranks = True
        return made


def _what(name: str) -> str:
    """The word for a kind of clang's."""
    if name.endswith("_STMT"):
        name = name.removesuffix("_STMT")
        return _STATEMENTS.get(name, name.lower())
    return "cast" if name.endswith("_CAST_EXPR") else _EXPRESSIONS.get(name, "other")


def prelude(types: Mapping[str, str], c_names: Mapping[str, str]) -> str:
    """Declarations of a task's types, by the C names of the types that they stand for."""
    lines = []
    for name, dtype in sorted(types.items()):
        lines += [f"typedef {c_names[dtype]} {name};", f"#define {name}_IS_{dtype.upper()} 1"]
    return "\n".join([*lines, ""])
