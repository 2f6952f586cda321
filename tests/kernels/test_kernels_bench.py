"""Measurements, on PoCL and pretended clocks: what a visit makes of floors, energy between two moves of a counter,
samples whose data is gone from the last cache, a CPU's roofs; comparisons, in which equal kernels are not called
different."""

import itertools
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from compiling import visit
from hypothesis import given
from hypothesis import strategies as st

from tunesmith.hw.probe import probe_cuda
from tunesmith.hw.roofline import MAX_ROOFLINE_SHARE
from tunesmith.hw.telemetry import NoTelemetry, Telemetry, harmful
from tunesmith.kernels.backends import BoundLaunch, open_compiler, open_device
from tunesmith.kernels.backends.opencl import OpenclCompiler, OpenclDevice
from tunesmith.kernels.build.artifact import Artifact, Candidate
from tunesmith.kernels.build.source import Specialised
from tunesmith.kernels.launch.buffers import MAX_COLD_MULTIPLE, RED_ZONE, WorkloadData
from tunesmith.kernels.measure import timing as measuring
from tunesmith.kernels.measure.bench import Bench, ComparisonRequest, energy_between, measure_energy
from tunesmith.kernels.measure.roofs import compile_probes, measure_roofline
from tunesmith.kernels.measure.timing import Comparison, Precision, compare, interleaved, sample_until
from tunesmith.kernels.outcome import Implausible, Measured
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.task import Geometry
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


def test_a_time_below_the_floor_is_an_error(bench: Any, candidate: Any, monkeypatch: Any, pretended_clock: Any) -> None:
    """Not one a little below, on a processor: others may have used its memory while the floor was measured."""
    pretended_clock(1e-3)
    # Some processors' last cache holds all sets of so small a task: then no time is too short.
    monkeypatch.setattr(bench, "limits", replace(bench.limits, l2_bytes=1 << 20))
    fine = visit(bench, candidate)
    assert isinstance(fine, Measured) and isinstance(visit(bench, candidate, floor=fine.low), Measured)
    wrong = visit(bench, candidate, floor=100 * fine.high)
    assert isinstance(wrong, Implausible) and "work is left out" in wrong.detail
    pretended_clock(3e-5)
    usual, device = visit(bench, candidate), bench.device
    for said in (1.0, 1e-9):
        monkeypatch.setattr(device, "once", lambda one, said=said: device.times([device.sequence([one])]) and said)
        misled = visit(bench, candidate)
        assert isinstance(usual, Measured) and isinstance(misled, Measured)
        assert usual.launches / 3 <= misled.launches <= 3 * usual.launches


def test_lines_kept_in_the_last_cache_are_given_up(device: Any, bench: Bench, candidate: Any, monkeypatch: Any) -> None:
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


def test_where_launches_touch_a_part_of_their_arrays_there_are_more_sets(bench: Bench, monkeypatch: Any) -> None:
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


def test_compared_blocks_have_own_layouts(bench: Bench, candidate: Any, monkeypatch: Any, pretended_clock: Any) -> None:
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


WATTS = 200.0
STEP = 0.02
"""Seconds between two moves of the pretended counter."""


class Counter:
    """Telemetry of a device that always takes `WATTS`, whose counter moves every `STEP` seconds."""

    def __init__(self) -> None:
        self._read = threading.local()

    def joules(self) -> float | None:
        self._read.at = time.perf_counter()
        return WATTS * STEP * math.floor(self._read.at / STEP)

    def clock(self) -> float:
        """The time; once after each reading, that of the reading, as on a busy machine its thread may wait between."""
        at: float | None = self._read.__dict__.pop("at", None)
        return time.perf_counter() if at is None else at

    def sample(self, *, energy: bool = False) -> Telemetry:
        return Telemetry(1.5e9, None, WATTS, None, None, None)


