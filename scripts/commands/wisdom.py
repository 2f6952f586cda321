"""`tunesmith wisdom`: the store of earlier results, for people and for other machines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from tunesmith.cli.app import Force, Json
from tunesmith.cli.tables import print_json, print_rows, us
from tunesmith.graph.history import VARIABLE, HistoryError, StoredResult, open_store
from tunesmith.kernels.spec.template import described

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
        raise HistoryError(f"wisdom: there is no '{action}'; use one of {', '.join(ACTIONS)}.")
    if name is None and ACTIONS[action]:
        raise HistoryError(f"wisdom {action}: name {ACTIONS[action]}.")
    if force and action != "export":
        raise HistoryError(f"--force: it goes with `wisdom export`; leave it out of `wisdom {action}`.")
    store = open_store()
    if store is None:
        raise HistoryError(f"wisdom: it is switched off ({VARIABLE}=off), so there is nothing to {action}.")
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
        print_rows(
            headings, map(_row, sorted(entries, key=lambda one: (one.device, str(one.sizes), one.seconds))), left=5
        )


def _by_device(entries: list[StoredResult]) -> Iterator[tuple[str, ...]]:
    groups: dict[tuple[str, str, str], list[StoredResult]] = {}
    for one in entries:
        groups.setdefault((one.task, one.device, one.driver), []).append(one)
    for key, found in sorted(groups.items()):
        shapes = {json.dumps([one.sizes, one.types]) for one in found}
        configs = {json.dumps([one.template, one.config]) for one in found}
        yield *key, str(len(shapes)), str(len(configs)), max(one.at for one in found)[:10]


def _row(one: StoredResult) -> tuple[str, ...]:
    shape = "x".join(map(str, one.sizes.values())) + "".join(f" {dtype}" for dtype in one.types.values())
    kernel = (one.template, described(one.template, one.config))
    interval = f"{1 / one.high:.2f}-{1 / one.low:.2f}"
    return one.device, one.driver, shape, *kernel, us(one.seconds), f"{1 / one.ratio:.2f}x", interval
