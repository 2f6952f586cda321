"""An exported PyTorch operator, as far as it is the same for all tasks. This file is copied into the package, whose
`__init__.py` has the statements of the task's own arguments: a loop over them would take longer than the launch."""
# ruff: noqa: B905 - packages are for Python 3.9 too, whose zip() has no `strict`

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from .runtime import ARRAY_TYPES, Kernels

NAMES = {torch_name: name for name, torch_name in ARRAY_TYPES.items()}
PLAIN = {torch.Tensor, torch.nn.Parameter}
"""The types of tensors that no one but the dispatcher's kernel asks about a call."""

# Faster private names, and what only the dispatcher takes notice of. A version of PyTorch without them sends every call
# through the dispatcher.
try:
    from torch._C import _cuda_getCurrentRawStream as current_stream
    from torch._C import _cuda_getDevice as current_device
    from torch._C import _is_tracing as is_tracing
    from torch._C import _len_torch_dispatch_stack as dispatch_modes
    from torch._C import _len_torch_function_stack as function_modes
    from torch._C._functorch import peek_interpreter_stack as transform
except ImportError:
    PLAIN = set()
    is_tracing = dispatch_modes = function_modes = transform = bool
    current_device = torch.cuda.current_device

    def current_stream(device: int) -> int:
        stream: int = torch.cuda.current_stream(device).cuda_stream
        return stream


def read(
    kernels: Kernels, tensors: Sequence[Any], explicit: Sequence[int]
) -> tuple[list[partial[Any]], tuple[int, ...], tuple[str, ...]]:
    """Makers of the outputs, sizes and data types of a call; raises ValueError where shapes or types do not fit."""
    names = [str(tensor.dtype).partition(".")[2] for tensor in tensors]
    shapes = [tensor.shape for tensor in tensors]
    sizes, types = kernels.read(shapes, [NAMES.get(name, name) for name in names], explicit)
    # PyTorch reads sizes that are passed one by one in less time than a tuple of them.
    makers = [
        partial(torch.empty, *shape, dtype=getattr(torch, ARRAY_TYPES.get(name, name)), device=tensors[0].device)
        for shape, name in kernels.outputs(types, sizes)
    ]
    return makers, sizes, types


def require_usable(kernels: Kernels, tensors: Sequence[Any]) -> None:
    """Raises ValueError with a sentence for the first tensor that no kernel can take."""
    first, device = kernels.given[0]["name"], tensors[0].device
    for argument, tensor in zip(kernels.given, tensors):
        name = argument["name"]
        for wrong, problem in (
            (not tensor.is_cuda, f"must be on a CUDA device, not on {tensor.device}."),
            (tensor.device != device, f"is on {tensor.device}, but {first} on {device}."),
            (not tensor.is_contiguous(), f"must be contiguous; pass {name}.contiguous()."),
            (tensor.data_ptr() % 16, f"must begin at a multiple of 16 bytes; pass {name}.clone()."),
        ):
            if wrong:
                raise ValueError(f"{kernels.name}: {name} {problem}")


def prepare(kernels: Kernels, tensors: Sequence[Any], explicit: Sequence[int]) -> tuple[Any, ...]:
    """Checks a call. Returns what all calls with the same shapes, types and device need: the device, the prepared
    launch (None without elements), and the maker of each output."""
    makers, sizes, types = read(kernels, tensors, explicit)
    require_usable(kernels, tensors)
    device = tensors[0].get_device()
    return (device, None if 0 in sizes else kernels.prepare(device, types, sizes), *makers)


def register(namespace: str, schema: str, call: Any, fake: Any) -> Any:
    """The operator of a schema. The library that it was made with lives as long as the operator.

    Not torch.library.custom_op, whose wrappers in Python take several times as long as the launch.
    """
    name, library = schema.partition("(")[0], torch.library.Library(namespace, "FRAGMENT")
    library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    library.impl(name, call, "CUDA")
    torch.library.register_fake(f"{namespace}::{name}", fake, lib=library)
    return library, getattr(getattr(torch.ops, namespace), name).default
