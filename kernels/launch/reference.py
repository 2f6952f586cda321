"""A task's reference: calling it, its arguments and results, and the arithmetic errors that it meets.

A reference is Python on NumPy or PyTorch, or the original kernel itself. Owns the text of it that takes NumPy arrays
whatever its framework (worker processes and `best/` get that text), the results that are expected of a kernel, and
contents with their results made on the host ahead of any device (`Prepared`).
"""

from __future__ import annotations

import contextlib
import importlib
import math
import traceback
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from types import CodeType, MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunesmith.kernels.backends import BoundLaunch, Device, kept, open_compiler
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.source import code_key, specialise
from tunesmith.kernels.launch.contents import Contents, draw_variants
from tunesmith.kernels.outcome import describe
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.task import Task, TaskError, Workload, geometry

_TORCH = '''

def _with_numpy(function, outputs):
    """`function` of PyTorch tensors as one of arrays. CuPy's are not copied. One output may come without its dict."""
    import torch

    def call(**given):
        where = next((value for value in given.values() if hasattr(value, "__cuda_array_interface__")), None)
        device = "cpu"
        if where is not None:
            import cupy

            # PyTorch works on a stream of its own, which does not wait for what still writes these arrays.
            cupy.cuda.Device().synchronize()
            device = "cuda"
        tensors = {
            name: torch.as_tensor(value, device=device) if getattr(value, "ndim", 0) else value
            for name, value in given.items()
        }
        with torch.no_grad():
            results = function(**tensors)
        if not isinstance(results, dict):
            results = dict(zip(outputs, results if isinstance(results, (tuple, list)) else [results]))
        if where is None:
            return {name: value.detach().cpu().numpy() for name, value in results.items()}
        torch.cuda.current_stream().synchronize()
        return {name: cupy.from_dlpack(value.detach().contiguous()) for name, value in results.items()}

    return call


@NAME@ = _with_numpy(@NAME@, @OUTPUTS@)
'''
_ORIGINAL = '''"""The reference of this task is its original kernel: there is nothing on the host to compare with."""


def @NAME@(**given):
    raise SystemExit(__doc__)
'''


def runnable_reference(task: Task) -> str:
    """Python source that defines `task.reference_name` for NumPy arrays, which it gets and returns by name."""
    if task.original_is_reference:
        return _ORIGINAL.replace("@NAME@", task.reference_name)
    if task.framework == "numpy":
        return task.reference
    outputs = repr([argument.name for argument in task.outputs])
    return task.reference + _TORCH.replace("@NAME@", task.reference_name).replace("@OUTPUTS@", outputs)


def on_host(array: Any) -> NDArray[Any]:
    """An array of NumPy or CuPy in NumPy."""
    host: NDArray[Any] = array.get() if hasattr(array, "get") else np.asarray(array)
    return host


def original_results(
    device: Device, task: Task, workload: Workload, inputs: Mapping[str, Any], scalars: Mapping[str, float]
) -> dict[str, Any]:
    """The baseline's outputs for `inputs` (arrays of float64 by name, on the host or the device), by output, in
    float64 and in shape. scalars: with other values than the task's. Raises `TaskError` where it does not compile,
    `DeviceError` where it cannot be launched."""
    template = task.sources(device.limits.backend).baseline.template
    source = specialise(template, {}, dict(code_key(task, template, workload)))

    def load() -> Any:
        made = open_compiler(device.limits, device.index).compile(source)
        if not isinstance(made, Artifact):
            raise TaskError(f"Task {task.name}: its original, which is the reference, gives this: {describe(made)}")
        return device.load(made)

    arguments: dict[str, Any] = dict(passed_scalars(task, workload, scalars))
    for argument in task.arrays:
        kind, shape = DTYPES[task.dtype_of(argument, workload)], task.shape_of(argument, workload)
        buffer = arguments[argument.name] = device.allocate(math.prod(shape) * kind.size)
        given = np.zeros(shape) if argument.role == "out" else inputs[argument.name]
        device.write(buffer, np.ascontiguousarray(kind.from_float(on_host(given))).reshape(-1).view(np.uint8))
    passed = tuple(arguments[argument.name] for argument in task.arguments)
    device.launch(BoundLaunch(kept(device, source.digest, load), geometry(template, {}, workload), passed))
    device.synchronize()
    dtypes = {argument.name: task.dtype_of(argument, workload) for argument in task.outputs}
    raw = {name: device.array(arguments[name], dtype) for name, dtype in dtypes.items()}
    return values_of(device.xp, task, workload, raw)


