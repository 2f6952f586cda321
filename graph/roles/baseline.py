"""The baseline of a run, with which everything is compared: measured once, by the first role that needs it."""

from __future__ import annotations

from collections.abc import Sequence

from tunesmith.actors.pool.request import Request
from tunesmith.graph.context import Context
from tunesmith.graph.journal.events import BaselineMeasured
from tunesmith.graph.journal.measurements import quantities_of, seconds_of
from tunesmith.graph.progress import Progress
from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.outcome import Measured, Outcome, describe
from tunesmith.kernels.spec.task import Workload


class BaselineError(TunesmithError):
    """The baseline, against which all is compared, does not run or is not right."""


def baseline_request(context: Context, workloads: Sequence[Workload]) -> Request:
    """The baseline as a request for the pool."""
    return Request(0, context.sources.baseline.template, {}, tuple(workload.name for workload in workloads))


def baseline_seconds(context: Context) -> dict[str, float]:
    """The baseline's time on each tuned workload, measured once in a run. Raises `BaselineError`."""
    evaluation = context.log.baseline
    if evaluation is None:
        context.listener(Progress("plan", "measuring the baseline"))
        evaluation = context.pool.evaluate([baseline_request(context, context.tuned)])[0]
        context.journal.append(BaselineMeasured(evaluation=evaluation))
    for name, outcome in evaluation.outcomes.items():
        if not isinstance(outcome, Measured):
            raise BaselineError(
                f"The {context.device.backend} baseline of {context.task.name} fails on the workload {name}: it "
                f"{_as_clause(outcome)}. Fix its source, its launch or the reference."
            )
    return seconds_of(evaluation)


def baseline_quantities(context: Context) -> dict[str, float]:
    """What the run makes small, of the baseline on each tuned workload, measured once in a run. Raises
    `BaselineError`."""
    seconds, evaluation = baseline_seconds(context), context.log.baseline
    assert evaluation is not None
    found = quantities_of(evaluation, context.settings.objective)
    if missing := [name for name in seconds if name not in found]:
        raise BaselineError(
            f"The energy of the baseline could not be measured on {', '.join(missing)}: the energy counter of "
            f"{context.device.name} cannot be read, or does not move. Use --objective time."
        )
    return found


def _as_clause(outcome: Outcome) -> str:
    text = describe(outcome).rstrip(".")
    return text if text.startswith(("does", "cannot")) else f"gives this: {text}"
