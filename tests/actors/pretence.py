"""Workers that pretend: for what the pool decides, as against what a device measures. Importable by worker processes
only by value, so tests hand the classes of `pretending()` to the pool."""

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from tunesmith.actors.pool import Pool, WorkerSet
from tunesmith.actors.process import pack, unpack
from tunesmith.actors.workers import Deadlines, LaneReady
from tunesmith.hw.roofline import Roofline
from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.build.artifact import Artifact, Candidate, EvaluationRequest
from tunesmith.kernels.measure.bench import ComparisonRequest, WorkloadComparison
from tunesmith.kernels.measure.timing import compare
from tunesmith.kernels.outcome import Energy, Evaluation, Measured, Resources
from tunesmith.kernels.space import feasible
from tunesmith.kernels.spec.taskfile import load_task

TASK = load_task("silu_and_mul")
TEMPLATE = TASK.sources("cuda").templates[0]
WORKLOAD = ("512x11008",)
LIMITS = resolve_target("h200")


def pretending(
    *,
    visit_seconds: float = 0.002,
    compile_seconds: float = 0.0,
    dies: bool = False,
    bandwidths: tuple[float, ...] = (4e12, 4e12, 4e12),
    hang_at: int = 0,
    endless: str = "",
    names: tuple[str, ...] = (),
) -> dict[str, Any]:
    """A lane and a compiler, as arguments of `WorkerSet`. dies: the compiler, of every source; hang_at: the visit,
    counted by a lane's process, that takes a minute; endless: the digest of the source that takes a minute to compile;
    bandwidths, names: of GPUs, by number."""

    class Compiler:
        def __init__(self, limits: Any, index: int) -> None:
            self.limits, self.code = limits, os.urandom(8000)

        def start(self) -> tuple[str, None]:
            return "pretence 1", None

        def compile(self, source: Any) -> Any:
            time.sleep(60 if source.digest == endless else compile_seconds)
            if dies:
                os.kill(os.getpid(), signal.SIGKILL)
            return Artifact("cuda", self.limits.arch, source.entry, self.code, source.digest, Resources(20, 0, 0, 0))

        def compile_packed(self, data: bytes) -> bytes:
            return pack(self.compile(*unpack(data)))

        def probes(self) -> dict[str, Artifact]:
            return {}

    class Lane:
        def __init__(self, task: Any, limits: Any, index: int, holder: Any) -> None:
            self.number = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] or "0"
            self.name = names[int(self.number)] if names else limits.name
            self.visits = 0

        def start(self, health: Any, workloads: Any, seed: int, seconds: float) -> LaneReady:
            return LaneReady(f"GPU-{self.number}", self.name, os.environ.get("RAY_NODE_ID", "here"))

        def acquire(self) -> None:
            pass

        def waiting_for(self) -> str:
            return ""

        def run(self, method: str, argument: Any) -> Any:
            return getattr(self, method)(argument)

        def visit_packed(self, data: bytes, seconds: float) -> bytes:
            return pack(self.visit(*unpack(data)))

        def visit(self, candidate: Any, workloads: Any, precision: Any) -> Any:
            self.visits += 1
            time.sleep(60 if self.visits == hang_at else visit_seconds)
            energy = Energy(1e-3, 0.3, 1000, 0.01)
            return {
                name: Measured(1e-5, 1e-5, 1e-5, 7, 6, energy=energy if precision[name].energy_seconds else None)
                for name in workloads
            }

        def prepare(self, workloads: Any) -> None:
            pass

        def compare(self, request: ComparisonRequest) -> WorkloadComparison:
            samples = compare([[1e-5] * 3] * 3, [[2e-5] * 3] * 3)
            energy, count = request.energy_seconds, len(request.candidates)
            joules = tuple(Energy(1e-3 * (2 - at), energy, 1000, 0.01) for at in range(1 + count))
            results = tuple(samples if isinstance(one, Candidate) else one for one in request.candidates)
            return WorkloadComparison(request.workload, results, energies=joules if energy else ())

        def calibrate(self, probes: Any) -> Roofline:
            return Roofline(((1 << 26, bandwidths[int(self.number)]),), {}, 1e-6)

    return {"lane_class": Lane, "compile_class": Compiler}


def make_pool(lanes: int = 1, compilers: int = 1, **changes: Any) -> Pool:
    """A pool of pretending workers for H200s. changes: arguments of `pretending`, of `WorkerSet` and of `Pool`."""
    of_pool = {name: changes.pop(name) for name in ("precision", "cache") if name in changes}
    of_workers = {name: changes.pop(name) for name in ("say", "lane_class", "compile_class") if name in changes}
    deadlines = changes.pop("deadlines", Deadlines(start=60.0))
    settings = {"seed": 0, "workloads": WORKLOAD, "deadlines": deadlines} | pretending(**changes) | of_workers
    return Pool(WorkerSet(TASK, LIMITS, lanes=lanes, compilers=compilers, **settings), **of_pool)


def requests(count: int) -> list[EvaluationRequest]:
    space = feasible(TEMPLATE, [TASK.workload(WORKLOAD[0])], LIMITS)
    return [EvaluationRequest(number, TEMPLATE, space.config(number), WORKLOAD) for number in range(count)]


def run(pool: Pool, wanted: Any, at: dict[int, Callable[[], object]] | None = None) -> list[Evaluation]:
    """The evaluations of these requests, or of the first so many, in their order; when as many as a key of `at` have
    ended, its value is called."""
    asked = requests(wanted) if isinstance(wanted, int) else wanted
    found, actions = dict[int, Evaluation](), dict(at or {})
    for request, evaluation in pool.evaluate(asked):
        assert request.number not in found, "an evaluation ended twice"
        found[request.number] = evaluation
        if (action := actions.pop(len(found), None)) is not None:
            action()
    assert pool.in_flight == 0
    return [found[request.number] for request in asked]


def drain(pool: Pool) -> dict[int, Evaluation]:
    """All evaluations under way, by their numbers."""
    found, deadline = dict[int, Evaluation](), time.monotonic() + 60
    while pool.in_flight:
        assert time.monotonic() < deadline, f"{pool.in_flight} evaluations never ended"
        for request, evaluation in pool.collect():
            assert request.number not in found, "an evaluation ended twice"
            found[request.number] = evaluation
    return found


def all_measured(found: list[Evaluation]) -> bool:
    return all(isinstance(one.outcomes[WORKLOAD[0]], Measured) for one in found)
