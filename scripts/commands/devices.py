"""`tunesmith devices`: the devices here."""

from __future__ import annotations

from tunesmith.cli.app import Json, echo
from tunesmith.cli.tables import print_json, print_rows
from tunesmith.hw.probe import probe


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
