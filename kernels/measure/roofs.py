"""The measured roofs of a device: copy bandwidth at several sizes, the peak of plain float arithmetic, and the time of
an empty kernel; and whether it computes at all: a small kernel whose result is known.

Probes are timed as candidates are, with cold caches. The arithmetic over roofs is `tunesmith.hw.roofline`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

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
WIDTHS: dict[BackendName, dict[str, tuple[int, ...]]] = {
    "cuda": {COPY: (4,), MULTIPLY_ADD: (1,)},
    "opencl": {COPY: (4, 16), MULTIPLY_ADD: (8, 16)},
}
"""Elements of the vectors. A GPU's threads are its lanes; on a CPU the vectors are the source's, and which width the
compiler turns into the widest instructions differs from processor to processor."""
_HEADS: dict[BackendName, str] = {
    "cuda": f"""
#define KERNEL extern "C" __global__ void __launch_bounds__({BLOCK})
#define GLOBAL
#define GROUP (size_t)blockIdx.x
#define LANE threadIdx.x
#define STEP(x) fma(x, va, vb)
""",
    # Written as kernels write it. OpenCL's fma() is a call of a function where the driver's library has it so: PoCL 3.0
    # then does 0.9 GFLOP/s on a machine whose two cores do 70 with x * a + b.
    "opencl": """
