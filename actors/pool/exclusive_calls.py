"""Calls that have the pool for themselves: measuring roofs, comparing finalists with the baseline, full verdicts.

Owns one call at a time on an idle worker. A death or an overrun comes back as an outcome, and the actor is replaced.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import ray

from tunesmith.actors.cluster.actor_handle import LOST, ActorHandle, describe_loss, result_of
from tunesmith.actors.pool.request import Request
from tunesmith.actors.pool.scheduler import sources_of
from tunesmith.actors.pool.worker_set import WorkerSet
from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.artifact_cache import ArtifactCache, cache_key
from tunesmith.kernels.build.candidate import Candidate, types_key
from tunesmith.kernels.build.specialise import Specialised
from tunesmith.kernels.measure.bench import WorkloadComparison
from tunesmith.kernels.measure.opponents import Encounter, KernelRival, Rival
from tunesmith.kernels.outcome import CompileFailed, Crashed, Energy, Failure, LaunchFailed, Outcome, TimedOut
from tunesmith.kernels.spec.task import AnyOpponent, FunctionOpponent, Task

if TYPE_CHECKING:
    from tunesmith.actors.judging.judge import Question, Verdict
    from tunesmith.kernels.build.candidate import TypesKey

T = TypeVar("T")
EXAMINATION_SECONDS = 1800.0
"""For one examination, which has deadlines of its own inside."""
FUNCTION_SECONDS = 120.0
"""More for an opponent that is a function: its framework is imported, and may compile it."""
ENDED = "the process ended, or overran its deadline, while the opponents were timed"
USES_DEVICE = ("prepare", "compare", "calibrate", "examine")
"""Calls of a lane that launch kernels, before which it waits for the device."""
AGREE = 0.01
"""How far a lane's roofs may be from the median of all lanes before that is reported."""
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
        median by more than `AGREE` are reported, by more than `DISAGREE` excluded."""
        probes = self._call(self._workers.compilers[0], "probes", self._deadlines.compile)
        if not isinstance(probes, dict):
            return Roofline()
        found: list[tuple[ActorHandle, Roofline]] = []
        self._workers.make_ready(self._workers.lanes[0])
        # Lanes that wait for a place in the cluster are not waited for.
        for lane in [lane for lane in self._workers.lanes if lane.ready or lane is self._workers.lanes[0]]:
            roofs = self._call(lane, "calibrate", self._deadlines.visit * 3, probes)
            if isinstance(roofs, Roofline):
                found.append((lane, roofs))
        kept = self._agreeing(found)
        return kept[0][1] if kept else Roofline()

    def _agreeing(self, found: list[tuple[ActorHandle, Roofline]]) -> list[tuple[ActorHandle, Roofline]]:
        kept = []
        for lane, roofs in found:
            off = deviation(roofs, [other for _, other in found])
            if off > DISAGREE:
                self._workers.exclude(lane, f"its speed differs by {off:.1%} from that of the other devices")
                continue
            if off > AGREE:
                self._workers.say(
                    f"{lane.name} differs by {off:.1%} in speed from the other devices; finalists are compared on one "
                    "device."
                )
            kept.append((lane, roofs))
        return kept

    def compare(
        self,
        baseline: Request,
        candidates: Sequence[Request],
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
        lane = self._workers.lanes[0]
        if lane.seed != seed:
            lane.reset_in_place(seed)

        beside = [self._rival(one, workload) for one in opponents]

        def compare_with(entrants: list[Candidate], rivals: Sequence[Rival] = ()) -> Any:
            # A process that was replaced has to make its buffers again; that is not the kernels' time.
            lane = self._workers.lanes[0]
            self._call(lane, "prepare", self._deadlines.prepare, [workload])
            deadline = (self._deadlines.visit + budget_seconds) * (1 + len(entrants) + len(rivals))
            deadline += FUNCTION_SECONDS * sum(isinstance(one, FunctionOpponent) for one in rivals)
            limits = (rounds, budget_seconds, self._floor(workload), self._energy_seconds)
            return self._call(lane, "compare", deadline, base, entrants, workload, *limits, list(rivals))

        answer = compare_with(ready, beside)
        met = answer.opponents if isinstance(answer, WorkloadComparison) else ()
        if beside and _ended_process(answer):
            # An opponent is not on trial, and must cost no finalist anything.
            met = tuple(Encounter(one.name, one.label, why=ENDED) for one in beside)
            answer = compare_with(ready)
        if len(ready) > 1 and _ended_process(answer):
            # Which of them did it is not known, and must not be held against the others: each is compared alone.
            alone = [compare_with([one]) for one in ready]
            measured = iter([one.results[0] if isinstance(one, WorkloadComparison) else one for one in alone])
            each = [one.energies if isinstance(one, WorkloadComparison) else () for one in alone]
            energies: list[Energy | None] = [
                next((one[0] for one in each if one), None),
                *(one[1] if one else None for one in each),
            ]
        else:
            measured = iter(answer.results if isinstance(answer, WorkloadComparison) else [answer] * len(ready))
            energies = list(answer.energies) if isinstance(answer, WorkloadComparison) else []
        results = tuple(next(measured) if isinstance(one, Candidate) else one for one in compiled[1:])
        key = types_key(self._task.workload(workload))
        codes = (one.artifacts[key].code_digest if isinstance(one, Candidate) else "" for one in compiled)
        others = tuple(replace(one, against=_placed(one.against, compiled[1:])) for one in met)
        # Where nobody asked for energies, or all failed, there are none at all.
        joules = (energies[0], *_placed(energies[1:], compiled[1:])) if any(energies) else ()
        version = self._workers.compilers[0].version
        return WorkloadComparison(workload, results, tuple(codes), version, others, joules)

    def examine(
        self, questions: Sequence[Question], seed: int, roofline: Roofline, seconds: float
    ) -> list[Verdict] | Failure:
        """See `Pool.examine`."""
        deadline = min(seconds, EXAMINATION_SECONDS * len(questions))
        found: list[Verdict] | Failure = self._call(
            self._workers.lanes[0], "examine", deadline, list(questions), seed, roofline
        )
        return found

    def _rival(self, opponent: AnyOpponent, workload: str) -> Rival:
        if isinstance(opponent, FunctionOpponent):
            return opponent
        made = self._compile(Request(0, opponent.template, {}, (workload,)))
        return KernelRival(opponent.name, opponent.label, made)

    def _compile(self, request: Request) -> Candidate | Outcome:
        artifacts: dict[TypesKey, Artifact] = {}
        workloads = [self._task.workload(name) for name in request.workloads]
        for key, source in sources_of(request, workloads).items():
            made = self._artifact(source)
            if not isinstance(made, Artifact):
                return made
            artifacts[key] = made
        return Candidate(request.template, request.config, artifacts)

    def _artifact(self, source: Specialised) -> Artifact | Outcome:
        worker = self._workers.compilers[0]
        self._workers.make_ready(worker)
        if self._cache is not None:
            key = cache_key(source, self._workers.limits.arch, worker.version)
            if (known := self._cache.get(key)) is not None:
                return known
        made: Artifact | Outcome = self._call(worker, "compile", self._deadlines.compile, source)
        if self._cache is not None and isinstance(made, Artifact | CompileFailed):
            self._cache.put(key, made)
        return made

    def _call(self, worker: ActorHandle, method: str, deadline: float, *arguments: Any) -> Any:
        """One call on an idle worker; a death or an overrun comes back as an outcome, and the actor is replaced."""
        phase, workers = self._workers.phase_of(worker), self._workers
        workers.make_ready(worker)
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


def deviation(roofs: Roofline, all_roofs: Sequence[Roofline]) -> float:
    """How far the roofs of one device are from the median over all, as a share: the largest over copies at each size
    and over peaks."""
    shares = [0.0]
    for position, (size, bandwidth) in enumerate(roofs.bandwidth):
        same = [
            other.bandwidth[position][1]
            for other in all_roofs
            if len(other.bandwidth) > position and other.bandwidth[position][0] == size
        ]
        shares.append(abs(bandwidth / statistics.median(same) - 1))
    for name, peak in roofs.peak_flops.items():
        same = [other.peak_flops[name] for other in all_roofs if name in other.peak_flops]
        shares.append(abs(peak / statistics.median(same) - 1))
    return max(shares)


def _placed(against: Sequence[T | None], compiled: Sequence[object]) -> tuple[T | None, ...]:
    """What belongs to the candidates that compiled, at the places of these among all."""
    left = iter(against)
    return tuple(next(left, None) if isinstance(one, Candidate) else None for one in compiled)


def _ended_process(answer: WorkloadComparison | Outcome) -> bool:
    """Whether the process of a comparison died, overran its deadline, or lost its device."""
    if not isinstance(answer, WorkloadComparison):
        return True
    return any(isinstance(one, LaunchFailed) and one.sticky for one in answer.results)
