"""`devices`, `tasks`, `space`, `report`: what there is, without running anything."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Column, Table

from tunesmith.cli.actions.task_check import limits_for, require_right
from tunesmith.cli.app import echo
from tunesmith.cli.view.tables import console, print_summary, print_table
from tunesmith.graph.results.csv_table import write_csv
from tunesmith.graph.results.summary import read_summary
from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.probe import probe
from tunesmith.kernels.rewrite.template import with_rules
from tunesmith.kernels.space.feasible import (
    default_refused,
    device_names,
    feasible,
    reason_of,
    require_points,
)
from tunesmith.kernels.spec.files.taskfile import library_tasks, load_task, read_task
from tunesmith.kernels.spec.parameter import described
from tunesmith.kernels.spec.task import TaskError, Workload
from tunesmith.kernels.spec.template import Template


def _print_json(data: Any) -> None:
    json.dump(data, sys.stdout, indent=2)
    sys.stdout.write("\n")


def show_devices(*, as_json: bool) -> None:
    """Prints the devices of this machine and the notes on what is missing."""
    inventory = probe()
    if as_json:
        _print_json(inventory.to_json())
        return
    out = console()
    table = Table("backend", "index", "name", "arch", "multiprocessors", "memory, GiB", "last cache, MiB", "clock, MHz")
    for device in inventory.devices:
        limits = device.limits
        table.add_row(
            device.backend,
            str(device.index),
            device.name,
            limits.arch,
            str(limits.sm_count or "-"),
            _scaled(limits.memory_bytes, 2**30),
            _scaled(limits.l2_bytes, 2**20),
            _scaled(limits.clock_hz, 1e6),
        )
    if inventory.devices:
        print_table(out, table)
    for note in inventory.notes:
        echo(note)


def _scaled(value: float | None, unit: float) -> str:
    return "-" if value is None else f"{value / unit:.1f}"


def show_tasks(*, as_json: bool) -> None:
    """Prints the library's tasks."""
    loaded = {name: read_task(path) for name, path in library_tasks().items()}
    if as_json:
        _print_json(
            [
                {
                    "name": name,
                    "summary": task.summary,
                    "backends": list(task.backends),
                    "workloads": [w.name for w in task.workloads if not w.held_out],
                    "held_out": [w.name for w in task.workloads if w.held_out],
                }
                for name, task in loaded.items()
            ]
        )
        return
    what = Column("what it computes", min_width=40)
    table = Table("task", what, "backends", "workloads", "held out")
    for name, task in loaded.items():
        held_out = sum(workload.held_out for workload in task.workloads)
        table.add_row(
            name, escape(task.summary), ", ".join(task.backends), str(len(task.workloads) - held_out), str(held_out)
        )
    print_table(console(), table)


def show_space(name: str, workload: str | None, target: str | None, backend: str, *, as_json: bool) -> None:
    """Prints the size of a task's feasible spaces on a device or target."""
    task = load_task(name)
    limits, index = limits_for(task, target, backend)
    workloads = (task.workload(workload),) if workload else task.workloads_for(limits.kind, held_out=False)
    if not workloads:
        raise TaskError(f"The task {task.name} has no workload for a {limits.kind}; name one with --workload.")
    brought = task
    task, reasons = with_rules(task, limits.backend)
    every, device = task.sources(limits.backend).templates, device_names(limits)
    # Where none runs here, the first one's reason is the answer.
    templates = tuple(one for one in every if one.runs_on(device)) or every
    others = {one.name: one.refusals(device) for one in every if one not in templates}
    found = [
        _space(template, workloads, task.workloads_for(limits.kind, held_out=True), limits) for template in templates
    ]
    if not found:
        why = f", and the rules make none ({'; '.join(reasons)})" if reasons else ""
        raise TaskError(
            f"The task {task.name} has no {limits.backend} template{why}, so it has no space: write one and list it in "
            f"`templates` under [backends.{limits.backend}] of its task.toml (docs/tasks.md), or let a model write "
            f"one: `tunesmith tune {name} --model NAME`."
        )
    require_right(brought, limits, index)
    if as_json:
        _print_json(
            {
                "task": task.name,
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
            f"{task.name}, template {entry['template']}, on {limits.name}: {entry['feasible']} of "
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


def write_measurements(run_dir: Path, out: Path, *, force: bool) -> None:
    """Writes the measurements of a run as CSV and says how many rows there are."""
    rows = write_csv(run_dir, out, force=force)
    print(f"{out}: {rows} rows, one for each configuration and workload, and for each final comparison.")


def show_markdown(run_dir: Path) -> None:
    """Prints a run's report as Markdown."""
    from tunesmith.graph.results.report import render_markdown

    sys.stdout.write(render_markdown(read_summary(run_dir)))


def show_report(run_dir: Path, *, as_json: bool) -> None:
    """Prints the summary of a run."""
    summary = read_summary(run_dir)
    if as_json:
        _print_json(summary.to_json())
    else:
        print_summary(summary, run_dir)
