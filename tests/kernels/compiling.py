"""What tests of kernels share: compiled candidates, sizes of arrays, tables of configurations."""

from __future__ import annotations

import math
from typing import Any

from tunesmith.kernels.backends import open_compiler
from tunesmith.kernels.build.artifact import Artifact, Candidate, types_key
from tunesmith.kernels.build.source import specialise
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.task import Task, Workload
from tunesmith.kernels.spec.template import Template


def compiled_candidate(task: Task, device: Any, template: Template | None = None) -> Candidate:
    """`template`, or the baseline, at its default, compiled for the task's first workload."""
    template = template or task.sources(device.backend).baseline.template
    source = specialise(template, template.default_config, task.workloads[0].types)
    artifact = open_compiler(device.limits, device.index).compile(source)
    assert isinstance(artifact, Artifact), artifact
    return Candidate(template, template.default_config, {types_key(task.workloads[0]): artifact})


def bytes_of_arrays(task: Task, workload: Workload) -> int:
    """Every array once for each direction in which it moves."""
    total = 0
    for argument in task.arguments:
        if argument.role != "scalar":
            shape = task.shape_of(argument, workload)
            if argument.name == "table" and task.name == "rope":  # A row for each token, not for each position.
                shape = (min(workload.sizes["n"], shape[0]), *shape[1:])
            size = DTYPES[task.dtype_of(argument, workload)].size
            total += (2 if argument.role == "inout" else 1) * math.prod(shape) * size
    return total


def named_rows(names: str, *rows: tuple[int, ...], **others: int) -> tuple[dict[str, int], ...]:
    """One configuration, or sizes of one workload, a row: values of `names`, and `others` that all have."""
    return tuple({**dict(zip(names.split(), row, strict=True)), **others} for row in rows)
