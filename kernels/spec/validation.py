"""Mistakes in tasks and templates that their schema cannot see, found when they are read and not after a budget.

Owns the rules, as rows of sentences that begin with the place of a mistake; the first is raised as a `TaskError`. What
needs a device, a compiler or the reference's results is found later.
"""

from __future__ import annotations

import ast
import inspect
import keyword
import math
import re
from collections.abc import Iterable, Iterator, Set

from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.expression import FUNCTIONS, ExpressionError, parse
from tunesmith.kernels.spec.task import Task, TaskError
from tunesmith.kernels.spec.template import BACKENDS, DEVICE_NAMES, Template, assignments

_KEYWORDS = """
alignas alignof asm auto bool break case catch char class const const_cast constexpr continue decltype default
delete do double dynamic_cast else enum explicit export extern false float for friend goto half if inline int long
mutable namespace new noexcept nullptr operator private protected public register reinterpret_cast restrict return
short signed sizeof static static_assert static_cast struct switch template this throw true try typedef typeid
typename union unsigned using virtual void volatile wchar_t while
kernel global local constant uchar ushort uint ulong __kernel __global __local __constant __private
__global__ __device__ __shared__ __restrict__ __launch_bounds__
"""
C_KEYWORDS = frozenset(_KEYWORDS.split())
"""Words of C, C++, CUDA C++ and OpenCL C that a macro would take away from a source."""
MAX_BLOCKS = 2**31 - 1
"""Blocks along an axis, of any device; CUDA's limit along x (CUDA C++ Programming Guide, technical specifications)."""


def validate_task(task: Task, where: str) -> None:
    """Raises `TaskError` for the first mistake of a task and of its templates. where: the task's file."""
    _raise_first(_task_mistakes(task), where)


def validate_template(template: Template, task: Task, where: str) -> None:
    """Raises `TaskError` for the first mistake of a template of `task`: a parameter that cannot be a macro or that
    nothing uses, a constraint that is not a condition, an expression with an unknown name or without a value where all
    parameters have their defaults."""
    _raise_first(_template_mistakes(template, task), where)


def _raise_first(mistakes: Iterator[str], where: str) -> None:
    if mistake := next(mistakes, ""):
        raise TaskError(f"{where}, {mistake}{'' if mistake.endswith(('.', '?')) else '.'}")


def _task_mistakes(task: Task) -> Iterator[str]:
    for argument in task.arguments:
        if keyword.iskeyword(argument.name):
            yield (
                f"argument {argument.name}: '{argument.name}' is a reserved word of Python, so the reference cannot "
                "have an argument of that name; rename it"
            )
    for what, names in (("types", task.types), ("size", task.size_names)):
        for name in names:
            if keyword.iskeyword(name) or name in FUNCTIONS or (what == "types" and name in C_KEYWORDS):
                yield f"{what} {name}: '{name}' is a reserved word; choose another name"
    if task.entry in C_KEYWORDS:
        yield f"key entry: '{task.entry}' is a reserved word of C; choose another name"
    if task.arithmetic not in ("", "float32"):
        yield f"key arithmetic: no peak of '{task.arithmetic}' is measured; write 'float32' or leave it out"
    for dtype, tolerance in task.tolerance.items():
        if not (math.isfinite(tolerance.rtol) and math.isfinite(tolerance.atol)):
            yield f"key tolerance.{dtype}: an infinite tolerance accepts every result; give a number"
        if tolerance.rtol >= 1:
            yield (
                f"key tolerance.{dtype}.rtol: {tolerance.rtol:g} accepts a result of zeros; give a number below 1, "
                "such as 0.01"
            )
    yield from _reference_mistakes(task)
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
        yield from (f"{place}: the size {key} = {n} is not positive" for key, n in workload.sizes.items() if n <= 0)
    texts = [("key bytes", task.bytes), ("key flops", task.flops)]
    texts += [(f"key requires[{number}]", text) for number, text in enumerate(task.requires, 1)]
    for argument in task.arguments:
        for key, given in (("shape", argument.shape), ("value", (argument.value,)), ("values", argument.values)):
            texts += [(f"argument {argument.name}, key {key}", text) for text in given if text]
    yield from _name_mistakes(texts, task.size_names | task.types.keys())
    for number, text in enumerate(task.requires, 1):
        yield from _condition_mistakes(text, set(), f"key requires[{number}]")
    yield from _value_mistakes(task)
    for backend, sources in task.backends.items():
        opponents = [(f"{backend} opponent {one.name}", one.template) for one in sources.opponents]
        templates = [(f"{backend} template {one.name}", one) for one in sources.templates]
        launched = [(f"key backends.{backend}.baseline", sources.baseline.template), *opponents]
        for place, template in [*launched, *templates]:
            for key in ("max_registers", "device_globals"):
                if getattr(template, key) and not BACKENDS[backend].makes_cubins:
                    yield f"{place}, key {key}: it is for CUDA, and OpenCL C has no such thing; leave it out"
            yield from (f"{place}, {mistake}" for mistake in _template_mistakes(template, task))
        for place, template in launched:
            yield from (f"{place}, {mistake}" for mistake in _launch_mistakes(template, task))


