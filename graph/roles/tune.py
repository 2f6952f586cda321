"""The tuner: searches the feasible space of the round's template, many configurations at a time.

Every ask and every result is in the journal before the next ask. After an interruption the search is given the
journal's asks and results in their order, which brings it to where it was; what was asked and not measured is
measured now, and nothing is measured twice.
"""

from __future__ import annotations

import time

from tunesmith.actors.pool import Request
from tunesmith.graph.context import Context, Progress, evaluation_from_json, evaluation_to_json
from tunesmith.graph.measurements import baseline_seconds, failures_by_kind, observation, racing
from tunesmith.graph.state import Plan, State
from tunesmith.kernels.bench import weighted_geomean
from tunesmith.kernels.feasible import feasible, require_points, rules
from tunesmith.kernels.outcome import Evaluation
from tunesmith.kernels.parameter import config_key
from tunesmith.kernels.search import Strategy, make_strategy
from tunesmith.kernels.space import build_space
from tunesmith.kernels.template import Template

SHOW_SECONDS = 0.1
"""Between two showings of progress."""


class Tuner:
    name = "tune"

    def __call__(self, state: State, context: Context) -> State:
        plan = Plan.model_validate(state["plan"])
        if context.journal.last("searched", f"round-{plan.round}") is not None:
            return {}
        _Search(context, plan, context.template(state["template"])).run()
        return {}


class _Search:
    """The search of one round."""

    def __init__(self, context: Context, plan: Plan, template: Template) -> None:
        self.context, self.plan, self.template = context, plan, template
        self.stage = f"round-{plan.round}"
        self.baseline = baseline_seconds(context)
        # After an interruption the pool is new, and the roofs are in the journal.
        context.pool.roofline = context.roofline()
        workloads = [context.task.workload(name) for name in plan.workloads]
        conditions = [rule for limits in context.limits for rule in rules(template, workloads, limits)]
        self.space = build_space(template.parameters, conditions)
        if self.space.empty:
            for limits in context.limits:
                require_points(feasible(template, workloads, limits), template)
            require_points(self.space, template)
        self.strategy = self._make_strategy()
        self.asked: dict[int, dict[str, bool | int | float | str]] = {}
        self.told: dict[int, Evaluation] = {}
        self.best: float | None = None
        self.floor = self._floor()
        self._shown = 0.0

    def _floor(self) -> float | None:
        """What the objective of a perfect kernel would be; None where a floor is not known."""
        ratios = {}
        for name in self.plan.workloads:
            floor = self.context.floor(self.context.task.workload(name))
            if floor is None:
                return None
            ratios[name] = floor / self.baseline[name]
        return weighted_geomean(ratios, self.context.weights)

    def _make_strategy(self) -> Strategy:
        settings = self.context.settings
        seeds = [*self.plan.seeds, self.template.default_config]
        strategy = make_strategy(
            settings.strategy,
            self.space,
            seed=settings.seed + self.plan.round,
            budget=self.plan.evaluations,
            workers=self.context.pool.most_ahead,
            seeds=[config for config in seeds if self.space.index(config) is not None],
        )
        # What earlier rounds measured on these workloads is known to this search, and not measured again.
        for event in self.context.journal.events("evaluation"):
            evaluation = evaluation_from_json(event.data)
            known = set(self.plan.workloads) <= set(evaluation.outcomes) or evaluation.failure is not None
            if event.stage != self.stage and evaluation.template == self.template.id and known:
                self._tell(strategy, evaluation)
        return strategy

    def _tell(self, strategy: Strategy, evaluation: Evaluation) -> None:
        if self.space.index(evaluation.config) is not None:
            seen = observation(evaluation, self.plan.workloads, self.baseline, self.context.weights)
            strategy.tell(evaluation.config, seen)

    def run(self) -> None:
        context, pool = self.context, self.context.pool
        self._replay()
        self._show(self.strategy.describe())
        waiting = [number for number in self.asked if number not in self.told]
        for number in waiting:
            self._submit(number)
        while True:
            while (
                pool.in_flight < pool.ahead and len(self.asked) < self.plan.evaluations and context.seconds_left() > 0
            ):
                config = self.strategy.ask()
                if config is None:
                    break
                number = len(self.asked)
                self.asked[number] = config
                context.journal.append("asked", {"number": number, "config": config}, self.stage)
                self._submit(number)
            if pool.in_flight == 0:
                break
            for request, evaluation in pool.collect():
                self._record(request.number, evaluation)
        self._show("")
        context.journal.append("searched", self._account(), self.stage)

    def _replay(self) -> None:
        """Gives the strategy what the journal holds of this round, in order."""
        for event in self.context.journal.events(stage=self.stage):
            if event.kind == "asked":
                self.asked[event.data["number"]] = event.data["config"]
                self.strategy.assume_asked(event.data["config"])
            elif event.kind == "evaluation":
                self._learn(event.data["number"], evaluation_from_json(event.data))

    def _submit(self, number: int) -> None:
        request = Request(number, self.template, self.asked[number], self.plan.workloads)
        self.context.pool.submit(request)

    def _record(self, number: int, evaluation: Evaluation) -> None:
        data = {"number": number, "key": config_key(evaluation.config), **evaluation_to_json(evaluation)}
        self.context.journal.append("evaluation", data, self.stage)
        self._learn(number, evaluation)
        # Counting what the journal holds takes longer than an evaluation may, when there are hundreds a second.
        if time.monotonic() - self._shown > SHOW_SECONDS:
            self._show("")

    def _learn(self, number: int, evaluation: Evaluation) -> None:
        self.told[number] = evaluation
        seen = observation(evaluation, self.plan.workloads, self.baseline, self.context.weights)
        self.strategy.tell(evaluation.config, seen)
        if seen.value is not None and (self.best is None or seen.value < self.best):
            self.best = seen.value

    def _show(self, message: str) -> None:
        self._shown = time.monotonic()
        done = self.context.journal.count("evaluation")
        self.context.listener(
            Progress(
                "tune",
                message,
                done=done,
                budget=self.context.settings.evaluations,
                best=self.best,
                share_of_floor=self.floor / self.best if self.floor and self.best else None,
                failures=failures_by_kind(self.told.values()),
                lanes=self.context.pool.lanes,
            )
        )

    def _account(self) -> dict[str, object]:
        return {
            "strategy": self.strategy.describe(),
            "points": self.space.size,
            "cartesian": self.space.cartesian,
            "asked": len(self.asked),
            "exhausted": self.strategy.exhausted,
            "rng": self.strategy.state()["rng"],
            "failures": failures_by_kind(self.told.values()),
            "racing": racing(self.told.values()),
        }
