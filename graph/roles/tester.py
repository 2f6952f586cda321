"""The tester: the best configurations of a round against the baseline, the verdict, and the examination of the winners.

Finalists are measured in a fresh process, on fresh contents and held-out shapes. A search checks every configuration on
the tuned workloads and the task's own contents only, so winners must also pass the full verdict of `tunesmith check`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import islice

from tunesmith.graph.context import Context, baseline_quantities, baseline_request
from tunesmith.graph.journal import events
from tunesmith.graph.journal.log import REPAIR, RunLog, VerifiedKernel, objective, stage_of
from tunesmith.graph.models.calls import HOPELESS
from tunesmith.graph.progress import Progress
from tunesmith.graph.roles.examination import examine
from tunesmith.graph.roles.planner import broken_rule, options_of, plan_by_rules, searches
from tunesmith.graph.roles.templater import measured
from tunesmith.graph.roles.verdict import FOR_ALL, NOT_EXAMINED, build_verdict, defects, has, least_seconds, variations
from tunesmith.graph.state import Done, State
from tunesmith.hw.roofline import MAX_ROOFLINE_SHARE
from tunesmith.kernels.build.artifact import EvaluationRequest
from tunesmith.kernels.check.verify import Passed, Skipped
from tunesmith.kernels.measure.bench import WorkloadComparison
from tunesmith.kernels.measure.timing import Comparison
from tunesmith.kernels.spec.task import AnyOpponent, Workload
from tunesmith.kernels.spec.template import assignments, config_key

FINALISTS_PER_SHAPE = 2
"""Finalists of one workload, beside the general ones."""
ROUNDS, SECONDS, MIN_SAMPLING_SECONDS = 40, 0.5, 0.1
"""At most so many rounds, and at most and at least so many seconds of sampling for each kernel, on one workload."""
MIN_FLOOR_SHARE = 0.95
"""Share of the roofline from which on the search ends."""
FRESH_SEED = 1_000_003
"""Added to the seed for each test, so that finalists meet contents that the search never saw."""


def test_round(state: State, context: Context) -> State | tuple[State, events.VerdictReached]:
    """The role "test"."""
    number = state["round"]
    done = _done(context, number, None)
    if not done and context.settings.arm not in ("tree", "template+search"):
        # Where nothing is searched before the last round, only the run's end is worth a test.
        return {"done": ""}
    test = _Test(context, number)
    if not test.general and not any(test.per_shape.values()):
        nothing_left = context.models is None and not context.tree().untried
        return {"done": done or ("nothing valid" if nothing_left else "")}
    searched = context.log.last(events.Searched, test.stage)
    nothing_new = context.models is None and searched is not None and searched.asked == 0
    if nothing_new and context.log.verdict() is not None and not done:
        # All configurations of the search had been measured already, and the earlier verdict holds.
        return {"done": ""}
    # Opponents cost time: only the last test compares with them.
    test.compare(context.opponents if done else ())
    verdict, was_last = test.verdict(), bool(done)
    if context.drop_beaten_roofs("a finalist", least_seconds(verdict)):
        verdict = test.verdict()
    done = _done(context, number, verdict)
    if done and not was_last and context.seconds_left() > 0:
        # Only now is it known that this is the last test, as where the floor is reached.
        test.compare(context.opponents)
    if done:
        # Only the winners of the last test are exported, and need an examination.
        verdict = test.examined()
    context.listener(Progress("test", f"round {number}: {verdict.sentence}", best=verdict.ratio))
    return {"done": done}, events.VerdictReached(verdict=verdict)


class _Test:
    """The test of one round. general: finalists for all workloads; per_shape: further ones, by workload."""

    def __init__(self, context: Context, number: int) -> None:
        self.context, self.number, self.stage = context, number, stage_of(number)
        self.general, self.per_shape = finalists(context, self.stage)

    def verdict(self, attempted: Collection[VerifiedKernel] = ()) -> events.Verdict:
        """The verdict of the comparisons so far. attempted: as in `disqualified`."""
        compared = self.context.log.comparisons(self.stage).values()
        return build_verdict(self.context, compared, self.general, disqualified(self.context, attempted))

    def examined(self) -> events.Verdict:
        """The verdict after the examination of its winners: the general configuration on everything, others on the
        workload they won. In place of a rejected winner the next best is examined; while none serves all workloads and
        time is left, other configurations are compared."""
        context, attempted = self.context, set[VerifiedKernel]()
        while True:
            verdict = self.verdict(attempted)
            if waiting := {key: one for key, one in _winners(verdict).items() if key not in attempted}:
                examine(context, [(context.template(one.template), one.config, key[2]) for key, one in waiting.items()])
                attempted.update(waiting)
            elif verdict.general is None and context.seconds_left() > 0 and (others := self._replacements()):
                self.general += others
                self.compare(context.opponents)
            else:
                break
        if verdict.general is None:
            return verdict
        known = context.log.examinations().get((*verdict.general.key, ""))
        if known is not None and known.verdict not in ("not examined", "partial"):
            return verdict
        more = "The general configuration was not examined."
        if known is not None and known.verdict == "partial":
            more = f"It is right where it can be launched, but {known.detail}; best/ has the baseline for other shapes."
        return verdict.model_copy(update={"sentence": f"{verdict.sentence} {more}"})

    def compare(self, beside: Sequence[AnyOpponent]) -> None:
        """Journals the comparisons of finalists and these opponents that the journal lacks."""
        context, wanted = self.context, list[tuple[Workload, list[events.Winner]]]()
        known, opponents = context.log.comparisons(self.stage), {opponent.name for opponent in beside}
        for workload in (*context.tuned, *context.held_out):
            entrants = _distinct([*self.general, *self.per_shape.get(workload.name, [])])
            event = known.get(workload.name)
            if event is not None and opponents <= {opponent.name for opponent in event.opponents}:
                met = {entry.key for entry in event.entries}
                entrants = [entrant for entrant in entrants if entrant.key not in met]
            if entrants:
                wanted.append((workload, entrants))
        for position, (workload, entrants) in enumerate(wanted):
            # A verdict needs the tuned workloads, so held-out ones come last.
            if workload.held_out and context.comparison_seconds_left() <= 0:
                if left := ", ".join(later.name for later, _ in wanted[position:] if later.name not in known):
                    sentence = f"The time limit left no time for the held-out workloads {left}."
                    context.note("test", sentence, self.stage)
                break
            context.listener(Progress("test", f"{len(entrants)} finalists against the baseline on {workload.name}"))
            # Half of the time for this comparison goes into samples.
            share = max(0.0, context.comparison_seconds_left()) / (len(wanted) - position)
            each = share / (2 * (1 + len(entrants) + len(beside)))
            found = context.pool.compare(
                baseline_request(context, [workload]),
                requests_for(context, entrants, [workload.name]),
                workload.name,
                seed=context.settings.seed + self.number * FRESH_SEED,
                rounds=ROUNDS,
                budget_seconds=min(SECONDS, max(MIN_SAMPLING_SECONDS, each)),
                opponents=beside,
            )
            event = events.Compared(
                workload=workload.name,
                entries=finalist_results(entrants, found),
                baseline_code=found.codes[0] if found.codes else "",
                compiler=found.compiler,
                opponents=found.opponents,
                baseline_energy=found.energies[0] if found.energies else None,
            )
            context.journal.append(event, self.stage)

    def _replacements(self) -> list[events.Winner]:
        """The next configurations after all finalists were rejected: variations of the fastest of them, and the
        templates' defaults, if right, measured now; else the next best configurations without a known defect."""
        context = self.context
        rejected = {kernel.template for kernel in context.log.examinations().values() if kernel.verdict == "rejected"}
        common, wanted, fastest = defects(context.log), list[events.Winner](), dict[str, events.Winner]()
        for tried in self.general:
            fastest.setdefault(tried.template, tried)
        for name, tried in fastest.items():
            if name in rejected:
                template, defect = context.template(name), common.get(name, {})
                changed = [one for one in variations(template, tried.config, defect) if not has(one, defect)]
                wanted += [events.Winner(template=name, config=one) for one in (*changed, template.default_config)]
        known, everywhere = {one.key for one in self.general}, (*context.tuned, *context.held_out)
        wanted = [one for one in _distinct(wanted) if one.key not in known and not broken(context, one, everywhere)]
        found = {(one.template, config_key(one.config)): one for one in context.log.evaluations()}
        requests = requests_for(context, [one for one in wanted if one.key not in found], context.tuned_names)
        if requests:
            context.listener(Progress("test", f"measuring {len(requests)} configurations in place of rejected ones"))
        for made in measured(context, requests, self.stage + REPAIR):
            found[made.template, config_key(made.config)] = made
        out = disqualified(context)
        return [one for one in wanted if found[one.key].failure is None] or [
            one for one in finalists(context, self.stage, after=self.general)[0] if (*one.key, "") not in out
        ]


