"""A run spends its budget as long as something is left to try, and never counts on what was found wrong."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from model_runs import ModelPool, code, plans_of, run, simulation
from scripted_models import SOURCE, branch, plan, rewrite, template
from simulated_pool import SimulatedPool, add_templates, add_workload, changed

from tunesmith.graph import tune
from tunesmith.graph.journal.events import TemplateAdded
from tunesmith.graph.journal.log import RunLog
from tunesmith.graph.journal.store import Journal
from tunesmith.graph.models.calls import ModelCall, ModelFailed
from tunesmith.graph.prompts.answers import RewriteAnswer
from tunesmith.graph.run import RunResult
from tunesmith.kernels.outcome import Evaluation, WrongResult

__all__ = ["simulation"]
TASK = Path(__file__).resolve().parent.parent / "data" / "scale_add"
WRONG = WrongResult("mismatch", "out", "it is wrong on fresh contents")


@pytest.fixture
def task(tmp_path: Path) -> Path:
    folder = tmp_path / "task"
    shutil.copytree(TASK, folder)
    return folder


def tuned(task: Path, tmp_path: Path, **settings: Any) -> RunResult:
    settings = {"backend": "opencl", "strategy": "random"} | settings
    return tune(task, run_dir=tmp_path / "run", **settings)


@pytest.mark.usefixtures("simulation")
class TestByRules:
    def test_every_template_is_searched_before_a_run_is_exhausted(self, task: Path, tmp_path: Path) -> None:
        add_templates(task, "second")
        result = tuned(task, tmp_path, evaluations=200, rounds=4)
        parents = [one.branches[0].parent.split("-")[0] for one in plans_of(tmp_path / "run")]
        assert parents[:2] == ["runs", "second"]
        assert result.summary.ended_by == "exhausted" and result.summary.evaluations == 2 * 28

    def test_a_search_of_one_workload_exhausts_nothing(self, task: Path, tmp_path: Path) -> None:
        """What was measured on one workload alone can never be the general configuration."""
        add_workload(task)
        result = tuned(task, tmp_path, evaluations=90, rounds=9)
        assert result.summary.ended_by in ("exhausted", "rounds")
        with Journal(tmp_path / "run", create=False) as journal:
            found = RunLog(journal).evaluations()
        for name in ("16384", "5000", "777"):
            measured = {str(one.config) for one in found if name in one.outcomes}
            assert len(measured) >= 21, "all that compiles, on every workload"

    def test_a_wrong_template_leaves_the_budget_to_the_next(
        self, task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        add_templates(task, "second")
        whole = SimulatedPool._evaluate

        def evaluate(self: SimulatedPool, request: Any) -> Evaluation:
            if request.config and request.template.name == "runs":
                return Evaluation(request.template.id, request.config, {request.workloads[0]: WRONG})
            return whole(self, request)

        monkeypatch.setattr(SimulatedPool, "_evaluate", evaluate)
        result = tuned(task, tmp_path, evaluations=20, rounds=2)
        assert result.valid and result.summary.evaluations == 20

    @pytest.mark.parametrize("second", [False, True])
    def test_a_template_without_choices_is_measured(self, task: Path, tmp_path: Path, second: bool) -> None:
        add_templates(task, *(["second"] if second else []))
        text = (task / "template.toml").read_text()
        text = text.replace("values = [1, 4, 16, 64]", "values = [16]").replace("values = [0, 1]", "values = [0]")
        (task / "template.toml").write_text(re.sub(r"default = \d+, ", "", text))
        result = tuned(task, tmp_path, evaluations=30, rounds=3)
        assert result.valid and result.summary.evaluations == (1 + 28 if second else 1)


@pytest.mark.usefixtures("simulation")
class TestWithAModel:
    def test_rules_search_a_template_where_a_rewrite_is_best(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole = ModelPool._evaluate

        def evaluate(self: ModelPool, request: Any) -> Evaluation:
            factor = 1.3 if request.config else 1.0
            return changed(whole(self, request), lambda _, one: replace(one, seconds=one.seconds * factor))

        def script(call: ModelCall) -> Any:
            if call.role == "template":
                return rewrite("LIKE 16 16 1") if call.schema is RewriteAnswer else template()
            if call.stage == "round-1" and call.role == "plan":
                return plan(branch(kind="template"), branch(kind="rewrite"))
            return ModelFailed("capped", "the cap is reached")

        monkeypatch.setattr(ModelPool, "_evaluate", evaluate)
        result, _ = run(tmp_path / "run", script, rounds=5, evaluations=60)
        searched = [one for later in plans_of(tmp_path / "run")[1:] for one in later.branches]
        assert searched and all("whole-" not in one.parent for one in searched)
        assert result.summary.evaluations == 29, "the template's 28 points, and the rewrite"

    def test_what_a_last_check_found_wrong_is_built_on_by_nobody(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole = ModelPool.compare

        def compare(self: ModelPool, baseline: Any, candidates: Any, workload: str, **more: Any) -> Any:
            found = whole(self, baseline, candidates, workload, **more)
            results = (
                WRONG if not one.template.parameters and one.template.name == "whole" else result
                for one, result in zip(candidates, found.results, strict=True)
            )
            return replace(found, results=tuple(results))

        monkeypatch.setattr(ModelPool, "compare", compare)
        result, models = run(tmp_path / "run", code, rounds=3, evaluations=24, planner="rules")
        later = [one for later in plans_of(tmp_path / "run")[1:] for one in later.branches]
        assert result.valid and later and all("whole-" not in one.parent for one in later)
        history = [call.messages[1].content for call in models.asked() if call.stage != "round-1"]
        assert any("round 1, rewrite: Sixteen elements a work-item.: wrong in the last check" in one for one in history)

    @pytest.mark.parametrize(("kind", "valid"), [("unstructured", True), ("capped", False)])
    def test_code_is_asked_for_where_only_the_plan_failed(self, tmp_path: Path, kind: Any, valid: bool) -> None:
        """Of a task that brings no template: rules alone would have nothing to plan."""

        def script(call: ModelCall) -> Any:
            if call.role == "plan":
                return ModelFailed(kind, "no plan")
            return rewrite("LIKE 16 4 0") if call.schema is RewriteAnswer else template()

        result, _ = run(tmp_path / "run", script, rounds=1, evaluations=9, explain=False)
        assert result.valid == valid and (result.summary.ended_by == "no template") == (not valid)

    def test_nothing_is_repaired_that_could_not_be_tried(self, tmp_path: Path) -> None:
        asked: list[str] = []

        def script(call: ModelCall) -> Any:
            asked.append(call.name)
            if call.role == "plan":
                return plan(branch(moves=["a"]), branch(moves=["b"]))
            if call.name.startswith("template-2"):
                return template(source="// DOES_NOT_COMPILE\n" + SOURCE)
            return template()

        run(tmp_path / "run", script, rounds=1, evaluations=2, explain=False)
        assert asked == ["plan", "template-1", "template-2"]

    def test_an_answer_that_the_run_has_already_is_a_call_without_gain(self, tmp_path: Path) -> None:
        def script(call: ModelCall) -> Any:
            return rewrite("LIKE 16 16 0") if call.schema is RewriteAnswer else template()

        run(tmp_path / "run", script, rounds=4, evaluations=40, planner="rules")
        with Journal(tmp_path / "run", create=False) as journal:
            added = [entry.event.made_by for entry in journal.entries(TemplateAdded)]
        assert added == ["template", "rewrite"]
        exposed = [one for later in plans_of(tmp_path / "run") for one in later.branches if one.kind == "expose"]
        assert len({one.parent for one in exposed}) == len(exposed), "the same question is not asked twice"

    def test_an_arm_plans_its_own_kinds_only(self, tmp_path: Path) -> None:
        run(tmp_path / "run", code, rounds=2, evaluations=20, planner="rules", arm="template+search")
        kinds = {one.kind for each in plans_of(tmp_path / "run") for one in each.branches}
        assert kinds == {"template", "extend", "search"}
