"""Calls that have the pool for themselves: measuring roofs, comparing finalists with the baseline, full verdicts.

Owns one call at a time on an idle worker. A death or an overrun comes back as an outcome, and the actor is replaced.

The metrics of a pool, for Prometheus and Grafana as Ray exports them; see docs/cluster.md.
The pool: what roles ask for evaluations, roofs and comparisons; it owns the worker processes.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter as Counts
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import ray
from ray.util.metrics import Counter, Gauge

from tunesmith.actors.judging.judge import Limits, Question, Verdict
from tunesmith.actors.lane import LaneHost
from tunesmith.actors.pool.scheduler import Scheduler, sources_of
from tunesmith.actors.pool.workers import LOST, ActorHandle, Deadlines, PoolError, WorkerSet, describe_loss, result_of
from tunesmith.actors.workers import CompileWorker
from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.build.artifact import Artifact, Candidate, EvaluationRequest, types_key
from tunesmith.kernels.build.artifact_cache import ArtifactCache, cache_key
from tunesmith.kernels.build.source import Specialised
from tunesmith.kernels.measure.bench import WorkloadComparison
from tunesmith.kernels.measure.opponents import Encounter, KernelRival, Rival
from tunesmith.kernels.measure.timing import Precision
from tunesmith.kernels.outcome import CompileFailed, Crashed, Evaluation, Failure, LaunchFailed, Outcome, TimedOut
from tunesmith.kernels.spec.task import AnyOpponent, FunctionOpponent, Task

if TYPE_CHECKING:
    from tunesmith.kernels.build.artifact import TypesKey


T = TypeVar("T")
EXAMINATION_SECONDS = 1800.0
"""For one examination, which has deadlines of its own inside."""
FUNCTION_SECONDS = 120.0
"""More for an opponent that is a function: its framework is imported, and may compile it."""
ENDED = "the process ended, or overran its deadline, while the opponents were timed"
USES_DEVICE = ("prepare", "compare", "calibrate", "examine")
"""Calls of a lane that launch kernels, before which it waits for the device."""
FINALISTS_ENDED = "every finalist ended its process"
"""Why no opponent was timed."""
AGREE = 0.01
"""How far a lane's roofs may be from those of the other lanes before that is reported."""
DISAGREE = 0.05
"""How far before the lane is excluded."""


