"""Many GPUs, pretended, the cluster that has them, and faults of what the pool stands on: Ray numbers lanes as on a
real node; what they measure is made up; nothing measured is lost."""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pretence import LIMITS, TASK, TEMPLATE, WORKLOAD, all_measured, drain, make_pool, pretending, requests, run

from tunesmith.actors.pool import ROOF_EXCLUDE_DEVIATION, deviation, typical
from tunesmith.actors.ray_cluster import cluster, cpu_share, survey, total
from tunesmith.actors.workers import Deadlines
from tunesmith.graph.setup import choose_device
from tunesmith.hw.device_lock import Holder
from tunesmith.hw.errors import NoDevice, TunesmithError
from tunesmith.hw.probe import DeviceInfo, Inventory
from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.build.artifact import ArtifactCache, Candidate, EvaluationRequest
from tunesmith.kernels.build.source import code_key, specialise
from tunesmith.kernels.measure.bench import ComparisonRequest
from tunesmith.kernels.measure.opponents import Encounter
from tunesmith.kernels.measure.timing import Comparison, Precision
from tunesmith.kernels.outcome import Crashed, Measured, TimedOut
from tunesmith.kernels.spec.task import KernelOpponent

pytestmark = pytest.mark.usefixtures("ray_cluster")  # with three pretended GPUs


def test_lanes_share_the_work_and_those_of_another_model_or_speed_are_left_out() -> None:
    """Of three, one is of another model and one is slower. Energy is measured, for as long as was asked, in visits and
    in comparisons."""
    said: list[str] = []
    names, bandwidths = (LIMITS.name, "NVIDIA A10", LIMITS.name), (4e12, 4e12, 3.6e12)
    pretence: dict[str, Any] = {"names": names, "bandwidths": bandwidths, "visit_seconds": 0.02}
    with make_pool(3, say=said.append, precision=Precision(energy_seconds=0.3), **pretence) as pool:
        found = run(pool, 60)
        outcomes = [one.outcomes[WORKLOAD[0]] for one in found]
        assert all(isinstance(one, Measured) and one.energy is not None for one in outcomes)
        while not all(lane.ready for lane in pool.workers.lanes):
            pool.advance(*pool.workers.lanes)
        busy = [lane.busy_seconds for lane in pool.workers.lanes]
        # On a machine that is busy otherwise they do not get equal parts.
        assert len({lane.name for lane in pool.workers.lanes}) == 2 and min(busy) >= 6 * 0.02
        assert pool.calibrate().bandwidth == ((1 << 26, 4e12),) and len(pool.lanes) == 1 and len(said) == 2
        assert said[0].startswith("NVIDIA A10 (GPU-1)")
        assert said[0].endswith(f"is excluded: it is an NVIDIA A10, and this run tunes for {LIMITS.name}.")
        assert "(GPU-2)" in said[1] and "is excluded: its speed differs by 10.0% from that of" in said[1]
        baseline, first = requests(2)
        compared = pool.compare(baseline, [first], WORKLOAD[0], seed=1, rounds=3, budget_seconds=0.1)
        assert [one.joules for one in compared.energies if one is not None] == [2e-3, 1e-3]
        assert [one.seconds for one in compared.energies if one is not None] == [0.3, 0.3]


def test_the_gpus_that_agree_are_kept_of_the_model_there_is_most_of() -> None:
    """And of groups that are equally large the fastest; copies and arithmetic count alike."""
    for speeds, kept in (
        ((4.0, 4.0, 3.5, 3.5), [0, 1]),
        ((3.5, 4.0, 3.5, 4.0), [1, 3]),
        ((4.0, 3.5, 3.5), [1, 2]),
        ((3.7, 3.85, 4.0), [0, 1, 2]),
        ((4.0, 3.0, 2.0), [0]),
        ((4.0,), [0]),
    ):
        copies = [Roofline(((1 << 26, speed * 1e12),), {"float32": 60e12}) for speed in speeds]
        for roofs in (copies, [Roofline(((1 << 26, 4e12),), {"float32": speed * 15e12}) for speed in speeds]):
            standard = roofs[typical(roofs)]
            near = [at for at, one in enumerate(roofs) if deviation(one, standard) <= ROOF_EXCLUDE_DEVIATION]
            assert near == kept
    devices = [
        DeviceInfo("cuda", index, name, replace(LIMITS, name=name))
        for index, name in enumerate(("NVIDIA A10", "NVIDIA H200", "NVIDIA H200"))
    ]
    inventory = Inventory(tuple(devices), ())
    assert choose_device(TASK, "auto", inventory).name == "NVIDIA H200"
    assert choose_device(TASK, "cuda", inventory).index == 1
    assert choose_device(TASK, "auto", inventory, "a10").name == "NVIDIA A10"
    with pytest.raises(NoDevice, match=r"--target-device: no device here is called 'B200'; there are NVIDIA A10, NV"):
        choose_device(TASK, "auto", inventory, "B200")


