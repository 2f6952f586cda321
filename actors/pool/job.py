"""An evaluation on its way through the pool: what was asked, what is compiled of it, and how often it was lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.candidate import Candidate, TypesKey, types_key
from tunesmith.kernels.build.specialise import Specialised, specialise
from tunesmith.kernels.outcome import Evaluation, Outcome, Resources
from tunesmith.kernels.spec.parameter import Config, config_key
from tunesmith.kernels.spec.task import Workload
from tunesmith.kernels.spec.template import Template

ATTEMPTS = 2
"""How often an evaluation may lose its process before that is held to be its own doing. Who ended a process is not
known: a kernel that wrote where it must not, or a system that was short of memory."""


@dataclass(frozen=True, slots=True)
class Request:
    """An evaluation to be made: `number` is the caller's, for telling results apart."""

    number: int
    template: Template
    config: Config
    workloads: tuple[str, ...]

    @property
    def key(self) -> tuple[str, str]:
        """What is asked for, whoever asks."""
        return self.template.id, config_key(self.config)


def sources_of(request: Request, workloads: Sequence[Workload]) -> dict[TypesKey, Specialised]:
    """The source for each combination of types that `workloads` have."""
    sources: dict[TypesKey, Specialised] = {}
    for workload in workloads:
        key = types_key(workload)
        if key not in sources:
            sources[key] = specialise(request.template, request.config, workload.types)
    return sources


@dataclass(slots=True)
class Job:
    """A request under way. losses: processes it has lost; alone: it was in a process that was lost, and is next run
    with nothing queued beside it, as the result of a call can be lost with a process that the call behind it ended;
    gated: it must wait for its turn on the device."""

    request: Request
    sources: dict[TypesKey, Specialised]
    artifacts: dict[TypesKey, Artifact] = field(default_factory=dict)
    compile_seconds: float = 0.0
    cached: bool = True
    failed: bool = False
    losses: int = 0
    alone: bool = False
    gated: bool = False

    @property
    def compiled(self) -> bool:
        return len(self.artifacts) == len(self.sources)

    @property
    def candidate(self) -> Candidate:
        return Candidate(self.request.template, self.request.config, dict(self.artifacts))

    def evaluation(self, outcomes: dict[str, Outcome], lane_seconds: float) -> Evaluation:
        artifact = next(iter(self.artifacts.values()), None)
        return Evaluation(
            template=self.request.template.id,
            config=self.request.config,
            outcomes=outcomes,
            resources=artifact.resources if artifact else Resources(),
            artifact=artifact.digest if artifact else "",
            compile_seconds=round(self.compile_seconds, 6),
            lane_seconds=round(lane_seconds, 6),
            cached=self.cached,
        )


@dataclass(slots=True)
class Compilation:
    """One source of a job, at a compile worker. making: the digest of the source and the version of the compiler that
    makes something of it, or did so last."""

    job: Job
    key: TypesKey
    losses: int = 0
    alone: bool = False
    making: tuple[str, str] = ("", "")

    @property
    def source(self) -> Specialised:
        return self.job.sources[self.key]
