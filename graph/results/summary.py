"""The results of a run: as one value, which is the form of summary.json, as a table (CSV, RFC 4180), and beside
those of other runs of the task. Times of different runs were not taken in turn, and may be of different devices: only
the ratio to its own baseline is a paired measurement, so nothing here says that one run's kernel beats another's.

Owns how both are built from the run's log, and how summary.json is read. docs/summary.schema.json, which `make schema`
writes, is the schema of `Summary`.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tunesmith import __version__
from tunesmith.graph.context import Context
from tunesmith.graph.dispatch import Dispatching, dispatching
from tunesmith.graph.journal import events
from tunesmith.graph.journal.log import Journal, JournalError, RunLog, begun, failures_by_kind, not_a_run
from tunesmith.graph.models.opening import models_summary
from tunesmith.graph.roles.planner import no_template
from tunesmith.graph.roles.tester import account
from tunesmith.graph.settings import require_writable_file
from tunesmith.graph.state import Plan
from tunesmith.hw.errors import TunesmithError, refusals
from tunesmith.hw.probe import DeviceInfo
from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.outcome import Evaluation, Measured, describe
from tunesmith.kernels.rewrite.template import NAME, missing_rule
from tunesmith.kernels.spec.task import Task
from tunesmith.kernels.spec.taskfile import explain
from tunesmith.kernels.spec.template import Config, assignments, config_key, described

MAX_INTERVAL_RATIO = 1.5
"""Largest high over low of a useful interval; a comparison aims at 1.01."""
PACKAGES = (
    *("ray", "langgraph", "langchain-openai", "numpy", "cupy-cuda13x", "cupy-cuda12x", "cuda-bindings"),
    *("nvidia-cuda-nvrtc", "pyopencl"),
)


class TemplateRow(events.ResultRecord):
    """A template of the run. parent: a template's id, "baseline", or "library" for one of the task; ratio: the least
    time over baseline in a search; vetoed: why a role took it out, empty if none did."""

    id: str
    parent: str
    moves: tuple[str, ...]
    round: int
    evaluations: int
    ratio: float | None
    vetoed: str


class Summary(events.Verdict):
    """The results of a run. Besides the last verdict: settings: by name, as in a settings file; ended_by: why the run
    ended, empty while it goes on; seconds: working time of all sessions; from_cache: evaluations without a compilation;
    failures: evaluations by kind of failure; examined: the winners' full verdicts; dispatching: the kernel for further
    shapes; models: None without models; versions: of packages; started_at: seconds since the epoch."""

    task: str
    summary: str
    device: DeviceInfo
    baseline_label: str
    settings: dict[str, Any]
    ended_by: str
    seconds: float
    evaluations: int
    from_cache: int
    failures: dict[str, int]
    failure_examples: tuple[events.FailureExample, ...] = ()
    searches: tuple[events.Searched, ...]
    plans: tuple[Plan, ...]
    examined: tuple[events.ExaminationRow, ...]
    models: events.ModelsUsage | None
    templates: tuple[TemplateRow, ...]
    notes: tuple[str, ...] = ()
    dispatching: Dispatching | None = None
    roofline: Roofline
    versions: dict[str, str]
    started_at: float
    origin: events.Origin

    @property
    def ending(self) -> str:
        """Why the run ended, in words."""
        rounds = self.settings.get("rounds")
        return {
            "rounds": f"finished: {rounds} of {rounds} rounds",
            "evaluations": "finished: all evaluations are spent",
            "time": "ended by the time limit",
            "floor": "finished: the floor by the measured roofs is reached",
            "little gain": f"finished: the last round brought less than {self.settings.get('least_gain', 0):.0%}",
            "exhausted": "finished: every feasible configuration was measured",
            "nothing valid": "ended: no configuration is valid",
            "no template": "ended: the run has no template to tune",
            "no model": "ended: the model gave nothing to go on with",
            "recording": "ended: the recording has no further answers",
            "": "not ended yet; `tunesmith resume` goes on",
        }.get(self.ended_by, f"ended by: {self.ended_by}")


def summarise(context: Context, done: str) -> Summary:
    """Everything a reader of results needs, from the run's log. done: why the run ended."""
    log = context.log
    begun, found = log.begun, log.evaluations()
    early = " before the time limit; give more time" if done == "time" else ""
    nothing = f"no {'valid configuration was found' if found else 'configuration was measured'}{early}."
    noted = [note.sentence for note in log.events(events.Noted)]
    verdict = log.verdict() or events.Verdict(sentence=no_template(context) if done == "no template" else nothing)
    return Summary(
        **{name: getattr(verdict, name) for name in events.Verdict.model_fields},
        task=context.task.name,
        summary=context.task.summary,
        device=context.device,
        baseline_label=context.sources.baseline.label,
        settings=context.settings.model_dump(mode="json"),
        ended_by=done,
        seconds=round(context.journal.seconds_spent(), 3),
        evaluations=len(found),
        from_cache=sum(evaluation.cached for evaluation in found),
        failures=failures_by_kind(found),
        failure_examples=failure_examples(found),
        searches=tuple(log.events(events.Searched)),
        plans=tuple(log.plans),
        examined=tuple(account(context, verdict)),
        models=models_summary(context.settings, context.journal),
        templates=tuple(
            TemplateRow(
                **{name: getattr(node, name) for name in ("id", "parent", "moves", "round", "vetoed")},
                evaluations=len(node.found),
                ratio=node.best,
            )
            for node in context.tree().nodes
            if node.round
        ),
        notes=(*unsteady(verdict), *far_from_floor(context, verdict), *noted, *context.task.caveats),
        dispatching=dispatching(context, verdict),
        roofline=context.roofline(),
        versions=versions(),
        started_at=begun.at,
        origin=begun.event.origin,
    )


