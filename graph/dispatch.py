"""Which kernel serves which shape: a decision tree of bounded depth over sizes and types.

Owns the shapes drawn from the ranges of a task's workloads, the measurements of the winners on them, the rule that is
fitted to one half of these, and its test on the other half. The files that a rule is exported to belong to `results`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tunesmith.actors.judging.task_check import check_reference
from tunesmith.graph.context import Context, baseline_request
from tunesmith.graph.history import known_shapes
from tunesmith.graph.journal.events import ShapeCompared
from tunesmith.graph.journal.records import Disqualified, Figures, FinalistResult, ResultRecord, Verdict, Winner
from tunesmith.graph.progress import Progress
from tunesmith.graph.roles.tester import disqualified, examine_everywhere, finalist_results, requests_for
from tunesmith.graph.setup import pools
from tunesmith.kernels.build.artifact import EvaluationRequest, types_key
from tunesmith.kernels.measure.bench import WorkloadComparison
from tunesmith.kernels.measure.timing import Comparison
from tunesmith.kernels.outcome import describe
from tunesmith.kernels.space import rules
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.expression import ExpressionError, parse
from tunesmith.kernels.spec.task import Task, TaskError, Workload
from tunesmith.kernels.spec.template import Template, config_key

BASELINE = -1
"""Stands for the baseline where kernels are numbered."""
DEPTH = 2
"""Maximum number of tests on the way to a leaf, besides the tests that keep a kernel from rows and types it was not
shown to serve. With three, a greedy search and a penalty for kernels that are slow elsewhere, 15 of 800 choices on
recorded shapes (docs/results/h200-exports.json, cross-validated) were slower than the baseline by 2 %; with two and
neither, 14 are, and all together take 0.4 % more time."""
LEAF = 2
"""Minimum number of shapes of a leaf that names a kernel: one shape alone says little of a kernel, but the baseline is
never slower than itself."""
GAIN = 0.005
"""Minimum saving of a test, as a share of the time of the shapes that reach it."""
FOLDS = 5
"""Parts of the cross-validation that chooses the depth."""
THRESHOLDS = 32
"""Maximum number of thresholds of a quantity that are tried, evenly among the shapes."""
DIVISORS = (2, 4, 8, 16)
"""Vector widths in elements; a size that they do not divide takes the slower path."""

VECTOR = 8
"""The widest vector of the library's templates and of those by rules, in elements."""

Array = NDArray[np.float64]


class DispatchRule(ResultRecord):
    """A node of the tree. test: an expression over sizes and types (docs/tasks.md), with the rules for where it holds
    and where it does not; empty in a leaf, where `use` is the number of a kernel, or -1 for the baseline. shapes:
    number of fitted shapes that reach it."""

    test: str = ""
    yes: DispatchRule | None = None
    no: DispatchRule | None = None
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
    """A shape with the figures of kernels against the baseline there. A kernel that is missing cannot be launched on
    the shape."""

    workload: Workload
    figures: Mapping[int, Figures]

    def ratio(self, kernel: int) -> float:
        """Time over the baseline's time; that of the baseline where the kernel cannot be launched."""
        figures = self.figures.get(kernel)
        return 1.0 if figures is None else figures.ratio

    @property
    def fastest(self) -> int:
        """The fastest kernel there, the baseline included."""
        return min([BASELINE, *self.figures], key=self.ratio)


def fit_rule(seen: Sequence[Seen], kernels: int, rows: Sequence[str] = ()) -> DispatchRule:
    """The rule for `seen`. kernels: how many there are, numbered from 0; rows: sizes along which arrays are read, which
    vectors divide or not.

    The depth is the least one whose cross-validated time is within `GAIN` of the least time that any depth reaches.
    A leaf whose shapes are all divided by vectors says nothing of shapes that are not, which take other paths through
    a kernel, nor the other way round: those get what serves all measured shapes of their sort, and the baseline where
    none was measured.
    """
    if not seen:
        return DispatchRule()
    fitting = _Fitting(seen, kernels)
    losses = [_validated(seen, fitting, depth) for depth in range(DEPTH + 1)]
    depth = next(depth for depth, loss in enumerate(losses) if loss <= min(losses) + GAIN)
    everywhere = np.ones(len(seen))
    rule = fitting.rule(everywhere, depth)
    for name in rows:
        rule = _parted(rule, name, seen, fitting, everywhere)
    return rule


