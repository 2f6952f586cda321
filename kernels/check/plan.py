"""Which checks a candidate goes through, and in which order; `tunesmith.kernels.check.verify` carries them out.

Steps on made-up workloads are drawn from all that the task allows, anew for each seed: sizes, types, the contents of
each array and scalars, so that no list of them can be known. Of many drawn steps those go first that add the most new
pairs of choices for their cost, as AETG chooses the rows of a covering array (Cohen et al., "The AETG system", IEEE
TSE 23(7), 1997).
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.limits import DeviceLimits
from tunesmith.kernels.check.scalars import (
    MAX_POWER,
    SCALARS,
    WHOLE_SCALARS,
    Rng,
    multiple_of,
    scalars_with,
    ways_to_make_up,
)
from tunesmith.kernels.check.source_sizes import source_floats, source_integers
from tunesmith.kernels.launch.contents import ALIKE, CHANGES, MIXED, PLAIN, Contents, kinds_of, mate_of
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.expression import conjuncts, parse
from tunesmith.kernels.spec.task import Argument, Task, Workload

MAX_STEPS, DRAWS_PER_STEP = 320, 2
"""Steps on drawn sizes, and how many are drawn for each that is chosen."""
LONG_STEPS = 2
"""Further steps in which a size is as long as `LONG_FACTOR` times the usual limits allow, for each such size."""
LONG_FACTOR = {"gpu": 12.0, "cpu": 4.0}
MAX_LONG_BYTES = {"gpu": 72e6, "cpu": 32e6}
"""Bytes of such a step where the task's own sizes need more than the usual limits."""
BALANCED_FACTOR = 12.0
"""Bytes of a step with several long sizes, as a multiple of the usual limit: most workloads of callers are so."""
MIDDLE_BITS = (6.0, 8.0)
"""The range of the binary logarithm of a size of a middle length."""
MOST_SHARE = 0.3
"""Share of the steps that may need as much as the task's smallest workload, where that is more."""
SIZE_KINDS = 1 + int(math.log2(MAX_POWER)) + 2
"""The powers up to it, sizes beside any power of two, and sizes beside the task's own."""
STRATA = 16
"""Parts of the logarithm of a size's range: each kind comes once in each of them before any comes again."""
TIED_SHARE, MIXED_SHARE = 1 / 8, 1 / 5
"""Share of the sizes first tried as another, its double or half, or the product of others, and of the contents with
two arrays alike; and of those with rows of mixed kinds."""
TRIES, ATTEMPTS = 24, 2
"""Drawn values of a size, and drawn sets of sizes, until one fits the task and the limits."""
MAX_FAILED = 40
"""Sets of sizes that may be drawn in vain, beyond twice the others: a task may allow hardly any."""
MAX_TYPES = 8
"""Combinations of types: each is compiled."""
MAX_BYTES = {"gpu": 6e6, "cpu": 4e5}
MAX_FLOPS = {"gpu": 4e9, "cpu": 1e7}
"""Limits of a derived workload, so that hundreds of them take seconds; at least the need of the task's smallest."""
EXTENT_SHARE, EXTENT_GROWTH = 0.01, 1.5
"""Share of all bytes, and growth where a size is doubled, from which on a size makes an input long."""
MAX_ELEMENTS_PER_BYTE = 8
"""An extent beyond this many times the bytes makes no array long: a bitmap has the most elements, 8 for each byte."""
PLACE_GAIN = 12
"""New pairs that a new place of a size is worth."""
FULL_STEP_COST = 3.0
"""Additional time of a step with `MAX_BYTES` of arrays, over the time of a step with nearly none."""
SMALL_BYTES = 1e6
"""Total array bytes of the small workload on which the reference is examined first."""
STEPS_ON_TUNED = 6
"""Drawn contents with which the smallest tuned workload is checked too: their effect grows with the size."""
UNINFORMATIVE = frozenset(
    ("zeros", "signed_zeros", "ties", "constant", "edges", "infinities", "masked", "hidden", "lowest", "nans")
)
"""Kinds of contents under which a result may be undefined, or the same as without any arithmetic."""
MAX_UNINFORMATIVE_RESULTS = 16
"""Elements of the largest output up to which such contents say too little, so that the task's own are used too."""
MAX_SOURCE_SIZE_STEPS = 96
"""Steps on sizes that a source names, for each combination of types."""
MAX_SHORT_SIZE, MAX_SHORT_NUMBERS = 1024, 8
"""The largest number of a source that such a step takes for a size that makes no array long, and how many of them."""
MIN_SOURCE_SIZE, MAX_MULTIPLE = 8, 8
"""Smaller sizes are drawn often, and remainders of larger ones found in the first multiples."""
MAX_COVERAGE_STEPS = 64
"""Steps on further sizes for a candidate of which some lines have not run, for each combination of types."""
MAX_NEIGHBOUR_STEPS = 12
"""Further steps of such a candidate, on sizes beside the task's own shapes."""
MAX_NEIGHBOUR_BYTES = {"gpu": 256e6, "cpu": 8e6}
"""Array bytes of such a shape."""
Option = TypeVar("Option")
Sizes = Mapping[str, int]
Types = Mapping[str, str]
Limit = tuple[float, float]
"""Bytes and operations that a workload may take."""
Decks = dict[tuple[str, ...], list[int]]
"""The options not drawn yet, by the purpose of the draw."""
REACHING_SEED, SECOND_SEED, FIRST_SEED = 104_729, 7919, 3


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
        return self.contents.kinds == {"task"} and not self.contents.scalars and not self.derived

    @property
    def pairs(self) -> frozenset[object]:
        """The combinations in the step: all pairs of its sizes' remainders and magnitudes, types, kinds of contents and
        changed scalars; which array has which kind; and which sizes are equal."""
        sizes, contents = self.workload.sizes.items(), self.contents
        factors: list[object] = [(name, math.gcd(size, MAX_POWER)) for name, size in sizes]
        factors += [(name, "magnitude", size.bit_length()) for name, size in sizes]
        factors += [tuple(self.workload.types.items()), contents.kind, *contents.arrays, *contents.scalars]
        equal = [(one, other) for one, other in itertools.combinations(sizes, 2) if one[1] == other[1]]
        return frozenset((*itertools.combinations(factors, 2), *equal))

    @property
    def places(self) -> frozenset[object]:
        """The remainder and the magnitude of each size together: a kernel may be wrong for one such place alone."""
        sizes = self.workload.sizes.items()
        return frozenset((name, math.gcd(size, MAX_POWER), size.bit_length()) for name, size in sizes)

    @property
    def name(self) -> str:
        return f"{self.workload.name}, {self.contents.name}"


