"""From a run to the database, and from the database to the first points of another run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from tunesmith import __version__
from tunesmith.graph.context import Context
from tunesmith.graph.journal.events import WisdomKept
from tunesmith.graph.journal.records import Figures, Suggestion, Verdict, Winner
from tunesmith.graph.wisdom.database import Known, Wisdom, WisdomError
from tunesmith.hw.probe import Device
from tunesmith.kernels.spec.parameter import config_key
from tunesmith.kernels.spec.task import Task, Workload

SUGGESTIONS = 6
"""Most configurations that a run takes from the database: each costs an evaluation."""


def suggest(wisdom: Wisdom, task: Task, device: Device, workloads: Sequence[Workload]) -> WisdomKept | None:
    """What to measure first in a run of `task` on `device`; None where the database has nothing on it.

    What was found on the same model of device comes first, whatever its driver, and there what was found on the shapes
    of this run; other devices' answers come last. Of equals the one that gained most is first. Raises `WisdomError`.
    """
    shapes = [(one.sizes, one.types) for one in workloads]
    ranked = sorted(
        (one for one in wisdom.entries(task.name) if one.backend == device.backend),
        key=lambda one: (one.device != device.name, (one.sizes, one.types) not in shapes, one.ratio),
    )
    found: dict[str, Suggestion] = {}
    for one in ranked:
        found.setdefault(
            config_key(one.config), Suggestion(config=one.config, device=one.device, driver=one.driver, ratio=one.ratio)
        )
    kept = tuple(found.values())[:SUGGESTIONS]
    return WisdomKept(suggestions=kept) if kept else None


def known_shapes(wisdom: Wisdom, task: Task, device: Device) -> list[tuple[dict[str, int], dict[str, str]]]:
    """Sizes and types on which runs of `task` on this model of device found something faster than the baseline, those
    that gained most first, each once. Raises `WisdomError`."""
    entries = [one for one in wisdom.entries(task.name) if (one.backend, one.device) == (device.backend, device.name)]
    found: dict[tuple[tuple[str, int | str], ...], tuple[dict[str, int], dict[str, str]]] = {}
    for one in sorted(entries, key=lambda one: one.ratio):
        found.setdefault((*one.sizes.items(), *one.types.items()), (one.sizes, one.types))
    return list(found.values())


def learn(wisdom: Wisdom, context: Context, verdict: Verdict, run: str) -> None:
    """Keeps what the final comparison of a run found: on each workload the best configuration and the general one,
    where they are shown to be faster than the baseline. A database that cannot be written is told, and costs
    nothing else."""
    at = datetime.now(UTC).isoformat(timespec="seconds")
    device, found = context.device, []
    for row in (*verdict.tuned, *verdict.held_out):
        measured: list[tuple[Winner, Figures]] = [] if row.best is None else [(row.best, row.best)]
        if verdict.general is not None and row.general is not None:
            measured.append((verdict.general, row.general))
        found += [
            Known(
                task=context.task.name,
                template=context.template(winner.template).name,
                config=winner.config,
                backend=device.backend,
                device=device.name,
                driver=device.driver,
                sizes=row.sizes,
                types=row.types,
                seconds=figures.seconds,
                ratio=figures.ratio,
                low=figures.low,
                high=figures.high,
                at=at,
                run=run,
                tunesmith=__version__,
            )
            for winner, figures in measured
            if figures.verdict == "faster"
        ]
    if not found:
        return
    try:
        wisdom.keep(found)
    except WisdomError as error:
        context.note("wisdom", str(error), "")
