"""The templater's prompt, a pure function of journal, plan and branch; its worked example is the library's most similar
task, by traits of the plain source. Retrieval of that kind is the idea of Trümper et al., "Performance Embeddings" (ICS
2023); theirs are learned, these are counted, for a handful of kernels.
"""

from __future__ import annotations

import functools
import math
import re
from typing import Any

from tunesmith.graph.context import Context
from tunesmith.graph.journal.log import REJECTED, Tree
from tunesmith.graph.models.calls import Message
from tunesmith.graph.prompts import conversation, render, scrubbed
from tunesmith.graph.prompts.facts import choices, node_facts, run_facts
from tunesmith.graph.state import Branch, Plan
from tunesmith.kernels.build.guard import HEADER_FOLDERS, HEADERS
from tunesmith.kernels.spec.expression import FUNCTIONS
from tunesmith.kernels.spec.task import Task
from tunesmith.kernels.spec.taskfile import library_tasks, read_task
from tunesmith.kernels.spec.template import BackendName, Template

_TRAITS = (
    r"\b(?:__syncthreads|barrier|work_group_barrier)\s*\(",
    r"\b__shared__\b|\b__local\b|\blocal\s+\w|\b__shfl|\bsub_group_",
    r"\batom(?:ic)?[A-Z_]\w*\s*\(",
    r"\b(?:for|while)\s*\(",
    r"\b(?:native_|__|h|f)?(?:exp|log|sqrt|rsqrt|tanh|erf|sin|cos|pow)\w*\s*\(",
)
"""Patterns of barriers, shared memory, atomics, loops and functions beyond arithmetic in a source."""
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)

MAX_EXAMPLE = 12_000
"""Most characters of a template that serves as the example, some 4,000 tokens: the example is most of a prompt."""


def features(task: Task, backend: BackendName) -> tuple[float, ...]:
    """The features of `task`, of similar weight: how often its source has each trait, up to twice; the logarithm of
    elements written per element read, which is below 0 for a kernel that reduces."""
    source = _COMMENT.sub(" ", task.sources(backend).baseline.template.source)
    counts = {"in": 0, "out": 0, "inout": 0, "scalar": 0}
    for argument in task.arguments:
        counts[argument.role] += math.prod(task.shape_of(argument, task.workloads[0]))
    read, written = counts["in"] + counts["inout"], counts["out"] + counts["inout"]
    return (
        *(min(2, len(re.findall(pattern, source))) for pattern in _TRAITS),
        math.log(max(written, 1) / max(read, 1), 8),
    )


def example(task: Task, backend: BackendName) -> dict[str, Any] | None:
    """The library's task nearest to `task`, of another name, and its template; among equals the first by name."""
    own = features(task, backend)
    others = [pair for pair in _library(backend) if pair[0].name != task.name]
    if not others:
        return None
    shown, template = min(others, key=lambda pair: (math.dist(own, features(pair[0], backend)), pair[0].name))
    return {"name": shown.name, "summary": shown.summary, "source": template.source, "choices": choices(template)}


@functools.cache
def _library(backend: BackendName) -> tuple[tuple[Task, Template], ...]:
    """Each task with its first template that is short enough."""
    pairs = []
    for task in map(read_task, library_tasks().values()):
        templates = task.sources(backend).templates if backend in task.backends else ()
        pairs += [(task, each) for each in templates if len(each.source) <= MAX_EXAMPLE][:1]
    return tuple(pairs)


MAX_DESCRIPTION = 300
"""Characters of a kernel's own description in the history."""


def template_messages(
    context: Context, plan: Plan, branch: Branch, tree: Tree, objections: list[str]
) -> tuple[Message, ...]:
    """The prompt of one branch of a round, for a template or, in a rewrite, for a whole kernel."""
    facts = run_facts(context, tree, {plan.bottleneck})
    node, limits = tree.node(branch.parent), context.device.limits
    parameters, anew = branch.kind != "rewrite", branch.kind in ("template", "rewrite")
    # A template of this run shows the form of an answer, and also what matters for this task.
    own = [each for each in tree.ranked if each.template.has_choices]
    shown_by_parent = node is not None and node.template.has_choices
    sibling = own[0] if parameters and own and not shown_by_parent else None
    system = render(
        "template_system",
        task=facts["task"],
        device=facts["device"],
        limits=limits,
        types=sorted(context.task.types),
        headers=sorted(HEADERS),
        folders=HEADER_FOLDERS,
        functions=[f"{name}()" for name in FUNCTIONS],
        example=example(context.task, limits.backend) if parameters and not shown_by_parent and not sibling else None,
        parameters=parameters,
        kind=branch.kind,
    )
    user = render(
        "template",
        **facts,
        # A branch that keeps the parent's organisation needs no facts about the machine.
        parent=node_facts(context, node, source=True, machine=anew) if node is not None else None,
        sibling=node_facts(context, sibling, source=True) if sibling is not None else None,
        plan=plan,
        branch=branch,
        objections=objections,
        parameters=parameters,
        history=_history(tree, branch.parent) if anew else [],
    )
    return conversation(system, user)


def _history(tree: Tree, parent: str) -> list[str]:
    """The results of all other kernels and templates, a line each, so that none of them is written again."""
    failures = {node.id: f"{REJECTED}, {node.rejected[0][1]}" for node in tree.nodes if node.rejected}
    measured = [
        f"round {node.round}, {node.made_by}: {' '.join(node.template.description.split())[:MAX_DESCRIPTION]}: "
        + (f"{1 / node.best:.3f}x the baseline's speed" if node.best else failures.get(node.id, "not measured"))
        for node in tree.nodes
        if node.round and node.id != parent
    ]
    failed = [
        f"round {each.round}, {each.made_by}: {'; '.join(each.moves)[:MAX_DESCRIPTION]}: {each.problem[:1500]}"
        for each in tree.attempts
    ]
    return [scrubbed(line) for line in measured + failed]