MAX_FAILURE_EXAMPLES = 12


def failure_examples(found: Iterable[Evaluation]) -> tuple[events.FailureExample, ...]:
    """One example of each distinct failure, at most `MAX_FAILURE_EXAMPLES`."""
    examples: dict[str, events.FailureExample] = {}
    for one in found:
        if (failure := one.failure) is not None:
            text = describe(failure)
            example = events.FailureExample(kind=failure.kind, what=text, config=one.config, template=one.template)
            examples.setdefault(failure.kind + text[:60], example)
    return tuple(examples.values())[:MAX_FAILURE_EXAMPLES]


def read_summary(folder: Path | str) -> Summary:
    """The summary of the run in `folder`. Raises `JournalError` where there is none that can be read."""
    path, has_journal = Path(folder, "summary.json"), Path(folder, "journal.sqlite").is_file()
    if not path.is_file():
        if has_journal:
            raise JournalError(f"{folder} has not ended; go on with `tunesmith resume`: it has no summary.json yet.")
        raise not_a_run(path.parent, path.name)
    try:
        return Summary.model_validate_json(path.read_bytes())
    except ValidationError as error:
        if has_journal:
            # Refuses a run of another version, which `resume` cannot write anew.
            Journal(path.parent, create=False, reading=True).close()
        again = f"`tunesmith resume {folder}` writes it anew"
        raise JournalError(f"{path} is damaged ({explain(error, None)}); {again}.") from error
    except OSError as error:
        raise JournalError(f"{path} cannot be read: {error.strerror}.") from error


def summary_schema() -> str:
    """The JSON schema of summary.json, as docs/summary.schema.json has it."""
    schema = Summary.model_json_schema(mode="serialization")
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}, indent=2) + "\n"


FAR_FROM_FLOOR = 0.6
"""Share of its floor below which a kernel has something left to gain."""


def far_from_floor(context: Context, verdict: events.Verdict) -> list[str]:
    """How far the general configuration of a template by rules is from the floor where there is the most to gain, and
    why the rule that could bring it nearer does not apply."""
    task, backend = context.task, context.device.backend
    rows = [row for row in verdict.tuned if row.share_of_floor is not None and row.general is not None]
    row = max(rows, key=lambda one: one.floor_seconds or 0.0, default=None)
    by_rules = any(template.name == NAME for template in context.sources.templates)
    if row is None or row.share_of_floor is None or row.share_of_floor >= FAR_FROM_FLOOR or not by_rules:
        return []
    workload = task.workload(row.workload)
    bound = context.roofline().bound(task.bytes_of(workload), task.flops_of(workload), task.arithmetic or "float32")
    # Without its operations nothing says what bounds the kernel.
    why = missing_rule(task, backend, computes=bound == "compute") if task.flops_of(workload) else ""
    reason = f" A rule that could bring it nearer does not apply: {why}." if why else ""
    traffic = "" if task.arithmetic else " by memory traffic (`flops` and `arithmetic` in the task add the arithmetic)"
    times = f"{1 / row.share_of_floor:.1f} times its floor{traffic}"
    return [f"On {row.workload} the general configuration takes {times}.{reason}"]


