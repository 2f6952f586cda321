"""Does the device compute at all? A tiny kernel whose right answer is known, run before anything is measured.

A device that answers wrongly, or not at all, would turn good configurations into failures.
"""

from __future__ import annotations

import numpy as np

from tunesmith.kernels.backends import Compiler, Device, DeviceError, Launch
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.specialise import Specialised
from tunesmith.kernels.spec.geometry import Geometry
from tunesmith.kernels.spec.template import BackendName

HEALTH_ENTRY = "tunesmith_health"
HEALTH_BLOCK, HEALTH_BLOCKS, HEALTH_STEPS = 64, 1024, 64
_HEALTH_BODY = f"""{{
    unsigned int x = @INDEX@;
    for (int step = 0; step < {HEALTH_STEPS}; ++step) x = x * 1664525u + 1013904223u;
    out[@INDEX@] = x;
}}
"""
_HEALTH_SOURCES: dict[BackendName, str] = {
    "cuda": f'extern "C" __global__ void {HEALTH_ENTRY}(unsigned int* out) '
    + _HEALTH_BODY.replace("@INDEX@", "blockIdx.x * blockDim.x + threadIdx.x"),
    "opencl": f"__kernel void {HEALTH_ENTRY}(__global unsigned int* out) " + _HEALTH_BODY.replace("@INDEX@", "get_global_id(0)"),
}
"""A linear congruential generator (Numerical Recipes, section 7.1): every element depends on every step."""


def compile_health(compiler: Compiler, backend: BackendName) -> Artifact | None:
    """The kernel, compiled; None where the compiler refuses it, which then is no fault of a device."""
    made = compiler.compile(Specialised(backend, HEALTH_ENTRY, _HEALTH_SOURCES[backend]))
    return made if isinstance(made, Artifact) else None


def self_test(device: Device, artifact: Artifact) -> str:
    """What is wrong with `device`, as a clause; empty when it computes the right answer."""
    count = HEALTH_BLOCKS * HEALTH_BLOCK
    try:
        buffer = device.allocate(4 * count)
        device.write(buffer, np.zeros(4 * count, np.uint8))
        device.launch(Launch(device.load(artifact), Geometry((HEALTH_BLOCKS, 1, 1), (HEALTH_BLOCK, 1, 1)), (buffer,)))
        device.synchronize()
        found = device.read(buffer).view(np.uint32)
    except DeviceError as error:
        return f"it cannot run a small kernel ({error})"
    wrong = int((found != expected(count)).sum())
    return f"{wrong} of {count} results of a small kernel are wrong" if wrong else ""


def expected(count: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    """What the kernel writes."""
    values = np.arange(count, dtype=np.uint32)
    for _ in range(HEALTH_STEPS):
        values = values * np.uint32(1664525) + np.uint32(1013904223)
    return values
