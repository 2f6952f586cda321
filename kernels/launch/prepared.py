"""The contents of a workload's arrays, and the results that the reference gives for them, made on the host ahead of any
launch.

Owns whether made-up contents are within the reference's contract, and how prepared contents are kept in a file. Which
contents are drawn is `tunesmith.kernels.launch.draw`.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunesmith.kernels.launch.draw import draw_variants
from tunesmith.kernels.launch.reference import DIVIDE, INVALID, as_expected, as_held, reference_results, where_of
from tunesmith.kernels.spec.contents import Contents
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.reference_text import runnable_reference
from tunesmith.kernels.spec.task import Task, Workload

VARIANTS = 2
"""Drawings of the contents that a workload's sets of buffers hold in turn."""
_DECIDING = ("draw.py", "prepared.py", "reference.py", "../spec/dtypes.py", "../spec/contents.py")
"""Modules of which a change may change what is prepared."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """For each variant: inputs, flat arrays of the type `DataType.array` by argument, and expected, flat float64 arrays
    by output."""

    inputs: tuple[dict[str, NDArray[Any]], ...]
    expected: tuple[dict[str, NDArray[Any]], ...]

    def to_bytes(self) -> bytes:
        arrays = {
            f"{kind}.{variant}.{name}": array
            for kind, parts in (("inputs", self.inputs), ("expected", self.expected))
            for variant, part in enumerate(parts)
            for name, array in part.items()
        }
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **arrays)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Prepared:
        parts: dict[str, list[dict[str, NDArray[Any]]]] = {
            kind: [{} for _ in range(VARIANTS)] for kind in ("inputs", "expected")
        }
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            for key in arrays.files:
                kind, variant, name = key.split(".", 2)
                parts[kind][int(variant)][name] = arrays[key]
        return cls(tuple(parts["inputs"]), tuple(parts["expected"]))


@dataclass(frozen=True, slots=True)
class OutsideContract:
    """Made-up contents for which the reference itself meets an arithmetic error, so that they prove nothing."""

    why: str


def prepare_contents(
    task: Task, workload: Workload, contents: Contents, *, made_up: bool
) -> Prepared | OutsideContract:
    """Draws `contents` and calls the reference, which must not be the original kernel. made_up: whether Tunesmith, and
    not the task, chose sizes, contents or scalars. Raises `TaskError` where the reference raises or returns something
    else than the declared outputs."""
    drawn = draw_variants(np, task, workload, contents, VARIANTS)
    changed = as_held(task, workload, dict(contents.scalars))
    expected = []
    for inputs in drawn:
        values = values_of(np, task, workload, inputs)
        errors = set[str]()
        results = reference_results(task, workload, {**values, **changed}, errors)
        if made_up and errors and (why := _outside(task, workload, values, changed, results, errors)):
            return OutsideContract(why)
        expected.append(as_expected(np, task, workload, results))
    return Prepared(tuple(drawn), tuple(expected))


def _outside(
    task: Task,
    workload: Workload,
    values: Mapping[str, NDArray[Any]],
    changed: Mapping[str, float],
    results: Any,
    errors: set[str],
) -> str:
    """Why the arithmetic `errors` put the contents outside of the contract; empty where they do not.

    A changed scalar that makes the reference divide by zero, which it does not with the task's own, is one that nobody
    would pass. Errors on drawn arrays count where they reach the results: a reference may overflow on the way to a
    sigmoid, or choose by `where`. Arrays that hold infinities or NaN cause errors of their own, not the scalar's.
    """
    finite = all(bool(np.isfinite(array).all()) for array in values.values())
    if changed and errors & {DIVIDE, INVALID}:
        own, usual = errors, set[str]()
        harmless = {name: np.where(np.isfinite(array), array, 1.0) for name, array in values.items()}
        if not finite:
            own = set()
            reference_results(task, workload, {**harmless, **changed}, own)
        reference_results(task, workload, harmless, usual)
        if own & {DIVIDE, INVALID} and not usual & {DIVIDE, INVALID}:
            named = ", ".join(f"{name} = {value:g}" for name, value in changed.items())
            return f"with {named} {_sentence(task, workload, own & {DIVIDE, INVALID})}"
    if finite and isinstance(results, dict):
        floats = (np.asarray(result) for result in results.values())
        if not all(bool(np.isfinite(result).all()) for result in floats if result.dtype.kind == "f"):
            return _sentence(task, workload, errors)
    return ""


def _sentence(task: Task, workload: Workload, errors: set[str]) -> str:
    return f"{where_of(task, workload)} meets an arithmetic error of its own ({', '.join(sorted(errors))})"


def values_of(xp: Any, task: Task, workload: Workload, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Flat `inputs` of the type `DataType.array` in float64 and in their shapes, as the reference gets them."""
    values = {}
    for argument in task.arguments:
        if argument.name in inputs:
            converted = DTYPES[task.dtype_of(argument, workload)].to_float64(xp, inputs[argument.name])
            values[argument.name] = converted.reshape(task.shape_of(argument, workload))
    return values


def host_inputs(task: Task, workload: Workload, contents: Contents) -> dict[str, NDArray[Any]]:
    """The inputs of a workload, of its first variant, as float64 arrays on the host."""
    return values_of(np, task, workload, draw_variants(np, task, workload, contents, 1)[0])


def key_of(task: Task, workload: Workload, contents: Contents, *, made_up: bool) -> str:
    """The content address of prepared contents: of the reference, the arguments, the sizes, types, contents and
    scalars, and of the modules that draw."""
    about = {
        "modules": _modules(),
        "numpy": np.__version__,
        "reference": [runnable_reference(task), task.reference_name],
        "arguments": [argument.model_dump(mode="json") for argument in task.arguments],
        "tolerance": {name: one.model_dump() for name, one in task.tolerance.items()},
        "workload": [workload.name, workload.sizes, workload.types],
        "contents": asdict(contents),
        "made_up": made_up,
    }
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


@cache
def _modules() -> str:
    here, digest = Path(__file__).resolve().parent, hashlib.sha256()
    for name in _DECIDING:
        digest.update((here / name).read_bytes())
    return digest.hexdigest()
