"""The tree of templates of a run: the origin of each, its measurements, and the effects of its parameters.

A pure function of the run's log, which is the only memory. A round may branch from any template of the tree.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from tunesmith.graph.journal.events import BranchAbandoned, Evaluated, Event, Explained, TemplateAdded, TemplateVetoed
from tunesmith.graph.journal.log import RunLog, objective, round_of, seconds_of
from tunesmith.graph.journal.store import Entry
from tunesmith.graph.state import BranchKind
from tunesmith.kernels.outcome import Evaluation, Resources, describe
from tunesmith.kernels.spec.template import Config, Template, config_key

REJECTED = "wrong in the last check"
"""The kind of failure of configurations that the search took for right."""
E = TypeVar("E", bound=Event)
LIBRARY = "library"
"""The parent of a template that the task brings."""
TOP_SHARE, MIN_TOP, MAX_TOP = 0.2, 3, 10
"""Share of a template's measured configurations that count as its best ones, and the bounds on their number."""
NO_EFFECT_RATIO = 1.01
"""A parameter whose values differ by less in time is reported as having no effect."""
NOTABLE_TIME_RATIO = 0.98
"""Time ratio below which an improvement on one workload is reported."""
AGREEMENT_SHARE = 0.8
"""Share of the best configurations that must agree on a value for it to be named."""


@dataclass(frozen=True, slots=True)
class Node:
    """A template that can be tuned, or branched from.

    parent: a template's id, "baseline", or "library" for a template of the task; round: of its first appearance, 0
    while unused; found: its evaluations, in order, without rejected ones; vetoed: why a role took it out, empty if none
    did; ranked: complete objectives (time over baseline, geometric mean over the tuned workloads) with the evaluation,
    the best first; made_by: the kind of its branch; answers: until it worked; rejected: configurations that the search
    took for right and a last comparison or an examination found wrong, and why.
    """

    template: Template
    parent: str
    moves: tuple[str, ...] = ()
    round: int = 0
    found: tuple[Evaluation, ...] = ()
    ranked: tuple[tuple[float, Evaluation], ...] = ()
    vetoed: str = ""
    made_by: BranchKind = "template"
    answers: int = 0
    rejected: tuple[tuple[Config, str], ...] = ()

    @property
    def id(self) -> str:
        return self.template.id

    @property
    def best(self) -> float | None:
        return self.ranked[0][0] if self.ranked else None

    @property
    def best_config(self) -> Config | None:
        return self.ranked[0][1].config if self.ranked else None

    @property
    def best_resources(self) -> Resources | None:
        return self.ranked[0][1].resources if self.ranked else None

    @property
    def best_seconds(self) -> dict[str, float]:
        """The least time on each workload, over all configurations."""
        least: dict[str, float] = {}
        for evaluation in self.found:
            if evaluation.failure is None:
                for name, seconds in seconds_of(evaluation).items():
                    least[name] = min(seconds, least.get(name, math.inf))
        return least

    @property
    def failures(self) -> list[tuple[str, int, str]]:
        """Kind, how often, and one example, the most frequent first."""
        kinds: Counter[str] = Counter()
        examples: dict[str, str] = {}
        for evaluation in self.found:
            if (failure := evaluation.failure) is not None:
                kinds[failure.kind] += 1
                examples.setdefault(failure.kind, f"{describe(failure)} at {evaluation.config}")
        for config, why in self.rejected:
            kinds[REJECTED] += 1
            examples.setdefault(REJECTED, f"{why} at {config}")
        return [(kind, count, examples[kind]) for kind, count in kinds.most_common()]

    @property
    def shared(self) -> dict[str, tuple[object, int, int]]:
        """Parameter -> value that the best configurations share, how many of them have it, and how many there are."""
        count = min(MAX_TOP, max(MIN_TOP, math.ceil(len(self.ranked) * TOP_SHARE)))
        best = [evaluation.config for _, evaluation in self.ranked[:count]]
        if len(best) < MIN_TOP:
            return {}
        most = {p.name: Counter(config[p.name] for config in best).most_common(1)[0] for p in self.template.parameters}
        return {
            parameter.name: (*most[parameter.name], len(best))
            for parameter in self.template.parameters
            if len(parameter.values) > 1 and most[parameter.name][1] >= AGREEMENT_SHARE * len(best)
        }

    @property
    def at_edge(self) -> dict[str, object]:
        """Parameter -> value, where the best configuration has the least or the greatest of at least three sizes and a
        further one could exist: below 1 there is none, and whole numbers from 0 on name alternatives rather than
        sizes."""
        found: dict[str, object] = {}
        for parameter in self.template.parameters:
            sizes = [one for one in parameter.values if isinstance(one, int | float) and not isinstance(one, bool)]
            if self.best_config is None or len(sizes) < max(3, len(parameter.values)):
                continue
            if sorted(sizes) == list(range(len(sizes))):
                continue
            value = self.best_config[parameter.name]
            if value == max(sizes) or (value == min(sizes) and min(sizes) > 1):
                found[parameter.name] = value
        return found

    @property
    def faster_by_workload(self) -> dict[str, tuple[float, Config]]:
        """Workload -> time of another configuration there, as a share of the best configuration's, and that
        configuration, where the share is below `NOTABLE_TIME_RATIO`: the cost of one configuration for all
        workloads."""
        if not self.ranked:
            return {}
        of_best = seconds_of(self.ranked[0][1])
        found: dict[str, tuple[float, Config]] = {}
        for _, evaluation in self.ranked[1:]:
            for name, seconds in seconds_of(evaluation).items():
                least = found[name][0] if name in found else NOTABLE_TIME_RATIO
                if name in of_best and seconds / of_best[name] < least:
                    found[name] = (seconds / of_best[name], evaluation.config)
        return found

    @property
    def effects(self) -> list[tuple[str, dict[object, float]]]:
        """For each parameter the least objective seen with each of its values, as a multiple of the best of all; the
        parameter whose values differ most comes first. It uses measurements only, no model of the space: a value that
        was tried seldom may look worse than it is."""
        found: list[tuple[str, dict[object, float]]] = []
        if self.best is None:
            return found
        for parameter in self.template.parameters:
            least: dict[object, float] = {}
            for value, evaluation in self.ranked:
                least.setdefault(evaluation.config[parameter.name], value / self.best)
            if len(least) > 1:
                found.append((parameter.name, {one: least[one] for one in parameter.values if one in least}))
        return sorted(found, key=lambda one: -max(one[1].values()))

    @property
    def without_effect(self) -> list[str]:
        """Parameters whose values all came within `NO_EFFECT_RATIO` of the best."""
        return [name for name, seen in self.effects if max(seen.values()) < NO_EFFECT_RATIO]


