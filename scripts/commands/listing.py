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
    print_rows(
        ("backend", "index", "name", "arch", "multiprocessors", "memory, GiB", "last cache, MiB", "clock, MHz"),
        (
            (
                device.backend,
                str(device.index),
                device.name,
                device.limits.arch,
                str(device.limits.sm_count or "-"),
                _scaled(device.limits.memory_bytes, 2**30),
                _scaled(device.limits.l2_bytes, 2**20),
                _scaled(device.limits.clock_hz, 1e6),
            )
            for device in inventory.devices
        ),
        left=4,
    )
    for note in inventory.notes:
        echo(note)


def _scaled(value: float | None, unit: float) -> str:
    return "-" if value is None else f"{value / unit:.1f}"


def tasks(as_json: Json = False) -> None:
    """List the tasks that ship with Tunesmith."""
    rows: list[dict[str, Any]] = []
    for name, path in library_tasks().items():
        task = read_task(path)
        tuned, held_out = ([one.name for one in task.workloads if one.held_out == out] for out in (False, True))
        backends = list(task.backends)
        rows.append(
            {"name": name, "summary": task.summary, "backends": backends, "workloads": tuned, "held_out": held_out}
        )
    if as_json:
        print_json(rows)
        return
    print_rows(
        ("task", "computes", "backends", "workloads", "held out"),
        (
            (
                row["name"],
                row["summary"],
                ", ".join(row["backends"]),
                str(len(row["workloads"])),
                str(len(row["held_out"])),
            )
            for row in rows
        ),
        left=3,
        prose=("computes",),
    )


def graph(
    settings: Annotated[
        Path | None,
        typer.Option(help="A TOML file of settings, whose further roles are drawn too.", exists=True, dir_okay=False),
    ] = None,
) -> None:
    """Print the state machine as a mermaid drawing."""
    from tunesmith.graph.build import draw
    from tunesmith.graph.settings import make_settings, read_settings

    typer.echo(draw(None if settings is None else make_settings(task="any", **read_settings(settings)).roles))
