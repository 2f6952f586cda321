"""Calls that have the pool for themselves: measuring roofs, comparing finalists with the baseline, full verdicts.

Owns one call at a time on an idle worker. A death or an overrun comes back as an outcome, and the actor is replaced.
"""

from __future__ import annotations

import math
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
from tunesmith.kernels.outcome import CompileFailed, Crashed, Failure, LaunchFailed, Outcome, TimedOut
from tunesmith.kernels.spec.task import AnyOpponent, FunctionOpponent, Task

if TYPE_CHECKING:
    from tunesmith.actors.judging.judge import Limits, Question, Verdict
    from tunesmith.kernels.build.candidate import TypesKey

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
