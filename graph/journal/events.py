"""The record of a run as typed values: the results that events, summary, report and roles share, and the kinds of
entries of a journal, one model for each, found by the `kind` that stands beside its data.

A record is immutable; `record["key"]` gives the JSON value of one field, as in summary.json. A change of a field or a
kind needs a new `FORMAT` in `tunesmith.graph.journal.log`. An entry belongs to a stage: "" for the whole run,
"round-2" for a round, "round-2-trial" for the trials of a round's new templates.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from tunesmith.graph.settings import Settings
from tunesmith.graph.state import Bottleneck, BranchKind, Plan
from tunesmith.hw.probe import DeviceInfo
from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.check.verify import Passed, Skipped
from tunesmith.kernels.measure.opponents import Encounter
from tunesmith.kernels.measure.timing import Comparison
from tunesmith.kernels.outcome import AnyOutcome, Energy, Evaluation, Objective, Resources
from tunesmith.kernels.spec.task import Task, Workload
from tunesmith.kernels.spec.template import Config, Template, assignments, config_key

ENERGY_MARGIN = 0.03
"""Share by which energies must differ for one to be less: windows are accurate to about one or two per cent."""


class ResultRecord(BaseModel):
    """Base of all records. Infinities and NaN are kept, as Python's json module writes and reads them."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="constants")

    def to_json(self) -> dict[str, Any]:
        """JSON values only, as in summary.json."""
        return self.model_dump(mode="json")

    def __getitem__(self, key: str) -> Any:
        return self.to_json()[key]


class Origin(ResultRecord):
    """Where and how a run was begun. command: program and arguments; commit: of the git repository with the task's
    files, empty without one; in_memory: the task was given from Python as a value."""

    command: str
    host: str
    python: str
    commit: str = ""
    in_memory: bool = False


class Winner(ResultRecord):
    """A configuration of a template, by the template's id."""

    template: str
    config: Config

    @property
    def key(self) -> tuple[str, str]:
        """Template id and configuration as text, by which kernels are told apart."""
        return self.template, config_key(self.config)


class Figures(ResultRecord):
    """A configuration on one workload. ratio: time over the baseline's time, from paired samples, with its 99 %
    interval; seconds of a launch: the baseline's median times that ratio. verdict: what the interval shows. joules of
    a launch, energy_ratio: over the baseline's; None where energy was not measured."""

    seconds: float
    ratio: float
    low: float
    high: float
    verdict: Literal["faster", "slower", "no difference shown"]
    joules: float | None = None
    energy_ratio: float | None = None

    def quantity(self, objective: Objective) -> float | None:
        """The objective quantity over the baseline's; None where the energy is not known."""
        if objective == "time":
            return self.ratio
        if self.energy_ratio is None:
            return None
        return self.energy_ratio * (self.ratio if objective == "edp" else 1.0)

    def gains(self, objective: Objective) -> bool:
        """Whether it is shown to be better than the baseline."""
        if objective == "time":
            return self.verdict == "faster"
        quantity = self.quantity(objective)
        return quantity is not None and quantity < 1 - ENERGY_MARGIN

    @classmethod
    def of(cls, comparison: Comparison, energy: Energy | None = None, baseline: Energy | None = None) -> Figures:
        """The figures of a comparison, and of the energies that were measured beside it."""
        return Figures(
            # The ratio comes from pairs of neighbouring samples, the medians from all samples: on a busy machine they
            # contradict each other. All times of a row are the baseline's times a ratio, so that they agree.
            seconds=comparison.ratio * comparison.baseline.median,
            ratio=comparison.ratio,
            low=comparison.low,
            high=comparison.high,
            verdict=comparison.verdict,
            joules=None if energy is None else energy.joules,
            energy_ratio=None if energy is None or baseline is None else energy.joules / baseline.joules,
        )


class BestHere(Figures, Winner):
    """The fastest configuration on one workload."""


class Dispatched(BestHere):
    """The kernel for the shape of one workload."""

    workload: str
    sizes: dict[str, int]
    types: dict[str, str]


class OpponentRow(ResultRecord):
    """The library call that a kernel replaces, on one workload. seconds: of its call; ratio, low, high: of the general
    configuration's time over its, with the 99 % interval, below 1 where that is faster; None where one of the two was
    not timed. why: it was not timed. over_baseline: it against the baseline. first_seconds: of a function's first call;
    choice: what Triton's autotuner chose in it."""

    name: str
    label: str
    seconds: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    why: str = ""
    over_baseline: Figures | None = None
    first_seconds: float | None = None
    choice: Config | None = None

    @property
    def remark(self) -> str:
        """Why it was not timed, or its choice, for people; empty where there is nothing to say."""
        if self.choice is None:
            return self.why
        return f"chose {assignments(self.choice)} in {self.first_seconds or 0:.1f} s"


class WorkloadRow(ResultRecord):
    """The results of a test on one workload. floor_seconds: the shortest possible time by the measured roofs;
    share_of_floor: floor over the general configuration's time; regret: the general configuration's time over the best
    one's there, less 1, in the objective quantity. baseline_joules: None where energy was not measured. best_exported:
    whether `best` serves this shape in best/; else the general configuration or the baseline does, as the 99 %
    intervals of both overlap, it saves less than 1 %, or the workload is held out; None without a best."""

    workload: str
    sizes: dict[str, int]
    types: dict[str, str]
    floor_seconds: float | None
    baseline_seconds: float | None
    general: Figures | None = None
    best: BestHere | None = None
    best_exported: bool | None = None
    share_of_floor: float | None = None
    regret: float | None = None
    baseline_joules: float | None = None
    opponents: tuple[OpponentRow, ...] = ()


