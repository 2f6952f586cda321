"""A readable rule over sizes and types: a decision tree of bounded depth that says which kernel serves a shape.

Pure arithmetic over measured ratios. A leaf names a kernel only where the measurements of its shapes allow it: shown
faster than the baseline on at least half of them, of which a test leaves two or more, and shown slower on none; every
other leaf is the baseline's, which can be one of a single shape. A type on which a kernel was never shown faster gets
the baseline instead of it.

Why not a library's tree: what counts is the time of the kernel that a leaf names, of a few, not how often it names the
fastest, and the condition above has to hold in every leaf; with some dozens of shapes all trees of two levels can be
tried, where the common trees look one level ahead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunesmith.graph.journal.records import Figures, Record
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.expression import parse
from tunesmith.kernels.spec.task import Workload

BASELINE = -1
"""Stands for the baseline where kernels are numbered."""
DEPTH = 2
"""Most tests on the way to a leaf, besides those that keep a kernel from rows and types it was not shown to serve. With
three, a greedy search and a penalty for kernels that are slow elsewhere, 15 of 800 choices on recorded shapes
(docs/results/h200-exports.json: four tasks; two thirds fitted, the others chosen for, twenty times) were slower than
the baseline by 2 %; with two and neither, 14 are, and all together take 0.4 % more time."""
LEAF = 2
"""Fewest shapes of a leaf that a test made and that names a kernel: one shape alone tells little of a kernel, but the
baseline is never slower than itself."""
GAIN = 0.005
"""What a test must save, as a share of the time of the shapes that reach it."""
FOLDS = 5
"""Parts of the cross-validation that chooses the depth."""
THRESHOLDS = 32
"""Most thresholds of a quantity that are tried, evenly among the shapes."""
DIVISORS = (2, 4, 8, 16)
"""Vectors of so many elements; a size that they do not divide takes the slower path."""

VECTOR = 8
"""The widest vector of the library's templates and of those by rules, in elements."""

Array = NDArray[np.float64]


class Rule(Record):
    """A node of the tree. test: an expression over sizes and types (docs/tasks.md), with the rules for where it
    holds and where it does not; empty in a leaf, where `use` is the number of a kernel, or -1 for the baseline.
    shapes: how many of the fitted ones come here."""

    test: str = ""
    yes: Rule | None = None
    no: Rule | None = None
    use: int = BASELINE
    shapes: int = 0

    def kernel(self, workload: Workload) -> int:
        """The kernel for a shape, by its number, or -1 for the baseline."""
        node = self
        while node.test and node.yes is not None and node.no is not None:
            node = node.yes if bool(parse(node.test).evaluate(workload.names)) else node.no
        return node.use

    def lines(self, names: Mapping[int, str], indent: str = "") -> list[str]:
        """The rule as text for people. names: of the kernels, -1 included."""
        if self.yes is None or self.no is None:
            return [f"{indent}{names[self.use]}"]
        return [
            f"{indent}if {self.test}:",
            *self.yes.lines(names, indent + "    "),
            f"{indent}else:",
            *self.no.lines(names, indent + "    "),
        ]

    def used(self) -> set[int]:
        """The kernels that some leaf names."""
        if self.yes is None or self.no is None:
            return {self.use}
        return self.yes.used() | self.no.used()


@dataclass(frozen=True, slots=True)
class Seen:
    """A shape with what was measured there: figures against the baseline by kernel. A kernel that is missing cannot be
    launched on the shape."""

    workload: Workload
    figures: Mapping[int, Figures]

    def ratio(self, kernel: int) -> float:
        """Time over the baseline's time; that of the baseline where the kernel cannot be launched."""
        found = self.figures.get(kernel)
        return 1.0 if found is None else found.ratio


def fit_rule(seen: Sequence[Seen], kernels: int, rows: Sequence[str] = ()) -> Rule:
    """The rule for `seen`. kernels: how many there are, numbered from 0; rows: sizes along which arrays are read, which
    vectors divide or not.

    The depth is the least one whose cross-validated time is within `GAIN` of the least time that any depth reaches.
    A leaf whose shapes are all divided by vectors says nothing of shapes that are not, which take other paths through
    a kernel, nor the other way round: those get what serves all measured shapes of their sort, and the baseline where
    none was measured.
    """
    if not seen:
        return Rule()
    fitting = _Fitting(seen, kernels)
    losses = [_validated(seen, fitting, depth) for depth in range(DEPTH + 1)]
    depth = next(depth for depth, loss in enumerate(losses) if loss <= min(losses) + GAIN)
    everywhere = np.ones(len(seen))
    rule = fitting.rule(everywhere, depth)
    for name in rows:
        rule = _parted(rule, name, seen, fitting, everywhere)
    return rule


