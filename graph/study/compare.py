"""Finished runs of one task beside each other: their results on each shape, and their differences.

Times of different runs were not taken in turn, and may be of different devices: only the ratio to its own baseline is a
paired measurement, with an interval. So nothing here says that one run's kernel is faster than another's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from tunesmith.graph.journal.events import RunStarted
from tunesmith.graph.journal.log import RunLog
from tunesmith.graph.journal.records import Figures, ResultRecord
from tunesmith.graph.journal.store import Journal
from tunesmith.graph.results.summary import Summary, read_summary
from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.spec.task import Task
from tunesmith.kernels.spec.template import assignments, described

NOT_COMPARED = ("task",)
"""Settings that do not tell runs apart: a task may be named by its name or by its path."""


class ComparisonError(TunesmithError):
    """The runs cannot be compared."""


class RunOnShape(ResultRecord):
    """A run's general configuration on one workload. general: None where there is none that is right."""

    baseline_seconds: float | None
    general: Figures | None


class ComparedShape(ResultRecord):
    """results: one for each run, None where the run did not measure the workload."""

    workload: str
    held_out: tuple[bool | None, ...]
    results: tuple[RunOnShape | None, ...]


class RunComparison(ResultRecord):
    """differences: facts that are not the same in all runs, by name, with a text for each run, empty where a run lacks
    the fact; same: facts that all runs share, as text."""

    task: str
    runs: tuple[str, ...]
    sentences: tuple[str, ...]
    shapes: tuple[ComparedShape, ...]
    differences: dict[str, tuple[str, ...]]
    same: dict[str, str]


def compare_runs(folders: Sequence[Path]) -> RunComparison:
    """Reads the runs and puts them beside each other. Raises `ComparisonError` for fewer than two, for a run named
    twice and for runs of different tasks, and `JournalError` for a folder without results."""
    if len(folders) < 2:
        raise ComparisonError("compare: there is one run only; name at least two, as in `tunesmith compare RUN RUN`.")
    resolved = [folder.resolve() for folder in folders]
    for place, folder in enumerate(resolved):
        if folder in resolved[:place]:
            raise ComparisonError(f"compare: {folders[place]} is named twice; name each run once.")
    summaries = [read_summary(folder) for folder in folders]
    tasks = list(dict.fromkeys(summary.task for summary in summaries))
    if len(tasks) > 1:
        of = ", ".join(f"{folder} of {summary.task}" for folder, summary in zip(folders, summaries, strict=True))
        raise ComparisonError(f"compare: the runs are of different tasks ({of}); name runs of one task.")
    began = [_began(folder) for folder in folders]
    facts = [_facts(summary, run) for summary, run in zip(summaries, began, strict=True)]
    names = list(dict.fromkeys(name for one in facts for name in one))
    told = {name: tuple(one.get(name, "") for one in facts) for name in names}
    return RunComparison(
        task=tasks[0],
        runs=tuple(map(str, folders)),
        sentences=tuple(summary.sentence for summary in summaries),
        shapes=_shapes(summaries, began),
        differences={name: texts for name, texts in told.items() if len(set(texts)) > 1},
        same={name: texts[0] for name, texts in told.items() if len(set(texts)) == 1 and texts[0]},
    )


def _shapes(summaries: Sequence[Summary], began: Sequence[RunStarted | None]) -> tuple[ComparedShape, ...]:
    """A shape is one in two runs where its sizes and data types are the same, whatever its name."""
    every = [run.task.arguments for run in began if run is not None]
    tables = []
    for summary, run in zip(summaries, began, strict=True):
        table = {}
        for row in (*summary.tuned, *summary.held_out):
            # Where a run does not say what its arguments are, the types that the workloads choose tell them apart.
            arguments = run.task.arguments if run is not None and len(every) == len(began) else ()
            dtypes = [row.types.get(one.dtype, one.dtype) for one in arguments] or list(row.types.values())
            key = json.dumps([row.sizes, row.types, dtypes], sort_keys=True)
            table[key] = row, dtypes, row in summary.held_out
        tables.append(table)
    first = {key: place for table in reversed(tables) for key, place in table.items()}
    names = [row.workload for row, _, _ in first.values()]
    shapes = []
    for key in dict.fromkeys(key for table in tables for key in table):
        row, dtypes, _ = first[key]
        alike = f" ({assignments(row.sizes)}; {', '.join(dict.fromkeys(dtypes))})"
        found = [table.get(key) for table in tables]
        rows = [None if one is None else one[0] for one in found]
        shapes.append(
            ComparedShape(
                workload=row.workload + (alike if names.count(row.workload) > 1 else ""),
                held_out=tuple(None if one is None else one[2] for one in found),
                results=tuple(
                    None if row is None else RunOnShape(baseline_seconds=row.baseline_seconds, general=row.general)
                    for row in rows
                ),
            )
        )
    return tuple(shapes)


def _facts(summary: Summary, began: RunStarted | None) -> dict[str, str]:
    """Facts that may differ between runs, as text, by name."""
    device, general = summary.device, summary.general
    found = {
        "device": device.name,
        "backend": device.backend,
        "architecture": device.limits.arch or "",
        "driver": device.driver or "",
        "baseline": summary.baseline_label,
        "template": "none is right" if general is None else general.template,
        "configuration": "none is right" if general is None else described(general.template, general.config),
        "configurations measured": str(summary.evaluations),
        "seconds": f"{summary.seconds:.0f}",
        "ended by": summary.ended_by or "interruption",
        "commit": summary.origin.commit,
        "host": summary.origin.host,
    }
    found |= {f"version of {name}": version for name, version in summary.versions.items()}
    found |= {f"setting {name}": _text(value) for name, value in summary.settings.items() if name not in NOT_COMPARED}
    return found | ({} if began is None else _sources(began.task, began.device.backend))


def _began(folder: Path) -> RunStarted | None:
    """How a run was begun, and so its task; None where the journal is not beside the results."""
    if not (folder / "journal.sqlite").is_file():
        return None
    with Journal(folder, create=False, reading=True) as journal:
        return RunLog(journal).started


def _sources(task: Task, backend: str) -> dict[str, str]:
    """What the task consists of, in digests where it is long, so that a change of the task between runs is seen."""
    arguments = [f"{one.name} {one.dtype}{list(one.shape) if one.shape else ''}" for one in task.arguments]
    types = [f"{name}: {', '.join(options)}" for name, options in task.types.items()]
    told = {
        "arguments": ", ".join(arguments).replace("'", ""),
        "types": "; ".join(types) or "none to choose",
        "bytes": task.bytes,
    }
    parts = {
        "baseline's source": task.sources(backend).baseline.model_dump(mode="json"),
        "reference": task.reference,
        "tolerance": task.model_dump(mode="json")["tolerance"],
    }
    return told | {name: hashlib.sha256(_text(part).encode()).hexdigest()[:12] for name, part in parts.items()}


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