def test_a_lane_that_is_excluded_while_it_is_made_ready_leaves_its_place_to_the_next(tmp_path: Path) -> None:
    pretended = pretending()

    class Lane(pretended["lane_class"]):  # type: ignore[misc]
        """The first to start, which is the first of the pool, has a GPU of another model."""

        def start(self, *arguments: Any) -> Any:
            ready = super().start(*arguments)
            try:
                (tmp_path / "started").touch(exist_ok=False)
            except FileExistsError:
                return ready
            return replace(ready, name="NVIDIA A10")

    said: list[str] = []
    with make_pool(2, say=said.append, lane_class=Lane) as pool:
        baseline, first = requests(2)
        compared = pool.compare(baseline, [first], WORKLOAD[0], seed=7, rounds=3, budget_seconds=0.1)
        assert [type(one) for one in compared.results] == [Comparison] and compared.compiler == "pretence 1"
        assert compared.energies == (), "nobody asked for them"
        assert [lane.seed for lane in pool.workers.lanes] == [7], "on contents that the search has not seen"
        assert pool.calibrate().peak_bandwidth == 4e12
    assert [one.partition(" is excluded: ")[2] for one in said] == [
        f"it is an NVIDIA A10, and this run tunes for {LIMITS.name}."
    ]


def test_who_ended_a_comparison_is_found_out_and_costs_no_other_anything() -> None:
    """The process ends with the second of `requests`, and with opponents whose name begins with "ends"."""
    pretended, every, kernel = pretending(), requests(3), TASK.sources("cuda").baseline.template
    deadly = every[1].config

    class Lane(pretended["lane_class"]):  # type: ignore[misc]
        def compare(self, request: ComparisonRequest) -> Any:
            rivals = [one for one, _ in request.opponents]
            deadly_here = any(isinstance(one, Candidate) and one.config == deadly for one in request.candidates)
            if deadly_here or any(one.name.startswith("ends") for one in rivals):
                return Crashed("run", "pretended")
            answer = super().compare(request)
            against = tuple(one if isinstance(one, Comparison) else None for one in answer.results)
            met = (Encounter(one.name, one.label, against[0], against) for one in rivals)
            return replace(answer, opponents=tuple(met))

    cases: list[tuple[tuple[int, ...], tuple[str, ...], dict[str, Any]]] = [
        ((0, 1, 2), ("a", "b"), {"a": (True, False, True), "b": (True, False, True)}),
        ((0, 2), ("ends", "b"), {"b": (True, True)}),
        ((0, 2), ("ends",), {}),
        ((0, 1), ("a", "ends"), {"a": (True, False)}),
        ((1, 0), ("ends",), {}),
        ((1,), ("a",), {}),
    ]
    with make_pool(precision=Precision(energy_seconds=0.3), lane_class=Lane) as pool:
        for numbers, names, timed in cases:
            plain, finalists = EvaluationRequest(9, kernel, {}, WORKLOAD), [every[number] for number in numbers]
            beside = [KernelOpponent(name=one, label="production", template=kernel) for one in names]
            options: Any = {"seed": 7, "rounds": 3, "budget_seconds": 0.1, "opponents": beside}
            compared = pool.compare(plain, finalists, WORKLOAD[0], **options)
            assert [type(one) for one in compared.results] == [Crashed if one == 1 else Comparison for one in numbers]
            energies = compared.energies[1:] or [None] * len(numbers)
            assert [one is not None for one in energies] == [one != 1 for one in numbers]
            assert [one.name for one in compared.opponents] == list(names)
            met = {
                one.name: tuple(each is not None for each in one.against) for one in compared.opponents if not one.why
            }
            assert met == timed
    assert [one.why for one in compared.opponents] == ["every finalist ended its process"], "no opponent is blamed"


@pytest.mark.slow
def test_a_tuning_that_waits_for_a_gpu_says_who_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunesmith.actors.pool.REPORT_AFTER_SECONDS", 0.5)
    other = Holder(28171, "gpu-1", "tunesmith tune gemm")
    said: list[str] = []
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("tunesmith.actors.pool.this_process", lambda: other)
        first = make_pool(3)
    with first:
        run(first, 3)
        for lane in first.workers.lanes:
            first.ready_worker([lane])
        with make_pool(say=said.append) as second:
            second.submit(requests(1)[0])
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