#define KERNEL __kernel void
#define GLOBAL __global
#define GROUP get_group_id(0)
#define LANE get_local_id(0)
#define STEP(x) x * va + vb
""",
}


def _copy(width: int) -> str:
    return f"""KERNEL {COPY}_{width}(GLOBAL const uint{width}* source, GLOBAL uint{width}* target) {{
    size_t at = GROUP * {BLOCK * VECTORS} + LANE;
    #pragma unroll
    for (int i = 0; i < {VECTORS}; ++i) target[at + i * {BLOCK}] = source[at + i * {BLOCK}];
}}
"""


def _multiply_add(width: int) -> str:
    """The chains, in scalar variables: an array of them is kept in memory by some compilers."""
    element = "float" if width == 1 else f"float{width}"
    chains = [f"x{number}" for number in range(CHAINS)]
    sum_of = "sums" if width == 1 else " + ".join(f"sums.s{lane:x}" for lane in range(width))
    return f"""KERNEL {MULTIPLY_ADD}_{width}(GLOBAL float* target, float a, float b) {{
    {element} va = a, vb = b;
    {" ".join(f"{element} {x} = va + {number}.0f;" for number, x in enumerate(chains))}
    for (int s = 0; s < {STEPS}; ++s) {{
        {" ".join(f"{x} = STEP({x});" for x in chains)}
    }}
    {element} sums = {" + ".join(chains)};
    float sum = {sum_of};
    // Never true, but the compiler cannot know; without it the chains would be dead code.
    if (sum == 12345.678f) target[0] = sum;
}}
"""


def compile_probes(compiler: Compiler, backend: BackendName) -> dict[str, Artifact]:
    """The calibration kernels, compiled; a kernel the compiler refuses is left out, and with it its roof."""
    texts = {EMPTY: f"KERNEL {EMPTY}(GLOBAL float* target) {{}}"}
    for entry, text in ((COPY, _copy), (MULTIPLY_ADD, _multiply_add)):
        texts |= {f"{entry}_{width}": text(width) for width in WIDTHS[backend][entry]}
    sources = {entry: Specialised(backend, entry, _HEADS[backend] + text) for entry, text in texts.items()}
    made = {entry: compiler.compile(source) for entry, source in sources.items()}
    return {entry: result for entry, result in made.items() if isinstance(result, Artifact)}


def measure_roofline(device: Device, probes: dict[str, Artifact]) -> Roofline:
    """Times the probes on `device`; a roof whose kernel cannot run is left out."""
    bandwidth: list[tuple[int, float]] = []
    peak: dict[str, float] = {}
    empty: float | None = None
    try:
        if EMPTY in probes:
            launch = _launch(device.load(probes[EMPTY]), 1, BLOCK, device.allocate(4096))
            empty = _seconds(device, [launch] * EMPTY_LAUNCHES)
        copies = _loaded(device, probes, COPY)
        for mebibytes in COPY_MIB[device.limits.kind] if copies else ():
            size = mebibytes << 20
            if 2 * size > device.free_bytes() // 2:
                break
            bandwidth.append((2 * size, max(_copy_bandwidth(device, kernel, width, size) for width, kernel in copies)))
        if chains := _loaded(device, probes, MULTIPLY_ADD):
            peak["float32"] = max(_multiply_add_peak(device, kernel, width) for width, kernel in chains)
    except DeviceError:
        # What was measured before the refusal stands; a device without roofs has no floors, which reports say.
        if device.limits.kind == "gpu":
            raise
    return Roofline(tuple(bandwidth), peak, empty)


def _loaded(device: Device, probes: dict[str, Artifact], entry: str) -> list[tuple[int, object]]:
    """The variants of a probe, by the width of their vectors."""
    found = {name: name.removeprefix(f"{entry}_") for name in probes if name.startswith(f"{entry}_")}
    return [(int(width), device.load(probes[name])) for name, width in found.items()]


def _launch(kernel: object, blocks: int, threads: int, *arguments: object) -> BoundLaunch:
    return BoundLaunch(kernel, Geometry((blocks, 1, 1), (threads, 1, 1)), arguments)


def _seconds(device: Device, launches: Sequence[BoundLaunch]) -> float:
    """Seconds of each of `launches` in a sequence, as kernels are timed: on a GPU the median, on a CPU the least of the
    samples, as a roof is what the device is able to do, and other programs take their share of most samples."""
    sequence, kind, taken = device.sequence(launches), device.limits.kind, list[float]()
    device.times([sequence])

    def sample(count: int) -> list[float]:
        more = device.times([sequence] * count)
        taken.extend(more)
        return more

    median = sample_until(sample, PRECISION[kind]).median
    return (median if kind == "gpu" else min(taken)) / len(launches)


def _copy_bandwidth(device: Device, kernel: object, width: int, size: int) -> float:
    sets = max(2, math.ceil(device.cold_bytes / (2 * size)))
    buffers = [(device.allocate(size), device.allocate(size)) for _ in range(sets)]
    blocks = size // (BLOCK * VECTORS * 4 * width)
    return 2 * size / _seconds(device, [_launch(kernel, blocks, BLOCK, *pair) for pair in buffers])


def _multiply_add_peak(device: Device, kernel: object, width: int) -> float:
    kind = device.limits.kind
    blocks, threads = BLOCKS_PER_PROCESSOR[kind] * (device.limits.sm_count or 64), ARITHMETIC_BLOCK[kind]
    launch = _launch(kernel, blocks, threads, device.allocate(4096), np.float32(0.5), np.float32(0.25))
    return 2.0 * blocks * threads * CHAINS * STEPS * width / _seconds(device, [launch])


HEALTH_ENTRY = "tunesmith_health"
HEALTH_BLOCK, HEALTH_BLOCKS, HEALTH_STEPS = 64, 1024, 64
_HEALTH = f"""KERNEL {HEALTH_ENTRY}(GLOBAL unsigned int* out) {{
    size_t at = GROUP * {HEALTH_BLOCK} + LANE;
    unsigned int x = at;
    for (int step = 0; step < {HEALTH_STEPS}; ++step) x = x * 1664525u + 1013904223u;
    out[at] = x;
}}
"""
"""A linear congruential generator (Numerical Recipes, section 7.1): every element depends on every step."""


def compile_health(compiler: Compiler, backend: BackendName) -> Artifact | None:
    """The health kernel, compiled; None where the compiler refuses it."""
    made = compiler.compile(Specialised(backend, HEALTH_ENTRY, _HEADS[backend] + _HEALTH))
    return made if isinstance(made, Artifact) else None


def self_test(device: Device, artifact: Artifact) -> str:
    """The fault of `device`, as a clause; empty when it computes the right answer."""
    count = HEALTH_BLOCKS * HEALTH_BLOCK
    try:
        buffer = device.allocate(4 * count)
        device.write(buffer, np.zeros(4 * count, np.uint8))
        device.launch(_launch(device.load(artifact), HEALTH_BLOCKS, HEALTH_BLOCK, buffer))
        device.synchronize()
        found = device.read(buffer).view(np.uint32)
    except DeviceError as error:
        return f"it cannot run a small kernel ({error})"
    right = np.arange(count, dtype=np.uint32)
    for _ in range(HEALTH_STEPS):
        right = right * np.uint32(1664525) + np.uint32(1013904223)
    wrong = int((found != right).sum())
    return f"{wrong} of {count} results of a small kernel are wrong" if wrong else ""
