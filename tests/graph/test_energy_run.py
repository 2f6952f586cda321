"""Runs that make energy small, on a simulated device whose thriftiest configuration is not its fastest."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from journal_rows import events
from simulated_pool import SCALE_ADD, SimulatedPool, changed, seconds, tuned

from tunesmith.cli.view.tables import print_summary
from tunesmith.graph.context import COUNTER_SECONDS, Context
from tunesmith.graph.journal.events import Compared, Evaluated
from tunesmith.graph.journal.log import quantities_of
from tunesmith.graph.journal.store import Journal
from tunesmith.graph.settings import make_settings
from tunesmith.graph.setup import require_energy
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.probe import DeviceInfo
from tunesmith.hw.targets import resolve_target
from tunesmith.hw.telemetry import NoTelemetry
from tunesmith.kernels.measure.bench import WorkloadComparison
from tunesmith.kernels.outcome import Energy, Evaluation
from tunesmith.kernels.spec.taskfile import load_task

pytestmark = pytest.mark.usefixtures("simulation", "energy_known")
run = partial(tuned, evaluations=60, rounds=1, strategy="exhaustive")


def joules(config: dict[str, Any], workload: str) -> float:
    """The fewer elements a work-item has, the less; the fastest has 16, the thriftiest one."""
    return 1e-3 if not config else (0.2 + config["ITEMS"] / 100 + seconds(config, workload)) * 1e-3


def energy_of(config: dict[str, Any], workload: str) -> Energy:
    return Energy(joules(config, workload), 0.3, 1000, 0.01, 1.5e9)


class EnergyPool(SimulatedPool):
    def _evaluate(self, request: Any) -> Evaluation:
        found = super()._evaluate(request)
        return changed(found, lambda name, one: replace(one, energy=energy_of(request.config, name)))

    def compare(self, baseline: Any, candidates: Sequence[Any], workload: str, **more: Any) -> WorkloadComparison:
        found = super().compare(baseline, candidates, workload, **more)
        energies = tuple(energy_of(one.config, workload) for one in (baseline, *candidates))
        return replace(found, energies=energies)


POOL = EnergyPool


@pytest.fixture
def energy_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunesmith.graph.run.require_energy", lambda device, settings: None)


@pytest.mark.parametrize(("objective", "items"), [("time", 16), ("energy", 1), ("edp", 4)])
def test_the_winner_is_the_least_in_what_was_asked(tmp_path: Path, objective: Any, items: int) -> None:
    summary = run(tmp_path / "run", objective=objective).summary
    assert summary.general is not None and summary.objective == objective
    found = [one.evaluation for one in events(tmp_path / "run", Evaluated)]
    right = [one for one in found if one.failure is None]
    (row,) = summary.tuned
    assert summary.general.config == min(right, key=lambda one: quantities_of(one, objective)[row.workload]).config
    assert summary.general.config["ITEMS"] == items


def test_both_quantities_of_the_finalists_are_told_with_their_front(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = run(tmp_path / "run", objective="energy").summary
    (row,) = summary.tuned
    assert row.general is not None and summary.general is not None and row.baseline_joules == 1e-3
    assert row.general.joules == joules(summary.general.config, row.workload)
    assert summary.energy_ratio == pytest.approx(row.general.joules / row.baseline_joules)
    assert summary.ratio == pytest.approx(row.general.ratio)
    assert len(summary.front) == 5 and any(one.best for one in summary.front)
    places = [(one.ratio, one.energy_ratio) for one in summary.front]
    for point, (time, energy) in zip(summary.front, places, strict=True):
        assert point.best == all(t > time or e > energy or (t, e) == (time, energy) for t, e in places)
    assert summary.sentence.startswith("Less energy than the baseline on the tuned workload: 0.2")
    assert summary.dispatch and summary.dispatch[0].energy_ratio == pytest.approx(summary.energy_ratio)
    assert summary.dispatching is not None and summary.dispatching.lines == ("general",)
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    front = page[page.index("Time against energy") :].partition("</table>")[0]
    assert front.count("<tr>") == 1 + len(summary.front) and front.count(", chosen") == 1
    assert ">None<" not in page
    print_summary(summary, tmp_path / "run")
    told = capsys.readouterr().out
    assert "Time and energy over the baseline's" in told and f"{summary.front[0].energy_ratio:.3f}" in told


def test_without_a_gain_the_baseline_is_kept_and_a_device_that_tells_no_energy_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "joules", lambda config, workload: 1e-3)
    summary = run(tmp_path / "run", objective="energy").summary
    assert summary.sentence.startswith("No reliable gain: keep the baseline. Measured 1.00 times its energy")
    assert summary.dispatch == ()
    assert summary.dispatching is not None and summary.dispatching.lines == ("baseline",)
    monkeypatch.setattr("tunesmith.actors.pool.pool.Pool", SimulatedPool)
    with pytest.raises(TunesmithError, match=r"The energy of the baseline could not be measured on .*--objective time"):
        run(tmp_path / "without", objective="energy")


def test_where_finalists_have_no_energy_the_fastest_is_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EnergyPool, "compare", SimulatedPool.compare)
    summary = run(tmp_path / "run", objective="energy").summary
    (row,) = summary.tuned
    assert summary.energy_ratio is None and row.general is not None and row.best is not None
    finalists = [one.config for one in events(tmp_path / "run", Compared)[-1].entries]
    assert row.best.config == min(finalists, key=lambda config: seconds(config, row.workload))
    assert row.general.ratio == row.best.ratio < 0.99 * max(seconds(one, row.workload) for one in finalists) / 20e-6


@pytest.mark.parametrize(
    ("changes", "joules", "sentence"),
    [
        ({"backend": "opencl"}, None, "is an OpenCL device.*choose an NVIDIA GPU"),
        ({"mig": True}, None, "slice of a GPU"),
        ({}, None, "a test's GPU has no energy counter that this user may read"),
        ({}, NoTelemetry("NVML was not found."), "--objective energy: NVML was not found; choose"),
        ({}, 5.0, ""),
    ],
)
def test_which_devices_have_an_energy_objective_is_known_at_the_start(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], joules: Any, sentence: str
) -> None:
    gpu = DeviceInfo(backend="cuda", index=0, name="a test's GPU", limits=resolve_target("sm_90"), uuid="GPU-1")
    counter = joules if isinstance(joules, NoTelemetry) else nullcontext(SimpleNamespace(joules=lambda: joules))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("tunesmith.graph.setup.open_telemetry", lambda uuid: counter)
    with pytest.raises(TunesmithError, match=sentence) if sentence else nullcontext():
        require_energy(replace(gpu, **changes), make_settings(task="any", objective="energy"))
    require_energy(gpu, make_settings(task="any"))


def test_a_time_limit_leaves_room_for_the_energies_of_finalists(tmp_path: Path, device: Any) -> None:
    left, options = {}, {"time_limit": 1000, "finalists": 9, "energy_window": 2.0}
    with Journal(tmp_path / "run", create=True) as journal:
        for objective in ("time", "energy"):
            settings = make_settings(task=str(SCALE_ADD), objective=objective, **options)
            context = Context(load_task(SCALE_ADD), device, (device.limits,), settings, journal, EnergyPool)
            left[objective] = context.search_seconds_left()
    # Ten kernels on each of two workloads.
    assert left["time"] - left["energy"] == pytest.approx(20 * (2.0 + COUNTER_SECONDS), abs=0.5)
    assert [make_settings(task="any", objective=one).energy_seconds for one in ("time", "edp")] == [0.0, 0.25]
