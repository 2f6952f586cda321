"""A bench on PoCL: what a visit makes of floors, and of a first launch that says little about the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from compiling import visit

from tunesmith.kernels.backends.opencl import OpenclDevice
from tunesmith.kernels.build.artifact import Candidate
from tunesmith.kernels.launch.buffers import MAX_COLD_MULTIPLE, RED_ZONE, WorkloadData
from tunesmith.kernels.measure.bench import Bench, ComparisonRequest
from tunesmith.kernels.measure.timing import Comparison
from tunesmith.kernels.outcome import Implausible, Measured
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.taskfile import load_task


@pytest.fixture
def pretended_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Has each launch take that many seconds, as launches of the same length do not on a busy machine."""
    times = OpenclDevice.times

    def set_clock(each: float) -> None:
        def pretended(device: OpenclDevice, sequences: Sequence[Any]) -> list[float]:
            times(device, sequences)
            return [len(one) * each for one in sequences]

        monkeypatch.setattr(OpenclDevice, "times", pretended)

    return set_clock


def test_a_time_far_below_the_floor_is_an_error(
    bench: Bench, candidate: Candidate, monkeypatch: pytest.MonkeyPatch, pretended_clock: Callable[[float], None]
) -> None:
    """Not one a little below, on a processor: others may have used its memory while the floor was measured."""
    pretended_clock(1e-3)
    # Some processors' last cache holds all sets of so small a task: then no time is too short.
    monkeypatch.setattr(bench, "limits", replace(bench.limits, l2_bytes=1 << 20))
    fine = visit(bench, candidate)
    assert isinstance(fine, Measured)
    assert isinstance(visit(bench, candidate, floor=fine.low), Measured)
    wrong = visit(bench, candidate, floor=100 * fine.high)
    assert isinstance(wrong, Implausible) and "work is left out" in wrong.detail


@pytest.mark.parametrize("said", [1.0, 1e-9])
def test_a_first_launch_of_another_length_does_not_decide_that_of_samples(
    bench: Bench, candidate: Candidate, monkeypatch: pytest.MonkeyPatch, pretended_clock: Any, said: float
) -> None:
    pretended_clock(3e-5)
    usual = visit(bench, candidate)
    monkeypatch.setattr(
        bench.device, "once", lambda launch: bench.device.times([bench.device.sequence([launch])]) and said
    )
    misled = visit(bench, candidate)
    assert isinstance(usual, Measured) and isinstance(misled, Measured)
    assert usual.launches / 3 <= misled.launches <= 3 * usual.launches


def test_lines_that_a_candidate_keeps_in_the_last_cache_are_given_up_before_the_next_is_timed(
    device: Any, bench: Bench, candidate: Candidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing is reset for others: a reset makes launches take longer."""
    bench = Bench(bench.task, device.limits, device.index)
    resets: list[str] = []
    timing = ["nothing"]
    monkeypatch.setattr(bench.device, "reset_cache", lambda: resets.append(timing[-1]))
    source = "// asm: ld.global.L2::evict_last\n" + candidate.template.source
    keeping = replace(candidate, template=candidate.template.model_copy(update={"source": source}))
    for name, one in (("first", candidate), ("keeping", keeping), ("next", candidate), ("last", candidate)):
        timing.append(name)
        assert isinstance(visit(bench, one), Measured)
    assert resets == ["next"]


def test_where_launches_touch_a_part_of_their_arrays_there_are_more_sets(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = load_task("rope")  # a table of 2 MB, of which a launch reads a row for each token
    workload = task.workload("33x7x3x45")
    # Each token's query and key, read and written in place, its row of the table, and its position.
    touched = 33 * (10 * 90 * DTYPES[workload.types["T"]].size + 90 * 4 + 8)
    monkeypatch.setattr(bench.device, "cold_bytes", 40 * touched)
    data = WorkloadData(bench.device, task, workload, seed=0, max_bytes=1 << 28)
    assert data.touched_bytes == touched < data.set_bytes / 10
    assert data.sets == max(3, round(MAX_COLD_MULTIPLE * 40 * touched / data.set_bytes)) < 40
    monkeypatch.setattr(bench.device, "cold_bytes", 40 * data.set_bytes)
    assert WorkloadData(bench.device, task, workload, seed=0, max_bytes=1 << 28).sets > 80


def test_a_comparison_lays_arrays_out_anew_for_each_block_and_stays_right(
    bench: Bench, candidate: Candidate, monkeypatch: pytest.MonkeyPatch, pretended_clock: Callable[[float], None]
) -> None:
    monkeypatch.setattr(type(bench.device), "loads_quickly", True)
    layouts = []
    rearrange = WorkloadData.rearrange

    def seen(data: WorkloadData, rng: Any) -> None:
        rearrange(data, rng)
        ordered = sorted(data.places, key=lambda place: place.offset)
        ends = [0, *(place.offset + place.nbytes for place in ordered)]
        starts = [*(place.offset for place in ordered), data.set_bytes]
        assert all(start - end >= RED_ZONE for end, start in zip(ends, starts, strict=True))
        assert all(place.offset % 16 == 0 for place in ordered)
        layouts.append(tuple(place.offset for place in data.places))

    monkeypatch.setattr(WorkloadData, "rearrange", seen)
    pretended_clock(1e-3)  # A sample is a few launches.
    compared = bench.compare(ComparisonRequest(candidate, [candidate], bench.task.workloads[0].name, 12, 1.0))
    assert isinstance(compared.results[0], Comparison), compared
    assert len(layouts) >= 3 and len(set(layouts)) > 1
    assert isinstance(visit(bench, candidate), Measured)
