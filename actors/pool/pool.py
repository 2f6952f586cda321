"""The pool: what roles ask for evaluations, roofs, comparisons and verdicts; it owns the worker processes.

Evaluations run many at a time, by the scheduler. Measuring roofs, comparing finalists with the baseline and full
verdicts have the pool for themselves: one call at a time on an idle worker, whose death or overrun comes back as an
outcome.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ray.util.metrics import Counter, Gauge

from tunesmith.actors.judging.judge import CandidateVerdict, Limits, Question
from tunesmith.actors.pool.scheduler import Scheduler
from tunesmith.actors.pool.workers import GATE, ActorHandle, PoolError, WorkerSet
from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.build.artifact import ArtifactCache, Candidate, EvaluationRequest, types_key
from tunesmith.kernels.measure.bench import ComparisonRequest, WorkloadComparison
from tunesmith.kernels.measure.opponents import Encounter, KernelRival, Rival
from tunesmith.kernels.measure.timing import Precision
from tunesmith.kernels.outcome import Crashed, Evaluation, Failure, LaunchFailed, TimedOut
from tunesmith.kernels.spec.task import AnyOpponent, FunctionOpponent

T = TypeVar("T")
MAX_EXAMINATION_SECONDS = 1800.0
"""Deadline of one verdict, which has deadlines of its own inside."""
FUNCTION_SECONDS = 120.0
"""Time added for an opponent that is a function: its framework is imported, and may compile it."""
ENDED = "the process ended, or overran its deadline, while the opponents were timed"
FINALISTS_ENDED = "every finalist ended its process"
"""Reason for which no opponent was timed."""
ROOF_WARN_DEVIATION = 0.01
"""Deviation of a lane's roofs from the other lanes' that is reported."""
ROOF_EXCLUDE_DEVIATION = 0.05
"""Deviation for which the lane is excluded."""
METRICS_SECONDS = 2.0
"""Time between two reports of the gauges."""


class Metrics:
    """The metrics of the tuning of `task` for Prometheus and Grafana, as Ray exports them (docs/cluster.md):
    tunesmith_evaluations, tunesmith_failures (by kind), tunesmith_lane_busy and tunesmith_compilers_busy (shares of
    time), tunesmith_compile_queue and tunesmith_in_flight."""

    def __init__(self, task: str) -> None:
        self._evaluations = Counter("tunesmith_evaluations", "Configurations evaluated.", ("task",))
        self._failures = Counter("tunesmith_failures", "Configurations that failed, by kind.", ("task", "kind"))
        self._lane = Gauge("tunesmith_lane_busy", "Share of time a lane was at work.", ("task", "lane"))
        self._compilers = Gauge("tunesmith_compilers_busy", "Share of time compile workers were at work.", ("task",))
        self._queue = Gauge("tunesmith_compile_queue", "Compilations that wait for a worker.", ("task",))
        self._in_flight = Gauge("tunesmith_in_flight", "Evaluations under way.", ("task",))
        self._tags = {"task": task}
        self._reported = time.monotonic()
        self._busy: dict[int, float] = {}

    def report(self, ended: Sequence[Evaluation], workers: WorkerSet, queued: int, in_flight: int) -> None:
        """Counts the evaluations that `ended`, and sets the gauges now and then."""
        for evaluation in ended:
            self._evaluations.inc(1, self._tags)
            if evaluation.failure is not None:
                self._failures.inc(1, self._tags | {"kind": evaluation.failure.kind})
        now = time.monotonic()
        passed = now - self._reported
        if passed < METRICS_SECONDS:
            return
        self._reported = now
        before, self._busy = self._busy, {id(worker): worker.busy_until_now for worker in workers.workers}
        shares = {at: min(1.0, max(0.0, busy - before.get(at, 0.0)) / passed) for at, busy in self._busy.items()}
        for lane in workers.lanes:
            self._lane.set(shares[id(lane)], self._tags | {"lane": lane.name})
        self._compilers.set(statistics.fmean(shares[id(worker)] for worker in workers.compilers), self._tags)
        self._queue.set(queued, self._tags)
        self._in_flight.set(in_flight, self._tags)


@dataclass(frozen=True, slots=True)
class LaneStatus:
    """state: starting, idle, busy, or waiting (for another process that uses the device); served: visits so far;
    busy_seconds: time at work so far."""

    name: str
    state: str
    served: int
    busy_seconds: float


class Pool(Scheduler):
    """Evaluations, roofs, comparisons and verdicts by `workers`, for one task on one kind of device.

    cache: of artifacts on disk, None for none; shared: the cluster was there before, and has metrics. Use as a context
    manager; it starts and ends the processes.
    """

    def __init__(
        self,
        workers: WorkerSet,
        precision: Precision | None = None,
        cache: ArtifactCache | None = None,
        *,
        shared: bool = False,
    ) -> None:
        super().__init__(workers, precision or Precision(), cache)
        self._metrics = Metrics(workers.task.name) if shared else None

    def __enter__(self) -> Pool:
        self.workers.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.workers.end()

    @property
    def lanes(self) -> tuple[LaneStatus, ...]:
        """The state of each lane."""
        return tuple(LaneStatus(lane.name, lane.state, lane.served, lane.busy_until_now) for lane in self.workers.lanes)

    def collect(self, timeout: float = 1.0) -> list[tuple[EvaluationRequest, Evaluation]]:
        """Evaluations that have ended, in the order they ended; waits up to `timeout` seconds for the first."""
        until = time.monotonic() + timeout
        self.step(until)
        while not self.done and self.in_flight and time.monotonic() < until:
            self.step(until)
        results = list(self.done)
        self.done.clear()
        if self._metrics is not None:
            ended = [evaluation for _, evaluation in results]
            self._metrics.report(ended, self.workers, len(self.compile_queue), self.in_flight)
        return results

    def evaluate(self, requests: Sequence[EvaluationRequest]) -> list[Evaluation]:
        """Evaluations of `requests`, in their order; for when there is nothing else in flight."""
        for request in requests:
            self.submit(request)
        found: dict[int, Evaluation] = {}
        while len(found) < len(requests):
            found |= {request.number: evaluation for request, evaluation in self.collect(5.0)}
        return [found[request.number] for request in requests]

    def calibrate(self) -> Roofline:
        """The measured roofs of the first lane's device; no roofs when the device cannot run the probes.

        Where there are several lanes, all are measured. Lanes that differ from the largest group that agrees by more
        than `ROOF_WARN_DEVIATION` are reported, by more than `ROOF_EXCLUDE_DEVIATION` excluded. Of groups that are
        equally large the fastest stays, as nothing makes a GPU faster than it is, and a throttled one is slow."""
        self.roofline = Roofline()
        workers = self.workers
        probes = self._call(self.ready_worker(workers.compilers), "probes", workers.deadlines.compile)
        if not isinstance(probes, dict):
            return self.roofline
        self.ready_worker(workers.lanes)
        # Lanes that wait for a place in the cluster are not waited for.
        ready = [lane for lane in workers.lanes if lane.ready]
        seconds = workers.deadlines.visit * 3
        answers = [(lane, self._call(lane, "run", seconds, "calibrate", probes)) for lane in ready]
        measured = [(lane, roofs) for lane, roofs in answers if isinstance(roofs, Roofline)]
        if not measured:
            return self.roofline
        standard, standard_roofs = measured[typical([roofs for _, roofs in measured])]
        agreeing = []
        for lane, roofs in measured:
            off = deviation(roofs, standard_roofs)
            if off > ROOF_EXCLUDE_DEVIATION:
                workers.exclude(lane, f"its speed differs by {off:.1%} from that of {standard.name}")
                continue
            if off > ROOF_WARN_DEVIATION:
                workers.say(
                    f"{lane.name} differs by {off:.1%} in speed from {standard.name}; finalists are compared on one "
                    "device."
                )
            agreeing.append(roofs)
        self.roofline = agreeing[0]
        return self.roofline

    def compare(
        self,
        baseline: EvaluationRequest,
        candidates: Sequence[EvaluationRequest],
        workload: str,
        *,
        seed: int,
        rounds: int,
        budget_seconds: float,
        opponents: Sequence[AnyOpponent] = (),
    ) -> WorkloadComparison:
        """Baseline and candidates interleaved on `workload`, on fresh contents in a process that did not search.

        Comparisons of the same `seed` share a process, on one device. Nothing else may be in flight.
        """
        base, *compiled = self.compile(baseline, *candidates)
        if not isinstance(base, Candidate):
            return WorkloadComparison(workload, tuple(base for _ in candidates))
        rivals: list[Rival] = []
        for one in opponents:
            if isinstance(one, FunctionOpponent):
                rivals.append(one)
            else:
                (kernel,) = self.compile(EvaluationRequest(0, one.template, {}, (workload,)))
                rivals.append(KernelRival(one.name, one.label, kernel))
        deadlines, lanes = self.workers.deadlines, self.workers.lanes

        def run(request: ComparisonRequest) -> WorkloadComparison:
            # A process that was replaced has to make its buffers again; that is not the kernels' time.
            lane = self.ready_worker(lanes, seed)
            self._call(lane, "run", deadlines.prepare, "prepare", [workload])
            beside = request.opponents
            deadline = (deadlines.visit + budget_seconds) * (1 + len(request.candidates) + len(beside))
            deadline += FUNCTION_SECONDS * sum(isinstance(one, FunctionOpponent) for one in beside)
            answer = self._call(self.ready_worker(lanes, seed), "run", deadline, "compare", request)
            if isinstance(answer, WorkloadComparison):
                return answer
            return WorkloadComparison(workload, tuple(answer for _ in request.candidates))

        finalists = [one for one in compiled if isinstance(one, Candidate)]
        floor, energy_seconds = self.floor(workload), self.precision.energy_seconds
        request = ComparisonRequest(base, finalists, workload, rounds, budget_seconds, floor, energy_seconds, rivals)
        answer = run(request)
        if _ended_process(answer):
            answer = _one_by_one(run, request, answer)
        measured, compiles = iter(answer.results), [isinstance(one, Candidate) for one in compiled]
        key = types_key(self.task.workload(workload))
        # Where nobody asked for energies, or all failed, there are none at all.
        joules = answer.energies if any(answer.energies) else ()
        return WorkloadComparison(
            workload,
            tuple(next(measured) if isinstance(one, Candidate) else one for one in compiled),
            tuple(one.artifacts[key].code_digest if isinstance(one, Candidate) else "" for one in (base, *compiled)),
            self.ready_worker(self.workers.compilers).version,
            tuple(replace(one, against=_placed(one.against, compiles)) for one in answer.opponents),
            (joules[0], *_placed(joules[1:], compiles)) if joules else (),
        )

    def examine(
        self, questions: Sequence[Question], *, seed: int, seconds: float = math.inf, deadlines: Limits | None = None
    ) -> list[CandidateVerdict] | Failure:
        """The full verdict on each template at its configuration, on the device of the first lane. deadlines: of the
        steps of a verdict. A failure is one of the examination, not of a candidate, such as that it took longer than
        `seconds`. Nothing else may be in flight."""
        deadline = min(seconds, MAX_EXAMINATION_SECONDS * len(questions))
        arguments = (list(questions), seed, self.roofline, deadlines or Limits())
        lane = self.ready_worker(self.workers.lanes)
        verdicts: list[CandidateVerdict] | Failure = self._call(lane, "examine", deadline, *arguments)
        return verdicts

    def _call(self, worker: ActorHandle, method: str, seconds: float, *arguments: Any) -> Any:
        """The result of one call on a worker that is ready; a death or an overrun comes back as an outcome, and the
        process is started anew. Waiting for the device is not part of its `seconds`."""
        answer = Future[Any]()
        if worker.phase == "run":
            worker.begin(GATE, 0.0, "acquire")
        worker.begin(answer, seconds, method, *arguments)
        while not answer.done():
            self.advance(worker)
        result = answer.result()
        ended = _ended_process(result) if isinstance(result, WorkloadComparison) else _is_end(result)
        if worker.ready and ended:
            worker.reset_in_place()
        return result


def typical(all_roofs: Sequence[Roofline]) -> int:
    """The index of the device with which most others agree within `ROOF_EXCLUDE_DEVIATION`, the fastest of several."""

    def rank(roofs: Roofline) -> tuple[int, float]:
        agreeing = sum(deviation(other, roofs) <= ROOF_EXCLUDE_DEVIATION for other in all_roofs)
        return agreeing, statistics.fmean([0.0, *map(math.log, _ratios(roofs, all_roofs[0]))])

    return max(range(len(all_roofs)), key=lambda at: rank(all_roofs[at]))


def deviation(roofs: Roofline, standard: Roofline) -> float:
    """The relative difference of a device's roofs from the standard: the largest over copies at each size and over
    peaks."""
    return max((abs(ratio - 1) for ratio in _ratios(roofs, standard)), default=0.0)


def _ratios(roofs: Roofline, standard: Roofline) -> list[float]:
    """Each roof that both devices have, as a multiple of the other's."""
    bandwidth = dict(standard.bandwidth)
    return [
        *(rate / bandwidth[size] for size, rate in roofs.bandwidth if size in bandwidth),
        *(peak / standard.peak_flops[name] for name, peak in roofs.peak_flops.items() if name in standard.peak_flops),
    ]


