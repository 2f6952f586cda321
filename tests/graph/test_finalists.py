"""Which configurations meet the baseline again, and are examined before a run ends: a general one must be feasible on
held-out workloads too, a wrong one wins nothing, and what rejected ones share is avoided."""

import json
import math
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from journal_rows import rows
from simulated_pool import SCALE_ADD, SimulatedPool, seconds, tuned

from tunesmith.cli.tables import print_summary
from tunesmith.graph import resume
from tunesmith.graph.context import Context
from tunesmith.graph.journal.events import BestHere, Evaluated, Figures, Verdict, Winner, WorkloadRow
from tunesmith.graph.journal.log import seconds_of
from tunesmith.graph.results.summary import unsteady
from tunesmith.graph.roles.tester import finalists
from tunesmith.graph.roles.verdict import MAX_VARIATIONS, common_defect, dispatched, has, sentence_of, variations
from tunesmith.graph.run import RunResult
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.rewrite.template import Rewritten
from tunesmith.kernels.spec.taskfile import load_task
from tunesmith.kernels.spec.template import Parameter, config_key

pytestmark = pytest.mark.usefixtures("simulation")
run = partial(tuned, evaluations=8)
tune_whole = partial(tuned, strategy="exhaustive", evaluations=100, rounds=1)


def constrained(tmp_path: Path, constraint: str) -> RunResult:
    """The whole space of scale_add, with one constraint more. Tuned is n = 16384, held out n = 5000."""
    folder = tmp_path / "task"
    shutil.copytree(SCALE_ADD.parent, folder)
    with (folder / "template.toml").open("a") as file:
        file.write(f'\n[[constraints]]\nexpression = "{constraint}"\nbecause = "A test says so."\n')
    return tune_whole(tmp_path / "run", folder, seed=3)


def test_the_general_configuration_is_one_that_a_held_out_workload_admits_or_a_note_says_why(tmp_path: Path) -> None:
    result = constrained(tmp_path, "ITEMS < 16 or n > 10000")
    assert result.summary["general"]["config"] == {"GROUP": 16, "ITEMS": 4, "UNROLL": 1}
    assert result.summary["disqualified"] == []
    assert result.summary["tuned"][0]["best"]["config"] == {"GROUP": 16, "ITEMS": 16, "UNROLL": 1}
    assert [row["workload"] for row in result.summary["dispatch"]] == ["16384"]
    assert [row["best_exported"] for row in (*result.summary["tuned"], *result.summary["held_out"])] == [True, True]
    assert len(SimulatedPool.examined) == 2
    page = (tmp_path / "run" / "report.html").read_text()
    assert "<dt>configuration</dt><dd><code>GROUP=16, ITEMS=4, UNROLL=1</code>" in page
    assert "16384 has its own: <code>GROUP=16, ITEMS=16, UNROLL=1</code>" in page
    result = constrained(tmp_path / "none", "n > 10000")
    assert result.summary["general"] is None and not result.valid
    assert result.summary["held_out"] == [] and result.summary["tuned"][0]["best"]["config"]["ITEMS"] == 16
    assert [note for note in result.summary["notes"] if "`n > 10000` does not hold" in note]


@pytest.mark.parametrize(("allowed", "lines"), [(True, (12,)), (False, (12,)), (False, ())])
def test_a_winner_with_lines_that_never_ran_is_marked_or_out(
    tmp_path: Path, monkeypatch: Any, capsys: Any, allowed: bool, lines: Any
) -> None:
    """Copies of lines that ran are no reason against it."""
    winner = {"GROUP": 16, "ITEMS": 16, "UNROLL": 1}
    SimulatedPool.partial.append(winner)
    monkeypatch.setattr(SimulatedPool, "lines", lines)
    result = tune_whole(tmp_path / "run", allow_unexecuted=allowed)
    print_summary(result.summary, result.folder)
    where = "line 12" if lines else "in lines that also ran, or the kit's"
    blocks = f"T=float32: 1 of 9 blocks, {where}"
    if allowed or not lines:
        assert result.summary.general.config == winner and result.summary.examined[0].unexecuted == (blocks,)
    else:
        assert result.summary.general.config != winner
        assert [one.why for one in result.summary.disqualified] == [f"some of its lines ran in no check: {blocks}"]
    said = f"Ran in no check: GROUP=16, ITEMS=16, UNROLL=1, {blocks}" in capsys.readouterr().out
    assert said is (allowed and bool(lines))


