"""The roofs of a CPU, measured with PoCL: compared with each other and with a kernel, never with a clock."""

from __future__ import annotations

import numpy as np
import pytest

from tunesmith.hw.roofline import MAX_ROOFLINE_SHARE, Roofline, Timed
from tunesmith.kernels.backends import BoundLaunch, open_device
from tunesmith.kernels.backends.opencl import OpenclCompiler
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.source import Specialised
from tunesmith.kernels.measure.roofs import COPY, MULTIPLY_ADD, compile_probes, measure_roofline
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


def test_every_probe_compiles_and_gives_a_roof(opened, roofs):
    names = compile_probes(opened[1], "opencl")
    assert sum(name.startswith(COPY) for name in names) == 2
    assert sum(name.startswith(MULTIPLY_ADD) for name in names) == 2
    assert roofs.peak_bandwidth and roofs.peak_flops["float32"] and roofs.launch_seconds


def test_an_elementwise_kernel_is_memory_bound_and_below_its_roofs(opened, roofs):
    launched, compiler = opened
    artifact = compiler.compile(Specialised("opencl", "scale", SCALE))
    assert isinstance(artifact, Artifact)
    kernel = launched.load(artifact)
    count = 3 + launched.cold_bytes // (8 * COUNT)
    pairs = [(launched.allocate(4 * COUNT), launched.allocate(4 * COUNT)) for _ in range(count)]
    geometry = Geometry((COUNT // 256, 1, 1), (256, 1, 1))
    sequence = launched.sequence([BoundLaunch(kernel, geometry, (*pair, np.float32(0.5))) for pair in pairs])
    launched.times([sequence])
    seconds = sorted(launched.times([sequence] * 7))[3] / count
    assert roofs.bound(8 * COUNT, COUNT, "float32") == "memory"
    # The machine may be busy while the kernel runs, which makes its share smaller, never larger.
    floor = roofs.floor_seconds(8 * COUNT, COUNT, "float32")
    assert floor is not None and floor <= 1.05 * seconds
    kept, reasons = roofs.without_beaten([Timed("scale", seconds, 8 * COUNT, COUNT, "float32")])
    assert kept == roofs and not reasons


def test_arithmetic_is_measured_in_vectors(opened, roofs):
    """Sixteen chains of scalars, as a plain kernel has them, do not beat the peak."""
    launched, compiler = opened
    steps = "".join(f"x{c} = x{c} * a + b;" for c in range(8))
    starts = "".join(f"float x{c} = a + {c};" for c in range(8))
    sums = " + ".join(f"x{c}" for c in range(8))
    source = f"""__kernel void plain(__global float* y, float a, float b) {{
        {starts} for (int s = 0; s < 512; ++s) {{ {steps} }} y[get_global_id(0)] = {sums};
    }}"""
    artifact = compiler.compile(Specialised("opencl", "plain", source))
    assert isinstance(artifact, Artifact)
    target = launched.allocate(4 * 64 * 64)
    arguments = (target, np.float32(0.5), np.float32(0.25))
    sequence = launched.sequence([BoundLaunch(launched.load(artifact), Geometry((64, 1, 1), (64, 1, 1)), arguments)])
    launched.times([sequence])
    flops = 2.0 * 64 * 64 * 8 * 512 / min(launched.times([sequence] * 7))
    assert flops <= MAX_ROOFLINE_SHARE * roofs.peak_flops["float32"]
    assert isinstance(roofs, Roofline)
