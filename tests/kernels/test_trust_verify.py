"""The full verdict: its steps, how accuracy is compared with the baseline's, the contents and sizes that it makes up.
Whatever a task file says, its kernel can be called with them, they keep to what is said of its arrays, and are
cheap."""

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiling import write_task
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tunesmith.actors.judging.judge import JudgeOptions, _source_with_parameters, judge
from tunesmith.actors.judging.task_check import examine_reference
from tunesmith.actors.workers import Deadlines
from tunesmith.graph.dispatch import draw_shapes
from tunesmith.graph.results.runtime import drawn as exported_drawn
from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.roofline import Roofline
from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.check import plan as planning
from tunesmith.kernels.check import scalars
from tunesmith.kernels.check import verify as verifying
from tunesmith.kernels.check.compare import Deviation
from tunesmith.kernels.check.plan import Shapes, Step, drawn_steps, extents, plan, reaching_steps, small_workload
from tunesmith.kernels.check.source_sizes import source_floats, source_integers
from tunesmith.kernels.check.verify import Passed, Skipped, allowed_errors, growth, infeasible_on, less_accurate
from tunesmith.kernels.launch import contents as filling
from tunesmith.kernels.launch.buffers import ROUNDING_FACTOR, rounding_factor
from tunesmith.kernels.launch.contents import CHANGES, KINDS, PLAIN, WHOLE, Contents, draw, draw_variants, kinds_of
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.expression import parse
from tunesmith.kernels.spec.task import Argument, Fill, Special, Task, TaskError, Tolerance, Workload
from tunesmith.kernels.spec.taskfile import LIBRARY, load_task, read_task

GPU = resolve_target("h200")
CPU = replace(GPU, kind="cpu", backend="opencl")


@pytest.mark.parametrize("limits", [CPU, pytest.param(GPU, marks=pytest.mark.slow)], ids=["cpu", "gpu"])
def test_the_plan_has_all_workloads_kinds_of_contents_and_two_seeds(limits: DeviceLimits) -> None:
    task = load_task("merge_attn_states")
    steps = plan(task, limits, seed=3)
    own = {one.name for one in task.workloads if limits.kind in one.devices}
    assert {one.workload.name for one in steps if not one.derived} == own
    assert frozenset().union(*(one.contents.kinds for one in steps)) == {*KINDS, filling.ALIKE, filling.MIXED}
    assert {one.contents.seed for one in steps} == {3, 3 + planning.SECOND_SEED}
    assert len({one.name for one in steps}) == len(steps)
    small = plan(task, limits, seed=3, largest_bytes=0)
    assert len({one.workload.name for one in small if not one.derived}) == 1