def test_the_survey_asks_every_node_and_a_cluster_here_is_left_running(ray_cluster: Any) -> None:
    def looker() -> Inventory:
        return Inventory((DeviceInfo("cuda", 0, "NVIDIA H200", LIMITS),), ())

    assert [device.name for device in survey(looker).devices] == ["NVIDIA H200"]

    def broken() -> Inventory:
        raise RuntimeError("no")

    found = survey(broken)
    assert found.devices == () and len(found.notes) == 1 and found.notes[0].endswith(".")
    with cluster() as attached:
        assert attached and (total("CPU"), total("GPU")) == (2, 3)
    assert ray_cluster.is_initialized()


@pytest.mark.parametrize("name", ["TMPDIR", "RAY_TMPDIR"])
def test_a_folder_for_temporary_files_that_is_of_no_use_is_named(monkeypatch: Any, tmp_path: Path, name: str) -> None:
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("tempfile.NamedTemporaryFile", mock.Mock(side_effect=OSError(28, "No space left on device")))
    said = rf"^{name}: .* {tmp_path} cannot be used \(No space left .* 8 MiB free, or set {name} to another folder\.$"
    with pytest.raises(TunesmithError, match=said), cluster():
        pass


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
    monkeypatch.setattr("tunesmith.actors.pool.NO_DEVICE_SECONDS", 5.0)
    with (
        make_pool(compilers=2, visit_seconds=0.02) as pool,
        pytest.raises(TunesmithError, match=r"has no GPU any more: .* `tunesmith resume`\.$"),
    ):
        run(pool, 120, {40: lambda: cluster.remove_node(node, allow_graceful=False)})


def test_a_lane_that_hangs_costs_one_visit_and_a_cache_that_cannot_be_written_is_told_once(tmp_path: Path) -> None:
    """It keeps no deadline itself; the visit behind is made again."""
    said: list[str] = []
    cache = ArtifactCache(tmp_path / "cache")
    (tmp_path / "cache").write_text("in the way")
    limits = Deadlines(run=1.0, start=60.0, grace=0.0)
    with make_pool(deadlines=limits, hang_at=5, cache=cache, say=said.append) as pool:
        found = run(pool, 8)
    assert Counter(next(iter(one.outcomes.values())).kind for one in found) == {"measured": 7, "timed_out": 1}
    assert not any(one.cached for one in found) and len(said) == 1 and "cannot be written" in said[0]


def shared_code(count: int) -> list[EvaluationRequest]:
    """Configurations of silu_and_mul with one code: their GRID_CAP is of the launch alone."""
    config = TEMPLATE.default_config | {"WALK": 1}
    caps = (528, 1056, 2112, 4224)[:count]
    return [EvaluationRequest(at, TEMPLATE, config | {"GRID_CAP": cap}, WORKLOAD) for at, cap in enumerate(caps)]


def test_code_that_evaluations_share_is_compiled_once(ray_cluster: Any) -> None:
    configs = [one.config | {"WALK": walk} for walk in (1, 0) for one in shared_code(2 if walk else 1)]
    with make_pool(compilers=2, compile_seconds=0.5) as pool:
        found = run(pool, [EvaluationRequest(at, TEMPLATE, one, WORKLOAD) for at, one in enumerate(configs)])
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
def test_what_no_compiler_survives_is_not_compiled_for_each(pretence: Any, outcome: type, compilations: int) -> None:
    with make_pool(deadlines=Deadlines(start=60.0, compile=1.0), **pretence) as pool:
        (compiler,) = pool.workers.compilers
        compiler.make = made = mock.Mock(side_effect=compiler.make)
        *first, late = shared_code(4)
        for one in first:
            pool.submit(one)
        found = drain(pool)
        # Nor for one that comes later.
        found |= dict(enumerate(run(pool, [late]), len(first)))
    assert len(found) == 4 and all(isinstance(one.outcomes[WORKLOAD[0]], outcome) for one in found.values())
    assert made.call_count == compilations


def test_a_search_does_not_wait_for_what_compiles_far_longer_than_usual(ray_cluster: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("tunesmith.actors.pool.MIN_COMPILE_SECONDS", 1.0)
    # The first compilation takes seconds on a busy machine.
    monkeypatch.setattr("tunesmith.actors.pool.USUAL_COMPILE_RATIO", 2.0)
    # It begins before anything is known of what is usual.
    one = requests(1)[0]
    source = specialise(TEMPLATE, one.config, dict(code_key(TASK, TEMPLATE, TASK.workload(WORKLOAD[0]))))
    with make_pool(compilers=2, endless=source.digest) as pool:
        first, *others = run(pool, 8)
    assert isinstance(late := first.outcomes[WORKLOAD[0]], TimedOut) and late.phase == "compile" and late.limit < 20
    assert all_measured(others)
