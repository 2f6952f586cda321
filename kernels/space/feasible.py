"""From a template, workloads and a device's limits to the rules of the feasible space.

Owns which limit becomes which rule, before compiling (`rules`) and after, when the compiler has said what a thread
takes (`compiler_rejection`). A rule rejects only what the driver would refuse to launch; what merely runs badly is
the search's business.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.occupancy import Occupancy, occupancy
from tunesmith.kernels.outcome import Rejected, Resources
from tunesmith.kernels.space.rule import Rule
from tunesmith.kernels.space.space import Space
from tunesmith.kernels.spec.expression import Expression, ExpressionError, parse
from tunesmith.kernels.spec.geometry import Geometry
from tunesmith.kernels.spec.operations import MAX_INTEGER
from tunesmith.kernels.spec.parameter import Config
from tunesmith.kernels.spec.soundness import MOST_BLOCKS
from tunesmith.kernels.spec.task import Workload
from tunesmith.kernels.spec.template import Template

AXES = ("x", "y", "z")


class EmptySpace(TunesmithError):
    """No configuration is feasible."""


def device_names(limits: DeviceLimits) -> dict[str, int]:
    """What constraints may know of a device: a value for each of `DEVICE_NAMES`."""
    digits = re.fullmatch(r"sm_(\d+)[af]?", limits.arch or "")
    return {"compute_capability": int(digits[1]) if digits else 0}


def rules(template: Template, workloads: Sequence[Workload], limits: DeviceLimits) -> list[Rule]:
    """The rules a configuration must meet to be feasible on every one of `workloads`.

    They are the template's constraints and the limits on block and grid dimensions, on threads and shared memory per
    block and on a cap of registers; and whatever decides source or launch must have a value.
    """
    found = []
    device = device_names(limits)
    for constraint in template.constraints:
        expression = parse(constraint.expression)
        for suffix, sizes in _environments(expression.names, workloads):
            names = sizes | {name: value for name, value in device.items() if name in expression.names}
            found.append(
                Rule.from_expression(
                    expression,
                    names,
                    because=constraint.because,
                    label=constraint.expression + suffix,
                )
            )
    for position, text in enumerate(template.launch.block):
        found += _bounded("block_dim", f"block.{AXES[position]}", text, 1, limits.max_block_dims[position], workloads)
    threads = " * ".join(f"({text})" for text in template.launch.block)
    found += _bounded("threads_per_block", "threads per block", threads, 1, limits.max_threads_per_block, workloads)
    static, dynamic = template.static_shared_bytes, template.launch.shared_bytes
    # Static shared memory never exceeds the default limit; only the dynamic part can opt in to more.
    most = limits.shared_per_block_optin or limits.shared_per_block
    found += _bounded("shared_per_block", "static shared memory", static, 0, limits.shared_per_block, workloads)
    found += _bounded("shared_per_block", "dynamic shared memory", dynamic, 0, None, workloads)
    found += _bounded("shared_per_block", "shared memory", f"({static}) + ({dynamic})", 0, most, workloads)
    if template.max_registers is not None:
        most = limits.max_registers_per_thread
        found += _bounded("max_registers", "max_registers", template.max_registers, 0, most, workloads)
    found += _valued("fast_math", template.fast_math, workloads)
    for position, text in enumerate(template.launch.grid):
        most = limits.max_grid_dims[position] if limits.max_grid_dims else MOST_BLOCKS
        found += _bounded("grid_dim", f"grid.{AXES[position]}", text, 1, most, workloads)
    return found


def feasible(template: Template, workloads: Sequence[Workload], limits: DeviceLimits) -> Space:
    """The space of configurations that are feasible on every one of `workloads`; it may be empty."""
    return Space.build(template.parameters, rules(template, workloads, limits))


def default_refused(template: Template, workloads: Sequence[Workload], limits: DeviceLimits) -> str:
    """Why the default configuration is not feasible on `workloads`, as a sentence; empty where it is."""
    config = template.default_config
    broken = next((rule for rule in rules(template, workloads, limits) if not rule.holds(config)), None)
    return "" if broken is None else broken.explain(config)


def reason_of(template: Template, label: str) -> str:
    """What the template says of the constraint behind a rule; empty for a limit of the device."""
    return next(
        (one.because for one in template.constraints if f"{label} for ".startswith(f"{one.expression} for ")), ""
    )


def require_points(space: Space, template: Template) -> None:
    """Raises `EmptySpace`, naming the rules that leave no point, when the space is empty."""
    if not space.empty:
        return
    never = next((rule.explain({}).rstrip(".") for rule in space.rules if not rule.names and not rule.holds({})), None)
    if never is not None:
        raise EmptySpace(f"The template {template.name} has no feasible configuration: {never}; correct it.")
    binding = ", ".join(f"`{rule.label}`" for rule in space.binding_rules())
    cause = f"without {binding} there would be some" if binding else "several constraints together exclude all"
    raise EmptySpace(
        f"The template {template.name} has no feasible configuration among {space.cartesian}: {cause}; "
        "relax the constraint or add values to the parameters it uses."
    )


def compiler_rejection(limits: DeviceLimits, geometry: Geometry, resources: Resources) -> Rejected | None:
    """Why a compiled kernel cannot be launched at `geometry`, or None.

    Registers are allocated to a block for whole groups of warps, in units of a warp's allocation; a block whose
    registers exceed the multiprocessor's is refused by the driver ("too many resources requested for launch").
    """
    threads = geometry.block[0] * geometry.block[1] * geometry.block[2]
    registers, shared = resources.registers or 0, (resources.shared or 0) + geometry.shared_bytes
    answer = _occupancy(limits, threads, registers, shared)
    if answer.blocks_per_sm:
        return None
    match answer.limiter:
        case "threads_per_block" | "threads":
            detail = f"the block has {threads} threads; the device allows {limits.max_threads_per_block}."
        case "shared_per_block" | "shared":
            most = limits.shared_per_block_optin or limits.shared_per_block or limits.shared_per_sm
            detail = f"the block takes {shared} bytes of shared memory; the device allows {most}."
        case _:
            detail = (
                f"{threads} threads with {registers} registers each take more than the "
                f"{limits.registers_per_block or limits.registers_per_sm} registers of a block."
            )
    return Rejected(answer.limiter or "occupancy", (answer.limiter or "occupancy").replace("_", " "), detail)


@lru_cache(maxsize=4096)
def _occupancy(limits: DeviceLimits, threads: int, registers: int, shared: int) -> Occupancy:
    """Remembered, as the points of a space have few different ones, and every visit of a lane asks."""
    return occupancy(limits, threads=threads, registers=registers, shared=shared)


def _environments(names: frozenset[str], workloads: Sequence[Workload]) -> list[tuple[str, dict[str, Any]]]:
    """The distinct values that workloads give to `names`, with a suffix that tells them apart in a rule's label."""
    distinct: dict[tuple[Any, ...], tuple[str, dict[str, Any]]] = {}
    for workload in workloads:
        own = sorted(names & (workload.sizes.keys() | workload.types.keys()))
        key = tuple(workload.names[name] for name in own)
        distinct.setdefault(key, (f" for {workload.name}" if own else "", workload.names))
    return list(distinct.values())


