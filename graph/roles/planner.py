"""The planner: which templates and workloads a round tunes, by a model or by rules. It reads the journal only.

- Rules without a model: each template of the task is first tuned on all workloads together. Then, round by round, the
  workload with the largest possible gain is tuned on its own, in the template that is best there and from its best
  configurations; when each has had its round, all are tuned together again, and so on.
- Rules that plan for a model that writes: the kinds of branches whose calls have gained most come first.
- A model plans: it is asked with all that the journal knows; where its plan cannot be used, the rules plan.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import get_args

from tunesmith.graph.context import Context, baseline_quantities, baseline_seconds
from tunesmith.graph.journal.events import Planned
from tunesmith.graph.journal.log import LIBRARY, FailedBranch, Node, Tree, objective, stage_of
from tunesmith.graph.models.calls import HOPELESS, Message, ModelCall, ModelFailed, Models
from tunesmith.graph.models.client import Ledger
from tunesmith.graph.progress import Progress
from tunesmith.graph.prompts import conversation, render
from tunesmith.graph.prompts.answers import MAX_TEXT, PlanAnswer, Unusable, config_of
from tunesmith.graph.prompts.facts import baseline_facts, device_facts, examine, node_facts, task_facts, workload_facts
from tunesmith.graph.roles import Finished
from tunesmith.graph.settings import Arm, Settings
from tunesmith.graph.state import BASELINE, Bottleneck, Branch, BranchKind, Plan, State
from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.check.verify import infeasible_on
from tunesmith.kernels.rewrite.template import starts, with_rules
from tunesmith.kernels.spec.task import Workload
from tunesmith.kernels.spec.template import Config, config_key

FIRST_SHARE = 0.6
"""Share of the evaluations for the first round, which tunes all workloads together, when more rounds follow."""
LATENCY_SECONDS = 5e-6
"""A GPU kernel shorter than this is mostly launch and ramp-up, whatever its roofline says."""


def plan_by_rules(context: Context, number: int, tree: Tree) -> Plan | None:
    """The plan of round `number`; None where there is nothing to search: no template, or only kernels without choices
    that were measured. Measures the baseline and the device's roofs where the journal does not have them."""
    tunable = [node for node in tree.usable if node.template.has_choices or not node.found]
    if not tunable:
        return None
    baseline, quantities = baseline_seconds(context), baseline_quantities(context)
    known = [node.best_seconds for node in tree.usable]
    best = {w: min((one[w] for one in known if w in one), default=baseline[w]) for w in context.tuned_names}

    def best_of(node: Node, workloads: Sequence[Workload]) -> tuple[float, Config | None]:
        """The best objective over the workloads, and its configuration; infinite where none was measured on all."""
        names, of = [workload.name for workload in workloads], context.settings.objective
        values = ((objective(one, names, quantities, context.weights, of), one.config) for one in node.found)
        measured = ((value, config) for value, config in values if value is not None)
        return min(measured, key=lambda pair: pair[0], default=(math.inf, None))

    due = None if tree.untried else _due(context, best)
    workloads = context.tuned if due is None else (due,)
    seeds: tuple[Config, ...] = ()
    if tree.untried:
        node, analysis = tree.untried[0], ""
        seeds = _starts(node, context, baseline)
    else:
        node = min(tunable, key=lambda one: best_of(one, workloads)[0])
        if due is None:
            of_each = (best_of(node, [workload])[1] for workload in context.tuned)
            seeds = tuple({config_key(config): config for config in of_each if config is not None}.values())
            analysis = (
                f"Tune all {len(workloads)} workloads together again, from the best known configurations of each."
            )
        else:
            # A search of one workload is told the measurements there, and so knows the best already.
            analysis = f"Tune {due.name} on its own, from its best known configurations."
    plan = _plan(context, number, workloads, best, [Branch(parent=node.id, kind="search", seeds=seeds)], analysis)
    if number > 1:
        return plan
    first = min(math.ceil(context.settings.evaluations * FIRST_SHARE), context.evaluations_left())
    return plan.model_copy(update={"evaluations": max(plan.evaluations, first)})


def _plan(
    context: Context,
    number: int,
    workloads: Sequence[Workload],
    seconds: Mapping[str, float],
    branches: Sequence[Branch],
    analysis: str,
) -> Plan:
    """A plan of rules. seconds: the best ones known, by workload."""
    target = _target(context, workloads, seconds)
    return Plan(
        round=number,
        bottleneck=bottleneck(context, target, seconds[target.name]),
        scope="general" if len(workloads) == len(context.tuned) else "workload",
        workloads=tuple(workload.name for workload in workloads),
        evaluations=share(context, number),
        branches=tuple(branches),
        expected=expectation(context, target, seconds[target.name]),
        analysis=analysis,
    )


