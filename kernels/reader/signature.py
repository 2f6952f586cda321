"""Which parameters a kernel may have to be a task, and whether they are the arguments that a task says.

Owns the sentences, with what its author writes instead. A task's arguments are scalars and arrays of the types in
`tunesmith.kernels.spec.dtypes`; a parameter whose type cannot be told, as one from a header, is not compared.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from tunesmith.kernels.build.python_source import FIXED, taken_arguments
from tunesmith.kernels.build.source import literal
from tunesmith.kernels.reader.facts import Parameter, bare, parameters_of
from tunesmith.kernels.reader.parse import Entry, Unit
from tunesmith.kernels.reader.syntax import prelude
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.task import Argument, Task, TaskError
from tunesmith.kernels.spec.template import BACKENDS, Template


def _unusual(one: Parameter) -> str:
    """Why a parameter is neither a value nor a pointer to elements, and the remedy; empty where it is."""
    kind, inner = one.kind, one.kind.element if one.pointer else None
    if kind.reference:
        return f"is a reference: declare it by value, as `{bare(kind.spelling)} {one.name}`"
    if one.pointer and one.cursor.type.get_canonical().get_pointee().kind.name == "FUNCTIONPROTO":
        return "is a pointer to a function: call a __device__ function by its name instead"
    if inner is None or inner.element is None or inner.what != "pointer":
        return ""
    array = f"`{'const ' if kind.const else ''}{bare(inner.element.spelling)}* {one.name}`"
    return f"is a pointer to pointers: join the arrays into one, {array}, with another argument for where each begins"


def refused(one: Parameter, used: Collection[str]) -> str:
    """Why a parameter can be no argument, and the remedy, as a clause that follows its name; empty where it can.
    used: what identifies the members of structures that the kernel uses."""
    kind, inner = one.kind, one.kind.element if one.pointer else None
    if not one.name:
        return "has no name: give it one"
    if unusual := _unusual(one):
        return unusual
    texture = re.search("Texture|cudaSurface", one.cursor.type.spelling) is not None
    if (one.local or one.dtype) and not texture:
        return ""
    array = f"`{'const ' if kind.const else ''}{{}}* {one.name}`"
    name = bare(inner.spelling if inner is not None else kind.spelling)
    if name == "void":
        plain, bytes_ = array.format("float"), array.format("unsigned char")
        return f"is a void pointer: declare it with the type of its elements, such as {plain}, or {bytes_} if packed"
    if texture or "image" in kind.spelling or "sampler" in kind.spelling:
        return "holds an image or a texture, which no argument can be: read and write arrays instead, such as `float*`"
    record = one.cursor.type.get_canonical() if inner is None else one.cursor.type.get_canonical().get_pointee()
    while record.kind.name == "CONSTANTARRAY":
        record = record.element_type
    fields = [*record.get_fields()]
    members = [one.spelling for one in fields if one.get_usr() in used] or [one.spelling for one in fields]
    if inner is not None:
        why = "have several types" if members else "are not known"
        used = f" ({', '.join(members)})" if members else ""
        return f"points to the structure `{name}`, whose members {why}: make an array of each member that is used{used}"
    shown = f" ({', '.join(members)})" if members else ""
    return f"is the structure `{name}`: make each member that is used a parameter of its own{shown}"


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
    given = parameters_of(unit, Entry(task.entry, kernel, kernel))
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


def _require_match(task: Task, argument: Argument, parameter: Parameter, where: str) -> None:
    place = f"{where}: argument {argument.name} and the parameter {parameter.name} of {task.entry} do not agree"
    if unusual := _unusual(parameter):
        raise TaskError(f"{place}: the parameter {unusual}.")
    pointer = argument.role != "scalar"
    if pointer != parameter.pointer:
        kinds = ("an array", "a pointer") if pointer else ("a scalar", "no pointer")
        other = "no pointer" if pointer else "a pointer"
        raise TaskError(f"{place}: the task says {kinds[0]}, but the parameter is {other}; change one of the two.")
    if argument.role in ("out", "inout") and parameter.kind.const:
        raise TaskError(
            f'{place}: the task says it is written (`role = "{argument.role}"`), but the parameter is const; change '
            "one of the two."
        )
    kind = (parameter.kind.element or parameter.kind) if parameter.pointer else parameter.kind
    if argument.dtype in task.types or parameter.dtype not in DTYPES or parameter.lanes > 1 or kind.what == "void":
        # Of a macro, or the type that it stands for, it is for the compiler, type by type.
        return
    wanted, found = DTYPES[argument.dtype], DTYPES[parameter.dtype]
    # OpenCL reads the bits of bfloat16 as whole numbers of that size.
    stored_as = pointer and wanted.size == found.size
    if (wanted.size, wanted.is_float) != (found.size, found.is_float) and not stored_as:
        raise TaskError(
            f"{place}: the task says {argument.dtype}, the source `{bare(kind.spelling)}`, which is "
            f"{parameter.dtype}; change one of the two."
        )
