"""The verdict of a test: pure arithmetic over comparisons, and its sentences; also the values that rejected
configurations have in common, and the configurations that may be right instead."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

from tunesmith.graph.context import Context
from tunesmith.graph.journal.events import (
    ENERGY_MARGIN,
    BestHere,
    Compared,
    Dispatched,
    Disqualified,
    Figures,
    FrontPoint,
    OpponentRow,
    Verdict,
    Winner,
    WorkloadRow,
)
from tunesmith.graph.journal.log import RunLog, VerifiedKernel, weighted_geomean
from tunesmith.kernels.outcome import Objective, describe
from tunesmith.kernels.spec.task import Workload
from tunesmith.kernels.spec.template import Config, Parameter, Template

MIN_REJECTED = 2
"""Rejected configurations of a template from which on their common values count as a defect."""
NOT_EXAMINED = "it was not examined"
"""Begins the reason for which an unexamined finalist cannot win."""
MAX_VARIATIONS = 4
"""Variations of one rejected configuration that are measured."""
_RELAXED = re.compile("fast|approx|relax|unsafe", re.IGNORECASE)
"""Names of parameters that relax arithmetic: the likeliest reason of a rejection."""


def common_defect(rejected: Sequence[Config], accepted: Sequence[Config], measured: Sequence[Config]) -> Config:
    """The values that all `rejected` configurations of a template have, no accepted one has, and not all measured ones
    have; of these the values that relax arithmetic, if any. Empty for fewer than `MIN_REJECTED`."""
    if len(rejected) < MIN_REJECTED:
        return {}
    shared = {
        name: value
        for name, value in rejected[0].items()
        if all(one.get(name) == value for one in rejected)
        and not any(one.get(name) == value for one in accepted)
        and any(one.get(name) != value for one in measured)
    }
    relaxed = {name: value for name, value in shared.items() if _RELAXED.search(name)}
    return relaxed or shared


def defects(log: RunLog) -> dict[str, Config]:
    """By template, the values that its rejected configurations have in common (`common_defect`)."""
    examined: dict[str, dict[str, list[Config]]] = {}
    for one in log.examinations().values():
        examined.setdefault(one.template, {}).setdefault(one.verdict, []).append(one.config)
    found = {}
    for template, by_verdict in examined.items():
        evaluations = (entry.event.evaluation for entry in log.evaluations_of(template))
        measured = [one.config for one in evaluations if one.failure is None]
        if defect := common_defect(by_verdict.get("rejected", []), by_verdict.get("accepted", []), measured):
            found[template] = defect
    return found


def has(config: Config, defect: Config) -> bool:
    """Whether `config` has all values of a defect."""
    return bool(defect) and all(config.get(name) == value for name, value in defect.items())


def variations(template: Template, rejected: Config, defect: Config) -> list[Config]:
    """`rejected` with one value changed to its neighbour: first of parameters that relax arithmetic, then of the known
    `defect`, then switches that are on, then others; at most `MAX_VARIATIONS`, feasible or not."""

    def rank(parameter: Parameter) -> tuple[bool, bool, bool]:
        is_on = set(parameter.values) in ({False, True}, {0, 1}) and bool(rejected[parameter.name])
        return not _RELAXED.search(parameter.name), parameter.name not in defect, not is_on

    found = []
    for parameter in sorted(template.parameters, key=rank):
        at = parameter.values.index(rejected[parameter.name])
        if beside := (*parameter.values[:at][-1:], *parameter.values[at + 1 :][:1]):
            found.append({**rejected, parameter.name: beside[0]})
    return found[:MAX_VARIATIONS]


Key = tuple[str, str]
"""Template id and configuration as text (`Winner.key`)."""
DISPATCH_GAIN = 0.01
"""Minimum saving on a workload, as a share of the general configuration's time, for a kernel of its own."""
FOR_ALL = "*"
"""In place of a workload: disqualified as the general configuration, and for no shape alone."""


