"""Which parameters a kernel may have to be a task, and what its author writes instead of the others.

Owns the sentences. A task's arguments are scalars and arrays of the types in `tunesmith.kernels.spec.dtypes`.
"""

from __future__ import annotations

import re

from tunesmith.kernels.reader.facts import Parameter

_VECTOR = re.compile(r"((?:u?(?:char|short|int|long|longlong))|float|double|half)(2|3|4|8|16|1)")
_PAIRS = {"__half2": "__half", "__nv_bfloat162": "__nv_bfloat16"}
_COMPONENTS = "xyzw"


def refused(one: Parameter) -> str:
    """Why a parameter can be no argument, and the remedy, as a clause that follows its name; empty where it can."""
    kind = one.kind
    inner = kind.element if one.pointer else None
    if not one.name:
        return "has no name: give it one"
    if kind.reference:
        return f"is a reference: declare it by value, as `{_bare(kind.spelling)} {one.name}`"
    if inner is not None and inner.what in ("pointer", "array"):
        element = _bare(inner.element.spelling if inner.element is not None else "float")
        array = f"`{'const ' if kind.const or (inner.const and inner.what == 'array') else ''}{element}* {one.name}`"
        if inner.what == "pointer":
            joined = f"join the arrays into one, {array}, with another argument for where each begins"
            return f"is a pointer to pointers: {joined}"
        return (
            f"is a pointer to arrays: declare it as {array}, and for {one.name}[i][j] write {one.name}[i * LENGTH + j] "
            "with the length of a row"
        )
    if one.pointer and one.cursor.type.get_canonical().get_pointee().kind.name == "FUNCTIONPROTO":
        return "is a pointer to a function: call a __device__ function by its name instead"
    if one.local or one.dtype:
        return ""
    array = f"`{'const ' if kind.const else ''}{{}}* {one.name}`"
    name = _bare(inner.spelling if inner is not None else kind.spelling)
    if name == "void":
        return f"is a void pointer: declare it with the type of its elements, such as {array.format('float')}"
    if "image" in kind.spelling or "sampler" in kind.spelling or "Texture" in one.cursor.type.spelling:
        return f"is an image or a texture, which no argument can be: read from an array, `const float* {one.name}`"
    written_name = re.sub(
        r"\b(?:const|volatile|restrict|struct|__\w+(?<!half2)(?<!float162))\b|[*&]", "", one.cursor.type.spelling
    ).strip()
    vector = _VECTOR.fullmatch(name) or _VECTOR.fullmatch(written_name)
    if vector is not None or name in _PAIRS:
        element, count = (vector[1], int(vector[2])) if vector is not None else (_PAIRS[name], 2)
        element = "long long" if element == "longlong" else element
        kind_ = vector[0] if vector is not None else name
        parts = ", ".join(f"{element} {one.name}_{_COMPONENTS[at] if at < 4 else at}" for at in range(count))
        return f"is a `{kind_}`: make its components parameters of their own ({parts})"
    record = one.cursor.type.get_canonical()
    members = [field.spelling for field in (record if inner is None else record.get_pointee()).get_fields()]
    if inner is not None:
        why = "have several types" if members else "are not known"
        used = f" ({', '.join(members)})" if members else ""
        return f"points to the structure `{name}`, whose members {why}: make an array of each member that is used{used}"
    shown = f" ({', '.join(members)})" if members else ""
    return f"is the structure `{name}`: make each member that is used a parameter of its own{shown}"


def _bare(spelling: str) -> str:
    """A type without its qualifiers."""
    return re.sub(
        r"\b(?:const|volatile|struct|__(?:global|local|constant|private|restrict))\b|[&]", "", spelling
    ).strip()
