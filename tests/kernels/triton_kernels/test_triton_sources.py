"""Triton's sources: what they may contain, what of a workload decides the machine code, whose arguments are passed; and
what is said where no task can be drafted of one; prompts and answers of models about them. Needs no Triton."""

import ast
import math
import sys
from pathlib import Path

import pytest
from model_runs import template
from typer.testing import CliRunner
from written import KERNEL, triton_task

from tunesmith.actors.judging.judge import MAX_CLASSES, MAX_GROWTH, of_few_classes
from tunesmith.cli.main import app
from tunesmith.graph.roles.templater import TemplateAnswer, template_of
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.limits import as_triton
from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.build.guard import refuse_text
from tunesmith.kernels.build.python_source import SPECIALISED, argument_classes, asked_values
from tunesmith.kernels.build.source import code_key, specialise
from tunesmith.kernels.check.plan import plan
from tunesmith.kernels.reader.signature import require_signature, require_signatures
from tunesmith.kernels.rewrite.template import rewrite
from tunesmith.kernels.spec.task import TaskError
from tunesmith.kernels.triton.draft import draft_triton

HEURISTICS = KERNEL.replace(
    "@triton.jit", '@triton.heuristics({"BLOCK": lambda args: min(args["n"], 256)})\n@triton.jit'
)


def test_whole_numbers_are_compiled_by_their_class(tmp_path: Path) -> None:
    task = triton_task(tmp_path)
    template, (even, odd) = task.sources("triton").templates[0], task.workloads
    made = specialise(template, {"BLOCK": 128, "num_warps": 1}, dict(code_key(task, template, even)))
    about = ast.literal_eval(made.source.rpartition(f"{SPECIALISED} = ")[2])
    assert about["values"] == {"BLOCK": 128, "num_warps": 1}
    arrays = {"x": "*fp16", "y": "*fp16", "out": "*fp16"}
    assert about["arguments"] == {**arrays, "n": "i32:16", "step": "i32:1", "alpha": "fp32"}
    assert list(about["arguments"]) == [one.name for one in task.arguments]
    assert dict(code_key(task, template, odd))["argument n"] == "i32"
    task = triton_task(tmp_path)
    template, workload = task.sources("triton").templates[0], task.workloads[0]
    other = workload.model_copy(update={"sizes": {"n": 1 << 20}})
    assert code_key(task, template, workload) == code_key(task, template, other)
    asking = template.model_copy(update={"source": HEURISTICS})
    assert code_key(task, asking, workload) != code_key(task, asking, other)
    assert set(require_signatures(triton_task(tmp_path), "triton").values()) == {""}
    with pytest.raises(TaskError, match="passes x, y, out, n, step, alpha, BLOCK, and the task has x, y"):
        require_signatures(triton_task(tmp_path, fixed='"num_warps": 4'), "triton")
    assert require_signatures(triton_task(tmp_path, HEURISTICS, fixed='"num_warps": 4'), "triton")["baseline"] == ""
    made = rewrite(triton_task(tmp_path), "triton")
    assert made.template is None and made.skipped


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (f"import os\n{KERNEL}", "imports"),
        (f"from triton.runtime import driver\n{KERNEL}", "imports"),
        (f"{KERNEL}\nopen('x', 'w')\n", "statements"),
        (f"{KERNEL}\nX = run.fn('x')\n", "constants"),
        (KERNEL.replace("at < n", "at < tl.core.os.getpid()"), "names"),
        (KERNEL.replace("at < n", "at < n.__class__"), "names"),
        (KERNEL.replace("at < n", "at < open('x')"), "names"),
        (KERNEL.replace("@triton.jit", "@print\n@triton.jit"), "functions"),
        (f"{KERNEL}\ndef other():\n    return 1\n", "functions"),
    ],
)
def test_what_a_kernel_has_no_need_of_is_refused(text: str, rule: str) -> None:
    refused = refuse_text(text, "triton")
    assert refused is not None and (refused.reason, refused.rule) == ("forbidden_source", rule)