class ExclusiveCalls:
    """`floor` gives the least seconds of a workload by its name; energy_seconds: as in `Precision`."""

    def __init__(
        self,
        workers: WorkerSet,
        task: Task,
        cache: ArtifactCache | None,
        floor: Callable[[str], float],
        energy_seconds: float = 0.0,
    ) -> None:
        self._workers, self._task, self._cache, self._floor = workers, task, cache, floor
        self._energy_seconds = energy_seconds
        self._deadlines = workers.deadlines

    def calibrate(self) -> Roofline:
        """The roofs of the first lane. Where there are several lanes, all are measured, and those that differ from the
        largest group that agrees by more than `AGREE` are reported, by more than `DISAGREE` excluded. Of groups that
        are equally large the fastest stays, as nothing makes a GPU faster than it is, and a throttled one is slow."""
        probes = self._call(self._workers.ready_worker(self._workers.compilers), "probes", self._deadlines.compile)
        if not isinstance(probes, dict):
            return Roofline()
        self._lane()
        found: list[tuple[ActorHandle, Roofline]] = []
        # Lanes that wait for a place in the cluster are not waited for.
        for lane in [lane for lane in self._workers.lanes if lane.ready]:
            roofs = self._call(lane, "calibrate", self._deadlines.visit * 3, probes)
            if isinstance(roofs, Roofline):
                found.append((lane, roofs))
        if not found:
            return Roofline()
        kept = typical([roofs for _, roofs in found])
        standard, standard_roofs = found[kept]
        agreeing = []
        for lane, roofs in found:
            off = deviation(roofs, standard_roofs)
            if off > DISAGREE:
                self._workers.exclude(lane, f"its speed differs by {off:.1%} from that of {standard.name}")
                continue
            if off > AGREE:
                self._workers.say(
                    f"{lane.name} differs by {off:.1%} in speed from {standard.name}; finalists are compared on one "
                    "device."
                )
            agreeing.append(roofs)
        return agreeing[0]

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
        """See `Pool.compare`."""
        compiled = [self._compile(request) for request in (baseline, *candidates)]
        base, ready = compiled[0], [one for one in compiled[1:] if isinstance(one, Candidate)]
        if not isinstance(base, Candidate):
            return WorkloadComparison(workload, tuple(base for _ in candidates))

        def compare_with(entrants: list[Candidate], rivals: Sequence[Rival] = ()) -> WorkloadComparison | Outcome:
            # A process that was replaced has to make its buffers again; that is not the kernels' time.
            self._call(self._lane(seed), "prepare", self._deadlines.prepare, [workload])
            deadline = (self._deadlines.visit + budget_seconds) * (1 + len(entrants) + len(rivals))
            deadline += FUNCTION_SECONDS * sum(isinstance(one, FunctionOpponent) for one in rivals)
            limits = (rounds, budget_seconds, self._floor(workload), self._energy_seconds)
            arguments = (base, entrants, workload, *limits, list(rivals))
            answer: WorkloadComparison | Outcome = self._call(self._lane(seed), "compare", deadline, *arguments)
            return answer

        rivals = [self._rival(one, workload) for one in opponents]
        answer = compare_with(ready, rivals)
        if not isinstance(answer, WorkloadComparison) or _ended_process(answer):
            answer = _one_by_one(compare_with, ready, rivals, answer)
        compiles = [isinstance(one, Candidate) for one in compiled[1:]]
        measured = iter(answer.results)
        results = tuple(next(measured) if isinstance(one, Candidate) else one for one in compiled[1:])
        key = types_key(self._task.workload(workload))
        codes = (one.artifacts[key].code_digest if isinstance(one, Candidate) else "" for one in compiled)
        others = tuple(replace(one, against=_placed(one.against, compiles)) for one in answer.opponents)
        # Where nobody asked for energies, or all failed, there are none at all.
        joules = answer.energies
        joules = (joules[0], *_placed(joules[1:], compiles)) if any(joules) else ()
        version = self._workers.compilers[0].version
        return WorkloadComparison(workload, results, tuple(codes), version, others, joules)

    def examine(
        self, questions: Sequence[Question], seed: int, roofline: Roofline, seconds: float, deadlines: Limits
    ) -> list[Verdict] | Failure:
        """See `Pool.examine`."""
        deadline = min(seconds, EXAMINATION_SECONDS * len(questions))
        found: list[Verdict] | Failure = self._call(
            self._lane(), "examine", deadline, list(questions), seed, roofline, deadlines
        )
        return found

    def _rival(self, opponent: AnyOpponent, workload: str) -> Rival:
        if isinstance(opponent, FunctionOpponent):
            return opponent
        made = self._compile(EvaluationRequest(0, opponent.template, {}, (workload,)))
        return KernelRival(opponent.name, opponent.label, made)

    def _compile(self, request: EvaluationRequest) -> Candidate | Outcome:
        artifacts: dict[TypesKey, Artifact] = {}
        workloads = [self._task.workload(name) for name in request.workloads]
        for key, source in sources_of(request, workloads).items():
            made = self._artifact(source)
            if not isinstance(made, Artifact):
                return made
            artifacts[key] = made
        return Candidate(request.template, request.config, artifacts)

    def _artifact(self, source: Specialised) -> Artifact | Outcome:
        worker = self._workers.ready_worker(self._workers.compilers)
        if self._cache is not None:
            key = cache_key(source, self._workers.limits.arch, worker.version)
            if (known := self._cache.get(key)) is not None:
                return known
        made: Artifact | Outcome = self._call(worker, "compile", self._deadlines.compile, source)
        if self._cache is not None and isinstance(made, Artifact | CompileFailed):
            self._cache.put(key, made)
        return made

    def _lane(self, seed: int | None = None) -> ActorHandle:
        """The first lane, ready; with contents of `seed`, where it is given."""
        return self._workers.ready_worker(self._workers.lanes, seed)

    def _call(self, worker: ActorHandle, method: str, deadline: float, *arguments: Any) -> Any:
        """One call on a worker that is ready; a death or an overrun comes back as an outcome, and the actor is
        replaced."""
        phase, workers = self._workers.phase_of(worker), self._workers
        try:
            if method in USES_DEVICE:
                acquired = worker.actor.acquire.remote()
                workers.wait_for(acquired, time.monotonic() + self._deadlines.start, worker)
                result_of(acquired)
            result = result_of(getattr(worker.actor, method).remote(*arguments), deadline)
        except ray.exceptions.GetTimeoutError:
            worker.replace_actor()
            return TimedOut(phase, deadline)
        except LOST as error:
            worker.replace_actor()
            return Crashed(phase, describe_loss(error))
        if isinstance(result, Crashed | TimedOut) or (
            isinstance(result, WorkloadComparison) and _ended_process(result)
        ):
            worker.reset_in_place()
        return result


