"""The pool on a real device: typed outcomes for everything that can go wrong, and nothing of it spreads."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pretence import pretending

from tunesmith.actors.pool.pool import Deadlines, EvaluationRequest, Pool, PoolError
from tunesmith.actors.workers import LaneReady
from tunesmith.hw.device_lock import DeviceLock
from tunesmith.hw.errors import OutOfTime, TunesmithError
from tunesmith.kernels.backends import open_device
from tunesmith.kernels.build.artifact_cache import ArtifactCache
from tunesmith.kernels.measure.timing import Comparison, Precision
from tunesmith.kernels.outcome import CompileFailed, Crashed, Evaluation, Measured, TimedOut, WrongResult
from tunesmith.kernels.spec.task import FunctionOpponent, KernelOpponent, Task, TaskError
from tunesmith.kernels.spec.taskfile import load_task

DATA = Path(__file__).resolve().parent.parent / "data"
ENDLESS, CRASH, NO_COMPILE, WRONG, PAST_END, UNWRITTEN, INPUT, LONG_COMPILE = range(1, 9)
QUICK = Precision(budget_seconds=0.02, min_samples=3)
DEADLINES = Deadlines(compile=4.0, visit=4.0, prepare=60.0, start=60.0)
WORKLOAD = ("16384",)

pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.fixture(scope="module")
def task() -> Task:
    return load_task(str(DATA / "troubled" / "task.toml"))


def make_pool(task: Task, device: Any, **changes: Any) -> Pool:
    settings: dict[str, Any] = {
        "lanes": 1,
        "compilers": 1,
        "seed": 0,
        "workloads": WORKLOAD,
        "precision": QUICK,
        "deadlines": Deadlines(start=60.0),
    }
    return Pool(task, device.limits, device.index, **(settings | changes))


def request(task: Task, trouble: int, number: int | None = None, group: int = 16) -> EvaluationRequest:
    template = task.sources("opencl").templates[0]
    config: dict[str, Any] = {"GROUP": group, "TROUBLE": trouble}
    return EvaluationRequest(trouble if number is None else number, template, config, WORKLOAD)


@pytest.mark.parametrize("begun", [False, True])
def test_waiting_for_a_device_ends_with_the_time(
    task: Task, device: Any, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    """Another process, for which this one stands, holds it from the beginning, or when a lane is ready."""
    for name in ("REPORT_AFTER_SECONDS", "REPORT_EVERY_SECONDS"):
        monkeypatch.setattr(f"tunesmith.actors.pool.workers.{name}", 0.2)
    left = [math.inf]
    holder = DeviceLock(open_device(device.limits, device.index).uuid)
    with make_pool(task, device, seconds_left=lambda: left[0]) as pool:
        if begun:
            pool.evaluate([request(task, 0)])
        with holder:
            left[0] = 0.0
            with pytest.raises(OutOfTime, match=r"time limit is reached\. .* is waiting for the device: pid \d+"):
                pool.calibrate() if begun else pool.evaluate([request(task, 0)])


def drain(pool: Pool) -> dict[int, Evaluation]:
    found = {}
    deadline = time.monotonic() + 60
    while pool.in_flight:
        assert time.monotonic() < deadline, f"{pool.in_flight} evaluations never ended"
        for one, evaluation in pool.collect(1.0):
            assert one.number not in found, "an evaluation ended twice"
            found[one.number] = evaluation
    return found


def device_lock(device: Any) -> DeviceLock:
    """As another process holds it."""
    return DeviceLock(open_device(device.limits, device.index).uuid)


def workers(title: str) -> set[int]:
    """Process ids of Ray workers below this process whose title contains `title`."""
    parents: dict[int, int] = {}
    titles: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                pid = int(entry.name)
                titles[pid] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                parents[pid] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue

    def ours(pid: int) -> bool:
        while pid > 1:
            if pid == os.getpid():
                return True
            pid = parents.get(pid, 0)
        return False

    return {pid for pid, text in titles.items() if text.startswith(title) and ours(pid)}


def wait_for_workers(title: str, count: int, seconds: float = 15.0) -> set[int]:
    deadline = time.monotonic() + seconds
    while len(found := workers(title)) != count and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(found) == count, f"{len(found)} processes of {title}, not {count}"
    return found


@dataclass
class Troubles:
    """first: a healthy configuration before them; pool: where they happened; it goes on."""

    first: Evaluation
    found: dict[int, Evaluation]
    seconds: float
    in_flight: int
    pool: Pool


@pytest.fixture(scope="class")
def cache(tmp_path_factory: pytest.TempPathFactory) -> ArtifactCache:
    return ArtifactCache(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="class")
def troubles(task: Task, device: Any, ray_cluster: Any, cache: ArtifactCache) -> Iterator[Troubles]:
    """Every trouble at once in one pool, healthy configurations before, between and after (numbers from 100)."""
    with make_pool(task, device, deadlines=DEADLINES, cache=cache) as pool:
        (first,) = pool.evaluate([request(task, 0, 100)])
        assert isinstance(first.outcomes["16384"], Measured)
        started = time.monotonic()
        for trouble in (WRONG, ENDLESS, NO_COMPILE, CRASH, LONG_COMPILE, PAST_END, UNWRITTEN, INPUT):
            pool.submit(request(task, trouble))
            pool.submit(request(task, 0, 100 + trouble, group=64))
        found = drain(pool)
        yield Troubles(first, found, time.monotonic() - started, pool.in_flight, pool)


class TestTroubles:
    """In one pool with short deadlines, which ends with these tests: a lane takes one of the cluster's two cores."""

    def test_every_evaluation_ends_and_nothing_is_left_in_flight(self, troubles: Troubles) -> None:
        assert sorted(troubles.found) == [*range(1, 9), *range(101, 109)]
        assert troubles.in_flight == 0

    def test_the_healthy_are_not_harmed_by_the_others(self, troubles: Troubles) -> None:
        assert all(isinstance(troubles.found[100 + trouble].outcomes["16384"], Measured) for trouble in range(1, 9))

    @pytest.mark.parametrize(
        ("trouble", "reason", "argument"),
        [
            (WRONG, "mismatch", "out"),
            (PAST_END, "out_of_bounds_write", "out"),
            (UNWRITTEN, "unwritten", "out"),
            (INPUT, "input_modified", "x"),
        ],
    )
    def test_a_wrong_kernel_is_a_wrong_result(
        self, troubles: Troubles, trouble: int, reason: str, argument: str
    ) -> None:
        outcome = troubles.found[trouble].outcomes["16384"]
        assert isinstance(outcome, WrongResult)
        assert (outcome.reason, outcome.argument) == (reason, argument)

    def test_a_wrong_element_is_named(self, troubles: Troubles) -> None:
        outcome = troubles.found[WRONG].outcomes["16384"]
        assert isinstance(outcome, WrongResult) and "out[77]" in outcome.detail

    def test_a_source_that_does_not_compile_says_where(self, troubles: Troubles) -> None:
        outcome = troubles.found[NO_COMPILE].outcomes["16384"]
        assert isinstance(outcome, CompileFailed)
        assert "trouble:4:2" in outcome.first_error and "not meant to compile" in outcome.first_error

    def test_a_kernel_that_never_ends_is_ended_at_its_deadline(self, troubles: Troubles) -> None:
        evaluation = troubles.found[ENDLESS]
        assert evaluation.outcomes["16384"] == TimedOut("run", DEADLINES.visit)
        assert DEADLINES.visit <= evaluation.lane_seconds < 2 * DEADLINES.visit

    def test_a_compilation_that_takes_too_long_is_ended(self, troubles: Troubles) -> None:
        assert troubles.found[LONG_COMPILE].outcomes["16384"] == TimedOut("compile", DEADLINES.compile)

    def test_a_kernel_that_kills_its_process_is_a_crash(self, troubles: Troubles) -> None:
        outcome = troubles.found[CRASH].outcomes["16384"]
        assert isinstance(outcome, Crashed) and outcome.phase == "run"
        assert len(outcome.detail) < 200

    def test_troubles_cost_their_deadlines_and_little_more(self, troubles: Troubles) -> None:
        # Two deadlines, and three processes replaced, on a machine that may be busy.
        assert troubles.seconds < DEADLINES.compile + DEADLINES.visit + 45

    def test_the_order_of_submission_does_not_matter(self, task: Task, troubles: Troubles) -> None:
        quick = [0, NO_COMPILE, WRONG, PAST_END, UNWRITTEN, INPUT]
        for trouble in reversed(quick):
            troubles.pool.submit(request(task, trouble))
        found = drain(troubles.pool)
        for trouble in quick[1:]:
            before, after = troubles.found[trouble].outcomes["16384"], found[trouble].outcomes["16384"]
            if isinstance(before, CompileFailed) and isinstance(after, CompileFailed):
                # A compiler's log names addresses; everything else of a failure is the same.
                before, after = replace(before, log=""), replace(after, log="")
            assert before == after
        assert isinstance(found[0].outcomes["16384"], Measured)

    def test_a_visit_waits_for_other_processes_and_its_deadline_does_not_run(
        self, task: Task, device: Any, troubles: Troubles
    ) -> None:
        """Two tunings of different clusters on one device never time kernels at the same moment."""
        pool = troubles.pool
        pool.submit(request(task, 0, 1))
        assert isinstance(drain(pool)[1].outcomes["16384"], Measured)
        with device_lock(device):
            pool.submit(request(task, 0, 2))
            waited = time.monotonic() + 1.5 * DEADLINES.visit
            while time.monotonic() < waited:
                assert pool.collect(0.2) == [], "it was measured while another process held the device"
        assert isinstance(drain(pool)[2].outcomes["16384"], Measured)

    def test_what_ended_its_lane_is_never_run_again(self, task: Task, troubles: Troubles) -> None:
        started = time.monotonic()
        again = troubles.pool.evaluate([request(task, ENDLESS, 5)])[0]
        assert troubles.found[ENDLESS].outcomes == again.outcomes == {"16384": TimedOut("run", DEADLINES.visit)}
        assert time.monotonic() - started < DEADLINES.visit

    def test_collect_waits_no_longer_than_it_is_asked(self, task: Task, device: Any, troubles: Troubles) -> None:
        pool, started = troubles.pool, time.monotonic()
        assert pool.collect(30.0) == [], "nothing is in flight"
        with device_lock(device):
            pool.submit(request(task, 0, 3))
            assert pool.collect(0.5) == []
        assert time.monotonic() - started < 30.0
        assert isinstance(drain(pool)[3].outcomes["16384"], Measured)

    def test_a_number_that_failed_can_be_used_again(self, task: Task, troubles: Troubles) -> None:
        """Each round of a run numbers its evaluations from 0, in the same pool."""
        pool = troubles.pool
        assert isinstance(pool.evaluate([request(task, NO_COMPILE, 0)])[0].failure, CompileFailed)
        pool.submit(request(task, 0, 0))
        assert isinstance(drain(pool)[0].outcomes["16384"], Measured)
        assert isinstance(pool.evaluate([request(task, NO_COMPILE, 0)])[0].failure, CompileFailed)

    def test_evaluate_keeps_the_order_of_its_requests(self, task: Task, troubles: Troubles) -> None:
        requests = [request(task, trouble) for trouble in (WRONG, 0, NO_COMPILE)]
        found = troubles.pool.evaluate(requests)
        assert [evaluation.config for evaluation in found] == [one.config for one in requests]
        assert troubles.pool.in_flight == 0

    def test_a_baseline_that_does_not_compile_is_everyones_failure_in_a_comparison(
        self, task: Task, troubles: Troubles
    ) -> None:
        compared = troubles.pool.compare(
            request(task, NO_COMPILE), [request(task, 0)], "16384", seed=5, rounds=5, budget_seconds=0.05
        )
        assert [type(result) for result in compared.results] == [CompileFailed]

    def test_compiled_once_is_compiled_for_good(
        self, task: Task, device: Any, troubles: Troubles, cache: ArtifactCache
    ) -> None:
        cold = [troubles.first, troubles.found[NO_COMPILE], troubles.found[WRONG]]
        with make_pool(task, device, cache=cache) as another:
            warm = another.evaluate([request(task, trouble) for trouble in (0, NO_COMPILE, WRONG)])
        assert [one.cached for one in cold] == [False] * 3 and [one.cached for one in warm] == [True] * 3
        assert all(one.compile_seconds == 0 for one in warm) and all(one.compile_seconds > 0 for one in cold)
        assert [type(one.outcomes["16384"]) for one in warm] == [Measured, CompileFailed, WrongResult]
        assert [one.config for one in warm] == [one.config for one in cold]
        assert warm[1].outcomes == cold[1].outcomes
        assert [one.artifact for one in warm] == [one.artifact for one in cold]


