"""The kinds of entries of a journal: one model for each, found by the `kind` that stands beside its data.

Owns what each kind contains; a change of a field or a kind needs a new `FORMAT` in `tunesmith.graph.journal.store`.
Who writes and who reads a kind stands in its docstring. An entry belongs to a stage: "" for the whole run, "round-2"
for a round, "round-2-trial" for the trials of a round's new templates.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, get_args

from pydantic import BaseModel, ConfigDict

from tunesmith.graph.journal.records import (
    CallUsage,
    Examination,
    FinalistResult,
    Origin,
    RefusedSeed,
    RoundAccount,
    Suggestion,
    TemplateResults,
    Tokens,
    Verdict,
)
from tunesmith.graph.settings import Settings
from tunesmith.graph.state import BranchKind, Plan
from tunesmith.hw.probe import Device
from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.measure.opponents import Encounter
from tunesmith.kernels.outcome import Energy, Evaluation, Resources
from tunesmith.kernels.spec.task import Task, Workload
from tunesmith.kernels.spec.template import Config, Template


class Event(BaseModel):
    """Base of all kinds. `kind` names it in the journal."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="constants")

    kind: ClassVar[str]


class RunStarted(Event):
    """The first entry of a run, written by `tune`; resume and `--prior` read it."""

    kind: ClassVar[str] = "run"
    settings: Settings
    task: Task
    device: Device
    origin: Origin


class Extended(Event):
    """A run may take more: the settings that change from here on. Written and read by `graph.setup.extension`."""

    kind: ClassVar[str] = "extended"
    evaluations: int | None = None
    rounds: int | None = None
    time_limit: float | None = None
    dispatch_shapes: int | None = None


class EarlierResults(Event):
    """What earlier runs found. suggestions: configurations that are measured first; prior: the name of the run or table
    whose `results` lead the searches, empty where none was given. Written by `tune` before the run starts, read by the
    searches (`graph.history`)."""

    kind: ClassVar[str] = "history"
    suggestions: tuple[Suggestion, ...] = ()
    prior: str = ""
    results: tuple[TemplateResults, ...] = ()


class BaselineMeasured(Event):
    """The baseline on all tuned workloads, measured once in a run by the first role that compares with it."""

    kind: ClassVar[str] = "baseline"
    evaluation: Evaluation


class RooflineMeasured(Event):
    """The device's roofs, measured once in a run; again without those that a kernel was found to beat."""

    kind: ClassVar[str] = "roofline"
    roofline: Roofline


class Planned(Event):
    """The plan of a round, written by the planner."""

    kind: ClassVar[str] = "plan"
    plan: Plan


class ApprovalAwaited(Event):
    """The plan of a round stands in `file` until a person approves it. Written and read by `graph.roles.approval`."""

    kind: ClassVar[str] = "awaiting"
    file: str


class PlanApproved(Event):
    """The plan of a round as a person approved it, written by the approver."""

    kind: ClassVar[str] = "approved"
    plan: Plan


class WritingStarted(Event):
    """A turn of writing templates begins: what the model is asked in it depends on earlier entries only. turn: how
    often the round was sent back for other templates before."""

    kind: ClassVar[str] = "writing"
    turn: int


class TemplateAdded(Event):
    """A template enters the run. parent: the id of the template that it was made from, "baseline", or "library" for
    one that the task brings; moves: what was changed; answers: how many a model needed for it; made_by: the kind of
    branch it came from. Written by templaters, read by everything that needs a template's source."""

    kind: ClassVar[str] = "template"
    template: Template
    parent: str = "library"
    moves: tuple[str, ...] = ()
    answers: int = 0
    made_by: BranchKind = "template"

    @property
    def id(self) -> str:
        return self.template.id


class TemplatesChosen(Event):
    """What a round tunes: ids of templates. turn: as of `WritingStarted`. Written and read by the templaters."""

    kind: ClassVar[str] = "templates"
    turn: int
    ids: tuple[str, ...]


class SeedsProposed(Event):
    """Configurations that a model proposes to try first. Written by the templater, read by the template's search."""

    kind: ClassVar[str] = "seeds"
    template: str
    configs: tuple[Config, ...]


class SeedsRefused(Event):
    """Proposed configurations that are not feasible. Written by the template's search, for readers of the journal."""

    kind: ClassVar[str] = "refused_seeds"
    template: str
    refused: tuple[RefusedSeed, ...]


class BranchAbandoned(Event):
    """No working template came out of a branch of the plan. branch: its number; problem: what did not work; answers and
    made_by: as of `TemplateAdded`. Written by the templaters, read by the tree of templates."""

    kind: ClassVar[str] = "given_up"
    branch: int
    parent: str
    moves: tuple[str, ...]
    problem: str
    answers: int = 1
    made_by: BranchKind = "template"


class TemplateVetoed(Event):
    """A role took a template out of the run, by `graph.roles.veto`. Tree and tester leave it out."""

    kind: ClassVar[str] = "vetoed"
    template: str
    why: str


class StepTaken(Event):
    """A role has finished. turn: how often the round was sent back for other templates before; goto: the role that is
    next, or the graph's end; done: what ended the run, where it did; update: what changes in the state. Written by
    `graph.build`, which takes it from here when the graph is started again."""

    kind: ClassVar[str] = "step"
    role: str
    turn: int
    goto: str
    done: str
    update: dict[str, Any]


class Noted(Event):
    """A sentence of a role that the summary shows: something did not go as planned. failure: the kind of a model's
    failure, where that is the reason. Written by `Context.note`."""

    kind: ClassVar[str] = "note"
    role: str
    sentence: str
    failure: str = ""


