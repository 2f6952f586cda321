"""The approver: stops before a plan is carried out, until a person has agreed to it or changed it.

The stop is LangGraph's interrupt: the run's state is on disk, the process may end, and the node is begun again when the
run goes on. How the person is asked is `tunesmith.graph.roles.planning.approval`.
"""

from __future__ import annotations

from langgraph.types import interrupt

from tunesmith.graph.context import Context
from tunesmith.graph.journal.events import PlanApproved
from tunesmith.graph.progress import Progress
from tunesmith.graph.state import Plan, State


class Approver:
    name = "approve"

    def __call__(self, state: State, context: Context) -> State:
        if context.settings.approve != "plans":
            return {}
        stage = f"round-{state['round']}"
        plan = context.log.approved_plan(stage)
        if plan is None:
            plan = Plan.model_validate(interrupt({"plan": state["plan"]}))
            context.journal.append(PlanApproved(plan=plan), stage)
            changed = "" if plan.model_dump(mode="json") == state["plan"] else ", changed"
            context.listener(Progress(self.name, f"the plan of round {plan.round} is approved{changed}"))
        return {"plan": plan.model_dump(mode="json")}
