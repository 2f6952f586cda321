"""The arms of an ablation: the graph with some of its roles replaced, to show what each stage is worth.

- tree: the graph as it is: templates and rewrites are nodes of one tree, and each is made of the other.
- template+search: without rewrites: templates only, each searched.
- template: templates by the same planner and templater, but nothing is searched: each counts with its default
  configuration only, and what the model learns is that time.
- rewrite: no planner, no parameters and no repairs. Each call gives one whole kernel, made from the best one so far and
  all earlier times and failures, as agents do that rewrite directly.

Arms without a search test only once, at the end of their last round. All arms have the same caps on evaluations and on
calls, and all go on after an answer that cannot be used.
"""

from __future__ import annotations

from tunesmith.graph.context import Context, baseline_seconds
from tunesmith.graph.journal.events import Planned
from tunesmith.graph.journal.log import stage_of
from tunesmith.graph.roles import Finished, Role, load_roles
from tunesmith.graph.roles.approval import Approver, Explainer
from tunesmith.graph.roles.planner import examine_best, share
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
    return roles | {"plan": NextRewrite()}


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
