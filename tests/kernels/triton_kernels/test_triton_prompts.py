"""Models' answers for a task in Triton: the prompt speaks of it, and an answer becomes a template."""

from pathlib import Path

from model_runs import template
from typer.testing import CliRunner
from written import KERNEL, triton_task

from tunesmith.cli.main import app
from tunesmith.graph.roles.templater import TemplateAnswer, template_of
from tunesmith.kernels.build.source import code_key, specialise
from tunesmith.kernels.reader.signature import require_signature


def test_an_answer_becomes_a_template(tmp_path: Path) -> None:
    task = triton_task(tmp_path)
    values = {"BLOCK": [256, 512], "num_warps": [2, 4], "num_stages": [1, 2]}
    parameters = [{"name": name, "values": one, "default": one[0], "doc": ""} for name, one in values.items()]
    launch = {"grid": ["ceil_div(n, BLOCK)"], "block": ["32 * num_warps"]}
    answer = template(source=KERNEL, parameters=parameters, constraints=[], **launch)
    made = template_of(TemplateAnswer.model_validate(answer), task, "triton")
    assert require_signature(task, made, "the answer") == ""
    text = specialise(made, made.default_config, dict(code_key(task, made, task.workloads[0]))).source
    assert "'num_stages': 1" in text and "'num_warps': 2" in text


def test_the_prompt_speaks_of_triton(tmp_path: Path) -> None:
    triton_task(tmp_path)
    shown = CliRunner().invoke(app, ["prompts", str(tmp_path), "--target", "h200"])
    assert shown.exit_code == 0, shown.output
    for word in ("a Triton kernel", "def run(x, y, out, n, step, alpha)", "@triton.jit"):
        assert word in shown.output
    assert "OpenCL" not in shown.output and "NVRTC" not in shown.output
