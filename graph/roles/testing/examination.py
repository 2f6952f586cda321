"""The last word on what a run ends with: the same full verdict that `tunesmith check` gives, in the run's own journal.

A search checks every configuration, but on the tuned workloads and the task's own contents only. Winners must also be
right on odd shapes and other contents, be as accurate as the baseline, and pass compute-sanitizer where there is one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from tunesmith.actors.judging import judge
from tunesmith.graph.context import Context
from tunesmith.graph.journal.events import Examined
from tunesmith.graph.journal.log import Examinee
from tunesmith.graph.journal.records import Examination, ExaminationRow, Verdict, Winner
from tunesmith.graph.progress import Progress
from tunesmith.graph.roles.rejections import NOT_EXAMINED, defects, has
from tunesmith.graph.roles.testing.verdict import FOR_ALL
from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.check.check import Deviation
from tunesmith.kernels.check.verify import Passed, Skipped
from tunesmith.kernels.outcome import Failure, TimedOut, describe
from tunesmith.kernels.spec.parameter import Config, assignments, config_key

MIN_EXAMINATION_SECONDS = 2.0
"""Of the time limit, without which no examination is begun."""
NO_TIME = (
    "the time limit left no time to examine it on odd sizes and other contents; `tunesmith check` does, and so does "
    "`tunesmith resume` with more time"
)


def disqualified(context: Context, given_up: Collection[Examinee] = ()) -> dict[Examinee, str]:
    """Which finalists may not win, and why: what examinations of this run rejected, what shares the common defect of
    rejected ones, and, unless the settings allow it, what has lines that never ran. given_up: what could not be
    examined in this session, which counts unless the settings allow it (for all workloads together: `FOR_ALL`)."""
    settings, found = context.settings, dict[Examinee, str]()
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
    context: Context, build: Callable[[Mapping[Examinee, str]], Verdict], given_up: set[Examinee]
) -> Verdict:
    """The verdict that `build` makes of what is disqualified, once all its winners are examined: the general
    configuration on everything, the others on the workload they won. Where one is rejected, or cannot be examined, the
    next best is a winner and is examined in turn. given_up: what could not be examined, to which this adds."""
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
    """Examines, on everything, those of `kernels` that were examined for single workloads alone: a dispatch rule uses
    them for shapes that nobody looked at. What is rejected then is `disqualified` for all workloads."""
    known = context.log.examinations()
    wanted = [(one.template, one.config, "") for one in kernels]
    waiting = [one for one in wanted if (was := known.get(_key(*one))) is None or was.verdict == "not examined"]
    if waiting:
        _examine(context, waiting)


def _examine(context: Context, waiting: Sequence[tuple[str, Config, str]]) -> None:
    """The full verdict on templates at configurations, each for a workload or, with an empty name, for all."""
    context.listener(Progress("test", f"examining {len(waiting)} winning configuration(s)"))
    jobs = [(context.template(template), config, workload or None) for template, config, workload in waiting]
    left, begun = context.seconds_left(), time.monotonic()
    found: list[judge.Verdict] | Failure
    try:
        if left < MIN_EXAMINATION_SECONDS:
            found, failure = [], NO_TIME
        else:
            settings = context.settings
            deadlines = judge.Limits(prepare=settings.reference_deadline, check=settings.check_time)
            found = context.pool.examine(jobs, seed=settings.seed + judge.SEED, seconds=left, deadlines=deadlines)
            failure = "" if isinstance(found, list) else describe(found)
            for one in found if isinstance(found, list) else ():
                if one.baseline_note:
                    context.note("test", one.baseline_note, "")
            if isinstance(found, TimedOut) and context.seconds_left() < MIN_EXAMINATION_SECONDS:
                failure = NO_TIME
    except TunesmithError as error:
        # The task is at fault: its baseline is wrong somewhere. That is worth knowing, and no reason to end here.
        found, failure = [], str(error)
    share = round((time.monotonic() - begun) / len(waiting), 3)
    for at, (template, config, workload) in enumerate(waiting):
        about: dict[str, Any] = {"template": template, "config": config, "workload": workload, "seconds": share}
        told = (
            _fields(found[at]) if isinstance(found, list) and found else {"verdict": "not examined", "detail": failure}
        )
        context.journal.append(Examined(examination=Examination(**about, **told)))


def account(context: Context, verdict: Verdict) -> list[ExaminationRow]:
    """The examinations of the winners of `verdict`, as the summary shows them."""
    known = context.log.examinations()
    winners = _winners(verdict)
    # Those that a dispatch rule may use were examined on everything as well.
    keys = dict.fromkeys(_key(*one) for one in [*winners, *((template, config, "") for template, config, _ in winners)])
    found = [known[key] for key in keys if key in known]
    rows = []
    for one in found:
        passed = [step for step in one.steps if isinstance(step, Passed)]
        rows.append(
            ExaminationRow(
                template=one.template,
                config=one.config,
                workload=one.workload,
                verdict=one.verdict,
                detail=one.detail,
                checks=len(passed),
                skipped=tuple(f"{step.step}: {step.why}" for step in one.steps if isinstance(step, Skipped)),
                largest_error=_largest(one for step in passed if step.own for one in step.accuracy.values()),
                baseline_error=_largest(one for step in passed if step.own for one in step.baseline.values()),
                notes=one.notes,
                unexecuted=one.unexecuted,
                unreached=one.unreached,
                artifacts=one.artifacts,
                seconds=one.seconds,
            )
        )
    return rows


def _winners(verdict: Verdict) -> list[tuple[str, Config, str]]:
    """The general configuration, and what is used for a workload where that is another: template, configuration, and
    the workload that it is for, empty for all."""
    general = verdict.general
    used = [(row.template, row.config, row.workload) for row in verdict.dispatch]
    if general is None:
        return used
    key = _key(general.template, general.config, "")
    return [(general.template, general.config, ""), *(one for one in used if _key(one[0], one[1], "") != key)]


def _key(template: str, config: Config, workload: str) -> Examinee:
    return template, config_key(config), workload


def _fields(found: judge.Verdict) -> dict[str, Any]:
    fields = {name: getattr(found, name) for name in ("verdict", "reason", "detail", "steps", "notes", "artifacts")}
    unreached = any(one.lines for one in found.unexecuted)
    return fields | {"unexecuted": tuple(map(str, found.unexecuted)), "unreached": unreached}


def _largest(deviations: Iterable[Deviation]) -> float | None:
    return max((one.largest for one in deviations), default=None)
