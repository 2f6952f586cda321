"""Many GPUs, pretended: Ray gives lanes their numbers as on a real node; what they measure is made up."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pretence import aside, pretending

from tunesmith.actors.cluster.shares import FORGET_SECONDS, TURN_SECONDS, Shares, fair
from tunesmith.actors.cluster.survey import survey
from tunesmith.actors.pool.pool import Deadlines, Pool, PoolError, Request
from tunesmith.graph.setup.device_choice import choose_device
from tunesmith.hw.errors import NoDevice
from tunesmith.hw.probe import Device, Inventory
from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.outcome import Measured
from tunesmith.kernels.space.feasible import feasible
from tunesmith.kernels.spec.taskfile import load_task

WORKLOAD = ("512x11008",)
LIMITS = resolve_target("h200")


@pytest.fixture(scope="module")
def gpus() -> Iterator[Any]:
    """A cluster of its own with three pretended GPUs."""
    import ray

    with aside():
        ray.init(
            address="local", num_cpus=2, num_gpus=3, include_dashboard=False, log_to_driver=False, logging_level="ERROR"
        )
        yield ray
        ray.shutdown()


@pytest.fixture(scope="module")
def task() -> Any:
    return load_task("silu_and_mul")


def make_pool(task: Any, lanes: int = 3, said: list[str] | None = None, shared: bool = False, **pretence: Any) -> Pool:
    return Pool(
        task,
        LIMITS,
        lanes=lanes,
        compilers=1,
        seed=0,
        workloads=WORKLOAD,
        shared=shared,
        deadlines=Deadlines(start=60.0),
        say=(said if said is not None else []).append,
        **pretending(**pretence),
    )


def requests(task: Any, count: int) -> list[Request]:
    template = task.sources("cuda").templates[0]
    space = feasible(template, [task.workload(WORKLOAD[0])], LIMITS)
    return [Request(number, template, space.config(number), WORKLOAD) for number in range(count)]


def run_all(pool: Pool, wanted: list[Request]) -> int:
    """Evaluates `wanted`, never more ahead than the pool asks for; gives how many were measured."""
    waiting, found = iter(wanted), set()
    while len(found) < len(wanted):
        while pool.in_flight < pool.ahead and (one := next(waiting, None)) is not None:
            pool.submit(one)
        for request, evaluation in pool.collect():
            assert request.number not in found
            assert isinstance(evaluation.outcomes[WORKLOAD[0]], Measured)
            found.add(request.number)
    return len(found)


def test_every_gpu_has_a_lane_and_all_do_their_part(gpus: Any, task: Any) -> None:
    with make_pool(task, visit_seconds=0.02) as pool:
        assert run_all(pool, requests(task, 90)) == 90
        served = [lane.served for lane in pool.roster.lanes]
        assert len({lane.name for lane in pool.roster.lanes}) == 3
    assert sum(served) == 90 and min(served) >= 20


def test_a_gpu_of_another_model_is_left_out_with_a_sentence(gpus: Any, task: Any) -> None:
    said: list[str] = []
    names = (LIMITS.name, "NVIDIA A10", LIMITS.name)
    with make_pool(task, said=said, names=names) as pool:
        assert run_all(pool, requests(task, 60)) == 60
        deadline = time.monotonic() + 30
        while len(pool.roster.lanes) > 2 and time.monotonic() < deadline:
            pool.evaluate(requests(task, 1))
        assert len(pool.roster.lanes) == 2
    assert len(said) == 1 and said[0].startswith("NVIDIA A10 (GPU-1)")
    assert said[0].endswith(f"is left out: it is no {LIMITS.name}, which this tuning is for.")


def test_no_gpu_of_the_model_is_the_users_to_mend(gpus: Any, task: Any) -> None:
    with (
        make_pool(task, lanes=1, names=("NVIDIA A10",) * 3) as pool,
        pytest.raises(PoolError, match="No other is left"),
    ):
        pool.evaluate(requests(task, 1))


def test_lanes_that_do_not_agree_are_left_out(gpus: Any, task: Any) -> None:
    said: list[str] = []
    with make_pool(task, said=said, slow="2") as pool:
        for lane in pool.roster.lanes:
            pool.roster.make_ready(lane)
        assert pool.calibrate().bandwidth == ((1 << 26, 4e12),)
        assert len(pool.roster.lanes) == 2
    assert len(said) == 1 and "(GPU-2)" in said[0] and "differs by 10.0%" in said[0]


@pytest.mark.slow
def test_two_tunings_share_the_gpus_of_a_cluster(gpus: Any, task: Any) -> None:
    """The first holds all three; the second does not wait for its end."""
    ended: dict[str, float] = {}

    def tune(pool: Pool, name: str, count: int) -> None:
        run_all(pool, requests(task, count))
        ended[name] = time.monotonic()

    with make_pool(task, shared=True, visit_seconds=0.05) as first:
        run_all(first, requests(task, 30))
        assert all(lane.ready for lane in first.roster.lanes)
        long = threading.Thread(target=tune, args=(first, "first", 400))
        long.start()
        with make_pool(task, shared=True, visit_seconds=0.05) as second:
            tune(second, "second", 30)
        long.join(90)
        assert not long.is_alive()
        assert ended["second"] < ended["first"]
        run_all(first, requests(task, 60))
        deadline = time.monotonic() + 30
        while not all(lane.ready for lane in first.roster.lanes) and time.monotonic() < deadline:
            run_all(first, requests(task, 3))
        assert all(lane.ready for lane in first.roster.lanes), "what the second gave back is the first's again"


@given(
    wanted=st.dictionaries(st.text(min_size=1, max_size=3), st.integers(1, 20), min_size=1, max_size=6),
    total=st.integers(0, 30),
    turn=st.integers(0, 100),
)
def test_a_fair_share(wanted: dict[str, int], total: int, turn: int) -> None:
    dealt = fair(wanted, total, turn)
    assert sum(dealt.values()) == min(total, sum(wanted.values()))
    for name, many in dealt.items():
        assert many <= wanted[name]
        unsatisfied = many < wanted[name]
        assert not unsatisfied or all(other <= many + 1 for other in dealt.values())


def test_one_gpu_goes_round() -> None:
    clock = [0.0]
    shares = Shares(1, lambda: clock[0])
    held: dict[str, int] = {"a": 0, "b": 0}
    for step in range(4 * int(TURN_SECONDS)):
        clock[0] = float(step)
        now = {name: shares.ask(name, 1, 1) for name in held}
        assert step == 0 or sum(now.values()) == 1
        for name, many in now.items():
            held[name] += many
    assert abs(held["a"] - held["b"]) <= TURN_SECONDS
    clock[0] += FORGET_SECONDS + 1
    assert shares.ask("a", 1, 1) == 1, "the other has not been heard of"
    assert shares.ask("b", 1, 1) + shares.ask("a", 1, 1) == 1
    shares.ask("b", 0, 0)
    assert shares.ask("a", 1, 1) == 1, "the other has left"


def test_the_survey_asks_every_node_with_gpus(gpus: Any) -> None:
    def looker() -> Inventory:
        return Inventory((Device("cuda", 0, "NVIDIA H200", LIMITS),), ())

    assert [device.name for device in survey(looker).devices] == ["NVIDIA H200"]

    def broken() -> Inventory:
        raise RuntimeError("no")

    found = survey(broken)
    assert found.devices == () and len(found.notes) == 1 and found.notes[0].endswith(".")


def test_the_model_there_is_most_of_or_the_one_that_was_named(task: Any) -> None:
    devices = [
        Device("cuda", index, name, replace(LIMITS, name=name))
        for index, name in enumerate(("NVIDIA A10", "NVIDIA H200", "NVIDIA H200"))
    ]
    inventory = Inventory(tuple(devices), ())
    assert choose_device(task, "auto", inventory).name == "NVIDIA H200"
    assert choose_device(task, "cuda", inventory).index == 1
    assert choose_device(task, "auto", inventory, "a10").name == "NVIDIA A10"
    with pytest.raises(NoDevice, match=r"--target-device: no device here is called 'B200'; there are NVIDIA A10, NV"):
        choose_device(task, "auto", inventory, "B200")
