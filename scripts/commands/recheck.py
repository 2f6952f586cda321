"""`tunesmith recheck`: whether a run's choices still are the best here, such as after a new driver or on another GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from tunesmith.actors.judging.task_check import check_reference
from tunesmith.cli.app import Json
from tunesmith.cli.view.tables import print_json, print_rows, us
from tunesmith.graph.journal.events import Compared
from tunesmith.graph.journal.log import RunLog
from tunesmith.graph.journal.records import Figures, Winner, WorkloadRow
from tunesmith.graph.journal.store import Journal
from tunesmith.graph.settings import as_path
from tunesmith.graph.setup import choose_device, pools
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.probe import probe
from tunesmith.kernels.build.artifact import EvaluationRequest
from tunesmith.kernels.measure.timing import Comparison
from tunesmith.kernels.outcome import describe
from tunesmith.kernels.spec.template import described

ROUNDS, SECONDS = 40, 1.0
"""At most so many rounds, and seconds of sampling for each kernel, on one shape."""
FEW = 3
"""Configurations for a shape: the one that the table has, and the next best of the run's final comparison."""


def recheck(
    table: Annotated[Path, typer.Argument(help="The folder of a run that has ended, or its best/.")],
    seed: Annotated[int, typer.Option(help="Seed of the buffers' contents and of the order of launches.")] = 0,
    as_json: Json = False,
) -> None:
    """Time the best few configurations of a run again on this machine, and say what moved."""
    run = as_path(table, "TABLE")
    with Journal(run.parent if (run / "dispatch.json").is_file() else run, create=False, reading=True) as journal:
        log = RunLog(journal)
        started, verdict, events = log.started, log.verdict(), log.events(Compared)
        if verdict is None or not verdict.dispatch:
            raise TunesmithError(f"{run} has no configuration that is faster than the baseline; there is nothing to time.")
        before = {event.workload: {one.key: one for one in event.entries} for event in events}
        chosen = {one.workload: Winner(template=one.template, config=one.config) for one in verdict.dispatch}
        templates = {key[0]: log.template(key[0]) for entries in before.values() for key in entries}
    device, task = choose_device(started.task, started.device.backend, probe()), started.task
    settings = started.settings.model_copy(update={"roles": {}, "seed": seed})
    baseline = task.sources(device.backend).baseline.template
    workloads = [task.workload(name) for name in chosen]
    check_reference(task, workloads, seed=seed, deadline=settings.reference_deadline)
    found = list[dict[str, Any]]()
    with pools(task, device, settings, []) as make_pool, closing(make_pool()) as pool:
        for name, winner in chosen.items():
            entries = [one for one in before.get(name, {}).values() if one.comparison is not None and one.key != winner.key]
            entries.sort(key=lambda one: one.comparison.ratio if one.comparison else 0.0)
            few = [winner, *entries[: FEW - 1]]
            requests = [EvaluationRequest(at, templates[one.template], one.config, (name,)) for at, one in enumerate(few, 1)]
            own = EvaluationRequest(0, baseline, {}, (name,))
            now = pool.compare(own, requests, name, seed=seed, rounds=ROUNDS, budget_seconds=SECONDS)
            was = before.get(name, {}).get(winner.key)
            row = {"workload": name, "was": was and was.comparison and was.comparison.ratio}
            found.append(row | moved([(described("", one.config), result) for one, result in zip(few, now.results)]))
    about = {"device": device.name, "driver": device.driver}
    about |= {"tuned_on": started.device.name, "tuned_with_driver": started.device.driver}
    if as_json:
        print_json({**about, "workloads": found})
    else:
        typer.echo("{tuned_on}, driver {tuned_with_driver}; now {device}, driver {driver}.".format(**about))
        headings = ("workload", "ratio then", "now", "99 %", "configuration", "what moved")
        print_rows(headings, map(_shown, found), prose=("configuration", "what moved"))
    if any(row["moved"] for row in found):
        raise typer.Exit(1)
