"""Finished runs of one task beside each other: their results on each shape, and their differences.

Times of different runs were not taken in turn, and may be of different devices: only the ratio to its own baseline is a
paired measurement, with an interval. So nothing here says that one run's kernel is faster than another's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tunesmith.graph.journal.log import begun
from tunesmith.graph.results.summary import Summary, read_summary
from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.spec.task import Task
from tunesmith.kernels.spec.template import assignments, described


def compare_runs(folders: Sequence[Path]) -> dict[str, Any]:
    """Compares runs, as JSON types: task; runs; sentences; shapes, with a row of each run (None without a measurement);
    differences: facts that differ, by name, with a text for each run; same: facts that all runs share.

    Raises `TunesmithError` for fewer than two runs, a run named twice or different tasks, or without results."""
    if len(folders) < 2:
        raise TunesmithError("compare: give at least two runs, as in `tunesmith compare RUN RUN`.")
    resolved = [folder.resolve() for folder in folders]
    for place, folder in enumerate(resolved):
        if folder in resolved[:place]:
            raise TunesmithError(f"compare: {folders[place]} is named twice; name each run once.")
    summaries = [read_summary(folder) for folder in folders]
    if len({summary.task for summary in summaries}) > 1:
        of = ", ".join(f"{folder} of {summary.task}" for folder, summary in zip(folders, summaries, strict=True))
        raise TunesmithError(f"compare: the runs are of different tasks ({of}); name runs of one task.")
    tasks = [begun(folder).event.task for folder in folders]
    facts = [_facts(*one) for one in zip(summaries, tasks, strict=True)]
    texts_of = {name: [one.get(name, "") for one in facts] for one in facts for name in one}
    return {
        "task": summaries[0].task,
        "runs": [str(folder) for folder in folders],
        "sentences": [summary.sentence for summary in summaries],
        "shapes": _shapes(summaries, tasks),
        "differences": {name: texts for name, texts in texts_of.items() if len(set(texts)) > 1},
        "same": {name: texts[0] for name, texts in texts_of.items() if len(set(texts)) == 1 and texts[0]},
    }


def _shapes(summaries: Sequence[Summary], tasks: Sequence[Task]) -> list[dict[str, Any]]:
    """A shape is one in two runs where its sizes and data types are the same, whatever its name."""
    shapes: dict[str, dict[str, Any]] = {}
    about: dict[str, str] = {}
    for place, (summary, task) in enumerate(zip(summaries, tasks, strict=True)):
        for row in summary.rows:
            dtypes = [row.types.get(one.dtype, one.dtype) for one in task.arguments]
            key = json.dumps([row.sizes, row.types, dtypes], sort_keys=True)
            about[key] = f" ({assignments(row.sizes)}; {', '.join(dict.fromkeys(dtypes))})"
            empty = {"workload": row.workload, "held_out": [None] * len(tasks), "results": [None] * len(tasks)}
            shape = shapes.setdefault(key, empty)
            shape["held_out"][place], shape["results"][place] = row in summary.held_out, row.to_json()
    names = [shape["workload"] for shape in shapes.values()]
    for key, shape in shapes.items():
        if names.count(shape["workload"]) > 1:
            shape["workload"] += about[key]
    return list(shapes.values())


def _facts(summary: Summary, task: Task) -> dict[str, str]:
    """Facts that may differ between runs, as text, by name; a digest of long facts."""
    device, general, data = summary.device, summary.general, task.model_dump(mode="json")
    facts = {
        "device": device.name,
        "backend": device.backend,
        "architecture": device.limits.arch or "",
        "driver": device.driver or "",
        "baseline": summary.baseline_label,
        "template": "none is right" if general is None else general.template,
        "configuration": "none is right" if general is None else described(general.template, general.config),
        "configurations measured": summary.evaluations,
        "seconds": f"{summary.seconds:.0f}",
        "ended by": summary.ended_by or "interruption",
        "commit": summary.origin.commit,
        "host": summary.origin.host,
        **{f"version of {name}": version for name, version in summary.versions.items()},
        # The same task may be given by name or by path.
        **{f"setting {name}": value for name, value in summary.settings.items() if name != "task"},
    }
    parts = {name: data[name] for name in ("arguments", "types", "bytes", "reference", "tolerance")}
    parts["baseline's source"] = task.sources(device.backend).baseline.model_dump(mode="json")
    for name, text in [(name, _text(part)) for name, part in parts.items()]:
        facts[name] = text if len(text) <= 40 else hashlib.sha256(text.encode()).hexdigest()[:12]
    return {name: _text(value) for name, value in facts.items()}


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