def test_drawn_steps_are_of_all_sizes_contents_types_and_scalars() -> None:
    task = load_task("silu_and_mul")
    workload, types = task.workloads[0], [{"T": "float16"}, {"T": "float32"}]
    steps = reaching_steps(task, GPU, workload, types, seed=0)
    assert all(one.derived for one in steps) and len({one.name for one in steps}) == len(steps)
    assert [one.workload.types["T"] for one in steps[:4]] == ["float16", "float32"] * 2
    # Over some seeds, as twelve draws need not have a small one among them.
    others = [reaching_steps(task, GPU, workload, types, seed) for seed in range(1, 5)]
    drawn_first = [one for found in (steps, *others) for one in found[:12]]
    first = [math.prod(one.workload.sizes.values()) for one in drawn_first]
    assert min(first) < 2e4 and max(first) > 2e5 and any(one.workload.sizes["d"] % 8 for one in steps[:12])
    for size in ("n", "d"):
        assert max(one.workload.sizes[size] for one in steps) > 250_000
    near = [one.workload for one in steps if one.workload.name.endswith("(near)")]
    assert max(task.bytes_of(one) for one in near) <= 2 * planning.MAX_NEIGHBOUR_BYTES["gpu"]
    # Large arrays whose rows no vector divides, too.
    assert any(one.sizes["d"] % 2 and one.sizes["n"] > 1000 for one in near)
    # Each array has contents of its own beside plain ones.
    task, steps = drawn("fused_add_rmsnorm", GPU, 3)
    arrays, kinds = ("input", "residual", "weight"), {*kinds_of(task), filling.MIXED}
    of = [{name: one.contents.kind_of(name) for name in arrays} for one in steps]
    found = {name: {one[name] for one in of} for name in arrays}
    assert found == {"input": kinds, "residual": kinds | {filling.ALIKE}, "weight": kinds}
    of = [one for one in of if filling.ALIKE not in one.values()]
    alone = [one for one in of if sum(kind not in PLAIN for kind in one.values()) == 1]
    assert len(alone) > len(of) / 4 and len([one for one in of if len(set(one.values())) == 1]) > len(of) / 8
    assert {kind for one in alone for kind in one.values()} == kinds - {filling.MIXED}
    together = {(kind, step.workload.types["T"]) for step in steps for kind in step.contents.kinds}
    assert len(together) > 0.95 * len(kinds) * len(task.types["T"])
    # In one order, or other steps would be chosen in another process, where a set has another.
    pairs = [pair for one in steps for pair in one.pairs if {*pair} <= {*itertools.product(arrays, {*kinds, "alike"})}]
    assert pairs and all(arrays.index(first[0]) < arrays.index(second[0]) for first, second in pairs)
    values = [{value for *_, value in scalars.made_up_scalars(task, task.workloads[0], seed)} for seed in range(12)]
    assert {value for step in steps for _, value in step.contents.scalars} == values[3]
    assert all(len(one) == len(scalars.SCALARS) and {-1e-6, 0.0} < one for one in values)
    assert min(value for one in values for value in one if value > 0) < 1e-9 and len(set.union(*values)) > 30
    task = load_task(str(TASKS / "candidates" / "tasks" / "row_sum"))
    assert kinds_of(task) == WHOLE
    assert {one.contents.kind for one in plan(task, GPU, seed=0) if one.derived} == {*WHOLE, filling.MIXED}
    # All declared combinations of types are drawn, and the scalars that a task lists.
    task = load_task("fused_add_rmsnorm")
    changes = {"weight": {"dtype": "W"}, "eps": {"values": ("1e-3", "d / 1000")}}
    arguments = tuple(one.model_copy(update=changes.get(one.name, {})) for one in task.arguments)
    workloads = tuple(one.model_copy(update={"types": {**one.types, "W": "float32"}}) for one in task.workloads)
    types = {**task.types, "W": ("float16", "float32")}
    task = task.model_copy(update={"arguments": arguments, "types": types, "workloads": workloads})
    steps = drawn_steps(Shapes(task, GPU, workloads[0], 0))
    assert {tuple(one.workload.types.values()) for one in steps} == set(itertools.product(*types.values()))
    found = [(value, step.workload.sizes["d"]) for step in steps for _, value in step.contents.scalars]
    assert found and all(value in (1e-3, size / 1000) for value, size in found)


def drawn(name: str, limits: DeviceLimits, seed: int) -> tuple[Task, list[Step]]:
    task = load_task(name)
    return task, drawn_steps(Shapes(task, limits, task.workloads_for(limits.kind, held_out=False)[0], seed))


@pytest.mark.parametrize(
    ("name", "limits"), [("fused_add_rmsnorm", GPU), ("rope", CPU), pytest.param("gemm", GPU, marks=pytest.mark.slow)]
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


@pytest.mark.parametrize(("name", "size"), [("silu_and_mul", "d"), ("softmax", "n"), ("gemm", "k")])
def test_each_power_of_two_that_divides_a_size_meets_each_of_its_magnitudes(name: str, size: str) -> None:
    for seed in (0, 2575392028):
        _, steps = drawn(name, CPU, seed)
        found = {(math.gcd(one.workload.sizes[size], 256), one.workload.sizes[size].bit_length()) for one in steps}
        assert found >= {(1 << power, bits) for bits in range(1, 14) for power in range(min(bits, 9))}


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


def test_a_source_of_any_depth_is_read_and_parameters_are_macros_of_what_it_speaks_of() -> None:
    for nested in ("(", "-", "f(", "(a)", "1+", "x[", "9+x+"):
        assert len(source_integers(nested * 5000)) <= 2
    plain = load_task("silu_and_mul").sources("cuda").baseline.template
    template = plain.model_copy(update={"source": "if (d > GROUP * ITEMS) {}"})
    numbers = source_integers(_source_with_parameters(template, {"GROUP": 64, "ITEMS": 7, "FAST": True, "NAME": "x"}))
    assert numbers[0] == 448 and set(numbers) >= {64, 7}


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "float8_e4m3"])
def test_each_kind_of_contents_can_be_drawn_in_each_type(kind: str, dtype: str) -> None:
    values = draw(kind, Fill(scale=2.0), (37, 41), dtype, rng()).astype(np.float64)
    least, largest = DTYPES[dtype].finite
    assert values.shape == (37 * 41,) and np.isnan(values).any() == (kind == "nans") and np.isnan(values).mean() < 0.8
    # An 8-bit float has no infinities; large numbers are infinite in a small one, or saturate.
    infinite = kind in ("infinities", "masked") and dtype != "float8_e4m3"
    assert np.isinf(values).any() == infinite or (kind in ("large", "outliers", "columns") and DTYPES[dtype].size <= 2)
    assert (np.nanmax(np.abs(values)) <= least) == (kind in ("subnormal", "zeros")) or kind == "signed_zeros"
    assert kind != "hidden" or min(8e3, largest / 9) < -values.min() <= 1.1e15
    assert kind != "lowest" or largest / 3e6 < -values.min() < largest / 3


