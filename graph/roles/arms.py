"""The arms of an ablation: the graph with some of its roles replaced, to show what each stage is worth.

- tree: the graph as it is: templates and rewrites are nodes of one tree, and each is made of the other.
- template+search: without rewrites: templates only, each searched.
- template: templates by the same planner and templater, but nothing is searched: each counts with its default
  configuration only, and what the model learns is that time.
- rewrite: no planner and no parameters. Each call gives one whole kernel, made from the best one so far and all earlier
  times and failures, as agents do that rewrite directly.

Arms without a search test only once, at the end of their last round. All arms have the same caps on evaluations and on
calls, and all go on after an answer that cannot be used.
"""

from __future__ import annotations

from tunesmith.graph.context import Context, baseline_seconds
from tunesmith.graph.journal.events import BranchAbandoned, Planned, TemplatesChosen
from tunesmith.graph.journal.log import stage_of
from tunesmith.graph.models.calls import ModelCall, ModelFailed
from tunesmith.graph.progress import Progress
from tunesmith.graph.prompts.answers import RewriteAnswer, Unusable, template_of
from tunesmith.graph.prompts.template_prompt import template_messages
from tunesmith.graph.roles import Finished, Role, load_roles
from tunesmith.graph.roles.approval import Approver, Explainer
from tunesmith.graph.roles.planner import examine_best, share
from tunesmith.graph.roles.templater import (
    Problem,
    begin_writing,
    infeasible,
    problem_of,
    recorded,
    register,
    try_templates,
)
from tunesmith.graph.roles.tester import Tester, model_gave_up
from tunesmith.graph.settings import Settings
from tunesmith.graph.state import BASELINE, Branch, Plan, State


def roles_of(settings: Settings, with_model: bool) -> dict[str, Role]:
    """The roles of a run by name: of its arm, without built-in roles that have nothing to do in it."""
    roles = load_roles()
    if settings.approve == "none" and isinstance(roles["approve"], Approver):
        del roles["approve"]
    # Rules do not read what a model says of a round.
    explained = with_model and settings.explain and settings.planner == "model"
    if not explained and isinstance(roles["explain"], Explainer):
        del roles["explain"]
    if settings.arm in ("tree", "template+search"):
        return roles
    roles = {name: role for name, role in roles.items() if name != "tune"} | {"test": LastTest()}
    if settings.arm == "template":
        return roles
    roles.pop("explain", None)
    return roles | {"plan": NextRewrite(), "template": Rewriter()}


class LastTest:
    """Tests when no other round follows: by number, by budget, or because no model will answer any more."""

    name = "test"

    def __call__(self, state: State, context: Context) -> State | Finished:
        number = state["round"]
        spent = context.evaluations_left() <= 0 or context.seconds_left() <= 0
        if number < context.settings.rounds and not spent and not model_gave_up(context, number):
            return {"done": ""}
        result = Tester()(state, context)
        update = result.update if isinstance(result, Finished) else result
        update = {**update, "done": update.get("done") or "nothing valid"}
        return Finished(update, result.event) if isinstance(result, Finished) else update


class NextRewrite:
    """The plan of a round is always the same: make the best kernel so far faster."""

    name = "plan"

    def __call__(self, state: State, context: Context) -> Finished:
        number = state.get("round", 0) + 1
        baseline_seconds(context)
        context.roofline()
        tree = context.tree()
        # The authors of the other arms see the same facts of the machine.
        examine_best(context, tree, stage_of(number))
        best = tree.best(1)
        plan = Plan(
            round=number,
            bottleneck="unknown",
            scope="general",
            workloads=tuple(context.tuned_names),
            evaluations=share(context, number),
            branches=(Branch(parent=best[0].id if best else BASELINE, kind="rewrite", moves=("make it faster",)),),
        )
        return Finished({"round": number, "plan": plan.model_dump(mode="json")}, Planned(plan=plan))


class Rewriter:
    """One call, one kernel. A kernel that does not work is not repaired here; the next round is shown it."""

    name = "template"

    def __call__(self, state: State, context: Context) -> Finished:
        plan = Plan.model_validate(state["plan"])
        ids = self._rewrite(context, plan, stage_of(plan.round))
        return Finished({"templates": ids}, TemplatesChosen(turn=0, ids=tuple(ids)))

    def _rewrite(self, context: Context, plan: Plan, stage: str) -> list[str]:
        assert context.models is not None, "an ablation needs a model"
        tree = context.tree(before=begin_writing(context, stage, 0))
        messages = template_messages(context, plan, plan.branches[0], tree, [])
        (reply,) = context.models.ask_all([ModelCall("rewrite", stage, "rewrite", messages, RewriteAnswer)])
        if isinstance(reply, ModelFailed):
            sentence = f"The model gives no kernel in round {plan.round}: {reply.detail}"
            context.note("rewrite", sentence, stage, reply.kind)
            return []
        assert isinstance(reply.value, RewriteAnswer)
        parent = plan.branches[0].parent
        branch = Branch(parent=parent, kind="rewrite", moves=(reply.value.description[:400],))
        try:
            kernel = template_of(reply.value, context.task, context.device.limits.backend)
            problem = infeasible(kernel, context)
        except Unusable as error:
            problem = Problem("schema", str(error))
        if problem is None:
            if kernel.id not in recorded(context, stage) and context.evaluations_left() <= 0:
                return []
            problem = problem_of(try_templates(context, [kernel], stage)[kernel.id])
        if problem is not None:
            why = f"{problem.what} {problem.log}".strip()
            failed = BranchAbandoned(branch=1, parent=parent, moves=branch.moves, problem=why, made_by="rewrite")
            context.once(BranchAbandoned, stage, lambda: failed)
            return []
        register(context, kernel, branch, stage, answers=1)
        context.listener(Progress("template", f"round {plan.round}: {kernel.name} works"))
        return [kernel.id]