def for_types(
    rule: DispatchRule, seen: Sequence[Seen], types: Sequence[Workload], here: Sequence[Seen] | None = None
) -> DispatchRule:
    """`rule`, in which a leaf keeps its kernel only for types on which that was shown faster: on at least half of the
    leaf's shapes of these types, or on some shape of `seen` where the leaf has none. Others get the baseline. types: a
    workload for each combination of types; here: the shapes of `seen` that reach `rule`, all if left out."""
    here = seen if here is None else here
    if rule.yes is not None and rule.no is not None:
        test, branches = parse(rule.test), []
        by_type = all(test.names <= one.types.keys() | DTYPES.keys() for one in types)
        for branch, holds in ((rule.yes, True), (rule.no, False)):
            coming = [one for one in here if bool(test.evaluate(one.workload.names)) == holds]
            left = [one for one in types if not by_type or bool(test.evaluate(one.names)) == holds]
            branches.append(for_types(branch, seen, left, coming))
        yes, no = branches
        if yes == DispatchRule(shapes=yes.shapes) and no == DispatchRule(shapes=no.shapes):
            return DispatchRule(shapes=rule.shapes)
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
        return DispatchRule(shapes=rule.shapes)
    for names, count in refused:
        test_of = " and ".join(f"{name} == {dtype}" for name, dtype in names.items())
        rule = DispatchRule(test=test_of, yes=DispatchRule(shapes=count), no=rule, shapes=rule.shapes)
    return rule


def _parted(rule: DispatchRule, name: str, seen: Sequence[Seen], fitting: _Fitting, here: Array) -> DispatchRule:
    """`rule`, for the shapes that are 1 in `here`, in which a leaf that was fitted only to shapes divided by vectors
    along `name`, or only to others, serves no other shapes."""
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
    others = fitting.rule(there, 0).model_copy(update={"shapes": 0}) if there.any() else DispatchRule()
    if others.use == rule.use:
        return rule
    yes, no = (others, rule) if there is divided else (rule, others)
    return DispatchRule(test=f"{name} % {VECTOR} == 0", yes=yes, no=no, shapes=rule.shapes)


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
    """_columns: costs, and where a kernel is shown slower and faster, a row for each shape and a column for each
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
        self.texts, self.tests = _tests(seen)

    def rule(self, here: Array, depth: int) -> DispatchRule:
        """The best rule for the shapes that are 1 in `here`, with at most `depth` tests on each path."""
        return self._best(here, depth)[1]

    def _best(self, here: Array, depth: int) -> tuple[float, DispatchRule]:
        """Its cost and the rule: all trees are tried."""
        costs, uses = self._leaves(here[None, :])
        leaf = DispatchRule(use=int(uses[0]), shapes=int(here.sum()))
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
        return losses[best], DispatchRule(test=self.texts[best], yes=holds, no=fails, shapes=leaf.shapes)

    def _leaves(self, masks: Array) -> tuple[Array, NDArray[np.int64]]:
        """For each mask, a row of 1 for its shapes: the cost and number of the best kernel that may be used there."""
        costs, slower, faster = (masks @ one for one in self._columns)
        sizes = masks.sum(axis=1)[:, None]
        # The counts are whole, but for rounding.
        enough = sizes > min(LEAF, masks.shape[1]) - 0.5
        allowed = (slower < 0.5) & (2 * faster > sizes - 0.5) & enough
        allowed[:, -1] = True
        allowed_costs = np.where(allowed, costs, math.inf)
        use = np.argmin(allowed_costs, axis=1)
        return allowed_costs.min(axis=1), np.where(use == costs.shape[1] - 1, BASELINE, use)


def _tests(seen: Sequence[Seen]) -> tuple[list[str], Array]:
    """Tests that separate some of the shapes from others, simple ones first; of several with the same split, the
    first."""
    workloads = [one.workload for one in seen]
    # The verdicts of the kernels on each shape, and the fastest kernel there.
    kinds = [
        (one.fastest, *((kernel, figures.verdict) for kernel, figures in sorted(one.figures.items()))) for one in seen
    ]
    values: dict[str, NDArray[Any]] = {
        name: np.array([one.sizes[name] for one in workloads]) for name in workloads[0].sizes
    }
    names = [name for name, sizes in values.items() if len(set(sizes.tolist())) > 1]
    texts = []
    for quantity in [*names, *([" * ".join(names)] if len(names) > 1 else [])]:
        quantities = parse(quantity).evaluate(values).tolist()
        found = sorted(set(quantities))
        # Only where the verdicts or the fastest kernel change: a threshold between equal shapes separates nothing.
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


MAX_ALIGNMENT = 256
"""The largest power of two of which a drawn size is made a multiple."""
MAX_DRAWS = 200
"""Draws for one shape, as some repeat each other or do not fit."""
SHAPE_SEED = 11_000_003
"""Added to the run's seed."""

