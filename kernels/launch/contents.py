"""The contents of buffers: a task's declared ones, and others that a candidate must be right on as well.

Owns the kinds of contents (`KINDS`), which of them a task has, and drawing them in an array's own precision. A search
visit uses the task's own; the full verdict (`tunesmith.kernels.check.verify`) goes through all kinds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunesmith.kernels.spec.dtypes import DTYPES, DataType
from tunesmith.kernels.spec.task import ORDERED, Argument, Fill, Special, Task, Workload

RANDOM_BLOCK = (1 << 22) - 3
"""Elements drawn at random; larger arrays hold further copies, each turned by an offset of its own (`spread`)."""
OUTLIERS, SPARSE, MASKED, EDGES = (2.0**-10, 2.0**-3), (2.0**-12, 2.0**-6), (0.1, 0.7), (0.3, 0.95)
"""Least and largest share of elements that are outliers, infinite or NaN, masked, or one of the special values."""
ROW_OF_FEW, NONZERO = 256, 0.75
"""Elements that are not zero among zeros: from one in two rows, of at least so many, to a share of all."""
COUNTED_BITS = (1, 4, 7, 8, 16, 20)
"""Bits of whole numbers: of a mask, of pixels, of indices."""
COUNTING_SHARE = 0.8
"""Share of the sorted integers that count upwards, half of them from the least."""
MAX_PATTERNS = 4
"""Rows of which others repeat a stretch."""
WHOLE_ROWS = 1 / 8
"""Share of the rows that hold nothing else where others hold a stretch of one value: masked rows, or padding."""
MASK_LENGTH = 12
"""Mean length of a run of masked elements."""
SORTED_RUN = 4096
"""Elements that are sorted at most: partial sums of sorted terms grow with their number, and with them the bits that
tensor cores cut off, whose error grows with its square."""
HEADROOM = 0.25
"""Largest share of the type's range in "hidden", "counts" and "exponents": a sum of two, which a kernel may round to
the type, does not overflow."""
LARGEST = 1e15
"""The largest magnitude there: beyond it sums of squares overflow in float32, where the reference is finite, and each
right kernel makes an infinity or a NaN of its own."""
LOWEST = 2.0**-6
"""The sum of a row of "lowest", as a share of the type's range."""
LONGEST_EXPONENTS = 40
"""Binary exponents of "exponents" in a step that does not take the whole range of its type."""
EXACT = 1 << 53
"""The largest magnitude of integers that no task has bounded: up to it float64, in which references work, has all."""
MAX_ROWS = 1 << 18
"""Rows of which each is changed or not; where there are more, neighbours share their lot."""


