"""The planner: which templates and workloads a round tunes, by a model or by rules.

- Rules without a model: each template of the task is first tuned on all workloads together. Then each workload is tuned
  on its own, the one with the largest possible gain first; then all together again, and so on.
- Rules that plan for a model that writes: rewrites of the best kernel while they gain, then parameters and a search.
- A model plans; where its plan cannot be used, the rules plan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, Field

from tunesmith.graph.context import Context, baseline_quantities, baseline_seconds
from tunesmith.graph.journal.events import BranchAbandoned, Planned
from tunesmith.graph.journal.log import Node, Tree, objective, stage_of
from tunesmith.graph.models.calls import HOPELESS, Message, ModelCall, ModelFailed, Models
from tunesmith.graph.models.client import Ledger
from tunesmith.graph.progress import Progress
from tunesmith.graph.prompts import conversation, render
from tunesmith.graph.prompts.facts import examine, node_facts, run_facts
from tunesmith.graph.settings import Arm, Settings
from tunesmith.graph.state import BASELINE, Bottleneck, Branch, BranchKind, Plan, State
from tunesmith.kernels.check.verify import infeasible_on
from tunesmith.kernels.rewrite.template import starts, with_rules
from tunesmith.kernels.spec.task import TaskError, Workload
from tunesmith.kernels.spec.template import Config, Template, config_key

FIRST_SHARE = 0.6
"""Share of the evaluations for the first round, which tunes all workloads together, when more rounds follow."""


def plan_by_rules(context: Context, number: int, tree: Tree) -> Plan | None:
    """The plan of round `number`; None where there is nothing to search: no template, or only kernels without choices
    that were measured. Measures the baseline and the device's roofs where the journal does not have them."""
    tunable = [node for node in tree.usable if node.template.has_choices or not node.found]
    if not tunable:
        return None
    quantities, weights, of = baseline_quantities(context), context.task.weights, context.settings.objective
    baseline, known = baseline_seconds(context), [node.best_seconds for node in tree.usable]
    seconds = {w: min((one[w] for one in known if w in one), default=baseline[w]) for w in baseline}

    def best_of(node: Node, names: Sequence[str]) -> tuple[float, Config | None]:
        """The best objective over the workloads, and its configuration; infinite where none was measured on all."""
        values = ((objective(one, names, quantities, weights, of), one.config) for one in node.found)
        measured = ((value, config) for value, config in values if value is not None)
        return min(measured, key=lambda pair: pair[0], default=(math.inf, None))

    due = None if tree.untried else _workload_in_turn(context, seconds)
    workloads = context.tuned if due is None else (due,)
    names = [workload.name for workload in workloads]
    node = tree.untried[0] if tree.untried else min(tunable, key=lambda one: best_of(one, names)[0])
    seeds: tuple[Config, ...] = ()
    analysis = ""
    if tree.untried:
        most = _most_to_gain(context, workloads, baseline)
        limit = context.bottleneck(most, baseline[most.name])
        seeds = starts(node.template, limit, lambda config: not broken_rule(context, node.template, config, workloads))
    elif due is None:
        analysis = f"Tune all {len(names)} workloads together again, from the best known configurations of each."
        of_each = (best_of(node, [name])[1] for name in names)
        seeds = tuple({config_key(config): config for config in of_each if config is not None}.values())
    else:
        # A search of one workload starts with the measurements there, among them the best.
        analysis = f"Tune {due.name} on its own, from its best known configurations."
    branch, words = Branch(parent=node.id, kind="search", seeds=seeds), _outlook(context, workloads, seconds)
    plan = new_plan(context, number, names, [branch], analysis=analysis, **words)
    if number > 1:
        return plan
    first = min(math.ceil(context.settings.evaluations * FIRST_SHARE), context.evaluations_left())
    return plan.model_copy(update={"evaluations": max(plan.evaluations, first)})


def _workload_in_turn(context: Context, seconds: Mapping[str, float]) -> Workload | None:
    """The workload whose turn it is: after a round of all together (None) each alone, the largest gain first."""
    if len(context.tuned) == 1:
        return context.tuned[0]
    plans = context.log.plans
    # A kernel that is mostly launch and ramp-up cannot come nearer to its limit.
    worth = [one for one in context.tuned if context.bottleneck(one, seconds[one.name]) != "latency"]
    last = max((at for at, plan in enumerate(plans) if plan.scope == "general"), default=-1)
    own = {name for plan in plans[last + 1 :] for name in plan.workloads}
    left = [workload for workload in worth or context.tuned if workload.name not in own]
    return max(left, key=lambda one: one.weight * _headroom(context, one, seconds), default=None)