def build_verdict(
    context: Context,
    comparisons: Iterable[Compared],
    general: Sequence[Winner],
    disqualified: Mapping[VerifiedKernel, str],
) -> Verdict:
    """The verdict of the comparisons.

    The general configuration is the finalist of `general` with the least weighted geometric mean of time over baseline
    on the tuned workloads that is right on every workload, also on held-out ones. With another objective, energy or its
    product with time replaces time. disqualified: finalists that win nothing, with reasons."""
    met = {compared.workload: compared for compared in comparisons}
    of, weights = context.settings.objective, context.task.weights
    measured = {name: _figures(compared) for name, compared in met.items()}
    kinds: tuple[Objective, ...] = ("time", "energy", of)
    workloads = [workload for workload in (*context.tuned, *context.held_out) if workload.name in met]
    finalists = {finalist.key: finalist for finalist in general}
    means: dict[Key, dict[Objective, float | None]] = {}
    out: list[Disqualified] = []
    for key, finalist in finalists.items():
        failures = [("all", disqualified[*key, where]) for where in ("", FOR_ALL) if (*key, where) in disqualified]
        results = [(w.name, entry.failure) for w in workloads for entry in met[w.name].entries if entry.key == key]
        failures += [(name, describe(failure)) for name, failure in results if failure]
        if failures:
            where, why = failures[0]
            out.append(Disqualified(**dict(finalist), workload=where, why=why))
            continue
        here = {w.name: measured[w.name][key] for w in workloads if not w.held_out and key in measured[w.name]}
        means[key] = {one: _mean({name: at.quantity(one) for name, at in here.items()}, weights) for one in kinds}
    # A finalist of unknown energy wins only where all energies are unknown; then the fastest does.
    best = min(means, key=lambda key: (*_least(means[key][of], means[key]["time"]), key), default=None)
    chosen = None if best is None else finalists[best]
    ratio, energy = (None, None) if best is None else (means[best]["time"], means[best]["energy"])
    tuned, held_out, dispatch = list[WorkloadRow](), list[WorkloadRow](), list[Dispatched]()
    for workload in workloads:
        row = _row(context, workload, met[workload.name], measured[workload.name], best, disqualified)
        used: Winner | None = chosen if row.general is not None and row.general.gains(of) else None
        if not workload.held_out:
            used = own = dispatched(row, chosen, of)
            dispatch += [] if own is None else [own]
        exported = row.best is not None and used is not None and row.best.key == used.key
        (held_out if workload.held_out else tuned).append(row.model_copy(update={"best_exported": exported}))
    unexamined = sum(one.why.startswith(NOT_EXAMINED) for one in out)
    left = f"; {unexamined} could not be examined (the report says why; see --allow-unexamined)" if unexamined else ""
    failed = (f"; {wrong} finalist(s) failed the final check" if (wrong := len(out) - unexamined) else "") + left
    if ratio is None:
        sentence = f"No configuration is shown to be right on every workload{failed}: keep the baseline."
    elif of == "time":
        sentence = sentence_of(ratio, tuned, held_out, failed)
    else:
        sentence = _energy_sentence(of, ratio, energy, tuned, failed)
    return Verdict(
        general=chosen,
        ratio=ratio,
        tuned=tuple(tuned),
        held_out=tuple(held_out),
        disqualified=tuple(out),
        dispatch=tuple(dispatch),
        sentence=sentence,
        unexamined=unexamined,
        objective=of,
        energy_ratio=energy,
        front=_front(means, finalists),
    )


def least_seconds(verdict: Verdict) -> dict[str, float]:
    """The shortest time that any kernel of the verdict took, by workload."""
    return {
        row.workload: min([row.baseline_seconds, *(one.seconds for one in (row.general, row.best) if one is not None)])
        for row in verdict.rows
        if row.baseline_seconds is not None
    }


def _figures(compared: Compared) -> dict[Key, BestHere]:
    """The finalists that did not fail, with their figures."""
    found = {}
    for entry in compared.entries:
        if entry.comparison is not None:
            figures = Figures.of(entry.comparison, entry.energy, compared.baseline_energy)
            found[entry.key] = BestHere(template=entry.template, config=entry.config, **dict(figures))
    return found


