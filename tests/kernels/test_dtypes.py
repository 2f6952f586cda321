"""The data types: their records agree with NumPy's and ml_dtypes' own figures, and the check in one pass says the same
as the check by array operations, on contents of every type and kind of fault."""

import math
import tempfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from compiling import compiled_candidate, write_task

from tunesmith.hw.probe import probe_cuda
from tunesmith.kernels.backends import BoundLaunch, open_device
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.source import Specialised
from tunesmith.kernels.check.compare import _HEADS, _UNCHANGED, _compare, _compare_source, fused_check, measure_set
from tunesmith.kernels.launch.buffers import WorkloadData
from tunesmith.kernels.launch.contents import Contents, draw
from tunesmith.kernels.launch.reference import expected_results
from tunesmith.kernels.outcome import WrongResult
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.task import Fill, Special, Task, TaskError, Tolerance, geometry


@pytest.fixture(scope="module", params=["any", pytest.param("cuda", marks=pytest.mark.gpu)])
def opened(request: pytest.FixtureRequest) -> Any:
    found = probe_cuda().devices[0] if request.param == "cuda" else request.getfixturevalue("device")
    return open_device(found.limits, found.index)


def data_of(opened: Any, dtype: str, tolerance: Tolerance, contents: Contents | None = None) -> WorkloadData:
    """x -> out (both of `dtype`), and an inout beside them."""
    fill = f'kind = "uniform", mean = {0.0 if DTYPES[dtype].is_float else 30.0}, scale = 20.0'
    with tempfile.TemporaryDirectory() as folder:
        task = write_task(
            Path(folder),
            f"x in {dtype} n | {fill}; out out {dtype} n; both inout {dtype} 3 n | {fill}",
            "n = 1009",
            reference="return {'out': 2 * inputs['x'], 'both': inputs['both'] + 1}",
            backends=[*DTYPES[dtype].c_names],
            tables=f"[tolerance]\n{dtype} = {{ rtol = {tolerance.rtol}, atol = {tolerance.atol} }}",
        )
    return WorkloadData(opened, task, task.workloads[0], seed=1, max_bytes=1 << 28, contents=contents)


def store(data: WorkloadData, index: int, name: str, values: Any) -> None:
    place = next(place for place in data.places if place.argument.name == name)
    with np.errstate(over="ignore", invalid="ignore"):
        raw = host(values).astype(DTYPES[place.dtype].storage).view(np.uint8)
    data.device.write(data.view(place, index), np.ascontiguousarray(raw).reshape(-1))


def store_right(data: WorkloadData, index: int) -> None:
    for name, values in data.expected_of(index).items():
        store(data, index, name, values)


def host(values: Any) -> Any:
    """A copy of an array on the host."""
    return values.get() if hasattr(values, "get") else values.copy()


def both_ways(data: WorkloadData, index: int) -> Any:
    """The verdict on a set; on its outputs the device and the host must agree."""
    right = fused_check(data.device).deviations(data, index, {})
    for place in data.outputs:
        name = place.argument.name
        slow = _compare(data, place, index, 1.0)
        if isinstance(slow, WrongResult):
            assert name not in right, slow
        else:
            assert right[name].largest == pytest.approx(slow.largest, rel=1e-12)
            assert right[name].rms == pytest.approx(slow.rms, rel=1e-12)
    return measure_set(data, index)


TOLERANCES = {name: Tolerance(rtol=one.rtol, atol=one.atol) for name, one in DTYPES.items()}
TOLERANCES["float64"] = Tolerance(rtol=1e-5, atol=1e-5)
FLOATS = tuple(name for name, one in DTYPES.items() if one.is_float)


@pytest.mark.parametrize("dtype", [one for one in DTYPES if one != "bool"])
def test_right_and_wrong_of_every_type(opened: Any, dtype: str) -> None:
    exact = not DTYPES[dtype].is_float
    data = data_of(opened, dtype, Tolerance(rtol=0, atol=0) if exact else TOLERANCES[dtype])
    for index in (0, 1):
        assert isinstance(both_ways(data, index), WrongResult), "poison is not right"
        store_right(data, index)
        assert isinstance(both_ways(data, index), dict)
    wrong = host(data.expected_of(1)["both"])
    wrong[2000] += 2 + abs(wrong[2000])
    store(data, 1, "both", wrong)
    found = both_ways(data, 1)
    assert isinstance(found, WrongResult) and "both[1, 991]" in found.detail


@pytest.mark.parametrize("dtype", FLOATS)
def test_values_without_order(opened: Any, dtype: str) -> None:
    data = data_of(opened, dtype, TOLERANCES[dtype])
    expected = data.expected_of(0)["out"]
    limit = min(DTYPES[dtype].largest, float(np.finfo(np.float32).max))
    infinity = limit if dtype == "float8_e4m3" else math.inf  # which it has none of
    special = [math.nan, infinity, -infinity, 0.0, -0.0, limit, -limit, 1e-7, 6e-8]
    for place, value in enumerate(special):
        expected[place] = value
    store_right(data, 0)
    assert isinstance(both_ways(data, 0), dict)
    wrong = [(0, 1.0), (1, -infinity), (2, math.nan), (3, math.nan), (5, -infinity), (1, limit / 2), (3, 1.0)]
    for place, value in wrong:
        got = host(expected)
        got[place] = value
        store(data, 0, "out", got)
        assert isinstance(both_ways(data, 0), WrongResult), (place, value)
    if dtype not in ("float64", "float8_e4m3"):
        got = host(expected)
        got[5], got[6] = math.inf, -math.inf
        store(data, 0, "out", got)
        assert isinstance(both_ways(data, 0), dict), "an infinity where the largest finite value was expected"