def _one_by_one(
    run: Callable[[ComparisonRequest], WorkloadComparison], request: ComparisonRequest, together: WorkloadComparison
) -> WorkloadComparison:
    """The results that can be known where a comparison ended its process, as `together` says, so that nothing is held
    against a finalist or an opponent but its own end. Opponents are not on trial: finalists come first, without any."""
    finalists, rivals = request.candidates, request.opponents
    if rivals:
        together = run(replace(request, opponents=()))
    if _ended_process(together) and len(finalists) > 1:
        # Which of them did it is not known: each is compared alone.
        alone = [run(replace(request, candidates=[one], opponents=())) for one in finalists]
        energies = [one.energies or (None, None) for one in alone]
        baseline = next((joules for joules, _ in energies if joules is not None), None)
        results = tuple(one.results[0] for one in alone)
        together = WorkloadComparison("", results, energies=(baseline, *(joules for _, joules in energies)))
    lives = [not _is_end(one) for one in together.results]
    alive = [finalist for finalist, lived in zip(finalists, lives, strict=True) if lived]
    encounters = []
    for rival in rivals:
        # The only opponent, where no finalist ended a process, has ended it.
        known = not alive or (len(rivals) == 1 and all(lives))
        beside = None if known else run(replace(request, candidates=alive, opponents=[rival]))
        if beside is not None and not _ended_process(beside):
            encounters += [replace(one, against=_placed(one.against, lives)) for one in beside.opponents]
        else:
            encounters.append(Encounter(rival.name, rival.label, why=ENDED if alive else FINALISTS_ENDED))
    return replace(together, opponents=tuple(encounters))


def _placed(values: Sequence[T | None], present: Sequence[bool]) -> tuple[T | None, ...]:
    """The values of the present ones at their places among all, None at the others."""
    left = iter(values)
    return tuple(next(left, None) if there else None for there in present)


def _ended_process(answer: WorkloadComparison) -> bool:
    """Whether the process of a comparison lost its device."""
    return any(_is_end(one) for one in answer.results)


def _is_end(outcome: object) -> bool:
    """Whether the process died, overran its deadline, or lost its device."""
    return isinstance(outcome, Crashed | TimedOut) or (isinstance(outcome, LaunchFailed) and outcome.sticky)


__all__ = ["EvaluationRequest", "LaneStatus", "Pool", "PoolError"]