def _bounded(kind: str, what: str, text: str, low: int, high: int | None, workloads: Sequence[Workload]) -> list[Rule]:
    """The rules that `text` is a whole number from `low` to `high`, for each environment; `high` None is no limit."""
    most = MAX_INTEGER if high is None else high
    value = parse(text)
    condition = parse(f"{low} <= ({text}) <= {most} and ({text}) % 1 == 0")
    bounds = f"at least {low}" if high is None else f"within {low} to {high}"
    return [
        replace(
            Rule.from_expression(condition, names, kind=kind, label=f"{what} {bounds}{suffix}"),
            explain=_explained(value, what, f"a whole number {bounds}", names),
        )
        for suffix, names in _environments(condition.names, workloads)
    ]


def _valued(key: str, text: str, workloads: Sequence[Workload]) -> list[Rule]:
    """The rules that `text` has a value, for each environment; none where it is a constant, as those were evaluated
    when the template was read."""
    value, condition = parse(text), parse(f"({text}) or True")
    return [
        replace(
            Rule.from_expression(condition, names, kind=key, label=f"{key} has a value{suffix}"),
            explain=_explained(value, key, "true or false", names),
        )
        for suffix, names in (_environments(value.names, workloads) if value.names else ())
    ]


def _explained(expression: Expression, what: str, wanted: str, names: Mapping[str, Any]) -> Callable[[Config], str]:
    def explain(config: Config) -> str:
        try:
            value = expression.evaluate({**names, **config})
        except ExpressionError as error:
            return f"{what} has no value: {error}"
        return f"{what} is {value}; it must be {wanted}."

    return explain
