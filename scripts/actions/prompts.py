"""`prompts`: what a model would be asked about a task, without asking and without a device."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import NoReturn

import typer

from tunesmith.cli.actions.task_check import limits_for, require_right
from tunesmith.graph.context import Context
from tunesmith.graph.journal.store import Journal
from tunesmith.graph.models.calls import Message
from tunesmith.graph.prompts.evidence import examine
from tunesmith.graph.prompts.template_prompt import template_messages
from tunesmith.graph.roles.planning.planner import plan_messages
from tunesmith.graph.roles.planning.rules import share
from tunesmith.graph.settings import SettingsError, make_settings
from tunesmith.graph.state import BASELINE, Branch, Plan
from tunesmith.hw.probe import Device
from tunesmith.kernels.spec.files.taskfile import load_task


def show_prompts(name: str, role: str, target: str | None, backend: str) -> None:
    """Prints the first round's prompts of the planner and the templater; what only measuring tells is not in them."""
    if role not in ("plan", "template", "all"):
        raise SettingsError(f"--role: there is no '{role}'; choose one of plan, template, all.")
    task = load_task(name)
    limits, index = limits_for(task, target, backend)
    device = Device(limits.backend, index, limits.name, limits)
    require_right(task, limits, index)
    settings = make_settings(task=name)
    with tempfile.TemporaryDirectory(prefix="tunesmith-") as folder, Journal(Path(folder), create=True) as journal:
        context = Context(task, device, (device.limits,), settings, journal, _no_pool)
        tree = context.tree()
        examine(context, "baseline", context.sources.baseline.template, {}, context.tuned[-1], "")
        if role in ("plan", "all"):
            _print("plan", plan_messages(context, 1, tree, []))
        if role in ("template", "all"):
            moves = ("(what the planner answers)",)
            branch = Branch(parent=BASELINE, kind="template", moves=moves)
            names = tuple(workload.name for workload in context.tuned)
            plan = Plan(
                round=1,
                bottleneck="unknown",
                scope="general",
                workloads=names,
                evaluations=share(context, 1),
                branches=(branch,),
                analysis="(what the planner answers)",
            )
            _print("template", template_messages(context, plan, branch, tree, []))


def _print(role: str, messages: tuple[Message, ...]) -> None:
    for message in messages:
        typer.echo(f"======== {role}: {message.role} ========\n{message.content}")


def _no_pool() -> NoReturn:
    raise AssertionError("prompts need no pool")
