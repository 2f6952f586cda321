"""Is the output right? Compares one set of buffers after a launch with what must be there.

Owns the verdict on contents: outputs against the float64 reference, inputs unchanged, red zones untouched. Running
the kernel is `tunesmith.kernels.bench`. Works on NumPy and CuPy arrays alike, so that results stay on the device.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tunesmith.kernels.outcome import WrongResult
from tunesmith.kernels.task import Tolerance
from tunesmith.kernels.workload_data import RED_ZONE, RED_ZONE_BYTE, Place, WorkloadData, to_float64

REASONS = {
    "mismatch": "an element differs from the reference by more than the tolerance",
    "unwritten": "an element of an output was never written",
    "input_modified": "an argument declared `in` was changed",
    "out_of_bounds_write": "bytes before or after an array were changed",
}
CHUNK = 1 << 22
"""Elements compared at a time; bounds the memory of temporaries."""


def deviation(xp: Any, got: Any, expected: Any, tolerance: Tolerance) -> Any:
    """Elementwise |got - expected| as a share of atol + rtol * |expected|; 1.0 is the limit.

    Equal infinities and NaN for NaN are 0; any other infinity or NaN is infinitely far.
    """
    # Arithmetic on infinities makes NaN here, which the last line turns into what is meant.
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        same = (got == expected) | (xp.isnan(got) & xp.isnan(expected))
        share = xp.abs(got - expected) / (tolerance.atol + tolerance.rtol * xp.abs(expected))
        share = xp.where(same, 0.0, share)
        return xp.where(xp.isnan(share), xp.inf, share)


def check_set(data: WorkloadData, index: int) -> WrongResult | dict[str, float]:
    """The verdict on set `index` after exactly one launch on restored contents.

    Returns the largest deviation per output (as a share of its tolerance), or what is wrong.
    """
    xp = data.device.xp
    after = data.set_array(index)
    before = data.set_array(index, pristine=True)
    deviations = {}
    for place in data.places:
        name = place.argument.name
        if (wrong := _red_zones(xp, after, place)) is not None:
            return wrong
        if place.argument.role == "in":
            data_slice = slice(place.offset, place.offset + place.nbytes)
            if not bool((after[data_slice] == before[data_slice]).all()):
                return WrongResult("input_modified", name, f"{name} is declared `in`, but the kernel changed it")
            continue
        worst = _compare(data, place, index)
        if isinstance(worst, WrongResult):
            return worst
        deviations[name] = worst
    return deviations


def _red_zones(xp: Any, after: Any, place: Place) -> WrongResult | None:
    zones = (
        ("before", slice(place.offset - RED_ZONE, place.offset)),
        ("after", slice(place.offset + place.nbytes, place.offset + place.padded + RED_ZONE)),
    )
    for side, zone in zones:
        changed = after[zone] != RED_ZONE_BYTE
        if bool(changed.any()):
            position = int(xp.argmax(changed))
            distance = RED_ZONE - position if side == "before" else position + 1
            name = place.argument.name
            return WrongResult("out_of_bounds_write", name, f"the kernel wrote {distance} byte(s) {side} {name}")
    return None


def _compare(data: WorkloadData, place: Place, index: int) -> WrongResult | float:
    xp, name = data.device.xp, place.argument.name
    raw = data.device.array(data.view(place, index), place.dtype)
    expected = data.expected[name]
    tolerance = data.task.tolerance_of(place.dtype)
    worst = 0.0
    for start in range(0, expected.size, CHUNK):
        part = to_float64(xp, raw[start : start + CHUNK], place.dtype)
        shares = deviation(xp, part, expected[start : start + CHUNK], tolerance)
        largest = float(shares.max())
        if largest > 1.0:
            at = int(xp.argmax(shares > 1.0))
            return _mismatch(data, place, start + at, float(part[at]), int((shares > 1.0).sum()))
        worst = max(worst, largest)
    return worst


def _mismatch(data: WorkloadData, place: Place, flat: int, got: float, wrong_in_chunk: int) -> WrongResult:
    name = place.argument.name
    where = tuple(int(i) for i in np.unravel_index(flat, place.shape))
    want = float(data.expected[name][flat])
    if np.isnan(got) and not np.isnan(want) and place.argument.role == "out":
        return WrongResult(
            "unwritten", name, f"{name}{list(where)} is NaN, which is what outputs hold before a launch; expected {want:.6g}"
        )
    return WrongResult(
        "mismatch", name, f"{name}{list(where)} is {got:.6g}, expected {want:.6g} ({wrong_in_chunk} or more elements differ)"
    )
