"""What a reader should know before believing a result, the most important first."""

from __future__ import annotations

import re

from tunesmith.graph.results.summary import Summary, unsteady


def warnings(summary: Summary) -> list[str]:
    """What happened in this run that weakens its result, the gravest first; empty where nothing did."""
    shaky = unsteady(summary)
    rows = (*summary.tuned, *summary.held_out)
    slower = [row.workload for row in rows if row.general is not None and row.general.verdict == "slower"]
    found = list(shaky)
    if slower:
        found.append(f"The general configuration is slower than the baseline on {', '.join(slower)}.")
    wrong = [one for one in summary.examined if one.verdict != "accepted"]
    found += [f"A winner was {one.verdict} when it was examined: {one.detail.rstrip('.')}." for one in wrong]
    if summary.disqualified:
        found.append(
            f"{len(summary.disqualified)} finalist(s) of the search failed in the final comparison or examination."
        )
    if not summary.ended_by:
        found.append("The run was interrupted: this is what it had found by then.")
    return found + [note for note in summary.notes if note not in shaky]


def standing(summary: Summary) -> list[str]:
    """What holds for every result of this kind."""
    driver = f", driver {summary.device.driver}" if summary.device.driver else ""
    found = [
        "Times are of one launch with cold caches. In a program whose data are still in the cache, and whose launches "
        "follow each other closely, others may win.",
        f"The baseline is labelled '{summary.baseline_label}': a speed-up says how much faster than that kernel.",
        f"The result belongs to {summary.device.name}{driver}: on another device, tune again.",
    ]
    by_why = dict[str, list[str]]()
    for step in dict.fromkeys(step for one in summary.examined for step in one.skipped):
        # Hundreds of made-up steps share a reason but for the numbers in it.
        by_why.setdefault(re.sub(r"[0-9][0-9.e+-]*|nan|inf", "#", step.partition(": ")[2]), []).append(step)
    for steps in by_why.values():
        more = f" ({len(steps) - 1} more like it)" if len(steps) > 1 else ""
        found.append(f"The winners' examination left out: {steps[0].rstrip('.')}{more}.")
    return found