def typical(all_roofs: Sequence[Roofline]) -> int:
    """The device with which most others agree within `DISAGREE`; the fastest of several such."""

    def rank(roofs: Roofline) -> tuple[int, float]:
        agreeing = sum(deviation(other, roofs) <= DISAGREE for other in all_roofs)
        return agreeing, statistics.fmean([0.0, *map(math.log, _ratios(roofs, all_roofs[0]))])

    return max(range(len(all_roofs)), key=lambda at: rank(all_roofs[at]))


def deviation(roofs: Roofline, standard: Roofline) -> float:
    """How far the roofs of one device are from those of another, as a share of these: the largest over copies at each
    size and over peaks."""
    return max((abs(ratio - 1) for ratio in _ratios(roofs, standard)), default=0.0)


def _ratios(roofs: Roofline, standard: Roofline) -> list[float]:
    """Each roof that both devices have, as a multiple of the other's."""
    bandwidth = dict(standard.bandwidth)
    return [
        *(rate / bandwidth[size] for size, rate in roofs.bandwidth if size in bandwidth),
        *(peak / standard.peak_flops[name] for name, peak in roofs.peak_flops.items() if name in standard.peak_flops),
    ]


def _one_by_one(
    compare_with: Callable[[list[Candidate], Sequence[Rival]], WorkloadComparison | Outcome],
    finalists: list[Candidate],
    rivals: Sequence[Rival],
    together: WorkloadComparison | Outcome,
) -> WorkloadComparison:
    """What can be known where a comparison ended its process, as `together` says, so that nothing is held against a
    finalist or an opponent but its own end. An opponent is not on trial: finalists come first, without any."""
    if rivals:
        together = compare_with(finalists, ())
    if isinstance(together, WorkloadComparison) and not _ended_process(together):
        results, energies = together.results, together.energies
    else:
        # Which of them did it is not known: each is compared alone.
        alone = [together] if len(finalists) == 1 else [compare_with([one], ()) for one in finalists]
        results = tuple(one.results[0] if isinstance(one, WorkloadComparison) else one for one in alone)
        each = [one.energies if isinstance(one, WorkloadComparison) else () for one in alone]
        energies = (next((one[0] for one in each if one), None), *(one[1] if one else None for one in each))
    lives = [not _is_end(one) for one in results]
    fine = [one for one, alive in zip(finalists, lives, strict=True) if alive]
    met = []
    for rival in rivals:
        # The only opponent, where no finalist ended a process, has shown what it does.
        known = not fine or (len(rivals) == 1 and all(lives))
        beside = None if known else compare_with(fine, [rival])
        if isinstance(beside, WorkloadComparison) and not _ended_process(beside):
            met += [replace(one, against=_placed(one.against, lives)) for one in beside.opponents]
        else:
            met.append(Encounter(rival.name, rival.label, why=ENDED if all(lives) or fine else FINALISTS_ENDED))
    return WorkloadComparison("", results, opponents=tuple(met), energies=energies)


def _placed(values: Sequence[T | None], present: Sequence[bool]) -> tuple[T | None, ...]:
    """The values of those that are present, at their places among all."""
    left = iter(values)
    return tuple(next(left, None) if there else None for there in present)


