"""The winners of a run measured on further shapes: the evidence for a dispatch rule, and the test of it.

Each shape is a comparison with the baseline as the final one is: in a fresh process, interleaved, on fresh contents,
checked against the reference. The journal keeps each, so that nothing is measured twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunesmith.actors.pool.request import Request
from tunesmith.graph.context import Context
from tunesmith.graph.dispatch.shapes import shape_key
from tunesmith.graph.journal.events import ShapeCompared
from tunesmith.graph.journal.records import FinalistResult, Verdict, Winner
from tunesmith.graph.progress import Progress
from tunesmith.graph.roles.baseline import baseline_request
from tunesmith.kernels.measure.bench import WorkloadComparison
from tunesmith.kernels.measure.timing import Comparison
from tunesmith.kernels.space.feasible import rules
from tunesmith.kernels.spec.expression import ExpressionError
from tunesmith.kernels.spec.parameter import config_key
from tunesmith.kernels.spec.task import Workload
from tunesmith.kernels.spec.template import Template

MOST_KERNELS = 6
"""A rule chooses among so many, the baseline apart: each costs time on each shape, and machine code in each export."""
ROUNDS = 20
SECONDS = 0.25
"""Most rounds, and seconds of sampling for each kernel on each shape."""
CONTENTS_SEED = 13_000_007
"""Added to the run's seed for the contents."""


def kernels_of(verdict: Verdict) -> list[Winner]:
    """What a rule may choose from: the general configuration, then the best for single workloads, those that gain most
    first."""
    found = [verdict.general] if verdict.general is not None else []
    found += [
        Winner(template=row.template, config=row.config) for row in sorted(verdict.dispatch, key=lambda row: row.ratio)
    ]
    return list({winner_key(one): one for one in found}.values())[:MOST_KERNELS]


def winner_key(winner: Winner | FinalistResult) -> tuple[str, str]:
    """What tells kernels apart: template id, and configuration as text."""
    return winner.template, config_key(winner.config)


def can_launch(context: Context, template: Template, workload: Workload, winner: Winner | None = None) -> bool:
    """Whether constraints and limits admit a kernel on a shape. winner: left out, the template's only point."""
    config = {} if winner is None else winner.config
    try:
        return all(rule.holds(config) for limits in context.limits for rule in rules(template, [workload], limits))
    except ExpressionError:
        # A constraint without a value on this shape, such as a division by zero, admits nothing.
        return False


def measure_shapes(
    context: Context, kernels: Sequence[Winner], fit: Sequence[Workload], test: Sequence[Workload]
) -> None:
    """Compares `kernels` with the baseline on the shapes of `fit`, to which a rule is fitted, and of `test`, on which
    it is tried, unless the journal has it, by whatever name. The context's task must have these workloads."""
    known = {shape_key(event.workload): event for event in context.log.events(ShapeCompared)}
    shapes = [(one, True) for one in fit] + [(one, False) for one in test]
    for number, (workload, fitted) in enumerate(shapes, 1):
        entrants = [one for one in kernels if can_launch(context, context.template(one.template), workload, one)]
        before = known.get(shape_key(workload))
        if before is not None and {*map(winner_key, entrants)} <= {*map(winner_key, before.entries)}:
            continue
        if context.seconds_left() <= 0:
            left = len(shapes) - number + 1
            context.note("dispatch", f"The time limit left no time for {left} of {len(shapes)} shapes.", "")
            return
        context.listener(Progress("dispatch", f"shape {number} of {len(shapes)}: {workload.name}"))
        requests = [
            Request(index + 1, context.template(one.template), one.config, (workload.name,))
            for index, one in enumerate(entrants)
        ]
        found = _compare(context, workload, requests)
        results, codes = found.results, found.codes[1:] or ("",) * len(requests)
        if not any(isinstance(result, Comparison) for result in results):
            # Either all are wrong here, or the baseline or the shape is at fault: the baseline against itself tells.
            control = Request(1, context.sources.baseline.template, {}, (workload.name,))
            if not isinstance(_compare(context, workload, [control]).results[0], Comparison):
                sentence = f"The baseline could not be measured on {workload.name}, which tells nothing on dispatch."
                context.note("dispatch", sentence, "")
                entrants, results, codes = [], (), ()
        entries = tuple(
            FinalistResult(
                template=one.template,
                config=one.config,
                comparison=result if isinstance(result, Comparison) else None,
                failure=None if isinstance(result, Comparison) else result,
                code=code,
            )
            for one, result, code in zip(entrants, results, codes, strict=True)
        )
        event = ShapeCompared(workload=workload, fitted=fitted, entries=entries, compiler=found.compiler)
        context.journal.append(event)


def _compare(context: Context, workload: Workload, requests: Sequence[Request]) -> WorkloadComparison:
    return context.pool.compare(
        baseline_request(context, [workload]),
        requests,
        workload.name,
        seed=context.settings.seed + CONTENTS_SEED,
        rounds=ROUNDS,
        budget_seconds=SECONDS,
    )
