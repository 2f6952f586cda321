"""`tunesmith recheck`: whether a run's choices are still the best here, as after a new driver or on another GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tunesmith.actors.judging.task_check import check_reference
from tunesmith.cli.app import Json
from tunesmith.cli.tables import print_json, print_rows, speedup
from tunesmith.graph.journal.events import Compared, Winner
from tunesmith.graph.journal.log import RunLog
from tunesmith.graph.journal.store import Journal
from tunesmith.graph.settings import as_path
from tunesmith.graph.setup import choose_device, pools
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.probe import probe
from tunesmith.kernels.build.artifact import EvaluationRequest
from tunesmith.kernels.measure.timing import Comparison
from tunesmith.kernels.outcome import Outcome, describe
from tunesmith.kernels.spec.template import described

ROUNDS, SECONDS = 40, 1.0
"""At most so many rounds, and seconds of sampling for each kernel, on one shape."""
FEW = 3
"""Configurations timed on a shape: its own, and the next best of the run's comparisons there."""


def recheck(
    table: Annotated[Path, typer.Argument(help="The folder of a run that has ended, or its best/.")],
    seed: Annotated[int, typer.Option(help="Seed of the buffers' contents and of the order of launches.")] = 0,
    as_json: Json = False,
) -> None:
    """Time the best few configurations of a run again on this machine, and say what changed."""
    run = as_path(table, "TABLE")
    with Journal(run.parent if (run / "dispatch.json").is_file() else run, create=False, reading=True) as journal:
        log, then = RunLog(journal), dict[str, dict[tuple[str, str], tuple[Winner, float]]]()
        started, verdict, templates = log.started, log.verdict(), log.templates
        for event in log.events(Compared):
            seen = ((one, one.comparison) for one in event.entries)
            then.setdefault(event.workload, {}).update({one.key: (one, it.ratio) for one, it in seen if it is not None})
    if verdict is None or not verdict.dispatch:
        raise TunesmithError(f"{run} has no configuration that is faster than the baseline: there is nothing to time.")
    task, device = started.task, choose_device(started.task, started.device.backend, probe())
    baseline, found = task.sources(device.backend).baseline.template, list[dict[str, Any]]()
    shapes = [task.workload(one.workload) for one in verdict.dispatch]
    check_reference(task, shapes, seed=seed, deadline=started.settings.reference_deadline)
    with pools(task, device, started.settings, []) as make_pool, make_pool() as pool:
        for own in verdict.dispatch:
            name, before = own.workload, then.get(own.workload, {})
            others = sorted((ratio, key) for key, (_, ratio) in before.items() if key != own.key)
            few = [own, *(before[key][0] for _, key in others[: FEW - 1])]
            pairs = [(baseline, {}), *((templates[one.template], one.config) for one in few)]
            plain, *asked = [EvaluationRequest(at, *pair, (name,)) for at, pair in enumerate(pairs)]
            now = pool.compare(plain, asked, name, seed=seed, rounds=ROUNDS, budget_seconds=SECONDS).results
            texts = [described(templates[one.template].name, one.config) for one in few]
            row = {"workload": name, "configuration": texts[0], "then": own.ratio}
            found.append(row | moved(list(zip(texts, now, strict=True))))
    about = {"tuned_on": f"{started.device.name}, driver {started.device.driver}"}
    about["now_on"] = f"{device.name}, driver {device.driver}"
    if as_json:
        print_json({**about, "workloads": found})
    else:
        typer.echo(f"Tuned on {about['tuned_on']}; now on {about['now_on']}.")
        headings = ("workload", "configuration", "speed-up then", "now", "99 %", "change")
        print_rows(headings, map(_shown, found), left=2, prose=("configuration", "change"))
    if any(row["moved"] for row in found):
        raise typer.Exit(1)


def moved(results: Sequence[tuple[str, Comparison | Outcome]]) -> dict[str, Any]:
    """What changed for the first of `results`, a shape's own configuration: a sentence, empty where nothing did."""
    (_, own), *others = results
    if not isinstance(own, Comparison):
        return {"now": None, "low": None, "high": None, "moved": f"it fails: {describe(own)}"}
    faster = [(it.ratio, text) for text, it in others if isinstance(it, Comparison) and it.high < own.low]
    sentence = {"faster": "", "slower": "the baseline is faster"}.get(own.verdict, "no longer shown to be faster")
    sentence = f"faster now: {min(faster)[1]}" if faster else sentence
    return {"now": own.ratio, "low": own.low, "high": own.high, "moved": sentence}


def _shown(row: Mapping[str, Any]) -> tuple[str, ...]:
    now = speedup(row["now"], row["low"], row["high"])
    return row["workload"], row["configuration"], f"{1 / row['then']:.2f}x", *now, row["moved"] or "none"