def unsteady(verdict: events.Verdict) -> list[str]:
    """Warnings: wide intervals, and times just below the floor; far below it, the roof was left out."""
    rows = [(row, row.general) for row in verdict.rows if row.general is not None]
    wide = [row.workload for row, general in rows if general.high > MAX_INTERVAL_RATIO * general.low]
    below = [row.workload for row, _ in rows if (row.share_of_floor or 0.0) > 1]
    notes = {
        f"The interval of the speed-up is wide on {', '.join(wide)}: something else used the device while it was "
        "measured. Run it again on an idle one.": wide,
        f"Times are below the floor on {', '.join(below)}: the floor is the time of a copy of as many bytes, and a "
        "kernel that mostly reads can be up to 10 % faster.": below,
    }
    return [note for note, workloads in notes.items() if workloads]


@cache
def versions(*others: str) -> dict[str, str]:
    """The versions of Tunesmith, `PACKAGES` and `others`, as far as they are installed here."""
    found = {"tunesmith": __version__}
    for package in (*PACKAGES, *others):
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


FIRST = ("evaluation", "stage", "template", "workload", "outcome", "seconds", "low", "high", "samples", "dropped")
COMPARED = ("ratio", "ratio_low", "ratio_high", "verdict")
LAST = ("registers", "shared_bytes", "spill_bytes", "compile_seconds", "lane_seconds", "detail")
COLUMNS = frozenset((*FIRST, *COMPARED, *LAST))


def write_csv(folder: Path, out: Path, *, force: bool = False) -> int:
    """Writes the table of the run in `folder` to `out`, and returns the number of rows. force: replace any file.

    evaluation counts from 1 in the order in which they ended; the baseline is 0. Then the measurement: seconds of a
    launch with their 95 % interval, empty where it failed. A column for each parameter of any template follows (named
    "parameter samples" where it shares its name with another); then the compiler's figures, wall-clock seconds of the
    evaluation, and why it failed. Rows with the outcome "compared" come last: ratio is the finalist's time over the
    baseline's, both timed in turn, with its 99 % interval and verdict; seconds is the baseline's median times the
    ratio. Raises `JournalError`, and `TunesmithError` where `out` must not be written."""
    with Journal(folder, create=False, reading=True) as journal:
        log = RunLog(journal)
        _ = log.started  # a table is of a run, which has a beginning
        rows = list(_rows(log))
    parameters = dict.fromkeys(name for row in rows for name in row if name not in COLUMNS)
    require_writable_file(out, "--csv", begins=",".join((*FIRST, *COMPARED)).encode(), force=force)
    refused = refusals(f"{out} cannot be written", "choose another --csv")
    with refused, out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*FIRST, *COMPARED, *parameters, *LAST], restval="")
        writer.writeheader()
        writer.writerows(rows)
    return len(rows)


def _rows(log: RunLog) -> Iterator[dict[str, Any]]:
    """The rows of the table by column: evaluations, then comparisons."""
    baseline = [("", log.baseline)] if log.baseline else []
    evaluated = [(entry.stage, entry.event.evaluation) for entry in log.entries(events.Evaluated)]
    numbers: dict[tuple[str, str], int] = {}
    for number, (stage, evaluation) in enumerate([*baseline, *evaluated], 1 - len(baseline)):
        numbers[evaluation.template, config_key(evaluation.config)] = number
        used = evaluation.resources
        row = {"evaluation": number, "stage": stage, **_configured(evaluation.template, evaluation.config)}
        row |= {"registers": used.registers, "shared_bytes": used.shared, "spill_bytes": used.spills}
        row |= {"compile_seconds": evaluation.compile_seconds, "lane_seconds": evaluation.lane_seconds}
        for workload, outcome in evaluation.outcomes.items():
            found: dict[str, Any] = {"workload": workload, "outcome": outcome.kind}
            if isinstance(outcome, Measured):
                found |= {name: getattr(outcome, name) for name in ("seconds", "low", "high", "samples")}
                found["dropped"] = int(outcome.dropped)
            else:
                found["detail"] = describe(outcome)
            yield row | found
    for entry in log.entries(events.Compared):
        place: dict[str, Any] = {"stage": entry.stage, "workload": entry.event.workload}
        for one in entry.event.entries:
            row = place | {"evaluation": numbers.get(one.key), "outcome": "compared"}
            row |= _configured(one.template, one.config)
            if (figures := one.comparison) is not None:
                row |= {"seconds": events.Figures.of(figures).seconds, "verdict": figures.verdict}
                row |= {"ratio": figures.ratio, "ratio_low": figures.low, "ratio_high": figures.high}
            elif one.failure is not None:
                row |= {"outcome": one.failure.kind, "detail": describe(one.failure)}
            yield row


