"""Rules that break the kernel are withdrawn, and the run goes on with the others."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from model_runs import RAW, run, simulation

from tunesmith.graph.journal.events import TemplateAdded
from tunesmith.graph.journal.log import RunLog
from tunesmith.graph.journal.records import Winner
from tunesmith.graph.journal.store import Journal
from tunesmith.graph.roles.verdict import _only_where
from tunesmith.kernels.rewrite import template
from tunesmith.kernels.rewrite.examples import read_signature, task_from
from tunesmith.kernels.rewrite.passes.rule import Applied, Edit, Rule, Skipped, Subject, rule
from tunesmith.kernels.spec.template import Parameter

__all__ = ["simulation"]
SOURCE = """__kernel void scale(__global const float* x, __global float* y) {
    const int i = get_global_id(0);
    y[i] = 2.0f * x[i];
}"""
INPUTS_AND_OUTPUTS = [{"x": np.ones(4096, np.float32), "y": np.ones(4096, np.float32)}]


def planted(name: str, mark: str) -> Rule:
    """A rule whose code the simulated device takes for wrong, whatever its parameter is."""

    def broken(given: Subject) -> Applied | Skipped:
        at = given.kernel.body.end_byte - 1
        return Applied((Parameter(name=name.upper(), values=(0, 1), doc=name),), (Edit(at, at, f"// {mark}\n"),))

    broken.__name__ = name
    return rule(broken)


DOES_NOT_COMPILE, IS_WRONG = planted("unreadable", "DOES_NOT_COMPILE"), planted("wrong", "WRONG")


@pytest.mark.parametrize(
    ("rules", "withdrawn", "left"),
    [
        ((DOES_NOT_COMPILE, *template.OPENCL_RULES), ["unreadable"], {"BLOCK", "ITEMS", "BLOCKED"}),
        ((template.OPENCL_RULES[0], IS_WRONG, DOES_NOT_COMPILE), ["unreadable", "wrong"], {"BLOCK"}),
        ((IS_WRONG,), ["wrong"], set()),
    ],
)
def test_rules_that_break_a_kernel_are_withdrawn(
    rules: tuple[Rule, ...],
    withdrawn: list[str],
    left: set[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    simulation: Any,
) -> None:
    monkeypatch.setattr(template, "OPENCL_RULES", rules)
    monkeypatch.setattr("simulated_pool.seconds", lambda config, workload: 1e-5 if config else 2e-5)
    result, _ = run(tmp_path / "run", None, task=RAW, evaluations=8, rounds=1)
    with Journal(tmp_path / "run", create=False, reading=True) as journal:
        log = RunLog(journal)
        [searched] = [one.template for one in log.events(TemplateAdded)]
        notes = " ".join(one.sentence for one in log.notes("round-1"))
    assert {one.name for one in searched.parameters} == left
    for name in withdrawn:
        assert f"The rule {name} is withdrawn" in notes
    assert result.summary.general is not None and result.summary.general.template == searched.id


@pytest.mark.parametrize(("block", "items", "fits_all"), [(0, 1, True), (64, 2, False)])
def test_a_winner_that_fits_only_some_shapes_is_said_to(block: int, items: int, fits_all: bool) -> None:
    signature = read_signature(SOURCE, None)
    task = task_from(signature, SOURCE, ("", "baseline", "numpy"), INPUTS_AND_OUTPUTS, grid=["x_0 // 16"], block=[16])
    made = template.rewrite(task, "opencl").template
    assert made is not None and "no guard" in made.description
    context: Any = SimpleNamespace(template=lambda name: made)
    said = _only_where(context, Winner(template=made.id, config={"BLOCK": block, "ITEMS": items, "BLOCKED": False}))
    assert (said == "") == fits_all and ("`x_0 // 16 * 16 % 128 == 0`" in said) != fits_all
