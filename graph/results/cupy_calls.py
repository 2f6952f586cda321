"""An exported function for CuPy, as far as it is the same for all tasks. This file is copied into the package."""
# ruff: noqa: B905 - packages are for Python 3.9 too, whose zip() has no `strict`

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import get_ident
from typing import Any

import cupy

from .runtime import STORAGE_TYPES, Kernels

PLANS: dict[Any, Any] = {}
"""For each kind of call the prepared launch (None without elements), and shape and type of each output."""


def call(
    kernels: Kernels,
    arrays: Sequence[Any],
    explicit: Sequence[int],
    scalars: Mapping[int, Any],
    dtypes: Sequence[str] | None,
) -> Any:
    """Launches the kernel for these arrays on CuPy's current stream, and returns its output, or a tuple of several.

    explicit: the sizes that no array tells; scalars: by position in the kernel's signature; dtypes: the data types
    where the arrays have only the bits. Raises ValueError with a sentence where arrays do not fit.
    """
    device, types = cupy.cuda.runtime.getDevice(), None if dtypes is None else tuple(dtypes)
    # The arguments of the launch under way lie in its plan, so each thread has its own.
    key = (get_ident(), device, types, *explicit, *((array.shape, array.dtype) for array in arrays))
    if key not in PLANS:
        shapes, names = [array.shape for array in arrays], [array.dtype.name for array in arrays]
        sizes, types = kernels.read(shapes, names, explicit, types, STORAGE_TYPES)
        outputs = [(shape, STORAGE_TYPES.get(name, name)) for shape, name in kernels.outputs(types, sizes)]
        PLANS[key] = None if 0 in sizes else kernels.prepare(device, types, sizes), outputs
    launch, outputs = PLANS[key]
    for argument, array in zip(kernels.given, arrays):
        name = argument["name"]
        if not array.flags.c_contiguous:
            raise ValueError(f"{kernels.name}: {name} must be contiguous; pass cupy.ascontiguousarray({name}).")
        if array.data.ptr % 16:
            raise ValueError(f"{kernels.name}: {name} must begin at a multiple of 16 bytes; pass {name}.copy().")
    made = [cupy.empty(shape, dtype=name) for shape, name in outputs]
    if launch is not None:
        given, returned = iter(arrays), iter(made)
        for slot, argument in zip(launch.slots, kernels.arguments):
            if argument["role"] != "scalar":
                slot.value = next(returned if argument["role"] == "out" else given).data.ptr
        for position, value in scalars.items():
            launch.slots[position].value = value
        launch.start(cupy.cuda.get_current_stream().ptr)
    return tuple(made) if len(made) > 1 else made[0] if made else None
