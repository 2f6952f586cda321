"""The values that all roles of a run share, and the baseline, which the first role that needs it measures once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, overload

from tunesmith.actors.judging.judge import CHECK_SECONDS
from tunesmith.graph.journal.events import BaselineMeasured, Event, Noted, RoleKept, RooflineMeasured
from tunesmith.graph.journal.log import Journal, RunLog, Tree, quantities_of, read_tree, seconds_of
from tunesmith.graph.models.calls import Models
from tunesmith.graph.progress import Listener, Progress, silent
from tunesmith.graph.settings import Settings
from tunesmith.graph.state import Bottleneck, Plan
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.probe import DeviceInfo
from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.build.artifact import EvaluationRequest
from tunesmith.kernels.outcome import Measured, describe
from tunesmith.kernels.space import device_names
from tunesmith.kernels.spec.task import AnyOpponent, BackendSources, Task, Workload
from tunesmith.kernels.spec.template import Template

if TYPE_CHECKING:
    from tunesmith.actors.pool import Pool

COMPARISON_SECONDS, KERNEL_SECONDS, EXAMINATION_SECONDS = 5.0, 0.75, 10.0
"""Seconds of a final comparison: for its process, for each kernel on a workload; of the examination of winners, beside
its checks on made-up sizes."""
EXAMINATION_SHARE, TEST_SHARE = 0.25, 0.5
"""Share of a time limit kept for the examination, and for that with the comparison before it, at most."""
COUNTER_SECONDS = 0.2
"""Extra seconds of an energy window, which begins and ends where the counter moves."""
LATENCY_SECONDS = 5e-6
"""A GPU kernel shorter than this is mostly launch and ramp-up."""
FAR_FROM_MEMORY = 8.0
"""Times its floor by memory traffic from which a kernel whose arithmetic the task does not say may be bound by that."""
T = TypeVar("T", bound=Event)


@dataclass(slots=True)
class Context:
    """`make_pool` is called when a role first needs the pool. Roles append to `journal` and read `log`."""

    task: Task
    device: DeviceInfo
    limits: tuple[DeviceLimits, ...]
    """The limits of the device, then of a target that the winner must fit as well."""
    settings: Settings
    journal: Journal
    make_pool: Callable[[], Pool]
    listener: Listener = silent
    models: Models | None = None
    """None: every role works by rules."""
    best_roofs: Callable[[Roofline], tuple[Roofline, tuple[str, ...]]] = lambda measured: (measured, ())
    """Turns roofs measured now into the best ever measured on the device, with sentences on the difference."""
    approve: Callable[[Plan], Plan] = lambda plan: plan
    """Has a person approve a plan, or change it. Raises `Waiting` where the answer comes later."""
    log: RunLog = field(init=False)
    _pool: Pool | None = None

    def __post_init__(self) -> None:
        self.log = RunLog(self.journal)

    @property
    def pool(self) -> Pool:
        if self._pool is None:
            self.listener(Progress("start", "starting workers"))
            self._pool = self.make_pool().__enter__()
        return self._pool

    def close(self) -> None:
        if self._pool is not None:
            self._pool.__exit__()
            self._pool = None

    @property
    def sources(self) -> BackendSources:
        """The device's baseline, and the templates that run on the device and on the target, if there is one."""
        found = self.task.sources(self.device.backend)
        devices = [device_names(limits) for limits in self.limits]
        usable = tuple(template for template in found.templates if all(map(template.runs_on, devices)))
        return found.model_copy(update={"templates": usable})

    @property
    def opponents(self) -> tuple[AnyOpponent, ...]:
        """The opponents that the run times."""
        return self.task.opponents_on(self.device.backend, self.settings.opponents)

    @property
    def tuned(self) -> tuple[Workload, ...]:
        return self.task.workloads_for(self.device.limits.kind, held_out=False)

    @property
    def tuned_names(self) -> list[str]:
        return [workload.name for workload in self.tuned]

    @property
    def held_out(self) -> tuple[Workload, ...]:
        return self.task.workloads_for(self.device.limits.kind, held_out=True)

    def roofline(self) -> Roofline:
        """The best roofs ever measured on the device; measured anew once in a run."""
        if (known := self.log.roofline) is not None:
            return known
        self.listener(Progress("plan", "measuring the device's roofs"))
        roofline, said = self.best_roofs(self.pool.calibrate())
        for sentence in said:
            self.note("plan", sentence, "")
        self.journal.append(RooflineMeasured(roofline=roofline))
        self.drop_beaten_roofs("the baseline", self.log.baseline_seconds or {})
        return self.log.roofline or roofline

    def drop_beaten_roofs(self, kernel: str, seconds: Mapping[str, float]) -> bool:
        """Leaves out and reports the roofs that `kernel` beats, by its seconds on workloads; True if floors changed."""
        works = {name: self.task.work_of(self.task.workload(name)) for name in seconds}
        timed = {f"{kernel} on {name}": (taken, works[name]) for name, taken in seconds.items()}
        kept, reasons = self.roofline().without_beaten(timed)
        if reasons:
            self.journal.append(RooflineMeasured(roofline=kept))
        for reason in reasons:
            self.note("test", reason, "")
        return bool(reasons)

    def tree(self, before: int | None = None) -> Tree:
        """The tree of templates now, or before the journal's entry `before`."""
        log = self.log if before is None else RunLog(self.journal, before)
        return read_tree(log, self.sources.templates, self.tuned_names, self.task.weights)

    def note(self, role: str, sentence: str, stage: str, failure: str = "") -> None:
        """Journals and shows that something did not go as planned, once in a stage. failure: a model's, if any."""
        if all(note.sentence != sentence for note in self.log.events(Noted, stage)):
            self.journal.append(Noted(role=role, sentence=sentence, failure=failure), stage)
            self.listener(Progress(role, sentence))

    @overload
    def once(self, kind: type[T], stage: str, make: Callable[[], T], **key: Any) -> T: ...
    @overload
    def once(self, kind: str, stage: str, make: Callable[[], dict[str, Any]], **key: Any) -> dict[str, Any]: ...
    def once(self, kind: Any, stage: str, make: Callable[[], Any], **key: Any) -> Any:
        """The event that `make` returns, journalled; where the journal has it already, as after an interruption, that
        entry, without calling `make`.

        kind: of the event, or a name of the role's own for data that must be JSON; stage: such as "round-2"; key:
        fields that distinguish the entry from others of its kind in the stage.
        """
        if isinstance(kind, str):
            known = [one.data for one in self.log.events(RoleKept, stage) if one.name == kind]
            found = next((data for data in known if key.items() <= data.items()), None)
            if found is None:
                found = {**key, **make()}
                self.journal.append(RoleKept(name=kind, data=found), stage)
            return found
        for event in self.log.events(kind, stage):
            if all(getattr(event, field) == value for field, value in key.items()):
                return event
        event = make()
        self.journal.append(event, stage)
        return event

    def floor(self, workload: Workload) -> float | None:
        """The shortest possible seconds of a workload, if the roofs are known."""
        return self.roofline().floor_seconds(*self.task.work_of(workload))

    def bottleneck(self, workload: Workload, seconds: float) -> Bottleneck:
        """The limit of a kernel that takes `seconds` on a workload."""
        if self.device.limits.kind == "gpu" and seconds < LATENCY_SECONDS:
            return "latency"
        moved, flops, dtype = self.task.work_of(workload)
        if not flops and seconds > FAR_FROM_MEMORY * (self.floor(workload) or math.inf):
            return "unknown"
        return self.roofline().bound(moved, flops, dtype or "float32")

    def template(self, template_id: str) -> Template:
        """The template of an id. Raises `JournalError` where it is not part of the run."""
        return self.log.template(template_id)

    def seconds_left(self) -> float:
        return (self.settings.time_limit or math.inf) - self.journal.seconds_spent()

    def comparison_seconds_left(self) -> float:
        """The time left for comparisons, without what the examination of the winners needs."""
        needed = EXAMINATION_SECONDS + (self.settings.check_time or CHECK_SECONDS[self.device.limits.kind])
        return self.seconds_left() - min(EXAMINATION_SHARE * (self.settings.time_limit or math.inf), needed)

    def search_seconds_left(self) -> float:
        """The time left for searching, without what the final comparison and the examination need."""
        kernels = (len(self.tuned) + len(self.held_out)) * (1 + self.settings.finalists)
        energy = self.settings.energy_seconds
        needed = COMPARISON_SECONDS + kernels * (KERNEL_SECONDS + (energy + COUNTER_SECONDS if energy else 0.0))
        most = (TEST_SHARE - EXAMINATION_SHARE) * (self.settings.time_limit or math.inf)
        return self.comparison_seconds_left() - min(most, needed)

    def evaluations_left(self) -> int:
        return self.settings.evaluations - self.log.evaluation_count


