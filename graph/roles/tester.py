"""The tester: the best configurations of a round against the baseline, the verdict, and the examination of the winners.

Finalists are measured in a fresh process, on fresh contents and held-out shapes. A search checks every configuration,
but on the tuned workloads and the task's own contents only; winners must also be right on odd shapes and other
contents, be as accurate as the baseline, and pass compute-sanitizer where there is one: the full verdict of
`tunesmith check`.
The arithmetic of the verdict belongs to `verdict`, the common values of rejected configurations to `rejections`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from tunesmith.actors.judging import judge
from tunesmith.graph.context import Context, baseline_quantities, baseline_request
from tunesmith.graph.journal.events import Compared, Evaluated, Examined, VerdictReached
from tunesmith.graph.journal.log import VerifiedKernel, objective, quantities_of, repair_stage, stage_of
from tunesmith.graph.journal.records import ExaminationRow, FinalistResult, Verdict, Verification, Winner
from tunesmith.graph.models.calls import HOPELESS
from tunesmith.graph.progress import Progress
from tunesmith.graph.roles import Finished
from tunesmith.graph.roles.planner import plan_by_rules
from tunesmith.graph.roles.rejections import NOT_EXAMINED, defects, has, variations
from tunesmith.graph.roles.verdict import FOR_ALL, build_verdict, least_seconds
from tunesmith.graph.state import Done, State
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.roofline import MAX_ROOFLINE_SHARE
from tunesmith.kernels.build.artifact import EvaluationRequest
from tunesmith.kernels.check.verify import Passed, Skipped
from tunesmith.kernels.measure.bench import WorkloadComparison
from tunesmith.kernels.measure.timing import Comparison
from tunesmith.kernels.outcome import TimedOut, describe
from tunesmith.kernels.space import SpaceRule, feasible, rules
from tunesmith.kernels.spec.expression import ExpressionError
from tunesmith.kernels.spec.task import AnyOpponent, Workload
from tunesmith.kernels.spec.template import Config, assignments, config_key

MIN_EXAMINATION_SECONDS = 2.0
"""Seconds of the time limit that must be left for an examination to begin."""
NO_TIME = (
    "the time limit left no time to examine it on odd sizes and other contents; `tunesmith check` does, and so does "
    "`tunesmith resume` with more time"
)


def disqualified(context: Context, given_up: Collection[VerifiedKernel] = ()) -> dict[VerifiedKernel, str]:
    """The finalists that may not win, and why: rejected by examinations of this run, with the common defect of rejected
    ones, or, unless the settings allow it, with lines that never ran. given_up: kernels that could not be examined in
    this session, which count unless the settings allow it (for all workloads together: `FOR_ALL`)."""
    settings, found = context.settings, dict[VerifiedKernel, str]()
    known = context.log.examinations()
    for key, one in known.items():
        if one.verdict == "rejected":
            found[key] = one.detail
        elif one.verdict == "not examined" and key in given_up and not settings.allow_unexamined:
            found[key[0], key[1], one.workload or FOR_ALL] = f"{NOT_EXAMINED}: {one.detail}"
        elif one.unreached and not settings.allow_unexecuted:
            found[key] = f"some of its lines ran in no check: {'; '.join(one.unexecuted)}"
    for template, defect in defects(context.log).items():
        for evaluation in (entry.event.evaluation for entry in context.log.evaluations_of(template)):
            key = (template, config_key(evaluation.config), "")
            if key not in known and has(evaluation.config, defect):
                found[key] = f"it shares {assignments(defect)} with all rejected configurations of its template"
    return found


def examine_winners(
    context: Context, build: Callable[[Mapping[VerifiedKernel, str]], Verdict], given_up: set[VerifiedKernel]
) -> Verdict:
    """The verdict of `build` on the disqualified kernels, once all its winners are examined: the general configuration
    on everything, the others on the workload they won. Where one is rejected, or cannot be examined, the next best is a
    winner and is examined in turn. given_up: receives the kernels that could not be examined."""
    while True:
        verdict = build(disqualified(context, given_up))
        known = context.log.examinations()
        # An earlier session of the run may have had no time for one.
        waiting = [
            one
            for one in _winners(verdict)
            if (key := _key(*one)) not in given_up and (key not in known or known[key].verdict == "not examined")
        ]
        if not waiting:
            return verdict
        _examine(context, waiting)
        known = context.log.examinations()
        given_up |= {key for one in waiting if known[key := _key(*one)].verdict == "not examined"}


def examine_everywhere(context: Context, kernels: Sequence[Winner]) -> None:
    """Examines on everything the kernels that were examined for single workloads alone: a dispatch rule uses them for
    further shapes. A kernel that is rejected then is `disqualified` for all workloads."""
    known = context.log.examinations()
    wanted = [(one.template, one.config, "") for one in kernels]
    waiting = [one for one in wanted if (was := known.get(_key(*one))) is None or was.verdict == "not examined"]
    if waiting:
        _examine(context, waiting)


def _examine(context: Context, waiting: Sequence[tuple[str, Config, str]]) -> None:
    """The full verdict on templates at configurations, each for a workload or, with an empty name, for all."""
    context.listener(Progress("test", f"examining {len(waiting)} winning configuration(s)"))
    jobs = [(context.template(template), config, workload or None) for template, config, workload in waiting]
    settings, left, begun = context.settings, context.seconds_left(), time.monotonic()
    results: list[dict[str, Any]] = []
    failure = NO_TIME
    if left >= MIN_EXAMINATION_SECONDS:
        deadlines = judge.Limits(prepare=settings.reference_deadline, check=settings.check_time)
        try:
            found = context.pool.examine(jobs, seed=settings.seed + judge.SEED, seconds=left, deadlines=deadlines)
            if isinstance(found, list):
                results = [_fields(one) for one in found]
                for note in dict.fromkeys(one.baseline_note for one in found if one.baseline_note):
                    context.note("test", note, "")
            elif not isinstance(found, TimedOut) or context.seconds_left() >= MIN_EXAMINATION_SECONDS:
                failure = describe(found)
        except TunesmithError as error:
            # The task is at fault: its baseline is wrong somewhere. That is worth knowing, and no reason to end here.
            failure = str(error)
    share = round((time.monotonic() - begun) / len(waiting), 3)
    results = results or [{"verdict": "not examined", "detail": failure}] * len(waiting)
    for (template, config, workload), fields in zip(waiting, results, strict=True):
        about: dict[str, Any] = {"template": template, "config": config, "workload": workload, "seconds": share}
        context.journal.append(Examined(examination=Verification(**about, **fields)))


def account(context: Context, verdict: Verdict) -> list[ExaminationRow]:
    """The examinations of the winners of `verdict`, as the summary shows them."""
    known = context.log.examinations()
    winners = _winners(verdict)
    # Kernels that a dispatch rule may use were examined on everything as well.
    keys = dict.fromkeys(_key(*one) for one in [*winners, *((template, config, "") for template, config, _ in winners)])
    shared = set(ExaminationRow.model_fields) & set(Verification.model_fields)
    rows = []
    for one in [known[key] for key in keys if key in known]:
        passed = [step for step in one.steps if isinstance(step, Passed)]
        own = [step for step in passed if step.own]
        rows.append(
            ExaminationRow(
                **one.model_dump(include=shared),
                checks=len(passed),
                skipped=tuple(f"{step.step}: {step.why}" for step in one.steps if isinstance(step, Skipped)),
                largest_error=max((d.largest for step in own for d in step.accuracy.values()), default=None),
                baseline_error=max((d.largest for step in own for d in step.baseline.values()), default=None),
            )
        )
    return rows


def _winners(verdict: Verdict) -> list[tuple[str, Config, str]]:
    """The general configuration, and other kernels for single workloads: template, configuration, and the workload,
    empty for all."""
    general = verdict.general
    used = [(row.template, row.config, row.workload) for row in verdict.dispatch]
    if general is None:
        return used
    key = _key(general.template, general.config, "")
    return [(general.template, general.config, ""), *(one for one in used if _key(one[0], one[1], "") != key)]


def _key(template: str, config: Config, workload: str) -> VerifiedKernel:
    return template, config_key(config), workload


def _fields(found: judge.CandidateVerdict) -> dict[str, Any]:
    fields = {name: getattr(found, name) for name in ("verdict", "reason", "detail", "steps", "notes", "artifacts")}
    unreached = any(one.lines for one in found.unexecuted)
    return fields | {"unexecuted": tuple(map(str, found.unexecuted)), "unreached": unreached}


FINALISTS_PER_SHAPE = 2
"""Finalists of one workload, beside the general ones."""
ROUNDS, SECONDS = 40, 0.5
"""At most so many rounds, and seconds of sampling for each kernel, in a comparison on one workload."""
MIN_SAMPLING_SECONDS = 0.1
"""Seconds of sampling for each kernel where the time limit leaves no more."""
MIN_FLOOR_SHARE = 0.95
"""Share of the roofline from which on the search ends."""
FRESH_SEED = 1_000_003
"""Added to the seed for each test, so that finalists meet contents that the search never saw."""

Finalist = tuple[str, Config]
"""Template id and configuration."""


class Tester:
    name = "test"

    def __call__(self, state: State, context: Context) -> State | Finished:
        number = state["round"]
        stage = stage_of(number)
        general, per_shape = finalists(context, stage)
        if not general and not any(per_shape.values()):
            nothing_left = context.models is None and not context.tree().untried
            return {"done": _done(context, number, None) or ("nothing valid" if nothing_left else "")}
        if _nothing_new(context, stage) and not _done(context, number, None):
            return {"done": ""}
        # Opponents cost time, and only what the run ends with is put beside them.
        beside = context.opponents if _done(context, number, None) else ()
        comparisons = self._compared(context, number, general, per_shape, beside)
        verdict = build_verdict(context, comparisons, general, disqualified(context))
        if context.drop_beaten_roofs("a finalist", least_seconds(verdict)):
            verdict = build_verdict(context, comparisons, general, disqualified(context))
        done = _done(context, number, verdict)
        if done and len(beside) < len(context.opponents) and context.seconds_left() > 0:
            # That it is the last could not be known before, as where the limit of the device is reached.
            comparisons = self._compared(context, number, general, per_shape, context.opponents)
        if done:
            # What the run ends with is what gets exported: only that is worth an examination.
            verdict = self._examined(context, number, general, per_shape, comparisons)
        context.listener(Progress("test", f"round {number}: {verdict.sentence}", best=verdict.ratio))
        return Finished({"done": done}, VerdictReached(verdict=verdict))

    def _examined(
        self,
        context: Context,
        number: int,
        general: list[Finalist],
        per_shape: dict[str, list[Finalist]],
        comparisons: list[Compared],
    ) -> Verdict:
        """The verdict whose winners are all examined. As long as none serves all workloads and time is left, other
        configurations are compared in place of the rejected ones: these with one value changed, the templates'
        defaults, and the next best measured ones."""
        stage, given_up = stage_of(number), set[tuple[str, str, str]]()
        while True:
            build = partial(build_verdict, context, comparisons, general)
            verdict = examine_winners(context, build, given_up)
            if verdict.general is not None or context.seconds_left() <= 0:
                return with_examination(context, verdict)
            more = replacements(context, stage, general)
            if not more:
                return verdict
            general = [*general, *more]
            comparisons = self._compared(context, number, general, per_shape, context.opponents)

    def _compared(
        self,
        context: Context,
        number: int,
        general: list[Finalist],
        per_shape: dict[str, list[Finalist]],
        beside: Sequence[AnyOpponent],
    ) -> list[Compared]:
        """The finalists on every workload, `beside` these opponents; without comparisons that the journal has."""
        stage = stage_of(number)
        known, opponents = context.log.comparisons(stage), {one.name for one in beside}
        wanted: list[tuple[Workload, list[Finalist]]] = []
        for workload in (*context.tuned, *context.held_out):
            entrants = _distinct([*general, *per_shape.get(workload.name, [])])
            event = known.get(workload.name)
            if event is not None and opponents <= {one.name for one in event.opponents}:
                met = {(one.template, config_key(one.config)) for one in event.entries}
                entrants = [one for one in entrants if _kernel(one) not in met]
            if entrants:
                wanted.append((workload, entrants))
        for position, (workload, entrants) in enumerate(wanted):
            # A verdict needs the tuned workloads; the held-out ones come after all of them.
            if workload.held_out and context.seconds_left() <= 0:
                if left := ", ".join(one.name for one, _ in wanted[position:] if one.name not in known):
                    context.note("test", f"The time limit left no time for the held-out workloads {left}.", stage)
                break
            share = max(0.0, context.seconds_left()) / (len(wanted) - position)
            self._compare(context, workload, entrants, number, share, beside)
        return list(context.log.comparisons(stage).values())

    def _compare(
        self,
        context: Context,
        workload: Workload,
        entrants: list[Finalist],
        number: int,
        share: float,
        beside: Sequence[AnyOpponent],
    ) -> None:
        """share: seconds of the time limit that are left to this comparison."""
        context.listener(Progress("test", f"{len(entrants)} finalists against the baseline on {workload.name}"))
        requests = requests_for(context, entrants, workload)
        found = context.pool.compare(
            baseline_request(context, [workload]),
            requests,
            workload.name,
            seed=context.settings.seed + number * FRESH_SEED,
            rounds=ROUNDS,
            budget_seconds=min(SECONDS, max(MIN_SAMPLING_SECONDS, share / (2 * (1 + len(entrants) + len(beside))))),
            opponents=beside,
        )
        event = Compared(
            workload=workload.name,
            entries=finalist_results(entrants, found),
            baseline_code=found.codes[0] if found.codes else "",
            compiler=found.compiler,
            opponents=found.opponents,
            baseline_energy=found.energies[0] if found.energies else None,
        )
        context.journal.append(event, stage_of(number))


def finalists(
    context: Context, stage: str, after: Sequence[Finalist] = ()
) -> tuple[list[Finalist], dict[str, list[Finalist]]]:
    """The best configurations in general (at most `settings.finalists`), and the best for each tuned workload, without
    those found wrong before the test of this round began.

    after: former finalists; the next best in general then, of templates without a finalist first. A configuration that
    a constraint or a limit excludes on a held-out workload does not serve that shape, however fast it is elsewhere: it
    may be the best for a shape, but not for all.
    """
    baseline, vetoed = baseline_quantities(context), context.log.vetoed()
    # A test that was interrupted goes on with the finalists that it began with.
    began = context.log.entries(Compared, stage)
    wrong = context.log.rejected(before=began[0].sequence if began else None)
    names, weights, of = context.tuned_names, context.weights, context.settings.objective
    had, templates = {_kernel(one) for one in after}, {template for template, _ in after}
    ranked: list[tuple[bool, float, Finalist]] = []
    single: dict[str, list[tuple[float, Finalist]]] = {name: [] for name in names}
    for evaluation in context.log.evaluations():
        entrant = (evaluation.template, evaluation.config)
        if evaluation.template in vetoed or _kernel(entrant) in wrong:
            continue
        if (value := objective(evaluation, names, baseline, weights, of)) is not None:
            ranked.append((evaluation.template in templates, value, entrant))
        for name, quantity in quantities_of(evaluation, of).items():
            if name in single and evaluation.failure is None:
                single[name].append((quantity, entrant))
    broken = _broken_on_held_out(context)
    # What several rounds measured, such as one workload's own and one of all, takes one place.
    in_order = _distinct([entrant for _, _, entrant in sorted(ranked, key=lambda item: item[:2])])
    feasible_everywhere = (one for one in in_order if _kernel(one) not in had and not broken(one))
    general = list(islice(feasible_everywhere, context.settings.finalists))
    if ranked and not general and not after:
        context.note(
            "test",
            "Of the configurations that are right on all tuned workloads none is feasible on the held-out ones too, so "
            f"there is no general one. Of the best: {broken(in_order[0])} Relax the constraint, or measure more "
            "configurations.",
            "",
        )
    per_shape = {
        name: _distinct([entrant for _, entrant in sorted(found, key=lambda item: item[0])])[:FINALISTS_PER_SHAPE]
        for name, found in single.items()
    }
    return general, per_shape


def with_examination(context: Context, verdict: Verdict) -> Verdict:
    """`verdict`, whose sentence says where the general configuration was examined on few sizes, or not at all, which
    the settings allow."""
    if verdict.general is None:
        return verdict
    known = context.log.examinations().get(_key(verdict.general.template, verdict.general.config, ""))
    if known is None or known.verdict == "not examined":
        said = "The general configuration was not examined."
    elif known.verdict == "partial":
        said = f"It is right where it can be launched, but {known.detail}; best/ has the baseline for other shapes."
    else:
        return verdict
    return verdict.model_copy(update={"sentence": f"{verdict.sentence} {said}"})


def replacements(context: Context, stage: str, tried: Sequence[Finalist]) -> list[Finalist]:
    """The next configurations after all of `tried` were rejected: the fastest rejected of each template with one value
    changed, and the templates' defaults, measured now where they were not; else the next best measured ones without a
    known defect."""
    known = {_kernel(one) for one in tried}
    rejected = [one for one in context.log.examinations().values() if one.verdict == "rejected"]
    common = defects(context.log)
    fastest = dict(reversed([one for one in tried if one[0] in {each.template for each in rejected}]))
    wanted: list[Finalist] = []
    for template_id, config in fastest.items():
        template, defect = context.template(template_id), common.get(template_id, {})
        wanted += [(template_id, one) for one in variations(template, config, defect) if not has(one, defect)]
        wanted.append((template_id, template.default_config))
    wanted = [one for one in _distinct(wanted) if _kernel(one) not in known]
    valid = measured_now(context, stage, wanted)
    if valid:
        return valid
    out = disqualified(context)
    following, _ = finalists(context, stage, after=tried)
    return [one for one in following if (*_kernel(one), "") not in out]


def measured_now(context: Context, stage: str, wanted: Sequence[Finalist]) -> list[Finalist]:
    """Those of `wanted` that are feasible and right on all tuned workloads; none is measured twice."""
    names = tuple(context.tuned_names)
    found = {(one.template, config_key(one.config)): one for one in context.log.evaluations()}
    requests = []
    for number, (template_id, config) in enumerate(wanted):
        template = context.template(template_id)
        feasible_here = all(feasible(template, context.tuned, one).reject(config) is None for one in context.limits)
        if _kernel((template_id, config)) not in found and feasible_here:
            requests.append(EvaluationRequest(number, template, config, names))
    if requests:
        context.listener(Progress("test", f"measuring {len(requests)} configurations in place of rejected ones"))
        context.pool.roofline = context.roofline()
        for request, evaluation in zip(requests, context.pool.evaluate(requests), strict=True):
            event = Evaluated(number=request.number, key=config_key(evaluation.config), evaluation=evaluation)
            context.journal.append(event, repair_stage(stage))
            found[evaluation.template, config_key(evaluation.config)] = evaluation
    broken = _broken_on_held_out(context)
    right = {key for key, one in found.items() if one.failure is None}
    return [one for one in wanted if _kernel(one) in right and not broken(one)]


def _broken_on_held_out(context: Context) -> Callable[[Finalist], str]:
    """Gives the rule that a finalist breaks on a held-out workload, here or on the target; empty if none."""
    found: dict[str, list[SpaceRule]] = {}

    def broken(entrant: Finalist) -> str:
        template_id, config = entrant
        if template_id not in found:
            template = context.template(template_id)
            found[template_id] = [r for limits in context.limits for r in rules(template, context.held_out, limits)]
        try:
            return next((rule.explain(config) for rule in found[template_id] if not rule.holds(config)), "")
        except ExpressionError as error:
            return str(error)

    return broken


def _kernel(finalist: Finalist) -> tuple[str, str]:
    """What tells finalists apart: template id, and configuration as text."""
    return finalist[0], config_key(finalist[1])


def _distinct(entrants: Sequence[Finalist]) -> list[Finalist]:
    return list({_kernel(one): one for one in entrants}.values())


def requests_for(context: Context, entrants: Sequence[Finalist], workload: Workload) -> list[EvaluationRequest]:
    """Finalists as requests for the pool, numbered from 1."""
    return [
        EvaluationRequest(number, context.template(template), config, (workload.name,))
        for number, (template, config) in enumerate(entrants, 1)
    ]


def finalist_results(entrants: Sequence[Finalist], found: WorkloadComparison) -> tuple[FinalistResult, ...]:
    """The comparisons of finalists, in their order."""
    codes = found.codes[1:] or ("",) * len(entrants)
    energies = found.energies[1:] or (None,) * len(entrants)
    return tuple(
        FinalistResult(template=template, config=config, comparison=result, code=code, energy=energy)
        if isinstance(result, Comparison)
        else FinalistResult(template=template, config=config, failure=result, code=code)
        for (template, config), result, code, energy in zip(entrants, found.results, codes, energies, strict=True)
    )


def _done(context: Context, number: int, verdict: Verdict | None) -> Done:
    if number >= context.settings.rounds:
        return _last_search_ended_by(context, number)
    # What is left may only do for a comparison: a further round would have nothing to compare.
    if context.search_seconds_left() <= 0:
        return "time"
    if context.evaluations_left() <= 0:
        return "evaluations"
    by_time = context.settings.objective == "time"
    if (
        by_time
        and verdict
        and all(MIN_FLOOR_SHARE <= (row.share_of_floor or 0.0) <= MAX_ROOFLINE_SHARE for row in verdict.tuned)
    ):
        return "floor"
    # A model may come up with another template where rules have nothing left to search.
    if number > 1 and context.models is None and _exhausted(context, number):
        return "exhausted"
    return "no model" if model_gave_up(context, number) else ""


def _last_search_ended_by(context: Context, number: int) -> Done:
    """The reason for the end of the last round's search: its time or its space, where it did not spend all its
    evaluations."""
    stage = stage_of(number)
    searched, plan = context.log.searched(stage), context.log.plan(stage)
    # With a model, a further round might have brought another template.
    if context.models is not None or searched is None or plan is None or searched.asked >= plan.evaluations:
        return "rounds"
    if searched.exhausted:
        return "exhausted"
    return "rounds" if context.settings.time_limit is None else "time"


def _nothing_new(context: Context, stage: str) -> bool:
    """Whether all configurations of a round's search had been measured already, so that an earlier verdict holds."""
    searched = context.log.searched(stage)
    return context.models is None and searched is not None and searched.asked == 0 and context.log.verdict() is not None


def _exhausted(context: Context, number: int) -> bool:
    """Whether the search that rules would plan next has been made, and left nothing out."""
    ahead = plan_by_rules(context, number + 1, context.tree())
    if ahead is None:
        return True
    wanted = {branch.parent for branch in ahead.branches}
    for plan in context.log.plans:
        searched = context.log.searched(stage_of(plan.round))
        if plan.workloads == ahead.workloads and searched is not None:
            wanted -= {one.template for one in searched.templates if one.exhausted}
    return not wanted


def model_gave_up(context: Context, number: int) -> bool:
    """Whether a round of an arm without a search showed that no model will answer, so that the run cannot go on. After
    an answer that cannot be used, or a server that fails, the next round asks again, as in the other arms."""
    notes = [note for note in context.log.notes(stage_of(number)) if note.role in ("plan", "rewrite")]
    return context.settings.arm in ("template", "rewrite") and any(note.failure in HOPELESS for note in notes)
