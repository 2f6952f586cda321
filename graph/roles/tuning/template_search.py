"""The search of one template in one round: its feasible space, its strategy, what was asked and found.

Owns nothing of the pool and nothing of how several searches share it; that is the tuner's.
"""

from __future__ import annotations

from tunesmith.graph.context import Context
from tunesmith.graph.history import prior_of, suggestions_of
from tunesmith.graph.journal.events import SeedsRefused
from tunesmith.graph.journal.measurements import failures_by_kind, observation, racing
from tunesmith.graph.journal.records import RefusedSeed, TemplateAccount
from tunesmith.graph.roles.rejections import defects, has
from tunesmith.graph.state import Plan
from tunesmith.kernels.outcome import Evaluation
from tunesmith.kernels.search import Observation, Strategy, make_strategy
from tunesmith.kernels.space.feasible import feasible, require_points, rules
from tunesmith.kernels.space.space import Space
from tunesmith.kernels.spec.parameter import Config
from tunesmith.kernels.spec.template import Template


class TemplateSearch:
    """Raises `EmptySpace` where no configuration is feasible. budget: evaluations it may come to; workers: how many
    configurations may be in flight."""

    def __init__(
        self,
        context: Context,
        plan: Plan,
        template: Template,
        stage: str,
        baseline: dict[str, float],
        budget: int,
        workers: int,
    ) -> None:
        self.context, self.plan, self.template, self.stage, self.baseline = context, plan, template, stage, baseline
        workloads = [context.task.workload(name) for name in plan.workloads]
        conditions = [rule for limits in context.limits for rule in rules(template, workloads, limits)]
        self.space = Space.build(template.parameters, conditions)
        if self.space.empty:
            for limits in context.limits:
                require_points(feasible(template, workloads, limits), template)
            require_points(self.space, template)
        self._defect = defects(context.log).get(template.id, {})
        self.known: set[int] = set()
        """Points of the space that were measured before this search."""
        self.strategy = self._make_strategy(budget, workers)
        self.asked = 0
        self.results: list[Evaluation] = []

    @property
    def best(self) -> float | None:
        """The best complete objective known of this template, from whatever round."""
        return None if self.strategy.best is None else self.strategy.best[1]

    def ask(self) -> Config | None:
        config = self.strategy.ask()
        self.asked += config is not None
        return config

    def assume_asked(self, config: Config) -> None:
        self.strategy.assume_asked(config)
        self.asked += 1

    def learn(self, evaluation: Evaluation) -> float | None:
        """Tells the strategy; returns the objective, None for a failure."""
        self.results.append(evaluation)
        seen = self._observe(evaluation)
        self.strategy.tell(evaluation.config, seen)
        return seen.value

    def account(self) -> TemplateAccount:
        return TemplateAccount(
            template=self.template.id,
            strategy=self.strategy.describe(),
            points=len(self.space),
            cartesian=self.space.cartesian,
            asked=self.asked,
            exhausted=self.strategy.exhausted,
            rng=self.strategy.random_state(),
            failures=failures_by_kind(self.results),
            racing=racing(self.results),
        )

    def _make_strategy(self, budget: int, workers: int) -> Strategy:
        settings = self.context.settings
        strategy = make_strategy(
            settings.strategy,
            self.space,
            seed=settings.seed + self.plan.round,
            budget=budget,
            workers=workers,
            seeds=self._seeds(),
            prior=prior_of(self.context.log, self.template, self.space),
        )
        # What earlier rounds, and the template's trial, measured on these workloads is known to this search, and not
        # measured again.
        for entry in self.context.log.evaluations_of(self.template.id):
            evaluation = entry.event.evaluation
            known = set(self.plan.workloads) <= set(evaluation.outcomes) or evaluation.failure is not None
            index = self.space.index(evaluation.config)
            if entry.stage != self.stage and known and index is not None:
                self.known.add(index)
                strategy.tell(evaluation.config, self._observe(evaluation))
        return strategy

    def _observe(self, evaluation: Evaluation) -> Observation:
        if has(evaluation.config, self._defect):
            # What shares the defect of rejected winners is no result to search near.
            return Observation(None, failure="wrong_result")
        of = self.context.settings.objective
        return observation(evaluation, self.plan.workloads, self.baseline, self.context.weights, of)

    def _seeds(self) -> list[Config]:
        """What to try first, as far as feasible; the journal keeps those that are not, with the reason."""
        log = self.context.log
        given = log.seeds(self.stage, self.template.id)
        refused = [
            RefusedSeed(config=config, why=reason.detail)
            for config in given
            if self.space.index(config) is None and (reason := self.space.reject(config)) is not None
        ]
        mine = self.template.id
        if refused and all(event.template != mine for event in log.events(SeedsRefused, self.stage)):
            self.context.journal.append(SeedsRefused(template=mine, refused=tuple(refused)), self.stage)
        # What earlier runs found good is measured like everything else.
        seeds = [*given, *suggestions_of(log), self.template.default_config]
        return [config for config in seeds if self.space.index(config) is not None]
