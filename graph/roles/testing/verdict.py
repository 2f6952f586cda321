"""The verdict of a test: pure arithmetic over comparisons. General configuration, per-shape table, held-out regret."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from tunesmith.graph.context import Context
from tunesmith.graph.journal.events import Compared
from tunesmith.graph.journal.log import Examinee
from tunesmith.graph.journal.measurements import weighted_geomean
from tunesmith.graph.journal.records import (
    BestHere,
    Dispatched,
    Disqualified,
    Figures,
    FinalistResult,
    OpponentRow,
    Verdict,
    Winner,
    WorkloadRow,
)
from tunesmith.kernels.outcome import describe
from tunesmith.kernels.spec.parameter import Config, config_key
from tunesmith.kernels.spec.task import Workload

Key = tuple[str, str]
"""Template id and configuration as text."""
DISPATCH_GAIN = 0.01
"""Share of the general configuration's time that another one must save on a workload to be worth a kernel of its own.
"""
NOTHING: Mapping[Examinee, str] = MappingProxyType({})


def build_verdict(
    context: Context,
    comparisons: Sequence[Compared],
    general: Sequence[tuple[str, Config]],
    disqualified: Mapping[Examinee, str] = NOTHING,
) -> Verdict:
    """What the comparisons show.

    The general configuration is the one of `general` with the least weighted geometric mean of time over baseline on
    the tuned workloads, among those that are right on every workload, held-out ones included. `regret` of a held-out
    workload is the general configuration's time over the best finalist's there, less 1. disqualified: what examinations
    rejected, and why; such a finalist wins nothing there.
    """
    met = {compared.workload: compared for compared in comparisons}
    by_workload = {
        compared.workload: {_key(entry.template, entry.config): entry for entry in compared.entries}
        for compared in comparisons
    }
    tuned = [workload for workload in context.tuned if workload.name in by_workload]
    held_out = [workload for workload in context.held_out if workload.name in by_workload]
    valid: list[tuple[float, Key]] = []
    out: list[Disqualified] = []
    for template, config in general:
        key = _key(template, config)
        entries = {workload.name: by_workload[workload.name].get(key) for workload in (*tuned, *held_out)}
        reason = _why_out(key, entries, disqualified)
        if reason is not None:
            out.append(Disqualified(template=template, config=config, workload=reason[0], why=reason[1]))
            continue
        ratios = {
            w.name: entry.comparison.ratio
            for w in tuned
            if (entry := entries[w.name]) is not None and entry.comparison is not None
        }
        valid.append((weighted_geomean(ratios, context.weights), key))
    ratio, winner = min(valid) if valid else (None, None)
    rows, unseen = (
        [
            _row(context, workload, by_workload[workload.name], winner, disqualified).model_copy(
                update={"opponents": _opponents(met[workload.name], winner)}
            )
            for workload in workloads
        ]
        for workloads in (tuned, held_out)
    )
    chosen = next((Winner(template=t, config=c) for t, c in general if winner == _key(t, c)), None)
    return Verdict(
        general=chosen,
        ratio=ratio,
        tuned=tuple(rows),
        held_out=tuple(unseen),
        disqualified=tuple(out),
        dispatch=tuple(used for row in rows if (used := dispatched(row, chosen)) is not None),
        sentence=_sentence(ratio, rows, unseen, len(out)),
    )


def _why_out(
    key: Key, entries: Mapping[str, FinalistResult | None], disqualified: Mapping[Examinee, str]
) -> tuple[str, str] | None:
    """The workload on which a general finalist is out, and why; None where it is in."""
    if (why := disqualified.get((*key, ""))) is not None:
        return "all", why
    failures = ((name, entry.failure) for name, entry in entries.items() if entry is not None)
    return next(((name, describe(failure)) for name, failure in failures if failure is not None), None)


def least_seconds(verdict: Verdict) -> dict[str, float]:
    """The shortest time that any kernel of the verdict took, by workload."""
    found = {}
    for row in (*verdict.tuned, *verdict.held_out):
        figures = (row.general, row.best)
        taken = [row.baseline_seconds, *(one.seconds for one in figures if one is not None)]
        if known := [seconds for seconds in taken if seconds is not None]:
            found[row.workload] = min(known)
    return found


def dispatched(row: WorkloadRow, general: Winner | None) -> Dispatched | None:
    """What to use for a workload instead of the baseline: the best there where it gains enough over the general
    configuration, and their intervals are apart. None where nothing is shown to be faster than the baseline."""
    if row.best is None or row.best.verdict != "faster":
        return None
    used: Winner = row.best
    figures: Figures = row.best
    if (
        general is not None
        and row.general is not None
        and row.general.verdict == "faster"
        and (row.best.high >= row.general.low or row.best.ratio >= (1 - DISPATCH_GAIN) * row.general.ratio)
    ):
        used, figures = general, row.general
    return Dispatched(
        template=used.template,
        config=used.config,
        seconds=figures.seconds,
        ratio=figures.ratio,
        low=figures.low,
        high=figures.high,
        verdict=figures.verdict,
        workload=row.workload,
        sizes=row.sizes,
        types=row.types,
    )


def _key(template: str, config: Config) -> Key:
    return template, config_key(config)


def _row(
    context: Context,
    workload: Workload,
    entries: Mapping[Key, FinalistResult],
    winner: Key | None,
    disqualified: Mapping[Examinee, str],
) -> WorkloadRow:
    measured = {
        key: entry.comparison
        for key, entry in entries.items()
        if entry.comparison is not None and (*key, workload.name) not in disqualified and (*key, "") not in disqualified
    }
    floor = context.floor(workload)
    best_key = min(measured, key=lambda key: measured[key].ratio, default=None)
    best = None
    if best_key is not None:
        figures = Figures.of(measured[best_key]).model_dump()
        best = BestHere(template=best_key[0], config=entries[best_key].config, **figures)
    general = Figures.of(measured[winner]) if winner is not None and winner in measured else None
    return WorkloadRow(
        workload=workload.name,
        sizes=workload.sizes,
        types=workload.types,
        floor_seconds=floor,
        baseline_seconds=next(iter(measured.values())).baseline.median if measured else None,
        general=general,
        best=best,
        share_of_floor=floor / general.seconds if floor and general is not None else None,
        regret=general.ratio / best.ratio - 1 if general is not None and best is not None else None,
    )


def _opponents(compared: Compared, winner: Key | None) -> tuple[OpponentRow, ...]:
    """The opponents of a comparison, beside the general configuration."""
    keys = [_key(entry.template, entry.config) for entry in compared.entries]
    at = keys.index(winner) if winner in keys else None
    rows = []
    for one in compared.opponents:
        against = one.against[at] if at is not None and at < len(one.against) else None
        rows.append(
            OpponentRow(
                name=one.name,
                label=one.label,
                seconds=None if one.comparison is None else one.comparison.ratio * one.comparison.baseline.median,
                ratio=None if against is None else against.ratio,
                low=None if against is None else against.low,
                high=None if against is None else against.high,
                why=one.why,
            )
        )
    return tuple(rows)


def _sentence(
    ratio: float | None, rows: Sequence[WorkloadRow], held_out: Sequence[WorkloadRow], disqualified: int
) -> str:
    """The verdict first, the number after it, and what speaks against it."""
    out = f"; {disqualified} finalist(s) failed the final check" if disqualified else ""
    if ratio is None:
        return f"No configuration is right on every workload{out}."
    faster, slower = _count(rows, "faster"), _count(rows, "slower")
    lost = _count(held_out, "slower")
    losses = [f"slower on {slower} of {len(rows)} tuned workloads"] if slower else []
    losses += [f"slower on {lost} of {len(held_out)} held-out workloads"] if lost else []
    against = "".join(f"; {loss}" for loss in losses)
    if faster:
        where = f"on {faster} of {len(rows)} tuned workloads" if len(rows) > 1 else "on the tuned workload"
        keep = " Keep the baseline where it is not beaten." if losses else ""
        return f"Faster than the baseline {where}: {_measured(ratio, rows)}{against}{out}.{keep}"
    alone = sum(row.best is not None and row.best.verdict == "faster" for row in rows)
    if alone:
        return (
            f"No configuration for all workloads is shown to be faster than the baseline, but {alone} of {len(rows)} "
            f"tuned workloads have a faster one of their own. For all: measured {_measured(ratio, rows)}{against}{out}."
        )
    return f"No reliable speed-up: keep the baseline. Measured {_measured(ratio, rows)}{against}{out}."


def _count(rows: Sequence[WorkloadRow], verdict: str) -> int:
    return sum(row.general is not None and row.general.verdict == verdict for row in rows)


def _measured(ratio: float, rows: Sequence[WorkloadRow]) -> str:
    """The speed-up over all tuned workloads, with its interval where it is that of one comparison."""
    general = rows[0].general if len(rows) == 1 else None
    if general is None:
        return f"{1 / ratio:.2f}x over all tuned workloads"
    return f"{1 / ratio:.2f}x, 99 % interval {_times(1 / general.high)} to {_times(1 / general.low)}"


def _times(speedup: float) -> str:
    return f"{speedup:.2f}x" if speedup < 10 else f"{speedup:.0f}x"
