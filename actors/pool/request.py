"""What is asked of a pool. Apart from the pool, since Ray takes a second to import: what only names a request does
without."""

from __future__ import annotations

from dataclasses import dataclass

from tunesmith.kernels.spec.parameter import Config, config_key
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
