"""Triton's sources: the Python text that its compiler gets, what it may contain, and which arguments its kernel takes.

A source has imports of Triton, constants, functions decorated with `triton.jit` and the kernel, perhaps below
`triton.heuristics`. It may bind `FIXED`, a dictionary of values of the kernel's arguments and of compiler options that
are not parameters. Specialised, it ends with `TUNESMITH`, a dictionary of all else that decides the machine code, so
that a kernel can be compiled again from its text alone. Owns no import of Triton.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tunesmith.kernels.outcome import Rejected
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.template import TRITON_OPTIONS, Config

if TYPE_CHECKING:
    from tunesmith.kernels.spec.task import Task, Workload

FIXED, SPECIALISED = "FIXED", "TUNESMITH"
ARGUMENT = "argument "
"""The prefix of an argument's name where a workload's types and its arguments' classes are listed together."""
_LANGUAGE = "triton.language"
_LIBRARIES = tuple(
    f"{_LANGUAGE}.{one}" for one in ("math", "extra", "extra.cuda", "extra.libdevice", "extra.cuda.libdevice")
)
MODULES = ("triton", _LANGUAGE, *_LIBRARIES, "math")
"""Modules that a source may import, or import names from."""
_CALLED = frozenset({"constexpr", "cdiv", "next_power_of_2", "min", "max", "int", "float", "bool", "len", "range"})
"""Functions that the values of constants may call."""
_MODULES = "os sys io subprocess builtins importlib inspect runtime compiler backends driver knobs tools testing core"
_BEYOND = frozenset(f"{_MODULES} semantic standard".split())
"""Attributes by which a module of Triton leads to what kernels have no need of."""
_FUNCTIONS = "open exec eval compile getattr setattr delattr globals locals vars dir input breakpoint"
_BUILT_IN = frozenset(_FUNCTIONS.split())
"""Python's own functions of that kind, where the source does not give the name to something else."""


def argument_classes(task: Task, workload: Workload, *, asked: Mapping[str, bool]) -> dict[str, str]:
    """Of each argument, what Triton compiles a kernel for, by "argument NAME": the type of an array or a number, with
    `:16` for a whole number that 16 divides and `:1` for one (Triton specialises on both), or with `=` and a value for
    those in `asked`: their own or, where only the power of two that covers it counts, the largest such value of its
    class. Raises `TaskError` as `Task.scalar_of` does."""
    found = {}
    for argument in task.arguments:
        kind = DTYPES[task.dtype_of(argument, workload)]
        text = f"*{kind.c_names['triton']}"
        if argument.role == "scalar":
            value = task.scalar_of(argument, workload)
            whole = "u1" if kind.name == "bool" else _integer(int(value), asked.get(argument.name))
            text = "fp32" if kind.is_float else whole
        found[ARGUMENT + argument.name] = text
    return found


def _integer(value: int, asked: bool | None) -> str:
    """The class of a whole number, whose type Triton chooses by its value. asked: as of `asked_values`."""
    kind = "i32" if -(2**31) <= value < 2**31 else "i64" if value < 2**63 else "u64"
    if asked is None:
        return f"{kind}:1" if value == 1 else f"{kind}:16" if value % 16 == 0 else kind
    power = 1 << (value - 1).bit_length()
    if not asked and 1 < value <= 2**30:
        value = power if value % 16 == 0 or power < 16 else power - 1
    return f"{kind}={value}"


