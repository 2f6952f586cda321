"""What a run found, as one value: made of the run's log, and read from its summary.json.

`Summary` is the form of summary.json; its schema is docs/summary.schema.json, which `make schema` writes.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tunesmith import __version__
from tunesmith.graph.context import Context
from tunesmith.graph.dispatch.findings import Dispatching, dispatching
from tunesmith.graph.journal.events import Explained, RunStarted, Searched
from tunesmith.graph.journal.measurements import failure_examples, failures_by_kind
from tunesmith.graph.journal.records import (
    ExaminationRow,
    FailureExample,
    ModelsUsage,
    Origin,
    Record,
    RoundAccount,
    Verdict,
)
from tunesmith.graph.journal.store import Journal, JournalError, run_around
from tunesmith.graph.journal.tree import Node
from tunesmith.graph.models.opening import models_summary
from tunesmith.graph.roles.planning.planner import no_template
from tunesmith.graph.roles.testing.examination import account
from tunesmith.graph.state import Plan
from tunesmith.hw.probe import Device
from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.spec.files.schema_errors import sentence

WIDE = 1.5
"""An interval's high over its low, from where on it says little: a comparison aims at 1.01."""
PACKAGES = (
    "ray",
    "langgraph",
    "langchain-openai",
    "numpy",
    "cupy-cuda13x",
    "cupy-cuda12x",
    "cuda-bindings",
    "nvidia-cuda-nvrtc",
    "pyopencl",
)


class StageAccount(RoundAccount):
    """What the searches of a round did."""

    stage: str


class TemplateRow(Record):
    """A template of the run, in short. parent: the template that it was made from, "baseline", or "library" for one of
    the task; ratio: the least time over baseline that a search saw; vetoed: why a role took it out, empty if
    none did."""

    id: str
    parent: str
    moves: tuple[str, ...]
    round: int
    evaluations: int
    ratio: float | None
    vetoed: str


class Explanation(Record):
    """A model's words on what a round has shown."""

    stage: str
    lines: tuple[str, ...]


class Summary(Verdict):
    """What a run found, and how. Besides the last verdict: settings: by name, as in a settings file; ended_by: why the
    run ended, empty where it has not; seconds: working time of all sessions; from_cache: evaluations for which
    nothing had to be compiled; failures: evaluations that failed, by kind; examined: the winners' full verdicts;
    dispatching: which kernel serves a shape that is no workload, and what that costs; None where nothing was right;
    models: None where none was used; versions: of the packages that took part; started_at: seconds since the epoch."""

    task: str
    summary: str
    device: Device
    baseline_label: str
    settings: dict[str, Any]
    ended_by: str
    seconds: float
    evaluations: int
    from_cache: int
    failures: dict[str, int]
    failure_examples: tuple[FailureExample, ...] = ()
    searches: tuple[StageAccount, ...]
    plans: tuple[Plan, ...]
    examined: tuple[ExaminationRow, ...]
    models: ModelsUsage | None
    templates: tuple[TemplateRow, ...]
    explanations: tuple[Explanation, ...]
    notes: tuple[str, ...] = ()
    dispatching: Dispatching | None = None
    roofline: Roofline
    versions: dict[str, str]
    started_at: float
    origin: Origin

    @property
    def ending(self) -> str:
        """Why the run is at its end, as far as it is."""
        rounds = self.settings.get("rounds")
        return {
            "rounds": f"finished: {rounds} of {rounds} rounds",
            "evaluations": "finished: all evaluations are spent",
            "time": "ended by the time limit",
            "floor": "finished: the floor by the measured roofs is reached",
            "exhausted": "finished: every feasible configuration was measured",
            "nothing valid": "ended: no configuration is valid",
            "no template": "ended: there is no template to tune",
            "no model": "ended: the model gave nothing to go on with",
            "recording": "ended: the recording has no further answers",
            "": "not ended yet; `tunesmith resume` goes on",
        }.get(self.ended_by, f"ended by: {self.ended_by}")


