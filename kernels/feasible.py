"""From a template, workloads and a device's limits to the rules of the feasible space.

Owns which limit becomes which rule, before compiling (`rules`) and after, when the compiler has said what a thread
takes (`compiler_rejection`). A rule rejects only what the driver would refuse to launch; what merely runs badly is
the search's business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.limits import DeviceLimits
from tunesmith.kernels.expression import Expression, parse
from tunesmith.kernels.outcome import Rejected, Resources
from tunesmith.kernels.parameter import Config
from tunesmith.kernels.rule import Rule
from tunesmith.kernels.space import SearchSpace, build_space
from tunesmith.kernels.specialise import Geometry
from tunesmith.kernels.task import Workload
from tunesmith.kernels.template import Template

AXES = ("x", "y", "z")


class EmptySpace(TunesmithError):
    """No configuration is feasible."""


def rules(template: Template, workloads: Sequence[Workload], limits: DeviceLimits) -> list[Rule]:
    """The rules a configuration must meet to be feasible on every one of `workloads`.

    The template's constraints come first, then block and grid dimensions, threads and shared memory per block; a
    rejected point is counted for the first rule it breaks.
    """
    found = []
    for constraint in template.constraints:
        expression = parse(constraint.expression)
        for suffix, names in _environments(expression.names, workloads):
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
    if limits.shared_per_block is not None:
        static, dynamic = template.static_shared_bytes, template.launch.shared_bytes
        # Static shared memory never exceeds the default limit; only the dynamic part can opt in to more.
        most = limits.shared_per_block_optin or limits.shared_per_block
        found += _bounded("shared_per_block", "static shared memory", static, 0, limits.shared_per_block, workloads)
        found += _bounded("shared_per_block", "shared memory", f"({static}) + ({dynamic})", 0, most, workloads)
    if limits.max_grid_dims is not None:
        for position, text in enumerate(template.launch.grid):
            found += _bounded("grid_dim", f"grid.{AXES[position]}", text, 1, limits.max_grid_dims[position], workloads)
    return found


def feasible(template: Template, workloads: Sequence[Workload], limits: DeviceLimits) -> SearchSpace:
    """The space of configurations that are feasible on every one of `workloads`; it may be empty."""
    return build_space(template.parameters, rules(template, workloads, limits))


def require_points(space: SearchSpace, template: Template) -> None:
    """Raises `EmptySpace`, naming the rules that leave no point, when the space is empty."""
    if not space.empty:
        return
    binding = ", ".join(f"`{label}`" for label in space.binding_rules())
    cause = f"without {binding} there would be some" if binding else "several constraints together exclude all"
    raise EmptySpace(f"The template {template.name} has no feasible configuration among {space.cartesian}: {cause}; "
                     "relax the constraint or add values to the parameters it uses.")  # fmt: skip


def compiler_rejection(limits: DeviceLimits, geometry: Geometry, resources: Resources) -> Rejected | None:
    """Why a compiled kernel cannot be launched at `geometry`, or None.

    Registers are allocated to a block for whole groups of warps, in units of a warp's allocation; a block whose
    registers exceed the multiprocessor's is refused by the driver ("too many resources requested for launch").
    """
    threads = geometry.block[0] * geometry.block[1] * geometry.block[2]
    shared = (resources.shared or 0) + geometry.shared_bytes
    most = limits.shared_per_block_optin or limits.shared_per_block
    if most is not None and shared > most:
        return Rejected("shared_per_block", "shared memory",
                        f"the block takes {shared} bytes of shared memory; the device allows {most}.")  # fmt: skip
    if resources.registers and limits.registers_per_block and limits.warp_size:
        unit = limits.register_allocation_unit or limits.warp_size
        granularity = limits.warp_allocation_granularity or 1
        warps = -(-threads // limits.warp_size)
        warps = -(-warps // granularity) * granularity
        needed = warps * (-(-resources.registers * limits.warp_size // unit) * unit)
        if needed > limits.registers_per_block:
            return Rejected("registers_per_block", "registers",
                            f"{threads} threads with {resources.registers} registers each take {needed} registers; a "
                            f"block has {limits.registers_per_block}.")  # fmt: skip
    return None


def _environments(names: frozenset[str], workloads: Sequence[Workload]) -> list[tuple[str, dict[str, Any]]]:
    """The distinct values that workloads give to `names`, with a suffix that tells them apart in a rule's label."""
    distinct: dict[tuple[Any, ...], tuple[str, dict[str, Any]]] = {}
    for workload in workloads:
        own = sorted(names & (workload.sizes.keys() | workload.types.keys()))
        key = tuple(workload.names[name] for name in own)
        distinct.setdefault(key, (f" for {workload.name}" if own else "", workload.names))
    return list(distinct.values())


def _bounded(kind: str, what: str, text: str, low: int, high: int, workloads: Sequence[Workload]) -> list[Rule]:
    expression = parse(text)
    return [
        Rule(
            kind=kind,
            label=f"{what} within {low} to {high}{suffix}",
            names=expression.names - names.keys(),
            holds=_within(expression, low, high, names),
            explain=_explained(expression, what, low, high, names),
        )
        for suffix, names in _environments(expression.names, workloads)
    ]


def _within(
    expression: Expression, low: int, high: int, names: Mapping[str, Any]
) -> Callable[[Mapping[str, Any]], Any]:
    def holds(values: Mapping[str, Any]) -> Any:
        value = expression.evaluate({**names, **values})
        if isinstance(value, np.ndarray):
            return (value >= low) & (value <= high)
        return low <= value <= high

    return holds


def _explained(
    expression: Expression, what: str, low: int, high: int, names: Mapping[str, Any]
) -> Callable[[Config], str]:
    def explain(config: Config) -> str:
        return f"{what} is {expression.evaluate({**names, **config})}; the device allows {low} to {high}."

    return explain
