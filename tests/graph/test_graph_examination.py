"""Winners are examined before a run ends: a wrong one wins nothing, and what rejected ones share is avoided."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from journal_rows import rows
from simulated_pool import SimulatedPool, seconds, tuned

from tunesmith.graph import resume
from tunesmith.graph.context import Context
from tunesmith.graph.roles.verdict import MAX_VARIATIONS, common_defect, has, variations
from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.spec.taskfile import load_task
from tunesmith.kernels.spec.template import Parameter

pytestmark = pytest.mark.usefixtures("simulation")
run = partial(tuned, evaluations=8)
SPACE = [
    {"GROUP": group, "ITEMS": items, "UNROLL": unroll}
    for group in (4, 16, 64)
    for items in (1, 4, 16, 64)
    for unroll in (0, 1)
    if items > 1 or unroll == 0
]
"""The points that compile."""
RANKED = sorted(SPACE, key=lambda config: seconds(config, "16384"))
EXHAUSTIVE: dict[str, Any] = {"rounds": 1, "strategy": "exhaustive", "evaluations": 30}


def test_winners_are_examined_once_at_the_end(tmp_path: Path) -> None:
    result = run(tmp_path / "run", rounds=2)
    general = result.summary["examined"][0]
    assert general["verdict"] == "accepted" and general["workload"] == ""
    assert general["config"] == result.summary["general"]["config"]
    assert len(SimulatedPool.examined) == len(result.summary["examined"])
    resume(tmp_path / "run")
    assert len(SimulatedPool.examined) == len(result.summary["examined"])


def test_what_an_examination_rejects_wins_nothing(tmp_path: Path) -> None:
    best = RANKED[0]
    SimulatedPool.wrong.append(best)
    result = run(tmp_path / "run", **EXHAUSTIVE)
    assert result.valid and result.summary["general"]["config"] != best
    assert all(row["best"] is None or row["best"]["config"] != best for row in result.summary["tuned"])
    assert [one["why"] for one in result.summary["disqualified"]] == ["it is wrong on odd sizes"]
    assert "failed the final check" in result.summary["sentence"]
    assert len(SimulatedPool.examined) == len(set(SimulatedPool.examined)) >= 2
    page = (tmp_path / "run" / "report.html").read_text()
    assert "it is wrong on odd sizes" in page and "Examination of the winners" in page


@pytest.mark.parametrize("killed", [False, True])
def test_where_all_finalists_are_wrong_the_next_take_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
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
        result = run(tmp_path / "run", finalists=2, **EXHAUSTIVE)
    except KeyboardInterrupt:
        killed = False
        result = resume(tmp_path / "run")
    assert result.valid and result.summary["general"]["config"] not in wrong
    out = [one["config"] for one in result.summary["disqualified"] if "shares" not in one["why"]]
    assert all(one in wrong for one in out) and all(one in out for one in wrong[:2])
    # Nobody meets the baseline twice on a workload, but for the comparison that was interrupted.
    assert sum(wrong[0] in one for one in compared) == workloads


def test_nothing_wins_where_all_are_wrong(tmp_path: Path) -> None:
    SimulatedPool.wrong.extend(SPACE)
    result = run(tmp_path / "run", rounds=1)
    assert not result.valid and result.summary["general"] is None and result.summary["dispatch"] == []


def test_a_fault_of_the_task_is_told_and_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(*_: Any, **__: Any) -> Any:
        raise TunesmithError("Task scale_add: its baseline is not right on 1000, task.")

    monkeypatch.setattr(SimulatedPool, "examine", fault)
    result = run(tmp_path / "run", rounds=1)
    # Nothing is exported unexamined: the plain kernel stays.
    assert not result.valid and result.summary.unexamined and "could not be examined" in result.summary.sentence
    assert [one.name for one in sorted((tmp_path / "run" / "best").iterdir()) if one.is_dir()] == ["baseline"]
    assert "its baseline is not right" in (tmp_path / "run" / "report.html").read_text()
    allowed = run(tmp_path / "allowed", rounds=1, allow_unexamined=True)
    assert allowed.valid and "not examined" in allowed.summary.sentence
    assert {one["verdict"] for one in allowed.summary["examined"]} == {"not examined"}
    launch = json.loads((tmp_path / "allowed" / "best" / "general" / "launch.json").read_text())
    assert launch["examined"] == "not examined"


def test_what_the_time_limit_leaves_no_time_for_is_examined_when_there_is_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Context, "search_seconds_left", lambda _: 100.0)
        patch.setattr(Context, "seconds_left", lambda _: 1.0)
        result = run(folder, rounds=1)
        assert all("the time limit left no time" in one.why for one in result.summary.disqualified)
        assert not result.valid and result.summary.unexamined and not SimulatedPool.examined
        patch.setattr(Context, "seconds_left", lambda _: 0.0)
        without = run(tmp_path / "without", rounds=1, allow_unexamined=True)
        names = ", ".join(row["workload"] for row in result.summary["held_out"])
        assert names and without.valid and not without.summary["held_out"]
        assert f"The time limit left no time for the held-out workloads {names}." in without.summary["notes"]
    assert resume(folder, more=1).summary["examined"][0]["verdict"] == "accepted" and SimulatedPool.examined


def test_what_shares_the_defect_of_rejected_configurations_is_not_examined(tmp_path: Path) -> None:
    group = RANKED[0]["GROUP"]
    SimulatedPool.wrong.extend(one for one in SPACE if one["GROUP"] == group)
    result = run(tmp_path / "run", **EXHAUSTIVE)
    assert result.valid and result.summary["general"]["config"]["GROUP"] != group
    assert 2 <= len({one for one in SimulatedPool.examined if f"GROUP={group}" in one}) <= 4
    assert any(f"it shares GROUP={group}" in one.why for one in result.summary.disqualified)


def test_in_place_of_rejected_finalists_one_with_a_value_changed_is_measured(tmp_path: Path) -> None:
    # The search measures one configuration, and that is wrong.
    SimulatedPool.wrong.extend(one for one in SPACE if one["GROUP"] == 16)
    result = run(tmp_path / "run", rounds=1, evaluations=1)
    measured = [row.data["evaluation"]["config"] for row in rows(tmp_path / "run", "evaluation")]
    assert len(measured) > 1 and measured[0]["GROUP"] == 16
    assert result.valid and result.summary["general"]["config"]["GROUP"] != 16


FAST = {"FAST_MATH": True, "VEC": 4, "BLOCK": 128}


@pytest.mark.parametrize(
    ("rejected", "accepted", "measured", "wanted"),
    [
        ([FAST], [], [FAST | {"VEC": 2}], {}),
        ([FAST, FAST | {"BLOCK": 64}], [], [FAST | {"FAST_MATH": False, "VEC": 2}], {"FAST_MATH": True}),
        ([FAST, FAST | {"BLOCK": 64}], [FAST | {"BLOCK": 32, "VEC": 1}], [FAST | {"VEC": 2}], {"VEC": 4}),
        ([FAST, FAST | {"BLOCK": 64}], [], [FAST], {}),
        ([FAST, {"FAST_MATH": False, "VEC": 2, "BLOCK": 64}], [], [FAST | {"VEC": 2}], {}),
    ],
)
def test_a_defect_is_shared_by_all_rejected_and_by_no_accepted(
    rejected: list[Any], accepted: list[Any], measured: list[Any], wanted: dict[str, Any]
) -> None:
    assert common_defect(rejected, accepted, measured) == wanted


def test_relaxed_arithmetic_is_changed_first() -> None:
    template = load_task("silu_and_mul").sources("cuda").templates[0]
    parameters = (
        Parameter(name="VEC", values=(1, 2, 4)),
        Parameter(name="STAGED", values=(False, True)),
        Parameter(name="FAST_MATH", values=(False, True)),
    )
    template = template.model_copy(update={"parameters": parameters})
    rejected = {"VEC": 4, "STAGED": True, "FAST_MATH": True}
    found = variations(template, rejected, {"VEC": 4})
    assert found[0] == rejected | {"FAST_MATH": False} and found[1] == rejected | {"VEC": 2}
    assert rejected | {"STAGED": False} in found and len(found) <= MAX_VARIATIONS
    assert not has(rejected, {}) and has(rejected, {"VEC": 4})
