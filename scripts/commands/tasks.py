"""`tunesmith tasks`."""

from __future__ import annotations

from tunesmith.cli.app import Json


def tasks(json: Json = False) -> None:
    """List the tasks that ship with Tunesmith."""
    from tunesmith.cli.actions.show import show_tasks

    show_tasks(as_json=json)
