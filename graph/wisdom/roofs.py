"""The roofs of a device as the best that was ever measured on it: what a busy machine measures now is no limit."""

from __future__ import annotations

import platform
from dataclasses import replace

from tunesmith.graph.wisdom.database import Wisdom, WisdomError
from tunesmith.hw.probe import Device
from tunesmith.hw.roofline import Roofline

FAR_BELOW = 0.8
"""Share of the best value below which one that was measured now is reported."""
COPY = "copy of "
"""With the bytes moved, the name of a bandwidth among roofs; the others are arithmetic, named by data type."""


def best_roofs(wisdom: Wisdom | None, device: Device, measured: Roofline) -> tuple[Roofline, tuple[str, ...]]:
    """The best value ever measured of each roof of `device`, `measured` included, which is kept; and a sentence for
    each kind of roof that is now far below it, or why the database cannot be used. wisdom: None where it is off."""
    if wisdom is None:
        return measured, ()
    now = {f"{COPY}{size}": rate for size, rate in measured.bandwidth} | dict(measured.peak_flops)
    try:
        # A GPU has an identity of its own; a CPU is its machine's.
        best = wisdom.best_roofs(device.uuid or f"{device.name} of {platform.node()}", now)
    except WisdomError as error:
        return measured, (str(error),)
    copies = {name: one for name, one in best.items() if name.startswith(COPY)}
    roofs = replace(
        measured,
        bandwidth=tuple((int(name.removeprefix(COPY)), rate) for name, (rate, _) in copies.items()),
        peak_flops={name: rate for name, (rate, _) in best.items() if name not in copies},
    )
    said = []
    fastest, at = max(copies.values(), default=(0.0, ""))
    if measured.peak_bandwidth is not None and measured.peak_bandwidth < FAR_BELOW * fastest:
        said.append(_far_below("copy bandwidth", measured.peak_bandwidth, fastest, at, "GB/s"))
    for name, rate in measured.peak_flops.items():
        if rate < FAR_BELOW * best[name][0]:
            said.append(_far_below(f"{name} peak", rate, *best[name], "GFLOP/s"))
    return roofs, tuple(said)


def _far_below(what: str, now: float, best: float, at: str, unit: str) -> str:
    return (
        f"The {what} measured now, {now / 1e9:.3g} {unit}, is far below the {best / 1e9:.3g} {unit} measured on "
        f"{at[:10]}, from which floors are computed: something else probably uses the device, so times may be too long."
    )
