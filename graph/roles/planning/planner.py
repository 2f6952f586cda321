"""The planner: asks the model what to tune next, from everything the journal knows; without a model it plans by rules.

A model's answer is a `PlanAnswer`, read into a `Plan` that names only templates and workloads that exist. An answer
that cannot be read goes back once; if that fails too, the round is planned by rules, with a sentence in the journal.
"""

from __future__ import annotations

from typing import get_args

from tunesmith.graph.context import Context
from tunesmith.graph.journal.events import Planned
from tunesmith.graph.journal.log import stage_of
from tunesmith.graph.journal.tree import Tree
from tunesmith.graph.models.calls import HOPELESS, Call, Message, ModelFailed, Models
from tunesmith.graph.progress import Progress
from tunesmith.graph.prompts import conversation, render
from tunesmith.graph.prompts.answers import MAX_TEXT, PlanAnswer, Unusable, config_of
from tunesmith.graph.prompts.evidence import examine
from tunesmith.graph.prompts.facts import baseline_facts, device_facts, node_facts, task_facts, workload_facts
from tunesmith.graph.roles.baseline import baseline_seconds
from tunesmith.graph.roles.planning.rules import describe, headroom, plan_by_rules, share
from tunesmith.graph.roles.planning.tree_rules import plan_on_tree
from tunesmith.graph.settings import Arm
from tunesmith.graph.state import BASELINE, Branch, BranchKind, Plan, State
from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.rewrite.template import with_rules

KINDS_OF_ARM: dict[Arm, tuple[BranchKind, ...]] = {
    "tree": get_args(BranchKind),
    "template+search": ("template", "extend", "search"),
    "template": ("template",),
    "rewrite": ("rewrite",),
}
"""What the model may plan in each arm of an ablation; a run of a user's is of the arm "tree"."""
KEEP = 3
"""Templates that are shown with their source: the best ones. Others are a line each, and may be branched from too."""
RETRIES = 1
"""How often a plan that cannot be carried out goes back to the model."""


class NoTemplate(TunesmithError):
    """There is nothing to tune."""


class Planner:
    name = "plan"

    def __call__(self, state: State, context: Context) -> State:
        number = state.get("round", 0) + 1
        stage = stage_of(number)
        plan = context.log.plan(stage)
        if plan is None:
            plan = self._decide(context, number, state.get("objections", []))
            if plan is None:
                context.note("plan", no_template(context), stage)
                return {"round": number, "templates": [], "objections": [], "done": "no template"}
            context.journal.append(Planned(plan=plan), stage)
            context.listener(Progress("plan", describe(plan)))
        return {"round": number, "plan": plan.model_dump(mode="json"), "objections": []}

    def _decide(self, context: Context, number: int, objections: list[str]) -> Plan | None:
        """The plan of the model or of the rules; None where there is no template. Raises `NoTemplate` where there
        cannot be any."""
        if context.models is None:
            if not context.sources.templates:
                backend = context.device.backend
                _, reasons = with_rules(context.task, backend)
                why = f", and the rules make none ({'; '.join(reasons)})" if reasons else ""
                raise NoTemplate(
                    f"The task {context.task.name} has no {backend} template{why}: add one to `templates` under "
                    f"[backends.{backend}] of its task.toml, or name a model that writes one (--model)."
                )
            context.listener(Progress("plan", f"round {number}"))
            return plan_by_rules(context, number, context.tree())
        by_rules = context.settings.planner == "rules"
        context.listener(Progress("plan", f"round {number}{'' if by_rules else ': asking the model'}"))
        # Everything is compared with the baseline, so it must run before anything is decided.
        baseline_seconds(context)
        context.roofline()
        tree = context.tree()
        examine_best(context, tree, stage_of(number))
        if by_rules:
            return plan_on_tree(context, number, tree, KINDS_OF_ARM[context.settings.arm])
        plan = self._ask(context, context.models, number, tree, objections)
        if isinstance(plan, Plan):
            return plan
        sentence = f"The model gives no plan for round {number} ({plan.detail}); it is planned by rules."
        context.note("plan", sentence, stage_of(number), plan.kind)
        ruled = plan_by_rules(context, number, tree)
        if ruled is None and plan.kind not in HOPELESS:
            # There is no template yet, and the model may well write one though it did not plan it.
            ruled = plan_on_tree(context, number, tree, KINDS_OF_ARM[context.settings.arm])
        return ruled

    def _ask(
        self, context: Context, models: Models, number: int, tree: Tree, objections: list[str]
    ) -> Plan | ModelFailed:
        messages = plan_messages(context, number, tree, objections)
        for attempt in range(RETRIES + 1):
            name = "plan" if attempt == 0 else f"plan-repair-{attempt}"
            (reply,) = models.ask_all([Call("plan", stage_of(number), name, messages, PlanAnswer)])
            if isinstance(reply, ModelFailed):
                return reply
            assert isinstance(reply.value, PlanAnswer)
            try:
                return plan_of(reply.value, context, number, tree)
            except Unusable as error:
                problem = str(error)
                context.listener(Progress("plan", f"the plan cannot be carried out: {' '.join(problem.split())}"))
                again = f"This plan cannot be carried out. {problem}\nAnswer with the whole plan again, corrected."
                messages = (*messages, Message("assistant", reply.text), Message("user", again))
        return ModelFailed("unstructured", f"its plan cannot be carried out: {problem.splitlines()[0]}")