DIVIDE, OVERFLOW, INVALID = "divide by zero", "overflow", "invalid value"
"""Arithmetic errors, as NumPy calls them (`numpy.seterrcall`)."""
_DIVIDING = ("div", "true_divide", "divide", "__truediv__", "__rtruediv__", "__rdiv__", "reciprocal", "rsqrt", "log")
"""PyTorch's functions whose infinite results for finite arguments are divisions by zero; others overflow."""


def expected_results(
    xp: Any, task: Task, workload: Workload, inputs: Mapping[str, Any], changed: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """The reference's results for `inputs` (float64 arrays by name), as flat float64 arrays of `xp` by output name.

    The reference is written for NumPy; given arrays of a GPU it runs there, as NumPy's functions hand over to the
    array they are called on (NEP 13 and NEP 18). Where it does something that cannot be handed over, it runs on the
    host. Magnitudes that the storage type cannot hold become what a kernel's stores make of them
    (`DataType.limited`). changed: scalars with other values than the task's. Raises `TaskError` when the reference
    raises or returns something else than the declared outputs.
    """
    results: Any = None
    scalars = scalars_of(task, workload, changed or {})
    if xp is not np:
        try:
            results = _call_reference(task, {**inputs, **scalars})
        except Exception:  # noqa: BLE001 - whatever stops it on the device, the host has the last word
            results = None
        if not isinstance(results, dict) or not all(isinstance(value, xp.ndarray) for value in results.values()):
            results = None
    if results is None:
        held = {name: on_host(array) for name, array in inputs.items()}
        results = reference_results(task, workload, {**held, **scalars})
    return as_expected(xp, task, workload, results)


def reference_results(task: Task, workload: Workload, inputs: Mapping[str, Any], errors: set[str] | None = None) -> Any:
    """The reference's return value on the host, as it is, for arrays on the host; scalars that are not among `inputs`
    are the task's. errors: collects the arithmetic errors on the way. Raises `TaskError` when it raises."""
    try:
        return _call_reference(task, {**scalars_of(task, workload), **inputs}, errors)
    except Exception as error:  # it is the user's code: whatever it raises is named
        # The last of its frames whose line is in the task's text, behind which its framework's wrapper may stand.
        lines, frames = range(task.reference.count("\n") + 2), traceback.extract_tb(error.__traceback__)
        own = [one.lineno for one in frames if one.filename == f"<reference of {task.name}>" and one.lineno in lines]
        place = f" (line {own[-1]} of its file); fix it" if own else "; fix it or its argument names"
        raise TaskError(f"{where_of(task, workload)} raises {type(error).__name__}: {error}{place}.") from error


def load_reference(task: Task) -> None:
    """Runs the reference's module and imports its framework, ahead of all calls. Raises `TaskError`."""
    try:
        _defined(task)
        if task.framework == "torch":
            importlib.import_module("torch")
    except Exception as error:  # it is the user's code: whatever it raises is named
        raise TaskError(
            f"Task {task.name}: the reference cannot be loaded: {type(error).__name__}: {error}."
        ) from error


def where_of(task: Task, workload: Workload) -> str:
    """The subject of sentences about the reference, which tell made-up sizes from the task's."""
    own, why = workload in task.workloads, "; rule them out by `requires` if no caller has them"
    chosen = "" if own else f" (sizes that Tunesmith chose, to try others than the task's{why})"
    return f"Task {task.name}, workload {workload.name}{chosen}: the reference {task.reference_name}"


def scalars_of(task: Task, workload: Workload, changed: Mapping[str, float] = MappingProxyType({})) -> dict[str, float]:
    """Scalars as the kernel gets them, rounded to their types: otherwise the reference computes something else.
    changed: values other than the task's."""
    return {
        one.name: DTYPES[task.dtype_of(one, workload)].rounded(changed.get(one.name, task.scalar_of(one, workload)))
        for one in task.scalars
    }


def passed_scalars(task: Task, workload: Workload, changed: Mapping[str, float]) -> dict[str, np.generic]:
    """Scalars by name, as a kernel takes them. changed: values other than the task's."""
    return {
        one.name: DTYPES[task.dtype_of(one, workload)].scalar(changed.get(one.name, task.scalar_of(one, workload)))
        for one in task.scalars
    }


def as_expected(xp: Any, task: Task, workload: Workload, results: Any) -> dict[str, Any]:
    """A reference's return value in the form of `expected_results`; raises `TaskError`."""
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
            raise TaskError(f"{where} returns {argument.name}, which is not an array of numbers: {error}.") from error
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
    watched = _watched_torch(errors) if task.framework == "torch" else contextlib.nullcontext()
    with np.errstate(all="call", under="ignore", call=lambda kind, _: errors.add(kind)), watched:
        return reference(**values)


def _defined(task: Task) -> Callable[..., Any]:
    """The reference, of which nothing is left of an earlier call."""
    namespace: dict[str, Any] = {"__name__": f"reference of {task.name}"}
    exec(_compiled(runnable_reference(task), task.name), namespace)
    if task.reference_name not in namespace:
        raise NameError(f"there is no function {task.reference_name} in it")
    function: Callable[..., Any] = namespace[task.reference_name]
    return function


def _watched_torch(errors: set[str]) -> contextlib.AbstractContextManager[Any]:
    """Adds PyTorch's arithmetic errors to `errors`: a result that is not finite although all arguments are."""
    import torch
    from torch.overrides import TorchFunctionMode

    def are_finite(values: Iterable[Any]) -> bool:
        floats = [one for one in values if isinstance(one, torch.Tensor) and one.is_floating_point()]
        return all(bool(torch.isfinite(one).all()) for one in floats)

    class Watch(TorchFunctionMode):  # type: ignore[misc]  # PyTorch need not be installed where types are checked
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if not are_finite([result]) and are_finite(args):
                infinite = DIVIDE if getattr(func, "__name__", "") in _DIVIDING else OVERFLOW
                errors.add(INVALID if bool(torch.isnan(result).any()) else infinite)
            return result

    mode: contextlib.AbstractContextManager[Any] = Watch()
    return mode


@lru_cache(8)  # a check calls the same reference in hundreds of steps
def _compiled(source: str, name: str) -> CodeType:
    return compile(source, f"<reference of {name}>", "exec")


VARIANTS = 2
"""Drawings of the contents that a workload's sets of buffers hold in turn."""
Prepared = list[tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]]
"""For each variant: inputs, flat arrays of `DataType.array` by argument, and results, flat float64 by output."""