def _ended_process(answer: WorkloadComparison) -> bool:
    """Whether the process of a comparison lost its device."""
    return any(_is_end(one) for one in answer.results)


def _is_end(outcome: object) -> bool:
    """Whether the process died, overran its deadline, or lost its device."""
    return isinstance(outcome, Crashed | TimedOut) or (isinstance(outcome, LaunchFailed) and outcome.sticky)


EVERY_SECONDS = 2.0


class Metrics:
    """The metrics of the tuning of `task`: tunesmith_evaluations, tunesmith_failures (by kind), tunesmith_lane_busy and
    tunesmith_compilers_busy (shares of time), tunesmith_compile_queue and tunesmith_in_flight."""

    def __init__(self, task: str) -> None:
        self._evaluations = Counter("tunesmith_evaluations", "Configurations evaluated.", ("task",))
        self._failures = Counter("tunesmith_failures", "Configurations that failed, by kind.", ("task", "kind"))
        self._lane = Gauge("tunesmith_lane_busy", "Share of time a lane was at work.", ("task", "lane"))
        self._compilers = Gauge("tunesmith_compilers_busy", "Share of time compile workers were at work.", ("task",))
        self._queue = Gauge("tunesmith_compile_queue", "Compilations that wait for a worker.", ("task",))
        self._in_flight = Gauge("tunesmith_in_flight", "Evaluations under way.", ("task",))
        self._tags = {"task": task}
        self._ended, self._failed = 0, Counts[str]()
        self._reported = time.monotonic()
        self._busy: dict[int, float] = {}

    def ended(self, failure: str | None) -> None:
        """One evaluation ended, with this kind of failure or none."""
        self._ended += 1
        if failure is not None:
            self._failed[failure] += 1

    def report(
        self, lanes: Sequence[ActorHandle], compilers: Sequence[ActorHandle], queue: int, in_flight: int
    ) -> None:
        """Hands over what has gathered, if it is time."""
        now = time.monotonic()
        passed = now - self._reported
        if passed < EVERY_SECONDS:
            return
        self._reported = now
        if self._ended:
            self._evaluations.inc(self._ended, self._tags)
        for kind, count in self._failed.items():
            self._failures.inc(count, self._tags | {"kind": kind})
        self._ended, self._failed = 0, Counts()
        for lane in lanes:
            self._lane.set(self._share(lane, passed), self._tags | {"lane": lane.name})
        if compilers:
            shares = [self._share(worker, passed) for worker in compilers]
            self._compilers.set(sum(shares) / len(shares), self._tags)
        self._queue.set(queue, self._tags)
        self._in_flight.set(in_flight, self._tags)

    def _share(self, worker: ActorHandle, passed: float) -> float:
        busy = worker.busy_until_now
        before = self._busy.get(id(worker), 0.0)
        self._busy[id(worker)] = busy
        return min(1.0, max(0.0, (busy - before) / passed))


@dataclass(frozen=True, slots=True)
class LaneStatus:
    """state: starting, idle, busy, or waiting (for another process that uses the device); served: visits so far;
    busy_seconds: time at work so far."""

    name: str
    state: str
    served: int
    busy_seconds: float


