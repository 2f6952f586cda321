"""Triton's sources: what they may contain, what of a workload decides the machine code, whose arguments are passed."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from written import KERNEL, triton_task

from tunesmith.kernels.build.guard import refuse_text
from tunesmith.kernels.build.python_source import SPECIALISED
from tunesmith.kernels.build.source import code_key, specialise
from tunesmith.kernels.reader.signature import require_signatures
from tunesmith.kernels.rewrite.template import rewrite
from tunesmith.kernels.spec.task import TaskError

HEURISTICS = KERNEL.replace("@triton.jit", '@triton.heuristics({"BLOCK": lambda args: 256})\n@triton.jit')


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


def test_sizes_of_one_class_share_their_machine_code(tmp_path: Path) -> None:
    task = triton_task(tmp_path)
    template, workload = task.sources("triton").templates[0], task.workloads[0]
    other = workload.model_copy(update={"sizes": {"n": 1 << 20}})
    assert code_key(task, template, workload) == code_key(task, template, other)
    asking = template.model_copy(update={"source": HEURISTICS})
    assert code_key(task, asking, workload) != code_key(task, asking, other)


def test_the_kernel_takes_the_tasks_arguments(tmp_path: Path) -> None:
    assert set(require_signatures(triton_task(tmp_path), "triton").values()) == {""}
    with pytest.raises(TaskError, match="passes x, y, out, n, step, alpha, BLOCK, and the task has x, y"):
        require_signatures(triton_task(tmp_path, fixed='"num_warps": 4'), "triton")
    assert require_signatures(triton_task(tmp_path, HEURISTICS, fixed='"num_warps": 4'), "triton")["baseline"] == ""


def test_rules_leave_python_alone(tmp_path: Path) -> None:
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


TAKEN = KERNEL.replace("x", "input").replace("y", "target")


@pytest.mark.parametrize("text", [KERNEL, HEURISTICS, TAKEN, f"X = 4\nY: tl.constexpr = tl.constexpr(X)\n{KERNEL}"])
def test_kernels_are_accepted(text: str) -> None:
    assert refuse_text(text, "triton") is None
