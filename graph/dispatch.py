"""Which kernel serves which shape: a rule of at most two tests on a path, over sizes and types.

Owns the rule and its fit; further shapes within the ranges of a task's sizes, and the measurements of the winners on
them; the test of the rule on shapes that it was not fitted to. The exported files belong to `results`.
"""

from __future__ import annotations

import math
import operator
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tunesmith.actors.judging.task_check import check_reference
from tunesmith.graph.context import Context, baseline_request
from tunesmith.graph.journal.events import Disqualified, Figures, ResultRecord, ShapeCompared, Verdict, Winner
from tunesmith.graph.progress import Progress
from tunesmith.graph.roles.examination import examine
from tunesmith.graph.roles.planner import broken_rule
from tunesmith.graph.roles.tester import broken, disqualified, finalist_results, requests_for
from tunesmith.graph.setup import pools
from tunesmith.kernels.build.artifact import EvaluationRequest, TypesKey, types_key
from tunesmith.kernels.check.plan import array_bytes
from tunesmith.kernels.measure.bench import WorkloadComparison
from tunesmith.kernels.measure.timing import Comparison
from tunesmith.kernels.outcome import describe
from tunesmith.kernels.spec.dtypes import DTYPE_NAMES, DTYPES
from tunesmith.kernels.spec.expression import parse
from tunesmith.kernels.spec.task import Task, TaskError, Workload

# The rule, and its fit to measured shapes

BASELINE = -1
"""Stands for the baseline where kernels are numbered."""
MIN_SHAPES = 2
"""Minimum number of shapes for the choice of a kernel."""
MIN_GAIN = 0.02
"""Minimum saving of a test, as a share of the time of its shapes. With 0.005, 57 of 4200 choices on recorded shapes
(docs/results/h200-exports.json, cross-validated) were 2 % slower than the baseline; with 0.02, 46."""
VECTOR = 8
"""Elements of the widest vector of templates. Rows that it does not divide take another path through a kernel."""
DIVISORS = (2, 4, VECTOR)
THRESHOLDS = sorted(step << bits for step in (1, 3) for bits in range(62))

Array = NDArray[np.float64]
Sorts = Mapping[str, Mapping[str, Any]]
"""For each sort of shapes its test, with examples (arrays) of the names in it."""


class DispatchRule(ResultRecord):
    """A node of the tree. test: an expression over sizes and types, which selects the rule `yes` or `no`; empty in a
    leaf, where `use` is the number of a kernel, -1 for the baseline. shapes: fitted shapes that reach it."""

    test: str = ""
    yes: DispatchRule | None = None
    no: DispatchRule | None = None
    use: int = BASELINE
    shapes: int = 0

    def kernel(self, workload: Workload) -> int:
        """The kernel for a shape, by its number, or -1 for the baseline."""
        if self.yes is None or self.no is None:
            return self.use
        return (self.yes if parse(self.test).evaluate(workload.names) else self.no).kernel(workload)

    def lines(self, names: Mapping[int, str], indent: str = "") -> list[str]:
        """The rule as text for people. names: of the kernels, -1 included."""
        if self.yes is None or self.no is None:
            return [f"{indent}{names[self.use]}"]
        yes, no = (branch.lines(names, indent + "    ") for branch in (self.yes, self.no))
        return [f"{indent}if {self.test}:", *yes, f"{indent}else:", *no]

    def used(self) -> set[int]:
        """The kernels that some leaf names."""
        return {self.use} if self.yes is None or self.no is None else self.yes.used() | self.no.used()


def _node(test: str, yes: DispatchRule, no: DispatchRule) -> DispatchRule:
    """The rule with a test and its two branches; a leaf where both are the same kernel, and `yes` without a test."""
    if not test:
        return yes
    shapes = yes.shapes + no.shapes
    if not yes.test and not no.test and yes.use == no.use:
        return DispatchRule(use=yes.use, shapes=shapes)
    return DispatchRule(test=test, yes=yes, no=no, shapes=shapes)


