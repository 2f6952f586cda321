"""Runs a kernel by Triton's interpreter on NumPy arrays, with TRITON_INTERPRET=1 and without PyTorch: the interpreter
asks of an argument a part of what tensors offer.

    python interpreted.py SOURCE ENTRY VALUES.npz GRID RESULT.npz
"""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import numpy as np


class Tensor:
    """A flat array, and its own storage. Copies are ignored: the interpreter computes where the array is. Offsets and
    strides are the kernel's business."""

    def __init__(self, array: Any) -> None:
        self.array, self.dtype = array, f"torch.{array.dtype}"

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)

    def same(self, *given: Any, **named: Any) -> Tensor:
        return self

    untyped_storage = cpu = copy_ = new_empty = set_ = storage_offset = size = stride = same


def main(source: str, entry: str, values: str, grid: str, result: str) -> None:
    spec = importlib.util.spec_from_file_location("kernel", source)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    given = {name: one if one.ndim else one.item() for name, one in np.load(values).items()}
    passed = {name: Tensor(one) if isinstance(one, np.ndarray) else one for name, one in given.items()}
    getattr(module, entry)[tuple(map(int, grid.split(",")))](**getattr(module, "FIXED", {}), **passed)
    np.savez(result, **{name: one for name, one in given.items() if isinstance(one, np.ndarray)})


if __name__ == "__main__":
    main(*sys.argv[1:])
