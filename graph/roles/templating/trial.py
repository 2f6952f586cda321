"""Trials of new templates: is the default configuration feasible, does it compile, is it right on every workload?

A trial is an evaluation like any other: it is in the journal, counts towards the budget, and the search knows it
and does not repeat it. It runs on held-out workloads too, whose times do not count: a template must be right there,
and its author learns where it is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tunesmith.actors.pool.request import Request
from tunesmith.graph.context import Context
from tunesmith.graph.journal.events import Evaluated
from tunesmith.graph.journal.log import trial_stage
from tunesmith.kernels.build.guard import refuse
from tunesmith.kernels.build.specialise import specialise
from tunesmith.kernels.outcome import (
    CompileFailed,
    Crashed,
    Evaluation,
    Implausible,
    LaunchFailed,
    Rejected,
    TimedOut,
    WrongResult,
    describe,
)
from tunesmith.kernels.space.feasible import EmptySpace, feasible, require_points
from tunesmith.kernels.space.rule import SpaceError
from tunesmith.kernels.spec.expression import ExpressionError
from tunesmith.kernels.spec.geometry import geometry
from tunesmith.kernels.spec.parameter import config_key
from tunesmith.kernels.spec.task import Workload
from tunesmith.kernels.spec.template import Template

MAX_LOG = 3000
"""Characters of a compiler's log that go back to an author."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a template does not work. kind: of failure; what: a sentence; log: what was said, in full; advice: what to
    look for; first: what of the log says the most in a line, where that is not its first."""

    kind: str
    what: str
    log: str = ""
    advice: str = ""
    first: str = ""

    @property
    def in_short(self) -> str:
        """For people: the sentence, and one line of the log."""
        lines = self.log.strip().splitlines()
        return f"{self.what} {self.first or (lines[0] if lines else '')}".strip()


def infeasible(template: Template, context: Context) -> Problem | None:
    """Why the template cannot be tried at all, or None. Needs no device."""
    try:
        for workload in (*context.tuned, *context.held_out):
            source = specialise(template, template.default_config, workload.types)
            geometry(template, template.default_config, workload)
            if (refused := refuse(source)) is not None:
                advice = "Sources may include only the listed headers, and may not name files."
                return Problem("forbidden_source", "The source is refused before compiling.", refused.detail, advice)
        for limits in context.limits:
            space = feasible(template, context.tuned, limits)
            require_points(space, template)
            if (reason := space.reject(template.default_config)) is not None:
                return Problem(
                    "infeasible",
                    "The default configuration is not feasible.",
                    reason.detail,
                    "Choose a default that meets the constraints and the device's limits.",
                )
    except (ExpressionError, EmptySpace, SpaceError) as error:
        return Problem("infeasible", "The parameters, constraints and launch do not fit together.", str(error))
    return None


def try_templates(
    context: Context, templates: Sequence[Template], stage: str, workloads: Sequence[Workload] = ()
) -> dict[str, Evaluation]:
    """Evaluations of the default configurations by template id, measured now or found in the journal; on `workloads`,
    or all of them."""
    found = recorded(context, stage)
    wanted = [template for template in templates if template.id not in found]
    names = tuple(workload.name for workload in workloads or (*context.tuned, *context.held_out))
    if wanted:
        context.pool.roofline = context.roofline()
    for number, template in enumerate(wanted):
        context.pool.submit(Request(number, template, template.default_config, names))
    left = len(wanted)
    while left:
        for request, evaluation in context.pool.collect():
            event = Evaluated(number=len(found), key=config_key(evaluation.config), evaluation=evaluation)
            context.journal.append(event, trial_stage(stage))
            found[request.template.id] = evaluation
            left -= 1
    return found


def recorded(context: Context, stage: str) -> dict[str, Evaluation]:
    """The trials of a round that are in the journal."""
    return {evaluation.template: evaluation for evaluation in context.log.evaluations(trial_stage(stage))}


def problem_of(evaluation: Evaluation) -> Problem | None:
    """What an author has to know of a trial that failed; None when it went well."""
    failure = evaluation.failure
    where = next((name for name, outcome in evaluation.outcomes.items() if outcome is failure), "")
    at = f"with its default configuration on the workload {where}"
    match failure:
        case None:
            return None
        case CompileFailed():
            log = failure.log[:MAX_LOG] or failure.first_error
            return Problem(
                failure.kind,
                "It does not compile with its default configuration.",
                log,
                "Line numbers are those of your source.",
                failure.first_error,
            )
        case WrongResult():
            advice = "Check tails, sizes that nothing divides, alignment of vector accesses, barriers, and every type."
            return Problem(failure.kind, f"Its result is wrong {at}.", describe(failure), advice)
        case LaunchFailed():
            advice = "Look for accesses out of bounds or not aligned, and for a launch the device cannot take."
            return Problem(failure.kind, f"It cannot be launched, or faults, {at}.", describe(failure), advice)
        case TimedOut():
            advice = "Look for loops that never end and barriers that not all threads reach."
            return Problem(failure.kind, f"It does not end in time {at}.", describe(failure), advice)
        case Crashed():
            advice = "Look for accesses out of bounds."
            return Problem(failure.kind, f"The process that ran it died {at}.", describe(failure), advice)
        case Implausible():
            return Problem(failure.kind, f"Its time is impossible {at}.", describe(failure))
        case Rejected():
            return Problem(failure.kind, f"It was refused {at}.", describe(failure))
