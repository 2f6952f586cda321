"""The pool on a real device: typed outcomes for everything that can go wrong, and nothing of it spreads."""

import math
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import ray
from pretence import LIMITS, TASK, drain, run

from tunesmith.actors.pool import ActorHandle, Pool, WorkerSet
from tunesmith.actors.workers import Deadlines, LaneReady
from tunesmith.hw.device_lock import DeviceLock
from tunesmith.hw.errors import NoDevice, OutOfTime, TunesmithError
from tunesmith.kernels.backends import open_device
from tunesmith.kernels.build.artifact import ArtifactCache, EvaluationRequest
from tunesmith.kernels.measure.bench import WorkloadComparison
from tunesmith.kernels.measure.timing import Comparison, Precision
from tunesmith.kernels.outcome import CompileFailed, Crashed, Evaluation, Measured, TimedOut, WrongResult, describe
from tunesmith.kernels.spec.task import AnyOpponent, FunctionOpponent, KernelOpponent, Task, TaskError
from tunesmith.kernels.spec.taskfile import load_task

DATA = Path(__file__).resolve().parent.parent / "data"
ENDLESS, CRASH, NO_COMPILE, WRONG, PAST_END, UNWRITTEN, INPUT, LONG_COMPILE = range(1, 9)
QUICK = Precision(budget_seconds=0.02, min_samples=3)
DEADLINES = Deadlines(compile=6.0, run=4.0, prepare=60.0, start=60.0)
WORKLOAD = ("16384",)
pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.fixture(scope="module")
def task() -> Task:
    return load_task(str(DATA / "troubled" / "task.toml"))


def make_pool(task: Task, device: Any, cache: ArtifactCache | None = None, **changes: Any) -> Pool:
    settings: dict[str, Any] = {"seed": 0, "workloads": WORKLOAD, "deadlines": Deadlines(start=60.0)} | changes
    return Pool(WorkerSet(task, device.limits, device.index, lanes=1, compilers=1, **settings), QUICK, cache)


def request(task: Task, trouble: int, number: int | None = None, group: int = 16) -> EvaluationRequest:
    template = task.sources("opencl").templates[0]
    number = trouble if number is None else number
    return EvaluationRequest(number, template, {"GROUP": group, "TROUBLE": trouble}, WORKLOAD)


