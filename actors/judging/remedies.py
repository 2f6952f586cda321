"""What to write into a task so that checks make up nothing that its kernel is never called with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tunesmith.kernels.check.plan import Step
from tunesmith.kernels.check.verify import Passed, Skipped

MOST_NAMED = 4
"""Values that a sentence names."""
BLAMED = {"reference": "the reference fails", "plain kernel": "the plain kernel fails"}
"""By the reason for which steps are left out: what is at fault."""
Value = tuple[str, float]


def for_left_out(steps: Mapping[str, Step], found: Sequence[Passed | Skipped]) -> tuple[str, ...]:
    """A sentence for each scalar and size with values that only steps have which were left out. steps: by name."""
    passed = {
        value
        for one in found
        if isinstance(one, Passed) and one.step in steps
        for values in _made_up(steps[one.step])
        for value in values
    }
    blamed: dict[tuple[str, str], dict[float, None]] = {}
    for one in found:
        if isinstance(one, Skipped) and one.reason in BLAMED and one.step in steps:
            # A size is to blame only where no scalar was changed.
            scalars, sizes = _made_up(steps[one.step])
            for name, value in scalars or sizes:
                if (name, value) not in passed:
                    blamed.setdefault((one.reason, name), {})[value] = None
    named = {name for step in steps.values() for name, _ in step.contents.scalars}
    return tuple(
        f"{BLAMED[reason]} where {name} is {_listed(sorted(its))}, which was left out: {_remedy(name, name in named)}"
        for (reason, name), its in blamed.items()
    )


def for_unusable(scalars: Sequence[tuple[str, int, float]]) -> tuple[str, ...]:
    """A sentence for each scalar with made-up values that were left out before any step (name, level and value)."""
    values: dict[str, list[float]] = {}
    for name, _, value in scalars:
        values.setdefault(name, []).append(value)
    return tuple(
        f"{BLAMED['reference']} where {name} is {_listed(sorted(its))}, which was left out: {_remedy(name, True)}"
        for name, its in values.items()
    )


def for_rejection(step: Step) -> str:
    """What to write where no caller has what a step made up that rejects the kernel; empty where it made up nothing."""
    scalars, sizes = _made_up(step)
    named = " or ".join(f"{name} = {value:g}" for name, value in [*scalars, *sizes])
    remedies = [_remedy(name, True) for name, _ in scalars] + [_remedy(name, False) for name, _ in sizes]
    return f"the plain kernel is right there, but if no caller has {named}: {', or '.join(remedies)}" if named else ""


def _made_up(step: Step) -> tuple[Sequence[Value], Sequence[Value]]:
    """The scalars, and the sizes, that Tunesmith chose for a step."""
    return step.contents.scalars, list(step.workload.sizes.items()) if step.derived else []


def _remedy(name: str, is_scalar: bool) -> str:
    return f"list the `values` of {name} in the task" if is_scalar else f"give the range of {name} in `requires`"


def _listed(values: Sequence[float]) -> str:
    more = f" and {len(values) - MOST_NAMED} more" if len(values) > MOST_NAMED else ""
    return ", ".join(f"{value:g}" for value in values[:MOST_NAMED]) + more


__all__ = ["for_left_out", "for_rejection", "for_unusable"]
