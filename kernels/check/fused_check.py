"""The usual verdict in one pass over memory: everything is right, and how far each output is from the reference.

A configuration is checked three times in a visit, and nearly all are right. Array operations take some thirty passes
and ten round trips to the device for one check; the kernels here read everything once, and one small copy brings the
verdict. They only ever say that all is right; whatever is not is found again, and named, by `kernels.check.check`.

One text serves CUDA and OpenCL. Every block adds up its part in a fixed order and writes it to a place of its own, so
that the same contents give the same figures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from weakref import WeakKeyDictionary

import numpy as np

from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.backends import Device, DeviceError, Launch, open_compiler
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.specialise import Specialised
from tunesmith.kernels.launch.workload_data import Place, WorkloadData
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.geometry import Geometry
from tunesmith.kernels.spec.template import BackendName

BLOCK = 256
BLOCKS = {"gpu": 528, "cpu": 16}
"""Four for each of an H200's multiprocessors; other devices are served as well by that many."""
FIGURES = 3
"""What a block reports: the largest share of the tolerance, the sum of squares, and how many elements are wrong."""
UNCHANGED = "unchanged"

_HEADS: dict[BackendName, str] = {
    "cuda": f"""
#define KERNEL extern "C" __global__ void __launch_bounds__({BLOCK})
#define DEVICE __device__
#define GLOBAL
#define SHARED __shared__
#define BARRIER __syncthreads()
#define LOCAL_ID threadIdx.x
#define GROUP_ID blockIdx.x
#define GLOBAL_ID ((long long)blockIdx.x * {BLOCK} + threadIdx.x)
#define GLOBAL_SIZE ((long long)gridDim.x * {BLOCK})
#define AS_FLOAT __uint_as_float
typedef long long wide;
typedef unsigned char byte;
""",
    "opencl": f"""
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#define KERNEL __attribute__((reqd_work_group_size({BLOCK}, 1, 1))) __kernel void
#define DEVICE
#define GLOBAL __global
#define SHARED __local
#define BARRIER barrier(CLK_LOCAL_MEM_FENCE)
#define LOCAL_ID get_local_id(0)
#define GROUP_ID get_group_id(0)
#define GLOBAL_ID ((long)get_global_id(0))
#define GLOBAL_SIZE ((long)get_global_size(0))
#define AS_FLOAT as_float
typedef long wide;
typedef uchar byte;
""",
}
_REDUCE = f"""
    SHARED double largest[{BLOCK}], squares[{BLOCK}], wrong[{BLOCK}];
    const int lane = (int)LOCAL_ID;
    largest[lane] = most; squares[lane] = sum; wrong[lane] = bad;
    BARRIER;
    for (int width = {BLOCK // 2}; width > 0; width /= 2) {{
        if (lane < width) {{
            largest[lane] = fmax(largest[lane], largest[lane + width]);
            squares[lane] += squares[lane + width];
            wrong[lane] += wrong[lane + width];
        }}
        BARRIER;
    }}
    if (lane == 0) {{
        figures[part + {FIGURES} * GROUP_ID] = largest[0];
        figures[part + {FIGURES} * GROUP_ID + 1] = squares[0];
        figures[part + {FIGURES} * GROUP_ID + 2] = wrong[0];
    }}
}}
"""
_COMPARE = (
    """
KERNEL compare(GLOBAL const ELEMENT* got, GLOBAL const double* expected, GLOBAL double* figures, wide part,
               wide count, double rtol, double atol, double edge, double allowed) {
    double most = 0.0, sum = 0.0, bad = 0.0;
    for (wide i = GLOBAL_ID; i < count; i += GLOBAL_SIZE) {
        const double x = VALUE(got[i]), y = expected[i];
        int same = x == y || (isnan(x) && isnan(y));
        same = same || (isinf(x) && fabs(y) >= edge && (x > 0.0) == (y > 0.0));
        double share = same ? 0.0 : fabs(x - y) / (atol + rtol * fabs(y));
        if (isnan(share)) share = 1.0 / 0.0;
        most = fmax(most, share);
        sum += share * share;
        bad += !(share <= allowed);
    }
"""
    + _REDUCE
)
"""As `tunesmith.kernels.check.check.deviation`, an element at a time; `edge` is infinite where there is none."""
_UNCHANGED = (
    """
typedef struct { wide low, high; } Pair;
KERNEL unchanged(GLOBAL const byte* after, GLOBAL const byte* before, GLOBAL double* figures, wide part,
                 wide begin, wide end) {
    double most = 0.0, sum = 0.0, bad = 0.0;
    for (wide at = begin / 16 * 16 + 16 * GLOBAL_ID; at < end; at += 16 * GLOBAL_SIZE) {
        if (at >= begin && at + 16 <= end) {
            const Pair a = *(GLOBAL const Pair*)(after + at), b = *(GLOBAL const Pair*)(before + at);
            bad += a.low != b.low || a.high != b.high;
        } else {
            for (wide i = at < begin ? begin : at; i < at + 16 && i < end; ++i) bad += after[i] != before[i];
        }
    }
"""
    + _REDUCE
)


