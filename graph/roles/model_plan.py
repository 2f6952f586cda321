"""The planner: asks the model what to tune next, from everything the journal knows; by rules where there is no model.

A model's answer is a `PlanAnswer`, read into a `Plan` that names only templates and workloads that exist. An answer
that cannot be read so goes back once; whatever fails then falls back to the rules, with a sentence in the journal.
"""

from __future__ import annotations

import math

from tunesmith.graph.context import Context
from tunesmith.graph.journal.measurements import baseline_seconds
from tunesmith.graph.journal.tree import Tree, read_tree
from tunesmith.graph.models.calls import Call, Message, ModelFailed, Models
from tunesmith.graph.progress import Progress
from tunesmith.graph.prompts import conversation, render
from tunesmith.graph.prompts.answers import MAX_TEXT, PlanAnswer, Unusable, config_of
from tunesmith.graph.prompts.evidence import examine
from tunesmith.graph.prompts.facts import baseline_facts, device_facts, node_facts, task_facts, workload_facts
from tunesmith.graph.roles.plan import RulePlanner, bottleneck, expectation, headroom
from tunesmith.graph.state import BASELINE, Branch, Plan, State

KEEP = 3
"""Templates that are shown with their source: the best ones. Others are a line each, and may be branched from too."""
RETRIES = 1
"""How often a plan that cannot be carried out goes back to the model."""


class ModelPlanner:
    name = "plan"

    def __call__(self, state: State, context: Context) -> State:
        if context.models is None:
            return RulePlanner()(state, context)
        number = state.get("round", 0) + 1
        stage = f"round-{number}"
        journalled = context.journal.last("plan", stage)
        if journalled is not None:
            return {"round": number, "plan": journalled.data, "objections": []}
        context.listener(Progress("plan", f"round {number}: asking the model"))
        baseline_seconds(context)
        context.roofline()
        tree = read_tree(context)
        self._examine(context, tree, stage)
        plan = self._ask(context, context.models, number, tree, state.get("objections", []))
        if isinstance(plan, ModelFailed):
            context.note("plan", f"The model gives no plan for round {number} ({plan.detail}), so rules do.", stage)
            fallback = plan_without_model(state, context, number, tree)
            if fallback is None:
                context.note("plan", no_template(context), stage)
                return {"round": number, "templates": [], "done": "no template"}
            plan = fallback
        context.journal.append("plan", plan.model_dump(mode="json"), stage)
        context.listener(Progress("plan", f"round {number}: {_told(plan)}"))
        return {"round": number, "plan": plan.model_dump(mode="json"), "objections": []}

    def _examine(self, context: Context, tree: Tree, stage: str) -> None:
        """Looks at the machine code of the baseline and of the best, where the most is to be gained."""
        baseline = context.known_baseline() or {}
        workload = max(context.tuned, key=lambda one: headroom(context, one, baseline[one.name]))
        examine(context, "baseline", context.sources.baseline.template, {}, workload, stage)
        for node in tree.best(1):
            assert node.best_config is not None
            examine(context, node.id, node.template, node.best_config, workload, stage)

    def _ask(
        self, context: Context, models: Models, number: int, tree: Tree, objections: list[str]
    ) -> Plan | ModelFailed:
        messages = plan_messages(context, number, tree, objections)
        for attempt in range(RETRIES + 1):
            name = "plan" if attempt == 0 else f"plan-repair-{attempt}"
            (reply,) = models.ask_all([Call("plan", f"round-{number}", name, messages, PlanAnswer)])
            if isinstance(reply, ModelFailed):
                return reply
            assert isinstance(reply.value, PlanAnswer)
            try:
                return plan_of(reply.value, context, number, tree)
            except Unusable as error:
                problem = str(error)
                again = f"This plan cannot be carried out. {problem}\nAnswer with the whole plan again, corrected."
                messages = (*messages, Message("assistant", reply.text), Message("user", again))
        return ModelFailed("unstructured", f"its plan cannot be carried out: {problem.splitlines()[0]}")


def plan_messages(context: Context, number: int, tree: Tree, objections: list[str]) -> tuple[Message, ...]:
    """The planner's prompt for a round. What it says depends on the journal alone."""
    full = tree.best(KEEP)
    # What was not measured yet has no rank, but a planner can only judge it by its source.
    full += [node for node in tree.usable if node.best is None][: max(0, KEEP - len(full))]
    settings, device = context.settings, device_facts(context)
    system = render("plan_system", device=device, branches=settings.branches, search=settings.arm != "template")
    user = render(
        "plan",
        task=task_facts(context),
        device=device,
        workloads=workload_facts(context, tree),
        held_out=[workload.name for workload in context.held_out],
        baseline=baseline_facts(context),
        full=[node_facts(context, node, source=True) for node in full],
        short=[node_facts(context, node, source=False) for node in tree.nodes if node not in full],
        attempts=tree.attempts,
        explanations={key: lines for key, lines in tree.explanations.items() if key < number},
        objections=objections,
        round=number,
        rounds=settings.rounds,
        branches=settings.branches,
        evaluations=share(context, number),
    )
    return conversation(system, user)


