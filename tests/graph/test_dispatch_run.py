"""Shapes that are drawn and measured for the dispatch rule: as a step of a run, and for a run that has ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import simulated_pool
from simulated_pool import SimulatedPool, simulate_device

from tunesmith.actors.judging.judge import CandidateVerdict
from tunesmith.cli.view.tables import print_summary
from tunesmith.graph import resume, tune
from tunesmith.graph.dispatch import draw_shapes
from tunesmith.graph.journal.events import ShapeCompared
from tunesmith.graph.journal.log import RunLog
from tunesmith.graph.journal.store import Journal
from tunesmith.kernels.measure.bench import WorkloadComparison
from tunesmith.kernels.outcome import WrongResult
from tunesmith.kernels.spec.taskfile import load_task

TASK = Path(__file__).resolve().parents[1] / "data" / "scale_add" / "task.toml"
SETTINGS: dict[str, Any] = {"evaluations": 8, "rounds": 1, "backend": "opencl"}


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch, device: Any) -> None:
    simulate_device(monkeypatch)


def shapes_of(run: Path) -> list[ShapeCompared]:
    with Journal(run, create=False) as journal:
        return RunLog(journal).events(ShapeCompared)


def test_winners_are_measured_on_drawn_shapes_and_the_rule_is_tried_on_half_of_them(tmp_path: Path) -> None:
    """Also for a run that has ended, without a further search; more shapes keep the measured ones."""
    before = tune(TASK, run_dir=tmp_path / "run", **SETTINGS).summary
    assert before.dispatching is not None and before.dispatching.tested == 0
    SimulatedPool.measured.clear()
    resume(tmp_path / "run", dispatch_shapes=4)
    first = shapes_of(tmp_path / "run")
    summary = resume(tmp_path / "run", dispatch_shapes=6).summary
    events = shapes_of(tmp_path / "run")
    assert events[: len(first)] == first and SimulatedPool.measured == []
    assert summary.evaluations == before.evaluations
    found = summary.dispatching
    assert found is not None and (found.fitted, found.tested) == (2 + 3, 3)
    assert [policy.policy for policy in found.policies] == ["rule", "general", "table", "oracle"]
    assert found.policies[-1].worst_regret == 0
    assert len({event.workload.name for event in events}) == 8
    assert all(5000 <= event.workload.sizes["n"] <= 16384 for event in events)
    dispatch = json.loads((tmp_path / "run" / "best" / "dispatch.json").read_text())
    assert dispatch["rule_tried_on"] == 3 and dispatch["policies"][0]["policy"] == "rule"
    # The simulated winner is faster everywhere, and so serves every shape of the sort that was measured.
    assert dispatch["rule"] == {"test": "n % 8 != 0", "yes": {"folder": "baseline"}, "no": {"folder": "general"}}


def test_what_was_measured_before_an_interruption_is_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    compared = SimulatedPool.compare

    def interrupted(self: SimulatedPool, *given: Any, **keywords: Any) -> WorkloadComparison:
        if keywords["rounds"] == 20:
            if len(asked) == 3:
                raise KeyboardInterrupt
            asked.append(given[2])
        return compared(self, *given, **keywords)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(SimulatedPool, "compare", interrupted)
        tune(TASK, run_dir=tmp_path / "run", dispatch_shapes=4, **SETTINGS)
    result = resume(tmp_path / "run")
    names = [event.workload.name for event in shapes_of(tmp_path / "run")]
    assert names[:3] == asked and len(names) == len(set(names)) == 6
    assert result.summary.dispatching is not None and result.summary.dispatching.tested == 2


@pytest.mark.parametrize("baseline_fails", [False, True])
def test_a_kernel_that_is_wrong_on_a_drawn_shape_is_not_in_the_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, baseline_fails: bool
) -> None:
    """A shape on which the baseline fails as well tells nothing."""
    compared = SimulatedPool.compare

    def wrong(self: SimulatedPool, baseline: Any, candidates: Any, workload: str, **keywords: Any) -> Any:
        if workload.startswith("drawn-") and (baseline_fails or any(one.config for one in candidates)):
            failure = WrongResult("mismatch", "out", "it differs at [3]")
            return WorkloadComparison(workload, tuple(failure for _ in candidates))
        return compared(self, baseline, candidates, workload, **keywords)

    monkeypatch.setattr(SimulatedPool, "compare", wrong)
    summary = tune(TASK, run_dir=tmp_path / "run", dispatch_shapes=2, **SETTINGS).summary
    found = summary.dispatching
    assert found is not None
    if baseline_fails:
        assert not found.excluded and found.tested == 0
        assert any("tells nothing on dispatch" in note for note in summary.notes)
    else:
        assert found.excluded and found.rule.used() == {-1}
        assert json.loads((tmp_path / "run" / "best" / "dispatch.json").read_text())["rule"] == {"folder": "baseline"}


def test_a_rule_that_loses_to_the_general_configuration_on_unseen_shapes_is_not_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was fitted says that small shapes are better left to the baseline, which the other half does not bear out;
    of one type the general configuration is nowhere shown to be faster."""
    task = load_task(TASK)
    types = {"T": ("float32", "float16")}
    own = [one.model_copy(update={"types": {"T": "float32"}}) for one in task.workloads]
    half = own[0].model_copy(update={"name": "half", "types": {"T": "float16"}})
    task = task.model_copy(update={"types": types, "workloads": (*own, half)})
    drawn = draw_shapes(task, device.limits.kind, 24, seed=0)
    assert {one.types["T"] for one in drawn[::2]} == {one.types["T"] for one in drawn[1::2]} == {"float16", "float32"}
    sizes = {one.name: one for one in (*task.workloads, *drawn)}
    unseen = {one.name for one in drawn[1::2]}
    seconds = simulated_pool.seconds

    def small_is_slow(config: dict[str, Any], workload: str) -> float:
        if not config or sizes[workload].types["T"] == "float16":
            return 20e-6
        return seconds(config, "") if workload in unseen or sizes[workload].sizes["n"] > 9000 else 30e-6

    monkeypatch.setattr(simulated_pool, "seconds", small_is_slow)
    result = tune(task, run_dir=tmp_path / "run", dispatch_shapes=24, **SETTINGS)
    found = result.summary.dispatching
    assert found is not None and any(line.startswith("if n <= ") for line in found.lost)
    by_rule, general = found.policies[:2]
    assert by_rule.ratio > general.ratio
    dispatch = json.loads((tmp_path / "run" / "best" / "dispatch.json").read_text())
    assert dispatch["rule"] == {"test": "T == float16", "yes": {"folder": "baseline"}, "no": {"folder": "general"}}
    assert dispatch["rule_that_lost_to_general"] == list(found.lost)
    assert "slower on 1 of 1 held-out workloads; not shown to be faster with T=float16." in result.summary.sentence
    print_summary(result.summary, result.folder)
    assert "It lost to general on the unseen shapes and is not exported" in capsys.readouterr().out


