"""Which checks a candidate goes through, and in which order; `tunesmith.kernels.check.verify` carries them out.

A covering array of strength 2 (every pair of levels of two factors occurs in some step; Cohen et al., "The AETG
system", IEEE TSE 23(7), 1997) over classes of each size, the combinations of types, the kinds of contents and the
values of each scalar; within their classes sizes take turns, so that each member occurs with each combination of types.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.limits import DeviceLimits
from tunesmith.kernels.check.source_sizes import source_integers
from tunesmith.kernels.launch.contents import CHANGES, Contents, kinds_of
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.expression import parse
from tunesmith.kernels.spec.task import Argument, Task, TaskError, Workload

LADDER = (
    (1,),
    (2, 3, 5, 7),
    (8,),
    (15, 16, 17),
    (31, 32, 33),
    (63, 64, 65),
    (80, 96, 100),
    (127, 128, 129),
    (255, 256, 257),
    (1000, 1026),
    (321, 385, 448, 513, 640, 769, 897),
    # An odd multiple of 16 and every remainder by it: what vectors of up to 16 elements leave over.
    tuple(272 + rest for rest in (1, 2, 3, 4, 5)),
    tuple(272 + rest for rest in (6, 7, 8, 9, 10)),
    tuple(272 + rest for rest in (11, 12, 13, 14, 15)),
)
"""Classes of sizes at which kernels go wrong: few, around powers of two, unusual head sizes, remainders."""
MAX_RELATED_SIZE = 1030
"""Largest value of a size that is tried with the others unchanged, where the task relates sizes."""
MAX_HALVINGS = 16
STEPS_DOWN = tuple(sorted({size for of_class in LADDER for size in of_class}, reverse=True))
MAX_BYTES = {"gpu": 6e6, "cpu": 4e5}
MAX_FLOPS = {"gpu": 4e9, "cpu": 1e7}
"""Limits of a derived workload, so that hundreds of them take seconds; at least the need of the task's smallest."""
EXTENT_SHARE, EXTENT_GROWTH = 0.01, 1.5
"""Share of all bytes, and growth where a size is doubled, from which on a size makes an input long."""
MAX_ELEMENTS_PER_BYTE = 8
"""An extent beyond this many times the bytes makes no array long: a bitmap has the most elements, 8 for each byte."""
FULL_STEP_COST = 3.0
"""Additional time of a step with `MAX_BYTES` of arrays, over the time of a step with nearly none."""
SMALL_BYTES = 1e6
"""Total array bytes of the small workload on which the reference is examined first."""
ON_TUNED = ("large", "shifted", "outliers", "masked", "edges")
"""Kinds of contents whose effect grows with the size: the smallest tuned workload is checked on them too."""
UNINFORMATIVE = ("zeros", "ties", "constant", "edges", "infinities", "masked", "nans")
"""Kinds of contents under which a result may be undefined, or the same as without any arithmetic."""
MAX_UNINFORMATIVE_RESULTS = 16
"""Elements of the largest output up to which such contents say too little, so that the task's own are used too."""
MAX_SOURCE_SIZE_STEPS = 96
"""Steps on sizes that a source names, for each combination of types."""
MIN_SOURCE_SIZE = 8
"""Each smaller size, or a neighbour, comes up in any case."""
MAX_COVERAGE_STEPS = 64
"""Steps on further sizes for a candidate of which some lines have not run, for each combination of types."""
MAX_NEIGHBOUR_STEPS = 12
"""Further steps of such a candidate, on sizes beside the task's own shapes."""
MAX_NEIGHBOUR_BYTES = {"gpu": 256e6, "cpu": 8e6}
"""Array bytes of such a shape."""
MIN_LONG_SIZE = 1536
"""The shortest long size. The others are its multiples by powers of two: vectors of any width divide them."""
GOLDEN_RATIO = (math.sqrt(5) - 1) / 2
SECOND_SEED = 7919
SCALARS: tuple[Callable[[float], float], ...] = (
    lambda own: -own,
    lambda own: 0.0,
    lambda own: 2 * own + 0.25,
    lambda own: 1000 * own,
)
"""Values of a scalar of a float type beside the task's own, where the task lists no `values`."""