def test_doubles_and_integers_have_all_their_bits() -> None:
    doubles = draw("task", Fill(), (1000,), "float64", rng())
    assert (doubles != doubles.astype(np.float32)).mean() > 0.99
    whole = draw("task", Fill(kind="uniform", scale=2e9), (1000,), "int32", rng())
    assert 400 < (whole & 1).sum() < 600 and whole.min() < -1e9 and whole.max() > 1e9
    assert set(draw("task", Fill(kind="uniform", mean=3, scale=3), (1000,), "uint8", rng())) == set(range(7))
    assert draw("task", Fill(kind="normal", scale=1e30), (1000,), "int64", rng()).max() > 1 << 62
    assert len({tuple(draw("constant", Fill(), (5,), "float32", rng(), variant)) for variant in (0, 1)}) == 2
    # What is repeated has no period.
    long = filling.spread(np, np.arange(1000), 10_500, rng())
    assert long.size == 10_500 and (np.bincount(long[:10_000]) == 10).all()
    for length in (1000, 999, 500, 2000):
        assert (long[length:] != long[:-length]).mean() > 0.8
    assert filling.RANDOM_BLOCK > 1 << 20
    assert "edges" in kinds_of(load_task("merge_attn_states")) and "edges" not in kinds_of(load_task("softmax"))
    declared = Fill(special=tuple(Special(value=value, fraction=0.01) for value in (5, 7, 9)))
    shares = [np.mean(draw("edges", declared, (200_000,), "float32", rng()) == value) for value in (5, 7, 9)]
    assert filling.EDGES[0] < sum(shares) < filling.EDGES[1] and max(shares) - min(shares) < 0.01


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64", "bool"])
def test_integers_keep_to_what_is_declared(kind: str, dtype: str) -> None:
    high = 1 if dtype == "bool" else 100
    values = draw(kind, Fill(kind="uniform", mean=high / 2, scale=high / 2), (1000,), dtype, rng())
    assert values.dtype == DTYPES[dtype].storage and values.size == 1000 and values.min() >= 0 and values.max() <= high
    if kind == "zeros":
        assert not values.any()
    elif kind == "signed_zeros":
        assert max(np.mean(values == mark) for mark in (0, high)) > 0.2
    elif kind not in ("constant", "repeated"):
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

    def drawn(kind: str, seed: int = 0) -> list[int]:
        return [int(value) for value in draw(kind, Fill(), (40, 50), dtype, np.random.default_rng(seed))]

    whole, ends, large = drawn("uniform"), drawn("heavy_tails"), drawn("large")
    assert min(whole) < low + (high - low) / 100 + 1 and max(whole) > high - (high - low) / 100 - 1
    beside = {sign * 2**bits + by for bits in range(64) for sign in (1, -1) for by in (-1, 0, 1)}
    assert {low, high} <= set(ends) <= {low, low + 1, high - 1, high, *beside}
    # Sums of thousands of these hold in the type.
    assert dtype == "bool" or 1 < max(abs(one) for one in large) <= 2 ** (DTYPES[dtype].size * 5)
    for ordered in (drawn("sorted", seed) for seed in range(9)):
        first, last, pairs = min(ordered), max(ordered), itertools.pairwise(ordered)
        counted = all(after == (first if before == last else before + 1) for before, after in pairs)
        assert counted or ordered == [one for at in range(0, 2000, 50) for one in sorted(ordered[at : at + 50])]
    assert set(drawn("zeros")) == {0} and len(set(drawn("constant"))) == 1


def test_arrays_are_alike_sparse_or_of_ones_and_floats_lie_beside_ends_at_times() -> None:
    task, signs = load_task("merge_attn_states"), set()
    workload = Workload(name="small", sizes={"n": 30, "h": 5, "d": 40}, types={"T": "float32"})
    for seed in range(12):
        contents = Contents("normal", seed, arrays=(("suffix_output", filling.ALIKE),))
        arrays = draw_variants(np, task, workload, contents, 1)[0]
        first, second = (arrays[name].reshape(-1, 40) for name in ("prefix_output", "suffix_output"))
        (sign,) = (one for one in (1, -1) if set((first != one * second).sum(axis=1)) == {0, 1})
        signs.add(sign)
    assert signs == {1, -1}
    rngs = [np.random.default_rng(seed) for seed in range(20)]
    flags = np.stack([draw("signed_zeros", Fill(low=0, high=1), (64, 256), "uint8", one) for one in rngs])
    assert {0, 1, 2, 254, 255, 256} <= set(flags.reshape(-1, 256).sum(axis=1).tolist())
    constants = {float(draw("constant", Fill(scale=3), (5,), "float32", one)[0]) for one in rngs}
    assert 1 in constants and len(constants) > 2
    bounded = draw("normal", Fill(low="-3", high="d").at(workload), (5000,), "float32", rng())
    assert {-3, np.nextafter(np.float32(-3), np.float32(0))} <= set(bounded) and bounded.max() <= 40