class _Floats:
    """`count` elements of floats, drawn in single precision, or in double for float64."""

    def __init__(
        self, declared: Fill, count: int, shape: tuple[int, ...], dtype: str, rng: np.random.Generator, variant: int
    ) -> None:
        self.declared, self.count, self.shape, self.dtype, self.variant = declared, count, shape, dtype, variant
        self.rng, self.row = rng, shape[-1] if shape else 1
        self.precision: Any = np.float64 if DTYPES[dtype].size == 8 else np.float32
        self.mean, self.scale = self.precision(declared.mean), self.precision(declared.scale or 1.0)
        self.smallest = DTYPES[dtype].finite[0]

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

    def between(self, low: float, high: float) -> float:
        """A number whose logarithm is uniform: all magnitudes alike."""
        return float(math.exp(self.rng.uniform(math.log(low), math.log(high))))

    def few_bits(self) -> Any:
        """A factor with which sums of equal terms stay exact for long: otherwise each term is rounded the same way, and
        the error tells in which order a kernel sums."""
        return self.precision(int(self.rng.integers(2, 9)) / 4 + self.variant)

    def sign(self) -> float:
        return float(self.rng.choice((-1.0, 1.0)))

    def scattered(self, *values: Any) -> NDArray[Any]:
        """As declared, but that a share of the elements hold `values`, each at least once where there is room."""
        drawn, share = self.as_declared(), self.between(*SPARSE)
        at = self.rng.integers(self.count, size=max(len(values), round(self.count * share)))
        drawn[at] = self.rng.permutation(np.resize(values, at.size))
        return drawn

    def outliers(self) -> NDArray[Any]:
        """As declared, but for a share of the elements of either sign, all magnitudes alike: many equal ones would make
        the rounding of a sum tell its order."""
        drawn, share = self.as_declared(), self.between(*OUTLIERS)
        at = self.rng.integers(self.count, size=max(1, round(self.count * share)))
        sizes = np.exp2(self.rng.uniform(5, 12, at.size)) * self.rng.choice((-1.0, 1.0), at.size)
        drawn[at] = (sizes * self.scale).astype(self.precision)
        return drawn

    def rows_of(self, values: NDArray[Any]) -> NDArray[Any]:
        """The whole rows of `values`, which they are a view of."""
        return values[: self.count // self.row * self.row].reshape(-1, self.row)

    def in_rows(self, values: NDArray[Any], chosen: NDArray[np.intp], value: Any) -> NDArray[Any]:
        """`values` with `value` in the columns `chosen` of every row, or, where it is two-dimensional, of each."""
        rows = self.rows_of(values)
        np.put_along_axis(rows, np.broadcast_to(chosen, (len(rows), chosen.shape[-1])), value, axis=1)
        return values

    def columns(self) -> NDArray[Any]:
        """Outliers in the first, the last and another column."""
        chosen = np.array([0, self.row - 1, int(self.rng.integers(self.row))])
        return self.in_rows(self.as_declared(), chosen, self.sign() * self.between(16, 4096) * self.scale)

    def peak(self) -> NDArray[Any]:
        """Equal elements but for one to three in each row, which are larger, and equal."""
        level, rows = self.sign() * self.few_bits() * self.scale, max(1, self.count // self.row)
        chosen = self.rng.integers(self.row, size=(rows, int(self.rng.integers(1, 4))))
        return self.in_rows(
            self.constant(self.mean + level), chosen, self.mean + level + self.between(1, 200) * self.scale
        )

    def stretch(self, value: Any = None) -> NDArray[Any]:
        """As declared, but for a stretch of all rows or of half of them: the beginning, the end, another part or the
        whole holds what one of the first rows has there, or `value`, which further rows hold as a whole."""
        drawn = self.as_declared()
        rows, (first, last) = self.rows_of(drawn), np.sort(self.rng.integers(self.row, size=2))
        part = slice(first if self.rng.random() < 0.5 else 0, last + 1 if self.rng.random() < 0.5 else self.row)
        part = part if value is not None or self.rng.random() < 0.5 else slice(0, self.row)
        some = part == slice(0, self.row) or self.rng.random() < 0.5
        chosen = np.flatnonzero(self.rng.random(len(rows)) < (0.5 if some else 1.0))
        patterns = rows[self.rng.integers(min(len(rows), MAX_PATTERNS), size=chosen.size), part] if len(rows) else 0
        rows[chosen, part] = patterns if value is None else value
        if value is not None:
            rows[self.rng.random(len(rows)) < WHOLE_ROWS] = value
        return drawn

    def symmetric(self) -> NDArray[Any]:
        """As declared, but that the last two dimensions, or the only one, read the same backwards, and transposed where
        they are equal: as filters do, and unit matrices, which come too."""
        rows, columns = (1, *self.shape)[-2:]
        if rows == 1 and (side := math.isqrt(columns)) ** 2 == columns:
            rows = columns = side  # a filter, row by row
        at, to = np.ogrid[:rows, :columns]
        first, second = np.minimum(at, rows - 1 - at), np.minimum(to, columns - 1 - to)
        if rows == columns:
            first, second = np.minimum(first, second), np.maximum(first, second)
        drawn = self.as_declared()
        whole = drawn[: self.count // (rows * columns) * rows * columns].reshape(-1, rows, columns)
        whole[:] = at == to if rows == columns and self.rng.random() < 0.25 else whole[:, first, second]
        return drawn

    def hidden(self) -> NDArray[Any]:
        """A stretch of very large negative numbers."""
        most = min(LARGEST, HEADROOM * DTYPES[self.dtype].finite[1])
        return self.stretch(-self.between(min(1e4, most / 2), most))

    def lowest(self) -> NDArray[Any]:
        """A stretch of about the least numbers of the type, as masks hold, of which a row's sum is finite."""
        largest = DTYPES[self.dtype].finite[1]
        most = LOWEST * largest / self.row if largest > LARGEST else HEADROOM * largest
        return self.stretch(-self.between(most / 1000, most))

    def counts(self) -> NDArray[Any]:
        """Whole numbers, from zero on or of either sign."""
        signs = self.rng.choice((-1, 1), self.count) if self.rng.random() < 0.25 else 1
        counted = _counted(self.count, self.row, HEADROOM * DTYPES[self.dtype].finite[1], self.rng)
        return (signs * counted).astype(self.precision)

    def exponents(self) -> NDArray[Any]:
        """All magnitudes alike, or powers of two, up to `LARGEST` (of float64 its tenth power) and the type's, or of a
        part around the declared scale."""
        least, largest = DTYPES[self.dtype].finite
        most = LARGEST if DTYPES[self.dtype].size < 8 else LARGEST**10
        low, high = math.log2(least), math.log2(min(HEADROOM * largest, most))
        if self.rng.random() < 0.75:
            middle, width = math.log2(self.scale), self.rng.uniform(4, LONGEST_EXPONENTS / 2)
            low, high = max(low, middle - width), min(high, middle + width)
        signs = self.rng.choice(np.array([-1, 1], self.precision), size=self.count)
        logarithms = self.rng.uniform(low, high, self.count)
        powers = self.rng.random() < 0.25
        return (signs * np.exp2(np.ceil(logarithms) if powers else logarithms)).astype(self.precision)

    def subnormal(self) -> NDArray[Any]:
        """Beyond the normal numbers of the type."""
        return (self.smallest * self.rng.uniform(-1, 1, self.count)).astype(self.precision)

    def signed_zeros(self) -> NDArray[Any]:
        """Zeros of either sign, and few or many other elements between them."""
        zeros = self.rng.choice(np.array([-0.0, 0.0], self.precision), size=self.count)
        share = self.between(0.5 / max(ROW_OF_FEW, self.row), NONZERO)
        return np.where(self.rng.random(self.count) < share, self.as_declared(), zeros)

    def edges(self) -> NDArray[Any]:
        """Each special value on an equal part of a share of the elements: one is drawn over those before it, so the
        k-th of n takes 1/k of what the first k share, as far as not every element is taken."""
        special = self.declared.special
        part = self.between(*EDGES) / max(1, len(special))
        shares = [part / (1 - part * (len(special) - 1 - index)) for index in range(len(special))]
        often = (Special(value=one.value, fraction=share) for one, share in zip(special, shares, strict=True))
        return _with(tuple(often), self.as_declared(), self.rng)

    def masked(self, value: float = -np.inf) -> NDArray[Any]:
        """As declared, half the time beside a stretch of zeros, but for whole runs of elements."""
        lengths = self.rng.geometric(1 / MASK_LENGTH, size=2 * (self.count // MASK_LENGTH) + 16)
        flags = np.resize(np.repeat(self.rng.random(lengths.size) < self.between(*MASKED), lengths), self.count)
        others = self.as_declared() if self.rng.random() < 0.5 else self.stretch(0.0)
        return np.where(flags, self.precision(value), others)


KINDS: dict[str, Callable[[_Floats], NDArray[Any]]] = {
    "task": _Floats.with_special,
    "normal": lambda one: one.with_special("normal"),
    "uniform": lambda one: one.with_special("uniform"),
    "large": lambda one: one.mean + one.precision(one.between(4, 1000)) * one.scale * one.normal(),
    "outliers": _Floats.outliers,
    "columns": _Floats.columns,
    "heavy_tails": lambda one: np.clip(one.rng.standard_cauchy(one.count), -3e4, 3e4).astype(one.precision) * one.scale,
    "shifted": lambda one: one.as_declared() + one.precision(one.sign() * one.between(4, 400)) * one.scale,
    "negative": lambda one: (
        -one.precision(one.between(0.5, 16)) * one.scale * (np.abs(one.normal()) + one.precision(0.01))
    ),
    "tiny": lambda one: one.precision(one.between(max(2.0**-60, one.smallest), 2.0**-6)) * one.scale * one.normal(),
    "subnormal": _Floats.subnormal,
    "exponents": _Floats.exponents,
    "constant": lambda one: one.constant(one.rng.choice((1.0, one.mean + one.sign() * one.few_bits() * one.scale))),
    "zeros": lambda one: one.constant(0.0),
    "signed_zeros": _Floats.signed_zeros,
    "ties": lambda one: one.mean + one.scale * one.rng.choice(np.array([-1, 0, 0.5, 1], one.precision), size=one.count),
    "peak": _Floats.peak,
    "sorted": lambda one: _sorted(one.as_declared(), one.row, one.variant),
    "edges": _Floats.edges,
    "infinities": lambda one: one.scattered(-np.inf, np.inf),
    "masked": _Floats.masked,
    "hidden": _Floats.hidden,
    "lowest": _Floats.lowest,
    "padding": lambda one: one.stretch(0.0),
    "repeated": _Floats.stretch,
    "symmetric": _Floats.symmetric,
    "counts": _Floats.counts,
    "nans": lambda one: one.scattered(np.nan) if one.rng.random() < 0.5 else one.masked(np.nan),
}
"""The kinds of contents, and how each is drawn for floats; docs/trust.md says what each is. Shares and magnitudes are
drawn too."""
PLAIN = ("task", "normal", "uniform")
"""Kinds under which the effect of the other arrays of a step shows."""
DEFINED = frozenset((*PLAIN, "edges", "sorted", "nans"))
"""Where a NaN of the reference counts as its result. Under other kinds a NaN comes of arithmetic that the task does not
speak of, such as infinity less infinity, and an element that should be one may be anything."""
MIXED, KINDS_OF_ROWS = "mixed", 3
"""The contents of an array whose rows are of so many of `ROW_KINDS`: a kernel meets all in one step."""
HEAVY = frozenset((MIXED, "outliers", "columns", "heavy_tails", "sorted", "exponents", "peak", "hidden", "lowest"))
"""Where a few elements have the largest rounding errors, as large terms or partial sums happen to cancel: another order
of a sum has several times the largest error, and so do tensor cores, which cut off the bits that an FMA rounds."""
EVEN = frozenset((MIXED, "ties", "constant", "padding", "symmetric", "counts", "zeros", "signed_zeros"))
"""Where many terms of a sum are equal."""
ROW_KINDS = sorted(EVEN - {MIXED, "symmetric"} | {*PLAIN, "large", "outliers", "shifted", "negative", "tiny", "peak"})
COMPARABLE = frozenset(KINDS) - HEAVY - EVEN - {"tiny"}
"""Where the root mean square of the errors tells how precisely a kernel computes. Where terms are nearly equal, as are
exponentials of tiny numbers, a sum rounds the same way again and again, and its error tells how the sum is ordered."""
EQUAL = HEAVY - {"heavy_tails", "sorted", "exponents"} | EVEN
"""Where terms of a sum are equal, or small beside a few others, so that a sum of one term after the other rounds the
same way again and again."""
INFINITE, EXTREME = frozenset(("infinities", "masked")), HEAVY | {"large", "shifted", "negative", "tiny", "subnormal"}
"""Kinds with infinities, and kinds beside which a kernel's factor of an infinity may be zero, where the reference's is
tiny: it gives a NaN in place of an infinity."""
WHOLE = (
    "task",
    "uniform",
    "large",
    "heavy_tails",
    "constant",
    "zeros",
    "signed_zeros",
    "counts",
    "sorted",
    "edges",
    "masked",
    "repeated",
)
"""Kinds that differ for integers."""
ALIKE = "alike"
"""The contents of an array that are another's, or their negatives, but for an element in half of its rows."""
CHANGES = ("all", "rows", "few")


@dataclass(frozen=True, slots=True)
class Contents:
    """Kinds of contents, a seed, and values of scalars other than the task's.

    kind: of all arrays except the ones that `arrays` names with a kind of their own. numbers: that the source names,
    which integers hold beside the ends of their range. Each set of buffers holds one of
    two variants. change: how the second differs from the first: everything is drawn anew; half of the rows, and single
    elements of others; or few elements of a single array. Drawn if left out.
    """

    kind: str = "task"
    seed: int = 0
    change: str | None = None
    scalars: tuple[tuple[str, float], ...] = ()
    arrays: tuple[tuple[str, str], ...] = ()
    numbers: tuple[int, ...] = ()

    @property
    def may_lose_infinities(self) -> bool:
        """Whether there are infinities beside kinds of `EXTREME`."""
        return bool(self.kinds & INFINITE and self.kinds & EXTREME)

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset((self.kind, *(kind for _, kind in self.arrays)))

    def kind_of(self, argument: str) -> str:
        return dict(self.arrays).get(argument, self.kind)

    @property
    def name(self) -> str:
        kinds = ", ".join([self.kind, *(f"{argument} {kind}" for argument, kind in self.arrays)])
        return kinds + "".join(f", {name} = {value:g}" for name, value in self.scalars)


def kinds_of(task: Task, only: Argument | None = None) -> tuple[str, ...]:
    """The kinds that differ from the others for `task`, or for one array of it. Whole numbers that are made of a NaN,
    by a comparison or a conversion, are not defined: with such outputs there are none."""
    arrays = [only] if only else task.inputs
    dtypes = {dtype for argument in arrays for dtype in task.dtypes_of(argument)}
    if not any(DTYPES[dtype].is_float for dtype in dtypes):
        return WHOLE if arrays else ("task",)
    results = {dtype for argument in task.outputs for dtype in task.dtypes_of(argument)}
    left_out = set() if any(argument.fill.special for argument in arrays) else {"edges"}
    left_out |= set() if all(DTYPES[dtype].is_float for dtype in results) and task.nan == "propagates" else {"nans"}
    return tuple(kind for kind in KINDS if kind not in left_out)


def mate_of(task: Task, argument: Argument) -> str:
    """The first array before `argument` with the same shape, type and fill; empty without one, and for sorted fills."""
    own = (argument.shape, argument.dtype, argument.fill)
    read = (one for one in task.inputs if one.fill.kind not in ORDERED)
    same = [one.name for one in read if (one.shape, one.dtype, one.fill) == own]
    return same[0] if argument.name in same[1:] else ""


def draw_variants(xp: Any, task: Task, workload: Workload, contents: Contents, count: int) -> list[dict[str, Any]]:
    """For each of `count` variants the arrays that a kernel reads, by name: flat arrays of `xp` of the type
    `DataType.array`. The second differs from the first as `contents.change` says."""
    # Names differ in their letters, so that workloads of one seed do not share contents.
    key = [contents.seed, *contents.name.encode(), *workload.name.encode()]
    arrays = task.inputs
    shapes = {argument.name: task.shape_of(argument, workload) for argument in arrays}
    fills = {argument.name: argument.fill.at(workload) for argument in arrays}
    drawn: list[dict[str, Any]] = []
    for variant in range(count):
        rng, inputs = np.random.default_rng([*key, variant]), dict[str, Any]()
        for argument in arrays:
            dtype, shape, fill = task.dtype_of(argument, workload), shapes[argument.name], fills[argument.name]
            kind, mate = contents.kind_of(argument.name), mate_of(task, argument)
            block = draw("task" if kind == ALIKE else kind, fill, shape, dtype, rng, variant, contents.numbers)
            made = spread(xp, xp.asarray(block.view(DTYPES[dtype].array)), math.prod(shape), rng)
            has_sign = DTYPES[dtype].is_float and fill.high is None
            made = _alike(xp, inputs[mate], made, shape[-1], rng, has_sign) if kind == ALIKE and mate else made
            inputs[argument.name] = made
        drawn.append(inputs)
    if count > 1:
        rng = np.random.default_rng([*key, count])
        change = contents.change or CHANGES[int(rng.integers(len(CHANGES)))]
        # A part of an array of equal elements would not have this kind.
        names = [one.name for one in arrays if contents.kind_of(one.name) != "constant"]
        if change != "all" and names:
            _keep_part(xp, {name: shapes[name] for name in names}, fills, drawn[0], drawn[1], change, rng)
    return drawn


def _alike(xp: Any, other: Any, own: Any, row: int, rng: np.random.Generator, has_sign: bool) -> Any:
    """A copy of `other`, or its negative, that has an element of `own` in each of half of its rows."""
    made = other.copy()
    if has_sign and rng.random() < 0.25:
        made.view(f"u{made.itemsize}")[:] ^= 1 << 8 * made.itemsize - 1
    rows = np.flatnonzero(rng.random(made.size // row) < 0.5)
    at = xp.asarray(rows * row + rng.integers(row, size=rows.size))
    made[at] = own[at]
    return made


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
    kind: str,
    declared: Fill,
    shape: tuple[int, ...],
    dtype: str,
    rng: np.random.Generator,
    variant: int = 0,
    numbers: Sequence[int] = (),
) -> NDArray[Any]:
    """The elements of an array of `shape` whose task declares `declared` (as of `Fill.at`), flat, in the storage type.

    Of a larger array, `RANDOM_BLOCK` elements, which are meant for `spread`, except for kinds that keep an order.
    """
    row, count = shape[-1] if shape else 1, math.prod(shape)
    count = count if declared.kind in ORDERED else min(count, RANDOM_BLOCK)
    if kind == MIXED:
        kinds = rng.choice(ROW_KINDS, KINDS_OF_ROWS, replace=False)
        drawn = [draw(str(one), declared, shape, dtype, rng, variant, numbers) for one in kinds]
        of_rows = rng.integers(KINDS_OF_ROWS, size=-(-count // max(1, row))).repeat(row)
        return np.asarray(np.choose(of_rows[:count], drawn))
    if declared.kind in ("permutation", "offsets"):
        last = None if declared.kind == "permutation" else round(declared.mean + declared.scale)
        return _indices(kind, count // row, row, last, rng, variant).astype(DTYPES[dtype].storage).reshape(-1)
    if not DTYPES[dtype].is_float:
        values = _integers(kind, declared, count, row, DTYPES[dtype], rng, variant, numbers)
        return _sorted(values, row, most=row) if declared.kind == "sorted" else values
    floats = _Floats(declared, count, shape, dtype, rng, variant)
    bounded = declared.high is not None
    values = KINDS["task" if kind == "nans" and (bounded or declared.kind == "sorted") else kind](floats)
    if bounded:
        inside = np.clip(values, *(floats.precision(declared.mean + sign * declared.scale) for sign in (-1, 1)))
        # Half of the clipped values lie one step inside, where a sum may still round to the result for the end.
        inside = np.where((inside != values) & (rng.random(count) < 0.5), np.nextafter(inside, floats.mean), inside)
        values = np.where(np.isin(values, [one.value for one in declared.special]), values, inside)
    values = DTYPES[dtype].from_float(_sorted(values, row, most=row) if declared.kind == "sorted" else values)
    return _with_other_nans(values, rng) if DTYPES[dtype].size > 1 else values


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
    result = xp.empty(count, block.dtype)
    for start in range(0, count, block.size):
        part = min(block.size, count - start)
        result[start : start + part] = xp.roll(block, -int(rng.integers(block.size)) if start else 0)[:part]
    return result


def _integers(
    kind: str,
    declared: Fill,
    count: int,
    row: int,
    dtype: DataType,
    rng: np.random.Generator,
    variant: int,
    numbers: Sequence[int],
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
    marks = [low, high, max(low, min(0, high)), *(int(one.value) for one in declared.special)]
    marks += [one for one in numbers if low <= one <= high]
    match kind:
        case "heavy_tails":
            near = np.array([low, low, min(low + 1, high), max(low, high - 1), high, high], storage)
            powers = [sign << bits for bits in range(1, 8 * dtype.size) for sign in (1, -1)]
            beside = [one + by for one in powers for by in (-1, 0, 1) if low <= one + by <= high]
            others = rng.choice(np.array(beside, storage) if beside else near, count)
            return np.where(rng.random(count) < 0.5, rng.choice(near, count), others)
        case "constant":
            marks.append(low + (high - low) * (3 + variant) // 5)
            return np.full(count, marks[int(rng.integers(len(marks)))], storage)
        case "edges" | "masked" | "repeated":
            # Single elements, or runs of up to a few rows, of one mark or of several.
            length = 1.0 if kind == "edges" else math.exp(rng.uniform(0, math.log(4 * row)))
            run = np.cumsum(rng.random(count) < 1 / length)
            of_run = rng.choice(np.array(marks if kind == "repeated" else [rng.choice(marks)], storage), run[-1] + 1)
            chosen = rng.random(run[-1] + 1) < (1 if kind == "repeated" else rng.uniform(*MASKED))
            return np.where(chosen[run], of_run[run], values)
        case "zeros":
            return np.full(count, max(low, min(0, high)), storage)
        case "signed_zeros":
            others = rng.random(count) < math.exp(rng.uniform(*np.log((0.5 / max(ROW_OF_FEW, row), NONZERO))))
            return np.where(others, values, rng.choice(np.array(marks, storage)))
        case "counts":
            least = low if low > 0 or high < 0 else 0
            values = _counted(count, row, high - least, rng).astype(storage)
            values += np.array(least, storage)
            return values
        case "sorted" if high - low < EXACT and rng.random() < COUNTING_SHARE:
            first = 0 if rng.random() < 0.5 else int(rng.integers(low, high, endpoint=True)) - low
            upwards = first + np.arange(count)
            return (low + upwards % (high - low + 1)).astype(storage)
    if kind != "sorted" or whole:
        values = rng.integers(low, high, count, np.int64 if low < 0 else np.uint64, endpoint=True).astype(storage)
    return _sorted(values, row, variant) if kind == "sorted" else values


def _counted(count: int, row: int, largest: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Whole numbers from zero to `largest`, of a drawn number of bits, which half of the arrays draw for each row."""
    rows = -(-count // row) if row < count and rng.random() < 0.5 else 1
    most = np.minimum(1 << rng.choice(COUNTED_BITS, (rows, 1)), largest + 1)
    return np.asarray(np.floor(most * rng.random((rows, -(-count // rows)))), np.float64).reshape(-1)[:count]


def _with_other_nans(values: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    """Half of the NaN with the bits that a GPU computes, 0x7fffffff, the others with a CPU's, 0x7fc00000; a quarter of
    either with a sign."""
    bits, nans = values.view(f"u{values.itemsize}"), np.flatnonzero(np.isnan(values))
    sign = 1 << 8 * values.itemsize - 1
    bits[nans[rng.random(nans.size) < 0.5]] = sign - 1
    bits[nans[rng.random(nans.size) < 0.25]] |= sign
    return values


def _sorted(values: NDArray[Any], row: int, variant: int = 0, most: int = SORTED_RUN) -> NDArray[Any]:
    """Whole rows, or parts of `most` elements of long ones, sorted, upwards in the first variant."""
    row = min(row, most)
    whole = values.size // row * row
    rows = np.sort(values[:whole].reshape(-1, row), axis=1)
    return np.concatenate([(rows[:, ::-1] if variant else rows).reshape(-1), values[whole:]])


def _with(special: tuple[Special, ...], values: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    for one in special:
        values[rng.random(values.size) < one.fraction] = np.float64(one.value).astype(values.dtype)
    return values
