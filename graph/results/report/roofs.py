"""The picture of baseline and winners under the device's measured roofs.

Where the task declares its arithmetic and the peak of that type was measured, the classic roofline: flop/s over flop
per byte. Otherwise the bandwidth that each kernel reaches over the bytes that a launch must move, under the best copy.
Source of the model: see `tunesmith.hw.roofline`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tunesmith.graph.journal.log import RunLog
from tunesmith.graph.results.report.axis import Axis, axis_of, rounded
from tunesmith.graph.results.summary import Summary


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel on a workload, at (x, y) percent from the upper left. kind: "baseline", "general", "best" or
    "opponent"."""

    kind: str
    workload: str
    x: float
    y: float
    text: str


@dataclass(frozen=True, slots=True)
class RoofPicture:
    """roof: corners of the roof in percent; labels: what each roof is, (x, y, text); copies: measured copies of several
    sizes, (x, y, text); missing: why there is no roof, empty where there is."""

    across: Axis
    up: Axis
    kernels: tuple[Kernel, ...]
    roof: tuple[tuple[float, float], ...]
    copies: tuple[tuple[float, float, str], ...]
    about: str
    missing: str


def roof_picture(log: RunLog, summary: Summary) -> RoofPicture | None:
    """None where no workload was compared, or the task's bytes are 0."""
    started = log.started
    if started is None:
        return None
    task, roofline = started.task, summary.roofline
    rows = [row for row in (*summary.tuned, *summary.held_out) if row.baseline_seconds is not None]
    workloads = [task.workload(row.workload) for row in rows]
    work = {one.name: (task.bytes_of(one), task.flops_of(one)) for one in workloads}
    if not rows or not all(moved > 0 for moved, _ in work.values()):
        return None
    peak = roofline.peak_flops.get(task.arithmetic)
    copy = roofline.peak_bandwidth
    classic = peak is not None and copy is not None and all(flops > 0 for _, flops in work.values())

    def place(workload: str, seconds: float) -> tuple[float, float]:
        moved, flops = work[workload]
        return (flops / moved, flops / seconds / 1e9) if classic else (moved / 2**20, moved / seconds / 1e9)

    points = []
    for row in rows:
        points.append(("baseline", "baseline", row.workload, row.baseline_seconds or 0.0))
        if row.general is not None:
            points.append(("general", "general configuration", row.workload, row.general.seconds))
        if row.best is not None and (row.general is None or (row.regret or 0.0) > 0):
            points.append(("best", "best for this shape", row.workload, row.best.seconds))
        for one in row.opponents:
            if one.seconds is not None:
                points.append(("opponent", f"{one.name} ({one.label})", row.workload, one.seconds))
    where = [place(workload, seconds) for *_, workload, seconds in points]
    copies = [] if classic else [(size / 2**20, rate / 1e9) for size, rate in roofline.bandwidth]
    xs, ys = [x for x, _ in (*where, *copies)], [y for _, y in (*where, *copies)]
    corners: list[tuple[float, float]] = []
    if classic and peak is not None and copy is not None:
        ridge = peak / copy
        across = axis_of("flop per byte", [*xs, ridge / 2, ridge * 2], log=True)
        corners = [(x, min(peak, copy * x) / 1e9) for x in (across.low, ridge, across.high)]
    else:
        across = axis_of("MiB that a launch must move", xs, log=True)
        if copy is not None:
            corners = [(x, copy / 1e9) for x in (across.low, across.high)]
    up = axis_of("GFLOP/s" if classic else "GB/s", [*ys, *(y for _, y in corners)], log=True)
    unit = "GFLOP/s" if classic else "GB/s"

    def at(x: float, y: float) -> tuple[float, float]:
        return across.place(x), round(100 - up.place(y), 2)

    return RoofPicture(
        across=across,
        up=up,
        kernels=tuple(
            Kernel(
                kind,
                workload,
                *at(x, y),
                f"{workload}, {name}: {rounded(seconds * 1e6)} us, {rounded(y)} {unit}",
            )
            for (kind, name, workload, seconds), (x, y) in zip(points, where, strict=True)
        ),
        roof=tuple(at(x, y) for x, y in corners),
        copies=tuple((*at(x, y), f"copy of {rounded(x)} MiB: {rounded(y)} GB/s") for x, y in copies),
        about=(
            f"{rounded((peak or 0.0) / 1e9)} GFLOP/s of {task.arithmetic} and {rounded((copy or 0.0) / 1e9)} GB/s"
            if classic
            else f"best copy {rounded((copy or 0.0) / 1e9)} GB/s"
        ),
        missing="" if corners else "No roof is drawn: none was measured, or a kernel beat it (see the caveats).",
    )