def kernel_of(source: str, entry: str) -> ast.FunctionDef | None:
    """The kernel of a source; None where it is not there, or the text is not Python, of which the compiler speaks."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError):
        return None
    return next((one for one in reversed(body) if isinstance(one, ast.FunctionDef) and one.name == entry), None)


def fixed_in(tree: ast.Module) -> dict[str, ast.expr]:
    """The values of `FIXED`, as expressions."""
    for one in tree.body:
        if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == FIXED and isinstance(one.value, ast.Dict):
            pairs = zip(one.value.keys, one.value.values, strict=True)
            return {str(key.value): value for key, value in pairs if isinstance(key, ast.Constant)}
    return {}


def parameters_of(kernel: ast.FunctionDef) -> list[ast.arg]:
    return [*kernel.args.posonlyargs, *kernel.args.args, *kernel.args.kwonlyargs]


def constexprs_of(kernel: ast.FunctionDef) -> list[str]:
    return [one.arg for one in parameters_of(kernel) if one.annotation and "constexpr" in ast.unparse(one.annotation)]


def heuristics_in(decorators: Sequence[ast.expr]) -> dict[str, ast.expr] | None:
    """The functions of `triton.heuristics` by the parameters that they compute; None where these are not a table."""
    found = dict[str, ast.expr]()
    for one in decorators:
        if "heuristics" in ast.unparse(one).partition("(")[0]:
            table = one.args[0] if isinstance(one, ast.Call) and one.args else None
            if not isinstance(table, ast.Dict):
                return None
            pairs = zip(table.keys, table.values, strict=True)
            found |= {str(key.value): value for key, value in pairs if isinstance(key, ast.Constant)}
    return found


@functools.lru_cache(maxsize=256)
def asked_values(source: str, entry: str) -> Mapping[str, bool]:
    """The arguments of a kernel whose values decide its machine code: constants, and arguments that heuristics read.
    False where only the power of two that covers a value counts."""
    kernel = kernel_of(source, entry)
    if kernel is None:
        return {}
    found, computed = dict.fromkeys(constexprs_of(kernel), True), heuristics_in(kernel.decorator_list)
    for one in kernel.decorator_list if computed is None else computed.values():
        text, name = ast.unparse(one), one.args.args[0].arg if isinstance(one, ast.Lambda) and one.args.args else ""
        read = re.findall(rf"\b{name}\['(\w+)'\]", text) if name else []
        if re.fullmatch(rf"lambda {name}: (?:\w+\.)*next_power_of_2\({name}\['\w+'\]\)", text):
            found.setdefault(read[0], False)
        elif name and len(read) + 1 == len(re.findall(rf"\b{name}\b", text)):
            found |= dict.fromkeys(read, True)
        else:
            found |= {at.arg: True for at in parameters_of(kernel)}
    return found


def python_text(source: str, entry: str, config: Config, decided: Mapping[str, str]) -> str:
    """`source` with the dictionary `TUNESMITH`. decided: types and classes of arguments, as of `argument_classes`."""
    arguments = {name.removeprefix(ARGUMENT): text for name, text in decided.items() if name.startswith(ARGUMENT)}
    made = {"kernel": entry, "values": dict(sorted(config.items())), "arguments": arguments}
    return f"{source.rstrip()}\n\n{SPECIALISED} = {made!r}\n"


def taken_arguments(source: str, entry: str, config: Mapping[str, Any]) -> list[str] | str:
    """The names of the arguments that a launch passes: the kernel's parameters except the ones that `config` or `FIXED`
    binds, or that heuristics compute; or why they are not known, as a clause."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        at = f" (line {line})" if (line := getattr(error, "lineno", None)) else ""
        return f"it is not valid Python{at}: {getattr(error, 'msg', error)}"
    kernel = kernel_of(source, entry)
    if kernel is None:
        known = ", ".join(one.name for one in tree.body if isinstance(one, ast.FunctionDef))
        return f"there is no kernel '{entry}', which `entry` names; the source has {known or 'none'}"
    bound = {*config, *TRITON_OPTIONS, *fixed_in(tree), *(heuristics_in(kernel.decorator_list) or ())}
    return [one.arg for one in parameters_of(kernel) if one.arg not in bound]


def refuse_python(source: str) -> Rejected | None:
    """Why a Triton source must not be given to its compiler, which runs it, or None."""
    return next(_objections(source), None)


def _objections(source: str) -> Iterator[Rejected]:
    def forbidden(rule: str, node: ast.AST, why: str) -> Rejected:
        return Rejected("forbidden_source", rule, f"line {getattr(node, 'lineno', '?')}: {why}.")

    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        # The compiler's own sentence is better.
        return
    for number, statement in enumerate(tree.body):
        match statement:
            case ast.Import(names=imported):
                unknown = [one.name for one in imported if one.name not in MODULES]
            case ast.ImportFrom(module=module):
                unknown = [str(module)] if statement.level or module not in MODULES else []
            case ast.FunctionDef():
                made = [ast.unparse(one).partition("(")[0] for one in statement.decorator_list]
                unknown = [one for one in made if one.removeprefix("triton.") not in ("jit", "heuristics")]
                if unknown or not statement.decorator_list:
                    why = f"`{statement.name}` is decorated by something else than triton.jit and triton.heuristics"
                    yield forbidden("functions", statement, f"{why}: a Triton source has functions of kernels alone")
                continue
            case ast.Expr(value=ast.Constant(value=str())) if number == 0:
                continue
            case ast.Assign() | ast.AnnAssign():
                unknown = []
                called = [one.func for one in ast.walk(statement) if isinstance(one, ast.Call)]
                for one in called:
                    if (one.attr if isinstance(one, ast.Attribute) else getattr(one, "id", "")) not in _CALLED:
                        yield forbidden("constants", one, f"a constant calls {ast.unparse(one)[:60]}")
            case _:
                text = ast.unparse(statement).partition("\n")[0][:60]
                yield forbidden("statements", statement, f"`{text}` runs when the source is read: leave it out")
                continue
        for name in unknown:
            allowed = ", ".join(MODULES)
            yield forbidden("imports", statement, f"it imports {name[:60]}; a source may import {allowed}")
    nodes = list(ast.walk(tree))
    bound = {one.arg for one in nodes if isinstance(one, ast.arg)}
    bound |= {one.id for one in nodes if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    for node in nodes:
        match node:
            case ast.Attribute(attr=name) | ast.alias(name=name):
                outside = name in _BEYOND
            case ast.Name(id=name):
                outside = name in _BUILT_IN - bound
            case _:
                continue
        if outside or name.startswith("__"):
            yield forbidden("names", node, f"{name[:60]}: a kernel has no need of it")