def plan(
    task: Task,
    limits: DeviceLimits,
    seed: int,
    largest_bytes: float = math.inf,
    only: str | None = None,
    source: str = "",
    unusable: Collection[tuple[str, int]] = (),
) -> list[Step]:
    """The steps of a verdict: drawn shapes (`drawn_steps`) and sizes that the candidate's `source` compares with
    (`source_size_steps`), in the order of new pairs for their cost; drawn contents and another seed on the smallest
    tuned workload; then all workloads for the kind of device that move at most `largest_bytes`. only: the workload of
    a candidate that is meant for it alone, which is checked on nothing else. unusable: made-up values of scalars
    (`made_up_scalars`, name and level) that are left out."""
    own = task.workloads_for(limits.kind)
    if only is not None:
        return _on_one(task, task.workload(only), seed)
    if not own:
        return []
    tuned = min([one for one in own if not one.held_out] or own, key=task.bytes_of)
    shapes = Shapes(task, limits, tuned, seed)
    steps = drawn_steps(shapes, unusable)
    whole = [one.name for one in task.arguments if ways_to_make_up(task, one) is WHOLE_SCALARS]
    levels = range(1, 1 + len(WHOLE_SCALARS))
    used = [name for name in whole if any((name, level) not in unusable for level in levels)]
    parts = [_by_gain(shapes, part) for part in (steps, source_size_steps(shapes, source, steps, used))]
    # In proportion, as the time may end before all of them.
    turns = sorted((at / len(part), which, at) for which, part in enumerate(parts) for at in range(len(part)))
    steps = first_steps(shapes) + [parts[which][at] for _, which, at in turns] + _on_one(task, tuned, seed)
    others = (one for one in sorted(own, key=task.bytes_of) if one != tuned and task.bytes_of(one) <= largest_bytes)
    steps += [Step(workload, Contents(seed=seed)) for workload in others]
    numbers = source_integers(source)[:MAX_SHORT_NUMBERS]
    return [replace(step, contents=replace(step.contents, numbers=numbers)) for step in steps]


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
        if array_bytes(task, smaller) < array_bytes(task, made) and allows(task, smaller):
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
        for argument in task.arrays:
            before, after = (array_bytes(task, one, (argument,)) for one in (workload, doubled))
            counts = argument.role != "in" or before >= EXTENT_SHARE * array_bytes(task, workload)
            if counts and 0 < EXTENT_GROWTH * before <= after < math.inf:
                found.add(name)
    return frozenset(found)


