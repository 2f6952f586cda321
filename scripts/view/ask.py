"""Asks on the terminal whether a plan may be carried out: yes, edit it first, or stop here."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import click

from tunesmith.graph.models.calls import Waiting
from tunesmith.graph.progress import Listener
from tunesmith.graph.roles.planning.approval import Ask, PlanError
from tunesmith.graph.state import Plan


def ask_on(listener: Listener) -> Ask:
    """An `Ask` on the terminal where `listener` shows progress, which pauses meanwhile."""

    def ask(plan: Plan, file: Path, read: Callable[[], Plan]) -> Plan:
        with getattr(listener, "paused", nullcontext)():
            return _ask(plan, file, read)

    return ask


def _ask(plan: Plan, file: Path, read: Callable[[], Plan]) -> Plan:
    click.echo(describe(plan), err=True)
    while True:
        answer = click.prompt("Carry it out? [y]es, [e]dit, [q]uit", default="y", err=True).strip().lower()
        if answer in ("q", "quit"):
            raise Waiting(f"Stopped before round {plan.round}; go on with `tunesmith resume {file.parent}`.")
        if answer in ("e", "edit"):
            click.edit(filename=str(file))
        elif answer not in ("y", "yes"):
            continue
        try:
            plan = read()
        except PlanError as error:
            click.echo(f"{error}", err=True)
            continue
        if answer in ("y", "yes"):
            return plan
        click.echo(describe(plan), err=True)


def describe(plan: Plan) -> str:
    """A plan as people read it."""
    where = ", ".join(plan.workloads)
    bound = "bottleneck unknown" if plan.bottleneck == "unknown" else f"probably {plan.bottleneck}-bound"
    lines = [f"Round {plan.round}: {bound}; {plan.evaluations} evaluations on {where}."]
    lines += [plan.analysis] if plan.analysis else []
    for branch in plan.branches:
        changes = f": {'; '.join(branch.moves)}" if branch.moves else ""
        lines.append(f"  {branch.kind} {'' if branch.kind == 'search' else 'from '}{branch.parent}{changes}")
    return "\n".join([*lines, *([plan.expected] if plan.expected else [])])
