"""Is the output right? Compares one set of buffers after a launch with the reference, and with its contents before.

Nearly all checks find nothing wrong. So `FusedCheck` goes first, whose kernels read everything once, on the device; the
host then finds and names whatever is not right, with NumPy: the first reduction of each kind in CuPy would take six
seconds to compile. Every block adds its part up in a fixed order in a place of its own, so that the same contents give
the same figures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.backends import BoundLaunch, Device, DeviceError, kept, open_compiler
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.source import Specialised
from tunesmith.kernels.launch.buffers import RED_ZONE, Slot, WorkloadData
from tunesmith.kernels.launch.reference import on_host
from tunesmith.kernels.outcome import WrongResult, versus
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.task import Geometry, Task, Tolerance
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
               GLOBAL const byte* before, wide written, wide count,
               double rtol, double atol, double edge, double allowed) {
    double most = 0.0, sum = 0.0, bad = 0.0;
    for (wide i = FIRST; i < count; i += STEP) {
        const double x = VALUE(got[i]), y = expected[i];
        int same = (x == y && (y != 0.0 || !SIGNED || signbit(x) == signbit(y))) || (isnan(x) && isnan(y));
        same = same || (isinf(x) && fabs(y) >= edge && (x > 0.0) == (y > 0.0));
        double share = same ? 0.0 : fabs(x - y) / (atol + rtol * fabs(y));
        if (isnan(share)) share = 1.0 / 0.0;
        if (written && isnan(y)) {
            const wide width = sizeof(ELEMENT);
            int kept = 1;
            for (wide at = i * width; at < (i + 1) * width; ++at) kept &= ((GLOBAL const byte*)got)[at] == before[at];
            if (kept) share = 1.0 / 0.0;
        }
        most = fmax(most, share);
        sum += share * share;
        bad += !(share <= allowed);
    }
"""
    + _REDUCE
)
"""As `tunesmith.kernels.check.compare.deviation`, an element at a time; `edge` is infinite where there is none. Where
`written` is set, a NaN is wrong whose bytes are those from before the launch."""
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
        self._compiler = open_compiler(device.limits, device.index)
        self._kernels = {UNCHANGED: self._compile(UNCHANGED, _UNCHANGED)}
        self._figures = device.allocate(8)
        self._parts = 0

    def differ(self, first: object, second: object, ranges: Sequence[tuple[int, int]]) -> bool:
        """Whether two buffers differ in a byte of `ranges`, each from its first byte to its end."""
        found = self._run([(UNCHANGED, first, second, np.int64(begin), np.int64(end)) for begin, end in ranges])
        return bool(found[..., 2].any())

    def deviations(self, data: WorkloadData, index: int, allowed: Mapping[str, float]) -> dict[str, Deviation]:
        """The deviations, as of `measure_set`, of those outputs of set `index` in which no element is wrong."""
        outputs, right = data.outputs, {}
        found = self._run([self._compare(data, index, one, allowed.get(one.argument.name, 1.0)) for one in outputs])
        for place, figures in zip(outputs, found, strict=True):
            if not figures[:, 2].any():
                rms = math.sqrt(float(figures[:, 1].sum()) / math.prod(place.shape))
                right[place.argument.name] = Deviation(float(figures[:, 0].max()), rms)
        return right

    def _run(self, parts: Sequence[tuple[Any, ...]]) -> NDArray[np.float64]:
        """The figures of each part's blocks. parts: kernels by name with their arguments, without the figures'."""
        if len(parts) > self._parts:
            self._parts, self._figures = len(parts), self._device.allocate(8 * len(parts) * self._blocks * FIGURES)
        for part, (name, first, second, *rest) in enumerate(parts):
            arguments = (first, second, self._figures, np.int64(part * self._blocks * FIGURES), *rest)
            shape = Geometry((self._blocks, 1, 1), (BLOCK, 1, 1))
            self._device.launch(BoundLaunch(self._kernels[name], shape, arguments))
        return self._device.read(self._figures).view(np.float64).reshape(-1, self._blocks, FIGURES)[: len(parts)]

    def _compare(self, data: WorkloadData, index: int, place: Slot, allowed: float) -> tuple[Any, ...]:
        if place.dtype not in self._kernels:
            self._kernels[place.dtype] = self._compile("compare", _compare_source(self._device.backend, place.dtype))
        tolerance = data.task.tolerance_of(place.dtype, place.argument.name)
        # Any finite magnitude of float64 is below its own overflow, so only the smaller types have an edge.
        overflow = DTYPES[place.dtype].overflow
        edge = overflow * (1 - tolerance.rtol) if math.isfinite(overflow) else math.inf
        figures = np.array([tolerance.rtol, tolerance.atol, edge, allowed])
        count = np.int64(math.prod(place.shape))
        got, expected = data.view(place, index), data.expected_buffer(index, place.argument.name)
        before, written = data.view(place, index, pristine=True), np.int64(_must_be_written(data, place))
        return place.dtype, got, expected, before, written, count, *figures

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


