"""What rounds tune when rules plan them: all workloads, then each by itself, then all again."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from journal_rows import rows
from simulated_pool import SimulatedPool, add_templates, add_workload, changed, simulate_device

from tunesmith.graph import resume, tune
from tunesmith.graph.journal.log import RunLog
from tunesmith.graph.journal.store import Journal
from tunesmith.graph.models.calls import Waiting
from tunesmith.kernels.outcome import Evaluation
from tunesmith.kernels.spec.template import config_key

TASK = Path(__file__).resolve().parent.parent / "data" / "scale_add"


@pytest.fixture(autouse=True)
def simulation(monkeypatch: pytest.MonkeyPatch, device: Any) -> None:
    simulate_device(monkeypatch)


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """scale_add with three tuned workloads."""
    folder = tmp_path / "task"
    shutil.copytree(TASK, folder)
    add_workload(folder)
    return folder


def plans(folder: Path) -> list[tuple[str, tuple[str, ...]]]:
    found = [row.data["plan"] for row in rows(folder, "plan")]
    return [(plan["scope"], tuple(plan["workloads"])) for plan in found]


def test_after_each_workload_had_a_round_all_are_searched_again(task: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    tune(task, run_dir=folder, backend="opencl", strategy="random", evaluations=24, rounds=6, seed=1)
    everything = ("16384", "5000", "777")
    found = plans(folder)
    assert [scope for scope, _ in found] == ["general", "workload", "workload", "workload", "general", "workload"]
    assert found[0] == found[4] == ("general", everything)
    assert sorted(names[0] for _, names in found[1:4]) == sorted(everything)
    evaluated = rows(folder, "evaluation")
    before = [row.data["evaluation"] | row.data for row in evaluated if row.stage not in ("round-5", "round-6")]
    again = next(row.data["plan"] for row in rows(folder, "plan") if row.data["plan"]["round"] == 5)
    what = [(row.data["key"], tuple(row.data["evaluation"]["outcomes"])) for row in evaluated]
    assert len(set(what)) == len(what) > 20, "nothing is measured twice on the same workloads"

    def best(workload: str) -> str:
        times = {
            one["key"]: one["outcomes"][workload]["seconds"]
            for one in before
            if workload in one["outcomes"] and one["outcomes"][workload]["kind"] == "measured"
        }
        return min(times, key=lambda key: times[key])

    assert {config_key(one) for one in again["branches"][0]["seeds"]} == {best(name) for name in everything}


def test_a_run_that_goes_on_takes_up_where_the_turns_were(task: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    tune(task, run_dir=folder, backend="opencl", strategy="random", evaluations=8, rounds=2, seed=1)
    resume(folder, more=9, rounds=3)
    assert [scope for scope, _ in plans(folder)] == ["general", "workload", "workload", "workload", "general"]


def test_a_template_by_rules_is_first_tried_where_its_rules_promise_most(
    task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simulated_pool.seconds", lambda config, workload: 1e-5 if config else 2e-5)
    described = (task / "task.toml").read_text()
    (task / "task.toml").write_text(described.replace('templates = ["template.toml"]', ""))
    folder = tmp_path / "run"
    tune(task, run_dir=folder, backend="opencl", strategy="random", evaluations=6, rounds=1, seed=1)
    (plan,) = [row.data["plan"] for row in rows(folder, "plan")]
    (branch,) = plan["branches"]
    assert branch["parent"].startswith("by-rules") and branch["seeds"], branch
    asked = [config_key(row.data["config"]) for row in rows(folder, "asked")]
    assert asked[: len(branch["seeds"])] == [config_key(one) for one in branch["seeds"]]


@pytest.mark.parametrize("better", ["runs", "other"])
def test_a_workload_is_searched_in_the_template_that_was_best_on_it(
    task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, better: str
) -> None:
    add_templates(task, "other")
    whole = SimulatedPool._evaluate

    def slower(self: SimulatedPool, request: Any) -> Evaluation:
        factor = 1.0 if request.template.name == better or not request.config else 3.0
        return changed(whole(self, request), lambda _, one: replace(one, seconds=factor * one.seconds))

    monkeypatch.setattr(SimulatedPool, "_evaluate", slower)
    folder = tmp_path / "run"
    tune(task, run_dir=folder, backend="opencl", strategy="random", evaluations=24, rounds=4, seed=1)
    templates = [row.data["plan"]["branches"][0]["parent"].split("-")[0] for row in rows(folder, "plan")]
    assert templates == ["runs", "other", better, better]


def test_later_rounds_go_by_the_plan_as_a_person_changed_it(task: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    names = ("16384", "5000", "777")
    settings: dict[str, Any] = {"backend": "opencl", "strategy": "random", "evaluations": 16, "seed": 1}
    with pytest.raises(Waiting):
        tune(task, run_dir=folder, rounds=4, approve="plans", **settings)
    first = folder / "plan-1.json"
    changed_plan = {"workloads": ["777", "16384", "5000", "777"], "scope": "workload"}
    first.write_text(json.dumps(json.loads(first.read_text()) | changed_plan))
    with pytest.raises(Waiting):
        resume(folder)
    file = folder / "plan-2.json"
    planned = json.loads(file.read_text())
    other = next(name for name in names if name not in planned["workloads"])
    # The scope follows from the workloads, whatever the file says.
    file.write_text(json.dumps(planned | {"workloads": [other], "scope": "general"}))
    for _ in range(2):
        with pytest.raises(Waiting):
            resume(folder)
    assert resume(folder).valid
    with Journal(folder, create=False) as journal:
        found = RunLog(journal).plans
    assert [(one.round, one.scope) for one in found] == [(1, "general"), *((n, "workload") for n in (2, 3, 4))]
    assert (
        found[0].workloads == names
        and found[1].workloads == (other,)
        and {name for one in found[1:] for name in one.workloads} == set(names)
    )
    assert json.loads((folder / "summary.json").read_text())["plans"][1]["workloads"] == [other]
