"""The templater's question: a pure function of journal, plan and branch."""

from __future__ import annotations

from typing import Any

from tunesmith.graph.context import Context
from tunesmith.graph.journal.tree import REJECTED, Node, Tree
from tunesmith.graph.models.calls import Message
from tunesmith.graph.prompts import conversation, render, scrubbed
from tunesmith.graph.prompts.facts import baseline_facts, choices, device_facts, node_facts, task_facts, workload_facts
from tunesmith.graph.prompts.similar import most_similar
from tunesmith.graph.state import Branch, Plan
from tunesmith.kernels.build.guard import HEADER_FOLDERS, HEADERS
from tunesmith.kernels.spec.operations import FUNCTIONS
from tunesmith.kernels.spec.task import Task
from tunesmith.kernels.spec.template import BackendName

_SELDOM = {
    *(name for name in HEADERS if "_primitives" in name),
    *("cuda_awbarrier.h", "cuda_fp4.h", "cuda_fp6.h", "cuda_runtime.h", "device_launch_parameters.h", "sm_80_rt.h"),
    *("vector_functions.h", "vector_types.h"),
}
"""Headers that a prompt leaves out: parts of others, what is built in, and what few kernels need."""
HISTORY = 300
"""Characters of a kernel's own description in the list of what was tried."""


def template_messages(
    context: Context, plan: Plan, branch: Branch, tree: Tree, objections: list[str]
) -> tuple[Message, ...]:
    """The prompt for what one branch of a round wants written: a template, or for a rewrite a whole kernel."""
    task, device = task_facts(context), device_facts(context)
    node = tree.node(branch.parent)
    limits = context.device.limits
    parameters, anew = branch.kind != "rewrite", branch.kind in ("template", "rewrite")
    # A template of this run shows the form of an answer, and what mattered here besides.
    own = [one for one in tree.ranked if one.template.has_choices]
    shown_by_parent = node is not None and node.template.has_choices
    sibling = own[0] if parameters and own and not shown_by_parent else None
    system = render(
        "template_system",
        language="a CUDA" if limits.backend == "cuda" else "an OpenCL",
        backend=limits.backend,
        arch=device["arch"],
        gpu=limits.kind == "gpu",
        registers=limits.registers_per_sm,
        signature=task["signature"],
        sizes=task["sizes"],
        types=sorted(context.task.types),
        headers=sorted(name for name in HEADERS if name not in _SELDOM),
        folders=HEADER_FOLDERS,
        functions=[f"{name}()" for name in FUNCTIONS],
        example=example(context.task, limits.backend) if parameters and not shown_by_parent and not sibling else None,
        parameters=parameters,
        kind=branch.kind,
    )
    user = render(
        "template",
        task=task,
        device=device,
        workloads=workload_facts(context, tree),
        held_out=[workload.name for workload in context.held_out],
        baseline=baseline_facts(context),
        # What keeps the parent's work as it is needs no look at the machine.
        parent=node_facts(context, node, source=True, machine=anew) if node is not None else None,
        sibling=node_facts(context, sibling, source=True) if sibling is not None else None,
        analysis=plan.analysis,
        bottleneck=plan.bottleneck,
        kind=branch.kind,
        moves=branch.moves,
        objections=objections,
        parameters=parameters,
        history=_history(tree, branch.parent) if anew else [],
    )
    return conversation(system, user)


def _history(tree: Tree, parent: str) -> list[str]:
    """What became of all kernels and templates so far but the parent, a line each; for an author who organises the work
    anew and should neither repeat one nor a mistake."""
    measured = [
        f"round {node.round}, {node.made_by}: {' '.join(node.template.description.split())[:HISTORY]}: "
        + _outcome(node)
        for node in tree.nodes
        if node.round and node.id != parent
    ]
    failed = [
        f"round {one.round}, {one.made_by}: {'; '.join(one.moves)[:HISTORY]}: {one.problem[:1500]}"
        for one in tree.attempts
    ]
    return [scrubbed(line) for line in measured + failed]


def _outcome(node: Node) -> str:
    if node.best:
        return f"{1 / node.best:.3f}x the baseline's speed"
    return f"{REJECTED}, {node.rejected[0][1]}" if node.rejected else "not measured"


def example(task: Task, backend: BackendName) -> dict[str, Any] | None:
    """A template of the library's task that is most like `task`."""
    found = most_similar(task, backend)
    if found is None:
        return None
    shown, template = found
    return {
        "name": shown.name,
        "summary": shown.summary,
        "source": template.source,
        "choices": choices(template),
    }
