"""Which configurations meet the baseline again: a general one must be feasible on the held-out workloads as well."""

from __future__ import annotations

import json
import math
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from simulated_pool import SCALE_ADD, SimulatedPool, tuned

from tunesmith.cli.view.tables import print_summary
from tunesmith.graph.journal.events import Evaluated
from tunesmith.graph.journal.log import seconds_of
from tunesmith.graph.journal.records import BestHere, Figures, Verdict, Winner, WorkloadRow
from tunesmith.graph.results.summary import unsteady
from tunesmith.graph.roles.tester import finalists
from tunesmith.graph.roles.verdict import dispatched, sentence_of
from tunesmith.graph.run import RunResult, resumed
from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.spec.template import config_key

pytestmark = pytest.mark.usefixtures("simulation")
tune_whole = partial(tuned, strategy="exhaustive", evaluations=100, rounds=1)


def run(tmp_path: Path, constraint: str) -> RunResult:
    """The whole space of scale_add, with one constraint more. Tuned is n = 16384, held out n = 5000."""
    folder = tmp_path / "task"
    shutil.copytree(SCALE_ADD.parent, folder)
    with (folder / "template.toml").open("a") as file:
        file.write(f'\n[[constraints]]\nexpression = "{constraint}"\nbecause = "A test says so."\n')
    return tune_whole(tmp_path / "run", folder, seed=3)


def test_the_general_configuration_is_one_that_a_held_out_workload_admits(tmp_path: Path) -> None:
    result = run(tmp_path, "ITEMS < 16 or n > 10000")
    assert result.summary["general"]["config"] == {"GROUP": 16, "ITEMS": 4, "UNROLL": 1}
    assert result.summary["disqualified"] == []
    assert result.summary["tuned"][0]["best"]["config"] == {"GROUP": 16, "ITEMS": 16, "UNROLL": 1}
    assert [row["workload"] for row in result.summary["dispatch"]] == ["16384"]
    assert [row["best_exported"] for row in (*result.summary["tuned"], *result.summary["held_out"])] == [True, True]
    assert len(SimulatedPool.examined) == 2
    page = (tmp_path / "run" / "report.html").read_text()
    assert "<dt>configuration</dt><dd><code>GROUP=16, ITEMS=4, UNROLL=1</code>" in page
    assert "16384 has its own: <code>GROUP=16, ITEMS=16, UNROLL=1</code>" in page


def test_where_a_held_out_workload_admits_none_the_note_says_which_rule(tmp_path: Path) -> None:
    result = run(tmp_path, "n > 10000")
    assert result.summary["general"] is None and not result.valid
    assert result.summary["held_out"] == [] and result.summary["tuned"][0]["best"]["config"]["ITEMS"] == 16
    assert [note for note in result.summary["notes"] if "`n > 10000` does not hold" in note]


@pytest.mark.parametrize(("allowed", "lines"), [(True, (12,)), (False, (12,)), (False, ())])
def test_a_winner_with_lines_that_never_ran_is_marked_or_out(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    allowed: bool,
    lines: tuple[int, ...],
) -> None:
    """Copies of lines that ran are no reason against it."""
    winner = {"GROUP": 16, "ITEMS": 16, "UNROLL": 1}
    SimulatedPool.partial.append(winner)
    monkeypatch.setattr(SimulatedPool, "lines", lines)
    result = tune_whole(tmp_path / "run", allow_unexecuted=allowed)
    print_summary(result.summary, result.folder)
    blocks = f"T=float32: 1 of 9 blocks, {'line 12' if lines else 'in lines that also ran'}"
    if allowed or not lines:
        assert result.summary.general.config == winner
        assert result.summary.examined[0].unexecuted == (blocks,)
    else:
        assert result.summary.general.config != winner
        assert [one.why for one in result.summary.disqualified] == [f"some of its lines ran in no check: {blocks}"]
    said = f"Ran in no check: GROUP=16, ITEMS=16, UNROLL=1, {blocks}" in capsys.readouterr().out
    assert said is (allowed and bool(lines))


def timed(monkeypatch: pytest.MonkeyPatch, tuned: float, held_out: float) -> None:
    """Every configuration takes these seconds, and the baseline 20 us."""
    times = {"16384": tuned, "5000": held_out}
    monkeypatch.setattr("simulated_pool.seconds", lambda config, workload: times[workload] if config else 20e-6)


def test_where_nothing_is_faster_the_sentence_says_to_keep_the_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed(monkeypatch, 30e-6, 30e-6)
    assert run(tmp_path, "ITEMS > 0").summary["sentence"] == (
        "No reliable speed-up: keep the baseline. Measured 0.67x, 99 % interval 0.67x to 0.67x; slower on 1 of 1 tuned "
        "workloads; slower on 1 of 1 held-out workloads."
    )