def baseline_request(context: Context, workloads: Sequence[Workload]) -> EvaluationRequest:
    """The baseline as a request for the pool."""
    return EvaluationRequest(0, context.sources.baseline.template, {}, tuple(workload.name for workload in workloads))


def baseline_seconds(context: Context) -> dict[str, float]:
    """The baseline's time on each tuned workload, measured once in a run. Raises `TunesmithError`."""
    evaluation = context.log.baseline
    if evaluation is None:
        context.listener(Progress("plan", "measuring the baseline"))
        ((_, evaluation),) = context.pool.evaluate([baseline_request(context, context.tuned)])
        context.journal.append(BaselineMeasured(evaluation=evaluation))
    for name, outcome in evaluation.outcomes.items():
        if not isinstance(outcome, Measured):
            raise TunesmithError(
                f"The {context.device.backend} baseline of {context.task.name} fails on the workload {name} "
                f"({describe(outcome).rstrip('.')}): fix its source, launch, reference or workload."
            )
    return seconds_of(evaluation)


def baseline_quantities(context: Context) -> dict[str, float]:
    """The objective quantity of the baseline on each tuned workload, measured once. Raises `TunesmithError`."""
    seconds, evaluation = baseline_seconds(context), context.log.baseline
    assert evaluation is not None
    found = quantities_of(evaluation, context.settings.objective)
    if missing := [name for name in seconds if name not in found]:
        raise TunesmithError(
            f"The energy of the baseline could not be measured on {', '.join(missing)}: the energy counter of "
            f"{context.device.name} cannot be read, or does not move. Use --objective time."
        )
    return found
