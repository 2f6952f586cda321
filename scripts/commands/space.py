"""`tunesmith space`: the size of a task's feasible spaces on a device or target, and why points are rejected."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Column, Table

from tunesmith.actors.judging.task_check import check_task
from tunesmith.cli.app import Backend, Json, Target, TaskArgument, echo
from tunesmith.cli.view.tables import console, print_json, print_table
from tunesmith.graph.setup import limits_for
from tunesmith.hw.limits import DeviceLimits
from tunesmith.kernels.rewrite.template import with_rules
from tunesmith.kernels.space import default_refused, device_names, feasible, reason_of, require_points
from tunesmith.kernels.spec.task import TaskError, Workload
from tunesmith.kernels.spec.taskfile import load_task
from tunesmith.kernels.spec.template import Template, described


def space(
    task: TaskArgument,
    workload: Annotated[
        str | None, typer.Option(help="The space of one workload (default: what all tuned workloads allow).")
    ] = None,
    target: Target = None,
    backend: Backend = "auto",
    as_json: Json = False,
) -> None:
    """Show a task's parameters, how many configurations are feasible, and how many are rejected for which reason."""
    written = load_task(task)
    limits, index = limits_for(written, target, backend)
    workloads = (written.workload(workload),) if workload else written.workloads_for(limits.kind, held_out=False)
    if not workloads:
        raise TaskError(f"The task {written.name} has no workload for a {limits.kind}; name one with --workload.")
    made, reasons = with_rules(written, limits.backend)
    every, device = made.sources(limits.backend).templates, device_names(limits)
    # Where none runs here, the first one's reason is the answer.
    templates = tuple(one for one in every if one.runs_on(device)) or every
    others = {one.name: one.refusals(device) for one in every if one not in templates}
    found = [
        _space(template, workloads, made.workloads_for(limits.kind, held_out=True), limits) for template in templates
    ]
    if not found:
        why = f", and the rules make none ({'; '.join(reasons)})" if reasons else ""
        raise TaskError(
            f"The task {made.name} has no {limits.backend} template{why}, so it has no space: write one and list it in "
            f"`templates` under [backends.{limits.backend}] of its task.toml (docs/tasks.md), or let a model write "
            f"one: `tunesmith tune {task} --model NAME`."
        )
    for clause in check_task(written, limits, index)[1]:
        echo(f"Note: {clause}.", err=True)
    if as_json:
        print_json(
            {
                "task": made.name,
                "target": limits.name,
                "arch": limits.arch,
                "workloads": [w.name for w in workloads],
                "templates": found,
                "rules_not_applied": reasons,
                "for_other_devices": others,
            }
        )
        return
    out = console()
    for template, entry in zip(templates, found, strict=True):
        echo(
            f"{made.name}, template {entry['template']}, on {limits.name}: {entry['feasible']} of "
            f"{entry['cartesian']} points are feasible"
        )
        if template.description:
            echo(template.description)
        if entry["default"]:
            point = described(template.name, template.default_config)
            echo(f"The default, {point}, is none of them: {entry['default']}")
        for one in entry["held_out"]:
            if one["feasible"] == entry["feasible"]:
                continue
            count = (
                "none of them is feasible" if not one["feasible"] else f"only {one['feasible']} of them are feasible"
            )
            point = described(template.name, template.default_config)
            such = f", such as {point}: {one['default']}" if one["default"] else ""
            line = f"On the held-out workload {one['workload']}: {count}{such}"
            echo(f"{line.rstrip('.')}.")
        values = Table("parameter", "values", "default", Column("what it is", min_width=24))
        for parameter in template.parameters:
            known = ", ".join(map(str, parameter.values))
            values.add_row(parameter.name, escape(known), escape(str(parameter.start)), escape(parameter.doc))
        print_table(out, values)
        table = Table("rejected", "rule", "kind", Column("because", min_width=20))
        for rejection in entry["rejected"]:
            told = (rejection["rule"], rejection["kind"], rejection["because"])
            table.add_row(str(rejection["points"]), *map(escape, told))
        if entry["rejected"]:
            print_table(out, table)
    if reasons:
        echo("Rules that did not apply to the plain kernel:")
    for why in reasons:
        echo(f"  {why}")
    for other, refusals in others.items():
        why = ", ".join(f"`{one}`" for one in refusals)
        echo(f"Template {other} is for other devices than {limits.name}: it needs {why}.")


def _space(
    template: Template, workloads: tuple[Workload, ...], held_out: tuple[Workload, ...], limits: DeviceLimits
) -> dict[str, Any]:
    space = feasible(template, workloads, limits)
    require_points(space, template)
    kinds = {rule.label: rule.kind for rule in space.rules}
    rejected = [
        {"rule": label, "kind": kinds[label], "points": points, "because": reason_of(template, label)}
        for label, points in space.rejected.items()
        if points
    ]
    return {
        "template": template.name,
        "description": template.description,
        "parameters": {parameter.name: list(parameter.values) for parameter in template.parameters},
        "cartesian": space.cartesian,
        "feasible": len(space),
        "default": default_refused(template, workloads, limits),
        "rejected": rejected,
        "held_out": [_on_held_out(template, workloads, one, limits) for one in held_out if one not in workloads],
    }


def _on_held_out(
    template: Template, workloads: tuple[Workload, ...], held_out: Workload, limits: DeviceLimits
) -> dict[str, Any]:
    """How many of the points that are feasible on `workloads` are feasible on a held-out one, too, and why the default
    is not, if it is not."""
    both = feasible(template, [*workloads, held_out], limits)
    why = default_refused(template, [held_out], limits)
    return {"workload": held_out.name, "feasible": len(both), "default": why}
