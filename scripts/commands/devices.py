"""`tunesmith devices`: the devices here."""

from __future__ import annotations

from rich.table import Table

from tunesmith.cli.app import Json, echo
from tunesmith.cli.view.tables import console, print_json, print_table
from tunesmith.hw.probe import probe


def devices(as_json: Json = False) -> None:
    """List the devices that can be tuned on, and the missing packages and drivers for others."""
    inventory = probe()
    if as_json:
        print_json(inventory.to_json())
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
