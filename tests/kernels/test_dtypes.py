"""The records of the data types: sizes, ranges and conversions agree with NumPy's and ml_dtypes' own figures."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from compiling import compiled_candidate, write_task

from tunesmith.kernels.backends import BoundLaunch, open_device
from tunesmith.kernels.check.compare import measure_set
from tunesmith.kernels.launch.buffers import WorkloadData
from tunesmith.kernels.launch.contents import draw
from tunesmith.kernels.launch.reference import expected_results
from tunesmith.kernels.outcome import WrongResult
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.task import Fill, Special, Task, TaskError, geometry

FLOATS = [one.name for one in DTYPES.values() if one.is_float]
FP8 = ["float8_e4m3", "float8_e5m2"]


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_a_record_agrees_with_its_type_in_numpy(name: str) -> None:
    dtype = DTYPES[name]
    assert dtype.storage.itemsize == dtype.array.itemsize == dtype.size
    if not dtype.is_float or name == "float64":
        assert dtype.overflow == math.inf
        return
    limits = ml_dtypes.finfo(dtype.storage)
    assert dtype.largest == float(limits.max) and dtype.fraction_bits == limits.nmant
    # Not nearer: ml_dtypes rounds to float32 first.
    below, above = dtype.overflow * (1 - 2.0**-20), dtype.overflow * (1 + 2.0**-20)
    with np.errstate(over="ignore", invalid="ignore"):
        assert np.isfinite(np.array([below]).astype(dtype.storage).astype(np.float64)).all()
        assert not np.isfinite(np.array([above]).astype(dtype.storage).astype(np.float64)).any()


@pytest.mark.parametrize("name", FLOATS)
def test_every_pattern_of_bits_has_the_value_and_a_scalar_the_bytes_that_ml_dtypes_gives_them(name: str) -> None:
    dtype = DTYPES[name]
    raw = np.arange(1 << 16, dtype=np.uint16).view(np.uint8)[: 1 << 16].view(dtype.array)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(dtype.to_float64(np, raw), raw.view(dtype.storage).astype(np.float64))
    assert dtype.scalar(1.5).tobytes() == np.array([1.5]).astype(dtype.storage).tobytes()


@pytest.mark.parametrize("name", FP8)
def test_what_does_not_fit_is_clamped_as_cuda_does(name: str) -> None:
    dtype = DTYPES[name]
    values, top = np.array([1e6, -1e6, math.inf, -math.inf, math.nan, 1.0], np.float32), dtype.largest
    stored = dtype.from_float(values).astype(np.float64)
    np.testing.assert_array_equal(stored, [top, -top, top, -top, math.nan, 1.0])
    np.testing.assert_array_equal(dtype.limited(np, values.astype(np.float64), dtype.rtol), stored)


KERNEL = """
extern "C" __global__ void run(const T* __restrict__ x, T* __restrict__ out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = T(2.0f * static_cast<float>(x[i]));
}
"""


def doubled(folder: Path, dtype: str, backend: str = "cuda") -> Task:
    return write_task(
        folder,
        "x in T n | scale = 100.0; out out T n; n scalar int32 n",
        "n = 10007",
        source=KERNEL,
        reference="return {'out': 2 * inputs['x']}",
        backends=(backend,),
        launch='grid = ["ceil_div(n, 256)"], block = [256]',
        tables=f'[types]\nT = ["{dtype}"]',
    )


@pytest.mark.parametrize("name", FP8)
def test_the_contents_and_results_of_8_bit_floats(tmp_path: Path, opened: Any, name: str) -> None:
    """All but the launch, on the device at hand: inputs, poison, results and the verdict on them."""
    task, dtype = doubled(tmp_path, name), DTYPES[name]
    data = WorkloadData(opened, task, task.workloads[0], seed=1, max_bytes=1 << 26)
    (out,) = (place for place in data.places if place.argument.name == "out")
    found = measure_set(data, 0)
    assert isinstance(found, WrongResult) and found.reason == "unwritten"
    expected = data.expected_of(0)["out"]
    assert np.abs(expected).max() <= dtype.largest
    assert (np.abs(expected) == dtype.largest).any() == (name == "float8_e4m3"), "the scale is made for its range"
    data.device.write(data.view(out, 0), dtype.from_float(expected).view(np.uint8))
    assert isinstance(measure_set(data, 0), dict)
    wrong = dtype.from_float(expected).view(np.uint8)
    wrong[77] ^= 0x80
    data.device.write(data.view(out, 0), wrong)
    found = measure_set(data, 0)
    assert isinstance(found, WrongResult) and "out[77]" in found.detail


@pytest.mark.parametrize("name", FP8)
def test_opencl_has_no_8_bit_floats(tmp_path: Path, name: str) -> None:
    with pytest.raises(TaskError, match=rf"the dtype {name} is not available on the backend opencl, only on cuda"):
        doubled(tmp_path, name, "opencl")


def test_special_values_of_inputs_and_results_beyond_the_range_are_clamped_too(tmp_path: Path) -> None:
    fill = Fill(special=(Special(value=math.inf, fraction=1.0),))
    for name, stored in (("float8_e4m3", 448.0), ("float16", math.inf)):
        assert set(draw("task", fill, (8,), name, np.random.default_rng(0)).astype(float)) == {stored}
    task = doubled(tmp_path, "float8_e4m3")
    assert set(expected_results(np, task, task.workloads[0], {"x": np.full(10007, 1e4)})["out"]) == {448.0}


@pytest.mark.gpu
@pytest.mark.parametrize("name", FP8)
def test_a_kernel_of_8_bit_floats_is_right_on_a_gpu(tmp_path: Path, name: str) -> None:
    from tunesmith.hw.probe import probe_cuda

    found, task = probe_cuda().devices[0], doubled(tmp_path, name)
    candidate, gpu = compiled_candidate(task, found), open_device(found.limits, found.index)
    data = WorkloadData(gpu, task, task.workloads[0], seed=1, max_bytes=1 << 26)
    (made,) = candidate.artifacts.values()
    shape = geometry(candidate.template, {}, task.workloads[0])
    for index in range(2):
        gpu.launch(BoundLaunch(gpu.load(made), shape, data.arguments(index)))
        gpu.synchronize()
        assert isinstance(measure_set(data, index), dict)
