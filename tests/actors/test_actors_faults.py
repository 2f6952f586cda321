"""Faults of what the pool stands on: a lost node, a full disk, a visit that hangs. Nothing measured is lost."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pretence import aside, pretending

from tunesmith.actors.pool.pool import Deadlines, EvaluationRequest, Pool, PoolError
from tunesmith.actors.pool.scheduler import CompileQueue
from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.outcome import Crashed, Evaluation, Measured, TimedOut
from tunesmith.kernels.space import feasible
from tunesmith.kernels.spec.taskfile import load_task

WORKLOAD = ("512x11008",)
LIMITS = resolve_target("h200")
REPOSITORY = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def task() -> Any:
    return load_task("silu_and_mul")


@pytest.fixture
def two_nodes() -> Iterator[Any]:
    """A head without GPUs and a node with one pretended GPU."""
    import ray
    from ray.cluster_utils import Cluster

    with aside():
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
        node = cluster.add_node(num_cpus=1, num_gpus=1)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        cluster.wait_for_nodes()
        try:
            yield cluster, node
        finally:
            ray.shutdown()
            cluster.shutdown()


def make_pool(
    task: Any, lanes: int = 1, compilers: int = 2, deadlines: Deadlines | None = None, **pretence: Any
) -> Pool:
    deadlines = deadlines or Deadlines(start=60.0)
    return Pool(
        task,
        LIMITS,
        lanes=lanes,
        compilers=compilers,
        seed=0,
        workloads=WORKLOAD,
        deadlines=deadlines,
        **pretending(**pretence),
    )


def run(pool: Pool, task: Any, count: int, at: dict[int, Any]) -> list[Evaluation]:
    """`count` evaluations; when as many as a key of `at` have ended, its value is called."""
    template = task.sources("cuda").templates[0]
    space = feasible(template, [task.workload(WORKLOAD[0])], LIMITS)
    waiting, found = iter(range(count)), dict[int, Evaluation]()
    while len(found) < count:
        while pool.in_flight < pool.target_in_flight and (number := next(waiting, None)) is not None:
            pool.submit(EvaluationRequest(number, template, space.config(number), WORKLOAD))
        for request, evaluation in pool.collect():
            assert request.number not in found, "an evaluation ended twice"
            found[request.number] = evaluation
            if (action := at.pop(len(found), None)) is not None:
                action()
    assert pool.in_flight == 0
    return [found[number] for number in range(count)]


@pytest.mark.slow
def test_a_lost_node_loses_nothing(task: Any, two_nodes: Any) -> None:
    """The node with the lane dies; another one comes, and all evaluations are measured, none as a crash."""
    cluster, node = two_nodes

    def lose() -> None:
        cluster.remove_node(node, allow_graceful=False)
        cluster.add_node(num_cpus=1, num_gpus=1)

    with make_pool(task, visit_seconds=0.02) as pool:
        found = run(pool, task, 120, {40: lose})
    assert all(isinstance(one.outcomes[WORKLOAD[0]], Measured) for one in found), Counter(map(str, found))


@pytest.mark.slow
def test_a_lost_node_that_does_not_come_back_is_a_sentence(
    task: Any, two_nodes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, node = two_nodes
    monkeypatch.setattr("tunesmith.actors.pool.workers.NO_DEVICE_SECONDS", 5.0)
    monkeypatch.setattr("tunesmith.actors.pool.workers.DEVICE_POLL_SECONDS", 1.0)
    with (
        make_pool(task, visit_seconds=0.02) as pool,
        pytest.raises(PoolError, match=r"has no GPU any more: .* `tunesmith resume`\.$"),
    ):
        run(pool, task, 120, {40: lambda: cluster.remove_node(node, allow_graceful=False)})


@pytest.mark.slow
def test_a_hung_visit_costs_its_deadline_and_a_second(task: Any, two_nodes: Any) -> None:
    """One of a hundred hangs for a minute."""
    with make_pool(task, deadlines=Deadlines(visit=2.0, start=60.0, grace=0.0), visit_seconds=0.002) as pool:
        run(pool, task, 50, {})
        started = time.monotonic()
        run(pool, task, 50, {})
        usual = time.monotonic() - started
    with make_pool(task, deadlines=Deadlines(visit=2.0, start=60.0, grace=0.0), hang_at=70) as pool:
        run(pool, task, 50, {})
        started = time.monotonic()
        found = run(pool, task, 50, {})
        hung = time.monotonic() - started
    kinds = Counter(next(iter(one.outcomes.values())).kind for one in found)
    assert kinds == {"measured": 49, "timed_out": 1}
    # A new process comes on top, as it does on a real device.
    assert 2.0 < hung - usual < 2.0 + 1.0 + 2.0


FULL_DISK = """
import resource, sys
from pathlib import Path
folder, limit = Path(sys.argv[1]), int(sys.argv[2])
from tunesmith.graph.journal.events import Evaluated
from tunesmith.graph.journal.store import Journal, JournalError
from tunesmith.kernels.outcome import Evaluation
with Journal(folder, create=True) as journal:
    for number in range(20):
        journal.append(Evaluated(number=number, evaluation=Evaluation("x" * 1000, {}, {})))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        for number in range(20, 2000):
            journal.append(Evaluated(number=number, evaluation=Evaluation("x" * 1000, {}, {})))
    except JournalError as error:
        print(number, error)
