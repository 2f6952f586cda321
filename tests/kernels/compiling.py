"""What tests of kernels share: compiled candidates, written tasks, sizes of arrays, tables of configurations."""

import functools
import json
import math
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.backends import Compiler, open_compiler
from tunesmith.kernels.build.artifact import Artifact, Candidate, types_key
from tunesmith.kernels.build.source import specialise
from tunesmith.kernels.measure.bench import Bench
from tunesmith.kernels.measure.timing import Precision
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.task import Task, Workload
from tunesmith.kernels.spec.taskfile import read_task
from tunesmith.kernels.spec.template import Template


@functools.cache
def nvrtc_for(arch: str) -> Compiler:
    """One for all tests, which keeps the headers that it has compiled."""
    return open_compiler(resolve_target(arch))


def compiled_candidate(task: Task, device: Any, template: Template | None = None) -> Candidate:
    """`template`, or the baseline, at its default, compiled for the task's first workload."""
    template = template or task.sources(device.backend).baseline.template
    source = specialise(template, template.default_config, task.workloads[0].types)
    artifact = open_compiler(device.limits, device.index).compile(source)
    assert isinstance(artifact, Artifact), artifact
    return Candidate(template, template.default_config, {types_key(task.workloads[0]): artifact})


def visit(bench: Bench, candidate: Candidate, **precision: Any) -> Any:
    """A short visit to the task's first workload."""
    name, quick = bench.task.workloads[0].name, {"target": 0.5, "min_samples": 3, "budget_seconds": 0.05}
    return bench.visit(candidate, [name], Precision(**quick | precision))[name]


def write_task(
    folder: Path,
    arguments: str,
    workloads: str,
    *,
    source: str = "// a kernel",
    reference: str = "return inputs",
    backends: Sequence[str] = ("opencl",),
    launch: str = 'grid = ["64"], block = ["64"]',
    keys: str = "",
    tables: str = "",
) -> Task:
    """Writes and reads the task `run`, of one kernel of that name. arguments: as "x in T n d; n scalar int32 n", where
    `|` and the keys of a fill may follow; workloads: their sizes; reference: what its function does with `inputs`, or
    the kernel where it is empty; keys, tables: further text of task.toml, before and behind the arguments."""
    listed = []
    for text in arguments.split("; "):
        about, _, fill = text.partition(" | ")
        name, role, dtype, *shape = about.split()
        value = f'value = "{shape[0]}"' if role == "scalar" else f"shape = {json.dumps(shape)}"
        more = f", fill = {{ {fill} }}" if fill else ""
        listed.append(f'{{ name = "{name}", role = "{role}", dtype = "{dtype}", {value}{more} }}')
    lines = ['name = "run"\nentry = "run"\nbytes = "4096"', keys, f"arguments = [{', '.join(listed)}]"]
    lines.append(f'reference = "{"reference.py:run" if reference else "baseline"}"\n{tables}')
    baseline = f'baseline = {{ source_file = "run.c", launch = {{ {launch} }} }}'
    lines += [f"[backends.{backend}]\n{baseline}" for backend in backends]
    lines += [f"[[workloads]]\nsizes = {{ {sizes} }}" for sizes in workloads.split("; ")]
    (folder / "task.toml").write_text("\n".join(lines))
    (folder / "run.c").write_text(source)
    (folder / "reference.py").write_text(f"def run(**inputs):\n    {reference}\n")
    return read_task(folder / "task.toml")


def edit(folder: Path, file: str, old: str, new: str) -> None:
    text = (folder / file).read_text()
    assert old in text, f"{old!r} is not in {file}"
    (folder / file).write_text(text.replace(old, new, 1))


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """As on a full disk: a write beyond `size` bytes of a file fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


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