@pytest.mark.parametrize(
    ("beside", "of_rules", "wins"), [((12,), True, True), ((), True, False), ((12,), False, False)]
)
def test_lines_in_a_branch_that_the_plain_kernel_does_not_take_count_where_rules_did_not_write_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: tuple[int, ...], of_rules: bool, wins: bool
) -> None:
    winner = {"GROUP": 16, "ITEMS": 16, "UNROLL": 1}
    SimulatedPool.partial.append(winner)
    monkeypatch.setattr(SimulatedPool, "beside", beside)
    if of_rules:
        (template,) = load_task(str(SCALE_ADD)).sources("opencl").templates
        monkeypatch.setattr("tunesmith.graph.roles.examination.rewrite", lambda *_: Rewritten(template))
    assert (tune_whole(tmp_path / "run").summary.general.config == winner) is wins


def test_what_loses_on_a_held_out_workload_is_for_no_shape_but_the_tuned(tmp_path: Path, monkeypatch: Any) -> None:
    times = {"16384": 10e-6, "5000": 30e-6}
    monkeypatch.setattr("simulated_pool.seconds", lambda config, workload: times[workload] if config else 20e-6)
    summary = tune_whole(tmp_path / "run").summary
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
        assert abs((row["general"]["seconds"] / row["baseline_seconds"]) / row["general"]["ratio"] - 1) < 1e-9
    times["16384"] = 30e-6
    assert tune_whole(tmp_path / "slower").summary["sentence"] == (
        "No reliable speed-up: keep the baseline. Measured 0.67x, 99 % interval 0.67x to 0.67x; slower on 1 of 1 tuned "
        "workloads; slower on 1 of 1 held-out workloads."
    )


def test_the_best_of_a_shape_is_used_where_it_is_shown_to_be_better() -> None:
    """The general configuration's ratio is 0.90, and its interval begins at 0.90."""
    general = Winner(template="t", config={"AT": "general"})
    figures = Figures(seconds=0.9, ratio=0.9, low=0.9, high=0.95, verdict="faster")
    for ratio, high, used in ((0.80, 0.81, "best"), (0.80, 0.93, "general"), (0.895, 0.8951, "general")):
        best = {"seconds": ratio, "ratio": ratio, "low": ratio, "high": high, "verdict": "faster"}
        row = row_of("w", general=figures, best=BestHere(template="t", config={"AT": "best"}, **best))
        assert dispatched(row, general).config == {"AT": used}
    figures = Figures(seconds=1.0, ratio=0.5, low=0.5, high=0.8, verdict="faster")
    narrow = figures.model_copy(update={"high": 0.51})
    calm, none = row_of("calm", general=narrow, share_of_floor=0.95), row_of("none")
    for busy, sentence in (
        (row_of("w", general=figures, share_of_floor=None), "The interval of the speed-up is wide on w: "),
        (row_of("w", general=narrow, share_of_floor=1.05), "Times are below the floor on w: "),
    ):
        (note,) = unsteady(Verdict(tuned=(calm, busy), held_out=(none,), sentence=""))
        assert note.startswith(sentence)


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


@pytest.mark.parametrize(("bandwidth", "ended_by"), [(3.2e10, "floor"), (3.2e9, "exhausted"), (3.2e11, "exhausted")])
def test_a_floor_that_load_raised_ends_nothing(tmp_path: Path, monkeypatch: Any, bandwidth: Any, ended_by: str) -> None:
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


def test_what_two_rounds_measured_takes_one_place_of_a_shape(tmp_path: Path, monkeypatch: Any) -> None:
    def look(context: Context, *_: object) -> None:
        ranked = sorted(context.log.evaluations(), key=lambda one: seconds_of(one).get("16384", math.inf))
        best, second = ranked[:2]
        context.journal.append(Evaluated(number=99, key=config_key(best.config), evaluation=best), "round-2")
        general, per_shape = finalists(context, "round-2")
        assert [one.config for one in per_shape["16384"]] == [best.config, second.config]
        assert len({one.key for one in general}) == len(general) == context.settings.finalists

    folder = tune_whole(tmp_path / "run").folder
    monkeypatch.setattr("tunesmith.graph.run._carry_on", look)
    resume(folder)


SPACE = [
    {"GROUP": group, "ITEMS": items, "UNROLL": unroll}
    for group in (4, 16, 64)
    for items in (1, 4, 16, 64)
    for unroll in (0, 1)
    if items > 1 or unroll == 0
]
"""The points that compile."""
RANKED = sorted(SPACE, key=lambda config: seconds(config, "16384"))


