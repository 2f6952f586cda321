"""What a task says of the contents of its arrays holds in whatever is drawn, and whoever makes up sizes keeps to it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tunesmith.actors.judging.task_check import examine_reference
from tunesmith.graph.dispatch import draw_shapes
from tunesmith.graph.results.runtime import drawn
from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.check.plan import array_bytes, plan, small_workload
from tunesmith.kernels.launch.contents import CHANGES, KINDS, Contents, draw_variants
from tunesmith.kernels.spec.task import Argument, Fill, TaskError, Workload
from tunesmith.kernels.spec.taskfile import read_task

CPU = replace(resolve_target("h200"), kind="cpu", backend="opencl")
DATA = Path(__file__).resolve().parents[1] / "data"
GATHER, SPMV = (read_task(DATA / name / "task.toml") for name in ("gather", "spmv"))


def ascends(values: Any, first: float = -np.inf, last: float = np.inf) -> bool:
    return bool((values[:, 1:] >= values[:, :-1]).all() and values.min() >= first and values.max() <= last)


ORDERS: dict[str, tuple[str, Any, Any]] = {
    "bounded": ("int32", {"low": 0, "high": "n - 1"}, lambda one, n: one.min() >= 0 and one.max() < n),
    "coordinates": ("float32", {"low": "-n", "high": "n / 2"}, lambda one, n: -n <= one.min() and one.max() <= n / 2),
    "sorted": ("bfloat16", "sorted", lambda one, n: ascends(one)),
    "table": ("int64", {"kind": "sorted", "low": 5, "high": "5 + n"}, lambda one, n: ascends(one, 5, 5 + n)),
    "permutation": ("int32", "permutation", lambda one, n: (np.sort(one) == np.arange(n)).all()),
    "offsets": ("int32", {"kind": "offsets", "high": "n"},
                lambda one, n: ascends(one, 0, n) and one[:, -1].min() - one[:, 0].max() == n),
}  # fmt: skip


@pytest.mark.parametrize("name", ORDERS)
def test_every_kind_of_contents_and_every_change_keeps_to_the_fill(name: str) -> None:
    (dtype, fill, holds), task, seen = ORDERS[name], GATHER, set()
    declared = {"dtype": dtype, "shape": ("4", "n"), "fill": Fill.model_validate(fill)}
    task = task.model_copy(update={"arguments": (task.arguments[1].model_copy(update=declared), *task.arguments[2:])})
    for n in (2, 3, 50):
        workload = Workload(name=str(n), sizes={"V": 9, "n": n, "d": 2}, types={})
        for contents in (Contents(kind, seed, change) for kind in KINDS for seed in (1, 2) for change in CHANGES):
            first, second = (one["index"] for one in draw_variants(np, task, workload, contents, 2))
            for flat in (first, second):
                values = flat if dtype != "bfloat16" else (flat.astype(np.uint32) << 16).view(np.float32)
                assert holds(values.reshape(4, n).astype(np.float64), n), (contents, values)
            seen.add((contents.change, min(9, int((first != second).sum()))))
    assert {("all", 9), ("rows", 9)} < seen and {at for change, at in seen if change == "few"} & {1, 2}
    at = Fill.model_validate(fill).at(workload)
    ends = (at.mean - at.scale, at.mean + at.scale) if at.distribution == "uniform" else (None, None)
    assert holds(drawn({"shape": (4, n), "dtype": dtype, "fill": (at.kind, *ends)}, np.random.default_rng(0)), n)


def test_offsets_come_with_empty_rows_equal_rows_and_one_that_has_all() -> None:
    found = {kind: draw_variants(np, SPMV, SPMV.workloads[1], Contents(kind), 1)[0] for kind in KINDS}
    steps = {kind: np.diff(arrays["starts"]) for kind, arrays in found.items()}
    assert set(steps["constant"]) == {9} and steps["heavy_tails"].max() == steps["zeros"][-1] == 900
    assert steps["sorted"][0] < 2 and steps["sorted"][-1] > 15 and len(set(steps["task"])) > 9


@settings(max_examples=200, database=None)
@given(
    st.dictionaries(st.sampled_from(["kind", "low", "high", "mean"]), st.sampled_from([*ORDERS, 0, -2.5, "n", None]))
)
def test_any_table_is_a_fill_that_comes_back_from_json_or_a_mistake(table: dict[str, Any]) -> None:
    try:
        fill = Fill.model_validate(table)
    except ValidationError:
        return
    assert Fill.model_validate(json.loads(fill.model_dump_json())) == fill and fill.described


def test_made_up_sizes_keep_to_fills_and_cost_no_more_than_the_task_s_own() -> None:
    for made in [one.workload for one in plan(SPMV, CPU, 3) if one.derived] + [small_workload(SPMV, SPMV.workloads)]:
        assert SPMV.allows(made) and array_bytes(SPMV, made) <= 12 * 4e5, made.name
    further = draw_shapes(SPMV, "cpu", 20, seed=1)
    assert len(further) == 20 and all(SPMV.allows(one) for one in further)
    assert max(array_bytes(SPMV, one) for one in further) <= array_bytes(SPMV, SPMV.workloads[0])
    narrow = SPMV.model_copy(
        update={"arguments": (SPMV.arguments[0].model_copy(update={"dtype": "int8"}), *SPMV.arguments[1:])}
    )
    assert max(one.workload.sizes["nnz"] for one in plan(narrow, CPU, 3) if one.derived) <= 127


@pytest.mark.parametrize("name", ["gather", "spmv"])
def test_a_kernel_is_checked_on_made_up_shapes_of_which_none_is_left_out(name: str, here: Any, tmp_path: Path) -> None:
    right = DATA / name / "kernel.cl"
    # Wrong where a row is empty, or for the first row of the table.
    wrong = right.read_text().replace("k < starts[r + 1]", "k < max(starts[r] + 1, starts[r + 1])")
    (tmp_path / "wrong.cl").write_text(wrong.replace("index[i / d] *", "max(index[i / d], 1) *"))
    # A wrong kernel ends the check; the right one would take all of the time.
    for file, seconds, verdict in ((right, 4, "accepted"), (tmp_path / "wrong.cl", 10, "rejected")):
        found = json.loads(here("check", right.parent, "--source", file, "--check-time", seconds, "--json").stdout)
        assert found["verdict"] == verdict, found
        assert not [one for one in found["steps"] if "the reference" in one.get("why", "")]


def test_a_failure_on_made_up_sizes_says_whose_they_are() -> None:
    strict = GATHER.model_copy(update={"reference": GATHER.reference.replace("return", "assert n > 99; return", 1)})
    smaller = strict.workloads[0].model_copy(update={"sizes": {"V": 5, "n": 3, "d": 2}, "name": "5x3x2 (made smaller)"})
    with pytest.raises(TaskError, match=r"\(made smaller\) \(sizes that Tunesmith chose.*AssertionError"):
        examine_reference(strict, smaller, 0, twice=False)


def test_scalars_may_be_zero_negative_or_fractional_and_differ_by_workload() -> None:
    offset = {"dtype": "int32", "value": "-3 if n == 100 else 0", "values": [-1, 7]}
    alpha = {"dtype": "float32", "value": "-0.5 * n / 100", "values": [0, "1 / 4"]}
    scalars = [Argument(name=f"s{at}", role="scalar", **one) for at, one in enumerate((offset, alpha))]
    other = Workload(name="other", sizes={"V": 9, "n": 50, "d": 4}, types={})
    every = (*GATHER.arguments, *scalars)
    task = GATHER.model_copy(update={"arguments": every, "workloads": (*GATHER.workloads, other)})
    assert [[task.scalar_of(one, at) for one in scalars] for at in task.workloads] == [[-3, -0.5], [0, -0.25]]
    changed = {pair for step in plan(task, CPU, 0) for pair in step.contents.scalars}
    assert changed == {("s0", -1), ("s0", 7), ("s1", 0.0), ("s1", 0.25)}
