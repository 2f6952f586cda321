"""`tunesmith prompts`: the prompts of a task for a model, without asking it and without a device."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

from tunesmith.actors.judging.task_check import check_task
from tunesmith.cli.app import Backend, Target, TaskArgument, echo
from tunesmith.graph.context import Context
from tunesmith.graph.journal.store import Journal
from tunesmith.graph.models.calls import Message
from tunesmith.graph.prompts.facts import examine
from tunesmith.graph.prompts.template_prompt import template_messages
from tunesmith.graph.roles.planner import plan_messages, share
from tunesmith.graph.settings import make_settings
from tunesmith.graph.setup import limits_for
from tunesmith.graph.state import BASELINE, Branch, Plan
from tunesmith.hw.probe import DeviceInfo
from tunesmith.kernels.spec.taskfile import load_task


def prompts(
    task: TaskArgument,
    role: Annotated[Literal["plan", "template", "all"], typer.Option(help="Whose prompts.")] = "all",
    target: Target = None,
    backend: Backend = "auto",
) -> None:
    """Print the prompts of the first round for a model; no model is asked, and no device is needed."""
    loaded = load_task(task)
    limits, index = limits_for(loaded, target, backend)
    device = DeviceInfo(limits.backend, index, limits.name, limits)
    for clause in check_task(loaded, limits, index)[1]:
        echo(f"Note: {clause}.", err=True)
    settings = make_settings(task=task)
    with tempfile.TemporaryDirectory(prefix="tunesmith-") as folder, Journal(Path(folder), create=True) as journal:
        context = Context(loaded, device, (device.limits,), settings, journal, _no_pool)
        tree = context.tree()
        examine(context, "baseline", context.sources.baseline.template, {}, context.tuned[-1], "")
        if role in ("plan", "all"):
            _print("plan", plan_messages(context, 1, tree, []))
        if role in ("template", "all"):
            unknown = "(what the planner answers)"
            branch = Branch(parent=BASELINE, kind="template", moves=(unknown,))
            plan = Plan(
                round=1,
                bottleneck="unknown",
                scope="general",
                workloads=context.tuned_names,
                evaluations=share(context, 1),
                branches=(branch,),
                analysis=unknown,
            )
            _print("template", template_messages(context, plan, branch, tree, []))


def _print(role: str, messages: tuple[Message, ...]) -> None:
    for message in messages:
        typer.echo(f"======== {role}: {message.role} ========\n{message.content}")


def _no_pool() -> NoReturn:
    raise AssertionError("prompts need no pool")
