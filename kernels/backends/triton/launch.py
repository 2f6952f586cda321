"""A launch of a Triton kernel's cubin: the arguments that its compiler kept, its block, cluster and scratch memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from cuda.bindings import driver

from tunesmith.kernels.build.artifact import CompiledCall

_SCALARS: dict[str, Any] = {"fp32": np.float32, "u1": np.int32, "i32": np.int32, "i64": np.int64, "u64": np.uint64}
MAX_STATIC_SHARED = 48 << 10
"""Bytes that a block may use without asking for more (CUDA C++ Programming Guide, "Shared Memory")."""


class TritonFunction:
    """A kernel that is launched with a task's arguments as CuPy launches others. function: CuPy's, of a cubin; check:
    raises `DeviceError` for the answer of a call of the driver API that failed."""

    def __init__(self, function: Any, call: CompiledCall, check: Callable[[Any], Any]) -> None:
        self.ptr, self._function, self._call, self._check = function.ptr, function, call, check
        # A captured graph goes on using the memory with which it was captured.
        self._scratch: list[Any] = []
        if call.shared_bytes > MAX_STATIC_SHARED:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            check(driver.cuFuncSetAttribute(self.ptr, attribute, call.shared_bytes))

    def __call__(
        self, grid: Sequence[int], block: Sequence[int], arguments: Sequence[Any], *, shared_mem: int = 0, stream: Any
    ) -> None:
        """Enqueues a launch. block and shared_mem are the template's, and the compiler's own go before."""
        import cupy

        call = self._call
        passed = [_passed(arguments[place], kind) for place, kind in call.arguments]
        blocks = int(np.prod(grid)) * call.cluster
        if (needed := blocks * call.scratch_bytes) and (not self._scratch or self._scratch[-1].nbytes < needed):
            self._scratch.append(cupy.empty(needed, cupy.uint8))
        scratch = self._scratch[-1].data.ptr if self._scratch else 0
        passed += [np.uint64(scratch), np.uint64(0)]
        if call.cluster == 1 and not call.cooperative:
            self._function(grid, (call.threads, 1, 1), tuple(passed), shared_mem=call.shared_bytes, stream=stream)
            return
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid[0] * call.cluster, *grid[1:]
        config.blockDimX, config.blockDimY, config.blockDimZ = call.threads, 1, 1
        config.sharedMemBytes, config.hStream = call.shared_bytes, stream.ptr
        config.attrs = _attributes(call)
        config.numAttrs = len(config.attrs)
        held = [np.array([one]) for one in passed]
        addresses = np.array([one.ctypes.data for one in held], np.uint64)
        self._check(driver.cuLaunchKernelEx(config, self.ptr, addresses.ctypes.data, 0))


def _passed(value: Any, kind: str) -> Any:
    """An argument as the kernel's parameter holds it: an address, or a number of the type that Triton chose."""
    if kind.startswith("*"):
        return value if isinstance(value, np.uint64) else np.uint64(value.data.ptr)
    return _SCALARS[kind](value)


def _attributes(call: CompiledCall) -> list[Any]:
    found, ids = [], driver.CUlaunchAttributeID
    if call.cluster > 1:
        attribute = driver.CUlaunchAttribute()
        attribute.id = ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = call.cluster, 1, 1
        found.append(attribute)
    if call.cooperative:
        attribute = driver.CUlaunchAttribute()
        attribute.id, attribute.value.cooperative = ids.CU_LAUNCH_ATTRIBUTE_COOPERATIVE, 1
        found.append(attribute)
    return found
