"""The dispatch rule: on invented times of which the best rule is known, and by runs on a simulated device."""

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simulated_pool
from journal_rows import events
from simulated_pool import SCALE_ADD, SimulatedPool, tuned

from tunesmith.actors.judging.judge import CandidateVerdict
from tunesmith.cli.tables import print_summary
from tunesmith.graph import resume
from tunesmith.graph.dispatch import BASELINE, DispatchRule, Seen, draw_shapes, fit_rule, for_types, row_sizes
from tunesmith.graph.journal.events import Figures, ShapeCompared
from tunesmith.kernels.measure.bench import WorkloadComparison
from tunesmith.kernels.outcome import WrongResult
from tunesmith.kernels.spec.task import Workload
from tunesmith.kernels.spec.taskfile import load_task

pytestmark = pytest.mark.usefixtures("simulation")
run = partial(tuned, evaluations=8, rounds=1, strategy="default")
Times = Callable[[Workload], dict[int, float]]


def workload(n: int, d: int = 512, dtype: str = "float16") -> Workload:
    return Workload(name=f"{n}x{d}-{dtype}", sizes={"n": n, "d": d}, types={"T": dtype})


def seen(shape: Workload, times: dict[int, float], spread: float = 0.01) -> Seen:
    """A shape with the ratios of kernels there."""
    found = {}
    for kernel, ratio in times.items():
        low, high = ratio * (1 - spread), ratio * (1 + spread)
        verdict = "faster" if high < 1 else "slower" if low > 1 else "no difference shown"
        found[kernel] = Figures(seconds=1e-6, ratio=ratio, low=low, high=high, verdict=verdict)  # type: ignore[arg-type]
    return Seen(shape, found)


def drawn(count: int, times: Times, seed: int = 0, noise: float = 0.0) -> list[Seen]:
    random = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        n, d = int(2 ** random.uniform(0, 14)), 2 * int(2 ** random.uniform(6, 13))
        shape = workload(n, d, str(random.choice(["float16", "float32"])))
        noisy = {kernel: ratio * math.exp(random.normal(0, noise)) for kernel, ratio in times(shape).items()}
        found.append(seen(shape, noisy))
    return found


def by_size(one: Workload) -> dict[int, float]:
    """The first kernel is for few rows, the second for many, and neither beats the baseline in between."""
    n = one.sizes["n"]
    return {0: 0.6 if n <= 64 else 1.5, 1: 0.7 if n > 2048 else 1.3}


@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_the_rule_finds_where_each_kernel_is_faster_and_keeps_the_baseline_elsewhere(noise: float) -> None:
    rule = fit_rule(drawn(60, by_size, noise=noise), 2)
    assert [rule.kernel(workload(n, 4096)) for n in (4, 500, 8000)] == [0, BASELINE, 1]
    assert rule.used() == {0, 1, BASELINE}
    assert rule.lines({0: "small", 1: "large", BASELINE: "baseline"})[0].startswith("if n <= ")
    unseen = drawn(200, by_size, seed=9)
    regret = [one.ratio(rule.kernel(one.workload)) / one.ratio(one.fastest) for one in unseen]
    assert np.median(regret) == 1.0 and np.mean(np.array(regret) > 1.0) < 0.1