def test_masks_are_full_at_times_and_have_runs_of_each_mark() -> None:
    declared = Fill(kind="uniform", mean=0.5, scale=0.5, special=(Special(value=7, fraction=0.01),))

    def drawn(kind: str) -> list[tuple[int, ...]]:
        return [tuple(draw(kind, declared, (4, 64), "int32", np.random.default_rng(seed))) for seed in range(40)]

    assert {(0,) * 256, (1,) * 256, (7,) * 256} <= set(drawn("constant"))
    for kind in ("masked", "repeated"):
        assert {0, 1, 7} <= {one[at] for one in drawn(kind) for at in range(200) if len(set(one[at : at + 40])) == 1}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_nans_have_the_bits_that_processors_compute(dtype: str) -> None:
    width = 8 * DTYPES[dtype].size
    found = [draw("nans", Fill(), (400,), dtype, np.random.default_rng(seed)) for seed in range(9)]
    bits = [set(one.view(f"u{width // 8}").tolist()) for one in found]
    assert {2 ** (width - 1) - 1, 2**width - 1} <= set.union(*bits)


def test_what_is_declared_sorted_is_sorted_as_a_whole() -> None:
    for dtype in ("int32", "float32"):
        values = draw("uniform", Fill(kind="sorted"), (3, 10_000), dtype, rng()).reshape(3, -1)
        assert (values[:, 1:] >= values[:, :-1]).all()


def test_sizes_that_make_no_array_long_take_what_the_source_names() -> None:
    task = read_task(DATA / "flat_scale" / "task.toml")
    task = task.model_copy(
        update={"workloads": [one.model_copy(update={"sizes": {**one.sizes, "r": 3}}) for one in task.workloads]}
    )
    found = {one.workload.sizes["r"] for one in plan(task, CPU, 3, source="if (r > 16) r = 16;") if one.derived}
    assert {15, 16, 17, 32} <= found and any(6 < one < 15 for one in found)


def test_a_long_size_also_lies_beside_one_of_some_hundred() -> None:
    plans = [[one.workload.sizes for one in plan(load_task("softmax"), CPU, seed) if one.derived] for seed in range(5)]
    assert all(any(one["n"] > 1150 and 64 <= one["d"] <= 256 for one in sizes) for sizes in plans)


def test_whole_scalars_are_drawn_where_sizes_do_not_decide_them() -> None:
    task = load_task(str(TASKS / "candidates" / "tasks" / "roll"))
    steps = plan(task, CPU, 0, source="if (shift > 776) ++i;")
    assert {-3, 0, 1, 775, 776, 777, 1552} <= {value for step in steps for _, value in step.contents.scalars}
    compiled_for_it = task.model_copy(update={"backends": {**task.backends, "triton": task.backends["opencl"]}})
    assert not list(scalars.made_up_scalars(compiled_for_it, task.workloads[0], 0))
    assert all(value is not None for _, _, value in scalars.unusable_scalars(task, task.workloads[0], 0))
    # As a stride, which only the kernel uses.
    ignored = task.model_copy(update={"reference": task.reference.replace("int(shift)", "3")})
    unusable = scalars.unusable_scalars(ignored, task.workloads[0], 0)
    assert {value for _, _, value in unusable} == {None}
    without = plan(task, CPU, 0, source="if (shift > 776) ++i;", unusable={one[:2] for one in unusable})
    assert not any(step.contents.scalars for step in without)


def test_floats_of_a_source_are_scalars_and_a_seed_has_all_its_bits() -> None:
    source = "f(1.0f, .25); if (alpha == 3.0f) {} // 4.0\n#define LOW -2.5e1f\nv.x0; if (alpha > LOW) {} 0x1.8p3; 7.f;"
    assert source_floats(source + "9" * 5000 + ".") == (3, 0.25, -25, 7)
    task = load_task(str(TASKS / "candidates" / "tasks" / "axpy"))
    steps = plan(task, CPU, 0, source=source + "if (alpha == 5) {}")
    found = {value for step in steps for _, value in step.contents.scalars}
    assert {3, 0.25, -25, 7, 5} <= found and any(one < -1.5 and one == int(one) for one in found - {-25})
    for dtype, least, most in (("uint32", 1 << 31, 1 << 32), ("int64", 0, 1 << 17)):
        seed = Argument(name="seed", role="scalar", dtype=dtype, value="17")
        made = task.model_copy(update={"arguments": (seed, *task.arguments[:2])})
        assert least <= max(value for *_, value in scalars.made_up_scalars(made, task.workloads[0], 0)) < most