def examine_best(context: Context, tree: Tree, stage: str) -> None:
    """Looks at the machine code of the baseline and of the best, where the most is to be gained."""
    baseline = context.log.baseline_seconds or {}
    workload = max(context.tuned, key=lambda one: headroom(context, one, baseline[one.name]))
    examine(context, "baseline", context.sources.baseline.template, {}, workload, stage)
    for node in tree.best(1):
        assert node.best_config is not None
        examine(context, node.id, node.template, node.best_config, workload, stage)


def plan_messages(context: Context, number: int, tree: Tree, objections: list[str]) -> tuple[Message, ...]:
    """The planner's prompt for a round. What it says depends on the journal alone."""
    full = tree.best(KEEP)
    # What was not measured yet has no rank, but a planner can only judge it by its source.
    full += [node for node in tree.usable if node.best is None][: max(0, KEEP - len(full))]
    settings, device = context.settings, device_facts(context)
    system = render("plan_system", device=device, branches=settings.branches, kinds=KINDS_OF_ARM[settings.arm])
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
        node = tree.node(branch.parent)
        parent = branch.parent if node is None else node.id
        seeds = tuple(map(config_of, branch.seeds)) if branch.kind == "search" else ()
        branches.append(Branch(parent=parent, kind=branch.kind, moves=moves, seeds=seeds))
    names = [workload.name for workload in context.tuned]
    workloads = tuple(name for name in names if not answer.workloads or name in answer.workloads)
    if unknown := [name for name in answer.workloads if name not in names]:
        problems.append(f"There is no tuned workload {', '.join(unknown)}; they are {', '.join(names)}.")
    problems += branch_problems(branches, tree)
    kinds = KINDS_OF_ARM[context.settings.arm]
    problems += [f"There are no branches of the kind {one.kind} here." for one in branches if one.kind not in kinds]
    if problems:
        raise Unusable("\n".join(problems))
    distinct: dict[tuple[str, BranchKind, tuple[str, ...]], Branch] = {}
    for one in branches:
        key = one.parent, one.kind, one.moves
        before = distinct[key].seeds if key in distinct else ()
        distinct[key] = one.model_copy(update={"seeds": (*before, *one.seeds)})
    return Plan(
        round=number,
        bottleneck=answer.bottleneck,
        scope="general" if len(workloads) == len(names) else "workload",
        workloads=workloads,
        evaluations=share(context, number),
        expected=answer.expected.strip()[:MAX_TEXT],
        branches=tuple(distinct.values()),
        analysis=answer.analysis.strip()[:MAX_TEXT],
    )


def branch_problems(branches: list[Branch], tree: Tree) -> list[str]:
    """What of `branches` does not fit the tree, a sentence each."""
    problems = []
    known = [node.id for node in tree.usable]
    for branch in branches:
        node = tree.node(branch.parent)
        where = f"the {branch.kind} of {branch.parent[:80]}"
        if branch.kind in ("template", "rewrite") and not branch.moves:
            problems.append(f"Moves are missing: say what {where} is to change.")
        if branch.kind == "search" and branch.moves:
            problems.append(f"A search changes nothing: leave out the moves in {where}, or make it a template.")
        if branch.parent == BASELINE:
            if branch.kind in ("search", "extend"):
                problems.append(f"The baseline has no parameters, so there is no {branch.kind} of it.")
        elif node is None or node.vetoed:
            options = ", ".join([BASELINE, *known])
            problems.append(f"There is no template '{branch.parent[:80]}' to branch from; there are {options}.")
        elif branch.kind == "expose" and node.template.has_choices:
            problems.append(f"{node.id} has parameters already: {where} needs a kernel without; extend it instead.")
        elif branch.kind in ("search", "extend") and not node.template.has_choices:
            problems.append(f"{node.id} has no parameters: {where} is not possible; expose its constants instead.")
    return problems


def no_template(context: Context) -> str:
    """The sentence for a run that cannot go on because there is no template to tune."""
    task, backend = context.task.name, context.device.backend
    if context.sources.templates:
        return f"There is no template left to tune: all {backend} templates of the task {task} were excluded."
    return f"No template was found: the task {task} brings no {backend} template, and the model gave none that works."
