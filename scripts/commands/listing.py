"""`tunesmith devices`, `tasks` and `graph`: what there is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tunesmith.cli.app import Json, echo
from tunesmith.cli.tables import print_json, print_rows
from tunesmith.hw.probe import probe
from tunesmith.kernels.spec.taskfile import library_tasks, read_task


def devices(as_json: Json = False) -> None:
    """List the devices that can be tuned on, and the missing packages and drivers for others."""
    inventory = probe()
    if as_json:
        print_json(inventory.to_json())
        return
    headings = ("backend", "index", "name", "arch", "multiprocessors", "memory, GiB", "last cache, MiB", "clock, MHz")
    rows = []
    for device in inventory.devices:
        limits = device.limits
        scaled = ((limits.memory_bytes, 2**30), (limits.l2_bytes, 2**20), (limits.clock_hz, 1e6))
        figures = ("-" if value is None else f"{value / unit:.1f}" for value, unit in scaled)
        about = (device.backend, str(device.index), device.name, limits.arch)
        rows.append((*about, str(limits.sm_count or "-"), *figures))
    print_rows(headings, rows, left=4)
    for note in inventory.notes:
        echo(note)


def tasks(as_json: Json = False) -> None:
    """List the tasks that ship with Tunesmith."""
    rows: list[dict[str, Any]] = []
    for name, path in library_tasks().items():
        task = read_task(path)
        tuned, held_out = ([one.name for one in task.workloads if one.held_out == out] for out in (False, True))
        about = {"name": name, "summary": task.summary, "backends": list(task.backends)}
        rows.append({**about, "workloads": tuned, "held_out": held_out})
    if as_json:
        print_json(rows)
        return
    cells = []
    for row in rows:
        counts = (str(len(row[kind])) for kind in ("workloads", "held_out"))
        cells.append((row["name"], row["summary"], ", ".join(row["backends"]), *counts))
    print_rows(("task", "computes", "backends", "workloads", "held out"), cells, left=3, prose=("computes",))


def graph(
    settings: Annotated[
        Path | None,
        typer.Option(help="A TOML file of settings, whose further roles are drawn too.", exists=True, dir_okay=False),
    ] = None,
) -> None:
    """Print the state machine as a mermaid drawing."""
    from tunesmith.graph.build import draw
    from tunesmith.graph.settings import make_settings, read_settings

    typer.echo(draw(make_settings(task="any", **(read_settings(settings) if settings is not None else {})).roles))