def compiler_at_work(pool: Pool) -> set[int]:
    """The compile worker's process while it compiles."""
    busy = any(worker.state == "busy" for worker in pool.workers.compilers)
    return workers("ray::WorkerActor") if busy else set()


def lane_at_work(pool: Pool) -> set[int]:
    """The lane's process while a visit is under way. Its title does not tell: of two calls, one that waited for the
    device and the visit behind it, the end of the first takes it away."""
    return workers("ray::LaneActor") if any(lane.state == "busy" for lane in pool.lanes) else set()


def kill_at_work(pool: Pool, at_work: Callable[[], set[int]]) -> set[int]:
    """Ends, by SIGKILL, the processes that `at_work` gives, as soon as there are any."""
    deadline = time.monotonic() + 60
    while not (found := at_work()):
        assert time.monotonic() < deadline
        pool.collect(0.1)
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    while workers("ray::") & found:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def test_killed_workers_are_replaced_and_no_process_outlives_the_pool(task: Task, device: Any) -> None:
    """Who killed a process is not known, so its evaluation gets a second one."""
    with make_pool(task, device, deadlines=Deadlines(compile=60.0, visit=60.0, grace=0.0)) as pool:
        pool.submit(request(task, 0))
        kill_at_work(pool, lambda: workers("ray::WorkerActor"))
        assert isinstance(drain(pool)[0].outcomes["16384"], Measured)
        pool.submit(request(task, ENDLESS))
        kill_at_work(pool, lambda: lane_at_work(pool))
        while not lane_at_work(pool):
            pool.collect(0.1)
    # Even a kernel that never ends goes with the pool.
    wait_for_workers("ray::LaneActor", 0)
    wait_for_workers("ray::WorkerActor", 0)


