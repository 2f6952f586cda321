"""The measured roofs of a device: copy bandwidth at several sizes, the peak of plain float arithmetic, and what an
empty kernel takes.

Owns three small kernels per backend and how they are timed, which is how candidates are timed: through the same
launcher, with cold caches. The arithmetic over roofs is `tunesmith.hw.roofline`.
"""

from __future__ import annotations

import math

import numpy as np

from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.backends import Compiler, Device, DeviceError, Launch
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.specialise import Specialised
from tunesmith.kernels.measure.timing import Precision, sample_until
from tunesmith.kernels.spec.geometry import Geometry
from tunesmith.kernels.spec.template import BackendName

COPY, FMA, EMPTY = "tunesmith_copy", "tunesmith_fma", "tunesmith_empty"
BLOCK = 256
VECTORS = 4
"""16-byte vectors a thread copies."""
EMPTY_LAUNCHES = 1000
CHAINS, STEPS = 8, 512
"""Independent multiply-add chains a thread runs, and their length."""
PRECISION = Precision(target=0.01, min_samples=5, max_samples=30, budget_seconds=0.5)
COPY_MIB = {"gpu": (16, 64, 256, 1024), "cpu": (64,)}
"""Bytes of one copy's source, in MiB."""

_COPY_BODY = f"""{{
    size_t at = @BLOCK@ * {BLOCK * VECTORS} + @THREAD@;
    #pragma unroll
    for (int i = 0; i < {VECTORS}; ++i) target[at + i * {BLOCK}] = source[at + i * {BLOCK}];
}}
"""
_FMA_BODY = f"""{{
    float x[{CHAINS}];
    #pragma unroll
    for (int c = 0; c < {CHAINS}; ++c) x[c] = a + (float)c;
    for (int s = 0; s < {STEPS}; ++s) {{
        #pragma unroll
        for (int c = 0; c < {CHAINS}; ++c) x[c] = fma(x[c], a, b);
    }}
    float sum = 0.0f;
    #pragma unroll
    for (int c = 0; c < {CHAINS}; ++c) sum += x[c];
    // Never true, but the compiler cannot know; without it the chains would be dead code.
    if (sum == 12345.678f) target[0] = sum;
}}
"""
_CUDA_COPY_BODY = _COPY_BODY.replace("@BLOCK@", "(size_t)blockIdx.x").replace("@THREAD@", "threadIdx.x")
_OPENCL_COPY_BODY = _COPY_BODY.replace("@BLOCK@", "get_group_id(0)").replace("@THREAD@", "get_local_id(0)")
_CUDA_HEAD = f'extern "C" __global__ void __launch_bounds__({BLOCK}) '
_SOURCES: dict[BackendName, dict[str, str]] = {
    "cuda": {
        COPY: f"{_CUDA_HEAD}{COPY}(const uint4* source, uint4* target) {_CUDA_COPY_BODY}",
        FMA: f"{_CUDA_HEAD}{FMA}(float* target, float a, float b) {_FMA_BODY}",
        EMPTY: f"{_CUDA_HEAD}{EMPTY}(float* target) {{}}",
    },
    "opencl": {
        COPY: f"__kernel void {COPY}(__global const uint4* source, __global uint4* target) {_OPENCL_COPY_BODY}",
        FMA: f"__kernel void {FMA}(__global float* target, float a, float b) {_FMA_BODY}",
        EMPTY: f"__kernel void {EMPTY}(__global float* target) {{}}",
    },
}


def compile_probes(compiler: Compiler, backend: BackendName) -> dict[str, Artifact]:
    """The calibration kernels, compiled; a kernel the compiler refuses is left out, and with it its roof."""
    compiled = {entry: compiler.compile(Specialised(backend, entry, text)) for entry, text in _SOURCES[backend].items()}
    return {entry: result for entry, result in compiled.items() if isinstance(result, Artifact)}


def measure_roofline(device: Device, probes: dict[str, Artifact]) -> Roofline:
    """Times the probes on `device`; a roof whose kernel cannot run is left out."""
    bandwidth: list[tuple[int, float]] = []
    peak: dict[str, float] = {}
    empty: float | None = None
    try:
        if EMPTY in probes:
            empty = _launch_seconds(device, device.load(probes[EMPTY]))
        if COPY in probes:
            kernel = device.load(probes[COPY])
            for mebibytes in COPY_MIB[device.limits.kind]:
                size = mebibytes << 20
                if 2 * size > device.free_bytes() // 2:
                    break
                bandwidth.append((2 * size, _copy_bandwidth(device, kernel, size)))
        if FMA in probes:
            peak["float32"] = _fma_peak(device, device.load(probes[FMA]))
    except DeviceError:
        # What was measured before the refusal stands; a device without roofs has no floors, which reports say.
        if device.limits.kind == "gpu":
            raise
    return Roofline(tuple(bandwidth), peak, empty)


def _launch_seconds(device: Device, kernel: object) -> float:
    """Seconds of an empty kernel of one block: what a launch takes at least, in the sequences that kernels are timed
    in."""
    launch = Launch(kernel, Geometry((1, 1, 1), (BLOCK, 1, 1)), (device.allocate(4096),))
    sequence = device.sequence([launch] * EMPTY_LAUNCHES)
    sequence.seconds()
    return sample_until(lambda count: device.times([sequence] * count), PRECISION).median / EMPTY_LAUNCHES


def _copy_bandwidth(device: Device, kernel: object, size: int) -> float:
    sets = max(2, math.ceil(device.cold_bytes / (2 * size)))
    buffers = [(device.allocate(size), device.allocate(size)) for _ in range(sets)]
    grid = size // (BLOCK * VECTORS * 16)
    sequence = device.sequence([Launch(kernel, Geometry((grid, 1, 1), (BLOCK, 1, 1)), pair) for pair in buffers])
    sequence.seconds()
    return 2 * size * sets / sample_until(lambda count: device.times([sequence] * count), PRECISION).median


def _fma_peak(device: Device, kernel: object) -> float:
    target = device.allocate(4096)
    blocks = 64 * (device.limits.sm_count or 64) if device.limits.kind == "gpu" else 256
    launch = Launch(kernel, Geometry((blocks, 1, 1), (BLOCK, 1, 1)), (target, np.float32(0.5), np.float32(0.25)))
    sequence = device.sequence([launch])
    sequence.seconds()
    flops = 2.0 * blocks * BLOCK * CHAINS * STEPS
    return flops / sample_until(lambda count: device.times([sequence] * count), PRECISION).median
