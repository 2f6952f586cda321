"""Reading the journal: baselines, evaluations, objectives. Pure functions of what was measured."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tunesmith.actors.pool.pool import Request
from tunesmith.graph.context import Context, evaluation_from_json, evaluation_to_json
from tunesmith.graph.progress import Progress
from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.measure.bench import weighted_geomean
from tunesmith.kernels.outcome import Evaluation, Measured, Outcome, describe
from tunesmith.kernels.search import Observation
from tunesmith.kernels.spec.task import Workload

MAX_EXAMPLES = 12


class BaselineError(TunesmithError):
    """The baseline, against which all is compared, does not run or is not right."""


def baseline_request(context: Context, workloads: Sequence[Workload]) -> Request:
    """The baseline as a request for the pool."""
    return Request(0, context.sources.baseline.template, {}, tuple(workload.name for workload in workloads))


def baseline_seconds(context: Context) -> dict[str, float]:
    """The baseline's time on each tuned workload, measured once in a run. Raises `BaselineError`."""
    event = context.journal.last("baseline")
    if event is None:
        context.listener(Progress("plan", "measuring the baseline"))
        evaluation = context.pool.evaluate([baseline_request(context, context.tuned)])[0]
        context.journal.append("baseline", evaluation_to_json(evaluation))
    else:
        evaluation = evaluation_from_json(event.data)
    for name, outcome in evaluation.outcomes.items():
        if not isinstance(outcome, Measured):
            raise BaselineError(
                f"The {context.device.backend} baseline of {context.task.name} fails on the workload {name}: it "
                f"{_as_clause(outcome)}. Mend its source, its launch or the reference."
            )
    return seconds_of(evaluation)


def _as_clause(outcome: Outcome) -> str:
    text = describe(outcome).rstrip(".")
    return text if text.startswith(("does", "cannot")) else f"gives this: {text}"


def seconds_of(evaluation: Evaluation) -> dict[str, float]:
    """Seconds per workload of those that were measured."""
    return {name: o.seconds for name, o in evaluation.outcomes.items() if isinstance(o, Measured)}


def evaluations(context: Context) -> list[Evaluation]:
    """All evaluations of the run so far, in the order they ended."""
    return [evaluation_from_json(event.data) for event in context.journal.events("evaluation")]


def objective(
    evaluation: Evaluation, workloads: Iterable[str], baseline: Mapping[str, float], weights: Mapping[str, float]
) -> float | None:
    """Weighted geometric mean over `workloads` of time / baseline time; None unless all were measured and nothing
    failed, on other workloads neither."""
    seconds = seconds_of(evaluation)
    names = list(workloads)
    if evaluation.failure is not None or not all(name in seconds for name in names):
        return None
    return weighted_geomean({name: seconds[name] / baseline[name] for name in names}, weights)


def observation(
    evaluation: Evaluation, workloads: Sequence[str], baseline: Mapping[str, float], weights: Mapping[str, float]
) -> Observation:
    """What the search is told: the objective with its interval, or the kind of failure.

    The interval takes the workloads' errors as independent: half-widths add in quadrature in the logarithm.
    """
    value = objective(evaluation, workloads, baseline, weights)
    if value is None:
        failure = evaluation.failure
        return Observation(None, failure=failure.kind if failure else "not_measured")
    total = sum(weights[name] for name in workloads)
    spread = 0.0
    for name in workloads:
        outcome = evaluation.outcomes[name]
        assert isinstance(outcome, Measured)
        half = math.log(max(outcome.high, outcome.low) / outcome.low) / 2 if outcome.low > 0 else 0.0
        spread += (weights[name] / total * half) ** 2
    dropped = any(isinstance(one, Measured) and one.dropped for one in evaluation.outcomes.values())
    interval = (value * math.exp(-math.sqrt(spread)), value * math.exp(math.sqrt(spread)))
    return Observation(value, interval, dropped=dropped)


def failure_examples(found: Iterable[Evaluation]) -> list[dict[str, Any]]:
    """One example of each distinct failure, at most `MAX_EXAMPLES`: its kind, what it said, the configuration."""
    examples: dict[str, dict[str, Any]] = {}
    for evaluation in found:
        failure = evaluation.failure
        if failure is not None:
            text = describe(failure)
            key = failure.kind + text[:60]
            examples.setdefault(key, {"kind": failure.kind, "what": text, "config": evaluation.config})
    return list(examples.values())[:MAX_EXAMPLES]


def racing(found: Iterable[Evaluation]) -> dict[str, float]:
    """What dropping clear losers early saved. dropped: measurements that ended early; sampling_seconds: wall clock of
    all samples; saved_seconds: what the dropped ones would have taken besides, each as long as the mean of the others.
    """
    full: list[float] = []
    early: list[float] = []
    for evaluation in found:
        for outcome in evaluation.outcomes.values():
            if isinstance(outcome, Measured):
                (early if outcome.dropped else full).append(outcome.sampling_seconds)
    usual = sum(full) / len(full) if full else 0.0
    return {
        "dropped": len(early),
        "sampling_seconds": round(sum(full) + sum(early), 3),
        "saved_seconds": round(sum(max(0.0, usual - one) for one in early), 3),
    }


def failures_by_kind(found: Iterable[Evaluation]) -> dict[str, int]:
    """How many evaluations failed, by the kind of their first failure."""
    return dict(Counter(failure.kind for evaluation in found if (failure := evaluation.failure) is not None))
