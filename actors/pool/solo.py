"""Work that has the pool for itself: measuring roofs, and comparing finalists with the baseline.

Owns one call at a time on an idle worker. A death or an overrun comes back as an outcome and renews the worker.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import ray

from tunesmith.actors.cluster.handle import LOST, WorkerProcess, cause_of, result_of
from tunesmith.actors.pool.job import Request, sources_of
from tunesmith.actors.pool.roster import Roster
from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.artifact_cache import ArtifactCache, cache_key
from tunesmith.kernels.build.specialise import Specialised
from tunesmith.kernels.measure.bench import Candidate, Duel
from tunesmith.kernels.outcome import CompileFailed, Crashed, Failure, LaunchFailed, Outcome, TimedOut
from tunesmith.kernels.spec.task import Task

if TYPE_CHECKING:
    from tunesmith.actors.judging.judge import Question, Verdict
    from tunesmith.kernels.build.candidate import TypesKey

EXAMINATION_SECONDS = 1800.0
"""For one examination, which has deadlines of its own inside."""
AGREE = 0.01
"""How far a lane's roofs may be from the median of all lanes without a word."""
DISAGREE = 0.05
"""How far before it is left out."""


class Solo:
    """`floor` gives the least seconds of a workload by its name."""

    def __init__(self, roster: Roster, task: Task, cache: ArtifactCache | None, floor: Callable[[str], float]) -> None:
        self._roster, self._task, self._cache, self._floor = roster, task, cache, floor
        self._deadlines = roster.deadlines

    def calibrate(self) -> Roofline:
        """The roofs of the first lane. Where there are several lanes, all are measured, and those that differ from the
        median by more than `AGREE` are reported, by more than `DISAGREE` left out."""
        probes = self._call(self._roster.compilers[0], "probes", self._deadlines.compile)
        if not isinstance(probes, dict):
            return Roofline()
        found: list[tuple[WorkerProcess, Roofline]] = []
        self._roster.make_ready(self._roster.lanes[0])
        # Lanes that wait for a place in the cluster are not waited for.
        for lane in [lane for lane in self._roster.lanes if lane.ready or lane is self._roster.lanes[0]]:
            roofs = self._call(lane, "calibrate", self._deadlines.visit * 3, probes)
            if isinstance(roofs, Roofline):
                found.append((lane, roofs))
        kept = self._agreeing(found)
        return kept[0][1] if kept else Roofline()

    def _agreeing(self, found: list[tuple[WorkerProcess, Roofline]]) -> list[tuple[WorkerProcess, Roofline]]:
        kept = []
        for lane, roofs in found:
            off = deviation(roofs, [other for _, other in found])
            if off > DISAGREE:
                self._roster.retire(lane, f"its speed differs by {off:.1%} from that of the others")
                continue
            if off > AGREE:
                self._roster.say(
                    f"{lane.name} differs by {off:.1%} in speed from the others; comparisons of finalists "
                    "are made on one device."
                )
            kept.append((lane, roofs))
        return kept

    def duel(
        self,
        baseline: Request,
        candidates: Sequence[Request],
        workload: str,
        *,
        seed: int,
        rounds: int,
        budget_seconds: float,
    ) -> Duel:
        """See `Pool.duel`."""
        compiled = [self._compile(request) for request in (baseline, *candidates)]
        base, ready = compiled[0], [one for one in compiled[1:] if isinstance(one, Candidate)]
        if not isinstance(base, Candidate):
            return Duel(workload, tuple(base for _ in candidates))
        lane = self._roster.lanes[0]
        if lane.seed != seed:
            lane.restart(seed)

        def fight(entrants: list[Candidate]) -> Any:
            # A process that was replaced has to make its buffers again; that is not the kernels' time.
            lane = self._roster.lanes[0]
            self._call(lane, "prepare", self._deadlines.prepare, [workload])
            deadline = (self._deadlines.visit + budget_seconds) * (1 + len(entrants))
            floor = self._floor(workload)
            return self._call(lane, "duel", deadline, base, entrants, workload, rounds, budget_seconds, floor)

        answer = fight(ready)
        if len(ready) > 1 and _ended_process(answer):
            # Which of them did it is not known, and must not be held against the others: each fights alone.
            alone = [fight([one]) for one in ready]
            measured = iter([one.results[0] if isinstance(one, Duel) else one for one in alone])
        else:
            measured = iter(answer.results if isinstance(answer, Duel) else [answer] * len(ready))
        return Duel(workload, tuple(next(measured) if isinstance(one, Candidate) else one for one in compiled[1:]))

    def examine(self, questions: Sequence[Question], seed: int, roofline: Roofline) -> list[Verdict] | Failure:
        """See `Pool.examine`."""
        deadline = EXAMINATION_SECONDS * len(questions)
        found: list[Verdict] | Failure = self._call(
            self._roster.lanes[0], "examine", deadline, list(questions), seed, roofline
        )
        return found

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
        worker = self._roster.compilers[0]
        self._roster.make_ready(worker)
        if self._cache is not None:
            key = cache_key(source, self._roster.limits.arch, worker.version)
            if (known := self._cache.get(key)) is not None:
                return known
        made: Artifact | Outcome = self._call(worker, "compile", self._deadlines.compile, source)
        if self._cache is not None and isinstance(made, Artifact | CompileFailed):
            self._cache.put(key, made)
        return made

    def _call(self, worker: WorkerProcess, method: str, deadline: float, *arguments: Any) -> Any:
        """One call on an idle worker; a death or an overrun comes back as an outcome and renews the worker."""
        phase = "run" if worker in self._roster.lanes else "compile"
        self._roster.make_ready(worker)
        try:
            if method in ("duel", "calibrate", "examine"):
                result_of(worker.actor.acquire.remote(), self._deadlines.start)
            result = result_of(getattr(worker.actor, method).remote(*arguments), deadline)
        except ray.exceptions.GetTimeoutError:
            worker.renew()
            return TimedOut(phase, deadline)
        except LOST as error:
            worker.renew()
            return Crashed(phase, cause_of(error))
        if isinstance(result, Crashed | TimedOut) or (isinstance(result, Duel) and _ended_process(result)):
            worker.restart()
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


def _ended_process(answer: Duel | Outcome) -> bool:
    """Whether the process of a duel died, overran its deadline, or lost its device."""
    if not isinstance(answer, Duel):
        return True
    return any(isinstance(one, LaunchFailed) and one.sticky for one in answer.results)