def test_waiting_for_a_device_ends_with_the_time(task: Task, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process, for which this one stands, holds it from the beginning, and again when a lane is ready."""
    for name in ("REPORT_AFTER_SECONDS", "REPORT_EVERY_SECONDS"):
        monkeypatch.setattr(f"tunesmith.actors.pool.{name}", 0.2)
    left = [math.inf]
    with make_pool(task, device, seconds_left=lambda: left[0]) as pool:
        for wait in (lambda: run(pool, [request(task, 0)]), pool.calibrate):
            with device_lock(device):
                left[0] = 0.0
                with pytest.raises(OutOfTime, match=r"time limit is reached\. .* is waiting for the device: pid \d+"):
                    wait()
            left[0] = math.inf
            drain(pool)


def device_lock(device: Any) -> DeviceLock:
    """As another process holds it."""
    return DeviceLock(open_device(device.limits, device.index).uuid)


@pytest.fixture(scope="class")
def troubled(task: Task, device: Any, ray_cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """With short deadlines; it ends with the tests of a class, as a lane takes one of the cluster's two cores."""
    with make_pool(task, device, ArtifactCache(tmp_path_factory.mktemp("cache")), deadlines=DEADLINES) as pool:
        yield pool


@pytest.fixture(scope="class")
def found(task: Task, troubled: Pool) -> dict[int, Evaluation]:
    """Every trouble at once, healthy configurations before, between and after (numbers from 100)."""
    (first,) = run(troubled, [request(task, 0, 100)])
    started = time.monotonic()
    for trouble in (WRONG, ENDLESS, NO_COMPILE, CRASH, LONG_COMPILE, PAST_END, UNWRITTEN, INPUT):
        troubled.submit(request(task, trouble))
        troubled.submit(request(task, 0, 100 + trouble, group=64))
    ended = drain(troubled)
    # Two deadlines, and three processes replaced, on a machine that may be busy.
    assert time.monotonic() - started < DEADLINES.compile + DEADLINES.run + 45
    return {100: first} | ended


class TestTroubles:
    """In one pool, whatever happened in it before."""

    def test_the_healthy_are_not_harmed_and_none_is_left(self, found: dict[int, Evaluation]) -> None:
        assert sorted(found) == [*range(1, 9), *range(100, 109)]
        assert all(isinstance(found[number].outcomes["16384"], Measured) for number in range(100, 109))

    @pytest.mark.parametrize(
        ("trouble", "kind", "facts", "said"),
        [
            (WRONG, WrongResult, {"reason": "mismatch", "argument": "out"}, "out[77]"),
            (PAST_END, WrongResult, {"reason": "out_of_bounds_write", "argument": "out"}, ""),
            (UNWRITTEN, WrongResult, {"reason": "unwritten", "argument": "out"}, ""),
            (INPUT, WrongResult, {"reason": "input_modified", "argument": "x"}, ""),
            (NO_COMPILE, CompileFailed, {}, "trouble:4:2"),
            (NO_COMPILE, CompileFailed, {}, "not meant to compile"),
            (ENDLESS, TimedOut, {"phase": "run", "limit": DEADLINES.run}, ""),
            (LONG_COMPILE, TimedOut, {"phase": "compile", "limit": DEADLINES.compile}, ""),
            (CRASH, Crashed, {"phase": "run"}, ""),
        ],
    )
    def test_each_trouble_has_its_outcome(self, found: Any, trouble: int, kind: type, facts: Any, said: str) -> None:
        outcome = found[trouble].outcomes["16384"]
        assert isinstance(outcome, kind)
        assert {name: getattr(outcome, name) for name in facts} == facts and said in describe(outcome)
        if trouble == ENDLESS:
            assert DEADLINES.run <= found[trouble].lane_seconds < 2 * DEADLINES.run

    def test_neither_order_nor_a_number_used_before_matters(self, task: Task, found: Any, troubled: Pool) -> None:
        """Each round of a run numbers its evaluations from 0, in the same pool; `evaluate` keeps the order. Nothing is
        compiled twice."""
        quick = {number: number for number in (INPUT, UNWRITTEN, PAST_END, WRONG, NO_COMPILE)} | {100: 0}
        again = run(troubled, [request(task, trouble, at) for at, trouble in enumerate(quick.values())])
        assert troubled.in_flight == 0
        for number, after in zip(quick, again, strict=True):
            before = found[number]
            assert after.config == before.config and after.artifact == before.artifact
            assert not before.cached and before.compile_seconds > 0 and after.cached and after.compile_seconds == 0
            outcome = after.outcomes["16384"]
            assert isinstance(outcome, Measured) or before.outcomes["16384"] == outcome
        assert isinstance(again[-1].outcomes["16384"], Measured)

    def test_a_visit_waits_and_its_deadline_does_not_run(self, task: Task, device: Any, troubled: Pool) -> None:
        """Two tunings of different clusters on one device never time kernels at the same moment. `collect` waits no
        longer than it is asked meanwhile."""
        assert troubled.collect(30.0) == [], "nothing is in flight"
        assert isinstance(run(troubled, [request(task, 0)])[0].outcomes["16384"], Measured)
        with device_lock(device):
            troubled.submit(request(task, 0, 2))
            waited = time.monotonic() + DEADLINES.run + 0.5
            while time.monotonic() < waited:
                started = time.monotonic()
                assert troubled.collect(0.2) == [], "it was measured while another process held the device"
                assert time.monotonic() - started < 30.0
        assert isinstance(drain(troubled)[2].outcomes["16384"], Measured)

    def test_what_ended_a_lane_is_never_rerun(self, task: Task, found: dict[int, Evaluation], troubled: Pool) -> None:
        started = time.monotonic()
        assert run(troubled, [request(task, ENDLESS, 5)])[0].outcomes == found[ENDLESS].outcomes
        assert time.monotonic() - started < DEADLINES.run
        of = request(task, NO_COMPILE), [request(task, 0)], "16384"
        compared = troubled.compare(*of, seed=5, rounds=5, budget_seconds=0.05)
        assert [type(result) for result in compared.results] == [CompileFailed]


def pid_of(worker: ActorHandle) -> int:
    return int(ray.get(worker.actor.__ray_call__.remote(lambda _: os.getpid())))


def kill_at_work(pool: Pool, worker: ActorHandle) -> list[tuple[EvaluationRequest, Evaluation]]:
    """Ends its process by SIGKILL; then there is another. Gives the evaluations that have ended meanwhile."""
    pool.ready_worker([worker])
    actor, pid = worker.actor, pid_of(worker)
    deadline = time.monotonic() + 60
    while worker.state != "busy":
        assert time.monotonic() < deadline
        assert not pool.collect(0.0)
    os.kill(pid, signal.SIGKILL)
    ended = []
    while worker.actor is actor:
        assert time.monotonic() < deadline
        ended += pool.collect(0.1)
    return ended


def test_killed_workers_are_replaced_and_no_process_outlives_the_pool(task: Task, device: Any) -> None:
    """Who killed a process is not known, so its evaluation gets a second one."""
    with make_pool(task, device, deadlines=Deadlines(compile=60.0, run=60.0, grace=0.0)) as pool:
        (lane,), (compiler,) = pool.workers.lanes, pool.workers.compilers
        pool.submit(request(task, 0))
        kill_at_work(pool, compiler)
        assert isinstance(drain(pool)[0].outcomes["16384"], Measured)
        pool.submit(request(task, ENDLESS))
        assert not kill_at_work(pool, lane)
        ((_, lost),) = kill_at_work(pool, lane)
        outcome = lost.outcomes["16384"]
        assert isinstance(outcome, Crashed) and outcome.phase == "run"
        pool.submit(request(task, ENDLESS, group=32))
        while lane.state != "busy":
            pool.collect(0.1)
        left = [pid_of(lane), pid_of(compiler)]
    # Even a kernel that never ends goes with the pool.
    deadline = time.monotonic() + 15
    while left and time.monotonic() < deadline:
        left = [pid for pid in left if Path(f"/proc/{pid}").exists()]
        time.sleep(0.05)
    assert not left


def test_a_mistake_that_a_lane_finds_is_a_sentence(task: Task, device: Any) -> None:
    broken = task.model_copy(update={"reference": "def scale_add(**_):\n    raise ArithmeticError('no such sum')\n"})
    with make_pool(broken, device) as pool, pytest.raises(TaskError, match=r"^.*ArithmeticError: no such sum.*$"):
        run(pool, [request(broken, 0)])


def test_a_worker_that_cannot_work_is_excluded_and_the_last_ends_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.kill", mock.Mock())
    said: list[str] = []
    workers = WorkerSet(TASK, LIMITS, lanes=1, compilers=2, seed=0, workloads=(), say=said.append)
    (lane,), (first, last) = workers.lanes, workers.compilers
    lane.make = mock.Mock()
    sick = LaneReady("GPU-0", LIMITS.name, "here", "7 of 9 results of a small kernel are wrong")
    with pytest.raises(TunesmithError, match=r"failed 3 health checks: 7 of 9 results .* wrong\. No other is left\.$"):
        for _ in range(3):
            workers.on_started(lane, sick)
    assert lane.make.call_count == 2
    error = NoDevice("there is no NVRTC here.")
    workers.on_mistake(first, error)
    assert said == ["Compile worker 0 is excluded: there is no NVRTC here."] and workers.compilers == [last]
    with pytest.raises(NoDevice, match="there is no NVRTC here"):
        workers.on_mistake(last, error)
    with pytest.raises(TunesmithError, match="Compile worker 1 cannot be used: its process ended 3 times before"):
        for _ in range(3):
            workers.on_startup_death(last, Crashed("compile", "it is gone"))


@pytest.mark.slow
def test_a_comparison_holds_an_end_against_who_ended_it_and_costs_no_other_anything(task: Task, device: Any) -> None:
    plain = task.sources("opencl").baseline.template
    opponents = [
        FunctionOpponent(
            name="ends", label="eager", source="import os\ndef f(**_): os._exit(3)", function="f", framework="numpy"
        ),
        KernelOpponent(name="same", label="production", template=plain),
    ]
    with make_pool(task, device, deadlines=Deadlines(run=4.0)) as pool:

        def compared(*troubles: int, opponents: Sequence[AnyOpponent] = ()) -> WorkloadComparison:
            candidates = [request(task, trouble, at, group=16 + 48 * at) for at, trouble in enumerate(troubles)]
            baseline = EvaluationRequest(9, plain, {}, WORKLOAD)
            return pool.compare(
                baseline, candidates, "16384", seed=5, rounds=5, budget_seconds=0.05, opponents=opponents
            )

        def kinds(*troubles: int) -> list[type]:
            return [type(result) for result in compared(*troubles).results]

        assert kinds(0, CRASH) == [Comparison, Crashed]
        assert kinds(NO_COMPILE, WRONG) == [CompileFailed, WrongResult]
        assert kinds(ENDLESS, 0) == [TimedOut, Comparison]
        for beside in (opponents, opponents[1:]):
            found = compared(0, opponents=beside)
            assert [type(result) for result in found.results] == [Comparison]
            whole = [(one.name, one.comparison is not None, "process ended" in one.why) for one in found.opponents]
            assert whole == [("ends", False, True), ("same", True, False)][-len(beside) :]
        # The search goes on afterwards, on its own contents.
        assert isinstance(run(pool, [request(task, 0)])[0].outcomes["16384"], Measured)