def _outlook(context: Context, workloads: Sequence[Workload], seconds: Mapping[str, float]) -> dict[str, Any]:
    """`bottleneck` and `expected` of a plan by rules. seconds: the least known time, by workload."""
    target = _most_to_gain(context, workloads, seconds)
    floor, taken = context.floor(target), seconds[target.name]
    if not floor:
        limit = "; the limits of the device were not measured"
    elif taken <= floor:
        limit = f" and is at its floor by the measured roofs, {_us(floor)}: little to gain"
    else:
        limit = f", {taken / floor:.1f} times its floor by the measured roofs, {_us(floor)}"
    return {"bottleneck": context.bottleneck(target, taken), "expected": f"{target.name} takes {_us(taken)}{limit}."}


def new_plan(context: Context, number: int, names: Sequence[str], branches: Sequence[Branch], **words: Any) -> Plan:
    """The plan of round `number` that tunes on the workloads of these names. words: its bottleneck and texts."""
    scope: Any = "general" if len(names) == len(context.tuned) else "workload"
    evaluations, kept = share(context, number), tuple(names)
    return Plan(round=number, scope=scope, workloads=kept, evaluations=evaluations, branches=tuple(branches), **words)


def share(context: Context, number: int) -> int:
    """Evaluations of round `number`: the rest, in equal parts for the remaining rounds."""
    left, rounds = context.evaluations_left(), max(1, context.settings.rounds - number + 1)
    return max(1, math.ceil(left / rounds))


def broken_rule(context: Context, template: Template, config: Config, workloads: Sequence[Workload]) -> str:
    """The rule that a configuration breaks on one of `workloads`, here or on the target; empty if none."""
    places = ((workload, limits) for limits in context.limits for workload in workloads)
    reasons = (infeasible_on(template, config, workload, limits) for workload, limits in places)
    return next((reason.detail for reason in reasons if reason is not None), "")


def _most_to_gain(context: Context, workloads: Sequence[Workload], seconds: Mapping[str, float]) -> Workload:
    return max(workloads, key=lambda workload: _headroom(context, workload, seconds))


def _headroom(context: Context, workload: Workload, seconds: Mapping[str, float]) -> float:
    """Logarithm of time over floor, the gain of a perfect kernel; zero where no floor is known."""
    floor = context.floor(workload)
    return math.log(seconds[workload.name] / floor) if floor else 0.0


def describe(plan: Plan) -> str:
    """A plan in one line."""
    bound = "bottleneck unknown" if plan.bottleneck == "unknown" else f"probably {plan.bottleneck}-bound"
    where = "all workloads" if plan.scope == "general" else ", ".join(plan.workloads)
    work = " | ".join(f"{one.kind} {one.parent}: {'; '.join(one.moves)}".rstrip(": ") for one in plan.branches)
    return f"Round {plan.round}, {where}: {bound}. {work}. {plan.expected}".rstrip()


def _us(seconds: float) -> str:
    value = seconds * 1e6
    return f"{value:.0f} us" if value >= 100 else f"{value:.3g} us"


MAX_EXPOSED_TIME_RATIO = 1.1
"""Largest time of a rewrite, as a factor of the best kernel's, for which it is worth parameters."""


def plan_on_tree(context: Context, number: int, tree: Tree) -> Plan:
    """The rules' plan of round `number` for a model that writes; measures baseline and roofs where needed. The best
    kernel is rewritten until that stalls, or one round is left: then its constants are exposed, and searched."""
    kinds, wanted = KINDS_OF_ARM[context.settings.arm], context.settings.branches
    known = next((node.best_seconds for node in tree.ranked[:1]), {})
    seconds = {name: known.get(name, baseline) for name, baseline in baseline_seconds(context).items()}
    if (calls := calls_left(context)) is not None:
        wanted = min(wanted, calls)
    last = number == context.settings.rounds or (calls is not None and calls <= wanted)
    narrow = last or (number > 2 and context.log.gain(number - 1) < context.settings.least_gain)
    written = [branch for branch in options_of(tree, narrow) if branch.kind in kinds]
    # A further search costs no call: of the task's next template, or the best one.
    searched = (tree.untried or [node for node in tree.ranked if node.template.has_choices])[: "search" in kinds]
    branches = [*(Branch(parent=node.id, kind="search") for node in searched), *written[:wanted]]
    words = {"analysis": f"The most is left on {_most_to_gain(context, context.tuned, seconds).name}."}
    words |= _outlook(context, context.tuned, seconds)
    return new_plan(context, number, context.tuned_names, branches or [_branch(BASELINE, kinds[0])], **words)