def test_winners_are_examined_once_at_the_end_and_none_wins_where_all_are_wrong(tmp_path: Path) -> None:
    result = run(tmp_path / "run", rounds=2)
    general = result.summary["examined"][0]
    assert general["verdict"] == "accepted" and general["workload"] == ""
    assert general["config"] == result.summary["general"]["config"]
    assert len(SimulatedPool.examined) == len(result.summary["examined"])
    resume(tmp_path / "run")
    assert len(SimulatedPool.examined) == len(result.summary["examined"])
    SimulatedPool.wrong.extend(SPACE)
    result = run(tmp_path / "wrong", rounds=1)
    assert not result.valid and result.summary["general"] is None and result.summary["dispatch"] == []


@pytest.mark.parametrize("killed", [False, True])
def test_if_all_finalists_are_wrong_the_next_take_their_place(tmp_path: Path, monkeypatch: Any, killed: bool) -> None:
    wrong, workloads = RANKED[:3], 2
    monkeypatch.setattr(SimulatedPool, "wrong", wrong)
    compared: list[list[Any]] = []
    compare = SimulatedPool.compare

    def counted(self: SimulatedPool, baseline: Any, candidates: Any, workload: str, **more: Any) -> Any:
        compared.append([one.config for one in candidates])
        if killed and len(compared) == workloads + 2:
            raise KeyboardInterrupt
        return compare(self, baseline, candidates, workload, **more)

    monkeypatch.setattr(SimulatedPool, "compare", counted)
    try:
        result = tune_whole(tmp_path / "run", finalists=2)
    except KeyboardInterrupt:
        killed = False
        result = resume(tmp_path / "run")
    assert result.valid and result.summary["general"]["config"] not in wrong
    assert all(row["best"] is None or row["best"]["config"] not in wrong for row in result.summary["tuned"])
    assert "failed the final check" in result.summary["sentence"]
    page = (tmp_path / "run" / "report.html").read_text()
    assert "it is wrong on odd sizes" in page and "Examination of the winners" in page
    out = [one["config"] for one in result.summary["disqualified"] if "shares" not in one["why"]]
    assert all(one in wrong for one in out) and all(one in out for one in wrong[:2])
    # Nobody meets the baseline twice on a workload, but for the comparison that was interrupted.
    assert sum(wrong[0] in one for one in compared) == workloads


def test_a_fault_of_the_task_is_told_and_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(*_: Any, **__: Any) -> Any:
        raise TunesmithError("Task scale_add: its baseline is not right on 1000, task.")

    monkeypatch.setattr(SimulatedPool, "examine", fault)
    result = run(tmp_path / "run", rounds=1)
    # Nothing is exported unexamined: the plain kernel stays.
    assert not result.valid and result.summary.unexamined and "could not be examined" in result.summary.sentence
    assert "failed the final check" not in result.summary.sentence
    assert [one.name for one in sorted((tmp_path / "run" / "best").iterdir()) if one.is_dir()] == ["baseline"]
    assert "its baseline is not right" in (tmp_path / "run" / "report.html").read_text()
    allowed = run(tmp_path / "allowed", rounds=1, allow_unexamined=True)
    assert allowed.valid and "not examined" in allowed.summary.sentence
    assert {one["verdict"] for one in allowed.summary["examined"]} == {"not examined"}
    launch = json.loads((tmp_path / "allowed" / "best" / "general" / "launch.json").read_text())
    assert launch["examined"] == "not examined"


def test_what_there_was_no_time_for_is_examined_when_there_is_more(tmp_path: Path, monkeypatch: Any) -> None:
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Context, "search_seconds_left", lambda _: 100.0)
        patch.setattr(Context, "seconds_left", lambda _: 1.0)
        patch.setattr(Context, "comparison_seconds_left", lambda _: 1.0)
        result = run(folder, rounds=1)
        assert all("the time limit left no time" in one.why for one in result.summary.disqualified)
        assert not result.valid and result.summary.unexamined and not SimulatedPool.examined
        patch.setattr(Context, "comparison_seconds_left", lambda _: 0.0)
        without = run(tmp_path / "without", rounds=1, allow_unexamined=True)
        names = ", ".join(row["workload"] for row in result.summary["held_out"])
        assert names and without.valid and not without.summary["held_out"]
        assert f"The time limit left no time for the held-out workloads {names}." in without.summary["notes"]
    assert resume(folder, more=1).summary["examined"][0]["verdict"] == "accepted" and SimulatedPool.examined


