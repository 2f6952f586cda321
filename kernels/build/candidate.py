"""A configuration of a template, compiled for every combination of types it is to run with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.outcome import Rejected
from tunesmith.kernels.spec.parameter import Config
from tunesmith.kernels.spec.task import Workload
from tunesmith.kernels.spec.template import Template

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
