"""Is a task right, as far as can be seen without its device?

Owns the calls of the reference before anything is measured, and the order in which a task is checked without a device:
signatures, the reference on a small shape, the baseline compiled in every type, its launch within the limits. Compiler
and reference have processes of their own. The reference is the user's code: it may sleep for ever, print, or end its
process, and is named for it; no kernel is blamed, and no other tuning on the machine waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tunesmith.actors.process.isolated import Isolated, preload
from tunesmith.actors.process.workers import CompileWorker
from tunesmith.hw.limits import DeviceLimits
from tunesmith.kernels.backends.cuda_compiler import CudaUnavailable
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.candidate import undeclared_state
from tunesmith.kernels.build.specialise import specialise
from tunesmith.kernels.check.plan import small_workload
from tunesmith.kernels.check.reference import examine_reference
from tunesmith.kernels.check.verify import infeasible_on
from tunesmith.kernels.launch.reference import where_of
from tunesmith.kernels.outcome import Crashed, TimedOut, describe
from tunesmith.kernels.rewrite.signature import require_signatures
from tunesmith.kernels.space.feasible import compiler_rejection
from tunesmith.kernels.spec.expression import parse
from tunesmith.kernels.spec.geometry import geometry
from tunesmith.kernels.spec.task import Task, TaskError, Workload

COMPILE_SECONDS = 60.0
REFERENCE_SECONDS = 60.0
"""The deadline of the reference on one workload, unless the user says otherwise."""
LARGEST_BYTES = 16 << 20
"""Workloads that move more than this are left to the device, on which their results are computed faster; where all do,
the smallest is called."""


class _Host:
    def __init__(self, task: Task, seed: int) -> None:
        self._task, self._seed = task, seed

    def examine(self, workload: Workload, twice: bool) -> None:
        examine_reference(self._task, workload, self._seed, twice=twice)


def check_reference(
    task: Task, workloads: Sequence[Workload], *, seed: int, deadline: float = REFERENCE_SECONDS
) -> None:
    """Calls the task's reference on `workloads`, the smallest first, and that one twice. deadline: seconds for one
    workload, from when its process is ready. Raises `TaskError`, which names the reference and says what to fix."""
    if task.original_is_reference:
        return  # nothing of the user's runs on the host
    ordered = sorted(workloads, key=task.bytes_of)
    small = [one for one in ordered if task.bytes_of(one) <= LARGEST_BYTES]
    with Isolated("run", _Host, task, seed) as process:
        for workload in small or ordered[:1]:
            answer = process.call("examine", deadline, workload, workload is ordered[0])
            if isinstance(answer, TimedOut):
                raise TaskError(
                    f"{where_of(task, workload)} has not returned for {answer.limit:g} s: fix it, make the workload "
                    "smaller, or give it more time with --reference-deadline."
                )
            if isinstance(answer, Crashed):
                raise TaskError(f"{where_of(task, workload)} ends the process that calls it ({answer.detail}): fix it.")


def meant_for(task: Task, limits: DeviceLimits) -> tuple[Workload, ...]:
    """The workloads for a device, tuned and held-out ones."""
    kind = limits.kind
    return (*task.workloads_for(kind, held_out=False), *task.workloads_for(kind, held_out=True))


def check_task(
    task: Task, limits: DeviceLimits, index: int = 0, *, reference_deadline: float = REFERENCE_SECONDS
) -> tuple[list[str], list[str]]:
    """What was found right, and what could not be checked, a clause each. Raises `TaskError` for the first mistake.

    limits: of the device that the task is for, which need not be here for CUDA; index: of an OpenCL device that is,
    whose driver compiles.
    """
    preload(limits.backend)
    right, unchecked = list[str](), list[str]()
    workloads = [one for one in task.workloads if limits.kind in one.devices] or list(task.workloads)
    small = small_workload(task, workloads)
    for what, why in require_signatures(task, limits.backend).items():
        (unchecked if why else right).append(f"{what}: {why or 'its signature is that of the arguments'}")
    try:
        check_reference(task, [small], seed=0, deadline=reference_deadline)
    except TaskError:
        if small in workloads:
            raise
        # What it does on sizes that were made up for this is not held against its author.
        small = min(workloads, key=task.bytes_of)
        check_reference(task, [small], seed=0, deadline=reference_deadline)
    for clause, found in _compiled(task, limits, index, workloads):
        (right if found else unchecked).append(clause)
    if not task.original_is_reference:
        right.append(f"reference: {task.reference_name} gives every output on {small.name}")
    return right, unchecked


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
