"""The geometry of one launch: grid, block and dynamic shared memory of a template at a configuration on a workload."""

from __future__ import annotations

from dataclasses import dataclass

from tunesmith.kernels.spec.expression import parse
from tunesmith.kernels.spec.parameter import Config
from tunesmith.kernels.spec.task import Workload
from tunesmith.kernels.spec.template import Template


@dataclass(frozen=True, slots=True)
class Geometry:
    """One launch: grid in blocks, block in threads, dynamic shared memory in bytes."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0


def geometry(template: Template, config: Config, workload: Workload) -> Geometry:
    """The launch of `template` at `config` on `workload`; raises `ExpressionError` when it has no whole value."""
    names = {**workload.names, **config}

    def extents(texts: tuple[str, ...]) -> tuple[int, int, int]:
        values = [parse(text).integer(names) for text in texts]
        x, y, z = values + [1] * (3 - len(values))
        return x, y, z

    shared = parse(template.launch.shared_bytes).integer(names)
    return Geometry(extents(template.launch.grid), extents(template.launch.block), shared)