def _reference_mistakes(task: Task) -> Iterator[str]:
    """Those of Python's files: no Python, and a reference without its function, or whose function does not take the
    arguments that are read. What is not defined by a plain `def` is left to its first call."""
    for place, text in (
        ("key reference", task.reference),
        *((f"opponent {one.name}, key call", one.source) for one in task.opponents),
    ):
        try:
            ast.parse(text)
        except (SyntaxError, ValueError) as error:
            at = f" (line {line} of its file)" if (line := getattr(error, "lineno", None)) else ""
            yield f"{place}: it is not valid Python{at}: {getattr(error, 'msg', error)}"
    if task.original_is_reference:
        return
    tree, name = ast.parse(task.reference), task.reference_name
    bound = {getattr(node, key, None) for node in ast.walk(tree) for key in ("name", "asname", "id")}
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    if name not in bound and "*" not in bound:
        yield f"key reference: there is no function '{name}' in its file; it has {', '.join(functions) or 'none'}"
    if (function := functions.get(name)) is None or function.decorator_list:
        return
    takes, given = function.args, [argument.name for argument in task.arguments if argument.role != "out"]
    takes.defaults = [ast.Constant(None) for _ in takes.defaults]
    takes.kw_defaults = [None if value is None else ast.Constant(None) for value in takes.kw_defaults]
    signature = ast.fix_missing_locations(ast.Expression(ast.Lambda(takes, ast.Constant(None))))
    try:
        inspect.signature(eval(compile(signature, "reference", "eval"))).bind(**dict.fromkeys(given))
    except TypeError as error:
        yield (
            f"key reference: {name}: {error}; it is given every array that is read and every scalar, by name: write "
            f"`def {name}({', '.join(given)})`"
        )


def _name_mistakes(texts: Iterable[tuple[str, str]], known: Set[str]) -> Iterator[str]:
    """For expressions by their places: no such expression, and names that are not `known`."""
    for place, text in texts:
        try:
            parse(text).require({*known, *DTYPES})
        except ExpressionError as error:
            yield f"{place}: {error}"


def _value_mistakes(task: Task) -> Iterator[str]:
    """What a task's expressions give on its workloads."""
    for workload in task.workloads:
        try:
            for argument in task.arguments:
                (task.scalar_of if argument.role == "scalar" else task.shape_of)(argument, workload)
            moved, done, allowed = task.bytes_of(workload), task.flops_of(workload), task.allows(workload)
        except TaskError as error:
            yield str(error)
            continue
        if moved <= 0 or done < 0:
            yield (
                f"workload {workload.name}: bytes must be positive and flops not negative; they are {moved:g} and "
                f"{done:g}"
            )
        if not allowed:
            yield (
                f"workload {workload.name}: `requires` ({', '.join(task.requires)}) does not hold of its sizes; "
                "correct one of them"
            )