def test_energy_is_that_of_launches_between_moves_of_the_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two launches a second, one of which ends at 0.5; the window is from 1.0 to 3.0, in which four end."""
    moves = [(1.0, 10.0, 0.01), (2.0, 30.0, 0.01), (3.0, 50.0, 0.03)]
    found = energy_between(moves, [(0.0, 0), (2.5, 5), (4.0, 8)])
    assert (found.joules, found.seconds, found.launches) == (pytest.approx(10.0), 2.0, 4)
    assert found.error == pytest.approx(0.02)
    # Work that stood still for a while costs its idle energy, and no launch is counted for it.
    assert energy_between(moves, [(0.0, 0), (1.0, 2), (2.9, 2), (3.0, 4)]).joules == pytest.approx(20.0)
    assert energy_between([(0.2, 1.0, 0.0), (0.8, 2.0, 0.0)], [(0.0, 0), (1.0, 0)]) is None, "no launches"

    def run() -> int:
        time.sleep(0.005)
        return 10

    counter = Counter()
    found = measure_energy(run, counter.joules, 0.1, clock=counter.clock)
    assert found is not None and found.seconds >= 0.1
    watts = found.joules * found.launches / found.seconds
    # A part of a launch at either end is rounded away.
    assert watts == pytest.approx(WATTS, rel=found.error + 2 / found.launches + 1e-6)
    # A counter that stands still or is missing is given up.
    monkeypatch.setattr("tunesmith.kernels.measure.bench.PATIENCE_SECONDS", 0.05)
    runs = []

    def run() -> int:
        runs.append(1)
        time.sleep(0.001)
        return 1

    assert measure_energy(run, lambda: 5.0, 0.05) is None and measure_energy(run, lambda: None, 0.05) is None
    assert len(runs) > 3


def test_visits_and_comparisons_report_energy_where_asked(bench: Bench, candidate: Candidate, monkeypatch: Any) -> None:
    def compared(**energy: float) -> Any:
        name = bench.task.workloads[0].name
        return bench.compare(ComparisonRequest(candidate, [candidate], name, 3, 0.05, **energy)).energies

    monkeypatch.setattr(bench, "_telemetry", Counter())
    plain, found = visit(bench, candidate), visit(bench, candidate, energy_seconds=0.1)
    assert plain.energy is None and found.energy.seconds >= 0.1 and found.energy.sm_clock_hz == 1.5e9
    assert found.quantity("time") == found.seconds and found.quantity("energy") == found.energy.joules
    assert found.quantity("edp") == found.seconds * found.energy.joules
    assert len(of_both := compared(energy_seconds=0.1)) == 2 and all(one.joules > 0 for one in of_both)
    assert compared() == ()
    monkeypatch.setattr(bench, "_telemetry", NoTelemetry("there is none"))
    blind = visit(bench, candidate, energy_seconds=0.1)
    assert isinstance(blind, Measured) and blind.energy is None and blind.quantity("edp") is None


def recorder(ran: list[int], timed: list[range]) -> Any:
    """A device on which a launch is the number of its set. ran: launches, in order; timed: places of samples there."""

    def times(sequences: Sequence[Any]) -> list[float]:
        for one in sequences:
            timed.append(range(len(ran), len(ran) + len(one)))
            ran.extend(one)
        return [1e-6 * len(one) for one in sequences]

    return SimpleNamespace(sequence=list, times=times)


@given(
    sets=st.integers(1, 30),
    seconds=st.floats(1e-6, 1e-2),
    asked=st.lists(st.integers(1, 7), min_size=1, max_size=8),
    checked=st.integers(0, 29),
    rounds=st.booleans(),
    checked_before=st.booleans(),
)
def test_no_launch_that_is_timed_is_on_what_has_just_run(
    sets: int, seconds: float, asked: list[int], checked: int, rounds: bool, checked_before: bool
) -> None:
    """Half of the sets, or more, come between two launches on one. There are sets for three times the last cache."""
    ran, timed, window = list[int](), list[range](), measuring.window_for(seconds, sets, 1e-4, rounds=rounds)
    rotation = measuring.Rotation(recorder(ran, timed), list[Any](range(sets)), window, checked % sets)
    if checked_before:
        rotation.run_first()
    assert [len(rotation.take(count)) for count in asked] == asked
    del timed[0]  # `run_first` is not timed
    timed_at = {at for sample in timed for at in sample}
    last = dict[int, int]()
    for at, index in enumerate(ran):
        if index in last and at in timed_at:
            assert len(set(ran[last[index] + 1 : at])) >= sets // 2 - 1, f"{ran[:at]} and then {index}"
        last[index] = at
    for sample in timed:
        launched = [ran[at] for at in sample]
        assert len(launched) == rotation.window == window
        assert launched.count(launched[-1]) == 1, "what is checked is the result of one launch"
    assert rotation.last_set == launched[-1] and len(timed) == sum(asked)


CHASE = (Path(__file__).with_name("sources") / "chase.cu").read_text()
LINES = 1 << 16


@pytest.mark.gpu
@pytest.mark.parametrize("count", [1, 6])
def test_a_sample_on_a_gpu_is_cold_from_the_first_on(count: int) -> None:
    """Sets are small against the last cache, and a sample takes few of them: the first of a set is as slow as after all
    of the cache was overwritten, and clearly slower than on what has just run."""
    here = probe_cuda().devices[0]
    device = open_device(here.limits, here.index)
    artifact = open_compiler(here.limits).compile(Specialised("cuda", "chase", CHASE))
    assert isinstance(artifact, Artifact)
    kernel = device.load(artifact)
    rng = np.random.default_rng(0)
    nbytes = LINES * 128
    out = device.allocate(4096)
    launches = []
    for _ in range(math.ceil(device.cold_bytes / nbytes) + 1):
        order = rng.permutation(LINES).astype(np.uint32)
        following = np.zeros((LINES, 32), np.uint32)
        following[order, 0] = np.roll(order, -1) * 32
        buffer = device.allocate(nbytes)
        device.write(buffer, following.view(np.uint8).reshape(-1))
        launches.append(BoundLaunch(kernel, Geometry((1, 1, 1), (32, 1, 1)), (buffer, out, np.int32(400))))
    flush = device.allocate(2 * device.cold_bytes)
    overwritten, again = device.allocate(device.cold_bytes), device.sequence([launches[0]])
    cold, warm = [], []
    for _ in range(9):
        device.copy(overwritten, device.view(flush, 0, device.cold_bytes))
        cold += device.times([again])
        warm += device.times([again])
    assert np.median(warm) < 0.8 * np.median(cold), "the kernel shows where its data come from"
    rotation = measuring.Rotation(device, launches, 1)
    samples = [one for _ in range(6 // count) for one in rotation.take(count)]
    assert np.median(samples) == pytest.approx(np.median(cold), rel=0.1)


COUNT = 1 << 22
"""Elements of the elementwise kernel."""
SCALE = """__kernel void scale(__global const float* x, __global float* y, float a) {
    y[get_global_id(0)] = a * x[get_global_id(0)];
}"""


@pytest.fixture(scope="module")
def opened(device):
    return open_device(device.limits, device.index), OpenclCompiler(device.index)


def seconds(opened, entry: str, source: str, count: int, blocks: int, threads: int, *arguments) -> list[float]:
    """Sorted samples of a kernel on `count` sets of its arguments, of which arrays are given by their bytes."""
    launched, compiler = opened
    artifact = compiler.compile(Specialised("opencl", entry, source))
    assert isinstance(artifact, Artifact)
    kernel, geometry = launched.load(artifact), Geometry((blocks, 1, 1), (threads, 1, 1))
    sets = [tuple(launched.allocate(one) if isinstance(one, int) else one for one in arguments) for _ in range(count)]
    sequence = launched.sequence([BoundLaunch(kernel, geometry, one) for one in sets])
    launched.times([sequence])
    return [one / count for one in sorted(launched.times([sequence] * 7))]


def test_every_probe_gives_a_roof_that_no_kernel_beats(opened):
    probes = compile_probes(opened[1], "opencl")
    roofs = measure_roofline(opened[0], probes)
    assert len(probes) == 5
    assert roofs.peak_bandwidth and roofs.peak_flops["float32"] and roofs.launch_seconds
    count = 3 + opened[0].cold_bytes // (8 * COUNT)
    taken = seconds(opened, "scale", SCALE, count, COUNT // 256, 256, 4 * COUNT, 4 * COUNT, np.float32(0.5))[3]
    assert roofs.bound(8 * COUNT, COUNT, "float32") == "memory"
    assert roofs.floor_seconds(8 * COUNT, COUNT, "float32") <= 1.05 * taken
    kept, reasons = roofs.without_beaten({"scale": (taken, (8 * COUNT, COUNT, "float32"))})
    assert kept == roofs and not reasons
    # Sixteen chains of scalars, as a plain kernel has them, do not beat the peak.
    steps = "".join(f"x{c} = x{c} * a + b;" for c in range(8))
    starts = "".join(f"float x{c} = a + {c};" for c in range(8))
    sums = " + ".join(f"x{c}" for c in range(8))
    source = f"""__kernel void plain(__global float* y, float a, float b) {{
        {starts} for (int s = 0; s < 512; ++s) {{ {steps} }} y[get_global_id(0)] = {sums};
    }}"""
    taken = seconds(opened, "plain", source, 1, 64, 64, 4 * 64 * 64, np.float32(0.5), np.float32(0.25))[0]
    assert 2.0 * 64 * 64 * 8 * 512 / taken <= MAX_ROOFLINE_SHARE * roofs.peak_flops["float32"]


def noisy(rng: np.random.Generator, noise: float, drift: list[float], seconds: float = 1.0) -> Callable[[], float]:
    """A kernel with jitter, rare outliers, and a drift shared with others."""

    def sample() -> float:
        drift[0] += rng.normal(0, noise * 0.2)
        outlier = abs(rng.normal(0, 10 * noise)) if rng.random() < 0.03 else 0.0
        return float(seconds * (1 + rng.normal(0, noise) + drift[0] + outlier))

    return sample


def kernel(
    rng: np.random.Generator, noise: float, drift: list[float], seconds: float = 1.0, placement: float = 0.0
) -> Callable[[], Callable[[], float]]:
    """Loads a `noisy` kernel; each time it comes to lie elsewhere and is faster or slower for it by `placement`."""
    return lambda: noisy(rng, noise, drift, seconds * (1 + rng.normal(0, placement)))


def test_comparisons_find_two_per_cent_and_end_at_their_target_or_budget() -> None:
    for noise, placement, slower, comparisons, least, most in (
        # One in a hundred equal ones is meant to be called different, 1.5 where sampling stops by the width.
        (0.002, 0.0, 1.0, 200, 0.0, 0.03),
        (0.01, 0.003, 1.0, 200, 0.0, 0.03),
        (0.005, 0.0, 1.02, 50, 0.95, 1.0),
    ):
        rng, verdicts = np.random.default_rng(1), list[str]()
        for seed in range(comparisons):
            drift = [0.0]
            pair = [kernel(rng, noise, drift, seconds, placement) for seconds in (1.0, slower)]
            samples = interleaved(pair, rounds=40, seed=seed, budget_seconds=1e9, target=0.005)
            verdicts.append(compare(samples[1], samples[0]).verdict)
        different = verdicts.count("slower") + (verdicts.count("faster") if slower == 1 else 0)
        assert least <= different / comparisons <= most

    def samples(noise: float, rounds: int = 40, budget: float = 1e9, **more: Any) -> Any:
        return interleaved([kernel(rng, noise, [0.0])] * 2, rounds=rounds, seed=0, budget_seconds=budget, **more)

    rng = np.random.default_rng(3)
    assert samples(1e-4, target=0.005)[0].shape == (measuring.MIN_BLOCKS, measuring.BLOCK_ROUNDS)
    longest = math.ceil(40 * measuring.MAX_ROUNDS_FACTOR / measuring.BLOCK_ROUNDS)
    assert len(samples(0.2, target=0.005)[0]) == longest
    assert len(samples(0.2)[0]) == math.ceil(40 / measuring.BLOCK_ROUNDS)
    ticks, rng = itertools.count(), np.random.default_rng(5)
    first, second = samples(0.1, 400, 5.0, clock=lambda: next(ticks) * 10.0)
    assert len(first) == 3, "with its budget it ends after three blocks"
    wide, narrow = compare(second, first), compare(second[:, :1], second[:, :1])
    assert wide.half_width > 0.02 and narrow.half_width == 0.0
    # Every block loads each kernel once, in orders that vary.
    loads, order = list[int](), list[int]()

    def load(number: int) -> Callable[[], float]:
        loads.append(number)
        return lambda: order.append(number) or 1.0

    samples = interleaved([partial(load, at) for at in range(3)], rounds=30, seed=0, budget_seconds=1e9)
    assert [sorted(loads[at : at + 3]) for at in range(0, len(loads), 3)] == [[0, 1, 2]] * len(samples[0])
    assert len({tuple(order[at : at + 3]) for at in range(0, len(order), 3)}) == 6


def test_a_clear_loser_is_dropped_and_settings_are_no_throttling() -> None:
    sample = noisy(np.random.default_rng(4), 0.01, [0.0])
    precision = Precision(target=1e-5, min_samples=7, budget_seconds=1e9)
    lost, close = (
        sample_until(lambda count: [sample() for _ in range(count)], replace(precision, give_up_above=above))
        for above in (0.5, 1.5)
    )
    assert lost.dropped and lost.samples == precision.min_samples
    assert not close.dropped and close.samples == precision.max_samples
    sample = Telemetry(1.5e9, None, 300.0, None, 60.0, ("applications_clocks_setting", "hw_thermal_slowdown"))
    assert harmful(sample) == ("hw_thermal_slowdown",) and harmful(NoTelemetry("none here")) == ()
    assert sample.figures() == {"sm_clock_hz": 1.5e9, "power_w": 300.0, "temperature_c": 60.0}


@pytest.mark.parametrize(
    "expected, budget, first", [(0.01, 1.0, 6), (0.2, 1.0, 1), (math.inf, 1.0, 1), (0.01, math.inf, 6)]
)
def test_samples_that_are_taken_in_any_case_are_taken_together(expected: float, budget: float, first: int) -> None:
    counts: list[int] = []

    def sample(count: int) -> list[float]:
        counts.append(count)
        return [float(1 + at % 2) for at in range(sum(counts) - count, sum(counts))]

    precision = Precision(min_samples=6, max_samples=9, budget_seconds=budget)
    found = sample_until(sample, precision, lambda: 0.0, expected=expected)
    assert counts[0] == first and set(counts[1:]) == {1} and sum(counts) == found.samples == 9


@pytest.mark.parametrize(
    ("ratio", "noise", "trials", "found"),
    [(1.0, 0.05, 300, 0.0), (1.0, 0.5, 300, 0.0), (0.85, 0.01, 30, 0.0), (0.3, 0.3, 100, 0.95), (0.7, 0.05, 100, 0.95)],
)
def test_much_shorter_is_what_nearly_all_pairs_say(ratio: float, noise: float, trials: int, found: float) -> None:
    """noise: standard deviation of a time's logarithm."""
    rng, pairs = np.random.default_rng(2), 0

    def pair() -> tuple[float, float]:
        nonlocal pairs
        pairs += 1
        first, second = np.exp(noise * rng.standard_normal(2))
        return float(ratio * first), float(second)

    answers = [measuring.much_shorter(pair, math.inf) for _ in range(trials)]
    assert sum(one is not None for one in answers) >= found * trials
    assert found or answers.count(None) == trials
    if ratio == 1:
        assert pairs < 15 * trials
    assert measuring.much_shorter(lambda: (0.1, 1.0), 0.0) is None, "no time"
