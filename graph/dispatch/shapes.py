"""Shapes drawn from the ranges that a task's workloads span, to measure winners on what nobody tuned.

A drawn shape looks like the task's own: each size lies between the least and the largest of the workloads, evenly on a
logarithmic scale, and is a multiple of the power of two that divides that size in a workload drawn at random. Every
combination of types that a workload has gets its share of the shapes. No drawn shape moves more memory than the largest
workload would with the same types.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np

from tunesmith.kernels.build.candidate import types_key
from tunesmith.kernels.spec.task import Task, TaskError, Workload

MOST_ALIGNED = 256
"""The largest power of two that a size is made a multiple of."""
TRIES = 200
"""Draws for a shape that is wanted, as some repeat each other or do not fit."""
SHAPE_SEED = 11_000_003
"""Added to the run's seed."""

ShapeKey = tuple[tuple[tuple[str, int], ...], tuple[tuple[str, str], ...]]


def draw_shapes(
    task: Task, kind: str, count: int, *, seed: int, fits: Callable[[Workload], bool] = lambda _: True
) -> tuple[Workload, ...]:
    """At most `count` different workloads for a `kind` of device ("gpu" or "cpu"), none of them one of the task's.

    The same arguments give the same workloads, and a larger count the same ones first. The types change after
    two shapes, so that every second shape has all of them in turn. fits: whether the baseline can be launched on a
    shape. There are fewer than `count` where the ranges hold no more.
    """
    own = [*task.workloads_for(kind, held_out=False), *task.workloads_for(kind, held_out=True)]
    known = {shape_key(workload) for workload in own}
    models = list({types_key(one): one for one in own}.values())
    random = np.random.default_rng(seed + SHAPE_SEED)
    found: list[Workload] = []
    while len(found) < count and models:
        model = models[len(found) // 2 % len(models)]
        most = max(task.bytes_of(one.model_copy(update={"types": model.types})) for one in own)
        for _ in range(TRIES):
            sizes = {name: _draw(random, [one.sizes[name] for one in own], own) for name in model.sizes}
            name = "drawn-" + "-".join(["x".join(map(str, sizes.values())), *model.types.values()])
            shape = Workload(name=name, sizes=sizes, types=model.types, held_out=True, devices=model.devices)
            if shape_key(shape) not in known and _can_be(task, shape, most) and fits(shape):
                known.add(shape_key(shape))
                found.append(shape)
                break
        else:
            # Nothing is left of these types.
            models.remove(model)
    return tuple(found)


def shapes_of_others(
    task: Task, kind: str, found: Iterable[tuple[dict[str, int], dict[str, str]]]
) -> tuple[Workload, ...]:
    """Sizes and types that other runs measured, as workloads of the task for a `kind` of device: those that it can be
    launched with and that are none of its own, each once."""
    own = [*task.workloads_for(kind, held_out=False), *task.workloads_for(kind, held_out=True)]
    known, kept = {shape_key(workload) for workload in own}, []
    model = own[0]
    for sizes, types in found:
        fits = sizes.keys() == model.sizes.keys() and types.keys() == model.types.keys()
        if not fits or any(dtype not in task.types[name] for name, dtype in types.items()):
            continue
        name = "known-" + "-".join(["x".join(map(str, sizes.values())), *types.values()])
        shape = Workload(name=name, sizes=sizes, types=types, held_out=True, devices=model.devices)
        if shape_key(shape) not in known and _can_be(task, shape, math.inf):
            known.add(shape_key(shape))
            kept.append(shape)
    return tuple(kept)


def _draw(random: np.random.Generator, sizes: list[int], own: list[Workload]) -> int:
    low, high = min(sizes), max(sizes)
    like = sizes[int(random.integers(len(own)))]
    step = min(like & -like, MOST_ALIGNED)
    drawn = math.exp(random.uniform(math.log(low), math.log(high)))
    return min(max(round(drawn / step) * step, math.ceil(low / step) * step), high)


def _can_be(task: Task, shape: Workload, most: float) -> bool:
    try:
        for argument in task.arguments:
            if argument.role == "scalar":
                task.scalar_of(argument, shape)
            else:
                task.shape_of(argument, shape)
        return task.allows(shape) and 0 < task.bytes_of(shape) <= most
    except TaskError:
        # Such as a dimension of one less than a size, or a scalar that its type does not hold.
        return False


def shape_key(workload: Workload) -> ShapeKey:
    """What tells shapes apart: sizes and types, whatever the workload is called."""
    return tuple(sorted(workload.sizes.items())), tuple(sorted(workload.types.items()))
