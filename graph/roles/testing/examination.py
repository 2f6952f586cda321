"""The last word on what a run ends with: the same full verdict that `tunesmith check` gives, in the run's own journal.

A search checks every configuration, but on the tuned workloads and the task's own contents only. Winners must also be
right on odd shapes and other contents, be as accurate as the baseline, and pass compute-sanitizer where there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tunesmith.graph.context import Context
from tunesmith.graph.progress import Progress
from tunesmith.graph.roles.testing.verdict import Examined
from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.outcome import describe
from tunesmith.kernels.spec.parameter import config_key

SEED = 7_000_003
"""Added to the run's seed for the contents of examinations."""


def struck(context: Context) -> dict[Examined, str]:
    """What examinations of this run rejected, and why."""
    return {
        _key(event.data): event.data["detail"]
        for event in context.journal.events("examined")
        if event.data["verdict"] == "rejected"
    }


def examine_winners(context: Context, build: Callable[[Mapping[Examined, str]], dict[str, Any]]) -> dict[str, Any]:
    """The verdict that `build` makes of what is struck out, once all its winners are examined: the general
    configuration on everything, the others on the workload they won. Where one is rejected, the next best is a winner
    and is examined in turn."""
    while True:
        verdict = build(struck(context))
        known = {_key(event.data) for event in context.journal.events("examined")}
        waiting = [one for one in _winners(verdict) if _key(one) not in known]
        if not waiting:
            return verdict
        context.listener(Progress("test", f"examining {len(waiting)} winning configuration(s)"))
        jobs = [(context.template(one["template"]), one["config"], one["workload"] or None) for one in waiting]
        try:
            found = context.pool.examine(jobs, seed=context.settings.seed + SEED)
            failure = "" if isinstance(found, list) else describe(found)
        except TunesmithError as error:
            # The task is at fault: its baseline is wrong somewhere. That is worth knowing, and no reason to end here.
            found, failure = [], str(error)
        for at, one in enumerate(waiting):
            told = found[at].to_json() if isinstance(found, list) and found else _not_examined(failure)
            context.journal.append("examined", one | told)


def account(context: Context, verdict: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The examinations of the winners of `verdict`, as the summary shows them: verdict, how many checks, the largest
    error and the baseline's as shares of the tolerance, notes, and the content hashes of both kernels' code."""
    events = {_key(event.data): event.data for event in context.journal.events("examined")}
    rows = []
    for winner in _winners(verdict):
        data = events.get(_key(winner))
        if data is None:
            continue
        passed = [step for step in data["steps"] if "accuracy" in step]
        rows.append(
            winner
            | {
                "verdict": data["verdict"],
                "detail": data["detail"],
                "checks": len(passed),
                "skipped": [f"{step['step']}: {step['why']}" for step in data["steps"] if "why" in step],
                "largest_error": _largest(passed, "accuracy"),
                "baseline_error": _largest(passed, "baseline"),
                "notes": data["notes"],
                "artifacts": data["artifacts"],
            }
        )
    return rows


def _winners(verdict: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The general configuration, and what is used for a workload where that is another."""
    general = verdict["general"]
    found = [] if general is None else [{**general, "workload": ""}]
    return found + [
        {"template": row["template"], "config": row["config"], "workload": row["workload"]}
        for row in verdict["dispatch"]
        if general is None or not _same(row, general)
    ]


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return bool(one["template"] == other["template"] and config_key(one["config"]) == config_key(other["config"]))


def _key(one: Mapping[str, Any]) -> Examined:
    return one["template"], config_key(one["config"]), one["workload"]


def _not_examined(why: str) -> dict[str, Any]:
    return {"verdict": "not examined", "reason": "", "detail": why, "steps": [], "notes": [], "artifacts": {}}


def _largest(steps: list[dict[str, Any]], which: str) -> float | None:
    return max((one["largest"] for step in steps for one in step[which].values()), default=None)


__all__ = ["account", "examine_winners", "struck"]
