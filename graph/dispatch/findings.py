"""The dispatch rule of a run and what it is worth: fitted to the journal's measurements, tried on shapes that neither
tuning nor fitting saw, beside the other ways to choose a kernel."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from tunesmith.graph.context import Context
from tunesmith.graph.dispatch.measuring import kernels_of, winner_key
from tunesmith.graph.dispatch.rule import BASELINE, Rule, Seen, fit_rule, for_types
from tunesmith.graph.dispatch.shapes import ShapeKey, shape_key
from tunesmith.graph.journal.events import ShapeCompared
from tunesmith.graph.journal.records import Disqualified, Figures, FinalistResult, Record, Verdict, Winner
from tunesmith.graph.roles.testing.examination import disqualified
from tunesmith.kernels.build.candidate import types_key
from tunesmith.kernels.outcome import describe
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.expression import parse
from tunesmith.kernels.spec.parameter import config_key
from tunesmith.kernels.spec.task import Task, Workload


class Policy(Record):
    """A way to choose a kernel, on the test's shapes. regret: time over that of the fastest kernel there, the baseline
    included, less 1; ratio: geometric mean of time over baseline; slower: on how many shapes its choice was shown to be
    slower than the baseline.

    rule: the fitted rule; general: the general configuration wherever it can be launched; table: what an exact table
    of the measured shapes leaves for others, the general configuration if it is shown slower on none and faster on
    some, else the baseline; oracle: the fastest of all.
    """

    policy: Literal["rule", "general", "table", "oracle"]
    median_regret: float
    worst_regret: float
    worst_shape: str
    ratio: float
    slower: int


class Dispatching(Record):
    """How a shape gets its kernel. kernels: what the rule's numbers stand for; rule: the exported one, `lines` as text;
    fitted, tested: numbers of shapes; policies: what was found on the tested ones, empty without any; excluded: kernels
    that failed on a shape, and are used nowhere by the rule; lost: the lines of the fitted rule where it lost to the
    general configuration on the tested shapes, which is exported instead of it for the types on which it gains."""

    kernels: tuple[Winner, ...]
    rule: Rule
    lines: tuple[str, ...]
    fitted: int
    tested: int
    policies: tuple[Policy, ...] = ()
    excluded: tuple[Disqualified, ...] = ()
    lost: tuple[str, ...] = ()


def dispatching(context: Context, verdict: Verdict) -> Dispatching | None:
    """What the journal's measurements say on dispatch; None where nothing right was found.

    Without drawn shapes (`dispatch_shapes`) the rule is fitted to the general configuration on the task's workloads,
    and chooses between it and the baseline. Where the run makes energy small, of which drawn shapes tell nothing, there
    is no choice: it is the general configuration where that gains on every tuned workload, else the baseline.
    """
    kernels = kernels_of(verdict)
    if not kernels:
        return None
    events = _by_shape(context.log.events(ShapeCompared))
    excluded = _failed(events, kernels) + _rejected(context, kernels)
    out = {(one.template, config_key(one.config)) for one in excluded}
    numbers = {winner_key(one): number for number, one in enumerate(kernels) if winner_key(one) not in out}
    general = BASELINE if verdict.general is None else numbers.get(winner_key(verdict.general), BASELINE)
    if events:
        told = [event for event in events if event.entries]
        fitted, tested = (
            [Seen(event.workload, _figures(event.entries, numbers)) for event in told if event.fitted == fit]
            for fit in (True, False)
        )
    else:
        fitted = [] if general == BASELINE else _of_verdict(context, verdict, general)
        tested = []
    types = list({types_key(one): one for one in (*context.tuned, *context.held_out)}.values())
    rule = fit_rule(fitted, len(kernels), row_sizes(context.task, [one.workload for one in fitted]))
    rule = for_types(rule, fitted, types)
    policies = _policies(rule, tested, general, verdict) if tested else []
    names, lost = kernel_names(kernels, verdict), None
    if policies and policies[0].ratio > policies[1].ratio:
        lost, rule = rule, for_types(Rule(use=general, shapes=len(fitted)), [*fitted, *tested], types)
    if verdict.objective != "time":
        gains = sum(row.general is not None and row.general.gains(verdict.objective) for row in verdict.tuned)
        rule = Rule(use=0 if gains == len(verdict.tuned) else BASELINE, shapes=len(fitted))
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
    """The sizes along which the large arrays of a task lie in memory, those of at least half of the largest one's bytes
    on some workload: vectors divide them or not."""
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
    """The last comparison on each shape; what was ever fitted, by whatever name, is no test of the rule."""
    found: dict[ShapeKey, ShapeCompared] = {}
    for event in events:
        key = shape_key(event.workload)
        fitted = event.fitted or (key in found and found[key].fitted)
        found[key] = event.model_copy(update={"fitted": fitted})
    return list(found.values())


def _failed(events: Sequence[ShapeCompared], kernels: Sequence[Winner]) -> list[Disqualified]:
    """The kernels that are wrong, or fail, on some shape."""
    wanted, found = {winner_key(one) for one in kernels}, {}
    for event in events:
        for entry in event.entries:
            if entry.failure is not None and winner_key(entry) in wanted:
                found[winner_key(entry)] = Disqualified(
                    template=entry.template,
                    config=entry.config,
                    workload=event.workload.name,
                    why=describe(entry.failure),
                )
    return list(found.values())


def _rejected(context: Context, kernels: Sequence[Winner]) -> list[Disqualified]:
    """The kernels that are right for the workload they won, and not everywhere."""
    out = disqualified(context)
    return [
        Disqualified(template=one.template, config=one.config, workload="all", why=why)
        for one in kernels
        if (why := out.get((*winner_key(one), ""))) is not None
    ]


def _figures(entries: Sequence[FinalistResult], numbers: Mapping[tuple[str, str], int]) -> dict[int, Figures]:
    return {
        numbers[winner_key(entry)]: Figures.of(entry.comparison)
        for entry in entries
        if entry.comparison is not None and winner_key(entry) in numbers
    }


def _of_verdict(context: Context, verdict: Verdict, general: int) -> list[Seen]:
    rows = [row for row in (*verdict.tuned, *verdict.held_out) if row.general is not None]
    return [
        Seen(context.task.workload(row.workload), {general: row.general}) for row in rows if row.general is not None
    ]


def _policies(rule: Rule, tested: Sequence[Seen], general: int, verdict: Verdict) -> list[Policy]:
    otherwise = general if beats(verdict) else BASELINE
    return [
        _policy("rule", tested, rule.kernel),
        _policy("general", tested, lambda _: general),
        _policy("table", tested, lambda _: otherwise),
        _policy("oracle", tested, None),
    ]


def _policy(
    name: Literal["rule", "general", "table", "oracle"],
    tested: Sequence[Seen],
    choose: Callable[[Workload], int] | None,
) -> Policy:
    """choose: None for the oracle."""
    regrets, ratios, slower = [], [], 0
    for one in tested:
        fastest = min([BASELINE, *one.figures], key=one.ratio)
        used = fastest if choose is None else choose(one.workload)
        ratio = one.ratio(used)
        regrets.append((ratio / one.ratio(fastest) - 1, one.workload.name))
        ratios.append(math.log(ratio))
        slower += used in one.figures and one.figures[used].verdict == "slower"
    worst = max(regrets)
    return Policy(
        policy=name,
        median_regret=statistics.median(regret for regret, _ in regrets),
        worst_regret=worst[0],
        worst_shape=worst[1],
        ratio=math.exp(sum(ratios) / len(ratios)),
        slower=slower,
    )
