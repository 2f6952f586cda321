"""Runs on simulated devices that tell more than times: those that make energy small, on one whose thriftiest
configuration is not its fastest; and opponents, when they are timed, and the table of what was found."""

import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from journal_rows import events, rows
from simulated_pool import SCALE_ADD, SimulatedPool, changed, seconds, tuned

from tunesmith.cli.measure import library
from tunesmith.cli.tables import print_summary
from tunesmith.graph.context import COUNTER_SECONDS, Context
from tunesmith.graph.journal.events import Compared, Evaluated
from tunesmith.graph.journal.log import Journal, quantities_of
from tunesmith.graph.settings import make_settings
from tunesmith.graph.setup import require_energy
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.probe import DeviceInfo
from tunesmith.hw.targets import resolve_target
from tunesmith.hw.telemetry import NoTelemetry
from tunesmith.kernels.measure.bench import WorkloadComparison
from tunesmith.kernels.measure.opponents import Encounter
from tunesmith.kernels.measure.timing import compare
from tunesmith.kernels.outcome import Energy, Evaluation
from tunesmith.kernels.spec.task import FunctionOpponent, KernelOpponent, Task
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
    monkeypatch.setattr("tunesmith.graph.setup.require_energy", lambda device, settings: None)


@pytest.mark.parametrize(("objective", "items"), [("time", 16), ("energy", 1), ("edp", 4)])
def test_the_winner_is_the_least_in_what_was_asked(tmp_path: Path, objective: Any, items: int) -> None:
    summary = run(tmp_path / "run", objective=objective).summary
    assert summary.general is not None and summary.objective == objective
    found = [one.evaluation for one in events(tmp_path / "run", Evaluated)]
    right = [one for one in found if one.failure is None]
    (row,) = summary.tuned
    assert summary.general.config == min(right, key=lambda one: quantities_of(one, objective)[row.workload]).config
    assert summary.general.config["ITEMS"] == items


def test_both_quantities_of_the_finalists_are_told_with_their_front(tmp_path: Path, capsys: Any) -> None:
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