def _by_gain(shapes: Shapes, steps: Sequence[Step]) -> list[Step]:
    """`steps` in greedy order: next is the step that adds the most for its cost, pairs that no earlier step has and
    places. The gain of a step only shrinks, so that a queue with outdated gains suffices (Minoux, "Accelerated greedy
    algorithms for maximizing submodular set functions", 1978)."""
    pairs, places = [step.pairs for step in steps], [step.places for step in steps]
    costs = [1 + FULL_STEP_COST * shapes.share(step.workload) for step in steps]
    covered, visited = set[object](), set[object]()
    queue, order = [(-math.inf, at) for at in range(len(steps))], []
    while queue:
        gain, at = heapq.heappop(queue)
        now = -(len(pairs[at] - covered) + PLACE_GAIN * len(places[at] - visited)) / costs[at]
        if now > gain:
            heapq.heappush(queue, (now, at))
        else:
            covered |= pairs[at]
            visited |= places[at]
            order.append(steps[at])
    return order


def _on_one(task: Task, workload: Workload, seed: int) -> list[Step]:
    """The task's own contents in two seeds, and drawn ones."""
    rng, first = np.random.default_rng([seed, STEPS_ON_TUNED]), Contents(seed=seed, change="rows")
    drawn = [_contents(task, rng, seed, Decks(), workload.types) for _ in range(STEPS_ON_TUNED)]
    last = Contents(seed=seed + SECOND_SEED, change="few")
    return list({step.name: step for step in (Step(workload, one) for one in (first, *drawn, last))}.values())


def _contents(task: Task, rng: Rng, seed: int, decks: Decks, types: Types) -> Contents:
    """Drawn contents: in a quarter of the cases all arrays have one kind; else one has its own among others that show
    its effect: plain, of any kind, or mixed. Each combination of types meets the kinds in turn."""
    how, change, code, kind = rng.random(), _any_of(CHANGES, rng), tuple(types.values()), "task"
    arrays, of_each = {one.name: kinds_of(task, one) for one in task.inputs}, dict[str, str]()
    # Products of the least numbers with large ones of other arrays overflow, or a factor of one underflows.
    kinds = [one for one in kinds_of(task) if one != "lowest" or len(arrays) == 1]
    if len(arrays) < 2 or how < 0.25:
        kind = MIXED if how >= 1 - MIXED_SHARE else _in_turn(decks, code, kinds, rng)
    else:
        plain = how < 0.65
        for name, own in arrays.items():
            shows = [one for one in (PLAIN if plain else own) if one in kinds and one not in UNINFORMATIVE]
            beside = _in_turn(decks, (*code, name, str(plain)), shows, rng)
            of_each[name] = MIXED if how >= 1 - MIXED_SHARE else beside
        pairs = [(name, one) for name, own in arrays.items() for one in own if plain or one in kinds]
        of_each |= [_in_turn(decks, (*code, "", str(plain)), pairs, rng)]
    if (mated := [one.name for one in task.arguments if mate_of(task, one)]) and rng.random() < TIED_SHARE:
        of_each[_any_of(mated, rng)] = ALIKE
    return Contents(kind, seed, change, arrays=tuple(one for one in of_each.items() if one[1] != kind))


def _any_of(options: Sequence[Option], rng: Rng) -> Option:
    return options[int(rng.integers(len(options)))]


def _in_turn(decks: Decks, key: tuple[str, ...], options: Sequence[Option], rng: Rng) -> Option:
    """One of `options`, all of which come once for `key` before any comes again."""
    if not (places := decks.setdefault(key, [])):
        places.extend(rng.permutation(len(options)).tolist())
    return options[places.pop()]


