"""Is the output right? Compares one set of buffers after a launch with the reference, and with its contents before.

Nearly all checks find nothing wrong. So `FusedCheck` goes first, whose kernels read everything once; array operations,
with some thirty passes and ten round trips to the device, then find and name whatever is not right. Every block adds
its part up in a fixed order in a place of its own, so that the same contents give the same figures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.backends import BoundLaunch, Device, DeviceError, open_compiler
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.source import Specialised
from tunesmith.kernels.launch.buffers import RED_ZONE, Slot, WorkloadData
from tunesmith.kernels.outcome import WrongResult, versus
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.task import Geometry, Tolerance
from tunesmith.kernels.spec.template import BACKENDS, BackendName

BLOCK = 256
BLOCKS = {"gpu": 528, "cpu": 16}
"""Four for each of an H200's multiprocessors; other devices are served as well by that many."""
FIGURES = 3
"""The report of a block: the largest share of the tolerance, the sum of squares, and how many elements are wrong."""
UNCHANGED = "unchanged"

_WORDS = {
    "KERNEL": (
        f'extern "C" __global__ void __launch_bounds__({BLOCK})',
        f"__attribute__((reqd_work_group_size({BLOCK}, 1, 1))) __kernel void",
    ),
    "DEVICE": ("__device__", ""),
    "GLOBAL": ("", "__global"),
    "SHARED": ("__shared__", "__local"),
    "BARRIER": ("__syncthreads()", "barrier(CLK_LOCAL_MEM_FENCE)"),
    "LOCAL_ID": ("threadIdx.x", "get_local_id(0)"),
    "GROUP_ID": ("blockIdx.x", "get_group_id(0)"),
    "FIRST": (f"((wide)blockIdx.x * {BLOCK} + (wide)threadIdx.x)", "((wide)get_global_id(0))"),
    "STEP": (f"((wide)gridDim.x * {BLOCK})", "((wide)get_global_size(0))"),
    "AS_FLOAT": ("__uint_as_float", "as_float"),
    "wide": ("long long", "long"),
    "byte": ("unsigned char", "uchar"),
}
"""The words of the kernels' text in CUDA and in OpenCL."""
_HEADS: dict[BackendName, str] = {
    "cuda": "".join(f"#define {word} {cuda}\n" for word, (cuda, _) in _WORDS.items()),
    "opencl": "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n"
    + "".join(f"#define {word} {opencl}\n" for word, (_, opencl) in _WORDS.items()),
}
_REDUCE = f"""
    SHARED double partial[{FIGURES}][{BLOCK}];
    const int lane = (int)LOCAL_ID;
    partial[0][lane] = most; partial[1][lane] = sum; partial[2][lane] = bad;
    BARRIER;
    for (int width = {BLOCK // 2}; width > 0; width /= 2) {{
        if (lane < width) {{
            partial[0][lane] = fmax(partial[0][lane], partial[0][lane + width]);
            for (int i = 1; i < {FIGURES}; ++i) partial[i][lane] += partial[i][lane + width];
        }}
        BARRIER;
    }}
    if (lane < {FIGURES}) figures[part + {FIGURES} * GROUP_ID + lane] = partial[lane][0];
}}
"""
_COMPARE = (
    """
KERNEL compare(GLOBAL const ELEMENT* got, GLOBAL const double* expected, GLOBAL double* figures, wide part,
               wide count, double rtol, double atol, double edge, double allowed) {
    double most = 0.0, sum = 0.0, bad = 0.0;
    for (wide i = FIRST; i < count; i += STEP) {
        const double x = VALUE(got[i]), y = expected[i];
        int same = (x == y && (y != 0.0 || !SIGNED || signbit(x) == signbit(y))) || (isnan(x) && isnan(y));
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
"""As `tunesmith.kernels.check.compare.deviation`, an element at a time; `edge` is infinite where there is none."""
_UNCHANGED = (
    """
typedef struct { wide low, high; } Pair;
KERNEL unchanged(GLOBAL const byte* after, GLOBAL const byte* before, GLOBAL double* figures, wide part,
                 wide begin, wide end) {
    double most = 0.0, sum = 0.0, bad = 0.0;
    for (wide at = begin / 16 * 16 + 16 * FIRST; at < end; at += 16 * STEP) {
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

    def passes(self, data: WorkloadData, index: int, allowed: Mapping[str, float]) -> dict[str, Deviation] | None:
        """The deviations of the outputs of set `index` after a launch, as `measure_set`; None if anything is wrong."""
        outputs = [place for place in data.places if place.argument.role != "in"]
        # All bytes of a set outside of the outputs must be unchanged.
        ranges = data.between(outputs)
        if (parts := len(ranges) + len(outputs)) > self._parts:
            self._parts, self._figures = parts, self._device.allocate(8 * parts * self._blocks * FIGURES)
        after, before = data.set_buffer(index), data.set_buffer(index, pristine=True)
        for part, (begin, end) in enumerate(ranges):
            self._run(UNCHANGED, part, after, before, np.int64(begin), np.int64(end))
        for part, place in enumerate(outputs, len(ranges)):
            self._compare(data, index, place, part, allowed.get(place.argument.name, 1.0))
        found = self._device.read(self._figures).view(np.float64).reshape(-1, self._blocks, FIGURES)
        if found[:parts, :, 2].any():
            return None
        deviations = {}
        for place, figures in zip(outputs, found[len(ranges) :], strict=False):
            rms = math.sqrt(float(figures[:, 1].sum()) / math.prod(place.shape))
            deviations[place.argument.name] = Deviation(float(figures[:, 0].max()), rms)
        return deviations

    def _compare(self, data: WorkloadData, index: int, place: Slot, part: int, allowed: float) -> None:
        if place.dtype not in self._kernels:
            self._kernels[place.dtype] = self._compile("compare", _compare_source(self._device.backend, place.dtype))
        tolerance = data.task.tolerance_of(place.dtype, place.argument.name)
        # Any finite magnitude of float64 is below its own overflow, so only the smaller types have an edge.
        overflow = DTYPES[place.dtype].overflow
        edge = overflow * (1 - tolerance.rtol) if math.isfinite(overflow) else math.inf
        figures = np.array([tolerance.rtol, tolerance.atol, edge, allowed])
        count = np.int64(math.prod(place.shape))
        got, expected = data.view(place, index), data.expected_buffer(index, place.argument.name)
        self._run(place.dtype, part, got, expected, count, *figures)

    def _run(self, kernel: str, part: int, first: object, second: object, *rest: object) -> None:
        arguments = (first, second, self._figures, np.int64(part * self._blocks * FIGURES), *rest)
        self._device.launch(
            BoundLaunch(self._kernels[kernel], Geometry((self._blocks, 1, 1), (BLOCK, 1, 1)), arguments)
        )

    def _compile(self, entry: str, text: str) -> object:
        backend = BACKENDS[self._device.limits.backend].harness
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
    signed = "(rtol == 0.0 && atol == 0.0)" if kind.is_float else "0"
    return (
        f"#define ELEMENT {kind.element(backend)}\n#define SIGNED {signed}\n"
        + (kind.load or "#define VALUE(x) ((double)(x))\n")
        + _COMPARE
    )


COMPILED: dict[str, Artifact] = {}
"""Compiled kernels, of this process or of another for the same device, by device and the digest of their source."""
_CHECKS: WeakKeyDictionary[Device, FusedCheck | None] = WeakKeyDictionary()


def fused_check(device: Device) -> FusedCheck | None:
    """The device's check, made at the first call; None where its kernels cannot be compiled or loaded."""
    if device not in _CHECKS:
        try:
            _CHECKS[device] = FusedCheck(device)
        except (TunesmithError, DeviceError) as error:
            if isinstance(error, DeviceError) and error.sticky:
                raise
            _CHECKS[device] = None
    return _CHECKS[device]


REASONS = {
    # Before anything runs.
    "source_too_large": "the source has more than 1 MiB",
    "forbidden_source": "the source names a file, or uses another construct that the source rules exclude",
    "compile_failed": "the compiler refuses the source",
    "compile_timeout": "the compiler does not end within its deadline",
    "compile_crashed": "the compiler dies, for instance because it takes too much memory",
    "device_state": "the kernel keeps variables in global memory between launches without declaring them",
    "outlasting_store": "a block can end while a bulk copy out of its shared memory is under way",
    "infeasible": "the configuration breaks a constraint of the template or a limit of the device",
    # While it runs.
    "launch_failed": "the driver refuses to load or launch the kernel, or the kernel faults",
    "timed_out": "the kernel does not end within its deadline",
    "crashed": "the process that runs the kernel dies",
    # The result of the kernel.
    "mismatch": "an element differs from the reference by more than the tolerance",
    "unwritten": "an element of an output, or all of an inout argument, was never written",
    "input_modified": "an argument declared `in` was changed",
    "out_of_bounds_write": "bytes before or after an array, or of the arrays of another launch, were changed",
    "out_of_bounds_access": "a launch fails where nothing lies before or after an array",
    "stale_output": "a launch on changed contents gives what belongs to earlier contents",
    "nondeterministic": "two launches on the same contents differ by more than the tolerance",
    "less_accurate": "it is within the tolerance, but materially less accurate than the baseline",
    # What tools and clocks say.
    "sanitizer": "a sanitizer finds an invalid access, a race, a read of unwritten memory, or a wrong barrier",
    "depends_on_outputs": "a launch takes less time where its outputs hold right results already",
    "implausible": "it was timed faster than the measured limits of the device allow",
}
"""Every reason of a rejection; documented in docs/trust.md."""
CHUNK = 1 << 22
"""Elements compared at a time; bounds the memory of temporaries."""


@dataclass(frozen=True, slots=True)
class Deviation:
    """Distances from the reference, as shares of the tolerance: the largest element's, and the root mean square."""

    largest: float
    rms: float


def deviation(
    xp: Any,
    got: Any,
    expected: Any,
    tolerance: Tolerance,
    overflow: float = math.inf,
    slack: Any = 0.0,
    *,
    signed: bool = False,
) -> Any:
    """Elementwise |got - expected| as a share of atol + rtol * |expected| + slack; 1.0 is the limit.

    Equal infinities and NaN for NaN are 0; any other infinity or NaN is infinitely far. Where the tolerance is zero,
    zeros of other signs are too. From `overflow` on the storage
    type holds infinities; one where a finite value within the tolerance of that magnitude was expected is 0 too.
    """
    # Arithmetic on infinities makes NaN here, which the last line turns into the intended shares.
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        same = (got == expected) | (xp.isnan(got) & xp.isnan(expected))
        if signed:
            same &= (expected != 0) | (xp.signbit(got) == xp.signbit(expected))
        if math.isfinite(overflow):
            edge = overflow * (1 - tolerance.rtol)
            same |= xp.isinf(got) & (xp.abs(expected) >= edge) & ((got > 0) == (expected > 0))
        share = xp.abs(got - expected) / (tolerance.atol + tolerance.rtol * xp.abs(expected) + slack)
        share = xp.where(same, 0.0, share)
        return xp.where(xp.isnan(share), xp.inf, share)


def measure_set(
    data: WorkloadData, index: int, allowed: Mapping[str, float] | None = None, *, lenient: bool = False
) -> WrongResult | dict[str, Deviation]:
    """The deviations of each output of set `index` after exactly one launch on its contents, or the first error.

    allowed: the largest deviation per output, as a share of its tolerance; 1.0 if left out. Where it is exceeded, an
    element may also be off by `WorkloadData.slack`, if the original kernel is the reference or `lenient` is set. Where
    the task does not define a NaN, anything may then stand in its place, and a NaN in the rest of its row: arithmetic
    on infinities spreads within a sum as it is ordered. Beside extreme contents, a NaN may also stand in the place of
    an infinity."""
    quick = fused_check(data.device)
    found: WrongResult | dict[str, Deviation] | None = quick.passes(data, index, allowed or {}) if quick else None
    if found is None:
        found = _measure_slowly(data, index, allowed or {})
    may_differ = lenient or not data.task.reference
    if may_differ and isinstance(found, WrongResult) and found.reason in ("mismatch", "unwritten"):
        found = _measure_slowly(data, index, allowed or {}, data.slack(index, lenient=lenient))
    return found if isinstance(found, WrongResult) else _unwritten_nan(data, index) or found


def _unwritten_nan(data: WorkloadData, index: int) -> WrongResult | None:
    """Outputs hold a NaN that no arithmetic makes before a launch: found where a NaN should be, it was not written."""
    if not data.nan_is_defined:
        return None
    for place in (one for one in data.places if one.argument.role == "out"):
        positions, width = data.expected_nans(index, place.argument.name), DTYPES[place.dtype].size
        if width == 1 or not positions.size:  # 8 bits leave no room for NaNs of different bits
            continue
        after, before = (data.set_array(index, pristine=kept)[place.bytes] for kept in (False, True))
        same = (after.reshape(-1, width)[positions] == before.reshape(-1, width)[positions]).all(axis=1)
        if bool(same.any()):
            return _mismatch(data, place, index, int(positions[int(same.argmax())]), math.nan, int(same.sum()))
    return None


def warm_up(data: WorkloadData) -> None:
    """Has the check's kernels compiled and loaded, so that no visit's time pays for it."""
    if (quick := fused_check(data.device)) is not None:
        quick.passes(data, 0, {})


def _measure_slowly(
    data: WorkloadData, index: int, allowed: Mapping[str, float], slack: Mapping[str, Any] | None = None
) -> WrongResult | dict[str, Deviation]:
    """`measure_set` by array operations, which name the first error and its place."""
    after, before = data.set_array(index), data.set_array(index, pristine=True)
    if (wrong := _changed_beside_outputs(after, before, data)) is not None:
        return wrong
    deviations = {}
    for place in (place for place in data.places if place.argument.role != "in"):
        name = place.argument.name
        found = _compare(data, place, index, allowed.get(name, 1.0), None if slack is None else slack[name])
        if isinstance(found, WrongResult):
            return found
        deviations[name] = found
    return deviations


def check_surroundings(data: WorkloadData, launched: Set[int]) -> WrongResult | None:
    """Whether launches on the sets `launched` left inputs and red zones of these, and the other sets, alone."""
    for index in range(data.sets):
        after, before = data.set_array(index), data.set_array(index, pristine=True)
        if bool((after == before).all()):
            continue
        if index not in launched:
            detail = "a launch changed memory that belongs to the arrays of another launch"
            return WrongResult("out_of_bounds_write", data.places[0].argument.name, detail)
        if (wrong := _changed_beside_outputs(after, before, data)) is not None:
            return wrong
    return None


def _changed_beside_outputs(after: Any, before: Any, data: WorkloadData) -> WrongResult | None:
    """Whether a byte outside of the arrays has changed, and by which array it lies, or an input."""
    ordered = sorted(data.places, key=lambda place: place.offset)
    for number, (begin, end) in enumerate(data.between(ordered)):
        changed = after[begin:end] != before[begin:end]
        if bool(changed.any()):
            at = begin + int(changed.argmax())
            behind = number > 0 and (number == len(ordered) or at - begin < RED_ZONE)
            name = ordered[number - 1 if behind else number].argument.name
            where = f"{at - begin + 1} byte(s) after" if behind else f"{end - at} byte(s) before"
            return WrongResult("out_of_bounds_write", name, f"the kernel wrote {where} {name}")
    for place in data.places:
        name = place.argument.name
        if place.argument.role == "in" and not bool((after[place.bytes] == before[place.bytes]).all()):
            return WrongResult("input_modified", name, f"{name} is declared `in`, but the kernel changed it")
    return None


def _compare(data: WorkloadData, place: Slot, index: int, allowed: float, slack: Any = None) -> WrongResult | Deviation:
    xp, name, dtype = data.device.xp, place.argument.name, DTYPES[place.dtype]
    raw = data.device.array(data.view(place, index), place.dtype)
    expected, tolerance = data.expected_of(index)[name], data.task.tolerance_of(place.dtype, name)
    worst, squares = 0.0, 0.0
    signed = dtype.is_float and tolerance.rtol == tolerance.atol == 0
    spread = None if slack is None or data.nan_is_defined else _rows_with_nan(xp, expected, place)
    for chunk in (slice(start, start + CHUNK) for start in range(0, expected.size, CHUNK)):
        got, wanted = dtype.to_float64(xp, raw[chunk]), expected[chunk]
        shares = deviation(
            xp, got, wanted, tolerance, dtype.overflow, 0.0 if slack is None else slack[chunk], signed=signed
        )
        if spread is not None:
            may_be_nan = spread[chunk] | xp.isinf(wanted) if data.contents.may_lose_infinities else spread[chunk]
            shares = xp.where(xp.isnan(wanted) | (xp.isnan(got) & may_be_nan), 0.0, shares)
        largest = float(shares.max())
        if not largest <= allowed:
            wrong = shares > allowed
            at = int(wrong.argmax())
            return _mismatch(data, place, index, chunk.start + at, float(got[at]), int(wrong.sum()))
        worst, squares = max(worst, largest), squares + float((shares * shares).sum())
    return Deviation(worst, math.sqrt(squares / expected.size))


def _rows_with_nan(xp: Any, expected: Any, place: Slot) -> Any:
    """For each element, whether there is a NaN in its row, which is along the last axis."""
    rows = xp.isnan(expected).reshape(-1, place.shape[-1])
    return xp.broadcast_to(rows.any(axis=1)[:, None], rows.shape).reshape(-1)


def _mismatch(data: WorkloadData, place: Slot, index: int, flat: int, got: float, wrong_in_chunk: int) -> WrongResult:
    name, width = place.argument.name, DTYPES[place.dtype].size
    where = f"{name}{[int(i) for i in np.unravel_index(flat, place.shape)]}"
    want = float(data.expected_of(index)[name][flat])
    same = data.set_array(index)[place.bytes] == data.set_array(index, pristine=True)[place.bytes]
    if place.argument.role == "inout" and bool(same.all()):
        held = f"{name} holds its contents from before the launch; {where} should be {want:.6g}"
        return WrongResult("unwritten", name, held)
    if place.argument.role == "out" and bool(same[flat * width : (flat + 1) * width].all()):
        held = f"{where} was not written: it holds the bytes from before the launch; expected {want:.6g}"
        return WrongResult("unwritten", name, held)
    differs = f"{where} is {versus(got, want)} ({wrong_in_chunk} or more elements differ)"
    return WrongResult("mismatch", name, differs)
