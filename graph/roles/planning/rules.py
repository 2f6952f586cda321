"""Planning by rules: which templates and workloads a round tunes when no model says so, and the facts that plans name.

Each template that the task brings is first tuned on all workloads together. Then, round by round, the workload with
the most left to gain is tuned on its own, in the template that is best there and from its best configurations; when
each has had its round, all are tuned together again, and so on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from tunesmith.graph.context import Context
from tunesmith.graph.journal.measurements import objective
from tunesmith.graph.journal.tree import Node, Tree
from tunesmith.graph.roles.baseline import baseline_quantities, baseline_seconds
from tunesmith.graph.state import Bottleneck, Branch, Plan
from tunesmith.kernels.check.verify import infeasible_on
from tunesmith.kernels.outcome import Evaluation
from tunesmith.kernels.rewrite.starts import starts
from tunesmith.kernels.spec.parameter import Config, config_key
from tunesmith.kernels.spec.task import Workload

FIRST_SHARE = 0.6
"""Share of the evaluations for the first round, which tunes all workloads together, when more rounds follow."""
LATENCY_SECONDS = 5e-6
"""A GPU kernel shorter than this is mostly launch and ramp-up, whatever its roofline says."""


def plan_by_rules(context: Context, number: int, tree: Tree) -> Plan | None:
    """The plan of round `number`; None where there is nothing to search: no template, or only kernels without choices
    that were measured. Measures the baseline and the device's
    roofs where the journal does not have them."""
    tunable = [node for node in tree.usable if node.template.has_choices or not node.found]
    if not tunable:
        return None
    baseline, quantities = baseline_seconds(context), baseline_quantities(context)
    best = {w.name: _best_seconds(tree.usable, w.name, baseline[w.name]) for w in context.tuned}
    if tree.untried:
        node, workloads, analysis = tree.untried[0], context.tuned, ""
        seeds = _starts(node, context, baseline)
    else:
        due = _due(context, best)
        workloads = context.tuned if due is None else (due,)
        node = _best_on(tunable, [w.name for w in workloads], quantities, context) or tunable[0]
        # A search of one workload knows the best there already: what was measured on it is told to it.
        seeds = _best_of_each(node, context, quantities) if due is None else ()
        analysis = (
            f"Tune all {len(workloads)} workloads together again, from the best known configurations of each."
            if due is None
            else f"Tune {due.name} on its own, from its best known configurations."
        )
    first = math.ceil(context.settings.evaluations * FIRST_SHARE)
    target = max(workloads, key=lambda w: headroom(context, w, best[w.name]))
    return Plan(
        round=number,
        bottleneck=bottleneck(context, target, best[target.name]),
        scope="general" if len(workloads) == len(context.tuned) else "workload",
        workloads=tuple(workload.name for workload in workloads),
        evaluations=max(share(context, number), min(first, context.evaluations_left()) if number == 1 else 0),
        branches=(Branch(parent=node.id, kind="search", seeds=seeds),),
        expected=expectation(context, target, best[target.name]),
        analysis=analysis,
    )


def share(context: Context, number: int) -> int:
    """Evaluations of round `number`: what is left, in equal parts for the rounds that are left."""
    left, rounds = context.evaluations_left(), max(1, context.settings.rounds - number + 1)
    return max(1, math.ceil(left / rounds))


def _due(context: Context, best: Mapping[str, float]) -> Workload | None:
    """The workload whose turn it is, None for all together: after a round of all, each gets one of its own, the one
    with the most to gain first, and then all are tuned together again."""
    if len(context.tuned) == 1:
        return context.tuned[0]
    plans = context.log.plans
    # What is mostly launch and ramp-up is far from its limit without being able to come nearer.
    worth = [w for w in context.tuned if bottleneck(context, w, best[w.name]) != "latency"]
    last = max((at for at, plan in enumerate(plans) if plan.scope == "general"), default=-1)
    own = {name for plan in plans[last + 1 :] for name in plan.workloads}
    left = [workload for workload in worth or context.tuned if workload.name not in own]
    return max(left, key=lambda w: w.weight * headroom(context, w, best[w.name]), default=None)


def _best_on(
    nodes: Sequence[Node], names: Sequence[str], baseline: Mapping[str, float], context: Context
) -> Node | None:
    """The node with the best configuration on the workloads `names`; of equals the first."""
    values = [(_values(node.found, names, baseline, context), node) for node in nodes]
    measured = [(min(value for value, _ in found), node) for found, node in values if found]
    return min(measured, key=lambda one: one[0])[1] if measured else None


def _best_of_each(node: Node, context: Context, baseline: Mapping[str, float]) -> tuple[Config, ...]:
    """The best configuration of each tuned workload."""
    known = (_values(node.found, [workload.name], baseline, context) for workload in context.tuned)
    chosen = [min(found, key=lambda one: one[0])[1].config for found in known if found]
    return tuple({config_key(config): config for config in chosen}.values())


def _values(
    found: Iterable[Evaluation], names: Sequence[str], baseline: Mapping[str, float], context: Context
) -> list[tuple[float, Evaluation]]:
    """Objective and evaluation of those that were measured on all of `names`."""
    weights, of = context.weights, context.settings.objective
    return [(value, one) for one in found if (value := objective(one, names, baseline, weights, of)) is not None]


def _starts(node: Node, context: Context, baseline: Mapping[str, float]) -> tuple[Config, ...]:
    """Where a template that rules made is searched first, for what limits the kernel on the workload with the most to
    gain."""
    target = max(context.tuned, key=lambda one: headroom(context, one, baseline[one.name]))
    limit = bottleneck(context, target, baseline[target.name])

    def fits(config: Config) -> bool:
        return all(
            infeasible_on(node.template, config, workload, limits) is None
            for limits in context.limits
            for workload in context.tuned
        )

    return starts(node.template, limit, fits)


def _best_seconds(nodes: Sequence[Node], name: str, baseline: float) -> float:
    """The shortest time on a workload that is known, the baseline's where nothing was measured."""
    return min((node.best_seconds[name] for node in nodes if name in node.best_seconds), default=baseline)