def _mean(values: Mapping[str, float | None], weights: Mapping[str, float]) -> float | None:
    """The weighted geometric mean by workload; None where a value is not known."""
    known = {name: value for name, value in values.items() if value is not None}
    return weighted_geomean(known, weights) if known and len(known) == len(values) else None


def _least(value: float | None, time: float | None) -> tuple[float, float]:
    """Ranks a finalist by the objective, then by time; an unknown objective comes last."""
    assert time is not None, "a finalist without a time on a workload is out"
    return math.inf if value is None else value, time


def _front(
    means: Mapping[Key, Mapping[Objective, float | None]], configs: Mapping[Key, Winner]
) -> tuple[FrontPoint, ...]:
    """The finalists by time and energy, the fastest first."""
    both = [(key, found["time"], found["energy"]) for key, found in means.items()]
    known = [(key, time, energy) for key, time, energy in both if time is not None and energy is not None]
    points = []
    for key, time, energy in known:
        beaten = any((t, e) != (time, energy) and t <= time and e <= energy for _, t, e in known)
        points.append(FrontPoint(**dict(configs[key]), ratio=time, energy_ratio=energy, best=not beaten))
    return tuple(sorted(points, key=lambda point: (point.ratio, point.energy_ratio)))


def dispatched(row: WorkloadRow, general: Winner | None, of: Objective = "time") -> Dispatched | None:
    """The kernel for a workload instead of the baseline: the best there where it gains enough over the general
    configuration, and their intervals are apart. None where nothing is shown to be better than the baseline."""
    best, mine = row.best, row.general
    if best is None or not best.gains(of):
        return None
    used = dict(best)
    if general is not None and mine is not None and mine.gains(of):
        if of == "time":
            near = best.high >= mine.low or best.ratio >= (1 - DISPATCH_GAIN) * mine.ratio
        else:
            least, other = best.quantity(of), mine.quantity(of)
            near = least is None or other is None or least >= (1 - ENERGY_MARGIN) * other
        used = {**dict(mine), **dict(general)} if near else used
    return Dispatched(**used, workload=row.workload, sizes=row.sizes, types=row.types)


def _row(
    context: Context,
    workload: Workload,
    compared: Compared,
    figures: Mapping[Key, BestHere],
    winner: Key | None,
    disqualified: Mapping[VerifiedKernel, str],
) -> WorkloadRow:
    """The results on one workload; which kernel serves it is not decided yet."""
    of, floor = context.settings.objective, context.floor(workload)
    out = {key for key in figures if {(*key, workload.name), (*key, "")} & disqualified.keys()}
    measured = {key: found for key, found in figures.items() if key not in out}
    best = min(measured.values(), key=lambda one: _least(one.quantity(of), one.ratio), default=None)
    general = None if winner is None else measured.get(winner)
    mine, least = (None if one is None else one.quantity(of) for one in (general, best))
    baseline = next((entry.comparison.baseline for entry in compared.entries if entry.comparison is not None), None)
    energy = compared.baseline_energy
    return WorkloadRow(
        workload=workload.name,
        sizes=workload.sizes,
        types=workload.types,
        floor_seconds=floor,
        baseline_seconds=None if baseline is None or not measured else baseline.median,
        baseline_joules=None if energy is None else energy.joules,
        general=general,
        best=best,
        share_of_floor=floor / general.seconds if floor and general is not None else None,
        regret=mine / least - 1 if mine is not None and least is not None else None,
        opponents=_opponents(compared, winner),
    )