TWICE = "\n\n@triton.jit\ndef twice(x):\n    return 2 * x\n"
TAKEN = KERNEL.replace("x", "input").replace("y", "target")


@pytest.mark.parametrize("text", [KERNEL, HEURISTICS, TAKEN, f"X = 4\nY: tl.constexpr = tl.constexpr(X)\n{KERNEL}"])
def test_kernels_are_accepted(text: str) -> None:
    assert refuse_text(text, "triton") is None


HEURISTIC = """\
import triton
import triton.language as tl


@triton.heuristics({
    'BLOCK': lambda args: triton.next_power_of_2(args['n']),
    'EVEN': lambda args: args['m'] % 16 == 0,
})
@triton.jit
def run(x, n, m, k, C: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    pass
"""


def test_of_a_size_that_a_block_covers_the_power_of_two_decides(tmp_path: Path) -> None:
    task = triton_task(tmp_path)
    assert asked_values(HEURISTIC, "run") == {"C": True, "BLOCK": True, "EVEN": True, "n": False, "m": True}
    # What a heuristic reads in another way may be any argument.
    assert asked_values(HEURISTIC.replace("args['m'] %", "args.get('m') %"), "run")["k"]

    def kind(n: int) -> str:
        sized = task.workloads[0].model_copy(update={"sizes": {"n": n}})
        return argument_classes(task, sized, asked={"n": False})["argument n"]

    assert [kind(n) for n in (1, 2, 9, 16, 100, 112, 1000, 1024)] == [
        "i32=1", "i32=2", "i32=15", "i32=16", "i32=127", "i32=128", "i32=1023", "i32=1024"
    ]  # fmt: skip
    for n in range(1, 3000):
        like = int(kind(n)[4:])
        assert (like - 1).bit_length() == (n - 1).bit_length() and (like == 1, like % 16 == 0) == (n == 1, n % 16 == 0)
    task = triton_task(tmp_path, KERNEL.replace("n, step", "n: tl.constexpr, step"))
    template, limits = task.sources("triton").templates[0], as_triton(resolve_target("h200"))
    steps = plan(task, limits, 0, math.inf, None, template.source, set())
    kept = of_few_classes(task, template, steps)
    classes = {code_key(task, template, step.workload) for step in kept if step.derived}
    assert len(kept) < len(steps) and len(classes) <= MAX_CLASSES + len(task.workloads)
    assert [step for step in steps if not step.derived] == [step for step in kept if not step.derived]
    largest = max(step.workload.sizes["n"] for step in steps if not step.derived)
    assert max(step.workload.sizes["n"] for step in kept) <= MAX_GROWTH * largest
    assert max(step.workload.sizes["n"] for step in steps) > MAX_GROWTH * largest
    others = triton_task(tmp_path)
    template = others.sources("triton").templates[0]
    steps = plan(others, limits, 0, math.inf, None, template.source, set())
    assert of_few_classes(others, template, steps) == steps


@pytest.mark.parametrize(
    ("text", "entry", "sentence"),
    [
        (KERNEL + KERNEL.replace("run", "other"), None, "there are 2 kernels: choose one of run, other"),
        (KERNEL, "mul", "there is no kernel 'mul'; choose --entry from run"),
        (KERNEL + TWICE, "twice", "twice returns a value, as no kernel does; choose --entry from run"),
        (TWICE, None, "there is no kernel, a function decorated with @triton.jit without a result"),
        ("\ndef f(:\n", None, "line 2: it is not valid Python"),
        (KERNEL, "run", r"^Triton kernels cannot be drafted here \(.*\): install the extra triton: `pip .*`\.$"),
    ],
)
def test_what_is_no_kernel_is_refused_and_a_draft_needs_triton(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, entry: str | None, sentence: str
) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    path = tmp_path / "model.py"
    path.write_text(text)
    with pytest.raises(TunesmithError, match=sentence):
        draft_triton(path, entry)


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