def _template_mistakes(template: Template, task: Task) -> Iterator[str]:
    names = {parameter.name for parameter in template.parameters}
    for what, taken in (("size", task.size_names), ("type", task.types.keys()), ("data type", DTYPES.keys())):
        if clash := names & taken:
            yield f"key parameters: {min(clash)} is also a {what} of the task: rename the parameter"
    if reserved := DEVICE_NAMES & (names | task.size_names | task.types.keys()):
        yield f"{min(reserved)} is how constraints call the device's own: rename yours"
    for name in sorted(names):
        if name in C_KEYWORDS or keyword.iskeyword(name):
            yield (
                f"parameter {name}: '{name}' is a reserved word of C or Python, and a parameter becomes a macro; "
                "rename it"
            )
        if name in FUNCTIONS:
            yield f"parameter {name}: '{name}' is a function of expressions; rename the parameter"
    for key, text in template.expressions().items():
        # One compiled kernel serves all workloads of the same types.
        sizes = () if key in ("key max_registers", "key fast_math") else task.size_names
        device = DEVICE_NAMES if key.startswith("constraint") else ()
        yield from _name_mistakes([(key, text)], {*names, *task.types, *sizes, *device})
    if unused := unused_parameters(template):
        yield (
            f"parameter {unused[0]}: neither the source nor the launch uses it, so all its values make the same "
            "kernel; use it or remove it"
        )
    flags = {p.name for p in template.parameters if all(isinstance(value, bool) for value in p.values)}
    for number, constraint in enumerate(template.constraints, 1):
        yield from _condition_mistakes(constraint.expression, flags, f"constraint {number}")
    for workload in task.workloads:
        values = {**workload.names, **template.default_config}
        for key, text in template.expressions().items():
            # Constraints on the device, also in part, are evaluated where one is known.
            if (used := parse(text).names) & DEVICE_NAMES:
                continue
            try:
                parse(text).evaluate(values)
            except ExpressionError as error:
                shown = assignments({name: values[name] for name in values if name in used and name not in DTYPES})
                yield f"{key}: {str(error).rstrip('.')}{f' ({shown})' if shown else ''}"


def _launch_mistakes(template: Template, task: Task) -> Iterator[str]:
    """A launch that no device can carry out."""
    for workload in task.workloads:
        names = {**workload.names, **template.default_config}
        for key, text in template.expressions().items():
            if key.startswith(("key launch.grid", "key launch.block")):
                value = parse(text).evaluate(names)
                if isinstance(value, str) or value != math.floor(value) or not 1 <= value <= MAX_BLOCKS:
                    yield (
                        f"{key}: `{text}` gives {value!r} on the workload {workload.name}; it must be a whole number "
                        f"from 1 to {MAX_BLOCKS}"
                    )


def unused_parameters(template: Template) -> list[str]:
    """The parameters that neither the source nor the launch names: only constraints do, or nothing does."""
    code = re.sub(r"//[^\n]*|/\*.*?\*/", " ", template.source, flags=re.DOTALL)
    if "##" in code:
        # Pasting may make a name that stands nowhere.
        return []
    texts = [code, *(text for key, text in template.expressions().items() if not key.startswith("constraint"))]
    used = set(re.findall(r"[A-Za-z_][A-Za-z0-9_]*", " ".join(texts)))
    return [parameter.name for parameter in template.parameters if parameter.name not in used]


def _condition_mistakes(text: str, flags: set[str], place: str) -> Iterator[str]:
    if not _is_condition(ast.parse(text.strip(), mode="eval").body, flags):
        yield f"{place}: `{text}` is not a condition; compare it with something, such as `{text} <= 1024`"


def _is_condition(node: ast.expr, flags: set[str]) -> bool:
    match node:
        case ast.Compare() | ast.UnaryOp(op=ast.Not()) | ast.Constant(value=bool()):
            return True
        case ast.BoolOp():
            return all(_is_condition(value, flags) for value in node.values)
        case ast.BinOp(op=ast.BitAnd()):
            return _is_condition(node.left, flags) and _is_condition(node.right, flags)
        case ast.IfExp():
            return _is_condition(node.body, flags) and _is_condition(node.orelse, flags)
        case ast.Call(func=ast.Name(id="is_pow2")):
            return True
        case ast.Name():
            return node.id in flags
    return False
