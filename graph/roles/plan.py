"""The planner by rules: names the bottleneck from roofline and measurements, and says what the round tunes.

First the general configuration over all workloads; then, round by round, the workload with the most left to gain
gets a search of its own, which starts from what is known.
"""

from __future__ import annotations

import math

from tunesmith.graph.context import Context, Progress
from tunesmith.graph.measurements import baseline_seconds, evaluations, objective, seconds_of
from tunesmith.graph.state import Bottleneck, Plan, State
from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.task import Workload

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
        context.listener(Progress("plan", f"round {number}: {plan.scope}, bound by {plan.bottleneck}. {plan.expected}"))
        return {"round": number, "plan": plan.model_dump(mode="json")}

    def _general(self, context: Context, number: int, baseline: dict[str, float]) -> Plan:
        templates = context.sources.templates
        if not templates:
            raise NoTemplate(f"The task {context.task.name} has no {context.device.backend} template: add one to "
                             f"`templates` under [backends.{context.device.backend}] of its task.toml.")  # fmt: skip
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
        planned = {event.data["template"] for event in context.journal.events("plan")}
        untried = [template for template in context.sources.templates if template.name not in planned]
        rounds_left = max(1, context.settings.rounds - number + 1)
        share = max(1, context.evaluations_left() // rounds_left)
        names = [workload.name for workload in context.tuned]
        if untried:
            return self._general(context, number, baseline).model_copy(
                update={"template": untried[0].name, "evaluations": share}
            )
        best_seconds = {
            name: min((s[name] for e in known if name in (s := seconds_of(e))), default=baseline[name])
            for name in names
        }
        tried = {name for event in context.journal.events("plan") if event.data["scope"] == "workload"
                 for name in event.data["workloads"]}  # fmt: skip
        fresh = [workload for workload in context.tuned if workload.name not in tried] or list(context.tuned)
        # What is mostly launch and ramp-up is far from its floor without being able to come nearer.
        fresh = [w for w in fresh if bottleneck(context, w, best_seconds[w.name]) != "latency"] or fresh
        target = max(fresh, key=lambda w: w.weight * headroom(context, w, best_seconds[w.name]))
        ranked = sorted(
            (value, index)
            for index, evaluation in enumerate(known)
            if (value := objective(evaluation, [target.name], baseline, context.weights)) is not None
        )
        last = context.journal.last("plan")
        assert last is not None
        general = len(names) == 1
        return Plan(
            round=number,
            bottleneck=bottleneck(context, target, best_seconds[target.name]),
            scope="general" if general else "workload",
            template=last.data["template"],
            workloads=(target.name,),
            evaluations=share,
            moves=(f"search the space of {target.name} on its own, from its best known points",),
            expected=expectation(context, target, best_seconds[target.name]),
            seeds=tuple(known[index].config for _, index in ranked[:SEEDS]),
        )


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


def expectation(context: Context, workload: Workload, seconds: float) -> str:
    """What may still be gained, in a sentence."""
    floor = context.floor(workload)
    if not floor:
        return f"{workload.name} takes {seconds * 1e6:.1f} us; its floor is not known."
    taken, least = seconds * 1e6, floor * 1e6
    return f"{workload.name} takes {taken:.1f} us, its floor is {least:.1f} us: at most {taken / least:.2f}x."
