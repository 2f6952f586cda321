"""The spaces that were searched: how many points are feasible, and which rules take the others away."""

from __future__ import annotations

from dataclasses import dataclass

from tunesmith.graph.journal.log import RunLog
from tunesmith.graph.results.summary import Summary
from tunesmith.graph.setup.preconditions import limits_of
from tunesmith.kernels.space.feasible import reason_of, rules
from tunesmith.kernels.space.space import Space
from tunesmith.kernels.spec.template import Template


@dataclass(frozen=True, slots=True)
class SpaceAccount:
    """A template's space on the tuned workloads. parameters: (name, values, default, what it is); rejected: (points,
    rule, reason), the most points first."""

    template: str
    cartesian: int
    feasible: int
    parameters: tuple[tuple[str, str, str, str], ...]
    rejected: tuple[tuple[int, str, str], ...]


def template_spaces(log: RunLog, summary: Summary) -> dict[str, Space]:
    """The feasible spaces, on all tuned workloads, of the templates that were evaluated, by their ids."""
    started = log.started
    if started is None:
        return {}
    workloads = started.task.workloads_for(started.device.limits.kind, held_out=False)
    limits = limits_of(started.device, started.settings)
    found = {}
    for one in (row.id for row in summary.templates if row.evaluations):
        template = log.template(one)
        conditions = [rule for device in limits for rule in rules(template, workloads, device)]
        found[one] = Space.build(template.parameters, conditions)
    return found


def space_account(template: Template, space: Space) -> SpaceAccount:
    """What the space holds, and what each rule takes away."""
    kinds = {rule.label: rule.kind for rule in space.rules}
    rejected = [
        (count, label, reason_of(template, label) if kinds[label] == "constraint" else "a limit of the device")
        for label, count in space.rejected.items()
        if count
    ]
    return SpaceAccount(
        template=template.name,
        cartesian=space.cartesian,
        feasible=len(space),
        parameters=tuple(
            (one.name, ", ".join(map(str, one.values)), str(one.start), one.doc) for one in template.parameters
        ),
        rejected=tuple(sorted(rejected, key=lambda row: -row[0])),
    )
