"""The tuner: searches the feasible spaces of a round's templates side by side, many configurations at a time.

Each template has a strategy of its own. They share the round's evaluations by sequential halving (Karnin, Koren,
Somekh, "Almost optimal exploration in multi-armed bandits", ICML 2013), without its barriers: the budget has
ceil(log2 n) + 1 equal rungs; in each the evaluations go in turn to the templates that survive, and after each the half
with the worse best objective is out, until a late result makes a template better. Every choice is a function of how
often each template was asked and of the best values known, so that a resumed run makes the same choices.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence

from tunesmith.graph.context import Context, baseline_quantities, baseline_seconds
from tunesmith.graph.history import prior_of
from tunesmith.graph.journal import events
from tunesmith.graph.journal.log import Entry, failures_by_kind, observation, racing, stage_of, weighted_geomean
from tunesmith.graph.progress import Progress
from tunesmith.graph.roles.templater import trials_of
from tunesmith.graph.roles.verdict import defects, has
from tunesmith.graph.state import Plan, State
from tunesmith.kernels.build.artifact import EvaluationRequest
from tunesmith.kernels.outcome import CompileFailed, Evaluation
from tunesmith.kernels.search import Observation, Strategy, make_strategy
from tunesmith.kernels.space import Space, feasible, require_points, rules
from tunesmith.kernels.spec.task import TaskError
from tunesmith.kernels.spec.template import Config, Template, assignments, config_key


def rungs(count: int) -> int:
    """The number of rungs, of equal budget, in the halving of `count` templates."""
    return 1 if count < 2 else (count - 1).bit_length() + 1


def survivors(count: int, rung: int) -> int:
    """The number of templates, of `count`, in a rung, counted from 0."""
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


SHOW_SECONDS = 0.1
"""Seconds between two showings of progress."""


def tune_round(state: State, context: Context) -> State | tuple[State, events.Searched]:
    """The role "tune"."""
    plan = Plan.model_validate(state["plan"])
    # A model's kernel without parameters was measured in its trial; a kernel of the task was not.
    chosen, log = state.get("templates", []), context.log
    templates = [one for one in chosen if log.template(one).has_choices or not log.evaluations_of(one)]
    return ({}, _Round(context, plan, templates).run()) if templates else {}


class _Round:
    """The searches of one round, which feed one pool. Raises `TunesmithError` where no configuration is feasible."""

    def __init__(self, context: Context, plan: Plan, templates: list[str]) -> None:
        self.context, self.plan = context, plan
        self.stage = stage_of(plan.round)
        # After an interruption the pool is new, and the roofs are in the journal.
        context.pool.roofline = context.roofline()
        # The trials of this round's templates are part of its share.
        self.total = max(0, plan.evaluations - len(trials_of(context, self.stage)))
        self.workloads = [context.task.workload(name) for name in plan.workloads]
        self.baseline, self.defects = baseline_quantities(context), defects(context.log)
        budget = max(1, max_evaluations(len(templates), self.total))
        workers = context.pool.max_in_flight
        begun = context.once(events.SearchStarted, self.stage, lambda: events.SearchStarted(workers=workers))
        self.templates = {one: context.template(one) for one in templates}
        self.searches = {one: self._search(self.templates[one], budget, begun.workers) for one in templates}
        self.asked: dict[int, EvaluationRequest] = {}
        self.results: dict[int, Evaluation] = {}
        self.failures: Counter[str] = Counter()
        self._shown = 0.0
        seconds, weights = baseline_seconds(context), context.task.weights
        self.usual = weighted_geomean({name: seconds[name] for name in plan.workloads}, weights)
        """The baseline's seconds, as the objective counts workloads."""
        floors = {one.name: floor / seconds[one.name] for one in self.workloads if (floor := context.floor(one))}
        complete = context.settings.objective == "time" and len(floors) == len(self.workloads)
        self.floor = weighted_geomean(floors, weights) if complete else None
        """The objective of a perfect kernel; None where a floor is not known."""
        points = sum(len(search.space) - len(search.known) for search in self.searches.values())
        last = plan.round >= context.settings.rounds
        self.most = context.settings.evaluations - (max(0, self.total - points) if last else 0)
        """The most evaluations of the run: the last round's space may have fewer new points than its share."""

    def _search(self, template: Template, budget: int, workers: int) -> Strategy:
        """The search of a template, which knows earlier measurements. budget: its maximum number of evaluations;
        workers: configurations in flight."""
        context, workloads = self.context, self.workloads
        conditions = [rule for limits in context.limits for rule in rules(template, workloads, limits)]
        space = Space.build(template.parameters, conditions)
        if not len(space):
            for limits in context.limits:
                require_points(feasible(template, workloads, limits), template)
            require_points(space, template)
        first = {"seeds": self._seeds(template, space), "prior": prior_of(context.log, template, space)}
        name, seed = context.settings.strategy, context.settings.seed + self.plan.round
        search = make_strategy(name, space, seed=seed, budget=budget, workers=workers, **first)
        for entry in context.log.evaluations_of(template.id):
            evaluation = entry.event.evaluation
            known = set(self.plan.workloads) <= set(evaluation.outcomes) or evaluation.failure is not None
            if entry.stage != self.stage and known and space.index(evaluation.config) is not None:
                self._tell(search, evaluation)
        return search

    def _seeds(self, template: Template, space: Space) -> list[Config]:
        """The feasible configurations to try first, among them the author's list; the journal keeps the infeasible ones
        that a role gave, with the reason."""
        log = self.context.log
        given = log.seeds(self.stage, template.id)
        refused = tuple({"config": one, "why": why.detail} for one in given if (why := space.reject(one)) is not None)
        if refused:
            event = events.SeedsRefused(template=template.id, refused=refused)
            self.context.once(events.SeedsRefused, self.stage, lambda: event, template=template.id)
        earlier = log.last(events.EarlierResults) or events.EarlierResults()
        opponents = self.context.task.sources(template.backend).opponents
        listed = [config for one in opponents for config in one.configs][: self.total // 2]
        seeds = [*given, *(one.config for one in earlier.suggestions), template.default_config, *listed]
        return [config for config in seeds if space.index(config) is not None]

    def run(self) -> events.Searched:
        context, pool = self.context, self.context.pool
        self._replay()
        for name, search in self.searches.items():
            about = f" of {self.templates[name].name}" if len(self.searches) > 1 else ""
            size = f"{self.total} evaluations, {len(search.space)} configurations"
            self._show(f"Search{about}: strategy {context.settings.strategy} ({size}).")
        for number in [number for number in self.asked if number not in self.results]:
            pool.submit(self.asked[number])
        while True:
            while pool.in_flight < pool.target_in_flight and self._ask():
                pass
            if pool.in_flight == 0:
                break
            for request, evaluation in pool.collect():
                self._record(request.number, evaluation)
        self._show("")
        return self._account()

    def _replay(self) -> None:
        """Replays this round's journal entries to the searches, in order."""
        entries: Iterator[Entry[events.Asked | events.Evaluated]] = self.context.journal.entries(
            events.Asked, events.Evaluated
        )
        for event in (entry.event for entry in entries if entry.stage == self.stage):
            if isinstance(event, events.Asked):
                self._note(event.template, event.config)
                self.searches[event.template].assume_asked(event.config)
            else:
                self._learn(event.number, event.evaluation)

    def _ask(self) -> bool:
        """Submits one more configuration, of the template whose turn it is; False without budget, or without any."""
        if len(self.asked) >= self.total or self.context.search_seconds_left() <= 0:
            return False
        names, searches = list(self.searches), self.searches.values()
        best = [None if one.best is None else one.best[1] for one in searches]
        for position in ask_order([len(one.asked) for one in searches], best, self.total):
            name = names[position]
            if (config := self.searches[name].ask()) is not None:
                request = self._note(name, config)
                event = events.Asked(number=request.number, template=name, config=config)
                self.context.journal.append(event, self.stage)
                self.context.pool.submit(request)
                return True
        return False

    def _note(self, template: str, config: Config) -> EvaluationRequest:
        """The request for a configuration that was asked, numbered from 0."""
        number = len(self.asked)
        self.asked[number] = EvaluationRequest(number, self.templates[template], config, self.plan.workloads)
        return self.asked[number]

    def _record(self, number: int, evaluation: Evaluation) -> None:
        """Raises `TaskError` where the default configuration of a template does not compile: the others will hardly."""
        template, failure = self.asked[number].template, evaluation.failure
        if isinstance(failure, CompileFailed) and evaluation.config == template.default_config:
            values = f" ({assignments(evaluation.config)})" if evaluation.config else ""
            raise TaskError(
                f"Task {self.context.task.name}: the template {template.name} does not compile with its default "
                f"configuration{values}: {failure.first_error.rstrip('.')}. Fix the source or the defaults, and start "
                "a new run."
            )
        event = events.Evaluated(number=number, key=config_key(evaluation.config), evaluation=evaluation)
        self.context.journal.append(event, self.stage)
        self._learn(number, evaluation)
        # Counting the evaluations in the journal may take longer than an evaluation.
        if time.monotonic() - self._shown > SHOW_SECONDS:
            self._show("")

    def _learn(self, number: int, evaluation: Evaluation) -> None:
        self.results[number] = evaluation
        if (failure := evaluation.failure) is not None:
            self.failures[failure.kind] += 1
        self._tell(self.searches[evaluation.template], evaluation)

    def _tell(self, search: Strategy, evaluation: Evaluation) -> None:
        settings, weights = self.context.settings, self.context.task.weights
        seen = observation(evaluation, self.plan.workloads, self.baseline, weights, settings.objective)
        if has(evaluation.config, self.defects.get(evaluation.template, {})):
            # A configuration with the defect of rejected winners must not attract the search.
            seen = Observation(None, failure="wrong_result")
        search.tell(evaluation.config, seen)

    def _show(self, message: str) -> None:
        self._shown = time.monotonic()
        best = min((one.best[1] for one in self.searches.values() if one.best is not None), default=None)
        progress = Progress(
            "tune",
            message,
            done=self.context.log.evaluation_count,
            budget=self.most,
            best=best,
            best_seconds=best * self.usual if best and self.context.settings.objective == "time" else None,
            share_of_floor=self.floor / best if self.floor and best else None,
            failures=dict(self.failures),
            lanes=self.context.pool.lanes,
        )
        self.context.listener(progress)

    def _account(self) -> events.Searched:
        """The account of the searches: their sum and each of them."""
        found, each = list(self.results.values()), list[events.TemplateAccount]()
        for name, search in self.searches.items():
            own = [one for one in found if one.template == name]
            account = events.TemplateAccount(
                template=name,
                strategy=search.describe(),
                points=len(search.space),
                cartesian=search.space.cartesian,
                asked=len(search.asked),
                exhausted=search.exhausted,
                rng=search.random_state(),
                failures=failures_by_kind(own),
                racing=racing(own),
            )
            each.append(account)
        return events.Searched(
            stage=self.stage,
            strategy=" | ".join(one.strategy for one in each),
            points=sum(one.points or 0 for one in each),
            cartesian=sum(one.cartesian for one in each),
            asked=len(self.asked),
            exhausted=all(one.exhausted for one in each),
            failures=dict(self.failures),
            racing=racing(found),
            templates=tuple(each),
        )