def _configured(template: str, config: Config) -> dict[str, Any]:
    columns = {f"parameter {name}" if name in COLUMNS else name: value for name, value in config.items()}
    return {"template": template, **columns}


def compare_runs(folders: Sequence[Path]) -> dict[str, Any]:
    """Compares runs, as JSON types: task; runs; sentences; shapes, with a row of each run (None without a measurement);
    differences: facts that differ, by name, with a text for each run; same: facts that all runs share.

    Raises `TunesmithError` for fewer than two runs, a run named twice or different tasks, or without results."""
    if len(folders) < 2:
        raise TunesmithError("compare: give at least two runs, as in `tunesmith compare RUN RUN`.")
    resolved = [folder.resolve() for folder in folders]
    for place, folder in enumerate(resolved):
        if folder in resolved[:place]:
            raise TunesmithError(f"compare: {folders[place]} is named twice; name each run once.")
    summaries = [read_summary(folder) for folder in folders]
    if len({summary.task for summary in summaries}) > 1:
        of = ", ".join(f"{folder} of {summary.task}" for folder, summary in zip(folders, summaries, strict=True))
        raise TunesmithError(f"compare: the runs are of different tasks ({of}); name runs of one task.")
    tasks = [begun(folder).event.task for folder in folders]
    facts = [_facts(*one) for one in zip(summaries, tasks, strict=True)]
    texts_of = {name: [one.get(name, "") for one in facts] for one in facts for name in one}
    return {
        "task": summaries[0].task,
        "runs": [str(folder) for folder in folders],
        "sentences": [summary.sentence for summary in summaries],
        "shapes": _shapes(summaries, tasks),
        "differences": {name: texts for name, texts in texts_of.items() if len(set(texts)) > 1},
        "same": {name: texts[0] for name, texts in texts_of.items() if len(set(texts)) == 1 and texts[0]},
    }


def _shapes(summaries: Sequence[Summary], tasks: Sequence[Task]) -> list[dict[str, Any]]:
    """A shape is one in two runs where its sizes and data types are the same, whatever its name."""
    shapes: dict[str, dict[str, Any]] = {}
    about: dict[str, str] = {}
    for place, (summary, task) in enumerate(zip(summaries, tasks, strict=True)):
        for row in summary.rows:
            dtypes = [row.types.get(one.dtype, one.dtype) for one in task.arguments]
            key = json.dumps([row.sizes, row.types, dtypes], sort_keys=True)
            about[key] = f" ({assignments(row.sizes)}; {', '.join(dict.fromkeys(dtypes))})"
            empty = {"workload": row.workload, "held_out": [None] * len(tasks), "results": [None] * len(tasks)}
            shape = shapes.setdefault(key, empty)
            shape["held_out"][place], shape["results"][place] = row in summary.held_out, row.to_json()
    names = [shape["workload"] for shape in shapes.values()]
    for key, shape in shapes.items():
        if names.count(shape["workload"]) > 1:
            shape["workload"] += about[key]
    return list(shapes.values())


def _facts(summary: Summary, task: Task) -> dict[str, str]:
    """Facts that may differ between runs, as text, by name; a digest of long facts."""
    device, general, data = summary.device, summary.general, task.model_dump(mode="json")
    facts = {
        "device": device.name,
        "backend": device.backend,
        "architecture": device.limits.arch or "",
        "driver": device.driver or "",
        "baseline": summary.baseline_label,
        "template": "none is right" if general is None else general.template,
        "configuration": "none is right" if general is None else described(general.template, general.config),
        "configurations measured": summary.evaluations,
        "seconds": f"{summary.seconds:.0f}",
        "ended by": summary.ended_by or "interruption",
        "commit": summary.origin.commit,
        "host": summary.origin.host,
        **{f"version of {name}": version for name, version in summary.versions.items()},
        # The same task may be given by name or by path.
        **{f"setting {name}": value for name, value in summary.settings.items() if name != "task"},
    }
    parts = {name: data[name] for name in ("arguments", "types", "bytes", "reference", "tolerance")}
    parts["baseline's source"] = task.sources(device.backend).baseline.model_dump(mode="json")
    for name, text in [(name, _text(part)) for name, part in parts.items()]:
        facts[name] = text if len(text) <= 40 else hashlib.sha256(text.encode()).hexdigest()[:12]
    return {name: _text(value) for name, value in facts.items()}


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
