"""The planner by rules: names the bottleneck from roofline and measurements, and says what the round tunes.

First the general configuration over all workloads; then, round by round, the workload with the most left to gain
gets a search of its own, which starts from what is known; then all again, and so on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tunesmith.graph.context import Context
from tunesmith.graph.journal.measurements import baseline_seconds, evaluations, objective, seconds_of
from tunesmith.graph.progress import Progress
from tunesmith.graph.state import Bottleneck, Plan, State
from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.outcome import Evaluation
from tunesmith.kernels.spec.parameter import config_key
from tunesmith.kernels.spec.task import Workload

FIRST_SHARE = 0.6
"""Of the evaluations, for the general search when more rounds follow."""
LATENCY_SECONDS = 5e-6
"""A GPU kernel shorter than this is mostly launch and ramp-up, whatever its roofline says."""
SEEDS = 3


class NoTemplate(TunesmithError):
    """There is nothing to tune."""


class RulePlanner:
    name = "plan"

    def __call__(self, state: State, context: Context) -> State:
        number = state.get("round", 0) + 1
        journalled = context.journal.last("plan", f"round-{number}")
        if journalled is not None:
            return {"round": number, "plan": journalled.data}
        context.listener(Progress("plan", f"round {number}"))
        # Everything is compared with the baseline, so it must run before anything is decided.
        baseline = baseline_seconds(context)
        plan = self._general(context, number, baseline) if number == 1 else self._next(context, number, baseline)
        context.journal.append("plan", plan.model_dump(mode="json"), f"round-{number}")
        bound = bound_in_words(plan.bottleneck)
        context.listener(Progress("plan", f"round {number}: {plan.scope}, {bound}. {plan.expected}"))
        return {"round": number, "plan": plan.model_dump(mode="json")}

    def _general(self, context: Context, number: int, baseline: dict[str, float]) -> Plan:
        templates = context.sources.templates
        if not templates:
            raise NoTemplate(
                f"The task {context.task.name} has no {context.device.backend} template: add one to "
                f"`templates` under [backends.{context.device.backend}] of its task.toml."
            )
        settings = context.settings
        share = FIRST_SHARE if settings.rounds > 1 else 1.0
        worst = max(context.tuned, key=lambda w: headroom(context, w, baseline[w.name]))
        return Plan(
            round=number,
            bottleneck=bottleneck(context, worst, baseline[worst.name]),
            scope="general",
            template=templates[0].name,
            workloads=tuple(workload.name for workload in context.tuned),
            evaluations=min(context.evaluations_left(), math.ceil(settings.evaluations * share)),
            moves=tuple(f"{p.name}: {p.doc}" if p.doc else p.name for p in templates[0].parameters),
            expected=expectation(context, worst, baseline[worst.name]),
        )

    def _next(self, context: Context, number: int, baseline: dict[str, float]) -> Plan:
        known = evaluations(context)
        plans = [event.data for event in context.journal.events("plan")]
        untried = [
            template
            for template in context.sources.templates
            if all(plan["template"] != template.name for plan in plans)
        ]
        rounds_left = max(1, context.settings.rounds - number + 1)
        share = max(1, context.evaluations_left() // rounds_left)
        if untried:
            return self._general(context, number, baseline).model_copy(
                update={"template": untried[0].name, "evaluations": share}
            )
        best_seconds = {
            w.name: min((s[w.name] for e in known if w.name in (s := seconds_of(e))), default=baseline[w.name])
            for w in context.tuned
        }
        due = _due(context, plans, best_seconds)
        workloads = context.tuned if due is None else (due,)
        names = [workload.name for workload in workloads]
        best = _ranked(known, names, baseline, context.weights)[:1]
        template = next((t for t in context.sources.templates if best and t.id == best[0].template), None)
        mine = [one for one in known if template is None or one.template == template.id]
        # A search of all begins with what those of each have found.
        each, count = ([names], SEEDS) if due is not None else ([[name] for name in names], 1)
        best_known = [one for wanted in each for one in _ranked(mine, wanted, baseline, context.weights)[:count]]
        seeds = {config_key(one.config): one.config for one in best_known}
        target = max(workloads, key=lambda w: headroom(context, w, best_seconds[w.name]))
        together = f"search all {len(names)} workloads together again, from the best known points of each"
        alone = f"search the space of {target.name} on its own, from its best known points"
        return Plan(
            round=number,
            bottleneck=bottleneck(context, target, best_seconds[target.name]),
            scope="general" if len(names) == len(context.tuned) else "workload",
            template=template.name if template is not None else plans[-1]["template"],
            workloads=tuple(names),
            evaluations=share,
            moves=(together if due is None else alone,),
            expected=expectation(context, target, best_seconds[target.name]),
            seeds=tuple(seeds.values()),
        )


def _due(context: Context, plans: Sequence[Mapping[str, Any]], best_seconds: Mapping[str, float]) -> Workload | None:
    """The workload whose turn it is, None for all together: after a general search each gets one of its own, the one
    with the most to gain first, and then all are searched together again."""
    if len(context.tuned) == 1:
        return context.tuned[0]
    # What is mostly launch and ramp-up is far from its floor without being able to come nearer.
    worth = [w for w in context.tuned if bottleneck(context, w, best_seconds[w.name]) != "latency"]
    last = max((at for at, plan in enumerate(plans) if plan["scope"] == "general"), default=-1)
    own = {name for plan in plans[last + 1 :] for name in plan["workloads"]}
    left = [workload for workload in worth or context.tuned if workload.name not in own]
    return max(left, key=lambda w: w.weight * headroom(context, w, best_seconds[w.name]), default=None)


def _ranked(
    known: Sequence[Evaluation], names: Sequence[str], baseline: Mapping[str, float], weights: Mapping[str, float]
) -> list[Evaluation]:
    """Those of `known` that were measured on all of `names`, the best first."""
    valued = [
        (value, at) for at, one in enumerate(known) if (value := objective(one, names, baseline, weights)) is not None
    ]
    return [known[at] for _, at in sorted(valued)]


def headroom(context: Context, workload: Workload, seconds: float) -> float:
    """Logarithm of time over floor: what a perfect kernel would still gain. Zero where no floor is known."""
    floor = context.floor(workload)
    return math.log(seconds / floor) if floor else 0.0


def bottleneck(context: Context, workload: Workload, seconds: float) -> Bottleneck:
    """What bounds a kernel of `seconds` on `workload`."""
    if context.device.limits.kind == "gpu" and seconds < LATENCY_SECONDS:
        return "latency"
    task = context.task
    return context.roofline().bound(task.bytes_of(workload), task.flops_of(workload), task.arithmetic or "float32")


def bound_in_words(bound: Bottleneck) -> str:
    """A bottleneck, for a sentence."""
    return "bottleneck unknown" if bound == "unknown" else f"bound by {bound}"


def expectation(context: Context, workload: Workload, seconds: float) -> str:
    """What may still be gained, in a sentence."""
    floor = context.floor(workload)
    if not floor:
        return f"{workload.name} takes {seconds * 1e6:.1f} us; its floor is not known."
    taken, least = seconds * 1e6, floor * 1e6
    if taken <= least:
        return f"{workload.name} takes {taken:.1f} us and is at its floor of {least:.1f} us: there is little to gain."
    return f"{workload.name} takes {taken:.1f} us, its floor is {least:.1f} us: at most {taken / least:.2f}x."
