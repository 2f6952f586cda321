"""The recorded answers that took the raw kernels of tests/raw from source to tuned kernel: they still become plans and
templates, which compile; on a GPU they are replayed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tunesmith.graph import tune
from tunesmith.graph.prompts.answers import PlanAnswer, TemplateAnswer, template_of
from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.backends import open_compiler
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.specialise import specialise
from tunesmith.kernels.space.feasible import compiler_rejection, feasible
from tunesmith.kernels.spec.files.taskfile import load_task
from tunesmith.kernels.spec.geometry import geometry

RAW = Path(__file__).resolve().parent.parent / "raw"
NAMES = ("histogram", "int8_quant", "layernorm", "rope", "stencil3x3", "topk_softmax")
PLAN_OF_ROUND_1, TEMPLATE_OF_ROUND_1 = "round-1.plan.plan", "round-1.template.template-1"


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
def test_every_question_has_its_answer(name: str) -> None:
    asked = [one["custom_id"] for one in lines(name, "requests")]
    assert asked and set(asked) == {one["custom_id"] for one in lines(name, "answers")}
    for one in lines(name, "requests"):
        # Nothing of the machine that it ran on gets into a prompt.
        assert "/work" not in json.dumps(one["body"]["messages"]) and "/root" not in json.dumps(one["body"]["messages"])


@pytest.mark.parametrize("name", NAMES)
def test_plans_are_plans(name: str) -> None:
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