class Pool:
    """Lanes and compile workers for one task on one kind of device.

    limits, index: the device (index matters to OpenCL only); lanes, compilers: how many of each; seed: contents of all
    buffers; workloads: what lanes prepare at their start; cache: where artifacts are kept, None for nowhere; say: gets,
    in a sentence, what a user should know of the workers; shared: the cluster was there before, and has metrics. Use as
    a context manager; it ends its processes.
    """

    def __init__(
        self,
        task: Task,
        limits: DeviceLimits,
        index: int = 0,
        *,
        lanes: int,
        compilers: int,
        seed: int,
        workloads: Sequence[str],
        precision: Precision | None = None,
        deadlines: Deadlines | None = None,
        cache: ArtifactCache | None = None,
        say: Callable[[str], None] = lambda _: None,
        shared: bool = False,
        seconds_left: Callable[[], float] = lambda: math.inf,
        lane_class: type = LaneHost,
        compile_class: type = CompileWorker,
    ) -> None:
        self.task, self.limits, self.cache = task, limits, cache
        deadlines = deadlines or Deadlines()
        self.workers = WorkerSet(
            task,
            limits,
            index,
            lanes=lanes,
            compilers=compilers,
            seed=seed,
            workloads=workloads,
            deadlines=deadlines,
            say=say,
            seconds_left=seconds_left,
            lane_class=lane_class,
            compile_class=compile_class,
        )
        self._scheduler = Scheduler(
            task,
            limits,
            self.workers,
            seed=seed,
            precision=precision or Precision(),
            deadlines=deadlines,
            cache=cache,
        )
        self._metrics = Metrics(task.name) if shared else None

    def __enter__(self) -> Pool:
        self.workers.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._scheduler.compile_queue.flush_cache()
        self.workers.end()

    @property
    def target_in_flight(self) -> int:
        """How many evaluations should be in flight now: so many that no lane waits, and no more, as a search learns
        nothing from what is under way. Those that wait for code that is made for others occupy no compiler."""
        return self._scheduler.target.now + self._scheduler.compile_queue.waiting_for_code

    @property
    def max_in_flight(self) -> int:
        """The most that `target_in_flight` is where no two share their code."""
        return self._scheduler.target.max

    @property
    def lanes(self) -> tuple[LaneStatus, ...]:
        """What each lane does."""
        return tuple(LaneStatus(lane.name, lane.state, lane.served, lane.busy_until_now) for lane in self.workers.lanes)

    @property
    def in_flight(self) -> int:
        """Evaluations that were submitted and have not ended."""
        return self._scheduler.in_flight

    @property
    def roofline(self) -> Roofline:
        """The device's measured roofs, once they are known: what is timed below them is refused."""
        return self._scheduler.roofline

    @roofline.setter
    def roofline(self, roofline: Roofline) -> None:
        self._scheduler.roofline = roofline

    def submit(self, request: EvaluationRequest) -> None:
        """Begins an evaluation, which `collect` gives when it has ended."""
        self._scheduler.submit(request)

    def collect(self, timeout: float = 1.0) -> list[tuple[EvaluationRequest, Evaluation]]:
        """Evaluations that have ended, in the order they ended; waits up to `timeout` seconds for the first."""
        scheduler, until = self._scheduler, time.monotonic() + timeout
        while True:
            scheduler.step(until)
            if scheduler.done or not scheduler.in_flight or time.monotonic() >= until:
                break
        results = list(scheduler.done)
        scheduler.done.clear()
        if self._metrics is not None:
            for _, evaluation in results:
                self._metrics.ended(evaluation.failure.kind if evaluation.failure else None)
            queued = len(scheduler.compile_queue)
            self._metrics.report(self.workers.lanes, self.workers.compilers, queued, self.in_flight)
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
        """The measured roofs of the first lane's device; no roofs when the device cannot run the probes. Lanes that do
        not agree with the others are reported, or excluded."""
        self.roofline = self._exclusive_calls().calibrate()
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
        calls = self._exclusive_calls()
        return calls.compare(
            baseline,
            candidates,
            workload,
            seed=seed,
            rounds=rounds,
            budget_seconds=budget_seconds,
            opponents=opponents,
        )

    def examine(
        self, questions: Sequence[Question], *, seed: int, seconds: float = math.inf, deadlines: Limits | None = None
    ) -> list[Verdict] | Failure:
        """The full verdict on each template at its configuration, on the device of the first lane. deadlines: of what
        a verdict does. A failure is one of the examination, not of a candidate, such as that it took longer than
        `seconds`. Nothing else may be in flight."""
        calls = self._exclusive_calls()
        return calls.examine(questions, seed, self.roofline, seconds, deadlines or Limits())

    def _exclusive_calls(self) -> ExclusiveCalls:
        energy_seconds = self._scheduler.precision.energy_seconds
        return ExclusiveCalls(self.workers, self.task, self.cache, self._scheduler.floor, energy_seconds)


__all__ = ["Deadlines", "EvaluationRequest", "LaneStatus", "Pool", "PoolError"]
