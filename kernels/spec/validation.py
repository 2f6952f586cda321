"""Mistakes in tasks and templates that their schema cannot see, found when they are read and not after a budget.

Owns the rules, as rows of sentences that begin with the place of a mistake; the first is raised as a `TaskError`. What
needs a device, a compiler or the reference's results is found later.
"""

from __future__ import annotations

import ast
import keyword
import math
import re
from collections.abc import Iterator, Set

from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.expression import FUNCTIONS, ExpressionError, parse
from tunesmith.kernels.spec.task import Task, TaskError, Workload
from tunesmith.kernels.spec.template import BACKENDS, DEVICE_NAMES, TRITON_OPTIONS, Template, assignments

_KEYWORDS = """
alignas alignof asm auto bool break case catch char class const const_cast constexpr continue decltype default
delete do double dynamic_cast else enum explicit export extern false float for friend goto half if inline int long
mutable namespace new noexcept nullptr operator private protected public register reinterpret_cast restrict return
short signed sizeof static static_assert static_cast struct switch template this throw true try typedef typeid
typename union unsigned using virtual void volatile wchar_t while
__kernel __global __local __constant __private __global__ __device__ __shared__ __restrict__ __launch_bounds__
"""
_OPENCL_WORDS = frozenset(["kernel", "global", "local", "constant", "uchar", "ushort", "uint", "ulong"])
C_KEYWORDS = _OPENCL_WORDS | {*_KEYWORDS.split()}
"""Words of C, C++, CUDA C++ and OpenCL C that a macro would take away from a source."""
MAX_BLOCKS = 2**31 - 1
"""Blocks along an axis, of any device; CUDA's limit along x (CUDA C++ Programming Guide, technical specifications)."""
_NO_CONDITION = "`{0}` is not a condition; compare it with something, such as `{0} <= 1024`"


def validate_task(task: Task, where: str) -> None:
    """Raises `TaskError` for the first mistake of a task and of its templates. where: the task's file."""
    _raise_first(_task_mistakes(task), where)


def validate_template(template: Template, task: Task, where: str) -> None:
    """Raises `TaskError` for the first mistake of a template of `task`: a parameter that is not a macro or is unused, a
    constraint that is not a condition, an expression with unknown names or without a value at the defaults."""
    _raise_first(_template_mistakes(template, task), where)


def _raise_first(mistakes: Iterator[str], where: str) -> None:
    if mistake := next(mistakes, ""):
        raise TaskError(f"{where}, {mistake}{'' if mistake.endswith(('.', '?')) else '.'}")


