"""Occupancy against the driver itself, for kernels of many register counts, on whatever GPU is here."""

from __future__ import annotations

import numpy as np
import pytest

from tunesmith.hw.occupancy import occupancy
from tunesmith.hw.probe import probe_cuda

pytestmark = pytest.mark.gpu

# Enough live values that the compiler uses as many registers as it is allowed.
_SOURCE = b"""
extern "C" __global__ void hungry(float* p, int n) {
    extern __shared__ float s[];
    float v[240];
    #pragma unroll
    for (int i = 0; i < 240; ++i) v[i] = p[i * 1024 + threadIdx.x];
    for (int k = 0; k < n; ++k) {
        #pragma unroll
        for (int i = 0; i < 240; ++i) v[i] = v[i] * v[(i + 7) % 240] + p[k];
    }
    float sum = s[threadIdx.x];
    #pragma unroll
    for (int i = 0; i < 240; ++i) sum += v[i];
    p[threadIdx.x] = sum;
}
extern "C" __global__ void modest(float* p) { p[threadIdx.x] += 1.0f; }
"""


def _checked(result):
    code, *values = result
    assert code.value == 0, code
    return values[0] if values else None


def _cubin(arch, register_cap):
    from cuda.bindings import nvrtc

    program = _checked(nvrtc.nvrtcCreateProgram(_SOURCE, b"k.cu", 0, [], []))
    options = [f"--gpu-architecture={arch}".encode(), f"--maxrregcount={register_cap}".encode()]
    _checked(nvrtc.nvrtcCompileProgram(program, len(options), options))
    image = b" " * _checked(nvrtc.nvrtcGetCUBINSize(program))
    _checked(nvrtc.nvrtcGetCUBIN(program, image))
    return image


def test_the_driver_agrees():
    devices = probe_cuda().devices
    if not devices:
        pytest.skip("no CUDA device: " + " ".join(probe_cuda().notes))
    from cuda.bindings import driver

    limits = devices[0].limits
    device = _checked(driver.cuDeviceGet(devices[0].index))
    context = _checked(driver.cuDevicePrimaryCtxRetain(device))
    _checked(driver.cuCtxSetCurrent(context))
    threads = np.concatenate([[1, 31, 33, 100, 1000], np.arange(32, 1025, 32)])
    optin = limits.shared_per_block_optin
    edges = [0, 1, 127, 128, 129, 1024, 48 * 1024, optin - 1, optin]
    shared = np.unique(np.concatenate([edges, np.linspace(0, optin, 40).astype(int)]))
    points = [(int(t), int(s)) for t in threads for s in shared]
    seen = set()
    try:
        for cap in [*range(16, 129, 8), 37, 100, 144, 160, 168, 200, 224, 255]:
            module = _checked(driver.cuModuleLoadData(_cubin(limits.arch, cap)))
            for name in (b"hungry", b"modest"):
                function = _checked(driver.cuModuleGetFunction(module, name))
                attribute = driver.CUfunction_attribute
                count = attribute.CU_FUNC_ATTRIBUTE_NUM_REGS
                registers = _checked(driver.cuFuncGetAttribute(count, function))
                maximum = attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                _checked(driver.cuFuncSetAttribute(function, maximum, optin))
                seen.add(registers)
                ask = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor
                for t, s in points:
                    ours = occupancy(limits, threads=t, registers=registers, shared=s).blocks_per_sm
                    assert ours == _checked(ask(function, t, s)), (registers, t, s)
            _checked(driver.cuModuleUnload(module))
    finally:
        _checked(driver.cuDevicePrimaryCtxRelease(device))
    assert len(seen) > 10