def calls_left(context: Context) -> int | None:
    """Model calls that the cap leaves; None without a cap."""
    cap = context.settings.max_calls
    # Open calls count as they do for the cap.
    return None if cap is None else max(0, cap - Ledger(context.journal, live=False).calls())


_MOVES: dict[BranchKind, str] = {
    "template": "organise the work for what bounds it, and expose every choice of that organisation",
    "rewrite": "make it faster over all workloads, above all where the most is left",
    "expose": "expose the constants of the kernel as parameters",
    "extend": "parameters for choices that are fixed now: how work is divided, staged, or kept",
}
_ANEW = "organise the work in another way than was tried, for what bounds it, and expose every choice of it"


def options_of(tree: Tree, narrow: bool) -> list[Branch]:
    """The branches that the tree allows to be written next, one of each kind, those first that gained most per call on
    the kernels that we measured. narrow: parameters for known kernels come first; else a rewrite does."""
    if best := tree.ranked[:2]:
        found = _branches_from(best, tree)
    else:
        found = [_branch(BASELINE, "template"), _branch(BASELINE, "rewrite")]
    return found if narrow else sorted(found, key=lambda branch: branch.kind != "rewrite")


def _branches_from(best: Sequence[Node], tree: Tree) -> list[Branch]:
    made: list[Node | BranchAbandoned] = [*tree.nodes, *tree.attempts]
    children, top, found = {(one.parent, one.made_by) for one in made}, best[0], list[Branch]()
    near = MAX_EXPOSED_TIME_RATIO * (top.best or math.inf)
    whole = next((node for node in tree.ranked if not node.template.has_choices), None)
    if whole is not None and (whole.best or math.inf) < near and (whole.id, "expose") not in children:
        found.append(_branch(whole.id, "expose"))
    wider = (node for node in best if node.template.has_choices and (node.id, "extend") not in children)
    if node := next(wider, None):
        # The limits of its search come first.
        edges = ", ".join(f"{name} beyond {value}" for name, value in node.at_edge.items())
        dead = ", ".join(node.without_effect)
        stuck = [f"more values of {edges}"] if edges else []
        stuck += [f"another choice in the place of {dead}, without effect"] if dead else []
        found.append(_branch(node.id, "extend", *stuck, _MOVES["extend"]))
    return [*found, _branch(top.id, "rewrite"), _branch(top.id, "template", _ANEW)]


def _branch(parent: str, kind: BranchKind, *moves: str) -> Branch:
    return Branch(parent=parent, kind=kind, moves=moves or (_MOVES[kind],))


KINDS_OF_ARM: dict[Arm, tuple[BranchKind, ...]] = {
    "tree": get_args(BranchKind),
    "template+search": ("template", "extend", "search"),
    "template": ("template",),
    "rewrite": ("rewrite",),
}
"""The kinds of branches in each arm of an ablation (docs/agents.md); a user's run has the arm "tree". "template"
measures default configurations only; "rewrite" has no plan of a model, and no repairs."""


def searches(settings: Settings) -> bool:
    """Whether the run's arm searches its templates."""
    return "search" in KINDS_OF_ARM[settings.arm]


# A model's answer keeps to the structured output of all servers: every field is required, without defaults, free-form
# objects and tuples. What it means is decided by the project's own schemas, which also read files.

Value = bool | int | float | str
MAX_TEXT = 4000
"""Characters of a model's own words that are kept and shown to others."""


class Setting(BaseModel, extra="forbid"):
    name: str = Field(description="a parameter's name")
    value: Value


def config_of(settings: Sequence[Setting]) -> Config:
    return {setting.name: setting.value for setting in settings}


