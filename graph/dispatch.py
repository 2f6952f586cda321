"""Which kernel serves which shape: a rule of at most two tests on a path, over sizes and types.

Owns the shapes drawn from the ranges of a task's workloads, the measurements of the winners on them, the rule that is
fitted to one half of these, and its test on the other half. The files that a rule is exported to belong to `results`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

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
from tunesmith.kernels.build.artifact import EvaluationRequest, TypesKey, types_key
from tunesmith.kernels.check.verify import infeasible_on
from tunesmith.kernels.measure.bench import WorkloadComparison
from tunesmith.kernels.measure.timing import Comparison
from tunesmith.kernels.outcome import describe
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.expression import parse
from tunesmith.kernels.spec.task import Task, TaskError, Workload
from tunesmith.kernels.spec.template import Template, config_key

BASELINE = -1
"""Stands for the baseline where kernels are numbered."""
MIN_SHAPES = 2
"""Minimum number of shapes for a kernel to be chosen by them: one shape alone says little of a kernel, but the baseline
is never slower than itself."""
MIN_GAIN = 0.02
"""Minimum saving of a test, as a share of the time of the shapes that reach it. With 0.005, 57 of 4200 choices on
recorded shapes (docs/results/h200-exports.json, cross-validated) were slower than the baseline by 2 %; with 0.02, 46
are, and all together take 0.7 % less time."""
VECTOR = 8
"""The widest vector of the library's templates and of those by rules, in elements. Rows that it does not divide take
another path through a kernel than other rows."""
DIVISORS = (2, 4, VECTOR)
THRESHOLDS = sorted(step << bits for step in (1, 3) for bits in range(62))

Array = NDArray[np.float64]
Sorts = Mapping[str, Sequence[Mapping[str, object]]]
"""The sorts of shapes to tell apart: the test of each, with examples of the names in it."""


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
        while node.yes is not None and node.no is not None:
            node = node.yes if holds(node.test, workload) else node.no
        return node.use

    def lines(self, names: Mapping[int, str], indent: str = "") -> list[str]:
        """The rule as text for people. names: of the kernels, -1 included."""
        if self.yes is None or self.no is None:
            return [f"{indent}{names[self.use]}"]
        yes, no = (branch.lines(names, indent + "    ") for branch in (self.yes, self.no))
        return [f"{indent}if {self.test}:", *yes, f"{indent}else:", *no]

    def used(self) -> set[int]:
        """The kernels that some leaf names."""
        if self.yes is None or self.no is None:
            return {self.use}
        return self.yes.used() | self.no.used()


def holds(test: str, workload: Workload) -> bool:
    """Whether a test holds for a shape; an empty one holds for all."""
    return not test or bool(parse(test).evaluate(workload.names))


def node(test: str, yes: DispatchRule, no: DispatchRule) -> DispatchRule:
    """The rule that tells two rules apart; a leaf where both are the same kernel."""
    shapes = yes.shapes + no.shapes
    if not yes.test and not no.test and yes.use == no.use:
        return DispatchRule(use=yes.use, shapes=shapes)
    return DispatchRule(test=test, yes=yes, no=no, shapes=shapes)


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
    rule = fitting.kept(fitting.best(here), here, _by_types(types))
    for name in rows:
        undivided = [{name: size} for size in range(1, VECTOR)]
        sorts = {f"{name} % {VECTOR} == 0": [{name: VECTOR}], f"{name} % {VECTOR} != 0": undivided}
        rule = fitting.kept(rule, here, sorts)
    return rule


def for_types(kernel: int, seen: Sequence[Seen], types: Sequence[Workload]) -> DispatchRule:
    """The rule that uses `kernel` for types on which it was shown to be faster on at least half of the shapes."""
    alone = [Seen(one.workload, {k: figures for k, figures in one.figures.items() if k == kernel}) for one in seen]
    rule = DispatchRule(use=kernel, shapes=len(seen))
    return _Fitting(alone, kernel + 1).kept(rule, np.ones(len(seen)), _by_types(types))


def _by_types(types: Sequence[Workload]) -> Sorts:
    return {" and ".join(f"{name} == {dtype}" for name, dtype in one.types.items()): [one.types] for one in types}


class _Fitting:
    """The search. table: for each shape a row, which says for each kernel, the baseline last, with 1 whether it is
    slower there, then whether it is faster, then the logarithms of times, then 1; tests: for each a row, 1 where it
    holds. here: 1 for the shapes that count."""

    def __init__(self, seen: Sequence[Seen], kernels: int) -> None:
        self.numbers = columns = [*range(kernels), BASELINE]
        self.workloads = [one.workload for one in seen]
        shown = [[float(one.shown(kernel, it)) for it in ("slower", "faster") for kernel in columns] for one in seen]
        costs = [[math.log(one.ratio(kernel)) for kernel in columns] for one in seen]
        self.table = np.concatenate([np.array(shown), np.array(costs), np.ones((len(seen), 1))], axis=1)
        self.texts = _tests(self.workloads)
        self.tests = np.array([self.where(text) for text in self.texts]).reshape(-1, len(seen))

    def where(self, test: str) -> Array:
        return np.array([holds(test, one) for one in self.workloads], dtype=np.float64)

    def best(self, here: Array) -> DispatchRule:
        """The best rule of at most two tests on a path: each test is tried with each pair of further tests."""
        found = [self.split(here)]
        for text, test in zip(self.texts, self.tests, strict=True):
            (yes_cost, yes), (no_cost, no) = self.split(here * test), self.split(here * (1 - test))
            found.append((yes_cost + no_cost + MIN_GAIN * here.sum(), node(text, yes, no)))
        return min(found, key=lambda pair: pair[0])[1]

    def split(self, here: Array) -> tuple[float, DispatchRule]:
        """The best rule of at most one test, and its cost."""
        count = len(self.texts)
        whole, yes = here @ self.table, self.tests @ (here[:, None] * self.table)
        costs, leaves = self.leaves(np.concatenate([whole[None], yes, whole - yes]))
        totals = costs[1 : count + 1] + costs[count + 1 :] + MIN_GAIN * here.sum()
        best = int(np.argmin(totals)) if count else 0
        if not count or totals[best] >= costs[0]:
            return costs[0], leaves(0)
        return totals[best], node(self.texts[best], leaves(1 + best), leaves(1 + count + best))

    def leaves(self, sums: Array) -> tuple[Array, Callable[[int], DispatchRule]]:
        """The costs of the best leaves for shapes over which the rows of the table add up to the rows of `sums`, and
        the leaf of a row. Its kernel is shown to be slower on no shape, and faster on at least half of them."""
        count = len(self.numbers)
        slower, faster, costs, sizes = np.split(sums, [count, 2 * count, 3 * count], axis=1)
        allowed = (slower == 0) & (2 * faster >= sizes) & (sizes >= min(MIN_SHAPES, len(self.workloads)))
        allowed[:, -1] = True
        costs = np.where(allowed, costs, math.inf)
        uses = np.argmin(costs, axis=1)
        return costs.min(axis=1), lambda row: DispatchRule(use=self.numbers[uses[row]], shapes=round(sizes[row, 0]))

    def kept(self, rule: DispatchRule, here: Array, sorts: Sorts) -> DispatchRule:
        """`rule`, in which a leaf keeps its kernel only for sorts of shapes on which that was shown to be faster."""
        if rule.yes is not None and rule.no is not None:
            test, branches = self.where(rule.test), []
            for branch, part, side in ((rule.yes, here * test, True), (rule.no, here * (1 - test), False)):
                left = {sort: names for sort, names in sorts.items() if _can_reach(names, rule.test, side)}
                branches.append(self.kept(branch, part, left))
            return node(rule.test, *branches)
        others = {}
        for sort in sorts if rule.use != BASELINE else ():
            own = here * self.where(sort)
            faster = own @ self.table[:, len(self.numbers) + rule.use]
            if not own.any() or 2 * faster < own.sum():
                _, best = self.leaves((own if own.any() else self.where(sort))[None] @ self.table)
                if best(0).use != rule.use:
                    others[sort] = best(0).model_copy(update={"shapes": round(own.sum())})
        if others and len(others) == len(sorts):
            _, rule = others.popitem()
        else:
            rule = rule.model_copy(update={"shapes": rule.shapes - sum(leaf.shapes for leaf in others.values())})
        for sort, leaf in others.items():
            rule = node(sort, leaf, rule)
        return rule


def _can_reach(examples: Sequence[Mapping[str, object]], test: str, side: bool) -> bool:
    """Whether shapes of a sort come to a side of a test. A threshold says nothing of the sorts."""
    known = [{**{dtype: dtype for dtype in DTYPES}, **example} for example in examples]
    if "<=" in test or not parse(test).names <= known[0].keys():
        return True
    return any(bool(parse(test).evaluate(one)) == side for one in known)


def _tests(workloads: Sequence[Workload]) -> list[str]:
    """Tests that separate some of the shapes from others, simple ones first."""
    first = workloads[0]
    columns = {name: [one.sizes[name] for one in workloads] for name in first.sizes}
    columns = {name: column for name, column in columns.items() if min(column) < max(column)}
    products = {" * ".join(columns): [math.prod(row) for row in zip(*columns.values(), strict=True)]}
    thresholds = [
        f"{quantity} <= {power}"
        for quantity, column in (columns | products if columns else {}).items()
        for power in THRESHOLDS
        if min(column) <= power < max(column)
    ]
    divided = [f"{name} % {divisor} == 0" for name in columns for divisor in DIVISORS]
    types = [f"{name} == {dtype}" for name in first.types for dtype in sorted({one.types[name] for one in workloads})]
    return [*thresholds, *divided, *types]


MAX_ALIGNMENT = 256
"""The largest power of two of which a drawn size is made a multiple."""
MAX_DRAWS = 200
"""Draws for one shape, as some repeat each other or do not fit."""
SHAPE_SEED = 11_000_003
"""Added to the run's seed."""