def test_a_general_configuration_that_loses_on_a_held_out_workload_is_for_no_shape_but_the_tuned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed(monkeypatch, 10e-6, 30e-6)
    summary = run(tmp_path, "ITEMS > 0").summary
    assert summary["sentence"] == (
        "Faster than the baseline on the tuned workload: 2.00x, 99 % interval 2.00x to 2.00x; slower on 1 of 1 "
        "held-out workloads. Keep the baseline where it is not beaten."
    )
    best = tmp_path / "run" / "best"
    dispatch = json.loads((best / "dispatch.json").read_text())
    assert dispatch["rule"] == {"folder": "baseline"} and dispatch["verdict"] == summary["sentence"]
    tuned, held_out = dispatch["shapes"]
    assert (tuned["folder"], tuned["verdict"], tuned["held_out"]) == ("general", "faster", False)
    assert (held_out["folder"], held_out["verdict"], held_out["held_out"]) == ("baseline", "keep the baseline", True)
    assert held_out["general"]["verdict"] == "slower" and held_out["general"]["low"] > 1
    assert json.loads((best / "baseline" / "launch.json").read_text())["config"] == {}
    assert [row["best_exported"] for row in (*summary["tuned"], *summary["held_out"])] == [True, False]
    for row in (*summary["tuned"], *summary["held_out"]):
        ratio = row["general"]["seconds"] / row["baseline_seconds"]
        assert abs(ratio / row["general"]["ratio"] - 1) < 1e-9


@pytest.mark.parametrize(
    ("ratio", "high", "used"), [(0.80, 0.81, "best"), (0.80, 0.93, "general"), (0.895, 0.8951, "general")]
)
def test_the_best_of_a_shape_is_used_where_it_is_shown_to_be_better(ratio: float, high: float, used: str) -> None:
    """The general configuration's ratio is 0.90, and its interval begins at 0.90."""
    general = Winner(template="t", config={"AT": "general"})
    figures = Figures(seconds=0.9, ratio=0.9, low=0.9, high=0.95, verdict="faster")
    best = {"seconds": ratio, "ratio": ratio, "low": ratio, "high": high, "verdict": "faster"}
    row = row_of("w", general=figures, best=BestHere(template="t", config={"AT": "best"}, **best))
    assert dispatched(row, general).config == {"AT": used}


def row_of(workload: str, **fields: Any) -> WorkloadRow:
    empty: dict[str, Any] = {"sizes": {}, "types": {}, "floor_seconds": None, "baseline_seconds": None}
    return WorkloadRow(workload=workload, **empty, **fields)


@pytest.mark.parametrize(
    ("of_its_own", "end"),
    [
        ("faster", "slower on 1 of 2 tuned workloads (another configuration is faster on all of these)."),
        ("slower", "slower on 1 of 2 tuned workloads. Keep the baseline where it is not beaten."),
    ],
)
def test_the_sentence_says_where_another_configuration_serves(of_its_own: str, end: str) -> None:
    faster = Figures(seconds=0.5, ratio=0.5, low=0.5, high=0.5, verdict="faster")
    slower = faster.model_copy(update={"verdict": "slower"})
    best = {one: BestHere(template="t", config={}, **{**dict(faster), "verdict": one}) for one in ("faster", "slower")}
    rows = row_of("a", general=faster, best=best["faster"]), row_of("b", general=slower, best=best[of_its_own])
    assert sentence_of(0.5, rows, (), "").endswith(end)


@pytest.mark.parametrize(
    ("high", "share", "sentence"),
    [(0.8, None, "The interval of the speed-up is wide on w: "), (0.5, 1.05, "Times are below the floor on w: ")],
)
def test_a_busy_device_is_noted(high: float, share: float | None, sentence: str) -> None:
    figures = Figures(seconds=1.0, ratio=0.5, low=0.5, high=high, verdict="faster")
    calm = row_of("calm", general=figures.model_copy(update={"high": 0.51}), share_of_floor=0.95)
    busy = row_of("w", general=figures, share_of_floor=share)
    (note,) = unsteady(Verdict(tuned=(calm, busy), held_out=(row_of("none"),), sentence=""))
    assert note.startswith(sentence)


@pytest.mark.parametrize(("bandwidth", "ended_by"), [(3.2e10, "floor"), (3.2e9, "exhausted"), (3.2e11, "exhausted")])
def test_a_floor_that_a_busy_machine_raised_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bandwidth: float, ended_by: str
) -> None:
    """The best point of scale_add is at the floor of the first bandwidth, and far from that of the others."""
    monkeypatch.setattr(SimulatedPool, "calibrate", lambda self: Roofline(((1 << 20, bandwidth),), {}, 1e-7))
    result = tune_whole(tmp_path / "run", rounds=2, seed=3)
    (share,) = [row["share_of_floor"] for row in result.summary["tuned"]]
    assert result.summary["ended_by"] == ended_by, share
    if bandwidth < 1e10:
        # It was beaten, by the baseline or by a finalist: no floor, no share, and a sentence.
        assert share is None and result.summary["roofline"]["bandwidth"] == []
        assert [note for note in result.summary["notes"] if "3.2 GB/s, is not used" in note]
    else:
        assert (0.95 <= share <= 1.1) == (ended_by == "floor")


def test_what_two_rounds_measured_takes_one_place_of_a_shape(tmp_path: Path) -> None:
    folder = run(tmp_path, "ITEMS > 0").folder
    with resumed(folder) as context:
        ranked = sorted(context.log.evaluations(), key=lambda one: seconds_of(one).get("16384", math.inf))
        best, second = ranked[:2]
        again = Evaluated(number=99, key=config_key(best.config), evaluation=best)
        context.journal.append(again, "round-2")
        general, per_shape = finalists(context, "round-2")
    assert [one.config for one in per_shape["16384"]] == [best.config, second.config]
    assert len({one.key for one in general}) == len(general) == context.settings.finalists