@pytest.mark.slow
def test_what_kills_its_process_twice_is_a_crash(task: Task, device: Any) -> None:
    with make_pool(task, device, deadlines=Deadlines(compile=60.0, visit=60.0)) as pool:
        pool.submit(request(task, LONG_COMPILE))
        for _ in range(2):
            kill_at_work(pool, lambda: compiler_at_work(pool))
        outcome = drain(pool)[LONG_COMPILE].outcomes["16384"]
        assert isinstance(outcome, Crashed) and outcome.phase == "compile"

        pool.submit(request(task, ENDLESS))
        for _ in range(2):
            kill_at_work(pool, lambda: lane_at_work(pool))
        outcome = drain(pool)[ENDLESS].outcomes["16384"]
        assert isinstance(outcome, Crashed) and outcome.phase == "run"
        pool.submit(request(task, 0))
        assert isinstance(drain(pool)[0].outcomes["16384"], Measured)


@pytest.mark.slow
def test_a_comparison_holds_a_crash_against_the_one_that_crashed(task: Task, device: Any) -> None:
    baseline = EvaluationRequest(0, task.sources("opencl").baseline.template, {}, WORKLOAD)
    candidates = [request(task, trouble) for trouble in (0, CRASH, NO_COMPILE, WRONG)] + [request(task, 0, 9, group=64)]
    with make_pool(task, device) as pool:
        compared = pool.compare(baseline, candidates, "16384", seed=5, rounds=5, budget_seconds=0.05)
        kinds = [type(result) for result in compared.results]
        assert kinds == [Comparison, Crashed, CompileFailed, WrongResult, Comparison]
        # The search goes on afterwards, on its own contents.
        pool.submit(request(task, 0))
        assert isinstance(drain(pool)[0].outcomes["16384"], Measured)


