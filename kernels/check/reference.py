"""Is the reference fit to judge by? It is the user's code: it may be wrong, random, or change what it is given.

Owns what is asked of it on one workload, on the host and without a device. That it may hang or end its process is the
business of whoever runs this in a process of its own (`tunesmith.actors.judging.task_check`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunesmith.kernels.launch.prepared import host_inputs
from tunesmith.kernels.launch.reference import as_expected, reference_results, where_of
from tunesmith.kernels.spec.contents import Contents
from tunesmith.kernels.spec.task import Task, TaskError, Workload


def examine_reference(task: Task, workload: Workload, seed: int, *, twice: bool) -> None:
    """Raises `TaskError`, naming the reference, where its results cannot be what a kernel is compared with. twice: call
    it a second time, to see whether it gives the same."""
    given = host_inputs(task, workload, Contents(seed=seed))
    lent = {name: array.copy() for name, array in given.items()}
    results = reference_results(task, workload, lent)
    where = where_of(task, workload)
    for name, array in given.items():
        if not np.array_equal(array, lent[name], equal_nan=True):
            raise TaskError(
                f"{where} writes its argument {name}: let it work on a copy ({name} = {name}.copy()) and return the "
                "result."
            )
    expected = as_expected(np, task, workload, results)
    for argument in task.outputs:
        _require_precision(where, argument.name, np.asarray(results[argument.name]).dtype)
        _require_numbers(where, argument.name, expected[argument.name], task.shape_of(argument, workload), given)
        _require_tolerance(task, workload, argument.name, expected[argument.name])
    if twice:
        again = reference_results(task, workload, {name: array.copy() for name, array in given.items()})
        for name, value in results.items():
            if not np.array_equal(np.asarray(value), np.asarray(again[name]), equal_nan=True):
                raise TaskError(
                    f"{where} gives two different results for {name} from the same arguments: make it deterministic "
                    "(draw no random numbers, keep no state between calls)."
                )


def _require_precision(where: str, name: str, dtype: np.dtype[Any]) -> None:
    if dtype.kind == "f" and dtype.itemsize < 8:
        raise TaskError(
            f"{where} returns {name} in {dtype}: return float64, which its arguments have, as rounded results are no "
            "measure for a kernel."
        )


def _require_numbers(
    where: str, name: str, expected: NDArray[Any], shape: tuple[int, ...], given: dict[str, NDArray[Any]]
) -> None:
    wrong = np.isnan(expected)
    if wrong.any() and all(np.isfinite(array).all() for array in given.values()):
        at = [int(i) for i in np.unravel_index(int(np.argmax(wrong)), shape)]
        raise TaskError(f"{where} returns nan at {name}{at}, although no argument holds nan or infinity: fix it.")


def _require_tolerance(task: Task, workload: Workload, name: str, expected: NDArray[Any]) -> None:
    argument = next(one for one in task.outputs if one.name == name)
    dtype = task.dtype_of(argument, workload)
    tolerance = task.tolerance_of(dtype, name)
    whose = name if name in task.tolerance else dtype
    finite = np.abs(expected[np.isfinite(expected)])
    if finite.size and finite.max() > 0 and bool((finite <= tolerance.atol + tolerance.rtol * finite).all()):
        raise TaskError(
            f"Task {task.name}, workload {workload.name}: the tolerance of {whose} (rtol {tolerance.rtol:g}, atol "
            f"{tolerance.atol:g}) would accept zeros for {name}, whose largest value is {finite.max():.3g}: make atol "
            "smaller than the values that count."
        )
