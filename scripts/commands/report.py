"""`tunesmith report`: the results of a run, as text, Markdown, JSON or CSV."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tunesmith.cli.app import Force, Json
from tunesmith.cli.tables import print_json, print_summary
from tunesmith.graph.results.summary import read_summary, write_csv
from tunesmith.hw.errors import TunesmithError


def report(
    run_dir: Annotated[Path, typer.Argument(help="The folder of a run.")],
    csv: Annotated[Path | None, typer.Option(help="Write all measurements to this CSV file.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, as for a pull request.")] = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Print the results of a run, and the place of its HTML report."""
    asked = [
        name for name, given in (("--csv", csv is not None), ("--markdown", markdown), ("--json", as_json)) if given
    ]
    if len(asked) > 1:
        raise TunesmithError(f"{' and '.join(asked)}: they do not go together; call `tunesmith report` once for each.")
    if force and csv is None:
        raise TunesmithError("--force: it goes with --csv; leave it out.")
    if csv is not None:
        rows = write_csv(run_dir, csv, force=force)
        print(f"{csv}: {rows} rows, one for each configuration and workload, and for each final comparison.")
        return
    summary = read_summary(run_dir)
    if markdown:
        from tunesmith.graph.results.report import render_markdown  # imports Jinja and the charts

        sys.stdout.write(render_markdown(summary))
    elif as_json:
        print_json(summary.to_json())
    else:
        print_summary(summary, run_dir)