def drawn_steps(shapes: Shapes, unusable: Collection[tuple[str, int]] = ()) -> list[Step]:
    """Steps on drawn sizes, types, contents and scalars: of `DRAWS_PER_STEP` times as many the `MAX_STEPS` that add the
    most pairs, one for each place of a size that none of them has, `LONG_STEPS` for each size that makes arrays long,
    and one for each type and array with a NaN: each type is stored by code of its own, which may lose it."""
    task, rng = shapes.task, np.random.default_rng([shapes.seed, 0])
    counts = {one.name: len(one.values or ways_to_make_up(task, one)) for one in task.arguments}
    levels = {name: [one for one in range(1 + count) if (name, one) not in unusable] for name, count in counts.items()}
    made, decks = dict[str, Step](), Decks()

    def add(types: Types, longest: str = "", fixed: Sizes | None = None, contents: Contents | None = None) -> None:
        if (sizes := shapes.drawn(rng, types, longest=longest, fixed=fixed)) is None:
            return
        workload = resized(shapes.like, sizes, types, "long" if longest else "drawn")
        contents = contents or _contents(task, rng, shapes.seed, decks, types)
        # Each scalar is its own in half of the steps, and where a NaN among the inputs must reach the results.
        changed = 0.0 if "nans" in contents.kinds else 0.5
        chosen = {name: _any_of(of, rng) if rng.random() < changed else 0 for name, of in levels.items()}
        contents = replace(contents, scalars=scalars_with(task, workload, chosen, shapes.seed))
        variants = [contents]
        most_results = _number(lambda: max(math.prod(task.shape_of(one, workload)) for one in task.outputs))
        if contents.kinds & UNINFORMATIVE and most_results <= MAX_UNINFORMATIVE_RESULTS:
            variants.append(Contents("task", shapes.seed, contents.change))
        for one in variants:
            step = Step(workload, one, derived=True)
            made.setdefault(step.name, step)

    for types in itertools.islice(itertools.cycle(shapes.types), DRAWS_PER_STEP * MAX_STEPS):
        add(types)
    chosen = _by_gain(shapes, list(made.values()))[:MAX_STEPS]
    made.clear()
    types_in_turn = itertools.cycle(shapes.types)
    for name, size in shapes.sizes_elsewhere(rng, {place for step in chosen for place in step.places}):
        add(next(types_in_turn), fixed={name: size})
    for name in sorted(shapes.extents) * LONG_STEPS:
        add(next(types_in_turn), name)
    arrays = [one for one in task.inputs if "nans" in kinds_of(task, one)]
    for types, one in itertools.product(shapes.types, arrays):
        # Beside infinities among the others' special values the plain kernel may lose a NaN, too.
        kinds = {other.name: "sorted" for other in arrays if other.fill.special} | {one.name: "nans"}
        add(types, contents=Contents("task", shapes.seed, _any_of(CHANGES, rng), arrays=tuple(kinds.items())))
    return chosen + list(made.values())


def first_steps(shapes: Shapes) -> list[Step]:
    """Steps on contents that show something: for each combination of types one in which all sizes are long, and one for
    each size that makes arrays long, as long as it may be beside another of a middle length, or else alone."""
    rng, types_in_turn = np.random.default_rng([shapes.seed, FIRST_SEED]), itertools.cycle(shapes.types)
    made = [(shapes.balanced(rng, types), types, "balanced") for types in shapes.types]
    for name in sorted(shapes.extents):
        types, others = next(types_in_turn), rng.permutation(sorted(shapes.extents - {name})).tolist()
        beside = [*({middle: int(2 ** rng.uniform(*MIDDLE_BITS))} for middle in others), {}]
        drawn = (shapes.drawn(rng, types, longest=name, fixed=fixed) for fixed in beside)
        made.append((next(filter(None, drawn), None), types, "uneven"))
    workloads = [resized(shapes.like, sizes, types, origin) for sizes, types, origin in made if sizes is not None]
    return [shapes.step(workload, turn) for turn, workload in enumerate(workloads)]


def reaching_steps(task: Task, limits: DeviceLimits, like: Workload, types: Sequence[Types], seed: int) -> list[Step]:
    """Derived steps to enter blocks that no launch has entered, as a row may have to exceed a parameter of the
    template: for each of the combinations of `types` `MAX_COVERAGE_STEPS` on further drawn sizes, each size in turn as
    long as the memory budget allows, and `MAX_NEIGHBOUR_STEPS` beside the task's own shapes."""
    shapes, found = Shapes(task, limits, like, seed), []
    for number, own in enumerate(types):
        rng, made = np.random.default_rng([seed, REACHING_SEED, number]), dict[str, Step]()
        for turn, name in zip(range(MAX_COVERAGE_STEPS), itertools.cycle(["", *sorted(shapes.extents)]), strict=False):
            if (sizes := shapes.drawn(rng, own, longest=name, roomy=1.0)) is not None:
                workload = resized(shapes.like, sizes, own, "drawn")
                made.setdefault(workload.name, shapes.step(workload, turn))
        found.append([*made.values(), *_near_steps(shapes, own)])
    return [step for turn in itertools.zip_longest(*found) for step in turn if step is not None]