def summarise(context: Context, done: str) -> Summary:
    """Everything a reader of results needs, from the run's log. done: why the run ended."""
    log = context.log
    begun, found, reached = log.entries(RunStarted)[-1], log.evaluations(), log.verdict()
    verdict = reached or Verdict(sentence=_without_verdict(context, done, len(found)))
    usage = models_summary(context.settings, context.journal)
    return Summary(
        **{name: getattr(verdict, name) for name in Verdict.model_fields},
        task=context.task.name,
        summary=context.task.summary,
        device=context.device,
        baseline_label=context.sources.baseline.label,
        settings=context.settings.model_dump(mode="json"),
        ended_by=done,
        seconds=round(log.seconds_spent, 3),
        evaluations=len(found),
        from_cache=sum(evaluation.cached for evaluation in found),
        failures=failures_by_kind(found),
        failure_examples=tuple(failure_examples(found)),
        searches=tuple(StageAccount(stage=entry.stage, **entry.event.model_dump()) for entry in log.entries(Searched)),
        plans=tuple(log.plans),
        examined=tuple(account(context, reached)) if reached is not None else (),
        models=None if usage is None else ModelsUsage.model_validate(usage),
        templates=tuple(_template_row(node) for node in context.tree().nodes if node.round),
        explanations=tuple(Explanation(stage=entry.stage, lines=entry.event.lines) for entry in log.entries(Explained)),
        notes=(
            *context.task.caveats,
            *(note.sentence for note in log.notes()),
            *(unsteady(reached) if reached is not None else ()),
        ),
        dispatching=None if reached is None else dispatching(context, reached),
        roofline=context.roofline(),
        versions=dict(_versions()),
        started_at=begun.at,
        origin=begun.event.origin,
    )


def _without_verdict(context: Context, done: str, evaluations: int) -> str:
    if done == "no template":
        return no_template(context)
    return "no valid configuration was found." if evaluations else "no configuration was measured."


def read_summary(folder: Path) -> Summary:
    """The summary of the run in `folder`. Raises `JournalError` where there is none that can be read."""
    path = folder / "summary.json"
    if not path.is_file():
        if (folder / "journal.sqlite").is_file():
            raise JournalError(
                f"{folder} has not ended; go on with `tunesmith resume`: there is no summary.json in it."
            )
        raise JournalError(f"{folder} is not a run: there is no summary.json in it{run_around(folder)}")
    again = f"`tunesmith resume {folder}` writes it anew"
    try:
        return Summary.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        if (folder / "journal.sqlite").is_file():
            # Refuses a run of another version, which `resume` cannot write anew.
            Journal(folder, create=False, reading=True).close()
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise JournalError(f"{path} is damaged ({where}: {sentence(first)}); {again}.") from error
    except OSError as error:
        raise JournalError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise JournalError(f"{path} is damaged ({error}); {again}.") from error


def summary_schema() -> str:
    """The JSON schema of summary.json, as docs/summary.schema.json has it."""
    schema = Summary.model_json_schema(mode="serialization")
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}, indent=2) + "\n"


def unsteady(verdict: Verdict) -> list[str]:
    """What a reader should not take at face value: intervals too wide to say much, and times below the floor. (Where
    they are far below it, the roof has been left out, and there is no share.)"""
    rows = (*verdict.tuned, *verdict.held_out)
    wide = [row.workload for row in rows if row.general is not None and row.general.high > WIDE * row.general.low]
    below = [row.workload for row in rows if row.general is not None and (row.share_of_floor or 0.0) > 1]
    notes = []
    if wide:
        notes.append(
            f"The interval of the speed-up is wide on {', '.join(wide)}: something else used the device while it was "
            "measured. Run it again on an idle one."
        )
    if below:
        notes.append(
            f"Times are below the floor on {', '.join(below)}: the floor is what a copy of as many bytes takes, and a "
            "kernel that mostly reads can be up to 10 % faster."
        )
    return notes


def _template_row(node: Node) -> TemplateRow:
    return TemplateRow(
        id=node.id,
        parent=node.parent,
        moves=node.moves,
        round=node.round,
        evaluations=len(node.found),
        ratio=node.best,
        vetoed=node.vetoed,
    )


@cache
def _versions() -> dict[str, str]:
    found = {"tunesmith": __version__}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
