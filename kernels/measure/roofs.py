"""The measured roofs of a device: copy bandwidth at several sizes, the peak of plain float arithmetic, and the time of
an empty kernel; and whether it computes at all: a small kernel whose result is known.

Owns three small kernels per backend and how they are timed, which is how candidates are timed: through the same
launcher, with cold caches. The arithmetic over roofs is `tunesmith.hw.roofline`.
"""

from __future__ import annotations

import math

import numpy as np

from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.backends import BoundLaunch, Compiler, Device, DeviceError
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.source import Specialised
from tunesmith.kernels.measure.timing import MIN_SAMPLES, Precision, sample_until
from tunesmith.kernels.spec.task import Geometry
from tunesmith.kernels.spec.template import BackendName

COPY, MULTIPLY_ADD, EMPTY = "tunesmith_copy", "tunesmith_multiply_add", "tunesmith_empty"
BLOCK = 256
VECTORS = 4
"""Vectors a thread copies."""
EMPTY_LAUNCHES = 1000
CHAINS, STEPS = 8, 512
"""Independent multiply-add chains a thread runs, and their length."""
ARITHMETIC_BLOCK = {"gpu": 256, "cpu": 64}
"""Threads of a block of the arithmetic probe. A CPU keeps the chains of a whole block in its registers and first cache.
"""
BLOCKS_PER_PROCESSOR = {"gpu": 64, "cpu": 32}
PRECISION = {
    "gpu": Precision(target=0.01, min_samples=MIN_SAMPLES, max_samples=30, budget_seconds=0.5),
    "cpu": Precision(target=0.01, min_samples=7, max_samples=30, budget_seconds=0.25),
}
COPY_MIB = {"gpu": (16, 64, 256, 1024), "cpu": (8, 64)}
"""Bytes of one copy's source, in MiB."""
WIDTHS: dict[BackendName, tuple[int, ...]] = {"cuda": (1,), "opencl": (8, 16)}
"""Floats of a chain's element. A GPU's threads are its lanes; on a CPU the vectors are the source's, and which width
the compiler turns into the widest instructions differs from processor to processor."""

_COPY_BODY = f"""{{
    size_t at = @BLOCK@ * {BLOCK * VECTORS} + @THREAD@;
    #pragma unroll
    for (int i = 0; i < {VECTORS}; ++i) target[at + i * {BLOCK}] = source[at + i * {BLOCK}];
}}
"""
_CUDA_COPY_BODY = _COPY_BODY.replace("@BLOCK@", "(size_t)blockIdx.x").replace("@THREAD@", "threadIdx.x")
_OPENCL_COPY_BODY = _COPY_BODY.replace("@BLOCK@", "get_group_id(0)").replace("@THREAD@", "get_local_id(0)")
_CUDA_HEAD = f'extern "C" __global__ void __launch_bounds__({BLOCK}) '


def _multiply_add_body(width: int, step: str) -> str:
    """The chains, in scalar variables: an array of them is kept in memory by some compilers."""
    element = "float" if width == 1 else f"float{width}"
    chains = range(CHAINS)
    starts = "\n    ".join(f"{element} x{c} = va + {c}.0f;" for c in chains)
    steps = "\n        ".join(f"x{c} = {step.format(x=f'x{c}')};" for c in chains)
    sums = " + ".join(f"x{c}" for c in chains)
    sum_of = "sums" if width == 1 else " + ".join(f"sums.s{lane:x}" for lane in range(width))
    return f"""{{
    {element} va = a, vb = b;
    {starts}
    for (int s = 0; s < {STEPS}; ++s) {{
        {steps}
    }}
    {element} sums = {sums};
    float sum = {sum_of};
    // Never true, but the compiler cannot know; without it the chains would be dead code.
    if (sum == 12345.678f) target[0] = sum;
}}
"""


_PROBE_SOURCES: dict[BackendName, dict[str, str]] = {
    "cuda": {
        f"{COPY}_4": f"{_CUDA_HEAD}{COPY}_4(const uint4* source, uint4* target) {_CUDA_COPY_BODY}",
        EMPTY: f"{_CUDA_HEAD}{EMPTY}(float* target) {{}}",
        f"{MULTIPLY_ADD}_1": f"{_CUDA_HEAD}{MULTIPLY_ADD}_1(float* target, float a, float b) "
        + _multiply_add_body(1, "fma({x}, va, vb)"),
    },
    "opencl": {
        **{
            f"{COPY}_{width}": f"__kernel void {COPY}_{width}(__global const uint{width}* source, "
            f"__global uint{width}* target) {_OPENCL_COPY_BODY}"
            for width in (4, 16)
        },
        EMPTY: f"__kernel void {EMPTY}(__global float* target) {{}}",
        # Written as kernels write it. OpenCL's fma() is a call of a function where the driver's library has it so: PoCL
        # 3.0 then does 0.9 GFLOP/s on a machine whose two cores do 70 with x * a + b.
        **{
            f"{MULTIPLY_ADD}_{width}": f"__kernel void {MULTIPLY_ADD}_{width}(__global float* target, float a, "
            "float b) " + _multiply_add_body(width, "{x} * va + vb")
            for width in WIDTHS["opencl"]
        },
    },
}