def test_accuracy_is_judged_by_the_baseline_and_what_sums_may_lose() -> None:
    task, many = load_task("fused_add_rmsnorm"), verifying.ACCURACY_ELEMENTS
    longest = max(one.sizes["d"] for one in task.workloads)
    assert growth(task, task.workloads[0]) == 1
    for rms, baseline, elements, longer, accepted in (
        (0.39, 0.2, many, 1, True),
        (0.41, 0.2, many, 1, False),
        (0.24, 0.001, many, 1, True),
        (0.41, 0.2, 3, 1, True),
        # A sum in order of 32768 float32 squares has a quarter of a tolerance that is meant for 14336.
        (0.5, 0.004, many, 1, False),
        (0.5, 0.004, many, 3, True),
    ):
        grown = growth(task, task.workloads[0].model_copy(update={"sizes": {"n": 1, "d": longer * longest}}))
        assert grown == longer
        found, standard = {"out": Deviation(0.9, rms)}, {"out": Deviation(0.4, baseline)}
        worse = less_accurate(found, standard, {"out": elements}, grown * verifying.ACCURACY_FREE)
        assert (worse is None) == accepted, (rms, baseline)
    task = load_task("softmax")
    for times, is_derived, error, allowed in (
        (1, False, 0.95, 1.0),
        (1, True, 0.95, 1.9),
        (5, True, 0.95, 5.0),
        (100, True, 0.95, 20.0),
        (100, True, 0.01, 20.0),
    ):
        sizes = {"n": 1, "d": times * max(one.sizes["d"] for one in task.workloads)}
        step = Step(task.workloads[0].model_copy(update={"sizes": sizes}), Contents(), is_derived)
        (found,) = allowed_errors(task, step, ({"out": Deviation(error, 0.1)},), growth(task, step.workload))
        assert found == {"out": pytest.approx(allowed)}, "sums longer than the task's own lose more"
        assert Passed("3x7 (drawn), task", {}, {}, True, is_derived).own != is_derived
    task = load_task("softmax")
    workload = task.workloads[0].model_copy(update={"sizes": {"n": 1, "d": 5000}, "types": {"T": "float32"}})
    found = [
        allowed_errors(task, Step(workload, Contents(kind), True), ({"out": Deviation(0.1, 0.1)},), 1.0)[0]["out"]
        for kind in ("hidden", "padding", "uniform")
    ]
    in_order = pytest.approx(max(4.0, 5000 * 2.0**-24 / task.tolerance_of("float32").rtol))
    assert found == [in_order, in_order, 1.0]
    step = Step(workload, Contents("heavy_tails"), True)
    assert allowed_errors(task, step, ({"out": Deviation(0.1, 0.1)},), 4.0)[0]["out"] == 2 * verifying.HEAVY_LEAST
    arrays = (("a", "infinities"), ("b", "outliers"))
    lost = [Contents(arrays=one).may_lose_infinities for one in (arrays, arrays[:1], arrays[1:])]
    assert lost == [True, False, False]
    workload = load_task("softmax").workloads[0].model_copy(update={"sizes": {"n": 1, "d": 16384}})
    short = workload.model_copy(update={"sizes": {"n": 1, "d": 64}})
    assert rounding_factor(["float32", "float16"], workload, "gpu") == 512
    for dtype, one, kind in (("float32", workload, "gpu"), ("float16", short, "gpu"), ("bfloat16", workload, "cpu")):
        assert rounding_factor([dtype], one, kind) == ROUNDING_FACTOR


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


