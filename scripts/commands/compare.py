"""`tunesmith compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tunesmith.cli.app import Json


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN...", help="The folders of finished runs of one task.")],
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, as for a pull request.")] = False,
    json: Json = False,
) -> None:
    """Put runs of one task beside each other: what each found on each shape, and in what they differ."""
    from tunesmith.cli.actions.compare import show_comparison

    show_comparison(runs, markdown=markdown, as_json=json)
