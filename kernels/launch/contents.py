"""The contents of buffers: those that a task declares, and others that a candidate must be right on as well.

Owns the names of the kinds, which of them a task has, and drawing them in an array's own precision. A search visit uses
the task's own; the full verdict (`tunesmith.kernels.check.verify`) goes through all of `KINDS`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.task import Fill, Special, Task, Workload

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

HEAVY: tuple[Kind, ...] = ("outliers", "heavy_tails", "sorted")
"""Where the largest rounding errors are those of a few elements, in which large terms or partial sums happen to cancel:
an order of a sum that is as good as another has several times its largest error, and so do tensor cores, which cut off
the bits that an FMA rounds."""
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


RANDOM_BLOCK = (1 << 22) - 3
"""Elements drawn at random; larger arrays hold further copies, each turned by an offset of its own (`spread`)."""
LARGE, HUGE, OUTLIER, SHIFT, NEGATIVE = 32.0, 200.0, 1000.0, 50.0, 4.0
"""How many times the declared scale those kinds have."""
TINY, SUBNORMAL, SMALL = 2.0**-12, 2.0**-15, 2.0**-60
"""Scales; float16 is subnormal below 2**-14. Wider types get `SMALL`, whose square is still a normal float32."""
EDGE_SHARE = 0.9
"""Share of elements that hold one of the declared special values under "edges"."""
MASK_SHARE, MASK_LENGTH = 0.4, 12
"""Of "masked": share of the runs that hold -inf, and their mean length."""
EXACT = 1 << 53
"""The largest magnitude of integers that no task has bounded: up to it float64, in which references work, has all."""
SPARSE = 1 / 2000
"""Share of elements that hold an infinity or a NaN, at least one."""
MAX_ROWS = 1 << 18
"""Rows of which each is changed or not; where there are more, neighbours share their lot."""


def drawing_key(contents: Contents, workload: Workload) -> list[int]:
    """Seeds the generator. Names differ in their letters, so that workloads of one seed do not share contents."""
    return [contents.seed, KINDS.index(contents.kind), *workload.name.encode()]


def draw_variants(xp: Any, task: Task, workload: Workload, contents: Contents, count: int) -> list[dict[str, Any]]:
    """For each of `count` variants the arrays that a kernel reads, by name: flat arrays of `xp` of the type
    `DataType.array`. The second differs from the first as `contents.change` says."""
    key = drawing_key(contents, workload)
    arrays = [argument for argument in task.arguments if argument.role in ("in", "inout")]
    shapes = {argument.name: task.shape_of(argument, workload) for argument in arrays}
    drawn: list[dict[str, Any]] = []
    for variant in range(count):
        rng, inputs = np.random.default_rng([*key, variant]), {}
        for argument in arrays:
            dtype, shape = task.dtype_of(argument, workload), shapes[argument.name]
            block = draw(contents, argument.fill, shape, dtype, rng, variant)
            inputs[argument.name] = spread(xp, xp.asarray(block.view(DTYPES[dtype].array)), math.prod(shape), rng)
        drawn.append(inputs)
    if count > 1 and contents.kind != "constant" and arrays:
        rng = np.random.default_rng([*key, count])
        change = contents.change or CHANGES[int(rng.integers(len(CHANGES)))]
        if change != "all":
            _keep_part(xp, shapes, drawn[0], drawn[1], change, rng)
    return drawn


def _keep_part(
    xp: Any,
    shapes: Mapping[str, tuple[int, ...]],
    first: Mapping[str, Any],
    second: dict[str, Any],
    change: Change,
    rng: np.random.Generator,
) -> None:
    """Has the second variant differ from the first by no more than `change` says (see `Contents`): a kernel that looks
    at a part of its data, and leaves what is there when that part is right, is wrong elsewhere."""
    chosen = int(rng.integers(len(shapes)))
    for number, (name, shape) in enumerate(shapes.items()):
        kept = first[name].copy()
        last = shape[-1] if len(shape) > 1 else 1
        last *= -(-kept.size // last // MAX_ROWS)
        rows = kept.size // last
        fresh, changed = (one[: rows * last].reshape(rows, last) for one in (second[name], kept))
        if change == "rows":
            how = rng.random(rows)
            whole = xp.asarray(np.flatnonzero(how < 0.5))
            changed[whole] = fresh[whole]
            single = np.flatnonzero((how >= 0.5) & (how < 0.75))
        elif number == chosen:
            single = rng.integers(rows, size=min(rows, int(rng.integers(1, 4))))
        else:
            single = np.empty(0, np.int64)
        at = xp.asarray(single * last + rng.integers(last, size=single.size))
        kept[at] = second[name][at]
        second[name] = kept


def draw(
    contents: Contents, declared: Fill, shape: tuple[int, ...], dtype: str, rng: np.random.Generator, variant: int = 0
) -> NDArray[Any]:
    """The elements of an array of `shape` whose task declares `declared`, flat, in the storage type.

    Of a larger array, `RANDOM_BLOCK` elements, which are meant for `spread`.
    """
    count = min(math.prod(shape), RANDOM_BLOCK)
    kind = DTYPES[dtype]
    if not kind.is_float:
        return _integers(contents, declared, count, shape[-1] if shape else 1, kind.storage, rng, variant)
    values = _floats(contents, declared, count, shape[-1] if shape else 1, dtype, rng, variant)
    return kind.from_float(values)


def spread(xp: Any, block: Any, count: int, rng: np.random.Generator) -> Any:
    """`count` elements of `block`, which is repeated, each time from another place on: no index that is reduced by
    any length finds the same values."""
    if block.size >= count:
        return block[:count]
    result = xp.empty(count, block.dtype)
    for start in range(0, count, block.size):
        part = min(block.size, count - start)
        offset = int(rng.integers(block.size)) if start else 0
        ahead = min(part, block.size - offset)
        result[start : start + ahead] = block[offset : offset + ahead]
        result[start + ahead : start + part] = block[: part - ahead]
    return result


def _integers(
    contents: Contents,
    declared: Fill,
    count: int,
    row: int,
    storage: np.dtype[Any],
    rng: np.random.Generator,
    variant: int,
) -> NDArray[Any]:
    """Whole numbers within what the task declares, as they may be indices; where it declares nothing, of the whole
    type, or of so much of it that sums of thousands are no larger than the type."""
    values = _declared_integers(declared, count, storage, rng)
    if contents.kind not in WHOLE or contents.kind == "task" or not count:
        return values
    low, high = 0, 1
    if declared != Fill():
        low, high = int(values.min()), int(values.max())
        if declared.kind == "uniform":
            low, high = _ends(declared, storage)
    elif storage.kind != "b":
        bounds = np.iinfo(storage)
        low, high = max(int(bounds.min), -EXACT), min(int(bounds.max), EXACT)
        if contents.kind not in ("uniform", "heavy_tails"):
            # Five eighths of the bits: 20 of 32.
            low, high = (0 if low == 0 else -(1 << bounds.bits * 5 // 8)), 1 << bounds.bits * 5 // 8
    match contents.kind:
        case "heavy_tails":
            values = rng.choice(
                np.array([low, low, min(low + 1, high), max(low, high - 1), high, high], storage), count
            )
        case "constant":
            values = np.full(count, low + (high - low) * (3 + variant) // 5, storage)
        case "zeros":
            values = np.full(count, max(low, min(0, high)), storage)
        case _:
            wide = np.uint64 if low >= 0 else np.int64
            if contents.kind != "sorted" or declared == Fill():
                values = rng.integers(low, high, size=count, endpoint=True, dtype=wide).astype(storage)
    if contents.kind == "sorted":
        values = _sorted(values, row, variant)
    return values


def _ends(declared: Fill, storage: np.dtype[Any]) -> tuple[int, int]:
    """The ends of a uniform fill, as far as the type has them."""
    low, high = (0, 1) if storage.kind == "b" else (int(np.iinfo(storage).min), int(np.iinfo(storage).max))
    first, last = (round(declared.mean + sign * declared.scale) for sign in (-1, 1))
    return max(low, min(first, high)), max(low, min(last, high))


def _sorted(values: NDArray[Any], row: int, variant: int) -> NDArray[Any]:
    """Whole rows sorted, upwards in the first variant."""
    whole = values.size // row * row
    rows = np.sort(values[:whole].reshape(-1, row), axis=1)
    return np.concatenate([(rows[:, ::-1] if variant else rows).reshape(-1), values[whole:]])


def _declared_integers(declared: Fill, count: int, storage: np.dtype[Any], rng: np.random.Generator) -> NDArray[Any]:
    """Whole numbers as the task declares them, all of whose bits are drawn."""
    low, high = (0, 1) if storage.kind == "b" else (int(np.iinfo(storage).min), int(np.iinfo(storage).max))
    match declared.kind:
        case "uniform":
            first, last = _ends(declared, storage)
            values = rng.integers(first, last, size=count, endpoint=True, dtype=np.uint64 if low == 0 else np.int64)
        case "normal":
            drawn = np.rint(declared.mean + declared.scale * rng.standard_normal(count))
            values = np.clip(drawn, float(low), _below(high)).astype(np.int64 if low else np.uint64)
        case "constant":
            values = np.full(count, max(low, min(round(declared.mean), high)), np.int64 if low else np.uint64)
    values = values.astype(storage)
    for special in declared.special:
        values[rng.random(count) < special.fraction] = np.float64(special.value).astype(storage)
    return values


def _below(high: int) -> float:
    """The largest float64 that is at most `high`."""
    value = float(high)
    return value if int(value) <= high else math.nextafter(value, 0.0)


def _floats(
    contents: Contents, declared: Fill, count: int, row: int, dtype: str, rng: np.random.Generator, variant: int
) -> NDArray[Any]:
    precision: Any = np.float64 if DTYPES[dtype].size == 8 else np.float32
    mean, scale = precision(declared.mean), precision(declared.scale or 1.0)

    def normal() -> NDArray[Any]:
        return rng.standard_normal(count, dtype=precision)

    def as_declared(kind: str = declared.kind) -> NDArray[Any]:
        if kind == "constant":
            return np.full(count, mean, precision)
        shape = normal() if kind == "normal" else 2 * rng.random(count, dtype=precision) - 1
        drawn: NDArray[Any] = mean + precision(declared.scale) * shape
        return drawn

    def some(share: float) -> NDArray[np.int64]:
        return rng.integers(count, size=max(1, round(count * share)))

    match contents.kind:
        case "task":
            values = _with(declared.special, as_declared(), rng)
        case "normal" | "uniform":
            values = _with(declared.special, as_declared(contents.kind), rng)
        case "edges":
            values = _with(_often(declared.special), as_declared(), rng)
        case "large":
            values = mean + precision(LARGE) * scale * normal()
        case "huge":
            values = mean + precision(HUGE) * scale * normal()
        case "outliers":
            values, at = as_declared(), some(1 / 300)
            values[at] = rng.choice([-OUTLIER, OUTLIER], size=at.size) * scale
        case "heavy_tails":
            values = np.clip(rng.standard_cauchy(count), -3e4, 3e4).astype(precision) * scale
        case "shifted":
            values = as_declared() + (-1) ** variant * precision(SHIFT) * scale
        case "negative":
            values = -precision(NEGATIVE) * scale * (np.abs(normal()) + precision(0.01))
        case "tiny":
            values = precision(TINY) * scale * normal()
        case "subnormal":
            values = precision(SUBNORMAL if dtype == "float16" else SMALL) * normal()
        case "constant":
            values = np.full(count, declared.mean + declared.scale * (1 + variant / 2), precision)
        case "zeros":
            values = np.zeros(count, precision)
        case "ties":
            values = mean + scale * rng.choice(np.array([-1, 0, 0.5, 1], precision), size=count)
        case "sorted":
            values = _sorted(as_declared(), row, variant)
        case "infinities":
            values, at = as_declared(), some(SPARSE)
            values[at] = rng.choice([-np.inf, np.inf], size=at.size)
        case "masked":
            values = np.where(_runs(count, rng), precision(-np.inf), as_declared())
        case "nans":
            values = as_declared()
            values[some(SPARSE)] = np.nan
    return values


def _runs(count: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Flags that hold for whole runs of elements."""
    lengths = rng.geometric(1 / MASK_LENGTH, size=2 * (count // MASK_LENGTH) + 16)
    while lengths.sum() < count:
        lengths = np.concatenate([lengths, lengths])
    flags: NDArray[np.bool_] = np.repeat(rng.random(lengths.size) < MASK_SHARE, lengths)[:count]
    return flags


def _with(special: tuple[Special, ...], values: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    for one in special:
        values[rng.random(values.size) < one.fraction] = one.value
    return values


def _often(special: tuple[Special, ...]) -> tuple[Special, ...]:
    """The same values on `EDGE_SHARE` of all elements, each on an equal part: one is drawn over those before it, so the
    k-th of n takes 1/k of what the first k share, as far as not every element is taken."""
    part = EDGE_SHARE / len(special) if special else 0.0
    return tuple(
        Special(value=one.value, fraction=part / (1 - part * (len(special) - 1 - index)))
        for index, one in enumerate(special)
    )
