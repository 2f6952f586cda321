"""Templates by rules for OpenCL on a real device: every point computes what the kernel does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from rewrite_cases import H200, LINE, SERIES, opencl_kernel, require_refused, require_right, rewritten, template_of

from tunesmith.kernels.space import feasible
from tunesmith.kernels.spec.task import Task, Workload

HEAD = "__kernel void k(__global const float* x, __global float* y, int n)"
TOGETHER = """
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void other(__global float* x, __local float* part) {
    part[get_local_id(0)] = x[get_global_id(0) % get_global_size(0)];
    barrier(CLK_LOCAL_MEM_FENCE);
}
"""


def opencl_task(source: str) -> Task:
    return opencl_kernel(source, SERIES, LINE)


def require_points(task: Task, workloads: Sequence[Workload]) -> None:
    """The template gives what the kernel gave at its default, at each width of vectors, and at some points."""
    template = template_of(task)
    space = feasible(template, task.workloads, H200)
    sampled = space.sample(np.random.default_rng(3), 2)
    wide = [{"VEC": value} for value in (2, 4) if "VEC" in template.default_config]
    for workload in workloads:
        n = workload.sizes["n"]
        arrays = {"x": np.arange(n, dtype=np.float32), "y": np.zeros(n, np.float32)}
        require_right(task, [{}, *wide, *map(space.config, sampled)], workload, arrays, near=0)


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
def test_every_point_computes_what_the_kernel_does(body: str, parameters: set[str]) -> None:
    task = opencl_task(f"{TOGETHER}{HEAD} {{ {body} }}")
    assert parameters <= template_of(task).default_config.keys()
    require_points(task, task.workloads)


@pytest.mark.parametrize(
    ("body", "more"),
    [
        ("MEET; y[0] = 1;", "#define MEET SYNC\n#define SYNC barrier(CLK_LOCAL_MEM_FENCE)"),
        ("y[get_global_id(0)] = f(x);", "float f(__global const float* x) { return get_global_size(0); }"),
        ("int blockDim = get_local_size(0); y[get_global_id(0)] = blockDim;", ""),
        ("__local float t[64]; t[get_local_id(0)] = 1; barrier(CLK_LOCAL_MEM_FENCE); y[get_global_id(0)] = t[0];", ""),
    ],
)
def test_work_items_that_need_their_group_keep_it(body: str, more: str) -> None:
    task = opencl_task(f"{more}\n{HEAD} {{ {body} }}")
    require_refused(task, {"BLOCK", "ITEMS"})
    if rewritten(task).template is not None:
        require_points(task, [task.workloads[0].model_copy(update={"sizes": {"n": 1024}})])


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("for (int d = 0; d < 2; ++d) y[get_global_id(0)] += get_global_id(d);", "an axis that is not a number"),
        ("y[get_global_id(0)] = get_global_offset(0);", "get_global_offset"),
    ],
)
def test_what_the_kernel_reaches_leaves_it_alone(body: str, why: str) -> None:
    found = rewritten(opencl_task(f"{HEAD} {{ {body} }}"))
    assert found.template is None and why in " ".join(found.skipped)
