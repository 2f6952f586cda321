"""`tunesmith report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from tunesmith.cli.app import Force, Json


def report(
    run_dir: Annotated[Path, typer.Argument(help="The folder of a run.")],
    csv: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Write all measurements to this CSV file."),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, as for a pull request.")] = False,
    force: Force = False,
    json: Json = False,
) -> None:
    """Print what a run found, and say where its HTML report is."""
    from tunesmith.cli.actions.show import show_markdown, show_report, write_measurements
    from tunesmith.hw.errors import TunesmithError

    asked = [name for name, given in (("--csv", csv is not None), ("--markdown", markdown), ("--json", json)) if given]
    if len(asked) > 1:
        raise TunesmithError(f"{' and '.join(asked)}: they do not go together; call `tunesmith report` once for each.")
    if force and csv is None:
        raise TunesmithError("--force: it goes with --csv; leave it out.")
    if csv is not None:
        write_measurements(run_dir, csv, force=force)
    elif markdown:
        show_markdown(run_dir)
    else:
        show_report(run_dir, as_json=json)
