"""What the pool is asked for. A module without Ray, so that whoever only describes evaluations does not import it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tunesmith.kernels.build.candidate import TypesKey, types_key
from tunesmith.kernels.build.specialise import Specialised, specialise
from tunesmith.kernels.spec.parameter import Config, config_key
from tunesmith.kernels.spec.task import Workload
from tunesmith.kernels.spec.template import Template


@dataclass(frozen=True, slots=True)
class Request:
    """An evaluation to be made: `number` is the caller's, by which results are told apart."""

    number: int
    template: Template
    config: Config
    workloads: tuple[str, ...]

    @property
    def key(self) -> tuple[str, str]:
        """Equal for requests of the same."""
        return self.template.id, config_key(self.config)


def sources_of(request: Request, workloads: Sequence[Workload]) -> dict[TypesKey, Specialised]:
    """The source for each combination of types that `workloads` have."""
    sources: dict[TypesKey, Specialised] = {}
    for workload in workloads:
        key = types_key(workload)
        if key not in sources:
            sources[key] = specialise(request.template, request.config, workload.types)
    return sources
