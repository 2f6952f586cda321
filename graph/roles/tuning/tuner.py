"""The tuner: searches the feasible spaces of the round's templates side by side, many configurations at a time.

Every ask and every result is in the journal before the next ask. After an interruption the searches are given the
journal's asks and results in their order, which brings them to where they were; what was asked and not measured is
measured now, and nothing is measured twice. How several templates share the round is `halving`.
"""

from __future__ import annotations

import time
from collections import Counter

from tunesmith.actors.pool.request import Request
from tunesmith.graph.context import Context
from tunesmith.graph.journal.events import Asked, Evaluated, Searched, SearchStarted
from tunesmith.graph.journal.log import stage_of
from tunesmith.graph.journal.measurements import racing, weighted_geomean
from tunesmith.graph.progress import Progress
from tunesmith.graph.roles.baseline import baseline_quantities, baseline_seconds
from tunesmith.graph.roles.templating.trial import recorded
from tunesmith.graph.roles.tuning.halving import ask_order, max_evaluations
from tunesmith.graph.roles.tuning.template_search import TemplateSearch
from tunesmith.graph.state import Plan, State
from tunesmith.kernels.outcome import CompileFailed, Evaluation
from tunesmith.kernels.spec.parameter import Config, assignments, config_key
from tunesmith.kernels.spec.task import TaskError
from tunesmith.kernels.spec.template import Template

SHOW_SECONDS = 0.1
"""Between two showings of progress."""


class Tuner:
    name = "tune"

    def __call__(self, state: State, context: Context) -> State:
        plan = Plan.model_validate(state["plan"])
        # A model's kernel without parameters was measured in its trial; one that the task brings was not.
        templates = [
            one
            for one in state.get("templates", [])
            if context.template(one).has_choices or not context.log.evaluations_of(one)
        ]
        if templates and context.log.searched(stage_of(plan.round)) is None:
            _Round(context, plan, templates).run()
        return {}


class _Round:
    """The searches of one round, which feed one pool."""

    def __init__(self, context: Context, plan: Plan, templates: list[str]) -> None:
        self.context, self.plan = context, plan
        self.stage = stage_of(plan.round)
        self.baseline = baseline_quantities(context)
        # After an interruption the pool is new, and the roofs are in the journal.
        context.pool.roofline = context.roofline()
        # What the trials of this round's templates took is part of its share.
        self.total = max(0, plan.evaluations - len(recorded(context, self.stage)))
        budget = max(1, max_evaluations(len(templates), self.total))
        begun = context.log.last(SearchStarted, self.stage)
        if begun is None:
            begun = SearchStarted(workers=context.pool.max_in_flight)
            context.journal.append(begun, self.stage)
        self.searches = [
            TemplateSearch(context, plan, context.template(template), self.stage, self.baseline, budget, begun.workers)
            for template in templates
        ]
        self.asked: dict[int, tuple[TemplateSearch, Config]] = {}
        self.results: dict[int, Evaluation] = {}
        self.failures: Counter[str] = Counter()
        self.best: float | None = None
        self.floor = self._floor()
        seconds = baseline_seconds(context)
        self.usual = weighted_geomean({name: seconds[name] for name in plan.workloads}, context.weights)
        """The baseline's seconds, as the objective counts workloads."""
        self._shown = 0.0
        points = sum(len(search.space) - len(search.known) for search in self.searches)
        last = plan.round >= context.settings.rounds
        self.most = context.settings.evaluations - (max(0, self.total - points) if last else 0)
        """Evaluations that the run can come to: the last round's space may have fewer new points than its share."""

    def _floor(self) -> float | None:
        """What the objective of a perfect kernel would be; None where a floor is not known."""
        if self.context.settings.objective != "time":
            return None
        ratios = {}
        for name in self.plan.workloads:
            floor = self.context.floor(self.context.task.workload(name))
            if floor is None:
                return None
            ratios[name] = floor / self.baseline[name]
        return weighted_geomean(ratios, self.context.weights)

    def run(self) -> None:
        context, pool = self.context, self.context.pool
        self._replay()
        for search in self.searches:
            about = f" of {search.template.name}" if len(self.searches) > 1 else ""
            size = f"{self.total} evaluations, {len(search.space)} configurations"
            self._show(f"Search{about}: strategy {context.settings.strategy} ({size}).")
        waiting = [number for number in self.asked if number not in self.results]
        for number in waiting:
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
        context.journal.append(self._account(), self.stage)

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
        self.context.pool.submit(Request(number, search.template, config, self.plan.workloads))

    def _record(self, number: int, evaluation: Evaluation) -> None:
        self._require_default(self.asked[number][0].template, evaluation)
        event = Evaluated(number=number, key=config_key(evaluation.config), evaluation=evaluation)
        self.context.journal.append(event, self.stage)
        self._learn(number, evaluation)
        # Counting what the journal holds takes longer than an evaluation may, when there are hundreds a second.
        if time.monotonic() - self._shown > SHOW_SECONDS:
            self._show("")

    def _require_default(self, template: Template, evaluation: Evaluation) -> None:
        """Raises `TaskError` where the default configuration of a template does not compile: the others will hardly do,
        and a budget would be spent on finding that out."""
        failure = evaluation.failure
        if isinstance(failure, CompileFailed) and evaluation.config == template.default_config:
            values = f" ({assignments(evaluation.config)})" if evaluation.config else ""
            raise TaskError(
                f"Task {self.context.task.name}: the template {template.name} does not compile with its default "
                f"configuration{values}: {failure.first_error.rstrip('.')}. Fix the source or the defaults, and start "
                "a new run."
            )

    def _learn(self, number: int, evaluation: Evaluation) -> None:
        self.results[number] = evaluation
        if (failure := evaluation.failure) is not None:
            self.failures[failure.kind] += 1
        value = self.asked[number][0].learn(evaluation)
        if value is not None and (self.best is None or value < self.best):
            self.best = value

    def _show(self, message: str) -> None:
        self._shown = time.monotonic()
        done = self.context.log.evaluation_count
        self.context.listener(
            Progress(
                "tune",
                message,
                done=done,
                budget=self.most,
                best=self.best,
                best_seconds=None
                if self.best is None or self.context.settings.objective != "time"
                else self.best * self.usual,
                share_of_floor=self.floor / self.best if self.floor and self.best else None,
                failures=dict(self.failures),
                lanes=self.context.pool.lanes,
            )
        )

    def _account(self) -> Searched:
        """What the searches did: their sum and each of them."""
        each = [search.account() for search in self.searches]
        sizes = [one.points for one in each if one.points is not None]
        return Searched(
            strategy=" | ".join(one.strategy for one in each),
            points=sum(sizes) if len(sizes) == len(each) else None,
            cartesian=sum(one.cartesian for one in each),
            asked=len(self.asked),
            exhausted=all(one.exhausted for one in each),
            failures=dict(self.failures),
            racing=racing(self.results.values()),
            templates=tuple(each),
        )