def for_types(rule: Rule, seen: Sequence[Seen], types: Sequence[Workload]) -> Rule:
    """`rule`, in which a leaf keeps its kernel only for types on which that was shown faster: on at least half of the
    leaf's shapes of these types, or on some shape of `seen` where the leaf has none of them. Others get the baseline.
    types: a workload for each combination of types."""
    return _for_types(rule, seen, seen, types)


def _for_types(rule: Rule, here: Sequence[Seen], seen: Sequence[Seen], types: Sequence[Workload]) -> Rule:
    """here: the shapes of `seen` that come to `rule`, as those of `types` may."""
    if rule.yes is not None and rule.no is not None:
        test, branches = parse(rule.test), []
        by_type = all(test.names <= one.types.keys() | DTYPES.keys() for one in types)
        for branch, holds in ((rule.yes, True), (rule.no, False)):
            coming = [one for one in here if bool(test.evaluate(one.workload.names)) == holds]
            left = [one for one in types if not by_type or bool(test.evaluate(one.names)) == holds]
            branches.append(_for_types(branch, coming, seen, left))
        yes, no = branches
        if yes == Rule(shapes=yes.shapes) and no == Rule(shapes=no.shapes):
            return Rule(shapes=rule.shapes)
        return rule.model_copy(update={"yes": yes, "no": no})
    if rule.use == BASELINE:
        return rule
    refused = []
    for model in types:
        own, everywhere = ([one for one in of if one.workload.types == model.types] for of in (here, seen))
        figures = [one.figures.get(rule.use) for one in own or everywhere]
        faster = sum(one is not None and one.verdict == "faster" for one in figures)
        if not faster or 2 * faster < len(own):
            refused.append((model.types, len(own)))
    if len(refused) == len(types):
        return Rule(shapes=rule.shapes)
    for names, count in refused:
        test_of = " and ".join(f"{name} == {dtype}" for name, dtype in names.items())
        rule = Rule(test=test_of, yes=Rule(shapes=count), no=rule, shapes=rule.shapes)
    return rule


def _parted(rule: Rule, name: str, seen: Sequence[Seen], fitting: _Fitting, here: Array) -> Rule:
    """`rule`, for the shapes that are 1 in `here`, in which a leaf that has only shapes divided by vectors along
    `name`, or only others, is asked for no other shapes."""
    divided = np.array([one.workload.sizes[name] % VECTOR == 0 for one in seen], dtype=np.float64)
    if rule.yes is not None and rule.no is not None:
        test = np.array([bool(parse(rule.test).evaluate(one.workload.names)) for one in seen], dtype=np.float64)
        wider = {f"{name} % {divisor} == 0" for divisor in DIVISORS if divisor % VECTOR == 0}
        # What is a multiple of more than a vector is one of a vector: there is nothing to tell apart.
        yes = rule.yes if rule.test in wider else _parted(rule.yes, name, seen, fitting, here * test)
        return rule.model_copy(update={"yes": yes, "no": _parted(rule.no, name, seen, fitting, here * (1 - test))})
    there = 1 - divided if (here * divided).sum() == here.sum() else divided
    if rule.use == BASELINE or (here * there).sum() > 0:
        return rule
    others = fitting.rule(there, 0).model_copy(update={"shapes": 0}) if there.any() else Rule()
    if others.use == rule.use:
        return rule
    yes, no = (others, rule) if there is divided else (rule, others)
    return Rule(test=f"{name} % {VECTOR} == 0", yes=yes, no=no, shapes=rule.shapes)


def _validated(seen: Sequence[Seen], fitting: _Fitting, depth: int) -> float:
    """Mean logarithm of time over baseline on shapes that the fitting did not see."""
    folds = min(FOLDS, len(seen))
    if folds < 2:
        return 0.0
    losses = []
    for fold in range(folds):
        rule = fitting.rule((np.arange(len(seen)) % folds != fold).astype(np.float64), depth)
        losses += [math.log(one.ratio(rule.kernel(one.workload))) for one in seen[fold::folds]]
    return sum(losses) / len(losses)


