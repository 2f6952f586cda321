"""The approver, which stops until a person approves the plan.

The plan is shown and edited on a terminal, or left as a file that `tunesmith resume` goes on with. A plan that was
changed by hand is read by the schema that models' plans pass, and against the run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tunesmith.graph.context import Context
from tunesmith.graph.journal.events import ApprovalAwaited, PlanApproved
from tunesmith.graph.journal.log import stage_of
from tunesmith.graph.models.calls import Waiting
from tunesmith.graph.progress import Progress
from tunesmith.graph.roles.planner import branch_problems
from tunesmith.graph.state import Plan, State
from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.spec.taskfile import explain

Ask = Callable[[Plan, Path, Callable[[], Plan]], Plan]
"""Asks on a terminal, given the plan, its file, and a reader of the edited file. Raises `Waiting` to stop the run."""


def approve(state: State, context: Context) -> tuple[State, PlanApproved]:
    """The role "approve"."""
    planned = Plan.model_validate(state["plan"])
    plan = context.approve(planned)
    changed = "" if plan == planned else ", changed"
    context.listener(Progress("approve", f"the plan of round {plan.round} is approved{changed}"))
    return {"plan": plan.model_dump(mode="json")}, PlanApproved(plan=plan)


def decide(context: Context, ask: Ask | None, plan: Plan) -> Plan:
    """The plan as the person wants it. Without a terminal (`ask` is None) it raises `Waiting` the first time and reads
    the file the next time. Raises `TunesmithError` for a file that makes no plan."""
    stage, folder = stage_of(plan.round), context.journal.folder
    file = folder / f"plan-{plan.round}.json"

    def read() -> Plan:
        try:
            data = json.loads(file.read_text(encoding="utf-8-sig"))
        except OSError as error:
            raise TunesmithError(f"The plan {file} cannot be read: {error.strerror}.") from error
        except ValueError as error:
            raise TunesmithError(f"{file} is not valid JSON: {error}; fix it and resume.") from error
        return check_plan(data, plan, context, str(file))

    if context.log.last(ApprovalAwaited, stage) is not None:
        return read()
    file.write_text(json.dumps(plan.model_dump(mode="json"), indent=2) + "\n", encoding="utf-8")
    if ask is not None:
        return ask(plan, file, read)
    context.journal.append(ApprovalAwaited(file=file.name), stage)
    raise Waiting(
        f"The plan of round {plan.round} waits for approval in {file}: edit it or leave it as it is, then go on with "
        f"`tunesmith resume {folder}`."
    )


def check_plan(data: Any, planned: Plan, context: Context, where: str) -> Plan:
    """The plan of `data` (JSON) in the place of `planned`; its scope follows from its workloads. Raises
    `TunesmithError`."""
    try:
        plan = Plan.model_validate(data)
    except ValidationError as error:
        why = explain(error, data)
        raise TunesmithError(f"{where}: {why}{'' if why.endswith('?') else '; fix it and resume.'}") from error
    names, left = context.tuned_names, context.evaluations_left()
    unknown = [name for name in plan.workloads if name not in names]
    written = any(branch.written for branch in plan.branches)
    checks = (
        (plan.round != planned.round, f"round is {plan.round}, but the run is in round {planned.round}"),
        (unknown, f"workloads: there is no {', '.join(unknown)}; tuned are {', '.join(names)}"),
        (not plan.workloads, f"workloads: name at least one of {', '.join(names)}"),
        (not 1 <= plan.evaluations <= left, f"evaluations: give 1 to {left}, the rest of the budget"),
        (written and context.models is None, "branches: only a search needs no model, and the run has none"),
    )
    problems = [sentence for wrong, sentence in checks if wrong]
    problems += [f"branches: {problem}" for problem in branch_problems(list(plan.branches), context.tree())]
    if problems:
        raise TunesmithError(f"{where}: {problems[0].rstrip('.')}; fix it and resume.")
    # A person who edits workloads easily forgets the scope, by which later rounds are planned.
    workloads = tuple(name for name in names if name in plan.workloads)
    scope = "general" if len(workloads) == len(names) else "workload"
    return plan.model_copy(update={"workloads": workloads, "scope": scope})
