"""What rejected configurations share, and what is tried in their place."""

from __future__ import annotations

from typing import Any

import pytest

from tunesmith.graph.roles.verdict import MAX_VARIATIONS, common_defect, has, variations
from tunesmith.kernels.spec.taskfile import load_task
from tunesmith.kernels.spec.template import Parameter

FAST = {"FAST_MATH": True, "VEC": 4, "BLOCK": 128}


@pytest.mark.parametrize(
    ("rejected", "accepted", "measured", "wanted"),
    [
        ([FAST], [], [FAST | {"VEC": 2}], {}),
        ([FAST, FAST | {"BLOCK": 64}], [], [FAST | {"FAST_MATH": False, "VEC": 2}], {"FAST_MATH": True}),
        ([FAST, FAST | {"BLOCK": 64}], [FAST | {"BLOCK": 32, "VEC": 1}], [FAST | {"VEC": 2}], {"VEC": 4}),
        ([FAST, FAST | {"BLOCK": 64}], [], [FAST], {}),
        ([FAST, {"FAST_MATH": False, "VEC": 2, "BLOCK": 64}], [], [FAST | {"VEC": 2}], {}),
    ],
)
def test_a_defect_is_shared_by_all_rejected_and_by_no_accepted(
    rejected: list[Any], accepted: list[Any], measured: list[Any], wanted: dict[str, Any]
) -> None:
    assert common_defect(rejected, accepted, measured) == wanted


def test_relaxed_arithmetic_is_changed_first() -> None:
    template = load_task("silu_and_mul").sources("cuda").templates[0]
    parameters = (
        Parameter(name="VEC", values=(1, 2, 4)),
        Parameter(name="STAGED", values=(False, True)),
        Parameter(name="FAST_MATH", values=(False, True)),
    )
    template = template.model_copy(update={"parameters": parameters})
    rejected = {"VEC": 4, "STAGED": True, "FAST_MATH": True}
    found = variations(template, rejected, {"VEC": 4})
    assert found[0] == rejected | {"FAST_MATH": False} and found[1] == rejected | {"VEC": 2}
    assert rejected | {"STAGED": False} in found and len(found) <= MAX_VARIATIONS
    assert not has(rejected, {}) and has(rejected, {"VEC": 4})