ShapeKey = tuple[tuple[tuple[str, int], ...], tuple[tuple[str, str], ...]]


def draw_shapes(
    task: Task, kind: str, count: int, *, seed: int, fits: Callable[[Workload], bool] = lambda _: True
) -> tuple[Workload, ...]:
    """At most `count` different workloads for a `kind` of device ("gpu" or "cpu"), none of them one of the task's;
    fewer where the ranges hold no more.

    The same arguments give the same workloads, and a larger count the same ones first. The types change after two
    shapes, so that every second shape has all of them in turn. fits: whether the baseline can be launched on a shape.
    """
    own = [*task.workloads_for(kind, held_out=False), *task.workloads_for(kind, held_out=True)]
    known = {shape_key(workload) for workload in own}
    models = list({types_key(one): one for one in own}.values())
    random = np.random.default_rng(seed + SHAPE_SEED)
    found: list[Workload] = []
    while len(found) < count and models:
        model = models[len(found) // 2 % len(models)]
        most = max(task.bytes_of(one.model_copy(update={"types": model.types})) for one in own)
        for _ in range(MAX_DRAWS):
            sizes = {name: _draw(random, [one.sizes[name] for one in own]) for name in model.sizes}
            name = "drawn-" + "-".join(["x".join(map(str, sizes.values())), *model.types.values()])
            shape = Workload(name=name, sizes=sizes, types=model.types, held_out=True, devices=model.devices)
            if shape_key(shape) not in known and _can_be(task, shape, most) and fits(shape):
                known.add(shape_key(shape))
                found.append(shape)
                break
        else:
            # Nothing is left of these types.
            models.remove(model)
    return tuple(found)


def shapes_of_others(
    task: Task, kind: str, found: Iterable[tuple[dict[str, int], dict[str, str]]]
) -> tuple[Workload, ...]:
    """Sizes and types of other runs as workloads of the task for a `kind` of device, each once: without shapes that
    cannot be launched and the task's own."""
    own = [*task.workloads_for(kind, held_out=False), *task.workloads_for(kind, held_out=True)]
    known, kept, model = {shape_key(workload) for workload in own}, [], own[0]
    for sizes, types in found:
        fits = sizes.keys() == model.sizes.keys() and types.keys() == model.types.keys()
        if not fits or any(dtype not in task.types[name] for name, dtype in types.items()):
            continue
        name = "known-" + "-".join(["x".join(map(str, sizes.values())), *types.values()])
        shape = Workload(name=name, sizes=sizes, types=types, held_out=True, devices=model.devices)
        if shape_key(shape) not in known and _can_be(task, shape, math.inf):
            known.add(shape_key(shape))
            kept.append(shape)
    return tuple(kept)


def _draw(random: np.random.Generator, sizes: list[int]) -> int:
    """A size within the range of `sizes`, with the alignment of one of them."""
    low, high = min(sizes), max(sizes)
    like = sizes[int(random.integers(len(sizes)))]
    step = min(like & -like, MAX_ALIGNMENT)
    drawn = math.exp(random.uniform(math.log(low), math.log(high)))
    return min(max(round(drawn / step) * step, math.ceil(low / step) * step), high)


def _can_be(task: Task, shape: Workload, most: float) -> bool:
    try:
        for argument in task.arguments:
            if argument.role == "scalar":
                task.scalar_of(argument, shape)
            else:
                task.shape_of(argument, shape)
        return task.allows(shape) and 0 < task.bytes_of(shape) <= most
    except TaskError:
        # Such as a dimension of one less than a size, or a scalar that its type does not hold.
        return False


def shape_key(workload: Workload) -> ShapeKey:
    """The identity of a shape: sizes and types, whatever the workload is called."""
    return tuple(sorted(workload.sizes.items())), tuple(sorted(workload.types.items()))


MAX_KERNELS = 6
"""Kernels of a rule, the baseline apart: each costs time on each shape, and machine code in each export."""
MAX_KNOWN_SHAPES = 16
"""Shapes of earlier runs that a rule is fitted to, beside the drawn ones."""
ROUNDS, SECONDS = 20, 0.25
"""At most so many rounds, and seconds of sampling for each kernel, on each shape."""
CONTENTS_SEED = 13_000_007
"""Added to the run's seed for the contents."""


def kernels_of(verdict: Verdict) -> list[Winner]:
    """The kernels for a rule: the general configuration, then the best for single workloads, the largest gain first."""
    found = [verdict.general] if verdict.general is not None else []
    found += [
        Winner(template=row.template, config=row.config) for row in sorted(verdict.dispatch, key=lambda row: row.ratio)
    ]
    return list({winner_key(one): one for one in found}.values())[:MAX_KERNELS]


def winner_key(winner: Winner | FinalistResult | Disqualified) -> tuple[str, str]:
    """The identity of a kernel: template id, and configuration as text."""
    return winner.template, config_key(winner.config)


def can_launch(context: Context, template: Template, workload: Workload, winner: Winner | None = None) -> bool:
    """Whether constraints and limits admit a kernel on a shape. winner: left out, the template's only point."""
    config = {} if winner is None else winner.config
    try:
        return all(rule.holds(config) for limits in context.limits for rule in rules(template, [workload], limits))
    except ExpressionError:
        # A constraint without a value on this shape, such as a division by zero, admits nothing.
        return False


def measure_further_shapes(context: Context) -> None:
    """Measures the winners of the run on `dispatch_shapes` shapes drawn from the task's ranges, and on shapes for which
    earlier runs found a faster kernel, with a pool whose task has them. Ends the pool of `context`."""
    task, settings, kind = context.task, context.settings, context.device.limits.kind
    verdict = context.log.verdict()
    if verdict is None or not (kernels := kernels_of(verdict)):
        return
    launchable = partial(can_launch, context, context.sources.baseline.template)
    drawn = draw_shapes(task, kind, settings.dispatch_shapes, seed=settings.seed, fits=launchable)
    if len(drawn) < settings.dispatch_shapes:
        context.note("dispatch", f"The ranges of the task's sizes hold only {len(drawn)} further shapes.", "")
    keys = {shape_key(one) for one in drawn}
    others = shapes_of_others(task, kind, known_shapes(context))
    known = [one for one in others if shape_key(one) not in keys and launchable(one)][:MAX_KNOWN_SHAPES]
    examine_everywhere(context, kernels)
    context.close()
    wider = task.model_copy(update={"workloads": (*task.workloads, *known, *drawn)})
    check_reference(wider, [*known, *drawn], seed=settings.seed, deadline=settings.reference_deadline)
    with pools(wider, context.device, settings, [], context.listener, context.seconds_left) as make_pool:
        measuring = replace(context, task=wider, make_pool=make_pool, models=None)
        try:
            measure_shapes(measuring, kernels, [*context.tuned, *context.held_out, *known, *drawn[::2]], drawn[1::2])
        finally:
            measuring.close()


def measure_shapes(
    context: Context, kernels: Sequence[Winner], fit: Sequence[Workload], test: Sequence[Workload]
) -> None:
    """Compares `kernels` with the baseline on the shapes of `fit`, to which a rule is fitted, and of `test`, on which
    it is tried, unless the journal has it, by whatever name. The context's task must have these workloads."""
    known = {shape_key(event.workload): event for event in context.log.events(ShapeCompared)}
    shapes = [(one, True) for one in fit] + [(one, False) for one in test]
    for number, (workload, fitted) in enumerate(shapes, 1):
        entrants = [one for one in kernels if can_launch(context, context.template(one.template), workload, one)]
        before = known.get(shape_key(workload))
        if before is not None and {*map(winner_key, entrants)} <= {*map(winner_key, before.entries)}:
            continue
        if context.seconds_left() <= 0:
            left = len(shapes) - number + 1
            context.note("dispatch", f"The time limit left no time for {left} of {len(shapes)} shapes.", "")
            return
        context.listener(Progress("dispatch", f"shape {number} of {len(shapes)}: {workload.name}"))
        finalists = [(one.template, one.config) for one in entrants]
        found = _compare(context, workload, requests_for(context, finalists, workload))
        if not any(isinstance(result, Comparison) for result in found.results):
            # Either all are wrong here, or the baseline or the shape is at fault: the baseline against itself tells.
            control = EvaluationRequest(1, context.sources.baseline.template, {}, (workload.name,))
            if not isinstance(_compare(context, workload, [control]).results[0], Comparison):
                sentence = f"The baseline could not be measured on {workload.name}, which tells nothing on dispatch."
                context.note("dispatch", sentence, "")
                finalists, found = [], replace(found, results=(), codes=(), energies=())
        entries = finalist_results(finalists, found)
        event = ShapeCompared(workload=workload, fitted=fitted, entries=entries, compiler=found.compiler)
        context.journal.append(event)


def _compare(context: Context, workload: Workload, requests: Sequence[EvaluationRequest]) -> WorkloadComparison:
    return context.pool.compare(
        baseline_request(context, [workload]),
        requests,
        workload.name,
        seed=context.settings.seed + CONTENTS_SEED,
        rounds=ROUNDS,
        budget_seconds=SECONDS,
    )


PolicyName = Literal["rule", "general", "table", "oracle"]


class Policy(ResultRecord):
    """A way to choose a kernel, on the test's shapes. regret: time over the fastest kernel's there, the baseline
    included, less 1; ratio: geometric mean of time over baseline; slower: number of shapes on which its choice was
    shown slower than the baseline.

    rule: the fitted rule; general: the general configuration wherever it can be launched; table: the default of an
    exact table of the measured shapes, the general configuration if it is shown slower on none and faster on some, else
    the baseline; oracle: the fastest kernel.
    """

    policy: PolicyName
    median_regret: float
    worst_regret: float
    worst_shape: str
    ratio: float
    slower: int


class Dispatching(ResultRecord):
    """The choice of a kernel by shape. kernels: by the rule's numbers; rule: the exported one, `lines` as text; fitted,
    tested: numbers of shapes; policies: the results on the tested shapes; excluded: kernels that failed on a shape,
    which the rule never uses; lost: the lines of the fitted rule where it lost to the general configuration on the
    tested shapes, which is then exported for the types on which it gains."""

    kernels: tuple[Winner, ...]
    rule: DispatchRule
    lines: tuple[str, ...]
    fitted: int
    tested: int
    policies: tuple[Policy, ...] = ()
    excluded: tuple[Disqualified, ...] = ()
    lost: tuple[str, ...] = ()


def dispatching(context: Context, verdict: Verdict) -> Dispatching | None:
    """The rule by the journal's measurements; None where nothing right was found.

    Without drawn shapes (`dispatch_shapes`) the rule is fitted to the general configuration on the task's workloads,
    and chooses between it and the baseline. Where the objective is energy, for which drawn shapes are not measured, it
    is the general configuration where that gains on every tuned workload, else the baseline.
    """
    kernels = kernels_of(verdict)
    if not kernels:
        return None
    events = _by_shape(context.log.events(ShapeCompared))
    excluded = _excluded(context, events, kernels)
    out = {winner_key(one) for one in excluded}
    numbers = {winner_key(one): number for number, one in enumerate(kernels) if winner_key(one) not in out}
    general = BASELINE if verdict.general is None else numbers.get(winner_key(verdict.general), BASELINE)
    if events:
        fitted, tested = (
            [
                Seen(
                    event.workload,
                    {
                        numbers[key]: Figures.of(entry.comparison)
                        for entry in event.entries
                        if entry.comparison is not None and (key := winner_key(entry)) in numbers
                    },
                )
                for event in events
                if event.entries and event.fitted == fit
            ]
            for fit in (True, False)
        )
    else:
        rows = [] if general == BASELINE else [*verdict.tuned, *verdict.held_out]
        named = [(context.task.workload(row.workload), row.general) for row in rows]
        fitted = [Seen(workload, {general: figures}) for workload, figures in named if figures is not None]
        tested = []
    types = list({types_key(one): one for one in (*context.tuned, *context.held_out)}.values())
    rule = fit_rule(fitted, len(kernels), row_sizes(context.task, [one.workload for one in fitted]))
    rule = for_types(rule, fitted, types)
    choices: dict[PolicyName, Callable[[Seen], int]] = {
        "rule": lambda seen: rule.kernel(seen.workload),
        "general": lambda _: general,
        "table": lambda _: general if beats(verdict) else BASELINE,
        "oracle": lambda seen: seen.fastest,
    }
    policies = [_policy(name, tested, choose) for name, choose in choices.items()] if tested else []
    names, lost = kernel_names(kernels, verdict), None
    if policies and policies[0].ratio > policies[1].ratio:
        lost, rule = rule, for_types(DispatchRule(use=general, shapes=len(fitted)), [*fitted, *tested], types)
    if verdict.objective != "time":
        gains = sum(row.general is not None and row.general.gains(verdict.objective) for row in verdict.tuned)
        rule = DispatchRule(use=0 if gains == len(verdict.tuned) else BASELINE, shapes=len(fitted))
    return Dispatching(
        kernels=tuple(kernels),
        rule=rule,
        lines=tuple(rule.lines(names)),
        fitted=len(fitted),
        tested=len(tested),
        policies=tuple(policies),
        excluded=tuple(excluded),
        lost=() if lost is None else tuple(lost.lines(names)),
    )


def row_sizes(task: Task, workloads: Sequence[Workload]) -> tuple[str, ...]:
    """The sizes along which the large arrays of a task lie in memory, of at least half of the largest one's bytes on
    some workload: vectors divide them or not."""
    found: dict[str, None] = {}
    for workload in workloads:
        arrays = [argument for argument in task.arguments if argument.role != "scalar" and argument.shape]
        lengths = [
            math.prod(task.shape_of(one, workload)) * DTYPES[task.dtype_of(one, workload)].size for one in arrays
        ]
        for argument, length in zip(arrays, lengths, strict=True):
            if 2 * length >= max(lengths):
                found |= dict.fromkeys(sorted(parse(str(argument.shape[-1])).names & workload.sizes.keys()))
    return tuple(found)


def kernel_names(kernels: Sequence[Winner], verdict: Verdict) -> dict[int, str]:
    """What people call the kernels of a rule, by number: also the folders of `best/`, as far as a name can be one."""
    names = {BASELINE: "baseline"}
    for number, kernel in enumerate(kernels):
        key = winner_key(kernel)
        if verdict.general is not None and key == winner_key(verdict.general):
            names[number] = "general"
        else:
            names[number] = next(row.workload for row in verdict.dispatch if winner_key(row) == key)
    return names


def beats(verdict: Verdict) -> bool:
    """Whether the general configuration is shown to be faster on some workloads and slower on none."""
    found = [row.general.verdict for row in (*verdict.tuned, *verdict.held_out) if row.general is not None]
    return verdict.general is not None and "faster" in found and "slower" not in found


def _by_shape(events: Sequence[ShapeCompared]) -> list[ShapeCompared]:
    """The last comparison on each shape; a shape that was ever fitted, by whatever name, does not test the rule."""
    found: dict[ShapeKey, ShapeCompared] = {}
    for event in events:
        key = shape_key(event.workload)
        fitted = event.fitted or (key in found and found[key].fitted)
        found[key] = event.model_copy(update={"fitted": fitted})
    return list(found.values())


def _excluded(context: Context, events: Sequence[ShapeCompared], kernels: Sequence[Winner]) -> list[Disqualified]:
    """The kernels that are wrong, or fail, on some shape, and kernels that are right only for the workload they won."""
    rejected, known = disqualified(context), {winner_key(one): one for one in kernels}
    failed = {
        key: (event.workload.name, describe(entry.failure))
        for event in events
        for entry in event.entries
        if entry.failure is not None and (key := winner_key(entry)) in known
    }
    out = [*failed.items(), *((key, ("all", why)) for key in known if (why := rejected.get((*key, ""))) is not None)]
    return [
        Disqualified(template=known[key].template, config=known[key].config, workload=where, why=why)
        for key, (where, why) in out
    ]


def _policy(name: PolicyName, tested: Sequence[Seen], choose: Callable[[Seen], int]) -> Policy:
    used = [(one, choose(one)) for one in tested]
    worst, shape = max((one.ratio(kernel) / one.ratio(one.fastest) - 1, one.workload.name) for one, kernel in used)
    return Policy(
        policy=name,
        median_regret=statistics.median(one.ratio(kernel) / one.ratio(one.fastest) - 1 for one, kernel in used),
        worst_regret=worst,
        worst_shape=shape,
        ratio=statistics.geometric_mean(one.ratio(kernel) for one, kernel in used),
        slower=sum(kernel in one.figures and one.figures[kernel].verdict == "slower" for one, kernel in used),
    )
