"""Many GPUs, pretended: Ray gives lanes their numbers as on a real node; what they measure is made up."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pretence import pretending

from tunesmith.actors.pool.pool import ROOF_EXCLUDE_DEVIATION, Deadlines, Pool, PoolError, deviation, typical
from tunesmith.actors.pool.workers import ActorHandle, result_of
from tunesmith.actors.ray_cluster import cpu_share, survey
from tunesmith.graph.setup import choose_device
from tunesmith.hw.device_lock import Holder
from tunesmith.hw.errors import NoDevice
from tunesmith.hw.probe import DeviceInfo, Inventory
from tunesmith.hw.roofline import Roofline
from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.build.artifact import EvaluationRequest
from tunesmith.kernels.measure.bench import ComparisonRequest
from tunesmith.kernels.measure.opponents import Encounter
from tunesmith.kernels.measure.timing import Comparison, Precision
from tunesmith.kernels.outcome import Crashed, Measured
from tunesmith.kernels.space import feasible
from tunesmith.kernels.spec.task import KernelOpponent
from tunesmith.kernels.spec.taskfile import load_task

WORKLOAD = ("512x11008",)
LIMITS = resolve_target("h200")

pytestmark = pytest.mark.usefixtures("ray_cluster")  # with three pretended GPUs


@pytest.fixture(scope="module")
def task() -> Any:
    return load_task("silu_and_mul")


def make_pool(
    task: Any,
    lanes: int = 3,
    said: list[str] | None = None,
    precision: Precision | None = None,
    compilers: int = 1,
    workers: dict[str, Any] | None = None,
    **pretence: Any,
) -> Pool:
    return Pool(
        task,
        LIMITS,
        lanes=lanes,
        compilers=compilers,
        seed=0,
        workloads=WORKLOAD,
        precision=precision,
        deadlines=Deadlines(start=60.0),
        say=(said if said is not None else []).append,
        **(workers or pretending(**pretence)),
    )


def requests(task: Any, count: int) -> list[EvaluationRequest]:
    template = task.sources("cuda").templates[0]
    space = feasible(template, [task.workload(WORKLOAD[0])], LIMITS)
    return [EvaluationRequest(number, template, space.config(number), WORKLOAD) for number in range(count)]


def run_all(pool: Pool, wanted: list[EvaluationRequest]) -> int:
    """Evaluates `wanted`, never more ahead than the pool asks for; gives how many were measured."""
    waiting, found = iter(wanted), set()
    while len(found) < len(wanted):
        while pool.in_flight < pool.target_in_flight and (one := next(waiting, None)) is not None:
            pool.submit(one)
        for request, evaluation in pool.collect():
            assert request.number not in found
            assert isinstance(evaluation.outcomes[WORKLOAD[0]], Measured)
            found.add(request.number)
    return len(found)


@pytest.fixture(scope="class")
def uneven(task: Any) -> Iterator[tuple[Pool, list[str]]]:
    """Three lanes, of which the third is slower than the others; what the pool said."""
    said: list[str] = []
    with make_pool(task, said=said, visit_seconds=0.02, bandwidths=(4e12, 4e12, 3.6e12)) as pool:
        yield pool, said


class TestThreeLanes:
    """In one pool, which takes all the GPUs."""

    def test_every_gpu_has_a_lane_and_all_do_their_part(self, task: Any, uneven: tuple[Pool, list[str]]) -> None:
        pool, _ = uneven
        assert run_all(pool, requests(task, 90)) == 90
        served = [lane.served for lane in pool.workers.lanes]
        assert len({lane.name for lane in pool.workers.lanes}) == 3
        # On a machine that is busy otherwise they do not get equal parts.
        assert sum(served) == 90 and min(served) >= 10

    def test_energy_is_not_measured_where_it_was_not_asked(self, task: Any, uneven: tuple[Pool, list[str]]) -> None:
        baseline, first = requests(task, 2)
        outcome = uneven[0].evaluate([first])[0].outcomes[WORKLOAD[0]]
        assert isinstance(outcome, Measured) and outcome.energy is None
        found = uneven[0].compare(baseline, [first], WORKLOAD[0], seed=1, rounds=3, budget_seconds=0.1)
        assert [one for one in found.energies if one is not None] == []

    def test_lanes_that_do_not_agree_are_left_out(self, uneven: tuple[Pool, list[str]]) -> None:
        pool, said = uneven
        for lane in pool.workers.lanes:
            pool.workers.make_ready(lane)
        assert pool.calibrate().bandwidth == ((1 << 26, 4e12),)
        assert len(pool.workers.lanes) == 2
        assert len(said) == 1 and "(GPU-2)" in said[0] and "differs by 10.0%" in said[0]


@pytest.fixture(scope="class")
def mixed(task: Any) -> Iterator[tuple[Pool, list[str]]]:
    """Three lanes, of which the second has a GPU of another model; energy is asked for. What the pool said."""
    said: list[str] = []
    names = (LIMITS.name, "NVIDIA A10", LIMITS.name)
    with make_pool(task, said=said, names=names, precision=Precision(energy_seconds=0.3)) as pool:
        yield pool, said


class TestTwoOfTheModel:
    """In one pool, which takes all the GPUs."""

    def test_a_gpu_of_another_model_is_left_out_with_a_sentence(self, task: Any, mixed: tuple[Pool, list[str]]) -> None:
        pool, said = mixed
        assert run_all(pool, requests(task, 60)) == 60
        deadline = time.monotonic() + 30
        while len(pool.workers.lanes) > 2 and time.monotonic() < deadline:
            pool.evaluate(requests(task, 1))
        assert len(pool.workers.lanes) == 2
        assert len(said) == 1 and said[0].startswith("NVIDIA A10 (GPU-1)")
        assert said[0].endswith(f"is excluded: it is an NVIDIA A10, and this run tunes for {LIMITS.name}.")

    def test_energy_is_measured_where_it_was_asked(self, task: Any, mixed: tuple[Pool, list[str]]) -> None:
        """In visits and in comparisons, for as long as was asked."""
        pool, _ = mixed
        baseline, first = requests(task, 2)
        outcome = pool.evaluate([first])[0].outcomes[WORKLOAD[0]]
        assert isinstance(outcome, Measured) and outcome.energy is not None
        found = pool.compare(baseline, [first], WORKLOAD[0], seed=1, rounds=3, budget_seconds=0.1)
        assert [one.joules for one in found.energies if one is not None] == [2e-3, 1e-3]
        assert [one.seconds for one in found.energies if one is not None] == [0.3, 0.3]


@pytest.mark.parametrize("bandwidths", [(4e12, 3.5e12), (3.5e12, 4e12)])
def test_of_two_gpus_that_differ_the_faster_goes_on(task: Any, bandwidths: tuple[float, ...]) -> None:
    said: list[str] = []
    with make_pool(task, lanes=2, said=said, bandwidths=(*bandwidths, 0.0)) as pool:
        for lane in list(pool.workers.lanes):
            pool.workers.make_ready(lane)
        fast, slow = (
            next(lane.name for lane in pool.lanes if f"GPU-{bandwidths.index(one)}" in lane.name)
            for one in (4e12, 3.5e12)
        )
        assert pool.calibrate().peak_bandwidth == 4e12
        assert run_all(pool, requests(task, 3)) == 3 and [lane.name for lane in pool.lanes] == [fast]
    assert said == [f"{slow} is excluded: its speed differs by 12.5% from that of {fast}."]


@pytest.mark.parametrize(
    ("speeds", "kept"),
    [
        ((4.0, 4.0, 3.5, 3.5), (0, 1)),
        ((3.5, 4.0, 3.5, 4.0), (1, 3)),
        ((4.0, 3.5, 3.5), (1, 2)),
        ((3.7, 3.85, 4.0), (0, 1, 2)),
        ((4.0, 3.0, 2.0), (0,)),
        ((4.0,), (0,)),
    ],
)
def test_the_largest_group_of_gpus_that_agree_is_kept(speeds: tuple[float, ...], kept: tuple[int, ...]) -> None:
    """And of groups that are equally large the fastest; copies and arithmetic count alike."""
    for all_roofs in (
        [Roofline(((1 << 26, speed * 1e12),), {"float32": 60e12}) for speed in speeds],
        [Roofline(((1 << 26, 4e12),), {"float32": speed * 15e12}) for speed in speeds],
    ):
        standard = all_roofs[typical(all_roofs)]
        assert (
            tuple(at for at, one in enumerate(all_roofs) if deviation(one, standard) <= ROOF_EXCLUDE_DEVIATION) == kept
        )


def test_a_worker_that_is_excluded_while_it_is_made_ready_leaves_its_place_to_the_next(
    task: Any, tmp_path: Path
) -> None:
    pretended = pretending()

    def is_first(name: str) -> bool:
        try:
            os.close(os.open(tmp_path / name, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    class Lane(pretended["lane_class"]):  # type: ignore[misc]
        """The first to start, which is the first of the pool, has a GPU of another model."""

        def start(self, *arguments: Any) -> Any:
            ready = super().start(*arguments)
            return replace(ready, name="NVIDIA A10") if is_first("lane") else ready

    class Compiler(pretended["compile_class"]):  # type: ignore[misc]
        """The first to start lacks its library."""

        def start(self) -> Any:
            if is_first("compiler"):
                raise NoDevice("there is no NVRTC here.")
            return super().start()

    def starts(worker: ActorHandle) -> bool:
        try:
            return result_of(worker.calls[0].reference) is not None
        except NoDevice:
            return False

    said: list[str] = []
    workers = {"lane_class": Lane, "compile_class": Compiler}
    with make_pool(task, lanes=2, said=said, compilers=2, workers=workers) as pool:
        pool.workers.compilers.sort(key=starts)
        baseline, first = requests(task, 2)
        compared = pool.compare(baseline, [first], WORKLOAD[0], seed=7, rounds=3, budget_seconds=0.1)
        assert [type(one) for one in compared.results] == [Comparison]
        assert [lane.seed for lane in pool.workers.lanes] == [7], "on contents that the search has not seen"
        assert pool.calibrate().peak_bandwidth == 4e12 and len(pool.workers.compilers) == 1
    assert [one.partition(" is excluded: ")[2] for one in said] == [
        "there is no NVRTC here.",
        f"it is an NVIDIA A10, and this run tunes for {LIMITS.name}.",
    ]


@pytest.fixture(scope="class")
def fragile(task: Any) -> Iterator[Pool]:
    """A pool whose process ends with the second of `requests`, and with opponents whose name begins with "ends"."""
    pretended, deadly = pretending(), requests(task, 2)[1].config

    class Lane(pretended["lane_class"]):  # type: ignore[misc]
        def compare(self, request: ComparisonRequest) -> Any:
            rivals = request.opponents
            deadly_here = any(one.config == deadly for one in request.candidates)
            if deadly_here or any(one.name.startswith("ends") for one in rivals):
                return Crashed("run", "pretended")
            answer = super().compare(request)
            met = (Encounter(one.name, one.label, answer.results[0], answer.results) for one in rivals)
            return replace(answer, opponents=tuple(met))

    workers = {"lane_class": Lane, "compile_class": pretended["compile_class"]}
    with make_pool(task, lanes=1, precision=Precision(energy_seconds=0.3), workers=workers) as pool:
        yield pool


class TestWhoEndedTheProcess:
    """In one pool; request 1 ends it."""

    @pytest.mark.parametrize(
        ("numbers", "names", "timed"),
        [
            ((0, 1, 2), ("a", "b"), {"a": (True, False, True), "b": (True, False, True)}),
            ((0, 2), ("ends", "b"), {"b": (True, True)}),
            ((0, 2), ("ends",), {}),
            ((0, 1), ("a", "ends"), {"a": (True, False)}),
            ((1, 0), ("ends",), {}),
        ],
    )
    def test_is_found_out_and_costs_no_other_anything(
        self, task: Any, fragile: Pool, numbers: tuple[int, ...], names: tuple[str, ...], timed: dict[str, Any]
    ) -> None:
        kernel = task.sources("cuda").baseline.template
        opponents = [KernelOpponent(name=one, label="production", template=kernel) for one in names]
        every = requests(task, 3)
        compared = fragile.compare(
            EvaluationRequest(9, kernel, {}, WORKLOAD),
            [every[number] for number in numbers],
            WORKLOAD[0],
            seed=7,
            rounds=3,
            budget_seconds=0.1,
            opponents=opponents,
        )
        assert [type(one) for one in compared.results] == [Crashed if one == 1 else Comparison for one in numbers]
        assert [one is not None for one in compared.energies[1:]] == [one != 1 for one in numbers]
        assert [one.name for one in compared.opponents] == list(names)
        found = {one.name: tuple(each is not None for each in one.against) for one in compared.opponents if not one.why}
        assert found == timed

    def test_an_opponent_is_not_blamed_where_every_finalist_ends_it(self, task: Any, fragile: Pool) -> None:
        kernel = task.sources("cuda").baseline.template
        compared = fragile.compare(
            EvaluationRequest(9, kernel, {}, WORKLOAD),
            [requests(task, 2)[1]],
            WORKLOAD[0],
            seed=7,
            rounds=3,
            budget_seconds=0.1,
            opponents=[KernelOpponent(name="a", label="production", template=kernel)],
        )
        assert [type(one) for one in compared.results] == [Crashed]
        assert [one.why for one in compared.opponents] == ["every finalist ended its process"]


def test_no_gpu_of_the_model_is_the_users_to_fix(task: Any) -> None:
    with (
        make_pool(task, lanes=1, names=("NVIDIA A10",) * 3) as pool,
        pytest.raises(PoolError, match="No other is left"),
    ):
        pool.evaluate(requests(task, 1))


@pytest.mark.slow
def test_a_tuning_that_waits_for_a_gpu_says_who_has_them(task: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunesmith.actors.pool.workers.REPORT_AFTER_SECONDS", 0.5)
    other = Holder(28171, "gpu-1", "tunesmith tune gemm")
    said: list[str] = []
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("tunesmith.actors.pool.workers.this_process", lambda: other)
        first = make_pool(task)
    with first:
        run_all(first, requests(task, 3))
        for lane in first.workers.lanes:
            first.workers.make_ready(lane)
        with make_pool(task, said=said) as second:
            second.submit(requests(task, 1)[0])
            deadline = time.monotonic() + 60
            while not said and time.monotonic() < deadline:
                assert second.collect(0.2) == []
    assert said == [
        "Waiting for a GPU: all 3 of the Ray cluster are in use (tunings on this cluster: pid 28171 on gpu-1, "
        "tunesmith tune gemm)."
    ]


@given(
    cpus=st.lists(st.integers(0, 64), min_size=1, max_size=4),
    gpus=st.integers(0, 8),
    lanes=st.integers(1, 8),
    compilers=st.integers(1, 64),
)
def test_workers_take_no_more_cores_than_there_are(cpus: list[int], gpus: int, lanes: int, compilers: int) -> None:
    nodes = [{"Alive": True, "Resources": {"CPU": float(cpu)}} for cpu in cpus]
    nodes.append({"Alive": False, "Resources": {"CPU": 1000.0}})
    nodes[0]["Resources"]["GPU"] = float(gpus)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ray.nodes", lambda: nodes)
        share = cpu_share(lanes, compilers, gpu=True)
    # Ray counts ten-thousandths: 25 times 0.28 is 7 there, and a hair more in floats.
    assert 0 <= share <= 1 and round(share * (lanes + compilers), 4) <= sum(cpus)
    assert round(share * gpus, 4) <= cpus[0], "each GPU of a node can have its lane"
    if sum(cpus) >= lanes + compilers and cpus[0] >= gpus:
        assert share == 1


def test_the_survey_asks_every_node_with_gpus() -> None:
    def looker() -> Inventory:
        return Inventory((DeviceInfo("cuda", 0, "NVIDIA H200", LIMITS),), ())

    assert [device.name for device in survey(looker).devices] == ["NVIDIA H200"]

    def broken() -> Inventory:
        raise RuntimeError("no")

    found = survey(broken)
    assert found.devices == () and len(found.notes) == 1 and found.notes[0].endswith(".")


def test_the_model_there_is_most_of_or_the_one_that_was_named(task: Any) -> None:
    devices = [
        DeviceInfo("cuda", index, name, replace(LIMITS, name=name))
        for index, name in enumerate(("NVIDIA A10", "NVIDIA H200", "NVIDIA H200"))
    ]
    inventory = Inventory(tuple(devices), ())
    assert choose_device(task, "auto", inventory).name == "NVIDIA H200"
    assert choose_device(task, "cuda", inventory).index == 1
    assert choose_device(task, "auto", inventory, "a10").name == "NVIDIA A10"
    with pytest.raises(NoDevice, match=r"--target-device: no device here is called 'B200'; there are NVIDIA A10, NV"):
        choose_device(task, "auto", inventory, "B200")
