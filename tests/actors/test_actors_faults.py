"""Faults of what the pool stands on: a lost node, a full disk, a visit that hangs. Nothing measured is lost."""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from pretence import TASK, TEMPLATE, WORKLOAD, all_measured, drain, make_pool, requests, run

from tunesmith.actors.workers import Deadlines
from tunesmith.graph.journal.events import Evaluated
from tunesmith.graph.journal.store import Journal, JournalError
from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.build.artifact import ArtifactCache, EvaluationRequest
from tunesmith.kernels.build.source import code_key, specialise
from tunesmith.kernels.outcome import Crashed, Evaluation, TimedOut


@pytest.fixture
def two_nodes() -> Iterator[Any]:
    """A head without GPUs and a node with one pretended GPU, instead of the session's cluster."""
    import ray
    from ray.cluster_utils import Cluster

    there = ray.is_initialized()
    ray.shutdown()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    node = cluster.add_node(num_cpus=1, num_gpus=1)
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        ray.init(address=cluster.address, **quiet)
        cluster.wait_for_nodes()
        yield cluster, node
    finally:
        ray.shutdown()
        cluster.shutdown()
        if there:
            ray.init(address="local", num_cpus=2, num_gpus=3, include_dashboard=False, **quiet)


@pytest.mark.slow
def test_a_lost_node_loses_nothing(two_nodes: Any) -> None:
    """The node with the lane dies; another one comes, and all evaluations are measured, none as a crash."""
    cluster, node = two_nodes

    def lose() -> None:
        cluster.remove_node(node, allow_graceful=False)
        cluster.add_node(num_cpus=1, num_gpus=1)

    with make_pool(compilers=2, visit_seconds=0.02) as pool:
        found = run(pool, 120, {40: lose})
    assert all_measured(found), Counter(map(str, found))


@pytest.mark.slow
def test_a_lost_node_that_does_not_come_back_is_a_sentence(two_nodes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, node = two_nodes
    monkeypatch.setattr("tunesmith.actors.pool.workers.NO_DEVICE_SECONDS", 5.0)
    with (
        make_pool(compilers=2, visit_seconds=0.02) as pool,
        pytest.raises(TunesmithError, match=r"has no GPU any more: .* `tunesmith resume`\.$"),
    ):
        run(pool, 120, {40: lambda: cluster.remove_node(node, allow_graceful=False)})


def test_a_lane_that_hangs_costs_one_visit(ray_cluster: Any) -> None:
    """It keeps no deadline itself; the visit behind is made again."""
    with make_pool(deadlines=Deadlines(run=1.0, start=60.0, grace=0.0), hang_at=5) as pool:
        found = run(pool, 8)
    assert Counter(next(iter(one.outcomes.values())).kind for one in found) == {"measured": 7, "timed_out": 1}


def test_a_full_disk_ends_a_run_with_a_sentence_and_loses_nothing(tmp_path: Path) -> None:
    evaluation = Evaluation("x" * 1000, {}, {})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Journal(tmp_path / "run", create=True) as journal:
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
        try:
            for number in range(2000):
                journal.append(Evaluated(number=number, evaluation=evaluation))
        except JournalError as error:
            sentence = str(error)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "cannot be written" in sentence and "tunesmith resume" in sentence and sentence.endswith(".")
    with Journal(tmp_path / "run", create=False) as journal:
        kept = [entry.event.number for entry in journal.entries(Evaluated)]
        assert kept == list(range(number)), "everything before the full disk is there"
        journal.append(Evaluated(number=number, evaluation=evaluation))


def test_a_cache_that_cannot_be_written_is_told_once(tmp_path: Path, ray_cluster: Any) -> None:
    said: list[str] = []
    cache = ArtifactCache(tmp_path / "cache")
    (tmp_path / "cache").write_text("in the way")
    with make_pool(cache=cache, say=said.append) as pool:
        found = run(pool, 4)
    assert all_measured(found) and not any(one.cached for one in found)
    assert len(said) == 1 and "cannot be written" in said[0]


def shared_code(count: int) -> list[EvaluationRequest]:
    """Configurations of silu_and_mul with one code: their GRID_CAP is of the launch alone."""
    config = TEMPLATE.default_config | {"WALK": 1}
    caps = (528, 1056, 2112, 4224)[:count]
    return [EvaluationRequest(at, TEMPLATE, config | {"GRID_CAP": cap}, WORKLOAD) for at, cap in enumerate(caps)]


def test_code_that_evaluations_share_is_compiled_once(ray_cluster: Any) -> None:
    configs = [one.config | {"WALK": walk} for walk in (1, 0) for one in shared_code(2 if walk else 1)]
    with make_pool(compilers=2, compile_seconds=0.5) as pool:
        found = pool.evaluate([EvaluationRequest(at, TEMPLATE, one, WORKLOAD) for at, one in enumerate(configs)])
    assert [one.config for one in found] == configs and all_measured(found)
    assert [one.cached for one in found] == [False, True, False]
    # Counted from when the driver sees the call before it end: on a busy machine less than the half second.
    assert [one.compile_seconds > 0 for one in found] == [not one.cached for one in found]
    assert found[0].artifact == found[1].artifact != found[2].artifact


@pytest.mark.slow
def test_who_waits_for_a_lost_compilation_is_compiled(ray_cluster: Any) -> None:
    with make_pool(compile_seconds=1.0) as pool:
        pool.ready_worker(pool.workers.compilers)
        before = pool.target_in_flight
        for one in shared_code(2):
            pool.submit(one)
        pool.collect(timeout=0.3)
        assert pool.target_in_flight == before + 1, "the one that waits leaves its place to another"
        ray_cluster.kill(pool.workers.compilers[0].actor)
        found = drain(pool)
    assert len(found) == 2 and all_measured(list(found.values()))


@pytest.mark.parametrize(
    ("pretence", "outcome", "compilations"), [({"compile_seconds": 60.0}, TimedOut, 1), ({"dies": True}, Crashed, 2)]
)
def test_a_source_that_no_compiler_survives_is_not_compiled_for_each_that_has_it(
    ray_cluster: Any, pretence: dict[str, Any], outcome: type, compilations: int
) -> None:
    with make_pool(deadlines=Deadlines(start=60.0, compile=1.0), **pretence) as pool:
        (compiler,) = pool.workers.compilers
        compiler.make = made = mock.Mock(side_effect=compiler.make)
        *first, late = shared_code(4)
        for one in first:
            pool.submit(one)
        found = drain(pool)
        # Nor for one that comes later.
        found |= dict(enumerate(pool.evaluate([late]), len(first)))
    assert len(found) == 4 and all(isinstance(one.outcomes[WORKLOAD[0]], outcome) for one in found.values())
    assert made.call_count == compilations


def test_a_search_does_not_wait_for_what_takes_far_longer_to_compile_than_usual(
    ray_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunesmith.actors.pool.pool.MIN_COMPILE_SECONDS", 1.0)
    # It begins before anything is known of what is usual.
    one = requests(1)[0]
    source = specialise(TEMPLATE, one.config, dict(code_key(TASK, TEMPLATE, TASK.workload(WORKLOAD[0]))))
    with make_pool(compilers=2, endless=source.digest) as pool:
        first, *others = run(pool, 8)
    assert isinstance(late := first.outcomes[WORKLOAD[0]], TimedOut) and late.phase == "compile" and late.limit < 20
    assert all_measured(others)
