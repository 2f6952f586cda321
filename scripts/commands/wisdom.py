"""`tunesmith wisdom`."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from tunesmith.cli.app import Force, Json


def wisdom(
    action: Annotated[str, typer.Argument(help="list, show, export or import.")],
    what: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(help="The task to show, or the file to write or read."),
    ] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """List, show, export or import what earlier runs found."""
    from tunesmith.cli.actions.wisdom import run_wisdom

    run_wisdom(action, what, force=force, as_json=json)