class FusedCheck:
    """The kernels on one device. Raises `TunesmithError` or `DeviceError` where they cannot be had."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._blocks = BLOCKS[device.limits.kind]
        self._compiler = open_compiler(device.limits, getattr(device, "index", 0))
        self._kernels = {UNCHANGED: self._compile(UNCHANGED, _UNCHANGED)}
        self._figures = device.allocate(8)
        self._parts = 0

    def passes(
        self, data: WorkloadData, index: int, allowed: Mapping[str, float]
    ) -> dict[str, tuple[float, float]] | None:
        """For set `index` after a launch, the largest share of the tolerance and the root mean square of shares by
        output; None when anything is not as it should be. `allowed` as in `check.measure_set`."""
        outputs = [place for place in data.places if place.argument.role != "in"]
        ranges = _ranges(outputs, data.set_bytes)
        self._reserve(len(ranges) + len(outputs))
        after, before = data.set_buffer(index), data.set_buffer(index, pristine=True)
        for part, (begin, end) in enumerate(ranges):
            self._run(UNCHANGED, part, after, before, self._figures, np.int64(begin), np.int64(end))
        for part, place in enumerate(outputs, len(ranges)):
            self._compare(data, index, place, part, allowed.get(place.argument.name, 1.0))
        found = self._device.read(self._figures).view(np.float64).reshape(-1, self._blocks, FIGURES)
        if found[: len(ranges) + len(outputs), :, 2].any():
            return None
        deviations = {}
        for place, figures in zip(outputs, found[len(ranges) :], strict=False):
            rms = math.sqrt(float(figures[:, 1].sum()) / math.prod(place.shape))
            deviations[place.argument.name] = (float(figures[:, 0].max()), rms)
        return deviations

    def _compare(self, data: WorkloadData, index: int, place: Place, part: int, allowed: float) -> None:
        if place.dtype not in self._kernels:
            self._kernels[place.dtype] = self._compile("compare", _compare_source(self._device.backend, place.dtype))
        tolerance = data.task.tolerance_of(place.dtype, place.argument.name)
        # Any finite magnitude of float64 is below its own overflow, so only the smaller types have an edge.
        overflow = DTYPES[place.dtype].overflow
        edge = overflow * (1 - tolerance.rtol) if math.isfinite(overflow) else math.inf
        figures = np.array([tolerance.rtol, tolerance.atol, edge, allowed])
        count = np.int64(math.prod(place.shape))
        got, expected = data.view(place, index), data.expected_buffer(index, place.argument.name)
        self._run(place.dtype, part, got, expected, self._figures, count, *figures)

    def _run(self, kernel: str, part: int, first: object, second: object, figures: object, *rest: object) -> None:
        offset = np.int64(part * self._blocks * FIGURES)
        arguments = (first, second, figures, offset, *rest)
        self._device.launch(Launch(self._kernels[kernel], Geometry((self._blocks, 1, 1), (BLOCK, 1, 1)), arguments))

    def _reserve(self, parts: int) -> None:
        if parts > self._parts:
            self._parts = parts
            self._figures = self._device.allocate(8 * parts * self._blocks * FIGURES)

    def _compile(self, entry: str, text: str) -> object:
        backend: BackendName = self._device.limits.backend
        source = Specialised(backend, entry, _HEADS[backend] + text)
        limits = self._device.limits
        key = f"{limits.name} {limits.arch} {source.digest}"
        made = COMPILED.get(key) or self._compiler.compile(source)
        if not isinstance(made, Artifact):
            raise DeviceError(f"the check's kernel {entry} does not compile: {made}")
        COMPILED[key] = made
        return self._device.load(made)


def _compare_source(backend: str, dtype: str) -> str:
    kind = DTYPES[dtype]
    return f"#define ELEMENT {kind.element(backend)}\n" + (kind.load or "#define VALUE(x) ((double)(x))\n") + _COMPARE


def _ranges(outputs: list[Place], size: int) -> list[tuple[int, int]]:
    """What no kernel may change: all bytes of a set but those of `outputs`."""
    outputs = sorted(outputs, key=lambda place: place.offset)
    starts = [0, *(place.offset + place.nbytes for place in outputs)]
    ends = [*(place.offset for place in outputs), size]
    return list(zip(starts, ends, strict=True))


COMPILED: dict[str, Artifact] = {}
"""What this process, or another for the same device, has compiled, by device and the digest of its source."""
_CHECKS: WeakKeyDictionary[Device, FusedCheck | str] = WeakKeyDictionary()
"""By device; a text says why a device has none."""


def fused_check(device: Device) -> FusedCheck | None:
    """The device's, made at the first call; None where its compiler or its arithmetic cannot have it."""
    if device not in _CHECKS:
        try:
            _CHECKS[device] = FusedCheck(device)
        except (TunesmithError, DeviceError) as error:
            if isinstance(error, DeviceError) and error.sticky:
                raise
            _CHECKS[device] = str(error)
    made = _CHECKS[device]
    return made if isinstance(made, FusedCheck) else None
