"""All measurements of a run for other tuners: a results file in the format T4 for each template."""

from __future__ import annotations

from pathlib import Path

from tunesmith.graph.journal.log import RunLog
from tunesmith.graph.journal.measurements import seconds_of, weighted_geomean
from tunesmith.graph.journal.store import Journal
from tunesmith.graph.results.exports.package import ExportError, Package, identifier
from tunesmith.kernels.outcome import Evaluation
from tunesmith.kernels.search.cachefile import Record
from tunesmith.kernels.search.t4 import write_t4


def write_results(package: Package, out: Path) -> None:
    """`<task>-<template>.json` for each template of the run that was evaluated.

    `time` is that of a launch in milliseconds, `runtimes` has one for each tuned workload; of several, `time` is the
    weighted geometric mean, which the search minimises up to a constant factor. What was measured on some workloads
    only is left out. Raises `ExportError`.
    """
    with Journal(package.folder, create=False, reading=True) as journal:
        log = RunLog(journal)
        names = list(log.baseline_seconds or {})
        weights = {workload.name: workload.weight for workload in package.task.workloads}
        found: dict[str, list[Record]] = {}
        for evaluation in log.evaluations():
            record = _record(evaluation, names, weights)
            if record is not None:
                found.setdefault(log.template(evaluation.template).name, []).append(record)
    if not found:
        raise ExportError(f"{package.folder} has no evaluation on all its workloads to export.")
    out.mkdir(parents=True)
    for template, records in found.items():
        write_t4(out / f"{identifier(package.name)}-{identifier(template)}.json", records)


def _record(evaluation: Evaluation, names: list[str], weights: dict[str, float]) -> Record | None:
    failure, seconds = evaluation.failure, seconds_of(evaluation)
    times = {name: seconds[name] * 1e3 for name in names if name in seconds}
    if failure is None and len(times) < len(names):
        return None
    return Record(
        config=evaluation.config,
        time=None if failure is not None else weighted_geomean(times, weights),
        failure=None if failure is None else failure.kind,
        times=() if failure is not None else tuple(times.values()),
        compile_time=evaluation.compile_seconds * 1e3,
        benchmark_time=evaluation.lane_seconds * 1e3,
    )
