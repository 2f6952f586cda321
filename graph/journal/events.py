"""The kinds of entries of a journal: one model for each, found by the `kind` that stands beside its data.

A change of a field or a kind needs a new `FORMAT` in `tunesmith.graph.journal.store`. An entry belongs to a stage: ""
for the whole run, "round-2" for a round, "round-2-trial" for the trials of a round's new templates.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from tunesmith.graph.journal.records import (
    FinalistResult,
    Origin,
    ResultRecord,
    SearchAccount,
    Suggestion,
    TemplateAccount,
    TemplateResults,
    Tokens,
    Verdict,
    Verified,
)
from tunesmith.graph.settings import Settings
from tunesmith.graph.state import Bottleneck, BranchKind, Plan
from tunesmith.hw.probe import DeviceInfo
from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.check.verify import Passed, Skipped
from tunesmith.kernels.measure.opponents import Encounter
from tunesmith.kernels.outcome import Energy, Evaluation, Resources
from tunesmith.kernels.spec.task import Task, Workload
from tunesmith.kernels.spec.template import Config, Template

KINDS: dict[str, type[Event]] = {}
"""The models by the kinds that they are stored under: each enters itself by its class keyword `kind`."""


class Event(ResultRecord):
    """Base of all kinds. `kind` names it in the journal."""

    kind: ClassVar[str]

    def __init_subclass__(cls, *, kind: str = "", **options: Any) -> None:
        super().__init_subclass__(**options)
        if kind:
            cls.kind, KINDS[kind] = kind, cls


class RunStarted(Event, kind="run"):
    """The first entry of a run."""

    settings: Settings
    task: Task
    device: DeviceInfo
    origin: Origin


class Extended(Event, kind="extended"):
    """The settings that change from here on."""

    evaluations: int | None = None
    rounds: int | None = None
    time_limit: float | None = None
    dispatch_shapes: int | None = None


class EarlierResults(Event, kind="history"):
    """suggestions: configurations that are measured first; evidence: lines on what kinds of change brought, by
    what bounds the kernel; prior: the name of the run or table whose `results` lead the searches, empty without one."""

    suggestions: tuple[Suggestion, ...] = ()
    evidence: dict[Bottleneck, list[str]] = Field(default_factory=dict)
    prior: str = ""
    results: tuple[TemplateResults, ...] = ()


class BaselineMeasured(Event, kind="baseline"):
    """The baseline on all tuned workloads, measured once."""

    evaluation: Evaluation


class RooflineMeasured(Event, kind="roofline"):
    """The device's roofs, measured once in a run; written again without the roofs that a kernel beats."""

    roofline: Roofline


class Planned(Event, kind="plan"):
    """The plan of a round, by the planner."""

    plan: Plan


class ApprovalAwaited(Event, kind="awaiting"):
    """The plan of a round stands in `file` until a person approves it."""

    file: str


class PlanApproved(Event, kind="approved"):
    """The plan of a round as a person approved it."""

    plan: Plan


class WritingStarted(Event, kind="writing"):
    """A turn of writing templates begins: its prompts depend on earlier entries only. turn: as in `StepTaken`."""

    turn: int


class TemplateAdded(Event, kind="template"):
    """A template enters the run. parent: the id of its origin, "baseline", or "library" for a template of the task;
    moves: the changes; answers: of the model, until it worked; made_by: the kind of its branch."""

    template: Template
    parent: str = "library"
    moves: tuple[str, ...] = ()
    answers: int = 0
    made_by: BranchKind = "template"

    @property
    def id(self) -> str:
        return self.template.id


class TemplatesChosen(Event, kind="templates"):
    """The ids of the templates that a round tunes. turn: as in `StepTaken`."""

    turn: int
    ids: tuple[str, ...]


class SeedsProposed(Event, kind="seeds"):
    """Configurations that a model proposes to try first in the template's search."""

    template: str
    configs: tuple[Config, ...]


class SeedsRefused(Event, kind="refused_seeds"):
    """The infeasible ones of the proposed configurations, each as {"config": ..., "why": ...}, kept for people."""

    template: str
    refused: tuple[dict[str, Any], ...]


class BranchAbandoned(Event, kind="given_up"):
    """A branch of the plan of `round` that got no working template. branch: its number; problem: the last failures."""

    round: int
    branch: int
    parent: str
    moves: tuple[str, ...]
    problem: str
    answers: int = 1
    made_by: BranchKind = "template"