def fused_check(device: Device) -> FusedCheck | None:
    """The device's check, made at the first call; None where its kernels cannot be compiled or loaded."""

    def make() -> FusedCheck | None:
        try:
            return FusedCheck(device)
        except (TunesmithError, DeviceError) as error:
            if isinstance(error, DeviceError) and error.sticky:
                raise
            return None

    return kept(device, "check", make)


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
MAX_PLAIN_ERROR = 32.0
"""Largest error of the plain kernel on contents for which nobody chose a tolerance, in tolerances, beyond its
roundings: a kernel with more has overflown or cancelled, and another one's result says nothing there."""
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


def largest_error(task: Task, dtype: str) -> float:
    """The largest error that an output of a type may have on the contents of `task`, in tolerances, before it is
    compared with the baseline's: where the task says no tolerance, those of float32 and float64 are too strict for its
    longest sums. Types of fewer bits have tolerances of some units in their last place."""
    return MAX_PLAIN_ERROR if not task.tolerance and DTYPES[dtype].is_float and DTYPES[dtype].size >= 4 else 1.0


def measure_set(
    data: WorkloadData, index: int, allowed: Mapping[str, float] | None = None, *, lenient: bool = False
) -> WrongResult | dict[str, Deviation]:
    """The deviations of each output of set `index` after exactly one launch on its contents, or the first error.

    allowed: the largest deviation per output, as a share of its tolerance; `largest_error` if left out. Where it is
    exceeded, an element may also be off by `WorkloadData.slack`, if the original kernel is the reference or `lenient`
    is set. Where the task does not define a NaN, anything may then stand in its place, and a NaN in the rest of its
    row: arithmetic on infinities spreads within a sum as it is ordered. Beside extreme contents, a NaN may also stand
    in the place of an infinity."""
    allowed = allowed or {place.argument.name: largest_error(data.task, place.dtype) for place in data.outputs}
    if (wrong := _changed_beside_outputs(data, index)) is not None:
        return wrong
    quick = fused_check(data.device)
    right = quick.deviations(data, index, allowed) if quick else {}
    deviations, may_differ = dict[str, Deviation](), lenient or not data.task.reference
    for place in data.outputs:
        name = place.argument.name
        limit = allowed.get(name, 1.0)
        found = right.get(name) or _compare(data, place, index, limit)
        if may_differ and isinstance(found, WrongResult):
            found = _compare(data, place, index, limit, data.slack(index, lenient=lenient)[name])
        if isinstance(found, WrongResult):
            return found
        deviations[name] = found
    return deviations


def _must_be_written(data: WorkloadData, place: Slot) -> bool:
    """Whether a NaN that stands in an output as before the launch is wrong where a NaN is expected: outputs hold one
    that no arithmetic makes. 8 bits leave no room for NaNs of different bits."""
    return data.nan_is_defined and place.argument.role == "out" and DTYPES[place.dtype].size > 1


def warm_up(data: WorkloadData) -> None:
    """Has the check's kernels compiled and loaded, so that no visit's time pays for it."""
    if (quick := fused_check(data.device)) is not None:
        quick.deviations(data, 0, {})


def differ(device: Device, first: Any, second: Any, ranges: Sequence[tuple[int, int]]) -> bool:
    """Whether two buffers differ in a byte of `ranges`, each from its first byte to its end."""
    if (quick := fused_check(device)) is not None:
        return quick.differ(first, second, ranges)
    one, other = device.read(first), device.read(second)
    return any(bool((one[begin:end] != other[begin:end]).any()) for begin, end in ranges)


def check_surroundings(data: WorkloadData, launched: Set[int]) -> WrongResult | None:
    """Whether launches on the sets `launched` left inputs and red zones of these, and the other sets, alone."""
    for index in range(data.sets):
        if index in launched:
            if (wrong := _changed_beside_outputs(data, index)) is not None:
                return wrong
        elif differ(data.device, *data.before_and_after(index), [(0, data.set_bytes)]):
            detail = "a launch changed memory that belongs to the arrays of another launch"
            return WrongResult("out_of_bounds_write", data.places[0].argument.name, detail)
    return None


