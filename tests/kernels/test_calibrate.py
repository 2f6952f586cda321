"""The roofs of a CPU, measured with PoCL: compared with each other and with a kernel, never with a clock."""

from __future__ import annotations

import numpy as np
import pytest

from tunesmith.hw.roofline import MAX_ROOFLINE_SHARE, Timed
from tunesmith.kernels.backends import BoundLaunch, open_device
from tunesmith.kernels.backends.opencl import OpenclCompiler
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.source import Specialised
from tunesmith.kernels.measure.roofs import compile_probes, measure_roofline
from tunesmith.kernels.spec.task import Geometry

COUNT = 1 << 22
"""Elements of the elementwise kernel."""
SCALE = """__kernel void scale(__global const float* x, __global float* y, float a) {
    y[get_global_id(0)] = a * x[get_global_id(0)];
}"""


@pytest.fixture(scope="module")
def opened(device):
    return open_device(device.limits, device.index), OpenclCompiler(device.index)


@pytest.fixture(scope="module")
def roofs(opened):
    return measure_roofline(opened[0], compile_probes(opened[1], "opencl"))


def seconds(opened, entry: str, source: str, count: int, blocks: int, threads: int, *arguments) -> list[float]:
    """Sorted samples of a kernel on `count` sets of its arguments, of which arrays are given by their bytes."""
    launched, compiler = opened
    artifact = compiler.compile(Specialised("opencl", entry, source))
    assert isinstance(artifact, Artifact)
    kernel, geometry = launched.load(artifact), Geometry((blocks, 1, 1), (threads, 1, 1))
    sets = [tuple(launched.allocate(one) if isinstance(one, int) else one for one in arguments) for _ in range(count)]
    sequence = launched.sequence([BoundLaunch(kernel, geometry, one) for one in sets])
    launched.times([sequence])
    return [one / count for one in sorted(launched.times([sequence] * 7))]


def test_every_probe_compiles_and_gives_a_roof(opened, roofs):
    assert len(compile_probes(opened[1], "opencl")) == 5
    assert roofs.peak_bandwidth and roofs.peak_flops["float32"] and roofs.launch_seconds


def test_an_elementwise_kernel_is_memory_bound_and_below_its_roofs(opened, roofs):
    count = 3 + opened[0].cold_bytes // (8 * COUNT)
    taken = seconds(opened, "scale", SCALE, count, COUNT // 256, 256, 4 * COUNT, 4 * COUNT, np.float32(0.5))[3]
    assert roofs.bound(8 * COUNT, COUNT, "float32") == "memory"
    assert roofs.floor_seconds(8 * COUNT, COUNT, "float32") <= 1.05 * taken
    kept, reasons = roofs.without_beaten([Timed("scale", taken, 8 * COUNT, COUNT, "float32")])
    assert kept == roofs and not reasons


def test_arithmetic_is_measured_in_vectors(opened, roofs):
    """Sixteen chains of scalars, as a plain kernel has them, do not beat the peak."""
    steps = "".join(f"x{c} = x{c} * a + b;" for c in range(8))
    starts = "".join(f"float x{c} = a + {c};" for c in range(8))
    sums = " + ".join(f"x{c}" for c in range(8))
    source = f"""__kernel void plain(__global float* y, float a, float b) {{
        {starts} for (int s = 0; s < 512; ++s) {{ {steps} }} y[get_global_id(0)] = {sums};
    }}"""
    taken = seconds(opened, "plain", source, 1, 64, 64, 4 * 64 * 64, np.float32(0.5), np.float32(0.25))[0]
    assert 2.0 * 64 * 64 * 8 * 512 / taken <= MAX_ROOFLINE_SHARE * roofs.peak_flops["float32"]
