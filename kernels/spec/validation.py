"""Mistakes in tasks and templates that their schema cannot see, found when they are read and not after a budget.

Owns the rules; each raises `TaskError` with a sentence that begins with the place. What needs a device, a compiler or
the reference's results is found later.
"""

from __future__ import annotations

import ast
import keyword
import math
import re
from collections.abc import Mapping
from typing import Any

from tunesmith.kernels.spec.expression import FUNCTIONS, ExpressionError, parse
from tunesmith.kernels.spec.task import Task, TaskError, Workload
from tunesmith.kernels.spec.template import BACKENDS, DEVICE_NAMES, Config, Template, assignments

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
    """Raises `TaskError` for names that C or Python reserve, tolerances that accept everything, and baselines whose
    launch no device can carry out. where: the task's file."""
    for argument in task.arguments:
        if keyword.iskeyword(argument.name):
            raise TaskError(
                f"{where}, argument {argument.name}: '{argument.name}' is a reserved word of Python, so the reference "
                "cannot have an argument of that name; rename it."
            )
    for what, names in (("types", task.types), ("size", task.size_names)):
        for name in names:
            if keyword.iskeyword(name) or name in FUNCTIONS or (what == "types" and name in C_KEYWORDS):
                raise TaskError(f"{where}, {what} {name}: '{name}' is a reserved word; choose another name.")
    if task.entry in C_KEYWORDS:
        raise TaskError(f"{where}, key entry: '{task.entry}' is a reserved word of C; choose another name.")
    validate_reference(task, where)
    if task.arithmetic not in ("", "float32"):
        raise TaskError(
            f"{where}, key arithmetic: no peak of '{task.arithmetic}' is measured; write 'float32' or leave it out."
        )
    for position, text in enumerate(task.requires, 1):
        _require_condition(text, set(), f"{where}, key requires, item {position}")
    for dtype, tolerance in task.tolerance.items():
        if not (math.isfinite(tolerance.rtol) and math.isfinite(tolerance.atol)):
            raise TaskError(
                f"{where}, key tolerance.{dtype}: an infinite tolerance accepts every result; give a number."
            )
        if tolerance.rtol >= 1:
            raise TaskError(
                f"{where}, key tolerance.{dtype}.rtol: {tolerance.rtol:g} accepts a result of zeros; give a number "
                "below 1, such as 0.01."
            )
    for backend, sources in task.backends.items():
        for workload in task.workloads:
            _require_launch(sources.baseline.template, workload, f"{where}, key backends.{backend}.baseline.launch")
            for one in sources.opponents:
                _require_launch(one.template, workload, f"{where}, backends.{backend}, opponent {one.name}, launch")


