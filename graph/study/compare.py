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
from tunesmith.graph.journal.records import ResultRecord, WorkloadRow
from tunesmith.graph.journal.store import Journal
from tunesmith.graph.results.summary import Summary, read_summary
from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.spec.task import Task
from tunesmith.kernels.spec.template import assignments, described


class ComparisonError(TunesmithError):
    """The runs cannot be compared."""


class ComparedShape(ResultRecord):
    """results: the row of each run, None where it did not measure the workload."""

    workload: str
    held_out: tuple[bool | None, ...]
    results: tuple[WorkloadRow | None, ...]


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
    if len({summary.task for summary in summaries}) > 1:
        of = ", ".join(f"{folder} of {summary.task}" for folder, summary in zip(folders, summaries, strict=True))
        raise ComparisonError(f"compare: the runs are of different tasks ({of}); name runs of one task.")
    tasks = [_task(folder) for folder in folders]
    facts = [_facts(*one) for one in zip(summaries, tasks, strict=True)]
    told = {name: tuple(one.get(name, "") for one in facts) for one in facts for name in one}
    return RunComparison(
        task=summaries[0].task,
        runs=tuple(map(str, folders)),
        sentences=tuple(summary.sentence for summary in summaries),
        shapes=_shapes(summaries, tasks),
        differences={name: texts for name, texts in told.items() if len(set(texts)) > 1},
        same={name: texts[0] for name, texts in told.items() if len(set(texts)) == 1 and texts[0]},
    )


def _task(folder: Path) -> Task:
    """The task as the journal of a run has it."""
    with Journal(folder, create=False, reading=True) as journal:
        (started,) = journal.entries(RunStarted)
    return started.event.task


def _shapes(summaries: Sequence[Summary], tasks: Sequence[Task]) -> tuple[ComparedShape, ...]:
    """A shape is one in two runs where its sizes and data types are the same, whatever its name."""
    found: dict[str, list[tuple[bool, WorkloadRow] | None]] = {}
    named: dict[str, tuple[str, str]] = {}
    for place, (summary, task) in enumerate(zip(summaries, tasks, strict=True)):
        for row in (*summary.tuned, *summary.held_out):
            dtypes = [row.types.get(one.dtype, one.dtype) for one in task.arguments]
            key = json.dumps([row.sizes, row.types, dtypes], sort_keys=True)
            named.setdefault(key, (row.workload, f" ({assignments(row.sizes)}; {', '.join(dict.fromkeys(dtypes))})"))
            found.setdefault(key, [None] * len(tasks))[place] = row in summary.held_out, row
    names = [name for name, _ in named.values()]
    return tuple(
        ComparedShape(
            workload=name + (shape if names.count(name) > 1 else ""),
            held_out=tuple(one and one[0] for one in found[key]),
            results=tuple(one and one[1] for one in found[key]),
        )
        for key, (name, shape) in named.items()
    )


def _facts(summary: Summary, task: Task) -> dict[str, str]:
    """Facts that may differ between runs, as text, by name: of long parts of the task a digest."""
    device, general = summary.device, summary.general
    arguments = [f"{one.name} {one.dtype}{list(one.shape) if one.shape else ''}" for one in task.arguments]
    types = [f"{name}: {', '.join(options)}" for name, options in task.types.items()]
    parts = {
        "baseline's source": task.sources(device.backend).baseline.model_dump(mode="json"),
        "reference": task.reference,
        "tolerance": task.model_dump(mode="json")["tolerance"],
    }
    return {
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
        **{f"version of {name}": version for name, version in summary.versions.items()},
        # A task may be named by its name or by its path.
        **{f"setting {name}": _text(value) for name, value in summary.settings.items() if name != "task"},
        "arguments": ", ".join(arguments).replace("'", ""),
        "types": "; ".join(types) or "none to choose",
        "bytes": task.bytes,
        **{name: hashlib.sha256(_text(part).encode()).hexdigest()[:12] for name, part in parts.items()},
    }


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