def test_bytes_that_no_kernel_may_write_tolerances_and_signs_of_zeros(opened: Any) -> None:
    data = data_of(opened, "float16", TOLERANCES["float16"])
    x, out, _ = data.places
    for at in (0, out.offset - 1, out.offset + out.nbytes, x.offset + 17, data.set_bytes - 1):
        for index in (0, 1):
            store_right(data, index)
            assert isinstance(both_ways(data, index), dict)
            held = data.device.read(data.set_buffer(index)).copy()
            held[at] ^= 1
            data.device.write(data.set_buffer(index), held)
            assert isinstance(both_ways(data, index), WrongResult), at
            held[at] ^= 1
            data.device.write(data.set_buffer(index), held)
    data = data_of(opened, "float64", Tolerance(rtol=0, atol=0.5))
    data.expected_of(0)["out"][700] = 3.0
    store_right(data, 0)
    for offset, right in [(0.25, True), (-0.5, True), (0.5000001, False), (-0.75, False)]:
        got = host(data.expected_of(0)["out"])
        got[700] += offset
        store(data, 0, "out", got)
        assert isinstance(both_ways(data, 0), dict) == right
    for tolerance in (0.0, 1e-6):
        data = data_of(opened, "float32", Tolerance(rtol=tolerance, atol=tolerance), Contents("zeros", 1))
        store_right(data, 0)
        assert isinstance(both_ways(data, 0), dict)
        store(data, 0, "out", -host(data.expected_of(0)["out"]))
        assert isinstance(both_ways(data, 0), dict) == (tolerance > 0)
    data = data_of(opened, "float32", TOLERANCES["float32"], Contents("infinities", 1))
    expected = data.expected_of(0)["both"]
    expected[1] = math.nan
    for got, accepted in (({0: math.nan}, True), ({0: 1e9}, False), ({1009: math.nan}, False)):
        store_right(data, 0)
        values = host(expected)
        for at, value in got.items():
            values[at] = value
        store(data, 0, "both", values)
        assert isinstance(measure_set(data, 0, lenient=True), dict) == accepted, got
        assert isinstance(measure_set(data, 0), WrongResult)


def test_the_texts_compile_for_an_nvidia_gpu(nvrtc: Any) -> None:
    texts = {("unchanged", _UNCHANGED), *(("compare", _compare_source("cuda", dtype)) for dtype in DTYPES)}
    for entry, text in texts:
        made = nvrtc.compile(Specialised("cuda", entry, _HEADS["cuda"] + text))
        assert isinstance(made, Artifact) and made.resources.spills == 0 and not made.globals, made


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_nan_that_nobody_wrote_is_not_the_one_expected(opened: Any, dtype: str) -> None:
    data = data_of(opened, dtype, TOLERANCES[dtype], Contents("nans", 1))
    position, size = int(np.isnan(host(data.expected_of(0)["out"])).argmax()), DTYPES[dtype].size
    store_right(data, 0)
    assert isinstance(measure_set(data, 0), dict)
    start = data.places[1].offset + position * size
    data.device.write(
        data.set_buffer(0), data.device.read(data.set_buffer(0, pristine=True))[start : start + size], start
    )
    found = both_ways(data, 0)
    assert isinstance(found, WrongResult) and found.reason == "unwritten", found
    assert f"out[{position}] was not written" in found.detail and "expected nan" in found.detail


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
def test_8_bit_floats_are_clamped_as_cuda_does(name: str) -> None:
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


def test_special_values_of_inputs_and_results_beyond_the_range_are_clamped_too(tmp_path: Path) -> None:
    fill = Fill(special=(Special(value=math.inf, fraction=1.0),))
    for name, stored in (("float8_e4m3", 448.0), ("float16", math.inf)):
        assert set(draw("task", fill, (8,), name, np.random.default_rng(0)).astype(float)) == {stored}
    task = doubled(tmp_path, "float8_e4m3")
    assert set(expected_results(np, task, task.workloads[0], {"x": np.full(10007, 1e4)})["out"]) == {448.0}
    for name in FP8:
        with pytest.raises(TaskError, match=rf"the dtype {name} is not available on the backend opencl, only on cuda"):
            doubled(tmp_path, name, "opencl")


@pytest.mark.gpu
@pytest.mark.parametrize("name", FP8)
def test_a_kernel_of_8_bit_floats_is_right_on_a_gpu(tmp_path: Path, name: str) -> None:
    found, task = probe_cuda().devices[0], doubled(tmp_path, name)
    candidate, gpu = compiled_candidate(task, found), open_device(found.limits, found.index)
    data = WorkloadData(gpu, task, task.workloads[0], seed=1, max_bytes=1 << 26)
    (made,) = candidate.artifacts.values()
    shape = geometry(candidate.template, {}, task.workloads[0])
    for index in range(2):
        gpu.launch(BoundLaunch(gpu.load(made), shape, data.arguments(index)))
        gpu.synchronize()
        assert isinstance(measure_set(data, index), dict)