class BranchAnswer(BaseModel, extra="forbid"):
    kind: BranchKind = Field(description="what to make of the parent; the kinds are explained above")
    parent: str = Field(description='the id of a template listed under "Templates so far", or "baseline"')
    moves: list[str] = Field(
        description="what to change in the parent, one concrete step each; empty for a search of the parent as it is"
    )
    seeds: list[list[Setting]] = Field(
        description="configurations of the parent to try first, only in a search of it; may be empty"
    )


class PlanAnswer(BaseModel, extra="forbid"):
    """The plan of the next round."""

    analysis: str = Field(description="what bounds the best kernel now and what the measurements show; a few sentences")
    bottleneck: Bottleneck
    branches: list[BranchAnswer] = Field(description="the templates of this round, the most promising first")
    workloads: list[str] = Field(description="names of the tuned workloads to search on; empty: all of them")
    expected: str = Field(description="what this round should gain, in one sentence")


TEMPLATES_WITH_SOURCE = 3
"""The best templates that a prompt shows with their source. Others are a line each, and may be branched from too."""


def plan_round(state: State, context: Context) -> State | tuple[State, Planned]:
    """The role "plan"."""
    number = state.get("round", 0) + 1
    plan = _decide(context, number, state.get("objections", []))
    if plan is None:
        context.note("plan", no_template(context), stage_of(number))
        return {"round": number, "templates": [], "objections": [], "done": "no template"}
    context.listener(Progress("plan", describe(plan)))
    return {"round": number, "plan": plan.model_dump(mode="json"), "objections": []}, Planned(plan=plan)


def _decide(context: Context, number: int, objections: list[str]) -> Plan | None:
    """The plan of the model or of the rules; None without a template. Raises `TaskError`."""
    if (models := context.models) is None:
        if not context.sources.templates:
            backend = context.device.backend
            _, reasons = with_rules(context.task, backend)
            why = f", and the rules make none ({'; '.join(reasons)})" if reasons else ""
            raise TaskError(
                f"The task {context.task.name} has no {backend} template{why}: add one to `templates` under "
                f"[backends.{backend}] of its task.toml, or name a model that writes one (--model)."
            )
        context.listener(Progress("plan", f"round {number}"))
        return plan_by_rules(context, number, context.tree())
    # An agent that rewrites directly makes the best kernel faster, without a plan of a model.
    by_rules = context.settings.planner == "rules" or context.settings.arm == "rewrite"
    context.listener(Progress("plan", f"round {number}{'' if by_rules else ': asking the model'}"))
    # Everything is compared with the baseline, so it must run before anything is decided.
    baseline = baseline_seconds(context)
    context.roofline()
    tree = context.tree()
    # The machine code of the baseline and of the best, where the most is to be gained.
    workload, stage = _most_to_gain(context, context.tuned, baseline), stage_of(number)
    examine(context, "baseline", context.sources.baseline.template, {}, workload, stage)
    for node in tree.ranked[:1]:
        assert node.best_config is not None
        examine(context, node.id, node.template, node.best_config, workload, stage)
    if by_rules:
        return plan_on_tree(context, number, tree)
    plan = _ask(context, models, number, tree, objections)
    if isinstance(plan, Plan):
        return plan
    sentence = f"The model gives no plan for round {number} ({plan.detail}); it is planned by rules."
    context.note("plan", sentence, stage, plan.kind)
    ruled = plan_by_rules(context, number, tree)
    # Without a template, the model may write one although it did not plan it.
    return plan_on_tree(context, number, tree) if ruled is None and plan.kind not in HOPELESS else ruled


def _ask(context: Context, models: Models, number: int, tree: Tree, objections: list[str]) -> Plan | ModelFailed:
    """The model's plan, after another try where the first cannot be carried out."""
    messages, problem = plan_messages(context, number, tree, objections), ""
    for name in ("plan", "plan-repair-1"):
        (reply,) = models.ask_all([ModelCall("plan", stage_of(number), name, messages, PlanAnswer)])
        if isinstance(reply, ModelFailed):
            return reply
        assert isinstance(reply.value, PlanAnswer)
        try:
            return plan_of(reply.value, context, number, tree)
        except TaskError as error:
            problem = str(error)
            context.listener(Progress("plan", f"the plan cannot be carried out: {' '.join(problem.split())}"))
            again = f"This plan cannot be carried out. {problem}\nAnswer with the whole plan again, corrected."
            messages = (*messages, Message("assistant", reply.text), Message("user", again))
    return ModelFailed("unstructured", f"its plan cannot be carried out: {problem.splitlines()[0]}")