def share(context: Context, number: int) -> int:
    """Evaluations of round `number`: the rest, in equal parts for the remaining rounds."""
    left, rounds = context.evaluations_left(), max(1, context.settings.rounds - number + 1)
    return max(1, math.ceil(left / rounds))


def _due(context: Context, best: Mapping[str, float]) -> Workload | None:
    """The workload whose turn it is, None for all together: after a round of all, each gets one of its own, the one
    with the most to gain first, and then all are tuned together again."""
    if len(context.tuned) == 1:
        return context.tuned[0]
    plans = context.log.plans
    # What is mostly launch and ramp-up is far from its limit without being able to come nearer.
    worth = [w for w in context.tuned if bottleneck(context, w, best[w.name]) != "latency"]
    last = max((at for at, plan in enumerate(plans) if plan.scope == "general"), default=-1)
    own = {name for plan in plans[last + 1 :] for name in plan.workloads}
    left = [workload for workload in worth or context.tuned if workload.name not in own]
    return max(left, key=lambda w: w.weight * headroom(context, w, best[w.name]), default=None)


def _starts(node: Node, context: Context, baseline: Mapping[str, float]) -> tuple[Config, ...]:
    """Where a template that rules made is searched first, for what limits the kernel on the workload with the most to
    gain."""
    target = _target(context, context.tuned, baseline)
    limit = bottleneck(context, target, baseline[target.name])

    def fits(config: Config) -> bool:
        places = ((workload, limits) for limits in context.limits for workload in context.tuned)
        return all(infeasible_on(node.template, config, workload, limits) is None for workload, limits in places)

    return starts(node.template, limit, fits)


def _target(context: Context, workloads: Sequence[Workload], seconds: Mapping[str, float]) -> Workload:
    """The workload with the most to gain."""
    return max(workloads, key=lambda workload: headroom(context, workload, seconds[workload.name]))


def headroom(context: Context, workload: Workload, seconds: float) -> float:
    """Logarithm of time over floor: what a perfect kernel would still gain. Zero where no floor is known."""
    floor = context.floor(workload)
    return math.log(seconds / floor) if floor else 0.0


def bottleneck(context: Context, workload: Workload, seconds: float) -> Bottleneck:
    """What limits a kernel that takes `seconds` on `workload`."""
    if context.device.limits.kind == "gpu" and seconds < LATENCY_SECONDS:
        return "latency"
    task = context.task
    return context.roofline().bound(task.bytes_of(workload), task.flops_of(workload), task.arithmetic or "float32")


def expectation(context: Context, workload: Workload, seconds: float) -> str:
    """What may still be gained, in a sentence."""
    floor = context.floor(workload)
    if not floor:
        return f"{workload.name} takes {_us(seconds)}; the limits of the device were not measured."
    least = f"its floor by the measured roofs, {_us(floor)}"
    if seconds <= floor:
        return f"{workload.name} takes {_us(seconds)} and is at {least}: little to gain."
    return f"{workload.name} takes {_us(seconds)}, {seconds / floor:.1f} times {least}."


def describe(plan: Plan) -> str:
    """A plan in one line."""
    bound = "bottleneck unknown" if plan.bottleneck == "unknown" else f"probably {plan.bottleneck}-bound"
    where = "all workloads" if plan.scope == "general" else ", ".join(plan.workloads)
    work = [
        f"{one.kind} from {one.parent}: {'; '.join(one.moves)}" if one.written else f"search {one.parent}"
        for one in plan.branches
    ]
    return f"Round {plan.round}, {where}: {bound}. {' | '.join(work)}. {plan.expected}".rstrip()


def _us(seconds: float) -> str:
    value = seconds * 1e6
    return f"{value:.0f} us" if value >= 100 else f"{value:.3g} us"


EXPLORATION_WEIGHT = 0.05
"""Of UCB1, in the size of a reward: on twelve kernels a call of the second and third round gained 0.015 to 0.043 in the
mean, by its kind."""
MAX_EXPOSED_TIME_RATIO = 1.1
"""Largest time of a rewrite, as a factor of the best kernel's, for which it is worth parameters."""