def _opponents(compared: Compared, winner: Key | None) -> tuple[OpponentRow, ...]:
    """The opponents of a comparison, beside the general configuration."""
    keys, rows = [entry.key for entry in compared.entries], []
    for one in compared.opponents:
        over = None if one.comparison is None else Figures.of(one.comparison)
        against = dict(zip(keys, one.against, strict=False)).get(winner) if winner else None
        found = {name: getattr(one, name) for name in ("name", "label", "why", "first_seconds", "choice")}
        found |= {} if against is None else {name: getattr(against, name) for name in ("ratio", "low", "high")}
        rows.append(OpponentRow(seconds=None if over is None else over.seconds, over_baseline=over, **found))
    return tuple(rows)


def sentence_of(ratio: float, rows: Sequence[WorkloadRow], held_out: Sequence[WorkloadRow], out: str) -> str:
    """The verdict first, the number after it, and the losses. out: the clause on finalists that failed."""
    losses = [
        f"{word} on {count} of {len(group)} {kind} workloads" + _served(group, verdict)
        for group, kind, verdict, word in (
            (rows, "tuned", "slower", "slower"),
            (held_out, "held-out", "slower", "slower"),
            (held_out, "held-out", "no difference shown", "unclear"),
        )
        if (count := _count(group, verdict))
    ]
    faster = [row.types for row in (*rows, *held_out) if _count([row], "faster")]
    others = {tuple(row.types.items()) for row in (*rows, *held_out) if faster and row.types not in faster}
    for types in sorted(others):
        losses.append(f"not shown to be faster with {', '.join(f'{name}={dtype}' for name, dtype in types)}")
    measured = "; ".join([_measured(ratio, rows), *losses]) + out
    if count := _count(rows, "faster"):
        unbeaten = [row for row in (*rows, *held_out) if row.best is None or row.best.verdict != "faster"]
        keep = " Keep the baseline where it is not beaten." if losses and unbeaten else ""
        return f"Faster than the baseline {_where(count, rows)}: {measured}.{keep}"
    if alone := sum(row.best is not None and row.best.verdict == "faster" for row in rows):
        return (
            f"No configuration for all workloads is shown to be faster than the baseline, but {alone} of {len(rows)} "
            f"tuned workloads have a faster one of their own. For all: measured {measured}."
        )
    return f"No reliable speed-up: keep the baseline. Measured {measured}."


def _energy_sentence(of: Objective, ratio: float, energy: float | None, rows: Sequence[WorkloadRow], out: str) -> str:
    """The verdict where energy, or its product with time, was made small."""
    if energy is None:
        return f"The energy of the finalists could not be measured; time: {_measured(ratio, ())}{out}."
    over_all = " over all of them" if len(rows) > 1 else ""
    means = f"{energy:.2f} times its energy and {ratio:.2f} times its time{over_all}{out}."
    if not (gained := sum(row.general is not None and row.general.gains(of) for row in rows)):
        return f"No reliable gain: keep the baseline. Measured {means}"
    less = "Less energy" if of == "energy" else "A smaller product of energy and time"
    return f"{less} than the baseline {_where(gained, rows)}: {means}"


def _served(rows: Sequence[WorkloadRow], verdict: str) -> str:
    """On how many of the workloads with this verdict another configuration is faster, which best/ holds for them."""
    others = [row.best for row in rows if row.general is not None and row.general.verdict == verdict]
    faster = sum(one is not None and one.verdict == "faster" for one in others)
    return f" (another configuration is faster on {'all' if faster == len(others) else faster} of these)" * bool(faster)


def _count(rows: Sequence[WorkloadRow], verdict: str) -> int:
    return sum(row.general is not None and row.general.verdict == verdict for row in rows)


def _where(count: int, rows: Sequence[WorkloadRow]) -> str:
    return f"on {count} of {len(rows)} tuned workloads" if len(rows) > 1 else "on the tuned workload"


def _measured(ratio: float, rows: Sequence[WorkloadRow]) -> str:
    """The speed-up over all tuned workloads, with its interval where it is that of one comparison."""
    general = rows[0].general if len(rows) == 1 else None
    if general is None:
        return f"{1 / ratio:.2f}x over all tuned workloads"
    return f"{1 / ratio:.2f}x, 99 % interval {1 / general.high:.2f}x to {1 / general.low:.2f}x"