def prepare_contents(task: Task, workload: Workload, contents: Contents, *, made_up: bool) -> Prepared | str:
    """Draws `contents` and calls the reference, which must not be the original kernel. made_up: whether Tunesmith, and
    not the task, chose sizes, contents or scalars: where the reference meets an arithmetic error of its own on them,
    they prove nothing, and the result is a sentence that says so. Raises `TaskError` where the reference raises or
    returns something else than the declared outputs."""
    prepared = []
    scalars = scalars_of(task, workload, dict(contents.scalars))
    changed = {name: scalars[name] for name, _ in contents.scalars}
    for inputs in draw_variants(np, task, workload, contents, VARIANTS):
        values, errors = values_of(np, task, workload, inputs), set[str]()
        results = reference_results(task, workload, {**values, **changed}, errors)
        if made_up and errors and (why := _outside(task, workload, values, changed, results, errors)):
            return why
        prepared.append((inputs, as_expected(np, task, workload, results)))
    return prepared


def _outside(
    task: Task,
    workload: Workload,
    values: Mapping[str, NDArray[Any]],
    changed: Mapping[str, float],
    results: Any,
    errors: set[str],
) -> str:
    """Why the arithmetic `errors` put the contents outside of the contract; empty where they do not.

    Nobody would pass a changed scalar that makes the reference divide by zero where the task's own does not. Errors on
    drawn arrays count where they reach the results: a reference may overflow on the way to a sigmoid, or choose by
    `where`. Arrays that hold infinities or NaN cause errors of their own, not the scalar's.
    """
    sentence = f"{where_of(task, workload)} meets an arithmetic error of its own"
    if changed and errors & {DIVIDE, INVALID}:
        harmless, own, usual = {}, set[str](), set[str]()
        for name, array in values.items():
            harmless[name] = np.where(np.isfinite(array), array, 1.0)
        reference_results(task, workload, {**harmless, **changed}, own)
        reference_results(task, workload, harmless, usual)
        if (faults := own & {DIVIDE, INVALID}) and not usual & {DIVIDE, INVALID}:
            named = ", ".join(f"{name} = {value:g}" for name, value in changed.items())
            return f"with {named} {sentence} ({', '.join(sorted(faults))})"
    if isinstance(results, dict) and all(bool(np.isfinite(array).all()) for array in values.values()):
        floats = (np.asarray(result) for result in results.values())
        if not all(bool(np.isfinite(result).all()) for result in floats if result.dtype.kind == "f"):
            return f"{sentence} ({', '.join(sorted(errors))})"
    return ""


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
