"""The statements and expressions of a function, as plain records: what `tunesmith.kernels.reader.run` walks.

Owns the translation of clang's cursors, of which only those parts stay that computing needs: no parentheses, no names
of types, operators by their spelling.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from tunesmith.kernels.reader.parse import constant, kind, library

_BINARY_NAMES = "* / % + - << >> <=> < > <= >= == != & ^ | && || = *= /= %= += -= <<= >>= &= ^= |= ,"
BINARY = dict(enumerate(_BINARY_NAMES.split(), start=3))
_UNARY_NAMES = "++ -- ++x --x & * + - ~ !"
UNARY = dict(enumerate(_UNARY_NAMES.split(), start=1))
_BITS = {"BOOL": 1, "CHAR_S": 8, "CHAR_U": 8, "SCHAR": 8, "UCHAR": 8, "SHORT": 16, "USHORT": 16, "INT": 32, "UINT": 32}
_BITS |= {"LONG": 64, "ULONG": 64, "LONGLONG": 64, "ULONGLONG": 64, "ENUM": 32}
_UNSIGNED = frozenset({"BOOL", "CHAR_U", "UCHAR", "USHORT", "UINT", "ULONG", "ULONGLONG"})
_SIZED_NAMES = "POINTER CONSTANTARRAY FLOAT DOUBLE HALF FLOAT16 LONGDOUBLE BFLOAT16 RECORD VECTOR EXTVECTOR"
_SIZED = frozenset(_SIZED_NAMES.split())
_SKIPPED = ("TYPE_REF", "TEMPLATE_REF", "NAMESPACE_REF", "OVERLOADED_DECL_REF")


@dataclass(frozen=True, slots=True)
class Kind:
    """A canonical type. what: "number", "float", "pointer", "array", "record" or "void"; size: bytes; least, largest:
    of a number; element: of a pointer or an array; const: of what a pointer points to; reference: to such a type;
    space: the address space of a pointer's target, as OpenCL counts them; spelling: as written."""

    what: str
    size: int
    spelling: str
    least: float = -float("inf")
    largest: float = float("inf")
    element: Kind | None = None
    const: bool = False
    reference: bool = False
    space: int = 0

    def like(self, other: Kind) -> bool:
        """Whether both hold the same values."""
        pairs = (self.what, self.size, self.least, self.largest), (other.what, other.size, other.least, other.largest)
        inner = (0 if one.element is None else one.element.size for one in (self, other))
        return pairs[0] == pairs[1] and len(set(inner)) == 1 and self.what != "void"


LONG, UINT = Kind("number", 8, "long", -(2**63), 2**63 - 1), Kind("number", 4, "unsigned int", 0, 2**32 - 1)


def bytes_of(count: int) -> Kind:
    """As many bytes as they come."""
    return Kind("record", count, "")


def step_of(kind: Kind) -> int:
    """Bytes from one element that a pointer or an array has to the next."""
    return max(1 if kind.element is None else kind.element.size, 1)


@dataclass(slots=True, eq=False)
class Node:
    """A statement or an expression. what: clang's name of it; op: an operator; name: of what it names or declares;
    target: the key of that declaration; value: of a constant; cursor: clang's."""

    what: str
    kind: Kind
    kids: list[Node]
    cursor: Any
    op: str = ""
    name: str = ""
    target: str = ""
    value: int | float | None = None
    assigned: set[str] | None = field(default=None)


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
            return Kind(
                element.what, element.size, spelling, element.least, element.largest, element.element, reference=True
            )
        shape = "pointer" if what == "POINTER" else "array"
        const = inner.is_const_qualified()
        return Kind(shape, size, spelling, element=element, const=const, space=inner.get_address_space())
    if what in ("FLOAT", "DOUBLE", "HALF", "FLOAT16", "LONGDOUBLE", "BFLOAT16"):
        return Kind("float", size, spelling)
    if what == "RECORD" and re.fullmatch(
        r"(?:const |volatile )*(?:struct )?(?:__half|__nv_(?:bfloat16|fp8_e[45]m[23]))", spelling
    ):
        return Kind("float", size, spelling)
    if what in ("VECTOR", "EXTVECTOR"):
        return Kind("record", size, spelling, element=kind_of(type_.element_type))
    return Kind("void" if what == "VOID" else "record", size, spelling)


def key(cursor: Any) -> str:
    """What tells a declaration from others."""
    canonical = cursor.canonical
    place = canonical.location
    return f"{canonical.spelling}@{place.file.name if place.file else ''}:{place.offset}"


def lower(cursor: Any) -> Node:
    """The record of a statement or an expression, with all below it."""
    what = kind(cursor)
    kids = [one for one in cursor.get_children() if kind(one) not in _SKIPPED and not kind(one).endswith("_ATTR")]
    if what == "PAREN_EXPR" and len(kids) == 1:
        return lower(kids[0])
    made = Node(what, kind_of(cursor.type), [], cursor)
    if what == "UNEXPOSED_EXPR" and len(kids) == 1:
        # Mostly that a variable is read, which changes nothing.
        inner = lower(kids[0])
        made.kids = [inner]
        return inner if made.kind.like(inner.kind) else made
    if what in ("BINARY_OPERATOR", "COMPOUND_ASSIGNMENT_OPERATOR"):
        made.op = BINARY.get(library().clang_getCursorBinaryOperatorKind(cursor), "")
    elif what == "UNARY_OPERATOR":
        made.op = UNARY.get(library().clang_getCursorUnaryOperatorKind(cursor), "")
    elif what.endswith("_LITERAL") or what in ("CXX_UNARY_EXPR", "CXX_BOOL_LITERAL_EXPR", "CXX_NULL_PTR_LITERAL_EXPR"):
        made.value = constant(cursor) if "NULL_PTR" not in what else 0
        return made
    elif what in ("DECL_REF_EXPR", "MEMBER_REF_EXPR", "CALL_EXPR"):
        made.name = cursor.spelling
        target = cursor.referenced
        if target is not None:
            made.target = key(target)
            if kind(target) == "ENUM_CONSTANT_DECL":
                made.value = target.enum_value
        elif what == "DECL_REF_EXPR" and len(kids) == 1:
            # A template's parameter in an instance.
            return lower(kids[0])
    elif what in ("VAR_DECL", "PARM_DECL"):
        made.name, made.target = cursor.spelling, key(cursor)
        if what == "VAR_DECL" and made.kind.what == "array":
            kids = [one for one in kids if kind(one) in ("INIT_LIST_EXPR", "STRING_LITERAL")]
        elif what == "VAR_DECL":
            kids = kids[-1:]
    elif what == "FOR_STMT":
        nothing = Node("NULL_STMT", Kind("void", 0, "void"), [], cursor)
        made.kids = [nothing if one is None else lower(one) for one in parts_of_for(cursor, kids)]
        return made
    made.kids = [lower(one) for one in kids]
    return made


def parts_of_for(cursor: Any, kids: list[Any]) -> list[Any]:
    """The start, the condition, the step and the body of a loop, None for those that are missing: clang leaves them
    out."""
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