@dataclass(frozen=True, slots=True)
class Seen:
    """A shape with the figures of kernels against the baseline there; a missing kernel cannot be launched on it."""

    workload: Workload
    figures: Mapping[int, Figures]

    def ratio(self, kernel: int) -> float:
        """Time over the baseline's; 1 where the kernel cannot be launched."""
        return self.figures[kernel].ratio if kernel in self.figures else 1.0

    def shown(self, kernel: int, verdict: str) -> bool:
        """Whether the verdict on the kernel there is `verdict`."""
        return kernel in self.figures and self.figures[kernel].verdict == verdict

    @property
    def fastest(self) -> int:
        """The fastest kernel there, the baseline included."""
        return min([BASELINE, *self.figures], key=self.ratio)


def fit_rule(
    seen: Sequence[Seen], kernels: int, rows: Sequence[str] = (), types: Sequence[Workload] = ()
) -> DispatchRule:
    """The rule for `seen` of the least geometric mean of times. kernels: how many there are, numbered from 0; rows:
    sizes along which arrays are read, which vectors divide or not; types: a workload for each combination.

    A leaf keeps its kernel only for the types, and for the rows divided by vectors or not, on which that was shown to
    be faster on at least half of the leaf's shapes. Others get what serves all measured shapes of their sort.
    """
    if not seen:
        return DispatchRule()
    fitting, here = _Fitting(seen, kernels), np.ones(len(seen))
    rule = fitting.kept(fitting.best(), here, _by_types(types))
    for name in rows:
        undivided = {name: np.arange(1, VECTOR)}
        sorts = {f"{name} % {VECTOR} == 0": {name: np.array([VECTOR])}, f"{name} % {VECTOR} != 0": undivided}
        rule = fitting.kept(rule, here, sorts)
    return rule


def for_types(kernel: int, seen: Sequence[Seen], types: Sequence[Workload]) -> DispatchRule:
    """The rule that uses `kernel` for types on which it was shown to be faster on at least half of the shapes."""
    alone = [Seen(one.workload, {k: found for k, found in one.figures.items() if k == kernel}) for one in seen]
    rule = DispatchRule(use=kernel, shapes=len(seen))
    return _Fitting(alone, kernel + 1).kept(rule, np.ones(len(seen)), _by_types(types))


def _by_types(types: Sequence[Workload]) -> Sorts:
    found = {}
    for one in types:
        test = " and ".join(f"{name} == {dtype}" for name, dtype in one.types.items())
        found[test] = {name: np.array([dtype]) for name, dtype in one.types.items()}
    return found