def _task_mistakes(task: Task) -> Iterator[str]:
    for argument in task.arguments:
        if keyword.iskeyword(argument.name):
            yield f"argument {argument.name}: '{argument.name}' is a reserved word of Python; rename it"
    for what, names in (("types", task.types), ("size", task.size_names)):
        for name in names:
            if keyword.iskeyword(name) or name in FUNCTIONS or (what == "types" and name in C_KEYWORDS):
                yield f"{what} {name}: '{name}' is a reserved word; choose another name"
    if task.entry in C_KEYWORDS - (_OPENCL_WORDS if "opencl" not in task.backends else set()):
        yield f"key entry: '{task.entry}' is a reserved word of C; choose another name"
    if task.arithmetic not in ("", "float32"):
        yield f"key arithmetic: no peak of '{task.arithmetic}' is measured; write 'float32' or leave it out"
    for argument in task.arguments if task.nan == "any" else ():
        if any(math.isnan(one.value) for one in argument.fill.special):
            yield f"key nan: with 'any' a NaN in the fill of {argument.name} leaves nothing to check; leave one out"
    for dtype, tolerance in task.tolerance.items():
        if not (tolerance.rtol < 1 and math.isfinite(tolerance.atol)):
            yield f"key tolerance.{dtype}: it accepts a result of zeros; give `rtol` below 1 and a finite `atol`"
    yield from _python_mistakes(task)
    for workload in task.workloads:
        place = f"workload {workload.name}"
        if workload.sizes.keys() != task.size_names:
            yield (
                f"{place}: it has the sizes {', '.join(workload.sizes)}, but the first workload has "
                f"{', '.join(sorted(task.size_names))}; all must have the same"
            )
        for name, dtype in workload.types.items():
            if dtype not in task.types.get(name, ()):
                options = ", ".join(task.types.get(name, ())) or "none, as [types] does not list it"
                yield f"{place}: the dtype '{dtype}' of {name} is not known; [types] allows {options}"
        for key, size in workload.sizes.items():
            if size <= 0:
                yield f"{place}: the size {key} = {size} is not positive; other scalars have a `value` in `arguments`"
    texts = [("key bytes", task.bytes), ("key flops", task.flops)]
    texts += [(f"key requires[{number}]", text) for number, text in enumerate(task.requires, 1)]
    for argument in task.arguments:
        written = {"shape": argument.shape, "value": (argument.value,), "values": argument.values}
        for key, given in (*written.items(), ("fill", (argument.fill.low, argument.fill.high))):
            texts += [(f"argument {argument.name}, key {key}", text) for text in given if text]
    for place, text in texts:
        yield from _name_mistakes(place, text, task.size_names | task.types.keys())
    for workload in task.workloads:
        yield from _value_mistakes(task, workload)
    for backend, sources in task.backends.items():
        if any(one.configs for one in sources.opponents) and not BACKENDS[backend].python:
            yield f"key backends.{backend}.opponents: `configs` is for Triton, whose autotuner chooses; leave it out"
        launched = {f"key backends.{backend}.baseline": sources.baseline.template}
        launched |= {f"{backend} opponent {one.name}": one.template for one in sources.opponents}
        for place, template in (
            launched | {f"{backend} template {one.name}": one for one in sources.templates}
        ).items():
            for key in ("max_registers", "device_globals"):
                traits = BACKENDS[backend]
                if getattr(template, key) and (traits.python or not traits.makes_cubins):
                    yield f"{place}, key {key}: it is for CUDA, and {traits.language} has no such thing; leave it out"
            yield from (f"{place}, {mistake}" for mistake in _template_mistakes(template, task, place in launched))


def _python_mistakes(task: Task) -> Iterator[str]:
    """Of reference and opponents in Python. Whether a function takes its arguments is left to its first call."""
    files = {f"opponent {one.name}, key call": (one.source, one.function) for one in task.opponents}
    if not task.original_is_reference:
        files = {"key reference": (task.reference, task.reference_name), **files}
    for place, (text, name) in files.items():
        try:
            nodes = list(ast.walk(ast.parse(text)))
        except (SyntaxError, ValueError) as error:
            at = f" (line {line} of its file)" if (line := getattr(error, "lineno", None)) else ""
            yield f"{place}: it is not valid Python{at}: {getattr(error, 'msg', error)}"
            return
        bound = {getattr(node, key, None) for node in nodes for key in ("name", "asname", "id")}
        if place == "key reference" and name not in bound and "*" not in bound:
            functions = ", ".join(node.name for node in nodes if isinstance(node, ast.FunctionDef))
            yield f"{place}: there is no function '{name}' in its file; it has {functions or 'none'}"


def _name_mistakes(place: str, text: str, known: Set[str]) -> Iterator[str]:
    """For an expression: it is none, or has names that are not `known`."""
    try:
        parse(text).require({*known, *DTYPES})
    except ExpressionError as error:
        yield f"{place}: {error}"


