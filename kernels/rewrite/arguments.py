"""Which parameters a kernel may have to be a task, and what its author writes instead of the others.

Owns the sentences. A task's arguments are scalars and arrays of the types in `tunesmith.kernels.spec.dtypes`.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from tunesmith.kernels.rewrite.source import Kernel, Parameter, SourceError, text, walk
from tunesmith.kernels.spec.dtypes import C_TYPES

_VECTOR = re.compile(r"((?:u?(?:char|short|int|long|longlong))|float|double)([1-4])(?:_\d+a)?")
_PAIRS = {"__half2": "__half", "half2": "__half", "__nv_bfloat162": "__nv_bfloat16", "nv_bfloat162": "__nv_bfloat16"}
_COMPONENTS = "xyzw"
_TEXTURE = re.compile(r"cuda(?:Texture|Surface)Object_t|texture<.*>|surface<.*>")


def require_arguments(kernel: Kernel, types: Collection[str], where: str) -> None:
    """Raises `SourceError`, with `where` in front, for the first parameter that no argument of a task can be. types:
    names that stand for types of the task."""
    if kernel.unread_parameters:
        raise SourceError(
            f"{where}: `{' '.join(kernel.unread_parameters[0].split())}` in the signature of {kernel.name} is no "
            "parameter with a type and a name; write out the parameters that you use."
        )
    for one in kernel.parameters:
        if not one.name:
            raise SourceError(f"{where}: a parameter of {kernel.name} has no name; give it one.")
        if why := _refused(kernel, one, types):
            raise SourceError(f"{where}: the parameter {one.name} of {kernel.name} {why}.")


def unusual(one: Parameter) -> str:
    """What a parameter is that is neither a scalar nor a pointer to elements, and the remedy; empty for others."""
    array = f"`{'const ' if one.const else ''}{one.c_type}* {one.name}`"
    instead = {
        "a pointer to pointers": f"join the arrays into one, {array}, with another argument for where each begins",
        "a pointer to arrays": f"declare it as {array}, and for {one.name}[i][j] write {one.name}[i * LENGTH + j] "
        "with the length of a row",
        "a reference": f"declare it by value, as `{one.c_type} {one.name}`",
        "a pointer to a function": "call a __device__ function by its name instead",
    }
    return f"is {one.unusual}: {instead[one.unusual]}" if one.unusual else ""


def _refused(kernel: Kernel, one: Parameter, types: Collection[str]) -> str:
    """Why a parameter can be no argument, and the remedy, as a clause that follows its name; empty where it can."""
    if one.unusual:
        return unusual(one)
    if not one.pointer and _called(kernel, one.name):
        return "is called as a function: call a __device__ function by its name instead, or write out its code"
    if one.c_type in C_TYPES or one.c_type in types:
        return ""
    kind = one.c_type.removeprefix("struct ").removeprefix("class ").removeprefix("enum ").split("::")[-1]
    array = f"`{'const ' if one.const else ''}{{}}* {one.name}`"
    if one.c_type == "void":
        return f"is a void pointer: declare it with the type of its elements, such as {array.format('float')}"
    if _TEXTURE.fullmatch(kind):
        return f"is a texture or surface, which no argument can be: read from an array, `const float* {one.name}`"
    vector = _VECTOR.fullmatch(kind)
    if vector is not None or kind in _PAIRS:
        element, count = (vector[1], int(vector[2])) if vector is not None else (_PAIRS[kind], 2)
        element = "long long" if element == "longlong" else element
        if one.pointer:
            cast = f"({'const ' if one.const else ''}{kind}*){one.name}"
            return f"points to `{kind}`: declare it as {array.format(element)} and cast inside, `{cast}`"
        parts = ", ".join(f"{element} {one.name}_{_COMPONENTS[at]}" for at in range(count))
        return f"is a `{kind}`: make its components parameters of their own ({parts})"
    if _defined(kernel, kind, "enum") is not None:
        return f"has the enumeration `{kind}` as its type: declare it as `int {one.name}` and cast inside"
    members = _defined(kernel, kind, "struct")
    if members is not None and one.pointer:
        return (
            f"points to the structure `{kind}`: declare it as a pointer to the type of its members, such as "
            f"{array.format('float')}, and cast inside"
        )
    if members is not None:
        shown = f" ({', '.join(members)})" if members else ""
        return f"is the structure `{kind}`: make each member that is used a parameter of its own{shown}"
    return (
        f"has the type `{one.c_type}`, which tasks do not know: write the C type that it stands for "
        f"({', '.join(list(C_TYPES)[:3])}, ...), or make each used member of an object a parameter of its own"
    )


def _called(kernel: Kernel, name: str) -> bool:
    for node in walk(kernel.body):
        function = node.child_by_field_name("function") if node.type == "call_expression" else None
        if function is not None and text(function) == name:
            return True
    return False


def _defined(kernel: Kernel, name: str, what: str) -> list[str] | None:
    """The members of the structure or enumeration that the source defines by this name; None where it defines none."""
    kinds = ("enum_specifier",) if what == "enum" else ("struct_specifier", "class_specifier", "union_specifier")
    for node in walk(kernel.root):
        if node.type in kinds and (body := node.child_by_field_name("body")) is not None:
            given = node.child_by_field_name("name")
            above = node.parent
            named = {text(given)} if given is not None else set()
            if above is not None and above.type == "type_definition":
                named |= {text(one) for one in above.children_by_field_name("declarator")}
            if name in named:
                fields = [one for one in body.named_children if one.type == "field_declaration"]
                return [text(at) for one in fields for at in walk(one) if at.type == "field_identifier"]
    return None
