"""The tuner: searches the feasible spaces of a round's templates side by side, many configurations at a time.

Each template has a strategy of its own. They share the round's evaluations by sequential halving (Karnin, Koren,
Somekh, "Almost optimal exploration in multi-armed bandits", ICML 2013), without its barriers: the budget has
ceil(log2 n) + 1 equal rungs; in each the evaluations go in turn to the templates that survive, and after each the worse
half is out. A template's rank is by its best objective so far. A search's best falls fast at first and slowly later, so
a quarter of the budget tells a hopeless template from a good one, while two good ones survive to the end of their rung.
A template that is out comes back when a late result makes it better.

Every choice is a function of how often each template was asked and of the best values known, so that a run that is
resumed from its journal makes the same choices.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence

from tunesmith.graph.context import Context, baseline_quantities, baseline_seconds
from tunesmith.graph.history import prior_of, suggestions_of
from tunesmith.graph.journal.events import Asked, Evaluated, Searched, SearchStarted, SeedsRefused
from tunesmith.graph.journal.log import failures_by_kind, observation, racing, stage_of, weighted_geomean
from tunesmith.graph.journal.records import RefusedSeed, TemplateAccount
from tunesmith.graph.progress import Progress
from tunesmith.graph.roles import Finished
from tunesmith.graph.roles.templater import recorded
from tunesmith.graph.roles.verdict import defects, has
from tunesmith.graph.state import Plan, State
from tunesmith.kernels.build.artifact import EvaluationRequest
from tunesmith.kernels.outcome import CompileFailed, Evaluation
from tunesmith.kernels.search import Observation, make_strategy
from tunesmith.kernels.space import Space, feasible, require_points, rules
from tunesmith.kernels.spec.task import TaskError
from tunesmith.kernels.spec.template import Config, Template, assignments, config_key


def rungs(count: int) -> int:
    """How many rungs, of equal budget, the halving of `count` templates has."""
    return 1 if count < 2 else (count - 1).bit_length() + 1


def survivors(count: int, rung: int) -> int:
    """How many of `count` templates take part in a rung, counted from 0."""
    return max(1, (count + (1 << rung) - 1) >> rung)


def ask_order(asked: Sequence[int], best: Sequence[float | None], total: int) -> list[int]:
    """Templates (by position) in the order in which to ask them for the next configuration.

    asked: evaluations of each; best: its best objective, None before the first. The first template with something to
    ask gets the evaluation; templates that are out stand last, for when the others have nothing.
    """
    count = len(asked)
    rung = min(sum(asked) * rungs(count) // max(1, total), rungs(count) - 1)
    values = [math.inf if one is None else one for one in best]
    ranked = sorted(range(count), key=lambda one: (values[one], one))
    inside = ranked[: survivors(count, rung)]
    return sorted(inside, key=lambda one: (asked[one], ranked.index(one))) + ranked[len(inside) :]


def max_evaluations(count: int, total: int) -> int:
    """Evaluations that a template gets of `total` when it stays in to the end."""
    number = rungs(count)
    return max(1, math.ceil(sum(total / number / survivors(count, rung) for rung in range(number))))


class TemplateSearch:
    """The search of one template in one round. Raises `EmptySpace` where no configuration is feasible. budget:
    evaluations it may come to; workers: configurations in flight."""

    def __init__(self, context: Context, plan: Plan, template: Template, budget: int, workers: int) -> None:
        self.context, self.plan, self.template = context, plan, template
        self.asked = 0
        self._baseline = baseline_quantities(context)
        self._defect = defects(context.log).get(template.id, {})
        workloads = [context.task.workload(name) for name in plan.workloads]
        conditions = [rule for limits in context.limits for rule in rules(template, workloads, limits)]
        self.space = Space.build(template.parameters, conditions)
        if not len(self.space):
            for limits in context.limits:
                require_points(feasible(template, workloads, limits), template)
            require_points(self.space, template)
        self.strategy = make_strategy(
            context.settings.strategy,
            self.space,
            seed=context.settings.seed + plan.round,
            budget=budget,
            workers=workers,
            seeds=self._seeds(),
            prior=prior_of(context.log, template, self.space),
        )
        self.known: set[int] = set()
        """Points of the space that earlier rounds, or the template's trial, measured on these workloads: the search
        knows them and does not measure them again."""
        for entry in context.log.evaluations_of(template.id):
            evaluation = entry.event.evaluation
            known = set(plan.workloads) <= set(evaluation.outcomes) or evaluation.failure is not None
            index = self.space.index(evaluation.config)
            if entry.stage != stage_of(plan.round) and known and index is not None:
                self.known.add(index)
                self.learn(evaluation)

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
        if has(evaluation.config, self._defect):
            # A configuration with the defect of rejected winners must not attract the search.
            seen = Observation(None, failure="wrong_result")
        else:
            of, weights = self.context.settings.objective, self.context.weights
            seen = observation(evaluation, self.plan.workloads, self._baseline, weights, of)
        self.strategy.tell(evaluation.config, seen)
        return seen.value

    def account(self, results: Sequence[Evaluation]) -> TemplateAccount:
        """What the search did. results: of this round, of this template."""
        return TemplateAccount(
            template=self.template.id,
            strategy=self.strategy.describe(),
            points=len(self.space),
            cartesian=self.space.cartesian,
            asked=self.asked,
            exhausted=self.strategy.exhausted,
            rng=self.strategy.random_state(),
            failures=failures_by_kind(results),
            racing=racing(results),
        )

    def _seeds(self) -> list[Config]:
        """The feasible configurations to try first; the journal keeps the infeasible ones, with the reason."""
        log, mine, stage = self.context.log, self.template.id, stage_of(self.plan.round)
        given = log.seeds(stage, mine)
        refused = [
            RefusedSeed(config=config, why=reason.detail)
            for config in given
            if self.space.index(config) is None and (reason := self.space.reject(config)) is not None
        ]
        if refused:
            event = SeedsRefused(template=mine, refused=tuple(refused))
            self.context.once(SeedsRefused, stage, lambda: event, template=mine)
        # What earlier runs found good is measured like everything else.
        seeds = [*given, *suggestions_of(log), self.template.default_config]
        return [config for config in seeds if self.space.index(config) is not None]


SHOW_SECONDS = 0.1
"""Between two showings of progress."""


class Tuner:
    name = "tune"

    def __call__(self, state: State, context: Context) -> State | Finished:
        plan = Plan.model_validate(state["plan"])
        # A model's kernel without parameters was measured in its trial; a kernel of the task was not.
        templates = [
            one
            for one in state.get("templates", [])
            if context.template(one).has_choices or not context.log.evaluations_of(one)
        ]
        return Finished({}, _Round(context, plan, templates).run()) if templates else {}


class _Round:
    """The searches of one round, which feed one pool."""

    def __init__(self, context: Context, plan: Plan, templates: list[str]) -> None:
        self.context, self.plan = context, plan
        self.stage = stage_of(plan.round)
        # After an interruption the pool is new, and the roofs are in the journal.
        context.pool.roofline = context.roofline()
        # What the trials of this round's templates took is part of its share.
        self.total = max(0, plan.evaluations - len(recorded(context, self.stage)))
        budget = max(1, max_evaluations(len(templates), self.total))
        begun = context.once(SearchStarted, self.stage, lambda: SearchStarted(workers=context.pool.max_in_flight))
        self.searches = [
            TemplateSearch(context, plan, context.template(template), budget, begun.workers) for template in templates
        ]
        self.asked: dict[int, tuple[TemplateSearch, Config]] = {}
        self.results: dict[int, Evaluation] = {}
        self.failures: Counter[str] = Counter()
        self.best: float | None = None
        seconds = baseline_seconds(context)
        self.usual = weighted_geomean({name: seconds[name] for name in plan.workloads}, context.weights)
        """The baseline's seconds, as the objective counts workloads."""
        floors = {name: context.floor(context.task.workload(name)) for name in plan.workloads}
        known = {name: floor / seconds[name] for name, floor in floors.items() if floor is not None}
        complete = context.settings.objective == "time" and len(known) == len(floors)
        self.floor = weighted_geomean(known, context.weights) if complete else None
        """The objective of a perfect kernel; None where a floor is not known."""
        self._shown = 0.0
        points = sum(len(search.space) - len(search.known) for search in self.searches)
        last = plan.round >= context.settings.rounds
        self.most = context.settings.evaluations - (max(0, self.total - points) if last else 0)
        """Evaluations that the run can come to: the last round's space may have fewer new points than its share."""

    def run(self) -> Searched:
        context, pool = self.context, self.context.pool
        self._replay()
        for search in self.searches:
            about = f" of {search.template.name}" if len(self.searches) > 1 else ""
            size = f"{self.total} evaluations, {len(search.space)} configurations"
            self._show(f"Search{about}: strategy {context.settings.strategy} ({size}).")
        for number in [number for number in self.asked if number not in self.results]:
            self._submit(number)
        while True:
            while (
                pool.in_flight < pool.target_in_flight
                and len(self.asked) < self.total
                and context.search_seconds_left() > 0
            ):
                if not self._ask():
                    break
            if pool.in_flight == 0:
                break
            for request, evaluation in pool.collect():
                self._record(request.number, evaluation)
        self._show("")
        return self._account()

    def _ask(self) -> bool:
        """One more configuration in flight, of the template whose turn it is; False when none has any."""
        counts, best = [one.asked for one in self.searches], [one.best for one in self.searches]
        for position in ask_order(counts, best, self.total):
            search = self.searches[position]
            config = search.ask()
            if config is not None:
                number = len(self.asked)
                self.asked[number] = (search, config)
                event = Asked(number=number, template=search.template.id, config=config)
                self.context.journal.append(event, self.stage)
                self._submit(number)
                return True
        return False

    def _replay(self) -> None:
        """Gives the searches what the journal holds of this round, in order."""
        by_id = {search.template.id: search for search in self.searches}
        for event in self.context.log.search_history(self.stage):
            if isinstance(event, Asked):
                search = by_id[event.template]
                self.asked[event.number] = (search, event.config)
                search.assume_asked(event.config)
            else:
                self._learn(event.number, event.evaluation)

    def _submit(self, number: int) -> None:
        search, config = self.asked[number]
        self.context.pool.submit(EvaluationRequest(number, search.template, config, self.plan.workloads))

    def _record(self, number: int, evaluation: Evaluation) -> None:
        """Raises `TaskError` where the default configuration of a template does not compile: the others will hardly do,
        and a budget would be spent on finding that out."""
        template, failure = self.asked[number][0].template, evaluation.failure
        if isinstance(failure, CompileFailed) and evaluation.config == template.default_config:
            values = f" ({assignments(evaluation.config)})" if evaluation.config else ""
            raise TaskError(
                f"Task {self.context.task.name}: the template {template.name} does not compile with its default "
                f"configuration{values}: {failure.first_error.rstrip('.')}. Fix the source or the defaults, and start "
                "a new run."
            )
        event = Evaluated(number=number, key=config_key(evaluation.config), evaluation=evaluation)
        self.context.journal.append(event, self.stage)
        self._learn(number, evaluation)
        # Counting what the journal holds takes longer than an evaluation may, when there are hundreds a second.
        if time.monotonic() - self._shown > SHOW_SECONDS:
            self._show("")

    def _learn(self, number: int, evaluation: Evaluation) -> None:
        self.results[number] = evaluation
        if (failure := evaluation.failure) is not None:
            self.failures[failure.kind] += 1
        value = self.asked[number][0].learn(evaluation)
        if value is not None and (self.best is None or value < self.best):
            self.best = value

    def _show(self, message: str) -> None:
        self._shown = time.monotonic()
        done, by_time = self.context.log.evaluation_count, self.context.settings.objective == "time"
        self.context.listener(
            Progress(
                "tune",
                message,
                done=done,
                budget=self.most,
                best=self.best,
                best_seconds=self.best * self.usual if self.best is not None and by_time else None,
                share_of_floor=self.floor / self.best if self.floor and self.best else None,
                failures=dict(self.failures),
                lanes=self.context.pool.lanes,
            )
        )

    def _account(self) -> Searched:
        """What the searches did: their sum and each of them."""
        found = list(self.results.values())
        each = [
            search.account([one for one in found if one.template == search.template.id]) for search in self.searches
        ]
        sizes = [one.points for one in each if one.points is not None]
        return Searched(
            strategy=" | ".join(one.strategy for one in each),
            points=sum(sizes) if len(sizes) == len(each) else None,
            cartesian=sum(one.cartesian for one in each),
            asked=len(self.asked),
            exhausted=all(one.exhausted for one in each),
            failures=dict(self.failures),
            racing=racing(found),
            templates=tuple(each),
        )
