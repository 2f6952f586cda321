"""Measures a whole space: every feasible configuration of a template on one workload, as a table for simulations.

The table has Kernel Tuner's cache format. Every measurement is journalled at once in a folder beside the table, so an
interrupted exhaustion goes on where it was when it is started again; the folder is removed once the table is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from tunesmith.actors.judging.task_check import check_reference
from tunesmith.graph.journal.events import Evaluated, ExhaustStarted
from tunesmith.graph.journal.log import Journal, JournalError, RunLog, remove_journal
from tunesmith.graph.progress import Listener, Progress, silent
from tunesmith.graph.run import hold_run
from tunesmith.graph.settings import make_settings, require_writable_file
from tunesmith.graph.setup import choose_device, inventory_for, pools
from tunesmith.hw.errors import TunesmithError, refusals
from tunesmith.kernels.build.artifact import EvaluationRequest
from tunesmith.kernels.outcome import Evaluation, Measured
from tunesmith.kernels.rewrite.template import with_rules
from tunesmith.kernels.search.tables import ConfigResult, write_cache
from tunesmith.kernels.space import feasible, require_points
from tunesmith.kernels.spec.task import TaskError
from tunesmith.kernels.spec.taskfile import load_task
from tunesmith.kernels.spec.template import Scalar, Template

MAX_POINTS = 1_000_000
"""Maximum size of a space, above which it is probably a mistake."""


def exhaust(
    task: str,
    out: Path,
    *,
    backend: str = "auto",
    workload: str | None = None,
    fixed: Mapping[str, Scalar] | None = None,
    seed: int = 0,
    force: bool = False,
    listener: Listener = silent,
) -> tuple[Path, int, int]:
    """Measures every feasible configuration of the task's first template on `workload` (its first, if left out). Gives
    the table's path, and the numbers of its configurations and of the failures among them.

    fixed: parameters that keep one value, for a part of a space. Points are visited in an order drawn from `seed`, so
    that a slow drift of the device does not look like a parameter's effect. force: measure and replace a table that is
    there. Raises `TunesmithError`.
    """
    folder = out.with_name(out.name + ".journal")
    # A table takes hours: it is replaced only while its measurements are still beside it.
    unfinished = (b"\x1f\x8b" if out.suffix == ".gz" else b'{\n"device_name": ') if folder.is_dir() else b""
    require_writable_file(out, "--out", begins=unfinished, force=force)
    settings = make_settings(task=task, backend=backend, seed=seed)
    loaded = load_task(task)
    device = choose_device(loaded, backend, inventory_for(backend))
    kind = device.limits.kind
    tuned = loaded.workloads_for(kind, held_out=False) if workload is None else (loaded.workload(workload),)
    if not tuned:
        raise TaskError(f"The task {loaded.name} has no workload for a {kind}; name one with --workload.")
    templates = with_rules(loaded, device.backend)[0].sources(device.backend).templates
    if not templates:
        raise TaskError(f"The task {loaded.name} has no {device.backend} template, so it has no space.")
    chosen, template = tuned[0], _fix(templates[0], fixed or {})
    space = feasible(template, [chosen], device.limits)
    require_points(space, template)
    total = len(space)
    if total > MAX_POINTS:
        raise TunesmithError(f"The space of {template.name} has {total} points, too many to measure; use --fix.")
    check_reference(loaded, [chosen], seed=seed, deadline=settings.reference_deadline)
    identity = ExhaustStarted(template=template.id, workload=chosen.name, device=device.name, seed=seed)
    with refusals(f"--out: {out} cannot be written", "choose another place"):
        folder.mkdir(parents=True, exist_ok=True)
    with (
        Journal(folder, create=True) as journal,
        hold_run(folder),
        pools(loaded, device, settings, [chosen.name], listener) as make_pool,
    ):
        log = RunLog(journal)
        if (started := log.last(ExhaustStarted)) is None:
            journal.append(identity)
        elif started != identity:
            named = "of template {0.template} on {0.workload}, {0.device}, with seed {0.seed}".format
            differ = f"has measurements {named(started)}, these would be {named(identity)}"
            raise JournalError(f"{folder} {differ}: remove it or choose another --out.")
        done = {event.number: event.evaluation for event in log.events(Evaluated)}
        order = np.random.default_rng(seed).permutation(total).tolist()
        points = (point for point in order if point not in done)
        requests = (EvaluationRequest(point, template, space.config(point), (chosen.name,)) for point in points)
        if len(done) < total:
            with make_pool() as pool:
                for request, evaluation in pool.evaluate(requests):
                    journal.append(Evaluated(number=request.number, evaluation=evaluation))
                    done[request.number] = evaluation
                    listener(Progress("exhaust", done=len(done), budget=total))
        records = [_record(done[point]) for point in sorted(done)]
        about: dict[str, Any] = {"kernel": loaded.name, "problem_size": tuple(chosen.sizes.values())}
        count = write_cache(out, template.parameters, records, device=device.name, **about)
        journal.close()
        remove_journal(folder)
        with suppress(OSError):
            # Files of others may lie there.
            folder.rmdir()
    return out, count, sum(record.failure is not None for record in records)


def _fix(template: Template, fixed: Mapping[str, Scalar]) -> Template:
    parameters = {parameter.name: parameter for parameter in template.parameters}
    for name, value in fixed.items():
        if name not in parameters:
            raise TunesmithError(f"--fix: {template.name} has no parameter '{name}'; it has {', '.join(parameters)}.")
        values = parameters[name].values
        if value not in values:
            raise TunesmithError(f"--fix: {name} has no value {value!r}; it has {', '.join(map(str, values))}.")
        only = (values[values.index(value)],)
        parameters[name] = parameters[name].model_copy(update={"values": only, "default": None})
    return template.model_copy(update={"parameters": tuple(parameters.values())})


def _record(evaluation: Evaluation) -> ConfigResult:
    outcome = next(iter(evaluation.outcomes.values()))
    milliseconds = {"compile_time": evaluation.compile_seconds * 1e3, "benchmark_time": evaluation.lane_seconds * 1e3}
    if isinstance(outcome, Measured):
        interval = (outcome.low * 1e3, outcome.seconds * 1e3, outcome.high * 1e3)
        return ConfigResult(evaluation.config, outcome.seconds * 1e3, None, interval, **milliseconds)
    return ConfigResult(evaluation.config, None, outcome.kind, (), **milliseconds)
