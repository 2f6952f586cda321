"""Structures that a kernel takes by value: each member that it uses becomes a parameter of its own.

The text of the kernel is changed before anything else is read of it: its body begins with the structure, made of these
parameters. Members that no function of the device uses are zero.
"""

from __future__ import annotations

import re
from typing import Any

from tunesmith.kernels.reader.facts import cast_to, task_type
from tunesmith.kernels.reader.launch import CALL
from tunesmith.kernels.reader.parse import FUNCTIONS, Entry, Unit, body, kind, split, walk

MAX_ELEMENTS = 32
"""Elements of a member that is an array, each of which becomes a parameter."""


def with_members(unit: Unit, entry: Entry) -> str | None:
    """The source with members in the place of structures; None without any, or where one cannot be a parameter."""
    code, edits, made, spread = unit.code.encode(), list[tuple[int, int, str]](), list[str](), dict[int, list[str]]()
    used = used_members(entry.function)
    names = [one.spelling for one in entry.function.get_arguments()]
    generic = [one for one in entry.declared.get_children() if kind(one) == "PARM_DECL"]
    for at, (one, written) in enumerate(zip(entry.function.get_arguments(), generic, strict=True)):
        type_ = one.type.get_canonical()
        if type_.kind.name not in ("RECORD", "EXTVECTOR") or task_type(type_):
            continue
        start, end = written.extent.start, written.extent.end.offset
        parameters, value = _flat(type_, one.spelling, "", used, entry.declared, unit.language) or ({}, "")
        taken = {one.rpartition(" ")[2] for one in parameters} & {*names}
        if start.file is None or start.file.name != unit.where or not parameters or taken:
            return None
        edits.append((start.offset, end, ", ".join(parameters)))
        made.append(f" {written.type.spelling.removeprefix('__private ')} {one.spelling} = {value};")
        spread[at] = [*parameters.values()]
    begin = body(entry.declared)
    if not edits or begin is None:
        return None
    edits.append((begin.extent.start.offset + 1, begin.extent.start.offset + 1, "".join(made)))
    for first, last, text in sorted(edits, reverse=True):
        code = code[:first] + text.encode() + code[last:]
    calls = re.compile(rf'(?<={CALL}\("{entry.name}", )([^;]*)(?=\); )')
    return calls.sub(lambda call: _spread(call[1], spread), code.decode(errors="replace"))


def _spread(call: str, members: dict[int, list[str]]) -> str:
    """What is passed to a launch, with the members of structures in their place."""
    parts = split(call)
    for at, names in sorted(members.items(), reverse=True):
        given = parts[at + 3] if at + 3 < len(parts) else "0"
        parts[at + 3 : at + 4] = [f"{given}{name}" if given != "0" else "0" for name in names]
    return ", ".join(parts)


def _flat(
    record: Any, name: str, path: str, used: set[str], function: Any, language: str
) -> tuple[dict[str, str], str] | None:
    """Parameters for the members of a structure called `name`, with their paths in it behind `path`, and the
    initialiser that makes it of them; None where one cannot be a parameter. function: the kernel."""
    parameters, values = dict[str, str](), list[str]()
    if record.kind.name == "EXTVECTOR":
        names = [f"{name}_{'xyzw'[at] if record.element_count <= 4 else at}" for at in range(record.element_count)]
        element = record.element_type.spelling
        made = f"({element.replace('unsigned ', 'u')}{len(names)})({', '.join(names)})"
        return {f"{element} {one}": "" for one in names}, made
    if {"CXX_BASE_SPECIFIER", "CONSTRUCTOR"} & {kind(one) for one in record.get_declaration().get_children()}:
        return None
    for member in record.get_fields():
        called, type_ = f"{name}_{member.spelling}", member.type.get_canonical()
        at = f"{path}.{member.spelling}"
        if member.get_usr() not in used:
            in_c = "{0}" if type_.kind.name in ("RECORD", "CONSTANTARRAY") else "0"
            values.append("{}" if language == "cuda" else in_c)
        elif type_.kind.name in ("RECORD", "EXTVECTOR") and not task_type(type_):
            if (inner := _flat(type_, called, at, used, function, language)) is None:
                return None
            parameters |= inner[0]
            values.append(inner[1])
        elif (
            type_.kind.name == "CONSTANTARRAY" and _is_plain(type_.element_type) and type_.element_count <= MAX_ELEMENTS
        ):
            names = [f"{called}_{number}" for number in range(type_.element_count)]
            kept = type_.element_type.spelling
            parameters |= {f"{kept} {one}": f"{at}[{number}]" for number, one in enumerate(names)}
            values.append(f"{{{', '.join(names)}}}")
        elif _is_plain(type_):
            to_void = type_.kind.name == "POINTER" and type_.get_pointee().kind.name == "VOID"
            into = cast_to(function, member) if to_void else None
            parameters[f"{member.type.spelling if into is None else f'{into.spelling} *'} {called}"] = at
            values.append(called)
        else:
            return None
    return parameters, f"{{{', '.join(values)}}}"


def _is_plain(type_: Any) -> bool:
    """Whether it is a number, or a pointer to something else than a function."""
    inner = type_.get_canonical().get_pointee()
    return bool(task_type(type_)) if inner.kind.name == "INVALID" else inner.kind.name != "FUNCTIONPROTO"


def used_members(function: Any) -> set[str]:
    """What identifies all members that the function, or a function that it calls, reads or writes."""
    waiting, seen, used = [function], set[int](), set[str]()
    while waiting:
        for one, target in ((one, one.referenced) for one in walk(waiting.pop())):
            if target is not None and kind(one) == "MEMBER_REF_EXPR":
                used.add(target.get_usr())
            if target is not None and kind(target) in (*FUNCTIONS, "CXX_METHOD") and target.hash not in seen:
                seen.add(target.hash)
                waiting.append(target.get_definition() or target)
    return used
