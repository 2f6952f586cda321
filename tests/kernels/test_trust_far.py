"""Launches on arrays beyond 2^31 elements: planned for every task, and made with smaller limits on any device."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from compiling import compiled_candidate, write_task

from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.check import far
from tunesmith.kernels.check.plan import allows, array_bytes
from tunesmith.kernels.check.verify import Passed, Skipped, prepare_step
from tunesmith.kernels.outcome import WrongResult
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.task import TaskError
from tunesmith.kernels.spec.taskfile import LIBRARY, load_task

GPU = replace(resolve_target("h200"), memory_bytes=80 << 30)
SCALE = """
__kernel void run(__global const float* x, __global float* out, int n, int d) {
    for (long i = get_global_id(0); i < (long)n * d; i += get_global_size(0)) out[i] = 2 * x[i];
}
"""
READS_AGAIN = SCALE.replace("out[i] = 2 * x[i]", "out[i] = 2 * x[(ushort)i]")
OVERFLOWS = SCALE.replace("out[i] = 2 * x[i]", "{ ushort at = i; out[at] = 2 * x[at]; }")
SUMS = SCALE.replace("out[i] = 2 * x[i]", "{ float sum = 0; for (long j = 0; j <= i; ++j) sum += x[j]; out[i] = sum; }")


@pytest.mark.parametrize("name", sorted(one.parent.name for one in LIBRARY.glob("*/task.toml")))
def test_a_step_for_each_task_has_arrays_beyond_32_bits_within_the_memory(name: str) -> None:
    task = load_task(name)
    for seed in range(3):
        steps = far.far_steps(task, GPU, seed)
        assert steps and not far.far_steps(task, replace(GPU, memory_bytes=4 << 30), seed)
        for step in steps:
            assert allows(task, step.workload) and array_bytes(task, step.workload) <= 40 << 30
            arrays = [one for one in task.arguments if one.role != "scalar"]
            lengths = [math.prod(task.shape_of(one, step.workload)) for one in arrays]
            sizes = [DTYPES[task.dtype_of(one, step.workload)].size for one in arrays]
            assert any(count > 2**31 or count * size > 2**32 for count, size in zip(lengths, sizes, strict=True))
            periods = [math.prod(task.shape_of(one, step.period.workload)) for one in arrays]
            assert all(  # an index that wraps around finds other contents
                2**32 % (period * size)
                for period, count, size in zip(periods, lengths, sizes, strict=True)
                if count > period
            )


ARRAYS = "x in float32 n d; out out float32 n d; n scalar int32 n; d scalar int32 d"
CHOOSES = """
__kernel void run(__global const int* ids, __global const float* table, __global float* out, int n, int v) {
    for (int i = get_global_id(0); i < n; i += get_global_size(0)) out[i] = table[ids[i]];
}
"""
CHOICE = 'ids in int32 n | low = 0, high = "v - 1"; table in float32 v; out out float32 n; '
CHOICE += "n scalar int32 n; v scalar int32 v"
CHOICE_OF_ONE = CHOICE.replace("int32 n", "int32 1").replace("float32 n", "float32 1")
DOUBLED, SUMMED = "2 * inputs['x']", "inputs['x'].cumsum().reshape(inputs['x'].shape)"
CHOSEN = "inputs['table'][inputs['ids'].astype(int)]"


@pytest.mark.parametrize(
    ("arrays", "long", "result", "plain", "source", "found"),
    [
        (ARRAYS, "d", DOUBLED, SCALE, SCALE, Passed),
        (ARRAYS, "d", DOUBLED, SCALE, OVERFLOWS, WrongResult),
        (ARRAYS, "d", DOUBLED, SCALE, READS_AGAIN, WrongResult),
        (ARRAYS, "d", DOUBLED, OVERFLOWS, SCALE, Skipped),  # the plain kernel overflows itself
        (ARRAYS, "d", SUMMED, SUMS, SUMS, Skipped),  # its results do not repeat
        (CHOICE, "v", CHOSEN, CHOOSES, CHOOSES, Passed),
        (CHOICE, "v", CHOSEN, CHOOSES, CHOOSES.replace("[ids", "[(ushort)ids"), WrongResult),
        (CHOICE_OF_ONE, "v", CHOSEN, CHOOSES, CHOOSES.replace("[ids", "[(ushort)ids"), WrongResult),
    ],
)
def test_a_kernel_that_overflows_is_rejected_where_the_plain_one_does_not(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    opened: Any,
    device: Any,
    arrays: str,
    long: str,
    result: str,
    plain: str,
    source: str,
    found: type,
) -> None:
    monkeypatch.setattr(far, "ELEMENTS", 2**16)
    monkeypatch.setattr(far, "BYTES", 2**18)
    if device.limits.backend != "opencl":
        pytest.skip("the kernels are in OpenCL C")
    sizes, launch = f"n = 8, {long} = 16", 'grid = ["16"], block = ["64"]'
    returned = f"return {{'out': {result}}}"
    task = write_task(tmp_path, arrays, sizes, source=plain, reference=returned, launch=launch)
    baseline = compiled_candidate(task, device)
    template = task.sources("opencl").baseline.template.model_copy(update={"source": source})
    every = (one for seed in range(32) for one in far.far_steps(task, replace(GPU, backend="opencl"), seed))
    step = next(one for one in every if one.workload.sizes[long] > one.period.workload.sizes[long])
    data = prepare_step(opened, task, step.period, max_bytes=1 << 28)
    assert not isinstance(data, Skipped)
    passed = far.launch_far(compiled_candidate(task, device, template), baseline, step, data)
    assert isinstance(passed, found), passed


def test_no_step_lengthens_what_a_task_cannot_repeat(tmp_path: Path) -> None:
    for shape, fill in (
        ("n n", ""),
        ("n", ' | kind = "permutation"'),
        ("n", ' | kind = "sorted", low = "0", high = "9"'),
    ):
        dtype = "int32" if fill else "float32"
        try:
            task = write_task(
                tmp_path, f"x in {dtype} {shape}{fill}; out out float32 {shape}; n scalar int32 n", "n = 512"
            )
        except TaskError as error:
            pytest.fail(str(error))
        assert far.far_steps(task, replace(GPU, backend="opencl"), 0) == [], (shape, fill)


def test_a_launch_of_a_period_takes_no_longer_for_its_start_than_for_its_work(tmp_path: Path) -> None:
    """The plain kernel's time is that of a period times the periods: of tiny ones it said seconds where it takes
    milliseconds."""
    task = write_task(tmp_path, "x in float32 n; out out float32 n; n scalar int32 n", "n = 512")
    for seed in range(5):
        steps = far.far_steps(task, replace(GPU, backend="opencl"), seed)
        assert steps and all(step.period.workload.sizes["n"] >= 2**30 / 2**13 for step in steps)