class RoleKept(Event):
    """What a further role (docs/extending.md) keeps under a name of its own. Written and read by `Context.once`."""

    kind: ClassVar[str] = "kept"
    name: str
    data: dict[str, Any]


class SearchStarted(Event):
    """The searches of a round begin. workers: for how many configurations at a time they are made, which decides what
    they ask, so that a resume with another number of GPUs asks the same. Written and read by the tuner."""

    kind: ClassVar[str] = "search_started"
    workers: int


class Asked(Event):
    """The search asks for a configuration. number: from 0 within the round. Written and replayed by the tuner."""

    kind: ClassVar[str] = "asked"
    number: int
    template: str
    config: Config


class Evaluated(Event):
    """A configuration was evaluated. number: of the entry `Asked`, or of the trial, or the point of a table; key: the
    configuration as text. Written by tuner, trials and `exhaust`; most readers take it from `RunLog.evaluations`."""

    kind: ClassVar[str] = "evaluation"
    number: int
    key: str = ""
    evaluation: Evaluation


class Searched(RoundAccount, Event):
    """The searches of a round have ended. Written by the tuner; read by the tester, `--more` and the summary."""

    kind: ClassVar[str] = "searched"


class Compared(Event):
    """Finalists against the baseline on one workload. Written and read by the tester.

    baseline_code: the digest of the baseline's machine code; compiler: what all of it came from, with its version.
    opponents: how those did that were timed, `against` in the order of the entries. baseline_energy: None where energy
    was not measured."""

    kind: ClassVar[str] = "comparison"
    workload: str
    entries: tuple[FinalistResult, ...]
    baseline_code: str = ""
    compiler: str = ""
    opponents: tuple[Encounter, ...] = ()
    baseline_energy: Energy | None = None


class Examined(Event):
    """A winner was examined. Written by the tester's examination; the summary reads it."""

    kind: ClassVar[str] = "examined"
    examination: Examination


class ShapeCompared(Event):
    """A run's winners against the baseline on a shape beside the tuned ones, for the dispatch rule. fitted: the rule is
    fitted to it; otherwise it is tried on it; compiler: made the machine code. Written by `graph.dispatch`, which reads
    it; so do exports."""

    kind: ClassVar[str] = "shape"
    workload: Workload
    fitted: bool
    entries: tuple[FinalistResult, ...]
    compiler: str = ""


class VerdictReached(Event):
    """The verdict of a round's test. Written by the tester; read by the explainer and the summary."""

    kind: ClassVar[str] = "verdict"
    verdict: Verdict


class Explained(Event):
    """A model's words on what a round has shown. Written by the explainer; read by the next plan and the summary."""

    kind: ClassVar[str] = "explanation"
    lines: tuple[str, ...]


class EvidenceKept(Event):
    """What is known of a kernel's machine code at one configuration. which: "baseline" or a template's id; config: the
    configuration as text; hot_lines: the lines that most instructions come from, in words; counters: of the hardware,
    on `workload`. Written and read by `graph.prompts.evidence`."""

    kind: ClassVar[str] = "evidence"
    which: str
    config: str
    workload: str
    resources: Resources | None
    instructions: dict[str, Any]
    hot_lines: tuple[str, ...] = ()
    counters: dict[str, float]
    note: str


class _ModelEvent(Event):
    """id: the request's custom_id; custom_id: the call's; digest: of all that the model gets to read; attempt: which
    one of this request."""

    id: str
    custom_id: str
    digest: str
    role: str
    model: str
    attempt: int
    body: dict[str, Any] | None


class ModelAsked(_ModelEvent):
    """A request to a model is about to be made. worst: the most that it may take; body: of the first attempt in a form.
    Written by `graph.models.client`; read by the usage and the recording."""

    kind: ClassVar[str] = "model_asked"
    worst: Tokens


class ModelCalled(_ModelEvent):
    """The end of an attempt. status: "ok" or the kind of failure; final: no other attempt follows; answer: the chat
    completion, and `text` its text; served: the server may count it. Written by `graph.models.client`; read by the
    usage, the recording, and whoever asks the same again."""

    kind: ClassVar[str] = "model_call"
    status: str
    detail: str
    final: bool
    answer: dict[str, Any] | None = None
    text: str = ""
    usage: CallUsage | None = None
    served: bool
    seconds: float
    note: str = ""


class ModelMethodFound(Event):
    """How a server takes a request for structured output. Written and read by `graph.models.client`."""

    kind: ClassVar[str] = "model_method"
    model: str
    method: Literal["json_schema", "function_calling", "json_mode"]


class ExhaustStarted(Event):
    """The first entry of a table's journal: what it measures. Written and compared by `graph.study.exhaust`."""

    kind: ClassVar[str] = "exhaust"
    template: str
    workload: str
    device: str
    seed: int


AnyEvent = (
    RunStarted
    | Extended
    | EarlierResults
    | BaselineMeasured
    | RooflineMeasured
    | Planned
    | ApprovalAwaited
    | PlanApproved
    | WritingStarted
    | TemplateAdded
    | TemplatesChosen
    | SeedsProposed
    | SeedsRefused
    | BranchAbandoned
    | TemplateVetoed
    | StepTaken
    | Noted
    | RoleKept
    | SearchStarted
    | Asked
    | Evaluated
    | Searched
    | Compared
    | Examined
    | VerdictReached
    | ShapeCompared
    | Explained
    | EvidenceKept
    | ModelAsked
    | ModelCalled
    | ModelMethodFound
    | ExhaustStarted
)
KINDS: dict[str, type[AnyEvent]] = {event.kind: event for event in get_args(AnyEvent)}
"""The models by the kinds that they are stored under."""
