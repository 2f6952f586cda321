"""The contents of buffers: a task's declared ones, and others that a candidate must be right on as well.

Owns the kinds of contents (`KINDS`), which of them a task has, and drawing them in an array's own precision. A search
visit uses the task's own; the full verdict (`tunesmith.kernels.check.verify`) goes through all kinds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunesmith.kernels.spec.dtypes import DTYPES, DataType
from tunesmith.kernels.spec.task import ORDERED, Fill, Special, Task, Workload

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
OUTLIERS, SPARSE = 1 / 300, 1 / 2000
"""Shares of elements that are outliers, and that hold an infinity or a NaN, at least one."""
MAX_ROWS = 1 << 18
"""Rows of which each is changed or not; where there are more, neighbours share their lot."""


class _Floats:
    """`count` elements of floats, drawn in single precision, or in double for float64."""

    def __init__(
        self, declared: Fill, count: int, row: int, dtype: str, rng: np.random.Generator, variant: int
    ) -> None:
        self.declared, self.count, self.row, self.dtype, self.variant = declared, count, row, dtype, variant
        self.rng = rng
        self.precision: Any = np.float64 if DTYPES[dtype].size == 8 else np.float32
        self.mean, self.scale = self.precision(declared.mean), self.precision(declared.scale or 1.0)

    def normal(self) -> NDArray[Any]:
        return self.rng.standard_normal(self.count, dtype=self.precision)

    def constant(self, value: Any) -> NDArray[Any]:
        return np.full(self.count, value, self.precision)

    def as_declared(self, kind: str = "") -> NDArray[Any]:
        """Without special values. kind: of the fill, where it is not the declared one."""
        match kind or self.declared.distribution:
            case "constant":
                return self.constant(self.mean)
            case "normal":
                shape = self.normal()
            case _:
                shape = 2 * self.rng.random(self.count, dtype=self.precision) - 1
        drawn: NDArray[Any] = self.mean + self.precision(self.declared.scale) * shape
        return drawn

    def with_special(self, kind: str = "") -> NDArray[Any]:
        return _with(self.declared.special, self.as_declared(kind), self.rng)

    def scattered(self, share: float, *values: Any) -> NDArray[Any]:
        """As declared, but that a share of the elements, at least one, holds one of `values`."""
        drawn, at = self.as_declared(), self.rng.integers(self.count, size=max(1, round(self.count * share)))
        drawn[at] = self.rng.choice(values, size=at.size)
        return drawn

    def edges(self) -> NDArray[Any]:
        """Each special value on an equal part of `EDGE_SHARE` of all elements: one is drawn over those before it, so
        the k-th of n takes 1/k of what the first k share, as far as not every element is taken."""
        special = self.declared.special
        part = EDGE_SHARE / max(1, len(special))
        shares = [part / (1 - part * (len(special) - 1 - index)) for index in range(len(special))]
        often = (Special(value=one.value, fraction=share) for one, share in zip(special, shares, strict=True))
        return _with(tuple(often), self.as_declared(), self.rng)

    def masked(self) -> NDArray[Any]:
        """As declared, but for whole runs of elements."""
        lengths = self.rng.geometric(1 / MASK_LENGTH, size=2 * (self.count // MASK_LENGTH) + 16)
        while lengths.sum() < self.count:
            lengths = np.concatenate([lengths, lengths])
        flags = np.repeat(self.rng.random(lengths.size) < MASK_SHARE, lengths)[: self.count]
        return np.where(flags, self.precision(-np.inf), self.as_declared())


KINDS: dict[str, Callable[[_Floats], NDArray[Any]]] = {
    "task": _Floats.with_special,
    "normal": lambda one: one.with_special("normal"),
    "uniform": lambda one: one.with_special("uniform"),
    "large": lambda one: one.mean + LARGE * one.scale * one.normal(),
    "huge": lambda one: one.mean + HUGE * one.scale * one.normal(),
    "outliers": lambda one: one.scattered(OUTLIERS, -OUTLIER * one.scale, OUTLIER * one.scale),
    "heavy_tails": lambda one: np.clip(one.rng.standard_cauchy(one.count), -3e4, 3e4).astype(one.precision) * one.scale,
    "shifted": lambda one: one.as_declared() + (-1) ** one.variant * SHIFT * one.scale,
    "negative": lambda one: -NEGATIVE * one.scale * (np.abs(one.normal()) + one.precision(0.01)),
    "tiny": lambda one: TINY * one.scale * one.normal(),
    "subnormal": lambda one: one.precision(SUBNORMAL if one.dtype == "float16" else SMALL) * one.normal(),
    "constant": lambda one: one.constant(one.declared.mean + one.declared.scale * (1 + one.variant / 2)),
    "zeros": lambda one: one.constant(0.0),
    "ties": lambda one: one.mean + one.scale * one.rng.choice(np.array([-1, 0, 0.5, 1], one.precision), size=one.count),
    "sorted": lambda one: _sorted(one.as_declared(), one.row, one.variant),
    "edges": _Floats.edges,
    "infinities": lambda one: one.scattered(SPARSE, -np.inf, np.inf),
    "masked": _Floats.masked,
    "nans": lambda one: one.scattered(SPARSE, np.nan),
}
"""The kinds of contents, and how each is drawn for floats; in the order of docs/trust.md, which says what each is."""
DEFINED = ("task", "edges", "nans")
"""Where a NaN of the reference counts as its result. Under other kinds a NaN comes of arithmetic that the task does not
speak of, such as infinity less infinity, and an element that should be one may be anything."""
HEAVY = ("outliers", "heavy_tails", "sorted")
"""Where a few elements have the largest rounding errors, as large terms or partial sums happen to cancel: another order
of a sum has several times the largest error, and so do tensor cores, which cut off the bits that an FMA rounds."""
COMPARABLE = tuple(kind for kind in KINDS if kind not in (*HEAVY, "ties"))
"""Where the root mean square of the errors tells how precisely a kernel computes. With ties a sum rounds the same few
terms the same way again and again, so that its error tells how the sum is ordered."""
WHOLE = ("task", "uniform", "huge", "heavy_tails", "constant", "zeros", "sorted")
"""Those that differ for integers. None of them is in `tunesmith.kernels.check.plan.ON_TUNED`, so that on a task's own
workloads references and kernels meet the integers they were written for."""
CHANGES = ("all", "rows", "few")


@dataclass(frozen=True, slots=True)
class Contents:
    """A kind of contents, a seed, and values of scalars other than the task's.

    Each set of buffers holds one of two variants. change: how the second differs from the first: everything is drawn
    anew; half of the rows, and single elements of others; or few elements of a single array. Drawn if left out.
    """

    kind: str = "task"
    seed: int = 0
    change: str | None = None
    scalars: tuple[tuple[str, float], ...] = ()


def kinds_of(task: Task) -> tuple[str, ...]:
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


def draw_variants(xp: Any, task: Task, workload: Workload, contents: Contents, count: int) -> list[dict[str, Any]]:
    """For each of `count` variants the arrays that a kernel reads, by name: flat arrays of `xp` of the type
    `DataType.array`. The second differs from the first as `contents.change` says."""
    # Names differ in their letters, so that workloads of one seed do not share contents.
    key = [contents.seed, list(KINDS).index(contents.kind), *workload.name.encode()]
    arrays = [argument for argument in task.arguments if argument.role in ("in", "inout")]
    shapes = {argument.name: task.shape_of(argument, workload) for argument in arrays}
    fills = {argument.name: argument.fill.at(workload) for argument in arrays}
    drawn: list[dict[str, Any]] = []
    for variant in range(count):
        rng, inputs = np.random.default_rng([*key, variant]), {}
        for argument in arrays:
            dtype, shape = task.dtype_of(argument, workload), shapes[argument.name]
            block = draw(contents, fills[argument.name], shape, dtype, rng, variant)
            inputs[argument.name] = spread(xp, xp.asarray(block.view(DTYPES[dtype].array)), math.prod(shape), rng)
        drawn.append(inputs)
    if count > 1 and contents.kind != "constant" and arrays:
        rng = np.random.default_rng([*key, count])
        change = contents.change or CHANGES[int(rng.integers(len(CHANGES)))]
        if change != "all":
            _keep_part(xp, shapes, fills, drawn[0], drawn[1], change, rng)
    return drawn


def _keep_part(
    xp: Any,
    shapes: Mapping[str, tuple[int, ...]],
    fills: Mapping[str, Fill],
    first: Mapping[str, Any],
    second: dict[str, Any],
    change: str,
    rng: np.random.Generator,
) -> None:
    """Has the second variant differ from the first by no more than `change` says (see `Contents`): a kernel that looks
    at a part of its data, and leaves the result of another launch where that part is right, is wrong elsewhere. An
    array with an order differs in the whole, or two neighbours change places, or become equal to keep the order."""
    chosen = int(rng.integers(len(shapes)))
    for number, (name, shape) in enumerate(shapes.items()):
        kept = first[name].copy()
        if fills[name].kind in ORDERED:
            if change == "few" and number == chosen and (row := shape[-1]) > 2:
                at = int(rng.integers(kept.size // row)) * row + int(rng.integers(1, row - 1))
                pair = kept[at - 1 : at + 1].copy()
                kept[at - 1 : at + 1] = pair[::-1] if fills[name].kind == "permutation" else pair[:1]
            second[name] = kept if change == "few" else second[name]
            continue
        last = shape[-1] if len(shape) > 1 else 1
        last *= -(-kept.size // last // MAX_ROWS)
        rows = kept.size // last
        single = np.empty(0, np.int64)
        if change == "rows":
            how = rng.random(rows)
            fresh, changed = (one[: rows * last].reshape(rows, last) for one in (second[name], kept))
            whole = xp.asarray(np.flatnonzero(how < 0.5))
            changed[whole] = fresh[whole]
            single = np.flatnonzero((how >= 0.5) & (how < 0.75))
        elif number == chosen:
            single = rng.integers(rows, size=min(rows, int(rng.integers(1, 4))))
        at = xp.asarray(single * last + rng.integers(last, size=single.size))
        kept[at] = second[name][at]
        second[name] = kept


def draw(
    contents: Contents, declared: Fill, shape: tuple[int, ...], dtype: str, rng: np.random.Generator, variant: int = 0
) -> NDArray[Any]:
    """The elements of an array of `shape` whose task declares `declared` (as of `Fill.at`), flat, in the storage type.

    Of a larger array, `RANDOM_BLOCK` elements, which are meant for `spread`, but for those that keep an order.
    """
    kind, row, count = contents.kind, shape[-1] if shape else 1, math.prod(shape)
    count = count if declared.kind in ORDERED else min(count, RANDOM_BLOCK)
    if declared.kind in ("permutation", "offsets"):
        last = None if declared.kind == "permutation" else round(declared.mean + declared.scale)
        return _indices(kind, count // row, row, last, rng, variant).astype(DTYPES[dtype].storage).reshape(-1)
    if not DTYPES[dtype].is_float:
        values = _integers(kind, declared, count, row, DTYPES[dtype], rng, variant)
        return _sorted(values, row) if declared.kind == "sorted" else values
    floats = _Floats(declared, count, row, dtype, rng, variant)
    bounded = declared.high is not None
    values = KINDS["task" if kind == "nans" and (bounded or declared.kind == "sorted") else kind](floats)
    if bounded:
        inside = np.clip(values, *(floats.precision(declared.mean + sign * declared.scale) for sign in (-1, 1)))
        values = np.where(np.isin(values, [one.value for one in declared.special]), values, inside)
    return DTYPES[dtype].from_float(_sorted(values, row) if declared.kind == "sorted" else values)


def _indices(kind: str, rows: int, row: int, last: int | None, rng: np.random.Generator, variant: int) -> NDArray[Any]:
    """`rows` permutations of `row` elements, or offsets that end with `last`. Of a permutation, nothing moves under
    "zeros", and all is in order or reversed under "sorted". Of offsets, the steps are equal under "constant", grow or
    shrink under "sorted", and all but one, the last or one at random, are 0 under "zeros" and "heavy_tails"."""
    steps = np.broadcast_to(np.arange(row), (rows, row))
    if last is None:
        ordered = steps[:, ::-1] if kind == "sorted" and variant else steps
        return ordered if kind in ("zeros", "sorted") else rng.permuted(steps, axis=1)
    match kind:
        case "constant" | "sorted":
            share = steps / max(1, row - 1)
            bent = share if kind == "constant" else 1 - (1 - share) ** 2 if variant else share**2
            offsets = (last * bent).astype(np.int64)
        case "heavy_tails" | "zeros":
            offsets = last * (steps > (row if kind == "zeros" else rng.integers(max(1, row - 1), size=(rows, 1))))
        case _:
            offsets = np.sort(rng.integers(0, last, (rows, row), endpoint=True), axis=1)
    offsets[:, 0], offsets[:, -1] = 0, last
    return offsets


def spread(xp: Any, block: Any, count: int, rng: np.random.Generator) -> Any:
    """`count` elements of `block`, repeated from another place on each time: no wrapped index finds the same values."""
    if block.size >= count:
        return block[:count]
    result = xp.empty(count, block.dtype)
    for start in range(0, count, block.size):
        part = min(block.size, count - start)
        result[start : start + part] = xp.roll(block, -int(rng.integers(block.size)) if start else 0)[:part]
    return result


def _integers(
    kind: str, declared: Fill, count: int, row: int, dtype: DataType, rng: np.random.Generator, variant: int
) -> NDArray[Any]:
    """Whole numbers within the range that the task declares, as they may be indices; where it declares none, within
    the type's, or within a part of it that keeps sums of thousands of them in the type."""
    storage = dtype.storage
    low, high = map(int, dtype.span)
    match declared.distribution:
        case "uniform":
            first, last = (max(low, min(round(declared.mean + sign * declared.scale), high)) for sign in (-1, 1))
            values = rng.integers(first, last, count, np.int64 if low else np.uint64, endpoint=True)
        case "normal":
            drawn = np.rint(declared.mean + declared.scale * rng.standard_normal(count))
            values = np.clip(drawn, low, math.nextafter(high + 1.0, 0)).astype(np.int64 if low else np.uint64)
        case "constant":
            values = np.full(count, max(low, min(round(declared.mean), high)), storage)
    values = _with(declared.special, values.astype(storage), rng)
    if kind not in WHOLE or kind == "task" or not count:
        return values
    whole = declared in (Fill(), Fill(kind="sorted"))
    if whole:
        # Five eighths of the bits: 20 of 32.
        most = EXACT if kind in ("uniform", "heavy_tails") else 1 << dtype.size * 5
        low, high = max(low, -most), min(high, most)
    elif declared.distribution == "uniform":
        low, high = first, last
    else:
        low, high = int(values.min()), int(values.max())
    match kind:
        case "heavy_tails":
            near = [low, low, min(low + 1, high), max(low, high - 1), high, high]
            return rng.choice(np.array(near, storage), count)
        case "constant":
            return np.full(count, low + (high - low) * (3 + variant) // 5, storage)
        case "zeros":
            return np.full(count, max(low, min(0, high)), storage)
    if kind != "sorted" or whole:
        values = rng.integers(low, high, count, np.int64 if low < 0 else np.uint64, endpoint=True).astype(storage)
    return _sorted(values, row, variant) if kind == "sorted" else values


def _sorted(values: NDArray[Any], row: int, variant: int = 0) -> NDArray[Any]:
    """Whole rows sorted, upwards in the first variant."""
    whole = values.size // row * row
    rows = np.sort(values[:whole].reshape(-1, row), axis=1)
    return np.concatenate([(rows[:, ::-1] if variant else rows).reshape(-1), values[whole:]])


def _with(special: tuple[Special, ...], values: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    for one in special:
        values[rng.random(values.size) < one.fraction] = np.float64(one.value).astype(values.dtype)
    return values
