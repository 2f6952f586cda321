"""`tunesmith space` and `prompts`: what a tuning would search and ask a model, without a device."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer

from tunesmith.actors.judging.task_check import check_task
from tunesmith.cli.app import Backend, Json, Target, TaskArgument, echo
from tunesmith.cli.tables import print_json, print_rows, say
from tunesmith.graph.context import Context
from tunesmith.graph.journal.log import Journal
from tunesmith.graph.models.calls import Message
from tunesmith.graph.prompts.facts import examine
from tunesmith.graph.roles.planner import new_plan, plan_messages
from tunesmith.graph.roles.templater import template_messages
from tunesmith.graph.settings import make_settings
from tunesmith.graph.setup import limits_for
from tunesmith.graph.state import BASELINE, Branch
from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.probe import DeviceInfo
from tunesmith.kernels.rewrite.template import with_rules
from tunesmith.kernels.space import default_refused, device_names, feasible, require_points
from tunesmith.kernels.spec.task import TaskError, Workload
from tunesmith.kernels.spec.taskfile import load_task
from tunesmith.kernels.spec.template import Template, described


def space(
    task: TaskArgument,
    workload: Annotated[
        str | None, typer.Option(help="The space of one workload (default: of all tuned workloads together).")
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
    # If no template runs here, the first one's reason is shown.
    templates = tuple(one for one in every if one.runs_on(device)) or every
    others = {one.name: one.refusals(device) for one in every if one not in templates}
    held_out = made.workloads_for(limits.kind, held_out=True)
    found = [_space(template, workloads, held_out, limits) for template in templates]
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
        names = [one.name for one in workloads]
        about = {"task": made.name, "target": limits.name, "arch": limits.arch, "workloads": names}
        print_json({**about, "templates": found, "rules_not_applied": reasons, "for_other_devices": others})
        return
    for template, entry in zip(templates, found, strict=True):
        _print(template, entry, f"{made.name}, template {template.name}, on {limits.name}")
    for other, refusals in others.items():
        why = ", ".join(f"`{refusal}`" for refusal in refusals)
        echo(f"Template {other} is for other devices than {limits.name}: it needs {why}.")


def _print(template: Template, entry: dict[str, Any], name: str) -> None:
    say(f"{name}: {entry['feasible']} of {entry['cartesian']} points are feasible")
    if template.description:
        about, *refused = template.description.split(" Not applied: ")
        say(about + (f" {len(refused)} rule(s) do not apply (--json says why)." if refused else ""))
    default = described(template.name, template.default_config)
    if entry["default"]:
        say(f"The default, {default}, is not feasible: {entry['default']}")
    for row in entry["held_out"]:
        if row["feasible"] == entry["feasible"]:
            continue
        count = f"only {row['feasible']} of them are feasible" if row["feasible"] else "none of them is feasible"
        why = f", such as {default}: {row['default']}" if row["default"] else ""
        line = f"On the held-out workload {row['workload']}: {count}{why}"
        say(f"{line.rstrip('.')}.")
    parameters = ((p.name, ", ".join(map(str, p.values)), str(p.start), p.doc) for p in template.parameters)
    print_rows(("parameter", "values", "default", "meaning"), parameters, left=3, prose=("values", "meaning"))
    rejected = ((str(row["points"]), row["rule"], row["kind"], row["because"]) for row in entry["rejected"])
    print_rows(("rejected", "rule", "kind", "because"), rejected, left=0, prose=("rule", "kind", "because"))


def _space(
    template: Template, workloads: tuple[Workload, ...], held_out: tuple[Workload, ...], limits: DeviceLimits
) -> dict[str, Any]:
    space = feasible(template, workloads, limits)
    require_points(space, template)
    rules = {rule.label: rule for rule in space.rules}
    rejected = [
        {"rule": label, "kind": rules[label].kind, "points": points, "because": rules[label].because}
        for label, points in space.rejected.items()
        if points
    ]
    # Points that are feasible on a held-out workload, too, and why the default is not, if so.
    further = list[dict[str, Any]]()
    for other in (one for one in held_out if one not in workloads):
        count, why = len(feasible(template, [*workloads, other], limits)), default_refused(template, [other], limits)
        further.append({"workload": other.name, "feasible": count, "default": why})
    parameters = {parameter.name: list(parameter.values) for parameter in template.parameters}
    about = {"template": template.name, "description": template.description, "parameters": parameters}
    counts = {"cartesian": space.cartesian, "feasible": len(space)}
    refused = {"default": default_refused(template, workloads, limits), "rejected": rejected}
    return {**about, **counts, **refused, "held_out": further}


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
            _print_messages("plan", plan_messages(context, 1, tree, []))
        if role in ("template", "all"):
            unknown = "(what the planner answers)"
            branch = Branch(parent=BASELINE, kind="template", moves=(unknown,))
            plan = new_plan(context, 1, context.tuned_names, [branch], bottleneck="unknown", analysis=unknown)
            _print_messages("template", template_messages(context, plan, branch, tree, []))


def _print_messages(role: str, messages: tuple[Message, ...]) -> None:
    for message in messages:
        typer.echo(f"======== {role}: {message.role} ========\n{message.content}")


def _no_pool() -> NoReturn:
    raise AssertionError("prompts need no pool")