"""


def test_a_full_disk_ends_a_run_with_a_sentence_and_loses_nothing(tmp_path: Path) -> None:
    from tunesmith.graph.journal.events import Evaluated
    from tunesmith.graph.journal.store import Journal
    from tunesmith.kernels.outcome import Evaluation

    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path / "run"), str(400_000)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ,
    )
    assert done.returncode == 0, done.stderr
    number, sentence = done.stdout.strip().split(" ", 1)
    assert "cannot be written" in sentence and "tunesmith resume" in sentence and sentence.endswith(".")
    with Journal(tmp_path / "run", create=False) as journal:
        kept = [entry.event.number for entry in journal.entries(Evaluated)]
        assert kept == list(range(int(number))), "everything before the full disk is there"
        journal.append(Evaluated(number=int(number), evaluation=Evaluation("x", {}, {})))


def test_a_full_disk_for_the_cache_is_no_failure(task: Any, tmp_path: Path, ray_cluster: Any, device: Any) -> None:
    from tunesmith.kernels.build.artifact_cache import ArtifactCache

    said: list[str] = []
    task = load_task(str(REPOSITORY / "tests" / "data" / "scale_add" / "task.toml"))
    template = task.sources("opencl").templates[0]
    workload = task.workloads_for("cpu", held_out=False)[0].name
    requests = [EvaluationRequest(0, template, template.default_config, (workload,))]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Pool(
        task,
        device.limits,
        device.index,
        lanes=1,
        compilers=1,
        seed=0,
        workloads=[workload],
        cache=ArtifactCache(tmp_path),
        say=said.append,
    ) as pool:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
        try:
            found = pool.evaluate(requests)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert isinstance(found[0].outcomes[workload], Measured)
    assert len(said) == 1 and "cannot be written" in said[0]


@pytest.mark.slow
def test_a_run_on_a_full_disk_goes_on_when_there_is_room(
    tmp_path: Path, device: Any, environment: dict[str, str]
) -> None:
    """A disk of half a MiB: a sentence and exit code 2, then room, then the run's end."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o"]
    if subprocess.run([*mount, "size=320k", "tmpfs", str(place)], capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a small disk")
    task = str(REPOSITORY / "tests" / "data" / "scale_add" / "task.toml")
    command = [sys.executable, "-m", "tunesmith.cli.main"]
    try:
        done = subprocess.run(
            [*command, "tune", task, "--evaluations", "28", "--rounds", "1", "--run-dir", str(place / "run")],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
            env=environment,
        )
        said = done.stderr.strip().splitlines()[-1]
        assert done.returncode == 2, done.stderr
        assert said.startswith("tunesmith: ") and "cannot be written" in said and "tunesmith resume" in said
        before = measured(place / "run")
        subprocess.run([*mount, "remount,size=16m", "tmpfs", str(place)], check=True)
        done = subprocess.run(
            [*command, "resume", str(place / "run")],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
            env=environment,
        )
        assert done.returncode == 0, done.stderr
        after = measured(place / "run")
        assert after[: len(before)] == before and len(after) == len(set(after)) == 28
    finally:
        subprocess.run(["umount", str(place)], check=True)


def measured(folder: Path) -> list[str]:
    from tunesmith.graph.journal.events import Evaluated
    from tunesmith.graph.journal.store import Journal

    with Journal(folder, create=False) as journal:
        return [entry.event.key for entry in journal.entries(Evaluated)]


def test_code_that_evaluations_share_is_compiled_once(task: Any, ray_cluster: Any) -> None:
    """silu_and_mul's GRID_CAP is of the launch alone, so that its values have one code."""
    template = task.sources("cuda").templates[0]
    walks = ({"WALK": 1, "GRID_CAP": 528}, {"WALK": 1, "GRID_CAP": 2112}, {"WALK": 0, "GRID_CAP": 528})
    choices = [{"UNROLL": unroll} | walk for unroll in (1, 2) for walk in walks]
    configs = [template.default_config | choice for choice in choices]
    with make_pool(task, lanes=1, compilers=2, compile_seconds=0.5) as pool:
        requests = [EvaluationRequest(number, template, config, WORKLOAD) for number, config in enumerate(configs)]
        found = pool.evaluate(requests)
        assert [one.config for one in found] == configs
        assert all(isinstance(one.outcomes[WORKLOAD[0]], Measured) for one in found)
        assert [one.cached for one in found] == [False, True, False, False, True, False]
        # Counted from when the driver sees the call before it end: on a busy machine less than the half second.
        assert [one.compile_seconds > 0 for one in found] == [not one.cached for one in found]
        assert found[0].artifact == found[1].artifact != found[2].artifact


@pytest.mark.slow
def test_who_waits_for_a_lost_compilation_is_compiled(task: Any, ray_cluster: Any) -> None:
    import ray

    template = task.sources("cuda").templates[0]
    configs = [dict(template.default_config, WALK=1, GRID_CAP=cap) for cap in (528, 2112)]
    with make_pool(task, lanes=1, compilers=1, compile_seconds=1.0) as pool:
        pool.evaluate([EvaluationRequest(0, template, dict(template.default_config), WORKLOAD)])
        for number, config in enumerate(configs):
            pool.submit(EvaluationRequest(number, template, config, WORKLOAD))
        before = pool.target_in_flight
        pool.collect(timeout=0.3)
        assert pool.target_in_flight == before + 1, "the one that waits leaves its place to another"
        ray.kill(pool.workers.compilers[0].actor)
        found = dict[int, Evaluation]()
        while len(found) < 2:
            found.update({request.number: evaluation for request, evaluation in pool.collect()})
        assert all(isinstance(one.outcomes[WORKLOAD[0]], Measured) for one in found.values())
        assert pool.in_flight == 0


@pytest.mark.parametrize(
    ("pretence", "outcome", "compilations"),
    [({"compile_seconds": 60.0}, TimedOut, 1), ({"faults": 1.0}, Crashed, 2)],
)
def test_a_source_that_no_compiler_survives_is_not_compiled_for_each_that_has_it(
    task: Any,
    ray_cluster: Any,
    monkeypatch: pytest.MonkeyPatch,
    pretence: dict[str, float],
    outcome: type,
    compilations: int,
) -> None:
    lost: list[object] = []
    on_lost = CompileQueue.on_lost
    monkeypatch.setattr(CompileQueue, "on_lost", lambda *given: (lost.append(given), on_lost(*given)))
    template = task.sources("cuda").templates[0]
    configs = [dict(template.default_config, WALK=1, GRID_CAP=cap) for cap in (528, 1056, 2112, 4224)]
    with make_pool(task, lanes=1, compilers=1, deadlines=Deadlines(start=60.0, compile=1.0), **pretence) as pool:
        for number, config in enumerate(configs[:-1]):
            pool.submit(EvaluationRequest(number, template, config, WORKLOAD))
        found = dict[int, Evaluation]()
        while len(found) < len(configs) - 1:
            found.update({request.number: evaluation for request, evaluation in pool.collect()})
        # Nor for one that comes later.
        (late,) = pool.evaluate([EvaluationRequest(len(configs), template, configs[-1], WORKLOAD)])
        assert pool.in_flight == 0
    assert all(isinstance(one.outcomes[WORKLOAD[0]], outcome) for one in (*found.values(), late))
    assert len(lost) == compilations