ShapeKey = tuple[tuple[tuple[str, int], ...], TypesKey]


def shape_key(workload: Workload) -> ShapeKey:
    """The identity of a shape: sizes and types, whatever the workload is called."""
    return tuple(sorted(workload.sizes.items())), types_key(workload)


def draw_shapes(
    task: Task, kind: str, count: int, *, seed: int, fits: Callable[[Workload], bool] = lambda _: True
) -> tuple[Workload, ...]:
    """At most `count` different workloads for a `kind` of device ("gpu" or "cpu"), none of them one of the task's;
    fewer where the ranges hold no more.

    The same arguments give the same workloads, and a larger count the same ones first. The types change after two
    shapes, so that every second shape has all of them in turn. fits: whether the baseline can be launched on a shape.
    """
    own = _own(task, kind)
    known = set(map(shape_key, own))
    models = list({types_key(one): one for one in own}.values())
    random = np.random.default_rng(seed + SHAPE_SEED)
    found: list[Workload] = []
    while len(found) < count and models:
        model = models[len(found) // 2 % len(models)]
        most = max(task.bytes_of(one.model_copy(update={"types": model.types})) for one in own)
        for _ in range(MAX_DRAWS):
            sizes = {name: _draw(random, [one.sizes[name] for one in own]) for name in model.sizes}
            shape = _further("drawn", model, sizes, model.types)
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
    own = _own(task, kind)
    shapes = [
        _further("known", own[0], sizes, types)
        for sizes, types in found
        if (sizes.keys(), types.keys()) == (own[0].sizes.keys(), own[0].types.keys())
        and all(dtype in task.types[name] for name, dtype in types.items())
    ]
    kept = {shape_key(shape): shape for shape in shapes if _can_be(task, shape, math.inf)}
    return tuple(shape for key, shape in kept.items() if key not in set(map(shape_key, own)))


def _own(task: Task, kind: str) -> list[Workload]:
    return [*task.workloads_for(kind, held_out=False), *task.workloads_for(kind, held_out=True)]


def _further(prefix: str, model: Workload, sizes: dict[str, int], types: dict[str, str]) -> Workload:
    name = "-".join([prefix, "x".join(map(str, sizes.values())), *types.values()])
    return Workload(name=name, sizes=sizes, types=types, held_out=True, devices=model.devices)


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


MAX_KERNELS = 6
"""Kernels of a rule, the baseline apart: each costs time on each shape, and machine code in each export."""
MAX_KNOWN_SHAPES = 16
"""Shapes of earlier runs that a rule is fitted to, beside the drawn ones."""
ROUNDS, SECONDS = 20, 0.25
"""At most so many rounds, and seconds of sampling for each kernel, on each shape."""
CONTENTS_SEED = 13_000_007
"""Added to the run's seed for the contents."""


def kernels_of(verdict: Verdict) -> list[tuple[str, Winner]]:
    """The kernels for a rule with their names, also folders of `best/` as far as a name can be one: the general
    configuration, then the best for single workloads, the largest gain first."""
    named = [] if verdict.general is None else [("general", verdict.general)]
    rows = sorted(verdict.dispatch, key=lambda row: row.ratio)
    named += [(row.workload, Winner(template=row.template, config=row.config)) for row in rows]
    found: dict[tuple[str, str], tuple[str, Winner]] = {}
    for name, winner in named:
        found.setdefault(winner_key(winner), (name, winner))
    return list(found.values())[:MAX_KERNELS]


def winner_key(winner: Winner | FinalistResult | Disqualified) -> tuple[str, str]:
    """The identity of a kernel: template id, and configuration as text."""
    return winner.template, config_key(winner.config)


def can_launch(context: Context, template: Template, workload: Workload, winner: Winner | None = None) -> bool:
    """Whether constraints and limits admit a kernel on a shape. winner: left out, the template's only point."""
    config = {} if winner is None else winner.config
    return all(infeasible_on(template, config, workload, limits) is None for limits in context.limits)


def measure_further_shapes(context: Context) -> None:
    """Measures the winners of the run on `dispatch_shapes` shapes drawn from the task's ranges, and on shapes for which
    earlier runs found a faster kernel, with a pool whose task has them. Ends the pool of `context`."""
    task, settings, kind = context.task, context.settings, context.device.limits.kind
    verdict = context.log.verdict()
    if verdict is None or not (kernels := [winner for _, winner in kernels_of(verdict)]):
        return
    launchable = partial(can_launch, context, context.sources.baseline.template)
    drawn = draw_shapes(task, kind, settings.dispatch_shapes, seed=settings.seed, fits=launchable)
    if len(drawn) < settings.dispatch_shapes:
        context.note("dispatch", f"The ranges of the task's sizes hold only {len(drawn)} further shapes.", "")
    keys = set(map(shape_key, drawn))
    others = shapes_of_others(task, kind, known_shapes(context))
    known = [one for one in others if shape_key(one) not in keys and launchable(one)][:MAX_KNOWN_SHAPES]
    examine_everywhere(context, kernels)
    context.close()
    wider = task.model_copy(update={"workloads": (*task.workloads, *known, *drawn)})
    check_reference(wider, [*known, *drawn], seed=settings.seed, deadline=settings.reference_deadline)
    shapes = [(one, True) for one in (*context.tuned, *context.held_out, *known, *drawn[::2])]
    shapes += [(one, False) for one in drawn[1::2]]
    with (
        pools(wider, context.device, settings, [], context.listener, context.seconds_left) as make_pool,
        closing(replace(context, task=wider, make_pool=make_pool, models=None)) as measuring,
    ):
        _measure(measuring, kernels, shapes)


def _measure(context: Context, kernels: Sequence[Winner], shapes: Sequence[tuple[Workload, bool]]) -> None:
    """Compares `kernels` with the baseline on `shapes`, unless the journal has it, by whatever name. With each shape:
    whether a rule is fitted to it, or tried on it."""
    known = {shape_key(event.workload): event for event in context.log.events(ShapeCompared)}
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
        found = _compare(context, workload, requests_for(context, entrants, workload))
        if not any(isinstance(result, Comparison) for result in found.results):
            # Either all are wrong here, or the baseline or the shape is at fault: the baseline against itself tells.
            control = EvaluationRequest(1, context.sources.baseline.template, {}, (workload.name,))
            if not isinstance(_compare(context, workload, [control]).results[0], Comparison):
                sentence = f"The baseline could not be measured on {workload.name}, which tells nothing on dispatch."
                context.note("dispatch", sentence, "")
                entrants, found = [], replace(found, results=(), codes=(), energies=())
        entries = finalist_results(entrants, found)
        event = ShapeCompared(workload=workload, fitted=fitted, entries=entries, compiler=found.compiler)
        context.journal.append(event)


def _compare(context: Context, workload: Workload, requests: Sequence[EvaluationRequest]) -> WorkloadComparison:
    baseline, seed = baseline_request(context, [workload]), context.settings.seed + CONTENTS_SEED
    return context.pool.compare(baseline, requests, workload.name, seed=seed, rounds=ROUNDS, budget_seconds=SECONDS)


class Policy(ResultRecord):
    """A way to choose a kernel, on the test's shapes. regret: time over the fastest kernel's there, the baseline
    included, less 1; ratio: geometric mean of time over baseline; slower: number of shapes on which its choice was
    shown slower than the baseline.

    rule: the fitted rule; general: the general configuration wherever it can be launched; table: the default of an
    exact table of the measured shapes, the general configuration if it is shown slower on none and faster on some, else
    the baseline; oracle: the fastest kernel.
    """

    policy: Literal["rule", "general", "table", "oracle"]
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
    named = kernels_of(verdict)
    if not named:
        return None
    names = dict(enumerate(name for name, _ in named)) | {BASELINE: "baseline"}
    kernels = {winner_key(winner): winner for _, winner in named}
    events = _by_shape(context.log.events(ShapeCompared))
    excluded = _excluded(context, events, kernels)
    out = set(map(winner_key, excluded))
    numbers = {key: number for number, key in enumerate(kernels) if key not in out}
    general = BASELINE if verdict.general is None else numbers.get(winner_key(verdict.general), BASELINE)
    seen: dict[bool, list[Seen]] = {True: [], False: []}
    for event in events:
        figures = {
            numbers[key]: Figures.of(entry.comparison)
            for entry in event.entries
            if entry.comparison is not None and (key := winner_key(entry)) in numbers
        }
        seen[event.fitted] += [Seen(event.workload, figures)] if event.entries else []
    rows = [row for row in (*verdict.tuned, *verdict.held_out) if row.general is not None and general != BASELINE]
    if not events:
        seen[True] = [Seen(context.task.workload(row.workload), {general: row.general}) for row in rows if row.general]
    fitted, tested = seen[True], seen[False]
    types = list({types_key(one): one for one in (*context.tuned, *context.held_out)}.values())
    policies: list[Policy] = []
    lost: list[str] = []
    if verdict.objective == "time":
        lengths = row_sizes(context.task, [one.workload for one in fitted])
        rule = fit_rule(fitted, len(kernels), lengths, types)
        shown = {row.general.verdict for row in rows if row.general is not None}
        table = general if "faster" in shown and "slower" not in shown else BASELINE
        if tested:
            policies = [
                _policy("rule", [(one, rule.kernel(one.workload)) for one in tested]),
                _policy("general", [(one, general) for one in tested]),
                _policy("table", [(one, table) for one in tested]),
                _policy("oracle", [(one, one.fastest) for one in tested]),
            ]
            if policies[0].ratio > policies[1].ratio:
                lost, rule = rule.lines(names), for_types(general, [*fitted, *tested], types)
    else:
        gains = all(row.general is not None and row.general.gains(verdict.objective) for row in verdict.tuned)
        rule = DispatchRule(use=general if gains else BASELINE, shapes=len(fitted))
    return Dispatching(
        kernels=tuple(kernels.values()),
        rule=rule,
        lines=tuple(rule.lines(names)),
        fitted=len(fitted),
        tested=len(tested),
        policies=tuple(policies),
        excluded=tuple(excluded),
        lost=tuple(lost),
    )


def row_sizes(task: Task, workloads: Sequence[Workload]) -> tuple[str, ...]:
    """The sizes along which the large arrays of a task lie in memory, of at least half of the largest one's bytes on
    some workload: vectors divide them or not."""
    found: dict[str, None] = {}
    arrays = [argument for argument in task.arguments if argument.role != "scalar" and argument.shape]
    for workload in workloads:
        lengths = [
            math.prod(task.shape_of(one, workload)) * DTYPES[task.dtype_of(one, workload)].size for one in arrays
        ]
        for argument, length in zip(arrays, lengths, strict=True):
            if 2 * length >= max(lengths):
                found |= dict.fromkeys(sorted(parse(str(argument.shape[-1])).names & workload.sizes.keys()))
    return tuple(found)


def _by_shape(events: Sequence[ShapeCompared]) -> list[ShapeCompared]:
    """The last comparison on each shape; a shape that was ever fitted, by whatever name, does not test the rule."""
    fitted = {shape_key(event.workload) for event in events if event.fitted}
    last = {shape_key(event.workload): event for event in events}
    return [event.model_copy(update={"fitted": key in fitted}) for key, event in last.items()]


def _excluded(
    context: Context, events: Sequence[ShapeCompared], kernels: Mapping[tuple[str, str], Winner]
) -> list[Disqualified]:
    """The kernels that are wrong, or fail, on some shape, and kernels that are right only for the workload they won."""
    rejected = disqualified(context)
    out = {key: ("all", why) for key in kernels if (why := rejected.get((*key, ""))) is not None}
    out |= {
        winner_key(entry): (event.workload.name, describe(entry.failure))
        for event in events
        for entry in event.entries
        if entry.failure is not None and winner_key(entry) in kernels
    }
    return [
        Disqualified(template=kernels[key].template, config=kernels[key].config, workload=where, why=why)
        for key, (where, why) in out.items()
    ]


def _policy(name: Literal["rule", "general", "table", "oracle"], choices: Sequence[tuple[Seen, int]]) -> Policy:
    regrets = [(one.ratio(kernel) / one.ratio(one.fastest) - 1, one.workload.name) for one, kernel in choices]
    worst, shape = max(regrets)
    return Policy(
        policy=name,
        median_regret=statistics.median(regret for regret, _ in regrets),
        worst_regret=worst,
        worst_shape=shape,
        ratio=statistics.geometric_mean(one.ratio(kernel) for one, kernel in choices),
        slower=sum(one.shown(kernel, "slower") for one, kernel in choices),
    )
