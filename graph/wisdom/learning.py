"""From a run to the database, and from the database to the first points of another run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from tunesmith import __version__
from tunesmith.graph.context import Context
from tunesmith.graph.journal.events import VerdictReached, WisdomKept
from tunesmith.graph.journal.records import Figures, Suggestion, Verdict, Winner
from tunesmith.graph.wisdom.database import Known, Wisdom, WisdomError
from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.probe import Device
from tunesmith.kernels.space.domain import Domain
from tunesmith.kernels.space.feasible import device_names, rules
from tunesmith.kernels.space.rule import Reason, Rule
from tunesmith.kernels.spec.expression import ExpressionError
from tunesmith.kernels.spec.parameter import Config, config_key
from tunesmith.kernels.spec.task import Task, Workload
from tunesmith.kernels.spec.template import Template

SUGGESTIONS = 6
"""Most configurations that a run takes from the database: each costs an evaluation."""


def suggest(
    wisdom: Wisdom,
    task: Task,
    device: Device,
    workloads: Sequence[Workload],
    limits: Sequence[DeviceLimits],
    *,
    written: bool,
) -> WisdomKept | None:
    """What to measure first in a run of `task` on `device`; None where the database has nothing on it.

    What was found on the same model of device comes first, whatever its driver, and there what was found on the shapes
    of this run; other devices' answers come last. Of equals the one that gained most is first. Configurations that no
    template of the task can have under `limits` are left out; where a model writes further templates (`written`), whose
    parameters nobody knows yet, they come after all others. Raises `WisdomError`.
    """
    shapes = [(one.sizes, one.types) for one in workloads]
    ranked = sorted(
        # A model's whole kernel has no parameters, and suggests nothing.
        (one for one in wisdom.entries(task.name) if one.backend == device.backend and one.config),
        key=lambda one: (one.device != device.name, (one.sizes, one.types) not in shapes, one.ratio),
    )
    # Runs with a model keep under the same task what is of templates that only they have.
    fits = _fitting(task.sources(device.backend).templates, workloads, limits)
    fitting, others = list[Known](), list[Known]()
    for one in ranked:
        (fitting if fits(one.config) else others).append(one)
    found: dict[str, Suggestion] = {}
    for one in (*fitting, *(others if written else ())):
        found.setdefault(
            config_key(one.config), Suggestion(config=one.config, device=one.device, driver=one.driver, ratio=one.ratio)
        )
    kept = tuple(found.values())[:SUGGESTIONS]
    return WisdomKept(suggestions=kept) if kept else None


def _fitting(
    templates: Sequence[Template], workloads: Sequence[Workload], limits: Sequence[DeviceLimits]
) -> Callable[[Config], bool]:
    """Says of a configuration whether some template has it among its feasible points on one of `workloads`."""
    usable = [one for one in templates if all(one.runs_on(device_names(device)) for device in limits)]
    spaces = [
        (
            Domain(template.parameters),
            [[rule for one in limits for rule in rules(template, [workload], one)] for workload in workloads],
        )
        for template in usable
    ]

    def fits(config: Config) -> bool:
        return any(
            not isinstance(domain.encode(config), Reason) and any(_all_hold(each, config) for each in conditions)
            for domain, conditions in spaces
        )

    return fits


def _all_hold(conditions: Sequence[Rule], config: Config) -> bool:
    try:
        return all(rule.holds(config) for rule in conditions)
    except ExpressionError:
        # A constraint without a value, such as a division by zero, admits nothing.
        return False


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
    where they are shown to be faster than the baseline, dated by the verdict. A database that cannot be written is
    told, and costs nothing else."""
    reached, started = context.journal.last(VerdictReached), context.log.started
    if reached is None or started is None or started.device.driver != context.device.driver:
        # Which of the two drivers it was measured with is not known.
        return
    # A run that had ended may be finished again, days later.
    at = datetime.fromtimestamp(reached.at, UTC).isoformat(timespec="seconds")
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
