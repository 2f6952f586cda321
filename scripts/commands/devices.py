"""`tunesmith devices`."""

from __future__ import annotations

from tunesmith.cli.app import Json


def devices(json: Json = False) -> None:
    """List the devices that can be tuned on, and what is missing for others."""
    from tunesmith.cli.actions.show import show_devices

    show_devices(as_json=json)
