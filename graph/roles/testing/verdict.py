"""The verdict of a test: pure arithmetic over duels. General configuration, per-shape table, held-out regret."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tunesmith.graph.context import Context
from tunesmith.kernels.measure.bench import weighted_geomean
from tunesmith.kernels.outcome import describe, from_json
from tunesmith.kernels.spec.parameter import Config, config_key
from tunesmith.kernels.spec.task import Workload

Key = tuple[str, str]
Examined = tuple[str, str, str]
"""Template id, configuration, and the workload it was examined for: empty for all."""
DISPATCH_GAIN = 0.01
"""Share of the general configuration's time that another one must save on a workload to be worth a kernel of its own.
"""
NOTHING: Mapping[Examined, str] = MappingProxyType({})


def build_verdict(
    context: Context,
    duels: Sequence[Mapping[str, Any]],
    general: Sequence[tuple[str, Config]],
    struck: Mapping[Examined, str] = NOTHING,
) -> dict[str, Any]:
    """What the duels show, as JSON.

    The general configuration is the one of `general` with the least weighted geometric mean of time over baseline on
    the tuned workloads, among those that are right on every workload, held-out ones included. `regret` of a held-out
    workload is the general configuration's time over the best finalist's there, less 1. struck: what examinations
    rejected, and why; such a finalist wins nothing there.
    """
    by_workload = {duel["workload"]: {_key(entry): entry for entry in duel["entries"]} for duel in duels}
    tuned = [workload for workload in context.tuned if workload.name in by_workload]
    held_out = [workload for workload in context.held_out if workload.name in by_workload]
    valid: list[tuple[float, Key]] = []
    disqualified: list[dict[str, Any]] = []
    for template, config in general:
        key = (template, config_key(config))
        if (why := struck.get((*key, ""))) is not None:
            disqualified.append({"template": template, "config": config, "workload": "all", "why": why})
            continue
        entries = {workload.name: by_workload[workload.name].get(key) for workload in (*tuned, *held_out)}
        failed = next(((name, e) for name, e in entries.items() if e is not None and "failure" in e), None)
        if failed is not None:
            why = describe(from_json(failed[1]["failure"]))
            disqualified.append({"template": template, "config": config, "workload": failed[0], "why": why})
            continue
        ratios = {w.name: e["comparison"]["ratio"] for w in tuned if (e := entries[w.name]) is not None}
        valid.append((weighted_geomean(ratios, context.weights), key))
    winner = min(valid)[1] if valid else None
    rows = [_row(context, workload, by_workload[workload.name], winner, struck) for workload in tuned]
    unseen = [_row(context, workload, by_workload[workload.name], winner, struck) for workload in held_out]
    ratio = min(valid)[0] if valid else None
    chosen = next(((t, c) for t, c in general if winner == (t, config_key(c))), None)
    return {
        "general": None if chosen is None else {"template": chosen[0], "config": chosen[1]},
        "ratio": ratio,
        "tuned": rows,
        "held_out": unseen,
        "disqualified": disqualified,
        "dispatch": [entry for row in rows if (entry := _dispatched(row, chosen)) is not None],
        "sentence": _sentence(ratio, rows, len(disqualified)),
    }


def least_seconds(verdict: Mapping[str, Any]) -> dict[str, float]:
    """The shortest time that any kernel of the verdict took, by workload."""
    found = {}
    for row in (*verdict["tuned"], *verdict["held_out"]):
        taken = [row["baseline_seconds"], *(row[key]["seconds"] for key in ("general", "best") if row[key])]
        if known := [seconds for seconds in taken if seconds is not None]:
            found[row["workload"]] = min(known)
    return found


def _dispatched(row: Mapping[str, Any], general: tuple[str, Config] | None) -> dict[str, Any] | None:
    """What to use for a workload: the best there where it gains enough over the general configuration."""
    best, usual = row["best"], row["general"]
    if best is None:
        return None
    if general is not None and usual is not None and best["ratio"] >= (1 - DISPATCH_GAIN) * usual["ratio"]:
        best = {"template": general[0], "config": general[1], **usual}
    return {**best, "workload": row["workload"], "sizes": row["sizes"], "types": row["types"]}


def _key(entry: Mapping[str, Any]) -> Key:
    return entry["template"], config_key(entry["config"])


def _row(
    context: Context,
    workload: Workload,
    entries: Mapping[Key, Mapping[str, Any]],
    winner: Key | None,
    struck: Mapping[Examined, str],
) -> dict[str, Any]:
    measured = {
        key: entry["comparison"]
        for key, entry in entries.items()
        if "comparison" in entry and (*key, workload.name) not in struck and (*key, "") not in struck
    }
    floor = context.floor(workload)
    row: dict[str, Any] = {
        "workload": workload.name,
        "sizes": workload.sizes,
        "types": workload.types,
        "floor_seconds": floor,
        "baseline_seconds": next(iter(measured.values()))["baseline"]["median"] if measured else None,
        "general": None,
        "best": None,
        "share_of_floor": None,
        "regret": None,
    }
    if measured:
        best_key = min(measured, key=lambda key: measured[key]["ratio"])
        best_config = next(entry["config"] for key, entry in entries.items() if key == best_key)
        row["best"] = {"template": best_key[0], "config": best_config, **_figures(measured[best_key])}
    if winner is not None and winner in measured:
        row["general"] = _figures(measured[winner])
        row["regret"] = row["general"]["ratio"] / row["best"]["ratio"] - 1
        row["share_of_floor"] = floor / row["general"]["seconds"] if floor else None
    return row


def _figures(comparison: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "seconds": comparison["candidate"]["median"],
        "ratio": comparison["ratio"],
        "low": comparison["low"],
        "high": comparison["high"],
        "verdict": comparison["verdict"],
    }


def _sentence(ratio: float | None, rows: Sequence[Mapping[str, Any]], disqualified: int) -> str:
    out = f"; {disqualified} finalist(s) failed the final check" if disqualified else ""
    if ratio is None:
        return f"no configuration is right on every workload{out}."
    shown = sum(row["general"] is not None and row["general"]["verdict"] == "faster" for row in rows)
    found = (
        f"{1 / ratio:.2f}x the baseline's speed over all tuned workloads, shown faster on {shown} of {len(rows)}{out}."
    )
    if any(row["best"] is not None and row["best"]["verdict"] == "faster" for row in rows):
        return found
    return f"{found} Nothing was shown to be faster than the baseline: keep it."