@dataclass(frozen=True, slots=True)
class Step:
    """One workload with one kind of contents. derived: made up here; where the template or the baseline is not meant
    for it, it is skipped, while the task's own workloads count."""

    workload: Workload
    contents: Contents
    derived: bool = False

    @property
    def own(self) -> bool:
        """Whether it is a workload of the task's with the task's own contents, for which its tolerance is meant."""
        return self.contents.kind == "task" and not self.contents.scalars and not self.derived

    @property
    def pairs(self) -> frozenset[tuple[object, object]]:
        """What the step combines: all pairs of its sizes, types, kind of contents and changed scalars."""
        types, contents = tuple(self.workload.types.items()), self.contents
        factors: list[object] = [*self.workload.sizes.items(), types, contents.kind, *contents.scalars]
        return frozenset(itertools.combinations(factors, 2))

    @property
    def name(self) -> str:
        scalars = "".join(f", {name} = {value:g}" for name, value in self.contents.scalars)
        return f"{self.workload.name}, {self.contents.kind}{scalars}"


def plan(
    task: Task,
    limits: DeviceLimits,
    seed: int,
    largest_bytes: float = math.inf,
    only: str | None = None,
    source: str = "",
    unusable: Collection[tuple[str, int]] = (),
) -> list[Step]:
    """The steps of a verdict: derived shapes (`derived_steps`) and sizes that the candidate's `source` compares with
    (`source_size_steps`), in the order of new pairs for their cost; contents whose effect grows with the size, and
    another seed, on the smallest tuned workload; then all workloads for the kind of device that move at most
    `largest_bytes`. only: the workload of a candidate that is meant for it alone, which is checked on nothing else.
    unusable: made-up values of scalars (`made_up_scalars`, name and level) that are left out."""
    own = _of_kind(task, limits)
    if only is not None:
        return _on_one(task, task.workload(only), seed)
    if not own:
        return []
    tuned = min([one for one in own if not one.held_out] or own, key=task.bytes_of)
    shapes = Shapes(task, limits, tuned, seed)
    steps = derived_steps(shapes, unusable)
    steps = _by_gain(shapes, steps + source_size_steps(shapes, source, {step.workload.name for step in steps}))
    steps += _on_one(task, tuned, seed)
    others = (one for one in sorted(own, key=task.bytes_of) if one != tuned and task.bytes_of(one) <= largest_bytes)
    return steps + [Step(workload, Contents(seed=seed)) for workload in others]


