"""`tunesmith report`, `export`, `compare` and `wisdom`: the results of runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tunesmith.cli.app import Force, Json, echo
from tunesmith.cli.tables import print_json, print_rows, print_summary, short, speedup, us
from tunesmith.graph.history import VARIABLE, StoredResult, open_store
from tunesmith.graph.results.exports import export_run
from tunesmith.graph.results.report import render_markdown
from tunesmith.graph.results.summary import compare_runs, read_summary, write_csv
from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.spec.template import described


def report(
    run_dir: Annotated[Path, typer.Argument(help="The folder of a run.")],
    csv: Annotated[Path | None, typer.Option(help="Write all measurements to this CSV file.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, as for a pull request.")] = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Print the results of a run, and the place of its HTML report."""
    forms = {"--csv": csv is not None, "--markdown": markdown, "--json": as_json}
    asked = [name for name, given in forms.items() if given]
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
        print(render_markdown(summary))
    elif as_json:
        print_json(summary.to_json())
    else:
        print_summary(summary, run_dir)


def export(
    run_dir: Annotated[Path, typer.Argument(help="The folder of a run that has ended.")],
    form: Annotated[
        str,
        typer.Option(
            "--as",
            help="CUDA: torch, cupy, header, hf-kernels; Triton: triton-cache; all, also OpenCL: t4 (for tuners).",
        ),
    ],
    kernel: Annotated[
        str, typer.Option(help="triton-cache: the kernel with @triton.autotune, as FILE.py:NAME.", metavar="FILE:NAME")
    ] = "",
    out: Annotated[Path | None, typer.Option(help="A new folder (default: RUN_DIR/exports/FORM).")] = None,
) -> None:
    """Export the results of a run as a package for other programs."""
    folder = export_run(run_dir, form, out, kernel)
    typer.echo(f"{folder}")
    for path in sorted(one for one in folder.rglob("*") if one.is_file()):
        typer.echo(f"  {path.relative_to(folder)}")


NOT_PAIRED = (
    "Each speed-up is over the run's own baseline, with its 99 % interval. Times of different runs were not taken in "
    "turn: to say which of two kernels is faster, compare them in one run."
)


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN...", help="The folders of finished runs of one task.")],
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, as for a pull request.")] = False,
    as_json: Json = False,
) -> None:
    """Compare runs of one task: their results on each shape, and their differences."""
    found = compare_runs(runs)
    if as_json:
        print_json(found)
        return
    names = [f"run {number}" for number in range(1, len(runs) + 1)]
    shapes = [[_shape(shape), *map(_of_run, shape["results"])] for shape in found["shapes"]]
    facts = [[name, *(text or "unknown" for text in texts)] for name, texts in found["differences"].items()]
    tables = [("Microseconds per launch, and speed-up over the run's own baseline", "workload", shapes)]
    tables += [("Differences", "", facts)] if facts else []
    if markdown:
        typer.echo(f"## {found['task']}: {len(runs)} runs\n")
    for name, run, sentence in zip(names, found["runs"], found["sentences"], strict=True):
        echo(f"- **{name}**, `{run}`: {sentence}" if markdown else f"{name}: {run}: {sentence}")
    for title, first, rows in tables:
        if markdown:
            lines = [_markdown_row([first, *names]), "|" + "---|" * (1 + len(names)), *map(_markdown_row, rows)]
            typer.echo("\n".join(["", f"### {title}", "", *lines]))
        else:
            print_rows([first, *names], rows, title, left=1 + len(names), prose=names)
    echo(f"\n{NOT_PAIRED}" if markdown else NOT_PAIRED)


def _markdown_row(row: Sequence[str]) -> str:
    cells = (cell.replace("|", "\\|").replace("\n", " ") for cell in row)
    return f"| {' | '.join(cells)} |"


def _shape(shape: dict[str, Any]) -> str:
    held_out = [one for one in shape["held_out"] if one is not None]
    where = "held out" if all(held_out) else "held out in some"
    return f"{shape['workload']} ({where})" if any(held_out) else str(shape["workload"])


def _of_run(one: dict[str, Any] | None) -> str:
    if one is None or one["general"] is None:
        return "not measured" if one is None else "no general configuration"
    general = one["general"]
    times, interval = speedup(general["ratio"], general["low"], general["high"])
    return f"{us(general['seconds'])} us, {times} ({interval}), {short(general['verdict'])}"


ACTIONS = {"list": "", "show": "a task, as in `tunesmith wisdom show softmax`", "export": "a file", "import": "a file"}
"""The actions, with the argument that each needs."""


def wisdom(
    action: Annotated[str, typer.Argument(help="list, show, export or import.")],
    name: Annotated[str | None, typer.Argument(help="The task to show, or the file to write or read.")] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """List, show, export or import the results of earlier runs."""
    if action not in ACTIONS:
        raise TunesmithError(f"wisdom: there is no '{action}'; use one of {', '.join(ACTIONS)}.")
    if name is None and ACTIONS[action]:
        raise TunesmithError(f"wisdom {action}: name {ACTIONS[action]}.")
    if force and action != "export":
        raise TunesmithError(f"--force: it goes with `wisdom export`; leave it out of `wisdom {action}`.")
    store = open_store()
    if store is None:
        raise TunesmithError(f"wisdom: it is switched off ({VARIABLE}=off), so there is nothing to {action}.")
    if action == "export":
        typer.echo(f"{store.write_file(Path(str(name)), force=force)} results written to {name}")
    elif action == "import":
        typer.echo(f"{store.read_file(Path(str(name)))} new results in {store.path}")
    elif not (entries := store.entries(name)) and not as_json:
        typer.echo(f"{store.path} has nothing" + ("." if name is None else f" on the task {name}."))
    elif as_json:
        print_json([entry.model_dump(mode="json") for entry in entries])
    elif action == "list":
        print_rows(("task", "device", "driver", "shapes", "configurations", "newest"), _by_device(entries), left=3)
    else:
        headings = ("device", "driver", "shape", "template", "configuration", "microseconds", "speed-up", "99 %")
        entries.sort(key=lambda one: (one.device, str(one.sizes), one.seconds))
        print_rows(headings, map(_stored, entries), left=5)


def _by_device(entries: list[StoredResult]) -> Iterator[tuple[str, ...]]:
    groups: dict[tuple[str, str, str], list[StoredResult]] = {}
    for one in entries:
        groups.setdefault((one.task, one.device, one.driver), []).append(one)
    for key, found in sorted(groups.items()):
        shapes = {json.dumps([one.sizes, one.types]) for one in found}
        configs = {json.dumps([one.template, one.config]) for one in found}
        yield *key, str(len(shapes)), str(len(configs)), max(one.at for one in found)[:10]


def _stored(one: StoredResult) -> tuple[str, ...]:
    shape = "x".join(map(str, one.sizes.values())) + "".join(f" {dtype}" for dtype in one.types.values())
    kernel = (one.template, described(one.template, one.config))
    interval = f"{1 / one.high:.2f}-{1 / one.low:.2f}"
    return one.device, one.driver, shape, *kernel, us(one.seconds), f"{1 / one.ratio:.2f}x", interval