def test_kernels_serve_the_sorts_of_shapes_that_they_were_measured_on() -> None:
    sizes = [(1, 32000), (64, 32000), (512, 4096), (1024, 4096), (4096, 1024), (8192, 2048), (16384, 4096)]
    found = [seen(workload(*size), {0: 0.3}) for size in sizes] + [seen(workload(65536, 256), {0: 1.3})]
    rule = fit_rule(found, 1)
    assert [rule.kernel(one.workload) for one in found] == [0] * 7 + [BASELINE]
    # One shape alone does not justify a kernel.
    few = [seen(workload(n), {0: ratio}) for n, ratio in [(16, 0.3), (4096, 1.3), (8192, 1.3)]]
    assert fit_rule(few, 1).used() == {BASELINE}
    sizes = [(n, d) for n in (16, 256, 4096) for d in (512, 1024)]
    for more, kernels in ((0, [0, BASELINE]), (1, [BASELINE, 0])):
        rule = fit_rule([seen(workload(n, d + more), {0: 0.5}) for n, d in sizes], 1, ["d"])
        assert [rule.kernel(workload(64, d)) for d in (640, 641)] == kernels
    # A test of the rule has told them apart.
    rows = [workload(n, d) for n in (16, 64, 256) for d in (512, 516, 1024, 1036)]
    found = [seen(one, {0: 0.5 if one.sizes["d"] % 8 == 0 else 1.5}) for one in rows]
    wide = fit_rule(found, 1, ["d"])
    assert wide == fit_rule(found, 1) and wide.test == "d % 8 == 0"
    # The rows of a task are where its large arrays lie.
    for name, sizes_of_rows in (("softmax", ("d",)), ("merge_attn_states", ("d",)), ("gemm", ("k", "n"))):
        task = load_task(name)
        assert row_sizes(task, task.workloads) == sizes_of_rows

    def times(one: Workload) -> dict[int, float]:
        # The first kernel is good everywhere, the second better on short rows that a vector divides, and bad on others.
        divided, short = one.sizes["d"] % 8 == 0, one.sizes["d"] <= 2048
        return {0: 0.6, 1: (0.3 if short else 0.9) if divided else 1.5}

    sizes = [(n, d) for n in (16, 256, 4096) for d in (256, 1024, 2048, 8192, 16384)] + [(7, 9001), (90, 12345)]
    found = [seen(one, times(one)) for one in (workload(*size) for size in sizes)]
    short = [workload(64, 512), workload(64, 333)]
    assert [fit_rule(found, 2).kernel(one) for one in short] == [1, 1]
    rule = fit_rule(found, 2, ["d"])
    assert [rule.kernel(one) for one in (*short, workload(64, 9000), workload(64, 9001))] == [1, 0, 0, 0]
    # Where nothing is known of such rows, they are left to the baseline, and where a kernel is always slower there.
    known = [one for one in found if one.workload.sizes["d"] % 8 == 0]
    alone = [Seen(one.workload, {1: one.figures[1]}) for one in found]
    for part in (known, alone):
        assert [fit_rule(part, 2, ["d"]).kernel(one) for one in short] == [1, BASELINE]


def test_rules_are_short_and_of_sizes_and_types() -> None:
    assert fit_rule(drawn(30, lambda _: {0: 0.8, 1: 0.81}), 2) == DispatchRule(use=0, shapes=30)
    assert fit_rule(drawn(30, lambda _: {0: 1.0}), 1).use == BASELINE and fit_rule([], 1) == DispatchRule()
    assert fit_rule(drawn(1, lambda _: {0: 0.5}), 1).use == 0
    # A kernel that cannot be launched costs the baseline's time.
    assert fit_rule(drawn(40, lambda one: {0: 0.5} if one.sizes["n"] > 99 else {}), 1).kernel(workload(4000)) == 0
    random = np.random.default_rng(3)
    rule = fit_rule(drawn(24, lambda _: {k: float(random.uniform(0.5, 1.5)) for k in range(5)}), 5)
    assert max(line.count("    ") for line in rule.lines(dict.fromkeys(range(BASELINE, 5), "kernel"))) <= 2
    tests: dict[str, Callable[[Workload], bool]] = {
        "T == float": lambda one: one.types["T"] == "float32",
        "n * d <= ": lambda one: one.sizes["n"] * one.sizes["d"] <= 2**18,
        "n % 2 == 0": lambda one: one.sizes["n"] % 2 == 0,
    }
    for test, good in tests.items():
        rule = fit_rule(drawn(60, lambda one, good=good: {0: 0.5 if good(one) else 1.4}), 1)
        assert rule.test.startswith(test)
    half, single, brain = every = [workload(64, 512, dtype) for dtype in ("float16", "float32", "bfloat16")]
    found = [*(seen(workload(n), {0: 0.3}) for n in (16, 64, 256)), seen(single, {0: 0.9}, spread=0.3)]
    assert fit_rule(found, 1) == fit_rule(found, 1, types=[half]) == DispatchRule(use=0, shapes=4)
    for rule in (fit_rule(found, 1, types=every), for_types(0, found, every)):
        assert [rule.kernel(one) for one in every] == [0, BASELINE, BASELINE]
    assert [for_types(0, found, [single, brain]).kernel(one) for one in every] == [BASELINE] * 3
    # A test that tells types apart stays, and a type that it keeps away is not tested again.
    apart = [seen(workload(n, 512, one), {0: 0.3}) for n, one in [(16, "float16"), (64, "float16")]]
    apart += [seen(workload(n, 512, one), {0: 1.5}) for n, one in [(16, "float32"), (64, "float32")]]
    assert len(fit_rule(apart, 1, types=[half, single]).lines({0: "general", BASELINE: "baseline"})) == 4