def _value_mistakes(task: Task, workload: Workload) -> Iterator[str]:
    """The values of a task's expressions on a workload."""
    try:
        for argument in task.arguments:
            (task.scalar_of if argument.role == "scalar" else task.shape_of)(argument, workload)
        moved, done = task.bytes_of(workload), task.flops_of(workload)
        allowed = [(text, parse(text).number(workload.names)) for text in task.requires]
        mistaken = [why for text, why in task.conditions.items() if not parse(text).number(workload.names)]
    except (TaskError, ExpressionError) as error:
        yield str(error)
        return
    if moved <= 0 or done < 0:
        yield f"workload {workload.name}: bytes must be positive, flops not negative; they are {moved:g} and {done:g}"
    yield from (f"workload {workload.name}, {mistake}" for mistake in mistaken)
    for number, (text, value) in enumerate(allowed, 1):
        if not isinstance(value, bool):
            yield f"key requires[{number}]: {_NO_CONDITION.format(text)}"
        if not value:
            yield f"workload {workload.name}: `requires` ({text}) does not hold of its sizes; correct one of them"


def _template_mistakes(template: Template, task: Task, launched: bool = False) -> Iterator[str]:
    """launched: the template is launched with its defaults on any device, so its grid and block must be possible."""
    names = {parameter.name for parameter in template.parameters}
    for what, taken in (("size", task.size_names), ("type", task.types.keys()), ("data type", DTYPES.keys())):
        if clash := names & taken:
            yield f"key parameters: {min(clash)} is also a {what} of the task: rename the parameter"
    if reserved := DEVICE_NAMES & (names | task.size_names | task.types.keys()):
        yield f"{min(reserved)} is how constraints call the device's own: rename yours"
    for name in sorted(names):
        if name in C_KEYWORDS or keyword.iskeyword(name) or name in FUNCTIONS:
            yield f"parameter {name}: '{name}' is a reserved word of C, Python or expressions; rename the parameter"
    expressions = template.expressions()
    for key, text in expressions.items():
        # One compiled kernel serves all workloads of the same types.
        sizes = () if key in ("key max_registers", "key fast_math") else task.size_names
        device = DEVICE_NAMES if key.startswith("constraint") else ()
        yield from _name_mistakes(key, text, {*names, *task.types, *sizes, *device})
    if unused := unused_parameters(template):
        yield (
            f"parameter {unused[0]}: neither the source nor the launch uses it, so all its values make the same "
            "kernel; use it or remove it"
        )
    for workload in task.workloads:
        values = {**workload.names, **template.default_config, **dict.fromkeys(DEVICE_NAMES, 90)}
        for key, text in expressions.items():
            try:
                value = parse(text).evaluate(values)
            except ExpressionError as error:
                shown = assignments(
                    {name: values[name] for name in values if name in parse(text).names - DTYPES.keys()}
                )
                yield f"{key}: {str(error).rstrip('.')}{f' ({shown})' if shown else ''}"
                continue
            if key.startswith("constraint") and not isinstance(value, bool):
                yield f"{key}: {_NO_CONDITION.format(text)}"
            extent = launched and key.startswith(("key launch.grid", "key launch.block"))
            if extent and (isinstance(value, str) or not 1 <= value <= MAX_BLOCKS or value != math.floor(value)):
                yield (
                    f"{key}: `{text}` gives {value!r} on the workload {workload.name}; it must be a whole number "
                    f"from 1 to {MAX_BLOCKS}"
                )


def unused_parameters(template: Template) -> list[str]:
    """The parameters that neither the source nor the launch names: only constraints do, or nothing does."""
    comment = r"#[^\n]*" if BACKENDS[template.backend].python else r"//[^\n]*|/\*.*?\*/"
    code = re.sub(comment, " ", template.source, flags=re.DOTALL)
    if "##" in code:
        # Pasting may make a name that stands nowhere.
        return []
    texts = [code, *(text for key, text in template.expressions().items() if not key.startswith("constraint"))]
    texts += TRITON_OPTIONS if BACKENDS[template.backend].python else ()
    used = set(re.findall(r"[A-Za-z_][A-Za-z0-9_]*", " ".join(texts)))
    return [parameter.name for parameter in template.parameters if parameter.name not in used]
