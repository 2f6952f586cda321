"""Templates by rules for OpenCL on a real device: every point computes what the kernel does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from rewrite_cases import H200, LINE, opencl_kernel

from tunesmith.kernels.build.source import specialise
from tunesmith.kernels.rewrite.template import rewrite
from tunesmith.kernels.space import feasible
from tunesmith.kernels.spec.task import Task, Workload, geometry
from tunesmith.kernels.spec.template import Config, Template

HEAD = "__kernel void k(__global const float* x, __global float* y, int n)"
TOGETHER = """
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void other(__global float* x, __local float* part) {
    part[get_local_id(0)] = x[get_global_id(0) % get_global_size(0)];
    barrier(CLK_LOCAL_MEM_FENCE);
}
"""


def opencl_task(source: str) -> Task:
    return opencl_kernel(source, {"x": ("in", "float32", "n"), "y": ("inout", "float32", "n")}, LINE)


def run(template: Template, config: Config, workloads: Sequence[Workload]) -> list[list[float]]:
    """The output on each workload, of a program that is built once."""
    cl = pytest.importorskip("pyopencl")
    context = cl.Context([cl.get_platforms()[0].get_devices()[0]])
    queue, outputs = cl.CommandQueue(context), []
    kernel = cl.Program(context, specialise(template, config, {}).source).build().k
    for workload in workloads:
        where, n = geometry(template, config, workload), workload.sizes["n"]
        x, y = np.arange(n, dtype=np.float32), np.zeros(n, np.float32)
        held = [cl.Buffer(context, cl.mem_flags.COPY_HOST_PTR, hostbuf=one) for one in (x, y)]
        threads = tuple(grid * block for grid, block in zip(where.grid, where.block, strict=True))
        kernel(queue, threads, where.block, *held, np.int32(n))
        cl.enqueue_copy(queue, y, held[1])
        outputs.append(y.tolist())
    return outputs


def points(source: str) -> tuple[Task, Template, list[Config]]:
    task = opencl_task(source)
    template = rewrite(task, "opencl").template
    assert template is not None
    space = feasible(template, task.workloads, H200)
    sampled = space.sample(np.random.default_rng(3), 4)
    wide = [{**template.default_config, "VEC": value} for value in (2, 4) if "VEC" in template.default_config]
    return task, template, [template.default_config, *wide, *(space.config(point) for point in sampled)]


@pytest.mark.parametrize(
    ("body", "parameters"),
    [
        # Of two types `min` is ambiguous.
        ("size_t i = min(get_global_id(0), (size_t)n - 1); y[i] = x[i] + 1;", {"BLOCK"}),
        # Without the cast the difference is no negative number.
        ("int i = get_global_id(0); if (i < n) y[i] = (int)get_global_id(0) - n / 2 < 0 ? 1 : 2;", {"BLOCK", "ITEMS"}),
        ("size_t i = get_global_id(0); if (i < n) y[i] = sizeof(get_global_id(0)) + x[i];", {"BLOCK"}),
        ("int i = get_global_id(0); if (i >= n) return; if (i % 3) { return; } y[i] = x[i];", {"BLOCK", "ITEMS"}),
        ("int i = get_global_id(0); /* barrier(0) of __local */ if (i < n) *(y + i) = x[i];", {"BLOCK", "ITEMS"}),
        ("int i = get_global_id(0); if (i < n) y[i] = 2 * x[i] + y[i] + x[n - 1 - i];", {"BLOCK", "ITEMS", "VEC"}),
        ("int i = get_global_id(0); if (i >= n) return; if (x[i] > 3) y[i] = x[i]; else y[i] = 1;", {"BLOCK", "VEC"}),
        ("if (get_global_id(0) + 1 < n) y[get_global_id(0)] = x[get_global_id(0) + 1]; return;", {"BLOCK", "ITEMS"}),
    ],
)
def test_every_point_computes_what_the_kernel_does(body: str, parameters: set[str], device: Any) -> None:
    task, template, configs = points(f"{TOGETHER}{HEAD} {{ {body} }}")
    assert parameters <= template.default_config.keys()
    expected = run(task.sources("opencl").baseline.template, {}, task.workloads)
    for config in configs:
        assert run(template, config, task.workloads) == expected, config


@pytest.mark.parametrize(
    ("body", "more"),
    [
        ("MEET; y[0] = 1;", "#define MEET SYNC\n#define SYNC barrier(CLK_LOCAL_MEM_FENCE)"),
        ("y[get_global_id(0)] = f(x);", "float f(__global const float* x) { return get_global_size(0); }"),
        ("int blockDim = get_local_size(0); y[get_global_id(0)] = blockDim;", ""),
        ("__local float t[64]; t[get_local_id(0)] = 1; barrier(CLK_LOCAL_MEM_FENCE); y[get_global_id(0)] = t[0];", ""),
    ],
)
def test_work_items_that_need_their_group_keep_it(body: str, more: str, device: Any) -> None:
    source = f"{more}\n{HEAD} {{ {body} }}"
    if rewrite(opencl_task(source), "opencl").template is None:
        return
    task, template, configs = points(source)
    assert not {"BLOCK", "ITEMS"} & template.default_config.keys()
    sizes = [task.workloads[0].model_copy(update={"sizes": {"n": 1024}})]
    expected = run(task.sources("opencl").baseline.template, {}, sizes)
    for config in configs:
        assert run(template, config, sizes) == expected, config


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("for (int d = 0; d < 2; ++d) y[get_global_id(0)] += get_global_id(d);", "an axis that is no number"),
        ("y[get_global_id(0)] = get_global_offset(0);", "get_global_offset"),
    ],
)
def test_what_the_kernel_reaches_leaves_it_alone(body: str, why: str) -> None:
    found = rewrite(opencl_task(f"{HEAD} {{ {body} }}"), "opencl")
    assert found.template is None and why in " ".join(found.skipped)