def test_the_examination_has_its_time_before_held_out_workloads(tmp_path: Path, monkeypatch: Any) -> None:
    """Also where comparisons take longer than was reckoned with."""
    monkeypatch.setattr(Context, "search_seconds_left", lambda _: 100.0)
    monkeypatch.setattr(Context, "seconds_left", lambda _: 30.0)
    result = run(tmp_path / "run", rounds=1, time_limit=120.0)
    assert result.valid and result.summary["examined"][0]["verdict"] == "accepted" and not result.summary["held_out"]


def test_where_time_is_short_the_general_configuration_alone_has_a_verdict(tmp_path: Path, monkeypatch: Any) -> None:
    examine = SimulatedPool.examine
    monkeypatch.setattr(SimulatedPool, "examine", lambda self, jobs, **more: examine(self, jobs[:1], **more))
    found = constrained(tmp_path, "ITEMS < 16 or n > 10000").summary
    assert found.general.config == {"GROUP": 16, "ITEMS": 4, "UNROLL": 1}
    verdicts = {one.workload: one.verdict for one in found.examined}
    assert verdicts[""] == "accepted", verdicts


def test_what_shares_the_defect_of_rejected_configurations_is_not_examined(tmp_path: Path) -> None:
    group = RANKED[0]["GROUP"]
    SimulatedPool.wrong.extend(one for one in SPACE if one["GROUP"] == group)
    result = tune_whole(tmp_path / "run")
    assert result.valid and result.summary["general"]["config"]["GROUP"] != group
    assert 2 <= len([one for one in SimulatedPool.examined if f"GROUP={group}" in one]) <= 4
    assert len(SimulatedPool.examined) == len(set(SimulatedPool.examined))
    assert any(f"it shares GROUP={group}" in one.why for one in result.summary.disqualified)


def test_in_place_of_rejected_finalists_one_with_a_value_changed_is_measured(tmp_path: Path, capsys: Any) -> None:
    # The search measures one configuration, and that is wrong.
    SimulatedPool.wrong.extend(one for one in SPACE if one["GROUP"] == 16)
    result = run(tmp_path / "run", rounds=1, evaluations=1)
    measured = [row.data["evaluation"]["config"] for row in rows(tmp_path / "run", "evaluation")]
    assert len(measured) > 1 and measured[0]["GROUP"] == 16
    print_summary(result.summary, result.folder)
    assert f"\n1 of 1 evaluations and {len(measured) - 1} in place of rejected winners in " in capsys.readouterr().out
    assert result.valid and result.summary["general"]["config"]["GROUP"] != 16


FAST = {"FAST_MATH": True, "VEC": 4, "BLOCK": 128}


def test_a_defect_is_shared_by_all_rejected_and_relaxed_arithmetic_is_changed_first() -> None:
    two = [FAST, FAST | {"BLOCK": 64}]
    for rejected, accepted, measured, wanted in (
        ([FAST], [], [FAST | {"VEC": 2}], {}),
        (two, [], [FAST | {"FAST_MATH": False, "VEC": 2}], {"FAST_MATH": True}),
        (two, [FAST | {"BLOCK": 32, "VEC": 1}], [{"FAST_MATH": False, "VEC": 2, "BLOCK": 128}], {"VEC": 4}),
        (two, [], [FAST], {}),
        ([FAST, {"FAST_MATH": False, "VEC": 2, "BLOCK": 64}], [], [FAST | {"VEC": 2}], {}),
    ):
        assert common_defect(rejected, accepted, measured) == wanted
    # Relaxed arithmetic is changed first.
    values: dict[str, tuple[Any, ...]] = {"VEC": (1, 2, 4), "STAGED": (False, True), "FAST_MATH": (False, True)}
    parameters = tuple(Parameter(name=name, values=listed) for name, listed in values.items())
    template = load_task("silu_and_mul").sources("cuda").templates[0].model_copy(update={"parameters": parameters})
    rejected = {"VEC": 4, "STAGED": True, "FAST_MATH": True}
    found = variations(template, rejected, {"VEC": 4})
    assert found[0] == rejected | {"FAST_MATH": False} and found[1] == rejected | {"VEC": 2}
    assert rejected | {"STAGED": False} in found and len(found) <= MAX_VARIATIONS
    assert not has(rejected, {}) and has(rejected, {"VEC": 4})