def plan_messages(context: Context, number: int, tree: Tree, objections: list[str]) -> tuple[Message, ...]:
    """The planner's prompt for a round, a function of the journal alone."""
    full = tree.ranked[:TEMPLATES_WITH_SOURCE]
    # A template without measurements has no rank, and can only be judged by its source.
    full += [node for node in tree.usable if node.best is None][: max(0, TEMPLATES_WITH_SOURCE - len(full))]
    settings, facts = context.settings, run_facts(context, tree)
    kinds = KINDS_OF_ARM[settings.arm]
    system = render("plan_system", device=facts["device"], branches=settings.branches, kinds=kinds)
    user = render(
        "plan",
        **facts,
        full=[node_facts(context, node, source=True) for node in full],
        short=[node_facts(context, node, source=False) for node in tree.nodes if node not in full],
        attempts=tree.attempts,
        objections=objections,
        round=number,
        rounds=settings.rounds,
        branches=settings.branches,
        evaluations=share(context, number),
    )
    return conversation(system, user)


def plan_of(answer: PlanAnswer, context: Context, number: int, tree: Tree) -> Plan:
    """The answer as a plan; raises `TaskError` with all that does not fit the run."""
    problems: list[str] = []
    allowed, kinds = context.settings.branches, KINDS_OF_ARM[context.settings.arm]
    if not 1 <= len(answer.branches) <= allowed:
        problems.append(f"It has {len(answer.branches) or 'no'} branches; give one to {allowed}.")
    branches = []
    for branch in answer.branches:
        moves = tuple(move.strip()[:MAX_TEXT] for move in branch.moves if move.strip())
        node = tree.node(branch.parent)
        parent = branch.parent if node is None else node.id
        seeds = tuple(map(config_of, branch.seeds)) if branch.kind == "search" else ()
        branches.append(Branch(parent=parent, kind=branch.kind, moves=moves, seeds=seeds))
    names = context.tuned_names
    workloads = tuple(name for name in names if not answer.workloads or name in answer.workloads)
    if unknown := [name for name in answer.workloads if name not in names]:
        problems.append(f"There is no tuned workload {', '.join(unknown)}; they are {', '.join(names)}.")
    problems += branch_problems(branches, tree)
    problems += [f"There are no branches of the kind {one.kind} here." for one in branches if one.kind not in kinds]
    if problems:
        raise TaskError("\n".join(problems))
    # The same question is not asked twice.
    distinct = [one for at, one in enumerate(branches) if one not in branches[:at]]
    words = {name: getattr(answer, name).strip()[:MAX_TEXT] for name in ("expected", "analysis")}
    return new_plan(context, number, workloads, distinct, bottleneck=answer.bottleneck, **words)


def branch_problems(branches: list[Branch], tree: Tree) -> list[str]:
    """The misfits of `branches` and the tree, a sentence each."""
    problems = []
    for branch in branches:
        node, parent = tree.node(branch.parent), branch.parent[:80]
        where, has_choices = f"the {branch.kind} of {parent}", node is not None and node.template.has_choices
        if branch.kind in ("template", "rewrite") and not branch.moves:
            problems.append(f"Moves are missing: say what {where} is to change.")
        if branch.kind == "search" and branch.moves:
            problems.append(f"A search changes nothing: leave out the moves in {where}, or make it a template.")
        if branch.parent != BASELINE and (node is None or node.vetoed):
            options = ", ".join([BASELINE, *(one.id for one in tree.usable)])
            problems.append(f"There is no template '{parent}' to branch from; there are {options}.")
        elif branch.kind == "expose" and has_choices:
            problems.append(f"{parent} has parameters already: {where} needs a kernel without; extend it instead.")
        elif branch.kind in ("search", "extend") and not has_choices:
            problems.append(f"{parent} has no parameters: {where} is not possible; expose its constants instead.")
    return problems


def no_template(context: Context) -> str:
    """The sentence for a run that must end because nothing can be tuned."""
    task, backend = context.task.name, context.device.backend
    if context.sources.templates:
        return f"There is no template left to tune: all {backend} templates of the task {task} were excluded."
    mine = f"the task {task} brings no {backend} template, and the model gave none that works"
    return f"No template was found: {mine}; without --model, rules make one of the kernel."