def test_without_a_gain_the_baseline_is_kept_and_without_energy_told(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(globals(), "joules", lambda config, workload: 1e-3)
    summary = run(tmp_path / "run", objective="energy").summary
    assert summary.sentence.startswith("No reliable gain: keep the baseline. Measured 1.00 times its energy")
    assert summary.dispatch == () and summary.dispatching is not None and summary.dispatching.lines == ("baseline",)
    monkeypatch.setattr("tunesmith.actors.pool.Pool", SimulatedPool)
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


def test_which_devices_have_an_energy_objective_is_known_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = DeviceInfo(backend="cuda", index=0, name="a test's GPU", limits=resolve_target("sm_90"), uuid="GPU-1")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for changes, joules, sentence in (
        ({"backend": "opencl"}, None, "is an OpenCL device.*choose an NVIDIA GPU"),
        ({"mig": True}, None, "slice of a GPU"),
        ({}, None, "a test's GPU has no energy counter that this user may read"),
        ({}, NoTelemetry("NVML was not found."), "--objective energy: NVML was not found; choose"),
        ({}, 5.0, ""),
    ):
        told = SimpleNamespace(joules=lambda joules=joules: joules)
        counter = joules if isinstance(joules, NoTelemetry) else nullcontext(told)
        monkeypatch.setattr("tunesmith.graph.setup.open_telemetry", lambda uuid, counter=counter: counter)
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


run_beside = partial(tuned, evaluations=20, rounds=2, strategy="default")
CHOICE = {"BLOCK": 64, "num_warps": 4}


class OpponentPool(SimulatedPool):
    asked: ClassVar[list[tuple[str, ...]]] = []

    def compare(
        self, baseline: Any, candidates: Sequence[Any], workload: str, *, opponents: Any = (), **more: Any
    ) -> WorkloadComparison:
        found = super().compare(baseline, candidates, workload, **more)
        self.asked.append(tuple(one.name for one in opponents))
        base, mine = [[20e-6]] * 5, [[10e-6]] * 5
        against = tuple(compare(base, mine) for _ in candidates)
        met = [Encounter(one.name, one.label, compare(mine, base), against, "", 9.5, CHOICE) for one in opponents]
        return replace(found, opponents=tuple(met))


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Task:
    """With two opponents, tuned on an OpponentPool."""
    OpponentPool.asked.clear()
    monkeypatch.setattr("tunesmith.actors.pool.Pool", OpponentPool)
    made = {"source": "def f(): pass", "function": "f", "framework": "numpy"}
    others = (
        FunctionOpponent(name="near", label="eager", **made),
        FunctionOpponent(name="far", label="compiled", on_request=True, **made),
    )
    return load_task(SCALE_ADD).model_copy(update={"opponents": others})


@pytest.mark.parametrize(("which", "names"), [("usual", ("near",)), ("all", ("near", "far")), ("none", ())])
def test_only_the_last_test_times_them(task: Task, tmp_path: Path, which: str, names: tuple[str, ...]) -> None:
    summary = run_beside(tmp_path / "run", task, opponents=which).summary
    stages = [row.stage for row in rows(tmp_path / "run", "comparison")]
    timed = [asked for asked, stage in zip(OpponentPool.asked, stages, strict=True) if stage == "round-2"]
    earlier = [asked for asked, stage in zip(OpponentPool.asked, stages, strict=True) if stage == "round-1"]
    assert timed and set(timed) == {names} and set(earlier) <= {()}
    for row in (*summary.tuned, *summary.held_out):
        assert tuple(one.name for one in row.opponents) == names
        assert {one.remark for one in row.opponents} <= {"chose BLOCK=64, num_warps=4 in 9.5 s"}
    said = "far (compiled; chose BLOCK=64" in (tmp_path / "run" / "report.html").read_text()
    assert said == ("far" in names)


def test_where_the_verdict_ends_the_run_they_are_timed_after_it(task: Task, tmp_path: Path, monkeypatch: Any) -> None:
    def done(context: Any, number: int, verdict: Any) -> str:
        return "floor" if verdict is not None else ""

    monkeypatch.setattr("tunesmith.graph.roles.tester._done", done)
    summary = run_beside(tmp_path / "run", task).summary
    half = len(OpponentPool.asked) // 2
    assert set(OpponentPool.asked[:half]) == {()} and set(OpponentPool.asked[half:]) == {("near",)}
    assert all([one.name for one in row.opponents] == ["near"] for row in summary.tuned)


def test_the_table_has_labels_with_intervals(task: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = json.loads(json.dumps(run_beside(tmp_path / "run", task, opponents="all").summary.to_json()))
    summary["tuned"][0]["opponents"][1] |= {"seconds": None, "ratio": None, "why": "it raises ModuleNotFoundError: no"}
    files = []
    for name in ("scale_add", "another"):
        files.append(str(tmp_path / f"{name}.json"))
        Path(files[-1]).write_text(json.dumps({"runs": {name: summary}}))
    assert library.main(["--table", *files]) == 0
    lines = capsys.readouterr().out.splitlines()
    headings = ["floor", "plain", "vendor library", *library.LABELS[1:], "general", "best |"]
    assert lines[0].split(" | ")[2:] == headings
    row = next(line for line in lines if line.startswith("| another |")).strip("| ").split(" | ")
    assert row[3:8] == ["20.00", "-", "-", "10.00 (0.50x, 0.50 - 0.50)", "-"]
    assert row[8].endswith(")") and "x, " in row[9]
    assert "- Not timed: another, far (compiled): it raises ModuleNotFoundError: no" in lines[-2]


def test_the_list_among_which_triton_chooses_is_measured_first(task: Task, tmp_path: Path) -> None:
    sources = task.sources("opencl")
    template = sources.templates[0]
    listed = [
        {**template.default_config, one.name: value} for one in template.parameters for value in (one.values[-1],)
    ]
    opponent = KernelOpponent(name="list", label="production", template=template, configs=tuple(listed))
    beside = sources.model_copy(update={"opponents": (opponent,)})
    of = task.model_copy(update={"backends": {"opencl": beside}, "opponents": ()})
    run_beside(tmp_path / "run", of, rounds=1)
    asked = [row.data["config"] for row in rows(tmp_path / "run", "asked")]
    wanted = [one for one in (template.default_config, *listed) if one in asked]
    assert len(wanted) > 1 and asked[: len(wanted)] == list(map(dict, wanted))
