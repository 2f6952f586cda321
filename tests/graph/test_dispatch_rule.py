"""The dispatch rule on invented times, of which the best rule is known."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from tunesmith.graph.dispatch import BASELINE, DispatchRule, Seen, draw_shapes, fit_rule, for_types, row_sizes
from tunesmith.graph.journal.records import Figures
from tunesmith.kernels.spec.task import Workload
from tunesmith.kernels.spec.taskfile import load_task

SMALL, LARGE = 0, 1


def workload(n: int, d: int, dtype: str = "float16") -> Workload:
    return Workload(name=f"{n}x{d}-{dtype}", sizes={"n": n, "d": d}, types={"T": dtype})


def figures(ratio: float, spread: float = 0.01) -> Figures:
    low, high = ratio * (1 - spread), ratio * (1 + spread)
    verdict = "faster" if high < 1 else "slower" if low > 1 else "no difference shown"
    return Figures(seconds=ratio * 1e-6, ratio=ratio, low=low, high=high, verdict=verdict)  # type: ignore[arg-type]


def shapes(count: int, seed: int = 0) -> list[Workload]:
    random = np.random.default_rng(seed)
    return [
        workload(
            int(2 ** random.uniform(0, 14)),
            2 * int(2 ** random.uniform(6, 13)),
            str(random.choice(["float16", "float32"])),
        )
        for _ in range(count)
    ]


def seen(count: int, times: Callable[[Workload], dict[int, float]], seed: int = 0, noise: float = 0.0) -> list[Seen]:
    random = np.random.default_rng(seed + 1)
    return [
        Seen(one, {kernel: figures(ratio * math.exp(random.normal(0, noise))) for kernel, ratio in times(one).items()})
        for one in shapes(count, seed)
    ]


def by_size(one: Workload) -> dict[int, float]:
    """The first kernel is for few rows, the second for many, and neither beats the baseline in between."""
    n = one.sizes["n"]
    return {SMALL: 0.6 if n <= 64 else 1.5, LARGE: 0.7 if n > 2048 else 1.3}


def test_the_rule_finds_where_each_kernel_is_faster_and_keeps_the_baseline_elsewhere() -> None:
    rule = fit_rule(seen(40, by_size), 2)
    assert [rule.kernel(workload(n, 4096)) for n in (4, 500, 8000)] == [SMALL, BASELINE, LARGE]
    names = {SMALL: "small", LARGE: "large", BASELINE: "baseline"}
    assert rule.lines(names)[0].startswith("if n <= ") and rule.used() == {SMALL, LARGE, BASELINE}


def test_the_rule_is_right_on_shapes_it_did_not_see_in_spite_of_noise() -> None:
    rule = fit_rule(seen(60, by_size, noise=0.03), 2)
    unseen = seen(200, by_size, seed=9)
    regret = [
        one.ratio(rule.kernel(one.workload)) / min(1.0, *(f.ratio for f in one.figures.values())) for one in unseen
    ]
    assert np.median(regret) == 1.0 and np.mean(np.array(regret) > 1.0) < 0.1


def test_a_kernel_that_is_shown_slower_on_a_shape_is_not_used_there_and_only_there() -> None:
    sizes = [(1, 32000), (64, 32000), (512, 4096), (1024, 4096), (4096, 1024), (8192, 2048), (16384, 4096)]
    found = [Seen(workload(*size), {0: figures(0.3)}) for size in sizes] + [
        Seen(workload(65536, 256), {0: figures(1.3)})
    ]
    rule = fit_rule(found, 1)
    assert [rule.kernel(one.workload) for one in found] == [0] * 7 + [BASELINE]
    # One shape alone is no reason to use a kernel.
    few = [Seen(workload(n, 512), {0: figures(ratio)}) for n, ratio in [(16, 0.3), (4096, 1.3), (8192, 1.3)]]
    assert fit_rule(few, 1).used() == {BASELINE}


def test_rows_that_no_vector_divides_are_not_served_by_what_only_others_were_measured_with() -> None:
    def times(one: Workload) -> dict[int, float]:
        # The first kernel is good everywhere, the second better on short rows that a vector divides, and bad on others.
        divided, short = one.sizes["d"] % 8 == 0, one.sizes["d"] <= 2048
        return {0: 0.6, 1: (0.3 if short else 0.9) if divided else 1.5}

    sizes = [(n, d) for n in (16, 256, 4096) for d in (256, 1024, 2048, 8192, 16384)] + [(7, 9001), (90, 12345)]
    found = [Seen(one, {k: figures(r) for k, r in times(one).items()}) for one in (workload(*size) for size in sizes)]
    short = [workload(64, 512), workload(64, 333)]
    assert [fit_rule(found, 2).kernel(one) for one in short] == [1, 1]
    rule = fit_rule(found, 2, ["d"])
    assert [rule.kernel(one) for one in short] == [1, 0]
    assert [rule.kernel(workload(64, d)) for d in (9000, 9001)] == [0, 0]
    # Where nothing is known of such rows, they are left to the baseline.
    known = [one for one in found if one.workload.sizes["d"] % 8 == 0]
    assert [fit_rule(known, 2, ["d"]).kernel(one) for one in short] == [1, BASELINE]
    # A rule for one that is always slower there leaves them to the baseline.
    alone = [Seen(one.workload, {1: one.figures[1]}) for one in found]
    assert [fit_rule(alone, 2, ["d"]).kernel(one) for one in short] == [1, BASELINE]


def test_the_rows_of_a_task_are_where_its_large_arrays_lie() -> None:
    for name, rows in (("softmax", ("d",)), ("merge_attn_states", ("d",)), ("gemm", ("k", "n"))):
        task = load_task(name)
        assert row_sizes(task, task.workloads) == rows


@pytest.mark.parametrize(
    ("test", "favourable"),
    [
        ("T == float", lambda one: one.types["T"] == "float32"),
        ("n * d <= ", lambda one: one.sizes["n"] * one.sizes["d"] <= 2**18),
        ("n % 2 == 0", lambda one: one.sizes["n"] % 2 == 0),
    ],
)
def test_types_products_and_divisors_of_sizes_may_decide(test: str, favourable: Callable[[Workload], bool]) -> None:
    assert fit_rule(seen(60, lambda one: {0: 0.5 if favourable(one) else 1.4}), 1).test.startswith(test)


def test_a_type_on_which_a_kernel_was_not_shown_faster_gets_the_baseline() -> None:
    half, single, brain = (workload(64, 512, dtype) for dtype in ("float16", "float32", "bfloat16"))
    found = [Seen(workload(n, 512), {0: figures(0.3)}) for n in (16, 64, 256)]
    found.append(Seen(single, {0: figures(0.9, spread=0.3)}))
    assert fit_rule(found, 1) == DispatchRule(use=0, shapes=4)
    rule = fit_rule(found, 1, types=[half, single, brain])
    assert [rule.kernel(one) for one in (half, single, brain)] == [0, BASELINE, BASELINE]
    assert fit_rule(found, 1, types=[half]) == DispatchRule(use=0, shapes=4)
    for types, kernels in (([half, single, brain], [0, BASELINE, BASELINE]), ([single, brain], [BASELINE] * 3)):
        assert [for_types(0, found, types).kernel(one) for one in (half, single, brain)] == kernels
    # A test that tells types apart stays, and those that it keeps away are not told apart again.
    apart = [
        Seen(workload(n, 512, one), {0: figures(0.3 if one == "float16" else 1.5)})
        for n, one in [(16, "float16"), (64, "float16"), (16, "float32"), (64, "float32")]
    ]
    assert len(fit_rule(apart, 1, types=[half, single]).lines({0: "general", BASELINE: "baseline"})) == 4


def test_every_combination_of_types_gets_its_share_of_the_drawn_shapes() -> None:
    """The largest workload in bytes is of the wider type, and has nearly the least size."""
    task = load_task("silu_and_mul")
    own = (
        Workload(name="a", sizes={"n": 1000, "d": 1048}, types={"T": "float16"}),
        Workload(name="b", sizes={"n": 1000, "d": 1000}, types={"T": "float32"}),
    )
    drawn = draw_shapes(task.model_copy(update={"workloads": own}), "gpu", 12, seed=0)
    for part in (drawn[::2], drawn[1::2]):
        assert sorted(one.types["T"] for one in part) == ["float16"] * 3 + ["float32"] * 3
    assert max(one.sizes["d"] for one in drawn if one.types["T"] == "float32") > 1010


def test_what_gains_nothing_is_not_told_apart() -> None:
    assert fit_rule(seen(30, lambda _: {0: 0.8, 1: 0.81}), 2) == DispatchRule(use=0, shapes=30)
    assert fit_rule(seen(30, lambda _: {0: 1.0}), 1).use == BASELINE
    assert fit_rule([], 1) == DispatchRule()
    assert fit_rule(seen(1, lambda _: {0: 0.5}), 1).use == 0


def test_a_path_has_at_most_two_tests() -> None:
    random = np.random.default_rng(3)
    rule = fit_rule(seen(24, lambda _: {k: float(random.uniform(0.5, 1.5)) for k in range(5)}), 5)
    names = dict.fromkeys(range(BASELINE, 5), "kernel")
    assert max(line.count("    ") for line in rule.lines(names)) <= 2


def test_a_kernel_that_cannot_be_launched_costs_the_baselines_time() -> None:
    one = Seen(workload(7, 64), {})
    assert one.ratio(0) == one.ratio(BASELINE) == 1.0
    rule = fit_rule([Seen(shape, {0: figures(0.5)} if shape.sizes["n"] > 99 else {}) for shape in shapes(40)], 1)
    assert rule.kernel(workload(4000, 512)) == 0


def test_drawn_shapes_lie_in_the_tasks_ranges_and_are_none_of_its_own() -> None:
    task = load_task("silu_and_mul")
    drawn = draw_shapes(task, "gpu", 30, seed=5)
    own = [*task.workloads_for("gpu", held_out=False), *task.workloads_for("gpu", held_out=True)]
    assert len({(*one.sizes.values(), *one.types.values()) for one in (*drawn, *own)}) == 30 + len(own)
    for one in drawn:
        assert 1 <= one.sizes["n"] <= 16384 and 4096 <= one.sizes["d"] <= 28672
        assert task.bytes_of(one) <= max(map(task.bytes_of, own))
    assert any(one.sizes["d"] % 16 for one in drawn) and any(one.sizes["d"] % 256 == 0 for one in drawn)
    assert drawn == draw_shapes(task, "gpu", 40, seed=5)[:30]
    # Where the ranges hold no more, there are fewer.
    few = tuple(Workload(name=f"{n}", sizes={"n": n, "d": 64}, types={"T": "float16"}) for n in (1, 2, 4))
    assert [one.sizes["n"] for one in draw_shapes(task.model_copy(update={"workloads": few}), "gpu", 9, seed=0)] == [3]


def test_shapes_of_a_sort_that_nobody_measured_are_left_to_the_baseline() -> None:
    sizes = [(n, d) for n in (16, 256, 4096) for d in (512, 1024)]
    divided = fit_rule([Seen(workload(*size), {0: figures(0.5)}) for size in sizes], 1, ["d"])
    others = fit_rule([Seen(workload(n, d + 1), {0: figures(0.5)}) for n, d in sizes], 1, ["d"])
    assert [divided.kernel(workload(64, d)) for d in (640, 641)] == [0, BASELINE]
    assert [others.kernel(workload(64, d)) for d in (640, 641)] == [BASELINE, 0]
    # A test of the rule has told them apart.
    rows = [workload(n, d) for n in (16, 64, 256) for d in (512, 516, 1024, 1036)]
    found = [Seen(one, {0: figures(0.5 if one.sizes["d"] % 8 == 0 else 1.5)}) for one in rows]
    wide = fit_rule(found, 1, ["d"])
    assert wide == fit_rule(found, 1) and wide.test == "d % 8 == 0"
