"""The recorded answers that took the raw kernels of tests/raw from source to tuned kernel, and those of an ablation on
twelve of them: they still become plans and templates, which compile; on a GPU they are replayed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tunesmith.graph import tune
from tunesmith.graph.prompts.answers import PlanAnswer, RewriteAnswer, TemplateAnswer, template_of
from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.backends import open_compiler
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.guard import refuse_text
from tunesmith.kernels.build.source import specialise
from tunesmith.kernels.space import compiler_rejection, feasible
from tunesmith.kernels.spec.task import Task, geometry
from tunesmith.kernels.spec.taskfile import load_task
from tunesmith.kernels.spec.template import Template

RAW = Path(__file__).resolve().parent.parent / "raw"
WHOLE = sorted(f"{path.parent.name}/recording" for path in RAW.glob("*/recording"))
RECORDINGS = [*WHOLE, *sorted(str(path.relative_to(RAW)) for path in RAW.glob("*/six-calls/*"))]
FAST = ("rope/recording", "topk_softmax/recording")
PLAN_OF_ROUND_1 = "round-1.plan.plan"


def lines(name: str, file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RAW / name / f"{file}.jsonl").read_text(encoding="utf-8").splitlines()]


def answers(name: str) -> dict[str, str]:
    """What the model wrote, by the name of the question."""
    return {
        one["custom_id"].partition("@")[0]: one["response"]["body"]["choices"][0]["message"]["content"]
        for one in lines(name, "answers")
    }


def read(name: str) -> tuple[Task, dict[str, Template]]:
    """The task, and its templates and whole kernels by the names of their questions."""
    task = load_task(str(RAW / Path(name).parts[0]))
    kinds = {"template": TemplateAnswer, "rewrite": RewriteAnswer}
    asked = ((question, text, question.split(".")[2].split("-")[0]) for question, text in answers(name).items())
    found = {question: kinds[kind].model_validate_json(text) for question, text, kind in asked if kind in kinds}
    return task, {question: template_of(answer, task, "cuda") for question, answer in found.items()}


def test_an_ablation_of_twelve_kernels_is_recorded_beside_whole_runs() -> None:
    assert len(WHOLE) == 6 and len(RECORDINGS) == 6 + 2 * 12


@pytest.mark.parametrize("name", WHOLE)
def test_every_question_has_its_answer_and_plans_are_plans(name: str) -> None:
    asked = [one["custom_id"] for one in lines(name, "requests")]
    assert asked and set(asked) == {one["custom_id"] for one in lines(name, "answers")}
    for one in lines(name, "requests"):
        # Nothing of the machine that it ran on gets into a prompt.
        assert "/work" not in json.dumps(one["body"]["messages"]) and "/root" not in json.dumps(one["body"]["messages"])
    plan = PlanAnswer.model_validate_json(answers(name)[PLAN_OF_ROUND_1])
    assert [branch.parent for branch in plan.branches] == ["baseline"] and plan.branches[0].moves


@pytest.mark.parametrize("name", RECORDINGS)
def test_answers_are_whole_and_feasible(name: str) -> None:
    (task, found), limits = read(name), resolve_target("h200")
    if "six-calls" in name:
        assert len(found) == 6
    if name.endswith("tree"):
        assert found.keys() >= {"round-1.template.template-1", "round-1.template.rewrite-2"}
    for question, template in found.items():
        assert refuse_text(template.source, "cuda") is None, question
        space = feasible(template, task.workloads_for("gpu", held_out=False), limits)
        assert space.index(template.default_config) is not None, question
        assert len(space) >= 100 or name not in WHOLE


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in FAST else pytest.mark.slow) for n in RECORDINGS])
def test_answers_compile(name: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    (task, found), limits = read(name), resolve_target("h200")
    compiler = open_compiler(limits, 0)
    workloads = task.workloads if name in WHOLE else task.workloads[:1]
    for question, template in found.items():
        for types in {tuple(sorted(workload.types.items())) for workload in workloads}:
            made = compiler.compile(specialise(template, template.default_config, dict(types)))
            assert isinstance(made, Artifact), (question, made)
            assert made.globals == () and (made.resources.spills == 0 or name not in WHOLE)
            for workload in task.workloads_for("gpu", held_out=False):
                shape = geometry(template, template.default_config, workload)
                assert compiler_rejection(limits, shape, made.resources) is None, question


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["rope", "histogram"])
def test_a_recording_replayed_ends_with_a_kernel_that_is_right_and_faster(name: str, tmp_path: Path) -> None:
    result = tune(
        RAW / name,
        run_dir=tmp_path / "run",
        backend="cuda",
        model=f"replay:{RAW / name / 'recording'}",
        rounds=1,
        evaluations=12,
        branches=1,
        explain=False,
    )
    assert result.valid and result.summary["ratio"] < 0.9
    assert {one["verdict"] for one in result.summary["examined"]} == {"accepted"}
