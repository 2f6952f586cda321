"""A run's measurements as a table for other programs, as CSV (RFC 4180): one row for each configuration and workload,
and one for each finalist and workload of a comparison.

Reads the journal, so that a run that has not ended has its table too.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from tunesmith.graph.journal.events import Compared, Evaluated
from tunesmith.graph.journal.log import RunLog
from tunesmith.graph.journal.records import FinalistResult
from tunesmith.graph.journal.store import Journal, JournalError
from tunesmith.graph.outputs import require_writable_file
from tunesmith.kernels.outcome import Evaluation, Measured, describe
from tunesmith.kernels.spec.parameter import config_key

FIRST = ("evaluation", "stage", "template", "workload", "outcome", "seconds", "low", "high", "samples", "dropped")
COMPARED = ("ratio", "ratio_low", "ratio_high", "verdict")
LAST = ("registers", "shared_bytes", "spill_bytes", "compile_seconds", "lane_seconds", "detail")


def write_csv(folder: Path, out: Path, *, force: bool = False) -> int:
    """Writes the table of the run in `folder` to `out`, and gives the number of rows. force: also over another's file.

    evaluation counts from 1 in the order in which they ended; the baseline is 0. Then what was measured: seconds of a
    launch with their 95 % interval, empty where it failed. A column for each parameter of any template follows (named
    "parameter samples" where it shares its name with another); then the compiler's figures, wall-clock seconds of the
    evaluation, and why it failed. Rows whose outcome is "compared" come last: ratio is the finalist's time over the
    baseline's, both timed in turn, with its 99 % interval and what that shows; seconds is the baseline's median times
    the ratio. Of opponents, for which `evaluation` is empty and `template` the name and label, the times are their own.
    Raises `JournalError`, and `OutputError` where `out` must not be written.
    """
    with Journal(folder, create=False, reading=True) as journal:
        log = RunLog(journal)
        if log.started is None:
            raise JournalError(f"{folder} has a journal without a beginning, so there is nothing to write as a table.")
        baseline = [] if log.baseline is None else [("", log.baseline)]
        found = [(entry.stage, entry.event.evaluation) for entry in log.entries(Evaluated)]
        compared = [(entry.stage, entry.event) for entry in log.entries(Compared)]
    names = list(dict.fromkeys(name for _, evaluation in found for name in evaluation.config))
    numbered = [(0, *one) for one in baseline] + [(number, *one) for number, one in enumerate(found, 1)]
    rows = [row for number, stage, evaluation in numbered for row in _rows(number, stage, evaluation)]
    numbers = {(one.template, config_key(one.config)): number for number, _, one in numbered}
    for stage, comparison in compared:
        for entry in comparison.entries:
            number = numbers.get((entry.template, config_key(entry.config)))
            rows.append(_comparison_row(number, stage, comparison, entry))
        rows += _opponents(stage, comparison)
    fields = [*FIRST, *COMPARED, *map(_column, names), *LAST]
    require_writable_file(out, "--csv", begins=",".join((*FIRST, *COMPARED)).encode(), force=force)
    there = out.exists()
    try:
        with out.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fields, restval="")
            writer.writeheader()
            writer.writerows(rows)
    except OSError as error:
        if not there:
            with suppress(OSError):
                out.unlink(missing_ok=True)
        raise JournalError(f"{out} cannot be written ({error.strerror}); choose another --csv.") from error
    return len(rows)


def _rows(number: int, stage: str, evaluation: Evaluation) -> Iterator[dict[str, Any]]:
    resources = evaluation.resources
    for workload, outcome in evaluation.outcomes.items():
        row: dict[str, Any] = {
            "evaluation": number,
            "stage": stage,
            "template": evaluation.template,
            "workload": workload,
            "outcome": outcome.kind,
            "registers": resources.registers,
            "shared_bytes": resources.shared,
            "spill_bytes": resources.spills,
            "compile_seconds": evaluation.compile_seconds,
            "lane_seconds": evaluation.lane_seconds,
        }
        if isinstance(outcome, Measured):
            row |= {
                "seconds": outcome.seconds,
                "low": outcome.low,
                "high": outcome.high,
                "samples": outcome.samples,
                "dropped": int(outcome.dropped),
            }
        else:
            row["detail"] = describe(outcome)
        yield row | {_column(name): value for name, value in evaluation.config.items()}


def _opponents(stage: str, compared: Compared) -> Iterator[dict[str, Any]]:
    for one in compared.opponents:
        row: dict[str, Any] = {"stage": stage, "template": f"{one.name} ({one.label})", "workload": compared.workload}
        if one.comparison is None:
            yield row | {"outcome": "not_timed", "detail": one.why}
        else:
            timed = one.comparison.candidate
            figures = {"seconds": timed.median, "low": timed.low, "high": timed.high, "samples": timed.samples}
            yield row | {"outcome": "measured", **figures}


def _comparison_row(number: int | None, stage: str, comparison: Compared, entry: FinalistResult) -> dict[str, Any]:
    row: dict[str, Any] = {
        "evaluation": number,
        "stage": stage,
        "template": entry.template,
        "workload": comparison.workload,
        "outcome": "compared",
    }
    if (found := entry.comparison) is not None:
        row |= {
            "seconds": found.ratio * found.baseline.median,
            "ratio": found.ratio,
            "ratio_low": found.low,
            "ratio_high": found.high,
            "verdict": found.verdict,
        }
    elif entry.failure is not None:
        row |= {"outcome": entry.failure.kind, "detail": describe(entry.failure)}
    return row | {_column(name): value for name, value in entry.config.items()}


def _column(parameter: str) -> str:
    return f"parameter {parameter}" if parameter in (*FIRST, *COMPARED, *LAST) else parameter