def requests_for(context: Context, entrants: Sequence[events.Winner], names: Sequence[str]) -> list[EvaluationRequest]:
    """Finalists as requests for the pool on the workloads of these names, numbered from 1."""
    pairs = [(context.template(one.template), one.config) for one in entrants]
    return [EvaluationRequest(number, *pair, tuple(names)) for number, pair in enumerate(pairs, 1)]


def finalist_results(entrants: Sequence[events.Winner], found: WorkloadComparison) -> tuple[events.FinalistResult, ...]:
    """The comparisons of finalists, in their order."""
    codes = found.codes[1:] or ("",) * len(entrants)
    energies = found.energies[1:] or (None,) * len(entrants)
    return tuple(
        events.FinalistResult(template=one.template, config=one.config, comparison=result, code=code, energy=energy)
        if isinstance(result, Comparison)
        else events.FinalistResult(template=one.template, config=one.config, failure=result, code=code)
        for one, result, code, energy in zip(entrants, found.results, codes, energies, strict=True)
    )


def finalists(
    context: Context, stage: str, after: Sequence[events.Winner] = ()
) -> tuple[list[events.Winner], dict[str, list[events.Winner]]]:
    """The best configurations in general (at most `settings.finalists`), and the best for each tuned workload, without
    configurations found wrong before the test of this round began.

    after: former finalists; the next best in general then, of templates without a finalist first. A configuration that
    a constraint or a limit excludes on a held-out workload may be the best for a shape, but not for all.
    """
    baseline, vetoed = baseline_quantities(context), context.log.vetoed()
    # A test that was interrupted goes on with the finalists that it began with.
    began = context.log.entries(events.Compared, stage)
    wrong = (RunLog(context.journal, began[0].sequence) if began else context.log).rejected()
    names, weights, of = context.tuned_names, context.task.weights, context.settings.objective
    had, templates = {one.key for one in after}, {one.template for one in after}
    right = [
        (events.Winner(template=one.template, config=one.config), one)
        for one in context.log.evaluations()
        if one.failure is None and one.template not in vetoed and (one.template, config_key(one.config)) not in wrong
    ]

    def in_order(workloads: Sequence[str], last: Collection[str] = ()) -> list[events.Winner]:
        """The best first, each once, as several rounds may have measured it; `last` those of these templates."""
        values = ((objective(one, workloads, baseline, weights, of), entrant) for entrant, one in right)
        ranked = [(entrant.template in last, value, entrant) for value, entrant in values if value is not None]
        return _distinct(entrant for *_, entrant in sorted(ranked, key=lambda one: one[:2]))

    ranked = in_order(names, templates)
    serving = (one for one in ranked if one.key not in had and not broken(context, one, context.held_out))
    general = list(islice(serving, context.settings.finalists))
    if ranked and not general and not after:
        reason = broken(context, ranked[0], context.held_out)
        sentence = (
            "No configuration that is right on all tuned workloads is also feasible on the held-out workloads, so "
            f"no general one was found. The best one: {reason} Relax the constraint, or measure more configurations."
        )
        context.note("test", sentence, "")
    return general, {name: in_order([name])[:FINALISTS_PER_SHAPE] for name in names}


