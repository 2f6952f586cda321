"""The templater's question: a pure function of journal, plan and branch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunesmith.graph.context import Context
from tunesmith.graph.journal.tree import Tree
from tunesmith.graph.models.calls import Message
from tunesmith.graph.prompts import conversation, render, scrubbed
from tunesmith.graph.prompts.facts import baseline_facts, choices, device_facts, node_facts, task_facts, workload_facts
from tunesmith.graph.state import Branch, Plan
from tunesmith.kernels.build.guard import HEADER_FOLDERS, HEADERS
from tunesmith.kernels.spec.operations import FUNCTIONS
from tunesmith.kernels.spec.taskfile import library_tasks, load_task

EXAMPLES = ("silu_and_mul", "softmax")
"""Library tasks that may stand as the worked example, the first that is not the task itself."""


def template_messages(
    context: Context,
    plan: Plan,
    branch: Branch,
    tree: Tree,
    objections: list[str],
    *,
    parameters: bool = True,
    history: Sequence[str] = (),
) -> tuple[Message, ...]:
    """The prompt for one template (or, without parameters, one kernel) of a round."""
    task, device = task_facts(context), device_facts(context)
    node = tree.node(branch.parent)
    limits = context.device.limits
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
        headers=sorted(HEADERS),
        folders=HEADER_FOLDERS,
        functions=[f"{name}()" for name in FUNCTIONS],
        example=example(context.task.name, limits.backend) if parameters else None,
        parameters=parameters,
    )
    user = render(
        "template",
        task=task,
        device=device,
        workloads=workload_facts(context, tree),
        held_out=[workload.name for workload in context.held_out],
        baseline=baseline_facts(context),
        parent=node_facts(context, node, source=True) if node is not None else None,
        analysis=plan.analysis,
        bottleneck=plan.bottleneck,
        moves=branch.moves,
        objections=objections,
        parameters=parameters,
        history=[scrubbed(line) for line in history],
    )
    return conversation(system, user)


def rewrite_messages(context: Context, plan: Plan, tree: Tree) -> tuple[Message, ...]:
    """The prompt for a kernel as a whole: the best so far, and what became of all others."""
    history = [
        f"round {node.round}: {'; '.join(node.moves)}: "
        + (f"{1 / node.best:.3f}x the baseline's speed" if node.best else "not measured")
        for node in tree.nodes
        if node.round
    ]
    failed = [f"round {a.round}: {'; '.join(a.moves)}: {a.problem[:1500]}" for a in tree.attempts]
    return template_messages(context, plan, plan.branches[0], tree, [], parameters=False, history=history + failed)


def example(task: str, backend: str) -> dict[str, Any] | None:
    """A template of the library, of another task than `task`."""
    for name in EXAMPLES:
        if name != task and name in library_tasks():
            shown = load_task(name)
            for template in shown.sources(backend).templates[:1]:
                return {
                    "name": name,
                    "summary": shown.summary,
                    "source": template.source,
                    "choices": choices(template),
                }
    return None