def _near_steps(shapes: Shapes, types: Types) -> list[Step]:
    """The task's own shapes with each size in turn one more, the largest first: large arrays take own paths."""
    task, found = shapes.task, dict[str, Step]()
    for own in sorted(shapes.own, key=lambda one: array_bytes(task, one), reverse=True):
        for turn, (name, size) in enumerate(own.sizes.items()):
            workload = resized(own, own.sizes | {name: size + 1}, types, "near")
            if array_bytes(task, workload) <= MAX_NEIGHBOUR_BYTES[shapes.kind] and allows(task, workload):
                found.setdefault(workload.name, shapes.step(workload, turn))
    return list(found.values())[:MAX_NEIGHBOUR_STEPS]


def source_size_steps(
    shapes: Shapes, source: str, known: Collection[Step] = (), scalars: Sequence[str] = ()
) -> list[Step]:
    """Steps in which each size in turn is what `source` compares something with, its neighbours and a multiple, in each
    combination of types, and each of the whole-number `scalars` too; each scalar of a float type is what `source` names
    as one. Other sizes are drawn. known: steps that have some of these sizes already."""
    made: dict[str, Step] = {}

    def add(types: Types, turn: int, fixed: Sizes, *changed: tuple[str, float]) -> None:
        if (sizes := shapes.drawn(rng, types, fixed=fixed)) is not None:
            step = shapes.step(resized(shapes.like, sizes, types, "from the source"), turn)
            made.setdefault(step.name, replace(step, contents=replace(step.contents, scalars=changed)))

    met = {(one, tuple(step.workload.types.items())) for step in known for one in step.workload.sizes.items()}
    long, rng = [name for name in shapes.like.sizes if name in shapes.extents], np.random.default_rng([shapes.seed, 1])
    numbers = [number for number in source_integers(source) if number >= MIN_SOURCE_SIZE]
    numbers = list(filter(shapes.allow_long, numbers))[: MAX_SOURCE_SIZE_STEPS // max(1, 4 * len(long))]
    for number in numbers:
        beside = (number, number - 1, number + 1, number * int(rng.integers(2, MAX_MULTIPLE)))
        for turn, (name, value) in enumerate(itertools.product(long, beside)):
            for types in shapes.types:
                if ((name, value), tuple(types.items())) not in met:
                    add(types, turn, {name: value})
    short = [name for name in shapes.like.sizes if name not in shapes.extents]
    small = [number for number in source_integers(source) if number <= MAX_SHORT_SIZE][:MAX_SHORT_NUMBERS]
    values = [value for number in small for value in (number - 1, number, number + 1, 2 * number)]
    types_in_turn = itertools.cycle(shapes.types)
    for turn, (name, value) in enumerate(itertools.product(short, values)):
        add(next(types_in_turn), turn, {name: value})
    floats = [one.name for one in shapes.task.arguments if ways_to_make_up(shapes.task, one) is SCALARS]
    of_floats = [*source_floats(source), *map(float, small)][:MAX_SHORT_NUMBERS]
    for turn, changed in enumerate((*itertools.product(scalars, values), *itertools.product(floats, of_floats))):
        add(next(types_in_turn), turn, {}, changed)
    return list(made.values())


class Shapes:
    """The sizes that made-up workloads of a task may have on a kind of device. like: the workload whose sizes they
    vary; cheap, most: bytes and operations of a usual step, and of any, at least the need of the task's smallest
    workload; types: the combinations of types that the task declares and the backend knows."""

    def __init__(self, task: Task, limits: DeviceLimits, like: Workload, seed: int) -> None:
        self.task, self.kind, self.like, self.seed = task, limits.kind, like, seed
        self.own = task.workloads_for(limits.kind)
        self.extents = extents(task, self.own)
        self._costs: dict[tuple[object, ...], tuple[float, float]] = {}
        self._held: dict[tuple[object, ...], bool] = {}
        self._longest: dict[tuple[object, ...], int] = {}
        self._least: dict[tuple[str, ...], dict[str, int]] = {}
        self._decks = Decks()
        self._failed = self._found = 0
        self._required = [part for text in (*task.requires, *task.conditions) for part in conjuncts(text)]
        self._names = {text: sorted(parse(text).names & set(like.sizes)) for text in self._required}
        smallest = min(self.own, key=lambda one: array_bytes(task, one))
        operations = _number(lambda: task.flops_of(smallest))
        self.cheap = MAX_BYTES[limits.kind], MAX_FLOPS[limits.kind]
        self.most = max(self.cheap[0], array_bytes(task, smallest)), max(self.cheap[1], operations)
        self.types = _combined_types(task, limits, seed)

    def step(self, workload: Workload, turn: int) -> Step:
        """`workload` with the task's own contents."""
        return Step(workload, Contents("task", self.seed, CHANGES[turn % len(CHANGES)]), derived=True)

    def drawn(
        self, rng: Rng, types: Types, *, fixed: Sizes | None = None, longest: str = "", roomy: float | None = None
    ) -> dict[str, int] | None:
        """Drawn sizes that the task allows, within the limits of a usual step if possible; None where none was found.
        fixed: sizes that are given. longest: a size that is as long as `roomy` times the limits allow, or nearly so;
        if left out, `LONG_FACTOR`, beside a given size `BALANCED_FACTOR`, or more where the task's own need it."""
        factor = (BALANCED_FACTOR if longest and fixed else LONG_FACTOR[self.kind]) if roomy is None else roomy
        if self._failed > MAX_FAILED + 2 * self._found:
            return None
        usual = (self.cheap[0] * factor, self.cheap[1]) if longest else self.cheap
        if not longest and rng.random() < MOST_SHARE and self.most[0] <= factor * self.cheap[0]:
            usual = self.most  # a table that the task needs leaves room for the other arrays
        if longest and self._longest_within(usual, longest, types) < max(one.sizes[longest] for one in self.own):
            usual = max(usual[0], min(factor * self.most[0], MAX_LONG_BYTES[self.kind])), self.most[1]
        for limit in [usual] * ATTEMPTS + [self.most]:
            start = dict(fixed or {})
            if longest:
                most = self._longest_within(limit, longest, types, fixed)
                start[longest] = max(1, int(most * rng.uniform(0.75, 1)))
            if (sizes := self._drawn_within(limit, rng, types, start)) is not None:
                self._found += 1
                return sizes
        self._failed += 1
        return None

    def balanced(self, rng: Rng, types: Types) -> dict[str, int] | None:
        """Extents of about the same length, as long together as `BALANCED_FACTOR` allows, or equal powers of two; None
        where the task allows neither."""

        def sizes(length: int, most: float = 1.0) -> dict[str, int]:
            drawn = {name: int(length * rng.uniform(1, most)) for name in sorted(self.extents)}
            return {name: drawn.get(name, size) for name, size in self.like.sizes.items()}

        def fits(made: Mapping[str, int], least: float = -1.0) -> bool:
            moved, done = self._cost(made, types)
            return least <= moved <= BALANCED_FACTOR * self.cheap[0] and done <= self.most[1]

        length = next((1 << bits for bits in range(32) if not fits(sizes(2 << bits))), 1)
        tried = [*(sizes(length, 1.5) for _ in range(TRIES)), sizes(length)]
        allowed = (one for one in tried if all(self._holds(text, one, types) for text in self._required))
        return next((one for one in allowed if fits(one, least=1.0)), None)

    def sizes_elsewhere(self, rng: Rng, visited: Collection[object]) -> Iterator[tuple[str, int]]:
        """A drawn size in each place (see `Step.places`) of a size that may be long which is not `visited`."""
        for name in sorted(self.extents):
            longest = self._longest_within(self.cheap, name, self.like.types)
            for bits, exponent in itertools.product(range(1, longest.bit_length() + 1), range(SIZE_KINDS - 2)):
                power, least, most = 1 << exponent, 1 << (bits - 1), min(longest, (1 << bits) - 1)
                step = power if power == MAX_POWER else 2 * power  # an odd multiple of all powers but the largest
                first = power * max(1, -(-least // power))
                first += power if step != power and first // power % 2 == 0 else 0
                if (name, power, bits) not in visited and first <= most:
                    yield name, first + step * int(rng.integers((most - first) // step + 1))

    def _drawn_within(self, limit: Limit, rng: Rng, types: Types, start: dict[str, int]) -> dict[str, int] | None:
        """One size after the other: first the sizes that make no array long, then the others in a drawn order, each
        within what the sizes before it leave of `limit`."""
        smallest = self._smallest(types)
        order = [str(name) for name in rng.permutation(sorted(set(smallest) - set(start)))]
        sizes = dict(start)
        for name in sorted(order, key=lambda name: name in self.extents):
            most = self._longest_within(limit, name, types)
            # The first has the whole range, and its places are drawn apart from what the first leaves to others.
            first = name if self.extents.isdisjoint(sizes) else ""
            place = self._place(rng, first)
            known = {*sizes, name}
            decided = [text for text, names in self._names.items() if name in names and known.issuperset(names)]
            for attempt in range(TRIES):
                if attempt >= TRIES // 4:
                    place = self._place(rng, "")
                tied = attempt >= TRIES // 2
                size = self._proposed(rng, name, sizes, most, place, tied=tied)
                if attempt == 0 and name != first and name in self.extents and rng.random() < TIED_SHARE:
                    other = _any_of([sizes[one] for one in sizes if one in self.extents], rng)
                    size = _any_of([other, other, 2 * other, max(1, other // 2), math.prod(sizes.values())], rng)
                proposed = smallest | sizes | {name: size}
                if not all(self._holds(text, proposed, types) for text in decided):
                    continue
                moved, done = self._cost(proposed, types)
                if moved > limit[0] or done > limit[1]:
                    most = max(1, min(most, size - 1))
                else:
                    sizes[name] = size
                    break
            else:
                return None
        (moved, done), made = self._cost(sizes, types), {name: sizes[name] for name in smallest}
        fits = 0 <= moved <= limit[0] and 0 <= done <= limit[1]
        return made if fits and all(self._holds(text, made, types) for text in self._required) else None

    def _place(self, rng: Rng, name: str) -> tuple[int, float]:
        """The next kind of a size, of `SIZE_KINDS`, and its share of the logarithm of the range, of all combinations in
        a drawn order."""
        kind, part = divmod(_in_turn(self._decks, (name,), range(SIZE_KINDS * STRATA), rng), STRATA)
        return kind, (part + rng.random()) / STRATA

    def _proposed(self, rng: Rng, name: str, sizes: Sizes, most: int, place: tuple[int, float], *, tied: bool) -> int:
        """A value of a size up to `most`. place: see `_place`; tied: as a task may tie it to the other `sizes`, or one
        of the task's own."""
        kind, part = place
        like = self.like.sizes[name]
        if name not in self.extents:
            # Of a radius, the length of a filter or a number of steps work may grow where arrays do not.
            other = int(math.exp(rng.uniform(0, math.log(max(2 * like, min(8 * like, MAX_SHORT_SIZE))))))
            beside = [like, like, like, other, other, like // 2, like - 1, like + 1, 2 * like]
            return _any_of([one for one in beside if one >= 1], rng)
        if tied:
            own, times = [one.sizes[name] for one in self.own], int(rng.integers(1, 9))
            ratios = [like * size // self.like.sizes[other] for other, size in sizes.items()]
            others = [one for size in sizes.values() for one in (size, size * times, size // times)]
            halved = [like >> by for by in range(int(math.log2(like)) + 1)]
            return max(1, _any_of([*own, *ratios, *others, *halved], rng))
        if kind == SIZE_KINDS - 1:
            own = [one.sizes[name] for one in self.own]
            size = _any_of(own, rng) + int(rng.integers(-3, 4))
        elif kind == SIZE_KINDS - 2:
            size = (1 << int(part * most.bit_length())) + int(rng.integers(-1, 2))
        else:
            size = multiple_of(min(1 << kind, 1 << (most.bit_length() - 1)), most, part)
        return min(max(1, size), most)

    def _smallest(self, types: Types) -> dict[str, int]:
        """The least sizes that meet the requirements on each alone; a size that makes no array long is the task's
        own."""
        key = tuple(types.values())
        if key not in self._least:
            sizes = dict(self.like.sizes)
            for name in sorted(self.extents):
                alone = [text for text, names in self._names.items() if names == [name]]
                values = (value for value in range(1, min(sizes[name], MAX_SHORT_SIZE) + 1) if alone)
                fit = (one for one in values if all(self._holds(text, {**sizes, name: one}, types) for text in alone))
                sizes[name] = next(fit, sizes[name] if alone else 1)
            self._least[key] = sizes
        return self._least[key]

    def _longest_within(self, limit: Limit, name: str, types: Types, fixed: Sizes | None = None) -> int:
        """About the largest value of a size with which a workload keeps to `limit`, the other extents being as small as
        they may be, or `fixed`."""
        key = (name, limit, *types.values(), *(fixed or {}).items())
        if key not in self._longest:
            smallest = {**self._smallest(types), **(fixed or {})}

            def fits(size: int, *, known: bool = True) -> bool:
                moved, done = self._cost(smallest | {name: size}, types)
                return moved <= limit[0] and done <= limit[1] and not (known and min(moved, done) < 0)

            bound, most, known = MAX_ELEMENTS_PER_BYTE * limit[0], 1, False
            while 2 * most <= bound and fits(2 * most, known=known):
                most *= 2
                known = known or fits(most)  # from then on arrays that cannot be computed are too long
            low, high = most, 2 * most  # fits, and does not
            while high - low > max(1, low // 64):
                middle = (low + high) // 2
                low, high = (middle, high) if fits(middle) and middle <= bound else (low, middle)
            self._longest[key] = low
        return self._longest[key]

    def share(self, workload: Workload) -> float:
        """The cost of a workload as a share of a cheap one's limits; without `flops` as if a result took all inputs
        that do not grow."""
        moved, operations = self._cost(workload.sizes, workload.types)
        if not operations:
            grown = {name for one in self.task.outputs for text in one.shape for name in parse(text).names}
            alone = resized(workload, {**workload.sizes, **dict.fromkeys(grown & self.extents, 1)}, workload.types, "")
            read = [array_bytes(self.task, alone, (one,)) for one in self.task.arguments if one.role == "in"]
            operations = array_bytes(self.task, workload, self.task.outputs) * max(read, default=1)
        return max(moved / self.cheap[0], operations / self.cheap[1])

    def allow_long(self, number: int) -> bool:
        """Whether some extent may be `number` and one more where the others are 1."""
        longest = (self._longest_within(self.cheap, name, self.like.types) for name in self.extents)
        return number <= MAX_ELEMENTS_PER_BYTE * self.cheap[0] and any(length > number for length in longest)

    def _holds(self, requirement: str, sizes: Sizes, types: Types) -> bool:
        """Whether one of the task's requirements holds for made-up sizes."""
        key = (requirement, *(sizes[name] for name in self._names[requirement]), *types.values())
        if key not in self._held:
            self._held[key] = allows(self.task, resized(self.like, sizes, types, ""), requirement)
        return self._held[key]

    def _cost(self, sizes: Sizes, types: Types) -> tuple[float, float]:
        """Bytes and operations of made-up sizes, -1 where they have no value, as an array would be empty."""
        key = (*(sizes[name] for name in self.like.sizes), *types.values())
        if key not in self._costs:
            made = resized(self.like, sizes, types, "")
            moved = array_bytes(self.task, made, without=-1.0)
            self._costs[key] = moved, _number(lambda: self.task.flops_of(made), -1.0)
        return self._costs[key]


def _combined_types(task: Task, limits: DeviceLimits, seed: int) -> list[dict[str, str]]:
    """The combinations of types of the task's workloads, and up to `MAX_TYPES` of the others that it declares."""
    own = dict.fromkeys(tuple(workload.types.items()) for workload in task.workloads)
    declared = [tuple(zip(task.types, one, strict=True)) for one in itertools.product(*task.types.values())]
    others = [one for one in declared if dict(one) not in [dict(known) for known in own]]
    np.random.default_rng([seed, 2]).shuffle(others)
    known = {dtype for dtype, one in DTYPES.items() if limits.backend in one.c_names}
    every = [dict(one) for one in (*own, *others[: max(0, MAX_TYPES - len(own))])]
    return [types for types in every if set(types.values()) <= known]


def resized(like: Workload, sizes: Sizes, types: Types, origin: str) -> Workload:
    """`like` with made-up sizes and types, named after them and their `origin`."""
    name = " ".join(("x".join(map(str, sizes.values())), *types.values(), f"({origin})"))
    return like.model_copy(update={"sizes": dict(sizes), "types": dict(types), "name": name})


def allows(task: Task, workload: Workload, requirement: str | None = None) -> bool:
    """Whether all that a task requires, or one such text, holds for made-up sizes; False where it has no value."""
    return _number(lambda: task.allows(workload, requirement)) is True


def _number(compute: Callable[[], float], without: float = math.inf) -> float:
    """A property of a made-up workload; `without` where it has none, infinite where it is too large to be computed."""
    try:
        return compute()
    except TunesmithError:
        return without
    except OverflowError:
        return math.inf


def array_bytes(
    task: Task, workload: Workload, arguments: Sequence[Argument] | None = None, without: float = math.inf
) -> float:
    """Bytes of all arrays, or of those among `arguments`; `without` where one would be empty."""
    arrays = task.arrays if arguments is None else arguments

    def total() -> float:
        # A plan asks this thousands of times, and arrays have most of their extents in common.
        names, texts = workload.names, {text for one in arrays for text in one.shape}
        lengths = {text: parse(text).integer(names) for text in texts}
        if any(length <= 0 for length in lengths.values()):
            return without
        elements = [float(math.prod(lengths[text] for text in one.shape)) for one in arrays]
        return sum(n * DTYPES[task.dtype_of(one, workload)].size for n, one in zip(elements, arrays, strict=True))

    return _number(total, without)