def plan_on_tree(context: Context, number: int, tree: Tree) -> Plan:
    """The plan of round `number`, of branches of the kinds that the run's arm has. Measures the baseline and the
    device's roofs where the journal has none."""
    baseline, kinds = baseline_seconds(context), KINDS_OF_ARM[context.settings.arm]
    known = next((node.best_seconds for node in tree.best(1)), {})
    seconds = {w.name: known.get(w.name, baseline[w.name]) for w in context.tuned}
    calls = calls_left(context)
    wanted = context.settings.branches if calls is None else min(context.settings.branches, calls)
    ends = [entry.sequence for entry in context.log.entries(Planned) if entry.event.plan.round > 1]
    ranked = _ranked(tree, branch_rewards([*map(context.tree, ends), tree]))
    written = [branch for branch in ranked if branch.kind in kinds]
    # What is searched further beside them costs no call: the task's next template, or the best one.
    searched = (tree.untried or [node for node in tree.ranked if node.template.has_choices])[: "search" in kinds]
    branches = [*(Branch(parent=node.id, kind="search") for node in searched), *written[:wanted]]
    if not branches:
        branches = [Branch(parent=BASELINE, kind=kinds[0], moves=_MOVES[kinds[0]])]
    analysis = f"The most is left on {_target(context, context.tuned, seconds).name}."
    return _plan(context, number, context.tuned, seconds, branches, analysis)


Reward = tuple[int, float]
"""Of a kind of branch since the first round: the answers that were paid for, and the sum, over its kernels, of the
logarithm of the speed-up of the best kernel by each."""


def branch_rewards(trees: Sequence[Tree]) -> dict[BranchKind, Reward]:
    """What each kind has brought. trees: as the end of each round left them, the first round's first.

    A kernel counts in the round that wrote it, as that left it, against the best of the rounds before: what a later
    search of it finds is not the gain of the call. One that was vetoed or found wrong since gains nothing.
    """
    answers, gains = Counter[BranchKind](), dict[BranchKind, float]()
    for number, (before, after) in enumerate(pairwise(trees), 2):
        best = next((node.best for node in before.best(1)), None)
        if best is None:
            continue
        written = [node for node in after.nodes if node.parent != LIBRARY and node.round == number]
        failed = [attempt for attempt in after.attempts if attempt.round == number]
        paid: list[Node | FailedBranch] = [*written, *failed]
        for made in paid:
            answers[made.made_by] += made.answers
        for node in written:
            now = trees[-1].node(node.id)
            if node.best is not None and now is not None and now.best is not None and not now.vetoed:
                gain = max(0.0, math.log(min(best, 1.0) / node.best))
                gains[node.made_by] = gains.get(node.made_by, 0.0) + gain
    return {kind: (count, gains.get(kind, 0.0)) for kind, count in answers.items()}


def calls_left(context: Context) -> int | None:
    """Model calls that the cap leaves; None without a cap."""
    cap = context.settings.max_calls
    if cap is None:
        return None
    # Open calls count as they do for the cap: a live run's were under way when it was killed, a batch's are to come.
    return max(0, cap - Ledger(context.journal, live=False).calls())


def _ranked(tree: Tree, rewards: Mapping[BranchKind, Reward]) -> list[Branch]:
    """What may be written next, one branch of each kind, the most promising first, untried kinds before all others."""
    total = max(2, sum(calls for calls, _ in rewards.values()))

    def promise(branch: Branch) -> float:
        calls, gain = rewards.get(branch.kind, (0, 0.0))
        return gain / calls + EXPLORATION_WEIGHT * math.sqrt(2 * math.log(total) / calls) if calls else math.inf

    return sorted(_options(tree), key=promise, reverse=True)


_MOVES: dict[BranchKind, tuple[str, ...]] = {
    "template": ("organise the work for what bounds it, and expose every choice of that organisation",),
    "rewrite": ("make it faster over all workloads, above all where the most is left",),
    "expose": ("expose the constants of the kernel as parameters",),
    "extend": ("parameters for choices that are fixed now: how work is divided, staged, or kept",),
}
_ANEW = "organise the work in another way than was tried, for what bounds it, and expose every choice of it"


def _options(tree: Tree) -> Iterator[Branch]:
    """What the tree allows to be written next, in the order in which untried kinds are tried."""
    if not (best := tree.best(1)):
        yield from (Branch(parent=BASELINE, kind=kind, moves=_MOVES[kind]) for kind in ("template", "rewrite"))
        return
    top = best[0]
    assert top.best is not None
    made: list[Node | FailedBranch] = [*tree.nodes, *tree.attempts]
    children = {(one.parent, one.made_by) for one in made}
    near = MAX_EXPOSED_TIME_RATIO * top.best
    whole = [node for node in tree.ranked if not node.template.has_choices and (node.best or math.inf) < near]
    if node := next((node for node in whole if (node.id, "expose") not in children), None):
        yield Branch(parent=node.id, kind="expose", moves=_MOVES["expose"])
    wider = (node for node in tree.best(2) if node.template.has_choices and (node.id, "extend") not in children)
    if node := next(wider, None):
        yield Branch(parent=node.id, kind="extend", moves=(*_stuck(node), *_MOVES["extend"]))
    yield Branch(parent=top.id, kind="rewrite", moves=_MOVES["rewrite"])
    yield Branch(parent=top.id, kind="template", moves=(_ANEW,))


