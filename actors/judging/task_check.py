"""Checks of a task without its device: its reference, its signatures, and its baseline.

The reference is the user's code, which may be wrong, random, or change its arguments. It is called on the host, in a
process of its own, as it may hang or end its process.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial

import numpy as np

from tunesmith.actors.judging.judge import MAX_HOST_BYTES, compile_all
from tunesmith.actors.process import Isolated, preload
from tunesmith.actors.workers import CompileWorker, Deadlines
from tunesmith.hw.limits import DeviceLimits
from tunesmith.kernels.backends import CompilerUnavailable
from tunesmith.kernels.build.artifact import Candidate
from tunesmith.kernels.build.python_source import ARGUMENT
from tunesmith.kernels.build.source import CodeKey, code_key
from tunesmith.kernels.check.plan import SMALL_BYTES, array_bytes, small_workload
from tunesmith.kernels.launch.contents import Contents
from tunesmith.kernels.launch.reference import as_expected, host_inputs, reference_results, where_of
from tunesmith.kernels.outcome import Crashed, TimedOut, describe
from tunesmith.kernels.reader.signature import require_signatures
from tunesmith.kernels.spec.expression import parse
from tunesmith.kernels.spec.task import Task, TaskError, Workload
from tunesmith.kernels.spec.template import BACKENDS

DEADLINES = Deadlines()
"""Unless the user says otherwise."""
NOT_COMPILED = "baseline: it was not compiled"
"""Begins a clause on a machine without the compiler."""


def examine_reference(task: Task, workload: Workload, seed: int, twice: bool) -> None:
    """Raises `TaskError`, naming the reference, where no kernel can be compared with its results. twice: it is called a
    second time, and must give the same."""
    given = host_inputs(task, workload, Contents(seed=seed))
    lent = {name: array.copy() for name, array in given.items()}
    results = reference_results(task, workload, lent)
    where = where_of(task, workload)
    for name, array in given.items():
        if not np.array_equal(array, lent[name], equal_nan=True):
            raise TaskError(
                f"{where} writes its argument {name}: let it work on a copy ({name} = {name}.copy()) and return the "
                "result."
            )
    expected = as_expected(np, task, workload, results)
    for argument in task.outputs:
        returned = np.asarray(results[argument.name]).dtype
        if returned.kind == "f" and returned.itemsize < 8:
            raise TaskError(
                f"{where} returns {argument.name} in {returned}: return float64, which its arguments have, as rounded "
                "results cannot measure a kernel."
            )
        values = expected[argument.name]
        wrong = np.isnan(values)
        if wrong.any() and all(np.isfinite(array).all() for array in given.values()):
            at = [int(i) for i in np.unravel_index(int(np.argmax(wrong)), task.shape_of(argument, workload))]
            raise TaskError(
                f"{where} returns nan at {argument.name}{at}, although no argument holds nan or infinity: fix it."
            )
        dtype = task.dtype_of(argument, workload)
        tolerance, finite = task.tolerance_of(dtype, argument.name), np.abs(values[np.isfinite(values)])
        if finite.size and finite.max() > 0 and bool((finite <= tolerance.atol + tolerance.rtol * finite).all()):
            named = argument.name if argument.name in task.tolerance else dtype
            raise TaskError(
                f"Task {task.name}, workload {workload.name}: the tolerance of {named} (rtol {tolerance.rtol:g}, atol "
                f"{tolerance.atol:g}) would accept zeros for {argument.name}, whose largest value is "
                f"{finite.max():.3g}: make atol smaller than the values that count."
            )
    if twice:
        again = reference_results(task, workload, {name: array.copy() for name, array in given.items()})
        for name, value in results.items():
            if not np.array_equal(np.asarray(value), np.asarray(again[name]), equal_nan=True):
                raise TaskError(
                    f"{where} gives two different results for {name} from the same arguments: make it deterministic "
                    "(draw no random numbers, keep no state between calls)."
                )


def check_reference(
    task: Task,
    workloads: Sequence[Workload],
    *,
    seed: int,
    deadline: float = DEADLINES.prepare,
    most_bytes: float = MAX_HOST_BYTES,
) -> Workload | None:
    """Calls the reference on the `workloads` with at most `most_bytes` of arrays, else on one like the smallest with
    smaller sizes (`small_workload`); on the smallest twice, which is returned, None where nothing was called. deadline:
    seconds for one workload, from when its process is ready. Raises `TaskError`, which names the reference and says
    what to fix."""
    ordered = sorted(workloads, key=lambda one: array_bytes(task, one))
    if task.original_is_reference or not ordered:
        return None  # nothing of the user's runs on the host
    small = [workload for workload in ordered if array_bytes(task, workload) <= most_bytes]
    chosen = small or [small_workload(task, ordered, most_bytes)]
    try:
        return _call_reference(task, chosen, seed, deadline)
    except TaskError:
        if chosen[0] in ordered:
            raise
        # A failure on made-up sizes is not held against the author.
        return _call_reference(task, ordered[:1], seed, deadline)


def _call_reference(task: Task, workloads: Sequence[Workload], seed: int, deadline: float) -> Workload:
    with Isolated("run", partial, examine_reference, task) as process:
        for workload in workloads:
            answer = process.call("__call__", deadline, workload, seed, workload is workloads[0])
            if isinstance(answer, TimedOut):
                raise TaskError(
                    f"{where_of(task, workload)} has not returned for {answer.limit:g} s: fix it, make the workload "
                    "smaller, or give it more time with --reference-deadline."
                )
            if isinstance(answer, Crashed):
                raise TaskError(f"{where_of(task, workload)} ends the process that calls it ({answer.detail}): fix it.")
    return workloads[0]


def check_task(
    task: Task, limits: DeviceLimits, index: int = 0, *, reference_deadline: float = DEADLINES.prepare
) -> tuple[list[str], list[str]]:
    """Clauses on the parts that are right, and on the parts that could not be checked. Raises `TaskError` for the first
    mistake. limits: of the task's device, which need not be here for CUDA; index: of a present OpenCL device, whose
    driver compiles."""
    preload(limits.backend)
    workloads = task.workloads_for(limits.kind) or task.workloads
    right, unchecked = list[str](), list[str]()
    for kernel, why in require_signatures(task, limits.backend).items():
        (unchecked if why else right).append(f"{kernel}: {why or 'its signature is that of the arguments'}")
    smallest = min(workloads, key=lambda one: array_bytes(task, one))
    called = check_reference(task, [smallest], seed=0, deadline=reference_deadline, most_bytes=SMALL_BYTES)
    template = task.sources(limits.backend).baseline.template
    combinations = defaultdict[CodeKey, list[Workload]](list)
    for workload in workloads:
        combinations[code_key(task, template, workload)].append(workload)
    # The baseline for each combination of types, and its launch on each workload, on paper.
    with Isolated("compile", CompileWorker, limits, index) as compiler:
        for types, alike in combinations.items():
            shown = ", ".join(f"{name} = {dtype}" for name, dtype in types if not name.startswith(ARGUMENT))
            named = f" with {shown}" if shown else ""
            try:
                made = compile_all([compiler], task, template, {}, alike, DEADLINES.compile, limits=limits)
            except CompilerUnavailable as error:
                unchecked.append(f"{NOT_COMPILED}, as {error}".rstrip("."))
                break
            if not isinstance(made, Candidate):
                why = describe(made).rstrip(".")
                raise TaskError(f"Task {task.name}, {limits.backend} baseline{named}: {why}.")
            launched = ", ".join(one.name for one in alike)
            right.append(f"baseline: it compiles{named} and can be launched on {launched}")
            (artifact,) = made.artifacts.values()
            declared, shared = parse(template.static_shared_bytes).integer(alike[0].names), artifact.resources.shared
            compiled = artifact.call is None and BACKENDS[limits.backend].makes_cubins
            if compiled and shared is not None and shared != declared:
                unchecked.append(
                    f"baseline: the source declares {shared} bytes of shared memory, the task says {declared}: write "
                    f'`static_shared_bytes = "{shared}"`'
                )
    if called is not None:
        right.append(f"reference: {task.reference_name} gives every output on {called.name}")
    return right, unchecked
