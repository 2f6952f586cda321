"""The full verdict: its steps, and how accuracy is compared with the baseline's."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tunesmith.actors.judging.judge import _source_with_parameters
from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.check import plan as planning
from tunesmith.kernels.check import verify as verifying
from tunesmith.kernels.check.compare import Deviation
from tunesmith.kernels.check.plan import Shapes, Step, derived_steps, plan, reaching_steps
from tunesmith.kernels.check.source_sizes import source_integers
from tunesmith.kernels.check.verify import Passed, allowed_errors, growth, infeasible_on, less_accurate
from tunesmith.kernels.launch.contents import EDGE_SHARE, KINDS, RANDOM_BLOCK, WHOLE, Contents, draw, kinds_of, spread
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.task import Fill, Special, Task
from tunesmith.kernels.spec.taskfile import load_task

GPU = resolve_target("h200")
CPU = replace(GPU, kind="cpu", backend="opencl")


@pytest.mark.parametrize("limits", [GPU, CPU], ids=["gpu", "cpu"])
def test_the_plan_has_all_workloads_distributions_and_two_seeds(limits: DeviceLimits) -> None:
    task = load_task("merge_attn_states")
    steps = plan(task, limits, seed=3)
    own = {one.name for one in task.workloads if limits.kind in one.devices}
    assert {one.workload.name for one in steps if not one.derived} == own
    assert {one.contents.kind for one in steps} == set(KINDS)
    assert {one.contents.seed for one in steps} == {3, 3 + planning.SECOND_SEED}
    small = plan(task, limits, seed=3, largest_bytes=0)
    assert len({one.workload.name for one in small if not one.derived}) == 1


def test_the_first_steps_of_a_look_at_what_did_not_run_are_of_all_sizes() -> None:
    task = load_task("silu_and_mul")
    workload = task.workloads[0]
    steps = reaching_steps(task, GPU, workload, [workload.types], seed=0, tried=False)
    assert 8 < len(steps) <= planning.MAX_COVERAGE_STEPS + planning.MAX_NEIGHBOUR_STEPS
    assert all(one.derived and one.workload.types == workload.types for one in steps)
    first = [math.prod(one.workload.sizes.values()) for one in steps[:8]]
    assert min(first) < 100 and max(first) > 1e5 and sum(1e3 < size < 1e5 for size in first) > 1
    assert any(one.workload.sizes["d"] % 8 for one in steps[:8])


def test_a_look_at_what_did_not_run_makes_each_size_as_long_as_the_memory_budget_allows() -> None:
    task = load_task("fused_add_rmsnorm")
    workload, both = task.workloads[0], [{"T": "float16"}, {"T": "float32"}]
    steps = reaching_steps(task, GPU, workload, both, seed=0, tried=True)
    assert len({one.name for one in steps}) == len(steps)
    for types in both:
        mine = [one.workload.sizes for one in steps if one.workload.types == types]
        for size in ("n", "d"):
            # Up to half of the budget, and beside every length another that no vector divides.
            assert max(one[size] for one in mine) > 100_000
            assert {one[size] % 16 for one in mine if one[size] >= 1536} == {0, 1}
    near = [one.workload for one in steps if one.workload.name.endswith("(near)")]
    moved = [task.bytes_of(one.workload) for one in steps if one.workload not in near]
    assert max(moved) <= 2 * planning.MAX_BYTES["gpu"]
    # Large arrays whose rows no vector divides, too, in both types.
    for types in both:
        large = [one for one in near if one.types == types and one.sizes["d"] % 2 and one.sizes["n"] > 1000]
        assert large and max(map(task.bytes_of, large)) <= 2 * planning.MAX_NEIGHBOUR_BYTES["gpu"]


def derived(name: str, limits: DeviceLimits = GPU) -> tuple[Task, list[tuple[dict[str, int], str, str, bool]]]:
    task = load_task(name)
    steps = derived_steps(Shapes(task, limits, task.workloads_for(limits.kind, held_out=False)[0], seed=0))
    return task, [
        (step.workload.sizes, step.workload.types["T"], step.contents.kind, bool(step.contents.scalars))
        for step in steps
    ]


@pytest.mark.parametrize("name", ["silu_and_mul", "fused_add_rmsnorm", "gemm"])
def test_each_size_and_each_kind_comes_with_each_type(name: str) -> None:
    task, found = derived(name)
    types = {workload.types["T"] for workload in task.workloads}
    for size in task.size_names:
        together = {(sizes[size], dtype) for sizes, dtype, _, _ in found}
        assert together >= {(one, dtype) for of_class in planning.LADDER for one in of_class for dtype in types}
    assert {(kind, dtype) for _, dtype, kind, _ in found} >= {(kind, one) for kind in kinds_of(task) for one in types}


def test_each_class_of_a_size_comes_with_each_kind_and_each_value_of_a_scalar() -> None:
    task, found = derived("fused_add_rmsnorm")
    for of_class, size in itertools.product(planning.LADDER, ("n", "d")):
        together = {kind for sizes, _, kind, _ in found if sizes[size] in of_class}
        # Where two long sizes meet, one gives way to the memory budget.
        assert len(together) >= 0.8 * len(kinds_of(task)), (size, of_class)
    assert {kind for _, _, kind, changed in found if changed} == set(kinds_of(task))
    longest = max(one.sizes["d"] for one in task.workloads if "cpu" in one.devices)
    assert max(sizes["d"] for sizes, _, _, _ in derived("fused_add_rmsnorm", CPU)[1]) >= longest


def test_scalars_take_the_values_a_task_lists() -> None:
    task = load_task("fused_add_rmsnorm")
    listed = tuple(
        one.model_copy(update={"values": ("1e-3", "d / 1000")}) if one.name == "eps" else one for one in task.arguments
    )
    steps = derived_steps(Shapes(task.model_copy(update={"arguments": listed}), GPU, task.workloads[0], seed=0))
    found = [(value, step.workload.sizes["d"]) for step in steps for _, value in step.contents.scalars]
    assert found and all(value in (1e-3, size / 1000) for value, size in found)
    steps = derived_steps(Shapes(task, GPU, task.workloads[0], 0))
    assert {value for step in steps for _, value in step.contents.scalars} == {-1e-6, 0.0, 2e-6 + 0.25, 1e-3}


def test_a_launch_of_nothing_is_no_traceback_but_a_reason() -> None:
    task = load_task("silu_and_mul")
    plain = task.sources("cuda").baseline.template
    launch = plain.launch.model_copy(update={"block": ("min(1024, d // 8)",)})
    template = plain.model_copy(update={"launch": launch})
    workload = task.workloads[0].model_copy(update={"sizes": {"n": 3, "d": 7}, "name": "3x7"})
    assert "the launch of 3x7 is empty" in infeasible_on(template, {}, workload, GPU).detail


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("#define GROUP 64\n#define ITEMS 7\n#define CAP (GROUP * ITEMS)\nif (d > CAP && d < 2 * CAP) {}", (448, 896)),
        ("d == 400 + 48", (448,)),
        ("d == 0b111000000 || d == 1'000'000u || d == 01000", (448, 1_000_000, 512)),
        ("if ((d >> 6) == 9)", (576, 639, 6, 9)),
        ("if (9 == d / 64)", (576, 639, 9, 64)),
        ("if (2 * d + 4 >= 900)", (448, 2, 4, 900)),
        ("d % (size_t)GROUP == 0\n#define GROUP (1 << 9)", (512,)),
        ("switch (d) { case (int)(450 - 2): f(x[449], 450); }", (448, 449, 450)),
        ("#if A\n#define CAP 448\n#else\n#define CAP 512\n#endif\nd > CAP + 1", (449, 513)),
        ("#define A B + 1\n#define B A\nd > A", ()),
        ("x / 4 * 2 > -d", (4, 2)),
        ("d - 400 - 48 > 2.5f", (400, 48)),
        ("char c = '9'; d > 300 // 301\n/* 302 */", (300,)),
        ("d > " + "9" * 5000 + " || d > 0x" + "f" * 5000 + " || d == 448", (448,)),
        ("d > 1 << 70 || d > 3 / 0 || d > 448", (448,)),
    ],
)
def test_numbers_that_a_source_compares_with_are_those_it_computes(source: str, wanted: tuple[int, ...]) -> None:
    assert source_integers(source)[: len(wanted)] == wanted


@pytest.mark.parametrize(
    ("nested", "times"), [*((one, 20_000) for one in ("(", "-", "f(", "(a)", "1+", "x[")), ("9+x+", 5000)]
)
def test_a_source_of_any_depth_is_read(nested: str, times: int) -> None:
    assert len(source_integers(nested * times)) <= 2


def test_parameters_are_macros_of_what_a_source_speaks_of() -> None:
    task = load_task("silu_and_mul")
    plain = task.sources("cuda").baseline.template
    template = plain.model_copy(update={"source": "if (d > GROUP * ITEMS) {}"})
    numbers = source_integers(_source_with_parameters(template, {"GROUP": 64, "ITEMS": 7, "FAST": True, "NAME": "x"}))
    assert numbers[0] == 448 and set(numbers) >= {64, 7}


@pytest.mark.parametrize(
    ("times", "is_derived", "error", "allowed"),
    [
        (1, False, 0.95, 1.0),
        (1, True, 0.95, 1.9),
        (5, True, 0.95, 5.0),
        (100, True, 0.95, 15.2),
        (100, True, 0.01, 1.0),
    ],
)
def test_made_up_workloads_are_judged_beside_the_baseline(
    times: int, is_derived: bool, error: float, allowed: float
) -> None:
    task = load_task("softmax")
    sizes = {"n": 1, "d": times * max(one.sizes["d"] for one in task.workloads)}
    step = Step(task.workloads[0].model_copy(update={"sizes": sizes}), Contents(), is_derived)
    (found,) = allowed_errors(step, ({"out": Deviation(error, 0.1)},), growth(task, step.workload))
    assert found == {"out": pytest.approx(allowed)}, "sums longer than the task's own lose more"
    assert Passed("3x7 (derived), task", {}, {}, True, is_derived).own != is_derived


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "float8_e4m3"])
def test_each_kind_of_contents_can_be_drawn_in_each_type(kind: str, dtype: str) -> None:
    values = draw(Contents(kind), Fill(scale=2.0), (37, 41), dtype, rng()).astype(np.float64)
    assert values.shape == (37 * 41,)
    assert np.isnan(values).any() == (kind == "nans") and np.isnan(values).mean() < 0.01
    # An 8-bit float has no infinities, and outliers beyond its range saturate.
    infinite = kind in ("infinities", "masked") and dtype != "float8_e4m3"
    assert np.isinf(values).any() == infinite or (kind, dtype) == ("huge", "float16")
    assert (np.abs(values).max() < 2e-4) == (kind in ("subnormal", "zeros"))


def test_doubles_and_integers_have_all_their_bits() -> None:
    doubles = draw(Contents(), Fill(), (1000,), "float64", rng())
    assert (doubles != doubles.astype(np.float32)).mean() > 0.99
    whole = draw(Contents(), Fill(kind="uniform", scale=2e9), (1000,), "int32", rng())
    assert 400 < (whole & 1).sum() < 600 and whole.min() < -1e9 and whole.max() > 1e9
    assert set(draw(Contents(), Fill(kind="uniform", mean=3, scale=3), (1000,), "uint8", rng())) == set(range(7))
    assert draw(Contents(), Fill(kind="normal", scale=1e30), (1000,), "int64", rng()).max() > 1 << 62
    first, second = (set(draw(Contents("constant"), Fill(), (5,), "float32", rng(), variant)) for variant in (0, 1))
    assert first != second


def test_what_is_repeated_has_no_period() -> None:
    block = np.arange(1000)
    long = spread(np, block, 10_500, rng())
    assert long.size == 10_500 and (np.bincount(long[:10_000]) == 10).all()
    for length in (1000, 999, 500, 2000):
        assert (long[length:] != long[:-length]).mean() > 0.8
    assert RANDOM_BLOCK > 1 << 20


def test_edge_values_share_most_elements_equally() -> None:
    assert "edges" in kinds_of(load_task("merge_attn_states")) and "edges" not in kinds_of(load_task("softmax"))
    declared = Fill(special=tuple(Special(value=value, fraction=0.01) for value in (5, 7, 9)))
    values = draw(Contents("edges"), declared, (200_000,), "float32", rng())
    for value in (5, 7, 9):
        assert np.mean(values == value) == pytest.approx(EDGE_SHARE / 3, abs=0.01)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64", "bool"])
def test_integers_keep_to_what_is_declared(kind: str, dtype: str) -> None:
    high = 1 if dtype == "bool" else 100
    values = draw(Contents(kind), Fill(kind="uniform", mean=high / 2, scale=high / 2), (1000,), dtype, rng())
    assert values.dtype == DTYPES[dtype].storage and values.size == 1000
    assert values.min() >= 0 and values.max() <= high
    if kind == "zeros":
        assert not values.any()
    elif kind != "constant":
        assert values.min() <= high / 10 and values.max() >= high * 9 / 10
    above = draw(Contents(kind), Fill(kind="uniform", mean=10, scale=3), (1000,), "int32", rng())
    assert above.min() >= 7 and above.max() <= 13
    around = draw(Contents(), Fill(mean=40, scale=3), (1000,), "int32", rng())
    drawn = draw(Contents(kind), Fill(mean=40, scale=3), (1000,), "int32", rng())
    assert drawn.min() >= around.min() and drawn.max() <= around.max()


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "int64", "uint64", "bool"])
def test_integers_of_which_nothing_is_declared_are_of_all_sizes_that_float64_has(dtype: str) -> None:
    low, high = DTYPES[dtype].span
    low, high = max(low, -(2**53)), min(high, 2**53)

    def drawn(kind: str) -> list[int]:
        return [int(value) for value in draw(Contents(kind), Fill(), (40, 50), dtype, rng())]

    whole, ends, large, ordered = drawn("uniform"), drawn("heavy_tails"), drawn("huge"), drawn("sorted")
    assert min(whole) < low + (high - low) / 100 + 1 and max(whole) > high - (high - low) / 100 - 1
    assert {low, high} <= set(ends) <= {low, low + 1, high - 1, high}
    # Sums of thousands of these hold in the type.
    assert dtype == "bool" or 1 < max(abs(one) for one in large) <= 2 ** (DTYPES[dtype].size * 5)
    assert ordered == [one for at in range(0, 2000, 50) for one in sorted(ordered[at : at + 50])]
    assert set(drawn("zeros")) == {0} and len(set(drawn("constant"))) == 1


def test_a_task_of_integers_has_kinds_of_contents() -> None:
    task = load_task(str(Path(__file__).resolve().parent.parent / "candidates" / "tasks" / "row_sum"))
    assert kinds_of(task) == WHOLE
    steps = plan(task, GPU, seed=0)
    assert {one.contents.kind for one in steps} == set(WHOLE)
    # What the task does not declare comes on made-up workloads alone.
    assert {one.contents.kind for one in steps if not one.derived} == {"task"}


@pytest.mark.parametrize(
    ("rms", "baseline", "elements", "longer", "accepted"),
    [
        (0.39, 0.2, verifying.ACCURACY_ELEMENTS, 1, True),
        (0.41, 0.2, verifying.ACCURACY_ELEMENTS, 1, False),
        (0.24, 0.001, verifying.ACCURACY_ELEMENTS, 1, True),
        (0.41, 0.2, 3, 1, True),
        # A sum in order of 32768 float32 squares has a quarter of a tolerance that is meant for 14336.
        (0.5, 0.004, verifying.ACCURACY_ELEMENTS, 1, False),
        (0.5, 0.004, verifying.ACCURACY_ELEMENTS, 3, True),
    ],
)
def test_less_accurate_is_judged_by_the_baseline_above_a_share_that_grows_with_sums(
    rms: float, baseline: float, elements: int, longer: int, accepted: bool
) -> None:
    task = load_task("fused_add_rmsnorm")
    longest = max(one.sizes["d"] for one in task.workloads)
    grown = growth(task, task.workloads[0].model_copy(update={"sizes": {"n": 1, "d": longer * longest}}))
    assert grown == longer and growth(task, task.workloads[0]) == 1
    found, standard = {"out": Deviation(0.9, rms)}, {"out": Deviation(0.4, baseline)}
    assert (less_accurate(found, standard, {"out": elements}, grown * verifying.ACCURACY_FREE) is None) == accepted


@pytest.mark.parametrize("dtype", [one.name for one in DTYPES.values() if one.is_float])
def test_poison_is_a_nan_that_computing_does_not_give(dtype: str) -> None:
    kind = DTYPES[dtype].storage
    poison = np.array(DTYPES[dtype].poison * 8, np.uint8)[: kind.itemsize].view(kind)
    assert np.isnan(poison.astype(np.float64)).all()
    # A GPU's NaN is positive, also that of conversions to 8 bits; here it has the sign of this machine.
    zero = np.zeros(1, np.float32)
    with np.errstate(invalid="ignore"):
        computed = (np.abs(zero / zero) if kind.itemsize == 1 else zero / zero).astype(kind)
    assert computed.tobytes() != poison.tobytes()