def _stuck(node: Node) -> list[str]:
    """Where the search of a template came to an end, a move each."""
    moves = []
    if edges := [f"{name} beyond {value}" for name, value in node.at_edge.items()]:
        moves.append(f"more values of {', '.join(edges)}")
    if dead := node.without_effect:
        moves.append(f"another choice in the place of {', '.join(dead)}, without effect")
    return moves


KINDS_OF_ARM: dict[Arm, tuple[BranchKind, ...]] = {
    "tree": get_args(BranchKind),
    "template+search": ("template", "extend", "search"),
    "template": ("template",),
    "rewrite": ("rewrite",),
}
"""What the model may plan in each arm of an ablation; a run of a user's is of the arm "tree"."""


def searches(settings: Settings) -> bool:
    """Whether the run's arm searches its templates."""
    return "search" in KINDS_OF_ARM[settings.arm]


TEMPLATES_WITH_SOURCE = 3
"""The best templates that a prompt shows with their source. Others are a line each, and may be branched from too."""
PLAN_RETRIES = 1
"""Retries after a plan that cannot be carried out."""


class NoTemplate(TunesmithError):
    """There is nothing to tune."""


class Planner:
    name = "plan"

    def __call__(self, state: State, context: Context) -> State | Finished:
        number = state.get("round", 0) + 1
        plan = self._decide(context, number, state.get("objections", []))
        if plan is None:
            context.note("plan", no_template(context), stage_of(number))
            return {"round": number, "templates": [], "objections": [], "done": "no template"}
        context.listener(Progress("plan", describe(plan)))
        update: State = {"round": number, "plan": plan.model_dump(mode="json"), "objections": []}
        return Finished(update, Planned(plan=plan))

    def _decide(self, context: Context, number: int, objections: list[str]) -> Plan | None:
        """The plan of the model or of the rules; None without a template. Raises `NoTemplate` where the task cannot get
        one."""
        if (models := context.models) is None:
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
        # An agent that rewrites directly makes the best kernel faster, and needs no plan of a model's for that.
        by_rules = context.settings.planner == "rules" or context.settings.arm == "rewrite"
        context.listener(Progress("plan", f"round {number}{'' if by_rules else ': asking the model'}"))
        # Everything is compared with the baseline, so it must run before anything is decided.
        baseline_seconds(context)
        context.roofline()
        tree = context.tree()
        examine_best(context, tree, stage_of(number))
        if by_rules:
            return plan_on_tree(context, number, tree)
        plan = _ask(context, models, number, tree, objections)
        if isinstance(plan, Plan):
            return plan
        sentence = f"The model gives no plan for round {number} ({plan.detail}); it is planned by rules."
        context.note("plan", sentence, stage_of(number), plan.kind)
        ruled = plan_by_rules(context, number, tree)
        # Where there is no template yet, the model may well write one though it did not plan it.
        return plan_on_tree(context, number, tree) if ruled is None and plan.kind not in HOPELESS else ruled


def _ask(context: Context, models: Models, number: int, tree: Tree, objections: list[str]) -> Plan | ModelFailed:
    """The model's plan; one that cannot be carried out goes back to it."""
    messages, problem = plan_messages(context, number, tree, objections), ""
    for name in ("plan", *(f"plan-repair-{attempt}" for attempt in range(1, PLAN_RETRIES + 1))):
        (reply,) = models.ask_all([ModelCall("plan", stage_of(number), name, messages, PlanAnswer)])
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
    workload = _target(context, context.tuned, context.log.baseline_seconds or {})
    examine(context, "baseline", context.sources.baseline.template, {}, workload, stage)
    for node in tree.best(1):
        assert node.best_config is not None
        examine(context, node.id, node.template, node.best_config, workload, stage)


def plan_messages(context: Context, number: int, tree: Tree, objections: list[str]) -> tuple[Message, ...]:
    """The planner's prompt for a round. What it says depends on the journal alone."""
    full = tree.best(TEMPLATES_WITH_SOURCE)
    # What was not measured yet has no rank, but a planner can only judge it by its source.
    full += [node for node in tree.usable if node.best is None][: max(0, TEMPLATES_WITH_SOURCE - len(full))]
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
    """The sentence for a run that must end because nothing can be tuned."""
    task, backend = context.task.name, context.device.backend
    if context.sources.templates:
        return f"There is no template left to tune: all {backend} templates of the task {task} were excluded."
    return f"No template was found: the task {task} brings no {backend} template, and the model gave none that works."