@pytest.mark.parametrize("later", [False, True])
def test_what_a_rule_may_use_is_examined_on_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: bool
) -> None:
    """A configuration that is best on one workload and wrong elsewhere: it may serve that workload, and no other."""
    seconds, examine = simulated_pool.seconds, SimulatedPool.examine
    special = {"GROUP": 64, "ITEMS": 4, "UNROLL": 1}
    task = load_task(TASK)
    first, held_out = task.workloads
    task = task.model_copy(
        update={"workloads": (first, first.model_copy(update={"name": "8192", "sizes": {"n": 8192}}), held_out)}
    )
    own = first.name
    asked: list[tuple[Any, str | None]] = []

    def faster_there(config: dict[str, Any], workload: str) -> float:
        return 4.5e-6 if config == special and workload == own else seconds(config, workload)

    def wrong_elsewhere(self: SimulatedPool, jobs: Any, **keywords: Any) -> Any:
        asked.extend((config, only) for _, config, only in jobs)
        found = examine(self, jobs, **keywords)
        wrong = CandidateVerdict("rejected", "mismatch", "it is wrong on odd sizes")
        return [
            wrong if config == special and only is None else one
            for one, (_, config, only) in zip(found, jobs, strict=True)
        ]

    monkeypatch.setattr(simulated_pool, "seconds", faster_there)
    monkeypatch.setattr(SimulatedPool, "examine", wrong_elsewhere)
    settings = {**SETTINGS, "evaluations": 100, "strategy": "exhaustive"}
    result = tune(task, run_dir=tmp_path / "run", dispatch_shapes=0 if later else 4, **settings)
    if later:
        assert (special, None) not in asked
        result = resume(tmp_path / "run", dispatch_shapes=4)
    assert asked.count((special, own)) == asked.count((special, None)) == 1
    found = result.summary.dispatching
    assert found is not None and [(one.config, one.workload) for one in found.excluded] == [(special, "all")]
    assert all(found.kernels[number].config != special for number in found.rule.used() if number >= 0)
    shapes = json.loads((tmp_path / "run" / "best" / "dispatch.json").read_text())["shapes"]
    assert next(one["folder"] for one in shapes if one["workload"] == own) == own