class TemplateVetoed(Event, kind="vetoed"):
    """A role took a template out of the run."""

    template: str
    why: str


class StepTaken(Event, kind="step"):
    """A role has finished. turn: how often the round was sent back before; goto: the next role, or the graph's end;
    done: why the run ended, if it did; update: of the state. A graph that starts again continues here."""

    role: str
    turn: int
    goto: str
    done: str
    update: dict[str, Any]


class Noted(Event, kind="note"):
    """A sentence for the summary: something did not go as planned. failure: the kind of a model's failure, if any."""

    role: str
    sentence: str
    failure: str = ""


class RoleKept(Event, kind="kept"):
    """Data that a further role (docs/extending.md) keeps under a name of its own."""

    name: str
    data: dict[str, Any]


class SearchStarted(Event, kind="search_started"):
    """The searches of a round begin. workers: configurations in flight; a resume keeps them, whatever its GPUs."""

    workers: int


class Asked(Event, kind="asked"):
    """The search asks for a configuration. number: from 0 within the round."""

    number: int
    template: str
    config: Config


class Evaluated(Event, kind="evaluation"):
    """An evaluation. number: of `Asked`, of the trial, or the point of a table; key: the configuration as text."""

    number: int
    key: str = ""
    evaluation: Evaluation


class Searched(SearchAccount, Event, kind="searched"):
    """The searches of a round, which have ended: their sum, and each of them."""

    stage: str
    templates: tuple[TemplateAccount, ...]


class Compared(Event, kind="comparison"):
    """Finalists against the baseline on one workload. baseline_code: the digest of its machine code; opponents: their
    `against` is in the order of entries; baseline_energy: None where it was not measured."""

    workload: str
    entries: tuple[FinalistResult, ...]
    baseline_code: str = ""
    compiler: str = ""
    opponents: tuple[Encounter, ...] = ()
    baseline_energy: Energy | None = None


class Examined(Verified, Event, kind="examined"):
    """The examination of a winner with all its steps. reason: the kind of a rejection."""

    reason: str = ""
    steps: tuple[Passed | Skipped, ...] = ()


class ShapeCompared(Event, kind="shape"):
    """The winners against the baseline on a further shape. fitted: the rule is fitted to it, else tried on it."""

    workload: Workload
    fitted: bool
    entries: tuple[FinalistResult, ...]
    compiler: str = ""


class VerdictReached(Event, kind="verdict"):
    """The verdict of a round's test."""

    verdict: Verdict


class Explained(Event, kind="explanation"):
    """A model's words on the results of a round."""

    stage: str
    lines: tuple[str, ...]


class EvidenceKept(Event, kind="evidence"):
    """Facts of a kernel's machine code at one configuration. which: "baseline" or a template's id; config: as text;
    hot_lines: the lines with most instructions, in words; counters: of the hardware, on `workload`."""

    which: str
    config: str
    workload: str
    resources: Resources | None
    instructions: dict[str, Any]
    hot_lines: tuple[str, ...] = ()
    counters: dict[str, float]
    note: str


class _ModelEvent(Event):
    """id: the request's custom_id; custom_id: the call's; digest: of the whole prompt; attempt: counts from 1."""

    id: str
    custom_id: str
    digest: str
    role: str
    model: str
    attempt: int
    body: dict[str, Any] | None


class ModelAsked(_ModelEvent, kind="model_asked"):
    """A request to a model is about to be made. worst: upper bound of its tokens; body: only where it is new."""

    worst: Tokens


class ModelCalled(_ModelEvent, kind="model_call"):
    """The end of an attempt. status: "ok" or the kind of failure; final: of all attempts; answer: the chat completion,
    and `text` its text; served: the server may count it."""

    status: str
    detail: str
    final: bool
    answer: dict[str, Any] | None = None
    text: str = ""
    usage: Tokens | None = None
    served: bool
    seconds: float
    note: str = ""


class ModelMethodFound(Event, kind="model_method"):
    """The form in which a server takes a request for structured output."""

    model: str
    method: Literal["json_schema", "function_calling", "json_mode"]


class ExhaustStarted(Event, kind="exhaust"):
    """The first entry of a table's journal: its subject."""

    template: str
    workload: str
    device: str
    seed: int
