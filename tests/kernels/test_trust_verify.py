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
from tunesmith.kernels.check.plan import Shapes, Step, drawn_steps, plan, reaching_steps
from tunesmith.kernels.check.source_sizes import source_integers
from tunesmith.kernels.check.verify import Passed, allowed_errors, growth, infeasible_on, less_accurate
from tunesmith.kernels.launch.contents import EDGES, KINDS, PLAIN, RANDOM_BLOCK, WHOLE, Contents, draw, kinds_of, spread
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.task import Fill, Special, Task
from tunesmith.kernels.spec.taskfile import load_task

GPU = resolve_target("h200")
CPU = replace(GPU, kind="cpu", backend="opencl")


@pytest.mark.parametrize("limits", [GPU, CPU], ids=["gpu", "cpu"])
def test_the_plan_has_all_workloads_kinds_of_contents_and_two_seeds(limits: DeviceLimits) -> None:
    task = load_task("merge_attn_states")
    steps = plan(task, limits, seed=3)
    own = {one.name for one in task.workloads if limits.kind in one.devices}
    assert {one.workload.name for one in steps if not one.derived} == own
    assert frozenset().union(*(one.contents.kinds for one in steps)) == set(KINDS)
    assert {one.contents.seed for one in steps} == {3, 3 + planning.SECOND_SEED}
    assert len({one.name for one in steps}) == len(steps)
    small = plan(task, limits, seed=3, largest_bytes=0)
    assert len({one.workload.name for one in small if not one.derived}) == 1


def test_the_first_steps_of_a_look_at_what_did_not_run_are_of_all_sizes() -> None:
    task = load_task("silu_and_mul")
    workload, types = task.workloads[0], [{"T": "float16"}, {"T": "float32"}]
    steps = reaching_steps(task, GPU, workload, types, seed=0)
    assert all(one.derived for one in steps) and len({one.name for one in steps}) == len(steps)
    assert [one.workload.types["T"] for one in steps[:4]] == ["float16", "float32"] * 2
    first = [math.prod(one.workload.sizes.values()) for one in steps[:12]]
    assert min(first) < 2e5 < max(first) and any(one.workload.sizes["d"] % 8 for one in steps[:12])
    for size in ("n", "d"):
        assert max(one.workload.sizes[size] for one in steps) > 250_000
    near = [one.workload for one in steps if one.workload.name.endswith("(near)")]
    assert max(task.bytes_of(one) for one in near) <= 2 * planning.MAX_NEIGHBOUR_BYTES["gpu"]
    # Large arrays whose rows no vector divides, too.
    assert any(one.sizes["d"] % 2 and one.sizes["n"] > 1000 for one in near)


def drawn(name: str, limits: DeviceLimits, seed: int) -> tuple[Task, list[Step]]:
    task = load_task(name)
    return task, drawn_steps(Shapes(task, limits, task.workloads_for(limits.kind, held_out=False)[0], seed))


@pytest.mark.parametrize(
    ("name", "limits"), [("fused_add_rmsnorm", CPU), ("fused_add_rmsnorm", GPU), ("gemm", GPU), ("rope", CPU)]
)
def test_what_is_drawn_can_be_repeated_and_not_foreseen(name: str, limits: DeviceLimits) -> None:
    task, steps = drawn(name, limits, 1)
    assert [one.name for one in steps] == [one.name for one in drawn(name, limits, 1)[1]]
    sizes = {tuple(one.workload.sizes.values()) for one in steps}
    again = {tuple(one.workload.sizes.values()) for one in drawn(name, limits, 2)[1]}
    assert len(sizes & again) < len(sizes) / 10
    assert {one.workload.types["T"] for one in steps} == set(task.types["T"])
    for size in task.size_names:
        values = [one.workload.sizes[size] for one in steps]
        assert len(set(values)) > (15 if name == "rope" else 80)
        for power in (1, 2, 4, 8) if name == "rope" else (1, 2, 4, 8, 16, 32, 64, 128, 256):
            # With 128 rows one may have a head size of 96 or a width of 200.
            assert sum(math.gcd(one, 256) == power for one in values) >= 5, (size, power)
    longest = {size: max(one.workload.sizes[size] for one in steps) for size in task.size_names}
    most = 500_000 if limits is GPU else 160_000
    assert max(longest.values()) > most and (name != "fused_add_rmsnorm" or min(longest.values()) > most / 2)


