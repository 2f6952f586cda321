"""Energy: a window between two moves of a counter, on a pretended counter, without a device and with PoCL's."""

from __future__ import annotations

import math
import threading
import time

import pytest
from compiling import visit

from tunesmith.hw.telemetry import NoTelemetry, Telemetry
from tunesmith.kernels.build.artifact import Candidate
from tunesmith.kernels.measure.bench import Bench, ComparisonRequest
from tunesmith.kernels.measure.energy import Move, energy_between, measure_energy
from tunesmith.kernels.outcome import Measured

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


def test_launches_are_counted_from_move_to_move() -> None:
    """Two launches a second, one of which ends at 0.5; the window is from 1.0 to 3.0, in which four end."""
    moves = [Move(1.0, 10.0, 0.01), Move(2.0, 30.0, 0.01), Move(3.0, 50.0, 0.03)]
    found = energy_between(moves, [(0.0, 0), (2.5, 5), (4.0, 8)])
    assert (found.joules, found.seconds, found.launches) == (pytest.approx(10.0), 2.0, 4)
    assert found.error == pytest.approx(0.02)
    # Work that stood still for a while costs its idle energy, and no launch is counted for it.
    assert energy_between(moves, [(0.0, 0), (1.0, 2), (2.9, 2), (3.0, 4)]).joules == pytest.approx(20.0)


def test_without_launches_there_is_no_energy() -> None:
    assert energy_between([Move(0.2, 1.0, 0.0), Move(0.8, 2.0, 0.0)], [(0.0, 0), (1.0, 0)]) is None


def test_a_window_is_as_long_as_was_asked_and_its_energy_within_its_error() -> None:
    def run() -> int:
        time.sleep(0.005)
        return 10

    counter = Counter()
    found = measure_energy(run, counter.joules, 0.1, clock=counter.clock)
    assert found is not None and found.seconds >= 0.1
    watts = found.joules * found.launches / found.seconds
    # A part of a launch at either end is rounded away.
    assert watts == pytest.approx(WATTS, rel=found.error + 2 / found.launches + 1e-6)


def test_a_counter_that_stands_still_or_is_missing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunesmith.kernels.measure.energy.PATIENCE_SECONDS", 0.05)
    runs = []

    def run() -> int:
        runs.append(1)
        time.sleep(0.001)
        return 1

    assert measure_energy(run, lambda: 5.0, 0.05) is None
    assert measure_energy(run, lambda: None, 0.05) is None
    assert len(runs) > 3


def test_a_visit_reports_energy_beside_time_where_it_was_asked(
    bench: Bench, candidate: Candidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "_telemetry", Counter())
    plain = visit(bench, candidate)
    assert isinstance(plain, Measured) and plain.energy is None
    found = visit(bench, candidate, energy_seconds=0.1)
    assert isinstance(found, Measured) and found.energy is not None
    assert found.energy.seconds >= 0.1 and found.energy.sm_clock_hz == 1.5e9
    assert found.quantity("time") == found.seconds and found.quantity("energy") == found.energy.joules
    assert found.quantity("edp") == found.seconds * found.energy.joules
    monkeypatch.setattr(bench, "_telemetry", NoTelemetry("there is none"))
    blind = visit(bench, candidate, energy_seconds=0.1)
    assert isinstance(blind, Measured) and blind.energy is None and blind.quantity("edp") is None


def test_a_comparison_has_energy_of_all(bench: Bench, candidate: Candidate, monkeypatch: pytest.MonkeyPatch) -> None:
    name = bench.task.workloads[0].name
    monkeypatch.setattr(bench, "_telemetry", Counter())
    found = bench.compare(ComparisonRequest(candidate, [candidate], name, 3, 0.05, energy_seconds=0.1))
    assert len(found.energies) == 2 and all(one is not None and one.joules > 0 for one in found.energies)
    assert bench.compare(ComparisonRequest(candidate, [candidate], name, 3, 0.05)).energies == ()