class _Fitting:
    """The search for a rule. table: a row for each shape, with 1 for each kernel that is slower there, then for each
    that is faster, then the logarithms of times, then 1; tests: a row for each text, 1 where it holds; the first holds
    everywhere. Subsets of the shapes (`here`) are rows of 0 and 1 as well."""

    def __init__(self, seen: Sequence[Seen], kernels: int) -> None:
        self.kernels, numbers, workloads = kernels, range(kernels), [one.workload for one in seen]
        shown = [[float(one.shown(kernel, it)) for it in ("slower", "faster") for kernel in numbers] for one in seen]
        costs = [[math.log(one.ratio(kernel)) for kernel in numbers] for one in seen]
        self.table = np.concatenate([np.array(shown), np.array(costs), np.ones((len(seen), 1))], axis=1)
        self.columns = {name: np.array([one.names[name] for one in workloads]) for name in workloads[0].names}
        self.texts = ["", *_tests(workloads)]
        self.tests = np.array([self.where(text) for text in self.texts])

    def where(self, test: str) -> Array:
        """The shapes on which a test holds."""
        held = parse(test).evaluate(self.columns) if test else True
        return np.ones(len(self.table)) * held

    def best(self) -> DispatchRule:
        """The best rule of at most two tests on a path: each test is tried with each pair of further tests."""
        found = []
        for text, test in zip(self.texts, self.tests, strict=True):
            (yes_cost, yes), (no_cost, no) = self.split(test), self.split(1 - test)
            found.append((yes_cost + no_cost + MIN_GAIN * len(self.table) * bool(text), _node(text, yes, no)))
        return min(found, key=lambda pair: pair[0])[1]

    def split(self, here: Array) -> tuple[float, DispatchRule]:
        """The best rule of at most one test, and its cost."""
        yes = self.tests @ (here[:, None] * self.table)
        (yes_costs, yes_leaf), (no_costs, no_leaf) = self.leaves(yes), self.leaves(yes[0] - yes)
        costs = yes_costs + no_costs + MIN_GAIN * here.sum() * (np.arange(len(yes)) > 0)
        best = int(np.argmin(costs))
        return costs[best], _node(self.texts[best], yes_leaf(best), no_leaf(best))

    def leaves(self, sums: Array) -> tuple[Array, Callable[[int], DispatchRule]]:
        """The costs of the best leaves for shapes over which the rows of the table add up to the rows of `sums`, and
        the leaf of a row. Its kernel is shown to be slower on no shape, and faster on at least half of them."""
        sizes = sums[:, -1:]
        slower, faster, costs = np.split(sums[:, :-1], 3, axis=1)
        allowed = (slower == 0) & (2 * faster >= sizes) & (sizes >= min(MIN_SHAPES, len(self.table)))
        costs = np.where(allowed, costs, math.inf)
        uses = np.where(costs.min(axis=1) <= 0, costs.argmin(axis=1), BASELINE)
        counts = sizes[:, 0]
        return np.minimum(costs.min(axis=1), 0), lambda row: DispatchRule(use=int(uses[row]), shapes=round(counts[row]))

    def kept(self, rule: DispatchRule, here: Array, sorts: Sorts) -> DispatchRule:
        """`rule`, in which a leaf keeps its kernel only for sorts of shapes on which that was shown to be faster."""
        if rule.yes is not None and rule.no is not None:
            test, branches = self.where(rule.test), []
            for branch, part, side in ((rule.yes, here * test, True), (rule.no, here * (1 - test), False)):
                left = {sort: names for sort, names in sorts.items() if _can_reach(names, rule.test, side)}
                branches.append(self.kept(branch, part, left))
            return _node(rule.test, *branches)
        others = {}
        for sort in sorts if rule.use != BASELINE else ():
            own = here * self.where(sort)
            faster = own @ self.table[:, self.kernels + rule.use]
            if not own.any() or 2 * faster < own.sum():
                _, best = self.leaves((own if own.any() else self.where(sort))[None] @ self.table)
                if best(0).use != rule.use:
                    others[sort] = best(0).model_copy(update={"shapes": round(own.sum())})
        rest = others.popitem()[1] if others and len(others) == len(sorts) else rule
        made = rest.model_copy(update={"shapes": rule.shapes - sum(leaf.shapes for leaf in others.values())})
        for sort, leaf in others.items():
            made = _node(sort, leaf, made)
        return made


def _can_reach(examples: Mapping[str, Any], test: str, side: bool) -> bool:
    """Whether shapes of a sort may reach a side of a test; a threshold excludes no sort."""
    known = {**DTYPE_NAMES, **examples}
    return "<=" in test or not parse(test).names <= known.keys() or side in parse(test).evaluate(known)


def _tests(workloads: Sequence[Workload]) -> list[str]:
    """Tests that separate some of the shapes from others, simple tests first."""
    columns = {name: [one.sizes[name] for one in workloads] for name in workloads[0].sizes}
    columns = {name: column for name, column in columns.items() if min(column) < max(column)}
    products = {" * ".join(columns): [math.prod(row) for row in zip(*columns.values(), strict=True)]}
    thresholds = [
        f"{quantity} <= {power}"
        for quantity, column in (columns | products if columns else {}).items()
        for power in THRESHOLDS
        if min(column) <= power < max(column)
    ]
    divided = [f"{name} % {divisor} == 0" for name in columns for divisor in DIVISORS]
    types = [
        f"{name} == {dtype}" for name in workloads[0].types for dtype in sorted({one.types[name] for one in workloads})
    ]
    return [*thresholds, *divided, *types]


# Shapes to measure

MAX_ALIGNMENT = 256
"""The largest power of two of which a drawn size is made a multiple."""
MAX_DRAWS = 200
"""Draws for one shape, as some repeat each other or do not fit."""
SHAPE_SEED = 11_000_003
"""Added to the run's seed."""


def _shape_key(workload: Workload) -> tuple[tuple[tuple[str, int], ...], TypesKey]:
    return tuple(sorted(workload.sizes.items())), types_key(workload)