def test_each_array_has_contents_of_its_own_beside_plain_ones() -> None:
    task, steps = drawn("fused_add_rmsnorm", GPU, 3)
    arrays, kinds = ("input", "residual", "weight"), set(kinds_of(task))
    of = [{name: one.contents.kind_of(name) for name in arrays} for one in steps]
    assert all({one[name] for one in of} == kinds for name in arrays)
    alone = [one for one in of if sum(kind not in PLAIN for kind in one.values()) == 1]
    alike = [one for one in of if len(set(one.values())) == 1]
    assert len(alone) > len(of) / 4 and len(alike) > len(of) / 8
    assert {kind for one in alone for kind in one.values()} == kinds
    together = {(kind, step.workload.types["T"]) for step in steps for kind in step.contents.kinds}
    assert len(together) > 0.95 * len(kinds) * len(task.types["T"])


def test_all_declared_combinations_of_types_are_drawn() -> None:
    task = load_task("fused_add_rmsnorm")
    weight = [one.model_copy(update={"dtype": "W"}) if one.name == "weight" else one for one in task.arguments]
    workloads = tuple(one.model_copy(update={"types": {**one.types, "W": "float32"}}) for one in task.workloads)
    types = {**task.types, "W": ("float16", "float32")}
    task = task.model_copy(update={"arguments": tuple(weight), "types": types, "workloads": workloads})
    found = {tuple(one.workload.types.values()) for one in drawn_steps(Shapes(task, GPU, workloads[0], 0))}
    assert found == set(itertools.product(*types.values()))


def test_scalars_take_the_values_a_task_lists_or_drawn_ones() -> None:
    task = load_task("fused_add_rmsnorm")
    listed = tuple(
        one.model_copy(update={"values": ("1e-3", "d / 1000")}) if one.name == "eps" else one for one in task.arguments
    )
    steps = drawn_steps(Shapes(task.model_copy(update={"arguments": listed}), GPU, task.workloads[0], seed=0))
    found = [(value, step.workload.sizes["d"]) for step in steps for _, value in step.contents.scalars]
    assert found and all(value in (1e-3, size / 1000) for value, size in found)
    values = [{value for step in drawn("fused_add_rmsnorm", GPU, seed)[1] for _, value in step.contents.scalars}
              for seed in range(12)]  # fmt: skip
    assert all(len(one) == len(planning.SCALARS) and {-1e-6, 0.0} < one for one in values)
    assert min(value for one in values for value in one if value > 0) < 1e-9 and len(set.union(*values)) > 30


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
        (100, True, 0.95, 20.0),
        (100, True, 0.01, 20.0),
    ],
)
def test_made_up_workloads_are_judged_beside_the_baseline(
    times: int, is_derived: bool, error: float, allowed: float
) -> None:
    task = load_task("softmax")
    sizes = {"n": 1, "d": times * max(one.sizes["d"] for one in task.workloads)}
    step = Step(task.workloads[0].model_copy(update={"sizes": sizes}), Contents(), is_derived)
    (found,) = allowed_errors(task, step, ({"out": Deviation(error, 0.1)},), growth(task, step.workload))
    assert found == {"out": pytest.approx(allowed)}, "sums longer than the task's own lose more"
    assert Passed("3x7 (drawn), task", {}, {}, True, is_derived).own != is_derived


def test_equal_terms_one_after_the_other_may_round_the_same_way() -> None:
    task = load_task("softmax")
    workload = task.workloads[0].model_copy(update={"sizes": {"n": 1, "d": 5000}, "types": {"T": "float32"}})
    found = [
        allowed_errors(task, Step(workload, Contents(kind), True), ({"out": Deviation(0.1, 0.1)},), 1.0)[0]["out"]
        for kind in ("prefix", "uniform")
    ]
    rtol = task.tolerance_of("float32").rtol
    assert found == [pytest.approx(max(4.0, 5000 * 2.0**-24 / rtol)), 1.0]


