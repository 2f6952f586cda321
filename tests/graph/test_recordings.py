"""The recorded answers that took the raw kernels of tests/raw from source to tuned kernel: they still become plans and
templates, which compile; on a GPU they are replayed."""

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
from tunesmith.kernels.spec.task import geometry
from tunesmith.kernels.spec.taskfile import load_task

RAW = Path(__file__).resolve().parent.parent / "raw"
NAMES = ("histogram", "int8_quant", "layernorm", "rope", "stencil3x3", "topk_softmax")
PLAN_OF_ROUND_1, TEMPLATE_OF_ROUND_1 = "round-1.plan.plan", "round-1.template.template-1"
REWRITE_OF_ROUND_1 = "round-1.template.rewrite-2"


def lines(name: str, file: str) -> list[dict[str, Any]]:
    text = (RAW / name / "recording" / f"{file}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def answers(name: str) -> dict[str, str]:
    """What the model wrote, by the name of the question."""
    return {
        one["custom_id"].partition("@")[0]: one["response"]["body"]["choices"][0]["message"]["content"]
        for one in lines(name, "answers")
    }


@pytest.mark.parametrize("name", NAMES)
def test_every_question_has_its_answer_and_plans_are_plans(name: str) -> None:
    asked = [one["custom_id"] for one in lines(name, "requests")]
    assert asked and set(asked) == {one["custom_id"] for one in lines(name, "answers")}
    for one in lines(name, "requests"):
        # Nothing of the machine that it ran on gets into a prompt.
        assert "/work" not in json.dumps(one["body"]["messages"]) and "/root" not in json.dumps(one["body"]["messages"])
    plan = PlanAnswer.model_validate_json(answers(name)[PLAN_OF_ROUND_1])
    assert [branch.parent for branch in plan.branches] == ["baseline"] and plan.branches[0].moves


@pytest.mark.parametrize("name", NAMES)
def test_templates_are_feasible_and_compile(name: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    task, limits = load_task(str(RAW / name)), resolve_target("h200")
    template = template_of(TemplateAnswer.model_validate_json(answers(name)[TEMPLATE_OF_ROUND_1]), task, "cuda")
    tuned = task.workloads_for("gpu", held_out=False)
    space = feasible(template, tuned, limits)
    assert len(space) >= 100 and space.index(template.default_config) is not None
    compiler = open_compiler(limits, 0)
    for types in {tuple(sorted(workload.types.items())) for workload in task.workloads}:
        made = compiler.compile(specialise(template, template.default_config, dict(types)))
        assert isinstance(made, Artifact), made
        assert made.resources.spills == 0 and made.globals == ()
        for workload in tuned:
            shape = geometry(template, template.default_config, workload)
            assert compiler_rejection(limits, shape, made.resources) is None


TWELVE = tuple(sorted(path.parent.name for path in RAW.glob("*/six-calls")))


def answered(name: str, arm: str) -> list[tuple[str, TemplateAnswer | RewriteAnswer]]:
    """The answers of an arm of the ablation on twelve kernels, with the names of their questions."""
    found: list[tuple[str, TemplateAnswer | RewriteAnswer]] = []
    for line in (RAW / name / "six-calls" / arm / "answers.jsonl").read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        question = one["custom_id"].partition("@")[0]
        content = one["response"]["body"]["choices"][0]["message"]["content"]
        kind = RewriteAnswer if "rewrite" in question else TemplateAnswer
        found.append((question, kind.model_validate_json(content)))
    return found


def test_an_ablation_of_twelve_kernels_is_recorded() -> None:
    assert len(TWELVE) == 12


@pytest.mark.parametrize("arm", ["rewrite", "tree"])
@pytest.mark.parametrize("name", TWELVE)
def test_its_answers_are_whole_and_feasible(name: str, arm: str) -> None:
    task, limits = load_task(str(RAW / name)), resolve_target("h200")
    found = answered(name, arm)
    assert len(found) == 6
    if arm == "tree":
        assert {question for question, _ in found} >= {TEMPLATE_OF_ROUND_1, REWRITE_OF_ROUND_1}
    for question, answer in found:
        template = template_of(answer, task, "cuda")
        assert refuse_text(template.source, "cuda") is None, question
        space = feasible(template, task.workloads_for("gpu", held_out=False), limits)
        assert space.index(template.default_config) is not None, question


@pytest.mark.slow
@pytest.mark.parametrize("name", TWELVE)
def test_its_answers_compile(name: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    task, limits = load_task(str(RAW / name)), resolve_target("h200")
    compiler = open_compiler(limits, 0)
    workload = task.workloads[0]
    for question, answer in (*answered(name, "rewrite"), *answered(name, "tree")):
        template = template_of(answer, task, "cuda")
        made = compiler.compile(specialise(template, template.default_config, dict(workload.types)))
        assert isinstance(made, Artifact), (question, made)
        shape = geometry(template, template.default_config, workload)
        assert compiler_rejection(limits, shape, made.resources) is None, question


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["rope", "histogram"])
def test_a_recording_replayed_ends_with_a_kernel_that_is_right_and_faster(name: str, tmp_path: Path) -> None:
    recording = RAW / name / "recording"
    result = tune(
        RAW / name,
        run_dir=tmp_path / "run",
        backend="cuda",
        model=f"replay:{recording}",
        rounds=1,
        evaluations=12,
        branches=1,
        explain=False,
    )
    assert result.valid and result.summary["ratio"] < 0.9
    assert {one["verdict"] for one in result.summary["examined"]} == {"accepted"}
