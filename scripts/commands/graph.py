"""`tunesmith graph`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


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