def broken(context: Context, one: events.Winner, workloads: Sequence[Workload]) -> str:
    """The rule that a configuration breaks on one of `workloads`, here or on the target; empty if none."""
    return broken_rule(context, context.template(one.template), one.config, workloads)


def _distinct(entrants: Iterable[events.Winner]) -> list[events.Winner]:
    return list({entrant.key: entrant for entrant in entrants}.values())


def disqualified(context: Context, attempted: Collection[VerifiedKernel] = ()) -> dict[VerifiedKernel, str]:
    """The finalists that may not win, and why: rejected, or with the common defect of rejected ones; unless the
    settings allow it, also with lines that never ran, or with an examination `attempted` in vain."""
    settings, found = context.settings, dict[VerifiedKernel, str]()
    known = context.log.examinations()
    for key, kernel in known.items():
        if kernel.verdict == "rejected":
            found[key] = kernel.detail
        elif kernel.verdict == "not examined" and key in attempted and not settings.allow_unexamined:
            found[key[0], key[1], kernel.workload or FOR_ALL] = f"{NOT_EXAMINED}: {kernel.detail}"
        elif kernel.unreached and not settings.allow_unexecuted:
            found[key] = f"some of its lines ran in no check: {'; '.join(kernel.unexecuted)}"
    for template, defect in defects(context.log).items():
        for config in (entry.event.evaluation.config for entry in context.log.evaluations_of(template)):
            key = template, config_key(config), ""
            if key not in known and has(config, defect):
                found[key] = f"it shares {assignments(defect)} with all rejected configurations of its template"
    return found