class Suggestion(ResultRecord):
    """A configuration that an earlier run found good, its device, and its time over the baseline's there."""

    config: Config
    device: str
    driver: str
    ratio: float


KnownResult = tuple[Config, float | None, str | None]
"""Configuration, objective, kind of failure."""


class TemplateResults(ResultRecord):
    """The results of another run for one template, by id and name there; both are empty for a table."""

    template: str
    name: str
    results: tuple[KnownResult, ...]


class Disqualified(Winner):
    """A finalist that fails the final comparison or examination. workload: "all" where it is out as a whole."""

    workload: str
    why: str


class FrontPoint(Winner):
    """A finalist's weighted geometric means of time and of energy over the baseline's on the tuned workloads. best: no
    other finalist is better in one and as good in the other."""

    ratio: float
    energy_ratio: float
    best: bool


class Verdict(ResultRecord):
    """The result of a test. general: the best configuration for all workloads; ratio: its weighted geometric mean of
    time over baseline on the tuned workloads; dispatch: the kernels for the tuned workloads on which something is shown
    to be better than the baseline. objective: the meaning of better; energy_ratio: as ratio, of energy; front: the
    finalists by time and energy, the fastest first; both empty where energy was not measured. unexamined: finalists
    that cannot win because they could not be examined."""

    general: Winner | None = None
    ratio: float | None = None
    tuned: tuple[WorkloadRow, ...] = ()
    held_out: tuple[WorkloadRow, ...] = ()
    disqualified: tuple[Disqualified, ...] = ()
    dispatch: tuple[Dispatched, ...] = ()
    sentence: str
    objective: Objective = "time"
    energy_ratio: float | None = None
    front: tuple[FrontPoint, ...] = ()
    unexamined: int = 0

    @property
    def rows(self) -> tuple[WorkloadRow, ...]:
        """The tuned workloads, then the held-out ones."""
        return (*self.tuned, *self.held_out)

    @property
    def special(self) -> tuple[Dispatched, ...]:
        """The dispatched kernels that are not the general configuration."""
        return tuple(one for one in self.dispatch if self.general is None or one.key != self.general.key)


class FinalistResult(Winner):
    """A finalist against the baseline on one workload: the comparison, or the failure. code: digest of the machine code
    that was timed (`Artifact.code_digest`), empty if unknown; energy: None where it was not measured."""

    comparison: Comparison | None = None
    failure: AnyOutcome | None = None
    code: str = ""
    energy: Energy | None = None


class Verified(Winner):
    """A winner after the full verdict of `tunesmith check`. workload: empty for all.

    verdict "not examined": the examination itself failed, and `detail` says why; "partial": nothing was found wrong,
    but the template excludes most made-up workloads. unexecuted: the parts of the kernel that ran in no step, a clause
    for each combination of types with some; unreached: whether lines of the source are among them that ran nowhere else
    either (a compiler makes several copies of a line); artifacts: content hashes of the machine code of the candidate
    and of the baseline; seconds: its share of the time of all examinations; seed: with which `tunesmith check` draws
    the same steps.
    """

    workload: str
    verdict: Literal["accepted", "partial", "rejected", "not examined"]
    detail: str = ""
    notes: tuple[str, ...] = ()
    unexecuted: tuple[str, ...] = ()
    unreached: bool = False
    artifacts: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    seconds: float = 0.0
    seed: int = 0


class ExaminationRow(Verified):
    """The examination in the summary. checks: steps passed; largest_error, baseline_error: of the configuration and the
    baseline on the task's own workloads and contents, as shares of the tolerance."""

    checks: int
    skipped: tuple[str, ...]
    largest_error: float | None
    baseline_error: float | None


class Racing(ResultRecord):
    """The savings of ending measurements of clear losers early. dropped: how many; sampling_seconds: wall clock of all
    samples; saved_seconds: the rest of the dropped ones, if each had taken the mean of the others."""

    dropped: int
    sampling_seconds: float
    saved_seconds: float


class SearchAccount(ResultRecord):
    """The account of a search. points: feasible ones, None where they cannot be counted; cartesian: all combinations of
    values; asked: number of configurations; exhausted: no point is left; failures: count by kind."""

    strategy: str
    points: int | None
    cartesian: int
    asked: int
    exhausted: bool
    failures: dict[str, int]
    racing: Racing


class TemplateAccount(SearchAccount):
    """The search of one template. rng: what its random numbers derive from."""

    template: str
    rng: dict[str, Any]


class FailureExample(ResultRecord):
    """One example of a kind of failure, with its description."""

    kind: str
    what: str
    config: Config
    template: str = ""


class Tokens(ResultRecord):
    """Tokens and US dollars of a call; cost: None without a known price. estimated: the server did not count them."""

    prompt_tokens: int
    completion_tokens: int
    cost: float | None
    cached_tokens: int = 0
    estimated: bool = False


class UsageTotals(ResultRecord):
    """calls: answered, or perhaps answered; unaccounted: calls whose tokens are an estimate; failed: questions without
    a usable answer; cost: US dollars, None without a known price; seconds: waiting for answers."""

    calls: int
    unaccounted: int
    failed: int
    prompt_tokens: int
    completion_tokens: int
    cost: float | None
    seconds: float


class RoleUsage(UsageTotals):
    """One role's use of one model."""

    role: str
    model: str


class ModelsUsage(UsageTotals):
    """The models' part of a run: totals, and `rows` by role and model. where: the server, or the folder of files;
    failures: questions without a usable answer, by kind."""

    transport: str
    where: str
    failures: dict[str, int]
    rows: tuple[RoleUsage, ...]


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
    """The examination of a winner with all its steps. reason: the kind of a rejection; brief: that of a template which
    a model wrote, before its search, on made-up sizes alone, of which only a rejection counts."""

    reason: str = ""
    brief: bool = False
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
