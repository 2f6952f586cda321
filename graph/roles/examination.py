"""Examinations: full verdicts, as of `tunesmith check`, on the winners of a run, and brief ones on what a model wrote.

A search, and the trial before it, check the task's own contents only. Winners get the whole verdict. A template of a
model is examined before its search as well, briefly, so that its author hears of a fault that only drawn sizes and
contents show, and no search is spent on it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from tunesmith.actors.judging.judge import CandidateVerdict
from tunesmith.graph.context import Context
from tunesmith.graph.journal import events
from tunesmith.graph.progress import Progress
from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.outcome import TimedOut, describe
from tunesmith.kernels.rewrite.template import rewrite
from tunesmith.kernels.spec.template import Config, Template, config_key

MIN_EXAMINATION_SECONDS = 2.0
"""Least time left, in seconds, for an examination to begin."""
NO_TIME = (
    "the time limit left no time to examine it on odd sizes and other contents; `tunesmith check` does, and so does "
    "`tunesmith resume` with more time"
)
Kernel = tuple[Template, Config, str]
"""A template at a configuration, for one workload or, empty, for all."""


def examine(context: Context, kernels: Sequence[Kernel], *, stage: str = "", brief: bool = False) -> None:
    """Journals the verdicts on the kernels that have none, or no `brief` one; an earlier session may have had no time
    for a whole one."""
    known = context.log.examinations(brief=brief)
    done = {key for key, kernel in known.items() if brief or kernel.verdict != "not examined"}
    if not (waiting := [one for one in kernels if (one[0].id, config_key(one[1]), one[2]) not in done]):
        return
    what = "new template(s), briefly" if brief else "winning configuration(s)"
    context.listener(Progress("template" if brief else "test", f"examining {len(waiting)} {what}"))
    left, begun = context.seconds_left(), time.monotonic()
    results: list[dict[str, Any]] = []
    failure = NO_TIME
    if left >= MIN_EXAMINATION_SECONDS:
        jobs = [(template, config, workload or None) for template, config, workload in waiting]
        try:
            found = context.pool.examine(jobs, seconds=left, brief=brief)
            if isinstance(found, list):
                kept = ("verdict", "reason", "detail", "seed", *(() if brief else ("steps", "notes", "artifacts")))
                results = [
                    {name: getattr(one, name) for name in kept}
                    | {"unexecuted": tuple(map(str, one.unexecuted)), "unreached": _is_unreached(context, job[0], one)}
                    for job, one in zip(jobs, found, strict=False)
                ]
            elif not isinstance(found, TimedOut) or context.seconds_left() >= MIN_EXAMINATION_SECONDS:
                failure = describe(found)
        except TunesmithError as error:
            # The task's baseline is wrong somewhere, which need not end the run.
            failure = str(error)
    if brief and len(results) < len(waiting):
        context.note("template", f"New templates are searched without an examination: {failure}", stage)
    share = round((time.monotonic() - begun) / len(waiting), 3)
    results += [{"verdict": "not examined", "detail": failure}] * (len(waiting) - len(results))
    for (template, config, workload), fields in zip(waiting, results, strict=True):
        about: dict[str, Any] = {"template": template.id, "config": config, "workload": workload, "seconds": share}
        context.journal.append(events.Examined(**about, **fields, brief=brief), stage)


def _is_unreached(context: Context, template: Template, found: CandidateVerdict) -> bool:
    """Whether lines of its own ran in no check. Rules leave the branches of the plain kernel as they are, but for the
    text of lines: of their template those do not count that stand among lines which the plain kernel did not run."""
    left = [(set(one.lines), set(one.beside)) for one in found.unexecuted]
    if any(lines - beside for lines, beside in left) or not any(lines for lines, _ in left):
        return any(lines for lines, _ in left)
    made = rewrite(context.task, context.device.backend).template
    return made is None or made.source != template.source
