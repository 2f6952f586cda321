"""What a run was given to measure first, as its journal has it."""

from __future__ import annotations

from tunesmith.graph.journal.events import WisdomKept
from tunesmith.graph.journal.log import RunLog
from tunesmith.kernels.spec.parameter import Config


def suggestions_for(log: RunLog) -> list[Config]:
    """The configurations that earlier runs found good, in the order in which they are to be tried."""
    kept = log.last(WisdomKept)
    return [] if kept is None else [one.config for one in kept.suggestions]