def _changed_beside_outputs(data: WorkloadData, index: int) -> WrongResult | None:
    """Whether a byte outside of the arrays of a set has changed, and by which array it lies, or an input."""
    if not differ(data.device, *data.before_and_after(index), data.between(data.outputs)):
        return None
    before, after = (data.device.read(buffer) for buffer in data.before_and_after(index))
    ordered = sorted(data.places, key=lambda place: place.offset)
    for number, (begin, end) in enumerate(data.between(ordered)):
        changed = after[begin:end] != before[begin:end]
        if changed.any():
            at = begin + int(changed.argmax())
            behind = number > 0 and (number == len(ordered) or at - begin < RED_ZONE)
            name = ordered[number - 1 if behind else number].argument.name
            where = f"{at - begin + 1} byte(s) after" if behind else f"{end - at} byte(s) before"
            return WrongResult("out_of_bounds_write", name, f"the kernel wrote {where} {name}")
    for place in data.places:
        name = place.argument.name
        if place.argument.role == "in" and (after[place.bytes] != before[place.bytes]).any():
            return WrongResult("input_modified", name, f"{name} is declared `in`, but the kernel changed it")
    return None


def _compare(
    data: WorkloadData, place: Slot, index: int, allowed: float, slack: NDArray[np.float64] | None = None
) -> WrongResult | Deviation:
    """The deviation of an output, or its first wrong element. slack: see `WorkloadData.slack`."""
    name, dtype, expected = place.argument.name, DTYPES[place.dtype], data.expected_of(index)[place.argument.name]
    tolerance = data.task.tolerance_of(place.dtype, name)
    worst, squares = 0.0, 0.0
    signed = dtype.is_float and tolerance.rtol == tolerance.atol == 0
    spread = None if slack is None or data.nan_is_defined else _rows_with_nan(on_host(expected), place)
    for chunk in (slice(start, start + CHUNK) for start in range(0, expected.size, CHUNK)):
        after, wanted = data.read(place, index, chunk), on_host(expected[chunk])
        # NumPy takes any byte but 0 for true, and C 1 alone.
        got = after.astype(np.float64) if dtype.name == "bool" else dtype.to_float64(np, after.view(dtype.array))
        more = 0.0 if slack is None else slack[chunk]
        shares = deviation(np, got, wanted, tolerance, dtype.overflow, more, signed=signed)
        if _must_be_written(data, place) and np.isnan(wanted).any():
            shares[np.isnan(wanted) & _untouched(data, place, index, chunk, after)] = math.inf
        if spread is not None:
            may_be_nan = spread[chunk] | np.isinf(wanted) if data.contents.may_lose_infinities else spread[chunk]
            shares[np.isnan(wanted) | (np.isnan(got) & may_be_nan)] = 0.0
        largest = float(shares.max())
        if not largest <= allowed:
            wrong = shares > allowed
            at = int(wrong.argmax())
            untouched = bool(_untouched(data, place, index, chunk, after)[at])
            differs = f"{versus(float(got[at]), float(wanted[at]))} ({int(wrong.sum())} or more elements differ)"
            want = float(wanted[at])
            return _mismatch(data, place, index, chunk.start + at, untouched=untouched, differs=differs, want=want)
        worst, squares = max(worst, largest), squares + float((shares * shares).sum())
    return Deviation(worst, math.sqrt(squares / expected.size))


def _rows_with_nan(expected: NDArray[np.float64], place: Slot) -> NDArray[np.bool_]:
    """For each element, whether there is a NaN in its row, which is along the last axis."""
    rows = np.isnan(expected).reshape(-1, place.shape[-1])
    return np.repeat(rows.any(axis=1), place.shape[-1])


def _untouched(
    data: WorkloadData, place: Slot, index: int, chunk: slice, after: NDArray[np.uint8]
) -> NDArray[np.bool_]:
    """For each element of a chunk, whether its bytes are those from before the launch."""
    same = after == data.read(place, index, chunk, pristine=True)
    untouched: NDArray[np.bool_] = same.reshape(-1, DTYPES[place.dtype].size).all(axis=1)
    return untouched


def _mismatch(
    data: WorkloadData, place: Slot, index: int, flat: int, untouched: bool, differs: str, want: float
) -> WrongResult:
    """The fault at the element `flat` of an output. untouched: it holds the bytes from before the launch."""
    name = place.argument.name
    where = f"{name}{[int(i) for i in np.unravel_index(flat, place.shape)]}"
    whole = [(place.offset, place.offset + place.nbytes)]
    if place.argument.role == "inout" and untouched and not differ(data.device, *data.before_and_after(index), whole):
        held = f"{name} holds its contents from before the launch; {where} should be {want:.6g}"
        return WrongResult("unwritten", name, held)
    if place.argument.role == "out" and untouched:
        held = f"{where} was not written: it holds the bytes from before the launch; expected {want:.6g}"
        return WrongResult("unwritten", name, held)
    return WrongResult("mismatch", name, f"{where} is {differs}")
