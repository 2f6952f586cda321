"""Scalars that the checks make up where a task lists no values: how each is made, and which say nothing.

Scalars of a float type take values of many magnitudes. Whole numbers do where no size decides them and the reference
uses them.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tunesmith.kernels.launch.contents import Contents, draw_variants
from tunesmith.kernels.launch.reference import as_expected, prepare_contents, reference_results, scalars_of, values_of
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.expression import parse
from tunesmith.kernels.spec.task import Argument, Task, TaskError, Workload

MAX_POWER = 256
"""Sizes and whole numbers are drawn by the power of two, at most this, that divides them: 96 and 200 are as likely as
128."""
UnusableScalar = tuple[str, int, float | None]
"""Name, level, and the made-up value; None where the reference does not use the scalar."""
Rng = np.random.Generator
SCALARS: tuple[Callable[[float, Rng], float], ...] = (
    lambda own, rng: -own,
    lambda own, rng: 0.0,
    lambda own, rng: 1.0,
    lambda own, rng: math.copysign(10 ** float(rng.uniform(-12, -1)), own),
    lambda own, rng: math.copysign(float(rng.uniform(0, 2)), own) + own,
    lambda own, rng: float(rng.uniform(0, 1)),
    lambda own, rng: -float(rng.uniform(0, 1)),
    lambda own, rng: own * 10 ** float(rng.uniform(0, 3)),
    lambda own, rng: float(rng.integers(2, 9)),
    lambda own, rng: -float(rng.integers(2, 9)),
)
"""Values of a scalar of a float type beside the task's own, where the task lists no `values`."""


def multiple_of(power: int, most: float, part: float) -> int:
    """An odd multiple of a power of two up to `most`, but for the largest power, of which any multiple will do. part:
    its share of the logarithm of the range."""
    units = int(math.exp(part * math.log(most // power + 1)))
    return power * (units if power == MAX_POWER else units - 1 + units % 2)


def _whole_number(own: float, rng: Rng) -> int:
    """Of any magnitude up to eight times `own` or `MAX_POWER`, by the largest power of two that divides it."""
    power, most = 1 << int(rng.integers(MAX_POWER.bit_length())), max(8 * abs(own), MAX_POWER)
    return int(math.copysign(multiple_of(power, most, rng.random()), own))


def _near_a_size(size: float, rng: Rng) -> int:
    return int(size) + int(rng.integers(-1, 2))


def _half_a_size(size: float, rng: Rng) -> int:
    return int(size) // 2


WHOLE_SCALARS: tuple[Callable[[float, Rng], float], ...] = (
    lambda own, rng: -own,
    lambda own, rng: 0,
    lambda own, rng: 1,
    lambda own, rng: own + int(rng.integers(-3, 4)),
    lambda own, rng: own * int(rng.integers(2, 9)),
    *(_whole_number, _whole_number, lambda own, rng: -_whole_number(own, rng)),
    _near_a_size,
    _half_a_size,
    lambda own, rng: int(rng.integers(1 << 31, 1 << 32)),
)
"""The same for a whole number that does not depend on sizes, as far as its type holds it; the last without a sign."""


def ways_to_make_up(task: Task, argument: Argument) -> tuple[Callable[[float, Rng], float], ...]:
    """How values of a scalar that the task does not list are made; none of a whole number that depends on sizes, for
    whose own value Triton compiles a kernel, or of which no reference tells whether it is one of the layout."""
    floats = [DTYPES[dtype].is_float for dtype in task.dtypes_of(argument)]
    if argument.role != "scalar" or argument.values or (any(floats) and not all(floats)):
        return ()
    fixed = parse(argument.value or "").names or "triton" in task.backends or task.original_is_reference
    return SCALARS if all(floats) else () if fixed else WHOLE_SCALARS


def scalars_with(task: Task, workload: Workload, chosen: Mapping[str, int], seed: int) -> tuple[tuple[str, float], ...]:
    """The values of scalars that are not the task's own in a step. chosen: levels, from 1 on; 0 is the task's own."""
    found = []
    for argument in task.arguments:
        if level := chosen.get(argument.name, 0):
            with contextlib.suppress(TaskError):
                own, dtype = task.scalar_of(argument, workload), DTYPES[task.dtype_of(argument, workload)]
                if argument.values:
                    value = task.scalar_of(argument.model_copy(update={"value": argument.values[level - 1]}), workload)
                else:
                    make = ways_to_make_up(task, argument)[level - 1]
                    if make is WHOLE_SCALARS[-1] and dtype.span[0] < 0:
                        continue  # of a count the reference might not end
                    rng = np.random.default_rng([seed, level, *argument.name.encode()])
                    of_size = make in (_near_a_size, _half_a_size) and workload.sizes
                    value = make(rng.choice([*workload.sizes.values()]) if of_size else own, rng)
                if value != own and (dtype.is_float or dtype.span[0] <= value <= dtype.span[1]):
                    found.append((argument.name, value))
    return tuple(found)


def made_up_scalars(task: Task, workload: Workload, seed: int) -> Iterator[tuple[str, int, float]]:
    """The values of scalars that no task lists: name, level and value on `workload`."""
    for argument in task.arguments:
        for level in range(1, 1 + len(ways_to_make_up(task, argument))):
            for name, value in scalars_with(task, workload, {argument.name: level}, seed):
                yield name, level, value


def unusable_scalars(task: Task, workload: Workload, seed: int) -> list[UnusableScalar]:
    """The made-up values with which the reference fails or meets an arithmetic error on the task's own contents. Of a
    whole number none is usable where the reference does not use it, as a stride: with another one the plain kernel
    would leave its arrays."""
    found, used, contents = list[UnusableScalar](), set[str](), Contents(seed=seed)
    whole = {one.name for one in task.arguments if ways_to_make_up(task, one) is WHOLE_SCALARS}
    inputs = values_of(np, task, workload, draw_variants(np, task, workload, contents, 1)[0]) if whole else {}
    own = _results(task, workload, inputs, {}) if whole else {}
    for name, level, value in made_up_scalars(task, workload, seed):
        if _errs(task, workload, replace(contents, scalars=((name, value),))):
            found.append((name, level, value))
        elif name in whole - used:
            other = _results(task, workload, inputs, {name: value})
            if not all(np.array_equal(own[key], other[key], equal_nan=True) for key in own if other):
                used.add(name)
    return found + [(name, level, None) for name in sorted(whole - used) for level in range(1, 1 + len(WHOLE_SCALARS))]


def _results(task: Task, workload: Workload, inputs: Mapping[str, Any], changed: Mapping[str, float]) -> dict[str, Any]:
    """The reference's results with some scalars changed; empty where it fails."""
    scalars = {name: scalars_of(task, workload, changed)[name] for name in changed}
    try:
        return as_expected(np, task, workload, reference_results(task, workload, {**inputs, **scalars}, set()))
    except TaskError:
        return {}


def _errs(task: Task, workload: Workload, contents: Contents) -> bool:
    """Whether the reference meets an arithmetic error that the task's own scalars do not bring."""
    try:
        return isinstance(prepare_contents(task, workload, contents, made_up=True), str)
    except TaskError:
        return True
