"""Which task of the library does most nearly what another one does, to stand as the worked example of a prompt.

By what the kernel does, as far as its plain source and its declared traffic say: arithmetic per byte, whether threads
work together (barriers, shared memory, shuffles, atomics), loops, and functions beyond arithmetic. Retrieval by such
features instead of by names is the idea of Trümper et al., "Performance Embeddings" (ICS 2023); theirs are learned,
these are counted, since there are a handful of kernels to choose from.
"""

from __future__ import annotations

import functools
import math
import re

from tunesmith.kernels.spec.files.taskfile import library_tasks, read_task
from tunesmith.kernels.spec.task import Task, Workload
from tunesmith.kernels.spec.template import BackendName, Template

_TOGETHER = re.compile(r"\b(?:__syncthreads|barrier|work_group_barrier)\s*\(")
_SHARED = re.compile(r"\b__shared__\b|\b__local\b|\blocal\s+\w")
_SHUFFLE = re.compile(r"\b__shfl|\bsub_group_")
_ATOMIC = re.compile(r"\batom(?:ic)?[A-Z_]\w*\s*\(")
_LOOP = re.compile(r"\b(?:for|while)\s*\(")
_FUNCTION = re.compile(r"\b(?:native_|__|h|f)?(?:exp|log|sqrt|rsqrt|tanh|erf|sin|cos|pow)\w*\s*\(")
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)

LONGEST = 12_000
"""Characters of a template that stands as the example, some 4,000 tokens: longer ones are tricks more than patterns,
and the example is most of a prompt."""

Features = tuple[float, ...]


def features(task: Task, backend: BackendName) -> Features:
    """What `task` does, as numbers of like weight: logarithm of arithmetic per byte (a factor of eight counts one),
    barriers (up to two), shared memory or shuffles, atomics, loops (up to three, a half each), further functions,
    logarithm of what is written per what is read (a factor of eight counts one)."""
    source = _COMMENT.sub(" ", task.sources(backend).baseline.template.source)
    workload = task.workloads[0]
    moved, flops = task.bytes_of(workload), task.flops_of(workload)
    intensity = math.log(max(flops, 1) / max(moved, 1), 8) if moved and flops else 0.0
    return (
        intensity,
        float(min(2, len(_TOGETHER.findall(source)))),
        float(bool(_SHARED.search(source) or _SHUFFLE.search(source))),
        float(bool(_ATOMIC.search(source))),
        min(3, len(_LOOP.findall(source))) / 2,
        float(bool(_FUNCTION.search(source))),
        _written_per_read(task, workload),
    )


def _written_per_read(task: Task, workload: Workload) -> float:
    """As a logarithm, of elements: below 0 for a kernel that reduces, 0 where results are as many as inputs."""
    counts = {one.role: 0 for one in task.arguments} | {"in": 0, "out": 0, "inout": 0}
    for one in task.arguments:
        if one.role != "scalar":
            counts[one.role] += math.prod(task.shape_of(one, workload))
    read, written = counts["in"] + counts["inout"], counts["out"] + counts["inout"]
    return math.log(written / read, 8) if read and written else 0.0


def most_similar(task: Task, backend: BackendName) -> tuple[Task, Template] | None:
    """The library's task with a template for `backend` of at most `LONGEST` characters that is nearest to `task`, of
    another name, and that template; of equals the first by name."""
    own = features(task, backend)
    known = [one for one in _library(backend) if one[0].name != task.name]
    return min(known, key=lambda one: (math.dist(own, features(one[0], backend)), one[0].name), default=None)


@functools.cache
def _library(backend: BackendName) -> tuple[tuple[Task, Template], ...]:
    """Each task with its first template that is short enough."""
    found = []
    for task in map(read_task, library_tasks().values()):
        templates = task.sources(backend).templates if backend in task.backends else ()
        short = next((one for one in templates if len(one.source) <= LONGEST), None)
        if short is not None:
            found.append((task, short))
    return tuple(found)