def parse_python(text: str, where: str) -> ast.Module:
    """The syntax tree of the file that the key at `where` names; raises `TaskError`."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        at = f" (line {line} of its file)" if line else ""
        raise TaskError(f"{where}: it is not valid Python{at}: {getattr(error, 'msg', error)}.") from error


def validate_reference(task: Task, where: str) -> None:
    """Raises `TaskError` for a reference that is no Python, lacks its function, or whose function does not take the
    arguments that are read. What is not defined by a plain `def` is left to its first call."""
    name = task.reference_name
    if task.original_is_reference:
        return
    tree = parse_python(task.reference, f"{where}, key reference")
    bound = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    defined = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    bound |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    bound |= {alias.asname or alias.name for node in imports for alias in node.names}
    if name not in bound and "*" not in bound:
        found = f"it has {', '.join(one.name for one in defined)}" if defined else "it has none"
        raise TaskError(f"{where}, key reference: there is no function '{name}' in its file; {found}.")
    function = next((one for one in reversed(defined) if one.name == name), None)
    if function is None or function.decorator_list:
        return
    given = [argument.name for argument in task.arguments if argument.role != "out"]
    takes = function.args
    if takes.posonlyargs:
        raise TaskError(
            f"{where}, key reference: {name} takes {takes.posonlyargs[0].arg} by position only, but arguments are "
            "given by name; remove the `/`."
        )
    named = [one.arg for one in (*takes.args, *takes.kwonlyargs)]
    required = [one.arg for one in takes.args[: len(takes.args) - len(takes.defaults)]]
    required += [one.arg for one, value in zip(takes.kwonlyargs, takes.kw_defaults, strict=True) if value is None]
    if missing := [one for one in required if one not in given]:
        raise TaskError(
            f"{where}, key reference: {name} wants the argument {missing[0]}, which the task does not give; it gives "
            f"every array that is read and every scalar: {', '.join(given)}."
        )
    if takes.kwarg is None and (unknown := [one for one in given if one not in named]):
        raise TaskError(
            f"{where}, key reference: {name} does not take {unknown[0]}; it is given every array that is read and "
            f"every scalar: write `def {name}({', '.join(given)})`."
        )


def validate_template(template: Template, task: Task, where: str) -> None:
    """Raises `TaskError` for parameters that cannot be macros or that nothing uses, constraints that are not
    conditions, and expressions that have no value where all parameters have their defaults."""
    for parameter in template.parameters:
        name = parameter.name
        if name in C_KEYWORDS or keyword.iskeyword(name):
            raise TaskError(
                f"{where}, parameter {name}: '{name}' is a reserved word of C or Python, and a parameter becomes a "
                "macro; rename it."
            )
        if name in FUNCTIONS:
            raise TaskError(f"{where}, parameter {name}: '{name}' is a function of expressions; rename the parameter.")
    if unused := unused_parameters(template):
        raise TaskError(
            f"{where}, parameter {unused[0]}: neither the source nor the launch uses it, so all its values make the "
            "same kernel; use it or remove it."
        )
    flags = {p.name for p in template.parameters if all(isinstance(value, bool) for value in p.values)}
    for position, constraint in enumerate(template.constraints, 1):
        _require_condition(constraint.expression, flags, f"{where}, constraint {position}")
    for workload in task.workloads:
        # What a device gives is not known here; no constraint's value is looked at, only that it has one.
        names = {**dict.fromkeys(DEVICE_NAMES, 0), **workload.names, **template.default_config}
        for key, text in template.expressions():
            # Constraints on the device alone, and what a device decides of others, are evaluated where one is known.
            if parse(text).names & DEVICE_NAMES:
                continue
            _require_value(text, names, template.default_config, workload, f"{where}, {key}")


def unused_parameters(template: Template) -> list[str]:
    """The parameters that neither the source nor the launch names: only constraints do, or nothing does."""
    code = re.sub(r"//[^\n]*|/\*.*?\*/", " ", template.source, flags=re.DOTALL)
    if "##" in code:
        # Pasting may make a name that stands nowhere.
        return []
    texts = [code, *(text for key, text in template.expressions() if not key.startswith("constraint"))]
    used = set(re.findall(r"[A-Za-z_][A-Za-z0-9_]*", " ".join(texts)))
    return [parameter.name for parameter in template.parameters if parameter.name not in used]


def require_options(template: Template, where: str) -> None:
    """Raises `TaskError` for keys that only CUDA has."""
    for key, given in (("max_registers", template.max_registers), ("device_globals", template.device_globals)):
        if given and not BACKENDS[template.backend].makes_cubins:
            raise TaskError(f"{where}, key {key}: it is for CUDA, and OpenCL C has no such thing; leave it out.")


def _require_condition(text: str, flags: set[str], where: str) -> None:
    if not _is_condition(ast.parse(text.strip(), mode="eval").body, flags):
        raise TaskError(f"{where}: `{text}` is not a condition; compare it with something, such as `{text} <= 1024`.")


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


def _require_value(text: str, names: Mapping[str, Any], config: Config, workload: Workload, where: str) -> None:
    try:
        parse(text).evaluate(names)
    except ExpressionError as error:
        used = parse(text).names
        values = {name: value for name, value in {**workload.sizes, **workload.types, **config}.items() if name in used}
        at = f" ({assignments(values)})" if values else ""
        raise TaskError(f"{where}: {str(error).rstrip('.')}{at}.") from error


def _require_launch(template: Template, workload: Workload, where: str) -> None:
    names = {**workload.names, **template.default_config}
    for name, texts in (("grid", template.launch.grid), ("block", template.launch.block)):
        for axis, text in zip("xyz", texts, strict=False):
            place = f"{where}.{name}, {axis}"
            _require_value(text, names, template.default_config, workload, place)
            value = parse(text).evaluate(names)
            if isinstance(value, str) or value != math.floor(value) or not 1 <= value <= MAX_BLOCKS:
                raise TaskError(
                    f"{place}: `{text}` gives {value!r} on the workload {workload.name}; it must be a whole number "
                    f"from 1 to {MAX_BLOCKS}."
                )
