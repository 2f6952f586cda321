"""What buffers hold: the distributions a candidate must be right on, beside the one its task declares.

A search visit uses the task's own; the full verdict (`tunesmith.kernels.check.verify`) goes through all of `KINDS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.task import Fill, Special, Task

Kind = Literal["task", "normal", "uniform", "large", "constant", "zeros", "edges"]
KINDS: tuple[Kind, ...] = ("task", "normal", "uniform", "large", "constant", "zeros", "edges")
LARGE = 32.0
"""How many times the declared scale "large" has."""
EDGE_SHARE = 0.9
"""Share of elements that hold one of the declared special values under "edges"."""


@dataclass(frozen=True, slots=True)
class Contents:
    """A distribution and a seed. Each set of buffers holds one of several variants of it, drawn independently."""

    kind: Kind = "task"
    seed: int = 0

    def fill(self, declared: Fill, dtype: str, variant: int) -> Fill:
        """How an argument that declares `declared` is filled. Integers keep that, as they may be indices."""
        if self.kind == "task" or not DTYPES[dtype].is_float:
            return declared
        match self.kind:
            case "normal" | "uniform":
                return declared.model_copy(update={"kind": self.kind})
            case "large":
                return Fill(kind="normal", mean=declared.mean, scale=LARGE * (declared.scale or 1.0))
            case "constant":
                return Fill(kind="constant", mean=declared.mean + declared.scale * (1 + variant / 2))
            case "zeros":
                return Fill(kind="constant", mean=0.0)
            case "edges":
                return declared.model_copy(update={"special": _often(declared.special)})


def _often(special: tuple[Special, ...]) -> tuple[Special, ...]:
    """The same values on `EDGE_SHARE` of all elements, each on an equal part: one is drawn over those before it, so the
    k-th of n takes 1/k of what the first k share, as far as not every element is taken."""
    part = EDGE_SHARE / len(special) if special else 0.0
    return tuple(
        Special(value=one.value, fraction=part / (1 - part * (len(special) - 1 - index)))
        for index, one in enumerate(special)
    )


def kinds_of(task: Task) -> tuple[Kind, ...]:
    """Those that differ from the others for `task`."""
    arrays = [argument for argument in task.arguments if argument.role in ("in", "inout")]
    if any(argument.fill.special for argument in arrays):
        return KINDS
    return tuple(kind for kind in KINDS if kind != "edges")
