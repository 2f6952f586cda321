"""Is a task right, as far as that can be seen without a device?

Owns the order of that examination: signatures, the reference on a small shape, the baseline compiled in every type, its
launch within the limits. The compiler and the reference, which is the user's code, have processes of their own.
"""

from __future__ import annotations

from collections.abc import Iterator

from tunesmith.actors.judging.reference import ReferenceCheck
from tunesmith.actors.process.isolated import Isolated, preload
from tunesmith.actors.process.workers import CompileWorker
from tunesmith.hw.limits import DeviceLimits
from tunesmith.kernels.backends.cuda_compiler import CudaUnavailable
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.candidate import undeclared_state
from tunesmith.kernels.build.specialise import specialise
from tunesmith.kernels.check.plan import small_workload
from tunesmith.kernels.check.verify import infeasible_on
from tunesmith.kernels.outcome import describe
from tunesmith.kernels.rewrite.signature import require_signatures
from tunesmith.kernels.space.feasible import compiler_rejection
from tunesmith.kernels.spec.expression import parse
from tunesmith.kernels.spec.geometry import geometry
from tunesmith.kernels.spec.task import Task, TaskError, Workload

COMPILE_SECONDS = 60.0


def examine_task(
    task: Task, limits: DeviceLimits, index: int = 0, *, reference: ReferenceCheck | None = None
) -> tuple[list[str], list[str]]:
    """What was found right, and what could not be looked at, a clause each. Raises `TaskError` for the first mistake.

    limits: of the device that the task is for, which need not be here for CUDA; index: of an OpenCL device that is,
    whose driver compiles. reference: the task's, which nothing was asked of yet; ended here.
    """
    reference = reference or ReferenceCheck(task, seed=0)
    preload(limits.backend)
    seen, unseen = list[str](), list[str]()
    workloads = [one for one in task.workloads if limits.kind in one.devices] or list(task.workloads)
    own, small = min(workloads, key=task.bytes_of), small_workload(task, workloads)
    # What it does on sizes that were made up for this is not held against its author.
    first = reference if small in workloads else ReferenceCheck(task, seed=0, deadline=reference.deadline)
    try:
        first.examine([small])
        for what, why in require_signatures(task, limits.backend).items():
            (unseen if why else seen).append(f"{what}: {why or 'its signature is that of the arguments'}")
        for clause, found in _compiled(task, limits, index, workloads):
            (seen if found else unseen).append(clause)
        if not task.original_is_reference:
            try:
                first.result()
                called = small
            except TaskError:
                if first is reference:
                    raise
                reference.examine([own])
                reference.result()
                called = own
            seen.append(f"reference: {task.reference_name} gives every output on {called.name}")
    finally:
        first.end()
        reference.end()
    return seen, unseen


def _compiled(task: Task, limits: DeviceLimits, index: int, workloads: list[Workload]) -> Iterator[tuple[str, bool]]:
    """The baseline compiled for each combination of types, and its launch on each workload: clauses, and whether they
    say that something is right."""
    template = task.sources(limits.backend).baseline.template
    where = f"Task {task.name}, {limits.backend} baseline"
    combinations: dict[tuple[tuple[str, str], ...], list[Workload]] = {}
    for workload in workloads:
        combinations.setdefault(tuple(sorted(workload.types.items())), []).append(workload)
    with Isolated("compile", CompileWorker, limits, index) as compiler:
        for types, alike in combinations.items():
            named = f" with {', '.join(f'{name} = {dtype}' for name, dtype in types)}" if types else ""
            try:
                made = compiler.call("compile", COMPILE_SECONDS, specialise(template, {}, dict(types)))
            except CudaUnavailable as error:
                yield f"baseline: not compiled. {error}".rstrip("."), False
                return
            if not isinstance(made, Artifact):
                raise TaskError(f"{where}{named}: {describe(made).rstrip('.')}.")
            if (kept := undeclared_state(template, made)) is not None:
                raise TaskError(f"{where}{named}: {kept.detail.rstrip('.')}.")
            for workload in alike:
                broken = infeasible_on(template, {}, workload, limits) or compiler_rejection(
                    limits, geometry(template, {}, workload), made.resources
                )
                if broken is not None:
                    raise TaskError(
                        f"{where}: it cannot be launched on the workload {workload.name}: {broken.detail.rstrip('.')}."
                    )
            yield f"baseline: it compiles{named} and can be launched on {', '.join(one.name for one in alike)}", True
            declared = _static_shared(task, alike[0], limits)
            if limits.backend == "cuda" and made.resources.shared is not None and made.resources.shared != declared:
                yield (
                    f"baseline: the source declares {made.resources.shared} bytes of shared memory, the task says "
                    f'{declared}: write `static_shared_bytes = "{made.resources.shared}"`',
                    False,
                )


def _static_shared(task: Task, workload: Workload, limits: DeviceLimits) -> int:
    return parse(task.sources(limits.backend).baseline.template.static_shared_bytes).integer(workload.names)
