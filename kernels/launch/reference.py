"""Calling a task's reference: what it gets, what must come back, and which arithmetic errors it meets.

Owns the call itself, for arrays of NumPy and of CuPy. Its arguments are drawn by `tunesmith.kernels.launch.draw`.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from types import CodeType
from typing import Any

import numpy as np

from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.reference_text import runnable_reference
from tunesmith.kernels.spec.task import Task, TaskError, Workload

DIVIDE, OVERFLOW, INVALID = "divide by zero", "overflow", "invalid value"
"""Arithmetic errors, as NumPy calls them (`numpy.seterrcall`)."""
_DIVIDING = ("div", "true_divide", "divide", "__truediv__", "__rtruediv__", "__rdiv__", "reciprocal", "rsqrt", "log")
"""PyTorch's functions whose infinite results for finite arguments are divisions by zero; others overflow."""


def expected_results(
    xp: Any, task: Task, workload: Workload, inputs: Mapping[str, Any], changed: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """What the reference gives for `inputs` (float64 arrays by name), as flat float64 arrays of `xp` by output name.

    The reference is written for NumPy; given arrays of a GPU it runs there, as NumPy's functions hand over to the
    array they are called on (NEP 13 and NEP 18). Where it does something that cannot be handed over, it runs on the
    host. Magnitudes that the storage type cannot hold become what a kernel's stores make of them
    (`DataType.limited`). changed: scalars with other values than the task's. Raises `TaskError` when the reference
    raises or returns something else than the declared outputs.
    """
    results: Any = None
    scalars = {**_scalars(task, workload), **as_held(task, workload, changed or {})}
    if xp is not np:
        try:
            results = _call_reference(task, {**inputs, **scalars})
        except Exception:  # noqa: BLE001 - whatever stops it on the device, the host has the last word
            results = None
        if not isinstance(results, dict) or not all(isinstance(value, xp.ndarray) for value in results.values()):
            results = None
    if results is None:
        on_host = {name: array if xp is np else array.get() for name, array in inputs.items()}
        results = reference_results(task, workload, {**on_host, **scalars})
    return as_expected(xp, task, workload, results)


def reference_results(task: Task, workload: Workload, inputs: Mapping[str, Any], errors: set[str] | None = None) -> Any:
    """What the reference returns on the host, as it is, for arrays on the host; scalars that are not among `inputs` are
    the task's. errors: collects the arithmetic errors on the way. Raises `TaskError` when it raises."""
    try:
        return _call_reference(task, {**_scalars(task, workload), **inputs}, errors)
    except Exception as error:  # it is the user's code: whatever it raises is named
        raise TaskError(
            f"{where_of(task, workload)} raises {type(error).__name__}: {error}; fix it or its argument names."
        ) from error


def load_reference(task: Task) -> None:
    """Runs the reference's module, and imports its framework, so that no call takes the time for that. Raises
    `TaskError`."""
    try:
        _defined(task)
        if task.framework == "torch":
            importlib.import_module("torch")
    except Exception as error:  # it is the user's code: whatever it raises is named
        raise TaskError(
            f"Task {task.name}: the reference cannot be loaded: {type(error).__name__}: {error}."
        ) from error


def where_of(task: Task, workload: Workload) -> str:
    """The subject of sentences about the reference."""
    return f"Task {task.name}, workload {workload.name}: the reference {task.reference_name}"


def _scalars(task: Task, workload: Workload) -> dict[str, int | float]:
    given = {a.name: task.scalar_of(a, workload) for a in task.arguments if a.role == "scalar"}
    return as_held(task, workload, given)


def as_held(task: Task, workload: Workload, given: Mapping[str, int | float]) -> dict[str, int | float]:
    """Scalars as the kernel gets them, rounded to their types: otherwise the reference computes something else."""
    dtypes = {a.name: task.dtype_of(a, workload) for a in task.arguments}
    return {name: DTYPES[dtypes[name]].rounded(value) for name, value in given.items()}


def as_expected(xp: Any, task: Task, workload: Workload, results: Any) -> dict[str, Any]:
    """What a reference returned as `expected_results` gives it; raises `TaskError`."""
    where = where_of(task, workload)
    names = {argument.name for argument in task.outputs}
    if not isinstance(results, dict) or set(results) != names:
        given = ", ".join(map(str, results)) if isinstance(results, dict) else type(results).__name__
        raise TaskError(f"{where} must return a dict with {', '.join(sorted(names))}; it returns {given}.")
    expected = {}
    for argument in task.outputs:
        shape = task.shape_of(argument, workload)
        try:
            if xp is np and np.iscomplexobj(results[argument.name]):
                raise TaskError(f"{where} returns complex numbers for {argument.name}; return real ones.")
            result = xp.asarray(results[argument.name], dtype=xp.float64)
        except (ValueError, TypeError) as error:
            raise TaskError(f"{where} returns {argument.name}, which is no array of numbers: {error}.") from error
        if result.shape != shape:
            raise TaskError(f"{where} returns {argument.name} with the shape {result.shape}, not {shape}.")
        dtype = task.dtype_of(argument, workload)
        result = DTYPES[dtype].limited(xp, result, task.tolerance_of(dtype, argument.name).rtol)
        expected[argument.name] = result.reshape(-1)
    return expected


def _call_reference(task: Task, values: Mapping[str, Any], errors: set[str] | None = None) -> Any:
    reference = _defined(task)
    if errors is None:
        with np.errstate(all="ignore"):
            return reference(**values)
    with np.errstate(all="call", under="ignore", call=lambda kind, _: errors.add(kind)), _watched(task, errors):
        return reference(**values)


def _defined(task: Task) -> Callable[..., Any]:
    """The reference, of which nothing is left of an earlier call."""
    namespace: dict[str, Any] = {"__name__": f"reference of {task.name}"}
    exec(_compiled(runnable_reference(task), task.name), namespace)
    if task.reference_name not in namespace:
        raise NameError(f"there is no function {task.reference_name} in it")
    function: Callable[..., Any] = namespace[task.reference_name]
    return function


@contextlib.contextmanager
def _watched(task: Task, errors: set[str]) -> Iterator[None]:
    """Adds to `errors` the arithmetic errors of a reference in PyTorch, which does not report them itself: a result
    that is not finite although all arguments are."""
    if task.framework != "torch":
        yield
        return
    import torch
    from torch.overrides import TorchFunctionMode

    class Watch(TorchFunctionMode):  # type: ignore[misc]  # PyTorch need not be installed where types are checked
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            floats = isinstance(result, torch.Tensor) and result.is_floating_point()
            if floats and not bool(torch.isfinite(result).all()):
                given = [one for one in args if isinstance(one, torch.Tensor) and one.is_floating_point()]
                if all(bool(torch.isfinite(one).all()) for one in given):
                    infinite = DIVIDE if getattr(func, "__name__", "") in _DIVIDING else OVERFLOW
                    errors.add(INVALID if bool(torch.isnan(result).any()) else infinite)
            return result

    with Watch():
        yield


@lru_cache(8)  # a check calls the same reference in hundreds of steps
def _compiled(source: str, name: str) -> CodeType:
    return compile(source, f"<reference of {name}>", "exec")