def draw_shapes(
    task: Task, kind: str, count: int, *, seed: int, fits: Callable[[Workload], bool] = lambda _: True
) -> tuple[Workload, ...]:
    """At most `count` different workloads for a `kind` of device ("gpu" or "cpu"), none of them one of the task's;
    fewer where the ranges hold no more. A larger count gives the same ones first. The types change after two shapes, so
    that every second shape has all of them in turn. fits: whether the baseline can be launched on a shape."""
    own = [one for held_out in (False, True) for one in task.workloads_for(kind, held_out=held_out)]
    known = set(map(_shape_key, own))
    models = list({types_key(one): one for one in own}.values())
    random = np.random.default_rng(seed + SHAPE_SEED)
    found: list[Workload] = []
    while len(found) < count and models:
        model = models[len(found) // 2 % len(models)]
        most = [max(figures) for figures in zip(*(_cost(task, one, model.types) for one in own), strict=True)]
        for _ in range(MAX_DRAWS):
            sizes = {name: _draw(random, [one.sizes[name] for one in own]) for name in model.sizes}
            name = "-".join(["drawn", "x".join(map(str, sizes.values())), *model.types.values()])
            shape = Workload(name=name, sizes=sizes, types=model.types, held_out=True, devices=model.devices)
            if _shape_key(shape) not in known and _is_shape_of(task, shape, most) and fits(shape):
                known.add(_shape_key(shape))
                found.append(shape)
                break
        else:
            # No further shape fits these types.
            models.remove(model)
    return tuple(found)


def _draw(random: np.random.Generator, sizes: list[int]) -> int:
    """A size within the range of `sizes`, with the alignment of one of them."""
    low, high = min(sizes), max(sizes)
    like = sizes[int(random.integers(len(sizes)))]
    step = min(like & -like, MAX_ALIGNMENT)
    drawn = math.exp(random.uniform(math.log(low), math.log(high)))
    return min(max(round(drawn / step) * step, math.ceil(low / step) * step), high)


def _cost(task: Task, workload: Workload, types: Mapping[str, str]) -> tuple[float, float, float]:
    """Bytes of traffic, operations, and bytes of all arrays, with other types."""
    retyped = workload.model_copy(update={"types": types})
    return task.bytes_of(retyped), task.flops_of(retyped), array_bytes(task, retyped)


def _is_shape_of(task: Task, shape: Workload, most: Sequence[float]) -> bool:
    """Whether the task has arguments of such a shape, and it costs at most as much as some workload of the task's."""
    try:
        for argument in task.arguments:
            (task.scalar_of if argument.role == "scalar" else task.shape_of)(argument, shape)
        cost = _cost(task, shape, shape.types)
        return task.allows(shape) and cost[0] > 0 and all(map(operator.le, cost, most))
    except TaskError:
        # Such as a dimension below 1, or a scalar beyond the range of its type.
        return False


# The winners on these shapes

MAX_KERNELS = 6
"""Kernels of a rule, the baseline apart: each costs time on each shape, and machine code in each export."""
ROUNDS, SECONDS = 20, 0.25
"""At most so many rounds, and seconds of sampling for each kernel, on each shape."""
CONTENTS_SEED = 13_000_007
"""Added to the run's seed for the contents."""


def kernels_of(verdict: Verdict) -> list[tuple[str, Winner]]:
    """The named kernels for a rule: the general one, then those for single workloads, the largest gain first."""
    named = [] if verdict.general is None else [("general", verdict.general)]
    rows = sorted(verdict.dispatch, key=lambda row: row.ratio)
    named += [(row.workload, Winner(template=row.template, config=row.config)) for row in rows]
    found: dict[tuple[str, str], tuple[str, Winner]] = {}
    for name, winner in named:
        found.setdefault(winner.key, (name, winner))
    return list(found.values())[:MAX_KERNELS]


def measure_further_shapes(context: Context) -> None:
    """Measures the winners on `dispatch_shapes` drawn shapes, by a pool that has them; ends the pool of `context`."""
    task, settings = context.task, context.settings
    verdict = context.log.verdict()
    if verdict is None or not (kernels := [winner for _, winner in kernels_of(verdict)]):
        return
    plain, kind, count = context.sources.baseline.template, context.device.limits.kind, settings.dispatch_shapes
    fits = partial(broken_rule, context, plain, {})
    drawn = draw_shapes(task, kind, count, seed=settings.seed, fits=lambda shape: not fits([shape]))
    if len(drawn) < count:
        context.note("dispatch", f"The ranges of the task's sizes hold only {len(drawn)} further shapes.", "")
    # On everything: the rule uses also the winners of single workloads for further shapes.
    examine(context, [(context.template(kernel.template), kernel.config, "") for kernel in kernels])
    context.close()
    wider = task.model_copy(update={"workloads": (*task.workloads, *drawn)})
    check_reference(task, drawn, seed=settings.seed, deadline=settings.reference_deadline)
    shapes = [(one, True) for one in (*context.tuned, *context.held_out, *drawn[::2])]
    shapes += [(one, False) for one in drawn[1::2]]
    with (
        pools(wider, context.device, settings, [], context.listener, context.seconds_left) as make_pool,
        closing(replace(context, task=wider, make_pool=make_pool, models=None)) as measuring,
    ):
        _measure(measuring, kernels, shapes)


def _measure(context: Context, kernels: Sequence[Winner], shapes: Sequence[tuple[Workload, bool]]) -> None:
    """Compares `kernels` with the baseline on `shapes` (each with: the rule is fitted to it), unless journalled."""
    known = {event.workload.name: event.entries for event in context.log.events(ShapeCompared)}
    for number, (workload, fitted) in enumerate(shapes, 1):
        entrants = [one for one in kernels if not broken(context, one, [workload])]
        before = known.get(workload.name)
        if before is not None and {one.key for one in entrants} <= {one.key for one in before}:
            continue
        if context.seconds_left() <= 0:
            left = len(shapes) - number + 1
            context.note("dispatch", f"The time limit left no time for {left} of {len(shapes)} shapes.", "")
            return
        context.listener(Progress("dispatch", f"shape {number} of {len(shapes)}: {workload.name}"))
        found = _compare(context, workload, requests_for(context, entrants, [workload.name]))
        entries = finalist_results(entrants, found)
        if not any(isinstance(result, Comparison) for result in found.results):
            # If the baseline fails against itself, it or the shape is at fault, not the kernels.
            control = EvaluationRequest(1, context.sources.baseline.template, {}, (workload.name,))
            if not isinstance(_compare(context, workload, [control]).results[0], Comparison):
                sentence = f"The baseline could not be measured on {workload.name}, so the shape is left out."
                context.note("dispatch", sentence, "")
                entries = ()
        event = ShapeCompared(workload=workload, fitted=fitted, entries=entries, compiler=found.compiler)
        context.journal.append(event)


def _compare(context: Context, workload: Workload, requests: Sequence[EvaluationRequest]) -> WorkloadComparison:
    baseline, seed = baseline_request(context, [workload]), context.settings.seed + CONTENTS_SEED
    return context.pool.compare(baseline, requests, workload.name, seed=seed, rounds=ROUNDS, budget_seconds=SECONDS)


# The choice of the rule


class Policy(ResultRecord):
    """A way to choose a kernel, on the tested shapes: the fitted rule; the general configuration; the default of an
    exact table of the measured shapes (the general configuration if it is shown slower on none and faster on some, else
    the baseline); the fastest kernel. regret: time over the fastest kernel's there, the baseline included, less 1;
    ratio: geometric mean of time over baseline; slower: number of shapes on which it was shown slower than that."""

    policy: Literal["rule", "general", "table", "oracle"]
    median_regret: float
    worst_regret: float
    worst_shape: str
    ratio: float
    slower: int


class Dispatching(ResultRecord):
    """The choice of a kernel by shape. kernels: by the rule's numbers; rule: the exported one, `lines` as text; fitted,
    tested: numbers of shapes; excluded: kernels that failed on a shape, which the rule never uses; lost: the lines of
    the fitted rule where it lost to the general configuration on the tested shapes, which is then exported."""

    kernels: tuple[Winner, ...]
    rule: DispatchRule
    lines: tuple[str, ...]
    fitted: int
    tested: int
    policies: tuple[Policy, ...] = ()
    excluded: tuple[Disqualified, ...] = ()
    lost: tuple[str, ...] = ()


def dispatching(context: Context, verdict: Verdict) -> Dispatching | None:
    """The rule by the journal's measurements; None where nothing right was found. Without drawn shapes it is fitted to
    the general configuration on the task's workloads. Where the objective is energy, for which none are drawn, it is
    the general configuration if that gains on every tuned workload, else the baseline."""
    named = kernels_of(verdict)
    if not named:
        return None
    names = dict(enumerate(name for name, _ in named)) | {BASELINE: "baseline"}
    kernels = {winner.key: winner for _, winner in named}
    # The last comparison on a shape counts.
    events = {event.workload.name: event for event in context.log.events(ShapeCompared)}.values()
    excluded = _excluded(context, events, kernels)
    out = {one.key for one in excluded}
    numbers = {key: number for number, key in enumerate(kernels) if key not in out}
    general = BASELINE if verdict.general is None else numbers.get(verdict.general.key, BASELINE)
    rows = {row.workload: row.general for row in verdict.rows if row.general is not None and general != BASELINE}
    fitted, tested = list[Seen](), list[Seen]()
    for event in events:
        compared = {numbers.get(entry.key, BASELINE): entry.comparison for entry in event.entries}
        figures = {number: Figures.of(one) for number, one in compared.items() if one is not None and number >= 0}
        if event.entries:
            (fitted if event.fitted else tested).append(Seen(event.workload, figures))
    if not events:
        fitted = [Seen(context.task.workload(name), {general: figures}) for name, figures in rows.items()]
    types = list({types_key(one): one for one in (*context.tuned, *context.held_out)}.values())
    policies: tuple[Policy, ...] = ()
    lost: tuple[str, ...] = ()
    if verdict.objective == "time":
        rule = fit_rule(fitted, len(kernels), row_sizes(context.task, [one.workload for one in fitted]), types)
        if tested:
            shown = {figures.verdict for figures in rows.values()}
            table = general if "faster" in shown and "slower" not in shown else BASELINE
            policies = (
                _policy("rule", tested, lambda one: rule.kernel(one.workload)),
                _policy("general", tested, lambda _: general),
                _policy("table", tested, lambda _: table),
                _policy("oracle", tested, lambda one: one.fastest),
            )
            if policies[0].ratio > policies[1].ratio:
                lost, rule = tuple(rule.lines(names)), for_types(general, [*fitted, *tested], types)
    else:
        gains = all(row.general is not None and row.general.gains(verdict.objective) for row in verdict.tuned)
        rule = DispatchRule(use=general if gains else BASELINE, shapes=len(fitted))
    return Dispatching(
        kernels=tuple(kernels.values()),
        rule=rule,
        lines=tuple(rule.lines(names)),
        fitted=len(fitted),
        tested=len(tested),
        policies=policies,
        excluded=excluded,
        lost=lost,
    )


def row_sizes(task: Task, workloads: Sequence[Workload]) -> tuple[str, ...]:
    """The sizes along which arrays lie that have at least half of the largest one's bytes on some workload."""
    found: dict[str, None] = {}
    arrays = [argument for argument in task.arguments if argument.role != "scalar" and argument.shape]
    for workload in workloads:
        bytes_ = [math.prod(task.shape_of(one, workload)) * DTYPES[task.dtype_of(one, workload)].size for one in arrays]
        for argument, size in zip(arrays, bytes_, strict=True):
            if 2 * size >= max(bytes_):
                found |= dict.fromkeys(sorted(parse(str(argument.shape[-1])).names & workload.sizes.keys()))
    return tuple(found)


def _excluded(
    context: Context, events: Collection[ShapeCompared], kernels: Mapping[tuple[str, str], Winner]
) -> tuple[Disqualified, ...]:
    """The kernels that are wrong, or fail, on some shape, and kernels that are right only for the workload they won."""
    rejected = disqualified(context)
    out = {key: ("all", why) for key in kernels if (why := rejected.get((*key, ""))) is not None}
    for event in events:
        failed = {entry.key: describe(entry.failure) for entry in event.entries if entry.failure is not None}
        out |= {key: (event.workload.name, why) for key, why in failed.items() if key in kernels}
    return tuple(Disqualified(**dict(kernels[key]), workload=at, why=why) for key, (at, why) in out.items())


def _policy(
    name: Literal["rule", "general", "table", "oracle"], tested: Sequence[Seen], choice: Callable[[Seen], int]
) -> Policy:
    ratios = [one.ratio(choice(one)) for one in tested]
    regrets = [ratio / one.ratio(one.fastest) - 1 for ratio, one in zip(ratios, tested, strict=True)]
    worst, shape = max(zip(regrets, (one.workload.name for one in tested), strict=True))
    return Policy(
        policy=name,
        median_regret=statistics.median(regrets),
        worst_regret=worst,
        worst_shape=shape,
        ratio=statistics.geometric_mean(ratios),
        slower=sum(one.shown(choice(one), "slower") for one in tested),
    )
