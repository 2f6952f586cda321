"""What each round planned, and what it gained."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tunesmith.graph.journal.log import RunLog, stage_of, trial_stage
from tunesmith.graph.journal.measurements import seconds_of, weighted_geomean
from tunesmith.graph.results.summary import Summary
from tunesmith.graph.state import Plan
from tunesmith.kernels.outcome import Evaluation


@dataclass(frozen=True, slots=True)
class Round:
    """before, after: the least time of a launch, in seconds, that searches had measured for the plan's workloads
    (geometric mean) when the round began and when it ended, the baseline included; ratio: of the round's verdict."""

    plan: Plan
    templates: tuple[str, ...]
    evaluations: int
    before: float | None
    after: float | None
    ratio: float | None
    explanation: tuple[str, ...]

    @property
    def what(self) -> str:
        """The workloads, in words."""
        return "all tuned workloads" if self.plan.scope == "general" else ", ".join(self.plan.workloads)


def rounds(log: RunLog, summary: Summary) -> list[Round]:
    """The rounds in their order."""
    started = log.started
    if started is None:
        return []
    weights = {workload.name: workload.weight for workload in started.task.workloads}
    told, found = log.explanations(), []
    for plan in log.plans:
        stage, names = stage_of(plan.round), plan.workloads
        earlier = [one for number in range(1, plan.round) for one in _evaluations(log, number)]
        own = _evaluations(log, plan.round)
        baseline = [] if log.baseline is None else [log.baseline]

        verdict = log.verdict(stage)
        ids = log.chosen_templates(stage) or []
        found.append(
            Round(
                plan=plan,
                templates=tuple(log.template(one).name for one in ids),
                evaluations=len(own),
                before=_least([*baseline, *earlier], names, weights),
                after=_least([*baseline, *earlier, *own], names, weights),
                ratio=None if verdict is None else verdict.ratio,
                explanation=told.get(plan.round, ()),
            )
        )
    return found


def _evaluations(log: RunLog, number: int) -> list[Evaluation]:
    stage = stage_of(number)
    return [*log.evaluations(trial_stage(stage)), *log.evaluations(stage)]


def _least(found: Iterable[Evaluation], names: Sequence[str], weights: Mapping[str, float]) -> float | None:
    """The least geometric mean of the times on `names`, of the evaluations that have them all; None without any."""
    times = (seconds_of(one) for one in found if one.failure is None)
    whole = (weighted_geomean({name: one[name] for name in names}, weights) for one in times if set(names) <= set(one))
    return min(whole, default=None)