@dataclass(frozen=True, slots=True)
class FailedBranch:
    """A branch without a working template: its purpose, and why it did not work at the end of all repairs."""

    round: int
    parent: str
    moves: tuple[str, ...]
    problem: str
    made_by: BranchKind = "template"
    answers: int = 1


@dataclass(frozen=True, slots=True)
class Tree:
    """nodes in the order in which they appeared, unused ones of the library last."""

    nodes: tuple[Node, ...]
    attempts: tuple[FailedBranch, ...] = ()
    explanations: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    def node(self, template: str) -> Node | None:
        """The node of a template's id, or of the name of a template of the task."""
        by_name = (node for node in self.nodes if node.parent == LIBRARY and node.template.name == template)
        return next((node for node in self.nodes if node.id == template), None) or next(by_name, None)

    @property
    def untried(self) -> list[Node]:
        """The task's own templates that no round has used yet."""
        return [node for node in self.usable if node.parent == LIBRARY and node.round == 0]

    @property
    def ranked(self) -> list[Node]:
        """The measured nodes, the best first, without vetoed ones."""
        measured = [node for node in self.nodes if node.best is not None and not node.vetoed]
        return sorted(measured, key=lambda node: node.best or math.inf)

    def best(self, count: int) -> list[Node]:
        """The first `count` of `ranked`."""
        return self.ranked[:count]

    @property
    def usable(self) -> list[Node]:
        return [node for node in self.nodes if not node.vetoed]


def read_tree(
    log: RunLog,
    library: Sequence[Template],
    workloads: Sequence[str],
    weights: Mapping[str, float],
    before: int | None = None,
) -> Tree:
    """The tree as the log has it now, or had it before the entry `before`, with templates of `library` that were not
    used yet. Objectives are over `workloads`."""

    def past(kind: type[E]) -> Sequence[Entry[E]]:
        return [entry for entry in log.entries(kind) if before is None or entry.sequence < before]

    baseline, wrong = log.baseline_quantities, log.rejected(before)
    vetoed = {entry.event.template: entry.event.why for entry in past(TemplateVetoed)}
    evaluations: dict[str, list[Evaluation]] = {}
    for measured in past(Evaluated):
        evaluations.setdefault(measured.event.evaluation.template, []).append(measured.event.evaluation)
    nodes: dict[str, Node] = {}
    for entry in past(TemplateAdded):
        added = entry.event
        if added.id in nodes:
            continue
        found, rejected = list[Evaluation](), dict[str, tuple[Config, str]]()
        for one in evaluations.get(added.id, []):
            key = config_key(one.config)
            if (added.id, key) in wrong:
                rejected[key] = one.config, wrong[added.id, key]
            else:
                found.append(one)
        values = [(objective(one, workloads, baseline, weights, log.objective), one) for one in found if baseline]
        ranked = sorted(((value, one) for value, one in values if value is not None), key=lambda item: item[0])
        nodes[added.id] = Node(
            added.template,
            added.parent,
            added.moves,
            round_of(entry.stage),
            tuple(found),
            tuple(ranked),
            vetoed.get(added.id, ""),
            added.made_by,
            added.answers,
            tuple(rejected.values()),
        )
    for template in library:
        nodes.setdefault(template.id, Node(template, LIBRARY, vetoed=vetoed.get(template.id, "")))
    attempts = tuple(
        FailedBranch(round=round_of(entry.stage), **entry.event.model_dump(exclude={"branch"}))
        for entry in past(BranchAbandoned)
    )
    return Tree(tuple(nodes.values()), attempts, {round_of(one.stage): one.event.lines for one in past(Explained)})