FILES: dict[str, tuple[str, str, tuple[str, ...], str, set[str]]] = {
    # arrays "name role dtype shape"; sizes of its workloads; requires; flops; sizes that are no extents
    "power of two": ("x in T n; out out T n", "n=4096; n=65536", ("n & (n - 1) == 0",), "", set()),
    "all multiples": (
        "a in T m k; b in T k n; c out T m n", "m=1024, n=1024, k=1024; m=4096, n=4096, k=4096",
        ("m % 64 == 0 and n % 64 == 0", "k % 32 == 0"), "2 * m * n * k", set(),
    ),
    "window with flops": ("x in T n; out out T n", "n=100000, window=128", ("window < n",), "n * window", {"window"}),
    "weights of a radius": (
        "x in T h w; f in float32 2*r+1 2*r+1; out out T h w", "h=512, w=512, r=2",
        ("2 * r + 1 <= w",), "2 * h * w * (2 * r + 1) ** 2", {"r"},
    ),
    "halo": ("x in T h+2*r w+2*r; out out T h w", "h=64, w=64, r=3; h=1024, w=1024, r=4", (), "", {"r"}),
    "valid": ("x in T h w; out out T h-2*r w-2*r", "h=512, w=512, r=2; h=64, w=64, r=5", (), "", {"r"}),
    "strided": ("x in T n; out out T (n-k)//s+1", "n=65536, k=5, s=2", ("n >= k",), "", {"k", "s"}),
    "sweeps": ("x in T h w; out out T h w", "h=256, w=256, sweeps=1000", ("sweeps % 2 == 0",), "", {"sweeps"}),
    "bodies": ("p in T n 3; f out T n 3", "n=4096; n=30000", (), "20 * n * n", set()),
    "bitmap": ("x in uint32 ceil_div(n,32); out out uint32 ceil_div(n,32)", "n=1048576", (), "", set()),
    "capped": ("x in T min(n,65536); out out T min(n,65536)", "n=4096", (), "", set()),
    "products": ("x in T b*t h*d; out out T b*h t*d", "b=2, t=512, h=8, d=64", ("d % 8 == 0",), "", set()),
    "powers": ("x in T 2**p; out out T 2**p", "p=16; p=20", (), "p * 2 ** p", set()),
    "large and tied": ("x in T n d; out out T n d", "n=8192, d=8192", ("n == d", "n % 4096 == 0"), "n * d", set()),
    "large work": ("x in T n; out out T n", "n=1048576, steps=100000", ("n == 1048576",), "n * steps", {"steps"}),
    "no sizes": ("x in T 4096; out out T 4096", "", (), "4096", set()),
    "no inputs": ("out out T n", "n=65536", (), "", set()),
    "a contradiction elsewhere": ("x in T n; out out T n", "n=4096", ("n // (n - 64) >= 1 or n < 2",), "", set()),
    "attention": (
        "q in T h t d; k in T g s d; v in T g s d; out out T h t d", "h=32, g=8, t=128, s=1024, d=128",
        ("h % g == 0", "t <= s", "d in (64, 128)"), "4 * h * t * s * d", set(),
    ),
}  # fmt: skip
SOURCES = (
    "if (n > 1500) desc = (1ull << 62) | 0x7fffffff; if (i < 0x7fffffff && mask != 0xffffffffu) x();",
    "#define TILE 96\nfor (int i = 0; i < n - TILE; i += TILE) if (n > 100000000 || n < 2147483647) f(i);",
    "case 777: if (d % 192 == 0 || (n << 40) > 5) return; if (n >= 9223372036854775807ull) g();",
)
TYPES = (("float32",), ("float16", "float32"), ("int32", "uint8"))
TASKS = Path(__file__).resolve().parent.parent
FOLDERS = (LIBRARY, TASKS / "raw", TASKS / "candidates" / "tasks")
PATHS = {f"{folder.name}/{path.parent.name}": path for folder in FOLDERS for path in folder.glob("*/task.toml")}


def made(name: str, variant: int, folder: Path) -> Task:
    """The task of a row, in one set of types, with a scalar of its own, read from its file."""
    arrays, workloads, requires, flops, _ = FILES[name]
    types = [(role, dtype) for _, role, dtype, *_ in map(str.split, arrays.split("; "))]
    stored = {one for role, dtype in types if role != "in" for one in (TYPES[variant] if dtype == "T" else (dtype,))}
    tables = f"[types]\nT = {json.dumps(TYPES[variant])}\n" if "T" in dict(map(reversed, types)) else ""
    exact = [f"{dtype} = {{ rtol = 0, atol = 0 }}" for dtype in sorted({"int32", "uint8", "uint32"} & stored)]
    return write_task(
        folder,
        f"{arrays}; scale scalar float32 0.5",
        workloads,
        backends=("cuda", "opencl"),
        keys=f"requires = {json.dumps(requires)}" + (f'\nflops = "{flops}"' if flops else ""),
        tables="\n".join([f"{tables}[tolerance]", *exact]),
    )


def array_bytes(task: Task, workload: Workload) -> int:
    arrays = [one for one in task.arguments if one.role != "scalar"]
    return sum(math.prod(task.shape_of(one, workload)) * DTYPES[task.dtype_of(one, workload)].size for one in arrays)