def compile_probes(compiler: Compiler, backend: BackendName) -> dict[str, Artifact]:
    """The calibration kernels, compiled; a kernel the compiler refuses is left out, and with it its roof."""
    compiled = {
        entry: compiler.compile(Specialised(backend, entry, text)) for entry, text in _PROBE_SOURCES[backend].items()
    }
    return {entry: result for entry, result in compiled.items() if isinstance(result, Artifact)}


def measure_roofline(device: Device, probes: dict[str, Artifact]) -> Roofline:
    """Times the probes on `device`; a roof whose kernel cannot run is left out."""
    bandwidth: list[tuple[int, float]] = []
    peak: dict[str, float] = {}
    empty: float | None = None
    try:
        if EMPTY in probes:
            empty = _launch_seconds(device, device.load(probes[EMPTY]))
        copies = _loaded(device, probes, COPY)
        for mebibytes in COPY_MIB[device.limits.kind] if copies else ():
            size = mebibytes << 20
            if 2 * size > device.free_bytes() // 2:
                break
            rates = [_copy_bandwidth(device, kernel, width, size) for width, kernel in copies]
            bandwidth.append((2 * size, max(rates)))
        if chains := _loaded(device, probes, MULTIPLY_ADD):
            peak["float32"] = max(_multiply_add_peak(device, kernel, width) for width, kernel in chains)
    except DeviceError:
        # What was measured before the refusal stands; a device without roofs has no floors, which reports say.
        if device.limits.kind == "gpu":
            raise
    return Roofline(tuple(bandwidth), peak, empty)


def _loaded(device: Device, probes: dict[str, Artifact], entry: str) -> list[tuple[int, object]]:
    """The variants of a probe, by the width of their vectors."""
    return [
        (int(name.removeprefix(f"{entry}_")), device.load(artifact))
        for name, artifact in probes.items()
        if name.startswith(f"{entry}_")
    ]


def _seconds(device: Device, sequence: object) -> float:
    """What a sequence takes: on a GPU the median, on a CPU the least of the samples. A roof is what the device is able
    to do, and on a CPU whatever else runs on the machine takes its share of most samples."""
    taken: list[float] = []

    def sample(count: int) -> list[float]:
        more = device.times([sequence] * count)
        taken.extend(more)
        return more

    kind = device.limits.kind
    estimate = sample_until(sample, PRECISION[kind])
    return estimate.median if kind == "gpu" else min(taken)


def _launch_seconds(device: Device, kernel: object) -> float:
    """Seconds of an empty kernel of one block: what a launch takes at least, in the sequences that kernels are timed
    in."""
    launch = BoundLaunch(kernel, Geometry((1, 1, 1), (BLOCK, 1, 1)), (device.allocate(4096),))
    sequence = device.sequence([launch] * EMPTY_LAUNCHES)
    device.times([sequence])
    return _seconds(device, sequence) / EMPTY_LAUNCHES


def _copy_bandwidth(device: Device, kernel: object, width: int, size: int) -> float:
    sets = max(2, math.ceil(device.cold_bytes / (2 * size)))
    buffers = [(device.allocate(size), device.allocate(size)) for _ in range(sets)]
    grid = size // (BLOCK * VECTORS * 4 * width)
    sequence = device.sequence([BoundLaunch(kernel, Geometry((grid, 1, 1), (BLOCK, 1, 1)), pair) for pair in buffers])
    device.times([sequence])
    return 2 * size * sets / _seconds(device, sequence)


def _multiply_add_peak(device: Device, kernel: object, width: int) -> float:
    target, kind = device.allocate(4096), device.limits.kind
    blocks, threads = BLOCKS_PER_PROCESSOR[kind] * (device.limits.sm_count or 64), ARITHMETIC_BLOCK[kind]
    arguments = (target, np.float32(0.5), np.float32(0.25))
    sequence = device.sequence([BoundLaunch(kernel, Geometry((blocks, 1, 1), (threads, 1, 1)), arguments)])
    device.times([sequence])
    return 2.0 * blocks * threads * CHAINS * STEPS * width / _seconds(device, sequence)


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
    "opencl": f"__kernel void {HEALTH_ENTRY}(__global unsigned int* out) "
    + _HEALTH_BODY.replace("@INDEX@", "get_global_id(0)"),
}
"""A linear congruential generator (Numerical Recipes, section 7.1): every element depends on every step."""


def compile_health(compiler: Compiler, backend: BackendName) -> Artifact | None:
    """The health kernel, compiled; None where the compiler refuses it."""
    made = compiler.compile(Specialised(backend, HEALTH_ENTRY, _HEALTH_SOURCES[backend]))
    return made if isinstance(made, Artifact) else None


def self_test(device: Device, artifact: Artifact) -> str:
    """What is wrong with `device`, as a clause; empty when it computes the right answer."""
    count = HEALTH_BLOCKS * HEALTH_BLOCK
    try:
        buffer = device.allocate(4 * count)
        device.write(buffer, np.zeros(4 * count, np.uint8))
        device.launch(
            BoundLaunch(device.load(artifact), Geometry((HEALTH_BLOCKS, 1, 1), (HEALTH_BLOCK, 1, 1)), (buffer,))
        )
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
