"""What a compiler makes of a source: machine code for one architecture, and what the compiler says of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from tunesmith.kernels.outcome import Resources


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