def test_drawn_shapes_lie_in_the_tasks_ranges_are_none_of_its_own_and_of_all_types() -> None:
    task = load_task("silu_and_mul")
    found = draw_shapes(task, "gpu", 30, seed=5)
    own = [*task.workloads_for("gpu", held_out=False), *task.workloads_for("gpu", held_out=True)]
    assert len({(*one.sizes.values(), *one.types.values()) for one in (*found, *own)}) == 30 + len(own)
    for one in found:
        assert 1 <= one.sizes["n"] <= 16384 and 4096 <= one.sizes["d"] <= 28672
        assert task.bytes_of(one) <= max(map(task.bytes_of, own))
    assert any(one.sizes["d"] % 16 for one in found) and any(one.sizes["d"] % 256 == 0 for one in found)
    assert found == draw_shapes(task, "gpu", 40, seed=5)[:30]
    # Where the ranges hold no more, there are fewer.
    few = task.model_copy(update={"workloads": tuple(workload(n, 64) for n in (1, 2, 4))})
    assert [one.sizes["n"] for one in draw_shapes(few, "gpu", 9, seed=0)] == [3]
    # The largest workload in bytes is of the wider type, and has nearly the least size.
    wider = (workload(1000, 1048), workload(1000, 1000, "float32"))
    found = draw_shapes(task.model_copy(update={"workloads": wider}), "gpu", 12, seed=0)
    for part in (found[::2], found[1::2]):
        assert sorted(one.types["T"] for one in part) == ["float16"] * 3 + ["float32"] * 3
    assert max(one.sizes["d"] for one in found if one.types["T"] == "float32") > 1010


def test_winners_are_measured_on_drawn_shapes_and_the_rule_is_tried_on_half_of_them(tmp_path: Path) -> None:
    """Also for a run that has ended, without a further search; more shapes keep the measured ones."""
    before = run(tmp_path / "run").summary
    assert before.dispatching is not None and before.dispatching.tested == 0
    SimulatedPool.measured.clear()
    resume(tmp_path / "run", dispatch_shapes=4)
    first = events(tmp_path / "run", ShapeCompared)
    summary = resume(tmp_path / "run", dispatch_shapes=6).summary
    compared = events(tmp_path / "run", ShapeCompared)
    assert compared[: len(first)] == first and SimulatedPool.measured == []
    assert summary.evaluations == before.evaluations
    found = summary.dispatching
    assert found is not None and (found.fitted, found.tested) == (2 + 3, 3)
    assert [policy.policy for policy in found.policies] == ["rule", "general", "table", "oracle"]
    assert found.policies[-1].worst_regret == 0
    assert len({event.workload.name for event in compared}) == 8
    assert all(5000 <= event.workload.sizes["n"] <= 16384 for event in compared)
    dispatch = json.loads((tmp_path / "run" / "best" / "dispatch.json").read_text())
    assert dispatch["rule_tried_on"] == 3 and dispatch["policies"][0]["policy"] == "rule"
    # The simulated winner is faster everywhere, and so serves every shape of the sort that was measured.
    assert dispatch["rule"] == {"test": "n % 8 != 0", "yes": {"folder": "baseline"}, "no": {"folder": "general"}}


@pytest.mark.parametrize("baseline_fails", [False, True])
def test_kernels_wrong_on_drawn_shapes_are_out(tmp_path: Path, monkeypatch: Any, baseline_fails: bool) -> None:
    """A shape on which the baseline fails as well tells nothing."""
    compared = SimulatedPool.compare

    def wrong(self: SimulatedPool, baseline: Any, candidates: Any, workload: str, **keywords: Any) -> Any:
        if workload.startswith("drawn-") and (baseline_fails or any(one.config for one in candidates)):
            failure = WrongResult("mismatch", "out", "it differs at [3]")
            return WorkloadComparison(workload, tuple(failure for _ in candidates))
        return compared(self, baseline, candidates, workload, **keywords)

    monkeypatch.setattr(SimulatedPool, "compare", wrong)
    summary = run(tmp_path / "run", dispatch_shapes=2).summary
    found = summary.dispatching
    if baseline_fails:
        assert not found.excluded and found.tested == 0
        assert any("so the shape is left out" in note for note in summary.notes)
    else:
        assert found.excluded and found.rule.used() == {-1}
        assert json.loads((tmp_path / "run" / "best" / "dispatch.json").read_text())["rule"] == {"folder": "baseline"}