class _Fitting:
    """_columns: costs, and where a kernel is shown slower and faster, with a row for each shape and a column for each
    kernel, the baseline last; tests: a row for each test, a column for each shape, 1 where it holds."""

    def __init__(self, seen: Sequence[Seen], kernels: int) -> None:
        columns = [*range(kernels), BASELINE]
        figures = [[one.figures.get(kernel) for kernel in columns] for one in seen]
        costs = np.array([[math.log(one.ratio(kernel)) for kernel in columns] for one in seen])
        shown = [
            np.array([[float(one is not None and one.verdict == verdict) for one in row] for row in figures])
            for verdict in ("slower", "faster")
        ]
        self._columns = (costs, *shown)
        self.texts, self.tests = _tests([one.workload for one in seen], [_shown(one) for one in seen])

    def rule(self, here: Array, depth: int) -> Rule:
        """The best rule for the shapes that are 1 in `here`, with at most `depth` tests on each path."""
        return self._best(here, depth)[1]

    def _best(self, here: Array, depth: int) -> tuple[float, Rule]:
        """That rule, after its cost: all trees are tried."""
        costs, uses = self._leaves(here[None, :])
        leaf = Rule(use=int(uses[0]), shapes=int(here.sum()))
        if depth == 0 or len(self.texts) == 0:
            return costs[0], leaf
        yes, no = self.tests * here, (1 - self.tests) * here
        if depth == 1:
            losses = self._leaves(yes)[0] + self._leaves(no)[0]
        else:
            losses = np.array(
                [
                    self._best(one, depth - 1)[0] + self._best(other, depth - 1)[0]
                    if one.any() and other.any()
                    else 0.0
                    for one, other in zip(yes, no, strict=True)
                ]
            )
        losses[~(yes.any(axis=1) & no.any(axis=1))] = math.inf
        best = int(np.argmin(losses))
        if losses[best] > costs[0] - GAIN * here.sum():
            return costs[0], leaf
        holds, fails = (self._best(part[best], depth - 1)[1] for part in (yes, no))
        if not holds.test and not fails.test and holds.use == fails.use:
            return costs[0], leaf
        return losses[best], Rule(test=self.texts[best], yes=holds, no=fails, shapes=leaf.shapes)

    def _leaves(self, masks: Array) -> tuple[Array, NDArray[np.int64]]:
        """For each mask, a row of 1 for its shapes, the cost of the best kernel that may be used there, and its
        number."""
        costs, slower, faster = (masks @ one for one in self._columns)
        sizes = masks.sum(axis=1)[:, None]
        # The counts are whole, but for rounding.
        enough = sizes > min(LEAF, masks.shape[1]) - 0.5
        allowed = (slower < 0.5) & (2 * faster > sizes - 0.5) & enough
        allowed[:, -1] = True
        allowed_costs = np.where(allowed, costs, math.inf)
        use = np.argmin(allowed_costs, axis=1)
        return allowed_costs.min(axis=1), np.where(use == costs.shape[1] - 1, BASELINE, use)


def _shown(seen: Seen) -> tuple[Any, ...]:
    """What is shown of the kernels on a shape: the verdicts, and which of them is the fastest."""
    fastest = min([BASELINE, *seen.figures], key=seen.ratio)
    return fastest, *((kernel, one.verdict) for kernel, one in sorted(seen.figures.items()))


def _tests(workloads: Sequence[Workload], kinds: Sequence[tuple[Any, ...]]) -> tuple[list[str], Array]:
    """Tests that tell some of the shapes from others, simple ones first; of those that part them alike, the first.
    kinds: what is shown on each shape."""
    values: dict[str, NDArray[Any]] = {
        name: np.array([one.sizes[name] for one in workloads]) for name in workloads[0].sizes
    }
    names = [name for name, sizes in values.items() if len(set(sizes.tolist())) > 1]
    texts = []
    for quantity in [*names, *([" * ".join(names)] if len(names) > 1 else [])]:
        quantities = parse(quantity).evaluate(values).tolist()
        found = sorted(set(quantities))
        # Only where what is shown of the kernels changes: a threshold between shapes that are alike parts no better.
        shown = [{kind for kind, value in zip(kinds, quantities, strict=True) if value == one} for one in found]
        gaps = [gap for gap, (one, two) in zip(pairwise(found), pairwise(shown), strict=True) if len(one | two) > 1]
        if not gaps:
            continue
        chosen = sorted({round(at) for at in np.linspace(0, len(gaps) - 1, min(THRESHOLDS, len(gaps)))})
        texts += [f"{quantity} <= {_between(*gaps[at])}" for at in chosen]
    texts += [f"{name} % {divisor} == 0" for name in names for divisor in DIVISORS]
    for name in workloads[0].types:
        values[name] = np.array([one.types[name] for one in workloads])
        texts += [f"{name} == {dtype}" for dtype in sorted(set(values[name].tolist()))]
    kept: dict[bytes, tuple[str, NDArray[Any]]] = {}
    for text in texts:
        holds = parse(text).evaluate({**{dtype: dtype for dtype in DTYPES}, **values})
        if 0 < holds.sum() < len(holds):
            # A test and its opposite part the shapes alike.
            kept.setdefault((holds == holds[0]).tobytes(), (text, holds))
    tests = np.array([holds for _, holds in kept.values()], dtype=np.float64)
    return [text for text, _ in kept.values()], tests.reshape(len(kept), len(workloads))


def _between(low: int, high: int) -> int:
    """A threshold t, low <= t < high, near their geometric mean: a power of two, where one lies between them."""
    middle = math.sqrt(low * high)
    powers = [1 << bits for bits in range(low.bit_length() - 1, high.bit_length()) if low <= 1 << bits < high]
    if powers:
        return min(powers, key=lambda power: abs(math.log(power / middle)))
    return max(low, min(math.floor(middle), high - 1))