def test_infinities_may_be_lost_beside_extreme_contents_alone() -> None:
    arrays = (("a", "infinities"), ("b", "outliers"))
    lost = [Contents(arrays=one).may_lose_infinities for one in (arrays, arrays[:1], arrays[1:])]
    assert lost == [True, False, False]


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "float8_e4m3"])
def test_each_kind_of_contents_can_be_drawn_in_each_type(kind: str, dtype: str) -> None:
    values, (least, largest) = (
        draw(kind, Fill(scale=2.0), (37, 41), dtype, rng()).astype(np.float64),
        DTYPES[dtype].finite,
    )
    assert values.shape == (37 * 41,)
    assert np.isnan(values).any() == (kind == "nans") and np.isnan(values).mean() < 0.02
    # An 8-bit float has no infinities; large numbers are infinite in a small one, or saturate.
    infinite = kind in ("infinities", "masked") and dtype != "float8_e4m3"
    assert np.isinf(values).any() == infinite or (kind in ("large", "outliers", "columns") and DTYPES[dtype].size <= 2)
    assert (np.nanmax(np.abs(values)) <= least) == (kind in ("subnormal", "zeros")) or kind == "signed_zeros"
    assert kind != "prefix" or min(8e3, largest / 9) < -values.min() <= 1.1e15


def test_doubles_and_integers_have_all_their_bits() -> None:
    doubles = draw("task", Fill(), (1000,), "float64", rng())
    assert (doubles != doubles.astype(np.float32)).mean() > 0.99
    whole = draw("task", Fill(kind="uniform", scale=2e9), (1000,), "int32", rng())
    assert 400 < (whole & 1).sum() < 600 and whole.min() < -1e9 and whole.max() > 1e9
    assert set(draw("task", Fill(kind="uniform", mean=3, scale=3), (1000,), "uint8", rng())) == set(range(7))
    assert draw("task", Fill(kind="normal", scale=1e30), (1000,), "int64", rng()).max() > 1 << 62
    first, second = (set(draw("constant", Fill(), (5,), "float32", rng(), variant)) for variant in (0, 1))
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
    values = draw("edges", declared, (200_000,), "float32", rng())
    shares = [np.mean(values == value) for value in (5, 7, 9)]
    assert EDGES[0] < sum(shares) < EDGES[1] and max(shares) - min(shares) < 0.01


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64", "bool"])
def test_integers_keep_to_what_is_declared(kind: str, dtype: str) -> None:
    high = 1 if dtype == "bool" else 100
    values = draw(kind, Fill(kind="uniform", mean=high / 2, scale=high / 2), (1000,), dtype, rng())
    assert values.dtype == DTYPES[dtype].storage and values.size == 1000
    assert values.min() >= 0 and values.max() <= high
    if kind == "zeros":
        assert not values.any()
    elif kind != "constant":
        assert values.min() <= high / 10 and values.max() >= high * 9 / 10
    above = draw(kind, Fill(kind="uniform", mean=10, scale=3), (1000,), "int32", rng())
    assert above.min() >= 7 and above.max() <= 13
    around = draw("task", Fill(mean=40, scale=3), (1000,), "int32", rng())
    drawn = draw(kind, Fill(mean=40, scale=3), (1000,), "int32", rng())
    assert drawn.min() >= around.min() and drawn.max() <= around.max()


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "int64", "uint64", "bool"])
def test_integers_of_which_nothing_is_declared_are_of_all_sizes_that_float64_has(dtype: str) -> None:
    low, high = DTYPES[dtype].span
    low, high = max(low, -(2**53)), min(high, 2**53)

    def drawn(kind: str) -> list[int]:
        return [int(value) for value in draw(kind, Fill(), (40, 50), dtype, rng())]

    whole, ends, large, ordered = drawn("uniform"), drawn("heavy_tails"), drawn("large"), drawn("sorted")
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
    assert {one.contents.kind for one in steps if one.derived} == set(WHOLE)


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
