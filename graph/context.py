"""What the roles of a run share: task, device, pool, journal, settings, and the listener that shows progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tunesmith.actors.pool.pool import Pool
from tunesmith.graph.journal.store import Store
from tunesmith.graph.models.calls import Models
from tunesmith.graph.progress import Listener, Progress, silent
from tunesmith.graph.settings import Settings
from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.probe import Device
from tunesmith.hw.roofline import Roofline, Timed
from tunesmith.kernels.outcome import Evaluation, Measured, from_json, to_json
from tunesmith.kernels.outcome import Resources as Resources
from tunesmith.kernels.space.feasible import device_names
from tunesmith.kernels.spec.task import BackendSources, Task, Workload
from tunesmith.kernels.spec.template import Template


@dataclass(slots=True)
class Context:
    """`make_pool` starts the pool when a role first needs it: deciding that nothing is left to do needs no device."""

    task: Task
    device: Device
    limits: tuple[DeviceLimits, ...]
    """Those of the device, then those of a target the winner must fit as well."""
    settings: Settings
    journal: Store
    make_pool: Callable[[], Pool]
    listener: Listener = silent
    models: Models | None = None
    """None: every role works by rules."""
    _pool: Pool | None = None

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
    def tuned(self) -> tuple[Workload, ...]:
        return self.task.workloads_for(self.device.limits.kind, held_out=False)

    @property
    def held_out(self) -> tuple[Workload, ...]:
        return self.task.workloads_for(self.device.limits.kind, held_out=True)

    @property
    def weights(self) -> dict[str, float]:
        return {workload.name: workload.weight for workload in self.task.workloads}

    def roofline(self) -> Roofline:
        """The device's measured roofs; measured once in a run."""
        event = self.journal.last("roofline")
        if event is None:
            self.listener(Progress("plan", "measuring the device's roofs"))
            self.journal.append("roofline", self.pool.calibrate().to_json())
            self.drop_beaten_roofs("the baseline", self.known_baseline() or {})
            event = self.journal.last("roofline")
            assert event is not None
        return Roofline.from_json(event.data)

    def drop_beaten_roofs(self, kernel: str, seconds: Mapping[str, float]) -> bool:
        """Leaves out the roofs that `kernel` beats, whose seconds by workload are given, and says so. True when there
        was one: floors have changed then."""
        roofline, task = self.roofline(), self.task
        timed = [
            Timed(
                f"{kernel} on {name}",
                taken,
                task.bytes_of(task.workload(name)),
                task.flops_of(task.workload(name)),
                task.arithmetic,
            )
            for name, taken in seconds.items()
        ]
        kept, reasons = roofline.without_beaten(timed)
        if reasons:
            self.journal.append("roofline", kept.to_json())
        for reason in reasons:
            self.note("test", reason, "")
        return bool(reasons)

    def known_baseline(self) -> dict[str, float] | None:
        """The baseline's seconds per tuned workload, as far as they are in the journal; nothing is measured."""
        event = self.journal.last("baseline")
        if event is None:
            return None
        outcomes = evaluation_from_json(event.data).outcomes
        return {name: one.seconds for name, one in outcomes.items() if isinstance(one, Measured)}

    def known_roofline(self) -> Roofline | None:
        """The device's measured roofs, if they are in the journal; nothing is measured."""
        event = self.journal.last("roofline")
        return None if event is None else Roofline.from_json(event.data)

    def note(self, role: str, sentence: str, stage: str) -> None:
        """Writes down and shows that something did not go as planned; once for each stage and sentence."""
        if all(event.data["sentence"] != sentence for event in self.journal.events("note", stage)):
            self.journal.append("note", {"role": role, "sentence": sentence}, stage)
            self.listener(Progress(role, sentence))

    def once(self, kind: str, stage: str, make: Callable[[], dict[str, Any]], **key: Any) -> dict[str, Any]:
        """What `make` returns, written to the journal under `kind` and `stage`; where the journal has it already, as
        after an interruption, that entry's data, without calling `make`. key: fields of the entry that tell it from
        others of its kind in the stage. The data must be JSON."""
        for event in self.journal.events(kind, stage):
            if all(event.data.get(name) == value for name, value in key.items()):
                return event.data
        data = {**key, **make()}
        self.journal.append(kind, data, stage)
        return data

    def floor(self, workload: Workload) -> float | None:
        """The shortest possible seconds of a workload, if the roofs are known."""
        task = self.task
        return self.roofline().floor_seconds(task.bytes_of(workload), task.flops_of(workload), task.arithmetic)

    def template(self, template_id: str) -> Template:
        """The template of an id, from the journal."""
        for event in self.journal.events("template"):
            if event.data["id"] == template_id:
                return Template.model_validate(event.data["template"])
        raise KeyError(template_id)

    def seconds_left(self) -> float:
        limit = self.settings.time_limit
        return float("inf") if limit is None else limit - self.journal.seconds_spent()

    def evaluations_left(self) -> int:
        return self.settings.evaluations - self.journal.count("evaluation")


def evaluation_to_json(evaluation: Evaluation) -> dict[str, Any]:
    """An evaluation as the journal stores it."""
    resources = evaluation.resources
    return {
        "template": evaluation.template,
        "config": evaluation.config,
        "outcomes": {name: to_json(outcome) for name, outcome in evaluation.outcomes.items()},
        "resources": {
            "registers": resources.registers,
            "shared": resources.shared,
            "local": resources.local,
            "spills": resources.spills,
        },
        "artifact": evaluation.artifact,
        "compile_seconds": evaluation.compile_seconds,
        "lane_seconds": evaluation.lane_seconds,
        "cached": evaluation.cached,
    }


def evaluation_from_json(data: Mapping[str, Any]) -> Evaluation:
    """The inverse of `evaluation_to_json`; keys it does not know are left alone."""
    return Evaluation(
        template=data["template"],
        config=data["config"],
        outcomes={name: from_json(outcome) for name, outcome in data["outcomes"].items()},
        resources=Resources(**data["resources"]),
        artifact=data["artifact"],
        compile_seconds=data["compile_seconds"],
        lane_seconds=data["lane_seconds"],
        cached=data.get("cached", False),
    )