def require_bounds(task: Task, limits: DeviceLimits, source: str) -> int:
    """Plans all steps on made-up sizes, and returns their number. Raises `AssertionError` for a step whose sizes the
    task does not allow, or that costs more than it may."""
    own = [one for one in task.workloads if limits.kind in one.devices]
    steps = [one for one in plan(task, limits, 3, source=source) if one.derived]
    steps += reaching_steps(task, limits, own[-1], [own[-1].types], 6)
    growing = extents(task, own)
    smallest = min(own, key=lambda one: array_bytes(task, one))
    most_elements = planning.MAX_ELEMENTS_PER_BYTE * planning.MAX_BYTES[limits.kind]
    cheap = planning.MAX_BYTES[limits.kind]
    most_bytes = max(planning.MAX_BYTES[limits.kind], array_bytes(task, smallest))
    most_flops = max(planning.MAX_FLOPS[limits.kind], task.flops_of(smallest))
    near_bytes = planning.MAX_NEIGHBOUR_BYTES[limits.kind]
    for step in steps:
        workload = step.workload
        assert task.allows(workload), step.name
        near = workload.name.endswith("(near)")
        several = dict.fromkeys(("(balanced)", "(uneven)"), planning.BALANCED_FACTOR)
        factors = {"(long)": planning.LONG_FACTOR[limits.kind], **several}
        long = factors.get(workload.name.split(" ")[-1], 1)
        longest = max(long * cheap, most_bytes, min(long * most_bytes, planning.MAX_LONG_BYTES[limits.kind]))
        assert array_bytes(task, workload) <= (near_bytes if near else longest), step.name
        assert near or task.flops_of(workload) <= most_flops, step.name
        for name, size in workload.sizes.items():
            usual = {one.sizes[name] for one in own}
            most = max(2 * max(usual), min(8 * max(usual), planning.MAX_SHORT_SIZE))
            related = any(name in parse(text).names for text in task.requires)
            named = workload.name.endswith("(from the source)")
            assert name in growing or related or named or size <= most, f"{step.name}: {name} is no extent"
            assert 1 <= size <= max(long * most_elements, max(usual) + 3), step.name
    return len(steps)


def by_turns(names: Sequence[str]) -> list[Any]:
    """Every third name on one kind of device by turns; with the slow tests all on both."""
    every = itertools.product(enumerate(names), enumerate((GPU, CPU)))
    marks = {True: (), False: pytest.mark.slow}
    return [
        pytest.param(name, limits, id=f"{name} {limits.kind}", marks=marks[at % 6 == 3 * place])
        for (at, name), (place, limits) in every
    ]


@pytest.mark.parametrize(("name", "limits"), by_turns(sorted(PATHS)))
def test_steps_for_each_template_of_a_task_keep_to_the_bounds(name: str, limits: DeviceLimits) -> None:
    task = read_task(PATHS[name])
    if limits.backend in task.backends and any(limits.kind in one.devices for one in task.workloads):
        sources = task.sources(limits.backend)
        source = "\n".join(one.source for one in (sources.baseline.template, *sources.templates))
        assert require_bounds(task, limits, source) > 100


@pytest.mark.parametrize(("name", "limits"), by_turns(list(FILES)))
def test_steps_for_any_task_file_keep_to_the_bounds(name: str, limits: DeviceLimits, tmp_path: Path) -> None:
    variant = list(FILES).index(name) % 3
    task = made(name, variant, tmp_path)
    assert set(task.workloads[0].sizes) - extents(task, task.workloads) == FILES[name][-1]
    assert require_bounds(task, limits, SOURCES[variant])
    small = small_workload(task, task.workloads)
    assert task.allows(small) and array_bytes(task, small) <= array_bytes(task, task.workloads[0])


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
    assert holds(
        exported_drawn({"shape": (4, n), "dtype": dtype, "fill": (at.kind, *ends)}, np.random.default_rng(0)), n
    )


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
    starts = SPMV.arguments[0].model_copy(update={"dtype": "int8"})
    narrow = SPMV.model_copy(update={"arguments": (starts, *SPMV.arguments[1:])})
    assert max(one.workload.sizes["nnz"] for one in plan(narrow, CPU, 3) if one.derived) <= 127
    # A failure on them says whose they are.
    strict = GATHER.model_copy(update={"reference": GATHER.reference.replace("return", "assert n > 99; return", 1)})
    smaller = strict.workloads[0].model_copy(update={"sizes": {"V": 5, "n": 3, "d": 2}, "name": "5x3x2 (made smaller)"})
    with pytest.raises(TaskError, match=r"\(made smaller\) \(sizes that Tunesmith chose.*AssertionError"):
        examine_reference(strict, smaller, 0, twice=False)
    # Offsets come with empty rows, equal rows and one that has all.
    found = {kind: draw_variants(np, SPMV, SPMV.workloads[1], Contents(kind), 1)[0] for kind in KINDS}
    steps = {kind: np.diff(arrays["starts"]) for kind, arrays in found.items()}
    assert set(steps["constant"]) == {9} and steps["heavy_tails"].max() == steps["zeros"][-1] == 900
    assert steps["sorted"][0] < 2 and steps["sorted"][-1] > 15 and len(set(steps["task"])) > 9
    offset = {"dtype": "int32", "value": "-3 if n == 100 else 0", "values": [-1, 7]}
    alpha = {"dtype": "float32", "value": "-0.5 * n / 100", "values": [0, "1 / 4"]}
    scalars = [Argument(name=f"s{at}", role="scalar", **one) for at, one in enumerate((offset, alpha))]
    other = Workload(name="other", sizes={"V": 9, "n": 50, "d": 4}, types={})
    every = (*GATHER.arguments, *scalars)
    task = GATHER.model_copy(update={"arguments": every, "workloads": (*GATHER.workloads, other)})
    assert [[task.scalar_of(one, at) for one in scalars] for at in task.workloads] == [[-3, -0.5], [0, -0.25]]
    changed = {pair for step in plan(task, CPU, 0) for pair in step.contents.scalars}
    assert changed == {("s0", -1), ("s0", 7), ("s1", 0.0), ("s1", 0.25)}