def _winners(verdict: events.Verdict) -> dict[VerifiedKernel, events.Winner]:
    """The general configuration, for all workloads, and other kernels for single ones."""
    general = {} if verdict.general is None else {(*verdict.general.key, ""): verdict.general}
    return general | {(*row.key, row.workload): row for row in verdict.special}


def account(context: Context, verdict: events.Verdict) -> list[events.ExaminationRow]:
    """The examinations of the winners of `verdict`, as the summary shows them."""
    known, winners = context.log.examinations(), _winners(verdict)
    # Kernels that a dispatch rule may use were examined on everything as well.
    keys = dict.fromkeys([*winners, *((template, config, "") for template, config, _ in winners)])
    shared = set(events.ExaminationRow.model_fields) & set(events.Examined.model_fields)
    rows = []
    for kernel in [known[key] for key in keys if key in known]:
        passed = [step for step in kernel.steps if isinstance(step, Passed)]
        own = [step for step in passed if step.own]
        rows.append(
            events.ExaminationRow(
                **kernel.model_dump(include=shared),
                checks=len(passed),
                skipped=tuple(f"{step.step}: {step.why}" for step in kernel.steps if isinstance(step, Skipped)),
                largest_error=max((d.largest for step in own for d in step.accuracy.values()), default=None),
                baseline_error=max((d.largest for step in own for d in step.baseline.values()), default=None),
            )
        )
    return rows


def _done(context: Context, number: int, verdict: events.Verdict | None) -> Done:
    """Why the run ends with this round; empty where another follows."""
    settings, stage = context.settings, stage_of(number)
    if number >= settings.rounds:
        searched, plan = context.log.last(events.Searched, stage), context.log.plan(stage)
        # With a model, a further round might have brought another template.
        if context.models is not None or searched is None or plan is None or searched.asked >= plan.evaluations:
            return "rounds"
        # Its time or its space ended the last round's search, where it did not spend all its evaluations.
        return "exhausted" if searched.exhausted else "time" if settings.time_limit is not None else "rounds"
    # The rest may be only enough for a comparison, without anything new to compare.
    if context.search_seconds_left() <= 0:
        return "time"
    if context.evaluations_left() <= 0:
        return "evaluations"
    if verdict and settings.objective == "time":
        shares = [row.share_of_floor or 0.0 for row in verdict.tuned]
        if all(MIN_FLOOR_SHARE <= share <= MAX_ROOFLINE_SHARE for share in shares):
            return "floor"
        # A round without a new template costs no call.
        wrote = number > 1 and any(context.log.events(events.TemplateAdded, stage))
        little = wrote and context.models is not None and context.log.gain(number) < settings.least_gain
        # Rules have the constants of a kernel that was rewritten searched first.
        ahead = options_of(context.tree(), narrow=True) if little and settings.planner == "rules" else ()
        if little and all(one.kind != "expose" for one in ahead):
            return "little gain"
    # A model may come up with another template where rules have nothing left to search.
    if number > 1 and context.models is None and _exhausted(context, number):
        return "exhausted"
    # Without a search a run cannot go on when no model will answer. After an answer that cannot be used, or after a
    # failure of the server, the next round asks again.
    hopeless = any(note.failure in HOPELESS for note in context.log.events(events.Noted, stage))
    return "no model" if hopeless and not searches(settings) else ""


def _exhausted(context: Context, number: int) -> bool:
    """Whether the search that rules would plan next has been made, and left nothing out."""
    ahead = plan_by_rules(context, number + 1, context.tree())
    if ahead is None:
        return True
    wanted = {branch.parent for branch in ahead.branches}
    for plan in context.log.plans:
        searched = context.log.last(events.Searched, stage_of(plan.round))
        if plan.workloads == ahead.workloads and searched is not None:
            wanted -= {search.template for search in searched.templates if search.exhausted}
    return not wanted
