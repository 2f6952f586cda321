"""What buffers hold: the contents a candidate must be right on, beside those its task declares.

Owns the names of the kinds and which of them a task has; drawing them is `tunesmith.kernels.launch.draw`. A search
visit uses the task's own; the full verdict (`tunesmith.kernels.check.verify`) goes through all of `KINDS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.task import Task

Kind = Literal[
    "task",
    "normal",
    "uniform",
    "large",
    "huge",
    "outliers",
    "heavy_tails",
    "shifted",
    "negative",
    "tiny",
    "subnormal",
    "constant",
    "zeros",
    "ties",
    "sorted",
    "edges",
    "infinities",
    "masked",
    "nans",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""In the order of docs/trust.md, which says what each is."""
DEFINED: tuple[Kind, ...] = ("task", "edges", "nans")
"""Where a NaN of the reference counts as its result. Under other kinds a NaN comes of arithmetic that the task does not
speak of, such as infinity less infinity, and an element that should be one may be anything."""

HEAVY: tuple[Kind, ...] = ("outliers", "heavy_tails")
"""Where the largest rounding errors are those of a few elements, in which large terms happen to cancel: an order of a
sum that is as good as another has several times its largest error."""
COMPARABLE: tuple[Kind, ...] = tuple(kind for kind in KINDS if kind not in (*HEAVY, "ties"))
"""Where the root mean square of the errors tells how precisely a kernel computes. With ties a sum rounds the same few
terms the same way again and again, so that its error tells how the sum is ordered."""

WHOLE: tuple[Kind, ...] = ("task", "uniform", "huge", "heavy_tails", "constant", "zeros", "sorted")
"""Those that differ for integers. None of them is in `tunesmith.kernels.check.plan.ON_TUNED`, so that on a task's own
workloads references and kernels meet the integers they were written for."""

Change = Literal["all", "rows", "few"]
CHANGES: tuple[Change, ...] = get_args(Change)


@dataclass(frozen=True, slots=True)
class Contents:
    """A distribution, a seed, and values of scalars other than the task's.

    Each set of buffers holds one of two variants. change: how the second differs from the first: everything is drawn
    anew; half of the rows, and single elements of others; or few elements of a single array. Drawn if left out.
    """

    kind: Kind = "task"
    seed: int = 0
    change: Change | None = None
    scalars: tuple[tuple[str, float], ...] = ()


def kinds_of(task: Task) -> tuple[Kind, ...]:
    """Those that differ from the others for `task`. Whole numbers that are made of a NaN, by comparing or converting
    it, are not defined: with such outputs there are none."""
    arrays = [argument for argument in task.arguments if argument.role in ("in", "inout")]
    dtypes = {dtype for argument in arrays for dtype in task.types.get(argument.dtype, (argument.dtype,))}
    if not any(DTYPES[dtype].is_float for dtype in dtypes):
        return WHOLE if arrays else ("task",)
    results = {dtype for argument in task.outputs for dtype in task.types.get(argument.dtype, (argument.dtype,))}
    left_out = set() if any(argument.fill.special for argument in arrays) else {"edges"}
    left_out |= set() if all(DTYPES[dtype].is_float for dtype in results) else {"nans"}
    return tuple(kind for kind in KINDS if kind not in left_out)