@pytest.mark.usefixtures("without_sanitizer")
@pytest.mark.parametrize("task", [GATHER, pytest.param(SPMV, marks=pytest.mark.slow)], ids=["gather", "spmv"])
def test_a_kernel_is_checked_on_made_up_shapes_of_which_none_is_left_out(task: Task, device: Any) -> None:
    plain = task.sources("opencl").baseline.template
    # Wrong where a row is empty, or for the first row of the table.
    wrong = plain.source.replace("k < starts[r + 1]", "k < max(starts[r] + 1, starts[r + 1])")
    wrong = wrong.replace("index[i / d] *", "max(index[i / d], 1) *")
    questions = [(plain.model_copy(update={"source": one}), {}, None) for one in (plain.source, wrong)]
    options = JudgeOptions(deadlines=Deadlines(check=1.0), roofline=Roofline())
    found = judge(task, device.limits, device.index, questions, options)
    assert [one.verdict for one in found] == ["accepted", "rejected"], found
    skipped = [step for one in found for step in one.steps if isinstance(step, Skipped) and step.reason == "reference"]
    # Sums of the least numbers may overflow.
    assert all("cannot hold" in step.why for step in skipped), skipped


@pytest.mark.usefixtures("without_sanitizer")
def test_what_float32_loses_where_numbers_cancel_is_not_held_against_a_kernel(device: Any) -> None:
    """The plain kernel avoids the difference that the reference has, and is far more accurate beside its own data."""
    task = read_task(DATA / "scale_add" / "task.toml")
    sources = task.sources("opencl")
    plain = sources.baseline.template
    near, far = "fabs(y[i]) / (fabs(x[i]) + fabs(y[i]))", "fabs(x[i]) / (fabs(x[i]) + fabs(y[i]))"
    coarse = f"as_float(as_uint({far}) & 0xffffe000u)"
    texts = [plain.source.replace("a * x[i] + y[i]", one) for one in (near, f"1.0f - {far}", f"1.0f - {coarse}")]
    kernels = [plain.model_copy(update={"source": one}) for one in texts]
    fill = {"kind": "uniform", "mean": 1.0, "scale": 0.5}
    about: dict[str, Any] = {
        "reference": task.reference.replace("a * x + y", "1 - abs(x) / (abs(x) + abs(y))"),
        "tolerance": {"float32": Tolerance(rtol=1e-5, atol=1e-9)},
        "arguments": [
            one.model_copy(update={"fill": one.fill.model_copy(update=fill)} if one.role == "in" else {})
            for one in task.arguments
        ],
        "backends": {
            "opencl": sources.model_copy(
                update={"baseline": sources.baseline.model_copy(update={"template": kernels[0]})}
            )
        },
    }
    options = JudgeOptions(deadlines=Deadlines(check=6.0), roofline=Roofline())
    questions = [(one, {}, None) for one in kernels[1:]]
    found = judge(task.model_copy(update=about), device.limits, device.index, questions, options)
    assert [one.verdict for one in found] == ["accepted", "rejected"], found


@pytest.mark.usefixtures("without_sanitizer")
def test_a_task_without_a_tolerance_has_the_error_of_its_baseline(device: Any) -> None:
    task = read_task(DATA / "row_sums" / "task.toml")
    plain = task.sources("opencl").baseline.template
    halves = plain.source.replace("sum +=", "*(k % 2 ? &sum : &even) +=")
    coarse = plain.source.replace("x[r * n + k] *", "as_float(as_uint(x[r * n + k]) & 0xffffe000u) *")
    questions = [(plain.model_copy(update={"source": one}), {}, None) for one in (halves, coarse)]
    options = JudgeOptions(deadlines=Deadlines(check=1.0), roofline=Roofline())
    found = judge(task, device.limits, device.index, questions, options)
    assert [one.verdict for one in found] == ["accepted", "rejected"], found
    strict = task.model_copy(update={"tolerance": {"float32": Tolerance(rtol=1e-5, atol=1e-5)}})
    with pytest.raises(TaskError, match="its baseline is not right on"):
        judge(strict, device.limits, device.index, questions[:1], options)
