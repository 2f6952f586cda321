"""A Triton kernel that a program holds: its file read as any other, with the values that its objects have.

Owns what a call's `grid` means in terms of the kernel's arguments: it is called once with names instead of values.
"""

from __future__ import annotations

import linecache
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import FunctionType
from typing import Any

from tunesmith.kernels.reader.parse import SourceError
from tunesmith.kernels.reader.syntax import Kind
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.triton.draft import TritonKernel, read_triton
from tunesmith.kernels.triton.launch import axes_of
from tunesmith.kernels.triton.source import Module, Symbol, find_kernel, values_of

WHERE = "tune_kernel"


def plain_function(kernel: Any) -> FunctionType | None:
    """The Python function inside a jitted, autotuned or heuristics function of Triton; None for anything else."""
    while not isinstance(kernel, FunctionType) and hasattr(kernel, "fn"):
        kernel = kernel.fn
    return kernel if isinstance(kernel, FunctionType) else None


def read_function(kernel: Any, inputs: Any, grid: Any) -> tuple[TritonKernel, Any]:
    """A kernel of Triton, and the examples without the constants of the kernel that they name. grid: of a call, or None
    where the kernel's own file calls it. Raises `SourceError`."""
    function = plain_function(kernel)
    assert function is not None
    place = function.__code__.co_filename
    text = "".join(linecache.getlines(place))
    if not text:
        raise SourceError(f"{WHERE}: the source of {function.__name__} is not there ({place}); define it in a file.")
    found = find_kernel(Module(Path(place), text), function.__name__, "source")
    listed = [one for one in inputs if isinstance(one, Mapping)] if isinstance(inputs, list | tuple) else []
    first = inputs if isinstance(inputs, Mapping) else listed[0] if listed else {}
    constants = {name: value for name, value in first.items() if name in found.constexprs or value is None}
    listed_configs = getattr(kernel, "configs", None) or getattr(getattr(kernel, "fn", None), "configs", None)
    configs = list(map(values_of, listed_configs or ()))
    names = found.parameters
    read = read_triton(found, constants, configs, None if grid is None else _grid(grid, names))
    taken = {one.name for one in read.read.parameters}

    def without(example: Any) -> Any:
        if not isinstance(example, Mapping):
            return example
        return {name: value for name, value in example.items() if name in taken or name not in constants}

    return read, [without(one) for one in inputs] if isinstance(inputs, list) else without(inputs)


def _grid(grid: Any, names: Sequence[str]) -> tuple[str, ...]:
    """The expressions of a grid, which may be a function of the kernel's arguments and constants."""
    try:
        found = grid({one: Symbol(one) for one in names}) if callable(grid) else grid
    except Exception as error:  # the user's code may raise anything
        raise SourceError(
            f"{WHERE}: grid: called with names instead of values it raises {type(error).__name__} ({error}); write it "
            "with triton.cdiv, + - * // % only, or as expressions, such as ['ceil_div(M, BLOCK)']."
        ) from error
    return tuple(axes_of(found))


def typed(kernel: TritonKernel, example: Mapping[str, Any]) -> None:
    """Gives the kernel's arguments the types of the arrays and numbers of an example, outputs included."""
    names = {str(one.storage): name for name, one in reversed(list(DTYPES.items()))}
    facts = kernel.read.facts
    for at, one in enumerate(facts.parameters):
        given = example.get(one.name)
        if one.pointer and given is not None:
            dtype = names.get(str(given.dtype))
            if dtype is None:
                raise SourceError(f"{WHERE}: {one.name} is an array of {given.dtype}, which no task has; convert it.")
            facts.parameters[at] = replace(one, dtype=dtype)
        elif isinstance(given, float) and one.whole:
            facts.parameters[at] = replace(one, kind=Kind("float", 4, "float"), dtype="float32")
    facts.types = {}