@pytest.mark.slow
def test_an_opponent_that_ends_the_process_costs_no_other_anything(task: Task, device: Any) -> None:
    baseline = EvaluationRequest(0, task.sources("opencl").baseline.template, {}, WORKLOAD)
    kernel = task.sources("opencl").baseline.template
    opponents = [
        FunctionOpponent(
            name="ends", label="eager", source="import os\ndef f(**_): os._exit(3)", function="f", framework="numpy"
        ),
        KernelOpponent(name="same", label="production", template=kernel),
    ]
    with make_pool(task, device) as pool:
        for beside in (opponents, opponents[1:]):
            compared = pool.compare(
                baseline, [request(task, 0)], "16384", seed=5, rounds=5, budget_seconds=0.05, opponents=beside
            )
            assert [type(result) for result in compared.results] == [Comparison]
            whole = [(one.name, one.comparison is not None, "process ended" in one.why) for one in compared.opponents]
            assert whole == [("ends", False, True), ("same", True, False)][-len(beside) :]


@pytest.mark.slow
def test_a_comparison_of_a_kernel_that_never_ends(task: Task, device: Any) -> None:
    baseline = EvaluationRequest(0, task.sources("opencl").baseline.template, {}, WORKLOAD)
    with make_pool(task, device, deadlines=Deadlines(visit=4.0)) as pool:
        candidates = [request(task, ENDLESS), request(task, 0)]
        compared = pool.compare(baseline, candidates, "16384", seed=5, rounds=5, budget_seconds=0.05)
    assert isinstance(compared.results[0], TimedOut) and isinstance(compared.results[1], Comparison)


