"""The full verdict: what is checked, what is skipped, and how accuracy is compared with the baseline's."""

from __future__ import annotations

import numpy as np
import pytest

from tunesmith.kernels.check.check import Deviation, deviation
from tunesmith.kernels.check.verify import _less_accurate, derived_workloads, plan
from tunesmith.kernels.launch.workload_data import draw
from tunesmith.kernels.spec.contents import EDGE_SHARE, KINDS, Contents, kinds_of
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.task import Fill, Special, Tolerance, Workload
from tunesmith.kernels.spec.taskfile import load_task

LIMIT = DTYPES["float16"].overflow
TOLERANCE = Tolerance(rtol=1e-3, atol=1e-6)


def test_derived_shapes_are_ones_and_odd_sizes() -> None:
    found = [one.sizes for one in derived_workloads(Workload(name="w", sizes={"n": 64, "d": 100}, types={}))]
    assert found == [{"n": 1, "d": 100}, {"n": 64, "d": 1}, {"n": 63, "d": 99}, {"n": 65, "d": 101}]
    assert derived_workloads(Workload(name="w", sizes={"n": 1}, types={})) == []


@pytest.mark.parametrize("kind", ["gpu", "cpu"])
def test_the_plan_has_all_workloads_distributions_and_two_seeds(kind: str) -> None:
    task = load_task("merge_attn_states")
    steps = plan(task, kind, seed=3)
    own = {one.name for one in task.workloads if kind in one.devices}
    assert {one.workload.name for one in steps if not one.derived} == own
    assert {one.contents.kind for one in steps} == set(KINDS)
    assert len({one.contents.seed for one in steps}) == 2
    small = plan(task, kind, seed=3, largest_bytes=0)
    assert len({one.workload.name for one in small if not one.derived}) == 1


def test_edges_are_only_for_tasks_that_name_some() -> None:
    assert "edges" in kinds_of(load_task("merge_attn_states"))
    assert "edges" not in kinds_of(load_task("softmax"))


def test_edge_values_share_most_elements_equally() -> None:
    declared = Fill(
        special=(Special(value=5, fraction=0.01), Special(value=7, fraction=0.01), Special(value=9, fraction=0.01))
    )
    values = draw(Contents("edges").fill(declared, "float32", 0), 200_000, "float32", np.random.default_rng(0))
    for value in (5, 7, 9):
        assert np.mean(values == value) == pytest.approx(EDGE_SHARE / 3, abs=0.01)


def test_integers_keep_what_is_declared() -> None:
    declared = Fill(kind="uniform", mean=50, scale=50)
    assert all(Contents(kind).fill(declared, "int32", 0) == declared for kind in KINDS)
    assert Contents("zeros").fill(declared, "float16", 0) == Fill(kind="constant", mean=0.0)


def test_variants_of_a_constant_differ() -> None:
    fills = [Contents("constant").fill(Fill(), "float32", variant) for variant in (0, 1)]
    assert fills[0] != fills[1]


def test_near_the_largest_number_infinity_and_the_number_are_both_right() -> None:
    expected = np.array([LIMIT - 20, LIMIT + 20, LIMIT / 2, -LIMIT, np.inf])
    got = np.array([np.inf, 65504.0, np.inf, np.inf, 65504.0])
    shares = deviation(np, got, expected, TOLERANCE, LIMIT)
    assert list(shares <= 1) == [True, True, False, False, False]


def test_less_accurate_is_judged_by_the_baseline_above_what_is_free() -> None:
    standard = {"out": Deviation(0.4, 0.2)}
    assert _less_accurate({"out": Deviation(0.9, 0.39)}, standard) is None
    assert _less_accurate({"out": Deviation(0.9, 0.41)}, standard) is not None
    assert _less_accurate({"out": Deviation(0.9, 0.24)}, {"out": Deviation(0.01, 0.001)}) is None


@pytest.mark.parametrize("dtype", [one.name for one in DTYPES.values() if one.is_float])
def test_poison_is_a_nan_that_computing_does_not_give(dtype: str) -> None:
    kind, bytes_in_turn = DTYPES[dtype].storage, DTYPES[dtype].poison
    poison = np.array(bytes_in_turn * 8, np.uint8)[: kind.itemsize].view(kind)
    assert np.isnan(poison.astype(np.float64)).all()
    # A GPU's NaN is positive, also that of conversions to 8 bits; here it has the sign of this machine.
    zero = np.zeros(1, np.float32)
    with np.errstate(invalid="ignore"):
        computed = (np.abs(zero / zero) if kind.itemsize == 1 else zero / zero).astype(kind)
    assert computed.tobytes() != poison.tobytes()
