"""scripts/measure/ablations.py, as far as it needs no GPU: what it says over several kernels."""

from __future__ import annotations

from typing import Any

import pytest

from tunesmith.cli.measure.ablations import over_kernels


def result(**means: float) -> dict[str, Any]:
    return {"arms": [{"arm": arm, "mean": mean, "by_shape": mean**2} for arm, mean in means.items()]}


def test_means_and_who_is_ahead_by_more_than_a_percent() -> None:
    both = over_kernels(
        {
            "a": result(rewrite=2.0, tree=4.0),
            "b": result(rewrite=2.0, tree=2.01),
            "c": result(rewrite=4.0, tree=2.0),
            "unfinished": result(rewrite=9.0),
        }
    )
    found = both["mean"]
    assert both["by_shape"]["rewrite"] == pytest.approx(found["rewrite"] ** 2)
    assert found["rewrite"] == pytest.approx(16.0 ** (1 / 3))
    compared = found["tree over rewrite"]
    assert compared["mean"] == pytest.approx(1.005 ** (1 / 3))
    assert (compared["ahead"], compared["behind"]) == (1, 1)
    assert compared["kernels"]["c"] == 0.5


def test_nothing_is_said_without_a_whole_kernel() -> None:
    assert over_kernels({}) == {}
