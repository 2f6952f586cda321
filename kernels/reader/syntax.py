"""The statements and expressions of functions, with their places in the source, from clang's tree.

Owns the records that `tunesmith.kernels.reader.run` runs and the passes of `tunesmith.kernels.rewrite` read. CUDA C++
and OpenCL C give the same ones: indices of threads have CUDA's names, barriers are barriers. Parentheses are left out,
a conversion that nobody wrote is a mark of the expression that it converts; names are symbols, by their declaration.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from tunesmith.kernels.reader.parse import FUNCTIONS, Unit, body, constant, kind, library

_BINARY_NAMES = "* / % + - << >> <=> < > <= >= == != & ^ | && || = *= /= %= += -= <<= >>= &= ^= |= ,"
_BINARY = dict(enumerate(_BINARY_NAMES.split(), start=3))
_UNARY_NAMES = "++ -- ++ -- & * + - ~ !"
_UNARY = dict(enumerate(_UNARY_NAMES.split(), start=1))
_BITS = {"BOOL": 1, "CHAR_S": 8, "CHAR_U": 8, "SCHAR": 8, "UCHAR": 8, "SHORT": 16, "USHORT": 16, "INT": 32, "UINT": 32}
_BITS |= {"LONG": 64, "ULONG": 64, "LONGLONG": 64, "ULONGLONG": 64, "ENUM": 32}
_UNSIGNED = frozenset({"BOOL", "CHAR_U", "UCHAR", "USHORT", "UINT", "ULONG", "ULONGLONG"})
_SIZED_NAMES = "POINTER CONSTANTARRAY FLOAT DOUBLE HALF FLOAT16 LONGDOUBLE BFLOAT16 RECORD VECTOR EXTVECTOR"
_SIZED = frozenset(_SIZED_NAMES.split())
_STATEMENTS = {"COMPOUND": "block", "DECL": "declaration", "NULL": "nothing", "INDIRECT_GOTO": "goto"}
_STATEMENTS |= {"CXX_FOR_RANGE": "for each", "MS_ASM": "asm"}
_EXPRESSIONS = {"CONDITIONAL_OPERATOR": "choice", "ARRAY_SUBSCRIPT_EXPR": "index", "MEMBER_REF_EXPR": "member"}
_EXPRESSIONS |= {"DECL_REF_EXPR": "name", "CALL_EXPR": "call", "LAMBDA_EXPR": "lambda", "VAR_DECL": "variable"}
_EXPRESSIONS |= {"PARM_DECL": "parameter", "INIT_LIST_EXPR": "list", "CXX_THIS_EXPR": "this"}
_ASSIGNING = frozenset(f"operator{one}=" for one in ("", *"+-*/%&|^", "<<", ">>"))
_SKIPPED = ("TYPE_REF", "TEMPLATE_REF", "NAMESPACE_REF", "OVERLOADED_DECL_REF")
BUILTINS = ("threadIdx", "blockIdx", "blockDim", "gridDim")
WORK_ITEM = {"get_local_id": "threadIdx", "get_group_id": "blockIdx", "get_local_size": "blockDim"}
WORK_ITEM |= {"get_num_groups": "gridDim", "get_global_id": "@", "get_global_size": "gridSize"}
_ITEMS = {word: function for function, word in WORK_ITEM.items()}
_AXES: dict[Any, str] = {0: "x", 1: "y", 2: "z"}
LOOPS = frozenset({"for", "while", "do", "for each"})
READING = frozenset({"__ldg", "__ldcs", "__ldca", "__ldcg", "__ldcv", "__ldlu"})
"""Functions that read through a pointer."""
LEFT, LAMBDA = LOOPS | {"switch"}, frozenset({"lambda"})
"""Statements that `break` or `continue` leave, and expressions that `return` does."""
STATEMENTS = LOOPS | {"block", "declaration", "if", "switch", "return", "break", "nothing", "continue", "goto", "label"}
QUALIFIERS = re.compile(r"\b(?:const|volatile|__(?:global|local|constant|private))\b\s*")
_TEXT = re.compile(rb"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Kind:
    """A canonical type. what: "number", "float", "pointer", "array", "record" or "void"; size: bytes; least, largest:
    of a number; element: of a pointer or an array; const: of what a pointer points to; reference: to such a type;
    spelling: as written."""

    what: str
    size: int
    spelling: str
    least: float = -float("inf")
    largest: float = float("inf")
    element: Kind | None = None
    const: bool = False
    reference: bool = False

    def like(self, other: Kind) -> bool:
        """Whether both hold the same values."""
        mine, others = (
            (one.what, one.size, one.least, one.largest, 0 if one.element is None else one.element.size)
            for one in (self, other)
        )
        return mine == others and self.what != "void"


LONG, UINT = Kind("number", 8, "long", -(2**63), 2**63 - 1), Kind("number", 4, "unsigned int", 0, 2**32 - 1)


def bytes_of(count: int) -> Kind:
    """As many bytes as they come."""
    return Kind("record", count, "")


def step_of(kind: Kind) -> int:
    """Bytes from one element that a pointer or an array has to the next."""
    return max(1 if kind.element is None else kind.element.size, 1)


_kinds: dict[str, Kind] = {}


def kind_of(type_: Any) -> Kind:
    spelling = type_.get_canonical().spelling
    found = _kinds.get(spelling)
    if found is None or found.what == "record":
        found = _kinds[spelling] = _kind(type_.get_canonical())
    return found


def _kind(type_: Any) -> Kind:
    what, spelling = type_.kind.name, type_.spelling
    # Of other types clang has no size, and stops the process where it is asked for one.
    size = max(type_.get_size(), 0) if what in _SIZED or what in _BITS else 0
    if what in _BITS:
        bits = _BITS[what]
        if what in _UNSIGNED:
            return Kind("number", size, spelling, 0, 2**bits - 1)
        return Kind("number", size, spelling, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if what in ("POINTER", "VARIABLEARRAY", "INCOMPLETEARRAY", "CONSTANTARRAY", "LVALUEREFERENCE", "RVALUEREFERENCE"):
        inner = type_.get_pointee() if what == "POINTER" or what.endswith("REFERENCE") else type_.element_type
        element = kind_of(inner)
        if what.endswith("REFERENCE"):
            return replace(element, spelling=spelling, reference=True)
        shape = "pointer" if what == "POINTER" else "array"
        return Kind(shape, size, spelling, element=element, const=inner.is_const_qualified())
    if what in ("FLOAT", "DOUBLE", "HALF", "FLOAT16", "LONGDOUBLE", "BFLOAT16"):
        return Kind("float", size, spelling)
    if what == "RECORD" and re.fullmatch(
        r"(?:const |volatile )*(?:struct )?(?:__half|__nv_(?:bfloat16|fp8_e[45]m[23]))", spelling
    ):
        return Kind("float", size, spelling)
    if what in ("VECTOR", "EXTVECTOR"):
        return Kind("record", size, spelling, element=kind_of(type_.element_type))
    return Kind("void" if what == "VOID" else "record", size, spelling)


@dataclass(eq=False, slots=True)
class Symbol:
    """The meaning of a name, by its declaration. what: "parameter", "variable" (of the kernel or of a function),
    "global" (for all blocks), "function" or "other"; written: its type as written; shared: in the memory of a block;
    place: of its declaration in the source; references: the numbers of a function's arguments that it may change;
    definition: a function's body, and arguments, where the source has it; declared: a variable's declaration."""

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
        return QUALIFIERS.sub("", inner).strip()

    @property
    def pointer(self) -> bool:
        return self.type.what in ("pointer", "array")


NOTHING = Symbol("", "other", Kind("void", 0, "void"), "", -1)
"""The symbol of an expression that names nothing."""


@dataclass(eq=False, slots=True)
class Node:
    """A statement or an expression. what: its kind in one word; start, end: bytes of the source; op: an operator, or
    the name of a member or of what is called; symbol: what a name or a call refers to, or a declaration declares;
    value: of a constant; converted: the type that a conversion which nobody wrote gives the value; fixed: a macro wrote
    it, so that it has no text of its own; cursor: clang's. A `builtin` is `threadIdx.x` and the like, "@x" the number
    of a thread among all, gridSize their count."""

    what: str
    start: int
    end: int
    type: Kind
    kids: list[Node] = field(default_factory=list, repr=False)
    op: str = ""
    symbol: Symbol = NOTHING
    value: int | float | None = None
    converted: Kind | None = None
    fixed: bool = False
    parent: Node | None = field(default=None, repr=False)
    cursor: Any = field(default=None, repr=False)

    @property
    def result(self) -> Kind:
        """The type of the value, after all conversions."""
        return self.converted or self.type

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

    def inside(self, whats: frozenset[str], within: Node | None = None) -> bool:
        """Whether it stands in a node of some kinds; within: in one that is a part of this node."""
        inner = itertools.takewhile(lambda above: above is not within, (above for above, _ in self.above()))
        return any(above.what in whats for above in inner)

    @property
    def parts(self) -> list[Node]:
        """The statements of which a statement is made."""
        return self.kids[{"block": 0, "if": 1, "for": 3, "while": 1}.get(self.what, len(self.kids)) :]

    @property
    def alone(self) -> bool:
        """Whether it is a statement, so that nobody uses its value."""
        return self.parent is not None and any(one is self for one in self.parent.parts)

    def holds(self, node: Node) -> bool:
        return node is self or any(above is self for above, _ in node.above())

    @property
    def statement(self) -> Node:
        """The statement that the node is, or is a part of."""
        at = self
        while at.parent is not None and at.what not in STATEMENTS and at.parent.what not in STATEMENTS:
            at = at.parent
        return at


class Lowering:
    """The records of a source's functions. shift: bytes ahead of the source in the text that clang has; rewrites:
    whether they are for rewriting its text, so that functions have bodies where it has them itself, and instances of a
    template are one. ranks: whether the number of a thread is asked of its group, which counts it along x alone."""

    def __init__(self, unit: Unit, shift: int = 0, *, rewrites: bool = False) -> None:
        self.unit, self.ranks = unit, False
        self._shift, self._rewrites = shift, rewrites
        self._symbols: dict[tuple[str, str, int], Symbol] = {}
        self._bodies: dict[Symbol, Node] = {}

    def body(self, function: Symbol) -> Node:
        """The statements of a function that has a definition."""
        if function not in self._bodies:
            self._bodies[function] = self.node(function.definition)
        return self._bodies[function]

    def symbol(self, cursor: Any) -> Symbol:
        """The symbol of a declaration."""
        cursor = cursor.canonical
        place = cursor.location
        key = ("" if self._rewrites else cursor.get_usr(), place.file.name if place.file else "", place.offset)
        found = self._symbols.get(key)
        if found is not None:
            return found
        what, type_ = kind(cursor), kind_of(cursor.type)
        if what == "PARM_DECL" and type_.what == "array" and not self._rewrites:
            # Of `float x[3]` the caller gives a pointer.
            type_ = replace(type_, what="pointer", size=8)
        attributes = [kind(one) for one in cursor.get_children()] if what == "VAR_DECL" else []
        outside = cursor.semantic_parent is None or kind(cursor.semantic_parent) in ("TRANSLATION_UNIT", "NAMESPACE")
        names: dict[str, Any] = {"PARM_DECL": "parameter", "VAR_DECL": "global" if outside else "variable"}
        local = what == "VAR_DECL" and type_.what != "pointer" and "__local " in f"{type_.spelling} "
        made = self._symbols[key] = Symbol(
            cursor.spelling,
            "function" if what in (*FUNCTIONS, "CXX_METHOD", "CONVERSION_FUNCTION") else names.get(what, "other"),
            type_,
            cursor.type.spelling,
            place.offset - self._shift,
            local or "CUDASHARED_ATTR" in attributes,
            "volatile" in cursor.type.spelling,
            what == "VAR_DECL" and cursor.storage_class.name == "STATIC",
        )
        if made.what == "function":
            taken = [one.type for one in cursor.get_arguments()]
            by_reference = [at for at, one in enumerate(taken) if one.kind.name == "LVALUEREFERENCE"]
            made.references = frozenset(at for at in by_reference if not taken[at].get_pointee().is_const_qualified())
            defined = cursor.get_definition()
            if defined is not None and (not self._rewrites or str(defined.location.file) == self.unit.where):
                made.definition = body(defined)
                made.arguments = tuple(self.symbol(one) for one in defined.get_arguments())
        return made

    def node(self, cursor: Any) -> Node:
        """The record of a statement or an expression, with all below it."""
        what = kind(cursor)
        kids = [one for one in cursor.get_children() if kind(one) not in _SKIPPED and not kind(one).endswith("_ATTR")]
        if what in ("PAREN_EXPR", "UNEXPOSED_EXPR") and len(kids) == 1:
            return self._converted(cursor, kids[0])
        if what == "UNEXPOSED_STMT" and len(kids) == 1 and not self._rewrites:
            # Behind a pragma, which changes nothing of what a loop does.
            return self.node(kids[0])
        extent = cursor.extent
        start, end = extent.start.offset - self._shift, extent.end.offset - self._shift
        made = Node(_what(what), start, end, kind_of(cursor.type), cursor=cursor)
        if what in ("BINARY_OPERATOR", "COMPOUND_ASSIGNMENT_OPERATOR"):
            made.op = _BINARY.get(library().clang_getCursorBinaryOperatorKind(cursor), "?")
            assigns = made.op.endswith("=") and made.op not in ("==", "!=", "<=", ">=")
            made.what = "assign" if assigns else "binary"
        elif what == "UNARY_OPERATOR":
            made.op = _UNARY.get(library().clang_getCursorUnaryOperatorKind(cursor), "?")
            made.what = {"++": "count", "--": "count", "&": "address", "*": "deref"}.get(made.op, "unary")
        elif what.endswith("_LITERAL") or what in ("CXX_UNARY_EXPR", "CXX_BOOL_LITERAL_EXPR"):
            made.what, made.value = "literal", constant(cursor) if what != "STRING_LITERAL" else None
            return made
        elif what == "CXX_NULL_PTR_LITERAL_EXPR":
            made.what, made.value = "literal", 0
        elif what == "CALL_EXPR":
            return self._call(cursor, made, kids)
        elif what in ("DECL_REF_EXPR", "MEMBER_REF_EXPR"):
            made.op, target = cursor.spelling, cursor.referenced
            if target is not None and kind(target) == "ENUM_CONSTANT_DECL":
                made.what, made.value = "literal", target.enum_value
                return made
            if what == "DECL_REF_EXPR" and len(kids) == 1:
                # The parameter of a template, in an instance.
                return self.node(kids[0])
            if target is not None:
                made.symbol = self.symbol(target)
                made.type = made.symbol.type if made.symbol.what == "parameter" else made.type
            if what == "DECL_REF_EXPR" and made.op == "warpSize":
                made.what, made.value = "literal", 32
        elif what in ("VAR_DECL", "PARM_DECL"):
            made.symbol = self.symbol(cursor)
            made.symbol.declared = made
            lists = ("INIT_LIST_EXPR", "STRING_LITERAL")
            kids = [one for one in kids[-1:] if made.type.what != "array" or kind(one) in lists]
            kids = kids if what == "VAR_DECL" else []
        elif what == "FOR_STMT":
            nothing = Node("nothing", start, start, made.type)
            made.kids = [nothing if one is None else self.node(one) for one in _parts_of_for(cursor, kids)]
            return made
        made.kids = [self.node(one) for one in kids]
        inner = made.kids[0] if made.kids else None
        if what == "MEMBER_REF_EXPR" and inner is not None and inner.op in BUILTINS and _outside(inner):
            made.what, made.op, made.kids, made.symbol = "builtin", f"{inner.op}.{made.op}", [], NOTHING
        return made

    def _converted(self, cursor: Any, inner: Any) -> Node:
        made, into = self.node(inner), kind_of(cursor.type)
        if not into.like(made.result) and (into.what, made.type.what) != ("array", "pointer"):
            made.converted = into
        return made

    def _call(self, cursor: Any, made: Node, kids: list[Any]) -> Node:
        """A call: what is called, then the arguments."""
        given, target = list(cursor.get_arguments()), cursor.referenced
        if (target is not None and kind(target) == "CONSTRUCTOR") or (target is None and not cursor.spelling):
            if len(kids) == 1:
                return self._converted(cursor, kids[0])
            made.what, made.kids = "construct", [self.node(one) for one in kids]
            return made
        made.op = cursor.spelling or "operator"
        if target is not None:
            made.symbol = self.symbol(target)
        if made.op in _ASSIGNING and len(given) == 2:
            made.what, made.op, made.symbol = "assign", made.op.removeprefix("operator"), NOTHING
            made.kids = [self.node(one) for one in given]
            return made
        places = {(one.extent.start.offset, one.extent.end.offset) for one in given}
        called = [one for one in kids if (one.extent.start.offset, one.extent.end.offset) not in places]
        name = WORK_ITEM.get(made.op, "") if self.unit.language == "opencl" and len(given) == 1 else ""
        if name and (axis := _AXES.get(constant(given[0]))):
            made.what, made.op = "builtin", f"@{axis}" if name == "@" else f"{name}.{axis}"
            return made
        callee = self.node(called[0]) if called else Node("other", made.start, made.start, made.type)
        made.kids = [callee, *(self.node(one) for one in given)]
        owner = callee.kids[0].type.spelling if callee.what == "member" and callee.kids else ""
        if owner.startswith(("cub::Block", "cub::Warp")):
            # All threads take part, as in `__syncthreads_or` and `__reduce_add_sync`.
            made.op = f"{'__syncthreads' if owner.startswith('cub::Block') else '__reduce'}_{made.op}"
        if made.op == "thread_rank" and "tile" not in owner and re.search(r"grid_group|thread_block", owner):
            made.what, made.op, made.kids = "builtin", "@x" if "grid_group" in owner else "threadIdx.x", []
            self.ranks = True
        return made


class Syntax:
    """One kernel of a source. code: the whole source; prelude: declarations ahead of it; language: "cuda" or "opencl";
    entry: the kernel's name. functions: the bodies of the source's functions that it calls, directly or not;
    macros: where they are used, from byte to byte, with clang's cursor.

    Raises `SourceError` for a source without that kernel."""

    def __init__(
        self, code: str, language: str, entry: str | None, where: str = "the source", prelude: str = ""
    ) -> None:
        self.language, self._shift = language, len(prelude.encode())
        self.code = code.encode()
        self.unit = Unit(prelude + code, Path(where), language)
        found = self.unit.entry(entry)
        self.name, self.cursor = found.name, found.function
        uses = [one for one in self.unit.macros("MACRO_INSTANTIATION") if str(one.location.file) == self.unit.where]
        places = ((one.extent.start.offset - self._shift, one.extent.end.offset - self._shift, one) for one in uses)
        self.macros = sorted(places, key=lambda one: one[:2])
        self.start = self.cursor.extent.start.offset - self._shift
        self.name_at = self.cursor.location.offset - self._shift
        self.lowering = lowering = Lowering(self.unit, self._shift, rewrites=True)
        self.parameters = [lowering.symbol(one) for one in self.cursor.get_arguments()]
        self.body = lowering.node(body(self.cursor))
        bodies = {self.body.start: self.body}
        waiting = [self.body]
        while waiting:
            for node in self._linked(waiting.pop()).walk():
                inside = node.symbol.definition
                if inside is not None and inside.extent.start.offset - self._shift not in bodies:
                    waiting.append(lowering.body(node.symbol))
                    bodies[waiting[-1].start] = waiting[-1]
        self.functions = list(bodies.values())[1:]

    def text(self, node: Node) -> str:
        return self.code[node.start : node.end].decode(errors="replace")

    def line(self, node: Node) -> int:
        return self.code.count(b"\n", 0, node.start) + 1

    def end(self, statement: Node) -> int:
        """Where the text of a statement ends, with its semicolon."""
        last, code = statement, self.code
        while last.what in {"if", "switch", *LOOPS} - {"do"}:
            last = last.kids[-1]
        closed = last.what in STATEMENTS and code[statement.end - 1 : statement.end] in (b"}", b";")
        return statement.end if closed else code.index(b";", statement.end) + 1

    @cached_property
    def plain(self) -> bytes:
        """The text of the kernel's body, and of the functions that it calls, without comments and strings."""
        return b"\n".join(_TEXT.sub(b"", self.code[one.start : one.end]) for one in (self.body, *self.functions))

    @property
    def launches(self) -> bool:
        """Whether the kernel, or a function that it calls, launches kernels."""
        return b"<<<" in self.plain

    @cached_property
    def problems(self) -> list[tuple[int, str]]:
        """Clang's errors in the kernel and in the functions that it calls, by line."""
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

    def _linked(self, made: Node) -> Node:
        """The record with what is above each part of it, and which parts a macro wrote."""
        starts = [start for start, *_ in self.macros]
        for node in made.walk():
            for one in node.kids:
                one.parent = node
        for node in made.walk():
            at = bisect.bisect_right(starts, node.start) - 1
            if at >= 0 and node.end <= (last := self.macros[at][1]) and node.parent is not None:
                above = node.parent
                node.fixed = (above.start >= node.start and above.end <= last) or node.end < last
        return made


def builtin(name: str, language: str) -> str:
    """`threadIdx.x` and the like in a language."""
    word, axis = name.split(".")
    return name if language == "cuda" else f"{_ITEMS[word]}({'xyz'.index(axis)})"


def _outside(name: Node) -> bool:
    """Whether a name stands for a variable outside of functions."""
    return name.what == "name" and name.symbol.what == "global"


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


def _parts_of_for(cursor: Any, kids: list[Any]) -> list[Any]:
    """The start, the condition, the step and the body of a loop, None for a missing one, which clang leaves out."""
    if len(kids) == 4:
        return kids
    parts: list[Any] = [None, None, None]
    marks, depth = list[int](), 0
    for token in cursor.get_tokens():
        depth += (token.spelling in ("(", "[", "{")) - (token.spelling in (")", "]", "}"))
        if token.spelling == ";" and depth == 1:
            marks.append(token.extent.start.offset)
        if len(marks) == 2:
            break
    for one in kids[:-1]:
        parts[min(sum(mark < one.extent.start.offset for mark in marks), 2)] = one
    return [*parts, kids[-1] if kids else None]
