"""Compiled kernels as values: machine code for one architecture, a configuration compiled for all its types, and the
request to evaluate one. Owns no compiler and no pool, so that naming these types imports neither.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from tunesmith.kernels.outcome import Rejected, Resources
from tunesmith.kernels.spec.task import Workload
from tunesmith.kernels.spec.template import Config, Template, config_key


@dataclass(frozen=True, slots=True)
class Artifact:
    """Machine code for one architecture. code: cubin or OpenCL program binary; digest: of the source it came from;
    globals: variables that kernels can write and that outlast a launch."""

    backend: str
    arch: str
    entry: str
    code: bytes = field(repr=False)
    digest: str
    resources: Resources = field(default_factory=Resources)
    globals: tuple[str, ...] = ()

    @property
    def code_digest(self) -> str:
        """Content hash of the machine code."""
        return hashlib.sha256(self.code).hexdigest()[:16]


TypesKey = tuple[tuple[str, str], ...]


def types_key(workload: Workload) -> TypesKey:
    """What of a workload decides the machine code."""
    return tuple(sorted(workload.types.items()))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A configuration of a template, compiled: an artifact for each combination of types it is to run with."""

    template: Template
    config: Config
    artifacts: Mapping[TypesKey, Artifact] = field(repr=False)

    @property
    def digests(self) -> tuple[str, ...]:
        """The content hashes of the machine code, of all combinations of types, in the order of their keys."""
        return tuple(self.artifacts[key].code_digest for key in sorted(self.artifacts))


def undeclared_state(template: Template, artifact: Artifact) -> Rejected | None:
    """Why a kernel may not run that keeps what the template does not declare, or None."""
    kept = [name for name in artifact.globals if name not in template.device_globals]
    if not kept:
        return None
    registers = [name for name in kept if name.startswith("%")]
    if registers:
        detail = (
            f"the kernel reads {', '.join(registers)[:200]}, by which it can tell one launch from another: do without, "
            "or list the registers in the template's `device_globals`"
        )
    else:
        detail = (
            f"the kernel keeps {', '.join(kept)[:200]} in global memory between launches: pass it as an argument, put "
            "a constant table in __constant__ memory, or list it in the template's `device_globals`"
        )
    return Rejected("device_state", "device globals", f"{detail}.")


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """An evaluation to be made: `number` is the caller's, by which results are told apart."""

    number: int
    template: Template
    config: Config
    workloads: tuple[str, ...]

    @property
    def key(self) -> tuple[str, str]:
        """Equal for requests of the same."""
        return self.template.id, config_key(self.config)
