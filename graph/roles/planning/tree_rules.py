"""Planning by rules where a model writes: which moves on the tree of templates and kernels the next calls pay for.

Every call then asks for code; none asks for a plan. The first round asks for a template and for a rewrite of the task's
own kernel. Later rounds choose among what the tree allows: rewrite the best kernel, expose the constants of the best
rewrite as parameters, extend one of the two best templates, or make a new template of the best. The kinds are the arms
of a bandit (UCB1: Auer, Cesa-Bianchi, Fischer, "Finite-time analysis of the multiarmed bandit problem", Machine
Learning 47, 2002): a kind's reward for a call is the logarithm of what it made the best kernel faster by. The first
round's gains over the task's own kernel are no reward: they say what that kernel is worth, and would outweigh all that
later calls can bring. The best template is searched further beside them, which costs no call.

A plan is a function of the journal alone, so that a resumed run plans the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tunesmith.graph.context import Context
from tunesmith.graph.journal.events import Planned
from tunesmith.graph.journal.tree import LIBRARY, Node, Tree
from tunesmith.graph.models.ledger import read_account
from tunesmith.graph.roles.baseline import baseline_seconds
from tunesmith.graph.roles.planning.rules import bottleneck, expectation, headroom, share
from tunesmith.graph.state import BASELINE, Branch, BranchKind, Plan

EXPLORE = 0.05
"""Weight of UCB1's exploration, of the size of a reward: on twelve kernels a call of the second and third round brought
0.015 to 0.043 in the mean, by its kind."""
NEAR = 1.1
"""How near to the best kernel, as a factor of its time, a rewrite must be to be worth parameters."""


@dataclass(frozen=True, slots=True)
class Yield:
    """What a kind of branch has brought since the first round. calls: answers that were paid for; gain: the sum, over
    its kernels, of the logarithm of how much faster each made the best one."""

    calls: int = 0
    gain: float = 0.0


def plan_on_tree(context: Context, number: int, tree: Tree, kinds: Sequence[BranchKind]) -> Plan:
    """The plan of round `number`, of branches of these kinds. Measures the baseline and the device's roofs where the
    journal has none."""
    baseline = baseline_seconds(context)
    known = next((node.best_seconds for node in tree.best(1)), {})
    seconds = {w.name: known.get(w.name, baseline[w.name]) for w in context.tuned}
    target = max(context.tuned, key=lambda one: headroom(context, one, seconds[one.name]))
    calls = calls_left(context)
    wanted = context.settings.branches if calls is None else min(context.settings.branches, calls)
    ends = [entry.sequence for entry in context.log.entries(Planned) if entry.event.plan.round > 1]
    ranked = _ranked(tree, yields([*map(context.tree, ends), tree]))
    written = [branch for branch in ranked if branch.kind in kinds]
    branches = [*(_searches(tree) if "search" in kinds else []), *written[:wanted]]
    if not branches:
        branches = [Branch(parent=BASELINE, kind="template", moves=_MOVES["template"])]
    return Plan(
        round=number,
        bottleneck=bottleneck(context, target, seconds[target.name]),
        scope="general",
        workloads=tuple(workload.name for workload in context.tuned),
        evaluations=share(context, number),
        branches=tuple(branches),
        expected=expectation(context, target, seconds[target.name]),
        analysis=f"The most is left on {target.name}.",
    )


def yields(trees: Sequence[Tree]) -> dict[BranchKind, Yield]:
    """What each kind has brought. trees: as the end of each round left them, the first round's first.

    A kernel counts in the round that wrote it, as that left it, against the best of the rounds before: what a later
    search of it finds is not the gain of the call. One that was vetoed or found wrong since gains nothing.
    """
    found: dict[BranchKind, Yield] = {}

    def count(kind: BranchKind, calls: int, gain: float) -> None:
        known = found.get(kind, Yield())
        found[kind] = Yield(known.calls + calls, known.gain + gain)

    for number, (before, after) in enumerate(pairwise(trees), 2):
        best = next((node.best for node in before.best(1)), None)
        if best is None:
            continue
        for attempt in after.attempts:
            if attempt.round == number:
                count(attempt.made_by, attempt.answers, 0.0)
        for node in after.nodes:
            if node.parent != LIBRARY and node.round == number:
                now = trees[-1].node(node.id)
                sound = node.best is not None and now is not None and now.best is not None and not now.vetoed
                gain = math.log(min(best, 1.0) / node.best) if sound and node.best is not None else 0.0
                count(node.made_by, node.answers, max(0.0, gain))
    return found


def calls_left(context: Context) -> int | None:
    """Model calls that the cap leaves; None without a cap."""
    cap = context.settings.max_calls
    if cap is None:
        return None
    # Open calls count as they do for the cap: a live run's were under way when it was killed, a batch's are to come.
    return max(0, cap - read_account(context.journal, live=False).calls())


def _ranked(tree: Tree, known: dict[BranchKind, Yield]) -> list[Branch]:
    """What may be written next, one branch of each kind, the most promising first."""
    options = list(_options(tree))
    total = sum(one.calls for one in known.values())

    def promise(branch: Branch) -> float:
        tried = known.get(branch.kind)
        if tried is None or not tried.calls:
            return math.inf
        return tried.gain / tried.calls + EXPLORE * math.sqrt(2 * math.log(max(2, total)) / tried.calls)

    order = sorted(range(len(options)), key=lambda at: (-promise(options[at]), at))
    return [options[at] for at in order]


_MOVES: dict[BranchKind, tuple[str, ...]] = {
    "template": ("organise the work for what bounds it, and expose every choice of that organisation",),
    "rewrite": ("make it faster over all workloads, above all where the most is left",),
    "expose": ("expose the constants of the kernel as parameters",),
    "extend": ("parameters for what is fixed now: how work is divided, staged, or kept",),
}
_ANEW = "organise the work in another way than was tried, for what bounds it, and expose every choice of it"


def _options(tree: Tree) -> Iterator[Branch]:
    """What the tree allows to be written next, in the order in which untried kinds are tried."""
    best = tree.best(1)
    if not best:
        yield Branch(parent=BASELINE, kind="template", moves=_MOVES["template"])
        yield Branch(parent=BASELINE, kind="rewrite", moves=_MOVES["rewrite"])
        return
    top = best[0]
    assert top.best is not None
    children = {(node.parent, node.made_by) for node in tree.nodes}
    children |= {(attempt.parent, attempt.made_by) for attempt in tree.attempts}
    rewrites = [node for node in tree.ranked if not node.template.has_choices]
    for node in rewrites:
        if node.best is not None and node.best < NEAR * top.best and (node.id, "expose") not in children:
            yield Branch(parent=node.id, kind="expose", moves=_MOVES["expose"])
            break
    for node in tree.best(2):
        if node.template.has_choices and (node.id, "extend") not in children:
            yield Branch(parent=node.id, kind="extend", moves=(*_stuck(node), *_MOVES["extend"]))
            break
    yield Branch(parent=top.id, kind="rewrite", moves=_MOVES["rewrite"])
    yield Branch(parent=top.id, kind="template", moves=(_ANEW,))


def _stuck(node: Node) -> tuple[str, ...]:
    """Where the search of a template came to an end, a move each."""
    edges = [f"{name} beyond {value}" for name, value in node.at_edge.items()]
    moves = [f"more values of {', '.join(edges)}"] if edges else []
    if dead := node.without_effect:
        moves.append(f"another choice in the place of {', '.join(dead)}, without effect")
    return tuple(moves)


def _searches(tree: Tree) -> list[Branch]:
    """What is searched further beside that, without a call: the task's next template, or the best one."""
    if tree.untried:
        return [Branch(parent=tree.untried[0].id, kind="search")]
    return [Branch(parent=node.id, kind="search") for node in tree.ranked if node.template.has_choices][:1]
