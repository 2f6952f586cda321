"""Does the kernel take what the task says? Compares a source's signature with the arguments.

Owns that comparison. A parameter whose type cannot be told, as one from a header, is not compared.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunesmith.kernels.build.python_source import FIXED, taken_arguments
from tunesmith.kernels.build.source import literal
from tunesmith.kernels.reader.parse import Unit, kind
from tunesmith.kernels.reader.syntax import prelude
from tunesmith.kernels.spec.dtypes import C_TYPES, DTYPES
from tunesmith.kernels.spec.task import Argument, Task, TaskError
from tunesmith.kernels.spec.template import BACKENDS, Template

_POINTERS = {"POINTER": "a pointer to pointers", "FUNCTIONPROTO": "a pointer to a function"}
_ARRAYS = dict.fromkeys(("CONSTANTARRAY", "INCOMPLETEARRAY", "VARIABLEARRAY"), "a pointer to arrays")
_QUALIFIERS = re.compile(r"\b(?:const|volatile|__restrict|__global|__local|__constant|__private)\b\s*")


@dataclass(frozen=True, slots=True)
class _Parameter:
    """A parameter of a kernel. c_type: of an element for a pointer, without qualifiers; unusual: what it is, where
    that is neither a scalar nor a pointer to elements; local: in the memory of a work-group."""

    name: str
    c_type: str
    pointer: bool
    const: bool
    unusual: str
    local: bool


def _parameter(cursor: Any) -> _Parameter:
    type_ = cursor.type.get_canonical()
    what, inner = type_.kind.name, type_
    if what == "POINTER" or what.endswith("REFERENCE"):
        inner = type_.get_pointee()
    unusual = (_POINTERS | _ARRAYS).get(inner.kind.name, "") if what == "POINTER" else ""
    if what.endswith("REFERENCE"):
        unusual = "a reference"
    element = inner.spelling.rstrip(" *") if unusual == "a pointer to pointers" else inner.spelling
    c_type = " ".join(_QUALIFIERS.sub("", element).split())
    local = "__local" in inner.spelling
    return _Parameter(cursor.spelling, c_type, what == "POINTER", inner.is_const_qualified(), unusual, local)


def require_signatures(task: Task, backend: str) -> dict[str, str]:
    """Raises `TaskError` for the first kernel of `task` that takes other arguments than the task has. Returns why a
    signature was not compared, empty where it was, by "baseline" or "template NAME"."""
    sources, found = task.sources(backend), dict[str, str]()
    for template in (sources.baseline.template, *sources.templates):
        what = "baseline" if template is sources.baseline.template else f"template {template.name}"
        found[what] = require_signature(task, template, f"Task {task.name}, {backend} {what}")
    return found


def require_signature(task: Task, template: Template, where: str) -> str:
    """Raises `TaskError`, with `where` in front, where the kernel of `template` takes other arguments than the task
    has. Returns why they were not compared, as a clause; empty where they were."""
    if BACKENDS[template.backend].python:
        taken, given_names = taken_arguments(template.source, task.entry, template.default_config), task.arguments
        if isinstance(taken, str):
            raise TaskError(f"{where}: {taken}.")
        if taken != [argument.name for argument in given_names]:
            raise TaskError(
                f"{where}: a launch of {task.entry} passes {', '.join(taken) or 'nothing'}, and the task has "
                f"{', '.join(argument.name for argument in given_names)}: give the others a value in `{FIXED}`, or "
                "correct the arguments of the task."
            )
        return ""
    c_names = {dtype: one.c_names[template.backend] for dtype, one in DTYPES.items() if template.backend in one.c_names}
    types = {name: next((one for one in those if one in c_names), "float32") for name, those in task.types.items()}
    defined = "".join(f"#define {one.name} {literal(one.start)}\n" for one in template.parameters)
    unit = Unit(defined + prelude(types, c_names) + template.source, Path(where), template.backend)
    kernels = unit.kernels()
    kernel = next((one for one in kernels if one.spelling == task.entry), None)
    if kernel is None:
        if kernels and "##" not in template.source:
            known = ", ".join(dict.fromkeys(one.spelling for one in kernels))
            raise TaskError(f"{where}: there is no kernel '{task.entry}', which `entry` names; the source has {known}.")
        return "the signature was not compared, as a macro makes the kernel"
    if kernel.type.is_function_variadic():
        return "the signature was not compared, as it has `...`"
    given = [_parameter(one) for one in kernel.get_children() if kind(one) == "PARM_DECL"]
    names = [argument.name for argument in task.arguments]
    # In OpenCL dynamic local memory is one argument more, the last.
    local = template.backend == "opencl" and template.launch.shared_bytes != "0"
    if len(given) != len(names) + local:
        if local and len(given) == len(names):
            raise TaskError(
                f"{where}: `launch` has `shared_bytes`, so the kernel {task.entry} takes one parameter more, the last: "
                "add it, such as `__local uchar* scratch`, or leave `shared_bytes` out."
            )
        if not local and len(given) == len(names) + 1 and given[-1].local:
            raise TaskError(
                f"{where}: the last parameter of {task.entry}, {given[-1].name}, is local memory: give its bytes as "
                "`shared_bytes` in `launch`."
            )
        raise TaskError(
            f"{where}: the kernel {task.entry} has {len(given)} parameters ({', '.join(one.name for one in given)}), "
            f"but the task has {len(names)} arguments ({', '.join(names)}); make `arguments` the kernel's."
        )
    found = [parameter.name for parameter in given]
    for argument, parameter in zip(task.arguments, given, strict=False):
        if parameter.name != argument.name and parameter.name in names and argument.name in found:
            raise TaskError(
                f"{where}: the kernel {task.entry} takes {', '.join(found)}, but the task's `arguments` are "
                f"{', '.join(names)}: bring both into one order."
            )
        _require_match(task, argument, parameter, where)
    return ""


def _require_match(task: Task, argument: Argument, parameter: _Parameter, where: str) -> None:
    place = f"{where}: argument {argument.name} and the parameter {parameter.name} of {task.entry} do not agree"
    if parameter.unusual and parameter.unusual != "a pointer to arrays":
        # Rows of a fixed length lie one after the other, as in an array of the task.
        raise TaskError(f"{place}: the parameter {_unusual(parameter)}.")
    pointer = argument.role != "scalar"
    if pointer != parameter.pointer:
        kinds = ("an array", "a pointer") if pointer else ("a scalar", "no pointer")
        other = "no pointer" if pointer else "a pointer"
        raise TaskError(f"{place}: the task says {kinds[0]}, but the parameter is {other}; change one of the two.")
    if argument.role in ("out", "inout") and parameter.const:
        raise TaskError(
            f'{place}: the task says it is written (`role = "{argument.role}"`), but the parameter is const; change '
            "one of the two."
        )
    if argument.dtype in task.types:
        # A macro or the type that it stands for: which one is for the compiler, type by type.
        return
    named = C_TYPES.get(parameter.c_type)
    if named is None or parameter.c_type in task.types:
        return
    wanted, found = DTYPES[argument.dtype], DTYPES[named]
    if (wanted.size, wanted.is_float) != (found.size, found.is_float) and not _stored_as(argument, parameter):
        raise TaskError(
            f"{place}: the task says {argument.dtype}, the source `{parameter.c_type}`, which is {named}; change one "
            "of the two."
        )


def _stored_as(argument: Argument, parameter: _Parameter) -> bool:
    """Whether an array's bits are read as a whole number of the same size, as OpenCL reads bfloat16."""
    named = C_TYPES.get(parameter.c_type, "")
    return argument.role != "scalar" and DTYPES[argument.dtype].size == DTYPES[named].size


def _unusual(one: _Parameter) -> str:
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


__all__ = ["require_signature", "require_signatures"]
