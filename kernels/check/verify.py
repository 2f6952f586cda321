"""The full verdict on a candidate: many shapes, distributions and seeds, repeats, and the baseline's accuracy beside
it.

A search visit checks one distribution, because it must be quick. Before a candidate is trusted it goes through `plan`
step by step: each step is one `Step` on one device and needs a deadline of its own, which is the caller's business.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tunesmith.hw.limits import DeviceLimits
from tunesmith.kernels.backends import Device, DeviceError, Launch, OutOfDeviceMemory
from tunesmith.kernels.build.candidate import Candidate
from tunesmith.kernels.check.check import Deviation, check_others, measure_set
from tunesmith.kernels.check.trial import bind
from tunesmith.kernels.launch.workload_data import WorkloadData
from tunesmith.kernels.outcome import LaunchFailed, Outcome, Rejected, WrongResult
from tunesmith.kernels.space.feasible import rules
from tunesmith.kernels.spec.contents import Contents, Kind, kinds_of
from tunesmith.kernels.spec.expression import ExpressionError
from tunesmith.kernels.spec.parameter import Config
from tunesmith.kernels.spec.task import Task, TaskError, Workload
from tunesmith.kernels.spec.template import Template

SETS = 3
REPEATS = 3
"""Launches on the same contents that are compared bit by bit."""
ACCURACY_FACTOR = 2.0
"""How many times the baseline's error a candidate's may be."""
ACCURACY_FREE = 0.25
"""Root mean square error, as a share of the tolerance, below which no comparison with the baseline is made."""
SECOND_SEED = 7919


@dataclass(frozen=True, slots=True)
class Step:
    """One workload with one kind of contents. derived: made up here; where the template or the baseline is not meant
    for it, it is skipped, while the task's own workloads count."""

    workload: Workload
    contents: Contents
    derived: bool = False

    @property
    def name(self) -> str:
        return f"{self.workload.name}, {self.contents.kind}"


@dataclass(frozen=True, slots=True)
class Passed:
    """A step that went well. accuracy, baseline: deviations per output of the candidate and of the baseline;
    deterministic: repeated launches agree in every bit."""

    step: str
    accuracy: dict[str, Deviation]
    baseline: dict[str, Deviation]
    deterministic: bool


@dataclass(frozen=True, slots=True)
class Skipped:
    """A step that says nothing about the candidate, and why."""

    step: str
    why: str


def plan(task: Task, kind: str, seed: int, largest_bytes: float = math.inf, only: str | None = None) -> list[Step]:
    """What a candidate must be right on, cheap steps first: shapes derived from the smallest tuned workload (each size
    1, all sizes odd), its other distributions and another seed, then all workloads for devices of `kind`, as far as
    they move at most `largest_bytes`. only: for a candidate that is meant for this workload alone: its contents."""
    own = (*task.workloads_for(kind, held_out=False), *task.workloads_for(kind, held_out=True))
    if only is not None:
        one = task.workload(only)
        kinds = [Step(one, Contents(kind, seed)) for kind in kinds_of(task) if kind != "task"]
        return [Step(one, Contents(seed=seed)), *kinds, Step(one, Contents(seed=seed + SECOND_SEED))]
    if not own:
        return []
    smallest = min(own, key=task.bytes_of)
    tuned = min((w for w in own if not w.held_out), key=task.bytes_of, default=smallest)
    steps = [Step(workload, Contents(seed=seed), derived=True) for workload in derived_workloads(tuned)]
    steps.append(Step(tuned, Contents(seed=seed)))
    steps += [Step(tuned, Contents(kind, seed)) for kind in kinds_of(task) if kind != "task"]
    steps.append(Step(tuned, Contents(seed=seed + SECOND_SEED)))
    others = [one for one in sorted(own, key=task.bytes_of) if one != tuned and task.bytes_of(one) <= largest_bytes]
    steps += [Step(workload, Contents(seed=seed)) for workload in others]
    return steps


def derived_workloads(workload: Workload) -> list[Workload]:
    """Shapes that kernels forget: each size alone 1, and all sizes one off an even number."""
    sizes = [{**workload.sizes, name: 1} for name in workload.sizes]
    for off in (-1, 1):
        sizes.append({name: max(1, size + off if size % 2 == 0 else size) for name, size in workload.sizes.items()})
    distinct = {tuple(one.items()): one for one in sizes if one != workload.sizes}
    return [
        workload.model_copy(update={"sizes": one, "name": "x".join(map(str, one.values())) + " (derived)"})
        for one in distinct.values()
    ]


def infeasible_on(template: Template, config: Config, workload: Workload, limits: DeviceLimits) -> Rejected | None:
    """The first rule that `config` breaks on `workload`, or None."""
    try:
        for rule in rules(template, [workload], limits):
            if not rule.holds(config):
                return Rejected("infeasible", rule.label, rule.explain(config))
    except ExpressionError as error:
        return Rejected("infeasible", "expression", str(error))
    return None


def excluded(candidate: Candidate, step: Step, limits: DeviceLimits) -> Skipped | Rejected | None:
    """Why `candidate` is not run in this step, or None: a derived workload that the template is not meant for is
    skipped, one of the task's own is a rejection."""
    rejection = infeasible_on(candidate.template, candidate.config, step.workload, limits)
    if rejection is not None and step.derived:
        return Skipped(step.name, f"the template excludes it: {rejection.detail}")
    return rejection