def small_workload(task: Task, workloads: Sequence[Workload], most_bytes: float = SMALL_BYTES) -> Workload:
    """The smallest of `workloads`, or where that has more than `most_bytes` of arrays, one like it with its largest
    sizes halved as often as it takes, as far as the task allows."""
    made = smallest = min(workloads, key=lambda one: array_bytes(task, one))
    halved = [name for name in sorted(extents(task, workloads)) if smallest.sizes[name] > 1]
    while array_bytes(task, made) > most_bytes and halved:
        largest = max(halved, key=lambda name: made.sizes[name])
        sizes = {**made.sizes, largest: made.sizes[largest] // 2}
        name = "x".join(map(str, sizes.values())) + " (made smaller)"
        smaller = smallest.model_copy(update={"sizes": sizes, "name": name})
        if array_bytes(task, smaller) < array_bytes(task, made) and _allows(task, smaller):
            made = smaller
        if made is not smaller or sizes[largest] == 1:
            halved.remove(largest)
    return made


def extents(task: Task, workloads: Sequence[Workload]) -> frozenset[str]:
    """The sizes that make arrays long: in some of `workloads`, doubling one multiplies an output, or an input with at
    least `EXTENT_SHARE` of all bytes, by `EXTENT_GROWTH` or more. Of the others, such as a radius, the length of a
    filter or a number of steps, work may grow where arrays do not."""
    found = set()
    for workload, name in itertools.product(workloads, workloads[0].sizes):
        doubled = workload.model_copy(update={"sizes": {**workload.sizes, name: 2 * workload.sizes[name]}})
        for argument in task.arguments:
            before, after = (array_bytes(task, one, (argument,)) for one in (workload, doubled))
            counts = argument.role != "in" or before >= EXTENT_SHARE * array_bytes(task, workload)
            if counts and 0 < EXTENT_GROWTH * before <= after < math.inf:
                found.add(name)
    return frozenset(found)


def _by_gain(shapes: Shapes, steps: Sequence[Step]) -> list[Step]:
    """`steps` in greedy order: next is the step that adds the most pairs which no earlier step has, for its cost. The
    gain of a step only shrinks, so that a queue with outdated gains suffices (Minoux, "Accelerated greedy algorithms
    for maximizing submodular set functions", 1978)."""
    pairs = [step.pairs for step in steps]
    costs = [1 + FULL_STEP_COST * shapes.share(step.workload) for step in steps]
    queue = [(-len(of_step) / cost, at) for at, (of_step, cost) in enumerate(zip(pairs, costs, strict=True))]
    heapq.heapify(queue)
    covered: set[tuple[object, object]] = set()
    order = []
    while queue:
        gain, at = heapq.heappop(queue)
        if (now := -len(pairs[at] - covered) / costs[at]) > gain:
            heapq.heappush(queue, (now, at))
        else:
            covered |= pairs[at]
            order.append(steps[at])
    return order


def _on_one(task: Task, workload: Workload, seed: int) -> list[Step]:
    kinds = [Contents(kind, seed) for kind in ON_TUNED if kind in kinds_of(task)]
    first, last = Contents(seed=seed, change="rows"), Contents(seed=seed + SECOND_SEED, change="few")
    return [Step(workload, contents) for contents in (first, *kinds, last)]


def derived_steps(shapes: Shapes, unusable: Collection[tuple[str, int]] = ()) -> list[Step]:
    """Steps on sizes of the ladder, around the sizes of `shapes.like`, and about the largest of the task, the smallest
    first. A size that is not an extent takes that workload's value, half of it, one less, one more, and twice of it."""
    task, seed = shapes.task, shapes.seed
    classes: dict[str, list[tuple[int, ...]]] = {}
    for name, size in shapes.like.sizes.items():
        largest = max(workload.sizes[name] for workload in shapes.own)
        around, beyond = (size, max(1, size - 1), size + 1), (largest, largest + 1, largest + 3)
        others = dict.fromkeys((size, size // 2, size - 1, size + 1, 2 * size))
        ladder = [*LADDER, around, beyond]
        classes[name] = ladder if name in shapes.extents else [(value,) for value in others if value >= 1]
    kinds = kinds_of(task)
    levels = {
        name: [level for level in range(1 + count) if (name, level) not in unusable]
        for name, count in _scalar_levels(task).items()
    }
    factors = {
        **{f"size {name}": len(members) for name, members in classes.items()},
        "types": len(shapes.types),
        "kind": len(kinds),
        **{f"scalar {name}": len(usable) for name, usable in levels.items() if len(usable) > 1},
    }
    made: dict[str, Step] = {}
    turns: Counter[tuple[str, int, int]] = Counter()
    """How often a size has come with a combination of types; of a size 0, how often the size was kept."""

    def add(chosen: Mapping[str, int], position: int) -> None:
        at, sizes, needs = chosen["types"], {}, {}
        for name, members in classes.items():
            level = chosen[f"size {name}"]
            sizes[name] = min(members[level], key=lambda size: turns[name, size, at])
            needs[name] = (level >= len(LADDER), turns[name, 0, 0] % 2)
        kept = max(needs, key=lambda name: needs[name], default="")
        turns[kept, 0, 0] += 1
        if (fitting := shapes.within(sizes, shapes.types[at], kept)) is None:
            return
        turns.update((name, size, at) for name, size in fitting.items())
        workload = _resized(shapes.like, fitting, shapes.types[at], "derived")
        scalars = _scalars(task, workload, {name: of[chosen.get(f"scalar {name}", 0)] for name, of in levels.items()})
        kind, change = kinds[chosen["kind"]], CHANGES[position % len(CHANGES)]
        variants = [Contents(kind, seed, change, scalars)]
        most_results = _number(lambda: max(math.prod(task.shape_of(one, workload)) for one in task.outputs))
        if kind in UNINFORMATIVE and most_results <= MAX_UNINFORMATIVE_RESULTS:
            variants.append(Contents("task", seed, change))
        for contents in variants:
            step = Step(workload, contents, derived=True)
            made.setdefault(step.name, step)

    for position, row in enumerate(_covering(tuple(factors.items()), seed)):
        add(row, position)
    # Members of classes that did not come up with some combination of types; the other sizes are small.
    left_out = [
        {f"size {other}": (1 + (level + turn) % 3) % len(of) for other, of in classes.items()}
        | {f"size {name}": level, "types": at}
        for name, members in classes.items()
        for level, of_class in enumerate(members)
        for at in range(len(shapes.types))
        for turn in range(sum(not turns[name, size, at] for size in set(of_class)))
    ]
    for position, row in enumerate(left_out):
        add({**dict.fromkeys(factors, 0), **row}, position)
    return sorted(made.values(), key=lambda step: array_bytes(task, step.workload))


def reaching_steps(
    task: Task, limits: DeviceLimits, like: Workload, types: Sequence[Mapping[str, str]], seed: int, tried: bool
) -> list[Step]:
    """Derived steps to enter blocks that no launch has entered: for each of the combinations of `types` at most
    `MAX_COVERAGE_STEPS`, sizes of all magnitudes among the first, and `MAX_NEIGHBOUR_STEPS` beside the task's own
    shapes. Each size in turn becomes as long as the memory budget allows, as a row may have to exceed a parameter of
    the template. tried: whether the steps of `derived_steps` have been carried out; if not, they are among these."""
    shapes, found = Shapes(task, limits, like, seed), []
    untried = [] if tried else derived_steps(shapes)
    for own in types:
        steps = [*_long_steps(shapes, own), *(one for one in untried if one.workload.types == own)]
        # Multiples of the golden ratio, modulo 1, spread evenly however many are taken.
        order = sorted(range(len(steps)), key=lambda at: at * GOLDEN_RATIO % 1)
        found.append([*(steps[at] for at in order[:MAX_COVERAGE_STEPS]), *_near_steps(shapes, own)])
    return [step for turn in itertools.zip_longest(*found) for step in turn if step is not None]


def _long_steps(shapes: Shapes, types: Mapping[str, str]) -> Iterator[Step]:
    """Each size long, with and without a rest behind the last vector, while the others are small."""
    lengths = itertools.takewhile(shapes.allow_long, (MIN_LONG_SIZE << times for times in itertools.count()))
    longer = [size for length in lengths for size in (length, length + 1)]
    for turn, (name, size) in enumerate(itertools.product(sorted(shapes.extents), longer), 1):
        small = {
            other: 1 + (at + turn) % 3 if other in shapes.extents else given
            for at, (other, given) in enumerate(shapes.like.sizes.items())
        }
        sizes = shapes.within(small | {name: size}, types, name)
        if sizes is not None and sizes[name] == size:  # and not cut to what another length gave
            yield shapes.step(_resized(shapes.like, sizes, types, "long"), turn)


def _near_steps(shapes: Shapes, types: Mapping[str, str]) -> list[Step]:
    """The task's own shapes with each size in turn one more, the largest first: large arrays take own paths."""
    task, found = shapes.task, dict[str, Step]()
    for own in sorted(shapes.own, key=lambda one: array_bytes(task, one), reverse=True):
        for turn, (name, size) in enumerate(own.sizes.items()):
            workload = _resized(own, own.sizes | {name: size + 1}, types, "near")
            if array_bytes(task, workload) <= MAX_NEIGHBOUR_BYTES[shapes.kind] and _allows(task, workload):
                found.setdefault(workload.name, shapes.step(workload, turn))
    return list(found.values())[:MAX_NEIGHBOUR_STEPS]


def source_size_steps(shapes: Shapes, source: str, known: Collection[str] = ()) -> list[Step]:
    """Steps in which each size in turn is what `source` compares something with, and its neighbours, in each
    combination of types; other sizes are small. known: names of workloads that need no further step."""
    made: dict[str, Step] = {}
    long = [name for name in shapes.like.sizes if name in shapes.extents]
    usual = {size for of_class in LADDER for size in of_class} | set(range(MIN_SOURCE_SIZE))
    numbers = [number for number in source_integers(source) if not {number - 1, number, number + 1} <= usual]
    numbers = list(filter(shapes.allow_long, numbers))[: MAX_SOURCE_SIZE_STEPS // max(1, 3 * len(long))]
    for number in numbers:
        for turn, (name, value) in enumerate(itertools.product(long, (number, number - 1, number + 1))):
            wanted = shapes.like.sizes | dict.fromkeys(long, (3, 8, 17)[turn % 3]) | {name: value}
            for types in shapes.types:
                sizes = shapes.within(wanted, types, name)
                if sizes is not None and _resized(shapes.like, sizes, types, "derived").name not in known:
                    workload = _resized(shapes.like, sizes, types, "from the source")
                    made.setdefault(workload.name, shapes.step(workload, turn))
    return list(made.values())


@lru_cache
def _covering(factors: tuple[tuple[str, int], ...], seed: int) -> tuple[Mapping[str, int], ...]:
    """Levels of each factor, such that all pairs of levels of two factors occur."""
    from covertable import make

    wanted = {name: list(range(count)) for name, count in factors}
    if len([count for count in wanted.values() if len(count) > 1]) < 2:
        widest = max(wanted.values(), key=len)
        return tuple({name: levels[at % len(levels)] for name, levels in wanted.items()} for at in range(len(widest)))
    rows: list[dict[str, int]] = make(wanted, strength=2, salt=str(seed))
    _balance(rows, "types", len(wanted["types"]))
    return tuple(rows)


def _balance(rows: list[dict[str, int]], name: str, levels: int) -> None:
    """Gives rows other levels of the factor `name` where no pair is lost: what any level would do gets the first one,
    and as each type is needed with each size, that would take many further steps."""
    pairs = Counter((row[name], other, level) for row in rows for other, level in row.items() if other != name)
    wanted = Counter(row[name] for row in rows)
    for row in rows:
        old, new = row[name], min(range(levels), key=lambda level: wanted[level])
        others = [(other, level) for other, level in row.items() if other != name]
        if old != new and all(pairs[old, *pair] > 1 for pair in others):
            pairs.subtract((old, *pair) for pair in others)
            pairs.update((new, *pair) for pair in others)
            wanted.update({old: -1, new: 1})
            row[name] = new


class Shapes:
    """The sizes that made-up workloads of a task may have on a kind of device. like: the workload whose sizes they
    vary; cheap, most: bytes and operations of a usual step, and of any, at least the need of the task's smallest
    workload; types: the combinations of types of the task's workloads that the backend knows."""

    def __init__(self, task: Task, limits: DeviceLimits, like: Workload, seed: int) -> None:
        self.task, self.kind, self.like, self.seed = task, limits.kind, like, seed
        self.own = _of_kind(task, limits)
        self.extents = extents(task, self.own)
        self._known: dict[tuple[object, ...], tuple[list[str], float, float]] = {}
        self._related_sizes: dict[tuple[object, ...], list[dict[str, int]]] = {}
        smallest = min(self.own, key=lambda one: array_bytes(task, one))
        operations = _number(lambda: task.flops_of(smallest))
        self.cheap = MAX_BYTES[limits.kind], MAX_FLOPS[limits.kind]
        self.most = max(self.cheap[0], array_bytes(task, smallest)), max(self.cheap[1], operations)
        known = {dtype for dtype, one in DTYPES.items() if limits.backend in one.c_names}
        distinct = dict.fromkeys(tuple(workload.types.items()) for workload in task.workloads)
        self.types = [dict(types) for types in distinct if {dtype for _, dtype in types} <= known]

    def step(self, workload: Workload, turn: int) -> Step:
        """`workload` with the task's own contents."""
        return Step(workload, Contents("task", self.seed, CHANGES[turn % len(CHANGES)]), derived=True)

    def within(self, sizes: Mapping[str, int], types: Mapping[str, str], kept: str) -> Mapping[str, int] | None:
        """`sizes`, of which the largest extents are made smaller until the workload is cheap, the one called `kept`
        last, and then as the task requires them; None where no such workload keeps to the limits."""
        while not self._costs_at_most(self.cheap, sizes, types):
            shrinking = [name for name in sizes if name in self.extents and sizes[name] > 1]
            name = max(shrinking, key=lambda name: (name != kept, sizes[name]), default="")
            lower = [size for size in STEPS_DOWN if name and size <= sizes[name] // 2]
            if not lower:
                break
            sizes = {**sizes, name: lower[0]}
        # One size after another, rather others than `kept`, as long as more of what the task requires holds.
        broken, affordable = self._broken(sizes, types), self._costs_at_most(self.most, sizes, types)
        for name in sorted((name for name in sizes if name in self.extents), key=lambda name: name == kept):
            for size in self._others(name, sizes[name]):
                if affordable and not any(name in parse(text).names for text in broken):
                    break
                changed = {**sizes, name: size}
                left = self._broken(changed, types)
                if (len(left) < len(broken) or not affordable) and self._costs_at_most(self.most, changed, types):
                    sizes, broken, affordable = changed, left, True
        if affordable and not broken:
            return sizes
        return min(self._related(types, kept), key=lambda one: abs(one[kept] - sizes[kept]), default=None)

    def _related(self, types: Mapping[str, str], kept: str) -> list[dict[str, int]]:
        """Where several sizes must fit together: the sizes of `like`, the extents or else all of them halved until they
        are cheap, and these with every length of `kept` that fits them."""
        key = (kept, *types.items())
        if key not in self._related_sizes and kept:
            halved = [
                self.like.sizes | {name: max(1, self.like.sizes[name] >> times) for name in names}
                for names in (self.extents, self.like.sizes)
                for times in range(MAX_HALVINGS)
            ]
            cheap = [one for one in halved if self._costs_at_most(self.cheap, one, types)]
            bases = [one for one in cheap if not self._broken(one, types)]
            lengths = range(1, MAX_RELATED_SIZE + 1)
            varied = [{**one, kept: size} for one in (bases[:1] + bases[-1:]) for size in lengths]
            fitting = [one for one in varied if not self._broken(one, types)]
            self._related_sizes[key] = bases + [one for one in fitting if self._costs_at_most(self.most, one, types)]
        return self._related_sizes.get(key, [])

    def _others(self, name: str, size: int) -> list[int]:
        """Other values of a size: smaller ones, or else larger ones, up to the largest of some workload."""
        most = max(workload.sizes[name] for workload in self.task.workloads)
        larger = [one for one in (*reversed(STEPS_DOWN), most) if size < one <= most]
        return [*(one for one in STEPS_DOWN if one < size), *larger]

    def share(self, workload: Workload) -> float:
        """What a workload costs of what is cheap; without `flops` as if a result took all inputs that do not grow."""
        operations = _number(lambda: self.task.flops_of(workload))
        if not operations:
            grown = {name for one in self.task.outputs for text in one.shape for name in parse(text).names}
            alone = _resized(workload, {**workload.sizes, **dict.fromkeys(grown & self.extents, 1)}, workload.types, "")
            read = [array_bytes(self.task, alone, (one,)) for one in self.task.arguments if one.role == "in"]
            operations = array_bytes(self.task, workload, self.task.outputs) * max(read, default=1)
        return max(array_bytes(self.task, workload) / self.cheap[0], operations / self.cheap[1])

    def allow_long(self, number: int) -> bool:
        """Whether some extent may be `number` and one more where the others are 1."""
        small = self.like.sizes | dict.fromkeys(self.extents, 1)
        return number <= MAX_ELEMENTS_PER_BYTE * self.cheap[0] and any(
            self._costs_at_most(self.cheap, {**small, name: number + 1}, self.like.types) for name in self.extents
        )

    def _broken(self, sizes: Mapping[str, int], types: Mapping[str, str]) -> list[str]:
        """The task's requirements that do not hold, or cannot be computed."""
        return self._judged(sizes, types)[0]

    def _costs_at_most(self, most: tuple[float, float], sizes: Mapping[str, int], types: Mapping[str, str]) -> bool:
        _, moved, done = self._judged(sizes, types)
        return moved <= most[0] and done <= most[1]

    def _judged(self, sizes: Mapping[str, int], types: Mapping[str, str]) -> tuple[list[str], float, float]:
        """`_broken`, bytes and operations of made-up sizes."""
        task, key = self.task, (*sizes.values(), *types.values())
        if key not in self._known:
            made = _resized(self.like, sizes, types, "")
            broken = [text for text in (*task.requires, *task.conditions) if not _allows(task, made, text)]
            self._known[key] = broken, array_bytes(task, made), _number(lambda: task.flops_of(made))
        return self._known[key]


def _resized(like: Workload, sizes: Mapping[str, int], types: Mapping[str, str], origin: str) -> Workload:
    name = " ".join(("x".join(map(str, sizes.values())), *types.values(), f"({origin})"))
    return like.model_copy(update={"sizes": dict(sizes), "types": dict(types), "name": name})


def _of_kind(task: Task, limits: DeviceLimits) -> tuple[Workload, ...]:
    return (*task.workloads_for(limits.kind, held_out=False), *task.workloads_for(limits.kind, held_out=True))


def _allows(task: Task, workload: Workload, requirement: str | None = None) -> bool:
    """Whether all that a task requires, or one such text, holds for made-up sizes; False where it has no value."""
    return _number(lambda: task.allows(workload, requirement)) is True


def _number(compute: Callable[[], float]) -> float:
    """A property of a made-up workload; infinite where it cannot be computed."""
    try:
        return compute()
    except (TunesmithError, OverflowError):
        return math.inf


def array_bytes(task: Task, workload: Workload, arguments: Sequence[Argument] | None = None) -> float:
    """Bytes of all arrays, or of those among `arguments`."""
    arrays = [one for one in arguments or task.arguments if one.role != "scalar"]
    return _number(
        lambda: sum(
            float(math.prod(task.shape_of(one, workload))) * DTYPES[task.dtype_of(one, workload)].size for one in arrays
        )
    )


def _scalar_levels(task: Task) -> dict[str, int]:
    """For each scalar, how many values beside the task's own it takes in the checks."""
    levels = {}
    for argument in task.arguments:
        if argument.role == "scalar":
            types = task.types.get(argument.dtype, (argument.dtype,))
            changed = len(SCALARS) if all(DTYPES[dtype].is_float for dtype in types) else 0
            levels[argument.name] = len(argument.values) or changed
    return levels


def _scalars(task: Task, workload: Workload, chosen: Mapping[str, int]) -> tuple[tuple[str, float], ...]:
    """The values of scalars that are not the task's own in a step. chosen: levels, from 1 on; 0 is the task's own."""
    found = []
    for argument in task.arguments:
        if level := chosen.get(argument.name, 0):
            with contextlib.suppress(TaskError):
                own = task.scalar_of(argument, workload)
                if argument.values:
                    listed = argument.model_copy(update={"value": argument.values[level - 1]})
                    value = task.scalar_of(listed, workload)
                else:
                    value = SCALARS[level - 1](own)
                if value != own:
                    found.append((argument.name, value))
    return tuple(found)


def made_up_scalars(task: Task, workload: Workload) -> Iterator[tuple[str, int, float]]:
    """The values of scalars that no task lists: name, level and value on `workload`."""
    levels = _scalar_levels(task)
    for argument in task.arguments:
        for level in range(1, 1 + levels.get(argument.name, 0)) if not argument.values else ():
            for name, value in _scalars(task, workload, {argument.name: level}):
                yield name, level, value