def test_workers_that_cannot_start_are_the_users_to_fix(task: Task, device: Any) -> None:
    lost = Pool(task, device.limits, 99, lanes=1, compilers=1, seed=0, workloads=WORKLOAD, deadlines=DEADLINES)
    with lost, pytest.raises(TunesmithError, match="no OpenCL device 99"):
        lost.evaluate([request(task, 0)])


def test_a_reference_that_raises_is_a_sentence_not_a_traceback(task: Task, device: Any) -> None:
    broken = task.model_copy(update={"reference": "def scale_add(**_):\n    raise ArithmeticError('no such sum')\n"})
    with make_pool(broken, device) as pool, pytest.raises(TaskError) as raised:
        pool.evaluate([request(broken, 0)])
    assert "ArithmeticError: no such sum" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_device_that_fails_its_health_checks_is_taken_out(task: Task, device: Any) -> None:
    class SickLane:
        """A lane on a device that computes wrongly."""

        def __init__(self, *_: Any) -> None:
            pass

        def start(self, *_: Any) -> LaneReady:
            return LaneReady("cpu-0", "sick", "here", "7 of 9 results of a small kernel are wrong")

    said: list[str] = []
    pretended = pretending()["compile_class"]
    with (
        make_pool(task, device, lane_class=SickLane, compile_class=pretended, say=said.append) as pool,
        pytest.raises(PoolError, match=r"failed 3 health checks: 7 of 9 results .* wrong\. No other is left\.$"),
    ):
        pool.evaluate([request(task, 0)])