def test_a_rule_that_loses_to_general_is_left_out(tmp_path: Path, monkeypatch: Any, device: Any, capsys: Any) -> None:
    """What was fitted says that small shapes are better left to the baseline, which the other half does not bear out;
    of one type the general configuration is nowhere shown to be faster."""
    task = load_task(SCALE_ADD)
    types = {"T": ("float32", "float16")}
    own = [one.model_copy(update={"types": {"T": "float32"}}) for one in task.workloads]
    half = own[0].model_copy(update={"name": "half", "types": {"T": "float16"}})
    task = task.model_copy(update={"types": types, "workloads": (*own, half)})
    further = draw_shapes(task, device.limits.kind, 24, seed=0)
    assert (
        {one.types["T"] for one in further[::2]} == {one.types["T"] for one in further[1::2]} == {"float16", "float32"}
    )
    sizes = {one.name: one for one in (*task.workloads, *further)}
    unseen = {one.name for one in further[1::2]}
    seconds = simulated_pool.seconds

    def small_is_slow(config: dict[str, Any], workload: str) -> float:
        if not config or sizes[workload].types["T"] == "float16":
            return 20e-6
        return seconds(config, "") if workload in unseen or sizes[workload].sizes["n"] > 9000 else 30e-6

    monkeypatch.setattr(simulated_pool, "seconds", small_is_slow)
    result = run(tmp_path / "run", task, dispatch_shapes=24)
    found = result.summary.dispatching
    assert found is not None and any(line.startswith("if n <= ") for line in found.lost)
    by_rule, general = found.policies[:2]
    assert by_rule.ratio > general.ratio
    dispatch = json.loads((tmp_path / "run" / "best" / "dispatch.json").read_text())
    assert dispatch["rule"] == {"test": "T == float16", "yes": {"folder": "baseline"}, "no": {"folder": "general"}}
    assert dispatch["rule_that_lost_to_general"] == list(found.lost)
    assert "slower on 1 of 1 held-out workloads; not shown to be faster with T=float16." in result.summary.sentence
    print_summary(result.summary, result.folder)
    assert "It lost to the general configuration on the test shapes" in capsys.readouterr().out


def test_what_a_rule_may_use_is_examined_on_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration that is best on one workload and wrong elsewhere: it may serve that workload, and no other."""
    seconds, examine = simulated_pool.seconds, SimulatedPool.examine
    special = {"GROUP": 64, "ITEMS": 4, "UNROLL": 1}
    task = load_task(SCALE_ADD)
    first, held_out = task.workloads
    task = task.model_copy(
        update={"workloads": (first, first.model_copy(update={"name": "8192", "sizes": {"n": 8192}}), held_out)}
    )
    own = first.name
    asked: list[tuple[Any, str | None]] = []

    def faster_there(config: dict[str, Any], workload: str) -> float:
        return 4.5e-6 if config == special and workload == own else seconds(config, workload)

    def wrong_elsewhere(self: SimulatedPool, jobs: Any, **keywords: Any) -> Any:
        asked.extend((config, only) for _, config, only in jobs)
        found = examine(self, jobs, **keywords)
        wrong = CandidateVerdict("rejected", "mismatch", "it is wrong on odd sizes")
        return [
            wrong if config == special and only is None else one
            for one, (_, config, only) in zip(found, jobs, strict=True)
        ]

    monkeypatch.setattr(simulated_pool, "seconds", faster_there)
    monkeypatch.setattr(SimulatedPool, "examine", wrong_elsewhere)
    run(tmp_path / "run", task, evaluations=100, strategy="exhaustive")
    assert (special, None) not in asked
    result = resume(tmp_path / "run", dispatch_shapes=4)
    assert asked.count((special, own)) == asked.count((special, None)) == 1
    found = result.summary.dispatching
    assert found is not None and [(one.config, one.workload) for one in found.excluded] == [(special, "all")]
    assert all(found.kernels[number].config != special for number in found.rule.used() if number >= 0)
    shapes = json.loads((tmp_path / "run" / "best" / "dispatch.json").read_text())["shapes"]
    assert next(one["folder"] for one in shapes if one["workload"] == own) == own
