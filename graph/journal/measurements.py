"""What evaluations amount to: seconds, objectives, observations for a search, failures. Pure functions of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from tunesmith.graph.journal.records import FailureExample, Racing
from tunesmith.kernels.outcome import Evaluation, Measured, Objective, describe
from tunesmith.kernels.search import Observation

MAX_EXAMPLES = 12


def seconds_of(evaluation: Evaluation) -> dict[str, float]:
    """Seconds per workload of those that were measured."""
    return {name: o.seconds for name, o in evaluation.outcomes.items() if isinstance(o, Measured)}


def quantities_of(evaluation: Evaluation, of: Objective) -> dict[str, float]:
    """What the run makes small, per workload of those on which it is known."""
    found = {name: o.quantity(of) for name, o in evaluation.outcomes.items() if isinstance(o, Measured)}
    return {name: quantity for name, quantity in found.items() if quantity is not None}


def weighted_geomean(ratios: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """The weighted geometric mean of `ratios` by name: the objective of a general configuration."""
    total = sum(weights[name] for name in ratios)
    return math.exp(sum(weights[name] * math.log(ratio) for name, ratio in ratios.items()) / total)


def objective(
    evaluation: Evaluation,
    workloads: Iterable[str],
    baseline: Mapping[str, float],
    weights: Mapping[str, float],
    of: Objective = "time",
) -> float | None:
    """Weighted geometric mean over `workloads` of time (or energy, or their product) over the baseline's; None unless
    all were measured and nothing failed, on other workloads neither."""
    quantities = quantities_of(evaluation, of)
    names = list(workloads)
    if evaluation.failure is not None or not all(name in quantities for name in names):
        return None
    return weighted_geomean({name: quantities[name] / baseline[name] for name in names}, weights)


def observation(
    evaluation: Evaluation,
    workloads: Sequence[str],
    baseline: Mapping[str, float],
    weights: Mapping[str, float],
    of: Objective = "time",
) -> Observation:
    """What the search is told: the objective with its interval, or the kind of failure.

    The interval takes the workloads' errors as independent: half-widths add in quadrature in the logarithm.
    """
    value = objective(evaluation, workloads, baseline, weights, of)
    if value is None:
        failure = evaluation.failure
        return Observation(None, failure=failure.kind if failure else "not_measured")
    total = sum(weights[name] for name in workloads)
    spread = 0.0
    for name in workloads:
        outcome = evaluation.outcomes[name]
        assert isinstance(outcome, Measured)
        half = math.log(max(outcome.high, outcome.low) / outcome.low) / 2 if outcome.low > 0 else 0.0
        parts = {"time": (half,), "energy": (_unsure(outcome),), "edp": (half, _unsure(outcome))}[of]
        spread += (weights[name] / total) ** 2 * sum(part**2 for part in parts)
    dropped = any(isinstance(one, Measured) and one.dropped for one in evaluation.outcomes.values())
    interval = (value * math.exp(-math.sqrt(spread)), value * math.exp(math.sqrt(spread)))
    return Observation(value, interval, dropped=dropped)


def _unsure(outcome: Measured) -> float:
    """How far an energy may be off, as a share of it."""
    return outcome.energy.error if outcome.energy is not None else 0.0


def failure_examples(found: Iterable[Evaluation]) -> list[FailureExample]:
    """One example of each distinct failure, at most `MAX_EXAMPLES`."""
    examples: dict[str, FailureExample] = {}
    for evaluation in found:
        failure = evaluation.failure
        if failure is not None:
            text = describe(failure)
            key = failure.kind + text[:60]
            if key not in examples:
                examples[key] = FailureExample(
                    kind=failure.kind, what=text, config=evaluation.config, template=evaluation.template
                )
    return list(examples.values())[:MAX_EXAMPLES]


def racing(found: Iterable[Evaluation]) -> Racing:
    """What dropping clear losers early saved."""
    full: list[float] = []
    early: list[float] = []
    for evaluation in found:
        for outcome in evaluation.outcomes.values():
            if isinstance(outcome, Measured):
                (early if outcome.dropped else full).append(outcome.sampling_seconds)
    usual = sum(full) / len(full) if full else 0.0
    return Racing(
        dropped=len(early),
        sampling_seconds=round(sum(full) + sum(early), 3),
        saved_seconds=round(sum(max(0.0, usual - one) for one in early), 3),
    )


def failures_by_kind(found: Iterable[Evaluation]) -> dict[str, int]:
    """How many evaluations failed, by the kind of their first failure."""
    return dict(Counter(failure.kind for evaluation in found if (failure := evaluation.failure) is not None))