def headroom(context: Context, workload: Workload, seconds: float) -> float:
    """Logarithm of time over floor: what a perfect kernel would still gain. Zero where no floor is known."""
    floor = context.floor(workload)
    return math.log(seconds / floor) if floor else 0.0


def bottleneck(context: Context, workload: Workload, seconds: float) -> Bottleneck:
    """What limits a kernel that takes `seconds` on `workload`."""
    if context.device.limits.kind == "gpu" and seconds < LATENCY_SECONDS:
        return "latency"
    task = context.task
    return context.roofline().bound(task.bytes_of(workload), task.flops_of(workload), task.arithmetic or "float32")


def expectation(context: Context, workload: Workload, seconds: float) -> str:
    """What may still be gained, in a sentence."""
    floor = context.floor(workload)
    if not floor:
        return f"{workload.name} takes {_us(seconds)}; the limits of the device were not measured."
    least = f"its floor by the measured roofs, {_us(floor)}"
    if seconds <= floor:
        return f"{workload.name} takes {_us(seconds)} and is at {least}: little to gain."
    return f"{workload.name} takes {_us(seconds)}, {seconds / floor:.1f} times {least}."


def describe(plan: Plan) -> str:
    """A plan in one line."""
    bound = "bottleneck unknown" if plan.bottleneck == "unknown" else f"probably {plan.bottleneck}-bound"
    where = "all workloads" if plan.scope == "general" else ", ".join(plan.workloads)
    work = [
        f"{branch.kind} from {branch.parent}: {'; '.join(branch.moves)}"
        if branch.written
        else f"search {branch.parent}"
        for branch in plan.branches
    ]
    return f"Round {plan.round}, {where}: {bound}. {' | '.join(work)}. {plan.expected}".rstrip()


def _us(seconds: float) -> str:
    value = seconds * 1e6
    return f"{value:.0f} us" if value >= 100 else f"{value:.3g} us"
