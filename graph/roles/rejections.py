"""The common values of rejected configurations, and the configurations that may be right instead.

Reads a run's examinations; the tester decides which configurations are measured and examined next.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tunesmith.graph.journal.log import RunLog
from tunesmith.kernels.spec.template import Config, Parameter, Template

MIN_REJECTED = 2
"""Rejected configurations of a template from which on their common values count as a defect."""
NOT_EXAMINED = "it was not examined"
"""Begins the reason for which an unexamined finalist cannot win."""
MAX_VARIATIONS = 4
"""Variations of one rejected configuration that are measured."""
_RELAXED = re.compile("fast|approx|relax|unsafe", re.IGNORECASE)
"""Names of parameters that relax arithmetic: the likeliest reason of a rejection, and harmless in a search, which meets
the task's own contents alone."""


def common_defect(rejected: Sequence[Config], accepted: Sequence[Config], measured: Sequence[Config]) -> Config:
    """The values that all `rejected` configurations of a template have, and no accepted one, and not all measured ones:
    what these share with them may be their defect. Values that relax arithmetic stand for all others. Empty where
    fewer than `MIN_REJECTED` were rejected, or nothing is shared."""
    if len(rejected) < MIN_REJECTED:
        return {}
    first = rejected[0]
    shared = {
        name: value
        for name, value in first.items()
        if all(one.get(name) == value for one in rejected)
        and not any(one.get(name) == value for one in accepted)
        and any(one.get(name) != value for one in measured)
    }
    relaxed = {name: value for name, value in shared.items() if _RELAXED.search(name)}
    return relaxed or shared


def defects(log: RunLog) -> dict[str, Config]:
    """By template, the values that its rejected configurations have in common (`common_defect`)."""
    examined: dict[str, dict[str, list[Config]]] = {}
    for one in log.examinations().values():
        examined.setdefault(one.template, {}).setdefault(one.verdict, []).append(one.config)
    found = {}
    for template, by_verdict in examined.items():
        evaluations = (entry.event.evaluation for entry in log.evaluations_of(template))
        measured = [one.config for one in evaluations if one.failure is None]
        if defect := common_defect(by_verdict.get("rejected", []), by_verdict.get("accepted", []), measured):
            found[template] = defect
    return found


def has(config: Config, defect: Config) -> bool:
    """Whether `config` has all values of a defect."""
    return bool(defect) and all(config.get(name) == value for name, value in defect.items())


def variations(template: Template, rejected: Config, defect: Config) -> list[Config]:
    """`rejected` with one value changed to its neighbour: first of parameters that relax arithmetic, then of the known
    `defect`, then switches that are on, then others; at most `MAX_VARIATIONS`, feasible or not."""

    def rank(parameter: Parameter) -> tuple[bool, bool, bool]:
        is_on = set(parameter.values) in ({False, True}, {0, 1}) and bool(rejected[parameter.name])
        return not _RELAXED.search(parameter.name), parameter.name not in defect, not is_on

    found = []
    for parameter in sorted(template.parameters, key=rank):
        at = parameter.values.index(rejected[parameter.name])
        if beside := (*parameter.values[:at][-1:], *parameter.values[at + 1 :][:1]):
            found.append({**rejected, parameter.name: beside[0]})
    return found[:MAX_VARIATIONS]