def share(context: Context, number: int) -> int:
    """Evaluations of round `number`: what is left, in equal parts for the rounds that are left."""
    left, rounds = context.evaluations_left(), max(1, context.settings.rounds - number + 1)
    return max(1, math.ceil(left / rounds))


def plan_of(answer: PlanAnswer, context: Context, number: int, tree: Tree) -> Plan:
    """The answer as a plan; raises `Unusable` with all that does not fit the run."""
    problems: list[str] = []
    if not answer.branches:
        problems.append("It has no branch.")
    if len(answer.branches) > context.settings.branches:
        problems.append(f"It has {len(answer.branches)} branches; at most {context.settings.branches} are allowed.")
    branches = []
    for branch in answer.branches:
        moves = tuple(move.strip()[:MAX_TEXT] for move in branch.moves if move.strip())
        branches.append(Branch(parent=branch.parent, moves=moves, seeds=tuple(map(config_of, branch.seeds))))
    names = [workload.name for workload in context.tuned]
    workloads = tuple(name for name in names if not answer.workloads or name in answer.workloads)
    if unknown := [name for name in answer.workloads if name not in names]:
        problems.append(f"There is no tuned workload {', '.join(unknown)}; they are {', '.join(names)}.")
    problems += branch_problems(branches, tree)
    if context.settings.arm == "template" and any(not branch.moves for branch in branches):
        problems.append("Nothing is searched: a branch needs moves.")
    if problems:
        raise Unusable("\n".join(problems))
    distinct = tuple({(one.parent, one.moves): one for one in branches}.values())
    return Plan(
        round=number,
        bottleneck=answer.bottleneck,
        scope="general" if len(workloads) == len(names) else "workload",
        template="",
        workloads=workloads,
        evaluations=share(context, number),
        moves=tuple(move for branch in distinct for move in branch.moves),
        expected=answer.expected.strip()[:MAX_TEXT],
        branches=distinct,
        analysis=answer.analysis.strip()[:MAX_TEXT],
    )


def branch_problems(branches: list[Branch], tree: Tree) -> list[str]:
    """What of `branches` does not fit the tree, a sentence each."""
    problems = []
    known = [node.id for node in tree.usable]
    for branch in branches:
        if branch.parent == BASELINE:
            if not branch.moves:
                problems.append("The baseline has no parameters: a branch from it needs moves.")
        elif branch.parent not in known:
            options = ", ".join([BASELINE, *known])
            problems.append(f"There is no template '{branch.parent[:80]}' to branch from; there are {options}.")
    return problems


def plan_without_model(state: State, context: Context, number: int, tree: Tree) -> Plan | None:
    """What rules plan when the model does not: a library template that was not tried, else the best known template
    again, on the workload with the most left to gain; None where there is no template at all."""
    baseline = context.known_baseline() or {}
    untried = [node for node in tree.usable if node.parent == "library" and node.round == 0]
    best = tree.best(1)
    if untried:
        node, workloads = untried[0], context.tuned
    elif best:
        node, known = best[0], best[0].best_seconds
        remaining = {one.name: headroom(context, one, known.get(one.name, baseline[one.name])) for one in context.tuned}
        workloads = (max(context.tuned, key=lambda one: one.weight * remaining[one.name]),)
    elif any(node.parent == "library" for node in tree.usable):
        node, workloads = next(node for node in tree.usable if node.parent == "library"), context.tuned
    else:
        return None
    target = max(workloads, key=lambda one: headroom(context, one, baseline[one.name]))
    seconds = node.best_seconds.get(target.name, baseline[target.name])
    return Plan(
        round=number,
        bottleneck=bottleneck(context, target, seconds),
        scope="general" if len(workloads) == len(context.tuned) else "workload",
        template="",
        workloads=tuple(workload.name for workload in workloads),
        evaluations=share(context, number),
        expected=expectation(context, target, seconds),
        branches=(Branch(parent=node.id),),
    )


def no_template(context: Context) -> str:
    """The sentence for a run that cannot go on: no template came out of it, and the task brings none."""
    backend = context.device.backend
    return (
        f"No template was found: the task {context.task.name} brings no {backend} template, and the model gave none "
        "that works."
    )


def _told(plan: Plan) -> str:
    parts = []
    for branch in plan.branches:
        parts.append(f"from {branch.parent}: {'; '.join(branch.moves)}" if branch.moves else f"{branch.parent} further")
    return f"bound by {plan.bottleneck}; {' | '.join(parts)}. {plan.expected}"