def prepare_step(device: Device, task: Task, step: Step, *, max_bytes: int) -> WorkloadData | Skipped:
    """The buffers of a step and what the reference gives for them: the user's code runs here, and no kernel does.
    Raises `TaskError`."""
    try:
        return WorkloadData(
            device,
            task,
            step.workload,
            seed=step.contents.seed,
            max_bytes=max_bytes,
            contents=step.contents,
            max_sets=SETS,
        )
    except OutOfDeviceMemory as error:
        return Skipped(step.name, str(error))
    except TaskError as error:
        if step.derived:
            return Skipped(step.name, str(error))
        raise


def verify(
    device: Device, candidate: Candidate, baseline: Candidate, step: Step, data: WorkloadData
) -> Passed | Skipped | Outcome:
    """One step of the full verdict, on what `prepare_step` made. Raises `TaskError` where the task's baseline is at
    fault."""
    standard = _baseline(device, baseline, data, step)
    if isinstance(standard, Skipped):
        return standard
    try:
        launches = bind(device, candidate, data)
        if not isinstance(launches, list):
            return launches
        return _examine(device, launches, data, step, standard)
    except DeviceError as error:
        return LaunchFailed(str(error), sticky=error.sticky)


def _baseline(device: Device, baseline: Candidate, data: WorkloadData, step: Step) -> dict[str, Deviation] | Skipped:
    """The baseline's own deviations, where it is right or only inexact."""
    own = step.contents.kind == "task" and not step.derived
    try:
        launches = bind(device, baseline, data)
        if isinstance(launches, list):
            _launch(device, launches, data, 0)
            names = {argument.name: 1.0 if own else float("inf") for argument in data.task.outputs}
            found = measure_set(data, 0, names)
            if isinstance(found, dict) and all(one.largest < float("inf") for one in found.values()):
                return found
            why = found.detail if isinstance(found, WrongResult) else "an infinite error"
        else:
            why = str(launches)
    except DeviceError as error:
        if error.sticky:
            raise TaskError(
                f"Task {data.task.name}: its baseline ends the device's context on {step.name}: {error}."
            ) from error
        why = str(error)
    if own:
        raise TaskError(f"Task {data.task.name}: its baseline is not right on {step.name}: {why}.")
    return Skipped(step.name, f"the baseline is not right there: {why}")


def _examine(
    device: Device, launches: Sequence[Launch], data: WorkloadData, step: Step, standard: dict[str, Deviation]
) -> Passed | WrongResult:
    # The task's tolerance is meant for its own contents; what is accurate enough on others, the baseline says.
    own = step.contents.kind == "task"
    allowed = {name: 1.0 if own else max(1.0, ACCURACY_FACTOR * one.largest) for name, one in standard.items()}
    _launch(device, launches, data, 0)
    first = measure_set(data, 0, allowed)
    if isinstance(first, WrongResult):
        return _at(first, step)
    if (wrong := check_others(data, 0) or _less_accurate(first, standard)) is not None:
        return _at(wrong, step)
    bits, deterministic = data.set_array(0).copy(), True
    for _ in range(REPEATS - 1):
        data.restore_set(0, 0)
        device.launch(launches[0])
        device.synchronize()
        if not bool((data.set_array(0) == bits).all()):
            deterministic = False
            again = measure_set(data, 0, allowed)
            if isinstance(again, WrongResult):
                return _at(
                    replace(again, reason="nondeterministic", detail=f"another launch was right, but {again.detail}"),
                    step,
                )
    if data.exchange_inputs(0):
        changed = _again(device, launches, data, allowed)
        if isinstance(changed, WrongResult):
            # On fresh buffers with the same contents: is it these that it gets wrong, or what was left from before?
            data.restore_set(0, data.held(0))
            fresh = _again(device, launches, data, allowed)
            if isinstance(fresh, WrongResult) or changed.reason not in ("mismatch", "unwritten"):
                return _at(fresh if isinstance(fresh, WrongResult) else changed, step)
            return _at(
                replace(changed, reason="stale_output", detail=f"after the inputs had changed, {changed.detail}"), step
            )
    return Passed(step.name, first, standard, deterministic)


def _less_accurate(found: dict[str, Deviation], standard: dict[str, Deviation]) -> WrongResult | None:
    for name, one in found.items():
        bound = max(ACCURACY_FREE, ACCURACY_FACTOR * standard[name].rms)
        if one.rms > bound:
            detail = (
                f"the root mean square error of {name} is {one.rms:.3g} of its tolerance, the baseline's "
                f"{standard[name].rms:.3g}; at most {bound:.3g} is accepted"
            )
            return WrongResult("less_accurate", name, detail)
    return None


def _launch(device: Device, launches: Sequence[Launch], data: WorkloadData, index: int) -> None:
    data.restore()
    device.launch(launches[index])
    device.synchronize()


def _again(
    device: Device, launches: Sequence[Launch], data: WorkloadData, allowed: dict[str, float]
) -> WrongResult | dict[str, Deviation]:
    device.launch(launches[0])
    device.synchronize()
    return measure_set(data, 0, allowed)


def _at(wrong: WrongResult, step: Step) -> WrongResult:
    return replace(wrong, detail=f"on {step.name}: {wrong.detail}")


__all__ = [
    "Kind",
    "Passed",
    "Skipped",
    "Step",
    "derived_workloads",
    "excluded",
    "infeasible_on",
    "plan",
    "prepare_step",
    "verify",
]
